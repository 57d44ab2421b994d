/*
 * batch_explain.c
 *	  What EXPLAIN says of a "Dsv3 Apply" node.
 *
 * VERBOSE names the calls, ANALYZE counts them. Times are sums over requests that ran side by side, so they may exceed the
 * node's own; they are shown where EXPLAIN shows times at all. Nothing here touches shared memory.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "nodes/nodeFuncs.h"
#include "utils/ruleutils.h"

#include "pg/batch.h"
#include "pg/batch_state.h"

static void
explain_calls(CustomScanState *node, List *ancestors, ExplainState *es)
{
	CustomScan *scan = castNode(CustomScan, node->ss.ps.plan);
	List *numbers = lsecond(scan->custom_private);
	List *context = set_deparse_context_plan(es->deparse_cxt, (Plan *) scan, ancestors);
	List *calls = NIL;

	for (int i = 0; i < list_length(numbers); i += 4)
	{
		Node *expr = list_nth(scan->custom_exprs, list_nth_int(numbers, i + 3));
		char *text;

		if (list_nth_int(numbers, i) != DSV3_STEP_CALL)
			continue;
		text = deparse_expression(expr, context, true, false);
		if (list_nth_int(numbers, i + 2) >= 0)
			text = psprintf("%s (conditional)", text);
		calls = lappend(calls, text);
	}
	ExplainPropertyList("Model Calls", calls, es);
}

void
dsv3_apply_explain(CustomScanState *node, List *ancestors, ExplainState *es)
{
	const Dsv3ApplyState *state = (Dsv3ApplyState *) node;
	const Dsv3WindowStats *stats;

	if (es->verbose)
		explain_calls(node, ancestors, es);
	if (!es->analyze || state->window == NULL)
		return;
	stats = dsv3_window_stats(state->window);
	ExplainPropertyUInteger("Calls", NULL, stats->calls, es);
	ExplainPropertyUInteger("Duplicates", NULL, stats->duplicates, es);
	ExplainPropertyUInteger("Cache Hits", NULL, stats->cache_hits, es);
	if (state->skipped > 0 || es->format != EXPLAIN_FORMAT_TEXT)
		ExplainPropertyUInteger("Calls Skipped", NULL, state->skipped, es);
	if (stats->cancelled > 0 || es->format != EXPLAIN_FORMAT_TEXT)
		ExplainPropertyUInteger("Calls Cancelled", NULL, stats->cancelled, es);
	ExplainPropertyInteger("Most In Flight", NULL, stats->most, es);
	ExplainPropertyUInteger("Prompt Tokens", NULL, stats->prompt_tokens, es);
	ExplainPropertyUInteger("Cached Tokens", NULL, stats->cached_tokens, es);
	ExplainPropertyUInteger("Output Tokens", NULL, stats->output_tokens, es);
	if (es->timing)
	{
		ExplainPropertyFloat("Waiting Time", "ms", (double) stats->waiting_us / 1000, 3, es);
		ExplainPropertyFloat("Computing Time", "ms", (double) stats->computing_us / 1000, 3, es);
		ExplainPropertyUInteger("Peak Memory", "kB", (uint64) (state->peak + 1023) / 1024, es);
	}
}
