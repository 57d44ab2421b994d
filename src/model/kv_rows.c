/*
 * kv_rows.c
 *	  Rows of the latent cache in fewer bits.
 *
 * A row of W = C + R floats is kept as
 *	F32:	itself.
 *	BF16:	each number rounded to nearest even.
 *	INT8:	one F32 scale for each DSV3_DECODE8_GROUP lanes of the latent, the R lanes of the rotated key in BF16, then C codes. The scale is
 *			the group's largest magnitude / 127, a code the number / scale, rounded to nearest even. The key's rotation keeps the wider
 *			form because its error is a position's, not a lane's.
 * and a row's bytes are rounded up to a multiple of 4, so that scales are aligned.
 *
 * What is stored is a function of the row alone, and what attention reads is what was stored, also for rows of the same step. So
 * the type of the rows changes an answer once and for all, and how it was computed never does.
 */
#include <math.h>
#include <string.h>

#include "model/convert.h"
#include "model/impl.h"

/* Below this a group is zero: its scale's inverse would not be finite. */
#define LEAST_GROUP 1e-30f

static const char *const type_names[] = {"f32", "bf16", "int8"};

bool
dsv3_kv_type(const char *name, Dsv3KvType *type)
{
	for (int i = 0; i <= DSV3_KV_INT8; i++)
		if (strcmp(name, type_names[i]) == 0)
		{
			*type = (Dsv3KvType) i;
			return true;
		}
	return false;
}

const char *
dsv3_kv_type_name(Dsv3KvType type)
{
	return type_names[type];
}

static size_t
n_groups(int latent)
{
	return (size_t) (latent + DSV3_DECODE8_GROUP - 1) / DSV3_DECODE8_GROUP;
}

size_t
dsv3_kv_row_bytes(Dsv3KvType type, int latent, int rope)
{
	size_t bytes = (size_t) (latent + rope) * sizeof(float);

	if (type == DSV3_KV_BF16)
		bytes = (size_t) (latent + rope) * sizeof(uint16_t);
	else if (type == DSV3_KV_INT8)
		bytes = n_groups(latent) * sizeof(float) + (size_t) rope * sizeof(uint16_t) + (size_t) latent;
	return (bytes + 3) / 4 * 4;
}

static void
narrow(const float *row, int n, void *to)
{
	uint8_t *at = to;

	for (int k = 0; k < n; k++)
	{
		uint16_t bits = dsv3_f32_to_bf16(row[k]);

		memcpy(at + (size_t) k * sizeof(bits), &bits, sizeof(bits));
	}
}

/* One group; returns its scale. A number that is not finite makes all of them not a number, as it would the sums they go into. */
static float
code_group(const float *x, int n, int8_t *codes)
{
	float largest = 0.0f;
	bool finite = true;
	float inverse;

	for (int k = 0; k < n; k++)
	{
		finite = finite && isfinite(x[k]);
		largest = fabsf(x[k]) > largest ? fabsf(x[k]) : largest;
	}
	if (!finite || largest < LEAST_GROUP)
	{
		memset(codes, 0, (size_t) n);
		return finite ? 0.0f : NAN;
	}
	inverse = 127.0f / largest;
	for (int k = 0; k < n; k++)
		codes[k] = (int8_t) lrintf(x[k] * inverse);
	return largest / 127.0f;
}

void
dsv3_kv_write(const Dsv3Kv *kv, int32_t block, int layer, int t, const float *row)
{
	uint8_t *to = dsv3_kv_layer(kv, block, layer) + (size_t) t * kv->row_bytes;
	float *scales = (void *) to;

	switch (kv->type)
	{
		case DSV3_KV_F32:
			memcpy(to, row, (size_t) kv->width * sizeof(float));
			break;
		case DSV3_KV_BF16:
			narrow(row, kv->width, to);
			break;
		case DSV3_KV_INT8:
		{
			uint8_t *rope = to + n_groups(kv->latent) * sizeof(float);
			int8_t *codes = (int8_t *) rope + (size_t) (kv->width - kv->latent) * sizeof(uint16_t);

			for (int k = 0; k < kv->latent; k += DSV3_DECODE8_GROUP)
				scales[k / DSV3_DECODE8_GROUP] = code_group(
					row + k, kv->latent - k < DSV3_DECODE8_GROUP ? kv->latent - k : DSV3_DECODE8_GROUP,
					codes + k);
			narrow(row + kv->latent, kv->width - kv->latent, rope);
			break;
		}
	}
}

const float *
dsv3_kv_read(const Dsv3Kv *kv, const Dsv3Ops *ops, int32_t block, int layer, int n_rows, float *buffer)
{
	const uint8_t *from = dsv3_kv_layer(kv, block, layer);
	int rope = kv->width - kv->latent;

	if (kv->type == DSV3_KV_F32)
		return (const void *) from;
	for (int t = 0; t < n_rows; t++)
	{
		const uint8_t *row = from + (size_t) t * kv->row_bytes;
		float *to = buffer + (size_t) t * (size_t) kv->width;
		Dsv3Weight wide = {.type = DSV3_TYPE_BF16, .out = 1, .in = kv->width, .data = row};

		if (kv->type == DSV3_KV_INT8)
		{
			const uint8_t *keys = row + n_groups(kv->latent) * sizeof(float);

			ops->decode8((const int8_t *) keys + (size_t) rope * sizeof(uint16_t), (const void *) row,
						 kv->latent, to);
			wide.in = rope;
			wide.data = keys;
			to += kv->latent;
		}
		ops->decode(&wide, 0, to);
	}
	return buffer;
}
