/*
 * scheduler_admit.c
 *	  Who is in the batch: admission, growth, and giving way.
 *
 * The order of admission: interactive before batch; among equals the role with the fewest sequences in the batch, of these the
 * one served longest ago, then the order of arrival. A sequence takes blocks as it grows. One that leaves gives its blocks back from
 * the last to the first, so that of a prefix that stays in the cache the end is given up before the beginning, without which it
 * could not be found.
 */
#include <string.h>

#include "engine/scheduler_state.h"

/* -- leaving -- */

void
dsv3_leave_batch(Dsv3Scheduler *scheduler, Job *job)
{
	int at = 0;

	while (job->seq->n_blocks > 0)
		dsv3_kv_cache_release(scheduler->cache, job->seq->blocks[--job->seq->n_blocks]);
	job->seq->computed = 0;
	while (scheduler->batch[at] != job)
		at++;
	memmove(&scheduler->batch[at], &scheduler->batch[at + 1],
			(size_t) (scheduler->n_batch - at - 1) * sizeof(Job *));
	scheduler->n_batch--;
}

static void
preempt(Dsv3Scheduler *scheduler, Job *job)
{
	dsv3_leave_batch(scheduler, job);
	pthread_mutex_lock(&scheduler->lock);
	job->place = JOB_READY;
	pthread_mutex_unlock(&scheduler->lock);
	atomic_fetch_add(&scheduler->n_preempted, 1);
}

/* Who gives way first: batch before interactive, then the youngest. NULL when nobody in the batch has a priority number of at
 * least min_priority. */
static Job *
choose_victim(const Dsv3Scheduler *scheduler, uint32_t min_priority)
{
	Job *victim = NULL;

	for (int i = 0; i < scheduler->n_batch; i++)
	{
		Job *job = scheduler->batch[i];

		if (job->priority >= min_priority &&
			(victim == NULL || job->priority > victim->priority ||
			 (job->priority == victim->priority && job->arrival > victim->arrival)))
			victim = job;
	}
	return victim;
}

/* Tokens a sequence must have room for when it joins the batch; the choices of a SCORE are of different lengths and come one
 * after the other into the same room. */
static size_t
tokens_to_hold(const Dsv3Sequence *seq)
{
	return seq->request->kind == DSV3_REQUEST_SCORE ? seq->n_limit : seq->tokens.count;
}

static int
blocks_for(size_t n_tokens)
{
	return (int) ((n_tokens + DSV3_KV_BLOCK - 1) / DSV3_KV_BLOCK);
}

static void
take_blocks(Dsv3Scheduler *scheduler, Dsv3Sequence *seq, int need)
{
	while (seq->n_blocks < need)
		seq->blocks[seq->n_blocks++] = dsv3_kv_cache_take(scheduler->cache);
}

bool
dsv3_grow(Dsv3Scheduler *scheduler, Job *job)
{
	int need = blocks_for(job->seq->tokens.count);

	while (dsv3_kv_cache_room(scheduler->cache, scheduler->n_batch == 1) < need - job->seq->n_blocks)
	{
		Job *victim = choose_victim(scheduler, 0);

		preempt(scheduler, victim);
		if (victim == job)
			return false;
	}
	take_blocks(scheduler, job->seq, need);
	/* Drafts come along where a block can be spared. */
	need = blocks_for(job->seq->tokens.count + (size_t) job->seq->n_drafts);
	if (dsv3_kv_cache_room(scheduler->cache, false) - scheduler->n_batch >= need - job->seq->n_blocks)
		take_blocks(scheduler, job->seq, need);
	return true;
}

/* -- admission -- */

static uint64_t
role_served(const Dsv3Scheduler *scheduler, uint32_t role)
{
	for (int i = 0; i < scheduler->n_roles; i++)
	{
		if (scheduler->roles[i].role == role)
			return scheduler->roles[i].served;
	}
	return 0;
}

/* Remember that the role was served. Roles without a job are forgotten when the table is full: it has a place for every job. */
static void
note_served(Dsv3Scheduler *scheduler, uint32_t role)
{
	int oldest = 0;

	scheduler->admissions++;
	for (int i = 0; i < scheduler->n_roles; i++)
	{
		if (scheduler->roles[i].role == role)
		{
			scheduler->roles[i].served = scheduler->admissions;
			return;
		}
		if (scheduler->roles[i].served < scheduler->roles[oldest].served)
			oldest = i;
	}
	if (scheduler->n_roles < scheduler->options.max_requests)
		oldest = scheduler->n_roles++;
	scheduler->roles[oldest] = (RoleServed){.role = role, .served = scheduler->admissions};
}

static int
role_in_batch(const Dsv3Scheduler *scheduler, uint32_t role)
{
	int n = 0;

	for (int i = 0; i < scheduler->n_batch; i++)
		n += scheduler->batch[i]->role == role;
	return n;
}

static bool
comes_before(const Dsv3Scheduler *scheduler, const Job *a, const Job *b)
{
	int in_a;
	int in_b;
	uint64_t served_a;
	uint64_t served_b;

	if (a->priority != b->priority)
		return a->priority < b->priority;
	if (a->role == b->role)
		return a->arrival < b->arrival;
	in_a = role_in_batch(scheduler, a->role);
	in_b = role_in_batch(scheduler, b->role);
	if (in_a != in_b)
		return in_a < in_b;
	served_a = role_served(scheduler, a->role);
	served_b = role_served(scheduler, b->role);
	return served_a != served_b ? served_a < served_b : a->arrival < b->arrival;
}

static Job *
next_ready_job(Dsv3Scheduler *scheduler)
{
	Job *found = NULL;

	pthread_mutex_lock(&scheduler->lock);
	for (Job *job = scheduler->jobs; job; job = job->next)
	{
		if (job->place == JOB_READY && (found == NULL || comes_before(scheduler, job, found)))
			found = job;
	}
	pthread_mutex_unlock(&scheduler->lock);
	return found;
}

/* Do so many blocks fit, and one for each sequence to grow into? Nobody is kept waiting by those, nor by pinned blocks, when the
 * batch is empty. */
static bool
fits(const Dsv3Scheduler *scheduler, int n_blocks, int n_batch, int more_room)
{
	return n_batch < scheduler->options.max_batch &&
		   dsv3_kv_cache_room(scheduler->cache, n_batch == 0) + more_room >= n_blocks + n_batch;
}

/* Does the job fit as things are? Blocks that it shares with others take no room. */
static bool
fits_now(Dsv3Scheduler *scheduler, Job *job)
{
	int n_batch = scheduler->n_batch;
	int shared = dsv3_prefix_kept_blocks(scheduler, job, n_batch == 0);

	return fits(scheduler, blocks_for(tokens_to_hold(job->seq)) - shared, n_batch, 0);
}

/* Would the job fit if everybody of a lower priority left? Blocks that several hold are not counted on. */
static bool
could_fit(const Dsv3Scheduler *scheduler, const Job *job)
{
	int n_batch = scheduler->n_batch;
	int room = 0;

	for (int i = 0; i < scheduler->n_batch; i++)
	{
		const Dsv3Sequence *seq = scheduler->batch[i]->seq;

		if (scheduler->batch[i]->priority <= job->priority)
			continue;
		n_batch--;
		for (int b = 0; b < seq->n_blocks; b++)
			room += dsv3_kv_cache_holders(scheduler->cache, seq->blocks[b]) == 1;
	}
	return fits(scheduler, blocks_for(tokens_to_hold(job->seq)), n_batch, room);
}

void
dsv3_admit(Dsv3Scheduler *scheduler)
{
	Job *job;

	while ((job = next_ready_job(scheduler)) != NULL &&
		   (fits_now(scheduler, job) || could_fit(scheduler, job)))
	{
		Dsv3Sequence *seq = job->seq;

		while (!fits_now(scheduler, job))
			preempt(scheduler, choose_victim(scheduler, job->priority + 1));
		dsv3_prefix_adopt(scheduler, job);
		take_blocks(scheduler, seq, blocks_for(tokens_to_hold(seq)));
		pthread_mutex_lock(&scheduler->lock);
		job->place = JOB_BATCH;
		pthread_mutex_unlock(&scheduler->lock);
		scheduler->batch[scheduler->n_batch++] = job;
		note_served(scheduler, job->role);
	}
}
