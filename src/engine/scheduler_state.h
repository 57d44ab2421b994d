/*
 * scheduler_state.h
 *	  What a scheduler holds, for its own files only (scheduler*.c). Which lock covers what is said at the top of
 *	  scheduler.c.
 */
#ifndef DSV3_SCHEDULER_STATE_H
#define DSV3_SCHEDULER_STATE_H

#include <pthread.h>
#include <time.h>

#include "common/latency.h"
#include "engine/at_once.h"
#include "engine/kv_cache.h"
#include "engine/kv_disk.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/speculation.h"

typedef enum JobPlace
{
	JOB_TEXT,    /* in the text queue */
	JOB_IN_TEXT, /* being encoded */
	JOB_READY,
	JOB_BATCH,
	JOB_CONTROL, /* not to be computed, but for the running thread to do */
} JobPlace;

#define N_JOB_PLACES (JOB_CONTROL + 1)

typedef struct Job
{
	struct Job *next; /* of all jobs, in order of arrival */
	uint64_t id;
	uint64_t arrival; /* rising */
	uint32_t role;
	uint32_t priority;
	JobPlace place;
	bool cancelled;
	bool in_step;
	atomic_bool abort_text; /* its texts need not be encoded any more */
	Dsv3Request *request;   /* until encoded, then the sequence's */
	Dsv3Sequence *seq;
	Dsv3BlockName *names; /* of the first n_names blocks of its tokens */
	int n_names;
	int names_room;
	int64_t warmed;      /* WARM_UP: bytes read */
	size_t reached;      /* most rows it ever had in the cache */
	size_t cached;       /* rows of its prompt that it found there */
	uint32_t drafted;    /* drafts of the draft layer that were computed along */
	uint32_t accepted;   /* of these, the right ones */
	double drafts_right; /* speculation.h */
	uint64_t submit_us;
	uint64_t deadline_us; /* 0: none */
	uint64_t first_step_us;
	uint64_t first_token_us;
	uint64_t last_token_us;
	uint64_t last_delta_us;
	int32_t gaps[DSV3_LATENCY_CLASSES]; /* between steps that gave tokens */
} Job;

typedef struct RoleServed
{
	uint32_t role;
	uint64_t served; /* number of the admission */
} RoleServed;

struct Dsv3Scheduler
{
	Dsv3Backend *backend;
	Dsv3SchedulerOptions options;
	int context;
	bool kv_limited;

	pthread_mutex_t lock;
	pthread_cond_t wake;      /* the running thread sleeps here */
	pthread_cond_t text_wake; /* the text thread sleeps here */
	pthread_t text_thread;
	bool has_text_thread;
	bool stop;
	bool woken;
	bool paused;
	atomic_bool abort_step;
	Job *jobs;
	Job **jobs_tail;
	int n_jobs;
	int live_in_step; /* jobs of the running step that nobody cancelled */

	Job **batch;
	int n_batch;
	int fixed_budget; /* prompt tokens of a step in place of `budget`; 0: none */
	Job **prompts;    /* scratch of a step: prompts that are worked on next */
	Dsv3KvCache *cache;
	Dsv3Namer *namer;
	Dsv3KvDisk *disk;  /* NULL: the cache is in memory only */
	int32_t *to_store; /* ring of kv_blocks: blocks to be written */
	int first_to_store;
	int n_to_store;
	bool *is_to_store; /* [kv_blocks] */
	RoleServed *roles;
	int n_roles;
	uint64_t admissions;
	uint64_t arrivals;
	double budget;    /* prompt tokens of a step */
	double decode_us; /* running mean of steps without prompts */

	Dsv3Sampler sampler;
	float *logits;
	size_t logits_rows;
	Dsv3StepSeq *step_seqs;
	Job **step_jobs;

	Dsv3Speculation speculation;
	Job **draft_jobs; /* that a draft may be made for after the step, [n_drafts] */
	int *draft_rows;  /* which of the step's wanted rows each follows from */
	int n_drafts;

	uint64_t opened_us;
	atomic_uint_least64_t progress;
	atomic_uint_least64_t n_submitted;
	atomic_uint_least64_t n_done;
	atomic_uint_least64_t n_failed;
	atomic_uint_least64_t n_cancelled;
	atomic_uint_least64_t n_steps;
	atomic_uint_least64_t n_step_us;
	atomic_uint_least64_t n_preempted;
	atomic_uint_least64_t n_prompt_tokens; /* of finished and running requests, counted once */
	atomic_uint_least64_t n_cached_tokens; /* of these, found in the cache */
	atomic_uint_least64_t n_output_tokens;
	atomic_uint_least64_t n_computed_tokens; /* rows computed, again or for the first time */
	atomic_uint_least64_t n_drafted;
	atomic_uint_least64_t n_accepted;
	atomic_int stat_batch;
	atomic_int stat_held;
	atomic_int stat_cached;
	atomic_int stat_pinned;
	atomic_uint_least64_t stat_evicted;
	atomic_int stat_disk_places;
	atomic_int stat_disk_records;
	atomic_uint_least64_t stat_disk_loaded;
	atomic_uint_least64_t stat_disk_stored;
	atomic_uint_least64_t stat_disk_lost;
	atomic_uint_least64_t stat_disk_unstored;
	atomic_int stat_budget;
};

static inline uint64_t
now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t) ts.tv_sec * 1000000 + (uint64_t) ts.tv_nsec / 1000;
}

/* scheduler.c: is the job cancelled or past its deadline? Then *error says which; the lock is held. Take a job out of the list of
 * all jobs and free it. */
extern bool dsv3_job_is_dropped(const Job *job, uint64_t now, Dsv3Error *error);
extern void dsv3_job_forget(Dsv3Scheduler *scheduler, Job *job);

/* scheduler_events.c: send what needs no step; a piece if it is time for one; the end. An end
 * forgets the job. The job is not in the batch any more when
 * it ends. */
extern void dsv3_send_at_once(Dsv3Scheduler *scheduler, Job *job, const Dsv3AtOnce *answer);
extern void dsv3_send_delta(Dsv3Scheduler *scheduler, Job *job, uint64_t now);
extern void dsv3_send_done(Dsv3Scheduler *scheduler, Job *job, uint64_t now);
extern void dsv3_job_fail(Dsv3Scheduler *scheduler, Job *job, const Dsv3Error *error);

/* scheduler_text.c: the text thread; the same work without one: encode everything that arrived. */
extern void *dsv3_text_main(void *arg);
extern void dsv3_text_prepare_all(Dsv3Scheduler *scheduler);

/* scheduler_admit.c. dsv3_leave_batch gives the job's blocks back. dsv3_grow gives a job of the batch blocks for all its tokens;
 * others give way, in the end the job itself (then false). */
extern void dsv3_admit(Dsv3Scheduler *scheduler);
extern bool dsv3_grow(Dsv3Scheduler *scheduler, Job *job);
extern void dsv3_leave_batch(Dsv3Scheduler *scheduler, Job *job);

/* scheduler_prefix.c. How many blocks from the first the job may take from others. Of the blocks that the job would adopt now, how many take no room. Take over what is there of the next
 * blocks. Publish the blocks that have become full since `from` rows were computed. Does another of these jobs compute the block
 * that the job needs next? */
extern int dsv3_prefix_most_blocks(Dsv3Scheduler *scheduler, Job *job);
extern int dsv3_prefix_kept_blocks(Dsv3Scheduler *scheduler, Job *job, bool last_resort);
extern void dsv3_prefix_adopt(Dsv3Scheduler *scheduler, Job *job);
extern void dsv3_prefix_publish(Dsv3Scheduler *scheduler, Job *job, size_t from);
extern bool dsv3_prefix_must_wait(const Job *job, Job *const *others, int n_others);

/* scheduler_disk.c. A block has been used twice. Take in what the disk has finished and give it more. Are rows that the job
 * needs next on their way? Starts reading them. All do nothing without a disk. */
extern void dsv3_disk_want(Dsv3Scheduler *scheduler, int32_t block);
extern void dsv3_disk_turn(Dsv3Scheduler *scheduler);
extern bool dsv3_disk_fetch(Dsv3Scheduler *scheduler, Job *job);

/* scheduler_pin.c. Pin what the PIN jobs of the batch have computed, tell what the ROUTING jobs have, and end them; returns whether there were any. Undo the pins of an
 * UNPIN, and say so in its n_prompt. Empty the cache. */
extern bool dsv3_finish_prompts(Dsv3Scheduler *scheduler);
extern void dsv3_unpin(Dsv3Scheduler *scheduler, Job *job);
extern void dsv3_reset_cache(Dsv3Scheduler *scheduler, Job *job);

/* scheduler_step.c. Choose the jobs and tokens of the next step; returns how many jobs, may preempt. Compute and deliver them. */
extern int dsv3_build_step(Dsv3Scheduler *scheduler, size_t *n_prefill, bool *budget_used);
extern void dsv3_run_step(Dsv3Scheduler *scheduler, int n_step, size_t n_prefill, bool budget_used);

/* Rows of whole logits that a part of a step makes. Make room for so many. */
extern size_t dsv3_whole_rows(const Dsv3StepSeq *part);
extern bool dsv3_reserve_logits(Dsv3Scheduler *scheduler, size_t rows, Dsv3Error *err);

/* scheduler_draft.c. A draft was computed along and came true or not. After a step, for each job that goes on: may be drafted for, from that
 * wanted row of the step. Then draft, for as many as it pays for; n_decoding jobs are in the next step to decode. */
extern void dsv3_note_draft(Dsv3Scheduler *scheduler, Job *job, bool was_right);
extern void dsv3_may_draft(Dsv3Scheduler *scheduler, Job *job, int row);
extern void dsv3_make_drafts(Dsv3Scheduler *scheduler, int n_decoding);

#endif /* DSV3_SCHEDULER_STATE_H */
