/*
 * job.h
 *	  Jobs: a call of the model for each row of a query, written to a table chunk by chunk, in background workers.
 *
 * A job is a row of _dsv3_job. When it is submitted its query runs once, and the keys of its rows are kept as chunks in
 * _dsv3_job_chunk: the list is frozen. A worker then takes the first chunk, asks the query again for just these keys,
 * with the call beside it, and keeps the results in its memory. One transaction writes them to the target, removes the keys from
 * the list and counts them. So the list is what is left to do: a key leaves it in the transaction that
 * writes its row, and whatever is killed at whatever moment, each row is written exactly once.
 *
 *	client ---- dsv3_job_submit: rows of _dsv3_job*, and at commit a note on the board
 *	launcher    scans the databases that the notes name, all of them when it starts; starts workers
 *	scan        connects to one database, writes the jobs that want to run on the board, leaves
 *	worker      connects as the role that submitted the job, works chunk after chunk, leaves when others wait
 *
 * The board (job_board.c) is shared memory and holds nothing that a scan could not find again. The launcher has no
 * database of its own; workers leave when their database is to be dropped (job_database.c).
 *
 * Files: job_submit.c and job_control.c have the SQL functions, job_text.c makes the statements of a job, job_store.c reads
 * and writes the job tables, job_board.c is the board, job_launcher.c starts workers, job_worker.c is a worker, job_chunk.c its work on a chunk.
 */
#ifndef DSV3_JOB_H
#define DSV3_JOB_H

#include "pg/compat.h"

#include "datatype/timestamp.h"
#include "executor/spi.h"
#include "nodes/pg_list.h"
#include "utils/jsonb.h"

/* ---- the board ---- */

#define DSV3_BOARD_JOBS 128 /* jobs that may want to run at one time; more wait for a place */

typedef enum Dsv3PlaceState
{
	DSV3_PLACE_FREE,
	DSV3_PLACE_WAITING,  /* for a worker */
	DSV3_PLACE_STARTING, /* a worker was asked for */
	DSV3_PLACE_RUNNING,  /* it is there */
} Dsv3PlaceState;

typedef struct Dsv3JobPlace
{
	Dsv3PlaceState state;
	uint32 number; /* of the worker that was asked for; another one finds that it is not meant */
	Oid database;
	Oid role;
	int64 job;
	int pid;                /* of the worker, when RUNNING */
	bool leave;             /* asked to end */
	int failures;           /* workers in a row that ended without a step forward */
	TimestampTz not_before; /* of the next start */
	TimestampTz since;      /* of the state */

	/* What the worker tells of the chunk it works on. */
	int64 rows;
	int64 output_tokens;
} Dsv3JobPlace;

/* How a worker's stay ended. */
typedef enum Dsv3JobEnd
{
	DSV3_JOB_END_FAILURE, /* not as it should: again, later and later */
	DSV3_JOB_END_TURN,    /* there is more to do: again, after others */
	DSV3_JOB_END_NOTHING, /* the job does not want to run any more */
} Dsv3JobEnd;

/* In the postmaster, while the library is preloaded. */
extern void dsv3_board_install(void);

/* This process is the launcher; settles what a former one left. */
extern void dsv3_board_attach_launcher(void);
extern void dsv3_board_wake_launcher(void);

/* A database has jobs that may want to run, or InvalidOid: any may. */
extern void dsv3_board_note(Oid database);

/* The next database to scan; InvalidOid: none. *everywhere: all are to be listed and noted first. */
extern Oid dsv3_board_next_scan(bool *everywhere);

/* Called by a scan with a job that wants to run. */
extern void dsv3_board_post(Oid database, Oid role, int64 job);

/* The job that is to be given a worker now: its place and number. False: none; *wait_ms may be lowered to when one is due. */
extern bool
dsv3_board_choose(int max_workers, int *place, uint32 *number, Oid *database, Oid *role, long *wait_ms);
extern void dsv3_board_not_started(int place, uint32 number, bool no_database);

extern void dsv3_board_set_worker_missing(bool missing);

/* A worker takes its place, until it ends; false: it is not wanted. */
extern bool dsv3_board_enter(int place, uint32 number, int64 *job);
extern void dsv3_board_leave_with(Dsv3JobEnd end);
extern void dsv3_board_tell(int64 rows, int64 output_tokens);
extern void dsv3_board_step(void); /* a step forward is committed */

/* Should this worker give its turn to a job that waits? */
extern bool dsv3_board_others_wait(int max_workers);

/* A scan says that it has begun to use a database, until it ends. */
extern void dsv3_board_enter_scan(Oid database);

/* A copy of the job's place; false: it has none. */
extern bool dsv3_board_look(Oid database, int64 job, Dsv3JobPlace *copy);

/* Is there no background worker for what is to be done, or no launcher? */
extern bool dsv3_board_worker_missing(void);

/* Ask the job's worker to end, if there is one. */
extern void dsv3_board_ask_to_leave(Oid database, int64 job);

/* Keep all workers out of a database, until it is released or this process ends; waits a while until none is in it. */
extern void dsv3_board_hold(Oid database);
extern void dsv3_board_release(void);

/* ---- the tables ---- */

/* A job as its row tells. In the memory context of the call. */
typedef struct Dsv3Job
{
	int64 id;
	Oid role;
	char *query;
	char *call;
	char *target; /* qualified and quoted */
	char **keys;
	int n_keys;
	char *mode;     /* upsert, update, insert */
	char *priority; /* batch, interactive */
	Jsonb *settings;
	char *state;
	int64 done;
	int64 failed;
} Dsv3Job;

/* A chunk, or what is left of it. */
typedef struct Dsv3JobChunk
{
	int64 number;
	int attempts; /* how often it was begun, this time included, without an outcome */
	int n_rows;
	Datum keys; /* jsonb: an array of objects */
} Dsv3JobChunk;

typedef struct Dsv3JobError
{
	char sqlstate[6];
	char *message;
	char *detail; /* or NULL */
	char *hint;   /* or NULL */
} Dsv3JobError;

/* What a transaction that ends work on rows of a chunk adds to the job. */
typedef struct Dsv3JobSum
{
	int64 done;
	int64 failed;
	int64 skipped;
	int64 prompt_tokens;
	int64 cached_tokens;
	int64 output_tokens;
	double seconds;
} Dsv3JobSum;

/* A job that has failed for so many rows before any succeeded is ended: it is the job's fault, not the rows'. */
#define DSV3_JOB_HOPELESS 100

/* Names this server and database: jobs of another, copied by a restore, run only when someone resumes them. */
extern char *dsv3_job_home(void);

/* Find the tables; false: the extension is not there. Once in each transaction before all below, in an SPI connection. */
extern bool dsv3_store_open(void);

/* Run a statement on the job tables as their owner, with no search path but PostgreSQL's own. In sql %s is the schema.
 * types has a letter for each parameter: b int64, i int, f double, o Oid, j Datum of a jsonb, t const char * (NULL is NULL),
 * n char ** and int, a text array. Returns SPI_processed. */
extern uint64 dsv3_store(const char *sql, const char *types, ...);

/* A column, from 1, of the first row that the last statement returned; without isnull it may not be NULL. */
extern Datum dsv3_store_value(int column, bool *isnull);

/* NULL: there is no such job. role is InvalidOid if it is gone. */
extern Dsv3Job *dsv3_store_job(int64 id, bool lock);

/* Begin with the first chunk; false: nothing is left. */
extern bool dsv3_store_take(int64 job, Dsv3JobChunk *chunk);

/* Record why a row, from 0, failed. */
extern void dsv3_store_error(int64 job, const Dsv3JobChunk *chunk, int row, const Dsv3JobError *error);

/* Take the rows that are over from the list; attempts is of what is left. Raises if the chunk is not as it was taken. */
extern void dsv3_store_advance(int64 job, const Dsv3JobChunk *chunk, const bool *over, int attempts);

/* Count; true: this made the job hopeless. */
extern bool dsv3_store_add(int64 job, const Dsv3JobSum *sum);

/* Nothing was left to take: it is done, unless there is now. */
extern void dsv3_store_finish(int64 job);

/* To another state, if it is active; error may be NULL. "active" only notes the error. */
extern void dsv3_store_end(int64 job, const char *state, const Dsv3JobError *error);

/* ---- statements ---- */

/* Text of the statements of a job. Parameters of compute: an array for each key; of write: a value for each key, then for each column. */
typedef struct Dsv3JobText
{
	int n_keys;
	Oid *key_types;
	Oid *array_types; /* of arrays of them */
	int n_columns;
	Oid *column_types;
	char *list;    /* -> chunk, keys, rows, NULLs, duplicates; $1 rows of a chunk */
	char *unpack;  /* $1 keys of a chunk, $2 ordinals -> an array for each key */
	char *compute; /* -> ordinal in the arrays, columns */
	char *update;  /* or NULL */
	char *insert;  /* or NULL */
} Dsv3JobText;

/* Check the parts of a job, and make its statements; the job's target may be gone. Raises. */
extern void dsv3_job_text(const Dsv3Job *job, Dsv3JobText *text);

/* ---- a worker's work ---- */

typedef enum Dsv3ChunkEnd
{
	DSV3_CHUNK_DONE,    /* all of it, or a part that is written */
	DSV3_CHUNK_NONE,    /* nothing is left */
	DSV3_CHUNK_STOPPED, /* this worker was asked to end */
	DSV3_CHUNK_LATER,   /* something is not there that may come back */
	DSV3_CHUNK_OVER,    /* the job has come to an end, or is gone */
} Dsv3ChunkEnd;

/* Work on a chunk of the job; outside of any transaction. */
extern Dsv3ChunkEnd dsv3_job_chunk(int64 job);

/* Set by a signal that asks the worker to end. */
extern volatile sig_atomic_t dsv3_job_stop;

/* ---- the rest ---- */

extern void dsv3_job_launcher_register(void);
extern void dsv3_job_database_install(void);

/* Let the launcher look at this database when the transaction has committed. */
extern void dsv3_job_wake_at_commit(void);

#endif /* DSV3_JOB_H */
