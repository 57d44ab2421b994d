/*
 * test_rope.c
 *	  Sines and cosines against the C library's double, angles, and the rotation in both lane orders.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "model/rope.h"

/* Rounded once from a value good to 1e-16: off from the rounding of the true value at most when that is half-way. */
static void
test_sincos(void **state)
{
	int wrong = 0, n = 0;

	(void) state;
	for (int range = 0; range < 24; range++)
	{
		for (int i = -2000; i <= 2000; i++)
		{
			float angle = (float) i * ldexpf(0.00073f, range);
			float s, c;

			dsv3_sincos(angle, &s, &c);
			assert_true(fabs((double) s - sin((double) angle)) <= 6e-8 * fabs(sin((double) angle)) + 1e-45);
			assert_true(fabs((double) c - cos((double) angle)) <= 6e-8 * fabs(cos((double) angle)) + 1e-45);
			wrong += s != (float) sin((double) angle);
			wrong += c != (float) cos((double) angle);
			n += 2;
		}
	}
	assert_true(wrong < n / 10000);
}

static void
test_sincos_extreme(void **state)
{
	float s, c;

	(void) state;
	dsv3_sincos(0.0f, &s, &c);
	assert_true(s == 0.0f && c == 1.0f);
	dsv3_sincos(1e30f, &s, &c);
	assert_true(fabsf(s) <= 1.0f && fabsf(c) <= 1.0f);
	dsv3_sincos(INFINITY, &s, &c);
	assert_true(isnan(s) && isnan(c));
}

/* The second table from long_from on; the factor on both. */
static void
test_angles(void **state)
{
	float near[2] = {1.0f, 0.25f}, far[2] = {0.5f, 0.125f};
	float c[2], s[2];
	Dsv3Rope rope = {.long_from = 100, .attention_factor = 1.5f, .inv_freq = near, .inv_freq_long = far};

	(void) state;
	dsv3_rope_angles(&rope, 2, 99, c, s);
	for (int j = 0; j < 2; j++)
	{
		assert_true(fabs((double) c[j] - 1.5 * cos(99.0 * (double) near[j])) < 2e-7);
		assert_true(fabs((double) s[j] - 1.5 * sin(99.0 * (double) near[j])) < 2e-7);
	}
	dsv3_rope_angles(&rope, 2, 100, c, s);
	for (int j = 0; j < 2; j++)
		assert_true(fabs((double) c[j] - 1.5 * cos(100.0 * (double) far[j])) < 2e-7);
}

static void
test_rotate(void **state)
{
	const float c[2] = {0.5f, -0.25f}, s[2] = {2.0f, 4.0f};
	float interleaved[4] = {1, 2, 3, 4};
	float halves[4] = {1, 3, 2, 4};

	(void) state;
	dsv3_rope_rotate(interleaved, c, s, 2, true);
	dsv3_rope_rotate(halves, c, s, 2, false);
	assert_true(interleaved[0] == 1 * 0.5f - 2 * 2.0f && interleaved[1] == 2 * 0.5f + 1 * 2.0f);
	assert_true(interleaved[2] == 3 * -0.25f - 4 * 4.0f && interleaved[3] == 4 * -0.25f + 3 * 4.0f);
	for (int j = 0; j < 2; j++)
	{
		assert_true(halves[j] == interleaved[2 * j]);
		assert_true(halves[j + 2] == interleaved[2 * j + 1]);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sincos),
		cmocka_unit_test(test_sincos_extreme),
		cmocka_unit_test(test_angles),
		cmocka_unit_test(test_rotate),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
