/*
 * quant_chain.h
 *	  The innermost sums of the A4 and S6 products, in assembler: one group of columns of a panel against 1 to 4 rows of
 *	  activation codes. Included by quant_avx2.c alone.
 *
 * vpmaddubsw multiplies unsigned weight codes by signed activation codes and adds pairs; vpaddw adds those up. Nothing
 * saturates and the final sums fit 16 bits: A4: 16 products of at most 15 * 127 stay below 2^15 (4 x 8 columns in
 * two halves of a lane); S6: 2 products of 63 * 127 do, and the sum of 8, wrapped as it may be on the way, is right in the end
 * because the true signed sum, with -32 * the codes' sum (Dsv3CodeBlock.start) in it, is at most 8 * 32 * 127.
 *
 * The order multiply, multiply, add, add and the registers are fixed by hand: a compiler that moves the multiplies together
 * spills, and loses half of the speed. Lane n of sum[2 i] belongs to row i and matrix row n, of sum[2 i + 1] to matrix
 * row 8 + n; both 16-bit halves of a lane are parts of the same sum.
 */
#ifndef DSV3_QUANT_CHAIN_H
#define DSV3_QUANT_CHAIN_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/quant.h"

/* 4 columns of row i at byte k of its codes, times the weights in w0 (matrix rows 0-7) and w1 (8-15). */
#define MULTIPLY(i, k)                                                                                       \
	"vpbroadcastd " k "(%[a" #i "]), %[b]\n\t"                                                               \
	"vpmaddubsw %[b], %[w0], %[t0]\n\t"                                                                      \
	"vpmaddubsw %[b], %[w1], %[t1]\n\t"
#define ADD(i)                                                                                               \
	"vpaddw %[t0], %[l" #i "], %[l" #i "]\n\t"                                                               \
	"vpaddw %[t1], %[h" #i "], %[h" #i "]\n\t"
#define ROW(i, k) MULTIPLY(i, k) ADD(i)

/* The first 4 columns of a group: nothing to add to, or the start. */
#define FIRST(i, k)                                                                                          \
	"vpbroadcastd " k "(%[a" #i "]), %[b]\n\t"                                                               \
	"vpmaddubsw %[b], %[w0], %[l" #i "]\n\t"                                                                 \
	"vpmaddubsw %[b], %[w1], %[h" #i "]\n\t"
#define START(i, k)                                                                                          \
	FIRST(i, k)                                                                                              \
	"vpbroadcastd (%[s" #i "]), %[b]\n\t"                                                                    \
	"vpaddw %[b], %[l" #i "], %[l" #i "]\n\t"                                                                \
	"vpaddw %[b], %[h" #i "], %[h" #i "]\n\t"

#define ROWS_1(op, k) op(0, k)
#define ROWS_2(op, k) ROWS_1(op, k) op(1, k)
#define ROWS_3(op, k) ROWS_2(op, k) op(2, k)
#define ROWS_4(op, k) ROWS_3(op, k) op(3, k)

/* Weights of the s-th 4 columns of a group from an unpacked slab. */
#define SLAB(s)                                                                                              \
	"vmovdqa 64*" #s "(%[w]), %[w0]\n\t"                                                                     \
	"vmovdqa 64*" #s "+32(%[w]), %[w1]\n\t"

/* Of a packed A4 line, the low and the high halves; of a packed S6 group, the s-th 4 columns. */
#define NIBBLES_LOW(line, at, reg) "vpand 64*" #line "+" #at "(%[w]), %[mask], " reg "\n\t"
#define NIBBLES_HIGH(line, at, reg)                                                                          \
	"vmovdqu 64*" #line "+" #at "(%[w]), " reg "\n\t"                                                        \
	"vpsrlw $4, " reg ", " reg "\n\t"                                                                        \
	"vpand %[mask], " reg ", " reg "\n\t"
#define A4_LOW(line)                                                                                         \
	NIBBLES_LOW(line, 0, "%[w0]")                                                                            \
	NIBBLES_LOW(line, 32, "%[w1]")
#define A4_HIGH(line)                                                                                        \
	NIBBLES_HIGH(line, 0, "%[w0]")                                                                           \
	NIBBLES_HIGH(line, 32, "%[w1]")
#define PREFETCH(line) "prefetcht0 64*" #line "(%[ahead])\n\t"

#define HIGH_BITS(at, shift, reg)                                                                            \
	"vmovdqu 128+" #at "(%[w]), " reg "\n\t" shift(reg) "vpand %[mask2], " reg ", " reg "\n\t"
#define LEFT_4(reg)  "vpsllw $4, " reg ", " reg "\n\t"
#define LEFT_2(reg)  "vpsllw $2, " reg ", " reg "\n\t"
#define LEFT_0(reg)  ""
#define RIGHT_2(reg) "vpsrlw $2, " reg ", " reg "\n\t"
#define S6_STEP(line, nibbles, shift)                                                                        \
	HIGH_BITS(0, shift, "%[w0]")                                                                             \
	HIGH_BITS(32, shift, "%[w1]")                                                                            \
	nibbles(line, 0, "%[t0]") nibbles(line, 32, "%[t1]") "vpor %[t0], %[w0], %[w0]\n\t"                      \
														 "vpor %[t1], %[w1], %[w1]\n\t"

#define OUT_1    [l0] "=&x"(sum[0]), [h0] "=&x"(sum[1])
#define OUT_2    OUT_1, [l1] "=&x"(sum[2]), [h1] "=&x"(sum[3])
#define OUT_3    OUT_2, [l2] "=&x"(sum[4]), [h2] "=&x"(sum[5])
#define OUT_4    OUT_3, [l3] "=&x"(sum[6]), [h3] "=&x"(sum[7])
#define TEMP     [w0] "=&x"(w0), [w1] "=&x"(w1), [b] "=&x"(b), [t0] "=&x"(t0), [t1] "=&x"(t1)
#define CODES_1  [a0] "r"(a[0])
#define CODES_2  CODES_1, [a1] "r"(a[1])
#define CODES_3  CODES_2, [a2] "r"(a[2])
#define CODES_4  CODES_3, [a3] "r"(a[3])
#define STARTS_1 [s0] "r"(s[0])
#define STARTS_2 STARTS_1, [s1] "r"(s[1])
#define STARTS_3 STARTS_2, [s2] "r"(s[2])
#define STARTS_4 STARTS_3, [s3] "r"(s[3])

#define CHAIN static inline __attribute__((always_inline)) void

/*
 * chain_<source>_<rows>(w, ahead, a, s, sum): w the group's weights; ahead what to prefetch (packed sources); a [rows] the
 * rows' codes of the group; s [rows] their starts (S6). sum [2 * rows] is set.
 */
#define DEFINE_CHAINS(R)                                                                                     \
	CHAIN chain_a4_slab_##R(const uint8_t *w, const int8_t *const *a, __m256i *sum)                          \
	{                                                                                                        \
		__m256i w0, w1, b, t0, t1;                                                                           \
                                                                                                             \
		__asm__(SLAB(0) ROWS_##R(FIRST, "0") SLAB(1) ROWS_##R(ROW, "4") SLAB(2) ROWS_##R(ROW, "8") SLAB(3)   \
					ROWS_##R(ROW, "12") SLAB(4) ROWS_##R(ROW, "16") SLAB(5) ROWS_##R(ROW, "20") SLAB(6)      \
						ROWS_##R(ROW, "24") SLAB(7) ROWS_##R(ROW, "28")                                      \
				: OUT_##R, TEMP                                                                              \
				: [w] "r"(w), CODES_##R                                                                      \
				: "memory");                                                                                 \
	}                                                                                                        \
	CHAIN chain_s6_slab_##R(const uint8_t *w, const int8_t *const *a, const void *const *s, __m256i *sum)    \
	{                                                                                                        \
		__m256i w0, w1, b, t0, t1;                                                                           \
                                                                                                             \
		__asm__(SLAB(0) ROWS_##R(START, "0") SLAB(1) ROWS_##R(ROW, "4") SLAB(2) ROWS_##R(ROW, "8") SLAB(3)   \
					ROWS_##R(ROW, "12")                                                                      \
				: OUT_##R, TEMP                                                                              \
				: [w] "r"(w), CODES_##R, STARTS_##R                                                          \
				: "memory");                                                                                 \
	}                                                                                                        \
	CHAIN chain_a4_##R(const uint8_t *w, const uint8_t *ahead, const int8_t *const *a, __m256i *sum)         \
	{                                                                                                        \
		__m256i w0, w1, b, t0, t1;                                                                           \
                                                                                                             \
		__asm__(PREFETCH(0) A4_LOW(0) ROWS_##R(FIRST, "0") A4_HIGH(0) ROWS_##R(ROW, "4") PREFETCH(1)         \
					A4_LOW(1) ROWS_##R(ROW, "8") A4_HIGH(1) ROWS_##R(ROW, "12") PREFETCH(2) A4_LOW(2)        \
						ROWS_##R(ROW, "16") A4_HIGH(2) ROWS_##R(ROW, "20") PREFETCH(3) A4_LOW(3)             \
							ROWS_##R(ROW, "24") A4_HIGH(3) ROWS_##R(ROW, "28")                               \
				: OUT_##R, TEMP                                                                              \
				: [w] "r"(w), [ahead] "r"(ahead), CODES_##R, [mask] "x"(_mm256_set1_epi8(15))                \
				: "memory");                                                                                 \
	}                                                                                                        \
	CHAIN chain_s6_##R(const uint8_t *w, const uint8_t *ahead, const int8_t *const *a, const void *const *s, \
					   __m256i *sum)                                                                         \
	{                                                                                                        \
		__m256i w0, w1, b, t0, t1;                                                                           \
                                                                                                             \
		__asm__(PREFETCH(0) S6_STEP(0, NIBBLES_LOW, LEFT_4) ROWS_##R(START, "0") PREFETCH(1)                 \
					S6_STEP(0, NIBBLES_HIGH, LEFT_2) ROWS_##R(ROW, "4") PREFETCH(2)                          \
						S6_STEP(1, NIBBLES_LOW, LEFT_0) ROWS_##R(ROW, "8") S6_STEP(1, NIBBLES_HIGH, RIGHT_2) \
							ROWS_##R(ROW, "12")                                                              \
				: OUT_##R, TEMP                                                                              \
				: [w] "r"(w), [ahead] "r"(ahead), CODES_##R,                                                 \
				  STARTS_##R, [mask] "x"(_mm256_set1_epi8(15)), [mask2] "x"(_mm256_set1_epi8(48))            \
				: "memory");                                                                                 \
	}

DEFINE_CHAINS(1)
DEFINE_CHAINS(2)
DEFINE_CHAINS(3)
DEFINE_CHAINS(4)

#endif /* DSV3_QUANT_CHAIN_H */
