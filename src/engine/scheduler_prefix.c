/*
 * scheduler_prefix.c
 *	  Rows that another request has computed already: finding them, waiting for them, leaving them to others.
 *
 * Every full block of a job with a scope has a name (prefix_name.h). As soon as its rows are computed the block is published under
 * it. A job takes what it finds under the names of its own blocks, in order from the first: when it is admitted, and again
 * whenever it stands at a block's beginning, since others go on meanwhile. If another prompt in the same step is about to
 * compute the very block, the job waits for it; so of many requests with one prefix that come together, one computes it.
 *
 * Rows whose logits are wanted are always computed: blocks are taken up to score_from only. What a SCORE writes behind its prompt
 * is written over for the next choice and therefore never published, nor is the block in which the prompt ends.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/scheduler_state.h"

/* Make the names of the job's full blocks as far as they are missing. What cannot be named is computed and not shared. */
static void
make_names(Dsv3Scheduler *scheduler, Job *job)
{
	const Dsv3Sequence *seq = job->seq;
	const Dsv3Bytes *scope = &seq->request->scope;
	size_t fixed = seq->tokens.count;
	int n;

	if (seq->request->kind == DSV3_REQUEST_SCORE && fixed > seq->n_prompt - 1)
		fixed = seq->n_prompt - 1;
	n = scope->data ? (int) (fixed / DSV3_KV_BLOCK) : 0;
	if (n > job->names_room)
	{
		int room = n + n / 2;
		Dsv3BlockName *grown = realloc(job->names, (size_t) room * sizeof(*grown));

		if (grown == NULL)
			return;
		job->names = grown;
		job->names_room = room;
	}
	while (job->n_names < n &&
		   dsv3_namer_name(scheduler->namer, job->n_names > 0 ? &job->names[job->n_names - 1] : NULL,
						   scope->data, scope->len, seq->tokens.ids + (size_t) job->n_names * DSV3_KV_BLOCK,
						   DSV3_KV_BLOCK, &job->names[job->n_names]))
		job->n_names++;
}

int
dsv3_prefix_most_blocks(Dsv3Scheduler *scheduler, Job *job)
{
	int limit = (int) (job->seq->score_from / DSV3_KV_BLOCK);

	make_names(scheduler, job);
	return limit < job->n_names ? limit : job->n_names;
}

int
dsv3_prefix_kept_blocks(Dsv3Scheduler *scheduler, Job *job, bool last_resort)
{
	int most = dsv3_prefix_most_blocks(scheduler, job);
	int kept = 0;

	for (int i = 0; i < most; i++)
	{
		int32_t block = dsv3_kv_cache_find(scheduler->cache, &job->names[i]);

		if (block == DSV3_NO_BLOCK)
			break;
		kept += dsv3_kv_cache_is_kept(scheduler->cache, block, last_resort);
	}
	return kept;
}

/* Put a block that others hold or held in place i of the job's table. */
static void
share_block(Dsv3Scheduler *scheduler, Dsv3Sequence *seq, int i, int32_t block)
{
	dsv3_kv_cache_hold(scheduler->cache, block);
	if (i < seq->n_blocks)
		dsv3_kv_cache_release(scheduler->cache, seq->blocks[i]);
	else
		seq->n_blocks++;
	seq->blocks[i] = block;
	dsv3_disk_want(scheduler, block);
}

void
dsv3_prefix_adopt(Dsv3Scheduler *scheduler, Job *job)
{
	Dsv3Sequence *seq = job->seq;
	size_t end;
	int most;

	if (seq->computed % DSV3_KV_BLOCK != 0)
		return;
	most = dsv3_prefix_most_blocks(scheduler, job);
	for (int i = (int) (seq->computed / DSV3_KV_BLOCK); i < most; i++)
	{
		int32_t block = dsv3_kv_cache_find(scheduler->cache, &job->names[i]);

		if (block == DSV3_NO_BLOCK)
			break;
		share_block(scheduler, seq, i, block);
		seq->computed += DSV3_KV_BLOCK;
	}
	/* What it had before it gave way is its own work, found again. */
	end = seq->computed < seq->n_prompt ? seq->computed : seq->n_prompt;
	if (end > job->reached)
	{
		job->cached += end - job->reached;
		atomic_fetch_add(&scheduler->n_cached_tokens, end - job->reached);
		job->reached = end;
	}
}

void
dsv3_prefix_publish(Dsv3Scheduler *scheduler, Job *job, size_t from)
{
	Dsv3Sequence *seq = job->seq;
	int end = (int) (seq->computed / DSV3_KV_BLOCK);

	if (seq->computed > job->reached)
		job->reached = seq->computed;
	if (end <= (int) (from / DSV3_KV_BLOCK))
		return;
	make_names(scheduler, job);
	for (int i = (int) (from / DSV3_KV_BLOCK); i < end && i < job->n_names; i++)
	{
		int32_t other = dsv3_kv_cache_find(scheduler->cache, &job->names[i]);

		/* Two that came to it by different ways have computed the same rows: one copy is enough. */
		if (other != DSV3_NO_BLOCK)
			share_block(scheduler, seq, i, other);
		else
			dsv3_kv_cache_publish(scheduler->cache, seq->blocks[i], &job->names[i]);
	}
}

/* The name of the block whose rows the job computes next, NULL when it has none. */
static const Dsv3BlockName *
next_name(const Job *job)
{
	int i = (int) (job->seq->computed / DSV3_KV_BLOCK);

	return i < job->n_names ? &job->names[i] : NULL;
}

bool
dsv3_prefix_must_wait(const Job *job, Job *const *others, int n_others)
{
	const Dsv3BlockName *name = next_name(job);

	if (name == NULL || job->seq->computed % DSV3_KV_BLOCK != 0 ||
		job->seq->computed + DSV3_KV_BLOCK > job->seq->score_from)
		return false;
	for (int i = 0; i < n_others; i++)
	{
		const Dsv3BlockName *other = next_name(others[i]);

		if (other && memcmp(other->bytes, name->bytes, sizeof(name->bytes)) == 0)
			return true;
	}
	return false;
}
