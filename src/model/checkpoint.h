/*
 * checkpoint.h
 *	  A Hugging Face model directory or a pack, opened: its configuration and every tensor the forward pass needs, resolved by
 *	  name, checked for shape, and in the form the kernels take.
 *
 * In the stored mode matrices are used in place: Dsv3Weight.data points into the read-only mapping of the safetensors
 * file (a tensor that the file puts at an odd address is copied, so data is always aligned for its type). A pack has only this
 * mode, and its vectors too are used in place. In the other modes every matrix that is not stored so already is converted once into anonymous memory, 64-byte aligned. Vectors (norms, biases, router
 * bias) and router matrices are always F32 in memory and are checked to be finite. All memory belongs to the
 * checkpoint; nothing in it changes after opening, so any number of threads may read it.
 */
#ifndef DSV3_CHECKPOINT_H
#define DSV3_CHECKPOINT_H

#include "kernels/ops.h"
#include "model/config.h"
#include "model/model.h"

/* SwiGLU: down(silu(gate x) * up x). gate and up are [width, H], down is [H, width]. */
typedef struct Dsv3Mlp
{
	Dsv3Weight gate;
	Dsv3Weight up;
	Dsv3Weight down;
} Dsv3Mlp;

/* Letters as in config.h. An absent matrix has out == 0 and data == NULL; an absent vector is NULL. */
typedef struct Dsv3LayerWeights
{
	const float *input_norm;          /* [H] */
	const float *post_attention_norm; /* [H] */

	Dsv3Weight q;           /* [A (N + R), H], only when q_lora_rank is 0 */
	Dsv3Weight q_a;         /* [Rq, H] */
	const float *q_a_bias;  /* [Rq] or NULL */
	const float *q_a_norm;  /* [Rq] */
	Dsv3Weight q_b;         /* [A (N + R), Rq]; head h: N rows nope, then R rows rope */
	Dsv3Weight kv_a;        /* [C + R, H]; C rows latent, then R rows shared rope key */
	const float *kv_a_bias; /* [C + R] or NULL */
	const float *kv_a_norm; /* [C] */
	Dsv3Weight kv_b;        /* [A (N + V), C]; head h: N rows key, then V rows value; in panels in no mode */
	Dsv3Weight o;           /* [H, A V] */
	const float *o_bias;    /* [H] or NULL */

	bool moe;
	Dsv3Mlp dense;            /* width F; only when not moe */
	const float *router;      /* [E, H] */
	const float *router_bias; /* [E]; NULL for V2 */
	Dsv3Mlp *experts;         /* [E], width Fm */
	Dsv3Mlp shared;           /* width S Fm; absent when S is 0 */
} Dsv3LayerWeights;

/* What a draft layer (MTP, DeepSeek-V3 report, section 2.2) has beside a layer's weights. Published files hold the embedding and the
 * output matrix a second time under its name; where they are the main model's, they are absent here. */
typedef struct Dsv3DraftWeights
{
	const float *embed_norm;  /* [H], of the next token's embedding ("enorm") */
	const float *hidden_norm; /* [H], of the hidden state before it ("hnorm") */
	Dsv3Weight joint;         /* [H, 2 H], embedding first ("eh_proj"); absent: there is no draft layer */
	const float *final_norm;  /* [H] */
	Dsv3Weight embed;
	Dsv3Weight head;
} Dsv3DraftWeights;

typedef struct Dsv3Weights
{
	Dsv3Weight embed;         /* [vocab, H]; never in panels */
	Dsv3Weight head;          /* [vocab, H]; the same memory as embed when tied, unless the mode packs it */
	const float *final_norm;  /* [H] */
	Dsv3LayerWeights *layers; /* [L], and the draft layer's behind them */
	Dsv3DraftWeights draft;
} Dsv3Weights;

/* What a matrix is for; decides what it becomes (mix.h). */
typedef enum Dsv3MatrixRole
{
	DSV3_MATRIX_EMBED,
	DSV3_MATRIX_HEAD,
	DSV3_MATRIX_Q, /* q, q_a, q_b */
	DSV3_MATRIX_KV_A,
	DSV3_MATRIX_KV_B,
	DSV3_MATRIX_O,
	DSV3_MATRIX_MLP, /* dense and shared */
	DSV3_MATRIX_EXPERT,
	DSV3_MATRIX_JOINT, /* of the draft layer */
} Dsv3MatrixRole;

/* One tensor of the model, whatever form its files have. The name is the one of a plain checkpoint with its experts one by one,
 * "model.layers.0.mlp.experts.3.up_proj.weight"; a tied output matrix comes as "lm_head.weight" too. */
typedef struct Dsv3Part
{
	const char *name;
	Dsv3MatrixRole role; /* of a matrix */
	Dsv3Weight matrix;   /* data == NULL: it is a vector or a router */
	const float *vector; /* [dims[0]] or, for a router, [dims[0], dims[1]]; NULL with check_only */
	int n_dims;
	int64_t dims[2];
} Dsv3Part;

/* Calls fn(arg, i) for i in 0..n-1, each once, in any order and from any thread; returns when all are done. */
typedef void (*Dsv3ParallelFor)(void *context, int64_t n, void (*fn)(void *arg, int64_t i), void *arg);

typedef struct Dsv3CheckpointOptions
{
	Dsv3WeightMode weights;
	Dsv3ParallelFor parallel; /* NULL: convert on the calling thread */
	void *parallel_context;
	bool check_only; /* resolve and check everything, but leave router NULL and convert nothing (inspect) */
	bool drafts;     /* load the draft layer, where there is one */
	/* NULL, or called for every tensor in the order of the computation, as stored. Everything but the name stays valid until
	 * the checkpoint is closed. False with *err ends the opening. */
	bool (*part)(void *context, const Dsv3Part *part, Dsv3Error *err);
	void *part_context;
} Dsv3CheckpointOptions;

typedef struct Dsv3CheckpointInfo
{
	char digest[65];  /* see digest.c for what it covers */
	char weights[16]; /* as Dsv3ModelInfo.weights */
	int64_t
		params_total; /* of the main model; MTP layers and ignored tensors not counted, a tied head once */
	int64_t
		params_active;    /* per token: embedding lookup not counted, output matrix counted, K of E experts */
	int64_t weight_bytes; /* what the forward pass can touch: matrices in their final type plus F32 vectors */
	int64_t draft_bytes;  /* of these, the draft layer's */
	int64_t bytes_per_token; /* read to decode one token alone: K of E experts, one embedding row */
	int64_t mapped_bytes;    /* of files mapped */
	int64_t arena_bytes;     /* allocated for converted matrices, vectors and aligned copies */
	int n_files;
	int n_tensors;     /* in all files */
	int n_mtp_tensors; /* of MTP layers, loaded or not */
	int n_ignored;     /* rotary buffers and names nobody asked for */
} Dsv3CheckpointInfo;

typedef struct Dsv3Checkpoint
{
	Dsv3Config config;
	Dsv3Weights weights;
	Dsv3CheckpointInfo info;
	struct Dsv3TensorFiles *files; /* safetensors.h; for listings */
	struct Dsv3Arena *arena;
} Dsv3Checkpoint;

/*
 * Open a model directory or a pack. NULL and *err on any problem, naming the file, the tensor and the reason: 58P01 a file is
 * missing, 58030 it cannot be read, XX001 it is damaged or contradicts itself, 0A000 it is sound but of an unsupported kind,
 * 53200 the mode needs more memory than there is.
 */
extern Dsv3Checkpoint *
dsv3_checkpoint_open(const char *model_dir, const Dsv3CheckpointOptions *options, Dsv3Error *err);
extern void dsv3_checkpoint_close(Dsv3Checkpoint *checkpoint);

#endif /* DSV3_CHECKPOINT_H */
