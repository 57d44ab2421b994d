/*
 * scheduler_stats.c
 *	  The scheduler's counters as JSON, for STATS and dsv3_stat_engine.
 */
#include <stdlib.h>

#include <jansson.h>

#include "engine/scheduler_state.h"

char *
dsv3_scheduler_stats(Dsv3Scheduler *scheduler)
{
	int places[N_JOB_PLACES] = {0};
	uint64_t oldest = 0;
	json_t *stats = json_object();
	char *text;

	pthread_mutex_lock(&scheduler->lock);
	for (Job *job = scheduler->jobs; job; job = job->next)
	{
		places[job->place]++;
		if (job->place != JOB_BATCH && (oldest == 0 || job->submit_us < oldest))
			oldest = job->submit_us;
	}
	pthread_mutex_unlock(&scheduler->lock);

#define PUT(name, value) json_object_set_new(stats, name, json_integer((json_int_t) (value)))
	PUT("uptime_us", now_us() - scheduler->opened_us);
	PUT("requests_submitted", atomic_load(&scheduler->n_submitted));
	PUT("requests_done", atomic_load(&scheduler->n_done));
	PUT("requests_failed", atomic_load(&scheduler->n_failed));
	PUT("requests_cancelled", atomic_load(&scheduler->n_cancelled));
	PUT("running", places[JOB_BATCH]);
	PUT("queued", places[JOB_TEXT] + places[JOB_IN_TEXT] + places[JOB_READY]);
	PUT("oldest_wait_us", oldest ? now_us() - oldest : 0);
	PUT("prompt_tokens", atomic_load(&scheduler->n_prompt_tokens));
	PUT("cached_tokens", atomic_load(&scheduler->n_cached_tokens));
	PUT("output_tokens", atomic_load(&scheduler->n_output_tokens));
	PUT("computed_tokens", atomic_load(&scheduler->n_computed_tokens));
	PUT("drafted_tokens", atomic_load(&scheduler->n_drafted));
	PUT("accepted_tokens", atomic_load(&scheduler->n_accepted));
	PUT("steps", atomic_load(&scheduler->n_steps));
	PUT("step_us", atomic_load(&scheduler->n_step_us));
	PUT("preemptions", atomic_load(&scheduler->n_preempted));
	PUT("prefill_budget", atomic_load(&scheduler->stat_budget));
	PUT("kv_blocks", scheduler->options.kv_blocks);
	PUT("kv_blocks_used", atomic_load(&scheduler->stat_held));
	PUT("kv_blocks_cached", atomic_load(&scheduler->stat_cached));
	PUT("kv_blocks_pinned", atomic_load(&scheduler->stat_pinned));
	PUT("kv_blocks_evicted", atomic_load(&scheduler->stat_evicted));
	PUT("kv_disk_blocks", atomic_load(&scheduler->stat_disk_places));
	PUT("kv_disk_blocks_used", atomic_load(&scheduler->stat_disk_records));
	PUT("kv_disk_loaded", atomic_load(&scheduler->stat_disk_loaded));
	PUT("kv_disk_stored", atomic_load(&scheduler->stat_disk_stored));
	PUT("kv_disk_damaged", atomic_load(&scheduler->stat_disk_lost));
	PUT("kv_disk_not_stored", atomic_load(&scheduler->stat_disk_unstored));
	PUT("kv_block_tokens", DSV3_KV_BLOCK);
#undef PUT
	text = json_dumps(stats, JSON_COMPACT);
	json_decref(stats);
	return text;
}

bool
dsv3_scheduler_expert_tokens(const Dsv3Scheduler *scheduler, Dsv3ExpertTokens *out)
{
	const Dsv3Backend *backend = scheduler->backend;

	out->n_layers = (size_t) backend->info.n_layers;
	out->n_experts = (size_t) backend->info.n_routed_experts;
	out->counts = NULL;
	if (backend->expert_counts == NULL)
		return true;
	out->counts = calloc(out->n_layers * out->n_experts, sizeof(*out->counts));
	for (size_t i = 0; out->counts && i < out->n_layers * out->n_experts; i++)
		out->counts[i] = atomic_load_explicit(&backend->expert_counts[i], memory_order_relaxed);
	return out->counts != NULL;
}
