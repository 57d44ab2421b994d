/*
 * forward.c
 *	  One step: checks, cutting into batches, the layers. The end, from the last norm to the logits, is in head.c.
 *
 * Per layer (DeepSeek-V3 report, figure 2):
 *	x = x + W_O MLA(RMS(x)) (+ bias);	x = x + MLP(RMS(x));	at the end logits = W_head RMS(x).
 * Everything is F32. Rows never mix outside attention, products sum each output in an order of their own, attention goes by
 * absolute position: that is why cutting rows into batches, and the company they have there, changes no bit.
 */
#include "common/abort.h"
#include "model/impl.h"
#include "model/rope.h"

typedef struct Step
{
	Dsv3Model *model;
	const float *norm; /* weights of the norm that follows */
	const float *bias; /* of the attention output, or NULL */
	float *logits;
} Step;

/* x = embedding of the row's token, and its angles. */
static void
embed_row(void *arg, int64_t row)
{
	Step *step = arg;
	const Dsv3Config *c = step->model->config;
	Dsv3Scratch *s = &step->model->scratch;
	int pairs = c->qk_rope_dim / 2;

	step->model->ops->decode(&step->model->checkpoint->weights.embed, s->row[row].token,
							 s->x + row * c->hidden_size);
	dsv3_rope_angles(&c->rope, pairs, s->row[row].position, s->cosine + row * pairs, s->sine + row * pairs);
}

/* h = RMS(x), quantised as its readers want it. */
static void
norm_row(void *arg, int64_t row)
{
	Step *step = arg;
	const Dsv3Config *c = step->model->config;
	Dsv3Scratch *s = &step->model->scratch;

	step->model->ops->rmsnorm(s->x + row * c->hidden_size, step->norm, c->rms_norm_eps, c->hidden_size,
							  s->h.data + row * s->h.width);
	dsv3_act_quantise(step->model->ops, &s->h, row);
}

/* x += attention output + bias, then its norm. */
static void
residual_row(void *arg, int64_t row)
{
	Step *step = arg;
	Dsv3Scratch *s = &step->model->scratch;
	int64_t width = step->model->config->hidden_size;
	float *x = s->x + row * width;
	const float *out = s->out + row * width;

	if (step->bias)
		for (int64_t i = 0; i < width; i++)
			x[i] += out[i] + step->bias[i];
	else
		for (int64_t i = 0; i < width; i++)
			x[i] += out[i];
	norm_row(arg, row);
}

void
dsv3_layer(Dsv3Model *model, Dsv3Kv *kv, int layer, int n_rows, int n_segments)
{
	const Dsv3LayerWeights *w = &model->checkpoint->weights.layers[layer];
	Step step = {.model = model, .norm = w->input_norm, .bias = w->o_bias};

	dsv3_pool_run(model->pool, n_rows, norm_row, &step);
	dsv3_mla(model, kv, layer, n_rows, n_segments);
	step.norm = w->post_attention_norm;
	dsv3_pool_run(model->pool, n_rows, residual_row, &step);
	dsv3_mlp(model, layer, n_rows);
}

/* Run the rows in scratch through the model. */
static bool
run_batch(Step *step, Dsv3Kv *kv, int n_rows, int n_segments, const atomic_bool *abort_flag, Dsv3Error *err)
{
	Dsv3Model *model = step->model;
	const Dsv3Config *c = model->config;

	dsv3_pool_run(model->pool, n_rows, embed_row, step);
	for (int layer = 0; layer < c->n_layers; layer++)
	{
		if (dsv3_aborted(abort_flag, "model step", err))
			return false;
		dsv3_layer(model, kv, layer, n_rows, n_segments);
	}
	if (!dsv3_draft_follow(model, kv, n_rows, n_segments, err))
		return false;
	step->logits += dsv3_head(model, model->checkpoint->weights.final_norm, &model->checkpoint->weights.head,
							  n_rows, step->logits) *
					c->vocab_size;
	return true;
}

bool
dsv3_check_step_seq(const Dsv3Model *model, const Dsv3Kv *kv, const Dsv3StepSeq *seq, int index,
					Dsv3Error *err)
{
	const Dsv3Config *c = model->config;
	int64_t end = (int64_t) seq->position + seq->n_tokens;
	int64_t blocks = (end + DSV3_KV_BLOCK - 1) / DSV3_KV_BLOCK;

	if (seq->n_tokens < 1)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "sequence %d of the step has no tokens", index);
	if (seq->position < 0 || end > c->max_positions)
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER,
				   "positions %d to %lld of sequence %d are outside the context", seq->position,
				   (long long) end - 1, index);
		dsv3_error_hint(err, "The model has %d positions.", c->max_positions);
		return false;
	}
	for (int i = 0; i < seq->n_tokens; i++)
		if (seq->tokens[i] < 0 || seq->tokens[i] >= c->vocab_size)
		{
			dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "token id %d at position %d is not in the vocabulary",
					   seq->tokens[i], seq->position + i);
			dsv3_error_hint(err, "Ids go from 0 to %d.", c->vocab_size - 1);
			return false;
		}
	for (int row = 0; seq->picked && row < dsv3_step_wanted(seq); row++)
		for (int i = 0; i < seq->picked[row].n; i++)
			if (seq->picked[row].ids[i] < (i > 0 ? seq->picked[row].ids[i - 1] + 1 : 0) ||
				seq->picked[row].ids[i] >= c->vocab_size)
				return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER,
								  "picked id %d of sequence %d is not in the vocabulary or not in order",
								  seq->picked[row].ids[i], index);
	if (seq->n_blocks < blocks)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "sequence %d has %d cache blocks and needs %lld",
						  index, seq->n_blocks, (long long) blocks);
	for (int64_t b = 0; b < blocks; b++)
		if (seq->blocks[b] < 0 || seq->blocks[b] >= kv->n_blocks)
			return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "cache block %d of sequence %d does not exist",
							  seq->blocks[b], index);
	return true;
}

/* Blocks that a sequence writes: from its first new position's on. */
static int
first_written(const Dsv3StepSeq *seq)
{
	return seq->position / DSV3_KV_BLOCK;
}

static int
blocks_used(const Dsv3StepSeq *seq)
{
	return (seq->position + seq->n_tokens + DSV3_KV_BLOCK - 1) / DSV3_KV_BLOCK;
}

/* No block is written by one sequence and used in a second place: the other would read rows that change under it. */
static bool
check_shared_blocks(Dsv3Kv *kv, const Dsv3StepSeq *seqs, int n_seqs, Dsv3Error *err)
{
	int bad = -1;

	for (int i = 0; i < n_seqs && bad < 0; i++)
		for (int b = first_written(&seqs[i]); b < blocks_used(&seqs[i]) && bad < 0; b++)
		{
			int32_t *writer = &kv->writer[seqs[i].blocks[b]];

			if (*writer >= 0)
				bad = seqs[i].blocks[b];
			*writer = i;
		}
	for (int i = 0; i < n_seqs && bad < 0; i++)
		for (int b = 0; b < first_written(&seqs[i]) && bad < 0; b++)
			if (kv->writer[seqs[i].blocks[b]] >= 0)
				bad = seqs[i].blocks[b];
	for (int i = 0; i < n_seqs; i++)
		for (int b = first_written(&seqs[i]); b < blocks_used(&seqs[i]); b++)
			kv->writer[seqs[i].blocks[b]] = -1;
	if (bad >= 0)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER,
						  "cache block %d is written by one sequence of the step and used a second time",
						  bad);
	return true;
}

bool
dsv3_model_step(Dsv3Model *model, Dsv3Kv *kv, const Dsv3StepSeq *seqs, int n_seqs, float *logits,
				const atomic_bool *abort_flag, Dsv3Error *err)
{
	Step step = {.model = model, .logits = logits};
	Dsv3Scratch *s = &model->scratch;
	int64_t total = 0;
	int seq = 0, token = 0;
	bool ok = true;

	for (int i = 0; i < n_seqs; i++)
	{
		if (!dsv3_check_step_seq(model, kv, &seqs[i], i, err))
			return false;
		total += seqs[i].n_tokens;
	}
	if (!check_shared_blocks(kv, seqs, n_seqs, err))
		return false;
	if (!dsv3_scratch_reserve(model, total < model->max_rows ? total : model->max_rows, err))
		return false;
	model->n_hidden = 0;

	dsv3_pool_begin(model->pool);
	while (ok && seq < n_seqs)
	{
		int n_rows = 0, n_segments = 0;

		while (seq < n_seqs && n_rows < model->max_rows)
		{
			const Dsv3StepSeq *q = &seqs[seq];
			int64_t left = q->n_tokens - token;
			int count = (int) (left < model->max_rows - n_rows ? left : model->max_rows - n_rows);

			s->segments[n_segments++] = (Dsv3Segment){.first = n_rows, .count = count, .seq = q};
			for (int i = 0; i < count; i++, token++)
			{
				int row = token - (q->n_tokens - dsv3_step_wanted(q)); /* among the wanted ones */

				s->row[n_rows++] = (Dsv3BatchRow){
					.token = q->tokens[token],
					.position = q->position + token,
					.seq = q,
					.wanted = row >= 0,
					.picked = row >= 0 && q->picked && q->picked[row].n > 0 ? &q->picked[row] : NULL};
			}
			if (token == q->n_tokens)
			{
				token = 0;
				seq++;
			}
		}
		ok = run_batch(&step, kv, n_rows, n_segments, abort_flag, err);
	}
	dsv3_pool_end(model->pool);
	return ok;
}
