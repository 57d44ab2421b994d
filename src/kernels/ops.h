/*
 * ops.h
 *	  The table of operations a backend offers; `ref` is the oracle for all others.
 *
 * Every function works on a slice so that a thread pool can split it; a result never depends on the split, on how many
 * rows are computed together, or on which set computes it. Matrices are [out, in], row-major, y = x W^T. The order of every
 * floating-point operation is part of the contract (docs/kernels.md), so that the sets are bit-identical to each other:
 *
 *	- A weight decodes to one F32: F32, BF16 and F16 exactly; FP8 as RN(code value * block scale). What is computed from a
 *	  stored matrix and from the same matrix widened to F32 beforehand is therefore the same bits.
 *	- Dot product over n floats: DSV3_LANES partial sums start at +0; lane l takes k = l, l + DSV3_LANES, ... in rising
 *	  order by fused multiply-add; both operands are padded with +0 to a multiple of DSV3_LANES. Then lanes are
 *	  added pairwise: l + 8, l + 4, l + 2, l + 1 (tree16 in ref).
 *	- INT8: exact int32 dot inside a group of 128, then acc = fma(float(dot), RN(weight scale * activation scale), acc)
 *	  from +0 in rising group order.
 *	- A4 and S6: for a block of 128 columns the exact int32 sum over its columns of (scale * code + offset) * activation
 *	  code (quant.h; it stays below 2^27); then acc = fma(float(sum), activation scale, acc) from +0 in rising block order;
 *	  at last RN(acc * row scale).
 *	- exp() is one polynomial (exp.h); sigmoid(x) = 1 / (1 + exp(-x)), silu(x) = x / (1 + exp(-x)).
 *
 * Pointers need no alignment beyond their type's, and FP8, BF16 and F16 matrices not even that. Outputs never
 * overlap inputs unless a function says so. A backend is a table plus memory calls; CUDA will be the same table.
 */
#ifndef DSV3_OPS_H
#define DSV3_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

#define DSV3_LANES 16

#define DSV3_DECODE8_GROUP 64 /* 8-bit codes that share a scale, see decode8 */

typedef enum Dsv3Type
{
	DSV3_TYPE_F32,
	DSV3_TYPE_BF16,
	DSV3_TYPE_F16,
	DSV3_TYPE_FP8, /* E4M3, one F32 multiplier per 128 x 128 block; the NaN codes count as 480 */
	/* Packed in panels of 16 rows; layouts in int8.h and quant.h. */
	DSV3_TYPE_INT8, /* 8-bit groups of 128 along the input */
	DSV3_TYPE_A4,   /* 4-bit groups of 32 with a minimum */
	DSV3_TYPE_S6,   /* 6-bit groups of 16 */
} Dsv3Type;

#define DSV3_N_TYPES (DSV3_TYPE_S6 + 1)

/* A matrix as the kernels see it. The memory belongs to whoever made it (the mapping or the weights arena). */
typedef struct Dsv3Weight
{
	Dsv3Type type;
	int32_t out; /* rows */
	int32_t in;  /* columns */
	const void *data;
	const float *scales; /* FP8: [ceil(out/128), ceil(in/128)] row-major; otherwise NULL */
} Dsv3Weight;

/* 128 8-bit activations, see quant.h. */
typedef struct Dsv3CodeBlock Dsv3CodeBlock;

/*
 * Input rows of a matrix product, each of the matrix's `in` floats. A packed matrix reads what quantisation made of each
 * row instead of data: INT8 codes and code_scales, from quantise(); A4 and S6 blocks, from quantise8(). With an index, row i of the product is input row index[i] (an expert's rows are
 * picked where they lie).
 */
typedef struct Dsv3Rows
{
	const float *data;
	int64_t stride;           /* floats from row to row */
	const int16_t *codes;     /* [rows][code_stride] */
	const float *code_scales; /* [rows][scale_stride], one per 128 columns */
	int64_t code_stride;
	int64_t scale_stride;
	const Dsv3CodeBlock *blocks; /* [rows][block_stride] */
	int64_t block_stride;
	const int32_t *index; /* NULL: rows in order */
} Dsv3Rows;

/* One step of attention over a block of at most DSV3_ATTEND_MAX positions; see attend below. */
#define DSV3_ATTEND_MAX 32

typedef struct Dsv3Attend
{
	int width;         /* floats of a query and of a key used in the score */
	int value_width;   /* floats of a value */
	float scale;       /* of the score, before the softmax */
	const float *keys; /* row t at keys + t * key_stride */
	int64_t key_stride;
	const float *values; /* row t at values + t * value_stride; may lie inside the key rows */
	int64_t value_stride;
	int n_queries;
	const float *q; /* [n_queries], row i at q + i * q_stride */
	int64_t q_stride;
	const int32_t
		*visible; /* [n_queries], positions 0 .. visible[i]-1 of the block count; 0 leaves the query alone */
	float *max;   /* [n_queries], largest score so far; -INFINITY before the first block */
	float *sum;   /* [n_queries], sum of exp(score - max); 0 before the first block */
	float
		*z; /* [n_queries], row i at z + i * z_stride: sum of exp(score - max) * value; 0 before the first */
	int64_t z_stride;
} Dsv3Attend;

typedef struct Dsv3Ops
{
	const char *name;

	/* Columns n0..n1-1 of y = x W^T for m rows: y[i * ldy + (n - n0)]. For a packed matrix n0 is a multiple of 16 and n1
	 * is one too, or w->out. */
	void (*matmul)(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy);

	/* y[i][c] = sum over r of x[i][r] * W[row0 + r][c] for m rows and all columns c of w: acc = fma(x, W, acc) from +0
	 * with r = 0 .. n_rows-1 rising. Not for packed types. */
	void (*matmul_t)(const Dsv3Weight *w, int row0, int n_rows, const float *x, int64_t ldx, int m, float *y,
					 int64_t ldy);

	/* Row `row` of w as w->in floats. Not for packed types (dsv3_unpack_row). */
	void (*decode)(const Dsv3Weight *w, int row, float *y);

	/* y[k] = RN(codes[k] * scales[k / DSV3_DECODE8_GROUP]) for n codes. */
	void (*decode8)(const int8_t *codes, const float *scales, int n, float *y);

	/* One row of n floats to 16-bit codes and one F32 scale per 128: codes has dsv3_int8_code_count(n) entries (the tail is
	 * set to 0), scales dsv3_int8_groups(n). See int8.h for the rule. */
	void (*quantise)(const float *x, int n, int16_t *codes, float *scales);

	/* One row of n floats to 8-bit codes: dsv3_code_blocks(n) blocks, all of them written. See quant.h. */
	void (*quantise8)(const float *x, int n, Dsv3CodeBlock *blocks);

	/* y = w * (x * (1 / sqrt(mean(x^2) + eps))); the sum is the dot product x x. y may be x. */
	void (*rmsnorm)(const float *x, const float *w, float eps, int n, float *y);

	/* y = silu(gate) * up; y may be gate or up. */
	void (*silu_mul)(const float *gate, const float *up, int n, float *y);

	/* y = fma(a, x, y). */
	void (*axpy)(float a, const float *x, int n, float *y);

	/* y = sigmoid(x); y may be x. */
	void (*sigmoid)(const float *x, int n, float *y);

	/* y = exp(x - max x) / sum, the sum in dot product order; y may be x. */
	void (*softmax)(const float *x, int n, float *y);

	/*
	 * Attention over one block with running softmax (FlashAttention's recurrence with the block as the unit):
	 *	s_t = RN(dot(q, k_t) * scale), t < visible; m' = max(m, max s_t); c = exp(m - m'); p_t = exp(s_t - m');
	 *	sum' = fma(sum, c, tree16(lane l = p_l + p_(l+16))), absent p being +0; z' = z * c, then z' = fma(p_t, v_t, z') with t
	 * rising. The caller goes through a sequence's blocks in rising order, so that a result depends on absolute positions
	 * only.
	 */
	void (*attend)(const Dsv3Attend *a);
} Dsv3Ops;

/* The set called name ("ref", "avx2", "avx512"), or with NULL the best this CPU has. NULL and *err (22023, 0A000) when
 * there is none of that name or the CPU lacks its instructions. The tables are constant and live for ever. */
extern const Dsv3Ops *dsv3_ops_find(const char *name, Dsv3Error *err);

/* The sets this CPU can run, "ref" first; ends with NULL. */
extern const Dsv3Ops *const *dsv3_ops_all(void);

extern const Dsv3Ops dsv3_ops_ref;
extern const Dsv3Ops dsv3_ops_avx2;
extern const Dsv3Ops dsv3_ops_avx512;

/*
 * What follows is scalar code shared by all sets: every operation in it is a single correctly rounded one, so there is
 * nothing to be different about.
 */

/* Rotate rows of n_pairs pairs by angles given as cos and sin [n_pairs]: (a cos - b sin, b cos + a sin), products rounded
 * before the sum. Pair j is lanes (2j, 2j + 1) of x when interleaved, else (j, j + n_pairs); in place. */
extern void dsv3_rope_rotate(float *x, const float *cosine, const float *sine, int n_pairs, bool interleaved);

typedef struct Dsv3RouteParams
{
	int n_experts;
	int n_chosen; /* at most n_experts */
	int n_group;  /* divides n_experts; 1: no group limit */
	int topk_group;
	bool group_top2;    /* group score is the sum of its two best (V3); otherwise its best (V2) */
	float masked_score; /* of experts outside the chosen groups: -INFINITY (V3), 0 (V2) */
	bool normalise;     /* divide the chosen scores by their sum + 1e-20 */
	float scaling;      /* routed_scaling_factor */
} Dsv3RouteParams;

/*
 * Choose experts for one token (DeepSeek-V3 report, equations 13-16, with node-limited routing; DeepSeek-V2, section 2.2.2).
 * scores [n_experts] are after sigmoid or softmax; bias [n_experts] or NULL is added for choosing only. Of equal
 * scores the lowest index goes first, for groups and experts. chosen and weights [n_chosen] come out in falling order of
 * biased score, the slot order of the later sum. scratch: [3 * n_experts] floats. A NaN score does no harm but to
 * its own row.
 */
extern void dsv3_route(const Dsv3RouteParams *params, const float *scores, const float *bias, int32_t *chosen,
					   float *weights, float *scratch);

#endif /* DSV3_OPS_H */
