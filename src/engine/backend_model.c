/*
 * backend_model.c
 *	  A checkpoint directory as a backend: the model, its tokenizer and its chat template; see backend.h.
 */
#include "engine/backend.h"

#include <stdlib.h>
#include <string.h>

typedef struct ModelBackend
{
	Dsv3Backend base;
	Dsv3Model *model;
	Dsv3Kv *kv;
	Dsv3Tokenizer *tokenizer;
	Dsv3Template template;
	bool has_template;
} ModelBackend;

/* The spellings of the thinking tags in this family: DeepSeek's and Kimi's later models', Moonshot's first ones'. */
static const char *const think_tags[][2] = {
	{"<think>", "</think>"}, {"\xe2\x97\x81think\xe2\x96\xb7", "\xe2\x97\x81/think\xe2\x96\xb7"}};

static void
model_close(Dsv3Backend *backend)
{
	ModelBackend *m = (ModelBackend *) backend;

	if (m->has_template)
		dsv3_template_close(&m->template);
	if (m->tokenizer)
		dsv3_tokenizer_close(m->tokenizer);
	if (m->kv)
		dsv3_kv_close(m->kv);
	if (m->model)
		dsv3_model_close(m->model);
	free(m);
}

static bool
model_kv_open(Dsv3Backend *backend, int n_blocks, Dsv3Error *err)
{
	ModelBackend *m = (ModelBackend *) backend;

	m->kv = dsv3_kv_open(m->model, n_blocks, err);
	return m->kv != NULL;
}

static void *
model_kv_block(Dsv3Backend *backend, int32_t block)
{
	return dsv3_kv_block(((ModelBackend *) backend)->kv, block);
}

static int64_t
model_touch(Dsv3Backend *backend, int64_t from, int64_t *total)
{
	return dsv3_model_touch(((ModelBackend *) backend)->model, from, total);
}

static bool
model_step(Dsv3Backend *backend, const Dsv3StepSeq *seqs, int n_seqs, float *logits,
		   const atomic_bool *abort_flag, Dsv3Error *err)
{
	ModelBackend *m = (ModelBackend *) backend;

	return dsv3_model_step(m->model, m->kv, seqs, n_seqs, logits, abort_flag, err);
}

static bool
model_draft(Dsv3Backend *backend, const Dsv3StepSeq *seqs, const int *rows, int n_seqs, float *logits,
			Dsv3Error *err)
{
	ModelBackend *m = (ModelBackend *) backend;

	return dsv3_model_draft(m->model, m->kv, seqs, rows, n_seqs, logits, err);
}

static bool
model_encode(Dsv3Backend *backend, const char *text, size_t len, size_t max_tokens, Dsv3Tokens *out,
			 Dsv3Error *err)
{
	return dsv3_tokenizer_encode(((ModelBackend *) backend)->tokenizer, text, len, DSV3_ENCODE_PLAIN,
								 max_tokens, out, err);
}

static bool
model_raw(Dsv3Backend *backend, const char *text, size_t len, size_t max_tokens, Dsv3Tokens *out,
		  Dsv3Error *err)
{
	return dsv3_template_raw(&((ModelBackend *) backend)->template, text, len, max_tokens, out, err);
}

static bool
model_render(Dsv3Backend *backend, const char *messages, size_t messages_len, const char *tools,
			 size_t tools_len, Dsv3Think think, size_t max_tokens, Dsv3Tokens *out, Dsv3Error *err)
{
	return dsv3_template_render(&((ModelBackend *) backend)->template, messages, messages_len, tools,
								tools_len, think, max_tokens, out, err);
}

static bool
model_opens_think(Dsv3Backend *backend, Dsv3Think think)
{
	return dsv3_template_opens_think(&((ModelBackend *) backend)->template, think);
}

static bool
model_parse_answer(Dsv3Backend *backend, const char *answer, size_t len, bool opened_think,
				   Dsv3Text *reasoning, Dsv3Text *content, Dsv3Text *tool_calls, Dsv3Error *err)
{
	return dsv3_template_parse_answer(&((ModelBackend *) backend)->template, answer, len, opened_think,
									  reasoning, content, tool_calls, err);
}

static const char *
model_token_bytes(Dsv3Backend *backend, int32_t id, size_t *len, bool *special)
{
	const Dsv3Tokenizer *tokenizer = ((ModelBackend *) backend)->tokenizer;

	*special = dsv3_tokenizer_is_special(tokenizer, id);
	return dsv3_tokenizer_token_bytes(tokenizer, id, len);
}

static void
model_decoder_init(Dsv3Backend *backend, Dsv3Decoder *decoder, bool skip_special)
{
	dsv3_decoder_init(decoder, ((ModelBackend *) backend)->tokenizer, skip_special);
}

static bool
model_decoder_feed(Dsv3Backend *backend, Dsv3Decoder *decoder, int32_t id, Dsv3Text *out, Dsv3Error *err)
{
	(void) backend;
	return dsv3_decoder_feed(decoder, id, out, err);
}

static bool
model_decoder_finish(Dsv3Backend *backend, Dsv3Decoder *decoder, Dsv3Text *out, Dsv3Error *err)
{
	(void) backend;
	return dsv3_decoder_finish(decoder, out, err);
}

static const Dsv3BackendOps model_ops = {
	.close = model_close,
	.kv_open = model_kv_open,
	.kv_block = model_kv_block,
	.touch = model_touch,
	.step = model_step,
	.draft = model_draft,
	.encode = model_encode,
	.raw = model_raw,
	.render = model_render,
	.opens_think = model_opens_think,
	.parse_answer = model_parse_answer,
	.token_bytes = model_token_bytes,
	.decoder_init = model_decoder_init,
	.decoder_feed = model_decoder_feed,
	.decoder_finish = model_decoder_finish,
};

static void
fill_base(ModelBackend *m)
{
	int tokenizer_ids = dsv3_tokenizer_vocab_size(m->tokenizer);

	m->base.ops = &model_ops;
	m->base.info = *dsv3_model_info(m->model);
	m->base.kv_block_bytes = dsv3_kv_block_bytes(m->model);
	m->base.sample_limit = tokenizer_ids < m->base.info.vocab_size ? tokenizer_ids : m->base.info.vocab_size;
	m->base.think_open = m->base.think_close = -1;
	m->base.template_name = m->template.kind == DSV3_TEMPLATE_NONE ? "none" : m->template.name;
	m->base.expert_counts = m->base.info.n_routed_experts > 0 ? dsv3_model_expert_counts(m->model) : NULL;
	for (int i = 0; i < 2 && m->base.think_close < 0 && m->template.kind != DSV3_TEMPLATE_NONE; i++)
	{
		int32_t open = dsv3_tokenizer_special_id(m->tokenizer, think_tags[i][0]);
		int32_t close = dsv3_tokenizer_special_id(m->tokenizer, think_tags[i][1]);

		if (open >= 0 && close >= 0 && open < m->base.sample_limit && close < m->base.sample_limit)
		{
			m->base.think_open = open;
			m->base.think_close = close;
			m->base.writes_think =
				m->template.always_thinks && !dsv3_template_opens_think(&m->template, DSV3_THINK_AUTO);
		}
	}
}

Dsv3Backend *
dsv3_backend_model_open(const char *path, const Dsv3BackendOptions *options, Dsv3Error *err)
{
	ModelBackend *m = calloc(1, sizeof(*m));
	Dsv3ModelOptions model_options = {.weights = options->weights,
									  .kv = options->kv,
									  .threads = options->threads,
									  .isa = options->isa,
									  .drafts = options->drafts,
									  .draft_before_norm = options->draft_before_norm};

	if (m == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		return NULL;
	}
	/* The tokenizer first: it is small, and a directory without one is told from that soonest. */
	m->tokenizer = dsv3_tokenizer_open(path, err);
	m->has_template = m->tokenizer != NULL && dsv3_template_open(&m->template, path, m->tokenizer, err);
	if (m->has_template)
		m->model = dsv3_model_open(path, &model_options, err);
	if (m->model == NULL)
	{
		model_close(&m->base);
		return NULL;
	}
	fill_base(m);
	return &m->base;
}
