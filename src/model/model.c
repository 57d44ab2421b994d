/*
 * model.c
 *	  Opening and closing a model, and what it says about itself.
 *
 * The digest in Dsv3ModelInfo is the checkpoint's (digest.c): it names the files, not the weight mode, which a user of
 * cached results has to add.
 */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "model/impl.h"
#include "model/safetensors.h"
#include "model/weights.h"

/* Rows of a batch: enough to make the products bound by arithmetic, within so much working memory. */
#define MAX_BATCH_ROWS 512
#define SCRATCH_BYTES  ((int64_t) 512 << 20)

static void
parallel(void *context, int64_t n, void (*fn)(void *arg, int64_t i), void *arg)
{
	dsv3_pool_run(context, n, fn, arg);
}

/* What a matrix of the model reads its input rows as, besides floats. */
static void
note_forms(void *context, Dsv3MatrixRole role, Dsv3Weight *weight)
{
	Dsv3ActForms *forms = context;
	unsigned form = !dsv3_type_is_packed(weight->type) ? 0
					: weight->type == DSV3_TYPE_INT8   ? DSV3_ACT_CODES
													   : DSV3_ACT_BLOCKS;

	switch (role)
	{
		case DSV3_MATRIX_EMBED:
		case DSV3_MATRIX_KV_B:
			break;
		case DSV3_MATRIX_Q:
			forms->q_a |= form;
			forms->h |= form;
			break;
		case DSV3_MATRIX_O:
			forms->o |= form;
			break;
		case DSV3_MATRIX_MLP:
			forms->gate |= form;
			forms->h |= form;
			break;
		case DSV3_MATRIX_EXPERT:
			forms->expert_gate |= form;
			forms->h |= form;
			break;
		case DSV3_MATRIX_KV_A:
		case DSV3_MATRIX_HEAD:
			forms->h |= form;
			break;
		case DSV3_MATRIX_JOINT:
			forms->joint |= form;
			break;
	}
}

static void
fill_info(Dsv3Model *model)
{
	const Dsv3Config *c = model->config;
	const Dsv3CheckpointInfo *from = &model->checkpoint->info;
	Dsv3ModelInfo *info = &model->info;

	snprintf(info->architecture, sizeof(info->architecture), "%s", c->architecture);
	snprintf(info->digest, sizeof(info->digest), "%s", from->digest);
	snprintf(info->weights, sizeof(info->weights), "%s", from->weights);
	snprintf(info->isa, sizeof(info->isa), "%s", model->ops->name);
	info->vocab_size = c->vocab_size;
	info->hidden_size = c->hidden_size;
	info->n_layers = c->n_layers;
	info->n_routed_experts = c->n_routed_experts;
	info->n_experts_per_token = c->n_experts_per_token;
	info->max_positions = c->max_positions;
	info->threads = dsv3_pool_threads(model->pool);
	info->params_total = from->params_total;
	info->params_active = from->params_active;
	info->weight_bytes = from->weight_bytes;
	info->draft_bytes = from->draft_bytes;
	info->bytes_per_token = from->bytes_per_token;
	info->kv_bytes_per_position = (int64_t) (dsv3_kv_block_bytes(model) / DSV3_KV_BLOCK);
	info->n_eos = c->n_eos;
	for (int i = 0; i < c->n_eos; i++)
		info->eos_ids[i] = c->eos_ids[i];
	info->bos_id = c->bos_id;
}

Dsv3Model *
dsv3_model_open(const char *path, const Dsv3ModelOptions *options, Dsv3Error *err)
{
	Dsv3Model *model = calloc(1, sizeof(*model));
	Dsv3CheckpointOptions checkpoint = {.weights = options->weights,
										.parallel = parallel,
										.drafts = options->drafts,
										.part = options->part,
										.part_context = options->part_context};
	int64_t row_bytes, counts;

	if (!model)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory opening model \"%s\"", path);
		return NULL;
	}
	model->expanded = options->expanded;
	model->kv_type = options->kv;
	model->draft_before_norm = options->draft_before_norm;
	if (!(model->ops = dsv3_ops_find(options->isa, err)) ||
		!(model->pool = dsv3_pool_open(options->threads, err)))
		goto failed;
	checkpoint.parallel_context = model->pool;
	if (!(model->checkpoint = dsv3_checkpoint_open(path, &checkpoint, err)))
		goto failed;
	model->config = &model->checkpoint->config;
	model->info.drafts = model->checkpoint->weights.draft.joint.out > 0;
	dsv3_weights_visit(&model->checkpoint->weights, model->config, note_forms, &model->forms);
	dsv3_weights_visit_draft(&model->checkpoint->weights, model->config, note_forms, &model->forms);
	note_forms(&model->forms, DSV3_MATRIX_HEAD, &model->checkpoint->weights.head);

	row_bytes = dsv3_scratch_row_bytes(model);
	model->max_rows = SCRATCH_BYTES / row_bytes;
	if (model->max_rows > MAX_BATCH_ROWS)
		model->max_rows = MAX_BATCH_ROWS;
	if (model->max_rows < 1)
		model->max_rows = 1;

	counts = (int64_t) (model->config->n_layers + 1) * model->config->n_routed_experts;
	model->expert_counts = calloc((size_t) (counts > 0 ? counts : 1), sizeof(*model->expert_counts));
	if (!model->expert_counts)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory opening model \"%s\"", path);
		goto failed;
	}
	fill_info(model);
	return model;

failed:
	dsv3_model_close(model);
	return NULL;
}

void
dsv3_model_close(Dsv3Model *model)
{
	if (!model)
		return;
	dsv3_scratch_free(&model->scratch);
	dsv3_pool_close(model->pool);
	if (model->checkpoint)
		dsv3_checkpoint_close(model->checkpoint);
	free(model->expert_counts);
	free(model->hidden);
	free(model);
}

const Dsv3ModelInfo *
dsv3_model_info(const Dsv3Model *model)
{
	return &model->info;
}

const atomic_uint_least64_t *
dsv3_model_expert_counts(const Dsv3Model *model)
{
	return model->expert_counts;
}

#define TOUCH_PIECE ((int64_t) 64 * 1024 * 1024)
#define TOUCH_STEP  4096

int64_t
dsv3_model_touch(const Dsv3Model *model, int64_t from, int64_t *total)
{
	const Dsv3TensorFiles *files = model->checkpoint->files;
	int64_t left = TOUCH_PIECE;
	int64_t next = -1;

	*total = 0;
	for (int i = 0; i < files->n_files; i++)
	{
		const volatile unsigned char *bytes = files->files[i].base;
		int64_t at = from > *total ? from - *total : 0;

		for (; at < files->files[i].size && left > 0; at += TOUCH_STEP, left -= TOUCH_STEP)
			(void) bytes[at];
		if (at < files->files[i].size && next < 0)
			next = *total + at;
		*total += files->files[i].size;
	}
	return next;
}
