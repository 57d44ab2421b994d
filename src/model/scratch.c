/*
 * scratch.c
 *	  The working memory of a step: one list of arrays, each so many elements a row.
 *
 * All sizes come from one function, visited twice: once to add up bytes, once to allocate. Config bounds (config.h) keep a
 * row's bytes in an int64_t; the number of rows of a batch is chosen so that the whole stays near SCRATCH_BYTES.
 */
#include "model/impl.h"

#include <stdlib.h>
#include <string.h>

/* Room for absorbed queries and their sums, in bytes; at least one row whatever its size. */
#define ATTENTION_BYTES ((int64_t) 64 << 20)

#define MAX_ARRAYS 64

typedef struct Visit
{
	Dsv3Scratch *s; /* NULL: only add up */
	int64_t rows;
	int64_t bytes;
	bool failed;
} Visit;

/* count elements of size bytes. */
static void
place(Visit *v, void **array, int64_t count, int64_t size)
{
	int64_t bytes;

	if (__builtin_mul_overflow(count, size, &bytes) || __builtin_add_overflow(bytes, 127, &bytes) ||
		__builtin_add_overflow(v->bytes, bytes / 64 * 64, &v->bytes))
	{
		v->failed = true;
		return;
	}
	if (!v->s || count == 0 || v->failed)
		return;
	if (v->s->n_memory == MAX_ARRAYS || !(*array = aligned_alloc(64, (size_t) (bytes / 64 * 64))))
	{
		v->failed = true;
		return;
	}
	v->s->memory[v->s->n_memory++] = *array;
}

static void
place_act(Visit *v, Dsv3Act *act, int64_t rows, int64_t width, unsigned forms)
{
	act->width = width;
	act->code_width = dsv3_int8_code_count((int) width);
	act->scale_width = dsv3_int8_groups((int) width);
	act->block_width = dsv3_code_blocks((int) width);
	place(v, (void **) &act->data, rows * width, sizeof(float));
	if ((forms & DSV3_ACT_CODES) && width > 0)
	{
		place(v, (void **) &act->codes, rows * act->code_width, sizeof(int16_t));
		place(v, (void **) &act->scales, rows * act->scale_width, sizeof(float));
	}
	if ((forms & DSV3_ACT_BLOCKS) && width > 0)
		place(v, (void **) &act->blocks, rows * act->block_width, sizeof(Dsv3CodeBlock));
}

static int64_t
dense_width(const Dsv3Config *c)
{
	int64_t shared = (int64_t) c->n_shared_experts * c->moe_intermediate_size;

	return c->first_dense > 0 && c->intermediate_size > shared ? c->intermediate_size : shared;
}

/* Arrays of so many elements a row. */
static void
visit_rows(const Dsv3Model *model, Visit *v, Dsv3Scratch *s)
{
	const Dsv3Config *c = model->config;
	int64_t n = v->rows;
	int64_t slots = n * c->n_experts_per_token;
	int64_t heads = c->n_heads;
	bool moe = c->n_routed_experts > 0;

	if (!moe)
		slots = 0;
	place(v, (void **) &s->row, n, sizeof(*s->row));
	place(v, (void **) &s->segments, n, sizeof(*s->segments));
	place(v, (void **) &s->parts, n, sizeof(*s->parts));
	place(v, (void **) &s->x, n * c->hidden_size, sizeof(float));
	place_act(v, &s->h, n, c->hidden_size, model->forms.h);
	place(v, (void **) &s->whole, n, sizeof(int32_t));
	place(v, (void **) &s->cosine, n * (c->qk_rope_dim / 2), sizeof(float));
	place(v, (void **) &s->sine, n * (c->qk_rope_dim / 2), sizeof(float));
	place_act(v, &s->q_a, n, c->q_lora_rank, model->forms.q_a);
	place(v, (void **) &s->q, n * heads * (c->qk_nope_dim + c->qk_rope_dim), sizeof(float));
	place(v, (void **) &s->kv_a, n * (c->kv_lora_rank + c->qk_rope_dim), sizeof(float));
	place_act(v, &s->o, n, heads * c->v_dim, model->forms.o);
	place(v, (void **) &s->out, n * c->hidden_size, sizeof(float));
	place_act(v, &s->gate, n, dense_width(c), model->forms.gate);
	place(v, (void **) &s->up, n * dense_width(c), sizeof(float));
	if (model->info.drafts)
	{
		place(v, (void **) &s->hidden, n * c->hidden_size, sizeof(float));
		place_act(v, &s->joint, n, 2 * (int64_t) c->hidden_size, model->forms.joint);
	}
	if (moe)
	{
		place(v, (void **) &s->scores, n * c->n_routed_experts, sizeof(float));
		place(v, (void **) &s->route_scratch, n * 3 * c->n_routed_experts, sizeof(float));
		place(v, (void **) &s->chosen, slots, sizeof(int32_t));
		place(v, (void **) &s->weights, slots, sizeof(float));
		place(v, (void **) &s->place, slots, sizeof(int32_t));
		place(v, (void **) &s->sorted_rows, slots, sizeof(int32_t));
		place_act(v, &s->expert_gate, slots, c->moe_intermediate_size, model->forms.expert_gate);
		place(v, (void **) &s->expert_up, slots * c->moe_intermediate_size, sizeof(float));
		place(v, (void **) &s->expert_out, slots * c->hidden_size, sizeof(float));
	}
}

/* Arrays for attention over rows rows. */
static void
visit_attention(const Dsv3Model *model, Visit *v, Dsv3Scratch *s)
{
	const Dsv3Config *c = model->config;
	int64_t pairs = v->rows * c->n_heads;

	if (!model->expanded)
		place(v, (void **) &s->q_latent, pairs * (c->kv_lora_rank + c->qk_rope_dim), sizeof(float));
	place(v, (void **) &s->z, pairs * (model->expanded ? c->v_dim : c->kv_lora_rank), sizeof(float));
	place(v, (void **) &s->max, pairs, sizeof(float));
	place(v, (void **) &s->sum, pairs, sizeof(float));
}

static void
visit_fixed(const Dsv3Model *model, Visit *v, Dsv3Scratch *s)
{
	const Dsv3Config *c = model->config;
	int64_t heads = c->n_heads;

	if (model->kv_type != DSV3_KV_F32)
		place(v, (void **) &s->cache_rows,
			  (int64_t) dsv3_pool_threads(model->pool) * DSV3_KV_BLOCK * (c->kv_lora_rank + c->qk_rope_dim),
			  sizeof(float));
	if (model->expanded)
	{
		place(v, (void **) &s->expanded, heads * (c->qk_nope_dim + c->v_dim), DSV3_KV_BLOCK * sizeof(float));
		place(v, (void **) &s->expanded_keys, heads * (c->qk_nope_dim + c->qk_rope_dim),
			  DSV3_KV_BLOCK * sizeof(float));
	}
	place(v, (void **) &s->expert_first, c->n_routed_experts + 1, sizeof(int32_t));
	place(v, (void **) &s->products, c->n_routed_experts + 2, sizeof(*s->products));
	place(v, (void **) &s->mlps, c->n_routed_experts + 1, sizeof(*s->mlps));
}

int64_t
dsv3_scratch_row_bytes(const Dsv3Model *model)
{
	Visit v = {.rows = 1};
	Dsv3Scratch unused;

	visit_rows(model, &v, &unused);
	return v.failed ? INT64_MAX : v.bytes;
}

void
dsv3_scratch_free(Dsv3Scratch *s)
{
	for (int i = 0; i < s->n_memory; i++)
		free(s->memory[i]);
	free(s->memory);
	memset(s, 0, sizeof(*s));
}

bool
dsv3_scratch_reserve(Dsv3Model *model, int64_t rows, Dsv3Error *err)
{
	Dsv3Scratch *s = &model->scratch;
	Visit attention = {.rows = 1};
	Visit v = {.s = s, .rows = rows};

	if (rows <= s->rows)
		return true;
	/* A little more than asked, so that a slowly growing batch does not allocate every time. */
	rows = (rows + 15) / 16 * 16;
	v.rows = rows < model->max_rows ? rows : model->max_rows;
	dsv3_scratch_free(s);
	visit_attention(model, &attention, s);
	if (!attention.failed)
		attention.rows = ATTENTION_BYTES / attention.bytes > 1 ? ATTENTION_BYTES / attention.bytes : 1;
	s->memory = calloc(MAX_ARRAYS, sizeof(*s->memory));
	v.failed = attention.failed || !s->memory;
	if (!v.failed)
	{
		visit_rows(model, &v, s);
		s->rows = v.rows;
		v.rows = attention.rows < v.rows ? attention.rows : v.rows;
		visit_attention(model, &v, s);
		s->attention_rows = v.rows;
		visit_fixed(model, &v, s);
	}
	if (v.failed)
	{
		dsv3_scratch_free(s);
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a step of %lld tokens",
						  (long long) rows);
	}
	return true;
}
