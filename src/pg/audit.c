/*
 * audit.c
 *	  What a backend tells the audit log of its requests.
 *
 * All requests pass dsv3_call_post and dsv3_call_look, and only there the audit log is told. What is recorded is read from
 * the body that the engine gets, so that no function can ask the model for something else than what the log says.
 *
 * Requests that make the model compute are recorded; counting tokens, checking schemas and looking after the cache are not.
 *
 * On a standby nothing can be written, so that what is known of a request goes to the server log, when it has ended.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "mb/pg_wchar.h"
#include "portability/instr_time.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inet.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "pg/audit.h"
#include "pg/guard.h"
#include "pg/guc.h"

/* ---- facts ---- */

static void
add_param(StringInfo params, const char *name, const char *value)
{
	appendStringInfo(params, "%c\"%s\": %s", params->len == 0 ? '{' : ',', name, value);
}

static void
add_float(StringInfo params, const char *name, double value)
{
	char text[64];

	snprintf(text, sizeof(text), "%.17g", value);
	add_param(params, name, text);
}

static void
add_int(StringInfo params, const char *name, uint32 value)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", value);
	add_param(params, name, text);
}

Dsv3Text
dsv3_audit_input_of(const uint8 *body, Size len)
{
	Dsv3Text input = {0};
	Dsv3BodyReader reader;

	dsv3_body_open(&reader, body, len);
	while (dsv3_body_next(&reader))
	{
		if (reader.field == DSV3_FIELD_INPUT || reader.field == DSV3_FIELD_MESSAGES ||
			(reader.field == DSV3_FIELD_PROMPT && input.data == NULL))
			input = (Dsv3Text){(const char *) reader.value, reader.value_len};
	}
	return input;
}

/* One field of the request: its hash, or a parameter. */
static void
take_field(Dsv3AuditFacts *facts, const Dsv3AuditKey *key, Dsv3BodyReader *reader, StringInfo params,
		   int *stops)
{
	switch (reader->field)
	{
		case DSV3_FIELD_PROMPT:
			facts->has_prompt = true;
			dsv3_audit_hash(key, reader->value, reader->value_len, facts->prompt_hash);
			break;
		case DSV3_FIELD_GRAMMAR:
			facts->has_schema = true;
			dsv3_audit_hash(key, reader->value, reader->value_len, facts->schema_hash);
			break;
		case DSV3_FIELD_SEED:
			facts->has_seed = true;
			facts->seed = (int64) dsv3_body_get_u64(reader);
			break;
		case DSV3_FIELD_STOP:
			++*stops;
			break;
		case DSV3_FIELD_MAX_TOKENS:
			add_int(params, "max_tokens", dsv3_body_get_u32(reader));
			break;
		case DSV3_FIELD_TEMPERATURE:
			add_float(params, "temperature", dsv3_body_get_f64(reader));
			break;
		case DSV3_FIELD_TOP_P:
			add_float(params, "top_p", dsv3_body_get_f64(reader));
			break;
		case DSV3_FIELD_TOP_K:
			add_int(params, "top_k", dsv3_body_get_u32(reader));
			break;
		case DSV3_FIELD_MIN_P:
			add_float(params, "min_p", dsv3_body_get_f64(reader));
			break;
		case DSV3_FIELD_REPETITION_PENALTY:
			add_float(params, "repetition_penalty", dsv3_body_get_f64(reader));
			break;
		case DSV3_FIELD_RAW:
			add_param(params, "raw", "true");
			break;
		case DSV3_FIELD_THINK:
			add_int(params, "think", dsv3_body_get_u32(reader));
			break;
		case DSV3_FIELD_THINK_BUDGET:
			add_int(params, "think_budget", dsv3_body_get_u32(reader));
			break;
		case DSV3_FIELD_LOGPROBS:
			add_int(params, "logprobs", dsv3_body_get_u32(reader));
			break;
		case DSV3_FIELD_PRIORITY:
			add_param(params, "priority",
					  dsv3_body_get_u32(reader) == DSV3_PRIORITY_BATCH ? "\"batch\"" : "\"interactive\"");
			break;
		default:
			break;
	}
}

static void
take_body(Dsv3AuditFacts *facts, const Dsv3AuditKey *key, const Dsv3Letter *letter)
{
	Dsv3Text input =
		letter->inserted.data ? letter->inserted : dsv3_audit_input_of(letter->body, letter->body_len);
	Dsv3BodyReader reader;
	StringInfoData params;
	int stops = 0;

	initStringInfo(&params);
	dsv3_audit_hash(key, input.data ? input.data : "", input.len, facts->input_hash);
	dsv3_audit_hash(key, letter->body, letter->body_len, facts->request_hash);
	dsv3_body_open(&reader, letter->body, letter->body_len);
	while (dsv3_body_next(&reader))
		take_field(facts, key, &reader, &params, &stops);
	if (stops > 0)
		add_int(&params, "stops", (uint32) stops);
	if (letter->timeout_ms > 0)
		add_int(&params, "timeout_ms", (uint32) letter->timeout_ms);
	if (params.len > 0)
		appendStringInfoChar(&params, '}');
	/* Some twenty numbers at most: they fit. */
	strlcpy(facts->params, params.len > 0 ? params.data : "{}", sizeof(facts->params));
	pfree(params.data);
}

/* What fits of a text, in whole characters. */
static void
copy_text(char *to, Size size, const char *from)
{
	int len = from ? pg_mbcliplen(from, (int) strlen(from), (int) size - 1) : 0;

	if (len > 0)
		memcpy(to, from, (Size) len);
	to[len] = '\0';
}

static void
copy_name(NameData *to, const char *from)
{
	copy_text(NameStr(*to), NAMEDATALEN, from);
}

/* "dsv3_generate_1_0" is the symbol of dsv3_generate. */
static void
copy_function(NameData *to, const char *symbol)
{
	Size len;

	copy_name(to, symbol);
	len = strlen(NameStr(*to));
	if (len > 4 && strcmp(NameStr(*to) + len - 4, "_1_0") == 0)
		NameStr(*to)[len - 4] = '\0';
}

/* The peer of this session; it does not change. */
static const char *
client_address(void)
{
	static char address[64];
	static bool known;

	if (!known)
	{
		LOCAL_FCINFO(fcinfo, 0);
		Datum datum;

		InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
		datum = inet_client_addr(fcinfo);
		if (!fcinfo->isnull)
			strlcpy(address, DatumGetCString(DirectFunctionCall1(inet_out, datum)), sizeof(address));
		known = true;
	}
	return address;
}

static int
hex_value(char c)
{
	return c <= '9' ? c - '0' : c - 'a' + 10;
}

/* The transaction id that tells what becomes of the caller's work. One is made if there is none yet, since the request's row
 * is written before the caller writes anything; in a parallel query it cannot be. */
static FullTransactionId
current_xid(void)
{
	if (IsInParallelMode())
		return GetTopFullTransactionIdIfAny();
	return GetCurrentFullTransactionId();
}

static void
take_session(Dsv3AuditFacts *facts)
{
	facts->started_at = GetCurrentTimestamp();
	facts->database = MyDatabaseId;
	copy_name(&facts->database_name, get_database_name(MyDatabaseId));
	copy_name(&facts->session_role, GetUserNameFromId(GetSessionUserId(), true));
	copy_name(&facts->role, GetUserNameFromId(GetUserId(), true));
	facts->role_oid = GetUserId();
	copy_name(&facts->application, application_name);
	strlcpy(facts->client, client_address(), sizeof(facts->client));
	facts->pid = MyProcPid;
	facts->query_id = (int64) pgstat_get_my_query_id();
}

/* The table of the log, by the catalogs as this transaction sees them; InvalidOid: there is none. */
static Oid
log_table(void)
{
	Relation catalog = table_open(ExtensionRelationId, AccessShareLock);
	Oid table = InvalidOid;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple tuple;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ, CStringGetDatum("dsv3"));
	scan = systable_beginscan(catalog, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		table = get_relname_relid("dsv3_audit_log", ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace);
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return table;
}

/* The writer, in a transaction of its own, cannot see a log that the caller's transaction has made. */
static bool
is_log_visible(Dsv3Error *err)
{
	Relation relation = NULL;
	bool made_here;

	/* Whoever has made it has a transaction id. No lock is taken, for nothing but this mark is read. */
	if (FullTransactionIdIsValid(GetTopFullTransactionIdIfAny()))
		relation = RelationIdGetRelation(log_table());
	if (relation == NULL)
		return true;
	made_here = relation->rd_createSubid != InvalidSubTransactionId;
	RelationClose(relation);
	if (!made_here)
		return true;
	dsv3_error(err, DSV3_ERR_NOT_IN_STATE,
			   "dsv3 audit log cannot be written: extension dsv3 was created in this transaction");
	return dsv3_error_hint(err, "COMMIT first. A superuser may set dsv3.audit to \"off\".");
}

bool
dsv3_audit_begin(Dsv3Audit *audit, const Dsv3Letter *letter, const pg_uuid_t *request_id,
				 Dsv3Failure *failure)
{
	Dsv3AuditFacts facts;

	memset(audit, 0, sizeof(*audit));
	if (dsv3_guc_audit == DSV3_AUDIT_LEVEL_OFF || !dsv3_runs_model(letter->kind) || RecoveryInProgress())
		return true;
	failure->row_error = false;
	if (dsv3_guc_audit_hash == DSV3_AUDIT_HASH_HMAC && !dsv3_audit_read_key(&audit->key, &failure->error))
		return false;
	if (!is_log_visible(&failure->error))
		return false;
	audit->gate = dsv3_guc_audit_sync;
	audit->full = dsv3_guc_audit == DSV3_AUDIT_LEVEL_FULL;
	audit->kind = letter->kind;
	INSTR_TIME_SET_CURRENT(audit->started);

	memset(&facts, 0, sizeof(facts));
	facts.request_id = *request_id;
	facts.trace_id = *request_id;
	if (letter->traceparent)
	{
		strlcpy(facts.traceparent, letter->traceparent, sizeof(facts.traceparent));
		for (int i = 0; i < UUID_LEN; i++)
			facts.trace_id.data[i] = (unsigned char) (hex_value(facts.traceparent[3 + 2 * i]) << 4 |
													  hex_value(facts.traceparent[4 + 2 * i]));
	}
	take_session(&facts);
	copy_function(&facts.function, letter->function);
	copy_text(facts.prompt_name, sizeof(facts.prompt_name), letter->prompt_name);
	facts.prompt_version = letter->prompt_version;
	facts.inserted_len = letter->inserted.len;
	facts.keyed = audit->key.len > 0;
	take_body(&facts, &audit->key, letter);
	facts.xid = current_xid();
	return dsv3_audit_claim(&facts, audit->gate, audit->full ? letter->body : NULL, letter->body_len,
							letter->inserted.data, &audit->handle, &failure->error);
}

/* ---- the answer ---- */

void
dsv3_audit_answer_of(uint32 kind, const char *fields, Size len, StringInfo out)
{
	Dsv3Field field = kind == DSV3_REQUEST_CHAT      ? DSV3_FIELD_MESSAGE_JSON
					  : kind == DSV3_REQUEST_LOGPROB ? DSV3_FIELD_LOGPROB
													 : DSV3_FIELD_TEXT;
	Dsv3BodyReader reader;

	dsv3_body_open(&reader, (const uint8 *) fields, len);
	while (dsv3_body_next(&reader))
	{
		if (reader.field == field)
			appendBinaryStringInfo(out, (const char *) reader.value, (int) reader.value_len);
	}
}

void
dsv3_audit_take_fields(Dsv3Audit *audit, const char *fields, Size len)
{
	if (audit->handle.serial == 0 || len == 0)
		return;
	if (audit->answer.data == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&audit->answer);
		MemoryContextSwitchTo(old);
	}
	dsv3_audit_answer_of(audit->kind, fields, len, &audit->answer);
}

static void
fill_outcome(const Dsv3Audit *audit, Dsv3AuditStatus status, const char *sqlstate, const Dsv3Counts *counts,
			 Dsv3AuditOutcome *outcome)
{
	instr_time now;

	memset(outcome, 0, sizeof(*outcome));
	outcome->status = status;
	strlcpy(outcome->sqlstate, sqlstate, sizeof(outcome->sqlstate));
	outcome->counts = *counts;
	outcome->has_output = status == DSV3_AUDIT_DONE || audit->answer.data != NULL;
	if (outcome->has_output)
		dsv3_audit_hash(&audit->key, audit->answer.data ? audit->answer.data : "", (Size) audit->answer.len,
						outcome->output_hash);
	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, audit->started);
	outcome->total_ms = INSTR_TIME_GET_MILLISEC(now);
}

bool
dsv3_audit_end(Dsv3Audit *audit, const Dsv3Counts *counts, const Dsv3Error *err, Dsv3Failure *failure)
{
	Dsv3AuditOutcome outcome;
	bool cancelled = err && strcmp(err->sqlstate, DSV3_ERR_CANCELLED) == 0;

	if (audit->handle.serial == 0 || audit->finished)
		return true;
	fill_outcome(audit,
				 err == NULL ? DSV3_AUDIT_DONE
				 : cancelled ? DSV3_AUDIT_CANCELLED
							 : DSV3_AUDIT_FAILED,
				 err ? err->sqlstate : "", counts, &outcome);
	audit->finished = true;
	if (dsv3_audit_finish(&audit->handle, &outcome,
						  audit->full ? (audit->answer.data ? audit->answer.data : "") : NULL,
						  (Size) audit->answer.len))
		return true;
	failure->row_error = false;
	dsv3_error(&failure->error, DSV3_ERR_OUT_OF_MEMORY,
			   "out of shared memory for the texts of the dsv3 audit log");
	return dsv3_error_hint(&failure->error, "Raise dsv3.shared_memory and restart the server, or set "
											"dsv3.audit to \"digest\".");
}

Dsv3AuditProgress
dsv3_audit_wait(const Dsv3Audit *audit, Dsv3Failure *failure)
{
	if (!dsv3_audit_holds(audit))
		return DSV3_AUDIT_DURABLE;
	failure->row_error = false;
	return dsv3_audit_progress(&audit->handle, &failure->error);
}

void
dsv3_audit_leave(Dsv3Audit *audit, const Dsv3Counts *counts)
{
	Dsv3AuditOutcome outcome;

	if (audit->handle.serial != 0)
	{
		fill_outcome(audit, DSV3_AUDIT_CANCELLED, DSV3_ERR_CANCELLED, counts, &outcome);
		dsv3_audit_abandon(&audit->handle, &outcome);
	}
	if (audit->answer.data)
		pfree(audit->answer.data);
	memset(audit, 0, sizeof(*audit));
}
