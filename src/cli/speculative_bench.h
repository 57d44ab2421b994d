/*
 * speculative_bench.h
 *	  `dsv3 bench MODEL --speculative`: what drafts of the model's draft layer gain.
 */
#ifndef DSV3_SPECULATIVE_BENCH_H
#define DSV3_SPECULATIVE_BENCH_H

#include "model/model.h"

typedef struct Dsv3SpeculativeBench
{
	const char *model;
	Dsv3ModelOptions options; /* drafts is not looked at */
	int prompt;               /* tokens */
	int rounds;
	double seconds; /* of one window */
	bool json;
} Dsv3SpeculativeBench;

/* Measure and print; the exit status. */
extern int dsv3_speculative_bench(const Dsv3SpeculativeBench *bench);

#endif /* DSV3_SPECULATIVE_BENCH_H */
