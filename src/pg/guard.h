/*
 * guard.h
 *	  What one query may cost: dsv3.max_calls_per_query and dsv3.max_tokens_per_query.
 */
#ifndef DSV3_GUARD_H
#define DSV3_GUARD_H

#include "pg/compat.h"

#include "pg/client.h"

/* Does this kind of request run the model? Others cost next to nothing and are not limited. */
extern bool dsv3_runs_model(uint32 kind);

/* Most tokens that the request of a letter is likely to take. */
extern uint32 dsv3_letter_tokens(const Dsv3Letter *letter);

/* May the running query make this call? False: failure is set; with `spare` it means "later", as in dsv3_call_post. */
extern bool dsv3_guard_admit(const Dsv3Letter *letter, bool spare, Dsv3Failure *failure);

/* The call is made; returns the number of the query, for its end. */
extern uint64 dsv3_guard_begin(const Dsv3Letter *letter);

/* The call, for which `expected` tokens were counted so far, has taken so many. The query may be gone. */
extern void dsv3_guard_end(uint64 query, uint32 expected, uint32 tokens);

/* From now on this backend may make so many calls of the model, whatever query makes them; -1: no such limit. */
extern void dsv3_guard_sample(int64 calls);

/* Was one more asked for? *calls: how many were made. */
extern bool dsv3_guard_sampled(uint64 *calls);

/* Hooks; in the postmaster, while the library is preloaded. */
extern void dsv3_guard_install(void);

#endif /* DSV3_GUARD_H */
