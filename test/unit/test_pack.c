/*
 * test_pack.c
 *	  Making packs of models and opening them: the numbers are the source's, an interrupted run gives the same bytes, memory
 *	  stays small, and what cannot be is refused.
 */
#include "fixture.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "kernels/quant.h"
#include "model/checkpoint.h"
#include "model/convert.h"
#include "model/model.h"
#include "model/pack.h"
#include "model/pack_write.h"
#include "model/safetensors.h"
#include "model/weights.h"

/* Where the fixture's pack goes. */
static const char *
out_path(const Fixture *fx, const char *suffix)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/out.dsv3%s", fx->dir, suffix);
	return path;
}

static Dsv3PackSummary
pack_with(const Fixture *fx, const Dsv3PackOptions *options)
{
	Dsv3PackSummary summary;
	Dsv3Error err;

	if (!dsv3_pack_write(fx->dir, out_path(fx, ""), options, &summary, &err))
		fail_msg("%s: %s %s", err.sqlstate, err.message, err.detail);
	return summary;
}

static Dsv3PackSummary
pack_bits(const Fixture *fx, int bits)
{
	return pack_with(fx, &(Dsv3PackOptions){.bits = bits, .force = true});
}

static Dsv3Checkpoint *
open_at(const char *path)
{
	Dsv3CheckpointOptions options = {.weights = DSV3_WEIGHTS_STORED};
	Dsv3Error err;
	Dsv3Checkpoint *cp = dsv3_checkpoint_open(path, &options, &err);

	if (cp == NULL)
		fail_msg("%s: %s %s", err.sqlstate, err.message, err.detail);
	return cp;
}

static unsigned char *
read_whole(const char *path, size_t *len)
{
	FILE *file = fopen(path, "rb");
	unsigned char *bytes;
	struct stat st;

	assert_non_null(file);
	assert_int_equal(fstat(fileno(file), &st), 0);
	*len = (size_t) st.st_size;
	bytes = malloc(*len + 1);
	assert_non_null(bytes);
	assert_int_equal(fread(bytes, 1, *len, file), *len);
	fclose(file);
	return bytes;
}

static void
assert_same_file(const char *path, const unsigned char *expected, size_t expected_len)
{
	size_t len;
	unsigned char *bytes = read_whole(path, &len);

	assert_int_equal(len, expected_len);
	assert_memory_equal(bytes, expected, len);
	free(bytes);
}

/* -- the numbers -- */

typedef struct Pair
{
	Dsv3Weight matrices[256];
	int n;
	const Dsv3Weight *expected; /* NULL while the source's are collected */
	int packed;                 /* panels seen */
} Pair;

static void
compare_matrix(void *context, Dsv3MatrixRole role, Dsv3Weight *w)
{
	Pair *pair = context;
	const Dsv3Weight *stored = &pair->expected[pair->n++];

	assert_int_equal(w->out, stored->out);
	assert_int_equal(w->in, stored->in);
	if (dsv3_type_is_packed(w->type))
	{
		size_t bytes = dsv3_packed_bytes(w->type, w->out, w->in);
		void *panels = aligned_alloc(64, bytes);

		assert_true(dsv3_pack_rows(w->type, stored, 0, stored->out, NULL, panels));
		assert_memory_equal(panels, w->data, bytes);
		free(panels);
		pair->packed++;
		assert_int_not_equal(role, DSV3_MATRIX_EMBED);
		assert_int_not_equal(role, DSV3_MATRIX_KV_B);
		return;
	}
	for (int32_t row = 0; row < w->out; row++)
	{
		for (int32_t first = 0; first < w->in; first += 128)
		{
			int32_t n = w->in - first < 128 ? w->in - first : 128;
			float a[128];
			float b[128];

			dsv3_weight_columns(w, row, first, n, a);
			dsv3_weight_columns(stored, row, first, n, b);
			for (int32_t i = 0; i < n; i++)
			{
				if (w->type == DSV3_TYPE_BF16)
				{
					uint32_t bits = (uint32_t) dsv3_f32_to_bf16(b[i]) << 16;

					memcpy(&b[i], &bits, 4);
				}
				if (a[i] != b[i])
					fail_msg("role %d [%d, %d] is %a, expected %a", (int) role, row, first + i, (double) a[i],
							 (double) b[i]);
			}
		}
	}
}

static void
collect_matrix(void *context, Dsv3MatrixRole role, Dsv3Weight *w)
{
	Pair *pair = context;

	(void) role;
	pair->matrices[pair->n++] = *w;
}

static void
compare_vectors(const Dsv3Checkpoint *a, const Dsv3Checkpoint *b)
{
	const Dsv3Config *c = &a->config;
	size_t h = (size_t) c->hidden_size * sizeof(float);

	assert_memory_equal(a->weights.final_norm, b->weights.final_norm, h);
	for (int i = 0; i < c->n_layers; i++)
	{
		const Dsv3LayerWeights *x = &a->weights.layers[i];
		const Dsv3LayerWeights *y = &b->weights.layers[i];

		assert_memory_equal(x->input_norm, y->input_norm, h);
		assert_memory_equal(x->post_attention_norm, y->post_attention_norm, h);
		assert_memory_equal(x->kv_a_norm, y->kv_a_norm, (size_t) c->kv_lora_rank * sizeof(float));
		if (c->q_lora_rank > 0)
			assert_memory_equal(x->q_a_norm, y->q_a_norm, (size_t) c->q_lora_rank * sizeof(float));
		if (c->attention_bias)
			assert_memory_equal(x->o_bias, y->o_bias, h);
		if (!x->moe)
			continue;
		assert_memory_equal(x->router, y->router, (size_t) c->n_routed_experts * h);
		assert_memory_equal(x->router_bias, y->router_bias, (size_t) c->n_routed_experts * sizeof(float));
	}
}

/* The pack of the fixture has the fixture's numbers; returns how many matrices are in panels. */
static int
check_numbers(const Fixture *fx)
{
	Dsv3Checkpoint *source = open_at(fx->dir);
	Dsv3Checkpoint *pack = open_at(out_path(fx, ""));
	Pair stored = {0};
	Pair packed = {0};

	dsv3_weights_visit(&source->weights, &source->config, collect_matrix, &stored);
	packed.expected = stored.matrices;
	dsv3_weights_visit(&pack->weights, &pack->config, compare_matrix, &packed);
	assert_int_equal(packed.n, stored.n);
	compare_vectors(source, pack);
	assert_string_not_equal(source->info.digest, pack->info.digest);
	assert_int_equal(pack->info.arena_bytes, 0);
	assert_int_equal(pack->info.params_total, source->info.params_total);
	if (pack->config.tie_word_embeddings && pack->weights.head.data != pack->weights.embed.data)
	{
		packed.expected = &source->weights.head;
		packed.n = 0;
		compare_matrix(&packed, DSV3_MATRIX_HEAD, &pack->weights.head);
	}
	dsv3_checkpoint_close(source);
	dsv3_checkpoint_close(pack);
	return packed.packed;
}

/* Every way a checkpoint can be stored, in every form of pack. */
static void
test_numbers(void **state)
{
	static const char *const dtypes[] = {"BF16", "F32", "F16", "F8_E4M3"};
	Fixture fx;

	(void) state;
	fixture_open(&fx);
	/* more rows than a slice and more columns than a group */
	json_object_set_new(fx.config, "hidden_size", json_integer(136));
	json_object_set_new(fx.config, "intermediate_size", json_integer(300));
	for (int fused = 0; fused < 2; fused++)
	{
		for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++)
		{
			/* 1: numbers at odd addresses */
			for (int variant = 0; variant < 2; variant++)
			{
				json_object_set_new(fx.config, "tie_word_embeddings", json_boolean(variant));
				json_object_set_new(fx.config, "attention_bias", json_boolean(variant));
				json_object_set_new(fx.config, "moe_intermediate_size", json_integer(fused ? 128 : 12));
				fixture_fill(&fx, dtypes[d], fused);
				if (fused && strcmp(dtypes[d], "F8_E4M3") == 0)
				{
					fixture_add(&fx, "model.layers.1.mlp.experts.gate_up_proj_scale_inv", "F32", 3, 4, 2, 2);
					fixture_add(&fx, "model.layers.1.mlp.experts.down_proj_scale_inv", "F32", 3, 4, 2, 1);
				}
				fixture_write_padded(&fx, variant);
				pack_bits(&fx, 16);
				assert_int_equal(check_numbers(&fx), 0);
				pack_bits(&fx, 8);
				/* per layer 4 of attention, 3 dense or 15 of experts, and the output matrix */
				assert_int_equal(check_numbers(&fx), 2 * 4 + 3 + 15 + 1);
				pack_bits(&fx, 4);
				assert_int_equal(check_numbers(&fx), 2 * 4 + 3 + 15 + 1);
				pack_with(&fx, &(Dsv3PackOptions){.bits = 8,
												  .rules = &(Dsv3PackRule){"*", DSV3_FORM_STORED},
												  .n_rules = 1,
												  .force = true});
				assert_int_equal(check_numbers(&fx), 0);
			}
		}
	}
	fixture_close(&fx);
}

/* The wrapped model of Kimi-K2.5: its pack has the names of a plain one. */
static void
test_nested(void **state)
{
	Fixture fx;
	Dsv3Checkpoint *cp;
	json_t *text;

	(void) state;
	fixture_open(&fx);
	for (int i = 0; i < fx.n_tensors; i++)
	{
		char name[160];

		snprintf(name, sizeof(name), "language_model.%.140s", fx.tensors[i].name);
		strcpy(fx.tensors[i].name, name);
	}
	text = fx.config;
	json_object_del(text, "architectures");
	json_object_set_new(text, "model_type", json_string("deepseek_v3"));
	fx.config = json_pack("{s:[s], s:s, s:o}", "architectures", "KimiK25ForConditionalGeneration",
						  "model_type", "kimi_k25", "text_config", text);
	fixture_write(&fx);
	pack_bits(&fx, 8);
	check_numbers(&fx);
	cp = open_at(out_path(&fx, ""));
	assert_non_null(dsv3_tensors_find(cp->files, "model.embed_tokens.weight"));
	assert_non_null(dsv3_tensors_find(cp->files, "lm_head.weight"));
	assert_non_null(dsv3_tensors_find(cp->files, "model.layers.1.mlp.experts.3.down_proj.weight"));
	dsv3_checkpoint_close(cp);
	fixture_close(&fx);
}

/* Logits of a few tokens. */
static void
logits_of(const char *path, Dsv3WeightMode mode, float *logits)
{
	const int32_t tokens[] = {1, 5, 3, 17, 30, 2};
	const int32_t blocks[] = {0};
	Dsv3StepSeq seq = {
		.tokens = tokens, .n_tokens = 6, .blocks = blocks, .n_blocks = 1, .want = DSV3_WANT_ALL};
	Dsv3ModelOptions options = {.weights = mode, .threads = 1};
	Dsv3Error err;
	Dsv3Model *model = dsv3_model_open(path, &options, &err);
	Dsv3Kv *kv;

	if (model == NULL)
		fail_msg("%s: %s", err.sqlstate, err.message);
	assert_string_equal(dsv3_model_info(model)->weights, mode == DSV3_WEIGHTS_BF16 ? "bf16" : "int8");
	kv = dsv3_kv_open(model, 1, &err);
	assert_non_null(kv);
	assert_true(dsv3_model_step(model, kv, &seq, 1, logits, NULL, &err));
	dsv3_kv_close(kv);
	dsv3_model_close(model);
}

/* A pack computes what the weight mode of the same name computes from the directory, bit for bit. */
static void
test_logits(void **state)
{
	Fixture fx;
	float a[6 * 32];
	float b[6 * 32];

	(void) state;
	fixture_open(&fx);
	fixture_write(&fx);
	pack_bits(&fx, 8);
	logits_of(fx.dir, DSV3_WEIGHTS_INT8, a);
	logits_of(out_path(&fx, ""), DSV3_WEIGHTS_STORED, b);
	assert_memory_equal(a, b, sizeof(a));
	fixture_close(&fx);
}

/* -- rules -- */

static void
refuse_rules(const Fixture *fx, const char *pattern, Dsv3PackForm form, const char *text)
{
	Dsv3PackRule rule = {pattern, form};
	Dsv3PackOptions options = {.bits = 8, .rules = &rule, .n_rules = 1, .force = true};
	Dsv3PackSummary summary;
	Dsv3Error err;

	assert_false(dsv3_pack_write(fx->dir, out_path(fx, ""), &options, &summary, &err));
	assert_error(&err, "22023", text, NULL);
}

static void
test_rules(void **state)
{
	const Dsv3PackRule rules[] = {{"*.experts.*", DSV3_FORM_BF16},
								  {"*.experts.2.*", DSV3_FORM_F32},
								  {"lm_head.weight", DSV3_FORM_STORED}};
	Fixture fx;
	Dsv3Checkpoint *cp;

	(void) state;
	fixture_open(&fx);
	fixture_write(&fx);
	pack_with(&fx, &(Dsv3PackOptions){.bits = 8, .rules = rules, .n_rules = 3});
	check_numbers(&fx);
	cp = open_at(out_path(&fx, ""));
	assert_int_equal(cp->weights.layers[1].experts[1].up.type, DSV3_TYPE_BF16);
	assert_int_equal(cp->weights.layers[1].experts[2].up.type, DSV3_TYPE_F32);
	assert_int_equal(cp->weights.layers[1].shared.up.type, DSV3_TYPE_INT8);
	assert_int_equal(cp->weights.head.type, DSV3_TYPE_BF16);
	assert_string_equal(cp->info.weights, "int8+bf16+f32");
	dsv3_checkpoint_close(cp);
	refuse_rules(&fx, "*.nothing.*", DSV3_FORM_BF16, "no matrix has a name like \"*.nothing.*\"");
	refuse_rules(&fx, "*embed*", DSV3_FORM_INT8, "\"model.embed_tokens.weight\" cannot be packed as int8");
	refuse_rules(&fx, "*.kv_b_proj.*", DSV3_FORM_INT8, "kv_b_proj.weight\" cannot be packed as int8");
	fixture_close(&fx);
}

/* -- stopping and going on -- */

typedef struct Stop
{
	int after; /* calls until the process ends */
	int calls;
	int64_t found;
} Stop;

static void
on_progress(void *context, const Dsv3PackProgress *p)
{
	Stop *stop = context;

	stop->found = p->bytes_found;
	if (++stop->calls == stop->after)
		kill(getpid(), SIGKILL);
}

/* Run in a process of its own, killed after so many batches; returns how many it made, or 0 when it was killed. */
static int
run_until(const Fixture *fx, const Dsv3PackOptions *options, int after)
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
	{
		Stop stop = {.after = after};
		Dsv3PackOptions mine = *options;
		Dsv3PackSummary summary;

		mine.progress = on_progress;
		mine.progress_context = &stop;
		_exit(dsv3_pack_write(fx->dir, out_path(fx, ""), &mine, &summary, NULL) ? stop.calls : 100);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status))
		return 0;
	assert_int_not_equal(WEXITSTATUS(status), 100);
	return WEXITSTATUS(status);
}

/* A model whose embedding takes more than two batches and the rest another. */
static void
large_model(Fixture *fx)
{
	fixture_open(fx);
	json_object_set_new(fx->config, "vocab_size", json_integer(36000));
	json_object_set_new(fx->config, "tie_word_embeddings", json_true());
	json_object_set_new(fx->config, "hidden_size", json_integer(256));
	fixture_fill(fx, "BF16", false);
	fixture_write(fx);
}

static void
test_resume(void **state)
{
	Dsv3PackOptions options = {.bits = 8};
	Fixture fx;
	unsigned char *expected;
	size_t len;
	int batches;

	(void) state;
	large_model(&fx);
	batches = run_until(&fx, &options, 0);
	assert_true(batches >= 3);
	expected = read_whole(out_path(&fx, ""), &len);
	for (int after = 1; after <= batches; after++)
	{
		unlink(out_path(&fx, ""));
		assert_int_equal(run_until(&fx, &options, after), 0);
		assert_int_equal(access(out_path(&fx, ""), F_OK), -1);
		assert_int_equal(access(out_path(&fx, ".partial"), F_OK), 0);
		assert_true(run_until(&fx, &options, 0) <= batches);
		assert_same_file(out_path(&fx, ""), expected, len);
		assert_int_equal(access(out_path(&fx, ".partial"), F_OK), -1);
		assert_int_equal(access(out_path(&fx, ".journal"), F_OK), -1);
	}
	/* stopped again and again */
	unlink(out_path(&fx, ""));
	for (int i = 0; i < batches + 2 && access(out_path(&fx, ""), F_OK) != 0; i++)
		run_until(&fx, &options, 2);
	run_until(&fx, &(Dsv3PackOptions){.bits = 8, .force = true}, 0);
	assert_same_file(out_path(&fx, ""), expected, len);
	free(expected);
	fixture_close(&fx);
}

/* What is left of an earlier run is not believed: neither bytes that changed nor lines that are damaged. */
static void
test_resume_damaged(void **state)
{
	Dsv3PackOptions options = {.bits = 8};
	Fixture fx;
	unsigned char *expected;
	unsigned char *partial;
	unsigned char *journal;
	size_t len;
	size_t partial_len;
	size_t journal_len;
	Dsv3Pack pack;
	Dsv3Error err;
	int n = 0;

	(void) state;
	large_model(&fx);
	n = run_until(&fx, &options, 0);
	expected = read_whole(out_path(&fx, ""), &len);
	unlink(out_path(&fx, ""));
	assert_int_equal(run_until(&fx, &options, n), 0); /* all is there but the directory */
	partial = read_whole(out_path(&fx, ".partial"), &partial_len);
	journal = read_whole(out_path(&fx, ".journal"), &journal_len);
	n = 0;
	for (size_t i = 0; i < journal_len; i++)
		n += journal[i] == '\n';
	assert_true(n > 20);
	for (int damage = 0; damage < 5; damage++)
	{
		Stop stop = {0};
		Dsv3PackSummary summary;
		size_t journal_now = journal_len;

		memcpy(partial, expected, partial_len < len ? partial_len : len);
		memset(partial, 0, 4096);
		if (damage == 0)
			journal_now = journal_len - 30; /* in the middle of a line */
		else if (damage == 1)
			partial[4096] ^= 1; /* the first piece */
		else if (damage == 2)
			memset(partial, 0x55, partial_len); /* all of it */
		else if (damage == 3)
			journal[25] ^= 1; /* of another plan */
		else
			memcpy(journal + journal_len / 2, "\n99999999 zz\n-1 0\n", 18);
		unlink(out_path(&fx, ""));
		fixture_write_file(fx.dir, "out.dsv3.partial", partial, partial_len);
		fixture_write_file(fx.dir, "out.dsv3.journal", journal, journal_now);
		options.progress = on_progress;
		options.progress_context = &stop;
		if (!dsv3_pack_write(fx.dir, out_path(&fx, ""), &options, &summary, &err))
			fail_msg("%s", err.message);
		assert_same_file(out_path(&fx, ""), expected, len);
		if (damage == 0 || damage == 1)
			assert_int_equal(summary.n_found, n - 2);
		if (damage == 2 || damage == 3)
			assert_int_equal(summary.n_found, 0);
		journal[25] ^= damage == 3;
	}
	assert_true(dsv3_pack_open(&pack, out_path(&fx, ""), &err));
	assert_true(dsv3_pack_verify(&pack, out_path(&fx, ""), &err));
	dsv3_pack_close(&pack);

	/* other options start anew, in the same place */
	fixture_write_file(fx.dir, "out.dsv3.partial", partial, partial_len);
	fixture_write_file(fx.dir, "out.dsv3.journal", journal, journal_len);
	assert_int_equal(pack_with(&fx, &(Dsv3PackOptions){.bits = 16, .force = true}).n_found, 0);
	check_numbers(&fx);
	free(expected);
	free(partial);
	free(journal);
	fixture_close(&fx);
}

/* -- trouble -- */

static void
refuse(const char *model, const char *out, bool force, const char *sqlstate, const char *text)
{
	Dsv3PackOptions options = {.bits = 8, .force = force};
	Dsv3PackSummary summary;
	Dsv3Error err;

	assert_false(dsv3_pack_write(model, out, &options, &summary, &err));
	assert_error(&err, sqlstate, text, NULL);
}

static void
test_trouble(void **state)
{
	Fixture fx;
	const uint16_t nan = 0x7fc0;
	FixtureTensor *t;
	unsigned char *bytes;
	size_t len;
	char missing[128];
	int fd;

	(void) state;
	fixture_open(&fx);
	fixture_write(&fx);
	pack_bits(&fx, 8);
	refuse(fx.dir, out_path(&fx, ""), false, "55000", "exists already");
	refuse(fx.dir, fx.dir, true, "55000", "is a directory");
	snprintf(missing, sizeof(missing), "%s/no/out.dsv3", fx.dir);
	refuse(fx.dir, missing, false, "58P01", "could not create file");
	refuse("/nonexistent", out_path(&fx, "2"), false, "58P01", "config.json");
	bytes = read_whole(out_path(&fx, ""), &len);
	fixture_write_file(fx.dir, "other.dsv3", bytes, len);
	snprintf(missing, sizeof(missing), "%s/other.dsv3", fx.dir);
	refuse(missing, out_path(&fx, "2"), false, "22023", "is a file, not a model directory");

	/* somebody else writes it */
	fd = open(out_path(&fx, ".partial"), O_RDWR | O_CREAT, 0600);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	refuse(fx.dir, out_path(&fx, ""), true, "55000", "another dsv3 is writing");
	close(fd);
	unlink(out_path(&fx, ".partial"));

	/* a number in a matrix; what was there stays */
	t = fixture_find(&fx, "model.layers.1.mlp.experts.2.up_proj.weight");
	memcpy(t->data + 2 * (5 * 16 + 7), &nan, 2);
	fixture_write(&fx);
	refuse(
		fx.dir, out_path(&fx, ""), true, "XX001",
		"tensor \"model.layers.1.mlp.experts.2.up_proj.weight\" has a number that is not finite at [5, 7]");
	assert_same_file(out_path(&fx, ""), bytes, len);
	fixture_remove(&fx, "model.norm.weight");
	fixture_write(&fx);
	refuse(fx.dir, out_path(&fx, ""), true, "XX001", "model.norm.weight");
	free(bytes);
	fixture_close(&fx);
}

/* No room: a limit on the size of files stands for a full disk. */
static void
test_no_space(void **state)
{
	Fixture fx;
	pid_t pid;
	int status;

	(void) state;
	fixture_open(&fx);
	fixture_write(&fx);
	pid = fork();
	if (pid == 0)
	{
		struct rlimit limit = {20000, 20000};
		Dsv3PackOptions options = {.bits = 8};
		Dsv3PackSummary summary;
		Dsv3Error err;

		signal(SIGXFSZ, SIG_IGN);
		setrlimit(RLIMIT_FSIZE, &limit);
		_exit(!dsv3_pack_write(fx.dir, out_path(&fx, ""), &options, &summary, &err) &&
					  strstr(err.message, "could not write file") && access(out_path(&fx, ""), F_OK) != 0
				  ? 0
				  : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	pack_bits(&fx, 8);
	check_numbers(&fx);
	fixture_close(&fx);
}

/* A model of 300 MB, most of it two matrices that lie on no disk: packing it takes memory for some rows. */
static void
test_memory(void **state)
{
	const int64_t vocab = 2 << 20;
	Fixture fx;
	json_t *header = json_object();
	char path[128];
	char program[PATH_MAX] = "";
	char *text;
	int64_t offset = 0;
	pid_t pid;
	int status;
	struct rusage usage;

	(void) state;
	fixture_open(&fx);
	json_object_set_new(fx.config, "num_hidden_layers", json_integer(1));
	json_object_set_new(fx.config, "hidden_size", json_integer(36));
	fixture_fill(&fx, "BF16", false);
	json_object_set_new(fx.config, "vocab_size", json_integer(vocab));
	for (int i = 0; i < fx.n_tensors; i++)
	{
		FixtureTensor *t = &fx.tensors[i];
		json_t *shape = json_array();
		int64_t bytes = 2;

		for (int d = 0; d < t->n_dims; d++)
		{
			t->dims[d] = t->dims[d] == 32 ? vocab : t->dims[d];
			json_array_append_new(shape, json_integer(t->dims[d]));
			bytes *= t->dims[d];
		}
		json_object_set_new(header, t->name,
							json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", shape,
									  "data_offsets", (json_int_t) offset, (json_int_t) (offset + bytes)));
		offset += bytes;
	}
	text = json_dumps(header, JSON_COMPACT);
	fixture_write_config(&fx);
	fixture_write_raw(fx.dir, "model.safetensors", text, 0);
	snprintf(path, sizeof(path), "%s/model.safetensors", fx.dir);
	assert_int_equal(truncate(path, (off_t) (8 + (int64_t) strlen(text) + offset)), 0);
	assert_true(offset > 250 << 20);
	assert_true(readlink("/proc/self/exe", program, sizeof(program) - 8) > 0);
	snprintf(strstr(program, "/unit/"), 8, "/dsv3");
	pid = fork();
	if (pid == 0)
	{
		freopen("/dev/null", "w", stdout);
#ifndef __SANITIZE_ADDRESS__ /* whose shadow counts */
		setrlimit(RLIMIT_DATA, &(struct rlimit){64 << 20, 64 << 20});
#endif
		execl(program, program, "pack", "--bits", "8", "--threads", "2", fx.dir, out_path(&fx, ""),
			  (char *) NULL);
		_exit(127);
	}
	assert_int_equal(wait4(pid, &status, 0, &usage), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	if (usage.ru_maxrss > 64 * 1024)
		fail_msg("packing took %ld kB of memory", usage.ru_maxrss);
	free(text);
	json_decref(header);
	fixture_close(&fx);
}

/* -- hostile packs -- */

/* Change an entry of the pack's directory and write it again with good checksums. */
static void
forge(const Fixture *fx, const unsigned char *good, size_t len, const char *name, int type, int64_t dim0)
{
	unsigned char *bytes = malloc(len + 4096);
	Dsv3Pack pack;
	Dsv3PackPiece *pieces;
	unsigned char *directory;
	size_t directory_len;
	int64_t place;
	Dsv3Error err;
	bool found = false;

	assert_non_null(bytes);
	assert_true(dsv3_pack_parse(&pack, "x", good, (int64_t) len, &err));
	pieces = pack.pieces;
	for (int i = 0; i < pack.n_pieces; i++)
	{
		if (strcmp(pieces[i].name, name) != 0)
			continue;
		found = true;
		if (type > 0)
			pieces[i].type = type;
		if (dim0 > 0)
			pieces[i].dims[0] = dim0;
		if (type == 0)
			pieces[i].name = "something.else";
		if (type < 0)
			pieces[i].name = pieces[i - 1].name;
	}
	assert_true(found);
	place = dsv3_pack_align(pieces[pack.n_pieces - 1].offset + pieces[pack.n_pieces - 1].bytes);
	directory = dsv3_pack_directory(pieces, pack.n_pieces, &directory_len, &err);
	assert_non_null(directory);
	memcpy(bytes, good, (size_t) place);
	memcpy(bytes + place, directory, directory_len);
	assert_true(dsv3_pack_header(bytes, place, directory, directory_len, &err));
	fixture_write_file(fx->dir, "out.dsv3", bytes, (size_t) place + directory_len);
	free(directory);
	dsv3_pack_clear(&pack);
	free(bytes);
}

static void
refuse_pack(const Fixture *fx, const char *sqlstate, const char *text)
{
	for (int check = 0; check < 2; check++)
	{
		Dsv3CheckpointOptions options = {.check_only = check == 1};
		Dsv3Error err;

		memset(&err, 0, sizeof(err));
		if (dsv3_checkpoint_open(out_path(fx, ""), &options, &err))
			fail_msg("accepted; expected \"%s\"", text);
		assert_error(&err, sqlstate, text, NULL);
	}
}

static void
test_hostile(void **state)
{
	Fixture fx;
	unsigned char *good;
	size_t len;
	Dsv3CheckpointOptions options = {.weights = DSV3_WEIGHTS_F32};
	Dsv3Error err;

	(void) state;
	fixture_open(&fx);
	fixture_write(&fx);
	pack_bits(&fx, 8);
	good = read_whole(out_path(&fx, ""), &len);
	forge(&fx, good, len, "lm_head.weight", DSV3_PACK_INT8, 0);
	dsv3_checkpoint_close(open_at(out_path(&fx, ""))); /* a forged copy of the same is the same */
	forge(&fx, good, len, "lm_head.weight", DSV3_PACK_F32, 0);
	refuse_pack(&fx, "XX001", "of type f32 and shape [32, 16] does not fit in its");
	forge(&fx, good, len, "lm_head.weight", 77, 0);
	refuse_pack(&fx, "0A000", "has type 77");
	forge(&fx, good, len, "lm_head.weight", DSV3_PACK_INT8, 48);
	refuse_pack(&fx, "XX001", "does not fit");
	forge(&fx, good, len, "lm_head.weight", DSV3_PACK_INT8, 17); /* as many panels */
	refuse_pack(&fx, "XX001", "has shape [17, 16], but config.json makes it [32, 16]");
	forge(&fx, good, len, "lm_head.weight", DSV3_PACK_INT8, (int64_t) 1 << 40);
	refuse_pack(&fx, "XX001", "does not fit");
	forge(&fx, good, len, "model.norm.weight", DSV3_PACK_FILE, 0);
	refuse_pack(&fx, "XX001", "\"model.norm.weight\" is missing");
	forge(&fx, good, len, "lm_head.weight", 0, 0);
	refuse_pack(&fx, "XX001", "\"lm_head.weight\" is missing");
	forge(&fx, good, len, "model.layers.1.mlp.experts.2.up_proj.weight", -1, 0);
	refuse_pack(&fx, "XX001", "is there twice");
	forge(&fx, good, len, "config.json", DSV3_PACK_F32, 0);
	refuse_pack(&fx, "58P01", "config.json");

	fixture_write_file(fx.dir, "out.dsv3", good, len);
	assert_null(dsv3_checkpoint_open(out_path(&fx, ""), &options, &err));
	assert_error(&err, "22023", "a pack cannot be opened with weights as f32", NULL);
	free(good);
	fixture_close(&fx);
}

/* Panels for a matrix whose rows are read one by one: the size is right and the digests are, but nothing reads rows of panels. */
static void
test_hostile_panels(void **state)
{
	static const char *const names[] = {"model.embed_tokens.weight",
										"model.layers.0.self_attn.kv_b_proj.weight"};
	Fixture fx;
	unsigned char *good;
	size_t len;

	(void) state;
	fixture_open(&fx);
	fixture_write(&fx);
	pack_bits(&fx, 8);
	good = read_whole(out_path(&fx, ""), &len);
	for (int i = 0; i < 2; i++)
	{
		Dsv3Pack pack;
		Dsv3PackPiece *embed = NULL;
		unsigned char *bytes = malloc(len + 8192);
		unsigned char *directory;
		size_t directory_len;
		int64_t at = DSV3_PACK_PAGE;
		Dsv3Error err;

		assert_non_null(bytes);
		memcpy(bytes, good, len);
		assert_true(dsv3_pack_parse(&pack, "x", good, (int64_t) len, &err));
		/* the same pieces with new places: only one is of another size */
		for (int p = 0; p < pack.n_pieces; p++)
		{
			Dsv3PackPiece *piece = &pack.pieces[p];
			int64_t from = piece->offset;

			if (strcmp(piece->name, names[i]) == 0)
			{
				embed = piece;
				piece->type = DSV3_PACK_INT8;
				piece->bytes = dsv3_pack_tensor_bytes(DSV3_PACK_INT8, 2, piece->dims);
			}
			piece->offset = at;
			memcpy(bytes + at, good + from, (size_t) piece->bytes);
			at = dsv3_pack_align(at + piece->bytes);
		}
		assert_non_null(embed);
		directory = dsv3_pack_directory(pack.pieces, pack.n_pieces, &directory_len, &err);
		memcpy(bytes + at, directory, directory_len);
		assert_true(dsv3_pack_header(bytes, at, directory, directory_len, &err));
		fixture_write_file(fx.dir, "out.dsv3", bytes, (size_t) at + directory_len);
		refuse_pack(&fx, "0A000", "has dtype int8, which is not supported here");
		free(directory);
		dsv3_pack_clear(&pack);
		free(bytes);
	}
	free(good);
	fixture_close(&fx);
}

/* A draft layer is packed along, and drafts from the pack are those from the model in the same types. */
static void
test_draft_layer(void **state)
{
	Dsv3ModelOptions options = {.threads = 1, .drafts = true};
	float drafts[2][32], logits[3 * 32];
	int32_t ids[4] = {5, 9, 2, 7};
	int32_t block = 0;
	Fixture fx;

	(void) state;
	fixture_open(&fx);
	fixture_fill(&fx, "BF16", false);
	fixture_draft(&fx, "BF16");
	fixture_write(&fx);
	pack_bits(&fx, 4);
	for (int packed = 0; packed < 2; packed++)
	{
		Dsv3StepSeq seq = {.tokens = ids, .n_tokens = 3, .blocks = &block, .n_blocks = 1, .want = 1};
		Dsv3Error err = {0};
		Dsv3Model *model;
		Dsv3Kv *kv;
		int row = 0;

		options.weights = packed ? DSV3_WEIGHTS_STORED : DSV3_WEIGHTS_INT4;
		model = dsv3_model_open(packed ? out_path(&fx, "") : fx.dir, &options, &err);
		assert_non_null(model);
		assert_true(dsv3_model_info(model)->drafts);
		kv = dsv3_kv_open(model, 1, &err);
		assert_true(dsv3_model_step(model, kv, &seq, 1, logits, NULL, &err));
		seq = (Dsv3StepSeq){
			.tokens = ids + 3, .n_tokens = 1, .position = 3, .blocks = &block, .n_blocks = 1, .want = 1};
		assert_true(dsv3_model_draft(model, kv, &seq, &row, 1, drafts[packed], &err));
		dsv3_kv_close(kv);
		dsv3_model_close(model);
	}
	assert_memory_equal(drafts[0], drafts[1], sizeof(drafts[0]));
	fixture_close(&fx);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		/* first: a child's peak counts what its parent had */
		cmocka_unit_test(test_memory),         cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_nested),         cmocka_unit_test(test_logits),
		cmocka_unit_test(test_rules),          cmocka_unit_test(test_resume),
		cmocka_unit_test(test_resume_damaged), cmocka_unit_test(test_trouble),
		cmocka_unit_test(test_no_space),       cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_hostile_panels), cmocka_unit_test(test_draft_layer),
	};

	return cmocka_run_group_tests_name("pack", tests, NULL, NULL);
}
