/*
 * simd.h
 *	  The vector sets' code, written once over a vector of DSV3_LANES floats and compiled by each set's file.
 *
 * Before including this a file defines the type V (16 F32 lanes) and I (16 32-bit integer lanes) with the v_ and i_
 * functions over them, the tile shapes, and SET, the table's name. One V is the 16 partial sums of the dot product contract,
 * so lane order is the contract by construction; the tile shapes change only how many dots run side by side.
 *
 * Three kinds of product:
 *	- few rows (up to DIRECT_M at a time): weights are decoded in registers and used at once; every byte of the matrix is
 *	  read once per DIRECT_M rows. This is the decode path, bound by memory, hence the prefetches.
 *	- many rows: a few matrix rows are decoded into a buffer in the first-level cache and used for many input rows
 *	  (simd_block.h).
 *	- transposed (matmul_t and attention's P V): lanes are columns, rows are accumulated one after another.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/exp.h"
#include "kernels/int8.h"
#include "kernels/ops.h"
#include "kernels/quant_avx2.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#define PASS_N 48 /* whole panels, whole tiles */

#define STREAMS      4
#define STREAM_BYTES ((size_t) 160 << 10)
#define STREAM_AHEAD 1024

INLINE size_t
element_size(Dsv3Type type)
{
	return type == DSV3_TYPE_F32 ? 4 : type == DSV3_TYPE_FP8 ? 1 : 2;
}

/* 16 weights at p. FP8: times scale, which holds 2^8 * block scale (v_load_fp8 gives 2^-8 times the value). */
INLINE V
v_decode(Dsv3Type type, const uint8_t *p, V scale)
{
	switch (type)
	{
		case DSV3_TYPE_F32:
			return v_load((const float *) p);
		case DSV3_TYPE_BF16:
			return v_load_bf16(p);
		case DSV3_TYPE_F16:
			return v_load_f16(p);
		default:
			return v_mul(v_load_fp8(p), scale);
	}
}

/* The first n < 16 weights at p, then +0. Reads no byte past them. */
INLINE V
v_decode_n(Dsv3Type type, const uint8_t *p, V scale, int n)
{
	uint8_t copy[64] __attribute__((aligned(64))) = {0};

	memcpy(copy, p, (size_t) n * element_size(type));
	return v_decode(type, copy, scale);
}

/* FP8: the vector v_decode multiplies by, for a block scale that fp8_scales_fold allows. */
INLINE V
v_fp8_scale(float scale)
{
	return v_set1(scale * 0x1p8f);
}

/* Whether every scale of rows n0..n1-1 may be folded into the decoding factor without overflow. */
static bool
fp8_scales_fold(const Dsv3Weight *w, int n0, int n1)
{
	size_t per_row = (size_t) ((w->in + 127) / 128);

	for (size_t i = (size_t) (n0 / 128) * per_row; i < (size_t) ((n1 + 127) / 128) * per_row; i++)
		if (!(fabsf(w->scales[i]) < 0x1p100f))
			return false;
	return true;
}

/* Columns k0..k0+count-1 of a row to floats, padded with +0 to a multiple of 16. */
static void
decode_span(const Dsv3Weight *w, int row, int k0, int count, float *y)
{
	const uint8_t *p = (const uint8_t *) w->data + (size_t) row * (size_t) w->in * element_size(w->type);
	size_t size = element_size(w->type);
	V one = v_set1(1.0f);

	if (w->type != DSV3_TYPE_FP8)
	{
		int k = 0;

		p += (size_t) k0 * size;
#define DECODE_ALL(type)                                                                                     \
	for (; k + 16 <= count; k += 16)                                                                         \
		v_store(y + k, v_decode(type, p + (size_t) k * size, one));                                          \
	if (k < count)                                                                                           \
		v_store(y + k, v_decode_n(type, p + (size_t) k * size, one, count - k));
		if (w->type == DSV3_TYPE_F32)
		{
			DECODE_ALL(DSV3_TYPE_F32)
		}
		else if (w->type == DSV3_TYPE_BF16)
		{
			DECODE_ALL(DSV3_TYPE_BF16)
		}
		else
		{
			DECODE_ALL(DSV3_TYPE_F16)
		}
#undef DECODE_ALL
		return;
	}

	const float *scales = w->scales + (size_t) (row / 128) * (size_t) ((w->in + 127) / 128);
	V unit = v_set1(0x1p8f);

	for (int k = 0; k < count; k += 16)
	{
		int left = count - k;
		V code;

		/* k0 is a multiple of 128, so 16 columns share a block */
		if (left >= 16)
			code = v_decode(DSV3_TYPE_FP8, p + k0 + k, unit);
		else
			code = v_decode_n(DSV3_TYPE_FP8, p + k0 + k, unit, left);
		code = v_mul(code, v_set1(scales[(k0 + k) / 128]));
		if (left < 16)
			code = v_keep(code, left); /* 0 times an infinite scale */
		v_store(y + k, code);
	}
}

/* One step of 16 columns; w points at the columns, x at the rows' beginnings. */
INLINE void
dot_step(Dsv3Type type, int MR, int NR, const uint8_t *w, size_t row_bytes, const float *const *x, int k,
		 const V *scale, V *acc)
{
	V xv[MR_MAX];

	UNROLL
	for (int i = 0; i < MR; i++)
		xv[i] = v_load(x[i] + k);
	UNROLL
	for (int r = 0; r < NR; r++)
	{
		V wv = v_decode(type, w + (size_t) r * row_bytes, scale[r]);

		UNROLL
		for (int i = 0; i < MR; i++)
			acc[i * NR + r] = v_fma(xv[i], wv, acc[i * NR + r]);
	}
}

/*
 * Dots of MR input rows with NR rows of a matrix at w (row_bytes apart), columns 0..n-1, onto acc. fp8_scale[r] points
 * to the row's folded scales, one per 128 columns.
 */
INLINE void
dot_tile(Dsv3Type type, int MR, int NR, const uint8_t *w, size_t row_bytes, const float *const *x, int n,
		 const float *const *fp8_scale, size_t ahead, V *acc)
{
	size_t size = element_size(type);
	int line = (int) (64 / size);
	int segment = type == DSV3_TYPE_FP8 ? 128 : n;
	V scale[NR_MAX];

	for (int k0 = 0; k0 < n; k0 += segment)
	{
		int end = n - k0 < segment ? n : k0 + segment;
		int k = k0;

		UNROLL
		for (int r = 0; r < NR; r++)
			scale[r] = type == DSV3_TYPE_FP8 ? v_fp8_scale(fp8_scale[r][k0 / 128]) : v_set1(1.0f);
		/* a cache line of each row at a time, so that it is asked for once */
		for (; ahead > 0 && k + line <= end; k += line)
		{
			UNROLL
			for (int r = 0; r < NR; r++)
				__builtin_prefetch(w + (size_t) r * row_bytes + (size_t) k * size + ahead, 0, 3);
			UNROLL
			for (int j = 0; j < line; j += 16)
				dot_step(type, MR, NR, w + (size_t) (k + j) * size, row_bytes, x, k + j, scale, acc);
		}
		for (; k + 16 <= end; k += 16)
			dot_step(type, MR, NR, w + (size_t) k * size, row_bytes, x, k, scale, acc);
		if (k < end)
		{
			V xv[MR_MAX];

			UNROLL
			for (int i = 0; i < MR; i++)
				xv[i] = v_load_n(x[i] + k, end - k);
			UNROLL
			for (int r = 0; r < NR; r++)
			{
				V wv = v_decode_n(type, w + (size_t) r * row_bytes + (size_t) k * size, scale[r], end - k);

				UNROLL
				for (int i = 0; i < MR; i++)
					acc[i * NR + r] = v_fma(xv[i], wv, acc[i * NR + r]);
			}
		}
	}
}

/* Sum the lanes of n accumulators into y. */
INLINE void
reduce_row(int n, const V *acc, float *y)
{
	int r = 0;

	UNROLL
	for (; r + 4 <= n; r += 4)
		v_reduce4(acc[r], acc[r + 1], acc[r + 2], acc[r + 3], y + r);
	UNROLL
	for (; r < n; r++)
		y[r] = v_reduce(acc[r]);
}

/* One finished tile: y[i * ldy + r]. */
INLINE void
direct_tile(Dsv3Type type, int MR, int NR, const uint8_t *w, size_t row_bytes, const float *const *x, int n,
			const float *const *fp8_scale, size_t ahead, float *y, int64_t ldy)
{
	V acc[MR_MAX * NR_MAX];

	UNROLL
	for (int i = 0; i < MR * NR; i++)
		acc[i] = v_zero();
	dot_tile(type, MR, NR, w, row_bytes, x, n, fp8_scale, ahead, acc);
	UNROLL
	for (int i = 0; i < MR; i++)
		reduce_row(NR, acc + i * NR, y + i * ldy);
}

INLINE const float *
input_row(const Dsv3Rows *x, int i)
{
	return x->data + (x->index ? x->index[i] : i) * x->stride;
}

/* The direct product for one type: NR rows of the matrix against all m input rows, DIRECT_M at a time. */
INLINE void
matmul_direct(Dsv3Type type, const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y,
			  int64_t ldy)
{
	size_t row_bytes = (size_t) w->in * element_size(type);
	size_t per_row = (size_t) ((w->in + 127) / 128);
	/* A large slice is read in four streams far apart, which memory serves faster than one; in a small one streams end as
	 * soon as they have begun. */
	bool streams = (size_t) (n1 - n0) * row_bytes >= (row_bytes <= 512 ? STREAM_BYTES / 4 : STREAM_BYTES);

	for (int i0 = 0; i0 < m; i0 += DIRECT_M)
	{
		int rows = m - i0 < DIRECT_M ? m - i0 : DIRECT_M;
		const float *xr[MR_MAX];
		int n = n0;

		for (int i = 0; i < rows; i++)
			xr[i] = input_row(x, i0 + i);
#define DIRECT_TILE(MR, NR, apart, ahead, out, ldo)                                                          \
	{                                                                                                        \
		const uint8_t *p = (const uint8_t *) w->data + (size_t) n * row_bytes;                               \
		const float *scale[NR_MAX];                                                                          \
                                                                                                             \
		if (type == DSV3_TYPE_FP8)                                                                           \
			UNROLL for (int r = 0; r < (NR); r++) scale[r] =                                                 \
				w->scales + (size_t) ((n + r * (apart)) / 128) * per_row;                                    \
		direct_tile(type, MR, NR, p, row_bytes *(size_t) (apart), xr, w->in, scale, ahead, out, ldo);        \
	}
#define DIRECT_LOOP(MR, NR)                                                                                  \
	for (; n + (NR) <= n1; n += (NR))                                                                        \
	DIRECT_TILE(MR, NR, 1, row_bytes > 4096 ? 1024 : row_bytes * (NR), y + i0 * ldy + (n - n0), ldy)
#define STREAM_LOOP(MR)                                                                                      \
	for (int apart = (n1 - n) / STREAMS, end = n + apart; n < end;)                                          \
	{                                                                                                        \
		float tile[(MR) *STREAMS];                                                                           \
                                                                                                             \
		DIRECT_TILE(MR, STREAMS, apart, STREAM_AHEAD, tile, STREAMS)                                         \
		for (int i = 0; i < (MR) *STREAMS; i++)                                                              \
			y[(i0 + i / STREAMS) * ldy + (n - n0) + i % STREAMS * apart] = tile[i];                          \
		if (++n == end)                                                                                      \
		{                                                                                                    \
			n += apart * (STREAMS - 1);                                                                      \
			break;                                                                                           \
		}                                                                                                    \
	}
#define DIRECT_ROWS(MR, NR)                                                                                  \
	{                                                                                                        \
		DIRECT_LOOP(MR, NR)                                                                                  \
		DIRECT_LOOP(MR, 1)                                                                                   \
	}
		switch (rows)
		{
			case 1:
				if (streams)
					STREAM_LOOP(1)
				DIRECT_ROWS(1, DIRECT_N1)
				break;
			case 2:
				if (streams)
					STREAM_LOOP(2)
				DIRECT_ROWS(2, DIRECT_N2)
				break;
#if DIRECT_M > 2
			case 3:
				DIRECT_ROWS(3, DIRECT_N3)
				break;
			default:
				DIRECT_ROWS(4, DIRECT_N4)
				break;
#endif
		}
#undef DIRECT_ROWS
#undef DIRECT_LOOP
#undef STREAM_LOOP
#undef DIRECT_TILE
	}
}

static void
matmul_direct_f32(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy)
{
	matmul_direct(DSV3_TYPE_F32, w, x, m, n0, n1, y, ldy);
}

static void
matmul_direct_bf16(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy)
{
	matmul_direct(DSV3_TYPE_BF16, w, x, m, n0, n1, y, ldy);
}

static void
matmul_direct_f16(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy)
{
	matmul_direct(DSV3_TYPE_F16, w, x, m, n0, n1, y, ldy);
}

static void
matmul_direct_fp8(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy)
{
	matmul_direct(DSV3_TYPE_FP8, w, x, m, n0, n1, y, ldy);
}

#include "kernels/simd_block.h"

/*
 * 8-bit groups: MR input rows, NP panels side by side (each its own memory stream). The int32 sums of a group are exact, so
 * their order is free; the float chain is one fma per group.
 */
INLINE void
int8_tile(int MR, int NP, const uint8_t *panel, size_t panel_bytes, const int16_t *const *codes,
		  const float *const *scales, int in, V *acc)
{
	int groups = dsv3_int8_groups(in);

	UNROLL
	for (int i = 0; i < MR * NP; i++)
		acc[i] = v_zero();
	for (int g = 0; g < groups; g++)
	{
		int columns = in - g * DSV3_INT8_GROUP < DSV3_INT8_GROUP ? in - g * DSV3_INT8_GROUP : DSV3_INT8_GROUP;
		int steps = (columns + 3) / 4;
		I sum[MR_MAX * NP_MAX];

		UNROLL
		for (int i = 0; i < MR * NP; i++)
			sum[i] = i_zero();
		for (int s = 0; s < steps; s++)
		{
			I even[NP_MAX], odd[NP_MAX];

			UNROLL
			for (int p = 0; p < NP; p++)
			{
				const uint8_t *at = panel + (size_t) p * panel_bytes + (size_t) s * 64;
				I w = i_load(at);

				__builtin_prefetch(at + INT8_AHEAD, 0, 3);
				even[p] = i_even_bytes(w);
				odd[p] = i_odd_bytes(w);
			}
			UNROLL
			for (int i = 0; i < MR; i++)
			{
				const int16_t *c = codes[i] + g * DSV3_INT8_GROUP + s * 4;
				I lo = i_broadcast_pair(c);
				I hi = i_broadcast_pair(c + 2);

				UNROLL
				for (int p = 0; p < NP; p++)
				{
					sum[i * NP + p] = i_dot_pairs(sum[i * NP + p], even[p], lo);
					sum[i * NP + p] = i_dot_pairs(sum[i * NP + p], odd[p], hi);
				}
			}
		}
		panel += (size_t) steps * 64;
		UNROLL
		for (int p = 0; p < NP; p++)
		{
			V ws = v_load((const float *) (panel + (size_t) p * panel_bytes));

			UNROLL
			for (int i = 0; i < MR; i++)
				acc[i * NP + p] =
					v_fma(i_to_float(sum[i * NP + p]), v_mul(ws, v_set1(scales[i][g])), acc[i * NP + p]);
		}
		panel += 64;
	}
}

INLINE void
int8_tile_store(int MR, int NP, const uint8_t *panel, size_t panel_bytes, const int16_t *const *codes,
				const float *const *scales, int in, int count, float *y, int64_t ldy, int apart)
{
	V acc[MR_MAX * NP_MAX];

	int8_tile(MR, NP, panel, panel_bytes, codes, scales, in, acc);
	UNROLL
	for (int i = 0; i < MR; i++)
		UNROLL
	for (int p = 0; p < NP; p++)
	{
		int left = count - p * apart;

		if (left >= 16)
			v_store(y + i * ldy + p * apart, acc[i * NP + p]);
		else if (left > 0)
			v_store_n(y + i * ldy + p * apart, acc[i * NP + p], left);
	}
}

static void
matmul_int8(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy)
{
	size_t panel_bytes = dsv3_int8_panel_bytes(w->in);

	for (int i0 = 0; i0 < m; i0 += INT8_M)
	{
		int rows = m - i0 < INT8_M ? m - i0 : INT8_M;
		const int16_t *codes[MR_MAX];
		const float *scales[MR_MAX];
		int n = n0;

		for (int i = 0; i < rows; i++)
		{
			int64_t row = x->index ? x->index[i0 + i] : i0 + i;

			codes[i] = x->codes + row * x->code_stride;
			scales[i] = x->code_scales + row * x->scale_stride;
		}
/* NP panels far apart, each one of as many memory streams; what is left over panel by panel. */
#define INT8_LOOP(MR, NP)                                                                                    \
	for (int apart = (n1 - n) / (16 * (NP)) * 16, end = n + apart; n < end;)                                 \
	{                                                                                                        \
		int8_tile_store(MR, NP, (const uint8_t *) w->data + (size_t) (n / 16) * panel_bytes,                 \
						(size_t) (apart / 16) * panel_bytes, codes, scales, w->in, n1 - n,                   \
						y + i0 * ldy + (n - n0), ldy, apart);                                                \
		if ((n += 16) == end)                                                                                \
		{                                                                                                    \
			n += apart * ((NP) -1);                                                                          \
			break;                                                                                           \
		}                                                                                                    \
	}                                                                                                        \
	for (; n < n1; n += 16)                                                                                  \
		int8_tile_store(MR, 1, (const uint8_t *) w->data + (size_t) (n / 16) * panel_bytes, panel_bytes,     \
						codes, scales, w->in, n1 - n, y + i0 * ldy + (n - n0), ldy, 16);
		switch (rows)
		{
			case 1:
				INT8_LOOP(1, INT8_P1)
				break;
			case 2:
				INT8_LOOP(2, INT8_P2)
				break;
			case 3:
				INT8_LOOP(3, INT8_P4)
				break;
			default:
				INT8_LOOP(4, INT8_P4)
				break;
		}
#undef INT8_LOOP
	}
}

static void
matmul_few(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy)
{
	if (w->type == DSV3_TYPE_INT8)
		matmul_int8(w, x, m, n0, n1, y, ldy);
	else if (w->type == DSV3_TYPE_F32)
		matmul_direct_f32(w, x, m, n0, n1, y, ldy);
	else if (w->type == DSV3_TYPE_BF16)
		matmul_direct_bf16(w, x, m, n0, n1, y, ldy);
	else if (w->type == DSV3_TYPE_F16)
		matmul_direct_f16(w, x, m, n0, n1, y, ldy);
	else
		matmul_direct_fp8(w, x, m, n0, n1, y, ldy);
}

static void
set_matmul(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy)
{
	if (w->type == DSV3_TYPE_A4 || w->type == DSV3_TYPE_S6)
	{
		dsv3_quant_matmul_avx2(w, x, m, n0, n1, y, ldy);
		return;
	}

	bool direct = w->type == DSV3_TYPE_INT8 ||
				  (m <= DIRECT_M * 2 && (w->type != DSV3_TYPE_FP8 || fp8_scales_fold(w, n0, n1)));

	if (!direct)
		matmul_blocks(w, x, m, n0, n1, y, ldy);
	else if (m <= DIRECT_M)
		matmul_few(w, x, m, n0, n1, y, ldy);
	else
		/* several passes over the input rows: over pieces of the matrix that stay in the second-level cache */
		for (int n = n0; n < n1; n += PASS_N)
			matmul_few(w, x, m, n, n1 - n < PASS_N ? n1 : n + PASS_N, y + (n - n0), ldy);
}

/*
 * acc[i][v] += x[i][r] * W[r][16 v ..] for r rising. w points at the tile's first column; the tile has NV vectors, the last one
 * `tail` columns wide (16: full).
 */
INLINE void
column_tile(Dsv3Type type, int MR, int NV, const uint8_t *w, size_t row_bytes, int n_rows, V scale,
			const float *x, int64_t ldx, int tail, V *acc)
{
	size_t size = element_size(type);

	for (int r = 0; r < n_rows; r++)
	{
		V wv[2 * NV_MAX];

		UNROLL
		for (int v = 0; v < NV; v++)
		{
			const uint8_t *p = w + (size_t) r * row_bytes + (size_t) v * 16 * size;

			wv[v] = v == NV - 1 && tail < 16 ? v_decode_n(type, p, scale, tail) : v_decode(type, p, scale);
		}
		UNROLL
		for (int i = 0; i < MR; i++)
		{
			V xv = v_set1(x[i * ldx + r]);

			UNROLL
			for (int v = 0; v < NV; v++)
				acc[i * NV + v] = v_fma(xv, wv[v], acc[i * NV + v]);
		}
	}
}

/* y[i][0 .. 16 (NV-1) + tail) = y * by + the sum above; by NULL: start from +0. */
INLINE void
column_tile_update(Dsv3Type type, int MR, int NV, const uint8_t *w, size_t row_bytes, int n_rows, V scale,
				   const float *x, int64_t ldx, int tail, const float *by, float *y, int64_t ldy)
{
	V acc[COLUMN_M * NV_MAX];

	UNROLL
	for (int i = 0; i < MR; i++)
		UNROLL
	for (int v = 0; v < NV; v++)
	{
		const float *p = y + i * ldy + v * 16;

		if (!by)
			acc[i * NV + v] = v_zero();
		else
		{
			V old = v == NV - 1 && tail < 16 ? v_load_n(p, tail) : v_load(p);

			acc[i * NV + v] = v_mul(old, v_set1(by[i]));
		}
	}
	column_tile(type, MR, NV, w, row_bytes, n_rows, scale, x, ldx, tail, acc);
	UNROLL
	for (int i = 0; i < MR; i++)
		UNROLL
	for (int v = 0; v < NV; v++)
	{
		float *p = y + i * ldy + v * 16;

		if (v == NV - 1 && tail < 16)
			v_store_n(p, acc[i * NV + v], tail);
		else
			v_store(p, acc[i * NV + v]);
	}
}

/* All columns 0..n-1 of m rows, a strip of columns for all rows at a time. */
INLINE void
columns(Dsv3Type type, const uint8_t *w, size_t row_bytes, int n_rows, V scale, const float *x, int64_t ldx,
		int m, int n, const float *by, float *y, int64_t ldy)
{
	size_t size = element_size(type);
	int c = 0;

#define COLUMN_TILE(MR, NV, tail)                                                                            \
	column_tile_update(type, MR, NV, w + (size_t) c * size, row_bytes, n_rows, scale, x + i * ldx, ldx,      \
					   tail, by ? by + i : NULL, y + i * ldy + c, ldy)
#define COLUMN_STRIP(NV, tail)                                                                               \
	{                                                                                                        \
		int i = 0;                                                                                           \
                                                                                                             \
		for (; i + COLUMN_M <= m; i += COLUMN_M)                                                             \
			COLUMN_TILE(COLUMN_M, NV, tail);                                                                 \
		for (; i < m; i++)                                                                                   \
			COLUMN_TILE(1, NV, tail);                                                                        \
	}
	/* few rows: wider, so that enough sums are under way at once */
	if (m < COLUMN_M)
		for (; c + 32 * NV_MAX <= n; c += 32 * NV_MAX)
			for (int i = 0; i < m; i++)
				COLUMN_TILE(1, 2 * NV_MAX, 16);
	for (; c + 16 * NV_MAX <= n; c += 16 * NV_MAX)
		COLUMN_STRIP(NV_MAX, 16)
	for (; c < n; c += 16)
		COLUMN_STRIP(1, n - c < 16 ? n - c : 16)
#undef COLUMN_STRIP
#undef COLUMN_TILE
}

static void
columns_f32(const uint8_t *w, size_t row_bytes, int n_rows, const float *x, int64_t ldx, int m, int n,
			const float *by, float *y, int64_t ldy)
{
	columns(DSV3_TYPE_F32, w, row_bytes, n_rows, v_set1(1.0f), x, ldx, m, n, by, y, ldy);
}

/* With many input rows, and of FP8 always, a piece of the matrix is decoded first and then treated as F32: decoding is shared
 * by all input rows. */
static void
set_matmul_t(const Dsv3Weight *w, int row0, int n_rows, const float *x, int64_t ldx, int m, float *y,
			 int64_t ldy)
{
	size_t row_bytes = (size_t) w->in * element_size(w->type);
	const uint8_t *p = (const uint8_t *) w->data + (size_t) row0 * row_bytes;

	if (w->type == DSV3_TYPE_F32)
		columns(DSV3_TYPE_F32, p, row_bytes, n_rows, v_set1(1.0f), x, ldx, m, w->in, NULL, y, ldy);
	else if (w->type == DSV3_TYPE_BF16 && m < COLUMN_M * 3)
		columns(DSV3_TYPE_BF16, p, row_bytes, n_rows, v_set1(1.0f), x, ldx, m, w->in, NULL, y, ldy);
	else if (w->type == DSV3_TYPE_F16 && m < COLUMN_M * 3)
		columns(DSV3_TYPE_F16, p, row_bytes, n_rows, v_set1(1.0f), x, ldx, m, w->in, NULL, y, ldy);
	else
	{
		float buffer[64 * 128] __attribute__((aligned(64)));
		float one[64];

		for (int i = 0; i < 64; i++)
			one[i] = 1.0f;
		for (int c = 0; c < w->in; c += 128)
		{
			int n = w->in - c < 128 ? w->in - c : 128;

			for (int r = 0; r < n_rows; r += 64)
			{
				int count = n_rows - r < 64 ? n_rows - r : 64;

				for (int j = 0; j < count; j++)
					decode_span(w, row0 + r + j, c, n, buffer + j * 128);
				for (int i = 0; i < m; i += 64)
					columns_f32((const uint8_t *) buffer, 128 * sizeof(float), count, x + i * ldx + r, ldx,
								m - i < 64 ? m - i : 64, n, r ? one : NULL, y + i * ldy + c, ldy);
			}
		}
	}
}

static void
set_decode8(const int8_t *codes, const float *scales, int n, float *y)
{
	int k = 0;

	for (; k + DSV3_LANES <= n; k += DSV3_LANES)
		v_store(y + k, v_mul(v_load_i8(codes + k), v_set1(scales[k / DSV3_DECODE8_GROUP])));
	for (; k < n; k++)
		y[k] = (float) codes[k] * scales[k / DSV3_DECODE8_GROUP];
}

static void
set_decode(const Dsv3Weight *w, int row, float *y)
{
	int whole = w->in / 128 * 128;
	float tail[128] __attribute__((aligned(64)));

	/* decode_span pads, so the last columns go through a buffer */
	if (whole)
		decode_span(w, row, 0, whole, y);
	if (whole < w->in)
	{
		decode_span(w, row, whole, w->in - whole, tail);
		memcpy(y + whole, tail, (size_t) (w->in - whole) * sizeof(float));
	}
}

static void
set_quantise(const float *x, int n, int16_t *codes, float *scales)
{
	for (int g = 0; g < dsv3_int8_groups(n); g++)
	{
		int k0 = g * DSV3_INT8_GROUP;
		int count = n - k0 < DSV3_INT8_GROUP ? n - k0 : DSV3_INT8_GROUP;
		I top = i_zero();
		float largest;
		V inverse;

		/* as integers: magnitudes order like their bits, and a NaN is larger than everything */
		for (int k = 0; k < count; k += 16)
			top = i_max(top,
						i_magnitude(count - k >= 16 ? v_load(x + k0 + k) : v_load_n(x + k0 + k, count - k)));
		largest = i_largest_as_float(top);
		if (!(largest < INFINITY))
		{
			scales[g] = NAN;
			memset(codes + k0, 0, DSV3_INT8_GROUP * sizeof(*codes));
			continue;
		}
		if (largest < 0x1p-100f)
		{
			scales[g] = 0.0f;
			memset(codes + k0, 0, DSV3_INT8_GROUP * sizeof(*codes));
			continue;
		}
		scales[g] = largest / 32767.0f;
		inverse = v_set1(32767.0f / largest);
		for (int k = 0; k < DSV3_INT8_GROUP; k += 16)
		{
			V v = v_zero();

			if (count - k >= 16)
				v = v_load(x + k0 + k);
			else if (count > k)
				v = v_load_n(x + k0 + k, count - k);
			v_store_codes(codes + k0 + k, v_mul(v, inverse));
		}
	}
}

INLINE V
v_exp(V x)
{
	V round = v_set1(DSV3_EXP_ROUND);
	V t, n, r, p;
	I e, half;

	x = v_min(v_set1(DSV3_EXP_MAX), x);
	x = v_max(v_set1(DSV3_EXP_MIN), x);
	t = v_fma(x, v_set1(DSV3_EXP_LOG2E), round);
	n = v_sub(t, round);
	r = v_fma(n, v_set1(-DSV3_EXP_LN2_HI), x);
	r = v_fma(n, v_set1(-DSV3_EXP_LN2_LO), r);
	p = v_fma(v_set1(DSV3_EXP_P5), r, v_set1(DSV3_EXP_P4));
	p = v_fma(p, r, v_set1(DSV3_EXP_P3));
	p = v_fma(p, r, v_set1(DSV3_EXP_P2));
	p = v_fma(p, r, v_set1(DSV3_EXP_P1));
	p = v_fma(p, r, v_set1(DSV3_EXP_P0));
	p = v_add(v_fma(p, v_mul(r, r), r), v_set1(1.0f));
	e = i_sub(i_bits(t), i_bits(round));
	half = i_half(e);
	return v_mul(v_mul(p, i_exp2(half)), i_exp2(i_sub(e, half)));
}

/* 1 + exp(-x), what sigmoid and silu divide by. */
INLINE V
v_sigmoid_divisor(V x)
{
	return v_add(v_set1(1.0f), v_exp(v_neg(x)));
}

static void
set_rmsnorm(const float *x, const float *w, float eps, int n, float *y)
{
	V acc = v_zero();
	V scale;
	int k = 0;

	for (; k + 16 <= n; k += 16)
		acc = v_fma(v_load(x + k), v_load(x + k), acc);
	if (k < n)
		acc = v_fma(v_load_n(x + k, n - k), v_load_n(x + k, n - k), acc);
	scale = v_set1(1.0f / sqrtf(v_reduce(acc) / (float) n + eps));
	for (k = 0; k + 16 <= n; k += 16)
		v_store(y + k, v_mul(v_load(w + k), v_mul(v_load(x + k), scale)));
	if (k < n)
		v_store_n(y + k, v_mul(v_load_n(w + k, n - k), v_mul(v_load_n(x + k, n - k), scale)), n - k);
}

static void
set_silu_mul(const float *gate, const float *up, int n, float *y)
{
	int k = 0;

	for (; k + 16 <= n; k += 16)
	{
		V g = v_load(gate + k);

		v_store(y + k, v_mul(v_div(g, v_sigmoid_divisor(g)), v_load(up + k)));
	}
	if (k < n)
	{
		V g = v_load_n(gate + k, n - k);

		v_store_n(y + k, v_mul(v_div(g, v_sigmoid_divisor(g)), v_load_n(up + k, n - k)), n - k);
	}
}

static void
set_axpy(float a, const float *x, int n, float *y)
{
	V av = v_set1(a);
	int k = 0;

	for (; k + 16 <= n; k += 16)
		v_store(y + k, v_fma(av, v_load(x + k), v_load(y + k)));
	if (k < n)
		v_store_n(y + k, v_fma(av, v_load_n(x + k, n - k), v_load_n(y + k, n - k)), n - k);
}

static void
set_sigmoid(const float *x, int n, float *y)
{
	V one = v_set1(1.0f);
	int k = 0;

	for (; k + 16 <= n; k += 16)
		v_store(y + k, v_div(one, v_sigmoid_divisor(v_load(x + k))));
	if (k < n)
		v_store_n(y + k, v_div(one, v_sigmoid_divisor(v_load_n(x + k, n - k))), n - k);
}

static void
set_softmax(const float *x, int n, float *y)
{
	V sum = v_zero();
	float largest = -INFINITY;
	V shift, divisor;
	int k = 0;

	for (int i = 0; i < n; i++)
		largest = x[i] > largest ? x[i] : largest;
	shift = v_set1(largest);
	for (; k + 16 <= n; k += 16)
	{
		V e = v_exp(v_sub(v_load(x + k), shift));

		v_store(y + k, e);
		sum = v_add(sum, e);
	}
	if (k < n)
	{
		V e = v_keep(v_exp(v_sub(v_load_n(x + k, n - k), shift)), n - k);

		v_store_n(y + k, e, n - k);
		sum = v_add(sum, e);
	}
	divisor = v_set1(v_reduce(sum));
	for (k = 0; k + 16 <= n; k += 16)
		v_store(y + k, v_div(v_load(y + k), divisor));
	if (k < n)
		v_store_n(y + k, v_div(v_load_n(y + k, n - k), divisor), n - k);
}

/* Attention over one block, at most ATTEND_Q queries at a time so that scores stay on the stack. */
#define ATTEND_Q 48

static void
attend_part(const Dsv3Attend *a, int i0, int n_queries)
{
	float p[ATTEND_Q * DSV3_ATTEND_MAX] __attribute__((aligned(64)));
	float correction[ATTEND_Q];
	const int32_t *visible = a->visible + i0;
	const Dsv3Rows q = {.data = a->q + i0 * a->q_stride, .stride = a->q_stride};
	int longest = 0;

	for (int i = 0; i < n_queries; i++)
		longest = visible[i] > longest ? visible[i] : longest;
	if (longest == 0)
		return;

	/* scores of all queries against the longest visible part, some keys at a time; what a query may not see is computed and
	 * not used */
	for (int t = 0; t < longest; t += BLOCK_N)
		dots_all(&q, n_queries, 0, a->width, a->keys + t * a->key_stride, a->key_stride,
				 longest - t < BLOCK_N ? longest - t : BLOCK_N, (Piece){.first = true, .last = true}, p + t,
				 DSV3_ATTEND_MAX);

	for (int i = 0; i < n_queries; i++)
	{
		float *s = p + i * DSV3_ATTEND_MAX;
		float largest = a->max[i0 + i];
		V shift, lo, hi, total;

		if (visible[i] == 0)
			continue;
		if (visible[i] == DSV3_ATTEND_MAX)
		{
			v_store(s, v_mul(v_load(s), v_set1(a->scale)));
			v_store(s + 16, v_mul(v_load(s + 16), v_set1(a->scale)));
			largest = v_largest(v_max(v_load(s), v_max(v_load(s + 16), v_set1(largest))));
		}
		else
		{
			for (int t = 0; t < visible[i]; t++)
			{
				s[t] *= a->scale;
				largest = s[t] > largest ? s[t] : largest;
			}
			for (int t = visible[i]; t < DSV3_ATTEND_MAX; t++)
				s[t] = 0.0f;
		}
		shift = v_set1(largest);
		lo = v_exp(v_sub(v_load(s), shift));
		hi = v_exp(v_sub(v_load(s + 16), shift));
		if (visible[i] < 16)
			lo = v_keep(lo, visible[i]);
		if (visible[i] < 32)
			hi = v_keep(hi, visible[i] > 16 ? visible[i] - 16 : 0);
		v_store(s, lo);
		v_store(s + 16, hi);
		total = v_add(lo, hi);
		correction[i] = dsv3_expf(a->max[i0 + i] - largest);
		a->sum[i0 + i] = fmaf(a->sum[i0 + i], correction[i], v_reduce(total));
		a->max[i0 + i] = largest;
	}

	/* z: a run of queries that see the same positions goes together */
	for (int i = 0; i < n_queries;)
	{
		int run = 1;

		while (i + run < n_queries && visible[i + run] == visible[i])
			run++;
		if (visible[i] > 0)
			columns_f32((const uint8_t *) a->values, (size_t) a->value_stride * sizeof(float), visible[i],
						p + i * DSV3_ATTEND_MAX, DSV3_ATTEND_MAX, run, a->value_width, correction + i,
						a->z + (i0 + i) * a->z_stride, a->z_stride);
		i += run;
	}
}

static void
set_attend(const Dsv3Attend *a)
{
	for (int i = 0; i < a->n_queries; i += ATTEND_Q)
		attend_part(a, i, a->n_queries - i < ATTEND_Q ? a->n_queries - i : ATTEND_Q);
}

const Dsv3Ops SET = {
	.name = SET_NAME,
	.matmul = set_matmul,
	.matmul_t = set_matmul_t,
	.decode = set_decode,
	.decode8 = set_decode8,
	.quantise = set_quantise,
	.quantise8 = dsv3_quantise8_avx2,
	.rmsnorm = set_rmsnorm,
	.silu_mul = set_silu_mul,
	.axpy = set_axpy,
	.sigmoid = set_sigmoid,
	.softmax = set_softmax,
	.attend = set_attend,
};
