/*
 * queue.h
 *	  The request queue: operations of the two sides on the slots. None of these functions throws while it holds the
 *	  lock or leaves it held; none waits.
 */
#ifndef DSV3_QUEUE_H
#define DSV3_QUEUE_H

#include "lib/stringinfo.h"

#include "pg/shmem.h"

/* The owner of a running request that is not streamed is woken when this much output waits, so that it does not fill the
 * arena. */
#define DSV3_DRAIN_BYTES (256 * 1024)

/* ---- the backend's side ---- */

/* What a backend puts into a new slot; body is a complete SUBMIT body. */
typedef struct Dsv3Submission
{
	uint32 kind;
	uint32 priority;
	uint32 max_tokens;
	bool notify;
	bool spare; /* take a slot only if enough of them and of the arena stay free for others */
	bool held;  /* the engine may have it only after dsv3_queue_let_go */
	Oid role;
	uint32 expected; /* tokens that it may take */
	pg_uuid_t trace_id;
	const char *traceparent; /* or NULL */
	const char *preview;     /* UTF-8, not terminated */
	Size preview_len;
	const uint8 *body;
	Size body_len;
} Dsv3Submission;

/* A handle of one use of a slot. */
typedef struct Dsv3Ticket
{
	int slot;
	uint64 request;
} Dsv3Ticket;

/* A copy of what the owner looks at. */
typedef struct Dsv3SlotView
{
	Dsv3SlotState state;
	bool sent; /* an engine has or had it */
	Dsv3Counts counts;
	Size output_len; /* bytes waiting in the slot */
	Dsv3EngineState engine_state;
	TimestampTz engine_since; /* of engine_state */
	int supervisor_pid;
	TimestampTz submitted_at;
} Dsv3SlotView;

/* Claim a slot, write the request into it and hand it to the supervisor. */
extern bool dsv3_queue_submit(const Dsv3Submission *submission, Dsv3Ticket *ticket, Dsv3Error *err);
extern void dsv3_queue_let_go(const Dsv3Ticket *ticket);

/* False when the ticket is stale (the server's shared memory was re-created, or the slot was left). */
extern bool dsv3_queue_look(const Dsv3Ticket *ticket, Dsv3SlotView *view);

/* Append to out the fields that came since the last call, and look. May throw for want of memory, then nothing is taken. */
extern bool dsv3_queue_take_output(const Dsv3Ticket *ticket, StringInfo out, Dsv3SlotView *view);
extern void dsv3_queue_error(const Dsv3Ticket *ticket, Dsv3Error *err, bool *row_error);

/* Give the slot up in whatever state it is; stale tickets are ignored. Returns the tokens that were taken for the request. */
extern uint32 dsv3_queue_leave(const Dsv3Ticket *ticket);
extern void dsv3_queue_count_nulled(void);

/* Ask for the end of the live request with this trace id. False: there is none whose owner may_cancel accepts; it is
 * called without the lock. */
extern bool dsv3_queue_cancel(const pg_uuid_t *trace_id, bool (*may_cancel)(Oid owner));

/* ---- the supervisor's side ---- */

extern void dsv3_queue_attach_supervisor(void); /* settles what a former supervisor left */
extern void dsv3_queue_detach_supervisor(void);
extern void dsv3_queue_set_engine(Dsv3EngineState state, int pid);
extern void dsv3_queue_set_next_start(TimestampTz when);
extern void dsv3_queue_set_last_error(const Dsv3Error *err);
extern bool dsv3_queue_set_model_json(const void *json, Size len); /* true: there was another before */
extern void dsv3_queue_set_stats_json(const void *json, Size len);
extern void dsv3_queue_count_restart(void);

/* What a look over all slots found. The caller provides arrays with room for every slot. */
typedef struct Dsv3Waiting
{
	Dsv3Ticket ticket;
	uint32 priority;
} Dsv3Waiting;

typedef struct Dsv3Sweep
{
	Dsv3Ticket *stopped; /* ABANDONED (now free) or cancelled (now FAILED): the engine may drop them */
	int n_stopped;
	Dsv3Waiting *waiting; /* QUEUED, in no order */
	int n_waiting;
} Dsv3Sweep;

/* Settle abandoned and cancelled slots and list the waiting ones. Does nothing and returns false when nothing has asked
 * for attention since the last time, unless `always`. */
extern bool dsv3_queue_sweep(Dsv3Sweep *sweep, bool always);

/* What the supervisor must know of a request. */
typedef struct Dsv3Assignment
{
	uint32 kind;
	uint32 max_tokens;
	Size input_len;
} Dsv3Assignment;

/* QUEUED -> ACTIVE; false if the owner took it back. The input is then read without the lock, until the supervisor
 * itself moves the slot on. */
extern bool dsv3_queue_activate(const Dsv3Ticket *ticket, Dsv3Assignment *assignment);
extern void dsv3_queue_read_input(const Dsv3Ticket *ticket, void *buf);

/* On an ACTIVE slot; false when the ticket is stale or its owner has left. */
extern bool dsv3_queue_is_active(const Dsv3Ticket *ticket);
extern bool dsv3_queue_finish(const Dsv3Ticket *ticket, const Dsv3Counts *counts);
extern bool dsv3_queue_requeue(const Dsv3Ticket *ticket);

/* Let a request that was requeued start from nothing. False: it has failed with err, because its owner has taken output. */
extern bool dsv3_queue_start_over(const Dsv3Ticket *ticket, const Dsv3Error *err);

typedef enum Dsv3Append
{
	DSV3_APPEND_OK,
	DSV3_APPEND_GONE,    /* stale, or the owner has left */
	DSV3_APPEND_NO_ROOM, /* the arena is full */
} Dsv3Append;

/* Add fields to the output of an ACTIVE slot, and to its count of tokens. */
extern Dsv3Append
dsv3_queue_append(const Dsv3Ticket *ticket, const void *fields, Size len, uint32 output_tokens);

/* QUEUED or ACTIVE -> FAILED. row_error: the failure concerns this request only, see client.h. */
extern bool dsv3_queue_fail(const Dsv3Ticket *ticket, const Dsv3Error *err, bool row_error);
extern void dsv3_queue_fail_waiting(const Dsv3Error *err);

#endif /* DSV3_QUEUE_H */
