/*
 * convert.c
 *	  Number formats of weight files; see convert.h.
 */
#include "model/convert.h"

#include <string.h>

#define FP8_BLOCK 128

static float
float_of_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

float
dsv3_bf16_to_f32(uint16_t code)
{
	return float_of_bits((uint32_t) code << 16);
}

float
dsv3_f16_to_f32(uint16_t code)
{
	uint32_t sign = (uint32_t) (code & 0x8000) << 16;
	uint32_t rest = code & 0x7FFF;

	if (rest >= 0x7C00) /* infinity and NaN keep their fraction */
		return float_of_bits(sign | 0x7F800000 | (rest & 0x3FF) << 13);
	if (rest >= 0x0400) /* exponent bias 15 to 127 */
		return float_of_bits(sign | ((rest << 13) + (112u << 23)));
	/* zero and subnormals: the fraction counts steps of 2^-24, which F32 holds exactly */
	return sign ? -((float) rest * 0x1p-24f) : (float) rest * 0x1p-24f;
}

float
dsv3_fp8_to_f32(uint8_t code)
{
	uint32_t sign = (uint32_t) (code & 0x80) << 24;
	uint32_t rest = code & 0x7F;

	if (rest >= 0x08) /* exponent bias 7 to 127 */
		return float_of_bits(sign | ((rest << 20) + (120u << 23)));
	return sign ? -((float) rest * 0x1p-9f) : (float) rest * 0x1p-9f;
}

uint16_t
dsv3_f32_to_bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	if ((bits & 0x7FFFFFFF) > 0x7F800000)
		return (uint16_t) (bits >> 16 | 0x40); /* a NaN stays one */
	return (uint16_t) ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

void
dsv3_widen(Dsv3Type type, const void *src, size_t n, float *dst)
{
	const unsigned char *bytes = src;

	if (type == DSV3_TYPE_F32)
	{
		memcpy(dst, src, n * sizeof(float));
		return;
	}
	for (size_t i = 0; i < n; i++)
	{
		uint16_t code;

		memcpy(&code, bytes + 2 * i, sizeof(code));
		dst[i] = type == DSV3_TYPE_BF16 ? dsv3_bf16_to_f32(code) : dsv3_f16_to_f32(code);
	}
}

void
dsv3_weight_columns(const Dsv3Weight *weight, int32_t row, int32_t first, int32_t n, float *dst)
{
	size_t start = (size_t) row * (size_t) weight->in + (size_t) first;
	const unsigned char *src = (const unsigned char *) weight->data + start * dsv3_type_bytes(weight->type);
	float scale;

	if (weight->type != DSV3_TYPE_FP8)
	{
		dsv3_widen(weight->type, src, (size_t) n, dst);
		return;
	}
	scale = weight->scales[(size_t) (row / FP8_BLOCK) * (((size_t) weight->in + FP8_BLOCK - 1) / FP8_BLOCK) +
						   (size_t) (first / FP8_BLOCK)];
	for (int32_t i = 0; i < n; i++)
		dst[i] = dsv3_fp8_to_f32(src[i]) * scale;
}

size_t
dsv3_type_bytes(Dsv3Type type)
{
	return type == DSV3_TYPE_F32 ? 4 : type == DSV3_TYPE_FP8 ? 1 : 2;
}
