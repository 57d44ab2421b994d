/*
 * ops_ref.c
 *	  The scalar set: the bit contract of ops.h written down as plainly as possible. Slow, and meant to be read.
 *
 * fmaf() is the correctly rounded fused multiply-add of the C library; the compiler may not fuse anything by itself
 * (-ffp-contract=off). Weights are read through memcpy because a mapped file aligns nothing.
 */
#include <math.h>
#include <string.h>

#include "kernels/exp.h"
#include "kernels/int8.h"
#include "kernels/ops.h"
#include "kernels/quant.h"

/* Sum of 16 lanes in the fixed order. */
static float
tree16(float *lane)
{
	for (int half = DSV3_LANES / 2; half > 0; half /= 2)
		for (int l = 0; l < half; l++)
			lane[l] += lane[l + half];
	return lane[0];
}

static float
dot(const float *a, const float *b, int n)
{
	float lane[DSV3_LANES] = {0};
	int padded = (n + DSV3_LANES - 1) / DSV3_LANES * DSV3_LANES;

	for (int k = 0; k < padded; k++)
	{
		float *acc = &lane[k % DSV3_LANES];

		*acc = k < n ? fmaf(a[k], b[k], *acc) : fmaf(0.0f, 0.0f, *acc);
	}
	return tree16(lane);
}

static float
bf16_value(uint16_t code)
{
	uint32_t bits = (uint32_t) code << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static float
f16_value(uint16_t code)
{
	int exponent = code >> 10 & 31;
	int mantissa = code & 1023;
	float f;

	if (exponent == 31)
		f = mantissa ? NAN : INFINITY;
	else if (exponent == 0)
		f = ldexpf((float) mantissa, -24);
	else
		f = ldexpf((float) (1024 + mantissa), exponent - 25);
	return code & 0x8000 ? -f : f;
}

/* E4M3 with exponent bias 7; codes 0x7f and 0xff (NaN) follow the same formula. */
static float
fp8_value(uint8_t code)
{
	int exponent = code >> 3 & 15;
	int mantissa = code & 7;
	float f = exponent ? ldexpf((float) (8 + mantissa), exponent - 10) : ldexpf((float) mantissa, -9);

	return code & 0x80 ? -f : f;
}

static float
weight_value(const Dsv3Weight *w, int row, int column)
{
	const uint8_t *data = w->data;
	size_t i = (size_t) row * (size_t) w->in + (size_t) column;
	uint16_t half;
	float f;

	switch (w->type)
	{
		case DSV3_TYPE_F32:
			memcpy(&f, data + 4 * i, 4);
			return f;
		case DSV3_TYPE_BF16:
			memcpy(&half, data + 2 * i, 2);
			return bf16_value(half);
		case DSV3_TYPE_F16:
			memcpy(&half, data + 2 * i, 2);
			return f16_value(half);
		case DSV3_TYPE_FP8:
			return fp8_value(data[i]) *
				   w->scales[(size_t) (row / 128) * (size_t) ((w->in + 127) / 128) + (size_t) (column / 128)];
		case DSV3_TYPE_INT8:
		case DSV3_TYPE_A4:
		case DSV3_TYPE_S6:
			break;
	}
	return 0.0f;
}

static void
ref_decode(const Dsv3Weight *w, int row, float *y)
{
	for (int k = 0; k < w->in; k++)
		y[k] = weight_value(w, row, k);
}

static void
matmul_int8(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy)
{
	for (int i = 0; i < m; i++)
	{
		int64_t row = x->index ? x->index[i] : i;
		const int16_t *codes = x->codes + row * x->code_stride;
		const float *scales = x->code_scales + row * x->scale_stride;

		for (int n = n0; n < n1; n++)
		{
			float acc = 0.0f;

			for (int g = 0; g < dsv3_int8_groups(w->in); g++)
			{
				float scale = 0.0f;
				int32_t sum = 0;

				for (int k = g * DSV3_INT8_GROUP; k < w->in && k < (g + 1) * DSV3_INT8_GROUP; k++)
					sum += codes[k] * dsv3_int8_code(w, n, k, &scale);
				acc = fmaf((float) sum, scale * scales[g], acc);
			}
			y[i * ldy + (n - n0)] = acc;
		}
	}
}

/* A block of a matrix row is decoded once for all input rows; y holds the unfinished sums. */
static void
matmul_quant(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy)
{
	int n_blocks = dsv3_code_blocks(w->in);

	for (int n = n0; n < n1; n++)
	{
		float row_scale = dsv3_quant_at(w, n, 0).row_scale;

		for (int b = 0; b < n_blocks; b++)
		{
			int k0 = b * DSV3_BLOCK;
			int count = w->in - k0 < DSV3_BLOCK ? w->in - k0 : DSV3_BLOCK;
			int32_t exact[DSV3_BLOCK];

			for (int k = 0; k < count; k++)
			{
				Dsv3Quant q = dsv3_quant_at(w, n, k0 + k);

				exact[k] = q.scale * q.code + q.offset;
			}
			for (int i = 0; i < m; i++)
			{
				const Dsv3CodeBlock *block = x->blocks + (x->index ? x->index[i] : i) * x->block_stride + b;
				float *acc = &y[i * ldy + (n - n0)];
				int32_t sum = 0;

				for (int k = 0; k < count; k++)
					sum += exact[k] * block->codes[k];
				*acc = fmaf((float) sum, block->scale, b == 0 ? 0.0f : *acc);
			}
		}
		for (int i = 0; i < m; i++)
			y[i * ldy + (n - n0)] *= row_scale;
	}
}

static void
ref_matmul(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy)
{
	if (w->type == DSV3_TYPE_INT8)
	{
		matmul_int8(w, x, m, n0, n1, y, ldy);
		return;
	}
	if (dsv3_type_is_packed(w->type))
	{
		matmul_quant(w, x, m, n0, n1, y, ldy);
		return;
	}
	for (int i = 0; i < m; i++)
	{
		const float *row = x->data + (x->index ? x->index[i] : i) * x->stride;

		for (int n = n0; n < n1; n++)
		{
			float lane[DSV3_LANES] = {0};
			int padded = (w->in + DSV3_LANES - 1) / DSV3_LANES * DSV3_LANES;

			for (int k = 0; k < padded; k++)
			{
				float *acc = &lane[k % DSV3_LANES];

				*acc = k < w->in ? fmaf(row[k], weight_value(w, n, k), *acc) : fmaf(0.0f, 0.0f, *acc);
			}
			y[i * ldy + (n - n0)] = tree16(lane);
		}
	}
}

static void
ref_matmul_t(const Dsv3Weight *w, int row0, int n_rows, const float *x, int64_t ldx, int m, float *y,
			 int64_t ldy)
{
	for (int i = 0; i < m; i++)
		for (int c = 0; c < w->in; c++)
		{
			float acc = 0.0f;

			for (int r = 0; r < n_rows; r++)
				acc = fmaf(x[i * ldx + r], weight_value(w, row0 + r, c), acc);
			y[i * ldy + c] = acc;
		}
}

/* The scale for codes up to `top` of count activations, and what to multiply them by; 0 and NaN: all codes are 0. */
static float
code_scale(const float *x, int count, float top, float *inverse)
{
	uint32_t largest_bits = 0;
	float largest;

	for (int k = 0; k < count; k++)
	{
		uint32_t bits;

		memcpy(&bits, x + k, sizeof(bits));
		bits &= 0x7fffffff;
		largest_bits = bits > largest_bits ? bits : largest_bits;
	}
	memcpy(&largest, &largest_bits, sizeof(largest));
	*inverse = 0.0f;
	if (largest_bits >= 0x7f800000)
		return NAN;
	if (largest < 0x1p-100f)
		return 0.0f;
	*inverse = top / largest;
	return largest / top;
}

static void
ref_quantise(const float *x, int n, int16_t *codes, float *scales)
{
	for (int g = 0; g < dsv3_int8_groups(n); g++)
	{
		int k0 = g * DSV3_INT8_GROUP;
		int count = n - k0 < DSV3_INT8_GROUP ? n - k0 : DSV3_INT8_GROUP;
		float inverse;

		memset(codes + k0, 0, DSV3_INT8_GROUP * sizeof(*codes));
		scales[g] = code_scale(x + k0, count, 32767.0f, &inverse);
		for (int k = 0; inverse > 0.0f && k < count; k++)
			codes[k0 + k] = (int16_t) lrintf(x[k0 + k] * inverse);
	}
}

static void
ref_decode8(const int8_t *codes, const float *scales, int n, float *y)
{
	for (int k = 0; k < n; k++)
		y[k] = (float) codes[k] * scales[k / DSV3_DECODE8_GROUP];
}

static void
ref_quantise8(const float *x, int n, Dsv3CodeBlock *blocks)
{
	for (int b = 0; b < dsv3_code_blocks(n); b++)
	{
		Dsv3CodeBlock *block = &blocks[b];
		int k0 = b * DSV3_BLOCK;
		int count = n - k0 < DSV3_BLOCK ? n - k0 : DSV3_BLOCK;
		float inverse;

		memset(block, 0, sizeof(*block));
		block->scale = code_scale(x + k0, count, 127.0f, &inverse);
		for (int k = 0; inverse > 0.0f && k < count; k++)
		{
			int code = (int) lrintf(x[k0 + k] * inverse);

			block->codes[k] = (int8_t) code;
			block->sum[k / DSV3_A4_GROUP] += (int16_t) (8 * code);
			block->start[k / DSV3_S6_GROUP][k % 4 / 2] -= (int16_t) (32 * code);
		}
	}
}

static void
ref_rmsnorm(const float *x, const float *w, float eps, int n, float *y)
{
	float r = 1.0f / sqrtf(dot(x, x, n) / (float) n + eps);

	for (int k = 0; k < n; k++)
		y[k] = w[k] * (x[k] * r);
}

static void
ref_silu_mul(const float *gate, const float *up, int n, float *y)
{
	for (int k = 0; k < n; k++)
		y[k] = gate[k] / (1.0f + dsv3_expf(-gate[k])) * up[k];
}

static void
ref_axpy(float a, const float *x, int n, float *y)
{
	for (int k = 0; k < n; k++)
		y[k] = fmaf(a, x[k], y[k]);
}

static void
ref_sigmoid(const float *x, int n, float *y)
{
	for (int k = 0; k < n; k++)
		y[k] = 1.0f / (1.0f + dsv3_expf(-x[k]));
}

static void
ref_softmax(const float *x, int n, float *y)
{
	float lane[DSV3_LANES] = {0};
	float largest = -INFINITY;
	float sum;

	for (int k = 0; k < n; k++)
		largest = x[k] > largest ? x[k] : largest;
	for (int k = 0; k < n; k++)
	{
		y[k] = dsv3_expf(x[k] - largest);
		lane[k % DSV3_LANES] += y[k];
	}
	sum = tree16(lane);
	for (int k = 0; k < n; k++)
		y[k] /= sum;
}

static void
ref_attend(const Dsv3Attend *a)
{
	for (int i = 0; i < a->n_queries; i++)
	{
		const float *q = a->q + i * a->q_stride;
		float *z = a->z + i * a->z_stride;
		float p[DSV3_ATTEND_MAX] = {0};
		float lane[DSV3_LANES];
		float largest = a->max[i];
		float c;

		if (a->visible[i] == 0)
			continue;
		for (int t = 0; t < a->visible[i]; t++)
		{
			p[t] = dot(q, a->keys + t * a->key_stride, a->width) * a->scale;
			largest = p[t] > largest ? p[t] : largest;
		}
		c = dsv3_expf(a->max[i] - largest);
		for (int t = 0; t < a->visible[i]; t++)
			p[t] = dsv3_expf(p[t] - largest);
		for (int l = 0; l < DSV3_LANES; l++)
			lane[l] = p[l] + p[l + DSV3_LANES];
		a->max[i] = largest;
		a->sum[i] = fmaf(a->sum[i], c, tree16(lane));
		for (int k = 0; k < a->value_width; k++)
		{
			float acc = z[k] * c;

			for (int t = 0; t < a->visible[i]; t++)
				acc = fmaf(p[t], a->values[t * a->value_stride + k], acc);
			z[k] = acc;
		}
	}
}

const Dsv3Ops dsv3_ops_ref = {
	.name = "ref",
	.matmul = ref_matmul,
	.matmul_t = ref_matmul_t,
	.decode = ref_decode,
	.decode8 = ref_decode8,
	.quantise = ref_quantise,
	.quantise8 = ref_quantise8,
	.rmsnorm = ref_rmsnorm,
	.silu_mul = ref_silu_mul,
	.axpy = ref_axpy,
	.sigmoid = ref_sigmoid,
	.softmax = ref_softmax,
	.attend = ref_attend,
};
