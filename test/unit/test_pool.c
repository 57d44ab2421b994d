/*
 * test_pool.c
 *	  The thread pool: each slice once, the caller waits for all, any number of threads, no processor time when idle.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/altstack.h"
#include "kernels/pool.h"

#define MAX_SLICES 1000

typedef struct Work
{
	atomic_int hits[MAX_SLICES];
	int64_t plain; /* written by slice 0 only; visible to the caller afterwards */
} Work;

static void
count(void *arg, int64_t i)
{
	Work *work = arg;

	atomic_fetch_add(&work->hits[i], 1);
	if (i == 0)
		work->plain++;
}

static void
test_each_slice_once(void **state)
{
	static const int threads[] = {1, 2, 3, 8};

	(void) state;
	for (int t = 0; t < 4; t++)
	{
		Dsv3Error err;
		Dsv3Pool *pool = dsv3_pool_open(threads[t], &err);
		static Work work;

		assert_non_null(pool);
		assert_int_equal(dsv3_pool_threads(pool), threads[t]);
		memset(&work, 0, sizeof(work));
		for (int round = 0; round < 3000; round++)
		{
			int n = round % 17 == 0 ? MAX_SLICES : round % 7;

			if (round % 500 == 0)
				dsv3_pool_begin(pool);
			if (round % 500 == 400)
				dsv3_pool_end(pool);
			for (int i = 0; i < n; i++)
				atomic_store(&work.hits[i], 0);
			work.plain = 0;
			dsv3_pool_run(pool, n, count, &work);
			for (int i = 0; i < n; i++)
				assert_int_equal(atomic_load(&work.hits[i]), 1);
			assert_int_equal(work.plain, n > 0);
		}
		dsv3_pool_close(pool);
	}
}

static void
nap(void *arg, int64_t i)
{
	struct timespec t = {.tv_nsec = 2000000 * (long) (1 + i % 3)};

	nanosleep(&t, NULL);
	atomic_fetch_add((atomic_int *) arg, 1);
}

/* Slices that outlast the caller's spinning. */
static void
test_waits(void **state)
{
	Dsv3Error err;
	Dsv3Pool *pool = dsv3_pool_open(4, &err);

	(void) state;
	assert_non_null(pool);
	for (int round = 0; round < 20; round++)
	{
		atomic_int done = 0;

		dsv3_pool_run(pool, 5, nap, &done);
		assert_int_equal(atomic_load(&done), 5);
	}
	dsv3_pool_close(pool);
}

static double
cpu_seconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double) (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
		   (double) (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void
test_idle_costs_nothing(void **state)
{
	Dsv3Error err;
	Dsv3Pool *pool = dsv3_pool_open(2, &err);
	static Work work;
	struct timespec t = {.tv_nsec = 300000000};
	double before;

	(void) state;
	assert_non_null(pool);
	for (int step = 0; step < 2; step++)
	{
		/* also inside a step that makes no progress: spinning is bounded */
		if (step)
			dsv3_pool_begin(pool);
		dsv3_pool_run(pool, 10, count, &work);
		before = cpu_seconds();
		nanosleep(&t, NULL);
		assert_true(cpu_seconds() - before < 0.02);
	}
	dsv3_pool_close(pool);
}

/* Which threads have a stack for signal handlers, by bits. */
static void
look_for_stack(void *arg, int64_t i)
{
	atomic_int *have = arg;
	stack_t stack;

	assert_int_equal(sigaltstack(NULL, &stack), 0);
	/* Keep the slice until another thread has taken the other one. */
	atomic_fetch_add(have, stack.ss_flags & SS_DISABLE ? 16 : 1);
	while (atomic_load(have) % 16 + atomic_load(have) / 16 < 2)
		usleep(100);
	(void) i;
}

static void
test_crash_stacks(void **state)
{
	Dsv3Error err;
	Dsv3Pool *pool = dsv3_pool_open(2, &err);
	atomic_int have = 0;

	(void) state;
	assert_non_null(pool);
	dsv3_pool_run(pool, 2, look_for_stack, &have);
	assert_int_equal(atomic_load(&have),
					 17); /* the pool's thread has one, the caller is this process's business */
	dsv3_pool_close(pool);
}

static void
test_bad_counts(void **state)
{
	Dsv3Error err;

	(void) state;
	assert_null(dsv3_pool_open(-1, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_INVALID_PARAMETER);
	assert_null(dsv3_pool_open(DSV3_POOL_MAX_THREADS + 1, &err));
	dsv3_pool_close(NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_slice_once),    cmocka_unit_test(test_waits),
		cmocka_unit_test(test_idle_costs_nothing), cmocka_unit_test(test_bad_counts),
		cmocka_unit_test(test_crash_stacks),
	};
	/* A sanitizer gives threads stacks of its own: the last one is not for it. */
	size_t n = sizeof(tests) / sizeof(tests[0]) - (DSV3_HAVE_SANITIZER ? 1 : 0);

	return _cmocka_run_group_tests("pool", tests, n, NULL, NULL);
}
