/*
 * draft.c
 *	  The draft layer: guesses at the token after the next one (DeepSeek-V3 report, section 2.2, equations 21 to 23, depth 1).
 *
 * With t_j the token at position j and h_(j-1) the hidden state that the model has at the position before it, behind its final norm,
 *	z_j = W_joint [RMS(embedding of t_j); RMS(h_(j-1))],
 * a decoder layer over z_1 .. z_j, a norm of its own, and the output matrix give scores for t_(j+1). (The report writes the same
 * thing with indices one lower.) Position 0 has no state before it and no row in this layer.
 *
 * Nothing but cache rows is needed of a position to draft behind a later one, so every step makes these for all rows that it computes,
 * which takes the joint product and the latent's; the layer as a whole runs for one row when a draft is wanted. As a row
 * depends on the token at its own position and what comes before it, it is part of what a block's name covers, like the other rows.
 *
 * The state before the first row of a step comes from the cache: each block keeps that of the position computed last in it. When
 * that is another position, because drafts behind it were refused, zeros stand in: such a row makes drafts a little worse.
 */
#include <stdlib.h>
#include <string.h>

#include "model/impl.h"
#include "model/rope.h"

bool
dsv3_draft_input(const char *name, bool *before_norm)
{
	*before_norm = strcmp(name, "before-norm") == 0;
	return *before_norm || strcmp(name, "after-norm") == 0;
}

typedef struct DraftWork
{
	Dsv3Model *model;
	Dsv3Kv *kv;
	const Dsv3DraftWeights *w;
	const int *rows; /* of a draft: which of the model's hidden rows each follows from */
} DraftWork;

/* What the layer reads of the model at each row of the batch. */
static void
hidden_row(void *arg, int64_t row)
{
	DraftWork *work = arg;
	const Dsv3Config *c = work->model->config;
	Dsv3Scratch *s = &work->model->scratch;
	const float *x = s->x + row * c->hidden_size;
	float *hidden = s->hidden + row * c->hidden_size;

	if (work->model->draft_before_norm)
		memcpy(hidden, x, (size_t) c->hidden_size * sizeof(float));
	else
		work->model->ops->rmsnorm(x, work->model->checkpoint->weights.final_norm, c->rms_norm_eps,
								  c->hidden_size, hidden);
}

/* The input of the joint product for a token behind a hidden state, which may be missing. */
static void
join(const DraftWork *work, int64_t row, const float *hidden)
{
	Dsv3Model *model = work->model;
	const Dsv3Config *c = model->config;
	const Dsv3Weight *embed = work->w->embed.out > 0 ? &work->w->embed : &model->checkpoint->weights.embed;
	float *joint = model->scratch.joint.data + row * model->scratch.joint.width;

	model->ops->decode(embed, model->scratch.row[row].token, joint);
	model->ops->rmsnorm(joint, work->w->embed_norm, c->rms_norm_eps, c->hidden_size, joint);
	if (hidden)
		model->ops->rmsnorm(hidden, work->w->hidden_norm, c->rms_norm_eps, c->hidden_size,
							joint + c->hidden_size);
	else
		memset(joint + c->hidden_size, 0, (size_t) c->hidden_size * sizeof(float));
	dsv3_act_quantise(model->ops, &model->scratch.joint, row);
}

/* The hidden state that the cache has of a position; NULL: none. */
static const float *
cached_state(const DraftWork *work, const Dsv3StepSeq *seq, int32_t position)
{
	const float *state;

	if (position < 0)
		return NULL;
	state = dsv3_kv_state(work->kv, seq->blocks[position / DSV3_KV_BLOCK]);
	return state[work->model->config->hidden_size] == (float) position + 1.0f ? state : NULL;
}

static void
keep_state(const DraftWork *work, const Dsv3StepSeq *seq, int32_t position, const float *hidden)
{
	float *state = dsv3_kv_state(work->kv, seq->blocks[position / DSV3_KV_BLOCK]);

	memcpy(state, hidden, (size_t) work->model->config->hidden_size * sizeof(float));
	state[work->model->config->hidden_size] = (float) position + 1.0f;
}

static void
follow_row(void *arg, int64_t row)
{
	DraftWork *work = arg;
	const Dsv3Scratch *s = &work->model->scratch;
	const Dsv3BatchRow *r = &s->row[row];

	if (row > 0 && s->row[row - 1].seq == r->seq)
		join(work, row, s->hidden + (row - 1) * work->model->config->hidden_size);
	else
		join(work, row, cached_state(work, r->seq, r->position - 1));
}

/* h = RMS(z), from scratch.out. */
static void
norm_row(void *arg, int64_t row)
{
	DraftWork *work = arg;
	Dsv3Model *model = work->model;
	const Dsv3Config *c = model->config;
	Dsv3Scratch *s = &model->scratch;

	model->ops->rmsnorm(s->out + row * c->hidden_size,
						model->checkpoint->weights.layers[c->n_layers].input_norm, c->rms_norm_eps,
						c->hidden_size, s->h.data + row * s->h.width);
	dsv3_act_quantise(model->ops, &s->h, row);
}

static void
joint_product(Dsv3Model *model, int n_rows, float *y)
{
	Dsv3Product joint = {.weight = &model->checkpoint->weights.draft.joint,
						 .x = dsv3_act_rows(&model->scratch.joint),
						 .m = n_rows,
						 .y = y,
						 .ldy = model->config->hidden_size};

	dsv3_linear(model, &joint, 1);
}

/* Put the hidden states of the batch's wanted rows behind those of the batches before it. */
static bool
keep_wanted(Dsv3Model *model, int n_rows, Dsv3Error *err)
{
	Dsv3Scratch *s = &model->scratch;
	size_t width = (size_t) model->config->hidden_size;

	if (model->n_hidden + n_rows > model->hidden_rows)
	{
		int64_t rows = model->n_hidden + n_rows;
		float *grown = realloc(model->hidden, (size_t) rows * width * sizeof(float));

		if (grown == NULL)
			return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for drafts from %lld rows",
							  (long long) rows);
		model->hidden = grown;
		model->hidden_rows = rows;
	}
	for (int row = 0; row < n_rows; row++)
	{
		if (s->row[row].wanted)
			memcpy(model->hidden + (size_t) model->n_hidden++ * width, s->hidden + (size_t) row * width,
				   width * sizeof(float));
	}
	return true;
}

bool
dsv3_draft_follow(Dsv3Model *model, Dsv3Kv *kv, int n_rows, int n_segments, Dsv3Error *err)
{
	const Dsv3Config *c = model->config;
	Dsv3Scratch *s = &model->scratch;
	DraftWork work = {.model = model, .kv = kv, .w = &model->checkpoint->weights.draft};

	if (!model->info.drafts)
		return true;
	dsv3_pool_run(model->pool, n_rows, hidden_row, &work);
	if (!keep_wanted(model, n_rows, err))
		return false;
	dsv3_pool_run(model->pool, n_rows, follow_row, &work);
	for (int i = 0; i < n_segments; i++)
	{
		const Dsv3Segment *segment = &s->segments[i];

		for (int row = segment->first; row < segment->first + segment->count; row++)
			if (row + 1 == segment->first + segment->count || (s->row[row].position + 1) % DSV3_KV_BLOCK == 0)
				keep_state(&work, segment->seq, s->row[row].position,
						   s->hidden + (int64_t) row * c->hidden_size);
	}
	joint_product(model, n_rows, s->out);
	dsv3_pool_run(model->pool, n_rows, norm_row, &work);
	dsv3_mla_fill(model, kv, c->n_layers, n_rows);
	return true;
}

static void
draft_row(void *arg, int64_t row)
{
	DraftWork *work = arg;
	const Dsv3Config *c = work->model->config;
	Dsv3Scratch *s = &work->model->scratch;
	int pairs = c->qk_rope_dim / 2;

	join(work, row, work->model->hidden + (int64_t) work->rows[row] * c->hidden_size);
	dsv3_rope_angles(&c->rope, pairs, s->row[row].position, s->cosine + row * pairs, s->sine + row * pairs);
}

static bool
check_draft(const Dsv3Model *model, const Dsv3Kv *kv, const Dsv3StepSeq *seq, int row, int index,
			Dsv3Error *err)
{
	if (!model->info.drafts)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "the model has no draft layer");
	if (!dsv3_check_step_seq(model, kv, seq, index, err))
		return false;
	if (seq->n_tokens != 1 || dsv3_step_wanted(seq) != 1 || seq->position < 1 || row < 0 ||
		row >= model->n_hidden)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER,
						  "sequence %d cannot be drafted from row %d of %lld", index, row,
						  (long long) model->n_hidden);
	return true;
}

bool
dsv3_model_draft(Dsv3Model *model, Dsv3Kv *kv, const Dsv3StepSeq *seqs, const int *rows, int n_seqs,
				 float *logits, Dsv3Error *err)
{
	const Dsv3Config *c = model->config;
	const Dsv3DraftWeights *w = &model->checkpoint->weights.draft;
	Dsv3Scratch *s = &model->scratch;
	DraftWork work = {.model = model, .kv = kv, .w = w};

	for (int i = 0; i < n_seqs; i++)
	{
		if (!check_draft(model, kv, &seqs[i], rows[i], i, err))
			return false;
	}
	if (!dsv3_scratch_reserve(model, n_seqs < model->max_rows ? n_seqs : model->max_rows, err))
		return false;
	dsv3_pool_begin(model->pool);
	for (int first = 0, n; first < n_seqs; first += n)
	{
		n = n_seqs - first < model->max_rows ? n_seqs - first : (int) model->max_rows;
		work.rows = rows + first;
		for (int i = 0; i < n; i++)
		{
			const Dsv3StepSeq *seq = &seqs[first + i];

			s->segments[i] = (Dsv3Segment){.first = i, .count = 1, .seq = seq};
			s->row[i] = (Dsv3BatchRow){.token = seq->tokens[0],
									   .position = seq->position,
									   .seq = seq,
									   .wanted = true,
									   .picked = seq->picked && seq->picked->n > 0 ? seq->picked : NULL};
			/* A full block has its state, and may be others' too. */
			if (cached_state(&work, seq, seq->position - 1) == NULL)
				keep_state(&work, seq, seq->position - 1,
						   model->hidden + (int64_t) rows[first + i] * c->hidden_size);
		}
		dsv3_pool_run(model->pool, n, draft_row, &work);
		joint_product(model, n, s->x);
		dsv3_layer(model, kv, c->n_layers, n, n);
		logits += dsv3_head(model, w->final_norm,
							w->head.out > 0 ? &w->head : &model->checkpoint->weights.head, n, logits) *
				  c->vocab_size;
	}
	dsv3_pool_end(model->pool);
	return true;
}
