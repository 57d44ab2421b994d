/*
 * ahead.c
 *	  Many calls of one statement under way together: requests from a source, answers in its order.
 *
 * Calls stand in a ring, the first one being the next to be returned. Each has a memory context, in which its source made
 * the request and in which the question stays. Sources are asked as long as the window has room: dsv3.batch_window calls
 * (one, when dsv3.batching is off) and work_mem for their texts and answers, though always one call.
 *
 * Only the first call may take a slot that others might need, and only when nothing else is in flight: see batch_window.c.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "pg/ahead.h"
#include "pg/batch_window.h"
#include "pg/guc.h"

typedef struct AheadCall
{
	MemoryContext context;
	Dsv3AskResult result;
	Dsv3Question question;
	Dsv3Letter letter;
	bool posted;          /* the letter is gone, or there is none */
	bool hurried;         /* its flight knows that it is the first */
	Dsv3Flight *flight;   /* in which the call has a part */
	Dsv3Failure *failure; /* NULL: none so far */
} AheadCall;

struct Dsv3Ahead
{
	MemoryContext context;
	Dsv3Window *window;
	Dsv3AheadSource source;
	void *state;
	bool exhausted; /* the source has no more */
	AheadCall *calls[DSV3_MAX_WINDOW];
	int first;
	int n;
	AheadCall *returned; /* in use until the next one is asked for */
};

Dsv3Ahead *
dsv3_ahead_create(MemoryContext parent, Dsv3AheadSource source, void *state)
{
	MemoryContext context = AllocSetContextCreate(parent, "dsv3 calls ahead", ALLOCSET_DEFAULT_SIZES);
	Dsv3Ahead *ahead = MemoryContextAllocZero(context, sizeof(Dsv3Ahead));

	ahead->context = context;
	ahead->window = dsv3_window_create(context);
	ahead->source = source;
	ahead->state = state;
	return ahead;
}

void
dsv3_ahead_delete(Dsv3Ahead *ahead)
{
	MemoryContextDelete(ahead->context);
}

static AheadCall *
nth_call(const Dsv3Ahead *ahead, int i)
{
	return ahead->calls[(ahead->first + i) % DSV3_MAX_WINDOW];
}

static void
free_call(Dsv3Ahead *ahead, AheadCall *call)
{
	if (call->flight)
		dsv3_flight_leave(ahead->window, call->flight);
	MemoryContextDelete(call->context);
}

static void
keep_failure(AheadCall *call, const Dsv3Failure *failure)
{
	call->failure = MemoryContextAlloc(call->context, sizeof(Dsv3Failure));
	*call->failure = *failure;
}

/* Let the source make a request and write its letter, at the end of the ring. False: there are no more. */
static bool
read_call(Dsv3Ahead *ahead)
{
	MemoryContext context = AllocSetContextCreate(ahead->context, "dsv3 call", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	AheadCall *call = palloc0(sizeof(AheadCall));
	Dsv3Request request;
	Dsv3Failure failure;
	bool more;

	call->context = context;
	call->question.keep = context;
	more = ahead->source(ahead->state, &call->result, &call->question, &request, &failure);
	if (more)
	{
		if (call->result == DSV3_ASK_REQUEST && !dsv3_letter_write(&call->letter, &request, &failure))
			call->result = DSV3_ASK_FAILED;
		call->posted = call->result != DSV3_ASK_REQUEST;
		if (call->result == DSV3_ASK_FAILED)
			keep_failure(call, &failure);
		ahead->calls[(ahead->first + ahead->n) % DSV3_MAX_WINDOW] = call;
		ahead->n++;
	}
	else
		ahead->exhausted = true;
	MemoryContextSwitchTo(old);
	if (!more)
		MemoryContextDelete(context);
	return more;
}

/* Send the letter of a call. False: there is no room now. */
static bool
post(Dsv3Ahead *ahead, AheadCall *call, bool first)
{
	Dsv3Failure failure;
	bool later;

	if (call->posted)
		return true;
	call->flight = dsv3_window_send(ahead->window, &call->letter,
									first && dsv3_window_running(ahead->window) == 0, &later, &failure);
	if (call->flight == NULL && later)
		return false;
	dsv3_letter_free(&call->letter);
	call->posted = true;
	if (call->flight == NULL)
		keep_failure(call, &failure);
	return true;
}

static bool
has_room(const Dsv3Ahead *ahead)
{
	int size = dsv3_guc_batching ? dsv3_guc_batch_window : 1;
	Size used = dsv3_window_bytes(ahead->window);

	if (ahead->exhausted || ahead->n >= size)
		return false;
	if (ahead->n == 0)
		return true;
	for (int i = 0; i < ahead->n; i++)
		used += MemoryContextMemAllocated(nth_call(ahead, i)->context, false);
	return used < (Size) work_mem * 1024;
}

/* Put in flight what can be. */
static void
fill(Dsv3Ahead *ahead)
{
	for (int i = 0; i < ahead->n; i++)
	{
		if (!post(ahead, nth_call(ahead, i), i == 0))
			return;
	}
	while (has_room(ahead) && read_call(ahead))
	{
		if (!post(ahead, nth_call(ahead, ahead->n - 1), ahead->n == 1))
			return;
	}
}

static void
tell_end(AheadCall *call, Dsv3AheadEnd *end)
{
	memset(end, 0, sizeof(*end));
	end->result = call->result;
	end->question = &call->question;
	if (call->failure)
		end->failure = *call->failure;
	else if (call->flight)
	{
		MemoryContext old = MemoryContextSwitchTo(call->context);

		end->ok = dsv3_flight_answer(call->flight, &end->answer, &end->failure);
		end->ok = dsv3_answer_read(&end->answer, &call->question.asked, end->ok, &end->failure);
		MemoryContextSwitchTo(old);
	}
}

bool
dsv3_ahead_next(Dsv3Ahead *ahead, Dsv3AheadEnd *end)
{
	AheadCall *call;

	if (ahead->returned)
		free_call(ahead, ahead->returned);
	ahead->returned = NULL;
	for (;;)
	{
		if (dsv3_window_running(ahead->window) > 0)
			(void) dsv3_window_look(ahead->window);
		fill(ahead);
		if (ahead->n == 0)
			return false;
		call = nth_call(ahead, 0);
		if (call->posted && (call->flight == NULL || dsv3_flight_ended(call->flight)))
			break;
		if (call->flight && !call->hurried)
		{
			dsv3_flight_hurry(call->flight);
			call->hurried = true;
		}
		dsv3_window_sleep(ahead->window);
	}
	ahead->first = (ahead->first + 1) % DSV3_MAX_WINDOW;
	ahead->n--;
	ahead->returned = call;
	tell_end(call, end);
	return true;
}
