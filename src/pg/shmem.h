/*
 * shmem.h
 *	  What backends and the supervisor share.
 *
 * One block of shared memory: a header, an array of request slots, and an arena of fixed-size chunks that hold the
 * texts of the requests. It holds no pointer, no descriptor and no heap address: slots and chunks are known by index,
 * processes by the number of their PGPROC.
 *
 * One LWLock guards all of it. It is held for a few assignments, or for a copy of some kilobytes; nobody throws, waits
 * or allocates while holding it. Exceptions, each for one writer and no reader: the owner fills the chunks of a slot in
 * state FILLING, and the supervisor reads the input of a slot in state ACTIVE, without the lock.
 *
 * A slot belongs to the backend that claimed it, except that an ABANDONED slot belongs to the supervisor:
 *
 *	FREE -> FILLING -> QUEUED -> ACTIVE -> DONE | FAILED -> FREE
 *
 *	FILLING    the owner writes the request
 *	QUEUED     waits for the supervisor; the owner may still take it back (-> FREE)
 *	ACTIVE     the engine has it: only the supervisor writes output and moves it on. When the engine ends it goes back
 *	           to QUEUED; when the owner leaves it becomes ABANDONED, the supervisor tells the engine and frees it
 *	DONE       finished, output complete; the owner frees it
 *	FAILED     finished with an error; the owner frees it
 *
 * `request` names one use of a slot. It is never reused while the server runs, so a late frame or a stale handle finds
 * that the number differs and does nothing.
 */
#ifndef DSV3_SHMEM_H
#define DSV3_SHMEM_H

#include "pg/compat.h"

#include "common/error.h"
#include "common/latency.h"
#include "common/protocol.h"
#include "datatype/timestamp.h"
#include "utils/uuid.h"

#define DSV3_CHUNK_SIZE      8192
#define DSV3_NO_CHUNK        (-1)
#define DSV3_NO_SLOT         (-1)
#define DSV3_PREVIEW_CHARS   100
#define DSV3_PREVIEW_BYTES   (4 * DSV3_PREVIEW_CHARS + 1)
#define DSV3_ENGINE_JSON_MAX 16384

typedef enum Dsv3SlotState
{
	DSV3_SLOT_FREE,
	DSV3_SLOT_FILLING,
	DSV3_SLOT_QUEUED,
	DSV3_SLOT_ACTIVE,
	DSV3_SLOT_DONE,
	DSV3_SLOT_FAILED,
	DSV3_SLOT_ABANDONED,
} Dsv3SlotState;

#define DSV3_N_SLOT_STATES (DSV3_SLOT_ABANDONED + 1)

/* A byte string in the arena: a list of chunks, all but the last full. */
typedef struct Dsv3Chain
{
	int32 head; /* DSV3_NO_CHUNK when empty */
	int32 tail;
	uint32 tail_used; /* bytes in the last chunk */
	uint64 len;
} Dsv3Chain;

/* What a finished or running request has counted; zero until the engine reports it. The three times add up to the whole: waiting is
 * all that was not computing, in the server, in the engine, or because an engine ended. The first token came after queue_us +
 * prefill_us. */
typedef struct Dsv3Counts
{
	uint32 prompt_tokens;
	uint32 cached_tokens;
	uint32 output_tokens;
	uint32 finish; /* Dsv3Finish, 0 while running */
	uint64 queue_us;
	uint64 prefill_us;
	uint64 decode_us;
	int32 gaps[DSV3_LATENCY_CLASSES]; /* times between steps that gave tokens, by class of latency.h */
} Dsv3Counts;

typedef struct Dsv3Slot
{
	Dsv3SlotState state;
	bool cancel;    /* someone asked for an end; the supervisor turns it into FAILED */
	bool held;      /* QUEUED, but not to be given to the engine yet */
	bool notify;    /* wake the owner for each piece of output, not only at the end */
	bool consumed;  /* the owner has taken output: the request cannot be started from nothing again */
	uint64 request; /* names this use of the slot; 0 when free */

	/* Who asked for what; written by the owner, constant from QUEUED on. */
	int owner_pid;
	int owner_proc;
	Oid role;
	Oid database;
	uint32 kind; /* Dsv3RequestKind */
	uint32 priority;
	uint32 max_tokens; /* 0: the request makes none */
	int stat_place;    /* of the role in the statistics */
	Oid account;       /* whose quota it counts against, or InvalidOid */
	uint32 expected;   /* tokens that it may take, prompt and answer */
	pg_uuid_t trace_id;
	char traceparent[56];
	char preview[DSV3_PREVIEW_BYTES]; /* start of the prompt, UTF-8 */
	TimestampTz submitted_at;
	Dsv3Chain input; /* the body of the SUBMIT frame; freed at the end of the request */

	/* Written by the supervisor. */
	TimestampTz sent_at;  /* first given to an engine; 0 before */
	TimestampTz first_at; /* first output; 0 before */
	uint32 attempts;      /* how often given to an engine */
	Dsv3Counts counts;
	Dsv3Chain output; /* fields of the engine's frames that the owner has not read yet, in wire form */
	Dsv3Error error;  /* with FAILED */
	bool row_error;   /* the failure concerns this request only */
} Dsv3Slot;

typedef enum Dsv3EngineState
{
	DSV3_ENGINE_STARTING,   /* first start, or the model is being opened */
	DSV3_ENGINE_READY,      /* answers */
	DSV3_ENGINE_RESTARTING, /* ended; another start is due */
	DSV3_ENGINE_DOWN,       /* cannot start; last_error says why, starts are still tried */
} Dsv3EngineState;

/* Sums over all requests. */
typedef struct Dsv3Counters
{
	uint64 requests;
	uint64 completed;
	uint64 failed;
	uint64 cancelled; /* left by their caller, or ended by dsv3_cancel */
	uint64 nulled;    /* failures that on_error = 'null' turned into NULL */
	uint64 resubmitted;
	uint64 prompt_tokens;
	uint64 cached_tokens;
	uint64 output_tokens;
} Dsv3Counters;

/* Tokens in a span of time, which begins with the first request after the last span. */
typedef struct Dsv3Span
{
	TimestampTz began_at;
	uint64 tokens;
} Dsv3Span;

/* What a role with a quota has used. */
typedef struct Dsv3RoleUse
{
	Oid role; /* InvalidOid: empty */
	Dsv3Span minute;
	Dsv3Span day;
} Dsv3RoleUse;

/* More roles with a quota at one time: those whose day began first are forgotten. */
#define DSV3_MAX_ROLES 1024

typedef struct Dsv3Shared
{
	int n_slots;
	int n_chunks;

	/* The supervisor. */
	int supervisor_pid; /* 0: not running */
	int supervisor_proc;
	bool attention; /* slots changed in a way the supervisor must look at */

	/* The engine, as the supervisor sees it. */
	Dsv3EngineState engine_state;
	TimestampTz engine_since; /* of engine_state */
	int engine_pid;           /* 0: none */
	uint64 engine_restarts;
	TimestampTz next_start_at; /* when the next start is due; 0: none is */
	Dsv3Error last_error;
	TimestampTz last_error_at;             /* 0: none */
	char model_json[DSV3_ENGINE_JSON_MAX]; /* UTF-8; empty until the first READY */
	char stats_json[DSV3_ENGINE_JSON_MAX];

	uint64 next_request;

	int32 free_chunk; /* head of the free list */
	int n_free_chunks;
} Dsv3Shared;

/* NULL when the library is not preloaded. The arrays follow the header in the same block. */
extern Dsv3Shared *dsv3_shared;
extern LWLock *dsv3_lock;
extern Dsv3Slot *dsv3_slots;
extern Dsv3RoleUse *dsv3_roles; /* DSV3_MAX_ROLES, in no order */

/* Chunk links and bytes. */
extern int32 *dsv3_chunk_next;
extern char *dsv3_chunk_data;

static inline char *
dsv3_chunk(int32 index)
{
	return dsv3_chunk_data + (Size) index * DSV3_CHUNK_SIZE;
}

/* In the postmaster, while the library is preloaded. */
extern void dsv3_shmem_install(void);

/* Move a slot on; the lock is held exclusively. A transition that the diagram above does not have is a defect of ours
 * and raises an internal error. */
extern void dsv3_slot_set_state(Dsv3Slot *slot, Dsv3SlotState state);

/* Chains. The lock is held exclusively, except for dsv3_chain_write on a chain that no one else can reach. */
extern void dsv3_chain_init(Dsv3Chain *chain);
extern bool dsv3_chain_alloc(Dsv3Chain *chain,
							 Size len); /* empty chain -> len bytes, contents undefined; false: no room */
extern void dsv3_chain_write(const Dsv3Chain *chain, const void *data); /* all chain->len bytes */
extern void dsv3_chain_read(const Dsv3Chain *chain, void *data);        /* all chain->len bytes */
extern bool dsv3_chain_append(Dsv3Chain *chain, const void *data, Size len);
extern void dsv3_chain_free(Dsv3Chain *chain);

#endif /* DSV3_SHMEM_H */
