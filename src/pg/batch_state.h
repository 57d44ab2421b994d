/*
 * batch_state.h
 *	  The execution state of a "Dsv3 Apply" node: batch_exec.c's own, and read by batch_explain.c.
 */
#ifndef DSV3_BATCH_STATE_H
#define DSV3_BATCH_STATE_H

#include "pg/compat.h"

#include "nodes/execnodes.h"
#include "nodes/extensible.h"

#include "pg/ask.h"
#include "pg/batch.h"
#include "pg/batch_window.h"

/* A step of the program, ready to run. */
typedef struct Dsv3ApplyStep
{
	Dsv3StepKind kind;
	int column;       /* from 1; 0: none */
	Bitmapset *needs; /* steps that must be done before it */
	ExprState *guard; /* NULL: always */
	ExprState *expr;  /* of EXPR and QUAL */
	int16 typlen;     /* of the column */
	bool typbyval;

	/* Of a CALL. */
	const Dsv3Asker *asker;
	FmgrInfo flinfo;
	FunctionCallInfo fcinfo;
	ExprState **args;
} Dsv3ApplyStep;

typedef enum Dsv3RowStepState
{
	DSV3_ROW_WAITING, /* for other steps, or for its turn */
	DSV3_ROW_LETTER,  /* a call that waits for room to be sent */
	DSV3_ROW_SENT,    /* a call in flight, or ended with its value not made */
	DSV3_ROW_DONE,    /* the column is there */
} Dsv3RowStepState;

/* Where a row is in the program; pointers are in the row's context, flights in the window's. */
typedef struct Dsv3RowStep
{
	Dsv3RowStepState state;
	Dsv3Question *question; /* of a call with a request, or a failure to make one */
	Dsv3Letter *letter;
	Dsv3Flight *flight;   /* in which the row has a part */
	Dsv3Failure *failure; /* NULL: none so far */
} Dsv3RowStep;

typedef struct Dsv3ApplyRow
{
	struct Dsv3ApplyRow *next_free;
	MemoryContext context; /* of the columns' values */
	Datum *values;
	bool *nulls;
	Dsv3RowStep *steps;
	int last; /* the step after which nothing is done: the last, a failed call, a condition that does not hold */
	bool dropped; /* a condition does not hold */
	bool hurried; /* its flights know that it is the first */
} Dsv3ApplyRow;

typedef struct Dsv3ApplyState
{
	CustomScanState css;
	MemoryContext query;
	int n_steps;
	Dsv3ApplyStep *steps;
	Bitmapset *needed; /* steps that others need */
	int n_columns;
	int *from_child; /* for each column: the child's attribute number, or 0 */
	ExprContext *step_context;

	bool eager;
	ExprState *limit_offset;
	ExprState *limit_count;
	int ctid_column;

	Dsv3Window *window;
	bool opened;  /* size and wanted are set */
	int size;     /* rows that may be in the ring */
	int64 wanted; /* rows still wanted under a limit; -1: not known */
	bool child_done;
	bool no_room;        /* a letter was refused in this round */
	Dsv3ApplyRow **rows; /* a ring of DSV3_MAX_WINDOW */
	int first;
	int n_rows;
	Dsv3ApplyRow *free_rows;
	Dsv3ApplyRow *returned;    /* its memory is in use until the next call */
	const Dsv3ApplyRow *shown; /* in the scan slot */

	uint64 skipped; /* calls whose guard was not true */
	Size peak;      /* bytes of rows and answers */
} Dsv3ApplyState;

#endif /* DSV3_BATCH_STATE_H */
