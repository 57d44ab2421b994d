/*
 * scheduler_state.h
 *	  What a scheduler holds, for its own files only (scheduler.c, scheduler_stats.c). Which lock covers what is said at the
 *	  top of scheduler.c.
 */
#ifndef DSV3_SCHEDULER_STATE_H
#define DSV3_SCHEDULER_STATE_H

#include <pthread.h>
#include <time.h>

#include "engine/scheduler.h"
#include "engine/sequence.h"

typedef enum JobPlace
{
	JOB_TEXT,    /* in the text queue */
	JOB_IN_TEXT, /* being encoded */
	JOB_READY,
	JOB_BATCH,
} JobPlace;

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
	Dsv3Request *request; /* until encoded, then the sequence's */
	Dsv3Sequence *seq;
	uint64_t submit_us;
	uint64_t deadline_us; /* 0: none */
	uint64_t first_step_us;
	uint64_t first_token_us;
	uint64_t last_delta_us;
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
	Job *jobs;
	Job **jobs_tail;
	int n_jobs;
	int live_in_step; /* jobs of the running step that nobody cancelled */
	atomic_bool abort_step;

	Job **batch;
	int n_batch;
	int32_t *free_blocks;
	int n_free;
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
	atomic_uint_least64_t n_output_tokens;
	atomic_uint_least64_t n_computed_tokens; /* rows computed, again or for the first time */
	atomic_int stat_batch;
	atomic_int stat_free;
	atomic_int stat_budget;
};

static inline uint64_t
now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t) ts.tv_sec * 1000000 + (uint64_t) ts.tv_nsec / 1000;
}

#endif /* DSV3_SCHEDULER_STATE_H */
