/*
 * ops_avx512.c
 *	  The AVX-512 set (F, BW, DQ, VL): one zmm register is the contract's 16 lanes. The operations are in simd.h.
 */
#if defined(__AVX512F__) && defined(__AVX512BW__)

#include <immintrin.h>
#include <stdint.h>

typedef __m512 V;
typedef __m512i I;
typedef __m512 P; /* a whole V */

#define SET      dsv3_ops_avx512
#define SET_NAME "avx512"

/* Tiles (input rows x matrix rows) sized for 32 registers. */
#define MR_MAX     4
#define NR_MAX     8
#define DIRECT_M   4
#define DIRECT_N1  8
#define DIRECT_N2  8
#define DIRECT_N3  6
#define DIRECT_N4  6
#define PARTS      1
#define TILE_M     4
#define TILE_N     6
#define INT8_M     4
#define NP_MAX     4
#define INT8_P1    4
#define INT8_P2    4
#define INT8_P4    2
#define INT8_AHEAD 1088
#define COLUMN_M   6
#define NV_MAX     4

#define VFN static inline __attribute__((always_inline))

VFN V
v_zero(void)
{
	return _mm512_setzero_ps();
}
VFN V
v_set1(float f)
{
	return _mm512_set1_ps(f);
}
VFN V
v_load(const float *p)
{
	return _mm512_loadu_ps(p);
}
VFN V
v_load_n(const float *p, int n)
{
	return _mm512_maskz_loadu_ps((__mmask16) ((1u << n) - 1), p);
}
VFN void
v_store(float *p, V v)
{
	_mm512_storeu_ps(p, v);
}
VFN void
v_store_n(float *p, V v, int n)
{
	_mm512_mask_storeu_ps(p, (__mmask16) ((1u << n) - 1), v);
}
VFN V
v_keep(V v, int n)
{
	return _mm512_maskz_mov_ps((__mmask16) ((1u << n) - 1), v);
}
VFN V
v_fma(V a, V b, V c)
{
	return _mm512_fmadd_ps(a, b, c);
}
VFN P
p_load(const float *p)
{
	return _mm512_loadu_ps(p);
}
/* p in a register: a compiler that loads it again for each use makes loads the limit. */
VFN P
p_hold(P p)
{
	__asm__("" : "+v"(p));
	return p;
}
VFN P
p_fma(P a, P b, P c)
{
	return _mm512_fmadd_ps(a, b, c);
}
VFN P
p_of(V v, int part)
{
	(void) part;
	return v;
}
VFN void
p_put(V *v, int part, P p)
{
	(void) part;
	*v = p;
}
VFN V
v_add(V a, V b)
{
	return _mm512_add_ps(a, b);
}
VFN V
v_sub(V a, V b)
{
	return _mm512_sub_ps(a, b);
}
VFN V
v_mul(V a, V b)
{
	return _mm512_mul_ps(a, b);
}
VFN V
v_div(V a, V b)
{
	return _mm512_div_ps(a, b);
}
/* a < b ? a : b and a > b ? a : b: of a NaN and a number, the second. */
VFN V
v_min(V a, V b)
{
	return _mm512_min_ps(a, b);
}
VFN V
v_max(V a, V b)
{
	return _mm512_max_ps(a, b);
}
VFN V
v_neg(V a)
{
	return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32(INT32_MIN)));
}
VFN V
v_load_bf16(const uint8_t *p)
{
	__m256i half = _mm256_loadu_si256((const __m256i *) p);

	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
VFN V
v_load_i8(const int8_t *p)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) p)));
}
VFN V
v_load_f16(const uint8_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p));
}
/* 2^-8 times the values: widened to 16 bits and shifted by 7, an E4M3 number is an F16 number with another exponent bias,
 * subnormals included; only the copies of the sign in between have to go. */
VFN V
v_load_fp8(const uint8_t *p)
{
	__m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) p)), 7);

	return _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16((int16_t) 0xbfff)));
}

VFN __m256
fold16(V v)
{
	return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

#include "kernels/fold8.h"

/* The largest lane; no NaN. */
VFN float
v_largest(V v)
{
	return _mm512_reduce_max_ps(v);
}
VFN float
v_reduce(V v)
{
	return fold8(fold16(v));
}
VFN void
v_reduce4(V a, V b, V c, V d, float *y)
{
	_mm_storeu_ps(y, fold8x4(fold16(a), fold16(b), fold16(c), fold16(d)));
}

VFN I
i_zero(void)
{
	return _mm512_setzero_si512();
}
VFN I
i_load(const uint8_t *p)
{
	return _mm512_loadu_si512(p);
}
/* Bytes 0 and 2 of each 32-bit lane as a pair of int16; bytes 1 and 3. */
VFN I
i_even_bytes(I v)
{
	return _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8);
}
VFN I
i_odd_bytes(I v)
{
	return _mm512_srai_epi16(v, 8);
}
VFN I
i_broadcast_pair(const int16_t *p)
{
	int32_t pair;

	__builtin_memcpy(&pair, p, sizeof(pair));
	return _mm512_set1_epi32(pair);
}
VFN I
i_dot_pairs(I sum, I a, I b)
{
	return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
}
VFN V
i_to_float(I v)
{
	return _mm512_cvtepi32_ps(v);
}
VFN I
i_sub(I a, I b)
{
	return _mm512_sub_epi32(a, b);
}
VFN I
i_max(I a, I b)
{
	return _mm512_max_epi32(a, b);
}
VFN I
i_bits(V v)
{
	return _mm512_castps_si512(v);
}
VFN I
i_half(I v)
{
	return _mm512_srai_epi32(v, 1);
}
/* 2^v as float, for v in -126..127. */
VFN V
i_exp2(I v)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(127)), 23));
}
VFN I
i_magnitude(V v)
{
	return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(INT32_MAX));
}
VFN float
i_largest_as_float(I v)
{
	int32_t largest = _mm512_reduce_max_epi32(v);
	float f;

	__builtin_memcpy(&f, &largest, sizeof(f));
	return f;
}
/* 16 floats to int16, rounding to nearest even. */
VFN void
v_store_codes(int16_t *p, V v)
{
	_mm256_storeu_si256((__m256i *) p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v)));
}

#include "kernels/simd.h"

#endif
