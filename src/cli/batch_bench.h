/*
 * batch_bench.h
 *	  `dsv3 bench MODEL --batch`.
 */
#ifndef DSV3_CLI_BATCH_BENCH_H
#define DSV3_CLI_BATCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "model/model.h"

#define DSV3_BATCH_BENCH_MAX  256 /* sequences at one time */
#define DSV3_BATCH_BENCH_LIST 16  /* batch sizes */

typedef struct Dsv3BatchBench
{
	const char *model;
	Dsv3ModelOptions options; /* weights, threads and isa are used */
	const int32_t *sizes;     /* [n_sizes], each 1..DSV3_BATCH_BENCH_MAX */
	int n_sizes;              /* at most DSV3_BATCH_BENCH_LIST */
	int prompt;               /* tokens of a prompt, about */
	int rounds;
	double seconds; /* of one window */
	bool json;
} Dsv3BatchBench;

/* Measure and print; false and *err. */
extern bool dsv3_batch_bench(const Dsv3BatchBench *args, Dsv3Error *err);

/* The middle of n values, which are sorted. */
extern double dsv3_bench_median(double *values, int n);

#endif /* DSV3_CLI_BATCH_BENCH_H */
