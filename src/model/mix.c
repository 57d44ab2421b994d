/*
 * mix.c
 *	  Which type each kind of matrix gets; see mix.h.
 *
 * 16 makes every matrix BF16. 8 makes every matrix INT8 but two, which stay as they are stored: the embedding, whose rows are
 * looked up one by one, and the latent expansion (kv_b), which attention reads along both of its sides. 4 gives each kind
 * of matrix as few bits as it bears: routed experts, which are nearly all of a model, 4; the output matrix, whose
 * errors go straight into the answer, and the one through which all goes that a draft is made from, 8; the other products 6; and
 * the two that cannot be in panels stay, F32 as BF16.
 */
#include "model/mix.h"

#include <string.h>

static const char *const mode_names[] = {
	[DSV3_WEIGHTS_STORED] = "stored", [DSV3_WEIGHTS_F32] = "f32",   [DSV3_WEIGHTS_BF16] = "bf16",
	[DSV3_WEIGHTS_INT8] = "int8",     [DSV3_WEIGHTS_INT4] = "int4",
};

bool
dsv3_weight_mode(const char *name, Dsv3WeightMode *mode)
{
	for (size_t i = 0; i < sizeof(mode_names) / sizeof(mode_names[0]); i++)
		if (strcmp(name, mode_names[i]) == 0)
		{
			*mode = (Dsv3WeightMode) i;
			return true;
		}
	return false;
}

const char *
dsv3_weight_mode_name(Dsv3WeightMode mode)
{
	return mode_names[mode];
}

bool
dsv3_mix_by_rows(Dsv3MatrixRole role)
{
	return role == DSV3_MATRIX_EMBED || role == DSV3_MATRIX_KV_B;
}

Dsv3Type
dsv3_mix_type(int bits, Dsv3MatrixRole role, Dsv3Type stored)
{
	if (bits == 16 || (bits == 4 && dsv3_mix_by_rows(role) && stored == DSV3_TYPE_F32))
		return DSV3_TYPE_BF16;
	if (dsv3_mix_by_rows(role))
		return stored;
	if (bits == 8 || role == DSV3_MATRIX_HEAD || role == DSV3_MATRIX_JOINT)
		return DSV3_TYPE_INT8;
	return role == DSV3_MATRIX_EXPERT ? DSV3_TYPE_A4 : DSV3_TYPE_S6;
}
