/*
 * metrics.c
 *	  dsv3_metrics_text(): the statistics as Prometheus and its relatives read them.
 *
 * Names and suffixes are those that other engines' dashboards know, with "dsv3_" before them. Times are seconds, counts are counters that
 * only rise (a reset or a restart begins them again, which rate() knows), and no ratio is computed here: whoever asks divides.
 *
 * Two spellings of the same lines. OpenMetrics names a counter's family without "_total" and ends in "# EOF"; the older text format, which
 * `promtool check metrics` reads, wants the suffix there too.
 *
 * Experts are too many for one line each (DeepSeek-V3: 58 layers of 256), so they are summed in at most 32 groups of a layer. The
 * whole matrix is dsv3_stat_experts.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "common/version.h"
#include "pg/activity.h"
#include "pg/client.h"
#include "pg/stat_views.h"
#include "pg/text.h"

PG_FUNCTION_INFO_V1(dsv3_metrics_text_1_0);

#define MAX_GROUPS 32

typedef struct Metrics
{
	StringInfoData text;
	bool open_metrics;
	const char *model; /* value of the label that every line has, escaped */
	const char *name;  /* of the present family, without "dsv3_" and "_total" */
	bool counter;
} Metrics;

static const char *const finish_names[DSV3_N_FINISHES] = {
	[0] = "other",
	[DSV3_FINISH_STOP] = "stop",
	[DSV3_FINISH_LENGTH] = "length",
	[DSV3_FINISH_TOOL_CALLS] = "tool_calls",
};

/* A label's value, palloc'd. */
static const char *
escape(const char *value)
{
	StringInfoData out;

	initStringInfo(&out);
	for (; *value; value++)
	{
		if (*value == '\n')
			appendStringInfoString(&out, "\\n");
		else
		{
			if (*value == '"' || *value == '\\')
				appendStringInfoChar(&out, '\\');
			appendStringInfoChar(&out, *value);
		}
	}
	return out.data;
}

/* Begin a family: its help and type; the lines follow. */
static void
family(Metrics *m, const char *name, const char *type, const char *help)
{
	const char *suffix;

	m->name = name;
	m->counter = strcmp(type, "counter") == 0;
	suffix = m->counter && !m->open_metrics ? "_total" : "";
	appendStringInfo(&m->text, "# HELP dsv3_%s%s %s\n# TYPE dsv3_%s%s %s\n", name, suffix, help, name, suffix,
					 type);
}

/* A line of the present family. labels: further ones, each with a comma before it, or "". */
static void
line(Metrics *m, double value, const char *labels)
{
	appendStringInfo(&m->text, "dsv3_%s%s{model_name=\"%s\"%s} %.15g\n", m->name, m->counter ? "_total" : "",
					 m->model, labels, value);
}

static void
single(Metrics *m, const char *name, const char *type, const char *help, double value)
{
	family(m, name, type, help);
	line(m, value, "");
}

static void
histogram(Metrics *m, Dsv3Latency latency, const char *help, const Dsv3Histogram *histogram)
{
	char *name = psprintf("%s_seconds", dsv3_latency_names[latency]);
	uint64 count = 0;

	family(m, name, "histogram", help);
	for (int i = 0; i < DSV3_LATENCY_EDGES; i++)
	{
		count += histogram->classes[i];
		appendStringInfo(&m->text, "dsv3_%s_bucket{model_name=\"%s\",le=\"%.6g\"} " UINT64_FORMAT "\n", name,
						 m->model, dsv3_latency_edges[i] / 1e6, count);
	}
	count = dsv3_histogram_count(histogram);
	appendStringInfo(
		&m->text,
		"dsv3_%s_bucket{model_name=\"%s\",le=\"+Inf\"} " UINT64_FORMAT
		"\ndsv3_%s_count{model_name=\"%s\"} " UINT64_FORMAT "\ndsv3_%s_sum{model_name=\"%s\"} %.15g\n",
		name, m->model, count, name, m->model, count, name, m->model, (double) histogram->sum_us / 1e6);
}

static void
requests(Metrics *m, const Dsv3Snapshot *now)
{
	const Dsv3Stats *stats = &now->stats;

	single(m, "num_requests_running", "gauge", "Requests that the engine has.", now->running);
	single(m, "num_requests_waiting", "gauge", "Requests that wait for the engine.", now->queued);
	single(m, "queue_places", "gauge", "Requests that may wait or run at one time.", now->shared.n_slots);
	single(m, "requests", "counter", "Requests that were made.", (double) stats->counters.requests);
	family(m, "request_success", "counter", "Completed requests, by why the answer ended.");
	for (int i = 0; i < DSV3_N_FINISHES; i++)
		line(m, (double) stats->finished[i], psprintf(",finished_reason=\"%s\"", finish_names[i]));
	family(m, "request_failure", "counter", "Failed and refused requests, by SQLSTATE.");
	for (int i = 0; i < DSV3_MAX_STAT_FAILURES && stats->failures[i].sqlstate[0]; i++)
		line(m, (double) stats->failures[i].n, psprintf(",sqlstate=\"%s\"", stats->failures[i].sqlstate));
	single(m, "request_cancelled", "counter", "Requests that were cancelled or left by their caller.",
		   (double) stats->counters.cancelled);
	single(m, "request_refused", "counter",
		   "Calls that found the queue full, a quota used up or the engine down.", (double) stats->refused);
	single(m, "request_nulled", "counter", "Failures that became NULL.", (double) stats->counters.nulled);
	single(m, "request_resubmitted", "counter", "Times that requests were given to another engine.",
		   (double) stats->counters.resubmitted);
	single(m, "prompt_tokens", "counter", "Tokens of prompts.", (double) stats->counters.prompt_tokens);
	single(m, "generation_tokens", "counter", "Tokens of answers.", (double) stats->counters.output_tokens);
	single(m, "prefix_cache_queries", "counter", "Tokens of prompts that were looked for in the cache.",
		   (double) stats->counters.prompt_tokens);
	single(m, "prefix_cache_hits", "counter", "Tokens of prompts that were found in the cache.",
		   (double) stats->counters.cached_tokens);
}

static void
times(Metrics *m, const Dsv3Stats *stats)
{
	static const char *const help[DSV3_N_LATENCIES] = {
		[DSV3_LATENCY_REQUEST] = "From the call to the end of the answer.",
		[DSV3_LATENCY_FIRST_TOKEN] = "From the call to the first token.",
		[DSV3_LATENCY_TOKEN] = "Between two tokens of an answer.",
		[DSV3_LATENCY_QUEUE] = "Waiting, of a request's time.",
		[DSV3_LATENCY_PREFILL] = "Computing the prompt, of a request's time.",
		[DSV3_LATENCY_DECODE] = "Computing the answer after its first token, of a request's time.",
	};

	for (int i = 0; i < DSV3_N_LATENCIES; i++)
		histogram(m, i, help[i], &stats->latencies[i]);
}

static void
engine(Metrics *m, const Dsv3Snapshot *now)
{
	Jsonb *counters = dsv3_engine_json(now->shared.stats_json);
	double blocks = dsv3_json_number(counters, "kv_blocks");

	single(m, "engine_up", "gauge", "Whether the engine is ready.",
		   now->shared.supervisor_pid != 0 && now->shared.engine_state == DSV3_ENGINE_READY);
	single(m, "engine_restarts", "counter", "Engines that were started in place of one that had ended.",
		   (double) now->shared.engine_restarts);
	single(m, "engine_steps", "counter", "Steps that the engine has computed since it started.",
		   dsv3_json_number(counters, "steps"));
	single(m, "engine_preemptions", "counter", "Requests that gave their memory to others and began again.",
		   dsv3_json_number(counters, "preemptions"));
	single(m, "kv_cache_blocks", "gauge", "Blocks of the cache in memory.", blocks);
	single(m, "kv_cache_usage_ratio", "gauge", "Share of the blocks that running requests hold.",
		   blocks > 0 ? dsv3_json_number(counters, "kv_blocks_used") / blocks : 0);
	single(m, "kv_cache_evicted_blocks", "counter", "Cached blocks that were given up for others.",
		   dsv3_json_number(counters, "kv_blocks_evicted"));
}

/* Names of roles are for those who see all statistics, as everything here. */
static void
roles(Metrics *m, const Dsv3Stats *stats)
{
	static const struct
	{
		const char *name;
		const char *help;
		size_t offset;
	} sums[] = {
		{"role_requests", "Requests of a role.", offsetof(Dsv3RoleStats, requests)},
		{"role_prompt_tokens", "Tokens of the prompts of a role.", offsetof(Dsv3RoleStats, prompt_tokens)},
		{"role_generation_tokens", "Tokens of the answers to a role.",
		 offsetof(Dsv3RoleStats, output_tokens)},
	};

	for (size_t k = 0; k < lengthof(sums); k++)
	{
		double others = 0;

		family(m, sums[k].name, "counter", sums[k].help);
		for (int i = 0; i < stats->n_roles; i++)
		{
			double value = (double) *(const uint64 *) ((const char *) &stats->roles[i] + sums[k].offset);
			const char *name = GetUserNameFromId(stats->role_ids[i], true);

			if (name == NULL)
				others += value;
			else
				line(m, value, psprintf(",role=\"%s\"", escape(name)));
		}
		/* Roles that are no more, and those beyond the table. */
		if (others > 0)
			line(m, others, ",role=\"(others)\"");
	}
}

static void
experts(Metrics *m, const Dsv3Stats *stats)
{
	uint32 per_group = (stats->n_experts + MAX_GROUPS - 1) / MAX_GROUPS;
	uint64 *tokens = palloc(sizeof(uint64) * (stats->n_experts + 1));

	family(m, "expert_tokens", "counter", "Tokens that a group of a layer's experts has computed.");
	for (uint32 layer = 0; layer < stats->n_layers; layer++)
	{
		if (dsv3_layer_use(stats, layer, tokens).tokens == 0)
			continue;
		for (uint32 first = 0; first < stats->n_experts; first += per_group)
		{
			uint32 last = Min(first + per_group, stats->n_experts) - 1;
			uint64 sum = 0;

			for (uint32 expert = first; expert <= last; expert++)
				sum += tokens[expert];
			line(m, (double) sum, psprintf(",layer=\"%u\",expert_group=\"%u-%u\"", layer, first, last));
		}
	}
	family(m, "layer_balancedness", "gauge", "Mean over maximum of the tokens of a layer's experts.");
	for (uint32 layer = 0; layer < stats->n_layers; layer++)
	{
		Dsv3LayerUse use = dsv3_layer_use(stats, layer, tokens);

		if (use.tokens > 0)
			line(m, use.balancedness, psprintf(",layer=\"%u\"", layer));
	}
}

/* dsv3_metrics_text(format) -> text */
Datum
dsv3_metrics_text_1_0(PG_FUNCTION_ARGS)
{
	const char *format = text_to_cstring(PG_GETARG_TEXT_PP(0));
	Metrics m = {.open_metrics = strcmp(format, "openmetrics") == 0};
	Dsv3Snapshot *now;
	Jsonb *model;
	const char *name;

	dsv3_require_preload();
	if (!m.open_metrics && strcmp(format, "prometheus") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown format of metrics \"%s\"", format),
				 errhint("Formats are openmetrics and prometheus.")));
	now = dsv3_take_snapshot();
	model = dsv3_engine_json(now->shared.model_json);
	name = dsv3_json_text(model, "name");
	m.model = escape(name ? name : "");
	initStringInfo(&m.text);
	family(&m, "build_info", "gauge", "Version of the library and digest of the model.");
	name = dsv3_json_text(model, "digest");
	line(&m, 1, psprintf(",version=\"%s\",digest=\"%s\"", DSV3_VERSION, escape(name ? name : "")));
	engine(&m, now);
	requests(&m, now);
	times(&m, &now->stats);
	roles(&m, &now->stats);
	experts(&m, &now->stats);
	if (m.open_metrics)
		appendStringInfoString(&m.text, "# EOF\n");
	PG_RETURN_TEXT_P(cstring_to_text_with_len(m.text.data, m.text.len));
}
