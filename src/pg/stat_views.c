/*
 * stat_views.c
 *	  The statistics as rows: dsv3_stat_engine, dsv3_stat_latency, dsv3_stat_failures, dsv3_stat_roles, dsv3_stat_experts, and
 *	  dsv3_stat_reset().
 *
 * Sums over everybody are everybody's to see. Of roles one sees one's own, members of pg_read_all_stats see all.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "catalog/pg_type.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "pg/activity.h"
#include "pg/client.h"
#include "pg/row.h"
#include "pg/stat.h"
#include "pg/stat_views.h"

PG_FUNCTION_INFO_V1(dsv3_stat_engine_1_0);
PG_FUNCTION_INFO_V1(dsv3_stat_latency_1_0);
PG_FUNCTION_INFO_V1(dsv3_stat_failures_1_0);
PG_FUNCTION_INFO_V1(dsv3_stat_roles_1_0);
PG_FUNCTION_INFO_V1(dsv3_stat_experts_1_0);
PG_FUNCTION_INFO_V1(dsv3_stat_reset_1_0);

const char *const dsv3_latency_names[DSV3_N_LATENCIES] = {
	[DSV3_LATENCY_REQUEST] = "e2e_request_latency",  [DSV3_LATENCY_FIRST_TOKEN] = "time_to_first_token",
	[DSV3_LATENCY_TOKEN] = "inter_token_latency",    [DSV3_LATENCY_QUEUE] = "request_queue_time",
	[DSV3_LATENCY_PREFILL] = "request_prefill_time", [DSV3_LATENCY_DECODE] = "request_decode_time",
};

/* dsv3_stat_engine() -> one row of sums since stats_since */
Datum
dsv3_stat_engine_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Row row = {.n = 0};
	const Dsv3Counters *sums;
	Dsv3Snapshot *now;
	Jsonb *engine;

	dsv3_require_preload();
	now = dsv3_take_snapshot();
	sums = &now->stats.counters;
	dsv3_row_int8(&row, sums->requests);
	dsv3_row_int8(&row, sums->completed);
	dsv3_row_int8(&row, sums->failed);
	dsv3_row_int8(&row, sums->cancelled);
	dsv3_row_int8(&row, now->stats.refused);
	dsv3_row_int8(&row, sums->nulled);
	dsv3_row_int8(&row, sums->resubmitted);
	dsv3_row_int8(&row, sums->prompt_tokens);
	dsv3_row_int8(&row, sums->cached_tokens);
	dsv3_row_int8(&row, sums->output_tokens);
	dsv3_row_int8(&row, now->shared.engine_restarts);
	dsv3_row_int4(&row, now->shared.n_slots);
	dsv3_row_int8(&row, (uint64) now->shared.n_chunks * DSV3_CHUNK_SIZE);
	dsv3_row_int8(&row, (uint64) now->shared.n_free_chunks * DSV3_CHUNK_SIZE);
	engine = dsv3_engine_json(now->shared.stats_json);
	dsv3_row_add(&row, engine ? JsonbPGetDatum(engine) : (Datum) 0, engine == NULL);
	dsv3_row_time(&row, now->stats.since);
	return dsv3_row_result(fcinfo, &row);
}

uint64
dsv3_histogram_count(const Dsv3Histogram *histogram)
{
	uint64 count = 0;

	for (int i = 0; i < DSV3_LATENCY_CLASSES; i++)
		count += histogram->classes[i];
	return count;
}

/* dsv3_stat_latency() -> a row for each kind of duration: edges in seconds, how many took at most so long */
Datum
dsv3_stat_latency_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Snapshot *now;
	Dsv3Rows rows;

	dsv3_require_preload();
	now = dsv3_take_snapshot();
	rows = dsv3_rows_begin(fcinfo);
	for (int latency = 0; latency < DSV3_N_LATENCIES; latency++)
	{
		const Dsv3Histogram *histogram = &now->stats.latencies[latency];
		Dsv3Row row = {.n = 0};
		Datum edges[DSV3_LATENCY_EDGES];
		Datum counts[DSV3_LATENCY_EDGES];
		uint64 count = 0;

		for (int i = 0; i < DSV3_LATENCY_EDGES; i++)
		{
			count += histogram->classes[i];
			edges[i] = Float8GetDatum(dsv3_latency_edges[i] / 1e6);
			counts[i] = Int64GetDatum((int64) count);
		}
		dsv3_row_text(&row, dsv3_latency_names[latency]);
		dsv3_row_add(&row,
					 PointerGetDatum(construct_array(edges, DSV3_LATENCY_EDGES, FLOAT8OID, sizeof(float8),
													 FLOAT8PASSBYVAL, TYPALIGN_DOUBLE)),
					 false);
		dsv3_row_add(&row,
					 PointerGetDatum(construct_array(counts, DSV3_LATENCY_EDGES, INT8OID, sizeof(int64),
													 FLOAT8PASSBYVAL, TYPALIGN_DOUBLE)),
					 false);
		dsv3_row_int8(&row, dsv3_histogram_count(histogram));
		dsv3_row_float8(&row, (double) histogram->sum_us / 1e6);
		dsv3_rows_put(&rows, &row);
	}
	return (Datum) 0;
}

/* dsv3_stat_failures() -> a row for each SQLSTATE that requests failed or were refused with */
Datum
dsv3_stat_failures_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Snapshot *now;
	Dsv3Rows rows;

	dsv3_require_preload();
	now = dsv3_take_snapshot();
	rows = dsv3_rows_begin(fcinfo);
	for (int i = 0; i < DSV3_MAX_STAT_FAILURES && now->stats.failures[i].sqlstate[0]; i++)
	{
		Dsv3Row row = {.n = 0};

		dsv3_row_text(&row, now->stats.failures[i].sqlstate);
		dsv3_row_int8(&row, now->stats.failures[i].n);
		dsv3_rows_put(&rows, &row);
	}
	return (Datum) 0;
}

/* dsv3_stat_roles() -> a row for each role the caller may see that has asked for something */
Datum
dsv3_stat_roles_1_0(PG_FUNCTION_ARGS)
{
	bool all;
	Dsv3Snapshot *now;
	Dsv3Rows rows;

	dsv3_require_preload();
	all = dsv3_reads_all_stats();
	now = dsv3_take_snapshot();
	rows = dsv3_rows_begin(fcinfo);
	for (int i = 0; i < now->stats.n_roles; i++)
	{
		const Dsv3RoleStats *role = &now->stats.roles[i];
		Oid id = now->stats.role_ids[i];
		Dsv3Row row = {.n = 0};

		if ((id != GetUserId() && !all) || role->requests + role->refused == 0)
			continue;
		dsv3_row_text(&row, GetUserNameFromId(id, true));
		dsv3_row_int8(&row, role->requests);
		dsv3_row_int8(&row, role->completed);
		dsv3_row_int8(&row, role->failed);
		dsv3_row_int8(&row, role->cancelled);
		dsv3_row_int8(&row, role->refused);
		dsv3_row_int8(&row, role->nulled);
		dsv3_row_int8(&row, role->prompt_tokens);
		dsv3_row_int8(&row, role->cached_tokens);
		dsv3_row_int8(&row, role->output_tokens);
		dsv3_row_float8(&row, (double) role->queue_us / 1e3);
		dsv3_row_float8(&row, (double) role->compute_us / 1e3);
		dsv3_row_time(&row, role->last_at);
		dsv3_rows_put(&rows, &row);
	}
	return (Datum) 0;
}

Dsv3LayerUse
dsv3_layer_use(const Dsv3Stats *stats, uint32 layer, uint64 *tokens)
{
	Dsv3LayerUse use = {0};
	uint64 most = 0;

	for (uint32 expert = 0; expert < stats->n_experts; expert++)
	{
		tokens[expert] = pg_atomic_read_u64(&dsv3_expert_stats[(size_t) layer * stats->n_experts + expert]);
		use.tokens += tokens[expert];
		most = Max(most, tokens[expert]);
	}
	if (most > 0)
		use.balancedness = (double) use.tokens / stats->n_experts / (double) most;
	return use;
}

/* dsv3_stat_experts() -> a row for each expert of each layer that has routed tokens */
Datum
dsv3_stat_experts_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Snapshot *now;
	uint64 *tokens;
	Dsv3Rows rows;

	dsv3_require_preload();
	now = dsv3_take_snapshot();
	rows = dsv3_rows_begin(fcinfo);
	tokens = palloc(sizeof(uint64) * (now->stats.n_experts + 1));
	for (uint32 layer = 0; layer < now->stats.n_layers; layer++)
	{
		Dsv3LayerUse use = dsv3_layer_use(&now->stats, layer, tokens);

		for (uint32 expert = 0; use.tokens > 0 && expert < now->stats.n_experts; expert++)
		{
			Dsv3Row row = {.n = 0};

			dsv3_row_int4(&row, (int32) layer);
			dsv3_row_int4(&row, (int32) expert);
			dsv3_row_int8(&row, tokens[expert]);
			dsv3_row_float8(&row, (double) tokens[expert] / (double) use.tokens);
			dsv3_row_float8(&row, use.balancedness);
			dsv3_rows_put(&rows, &row);
		}
	}
	return (Datum) 0;
}

/* dsv3_stat_reset() -> the time from which on is counted */
Datum
dsv3_stat_reset_1_0(PG_FUNCTION_ARGS)
{
	dsv3_require_preload();
	PG_RETURN_TIMESTAMPTZ(dsv3_stat_zero());
}
