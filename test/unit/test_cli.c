/*
 * test_cli.c
 *	  `dsv3 generate`, `logits`, `bench` and `perplexity` as a user runs them: exit status, what goes to stdout and what to stderr, the
 *	  .npy file, and that no option which must not change the result does.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <math.h>
#include <sys/wait.h>

#include "fixture.h"
#include "text_fixture.h"

static char program[4096];
static const char *stdout_to; /* instead of a file, whose content is then out */
static Fixture fx;
static char out[8192];
static char err[8192];

static void
read_back(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY);
	ssize_t n;

	assert_true(fd >= 0);
	n = read(fd, buf, size - 1);
	assert_true(n >= 0);
	buf[n] = '\0';
	close(fd);
}

/* Run dsv3 with a NULL-ended list of arguments, "MODEL" standing for the model directory; fills out and err. */
static int
dsv3(const char *first, ...)
{
	char *args[32] = {program, (char *) first};
	char out_path[128], err_path[128];
	int n = 2, status;
	va_list ap;
	pid_t pid;

	va_start(ap, first);
	while ((args[n] = va_arg(ap, char *)) != NULL)
	{
		if (strcmp(args[n], "MODEL") == 0)
			args[n] = fx.dir;
		n++;
	}
	va_end(ap);
	snprintf(out_path, sizeof(out_path), "%s/out", fx.dir);
	snprintf(err_path, sizeof(err_path), "%s/err", fx.dir);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
	{
		int o = open(stdout_to ? stdout_to : out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600),
			e = open(err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

		dup2(o, 1);
		dup2(e, 2);
		execv(program, args);
		_exit(127);
	}
	while (waitpid(pid, &status, 0) < 0)
		assert_int_equal(errno, EINTR);
	assert_true(WIFEXITED(status));
	read_back(out_path, out, sizeof(out));
	read_back(err_path, err, sizeof(err));
	return WEXITSTATUS(status);
}

#define assert_contains(text, part)                                                                          \
	do                                                                                                       \
	{                                                                                                        \
		if (!strstr(text, part))                                                                             \
			fail_msg("\"%s\" is not in \"%s\"", part, text);                                                 \
	} while (0)

static void
test_help(void **state)
{
	static const char *const commands[] = {"logits", "bench", "perplexity"};

	(void) state;
	for (int i = 0; i < 3; i++)
	{
		assert_int_equal(dsv3(commands[i], "--help", NULL), 0);
		assert_contains(out, "Usage: dsv3");
		assert_contains(out, "--weights");
		assert_string_equal(err, "");
		assert_int_equal(dsv3(commands[i], "--nonsense", NULL), 2);
		assert_contains(err, "--help");
		assert_string_equal(out, "");
		assert_int_equal(dsv3(commands[i], NULL), 2);
		assert_int_equal(dsv3(commands[i], "MODEL", "--weights", "fp3", NULL), 2);
		assert_contains(err, "fp3");
		assert_int_equal(dsv3(commands[i], "MODEL", "--kv-cache", "int3", NULL), 2);
		assert_contains(err, "int3");
		assert_int_equal(dsv3(commands[i], "MODEL", "--threads", "two", NULL), 2);
		assert_int_equal(dsv3(commands[i], "a", "b", "c", NULL), 2);
	}
}

static void
test_generate(void **state)
{
	(void) state;
	assert_int_equal(dsv3("generate", "test:", "--prompt", "abc", NULL), 0);
	assert_string_equal(out, "ABC\n");
	assert_int_equal(dsv3("generate", "test:", "--prompt", "a", "--seed", "9223372036854775807", NULL), 0);
	assert_int_equal(dsv3("generate", "test:", "--prompt", "a", "--seed", "9223372036854775808", NULL), 2);
	assert_contains(err, "--seed");
}

/* An answer that a full disk swallowed is not a success, whatever prints it. */
static void
test_full_disk(void **state)
{
	(void) state;
	stdout_to = "/dev/full";
	assert_int_equal(dsv3("generate", "test:", "--prompt", "abc", NULL), 1);
	assert_contains(err, "could not write to standard output");
	assert_int_equal(dsv3("generate", "test:", "--prompt", "abc", "--json", NULL), 1);
	assert_int_equal(dsv3("inspect", "MODEL", NULL), 1);
	assert_int_equal(dsv3("--help", NULL), 1);
	assert_int_equal(dsv3("--version", NULL), 1);
	assert_int_equal(dsv3("generate", "--nonsense", NULL), 2);
	stdout_to = NULL;
}

static void
test_logits_usage(void **state)
{
	(void) state;
	assert_int_equal(dsv3("logits", "MODEL", "--out", "x", NULL), 2);
	assert_int_equal(dsv3("logits", "MODEL", "--ids", "1", NULL), 2);
	assert_int_equal(dsv3("logits", "MODEL", "--ids", "1,x", "--out", "x", NULL), 2);
	assert_contains(err, "1,x");
	assert_int_equal(dsv3("logits", "MODEL", "--ids", "1,", "--out", "x", NULL), 2);
	assert_int_equal(dsv3("logits", "MODEL", "--ids", ",1", "--out", "x", NULL), 2);
	assert_int_equal(dsv3("logits", "MODEL", "--ids", "1,,2", "--out", "x", NULL), 2);
	assert_contains(err, "1,,2");
	assert_int_equal(dsv3("logits", "MODEL", "--ids", "-1", "--out", "x", NULL), 2);
	assert_int_equal(dsv3("logits", "MODEL", "--ids", "", "--out", "x", NULL), 2);
	assert_int_equal(dsv3("logits", "MODEL", "--ids", "99999999999", "--out", "x", NULL), 2);
	assert_int_equal(dsv3("logits", "MODEL", "--ids", "1,2", "--positions", "1,0", "--out", "x", NULL), 2);
	assert_int_equal(dsv3("logits", "MODEL", "--ids", "1,2", "--positions", "2", "--out", "x", NULL), 2);
	assert_int_equal(dsv3("logits", "MODEL", "--ids", "1", "--out", "x", "--chunk", "0", NULL), 2);
	assert_int_equal(dsv3("logits", "MODEL", "--ids", "1", "--out", "/nonexistent/x", NULL), 1);
	assert_contains(err, "/nonexistent/x");
	assert_int_equal(dsv3("logits", "MODEL", "--ids", "1,32", "--out", "-", NULL), 1);
	assert_contains(err, "token id 32");
	assert_contains(err, "hint:");
	assert_int_equal(dsv3("logits", "MODEL", "--ids", "1", "--out", "-", "--isa", "mmx", NULL), 1);
	assert_int_equal(dsv3("logits", "/nonexistent", "--ids", "1", "--out", "-", NULL), 1);
	assert_contains(err, "/nonexistent");
	assert_int_equal(dsv3("logits", "MODEL", "--ids-file", "/nonexistent", "--out", "-", NULL), 1);
}

/* A .npy file of rows x 32 floats; the data, malloc'd. */
static float *
read_npy(const char *path, int rows)
{
	FILE *file = fopen(path, "rb");
	char header[129] = {0}, shape[64];
	float *data = malloc((size_t) rows * 32 * sizeof(float));

	assert_non_null(file);
	assert_int_equal(fread(header, 1, 128, file), 128);
	assert_memory_equal(header, "\x93NUMPY\x01\x00\x76\x00", 10);
	snprintf(shape, sizeof(shape), "'shape': (%d, 32)", rows);
	assert_contains(header + 10, shape);
	assert_contains(header + 10, "'<f4'");
	assert_int_equal(header[127], '\n');
	assert_int_equal(fread(data, sizeof(float), (size_t) rows * 32, file), rows * 32);
	assert_int_equal(fgetc(file), EOF);
	fclose(file);
	return data;
}

static void
test_logits(void **state)
{
	char path[128], ids[128];
	float *all, *some, *form;

	(void) state;
	snprintf(path, sizeof(path), "%s/x.npy", fx.dir);
	snprintf(ids, sizeof(ids), "%s/ids", fx.dir);
	fixture_write_text(fx.dir, "ids", "3 1\n4,1, 5\n9 2 6\n5 3 5\n");
	assert_int_equal(dsv3("logits", "MODEL", "--ids-file", ids, "--out", path, NULL), 0);
	assert_string_equal(err, "");
	all = read_npy(path, 11);
	for (int i = 0; i < 11 * 32; i++)
		assert_true(isfinite(all[i]));

	assert_int_equal(dsv3("logits", "MODEL", "--ids", "3,1,4,1,5,9,2,6,5,3,5", "--out", path, "--chunk", "3",
						  "--threads", "3", "--isa", "ref", "--positions", "0,4,10", NULL),
					 0);
	some = read_npy(path, 3);
	assert_memory_equal(some, all, 32 * sizeof(float));
	assert_memory_equal(some + 32, all + 4 * 32, 32 * sizeof(float));
	assert_memory_equal(some + 64, all + 10 * 32, 32 * sizeof(float));

	assert_int_equal(dsv3("logits", "MODEL", "--ids-file", ids, "--out", path, "--expanded", NULL), 0);
	form = read_npy(path, 11);
	for (int i = 0; i < 11 * 32; i++)
		assert_true(fabsf(form[i] - all[i]) <= 1e-4f * (1 + fabsf(all[i])));
	free(all);
	free(some);
	free(form);

	assert_int_equal(dsv3("logits", "MODEL", "--ids", "1", "--out", "-", "--weights", "int8", NULL), 0);
	assert_memory_equal(out, "\x93NUMPY", 6);
}

static void
test_bench(void **state)
{
	(void) state;
	assert_int_equal(dsv3("bench", "MODEL", "--rounds", "0", NULL), 2);
	assert_int_equal(dsv3("bench", "MODEL", "--seconds", "fast", NULL), 2);
	assert_int_equal(dsv3("bench", "MODEL", "--prompt", "500", NULL), 1);
	assert_contains(err, "128 positions");
	assert_int_equal(
		dsv3("bench", "MODEL", "--prompt", "8", "--rounds", "2", "--seconds", "0.01", "--json", NULL), 0);
	assert_contains(out, "\"decode_share_of_bandwidth\": ");
	assert_int_equal(dsv3("bench", "MODEL", "--prompt", "8", "--rounds", "1", "--seconds", "0.01", NULL), 0);
	assert_contains(out, "% of the bandwidth");

	assert_int_equal(dsv3("bench", "MODEL", "--batch", "0", NULL), 2);
	assert_int_equal(dsv3("bench", "MODEL", "--batch", "1,1000", NULL), 2);
	assert_int_equal(dsv3("bench", "test:context=128", "--batch", "2", "--prompt", "120", NULL), 1);
	assert_contains(err, "128 positions");
	assert_int_equal(dsv3("bench", "test:context=128", "--batch", "1,3", "--prompt", "8", "--rounds", "2",
						  "--seconds", "0.01", NULL),
					 0);
	assert_contains(out, "against 1");
	assert_int_equal(dsv3("bench", "test:context=128", "--batch", "5", "--prompt", "8", "--rounds", "1",
						  "--seconds", "0.01", "--json", NULL),
					 0);
	assert_contains(out, "{\"batch\": 5, \"tokens_per_second\": ");
	assert_int_equal(dsv3("bench", "MODEL", "--speculative", NULL), 1);
	assert_contains(err, "no draft layer");
	assert_int_equal(dsv3("bench", "MODEL", "--speculative", "--draft-input", "x", NULL), 2);
	if (access("build/draft-model/config.json", R_OK) != 0)
	{
		/* In continuous integration it has to be there. */
		assert_null(getenv("CI"));
		return;
	}
	assert_int_equal(dsv3("bench", "build/draft-model", "--speculative", "--prompt", "8", "--rounds", "2",
						  "--seconds", "0.01", "--json", NULL),
					 0);
	assert_contains(out, "\"tokens_per_step\": 1.");
}

static void
test_bench_kernels(void **state)
{
	(void) state;
	assert_int_equal(dsv3("bench", "kernels", "--help", NULL), 0);
	assert_contains(out, "Usage: dsv3 bench kernels");
	assert_int_equal(dsv3("bench", "kernels", "--type", "int5", NULL), 2);
	assert_int_equal(dsv3("bench", "kernels", "--in", "100", NULL), 2);
	assert_int_equal(dsv3("bench", "kernels", "--isa", "sse9", NULL), 1);
	assert_int_equal(
		dsv3("bench", "kernels", "--type", "int4", "--in", "128", "--seconds", "0.01", "--json", NULL), 0);
	assert_contains(out, "\"operations_per_cycle\": {\"int4\": {\"1\": ");
	assert_contains(out, "\"int4_bytes_per_second\": ");
	assert_int_equal(dsv3("bench", "kernels", "--type", "bf16", "--in", "128", "--seconds", "0.01", NULL), 0);
	assert_contains(out, "by rows:");
}

/* Random mixes of requests on the test model, on a checkpoint, and on a model whose logits depend on the batch, which must be
 * found out. */
static void
test_bench_determinism(void **state)
{
	(void) state;
	assert_int_equal(dsv3("bench", "determinism", "--help", NULL), 0);
	assert_contains(out, "Usage: dsv3 bench determinism");
	assert_int_equal(dsv3("bench", "determinism", NULL), 2);
	assert_int_equal(dsv3("bench", "determinism", "test:", "--mixes", "0", NULL), 2);
	assert_int_equal(dsv3("bench", "determinism", "test:", "--seed", "x", NULL), 2);
	assert_int_equal(dsv3("bench", "determinism", "test:open_error=no", NULL), 1);
	assert_int_equal(dsv3("bench", "determinism", "test:", "--mixes", "60", "--seed", "2", NULL), 0);
	assert_contains(out, " 0 different");
	/* A mix that restarts, preempts, or reads from disk nowhere would show little. */
	assert_null(strstr(out, " 0 restarts"));
	assert_null(strstr(out, " 0 preemptions"));
	assert_null(strstr(out, " 0 requests cancelled"));
	assert_null(strstr(out, "\n0 prompt tokens"));
	assert_null(strstr(out, " 0 blocks read"));
	assert_int_equal(dsv3("bench", "determinism", "test:wobble=1", "--mixes", "10", NULL), 1);
	assert_contains(out, "the log-probabilities of request");
	if (access("build/tiny-model/config.json", R_OK) != 0)
	{
		assert_null(getenv("CI"));
		print_message("no build/tiny-model: make tiny-model\n");
		skip();
	}
	assert_int_equal(dsv3("bench", "determinism", "build/tiny-model", "--mixes", "16", NULL), 0);
	assert_contains(out, " 0 different");
	assert_int_equal(dsv3("bench", "determinism", "build/tiny-model", "--weights", "int4", "--kv-cache",
						  "int8", "--mixes", "8", NULL),
					 0);
	assert_contains(out, " 0 different");
	assert_int_equal(
		dsv3("bench", "determinism", "build/tiny-model", "--kv-cache", "bf16", "--mixes", "8", NULL), 0);
	assert_contains(out, " 0 different");
}

/* Against the logits of the same ids, and pieces that do not see each other. */
static void
test_perplexity(void **state)
{
	static const char *const merges[] = {NULL};
	const char *text = "abcab";
	Fixture saved = fx;
	char file[128], path[128];
	char *json;
	float *logits;
	double nll = 0, value, divergence, other;
	char expected[64];
	FILE *npy;

	(void) state;
	fixture_open(&fx);
	json_object_set_new(fx.config, "vocab_size", json_integer(256));
	fixture_fill(&fx, "BF16", false);
	fixture_write(&fx);
	json = make_tokenizer_json(GPT2_SPLIT, merges, "[]");
	fixture_write_text(fx.dir, "tokenizer.json", json);
	free(json);
	fixture_write_text(fx.dir, "text", text);
	fixture_write_text(fx.dir, "one", "a");
	snprintf(file, sizeof(file), "%s/text", fx.dir);
	snprintf(path, sizeof(path), "%s/x.npy", fx.dir);

	assert_int_equal(dsv3("logits", "MODEL", "--ids", "97,98,99,97,98", "--out", path, NULL), 0);
	logits = malloc(5 * 256 * sizeof(float));
	npy = fopen(path, "rb");
	assert_non_null(npy);
	assert_int_equal(fseek(npy, 128, SEEK_SET), 0);
	assert_int_equal(fread(logits, sizeof(float), 5 * 256, npy), 5 * 256);
	fclose(npy);
	for (int i = 0; i < 4; i++)
	{
		double sum = 0;

		for (int k = 0; k < 256; k++)
			sum += exp((double) logits[i * 256 + k]);
		nll += log(sum) - (double) logits[i * 256 + text[i + 1]];
	}
	free(logits);

	assert_int_equal(dsv3("perplexity", "MODEL", file, "--json", NULL), 0);
	assert_contains(out, "\"scored\": 4,");
	assert_int_equal(sscanf(strstr(out, "\"perplexity\""), "\"perplexity\": %lf", &value), 1);
	assert_true(fabs(value - exp(nll / 4)) < 1e-6 * value);
	assert_int_equal(dsv3("perplexity", "MODEL", file, NULL), 0);
	assert_contains(out, "over 4 of 5 tokens");
	assert_int_equal(dsv3("perplexity", "MODEL", file, "--context", "2", NULL), 0);
	assert_contains(out, "over 2 of 5 tokens");

	/* beside itself, and beside rounded weights */
	assert_int_equal(dsv3("perplexity", "MODEL", file, "--against", "MODEL", NULL), 0);
	assert_contains(out, "mean KL divergence 0.000000 nats; same likeliest token 100.00 %");
	assert_int_equal(
		dsv3("perplexity", "MODEL", file, "--weights", "int8", "--against", "MODEL", "--json", NULL), 0);
	assert_int_equal(sscanf(strstr(out, "\"divergence\""), "\"divergence\": %lf", &divergence), 1);
	assert_true(divergence > 0 && divergence < 0.1);
	assert_int_equal(sscanf(strstr(out, "\"against_perplexity\""), "\"against_perplexity\": %lf", &other), 1);
	assert_true(fabs(other - value) < 1e-6 * value);

	/* the same told by packing, which a second time finds the pack there */
	snprintf(path, sizeof(path), "%s/x.dsv3", fx.dir);
	assert_int_equal(dsv3("pack", "--bits", "8", "--report", file, "MODEL", path, NULL), 0);
	assert_contains(out, "bits a weight");
	snprintf(expected, sizeof(expected), "mean KL divergence %.6f nats", divergence);
	assert_contains(out, expected);
	assert_string_equal(err, "");
	assert_int_equal(dsv3("pack", "--bits", "8", "MODEL", path, NULL), 1);
	assert_contains(err, "exists already");
	assert_int_equal(dsv3("pack", "--importance", file, "--force", "MODEL", path, NULL), 0);
	assert_int_equal(dsv3("inspect", "--json", "--verify", path, NULL), 0);
	assert_contains(out, "\"importance\": \"");
	assert_contains(out, "\"bits\": 4");
	assert_contains(out, "\"verified\": true");
	assert_int_equal(dsv3("perplexity", path, file, NULL), 0);
	assert_contains(out, "weights int6+int4");
	assert_int_equal(dsv3("pack", "--importance", "/nonexistent", "MODEL", path, NULL), 1);
	assert_int_equal(dsv3("pack", "--report", "/nonexistent", "--force", "MODEL", path, NULL), 1);

	snprintf(file, sizeof(file), "%s/one", fx.dir);
	assert_int_equal(dsv3("perplexity", "MODEL", file, NULL), 1);
	assert_contains(err, "too little text");
	assert_int_equal(dsv3("perplexity", "MODEL", "/nonexistent", NULL), 1);
	assert_int_equal(dsv3("perplexity", "MODEL", file, "--context", "1", NULL), 2);
	fixture_close(&fx);
	fx = saved;
}

/* Patterns from the command line and from a table, and what is no rule. */
static void
test_pack_rules(void **state)
{
	char path[128], table[128];

	(void) state;
	snprintf(path, sizeof(path), "%s/x.dsv3", fx.dir);
	snprintf(table, sizeof(table), "%s/table", fx.dir);
	fixture_write_text(fx.dir, "table", "# experts\n*.experts.* int8 # all\r\n\n\t*.experts.1.*  bf16\n");
	assert_int_equal(
		dsv3("pack", "--bits", "16", "--table", table, "--tensor", "*.experts.2.*=f32", "MODEL", path, NULL),
		0);
	assert_int_equal(dsv3("inspect", "--tensors", path, NULL), 0);
	assert_contains(out, "int8     [12, 16]         model.layers.1.mlp.experts.0.up_proj.weight");
	assert_contains(out, "bf16     [12, 16]         model.layers.1.mlp.experts.1.up_proj.weight");
	assert_contains(out, "f32      [12, 16]         model.layers.1.mlp.experts.2.up_proj.weight");
	assert_contains(out, "memory");
	fixture_write_text(fx.dir, "table", "*.experts.* int8\n*.experts.* int9\n");
	assert_int_equal(dsv3("pack", "--table", table, "MODEL", path, NULL), 1);
	assert_contains(err, "table, line 2");
	assert_int_equal(dsv3("pack", "--table", "/nonexistent", "MODEL", path, NULL), 1);
	assert_int_equal(dsv3("pack", "--tensor", "*.experts.*", "MODEL", path, NULL), 2);
	assert_int_equal(dsv3("pack", "--tensor", "=int8", "MODEL", path, NULL), 2);
	assert_int_equal(dsv3("pack", "--bits", "5", "MODEL", path, NULL), 2);
	assert_contains(err, "16, 8 or 4");
	assert_int_equal(dsv3("pack", "MODEL", NULL), 2);
	assert_int_equal(dsv3("pack", "--help", NULL), 0);
	assert_contains(out, "Usage: dsv3 pack");
	assert_int_equal(dsv3("inspect", "--verify", "MODEL", NULL), 2);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_help),          cmocka_unit_test(test_generate),
		cmocka_unit_test(test_full_disk),     cmocka_unit_test(test_logits_usage),
		cmocka_unit_test(test_logits),        cmocka_unit_test(test_bench),
		cmocka_unit_test(test_bench_kernels), cmocka_unit_test(test_perplexity),
		cmocka_unit_test(test_pack_rules),    cmocka_unit_test(test_bench_determinism),
	};
	char *copy = strdup(argv[0]);
	int failed;

	(void) argc;
	snprintf(program, sizeof(program), "%s/../dsv3", dirname(copy));
	free(copy);
	fixture_open(&fx);
	fixture_write(&fx);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fixture_close(&fx);
	return failed;
}
