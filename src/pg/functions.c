/*
 * functions.c
 *	  The functions that ask the model and give the whole answer, each in the parts that ask.h explains.
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
#include "pg/ask.h"
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

static Dsv3AskResult
ask_generate(FunctionCallInfo fcinfo, Dsv3OptionsOf function, Dsv3Request *request, Dsv3Failure *failure)
{
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		return DSV3_ASK_NOTHING;
	return dsv3_generate_request(fcinfo, function, request, failure) ? DSV3_ASK_REQUEST : DSV3_ASK_FAILED;
}

static Dsv3AskResult
generate_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	return ask_generate(fcinfo, DSV3_OPTIONS_GENERATE, request, failure);
}

static bool
generate_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
			   Dsv3Failure *failure, Datum *value)
{
	return dsv3_answer_text(answer, value, failure);
}

const Dsv3Asker dsv3_asker_generate = {"dsv3_generate_1_0", dsv3_generate_1_0, generate_ask, generate_value,
									   false};

/* dsv3_generate(prompt, input, system, max_tokens, temperature, seed, options) -> text */
Datum
dsv3_generate_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_generate, fcinfo);
}

static Dsv3AskResult
try_generate_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	return ask_generate(fcinfo, DSV3_OPTIONS_TRY, request, failure);
}

void
dsv3_generate_columns(bool ok, const Dsv3Answer *answer, Dsv3Failure *failure, Datum *values, bool *nulls)
{
	ok = ok && dsv3_answer_text(answer, &values[1], failure);
	dsv3_try_columns(ok, answer, failure, values, nulls);
}

static bool
try_generate_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
				   Dsv3Failure *failure, Datum *value)
{
	TupleDesc tupdesc;
	Datum values[10] = {0};
	bool nulls[10];

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	dsv3_generate_columns(ok, answer, failure, values, nulls);
	*value = HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), values, nulls));
	return true;
}

const Dsv3Asker dsv3_asker_try_generate = {"dsv3_try_generate_1_0", dsv3_try_generate_1_0, try_generate_ask,
										   try_generate_value, true};

/* The same arguments -> (ok, value, sqlstate, error, finish_reason, prompt_tokens, cached_tokens, output_tokens,
 * trace_id, logprobs) */
Datum
dsv3_try_generate_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_try_generate, fcinfo);
}

/* ---- conversations ---- */

/* Add a key with a JSON value to a message. */
static Datum
with_key(Datum message, const char *key, Datum json)
{
	Datum object = DirectFunctionCall1(
		jsonb_in, CStringGetDatum(
					  psprintf("{\"%s\": %s}", key, DatumGetCString(DirectFunctionCall1(jsonb_out, json)))));

	return DirectFunctionCall2(jsonb_concat, message, object);
}

static Dsv3AskResult
chat_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	Jsonb *messages;
	char *json;
	Size total = 0;

	if (PG_ARGISNULL(0))
		return DSV3_ASK_NOTHING;
	dsv3_require_preload();
	dsv3_request_init(request, DSV3_REQUEST_CHAT);
	dsv3_take_sampling(request, fcinfo, 1);
	if (!PG_ARGISNULL(4))
		dsv3_options_apply(request, PG_GETARG_JSONB_P(4), DSV3_OPTIONS_CHAT);
	messages = PG_GETARG_JSONB_P(0);
	if (!JB_ROOT_IS_ARRAY(messages) || JB_ROOT_IS_SCALAR(messages))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("messages must be a JSON array"),
				 errhint("Each element is an object such as {\"role\": \"user\", \"content\": \"...\"}.")));
	if (JB_ROOT_COUNT(messages) == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("messages must not be empty")));
	json = JsonbToCString(NULL, &messages->root, VARSIZE(messages));
	return dsv3_take_text(CStringGetTextDatum(json), &request->messages, &total, failure) ? DSV3_ASK_REQUEST
																						  : DSV3_ASK_FAILED;
}

static bool
chat_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
		   Dsv3Failure *failure, Datum *value)
{
	Datum logprobs = (Datum) 0;

	if (answer->message_json.data == NULL)
	{
		failure->row_error = true;
		return dsv3_error(&failure->error, DSV3_ERR_PROTOCOL, "dsv3 engine sent an answer without a message");
	}
	if (!dsv3_answer_json(answer->message_json, value, failure))
		return false;
	*value =
		with_key(*value, "finish_reason",
				 DirectFunctionCall1(
					 jsonb_in, CStringGetDatum(psprintf("\"%s\"", dsv3_finish_name(answer->counts.finish)))));
	if (answer->logprobs_json.data && dsv3_answer_logprobs(answer->logprobs_json, &logprobs, failure))
		*value = with_key(*value, "logprobs", logprobs);
	return true;
}

const Dsv3Asker dsv3_asker_chat = {"dsv3_chat_1_0", dsv3_chat_1_0, chat_ask, chat_value, false};

/* dsv3_chat(messages, max_tokens, temperature, seed, options) -> jsonb */
Datum
dsv3_chat_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_chat, fcinfo);
}

/* ---- tokens: there is no option to catch row errors ---- */

/* Ask for the tokens of a text, or for their number. */
static Dsv3AskResult
ask_tokens(Dsv3RequestKind kind, Datum text, Dsv3Request *request, Dsv3Failure *failure)
{
	Size total = 0;

	dsv3_require_preload();
	dsv3_request_init(request, kind);
	request->on_error = DSV3_ON_ERROR_ERROR;
	return dsv3_take_text(text, &request->prompt, &total, failure) ? DSV3_ASK_REQUEST : DSV3_ASK_FAILED;
}

static Dsv3AskResult
tokenize_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	return ask_tokens(DSV3_REQUEST_TOKENIZE, PG_GETARG_DATUM(0), request, failure);
}

static bool
tokenize_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
			   Dsv3Failure *failure, Datum *value)
{
	Datum *ids = palloc_extended(sizeof(Datum) * Max(answer->n_tokens, 1), MCXT_ALLOC_HUGE);

	for (Size i = 0; i < answer->n_tokens; i++)
	{
		const uint8 *b = answer->tokens + 4 * i;

		ids[i] = Int32GetDatum(
			(int32) ((uint32) b[0] | (uint32) b[1] << 8 | (uint32) b[2] << 16 | (uint32) b[3] << 24));
	}
	*value = PointerGetDatum(
		construct_array(ids, (int) answer->n_tokens, INT4OID, sizeof(int32), true, TYPALIGN_INT));
	return true;
}

const Dsv3Asker dsv3_asker_tokenize = {"dsv3_tokenize_1_0", dsv3_tokenize_1_0, tokenize_ask, tokenize_value,
									   false};

/* dsv3_tokenize(text) -> int[] */
Datum
dsv3_tokenize_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_tokenize, fcinfo);
}

static Dsv3AskResult
count_tokens_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	return ask_tokens(DSV3_REQUEST_COUNT_TOKENS, PG_GETARG_DATUM(0), request, failure);
}

static bool
count_tokens_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
				   Dsv3Failure *failure, Datum *value)
{
	*value = Int32GetDatum((int32) answer->counts.prompt_tokens);
	return true;
}

const Dsv3Asker dsv3_asker_count_tokens = {"dsv3_count_tokens_1_0", dsv3_count_tokens_1_0, count_tokens_ask,
										   count_tokens_value, false};

/* dsv3_count_tokens(text) -> int */
Datum
dsv3_count_tokens_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_count_tokens, fcinfo);
}

static Dsv3AskResult
detokenize_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	ArrayType *array = PG_GETARG_ARRAYTYPE_P(0);

	dsv3_require_preload();
	if (ARR_NDIM(array) > 1 || array_contains_nulls(array))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("tokens must be a one-dimensional array without NULLs")));
	dsv3_request_init(request, DSV3_REQUEST_DETOKENIZE);
	request->on_error = DSV3_ON_ERROR_ERROR;
	request->n_tokens = (Size) ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	request->tokens = (const int32 *) ARR_DATA_PTR(array);
	if (request->n_tokens * sizeof(int32) > (Size) dsv3_guc_max_input_bytes)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						errmsg("array of %zu tokens is longer than dsv3.max_input_bytes (%d)",
							   request->n_tokens, dsv3_guc_max_input_bytes),
						errhint("Split the array, or have a superuser raise dsv3.max_input_bytes.")));
	return DSV3_ASK_REQUEST;
}

static bool
detokenize_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
				 Dsv3Failure *failure, Datum *value)
{
	if (dsv3_answer_text(answer, value, failure))
		return true;
	dsv3_error_hint(&failure->error, "Leave out the tokens of that character.");
	return false;
}

const Dsv3Asker dsv3_asker_detokenize = {"dsv3_detokenize_1_0", dsv3_detokenize_1_0, detokenize_ask,
										 detokenize_value, false};

/* dsv3_detokenize(int[]) -> text */
Datum
dsv3_detokenize_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_detokenize, fcinfo);
}

static Dsv3AskResult
logprob_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	Size total = 0;

	dsv3_require_preload();
	dsv3_request_init(request, DSV3_REQUEST_LOGPROB);
	request->on_error = DSV3_ON_ERROR_ERROR;
	/* How likely the one text goes on with the other; an answer to a message is another question. */
	request->raw = true;
	if (!dsv3_take_text(PG_GETARG_DATUM(0), &request->prompt, &total, failure) ||
		!dsv3_take_text(PG_GETARG_DATUM(1), &request->continuation, &total, failure))
		return DSV3_ASK_FAILED;
	return DSV3_ASK_REQUEST;
}

static bool
logprob_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
			  Dsv3Failure *failure, Datum *value)
{
	if (!answer->has_logprob)
	{
		failure->row_error = true;
		return dsv3_error(&failure->error, DSV3_ERR_PROTOCOL,
						  "dsv3 engine sent an answer without a log probability");
	}
	*value = Float8GetDatum(answer->logprob);
	return true;
}

const Dsv3Asker dsv3_asker_logprob = {"dsv3_logprob_1_0", dsv3_logprob_1_0, logprob_ask, logprob_value,
									  false};

/* dsv3_logprob(prompt, continuation) -> float8 */
Datum
dsv3_logprob_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_logprob, fcinfo);
}

/* dsv3_version() -> text: of this library */
Datum
dsv3_version_1_0(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(DSV3_VERSION));
}
