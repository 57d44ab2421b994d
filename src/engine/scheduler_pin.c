/*
 * scheduler_pin.c
 *	  Requests that end with their prompt: pins, and routing (routing.h); and emptying the cache.
 *
 * A PIN is a prompt that is computed, or found, and has no answer: its blocks get pins, as many as requests pinned them. Pins may take
 * half of the cache, so that there is always room to work in. They are the memory's: they end with the engine, but pinned
 * blocks go to disk as well.
 */
#include <string.h>

#include "engine/routing.h"
#include "engine/scheduler_state.h"

/* Pin the job's blocks; false and *err when too much would be pinned. */
static bool
pin_blocks(Dsv3Scheduler *scheduler, Job *job, Dsv3Error *err)
{
	Dsv3Sequence *seq = job->seq;
	int n = dsv3_prefix_most_blocks(scheduler, job);

	dsv3_prefix_publish(scheduler, job, 0); /* the cache may have been emptied meanwhile */
	if (dsv3_kv_cache_counts(scheduler->cache).pinned + n > scheduler->options.kv_blocks / 2)
	{
		dsv3_error(err, DSV3_ERR_LIMIT_EXCEEDED, "pinned prefixes may take half of the cache");
		dsv3_error_detail(err, "%d of %d blocks are pinned, this prefix has %d.",
						  dsv3_kv_cache_counts(scheduler->cache).pinned, scheduler->options.kv_blocks, n);
		return dsv3_error_hint(err, "Unpin others with dsv3_unpin_prefix, or raise dsv3.kv_cache_size.");
	}
	for (int i = 0; i < n; i++)
	{
		dsv3_kv_cache_pin(scheduler->cache, seq->blocks[i]);
		dsv3_disk_want(scheduler, seq->blocks[i]);
	}
	seq->n_prompt = (size_t) n * DSV3_KV_BLOCK;
	return true;
}

bool
dsv3_finish_prompts(Dsv3Scheduler *scheduler)
{
	bool found = false;

	for (int i = 0; i < scheduler->n_batch;)
	{
		Job *job = scheduler->batch[i];
		bool routing = job->seq->routing != NULL;
		Dsv3Error err;
		bool ok;

		if ((!routing && job->seq->request->kind != DSV3_REQUEST_PIN) ||
			job->seq->computed < job->seq->tokens.count)
		{
			i++;
			continue;
		}
		found = true;
		ok = routing ? dsv3_routing_json(job->seq, &err) : pin_blocks(scheduler, job, &err);
		dsv3_leave_batch(scheduler, job);
		if (ok)
			dsv3_send_done(scheduler, job, now_us());
		else
			dsv3_job_fail(scheduler, job, &err);
	}
	return found;
}

void
dsv3_unpin(Dsv3Scheduler *scheduler, Job *job)
{
	int most = dsv3_prefix_most_blocks(scheduler, job);

	job->seq->n_prompt = 0;
	for (int i = 0; i < most; i++)
	{
		int32_t block = dsv3_kv_cache_find(scheduler->cache, &job->names[i]);

		if (block != DSV3_NO_BLOCK && dsv3_kv_cache_unpin(scheduler->cache, block))
			job->seq->n_prompt += DSV3_KV_BLOCK;
	}
}

void
dsv3_reset_cache(Dsv3Scheduler *scheduler, Job *job)
{
	Dsv3AtOnce nothing = {0};

	dsv3_kv_cache_forget(scheduler->cache);
	/* Memory alone is emptied to see what the disk has. */
	if (scheduler->disk && !job->request->cache_memory)
		dsv3_kv_disk_reset(scheduler->disk);
	dsv3_send_at_once(scheduler, job, &nothing);
}
