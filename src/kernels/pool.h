/*
 * pool.h
 *	  Threads that share out the slices of one loop at a time.
 *
 * dsv3_pool_run() calls fn(arg, i) once for each i in 0..n-1 on the calling thread and the pool's threads, and returns
 * when all calls have returned. Slices are claimed in rising order by whoever is free, so a thread that the operating
 * system holds back delays nobody; results must not depend on who computes a slice, and in this engine they do not. Nothing
 * is allocated per run. One caller at a time; fn must not call dsv3_pool_run on the same pool.
 *
 * Between runs a thread waits in the kernel. Only between dsv3_pool_begin() and dsv3_pool_end(), which bracket one model
 * step, does it first look for the next loop for some microseconds: a step is hundreds of short loops, and
 * a wake-up costs more than most of them. With more threads than usable CPUs nobody spins at all.
 */
#ifndef DSV3_POOL_H
#define DSV3_POOL_H

#include <stdint.h>

#include "common/error.h"

typedef struct Dsv3Pool Dsv3Pool;
typedef void (*Dsv3SliceFn)(void *arg, int64_t slice);

#define DSV3_POOL_MAX_THREADS 1024

/* n_threads includes the caller; 0 means one per CPU this process may use. NULL and *err when a thread cannot be made. */
extern Dsv3Pool *dsv3_pool_open(int n_threads, Dsv3Error *err);

/* Ends and joins the threads; no run may be in progress. NULL is allowed. */
extern void dsv3_pool_close(Dsv3Pool *pool);

extern int dsv3_pool_threads(const Dsv3Pool *pool);

/* The calling thread's number in its pool: 0 is the caller of dsv3_pool_run, the others follow. For scratch memory of their own. */
extern int dsv3_pool_self(void);

extern void dsv3_pool_begin(Dsv3Pool *pool);
extern void dsv3_pool_end(Dsv3Pool *pool);

/* n below 2^31. */
extern void dsv3_pool_run(Dsv3Pool *pool, int64_t n, Dsv3SliceFn fn, void *arg);

#endif /* DSV3_POOL_H */
