/*
 * set_functions.c
 *	  The forms that take an array: one row for each element, with its place in the array, whatever became of it.
 *
 * Each element is a call of the function's dsv3_try_ form with the array's element as its input: the same request, the same
 * columns. The calls run ahead of the row that is returned. Failures that concern one element are a row like any other, so they
 * cost no more than that; all others raise. An element that is NULL makes a row of NULLs and no call.
 *
 * Values are returned one per call, so in the select list a row is there as soon as its answer and those before it are.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"

#include "pg/ahead.h"
#include "pg/extract.h"
#include "pg/functions.h"

PG_FUNCTION_INFO_V1(dsv3_generate_batch_1_0);
PG_FUNCTION_INFO_V1(dsv3_extract_json_batch_1_0);

#define MAX_ARGS    7
#define MAX_COLUMNS 12

/* A function with a form that takes an array, which is its first argument. */
typedef struct SetForm
{
	const char *symbol;
	const Dsv3Asker *asker; /* of the dsv3_try_ form */
	void (*columns)(bool ok, const Dsv3Answer *answer, Dsv3Failure *failure, Datum *values, bool *nulls);
	int n_args;
	int argument[MAX_ARGS]; /* of the set form, for each of the dsv3_try_ form's */
	int required; /* the set form's argument whose NULL means no rows, as a call would make none; -1: there is none */
} SetForm;

/* One execution; in the memory of the set function. */
typedef struct SetState
{
	const SetForm *form;
	FmgrInfo flinfo; /* of the calls, which keep what they need between two of them there */
	FunctionCallInfo call;
	int input; /* the calls' argument that is the element */
	Datum *elements;
	bool *nulls;
	int n;
	int asked;
	Dsv3Ahead *ahead;
} SetState;

static bool
ask_element(void *arg, Dsv3AskResult *result, Dsv3Question *question, Dsv3Request *request,
			Dsv3Failure *failure)
{
	SetState *state = arg;
	NullableDatum *input = &state->call->args[state->input];

	if (state->asked == state->n)
		return false;
	input->value = state->elements[state->asked];
	input->isnull = state->nulls[state->asked++];
	*result = dsv3_ask(state->form->asker, state->call, question, request, failure);
	request->function = state->form->symbol;
	return true;
}

static Datum
copy_argument(FunctionCallInfo fcinfo, int i)
{
	Oid type = get_fn_expr_argtype(fcinfo->flinfo, i);
	int16 typlen;
	bool typbyval;

	if (PG_ARGISNULL(i))
		return (Datum) 0;
	get_typlenbyval(type, &typlen, &typbyval);
	return typlen == -1 ? PointerGetDatum(PG_DETOAST_DATUM_COPY(PG_GETARG_DATUM(i)))
						: datumCopy(PG_GETARG_DATUM(i), typbyval, typlen);
}

/* Begin an execution in the current memory context; NULL: there are no rows. */
static SetState *
begin(FunctionCallInfo fcinfo, const SetForm *form)
{
	SetState *state;
	ArrayType *array;

	if (PG_ARGISNULL(0) || (form->required >= 0 && PG_ARGISNULL(form->required)))
		return NULL;
	array = PG_GETARG_ARRAYTYPE_P_COPY(0);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("inputs must be a one-dimensional array")));
	state = palloc0(sizeof(SetState));
	state->form = form;
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &state->elements, &state->nulls, &state->n);
	state->flinfo = *fcinfo->flinfo;
	state->flinfo.fn_extra = NULL;
	state->flinfo.fn_mcxt = CurrentMemoryContext;
	state->call = palloc0(SizeForFunctionCallInfo(MAX_ARGS));
	InitFunctionCallInfoData(*state->call, &state->flinfo, form->n_args, fcinfo->fncollation, NULL, NULL);
	for (int i = 0; i < form->n_args; i++)
	{
		int from = form->argument[i];

		if (from == 0)
			state->input = i;
		else
		{
			state->call->args[i].value = copy_argument(fcinfo, from);
			state->call->args[i].isnull = PG_ARGISNULL(from);
		}
	}
	state->ahead = dsv3_ahead_create(CurrentMemoryContext, ask_element, state);
	return state;
}

/* The next row of one execution. */
static Datum
next_row(FunctionCallInfo fcinfo, const SetForm *form)
{
	FuncCallContext *context;
	SetState *state;
	MemoryContext old;
	Dsv3AheadEnd end;
	Datum values[MAX_COLUMNS] = {0};
	bool nulls[MAX_COLUMNS];

	if (SRF_IS_FIRSTCALL())
	{
		TupleDesc tupdesc;

		context = SRF_FIRSTCALL_INIT();
		old = MemoryContextSwitchTo(context->multi_call_memory_ctx);
		if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "return type must be a row type");
		context->tuple_desc = BlessTupleDesc(tupdesc);
		context->user_fctx = begin(fcinfo, form);
		MemoryContextSwitchTo(old);
	}
	context = SRF_PERCALL_SETUP();
	state = context->user_fctx;
	if (state == NULL || !dsv3_ahead_next(state->ahead, &end))
		SRF_RETURN_DONE(context);
	memset(nulls, true, sizeof(nulls));
	values[0] = Int32GetDatum((int32) context->call_cntr + 1);
	nulls[0] = false;
	if (end.result != DSV3_ASK_NOTHING)
	{
		if (!end.ok && !end.failure.row_error)
			dsv3_raise(&end.failure);
		form->columns(end.ok, &end.answer, &end.failure, values + 1, nulls + 1);
	}
	SRF_RETURN_NEXT(context, HeapTupleGetDatum(heap_form_tuple(context->tuple_desc, values, nulls)));
}

static const SetForm generate_form = {
	"dsv3_generate_batch_1_0", &dsv3_asker_try_generate, dsv3_generate_columns, 7, {1, 0, 2, 3, 4, 5, 6}, 1};

/* dsv3_generate_batch(inputs, prompt, system, max_tokens, temperature, seed, options)
 * -> setof (index, and the columns of dsv3_try_generate) */
Datum
dsv3_generate_batch_1_0(PG_FUNCTION_ARGS)
{
	return next_row(fcinfo, &generate_form);
}

/* A NULL schema may have a text in its place, which the calls know. */
static const SetForm extract_form = {"dsv3_extract_json_batch_1_0",
									 &dsv3_asker_try_extract_json,
									 dsv3_extract_columns,
									 5,
									 {0, 1, 2, 3, 4},
									 -1};

/* dsv3_extract_json_batch(inputs, schema, instruction, max_tokens, options)
 * -> setof (index, and the columns of dsv3_try_extract_json) */
Datum
dsv3_extract_json_batch_1_0(PG_FUNCTION_ARGS)
{
	return next_row(fcinfo, &extract_form);
}
