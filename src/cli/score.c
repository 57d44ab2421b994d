/*
 * score.c
 *	  Perplexity and divergence of models over a text; see score.h.
 *
 * Log-softmax is taken in double. Chunks change no bit of the logits, so they only bound memory.
 */
#include "cli/score.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"

#define MAX_TEXT ((int64_t) 1 << 30)
#define CHUNK    128

/* One model while it reads a piece. */
typedef struct Reader
{
	Dsv3Model *model;
	Dsv3Kv *kv;
	float *logits; /* [CHUNK][vocabulary] */
} Reader;

static bool
open_reader(Reader *r, Dsv3Model *model, int n_blocks, Dsv3Error *err)
{
	r->model = model;
	r->kv = dsv3_kv_open(model, n_blocks, err);
	if (r->kv == NULL)
		return false;
	r->logits = malloc((size_t) CHUNK * (size_t) dsv3_model_info(model)->vocab_size * sizeof(*r->logits));
	if (r->logits == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the logits of %d tokens", CHUNK);
	return true;
}

static void
close_reader(Reader *r)
{
	dsv3_kv_close(r->kv);
	free(r->logits);
}

static bool
read_chunk(Reader *r, const int32_t *ids, int first, int count, const int32_t *blocks, Dsv3Error *err)
{
	Dsv3StepSeq seq = {.tokens = ids + first,
					   .n_tokens = count,
					   .position = first,
					   .blocks = blocks,
					   .n_blocks = dsv3_kv_blocks(r->kv),
					   .want = DSV3_WANT_ALL};

	return dsv3_model_step(r->model, r->kv, &seq, 1, r->logits, NULL, err);
}

/* The likeliest id, its logit, and the logarithm of the sum of exp(logit - that). */
static int
log_sum(const float *logits, int vocab, float *top, double *log_of_sum)
{
	double sum = 0;
	int best = 0;

	for (int i = 1; i < vocab; i++)
		best = logits[i] > logits[best] ? i : best;
	*top = logits[best];
	for (int i = 0; i < vocab; i++)
		sum += exp((double) (logits[i] - *top));
	*log_of_sum = log(sum);
	return best;
}

/* One position: id was predicted by q, and by p of the reference when it is not NULL. */
static void
add_position(Dsv3Score *score, const float *q, const float *p, int vocab, int32_t id)
{
	float q_top;
	float p_top;
	double q_sum;
	double p_sum;
	double divergence = 0;
	int best = log_sum(q, vocab, &q_top, &q_sum);

	score->scored++;
	score->nll += q_sum - (double) (q[id] - q_top);
	if (p == NULL)
		return;
	score->same_best += log_sum(p, vocab, &p_top, &p_sum) == best;
	score->reference_nll += p_sum - (double) (p[id] - p_top);
	for (int i = 0; i < vocab; i++)
	{
		double log_p = (double) (p[i] - p_top) - p_sum;

		divergence += exp(log_p) * (log_p - ((double) (q[i] - q_top) - q_sum));
	}
	score->divergence += divergence;
}

static bool
score_piece(Reader *readers, int n_readers, const int32_t *ids, int n, const int32_t *blocks,
			Dsv3Score *score, Dsv3Error *err)
{
	size_t vocab = (size_t) dsv3_model_info(readers[0].model)->vocab_size;

	/* the last id has no successor to predict */
	for (int first = 0; first < n - 1; first += CHUNK)
	{
		int count = n - 1 - first < CHUNK ? n - 1 - first : CHUNK;

		for (int r = 0; r < n_readers; r++)
		{
			if (!read_chunk(&readers[r], ids, first, count, blocks, err))
				return false;
		}
		for (int i = 0; i < count; i++)
			add_position(score, readers[0].logits + (size_t) i * vocab,
						 n_readers > 1 ? readers[1].logits + (size_t) i * vocab : NULL, (int) vocab,
						 ids[first + i + 1]);
	}
	return true;
}

bool
dsv3_score(Dsv3Model *model, Dsv3Model *reference, const Dsv3ScoredText *text, Dsv3Score *score,
		   Dsv3Error *err)
{
	Dsv3Model *const models[] = {model, reference};
	int n_readers = reference ? 2 : 1;
	Reader readers[2] = {0};
	int lead = text->bos >= 0 ? 1 : 0;
	int context = text->context;
	int n_blocks;
	int32_t *blocks;
	int32_t *ids;
	bool ok = true;

	memset(score, 0, sizeof(*score));
	if (reference && dsv3_model_info(model)->vocab_size != dsv3_model_info(reference)->vocab_size)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "the models have %d and %d rows of logits",
						  dsv3_model_info(model)->vocab_size, dsv3_model_info(reference)->vocab_size);
	for (int r = 0; r < n_readers; r++)
	{
		if (dsv3_model_info(models[r])->max_positions < context)
			context = dsv3_model_info(models[r])->max_positions;
	}
	n_blocks = (context + DSV3_KV_BLOCK - 1) / DSV3_KV_BLOCK;
	blocks = malloc((size_t) n_blocks * sizeof(*blocks));
	ids = malloc((size_t) context * sizeof(*ids));
	if (blocks == NULL || ids == NULL)
		ok = dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a piece of %d tokens", context);
	for (int r = 0; ok && r < n_readers; r++)
		ok = open_reader(&readers[r], models[r], n_blocks, err);
	for (int i = 0; ok && i < n_blocks; i++)
		blocks[i] = i;
	for (size_t first = 0; ok && first < text->tokens->count; first += (size_t) (context - lead))
	{
		size_t left = text->tokens->count - first;
		int n = left < (size_t) (context - lead) ? (int) left : context - lead;

		if (lead)
			ids[0] = text->bos;
		memcpy(ids + lead, text->tokens->ids + first, (size_t) n * sizeof(*ids));
		ok = score_piece(readers, n_readers, ids, n + lead, blocks, score, err);
	}
	for (int r = 0; r < n_readers; r++)
		close_reader(&readers[r]);
	free(blocks);
	free(ids);
	return ok;
}

void
dsv3_score_print(const Dsv3Score *score)
{
	double n = (double) score->scored;

	printf(
		"perplexity %.4f against %.4f over %lld tokens; mean KL divergence %.6f nats; same likeliest token "
		"%.2f %%\n",
		exp(score->nll / n), exp(score->reference_nll / n), (long long) score->scored, score->divergence / n,
		100.0 * (double) score->same_best / n);
}

bool
dsv3_score_read(const char *model, const char *path, Dsv3Tokens *tokens, int32_t *bos, int64_t *bytes,
				Dsv3Error *err)
{
	char *text = dsv3_cli_read_file(path, MAX_TEXT, bytes, err);
	Dsv3Tokenizer *tokenizer = text ? dsv3_tokenizer_open(model, err) : NULL;
	bool ok = tokenizer &&
			  dsv3_tokenizer_encode(tokenizer, text, (size_t) *bytes, DSV3_ENCODE_PLAIN, 0, tokens, err);

	if (ok)
		*bos = dsv3_tokenizer_bos(tokenizer);
	if (ok && tokens->count + (*bos >= 0) < 2)
		ok = dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "file \"%s\" has too little text to score", path);
	dsv3_tokenizer_close(tokenizer);
	free(text);
	return ok;
}
