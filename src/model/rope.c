/*
 * rope.c
 *	  Cosines and sines of the rotary embedding (RoFormer, equation 34; frequencies come from config_rope.c).
 *
 * The angle is RN(position * inv_freq) in F32, as in transformers: at position 6000 the rounding of the angle alone moves a
 * logit by more than everything else here, so it has to be the same rounding. Sine and cosine are computed by our
 * own code in double and rounded once, so that no version of the C library and no CPU changes a bit: reduction
 * by multiples of pi/2 in three parts (28 + 28 + 53 bits; the products with up to 25 bits of quotient are exact), then
 * Taylor polynomials on [-pi/4, pi/4] with an error below 1e-16.
 */
#include "model/rope.h"

#include <math.h>

#define PIO2_1 0x1.921fb54p+0        /* pi/2, bits 1-28 */
#define PIO2_2 0x1.10b4611p-30       /* the next 28 */
#define PIO2_3 0x1.4c4c6628b80dcp-59 /* the next 53 */

void
dsv3_sincos(float angle, float *sine, float *cosine)
{
	double x = (double) angle;
	double n, r, r2, s, c;

	/* Only a hostile frequency table gets here; the quotient below would not be exact. */
	if (!(fabs(x) < 0x1p25))
	{
		*sine = (float) sin(x);
		*cosine = (float) cos(x);
		return;
	}
	n = rint(x * 0x1.45f306dc9c883p-1);
	r = ((x - n * PIO2_1) - n * PIO2_2) - n * PIO2_3;
	r2 = r * r;
	s = -1.0 / 1307674368000.0;
	s = s * r2 + 1.0 / 6227020800.0;
	s = s * r2 - 1.0 / 39916800.0;
	s = s * r2 + 1.0 / 362880.0;
	s = s * r2 - 1.0 / 5040.0;
	s = s * r2 + 1.0 / 120.0;
	s = s * r2 - 1.0 / 6.0;
	s = r + r * r2 * s;
	c = 1.0 / 20922789888000.0;
	c = c * r2 - 1.0 / 87178291200.0;
	c = c * r2 + 1.0 / 479001600.0;
	c = c * r2 - 1.0 / 3628800.0;
	c = c * r2 + 1.0 / 40320.0;
	c = c * r2 - 1.0 / 720.0;
	c = c * r2 + 1.0 / 24.0;
	c = c * r2 - 0.5;
	c = 1.0 + r2 * c;
	switch ((int) n & 3)
	{
		case 0:
			*sine = (float) s;
			*cosine = (float) c;
			break;
		case 1:
			*sine = (float) c;
			*cosine = (float) -s;
			break;
		case 2:
			*sine = (float) -s;
			*cosine = (float) -c;
			break;
		default:
			*sine = (float) -c;
			*cosine = (float) s;
			break;
	}
}

void
dsv3_rope_angles(const Dsv3Rope *rope, int n_pairs, int32_t position, float *cosine, float *sine)
{
	const float *f = position < rope->long_from ? rope->inv_freq : rope->inv_freq_long;

	for (int j = 0; j < n_pairs; j++)
	{
		dsv3_sincos((float) position * f[j], &sine[j], &cosine[j]);
		sine[j] *= rope->attention_factor;
		cosine[j] *= rope->attention_factor;
	}
}
