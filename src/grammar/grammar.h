/*
 * grammar.h
 *	  Structured output: from a JSON Schema, a list of labels, a regular expression or an EBNF grammar to the set of
 *	  tokens that may come next.
 *
 * Three objects. A Dsv3TokenTable is a tokenizer's token table made ready (once per model). A Dsv3Grammar is a compiled
 * source for one vocabulary: immutable to its users, shared by any number of threads; what it learns while it is used
 * (automaton states, masks) is cached behind its own lock. A Dsv3Matcher is one generation's position in a grammar:
 * cheap, owned by one thread at a time, able to go back.
 *
 * What is promised:
 *	- Never a wider language than the source. What cannot be enforced exactly is narrowed (a notice says so) or refused
 *	  when compiling, with SQLSTATE, the place in the schema, the keyword and a hint.
 *	- No dead ends: after any sequence of allowed tokens there is an allowed token, or the text is complete.
 *	- Inside a budget (dsv3_matcher_mask with remaining >= dsv3_matcher_shortest), the text can always be completed.
 *
 * JSON is written in one spelling: raw UTF-8, the short escapes, \u00xx for the other control characters only, keys in
 * the grammar's order, and bounded white space (docs/structured-output.md).
 */
#ifndef DSV3_GRAMMAR_H
#define DSV3_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

typedef struct Dsv3TokenTable Dsv3TokenTable;
typedef struct Dsv3Grammar Dsv3Grammar;
typedef struct Dsv3Matcher Dsv3Matcher;

/* One token: its bytes, or NULL for an id that must never be sampled (padding). Special tokens are never allowed
 * either, whatever their text is, except the end token. */
typedef struct Dsv3TokenBytes
{
	const char *bytes;
	uint32_t len;
	bool special;
} Dsv3TokenBytes;

/* Copies what it needs. eos may be -1. Every byte that JSON text can hold must exist as a token of its own, as it does in
 * any byte-level BPE; otherwise 22023. Only the first byte of a character above U+3FFFF may be in no token at all. */
extern Dsv3TokenTable *
dsv3_token_table_create(const Dsv3TokenBytes *tokens, int32_t ntokens, int32_t eos, Dsv3Error *err);
extern void dsv3_token_table_free(Dsv3TokenTable *vocab); /* after the grammars that use it */
extern int32_t dsv3_token_table_size(const Dsv3TokenTable *vocab);
extern int32_t dsv3_token_table_eos(const Dsv3TokenTable *vocab);
extern const char *
dsv3_token_table_bytes(const Dsv3TokenTable *vocab, int32_t token, size_t *len); /* not terminated */

typedef enum Dsv3GrammarKind
{
	DSV3_GRAMMAR_JSON_SCHEMA, /* text: a JSON Schema */
	DSV3_GRAMMAR_CHOICE,      /* text: a JSON array of strings; the answer is one of them, bare */
	DSV3_GRAMMAR_REGEX,       /* text: a regular expression the whole answer matches */
	DSV3_GRAMMAR_EBNF, /* text: an EBNF grammar (docs/structured-output.md); its first rule is the answer */
} Dsv3GrammarKind;

typedef enum Dsv3Whitespace
{
	DSV3_WHITESPACE_NATURAL, /* one space after ":" and ",", or one newline and an indentation where one belongs */
	DSV3_WHITESPACE_COMPACT, /* none */
	DSV3_WHITESPACE_SPACED,  /* exactly one space after ":" and ",", no newlines */
} Dsv3Whitespace;

typedef enum Dsv3KeyOrder
{
	DSV3_ORDER_SCHEMA, /* as the properties are listed; for schemas given as text */
	DSV3_ORDER_REQUIRED, /* the "required" array first, then the rest; for schemas that lost their order in jsonb */
} Dsv3KeyOrder;

typedef struct Dsv3SchemaDocument
{
	const char *uri;
	const char *text;
	size_t len;
} Dsv3SchemaDocument;

/* Zero is a good default for every member. */
typedef struct Dsv3GrammarOptions
{
	Dsv3Whitespace whitespace;
	Dsv3KeyOrder key_order;
	bool closed_objects;    /* an object that does not mention additionalProperties has none */
	bool format_annotation; /* "format" is a comment, as 2019-09 and later read it by default */
	int draft; /* 4, 6, 7, 19, 20: when the schema has no $schema; 0: 20, older spellings understood */
	const Dsv3SchemaDocument *documents; /* what references may lead to besides the schema itself */
	int32_t ndocuments;
	size_t memory_limit;          /* for compiling, and for the grammar's caches; 0: 192 MiB */
	bool (*cancelled)(void *arg); /* looked at now and then while compiling */
	void *cancel_arg;
} Dsv3GrammarOptions;

/* Where in the schema a refusal came from; both are empty when the failure has no place. */
typedef struct Dsv3GrammarPlace
{
	char pointer[512];
	char keyword[64];
} Dsv3GrammarPlace;

/* NULL and *err on failure; *place (may be NULL) says where. */
extern Dsv3Grammar *
dsv3_grammar_compile(Dsv3TokenTable *vocab, Dsv3GrammarKind kind, const char *text, size_t len,
					 const Dsv3GrammarOptions *options, Dsv3GrammarPlace *place, Dsv3Error *err);
extern void dsv3_grammar_free(Dsv3Grammar *grammar); /* after its matchers */

/* Notice i, or NULL past the last: what was narrowed or ignored. *pointer, *keyword may be NULL arguments. */
extern const char *
dsv3_grammar_notice(const Dsv3Grammar *grammar, int32_t i, const char **pointer, const char **keyword);

/* Bytes held now, caches included. */
extern size_t dsv3_grammar_memory(Dsv3Grammar *grammar);

/* Tokens of the shortest complete answer found (an upper bound that can always be reached), without the end token. */
extern int32_t dsv3_grammar_shortest(Dsv3Grammar *grammar);

/*
 * Is this text, which the decoder has produced, valid for the grammar's source? JSON Schema: checked by a validator that
 * shares nothing with the automata but the reading of references. Choices: looked for in the list. Expressions: matched by
 * PCRE2. EBNF: true, there is no second reader. A mismatch is XX000; another error means that the check gave up (a pattern that
 * PCRE2 takes too long for, memory).
 */
extern bool dsv3_grammar_validate(Dsv3Grammar *grammar, const char *text, size_t len, Dsv3Error *err);

/*
 * Rewrite a JSON value into the grammar's spelling and key order, so that `accepts` asks about the value and not about
 * how it happened to be written. malloc'd; NULL when the text is not JSON or no order of its keys is allowed.
 */
extern char *dsv3_grammar_respell(Dsv3Grammar *grammar, const char *text, size_t len, size_t *outlen);

extern Dsv3Matcher *dsv3_matcher_create(Dsv3Grammar *grammar, Dsv3Error *err);
extern Dsv3Matcher *dsv3_matcher_fork(const Dsv3Matcher *matcher, Dsv3Error *err);
extern void dsv3_matcher_free(Dsv3Matcher *matcher);
extern void dsv3_matcher_reset(Dsv3Matcher *matcher);

/*
 * The allowed tokens: bit (id % 64) of words[id / 64], (size + 63) / 64 words. remaining is the number of tokens that may
 * still be written, the end token included, or -1 for no budget: then only tokens after which the text can still be
 * completed stay allowed. *count (may be NULL) is their number. *narrowed (may be NULL): the budget took tokens away.
 * The end token is allowed exactly when the text is complete. Fails on memory, or when remaining is too small.
 */
extern bool dsv3_matcher_mask(Dsv3Matcher *matcher, int32_t remaining, uint64_t *words, int32_t *count,
							  bool *narrowed, Dsv3Error *err);

/* The same mask without a budget, found by trying every token by its bytes: slow, and what the fast one must equal. */
extern bool dsv3_matcher_mask_slow(Dsv3Matcher *matcher, uint64_t *words, int32_t *count, Dsv3Error *err);

/* Take a token. False without an error set in err->sqlstate[0]: the token is not allowed and nothing changed. */
extern bool dsv3_matcher_accept(Dsv3Matcher *matcher, int32_t token, Dsv3Error *err);

/* Take bytes instead; *taken is how many were. False: the byte after *taken is not allowed (the ones before are kept). */
extern bool
dsv3_matcher_accept_bytes(Dsv3Matcher *matcher, const char *bytes, size_t len, size_t *taken, Dsv3Error *err);

/* Undo the last n accepted tokens (each accept_bytes counts as one). */
extern bool dsv3_matcher_rollback(Dsv3Matcher *matcher, int32_t n);

extern bool dsv3_matcher_is_complete(Dsv3Matcher *matcher); /* the text so far is a whole answer */
extern bool dsv3_matcher_must_stop(Dsv3Matcher *matcher);   /* and nothing can follow it */

/* Tokens of the shortest completion found from here, without the end token: 0 when complete. -1 on memory. */
extern int32_t dsv3_matcher_shortest(Dsv3Matcher *matcher);

/*
 * The bytes that must come next whatever the model prefers, at most size of them; they may end inside a character.
 * Returns their number.
 */
extern size_t dsv3_matcher_forced(Dsv3Matcher *matcher, char *bytes, size_t size);

/*
 * How many of ntokens, the tokenizer's own encoding of the forced bytes, can be taken without changing what the model
 * would have written: the tail is cut while some token of the vocabulary could reach across the end of the forced bytes.
 */
extern int32_t dsv3_matcher_forced_tokens(Dsv3Matcher *matcher, const int32_t *tokens, int32_t ntokens);

#endif /* DSV3_GRAMMAR_H */
