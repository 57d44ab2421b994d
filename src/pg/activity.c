/*
 * activity.c
 *	  What the server's administrator and its users see of the engine and of the requests: dsv3_health(),
 *	  dsv3_model_info(), dsv3_activity, dsv3_stat_engine, and dsv3_cancel().
 *
 * Everything is read from shared memory; none of these functions talks to the engine, so they answer at once whatever
 * state it is in. Values are copied while the lock is held and turned into datums after it.
 *
 * A role sees its own requests. Members of pg_read_all_stats see those of others too, but never what they asked: the
 * text is shown to the role that asked and to nobody else.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "funcapi.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/uuid.h"

#include "common/version.h"
#include "pg/client.h"
#include "pg/functions.h"
#include "pg/queue.h"
#include "pg/text.h"

PG_FUNCTION_INFO_V1(dsv3_health_1_0);
PG_FUNCTION_INFO_V1(dsv3_model_info_1_0);
PG_FUNCTION_INFO_V1(dsv3_activity_1_0);
PG_FUNCTION_INFO_V1(dsv3_stat_engine_1_0);
PG_FUNCTION_INFO_V1(dsv3_cancel_1_0);

/* A row under construction. */
typedef struct Row
{
	Datum values[20];
	bool nulls[20];
	int n;
} Row;

static void
add(Row *row, Datum value, bool null)
{
	Assert(row->n < (int) lengthof(row->values));
	row->values[row->n] = value;
	row->nulls[row->n++] = null;
}

static void
add_text(Row *row, const char *text)
{
	add(row, text ? CStringGetTextDatum(text) : (Datum) 0, text == NULL);
}

static void
add_int(Row *row, int64 value)
{
	add(row, Int64GetDatum(value), false);
}

static void
add_time(Row *row, TimestampTz time)
{
	add(row, TimestampTzGetDatum(time), time == 0);
}

static Datum
form_row(FunctionCallInfo fcinfo, Row *row)
{
	TupleDesc tupdesc;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (tupdesc->natts != row->n)
		elog(ERROR, "row has %d columns, its type %d", row->n, tupdesc->natts);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), row->values, row->nulls));
}

static bool
reads_all_stats(void)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
}

/* As jsonb, or NULL if it is not JSON (or has a character that the database encoding does not have): these functions
 * must have an answer whatever the engine sends. The parser allocates memory and does nothing else, so its error can be
 * caught without a subtransaction. */
static Jsonb *
parse_json(char *text)
{
	MemoryContext context = CurrentMemoryContext;
	Jsonb *volatile value = NULL;

	PG_TRY();
	{
		value = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text)));
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		if (ERRCODE_TO_CATEGORY(geterrcode()) != ERRCODE_DATA_EXCEPTION &&
			ERRCODE_TO_CATEGORY(geterrcode()) != ERRCODE_PROGRAM_LIMIT_EXCEEDED)
			PG_RE_THROW();
		FlushErrorState();
	}
	PG_END_TRY();
	return value;
}

/* A JSON text that the engine sent about itself; NULL when there is none, or it is not an object. */
static Jsonb *
engine_json(const char *json)
{
	Dsv3Failure failure;
	Size len;
	char *text;
	Jsonb *value;

	if (json[0] == '\0')
		return NULL;
	text = dsv3_text_from_utf8(json, strlen(json), &len, &failure);
	if (text == NULL)
		return NULL;
	value = parse_json(text);
	return value && JB_ROOT_IS_OBJECT(value) ? value : NULL;
}

/* A key of it as text, or NULL. */
static char *
json_text(Jsonb *json, const char *key)
{
	JsonbValue value;

	if (json == NULL || getKeyJsonValueFromContainer(&json->root, key, (int) strlen(key), &value) == NULL ||
		value.type != jbvString)
		return NULL;
	return pnstrdup(value.val.string.val, value.val.string.len);
}

static const char *
engine_state_name(Dsv3EngineState state)
{
	switch (state)
	{
		case DSV3_ENGINE_STARTING:
			return "starting";
		case DSV3_ENGINE_READY:
			return "ready";
		case DSV3_ENGINE_RESTARTING:
			return "restarting";
		case DSV3_ENGINE_DOWN:
			return "down";
	}
	return NULL;
}

/* ---- health ---- */

/* The header, and a count of the slots, at one moment. */
typedef struct EngineSnapshot
{
	Dsv3Shared shared;
	int queued;
	int running;
	TimestampTz oldest; /* submitted_at of the longest waiting request, 0: none */
} EngineSnapshot;

static EngineSnapshot *
take_snapshot(void)
{
	EngineSnapshot *snapshot = palloc0(sizeof(EngineSnapshot));

	LWLockAcquire(dsv3_lock, LW_SHARED);
	snapshot->shared = *dsv3_shared;
	for (int i = 0; i < dsv3_shared->n_slots; i++)
	{
		const Dsv3Slot *slot = &dsv3_slots[i];

		if (slot->state == DSV3_SLOT_QUEUED)
		{
			snapshot->queued++;
			if (snapshot->oldest == 0 || slot->submitted_at < snapshot->oldest)
				snapshot->oldest = slot->submitted_at;
		}
		else if (slot->state == DSV3_SLOT_ACTIVE || slot->state == DSV3_SLOT_ABANDONED)
			snapshot->running++;
	}
	LWLockRelease(dsv3_lock);
	return snapshot;
}

static void
add_last_error(Row *row, const Dsv3Shared *shared, const char *supervisor_problem)
{
	const Dsv3Error *error = &shared->last_error;

	if (supervisor_problem)
	{
		add_text(row, supervisor_problem);
		add_text(row,
				 "See the server log. The setting max_worker_processes must leave room for the supervisor.");
		add_time(row, 0);
		return;
	}
	if (shared->last_error_at == 0 || !reads_all_stats())
	{
		/* Messages name files of the server. */
		add_text(row, NULL);
		add_text(row, NULL);
	}
	else
	{
		add_text(row, dsv3_text_from_utf8_lossy(error->message));
		add_text(row, error->hint[0] ? dsv3_text_from_utf8_lossy(error->hint) : NULL);
	}
	add_time(row, shared->last_error_at);
}

/* A server that does not preload the library has an answer too: this function is what people call to find out. */
static Datum
health_without_preload(FunctionCallInfo fcinfo)
{
	Row row = {.n = 0};

	add_text(&row, "down");
	add(&row, (Datum) 0, true); /* since */
	for (int i = 0; i < 3; i++)
		add_text(&row, NULL); /* model, digest, device */
	for (int i = 0; i < 2; i++)
		add(&row, Int32GetDatum(0), false); /* queued, running */
	add(&row, (Datum) 0, true);             /* oldest_wait */
	add_int(&row, 0);                       /* restarts */
	add(&row, (Datum) 0, true);             /* next_start_at */
	add_text(&row, "dsv3 must be loaded via shared_preload_libraries");
	add_text(&row, "Add dsv3 to shared_preload_libraries in postgresql.conf and restart the server.");
	add(&row, (Datum) 0, true); /* last_error_at */
	add(&row, (Datum) 0, true); /* engine_pid */
	add(&row, (Datum) 0, true); /* supervisor_pid */
	add_text(&row, DSV3_VERSION);
	add_text(&row, NULL);
	add(&row, Int32GetDatum(DSV3_PROTOCOL_VERSION), false);
	return form_row(fcinfo, &row);
}

/* dsv3_health() -> one row, always */
Datum
dsv3_health_1_0(PG_FUNCTION_ARGS)
{
	Row row = {.n = 0};
	EngineSnapshot *now;
	Jsonb *model;
	bool supervised;

	if (dsv3_shared == NULL)
		return health_without_preload(fcinfo);
	now = take_snapshot();
	model = engine_json(now->shared.model_json);
	supervised = now->shared.supervisor_pid != 0;

	add_text(&row, supervised ? engine_state_name(now->shared.engine_state) : "down");
	add_time(&row, now->shared.engine_since);
	add_text(&row, json_text(model, "name"));
	add_text(&row, json_text(model, "digest"));
	add_text(&row, json_text(model, "device"));
	add(&row, Int32GetDatum(now->queued), false);
	add(&row, Int32GetDatum(now->running), false);
	if (now->oldest == 0)
		add(&row, (Datum) 0, true);
	else
		add(&row,
			DirectFunctionCall2(timestamp_mi, TimestampTzGetDatum(GetCurrentTimestamp()),
								TimestampTzGetDatum(now->oldest)),
			false);
	add_int(&row, (int64) now->shared.engine_restarts);
	add_time(&row, now->shared.next_start_at);
	add_last_error(&row, &now->shared, supervised ? NULL : "dsv3 supervisor is not running");
	add(&row, Int32GetDatum(now->shared.engine_pid), now->shared.engine_pid == 0);
	add(&row, Int32GetDatum(now->shared.supervisor_pid), !supervised);
	add_text(&row, DSV3_VERSION);
	add_text(&row, json_text(model, "engine_version"));
	add(&row, Int32GetDatum(DSV3_PROTOCOL_VERSION), false);
	return form_row(fcinfo, &row);
}

/* dsv3_model_info() -> jsonb: what the engine says of its model; NULL before it was ready once */
Datum
dsv3_model_info_1_0(PG_FUNCTION_ARGS)
{
	Jsonb *model;

	dsv3_require_preload();
	model = engine_json(take_snapshot()->shared.model_json);
	if (model == NULL)
		PG_RETURN_NULL();
	if (!superuser())
		return DirectFunctionCall2(jsonb_delete, JsonbPGetDatum(model), CStringGetTextDatum("path"));
	PG_RETURN_JSONB_P(model);
}

int64
dsv3_model_context(void)
{
	Jsonb *model = engine_json(take_snapshot()->shared.model_json);
	JsonbValue value;

	if (model == NULL || getKeyJsonValueFromContainer(&model->root, "context", 7, &value) == NULL ||
		value.type != jbvNumeric)
		return 0;
	return DatumGetInt64(DirectFunctionCall1(numeric_int8, NumericGetDatum(value.val.numeric)));
}

/* dsv3_stat_engine() -> one row of sums since the server started */
Datum
dsv3_stat_engine_1_0(PG_FUNCTION_ARGS)
{
	Row row = {.n = 0};
	const Dsv3Counters *sums;
	EngineSnapshot *now;
	Jsonb *engine;

	dsv3_require_preload();
	now = take_snapshot();
	sums = &now->shared.counters;
	add_int(&row, (int64) sums->requests);
	add_int(&row, (int64) sums->completed);
	add_int(&row, (int64) sums->failed);
	add_int(&row, (int64) sums->cancelled);
	add_int(&row, (int64) sums->nulled);
	add_int(&row, (int64) sums->resubmitted);
	add_int(&row, (int64) sums->prompt_tokens);
	add_int(&row, (int64) sums->cached_tokens);
	add_int(&row, (int64) sums->output_tokens);
	add_int(&row, (int64) now->shared.engine_restarts);
	add(&row, Int32GetDatum(now->shared.n_slots), false);
	add_int(&row, (int64) now->shared.n_chunks * DSV3_CHUNK_SIZE);
	add_int(&row, (int64) now->shared.n_free_chunks * DSV3_CHUNK_SIZE);
	engine = engine_json(now->shared.stats_json);
	add(&row, engine ? JsonbPGetDatum(engine) : (Datum) 0, engine == NULL);
	add_time(&row, now->shared.started_at);
	return form_row(fcinfo, &row);
}

/* ---- activity ---- */

static const char *
kind_name(uint32 kind)
{
	switch (kind)
	{
		case DSV3_REQUEST_GENERATE:
			return "generate";
		case DSV3_REQUEST_CHAT:
			return "chat";
		case DSV3_REQUEST_TOKENIZE:
			return "tokenize";
		case DSV3_REQUEST_COUNT_TOKENS:
			return "count";
		case DSV3_REQUEST_DETOKENIZE:
			return "detokenize";
		case DSV3_REQUEST_LOGPROB:
			return "logprob";
		case DSV3_REQUEST_CHECK_GRAMMAR:
			return "check";
		case DSV3_REQUEST_ACCEPTS:
			return "accepts";
		case DSV3_REQUEST_SCORE:
			return "score";
		case DSV3_REQUEST_PIN:
		case DSV3_REQUEST_UNPIN:
			return "pin";
		case DSV3_REQUEST_CACHE_RESET:
			return "reset";
		case DSV3_REQUEST_WARM_UP:
			return "warmup";
		default:
			return NULL;
	}
}

static const char *
slot_state_name(const Dsv3Slot *slot)
{
	switch (slot->state)
	{
		case DSV3_SLOT_FREE:
		case DSV3_SLOT_FILLING:
			return NULL;
		case DSV3_SLOT_QUEUED:
			return "queued";
		case DSV3_SLOT_ACTIVE:
			return slot->first_at == 0 ? "prefill" : "decode";
		case DSV3_SLOT_DONE:
		case DSV3_SLOT_FAILED:
			return "finished";
		case DSV3_SLOT_ABANDONED:
			return "ending";
	}
	return NULL;
}

static void
activity_row(Row *row, const Dsv3Slot *slot)
{
	bool own = slot->role == GetUserId();

	row->n = 0;
	add(row, UUIDPGetDatum(&slot->trace_id), false);
	add(row, Int32GetDatum(slot->owner_pid), false);
	add_text(row, GetUserNameFromId(slot->role, true));
	add_text(row, get_database_name(slot->database));
	add_text(row, kind_name(slot->kind));
	add_text(row, slot_state_name(slot));
	add_text(row, slot->priority == DSV3_PRIORITY_BATCH ? "batch" : "interactive");
	add_text(row, own ? dsv3_text_from_utf8_lossy(slot->preview) : NULL);
	add(row, Int32GetDatum((int32) slot->counts.prompt_tokens), slot->counts.finish == 0);
	add(row, Int32GetDatum((int32) slot->counts.output_tokens), false);
	add(row, Int32GetDatum((int32) slot->attempts), false);
	add_time(row, slot->submitted_at);
	add_time(row, slot->sent_at);
	add_time(row, slot->first_at);
	add_text(row, own && slot->traceparent[0] ? slot->traceparent : NULL);
}

/* dsv3_activity() -> one row for each request the caller may see */
Datum
dsv3_activity_1_0(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext old = CurrentMemoryContext;
	Tuplestorestate *store;
	TupleDesc tupdesc;
	Dsv3Slot *copy;
	int n = 0;

	dsv3_require_preload();
	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) || !(rsinfo->allowedModes & SFRM_Materialize))
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("set-valued function called in context that cannot accept a set")));

	copy = palloc_extended(sizeof(Dsv3Slot) * dsv3_shared->n_slots, MCXT_ALLOC_HUGE);
	LWLockAcquire(dsv3_lock, LW_SHARED);
	for (int i = 0; i < dsv3_shared->n_slots; i++)
	{
		if (slot_state_name(&dsv3_slots[i]))
			copy[n++] = dsv3_slots[i];
	}
	LWLockRelease(dsv3_lock);

	MemoryContextSwitchTo(rsinfo->econtext->ecxt_per_query_memory);
	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	store = tuplestore_begin_heap(rsinfo->allowedModes & SFRM_Materialize_Random, false, work_mem);
	rsinfo->returnMode = SFRM_Materialize;
	rsinfo->setResult = store;
	rsinfo->setDesc = tupdesc;
	MemoryContextSwitchTo(old);

	for (int i = 0; i < n; i++)
	{
		Row row;

		if (copy[i].role != GetUserId() && !reads_all_stats())
			continue;
		activity_row(&row, &copy[i]);
		tuplestore_putvalues(store, tupdesc, row.values, row.nulls);
	}
	return (Datum) 0;
}

/* ---- cancel ---- */

/* As pg_cancel_backend: one's own, those of roles one has the privileges of, or any if a member of pg_signal_backend;
 * a superuser's only by a superuser. */
static bool
may_cancel(Oid owner)
{
	if (superuser_arg(owner) && !superuser())
		return false;
	return has_privs_of_role(GetUserId(), owner) || has_privs_of_role(GetUserId(), ROLE_PG_SIGNAL_BACKEND);
}

/* dsv3_cancel(trace_id) -> true if there was such a request and the caller may end it */
Datum
dsv3_cancel_1_0(PG_FUNCTION_ARGS)
{
	dsv3_require_preload();
	PG_RETURN_BOOL(dsv3_queue_cancel(PG_GETARG_UUID_P(0), may_cancel));
}
