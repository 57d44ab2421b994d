/*
 * fixture.h
 *	  Small model directories made by a test: a configuration, tensors of random numbers, a safetensors writer, and ways to
 *	  damage them.
 *
 * A Fixture owns a directory under /tmp and everything in it until fixture_close. Tensors are kept in memory so that a
 * test changes one and writes the files again. Numbers come from a fixed generator: the same model every time.
 */
#ifndef DSV3_TEST_FIXTURE_H
#define DSV3_TEST_FIXTURE_H

#include <ftw.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/error.h"

#define FIXTURE_UNUSED __attribute__((unused))

typedef struct FixtureTensor
{
	char name[160];
	char dtype[16];
	int n_dims;
	int64_t dims[4];
	unsigned char *data;
	size_t bytes;
	int shard;
} FixtureTensor;

typedef struct Fixture
{
	char dir[64];
	json_t *config;
	FixtureTensor *tensors;
	int n_tensors;
	uint64_t random;
} Fixture;

/* xorshift64* */
static FIXTURE_UNUSED uint32_t
fixture_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return (uint32_t) (*state * 2685821657736338717ULL >> 32);
}

/* A number in [-1, 1) that BF16 and F16 hold exactly. */
static FIXTURE_UNUSED float
fixture_number(uint64_t *state)
{
	return (float) ((int) (fixture_random(state) % 256) - 128) / 128.0f;
}

/* The F16 bits of such a number, from its F32 bits: none is subnormal in F16 and no bit is lost. */
static FIXTURE_UNUSED uint16_t
fixture_half(uint32_t bits)
{
	uint32_t magnitude = bits & 0x7fffffff;

	return (uint16_t) ((bits >> 16 & 0x8000) | (magnitude ? (magnitude >> 13) - (112 << 10) : 0));
}

static FIXTURE_UNUSED void
fixture_write_file(const char *dir, const char *name, const void *data, size_t len)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	unlink(path);
	file = fopen(path, "wb");
	assert_non_null(file);
	assert_int_equal(fwrite(data, 1, len, file), len);
	assert_int_equal(fclose(file), 0);
}

static FIXTURE_UNUSED void
fixture_write_text(const char *dir, const char *name, const char *text)
{
	fixture_write_file(dir, name, text, strlen(text));
}

/* A safetensors file with exactly this header text and data_bytes zero bytes after it. */
static FIXTURE_UNUSED void
fixture_write_raw(const char *dir, const char *name, const char *header, size_t data_bytes)
{
	size_t len = strlen(header);
	unsigned char *file = calloc(1, 8 + len + data_bytes);

	assert_non_null(file);
	for (int i = 0; i < 8; i++)
		file[i] = (unsigned char) ((uint64_t) len >> (8 * i));
	memcpy(file + 8, header, len);
	fixture_write_file(dir, name, file, 8 + len + data_bytes);
	free(file);
}

static FIXTURE_UNUSED FixtureTensor *
fixture_find(Fixture *fx, const char *name)
{
	for (int i = 0; i < fx->n_tensors; i++)
	{
		if (strcmp(fx->tensors[i].name, name) == 0)
			return &fx->tensors[i];
	}
	fail_msg("fixture has no tensor %s", name);
	return NULL;
}

static FIXTURE_UNUSED void
fixture_remove(Fixture *fx, const char *name)
{
	FixtureTensor *t = fixture_find(fx, name);

	free(t->data);
	memmove(t, t + 1, (size_t) (fx->tensors + fx->n_tensors - (t + 1)) * sizeof(*t));
	fx->n_tensors--;
}

/* A new tensor, of random numbers in F32, BF16, F16; random bytes below the NaN codes in F8_E4M3. */
static FIXTURE_UNUSED FixtureTensor *
fixture_add(Fixture *fx, const char *name, const char *dtype, int n_dims, int64_t d0, int64_t d1, int64_t d2)
{
	int64_t dims[3] = {d0, d1, d2};
	size_t n = 1;
	size_t width = strcmp(dtype, "F32") == 0 ? 4 : strncmp(dtype, "F8", 2) == 0 ? 1 : 2;
	FixtureTensor *t;

	fx->tensors = realloc(fx->tensors, (size_t) (fx->n_tensors + 1) * sizeof(*t));
	assert_non_null(fx->tensors);
	t = &fx->tensors[fx->n_tensors++];
	memset(t, 0, sizeof(*t));
	snprintf(t->name, sizeof(t->name), "%s", name);
	snprintf(t->dtype, sizeof(t->dtype), "%s", dtype);
	t->n_dims = n_dims;
	for (int i = 0; i < n_dims; i++)
	{
		t->dims[i] = dims[i];
		n *= (size_t) dims[i];
	}
	t->bytes = n * width;
	t->data = calloc(1, t->bytes ? t->bytes : 1);
	assert_non_null(t->data);
	for (size_t i = 0; i < n; i++)
	{
		float x = fixture_number(&fx->random);
		uint32_t bits;
		uint16_t half;

		memcpy(&bits, &x, sizeof(bits));
		half = fixture_half(bits);
		if (width == 4)
			memcpy(t->data + 4 * i, &x, 4);
		else if (strcmp(dtype, "BF16") == 0)
			memcpy(t->data + 2 * i, (char *) &bits + 2, 2);
		else if (strcmp(dtype, "F16") == 0)
			memcpy(t->data + 2 * i, &half, 2);
		else
			t->data[i] = (unsigned char) (fixture_random(&fx->random) % 127);
	}
	return t;
}

/* A matrix and, for F8_E4M3, its scales. */
static FIXTURE_UNUSED void
fixture_matrix(Fixture *fx, const char *dtype, int64_t out, int64_t in, const char *prefix, const char *part)
{
	char name[160];

	snprintf(name, sizeof(name), "%s%s.weight", prefix, part);
	fixture_add(fx, name, dtype, 2, out, in, 0);
	if (strcmp(dtype, "F8_E4M3") == 0)
	{
		snprintf(name, sizeof(name), "%s%s.weight_scale_inv", prefix, part);
		fixture_add(fx, name, "F32", 2, (out + 127) / 128, (in + 127) / 128, 0);
	}
}

static FIXTURE_UNUSED int64_t
fixture_int(const Fixture *fx, const char *key)
{
	return json_integer_value(json_object_get(fx->config, key));
}

static FIXTURE_UNUSED bool
fixture_true(const Fixture *fx, const char *key)
{
	return json_is_true(json_object_get(fx->config, key));
}

static FIXTURE_UNUSED void
fixture_mlp(Fixture *fx, const char *dtype, int64_t width, const char *prefix)
{
	int64_t h = fixture_int(fx, "hidden_size");

	fixture_matrix(fx, dtype, width, h, prefix, ".gate_proj");
	fixture_matrix(fx, dtype, width, h, prefix, ".up_proj");
	fixture_matrix(fx, dtype, h, width, prefix, ".down_proj");
}

/* One layer as config says; fused gives experts as two 3-D tensors. */
static FIXTURE_UNUSED void
fixture_layer(Fixture *fx, const char *dtype, int i, bool fused)
{
	int64_t h = fixture_int(fx, "hidden_size");
	int64_t heads = fixture_int(fx, "num_attention_heads");
	int64_t latent = fixture_int(fx, "kv_lora_rank");
	int64_t rank = fixture_int(fx, "q_lora_rank");
	int64_t nope = fixture_int(fx, "qk_nope_head_dim");
	int64_t rope = fixture_int(fx, "qk_rope_head_dim");
	int64_t v = fixture_int(fx, "v_head_dim");
	int64_t width = fixture_int(fx, "moe_intermediate_size");
	int64_t experts = fixture_int(fx, "n_routed_experts");
	bool bias = fixture_true(fx, "attention_bias");
	char layer[64];
	char prefix[96];
	char name[160];

	snprintf(layer, sizeof(layer), "model.layers.%d.", i);
	snprintf(name, sizeof(name), "%sinput_layernorm.weight", layer);
	fixture_add(fx, name, "BF16", 1, h, 0, 0);
	snprintf(name, sizeof(name), "%spost_attention_layernorm.weight", layer);
	fixture_add(fx, name, "BF16", 1, h, 0, 0);
	snprintf(prefix, sizeof(prefix), "%sself_attn.", layer);
	if (rank == 0)
		fixture_matrix(fx, dtype, heads * (nope + rope), h, prefix, "q_proj");
	else
	{
		fixture_matrix(fx, dtype, rank, h, prefix, "q_a_proj");
		snprintf(name, sizeof(name), "%sq_a_layernorm.weight", prefix);
		fixture_add(fx, name, "BF16", 1, rank, 0, 0);
		fixture_matrix(fx, dtype, heads * (nope + rope), rank, prefix, "q_b_proj");
		snprintf(name, sizeof(name), "%sq_a_proj.bias", prefix);
		if (bias)
			fixture_add(fx, name, "BF16", 1, rank, 0, 0);
	}
	fixture_matrix(fx, dtype, latent + rope, h, prefix, "kv_a_proj_with_mqa");
	snprintf(name, sizeof(name), "%skv_a_layernorm.weight", prefix);
	fixture_add(fx, name, "BF16", 1, latent, 0, 0);
	fixture_matrix(fx, dtype, heads * (nope + v), latent, prefix, "kv_b_proj");
	fixture_matrix(fx, dtype, h, heads * v, prefix, "o_proj");
	if (bias)
	{
		snprintf(name, sizeof(name), "%skv_a_proj_with_mqa.bias", prefix);
		fixture_add(fx, name, "BF16", 1, latent + rope, 0, 0);
		snprintf(name, sizeof(name), "%so_proj.bias", prefix);
		fixture_add(fx, name, "BF16", 1, h, 0, 0);
	}
	snprintf(prefix, sizeof(prefix), "%smlp", layer);
	if (i < fixture_int(fx, "first_k_dense_replace"))
	{
		fixture_mlp(fx, dtype, fixture_int(fx, "intermediate_size"), prefix);
		return;
	}
	snprintf(name, sizeof(name), "%s.gate.weight", prefix);
	fixture_add(fx, name, "BF16", 2, experts, h, 0);
	snprintf(name, sizeof(name), "%s.gate.e_score_correction_bias", prefix);
	fixture_add(fx, name, "F32", 1, experts, 0, 0);
	if (fused)
	{
		snprintf(name, sizeof(name), "%s.experts.gate_up_proj", prefix);
		fixture_add(fx, name, dtype, 3, experts, 2 * width, h);
		snprintf(name, sizeof(name), "%s.experts.down_proj", prefix);
		fixture_add(fx, name, dtype, 3, experts, h, width);
	}
	for (int e = 0; e < experts && !fused; e++)
	{
		snprintf(name, sizeof(name), "%s.experts.%d", prefix, e);
		fixture_mlp(fx, dtype, width, name);
	}
	snprintf(name, sizeof(name), "%s.shared_experts", prefix);
	if (fixture_int(fx, "n_shared_experts") > 0)
		fixture_mlp(fx, dtype, width * fixture_int(fx, "n_shared_experts"), name);
}

/* The configuration of a tiny DeepSeek-V3: two layers, the second MoE with two groups of two experts. */
static FIXTURE_UNUSED json_t *
fixture_config(void)
{
	json_t *config =
		json_pack("{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, "
				  "s:i, s:i, s:i, s:i, s:f, s:i, s:b, s:b}",
				  "architectures", "DeepseekV3ForCausalLM", "model_type", "deepseek_v3", "vocab_size", 32,
				  "hidden_size", 16, "num_hidden_layers", 2, "num_attention_heads", 2, "num_key_value_heads",
				  2, "q_lora_rank", 8, "kv_lora_rank", 8, "qk_nope_head_dim", 6, "qk_rope_head_dim", 4,
				  "v_head_dim", 5, "intermediate_size", 24, "moe_intermediate_size", 12, "n_routed_experts",
				  4, "n_shared_experts", 1, "num_experts_per_tok", 2, "n_group", 2, "topk_group", 1,
				  "first_k_dense_replace", 1, "max_position_embeddings", 128, "rope_theta", 10000.0,
				  "num_nextn_predict_layers", 0, "tie_word_embeddings", 0, "attention_bias", 0);

	assert_non_null(config);
	return config;
}

/* Tensors for what fx->config says now; call again after changing it. */
static FIXTURE_UNUSED void
fixture_fill(Fixture *fx, const char *dtype, bool fused)
{
	int64_t h = fixture_int(fx, "hidden_size");
	int64_t vocab = fixture_int(fx, "vocab_size");
	const char *plain = strcmp(dtype, "F8_E4M3") == 0 ? "BF16" : dtype;

	for (int i = 0; i < fx->n_tensors; i++)
		free(fx->tensors[i].data);
	fx->n_tensors = 0;
	fx->random = 0x9E3779B97F4A7C15ULL;
	fixture_add(fx, "model.embed_tokens.weight", plain, 2, vocab, h, 0);
	for (int i = 0; i < fixture_int(fx, "num_hidden_layers"); i++)
		fixture_layer(fx, dtype, i, fused);
	fixture_add(fx, "model.norm.weight", "BF16", 1, h, 0, 0);
	if (!fixture_true(fx, "tie_word_embeddings"))
		fixture_add(fx, "lm_head.weight", plain, 2, vocab, h, 0);
}

/* The draft layer, with the embedding and the output matrix once more; announced in the configuration. Call after fixture_fill. */
static FIXTURE_UNUSED void
fixture_draft(Fixture *fx, const char *dtype)
{
	static const char *const norms[] = {"enorm", "hnorm", "shared_head.norm"};
	static const char *const copies[][2] = {{"embed_tokens.weight", "model.embed_tokens.weight"},
											{"shared_head.head.weight", "lm_head.weight"}};
	int64_t h = fixture_int(fx, "hidden_size");
	int i = (int) fixture_int(fx, "num_hidden_layers");
	char prefix[64];
	char name[160];

	json_object_set_new(fx->config, "num_nextn_predict_layers", json_integer(1));
	snprintf(prefix, sizeof(prefix), "model.layers.%d.", i);
	for (int n = 0; n < 3; n++)
	{
		snprintf(name, sizeof(name), "%s%s.weight", prefix, norms[n]);
		fixture_add(fx, name, "BF16", 1, h, 0, 0);
	}
	fixture_matrix(fx, dtype, h, 2 * h, prefix, "eh_proj");
	fixture_layer(fx, dtype, i, false);
	for (int n = 0; n < 2; n++)
	{
		const FixtureTensor *main = fixture_find(fx, copies[n][1]);
		int64_t rows = main->dims[0];
		char main_dtype[16];
		FixtureTensor *copy;

		snprintf(main_dtype, sizeof(main_dtype), "%s", main->dtype);
		snprintf(name, sizeof(name), "%s%s", prefix, copies[n][0]);
		copy = fixture_add(fx, name, main_dtype, 2, rows, h, 0);
		memcpy(copy->data, fixture_find(fx, copies[n][1])->data, copy->bytes);
	}
}

static FIXTURE_UNUSED void
fixture_open(Fixture *fx)
{
	memset(fx, 0, sizeof(*fx));
	snprintf(fx->dir, sizeof(fx->dir), "/tmp/dsv3-test-XXXXXX");
	assert_non_null(mkdtemp(fx->dir));
	fx->config = fixture_config();
	fixture_fill(fx, "BF16", false);
}

static FIXTURE_UNUSED void
fixture_write_config(const Fixture *fx)
{
	char *text = json_dumps(fx->config, JSON_INDENT(1));

	assert_non_null(text);
	fixture_write_text(fx->dir, "config.json", text);
	free(text);
}

/* The bytes of a safetensors file with the tensors of one shard (-1: all), header padded with pad spaces; malloc'd. */
static FIXTURE_UNUSED unsigned char *
fixture_bytes(const Fixture *fx, int shard, int pad, size_t *len)
{
	json_t *header = json_object();
	size_t data = 0;
	size_t header_len;
	unsigned char *file;
	char *text;

	for (int i = 0; i < fx->n_tensors; i++)
	{
		const FixtureTensor *t = &fx->tensors[i];
		json_t *shape = json_array();

		if (shard >= 0 && t->shard != shard)
		{
			json_decref(shape);
			continue;
		}
		for (int d = 0; d < t->n_dims; d++)
			json_array_append_new(shape, json_integer(t->dims[d]));
		json_object_set_new(header, t->name,
							json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", shape,
									  "data_offsets", (json_int_t) data, (json_int_t) (data + t->bytes)));
		data += t->bytes;
	}
	text = json_dumps(header, JSON_COMPACT);
	json_decref(header);
	assert_non_null(text);
	header_len = strlen(text) + (size_t) pad;
	*len = 8 + header_len + data;
	file = malloc(*len);
	assert_non_null(file);
	memset(file, ' ', 8 + header_len);
	for (int i = 0; i < 8; i++)
		file[i] = (unsigned char) ((uint64_t) header_len >> (8 * i));
	memcpy(file + 8, text, strlen(text));
	free(text);
	data = 8 + header_len;
	for (int i = 0; i < fx->n_tensors; i++)
	{
		if (shard >= 0 && fx->tensors[i].shard != shard)
			continue;
		memcpy(file + data, fx->tensors[i].data, fx->tensors[i].bytes);
		data += fx->tensors[i].bytes;
	}
	return file;
}

/* config.json and model.safetensors; pad spaces after the header shift the data to any alignment. */
static FIXTURE_UNUSED void
fixture_write_padded(const Fixture *fx, int pad)
{
	size_t len;
	unsigned char *bytes = fixture_bytes(fx, -1, pad, &len);

	fixture_write_config(fx);
	fixture_write_file(fx->dir, "model.safetensors", bytes, len);
	free(bytes);
}

static FIXTURE_UNUSED void
fixture_write(const Fixture *fx)
{
	fixture_write_padded(fx, 0);
}

/* config.json, n shards with the tensors dealt out in turn, and the index. */
static FIXTURE_UNUSED void
fixture_write_shards(Fixture *fx, int n)
{
	json_t *map = json_object();
	json_t *index;
	char name[128];
	char *text;

	for (int i = 0; i < fx->n_tensors; i++)
	{
		fx->tensors[i].shard = i % n;
		snprintf(name, sizeof(name), "model-%05d-of-%06d.safetensors", i % n + 1, n);
		json_object_set_new(map, fx->tensors[i].name, json_string(name));
	}
	index = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 0, "weight_map", map);
	text = json_dumps(index, JSON_INDENT(1));
	assert_non_null(text);
	fixture_write_config(fx);
	fixture_write_text(fx->dir, "model.safetensors.index.json", text);
	free(text);
	json_decref(index);
	snprintf(name, sizeof(name), "%s/model.safetensors", fx->dir);
	unlink(name);
	for (int i = 0; i < n; i++)
	{
		size_t len;
		unsigned char *bytes = fixture_bytes(fx, i, 0, &len);

		snprintf(name, sizeof(name), "model-%05d-of-%06d.safetensors", i + 1, n);
		fixture_write_file(fx->dir, name, bytes, len);
		free(bytes);
	}
}

static int
fixture_remove_path(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void) st;
	(void) type;
	(void) ftw;
	return remove(path);
}

static FIXTURE_UNUSED void
fixture_close(Fixture *fx)
{
	for (int i = 0; i < fx->n_tensors; i++)
		free(fx->tensors[i].data);
	free(fx->tensors);
	json_decref(fx->config);
	nftw(fx->dir, fixture_remove_path, 16, FTW_DEPTH | FTW_PHYS);
	memset(fx, 0, sizeof(*fx));
}

/* The error has this SQLSTATE and its message, detail and hint together contain every text of the NULL-ended list. */
static FIXTURE_UNUSED void
assert_error(const Dsv3Error *err, const char *sqlstate, ...)
{
	char all[4096];
	const char *text;
	va_list ap;

	snprintf(all, sizeof(all), "%s|%s|%s", err->message, err->detail, err->hint);
	if (strcmp(err->sqlstate, sqlstate) != 0)
		fail_msg("SQLSTATE is %s, expected %s: %s", err->sqlstate, sqlstate, all);
	va_start(ap, sqlstate);
	while ((text = va_arg(ap, const char *)) != NULL)
	{
		if (strstr(all, text) == NULL)
			fail_msg("\"%s\" is not in: %s", text, all);
	}
	va_end(ap);
}

#endif /* DSV3_TEST_FIXTURE_H */
