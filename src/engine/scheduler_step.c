/*
 * scheduler_step.c
 *	  One step: which tokens of which jobs, the backend's work, and what becomes of its logits.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/scheduler_state.h"

#define MIN_BUDGET      32 /* prompt tokens of a step at the least */
#define MAX_BUDGET      4096
#define MAX_SCORED_ROWS 64 /* rows of a step's prompts whose logits are wanted: bounds the memory of logits */

bool
dsv3_reserve_logits(Dsv3Scheduler *scheduler, size_t rows, Dsv3Error *err)
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
	if (n == missing(seq) && part->want != DSV3_WANT_NONE)
	{
		/* Behind the last token its drafts, as far as the blocks reach; each has a row of its own. */
		size_t room = (size_t) seq->n_blocks * DSV3_KV_BLOCK - seq->tokens.count;

		part->picked = dsv3_sequence_picked(seq);
		n_drafts = room < (size_t) seq->n_drafts ? room : (size_t) seq->n_drafts;
		if (part->want == DSV3_WANT_LAST || part->picked)
			part->want = 1 + (int) n_drafts;
	}
	part->routing = seq->routing;
	part->tokens = seq->tokens.ids + seq->computed;
	part->n_tokens = (int) (n + n_drafts);
	part->position = (int) seq->computed;
	scheduler->step_jobs[at] = job;
	return n;
}

/* The prompts that are worked on next, into scheduler->prompts; returns how many: those of the first priority that has some, without
 * those that wait for a block which one of the others computes or the disk has. */
static int
choose_prompts(Dsv3Scheduler *scheduler)
{
	uint32_t first_priority = UINT32_MAX;
	int n = 0;

	for (int i = 0; i < scheduler->n_batch; i++)
	{
		Job *job = scheduler->batch[i];

		if (!is_decoding(job->seq) && job->priority < first_priority)
			first_priority = job->priority;
	}
	for (int i = 0; i < scheduler->n_batch; i++)
	{
		Job *job = scheduler->batch[i];

		if (is_decoding(job->seq) || job->priority != first_priority)
			continue;
		dsv3_prefix_adopt(scheduler, job);
		if (!dsv3_disk_fetch(scheduler, job) && !dsv3_prefix_must_wait(job, scheduler->prompts, n))
			scheduler->prompts[n++] = job;
	}
	return n;
}

int
dsv3_build_step(Dsv3Scheduler *scheduler, size_t *n_prefill, bool *budget_used)
{
	int n_step = 0;
	int n_prompts;
	size_t budget =
		scheduler->fixed_budget > 0 ? (size_t) scheduler->fixed_budget : (size_t) scheduler->budget;
	size_t least = scheduler->fixed_budget > 0 ? 1 : MIN_BUDGET;
	size_t scored_left = SIZE_MAX; /* a decoded token's row is always there */

	for (int i = 0; i < scheduler->n_batch; i++)
	{
		Job *job = scheduler->batch[i];

		if (is_decoding(job->seq))
		{
			int before = scheduler->n_batch;

			if (!dsv3_grow(scheduler, job) || scheduler->n_batch != before)
			{
				/* The batch changed under us: start over, with fewer jobs. */
				i = -1;
				n_step = 0;
				continue;
			}
			(void) add_to_step(scheduler, n_step++, job, 1, &scored_left);
		}
	}
	n_prompts = choose_prompts(scheduler);
	*n_prefill = 0;
	*budget_used = false;
	scored_left = MAX_SCORED_ROWS;
	for (int i = 0; i < n_prompts && budget > 0; i++)
	{
		Job *job = scheduler->prompts[i];
		size_t share = budget / (size_t) (n_prompts - i);
		size_t added;

		if (share < least)
			share = budget < least ? budget : least;
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

void
dsv3_scheduler_fix_budget(Dsv3Scheduler *scheduler, int tokens)
{
	scheduler->fixed_budget = tokens;
}

size_t
dsv3_whole_rows(const Dsv3StepSeq *part)
{
	size_t whole = 0;

	for (int row = 0; row < dsv3_step_wanted(part); row++)
		whole += part->picked == NULL || part->picked[row].n == 0;
	return whole;
}

/* What the step computed for one job: sample, deliver. logits: its whole rows. False when the job ended, and is gone. */
static bool
use_step(Dsv3Scheduler *scheduler, Job *job, const Dsv3StepSeq *part, const float *logits, uint64_t now)
{
	Dsv3Sequence *seq = job->seq;
	size_t vocab = (size_t) scheduler->backend->info.vocab_size;
	size_t first = (size_t) part->position + (size_t) (part->n_tokens - dsv3_step_wanted(part));
	size_t before = seq->out_tokens.count;
	size_t known = seq->tokens.count;
	bool guessed = seq->guessed && (size_t) part->position + (size_t) part->n_tokens > known;
	int32_t guess = guessed ? seq->tokens.ids[known] : -1;
	bool ok = true;
	Dsv3Error err;

	seq->computed = (size_t) part->position + (size_t) part->n_tokens;
	if (part->want == DSV3_WANT_NONE)
	{
		dsv3_prefix_publish(scheduler, job, (size_t) part->position);
		return true;
	}
	for (size_t row = first; ok && row < seq->computed && !seq->finished; row++)
	{
		ok = dsv3_sequence_use_row(seq, &scheduler->sampler, row, logits, &err);
		if (part->picked == NULL || part->picked[row - first].n == 0)
			logits += vocab;
	}
	if (!ok || (!seq->finished && !dsv3_sequence_plan(seq, &err)))
	{
		dsv3_leave_batch(scheduler, job);
		dsv3_job_fail(scheduler, job, &err);
		return false;
	}
	if (guessed)
		dsv3_note_draft(scheduler, job, seq->tokens.ids[known] == guess);
	dsv3_prefix_publish(scheduler, job, (size_t) part->position);
	atomic_fetch_add(&scheduler->n_output_tokens, seq->out_tokens.count - before);
	if (job->first_token_us == 0)
		job->first_token_us = job->last_delta_us = now;
	if (seq->out_tokens.count > before)
	{
		if (job->last_token_us != 0)
			job->gaps[dsv3_latency_class(now - job->last_token_us)]++;
		job->last_token_us = now;
	}
	if (seq->finished)
	{
		dsv3_leave_batch(scheduler, job);
		dsv3_send_done(scheduler, job, now);
		return false;
	}
	if (seq->out_tokens.count > before)
		dsv3_send_delta(scheduler, job, now);
	return true;
}

void
dsv3_run_step(Dsv3Scheduler *scheduler, int n_step, size_t n_prefill, bool budget_used)
{
	size_t vocab = (size_t) scheduler->backend->info.vocab_size;
	size_t rows = 0;
	size_t tokens = 0;
	int wanted = 0;
	int n_decoding = 0;
	uint64_t start = now_us();
	uint64_t end;
	Dsv3Error err;
	bool ok;

	for (int i = 0; i < n_step; i++)
	{
		const Dsv3StepSeq *part = &scheduler->step_seqs[i];

		rows += dsv3_whole_rows(part);
		tokens += (size_t) part->n_tokens;
		if (scheduler->step_jobs[i]->first_step_us == 0)
			scheduler->step_jobs[i]->first_step_us = start;
	}
	mark_step(scheduler, n_step, true);
	ok = dsv3_reserve_logits(scheduler, rows, &err) &&
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
			dsv3_leave_batch(scheduler, scheduler->step_jobs[i]);
			dsv3_job_fail(scheduler, scheduler->step_jobs[i], &err);
		}
		return;
	}
	atomic_fetch_add(&scheduler->n_computed_tokens, tokens);
	if (n_prefill > 0)
		adapt_budget(scheduler, end - start, tokens > n_prefill, budget_used);
	else
	{
		scheduler->decode_us += ((double) (end - start) - scheduler->decode_us) / 4;
		dsv3_speculation_step(&scheduler->speculation, (int64_t) tokens, end - start);
	}
	rows = 0;
	for (int i = 0; i < n_step; i++)
	{
		const Dsv3StepSeq *part = &scheduler->step_seqs[i];
		Job *job = scheduler->step_jobs[i];
		size_t n_whole = dsv3_whole_rows(part); /* before the next step is planned */
		int n_wanted = dsv3_step_wanted(part);

		/* The memory of logits may not exist yet when nothing wanted any. */
		if (use_step(scheduler, job, part,
					 rows < scheduler->logits_rows ? scheduler->logits + rows * vocab : NULL, end) &&
			n_wanted > 0)
		{
			int unused = part->position + part->n_tokens - (int) job->seq->computed;

			n_decoding += is_decoding(job->seq);
			/* from the row that the last token was sampled from */
			dsv3_may_draft(scheduler, job, wanted + n_wanted - 1 - unused);
		}
		rows += n_whole;
		wanted += n_wanted;
	}
	dsv3_make_drafts(scheduler, n_decoding);
}
