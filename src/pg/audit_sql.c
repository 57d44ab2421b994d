/*
 * audit_sql.c
 *	  The functions of the audit log: check the chain, run a request again, drop what is too old, and keep hands off.
 *
 * Checking reads the rows in the order of their numbers. Each must have the number after the one before, name that row's
 * hash, and have the hash of its own contents; the first must follow the last checkpoint and the last must be the one that
 * dsv3_audit_head names.
 *
 * A checkpoint is what remains of a partition that was dropped: which rows it held and between which hashes, signed with the
 * key in dsv3.audit_key_file.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "pg/audit.h"
#include "pg/audit_writer.h"
#include "pg/guc.h"
#include "pg/text.h"

PG_FUNCTION_INFO_V1(dsv3_audit_digest_1_0);
PG_FUNCTION_INFO_V1(dsv3_audit_expire_1_0);
PG_FUNCTION_INFO_V1(dsv3_audit_flush_1_0);
PG_FUNCTION_INFO_V1(dsv3_audit_guard_1_0);
PG_FUNCTION_INFO_V1(dsv3_audit_verify_1_0);
PG_FUNCTION_INFO_V1(dsv3_replay_1_0);

#define FETCH_ROWS 1000
#define FLUSH_MS   20

static void
raise_error(const Dsv3Error *err)
{
	Dsv3Failure failure = {.error = *err};

	dsv3_raise(&failure);
}

static Datum
hash_datum(const uint8 *hash)
{
	bytea *bytes = palloc(VARHDRSZ + DSV3_HASH_BYTES);

	SET_VARSIZE(bytes, VARHDRSZ + DSV3_HASH_BYTES);
	memcpy(VARDATA(bytes), hash, DSV3_HASH_BYTES);
	return PointerGetDatum(bytes);
}

/* dsv3_audit_guard(): rows of the log are never changed. */
Datum
dsv3_audit_guard_1_0(PG_FUNCTION_ARGS)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("rows of the audit log cannot be changed"),
			 errhint("dsv3_audit_expire() drops the months that are too old.")));
	PG_RETURN_NULL();
}

/* ---- flush ---- */

/* Everything that has ended in this database is in the log after this. */
static void
flush(void)
{
	TimestampTz since = GetCurrentTimestamp();
	Dsv3Error err;

	dsv3_require_preload();
	if (RecoveryInProgress())
		return;
	while (!dsv3_audit_flushed(MyDatabaseId, since, &err))
	{
		if (err.sqlstate[0])
			raise_error(&err);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, FLUSH_MS,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* dsv3_audit_flush() */
Datum
dsv3_audit_flush_1_0(PG_FUNCTION_ARGS)
{
	flush();
	PG_RETURN_VOID();
}

/* dsv3_audit_digest(content) -> bytea: the hash that the log has of a text, by the settings of now */
Datum
dsv3_audit_digest_1_0(PG_FUNCTION_ARGS)
{
	Dsv3AuditKey key = {.len = 0};
	uint8 hash[DSV3_HASH_BYTES];
	Dsv3Failure failure;
	Dsv3Text text;

	if (!dsv3_text_to_utf8(PG_GETARG_DATUM(0), &text, &failure))
		dsv3_raise(&failure);
	if (dsv3_guc_audit_hash == DSV3_AUDIT_HASH_HMAC && !dsv3_audit_read_key(&key, &failure.error))
		dsv3_raise(&failure);
	dsv3_audit_hash(&key, text.data, text.len, hash);
	PG_RETURN_DATUM(hash_datum(hash));
}

/* ---- the chain ---- */

/* A walk along the chain. */
typedef struct Walk
{
	const char *schema; /* quoted */
	int64 rows;
	int64 first;
	int64 last; /* and the next row's prev_hash, if known */
	bool known;
	uint8 hash[DSV3_HASH_BYTES];
	int64 bad; /* with problem */
	const char *problem;
} Walk;

static bool
found(Walk *walk, int64 seq, const char *problem)
{
	walk->bad = seq;
	walk->problem = problem;
	return false;
}

/* The next row; false: there is a problem. */
static bool
step(Walk *walk, TupleDesc tupdesc, const Dsv3AuditRow *row)
{
	int64 seq = row->nulls[DSV3_AUDIT_SEQ] ? 0 : DatumGetInt64(row->values[DSV3_AUDIT_SEQ]);
	uint8 hash[DSV3_HASH_BYTES];
	uint8 stored[DSV3_HASH_BYTES];

	if (seq > walk->last + 1)
		return found(walk, walk->last + 1, "row is missing");
	if (seq <= walk->last)
		return found(walk, seq, "row is there twice");
	dsv3_audit_row_hash(tupdesc, row, hash);
	if (!dsv3_audit_row_bytes(row, DSV3_AUDIT_ROW_HASH, stored) || memcmp(stored, hash, sizeof(hash)) != 0)
		return found(walk, seq, "row was changed");
	if (!dsv3_audit_row_bytes(row, DSV3_AUDIT_PREV_HASH, stored) ||
		(walk->known && memcmp(stored, walk->hash, sizeof(stored)) != 0))
		return found(walk, seq, "row does not follow the one before");
	if (walk->rows++ == 0)
		walk->first = seq;
	walk->last = seq;
	walk->known = true;
	memcpy(walk->hash, hash, sizeof(hash));
	return true;
}

/* Rows from walk->last + 1 to `to`. False: there is a problem. */
static bool
walk_rows(Walk *walk, int64 to)
{
	Oid types[2] = {INT8OID, INT8OID};
	Datum values[2] = {Int64GetDatum(walk->last + 1), Int64GetDatum(to)};
	Portal portal =
		SPI_cursor_open_with_args(NULL,
								  psprintf("SELECT * FROM %s.dsv3_audit_log WHERE seq "
										   "OPERATOR(pg_catalog.>=) $1 AND seq OPERATOR(pg_catalog.<=) $2 "
										   "ORDER BY seq, logged_at",
										   walk->schema),
								  2, types, values, NULL, false, 0);
	MemoryContext context =
		AllocSetContextCreate(CurrentMemoryContext, "dsv3 audit row", ALLOCSET_DEFAULT_SIZES);
	bool good = true;

	do
	{
		SPI_cursor_fetch(portal, true, FETCH_ROWS);
		for (uint64 i = 0; i < SPI_processed && good; i++)
		{
			MemoryContext old = MemoryContextSwitchTo(context);
			Dsv3AuditRow row;

			CHECK_FOR_INTERRUPTS();
			dsv3_audit_read_row(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, &row);
			good = step(walk, SPI_tuptable->tupdesc, &row);
			MemoryContextSwitchTo(old);
			MemoryContextReset(context);
		}
		SPI_freetuptable(SPI_tuptable);
	} while (good && SPI_processed > 0);
	SPI_cursor_close(portal);
	MemoryContextDelete(context);
	return good;
}

/* The one row of a query, of a number and a hash; false: there is none, or a NULL. */
static bool
get_link(const char *sql, int64 *seq, uint8 *hash)
{
	Dsv3AuditRow row;
	bool isnull;
	Datum value;

	if (SPI_execute(sql, false, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read the dsv3 audit log");
	if (SPI_processed == 0)
		return false;
	value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	if (isnull)
		return false;
	*seq = DatumGetInt64(value);
	row.values[DSV3_AUDIT_ROW_HASH] =
		SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &row.nulls[DSV3_AUDIT_ROW_HASH]);
	return dsv3_audit_row_bytes(&row, DSV3_AUDIT_ROW_HASH, hash);
}

/* A number by one time, or NULL. */
static bool
get_number(const char *sql, TimestampTz time, int64 *number)
{
	Oid type = TIMESTAMPTZOID;
	Datum value = TimestampTzGetDatum(time);
	bool isnull;

	if (SPI_execute_with_args(sql, 1, &type, &value, NULL, false, 1) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not read the dsv3 audit log");
	value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	if (!isnull)
		*number = DatumGetInt64(value);
	return !isnull;
}

/* What a checkpoint's signature covers. */
static void
sign(const Dsv3AuditKey *key, const char *partition, int64 first, int64 last, const uint8 *prev,
	 const uint8 *hash, uint8 *signature)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, "dsv3 checkpoint %s " INT64_FORMAT " " INT64_FORMAT " ", partition, first, last);
	appendBinaryStringInfo(&text, (const char *) prev, DSV3_HASH_BYTES);
	appendBinaryStringInfo(&text, (const char *) hash, DSV3_HASH_BYTES);
	dsv3_audit_hash(key, text.data, (Size) text.len, signature);
}

/* The checkpoints follow each other and are signed, if the key is there to tell. The walk begins after the last. */
static bool
walk_checkpoints(Walk *walk)
{
	Dsv3AuditKey key;
	Dsv3Error err;
	bool have_key = dsv3_guc_audit_key_file[0] && dsv3_audit_read_key(&key, &err);

	memset(walk->hash, 0, sizeof(walk->hash));
	walk->known = true;
	if (SPI_execute(psprintf("SELECT partition, first_seq, last_seq, prev_hash, last_hash, signature FROM "
							 "%s.dsv3_audit_checkpoint ORDER BY first_seq",
							 walk->schema),
					false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the dsv3 audit log");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		HeapTuple tuple = SPI_tuptable->vals[i];
		TupleDesc tupdesc = SPI_tuptable->tupdesc;
		uint8 hashes[3][DSV3_HASH_BYTES];
		uint8 signature[DSV3_HASH_BYTES];
		bool isnull;
		int64 first = DatumGetInt64(SPI_getbinval(tuple, tupdesc, 2, &isnull));
		int64 last = DatumGetInt64(SPI_getbinval(tuple, tupdesc, 3, &isnull));

		for (int j = 0; j < 3; j++)
		{
			Dsv3AuditRow row;

			row.values[DSV3_AUDIT_ROW_HASH] =
				SPI_getbinval(tuple, tupdesc, 4 + j, &row.nulls[DSV3_AUDIT_ROW_HASH]);
			if (!dsv3_audit_row_bytes(&row, DSV3_AUDIT_ROW_HASH, hashes[j]))
				return found(walk, first, "checkpoint was changed");
		}
		sign(&key, SPI_getvalue(tuple, tupdesc, 1), first, last, hashes[0], hashes[1], signature);
		if (have_key && memcmp(signature, hashes[2], sizeof(signature)) != 0)
			return found(walk, first, "checkpoint was changed, or signed with another key");
		if (first != walk->last + 1 || memcmp(hashes[0], walk->hash, sizeof(walk->hash)) != 0)
			return found(walk, walk->last + 1, "checkpoint is missing");
		walk->last = last;
		memcpy(walk->hash, hashes[1], sizeof(walk->hash));
	}
	return true;
}

/* From the first row at or after `from` to the last at or before `to`, and how both are tied to what is beyond. */
static bool
walk_between(Walk *walk, bool has_from, TimestampTz from, bool has_to, TimestampTz to)
{
	int64 last = PG_INT64_MAX;
	int64 head_seq = 0;
	uint8 head[DSV3_HASH_BYTES];
	int64 number;

	if (!walk_checkpoints(walk))
		return false;
	if (!get_link(psprintf("SELECT seq, row_hash FROM %s.dsv3_audit_head", walk->schema), &head_seq, head))
		return found(walk, 0, "head of the chain is missing");
	if (has_from && get_number(psprintf("SELECT pg_catalog.min(seq) FROM %s.dsv3_audit_log WHERE logged_at "
										"OPERATOR(pg_catalog.>=) $1",
										walk->schema),
							   from, &number))
	{
		/* The row before says which hash the first must name. */
		if (number - 2 > walk->last)
		{
			walk->last = number - 2;
			walk->known = false;
		}
	}
	else if (has_from)
	{
		walk->last = Max(walk->last, head_seq - 1);
		walk->known = walk->last == 0;
	}
	/* The row after names the hash of the last. */
	if (has_to && get_number(psprintf("SELECT pg_catalog.max(seq) FROM %s.dsv3_audit_log WHERE logged_at "
									  "OPERATOR(pg_catalog.<=) $1",
									  walk->schema),
							 to, &number))
		last = number + 1;
	else if (has_to)
		last = walk->last;
	if (!walk_rows(walk, last))
		return false;
	if (walk->last < Min(head_seq, last))
		return found(walk, walk->last + 1, "row is missing");
	if (walk->last > head_seq)
		return found(walk, head_seq + 1, "row was added");
	if (walk->last == head_seq && walk->known && memcmp(walk->hash, head, sizeof(head)) != 0)
		return found(walk, head_seq, "row is not the one that was written");
	return true;
}

static void
open_walk(Walk *walk)
{
	char *schema;

	memset(walk, 0, sizeof(*walk));
	SPI_connect();
	schema = dsv3_audit_schema();
	if (schema == NULL)
		elog(ERROR, "extension dsv3 is not in this database");
	walk->schema = pstrdup(quote_identifier(schema));
}

/* dsv3_audit_verify(from, to) -> (ok, rows, first_seq, last_seq, head, bad_seq, problem) */
Datum
dsv3_audit_verify_1_0(PG_FUNCTION_ARGS)
{
	TupleDesc tupdesc;
	Datum values[7] = {0};
	bool nulls[7] = {false};
	bool good;
	Walk walk;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	flush();
	open_walk(&walk);
	good = walk_between(&walk, !PG_ARGISNULL(0), PG_ARGISNULL(0) ? 0 : PG_GETARG_TIMESTAMPTZ(0),
						!PG_ARGISNULL(1), PG_ARGISNULL(1) ? 0 : PG_GETARG_TIMESTAMPTZ(1));
	SPI_finish();
	values[0] = BoolGetDatum(good);
	values[1] = Int64GetDatum(walk.rows);
	values[2] = Int64GetDatum(walk.first);
	values[3] = Int64GetDatum(walk.last);
	nulls[2] = nulls[3] = walk.rows == 0;
	values[4] = hash_datum(walk.hash);
	nulls[4] = !walk.known;
	values[5] = Int64GetDatum(walk.bad);
	nulls[5] = nulls[6] = good;
	if (!good)
		values[6] = CStringGetTextDatum(walk.problem);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), values, nulls)));
}

/* ---- retention ---- */

static void
execute(const char *sql)
{
	if (SPI_execute(sql, false, 0) < 0)
		elog(ERROR, "could not execute: %s", sql);
}

/* Check a partition's rows, sign what it was, and drop it. */
static void
drop_partition(Walk *walk, const Dsv3AuditKey *key, const char *name)
{
	Oid types[6] = {TEXTOID, INT8OID, INT8OID, BYTEAOID, BYTEAOID, BYTEAOID};
	Datum values[6];
	uint8 prev[DSV3_HASH_BYTES];
	uint8 signature[DSV3_HASH_BYTES];
	int64 before = walk->last;
	int64 last = 0;
	char *table = psprintf("%s.%s", walk->schema, quote_identifier(name));

	memcpy(prev, walk->hash, sizeof(prev));
	if (get_link(psprintf("SELECT seq, row_hash FROM %s ORDER BY seq DESC LIMIT 1", table), &last, signature))
	{
		if (!walk_rows(walk, last))
			ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
							errmsg("partition \"%s\" of the audit log is damaged at row " INT64_FORMAT ": %s",
								   name, walk->bad, walk->problem),
							errhint("Keep it until dsv3_audit_verify() is understood.")));
		sign(key, name, before + 1, walk->last, prev, walk->hash, signature);
		values[0] = CStringGetTextDatum(name);
		values[1] = Int64GetDatum(before + 1);
		values[2] = Int64GetDatum(walk->last);
		values[3] = hash_datum(prev);
		values[4] = hash_datum(walk->hash);
		values[5] = hash_datum(signature);
		if (SPI_execute_with_args(
				psprintf("INSERT INTO %s.dsv3_audit_checkpoint (partition, first_seq, last_seq, "
						 "prev_hash, last_hash, signature) VALUES ($1, $2, $3, $4, $5, $6)",
						 walk->schema),
				6, types, values, NULL, false, 0) != SPI_OK_INSERT)
			elog(ERROR, "could not write the checkpoint");
	}
	execute(psprintf("ALTER EXTENSION dsv3 DROP TABLE %s", table));
	execute(psprintf("DROP TABLE %s", table));
}

/* dsv3_audit_expire(before) -> int: how many months were dropped */
Datum
dsv3_audit_expire_1_0(PG_FUNCTION_ARGS)
{
	Oid type = TIMESTAMPTZOID;
	Datum before = TimestampTzGetDatum(Min(PG_GETARG_TIMESTAMPTZ(0), GetCurrentTimestamp()));
	Dsv3AuditKey key;
	SPITupleTable *partitions;
	Dsv3Error err;
	Walk walk;
	int n;

	if (!dsv3_audit_read_key(&key, &err))
		raise_error(&err);
	flush();
	open_walk(&walk);
	if (!walk_checkpoints(&walk))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("checkpoint at row " INT64_FORMAT " of the audit log: %s", walk.bad, walk.problem)));
	if (SPI_execute_with_args(
			psprintf("SELECT c.relname FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c "
					 "ON c.oid OPERATOR(pg_catalog.=) i.inhrelid "
					 "WHERE i.inhparent OPERATOR(pg_catalog.=) '%s.dsv3_audit_log'::pg_catalog.regclass "
					 "AND (pg_catalog.to_date(pg_catalog.right(c.relname::pg_catalog.text, 6), "
					 "'YYYYMM')::pg_catalog.timestamp "
					 "OPERATOR(pg_catalog.+) '1 month'::pg_catalog.interval) AT TIME ZONE 'UTC' "
					 "OPERATOR(pg_catalog.<=) $1 "
					 "ORDER BY c.relname",
					 walk.schema),
			1, &type, &before, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not list the partitions of the audit log");
	partitions = SPI_tuptable;
	n = (int) SPI_processed;
	for (int i = 0; i < n; i++)
		drop_partition(&walk, &key, SPI_getvalue(partitions->vals[i], partitions->tupdesc, 1));
	SPI_finish();
	PG_RETURN_INT32(n);
}

/* ---- replay ---- */

/* A row that is to be run again; in the memory of the caller. */
typedef struct Recorded
{
	bytea *request; /* NULL: not kept */
	uint8 output_hash[DSV3_HASH_BYTES];
	bool keyed;
	bool same_model; /* as the engine has now */
} Recorded;

/* The row by the id that the functions return, or by a trace id that only one row has. */
static void
find_recorded(const pg_uuid_t *id, Recorded *recorded)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid type = UUIDOID;
	Datum value = UUIDPGetDatum(id);
	Dsv3AuditRow row;
	Walk walk;
	char *digest;

	open_walk(&walk);
	if (SPI_execute_with_args(
			psprintf(
				"SELECT * FROM %s.dsv3_audit_log WHERE (request_id OPERATOR(pg_catalog.=) $1 OR trace_id "
				"OPERATOR(pg_catalog.=) $1) AND output_hash IS NOT NULL ORDER BY request_id "
				"OPERATOR(pg_catalog.=) $1 DESC",
				walk.schema),
			1, &type, &value, NULL, true, 2) != SPI_OK_SELECT)
		elog(ERROR, "could not read the dsv3 audit log");
	if (SPI_processed == 0)
		ereport(ERROR, (errcode(ERRCODE_NO_DATA_FOUND),
						errmsg("audit log has no answered request with that trace id")));
	dsv3_audit_read_row(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, &row);
	if (SPI_processed > 1 && memcmp(DatumGetUUIDP(row.values[DSV3_AUDIT_REQUEST_ID]), id, sizeof(*id)) != 0)
		ereport(ERROR, (errcode(ERRCODE_CARDINALITY_VIOLATION), errmsg("several requests have that trace id"),
						errhint("Give the request_id of one of them.")));
	if (row.nulls[DSV3_AUDIT_REQUEST])
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("request was not kept"),
						errhint("Only requests made while dsv3.audit is \"full\" can be run again.")));
	if (!dsv3_audit_row_bytes(&row, DSV3_AUDIT_OUTPUT_HASH, recorded->output_hash))
		elog(ERROR, "row holds no hash of its answer");
	recorded->keyed = strcmp(TextDatumGetCString(row.values[DSV3_AUDIT_HASH_KIND]), "sha256") != 0;
	recorded->request = (bytea *) MemoryContextAllocHuge(
		caller, VARSIZE_ANY(DatumGetByteaPP(row.values[DSV3_AUDIT_REQUEST])));
	memcpy(recorded->request, DatumGetByteaPP(row.values[DSV3_AUDIT_REQUEST]),
		   VARSIZE_ANY(DatumGetByteaPP(row.values[DSV3_AUDIT_REQUEST])));
	digest =
		row.nulls[DSV3_AUDIT_MODEL_DIGEST] ? NULL : TextDatumGetCString(row.values[DSV3_AUDIT_MODEL_DIGEST]);
	recorded->same_model = digest && dsv3_audit_is_model(digest);
	SPI_finish();
}

/* A kept body as a letter of this session: who asks, and with whom it shares computed prefixes, is left out. */
static void
write_letter(const bytea *request, Dsv3Letter *letter)
{
	Dsv3BodyReader reader;
	Dsv3BodyWriter writer;

	memset(letter, 0, sizeof(*letter));
	letter->function = "dsv3_replay";
	letter->preview = pstrdup("");
	letter->priority = (uint32) dsv3_guc_priority;
	letter->timeout_ms = dsv3_guc_timeout;
	letter->body_len = VARSIZE_ANY_EXHDR(request) + 64;
	letter->body = palloc_extended(letter->body_len, MCXT_ALLOC_HUGE);
	dsv3_body_init(&writer, letter->body, letter->body_len);
	dsv3_body_u32(&writer, DSV3_FIELD_ROLE, GetUserId());
	dsv3_body_u32(&writer, DSV3_FIELD_PRIORITY, letter->priority);
	dsv3_body_open(&reader, (const uint8 *) VARDATA_ANY(request), VARSIZE_ANY_EXHDR(request));
	while (dsv3_body_next(&reader))
	{
		if (reader.field == DSV3_FIELD_KIND)
			letter->kind = dsv3_body_get_u32(&reader);
		else if (reader.field == DSV3_FIELD_MAX_TOKENS)
			letter->max_tokens = dsv3_body_get_u32(&reader);
		if (reader.field != DSV3_FIELD_ROLE && reader.field != DSV3_FIELD_PRIORITY &&
			reader.field != DSV3_FIELD_SCOPE && reader.field != DSV3_FIELD_STREAM)
			dsv3_body_bytes(&writer, (Dsv3Field) reader.field, reader.value, reader.value_len);
	}
	if (reader.error || writer.overflow)
		ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED), errmsg("request in the audit log is damaged"),
						errhint("See dsv3_audit_verify().")));
	letter->body_len = writer.len;
}

/* dsv3_replay(trace_id) -> (same, same_model, recorded_hash, replayed_hash, trace_id) */
Datum
dsv3_replay_1_0(PG_FUNCTION_ARGS)
{
	Dsv3AuditKey key = {.len = 0};
	uint8 hash[DSV3_HASH_BYTES];
	TupleDesc tupdesc;
	Recorded recorded;
	StringInfoData fields;
	StringInfoData answer;
	Dsv3Letter letter;
	Dsv3Failure failure;
	Dsv3Call *call;
	Datum values[5];
	bool nulls[5] = {false};
	pg_uuid_t id;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	dsv3_require_preload();
	find_recorded(PG_GETARG_UUID_P(0), &recorded);
	if (recorded.keyed && !dsv3_audit_read_key(&key, &failure.error))
		dsv3_raise(&failure);
	write_letter(recorded.request, &letter);
	initStringInfo(&fields);
	initStringInfo(&answer);
	call = dsv3_call_post(&letter, false, &failure);
	if (call == NULL)
		dsv3_raise(&failure);
	id = *dsv3_call_trace_id(call);
	if (dsv3_call_wait(call, true, &fields, &failure) != DSV3_CALL_DONE)
		dsv3_raise(&failure);
	dsv3_call_release(call);
	dsv3_audit_answer_of(letter.kind, fields.data, (Size) fields.len, &answer);
	dsv3_audit_hash(&key, answer.data, (Size) answer.len, hash);
	values[0] = BoolGetDatum(memcmp(hash, recorded.output_hash, sizeof(hash)) == 0);
	values[1] = BoolGetDatum(recorded.same_model);
	values[2] = hash_datum(recorded.output_hash);
	values[3] = hash_datum(hash);
	values[4] = UUIDPGetDatum(&id);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), values, nulls)));
}
