/*
 * row.h
 *	  Rows that functions written in C return: built column by column, one or many.
 */
#ifndef DSV3_ROW_H
#define DSV3_ROW_H

#include "pg/compat.h"

#include "datatype/timestamp.h"
#include "utils/tuplestore.h"

typedef struct Dsv3Row
{
	Datum values[24];
	bool nulls[24];
	int n;
} Dsv3Row;

/* Add a column. */
extern void dsv3_row_add(Dsv3Row *row, Datum value, bool null);
extern void dsv3_row_text(Dsv3Row *row, const char *text); /* NULL: null */
extern void dsv3_row_int4(Dsv3Row *row, int32 value);
extern void dsv3_row_int8(Dsv3Row *row, uint64 value);
extern void dsv3_row_float8(Dsv3Row *row, double value);
extern void dsv3_row_time(Dsv3Row *row, TimestampTz time); /* 0: null */

/* The row as the result of a function that returns one; its type must have as many columns. */
extern Datum dsv3_row_result(FunctionCallInfo fcinfo, const Dsv3Row *row);

/* A function that returns a set, materialised: begin, then put rows; the function itself returns (Datum) 0. */
typedef struct Dsv3Rows
{
	Tuplestorestate *store;
	TupleDesc type;
} Dsv3Rows;

extern Dsv3Rows dsv3_rows_begin(FunctionCallInfo fcinfo);
extern void dsv3_rows_put(Dsv3Rows *rows, const Dsv3Row *row);

#endif /* DSV3_ROW_H */
