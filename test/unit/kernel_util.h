/*
 * kernel_util.h
 *	  What the kernel tests share: numbers from a fixed generator, and comparing by bits.
 */
#ifndef DSV3_TEST_KERNEL_UTIL_H
#define DSV3_TEST_KERNEL_UTIL_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t rng_state;

static inline uint32_t
rng(void)
{
	rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t) (rng_state >> 33);
}

/* Roughly normal, with some exact zeros and some large values. */
static inline float
rng_float(void)
{
	uint32_t kind = rng() % 64;
	float f =
		((float) (rng() % 65536) - 32768.0f) / 32768.0f + ((float) (rng() % 65536) - 32768.0f) / 32768.0f;

	return kind == 0 ? 0.0f : kind == 1 ? -0.0f : kind == 2 ? f * 300.0f : kind == 3 ? f * 1e-6f : f;
}

static inline float *
floats(int64_t n)
{
	float *f = malloc((size_t) (n ? n : 1) * sizeof(float));

	for (int64_t i = 0; i < n; i++)
		f[i] = rng_float();
	return f;
}

static inline void
assert_same_bits(const char *what, const char *set, int detail, const float *a, const float *b, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
	{
		if (memcmp(a + i, b + i, sizeof(float)) != 0)
			fail_msg("%s, set %s (%d): element %ld is %a, expected %a", what, set, detail, (long) i,
					 (double) b[i], (double) a[i]);
	}
}

#endif /* DSV3_TEST_KERNEL_UTIL_H */
