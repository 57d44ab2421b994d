/*
 * estimate.c
 *	  dsv3_estimate: what a query will ask of the model, before it is paid for.
 *
 * The query is planned, which gives the number of its rows and, from the places where calls stand in the plan, that of its calls. Then it is
 * run until it has made a small number of calls, in a subtransaction that is taken back, as a query that may only read. What
 * these calls took is multiplied by how many more there will be. A query that makes no more calls than the sample is run to its
 * end, and the numbers are exact.
 *
 * The number of calls follows the planner's number of rows. Calls that CASE or COALESCE may spare count as made, calls that share a
 * request as two; those within functions of the user's, which no plan shows, are taken to be as many for each row as in the sample.
 */
#include "postgres.h"

#include "pg/compat.h"

#include <math.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "nodes/nodeFuncs.h"
#include "parser/parsetree.h"
#include "portability/instr_time.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/plancache.h"
#include "utils/resowner.h"
#include "utils/syscache.h"

#include "pg/ask.h"
#include "pg/batch.h"
#include "pg/guard.h"

PG_FUNCTION_INFO_V1(dsv3_estimate_1_0);

#define SAMPLE_MAX 1000

static bool sampling; /* a query runs for its sample; there is one count of calls */

typedef struct Sample
{
	uint64 calls;
	uint64 rows;
	bool complete; /* the query ended */
	Dsv3Usage usage;
	double seconds;
} Sample;

/* ---- the plan ---- */

static bool
count_calls_walker(Node *node, int *n)
{
	if (node == NULL)
		return false;
	if (IsA(node, FuncExpr))
	{
		const Dsv3Asker *asker = dsv3_asker_of(((FuncExpr *) node)->funcid);

		if (asker && asker != &dsv3_asker_count_tokens && asker != &dsv3_asker_tokenize &&
			asker != &dsv3_asker_detokenize)
			(*n)++;
	}
	return expression_tree_walker(node, count_calls_walker, n);
}

static int
count_calls(Node *expressions)
{
	int n = 0;

	(void) count_calls_walker(expressions, &n);
	return n;
}

/* Rows that the plan's conditions are asked about. The planner tells how many pass them; where all conditions of a table ask the model, and so
 * are the node's above now, it is the table's rows that count. */
static double
rows_into(Plan *plan, List *rtable)
{
	HeapTuple tuple;
	double rows = plan->plan_rows;

	if (!IsA(plan, SeqScan) || list_length(plan->qual) > count_calls((Node *) plan->qual))
		return rows;
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(rt_fetch(((Scan *) plan)->scanrelid, rtable)->relid));
	if (HeapTupleIsValid(tuple))
	{
		rows = Max(rows, ((Form_pg_class) GETSTRUCT(tuple))->reltuples);
		ReleaseSysCache(tuple);
	}
	return rows;
}

/* Calls that the plan makes when the given share of its rows is read. */
static double
calls_of(Plan *plan, List *rtable, double share)
{
	double below = plan->lefttree ? rows_into(plan->lefttree, rtable) : rows_into(plan, rtable);
	double calls = 0;
	List *children = dsv3_plan_children(plan);
	ListCell *lc;

	if (IsA(plan, CustomScan))
		calls += share * below * count_calls((Node *) ((CustomScan *) plan)->custom_exprs);
	calls += share * plan->plan_rows * count_calls((Node *) plan->targetlist);
	calls += share * below * count_calls((Node *) plan->qual);
	switch (nodeTag(plan))
	{
		case T_Limit:
			if (below > 0)
				share *= Min(1, plan->plan_rows / below);
			break;
		case T_Agg:
		case T_Hash:
		case T_Sort:
			share = 1; /* read all before they return a row */
			break;
		default:
			break;
	}
	foreach (lc, children)
		calls += calls_of(lfirst(lc), rtable, share);
	list_free(children);
	return calls;
}

/* Rows and calls as the planner sees them. */
static void
read_plan(SPIPlanPtr plan, double *rows, double *calls)
{
	CachedPlan *cached = SPI_plan_get_cached_plan(plan);
	PlannedStmt *stmt;
	ListCell *lc;

	if (cached == NULL || list_length(cached->stmt_list) != 1)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("query must be one statement")));
	stmt = linitial_node(PlannedStmt, cached->stmt_list);
	if (stmt->commandType != CMD_SELECT || stmt->planTree == NULL)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("query must be a SELECT"),
						errhint("For INSERT ... SELECT, UPDATE and the like, estimate the SELECT that reads "
								"the same rows.")));
	if (!CommandIsReadOnly(stmt))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("query must be a SELECT that only reads"),
				 errhint("Leave out FOR UPDATE and the like, and statements in WITH that write.")));
	*rows = stmt->planTree->plan_rows;
	*calls = calls_of(stmt->planTree, stmt->rtable, 1);
	foreach (lc, stmt->subplans)
		*calls += calls_of(lfirst(lc), stmt->rtable, 1);
	ReleaseCachedPlan(cached, NULL); /* of a plan that is not saved nobody keeps account */
}

/* ---- the sample ---- */

/* Read rows until the query ends or has made its calls. */
static void
read_rows(SPIPlanPtr plan, Sample *sample)
{
	Portal portal = SPI_cursor_open(NULL, plan, NULL, NULL, true);

	do
	{
		SPI_cursor_fetch(portal, true, 1);
		sample->rows += SPI_processed;
		sample->complete = SPI_processed == 0;
		SPI_freetuptable(SPI_tuptable);
	} while (!sample->complete);
	SPI_cursor_close(portal);
}

/* Run the query for at most so many calls, and take back what it did. */
static void
take_sample(SPIPlanPtr plan, int calls, Sample *sample)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData *volatile error = NULL;
	Dsv3Usage before = dsv3_usage;
	instr_time began;
	instr_time took;
	bool enough;

	INSTR_TIME_SET_CURRENT(began);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	dsv3_guard_sample(calls);
	sampling = true;
	PG_TRY();
	{
		read_rows(plan, sample);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	enough = dsv3_guard_sampled(&sample->calls);
	dsv3_guard_sample(-1);
	sampling = false;
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error && !(enough && error->sqlerrcode == ERRCODE_CONFIGURATION_LIMIT_EXCEEDED))
		ReThrowError(error);
	INSTR_TIME_SET_CURRENT(took);
	INSTR_TIME_SUBTRACT(took, began);
	sample->seconds = INSTR_TIME_GET_DOUBLE(took);
	sample->usage.prompt_tokens = dsv3_usage.prompt_tokens - before.prompt_tokens;
	sample->usage.cached_tokens = dsv3_usage.cached_tokens - before.cached_tokens;
	sample->usage.output_tokens = dsv3_usage.output_tokens - before.output_tokens;
}

/* ---- the function ---- */

static Datum
times(uint64 n, double factor)
{
	return Int64GetDatum((int64) rint((double) n * factor));
}

/* dsv3_estimate(query, sample) -> (rows, calls, prompt_tokens, cached_tokens, output_tokens, seconds, sampled_calls, exact) */
Datum
dsv3_estimate_1_0(PG_FUNCTION_ARGS)
{
	char *query = text_to_cstring(PG_GETARG_TEXT_PP(0));
	int32 most = PG_GETARG_INT32(1);
	Sample sample = {0};
	TupleDesc tupdesc;
	Datum values[8];
	bool nulls[8] = {false};
	SPIPlanPtr plan;
	double rows;
	double calls;
	double factor = 1;

	dsv3_require_preload();
	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (sampling)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("query must not call dsv3_estimate"),
						errhint("Estimate the query that it is asked about.")));
	if (most < 1 || most > SAMPLE_MAX)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("sample must be between 1 and %d", SAMPLE_MAX)));
	SPI_connect();
	plan = SPI_prepare_cursor(query, 0, NULL, DSV3_CURSOR_ALL_ROWS);
	if (plan == NULL)
		elog(ERROR, "SPI_prepare_cursor failed: %s", SPI_result_code_string(SPI_result));
	read_plan(plan, &rows, &calls);
	take_sample(plan, most, &sample);
	SPI_finish();

	if (sample.complete)
	{
		rows = (double) sample.rows;
		calls = (double) sample.calls;
	}
	else
	{
		/* Not in the plan: within functions. */
		if (calls < 1)
			calls = sample.rows > 0 ? rows * (double) sample.calls / (double) sample.rows : 0;
		calls = Max(calls, (double) sample.calls);
		factor = calls / (double) sample.calls;
	}
	values[0] = times(1, rows);
	values[1] = times(1, calls);
	values[2] = times(sample.usage.prompt_tokens, factor);
	values[3] = times(sample.usage.cached_tokens, factor);
	values[4] = times(sample.usage.output_tokens, factor);
	values[5] = Float8GetDatum(sample.seconds * factor);
	values[6] = Int32GetDatum((int32) sample.calls);
	values[7] = BoolGetDatum(sample.complete);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), values, nulls)));
}
