/*
 * scheduler.c
 *	  Continuous batching; see scheduler.h for threads and promises.
 *
 * A request becomes a job. Jobs pass three places: the text queue (waiting for their prompt to be encoded), the ready queue
 * (encoded, waiting to be admitted) and the batch (they own cache blocks). A turn of the scheduler:
 *
 *	1. Jobs that are cancelled or expired are dropped wherever they are.
 *	2. Admission. Interactive before batch; among equals the role with the fewest sequences in the batch, of these the
 *	   one served longest ago, then the order of arrival. A job is admitted when the free blocks hold all its tokens and leave
 *	   one block for each sequence in the batch to grow into. If an interactive job does not fit, the youngest batch job
 *	   makes room.
 *	3. The step. Every sequence whose prompt is in the cache decodes one token. What is left of the step's token budget goes
 *	   to prompts, in equal shares. The budget follows the measured speed: a step with prompts should take about step_ms.
 *	4. Logits become tokens, tokens become text, text becomes events.
 *
 * Blocks are taken as a sequence grows, not reserved. If none is free the youngest sequence of the lowest priority gives up
 * all its blocks and goes back to the ready queue with its tokens, which are computed again later: the logits are a
 * function of the tokens, so nothing but time is lost. The oldest sequence always gets through, since every sequence alone fits
 * (dsv3_sequence_open refuses what does not).
 *
 * Locks. `lock` covers the job lists, the flags of the jobs, in_step and live_in_step. The batch array, the sequences in it and
 * the free blocks belong to the running thread; a job in the text thread's hands (in_text) belongs to that. Counters
 * are atomic. No lock is held while a prompt is encoded, a step runs or an event is delivered.
 */
#include "engine/scheduler.h"

#include "engine/at_once.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/scheduler_state.h"

#define DEFAULT_BATCH   64
#define DEFAULT_STEP_MS 200
#define MIN_BUDGET      32 /* prompt tokens of a step at the least */
#define MAX_BUDGET      4096
#define FIRST_BUDGET    128
#define MAX_SCORED_ROWS 64 /* rows of a step's prompts whose logits are wanted: bounds the memory of logits */
#define GATHER_TOKENS   16 /* without STREAM a DELTA waits for this many tokens ... */
#define GATHER_US       200000 /* ... or this long */

/* -- jobs -- */

static void
free_job(Job *job)
{
	dsv3_request_free(job->request);
	dsv3_sequence_close(job->seq);
	free(job);
}

/* Take a job out of the list of all jobs and free it. */
static void
forget_job(Dsv3Scheduler *scheduler, Job *job)
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

static void
fail_job(Dsv3Scheduler *scheduler, Job *job, const Dsv3Error *error)
{
	Dsv3Event event = {.type = DSV3_FRAME_FAIL, .request = job->id, .error = error};

	atomic_fetch_add(
		strcmp(error->sqlstate, DSV3_ERR_CANCELLED) == 0 ? &scheduler->n_cancelled : &scheduler->n_failed, 1);
	scheduler->options.emit(scheduler->options.arg, &event);
	forget_job(scheduler, job);
}

/* Cancelled or past its deadline? Then *error says which. */
static bool
is_dropped(const Job *job, uint64_t now, Dsv3Error *error)
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

/* -- text: from request to sequence -- */

static bool
send_at_once(Dsv3Scheduler *scheduler, const Job *job, Dsv3Error *err)
{
	Dsv3AtOnce answer = {0};
	bool ok = dsv3_answer_at_once(scheduler->backend, job->request, &answer, err);

	if (ok)
	{
		Dsv3Event event = {
			.type = DSV3_FRAME_DONE,
			.request = job->id,
			.kind = job->request->kind,
			.finish = DSV3_FINISH_STOP,
			.text = answer.text.data,
			.text_len = answer.text.len,
			.tokens = answer.tokens.ids,
			.n_tokens = answer.tokens.count,
			.prompt_tokens = answer.n_tokens,
		};

		scheduler->options.emit(scheduler->options.arg, &event);
	}
	dsv3_at_once_free(&answer);
	return ok;
}

/* Encode a job's prompt and pass it on, or answer it. The job is JOB_IN_TEXT and the caller's. */
static void
prepare_job(Dsv3Scheduler *scheduler, Job *job)
{
	Dsv3Error err;

	if (dsv3_is_at_once(job->request->kind))
	{
		if (send_at_once(scheduler, job, &err))
		{
			atomic_fetch_add(&scheduler->n_done, 1);
			forget_job(scheduler, job);
		}
		else
			fail_job(scheduler, job, &err);
		return;
	}
	job->seq = dsv3_sequence_open(scheduler->backend, job->request, (size_t) scheduler->context,
								  scheduler->kv_limited, &err);
	job->request = NULL;
	if (job->seq == NULL)
	{
		fail_job(scheduler, job, &err);
		return;
	}
	atomic_fetch_add(&scheduler->n_prompt_tokens, job->seq->n_prompt);
	pthread_mutex_lock(&scheduler->lock);
	job->place = JOB_READY;
	scheduler->woken = true;
	pthread_cond_signal(&scheduler->wake);
	pthread_mutex_unlock(&scheduler->lock);
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

static void *
text_main(void *arg)
{
	Dsv3Scheduler *scheduler = arg;

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
	return NULL;
}

/* Without a text thread: encode everything that arrived. */
static void
prepare_all(Dsv3Scheduler *scheduler)
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

/* -- blocks -- */

static int
blocks_for(size_t n_tokens)
{
	return (int) ((n_tokens + DSV3_KV_BLOCK - 1) / DSV3_KV_BLOCK);
}

static void
release_blocks(Dsv3Scheduler *scheduler, Dsv3Sequence *seq)
{
	while (seq->n_blocks > 0)
		scheduler->free_blocks[scheduler->n_free++] = seq->blocks[--seq->n_blocks];
	seq->computed = 0;
}

static void
leave_batch(Dsv3Scheduler *scheduler, Job *job)
{
	int at = 0;

	release_blocks(scheduler, job->seq);
	while (scheduler->batch[at] != job)
		at++;
	memmove(&scheduler->batch[at], &scheduler->batch[at + 1],
			(size_t) (scheduler->n_batch - at - 1) * sizeof(Job *));
	scheduler->n_batch--;
}

static void
preempt(Dsv3Scheduler *scheduler, Job *job)
{
	leave_batch(scheduler, job);
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

static void
take_blocks(Dsv3Scheduler *scheduler, Dsv3Sequence *seq, int need)
{
	while (seq->n_blocks < need)
		seq->blocks[seq->n_blocks++] = scheduler->free_blocks[--scheduler->n_free];
}

/* Give a sequence of the batch blocks for all its tokens; others give way, in the end the job itself (then false). */
static bool
grow(Dsv3Scheduler *scheduler, Job *job)
{
	int need = blocks_for(job->seq->tokens.count);

	while (scheduler->n_free < need - job->seq->n_blocks)
	{
		Job *victim = choose_victim(scheduler, 0);

		preempt(scheduler, victim);
		if (victim == job)
			return false;
	}
	take_blocks(scheduler, job->seq, need);
	/* Drafts come along where a block can be spared. */
	need = blocks_for(job->seq->tokens.count + (size_t) job->seq->n_drafts);
	if (scheduler->n_free - scheduler->n_batch >= need - job->seq->n_blocks)
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

static bool
fits(const Dsv3Scheduler *scheduler, const Job *job, int n_batch, int n_free)
{
	/* One block for each sequence to grow into; nobody is kept waiting by it when the batch is empty. */
	return n_batch < scheduler->options.max_batch && n_free >= blocks_for(tokens_to_hold(job->seq)) + n_batch;
}

/* Would the job fit if everybody of a lower priority left? */
static bool
could_fit(const Dsv3Scheduler *scheduler, const Job *job)
{
	int n_batch = scheduler->n_batch;
	int n_free = scheduler->n_free;

	for (int i = 0; i < scheduler->n_batch; i++)
	{
		if (scheduler->batch[i]->priority > job->priority)
		{
			n_batch--;
			n_free += scheduler->batch[i]->seq->n_blocks;
		}
	}
	return fits(scheduler, job, n_batch, n_free);
}

static void
admit(Dsv3Scheduler *scheduler)
{
	Job *job;

	while ((job = next_ready_job(scheduler)) != NULL && could_fit(scheduler, job))
	{
		Dsv3Sequence *seq = job->seq;

		while (!fits(scheduler, job, scheduler->n_batch, scheduler->n_free))
			preempt(scheduler, choose_victim(scheduler, job->priority + 1));
		take_blocks(scheduler, seq, blocks_for(tokens_to_hold(seq)));
		pthread_mutex_lock(&scheduler->lock);
		job->place = JOB_BATCH;
		pthread_mutex_unlock(&scheduler->lock);
		scheduler->batch[scheduler->n_batch++] = job;
		note_served(scheduler, job->role);
	}
}

/* -- events -- */

static void
send_delta(Dsv3Scheduler *scheduler, Job *job, uint64_t now)
{
	Dsv3Sequence *seq = job->seq;
	Dsv3Event event = {.type = DSV3_FRAME_DELTA,
					   .request = job->id,
					   .text = seq->out_text.data,
					   .text_len = seq->out_text.len,
					   .tokens = seq->out_tokens.ids,
					   .n_tokens = seq->out_tokens.count};

	if (!seq->request->stream && seq->out_tokens.count < GATHER_TOKENS &&
		now - job->last_delta_us < GATHER_US)
		return;
	scheduler->options.emit(scheduler->options.arg, &event);
	seq->out_text.len = 0;
	seq->out_tokens.count = 0;
	job->last_delta_us = now;
}

static void
send_done(Dsv3Scheduler *scheduler, Job *job, uint64_t now)
{
	Dsv3Sequence *seq = job->seq;
	Dsv3Text message = {0};
	Dsv3Error err;
	Dsv3Event event = {.type = DSV3_FRAME_DONE, .request = job->id, .kind = seq->request->kind};

	if (seq->request->kind == DSV3_REQUEST_CHAT)
	{
		if (!dsv3_sequence_message(seq, &message, &err))
		{
			dsv3_text_free(&message);
			fail_job(scheduler, job, &err);
			return;
		}
		event.message_json = message.data;
	}
	if (seq->request->has_logprobs && seq->request->kind != DSV3_REQUEST_LOGPROB)
	{
		if (!dsv3_text_append(&seq->logprobs, seq->logprobs.len ? "]" : "[]", seq->logprobs.len ? 1 : 2,
							  &err))
		{
			dsv3_text_free(&message);
			fail_job(scheduler, job, &err);
			return;
		}
		event.logprobs_json = seq->logprobs.data;
	}
	if (seq->request->kind == DSV3_REQUEST_SCORE && !dsv3_sequence_scores(seq, &seq->out_text, &err))
	{
		dsv3_text_free(&message);
		fail_job(scheduler, job, &err);
		return;
	}
	event.narrowed = seq->constraint && seq->constraint->narrowed;
	event.text = seq->out_text.data;
	event.text_len = seq->out_text.len;
	event.tokens = seq->out_tokens.ids;
	event.n_tokens = seq->out_tokens.count;
	event.finish = seq->request->kind == DSV3_REQUEST_LOGPROB ? DSV3_FINISH_STOP : seq->finish;
	event.prompt_tokens = (uint32_t) seq->n_prompt;
	event.output_tokens = (uint32_t) dsv3_sequence_n_output(seq);
	event.logprob = seq->logprob;
	if (job->first_step_us == 0)
		job->first_step_us = now;
	if (job->first_token_us == 0)
		job->first_token_us = now;
	event.queue_us = job->first_step_us - job->submit_us;
	event.prefill_us = job->first_token_us - job->first_step_us;
	event.decode_us = now - job->first_token_us;
	atomic_fetch_add(&scheduler->n_done, 1);
	scheduler->options.emit(scheduler->options.arg, &event);
	dsv3_text_free(&message);
	forget_job(scheduler, job);
}

/* -- the step -- */

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
			if (job->place == JOB_IN_TEXT)
				continue;
			drop = is_dropped(job, now, &err);
			if (drop || (job->place == JOB_READY && job->seq->finished))
				found = job;
		}
		/* Out of the text thread's reach before the lock is given back. */
		if (found && found->place == JOB_TEXT)
			found->place = JOB_IN_TEXT;
		pthread_mutex_unlock(&scheduler->lock);
		if (found == NULL)
			return;
		if (found->place == JOB_BATCH)
			leave_batch(scheduler, found);
		if (drop)
			fail_job(scheduler, found, &err);
		else
			send_done(scheduler, found, now);
	}
}

static bool
reserve_logits(Dsv3Scheduler *scheduler, size_t rows, Dsv3Error *err)
{
	float *grown;

	if (rows <= scheduler->logits_rows)
		return true;
	grown = realloc(scheduler->logits, rows * (size_t) scheduler->backend->info.vocab_size * sizeof(float));
	if (grown == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for %zu rows of logits", rows);
	scheduler->logits = grown;
	scheduler->logits_rows = rows;
	return true;
}

/* Tokens of the sequence that the cache lacks. */
static size_t
missing(const Dsv3Sequence *seq)
{
	return seq->tokens.count - seq->computed;
}

/* Is the next step of the sequence the decoding of one token (as opposed to a part of its prompt)? */
static bool
is_decoding(const Dsv3Sequence *seq)
{
	return missing(seq) == 1 && seq->computed >= seq->n_prompt;
}

/*
 * Make part number at of the step from up to n tokens of a job; returns how many. A chunk lies before score_from or behind it,
 * never across, so that it wants no logits or all of them, at most *scored_left rows.
 */
static size_t
add_to_step(Dsv3Scheduler *scheduler, int at, Job *job, size_t n, size_t *scored_left)
{
	Dsv3Sequence *seq = job->seq;
	Dsv3StepSeq *part = &scheduler->step_seqs[at];
	size_t unscored = seq->score_from > seq->computed ? seq->score_from - seq->computed : 0;
	size_t n_drafts = 0;

	if (n > missing(seq))
		n = missing(seq);
	part->want = unscored > 0 ? DSV3_WANT_NONE : DSV3_WANT_ALL;
	if (unscored == 0)
	{
		/* The last token of a continuation has nothing behind it to score. */
		if ((seq->request->kind == DSV3_REQUEST_LOGPROB || seq->request->kind == DSV3_REQUEST_SCORE) &&
			n == missing(seq))
			n--;
		if (n > *scored_left)
			n = *scored_left;
		*scored_left -= n;
	}
	else if (n > unscored)
	{
		/* When only the last row is scored it comes along: one step less to the first token. */
		bool last_only = seq->score_from + 1 == seq->tokens.count;

		n = last_only ? unscored + 1 : unscored;
		part->want = last_only ? DSV3_WANT_LAST : DSV3_WANT_NONE;
	}
	part->picked = NULL;
	if (n == missing(seq) && part->want != DSV3_WANT_NONE &&
		(part->picked = dsv3_sequence_picked(seq)) != NULL)
	{
		/* Behind the last token its drafts, as far as the blocks reach; each has a row of its own. */
		size_t room = (size_t) seq->n_blocks * DSV3_KV_BLOCK - seq->tokens.count;

		n_drafts = room < (size_t) seq->n_drafts ? room : (size_t) seq->n_drafts;
		part->want = 1 + (int) n_drafts;
	}
	part->tokens = seq->tokens.ids + seq->computed;
	part->n_tokens = (int) (n + n_drafts);
	part->position = (int) seq->computed;
	scheduler->step_jobs[at] = job;
	return n;
}

/* Choose the jobs and tokens of the next step; returns how many jobs. May preempt. */
static int
build_step(Dsv3Scheduler *scheduler, size_t *n_prefill, bool *budget_used)
{
	int n_step = 0;
	int waiting = 0;
	size_t budget = (size_t) scheduler->budget;
	size_t scored_left = SIZE_MAX; /* a decoded token's row is always there */
	uint32_t first_priority = UINT32_MAX;

	for (int i = 0; i < scheduler->n_batch; i++)
	{
		Job *job = scheduler->batch[i];

		if (is_decoding(job->seq))
		{
			int before = scheduler->n_batch;

			if (!grow(scheduler, job) || scheduler->n_batch != before)
			{
				/* The batch changed under us: start over, with fewer jobs. */
				i = -1;
				n_step = 0;
				continue;
			}
			(void) add_to_step(scheduler, n_step++, job, 1, &scored_left);
		}
	}
	for (int i = 0; i < scheduler->n_batch; i++)
	{
		if (!is_decoding(scheduler->batch[i]->seq) && scheduler->batch[i]->priority < first_priority)
			first_priority = scheduler->batch[i]->priority;
	}
	for (int i = 0; i < scheduler->n_batch; i++)
		waiting += !is_decoding(scheduler->batch[i]->seq) && scheduler->batch[i]->priority == first_priority;
	*n_prefill = 0;
	*budget_used = false;
	scored_left = MAX_SCORED_ROWS;
	for (int i = 0; i < scheduler->n_batch && waiting > 0 && budget > 0; i++)
	{
		Job *job = scheduler->batch[i];
		size_t share;
		size_t added;

		if (is_decoding(job->seq) || job->priority != first_priority)
			continue;
		share = budget / (size_t) waiting;
		if (share < MIN_BUDGET)
			share = budget < MIN_BUDGET ? budget : MIN_BUDGET;
		waiting--;
		added = add_to_step(scheduler, n_step, job, share, &scored_left);
		*budget_used = *budget_used || missing(job->seq) >= share;
		*n_prefill += added;
		budget -= added;
		n_step += added > 0;
	}
	for (int i = 0; i < n_step; i++)
	{
		scheduler->step_seqs[i].blocks = scheduler->step_jobs[i]->seq->blocks;
		scheduler->step_seqs[i].n_blocks = scheduler->step_jobs[i]->seq->n_blocks;
	}
	return n_step;
}

/* Tell the other threads which jobs the step holds; afterwards that it is over. */
static void
mark_step(Dsv3Scheduler *scheduler, int n_step, bool begin)
{
	pthread_mutex_lock(&scheduler->lock);
	scheduler->live_in_step = 0;
	for (int i = 0; i < n_step; i++)
	{
		scheduler->step_jobs[i]->in_step = begin;
		scheduler->live_in_step += begin && !scheduler->step_jobs[i]->cancelled;
	}
	atomic_store(&scheduler->abort_step, begin && scheduler->live_in_step == 0);
	pthread_mutex_unlock(&scheduler->lock);
}

/*
 * Bring the budget nearer to steps of step_ms. Time that decoding takes anyway, known from steps without prompts, is not held
 * against the prompts, and they get half of step_ms in any case: many slow answers must not keep new ones from beginning.
 * The budget grows only when a step used all of it, and no change is larger than a factor of two, so that one slow step (files
 * being read for the first time) does not matter for long.
 */
static void
adapt_budget(Dsv3Scheduler *scheduler, uint64_t step_us, bool with_decoding, bool budget_used)
{
	double whole = scheduler->options.step_ms * 1000.0;
	double decoding = with_decoding ? scheduler->decode_us : 0.0;
	double target = whole - decoding > whole / 2 ? whole - decoding : whole / 2;
	double spent = (double) step_us - decoding > (double) step_us / 4 ? (double) step_us - decoding
																	  : (double) step_us / 4;
	double factor = target / (spent > 1.0 ? spent : 1.0);

	if (factor > 2.0)
		factor = 2.0;
	if (factor < 0.5)
		factor = 0.5;
	if (factor > 1.0 && !budget_used)
		return;
	scheduler->budget *= factor;
	if (scheduler->budget < MIN_BUDGET)
		scheduler->budget = MIN_BUDGET;
	if (scheduler->budget > MAX_BUDGET)
		scheduler->budget = MAX_BUDGET;
	atomic_store(&scheduler->stat_budget, (int) scheduler->budget);
}

/* Rows of whole logits that a part of the step makes. */
static size_t
whole_rows(const Dsv3StepSeq *part)
{
	size_t whole = 0;

	for (int row = 0; row < dsv3_step_wanted(part); row++)
		whole += part->picked == NULL || part->picked[row].n == 0;
	return whole;
}

/* What the step computed for one job: sample, deliver. logits: its whole rows. */
static void
use_step(Dsv3Scheduler *scheduler, Job *job, const Dsv3StepSeq *part, const float *logits, uint64_t now)
{
	Dsv3Sequence *seq = job->seq;
	size_t vocab = (size_t) scheduler->backend->info.vocab_size;
	size_t first = (size_t) part->position + (size_t) (part->n_tokens - dsv3_step_wanted(part));
	size_t before = seq->out_tokens.count;
	bool ok = true;
	Dsv3Error err;

	seq->computed = (size_t) part->position + (size_t) part->n_tokens;
	if (part->want == DSV3_WANT_NONE)
		return;
	for (size_t row = first; ok && row < seq->computed && !seq->finished; row++)
	{
		ok = dsv3_sequence_use_row(seq, &scheduler->sampler, row, logits, &err);
		if (part->picked == NULL || part->picked[row - first].n == 0)
			logits += vocab;
	}
	if (!ok || (!seq->finished && !dsv3_sequence_plan(seq, &err)))
	{
		leave_batch(scheduler, job);
		fail_job(scheduler, job, &err);
		return;
	}
	atomic_fetch_add(&scheduler->n_output_tokens, seq->out_tokens.count - before);
	if (job->first_token_us == 0)
		job->first_token_us = job->last_delta_us = now;
	if (seq->finished)
	{
		leave_batch(scheduler, job);
		send_done(scheduler, job, now);
	}
	else if (seq->out_tokens.count > before)
		send_delta(scheduler, job, now);
}

static void
run_step(Dsv3Scheduler *scheduler, int n_step, size_t n_prefill, bool budget_used)
{
	size_t vocab = (size_t) scheduler->backend->info.vocab_size;
	size_t rows = 0;
	size_t tokens = 0;
	uint64_t start = now_us();
	uint64_t end;
	Dsv3Error err;
	bool ok;

	for (int i = 0; i < n_step; i++)
	{
		const Dsv3StepSeq *part = &scheduler->step_seqs[i];

		rows += whole_rows(part);
		tokens += (size_t) part->n_tokens;
		if (scheduler->step_jobs[i]->first_step_us == 0)
			scheduler->step_jobs[i]->first_step_us = start;
	}
	mark_step(scheduler, n_step, true);
	ok = reserve_logits(scheduler, rows, &err) &&
		 scheduler->backend->ops->step(scheduler->backend, scheduler->step_seqs, n_step, scheduler->logits,
									   &scheduler->abort_step, &err);
	mark_step(scheduler, n_step, false);
	end = now_us();
	atomic_fetch_add(&scheduler->n_steps, 1);
	atomic_fetch_add(&scheduler->n_step_us, end - start);
	if (!ok)
	{
		/* An aborted step leaves its jobs where they were: they are cancelled, and dropped in the next turn. */
		for (int i = 0; i < n_step && strcmp(err.sqlstate, DSV3_ERR_CANCELLED) != 0; i++)
		{
			leave_batch(scheduler, scheduler->step_jobs[i]);
			fail_job(scheduler, scheduler->step_jobs[i], &err);
		}
		return;
	}
	atomic_fetch_add(&scheduler->n_computed_tokens, tokens);
	if (n_prefill > 0)
		adapt_budget(scheduler, end - start, tokens > n_prefill, budget_used);
	else
		scheduler->decode_us += ((double) (end - start) - scheduler->decode_us) / 4;
	rows = 0;
	for (int i = 0; i < n_step; i++)
	{
		const Dsv3StepSeq *part = &scheduler->step_seqs[i];
		size_t n_whole = whole_rows(part); /* before the next step is planned */

		/* The memory of logits may not exist yet when nothing wanted any. */
		use_step(scheduler, scheduler->step_jobs[i], part,
				 rows < scheduler->logits_rows ? scheduler->logits + rows * vocab : NULL, end);
		rows += n_whole;
	}
}

Dsv3StepResult
dsv3_scheduler_step(Dsv3Scheduler *scheduler)
{
	size_t n_prefill;
	bool budget_used;
	bool paused;
	int n_step;

	atomic_fetch_add(&scheduler->progress, 1);
	drop_jobs(scheduler);
	if (!scheduler->has_text_thread)
	{
		prepare_all(scheduler);
		drop_jobs(scheduler); /* answers that need no step */
	}
	paused = scheduler->options.has_room && !scheduler->options.has_room(scheduler->options.arg);
	pthread_mutex_lock(&scheduler->lock);
	scheduler->paused = paused;
	pthread_mutex_unlock(&scheduler->lock);
	if (paused)
		return DSV3_STEP_PAUSED;
	admit(scheduler);
	n_step = build_step(scheduler, &n_prefill, &budget_used);
	if (n_step > 0)
		run_step(scheduler, n_step, n_prefill, budget_used);
	atomic_store(&scheduler->stat_batch, scheduler->n_batch);
	atomic_store(&scheduler->stat_free, scheduler->n_free);
	return n_step > 0 ? DSV3_STEP_WORKED : DSV3_STEP_IDLE;
}

/* -- running -- */

/* Sleep until something arrives, at most until the next deadline. Call with the lock held. */
static void
sleep_until_woken(Dsv3Scheduler *scheduler)
{
	uint64_t deadline = 0;

	for (Job *job = scheduler->jobs; job; job = job->next)
	{
		if (job->deadline_us != 0 && job->place != JOB_IN_TEXT &&
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
	job->id = request->id;
	job->role = request->role;
	job->priority = request->priority;
	job->submit_us = now_us();
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
	scheduler->free_blocks = malloc((size_t) options->kv_blocks * sizeof(int32_t));
	scheduler->roles = calloc((size_t) options->max_requests, sizeof(*scheduler->roles));
	if (!scheduler->batch || !scheduler->step_jobs || !scheduler->step_seqs || !scheduler->free_blocks ||
		!scheduler->roles)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the scheduler");
	/* Low numbers on top: a small load touches a small part of the cache's memory. */
	for (int i = options->kv_blocks - 1; i >= 0; i--)
		scheduler->free_blocks[scheduler->n_free++] = i;
	return dsv3_sampler_open(&scheduler->sampler, scheduler->backend->sample_limit, err);
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
	scheduler->opened_us = now_us();
	scheduler->kv_limited = rows < backend->info.max_positions;
	scheduler->context = scheduler->kv_limited ? (int) rows : backend->info.max_positions;
	if (!allocate(scheduler, err) || !backend->ops->kv_open(backend, options->kv_blocks, err))
		goto fail;
	atomic_store(&scheduler->stat_free, scheduler->n_free);
	atomic_store(&scheduler->stat_budget, FIRST_BUDGET);
	if (options->text_thread)
	{
		if (pthread_create(&scheduler->text_thread, NULL, text_main, scheduler) != 0)
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
	pthread_cond_destroy(&scheduler->wake);
	pthread_cond_destroy(&scheduler->text_wake);
	pthread_mutex_destroy(&scheduler->lock);
	dsv3_sampler_close(&scheduler->sampler);
	free(scheduler->batch);
	free(scheduler->step_jobs);
	free(scheduler->step_seqs);
	free(scheduler->free_blocks);
	free(scheduler->roles);
	free(scheduler->logits);
	free(scheduler);
}

int
dsv3_scheduler_context(const Dsv3Scheduler *scheduler)
{
	return scheduler->context;
}
