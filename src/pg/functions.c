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

/* A row error under on_error = 'null' is counted and the caller returns NULL; everything else raises. */
static void
raise_or_count(const Dsv3Request *request, const Dsv3Failure *failure)
{
	if (!failure->row_error || request->on_error != DSV3_ON_ERROR_NULL)
		dsv3_raise(failure);
	dsv3_queue_count_nulled();
}

/* The answer's text as a datum; false: failure. */
static bool
answer_text(const Dsv3Answer *answer, Datum *result, Dsv3Failure *failure)
{
	Size len;
	char *text = dsv3_text_from_utf8(answer->text.data, (Size) answer->text.len, &len, failure);

	if (text == NULL)
		return false;
	*result = PointerGetDatum(cstring_to_text_with_len(text, (int) len));
	return true;
}

/* Where a JSON text spells the character U+0000, from a position on; json.len: nowhere. Only an escape can. */
static Size
find_zero(Dsv3Text json, Size from)
{
	for (Size i = from; i + 5 < json.len; i++)
	{
		if (json.data[i] != '\\')
			continue;
		if (memcmp(json.data + i + 1, "u0000", 5) == 0)
			return i;
		i++; /* the escaped character: the second of two backslashes opens nothing */
	}
	return json.len;
}

/* A JSON text of the engine as jsonb; false: failure. Raises if it is not JSON. */
static bool
answer_json(Dsv3Text json, Datum *result, Dsv3Failure *failure)
{
	Size len;
	char *text;

	if (find_zero(json, 0) < json.len)
		return dsv3_text_zero(failure);
	text = dsv3_text_from_utf8(json.data, json.len, &len, failure);
	if (text == NULL)
		return false;
	*result = DirectFunctionCall1(jsonb_in, CStringGetDatum(text));
	return true;
}

/* The same for log probabilities: a token that was only thought of does not fail the answer, its U+0000 becomes U+FFFD. */
static bool
answer_logprobs(Dsv3Text json, Datum *result, Dsv3Failure *failure)
{
	char *copy = pnstrdup(json.data, json.len);
	Dsv3Text text = {copy, json.len};

	for (Size i = 0; (i = find_zero(text, i)) < text.len;)
		memcpy(copy + i, "\\ufffd", 6);
	return answer_json(text, result, failure);
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
		dsv3_run(&request, &answer, &failure) && answer_text(&answer, &result, &failure))
		return result;
	raise_or_count(&request, &failure);
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
	const char *finish;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		PG_RETURN_NULL();
	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	memset(nulls, true, sizeof(nulls));

	ok = dsv3_generate_request(fcinfo, DSV3_OPTIONS_TRY, &request, &failure) &&
		 dsv3_run(&request, &answer, &failure) && answer_text(&answer, &values[1], &failure);
	if (!ok && !failure.row_error)
		dsv3_raise(&failure);
	values[0] = BoolGetDatum(ok);
	nulls[0] = false;
	nulls[1] = !ok;
	if (!ok)
	{
		values[2] = CStringGetTextDatum(failure.error.sqlstate);
		values[3] = CStringGetTextDatum(dsv3_text_from_utf8_lossy(failure.error.message));
		nulls[2] = nulls[3] = false;
	}
	finish = dsv3_finish_name(answer.counts.finish);
	if (finish)
	{
		values[4] = CStringGetTextDatum(finish);
		values[5] = Int32GetDatum((int32) answer.counts.prompt_tokens);
		values[6] = Int32GetDatum((int32) answer.counts.cached_tokens);
		values[7] = Int32GetDatum((int32) answer.counts.output_tokens);
		nulls[4] = nulls[5] = nulls[6] = nulls[7] = false;
	}
	values[8] = UUIDPGetDatum(&answer.trace_id);
	nulls[8] = !answer.has_trace_id;
	if (ok && answer.logprobs_json.data)
		nulls[9] = !answer_logprobs(answer.logprobs_json, &values[9], &failure);
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
		else if (answer_json(answer.message_json, &result, &failure))
		{
			result = with_key(
				result, "finish_reason",
				DirectFunctionCall1(
					jsonb_in, CStringGetDatum(psprintf("\"%s\"", dsv3_finish_name(answer.counts.finish)))));
			if (answer.logprobs_json.data && answer_logprobs(answer.logprobs_json, &logprobs, &failure))
				result = with_key(result, "logprobs", logprobs);
			return result;
		}
	}
	raise_or_count(&request, &failure);
	PG_RETURN_NULL();
}

/* ---- tokens ---- */

/* Ask for the tokens of a text; row errors raise too, there is no option to catch them. */
static void
run_tokenize(Datum text, Dsv3Answer *answer)
{
	Dsv3Request request;
	Dsv3Failure failure;
	Size total = 0;

	dsv3_require_preload();
	dsv3_request_init(&request, DSV3_REQUEST_TOKENIZE);
	if (!dsv3_take_text(text, &request.prompt, &total, &failure) || !dsv3_run(&request, answer, &failure))
		dsv3_raise(&failure);
}

/* dsv3_tokenize(text) -> int[] */
Datum
dsv3_tokenize_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Answer answer;
	Datum *ids;

	run_tokenize(PG_GETARG_DATUM(0), &answer);
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

	run_tokenize(PG_GETARG_DATUM(0), &answer);
	PG_RETURN_INT32((int32) answer.n_tokens);
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
	if (!answer_text(&answer, &result, &failure))
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
