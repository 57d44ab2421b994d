/*
 * convert.c
 *	  Number formats of weight files; see convert.h.
 */
#include "model/convert.h"

#include <string.h>

#include "kernels/quant.h"

#define PIECE 128 /* columns of an FP8 block */

uint16_t
dsv3_f32_to_bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	if ((bits & 0x7FFFFFFF) > 0x7F800000)
		return (uint16_t) (bits >> 16 | 0x40); /* a NaN stays one */
	return (uint16_t) ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

size_t
dsv3_type_bytes(Dsv3Type type)
{
	return type == DSV3_TYPE_F32 ? 4 : type == DSV3_TYPE_FP8 ? 1 : 2;
}

int64_t
dsv3_weight_bytes(const Dsv3Weight *weight)
{
	int64_t n = (int64_t) weight->out * weight->in;

	if (dsv3_type_is_packed(weight->type))
		return (int64_t) dsv3_packed_bytes(weight->type, weight->out, weight->in);
	n *= (int64_t) dsv3_type_bytes(weight->type);
	if (weight->type == DSV3_TYPE_FP8)
		n += (int64_t) ((weight->out + PIECE - 1) / PIECE) * ((weight->in + PIECE - 1) / PIECE) * 4;
	return n;
}

void
dsv3_widen(Dsv3Type type, const void *src, int32_t n, float *dst)
{
	Dsv3Weight view = {.type = type, .out = 1, .in = n, .data = src};

	if (type == DSV3_TYPE_F32)
		memcpy(dst, src, (size_t) n * sizeof(float)); /* the kernels want F32 aligned */
	else
		dsv3_ops_find(NULL, NULL)->decode(&view, 0, dst);
}

void
dsv3_weight_columns(const Dsv3Weight *weight, int32_t row, int32_t first, int32_t n, float *dst)
{
	size_t start = (size_t) row * (size_t) weight->in + (size_t) first;
	Dsv3Weight view = {.type = weight->type, .out = 1, .in = n};

	view.data = (const unsigned char *) weight->data + start * dsv3_type_bytes(weight->type);
	if (weight->scales)
		view.scales = weight->scales + (size_t) (row / PIECE) * (((size_t) weight->in + PIECE - 1) / PIECE) +
					  (size_t) (first / PIECE);
	dsv3_ops_find(NULL, NULL)->decode(&view, 0, dst);
}

void
dsv3_weight_convert(const Dsv3Weight *weight, Dsv3Type type, void *dst)
{
	const Dsv3Ops *ops = dsv3_ops_find(NULL, NULL);
	float piece[PIECE];

	for (int32_t row = 0; row < weight->out; row++)
	{
		size_t start = (size_t) row * (size_t) weight->in;

		if (type == DSV3_TYPE_F32)
		{
			ops->decode(weight, row, (float *) dst + start);
			continue;
		}
		for (int32_t first = 0; first < weight->in; first += PIECE)
		{
			int32_t n = weight->in - first < PIECE ? weight->in - first : PIECE;

			dsv3_weight_columns(weight, row, first, n, piece);
			for (int32_t i = 0; i < n; i++)
				((uint16_t *) dst)[start + (size_t) (first + i)] = dsv3_f32_to_bf16(piece[i]);
		}
	}
}
