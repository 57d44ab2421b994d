/*
 * test_weights.c
 *	  Opening whole checkpoints: every storage form and weight mode gives the right numbers, every damage is refused with the
 *	  file, the tensor and the reason.
 */
#include "fixture.h"

#include <math.h>

#include "kernels/quant.h"
#include "model/arena.h"
#include "model/checkpoint.h"
#include "model/convert.h"
#include "model/safetensors.h"

/* Runs the items last to first, to show that order does not matter. */
static void
backwards(void *context, int64_t n, void (*fn)(void *arg, int64_t i), void *arg)
{
	*(int64_t *) context += n;
	for (int64_t i = n - 1; i >= 0; i--)
		fn(arg, i);
}

static Dsv3Checkpoint *
open_mode(const Fixture *fx, Dsv3WeightMode mode)
{
	Dsv3CheckpointOptions options = {.weights = mode};
	Dsv3Error err;
	Dsv3Checkpoint *cp = dsv3_checkpoint_open(fx->dir, &options, &err);

	if (cp == NULL)
		fail_msg("%s: %s %s", err.sqlstate, err.message, err.detail);
	return cp;
}

static void
refuse(const Fixture *fx, const char *sqlstate, const char *text1, const char *text2, const char *text3)
{
	for (int check = 0; check < 2; check++)
	{
		Dsv3CheckpointOptions options = {.weights = DSV3_WEIGHTS_STORED, .check_only = check == 1};
		Dsv3Error err;

		memset(&err, 0, sizeof(err));
		if (dsv3_checkpoint_open(fx->dir, &options, &err))
			fail_msg("accepted; expected \"%s\"", text2);
		assert_error(&err, sqlstate, text1, text2, text3, NULL);
	}
}

/* Number [row, col] of a matrix that is not packed. */
static float
number_at(const Dsv3Weight *w, int32_t row, int32_t col)
{
	float piece[128];

	dsv3_weight_columns(w, row, col / 128 * 128,
						w->in - col / 128 * 128 < 128 ? w->in - col / 128 * 128 : 128, piece);
	return piece[col % 128];
}

/* The value of a 16-bit or 8-bit code by the definition of its format; no infinities or NaN. */
static float
by_definition(const char *dtype, unsigned code)
{
	int fraction_bits = strcmp(dtype, "BF16") == 0 ? 7 : strcmp(dtype, "F16") == 0 ? 10 : 3;
	int exponent_bits = strcmp(dtype, "BF16") == 0 ? 8 : strcmp(dtype, "F16") == 0 ? 5 : 4;
	int exponent = (int) (code >> fraction_bits) & ((1 << exponent_bits) - 1);
	double fraction = code & ((1u << fraction_bits) - 1);
	int bias = (1 << (exponent_bits - 1)) - 1 + fraction_bits;
	double x =
		exponent ? ldexp(ldexp(1, fraction_bits) + fraction, exponent - bias) : ldexp(fraction, 1 - bias);

	return (float) (code >> (fraction_bits + exponent_bits) & 1 ? -x : x);
}

/* What the fixture's tensor holds at a flat index, scales applied. */
static float
fixture_value(Fixture *fx, const char *name, int64_t row, int64_t col)
{
	const FixtureTensor *t = fixture_find(fx, name);
	int64_t in = t->dims[t->n_dims - 1];
	size_t at = (size_t) (row * in + col);
	uint16_t code;
	float x;

	if (strcmp(t->dtype, "F32") == 0)
	{
		memcpy(&x, t->data + 4 * at, 4);
		return x;
	}
	if (strcmp(t->dtype, "F8_E4M3") == 0)
	{
		char scales[160];

		snprintf(scales, sizeof(scales), "%s_scale_inv", name);
		return by_definition(t->dtype, t->data[at]) * fixture_value(fx, scales, row / 128, col / 128);
	}
	memcpy(&code, t->data + 2 * at, 2);
	return by_definition(t->dtype, code);
}

/* A packed matrix is what packing the numbers makes. */
static void
check_packed(const Dsv3Weight *w, const char *name, const float *numbers)
{
	Dsv3Weight plain = {.type = DSV3_TYPE_F32, .out = w->out, .in = w->in, .data = numbers};
	size_t bytes = dsv3_packed_bytes(w->type, w->out, w->in);
	void *expected = aligned_alloc(64, bytes);

	assert_true(dsv3_pack_rows(w->type, &plain, 0, w->out, NULL, expected));
	assert_int_equal((uintptr_t) w->data % 64, 0);
	if (memcmp(expected, w->data, bytes) != 0)
		fail_msg("%s is not what packing makes of it", name);
	free(expected);
}

/* A matrix equals the tensor, rows from row0; in BF16 mode after rounding. */
static void
check_matrix(Fixture *fx, const Dsv3Weight *w, const char *name, int64_t row0)
{
	float *numbers = malloc((size_t) w->out * (size_t) w->in * sizeof(float));

	for (int32_t row = 0; row < w->out; row++)
	{
		for (int32_t col = 0; col < w->in; col++)
		{
			float expected = fixture_value(fx, name, row0 + row, col);

			numbers[row * w->in + col] = expected;
			if (dsv3_type_is_packed(w->type))
				continue;
			if (w->type == DSV3_TYPE_BF16)
				expected = by_definition("BF16", dsv3_f32_to_bf16(expected));
			if (number_at(w, row, col) != expected)
				fail_msg("%s [%d, %d] is %a, expected %a", name, row, col, (double) number_at(w, row, col),
						 (double) expected);
		}
	}
	if (dsv3_type_is_packed(w->type))
		check_packed(w, name, numbers);
	free(numbers);
}

static void
check_vector(Fixture *fx, const float *v, const char *name)
{
	const FixtureTensor *t = fixture_find(fx, name);

	assert_non_null(v);
	assert_int_equal((uintptr_t) v % 64, 0);
	for (int64_t i = 0; i < t->dims[0]; i++)
		assert_true(v[i] == fixture_value(fx, name, 0, i));
}

/* All parts of the two-layer fixture. */
static void
check_all(Fixture *fx, const Dsv3Checkpoint *cp, bool fused)
{
	const Dsv3Weights *w = &cp->weights;
	const Dsv3LayerWeights *a = &w->layers[0];
	const Dsv3LayerWeights *b = &w->layers[1];

	check_matrix(fx, &w->embed, "model.embed_tokens.weight", 0);
	check_matrix(fx, &w->head,
				 cp->config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight", 0);
	check_vector(fx, w->final_norm, "model.norm.weight");
	check_vector(fx, a->input_norm, "model.layers.0.input_layernorm.weight");
	check_vector(fx, a->post_attention_norm, "model.layers.0.post_attention_layernorm.weight");
	check_vector(fx, a->kv_a_norm, "model.layers.0.self_attn.kv_a_layernorm.weight");
	if (cp->config.q_lora_rank > 0)
	{
		check_matrix(fx, &a->q_a, "model.layers.0.self_attn.q_a_proj.weight", 0);
		check_matrix(fx, &a->q_b, "model.layers.0.self_attn.q_b_proj.weight", 0);
		check_vector(fx, a->q_a_norm, "model.layers.0.self_attn.q_a_layernorm.weight");
		assert_null(a->q.data);
	}
	else
	{
		check_matrix(fx, &a->q, "model.layers.0.self_attn.q_proj.weight", 0);
		assert_null(a->q_a.data);
		assert_null(a->q_a_norm);
	}
	check_matrix(fx, &a->kv_a, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 0);
	check_matrix(fx, &a->kv_b, "model.layers.0.self_attn.kv_b_proj.weight", 0);
	check_matrix(fx, &b->o, "model.layers.1.self_attn.o_proj.weight", 0);
	assert_false(a->moe);
	check_matrix(fx, &a->dense.gate, "model.layers.0.mlp.gate_proj.weight", 0);
	check_matrix(fx, &a->dense.up, "model.layers.0.mlp.up_proj.weight", 0);
	check_matrix(fx, &a->dense.down, "model.layers.0.mlp.down_proj.weight", 0);
	assert_true(b->moe);
	check_vector(fx, b->router_bias, "model.layers.1.mlp.gate.e_score_correction_bias");
	for (int e = 0; e < cp->config.n_routed_experts; e++)
	{
		int width = cp->config.moe_intermediate_size;
		int h = cp->config.hidden_size;
		char name[96];

		for (int i = 0; i < h; i++)
			assert_true(b->router[e * h + i] == fixture_value(fx, "model.layers.1.mlp.gate.weight", e, i));
		if (fused)
		{
			check_matrix(fx, &b->experts[e].gate, "model.layers.1.mlp.experts.gate_up_proj", 2 * e * width);
			check_matrix(fx, &b->experts[e].up, "model.layers.1.mlp.experts.gate_up_proj",
						 (2 * e + 1) * width);
			check_matrix(fx, &b->experts[e].down, "model.layers.1.mlp.experts.down_proj", e * h);
			continue;
		}
		snprintf(name, sizeof(name), "model.layers.1.mlp.experts.%d.gate_proj.weight", e);
		check_matrix(fx, &b->experts[e].gate, name, 0);
		snprintf(name, sizeof(name), "model.layers.1.mlp.experts.%d.up_proj.weight", e);
		check_matrix(fx, &b->experts[e].up, name, 0);
		snprintf(name, sizeof(name), "model.layers.1.mlp.experts.%d.down_proj.weight", e);
		check_matrix(fx, &b->experts[e].down, name, 0);
	}
	check_matrix(fx, &b->shared.down, "model.layers.1.mlp.shared_experts.down_proj.weight", 0);
}

/* In every mode, and with the data at every alignment. */
static void
check_modes(Fixture *fx, bool fused, Dsv3Type stored)
{
	static const Dsv3WeightMode modes[] = {DSV3_WEIGHTS_STORED, DSV3_WEIGHTS_F32, DSV3_WEIGHTS_BF16,
										   DSV3_WEIGHTS_INT8, DSV3_WEIGHTS_INT4};

	for (int pad = 0; pad < 8; pad += 3)
	{
		fixture_write_padded(fx, pad);
		for (int m = 0; m < 5; m++)
		{
			Dsv3Checkpoint *cp = open_mode(fx, modes[m]);
			const Dsv3LayerWeights *b = &cp->weights.layers[1];
			Dsv3Type expected = m == 0   ? stored
								: m == 1 ? DSV3_TYPE_F32
								: m == 2 ? DSV3_TYPE_BF16
								: m == 3 ? DSV3_TYPE_INT8
										 : DSV3_TYPE_S6;
			Dsv3Type wide = m == 4 && stored == DSV3_TYPE_F32 ? DSV3_TYPE_BF16 : m >= 3 ? stored : expected;

			check_all(fx, cp, fused);
			if (cp->config.tie_word_embeddings && m < 3)
				assert_ptr_equal(cp->weights.head.data, cp->weights.embed.data);
			assert_int_equal(b->o.type, expected);
			assert_int_equal(b->experts[1].up.type, m == 4 ? DSV3_TYPE_A4 : expected);
			assert_int_equal(b->kv_b.type, wide);
			if (b->kv_b.type == DSV3_TYPE_F32)
				assert_int_equal((uintptr_t) b->kv_b.data % 4, 0);
			assert_false(dsv3_type_is_packed(cp->weights.embed.type));
			if (m >= 3)
			{
				assert_int_equal(cp->weights.head.type, DSV3_TYPE_INT8);
				assert_string_equal(cp->info.weights, dsv3_weight_mode_name(modes[m]));
			}
			assert_int_equal(strlen(cp->info.digest), 64);
			dsv3_checkpoint_close(cp);
		}
	}
}

static void
set(Fixture *fx, const char *key, json_t *value)
{
	json_object_set_new(fx->config, key, value);
}

static void
test_plain_types(void **state)
{
	static const char *const dtypes[] = {"F32", "BF16", "F16"};
	static const Dsv3Type types[] = {DSV3_TYPE_F32, DSV3_TYPE_BF16, DSV3_TYPE_F16};

	(void) state;
	for (int i = 0; i < 3; i++)
	{
		Fixture fx;

		fixture_open(&fx);
		fixture_fill(&fx, dtypes[i], false);
		check_modes(&fx, false, types[i]);
		fixture_fill(&fx, dtypes[i], true);
		check_modes(&fx, true, types[i]);
		fixture_close(&fx);
	}
}

static void
test_fp8(void **state)
{
	Fixture fx;

	(void) state;
	fixture_open(&fx);
	/* sizes past one block and not multiples of it */
	set(&fx, "hidden_size", json_integer(140));
	set(&fx, "kv_lora_rank", json_integer(129));
	set(&fx, "intermediate_size", json_integer(260));
	fixture_fill(&fx, "F8_E4M3", false);
	check_modes(&fx, false, DSV3_TYPE_FP8);
	fixture_write_shards(&fx, 5);
	{
		Dsv3Checkpoint *cp = open_mode(&fx, DSV3_WEIGHTS_STORED);

		check_all(&fx, cp, false);
		assert_int_equal(cp->info.n_files, 5);
		assert_string_equal(cp->info.weights, "fp8");
		dsv3_checkpoint_close(cp);
	}
	fixture_close(&fx);
}

/* Fused FP8 experts: scales per expert, and up rows that begin inside the tensor. */
static void
test_fp8_fused(void **state)
{
	Fixture fx;
	Dsv3Checkpoint *cp;

	(void) state;
	fixture_open(&fx);
	set(&fx, "moe_intermediate_size", json_integer(128));
	fixture_fill(&fx, "F8_E4M3", true);
	fixture_add(&fx, "model.layers.1.mlp.experts.gate_up_proj_scale_inv", "F32", 3, 4, 2, 1);
	fixture_add(&fx, "model.layers.1.mlp.experts.down_proj_scale_inv", "F32", 3, 4, 1, 1);
	fixture_write(&fx);
	cp = open_mode(&fx, DSV3_WEIGHTS_STORED);
	for (int e = 0; e < 4; e++)
	{
		const FixtureTensor *t = fixture_find(&fx, "model.layers.1.mlp.experts.gate_up_proj");
		float scales[8];

		memcpy(scales, fixture_find(&fx, "model.layers.1.mlp.experts.gate_up_proj_scale_inv")->data,
			   sizeof(scales));
		assert_true(number_at(&cp->weights.layers[1].experts[e].gate, 3, 5) ==
					by_definition(t->dtype, t->data[(e * 256 + 3) * 16 + 5]) * scales[2 * e]);
		assert_true(number_at(&cp->weights.layers[1].experts[e].up, 3, 5) ==
					by_definition(t->dtype, t->data[(e * 256 + 128 + 3) * 16 + 5]) * scales[2 * e + 1]);
		memcpy(scales, fixture_find(&fx, "model.layers.1.mlp.experts.down_proj_scale_inv")->data,
			   4 * sizeof(float));
		t = fixture_find(&fx, "model.layers.1.mlp.experts.down_proj");
		assert_true(number_at(&cp->weights.layers[1].experts[e].down, 15, 127) ==
					by_definition(t->dtype, t->data[(e * 16 + 15) * 128 + 127]) * scales[e]);
	}
	dsv3_checkpoint_close(cp);

	fixture_remove(&fx, "model.layers.1.mlp.experts.down_proj_scale_inv");
	fixture_write(&fx);
	refuse(&fx, DSV3_ERR_BAD_FILE, "\"model.layers.1.mlp.experts.down_proj_scale_inv\"", "missing", "");
	set(&fx, "moe_intermediate_size", json_integer(130));
	fixture_fill(&fx, "F8_E4M3", true);
	fixture_add(&fx, "model.layers.1.mlp.experts.gate_up_proj_scale_inv", "F32", 3, 4, 3, 1);
	fixture_write(&fx);
	refuse(&fx, DSV3_ERR_UNSUPPORTED, "gate_up_proj", "block of 128", "130");
	fixture_close(&fx);
}

static void
test_switches(void **state)
{
	Fixture fx;
	Dsv3Checkpoint *cp;

	(void) state;
	/* tied, biased, one q_proj; a head that is in the file does not count */
	fixture_open(&fx);
	set(&fx, "tie_word_embeddings", json_true());
	set(&fx, "attention_bias", json_true());
	set(&fx, "q_lora_rank", json_null());
	fixture_fill(&fx, "BF16", false);
	fixture_add(&fx, "lm_head.weight", "BF16", 2, 32, 16, 0);
	check_modes(&fx, false, DSV3_TYPE_BF16);
	cp = open_mode(&fx, DSV3_WEIGHTS_STORED);
	assert_ptr_equal(cp->weights.head.data, cp->weights.embed.data);
	check_vector(&fx, cp->weights.layers[0].kv_a_bias, "model.layers.0.self_attn.kv_a_proj_with_mqa.bias");
	check_vector(&fx, cp->weights.layers[1].o_bias, "model.layers.1.self_attn.o_proj.bias");
	assert_null(cp->weights.layers[0].q_a_bias);
	assert_int_equal(cp->info.n_ignored, 1);
	dsv3_checkpoint_close(cp);

	/* bias of q_a, V2 without router bias, no shared expert, MTP layer and stray buffers in the file */
	set(&fx, "q_lora_rank", json_integer(7));
	set(&fx, "n_shared_experts", json_integer(0));
	set(&fx, "tie_word_embeddings", json_false());
	set(&fx, "num_nextn_predict_layers", json_integer(1));
	fixture_fill(&fx, "BF16", false);
	fixture_layer(&fx, "BF16", 2, false);
	fixture_add(&fx, "model.layers.2.eh_proj.weight", "BF16", 2, 16, 32, 0);
	fixture_add(&fx, "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 1, 2, 0, 0);
	fixture_add(&fx, "something.else", "I64", 1, 0, 0, 0);
	fixture_write(&fx);
	cp = open_mode(&fx, DSV3_WEIGHTS_STORED);
	check_vector(&fx, cp->weights.layers[1].q_a_bias, "model.layers.1.self_attn.q_a_proj.bias");
	assert_null(cp->weights.layers[1].shared.gate.data);
	assert_int_equal(cp->info.n_ignored, 2);
	assert_int_equal(cp->info.n_mtp_tensors, 27);
	dsv3_checkpoint_close(cp);
	fixture_close(&fx);

	fixture_open(&fx);
	set(&fx, "architectures", json_pack("[s]", "DeepseekV2ForCausalLM"));
	set(&fx, "model_type", json_string("deepseek_v2"));
	fixture_write(&fx);
	cp = open_mode(&fx, DSV3_WEIGHTS_STORED);
	assert_null(cp->weights.layers[1].router_bias);
	assert_int_equal(cp->info.n_ignored, 1);
	dsv3_checkpoint_close(cp);
	fixture_close(&fx);
}

/* The draft layer: left alone unless asked for; its copies of the embedding and the output matrix used when they are none. */
static void
test_draft_layer(void **state)
{
	Dsv3CheckpointOptions options = {.weights = DSV3_WEIGHTS_INT4, .drafts = true};
	Fixture fx;
	Dsv3Checkpoint *cp;
	Dsv3Error err = {0};
	int64_t plain;

	(void) state;
	fixture_open(&fx);
	fixture_fill(&fx, "BF16", false);
	fixture_draft(&fx, "BF16");
	fixture_write(&fx);
	cp = open_mode(&fx, DSV3_WEIGHTS_INT4);
	assert_int_equal(cp->weights.draft.joint.out, 0);
	assert_int_equal(cp->info.draft_bytes, 0);
	plain = cp->info.weight_bytes;
	dsv3_checkpoint_close(cp);

	cp = dsv3_checkpoint_open(fx.dir, &options, &err);
	assert_non_null(cp);
	assert_int_equal(cp->weights.draft.joint.type, DSV3_TYPE_INT8);
	assert_int_equal(cp->weights.draft.joint.in, 2 * 16);
	assert_int_equal(cp->weights.layers[2].experts[3].up.type, DSV3_TYPE_A4);
	assert_int_equal(cp->weights.draft.embed.out, 0);
	assert_int_equal(cp->weights.draft.head.out, 0);
	check_vector(&fx, cp->weights.draft.embed_norm, "model.layers.2.enorm.weight");
	check_vector(&fx, cp->weights.draft.final_norm, "model.layers.2.shared_head.norm.weight");
	assert_true(cp->info.draft_bytes > 0);
	assert_int_equal(cp->info.weight_bytes, plain + cp->info.draft_bytes);
	dsv3_checkpoint_close(cp);

	fixture_find(&fx, "model.layers.2.shared_head.head.weight")->data[1] ^= 1;
	fixture_write(&fx);
	cp = dsv3_checkpoint_open(fx.dir, &options, &err);
	assert_non_null(cp);
	assert_int_equal(cp->weights.draft.embed.out, 0);
	assert_int_equal(cp->weights.draft.head.out, 32);
	assert_int_equal(cp->weights.draft.head.type, DSV3_TYPE_INT8);
	dsv3_checkpoint_close(cp);

	/* Of a layer without the copies nothing is missing; of one without a norm something is. */
	fixture_remove(&fx, "model.layers.2.shared_head.head.weight");
	fixture_remove(&fx, "model.layers.2.embed_tokens.weight");
	fixture_write(&fx);
	cp = dsv3_checkpoint_open(fx.dir, &options, &err);
	assert_non_null(cp);
	dsv3_checkpoint_close(cp);
	fixture_remove(&fx, "model.layers.2.hnorm.weight");
	fixture_write(&fx);
	assert_null(dsv3_checkpoint_open(fx.dir, &options, &err));
	assert_string_equal(err.sqlstate, "XX001");
	assert_non_null(strstr(err.message, "hnorm"));
	dsv3_checkpoint_close(open_mode(&fx, DSV3_WEIGHTS_STORED));
	fixture_close(&fx);
}

/* The three places a wrapped text model's tensors may be. */
static void
test_prefixes(void **state)
{
	static const char *const bodies[] = {"model.", "language_model.model.", "model.language_model."};
	static const char *const heads[] = {"lm_head.weight", "language_model.lm_head.weight", "lm_head.weight"};

	(void) state;
	for (int p = 0; p < 3; p++)
	{
		Fixture fx;
		Dsv3Checkpoint *cp;
		json_t *text;

		fixture_open(&fx);
		for (int i = 0; i < fx.n_tensors; i++)
		{
			char name[128];
			bool head = strcmp(fx.tensors[i].name, "lm_head.weight") == 0;

			snprintf(name, sizeof(name), "%s%s", head ? "" : bodies[p],
					 head ? heads[p] : fx.tensors[i].name + 6);
			snprintf(fx.tensors[i].name, sizeof(fx.tensors[i].name), "%s", name);
		}
		fixture_add(&fx, "vision_tower.x", "BF16", 1, 3, 0, 0);
		text = fx.config;
		json_object_set_new(text, "model_type", json_string("kimi_k2"));
		fx.config = json_pack("{s:[s], s:s, s:o}", "architectures", "KimiK25ForConditionalGeneration",
							  "model_type", "kimi_k25", "text_config", text);
		fixture_write(&fx);
		cp = open_mode(&fx, DSV3_WEIGHTS_STORED);
		assert_int_equal(cp->info.n_ignored, 1);
		assert_int_equal(cp->weights.head.out, 32);
		dsv3_checkpoint_close(cp);
		fixture_close(&fx);
	}
}

static void
test_info(void **state)
{
	Fixture fx;
	Dsv3Checkpoint *cp;
	Dsv3CheckpointOptions options = {.weights = DSV3_WEIGHTS_F32};
	Dsv3Error err;
	int64_t params = 0;
	int64_t expert = 3 * 12 * 16;
	int64_t vectors;
	int64_t router = 4 * 16;
	int64_t calls = 0;

	(void) state;
	fixture_open(&fx);
	fixture_write(&fx);
	for (int i = 0; i < fx.n_tensors; i++)
		params += (int64_t) fx.tensors[i].bytes / (strcmp(fx.tensors[i].dtype, "F32") == 0 ? 4 : 2);
	vectors = 2 * (16 + 16 + 8 + 8) + 16 + 4;
	cp = open_mode(&fx, DSV3_WEIGHTS_STORED);
	assert_int_equal(cp->info.params_total, params);
	assert_int_equal(cp->info.params_active, params - 32 * 16 - 2 * expert);
	assert_int_equal(cp->info.weight_bytes, 2 * (params - vectors - router) + 4 * (vectors + router));
	assert_int_equal(cp->info.bytes_per_token,
					 cp->info.weight_bytes - 2 * (32 * 16) - 2 * 2 * expert + 2 * 16);
	assert_string_equal(cp->info.weights, "bf16");
	assert_int_equal(cp->info.n_tensors, fx.n_tensors);
	dsv3_checkpoint_close(cp);

	options.parallel = backwards;
	options.parallel_context = &calls;
	cp = dsv3_checkpoint_open(fx.dir, &options, &err);
	assert_non_null(cp);
	assert_true(calls > 20);
	check_all(&fx, cp, false);
	assert_string_equal(cp->info.weights, "f32");
	assert_int_equal(cp->info.weight_bytes, 4 * params);
	dsv3_checkpoint_close(cp);

	options = (Dsv3CheckpointOptions){.check_only = true};
	cp = dsv3_checkpoint_open(fx.dir, &options, &err);
	assert_non_null(cp);
	assert_int_equal(cp->info.arena_bytes, 0);
	assert_null(cp->weights.layers[1].router);
	dsv3_checkpoint_close(cp);

	/* one matrix of another type makes the mix */
	fixture_remove(&fx, "model.layers.0.self_attn.o_proj.weight");
	fixture_add(&fx, "model.layers.0.self_attn.o_proj.weight", "F16", 2, 16, 10, 0);
	fixture_write(&fx);
	cp = open_mode(&fx, DSV3_WEIGHTS_STORED);
	assert_string_equal(cp->info.weights, "mixed");
	dsv3_checkpoint_close(cp);
	fixture_close(&fx);
}

/* The digest changes with every part it covers and with nothing else. */
static void
test_digest(void **state)
{
	Fixture fx;
	char seen[8][65];
	int n = 0;
	Dsv3Checkpoint *cp;

	(void) state;
	fixture_open(&fx);
	for (int step = 0; step < 6; step++)
	{
		fixture_write(&fx);
		if (step == 2)
			fixture_write_text(fx.dir, "tokenizer.json", "{}");
		if (step == 3)
			fixture_write_text(fx.dir, "tokenizer.json", "{ }");
		if (step == 4)
			fixture_write_text(fx.dir, "generation_config.json", "{\"eos_token_id\":2}");
		if (step == 5)
			fixture_find(&fx, "model.layers.1.mlp.experts.3.up_proj.weight")->data[100] ^= 1;
		if (step == 5)
			fixture_write(&fx);
		if (step == 1)
		{
			set(&fx, "rope_theta", json_real(10001.0));
			fixture_write(&fx);
		}
		cp = open_mode(&fx, step % 2 ? DSV3_WEIGHTS_F32 : DSV3_WEIGHTS_STORED);
		memcpy(seen[n], cp->info.digest, 65);
		assert_int_equal(strspn(seen[n], "0123456789abcdef"), 64);
		for (int i = 0; i < n; i++)
			assert_string_not_equal(seen[i], seen[n]);
		n++;
		dsv3_checkpoint_close(cp);
		cp = open_mode(&fx, DSV3_WEIGHTS_BF16);
		assert_string_equal(cp->info.digest, seen[n - 1]);
		dsv3_checkpoint_close(cp);
	}
	fixture_close(&fx);
}

static void
test_memory(void **state)
{
	Fixture fx;
	Dsv3Arena arena = {0};
	Dsv3Error err;
	char path[128];

	(void) state;
	assert_false(dsv3_arena_reserve(&arena, (size_t) 1 << 50, "weights as f32", &err));
	assert_error(&err, DSV3_ERR_OUT_OF_MEMORY, "weights as f32", "GB needed", "GB available", NULL);
	assert_null(dsv3_arena_alloc(&arena, SIZE_MAX - 3, &err));
	assert_error(&err, DSV3_ERR_OUT_OF_MEMORY, "overflows", NULL);
	for (size_t n = 1; n < (size_t) 16 << 20; n *= 3)
	{
		unsigned char *piece = dsv3_arena_alloc(&arena, n, &err);

		assert_non_null(piece);
		assert_int_equal((uintptr_t) piece % 64, 0);
		assert_int_equal(piece[0] + piece[n - 1], 0);
		memset(piece, 0xFF, n);
	}
	dsv3_arena_free(&arena);
	assert_int_equal(arena.bytes, 0);

	/* control groups: none, one without limit, a limit inside, a tighter one outside; cache gives way */
	fixture_open(&fx);
	assert_true(dsv3_groups_room(fx.dir, "/a/b") == INT64_MAX);
	snprintf(path, sizeof(path), "%s/a", fx.dir);
	assert_int_equal(mkdir(path, 0700), 0);
	fixture_write_text(path, "memory.max", "1000\n");
	fixture_write_text(path, "memory.current", "900\n");
	fixture_write_text(path, "memory.stat", "anon 400\nfile 500\nfile_mapped 7\n");
	strcat(path, "/b");
	assert_int_equal(mkdir(path, 0700), 0);
	fixture_write_text(path, "memory.max", "max\n");
	fixture_write_text(path, "memory.current", "800\n");
	assert_int_equal(dsv3_groups_room(fx.dir, "/a/b"), 600);
	assert_int_equal(dsv3_groups_room(fx.dir, "/a"), 600);
	assert_true(dsv3_groups_room(fx.dir, "/") == INT64_MAX);
	fixture_write_text(path, "memory.max", "850\n");
	assert_int_equal(dsv3_groups_room(fx.dir, "/a/b"), 50);
	fixture_write_text(path, "memory.max", "700\n");
	assert_int_equal(dsv3_groups_room(fx.dir, "/a/b"), 0);
	fixture_close(&fx);
}

/* Of a large tensor the middle counts and the ends do not; of the header every byte counts. */
static void
test_digest_samples(void **state)
{
	Fixture fx;
	Dsv3Checkpoint *cp;
	FixtureTensor *t;
	char first[65];

	(void) state;
	fixture_open(&fx);
	set(&fx, "intermediate_size", json_integer(200));
	fixture_fill(&fx, "BF16", false);
	fixture_add(&fx, "stray1", "BF16", 1, 3, 0, 0);
	t = fixture_find(&fx, "model.layers.0.mlp.gate_proj.weight");
	assert_int_equal(t->bytes, 6400);
	fixture_write(&fx);
	cp = open_mode(&fx, DSV3_WEIGHTS_STORED);
	memcpy(first, cp->info.digest, sizeof(first));
	dsv3_checkpoint_close(cp);
	for (int i = 0; i < 4; i++)
	{
		static const size_t places[] = {1151, 1152, 5247, 5248};

		t->data[places[i]] ^= 1;
		fixture_write(&fx);
		cp = open_mode(&fx, DSV3_WEIGHTS_STORED);
		assert_int_equal(strcmp(first, cp->info.digest) == 0, i == 0 || i == 3);
		dsv3_checkpoint_close(cp);
		t->data[places[i]] ^= 1;
	}
	snprintf(fixture_find(&fx, "stray1")->name, 16, "stray2");
	fixture_write(&fx);
	cp = open_mode(&fx, DSV3_WEIGHTS_STORED);
	assert_string_not_equal(first, cp->info.digest);
	dsv3_checkpoint_close(cp);
	fixture_close(&fx);
}

static void
put_f32(FixtureTensor *t, size_t i, float x)
{
	memcpy(t->data + 4 * i, &x, 4);
}

static void
test_tensor_refused(void **state)
{
	static const char *const required[] = {
		"model.embed_tokens.weight",
		"model.norm.weight",
		"lm_head.weight",
		"model.layers.0.input_layernorm.weight",
		"model.layers.1.post_attention_layernorm.weight",
		"model.layers.0.self_attn.q_a_proj.weight",
		"model.layers.0.self_attn.q_a_layernorm.weight",
		"model.layers.0.self_attn.q_b_proj.weight",
		"model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
		"model.layers.0.self_attn.kv_a_layernorm.weight",
		"model.layers.0.self_attn.kv_b_proj.weight",
		"model.layers.1.self_attn.o_proj.weight",
		"model.layers.0.mlp.gate_proj.weight",
		"model.layers.0.mlp.up_proj.weight",
		"model.layers.0.mlp.down_proj.weight",
		"model.layers.1.mlp.gate.weight",
		"model.layers.1.mlp.gate.e_score_correction_bias",
		"model.layers.1.mlp.experts.3.gate_proj.weight",
		"model.layers.1.mlp.experts.2.up_proj.weight",
		"model.layers.1.mlp.experts.0.down_proj.weight",
		"model.layers.1.mlp.shared_experts.gate_proj.weight",
	};
	char quoted[160];

	(void) state;
	for (size_t i = 0; i < sizeof(required) / sizeof(required[0]); i++)
	{
		Fixture fx;
		FixtureTensor *t;

		snprintf(quoted, sizeof(quoted), "\"%s\"", required[i]);
		fixture_open(&fx);
		t = fixture_find(&fx, required[i]);
		/* one row more, transposed or flattened, a dimension of zero, a type of no use */
		t->dims[0]++;
		t->bytes += t->bytes / (size_t) (t->dims[0] - 1);
		t->data = realloc(t->data, t->bytes);
		memset(t->data, 0, t->bytes);
		fixture_write(&fx);
		refuse(&fx, DSV3_ERR_BAD_FILE, "\"model.safetensors\"", quoted, "has shape");
		t->dims[0] = 0;
		t->bytes = 0;
		fixture_write(&fx);
		refuse(&fx, DSV3_ERR_BAD_FILE, "\"model.safetensors\"", quoted, "has shape [0");
		t = fixture_find(&fx, required[i]);
		t->n_dims = 0;
		t->bytes = strcmp(t->dtype, "F32") == 0 ? 4 : 2;
		fixture_write(&fx);
		refuse(&fx, DSV3_ERR_BAD_FILE, "\"model.safetensors\"", quoted, "has shape []");
		fixture_fill(&fx, "BF16", false);
		t = fixture_find(&fx, required[i]);
		snprintf(t->dtype, sizeof(t->dtype), "%s", strcmp(t->dtype, "F32") == 0 ? "I32" : "I16");
		fixture_write(&fx);
		refuse(&fx, DSV3_ERR_UNSUPPORTED, "\"model.safetensors\"", quoted, "has dtype I");
		fixture_remove(&fx, required[i]);
		fixture_write(&fx);
		refuse(&fx, DSV3_ERR_BAD_FILE, quoted, "is missing", "\"model.safetensors\"");
		fixture_write_shards(&fx, 2);
		refuse(&fx, DSV3_ERR_BAD_FILE, quoted, "is missing", "index.json");
		fixture_close(&fx);
	}
}

static void
test_not_finite(void **state)
{
	static const char *const names[] = {"model.layers.1.mlp.gate.e_score_correction_bias",
										"model.norm.weight", "model.layers.1.mlp.gate.weight",
										"model.layers.0.self_attn.kv_a_layernorm.weight",
										"model.layers.0.self_attn.o_proj.weight_scale_inv"};
	char quoted[160];

	(void) state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
	{
		Fixture fx;
		FixtureTensor *t;

		fixture_open(&fx);
		fixture_fill(&fx, "F8_E4M3", false);
		t = fixture_find(&fx, names[i]);
		snprintf(quoted, sizeof(quoted), "\"%s\"", names[i]);
		if (strcmp(t->dtype, "F32") == 0)
			put_f32(t, t->bytes / 4 - 1, NAN);
		else
			memcpy(t->data + t->bytes - 2, "\xC0\x7F", 2);
		fixture_write(&fx);
		refuse(&fx, DSV3_ERR_BAD_FILE, "\"model.safetensors\"", quoted, "has NaN at index");
		if (strcmp(t->dtype, "F32") == 0)
			put_f32(t, t->bytes / 4 - 1, -INFINITY);
		else
			memcpy(t->data + t->bytes - 2, "\x80\x7F", 2);
		fixture_write(&fx);
		refuse(&fx, DSV3_ERR_BAD_FILE, "\"model.safetensors\"", quoted, "has an infinity at index");
		fixture_close(&fx);
	}
}

static void
test_fp8_refused(void **state)
{
	Fixture fx;
	FixtureTensor *t;

	(void) state;
	fixture_open(&fx);
	set(&fx, "hidden_size", json_integer(140));
	fixture_fill(&fx, "F8_E4M3", false);
	t = fixture_find(&fx, "model.layers.0.self_attn.o_proj.weight_scale_inv");
	assert_int_equal(t->dims[0], 2);
	t->dims[0] = 1;
	t->bytes = 4;
	fixture_write(&fx);
	refuse(&fx, DSV3_ERR_BAD_FILE, "\"model.layers.0.self_attn.o_proj.weight_scale_inv\"", "has shape [1, 1]",
		   "[2, 1]");
	fixture_remove(&fx, "model.layers.0.self_attn.o_proj.weight_scale_inv");
	fixture_write(&fx);
	refuse(&fx, DSV3_ERR_BAD_FILE, "\"model.layers.0.self_attn.o_proj.weight_scale_inv\"", "is missing", "");
	fixture_fill(&fx, "F8_E4M3", false);
	snprintf(fixture_find(&fx, "model.layers.1.self_attn.o_proj.weight")->dtype, 16, "F8_E5M2");
	fixture_write(&fx);
	refuse(&fx, DSV3_ERR_UNSUPPORTED, "\"model.layers.1.self_attn.o_proj.weight\"", "F8_E5M2", "matrix");
	/* int4 experts of compressed-tensors are recognised even when the configuration does not announce them */
	fixture_fill(&fx, "BF16", false);
	fixture_remove(&fx, "model.layers.1.mlp.experts.0.gate_proj.weight");
	t = fixture_add(&fx, "model.layers.1.mlp.experts.0.gate_proj.weight_packed", "F32", 2, 12, 2, 0);
	snprintf(t->dtype, sizeof(t->dtype), "I32");
	fixture_write(&fx);
	refuse(&fx, DSV3_ERR_UNSUPPORTED, "experts.0.gate_proj.weight", "int4", "BF16 or FP8");
	fixture_close(&fx);
}

/* A configuration that promises far more than the file has is refused at its first tensor, without large allocations. */
static void
test_giant_config(void **state)
{
	Fixture fx;

	(void) state;
	fixture_open(&fx);
	fixture_write(&fx);
	set(&fx, "num_hidden_layers", json_integer(1024));
	set(&fx, "n_routed_experts", json_integer(16384));
	fixture_write_config(&fx);
	refuse(&fx, DSV3_ERR_BAD_FILE, "\"model.layers.1.mlp.gate.weight\"", "[4, 16]", "[16384, 16]");
	set(&fx, "hidden_size", json_integer(1 << 20));
	set(&fx, "vocab_size", json_integer(1 << 24));
	fixture_write_config(&fx);
	refuse(&fx, DSV3_ERR_BAD_FILE, "\"model.embed_tokens.weight\"", "[32, 16]", "[16777216, 1048576]");
	fixture_close(&fx);
}

static void
test_numbers(void **state)
{
	(void) state;
	for (unsigned code = 0; code < 0x10000; code++)
	{
		uint16_t stored = (uint16_t) code;
		float half;
		float brain;

		dsv3_widen(DSV3_TYPE_F16, &stored, 1, &half);
		dsv3_widen(DSV3_TYPE_BF16, &stored, 1, &brain);
		if ((code & 0x7C00) != 0x7C00)
			assert_true(half == by_definition("F16", code) && !signbit(half) == !(code & 0x8000));
		else
			assert_true(code & 0x3FF ? isnan(half) : isinf(half));
		if ((code & 0x7F80) != 0x7F80)
			assert_true(brain == by_definition("BF16", code) && !signbit(brain) == !(code & 0x8000));
		if ((code & 0x7FFF) <= 0x7F80)
			assert_int_equal(dsv3_f32_to_bf16(brain), code);
		else
			assert_int_equal(dsv3_f32_to_bf16(brain) & 0x7F80, 0x7F80);
	}
	for (unsigned code = 0; code < 0x100; code++)
	{
		uint8_t stored = (uint8_t) code;
		float scale = 0.75f;
		float x;
		Dsv3Weight w = {.type = DSV3_TYPE_FP8, .out = 1, .in = 1, .data = &stored, .scales = &scale};

		dsv3_weight_columns(&w, 0, 0, 1, &x);
		assert_true(x == by_definition("F8_E4M3", code) * scale);
	}
	/* ties go to the even neighbour, everything else to the nearer one */
	assert_int_equal(dsv3_f32_to_bf16(0x1.01p0f), 0x3F80);
	assert_int_equal(dsv3_f32_to_bf16(0x1.010002p0f), 0x3F81);
	assert_int_equal(dsv3_f32_to_bf16(0x1.03p0f), 0x3F82);
	assert_int_equal(dsv3_f32_to_bf16(0x1.02fffep0f), 0x3F81);
	assert_int_equal(dsv3_f32_to_bf16(-0x1.fffffep127f), 0xFF80);
}

/* Seeded damage to whole files: opening returns, whatever the bytes, in both ways of opening. */
static void
test_mutations(void **state)
{
	Fixture fx;
	size_t len;
	unsigned char *base;
	unsigned char *bytes;
	char *config;
	uint64_t seed = 4711;
	int accepted = 0;

	(void) state;
	fixture_open(&fx);
	fixture_fill(&fx, "F8_E4M3", false);
	fixture_write_config(&fx);
	base = fixture_bytes(&fx, -1, 0, &len);
	bytes = malloc(len);
	config = json_dumps(fx.config, 0);
	assert_non_null(bytes);
	for (int round = 0; round < 1500; round++)
	{
		Dsv3CheckpointOptions options = {.weights = round % 3 == 0 ? DSV3_WEIGHTS_F32 : DSV3_WEIGHTS_STORED,
										 .check_only = round % 3 == 2};
		Dsv3Error err;
		Dsv3Checkpoint *cp;
		size_t n = round % 16 == 0 ? fixture_random(&seed) % len + 1 : len;

		memcpy(bytes, base, len);
		for (uint32_t edits = 1 + fixture_random(&seed) % 3; edits > 0; edits--)
			bytes[fixture_random(&seed) % len] = (unsigned char) fixture_random(&seed);
		fixture_write_file(fx.dir, "model.safetensors", bytes, n);
		if (round % 5 == 0)
		{
			/* one digit of the configuration becomes another: sizes that contradict the file */
			char *text = strdup(config);
			size_t at;

			assert_non_null(text);
			do
				at = fixture_random(&seed) % strlen(text);
			while (text[at] < '0' || text[at] > '9');
			text[at] = (char) ('0' + fixture_random(&seed) % 10);
			fixture_write_text(fx.dir, "config.json", text);
			free(text);
		}
		memset(&err, 0, sizeof(err));
		cp = dsv3_checkpoint_open(fx.dir, &options, &err);
		if (cp)
			accepted++;
		else
			assert_true(strlen(err.sqlstate) == 5 && strlen(err.message) > 10);
		dsv3_checkpoint_close(cp);
	}
	assert_in_range(accepted, 1, 1499);
	free(config);
	free(bytes);
	free(base);
	fixture_close(&fx);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers),      cmocka_unit_test(test_plain_types),
		cmocka_unit_test(test_fp8),          cmocka_unit_test(test_fp8_fused),
		cmocka_unit_test(test_switches),     cmocka_unit_test(test_draft_layer),
		cmocka_unit_test(test_prefixes),     cmocka_unit_test(test_info),
		cmocka_unit_test(test_digest),       cmocka_unit_test(test_digest_samples),
		cmocka_unit_test(test_memory),       cmocka_unit_test(test_tensor_refused),
		cmocka_unit_test(test_not_finite),   cmocka_unit_test(test_fp8_refused),
		cmocka_unit_test(test_giant_config), cmocka_unit_test(test_mutations),
	};

	return cmocka_run_group_tests_name("weights", tests, NULL, NULL);
}
