/*
 * audit_ring.h
 *	  The records of the audit log on their way from backends to the writers, in shared memory of a fixed size.
 *
 * A record is claimed before its request is submitted and lives until its row is durable, whatever becomes of the
 * backend. Two things may have to be written of it: that the request was started, before the engine may have it (a
 * record with `gate`), and the row itself, once the request has ended. The writer of the record's database does both.
 *
 *	claimed -> published -> [start durable: the request's slot is let go] -> ended -> durable -> free
 *
 * A record belongs to the backend that claimed it until it has ended, and to a writer while it is `busy`; whichever of the
 * two is last to be done with it frees it. A record that was never published, or whose request was never let go, leaves
 * nothing behind: that request was not started.
 *
 * dsv3_audit_lock guards all of it, and is never held together with dsv3_lock. Nobody throws, waits or allocates while
 * holding it.
 *
 * A writer lives as long as there is something to write for its database, or somebody else is connected to it. The
 * supervisor starts it. When a writer fails, those who wait for it are told why, and for a second nobody tries again.
 */
#ifndef DSV3_AUDIT_RING_H
#define DSV3_AUDIT_RING_H

#include "pg/compat.h"

#include "access/transam.h"
#include "pg/audit_hash.h"
#include "pg/queue.h"

#define DSV3_AUDIT_PARAMS_MAX 512
#define DSV3_AUDIT_BATCH      256 /* records in one transaction of a writer */

/* What is known when a request is made. Texts are in the database's encoding. */
typedef struct Dsv3AuditFacts
{
	pg_uuid_t request_id; /* what the functions return as trace_id */
	pg_uuid_t trace_id;   /* the caller's W3C trace id, or the same */
	char traceparent[56]; /* empty: none */
	TimestampTz started_at;
	Oid database;
	NameData database_name;
	NameData session_role;
	NameData role;
	Oid role_oid;
	NameData application;
	char client[64]; /* an inet; empty: not over a network */
	int pid;
	int64 query_id;
	FullTransactionId xid; /* invalid: none could be had */
	NameData function;
	char prompt_name[128]; /* empty: none */
	int32 prompt_version;
	Size inserted_len; /* of the text that was put into the prompt */
	bool keyed;        /* hashes are HMACs */
	bool has_prompt;
	bool has_schema;
	bool has_seed;
	uint8 input_hash[DSV3_HASH_BYTES];
	uint8 prompt_hash[DSV3_HASH_BYTES];
	uint8 schema_hash[DSV3_HASH_BYTES];
	uint8 request_hash[DSV3_HASH_BYTES];
	int64 seed;
	char params[DSV3_AUDIT_PARAMS_MAX]; /* a JSON object */
} Dsv3AuditFacts;

typedef enum Dsv3AuditStatus
{
	DSV3_AUDIT_DONE,
	DSV3_AUDIT_FAILED,
	DSV3_AUDIT_CANCELLED,
	DSV3_AUDIT_REFUSED, /* answered, but its row could not be written in time, so the caller did not get the answer */
} Dsv3AuditStatus;

/* What is known when it has ended. */
typedef struct Dsv3AuditOutcome
{
	Dsv3AuditStatus status;
	char sqlstate[6]; /* empty: none */
	Dsv3Counts counts;
	bool has_output;
	uint8 output_hash[DSV3_HASH_BYTES];
	double total_ms;
} Dsv3AuditOutcome;

typedef struct Dsv3AuditRecord
{
	uint64 serial; /* names this use; 0: free */
	Dsv3AuditFacts facts;
	Dsv3Ticket ticket; /* of the request's slot */
	int owner_proc;
	bool owned;     /* the backend still looks at it */
	bool published; /* the writer may see it */
	bool gate;      /* its start is to be durable before the engine has the request */
	bool open;      /* its start is durable */
	bool ended;     /* outcome is set */
	bool busy;      /* a writer is writing it */
	bool broken;    /* the writer has failed since it ended */
	bool durable;
	Dsv3AuditOutcome outcome;
	Dsv3Chain request; /* at level "full": the body of the request, and the text that was put into it */
	Dsv3Chain answer;
} Dsv3AuditRecord;

/* A use of a record. */
typedef struct Dsv3AuditHandle
{
	int index;
	uint64 serial; /* 0: none */
} Dsv3AuditHandle;

extern LWLock *dsv3_audit_lock;

extern void dsv3_audit_shmem_request(void);
extern void dsv3_audit_shmem_startup(void); /* AddinShmemInitLock is held */

/* ---- the backend's side ---- */

/* Claim a record; with a body, it is kept, and the inserted_len bytes that were inserted. False: err says why the request must be refused. */
extern bool dsv3_audit_claim(const Dsv3AuditFacts *facts, bool gate, const uint8 *body, Size body_len,
							 const char *inserted, Dsv3AuditHandle *handle, Dsv3Error *err);
extern void dsv3_audit_publish(const Dsv3AuditHandle *handle, const Dsv3Ticket *ticket);

/* The request has ended. The answer (NULL: not kept) is left out when there is no room for it: then false. */
extern bool dsv3_audit_finish(const Dsv3AuditHandle *handle, const Dsv3AuditOutcome *outcome,
							  const void *answer, Size answer_len);

typedef enum Dsv3AuditProgress
{
	DSV3_AUDIT_WAITING,
	DSV3_AUDIT_DURABLE,
	DSV3_AUDIT_BROKEN, /* the writer has failed since; err says why */
} Dsv3AuditProgress;

extern Dsv3AuditProgress dsv3_audit_progress(const Dsv3AuditHandle *handle, Dsv3Error *err);

/* The owner does not look at it any more. One that has not ended ends with this outcome; an answer that was waited for is
 * marked as refused. */
extern void dsv3_audit_abandon(const Dsv3AuditHandle *handle, const Dsv3AuditOutcome *outcome);

/* See that everything of the database that has ended gets written. True: it is, and a writer has been there since the
 * server started, or is there. False with err set: the writer failed after `since`; without: wait and ask again. */
extern bool dsv3_audit_flushed(Oid database, TimestampTz since, Dsv3Error *err);

/* ---- the writer's side ---- */

/* A record as a writer takes it. */
typedef struct Dsv3AuditJob
{
	int index;
	bool start; /* write that it was started; else its row */
	Dsv3AuditRecord record;
} Dsv3AuditJob;

/* Become the writer of the database. False: there is one. */
extern bool dsv3_audit_attach(Oid database);
extern void dsv3_audit_attached(void); /* what a former writer left is settled */

/* The next jobs, oldest first; 0: none. They are busy until they are settled. */
extern int dsv3_audit_take(Dsv3AuditJob *jobs, int size);
extern void dsv3_audit_settle(const Dsv3AuditJob *jobs, int n);

/* Request ids of all records of the database, in the current memory context. */
extern int dsv3_audit_live(pg_uuid_t **ids);

/* Leave unless there is work; false: there is. */
extern bool dsv3_audit_detach(void);

/* Leave in the middle of work, which the next writer does: those who wait go on waiting. */
extern void dsv3_audit_orphan(void);

/* Leave, and tell why; also when no writer could be started. `gone`: the database, or its log, does not exist any more. */
extern void dsv3_audit_fail(Oid database, const Dsv3Error *err, bool gone);

/* ---- the supervisor's side ---- */

/* Databases that need a writer and have none, at most size; each counts as being started from now on. *again is set
 * when some may need one later. */
extern int dsv3_audit_wanted(Oid *databases, int size, bool *again);

#endif /* DSV3_AUDIT_RING_H */
