/*
 * ahead.h
 *	  Many calls of one statement under way together, outside of a plan's node: requests from a source, answers in its order.
 *
 * What the node "Dsv3 Apply" does for the rows of a plan, this does for a list that a function has: the elements of an
 * array, the groups of a fold. Both keep their requests in a Dsv3Window, so both share answers, memory limits and manners.
 */
#ifndef DSV3_AHEAD_H
#define DSV3_AHEAD_H

#include "pg/compat.h"

#include "pg/ask.h"

typedef struct Dsv3Ahead Dsv3Ahead;

/* Make the next request, with dsv3_ask or as it does. The current memory context is question->keep and lives until the answer is taken.
 * False: there are no more. */
typedef bool (*Dsv3AheadSource)(void *state, Dsv3AskResult *result, Dsv3Question *question,
								Dsv3Request *request, Dsv3Failure *failure);

/* The end of a call; what it points to lives until the next one is asked for. */
typedef struct Dsv3AheadEnd
{
	Dsv3AskResult result; /* NOTHING: the rest is not set */
	bool ok;
	Dsv3Question *question;
	Dsv3Answer answer;
	Dsv3Failure failure; /* unless ok */
} Dsv3AheadEnd;

/* In a memory context of its own below the given one, whose end also ends what is in flight. Nothing is asked yet. */
extern Dsv3Ahead *dsv3_ahead_create(MemoryContext parent, Dsv3AheadSource source, void *state);

/* Wait for the end of the next call, in the order of the source. False: there are no more. Throws on interrupts, and what the
 * source throws; failures are told in the end. */
extern bool dsv3_ahead_next(Dsv3Ahead *ahead, Dsv3AheadEnd *end);

/* All of it, and what is in flight. */
extern void dsv3_ahead_delete(Dsv3Ahead *ahead);

#endif /* DSV3_AHEAD_H */
