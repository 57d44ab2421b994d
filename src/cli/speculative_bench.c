/*
 * speculative_bench.c
 *	  What drafts gain; see speculative_bench.h.
 *
 * The model is opened twice, without and with its draft layer, and both decode greedily behind the same random prompt, by turns: each
 * round has a window of the one and a window of the other, so that both see the same neighbours of the machine. Every step of the
 * second is a draft's two rows, as with dsv3.speculative = on. Both must write the same tokens. How many drafts are right depends on the text as
 * much as on the model; behind random tokens it is what the model makes of noise.
 */
#include "cli/speculative_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/memory_read.h"

#define WRITTEN 256 /* tokens behind the prompt before it starts over */

typedef struct Side
{
	Dsv3Model *model;
	Dsv3Kv *kv;
	float *logits; /* [2][vocab] */
	int32_t *written;
	int n_written;
	int position; /* of the token that is computed next */
	int32_t token;
	int32_t draft; /* -1: none */
	int64_t tokens;
	int64_t drafted;
	int64_t accepted;
} Side;

typedef struct Work
{
	const Dsv3SpeculativeBench *bench;
	Side sides[2]; /* without, with */
	int32_t *prompt;
	int32_t *blocks;
	int n_blocks;
	int end; /* positions there are */
} Work;

static int32_t
likeliest(const float *logits, int n)
{
	int best = 0;

	for (int i = 1; i < n; i++)
		best = logits[i] > logits[best] ? i : best;
	return best;
}

static Dsv3StepSeq
part(const Work *work, const int32_t *tokens, int n, int position, int want)
{
	return (Dsv3StepSeq){.tokens = tokens,
						 .n_tokens = n,
						 .position = position,
						 .blocks = work->blocks,
						 .n_blocks = work->n_blocks,
						 .want = want};
}

/* Guess what follows the next token, which was chosen from that row of the last step. */
static bool
make_draft(const Work *work, Side *side, int row, Dsv3Error *err)
{
	Dsv3StepSeq seq = part(work, &side->token, 1, side->position, DSV3_WANT_LAST);

	side->draft = -1;
	if (!dsv3_model_info(side->model)->drafts || side->position + 2 > work->end)
		return true;
	if (!dsv3_model_draft(side->model, side->kv, &seq, &row, 1, side->logits, err))
		return false;
	side->draft = likeliest(side->logits, dsv3_model_info(side->model)->vocab_size);
	return true;
}

/* The prompt, from which the first token follows. */
static bool
begin(const Work *work, Side *side, Dsv3Error *err)
{
	int n = work->bench->prompt;
	Dsv3StepSeq seq = part(work, work->prompt, n, 0, DSV3_WANT_LAST);

	if (!dsv3_model_step(side->model, side->kv, &seq, 1, side->logits, NULL, err))
		return false;
	side->n_written = 0;
	side->position = n;
	side->token = likeliest(side->logits, dsv3_model_info(side->model)->vocab_size);
	return make_draft(work, side, 0, err);
}

/* One step: a token, or two. */
static bool
advance(const Work *work, Side *side, Dsv3Error *err)
{
	int vocab = dsv3_model_info(side->model)->vocab_size;
	int32_t ids[2] = {side->token, side->draft};
	int n = side->draft >= 0 ? 2 : 1;
	Dsv3StepSeq seq = part(work, ids, n, side->position, DSV3_WANT_ALL);
	int row = 0;

	if (!dsv3_model_step(side->model, side->kv, &seq, 1, side->logits, NULL, err))
		return false;
	side->written[side->n_written++] = side->token;
	side->position++;
	side->token = likeliest(side->logits, vocab);
	side->drafted += n - 1;
	if (n == 2 && side->token == side->draft)
	{
		side->accepted++;
		side->written[side->n_written++] = side->token;
		side->position++;
		side->token = likeliest(side->logits + vocab, vocab);
		row = 1;
	}
	side->tokens += row + 1;
	return side->position < work->end && make_draft(work, side, row, err);
}

/* Tokens per second; 0 on failure. Prompts are not counted in. */
static double
window(const Work *work, Side *side, Dsv3Error *err)
{
	double spent = 0;
	int64_t before = side->tokens;

	err->sqlstate[0] = '\0';
	while (spent < work->bench->seconds)
	{
		double start = dsv3_cli_now();

		if (advance(work, side, err))
			spent += dsv3_cli_now() - start;
		else if (err->sqlstate[0] != '\0')
			return 0;
		else
		{
			spent += dsv3_cli_now() - start;
			if (!begin(work, side, err))
				return 0;
		}
	}
	return (double) (side->tokens - before) / spent;
}

/* Do both write the same? */
static bool
compare(Work *work, Dsv3Error *err)
{
	for (int s = 0; s < 2; s++)
	{
		err->sqlstate[0] = '\0';
		if (!begin(work, &work->sides[s], err))
			return false;
		while (advance(work, &work->sides[s], err))
			;
		if (err->sqlstate[0] != '\0')
			return false;
	}
	for (int i = 0; i < work->sides[0].n_written && i < work->sides[1].n_written; i++)
	{
		if (work->sides[0].written[i] != work->sides[1].written[i])
			return dsv3_error(err, DSV3_ERR_INTERNAL, "token %d is %d without drafts and %d with them", i,
							  work->sides[0].written[i], work->sides[1].written[i]);
	}
	return begin(work, &work->sides[0], err) && begin(work, &work->sides[1], err);
}

static int
compare_doubles(const void *a, const void *b)
{
	double x = *(const double *) a, y = *(const double *) b;

	return x < y ? -1 : x > y;
}

static double
median(double *values, int n)
{
	qsort(values, (size_t) n, sizeof(*values), compare_doubles);
	return values[n / 2];
}

static bool
measure(Work *work, Dsv3Error *err)
{
	const Dsv3SpeculativeBench *bench = work->bench;
	const Dsv3ModelInfo *info = dsv3_model_info(work->sides[1].model);
	double *speeds = calloc((size_t) bench->rounds * 3, sizeof(*speeds));
	double *without = speeds, *with = speeds + bench->rounds, *gain = speeds + 2 * bench->rounds;
	double right, drafts_per_step;
	bool ok = speeds != NULL || dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a benchmark");

	ok = ok && compare(work, err);
	work->sides[1].tokens = work->sides[1].drafted = work->sides[1].accepted = 0;
	for (int i = 0; ok && i < bench->rounds; i++)
	{
		ok = (without[i] = window(work, &work->sides[0], err)) > 0 &&
			 (with[i] = window(work, &work->sides[1], err)) > 0;
		gain[i] = ok ? with[i] / without[i] : 0;
	}
	if (ok)
	{
		const Side *side = &work->sides[1];

		right = side->drafted > 0 ? (double) side->accepted / (double) side->drafted : 0;
		drafts_per_step = (double) side->tokens / (double) (side->tokens - side->accepted);
		printf(bench->json
				   ? "{\"weights\": \"%s\", \"threads\": %d, \"prompt\": %d, \"draft_bytes\": %lld, "
					 "\"without_tokens_per_second\": %.3f, \"with_tokens_per_second\": %.3f, \"gain\": "
					 "%.4f, \"accepted\": %.4f, \"tokens_per_step\": %.4f}\n"
				   : "weights %s, %d threads, %d tokens of prompt, draft layer of %lld bytes\n"
					 "without drafts      %8.1f tokens/s\n"
					 "with drafts         %8.1f tokens/s: %.2f times as many\n"
					 "drafts right        %8.3f of 1, %.2f tokens a step\n",
			   info->weights, info->threads, bench->prompt, (long long) info->draft_bytes,
			   median(without, bench->rounds), median(with, bench->rounds), median(gain, bench->rounds),
			   right, drafts_per_step);
	}
	free(speeds);
	return ok;
}

static bool
open_side(Work *work, Side *side, bool drafts, Dsv3Error *err)
{
	Dsv3ModelOptions options = work->bench->options;
	const Dsv3ModelInfo *info;

	options.drafts = drafts;
	side->model = dsv3_model_open(work->bench->model, &options, err);
	if (side->model == NULL)
		return false;
	info = dsv3_model_info(side->model);
	if (drafts && !info->drafts)
	{
		dsv3_error(err, DSV3_ERR_UNSUPPORTED, "the model has no draft layer");
		return dsv3_error_hint(err, "dsv3 inspect tells which models have one.");
	}
	work->end = work->bench->prompt + WRITTEN;
	if (work->end > info->max_positions)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER,
						  "a prompt of %d tokens and %d written ones are more than %d positions",
						  work->bench->prompt, WRITTEN, info->max_positions);
	work->n_blocks = (work->end + DSV3_KV_BLOCK - 1) / DSV3_KV_BLOCK;
	side->kv = dsv3_kv_open(side->model, work->n_blocks, err);
	side->logits = malloc(2 * (size_t) info->vocab_size * sizeof(float));
	side->written = malloc((WRITTEN + 1) * sizeof(int32_t));
	if (side->kv == NULL)
		return false;
	return (side->logits && side->written) ||
		   dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a benchmark");
}

static bool
run(Work *work, Dsv3Error *err)
{
	uint32_t random = 1;
	int vocab;

	if (!open_side(work, &work->sides[1], true, err) || !open_side(work, &work->sides[0], false, err))
		return false;
	vocab = dsv3_model_info(work->sides[0].model)->vocab_size;
	work->prompt = malloc((size_t) work->bench->prompt * sizeof(int32_t));
	work->blocks = malloc((size_t) work->n_blocks * sizeof(int32_t));
	if (work->prompt == NULL || work->blocks == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a benchmark");
	for (int i = 0; i < work->bench->prompt; i++)
	{
		random = random * 1664525u + 1013904223u;
		work->prompt[i] = (int32_t) ((random >> 8) % (uint32_t) vocab);
	}
	for (int i = 0; i < work->n_blocks; i++)
		work->blocks[i] = i;
	return measure(work, err);
}

int
dsv3_speculative_bench(const Dsv3SpeculativeBench *bench)
{
	Work work = {.bench = bench};
	Dsv3Error err;
	bool ok = run(&work, &err);

	for (int s = 0; s < 2; s++)
	{
		free(work.sides[s].logits);
		free(work.sides[s].written);
		dsv3_kv_close(work.sides[s].kv);
		dsv3_model_close(work.sides[s].model);
	}
	free(work.prompt);
	free(work.blocks);
	return ok ? 0 : dsv3_cli_fail(&err);
}
