/*
 * impl.h
 *	  What the files of the forward pass share; nobody outside src/model includes it.
 *
 * A step is cut into batches of at most max_rows rows (the tokens of all sequences, one after another), and a batch goes
 * through all layers before the next begins. Rows of one sequence in one batch see each other through the cache, whose
 * rows are written before attention reads any. Everything a batch needs lives in Dsv3Scratch, which belongs to the model,
 * grows and never shrinks; only the thread inside dsv3_model_step and the pool threads it runs touch it.
 *
 * Letters as in config.h: H hidden, A heads, N nope, R rope, D = N + R, C latent, V value, E experts, K chosen, W = C + R.
 */
#ifndef DSV3_MODEL_IMPL_H
#define DSV3_MODEL_IMPL_H

#include "kernels/int8.h"
#include "kernels/ops.h"
#include "kernels/pool.h"
#include "kernels/quant.h"
#include "model/checkpoint.h"
#include "model/model.h"

/* Activations of a batch with what packed weights read instead of them. */
typedef struct Dsv3Act
{
	float *data; /* [rows][width] */
	int64_t width;
	int16_t *codes; /* [rows][code_width]; NULL when no weight that reads them is INT8 */
	float *scales;  /* [rows][scale_width] */
	int64_t code_width;
	int64_t scale_width;
	Dsv3CodeBlock *blocks; /* [rows][block_width]; NULL when no weight that reads them is A4 or S6 */
	int64_t block_width;
} Dsv3Act;

/* The forms that the activations of each kind are needed in besides floats. */
#define DSV3_ACT_CODES  1u
#define DSV3_ACT_BLOCKS 2u

typedef struct Dsv3ActForms
{
	unsigned h;
	unsigned q_a;
	unsigned o;
	unsigned gate; /* of dense and shared MLPs */
	unsigned expert_gate;
	unsigned joint;
} Dsv3ActForms;

/* One row of a batch: a token of a sequence. */
typedef struct Dsv3BatchRow
{
	int32_t token;
	int32_t position;
	const Dsv3StepSeq *seq;
	bool wanted;              /* its logits are */
	const Dsv3Picked *picked; /* of these ids only; NULL: of all */
	int32_t head_row;         /* while the output matrix is applied: where the row went, */
	int64_t first_slice;      /* and its work */
} Dsv3BatchRow;

/* The rows first .. first + count - 1 of a batch belong to one sequence, at rising positions. */
typedef struct Dsv3Segment
{
	int32_t first;
	int32_t count;
	const Dsv3StepSeq *seq;
	int64_t first_slice; /* while attention shares out its work */
} Dsv3Segment;

typedef struct Dsv3Scratch
{
	int64_t rows;           /* rows the arrays below have room for */
	int64_t attention_rows; /* rows whose absorbed queries fit at once */

	Dsv3BatchRow *row;     /* [rows] */
	Dsv3Segment *segments; /* [rows] */
	Dsv3Segment *parts;    /* [rows], the segments' rows of one attention pass */
	float *x;              /* [rows][H], the residual stream */
	Dsv3Act h;             /* [rows][H], after a norm */
	int32_t *whole;        /* [rows], rows of h whose logits are wanted whole */
	float *cosine;         /* [rows][R / 2] */
	float *sine;
	Dsv3Act q_a;          /* [rows][Rq] */
	float *q;             /* [rows][A D] */
	float *kv_a;          /* [rows][W] */
	Dsv3Act o;            /* [rows][A V], heads' outputs */
	float *out;           /* [rows][H], attention output, dense or shared MLP output */
	float *scores;        /* [rows][E] */
	float *route_scratch; /* [rows][3 E] */
	int32_t *chosen;      /* [rows][K] */
	float *weights;       /* [rows][K] */
	int32_t *place;       /* [rows][K], where the slot's expert output lies in expert_out */
	int32_t *sorted_rows; /* [rows K], input row of each place, grouped by expert */
	Dsv3Act gate;         /* [rows max(F, S Fm)], gate then silu(gate) up, of a dense or shared MLP */
	float *up;
	Dsv3Act expert_gate; /* [rows K][Fm] */
	float *expert_up;
	float *expert_out; /* [rows K][H] */

	/* with a draft layer: */
	float *hidden; /* [rows][H], what it reads of the model */
	Dsv3Act joint; /* [rows][2 H], its input */

	/* attention_rows rows: */
	float *q_latent; /* [rows][A][W], absorbed query and rotated rope part */
	float *z;        /* [rows][A][C], or [rows][A][V] in the expanded form */
	float *max;      /* [rows][A] */
	float *sum;      /* [rows][A] */

	float
		*cache_rows; /* [threads][DSV3_KV_BLOCK][W], a cache block as floats; NULL when it is that already */

	/* expanded form only, one cache block: */
	float *expanded;      /* [DSV3_KV_BLOCK][A (N + V)] */
	float *expanded_keys; /* [A][DSV3_KV_BLOCK][D] */

	/* not by row: */
	int32_t *expert_first;        /* [E + 1], first place of each expert */
	struct Dsv3Product *products; /* [E + 2] */
	struct Dsv3Mlp1 *mlps;        /* [E + 1] */
	void **memory;                /* what to free */
	int n_memory;
} Dsv3Scratch;

struct Dsv3Model
{
	Dsv3Checkpoint *checkpoint;
	const Dsv3Config *config; /* checkpoint->config */
	const Dsv3Ops *ops;
	Dsv3Pool *pool;
	bool expanded;
	Dsv3KvType kv_type;
	Dsv3ActForms forms;
	/* NULL, or called by the step's thread for every product before it is computed (importance.c) */
	void (*watch)(void *context, const Dsv3Weight *weight, const Dsv3Rows *x, int m);
	void *watch_context;
	int64_t max_rows; /* of a batch */
	Dsv3ModelInfo info;
	atomic_uint_least64_t *expert_counts; /* [n_layers + 1][E], the draft layer's last */
	bool draft_before_norm;
	float *
		hidden; /* [hidden_rows][H], of the last step's wanted rows, for drafts from them; n_hidden there are */
	int64_t hidden_rows;
	int64_t n_hidden;
	Dsv3Scratch scratch;
};

struct Dsv3Kv
{
	int n_blocks;
	int n_layers; /* with the draft layer */
	Dsv3KvType type;
	int latent;         /* numbers of a row: latent C, */
	int width;          /* then rotated key R: C + R */
	size_t row_bytes;   /* a multiple of 4 */
	size_t layer_bytes; /* DSV3_KV_BLOCK * row_bytes */
	size_t block_bytes; /* n_layers * layer_bytes, then what dsv3_kv_state holds */
	uint8_t *data;      /* [n_blocks][n_layers][DSV3_KV_BLOCK][row_bytes] */
	size_t mapped_bytes;
	int32_t *writer; /* [n_blocks], used while checking a step: which sequence writes the block, else -1 */
};

/* Row 0 of a block in a layer. */
static inline uint8_t *
dsv3_kv_layer(const Dsv3Kv *kv, int32_t block, int layer)
{
	return kv->data + (size_t) block * kv->block_bytes + (size_t) layer * kv->layer_bytes;
}

/* kv_rows.c. Bytes of a row. Store row t of a block in a layer, [width]. The first n_rows rows as floats, [n_rows][width]: in place, or
 * in the buffer, which has room for a block of them. */
extern size_t dsv3_kv_row_bytes(Dsv3KvType type, int latent, int rope);
extern void dsv3_kv_write(const Dsv3Kv *kv, int32_t block, int layer, int t, const float *row);
extern const float *
dsv3_kv_read(const Dsv3Kv *kv, const Dsv3Ops *ops, int32_t block, int layer, int n_rows, float *buffer);

/* With a draft layer: the hidden state [H] of the position that was computed last in a block, and behind it this position plus one as
 * a float; 0: none yet. */
static inline float *
dsv3_kv_state(const Dsv3Kv *kv, int32_t block)
{
	return (void *) dsv3_kv_layer(kv, block, kv->n_layers);
}

/* One product y = x W^T of a parallel section. */
typedef struct Dsv3Product
{
	const Dsv3Weight *weight;
	Dsv3Rows x;
	int m;
	float *y;
	int64_t ldy;
	int64_t first_slice; /* set by dsv3_linear */
	int chunk;
} Dsv3Product;

/* One gate/up pair of a parallel section: out = silu(x gate^T) * (x up^T), quantised as out asks for. */
typedef struct Dsv3Mlp1
{
	const Dsv3Mlp *mlp;
	Dsv3Rows x;
	int m;
	Dsv3Act out; /* row 0 is the pair's first row */
	float *up;   /* [m][out.width] */
	int64_t first_slice;
	int chunk;
} Dsv3Mlp1;

/* linear.c */
extern Dsv3Rows dsv3_act_rows(const Dsv3Act *act);
extern Dsv3Act dsv3_act_from(const Dsv3Act *act, int64_t row);
/* Quantise one row as the activations ask for. */
extern void dsv3_act_quantise(const Dsv3Ops *ops, const Dsv3Act *act, int64_t row);
extern void dsv3_linear(Dsv3Model *model, Dsv3Product *products, int n);
extern void dsv3_gate_up(Dsv3Model *model, Dsv3Mlp1 *mlps, int n);

/* scratch.c: make room for a batch of rows; false and *err (53200) when there is no memory, the old room is then gone. */
extern bool dsv3_scratch_reserve(Dsv3Model *model, int64_t rows, Dsv3Error *err);
extern void dsv3_scratch_free(Dsv3Scratch *s);
/* Bytes of all by-row arrays for one row. */
extern int64_t dsv3_scratch_row_bytes(const Dsv3Model *model);

/* head.c: the wanted ones of the batch's rows from scratch.x through that norm and output matrix to logits; returns how many whole rows
 * were written there. */
extern int64_t
dsv3_head(Dsv3Model *model, const float *norm, const Dsv3Weight *head, int n_rows, float *logits);

/* forward.c: checks one sequence of a step, whatever the others are; the layer of the rows in scratch, from x to x. */
extern bool dsv3_check_step_seq(const Dsv3Model *model, const Dsv3Kv *kv, const Dsv3StepSeq *seq, int index,
								Dsv3Error *err);
extern void dsv3_layer(Dsv3Model *model, Dsv3Kv *kv, int layer, int n_rows, int n_segments);

/* draft.c, before the head of a batch: the draft layer's cache rows of all its rows, and what drafts from the wanted ones need. False
 * and *err (53200) when there is no memory. Does nothing without a draft layer. */
extern bool dsv3_draft_follow(Dsv3Model *model, Dsv3Kv *kv, int n_rows, int n_segments, Dsv3Error *err);

/* mla.c: scratch.h (the normed input) to scratch.out (the attention output before bias and residual). */
extern void dsv3_mla(Dsv3Model *model, Dsv3Kv *kv, int layer, int n_rows, int n_segments);

/* mla.c: only the cache rows of scratch.h. */
extern void dsv3_mla_fill(Dsv3Model *model, Dsv3Kv *kv, int layer, int n_rows);

/* moe.c: scratch.h to scratch.x += MLP(h). */
extern void dsv3_mlp(Dsv3Model *model, int layer, int n_rows);

#endif /* DSV3_MODEL_IMPL_H */
