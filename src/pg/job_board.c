/*
 * job_board.c
 *	  The board: shared memory in which jobs find workers.
 *
 * It has places for jobs that want to run, notes of databases that are to be scanned, and holds on databases that nobody
 * may enter. Scans write jobs on it, the launcher chooses among them, workers take their places and clear them when they end. All of
 * it is guarded by one LWLock, held for a look over the places and no more.
 *
 * A place belongs to the launcher until a worker has entered it with the right number, and then to the worker, which gives it back in
 * an exit callback whatever it ends by. A worker that was asked for and never came is given up after START_LIMIT_MS. After a
 * crash of the server the board is empty, and the launcher scans all databases.
 *
 * Processes are known by their ids and by the numbers of their PGPROCs. A hold whose holder has ended does not count.
 */
#include "postgres.h"

#include "pg/compat.h"

#include <signal.h>

#include "storage/procarray.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "pg/job.h"

#define TRANCHE        "dsv3 jobs"
#define START_LIMIT_MS 30000
#define TURN_MS        1000  /* a worker keeps its place so long at least */
#define DELAY_MS       500   /* before the next start after a failure; doubles */
#define DELAY_MAX_MS   60000 /* at most */
#define NOTES          16
#define HOLDS          8
#define HOLD_WAIT_MS   10000

typedef struct Board
{
	int launcher_proc;   /* -1: none */
	bool worker_missing; /* the last worker that was asked for could not be had */
	bool full;           /* a job found no place */
	bool scan_everywhere;
	int n_notes;
	Oid notes[NOTES];
	Oid scanned; /* where the scan is; InvalidOid: there is none */
	int scan_pid;
	uint32 next_number;
	struct
	{
		Oid database; /* InvalidOid: free */
		int pid;
	} holds[HOLDS];
	Dsv3JobPlace places[DSV3_BOARD_JOBS];
} Board;

static Board *board;
static LWLock *lock;
static Dsv3JobPlace *mine; /* of the worker that this process is */
static Dsv3JobEnd my_end = DSV3_JOB_END_FAILURE;

static shmem_startup_hook_type previous_startup_hook;
#ifdef DSV3_HAVE_SHMEM_REQUEST_HOOK
static shmem_request_hook_type previous_request_hook;
#endif

/* ---- creation ---- */

static void
request(void)
{
#ifdef DSV3_HAVE_SHMEM_REQUEST_HOOK
	if (previous_request_hook)
		previous_request_hook();
#endif
	RequestAddinShmemSpace(MAXALIGN(sizeof(Board)));
	RequestNamedLWLockTranche(TRANCHE, 1);
}

static void
startup(void)
{
	bool found;

	if (previous_startup_hook)
		previous_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	board = ShmemInitStruct(TRANCHE, sizeof(Board), &found);
	lock = &GetNamedLWLockTranche(TRANCHE)->lock;
	if (!found)
	{
		memset(board, 0, sizeof(*board));
		board->launcher_proc = -1;
		board->scan_everywhere = true;
	}
	LWLockRelease(AddinShmemInitLock);
}

void
dsv3_board_install(void)
{
#ifdef DSV3_HAVE_SHMEM_REQUEST_HOOK
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request;
#else
	request();
#endif
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup;
}

/* ---- the launcher ---- */

static void
set_state(Dsv3JobPlace *place, Dsv3PlaceState state)
{
	place->state = state;
	place->since = GetCurrentTimestamp();
}

/* A worker has ended, or none came. */
static void
wait_again(Dsv3JobPlace *place, Dsv3JobEnd end)
{
	TimestampTz now = GetCurrentTimestamp();
	int64 delay = DELAY_MS;

	place->pid = 0;
	place->leave = false;
	place->rows = place->output_tokens = 0;
	place->number = 0;
	place->not_before = now;
	if (end == DSV3_JOB_END_NOTHING)
	{
		set_state(place, DSV3_PLACE_FREE);
		board->scan_everywhere = board->scan_everywhere || board->full;
		board->full = false;
		return;
	}
	if (end == DSV3_JOB_END_TURN)
		place->failures = 0;
	else
	{
		for (int i = 0; i < place->failures && delay < DELAY_MAX_MS; i++)
			delay *= 2;
		place->failures++;
		place->not_before = TimestampTzPlusMilliseconds(now, Min(delay, DELAY_MAX_MS));
	}
	set_state(place, DSV3_PLACE_WAITING);
}

static void
detach_launcher(int code, Datum arg)
{
	LWLockReleaseAll();
	LWLockAcquire(lock, LW_EXCLUSIVE);
	board->launcher_proc = -1;
	LWLockRelease(lock);
}

void
dsv3_board_attach_launcher(void)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	board->launcher_proc = DSV3_MY_PROC_NUMBER;
	board->scan_everywhere = true;
	LWLockRelease(lock);
	before_shmem_exit(detach_launcher, (Datum) 0);
}

/* The lock is held. */
static void
wake_launcher(void)
{
	if (board->launcher_proc >= 0)
		SetLatch(dsv3_latch_of(board->launcher_proc));
}

void
dsv3_board_wake_launcher(void)
{
	LWLockAcquire(lock, LW_SHARED);
	wake_launcher();
	LWLockRelease(lock);
}

static void
note(Oid database)
{
	for (int i = 0; i < board->n_notes; i++)
	{
		if (board->notes[i] == database)
			return;
	}
	if (database == InvalidOid || board->n_notes == NOTES)
		board->scan_everywhere = true;
	else
		board->notes[board->n_notes++] = database;
}

void
dsv3_board_note(Oid database)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	note(database);
	wake_launcher();
	LWLockRelease(lock);
}

static bool
is_held(Oid database)
{
	for (int i = 0; i < HOLDS; i++)
	{
		if (board->holds[i].database != database)
			continue;
		if (BackendPidGetProc(board->holds[i].pid) != NULL)
			return true;
		board->holds[i].database = InvalidOid;
	}
	return false;
}

Oid
dsv3_board_next_scan(bool *everywhere)
{
	Oid database = InvalidOid;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	*everywhere = board->scan_everywhere;
	board->scan_everywhere = false;
	for (int i = 0; i < board->n_notes && !*everywhere && board->scanned == InvalidOid; i++)
	{
		if (is_held(board->notes[i]))
			continue;
		database = board->notes[i];
		board->notes[i] = board->notes[--board->n_notes];
		break;
	}
	LWLockRelease(lock);
	return database;
}

/* The lock is held. */
static Dsv3JobPlace *
find(Oid database, int64 job)
{
	for (int i = 0; i < DSV3_BOARD_JOBS; i++)
	{
		Dsv3JobPlace *place = &board->places[i];

		if (place->state != DSV3_PLACE_FREE && place->database == database && place->job == job)
			return place;
	}
	return NULL;
}

static Dsv3JobPlace *
find_free(void)
{
	for (int i = 0; i < DSV3_BOARD_JOBS; i++)
	{
		if (board->places[i].state == DSV3_PLACE_FREE)
			return &board->places[i];
	}
	return NULL;
}

void
dsv3_board_post(Oid database, Oid role, int64 job)
{
	Dsv3JobPlace *place;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	place = find(database, job);
	if (place)
		place->role = role;
	else if ((place = find_free()) != NULL)
	{
		memset(place, 0, sizeof(*place));
		place->database = database;
		place->role = role;
		place->job = job;
		set_state(place, DSV3_PLACE_WAITING);
	}
	else
		board->full = true;
	LWLockRelease(lock);
}

/* Workers that run, or that were asked for and may still come. */
static int
count_workers(void)
{
	int n = 0;

	for (int i = 0; i < DSV3_BOARD_JOBS; i++)
	{
		Dsv3JobPlace *place = &board->places[i];

		if (place->state == DSV3_PLACE_STARTING &&
			TimestampDifferenceExceeds(place->since, GetCurrentTimestamp(), START_LIMIT_MS))
			wait_again(place, DSV3_JOB_END_FAILURE);
		n += place->state == DSV3_PLACE_STARTING || place->state == DSV3_PLACE_RUNNING;
	}
	return n;
}

/* Who has waited longest among those that may start now. */
static Dsv3JobPlace *
next_waiting(long *wait_ms)
{
	Dsv3JobPlace *found = NULL;
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < DSV3_BOARD_JOBS; i++)
	{
		Dsv3JobPlace *place = &board->places[i];

		if (place->state != DSV3_PLACE_WAITING || is_held(place->database))
			continue;
		if (place->not_before > now)
			*wait_ms = Min(*wait_ms, TimestampDifferenceMilliseconds(now, place->not_before) + 1);
		else if (found == NULL || place->since < found->since)
			found = place;
	}
	return found;
}

bool
dsv3_board_choose(int max_workers, int *place, uint32 *number, Oid *database, Oid *role, long *wait_ms)
{
	Dsv3JobPlace *found = NULL;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (count_workers() < max_workers)
		found = next_waiting(wait_ms);
	if (found)
	{
		found->number = ++board->next_number;
		set_state(found, DSV3_PLACE_STARTING);
		*place = (int) (found - board->places);
		*number = found->number;
		*database = found->database;
		*role = found->role;
	}
	LWLockRelease(lock);
	return found != NULL;
}

void
dsv3_board_not_started(int place, uint32 number, bool no_database)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (board->places[place].state == DSV3_PLACE_STARTING && board->places[place].number == number)
		wait_again(&board->places[place], no_database ? DSV3_JOB_END_NOTHING : DSV3_JOB_END_FAILURE);
	LWLockRelease(lock);
}

void
dsv3_board_set_worker_missing(bool missing)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	board->worker_missing = missing;
	LWLockRelease(lock);
}

/* ---- workers and scans ---- */

static void
leave(int code, Datum arg)
{
	/* Before PostgreSQL 18 an exit by FATAL can come here with locks held. */
	LWLockReleaseAll();
	LWLockAcquire(lock, LW_EXCLUSIVE);
	wait_again(mine, my_end);
	/* A scan finds out whether its role may still run it. */
	if (my_end == DSV3_JOB_END_FAILURE)
		note(mine->database);
	wake_launcher();
	LWLockRelease(lock);
}

bool
dsv3_board_enter(int place, uint32 number, int64 *job)
{
	Dsv3JobPlace *wanted = &board->places[place];
	bool ok;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	ok = wanted->state == DSV3_PLACE_STARTING && wanted->number == number && !is_held(wanted->database);
	if (ok)
	{
		mine = wanted;
		mine->pid = MyProcPid;
		*job = mine->job;
		set_state(mine, DSV3_PLACE_RUNNING);
	}
	LWLockRelease(lock);
	if (ok)
		before_shmem_exit(leave, (Datum) 0);
	return ok;
}

void
dsv3_board_leave_with(Dsv3JobEnd end)
{
	my_end = end;
}

void
dsv3_board_tell(int64 rows, int64 output_tokens)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	mine->rows = rows;
	mine->output_tokens = output_tokens;
	LWLockRelease(lock);
}

void
dsv3_board_step(void)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	mine->failures = 0;
	mine->rows = mine->output_tokens = 0;
	LWLockRelease(lock);
}

bool
dsv3_board_others_wait(int max_workers)
{
	long wait_ms = 0;
	bool wait;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	wait = TimestampDifferenceExceeds(mine->since, GetCurrentTimestamp(), TURN_MS) &&
		   count_workers() >= max_workers && next_waiting(&wait_ms) != NULL;
	LWLockRelease(lock);
	return wait;
}

static void
leave_scan(int code, Datum arg)
{
	LWLockReleaseAll();
	LWLockAcquire(lock, LW_EXCLUSIVE);
	board->scanned = InvalidOid;
	board->scan_pid = 0;
	wake_launcher();
	LWLockRelease(lock);
}

void
dsv3_board_enter_scan(Oid database)
{
	bool held;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	held = is_held(database) || board->scanned != InvalidOid;
	if (held)
		note(database);
	else
	{
		board->scanned = database;
		board->scan_pid = MyProcPid;
	}
	LWLockRelease(lock);
	if (held)
		proc_exit(0);
	before_shmem_exit(leave_scan, (Datum) 0);
}

/* ---- everybody ---- */

bool
dsv3_board_look(Oid database, int64 job, Dsv3JobPlace *copy)
{
	Dsv3JobPlace *place;

	LWLockAcquire(lock, LW_SHARED);
	place = find(database, job);
	if (place)
		*copy = *place;
	LWLockRelease(lock);
	return place != NULL;
}

bool
dsv3_board_worker_missing(void)
{
	bool missing;

	LWLockAcquire(lock, LW_SHARED);
	missing = board->worker_missing || board->launcher_proc < 0;
	LWLockRelease(lock);
	return missing;
}

/* The lock is held. */
static void
ask_to_leave(Dsv3JobPlace *place)
{
	if (place->state == DSV3_PLACE_RUNNING && !place->leave)
	{
		place->leave = true;
		kill(place->pid, SIGTERM);
	}
}

void
dsv3_board_ask_to_leave(Oid database, int64 job)
{
	Dsv3JobPlace *place;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	place = find(database, job);
	if (place)
		ask_to_leave(place);
	LWLockRelease(lock);
}

/* Ask all in the database to leave; false: none is there. */
static bool
clear_database(Oid database)
{
	bool found = false;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < DSV3_BOARD_JOBS; i++)
	{
		Dsv3JobPlace *place = &board->places[i];

		if (place->database != database || place->state != DSV3_PLACE_RUNNING)
			continue;
		ask_to_leave(place);
		found = true;
	}
	if (board->scanned == database)
		found = true;
	LWLockRelease(lock);
	return found;
}

void
dsv3_board_hold(Oid database)
{
	TimestampTz start = GetCurrentTimestamp();
	bool held = false;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < HOLDS && !held; i++)
	{
		if (board->holds[i].database != InvalidOid && is_held(board->holds[i].database))
			continue;
		board->holds[i].database = database;
		board->holds[i].pid = MyProcPid;
		held = true;
	}
	LWLockRelease(lock);
	while (clear_database(database))
	{
		if (!held || TimestampDifferenceExceeds(start, GetCurrentTimestamp(), HOLD_WAIT_MS))
			return;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

void
dsv3_board_release(void)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < HOLDS; i++)
	{
		if (board->holds[i].database == InvalidOid || board->holds[i].pid != MyProcPid)
			continue;
		note(board->holds[i].database);
		board->holds[i].database = InvalidOid;
	}
	wake_launcher();
	LWLockRelease(lock);
}
