/*
 * config.h
 *	  What config.json and generation_config.json say about a model, checked, with everything derived from it.
 *
 * Accepted are DeepseekV3ForCausalLM (DeepSeek-V3, R1, V3.1, Moonlight, Kimi-K2), DeepseekV2ForCausalLM (V2, V2-Lite) and
 * the text part of Kimi-K2.5 (text_config), with the key names of transformers 4 and 5. Every number is checked against
 * the bounds below before anything is computed from it, so that any product of two of them, and any matrix's byte size,
 * fits in an int64_t; whoever multiplies three checks. Absent keys get the defaults of transformers' configuration
 * classes. A Dsv3Config is plain data after opening and never changes; the frequency tables belong to it.
 */
#ifndef DSV3_CONFIG_H
#define DSV3_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

/* The largest values accepted; far above any published model. A row index of every matrix fits an int32_t. */
#define DSV3_MAX_VOCAB (1 << 24)
#define DSV3_MAX_WIDTH (1 << 20) /* hidden_size, intermediate_size, moe_intermediate_size */
#define DSV3_MAX_HEADS 4096
#define DSV3_MAX_HEAD_DIM                                                                                    \
	(1 << 16) /* qk_nope_head_dim, qk_rope_head_dim, v_head_dim, and their sums with each other */
#define DSV3_MAX_RANK      (1 << 16) /* q_lora_rank, kv_lora_rank */
#define DSV3_MAX_LAYERS    1024
#define DSV3_MAX_EXPERTS   16384
#define DSV3_MAX_POSITIONS (1 << 24) /* positions are exact as F32 up to here */
#define DSV3_MAX_EOS       16

typedef enum Dsv3Routing
{
	DSV3_ROUTING_NOAUX_TC, /* V3: sigmoid; bias only chooses; group score = sum of the two best; -inf mask */
	DSV3_ROUTING_GREEDY,   /* V2-Lite: softmax over all experts, plain top-k */
	DSV3_ROUTING_GROUP_LIMITED_GREEDY, /* V2: softmax; group score = maximum; masked scores are 0 */
} Dsv3Routing;

typedef enum Dsv3RopeType
{
	DSV3_ROPE_DEFAULT,
	DSV3_ROPE_LINEAR,
	DSV3_ROPE_YARN,
	DSV3_ROPE_LONGROPE,
} Dsv3RopeType;

/*
 * Rotary embedding, ready to use. The angle of pair j at position p is (float) p * f[j], computed in F32; cos and sin are
 * multiplied by attention_factor. f is inv_freq for p < long_from and inv_freq_long from there on. Only longrope has
 * the second table; with the other types long_from is INT32_MAX and both pointers are equal. (transformers
 * chooses the table by the length of the whole forward pass; choosing by position is what it does when decoding token by
 * token, and the only rule under which a position's logits depend on nothing after it.)
 */
typedef struct Dsv3Rope
{
	Dsv3RopeType type;
	bool interleaved; /* pair j is lanes (2j, 2j + 1); otherwise (j, j + R/2) */
	double theta;
	double factor;              /* 1 when the type has none */
	int32_t original_positions; /* original_max_position_embeddings; max_positions when absent */
	int32_t long_from;          /* first position that uses inv_freq_long */
	float attention_factor;
	float *inv_freq;      /* [qk_rope_dim / 2], radians per position */
	float *inv_freq_long; /* [qk_rope_dim / 2] */
} Dsv3Rope;

typedef struct Dsv3Config
{
	char
		architecture[64]; /* "DeepseekV3ForCausalLM" or "DeepseekV2ForCausalLM" (also for a Kimi text part) */
	char model_type[32];  /* as in the file: "deepseek_v3", "kimi_k2", "kimi_k25", "deepseek_v2" */
	bool is_v2;
	bool nested;           /* read from text_config: tensor names may carry a "language_model." prefix */
	char stored_dtype[16]; /* torch_dtype or dtype, "" when absent; informative */

	int32_t vocab_size;        /* rows of the embedding and the output matrix */
	int32_t hidden_size;       /* H */
	int32_t n_layers;          /* L, without MTP layers */
	int32_t n_heads;           /* A; key-value heads are the same number */
	int32_t q_lora_rank;       /* Rq; 0: one q_proj */
	int32_t kv_lora_rank;      /* C */
	int32_t qk_nope_dim;       /* N >= 1 */
	int32_t qk_rope_dim;       /* R, even, >= 2 */
	int32_t v_dim;             /* V */
	int32_t intermediate_size; /* F, dense layers */
	int32_t max_positions;
	float rms_norm_eps;    /* input, post-attention and final norms */
	float latent_norm_eps; /* q_a and kv_a norms: 1e-6 whatever the file says, as in transformers */
	bool tie_word_embeddings;
	bool attention_bias; /* biases on q_a_proj, kv_a_proj_with_mqa and o_proj */
	float softmax_scale; /* (N + R)^-1/2, times m^2 for a scaled rope with mscale_all_dim */
	Dsv3Rope rope;

	/* Mixture of experts. Layer i is MoE iff i >= first_dense; first_dense == n_layers when there is none, and then
	 * n_routed_experts is 0. */
	int32_t first_dense;           /* first_k_dense_replace, at most n_layers */
	int32_t moe_intermediate_size; /* Fm */
	int32_t n_routed_experts;      /* E */
	int32_t n_shared_experts;      /* S; one MLP of width S * Fm; 0: none */
	int32_t n_experts_per_token;   /* K */
	int32_t n_group;               /* divides E; 1: no group limit */
	int32_t topk_group;
	Dsv3Routing routing;
	bool norm_topk_prob; /* always false for V2, whose router never normalises */
	float routed_scaling_factor;

	int32_t n_mtp_layers; /* num_nextn_predict_layers said so; the first can be the draft layer */
	bool fp8_blocks;      /* quantization_config announces 128 x 128 FP8 */

	int32_t bos_id;                /* -1: none */
	int32_t eos_ids[DSV3_MAX_EOS]; /* generation_config.json, else config.json */
	int32_t n_eos;
} Dsv3Config;

/*
 * Read model_dir/config.json and, when it exists, generation_config.json. On failure false and *err, naming file, key
 * and reason; 0A000 for what is valid but not supported, XX001 for what is damaged. dsv3_config_close may be
 * called on a zeroed struct and on one whose opening failed.
 */
extern bool dsv3_config_open(Dsv3Config *config, const char *model_dir, Dsv3Error *err);

/* The same from memory; generation may be NULL. The names stand in messages. */
extern bool dsv3_config_parse(Dsv3Config *config, const char *json, size_t len, const char *generation,
							  size_t generation_len, Dsv3Error *err);
extern void dsv3_config_close(Dsv3Config *config);

/* How many parameters the model has, by kind; of all layers together. A count that does not fit is INT64_MAX, which no
 * model whose tensors exist reaches. */
typedef struct Dsv3ParamCounts
{
	int64_t embed;     /* vocab H */
	int64_t head;      /* 0 when tied */
	int64_t attention; /* matrices only */
	int64_t dense;
	int64_t experts; /* all E of every MoE layer */
	int64_t shared;
	int64_t router;
	int64_t vectors; /* norms, biases, router bias */
	int64_t total;   /* without MTP layers */
	int64_t active;  /* touched by one token: K of E experts, the output matrix, not the embedding lookup */
} Dsv3ParamCounts;

extern void dsv3_config_count(const Dsv3Config *config, Dsv3ParamCounts *counts);

/* Cache bytes of one position in all layers: the latent and the rotated key, F32. */
extern int64_t dsv3_config_kv_bytes(const Dsv3Config *config);

#endif /* DSV3_CONFIG_H */
