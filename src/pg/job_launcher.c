/*
 * job_launcher.c
 *	  The background worker that gives jobs their workers.
 *
 * It is connected to no database, so it is in nobody's way; it reads pg_database, has databases scanned one after the
 * other, and starts workers as the board and dsv3.max_job_workers say. What it knows is on the board; when it ends and is
 * started again it scans all databases. Like the supervisor it ends by proc_exit(1) and nothing else.
 *
 * Template databases and those that allow no connections are not scanned. A standby has no launcher until it is promoted.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "tcop/tcopprot.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "pg/guc.h"
#include "pg/job.h"
#include "pg/job_worker.h"

#define IDLE_MS  60000
#define RETRY_MS 1000 /* after a background worker could not be had */

void
dsv3_job_launcher_register(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "dsv3");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "dsv3_job_launcher_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "dsv3 job launcher");
	snprintf(worker.bgw_type, BGW_MAXLEN, "dsv3 job launcher");
	RegisterBackgroundWorker(&worker);
}

static List *to_scan; /* databases, of the last look at pg_database */
static BackgroundWorkerHandle *scan;

static bool
start_worker(const char *function, const char *name, const Dsv3JobStart *start,
			 BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "dsv3");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "%s", function);
	snprintf(worker.bgw_name, BGW_MAXLEN, "%s", name);
	snprintf(worker.bgw_type, BGW_MAXLEN, "%s", name);
	memcpy(worker.bgw_extra, start, sizeof(*start));
	return RegisterDynamicBackgroundWorker(&worker, handle);
}

static bool
database_exists(Oid database)
{
	bool exists;

	StartTransactionCommand();
	exists = SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database));
	CommitTransactionCommand();
	return exists;
}

/* All databases that may have jobs. */
static void
list_databases(void)
{
	Relation relation;
	TableScanDesc heap;
	HeapTuple tuple;
	MemoryContext old;

	list_free(to_scan);
	to_scan = NIL;
	StartTransactionCommand();
	old = MemoryContextSwitchTo(TopMemoryContext);
	(void) GetTransactionSnapshot();
	relation = table_open(DatabaseRelationId, AccessShareLock);
	heap = table_beginscan_catalog(relation, 0, NULL);
	while ((tuple = heap_getnext(heap, ForwardScanDirection)) != NULL)
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);

		if (database->datallowconn && !database->datistemplate)
			to_scan = lappend_oid(to_scan, database->oid);
	}
	MemoryContextSwitchTo(old);
	table_endscan(heap);
	table_close(relation, AccessShareLock);
	CommitTransactionCommand();
}

/* Start the next scan, if none is under way; false: there is no worker for it. */
static bool
scan_next(void)
{
	Dsv3JobStart start = {0};
	bool everywhere;
	pid_t pid;

	if (scan && GetBackgroundWorkerPid(scan, &pid) != BGWH_STOPPED)
		return true;
	if (scan)
		pfree(scan);
	scan = NULL;
	start.database = dsv3_board_next_scan(&everywhere);
	if (everywhere)
		list_databases();
	if (start.database == InvalidOid && to_scan != NIL)
	{
		start.database = linitial_oid(to_scan);
		to_scan = list_delete_first(to_scan);
	}
	if (start.database == InvalidOid)
		return true;
	if (!database_exists(start.database))
		return scan_next();
	MemoryContextSwitchTo(TopMemoryContext);
	if (start_worker("dsv3_job_scan_main", "dsv3 job scan", &start, &scan))
		return true;
	dsv3_board_note(start.database);
	return false;
}

static bool
start_jobs(long *wait_ms)
{
	Dsv3JobStart start = {0};

	while (dsv3_board_choose(dsv3_guc_max_job_workers, &start.place, &start.number, &start.database,
							 &start.role, wait_ms))
	{
		bool exists = database_exists(start.database);

		if (exists && start_worker("dsv3_job_worker_main", "dsv3 job", &start, NULL))
			continue;
		dsv3_board_not_started(start.place, start.number, !exists);
		if (exists)
			return false;
	}
	return true;
}

void
dsv3_job_launcher_main(Datum arg)
{
	bool complained = false;

	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	dsv3_board_attach_launcher();

	while (!ShutdownRequestPending)
	{
		long wait_ms = IDLE_MS;
		bool ok;

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		ok = scan_next() && start_jobs(&wait_ms);
		if (!ok && !complained)
			ereport(LOG, (errmsg("no background worker is free for a dsv3 job"),
						  errhint("Raise max_worker_processes, or wait until other workers have ended.")));
		complained = !ok;
		dsv3_board_set_worker_missing(!ok);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ok ? wait_ms : RETRY_MS,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	proc_exit(1);
}
