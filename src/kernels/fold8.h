/*
 * fold8.h
 *	  The last three steps of the contract's lane sum (l + 4, l + 2, l + 1) on 8-lane registers, for the vector sets.
 */
#ifndef DSV3_FOLD8_H
#define DSV3_FOLD8_H

#include <immintrin.h>

static inline __attribute__((always_inline)) float
fold8(__m256 v)
{
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
	return _mm_cvtss_f32(s);
}

/* Four at once; the same additions. */
static inline __attribute__((always_inline)) __m128
fold8x4(__m256 a, __m256 b, __m256 c, __m256 d)
{
	/* [a0+a4 .. a3+a7 | b0+b4 ..] and the same for c and d */
	__m256 ab = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
	__m256 cd = _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
	__m256d abd = _mm256_castps_pd(ab);
	__m256d cdd = _mm256_castps_pd(cd);
	/* [a0 a1 c0 c1 | b0 b1 d0 d1] + [a2 a3 c2 c3 | ...] */
	__m256 s = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(abd, cdd)),
							 _mm256_castpd_ps(_mm256_unpackhi_pd(abd, cdd)));
	/* [a c . . | b d . .] */
	__m256 t = _mm256_add_ps(_mm256_shuffle_ps(s, s, _MM_SHUFFLE(2, 0, 2, 0)),
							 _mm256_shuffle_ps(s, s, _MM_SHUFFLE(3, 1, 3, 1)));

	return _mm_unpacklo_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
}

#endif /* DSV3_FOLD8_H */
