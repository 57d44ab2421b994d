/*
 * stat.h
 *	  Statistics: sums over all requests, over each role's, times in classes, and what the experts of the model computed.
 *
 * They are counted in shared memory. Requests are counted when they begin and end, under the queue's lock, which is held then anyway.
 * Tokens of experts come from the engine in one piece now and then, and are atomic: only the supervisor adds. So no token waits for a
 * count. A clean stop of the server keeps all of it in a file; a crash of the server loses it.
 */
#ifndef DSV3_STAT_H
#define DSV3_STAT_H

#include "pg/compat.h"

#include "port/atomics.h"

#include "pg/shmem.h"

/* What durations are counted of. */
typedef enum Dsv3Latency
{
	DSV3_LATENCY_REQUEST,     /* from the call to the end of the answer */
	DSV3_LATENCY_FIRST_TOKEN, /* from the call to the first token */
	DSV3_LATENCY_TOKEN,       /* between two tokens */
	DSV3_LATENCY_QUEUE,       /* the three parts of a request's time */
	DSV3_LATENCY_PREFILL,
	DSV3_LATENCY_DECODE,
} Dsv3Latency;

#define DSV3_N_LATENCIES (DSV3_LATENCY_DECODE + 1)

typedef struct Dsv3Histogram
{
	uint64 classes[DSV3_LATENCY_CLASSES];
	uint64 sum_us;
} Dsv3Histogram;

typedef struct Dsv3RoleStats
{
	uint64 requests;
	uint64 completed;
	uint64 failed;
	uint64 cancelled;
	uint64 refused; /* never became a request: the queue was full, the quota used up, the engine down */
	uint64 nulled;
	uint64 prompt_tokens;
	uint64 cached_tokens;
	uint64 output_tokens;
	uint64 queue_us;
	uint64 compute_us;
	TimestampTz last_at;
} Dsv3RoleStats;

typedef struct Dsv3FailureStats
{
	char sqlstate[6]; /* "": place not used */
	uint64 n;
} Dsv3FailureStats;

#define DSV3_MAX_STAT_ROLES    1024 /* the last place is for all roles that found no other */
#define DSV3_MAX_STAT_FAILURES 64   /* likewise */
#define DSV3_N_FINISHES        (DSV3_FINISH_TOOL_CALLS + 1)

/* Kept over a clean restart. The queue's lock covers it. */
typedef struct Dsv3Stats
{
	TimestampTz since; /* the last reset, or the first start */
	Dsv3Counters counters;
	uint64 refused;
	uint64 finished[DSV3_N_FINISHES]; /* completed, by finish reason; 0: an answer without one */
	Dsv3Histogram latencies[DSV3_N_LATENCIES];
	Dsv3FailureStats failures[DSV3_MAX_STAT_FAILURES];
	int n_roles;
	Oid role_ids[DSV3_MAX_STAT_ROLES]; /* of the first n_roles; apart, since they are searched */
	Dsv3RoleStats roles[DSV3_MAX_STAT_ROLES];

	/* Of the model that `experts` are of; all zero before. */
	uint64 model; /* a hash of its digest */
	uint32 n_layers;
	uint32 n_experts;
} Dsv3Stats;

/* The largest model of the family has 61 layers of 384 experts. Of a larger one there are no numbers. */
#define DSV3_MAX_STAT_EXPERTS 65536

extern Dsv3Stats *dsv3_stats;
extern pg_atomic_uint64 *dsv3_expert_stats; /* [n_layers][n_experts] */

/* Shared memory, in the postmaster: how much, make it, and what to do once the block is there. */
extern Size dsv3_stat_size(void);
extern void dsv3_stat_attach(char *block, bool found);

/* The lock is held exclusively. A request begins (its slot gets the place of its role), ends in one of three ways, or is refused. */
extern void dsv3_stat_begin(Dsv3Slot *slot);
extern void dsv3_stat_done(const Dsv3Slot *slot);
extern void dsv3_stat_failed(const Dsv3Slot *slot, const Dsv3Error *err);
extern void dsv3_stat_cancelled(const Dsv3Slot *slot);
extern void dsv3_stat_refused(Oid role, const Dsv3Error *err);
extern void dsv3_stat_nulled(Oid role);

/* The supervisor's: a new engine has started from zero; it has sent its counts, as the field EXPERT_TOKENS. False: they cannot be of the
 * model. */
extern void dsv3_stat_new_engine(void);
extern bool dsv3_stat_experts(const Dsv3BodyReader *reader, uint32 n_layers);

/* Everything to zero; returns when. */
extern TimestampTz dsv3_stat_zero(void);

#endif /* DSV3_STAT_H */
