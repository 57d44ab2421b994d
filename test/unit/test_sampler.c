/*
 * test_sampler.c
 *	  Sampling against worked examples and plain re-computations: greedy, penalty, each filter, the random numbers, bad logits.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/sampler.h"

static const Dsv3SeenIds nothing_seen = {0};

static const Dsv3Sampling greedy = {.top_p = 1.0, .repetition_penalty = 1.0};

static int32_t
pick(const Dsv3Sampling *sampling, const Dsv3SeenIds *seen, const float *logits, int n, uint64_t index)
{
	Dsv3Sampler sampler;
	Dsv3Error err;
	int32_t id = -1;

	assert_true(dsv3_sampler_open(&sampler, n, &err));
	assert_true(dsv3_sampler_pick(&sampler, sampling, seen, logits, NULL, index, &id, &err));
	dsv3_sampler_close(&sampler);
	return id;
}

static void
greedy_takes_the_first_largest(void **state)
{
	const float logits[] = {-1, 3, 2, 3, -INFINITY};

	(void) state;
	assert_int_equal(pick(&greedy, &nothing_seen, logits, 5, 0), 1);
	assert_int_equal(pick(&greedy, &nothing_seen, logits + 2, 3, 0), 1);
}

/* Positive scores are divided, negative ones multiplied; seen once or often is the same. */
static void
penalty(void **state)
{
	Dsv3Sampling sampling = {.top_p = 1.0, .repetition_penalty = 2.0};
	const float positive[] = {4.0f, 3.0f, 1.9f};
	const float negative[] = {-1.0f, -1.5f, -3.0f};
	Dsv3SeenIds seen;
	Dsv3Error err;

	(void) state;
	assert_true(dsv3_seen_open(&seen, &sampling, 3, &err));
	dsv3_seen_add(&seen, 0);
	dsv3_seen_add(&seen, 0);
	dsv3_seen_add(&seen, 99); /* out of range: ignored */
	assert_int_equal(pick(&sampling, &seen, positive, 3, 0), 1);
	assert_int_equal(pick(&sampling, &seen, negative, 3, 0), 1);
	dsv3_seen_close(&seen);
	assert_true(dsv3_seen_open(&seen, &greedy, 3, &err));
	assert_null(seen.bits);
}

/* The set of ids that can come out, and how often each does, over many positions. */
static void
frequencies(const Dsv3Sampling *sampling, const float *logits, int n, double *share)
{
	enum
	{
		ROUNDS = 20000
	};

	memset(share, 0, (size_t) n * sizeof(double));
	for (int i = 0; i < ROUNDS; i++)
		share[pick(sampling, &nothing_seen, logits, n, (uint64_t) i)] += 1.0 / ROUNDS;
}

static void
expect_shares(const Dsv3Sampling *sampling, const float *logits, int n, const double *expected)
{
	double share[8];

	frequencies(sampling, logits, n, share);
	for (int i = 0; i < n; i++)
	{
		if (expected[i] == 0.0)
			assert_true(share[i] == 0.0);
		else
			assert_true(fabs(share[i] - expected[i]) < 0.015);
	}
}

/* Probabilities .5 .25 .125 .125 as logits. */
static const float halves[] = {0.0f, -0.693147180559945f, -1.38629436111989f, -1.38629436111989f};

static void
temperature(void **state)
{
	const double one[] = {.5, .25, .125, .125};
	/* 1/T = 2 squares the probabilities: 16 4 1 1 of 22. */
	const double half[] = {16. / 22, 4. / 22, 1. / 22, 1. / 22};

	(void) state;
	expect_shares(&(Dsv3Sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1}, halves, 4, one);
	expect_shares(&(Dsv3Sampling){.temperature = .5, .top_p = 1, .repetition_penalty = 1, .seed = 5}, halves,
				  4, half);
	assert_int_equal(pick(&(Dsv3Sampling){.temperature = 1e-300, .top_p = 1, .repetition_penalty = 1},
						  &nothing_seen, halves, 4, 0),
					 0);
}

static void
filters(void **state)
{
	const double two[] = {2. / 3, 1. / 3, 0, 0};
	const double all[] = {.5, .25, .125, .125};
	const double one[] = {1, 0, 0, 0};
	Dsv3Sampling s = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

	(void) state;
	s.top_k = 2;
	expect_shares(&s, halves, 4, two);
	s.top_k = 3; /* a tie at the boundary keeps both */
	expect_shares(&s, halves, 4, all);
	s.top_k = 0;
	s.top_p = 0.5; /* the first alone reaches it */
	expect_shares(&s, halves, 4, one);
	s.top_p = 0.51;
	expect_shares(&s, halves, 4, two);
	s.top_p = 0.74;
	expect_shares(&s, halves, 4, two);
	s.top_p = 1e-9;
	expect_shares(&s, halves, 4, one);
	s.top_p = 1;
	s.min_p = 0.4; /* of the largest, .5: at least .2 */
	expect_shares(&s, halves, 4, two);
	s.min_p = 0.2;
	expect_shares(&s, halves, 4, all);
	s.min_p = 1;
	expect_shares(&s, halves, 4, one);
}

/* top-k comes before top-p: of two left with 2/3 and 1/3, the first reaches .6 alone, of all four it does not. */
static void
filter_order(void **state)
{
	const double one[] = {1, 0, 0, 0};
	const double two[] = {2. / 3, 1. / 3, 0, 0};
	Dsv3Sampling s = {.temperature = 1, .top_p = 0.6, .repetition_penalty = 1};

	(void) state;
	expect_shares(&s, halves, 4, two);
	s.top_k = 2;
	expect_shares(&s, halves, 4, one);
}

static void
random_logits(float *logits, int n, uint64_t seed)
{
	for (int i = 0; i < n; i++)
		logits[i] = (float) (dsv3_random_uniform((int64_t) seed, (uint64_t) i) * 30.0 - 15.0);
}

/* top-p over a large vocabulary, where only a part of the order is sorted, against sorting everything. */
typedef struct Scored
{
	double score;
	int id;
} Scored;

static int
compare_scored(const void *a, const void *b)
{
	const Scored *x = a;
	const Scored *y = b;

	return x->score > y->score ? -1 : x->score < y->score ? 1 : x->id - y->id;
}

static void
large_top_p(void **state)
{
	enum
	{
		N = 5000
	};
	float *logits = malloc(N * sizeof(float));
	Scored *sorted = malloc(N * sizeof(Scored));
	static const double limits[] = {0.01, 0.5, 0.9, 0.999, 0.9999999};

	(void) state;
	for (int round = 0; round < 20; round++)
	{
		Dsv3Sampling s = {
			.temperature = 0.3 + round * 0.4, .top_p = limits[round % 5], .repetition_penalty = 1};
		double total = 0;
		double before = 0;
		double floor = -INFINITY;

		random_logits(logits, N, (uint64_t) round);
		for (int i = 0; i < N; i++)
			sorted[i] = (Scored){(double) logits[i] / s.temperature, i};
		qsort(sorted, N, sizeof(Scored), compare_scored);
		for (int i = 0; i < N; i++)
			total += exp(sorted[i].score - sorted[0].score);
		for (int i = 0; i < N; i++)
		{
			if (i > 0 && before >= s.top_p * total)
				break;
			floor = sorted[i].score;
			before += exp(sorted[i].score - sorted[0].score);
		}
		for (uint64_t index = 0; index < 200; index++)
			assert_true((double) logits[pick(&s, &nothing_seen, logits, N, index)] / s.temperature >= floor);
	}
	free(logits);
	free(sorted);
}

/* Known answers of Philox-4x32-10 with a zero counter and key: 6627e8d5 e169c58d bc57ac4c 9b00dbd8. */
static void
random_numbers(void **state)
{
	double sum = 0;

	(void) state;
	assert_true(dsv3_random_uniform(0, 0) == (double) (UINT64_C(0xe169c58d6627e8d5) >> 11) * 0x1.0p-53);
	assert_true(dsv3_random_uniform(1, 0) != dsv3_random_uniform(0, 0));
	assert_true(dsv3_random_uniform(0, 1) != dsv3_random_uniform(0, 0));
	assert_true(dsv3_random_uniform(INT64_C(1) << 40, 0) != dsv3_random_uniform(0, 0));
	for (uint64_t i = 0; i < 100000; i++)
	{
		double u = dsv3_random_uniform(42, i);

		assert_true(u >= 0 && u < 1);
		sum += u;
	}
	assert_true(fabs(sum / 100000 - 0.5) < 0.005);
}

/*
 * A mask, a list, and logits of minus infinity say the same thing: the choice is the same for every setting.
 */
static void
masks_and_lists(void **state)
{
	enum
	{
		N = 100
	};
	static const double temperatures[] = {0, 1e-300, 0.7, 3};
	static const uint32_t top_ks[] = {0, 1, 2, 7, 150};
	static const double top_ps[] = {1, 0.9, 0.3, 1e-9};
	static const double min_ps[] = {0, 0.05, 1};
	static const double penalties[] = {1, 1.3, 0.5};
	Dsv3Sampler sampler;
	uint64_t random = 7;
	Dsv3Error err;

	(void) state;
	assert_true(dsv3_sampler_open(&sampler, N, &err));
	for (int round = 0; round < 720 * 8; round++)
	{
		Dsv3Sampling s = {.temperature = temperatures[round % 4],
						  .top_k = top_ks[round / 4 % 5],
						  .top_p = top_ps[round / 20 % 4],
						  .min_p = min_ps[round / 80 % 3],
						  .repetition_penalty = penalties[round / 240 % 3],
						  .seed = round};
		int share = round / 720 * 12 + 1; /* of N */
		uint64_t allowed[N / 64 + 1] = {0};
		int32_t ids[N];
		float all[N];
		float listed[N];
		float rest[N];
		int n = 0;
		int32_t by_mask;
		int32_t by_list;
		int32_t by_logits;
		Dsv3SeenIds seen;

		assert_true(dsv3_seen_open(&seen, &s, N, &err));
		for (int id = 0; id < N; id++)
		{
			random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
			/* many equal ones, and some that cannot be */
			all[id] = random >> 60 == 0 && n > 0 ? -INFINITY : (float) ((int) (random >> 50) % 64) / 4 - 8;
			if (random >> 40 & 1)
				dsv3_seen_add(&seen, id);
			rest[id] = -INFINITY;
			if ((int) (random >> 16) % N >= share && !(n == 0 && id == N - 1))
				continue;
			allowed[id / 64] |= UINT64_C(1) << id % 64;
			ids[n] = id;
			listed[n++] = rest[id] = all[id];
		}
		if (listed[0] == -INFINITY)
			listed[0] = rest[ids[0]] = all[ids[0]] = 0;
		all[(ids[0] + 1) % N] = n < N && !(allowed[(ids[0] + 1) % N / 64] >> (ids[0] + 1) % N % 64 & 1)
									? NAN
									: all[(ids[0] + 1) % N];
		assert_true(dsv3_sampler_pick(&sampler, &s, &seen, all, allowed, 3, &by_mask, &err));
		assert_true(dsv3_sampler_pick_listed(&sampler, &s, &seen, ids, listed, n, 3, &by_list, &err));
		assert_true(dsv3_sampler_pick(&sampler, &s, &seen, rest, NULL, 3, &by_logits, &err));
		assert_int_equal(by_list, by_mask);
		assert_int_equal(by_list, by_logits);
		dsv3_seen_close(&seen);
	}
	dsv3_sampler_close(&sampler);
}

static void
bad_logits(void **state)
{
	const float nan_at_end[] = {1, 2, NAN};
	const float infinite[] = {1, INFINITY, 2};
	const float nothing[] = {-INFINITY, -INFINITY};
	Dsv3Sampler sampler;
	Dsv3Error err;
	int32_t id;
	double sum;

	(void) state;
	assert_true(dsv3_sampler_open(&sampler, 3, &err));
	assert_false(dsv3_sampler_pick(&sampler, &greedy, &nothing_seen, nan_at_end, NULL, 0, &id, &err));
	assert_string_equal(err.sqlstate, "XX000");
	assert_false(dsv3_sampler_pick(&sampler, &greedy, &nothing_seen, infinite, NULL, 0, &id, &err));
	assert_false(dsv3_sampler_logsum(nan_at_end, 3, &sum, &err));
	dsv3_sampler_close(&sampler);
	assert_true(dsv3_sampler_open(&sampler, 2, &err));
	assert_false(dsv3_sampler_pick(&sampler, &greedy, &nothing_seen, nothing, NULL, 0, &id, &err));
	assert_false(dsv3_sampler_logsum(nothing, 2, &sum, &err));
	dsv3_sampler_close(&sampler);
}

static void
log_probabilities(void **state)
{
	float logits[4];
	int32_t top[DSV3_MAX_LOGPROBS];
	double sum;
	Dsv3Error err;

	(void) state;
	for (int i = 0; i < 4; i++)
		logits[i] = halves[i] + 100.0f;
	assert_true(dsv3_sampler_logsum(logits, 4, &sum, &err));
	assert_true(fabs(logits[0] - sum - log(.5)) < 1e-5);
	assert_int_equal(dsv3_sampler_top(logits, 4, 3, top), 3);
	assert_true(top[0] == 0 && top[1] == 1 && top[2] == 2);
	assert_int_equal(dsv3_sampler_top(logits, 4, 20, top), 4);
	assert_int_equal(dsv3_sampler_top(logits, 4, 0, top), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(greedy_takes_the_first_largest),
		cmocka_unit_test(penalty),
		cmocka_unit_test(temperature),
		cmocka_unit_test(filters),
		cmocka_unit_test(filter_order),
		cmocka_unit_test(large_top_p),
		cmocka_unit_test(random_numbers),
		cmocka_unit_test(masks_and_lists),
		cmocka_unit_test(bad_logits),
		cmocka_unit_test(log_probabilities),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
