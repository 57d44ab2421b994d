/*
 * functions.c
 *	  The functions that ask the model and wait for the whole answer.
 *
 * The C names carry the version of the SQL signature they were made for: a later signature gets a new name and the old
 * one stays, so that this library serves databases whose extension has not been updated yet.
 *
 * NULL handling is by hand, because some arguments may be NULL: a NULL prompt or input gives NULL without a call; NULL
 * for anything else means its default.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/uuid.h"

#include "common/version.h"
#include "pg/answer.h"
#include "pg/client.h"
#include "pg/functions.h"
#include "pg/options.h"
#include "pg/queue.h"
#include "pg/text.h"

PG_FUNCTION_INFO_V1(dsv3_generate_1_0);
PG_FUNCTION_INFO_V1(dsv3_try_generate_1_0);
PG_FUNCTION_INFO_V1(dsv3_chat_1_0);
PG_FUNCTION_INFO_V1(dsv3_tokenize_1_0);
PG_FUNCTION_INFO_V1(dsv3_detokenize_1_0);
PG_FUNCTION_INFO_V1(dsv3_count_tokens_1_0);
PG_FUNCTION_INFO_V1(dsv3_logprob_1_0);
PG_FUNCTION_INFO_V1(dsv3_version_1_0);

bool
dsv3_generate_request(FunctionCallInfo fcinfo, Dsv3OptionsOf function, Dsv3Request *request,
					  Dsv3Failure *failure)
{
	Size total = 0;

	dsv3_require_preload();
	dsv3_request_init(request, DSV3_REQUEST_GENERATE);
	dsv3_take_sampling(request, fcinfo, 3);
	if (!PG_ARGISNULL(6))
		dsv3_options_apply(request, PG_GETARG_JSONB_P(6), function);
	if (!dsv3_take_text(PG_GETARG_DATUM(0), &request->prompt, &total, failure) ||
		!dsv3_take_text(PG_GETARG_DATUM(1), &request->input, &total, failure))
		return false;
	if (request->input.len == 0)
		request->input.data = NULL; /* as if there were none */
	return PG_ARGISNULL(2) || dsv3_take_text(PG_GETARG_DATUM(2), &request->system, &total, failure);
}

/* dsv3_generate(prompt, input, system, max_tokens, temperature, seed, options) -> text */
Datum
dsv3_generate_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Request request;
	Dsv3Answer answer;
	Dsv3Failure failure;
	Datum result;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		PG_RETURN_NULL();
	if (dsv3_generate_request(fcinfo, DSV3_OPTIONS_GENERATE, &request, &failure) &&
		dsv3_run(&request, &answer, &failure) && dsv3_answer_text(&answer, &result, &failure))
		return result;
	dsv3_raise_or_count(&request, &failure);
	PG_RETURN_NULL();
}

/* The same arguments -> (ok, value, sqlstate, error, finish_reason, prompt_tokens, cached_tokens, output_tokens,
 * trace_id, logprobs) */
Datum
dsv3_try_generate_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Request request;
	Dsv3Answer answer = {0};
	Dsv3Failure failure;
	TupleDesc tupdesc;
	Datum values[10] = {0};
	bool nulls[10];
	bool ok;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		PG_RETURN_NULL();
	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	ok = dsv3_generate_request(fcinfo, DSV3_OPTIONS_TRY, &request, &failure) &&
		 dsv3_run(&request, &answer, &failure) && dsv3_answer_text(&answer, &values[1], &failure);
	dsv3_try_columns(ok, &answer, &failure, values, nulls);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), values, nulls)));
}

/* Add a key with a JSON value to a message. */
static Datum
with_key(Datum message, const char *key, Datum json)
{
	Datum object = DirectFunctionCall1(
		jsonb_in, CStringGetDatum(
					  psprintf("{\"%s\": %s}", key, DatumGetCString(DirectFunctionCall1(jsonb_out, json)))));

	return DirectFunctionCall2(jsonb_concat, message, object);
}

/* dsv3_chat(messages, max_tokens, temperature, seed, options) -> jsonb */
Datum
dsv3_chat_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Request request;
	Dsv3Answer answer;
	Dsv3Failure failure;
	Datum result = (Datum) 0;
	Datum logprobs = (Datum) 0;
	Jsonb *messages;
	char *json;
	Size total = 0;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	dsv3_require_preload();
	dsv3_request_init(&request, DSV3_REQUEST_CHAT);
	dsv3_take_sampling(&request, fcinfo, 1);
	if (!PG_ARGISNULL(4))
		dsv3_options_apply(&request, PG_GETARG_JSONB_P(4), DSV3_OPTIONS_CHAT);
	messages = PG_GETARG_JSONB_P(0);
	if (!JB_ROOT_IS_ARRAY(messages) || JB_ROOT_IS_SCALAR(messages))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("messages must be a JSON array"),
				 errhint("Each element is an object such as {\"role\": \"user\", \"content\": \"...\"}.")));
	if (JB_ROOT_COUNT(messages) == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("messages must not be empty")));
	json = JsonbToCString(NULL, &messages->root, VARSIZE(messages));

	if (dsv3_take_text(CStringGetTextDatum(json), &request.messages, &total, &failure) &&
		dsv3_run(&request, &answer, &failure))
	{
		if (answer.message_json.data == NULL)
		{
			failure.row_error = true;
			dsv3_error(&failure.error, DSV3_ERR_PROTOCOL, "dsv3 engine sent an answer without a message");
		}
		else if (dsv3_answer_json(answer.message_json, &result, &failure))
		{
			result = with_key(
				result, "finish_reason",
				DirectFunctionCall1(
					jsonb_in, CStringGetDatum(psprintf("\"%s\"", dsv3_finish_name(answer.counts.finish)))));
			if (answer.logprobs_json.data && dsv3_answer_logprobs(answer.logprobs_json, &logprobs, &failure))
				result = with_key(result, "logprobs", logprobs);
			return result;
		}
	}
	dsv3_raise_or_count(&request, &failure);
	PG_RETURN_NULL();
}

/* ---- tokens ---- */

/* Ask for the tokens of a text, or for their number; row errors raise too, there is no option to catch them. */
static void
run_tokenize(Dsv3RequestKind kind, Datum text, Dsv3Answer *answer)
{
	Dsv3Request request;
	Dsv3Failure failure;
	Size total = 0;

	dsv3_require_preload();
	dsv3_request_init(&request, kind);
	if (!dsv3_take_text(text, &request.prompt, &total, &failure) || !dsv3_run(&request, answer, &failure))
		dsv3_raise(&failure);
}

/* dsv3_tokenize(text) -> int[] */
Datum
dsv3_tokenize_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Answer answer;
	Datum *ids;

	run_tokenize(DSV3_REQUEST_TOKENIZE, PG_GETARG_DATUM(0), &answer);
	ids = palloc_extended(sizeof(Datum) * Max(answer.n_tokens, 1), MCXT_ALLOC_HUGE);
	for (Size i = 0; i < answer.n_tokens; i++)
	{
		const uint8 *b = answer.tokens + 4 * i;

		ids[i] = Int32GetDatum(
			(int32) ((uint32) b[0] | (uint32) b[1] << 8 | (uint32) b[2] << 16 | (uint32) b[3] << 24));
	}
	PG_RETURN_ARRAYTYPE_P(
		construct_array(ids, (int) answer.n_tokens, INT4OID, sizeof(int32), true, TYPALIGN_INT));
}

/* dsv3_count_tokens(text) -> int */
Datum
dsv3_count_tokens_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Answer answer;

	run_tokenize(DSV3_REQUEST_COUNT_TOKENS, PG_GETARG_DATUM(0), &answer);
	PG_RETURN_INT32((int32) answer.counts.prompt_tokens);
}

/* dsv3_detokenize(int[]) -> text */
Datum
dsv3_detokenize_1_0(PG_FUNCTION_ARGS)
{
	ArrayType *array = PG_GETARG_ARRAYTYPE_P(0);
	Dsv3Request request;
	Dsv3Answer answer;
	Dsv3Failure failure;
	Datum result;

	dsv3_require_preload();
	if (ARR_NDIM(array) > 1 || array_contains_nulls(array))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("tokens must be a one-dimensional array without NULLs")));
	dsv3_request_init(&request, DSV3_REQUEST_DETOKENIZE);
	request.n_tokens = (Size) ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	request.tokens = (const int32 *) ARR_DATA_PTR(array);
	if (request.n_tokens * sizeof(int32) > (Size) dsv3_guc_max_input_bytes)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						errmsg("array of %zu tokens is longer than dsv3.max_input_bytes (%d)",
							   request.n_tokens, dsv3_guc_max_input_bytes),
						errhint("Split the array, or have a superuser raise dsv3.max_input_bytes.")));
	if (!dsv3_run(&request, &answer, &failure))
		dsv3_raise(&failure);
	if (!dsv3_answer_text(&answer, &result, &failure))
	{
		dsv3_error_hint(&failure.error, "Leave out the tokens of that character.");
		dsv3_raise(&failure);
	}
	return result;
}

/* dsv3_logprob(prompt, continuation) -> float8 */
Datum
dsv3_logprob_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Request request;
	Dsv3Answer answer;
	Dsv3Failure failure;
	Size total = 0;

	dsv3_require_preload();
	dsv3_request_init(&request, DSV3_REQUEST_LOGPROB);
	request.raw =
		true; /* how likely the one text goes on with the other; an answer to a message is another question */
	if (!dsv3_take_text(PG_GETARG_DATUM(0), &request.prompt, &total, &failure) ||
		!dsv3_take_text(PG_GETARG_DATUM(1), &request.continuation, &total, &failure) ||
		!dsv3_run(&request, &answer, &failure))
		dsv3_raise(&failure);
	if (!answer.has_logprob)
		ereport(ERROR, (errcode(ERRCODE_PROTOCOL_VIOLATION),
						errmsg("dsv3 engine sent an answer without a log probability")));
	PG_RETURN_FLOAT8(answer.logprob);
}

/* dsv3_version() -> text: of this library */
Datum
dsv3_version_1_0(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(DSV3_VERSION));
}
