/*
 * convert.h
 *	  Number formats of weight files: to F32, exactly, and from F32 to BF16, rounded to nearest even.
 *
 * Sources may lie at any address. FP8 is E4M3 without infinities; its two NaN codes read as 480 and -480, as in the
 * kernels (kernels/ops.h).
 */
#ifndef DSV3_CONVERT_H
#define DSV3_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

extern float dsv3_bf16_to_f32(uint16_t code);
extern float dsv3_f16_to_f32(uint16_t code);
extern float dsv3_fp8_to_f32(uint8_t code);
extern uint16_t dsv3_f32_to_bf16(float value);

/* n numbers of type F32, BF16 or F16 at src, as F32. */
extern void dsv3_widen(Dsv3Type type, const void *src, size_t n, float *dst);

/* n <= 128 numbers of row `row` of a matrix of any type but INT8, from column `first`, a multiple of 128, as F32; FP8 as
 * code value times block scale, rounded once. */
extern void dsv3_weight_columns(const Dsv3Weight *weight, int32_t row, int32_t first, int32_t n, float *dst);

/* Bytes of one number. Not for INT8. */
extern size_t dsv3_type_bytes(Dsv3Type type);

#endif /* DSV3_CONVERT_H */
