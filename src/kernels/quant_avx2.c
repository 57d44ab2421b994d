/*
 * quant_avx2.c
 *	  Products with the group types A4 and S6 on AVX2 (CPUs of the avx512 set use it too), and the codes they read.
 *
 * Two ways to the same integers and the same float chains (quant.h, ops.h):
 *	- few rows: the codes are unpacked in registers as they stream from memory, for the rows of one tile. Several panels far
 *	  apart go forward together, since memory serves several streams faster than one.
 *	- many rows: a slab of up to SLAB_BLOCKS blocks of one panel is unpacked to bytes in the first-level cache, and tiles of 4 rows
 *	  pass over it; meanwhile the next slab is prefetched. Unfinished float sums wait in Slab.acc.
 *
 * A tile is 1 to 4 rows by the 16 matrix rows of a panel. Its 32-bit sums live in memory, in a place of their own:
 * there are not enough registers, and where a compiler puts them on the stack decides the speed.
 */
#if defined(__AVX2__) && defined(__FMA__)

#include "kernels/quant_avx2.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/quant_chain.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

#define TILE_M      4
#define FEW_MAX     16  /* rows without a slab, at most */
#define BLOCK_M     128 /* rows that share a slab */
#define SLAB_BLOCKS 4
#define STREAMS     4    /* panels taken together */
#define AHEAD       1152 /* bytes prefetched before their use, in each stream */

#define GROUPS_MAX (DSV3_BLOCK / DSV3_S6_GROUP)

/* A tile's 32-bit and float sums, for 2 vectors of each row. */
typedef struct Sums
{
	__m256i exact[2 * TILE_M];
	__m256 acc[2 * TILE_M];
} Sums;

/* 128 unpacked columns of a panel: codes as bytes, scales and minima as pairs of int16. */
typedef struct SlabBlock
{
	uint8_t codes[DSV3_BLOCK * DSV3_PANEL_ROWS];
	__m256i scales[GROUPS_MAX][2];
	__m256i mins[2][2];
} SlabBlock;

typedef struct Slab
{
	SlabBlock block[SLAB_BLOCKS];
	Sums sums;
	float acc[BLOCK_M * DSV3_PANEL_ROWS];
} Slab;

INLINE int
groups_per_unit(Dsv3Type type)
{
	return type == DSV3_TYPE_A4 ? 1 : 2;
}

INLINE size_t
group_bytes(Dsv3Type type)
{
	return type == DSV3_TYPE_A4 ? DSV3_A4_UNIT : DSV3_S6_UNIT / 2;
}

INLINE size_t
block_bytes(Dsv3Type type)
{
	return 4 * (type == DSV3_TYPE_A4 ? DSV3_A4_UNIT : DSV3_S6_UNIT) + DSV3_BLOCK_TAIL;
}

/* Groups of block b of a matrix with `units` units of 32 columns. */
INLINE int
groups_of(Dsv3Type type, int units, int b)
{
	int left = units - b * 4;

	return (left < 4 ? left : 4) * groups_per_unit(type);
}

/* The 16 scales of a group as pairs of int16, one pair a lane. */
INLINE __m256i
scale_pairs(const uint8_t *scales, int half)
{
	const __m256i low = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1,
										 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1);
	const __m256i high = _mm256_setr_epi8(8, -1, 8, -1, 9, -1, 9, -1, 10, -1, 10, -1, 11, -1, 11, -1, 12, -1,
										  12, -1, 13, -1, 13, -1, 14, -1, 14, -1, 15, -1, 15, -1);
	__m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) scales));

	return _mm256_shuffle_epi8(both, half ? high : low);
}

/* The minima of groups 2 pair and 2 pair + 1, a pair a lane. */
INLINE __m256i
min_pairs(const uint8_t *tail, int pair, int half)
{
	return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) (tail + 64 + 32 * pair + 16 * half)));
}

INLINE __m256i
broadcast_pair(const int16_t *pair)
{
	int32_t both;

	memcpy(&both, pair, sizeof(both));
	return _mm256_set1_epi32(both);
}

/* Which code a group's sum runs: where its weights lie, and in what form. */
typedef enum Source
{
	PACKED,
	UNPACKED,
} Source;

INLINE void
chain(Dsv3Type type, Source source, int MR, const uint8_t *w, const uint8_t *ahead,
	  const Dsv3CodeBlock *const *x, int g, __m256i *sum)
{
	const int8_t *a[TILE_M];
	const void *s[TILE_M];

	UNROLL
	for (int i = 0; i < MR; i++)
	{
		a[i] = x[i]->codes + g * (type == DSV3_TYPE_A4 ? DSV3_A4_GROUP : DSV3_S6_GROUP);
		s[i] = x[i]->start[type == DSV3_TYPE_A4 ? 0 : g];
	}
#define CALL(R)                                                                                              \
	if (source == UNPACKED && type == DSV3_TYPE_A4)                                                          \
		chain_a4_slab_##R(w, a, sum);                                                                        \
	else if (source == UNPACKED)                                                                             \
		chain_s6_slab_##R(w, a, s, sum);                                                                     \
	else if (type == DSV3_TYPE_A4)                                                                           \
		chain_a4_##R(w, ahead, a, sum);                                                                      \
	else                                                                                                     \
		chain_s6_##R(w, ahead, a, s, sum)
	switch (MR)
	{
		case 1:
			CALL(1);
			break;
		case 2:
			CALL(2);
			break;
		case 3:
			CALL(3);
			break;
		default:
			CALL(4);
			break;
	}
#undef CALL
}

/* One group onto the tile's exact sums. */
INLINE void
tile_group(Dsv3Type type, Source source, int MR, const uint8_t *w, const uint8_t *ahead, __m256i scale0,
		   __m256i scale1, const Dsv3CodeBlock *const *x, int g, __m256i *exact)
{
	__m256i sum[2 * TILE_M];

	chain(type, source, MR, w, ahead, x, g, sum);
	UNROLL
	for (int i = 0; i < MR; i++)
	{
		sum[2 * i] = _mm256_madd_epi16(sum[2 * i], scale0);
		sum[2 * i + 1] = _mm256_madd_epi16(sum[2 * i + 1], scale1);
		if (g > 0)
		{
			sum[2 * i] = _mm256_add_epi32(sum[2 * i], exact[2 * i]);
			sum[2 * i + 1] = _mm256_add_epi32(sum[2 * i + 1], exact[2 * i + 1]);
		}
		exact[2 * i] = sum[2 * i];
		exact[2 * i + 1] = sum[2 * i + 1];
	}
}

/* The minima's part of a block (A4), then the block's step of the float chains. */
INLINE void
tile_finish(Dsv3Type type, int MR, const __m256i mins[2][2], const Dsv3CodeBlock *const *x,
			const __m256i *exact, __m256 *acc)
{
	UNROLL
	for (int i = 0; i < MR; i++)
	{
		__m256 scale = _mm256_set1_ps(x[i]->scale);
		__m256i low = exact[2 * i], high = exact[2 * i + 1];

		for (int p = 0; type == DSV3_TYPE_A4 && p < 2; p++)
		{
			__m256i sums = broadcast_pair(x[i]->sum + 2 * p);

			low = _mm256_add_epi32(low, _mm256_madd_epi16(mins[p][0], sums));
			high = _mm256_add_epi32(high, _mm256_madd_epi16(mins[p][1], sums));
		}
		acc[2 * i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(low), scale, acc[2 * i]);
		acc[2 * i + 1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), scale, acc[2 * i + 1]);
	}
}

/* Results of one row at matrix rows of a panel, of which `count` exist. */
INLINE void
store_row(__m256 low, __m256 high, const float *row_scales, int count, float *y)
{
	low = _mm256_mul_ps(low, _mm256_loadu_ps(row_scales));
	high = _mm256_mul_ps(high, _mm256_loadu_ps(row_scales + 8));
	if (count >= 16)
	{
		_mm256_storeu_ps(y, low);
		_mm256_storeu_ps(y + 8, high);
	}
	else
	{
		float copy[16];

		_mm256_storeu_ps(copy, low);
		_mm256_storeu_ps(copy + 8, high);
		memcpy(y, copy, (size_t) count * sizeof(float));
	}
}

/*
 * MR rows by np panels, straight from the packed bytes. The panels lie `columns` matrix rows apart, and so do their
 * results in y. They go forward together, a group of each at a time.
 */
INLINE void
packed_tile(Dsv3Type type, int MR, int np, const Dsv3Weight *w, int n, int columns,
			const Dsv3CodeBlock *const *rows, float *y, int64_t ldy)
{
	size_t panel_bytes = dsv3_panel_bytes(type, w->in);
	const uint8_t *at = (const uint8_t *) w->data + (size_t) (n / 16) * panel_bytes;
	size_t apart = (size_t) (columns / 16) * panel_bytes;
	int units = (w->in + DSV3_UNIT - 1) / DSV3_UNIT;
	const Dsv3CodeBlock *x[TILE_M];
	Sums sums[STREAMS];

	UNROLL
	for (int i = 0; i < MR; i++)
		x[i] = rows[i];
	for (int p = 0; p < np; p++)
		UNROLL
	for (int i = 0; i < 2 * MR; i++)
		sums[p].acc[i] = _mm256_setzero_ps();
	for (int b = 0; b * 4 < units; b++)
	{
		int groups = groups_of(type, units, b);
		const uint8_t *tail = at + (size_t) groups * group_bytes(type);

		for (int g = 0; g < groups; g++)
		{
			const uint8_t *from = at + (size_t) g * group_bytes(type);
			const uint8_t *scales = tail + (size_t) g * 16;

			for (int p = 0; p < np; p++, from += apart, scales += apart)
				tile_group(type, PACKED, MR, from, from + AHEAD, scale_pairs(scales, 0),
						   scale_pairs(scales, 1), x, g, sums[p].exact);
		}
		for (int p = 0; p < np; p++)
		{
			const uint8_t *t = tail + (size_t) p * apart;
			const __m256i mins[2][2] = {{min_pairs(t, 0, 0), min_pairs(t, 0, 1)},
										{min_pairs(t, 1, 0), min_pairs(t, 1, 1)}};

			tile_finish(type, MR, mins, x, sums[p].exact, sums[p].acc);
		}
		at = tail + DSV3_BLOCK_TAIL;
		UNROLL
		for (int i = 0; i < MR; i++)
			x[i]++;
	}
	for (int p = 0; p < np; p++)
		UNROLL
	for (int i = 0; i < MR; i++)
		store_row(sums[p].acc[2 * i], sums[p].acc[2 * i + 1], (const float *) (at + (size_t) p * apart),
				  w->out - n - p * columns, y + i * ldy + p * columns);
}

/* All m rows by np panels, in tiles of about equal size: 5 rows go as 3 and 2, not as 4 and 1. */
INLINE void
packed_panels(Dsv3Type type, int np, const Dsv3Weight *w, int n, int columns,
			  const Dsv3CodeBlock *const *rows, int m, float *y, int64_t ldy)
{
	for (int i = 0; i < m;)
	{
		int tiles = (m - i + TILE_M - 1) / TILE_M;
		int count = (m - i + tiles - 1) / tiles;

		switch (count)
		{
			case 1:
				packed_tile(type, 1, np, w, n, columns, rows + i, y + i * ldy, ldy);
				break;
			case 2:
				packed_tile(type, 2, np, w, n, columns, rows + i, y + i * ldy, ldy);
				break;
			case 3:
				packed_tile(type, 3, np, w, n, columns, rows + i, y + i * ldy, ldy);
				break;
			default:
				packed_tile(type, 4, np, w, n, columns, rows + i, y + i * ldy, ldy);
				break;
		}
		i += count;
	}
}

INLINE void
matmul_packed(Dsv3Type type, const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y,
			  int64_t ldy)
{
	const Dsv3CodeBlock *rows[FEW_MAX];
	int columns = (n1 - n0) / (16 * STREAMS) * 16;
	int n = n0;

	for (int i = 0; i < m; i++)
		rows[i] = x->blocks + (x->index ? x->index[i] : i) * x->block_stride;
	for (; n < n0 + columns; n += 16)
		packed_panels(type, STREAMS, w, n, columns, rows, m, y + (n - n0), ldy);
	for (n = n0 + STREAMS * columns; n < n1; n += 16)
		packed_panels(type, 1, w, n, 0, rows, m, y + (n - n0), ldy);
}

/* Unpack one block of a panel. */
INLINE void
unpack_block(Dsv3Type type, const uint8_t *from, int groups, SlabBlock *to)
{
	const uint8_t *tail = from + (size_t) groups * group_bytes(type);
	__m256i low_mask = _mm256_set1_epi8(15);

	if (type == DSV3_TYPE_A4)
	{
		for (int line = 0; line < groups * 4; line++)
			UNROLL
		for (int half = 0; half < 2; half++)
		{
			__m256i both = _mm256_loadu_si256((const __m256i *) (from + line * 64 + half * 32));
			__m256i *out = (__m256i *) (to->codes + line * 128 + half * 32);

			_mm256_store_si256(out, _mm256_and_si256(both, low_mask));
			_mm256_store_si256(out + 2, _mm256_and_si256(_mm256_srli_epi16(both, 4), low_mask));
		}
		UNROLL
		for (int i = 0; i < 4; i++)
			to->mins[i / 2][i % 2] = min_pairs(tail, i / 2, i % 2);
	}
	else
	{
		__m256i high_mask = _mm256_set1_epi8(48);

		for (int g = 0; g < groups; g++)
			UNROLL
		for (int half = 0; half < 2; half++)
		{
			const __m256i *in = (const __m256i *) (from + g * 192 + half * 32);
			__m256i *out = (__m256i *) (to->codes + g * 256 + half * 32);
			__m256i a = _mm256_loadu_si256(in), c = _mm256_loadu_si256(in + 2);
			__m256i high = _mm256_loadu_si256(in + 4);

#define JOIN(low, bits) _mm256_or_si256(_mm256_and_si256(low, low_mask), _mm256_and_si256(bits, high_mask))
			_mm256_store_si256(out, JOIN(a, _mm256_slli_epi16(high, 4)));
			_mm256_store_si256(out + 2, JOIN(_mm256_srli_epi16(a, 4), _mm256_slli_epi16(high, 2)));
			_mm256_store_si256(out + 4, JOIN(c, high));
			_mm256_store_si256(out + 6, JOIN(_mm256_srli_epi16(c, 4), _mm256_srli_epi16(high, 2)));
#undef JOIN
		}
	}
	for (int g = 0; g < groups; g++)
		UNROLL
	for (int half = 0; half < 2; half++)
		to->scales[g][half] = scale_pairs(tail + g * 16, half);
}

/* MR rows, from block b0 on, over a slab; acc holds the rows' unfinished sums. */
INLINE void
slab_tile(Dsv3Type type, int MR, Slab *slab, int units, int n_blocks, const Dsv3CodeBlock *const *rows,
		  int b0, float *acc)
{
	const Dsv3CodeBlock *x[TILE_M];
	Sums *sums = &slab->sums;

	UNROLL
	for (int i = 0; i < MR; i++)
		x[i] = rows[i] + b0;
	for (int b = 0; b < n_blocks; b++)
	{
		const SlabBlock *block = &slab->block[b];
		int groups = groups_of(type, units, b);
		size_t step = DSV3_PANEL_ROWS * (type == DSV3_TYPE_A4 ? DSV3_A4_GROUP : DSV3_S6_GROUP);

		for (int g = 0; g < groups; g++)
			tile_group(type, UNPACKED, MR, block->codes + (size_t) g * step, NULL, block->scales[g][0],
					   block->scales[g][1], x, g, sums->exact);
		tile_finish(type, MR, block->mins, x, sums->exact, (__m256 *) acc);
		UNROLL
		for (int i = 0; i < MR; i++)
			x[i]++;
	}
}

/* m up to BLOCK_M rows by one panel, the rows in tiles that begin at first[0 .. n_tiles - 1] and end at first[n_tiles]. */
INLINE void
slab_panel(Dsv3Type type, const uint8_t *panel, int units, int count, const Dsv3CodeBlock *const *rows,
		   const int *first, int n_tiles, Slab *slab, float *y, int64_t ldy)
{
	int m = first[n_tiles];
	int n_blocks = (units + 3) / 4;
	int n_slabs = (n_blocks + SLAB_BLOCKS - 1) / SLAB_BLOCKS;
	size_t ahead = (SLAB_BLOCKS * block_bytes(type) / (size_t) n_tiles + 63) / 64 * 64;

	memset(slab->acc, 0, (size_t) m * DSV3_PANEL_ROWS * sizeof(float));
	for (int s = 0, b0 = 0; s < n_slabs; s++)
	{
		/* slabs of about equal size */
		int b1 = (s + 1) * n_blocks / n_slabs;
		const uint8_t *next = panel + (size_t) b1 * block_bytes(type);

		for (int b = b0; b < b1; b++)
			unpack_block(type, panel + (size_t) b * block_bytes(type), groups_of(type, units, b),
						 &slab->block[b - b0]);
		for (int t = 0; t < n_tiles; t++)
		{
			float *acc = slab->acc + first[t] * DSV3_PANEL_ROWS;
			const Dsv3CodeBlock *const *x = rows + first[t];
			int left = units - b0 * 4;

			for (size_t i = 0; i < ahead; i += 64)
				_mm_prefetch((const char *) next + i, _MM_HINT_T0);
			next += ahead;
			switch (first[t + 1] - first[t])
			{
				case 1:
					slab_tile(type, 1, slab, left, b1 - b0, x, b0, acc);
					break;
				case 2:
					slab_tile(type, 2, slab, left, b1 - b0, x, b0, acc);
					break;
				case 3:
					slab_tile(type, 3, slab, left, b1 - b0, x, b0, acc);
					break;
				default:
					slab_tile(type, 4, slab, left, b1 - b0, x, b0, acc);
					break;
			}
		}
		b0 = b1;
	}
	panel += (size_t) units * (type == DSV3_TYPE_A4 ? DSV3_A4_UNIT : DSV3_S6_UNIT) +
			 (size_t) n_blocks * DSV3_BLOCK_TAIL;
	for (int i = 0; i < m; i++)
	{
		const __m256 *acc = (const __m256 *) (slab->acc + i * DSV3_PANEL_ROWS);

		store_row(acc[0], acc[1], (const float *) panel, count, y + i * ldy);
	}
}

INLINE void
matmul_slabs(Dsv3Type type, const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y,
			 int64_t ldy)
{
	const Dsv3CodeBlock *rows[BLOCK_M];
	int first[BLOCK_M / TILE_M + 1];
	int n_tiles = (m + TILE_M - 1) / TILE_M;
	Slab slab;

	for (int i = 0; i < m; i++)
		rows[i] = x->blocks + (x->index ? x->index[i] : i) * x->block_stride;
	for (int t = 0; t <= n_tiles; t++)
		first[t] = t * m / n_tiles;
	for (int n = n0; n < n1; n += 16)
		slab_panel(type, (const uint8_t *) w->data + (size_t) (n / 16) * dsv3_panel_bytes(type, w->in),
				   (w->in + DSV3_UNIT - 1) / DSV3_UNIT, w->out - n, rows, first, n_tiles, &slab, y + (n - n0),
				   ldy);
}

/* Not inlined into one another: each is large and has registers of its own. */
#define DEFINE_MATMULS(name, type)                                                                           \
	static __attribute__((noinline)) void packed_##name(const Dsv3Weight *w, const Dsv3Rows *x, int m,       \
														int n0, int n1, float *y, int64_t ldy)               \
	{                                                                                                        \
		matmul_packed(type, w, x, m, n0, n1, y, ldy);                                                        \
	}                                                                                                        \
	static __attribute__((noinline)) void slabs_##name(const Dsv3Weight *w, const Dsv3Rows *x, int m,        \
													   int n0, int n1, float *y, int64_t ldy)                \
	{                                                                                                        \
		matmul_slabs(type, w, x, m, n0, n1, y, ldy);                                                         \
	}
DEFINE_MATMULS(a4, DSV3_TYPE_A4)
DEFINE_MATMULS(s6, DSV3_TYPE_S6)

void
dsv3_quant_matmul_avx2(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy)
{
	bool a4 = w->type == DSV3_TYPE_A4;
	/* S6 codes are costly to unpack for every tile */
	int few = a4 ? FEW_MAX : 6;
	int blocks = (m + BLOCK_M - 1) / BLOCK_M;

	if (m <= few)
	{
		(a4 ? packed_a4 : packed_s6)(w, x, m, n0, n1, y, ldy);
		return;
	}
	for (int i = 0; i < blocks; i++)
	{
		/* blocks of about equal size, so that none is left with a few rows */
		int first = i * m / blocks, end = (i + 1) * m / blocks;
		Dsv3Rows part = *x;

		if (x->index)
			part.index += first;
		else
			part.blocks += first * x->block_stride;
		(a4 ? slabs_a4 : slabs_s6)(w, &part, end - first, n0, n1, y + first * ldy, ldy);
	}
}

/* 16 codes from 16 floats, as int16. */
INLINE __m256i
codes16(const float *x, __m256 inverse)
{
	__m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
	__m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inverse));

	return _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), _MM_SHUFFLE(3, 1, 2, 0));
}

/* One whole block. */
static void
quantise_block(const float *x, Dsv3CodeBlock *block)
{
	const __m256i magnitude = _mm256_set1_epi32(INT32_MAX);
	const __m256i ones = _mm256_set1_epi16(1);
	__m256i top = _mm256_setzero_si256();
	int32_t tops[8], largest_bits = 0;
	float largest;
	__m256 inverse;

	/* as integers: magnitudes order like their bits, and a NaN is larger than everything */
	for (int k = 0; k < DSV3_BLOCK; k += 8)
		top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + k)), magnitude));
	_mm256_storeu_si256((__m256i *) tops, top);
	for (int i = 0; i < 8; i++)
		largest_bits = tops[i] > largest_bits ? tops[i] : largest_bits;
	memcpy(&largest, &largest_bits, sizeof(largest));
	memset(block, 0, sizeof(*block));
	if (!(largest < INFINITY))
	{
		block->scale = NAN;
		return;
	}
	if (largest < 0x1p-100f)
		return;
	block->scale = largest / 127.0f;
	inverse = _mm256_set1_ps(127.0f / largest);
	for (int k = 0; k < DSV3_BLOCK; k += 32)
	{
		__m256i low = codes16(x + k, inverse), high = codes16(x + k + 16, inverse);
		/* sums of two neighbours: [k0+k1, k2+k3, ...]; then the four of each kind */
		__m256i pairs = _mm256_hadd_epi16(low, high); /* low 0-7, high 0-7 | low 8-15, high 8-15 */
		__m128i quads = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
		__m128i halves = _mm_add_epi16(quads, _mm_srli_epi64(quads, 32)); /* words 0, 1; 4, 5 */
		__m128i start = _mm_sub_epi16(_mm_setzero_si128(), _mm_slli_epi16(halves, 5));
		__m256i all = _mm256_madd_epi16(_mm256_add_epi16(low, high), ones);
		__m128i four = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
		int32_t group[2];

		_mm256_storeu_si256((__m256i *) (block->codes + k),
							_mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), _MM_SHUFFLE(3, 1, 2, 0)));
		group[0] = _mm_cvtsi128_si32(start);
		group[1] = _mm_extract_epi32(start, 2);
		memcpy(block->start[k / 16], group, sizeof(group));
		four = _mm_add_epi32(four, _mm_srli_si128(four, 8));
		four = _mm_add_epi32(four, _mm_srli_si128(four, 4));
		block->sum[k / 32] = (int16_t) (8 * _mm_cvtsi128_si32(four));
	}
}

void
dsv3_quantise8_avx2(const float *x, int n, Dsv3CodeBlock *blocks)
{
	int whole = n / DSV3_BLOCK;

	for (int b = 0; b < whole; b++)
		quantise_block(x + b * DSV3_BLOCK, &blocks[b]);
	if (whole * DSV3_BLOCK < n)
	{
		float rest[DSV3_BLOCK] = {0};

		memcpy(rest, x + whole * DSV3_BLOCK, (size_t) (n - whole * DSV3_BLOCK) * sizeof(float));
		quantise_block(rest, &blocks[whole]);
	}
}

#endif
