/*
 * guard.c
 *	  What one query may cost: it is counted here whatever part of it makes the calls, a plan's node that reads ahead, a set function, a
 *	  stream, an aggregate or a function of the user's.
 *
 * The query is the outermost statement that runs. Hooks of the executor tell which that is: the first ExecutorRun that is
 * not inside of another one, or a command (DO, CALL, COPY) around it. FETCH, EXECUTE and EXPLAIN only run another query, so
 * what a cursor's query has used is counted over all its FETCHes. What is asked outside of all of these is counted for the
 * client's message.
 *
 * A use is made at a query's first call, so other queries pay for two assignments. It is known by number, because calls may
 * end after their query's memory.
 *
 * Calls that run ahead wait when they might go beyond the limit, and only the row that is next raises. So a query that ends
 * without needing them meets no limit, and one that needs too much has been given what it may have.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/xact.h"
#include "executor/executor.h"
#include "lib/ilist.h"
#include "tcop/utility.h"

#include "pg/guard.h"
#include "pg/guc.h"

/* Bytes of text that make a token, roughly, and never fewer. */
#define BYTES_PER_TOKEN 4

typedef struct Use
{
	dlist_node node;
	uint64 number;
	const QueryDesc *desc;  /* NULL: a command, or a message */
	TimestampTz message_at; /* of a message */
	uint64 calls;
	uint64 tokens;   /* of calls that have ended */
	uint64 expected; /* of those that run */
	MemoryContextCallback callback;
} Use;

static dlist_head uses = DLIST_STATIC_INIT(uses);
static uint64 last_number;

/* The outermost statement. */
static bool running;
static const QueryDesc *running_desc; /* NULL: a command */
static Use *running_use;              /* NULL: it has made no call, or was not asked for yet */

/* Of dsv3_guard_sample. */
static int64 sample_size = -1;
static uint64 sample_calls;
static bool sample_used_up;

static ExecutorRun_hook_type prev_executor_run;
static ExecutorFinish_hook_type prev_executor_finish;
static ProcessUtility_hook_type prev_process_utility;

/* ---- uses ---- */

static void
forget(void *arg)
{
	Use *use = arg;

	if (running_use == use)
		running_use = NULL;
	dlist_delete(&use->node);
	pfree(use);
}

static Use *
make_use(const QueryDesc *desc)
{
	Use *use = MemoryContextAllocZero(TopMemoryContext, sizeof(Use));

	use->number = ++last_number;
	use->desc = desc;
	dlist_push_tail(&uses, &use->node);
	if (desc)
	{
		use->callback.func = forget;
		use->callback.arg = use;
		MemoryContextRegisterResetCallback(desc->estate->es_query_cxt, &use->callback);
	}
	return use;
}

/* Of the client's message, outside of all statements. One is kept. */
static Use *
message_use(void)
{
	static Use *use;
	TimestampTz now = GetCurrentStatementStartTimestamp();

	if (use && use->message_at != now)
	{
		forget(use);
		use = NULL;
	}
	if (use == NULL)
	{
		use = make_use(NULL);
		use->message_at = now;
	}
	return use;
}

static Use *
current_use(void)
{
	dlist_iter iter;

	if (!running)
		return message_use();
	if (running_use)
		return running_use;
	dlist_foreach (iter, &uses)
	{
		Use *use = dlist_container(Use, node, iter.cur);

		if (running_desc && use->desc == running_desc)
			running_use = use;
	}
	if (running_use == NULL)
		running_use = make_use(running_desc);
	return running_use;
}

/* ---- limits ---- */

bool
dsv3_runs_model(uint32 kind)
{
	return kind == DSV3_REQUEST_GENERATE || kind == DSV3_REQUEST_CHAT || kind == DSV3_REQUEST_SCORE ||
		   kind == DSV3_REQUEST_LOGPROB || kind == DSV3_REQUEST_PIN || kind == DSV3_REQUEST_ROUTING;
}

uint32
dsv3_letter_tokens(const Dsv3Letter *letter)
{
	return letter->max_tokens + (uint32) (letter->body_len / BYTES_PER_TOKEN);
}

static bool
refuse(Dsv3Failure *failure, const char *setting, int limit)
{
	failure->row_error = false;
	dsv3_error(&failure->error, DSV3_ERR_LIMIT_EXCEEDED, "query would take more than %s (%d)", setting,
			   limit);
	dsv3_error_detail(&failure->error, "All calls of the model count that the query makes in any way.");
	dsv3_error_hint(&failure->error, "Let the query ask about fewer rows, or have a superuser raise %s.",
					setting);
	return false;
}

/* With `spare`: nothing is wrong but the call has to wait. */
static bool
postpone(Dsv3Failure *failure)
{
	failure->row_error = false;
	return dsv3_error(&failure->error, DSV3_ERR_QUEUE_FULL, "query is near its limit");
}

bool
dsv3_guard_admit(const Dsv3Letter *letter, bool spare, Dsv3Failure *failure)
{
	uint64 max_calls = (uint64) dsv3_guc_max_calls_per_query;
	uint64 max_tokens = (uint64) dsv3_guc_max_tokens_per_query;
	const Use *use;

	if (!dsv3_runs_model(letter->kind))
		return true;
	if (sample_size >= 0 && sample_calls >= (uint64) sample_size)
	{
		if (spare)
			return postpone(failure);
		sample_used_up = true;
		return refuse(failure, "sample", (int) sample_size);
	}
	if (max_calls == 0 && max_tokens == 0)
		return true;
	use = current_use();
	if (max_calls > 0 && use->calls >= max_calls)
		return spare ? postpone(failure) : refuse(failure, "dsv3.max_calls_per_query", (int) max_calls);
	if (max_tokens > 0 && use->tokens >= max_tokens)
		return spare ? postpone(failure) : refuse(failure, "dsv3.max_tokens_per_query", (int) max_tokens);
	if (max_tokens > 0 && spare && use->tokens + use->expected + dsv3_letter_tokens(letter) > max_tokens)
		return postpone(failure);
	return true;
}

uint64
dsv3_guard_begin(const Dsv3Letter *letter)
{
	Use *use;

	if (!dsv3_runs_model(letter->kind))
		return 0;
	use = current_use();
	use->calls++;
	sample_calls++;
	use->expected += dsv3_letter_tokens(letter);
	return use->number;
}

void
dsv3_guard_sample(int64 calls)
{
	sample_size = calls;
	sample_calls = 0;
	sample_used_up = false;
}

bool
dsv3_guard_sampled(uint64 *calls)
{
	*calls = sample_calls;
	return sample_used_up;
}

void
dsv3_guard_end(uint64 query, uint32 expected, uint32 tokens)
{
	dlist_iter iter;

	dlist_foreach (iter, &uses)
	{
		Use *use = dlist_container(Use, node, iter.cur);

		if (use->number == query)
		{
			use->expected -= expected;
			use->tokens += tokens;
			return;
		}
	}
}

/* ---- hooks ---- */

static void
enter(const QueryDesc *desc)
{
	running = true;
	running_desc = desc;
	running_use = NULL;
}

/* A command's use ends with it, a query's with its memory. */
static void
leave(void)
{
	if (running_use && running_use->desc == NULL)
		forget(running_use);
	running = false;
	running_desc = NULL;
	running_use = NULL;
}

static void
run_executor(QueryDesc *desc, ScanDirection direction, uint64 count DSV3_EXECUTE_ONCE_PARAM)
{
	if (prev_executor_run)
		prev_executor_run(desc, direction, count DSV3_EXECUTE_ONCE);
	else
		standard_ExecutorRun(desc, direction, count DSV3_EXECUTE_ONCE);
}

static void
guard_executor_run(QueryDesc *desc, ScanDirection direction, uint64 count DSV3_EXECUTE_ONCE_PARAM)
{
	if (running)
	{
		run_executor(desc, direction, count DSV3_EXECUTE_ONCE);
		return;
	}
	enter(desc);
	PG_TRY();
	{
		run_executor(desc, direction, count DSV3_EXECUTE_ONCE);
	}
	PG_FINALLY();
	{
		leave();
	}
	PG_END_TRY();
}

static void
finish_executor(QueryDesc *desc)
{
	if (prev_executor_finish)
		prev_executor_finish(desc);
	else
		standard_ExecutorFinish(desc);
}

/* Triggers run here. */
static void
guard_executor_finish(QueryDesc *desc)
{
	if (running)
	{
		finish_executor(desc);
		return;
	}
	enter(desc);
	PG_TRY();
	{
		finish_executor(desc);
	}
	PG_FINALLY();
	{
		leave();
	}
	PG_END_TRY();
}

static void
process_utility(PlannedStmt *stmt, const char *text, bool read_only_tree, ProcessUtilityContext context,
				ParamListInfo params, QueryEnvironment *environment, DestReceiver *dest,
				QueryCompletion *completion)
{
	if (prev_process_utility)
		prev_process_utility(stmt, text, read_only_tree, context, params, environment, dest, completion);
	else
		standard_ProcessUtility(stmt, text, read_only_tree, context, params, environment, dest, completion);
}

static void
guard_process_utility(PlannedStmt *stmt, const char *text, bool read_only_tree, ProcessUtilityContext context,
					  ParamListInfo params, QueryEnvironment *environment, DestReceiver *dest,
					  QueryCompletion *completion)
{
	const Node *command = stmt->utilityStmt;

	if (running || IsA(command, FetchStmt) || IsA(command, ExecuteStmt) || IsA(command, ExplainStmt))
	{
		process_utility(stmt, text, read_only_tree, context, params, environment, dest, completion);
		return;
	}
	enter(NULL);
	PG_TRY();
	{
		process_utility(stmt, text, read_only_tree, context, params, environment, dest, completion);
	}
	PG_FINALLY();
	{
		leave();
	}
	PG_END_TRY();
}

void
dsv3_guard_install(void)
{
	prev_executor_run = ExecutorRun_hook;
	ExecutorRun_hook = guard_executor_run;
	prev_executor_finish = ExecutorFinish_hook;
	ExecutorFinish_hook = guard_executor_finish;
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = guard_process_utility;
}
