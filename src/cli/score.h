/*
 * score.h
 *	  How well a model predicts a text, alone or beside another one; for the commands that print it.
 */
#ifndef DSV3_CLI_SCORE_H
#define DSV3_CLI_SCORE_H

#include <stdint.h>

#include "model/model.h"
#include "text/tokenizer.h"

/* A text and how it is cut: consecutive pieces of at most `context` ids, with the BOS id in front of each when bos is not
 * negative. Every id of a piece but its first is predicted from those before it. */
typedef struct Dsv3ScoredText
{
	const Dsv3Tokens *tokens;
	int32_t bos;
	int context;
} Dsv3ScoredText;

typedef struct Dsv3Score
{
	int64_t scored;       /* ids that were predicted */
	double nll;           /* sum of their negative log-probabilities, in nats */
	double reference_nll; /* the same under the reference */
	double divergence;    /* sum over positions of KL(reference || model), in nats */
	int64_t same_best;    /* positions at which both think the same id the likeliest */
} Dsv3Score;

/*
 * Score the text under model and, when it is not NULL, reference, whose vocabulary must be as large (22023). The
 * context is cut to what both models have. Sums are in double, in the order of the text; they depend on nothing but the models
 * and the text.
 */
extern bool dsv3_score(Dsv3Model *model, Dsv3Model *reference, const Dsv3ScoredText *text, Dsv3Score *score,
					   Dsv3Error *err);

/* What the score says of the model against the reference, as lines on standard output. */
extern void dsv3_score_print(const Dsv3Score *score);

/* Open the tokenizer of the model, read the file and encode it; *bos as dsv3_tokenizer_bos, *bytes of the file. False and *err. */
extern bool dsv3_score_read(const char *model, const char *path, Dsv3Tokens *tokens, int32_t *bos,
							int64_t *bytes, Dsv3Error *err);

#endif /* DSV3_CLI_SCORE_H */
