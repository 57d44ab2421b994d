/*
 * constraint.h
 *	  Structured output in the engine: compiled grammars kept for the next request, and one answer's way through its grammar.
 *
 * A store belongs to a backend: it holds the token table of the vocabulary, made when the first grammar is asked for, and
 * the grammars compiled last, so that the rows of a query that share a schema compile it once. Any thread may use it. A
 * constraint belongs to one sequence and keeps its grammar alive.
 *
 * A constraint plans a step before it is run. Its first row is that of the token written last: which tokens may follow. Where
 * few may, they are listed, and only their logits are computed. Where the grammar leaves the next bytes no choice, the
 * tokenizer's own spelling of them comes along as drafts, each with a row of its own in the same step. A draft is not the
 * answer: its row is sampled as if the step had been for that token alone, and the first one that comes out differently ends
 * the step's use. So what is forced costs fewer steps and never changes what the model would have written.
 */
#ifndef DSV3_CONSTRAINT_H
#define DSV3_CONSTRAINT_H

#include "engine/backend.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "grammar/grammar.h"

#define DSV3_MOST_DRAFTS 16

typedef struct Dsv3Constraint
{
	struct StoredGrammar *stored; /* counted reference */
	Dsv3Grammar *grammar;         /* of stored */
	Dsv3Matcher *matcher;
	int n_ids;

	/* The plan, in the order of its rows. Only the first and the last row can be without a list; `allowed` is their masks one behind
	 * the other, a bit for each id below n_ids. */
	Dsv3Picked *picked; /* [DSV3_MOST_DRAFTS + 1]; n 0: too many to list */
	int32_t *drafts;    /* [DSV3_MOST_DRAFTS], behind each row but the last */
	bool *row_narrowed; /* [DSV3_MOST_DRAFTS + 1] */
	uint64_t *allowed;
	int n_drafts;
	int row;         /* that is used next */
	int most_listed; /* ids of a list at the most */

	bool narrowed;   /* the token limit took tokens away at some step */
	Dsv3Text answer; /* the text as it was decoded, for the check at its end */
} Dsv3Constraint;

extern Dsv3GrammarStore *dsv3_grammar_store_open(Dsv3Error *err);
extern void dsv3_grammar_store_close(Dsv3GrammarStore *store);

/* Compile the request's grammar, or find it. NULL and the compiler's error on failure. */
extern Dsv3Constraint *dsv3_constraint_open(Dsv3Backend *backend, const Dsv3Request *request, Dsv3Error *err);
extern void dsv3_constraint_close(Dsv3Constraint *constraint);

/* Plan the next step for an answer of at most remaining more tokens, the end token included. whole: one row, without a list. */
extern bool dsv3_constraint_plan(Dsv3Constraint *constraint, Dsv3Backend *backend, size_t remaining,
								 bool whole, Dsv3Error *err);

/* Sample the next token from the plan's next row; logits are the row's when it has no list. */
extern bool dsv3_constraint_pick(Dsv3Constraint *constraint, Dsv3Sampler *sampler,
								 const Dsv3Sampling *sampling, const Dsv3SeenIds *seen, const float *logits,
								 uint64_t index, int32_t *id, Dsv3Error *err);

/* Sample likewise, from somebody else's logits for the first row of a plan without drafts, and make the result its draft. False when
 * nothing comes of it; the plan is then as it was. remaining and whole as in dsv3_constraint_plan. */
extern bool dsv3_constraint_guess(Dsv3Constraint *constraint, Dsv3Backend *backend, Dsv3Sampler *sampler,
								  const Dsv3Sampling *sampling, const Dsv3SeenIds *seen, const float *logits,
								  uint64_t index, size_t remaining, bool whole);

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
