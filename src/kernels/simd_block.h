/*
 * simd_block.h
 *	  Dot products of many rows with many rows, part of simd.h: the buffered product, and attention's scores.
 *
 * The contract keeps 16 sums for each output, which fills the registers of AVX2 after a few outputs. So a tile's lanes
 * go a part P at a time: all columns for the first part, then again, from the first-level cache, for the next. A
 * set says what a P is (ops_*.c) and how large a tile is (TILE_M input rows x TILE_N matrix rows).
 *
 * The buffered product decodes BLOCK_N matrix rows by up to BLOCK_K columns into the first-level cache, where they serve up to
 * BLOCK_M input rows; a tile's input rows stay there too until all tiles of the buffer have used them.
 */
#ifndef DSV3_SIMD_BLOCK_H
#define DSV3_SIMD_BLOCK_H

#define BLOCK_M       120
#define BLOCK_M_BYTES (288 << 10) /* of input rows taken together: they stay in the second-level cache */
#define BLOCK_N       (2 * TILE_N)
#define BLOCK_K       640 /* a multiple of 128 */

/* One piece of the columns: sums start from +0 in the first and are added up in the last; between they wait in saved, BLOCK_N for an
 * input row. */
typedef struct Piece
{
	bool first;
	bool last;
	V *saved; /* unused when it is both */
} Piece;

/* Columns 0..n-1, n a multiple of 16, of MR input rows and NR rows of floats at w (stride apart) onto one part of the lanes.
 * next: NULL, or input rows to prefetch. */
INLINE void
part_tile(int MR, int NR, int part, bool zero, const float *w, int64_t stride, const float *const *x, int n,
		  const float *const *next, V *sums)
{
	P acc[MR_MAX * NR_MAX];
	P xp[MR_MAX];

	UNROLL
	for (int i = 0; i < MR * NR; i++)
		acc[i] = zero ? p_of(v_zero(), part) : p_of(sums[i], part);
	for (int k = part * (16 / PARTS); k < n; k += 16)
	{
		UNROLL
		for (int i = 0; i < MR; i++)
		{
			xp[i] = p_hold(p_load(x[i] + k));
			if (next)
				__builtin_prefetch(next[i] + k, 0, 3);
		}
		UNROLL
		for (int r = 0; r < NR; r++)
		{
			P wp = p_hold(p_load(w + r * stride + k));

			UNROLL
			for (int i = 0; i < MR; i++)
				acc[i * NR + r] = p_fma(xp[i], wp, acc[i * NR + r]);
		}
	}
	UNROLL
	for (int i = 0; i < MR * NR; i++)
		p_put(&sums[i], part, acc[i]);
}

/* One tile; results at y[i * ldy + r] after the last piece. */
INLINE void
dots_tile(int MR, int NR, bool whole, const float *w, int64_t stride, const float *const *x, int n,
		  const float *const *next, Piece piece, float *y, int64_t ldy)
{
	V sums[MR_MAX * NR_MAX];
	int even = n / 16 * 16;

	if (!whole)
		UNROLL
	for (int i = 0; i < MR * NR; i++)
		sums[i] = piece.first ? v_zero() : piece.saved[i / NR * BLOCK_N + i % NR];
	UNROLL
	for (int part = 0; part < PARTS; part++)
	{
		if (part == PARTS - 1 && next)
			part_tile(MR, NR, part, whole, w, stride, x, even, next, sums);
		else
			part_tile(MR, NR, part, whole, w, stride, x, even, NULL, sums);
	}
	if (even < n)
		UNROLL
	for (int i = 0; i < MR * NR; i++)
		sums[i] = v_fma(v_load_n(x[i / NR] + even, n - even), v_load_n(w + i % NR * stride + even, n - even),
						sums[i]);
	UNROLL
	for (int i = 0; i < MR; i++)
	{
		if (whole || piece.last)
			reduce_row(NR, sums + i * NR, y + i * ldy);
		else
			UNROLL for (int r = 0; r < NR; r++) piece.saved[i * BLOCK_N + r] = sums[i * NR + r];
	}
}

INLINE void
dots_rows(int MR, bool whole, const float *w, int64_t stride, int n_rows, const float *const *x, int n,
		  const float *const *next, Piece piece, float *y, int64_t ldy)
{
	int r = 0;

	for (; r + TILE_N <= n_rows; r += TILE_N, piece.saved += TILE_N)
		dots_tile(MR, TILE_N, whole, w + r * stride, stride, x, n, r + 2 * TILE_N <= n_rows ? NULL : next,
				  piece, y + r, ldy);
	for (; r < n_rows; r++, piece.saved++)
		dots_tile(MR, 1, whole, w + r * stride, stride, x, n, NULL, piece, y + r, ldy);
}

/* m <= TILE_M input rows with n_rows <= BLOCK_N rows of floats. next: NULL, or m rows that come next. */
static void
dots(int m, const float *w, int64_t stride, int n_rows, const float *const *x, int n,
	 const float *const *next, Piece piece, float *y, int64_t ldy)
{
	bool whole = piece.first && piece.last;

#define DOTS(MR)                                                                                             \
	if (whole)                                                                                               \
		dots_rows(MR, true, w, stride, n_rows, x, n, next, piece, y, ldy);                                   \
	else                                                                                                     \
		dots_rows(MR, false, w, stride, n_rows, x, n, next, piece, y, ldy)
	switch (m)
	{
		case 1:
			DOTS(1);
			break;
		case 2:
			DOTS(2);
			break;
#if TILE_M > 3
		case 3:
			DOTS(3);
			break;
#endif
		default:
			DOTS(TILE_M);
			break;
	}
#undef DOTS
}

/* m input rows from column k0 on, in tiles of about equal size, with n_rows <= BLOCK_N rows of floats at w. */
static void
dots_all(const Dsv3Rows *x, int m, int k0, int n, const float *w, int64_t stride, int n_rows, Piece piece,
		 float *y, int64_t ldy)
{
	int tiles = (m + TILE_M - 1) / TILE_M;
	const float *rows[2][TILE_M];
	V *saved = piece.saved;

	for (int t = 0, i = 0; t < tiles; t++)
	{
		int count = m / tiles + (t < m % tiles);
		int after = i + count;

		if (t == 0)
			for (int j = 0; j < count; j++)
				rows[0][j] = input_row(x, j) + k0;
		for (int j = 0; j < count; j++)
			rows[~t & 1][j] = input_row(x, after + j < m ? after + j : 0) + k0;
		if (saved)
			piece.saved = saved + i * BLOCK_N;
		dots(count, w, stride, n_rows, rows[t & 1], n, rows[~t & 1], piece, y + i * ldy, ldy);
		i = after;
	}
}

/* Where the i-th of n parts of `total` begins, the parts being of about equal size and multiples of unit but for the last. */
INLINE int
part_start(int total, int n, int unit, int i)
{
	int start = (int) (((int64_t) total * i / n + unit - 1) / unit) * unit;

	return start < total ? start : total;
}

/* m <= BLOCK_M input rows with matrix rows n .. n + n_rows - 1, n_rows <= BLOCK_N. */
static void
matmul_block(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n, int n_rows, float *y, int64_t ldy)
{
	float buffer[BLOCK_N * BLOCK_K] __attribute__((aligned(64)));
	V saved[BLOCK_M * BLOCK_N];
	int pieces = (w->in + BLOCK_K - 1) / BLOCK_K;

	for (int p = 0; p < pieces; p++)
	{
		int k0 = part_start(w->in, pieces, 128, p);
		int count = part_start(w->in, pieces, 128, p + 1) - k0;

		for (int r = 0; r < n_rows; r++)
			decode_span(w, n + r, k0, count, buffer + r * BLOCK_K);
		dots_all(x, m, k0, count, buffer, BLOCK_K, n_rows,
				 (Piece){.first = p == 0, .last = p == pieces - 1, .saved = saved}, y, ldy);
	}
}

static void
matmul_blocks(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy)
{
	int fitting = (int) (BLOCK_M_BYTES / ((int64_t) sizeof(float) * w->in));
	int most = fitting > BLOCK_M ? BLOCK_M : fitting < BLOCK_M / 5 ? BLOCK_M / 5 : fitting;
	int blocks = (m + most - 1) / most;

	for (int b = 0; b < blocks; b++)
	{
		int i = b * m / blocks, rows = (b + 1) * m / blocks - i;
		Dsv3Rows part = *x;

		if (x->index)
			part.index = x->index + i;
		else
			part.data = x->data + i * x->stride;
		for (int n = n0; n < n1; n += BLOCK_N)
			matmul_block(w, &part, rows, n, n1 - n < BLOCK_N ? n1 - n : BLOCK_N, y + i * ldy + (n - n0), ldy);
	}
}

#endif /* DSV3_SIMD_BLOCK_H */
