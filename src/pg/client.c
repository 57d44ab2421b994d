/*
 * client.c
 *	  A request from the backend's point of view.
 *
 * A call is known in a list of this process and tied to the resource owner that was current when it was made. Every
 * way to leave a statement ends in releasing resource owners: success, ERROR, statement_timeout, the abort of a
 * subtransaction, the close of a cursor, and FATAL (whose exit path aborts the transaction). One callback therefore
 * finds each call that its caller did not release. An exit callback does the same for what is left when the process
 * ends outside a transaction. Ending a call gives up the slot: at once if the engine does not have the request, else
 * through the supervisor, which makes the engine stop.
 *
 * A backend may have any number of calls under way. It looks at each without waiting, and sleeps on its own latch, which
 * the end of any of them sets. Every quarter of a second it asks whether its client is still there, because a query
 * nobody waits for should not occupy the engine.
 *
 * Memory of a call is in TopMemoryContext, since it must outlive the contexts of an aborted statement until its resource
 * owner is released. Whoever keeps a call over several executions holds it: then the resource owner ends the call, and
 * the holder, whose memory may go earlier or later, frees it.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/xact.h"
#include "common/cryptohash.h"
#include "common/sha2.h"
#include "lib/ilist.h"
#include "mb/pg_wchar.h"
#include "portability/instr_time.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "pg/audit.h"
#include "pg/client.h"
#include "pg/guard.h"
#include "pg/queue.h"
#include "pg/text.h"

#define CLIENT_CHECK_MS 250

struct Dsv3Call
{
	dlist_node node; /* in calls; while it is not ended */
	ResourceOwner owner;
	bool held;
	bool ended; /* the slot is given up */
	Dsv3Ticket ticket;
	pg_uuid_t trace_id;
	Dsv3Counts counts;
	Dsv3Audit audit;
	uint64 query;    /* whose guard rails it counts against */
	uint32 expected; /* tokens that it may take */
	int timeout_ms;
	instr_time started;

	/* From the last look. */
	bool queued;
	long sleep_ms;
};

static dlist_head calls = DLIST_STATIC_INIT(calls);

Dsv3Usage dsv3_usage;
void (*dsv3_failure_hook)(const Dsv3Failure *failure);
static bool callbacks_registered;

/* When the client was last seen to be there, in this or an earlier call; zero before the first. */
static instr_time client_seen;

static uint32 wait_event_queued;
static uint32 wait_event_running;

void
dsv3_require_preload(void)
{
	if (dsv3_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("dsv3 must be loaded via shared_preload_libraries"),
				 errhint("Add dsv3 to shared_preload_libraries in postgresql.conf and restart the server.")));
}

void
dsv3_request_init(Dsv3Request *request, uint32 kind)
{
	memset(request, 0, sizeof(*request));
	request->kind = kind;
	request->temperature = dsv3_guc_temperature;
	request->seed = dsv3_guc_seed;
	request->top_p = -1;
	request->top_k = -1;
	request->min_p = -1;
	request->repetition_penalty = -1;
	request->think_budget = -1;
	request->logprobs = -1;
	request->budget = -1;
	request->priority = dsv3_guc_priority;
	request->on_error = dsv3_failure_hook ? DSV3_ON_ERROR_TELL : dsv3_guc_on_error;
	request->timeout_ms = dsv3_guc_timeout;
	request->traceparent = dsv3_guc_traceparent && dsv3_guc_traceparent[0] ? dsv3_guc_traceparent : NULL;
}

/* ---- release ---- */

static void
end_call(Dsv3Call *call)
{
	if (call->ended)
		return;
	dlist_delete(&call->node);
	dsv3_guard_end(call->query, call->expected, dsv3_queue_leave(&call->ticket));
	dsv3_audit_leave(&call->audit, &call->counts);
	dsv3_usage.prompt_tokens += call->counts.prompt_tokens;
	dsv3_usage.cached_tokens += call->counts.cached_tokens;
	dsv3_usage.output_tokens += call->counts.output_tokens;
	call->ended = true;
}

void
dsv3_call_release(Dsv3Call *call)
{
	end_call(call);
	pfree(call);
}

void
dsv3_call_hold(Dsv3Call *call)
{
	call->held = true;
}

bool
dsv3_call_any(void)
{
	return !dlist_is_empty(&calls);
}

uint64
dsv3_call_number(const Dsv3Call *call)
{
	return call->ticket.request;
}

Dsv3Call *
dsv3_call_find(uint64 number)
{
	dlist_iter iter;

	dlist_foreach (iter, &calls)
	{
		Dsv3Call *call = dlist_container(Dsv3Call, node, iter.cur);

		if (call->ticket.request == number)
			return call;
	}
	return NULL;
}

static void
release_owned(ResourceReleasePhase phase, bool is_commit, bool is_top_level, void *arg)
{
	dlist_mutable_iter iter;

	if (phase != RESOURCE_RELEASE_BEFORE_LOCKS || dlist_is_empty(&calls))
		return;
	dlist_foreach_modify(iter, &calls)
	{
		Dsv3Call *call = dlist_container(Dsv3Call, node, iter.cur);

		if (call->owner != CurrentResourceOwner)
			continue;
		if (call->held)
			end_call(call);
		else
			dsv3_call_release(call);
	}
}

static void
release_all(int code, Datum arg)
{
	dlist_mutable_iter iter;

	/* Before PostgreSQL 18 an exit by FATAL can come here with locks held. */
	LWLockReleaseAll();
	dlist_foreach_modify(iter, &calls) end_call(dlist_container(Dsv3Call, node, iter.cur));
}

static void
register_callbacks(void)
{
	if (callbacks_registered)
		return;
	RegisterResourceReleaseCallback(release_owned, NULL);
	before_shmem_exit(release_all, (Datum) 0);
	callbacks_registered = true;
}

/* ---- start ---- */

static void
write_text(Dsv3BodyWriter *writer, Dsv3Field field, const Dsv3Text *text)
{
	if (text->data)
		dsv3_body_bytes(writer, field, text->data, text->len);
}

/* The server names the scope, nobody else can: an oid or two. */
static void
write_scope(Dsv3BodyWriter *writer, const Dsv3Request *request)
{
	char scope[32];

	if (request->cache_scope == DSV3_CACHE_SCOPE_NONE)
		return;
	if (request->cache_scope == DSV3_CACHE_SCOPE_ROLE)
		snprintf(scope, sizeof(scope), "%u/%u", MyDatabaseId, GetUserId());
	else
		snprintf(scope, sizeof(scope), "%u", MyDatabaseId);
	dsv3_body_text(writer, DSV3_FIELD_SCOPE, scope);
}

/* A role may have no right to a better one. */
static uint32
priority_of(const Dsv3Request *request)
{
	return (uint32) Max(request->priority, dsv3_guc_role_priority);
}

static void
write_request(Dsv3BodyWriter *writer, const Dsv3Request *request)
{
	dsv3_body_u32(writer, DSV3_FIELD_KIND, request->kind);
	dsv3_body_u32(writer, DSV3_FIELD_ROLE, GetUserId());
	dsv3_body_u32(writer, DSV3_FIELD_PRIORITY, priority_of(request));
	write_scope(writer, request);
	if (request->cache_memory)
		dsv3_body_bool(writer, DSV3_FIELD_CACHE_MEMORY, true);
	write_text(writer, DSV3_FIELD_PROMPT, &request->prompt);
	write_text(writer, DSV3_FIELD_INPUT, &request->input);
	write_text(writer, DSV3_FIELD_SYSTEM, &request->system);
	write_text(writer, DSV3_FIELD_MESSAGES, &request->messages);
	write_text(writer, DSV3_FIELD_TOOLS, &request->tools);
	write_text(writer, DSV3_FIELD_CONTINUATION, &request->continuation);
	if (request->tokens)
		dsv3_body_tokens(writer, DSV3_FIELD_TOKENS, request->tokens, request->n_tokens);
	if (request->raw)
		dsv3_body_bool(writer, DSV3_FIELD_RAW, true);
	write_text(writer, DSV3_FIELD_CHOICES, &request->choices);
	if (request->grammar.data)
	{
		write_text(writer, DSV3_FIELD_GRAMMAR, &request->grammar);
		dsv3_body_u32(writer, DSV3_FIELD_GRAMMAR_KIND, request->grammar_kind);
		dsv3_body_u32(writer, DSV3_FIELD_WHITESPACE, request->whitespace);
		dsv3_body_u32(writer, DSV3_FIELD_KEY_ORDER, request->key_order);
		dsv3_body_bool(writer, DSV3_FIELD_CLOSED_OBJECTS, request->closed_objects);
	}
	if (request->think != 0)
		dsv3_body_u32(writer, DSV3_FIELD_THINK, (uint32) request->think);
	if (request->kind != DSV3_REQUEST_GENERATE && request->kind != DSV3_REQUEST_CHAT)
		return;
	if (request->max_tokens > 0)
		dsv3_body_u32(writer, DSV3_FIELD_MAX_TOKENS, request->max_tokens);
	dsv3_body_f64(writer, DSV3_FIELD_TEMPERATURE, request->temperature);
	dsv3_body_u64(writer, DSV3_FIELD_SEED, (uint64) request->seed);
	if (request->top_p >= 0)
		dsv3_body_f64(writer, DSV3_FIELD_TOP_P, request->top_p);
	if (request->top_k >= 0)
		dsv3_body_u32(writer, DSV3_FIELD_TOP_K, (uint32) request->top_k);
	if (request->min_p >= 0)
		dsv3_body_f64(writer, DSV3_FIELD_MIN_P, request->min_p);
	if (request->repetition_penalty >= 0)
		dsv3_body_f64(writer, DSV3_FIELD_REPETITION_PENALTY, request->repetition_penalty);
	for (int i = 0; i < request->n_stop; i++)
		write_text(writer, DSV3_FIELD_STOP, &request->stop[i]);
	if (request->think_budget >= 0)
		dsv3_body_u32(writer, DSV3_FIELD_THINK_BUDGET, (uint32) request->think_budget);
	if (request->logprobs >= 0)
		dsv3_body_u32(writer, DSV3_FIELD_LOGPROBS, (uint32) request->logprobs);
	if (request->stream)
		dsv3_body_bool(writer, DSV3_FIELD_STREAM, true);
}

/* A random UUID (version 4): it names the request to people and must not be guessable. */
static void
make_trace_id(pg_uuid_t *id)
{
	if (!pg_strong_random(id->data, UUID_LEN))
		ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not generate random values")));
	id->data[6] = (id->data[6] & 0x0f) | 0x40;
	id->data[8] = (id->data[8] & 0x3f) | 0x80;
}

/* What dsv3_activity shows of the request: its first characters. */
static Dsv3Text
preview_of(const Dsv3Request *request)
{
	Dsv3Text text = request->messages.data ? request->messages : request->prompt;
	Size len = 0;

	for (int chars = 0; chars < DSV3_PREVIEW_CHARS && len < text.len; chars++)
	{
		Size step = (Size) pg_utf_mblen((const unsigned char *) text.data + len);

		if (len + step > text.len)
			break;
		len += step;
	}
	text.len = len;
	if (text.data == NULL)
		text.data = "";
	return text;
}

bool
dsv3_letter_write(Dsv3Letter *letter, const Dsv3Request *request, Dsv3Failure *failure)
{
	Dsv3Text preview = preview_of(request);
	Dsv3BodyWriter writer;

	dsv3_require_preload();
	dsv3_body_init(&writer, NULL, 0);
	write_request(&writer, request);
	if (writer.overflow || writer.len > DSV3_MAX_INPUT_BYTES + 1024 * 1024)
	{
		/* Room is kept for the tokens that a restart may have to repeat. */
		dsv3_error(&failure->error, DSV3_ERR_TOO_LARGE, "request is too long for the dsv3 engine");
		dsv3_error_hint(&failure->error, "Shorten the texts; see dsv3.max_input_bytes.");
		failure->row_error = true;
		return false;
	}
	letter->kind = request->kind;
	letter->priority = priority_of(request);
	letter->max_tokens = request->max_tokens;
	letter->notify = request->stream;
	letter->timeout_ms = request->timeout_ms;
	letter->function = request->function;
	letter->prompt_name = request->prompt_name ? pstrdup(request->prompt_name) : NULL;
	letter->prompt_version = request->prompt_version;
	letter->inserted = request->inserted;
	if (request->inserted.data)
		letter->inserted.data =
			memcpy(MemoryContextAllocHuge(CurrentMemoryContext, request->inserted.len + 1),
				   request->inserted.data, request->inserted.len);
	letter->traceparent = request->traceparent ? pstrdup(request->traceparent) : NULL;
	letter->preview = pnstrdup(preview.data, preview.len);
	letter->preview_len = preview.len;
	letter->body_len = writer.len;
	letter->body = palloc(writer.len);
	dsv3_body_init(&writer, letter->body, letter->body_len);
	write_request(&writer, request);
	return true;
}

void
dsv3_letter_free(Dsv3Letter *letter)
{
	if (letter->traceparent)
		pfree(letter->traceparent);
	if (letter->prompt_name)
		pfree(letter->prompt_name);
	if (letter->inserted.data)
		pfree((void *) letter->inserted.data);
	pfree(letter->preview);
	pfree(letter->body);
	memset(letter, 0, sizeof(*letter));
}

void
dsv3_letter_digest(const Dsv3Letter *letter, uint8 *digest)
{
	pg_cryptohash_ctx *hash = pg_cryptohash_create(PG_SHA256);
	const char *trace = letter->traceparent ? letter->traceparent : "";

	/* Each part but the last has a fixed length or an end of its own. */
	if (hash == NULL || pg_cryptohash_init(hash) < 0 ||
		pg_cryptohash_update(hash, (const uint8 *) &letter->timeout_ms, sizeof(letter->timeout_ms)) < 0 ||
		pg_cryptohash_update(hash, (const uint8 *) trace, strlen(trace) + 1) < 0 ||
		pg_cryptohash_update(hash, letter->body, letter->body_len) < 0 ||
		pg_cryptohash_final(hash, digest, DSV3_DIGEST_BYTES) < 0)
		elog(ERROR, "could not compute a SHA-256 digest");
	pg_cryptohash_free(hash);
}

Dsv3Call *
dsv3_call_post(const Dsv3Letter *letter, bool spare, Dsv3Failure *failure)
{
	Dsv3Submission submission = {.kind = letter->kind,
								 .priority = letter->priority,
								 .max_tokens = letter->max_tokens,
								 .notify = letter->notify,
								 .spare = spare,
								 .role = GetUserId(),
								 .expected = dsv3_letter_tokens(letter),
								 .traceparent = letter->traceparent,
								 .preview = letter->preview,
								 .preview_len = letter->preview_len,
								 .body = letter->body,
								 .body_len = letter->body_len};
	Dsv3Call *call;

	register_callbacks();
	if (!dsv3_guard_admit(letter, spare, failure))
		return NULL;
	failure->row_error = false;
	make_trace_id(&submission.trace_id);

	call = MemoryContextAllocZero(TopMemoryContext, sizeof(Dsv3Call));
	call->owner = CurrentResourceOwner;
	call->trace_id = submission.trace_id;
	call->timeout_ms = letter->timeout_ms;
	INSTR_TIME_SET_CURRENT(call->started);
	if (!dsv3_audit_begin(&call->audit, letter, &call->trace_id, failure))
	{
		pfree(call);
		return NULL;
	}
	submission.held = dsv3_audit_holds(&call->audit);
	if (!dsv3_queue_submit(&submission, &call->ticket, &failure->error))
	{
		dsv3_audit_leave(&call->audit, &call->counts);
		pfree(call);
		return NULL;
	}
	dsv3_audit_submitted(&call->audit, &call->ticket);
	dlist_push_tail(&calls, &call->node);
	call->expected = submission.expected;
	call->query = dsv3_guard_begin(letter);
	return call;
}

Dsv3Call *
dsv3_call_start(const Dsv3Request *request, Dsv3Failure *failure)
{
	Dsv3Letter letter;
	Dsv3Call *call;

	if (!dsv3_letter_write(&letter, request, failure))
		return NULL;
	call = dsv3_call_post(&letter, false, failure);
	dsv3_letter_free(&letter);
	return call;
}

/* ---- wait ---- */

static int64
elapsed_ms(instr_time since)
{
	instr_time now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, since);
	return (int64) INSTR_TIME_GET_MILLISEC(now);
}

/* Throws if the client has gone. Like CHECK_FOR_INTERRUPTS it may swallow a latch, so the slot is looked at after it. */
static void
check_client(void)
{
	if (MyProcPort == NULL || elapsed_ms(client_seen) < CLIENT_CHECK_MS)
		return;
	INSTR_TIME_SET_CURRENT(client_seen);
	if (!pq_check_connection())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
		CHECK_FOR_INTERRUPTS();
	}
}

/* For how long it has been waiting for an engine that is not ready; an answer that an engine's end interrupted waits from
 * then. */
static int64
start_wait_ms(const Dsv3SlotView *view)
{
	if (view->engine_state == DSV3_ENGINE_READY || view->state != DSV3_SLOT_QUEUED)
		return -1;
	return TimestampDifferenceMilliseconds(Max(view->submitted_at, view->engine_since),
										   GetCurrentTimestamp());
}

/* Has the call run out of time? Then the failure is set. */
static bool
out_of_time(const Dsv3Call *call, const Dsv3SlotView *view, Dsv3Failure *failure)
{
	int64 elapsed = elapsed_ms(call->started);

	if (call->timeout_ms > 0 && elapsed >= call->timeout_ms)
	{
		dsv3_error(&failure->error, DSV3_ERR_CANCELLED, "dsv3 request was not finished within %d ms",
				   call->timeout_ms);
		dsv3_error_hint(&failure->error, "Raise dsv3.timeout or the option \"timeout_ms\".");
		failure->row_error = true;
		return true;
	}
	if (start_wait_ms(view) >= dsv3_guc_start_timeout)
	{
		dsv3_error(&failure->error, DSV3_ERR_NOT_READY, "dsv3 engine is not ready");
		if (view->supervisor_pid == 0)
		{
			dsv3_error_detail(&failure->error, "The dsv3 supervisor is not running.");
			dsv3_error_hint(&failure->error,
							"Look for its messages in the server log; max_worker_processes may be too low.");
		}
		else
		{
			dsv3_error_detail(&failure->error, "The engine is %s.",
							  view->engine_state == DSV3_ENGINE_STARTING ? "opening the model"
																		 : "being restarted");
			dsv3_error_hint(&failure->error, "Watch dsv3_health(), or wait longer with dsv3.start_timeout.");
		}
		failure->row_error = false;
		return true;
	}
	return false;
}

/* How long to sleep before something other than the latch needs a look. */
static long
sleep_ms(const Dsv3Call *call, const Dsv3SlotView *view)
{
	int64 waited = start_wait_ms(view);
	int64 ms = CLIENT_CHECK_MS;

	if (call->timeout_ms > 0)
		ms = Min(ms, call->timeout_ms - elapsed_ms(call->started));
	if (waited >= 0)
		ms = Min(ms, dsv3_guc_start_timeout - waited);
	return (long) Max(ms, 1);
}

/* The answer is there: may the caller have it, or must its row in the audit log be waited for? */
static Dsv3CallState
give_answer(Dsv3Call *call, Dsv3Failure *failure)
{
	if (!dsv3_audit_end(&call->audit, &call->counts, NULL, failure))
		return DSV3_CALL_FAILED;
	switch (dsv3_audit_wait(&call->audit, failure))
	{
		case DSV3_AUDIT_DURABLE:
			return DSV3_CALL_DONE;
		case DSV3_AUDIT_BROKEN:
			return DSV3_CALL_FAILED;
		case DSV3_AUDIT_WAITING:
			break;
	}
	return DSV3_CALL_RUNNING;
}

/* What dsv3_call_look does, but for telling the audit log of failures. */
static Dsv3CallState
look(Dsv3Call *call, bool to_end, StringInfo out, Dsv3Failure *failure)
{
	Dsv3SlotView view;
	int had = out->len;
	bool found = !call->ended && dsv3_queue_look(&call->ticket, &view);

	/* Who waits for the end leaves the output where it is: an answer of which nothing was taken can start again
	 * whatever dies. Only a long one is taken in parts, to make room. */
	if (found && (!to_end || view.state == DSV3_SLOT_DONE || view.output_len >= DSV3_DRAIN_BYTES))
		found = dsv3_queue_take_output(&call->ticket, out, &view);
	if (!found)
	{
		dsv3_error(&failure->error, DSV3_ERR_INTERNAL, "dsv3 request is lost");
		failure->row_error = false;
		return DSV3_CALL_FAILED;
	}
	call->counts = view.counts;
	dsv3_audit_take_fields(&call->audit, out->data + had, (Size) (out->len - had));
	if (view.state == DSV3_SLOT_FAILED)
	{
		dsv3_queue_error(&call->ticket, &failure->error, &failure->row_error);
		return DSV3_CALL_FAILED;
	}
	if (view.state == DSV3_SLOT_DONE)
	{
		Dsv3CallState state = give_answer(call, failure);

		if (state != DSV3_CALL_RUNNING)
			return state;
	}
	if (out_of_time(call, &view, failure))
		return DSV3_CALL_FAILED;
	call->queued = view.state == DSV3_SLOT_QUEUED;
	call->sleep_ms = sleep_ms(call, &view);
	return DSV3_CALL_RUNNING;
}

Dsv3CallState
dsv3_call_look(Dsv3Call *call, bool to_end, StringInfo out, Dsv3Failure *failure)
{
	Dsv3CallState state = look(call, to_end, out, failure);
	Dsv3Failure ignored;

	if (state == DSV3_CALL_FAILED)
		(void) dsv3_audit_end(&call->audit, &call->counts, &failure->error, &ignored);
	return state;
}

void
dsv3_call_sleep(Dsv3Call *const *waiting, int n)
{
	long ms = CLIENT_CHECK_MS;
	bool queued = n > 0;

	for (int i = 0; i < n; i++)
	{
		ms = Min(ms, waiting[i]->sleep_ms);
		queued = queued && waiting[i]->queued;
	}
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms,
					 queued ? DSV3_WAIT_EVENT(wait_event_queued, "Dsv3Queued")
							: DSV3_WAIT_EVENT(wait_event_running, "Dsv3Running"));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	check_client();
}

Dsv3CallState
dsv3_call_wait(Dsv3Call *call, bool to_end, StringInfo out, Dsv3Failure *failure)
{
	int had = out->len;

	for (;;)
	{
		Dsv3CallState state = dsv3_call_look(call, to_end, out, failure);

		if (state != DSV3_CALL_RUNNING || (!to_end && out->len > had))
			return state;
		dsv3_call_sleep(&call, 1);
	}
}

void
dsv3_call_restart_clock(Dsv3Call *call)
{
	INSTR_TIME_SET_CURRENT(call->started);
}

const Dsv3Counts *
dsv3_call_counts(const Dsv3Call *call)
{
	return &call->counts;
}

const pg_uuid_t *
dsv3_call_trace_id(const Dsv3Call *call)
{
	return &call->trace_id;
}

void
dsv3_raise(const Dsv3Failure *failure)
{
	const Dsv3Error *e = &failure->error;

	if (dsv3_failure_hook)
		dsv3_failure_hook(failure);
	ereport(ERROR, (errcode(MAKE_SQLSTATE(e->sqlstate[0], e->sqlstate[1], e->sqlstate[2], e->sqlstate[3],
										  e->sqlstate[4])),
					errmsg("%s", dsv3_text_from_utf8_lossy(e->message)),
					e->detail[0] ? errdetail("%s", dsv3_text_from_utf8_lossy(e->detail)) : 0,
					e->hint[0] ? errhint("%s", dsv3_text_from_utf8_lossy(e->hint)) : 0));
}
