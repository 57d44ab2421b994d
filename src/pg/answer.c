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

#include "pg/answer.h"
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

void
dsv3_take_sampling(Dsv3Request *request, FunctionCallInfo fcinfo, int first)
{
	int32 max_tokens =
		PG_ARGISNULL(first) ? Min(dsv3_guc_max_tokens, dsv3_guc_max_output_tokens) : PG_GETARG_INT32(first);

	if (max_tokens < 1 || max_tokens > dsv3_guc_max_output_tokens)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("max_tokens must be between 1 and %d", dsv3_guc_max_output_tokens),
						errhint("The upper limit is dsv3.max_output_tokens, which a superuser may change.")));
	request->max_tokens = (uint32) max_tokens;
	if (!PG_ARGISNULL(first + 1))
	{
		request->temperature = PG_GETARG_FLOAT8(first + 1);
		if (!(request->temperature >= 0 && request->temperature <= 2))
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							errmsg("temperature must be between 0 and 2")));
	}
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
check_context(const Dsv3Request *request, const Dsv3Answer *answer, Dsv3Failure *failure)
{
	if (answer->counts.finish != DSV3_FINISH_LENGTH || answer->counts.output_tokens >= request->max_tokens)
		return true;
	dsv3_error(&failure->error, DSV3_ERR_TOO_LARGE, "context of the model is full after %u output tokens",
			   answer->counts.output_tokens);
	dsv3_error_detail(&failure->error, "The prompt has %u tokens; %u output tokens were allowed.",
					  answer->counts.prompt_tokens, request->max_tokens);
	dsv3_error_hint(&failure->error, "Shorten the input, or ask for fewer tokens with max_tokens.");
	failure->row_error = true;
	return false;
}

bool
dsv3_run(const Dsv3Request *request, Dsv3Answer *answer, Dsv3Failure *failure)
{
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
	if (state != DSV3_CALL_DONE)
		return false;
	return read_fields(answer, failure) && check_context(request, answer, failure);
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
