/*
 * pool.c
 *	  The thread pool of pool.h.
 *
 * State shared between threads, all atomic:
 *	ticket   (run number << 32) | next slice. A slice is claimed by compare-and-swap on the whole word, so a thread that
 *	         comes late can never take a slice of another run than the one it saw.
 *	fn, arg, n   of the current run. The caller first closes the ticket (a slice number beyond any n), then writes them, then
 *	         opens the ticket. A thread still looking at the run before can read the new n, but then its swap meets a
 *	         closed or new ticket and fails; what is read after a claim is stable, because the caller cannot finish
 *	         the run before the claimed slice is done.
 *	done     slices finished in the current run; the caller waits for n.
 *	run      futex word that changes with every run; idle threads sleep on it.
 *	sleepers, caller_waits   say whether a wake-up call is needed at all.
 *
 * The caller does not wait for threads that claimed nothing, so a thread that is not running costs nothing.
 */
#include "kernels/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/altstack.h"

/* How long a thread looks for the next loop of a step before it sleeps. */
#define SPIN_NS 50000

struct Dsv3Pool
{
	_Alignas(64) atomic_uint_least64_t ticket;
	_Alignas(64) atomic_int_least64_t done;
	_Alignas(64) _Atomic(Dsv3SliceFn) fn;
	_Atomic(void *) arg;
	atomic_int_least64_t n;
	_Alignas(64) atomic_uint run;
	atomic_uint sleepers;
	atomic_uint caller_waits; /* futex word: 1 while the caller sleeps */
	atomic_bool in_step;
	atomic_bool closing;
	int n_threads; /* including the caller */
	bool may_spin;
	int n_started;
	atomic_int n_numbered;
	pthread_t *threads;
};

static _Thread_local int self;

static long
futex(atomic_uint *word, int op, unsigned value)
{
	return syscall(SYS_futex, (unsigned *) word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static inline void
cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#else
	__asm__ volatile("" ::: "memory");
#endif
}

static int64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

/* CPUs this process may run on. */
static int
usable_cpus(void)
{
	cpu_set_t set;
	int n;

	if (sched_getaffinity(0, sizeof(set), &set) == 0 && (n = CPU_COUNT(&set)) > 0)
		return n;
	n = (int) sysconf(_SC_NPROCESSORS_ONLN);
	return n > 0 ? n : 1;
}

/* Claim and compute slices of run number `run` until there is none left. */
static void
work(Dsv3Pool *pool, uint32_t run)
{
	uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);

	for (;;)
	{
		int64_t n = atomic_load_explicit(&pool->n, memory_order_acquire);
		int64_t slice = (int64_t) (ticket & 0xffffffff);
		Dsv3SliceFn fn;
		void *arg;

		if ((uint32_t) (ticket >> 32) != run || slice >= n)
			return;
		if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket + 1, memory_order_acq_rel,
												   memory_order_acquire))
			continue;
		fn = atomic_load_explicit(&pool->fn, memory_order_relaxed);
		arg = atomic_load_explicit(&pool->arg, memory_order_relaxed);
		n = atomic_load_explicit(&pool->n, memory_order_relaxed);
		fn(arg, slice);
		if (atomic_fetch_add(&pool->done, 1) + 1 == n && atomic_load(&pool->caller_waits))
		{
			atomic_store(&pool->caller_waits, 0);
			futex(&pool->caller_waits, FUTEX_WAKE, 1);
		}
		ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
	}
}

/* Return when pool->run differs from seen: spin while a step is on, then sleep. */
static void
wait_for_run(Dsv3Pool *pool, unsigned seen)
{
	if (pool->may_spin && atomic_load_explicit(&pool->in_step, memory_order_relaxed))
	{
		int64_t end = now_ns() + SPIN_NS;

		do
		{
			for (int i = 0; i < 64; i++)
			{
				if (atomic_load_explicit(&pool->run, memory_order_acquire) != seen)
					return;
				cpu_relax();
			}
		} while (atomic_load_explicit(&pool->in_step, memory_order_relaxed) && now_ns() < end);
	}
	atomic_fetch_add(&pool->sleepers, 1);
	while (atomic_load(&pool->run) == seen)
		futex(&pool->run, FUTEX_WAIT, seen);
	atomic_fetch_sub(&pool->sleepers, 1);
}

static void *
thread_main(void *arg)
{
	Dsv3Pool *pool = arg;
	void *stack = dsv3_altstack_set();
	unsigned seen = 0;

	self = atomic_fetch_add(&pool->n_numbered, 1) + 1;
	for (;;)
	{
		wait_for_run(pool, seen);
		if (atomic_load(&pool->closing))
			break;
		seen = atomic_load_explicit(&pool->run, memory_order_acquire);
		work(pool, seen);
	}
	dsv3_altstack_drop(stack);
	return NULL;
}

/* Wake whoever sleeps on pool->run, which has just changed. */
static void
wake_sleepers(Dsv3Pool *pool)
{
	if (atomic_load(&pool->sleepers) > 0)
		futex(&pool->run, FUTEX_WAKE, INT_MAX);
}

Dsv3Pool *
dsv3_pool_open(int n_threads, Dsv3Error *err)
{
	Dsv3Pool *pool;
	static const int own_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
	sigset_t all, before;
	int cpus = usable_cpus();

	if (n_threads < 0 || n_threads > DSV3_POOL_MAX_THREADS)
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "%d is not a valid number of threads", n_threads);
		dsv3_error_hint(err, "Choose between 1 and %d, or 0 for one per CPU.", DSV3_POOL_MAX_THREADS);
		return NULL;
	}
	if (n_threads == 0)
		n_threads = cpus < DSV3_POOL_MAX_THREADS ? cpus : DSV3_POOL_MAX_THREADS;
	pool = aligned_alloc(64, (sizeof(*pool) + 63) / 64 * 64);
	if (pool)
	{
		memset(pool, 0, sizeof(*pool));
		pool->threads = calloc((size_t) n_threads, sizeof(*pool->threads));
	}
	if (!pool || !pool->threads)
	{
		free(pool);
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a pool of %d threads", n_threads);
		return NULL;
	}
	pool->n_threads = n_threads;
	pool->may_spin = n_threads <= cpus;

	/* Signals are the main thread's business, but for those a thread causes itself (blocked, they would end the process by the
	 * signal instead of in its handler) and the one by which the process's sandbox reaches each thread (real-time, + 1). */
	sigfillset(&all);
	for (size_t i = 0; i < sizeof(own_signals) / sizeof(own_signals[0]); i++)
		sigdelset(&all, own_signals[i]);
	sigdelset(&all, SIGRTMIN + 1);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (int i = 1; i < n_threads; i++)
	{
		int rc = pthread_create(&pool->threads[pool->n_started], NULL, thread_main, pool);
		char name[16];

		if (rc != 0)
		{
			pthread_sigmask(SIG_SETMASK, &before, NULL);
			dsv3_pool_close(pool);
			dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "could not start compute thread %d: %s", i, strerror(rc));
			return NULL;
		}
		snprintf(name, sizeof(name), "dsv3-compute-%u", (unsigned) i % 100u);
		pthread_setname_np(pool->threads[pool->n_started++], name);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return pool;
}

void
dsv3_pool_close(Dsv3Pool *pool)
{
	if (!pool)
		return;
	atomic_store(&pool->closing, true);
	atomic_fetch_add(&pool->run, 1);
	wake_sleepers(pool);
	for (int i = 0; i < pool->n_started; i++)
		pthread_join(pool->threads[i], NULL);
	free(pool->threads);
	free(pool);
}

int
dsv3_pool_self(void)
{
	return self;
}

int
dsv3_pool_threads(const Dsv3Pool *pool)
{
	return pool->n_threads;
}

void
dsv3_pool_begin(Dsv3Pool *pool)
{
	atomic_store(&pool->in_step, true);
}

void
dsv3_pool_end(Dsv3Pool *pool)
{
	atomic_store(&pool->in_step, false);
}

void
dsv3_pool_run(Dsv3Pool *pool, int64_t n, Dsv3SliceFn fn, void *arg)
{
	unsigned run;

	if (n <= 0)
		return;
	if (n == 1 || pool->n_threads == 1)
	{
		for (int64_t i = 0; i < n; i++)
			fn(arg, i);
		return;
	}
	run = atomic_load_explicit(&pool->run, memory_order_relaxed) + 1;
	atomic_store_explicit(&pool->ticket, (uint64_t) run << 32 | 0xffffffff, memory_order_relaxed);
	atomic_store_explicit(&pool->fn, fn, memory_order_relaxed);
	atomic_store_explicit(&pool->arg, arg, memory_order_relaxed);
	atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
	atomic_store_explicit(&pool->n, n, memory_order_release);
	atomic_store_explicit(&pool->ticket, (uint64_t) run << 32, memory_order_release);
	atomic_store(&pool->run, run);
	wake_sleepers(pool);

	work(pool, run);
	if (atomic_load_explicit(&pool->done, memory_order_acquire) != n && pool->may_spin)
	{
		int64_t end = now_ns() + SPIN_NS;

		do
		{
			for (int i = 0; i < 64 && atomic_load_explicit(&pool->done, memory_order_acquire) != n; i++)
				cpu_relax();
		} while (atomic_load_explicit(&pool->done, memory_order_acquire) != n && now_ns() < end);
	}
	while (atomic_load(&pool->done) != n)
	{
		atomic_store(&pool->caller_waits, 1);
		if (atomic_load(&pool->done) == n)
			break;
		futex(&pool->caller_waits, FUTEX_WAIT, 1);
	}
	atomic_store(&pool->caller_waits, 0);
}
