/*
 * exp.h
 *	  The exponential of the kernels, as constants for every set and as scalar code for the sets' oracle.
 *
 * exp(x) = 2^n (1 + r + r^2 P(r)) with n = RN(x log2 e) and r = x - n ln 2, ln 2 in two parts. P is the degree 5 polynomial
 * that meets (exp(r) - 1 - r) / r^2 at the Chebyshev nodes of [-ln 2 / 2, ln 2 / 2]; the whole is within 1 ulp of the true
 * value on the normal range. n comes from adding 1.5 * 2^23, and 2^n is applied in two halves so that subnormal
 * results are rounded once. Arguments are clamped to [-104, 89], where the result is 0 or infinity already; NaN stays.
 */
#ifndef DSV3_EXP_H
#define DSV3_EXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define DSV3_EXP_MAX    89.0f
#define DSV3_EXP_MIN    (-104.0f)
#define DSV3_EXP_LOG2E  0x1.715476p+0f
#define DSV3_EXP_ROUND  0x1.8p23f
#define DSV3_EXP_LN2_HI 0x1.62e4p-1f
#define DSV3_EXP_LN2_LO 0x1.7f7d1cp-20f
#define DSV3_EXP_P0     0x1p-1f
#define DSV3_EXP_P1     0x1.555556p-3f
#define DSV3_EXP_P2     0x1.5554e8p-5f
#define DSV3_EXP_P3     0x1.1110ep-7f
#define DSV3_EXP_P4     0x1.6d43bp-10f
#define DSV3_EXP_P5     0x1.a1256cp-13f

/* 2^n for n in -126..127. */
static inline float
dsv3_exp2_int(int32_t n)
{
	uint32_t bits = (uint32_t) (n + 127) << 23;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static inline float
dsv3_expf(float x)
{
	float t, n, r, p;
	int32_t tb, rb, e, half;
	const float round = DSV3_EXP_ROUND;

	x = DSV3_EXP_MAX < x ? DSV3_EXP_MAX : x;
	x = DSV3_EXP_MIN > x ? DSV3_EXP_MIN : x;
	t = fmaf(x, DSV3_EXP_LOG2E, round);
	n = t - round;
	r = fmaf(n, -DSV3_EXP_LN2_HI, x);
	r = fmaf(n, -DSV3_EXP_LN2_LO, r);
	p = fmaf(DSV3_EXP_P5, r, DSV3_EXP_P4);
	p = fmaf(p, r, DSV3_EXP_P3);
	p = fmaf(p, r, DSV3_EXP_P2);
	p = fmaf(p, r, DSV3_EXP_P1);
	p = fmaf(p, r, DSV3_EXP_P0);
	p = fmaf(p, r * r, r) + 1.0f;
	if (x != x)
		return p;
	memcpy(&tb, &t, sizeof(tb));
	memcpy(&rb, &round, sizeof(rb));
	e = tb - rb;
	half = e >> 1;
	return p * dsv3_exp2_int(half) * dsv3_exp2_int(e - half);
}

#endif /* DSV3_EXP_H */
