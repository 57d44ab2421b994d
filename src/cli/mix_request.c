/*
 * mix_request.c
 *	  Requests made from numbers; see mix_request.h.
 *
 * Prompts are runs of made-up words. A prompt is the beginning of one of a few long texts, cut anywhere, and an end of its own,
 * so that two requests often share a prefix and part somewhere inside a cache block.
 */
#include "cli/mix_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"

#define N_FAMILIES   5  /* of prompts that begin alike */
#define LONGEST_TAIL 80 /* bytes of a prompt's own end */

/* What answers are bound to; the names of the kinds are those of the frames. */
static const struct
{
	Dsv3GrammarKind kind;
	const char *text;
} grammars[] = {
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 12}, "
	 "\"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 130}}, \"required\": [\"name\", "
	 "\"age\"]}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\": \"array\", \"items\": {\"enum\": [\"red\", \"green\", \"blue\", null]}, "
	 "\"minItems\": 1, \"maxItems\": 5}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"boolean\"}, \"b\": {\"type\": "
	 "\"number\"}, \"c\": {\"type\": \"array\", \"items\": {\"type\": \"string\", \"maxLength\": 3}, "
	 "\"maxItems\": 2}}}"},
	{DSV3_GRAMMAR_CHOICE, "[\"yes\", \"no\", \"neither of them\", \"not to be told from what is here\"]"},
	{DSV3_GRAMMAR_REGEX, "[A-Z][a-z]{2,9}(-[0-9]{1,4})?"},
	{DSV3_GRAMMAR_REGEX, ".{3,20}"},
	{DSV3_GRAMMAR_EBNF, "root ::= pair (\", \" pair)*\npair ::= [a-z]+ \"=\" [0-9]+\n"},
};

#define N_GRAMMARS ((uint32_t) (sizeof(grammars) / sizeof(grammars[0])))

static uint64_t
next_random(Dsv3Random *random)
{
	uint64_t z = random->state += UINT64_C(0x9E3779B97F4A7C15);

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

Dsv3Random
dsv3_random_stream(uint64_t seed, uint64_t number)
{
	Dsv3Random random = {seed};

	random.state = next_random(&random) ^ (number * UINT64_C(0xD6E8FEB86659FD93));
	(void) next_random(&random);
	return random;
}

uint32_t
dsv3_random_below(Dsv3Random *random, uint32_t n)
{
	return (uint32_t) (((next_random(random) >> 32) * n) >> 32);
}

uint32_t
dsv3_random_log(Dsv3Random *random, uint32_t n)
{
	uint32_t bits = 0;
	uint32_t value;

	while (bits < 31 && (UINT32_C(1) << bits) <= n)
		bits++;
	bits = dsv3_random_below(random, bits);
	value = (UINT32_C(1) << bits) + dsv3_random_below(random, UINT32_C(1) << bits);
	return value < n ? value : n;
}

/* So many bytes of words. */
static bool
append_words(Dsv3Text *text, Dsv3Random *random, uint32_t n_bytes, Dsv3Error *err)
{
	size_t end = text->len + n_bytes;

	while (text->len < end)
	{
		char word[12];
		size_t len = 2 + dsv3_random_below(random, 8);

		for (size_t i = 0; i < len; i++)
			word[i] = (char) ('a' + dsv3_random_below(random, 26));
		word[len++] = ' ';
		if (!dsv3_text_append(text, word, len < end - text->len ? len : end - text->len, err))
			return false;
	}
	return true;
}

static bool
set_bytes(Dsv3Bytes *bytes, const char *text, Dsv3Error *err)
{
	return dsv3_bytes_set(bytes, text, strlen(text), err);
}

static bool
set_prompt(Dsv3Bytes *bytes, uint64_t seed, Dsv3Random *random, uint32_t longest, Dsv3Error *err)
{
	Dsv3Random family =
		dsv3_random_stream(seed, DSV3_STREAM_FAMILIES + dsv3_random_below(random, N_FAMILIES));
	uint32_t tail = dsv3_random_log(random, longest < LONGEST_TAIL * 2 ? longest / 2 : LONGEST_TAIL);
	Dsv3Text text = {0};
	bool ok = append_words(&text, &family, dsv3_random_log(random, longest - tail), err) &&
			  append_words(&text, random, tail, err) && dsv3_bytes_set(bytes, text.data, text.len, err);

	dsv3_text_free(&text);
	return ok;
}

static bool
set_continuation(Dsv3Bytes *bytes, Dsv3Random *random, Dsv3Error *err)
{
	Dsv3Text text = {0};
	bool ok = append_words(&text, random, dsv3_random_log(random, 200), err) &&
			  dsv3_bytes_set(bytes, text.data, text.len, err);

	dsv3_text_free(&text);
	return ok;
}

/* A conversation with the prompt in its middle: words need no escaping. */
static bool
set_messages(Dsv3Request *request, Dsv3Error *err)
{
	static const char front[] =
		"[{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"";
	static const char back[] = "\"}]";
	Dsv3Text text = {0};
	bool ok = dsv3_text_append(&text, front, sizeof(front) - 1, err) &&
			  dsv3_text_append(&text, request->prompt.data, request->prompt.len, err) &&
			  dsv3_text_append(&text, back, sizeof(back) - 1, err) &&
			  dsv3_bytes_set(&request->messages, text.data, text.len, err);

	dsv3_text_free(&text);
	free(request->prompt.data);
	request->prompt = (Dsv3Bytes){0};
	return ok;
}

static void
set_sampling(Dsv3Sampling *sampling, Dsv3Random *random)
{
	sampling->seed = (int64_t) next_random(random);
	sampling->temperature = dsv3_random_below(random, 3) ? 0.2 + dsv3_random_below(random, 17) / 10.0 : 0.0;
	if (dsv3_random_below(random, 3) == 0)
		sampling->top_p = 0.5 + dsv3_random_below(random, 50) / 100.0;
	if (dsv3_random_below(random, 4) == 0)
		sampling->top_k = 1 + dsv3_random_below(random, 60);
	if (dsv3_random_below(random, 5) == 0)
		sampling->min_p = dsv3_random_below(random, 20) / 100.0;
	if (dsv3_random_below(random, 4) == 0)
		sampling->repetition_penalty = 1.0 + dsv3_random_below(random, 8) / 10.0;
}

/* How an answer is written: how long, ended and bound by what. */
static bool
set_answer(Dsv3Request *request, Dsv3Random *random, Dsv3Error *err)
{
	uint32_t grammar = dsv3_random_below(random, N_GRAMMARS * 3);

	set_sampling(&request->sampling, random);
	request->has_max_tokens = true;
	request->max_tokens = dsv3_random_log(random, 96);
	request->has_logprobs = dsv3_random_below(random, 2) == 0;
	request->logprobs = request->has_logprobs ? dsv3_random_below(random, 6) : 0;
	if (dsv3_random_below(random, 6) == 0 && !set_bytes(&request->stops[request->n_stops++], "th", err))
		return false;
	if (grammar >= N_GRAMMARS || request->kind != DSV3_REQUEST_GENERATE)
		return true;
	request->max_tokens += 48; /* now and then too few for the shortest answer, which must fail alike */
	request->grammar_kind = (uint32_t) grammars[grammar].kind;
	return set_bytes(&request->grammar, grammars[grammar].text, err);
}

Dsv3Request *
dsv3_mix_request(uint64_t seed, uint64_t number, uint32_t longest, Dsv3Error *err)
{
	/* of twenty requests */
	static const Dsv3RequestKind kinds[20] = {DSV3_REQUEST_CHAT, DSV3_REQUEST_CHAT, DSV3_REQUEST_LOGPROB,
											  DSV3_REQUEST_LOGPROB, DSV3_REQUEST_SCORE};
	Dsv3Random random = dsv3_random_stream(seed, number);
	Dsv3RequestKind kind = kinds[dsv3_random_below(&random, 20)];
	Dsv3Request *request = dsv3_request_new(0, kind ? kind : DSV3_REQUEST_GENERATE);
	bool ok = request && set_prompt(&request->prompt, seed, &random, longest, err);

	if (ok && kind != DSV3_REQUEST_CHAT)
		request->raw = dsv3_random_below(&random, 2) == 0;
	if (ok && kind == DSV3_REQUEST_CHAT)
		ok = set_messages(request, err) && set_answer(request, &random, err);
	else if (ok && kind == DSV3_REQUEST_LOGPROB)
		ok = set_continuation(&request->continuation, &random, err);
	else if (ok && kind == DSV3_REQUEST_SCORE)
		ok = set_bytes(
			&request->choices,
			"[\"yes\", \"no\", \"something else, which is longer than a block of the cache holds when it is "
			"cut into pieces of one or two letters\", \"perhaps\"]",
			err);
	else if (ok)
		ok = set_answer(request, &random, err);
	if (ok)
		return request;
	if (request)
		dsv3_request_free(request);
	else
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a request");
	return NULL;
}
