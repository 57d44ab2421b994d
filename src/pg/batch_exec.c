/*
 * batch_exec.c
 *	  The "Dsv3 Apply" node at work (see batch.h for what it is).
 *
 * Rows stand in a ring in the order in which the child gave them. In each round every row gets as far as it can: steps
 * whose columns are there run, calls are started. Then further rows are read while the window, the calls in flight and
 * work_mem allow. The first row is returned when it is complete; until then the node sleeps.
 *
 * The window grows from one row by one for each row that leaves, so it doubles with each round of answers and a consumer that stops
 * has never paid for twice what it took. Where it is known that all rows will be read it has its full size at once, and
 * under a LIMIT that of the rows still wanted.
 *
 * Errors keep their row. A failed call is raised when its row is the first, and its value is made then too (its conversion may
 * raise), unless another step needs it; notices come then. What is evaluated for a later row, a CASE condition or an
 * argument, raises at once: it cannot be caught without a subtransaction.
 *
 * Memory: a row's columns and the values of its calls are in a context of the row, arguments in one that is reset after each step. Requests
 * belong to the window (batch_window.c), which dies with the query. Nothing is static, so calls may run SQL with nodes of
 * their own.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/acl.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "pg/batch.h"
#include "pg/batch_state.h"
#include "pg/text.h"

/* ---- begin and end ---- */

/* Which steps must be done before this one: those that make the columns it refers to. */
static Bitmapset *
needs_of(const Dsv3ApplyState *state, Node *expr)
{
	Bitmapset *columns = NULL;
	Bitmapset *steps = NULL;
	int column = -1;

	pull_varattnos(expr, INDEX_VAR, &columns);
	while ((column = bms_next_member(columns, column)) >= 0)
	{
		int number = column + FirstLowInvalidHeapAttributeNumber;

		for (int i = 0; i < state->n_steps; i++)
		{
			if (state->steps[i].column == number)
				steps = bms_add_member(steps, i);
		}
	}
	return steps;
}

/* What the executor does for a function that it calls itself. */
static void
init_call(Dsv3ApplyState *state, Dsv3ApplyStep *step, FuncExpr *expr)
{
	AclResult aclresult = DSV3_FUNCTION_ACLCHECK(expr->funcid, GetUserId());
	int n = list_length(expr->args);
	ListCell *lc;
	int i = 0;

	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult, OBJECT_FUNCTION, get_func_name(expr->funcid));
	InvokeFunctionExecuteHook(expr->funcid);
	step->asker = dsv3_asker_of(expr->funcid);
	if (step->asker == NULL)
		elog(ERROR, "function %u is not one that asks the model", expr->funcid);
	fmgr_info(expr->funcid, &step->flinfo);
	fmgr_info_set_expr((Node *) expr, &step->flinfo);
	step->fcinfo = palloc0(SizeForFunctionCallInfo(n));
	InitFunctionCallInfoData(*step->fcinfo, &step->flinfo, n, expr->inputcollid, NULL, NULL);
	step->args = palloc(sizeof(ExprState *) * Max(n, 1));
	foreach (lc, expr->args)
		step->args[i++] = ExecInitExpr(lfirst(lc), &state->css.ss.ps);
	get_typlenbyval(expr->funcresulttype, &step->typlen, &step->typbyval);
}

static void
init_steps(Dsv3ApplyState *state, CustomScan *scan)
{
	List *numbers = lsecond(scan->custom_private);
	PlanState *ps = &state->css.ss.ps;

	state->n_steps = list_length(numbers) / 4;
	state->steps = palloc0(sizeof(Dsv3ApplyStep) * Max(state->n_steps, 1));
	for (int i = 0; i < state->n_steps; i++)
	{
		Dsv3ApplyStep *step = &state->steps[i];

		step->kind = (Dsv3StepKind) list_nth_int(numbers, 4 * i);
		step->column = list_nth_int(numbers, 4 * i + 1);
	}
	for (int i = 0; i < state->n_steps; i++)
	{
		Dsv3ApplyStep *step = &state->steps[i];
		int guard = list_nth_int(numbers, 4 * i + 2);
		Expr *expr = list_nth(scan->custom_exprs, list_nth_int(numbers, 4 * i + 3));

		step->needs = needs_of(state, (Node *) expr);
		if (guard >= 0)
		{
			Expr *condition = list_nth(scan->custom_exprs, guard);

			step->needs = bms_add_members(step->needs, needs_of(state, (Node *) condition));
			step->guard = ExecInitExpr(condition, ps);
		}
		if (step->kind == DSV3_STEP_CALL)
			init_call(state, step, castNode(FuncExpr, expr));
		else
		{
			step->expr = ExecInitExpr(expr, ps);
			get_typlenbyval(exprType((Node *) expr), &step->typlen, &step->typbyval);
		}
		state->needed = bms_add_members(state->needed, step->needs);
	}
}

/* Which columns come from the child, and where they are there. */
static void
init_columns(Dsv3ApplyState *state, CustomScan *scan)
{
	ListCell *lc;
	int i = 0;

	state->n_columns = list_length(scan->custom_scan_tlist);
	state->from_child = palloc0(sizeof(int) * Max(state->n_columns, 1));
	foreach (lc, scan->custom_scan_tlist)
	{
		Var *var = (Var *) lfirst_node(TargetEntry, lc)->expr;

		if (IsA(var, Var) && var->varno == OUTER_VAR)
			state->from_child[i] = var->varattno;
		i++;
	}
}

static void
apply_begin(CustomScanState *node, EState *estate, int eflags)
{
	Dsv3ApplyState *state = (Dsv3ApplyState *) node;
	CustomScan *scan = castNode(CustomScan, node->ss.ps.plan);
	List *header = linitial(scan->custom_private);
	int offset = list_nth_int(header, DSV3_HEADER_LIMIT_OFFSET);
	int count = list_nth_int(header, DSV3_HEADER_LIMIT_COUNT);

	outerPlanState(node) =
		ExecInitNode(outerPlan(scan), estate, eflags & ~(EXEC_FLAG_BACKWARD | EXEC_FLAG_MARK));
	node->ss.ps.qual = NULL; /* its conditions are steps */
	state->step_context = CreateExprContext(estate);
	init_columns(state, scan);
	init_steps(state, scan);
	state->eager = list_nth_int(header, DSV3_HEADER_EAGER);
	state->ctid_column = list_nth_int(header, DSV3_HEADER_CTID_COLUMN);
	if (offset >= 0)
		state->limit_offset = ExecInitExpr(list_nth(scan->custom_exprs, offset), &node->ss.ps);
	if (count >= 0)
		state->limit_count = ExecInitExpr(list_nth(scan->custom_exprs, count), &node->ss.ps);
	state->wanted = -1;
	if (state->ctid_column > 0)
		node->ss.ss_currentRelation = ((ScanState *) outerPlanState(node))->ss_currentRelation;
	if (eflags & EXEC_FLAG_EXPLAIN_ONLY)
		return;
	state->query = estate->es_query_cxt;
	state->window = dsv3_window_create(state->query);
	state->rows = palloc0(sizeof(Dsv3ApplyRow *) * DSV3_MAX_WINDOW);
}

/* ---- rows ---- */

static Dsv3ApplyRow *
nth_row(const Dsv3ApplyState *state, int i)
{
	return state->rows[(state->first + i) % DSV3_MAX_WINDOW];
}

static Dsv3ApplyRow *
make_row(Dsv3ApplyState *state)
{
	MemoryContext old = MemoryContextSwitchTo(state->query);
	Dsv3ApplyRow *row = palloc0(sizeof(Dsv3ApplyRow));

	row->context = AllocSetContextCreate(state->query, "dsv3 row", ALLOCSET_SMALL_SIZES);
	row->values = palloc0(sizeof(Datum) * Max(state->n_columns, 1));
	row->nulls = palloc(sizeof(bool) * Max(state->n_columns, 1));
	row->steps = palloc(sizeof(Dsv3RowStep) * Max(state->n_steps, 1));
	MemoryContextSwitchTo(old);
	return row;
}

/* Give the row up, whatever is still in flight for it. */
static void
free_row(Dsv3ApplyState *state, Dsv3ApplyRow *row)
{
	for (int i = 0; i < state->n_steps; i++)
	{
		if (row->steps[i].flight)
			dsv3_flight_leave(state->window, row->steps[i].flight);
	}
	if (state->shown && state->shown == row)
		state->shown = NULL;
	MemoryContextReset(row->context);
	row->next_free = state->free_rows;
	state->free_rows = row;
}

/* Read a row of the child; false when there is none. */
static bool
read_row(Dsv3ApplyState *state)
{
	TupleTableSlot *slot = ExecProcNode(outerPlanState(state));
	Dsv3ApplyRow *row;
	MemoryContext old;

	if (TupIsNull(slot))
	{
		state->child_done = true;
		return false;
	}
	slot_getallattrs(slot);
	row = state->free_rows;
	if (row)
		state->free_rows = row->next_free;
	else
		row = make_row(state);
	memset(row->steps, 0, sizeof(Dsv3RowStep) * Max(state->n_steps, 1));
	memset(row->nulls, true, sizeof(bool) * Max(state->n_columns, 1));
	row->last = state->n_steps - 1;
	row->dropped = row->hurried = false;
	old = MemoryContextSwitchTo(row->context);
	for (int i = 0; i < state->n_columns; i++)
	{
		int from = state->from_child[i] - 1;
		Form_pg_attribute attribute;

		if (from < 0 || slot->tts_isnull[from])
			continue;
		attribute = TupleDescAttr(slot->tts_tupleDescriptor, from);
		row->values[i] = datumCopy(slot->tts_values[from], attribute->attbyval, attribute->attlen);
		row->nulls[i] = false;
	}
	MemoryContextSwitchTo(old);
	state->rows[(state->first + state->n_rows) % DSV3_MAX_WINDOW] = row;
	state->n_rows++;
	return true;
}

/* ---- steps ---- */

/* Let expressions see the row. */
static void
show_row(Dsv3ApplyState *state, const Dsv3ApplyRow *row, ExprContext *econtext)
{
	TupleTableSlot *slot = state->css.ss.ss_ScanTupleSlot;

	if (state->shown != row || TTS_EMPTY(slot))
	{
		ExecClearTuple(slot);
		memcpy(slot->tts_values, row->values, sizeof(Datum) * (Size) state->n_columns);
		memcpy(slot->tts_isnull, row->nulls, sizeof(bool) * (Size) state->n_columns);
		ExecStoreVirtualTuple(slot);
		state->shown = row;
	}
	econtext->ecxt_scantuple = slot;
}

static void
set_column(Dsv3ApplyState *state, Dsv3ApplyRow *row, const Dsv3ApplyStep *step, Datum value, bool isnull)
{
	int i = step->column - 1;
	MemoryContext old = MemoryContextSwitchTo(row->context);

	row->nulls[i] = isnull;
	row->values[i] = isnull ? (Datum) 0 : datumCopy(value, step->typbyval, step->typlen);
	MemoryContextSwitchTo(old);
	if (state->shown == row)
		state->shown = NULL;
}

static bool
is_done(const Dsv3ApplyState *state, const Dsv3ApplyRow *row, const Bitmapset *steps)
{
	int i = -1;

	while ((i = bms_next_member(steps, i)) >= 0)
	{
		if (row->steps[i].state != DSV3_ROW_DONE)
			return false;
	}
	return true;
}

/* Post the letter of a call, or find that another row's was the same. False: not now. */
static bool
post(Dsv3ApplyState *state, Dsv3ApplyRow *row, Dsv3RowStep *at, bool must)
{
	Dsv3Failure failure;
	bool later;

	if (at->flight == NULL)
	{
		at->flight = dsv3_window_send(state->window, at->letter, must, &later, &failure);
		if (at->flight == NULL && later)
		{
			state->no_room = true;
			return false;
		}
	}
	dsv3_letter_free(at->letter);
	at->letter = NULL;
	if (at->flight == NULL)
	{
		at->failure = MemoryContextAlloc(row->context, sizeof(Dsv3Failure));
		*at->failure = failure;
	}
	at->state = DSV3_ROW_SENT;
	return true;
}

/* Evaluate the arguments and make the request. */
static void
start_call(Dsv3ApplyState *state, Dsv3ApplyRow *row, const Dsv3ApplyStep *step, Dsv3RowStep *at)
{
	ExprContext *econtext = state->step_context;
	FunctionCallInfo fcinfo = step->fcinfo;
	MemoryContext old = MemoryContextSwitchTo(econtext->ecxt_per_tuple_memory);
	Dsv3Request request;
	Dsv3Failure failure;
	bool has_null = false;

	for (int i = 0; i < fcinfo->nargs; i++)
	{
		fcinfo->args[i].value = ExecEvalExpr(step->args[i], econtext, &fcinfo->args[i].isnull);
		has_null |= fcinfo->args[i].isnull;
	}
	at->state = DSV3_ROW_DONE; /* unless there is a request */
	if (has_null && step->flinfo.fn_strict)
		set_column(state, row, step, (Datum) 0, true);
	else
	{
		at->question = MemoryContextAllocZero(row->context, sizeof(Dsv3Question));
		at->question->keep = row->context;
		switch (dsv3_ask(step->asker, fcinfo, at->question, &request, &failure))
		{
			case DSV3_ASK_NOTHING:
				set_column(state, row, step, (Datum) 0, true);
				at->question = NULL;
				break;
			case DSV3_ASK_REQUEST:
#ifdef DSV3_BATCH_TORTURE
				at->state = DSV3_ROW_SENT; /* nowhere */
				break;
#endif
				MemoryContextSwitchTo(row->context);
				at->letter = palloc0(sizeof(Dsv3Letter));
				at->state = DSV3_ROW_LETTER;
				if (dsv3_letter_write(at->letter, &request, &failure))
					break;
				at->letter = NULL;
				/* FALLTHROUGH */
			case DSV3_ASK_FAILED:
				at->failure = MemoryContextAlloc(row->context, sizeof(Dsv3Failure));
				*at->failure = failure;
				at->state = DSV3_ROW_SENT;
				break;
		}
	}
	MemoryContextSwitchTo(old);
}

/* Has the call ended, one way or another? */
static bool
call_ended(const Dsv3RowStep *at)
{
	return at->state == DSV3_ROW_DONE ||
		   (at->state == DSV3_ROW_SENT && (at->flight == NULL || dsv3_flight_ended(at->flight)));
}

/* Make the value of the call of step i, which has ended; a failure is kept. */
static void
take_value(Dsv3ApplyState *state, Dsv3ApplyRow *row, int i)
{
	const Dsv3ApplyStep *step = &state->steps[i];
	Dsv3RowStep *at = &row->steps[i];
	MemoryContext old = MemoryContextSwitchTo(state->step_context->ecxt_per_tuple_memory);
	Dsv3Answer answer = {0};
	Dsv3Failure failure;
	Datum value;
	bool isnull;
	bool ok = false;

	if (at->failure)
		failure = *at->failure;
#ifdef DSV3_BATCH_TORTURE
	else if (at->flight == NULL)
		ok = true;
#endif
	else
	{
		ok = dsv3_flight_answer(at->flight, &answer, &failure);
		ok = dsv3_answer_read(&answer, &at->question->asked, ok, &failure);
	}
	ok = dsv3_ask_value(step->asker, step->fcinfo, at->question, ok, &answer, &failure, &value, &isnull);
	set_column(state, row, step, value, isnull);
	if (ok)
		at->failure = NULL;
	else if (at->failure == NULL)
	{
		at->failure = MemoryContextAlloc(row->context, sizeof(Dsv3Failure));
		*at->failure = failure;
	}
	if (at->flight)
		dsv3_flight_leave(state->window, at->flight);
	at->flight = NULL;
	at->state = DSV3_ROW_DONE;

	/* What raises ends the query when its row comes; nothing that comes after is to be done for the row. */
	if (!ok && !(at->failure->row_error && at->question->on_error != DSV3_ON_ERROR_ERROR))
		row->last = Min(row->last, i);
	MemoryContextSwitchTo(old);
}

/* One step, whose needs are done. False: it cannot go on now. */
static bool
run_step(Dsv3ApplyState *state, Dsv3ApplyRow *row, int i, bool first)
{
	const Dsv3ApplyStep *step = &state->steps[i];
	Dsv3RowStep *at = &row->steps[i];
	ExprContext *econtext = state->step_context;
	Datum value;
	bool isnull;

	if (step->kind == DSV3_STEP_CALL && at->state == DSV3_ROW_WAITING &&
		dsv3_window_running(state->window) >= state->size && !first)
		return false;
	show_row(state, row, econtext);
	if (at->state == DSV3_ROW_WAITING && step->guard)
	{
		value = ExecEvalExprSwitchContext(step->guard, econtext, &isnull);
		if (isnull || !DatumGetBool(value))
		{
			if (step->kind == DSV3_STEP_CALL)
				state->skipped++;
			at->state = DSV3_ROW_DONE; /* the column is NULL */
			return true;
		}
	}
	switch (step->kind)
	{
		case DSV3_STEP_EXPR:
			value = ExecEvalExprSwitchContext(step->expr, econtext, &isnull);
			set_column(state, row, step, value, isnull);
			at->state = DSV3_ROW_DONE;
			break;
		case DSV3_STEP_QUAL:
			value = ExecEvalExprSwitchContext(step->expr, econtext, &isnull);
			at->state = DSV3_ROW_DONE;
			if (isnull || !DatumGetBool(value))
			{
				row->dropped = true;
				row->last = Min(row->last, i);
			}
			break;
		case DSV3_STEP_CALL:
			if (at->state == DSV3_ROW_WAITING)
				start_call(state, row, step, at);
			if (at->state == DSV3_ROW_LETTER)
				return post(state, row, at, first && dsv3_window_running(state->window) == 0);
			break;
	}
	return true;
}

/* Bring a row as far as it gets now. */
static void
advance(Dsv3ApplyState *state, Dsv3ApplyRow *row, bool first)
{
	for (int i = 0; i <= row->last; i++)
	{
		Dsv3RowStep *at = &row->steps[i];

		if (at->state <= DSV3_ROW_LETTER && is_done(state, row, state->steps[i].needs))
		{
			if (!run_step(state, row, i, first))
				break;
			ResetExprContext(state->step_context);
		}
		if (at->state == DSV3_ROW_SENT && bms_is_member(i, state->needed) && call_ended(at))
		{
			take_value(state, row, i);
			ResetExprContext(state->step_context);
		}
		if (state->steps[i].kind == DSV3_STEP_QUAL && at->state != DSV3_ROW_DONE)
			break;
	}
}

/* Is all that the row's fate depends on there? */
static bool
is_complete(const Dsv3ApplyState *state, const Dsv3ApplyRow *row)
{
	for (int i = 0; i <= row->last; i++)
	{
		if (state->steps[i].kind == DSV3_STEP_CALL ? !call_ended(&row->steps[i])
												   : row->steps[i].state != DSV3_ROW_DONE)
			return false;
	}
	return true;
}

/* Make the values that nobody needed before, and tell what there is to tell, in the order of the steps. */
static void
settle(Dsv3ApplyState *state, Dsv3ApplyRow *row)
{
	for (int i = 0; i <= row->last; i++)
	{
		Dsv3RowStep *at = &row->steps[i];

		if (at->state == DSV3_ROW_SENT)
			take_value(state, row, i);
		if (at->question)
			dsv3_ask_tell(at->question, at->failure == NULL, at->failure);
	}
}

/* ---- the window ---- */

static int64
eval_limit(ExprState *expr, ExprContext *econtext)
{
	bool isnull;
	Datum value = ExecEvalExprSwitchContext(expr, econtext, &isnull);

	return isnull ? -1 : DatumGetInt64(value);
}

/* At the first row after the start or a rescan. */
static void
open_window(Dsv3ApplyState *state)
{
	ExprContext *econtext = state->css.ss.ps.ps_ExprContext;
	int64 count = state->limit_count ? eval_limit(state->limit_count, econtext) : -1;
	int64 offset = state->limit_offset ? eval_limit(state->limit_offset, econtext) : 0;

	/* A wrong value is for the Limit node to complain of. */
	state->wanted = count > 0 && count < PG_INT32_MAX && offset < PG_INT32_MAX ? count + Max(offset, 0) : -1;
	state->size = state->eager ? dsv3_guc_batch_window : 1;
	if (state->wanted > 0)
		state->size = (int) Min(state->wanted, dsv3_guc_batch_window);
	if (!dsv3_guc_batching)
		state->size = 1;
	state->opened = true;
}

/* A row has left. */
static void
slide(Dsv3ApplyState *state)
{
	if (state->wanted > 0 && --state->wanted == 0)
	{
		/* More is wanted than the limit said: rows are skipped above. */
		state->wanted = -1;
		state->size = 1;
	}
	else if (state->wanted > 0)
		state->size = (int) Min(state->wanted, dsv3_guc_batch_window);
	else if (state->size < dsv3_guc_batch_window)
		state->size++;
	if (!dsv3_guc_batching)
		state->size = 1;
}

static bool
has_room(Dsv3ApplyState *state)
{
	Size used = dsv3_window_bytes(state->window);

	if (state->child_done || state->n_rows >= state->size)
		return false;
	if (state->n_rows == 0)
		return true;
	if (state->no_room || dsv3_window_running(state->window) >= state->size)
		return false;
	for (int i = 0; i < state->n_rows; i++)
		used += MemoryContextMemAllocated(nth_row(state, i)->context, false);
	state->peak = Max(state->peak, used);
	return used < (Size) work_mem * 1024;
}

static void
remove_first(Dsv3ApplyState *state)
{
	state->first = (state->first + 1) % DSV3_MAX_WINDOW;
	state->n_rows--;
	slide(state);
}

/* The next row that is complete and passed, taken out of the ring; NULL: there are no more. */
static Dsv3ApplyRow *
next_row(Dsv3ApplyState *state)
{
	for (;;)
	{
		Dsv3ApplyRow *row;

		if (dsv3_window_running(state->window) > 0)
			(void) dsv3_window_look(state->window);
		state->no_room = false;
		for (int i = 0; i < state->n_rows; i++)
			advance(state, nth_row(state, i), i == 0);
		while (has_room(state) && read_row(state))
			advance(state, nth_row(state, state->n_rows - 1), state->n_rows == 1);
		if (state->n_rows == 0)
			return NULL;
		row = nth_row(state, 0);
		if (!row->hurried)
		{
			for (int i = 0; i < state->n_steps; i++)
			{
				if (row->steps[i].flight)
					dsv3_flight_hurry(row->steps[i].flight);
			}
			row->hurried = true;
		}
		if (!is_complete(state, row))
		{
			dsv3_window_sleep(state->window);
			continue;
		}
		settle(state, row);
		ResetExprContext(state->step_context);
		remove_first(state);
		if (!row->dropped)
			return row;
		InstrCountFiltered1(&state->css.ss.ps, 1);
		free_row(state, row);
	}
}

static TupleTableSlot *
apply_exec(CustomScanState *node)
{
	Dsv3ApplyState *state = (Dsv3ApplyState *) node;
	ExprContext *econtext = node->ss.ps.ps_ExprContext;
	TupleTableSlot *slot = node->ss.ss_ScanTupleSlot;

	ResetExprContext(econtext);
	if (state->returned)
		free_row(state, state->returned);
	state->returned = NULL;
	state->shown = NULL;
	if (!state->opened)
		open_window(state);
	state->returned = next_row(state);
	if (state->returned == NULL)
		return ExecClearTuple(slot);

	state->shown = NULL;
	show_row(state, state->returned, econtext);
	if (state->ctid_column > 0)
	{
		slot->tts_tid = *(ItemPointer) DatumGetPointer(state->returned->values[state->ctid_column - 1]);
		slot->tts_tableOid = RelationGetRelid(node->ss.ss_currentRelation);
	}
	return node->ss.ps.ps_ProjInfo ? ExecProject(node->ss.ps.ps_ProjInfo) : slot;
}

/* Forget all rows, and what is in flight for them. */
static void
drop_all(Dsv3ApplyState *state)
{
	if (state->returned)
		free_row(state, state->returned);
	state->returned = NULL;
	state->shown = NULL;
	while (state->n_rows > 0)
	{
		free_row(state, nth_row(state, 0));
		state->first = (state->first + 1) % DSV3_MAX_WINDOW;
		state->n_rows--;
	}
}

static void
apply_end(CustomScanState *node)
{
	drop_all((Dsv3ApplyState *) node);
	ExecEndNode(outerPlanState(node));
}

static void
apply_rescan(CustomScanState *node)
{
	Dsv3ApplyState *state = (Dsv3ApplyState *) node;

	ExecClearTuple(node->ss.ss_ScanTupleSlot);
	drop_all(state);
	state->child_done = false;
	state->opened = false;
	if (outerPlanState(node)->chgParam == NULL)
		ExecReScan(outerPlanState(node));
}

const CustomExecMethods dsv3_apply_exec_methods = {
	.CustomName = DSV3_APPLY_NAME,
	.BeginCustomScan = apply_begin,
	.ExecCustomScan = apply_exec,
	.EndCustomScan = apply_end,
	.ReScanCustomScan = apply_rescan,
	.ExplainCustomScan = dsv3_apply_explain,
};

Node *
dsv3_apply_create_state(CustomScan *scan)
{
	Dsv3ApplyState *state = (Dsv3ApplyState *) newNode(sizeof(Dsv3ApplyState), T_CustomScanState);

	state->css.methods = &dsv3_apply_exec_methods;
	return (Node *) state;
}
