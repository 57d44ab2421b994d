/*
 * row.c
 *	  Rows that functions return; see row.h.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "pg/row.h"

void
dsv3_row_add(Dsv3Row *row, Datum value, bool null)
{
	Assert(row->n < (int) lengthof(row->values));
	row->values[row->n] = value;
	row->nulls[row->n++] = null;
}

void
dsv3_row_text(Dsv3Row *row, const char *text)
{
	dsv3_row_add(row, text ? CStringGetTextDatum(text) : (Datum) 0, text == NULL);
}

void
dsv3_row_int4(Dsv3Row *row, int32 value)
{
	dsv3_row_add(row, Int32GetDatum(value), false);
}

void
dsv3_row_int8(Dsv3Row *row, uint64 value)
{
	dsv3_row_add(row, Int64GetDatum((int64) value), false);
}

void
dsv3_row_float8(Dsv3Row *row, double value)
{
	dsv3_row_add(row, Float8GetDatum(value), false);
}

void
dsv3_row_time(Dsv3Row *row, TimestampTz time)
{
	dsv3_row_add(row, TimestampTzGetDatum(time), time == 0);
}

static void
check_columns(const Dsv3Row *row, const TupleDesc type)
{
	if (type->natts != row->n)
		elog(ERROR, "row has %d columns, its type %d", row->n, type->natts);
}

Datum
dsv3_row_result(FunctionCallInfo fcinfo, const Dsv3Row *row)
{
	TupleDesc type;

	if (get_call_result_type(fcinfo, NULL, &type) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	check_columns(row, type);
	return HeapTupleGetDatum(
		heap_form_tuple(BlessTupleDesc(type), (Datum *) row->values, (bool *) row->nulls));
}

Dsv3Rows
dsv3_rows_begin(FunctionCallInfo fcinfo)
{
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext old;
	Dsv3Rows rows;

	if (info == NULL || !IsA(info, ReturnSetInfo) || !(info->allowedModes & SFRM_Materialize))
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("set-valued function called in context that cannot accept a set")));
	old = MemoryContextSwitchTo(info->econtext->ecxt_per_query_memory);
	if (get_call_result_type(fcinfo, NULL, &rows.type) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	rows.store = tuplestore_begin_heap(info->allowedModes & SFRM_Materialize_Random, false, work_mem);
	info->returnMode = SFRM_Materialize;
	info->setResult = rows.store;
	info->setDesc = rows.type;
	MemoryContextSwitchTo(old);
	return rows;
}

void
dsv3_rows_put(Dsv3Rows *rows, const Dsv3Row *row)
{
	check_columns(row, rows->type);
	tuplestore_putvalues(rows->store, rows->type, (Datum *) row->values, (bool *) row->nulls);
}
