/*
 * weights.c
 *	  Resolving tensor names; see weights.h. Names and shapes follow the published checkpoints of the family.
 *
 * One Resolver carries what every lookup needs and keeps the first problem: after it all lookups do nothing, so the code
 * below reads like the list of tensors it is. A matrix stored as FP8 brings X.weight_scale_inv, wherever the index
 * has put it. Experts are looked for fused (experts.gate_up_proj, experts.down_proj) and then one by one.
 *
 * A pack has the names of a plain checkpoint. Its matrices may have types that only products can read; its vectors are
 * used where they are and were checked when it was made, so that opening reads none of them.
 */
#include "model/weights.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/convert.h"

#define MAX_NAME  256
#define FP8_BLOCK 128

/* How much of two tensors is compared to find them equal. */
#define SAME_PIECES 64
#define SAME_BYTES  4096

typedef struct Resolver
{
	const Dsv3Config *config;
	const Dsv3TensorFiles *files;
	Dsv3Arena *arena;
	const Dsv3CheckpointOptions *options;
	Dsv3Error *err;
	bool failed;
	const char *body;  /* prefix of the layers: "model." */
	const char *outer; /* prefix of the output matrix: "" */
} Resolver;

/* Where the text model's tensors are: plain, or wrapped in the two ways Kimi-K2.5 is saved. */
static const struct
{
	const char *body;
	const char *outer;
} prefixes[] = {
	{"model.", ""},
	{"language_model.model.", "language_model."},
	{"model.language_model.", ""},
};

static void
make_name(char name[MAX_NAME], const char *fmt, va_list ap)
{
	if (vsnprintf(name, MAX_NAME, fmt, ap) < 0)
		name[0] = '\0';
}

static bool
fail_missing(Resolver *r, const char *name)
{
	char packed[MAX_NAME + 16];

	r->failed = true;
	snprintf(packed, sizeof(packed), "%s_packed", name);
	if (dsv3_tensors_find(r->files, packed))
	{
		dsv3_error(r->err, DSV3_ERR_UNSUPPORTED,
				   "tensor \"%s\" is stored as compressed-tensors int4, which is not supported", name);
		return dsv3_error_hint(r->err, "Use the BF16 or FP8 checkpoint of the model.");
	}
	dsv3_error(r->err, DSV3_ERR_BAD_FILE, "tensor \"%s\" is missing", name);
	if (r->files->n_files == 1)
		return dsv3_error_detail(r->err, "It is not in \"%s\".", r->files->files[0].name);
	return dsv3_error_detail(r->err, "The weight_map of \"model.safetensors.index.json\" does not list it.");
}

/* The tensor, with exactly this shape, or NULL and r->failed. */
static const Dsv3Tensor *
find_shaped(Resolver *r, const char *name, int n_dims, int64_t d0, int64_t d1, int64_t d2)
{
	const int64_t expected[3] = {d0, d1, d2};
	const Dsv3Tensor *t;

	if (r->failed)
		return NULL;
	t = dsv3_tensors_find(r->files, name);
	if (t == NULL)
	{
		fail_missing(r, name);
		return NULL;
	}
	if (t->n_dims != n_dims || memcmp(t->dims, expected, (size_t) n_dims * sizeof(int64_t)) != 0)
	{
		char has[128];
		char wants[128];

		dsv3_tensor_error(r->err, DSV3_ERR_BAD_FILE, t->file->name, name,
						  "has shape %s, but config.json makes it %s",
						  dsv3_shape_text(has, sizeof(has), t->dims, t->n_dims),
						  dsv3_shape_text(wants, sizeof(wants), expected, n_dims));
		r->failed = true;
		return NULL;
	}
	return t;
}

/* What a tensor is used for decides which types will do. */
typedef enum Use
{
	USE_VECTOR,  /* widened to F32 */
	USE_ROWS,    /* rows are decoded one by one: no panels */
	USE_PRODUCT, /* every type */
} Use;

/* The kernel type of a stored tensor; fails for one that cannot be used. */
static bool
weight_type(Resolver *r, const Dsv3Tensor *t, Use use, Dsv3Type *type)
{
	switch (t->dtype)
	{
		case DSV3_DTYPE_F32:
			*type = DSV3_TYPE_F32;
			return true;
		case DSV3_DTYPE_BF16:
			*type = DSV3_TYPE_BF16;
			return true;
		case DSV3_DTYPE_F16:
			*type = DSV3_TYPE_F16;
			return true;
		case DSV3_DTYPE_F8_E4M3:
			*type = DSV3_TYPE_FP8;
			if (use != USE_VECTOR)
				return true;
			break;
		case DSV3_DTYPE_INT8:
		case DSV3_DTYPE_A4:
		case DSV3_DTYPE_S6:
			*type = t->dtype == DSV3_DTYPE_INT8 ? DSV3_TYPE_INT8
					: t->dtype == DSV3_DTYPE_A4 ? DSV3_TYPE_A4
												: DSV3_TYPE_S6;
			if (use == USE_PRODUCT)
				return true;
			break;
		case DSV3_DTYPE_OTHER:
			break;
	}
	r->failed = true;
	dsv3_tensor_error(r->err, DSV3_ERR_UNSUPPORTED, t->file->name, t->name,
					  "has dtype %s, which is not supported %s", t->dtype_name,
					  use == USE_PRODUCT ? "for a matrix" : "here");
	return false;
}

/* Hand a tensor found under `name` to the options' function, under the name a plain checkpoint has for it. */
static void
tell(Resolver *r, Dsv3Part *part, const char *name)
{
	char plain[MAX_NAME + 8];

	if (r->failed || r->options->part == NULL)
		return;
	if (strncmp(name, r->body, strlen(r->body)) == 0)
		snprintf(plain, sizeof(plain), "%s%s", prefixes[0].body, name + strlen(r->body));
	else
		snprintf(plain, sizeof(plain), "%s", name + strlen(r->outer));
	part->name = plain;
	if (!r->options->part(r->options->part_context, part, r->err))
		r->failed = true;
}

static void
tell_matrix(Resolver *r, Dsv3MatrixRole role, const Dsv3Weight *weight, const char *name)
{
	tell(r, &(Dsv3Part){.role = role, .matrix = *weight, .n_dims = 2, .dims = {weight->out, weight->in}},
		 name);
}

/*
 * The numbers of a tensor as F32 in the arena, all finite: norms, biases, router, scales. NULL with r->failed, and NULL
 * without it in check_only mode, after the check.
 */
static const float *
widen_tensor(Resolver *r, const Dsv3Tensor *t)
{
	size_t n;
	float *out;
	Dsv3Type type;
	float piece[256];

	if (t == NULL || !weight_type(r, t, USE_VECTOR, &type))
		return NULL;
	if (r->files->pack && type == DSV3_TYPE_F32)
		return (const float *) (const void *) t->data;
	n = (size_t) t->bytes / dsv3_type_bytes(type);
	out = r->options->check_only ? NULL : dsv3_arena_alloc(r->arena, n * sizeof(float), r->err);
	if (!r->options->check_only && out == NULL)
	{
		r->failed = true;
		return NULL;
	}
	for (size_t done = 0; done < n; done += 256)
	{
		size_t count = n - done < 256 ? n - done : 256;
		float *dst = out ? out + done : piece;

		dsv3_widen(type, t->data + done * dsv3_type_bytes(type), (int32_t) count, dst);
		for (size_t i = 0; i < count; i++)
		{
			if (!isfinite(dst[i]))
			{
				dsv3_tensor_error(r->err, DSV3_ERR_BAD_FILE, t->file->name, t->name, "has %s at index %zu",
								  isnan(dst[i]) ? "NaN" : "an infinity", done + i);
				r->failed = true;
				return NULL;
			}
		}
	}
	return out;
}

/* data, or a copy of it at an aligned address when the file has it at an odd one. */
static const void *
aligned(Resolver *r, const Dsv3Tensor *t, Dsv3Type type)
{
	void *copy;

	if (r->options->check_only || (uintptr_t) t->data % dsv3_type_bytes(type) == 0)
		return t->data;
	copy = dsv3_arena_alloc(r->arena, (size_t) t->bytes, r->err);
	if (copy == NULL)
	{
		r->failed = true;
		return NULL;
	}
	return memcpy(copy, t->data, (size_t) t->bytes);
}

static int64_t
blocks(int64_t n)
{
	return (n + FP8_BLOCK - 1) / FP8_BLOCK;
}

/* The matrix `name` (with ".weight"), [out, in]. */
static void
find_matrix(Resolver *r, Dsv3MatrixRole role, Dsv3Weight *weight, int64_t out, int64_t in, const char *name)
{
	const Dsv3Tensor *t = find_shaped(r, name, 2, out, in, 0);
	Use use = role == DSV3_MATRIX_EMBED || role == DSV3_MATRIX_KV_B ? USE_ROWS : USE_PRODUCT;

	if (t == NULL || !weight_type(r, t, use, &weight->type))
		return;
	weight->data = aligned(r, t, weight->type);
	weight->out = (int32_t) out;
	weight->in = (int32_t) in;
	if (weight->type == DSV3_TYPE_FP8)
	{
		char scales[MAX_NAME + 16];

		snprintf(scales, sizeof(scales), "%s_scale_inv", name);
		weight->scales = widen_tensor(r, find_shaped(r, scales, 2, blocks(out), blocks(in), 0));
	}
	tell_matrix(r, role, weight, name);
}

static void matrix(Resolver *r, Dsv3MatrixRole role, Dsv3Weight *weight, int64_t out, int64_t in,
				   const char *fmt, ...) __attribute__((format(printf, 6, 7)));
static const float *
vector(Resolver *r, int64_t n, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void
matrix(Resolver *r, Dsv3MatrixRole role, Dsv3Weight *weight, int64_t out, int64_t in, const char *fmt, ...)
{
	char name[MAX_NAME];
	va_list ap;

	va_start(ap, fmt);
	make_name(name, fmt, ap);
	va_end(ap);
	find_matrix(r, role, weight, out, in, name);
}

/* A tensor of floats, n_dims 1 or 2, widened. */
static const float *
find_vector(Resolver *r, int n_dims, int64_t d0, int64_t d1, const char *name)
{
	const float *numbers = widen_tensor(r, find_shaped(r, name, n_dims, d0, d1, 0));

	tell(r, &(Dsv3Part){.vector = numbers, .n_dims = n_dims, .dims = {d0, d1}}, name);
	return numbers;
}

static const float *
vector(Resolver *r, int64_t n, const char *fmt, ...)
{
	char name[MAX_NAME];
	va_list ap;

	va_start(ap, fmt);
	make_name(name, fmt, ap);
	va_end(ap);
	return find_vector(r, 1, n, 0, name);
}

/* A SwiGLU block under prefix ("model.layers.0.mlp"). */
static void
find_mlp(Resolver *r, Dsv3MatrixRole role, Dsv3Mlp *mlp, int64_t width, const char *prefix)
{
	int64_t h = r->config->hidden_size;

	matrix(r, role, &mlp->gate, width, h, "%s.gate_proj.weight", prefix);
	matrix(r, role, &mlp->up, width, h, "%s.up_proj.weight", prefix);
	matrix(r, role, &mlp->down, h, width, "%s.down_proj.weight", prefix);
}

/* The parts of an expert found fused under prefix ("model.layers.1.mlp.experts.0"). */
static void
tell_expert(Resolver *r, const Dsv3Mlp *mlp, const char *prefix)
{
	char name[MAX_NAME + 32];

	snprintf(name, sizeof(name), "%s.gate_proj.weight", prefix);
	tell_matrix(r, DSV3_MATRIX_EXPERT, &mlp->gate, name);
	snprintf(name, sizeof(name), "%s.up_proj.weight", prefix);
	tell_matrix(r, DSV3_MATRIX_EXPERT, &mlp->up, name);
	snprintf(name, sizeof(name), "%s.down_proj.weight", prefix);
	tell_matrix(r, DSV3_MATRIX_EXPERT, &mlp->down, name);
}

/* One expert's [out, in] slice of a fused tensor, starting at row `first` of the rows_per_expert of expert e. */
static void
slice(Dsv3Weight *weight, const Dsv3Weight *whole, int64_t e, int64_t rows_per_expert, int64_t first,
	  int64_t out)
{
	size_t row = (size_t) (e * rows_per_expert + first);

	*weight = *whole;
	weight->out = (int32_t) out;
	weight->data =
		(const unsigned char *) whole->data + row * (size_t) whole->in * dsv3_type_bytes(whole->type);
	if (whole->scales)
		weight->scales = whole->scales + (size_t) (e * blocks(rows_per_expert) + first / FP8_BLOCK) *
											 (size_t) blocks(whole->in);
}

/* A fused tensor [E, rows, in], its numbers in *whole (whose out is not meaningful). */
static void
find_fused(Resolver *r, Dsv3Weight *whole, int64_t n, int64_t rows, int64_t in, const char *name)
{
	const Dsv3Tensor *t = find_shaped(r, name, 3, n, rows, in);

	memset(whole, 0, sizeof(*whole));
	/* the format of a pack has no tensor of three dimensions */
	if (t == NULL || !weight_type(r, t, USE_ROWS, &whole->type))
		return;
	whole->in = (int32_t) in;
	whole->data = aligned(r, t, whole->type);
	if (whole->type == DSV3_TYPE_FP8)
	{
		char scales[MAX_NAME + 16];

		snprintf(scales, sizeof(scales), "%s_scale_inv", name);
		whole->scales = widen_tensor(r, find_shaped(r, scales, 3, n, blocks(rows), blocks(in)));
	}
}

/* Experts as transformers 5 keeps them: gate and up rows of all experts in one tensor, down in another. */
static void
find_fused_experts(Resolver *r, Dsv3LayerWeights *layer, const char *prefix)
{
	const Dsv3Config *c = r->config;
	int64_t width = c->moe_intermediate_size;
	Dsv3Weight gate_up;
	Dsv3Weight down;
	char name[MAX_NAME];

	snprintf(name, sizeof(name), "%s.experts.gate_up_proj", prefix);
	find_fused(r, &gate_up, c->n_routed_experts, 2 * width, c->hidden_size, name);
	if (!r->failed && gate_up.type == DSV3_TYPE_FP8 && width % FP8_BLOCK != 0)
	{
		r->failed = true;
		dsv3_error(r->err, DSV3_ERR_UNSUPPORTED,
				   "tensor \"%s\" is FP8 and moe_intermediate_size is %d: its up rows do not begin at a "
				   "block of 128",
				   name, c->moe_intermediate_size);
	}
	snprintf(name, sizeof(name), "%s.experts.down_proj", prefix);
	find_fused(r, &down, c->n_routed_experts, c->hidden_size, width, name);
	for (int e = 0; e < c->n_routed_experts && !r->failed; e++)
	{
		slice(&layer->experts[e].gate, &gate_up, e, 2 * width, 0, width);
		slice(&layer->experts[e].up, &gate_up, e, 2 * width, width, width);
		slice(&layer->experts[e].down, &down, e, c->hidden_size, 0, c->hidden_size);
		snprintf(name, sizeof(name), "%s.experts.%d", prefix, e);
		tell_expert(r, &layer->experts[e], name);
	}
}

static void
find_moe(Resolver *r, Dsv3LayerWeights *layer, const char *prefix)
{
	const Dsv3Config *c = r->config;
	char name[MAX_NAME];

	snprintf(name, sizeof(name), "%s.gate.weight", prefix);
	layer->router = find_vector(r, 2, c->n_routed_experts, c->hidden_size, name);
	if (!c->is_v2)
		layer->router_bias = vector(r, c->n_routed_experts, "%s.gate.e_score_correction_bias", prefix);
	if (r->failed)
		return;
	layer->experts = calloc((size_t) c->n_routed_experts, sizeof(Dsv3Mlp));
	if (layer->experts == NULL)
	{
		r->failed = true;
		dsv3_error(r->err, DSV3_ERR_OUT_OF_MEMORY, "out of memory listing experts");
		return;
	}
	snprintf(name, sizeof(name), "%s.experts.gate_up_proj", prefix);
	if (dsv3_tensors_find(r->files, name))
		find_fused_experts(r, layer, prefix);
	else
	{
		for (int e = 0; e < c->n_routed_experts && !r->failed; e++)
		{
			snprintf(name, sizeof(name), "%s.experts.%d", prefix, e);
			find_mlp(r, DSV3_MATRIX_EXPERT, &layer->experts[e], c->moe_intermediate_size, name);
		}
	}
	if (c->n_shared_experts > 0)
	{
		snprintf(name, sizeof(name), "%s.shared_experts", prefix);
		find_mlp(r, DSV3_MATRIX_MLP, &layer->shared, (int64_t) c->n_shared_experts * c->moe_intermediate_size,
				 name);
	}
}

static void
find_attention(Resolver *r, Dsv3LayerWeights *layer, const char *prefix)
{
	const Dsv3Config *c = r->config;
	int64_t h = c->hidden_size;
	int64_t q_rows = (int64_t) c->n_heads * (c->qk_nope_dim + c->qk_rope_dim);
	int64_t latent = c->kv_lora_rank;

	if (c->q_lora_rank == 0)
		matrix(r, DSV3_MATRIX_Q, &layer->q, q_rows, h, "%s.q_proj.weight", prefix);
	else
	{
		matrix(r, DSV3_MATRIX_Q, &layer->q_a, c->q_lora_rank, h, "%s.q_a_proj.weight", prefix);
		if (c->attention_bias)
			layer->q_a_bias = vector(r, c->q_lora_rank, "%s.q_a_proj.bias", prefix);
		layer->q_a_norm = vector(r, c->q_lora_rank, "%s.q_a_layernorm.weight", prefix);
		matrix(r, DSV3_MATRIX_Q, &layer->q_b, q_rows, c->q_lora_rank, "%s.q_b_proj.weight", prefix);
	}
	matrix(r, DSV3_MATRIX_KV_A, &layer->kv_a, latent + c->qk_rope_dim, h, "%s.kv_a_proj_with_mqa.weight",
		   prefix);
	if (c->attention_bias)
		layer->kv_a_bias = vector(r, latent + c->qk_rope_dim, "%s.kv_a_proj_with_mqa.bias", prefix);
	layer->kv_a_norm = vector(r, latent, "%s.kv_a_layernorm.weight", prefix);
	matrix(r, DSV3_MATRIX_KV_B, &layer->kv_b, (int64_t) c->n_heads * (c->qk_nope_dim + c->v_dim), latent,
		   "%s.kv_b_proj.weight", prefix);
	matrix(r, DSV3_MATRIX_O, &layer->o, h, (int64_t) c->n_heads * c->v_dim, "%s.o_proj.weight", prefix);
	if (c->attention_bias)
		layer->o_bias = vector(r, h, "%s.o_proj.bias", prefix);
}

static void
find_layer(Resolver *r, Dsv3LayerWeights *layer, int i)
{
	const Dsv3Config *c = r->config;
	char prefix[128];

	layer->input_norm = vector(r, c->hidden_size, "%slayers.%d.input_layernorm.weight", r->body, i);
	layer->post_attention_norm =
		vector(r, c->hidden_size, "%slayers.%d.post_attention_layernorm.weight", r->body, i);
	snprintf(prefix, sizeof(prefix), "%slayers.%d.self_attn", r->body, i);
	find_attention(r, layer, prefix);
	snprintf(prefix, sizeof(prefix), "%slayers.%d.mlp", r->body, i);
	layer->moe = i >= c->first_dense && c->n_routed_experts > 0;
	if (layer->moe)
		find_moe(r, layer, prefix);
	else
		find_mlp(r, DSV3_MATRIX_MLP, &layer->dense, c->intermediate_size, prefix);
}

/*
 * Is the tensor `name` the matrix `main_name` once more? Pieces spread over both are compared: whole output matrices would be gigabytes
 * to read. A tensor that is not there is the main one by definition.
 */
static bool
is_same_tensor(const Resolver *r, const char *name, const char *main_name)
{
	const Dsv3Tensor *t = dsv3_tensors_find(r->files, name);
	const Dsv3Tensor *main = dsv3_tensors_find(r->files, main_name);

	if (t == NULL)
		return true;
	if (main == NULL || t->dtype != main->dtype || t->bytes != main->bytes)
		return false;
	for (int64_t i = 0; i < SAME_PIECES; i++)
	{
		int64_t piece = t->bytes < SAME_BYTES ? t->bytes : SAME_BYTES;
		int64_t at = (t->bytes - piece) / (SAME_PIECES - 1) * i;

		if (memcmp(t->data + at, main->data + at, (size_t) piece) != 0)
			return false;
	}
	return true;
}

/* The draft layer, if the files have the one that config.json announces; its decoder layer is layers[n_layers]. */
static void
find_draft(Resolver *r, Dsv3Weights *weights)
{
	const Dsv3Config *c = r->config;
	Dsv3DraftWeights *draft = &weights->draft;
	int64_t h = c->hidden_size;
	char name[MAX_NAME];
	char main_name[MAX_NAME];

	snprintf(name, sizeof(name), "%slayers.%d.eh_proj.weight", r->body, c->n_layers);
	if (c->n_mtp_layers == 0 || dsv3_tensors_find(r->files, name) == NULL)
		return;
	draft->embed_norm = vector(r, h, "%slayers.%d.enorm.weight", r->body, c->n_layers);
	draft->hidden_norm = vector(r, h, "%slayers.%d.hnorm.weight", r->body, c->n_layers);
	find_matrix(r, DSV3_MATRIX_JOINT, &draft->joint, h, 2 * h, name);
	find_layer(r, &weights->layers[c->n_layers], c->n_layers);
	draft->final_norm = vector(r, h, "%slayers.%d.shared_head.norm.weight", r->body, c->n_layers);
	snprintf(name, sizeof(name), "%slayers.%d.embed_tokens.weight", r->body, c->n_layers);
	snprintf(main_name, sizeof(main_name), "%sembed_tokens.weight", r->body);
	if (!is_same_tensor(r, name, main_name))
		find_matrix(r, DSV3_MATRIX_EMBED, &draft->embed, c->vocab_size, h, name);
	snprintf(name, sizeof(name), "%slayers.%d.shared_head.head.weight", r->body, c->n_layers);
	if (!c->tie_word_embeddings)
		snprintf(main_name, sizeof(main_name), "%slm_head.weight", r->outer);
	if (!is_same_tensor(r, name, main_name))
		find_matrix(r, DSV3_MATRIX_HEAD, &draft->head, c->vocab_size, h, name);
}

bool
dsv3_weights_resolve(Dsv3Weights *weights, const Dsv3Config *config, const Dsv3TensorFiles *files,
					 Dsv3Arena *arena, const Dsv3CheckpointOptions *options, Dsv3Error *err)
{
	Resolver r = {.config = config,
				  .files = files,
				  .arena = arena,
				  .options = options,
				  .err = err,
				  .body = prefixes[0].body,
				  .outer = prefixes[0].outer};
	char name[MAX_NAME];

	memset(weights, 0, sizeof(*weights));
	for (size_t i = 0; config->nested && i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
	{
		snprintf(name, sizeof(name), "%sembed_tokens.weight", prefixes[i].body);
		if (dsv3_tensors_find(files, name))
		{
			r.body = prefixes[i].body;
			r.outer = prefixes[i].outer;
		}
	}
	matrix(&r, DSV3_MATRIX_EMBED, &weights->embed, config->vocab_size, config->hidden_size,
		   "%sembed_tokens.weight", r.body);
	snprintf(name, sizeof(name), "%slm_head.weight", r.outer);
	/* A pack may hold a tied output matrix a second time, in a type that the embedding cannot have. */
	if (config->tie_word_embeddings && !(files->pack && dsv3_tensors_find(files, name)))
	{
		weights->head = weights->embed;
		tell_matrix(&r, DSV3_MATRIX_HEAD, &weights->head, name);
	}
	else
		find_matrix(&r, DSV3_MATRIX_HEAD, &weights->head, config->vocab_size, config->hidden_size, name);
	weights->final_norm = vector(&r, config->hidden_size, "%snorm.weight", r.body);
	if (r.failed)
		return false;
	weights->layers = calloc((size_t) config->n_layers + 1, sizeof(Dsv3LayerWeights));
	if (weights->layers == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory listing layers");
	for (int i = 0; i < config->n_layers && !r.failed; i++)
		find_layer(&r, &weights->layers[i], i);
	if (options->drafts)
		find_draft(&r, weights);
	return !r.failed;
}

void
dsv3_weights_clear(Dsv3Weights *weights, const Dsv3Config *config)
{
	for (int i = 0; weights->layers && i <= config->n_layers; i++)
		free(weights->layers[i].experts);
	free(weights->layers);
	memset(weights, 0, sizeof(*weights));
}

bool
dsv3_tensor_is_mtp(const Dsv3Config *config, const char *name)
{
	for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
	{
		char start[64];
		size_t len = (size_t) snprintf(start, sizeof(start), "%slayers.", prefixes[i].body);

		if (strncmp(name, start, len) == 0 && isdigit((unsigned char) name[len]))
			return strtol(name + len, NULL, 10) >= config->n_layers;
	}
	return false;
}

Dsv3WeightCounts
dsv3_weights_count_unused(const Dsv3Config *config, const Dsv3TensorFiles *files)
{
	Dsv3WeightCounts counts = {0, 0};

	for (int f = 0; f < files->n_files; f++)
	{
		for (int i = 0; i < files->files[f].n_tensors; i++)
		{
			const Dsv3Tensor *t = &files->files[f].tensors[i];

			if (dsv3_tensor_is_mtp(config, t->name))
				counts.n_mtp++;
			else if (!t->used)
				counts.n_ignored++;
		}
	}
	return counts;
}

static void
visit_mlp(Dsv3Mlp *mlp, Dsv3MatrixRole role, Dsv3MatrixVisitor visit, void *context)
{
	visit(context, role, &mlp->gate);
	visit(context, role, &mlp->up);
	visit(context, role, &mlp->down);
}

static void
visit_layer(Dsv3LayerWeights *layer, const Dsv3Config *config, Dsv3MatrixVisitor visit, void *context)
{
	if (config->q_lora_rank == 0)
		visit(context, DSV3_MATRIX_Q, &layer->q);
	else
	{
		visit(context, DSV3_MATRIX_Q, &layer->q_a);
		visit(context, DSV3_MATRIX_Q, &layer->q_b);
	}
	visit(context, DSV3_MATRIX_KV_A, &layer->kv_a);
	visit(context, DSV3_MATRIX_KV_B, &layer->kv_b);
	visit(context, DSV3_MATRIX_O, &layer->o);
	if (!layer->moe)
	{
		visit_mlp(&layer->dense, DSV3_MATRIX_MLP, visit, context);
		return;
	}
	for (int e = 0; e < config->n_routed_experts; e++)
		visit_mlp(&layer->experts[e], DSV3_MATRIX_EXPERT, visit, context);
	if (config->n_shared_experts > 0)
		visit_mlp(&layer->shared, DSV3_MATRIX_MLP, visit, context);
}

void
dsv3_weights_visit(Dsv3Weights *weights, const Dsv3Config *config, Dsv3MatrixVisitor visit, void *context)
{
	visit(context, DSV3_MATRIX_EMBED, &weights->embed);
	if (!config->tie_word_embeddings)
		visit(context, DSV3_MATRIX_HEAD, &weights->head);
	for (int i = 0; i < config->n_layers; i++)
		visit_layer(&weights->layers[i], config, visit, context);
}

void
dsv3_weights_visit_draft(Dsv3Weights *weights, const Dsv3Config *config, Dsv3MatrixVisitor visit,
						 void *context)
{
	Dsv3DraftWeights *draft = &weights->draft;

	if (draft->joint.out == 0)
		return;
	if (draft->embed.out > 0)
		visit(context, DSV3_MATRIX_EMBED, &draft->embed);
	visit(context, DSV3_MATRIX_JOINT, &draft->joint);
	visit_layer(&weights->layers[config->n_layers], config, visit, context);
	if (draft->head.out > 0)
		visit(context, DSV3_MATRIX_HEAD, &draft->head);
}
