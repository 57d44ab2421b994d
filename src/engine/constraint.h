/*
 * constraint.h
 *	  Structured output in the engine: compiled grammars kept for the next request, and one answer's way through its grammar.
 *
 * A store belongs to a backend: it holds the token table of the vocabulary, made when the first grammar is asked for, and
 * the grammars compiled last, so that the rows of a query that share a schema compile it once. Any thread may use it. A
 * constraint belongs to one sequence and keeps its grammar alive.
 */
#ifndef DSV3_CONSTRAINT_H
#define DSV3_CONSTRAINT_H

#include "engine/backend.h"
#include "engine/request.h"
#include "grammar/grammar.h"

typedef struct Dsv3Constraint
{
	struct StoredGrammar *stored; /* counted reference */
	Dsv3Grammar *grammar;         /* of stored */
	Dsv3Matcher *matcher;
	uint64_t *allowed; /* the mask of the step, a bit for each id below n_ids */
	int n_ids;
	bool narrowed;   /* the token limit took tokens away at some step */
	Dsv3Text answer; /* the text as it was decoded, for the check at its end */
} Dsv3Constraint;

extern Dsv3GrammarStore *dsv3_grammar_store_open(Dsv3Error *err);
extern void dsv3_grammar_store_close(Dsv3GrammarStore *store);

/* Compile the request's grammar, or find it. NULL and the compiler's error on failure. */
extern Dsv3Constraint *dsv3_constraint_open(Dsv3Backend *backend, const Dsv3Request *request, Dsv3Error *err);
extern void dsv3_constraint_close(Dsv3Constraint *constraint);

/* Set allowed for the next token, of at most remaining more, the end token included. */
extern bool dsv3_constraint_mask(Dsv3Constraint *constraint, size_t remaining, Dsv3Error *err);

/* Take a token that was allowed (another one is an internal error). *ended: nothing can follow. */
extern bool dsv3_constraint_accept(Dsv3Constraint *constraint, int32_t id, bool *ended, Dsv3Error *err);

/* The answer is over: is what was decoded what was asked for? XX000 when not. A check that gives up, because an expression takes
 * PCRE2 too long, decides nothing and passes. */
extern bool dsv3_constraint_check(Dsv3Constraint *constraint, Dsv3Error *err);

/* CHECK_GRAMMAR: {"shortest": n, "notices": [{"pointer":.., "keyword":.., "message":..}]}. */
extern bool dsv3_constraint_describe(Dsv3Constraint *constraint, Dsv3Text *json, Dsv3Error *err);

/* ACCEPTS: {"accepted": bool, "offset": bytes that could be written}. */
extern bool dsv3_constraint_accepts(Dsv3Constraint *constraint, const char *text, size_t len, Dsv3Text *json,
									Dsv3Error *err);

#endif /* DSV3_CONSTRAINT_H */
