/*
 * test_kernels.c
 *	  Every operation of every set this CPU has against ref, bit for bit; ref against plain double arithmetic; many rows
 *	  against one; worst-case integers against int64.
 *
 * Inputs come from a fixed generator. All buffers are placed so that they end at the end of their allocation (the
 * sanitizer build then sees any read or write past them) and begin at an odd offset where the type allows it.
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
#include "kernels/exp.h"
#include "kernels/int8.h"
#include "kernels/ops.h"

static size_t
type_size(Dsv3Type type)
{
	return type == DSV3_TYPE_F32 ? 4 : type == DSV3_TYPE_FP8 ? 1 : 2;
}

/* A random matrix; half and byte types start at an odd address. Free with free_weight. */
typedef struct TestWeight
{
	Dsv3Weight w;
	void *memory;
	float *scales;
} TestWeight;

static TestWeight
make_weight(Dsv3Type type, int out, int in)
{
	TestWeight t = {.w = {.type = type, .out = out, .in = in}};
	size_t n = (size_t) out * (size_t) in;
	size_t shift = type == DSV3_TYPE_F32 ? 0 : 1;
	uint8_t *data;

	t.memory = malloc(n * type_size(type) + shift);
	data = (uint8_t *) t.memory + shift;
	for (size_t i = 0; i < n; i++)
	{
		float f = rng_float();
		uint32_t bits;
		uint16_t half;

		memcpy(&bits, &f, 4);
		if (type == DSV3_TYPE_F32)
			memcpy(data + 4 * i, &f, 4);
		else if (type == DSV3_TYPE_BF16)
		{
			half = (uint16_t) (bits >> 16);
			memcpy(data + 2 * i, &half, 2);
		}
		else if (type == DSV3_TYPE_F16)
		{
			/* any finite code, subnormals among them */
			half = (uint16_t) rng();
			if ((half & 0x7c00) == 0x7c00)
				half &= 0xbfff;
			memcpy(data + 2 * i, &half, 2);
		}
		else
		{
			uint8_t code = (uint8_t) rng();

			data[i] = (code & 0x7f) == 0x7f ? 0 : code;
		}
	}
	if (type == DSV3_TYPE_FP8)
	{
		size_t blocks = (size_t) ((out + 127) / 128) * (size_t) ((in + 127) / 128);

		t.scales = malloc(blocks * sizeof(float));
		for (size_t i = 0; i < blocks; i++)
			t.scales[i] = (0.5f + (float) (rng() % 1000) / 1000.0f) * 0x1p-8f;
	}
	t.w.data = data;
	t.w.scales = t.scales;
	return t;
}

static void
free_weight(TestWeight *t)
{
	free(t->memory);
	free(t->scales);
}

static TestWeight
make_int8(int out, int in)
{
	TestWeight f = make_weight(DSV3_TYPE_F32, out, in);
	TestWeight t = {.w = {.type = DSV3_TYPE_INT8, .out = out, .in = in}};

	t.memory = aligned_alloc(64, dsv3_int8_bytes(out, in));
	dsv3_int8_pack(&f.w, 0, out, t.memory);
	t.w.data = t.memory;
	free_weight(&f);
	return t;
}

/* Prepared rows for any weight type. */
typedef struct TestRows
{
	Dsv3Rows rows;
	float *data;
	int16_t *codes;
	float *scales;
	int32_t *index;
} TestRows;

static TestRows
make_rows(int m, int in, bool with_index)
{
	TestRows t = {0};
	int stride = in + 3;
	int n = with_index ? m + 5 : m;

	t.data = floats((int64_t) n * stride);
	t.rows.data = t.data;
	t.rows.stride = stride;
	t.rows.code_stride = dsv3_int8_code_count(in);
	t.rows.scale_stride = dsv3_int8_groups(in);
	t.codes = malloc((size_t) n * (size_t) t.rows.code_stride * sizeof(int16_t));
	t.scales = malloc((size_t) n * (size_t) t.rows.scale_stride * sizeof(float));
	for (int i = 0; i < n; i++)
		dsv3_ops_ref.quantise(t.data + i * stride, in, t.codes + i * t.rows.code_stride,
							  t.scales + i * t.rows.scale_stride);
	t.rows.codes = t.codes;
	t.rows.code_scales = t.scales;
	if (with_index)
	{
		t.index = malloc((size_t) m * sizeof(int32_t));
		for (int i = 0; i < m; i++)
			t.index[i] = (int32_t) (rng() % (uint32_t) n);
		t.rows.index = t.index;
	}
	return t;
}

static void
free_rows(TestRows *t)
{
	free(t->data);
	free(t->codes);
	free(t->scales);
	free(t->index);
}

/* m rows at once, any slice, against ref; ref row by row. */
static void
check_matmul(const Dsv3Weight *w, int m, bool with_index)
{
	TestRows x = make_rows(m, w->in, with_index);
	int64_t ldy = w->out + 2;
	float *expected = malloc((size_t) (m * ldy) * sizeof(float));
	float *got = malloc((size_t) (m * ldy) * sizeof(float));
	int cut = w->type == DSV3_TYPE_INT8 ? w->out / 2 / 16 * 16 : w->out / 3;

	memset(expected, 0, (size_t) (m * ldy) * sizeof(float));
	dsv3_ops_ref.matmul(w, &x.rows, m, 0, w->out, expected, ldy);
	for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
	{
		memset(got, 0, (size_t) (m * ldy) * sizeof(float));
		(*set)->matmul(w, &x.rows, m, 0, w->out, got, ldy);
		assert_same_bits("matmul", (*set)->name, w->type * 1000 + m, expected, got, m * ldy);

		memset(got, 0, (size_t) (m * ldy) * sizeof(float));
		(*set)->matmul(w, &x.rows, m, 0, cut, got, ldy);
		(*set)->matmul(w, &x.rows, m, cut, w->out, got + cut, ldy);
		assert_same_bits("matmul in two slices", (*set)->name, w->type * 1000 + m, expected, got, m * ldy);

		for (int i = 0; i < m; i++)
		{
			Dsv3Rows one = x.rows;
			int32_t row = x.index ? x.index[i] : i;

			one.index = &row;
			(*set)->matmul(w, &one, 1, 0, w->out, got, ldy);
			assert_same_bits("matmul alone", (*set)->name, w->type * 1000 + i, expected + i * ldy, got,
							 w->out);
		}
	}
	free(expected);
	free(got);
	free_rows(&x);
}

static void
test_matmul_shapes(void **state)
{
	(void) state;
	rng_state = 1;
	for (int type = DSV3_TYPE_F32; type <= DSV3_TYPE_INT8; type++)
	{
		for (int n = 1; n <= 70; n++)
		{
			TestWeight w = type == DSV3_TYPE_INT8 ? make_int8(1 + (int) (rng() % 40), n)
												  : make_weight((Dsv3Type) type, 1 + (int) (rng() % 40), n);

			check_matmul(&w.w, 1 + (int) (rng() % 6), n % 2);
			free_weight(&w);
		}
		for (int m = 1; m <= 40; m++)
		{
			int in = 100 + (int) (rng() % 200);
			TestWeight w =
				type == DSV3_TYPE_INT8 ? make_int8(19 + m, in) : make_weight((Dsv3Type) type, 19 + m, in);

			check_matmul(&w.w, m, m % 3 == 0);
			free_weight(&w);
		}
	}
}

/* More than one column piece, more than one row block, and matrix rows in several FP8 blocks. */
static void
test_matmul_large(void **state)
{
	(void) state;
	rng_state = 2;
	for (int type = DSV3_TYPE_F32; type <= DSV3_TYPE_INT8; type++)
	{
		TestWeight w =
			type == DSV3_TYPE_INT8 ? make_int8(137, 2100) : make_weight((Dsv3Type) type, 137, 2100);

		check_matmul(&w.w, 1, false);
		check_matmul(&w.w, 70, true);
		free_weight(&w);
	}
}

/* An FP8 block scale too large for the fast decoding, up to infinity. */
static void
test_fp8_large_scale(void **state)
{
	TestWeight w = make_weight(DSV3_TYPE_FP8, 9, 300);

	(void) state;
	rng_state = 3;
	w.scales[1] = 0x1p101f;
	check_matmul(&w.w, 2, false);
	w.scales[1] = -1000.0f;
	w.scales[2] = 0x1p-140f;
	check_matmul(&w.w, 2, false);
	free_weight(&w);
}

/* Every code of the small types, by each set, and against the definition in double. */
static void
test_decode(void **state)
{
	static const Dsv3Type types[] = {DSV3_TYPE_BF16, DSV3_TYPE_F16, DSV3_TYPE_FP8};

	(void) state;
	for (int t = 0; t < 3; t++)
	{
		int n = types[t] == DSV3_TYPE_FP8 ? 256 : 65536;
		Dsv3Weight w = {.type = types[t], .out = 1, .in = n};
		float *scales = malloc((size_t) (n / 128) * sizeof(float));
		uint8_t *bytes = malloc((size_t) n * 2);
		float *expected = malloc((size_t) n * sizeof(float));
		float *got = malloc((size_t) n * sizeof(float));

		for (int i = 0; i < n; i++)
		{
			uint16_t code = (uint16_t) i;

			if (types[t] == DSV3_TYPE_FP8)
				bytes[i] = (uint8_t) i;
			else
			{
				/* signalling NaNs become quiet in hardware; infinities and NaNs are checked by class below */
				memcpy(bytes + 2 * i, &code, 2);
			}
		}
		for (int i = 0; i < n / 128; i++)
			scales[i] = 0.37f;
		w.data = bytes;
		w.scales = scales;
		dsv3_ops_ref.decode(&w, 0, expected);
		for (int i = 0; i < n; i++)
		{
			double sign, exponent, mantissa, value;

			if (types[t] == DSV3_TYPE_BF16)
				continue;
			if (types[t] == DSV3_TYPE_F16)
			{
				sign = i & 0x8000 ? -1 : 1;
				exponent = i >> 10 & 31;
				mantissa = i & 1023;
				if (exponent == 31)
					continue;
				value = exponent ? sign * (1 + mantissa / 1024) * pow(2, exponent - 15)
								 : sign * mantissa / 1024 * pow(2, -14);
			}
			else
			{
				sign = i & 0x80 ? -1 : 1;
				exponent = i >> 3 & 15;
				mantissa = i & 7;
				value = exponent ? sign * (1 + mantissa / 8) * pow(2, exponent - 7)
								 : sign * mantissa / 8 * pow(2, -6);
				value = (float) (value * (double) 0.37f);
			}
			assert_true(expected[i] == (float) value);
		}
		for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
		{
			(*set)->decode(&w, 0, got);
			for (int i = 0; i < n; i++)
			{
				if (isnan(expected[i]))
					assert_true(isnan(got[i]));
				else
					assert_same_bits("decode", (*set)->name, types[t] * 100000 + i, expected + i, got + i, 1);
			}
		}
		free(bytes);
		free(scales);
		free(expected);
		free(got);
	}
}

/* Every code, lengths with and without a tail, a scale that is not a number. */
static void
test_decode8(void **state)
{
	static const float scales[] = {0.5f, 1.0f / 3, -0.0f, NAN, 3e38f};
	int8_t codes[5 * DSV3_DECODE8_GROUP];
	float expected[5 * DSV3_DECODE8_GROUP], got[5 * DSV3_DECODE8_GROUP];

	(void) state;
	for (int k = 0; k < 5 * DSV3_DECODE8_GROUP; k++)
		codes[k] = (int8_t) (k * 37);
	for (int n = 0; n <= 5 * DSV3_DECODE8_GROUP; n++)
	{
		dsv3_ops_ref.decode8(codes, scales, n, expected);
		for (int k = 0; k < n && k < 2 * DSV3_DECODE8_GROUP; k++)
			assert_true(expected[k] == (float) codes[k] * scales[k / DSV3_DECODE8_GROUP]);
		for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
		{
			got[n < 5 * DSV3_DECODE8_GROUP ? n : 0] = 7.0f;
			(*set)->decode8(codes, scales, n, got);
			assert_same_bits("decode8", (*set)->name, n, expected, got, n);
			assert_true(n == 5 * DSV3_DECODE8_GROUP || got[n] == 7.0f);
		}
	}
}

static void
test_decode_rows(void **state)
{
	(void) state;
	rng_state = 4;
	for (int type = DSV3_TYPE_F32; type <= DSV3_TYPE_FP8; type++)
		for (int n = 1; n < 300; n += 7)
		{
			TestWeight w = make_weight((Dsv3Type) type, 3, n);
			float *expected = malloc((size_t) n * sizeof(float));
			float *got = malloc((size_t) n * sizeof(float));

			dsv3_ops_ref.decode(&w.w, 2, expected);
			for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
			{
				(*set)->decode(&w.w, 2, got);
				assert_same_bits("decode", (*set)->name, n, expected, got, n);
			}
			free(expected);
			free(got);
			free_weight(&w);
		}
}

/* The dot product is a dot product: ref against double. */
static void
test_matmul_value(void **state)
{
	TestWeight w;
	TestRows x;
	float y[5];
	float *row = malloc(777 * sizeof(float));

	(void) state;
	rng_state = 5;
	w = make_weight(DSV3_TYPE_BF16, 5, 777);
	x = make_rows(1, 777, false);
	dsv3_ops_ref.matmul(&w.w, &x.rows, 1, 0, 5, y, 5);
	for (int n = 0; n < 5; n++)
	{
		double sum = 0, size = 0;

		dsv3_ops_ref.decode(&w.w, n, row);
		for (int k = 0; k < 777; k++)
		{
			sum += (double) row[k] * (double) x.data[k];
			size += fabs((double) row[k] * (double) x.data[k]);
		}
		assert_true(fabs(sum - (double) y[n]) < 1e-6 * size);
	}
	free(row);
	free_rows(&x);
	free_weight(&w);
}

/* Largest codes everywhere: the int32 sums must not wrap. */
static void
test_int8_worst_case(void **state)
{
	enum
	{
		IN = 300,
		OUT = 17
	};
	float weights[OUT * IN];
	float x[IN];
	Dsv3Weight source = {.type = DSV3_TYPE_F32, .out = OUT, .in = IN, .data = weights};
	Dsv3Weight w = {.type = DSV3_TYPE_INT8, .out = OUT, .in = IN};
	void *packed = aligned_alloc(64, dsv3_int8_bytes(OUT, IN));
	int16_t codes[3 * 128];
	float scales[3];
	Dsv3Rows rows = {.codes = codes, .code_scales = scales, .code_stride = 384, .scale_stride = 3};

	(void) state;
	for (int n = 0; n < OUT; n++)
		for (int k = 0; k < IN; k++)
			weights[n * IN + k] = n % 2 ? 1.0f : -1.0f;
	for (int k = 0; k < IN; k++)
		x[k] = 1.0f;
	dsv3_int8_pack(&source, 0, OUT, packed);
	w.data = packed;
	for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
	{
		float y[OUT];

		(*set)->quantise(x, IN, codes, scales);
		(*set)->matmul(&w, &rows, 1, 0, OUT, y, OUT);
		for (int n = 0; n < OUT; n++)
		{
			float acc = 0.0f;

			for (int g = 0; g < 3; g++)
			{
				int64_t sum = 0;
				float scale = 0.0f;

				for (int k = g * 128; k < IN && k < g * 128 + 128; k++)
				{
					int code = dsv3_int8_code(&w, n, k, &scale);

					assert_int_equal(code, n % 2 ? 127 : -127);
					assert_int_equal(codes[k], 32767);
					sum += (int64_t) code * codes[k];
				}
				assert_true(llabs(sum) < (int64_t) 1 << 30);
				acc = fmaf((float) sum, scale * scales[g], acc);
			}
			assert_same_bits("worst case", (*set)->name, n, &acc, y + n, 1);
			assert_true(fabsf(y[n] - (n % 2 ? 300.0f : -300.0f)) < 1e-3f);
		}
	}
	free(packed);
}

/* Packing from each source type is packing of the decoded rows; the error is half a step. */
static void
test_int8_pack(void **state)
{
	(void) state;
	rng_state = 6;
	for (int type = DSV3_TYPE_F32; type <= DSV3_TYPE_FP8; type++)
	{
		TestWeight w = make_weight((Dsv3Type) type, 33, 200);
		Dsv3Weight packed = {.type = DSV3_TYPE_INT8, .out = 33, .in = 200};
		void *memory = aligned_alloc(64, dsv3_int8_bytes(33, 200));
		float row[200];

		dsv3_int8_pack(&w.w, 0, 33, memory);
		packed.data = memory;
		for (int n = 0; n < 33; n++)
		{
			dsv3_ops_ref.decode(&w.w, n, row);
			for (int k = 0; k < 200; k++)
			{
				float scale;
				int code = dsv3_int8_code(&packed, n, k, &scale);

				assert_true(fabsf(row[k] - (float) code * scale) <= 0.5001f * scale);
			}
		}
		free(memory);
		free_weight(&w);
	}
}

static void
test_quantise(void **state)
{
	(void) state;
	rng_state = 7;
	for (int n = 1; n <= 300; n++)
	{
		float *x = floats(n);
		size_t count = (size_t) dsv3_int8_code_count(n);
		int groups = dsv3_int8_groups(n);
		int16_t *expected = malloc(count * 2), *got = malloc(count * 2);
		float *scales = malloc((size_t) groups * 4), *got_scales = malloc((size_t) groups * 4);

		if (n % 5 == 0)
			x[rng() % (uint32_t) n] = n % 10 ? INFINITY : NAN;
		if (n % 7 == 0)
			for (int i = 0; i < n; i++)
				x[i] *= 0x1p-110f;
		dsv3_ops_ref.quantise(x, n, expected, scales);
		for (int k = 0; k < n; k++)
			if (isfinite(scales[k / 128]) && fabsf(x[k]) > 1e-30f)
				assert_true(fabs((double) expected[k] * (double) scales[k / 128] - (double) x[k]) <=
							0.51 * (double) scales[k / 128]);
		for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
		{
			(*set)->quantise(x, n, got, got_scales);
			assert_memory_equal(expected, got, count * 2);
			for (int g = 0; g < groups; g++)
				assert_true(isnan(scales[g]) ? isnan(got_scales[g]) : scales[g] == got_scales[g]);
		}
		free(x);
		free(expected);
		free(got);
		free(scales);
		free(got_scales);
	}
}

static void
test_matmul_t(void **state)
{
	(void) state;
	rng_state = 8;
	for (int type = DSV3_TYPE_F32; type <= DSV3_TYPE_FP8; type++)
		for (int n = 1; n <= 300; n += n < 70 ? 1 : 23)
		{
			int rows = 1 + (int) (rng() % 150);
			int row0 = (int) (rng() % 140);
			int m = 1 + (int) (rng() % (n == 70 ? 80 : 9));
			int64_t ldx = rows + 1, ldy = n + 2;
			TestWeight w = make_weight((Dsv3Type) type, row0 + rows, n);
			float *x = floats(m * ldx);
			float *expected = calloc((size_t) (m * ldy), sizeof(float));
			float *got = calloc((size_t) (m * ldy), sizeof(float));

			dsv3_ops_ref.matmul_t(&w.w, row0, rows, x, ldx, m, expected, ldy);
			for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
			{
				(*set)->matmul_t(&w.w, row0, rows, x, ldx, m, got, ldy);
				assert_same_bits("matmul_t", (*set)->name, type * 1000 + n, expected, got, m * ldy);
			}
			free(x);
			free(expected);
			free(got);
			free_weight(&w);
		}
}

static void
test_elementwise(void **state)
{
	(void) state;
	rng_state = 9;
	for (int n = 1; n <= 200; n++)
	{
		float *x = floats(n), *w = floats(n), *y0 = floats(n);
		size_t bytes = (size_t) n * sizeof(float);
		float *expected = malloc(bytes), *got = malloc(bytes);

		for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
		{
			const Dsv3Ops *ops = *set;

			dsv3_ops_ref.rmsnorm(x, w, 1e-6f, n, expected);
			ops->rmsnorm(x, w, 1e-6f, n, got);
			assert_same_bits("rmsnorm", ops->name, n, expected, got, n);
			memcpy(got, x, bytes);
			ops->rmsnorm(got, w, 1e-6f, n, got);
			assert_same_bits("rmsnorm in place", ops->name, n, expected, got, n);

			dsv3_ops_ref.silu_mul(x, w, n, expected);
			ops->silu_mul(x, w, n, got);
			assert_same_bits("silu_mul", ops->name, n, expected, got, n);

			memcpy(expected, y0, bytes);
			memcpy(got, y0, bytes);
			dsv3_ops_ref.axpy(1.7f, x, n, expected);
			ops->axpy(1.7f, x, n, got);
			assert_same_bits("axpy", ops->name, n, expected, got, n);

			dsv3_ops_ref.sigmoid(x, n, expected);
			ops->sigmoid(x, n, got);
			assert_same_bits("sigmoid", ops->name, n, expected, got, n);

			dsv3_ops_ref.softmax(x, n, expected);
			ops->softmax(x, n, got);
			assert_same_bits("softmax", ops->name, n, expected, got, n);
		}
		free(x);
		free(w);
		free(y0);
		free(expected);
		free(got);
	}
}

/* rmsnorm, sigmoid and softmax against double. */
static void
test_elementwise_value(void **state)
{
	float x[100], w[100], y[100];
	double square = 0, sum = 0;

	(void) state;
	rng_state = 10;
	for (int i = 0; i < 100; i++)
	{
		x[i] = rng_float();
		w[i] = rng_float();
		square += (double) x[i] * (double) x[i];
	}
	dsv3_ops_ref.rmsnorm(x, w, 1e-5f, 100, y);
	for (int i = 0; i < 100; i++)
	{
		double e = (double) w[i] * (double) x[i] / sqrt(square / 100 + 1e-5);

		assert_true(fabs((double) y[i] - e) <= 1e-6 * fabs(e));
	}
	for (int i = 0; i < 100; i++)
		sum += exp((double) x[i] - 100.0);
	dsv3_ops_ref.softmax(x, 100, y);
	for (int i = 0; i < 100; i++)
	{
		double e = exp((double) x[i] - 100.0) / sum;

		assert_true(fabs((double) y[i] - e) <= 1e-6 * e + 1e-44);
	}
	dsv3_ops_ref.sigmoid(x, 100, y);
	for (int i = 0; i < 100; i++)
		assert_true(fabs((double) y[i] - 1 / (1 + exp(-(double) x[i]))) < 1e-6);
}

/* exp within 1 ulp of the C library's double, over its whole range, subnormal results included. */
static void
test_exp(void **state)
{
	double worst = 0;

	(void) state;
	for (int i = -400000; i <= 400000; i++)
	{
		float x = (float) i * 0.0002601f;
		double e = exp((double) x);
		float got = dsv3_expf(x);
		double ulp = e < 0x1p-126 ? 0x1p-149 : ldexp(1, ilogb(e) - 23);

		if (e >= 0x1.ffffffp127)
		{
			assert_true(isinf(got));
			continue;
		}
		worst = fmax(worst, fabs((double) got - e) / ulp);
	}
	assert_true(worst < 1.1);
	assert_true(dsv3_expf(0.0f) == 1.0f);
	assert_true(dsv3_expf(-INFINITY) == 0.0f);
	assert_true(isinf(dsv3_expf(INFINITY)));
	assert_true(isnan(dsv3_expf(NAN)));
}

/* Attention over three blocks, queries that see different numbers of positions, against ref and against plain softmax. */
static void
test_attend(void **state)
{
	(void) state;
	rng_state = 11;
	for (int round = 0; round < 60; round++)
	{
		int width = 1 + (int) (rng() % 90), value_width = 1 + (int) (rng() % 80);
		int n = round == 0 ? 70 : 1 + (int) (rng() % 20);
		int key_stride = width + 3, z_stride = value_width + 1;
		int value_stride = value_width + 2;
		float *q = floats(n * width);
		float *keys = floats(96 * key_stride), *values = floats(96 * value_stride);
		int32_t *seen = malloc((size_t) n * sizeof(int32_t));
		int32_t *visible = malloc((size_t) n * sizeof(int32_t));
		float *z_ref = NULL;

		for (int i = 0; i < n; i++)
			seen[i] = 1 + (int32_t) (round % 2 ? rng() % 96 : (uint32_t) (60 + i / 4) % 96);
		for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
		{
			float *max = malloc((size_t) n * sizeof(float)), *sum = calloc((size_t) n, sizeof(float));
			float *z = calloc((size_t) (n * z_stride), sizeof(float));

			for (int i = 0; i < n; i++)
				max[i] = -INFINITY;
			for (int b = 0; b < 3; b++)
			{
				Dsv3Attend a = {.width = width,
								.value_width = value_width,
								.scale = 0.3f,
								.keys = keys + b * 32 * key_stride,
								.key_stride = key_stride,
								.values = values + b * 32 * value_stride,
								.value_stride = value_stride,
								.n_queries = n,
								.q = q,
								.q_stride = width,
								.visible = visible,
								.max = max,
								.sum = sum,
								.z = z,
								.z_stride = z_stride};

				for (int i = 0; i < n; i++)
					visible[i] = seen[i] <= b * 32 ? 0 : seen[i] - b * 32 > 32 ? 32 : seen[i] - b * 32;
				(*set)->attend(&a);
			}
			for (int i = 0; i < n; i++)
				for (int k = 0; k < value_width; k++)
					z[i * z_stride + k] /= sum[i];
			if (!z_ref)
			{
				z_ref = z;
				for (int i = 0; i < n; i++)
				{
					double top = -INFINITY, total = 0, expected = 0, size = 0;

					for (int pass = 0; pass < 2; pass++)
						for (int t = 0; t < seen[i]; t++)
						{
							double s = 0;

							for (int k = 0; k < width; k++)
								s += (double) q[i * width + k] * (double) keys[t * key_stride + k];
							s *= (double) 0.3f;
							if (pass == 0)
								top = fmax(top, s);
							else
							{
								total += exp(s - top);
								expected += exp(s - top) * (double) values[t * value_stride];
								size += exp(s - top) * fabs((double) values[t * value_stride]);
							}
						}
					assert_true(fabs((double) z[i * z_stride] - expected / total) <=
								0.01 * size / total + 1e-6);
				}
			}
			else
			{
				assert_same_bits("attend", (*set)->name, round, z_ref, z, n * z_stride);
				free(z);
			}
			free(max);
			free(sum);
		}
		free(z_ref);
		free(q);
		free(keys);
		free(values);
		free(seen);
		free(visible);
	}
}

static void
route(const Dsv3RouteParams *params, const float *scores, const float *bias, const int *expected)
{
	int32_t chosen[16];
	float weights[16], scratch[3 * 16];
	float total = 0.0f;

	dsv3_route(params, scores, bias, chosen, weights, scratch);
	for (int k = 0; k < params->n_chosen; k++)
	{
		assert_int_equal(chosen[k], expected[k]);
		total += scores[chosen[k]];
	}
	for (int k = 0; k < params->n_chosen; k++)
	{
		float w = scores[chosen[k]];

		if (params->normalise)
			w /= total + 1e-20f;
		assert_true(weights[k] == w * params->scaling);
	}
}

static void
test_route(void **state)
{
	const float scores[8] = {0.9f, 0.1f, 0.6f, 0.6f, 0.5f, 0.65f, 0.2f, 0.3f};
	const float equal[8] = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
	const float negative[8] = {-3, -3, -2, -2, -3, -3, -3, -3};
	const float with_nan[8] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
	Dsv3RouteParams v3 = {.n_experts = 8,
						  .n_chosen = 2,
						  .n_group = 4,
						  .topk_group = 2,
						  .group_top2 = true,
						  .masked_score = -INFINITY,
						  .normalise = true,
						  .scaling = 2.5f};
	Dsv3RouteParams v2 = v3;
	Dsv3RouteParams plain = {.n_experts = 8, .n_chosen = 3, .n_group = 1, .scaling = 1.0f};
	int32_t chosen[8];
	float weights[8], scratch[24];

	(void) state;
	v2.group_top2 = false;
	v2.masked_score = 0.0f;
	v2.normalise = false;
	/* group sums 1.0, 1.2, 1.15, 0.5: the best expert, 0, is in no chosen group */
	route(&v3, scores, NULL, (const int[]){5, 2});
	/* group maxima 0.9, 0.6, 0.65, 0.3 */
	route(&v2, scores, NULL, (const int[]){0, 5});
	route(&plain, scores, NULL, (const int[]){0, 5, 2});
	/* ties: lowest first */
	route(&plain, equal, NULL, (const int[]){0, 1, 2});
	route(&v3, equal, NULL, (const int[]){0, 1});
	/* negative biased scores: a masked expert must not win with 0; weights stay the unbiased scores */
	route(&v3, scores, negative, (const int[]){2, 3});
	/* all of the group chosen, in falling order */
	v3.n_chosen = 4;
	route(&v3, scores, NULL, (const int[]){5, 2, 3, 4});
	dsv3_route(&v3, with_nan, NULL, chosen, weights, scratch);
	for (int k = 0; k < 4; k++)
		assert_in_range(chosen[k], 0, 7);
}

static void
test_find(void **state)
{
	Dsv3Error err;

	(void) state;
	assert_string_equal(dsv3_ops_find("ref", &err)->name, "ref");
	assert_non_null(dsv3_ops_find(NULL, &err));
	assert_null(dsv3_ops_find("sse9", &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_INVALID_PARAMETER);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_find),
		cmocka_unit_test(test_decode),
		cmocka_unit_test(test_decode8),
		cmocka_unit_test(test_decode_rows),
		cmocka_unit_test(test_matmul_shapes),
		cmocka_unit_test(test_matmul_large),
		cmocka_unit_test(test_fp8_large_scale),
		cmocka_unit_test(test_matmul_value),
		cmocka_unit_test(test_int8_worst_case),
		cmocka_unit_test(test_int8_pack),
		cmocka_unit_test(test_quantise),
		cmocka_unit_test(test_matmul_t),
		cmocka_unit_test(test_elementwise),
		cmocka_unit_test(test_elementwise_value),
		cmocka_unit_test(test_exp),
		cmocka_unit_test(test_attend),
		cmocka_unit_test(test_route),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
