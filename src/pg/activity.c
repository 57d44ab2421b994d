/*
 * activity.c
 *	  What the server's administrator and its users see of the engine and of the requests: dsv3_health(),
 *	  dsv3_model_info(), dsv3_activity, and dsv3_cancel().
 *
 * Everything is read from shared memory; none of these functions talks to the engine, so they answer at once whatever
 * state it is in. Values are copied while the lock is held and turned into datums after it.
 *
 * A role sees its own requests. Members of pg_read_all_stats see those of others too, but never what they asked: the
 * text is shown to the role that asked and to nobody else.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "common/version.h"
#include "pg/activity.h"
#include "pg/client.h"
#include "pg/functions.h"
#include "pg/queue.h"
#include "pg/row.h"
#include "pg/text.h"

PG_FUNCTION_INFO_V1(dsv3_health_1_0);
PG_FUNCTION_INFO_V1(dsv3_model_info_1_0);
PG_FUNCTION_INFO_V1(dsv3_activity_1_0);
PG_FUNCTION_INFO_V1(dsv3_cancel_1_0);

bool
dsv3_reads_all_stats(void)
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
Jsonb *
dsv3_engine_json(const char *json)
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
char *
dsv3_json_text(Jsonb *json, const char *key)
{
	JsonbValue value;

	if (json == NULL || getKeyJsonValueFromContainer(&json->root, key, (int) strlen(key), &value) == NULL ||
		value.type != jbvString)
		return NULL;
	return pnstrdup(value.val.string.val, value.val.string.len);
}

double
dsv3_json_number(Jsonb *json, const char *key)
{
	JsonbValue value;

	if (json == NULL || getKeyJsonValueFromContainer(&json->root, key, (int) strlen(key), &value) == NULL ||
		value.type != jbvNumeric)
		return 0;
	return DatumGetFloat8(DirectFunctionCall1(numeric_float8, NumericGetDatum(value.val.numeric)));
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

Dsv3Snapshot *
dsv3_take_snapshot(void)
{
	Dsv3Snapshot *snapshot = palloc0(sizeof(Dsv3Snapshot));

	LWLockAcquire(dsv3_lock, LW_SHARED);
	snapshot->shared = *dsv3_shared;
	snapshot->stats = *dsv3_stats;
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
add_last_error(Dsv3Row *row, const Dsv3Shared *shared, const char *supervisor_problem)
{
	const Dsv3Error *error = &shared->last_error;

	if (supervisor_problem)
	{
		dsv3_row_text(row, supervisor_problem);
		dsv3_row_text(
			row, "See the server log. The setting max_worker_processes must leave room for the supervisor.");
		dsv3_row_time(row, 0);
		return;
	}
	if (shared->last_error_at == 0 || !dsv3_reads_all_stats())
	{
		/* Messages name files of the server. */
		dsv3_row_text(row, NULL);
		dsv3_row_text(row, NULL);
	}
	else
	{
		dsv3_row_text(row, dsv3_text_from_utf8_lossy(error->message));
		dsv3_row_text(row, error->hint[0] ? dsv3_text_from_utf8_lossy(error->hint) : NULL);
	}
	dsv3_row_time(row, shared->last_error_at);
}

/* A server that does not preload the library has an answer too: this function is what people call to find out. */
static Datum
health_without_preload(FunctionCallInfo fcinfo)
{
	Dsv3Row row = {.n = 0};

	dsv3_row_text(&row, "down");
	dsv3_row_add(&row, (Datum) 0, true); /* since */
	for (int i = 0; i < 3; i++)
		dsv3_row_text(&row, NULL); /* model, digest, device */
	for (int i = 0; i < 2; i++)
		dsv3_row_add(&row, Int32GetDatum(0), false); /* queued, running */
	dsv3_row_add(&row, (Datum) 0, true);             /* oldest_wait */
	dsv3_row_int8(&row, 0);                          /* restarts */
	dsv3_row_add(&row, (Datum) 0, true);             /* next_start_at */
	dsv3_row_text(&row, "dsv3 must be loaded via shared_preload_libraries");
	dsv3_row_text(&row, "Add dsv3 to shared_preload_libraries in postgresql.conf and restart the server.");
	dsv3_row_add(&row, (Datum) 0, true); /* last_error_at */
	dsv3_row_add(&row, (Datum) 0, true); /* engine_pid */
	dsv3_row_add(&row, (Datum) 0, true); /* supervisor_pid */
	dsv3_row_text(&row, DSV3_VERSION);
	dsv3_row_text(&row, NULL);
	dsv3_row_add(&row, Int32GetDatum(DSV3_PROTOCOL_VERSION), false);
	return dsv3_row_result(fcinfo, &row);
}

/* dsv3_health() -> one row, always */
Datum
dsv3_health_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Row row = {.n = 0};
	Dsv3Snapshot *now;
	Jsonb *model;
	bool supervised;

	if (dsv3_shared == NULL)
		return health_without_preload(fcinfo);
	now = dsv3_take_snapshot();
	model = dsv3_engine_json(now->shared.model_json);
	supervised = now->shared.supervisor_pid != 0;

	dsv3_row_text(&row, supervised ? engine_state_name(now->shared.engine_state) : "down");
	dsv3_row_time(&row, now->shared.engine_since);
	dsv3_row_text(&row, dsv3_json_text(model, "name"));
	dsv3_row_text(&row, dsv3_json_text(model, "digest"));
	dsv3_row_text(&row, dsv3_json_text(model, "device"));
	dsv3_row_add(&row, Int32GetDatum(now->queued), false);
	dsv3_row_add(&row, Int32GetDatum(now->running), false);
	if (now->oldest == 0)
		dsv3_row_add(&row, (Datum) 0, true);
	else
		dsv3_row_add(&row,
					 DirectFunctionCall2(timestamp_mi, TimestampTzGetDatum(GetCurrentTimestamp()),
										 TimestampTzGetDatum(now->oldest)),
					 false);
	dsv3_row_int8(&row, now->shared.engine_restarts);
	dsv3_row_time(&row, now->shared.next_start_at);
	add_last_error(&row, &now->shared, supervised ? NULL : "dsv3 supervisor is not running");
	dsv3_row_add(&row, Int32GetDatum(now->shared.engine_pid), now->shared.engine_pid == 0);
	dsv3_row_add(&row, Int32GetDatum(now->shared.supervisor_pid), !supervised);
	dsv3_row_text(&row, DSV3_VERSION);
	dsv3_row_text(&row, dsv3_json_text(model, "engine_version"));
	dsv3_row_add(&row, Int32GetDatum(DSV3_PROTOCOL_VERSION), false);
	return dsv3_row_result(fcinfo, &row);
}

/* dsv3_model_info() -> jsonb: what the engine says of its model; NULL before it was ready once */
Datum
dsv3_model_info_1_0(PG_FUNCTION_ARGS)
{
	Jsonb *model;

	dsv3_require_preload();
	model = dsv3_engine_json(dsv3_take_snapshot()->shared.model_json);
	if (model == NULL)
		PG_RETURN_NULL();
	if (!superuser())
		return DirectFunctionCall2(jsonb_delete, JsonbPGetDatum(model), CStringGetTextDatum("path"));
	PG_RETURN_JSONB_P(model);
}

int64
dsv3_model_context(void)
{
	return (int64) dsv3_json_number(dsv3_engine_json(dsv3_take_snapshot()->shared.model_json), "context");
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
		case DSV3_REQUEST_ROUTING:
			return "routing";
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
activity_row(Dsv3Row *row, const Dsv3Slot *slot)
{
	bool own = slot->role == GetUserId();

	row->n = 0;
	dsv3_row_add(row, UUIDPGetDatum(&slot->trace_id), false);
	dsv3_row_add(row, Int32GetDatum(slot->owner_pid), false);
	dsv3_row_text(row, GetUserNameFromId(slot->role, true));
	dsv3_row_text(row, get_database_name(slot->database));
	dsv3_row_text(row, kind_name(slot->kind));
	dsv3_row_text(row, slot_state_name(slot));
	dsv3_row_text(row, slot->priority == DSV3_PRIORITY_BATCH ? "batch" : "interactive");
	dsv3_row_text(row, own ? dsv3_text_from_utf8_lossy(slot->preview) : NULL);
	dsv3_row_add(row, Int32GetDatum((int32) slot->counts.prompt_tokens), slot->counts.finish == 0);
	dsv3_row_add(row, Int32GetDatum((int32) slot->counts.output_tokens), false);
	dsv3_row_add(row, Int32GetDatum((int32) slot->attempts), false);
	dsv3_row_time(row, slot->submitted_at);
	dsv3_row_time(row, slot->sent_at);
	dsv3_row_time(row, slot->first_at);
	dsv3_row_text(row, own && slot->traceparent[0] ? slot->traceparent : NULL);
}

/* dsv3_activity() -> one row for each request the caller may see */
Datum
dsv3_activity_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Rows rows;
	Dsv3Slot *copy;
	int n = 0;

	dsv3_require_preload();
	rows = dsv3_rows_begin(fcinfo);
	copy = palloc_extended(sizeof(Dsv3Slot) * dsv3_shared->n_slots, MCXT_ALLOC_HUGE);
	LWLockAcquire(dsv3_lock, LW_SHARED);
	for (int i = 0; i < dsv3_shared->n_slots; i++)
	{
		if (slot_state_name(&dsv3_slots[i]))
			copy[n++] = dsv3_slots[i];
	}
	LWLockRelease(dsv3_lock);

	for (int i = 0; i < n; i++)
	{
		Dsv3Row row;

		if (copy[i].role != GetUserId() && !dsv3_reads_all_stats())
			continue;
		activity_row(&row, &copy[i]);
		dsv3_rows_put(&rows, &row);
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
