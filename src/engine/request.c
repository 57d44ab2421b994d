/*
 * request.c
 *	  SUBMIT frames into requests; see request.h.
 *
 * The body comes from another process, so nothing in it is trusted: every field is bounded by the frame, a field met
 * twice is refused, numbers are checked against their range. Text is checked for UTF-8 where it is encoded.
 */
#include "engine/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Dsv3Request *
dsv3_request_new(uint64_t id, Dsv3RequestKind kind)
{
	Dsv3Request *request = calloc(1, sizeof(*request));

	if (request == NULL)
		return NULL;
	request->id = id;
	request->kind = kind;
	request->sampling.top_p = 1.0;
	request->sampling.repetition_penalty = 1.0;
	return request;
}

void
dsv3_request_free(Dsv3Request *request)
{
	if (request == NULL)
		return;
	free(request->prompt.data);
	free(request->input.data);
	free(request->system.data);
	free(request->messages.data);
	free(request->tools.data);
	free(request->continuation.data);
	free(request->grammar.data);
	free(request->choices.data);
	free(request->scope.data);
	for (int i = 0; i < request->n_stops; i++)
		free(request->stops[i].data);
	free(request->tokens);
	free(request);
}

bool
dsv3_bytes_set(Dsv3Bytes *bytes, const char *data, size_t len, Dsv3Error *err)
{
	char *copy = malloc(len + 1);

	if (copy == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a request of %zu bytes", len);
	if (len > 0)
		memcpy(copy, data, len);
	copy[len] = '\0';
	bytes->data = copy;
	bytes->len = len;
	return true;
}

static bool
set_tokens(Dsv3Request *request, Dsv3BodyReader *reader, Dsv3Error *err)
{
	size_t count = reader->value_len / 4;

	request->tokens = malloc((count + 1) * sizeof(int32_t));
	if (request->tokens == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for %zu tokens", count);
	request->n_tokens = dsv3_body_get_tokens(reader, request->tokens, count);
	return true;
}

static bool
take_field(Dsv3Request *request, Dsv3BodyReader *reader, Dsv3Error *err)
{
	const char *text = (const char *) reader->value;
	size_t len = reader->value_len;

	switch ((Dsv3Field) reader->field)
	{
		case DSV3_FIELD_KIND:
			request->kind = (Dsv3RequestKind) dsv3_body_get_u32(reader);
			return true;
		case DSV3_FIELD_PROMPT:
			return dsv3_bytes_set(&request->prompt, text, len, err);
		case DSV3_FIELD_INPUT:
			return dsv3_bytes_set(&request->input, text, len, err);
		case DSV3_FIELD_SYSTEM:
			return dsv3_bytes_set(&request->system, text, len, err);
		case DSV3_FIELD_MESSAGES:
			return dsv3_bytes_set(&request->messages, text, len, err);
		case DSV3_FIELD_TOOLS:
			return dsv3_bytes_set(&request->tools, text, len, err);
		case DSV3_FIELD_CONTINUATION:
			return dsv3_bytes_set(&request->continuation, text, len, err);
		case DSV3_FIELD_GRAMMAR:
			return dsv3_bytes_set(&request->grammar, text, len, err);
		case DSV3_FIELD_GRAMMAR_KIND:
			request->grammar_kind = dsv3_body_get_u32(reader);
			return true;
		case DSV3_FIELD_WHITESPACE:
			request->whitespace = dsv3_body_get_u32(reader);
			return true;
		case DSV3_FIELD_KEY_ORDER:
			request->key_order = dsv3_body_get_u32(reader);
			return true;
		case DSV3_FIELD_CLOSED_OBJECTS:
			request->closed_objects = dsv3_body_get_bool(reader);
			return true;
		case DSV3_FIELD_CHOICES:
			return dsv3_bytes_set(&request->choices, text, len, err);
		case DSV3_FIELD_MAX_TOKENS:
			request->has_max_tokens = true;
			request->max_tokens = dsv3_body_get_u32(reader);
			return true;
		case DSV3_FIELD_TEMPERATURE:
			request->sampling.temperature = dsv3_body_get_f64(reader);
			return true;
		case DSV3_FIELD_TOP_P:
			request->sampling.top_p = dsv3_body_get_f64(reader);
			return true;
		case DSV3_FIELD_TOP_K:
			request->sampling.top_k = dsv3_body_get_u32(reader);
			return true;
		case DSV3_FIELD_MIN_P:
			request->sampling.min_p = dsv3_body_get_f64(reader);
			return true;
		case DSV3_FIELD_REPETITION_PENALTY:
			request->sampling.repetition_penalty = dsv3_body_get_f64(reader);
			return true;
		case DSV3_FIELD_SEED:
			request->sampling.seed = (int64_t) dsv3_body_get_u64(reader);
			return true;
		case DSV3_FIELD_STOP:
			if (request->n_stops >= DSV3_MAX_STOPS)
				return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "more than %d stop strings",
								  DSV3_MAX_STOPS);
			return dsv3_bytes_set(&request->stops[request->n_stops++], text, len, err);
		case DSV3_FIELD_RAW:
			request->raw = dsv3_body_get_bool(reader);
			return true;
		case DSV3_FIELD_THINK:
			request->think = (Dsv3Think) dsv3_body_get_u32(reader);
			return true;
		case DSV3_FIELD_THINK_BUDGET:
			request->has_think_budget = true;
			request->think_budget = dsv3_body_get_u32(reader);
			return true;
		case DSV3_FIELD_LOGPROBS:
			request->has_logprobs = true;
			request->logprobs = dsv3_body_get_u32(reader);
			return true;
		case DSV3_FIELD_PRIORITY:
			request->priority = dsv3_body_get_u32(reader);
			return true;
		case DSV3_FIELD_ROLE:
			request->role = dsv3_body_get_u32(reader);
			return true;
		case DSV3_FIELD_CACHE_MEMORY:
			request->cache_memory = dsv3_body_get_bool(reader);
			return true;
		case DSV3_FIELD_SCOPE:
			return dsv3_bytes_set(&request->scope, text, len, err);
		case DSV3_FIELD_STREAM:
			request->stream = dsv3_body_get_bool(reader);
			return true;
		case DSV3_FIELD_TIMEOUT_MS:
			request->timeout_ms = dsv3_body_get_u32(reader);
			return true;
		case DSV3_FIELD_RESUME:
		case DSV3_FIELD_TOKENS:
			if (request->tokens)
				return dsv3_error(err, DSV3_ERR_PROTOCOL, "a request has tokens twice");
			return set_tokens(request, reader, err);
		default:
			return true; /* a field of a later version */
	}
}

Dsv3Request *
dsv3_request_parse(uint64_t id, const uint8_t *body, size_t len, Dsv3Error *err)
{
	Dsv3Request *request = dsv3_request_new(id, 0);
	Dsv3BodyReader reader;
	uint64_t met[2] = {0, 0}; /* fields 0..127 met so far */

	if (request == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a request");
		return NULL;
	}
	dsv3_body_open(&reader, body, len);
	while (dsv3_body_next(&reader))
	{
		if (reader.field < 128 && reader.field != DSV3_FIELD_STOP)
		{
			uint64_t bit = UINT64_C(1) << (reader.field % 64);

			if (met[reader.field / 64] & bit)
			{
				dsv3_error(err, DSV3_ERR_PROTOCOL, "a request has field %d twice", reader.field);
				goto fail;
			}
			met[reader.field / 64] |= bit;
		}
		if (!take_field(request, &reader, err))
			goto fail;
	}
	if (reader.error)
	{
		dsv3_error(err, DSV3_ERR_PROTOCOL, "malformed request: %s (field %d)", reader.error, reader.field);
		goto fail;
	}
	if (!dsv3_request_check(request, err))
		goto fail;
	return request;

fail:
	dsv3_request_free(request);
	return NULL;
}

static bool
check_sampling(const Dsv3Sampling *sampling, Dsv3Error *err)
{
	if (!(sampling->temperature >= 0.0 && sampling->temperature <= 100.0))
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "temperature must be between 0 and 100");
	if (!(sampling->top_p > 0.0 && sampling->top_p <= 1.0))
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "top_p must be above 0 and at most 1");
	if (!(sampling->min_p >= 0.0 && sampling->min_p <= 1.0))
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "min_p must be between 0 and 1");
	if (!(sampling->repetition_penalty > 0.0 && sampling->repetition_penalty <= 100.0))
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER,
						  "repetition_penalty must be above 0 and at most 100");
	return true;
}

bool
dsv3_request_check(const Dsv3Request *request, Dsv3Error *err)
{
	const char *missing = NULL;

	switch (request->kind)
	{
		case DSV3_REQUEST_GENERATE:
		case DSV3_REQUEST_TOKENIZE:
		case DSV3_REQUEST_COUNT_TOKENS:
		case DSV3_REQUEST_PIN:
		case DSV3_REQUEST_UNPIN:
		case DSV3_REQUEST_ROUTING:
			missing = request->prompt.data ? NULL : "a prompt";
			break;
		case DSV3_REQUEST_CHAT:
			missing = request->messages.data ? NULL : "messages";
			break;
		case DSV3_REQUEST_DETOKENIZE:
			missing = request->tokens ? NULL : "tokens";
			break;
		case DSV3_REQUEST_LOGPROB:
			missing =
				request->prompt.data && request->continuation.data ? NULL : "a prompt and a continuation";
			break;
		case DSV3_REQUEST_CHECK_GRAMMAR:
			missing = request->grammar.data ? NULL : "a grammar";
			break;
		case DSV3_REQUEST_ACCEPTS:
			missing = request->grammar.data && request->input.data ? NULL : "a grammar and a text";
			break;
		case DSV3_REQUEST_CACHE_RESET:
		case DSV3_REQUEST_WARM_UP:
			break;
		case DSV3_REQUEST_SCORE:
			missing = request->prompt.data && request->choices.data ? NULL : "a prompt and choices";
			break;
		default:
			return dsv3_error(err, DSV3_ERR_PROTOCOL, "unknown kind of request %d", (int) request->kind);
	}
	if (missing)
		return dsv3_error(err, DSV3_ERR_PROTOCOL, "a request of kind %d needs %s", (int) request->kind,
						  missing);
	if (!check_sampling(&request->sampling, err))
		return false;
	if (request->has_max_tokens && request->max_tokens == 0)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "max_tokens must be at least 1");
	if (request->has_logprobs && request->logprobs > DSV3_MAX_LOGPROBS)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "logprobs must be at most %d", DSV3_MAX_LOGPROBS);
	if (request->grammar_kind > 3 || request->whitespace > 2 || request->key_order > 1)
		return dsv3_error(err, DSV3_ERR_PROTOCOL, "unknown grammar setting");
	if (request->think > DSV3_THINK_ON)
		return dsv3_error(err, DSV3_ERR_PROTOCOL, "unknown think setting %d", (int) request->think);
	if (request->priority > 1)
		return dsv3_error(err, DSV3_ERR_PROTOCOL, "unknown priority %u", request->priority);
	for (int i = 0; i < request->n_stops; i++)
	{
		if (request->stops[i].len == 0)
			return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "a stop string must not be empty");
	}
	return true;
}
