/*
 * int8.h
 *	  The 8-bit weight type: layout and packing.
 *
 * Weights: one group is 128 consecutive columns of a row (the last may be shorter) with one F32 scale, absmax / 127; a
 * code is RN(w * (127 / absmax)), ties to even, in -127..127. Rows come in panels of 16. A panel is its groups in
 * order; a group is ceil(columns / 4) vectors of 64 bytes, then 16 scales. In a vector the 32-bit lane n holds four
 * consecutive columns k..k+3 of row n in the byte order k, k+2, k+1, k+3: shifting 16-bit lanes left and right by 8 then
 * gives the pairs (k, k+1) and (k+2, k+3) that a 16-bit multiply-add takes. Rows and columns that do not exist have
 * code 0; rows that do not exist have scale 0. Everything is a multiple of 64 bytes.
 *
 * Activations: 128 columns share one F32 scale, absmax / 32767; a code is RN(x * (32767 / absmax)), so |dot| stays
 * under 128 * 127 * 32767 < 2^30. A group whose largest value is below 2^-100 is all zero with scale 0, so that no
 * intermediate is infinite. A group with a NaN or an infinity has scale NaN.
 */
#ifndef DSV3_INT8_H
#define DSV3_INT8_H

#include "kernels/ops.h"

#define DSV3_INT8_ROWS  16
#define DSV3_INT8_GROUP 128

/* Groups of a row of n columns. */
static inline int
dsv3_int8_groups(int n)
{
	return (n + DSV3_INT8_GROUP - 1) / DSV3_INT8_GROUP;
}

/* Activation codes of a row of n columns, with padding. */
static inline int64_t
dsv3_int8_code_count(int n)
{
	return (int64_t) dsv3_int8_groups(n) * DSV3_INT8_GROUP;
}

/* Bytes of one panel of a matrix with n columns. */
static inline size_t
dsv3_int8_panel_bytes(int n)
{
	return ((size_t) n + 3) / 4 * 64 + (size_t) dsv3_int8_groups(n) * 64;
}

/* Bytes of a packed [out, in] matrix. */
static inline size_t
dsv3_int8_bytes(int32_t out, int32_t in)
{
	return ((size_t) out + DSV3_INT8_ROWS - 1) / DSV3_INT8_ROWS * dsv3_int8_panel_bytes(in);
}

/* Pack rows first .. first + n - 1 of src (any type that is not packed) into dst of dsv3_int8_bytes(n, in), every byte of
 * which is written; first is a multiple of 16. */
extern void dsv3_int8_pack(const Dsv3Weight *src, int32_t first, int32_t n, void *dst);

/* Code and scale of one weight, for tests and tools. */
extern int dsv3_int8_code(const Dsv3Weight *w, int row, int column, float *scale);

#endif /* DSV3_INT8_H */
