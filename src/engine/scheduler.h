/*
 * scheduler.h
 *	  Continuous batching: requests go in, events come out, the backend computes one step at a time.
 *
 * Threads. submit and cancel may be called by any thread. One thread runs the scheduler (dsv3_scheduler_run, or
 * dsv3_scheduler_step in a loop of its own); steps, sampling and most events happen there. With text_thread, prompts
 * are encoded by a thread of the scheduler's own, so that a long prompt does not hold up the others' answers, and TOKENIZE and
 * DETOKENIZE, CHECK_GRAMMAR and ACCEPTS are answered by it; without, everything happens in the calling thread.
 *
 * Every request that was submitted gets exactly one DONE or FAIL, cancelled ones a FAIL with 57014, unless the scheduler
 * is closed before. Which requests share a step never changes an answer.
 */
#ifndef DSV3_SCHEDULER_H
#define DSV3_SCHEDULER_H

#include "common/protocol.h"
#include "engine/backend.h"
#include "engine/request.h"
#include "engine/speculation.h"

typedef struct Dsv3Scheduler Dsv3Scheduler;

/* What happened to a request. Pointers are valid during the call only; text is whole characters of valid UTF-8. */
typedef struct Dsv3Event
{
	Dsv3FrameType type; /* DELTA, DONE or FAIL */
	uint64_t request;
	const char *text;
	size_t text_len;
	const int32_t *tokens;
	size_t n_tokens;

	/* DONE */
	Dsv3RequestKind kind;
	Dsv3Finish finish;
	uint32_t prompt_tokens;
	uint32_t cached_tokens;
	uint32_t output_tokens;
	uint32_t drafted_tokens;   /* tokens of the answer that the draft layer guessed at, */
	uint32_t accepted_tokens;  /* and those that it guessed */
	double logprob;            /* LOGPROB */
	const char *message_json;  /* CHAT, else NULL */
	const char *logprobs_json; /* LOGPROBS, else NULL */
	bool narrowed;             /* the token limit kept a constrained answer shorter than the model wanted */
	uint64_t queue_us;
	uint64_t prefill_us;
	uint64_t decode_us;
	const int32_t *gaps; /* times between steps that gave tokens, by class; NULL: none were computed */

	/* FAIL */
	const Dsv3Error *error;
} Dsv3Event;

typedef struct Dsv3SchedulerOptions
{
	int kv_blocks;    /* blocks of the cache */
	int max_requests; /* requests at one time, however far they are; the next one fails with 53000 */
	int max_batch;    /* sequences computed at one time; 0: 64 */
	int step_ms;      /* prefill chunks are cut so that a step stays about below this; 0: 200 */
	bool text_thread;
	Dsv3SpeculationMode speculation; /* of a backend that can draft */
	const char *kv_folder;           /* cached blocks are kept there as well; NULL: in memory only */
	uint64_t kv_disk_bytes;          /* at most so much there */

	/* Receives events; called by the running thread and the text thread, never at the same time for one request. */
	void (*emit)(void *arg, const Dsv3Event *event);
	/* May steps go on? NULL: always. When false the scheduler pauses until dsv3_scheduler_wake. */
	bool (*has_room)(void *arg);
	void *arg;
} Dsv3SchedulerOptions;

/* Opens the cache of the backend, which must outlive the scheduler. */
extern Dsv3Scheduler *
dsv3_scheduler_open(Dsv3Backend *backend, const Dsv3SchedulerOptions *options, Dsv3Error *err);
extern void dsv3_scheduler_close(Dsv3Scheduler *scheduler);

/* Most tokens of one sequence: the model's context or the cache, whichever is smaller. */
extern int dsv3_scheduler_context(const Dsv3Scheduler *scheduler);

/* The file of cached blocks on disk, -1 without: the one file that the scheduler writes. */
extern int dsv3_scheduler_disk_fd(const Dsv3Scheduler *scheduler);

/* Takes the request over, also on failure (53000 when full, 08P01 for an id in use). */
extern bool dsv3_scheduler_submit(Dsv3Scheduler *scheduler, Dsv3Request *request, Dsv3Error *err);

/* Stop a request at the next step, or within the running one when nothing else is in it. An unknown id is ignored: its
 * answer may be on its way. */
extern void dsv3_scheduler_cancel(Dsv3Scheduler *scheduler, uint64_t id);

typedef enum Dsv3StepResult
{
	DSV3_STEP_WORKED,
	DSV3_STEP_IDLE,   /* nothing to do */
	DSV3_STEP_PAUSED, /* has_room said no */
} Dsv3StepResult;

/* One turn: take what arrived, drop what is cancelled or expired, admit, compute, deliver. */
extern Dsv3StepResult dsv3_scheduler_step(Dsv3Scheduler *scheduler);

/* From now on a step takes so many prompt tokens (1 to 4096), whatever the speed; 0: as many as step_ms allows, again. Answers do not
 * depend on it, which is what it is for. Called by the running thread between two steps. */
extern void dsv3_scheduler_fix_budget(Dsv3Scheduler *scheduler, int tokens);

/* Turn until dsv3_scheduler_stop; sleeps when there is nothing to do. */
extern void dsv3_scheduler_run(Dsv3Scheduler *scheduler);
extern void dsv3_scheduler_stop(Dsv3Scheduler *scheduler);
extern void dsv3_scheduler_wake(Dsv3Scheduler *scheduler);

/* For the heartbeat, any thread: a number that rises with every turn, and whether there is work it could do now. */
extern uint64_t dsv3_scheduler_progress(const Dsv3Scheduler *scheduler);
extern bool dsv3_scheduler_busy(Dsv3Scheduler *scheduler);

/* Counters as a JSON object, malloc'd; any thread. NULL without memory. */
extern char *dsv3_scheduler_stats(Dsv3Scheduler *scheduler);

/* How many tokens each routed expert has computed. */
typedef struct Dsv3ExpertTokens
{
	size_t n_layers;
	size_t n_experts;
	uint64_t *counts; /* [n_layers][n_experts], the caller's to free; NULL: the model has none */
} Dsv3ExpertTokens;

/* Any thread. False without memory. */
extern bool dsv3_scheduler_expert_tokens(const Dsv3Scheduler *scheduler, Dsv3ExpertTokens *out);

#endif /* DSV3_SCHEDULER_H */
