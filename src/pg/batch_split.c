/*
 * batch_split.c
 *	  Expressions of a finished plan, taken apart into the steps of a program (see batch.h).
 *
 * A call may become a step of its own where PostgreSQL evaluates it whatever the other parts of the expression give. So the walk
 * descends through the nodes that evaluate all their inputs, and through CASE, COALESCE, AND and OR with guards: a
 * helper column holds what decides, computed once, and what comes after is guarded by it. Whatever else an
 * expression has stays together, and is computed when the row is returned; calls in there run one by one, as without us.
 *
 * The plan has been through set_plan_references: Vars name columns of the child or of the scanned relation, and
 * operators made here must bring their function along, since nobody fills it in any more.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/fmgroids.h"

#include "pg/batch.h"

typedef struct SplitContext
{
	Dsv3Program *program;
	Expr *guard; /* what must be true for the expression to be evaluated; NULL: it always is */
} SplitContext;

static Node *split(Node *node, SplitContext *context);
static Node *replace_leaves(Node *node, SplitContext *context);

void
dsv3_program_over(Dsv3Program *program, List *child_tlist)
{
	ListCell *lc;

	memset(program, 0, sizeof(*program));
	program->fixed = true;
	program->child = child_tlist;
	foreach (lc, child_tlist)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, lc);
		Var *var = makeVar(OUTER_VAR, entry->resno, exprType((Node *) entry->expr),
						   exprTypmod((Node *) entry->expr), exprCollation((Node *) entry->expr), 0);

		program->columns =
			lappend(program->columns, makeTargetEntry((Expr *) var, entry->resno, entry->resname, false));
	}
}

void
dsv3_program_over_leaves(Dsv3Program *program)
{
	memset(program, 0, sizeof(*program));
}

/* ---- what is what ---- */

/* What only the child can evaluate. */
static bool
is_leaf(Node *node)
{
	switch (nodeTag(node))
	{
		case T_Var:
		case T_Aggref:
		case T_GroupingFunc:
		case T_WindowFunc:
			return true;
		case T_FuncExpr:
			return ((FuncExpr *) node)->funcretset;
		case T_OpExpr:
			return ((OpExpr *) node)->opretset;
		default:
			return false;
	}
}

/* Things that have a meaning only inside the expression around them. */
static bool
has_placeholder(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, CaseTestExpr) || IsA(node, CoerceToDomainValue))
		return true;
	return expression_tree_walker(node, has_placeholder, context);
}

/* The call in the form of a FuncExpr, if the node is a call that a step can make; else NULL. */
static FuncExpr *
as_call(Node *node)
{
#ifdef DSV3_BATCH_TORTURE
	/* Every function of PostgreSQL's own tests counts as slow. */
	if (IsA(node, OpExpr) && !((OpExpr *) node)->opretset)
	{
		OpExpr *op = (OpExpr *) node;
		FuncExpr *call = makeFuncExpr(op->opfuncid, op->opresulttype, op->args, op->opcollid, op->inputcollid,
									  COERCE_EXPLICIT_CALL);

		return OidIsValid(op->opfuncid) && dsv3_asker_of(op->opfuncid) ? call : NULL;
	}
#endif
	if (IsA(node, FuncExpr) && !((FuncExpr *) node)->funcretset && dsv3_asker_of(((FuncExpr *) node)->funcid))
		return (FuncExpr *) node;
	return NULL;
}

static bool
has_call_walker(Node *node, void *context)
{
	if (node == NULL || is_leaf(node) || IsA(node, SubPlan) || IsA(node, AlternativeSubPlan))
		return false;
	if (as_call(node))
		return true;
	return expression_tree_walker(node, has_call_walker, context);
}

bool
dsv3_has_call(Node *expr)
{
	return has_call_walker(expr, NULL);
}

/* Does the node evaluate all its inputs, each once? */
static bool
evaluates_all(Node *node)
{
	switch (nodeTag(node))
	{
		case T_FuncExpr:
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
		case T_ScalarArrayOpExpr:
		case T_FieldSelect:
		case T_RelabelType:
		case T_CoerceViaIO:
		case T_ConvertRowtypeExpr:
		case T_CollateExpr:
		case T_CoerceToDomain:
		case T_NullTest:
		case T_BooleanTest:
		case T_ArrayExpr:
		case T_RowExpr:
		case T_MinMaxExpr:
			return true;
		case T_BoolExpr:
			return ((BoolExpr *) node)->boolop == NOT_EXPR;
		default:
			return false;
	}
}

/* ---- columns ---- */

static Var *
column_var(const Dsv3Program *program, int number)
{
	TargetEntry *entry = list_nth_node(TargetEntry, program->columns, number - 1);
	Node *expr = (Node *) entry->expr;

	return makeVar(INDEX_VAR, (AttrNumber) number, exprType(expr), exprTypmod(expr), exprCollation(expr), 0);
}

static int
add_column(Dsv3Program *program, Expr *expr)
{
	int number = list_length(program->columns) + 1;

	program->columns =
		lappend(program->columns, makeTargetEntry(expr, (AttrNumber) number, pstrdup("?column?"), false));
	return number;
}

static void
add_step(Dsv3Program *program, Dsv3StepKind kind, int column, Expr *guard, Expr *expr)
{
	Dsv3Step *step = palloc(sizeof(Dsv3Step));

	step->kind = kind;
	step->column = column;
	step->guard = guard;
	step->expr = expr;
	program->steps = lappend(program->steps, step);
	program->n_calls += kind == DSV3_STEP_CALL;
}

Var *
dsv3_program_column(Dsv3Program *program, Expr *expr, Expr *guard)
{
	int column = add_column(program, expr);

	add_step(program, DSV3_STEP_EXPR, column, guard, expr);
	return column_var(program, column);
}

Expr *
dsv3_program_leaf(Dsv3Program *program, Expr *leaf)
{
	ListCell *lc;
	ListCell *column;
	int number;

	if (program->fixed)
	{
		/* Of a nested loop the inner side's columns are known by now. */
		Var *var = castNode(Var, leaf);

		if (var->varno == INNER_VAR)
			return copyObject((Expr *) list_nth(program->inner_columns, var->varattno - 1));
		if (var->varno == INDEX_VAR)
			return leaf; /* it is one already */
		Assert(var->varno == OUTER_VAR);
		return (Expr *) column_var(program, var->varattno);
	}
	foreach (lc, program->child)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, lc);

		if (!equal(entry->expr, leaf))
			continue;
		number = 0;
		foreach (column, program->columns)
		{
			Var *var = (Var *) lfirst_node(TargetEntry, column)->expr;

			number++;
			if (IsA(var, Var) && var->varno == OUTER_VAR && var->varattno == entry->resno)
				return (Expr *) column_var(program, number);
		}
	}
	number = list_length(program->child) + 1;
	program->child = lappend(program->child, makeTargetEntry(leaf, (AttrNumber) number, NULL, false));
	number =
		add_column(program, (Expr *) makeVar(OUTER_VAR, (AttrNumber) number, exprType((Node *) leaf),
											 exprTypmod((Node *) leaf), exprCollation((Node *) leaf), 0));
	return (Expr *) column_var(program, number);
}

/* ---- expressions ---- */

/* The value that a nested loop would have put into this parameter; NULL: it is none of its. */
static Node *
loop_param(const Dsv3Program *program, Node *node)
{
	Param *param = (Param *) node;
	ListCell *lc;

	if (!IsA(node, Param) || param->paramkind != PARAM_EXEC)
		return NULL;
	foreach (lc, program->params)
	{
		NestLoopParam *loop = lfirst_node(NestLoopParam, lc);

		if (loop->paramno == param->paramid)
			return (Node *) loop->paramval;
	}
	return NULL;
}

/* Leaves and loop parameters become columns; NULL: the node is neither. */
static Node *
replace_leaf(Node *node, SplitContext *context)
{
	Node *value = loop_param(context->program, node);

	if (value)
		node = value;
	if (value || is_leaf(node))
		return (Node *) dsv3_program_leaf(context->program, copyObject((Expr *) node));
	return NULL;
}

static Node *
replace_leaves(Node *node, SplitContext *context)
{
	Node *leaf;

	if (node == NULL)
		return NULL;
	leaf = replace_leaf(node, context);
	return leaf ? leaf : expression_tree_mutator(node, replace_leaves, context);
}

/* A column for the call: an earlier one that asks the same, or a new one. */
static Node *
split_call(FuncExpr *call, SplitContext *context)
{
	Dsv3Program *program = context->program;
	FuncExpr *copy = makeNode(FuncExpr);
	int column;

	memcpy(copy, call, sizeof(FuncExpr));
	copy->args = (List *) split((Node *) call->args, context);
#ifndef DSV3_BATCH_TORTURE
	if (dsv3_guc_dedup && !contain_volatile_functions((Node *) copy->args))
	{
		ListCell *lc;

		foreach (lc, program->steps)
		{
			Dsv3Step *step = lfirst(lc);

			if (step->kind == DSV3_STEP_CALL && equal(step->expr, copy) &&
				(step->guard == NULL || equal(step->guard, context->guard)))
				return (Node *) column_var(program, step->column);
		}
	}
#endif
	column = add_column(program, (Expr *) copy);
	add_step(program, DSV3_STEP_CALL, column, context->guard, (Expr *) copy);
	return (Node *) column_var(program, column);
}

/* Both must be true; either may be NULL. */
static Expr *
and_guard(Expr *outer, Expr *inner)
{
	return outer ? makeBoolExpr(AND_EXPR, list_make2(outer, inner), -1) : inner;
}

static Expr *
null_test(Var *var)
{
	NullTest *test = makeNode(NullTest);

	test->arg = (Expr *) var;
	test->nulltesttype = IS_NULL;
	test->argisrow = false; /* of a row too it is the row that counts, as for COALESCE */
	test->location = -1;
	return (Expr *) test;
}

static Expr *
boolean_test(Var *var, BoolTestType type)
{
	BooleanTest *test = makeNode(BooleanTest);

	test->arg = (Expr *) var;
	test->booltesttype = type;
	test->location = -1;
	return (Expr *) test;
}

static Expr *
int_const(int value)
{
	return (Expr *) makeConst(INT4OID, -1, InvalidOid, sizeof(int32), Int32GetDatum(value), false, true);
}

static Expr *
arm_taken(Var *selected, int arm)
{
	OpExpr *op = (OpExpr *) make_opclause(Int4EqualOperator, BOOLOID, false, (Expr *) selected,
										  int_const(arm), InvalidOid, InvalidOid);

	op->opfuncid = F_INT4EQ;
	return (Expr *) op;
}

/*
 * CASE: a helper column says which arm is taken. Its conditions are evaluated there, once; only the first one, or the
 * operand that all are compared with, is evaluated in any case, so only its calls become steps.
 */
static Node *
split_case(CaseExpr *expr, SplitContext *context)
{
	CaseExpr *choice = makeNode(CaseExpr);
	CaseExpr *result = makeNode(CaseExpr);
	Expr *outer = context->guard;
	Var *selected;
	ListCell *lc;
	int arm = 0;

	choice->casetype = INT4OID;
	choice->location = -1;
	choice->arg = (Expr *) split((Node *) expr->arg, context);
	choice->defresult = int_const(list_length(expr->args) + 1);
	foreach (lc, expr->args)
	{
		CaseWhen *when = makeNode(CaseWhen);
		Node *condition = (Node *) lfirst_node(CaseWhen, lc)->expr;

		arm++;
		when->expr = (Expr *) (arm == 1 && expr->arg == NULL ? split(condition, context)
															 : replace_leaves(condition, context));
		when->result = int_const(arm);
		when->location = -1;
		choice->args = lappend(choice->args, when);
	}
	selected = dsv3_program_column(context->program, (Expr *) choice, outer);

	memcpy(result, expr, sizeof(CaseExpr));
	result->arg = NULL;
	result->args = NIL;
	arm = 0;
	foreach (lc, expr->args)
	{
		CaseWhen *when = makeNode(CaseWhen);

		when->expr = arm_taken(selected, ++arm);
		context->guard = and_guard(outer, arm_taken(selected, arm));
		when->result = (Expr *) split((Node *) lfirst_node(CaseWhen, lc)->result, context);
		when->location = -1;
		result->args = lappend(result->args, when);
	}
	context->guard = and_guard(outer, arm_taken(selected, ++arm));
	result->defresult = (Expr *) split((Node *) expr->defresult, context);
	context->guard = outer;
	return (Node *) result;
}

/*
 * COALESCE, AND and OR: from left to right, until one input decides. Inputs up to and with the first call come together in a
 * helper column; each further call is guarded by the helper before it, and followed by another one.
 */
typedef struct Chain
{
	Node *expr; /* CoalesceExpr or BoolExpr */
	List *args;
} Chain;

static Expr *
chain_of(Chain *chain, List *args)
{
	if (IsA(chain->expr, CoalesceExpr))
	{
		CoalesceExpr *copy = makeNode(CoalesceExpr);

		memcpy(copy, chain->expr, sizeof(CoalesceExpr));
		copy->args = args;
		return (Expr *) copy;
	}
	return makeBoolExpr(((BoolExpr *) chain->expr)->boolop, args, -1);
}

static Expr *
chain_goes_on(Chain *chain, Var *so_far)
{
	if (IsA(chain->expr, CoalesceExpr))
		return null_test(so_far);
	return boolean_test(so_far, ((BoolExpr *) chain->expr)->boolop == AND_EXPR ? IS_NOT_FALSE : IS_NOT_TRUE);
}

static Node *
split_chain(Chain *chain, SplitContext *context)
{
	Expr *outer = context->guard;
	List *inputs = NIL; /* not yet in a helper column */
	ListCell *lc;
	bool first = true;

	foreach (lc, chain->args)
	{
		Node *arg = lfirst(lc);

		if (!first && dsv3_has_call(arg))
		{
			Expr *so_far = list_length(inputs) == 1 ? linitial(inputs) : chain_of(chain, inputs);
			Var *helper = dsv3_program_column(context->program, so_far, outer);

			inputs = list_make1(helper);
			context->guard = and_guard(outer, chain_goes_on(chain, helper));
		}
		inputs = lappend(inputs, split(arg, context));
		context->guard = outer;
		first = false;
	}
	return (Node *) (list_length(inputs) == 1 ? linitial(inputs) : chain_of(chain, inputs));
}

static Node *
split(Node *node, SplitContext *context)
{
	Node *leaf;
	FuncExpr *call;

	if (node == NULL)
		return NULL;
	check_stack_depth();
	if (IsA(node, List))
		return expression_tree_mutator(node, split, context);
	leaf = replace_leaf(node, context);
	if (leaf)
		return leaf;
	if (!dsv3_has_call(node))
		return replace_leaves(node, context);
	call = as_call(node);
	if (call && !has_placeholder((Node *) call, NULL))
		return split_call(call, context);
	if (evaluates_all(node) && !has_placeholder(node, NULL))
		return expression_tree_mutator(node, split, context);
	if (IsA(node, CaseExpr))
		return split_case((CaseExpr *) node, context);
	if (IsA(node, CoalesceExpr))
	{
		Chain chain = {node, ((CoalesceExpr *) node)->args};

		return split_chain(&chain, context);
	}
	if (IsA(node, BoolExpr) && ((BoolExpr *) node)->boolop != NOT_EXPR)
	{
		Chain chain = {node, ((BoolExpr *) node)->args};

		return split_chain(&chain, context);
	}
	return replace_leaves(node, context);
}

Expr *
dsv3_program_split(Dsv3Program *program, Expr *expr, Expr *guard)
{
	SplitContext context = {program, guard};

	return (Expr *) split((Node *) expr, &context);
}

Expr *
dsv3_program_qual(Dsv3Program *program, Expr *qual)
{
	Expr *condition = dsv3_program_split(program, qual, NULL);

	add_step(program, DSV3_STEP_QUAL, 0, NULL, condition);
	return condition;
}
