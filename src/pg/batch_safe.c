/*
 * batch_safe.c
 *	  Where rows must not be read ahead, because the query could tell.
 *
 * Reading ahead evaluates some things earlier: all that is below the node, and what its steps need. The rest, the
 * node's target list, is still evaluated when the row is returned. Nobody can tell the difference unless one side has an effect
 * that the other side sees. Two kinds are known:
 *
 *	Settings and sequences. A volatile function beside the call, such as set_config(), may change what a function
 *	in the call's arguments reads.
 *
 *	Data. A volatile function written in SQL or in another language sees what the statement, its caller between two
 *	fetches of a cursor, or another such function has changed so far.
 *
 * PostgreSQL's own functions and those in C that are volatile only because each of their values is new (nextval, random)
 * have no effect that is read here.
 *
 * Functions that make prompts are mostly left VOLATILE by those who write them, so a query that only reads, with such functions in
 * one place, is read ahead.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "optimizer/optimizer.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "pg/batch.h"

/* ---- functions ---- */

/* May it run SQL, and see what is being changed? */
static bool
is_sensitive_function(Oid function, void *context)
{
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	bool sensitive = false;

	if (HeapTupleIsValid(tuple))
	{
		Form_pg_proc proc = (Form_pg_proc) GETSTRUCT(tuple);

		sensitive = proc->provolatile == PROVOLATILE_VOLATILE && proc->prolang != INTERNALlanguageId &&
					proc->prolang != ClanguageId;
		ReleaseSysCache(tuple);
	}
	return sensitive;
}

static bool
is_sensitive(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (check_functions_in_node(node, is_sensitive_function, NULL))
		return true;
	return expression_tree_walker(node, is_sensitive, context);
}

/* Volatile, and not one of those whose only effect is that the next value differs? */
static bool
has_effect_function(Oid function, void *context)
{
	switch (function)
	{
		case F_NEXTVAL:
		case F_RANDOM:
		case F_GEN_RANDOM_UUID:
		case F_CLOCK_TIMESTAMP:
		case F_TIMEOFDAY:
			return false;
		default:
			return func_volatile(function) == PROVOLATILE_VOLATILE;
	}
}

static bool
has_effect(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (check_functions_in_node(node, has_effect_function, NULL))
		return true;
	return expression_tree_walker(node, has_effect, context);
}

static bool
has_subplan(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubPlan) || IsA(node, AlternativeSubPlan))
		return true;
	return expression_tree_walker(node, has_subplan, context);
}

static bool
has_multiexpr(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubPlan) && ((SubPlan *) node)->subLinkType == MULTIEXPR_SUBLINK)
		return true;
	return expression_tree_walker(node, has_multiexpr, context);
}

static bool
has_exec_param(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXEC)
		return true;
	return expression_tree_walker(node, has_exec_param, context);
}

/* ---- plans ---- */

/* What a node evaluates by itself, as far as it can be volatile; its target list apart. */
static List *
conditions_of(Plan *plan)
{
	List *list = list_copy(plan->qual);

	switch (nodeTag(plan))
	{
		case T_NestLoop:
		case T_MergeJoin:
		case T_HashJoin:
			return list_concat(list, ((Join *) plan)->joinqual);
		case T_FunctionScan:
			return lappend(list, ((FunctionScan *) plan)->functions);
		case T_ValuesScan:
			return lappend(list, ((ValuesScan *) plan)->values_lists);
		case T_TableFuncScan:
			return lappend(list, ((TableFuncScan *) plan)->tablefunc);
		case T_Result:
			return lappend(list, ((Result *) plan)->resconstantqual);
		case T_Limit:
			return lappend(lappend(list, ((Limit *) plan)->limitCount), ((Limit *) plan)->limitOffset);
		case T_ModifyTable:
			list = lappend(list, ((ModifyTable *) plan)->returningLists);
			return lappend(list, ((ModifyTable *) plan)->onConflictSet);
		default:
			return list;
	}
}

typedef struct Collect
{
	PlannedStmt *stmt;
	bool (*wanted)(Node *, void *);
	Bitmapset *nodes; /* plan_node_id */
	Bitmapset *seen;  /* subplans already looked at */
} Collect;

static void collect(Plan *plan, Collect *into);

static void
collect_subplan(int plan_id, Collect *into)
{
	if (bms_is_member(plan_id, into->seen))
		return;
	into->seen = bms_add_member(into->seen, plan_id);
	collect(list_nth(into->stmt->subplans, plan_id - 1), into);
}

static bool
collect_subplans(Node *node, Collect *into)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubPlan))
		collect_subplan(((SubPlan *) node)->plan_id, into);
	return expression_tree_walker(node, collect_subplans, into);
}

static void
collect_list(List *plans, Collect *into)
{
	ListCell *lc;

	foreach (lc, plans)
		collect(lfirst(lc), into);
}

/* The nodes of a plan with wanted functions. */
static void
collect(Plan *plan, Collect *into)
{
	List *conditions;

	if (plan == NULL)
		return;
	check_stack_depth();
	conditions = conditions_of(plan);
	if (into->wanted((Node *) plan->targetlist, NULL) || into->wanted((Node *) conditions, NULL))
		into->nodes = bms_add_member(into->nodes, plan->plan_node_id);
	(void) collect_subplans((Node *) plan->targetlist, into);
	(void) collect_subplans((Node *) conditions, into);
	(void) collect_subplans((Node *) plan->initPlan, into);
	collect(plan->lefttree, into);
	collect(plan->righttree, into);
	switch (nodeTag(plan))
	{
		case T_Append:
			collect_list(((Append *) plan)->appendplans, into);
			break;
		case T_MergeAppend:
			collect_list(((MergeAppend *) plan)->mergeplans, into);
			break;
		case T_SubqueryScan:
			collect(((SubqueryScan *) plan)->subplan, into);
			break;
		case T_CteScan:
			collect_subplan(((CteScan *) plan)->ctePlanId, into);
			break;
		case T_CustomScan:
			collect_list(((CustomScan *) plan)->custom_plans, into);
			break;
		default:
			break;
	}
}

static Bitmapset *
sensitive_nodes(const Dsv3Safety *safety, Plan *plan)
{
	Collect into = {safety->stmt, is_sensitive, NULL, NULL};

	collect(plan, &into);
	return into.nodes;
}

void
dsv3_safety_init(Dsv3Safety *safety, PlannedStmt *stmt, int cursor_options)
{
	Collect sensitive = {stmt, is_sensitive, NULL, NULL};
	Collect effects = {stmt, has_effect, NULL, NULL};

	collect(stmt->planTree, &sensitive);
	for (int i = 1; i <= list_length(stmt->subplans); i++)
	{
		collect_subplan(i, &sensitive);
		collect_subplan(i, &effects);
	}
	safety->stmt = stmt;
	safety->cursor_options = cursor_options;
	safety->modifies = stmt->commandType != CMD_SELECT || stmt->hasModifyingCTE;
	safety->n_sensitive = bms_num_members(sensitive.nodes);
	safety->subplans_have_effects = !bms_is_empty(effects.nodes);
}

/* ---- the questions ---- */

/* Would WHERE CURRENT OF, which looks through some nodes, come to a table's scan this way? */
static bool
leads_to_scan(Plan *plan)
{
	if (plan == NULL)
		return false;
	switch (nodeTag(plan))
	{
		case T_SeqScan:
		case T_SampleScan:
		case T_IndexScan:
		case T_IndexOnlyScan:
		case T_BitmapHeapScan:
		case T_TidScan:
		case T_TidRangeScan:
		case T_ForeignScan:
		case T_CustomScan:
		case T_Append:
			return true;
		case T_Result:
		case T_Limit:
			return leads_to_scan(plan->lefttree);
		case T_SubqueryScan:
			return leads_to_scan(((SubqueryScan *) plan)->subplan);
		default:
			return false;
	}
}

bool
dsv3_has_table_place(Plan *plan)
{
	switch (nodeTag(plan))
	{
		case T_SeqScan:
		case T_SampleScan:
		case T_IndexScan:
		case T_BitmapHeapScan:
		case T_TidScan:
		case T_TidRangeScan:
			return true;
		default:
			return false;
	}
}

static bool
has_lock_rows(Plan *plan)
{
	ListCell *lc;

	if (plan == NULL)
		return false;
	if (IsA(plan, LockRows) || has_lock_rows(plan->lefttree) || has_lock_rows(plan->righttree))
		return true;
	if (IsA(plan, SubqueryScan))
		return has_lock_rows(((SubqueryScan *) plan)->subplan);
	if (IsA(plan, Append))
	{
		foreach (lc, ((Append *) plan)->appendplans)
		{
			if (has_lock_rows(lfirst(lc)))
				return true;
		}
	}
	return false;
}

/*
 * A cursor's position, for WHERE CURRENT OF, is the row that its scan read last, or with FOR UPDATE the row that was locked
 * last. The node tells the row it returned in place of the scan's, but it cannot stand above what locks rows, nor above
 * nodes that would have led to a scan.
 */
bool
dsv3_safe_above(const Dsv3Safety *safety, Plan *plan)
{
	if (has_lock_rows(plan))
		return false;
	if (safety->cursor_options & CURSOR_OPT_FAST_PLAN)
		return dsv3_has_table_place(plan) || !leads_to_scan(plan);
	return true;
}

bool
dsv3_safe_program(const Dsv3Safety *safety, const Dsv3Program *program, List *tlist, Plan *child,
				  Plan *replaced)
{
	List *early = NIL; /* evaluated ahead, apart from the child */
	Bitmapset *below = sensitive_nodes(safety, child);
	Bitmapset *here = replaced ? sensitive_nodes(safety, replaced) : below;
	bool elsewhere = safety->n_sensitive > bms_num_members(here);
	ListCell *lc;

	foreach (lc, program->steps)
	{
		Dsv3Step *step = lfirst(lc);

		early = lappend(early, step->guard);
		if (step->kind == DSV3_STEP_CALL)
			early = lappend(early, ((FuncExpr *) step->expr)->args);
		else
			early = lappend(early, step->expr);
	}

	/* Of a node that becomes the child the target list is in tlist or in steps by now. */
	if (replaced == child)
		below = bms_del_member(below, child->plan_node_id);
	if (!bms_is_empty(below) || is_sensitive((Node *) early, NULL) ||
		(replaced && is_sensitive((Node *) conditions_of(replaced), NULL)))
	{
		if (safety->modifies || (safety->cursor_options & CURSOR_OPT_FAST_PLAN) || elsewhere ||
			is_sensitive((Node *) tlist, NULL))
			return false;
	}

	if ((has_subplan((Node *) early, NULL) || contain_mutable_functions((Node *) early)) &&
		(has_effect((Node *) tlist, NULL) ||
		 (safety->subplans_have_effects && has_subplan((Node *) tlist, NULL))))
		return false;
	if (contain_volatile_functions((Node *) early) && contain_volatile_functions((Node *) tlist))
		return false;

	/* Its parameters are there only after it ran, with the target list. */
	return !has_multiexpr((Node *) tlist, NULL) || !has_exec_param((Node *) early, NULL);
}
