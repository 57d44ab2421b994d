/*
 * mix_request.h
 *	  Requests made from numbers, for `dsv3 bench determinism`: the same seed and number, the same request.
 */
#ifndef DSV3_CLI_MIX_REQUEST_H
#define DSV3_CLI_MIX_REQUEST_H

#include "engine/request.h"

/* A stream of random numbers; any value is a beginning. */
typedef struct Dsv3Random
{
	uint64_t state;
} Dsv3Random;

/* The stream of a number under a seed. Requests have the small numbers, what else needs random ones counts from its own beginning. */
#define DSV3_STREAM_FAMILIES (UINT64_C(1) << 40)
#define DSV3_STREAM_MIXES    (UINT64_C(2) << 40)
extern Dsv3Random dsv3_random_stream(uint64_t seed, uint64_t number);
/* A number in [0, n), n > 0. */
extern uint32_t dsv3_random_below(Dsv3Random *random, uint32_t n);
/* A number in [1, n], its logarithm spread evenly: as many small ones as large ones. */
extern uint32_t dsv3_random_log(Dsv3Random *random, uint32_t n);

/*
 * Request `number`: free and constrained answers, chats, log-probabilities of continuations and scored choices; greedy and
 * sampled. Prompts have at most `longest` bytes and begin like those of other numbers more often than not. id, scope, role,
 * priority and stream are left for the caller. NULL and 53200 without memory.
 */
extern Dsv3Request *dsv3_mix_request(uint64_t seed, uint64_t number, uint32_t longest, Dsv3Error *err);

#endif /* DSV3_CLI_MIX_REQUEST_H */
