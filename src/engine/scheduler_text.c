/*
 * scheduler_text.c
 *	  From request to sequence: encoding prompts, and answering what needs no step.
 *
 * With a text thread everything here but dsv3_text_prepare_all runs in it; without, in the running thread.
 */
#include <stdio.h>
#include <string.h>

#include "common/altstack.h"
#include "engine/scheduler_state.h"

/* Give the job to the running thread. */
static void
pass_on(Dsv3Scheduler *scheduler, Job *job, JobPlace place)
{
	pthread_mutex_lock(&scheduler->lock);
	job->place = place;
	scheduler->woken = true;
	pthread_cond_signal(&scheduler->wake);
	pthread_mutex_unlock(&scheduler->lock);
}

/* Read the next piece of the weights. Whoever waits for this thread comes before the one after it. */
static void
warm_up(Dsv3Scheduler *scheduler, Job *job)
{
	int64_t total;
	Dsv3AtOnce answer = {0};
	Dsv3Error err;
	char text[32];

	job->warmed = scheduler->backend->ops->touch(scheduler->backend, job->warmed, &total);
	if (job->warmed >= 0)
	{
		pthread_mutex_lock(&scheduler->lock);
		job->place = JOB_TEXT;
		pthread_mutex_unlock(&scheduler->lock);
		return;
	}
	snprintf(text, sizeof(text), "%lld", (long long) total);
	if (dsv3_text_append(&answer.text, text, strlen(text), &err))
		dsv3_send_at_once(scheduler, job, &answer);
	else
		dsv3_job_fail(scheduler, job, &err);
	dsv3_at_once_free(&answer);
}

/* The job's text could not be made ready; whoever gave it up has the better reason. */
static void
fail_text(Dsv3Scheduler *scheduler, Job *job, Dsv3Error *error)
{
	if (strcmp(error->sqlstate, DSV3_ERR_CANCELLED) == 0)
	{
		pthread_mutex_lock(&scheduler->lock);
		(void) dsv3_job_is_dropped(job, now_us(), error);
		pthread_mutex_unlock(&scheduler->lock);
	}
	dsv3_job_fail(scheduler, job, error);
}

/* Encode a job's prompt and pass it on, or answer it. The job is JOB_IN_TEXT and the caller's. */
static void
prepare_job(Dsv3Scheduler *scheduler, Job *job)
{
	Dsv3Error err;

	if (dsv3_is_at_once(job->request->kind))
	{
		Dsv3AtOnce answer = {0};

		if (dsv3_answer_at_once(scheduler->backend, job->request, &answer, &err))
			dsv3_send_at_once(scheduler, job, &answer);
		else
			fail_text(scheduler, job, &err);
		dsv3_at_once_free(&answer);
		return;
	}
	if (job->request->kind == DSV3_REQUEST_WARM_UP)
	{
		warm_up(scheduler, job);
		return;
	}
	if (job->request->kind == DSV3_REQUEST_CACHE_RESET)
	{
		pass_on(scheduler, job, JOB_CONTROL);
		return;
	}
	job->seq = dsv3_sequence_open(scheduler->backend, job->request, (size_t) scheduler->context,
								  scheduler->kv_limited, &err);
	job->request = NULL;
	if (job->seq == NULL)
	{
		fail_text(scheduler, job, &err);
		return;
	}
	atomic_fetch_add(&scheduler->n_prompt_tokens, job->seq->n_prompt);
	pass_on(scheduler, job, JOB_READY);
}

/* The next job to encode: interactive first. Call with the lock held. */
static Job *
next_text_job(Dsv3Scheduler *scheduler)
{
	Job *found = NULL;

	for (Job *job = scheduler->jobs; job; job = job->next)
	{
		if (job->place == JOB_TEXT && !job->cancelled && (found == NULL || job->priority < found->priority))
			found = job;
	}
	if (found)
		found->place = JOB_IN_TEXT;
	return found;
}

void *
dsv3_text_main(void *arg)
{
	Dsv3Scheduler *scheduler = arg;
	void *stack = dsv3_altstack_set();

	pthread_mutex_lock(&scheduler->lock);
	while (!scheduler->stop)
	{
		Job *job = next_text_job(scheduler);

		if (job == NULL)
		{
			pthread_cond_wait(&scheduler->text_wake, &scheduler->lock);
			continue;
		}
		pthread_mutex_unlock(&scheduler->lock);
		prepare_job(scheduler, job);
		pthread_mutex_lock(&scheduler->lock);
	}
	pthread_mutex_unlock(&scheduler->lock);
	dsv3_altstack_drop(stack);
	return NULL;
}

/* Without a text thread: encode everything that arrived. */
void
dsv3_text_prepare_all(Dsv3Scheduler *scheduler)
{
	for (;;)
	{
		Job *job;

		pthread_mutex_lock(&scheduler->lock);
		job = next_text_job(scheduler);
		pthread_mutex_unlock(&scheduler->lock);
		if (job == NULL)
			return;
		prepare_job(scheduler, job);
	}
}
