/*
 * job_control.c
 *	  Pause, resume, cancel, retry and forget jobs, follow one, and what the views show of its worker.
 *
 * Who may: members of the role that submitted the job; members of pg_signal_backend may also pause and cancel those of roles that are no
 * superusers. The functions change the job's row; its worker is asked to end when that is committed.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "funcapi.h"
#include "nodes/parsenodes.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "pg/client.h"
#include "pg/job.h"

#define FOLLOW_MS 200  /* between looks */
#define NOTICE_MS 1000 /* between notices, at least */

PG_FUNCTION_INFO_V1(dsv3_job_cancel_1_0);
PG_FUNCTION_INFO_V1(dsv3_job_pause_1_0);
PG_FUNCTION_INFO_V1(dsv3_job_resume_1_0);
PG_FUNCTION_INFO_V1(dsv3_job_retry_failed_1_0);
PG_FUNCTION_INFO_V1(dsv3_job_forget_1_0);
PG_FUNCTION_INFO_V1(dsv3_job_run_1_0);
PG_FUNCTION_INFO_V1(dsv3_job_place_1_0);

/* ---- one's job ---- */

static void
open_store(const char *function)
{
	dsv3_require_preload();
	PreventCommandIfReadOnly(function);
	if (!dsv3_store_open())
		elog(ERROR, "extension \"dsv3\" is not installed");
}

static bool
may_stop(Oid role)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_SIGNAL_BACKEND) && !superuser_arg(role);
}

/* The job, locked against its worker and others. Raises if it is not the caller's. */
static Dsv3Job *
lock_job(int64 id, bool stop)
{
	Dsv3Job *job = dsv3_store_job(id, true);
	bool mine = job && (OidIsValid(job->role) ? has_privs_of_role(GetUserId(), job->role) : superuser());

	if (job == NULL)
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
						errmsg("dsv3 job " INT64_FORMAT " does not exist", id), errhint("See dsv3_jobs.")));
	if (!mine && !(stop && OidIsValid(job->role) && may_stop(job->role)))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("permission denied for dsv3 job " INT64_FORMAT, id),
						errhint("Only members of the role that submitted a job may do this%s.",
								stop ? ", and members of pg_signal_backend if it is no superuser" : "")));
	return job;
}

static bool
is_state(const Dsv3Job *job, const char *state)
{
	return strcmp(job->state, state) == 0;
}

/* ---- at commit ---- */

static List *to_stop; /* int64 *, in the transaction's memory */

static void
at_end_of_transaction(XactEvent event, void *arg)
{
	ListCell *lc;

	if (event == XACT_EVENT_COMMIT)
	{
		foreach (lc, to_stop)
			dsv3_board_ask_to_leave(MyDatabaseId, *(int64 *) lfirst(lc));
	}
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
		to_stop = NIL;
}

static void
stop_at_commit(int64 id)
{
	static bool registered;
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	int64 *copy = palloc(sizeof(int64));

	if (!registered)
		RegisterXactCallback(at_end_of_transaction, NULL);
	registered = true;
	*copy = id;
	to_stop = lappend(to_stop, copy);
	MemoryContextSwitchTo(old);
}

/* ---- changes ---- */

static void
connect_spi(void)
{
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
}

/* dsv3_job_cancel(id) -> was there something to cancel */
Datum
dsv3_job_cancel_1_0(PG_FUNCTION_ARGS)
{
	int64 id = PG_GETARG_INT64(0);
	Dsv3Job *job;
	bool done;

	connect_spi();
	open_store("dsv3_job_cancel()");
	job = lock_job(id, true);
	done = !is_state(job, "done") && !is_state(job, "cancelled");
	if (done)
	{
		(void) dsv3_store(
			"UPDATE %s._dsv3_job SET state = 'cancelled', finished_at = clock_timestamp() WHERE id = $1", "b",
			id);
		(void) dsv3_store("DELETE FROM %s._dsv3_job_chunk WHERE job = $1", "b", id);
		stop_at_commit(id);
	}
	SPI_finish();
	PG_RETURN_BOOL(done);
}

/* dsv3_job_pause(id) -> was it active */
Datum
dsv3_job_pause_1_0(PG_FUNCTION_ARGS)
{
	int64 id = PG_GETARG_INT64(0);
	bool done;

	connect_spi();
	open_store("dsv3_job_pause()");
	done = is_state(lock_job(id, true), "active");
	if (done)
	{
		(void) dsv3_store("UPDATE %s._dsv3_job SET state = 'paused' WHERE id = $1", "b", id);
		stop_at_commit(id);
	}
	SPI_finish();
	PG_RETURN_BOOL(done);
}

/* Let it run, here and as the role that it names; a job that came with a restore becomes one of this database. */
static void
activate(const Dsv3Job *job)
{
	if (!OidIsValid(job->role))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the role that submitted dsv3 job " INT64_FORMAT " does not exist here", job->id),
				 errhint("Submit the job anew, or create the role.")));
	(void) dsv3_store(
		"UPDATE %s._dsv3_job SET state = 'active', home = $2, role_oid = $3, role_name = "
		"pg_get_userbyid($3), "
		"finished_at = NULL, sqlstate = NULL, error = NULL, detail = NULL, hint = NULL WHERE id = $1",
		"bto", job->id, dsv3_job_home(), job->role);
	(void) dsv3_store("UPDATE %s._dsv3_job_chunk SET attempts = 0 WHERE job = $1 AND attempts > 0", "b",
					  job->id);
	dsv3_job_wake_at_commit();
}

/* Activate a job that is paused or has failed, or that came from elsewhere. */
static bool
resume(const Dsv3Job *job)
{
	bool here;

	if (is_state(job, "done") || is_state(job, "cancelled"))
		return false;
	(void) dsv3_store("SELECT home = $2 FROM %s._dsv3_job WHERE id = $1", "bt", job->id, dsv3_job_home());
	here = DatumGetBool(dsv3_store_value(1, NULL));
	if (here && is_state(job, "active"))
		return false;
	activate(job);
	return true;
}

/* dsv3_job_resume(id) -> was it paused, or had it failed */
Datum
dsv3_job_resume_1_0(PG_FUNCTION_ARGS)
{
	bool done;

	connect_spi();
	open_store("dsv3_job_resume()");
	done = resume(lock_job(PG_GETARG_INT64(0), false));
	SPI_finish();
	PG_RETURN_BOOL(done);
}

/* dsv3_job_retry_failed(id) -> how many rows */
Datum
dsv3_job_retry_failed_1_0(PG_FUNCTION_ARGS)
{
	int64 id = PG_GETARG_INT64(0);
	Dsv3Job *job;
	int64 n;

	connect_spi();
	open_store("dsv3_job_retry_failed()");
	job = lock_job(id, false);
	if (is_state(job, "cancelled"))
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("dsv3 job " INT64_FORMAT " was cancelled", id),
						errhint("Submit a job anew for the rows that are missing.")));
	(void) dsv3_store("INSERT INTO %s._dsv3_job_chunk (job, number, keys) "
					  "SELECT $1, m.last + 1 + (e.n - 1) / m.chunk, jsonb_agg(e.key ORDER BY e.n) "
					  "FROM (SELECT f.key, row_number() OVER (ORDER BY f.at, f.key) AS n FROM "
					  "%s._dsv3_job_error AS f WHERE f.job = $1) AS e, "
					  "(SELECT j.chunk, coalesce((SELECT max(c.number) FROM %s._dsv3_job_chunk AS c WHERE "
					  "c.job = $1), 0) AS last "
					  "FROM %s._dsv3_job AS j WHERE j.id = $1) AS m GROUP BY 1, 2",
					  "b", id);
	n = (int64) dsv3_store("DELETE FROM %s._dsv3_job_error WHERE job = $1", "b", id);
	if (n > 0)
	{
		(void) dsv3_store("UPDATE %s._dsv3_job SET failed = failed - $2 WHERE id = $1", "bb", id, n);
		if (!is_state(job, "paused"))
			activate(job);
	}
	SPI_finish();
	PG_RETURN_INT64(n);
}

/* dsv3_job_forget(id): its row and its errors */
Datum
dsv3_job_forget_1_0(PG_FUNCTION_ARGS)
{
	int64 id = PG_GETARG_INT64(0);

	connect_spi();
	open_store("dsv3_job_forget()");
	if (is_state(lock_job(id, false), "active"))
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("dsv3 job " INT64_FORMAT " is active", id),
						errhint("Cancel it first: SELECT dsv3_job_cancel(" INT64_FORMAT ").", id)));
	/* In this order: a worker that still writes takes its rows from the list first, and is waited for there. */
	(void) dsv3_store("DELETE FROM %s._dsv3_job_chunk WHERE job = $1", "b", id);
	(void) dsv3_store("DELETE FROM %s._dsv3_job_error WHERE job = $1", "b", id);
	(void) dsv3_store("DELETE FROM %s._dsv3_job WHERE id = $1", "b", id);
	SPI_finish();
	PG_RETURN_VOID();
}

/* ---- following ---- */

/* What a follower sees, in one line; NULL in *over while the job goes on. */
static char *
progress_line(int64 id, char **over)
{
	Dsv3JobPlace place;
	StringInfoData line;
	int64 total;
	int64 sum;
	int64 failed;
	int64 tokens;
	double rate;
	bool isnull;

	if (dsv3_store("SELECT state, total, done + failed + skipped, failed, output_tokens, rate FROM "
				   "%s._dsv3_job WHERE id = $1",
				   "b", id) == 0)
	{
		*over = "forgotten";
		return "it is forgotten";
	}
	*over = TextDatumGetCString(dsv3_store_value(1, NULL));
	if (strcmp(*over, "active") == 0)
		*over = NULL;
	total = DatumGetInt64(dsv3_store_value(2, NULL));
	sum = DatumGetInt64(dsv3_store_value(3, NULL));
	failed = DatumGetInt64(dsv3_store_value(4, NULL));
	tokens = DatumGetInt64(dsv3_store_value(5, NULL));
	rate = DatumGetFloat8(dsv3_store_value(6, &isnull));
	if (*over == NULL && dsv3_board_look(MyDatabaseId, id, &place))
	{
		sum += place.rows;
		tokens += place.output_tokens;
	}
	initStringInfo(&line);
	appendStringInfo(&line,
					 INT64_FORMAT " of " INT64_FORMAT " rows (%d %%), " INT64_FORMAT " failed, " INT64_FORMAT
								  " tokens",
					 sum, total, total > 0 ? (int) (100 * sum / total) : 100, failed, tokens);
	if (*over)
		appendStringInfo(&line, ", %s", *over);
	else if (!isnull && rate > 0)
	{
		int64 seconds = (int64) ((double) (total - sum) / rate);

		appendStringInfo(&line, ", %.1f rows/s, %d:%02d:%02d left", rate, (int) (seconds / 3600),
						 (int) (seconds / 60 % 60), (int) (seconds % 60));
	}
	return line.data;
}

static void
raise_failure(int64 id)
{
	char *texts[4];

	(void) dsv3_store("SELECT sqlstate, error, detail, hint FROM %s._dsv3_job WHERE id = $1", "b", id);
	for (int i = 0; i < 4; i++)
	{
		bool isnull;
		Datum value = dsv3_store_value(i + 1, &isnull);

		texts[i] = isnull ? NULL : TextDatumGetCString(value);
	}
	ereport(
		ERROR,
		(errcode(texts[0] && strlen(texts[0]) == 5
					 ? MAKE_SQLSTATE(texts[0][0], texts[0][1], texts[0][2], texts[0][3], texts[0][4])
					 : ERRCODE_INTERNAL_ERROR),
		 errmsg("dsv3 job " INT64_FORMAT " has failed: %s", id, texts[1] ? texts[1] : "no reason is known"),
		 texts[2] ? errdetail("%s", texts[2]) : 0,
		 errhint("%s%sCALL dsv3_job_run(" INT64_FORMAT ") goes on.", texts[3] ? texts[3] : "",
				 texts[3] ? " " : "", id)));
}

/* A connection for each look: what a look leaves in memory goes with it, and a job may take days. */
static void
follow_connect(void)
{
	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
}

static void
follow_disconnect(void)
{
	SPI_commit();
	SPI_finish();
}

/* Tell how far the job is, if it is time to; true: it has ended. */
static bool
look(int64 id, char **told, TimestampTz *told_at)
{
	char *over = NULL;
	char *line;

	if (!dsv3_store_open())
		return true;
	line = progress_line(id, &over);
	if (over || ((*told == NULL || strcmp(*told, line) != 0) &&
				 TimestampDifferenceExceeds(*told_at, GetCurrentTimestamp(), NOTICE_MS)))
	{
		*told_at = GetCurrentTimestamp();
		if (*told)
			pfree(*told);
		*told = SPI_palloc(strlen(line) + 1); /* in the caller's memory */
		strcpy(*told, line);
		ereport(NOTICE, (errmsg("dsv3 job " INT64_FORMAT ": %s", id, line)));
	}
	if (over && strcmp(over, "failed") == 0)
		raise_failure(id);
	return over != NULL;
}

/* CALL dsv3_job_run(id): resume it if it does not run, and tell of it until it ends. Committed between looks, so that nothing is
 * held meanwhile. */
Datum
dsv3_job_run_1_0(PG_FUNCTION_ARGS)
{
	int64 id;
	TimestampTz told_at = 0;
	char *told = NULL;
	bool over = false;

	if (PG_ARGISNULL(0))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("no job was named"),
						errhint("Give the number of one of dsv3_jobs.")));
	id = PG_GETARG_INT64(0);
	if (!fcinfo->context || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(
			ERROR,
			(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
			 errmsg("dsv3_job_run cannot run inside a transaction block"),
			 errhint("The job runs in transactions of its own, which do not see what is not committed.")));
	follow_connect();
	open_store("dsv3_job_run()");
	(void) resume(lock_job(id, false));
	follow_disconnect();
	while (!over)
	{
		follow_connect();
		over = look(id, &told, &told_at);
		follow_disconnect();
		if (over)
			break;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, FOLLOW_MS,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	PG_RETURN_VOID();
}

/* ---- for the views ---- */

static const char *
waiting_for(bool here, const Dsv3JobPlace *place)
{
	if (!here)
		return "dsv3_job_resume: it came from another server or database";
	if (dsv3_board_worker_missing())
		return "a background worker: max_worker_processes";
	if (place && place->not_before > GetCurrentTimestamp())
		return "its next try";
	return "its turn: dsv3.max_job_workers";
}

/* _dsv3_job_place(id, home) -> (here, running, pid, rows, output_tokens, waiting_for) */
Datum
dsv3_job_place_1_0(PG_FUNCTION_ARGS)
{
	TupleDesc desc;
	Dsv3JobPlace place;
	Datum values[6] = {0};
	bool nulls[6] = {false};
	bool here;
	bool found;
	bool running;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	dsv3_require_preload();
	here = strcmp(text_to_cstring(PG_GETARG_TEXT_PP(1)), dsv3_job_home()) == 0;
	found = here && dsv3_board_look(MyDatabaseId, PG_GETARG_INT64(0), &place);
	running = found && place.state == DSV3_PLACE_RUNNING;
	values[0] = BoolGetDatum(here);
	values[1] = BoolGetDatum(running);
	values[2] = Int32GetDatum(running ? place.pid : 0);
	values[3] = Int64GetDatum(running ? place.rows : 0);
	values[4] = Int64GetDatum(running ? place.output_tokens : 0);
	nulls[2] = nulls[5] = true;
	if (running)
		nulls[2] = false;
	else
	{
		values[5] = CStringGetTextDatum(waiting_for(here, found ? &place : NULL));
		nulls[5] = false;
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
