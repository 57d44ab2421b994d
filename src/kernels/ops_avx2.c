/*
 * ops_avx2.c
 *	  The AVX2 + FMA + F16C set: two ymm registers are the contract's 16 lanes (a: 0-7, b: 8-15). The operations are
 *	  in simd.h.
 */
#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef struct V
{
	__m256 a, b;
} V;

typedef struct I
{
	__m256i a, b;
} I;

/* Half of a V. */
typedef __m256 P;

#define SET      dsv3_ops_avx2
#define SET_NAME "avx2"

/* Tiles (input rows x matrix rows) sized for 16 registers, two to an accumulator. */
#define MR_MAX     4
#define NR_MAX     4
#define DIRECT_M   2
#define DIRECT_N1  4
#define DIRECT_N2  3
#define PARTS      2
#define TILE_M     3
#define TILE_N     4
#define INT8_M     4
#define NP_MAX     2
#define INT8_P1    2
#define INT8_P2    1
#define INT8_P4    1
#define INT8_AHEAD 1088
#define COLUMN_M   3
#define NV_MAX     2

#define VFN static inline __attribute__((always_inline))

/* All ones in 32-bit lanes base..base+7 that are below n. */
VFN __m256i
first_lanes(int n, int base)
{
	return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - base), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

VFN V
v_zero(void)
{
	return (V){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
VFN V
v_set1(float f)
{
	return (V){_mm256_set1_ps(f), _mm256_set1_ps(f)};
}
VFN V
v_load(const float *p)
{
	return (V){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
VFN V
v_load_n(const float *p, int n)
{
	float copy[16] __attribute__((aligned(32))) = {0};

	memcpy(copy, p, (size_t) n * sizeof(float));
	return v_load(copy);
}
VFN void
v_store(float *p, V v)
{
	_mm256_storeu_ps(p, v.a);
	_mm256_storeu_ps(p + 8, v.b);
}
VFN void
v_store_n(float *p, V v, int n)
{
	float copy[16] __attribute__((aligned(32)));

	v_store(copy, v);
	memcpy(p, copy, (size_t) n * sizeof(float));
}
VFN V
v_keep(V v, int n)
{
	return (V){_mm256_and_ps(v.a, _mm256_castsi256_ps(first_lanes(n, 0))),
			   _mm256_and_ps(v.b, _mm256_castsi256_ps(first_lanes(n, 8)))};
}
VFN V
v_fma(V x, V y, V z)
{
	return (V){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
VFN P
p_load(const float *p)
{
	return _mm256_loadu_ps(p);
}
/* p in a register: a compiler that loads it again for each use makes loads the limit. */
VFN P
p_hold(P p)
{
	__asm__("" : "+x"(p));
	return p;
}
VFN P
p_fma(P x, P y, P z)
{
	return _mm256_fmadd_ps(x, y, z);
}
VFN P
p_of(V v, int part)
{
	return part ? v.b : v.a;
}
VFN void
p_put(V *v, int part, P p)
{
	if (part)
		v->b = p;
	else
		v->a = p;
}
VFN V
v_add(V x, V y)
{
	return (V){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
VFN V
v_sub(V x, V y)
{
	return (V){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
VFN V
v_mul(V x, V y)
{
	return (V){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
VFN V
v_div(V x, V y)
{
	return (V){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
/* x < y ? x : y and x > y ? x : y: of a NaN and a number, the second. */
VFN V
v_min(V x, V y)
{
	return (V){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
VFN V
v_max(V x, V y)
{
	return (V){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
VFN V
v_neg(V x)
{
	__m256 sign = _mm256_set1_ps(-0.0f);

	return (V){_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign)};
}
VFN __m256
bf16_to_float(__m128i half)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
VFN V
v_load_bf16(const uint8_t *p)
{
	return (V){bf16_to_float(_mm_loadu_si128((const __m128i *) p)),
			   bf16_to_float(_mm_loadu_si128((const __m128i *) (p + 16)))};
}
VFN V
v_load_i8(const int8_t *p)
{
	__m128i bytes = _mm_loadu_si128((const __m128i *) p);

	return (V){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
			   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
VFN V
v_load_f16(const uint8_t *p)
{
	return (V){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)),
			   _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (p + 16)))};
}
/* 2^-8 times the values: widened to 16 bits and shifted by 7, an E4M3 number is an F16 number with another exponent bias,
 * subnormals included; only the copies of the sign in between have to go. */
VFN V
v_load_fp8(const uint8_t *p)
{
	__m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) p)), 7);

	wide = _mm256_and_si256(wide, _mm256_set1_epi16((int16_t) 0xbfff));
	return (V){_mm256_cvtph_ps(_mm256_castsi256_si128(wide)),
			   _mm256_cvtph_ps(_mm256_extracti128_si256(wide, 1))};
}

#include "kernels/fold8.h"

VFN __m256
fold16(V v)
{
	return _mm256_add_ps(v.a, v.b);
}
/* The largest lane; no NaN. */
VFN float
v_largest(V v)
{
	__m256 half = _mm256_max_ps(v.a, v.b);
	__m128 s = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));

	s = _mm_max_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
VFN float
v_reduce(V v)
{
	return fold8(fold16(v));
}
VFN void
v_reduce4(V w, V x, V y, V z, float *out)
{
	_mm_storeu_ps(out, fold8x4(fold16(w), fold16(x), fold16(y), fold16(z)));
}

VFN I
i_zero(void)
{
	return (I){_mm256_setzero_si256(), _mm256_setzero_si256()};
}
VFN I
i_load(const uint8_t *p)
{
	return (I){_mm256_loadu_si256((const __m256i *) p), _mm256_loadu_si256((const __m256i *) (p + 32))};
}
/* Bytes 0 and 2 of each 32-bit lane as a pair of int16; bytes 1 and 3. */
VFN I
i_even_bytes(I v)
{
	return (I){_mm256_srai_epi16(_mm256_slli_epi16(v.a, 8), 8),
			   _mm256_srai_epi16(_mm256_slli_epi16(v.b, 8), 8)};
}
VFN I
i_odd_bytes(I v)
{
	return (I){_mm256_srai_epi16(v.a, 8), _mm256_srai_epi16(v.b, 8)};
}
VFN I
i_broadcast_pair(const int16_t *p)
{
	int32_t pair;
	__m256i v;

	memcpy(&pair, p, sizeof(pair));
	v = _mm256_set1_epi32(pair);
	return (I){v, v};
}
VFN I
i_dot_pairs(I sum, I x, I y)
{
	return (I){_mm256_add_epi32(sum.a, _mm256_madd_epi16(x.a, y.a)),
			   _mm256_add_epi32(sum.b, _mm256_madd_epi16(x.b, y.b))};
}
VFN V
i_to_float(I v)
{
	return (V){_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)};
}
VFN I
i_sub(I x, I y)
{
	return (I){_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
VFN I
i_max(I x, I y)
{
	return (I){_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)};
}
VFN I
i_bits(V v)
{
	return (I){_mm256_castps_si256(v.a), _mm256_castps_si256(v.b)};
}
VFN I
i_half(I v)
{
	return (I){_mm256_srai_epi32(v.a, 1), _mm256_srai_epi32(v.b, 1)};
}
VFN __m256
exp2_8(__m256i v)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(v, _mm256_set1_epi32(127)), 23));
}
/* 2^v as float, for v in -126..127. */
VFN V
i_exp2(I v)
{
	return (V){exp2_8(v.a), exp2_8(v.b)};
}
VFN I
i_magnitude(V v)
{
	__m256i mask = _mm256_set1_epi32(INT32_MAX);

	return (I){_mm256_and_si256(_mm256_castps_si256(v.a), mask),
			   _mm256_and_si256(_mm256_castps_si256(v.b), mask)};
}
VFN float
i_largest_as_float(I v)
{
	int32_t lane[8];
	int32_t largest = 0;
	float f;

	_mm256_storeu_si256((__m256i *) lane, _mm256_max_epi32(v.a, v.b));
	for (int i = 0; i < 8; i++)
		largest = lane[i] > largest ? lane[i] : largest;
	memcpy(&f, &largest, sizeof(f));
	return f;
}
/* 16 floats to int16, rounding to nearest even. */
VFN void
v_store_codes(int16_t *p, V v)
{
	__m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b));

	_mm256_storeu_si256((__m256i *) p, _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}

#include "kernels/simd.h"

#endif
