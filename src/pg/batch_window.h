/*
 * batch_window.h
 *	  The requests that one "Dsv3 Apply" node has in flight.
 *
 * A flight is a request and its answer. Rows that ask the same share it, while it is there: at least until the last row that
 * wanted the answer has taken it, and then as long as half of work_mem has room for it. A window belongs to one node and dies with the query's memory, whatever ended the query, and its
 * requests with it.
 */
#ifndef DSV3_BATCH_WINDOW_H
#define DSV3_BATCH_WINDOW_H

#include "pg/compat.h"

#include "pg/answer.h"
#include "pg/client.h"

typedef struct Dsv3Flight Dsv3Flight;
typedef struct Dsv3Window Dsv3Window;

/* Sums of a node's execution, for EXPLAIN. */
typedef struct Dsv3WindowStats
{
	uint64 calls;      /* requests made */
	uint64 duplicates; /* calls that shared another one's request */
	uint64 cache_hits; /* requests whose prompt was in the engine's cache in part */
	uint64 cancelled;  /* requests left before their end */
	int most;          /* in flight at one time */
	uint64 prompt_tokens;
	uint64 cached_tokens;
	uint64 output_tokens;
	uint64 waiting_us; /* in the engine's queue */
	uint64 computing_us;
} Dsv3WindowStats;

/* In a context of its own below the query's. */
extern Dsv3Window *dsv3_window_create(MemoryContext query);

/* Join a flight that asks the same, or begin one. must: although no slot may be spare. NULL: the failure is set, or, with *later,
 * nothing is wrong but there is no room now; the letter stays with the caller in any case. */
extern Dsv3Flight *
dsv3_window_send(Dsv3Window *window, const Dsv3Letter *letter, bool must, bool *later, Dsv3Failure *failure);

/* Look at what is in flight. True: something ended. */
extern bool dsv3_window_look(Dsv3Window *window);

/* Sleep until something in flight may have ended. Throws on interrupts. */
extern void dsv3_window_sleep(Dsv3Window *window);

extern int dsv3_window_running(const Dsv3Window *window);

/* Bytes of answers that are here or expected. */
extern Size dsv3_window_bytes(const Dsv3Window *window);
extern const Dsv3WindowStats *dsv3_window_stats(const Dsv3Window *window);

extern bool dsv3_flight_ended(const Dsv3Flight *flight);

/* Its row is next: from now on the timeout counts. */
extern void dsv3_flight_hurry(Dsv3Flight *flight);

/* What an ended flight brought, for dsv3_answer_read; the answer points into the flight. */
extern bool dsv3_flight_answer(const Dsv3Flight *flight, Dsv3Answer *answer, Dsv3Failure *failure);

/* One row less wants it; the last one ends it. */
extern void dsv3_flight_leave(Dsv3Window *window, Dsv3Flight *flight);

#endif /* DSV3_BATCH_WINDOW_H */
