/*
 * sampler.h
 *	  From a row of logits to the next token: exact, repeatable, and the same after a restart.
 *
 * Order, as Hugging Face applies its processors: repetition penalty over every id of prompt and output, temperature, top-k,
 * top-p, min-p, softmax, draw. Temperature 0 is greedy: the largest logit after the penalty, the lowest id among equals;
 * top-k, top-p and min-p have nothing to say then. Arithmetic is double precision in a fixed order.
 *
 * The random number of output token i is Philox-4x32-10 with the seed as key and i as counter: it depends on nothing that
 * happened before, so an answer continues after an engine restart as if there had been none.
 */
#ifndef DSV3_SAMPLER_H
#define DSV3_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "engine/request.h"

/* Which ids a sequence has met; per sequence. Empty (NULL) when the penalty is off. */
typedef struct Dsv3SeenIds
{
	uint64_t *bits;
	int n_ids;
} Dsv3SeenIds;

/* Scratch shared by all sequences of one thread. */
typedef struct Dsv3Sampler
{
	int n_ids;      /* ids that can be sampled: [0, n_ids) */
	int32_t *ids;   /* n_ids; the candidates of a choice, rising */
	double *scores; /* n_ids; of the candidates */
	int32_t *order; /* n_ids; places among the candidates */
} Dsv3Sampler;

extern bool dsv3_sampler_open(Dsv3Sampler *sampler, int n_ids, Dsv3Error *err);
extern void dsv3_sampler_close(Dsv3Sampler *sampler);

/* Start remembering ids for the penalty; does nothing when the penalty is off. */
extern bool dsv3_seen_open(Dsv3SeenIds *seen, const Dsv3Sampling *sampling, int n_ids, Dsv3Error *err);
extern void dsv3_seen_add(Dsv3SeenIds *seen, int32_t id);
extern void dsv3_seen_close(Dsv3SeenIds *seen);

/* Choose output token number index from logits[0..n_ids). allowed is NULL or a mask: bit (id % 64) of allowed[id / 64]; without
 * its bit an id cannot be, and its logit is not looked at. A logit that is not a number or plus infinity fails with XX000;
 * minus infinity is an id that cannot be. */
extern bool
dsv3_sampler_pick(Dsv3Sampler *sampler, const Dsv3Sampling *sampling, const Dsv3SeenIds *seen,
				  const float *logits, const uint64_t *allowed, uint64_t index, int32_t *id, Dsv3Error *err);

/* The same from a list: logits[i] is that of ids[i], rising, and no other id is allowed. */
extern bool dsv3_sampler_pick_listed(Dsv3Sampler *sampler, const Dsv3Sampling *sampling,
									 const Dsv3SeenIds *seen, const int32_t *ids, const float *logits, int n,
									 uint64_t index, int32_t *id, Dsv3Error *err);

/* Natural logarithm of the softmax's denominator over logits[0..n_ids): log-probability of id = logits[id] - this. The model's
 * own distribution: no penalty, no temperature. Fails as above. */
extern bool dsv3_sampler_logsum(const float *logits, int n_ids, double *logsum, Dsv3Error *err);

/* The n largest logits (n <= DSV3_MAX_LOGPROBS), largest first, lowest id first among equals; returns how many. */
extern int dsv3_sampler_top(const float *logits, int n_ids, int n, int32_t *ids);

/* A uniform number in [0, 1) with 53 bits. */
extern double dsv3_random_uniform(int64_t seed, uint64_t index);

#endif /* DSV3_SAMPLER_H */
