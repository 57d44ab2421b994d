/*
 * ops.h
 *	  The table of operations a backend offers; `ref` is the oracle for all others.
 *
 * Every function works on a slice so that a thread pool can split it; a result never depends on the split. Matrices
 * are [out, in], row-major, y = x W^T. The order of every floating-point reduction is part of the contract, so that the
 * sets below are bit-identical to each other:
 *
 *	- dot product over n floats: DSV3_LANES partial sums, lane l takes k = l, l + DSV3_LANES, ... in rising order by
 *	  fused multiply-add starting at 0; then lanes are added pairwise: l + 8, l + 4, l + 2, l + 1 (see ref.c). Elements past
 *	  the end count as nothing.
 *	- 8-bit groups: exact int32 dot inside a group of 128, then acc = fma(float(dot), scale, acc) in rising group order.
 *
 * A backend is a table plus memory calls; CUDA will be the same table.
 */
#ifndef DSV3_OPS_H
#define DSV3_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DSV3_LANES 16

typedef enum Dsv3Type
{
	DSV3_TYPE_F32,
	DSV3_TYPE_BF16,
	DSV3_TYPE_F16,
	DSV3_TYPE_FP8,  /* E4M3, one F32 multiplier per 128 x 128 block */
	DSV3_TYPE_INT8, /* 8-bit groups of 128 along the input, packed in panels; layout in int8.h */
} Dsv3Type;

/* A matrix as the kernels see it. The memory belongs to whoever made it (the mapping or the weights arena). */
typedef struct Dsv3Weight
{
	Dsv3Type type;
	int32_t out;         /* rows */
	int32_t in;          /* columns */
	const void *data;
	const float *scales; /* FP8: [ceil(out/128), ceil(in/128)] row-major; otherwise NULL */
} Dsv3Weight;

#endif /* DSV3_OPS_H */
