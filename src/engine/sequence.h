/*
 * sequence.h
 *	  One request while it is worked on: its tokens, its cache blocks, and the way from a sampled token to delivered text.
 *
 * A sequence is made from a request by dsv3_sequence_open (any thread), then belongs to the scheduler. Its tokens are the
 * prompt and the output so far; the cache holds the first `computed` of them. The state behind the delivered text
 * (decoder, stop strings, thinking part, penalty) is a function of the output tokens alone, so that a sequence that
 * resumes after an engine restart replays the tokens it had and goes on: nothing is sent twice, nothing is lost.
 */
#ifndef DSV3_SEQUENCE_H
#define DSV3_SEQUENCE_H

#include "engine/backend.h"
#include "engine/constraint.h"
#include "engine/request.h"
#include "engine/sampler.h"

typedef struct Dsv3Sequence
{
	Dsv3Request *request; /* owned */
	Dsv3Backend *backend;

	Dsv3Tokens tokens; /* prompt, then output */
	size_t n_prompt;
	size_t n_limit;    /* most tokens there may be, prompt included */
	size_t computed;   /* rows in the cache that count */
	size_t score_from; /* rows from here on need logits: their next token is scored or sampled */
	int32_t *blocks;   /* block table; capacity for n_limit */
	int n_blocks;

	Dsv3SeenIds seen;
	Dsv3Decoder decoder;
	bool opened_think;    /* the prompt ends inside the thinking part */
	bool thinking;        /* now inside it */
	bool trim_newlines;   /* between </think> and the answer */
	uint32_t think_spent; /* tokens of thinking so far */
	Dsv3Text held;        /* visible text that may be the beginning of a stop string */
	bool stopped_by_string;

	Dsv3Constraint *constraint; /* owned; NULL: the answer is free */
	int n_drafts;      /* ids behind the last of tokens, not counted there, that are computed with it */
	size_t drafts_end; /* where they end, from when they were planned on */
	bool guessed;      /* the draft, one, is the draft layer's; else they are the grammar's (constraint.h) */

	/* SCORE: the choices' ids one behind the other, each ended by the end token; choice i is ids ends[i-1] .. ends[i]. The
	 * sequence holds the prompt and one choice at a time; between two of them it goes back to the prompt's last row. */
	Dsv3Tokens choices;
	size_t *choice_ends;
	double *choice_logprobs;
	size_t n_choices;
	size_t choice;

	Dsv3Chosen *routing; /* owned; ROUTING: what the steps write down, else NULL */

	bool finished;
	Dsv3Finish finish;
	Dsv3Text out_text;     /* decided and not sent yet */
	Dsv3Tokens out_tokens; /* likewise */
	Dsv3Text visible;      /* CHAT: all visible text, for MESSAGE_JSON */
	Dsv3Text logprobs;     /* LOGPROBS: JSON array without its closing bracket */
	double logprob;        /* LOGPROB: sum so far */
} Dsv3Sequence;

/*
 * Take over the request (also on failure, when it is freed): encode the prompt, check lengths, replay RESUME. max_context: most
 * tokens a sequence may have here. kv_limited: that is less than the model's own context because of the cache. Not for
 * TOKENIZE and DETOKENIZE.
 */
extern Dsv3Sequence *dsv3_sequence_open(Dsv3Backend *backend, Dsv3Request *request, size_t max_context,
										bool kv_limited, Dsv3Error *err);
extern void dsv3_sequence_close(Dsv3Sequence *seq);

/* The output so far. */
extern size_t dsv3_sequence_n_output(const Dsv3Sequence *seq);

/* Rows of the next step that have logits of some ids only: of the last of tokens and of the drafts; NULL without. */
extern const Dsv3Picked *dsv3_sequence_picked(const Dsv3Sequence *seq);

/* Use the logits of a row (>= score_from): score the token that follows it, or sample one when there is none. logits is not looked at
 * when the row has picked ids. Lowers computed when the rows behind this one mean nothing. */
extern bool dsv3_sequence_use_row(Dsv3Sequence *seq, Dsv3Sampler *sampler, size_t row, const float *logits,
								  Dsv3Error *err);

/* After the rows of a step, unless finished: plan the next one. */
extern bool dsv3_sequence_plan(Dsv3Sequence *seq, Dsv3Error *err);

/* May the draft layer guess at the next token? Not where it is known already, or the last. */
extern bool dsv3_sequence_can_draft(const Dsv3Sequence *seq);

/* Guess it: what would be sampled if the model had these logits (not looked at when the row has picked ids). Becomes the draft,
 * unless it would end the answer or a part of it. */
extern void dsv3_sequence_guess(Dsv3Sequence *seq, Dsv3Sampler *sampler, const float *logits);

/* SCORE, when finished: the log-probability of each choice, its end token included, as a JSON array. */
extern bool dsv3_sequence_scores(Dsv3Sequence *seq, Dsv3Text *json, Dsv3Error *err);

/* CHAT, when finished: the assistant message as JSON text; sets finish to TOOL_CALLS when it has some. */
extern bool dsv3_sequence_message(Dsv3Sequence *seq, Dsv3Text *json, Dsv3Error *err);

#endif /* DSV3_SEQUENCE_H */
