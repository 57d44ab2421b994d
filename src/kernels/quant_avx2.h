/*
 * quant_avx2.h
 *	  Products with the group types A4 and S6 on AVX2, shared by all sets of CPUs that have it.
 */
#ifndef DSV3_QUANT_AVX2_H
#define DSV3_QUANT_AVX2_H

#include "kernels/quant.h"

/* Dsv3Ops.matmul for A4 and S6. */
extern void
dsv3_quant_matmul_avx2(const Dsv3Weight *w, const Dsv3Rows *x, int m, int n0, int n1, float *y, int64_t ldy);

/* Dsv3Ops.quantise8. */
extern void dsv3_quantise8_avx2(const float *x, int n, Dsv3CodeBlock *blocks);

#endif /* DSV3_QUANT_AVX2_H */
