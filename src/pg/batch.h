/*
 * batch.h
 *	  Rows read ahead, so that a query's calls of the model run side by side.
 *
 * The planner hook (batch_plan.c) looks for calls of the functions of ask.h in the finished plan, and puts a node of our own,
 * "Dsv3 Apply", where they are. The node reads rows from its child ahead of the row it returns, starts their calls
 * as soon as their arguments are there, and returns the rows in order. The SQL stays as it is.
 *
 *	above (usual)            below an aggregate            in place of a nested loop
 *	Dsv3 Apply  T            Agg  sum(length(OUTER.k))     Dsv3 Apply  T
 *	  -> N  T'                 -> Dsv3 Apply  columns + k    -> outer
 *	                                -> child
 *
 * Above: node N had the target list T. Now it delivers T', the leaves of T that only N can compute (columns, aggregates,
 * window functions), and the node delivers T: the same columns under the same names, so no parent has to change. Conditions of N that
 * call the model move into the node, and with them all that come after, so that none is asked earlier than before.
 * Below: aggregates evaluate their arguments themselves, so the node passes its child's columns on and adds the calls'.
 *
 * What the node does with a row is a program: steps that each add a column to the row or decide its fate. A row in the
 * node is an array of columns; custom_scan_tlist describes it, so that the executor's and EXPLAIN's machinery find their way.
 *
 *	CALL	start a request; the column is there when its answer is
 *	EXPR	compute now: which CASE arm is taken, the value of COALESCE so far
 *	QUAL	drop the row if this is not true; no later step begins before
 *
 * A step runs when the columns it refers to are there, so independent calls of a row run together and nested ones
 * follow one another while other rows do the same. A step with a guard is skipped, its column NULL, unless the guard is true:
 * that is how the arms of CASE, COALESCE, AND and OR that are not taken make no call.
 *
 * Files: batch_split.c takes expressions apart into steps, batch_safe.c knows where rows must not be read ahead,
 * batch_plan.c walks the plan and makes the nodes, batch_exec.c runs them, batch_window.c holds the requests in flight,
 * batch_explain.c shows them.
 */
#ifndef DSV3_BATCH_H
#define DSV3_BATCH_H

#include "pg/compat.h"

#include "nodes/extensible.h"
#include "nodes/plannodes.h"

#include "pg/ask.h"

#define DSV3_APPLY_NAME "Dsv3 Apply"

/* A cursor option beside PostgreSQL's own, for SPI_prepare_cursor: all rows of the statement will be read. */
#define DSV3_CURSOR_ALL_ROWS 0x40000000

/* ---- programs ---- */

typedef enum Dsv3StepKind
{
	DSV3_STEP_CALL,
	DSV3_STEP_EXPR,
	DSV3_STEP_QUAL,
} Dsv3StepKind;

/* Expressions are over the columns of the row: Vars with varno INDEX_VAR. */
typedef struct Dsv3Step
{
	Dsv3StepKind kind;
	int column;  /* attribute number of the column it makes; 0: none */
	Expr *guard; /* NULL: always */
	Expr *expr;  /* of a CALL: a FuncExpr */
} Dsv3Step;

typedef struct Dsv3Program
{
	List *
		columns; /* TargetEntries of the row: Var(OUTER_VAR) for the child's columns, the expression for others */
	List *steps; /* Dsv3Step */
	int n_calls;

	/* The child's target list. Fixed: it is what it is, and Vars of OUTER_VAR refer to it. Else it grows with the
	 * leaves that are met. */
	List *child;
	bool fixed;

	/* In place of a nested loop: what the loop's parameters and the inner side's columns are. */
	List *params;        /* NestLoopParam */
	List *inner_columns; /* expressions over columns, by attribute number of INNER_VAR */
} Dsv3Program;

/* Begin a program over the child's target list (fixed), or over leaves that are to be found. */
extern void dsv3_program_over(Dsv3Program *program, List *child_tlist);
extern void dsv3_program_over_leaves(Dsv3Program *program);

/* Is there a call that the node can make, in a place that is evaluated by itself? Not inside of aggregates. */
extern bool dsv3_has_call(Node *expr);

/* The expression over the row's columns; its calls have become steps, under the guard if there is one. */
extern Expr *dsv3_program_split(Dsv3Program *program, Expr *expr, Expr *guard);

/* The same, and a QUAL step of it. Returns the expression. */
extern Expr *dsv3_program_qual(Dsv3Program *program, Expr *qual);

/* A column for an expression over columns, computed when it is NULL or the guard is true. */
extern Var *dsv3_program_column(Dsv3Program *program, Expr *expr, Expr *guard);

/* A column of the child: a leaf, added to its target list if it is not there. */
extern Expr *dsv3_program_leaf(Dsv3Program *program, Expr *leaf);

/* The plans below a plan, in a new list. */
extern List *dsv3_plan_children(Plan *plan);

/* ---- safety ---- */

typedef struct Dsv3Safety
{
	PlannedStmt *stmt;
	int cursor_options;
	bool modifies;
	int n_sensitive; /* nodes of the statement with volatile functions that may run SQL */
	bool subplans_have_effects;
} Dsv3Safety;

extern void dsv3_safety_init(Dsv3Safety *safety, PlannedStmt *stmt, int cursor_options);

/* May rows of this plan be read ahead, so far as positions of cursors go? */
extern bool dsv3_safe_above(const Dsv3Safety *safety, Plan *plan);

/* Is it a scan whose rows have a place in a table that can be asked for as a column? */
extern bool dsv3_has_table_place(Plan *plan);

/* May this program run ahead of this target list, over this child? replaced: the node, as it was, that gives its target
 * list to the program; it may be the child itself. NULL: none. */
extern bool dsv3_safe_program(const Dsv3Safety *safety, const Dsv3Program *program, List *tlist, Plan *child,
							  Plan *replaced);

/* ---- nodes ---- */

/* What a node's parents say of it. */
typedef struct Dsv3Demand
{
	bool eager;         /* all its rows will be read */
	Node *limit_offset; /* or NULL */
	Node *limit_count;  /* or NULL: no limit is known */
} Dsv3Demand;

/* Fields of custom_private: a list of two integer lists, the header and four numbers (kind, column, guard, expr) for
 * each step. Guards, expressions and limits are given by their position in custom_exprs; -1: none. */
enum
{
	DSV3_HEADER_EAGER,
	DSV3_HEADER_LIMIT_OFFSET,
	DSV3_HEADER_LIMIT_COUNT,
	DSV3_HEADER_CTID_COLUMN, /* 0: none; else the row's place in the table below, for WHERE CURRENT OF */
	DSV3_N_HEADER,
};

extern const CustomScanMethods dsv3_apply_scan_methods;
extern const CustomExecMethods dsv3_apply_exec_methods;

/* Hooks; in the postmaster, while the library is preloaded. */
extern void dsv3_batch_install(void);

/* ExecInitCustomScan's part: the state of a node. */
extern Node *dsv3_apply_create_state(CustomScan *scan);

/* ExplainCustomScan's part. */
extern void dsv3_apply_explain(CustomScanState *node, List *ancestors, ExplainState *es);

#endif /* DSV3_BATCH_H */
