/*
 * batch_window.c
 *	  The requests that one "Dsv3 Apply" node has in flight, and answers for those who ask the same later.
 *
 * An answer is fetched as soon as it is there, so that it no longer holds a slot while earlier rows are waited for. Only
 * one request of a node may take a slot that others might need (must): the one for which the node can do
 * nothing but wait. It waits for no slot, so nodes and plain calls never wait for each other's.
 *
 * An answer that no row wants any more is idle: it stays for calls that ask the same, until younger ones need its place.
 *
 * Flights are in the window's own context. Its reset callback releases their calls, in whatever state an error leaves
 * them; the texts that have come are in a context below, which may be gone by then.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "lib/ilist.h"
#include "utils/hsearch.h"

#include "pg/batch_window.h"

struct Dsv3Flight
{
	uint8 digest[DSV3_DIGEST_BYTES]; /* the hash key; flights that are not in the table have it too */
	dlist_node node;                 /* in running, while call is not NULL; in idle, while it has no users */
	Dsv3Call *call;                  /* NULL: ended */
	int users;
	bool shared; /* in the table */
	bool ok;
	StringInfoData fields;
	Dsv3Counts counts;
	pg_uuid_t trace_id;
	Dsv3Failure *failure; /* unless ok */
};

/* By digest. */
typedef struct FlightEntry
{
	uint8 digest[DSV3_DIGEST_BYTES];
	Dsv3Flight *flight;
} FlightEntry;

struct Dsv3Window
{
	MemoryContext context;
	MemoryContext texts;
	MemoryContextCallback callback;
	HTAB *table;
	dlist_head running;
	int n_running;
	dlist_head idle; /* the oldest first */
	Size idle_bytes;
	Size held;     /* bytes of answers that are here, those of idle flights apart */
	Size expected; /* bytes that an answer may have: decaying maximum of those seen */
	Dsv3WindowStats stats;
};

static void
release_calls(void *arg)
{
	Dsv3Window *window = arg;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &window->running)
	{
		Dsv3Flight *flight = dlist_container(Dsv3Flight, node, iter.cur);

		dlist_delete(iter.cur);
		dsv3_call_release(flight->call);
		flight->call = NULL;
	}
}

Dsv3Window *
dsv3_window_create(MemoryContext query)
{
	MemoryContext context = AllocSetContextCreate(query, "dsv3 window", ALLOCSET_SMALL_SIZES);
	Dsv3Window *window = MemoryContextAllocZero(context, sizeof(Dsv3Window));
	HASHCTL control = {.keysize = DSV3_DIGEST_BYTES, .entrysize = sizeof(FlightEntry), .hcxt = context};

	window->context = context;
	window->texts = AllocSetContextCreate(context, "dsv3 answers", ALLOCSET_DEFAULT_SIZES);
	window->table = hash_create("dsv3 flights", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	dlist_init(&window->running);
	dlist_init(&window->idle);
	window->callback.func = release_calls;
	window->callback.arg = window;
	MemoryContextRegisterResetCallback(context, &window->callback);
	return window;
}

/* Bytes that an idle flight takes. */
static Size
size_of(const Dsv3Flight *flight)
{
	return sizeof(Dsv3Flight) + 2 * sizeof(FlightEntry) + (Size) flight->fields.maxlen;
}

Dsv3Flight *
dsv3_window_send(Dsv3Window *window, const Dsv3Letter *letter, bool must, bool *later, Dsv3Failure *failure)
{
	uint8 digest[DSV3_DIGEST_BYTES];
	FlightEntry *entry;
	Dsv3Flight *flight;
	Dsv3Call *call;
	bool found;

	*later = false;
	if (dsv3_guc_dedup)
	{
		dsv3_letter_digest(letter, digest);
		entry = hash_search(window->table, digest, HASH_FIND, NULL);
		if (entry)
		{
			if (entry->flight->users++ == 0)
			{
				dlist_delete(&entry->flight->node);
				window->idle_bytes -= size_of(entry->flight);
				window->held += (Size) entry->flight->fields.len;
			}
			window->stats.duplicates++;
			return entry->flight;
		}
	}

	/* All memory first: what comes between the start of a call and its place in the window must not fail. */
	flight = MemoryContextAllocZero(window->context, sizeof(Dsv3Flight));
	if (dsv3_guc_dedup)
	{
		memcpy(flight->digest, digest, sizeof(digest));
		entry = hash_search(window->table, digest, HASH_ENTER, &found);
		entry->flight = flight;
		flight->shared = true;
	}
	call = dsv3_call_post(letter, !must, failure);
	if (call == NULL)
	{
		*later = !must && (strcmp(failure->error.sqlstate, DSV3_ERR_QUEUE_FULL) == 0 ||
						   strcmp(failure->error.sqlstate, DSV3_ERR_OUT_OF_MEMORY) == 0);
		if (flight->shared)
			hash_search(window->table, flight->digest, HASH_REMOVE, NULL);
		pfree(flight);
		return NULL;
	}
	dsv3_call_hold(call);
	flight->call = call;
	flight->users = 1;
	flight->trace_id = *dsv3_call_trace_id(call);
	dlist_push_tail(&window->running, &flight->node);
	window->n_running++;
	window->stats.calls++;
	window->stats.most = Max(window->stats.most, window->n_running);
	if (window->expected == 0)
		window->expected = (Size) letter->max_tokens * 4 + sizeof(Dsv3Flight); /* bytes of a token, roughly */
	return flight;
}

/* The call is over: keep what it counted, and give up its slot. */
static void
land(Dsv3Window *window, Dsv3Flight *flight)
{
	flight->counts = *dsv3_call_counts(flight->call);
	dlist_delete(&flight->node);
	dsv3_call_release(flight->call);
	flight->call = NULL;
	window->n_running--;
}

static void
count(Dsv3Window *window, const Dsv3Flight *flight)
{
	Dsv3WindowStats *stats = &window->stats;

	stats->cache_hits += flight->counts.cached_tokens > 0;
	stats->prompt_tokens += flight->counts.prompt_tokens;
	stats->cached_tokens += flight->counts.cached_tokens;
	stats->output_tokens += flight->counts.output_tokens;
	stats->waiting_us += flight->counts.queue_us;
	stats->computing_us += flight->counts.prefill_us + flight->counts.decode_us;
}

bool
dsv3_window_look(Dsv3Window *window)
{
	MemoryContext old = MemoryContextSwitchTo(window->texts);
	dlist_mutable_iter iter;
	Dsv3Failure failure;
	bool ended = false;

	dlist_foreach_modify(iter, &window->running)
	{
		Dsv3Flight *flight = dlist_container(Dsv3Flight, node, iter.cur);
		Dsv3CallState state;

		if (flight->fields.data == NULL)
			initStringInfo(&flight->fields);
		window->held -= (Size) flight->fields.len;
		state = dsv3_call_look(flight->call, true, &flight->fields, &failure);
		window->held += (Size) flight->fields.len;
		if (state == DSV3_CALL_RUNNING)
			continue;
		flight->ok = state == DSV3_CALL_DONE;
		if (!flight->ok)
		{
			flight->failure = palloc(sizeof(Dsv3Failure));
			*flight->failure = failure;
		}
		land(window, flight);
		count(window, flight);
		window->expected = Max((Size) flight->fields.len, window->expected - window->expected / 8);
		ended = true;
	}
	MemoryContextSwitchTo(old);
	return ended;
}

void
dsv3_window_sleep(Dsv3Window *window)
{
	Dsv3Call **waiting = palloc(sizeof(Dsv3Call *) * Max(window->n_running, 1));
	dlist_iter iter;
	int n = 0;

	dlist_foreach (iter, &window->running)
		waiting[n++] = dlist_container(Dsv3Flight, node, iter.cur)->call;
	dsv3_call_sleep(waiting, n);
	pfree(waiting);
}

int
dsv3_window_running(const Dsv3Window *window)
{
	return window->n_running;
}

Size
dsv3_window_bytes(const Dsv3Window *window)
{
	return window->held + window->idle_bytes + (Size) window->n_running * window->expected;
}

const Dsv3WindowStats *
dsv3_window_stats(const Dsv3Window *window)
{
	return &window->stats;
}

bool
dsv3_flight_ended(const Dsv3Flight *flight)
{
	return flight->call == NULL;
}

void
dsv3_flight_hurry(Dsv3Flight *flight)
{
	if (flight->call)
		dsv3_call_restart_clock(flight->call);
}

bool
dsv3_flight_answer(const Dsv3Flight *flight, Dsv3Answer *answer, Dsv3Failure *failure)
{
	memset(answer, 0, sizeof(*answer));
	answer->fields = flight->fields;
	answer->counts = flight->counts;
	answer->trace_id = flight->trace_id;
	answer->has_trace_id = true;
	if (!flight->ok)
		*failure = *flight->failure;
	return flight->ok;
}

static void
forget(Dsv3Window *window, Dsv3Flight *flight)
{
	if (flight->shared)
		hash_search(window->table, flight->digest, HASH_REMOVE, NULL);
	if (flight->fields.data)
		pfree(flight->fields.data);
	if (flight->failure)
		pfree(flight->failure);
	pfree(flight);
}

void
dsv3_flight_leave(Dsv3Window *window, Dsv3Flight *flight)
{
	if (--flight->users > 0)
		return;
	window->held -= (Size) flight->fields.len;
	if (flight->call)
	{
		land(window, flight);
		window->stats.cancelled++;
	}
	if (!flight->ok || !flight->shared)
	{
		forget(window, flight);
		return;
	}
	dlist_push_tail(&window->idle, &flight->node);
	window->idle_bytes += size_of(flight);
	while (window->idle_bytes > (Size) work_mem * 1024 / 2)
	{
		Dsv3Flight *oldest = dlist_container(Dsv3Flight, node, dlist_pop_head_node(&window->idle));

		window->idle_bytes -= size_of(oldest);
		forget(window, oldest);
	}
}
