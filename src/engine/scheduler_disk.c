/*
 * scheduler_disk.c
 *	  Between the cache's memory and its disk (kv_disk.h): what is written, and who waits for what is read.
 *
 * A block is written when it is used a second time; most blocks never are, and are not worth the disk. It is held while its rows are
 * written. Blocks wait for their turn in a ring, each at most once; one that has lost its name meanwhile is passed over.
 *
 * A prompt whose next block is on disk waits for it, while others are computed. The rows are read into a buffer and copied to the
 * block that the job has for them anyway; if the job is gone they are dropped.
 */
#include <string.h>

#include "engine/scheduler_state.h"

#define READ_AHEAD 4 /* blocks of one job asked for at one time */

void
dsv3_disk_want(Dsv3Scheduler *scheduler, int32_t block)
{
	int n_blocks = scheduler->options.kv_blocks;

	if (scheduler->disk == NULL || scheduler->is_to_store[block])
		return;
	scheduler->is_to_store[block] = true;
	scheduler->to_store[(scheduler->first_to_store + scheduler->n_to_store) % n_blocks] = block;
	scheduler->n_to_store++;
}

static void
start_stores(Dsv3Scheduler *scheduler)
{
	while (scheduler->n_to_store > 0)
	{
		int32_t block = scheduler->to_store[scheduler->first_to_store];
		const Dsv3BlockName *name = dsv3_kv_cache_name(scheduler->cache, block);
		bool full = false;

		if (name && dsv3_kv_disk_store(scheduler->disk, name, block,
									   scheduler->backend->ops->kv_block(scheduler->backend, block), &full))
			dsv3_kv_cache_hold(scheduler->cache, block);
		if (full)
			return;
		scheduler->is_to_store[block] = false;
		scheduler->first_to_store = (scheduler->first_to_store + 1) % scheduler->options.kv_blocks;
		scheduler->n_to_store--;
	}
}

/* Does the job stand before the block of this name? */
static bool
waits_for(Dsv3Scheduler *scheduler, Job *job, const Dsv3BlockName *name)
{
	int i = (int) (job->seq->computed / DSV3_KV_BLOCK);

	return job->seq->computed % DSV3_KV_BLOCK == 0 && i < dsv3_prefix_most_blocks(scheduler, job) &&
		   memcmp(job->names[i].bytes, name->bytes, sizeof(name->bytes)) == 0;
}

/* Only the next block of a job is filled: a named block must not lie where the job may yet write. */
static void
take_rows(Dsv3Scheduler *scheduler, const Dsv3KvDiskEvent *event)
{
	/* Somebody may have computed them meanwhile. */
	if (dsv3_kv_cache_find(scheduler->cache, &event->name) != DSV3_NO_BLOCK)
		return;
	for (int i = 0; i < scheduler->n_batch; i++)
	{
		Job *job = scheduler->batch[i];
		int32_t block;

		if (!waits_for(scheduler, job, &event->name))
			continue;
		block = job->seq->blocks[job->seq->computed / DSV3_KV_BLOCK];
		memcpy(scheduler->backend->ops->kv_block(scheduler->backend, block), event->data,
			   scheduler->backend->kv_block_bytes);
		dsv3_kv_cache_publish(scheduler->cache, block, &event->name);
		dsv3_prefix_adopt(scheduler, job);
		return;
	}
}

void
dsv3_disk_turn(Dsv3Scheduler *scheduler)
{
	Dsv3KvDiskEvent event;

	if (scheduler->disk == NULL)
		return;
	while (dsv3_kv_disk_next(scheduler->disk, &event))
	{
		if (event.type == DSV3_DISK_LOADED)
			take_rows(scheduler, &event);
		else if (event.type == DSV3_DISK_STORED)
			dsv3_kv_cache_release(scheduler->cache, event.block);
	}
	start_stores(scheduler);
}

bool
dsv3_disk_fetch(Dsv3Scheduler *scheduler, Job *job)
{
	int first = (int) (job->seq->computed / DSV3_KV_BLOCK);
	int most;

	if (scheduler->disk == NULL || job->seq->computed % DSV3_KV_BLOCK != 0)
		return false;
	most = dsv3_prefix_most_blocks(scheduler, job);
	if (first >= most || !dsv3_kv_disk_load(scheduler->disk, &job->names[first]))
		return false;
	for (int i = first + 1; i < most && i < first + READ_AHEAD; i++)
	{
		if (dsv3_kv_cache_find(scheduler->cache, &job->names[i]) == DSV3_NO_BLOCK)
			(void) dsv3_kv_disk_load(scheduler->disk, &job->names[i]);
	}
	return true;
}
