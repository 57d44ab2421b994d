/*
 * model.h
 *	  The model: open a checkpoint, run a step over a batch of sequences, get logits for the rows asked.
 *
 * The scheduler knows nothing of layers; the model knows nothing of requests. A Dsv3Model is immutable after opening,
 * apart from its scratch memory and thread pool, which one dsv3_model_step call uses at a time (one caller thread).
 *
 * Bit-identity. The logits of a position are a function of the model, the weight mode, the cache's row type and the token ids up to that
 * position, and of nothing else: not of the batch neighbours, the chunk size, the thread count, the block numbers or the
 * instruction set (the sets that claim exactness say so in their ops table). Every reduction inside has an order fixed by
 * the model's shape and absolute positions.
 */
#ifndef DSV3_MODEL_H
#define DSV3_MODEL_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

typedef struct Dsv3Model Dsv3Model;
typedef struct Dsv3Kv Dsv3Kv;
struct Dsv3Part;

typedef enum Dsv3WeightMode
{
	DSV3_WEIGHTS_STORED, /* as in the files: F32, BF16, F16, FP8 used in place from the mapping */
	DSV3_WEIGHTS_F32,    /* everything widened to F32 in memory */
	DSV3_WEIGHTS_BF16,   /* matrices rounded to BF16 in memory */
	/* matrices with exact integer products; norms, router, embedding and latent expansion wide (mix.h): */
	DSV3_WEIGHTS_INT8, /* 8 bits */
	DSV3_WEIGHTS_INT4, /* routed experts 4 bits, output matrix 8, others 6 */
} Dsv3WeightMode;

/* "stored", "f32", "bf16", "int8", "int4"; false for anything else. */
extern bool dsv3_weight_mode(const char *name, Dsv3WeightMode *mode);
extern const char *dsv3_weight_mode_name(Dsv3WeightMode mode);

/* "after-norm" (false) or "before-norm"; false for anything else: draft_before_norm below. */
extern bool dsv3_draft_input(const char *name, bool *before_norm);

/* In which bits the cache keeps its rows; kv_rows.c has the layouts. */
typedef enum Dsv3KvType
{
	DSV3_KV_F32,
	DSV3_KV_BF16,
	DSV3_KV_INT8, /* the latent in 8 bits, the rotated key in BF16 */
} Dsv3KvType;

/* "f32", "bf16", "int8"; false for anything else. */
extern bool dsv3_kv_type(const char *name, Dsv3KvType *type);
extern const char *dsv3_kv_type_name(Dsv3KvType type);

typedef struct Dsv3ModelOptions
{
	Dsv3WeightMode weights;
	Dsv3KvType kv;
	int threads;     /* compute threads including the caller; 0: one per usable CPU */
	const char *isa; /* "ref", "avx2", "avx512"; NULL: the best this CPU has */
	bool expanded;   /* attention in the expanded form everywhere (tests); default: absorbed where it pays */
	bool drafts;     /* load the layer that drafts tokens (MTP), if the files have one: dsv3_model_draft */
	bool
		draft_before_norm; /* what that layer reads of the model is taken before the final norm, not after it */
	/* NULL, or called for every tensor while the model is opened; checkpoint.h */
	bool (*part)(void *context, const struct Dsv3Part *part, Dsv3Error *err);
	void *part_context;
} Dsv3ModelOptions;

typedef struct Dsv3ModelInfo
{
	char architecture[64]; /* "DeepseekV3ForCausalLM" */
	char digest
		[65]; /* SHA-256 of config and tensor bytes' directory, lower-case hex; see model.c for what it covers */
	char weights
		[16];     /* "f32", "bf16", "f16", "fp8", "int8", "int4", "mixed"; of a pack several, joined by '+' */
	char isa[16]; /* the ops table in use */
	int vocab_size;
	int hidden_size;
	int n_layers;
	int n_routed_experts; /* 0: dense */
	int n_experts_per_token;
	int max_positions; /* max_position_embeddings */
	int threads;
	bool drafts; /* there is a draft layer, and it is loaded */
	int64_t params_total;
	int64_t params_active;         /* per token, embedding lookup not counted, output matrix counted */
	int64_t weight_bytes;          /* mapped or allocated */
	int64_t draft_bytes;           /* of these, the draft layer's */
	int64_t bytes_per_token;       /* weight bytes read to decode one token with a batch of one */
	int64_t kv_bytes_per_position; /* all layers */
	int32_t eos_ids[16];           /* generation_config.json, else config.json */
	int n_eos;
	int32_t bos_id; /* -1: none */
} Dsv3ModelInfo;

/* Open a Hugging Face directory or a pack. NULL and *err on any problem; a hostile file is refused with the file, the tensor
 * and the reason. The files stay mapped read-only until close. */
extern Dsv3Model *dsv3_model_open(const char *path, const Dsv3ModelOptions *options, Dsv3Error *err);
extern void dsv3_model_close(Dsv3Model *model);
extern const Dsv3ModelInfo *dsv3_model_info(const Dsv3Model *model);

/*
 * The cache: a pool of fixed blocks. One block holds DSV3_KV_BLOCK consecutive positions of one sequence in every
 * layer; each row is the latent (after its norm) and the rotated shared key, in the type the model was opened with. Blocks are numbered 0..n-1; who
 * uses which block is the scheduler's business. With a draft layer a block also holds that layer's rows and the hidden state of
 * the position computed last.
 */
#define DSV3_KV_BLOCK 32

extern Dsv3Kv *dsv3_kv_open(const Dsv3Model *model, int n_blocks, Dsv3Error *err);
extern void dsv3_kv_close(Dsv3Kv *kv);
extern int dsv3_kv_blocks(const Dsv3Kv *kv);
extern size_t dsv3_kv_block_bytes(const Dsv3Model *model);

/* The rows of a block, dsv3_kv_block_bytes of them: to keep them elsewhere and put them back into any block of such a cache. Not
 * while a step runs that writes the block. */
extern void *dsv3_kv_block(Dsv3Kv *kv, int32_t block);

/* Of how many of the last positions given logits are wanted; of all when there are fewer. */
enum
{
	DSV3_WANT_NONE = 0, /* only fill the cache */
	DSV3_WANT_LAST = 1,
	DSV3_WANT_ALL = INT_MAX,
};

/* The ids of a wanted row that matter, rising; the logits of others are not computed. */
typedef struct Dsv3Picked
{
	const int32_t *ids;
	float *logits; /* [n], written by the step */
	int n;         /* 0: the whole row */
} Dsv3Picked;

/* One of the experts that a layer's router chose for a row: its score, and the score with the bias that the choice went by. */
typedef struct Dsv3Chosen
{
	int32_t expert;
	float score;
	float biased;
} Dsv3Chosen;

/* One sequence's part of a step. */
typedef struct Dsv3StepSeq
{
	const int32_t *tokens; /* n_tokens ids, each in [0, vocab_size) */
	int n_tokens;          /* >= 1 */
	int position;          /* absolute position of tokens[0]; rows 0..position-1 are already in the cache */
	const int32_t *blocks; /* block table, covers position + n_tokens rows */
	int n_blocks;
	int want;
	const Dsv3Picked *picked; /* NULL, or one for each wanted row in order */
	/* NULL, or where to write what the routers choose, in falling order of the biased score where the choice has no groups:
	 * [position][n_layers][n_experts_per_token]; dense layers are left as they are. */
	Dsv3Chosen *routing;
} Dsv3StepSeq;

/* The number of wanted rows. */
static inline int
dsv3_step_wanted(const Dsv3StepSeq *seq)
{
	return seq->want < seq->n_tokens ? seq->want : seq->n_tokens;
}

/*
 * Run one step. Every id, position and block number is checked first (22023 on a bad one, nothing is touched).
 * logits receives the wanted rows without picks in order, each vocab_size F32, consecutive; a picked logit is the same bits as
 * in a whole row. abort_flag (may be NULL) is looked at
 * between layers: when it becomes true the step stops and returns false with 57014; the cache rows of this step are then
 * undefined, earlier rows are intact.
 */
extern bool dsv3_model_step(Dsv3Model *model, Dsv3Kv *kv, const Dsv3StepSeq *seqs, int n_seqs, float *logits,
							const atomic_bool *abort_flag, Dsv3Error *err);

/*
 * Guess on: with the draft layer, scores for the token behind the one that was just chosen. To be called after the step that gave
 * the logits it was chosen from, before the next one. seqs[i] holds that one token and its position, with want
 * DSV3_WANT_LAST; rows[i] is the number of the row it follows from, among all wanted rows of that step. logits as in a step. A guess
 * is not part of any answer: rows of the model's own layers are neither read nor written, and what drafts rest on is
 * as good as the cache's rows of the draft layer, which every step fills on its way.
 */
extern bool dsv3_model_draft(Dsv3Model *model, Dsv3Kv *kv, const Dsv3StepSeq *seqs, const int *rows,
							 int n_seqs, float *logits, Dsv3Error *err);

/* Read a piece of the weights' files from byte `from` of all of them together on, so that it is in memory. Returns where to go on, or -1
 * at the end; *total is their size. Any thread, also while steps run. */
extern int64_t dsv3_model_touch(const Dsv3Model *model, int64_t from, int64_t *total);

/* Tokens each routed expert has computed since opening, [n_layers][n_routed_experts] with zero rows for dense
 * layers; written by the step, readable any time. */
extern const atomic_uint_least64_t *dsv3_model_expert_counts(const Dsv3Model *model);

#endif /* DSV3_MODEL_H */
