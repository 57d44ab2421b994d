/*
 * batch_plan.c
 *	  The planner hook: puts "Dsv3 Apply" nodes into finished plans (see batch.h for their places).
 *
 * A plan is rewritten after standard_planner, or whatever stands in its place, has made it: no path has to compete, and every
 * kind of statement comes by. A plan without functions of users is left after one look at its list of dependencies.
 *
 * The walk goes from the leaves up, and tells each node what its parents say of it: whether all its rows will be
 * read, and whether a LIMIT is known. A node that is changed keeps its place in the tree for its parents: target lists keep
 * their order and names, costs are copied, and InitPlans move up, because EXPLAIN and rescans look for them at the top.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/sysattr.h"
#include "catalog/pg_type.h"
#include "jit/jit.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "optimizer/planmain.h"
#include "optimizer/planner.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "pg/batch.h"

typedef struct PlanContext
{
	PlannedStmt *stmt;
	Dsv3Safety safety;
	int last_id; /* highest plan_node_id in use */
	bool changed;
} PlanContext;

static planner_hook_type previous_planner_hook;

static Plan *rewrite(Plan *plan, const Dsv3Demand *demand, PlanContext *context);

static const Dsv3Demand no_demand = {false, NULL, NULL};

const CustomScanMethods dsv3_apply_scan_methods = {DSV3_APPLY_NAME, dsv3_apply_create_state};

/* ---- making nodes ---- */

/* The position of an expression that the executor needs; -1 for none. */
static int
keep_expr(CustomScan *scan, Node *expr)
{
	if (expr == NULL)
		return -1;
	scan->custom_exprs = lappend(scan->custom_exprs, expr);
	return list_length(scan->custom_exprs) - 1;
}

/* A node over the child that runs the program and gives tlist; quals are the program's QUAL steps, for EXPLAIN. model: the
 * node whose rows it gives. */
static Plan *
make_apply(PlanContext *context, const Dsv3Program *program, Plan *child, List *tlist, List *quals,
		   const Plan *model, const Dsv3Demand *demand, int ctid_column)
{
	CustomScan *scan = makeNode(CustomScan);
	Plan *plan = &scan->scan.plan;
	List *header;
	List *steps = NIL;
	ListCell *lc;

	plan->startup_cost = model->startup_cost;
	plan->total_cost = model->total_cost;
	plan->plan_rows = model->plan_rows;
	plan->plan_width = model->plan_width;
	plan->parallel_safe = model->parallel_safe;
	plan->plan_node_id = ++context->last_id;
	plan->targetlist = tlist;
	plan->qual = quals;
	plan->lefttree = child;
	plan->extParam = bms_copy(model->extParam);
	plan->allParam = bms_copy(model->allParam);
	plan->initPlan = model->initPlan;
	scan->methods = &dsv3_apply_scan_methods;
	scan->custom_scan_tlist = program->columns;

	header = list_make4_int(demand->eager, keep_expr(scan, demand->limit_offset),
							keep_expr(scan, demand->limit_count), ctid_column);
	foreach (lc, program->steps)
	{
		Dsv3Step *step = lfirst(lc);

		steps = lappend_int(steps, step->kind);
		steps = lappend_int(steps, step->column);
		steps = lappend_int(steps, keep_expr(scan, (Node *) step->guard));
		steps = lappend_int(steps, keep_expr(scan, (Node *) step->expr));
	}
	scan->custom_private = list_make2(header, steps);
	context->changed = true;
	return plan;
}

/* A target list that passes the columns of another one on, as columns of that varno. */
static List *
pass_on(List *tlist, int varno)
{
	List *result = NIL;
	ListCell *lc;

	foreach (lc, tlist)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, lc);
		TargetEntry *copy = flatCopyTargetEntry(entry);

		copy->expr =
			(Expr *) makeVar(varno, entry->resno, exprType((Node *) entry->expr),
							 exprTypmod((Node *) entry->expr), exprCollation((Node *) entry->expr), 0);
		result = lappend(result, copy);
	}
	return result;
}

/* The node's target list over the row's columns. */
static List *
split_tlist(Dsv3Program *program, List *tlist)
{
	List *result = NIL;
	ListCell *lc;

	foreach (lc, tlist)
	{
		TargetEntry *entry = flatCopyTargetEntry(lfirst_node(TargetEntry, lc));

		entry->expr = dsv3_program_split(program, entry->expr, NULL);
		result = lappend(result, entry);
	}
	return result;
}

/* Take off the list, as a list of its own, the first qual with a call and all that come after it: they are in the order in which they
 * may be asked. */
static List *
take_suffix(List **quals)
{
	int n = 0;
	List *suffix;
	ListCell *lc;

	foreach (lc, *quals)
	{
		if (dsv3_has_call(lfirst(lc)))
			break;
		n++;
	}
	suffix = list_copy_tail(*quals, n);
	*quals = list_truncate(list_copy(*quals), n);
	return suffix;
}

static bool
has_current_of(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, CurrentOfExpr))
		return true;
	return expression_tree_walker(node, has_current_of, context);
}

/* ---- above a node ---- */

/* Does the node compute a target list, from which it can be relieved? */
static bool
can_be_below(Plan *plan)
{
	switch (nodeTag(plan))
	{
		case T_SeqScan:
		case T_SampleScan:
		case T_IndexScan:
		case T_IndexOnlyScan:
		case T_BitmapHeapScan:
		case T_TidScan:
		case T_TidRangeScan:
		case T_SubqueryScan:
		case T_FunctionScan:
		case T_ValuesScan:
		case T_TableFuncScan:
		case T_CteScan:
		case T_NamedTuplestoreScan:
		case T_WorkTableScan:
		case T_NestLoop:
		case T_MergeJoin:
		case T_HashJoin:
		case T_ProjectSet:
		case T_Agg:
		case T_Group:
		case T_Gather:
		case T_GatherMerge:
			return true;
		case T_ForeignScan:
			/* A statement that runs on the other server as a whole evaluates nothing here. */
			return ((ForeignScan *) plan)->operation == CMD_SELECT;
		case T_Result:
			/* Without input there is one row, and plpgsql's simple expressions want to see a Result. */
			return plan->lefttree != NULL;
		case T_WindowAgg:
			/* These refer to positions in its own target list. */
			return plan->qual == NIL && DSV3_RUN_CONDITION((WindowAgg *) plan) == NIL;
		default:
			return false;
	}
}

/* The quals that the node would move, and what it keeps. */
static List *
movable_quals(Plan *plan, List **kept_qual, List **kept_joinqual)
{
	List *moved = NIL;

	*kept_qual = plan->qual;
	*kept_joinqual = NIL;
	switch (nodeTag(plan))
	{
		case T_NestLoop:
		case T_MergeJoin:
		case T_HashJoin:
		{
			Join *join = (Join *) plan;

			*kept_joinqual = join->joinqual;
			if (join->jointype == JOIN_INNER)
				moved = take_suffix(kept_joinqual);
			if (moved == NIL)
				return take_suffix(kept_qual);
			*kept_qual = NIL;
			return list_concat(moved, plan->qual);
		}
		case T_ProjectSet:
		case T_Gather:
		case T_GatherMerge:
		case T_WindowAgg:
			return NIL;
		default:
			return take_suffix(kept_qual);
	}
}

static Plan *
place_above(Plan *plan, const Dsv3Demand *demand, PlanContext *context)
{
	Dsv3Program program;
	List *kept_qual;
	List *kept_joinqual;
	List *moved;
	List *quals = NIL;
	List *tlist;
	Plan *apply;
	ListCell *lc;
	int ctid_column = 0;

	if (!can_be_below(plan))
		return plan;
	moved = movable_quals(plan, &kept_qual, &kept_joinqual);
	if ((!dsv3_has_call((Node *) plan->targetlist) && moved == NIL) || has_current_of((Node *) moved, NULL) ||
		!dsv3_safe_above(&context->safety, plan))
		return plan;

	dsv3_program_over_leaves(&program);
	foreach (lc, moved)
		quals = lappend(quals, dsv3_program_qual(&program, lfirst(lc)));
	tlist = split_tlist(&program, plan->targetlist);
	if (program.n_calls == 0 || !dsv3_safe_program(&context->safety, &program, tlist, plan, plan))
		return plan;
	if ((context->safety.cursor_options & CURSOR_OPT_FAST_PLAN) && dsv3_has_table_place(plan))
	{
		Expr *place = (Expr *) makeVar((int) ((Scan *) plan)->scanrelid, SelfItemPointerAttributeNumber,
									   TIDOID, -1, InvalidOid, 0);

		ctid_column = castNode(Var, dsv3_program_leaf(&program, place))->varattno;
	}

	apply = make_apply(context, &program, plan, tlist, quals, plan, demand, ctid_column);
	plan->targetlist = program.child;
	plan->qual = kept_qual;
	plan->initPlan = NIL;
	plan->async_capable = false; /* such a scan does not answer to a plain request for a row */
	switch (nodeTag(plan))
	{
		case T_NestLoop:
		case T_MergeJoin:
		case T_HashJoin:
			/* What moved may have been what made the inner side's row unique. */
			if (list_length(kept_joinqual) != list_length(((Join *) plan)->joinqual))
				((Join *) plan)->inner_unique = false;
			((Join *) plan)->joinqual = kept_joinqual;
			break;
		default:
			break;
	}
	return apply;
}

/* ---- below an aggregate ---- */

typedef struct AggContext
{
	Dsv3Program *program;
	List *before; /* Aggrefs, and beside them what they have become */
	List *after;
} AggContext;

/* Columns of the row are, position by position, what the new child of the Agg delivers. */
static Node *
to_outer(Node *node, void *context)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Var) && ((Var *) node)->varno == INDEX_VAR)
	{
		Var *var = copyObject((Var *) node);

		var->varno = OUTER_VAR;
		return (Node *) var;
	}
	return expression_tree_mutator(node, to_outer, context);
}

static Aggref *
split_aggref(Aggref *aggref, Dsv3Program *program)
{
	Aggref *copy = makeNode(Aggref);
	Expr *guard = NULL;
	ListCell *lc;

	memcpy(copy, aggref, sizeof(Aggref));
	if (aggref->aggfilter)
	{
		Var *filter =
			dsv3_program_column(program, dsv3_program_split(program, aggref->aggfilter, NULL), NULL);
		BooleanTest *test = makeNode(BooleanTest);

		test->arg = (Expr *) filter;
		test->booltesttype = IS_TRUE;
		test->location = -1;
		guard = (Expr *) test;
		copy->aggfilter = (Expr *) to_outer((Node *) filter, NULL);
	}
	copy->args = NIL;
	foreach (lc, aggref->args)
	{
		TargetEntry *entry = flatCopyTargetEntry(lfirst_node(TargetEntry, lc));

		entry->expr = (Expr *) to_outer((Node *) dsv3_program_split(program, entry->expr, guard), NULL);
		copy->args = lappend(copy->args, entry);
	}
	return copy;
}

/* The same aggregate may stand in several places and is computed once. */
static Node *
split_aggrefs(Node *node, AggContext *context)
{
	ListCell *before;
	ListCell *after;
	Node *result;

	if (node == NULL)
		return NULL;
	if (!IsA(node, Aggref))
		return expression_tree_mutator(node, split_aggrefs, context);
	forboth(before, context->before, after, context->after)
	{
		if (equal(lfirst(before), node))
			return copyObject(lfirst(after));
	}
	if (dsv3_has_call((Node *) ((Aggref *) node)->args) ||
		dsv3_has_call((Node *) ((Aggref *) node)->aggfilter))
		result = (Node *) split_aggref((Aggref *) node, context->program);
	else
		result = copyObject(node);
	context->before = lappend(context->before, node);
	context->after = lappend(context->after, result);
	return copyObject(result);
}

static void
place_below_agg(Agg *agg, PlanContext *context)
{
	Plan *plan = &agg->plan;
	Plan *child = plan->lefttree;
	Dsv3Demand demand = no_demand;
	Dsv3Program program;
	AggContext aggs = {&program, NIL, NIL};
	List *tlist;
	List *qual;
	List *initplans;

	if (DO_AGGSPLIT_COMBINE(agg->aggsplit) || !dsv3_safe_above(&context->safety, child))
		return;
	dsv3_program_over(&program, child->targetlist);
	tlist = (List *) split_aggrefs((Node *) plan->targetlist, &aggs);
	qual = (List *) split_aggrefs((Node *) plan->qual, &aggs);
	if (program.n_calls == 0 || !dsv3_safe_program(&context->safety, &program, NIL, child, NULL))
		return;

	demand.eager = agg->aggstrategy != AGG_SORTED;
	initplans = child->initPlan;
	child->initPlan = NIL;
	child->async_capable = false;
	plan->lefttree =
		make_apply(context, &program, child, pass_on(program.columns, INDEX_VAR), NIL, child, &demand, 0);
	plan->lefttree->initPlan = initplans;
	plan->targetlist = tlist;
	plan->qual = qual;
}

/* ---- in place of a nested loop ---- */

/* Do these parameters, and not others, decide what the expression's value is for this row? */
static bool
uses_param(Node *node, List *params)
{
	ListCell *lc;

	if (node == NULL)
		return false;
	if (IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXEC)
	{
		foreach (lc, params)
		{
			if (lfirst_node(NestLoopParam, lc)->paramno == ((Param *) node)->paramid)
				return true;
		}
		return false;
	}
	return expression_tree_walker(node, uses_param, params);
}

static bool
has_subplan_or_whole_row(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubPlan) || IsA(node, AlternativeSubPlan) ||
		(IsA(node, Var) && ((Var *) node)->varattno <= 0))
		return true;
	return expression_tree_walker(node, has_subplan_or_whole_row, context);
}

/* The inner side's columns as expressions over the loop's parameters, if it is one row whatever they are: a Result without
 * input, or a function that returns one value. NIL: it is something else. */
static List *
one_row_columns(Plan *inner, List *params)
{
	List *columns = NIL;
	ListCell *lc;

	if (inner->initPlan != NIL || has_subplan_or_whole_row((Node *) inner->targetlist, NULL) ||
		has_subplan_or_whole_row((Node *) inner->qual, NULL))
		return NIL;
	if (IsA(inner, Result))
	{
		if (inner->lefttree || ((Result *) inner)->resconstantqual || inner->qual)
			return NIL;
		foreach (lc, inner->targetlist)
			columns = lappend(columns, lfirst_node(TargetEntry, lc)->expr);
		return columns;
	}
	if (IsA(inner, FunctionScan))
	{
		FunctionScan *scan = (FunctionScan *) inner;
		RangeTblFunction *function;

		if (scan->funcordinality || list_length(scan->functions) != 1)
			return NIL;
		function = linitial_node(RangeTblFunction, scan->functions);
		/* Without a parameter of this loop the function would be called once for all rows. */
		if (!IsA(function->funcexpr, FuncExpr) || ((FuncExpr *) function->funcexpr)->funcretset ||
			!uses_param(function->funcexpr, params) || has_subplan_or_whole_row(function->funcexpr, NULL))
			return NIL;
		return list_make1(function->funcexpr);
	}
	return NIL;
}

/* A Var of a function scan over the function's value. */
typedef struct FunctionContext
{
	Var *value;
	bool composite;
} FunctionContext;

static Node *
over_value(Node *node, FunctionContext *context)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Var))
	{
		Var *var = (Var *) node;
		FieldSelect *field;

		if (!context->composite)
			return (Node *) copyObject(context->value);
		field = makeNode(FieldSelect);
		field->arg = (Expr *) copyObject(context->value);
		field->fieldnum = var->varattno;
		field->resulttype = var->vartype;
		field->resulttypmod = var->vartypmod;
		field->resultcollid = var->varcollid;
		return (Node *) field;
	}
	return expression_tree_mutator(node, over_value, context);
}

/* What the inner side's columns are, over the row's: what has an effect or a cost of its own is computed once. Returns the inner
 * side's quals over the row. */
static List *
add_inner_columns(Dsv3Program *program, Plan *inner, List *exprs)
{
	FunctionContext function;
	Expr *value;
	ListCell *lc;

	if (IsA(inner, Result))
	{
		foreach (lc, exprs)
		{
			Expr *expr = dsv3_program_split(program, lfirst(lc), NULL);

			if (contain_volatile_functions((Node *) expr))
				expr = (Expr *) dsv3_program_column(program, expr, NULL);
			program->inner_columns = lappend(program->inner_columns, expr);
		}
		return NIL;
	}
	value = dsv3_program_split(program, linitial(exprs), NULL);
	if (!IsA(value, Var))
		value = (Expr *) dsv3_program_column(program, value, NULL);
	function.value = (Var *) value;
	function.composite = type_is_rowtype(exprType(linitial(exprs)));
	foreach (lc, inner->targetlist)
		program->inner_columns = lappend(program->inner_columns,
										 over_value((Node *) lfirst_node(TargetEntry, lc)->expr, &function));
	return (List *) over_value((Node *) inner->qual, &function);
}

/* NULL: the loop stays. */
static Plan *
place_for_loop(NestLoop *loop, const Dsv3Demand *demand, PlanContext *context)
{
	Plan *plan = &loop->join.plan;
	Plan *outer = plan->lefttree;
	Plan *inner = plan->righttree;
	Dsv3Program program;
	Dsv3Demand own = {demand->eager, NULL, NULL};
	List *exprs;
	List *conditions;
	List *quals = NIL;
	List *tlist;
	List *initplans;
	Plan *apply;
	ListCell *lc;

	if (loop->nestParams == NIL || !dsv3_safe_above(&context->safety, plan))
		return NULL;
	/* Where the planner has put a cache for rows that repeat, ours must do the same. */
	if (IsA(inner, Memoize) && dsv3_guc_dedup)
		inner = inner->lefttree;
	/* With a left join no condition may come between: it would give NULLs where it fails. */
	if (loop->join.jointype != JOIN_INNER &&
		(loop->join.jointype != JOIN_LEFT || loop->join.joinqual || inner->qual))
		return NULL;
	exprs = one_row_columns(inner, loop->nestParams);
	if (!dsv3_has_call((Node *) exprs))
		return NULL;

	dsv3_program_over(&program, outer->targetlist);
	program.params = loop->nestParams;
	conditions = add_inner_columns(&program, inner, exprs);
	conditions = list_concat(list_concat_copy(conditions, loop->join.joinqual), plan->qual);
	foreach (lc, conditions)
		quals = lappend(quals, dsv3_program_qual(&program, lfirst(lc)));
	tlist = split_tlist(&program, plan->targetlist);
	if (program.n_calls == 0 || !dsv3_safe_program(&context->safety, &program, tlist, outer, plan))
		return NULL;

	if (conditions == NIL)
		own = *demand;
	initplans = plan->initPlan;
	apply = make_apply(context, &program, outer, tlist, quals, plan, &own, 0);
	apply->initPlan = initplans;
	outer->async_capable = false;
	return apply;
}

/* ---- the walk ---- */

/* MergeJoin goes back in its inner side, which the node cannot. */
static Plan *
under_material(Plan *apply, PlanContext *context)
{
	Plan *material = materialize_finished_plan(apply);

	material->plan_node_id = ++context->last_id;
	material->targetlist = pass_on(apply->targetlist, OUTER_VAR);
	return material;
}

static void
rewrite_list(List *plans, const Dsv3Demand *demand, PlanContext *context)
{
	ListCell *lc;

	foreach (lc, plans)
		lfirst(lc) = rewrite(lfirst(lc), demand, context);
}

/* What a node asks of its (outer) child. */
static Dsv3Demand
demand_below(Plan *plan, const Dsv3Demand *demand)
{
	Dsv3Demand below = {demand->eager, NULL, NULL};

	switch (nodeTag(plan))
	{
		case T_Result:
		case T_SubqueryScan:
			if (plan->qual == NIL)
				return *demand;
			break;
		case T_LockRows:
			return *demand;
		case T_Sort:
		case T_Hash:
		case T_ModifyTable:
			below.eager = true;
			break;
		case T_Agg:
			below.eager = demand->eager || ((Agg *) plan)->aggstrategy != AGG_SORTED;
			break;
		case T_Limit:
			below.eager = false;
			below.limit_offset = ((Limit *) plan)->limitOffset;
			below.limit_count = ((Limit *) plan)->limitCount;
			break;
		case T_NestLoop:
		case T_MergeJoin:
		case T_HashJoin:
			/* An empty or exhausted inner side ends a join early. */
			below.eager = false;
			break;
		default:
			break;
	}
	return below;
}

static void
rewrite_children(Plan *plan, const Dsv3Demand *demand, PlanContext *context)
{
	Dsv3Demand below = demand_below(plan, demand);
	Dsv3Demand one_of_many = {below.eager, NULL, NULL};

	plan->lefttree = rewrite(plan->lefttree, &below, context);
	if (plan->righttree)
	{
		Plan *inner = plan->righttree;

		plan->righttree = rewrite(inner, &no_demand, context);
		if (IsA(plan, MergeJoin) && plan->righttree != inner)
			plan->righttree = under_material(plan->righttree, context);
	}
	switch (nodeTag(plan))
	{
		case T_Append:
			rewrite_list(((Append *) plan)->appendplans, &one_of_many, context);
			break;
		case T_MergeAppend:
			rewrite_list(((MergeAppend *) plan)->mergeplans, &one_of_many, context);
			break;
		case T_SubqueryScan:
			((SubqueryScan *) plan)->subplan = rewrite(((SubqueryScan *) plan)->subplan, &below, context);
			break;
		default:
			break;
	}
}

static Plan *
rewrite(Plan *plan, const Dsv3Demand *demand, PlanContext *context)
{
	Dsv3Demand own = *demand;

	if (plan == NULL)
		return NULL;
	check_stack_depth();
	rewrite_children(plan, demand, context);
	if (IsA(plan, Agg))
		place_below_agg((Agg *) plan, context);
	if (IsA(plan, NestLoop))
	{
		Plan *apply = place_for_loop((NestLoop *) plan, demand, context);

		if (apply)
			return apply;
	}
	/* With conditions of its own it needs more rows than its parent asks for. */
	if (plan->qual != NIL)
		own.limit_count = own.limit_offset = NULL;
	return place_above(plan, &own, context);
}

/* ---- the hook ---- */

List *
dsv3_plan_children(Plan *plan)
{
	List *children = NIL;

	if (plan->lefttree)
		children = lappend(children, plan->lefttree);
	if (plan->righttree)
		children = lappend(children, plan->righttree);
	switch (nodeTag(plan))
	{
		case T_Append:
			return list_concat(children, ((Append *) plan)->appendplans);
		case T_MergeAppend:
			return list_concat(children, ((MergeAppend *) plan)->mergeplans);
		case T_BitmapAnd:
			return list_concat(children, ((BitmapAnd *) plan)->bitmapplans);
		case T_BitmapOr:
			return list_concat(children, ((BitmapOr *) plan)->bitmapplans);
		case T_SubqueryScan:
			return lappend(children, ((SubqueryScan *) plan)->subplan);
		case T_CustomScan:
			return list_concat(children, ((CustomScan *) plan)->custom_plans);
		default:
			return children;
	}
}

static int
highest_id(Plan *plan)
{
	int highest;
	List *children;
	ListCell *lc;

	if (plan == NULL)
		return 0;
	highest = plan->plan_node_id;
	children = dsv3_plan_children(plan);
	foreach (lc, children)
		highest = Max(highest, highest_id(lfirst(lc)));
	list_free(children);
	return highest;
}

/* Does the plan depend on any function that is not PostgreSQL's own? */
static bool
has_user_function(const PlannedStmt *stmt)
{
#ifdef DSV3_BATCH_TORTURE
	return true;
#else
	ListCell *lc;

	foreach (lc, stmt->invalItems)
	{
		if (lfirst_node(PlanInvalItem, lc)->cacheId == PROCOID)
			return true;
	}
	return false;
#endif
}

static void
rewrite_statement(PlannedStmt *stmt, int cursor_options)
{
	PlanContext context = {stmt, {0}, 0, false};
	Dsv3Demand demand = {(cursor_options & DSV3_CURSOR_ALL_ROWS) != 0, NULL, NULL};
	ListCell *lc;

	dsv3_safety_init(&context.safety, stmt, cursor_options);
	context.last_id = highest_id(stmt->planTree);
	foreach (lc, stmt->subplans)
		context.last_id = Max(context.last_id, highest_id(lfirst(lc)));
	stmt->planTree = rewrite(stmt->planTree, &demand, &context);
	foreach (lc, stmt->subplans)
		lfirst(lc) = rewrite(lfirst(lc), &no_demand, &context);

	/* The price that keeps our functions out of loops and below sorts would buy machine code, which is no use to them. */
	if (context.changed)
		stmt->jitFlags = PGJIT_NONE;
}

static PlannedStmt *
apply_planner(Query *parse, const char *query_string, int cursor_options, ParamListInfo bound_params)
{
	PlannedStmt *stmt = previous_planner_hook
							? previous_planner_hook(parse, query_string, cursor_options, bound_params)
							: standard_planner(parse, query_string, cursor_options, bound_params);

	/* A cursor that can go backward cannot stand on a node that cannot. */
	if (dsv3_guc_batching && stmt->planTree && !(cursor_options & CURSOR_OPT_SCROLL) &&
		has_user_function(stmt))
		rewrite_statement(stmt, cursor_options);
	return stmt;
}

void
dsv3_batch_install(void)
{
	RegisterCustomScanMethods(&dsv3_apply_scan_methods);
	previous_planner_hook = planner_hook;
	planner_hook = apply_planner;
}
