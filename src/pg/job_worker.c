/*
 * job_worker.c
 *	  The background workers that jobs need: scans, which find jobs in a database, and the workers that do them.
 *
 * A worker connects as the role that submitted its job: its session has no other rights, and none to fall back on. It has the settings that
 * the submission recorded, and works chunk after chunk until nothing is left, something is in the way, another job waits
 * for its place, or SIGTERM asks it to end. That is told to the query under way as a cancellation, so that what is computed
 * can still be written.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/xact.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/snapmgr.h"

#include "pg/guc.h"
#include "pg/job.h"
#include "pg/job_worker.h"

static void
begin(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	PushActiveSnapshot(GetTransactionSnapshot());
}

static void
commit(void)
{
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/* ---- scans ---- */

/* Jobs of roles that cannot connect any more have failed; the others are posted. */
static void
scan_database(void)
{
	uint64 n = dsv3_store("SELECT j.id, j.role_oid, CASE WHEN r.oid IS NULL THEN 'does not exist' "
						  "WHEN NOT r.rolcanlogin THEN 'may not log in' END "
						  "FROM %s._dsv3_job AS j LEFT JOIN pg_roles AS r ON r.oid = j.role_oid "
						  "WHERE j.state = 'active' AND j.home = $1 ORDER BY j.id",
						  "t", dsv3_job_home());
	SPITupleTable *table = SPI_tuptable;

	for (uint64 i = 0; i < n; i++)
	{
		bool isnull;
		int64 job = DatumGetInt64(SPI_getbinval(table->vals[i], table->tupdesc, 1, &isnull));
		Oid role = DatumGetObjectId(SPI_getbinval(table->vals[i], table->tupdesc, 2, &isnull));
		Datum reason = SPI_getbinval(table->vals[i], table->tupdesc, 3, &isnull);

		if (isnull)
			dsv3_board_post(MyDatabaseId, role, job);
		else
		{
			Dsv3JobError error = {"28000", NULL, NULL, NULL};

			error.message = psprintf("the role that submitted the job %s", TextDatumGetCString(reason));
			error.hint = "Give it back what it needs and resume the job, or cancel it.";
			dsv3_store_end(job, "failed", &error);
		}
	}
}

void
dsv3_job_scan_main(Datum arg)
{
	Dsv3JobStart start;

	memcpy(&start, MyBgworkerEntry->bgw_extra, sizeof(start));
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	dsv3_board_enter_scan(start.database);
	BackgroundWorkerInitializeConnectionByOid(start.database, InvalidOid, 0);
	begin();
	if (dsv3_store_open())
		scan_database();
	commit();
	proc_exit(0);
}

/* ---- workers ---- */

static void
stop(SIGNAL_ARGS)
{
	int saved_errno = errno;

	dsv3_job_stop = true;
	QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
	errno = saved_errno;
}

static void
set(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SET, true, WARNING, false);
}

/* The session as it was when the job was submitted. False: there is no such job. */
static bool
prepare(int64 id)
{
	Dsv3Job *job = dsv3_store_open() ? dsv3_store_job(id, false) : NULL;
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue value;
	char *name = NULL;

	if (job == NULL)
		return false;
	it = JsonbIteratorInit(&job->settings->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			name = pnstrdup(value.val.string.val, value.val.string.len);
		else if (token == WJB_VALUE && value.type == jbvString)
			set(name, pnstrdup(value.val.string.val, value.val.string.len));
	}
	set("dsv3.priority", job->priority);
	return true;
}

/* How the worker's stay ends. */
static Dsv3JobEnd
work(int64 job)
{
	char *activity = psprintf("dsv3 job " INT64_FORMAT, job);

	for (;;)
	{
		Dsv3ChunkEnd end;

		pgstat_report_activity(STATE_RUNNING, activity);
		end = dsv3_job_chunk(job);
		pgstat_report_activity(STATE_IDLE, NULL);
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		switch (end)
		{
			case DSV3_CHUNK_DONE:
				if (dsv3_board_others_wait(dsv3_guc_max_job_workers))
					return DSV3_JOB_END_TURN;
				break;
			case DSV3_CHUNK_STOPPED:
				return DSV3_JOB_END_TURN;
			case DSV3_CHUNK_LATER:
				return DSV3_JOB_END_FAILURE;
			case DSV3_CHUNK_NONE:
			case DSV3_CHUNK_OVER:
				return DSV3_JOB_END_NOTHING;
		}
	}
}

void
dsv3_job_worker_main(Datum arg)
{
	Dsv3JobStart start;
	int64 job;
	bool found;

	memcpy(&start, MyBgworkerEntry->bgw_extra, sizeof(start));
	pqsignal(SIGTERM, stop);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	if (!dsv3_board_enter(start.place, start.number, &job))
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(start.database, start.role, 0);
	begin();
	found = prepare(job);
	commit();
	dsv3_board_leave_with(found ? work(job) : DSV3_JOB_END_NOTHING);
	proc_exit(0);
}
