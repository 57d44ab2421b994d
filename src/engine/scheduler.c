/*
 * scheduler.c
 *	  Continuous batching; see scheduler.h for threads and promises.
 *
 * A request becomes a job. Jobs pass three places: the text queue (waiting for their prompt to be encoded), the ready queue
 * (encoded, waiting to be admitted) and the batch (they own cache blocks). A turn of the scheduler:
 *
 *	1. Jobs that are cancelled or expired are dropped wherever they are.
 *	2. Admission (scheduler_admit.c). A job is admitted when the free blocks hold all its tokens and leave one block for each
 *	   sequence in the batch to grow into. If an interactive job does not fit, the youngest batch job makes room. Rows that
 *	   the cache has already are not computed again (scheduler_prefix.c).
 *	3. The step (scheduler_step.c). Every sequence whose prompt is in the cache decodes one token. What is left of the step's
 *	   token budget goes to prompts, in equal shares. The budget follows the measured speed: a step with prompts should take
 *	   about step_ms.
 *	4. Logits become tokens, tokens become text, text becomes events.
 *
 * Blocks are taken as a sequence grows, not reserved. If none is free the youngest sequence of the lowest priority gives up
 * all its blocks and goes back to the ready queue with its tokens, which are computed again later as far as the cache has lost
 * them: the logits are a function of the tokens, so nothing but time is lost. The oldest sequence always gets through, since
 * every sequence alone fits (dsv3_sequence_open refuses what does not).
 *
 * Locks. `lock` covers the job lists, the flags of the jobs, in_step and live_in_step. The batch array, the sequences in it and
 * the cache's blocks belong to the running thread; a job in the text thread's hands (in_text) belongs to that. Counters
 * are atomic. The disk's thread has a lock of its own (kv_disk.h). No lock is held while a prompt is encoded, a step runs or an event is delivered.
 */
#include "engine/scheduler.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include "common/version.h"
#include "engine/log.h"
#include "engine/scheduler_state.h"

#define DEFAULT_BATCH   64
#define DEFAULT_STEP_MS 200
#define FIRST_BUDGET    128

/* -- jobs -- */

static void
free_job(Job *job)
{
	dsv3_request_free(job->request);
	dsv3_sequence_close(job->seq);
	free(job->names);
	free(job);
}

void
dsv3_job_forget(Dsv3Scheduler *scheduler, Job *job)
{
	Job **at;

	pthread_mutex_lock(&scheduler->lock);
	for (at = &scheduler->jobs; *at != job; at = &(*at)->next)
		;
	*at = job->next;
	if (scheduler->jobs_tail == &job->next)
		scheduler->jobs_tail = at;
	scheduler->n_jobs--;
	pthread_mutex_unlock(&scheduler->lock);
	free_job(job);
}

bool
dsv3_job_is_dropped(const Job *job, uint64_t now, Dsv3Error *error)
{
	if (job->cancelled)
		dsv3_error(error, DSV3_ERR_CANCELLED, "request cancelled");
	else if (job->deadline_us != 0 && now >= job->deadline_us)
	{
		dsv3_error(error, DSV3_ERR_CANCELLED, "request timed out in the engine");
		dsv3_error_detail(error, "It had %llu ms.",
						  (unsigned long long) (job->deadline_us - job->submit_us) / 1000);
	}
	else
		return false;
	return true;
}
/* -- one turn -- */

/* Fail what is cancelled or expired, wherever it is; answer what was finished before it began. */
static void
drop_jobs(Dsv3Scheduler *scheduler)
{
	uint64_t now = now_us();

	for (;;)
	{
		Job *found = NULL;
		bool drop = false;
		Dsv3Error err;

		pthread_mutex_lock(&scheduler->lock);
		for (Job *job = scheduler->jobs; job && found == NULL; job = job->next)
		{
			drop = dsv3_job_is_dropped(job, now, &err);
			if (job->place == JOB_IN_TEXT)
			{
				/* The text thread sees the flag, and fails the job. */
				if (drop)
					atomic_store(&job->abort_text, true);
				continue;
			}
			if (drop || job->place == JOB_CONTROL || (job->place == JOB_READY && job->seq->finished))
				found = job;
		}
		/* Out of the text thread's reach before the lock is given back. */
		if (found && found->place == JOB_TEXT)
			found->place = JOB_IN_TEXT;
		pthread_mutex_unlock(&scheduler->lock);
		if (found == NULL)
			return;
		if (found->place == JOB_BATCH)
			dsv3_leave_batch(scheduler, found);
		if (drop)
			dsv3_job_fail(scheduler, found, &err);
		else if (found->place == JOB_CONTROL)
			dsv3_reset_cache(scheduler, found);
		else
		{
			if (found->seq->request->kind == DSV3_REQUEST_UNPIN)
				dsv3_unpin(scheduler, found);
			dsv3_send_done(scheduler, found, now);
		}
	}
}

/* Copy the running thread's numbers to where others may read them. */
static void
store_counts(Dsv3Scheduler *scheduler)
{
	Dsv3KvCounts counts = dsv3_kv_cache_counts(scheduler->cache);

	atomic_store(&scheduler->stat_batch, scheduler->n_batch);
	atomic_store(&scheduler->stat_held, counts.held);
	atomic_store(&scheduler->stat_cached, counts.cached);
	atomic_store(&scheduler->stat_pinned, counts.pinned);
	atomic_store(&scheduler->stat_evicted, counts.evicted);
	if (scheduler->disk)
	{
		Dsv3KvDiskCounts disk = dsv3_kv_disk_counts(scheduler->disk);

		atomic_store(&scheduler->stat_disk_places, disk.places);
		atomic_store(&scheduler->stat_disk_records, disk.records);
		atomic_store(&scheduler->stat_disk_loaded, disk.loaded);
		atomic_store(&scheduler->stat_disk_stored, disk.stored);
		atomic_store(&scheduler->stat_disk_lost, disk.lost);
		atomic_store(&scheduler->stat_disk_unstored, disk.unstored);
	}
}

Dsv3StepResult
dsv3_scheduler_step(Dsv3Scheduler *scheduler)
{
	size_t n_prefill;
	bool budget_used;
	bool paused;
	bool worked;
	int n_step;

	atomic_fetch_add(&scheduler->progress, 1);
	drop_jobs(scheduler);
	if (!scheduler->has_text_thread)
	{
		dsv3_text_prepare_all(scheduler);
		drop_jobs(scheduler); /* answers that need no step */
	}
	paused = scheduler->options.has_room && !scheduler->options.has_room(scheduler->options.arg);
	pthread_mutex_lock(&scheduler->lock);
	scheduler->paused = paused;
	pthread_mutex_unlock(&scheduler->lock);
	if (paused)
		return DSV3_STEP_PAUSED;
	dsv3_disk_turn(scheduler);
	dsv3_admit(scheduler);
	n_step = dsv3_build_step(scheduler, &n_prefill, &budget_used);
	if (n_step > 0)
		dsv3_run_step(scheduler, n_step, n_prefill, budget_used);
	worked = dsv3_finish_prompts(scheduler) || n_step > 0;
	store_counts(scheduler);
	return worked ? DSV3_STEP_WORKED : DSV3_STEP_IDLE;
}
/* -- running -- */

/* Sleep until something arrives, at most until the next deadline. Call with the lock held. */
static void
sleep_until_woken(Dsv3Scheduler *scheduler)
{
	uint64_t deadline = 0;

	for (Job *job = scheduler->jobs; job; job = job->next)
	{
		if (job->deadline_us != 0 && !atomic_load(&job->abort_text) &&
			(deadline == 0 || job->deadline_us < deadline))
			deadline = job->deadline_us;
	}
	if (deadline == 0)
		pthread_cond_wait(&scheduler->wake, &scheduler->lock);
	else
	{
		struct timespec until = {(time_t) (deadline / 1000000), (long) (deadline % 1000000) * 1000};

		(void) pthread_cond_timedwait(&scheduler->wake, &scheduler->lock, &until);
		/* Past its deadline is not woken, but there is something to drop. */
		if (now_us() >= deadline)
			scheduler->woken = true;
	}
}

void
dsv3_scheduler_run(Dsv3Scheduler *scheduler)
{
	bool stop = false;

	while (!stop)
	{
		Dsv3StepResult result = dsv3_scheduler_step(scheduler);

		pthread_mutex_lock(&scheduler->lock);
		while (result != DSV3_STEP_WORKED && !scheduler->woken && !scheduler->stop)
			sleep_until_woken(scheduler);
		scheduler->woken = false;
		stop = scheduler->stop;
		pthread_mutex_unlock(&scheduler->lock);
	}
}

void
dsv3_scheduler_wake(Dsv3Scheduler *scheduler)
{
	pthread_mutex_lock(&scheduler->lock);
	scheduler->woken = true;
	pthread_cond_signal(&scheduler->wake);
	pthread_mutex_unlock(&scheduler->lock);
}

void
dsv3_scheduler_stop(Dsv3Scheduler *scheduler)
{
	pthread_mutex_lock(&scheduler->lock);
	scheduler->stop = true;
	atomic_store(&scheduler->abort_step, true);
	pthread_cond_signal(&scheduler->wake);
	pthread_cond_signal(&scheduler->text_wake);
	pthread_mutex_unlock(&scheduler->lock);
}

bool
dsv3_scheduler_submit(Dsv3Scheduler *scheduler, Dsv3Request *request, Dsv3Error *err)
{
	Job *job = calloc(1, sizeof(*job));
	bool ok = true;

	if (job == NULL)
	{
		dsv3_request_free(request);
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a request");
	}
	job->request = request;
	request->abort_flag = &job->abort_text;
	job->id = request->id;
	job->role = request->role;
	/* Reading all weights waits for everybody else. */
	job->priority = request->kind == DSV3_REQUEST_WARM_UP ? UINT32_MAX : request->priority;
	job->submit_us = now_us();
	job->drafts_right = -1.0;
	if (request->timeout_ms > 0)
		job->deadline_us = job->submit_us + (uint64_t) request->timeout_ms * 1000;

	pthread_mutex_lock(&scheduler->lock);
	for (Job *other = scheduler->jobs; ok && other; other = other->next)
	{
		if (other->id == job->id)
			ok =
				dsv3_error(err, DSV3_ERR_PROTOCOL, "request id %llu is in use", (unsigned long long) job->id);
	}
	if (ok && scheduler->n_jobs >= scheduler->options.max_requests)
	{
		ok = dsv3_error(err, DSV3_ERR_QUEUE_FULL, "the engine has %d requests, as many as it takes",
						scheduler->n_jobs);
		dsv3_error_hint(err, "Try again later or raise dsv3.queue_size.");
	}
	if (ok)
	{
		job->arrival = ++scheduler->arrivals;
		*scheduler->jobs_tail = job;
		scheduler->jobs_tail = &job->next;
		scheduler->n_jobs++;
		scheduler->woken = true;
		pthread_cond_signal(scheduler->has_text_thread ? &scheduler->text_wake : &scheduler->wake);
	}
	pthread_mutex_unlock(&scheduler->lock);
	if (!ok)
		free_job(job);
	else
		atomic_fetch_add(&scheduler->n_submitted, 1);
	return ok;
}

void
dsv3_scheduler_cancel(Dsv3Scheduler *scheduler, uint64_t id)
{
	pthread_mutex_lock(&scheduler->lock);
	for (Job *job = scheduler->jobs; job; job = job->next)
	{
		if (job->id != id || job->cancelled)
			continue;
		job->cancelled = true;
		if (job->in_step && --scheduler->live_in_step == 0)
			atomic_store(&scheduler->abort_step, true);
		scheduler->woken = true;
		pthread_cond_signal(&scheduler->wake);
	}
	pthread_mutex_unlock(&scheduler->lock);
}

uint64_t
dsv3_scheduler_progress(const Dsv3Scheduler *scheduler)
{
	return atomic_load(&scheduler->progress);
}

bool
dsv3_scheduler_busy(Dsv3Scheduler *scheduler)
{
	bool busy = false;

	pthread_mutex_lock(&scheduler->lock);
	for (Job *job = scheduler->jobs; job && !busy; job = job->next)
		busy = job->place == JOB_BATCH || job->place == JOB_READY;
	busy = busy && !scheduler->paused;
	pthread_mutex_unlock(&scheduler->lock);
	return busy;
}
/* -- opening -- */

static void
wake_scheduler(void *arg)
{
	dsv3_scheduler_wake(arg);
}

/* Names hold for as long as their secret: that of the cache's folder, or one that is made here and forgotten. A folder that cannot be used
 * is no reason to do without answers. */
static bool
open_namer(Dsv3Scheduler *scheduler, Dsv3Error *err)
{
	const Dsv3ModelInfo *info = &scheduler->backend->info;
	uint8_t secret[DSV3_SECRET_BYTES];
	char identity[256];
	Dsv3KvDiskOptions disk = {.folder = scheduler->options.kv_folder,
							  .max_bytes = scheduler->options.kv_disk_bytes,
							  .block_bytes = scheduler->backend->kv_block_bytes,
							  .identity = identity,
							  .wake = wake_scheduler,
							  .arg = scheduler};

	/* A draft layer has rows in each block too. */
	snprintf(identity, sizeof(identity), "dsv3 %s %s %d %s %s %s%s", DSV3_VERSION, info->digest,
			 (int) scheduler->backend->weight_mode, info->weights, info->isa,
			 dsv3_kv_type_name(scheduler->backend->kv_type), info->drafts ? " with drafts" : "");
	if (disk.folder)
	{
		scheduler->disk = dsv3_kv_disk_open(&disk, err);
		if (scheduler->disk == NULL)
		{
			dsv3_error_prefix(err, "the cache is in memory only");
			dsv3_log_error(DSV3_WARNING, err);
		}
	}
	if (scheduler->disk)
		memcpy(secret, dsv3_kv_disk_secret(scheduler->disk), sizeof(secret));
	else if (RAND_bytes(secret, sizeof(secret)) != 1)
		return dsv3_error(err, DSV3_ERR_INTERNAL, "could not generate random values");
	scheduler->namer = dsv3_namer_open(secret, identity, err);
	OPENSSL_cleanse(secret, sizeof(secret));
	return scheduler->namer != NULL;
}

static bool
allocate(Dsv3Scheduler *scheduler, Dsv3Error *err)
{
	const Dsv3SchedulerOptions *options = &scheduler->options;
	pthread_condattr_t clock;

	pthread_mutex_init(&scheduler->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&scheduler->wake, &clock);
	pthread_cond_init(&scheduler->text_wake, NULL);
	pthread_condattr_destroy(&clock);
	scheduler->batch = calloc((size_t) options->max_batch, sizeof(*scheduler->batch));
	scheduler->step_jobs = calloc((size_t) options->max_batch, sizeof(*scheduler->step_jobs));
	scheduler->step_seqs = calloc((size_t) options->max_batch, sizeof(*scheduler->step_seqs));
	scheduler->to_store = calloc((size_t) options->kv_blocks, sizeof(*scheduler->to_store));
	scheduler->is_to_store = calloc((size_t) options->kv_blocks, sizeof(*scheduler->is_to_store));
	scheduler->draft_jobs = calloc((size_t) options->max_batch, sizeof(*scheduler->draft_jobs));
	scheduler->draft_rows = calloc((size_t) options->max_batch, sizeof(*scheduler->draft_rows));
	scheduler->prompts = calloc((size_t) options->max_batch, sizeof(*scheduler->prompts));
	scheduler->roles = calloc((size_t) options->max_requests, sizeof(*scheduler->roles));
	if (!scheduler->batch || !scheduler->step_jobs || !scheduler->step_seqs || !scheduler->prompts ||
		!scheduler->draft_jobs || !scheduler->draft_rows || !scheduler->to_store || !scheduler->is_to_store ||
		!scheduler->roles)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the scheduler");
	scheduler->cache = dsv3_kv_cache_open(options->kv_blocks, err);
	return scheduler->cache && open_namer(scheduler, err) &&
		   dsv3_sampler_open(&scheduler->sampler, scheduler->backend->sample_limit, err);
}

Dsv3Scheduler *
dsv3_scheduler_open(Dsv3Backend *backend, const Dsv3SchedulerOptions *options, Dsv3Error *err)
{
	Dsv3Scheduler *scheduler = calloc(1, sizeof(*scheduler));
	int64_t rows = (int64_t) options->kv_blocks * DSV3_KV_BLOCK;

	if (scheduler == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the scheduler");
		return NULL;
	}
	scheduler->backend = backend;
	scheduler->options = *options;
	if (scheduler->options.max_batch <= 0)
		scheduler->options.max_batch = DEFAULT_BATCH;
	if (scheduler->options.step_ms <= 0)
		scheduler->options.step_ms = DEFAULT_STEP_MS;
	scheduler->jobs_tail = &scheduler->jobs;
	scheduler->budget = FIRST_BUDGET;
	dsv3_speculation_init(&scheduler->speculation, options->speculation);
	scheduler->opened_us = now_us();
	scheduler->kv_limited = rows < backend->info.max_positions;
	scheduler->context = scheduler->kv_limited ? (int) rows : backend->info.max_positions;
	if (!allocate(scheduler, err) || !backend->ops->kv_open(backend, options->kv_blocks, err))
		goto fail;
	atomic_store(&scheduler->stat_budget, FIRST_BUDGET);
	if (options->text_thread)
	{
		if (pthread_create(&scheduler->text_thread, NULL, dsv3_text_main, scheduler) != 0)
		{
			dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "could not start a thread");
			goto fail;
		}
		scheduler->has_text_thread = true;
	}
	return scheduler;

fail:
	dsv3_scheduler_close(scheduler);
	return NULL;
}

void
dsv3_scheduler_close(Dsv3Scheduler *scheduler)
{
	if (scheduler == NULL)
		return;
	if (scheduler->has_text_thread)
	{
		dsv3_scheduler_stop(scheduler);
		pthread_join(scheduler->text_thread, NULL);
	}
	while (scheduler->jobs)
	{
		Job *job = scheduler->jobs;

		scheduler->jobs = job->next;
		free_job(job);
	}
	dsv3_kv_disk_close(scheduler->disk);
	pthread_cond_destroy(&scheduler->wake);
	pthread_cond_destroy(&scheduler->text_wake);
	pthread_mutex_destroy(&scheduler->lock);
	dsv3_sampler_close(&scheduler->sampler);
	free(scheduler->batch);
	free(scheduler->step_jobs);
	free(scheduler->step_seqs);
	free(scheduler->draft_jobs);
	free(scheduler->draft_rows);
	free(scheduler->prompts);
	free(scheduler->to_store);
	free(scheduler->is_to_store);
	dsv3_kv_cache_close(scheduler->cache);
	dsv3_namer_close(scheduler->namer);
	free(scheduler->roles);
	free(scheduler->logits);
	free(scheduler);
}

int
dsv3_scheduler_context(const Dsv3Scheduler *scheduler)
{
	return scheduler->context;
}

int
dsv3_scheduler_disk_fd(const Dsv3Scheduler *scheduler)
{
	return scheduler->disk ? dsv3_kv_disk_fd(scheduler->disk) : -1;
}
