/*
 * quant.c
 *	  Packing into the group types and reading them back; layouts in quant.h.
 *
 * A row is quantised in three steps: a real scale (and minimum) for every group by itself; the row scale, so that all of
 * them fit their 8 bits; then the 8-bit scale and minimum around the real ones, and the codes, that give the least error
 * together. Sums run over vectors of 4 lanes, the portable kind, so that they are fast and still the same everywhere.
 */
#include "kernels/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------------------------------
 * Layout.
 */

static int
units(int32_t in)
{
	return (in + DSV3_UNIT - 1) / DSV3_UNIT;
}

static size_t
unit_bytes(Dsv3Type type)
{
	return type == DSV3_TYPE_A4 ? DSV3_A4_UNIT : DSV3_S6_UNIT;
}

/* Of a whole block, codes and tail. */
static size_t
block_bytes(Dsv3Type type)
{
	return DSV3_BLOCK / DSV3_UNIT * unit_bytes(type) + DSV3_BLOCK_TAIL;
}

size_t
dsv3_panel_bytes(Dsv3Type type, int32_t in)
{
	if (type == DSV3_TYPE_INT8)
		return dsv3_int8_panel_bytes(in);
	return (size_t) units(in) * unit_bytes(type) + (size_t) dsv3_code_blocks(in) * DSV3_BLOCK_TAIL +
		   DSV3_PANEL_ROWS * sizeof(float);
}

size_t
dsv3_packed_bytes(Dsv3Type type, int32_t out, int32_t in)
{
	return ((size_t) out + DSV3_PANEL_ROWS - 1) / DSV3_PANEL_ROWS * dsv3_panel_bytes(type, in);
}

/* Where in a panel things lie that belong to block b. */
typedef struct BlockPlace
{
	size_t codes;
	size_t tail;
} BlockPlace;

static BlockPlace
block_place(Dsv3Type type, int32_t in, int b)
{
	int left = units(in) - b * (DSV3_BLOCK / DSV3_UNIT);
	size_t n = left < DSV3_BLOCK / DSV3_UNIT ? (size_t) left : DSV3_BLOCK / DSV3_UNIT;
	size_t codes = (size_t) b * block_bytes(type);

	return (BlockPlace){.codes = codes, .tail = codes + n * unit_bytes(type)};
}

/* Of column k (of a block) of lane r: the byte, from the start of the block, with its low four bits. */
static size_t
low_byte(Dsv3Type type, int lane, int k)
{
	size_t line = type == DSV3_TYPE_A4 ? (size_t) (k / 8) : (size_t) (k / 16 * 3 + k % 16 / 8);

	return line * 64 + (size_t) lane * 4 + (size_t) (k % 4);
}

static int
low_shift(int k)
{
	return k % 8 < 4 ? 0 : 4;
}

static size_t
high_byte(int lane, int k)
{
	return (size_t) (k / 16 * 3 + 2) * 64 + (size_t) lane * 4 + (size_t) (k % 4);
}

static int
high_shift(int k)
{
	return k % 16 / 4 * 2;
}

static size_t
min_byte(int lane, int group)
{
	return 64 + (size_t) (group / 2) * 32 + (size_t) lane * 2 + (size_t) (group % 2);
}

Dsv3Quant
dsv3_quant_at(const Dsv3Weight *w, int32_t row, int32_t column)
{
	size_t panel_bytes = dsv3_panel_bytes(w->type, w->in);
	const uint8_t *panel = (const uint8_t *) w->data + (size_t) (row / DSV3_PANEL_ROWS) * panel_bytes;
	BlockPlace place = block_place(w->type, w->in, column / DSV3_BLOCK);
	const uint8_t *codes = panel + place.codes;
	const uint8_t *tail = panel + place.tail;
	int lane = row % DSV3_PANEL_ROWS;
	int k = column % DSV3_BLOCK;
	int group = k / (w->type == DSV3_TYPE_A4 ? DSV3_A4_GROUP : DSV3_S6_GROUP);
	Dsv3Quant q = {.code = codes[low_byte(w->type, lane, k)] >> low_shift(k) & 15,
				   .scale = tail[group * DSV3_PANEL_ROWS + lane]};

	if (w->type == DSV3_TYPE_A4)
		q.offset = 8 * (int8_t) tail[min_byte(lane, group)];
	else
		q.code += (codes[high_byte(lane, k)] >> high_shift(k) & 3) * 16 - 32;
	memcpy(&q.row_scale, panel + panel_bytes - (size_t) (DSV3_PANEL_ROWS - lane) * sizeof(float),
		   sizeof(float));
	return q;
}

void
dsv3_unpack_row(const Dsv3Weight *w, int32_t row, float *y)
{
	for (int32_t k = 0; k < w->in; k++)
	{
		if (w->type == DSV3_TYPE_INT8)
		{
			float scale;
			int code = dsv3_int8_code(w, row, k, &scale);

			y[k] = (float) code * scale;
		}
		else
		{
			Dsv3Quant q = dsv3_quant_at(w, row, k);

			y[k] = (float) (q.scale * q.code + q.offset) * q.row_scale;
		}
	}
}

/* --------------------------------------------------------------------------------------------------------------------
 * Fitting.
 */

#define LANES    4
#define MAX_VECS (DSV3_A4_GROUP / LANES)
#define TINY     0x1p-100f

/* Weights from here on count as 0: their squares would not be finite. */
#define HUGE_WEIGHT 0x1p60f

typedef float F4 __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t I4 __attribute__((vector_size(LANES * sizeof(int32_t))));

/* A group: weights and how much their squared errors count. */
typedef struct Group
{
	F4 w[MAX_VECS];
	F4 v[MAX_VECS];
	int n; /* vectors */
} Group;

/* w = scale * code + min */
typedef struct Fit
{
	float scale;
	float min;
} Fit;

static inline F4
splat(float f)
{
	return (F4){f, f, f, f};
}

static inline F4
choose(I4 which, F4 yes, F4 no)
{
	return (F4) (((I4) yes & which) | ((I4) no & ~which));
}

static inline float
total(F4 v)
{
	float sum = 0.0f;

	for (int i = 0; i < LANES; i++)
		sum += v[i];
	return sum;
}

/* Rounded to the nearest integer, ties to even, then into lo..hi; |x| may be anything. */
static inline F4
round_into(F4 x, float lo, float hi)
{
	F4 magic = splat(0x1.8p23f);

	/* a NaN becomes lo */
	x = choose(x > splat(lo), x, splat(lo));
	x = choose(x < splat(hi), x, splat(hi));
	return (x + magic) - magic;
}

static inline F4
codes_of(const Group *g, int i, float inverse, float min, float lo, float hi)
{
	return round_into((g->w[i] - splat(min)) * splat(inverse), lo, hi);
}

/* Weighted squared error of a fit with codes lo..hi. */
static float
fit_error(const Group *g, Fit fit, float lo, float hi)
{
	float inverse = fit.scale > 0.0f ? 1.0f / fit.scale : 0.0f;
	F4 sum = splat(0.0f);

	for (int i = 0; i < g->n; i++)
	{
		F4 error = g->w[i] - (splat(fit.scale) * codes_of(g, i, inverse, fit.min, lo, hi) + splat(fit.min));

		sum += g->v[i] * error * error;
	}
	return total(sum);
}

/* Keep the codes of a fit, and give the scale and minimum that are best for them. Without a minimum it stays 0. */
static Fit
refit(const Group *g, Fit fit, float lo, float hi, bool with_min)
{
	float inverse = 1.0f / fit.scale;
	F4 sum_v = splat(0.0f), sum_q = sum_v, sum_qq = sum_v, sum_w = sum_v, sum_wq = sum_v;
	float v, q, qq, w, wq, determinant;

	for (int i = 0; i < g->n; i++)
	{
		F4 code = codes_of(g, i, inverse, fit.min, lo, hi);
		F4 weighted = g->v[i] * code;

		sum_v += g->v[i];
		sum_q += weighted;
		sum_qq += weighted * code;
		sum_w += g->v[i] * g->w[i];
		sum_wq += weighted * g->w[i];
	}
	v = total(sum_v);
	q = total(sum_q);
	qq = total(sum_qq);
	w = total(sum_w);
	wq = total(sum_wq);
	if (!with_min)
		return (Fit){.scale = qq > 0.0f ? wq / qq : 0.0f};
	determinant = v * qq - q * q;
	if (!(determinant > 0.0f))
		return fit;
	return (Fit){.scale = (v * wq - q * w) / determinant, .min = (qq * w - q * wq) / determinant};
}

/* The better of *best and what two refits make of a start. */
static void
try_fit(const Group *g, Fit start, float lo, float hi, bool with_min, Fit *best, float *best_error)
{
	Fit fit = start;

	for (int round = 0; round < 2 && fit.scale > TINY; round++)
	{
		float error;

		fit = refit(g, fit, lo, hi, with_min);
		if (!(fit.scale > TINY))
			return;
		error = fit_error(g, fit, lo, hi);
		if (error < *best_error)
		{
			*best_error = error;
			*best = fit;
		}
	}
}

/* Scale and minimum for codes 0..15. Starts are the group's range and pieces of it, cut at either end or both. */
static Fit
fit_a4(const Group *g)
{
	float low = INFINITY, high = -INFINITY;
	Fit best;
	float best_error;

	for (int i = 0; i < g->n; i++)
		for (int l = 0; l < LANES; l++)
		{
			low = g->w[i][l] < low ? g->w[i][l] : low;
			high = g->w[i][l] > high ? g->w[i][l] : high;
		}
	best = (Fit){.scale = (high - low) / 15.0f, .min = low};
	if (!(best.scale > TINY))
		return (Fit){.min = low};
	best_error = fit_error(g, best, 0.0f, 15.0f);
	for (int cut_low = 0; cut_low <= 4; cut_low++)
		for (int cut_high = 0; cut_high <= 4; cut_high++)
		{
			float from = low + (high - low) * 0.06f * (float) cut_low;
			float to = high - (high - low) * 0.06f * (float) cut_high;

			try_fit(g, (Fit){.scale = (to - from) / 15.0f, .min = from}, 0.0f, 15.0f, true, &best,
					&best_error);
		}
	return best;
}

/* Scale for codes -32..31. */
static Fit
fit_s6(const Group *g)
{
	float largest = 0.0f;
	Fit best;
	float best_error;

	for (int i = 0; i < g->n; i++)
		for (int l = 0; l < LANES; l++)
			largest = fabsf(g->w[i][l]) > largest ? fabsf(g->w[i][l]) : largest;
	if (!(largest > TINY))
		return (Fit){0};
	best = (Fit){.scale = largest / 31.0f};
	best_error = fit_error(g, best, -32.0f, 31.0f);
	for (int step = -2; step <= 12; step++)
		try_fit(g, (Fit){.scale = largest / (31.0f + 0.75f * (float) step)}, -32.0f, 31.0f, false, &best,
				&best_error);
	return best;
}

/* The 8-bit scale and minimum near a fit that give the least error, in units of the row scale. */
static void
round_fit(const Group *g, Fit fit, float row_scale, bool with_min, int *scale, int *min)
{
	int near_scale = (int) lrintf(fit.scale / row_scale);
	int near_min = (int) lrintf(fit.min / (8.0f * row_scale));
	int reach = with_min ? 1 : 0;
	float best_error = INFINITY;

	*scale = 0;
	*min = 0;
	for (int s = near_scale - 1; s <= near_scale + 1; s++)
		for (int m = near_min - reach; m <= near_min + reach; m++)
		{
			Fit rounded = {.scale = (float) s * row_scale, .min = (float) (8 * m) * row_scale};
			float error;

			if (s < 0 || s > 255 || m < -128 || m > 127)
				continue;
			error = fit_error(g, rounded, with_min ? 0.0f : -32.0f, with_min ? 15.0f : 31.0f);
			if (error < best_error)
			{
				best_error = error;
				*scale = s;
				*min = m;
			}
		}
}

/* Columns k .. k + size - 1 of a row; those that do not exist are 0 and count for nothing. */
static Group
take_group(const float *row, const float *importance, int32_t in, int32_t k, int size)
{
	Group g = {.n = size / LANES};

	for (int i = 0; i < size; i++)
	{
		bool there = k + i < in;

		g.w[i / LANES][i % LANES] = there ? row[k + i] : 0.0f;
		g.v[i / LANES][i % LANES] = !there ? 0.0f : importance ? importance[k + i] : 1.0f;
	}
	return g;
}

/* A group's codes, scale and minimum into the panel. */
static void
put_group(Dsv3Type type, const Group *g, uint8_t *panel, BlockPlace place, int lane, int k, int scale,
		  int min, float row_scale)
{
	bool a4 = type == DSV3_TYPE_A4;
	uint8_t *codes = panel + place.codes;
	uint8_t *tail = panel + place.tail;
	int group = k / (a4 ? DSV3_A4_GROUP : DSV3_S6_GROUP);
	float real_scale = (float) scale * row_scale;
	float inverse = real_scale > 0.0f ? 1.0f / real_scale : 0.0f;

	tail[group * DSV3_PANEL_ROWS + lane] = (uint8_t) scale;
	if (a4)
		tail[min_byte(lane, group)] = (uint8_t) (int8_t) min;
	for (int i = 0; i < g->n * LANES; i++)
	{
		F4 rounded = codes_of(g, i / LANES, inverse, (float) (8 * min) * row_scale, a4 ? 0.0f : -32.0f,
							  a4 ? 15.0f : 31.0f);
		int code = (int) rounded[i % LANES] + (a4 ? 0 : 32);

		codes[low_byte(type, lane, k + i)] |= (uint8_t) ((code & 15) << low_shift(k + i));
		if (!a4)
			codes[high_byte(lane, k + i)] |= (uint8_t) (code >> 4 << high_shift(k + i));
	}
}

/* One row into its lane of a zeroed panel. fits has room for the row's groups. */
static void
pack_row(Dsv3Type type, const float *row, int32_t in, const float *importance, int lane, Fit *fits,
		 uint8_t *panel)
{
	bool a4 = type == DSV3_TYPE_A4;
	int size = a4 ? DSV3_A4_GROUP : DSV3_S6_GROUP;
	int n = units(in) * DSV3_UNIT / size;
	float row_scale = 0.0f;

	for (int i = 0; i < n; i++)
	{
		Group g = take_group(row, importance, in, i * size, size);
		float need;

		fits[i] = a4 ? fit_a4(&g) : fit_s6(&g);
		need = fmaxf(fits[i].scale / 255.0f, fabsf(fits[i].min) / (8.0f * 127.0f));
		row_scale = need > row_scale ? need : row_scale;
	}
	if (!(row_scale > TINY))
		return;
	memcpy(panel + dsv3_panel_bytes(type, in) - (size_t) (DSV3_PANEL_ROWS - lane) * sizeof(float), &row_scale,
		   sizeof(float));
	for (int i = 0; i < n; i++)
	{
		Group g = take_group(row, importance, in, i * size, size);
		int k = i * size;
		int scale, min;

		round_fit(&g, fits[i], row_scale, a4, &scale, &min);
		put_group(type, &g, panel, block_place(type, in, k / DSV3_BLOCK), lane, k % DSV3_BLOCK, scale, min,
				  row_scale);
	}
}

bool
dsv3_pack_rows(Dsv3Type type, const Dsv3Weight *src, int32_t first, int32_t n, const float *importance,
			   void *dst)
{
	const Dsv3Ops *ops = dsv3_ops_find(NULL, NULL); /* any set: they decode to the same bits */
	size_t panel_bytes = dsv3_panel_bytes(type, src->in);
	size_t n_fits = (size_t) units(src->in) * (DSV3_UNIT / DSV3_S6_GROUP);
	float *row;
	Fit *fits;

	if (type == DSV3_TYPE_INT8)
	{
		dsv3_int8_pack(src, first, n, dst);
		return true;
	}
	row = malloc((size_t) src->in * sizeof(float));
	fits = malloc(n_fits * sizeof(Fit));
	if (row && fits)
	{
		memset(dst, 0, dsv3_packed_bytes(type, n, src->in));
		for (int32_t i = 0; i < n; i++)
		{
			ops->decode(src, first + i, row);
			for (int32_t k = 0; k < src->in; k++)
				row[k] = fabsf(row[k]) < HUGE_WEIGHT ? row[k] : 0.0f;
			pack_row(type, row, src->in, importance, i % DSV3_PANEL_ROWS, fits,
					 (uint8_t *) dst + (size_t) (i / DSV3_PANEL_ROWS) * panel_bytes);
		}
	}
	free(row);
	free(fits);
	return row && fits;
}
