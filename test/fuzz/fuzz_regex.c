/*
 * fuzz_regex.c
 *	  Any bytes as a regular expression, as a list of labels and as an EBNF grammar, by the first byte. The shortest
 *	  answer must exist and be accepted.
 *
 * Run: make fuzz FUZZ=regex SECONDS=60
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
	static const Dsv3GrammarKind kinds[] = {DSV3_GRAMMAR_REGEX, DSV3_GRAMMAR_CHOICE, DSV3_GRAMMAR_EBNF};
	Dsv3GrammarOptions options = {.time_limit_ms = 2000, .memory_limit = (size_t) 64 * 1024 * 1024};
	Dsv3Error err = {.sqlstate = ""};
	Dsv3Grammar *g;
	Dsv3Matcher *m;
	int32_t left;

	if (size == 0)
		return 0;
	g = dsv3_grammar_compile(table(), kinds[data[0] % 3], (const char *) data + 1, size - 1, &options, NULL,
							 &err);
	if (g == NULL)
	{
		if (strlen(err.sqlstate) != 5 || err.message[0] == '\0')
			abort();
		return 0;
	}
	m = dsv3_matcher_create(g, &err);
	left = dsv3_matcher_shortest(m) + 1;
	while (left > 0 && left < 5000)
	{
		uint64_t mask[5];
		int32_t count;
		int32_t token = 256;

		if (!dsv3_matcher_mask(m, left--, mask, &count, NULL, &err) || count <= 0)
			abort();
		for (int32_t t = 0; t < 256 && token == 256; t++)
			if ((mask[t / 64] >> (t % 64) & 1) != 0)
				token = t;
		if (token == 256)
			break;
		if (!dsv3_matcher_accept(m, token, &err))
			abort();
	}
	if (left < 5000 && !dsv3_matcher_is_complete(m))
		abort();
	dsv3_matcher_free(m);
	dsv3_grammar_free(g);
	return 0;
}
