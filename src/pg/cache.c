/*
 * cache.c
 *	  What can be done about the engine's cache: dsv3_pin_prefix(), dsv3_unpin_prefix(), dsv3_cache_reset(), dsv3_warmup().
 *
 * All of them are requests like any other: they wait in the queue, can be cancelled, and raise what goes wrong. What the cache holds
 * is told by dsv3_stat_kv_cache, a view over the counters that the engine sends anyway.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "pg/answer.h"
#include "pg/client.h"
#include "pg/options.h"

PG_FUNCTION_INFO_V1(dsv3_pin_prefix_1_0);
PG_FUNCTION_INFO_V1(dsv3_unpin_prefix_1_0);
PG_FUNCTION_INFO_V1(dsv3_cache_reset_1_0);
PG_FUNCTION_INFO_V1(dsv3_warmup_1_0);

/* Ask; row errors raise too, there is no row. */
static void
run_or_raise(const Dsv3Request *request, Dsv3Answer *answer)
{
	Dsv3Failure failure;

	if (!dsv3_run(request, answer, &failure))
		dsv3_raise(&failure);
}

/* (prompt, system, options) -> how many tokens it concerned */
static Datum
pin_or_unpin(FunctionCallInfo fcinfo, Dsv3RequestKind kind)
{
	Dsv3Request request;
	Dsv3Answer answer;
	Dsv3Failure failure;
	Size total = 0;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	dsv3_require_preload();
	dsv3_request_init(&request, kind);
	request.function = "dsv3_pin_prefix";
	if (!PG_ARGISNULL(2))
		dsv3_options_apply(&request, PG_GETARG_JSONB_P(2), DSV3_OPTIONS_PIN);
	if (request.cache_scope == DSV3_CACHE_SCOPE_NONE)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("a prefix that is shared with nobody cannot be kept"),
						errhint("Leave out the option \"cache_scope\", or say \"role\" or \"database\".")));
	if (!dsv3_take_text(PG_GETARG_DATUM(0), &request.prompt, &total, &failure) ||
		(!PG_ARGISNULL(1) && !dsv3_take_text(PG_GETARG_DATUM(1), &request.system, &total, &failure)))
		dsv3_raise(&failure);
	run_or_raise(&request, &answer);
	PG_RETURN_INT32((int32) answer.counts.prompt_tokens);
}

/* dsv3_pin_prefix(prompt, system, options) -> int */
Datum
dsv3_pin_prefix_1_0(PG_FUNCTION_ARGS)
{
	return pin_or_unpin(fcinfo, DSV3_REQUEST_PIN);
}

/* dsv3_unpin_prefix(prompt, system, options) -> int */
Datum
dsv3_unpin_prefix_1_0(PG_FUNCTION_ARGS)
{
	return pin_or_unpin(fcinfo, DSV3_REQUEST_UNPIN);
}

/* dsv3_cache_reset(kind) */
Datum
dsv3_cache_reset_1_0(PG_FUNCTION_ARGS)
{
	const char *kind = PG_ARGISNULL(0) ? "all" : text_to_cstring(PG_GETARG_TEXT_PP(0));
	Dsv3Request request;
	Dsv3Answer answer;

	dsv3_require_preload();
	dsv3_request_init(&request, DSV3_REQUEST_CACHE_RESET);
	if (strcmp(kind, "memory") == 0)
		request.cache_memory = true;
	else if (strcmp(kind, "all") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown kind of cache \"%s\"", kind),
				 errhint("Kinds are \"all\" and \"memory\".")));
	run_or_raise(&request, &answer);
	PG_RETURN_VOID();
}

/* dsv3_warmup() -> bigint */
Datum
dsv3_warmup_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Request request;
	Dsv3Answer answer;

	dsv3_require_preload();
	dsv3_request_init(&request, DSV3_REQUEST_WARM_UP);
	run_or_raise(&request, &answer);
	return DirectFunctionCall1(int8in, CStringGetDatum(answer.text.data));
}
