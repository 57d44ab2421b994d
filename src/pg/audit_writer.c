/*
 * audit_writer.c
 *	  The background worker that writes the audit log of one database: audit_ring.h says when there is one.
 *
 * It takes what there is, writes it in one transaction of its own and only then lets go of those who wait: so many
 * requests share a flush of the write-ahead log. Requests that have begun are rows of dsv3_audit_open; when they end the
 * row goes from there to dsv3_audit_log, chained to the row before it. What a crash leaves in dsv3_audit_open becomes a row
 * with the status "lost" when the next writer starts.
 *
 * The head of the chain is kept in dsv3_audit_head and is told to the server log now and then, where whoever rewrites the
 * tables does not reach it.
 *
 * Partitions are members of the extension. They are attached rather than created in place, which would wait for
 * everyone who reads the log.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "nodes/makefuncs.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/procarray.h"
#include "tcop/tcopprot.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "pg/audit_writer.h"

#define IDLE_MS                                                                                              \
	500 /* between two looks whether anybody else is connected; DROP DATABASE waits for five seconds */
#define HEAD_ROWS 1000  /* the head is told after so many rows, */
#define HEAD_MS   60000 /* or when the last one was told so long ago, */
						/* and when the writer leaves */
#define LAUNCHES_MAX 16

/* Those who wait for the writer may hold the very lock that it waits for, which PostgreSQL cannot see: therefore it gives up, later
 * than the two seconds after which dsv3_audit_expire does. */
#define LOCK_TIMEOUT "4s"

static Oid database;
static bool connected;
static Dsv3AuditHead told; /* the head that was told last */
static TimestampTz told_at;
static Dsv3AuditHead head;

/* ---- in the supervisor ---- */

bool
dsv3_audit_launch(void)
{
	Oid wanted[LAUNCHES_MAX];
	bool again;
	int n = dsv3_audit_wanted(wanted, LAUNCHES_MAX, &again);

	for (int i = 0; i < n; i++)
	{
		BackgroundWorker worker;
		Dsv3Error err;

		memset(&worker, 0, sizeof(worker));
		worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
		worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
		worker.bgw_restart_time = BGW_NEVER_RESTART;
		worker.bgw_main_arg = ObjectIdGetDatum(wanted[i]);
		snprintf(worker.bgw_library_name, BGW_MAXLEN, "dsv3");
		snprintf(worker.bgw_function_name, BGW_MAXLEN, "dsv3_audit_writer_main");
		snprintf(worker.bgw_name, BGW_MAXLEN, "dsv3 audit writer");
		snprintf(worker.bgw_type, BGW_MAXLEN, "dsv3 audit writer");
		if (RegisterDynamicBackgroundWorker(&worker, NULL))
			continue;
		dsv3_error(&err, DSV3_ERR_QUEUE_FULL, "no background worker is free");
		dsv3_error_hint(
			&err, "Raise max_worker_processes and restart the server, or have a superuser set dsv3.audit "
				  "to \"off\".");
		dsv3_audit_fail(wanted[i], &err, false);
	}
	return again;
}

/* ---- tables ---- */

char *
dsv3_audit_schema(void)
{
	if (SPI_execute("SELECT n.nspname FROM pg_catalog.pg_extension AS e JOIN pg_catalog.pg_namespace AS n "
					"ON n.oid OPERATOR(pg_catalog.=) e.extnamespace "
					"WHERE e.extname OPERATOR(pg_catalog.=) 'dsv3'",
					true, 1) != SPI_OK_SELECT ||
		SPI_processed == 0)
		return NULL;
	return SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
}

static void
run(const char *sql, int expected)
{
	int result = SPI_execute(sql, false, 0);

	if (result != expected)
		elog(ERROR, "dsv3 audit writer: %s: %s", SPI_result_code_string(result), sql);
}

static void
run_with(const char *sql, int n, Oid *types, Datum *values, const char *nulls, int expected)
{
	int result = SPI_execute_with_args(sql, n, types, values, nulls, false, 0);

	if (result != expected)
		elog(ERROR, "dsv3 audit writer: %s: %s", SPI_result_code_string(result), sql);
}

/* The partition of a month, by the clock of UTC, exists after this. */
static void
have_partition(const char *schema, TimestampTz at)
{
	struct pg_tm tm;
	fsec_t fsec;
	char *name;

	if (timestamp2tm(at, NULL, &tm, &fsec, NULL, NULL) != 0)
		elog(ERROR, "time out of range");
	name = psprintf("%s.dsv3_audit_log_%04d%02d", schema, tm.tm_year, tm.tm_mon);
	run(psprintf("SELECT pg_catalog.to_regclass(%s)", quote_literal_cstr(name)), SPI_OK_SELECT);
	if (SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1) != NULL)
		return;
	run(psprintf("CREATE TABLE %s (LIKE %s.dsv3_audit_log)", name, schema), SPI_OK_UTILITY);
	run(psprintf("ALTER TABLE %s.dsv3_audit_log ATTACH PARTITION %s FOR VALUES "
				 "FROM ('%04d-%02d-01 00:00:00+00') TO ('%04d-%02d-01 00:00:00+00')",
				 schema, name, tm.tm_year, tm.tm_mon, tm.tm_year + tm.tm_mon / 12, tm.tm_mon % 12 + 1),
		SPI_OK_UTILITY);
	run(psprintf(
			"CREATE TRIGGER dsv3_audit_guard BEFORE TRUNCATE ON %s EXECUTE FUNCTION %s.dsv3_audit_guard()",
			name, schema),
		SPI_OK_UTILITY);
	run(psprintf("ALTER EXTENSION dsv3 ADD TABLE %s", name), SPI_OK_UTILITY);
}

static void
read_head(const char *schema)
{
	Dsv3AuditRow row;
	bool isnull;

	run(psprintf("SELECT seq, logged_at, row_hash FROM %s.dsv3_audit_head FOR UPDATE", schema),
		SPI_OK_SELECT);
	if (SPI_processed != 1)
		elog(ERROR, "dsv3_audit_head has " UINT64_FORMAT " rows", SPI_processed);
	head.seq = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	head.logged_at =
		DatumGetTimestampTz(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &isnull));
	row.values[DSV3_AUDIT_ROW_HASH] =
		SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 3, &row.nulls[DSV3_AUDIT_ROW_HASH]);
	if (!dsv3_audit_row_bytes(&row, DSV3_AUDIT_ROW_HASH, head.hash))
		elog(ERROR, "dsv3_audit_head holds no hash");
}

static void
write_head(const char *schema)
{
	Oid types[3] = {INT8OID, TIMESTAMPTZOID, BYTEAOID};
	Datum values[3] = {Int64GetDatum(head.seq), TimestampTzGetDatum(head.logged_at)};
	bytea *hash = palloc(VARHDRSZ + DSV3_HASH_BYTES);

	SET_VARSIZE(hash, VARHDRSZ + DSV3_HASH_BYTES);
	memcpy(VARDATA(hash), head.hash, DSV3_HASH_BYTES);
	values[2] = PointerGetDatum(hash);
	run_with(psprintf("UPDATE %s.dsv3_audit_head SET seq = $1, logged_at = $2, row_hash = $3", schema), 3,
			 types, values, NULL, SPI_OK_UPDATE);
}

/* Insert rows of one table; the plan is made once. */
typedef struct Inserter
{
	SPIPlanPtr plan;
	TupleDesc tupdesc;
} Inserter;

static void
open_inserter(Inserter *inserter, const char *schema, const char *table, TupleDesc tupdesc)
{
	Oid types[DSV3_AUDIT_N_COLUMNS];
	StringInfoData sql;

	initStringInfo(&sql);
	appendStringInfo(&sql, "INSERT INTO %s.%s VALUES (", schema, table);
	for (int i = 0; i < DSV3_AUDIT_N_COLUMNS; i++)
	{
		types[i] = TupleDescAttr(tupdesc, i)->atttypid;
		appendStringInfo(&sql, "%s$%d", i == 0 ? "" : ", ", i + 1);
	}
	appendStringInfoChar(&sql, ')');
	inserter->plan = SPI_prepare(sql.data, DSV3_AUDIT_N_COLUMNS, types);
	if (inserter->plan == NULL)
		elog(ERROR, "dsv3 audit writer: %s: %s", SPI_result_code_string(SPI_result), sql.data);
	inserter->tupdesc = tupdesc;
}

static void
insert(const Inserter *inserter, const Dsv3AuditRow *row)
{
	Datum values[DSV3_AUDIT_N_COLUMNS];
	char nulls[DSV3_AUDIT_N_COLUMNS];
	int result;

	for (int i = 0; i < DSV3_AUDIT_N_COLUMNS; i++)
	{
		values[i] = row->values[i];
		nulls[i] = row->nulls[i] ? 'n' : ' ';
	}
	result = SPI_execute_plan(inserter->plan, values, nulls, false, 0);
	if (result != SPI_OK_INSERT)
		elog(ERROR, "dsv3 audit writer: %s", SPI_result_code_string(result));
}

void
dsv3_audit_read_row(HeapTuple tuple, TupleDesc tupdesc, Dsv3AuditRow *row)
{
	if (tupdesc->natts != DSV3_AUDIT_N_COLUMNS)
		elog(ERROR, "dsv3_audit_log has %d columns, this library knows %d", tupdesc->natts,
			 DSV3_AUDIT_N_COLUMNS);
	heap_deform_tuple(tuple, tupdesc, row->values, row->nulls);
}

/* ---- transactions ---- */

/* One transaction's view of the tables. */
typedef struct Tables
{
	char *schema;
	Relation relation;
	Inserter log;
	Inserter open;
	MemoryContext row; /* reset for each */
} Tables;

/* False: the extension is not in the database; the transaction is over. */
static bool
begin(Tables *tables)
{
	TupleDesc tupdesc;
	char *schema;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	pgstat_report_activity(STATE_RUNNING, "writing the audit log");
	schema = dsv3_audit_schema();
	tables->schema = schema ? pstrdup(quote_identifier(schema)) : NULL;
	if (schema == NULL)
		return false;
	read_head(tables->schema);
	head.logged_at = Max(head.logged_at, GetCurrentTimestamp());
	have_partition(tables->schema, head.logged_at);
	tables->relation = table_openrv(makeRangeVar(schema, "dsv3_audit_log", -1), RowExclusiveLock);
	tupdesc = RelationGetDescr(tables->relation);
	if (tupdesc->natts != DSV3_AUDIT_N_COLUMNS)
		elog(ERROR, "dsv3_audit_log has %d columns, this library knows %d", tupdesc->natts,
			 DSV3_AUDIT_N_COLUMNS);
	open_inserter(&tables->log, tables->schema, "dsv3_audit_log", tupdesc);
	open_inserter(&tables->open, tables->schema, "dsv3_audit_open", tupdesc);
	tables->row = AllocSetContextCreate(CurrentMemoryContext, "dsv3 audit row", ALLOCSET_DEFAULT_SIZES);
	return true;
}

/* Durable when it returns. */
static void
commit(Tables *tables)
{
	if (tables->schema)
		table_close(tables->relation, NoLock);
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
}

static void
append(Tables *tables, Dsv3AuditRow *row)
{
	dsv3_audit_row_chain(tables->log.tupdesc, row, &head);
	insert(&tables->log, row);
}

static Datum
id_array(const pg_uuid_t *ids, int n)
{
	Datum *elements = palloc(sizeof(Datum) * (n + 1));

	for (int i = 0; i < n; i++)
		elements[i] = UUIDPGetDatum(&ids[i]);
	return PointerGetDatum(construct_array(elements, n, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
}

/* Requests that were begun and are not known any more: a crash ended them. False: no extension. */
static bool
settle_lost(void)
{
	Oid type = UUIDARRAYOID;
	Tables tables;
	pg_uuid_t *ids;
	SPITupleTable *lost;
	Datum live;
	int n;

	if (!begin(&tables))
	{
		commit(&tables);
		return false;
	}
	told = head;
	n = dsv3_audit_live(&ids);
	live = id_array(ids, n);
	run_with(
		psprintf("DELETE FROM %s.dsv3_audit_open WHERE request_id <> ALL ($1) RETURNING *", tables.schema), 1,
		&type, &live, NULL, SPI_OK_DELETE_RETURNING);
	lost = SPI_tuptable;
	n = (int) SPI_processed;
	for (int i = 0; i < n; i++)
	{
		Dsv3AuditRow row;

		dsv3_audit_read_row(lost->vals[i], lost->tupdesc, &row);
		dsv3_audit_row_lose(&row);
		append(&tables, &row);
	}
	if (n > 0)
	{
		write_head(tables.schema);
		ereport(LOG, (errmsg("dsv3 audit log: %d requests were lost in a crash", n)));
	}
	commit(&tables);
	return true;
}

/* Write the jobs. False: no extension. */
static bool
write_jobs(const Dsv3AuditJob *jobs, int n)
{
	Oid type = UUIDARRAYOID;
	pg_uuid_t *closed;
	Tables tables;
	int n_closed = 0;
	int n_rows = 0;
	Datum ids;

	if (!begin(&tables))
	{
		commit(&tables);
		return false;
	}
	closed = palloc(sizeof(pg_uuid_t) * n);
	for (int i = 0; i < n; i++)
	{
		const Dsv3AuditRecord *record = &jobs[i].record;
		MemoryContext old = MemoryContextSwitchTo(tables.row);
		Dsv3AuditRow row;

		dsv3_audit_row_fill(record, &row);
		if (jobs[i].start)
			insert(&tables.open, &row);
		else
		{
			append(&tables, &row);
			n_rows++;
			if (record->open)
				closed[n_closed++] = record->facts.request_id;
		}
		MemoryContextSwitchTo(old);
		MemoryContextReset(tables.row);
	}
	if (n_closed > 0)
	{
		ids = id_array(closed, n_closed);
		run_with(psprintf("DELETE FROM %s.dsv3_audit_open WHERE request_id = ANY ($1)", tables.schema), 1,
				 &type, &ids, NULL, SPI_OK_DELETE);
	}
	if (n_rows > 0)
		write_head(tables.schema);
	commit(&tables);
	return true;
}

/* ---- the worker ---- */

static void
tell_head(void)
{
	char hex[2 * DSV3_HASH_BYTES + 1];

	if (head.seq == told.seq)
		return;
	for (int i = 0; i < DSV3_HASH_BYTES; i++)
		snprintf(hex + 2 * i, 3, "%02x", head.hash[i]);
	ereport(LOG, (errmsg("dsv3 audit chain of database %u: row " INT64_FORMAT " has the hash %s", database,
						 head.seq, hex),
				  errhidestmt(true)));
	told = head;
	told_at = GetCurrentTimestamp();
}

static void
tell_head_in_time(void)
{
	if (head.seq - told.seq >= HEAD_ROWS ||
		TimestampDifferenceMilliseconds(told_at, GetCurrentTimestamp()) >= HEAD_MS)
		tell_head();
}

static void
no_extension(Dsv3Error *err)
{
	dsv3_error(err, DSV3_ERR_NOT_IN_STATE, "extension dsv3 is not in the database");
	dsv3_error_hint(err, "The log belongs to the extension: CREATE EXTENSION dsv3 makes a new one.");
}

/* Why the writer ends, for those who wait. */
static void
take_error(Dsv3Error *err)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	ErrorData *data = CopyErrorData();

	MemoryContextSwitchTo(old);
	if (data->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
	{
		dsv3_error(err, unpack_sql_state(data->sqlerrcode),
				   "its writer waited longer than " LOCK_TIMEOUT " for a lock");
		dsv3_error_hint(err, "A transaction, perhaps this one, holds a lock on the tables of the log: end it "
							 "and call again.");
	}
	else
	{
		/* What may come is a full disk or a damaged table. */
		dsv3_error(err, unpack_sql_state(data->sqlerrcode), "%s",
				   data->message ? data->message : "unknown error");
		if (data->detail)
			dsv3_error_detail(err, "%s", data->detail);
		dsv3_error_hint(err,
						"See the server log. A superuser may set dsv3.audit to \"off\", or dsv3.audit_sync.");
	}
	FreeErrorData(data);
}

static bool
work(Dsv3AuditJob *jobs)
{
	int n;

	while ((n = dsv3_audit_take(jobs, DSV3_AUDIT_BATCH)) > 0)
	{
		if (!write_jobs(jobs, n))
			return false;
		dsv3_audit_settle(jobs, n);
		tell_head_in_time();
	}
	return true;
}

static void
on_exit_of_writer(int code, Datum arg)
{
	Dsv3Error err;

	LWLockReleaseAll();
	if (connected || ProcDiePending)
	{
		dsv3_audit_orphan();
		return;
	}
	dsv3_error(&err, DSV3_ERR_NOT_IN_STATE, "its writer could not connect to the database");
	dsv3_error_hint(&err, "See the server log.");
	dsv3_audit_fail(database, &err, true);
}

/* Until there is nothing to do and nobody else in the database. */
static void
serve(Dsv3AuditJob *jobs)
{
	Dsv3Error err;

	if (!settle_lost())
	{
		no_extension(&err);
		dsv3_audit_fail(database, &err, true);
		return;
	}
	dsv3_audit_attached();
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		if (!work(jobs))
		{
			no_extension(&err);
			dsv3_audit_fail(database, &err, true);
			return;
		}
		if (CountDBBackends(database) <= 1 && dsv3_audit_detach())
			return;
		tell_head_in_time();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, IDLE_MS,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

void
dsv3_audit_writer_main(Datum arg)
{
	Dsv3AuditJob *jobs;
	Dsv3Error err;

	database = DatumGetObjectId(arg);
	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	if (!dsv3_audit_attach(database))
		proc_exit(0);
	before_shmem_exit(on_exit_of_writer, (Datum) 0);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, BGWORKER_BYPASS_ALLOWCONN);
	connected = true;
	SetConfigOption("search_path", "pg_catalog, pg_temp", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("lock_timeout", LOCK_TIMEOUT, PGC_SUSET, PGC_S_OVERRIDE);
	if (synchronous_commit < SYNCHRONOUS_COMMIT_LOCAL_FLUSH)
		SetConfigOption("synchronous_commit", "local", PGC_SUSET, PGC_S_OVERRIDE);

	jobs = MemoryContextAlloc(TopMemoryContext, sizeof(Dsv3AuditJob) * DSV3_AUDIT_BATCH);
	told_at = GetCurrentTimestamp();
	PG_TRY();
	{
		serve(jobs);
	}
	PG_CATCH();
	{
		take_error(&err);
		dsv3_audit_fail(database, &err, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	tell_head();
	proc_exit(0);
}
