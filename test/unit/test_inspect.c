/*
 * test_inspect.c
 *	  `dsv3 inspect` run as a program: its JSON, its text, its exit status, and a model larger than memory.
 */
#include "fixture.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <sys/wait.h>

/* Run "dsv3 inspect <arguments>" of the build this test belongs to; output (both streams) in out. Returns the status. */
static int
run_inspect(const char *arguments, char *out, size_t size)
{
	char self[PATH_MAX];
	char command[2 * PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	FILE *pipe;
	size_t used;
	int status;

	assert_true(n > 0);
	self[n] = '\0';
	snprintf(command, sizeof(command), "%s/dsv3 inspect 2>&1 %s", dirname(dirname(self)), arguments);
	pipe = popen(command, "r");
	assert_non_null(pipe);
	used = fread(out, 1, size - 1, pipe);
	out[used] = '\0';
	status = pclose(pipe);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static json_int_t
number(const json_t *root, const char *group, const char *key)
{
	const json_t *value = json_object_get(group ? json_object_get(root, group) : root, key);

	if (!json_is_integer(value))
		fail_msg("no integer %s", key);
	return json_integer_value(value);
}

static void
test_json(void **state)
{
	Fixture fx;
	char arguments[128];
	char out[65536];
	json_t *root;
	json_t *entry;
	size_t i;
	int uses[3] = {0};

	(void) state;
	fixture_open(&fx);
	json_object_set_new(
		fx.config, "rope_scaling",
		json_pack("{s:s, s:f, s:i}", "type", "yarn", "factor", 4.0, "original_max_position_embeddings", 32));
	fixture_fill(&fx, "F8_E4M3", false);
	fixture_layer(&fx, "BF16", 2, false);
	fixture_add(&fx, "stray", "BF16", 1, 3, 0, 0);
	fixture_write(&fx);
	snprintf(arguments, sizeof(arguments), "--json --tensors %s", fx.dir);
	assert_int_equal(run_inspect(arguments, out, sizeof(out)), 0);
	root = json_loads(out, 0, NULL);
	assert_non_null(root);
	assert_string_equal(json_string_value(json_object_get(root, "architecture")), "DeepseekV3ForCausalLM");
	assert_string_equal(json_string_value(json_object_get(root, "weights")), "fp8");
	assert_int_equal(strlen(json_string_value(json_object_get(root, "digest"))), 64);
	assert_true(json_is_null(json_object_get(root, "template")));
	assert_int_equal(number(root, "files", "tensors"), fx.n_tensors);
	assert_int_equal(number(root, "files", "mtp_tensors"), 26);
	assert_int_equal(number(root, "files", "ignored_tensors"), 1);
	assert_int_equal(number(root, "sizes", "n_layers"), 2);
	assert_int_equal(number(root, "experts", "routed"), 4);
	assert_int_equal(number(root, "experts", "groups"), 2);
	assert_string_equal(json_string_value(json_object_get(json_object_get(root, "rope"), "type")), "yarn");
	assert_int_equal(number(root, NULL, "kv_bytes_per_position"), 2 * 12 * 4);
	assert_int_equal(number(root, "memory", "f32"), 4 * number(root, NULL, "params_total"));
	json_array_foreach (json_object_get(root, "tensors"), i, entry)
	{
		const char *use = json_string_value(json_object_get(entry, "use"));

		uses[strcmp(use, "used") == 0 ? 0 : strcmp(use, "mtp") == 0 ? 1 : 2]++;
	}
	assert_int_equal(uses[0], fx.n_tensors - 27);
	assert_int_equal(uses[1], 26);
	assert_int_equal(uses[2], 1);
	json_decref(root);

	assert_int_equal(run_inspect(fx.dir, out, sizeof(out)), 0);
	assert_non_null(strstr(out, "rope           yarn, theta 10000, factor 4"));
	assert_non_null(strstr(out, "1 of 2 groups"));
	assert_non_null(strstr(out, "26 tensors of MTP layers that cannot be used"));
	assert_null(strstr(out, "draft layer"));
	fixture_fill(&fx, "BF16", false);
	fixture_draft(&fx, "BF16");
	fixture_write(&fx);
	assert_int_equal(run_inspect(fx.dir, out, sizeof(out)), 0);
	assert_non_null(strstr(out, "draft layer    8."));
	assert_null(strstr(out, "tensors of MTP layers"));
	fixture_close(&fx);
}

static void
test_status(void **state)
{
	Fixture fx;
	char arguments[128];
	char out[65536];

	(void) state;
	fixture_open(&fx);
	fixture_write(&fx);
	assert_int_equal(run_inspect("", out, sizeof(out)), 2);
	assert_non_null(strstr(out, "model directory"));
	assert_int_equal(run_inspect("a b", out, sizeof(out)), 2);
	assert_int_equal(run_inspect("--wrong x", out, sizeof(out)), 2);
	assert_int_equal(run_inspect("--help", out, sizeof(out)), 0);
	assert_non_null(strstr(out, "Usage: dsv3 inspect"));
	assert_int_equal(run_inspect("/nonexistent", out, sizeof(out)), 1);
	assert_non_null(strstr(out, "config.json"));
	snprintf(arguments, sizeof(arguments), "%s >/dev/full", fx.dir);
	assert_int_equal(run_inspect(arguments, out, sizeof(out)), 1);
	assert_non_null(strstr(out, "could not write"));
	fixture_write_text(fx.dir, "tokenizer.json", "{");
	assert_int_equal(run_inspect(fx.dir, out, sizeof(out)), 1);
	assert_non_null(strstr(out, "tokenizer.json"));
	fixture_remove(&fx, "model.norm.weight");
	fixture_write(&fx);
	assert_int_equal(run_inspect(fx.dir, out, sizeof(out)), 1);
	assert_non_null(strstr(out, "tensor \"model.norm.weight\" is missing"));
	fixture_close(&fx);
}

/* A file of 4 TB that holds nothing: an embedding and an output matrix of 2 TB each, then the rest of a tiny model. */
static void
test_larger_than_memory(void **state)
{
	const int64_t vocab = 1 << 20;
	const int64_t h = 1 << 20;
	Fixture fx;
	char path[128];
	char out[65536];
	json_t *header = json_object();
	json_t *root;
	char *text;
	int64_t offset = 0;
	int fd;

	(void) state;
	fixture_open(&fx);
	json_object_set_new(fx.config, "num_hidden_layers", json_integer(1));
	fixture_fill(&fx, "BF16", false);
	json_object_set_new(fx.config, "vocab_size", json_integer(vocab));
	json_object_set_new(fx.config, "hidden_size", json_integer(h));
	for (int i = 0; i < fx.n_tensors; i++)
	{
		FixtureTensor *t = &fx.tensors[i];
		json_t *shape = json_array();
		int64_t bytes = 2;

		for (int d = 0; d < t->n_dims; d++)
		{
			t->dims[d] = t->dims[d] == 16 ? h : t->dims[d] == 32 ? vocab : t->dims[d];
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
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	if (ftruncate(fd, (off_t) (8 + (int64_t) strlen(text) + offset)) != 0)
	{
		close(fd);
		free(text);
		json_decref(header);
		fixture_close(&fx);
		skip(); /* a file system without files of that size */
	}
	close(fd);
	snprintf(path, sizeof(path), "--json %s", fx.dir);
	assert_int_equal(run_inspect(path, out, sizeof(out)), 0);
	root = json_loads(out, 0, NULL);
	assert_non_null(root);
	assert_true(number(root, "files", "bytes") > (json_int_t) 4 << 40);
	assert_true(number(root, "memory", "f32") > (json_int_t) 8 << 40);
	json_decref(root);
	free(text);
	json_decref(header);
	fixture_close(&fx);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_status),
		cmocka_unit_test(test_larger_than_memory),
	};

	return cmocka_run_group_tests_name("inspect", tests, NULL, NULL);
}
