/*
 * batch_torture.c
 *	  For tests only, in a library that is built with DSV3_BATCH_TORTURE: every function of every query counts as a slow one.
 *
 * Arguments are evaluated when a row is read ahead, the function is called when its value is wanted. PostgreSQL's own
 * regression tests, run on such a library, find the places where rows must not be read ahead (test/batch/torture.sh).
 */
#include "postgres.h"

#include "pg/compat.h"

#ifdef DSV3_BATCH_TORTURE

#include "utils/datum.h"
#include "utils/lsyscache.h"

#include "pg/ask.h"

static Dsv3AskResult
torture_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	NullableDatum *args = MemoryContextAllocZero(question->keep, sizeof(NullableDatum) * (fcinfo->nargs + 1));
	MemoryContext old = MemoryContextSwitchTo(question->keep);

	dsv3_request_init(request, DSV3_REQUEST_GENERATE);
	for (int i = 0; i < fcinfo->nargs; i++)
	{
		Oid type = get_fn_expr_argtype(fcinfo->flinfo, i);
		int16 typlen;
		bool typbyval;

		get_typlenbyval(type, &typlen, &typbyval);
		args[i].isnull = fcinfo->args[i].isnull;
		if (!args[i].isnull)
			args[i].value = datumCopy(fcinfo->args[i].value, typbyval, typlen);
	}
	MemoryContextSwitchTo(old);
	question->state = args;
	return DSV3_ASK_REQUEST;
}

static bool
torture_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
			  Dsv3Failure *failure, Datum *value)
{
	memcpy(fcinfo->args, question->state, sizeof(NullableDatum) * fcinfo->nargs);
	*value = FunctionCallInvoke(fcinfo);
	return true;
}

const Dsv3Asker dsv3_asker_torture = {NULL, NULL, torture_ask, torture_value, false};

#endif
