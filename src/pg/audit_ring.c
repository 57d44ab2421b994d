/*
 * audit_ring.c
 *	  The records of the audit log in shared memory, and who writes them; audit_ring.h tells their life.
 *
 * A server has twice as many records as slots: those of requests that run, and as many that wait to be written. When all
 * are taken the next request is refused, so memory is bounded and nothing is left out.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "postmaster/bgworker.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "pg/audit_ring.h"
#include "pg/guc.h"

#define TRANCHE     "dsv3_audit"
#define MAX_WRITERS 128
#define PATIENCE_MS 1000 /* after a failure, before another writer is tried */
#define BIRTH_MS    5000 /* a writer that is not there by then has died on its way */

/* The writer of a database, or what is remembered of it. */
typedef struct Writer
{
	Oid database; /* InvalidOid: empty */
	int pid;      /* 0: none */
	int proc;
	bool settled; /* a writer has settled what the last one, or a crash, left */
	bool wanted;  /* also without anything to write */
	bool gone;    /* the last one failed because there was no log; whoever calls has made one since */
	TimestampTz launched_at;
	TimestampTz failed_at; /* 0: the last one did not fail */
	Dsv3Error error;
} Writer;

typedef struct Ring
{
	int n_records;
	bool attention; /* the supervisor must look whether writers are missing */
	uint64 next_serial;
	Writer writers[MAX_WRITERS];
	Dsv3AuditRecord records[FLEXIBLE_ARRAY_MEMBER];
} Ring;

LWLock *dsv3_audit_lock;

static Ring *ring;
static Writer *self; /* in a writer */

static int
record_count(void)
{
	return 2 * dsv3_guc_queue_size;
}

static Size
ring_size(void)
{
	return add_size(offsetof(Ring, records), mul_size(record_count(), sizeof(Dsv3AuditRecord)));
}

void
dsv3_audit_shmem_request(void)
{
	RequestAddinShmemSpace(ring_size());
	RequestNamedLWLockTranche(TRANCHE, 1);
}

void
dsv3_audit_shmem_startup(void)
{
	bool found;

	ring = ShmemInitStruct("dsv3 audit", ring_size(), &found);
	dsv3_audit_lock = &GetNamedLWLockTranche(TRANCHE)->lock;
	if (found)
		return;
	memset(ring, 0, ring_size());
	ring->n_records = record_count();
	ring->next_serial = 1;
}

static void
lock(void)
{
	LWLockAcquire(dsv3_audit_lock, LW_EXCLUSIVE);
}

static void
unlock(void)
{
	LWLockRelease(dsv3_audit_lock);
}

/* ---- records; the lock is held ---- */

static Dsv3AuditRecord *
record_of(const Dsv3AuditHandle *handle)
{
	Dsv3AuditRecord *record;

	if (handle->serial == 0)
		return NULL;
	record = &ring->records[handle->index];
	return record->serial == handle->serial ? record : NULL;
}

static bool
is_of(const Dsv3AuditRecord *record, Oid database)
{
	return record->serial != 0 && record->facts.database == database;
}

/* Its request was never let go, so there is nothing to tell of it. */
static bool
is_void(const Dsv3AuditRecord *record)
{
	return !record->published || (record->gate && !record->open && !record->busy);
}

/* Texts to be freed once this lock is released, for they are under another one. */
typedef struct Texts
{
	Dsv3Chain request;
	Dsv3Chain answer;
} Texts;

static void
free_record(Dsv3AuditRecord *record, Texts *texts)
{
	texts->request = record->request;
	texts->answer = record->answer;
	record->serial = 0;
}

static void
free_texts(Texts *texts)
{
	if (texts->request.len == 0 && texts->answer.len == 0)
		return;
	LWLockAcquire(dsv3_lock, LW_EXCLUSIVE);
	dsv3_chain_free(&texts->request);
	dsv3_chain_free(&texts->answer);
	LWLockRelease(dsv3_lock);
}

/* One text after the other into the arena. False: no room. */
static bool
keep_texts(Dsv3Chain *chain, const void *first, Size first_len, const void *second, Size second_len)
{
	bool done;

	dsv3_chain_init(chain);
	LWLockAcquire(dsv3_lock, LW_EXCLUSIVE);
	done = dsv3_chain_append(chain, first, first_len) && dsv3_chain_append(chain, second, second_len);
	if (!done)
		dsv3_chain_free(chain);
	LWLockRelease(dsv3_lock);
	return done;
}

/* ---- writers; the lock is held ---- */

/* What is remembered of the database's writer, or NULL. */
static Writer *
find_writer(Oid database)
{
	for (int i = 0; i < MAX_WRITERS; i++)
	{
		if (ring->writers[i].database == database)
			return &ring->writers[i];
	}
	return NULL;
}

/* The same, and a new one if there is none; NULL: there is no room for another. */
static Writer *
writer_of(Oid database)
{
	Writer *unused = find_writer(database);

	if (unused)
		return unused;
	for (int i = 0; i < MAX_WRITERS; i++)
	{
		Writer *writer = &ring->writers[i];

		if (writer->database == InvalidOid ||
			(writer->pid == 0 && writer->launched_at == 0 && !writer->wanted &&
			 (unused == NULL || unused->database != InvalidOid)))
			unused = writer;
	}
	if (unused)
	{
		memset(unused, 0, sizeof(Writer));
		unused->database = database;
	}
	return unused;
}

static bool
has_failed_lately(const Writer *writer)
{
	return writer->failed_at != 0 && !writer->gone &&
		   TimestampDifferenceMilliseconds(writer->failed_at, GetCurrentTimestamp()) < PATIENCE_MS;
}

static void
wake_writer(const Writer *writer)
{
	if (writer->pid != 0)
	{
		SetLatch(dsv3_latch_of(writer->proc));
		return;
	}
	ring->attention = true;
	if (dsv3_shared->supervisor_pid != 0)
		SetLatch(dsv3_latch_of(dsv3_shared->supervisor_proc));
}

static void
wake_writer_of(Oid database)
{
	Writer *writer = writer_of(database);

	if (writer)
		wake_writer(writer);
}

static bool
needs_writing(const Dsv3AuditRecord *record)
{
	return record->published && !record->durable && (record->ended || (record->gate && !record->open));
}

/* ---- the backend's side ---- */

bool
dsv3_audit_claim(const Dsv3AuditFacts *facts, bool gate, const uint8 *body, Size body_len,
				 const char *inserted, Dsv3AuditHandle *handle, Dsv3Error *err)
{
	Dsv3AuditRecord *record = NULL;
	const Writer *writer;
	Dsv3Chain request;

	dsv3_chain_init(&request);
	if (body && !keep_texts(&request, body, body_len, inserted, facts->inserted_len))
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of shared memory for the texts of the dsv3 audit log");
		return dsv3_error_hint(err, "Raise dsv3.shared_memory and restart the server, or set dsv3.audit to "
									"\"digest\".");
	}

	lock();
	writer = writer_of(facts->database);
	if (writer == NULL)
	{
		dsv3_error(err, DSV3_ERR_QUEUE_FULL, "dsv3 audit log is written for %d databases already",
				   MAX_WRITERS);
		dsv3_error_hint(err, "Try again later.");
	}
	else if (gate && has_failed_lately(writer))
		*err = writer->error;
	else
	{
		for (int i = 0; i < ring->n_records && record == NULL; i++)
		{
			if (ring->records[i].serial == 0)
				record = &ring->records[i];
		}
		if (record == NULL)
		{
			dsv3_error(err, DSV3_ERR_QUEUE_FULL, "dsv3 audit log is behind");
			dsv3_error_detail(
				err,
				"All %d records of running requests, and of ended ones that are not written yet, are taken.",
				ring->n_records);
			dsv3_error_hint(
				err, "Look for messages of the dsv3 audit writer in the server log, or try again later.");
		}
	}
	if (record)
	{
		memset(record, 0, sizeof(*record));
		record->serial = ring->next_serial++;
		record->facts = *facts;
		record->owner_proc = DSV3_MY_PROC_NUMBER;
		record->owned = true;
		record->gate = gate;
		record->request = request;
		dsv3_chain_init(&record->answer);
		handle->index = (int) (record - ring->records);
		handle->serial = record->serial;
	}
	unlock();
	if (record == NULL)
	{
		Texts texts = {.request = request};

		free_texts(&texts);
	}
	return record != NULL;
}

void
dsv3_audit_publish(const Dsv3AuditHandle *handle, const Dsv3Ticket *ticket)
{
	Dsv3AuditRecord *record;

	lock();
	record = record_of(handle);
	if (record)
	{
		record->ticket = *ticket;
		record->published = true;
		if (record->gate)
			wake_writer_of(record->facts.database);
	}
	unlock();
}

bool
dsv3_audit_finish(const Dsv3AuditHandle *handle, const Dsv3AuditOutcome *outcome, const void *answer,
				  Size answer_len)
{
	Texts texts = {0};
	Dsv3AuditRecord *record;
	bool kept = answer == NULL || keep_texts(&texts.answer, answer, answer_len, NULL, 0);

	lock();
	record = record_of(handle);
	if (record && !record->ended && is_void(record))
		free_record(record, &texts);
	else if (record && !record->ended)
	{
		record->ended = true;
		record->outcome = *outcome;
		if (kept)
		{
			record->answer = texts.answer;
			dsv3_chain_init(&texts.answer);
		}
		wake_writer_of(record->facts.database);
	}
	unlock();
	free_texts(&texts);
	return kept;
}

Dsv3AuditProgress
dsv3_audit_progress(const Dsv3AuditHandle *handle, Dsv3Error *err)
{
	Dsv3AuditProgress progress = DSV3_AUDIT_WAITING;
	const Dsv3AuditRecord *record;

	LWLockAcquire(dsv3_audit_lock, LW_SHARED);
	record = record_of(handle);
	if (record && record->durable)
		progress = DSV3_AUDIT_DURABLE;
	else if (record == NULL || record->broken)
	{
		const Writer *writer = record ? find_writer(record->facts.database) : NULL;

		progress = DSV3_AUDIT_BROKEN;
		if (writer && writer->failed_at != 0)
			*err = writer->error;
		else
			dsv3_error(err, DSV3_ERR_INTERNAL, "record of the dsv3 audit log is lost");
	}
	unlock();
	return progress;
}

void
dsv3_audit_abandon(const Dsv3AuditHandle *handle, const Dsv3AuditOutcome *outcome)
{
	Texts texts = {0};
	Dsv3AuditRecord *record;

	lock();
	record = record_of(handle);
	if (record && (record->durable || (!record->ended && is_void(record))))
		free_record(record, &texts);
	else if (record)
	{
		record->owned = false;
		if (!record->ended)
		{
			record->ended = true;
			record->outcome = *outcome;
		}
		else if (record->gate && record->outcome.status == DSV3_AUDIT_DONE && !record->busy)
			record->outcome.status = DSV3_AUDIT_REFUSED;
		wake_writer_of(record->facts.database);
	}
	unlock();
	free_texts(&texts);
}

bool
dsv3_audit_flushed(Oid database, TimestampTz since, Dsv3Error *err)
{
	bool flushed = true;
	Writer *writer;

	err->sqlstate[0] = '\0';
	lock();
	for (int i = 0; i < ring->n_records && flushed; i++)
	{
		const Dsv3AuditRecord *record = &ring->records[i];

		flushed = !is_of(record, database) || !record->ended || record->durable;
	}
	writer = writer_of(database);
	if (writer == NULL)
		dsv3_error(err, DSV3_ERR_QUEUE_FULL, "dsv3 audit log is written for %d databases already",
				   MAX_WRITERS);
	else if (writer->failed_at >= since)
		*err = writer->error;
	else if (!flushed || !writer->settled)
	{
		flushed = false;
		writer->wanted = true;
		wake_writer(writer);
	}
	unlock();
	return flushed && err->sqlstate[0] == '\0';
}

/* ---- the writer's side ---- */

bool
dsv3_audit_attach(Oid database)
{
	Writer *writer;

	lock();
	writer = writer_of(database);
	if (writer && writer->pid == 0)
	{
		writer->pid = MyProcPid;
		writer->proc = DSV3_MY_PROC_NUMBER;
		writer->launched_at = 0;
		self = writer;
	}
	unlock();
	return self != NULL;
}

void
dsv3_audit_attached(void)
{
	lock();
	self->settled = true;
	self->wanted = false;
	unlock();
}

static int
compare_jobs(const void *a, const void *b)
{
	const Dsv3AuditJob *x = a;
	const Dsv3AuditJob *y = b;

	return x->record.serial < y->record.serial ? -1 : 1;
}

int
dsv3_audit_take(Dsv3AuditJob *jobs, int size)
{
	int n = 0;

	lock();
	for (int i = 0; i < ring->n_records && n < size; i++)
	{
		Dsv3AuditRecord *record = &ring->records[i];

		if (!is_of(record, self->database) || record->busy || !needs_writing(record))
			continue;
		record->busy = true;
		jobs[n].index = i;
		jobs[n].start = !record->ended;
		jobs[n++].record = *record;
	}
	unlock();
	qsort(jobs, n, sizeof(Dsv3AuditJob), compare_jobs);
	return n;
}

void
dsv3_audit_settle(const Dsv3AuditJob *jobs, int n)
{
	Texts *texts = palloc0(sizeof(Texts) * n);

	lock();
	self->failed_at = 0;
	for (int i = 0; i < n; i++)
	{
		Dsv3AuditRecord *record = &ring->records[jobs[i].index];

		record->busy = false;
		if (jobs[i].start)
		{
			record->open = true;
			continue;
		}
		record->durable = true;
		if (record->owned)
			SetLatch(dsv3_latch_of(record->owner_proc));
		else
			free_record(record, &texts[i]);
	}
	unlock();
	for (int i = 0; i < n; i++)
	{
		if (jobs[i].start)
			dsv3_queue_let_go(&jobs[i].record.ticket);
		free_texts(&texts[i]);
	}
	pfree(texts);
}

int
dsv3_audit_live(pg_uuid_t **ids)
{
	int n = 0;

	*ids = palloc(sizeof(pg_uuid_t) * ring->n_records);
	LWLockAcquire(dsv3_audit_lock, LW_SHARED);
	for (int i = 0; i < ring->n_records; i++)
	{
		if (is_of(&ring->records[i], self->database))
			(*ids)[n++] = ring->records[i].facts.request_id;
	}
	unlock();
	return n;
}

bool
dsv3_audit_detach(void)
{
	bool work = false;

	lock();
	for (int i = 0; i < ring->n_records && !work; i++)
		work = is_of(&ring->records[i], self->database) && needs_writing(&ring->records[i]);
	work = work || self->wanted;
	if (!work)
		self->pid = 0;
	unlock();
	if (!work)
		self = NULL;
	return !work;
}

void
dsv3_audit_orphan(void)
{
	if (self == NULL)
		return;
	lock();
	for (int i = 0; i < ring->n_records; i++)
	{
		if (is_of(&ring->records[i], self->database))
			ring->records[i].busy = false;
	}
	self->pid = 0;
	wake_writer(self); /* that is, the supervisor */
	unlock();
	self = NULL;
}

void
dsv3_audit_fail(Oid database, const Dsv3Error *err, bool gone)
{
	Dsv3Ticket *tickets = MemoryContextAlloc(TopMemoryContext, sizeof(Dsv3Ticket) * ring->n_records);
	Texts *texts = MemoryContextAllocZero(TopMemoryContext, sizeof(Texts) * ring->n_records);
	Dsv3Error answer = *err;
	int n_tickets = 0;
	int n_texts = 0;
	Writer *writer;

	dsv3_error_prefix(&answer, "dsv3 audit log cannot be written");
	lock();
	writer = writer_of(database);
	if (writer)
	{
		writer->pid = 0;
		writer->launched_at = 0;
		writer->wanted = false;
		writer->failed_at = GetCurrentTimestamp();
		writer->gone = gone;
		writer->error = answer;
	}
	for (int i = 0; i < ring->n_records; i++)
	{
		Dsv3AuditRecord *record = &ring->records[i];

		if (!is_of(record, database) || !needs_writing(record))
			continue;
		record->busy = false;
		if (!record->ended)
			tickets[n_tickets++] = record->ticket;
		else if (record->owned)
		{
			record->broken = true;
			SetLatch(dsv3_latch_of(record->owner_proc));
		}
		else if (gone)
			free_record(record, &texts[n_texts++]);
	}
	ring->attention = true;
	self = NULL;
	unlock();
	for (int i = 0; i < n_tickets; i++)
		dsv3_queue_fail(&tickets[i], &answer, false);
	for (int i = 0; i < n_texts; i++)
		free_texts(&texts[i]);
	pfree(tickets);
	pfree(texts);
}

/* ---- the supervisor's side ---- */

/* Does the database need a writer, now or (then *again) later? The lock is held. */
static bool
is_wanted(const Writer *writer, bool *again)
{
	bool work = writer->wanted;

	for (int i = 0; i < ring->n_records && !work; i++)
		work = is_of(&ring->records[i], writer->database) && needs_writing(&ring->records[i]);
	if (!work)
		return false;
	*again = true;
	return !has_failed_lately(writer) &&
		   (writer->launched_at == 0 ||
			TimestampDifferenceMilliseconds(writer->launched_at, GetCurrentTimestamp()) >= BIRTH_MS);
}

int
dsv3_audit_wanted(Oid *databases, int size, bool *again)
{
	int n = 0;

	*again = false;
	if (!*(volatile bool *) &ring->attention)
		return 0;
	lock();
	for (int i = 0; i < MAX_WRITERS && n < size; i++)
	{
		Writer *writer = &ring->writers[i];

		if (writer->database == InvalidOid || writer->pid != 0 || !is_wanted(writer, again))
			continue;
		writer->launched_at = GetCurrentTimestamp();
		databases[n++] = writer->database;
	}
	ring->attention = *again;
	unlock();
	return n;
}
