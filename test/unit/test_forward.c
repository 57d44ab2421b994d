/*
 * test_forward.c
 *	  The model's promise: a position's logits are the same bits whatever the batch, the chunks, the threads, the
 *	  block numbers and the instruction set; the two attention forms agree; bad steps are refused.
 *
 * The model is made by fixture.h with sizes that are multiples of nothing. That the numbers are the right ones is the oracle
 * comparison's business (test/oracle).
 */
#include <math.h>

#include "fixture.h"
#include "kernels/ops.h"
#include "model/model.h"

#define VOCAB    61
#define LENGTH   150
#define N_BLOCKS 24

static Fixture fx;
static int32_t tokens[700];

static void
set_int(const char *key, int value)
{
	json_object_set_new(fx.config, key, json_integer(value));
}

static int
setup(void **state)
{
	(void) state;
	fixture_open(&fx);
	set_int("vocab_size", VOCAB);
	set_int("hidden_size", 42);
	set_int("num_hidden_layers", 3);
	set_int("num_attention_heads", 3);
	set_int("num_key_value_heads", 3);
	set_int("q_lora_rank", 27);
	set_int("kv_lora_rank", 21);
	set_int("qk_nope_head_dim", 11);
	set_int("qk_rope_head_dim", 6);
	set_int("v_head_dim", 9);
	set_int("intermediate_size", 50);
	set_int("moe_intermediate_size", 19);
	set_int("n_routed_experts", 8);
	set_int("num_experts_per_tok", 3);
	set_int("n_group", 4);
	set_int("topk_group", 2);
	set_int("max_position_embeddings", 700);
	json_object_set_new(fx.config, "attention_bias", json_true());
	fixture_fill(&fx, "BF16", false);
	for (int i = 0; i < 700; i++)
		tokens[i] = (int32_t) (fixture_random(&fx.random) % VOCAB);
	fixture_draft(&fx, "BF16");
	fixture_write(&fx);
	return 0;
}

static int
teardown(void **state)
{
	(void) state;
	fixture_close(&fx);
	return 0;
}

static Dsv3Model *
open_with(const Dsv3ModelOptions *options)
{
	Dsv3Error err = {0};
	Dsv3Model *model = dsv3_model_open(fx.dir, options, &err);

	if (!model)
		fail_msg("%s", err.message);
	return model;
}

static Dsv3Model *
open_model(Dsv3WeightMode weights, int threads, const char *isa, bool expanded)
{
	return open_with(
		&(Dsv3ModelOptions){.weights = weights, .threads = threads, .isa = isa, .expanded = expanded});
}

/* Logits of n tokens, chunk at a time, in blocks numbered by order (NULL: 0, 1, ...). */
static float *
run(Dsv3Model *model, int n, int chunk, const int32_t *order)
{
	Dsv3Error err = {0};
	int vocab = dsv3_model_info(model)->vocab_size;
	Dsv3Kv *kv = dsv3_kv_open(model, N_BLOCKS, &err);
	float *logits = malloc((size_t) n * (size_t) vocab * sizeof(float));
	int32_t blocks[N_BLOCKS];

	assert_non_null(kv);
	assert_int_equal(dsv3_kv_blocks(kv), N_BLOCKS);
	for (int i = 0; i < N_BLOCKS; i++)
		blocks[i] = order ? order[i] : i;
	for (int first = 0; first < n; first += chunk)
	{
		Dsv3StepSeq seq = {.tokens = tokens + first,
						   .n_tokens = n - first < chunk ? n - first : chunk,
						   .position = first,
						   .blocks = blocks,
						   .n_blocks = N_BLOCKS,
						   .want = DSV3_WANT_ALL};

		if (!dsv3_model_step(model, kv, &seq, 1, logits + (size_t) first * (size_t) vocab, NULL, &err))
			fail_msg("%s", err.message);
	}
	dsv3_kv_close(kv);
	for (int i = 0; i < n * vocab; i++)
		assert_true(isfinite(logits[i]));
	return logits;
}

static void
assert_bits(const float *expected, const float *got, int n, const char *what, int detail)
{
	for (int i = 0; i < n; i++)
		if (memcmp(expected + i, got + i, sizeof(float)) != 0)
			fail_msg("%s %d: logit %d of position %d is %a, expected %a", what, detail, i % VOCAB, i / VOCAB,
					 (double) got[i], (double) expected[i]);
}

/* Chunks, threads and block numbers, in every mode and both forms. */
static void
test_same_bits(void **state)
{
	static const Dsv3WeightMode modes[] = {DSV3_WEIGHTS_STORED, DSV3_WEIGHTS_F32, DSV3_WEIGHTS_BF16,
										   DSV3_WEIGHTS_INT8, DSV3_WEIGHTS_INT4};
	static const int chunks[] = {1, 7, 31, 32, 33, 100};
	int32_t reversed[N_BLOCKS];

	(void) state;
	for (int i = 0; i < N_BLOCKS; i++)
		reversed[i] = N_BLOCKS - 1 - i;
	for (int m = 0; m < 5; m++)
		for (int form = 0; form < 2; form++)
		{
			Dsv3Model *model = open_model(modes[m], 1, NULL, form);
			float *expected = run(model, LENGTH, LENGTH, NULL);

			for (int c = 0; c < 6; c++)
			{
				float *got = run(model, LENGTH, chunks[c], c % 2 ? reversed : NULL);

				assert_bits(expected, got, LENGTH * VOCAB, "chunk", chunks[c]);
				free(got);
			}
			dsv3_model_close(model);
			for (int threads = 2; threads <= 3; threads++)
			{
				float *got;

				model = open_model(modes[m], threads, NULL, form);
				assert_int_equal(dsv3_model_info(model)->threads, threads);
				got = run(model, LENGTH, 50, NULL);
				assert_bits(expected, got, LENGTH * VOCAB, "threads", threads);
				free(got);
				dsv3_model_close(model);
			}
			for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
			{
				float *got;

				model = open_model(modes[m], 2, (*set)->name, form);
				assert_string_equal(dsv3_model_info(model)->isa, (*set)->name);
				got = run(model, LENGTH, 64, NULL);
				assert_bits(expected, got, LENGTH * VOCAB, (*set)->name, form);
				free(got);
				dsv3_model_close(model);
			}
			free(expected);
		}
}

static double
nmse(const float *a, const float *b, int n)
{
	double error = 0, size = 0;

	for (int i = 0; i < n; i++)
	{
		error += ((double) a[i] - (double) b[i]) * ((double) a[i] - (double) b[i]);
		size += (double) a[i] * (double) a[i];
	}
	return error / size;
}

/* One result in both forms, at every position; and the modes that must and must not differ. */
static void
test_forms_and_modes(void **state)
{
	Dsv3Model *absorbed = open_model(DSV3_WEIGHTS_STORED, 2, NULL, false);
	Dsv3Model *expanded = open_model(DSV3_WEIGHTS_STORED, 2, NULL, true);
	Dsv3Model *widened = open_model(DSV3_WEIGHTS_F32, 2, NULL, false);
	Dsv3Model *packed = open_model(DSV3_WEIGHTS_INT8, 2, NULL, false);
	Dsv3Model *mixed = open_model(DSV3_WEIGHTS_INT4, 2, NULL, false);
	float *a = run(absorbed, LENGTH, LENGTH, NULL), *e = run(expanded, LENGTH, LENGTH, NULL);
	float *w = run(widened, LENGTH, LENGTH, NULL), *p = run(packed, LENGTH, LENGTH, NULL);
	float *q = run(mixed, LENGTH, LENGTH, NULL);

	(void) state;
	for (int i = 0; i < LENGTH; i++)
		assert_true(nmse(a + i * VOCAB, e + i * VOCAB, VOCAB) <= 1e-10);
	assert_true(memcmp(a, e, LENGTH * VOCAB * sizeof(float)) != 0);
	assert_bits(a, w, LENGTH * VOCAB, "widened weights", 0);
	assert_true(nmse(a, p, LENGTH * VOCAB) < 0.01);
	assert_true(nmse(a, p, LENGTH * VOCAB) > 1e-8);
	assert_string_equal(dsv3_model_info(packed)->weights, "int8");
	assert_true(nmse(a, q, LENGTH * VOCAB) < 0.05);
	assert_true(nmse(a, q, LENGTH * VOCAB) > nmse(a, p, LENGTH * VOCAB));
	assert_string_equal(dsv3_model_info(mixed)->weights, "int4");
	free(q);
	dsv3_model_close(mixed);
	free(a);
	free(e);
	free(w);
	free(p);
	dsv3_model_close(absorbed);
	dsv3_model_close(expanded);
	dsv3_model_close(widened);
	dsv3_model_close(packed);
}

/* Cache rows in fewer bits: the same bits in any chunks, threads, blocks and instruction set, not too far from the whole
 * rows' logits, and less memory. */
static void
test_cache_rows(void **state)
{
	static const int chunks[] = {1, 31, 100};
	static const double most[] = {0.0, 0.03, 0.1}; /* of the difference's length to the logits' */
	int32_t reversed[N_BLOCKS];
	Dsv3Model *model = open_model(DSV3_WEIGHTS_STORED, 1, NULL, false);
	float *wide = run(model, LENGTH, LENGTH, NULL);
	size_t bytes = dsv3_kv_block_bytes(model);

	(void) state;
	dsv3_model_close(model);
	for (int i = 0; i < N_BLOCKS; i++)
		reversed[i] = N_BLOCKS - 1 - i;
	for (Dsv3KvType type = DSV3_KV_BF16; type <= DSV3_KV_INT8; type++)
		for (int form = 0; form < 2; form++)
		{
			Dsv3ModelOptions options = {.kv = type, .threads = 1, .expanded = form};
			double far = 0, length = 0;
			float *expected;
			Dsv3KvType same;

			assert_true(dsv3_kv_type(dsv3_kv_type_name(type), &same) && same == type);
			model = open_with(&options);
			assert_true(dsv3_kv_block_bytes(model) < bytes);
			assert_int_equal(dsv3_model_info(model)->kv_bytes_per_position,
							 dsv3_kv_block_bytes(model) / DSV3_KV_BLOCK);
			expected = run(model, LENGTH, LENGTH, NULL);
			for (int i = 0; i < LENGTH * VOCAB; i++)
			{
				far += pow((double) expected[i] - (double) wide[i], 2);
				length += pow((double) wide[i], 2);
			}
			assert_true(far > 0);
			if (sqrt(far / length) > most[type])
				fail_msg("%s rows move logits by %g", dsv3_kv_type_name(type), sqrt(far / length));
			for (int c = 0; c < 3; c++)
			{
				float *got = run(model, LENGTH, chunks[c], c % 2 ? reversed : NULL);

				assert_bits(expected, got, LENGTH * VOCAB, "chunk", chunks[c]);
				free(got);
			}
			dsv3_model_close(model);
			options.threads = 3;
			options.isa = "ref";
			model = open_with(&options);
			for (int c = 0; c < 2; c++)
			{
				float *got = run(model, LENGTH, c ? 50 : LENGTH, NULL);

				assert_bits(expected, got, LENGTH * VOCAB, "reference, chunk", c ? 50 : LENGTH);
				free(got);
			}
			dsv3_model_close(model);
			free(expected);
		}
	free(wide);
}

/* Many sequences of different lengths at different positions in one step, with a shared prefix, against each alone. */
static void
check_ragged(Dsv3WeightMode mode, bool form)
{
	enum
	{
		N = 5
	};
	static const int start[N] = {0, 64, 40, 149, 64}, count[N] = {20, 30, 1, 1, 5};
	Dsv3Model *model = open_model(mode, 2, NULL, form);
	float *expected = run(model, LENGTH, LENGTH, NULL);
	Dsv3Error err = {0};
	Dsv3Kv *kv = dsv3_kv_open(model, N_BLOCKS, &err);
	int32_t blocks[N][6];
	Dsv3StepSeq seqs[N];
	float logits[(20 + 1 + 5) * VOCAB];
	int next = 0;

	assert_non_null(kv);
	for (int i = 0; i < N; i++)
	{
		for (int b = 0; b < 5; b++)
			blocks[i][b] = b * 32 < start[i] + count[i] ? N_BLOCKS - 1 - next++ : -1;
		/* the last has the second's first two blocks, which are full */
		if (i == 4)
			memcpy(blocks[i], blocks[1], 2 * sizeof(int32_t));
		seqs[i] = (Dsv3StepSeq){.tokens = tokens,
								.n_tokens = start[i],
								.blocks = blocks[i],
								.n_blocks = (start[i] + count[i] + 31) / 32,
								.want = DSV3_WANT_NONE};
		if (start[i] > 0 && i != 4 && !dsv3_model_step(model, kv, &seqs[i], 1, NULL, NULL, &err))
			fail_msg("%s", err.message);
		seqs[i].tokens = tokens + start[i];
		seqs[i].position = start[i];
		seqs[i].n_tokens = count[i];
	}
	seqs[0].want = DSV3_WANT_ALL;
	seqs[3].want = DSV3_WANT_LAST;
	seqs[4].want = DSV3_WANT_ALL;
	if (!dsv3_model_step(model, kv, seqs, N, logits, NULL, &err))
		fail_msg("%s", err.message);
	assert_bits(expected, logits, 20 * VOCAB, "sequence", 0);
	assert_bits(expected + 149 * VOCAB, logits + 20 * VOCAB, VOCAB, "sequence", 3);
	assert_bits(expected + 64 * VOCAB, logits + 21 * VOCAB, 5 * VOCAB, "sequence", 4);

	/* the rows written in company serve later steps */
	for (int i = 1; i < 3; i++)
	{
		seqs[i].position = start[i] + count[i] - 1;
		seqs[i].tokens = tokens + seqs[i].position;
		seqs[i].n_tokens = 1;
		seqs[i].want = DSV3_WANT_LAST;
		if (!dsv3_model_step(model, kv, &seqs[i], 1, logits, NULL, &err))
			fail_msg("%s", err.message);
		assert_bits(expected + seqs[i].position * VOCAB, logits, VOCAB, "later step of sequence", i);
	}
	free(expected);
	dsv3_kv_close(kv);
	dsv3_model_close(model);
}

static void
test_ragged(void **state)
{
	(void) state;
	check_ragged(DSV3_WEIGHTS_STORED, false);
	check_ragged(DSV3_WEIGHTS_STORED, true);
	check_ragged(DSV3_WEIGHTS_INT8, false);
	check_ragged(DSV3_WEIGHTS_INT4, false);
}

/* Picked logits are those of whole rows, which may be neighbours and in another batch. */
static void
check_picked(Dsv3WeightMode weights, int threads, const char *isa)
{
	enum
	{
		ROWS = 200
	};
	Dsv3Model *model = open_model(weights, threads, isa, false);
	Dsv3Error err = {0};
	Dsv3Kv *kv = dsv3_kv_open(model, N_BLOCKS, &err);
	int32_t blocks[N_BLOCKS];
	static int32_t ids[ROWS][VOCAB];
	static float some[ROWS][VOCAB];
	static float whole[ROWS * VOCAB];
	static float rest[ROWS * VOCAB];
	Dsv3Picked picked[ROWS];
	Dsv3StepSeq seq = {
		.tokens = tokens, .n_tokens = ROWS + 20, .blocks = blocks, .n_blocks = 7, .want = ROWS};
	const float *next = rest;

	assert_non_null(kv);
	for (int i = 0; i < N_BLOCKS; i++)
		blocks[i] = i;
	if (!dsv3_model_step(model, kv, &seq, 1, whole, NULL, &err))
		fail_msg("%s", err.message);
	for (int row = 0; row < ROWS; row++)
	{
		picked[row] = (Dsv3Picked){.ids = ids[row], .logits = some[row]};
		/* none: the whole row; one; some; all */
		for (int id = 0; id < VOCAB && row % 5 != 0; id++)
		{
			if (row % 5 == 4 || (row % 5 == 1 ? id == row % VOCAB : fixture_random(&fx.random) % 8 == 0))
				ids[row][picked[row].n++] = id;
		}
	}
	seq.picked = picked;
	if (!dsv3_model_step(model, kv, &seq, 1, rest, NULL, &err))
		fail_msg("%s", err.message);
	for (int row = 0; row < ROWS; row++)
	{
		for (int i = 0; i < picked[row].n; i++)
			assert_bits(whole + row * VOCAB + ids[row][i], &some[row][i], 1, "picked in row", row);
		if (picked[row].n == 0)
		{
			assert_bits(whole + row * VOCAB, next, VOCAB, "whole row", row);
			next += VOCAB;
		}
	}
	dsv3_kv_close(kv);
	dsv3_model_close(model);
}

static void
test_picked(void **state)
{
	(void) state;
	check_picked(DSV3_WEIGHTS_STORED, 2, NULL);
	check_picked(DSV3_WEIGHTS_F32, 1, "ref");
	check_picked(DSV3_WEIGHTS_INT8, 3, NULL);
	check_picked(DSV3_WEIGHTS_INT8, 1, "ref");
	check_picked(DSV3_WEIGHTS_INT4, 3, NULL);
}

/* More rows than one batch takes. */
static void
test_long_step(void **state)
{
	Dsv3Model *model = open_model(DSV3_WEIGHTS_STORED, 2, NULL, false);
	float *expected = run(model, 700, 100, NULL);
	float *got = run(model, 700, 700, NULL);

	(void) state;
	assert_bits(expected, got, 700 * VOCAB, "one step of", 700);
	free(expected);
	free(got);
	dsv3_model_close(model);
}

static void
assert_refused(Dsv3Model *model, Dsv3Kv *kv, const Dsv3StepSeq *seqs, int n, const char *text)
{
	Dsv3Error err = {0};

	assert_false(dsv3_model_step(model, kv, seqs, n, NULL, NULL, &err));
	assert_error(&err, DSV3_ERR_INVALID_PARAMETER, text, NULL);
}

static void
test_bad_steps(void **state)
{
	Dsv3Model *model = open_model(DSV3_WEIGHTS_STORED, 1, NULL, false);
	Dsv3Error err = {0};
	Dsv3Kv *kv = dsv3_kv_open(model, 4, &err);
	int32_t blocks[32] = {0, 1, 2, 3};
	int32_t bad_token[2] = {5, VOCAB};
	const Dsv3StepSeq good = {
		.tokens = tokens, .n_tokens = 2, .position = 3, .blocks = blocks, .n_blocks = 1};
	Dsv3StepSeq seqs[2] = {good, good};

	(void) state;
	assert_non_null(kv);
	seqs[0].n_tokens = 0;
	assert_refused(model, kv, seqs, 1, "no tokens");
	seqs[0] = good;
	seqs[0].tokens = bad_token;
	assert_refused(model, kv, seqs, 1, "token id 61");
	bad_token[1] = -1;
	assert_refused(model, kv, seqs, 1, "token id -1");
	seqs[0] = good;
	seqs[0].position = -1;
	assert_refused(model, kv, seqs, 1, "outside the context");
	seqs[0].position = INT32_MAX;
	assert_refused(model, kv, seqs, 1, "outside the context");
	seqs[0].position = 699;
	assert_refused(model, kv, seqs, 1, "outside the context");
	seqs[0].position = 31;
	assert_refused(model, kv, seqs, 1, "needs 2");
	seqs[0].n_blocks = 2;
	blocks[1] = 4;
	assert_refused(model, kv, seqs, 1, "block 4");
	blocks[1] = -1;
	assert_refused(model, kv, seqs, 1, "block -1");
	seqs[0] = good;
	seqs[0].picked = &(Dsv3Picked){.ids = (int32_t[]){3, 3}, .n = 2};
	seqs[0].want = DSV3_WANT_LAST;
	assert_refused(model, kv, seqs, 1, "picked id 3");
	seqs[0].picked = &(Dsv3Picked){.ids = (int32_t[]){3, VOCAB}, .n = 2};
	assert_refused(model, kv, seqs, 1, "picked id 61");
	seqs[0].picked = &(Dsv3Picked){.ids = (int32_t[]){-1}, .n = 1};
	assert_refused(model, kv, seqs, 1, "picked id -1");
	seqs[0] = good;
	seqs[0].position = 31;
	seqs[0].n_blocks = 2;
	/* the same block twice in one table, and in two tables */
	blocks[1] = 0;
	assert_refused(model, kv, seqs, 1, "second time");
	seqs[0] = good;
	assert_refused(model, kv, seqs, 2, "second time");
	blocks[1] = 1;
	seqs[1].blocks = blocks;
	seqs[1].n_blocks = 2;
	seqs[1].position = 32;
	assert_refused(model, kv, seqs, 2, "second time");
	/* and the table of writers is clean again */
	assert_true(dsv3_model_step(model, kv, &good, 1, NULL, NULL, &err));
	assert_true(dsv3_model_step(model, kv, NULL, 0, NULL, NULL, &err));
	assert_null(dsv3_kv_open(model, 0, &err));
	assert_error(&err, DSV3_ERR_INVALID_PARAMETER, "block", NULL);
	dsv3_kv_close(kv);
	dsv3_kv_close(NULL);
	dsv3_model_close(model);
}

static void
test_bad_options(void **state)
{
	Dsv3ModelOptions options = {.isa = "mmx"};
	Dsv3Error err = {0};

	(void) state;
	assert_null(dsv3_model_open(fx.dir, &options, &err));
	assert_error(&err, DSV3_ERR_INVALID_PARAMETER, "mmx", NULL);
	options = (Dsv3ModelOptions){.threads = -1};
	assert_null(dsv3_model_open(fx.dir, &options, &err));
	assert_error(&err, DSV3_ERR_INVALID_PARAMETER, "threads", NULL);
	options = (Dsv3ModelOptions){.threads = 1};
	assert_null(dsv3_model_open("/nonexistent", &options, &err));
	assert_error(&err, DSV3_ERR_NO_FILE, "/nonexistent", NULL);
}

/* A stopped step says so, and what was in the cache before still serves. */
static void
test_abort(void **state)
{
	Dsv3Model *model = open_model(DSV3_WEIGHTS_STORED, 2, NULL, false);
	float *expected = run(model, 80, 80, NULL);
	Dsv3Error err = {0};
	Dsv3Kv *kv = dsv3_kv_open(model, 3, &err);
	int32_t blocks[3] = {2, 0, 1};
	atomic_bool stop = true;
	float logits[VOCAB];
	Dsv3StepSeq seq = {.tokens = tokens, .n_tokens = 70, .blocks = blocks, .n_blocks = 3};

	(void) state;
	assert_true(dsv3_model_step(model, kv, &seq, 1, NULL, NULL, &err));
	seq = (Dsv3StepSeq){.tokens = tokens + 70,
						.n_tokens = 10,
						.position = 70,
						.blocks = blocks,
						.n_blocks = 3,
						.want = DSV3_WANT_LAST};
	assert_false(dsv3_model_step(model, kv, &seq, 1, logits, &stop, &err));
	assert_error(&err, DSV3_ERR_CANCELLED, "cancel", NULL);
	atomic_store(&stop, false);
	assert_true(dsv3_model_step(model, kv, &seq, 1, logits, &stop, &err));
	assert_bits(expected + 79 * VOCAB, logits, VOCAB, "after an abort", 0);
	free(expected);
	dsv3_kv_close(kv);
	dsv3_model_close(model);
}

static void
test_info_and_counts(void **state)
{
	Dsv3Model *model = open_model(DSV3_WEIGHTS_STORED, 1, NULL, false);
	const Dsv3ModelInfo *info = dsv3_model_info(model);
	const atomic_uint_least64_t *counts = dsv3_model_expert_counts(model);

	(void) state;
	free(run(model, LENGTH, 40, NULL));
	assert_string_equal(info->architecture, "DeepseekV3ForCausalLM");
	assert_string_equal(info->weights, "bf16");
	assert_int_equal(info->vocab_size, VOCAB);
	assert_int_equal(info->n_layers, 3);
	assert_int_equal(info->kv_bytes_per_position, 3 * (21 + 6) * 4);
	assert_int_equal(dsv3_kv_block_bytes(model), 32 * 3 * (21 + 6) * 4);
	assert_int_equal(strlen(info->digest), 64);
	for (int layer = 0; layer < 3; layer++)
	{
		uint64_t sum = 0;

		for (int e = 0; e < 8; e++)
			sum += atomic_load(&counts[layer * 8 + e]);
		assert_int_equal(sum, layer == 0 ? 0 : LENGTH * 3);
	}
	dsv3_model_close(model);
}

/* So many heads that a batch's absorbed queries go through attention in several passes. */
static void
test_attention_passes(void **state)
{
	Fixture saved = fx;
	Dsv3Model *model;
	float *expected, *got;

	(void) state;
	fixture_open(&fx);
	set_int("num_hidden_layers", 1);
	set_int("vocab_size", VOCAB);
	set_int("num_attention_heads", 128);
	set_int("num_key_value_heads", 128);
	set_int("kv_lora_rank", 600);
	set_int("qk_nope_head_dim", 2);
	set_int("qk_rope_head_dim", 2);
	set_int("v_head_dim", 2);
	set_int("max_position_embeddings", 200);
	fixture_fill(&fx, "F8_E4M3", false);
	fixture_write(&fx);
	model = open_model(DSV3_WEIGHTS_STORED, 2, NULL, false);
	expected = run(model, 130, 130, NULL);
	got = run(model, 130, 16, NULL);
	assert_bits(expected, got, 130 * VOCAB, "chunk", 16);
	free(expected);
	free(got);
	dsv3_model_close(model);
	fixture_close(&fx);
	fx = saved;
}

/* One step. */
static void
step(Dsv3Model *model, Dsv3Kv *kv, const int32_t *blocks, const int32_t *ids, int position, int n,
	 float *logits)
{
	Dsv3Error err = {0};
	Dsv3StepSeq seq = {.tokens = ids,
					   .n_tokens = n,
					   .position = position,
					   .blocks = blocks,
					   .n_blocks = N_BLOCKS,
					   .want = DSV3_WANT_ALL};

	if (!dsv3_model_step(model, kv, &seq, 1, logits, NULL, &err))
		fail_msg("%s", err.message);
}

/* The draft layer's scores at n positions from `position` on, of which the first follows row 0 of the step before. */
static void
draft(Dsv3Model *model, Dsv3Kv *kv, const int32_t *blocks, int position, int n, float *logits)
{
	Dsv3Error err = {0};
	Dsv3StepSeq seqs[LENGTH];
	int rows[LENGTH];

	for (int i = 0; i < n; i++)
	{
		rows[i] = i;
		seqs[i] = (Dsv3StepSeq){.tokens = tokens + position + i,
								.n_tokens = 1,
								.position = position + i,
								.blocks = blocks,
								.n_blocks = N_BLOCKS,
								.want = DSV3_WANT_LAST};
	}
	if (!dsv3_model_draft(model, kv, seqs, rows, n, logits, &err))
		fail_msg("%s", err.message);
}

/* Drafts at positions 1 to n, steps of chunk tokens before them; the steps' logits must be those of the model alone. */
static float *
run_drafts(Dsv3Model *model, int n, int chunk, const float *plain)
{
	Dsv3Error err = {0};
	Dsv3Kv *kv = dsv3_kv_open(model, N_BLOCKS, &err);
	float *logits = malloc((size_t) n * VOCAB * sizeof(float));
	float *drafts = malloc((size_t) n * VOCAB * sizeof(float));
	int32_t blocks[N_BLOCKS];

	assert_non_null(kv);
	for (int i = 0; i < N_BLOCKS; i++)
		blocks[i] = i;
	for (int first = 0; first < n; first += chunk)
	{
		int count = n - first < chunk ? n - first : chunk;

		step(model, kv, blocks, tokens + first, first, count, logits + (size_t) first * VOCAB);
		draft(model, kv, blocks, first + 1, count, drafts + (size_t) first * VOCAB);
	}
	assert_bits(plain, logits, n * VOCAB, "steps with a draft layer, chunk", chunk);
	dsv3_kv_close(kv);
	free(logits);
	return drafts;
}

/* Drafts do not depend on chunks, threads and instruction sets either, and the model does not know of them. */
static void
test_drafts(void **state)
{
	static const Dsv3WeightMode modes[] = {DSV3_WEIGHTS_STORED, DSV3_WEIGHTS_INT8, DSV3_WEIGHTS_INT4};
	static const int chunks[] = {1, 31, 32, 33};

	(void) state;
	for (int m = 0; m < 3; m++)
		for (int form = 0; form < 2; form++)
		{
			Dsv3ModelOptions options = {.weights = modes[m], .threads = 1, .expanded = form, .drafts = true};
			Dsv3Model *model = open_model(modes[m], 2, NULL, form);
			float *plain = run(model, LENGTH, LENGTH, NULL);
			float *expected, *got;

			assert_false(dsv3_model_info(model)->drafts);
			dsv3_model_close(model);
			model = open_with(&options);
			assert_true(dsv3_model_info(model)->drafts);
			expected = run_drafts(model, LENGTH, LENGTH, plain);
			for (int i = 0; i < LENGTH * VOCAB; i++)
				assert_true(isfinite(expected[i]));
			for (int c = 0; c < 4; c++)
			{
				got = run_drafts(model, LENGTH, chunks[c], plain);
				assert_bits(expected, got, LENGTH * VOCAB, "drafts in chunks of", chunks[c]);
				free(got);
			}
			dsv3_model_close(model);
			for (const Dsv3Ops *const *set = dsv3_ops_all(); *set; set++)
			{
				options.isa = (*set)->name;
				options.threads = 3;
				model = open_with(&options);
				got = run_drafts(model, LENGTH, 64, plain);
				assert_bits(expected, got, LENGTH * VOCAB, (*set)->name, form);
				free(got);
				dsv3_model_close(model);
			}
			options.draft_before_norm = true;
			model = open_with(&options);
			got = run_drafts(model, LENGTH, 64, plain);
			assert_true(nmse(expected, got, LENGTH * VOCAB) > 1e-6);
			free(got);
			dsv3_model_close(model);
			free(expected);
			free(plain);
		}
}

/* A draft is computed along and refused: the next ones are as if it had not been. Positions in the middle of a block and at its
 * ends. */
static void
test_refused_drafts(void **state)
{
	static const int positions[] = {40, 62, 63, 64};
	static float plain[LENGTH * VOCAB], expected[LENGTH * VOCAB], got[2 * VOCAB];
	Dsv3Model *model =
		open_with(&(Dsv3ModelOptions){.weights = DSV3_WEIGHTS_INT8, .threads = 2, .drafts = true});
	Dsv3Error err = {0};
	int32_t blocks[N_BLOCKS];

	(void) state;
	for (int i = 0; i < N_BLOCKS; i++)
		blocks[i] = i;
	for (int i = 0; i < 4; i++)
	{
		int at = positions[i];
		int32_t ids[2] = {tokens[at], (tokens[at + 1] + 1) % VOCAB};
		Dsv3Kv *kv = dsv3_kv_open(model, N_BLOCKS, &err);

		assert_non_null(kv);
		step(model, kv, blocks, tokens, 0, LENGTH, plain);
		draft(model, kv, blocks, 1, LENGTH - 1, expected);
		dsv3_kv_close(kv);
		kv = dsv3_kv_open(model, N_BLOCKS, &err);
		assert_non_null(kv);
		step(model, kv, blocks, tokens, 0, at, plain);
		step(model, kv, blocks, ids, at, 2, plain);
		draft(model, kv, blocks, at + 1, 1, got);
		assert_bits(expected + at * VOCAB, got, VOCAB, "a draft beside a refused one at", at);
		step(model, kv, blocks, tokens + at + 1, at + 1, 1, plain);
		draft(model, kv, blocks, at + 2, 1, got);
		assert_bits(expected + (at + 1) * VOCAB, got, VOCAB, "a draft behind a refused one at", at);

		/* Where nobody drafted behind the refused one the state is lost, and a draft only worse. */
		step(model, kv, blocks, ids, at, 2, plain);
		step(model, kv, blocks, tokens + at + 1, at + 1, 1, plain);
		draft(model, kv, blocks, at + 2, 1, got);
		for (int k = 0; k < VOCAB; k++)
			assert_true(isfinite(got[k]));
		dsv3_kv_close(kv);
	}
	dsv3_model_close(model);
}

static void
test_bad_drafts(void **state)
{
	Dsv3Model *model = open_with(&(Dsv3ModelOptions){.threads = 1, .drafts = true});
	Dsv3Model *plain = open_model(DSV3_WEIGHTS_STORED, 1, NULL, false);
	Dsv3Error err = {0};
	Dsv3Kv *kv = dsv3_kv_open(model, N_BLOCKS, &err);
	Dsv3Kv *plain_kv = dsv3_kv_open(plain, N_BLOCKS, &err);
	int32_t blocks[N_BLOCKS] = {0, 1, 2};
	float logits[4 * VOCAB];
	Dsv3StepSeq seq = {
		.tokens = tokens, .n_tokens = 1, .position = 4, .blocks = blocks, .n_blocks = 1, .want = 1};
	int row = 4;

	(void) state;
	assert_true(dsv3_kv_block_bytes(model) > dsv3_kv_block_bytes(plain));
	step(model, kv, blocks, tokens, 0, 4, logits);
	assert_false(dsv3_model_draft(model, kv, &seq, &row, 1, logits, &err)); /* there are rows 0 to 3 */
	assert_string_equal(err.sqlstate, "22023");
	row = 3;
	assert_true(dsv3_model_draft(model, kv, &seq, &row, 1, logits, &err));
	seq.position = 0;
	assert_false(dsv3_model_draft(model, kv, &seq, &row, 1, logits, &err));
	seq.position = 32; /* outside its blocks */
	assert_false(dsv3_model_draft(model, kv, &seq, &row, 1, logits, &err));
	seq.position = 4;
	assert_false(dsv3_model_draft(plain, plain_kv, &seq, &row, 1, logits, &err));
	assert_non_null(strstr(err.message, "no draft layer"));
	dsv3_kv_close(kv);
	dsv3_kv_close(plain_kv);
	dsv3_model_close(model);
	dsv3_model_close(plain);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_bits),       cmocka_unit_test(test_forms_and_modes),
		cmocka_unit_test(test_cache_rows),      cmocka_unit_test(test_ragged),
		cmocka_unit_test(test_picked),          cmocka_unit_test(test_long_step),
		cmocka_unit_test(test_bad_steps),       cmocka_unit_test(test_bad_options),
		cmocka_unit_test(test_abort),           cmocka_unit_test(test_drafts),
		cmocka_unit_test(test_refused_drafts),  cmocka_unit_test(test_bad_drafts),
		cmocka_unit_test(test_info_and_counts), cmocka_unit_test(test_attention_passes),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
