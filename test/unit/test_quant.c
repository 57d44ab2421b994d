/*
 * test_quant.c
 *	  The group types A4 and S6: layout byte by byte, quality of the quantisation, and the products of every set against ref,
 *	  bit for bit, with random and with the worst possible codes.
 *
 * Products are tested on random bytes, not on packed numbers: every code, scale and minimum a file can hold must give ref's
 * bits. Buffers end at the end of their allocation.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernel_util.h"
#include "kernels/ops.h"
#include "kernels/quant.h"

static const Dsv3Type quant_types[] = {DSV3_TYPE_A4, DSV3_TYPE_S6};

#define N_QUANT_TYPES 2

/* A matrix of random bytes with sensible row scales. The memory belongs to w->data. */
static Dsv3Weight
random_quant(Dsv3Type type, int out, int in)
{
	size_t bytes = dsv3_packed_bytes(type, out, in);
	size_t panel = dsv3_panel_bytes(type, in);
	uint8_t *data = aligned_alloc(64, bytes);

	assert_int_equal(bytes % 64, 0);
	for (size_t i = 0; i < bytes; i++)
		data[i] = (uint8_t) rng();
	for (size_t p = panel; p <= bytes; p += panel)
		for (size_t i = 0; i < 16; i++)
		{
			float scale = (0.5f + (float) (rng() % 1000) / 1000.0f) * 0x1p-12f;

			memcpy(data + p - 64 + 4 * i, &scale, 4);
		}
	return (Dsv3Weight){.type = type, .out = out, .in = in, .data = data};
}

static void
free_quant(Dsv3Weight *w)
{
	free((void *) w->data);
}

/* Input rows with codes, some picked by index. */
typedef struct QuantRows
{
	Dsv3Rows rows;
	Dsv3CodeBlock *blocks;
	int32_t *index;
} QuantRows;

static QuantRows
make_rows(int m, int in, bool with_index)
{
	int n = with_index ? m + 3 : m;
	int n_blocks = dsv3_code_blocks(in);
	QuantRows r = {.blocks = malloc((size_t) n * (size_t) n_blocks * sizeof(Dsv3CodeBlock))};
	float *x = floats((int64_t) n * in);

	for (int i = 0; i < n; i++)
		dsv3_ops_ref.quantise8(x + (int64_t) i * in, in, r.blocks + (size_t) i * (size_t) n_blocks);
	free(x);
	r.rows.blocks = r.blocks;
	r.rows.block_stride = n_blocks;
	if (with_index)
	{
		r.index = malloc((size_t) m * sizeof(int32_t));
		for (int i = 0; i < m; i++)
			r.index[i] = (int32_t) (rng() % (uint32_t) n);
		r.rows.index = r.index;
	}
	return r;
}

static void
free_rows(QuantRows *r)
{
	free(r->blocks);
	free(r->index);
}

/* All sets, whole and in two slices, against ref. */
static void
check_product(const Dsv3Weight *w, const Dsv3Rows *x, int m)
{
	int64_t ldy = w->out + 1;
	size_t bytes = (size_t) (m * ldy) * sizeof(float);
	float *expected = malloc(bytes);
	float *got = malloc(bytes);
	int cut = (int) (rng() % ((uint32_t) w->out / 16 + 1)) * 16;

	memset(expected, 0x5a, bytes);
	dsv3_ops_ref.matmul(w, x, m, 0, w->out, expected, ldy);
	for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
	{
		memset(got, 0x5a, bytes);
		(*set)->matmul(w, x, m, 0, w->out, got, ldy);
		assert_same_bits("product", (*set)->name, w->type * 1000 + m, expected, got, m * ldy);
		memset(got, 0x5a, bytes);
		if (cut > 0)
			(*set)->matmul(w, x, m, 0, cut, got, ldy);
		if (cut < w->out)
			(*set)->matmul(w, x, m, cut, w->out, got + cut, ldy);
		assert_same_bits("product in two slices", (*set)->name, w->type * 1000 + m, expected, got, m * ldy);
	}
	free(expected);
	free(got);
}

static void
test_products(void **state)
{
	(void) state;
	rng_state = 1;
	for (int t = 0; t < N_QUANT_TYPES; t++)
	{
		/* ragged widths and heights */
		for (int round = 0; round < 150; round++)
		{
			int in = 1 + (int) (rng() % 700), out = 1 + (int) (rng() % 150), m = 1 + (int) (rng() % 20);
			Dsv3Weight w = random_quant(quant_types[t], out, in);
			QuantRows x = make_rows(m, in, round % 3 == 0);

			check_product(&w, &x.rows, m);
			free_quant(&w);
			free_rows(&x);
		}
		/* every number of rows */
		for (int m = 1; m <= 70; m++)
		{
			Dsv3Weight w = random_quant(quant_types[t], 16 + m, 32 * (1 + m % 9));
			QuantRows x = make_rows(m, w.in, m % 2);

			check_product(&w, &x.rows, m);
			free_quant(&w);
			free_rows(&x);
		}
		/* enough for several slabs and several blocks of rows */
		for (int m = 1; m <= 150; m += m < 6 ? 1 : 70)
		{
			Dsv3Weight w = random_quant(quant_types[t], 70, 1440);
			QuantRows x = make_rows(m, w.in, m % 2);

			check_product(&w, &x.rows, m);
			free_quant(&w);
			free_rows(&x);
		}
	}
}

/* A row's result does not depend on its neighbours: ref's own rows one by one are ref's batch by construction, and
 * check_product compares sets with ref; here one set alone, a row against itself in batches of every size. */
static void
test_batches(void **state)
{
	(void) state;
	rng_state = 2;
	for (int t = 0; t < N_QUANT_TYPES; t++)
		for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
		{
			Dsv3Weight w = random_quant(quant_types[t], 48, 608);
			QuantRows x = make_rows(40, 608, false);
			float alone[40 * 48], together[40 * 48];

			for (int i = 0; i < 40; i++)
			{
				int32_t index = i;
				Dsv3Rows one = x.rows;

				one.index = &index;
				(*set)->matmul(&w, &one, 1, 0, 48, alone + i * 48, 48);
			}
			for (int m = 1; m <= 40; m++)
			{
				(*set)->matmul(&w, &x.rows, m, 0, 48, together, 48);
				assert_same_bits("batch", (*set)->name, m, alone, together, m * 48);
			}
			free_quant(&w);
			free_rows(&x);
		}
}

/* The largest sums the formats allow: all codes, scales, minima and activations at an end of their range. */
static void
test_worst_case(void **state)
{
	static const uint8_t fills[] = {0x00, 0xff, 0x0f, 0xf0, 0x7f, 0x80};

	(void) state;
	rng_state = 3;
	for (int t = 0; t < N_QUANT_TYPES; t++)
		for (int codes = 0; codes < 4; codes++)
			for (int tail = 0; tail < 6; tail++)
				for (int sign = 0; sign < 3; sign++)
				{
					int in = 288;
					Dsv3Weight w = random_quant(quant_types[t], 32, in);
					size_t unit = quant_types[t] == DSV3_TYPE_A4 ? DSV3_A4_UNIT : DSV3_S6_UNIT;
					size_t panel = dsv3_panel_bytes(w.type, in);
					QuantRows x = make_rows(17, in, false);
					float *row = malloc((size_t) in * sizeof(float));

					for (int p = 0; p < 2; p++)
					{
						uint8_t *at = (uint8_t *) w.data + (size_t) p * panel;

						for (int left = in / 32; left > 0; left -= 4)
						{
							size_t bytes = (size_t) (left < 4 ? left : 4) * unit;

							memset(at, fills[codes], bytes);
							memset(at + bytes, fills[tail], DSV3_BLOCK_TAIL);
							if (tail > 3) /* the largest scales with either end of the minima */
								memset(at + bytes, 0xff, 64);
							at += bytes + DSV3_BLOCK_TAIL;
						}
					}
					for (int i = 0; i < 17; i++)
					{
						for (int k = 0; k < in; k++)
							row[k] = sign == 0 ? 1.0f : sign == 1 ? -1.0f : (k + i) % 2 ? 1.0f : -1.0f;
						dsv3_ops_ref.quantise8(row, in, x.blocks + i * x.rows.block_stride);
					}
					check_product(&w, &x.rows, 1);
					check_product(&w, &x.rows, 17);
					free(row);
					free_quant(&w);
					free_rows(&x);
				}
}

/* ref is what the contract says: an int64 sum of exact parts, then the float chain. */
static void
test_contract(void **state)
{
	(void) state;
	rng_state = 4;
	for (int t = 0; t < N_QUANT_TYPES; t++)
	{
		Dsv3Weight w = random_quant(quant_types[t], 20, 300);
		QuantRows x = make_rows(2, 300, false);
		float y[2 * 20];

		dsv3_ops_ref.matmul(&w, &x.rows, 2, 0, 20, y, 20);
		for (int i = 0; i < 2; i++)
			for (int n = 0; n < 20; n++)
			{
				float acc = 0.0f;

				for (int b = 0; b < 3; b++)
				{
					const Dsv3CodeBlock *block = &x.blocks[i * 3 + b];
					int64_t sum = 0;

					for (int k = b * 128; k < 300 && k < b * 128 + 128; k++)
					{
						Dsv3Quant q = dsv3_quant_at(&w, n, k);

						sum += (int64_t) (q.scale * q.code + q.offset) * block->codes[k - b * 128];
					}
					assert_true(llabs(sum) < (int64_t) 1 << 27);
					acc = fmaf((float) sum, block->scale, acc);
				}
				acc *= dsv3_quant_at(&w, n, 0).row_scale;
				assert_same_bits("contract", "ref", n, &acc, y + i * 20 + n, 1);
			}
		free_quant(&w);
		free_rows(&x);
	}
}

/* The places quant.h names, for columns in every part of a matrix with a short last block. */
static void
test_layout(void **state)
{
	(void) state;
	rng_state = 5;
	assert_int_equal(dsv3_panel_bytes(DSV3_TYPE_A4, 128), 1152 + 64);
	assert_int_equal(dsv3_panel_bytes(DSV3_TYPE_S6, 128), 1664 + 64);
	assert_int_equal(dsv3_packed_bytes(DSV3_TYPE_A4, 17, 576), 2 * (4 * 1152 + 512 + 128 + 64));
	for (int t = 0; t < N_QUANT_TYPES; t++)
	{
		bool a4 = quant_types[t] == DSV3_TYPE_A4;
		Dsv3Weight w = random_quant(quant_types[t], 37, 300);
		size_t panel = dsv3_panel_bytes(w.type, 300);

		for (int row = 0; row < 37; row++)
			for (int k = 0; k < 300; k++)
			{
				const uint8_t *p = (const uint8_t *) w.data + (size_t) (row / 16) * panel;
				size_t r = (size_t) (row % 16), kb = (size_t) k % 128;
				const uint8_t *block = p + (size_t) (k / 128) * (a4 ? 1152 : 1664);
				size_t code_bytes = k / 128 < 2 ? (a4 ? 1024 : 1536) : 2 * (a4 ? 256 : 384);
				const uint8_t *tail = block + code_bytes;
				Dsv3Quant q = dsv3_quant_at(&w, row, k);
				float row_scale;
				int code;

				memcpy(&row_scale, p + panel - 64 + 4 * r, 4);
				assert_true(q.row_scale == row_scale);
				if (a4)
				{
					code = block[kb / 8 * 64 + 4 * r + kb % 4];
					assert_int_equal(q.code, kb % 8 < 4 ? code & 15 : code >> 4);
					assert_int_equal(q.scale, tail[kb / 32 * 16 + r]);
					assert_int_equal(q.offset, 8 * (int8_t) tail[64 + kb / 64 * 32 + 2 * r + kb / 32 % 2]);
				}
				else
				{
					const uint8_t *group = block + kb / 16 * 192;
					int high = group[128 + 4 * r + kb % 4] >> kb % 16 / 4 * 2 & 3;

					code = group[kb % 16 / 8 * 64 + 4 * r + kb % 4];
					assert_int_equal(q.code, (kb % 8 < 4 ? code & 15 : code >> 4) + 16 * high - 32);
					assert_int_equal(q.scale, tail[kb / 16 * 16 + r]);
					assert_int_equal(q.offset, 0);
				}
			}
		free_quant(&w);
	}
}

/* About normal, rows of different sizes. */
static float *
normal_rows(int out, int in)
{
	float *x = malloc((size_t) out * (size_t) in * sizeof(float));

	for (int i = 0; i < out * in; i++)
	{
		float sum = 0.0f;

		for (int j = 0; j < 12; j++)
			sum += (float) (rng() % 65536) / 65536.0f - 0.5f;
		x[i] = sum * (float) (1 + i / in % 7);
	}
	return x;
}

/* Weighted relative error of a packed matrix. */
static double
packed_error(Dsv3Type type, const float *x, int out, int in, const float *importance, const float *weigh)
{
	Dsv3Weight src = {.type = DSV3_TYPE_F32, .out = out, .in = in, .data = x};
	void *data = aligned_alloc(64, dsv3_packed_bytes(type, out, in));
	Dsv3Weight w = {.type = type, .out = out, .in = in, .data = data};
	float *row = malloc((size_t) in * sizeof(float));
	double error = 0, size = 0;

	assert_true(dsv3_pack_rows(type, &src, 0, out, importance, data));
	for (int n = 0; n < out; n++)
	{
		dsv3_unpack_row(&w, n, row);
		for (int k = 0; k < in; k++)
		{
			double v = weigh ? (double) weigh[k] : 1.0;
			double d = (double) row[k] - (double) x[n * in + k];

			error += v * d * d;
			size += v * (double) x[n * in + k] * (double) x[n * in + k];
		}
	}
	free(row);
	free(data);
	return sqrt(error / size);
}

static void
test_quality(void **state)
{
	enum
	{
		OUT = 64,
		IN = 500
	};
	float *x, importance[IN];
	double plain, weighted;

	(void) state;
	rng_state = 6;
	x = normal_rows(OUT, IN);
	assert_in_range((int) (packed_error(DSV3_TYPE_A4, x, OUT, IN, NULL, NULL) * 1e4), 600, 730);
	assert_in_range((int) (packed_error(DSV3_TYPE_S6, x, OUT, IN, NULL, NULL) * 1e4), 130, 170);
	assert_in_range((int) (packed_error(DSV3_TYPE_INT8, x, OUT, IN, NULL, NULL) * 1e4), 50, 80);

	/* a few columns that matter more lose less when that is known */
	for (int k = 0; k < IN; k++)
		importance[k] = rng() % 8 == 0 ? 25.0f : 1.0f;
	for (int t = 0; t < N_QUANT_TYPES; t++)
	{
		plain = packed_error(quant_types[t], x, OUT, IN, NULL, importance);
		weighted = packed_error(quant_types[t], x, OUT, IN, importance, importance);
		assert_true(weighted < 0.93 * plain);
	}
	free(x);
}

/* Packing part by part is packing; zeros stay zeros; what is not a number harms nobody else. */
static void
test_packing(void **state)
{
	enum
	{
		OUT = 53,
		IN = 170
	};
	float *x;

	(void) state;
	rng_state = 7;
	x = normal_rows(OUT, IN);
	memset(x + 3 * IN, 0, IN * sizeof(float));
	for (int k = 0; k < IN; k++)
		x[4 * IN + k] = 0.75f;
	x[5 * IN + 7] = NAN;
	x[5 * IN + 8] = INFINITY;
	x[5 * IN + 9] = -3e38f;
	for (int k = 0; k < IN; k++)
		x[6 * IN + k] *= 0x1p-120f;
	for (int type = DSV3_TYPE_INT8; type < DSV3_N_TYPES; type++)
	{
		Dsv3Weight src = {.type = DSV3_TYPE_F32, .out = OUT, .in = IN, .data = x};
		size_t bytes = dsv3_packed_bytes((Dsv3Type) type, OUT, IN);
		size_t panel = dsv3_panel_bytes((Dsv3Type) type, IN);
		uint8_t *whole = aligned_alloc(64, bytes), *parts = aligned_alloc(64, bytes);
		Dsv3Weight w = {.type = (Dsv3Type) type, .out = OUT, .in = IN, .data = whole};
		float row[IN];

		assert_true(dsv3_pack_rows((Dsv3Type) type, &src, 0, OUT, NULL, whole));
		memset(parts, 0xee, bytes);
		assert_true(dsv3_pack_rows((Dsv3Type) type, &src, 0, 32, NULL, parts));
		assert_true(dsv3_pack_rows((Dsv3Type) type, &src, 32, OUT - 32, NULL, parts + 2 * panel));
		assert_memory_equal(whole, parts, bytes);
		dsv3_unpack_row(&w, 3, row);
		for (int k = 0; k < IN; k++)
			assert_true(row[k] == 0.0f);
		dsv3_unpack_row(&w, 4, row);
		for (int k = 0; k < IN; k++)
			assert_true(fabsf(row[k] - 0.75f) < 0.01f);
		if (type != DSV3_TYPE_INT8)
		{
			dsv3_unpack_row(&w, 5, row);
			for (int k = 0; k < IN; k++)
				assert_true(fabsf(row[k] - (k >= 7 && k <= 9 ? 0.0f : x[5 * IN + k])) < 4.0f);
			dsv3_unpack_row(&w, 6, row);
			for (int k = 0; k < IN; k++)
				assert_true(row[k] == 0.0f);
		}
		free(whole);
		free(parts);
	}
	free(x);
}

static void
test_quantise8(void **state)
{
	(void) state;
	rng_state = 8;
	for (int n = 1; n <= 400; n++)
	{
		float *x = floats(n);
		int n_blocks = dsv3_code_blocks(n);
		size_t bytes = (size_t) n_blocks * sizeof(Dsv3CodeBlock);
		Dsv3CodeBlock *expected = malloc(bytes), *got = malloc(bytes);

		if (n % 5 == 0)
			x[rng() % (uint32_t) n] = n % 10 ? INFINITY : NAN;
		if (n % 7 == 0)
			for (int i = 0; i < n; i++)
				x[i] *= 0x1p-110f;
		dsv3_ops_ref.quantise8(x, n, expected);
		for (int b = 0; b < n_blocks; b++)
		{
			int sum[4] = {0}, start[8][2] = {{0}};

			for (int k = 0; k < 128; k++)
			{
				int code = expected[b].codes[k];

				sum[k / 32] += 8 * code;
				start[k / 16][k % 4 / 2] -= 32 * code;
				if (b * 128 + k >= n)
					assert_int_equal(code, 0);
				else if (isfinite(expected[b].scale) && fabsf(x[b * 128 + k]) > 1e-30f)
					assert_true(fabsf((float) code * expected[b].scale - x[b * 128 + k]) <=
								0.501f * expected[b].scale);
			}
			for (int g = 0; g < 4; g++)
				assert_int_equal(expected[b].sum[g], sum[g]);
			for (int g = 0; g < 16; g++)
				assert_int_equal(expected[b].start[g / 2][g % 2], start[g / 2][g % 2]);
		}
		for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
		{
			memset(got, 0xee, bytes);
			(*set)->quantise8(x, n, got);
			for (int b = 0; b < n_blocks; b++)
			{
				if (isnan(expected[b].scale))
				{
					assert_true(isnan(got[b].scale));
					got[b].scale = expected[b].scale;
				}
			}
			assert_memory_equal(expected, got, bytes);
		}
		free(x);
		free(expected);
		free(got);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_layout),  cmocka_unit_test(test_contract),   cmocka_unit_test(test_quantise8),
		cmocka_unit_test(test_packing), cmocka_unit_test(test_quality),    cmocka_unit_test(test_products),
		cmocka_unit_test(test_batches), cmocka_unit_test(test_worst_case),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
