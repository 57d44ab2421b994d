/*
 * fuzz_schema.c
 *	  Any bytes as a JSON Schema. What compiles is walked by the bytes after a zero byte, which choose among the allowed
 *	  tokens; the walk must never get stuck, and the finished answer must be valid.
 *
 * Run: make fuzz FUZZ=schema SECONDS=60
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static Dsv3TokenTable *
table(void)
{
	static Dsv3TokenTable *vocab;
	static char bytes[256];
	Dsv3TokenBytes tokens[257];
	Dsv3Error err;

	if (vocab != NULL)
		return vocab;
	for (int b = 0; b < 256; b++)
	{
		bytes[b] = (char) b;
		tokens[b] = (Dsv3TokenBytes){&bytes[b], 1, false};
	}
	tokens[256] = (Dsv3TokenBytes){NULL, 0, true};
	return vocab = dsv3_token_table_create(tokens, 257, 256, &err);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *zero = size > 0 ? memchr(data, 0, size) : NULL;
	size_t len = zero != NULL ? (size_t) (zero - data) : size;
	Dsv3GrammarOptions options = {.time_limit_ms = 2000, .memory_limit = (size_t) 64 * 1024 * 1024};
	Dsv3Error err = {.sqlstate = ""};
	Dsv3Grammar *g = dsv3_grammar_compile(table(), DSV3_GRAMMAR_JSON_SCHEMA, (const char *) data, len,
										  &options, NULL, &err);
	Dsv3Matcher *m;
	char text[4096];
	size_t n = 0;
	int32_t left;

	if (g == NULL)
	{
		if (strlen(err.sqlstate) != 5 || err.message[0] == '\0')
			abort();
		return 0;
	}
	m = dsv3_matcher_create(g, &err);
	left = dsv3_matcher_shortest(m) + 100;
	for (size_t i = len + 1; left < 2000; i++)
	{
		uint64_t mask[5];
		int32_t count;
		int32_t token = -1;
		int32_t nth;

		if (!dsv3_matcher_mask(m, left--, mask, &count, NULL, &err) || count <= 0)
			abort();
		nth = i < size ? data[i] % count : 0;
		for (int32_t t = 0; t < 257 && token < 0; t++)
			if ((mask[t / 64] >> (t % 64) & 1) != 0 && nth-- == 0)
				token = t;
		if (token == 256)
		{
			/* Only what the validator itself cannot decide is excused. */
			if (!dsv3_grammar_validate(g, text, n, &err) && strcmp(err.sqlstate, DSV3_ERR_INTERNAL) == 0)
				abort();
			break;
		}
		if (!dsv3_matcher_accept(m, token, &err))
			abort();
		text[n++] = (char) token;
	}
	dsv3_matcher_free(m);
	dsv3_grammar_free(g);
	return 0;
}
