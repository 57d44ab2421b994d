/*
 * cmd_pack.c
 *	  `dsv3 pack`: one file of a model directory, with its matrices in fewer bits; see model/pack_write.h.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "cli/score.h"
#include "kernels/pool.h"
#include "model/pack_write.h"

#define MAX_RULES      4096
#define REPORT_CONTEXT 512
#define SHOWN_NAME     32 /* the end of a longer one */
#define MAX_TABLE      ((int64_t) 1 << 20)

typedef struct Arguments
{
	Dsv3PackOptions options;
	Dsv3PackRule *rules;
	char *table;            /* the text that rules of a file point into */
	const char *importance; /* files with text, or NULL */
	const char *report;
	struct timespec start;
} Arguments;

static void
print_help(void)
{
	printf(
		"Make one file of a model directory: mapped at once, shared by all processes that use it.\n\n"
		"Usage: dsv3 pack [OPTIONS] MODEL OUT\n\n"
		"Options:\n"
		"  --bits N              what matrices become: 16 (BF16), 8, or 4 (default: routed experts 4 bits,\n"
		"                        the output matrix 8, others 6). With 8 and 4 the embedding and the latent\n"
		"                        expansion stay as stored\n"
		"  --tensor PATTERN=TYPE matrices with such names become stored, f32, bf16, int8, int6 or int4;\n"
		"                        may be repeated, the last that fits counts\n"
		"  --table FILE          such rules from a file, one \"PATTERN TYPE\" a line; # begins a comment\n"
		"  --importance FILE     weigh the errors of a matrix's columns by what this text brings there; the\n"
		"                        model reads it first\n"
		"  --report FILE         afterwards read this text with the pack and with the model, and print what\n"
		"                        packing has cost\n"
		"  --force               replace OUT when it exists\n"
		"  --threads N           compute threads (default: one per CPU)\n"
		"  --help                this text\n\n"
		"A run that was stopped continues when the same command is given again.\n\n"
		"Example:\n"
		"  $ dsv3 pack --bits 8 --tensor '*.layers.0.*=stored' build/demo-model build/demo.dsv3\n");
}

static double
seconds_since(const struct timespec *start)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double) (t.tv_sec - start->tv_sec) + (double) (t.tv_nsec - start->tv_nsec) / 1e9;
}

/* One line on the terminal, short enough not to be broken, and written over itself. */
static void
show_progress(void *context, const Dsv3PackProgress *p)
{
	double seconds = seconds_since(context);
	double speed = (double) (p->bytes_done - p->bytes_found) / (seconds > 0 ? seconds : 1e-9);
	double left = (double) (p->bytes - p->bytes_done) / (speed > 0 ? speed : 1);
	const char *name = p->piece ? p->piece : "";
	size_t len = strlen(name);

	fprintf(stderr, "\r\033[K%d/%d %3.0f %% %.1f MB/s %d:%02d:%02d left %s", p->n_done, p->n_pieces,
			100.0 * (double) p->bytes_done / (double) p->bytes, speed / 1e6, (int) (left / 3600),
			(int) (left / 60) % 60, (int) left % 60, len > SHOWN_NAME ? name + len - SHOWN_NAME : name);
	fflush(stderr);
}

static bool
add_rule(Arguments *args, const char *pattern, const char *type)
{
	Dsv3PackRule *rules = realloc(args->rules, (size_t) (args->options.n_rules + 1) * sizeof(*rules));

	if (rules == NULL)
		return false;
	args->rules = rules;
	rules[args->options.n_rules].pattern = pattern;
	return dsv3_pack_form(type, &rules[args->options.n_rules].form) && ++args->options.n_rules <= MAX_RULES;
}

/* PATTERN=TYPE, cut in place. */
static bool
add_tensor(Arguments *args, char *value)
{
	char *equals = strrchr(value, '=');

	if (equals == NULL || equals == value)
		return false;
	*equals = '\0';
	return add_rule(args, value, equals + 1);
}

/* Lines of "PATTERN TYPE". */
static bool
read_table(Arguments *args, const char *path, Dsv3Error *err)
{
	int64_t len;
	int n = 0;
	char *line;
	char *rest;

	if (args->table)
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "--table can be given once");
	args->table = rest = dsv3_cli_read_file(path, MAX_TABLE, &len, err);
	while (rest && (line = strsep(&rest, "\n")) != NULL)
	{
		char *save;
		char *pattern;
		char *type;

		n++;
		line[strcspn(line, "#\r")] = '\0';
		pattern = strtok_r(line, " \t", &save);
		type = pattern ? strtok_r(NULL, " \t", &save) : NULL;
		if (pattern && (type == NULL || strtok_r(NULL, " \t", &save) || !add_rule(args, pattern, type)))
			return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "%s, line %d: \"PATTERN TYPE\" is expected",
							  path, n);
	}
	return args->table != NULL;
}

/* The text's ids through the model: what its inputs are like. */
static Dsv3Importance *
read_importance(const Arguments *args, const char *model, Dsv3Error *err)
{
	Dsv3Tokens tokens = {0};
	Dsv3Importance *importance = NULL;
	int64_t bytes;
	int32_t bos;

	if (dsv3_score_read(model, args->importance, &tokens, &bos, &bytes, err))
		importance = dsv3_importance_open(model, tokens.ids, tokens.count, bos, args->options.threads, err);
	dsv3_tokens_free(&tokens);
	return importance;
}

/* The same text through both. */
static bool
report(const Arguments *args, const char *model_dir, const char *out, Dsv3Error *err)
{
	Dsv3ModelOptions options = {.threads = args->options.threads};
	Dsv3Tokens tokens = {0};
	Dsv3ScoredText text = {.tokens = &tokens, .context = REPORT_CONTEXT};
	Dsv3Model *source = NULL;
	Dsv3Model *pack = NULL;
	Dsv3Score score;
	int64_t bytes;
	bool ok = dsv3_score_read(model_dir, args->report, &tokens, &text.bos, &bytes, err) &&
			  (source = dsv3_model_open(model_dir, &options, err)) &&
			  (pack = dsv3_model_open(out, &options, err)) && dsv3_score(pack, source, &text, &score, err);

	if (ok)
		dsv3_score_print(&score);
	dsv3_model_close(source);
	dsv3_model_close(pack);
	dsv3_tokens_free(&tokens);
	return ok;
}

static int
pack(Arguments *args, const char *model, const char *out)
{
	Dsv3Importance *importance = NULL;
	Dsv3PackSummary summary;
	Dsv3Error err;
	bool ok = !args->importance || (importance = read_importance(args, model, &err)) != NULL;

	args->options.rules = args->rules;
	args->options.importance = importance;
	if (isatty(STDERR_FILENO))
		args->options.progress = show_progress;
	clock_gettime(CLOCK_MONOTONIC, &args->start);
	ok = ok && dsv3_pack_write(model, out, &args->options, &summary, &err);
	dsv3_importance_close(importance);
	if (args->options.progress)
		fprintf(stderr, "\r\033[K");
	if (!ok)
		return dsv3_cli_fail(&err);
	printf("%s: %.1f MB, %d tensors, %.2f bits a weight\ndigest %s\n", out, (double) summary.bytes / 1e6,
		   summary.n_tensors, 8.0 * (double) summary.tensor_bytes / (double) summary.params, summary.digest);
	if (summary.n_found > 0)
		printf("%d pieces were there from an earlier run\n", summary.n_found);
	fflush(stdout);
	return !args->report || report(args, model, out, &err) ? 0 : dsv3_cli_fail(&err);
}

/* Read the options; -1 when there is something to do, else the exit status. */
static int
read_options(Arguments *args, int argc, char **argv)
{
	static const struct option long_options[] = {{"bits", required_argument, NULL, 'b'},
												 {"tensor", required_argument, NULL, 't'},
												 {"table", required_argument, NULL, 'f'},
												 {"importance", required_argument, NULL, 'i'},
												 {"report", required_argument, NULL, 'r'},
												 {"force", no_argument, NULL, 'F'},
												 {"threads", required_argument, NULL, 'n'},
												 {"help", no_argument, NULL, 'h'},
												 {0}};
	Dsv3Error err;
	int64_t n;
	int c;

	optind = 1;
	while ((c = getopt_long(argc, argv, "h", long_options, NULL)) != -1)
	{
		switch (c)
		{
			case 'b':
				if (!dsv3_cli_integer(optarg, 4, 16, &n) || (n != 4 && n != 8 && n != 16))
					return dsv3_cli_usage("pack", "--bits is 16, 8 or 4, not \"%s\"", optarg);
				args->options.bits = (int) n;
				break;
			case 't':
				if (!add_tensor(args, optarg))
					return dsv3_cli_usage("pack", "--tensor needs PATTERN=TYPE with a known type");
				break;
			case 'f':
				if (!read_table(args, optarg, &err))
					return dsv3_cli_fail(&err);
				break;
			case 'i':
				args->importance = optarg;
				break;
			case 'r':
				args->report = optarg;
				break;
			case 'F':
				args->options.force = true;
				break;
			case 'n':
				if (!dsv3_cli_integer(optarg, 0, DSV3_POOL_MAX_THREADS, &n))
					return dsv3_cli_usage("pack", "\"%s\" is not a valid number of threads", optarg);
				args->options.threads = (int) n;
				break;
			case 'h':
				print_help();
				return 0;
			default:
				return dsv3_cli_usage("pack", "wrong option");
		}
	}
	if (argc - optind != 2)
		return dsv3_cli_usage("pack", "a model directory and the name of the pack are needed");
	return -1;
}

int
dsv3_cmd_pack(int argc, char **argv)
{
	Arguments args = {.options = {.bits = 4}};
	int status = read_options(&args, argc, argv);

	args.options.progress_context = &args.start;
	if (status < 0)
		status = pack(&args, argv[optind], argv[optind + 1]);
	free(args.rules);
	free(args.table);
	return status;
}
