/*
 * convert.h
 *	  Number formats of weight files: to F32 by the kernels' own decoding, and from F32 to BF16, rounded to nearest even.
 *
 * Decoding is the kernels' (ops.h says what each type means), so a matrix widened beforehand holds the very numbers the
 * forward pass would have computed from the stored one. Sources may lie at any address.
 */
#ifndef DSV3_CONVERT_H
#define DSV3_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

extern uint16_t dsv3_f32_to_bf16(float value);

/* n numbers of type F32, BF16 or F16 at src, as F32. */
extern void dsv3_widen(Dsv3Type type, const void *src, int32_t n, float *dst);

/* n <= 128 numbers of row `row` of a matrix of any type but INT8, from column `first`, a multiple of 128, as F32. */
extern void dsv3_weight_columns(const Dsv3Weight *weight, int32_t row, int32_t first, int32_t n, float *dst);

/* A whole matrix of any type but INT8 as type F32 or BF16 into dst, [out, in]. */
extern void dsv3_weight_convert(const Dsv3Weight *weight, Dsv3Type type, void *dst);

/* Bytes of one number. Not for INT8. */
extern size_t dsv3_type_bytes(Dsv3Type type);

/* Bytes of a matrix of any type, FP8 with its scales. */
extern int64_t dsv3_weight_bytes(const Dsv3Weight *weight);

#endif /* DSV3_CONVERT_H */
