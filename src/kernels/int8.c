/*
 * int8.c
 *	  Packing of 8-bit weights; layout and rule in int8.h.
 */
#include "kernels/int8.h"

#include <math.h>
#include <string.h>

/* Where in a 64-byte vector the code of (lane, k mod 4) lies. */
static size_t
code_offset(int lane, int k)
{
	static const int place[4] = {0, 2, 1, 3};

	return (size_t) lane * 4 + (size_t) place[k & 3];
}

/* Start of group g inside a panel. */
static size_t
group_offset(int g)
{
	return (size_t) g * (DSV3_INT8_GROUP / 4 * 64 + 64);
}

static int
group_columns(int in, int g)
{
	int left = in - g * DSV3_INT8_GROUP;

	return left < DSV3_INT8_GROUP ? left : DSV3_INT8_GROUP;
}

void
dsv3_int8_pack(const Dsv3Weight *src, int32_t first, int32_t n, void *dst)
{
	int n_panels = (n + DSV3_INT8_ROWS - 1) / DSV3_INT8_ROWS;
	int groups = dsv3_int8_groups(src->in);
	const Dsv3Ops *ops = dsv3_ops_find(NULL, NULL); /* any set: they decode to the same bits */
	/* A row is decoded group by group: a weight that is a view of 128 columns needs no memory of the row's size. */
	size_t element = src->type == DSV3_TYPE_F32 ? 4 : src->type == DSV3_TYPE_FP8 ? 1 : 2;

	memset(dst, 0, dsv3_int8_bytes(n, src->in));
	for (int p = 0; p < n_panels; p++)
	{
		uint8_t *panel = (uint8_t *) dst + (size_t) p * dsv3_int8_panel_bytes(src->in);

		for (int lane = 0; lane < DSV3_INT8_ROWS && p * DSV3_INT8_ROWS + lane < n; lane++)
		{
			int row = first + p * DSV3_INT8_ROWS + lane;

			for (int g = 0; g < groups; g++)
			{
				int count = group_columns(src->in, g);
				uint8_t *group = panel + group_offset(g);
				size_t start = (size_t) row * (size_t) src->in + (size_t) g * DSV3_INT8_GROUP;
				float scale =
					src->scales ? src->scales[(size_t) (row / 128) * (size_t) groups + (size_t) g] : 0.0f;
				Dsv3Weight view = {.type = src->type,
								   .out = 1,
								   .in = count,
								   .data = (const uint8_t *) src->data + start * element,
								   .scales = src->scales ? &scale : NULL};
				float w[DSV3_INT8_GROUP];
				float largest = 0.0f;
				float inverse;

				ops->decode(&view, 0, w);
				for (int k = 0; k < count; k++)
					largest = fabsf(w[k]) > largest ? fabsf(w[k]) : largest;
				if (!(largest >= 0x1p-100f && largest < INFINITY))
					continue;
				scale = largest / 127.0f;
				inverse = 127.0f / largest;
				for (int k = 0; k < count; k++)
				{
					/* a NaN weight does not raise `largest`; it becomes 0 */
					long code = w[k] == w[k] ? lrintf(w[k] * inverse) : 0;

					group[(size_t) (k / 4) * 64 + code_offset(lane, k)] = (uint8_t) (int8_t) code;
				}
				memcpy(group + (size_t) ((count + 3) / 4) * 64 + (size_t) lane * 4, &scale, sizeof(scale));
			}
		}
	}
}

int
dsv3_int8_code(const Dsv3Weight *w, int row, int column, float *scale)
{
	int g = column / DSV3_INT8_GROUP;
	int lane = row % DSV3_INT8_ROWS;
	int k = column % DSV3_INT8_GROUP;
	const uint8_t *group = (const uint8_t *) w->data +
						   (size_t) (row / DSV3_INT8_ROWS) * dsv3_int8_panel_bytes(w->in) + group_offset(g);

	memcpy(scale, group + (size_t) ((group_columns(w->in, g) + 3) / 4) * 64 + (size_t) lane * 4,
		   sizeof(*scale));
	return (int8_t) group[(size_t) (k / 4) * 64 + code_offset(lane, k)];
}
