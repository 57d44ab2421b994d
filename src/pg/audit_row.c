/*
 * audit_row.c
 *	  Rows of dsv3_audit_log.
 *
 * A row's hash is the SHA-256 of its columns in their order, those that are NULL and the hash itself left out: for each its
 * number (16 bits), the length of its value (32 bits) and the value as PostgreSQL stores it, integers in little-endian order.
 * One of the columns is the hash of the row before, and one the number of the row: so no row can be changed, left out,
 * added or moved without another hash than the next row, or the head of the chain, has. A column that a later version
 * adds is NULL in older rows and leaves their hashes as they are.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/tupmacs.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"
#include "utils/xid8.h"

#include "pg/activity.h"
#include "pg/answer.h"
#include "pg/audit.h"
#include "pg/audit_row.h"
#include "pg/text.h"

static void
set(Dsv3AuditRow *row, Dsv3AuditColumn column, Datum value)
{
	row->values[column] = value;
	row->nulls[column] = false;
}

/* A text; NULL or empty is NULL. */
static void
set_text(Dsv3AuditRow *row, Dsv3AuditColumn column, const char *text)
{
	if (text && text[0] != '\0')
		set(row, column, CStringGetTextDatum(text));
}

static void
set_bytes(Dsv3AuditRow *row, Dsv3AuditColumn column, const void *data, Size len)
{
	bytea *bytes = palloc_extended(VARHDRSZ + len, MCXT_ALLOC_HUGE);

	SET_VARSIZE(bytes, VARHDRSZ + len);
	memcpy(VARDATA(bytes), data, len);
	set(row, column, PointerGetDatum(bytes));
}

static void
set_hash(Dsv3AuditRow *row, Dsv3AuditColumn column, const uint8 *hash)
{
	set_bytes(row, column, hash, DSV3_HASH_BYTES);
}

/* UTF-8 as a text for people: what the database cannot hold becomes a question mark. */
static void
set_utf8(Dsv3AuditRow *row, Dsv3AuditColumn column, const char *data, Size len)
{
	char *copy = memcpy(palloc_extended(len + 1, MCXT_ALLOC_HUGE), data, len);

	copy[len] = '\0';
	for (Size i = 0; i < len; i++)
	{
		if (copy[i] == '\0')
			copy[i] = '?';
	}
	set(row, column, CStringGetTextDatum(dsv3_text_from_utf8_lossy(copy)));
}

static const char *
status_name(Dsv3AuditStatus status)
{
	switch (status)
	{
		case DSV3_AUDIT_DONE:
			return "done";
		case DSV3_AUDIT_FAILED:
			return "failed";
		case DSV3_AUDIT_CANCELLED:
			return "cancelled";
		case DSV3_AUDIT_REFUSED:
			return "refused";
	}
	return NULL;
}

/* What the engine says of its model, or NULL. */
static Jsonb *
engine_model(void)
{
	char *json = palloc(DSV3_ENGINE_JSON_MAX);

	LWLockAcquire(dsv3_lock, LW_SHARED);
	strlcpy(json, dsv3_shared->model_json, DSV3_ENGINE_JSON_MAX);
	LWLockRelease(dsv3_lock);
	return dsv3_engine_json(json);
}

bool
dsv3_audit_is_model(const char *digest)
{
	char *now = dsv3_json_text(engine_model(), "digest");

	return now && strcmp(now, digest) == 0;
}

static void
fill_model(Dsv3AuditRow *row)
{
	Jsonb *model = engine_model();

	set_text(row, DSV3_AUDIT_MODEL, dsv3_json_text(model, "name"));
	set_text(row, DSV3_AUDIT_MODEL_DIGEST, dsv3_json_text(model, "digest"));
	set_text(row, DSV3_AUDIT_ENGINE, dsv3_json_text(model, "engine_version"));
}

static void
fill_facts(const Dsv3AuditFacts *facts, Dsv3AuditRow *row)
{
	set(row, DSV3_AUDIT_SEQ, Int64GetDatum(0));
	set(row, DSV3_AUDIT_LOGGED_AT, TimestampTzGetDatum(facts->started_at));
	set(row, DSV3_AUDIT_REQUEST_ID, UUIDPGetDatum(&facts->request_id));
	set(row, DSV3_AUDIT_TRACE_ID, UUIDPGetDatum(&facts->trace_id));
	set_text(row, DSV3_AUDIT_TRACEPARENT, facts->traceparent);
	set(row, DSV3_AUDIT_STARTED_AT, TimestampTzGetDatum(facts->started_at));
	set_text(row, DSV3_AUDIT_DATABASE, NameStr(facts->database_name));
	set_text(row, DSV3_AUDIT_SESSION_ROLE, NameStr(facts->session_role));
	set_text(row, DSV3_AUDIT_ROLE, NameStr(facts->role));
	set(row, DSV3_AUDIT_ROLE_OID, ObjectIdGetDatum(facts->role_oid));
	set_text(row, DSV3_AUDIT_APPLICATION, NameStr(facts->application));
	if (facts->client[0])
		set(row, DSV3_AUDIT_CLIENT, DirectFunctionCall1(inet_in, CStringGetDatum(facts->client)));
	set(row, DSV3_AUDIT_PID, Int32GetDatum(facts->pid));
	if (facts->query_id != 0)
		set(row, DSV3_AUDIT_QUERY_ID, Int64GetDatum(facts->query_id));
	if (FullTransactionIdIsValid(facts->xid))
		set(row, DSV3_AUDIT_XID, FullTransactionIdGetDatum(facts->xid));
	set_text(row, DSV3_AUDIT_FUNCTION, NameStr(facts->function));
	if (facts->prompt_name[0])
	{
		set_text(row, DSV3_AUDIT_PROMPT_NAME, facts->prompt_name);
		set(row, DSV3_AUDIT_PROMPT_VERSION, Int32GetDatum(facts->prompt_version));
	}
	set_text(row, DSV3_AUDIT_HASH_KIND, facts->keyed ? "hmac-sha256" : "sha256");
	set_hash(row, DSV3_AUDIT_INPUT_HASH, facts->input_hash);
	if (facts->has_prompt)
		set_hash(row, DSV3_AUDIT_PROMPT_HASH, facts->prompt_hash);
	if (facts->has_schema)
		set_hash(row, DSV3_AUDIT_SCHEMA_HASH, facts->schema_hash);
	set_hash(row, DSV3_AUDIT_REQUEST_HASH, facts->request_hash);
	set(row, DSV3_AUDIT_PARAMS, DirectFunctionCall1(jsonb_in, CStringGetDatum(facts->params)));
	if (facts->has_seed)
		set(row, DSV3_AUDIT_SEED, Int64GetDatum(facts->seed));
}

static void
fill_outcome(const Dsv3AuditOutcome *outcome, Dsv3AuditRow *row)
{
	const Dsv3Counts *counts = &outcome->counts;

	set_text(row, DSV3_AUDIT_STATUS, status_name(outcome->status));
	set_text(row, DSV3_AUDIT_SQLSTATE, outcome->sqlstate);
	set_text(row, DSV3_AUDIT_FINISH_REASON, dsv3_finish_name(counts->finish));
	set(row, DSV3_AUDIT_OUTPUT_TOKENS, Int32GetDatum((int32) counts->output_tokens));
	if (outcome->has_output)
		set_hash(row, DSV3_AUDIT_OUTPUT_HASH, outcome->output_hash);
	set(row, DSV3_AUDIT_TOTAL_MS, Float8GetDatum(outcome->total_ms));
	if (counts->prompt_tokens == 0)
		return; /* the engine has not counted */
	set(row, DSV3_AUDIT_PROMPT_TOKENS, Int32GetDatum((int32) counts->prompt_tokens));
	set(row, DSV3_AUDIT_CACHED_TOKENS, Int32GetDatum((int32) counts->cached_tokens));
	set(row, DSV3_AUDIT_QUEUE_MS, Float8GetDatum((double) counts->queue_us / 1000));
	set(row, DSV3_AUDIT_PREFILL_MS, Float8GetDatum((double) counts->prefill_us / 1000));
	set(row, DSV3_AUDIT_DECODE_MS, Float8GetDatum((double) counts->decode_us / 1000));
}

/* At level "full". Nobody else touches the texts of a record that has ended while its writer has it. */
static void
fill_texts(const Dsv3AuditRecord *record, Dsv3AuditRow *row)
{
	Size inserted = record->facts.inserted_len;
	Size len = record->request.len - inserted;
	uint8 *request = palloc_extended(record->request.len, MCXT_ALLOC_HUGE);
	char *answer = palloc_extended(record->answer.len + 1, MCXT_ALLOC_HUGE);
	Dsv3Text input;

	dsv3_chain_read(&record->request, request);
	dsv3_chain_read(&record->answer, answer);
	input =
		inserted > 0 ? (Dsv3Text){(const char *) request + len, inserted} : dsv3_audit_input_of(request, len);
	set_bytes(row, DSV3_AUDIT_REQUEST, request, len);
	set_utf8(row, DSV3_AUDIT_INPUT, input.data ? input.data : "", input.len);
	set_utf8(row, DSV3_AUDIT_OUTPUT, answer, record->answer.len);
}

void
dsv3_audit_row_fill(const Dsv3AuditRecord *record, Dsv3AuditRow *row)
{
	memset(row->nulls, true, sizeof(row->nulls));
	memset(row->values, 0, sizeof(row->values));
	fill_facts(&record->facts, row);
	fill_model(row);
	if (!record->ended)
		return;
	fill_outcome(&record->outcome, row);
	if (record->request.len > 0)
		fill_texts(record, row);
}

void
dsv3_audit_row_lose(Dsv3AuditRow *row)
{
	set_text(row, DSV3_AUDIT_STATUS, DSV3_AUDIT_LOST_NAME);
}

/* ---- the chain ---- */

static void
append_value(StringInfo buffer, Form_pg_attribute attribute, Datum value)
{
	uint16 number = (uint16) attribute->attnum;
	uint32 len;
	const char *data;
	char inline_value[sizeof(Datum)];

	if (attribute->attbyval)
	{
		store_att_byval(inline_value, value, attribute->attlen);
		data = inline_value;
		len = (uint32) attribute->attlen;
	}
	else if (attribute->attlen > 0)
	{
		data = DatumGetPointer(value);
		len = (uint32) attribute->attlen;
	}
	else
	{
		struct varlena *plain = PG_DETOAST_DATUM_PACKED(value);

		data = VARDATA_ANY(plain);
		len = (uint32) VARSIZE_ANY_EXHDR(plain);
	}
	appendBinaryStringInfo(buffer, (const char *) &number, sizeof(number));
	appendBinaryStringInfo(buffer, (const char *) &len, sizeof(len));
	appendBinaryStringInfo(buffer, data, (int) len);
}

void
dsv3_audit_row_hash(TupleDesc tupdesc, const Dsv3AuditRow *row, uint8 *hash)
{
	StringInfoData buffer;

	initStringInfo(&buffer);
	for (int i = 0; i < DSV3_AUDIT_N_COLUMNS; i++)
	{
		if (i != DSV3_AUDIT_ROW_HASH && !row->nulls[i])
			append_value(&buffer, TupleDescAttr(tupdesc, i), row->values[i]);
	}
	dsv3_audit_hash(NULL, buffer.data, (Size) buffer.len, hash);
	pfree(buffer.data);
}

void
dsv3_audit_row_chain(TupleDesc tupdesc, Dsv3AuditRow *row, Dsv3AuditHead *head)
{
	set_hash(row, DSV3_AUDIT_PREV_HASH, head->hash);
	head->seq++;
	set(row, DSV3_AUDIT_SEQ, Int64GetDatum(head->seq));
	set(row, DSV3_AUDIT_LOGGED_AT, TimestampTzGetDatum(head->logged_at));
	dsv3_audit_row_hash(tupdesc, row, head->hash);
	set_hash(row, DSV3_AUDIT_ROW_HASH, head->hash);
}

bool
dsv3_audit_row_bytes(const Dsv3AuditRow *row, Dsv3AuditColumn column, uint8 *hash)
{
	bytea *bytes;

	if (row->nulls[column])
		return false;
	bytes = DatumGetByteaPP(row->values[column]);
	if (VARSIZE_ANY_EXHDR(bytes) != DSV3_HASH_BYTES)
		return false;
	memcpy(hash, VARDATA_ANY(bytes), DSV3_HASH_BYTES);
	return true;
}
