/*
 * answer.c
 *	  From the arguments of a function to a request, and from the engine's fields to values.
 *
 * The supervisor has checked the fields (bounds, UTF-8) before they came here; what is read again here is read with the
 * same bounded reader.
 */
#include "postgres.h"

#include "pg/compat.h"

#include <math.h>

#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/uuid.h"

#include "pg/answer.h"
#include "pg/queue.h"
#include "pg/text.h"

bool
dsv3_take_text(Datum datum, Dsv3Text *text, Size *total, Dsv3Failure *failure)
{
	*total += dsv3_text_size(datum);
	if (*total > (Size) dsv3_guc_max_input_bytes)
	{
		dsv3_error(&failure->error, DSV3_ERR_TOO_LARGE,
				   "input of %zu bytes is longer than dsv3.max_input_bytes (%d)", *total,
				   dsv3_guc_max_input_bytes);
		dsv3_error_hint(&failure->error,
						"Shorten the input, or have a superuser raise dsv3.max_input_bytes.");
		failure->row_error = true;
		return false;
	}
	return dsv3_text_to_utf8(datum, text, failure);
}

uint32
dsv3_check_max_tokens(int64 max_tokens)
{
	if (max_tokens < 1 || max_tokens > dsv3_guc_max_output_tokens)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("max_tokens must be between 1 and %d", dsv3_guc_max_output_tokens),
						errhint("The upper limit is dsv3.max_output_tokens, which a superuser may change.")));
	return (uint32) max_tokens;
}

double
dsv3_check_temperature(double temperature)
{
	if (!(temperature >= 0 && temperature <= 2))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("temperature must be between 0 and 2")));
	return temperature;
}

void
dsv3_take_sampling(Dsv3Request *request, FunctionCallInfo fcinfo, int first)
{
	request->max_tokens = dsv3_check_max_tokens(
		PG_ARGISNULL(first) ? Min(dsv3_guc_max_tokens, dsv3_guc_max_output_tokens) : PG_GETARG_INT32(first));
	if (!PG_ARGISNULL(first + 1))
		request->temperature = dsv3_check_temperature(PG_GETARG_FLOAT8(first + 1));
	if (!PG_ARGISNULL(first + 2))
		request->seed = PG_GETARG_INT64(first + 2);
}

/* Sort the fields of a finished request. */
static bool
read_fields(Dsv3Answer *answer, Dsv3Failure *failure)
{
	Dsv3BodyReader reader;

	initStringInfo(&answer->text);
	dsv3_body_open(&reader, (const uint8 *) answer->fields.data, (size_t) answer->fields.len);
	while (dsv3_body_next(&reader))
	{
		switch (reader.field)
		{
			case DSV3_FIELD_TEXT:
				appendBinaryStringInfo(&answer->text, (const char *) reader.value, (int) reader.value_len);
				break;
			case DSV3_FIELD_MESSAGE_JSON:
				answer->message_json = (Dsv3Text){(const char *) reader.value, reader.value_len};
				break;
			case DSV3_FIELD_LOGPROBS_JSON:
				answer->logprobs_json = (Dsv3Text){(const char *) reader.value, reader.value_len};
				break;
			case DSV3_FIELD_TOKENS:
				answer->tokens = reader.value;
				answer->n_tokens = reader.value_len / 4;
				break;
			case DSV3_FIELD_LOGPROB:
				answer->logprob = dsv3_body_get_f64(&reader);
				answer->has_logprob = true;
				break;
			case DSV3_FIELD_NARROWED:
				answer->narrowed = dsv3_body_get_bool(&reader);
				break;
			default:
				break;
		}
	}
	if (reader.error)
	{
		failure->row_error = true;
		return dsv3_error(&failure->error, DSV3_ERR_PROTOCOL, "dsv3 engine sent an invalid answer: %s",
						  reader.error);
	}
	return true;
}

/* An answer that ends because nothing more fits was not ended by anyone's wish. */
static bool
check_context(const Dsv3Asked *asked, const Dsv3Answer *answer, Dsv3Failure *failure)
{
	if (answer->counts.finish != DSV3_FINISH_LENGTH || answer->counts.output_tokens >= asked->max_tokens)
		return true;
	dsv3_error(&failure->error, DSV3_ERR_TOO_LARGE, "context of the model is full after %u output tokens",
			   answer->counts.output_tokens);
	dsv3_error_detail(&failure->error, "The prompt has %u tokens; %u output tokens were allowed.",
					  answer->counts.prompt_tokens, asked->max_tokens);
	dsv3_error_hint(&failure->error, "Shorten the input, or ask for fewer tokens with max_tokens.");
	failure->row_error = true;
	return false;
}

/* Is the request's grammar itself refused? Then no other row would fare better, and the refusal always raises. */
static void
blame_grammar(const Dsv3Asked *asked, Dsv3Failure *failure)
{
	Dsv3Request check;
	Dsv3Answer answer;
	Dsv3Failure refusal;

	dsv3_request_init(&check, DSV3_REQUEST_CHECK_GRAMMAR);
	check.grammar = asked->grammar;
	check.grammar_kind = asked->grammar_kind;
	check.whitespace = asked->whitespace;
	check.key_order = asked->key_order;
	check.closed_objects = asked->closed_objects;
	if (!dsv3_run(&check, &answer, &refusal))
	{
		*failure = refusal;
		failure->row_error = false;
	}
}

void
dsv3_asked_of(Dsv3Asked *asked, const Dsv3Request *request)
{
	asked->kind = request->kind;
	asked->max_tokens = request->max_tokens;
	asked->grammar = request->grammar;
	asked->grammar_kind = request->grammar_kind;
	asked->whitespace = request->whitespace;
	asked->key_order = request->key_order;
	asked->closed_objects = request->closed_objects;
}

bool
dsv3_answer_read(Dsv3Answer *answer, const Dsv3Asked *asked, bool ok, Dsv3Failure *failure)
{
	if (ok)
		return read_fields(answer, failure) && check_context(asked, answer, failure);
	if (asked->kind == DSV3_REQUEST_GENERATE && asked->grammar.data && failure->row_error &&
		strcmp(failure->error.sqlstate, DSV3_ERR_CANCELLED) != 0)
		blame_grammar(asked, failure);
	return false;
}

bool
dsv3_run(const Dsv3Request *request, Dsv3Answer *answer, Dsv3Failure *failure)
{
	Dsv3Asked asked;
	Dsv3Call *call;
	Dsv3CallState state;

	memset(answer, 0, sizeof(*answer));
	call = dsv3_call_start(request, failure);
	if (call == NULL)
		return false;
	answer->trace_id = *dsv3_call_trace_id(call);
	answer->has_trace_id = true;
	initStringInfo(&answer->fields);
	state = dsv3_call_wait(call, true, &answer->fields, failure);
	answer->counts = *dsv3_call_counts(call);
	dsv3_call_release(call);
	dsv3_asked_of(&asked, request);
	return dsv3_answer_read(answer, &asked, state == DSV3_CALL_DONE, failure);
}

const char *
dsv3_finish_name(uint32 finish)
{
	switch (finish)
	{
		case DSV3_FINISH_STOP:
			return "stop";
		case DSV3_FINISH_LENGTH:
			return "length";
		case DSV3_FINISH_TOOL_CALLS:
			return "tool_calls";
		default:
			return NULL;
	}
}

/* ---- values ---- */

void
dsv3_raise_or_count(int on_error, const Dsv3Failure *failure)
{
	if (!failure->row_error || on_error == DSV3_ON_ERROR_ERROR)
		dsv3_raise(failure);
	if (on_error == DSV3_ON_ERROR_TELL)
		dsv3_failure_hook(failure);
	else
		dsv3_queue_count_nulled();
}

bool
dsv3_answer_text(const Dsv3Answer *answer, Datum *result, Dsv3Failure *failure)
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

bool
dsv3_answer_json(Dsv3Text json, Datum *result, Dsv3Failure *failure)
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

bool
dsv3_answer_logprobs(Dsv3Text json, Datum *result, Dsv3Failure *failure)
{
	char *copy = pnstrdup(json.data, json.len);
	Dsv3Text text = {copy, json.len};

	for (Size i = 0; (i = find_zero(text, i)) < text.len;)
		memcpy(copy + i, "\\ufffd", 6);
	return dsv3_answer_json(text, result, failure);
}

void
dsv3_try_columns(bool ok, const Dsv3Answer *answer, Dsv3Failure *failure, Datum *values, bool *nulls)
{
	const char *finish = dsv3_finish_name(answer->counts.finish);

	memset(nulls, true, 10 * sizeof(bool));
	values[0] = BoolGetDatum(ok);
	nulls[0] = false;
	nulls[1] = !ok;
	if (!ok)
	{
		values[2] = CStringGetTextDatum(failure->error.sqlstate);
		values[3] = CStringGetTextDatum(dsv3_text_from_utf8_lossy(failure->error.message));
		nulls[2] = nulls[3] = false;
	}
	if (finish)
	{
		values[4] = CStringGetTextDatum(finish);
		values[5] = Int32GetDatum((int32) answer->counts.prompt_tokens);
		values[6] = Int32GetDatum((int32) answer->counts.cached_tokens);
		values[7] = Int32GetDatum((int32) answer->counts.output_tokens);
		nulls[4] = nulls[5] = nulls[6] = nulls[7] = false;
	}
	values[8] = UUIDPGetDatum(&answer->trace_id);
	nulls[8] = !answer->has_trace_id;
	if (ok && answer->logprobs_json.data)
		nulls[9] = !dsv3_answer_logprobs(answer->logprobs_json, &values[9], failure);
}
