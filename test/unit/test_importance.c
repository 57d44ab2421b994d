/*
 * test_importance.c
 *	  The mean squares that packing weighs errors by: against the inputs computed by hand, and what packing makes of them.
 */
#include "fixture.h"

#include <math.h>

#include "kernels/quant.h"
#include "model/checkpoint.h"
#include "model/convert.h"
#include "model/importance.h"
#include "model/pack_write.h"

static const int32_t ids[] = {1, 5, 3, 17, 30, 2, 9, 9, 31, 0};

#define N_IDS (sizeof(ids) / sizeof(ids[0]))

static Dsv3Importance *
open_for(const Fixture *fx, size_t n, int32_t bos, int threads)
{
	Dsv3Error err;
	Dsv3Importance *importance = dsv3_importance_open(fx->dir, ids, n, bos, threads, &err);

	if (importance == NULL)
		fail_msg("%s: %s", err.sqlstate, err.message);
	return importance;
}

/* The input of the first layer's projections is the norm of the embedding. */
static void
test_first_layer(void **state)
{
	Fixture fx;
	Dsv3CheckpointOptions options = {.weights = DSV3_WEIGHTS_STORED};
	Dsv3Importance *importance;
	Dsv3Checkpoint *cp;
	const float *means;
	double expected[16] = {0};
	double mean = 0;

	(void) state;
	fixture_open(&fx);
	fixture_write(&fx);
	cp = dsv3_checkpoint_open(fx.dir, &options, NULL);
	assert_non_null(cp);
	for (size_t i = 0; i < N_IDS; i++)
	{
		float x[16];
		double sum = 0;

		dsv3_weight_columns(&cp->weights.embed, ids[i], 0, 16, x);
		for (int k = 0; k < 16; k++)
			sum += (double) x[k] * x[k];
		for (int k = 0; k < 16; k++)
		{
			double h = x[k] / sqrt(sum / 16 + (double) cp->config.rms_norm_eps) *
					   cp->weights.layers[0].input_norm[k];

			expected[k] += h * h / (double) N_IDS;
			mean += h * h / (double) N_IDS / 16;
		}
	}
	/* the first id as BOS is the same text */
	importance = dsv3_importance_open(fx.dir, ids + 1, N_IDS - 1, ids[0], 1, NULL);
	assert_non_null(importance);
	means = dsv3_importance_of(importance, "model.layers.0.self_attn.q_a_proj.weight");
	assert_non_null(means);
	for (int k = 0; k < 16; k++)
	{
		/* a little for every column */
		if (fabs((double) means[k] - (expected[k] + 0.01 * mean)) > 1e-4 * mean)
			fail_msg("column %d is %g, expected %g", k, (double) means[k], expected[k] + 0.01 * mean);
	}
	assert_memory_equal(means,
						dsv3_importance_of(importance, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"),
						16 * sizeof(float));
	dsv3_importance_close(importance);
	dsv3_checkpoint_close(cp);
	fixture_close(&fx);
}

static void
test_all_matrices(void **state)
{
	static const char *const names[] = {
		"lm_head.weight",
		"model.layers.0.self_attn.q_b_proj.weight",
		"model.layers.0.self_attn.o_proj.weight",
		"model.layers.0.mlp.up_proj.weight",
		"model.layers.0.mlp.down_proj.weight",
		"model.layers.1.mlp.shared_experts.gate_proj.weight",
		"model.layers.1.mlp.experts.0.gate_proj.weight",
		"model.layers.1.mlp.experts.3.down_proj.weight",
	};
	const char *gate = "model.layers.1.mlp.experts.2.gate_proj.weight";
	Fixture fx;

	(void) state;
	fixture_open(&fx);
	for (int variant = 0; variant < 4; variant++)
	{
		Dsv3Importance *a;
		Dsv3Importance *b;

		json_object_set_new(fx.config, "tie_word_embeddings", json_boolean(variant & 1));
		fixture_fill(&fx, "BF16", variant & 2);
		fixture_write(&fx);
		a = open_for(&fx, N_IDS, -1, 1);
		b = open_for(&fx, N_IDS, -1, 3);
		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		{
			const float *means = dsv3_importance_of(a, names[i]);

			if (means == NULL)
				fail_msg("no means of %s", names[i]);
			for (int k = 0; k < 8; k++)
				assert_true(means[k] > 0 && means[k] < 1e6f);
		}
		assert_null(dsv3_importance_of(a, "model.layers.0.self_attn.kv_b_proj.weight"));
		assert_null(dsv3_importance_of(a, "model.embed_tokens.weight"));
		assert_ptr_equal(dsv3_importance_of(a, "model.layers.1.mlp.experts.2.up_proj.weight"),
						 dsv3_importance_of(a, gate));
		assert_string_equal(dsv3_importance_digest(a), dsv3_importance_digest(b));
		dsv3_importance_close(a);
		dsv3_importance_close(b);

		/* one token reaches two of four experts; the others take the layer's mean */
		a = open_for(&fx, 1, -1, 1);
		b = open_for(&fx, 2, -1, 1);
		for (int e = 0; e < 4; e++)
		{
			char name[80];

			snprintf(name, sizeof(name), "model.layers.1.mlp.experts.%d.down_proj.weight", e);
			for (int k = 0; k < 12; k++)
				assert_true(dsv3_importance_of(a, name)[k] > 0);
		}
		assert_string_not_equal(dsv3_importance_digest(a), dsv3_importance_digest(b));
		dsv3_importance_close(a);
		dsv3_importance_close(b);
	}
	fixture_close(&fx);
}

/* Squared error of the expert's gate, weighted by the means. */
static double
weighted_error(const Fixture *fx, const char *out, const float *means)
{
	Dsv3CheckpointOptions options = {.weights = DSV3_WEIGHTS_STORED};
	Dsv3Checkpoint *source = dsv3_checkpoint_open(fx->dir, &options, NULL);
	Dsv3Checkpoint *pack = dsv3_checkpoint_open(out, &options, NULL);
	double error = 0;

	assert_non_null(source);
	assert_non_null(pack);
	for (int32_t row = 0; row < 12; row++)
	{
		float a[16];
		float b[16];

		dsv3_weight_columns(&source->weights.layers[1].experts[0].gate, row, 0, 16, a);
		dsv3_unpack_row(&pack->weights.layers[1].experts[0].gate, row, b);
		for (int k = 0; k < 16; k++)
			error += (double) means[k] * (a[k] - b[k]) * (a[k] - b[k]);
	}
	dsv3_checkpoint_close(source);
	dsv3_checkpoint_close(pack);
	return error;
}

static void
test_packing(void **state)
{
	Fixture fx;
	FixtureTensor *norm;
	Dsv3Importance *importance;
	Dsv3PackSummary summary;
	Dsv3PackOptions options = {.bits = 4, .threads = 1};
	Dsv3Error err;
	char plain[128];
	char weighted[128];
	const float *means;

	(void) state;
	fixture_open(&fx);
	/* columns that differ by far */
	norm = fixture_find(&fx, "model.layers.1.post_attention_layernorm.weight");
	for (int k = 0; k < 16; k++)
	{
		uint16_t bits = dsv3_f32_to_bf16(k % 5 == 0 ? 8.0f : 0.125f);

		memcpy(norm->data + 2 * k, &bits, 2);
	}
	fixture_write(&fx);
	snprintf(plain, sizeof(plain), "%s/plain.dsv3", fx.dir);
	snprintf(weighted, sizeof(weighted), "%s/weighted.dsv3", fx.dir);
	importance = open_for(&fx, N_IDS, -1, 1);
	assert_true(dsv3_pack_write(fx.dir, plain, &options, &summary, &err));
	options.importance = importance;
	assert_true(dsv3_pack_write(fx.dir, weighted, &options, &summary, &err));
	means = dsv3_importance_of(importance, "model.layers.1.mlp.experts.0.gate_proj.weight");
	assert_true(weighted_error(&fx, weighted, means) < 0.9 * weighted_error(&fx, plain, means));
	dsv3_importance_close(importance);
	fixture_close(&fx);
}

static void
test_trouble(void **state)
{
	Dsv3Error err;

	(void) state;
	assert_null(dsv3_importance_open("/nonexistent", ids, 1, -1, 1, &err));
	assert_error(&err, "58P01", "config.json", NULL);
	dsv3_importance_close(NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_first_layer),
		cmocka_unit_test(test_all_matrices),
		cmocka_unit_test(test_packing),
		cmocka_unit_test(test_trouble),
	};

	return cmocka_run_group_tests_name("importance", tests, NULL, NULL);
}
