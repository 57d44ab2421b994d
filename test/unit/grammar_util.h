/*
 * grammar_util.h
 *	  A small vocabulary and short ways to ask a grammar questions, for the grammar tests.
 */
#ifndef GRAMMAR_UTIL_H
#define GRAMMAR_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "grammar/grammar.h"

#define VOCAB_EOS 256

/* All single bytes, and tokens that cross the borders of JSON's parts, of characters and of escapes. */
static inline Dsv3TokenTable *
small_vocab(void)
{
	static const char *const pieces[] = {
		"{\"",   "\":", "\":\"",    "\",\"",    "\"}",  "\"]",  "},",         ", \"",  "\": ", "\n  ",  "\n}",
		"[\"",   "]]",  "],",       "{}",       "[]",   "\"\"", ":\"\",\"",   "true",  "tr",   "null,", "0,",
		"1]",    "12",  "0.",       ".5",       "1,1",  "a\"",  "a\",\"a",    "aa",    "ab",   "\\\"",  "\\n",
		"\\u00", "\\",  "\xC3\xA9", "\xE2\x82", "\xAC", "x\":", "a\":1,\"",   "\"}}",  "id",   "name",  "]}",
		"2024-", "-0",  "a",        "    ",     "\\\\", "é\"",  "b\",\"a\"]", "1,2,1", "\"a",  "\":1}"};
	static char bytes[256];
	Dsv3TokenBytes tokens[400];
	int32_t n = 257;
	Dsv3Error err = {0};
	Dsv3TokenTable *vocab;

	for (int b = 0; b < 256; b++)
	{
		bytes[b] = (char) b;
		tokens[b].bytes = &bytes[b];
		tokens[b].len = 1;
		tokens[b].special = false;
	}
	tokens[VOCAB_EOS].bytes = "</s>";
	tokens[VOCAB_EOS].len = 4;
	tokens[VOCAB_EOS].special = true;
	for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
	{
		tokens[n].bytes = pieces[i];
		tokens[n].len = (uint32_t) strlen(pieces[i]);
		tokens[n++].special = false;
	}
	tokens[n].bytes = "<special>"; /* has bytes that fit a string, and must never be allowed */
	tokens[n].len = 9;
	tokens[n++].special = true;
	tokens[n].bytes = NULL;
	tokens[n].len = 0;
	tokens[n++].special = false;
	vocab = dsv3_token_table_create(tokens, n, VOCAB_EOS, &err);
	assert_non_null(vocab);
	return vocab;
}

static inline Dsv3Grammar *
grammar_of(Dsv3TokenTable *vocab, Dsv3GrammarKind kind, const char *text, const Dsv3GrammarOptions *options)
{
	Dsv3Error err = {0};
	Dsv3Grammar *grammar = dsv3_grammar_compile(vocab, kind, text, strlen(text), options, NULL, &err);

	if (grammar == NULL)
		fail_msg("%s refused: %s", text, err.message);
	return grammar;
}

/* Would exactly this text be written? */
static inline bool
writes(Dsv3Grammar *grammar, const char *text)
{
	Dsv3Error err = {0};
	Dsv3Matcher *m = dsv3_matcher_create(grammar, &err);
	size_t taken;
	bool ok;

	assert_non_null(m);
	ok = dsv3_matcher_accept_bytes(m, text, strlen(text), &taken, &err) && dsv3_matcher_is_complete(m);
	dsv3_matcher_free(m);
	return ok;
}

#endif /* GRAMMAR_UTIL_H */
