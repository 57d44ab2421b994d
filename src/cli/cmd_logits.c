/*
 * cmd_logits.c
 *	  `dsv3 logits`: the logits of given token ids as a .npy file; what the oracle comparison runs.
 *
 * The ids are one sequence from position 0. They go through the model in chunks (which change no bit of the result), and a
 * chunk's rows are written before the next is computed, so that memory stays bounded by the chunk.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "model/model.h"

#define MAX_IDS_FILE (256 << 20)

typedef struct Arguments
{
	const char *model;
	const char *out;
	int32_t *ids;
	int n_ids;
	int32_t *positions; /* rows to write, rising; NULL: all */
	int n_positions;
	int chunk;
	Dsv3ModelOptions options;
} Arguments;

static void
print_help(void)
{
	printf("Write the logits of token ids to a NumPy file: float32 [positions, vocabulary].\n\n"
		   "Usage: dsv3 logits MODEL (--ids LIST | --ids-file FILE) --out FILE.npy [OPTIONS]\n\n"
		   "  --ids LIST       token ids, separated by commas\n"
		   "  --ids-file FILE  token ids in a file, separated by commas or white space\n"
		   "  --out FILE       where to write; - is standard output\n"
		   "  --positions LIST only these positions, rising, counted from 0\n"
		   "  --chunk N        tokens per step (default 256); changes no bit of the result\n"
		   "  --drafts         what the draft layer says instead: the row of a position, from 1 on, is its "
		   "scores\n"
		   "                   for the token behind it\n"
		   "  --draft-input X  after-norm (default) or before-norm: where it takes the model's state from\n"
		   "  --expanded       attention in the expanded form\n" DSV3_CLI_MODEL_OPTIONS_HELP "\n"
		   "Example: dsv3 logits build/tiny-model --ids 1,2,3 --out logits.npy\n");
}

/* NumPy's format 1.0: magic, version, header length, a Python dictionary padded to a multiple of 64 bytes. */
static bool
write_npy_header(FILE *file, int rows, int columns)
{
	char text[128];
	char header[128];
	int n = snprintf(text, sizeof(text), "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }",
					 rows, columns);

	memset(header, ' ', sizeof(header));
	memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10);
	memcpy(header + 10, text, (size_t) n);
	header[127] = '\n';
	return fwrite(header, 1, sizeof(header), file) == sizeof(header);
}

/* The draft layer's scores at the positions behind each of a chunk that has just been computed; those of the first such position first. */
static bool
draft_chunk(const Arguments *args, Dsv3Model *model, Dsv3Kv *kv, const int32_t *blocks, int first, int count,
			float *logits, Dsv3Error *err)
{
	Dsv3StepSeq *seqs = calloc((size_t) count, sizeof(*seqs));
	int *rows = calloc((size_t) count, sizeof(*rows));
	int n = 0;
	bool ok = (seqs && rows) || dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for drafts");

	for (; ok && n < count && first + n + 1 < args->n_ids; n++)
	{
		rows[n] = n;
		seqs[n] = (Dsv3StepSeq){.tokens = args->ids + first + n + 1,
								.n_tokens = 1,
								.position = first + n + 1,
								.blocks = blocks,
								.n_blocks = dsv3_kv_blocks(kv),
								.want = DSV3_WANT_LAST};
	}
	ok = ok && dsv3_model_draft(model, kv, seqs, rows, n, logits, err);
	free(seqs);
	free(rows);
	return ok;
}

/* All chunks. Rows wanted are position by position; a chunk asks for all of its logits or, when none is wanted, for none. */
static bool
run(const Arguments *args, Dsv3Model *model, Dsv3Kv *kv, const int32_t *blocks, float *logits, FILE *file,
	Dsv3Error *err)
{
	int vocab = dsv3_model_info(model)->vocab_size;
	int next = 0; /* index into positions */
	int shift = args->options.drafts ? 1 : 0;

	for (int first = 0; first < args->n_ids; first += args->chunk)
	{
		int count = args->n_ids - first < args->chunk ? args->n_ids - first : args->chunk;
		int end = first + count + shift < args->n_ids ? first + count + shift : args->n_ids;
		bool any = !args->positions || (next < args->n_positions && args->positions[next] < end);
		Dsv3StepSeq seq = {.tokens = args->ids + first,
						   .n_tokens = count,
						   .position = first,
						   .blocks = blocks,
						   .n_blocks = dsv3_kv_blocks(kv),
						   .want = any ? DSV3_WANT_ALL : DSV3_WANT_NONE};

		if (!dsv3_model_step(model, kv, &seq, 1, logits, NULL, err))
			return false;
		if (any && shift && !draft_chunk(args, model, kv, blocks, first, count, logits, err))
			return false;
		for (int i = 0; any && first + shift + i < end; i++)
		{
			if (args->positions && (next == args->n_positions || args->positions[next] != first + shift + i))
				continue;
			next++;
			if (fwrite(logits + (size_t) i * (size_t) vocab, sizeof(float), (size_t) vocab, file) !=
				(size_t) vocab)
				return dsv3_error(err, DSV3_ERR_FILE, "could not write file \"%s\": %s", args->out,
								  strerror(errno));
		}
	}
	return true;
}

static int
logits_of(const Arguments *args)
{
	Dsv3Error err;
	Dsv3Model *model = dsv3_model_open(args->model, &args->options, &err);
	Dsv3Kv *kv = NULL;
	FILE *file = NULL;
	int32_t *blocks = NULL;
	float *logits = NULL;
	int n_blocks = (int) (((int64_t) args->n_ids + DSV3_KV_BLOCK - 1) / DSV3_KV_BLOCK);
	bool ok = false;

	if (model && (kv = dsv3_kv_open(model, n_blocks, &err)))
	{
		int vocab = dsv3_model_info(model)->vocab_size;
		int chunk = args->chunk < args->n_ids ? args->chunk : args->n_ids;

		blocks = malloc((size_t) n_blocks * sizeof(*blocks));
		logits = calloc((size_t) chunk * (size_t) vocab, sizeof(*logits));
		if (!blocks || !logits)
			dsv3_error(&err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the logits of %d positions", chunk);
		else if (!(file = strcmp(args->out, "-") == 0 ? stdout : fopen(args->out, "wb")))
			dsv3_error(&err, DSV3_ERR_FILE, "could not create file \"%s\": %s", args->out, strerror(errno));
		else
		{
			int rows = args->n_ids - (args->options.drafts ? 1 : 0);

			for (int i = 0; i < n_blocks; i++)
				blocks[i] = i;
			ok = write_npy_header(file, args->positions ? args->n_positions : rows, vocab) ||
				 dsv3_error(&err, DSV3_ERR_FILE, "could not write file \"%s\": %s", args->out,
							strerror(errno));
			ok = ok && run(args, model, kv, blocks, logits, file, &err);
		}
	}
	if (file && (file == stdout ? fflush(file) : fclose(file)) != 0 && ok)
		ok = dsv3_error(&err, DSV3_ERR_FILE, "could not write file \"%s\": %s", args->out, strerror(errno));
	free(blocks);
	free(logits);
	dsv3_kv_close(kv);
	dsv3_model_close(model);
	return ok ? 0 : dsv3_cli_fail(&err);
}

int
dsv3_cmd_logits(int argc, char **argv)
{
	static const struct option longopts[] = {
		{"ids", required_argument, NULL, 'i'},
		{"ids-file", required_argument, NULL, 'f'},
		{"out", required_argument, NULL, 'o'},
		{"positions", required_argument, NULL, 'p'},
		{"chunk", required_argument, NULL, 'c'},
		{"drafts", no_argument, NULL, 'd'},
		{"draft-input", required_argument, NULL, 'n'},
		{"expanded", no_argument, NULL, 'e'},
		{"kv-cache", required_argument, NULL, 'k'},
		{"weights", required_argument, NULL, 'w'},
		{"threads", required_argument, NULL, 't'},
		{"isa", required_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	Arguments args = {.chunk = 256};
	char *text = NULL;
	Dsv3Error err;
	int64_t n;
	int c, status = -1;

	optind = 1;
	while (status < 0 && (c = getopt_long(argc, argv, "", longopts, NULL)) != -1)
	{
		switch (c)
		{
			case 'i':
			case 'f':
				if (args.ids)
					status = dsv3_cli_usage("logits", "ids are given twice");
				else if (c == 'f' && !(text = dsv3_cli_read_file(optarg, MAX_IDS_FILE, &n, &err)))
					status = dsv3_cli_fail(&err);
				else if (!(args.ids = dsv3_cli_id_list(c == 'f' ? text : optarg, INT32_MAX, &args.n_ids)))
					status = dsv3_cli_usage("logits", "\"%.40s\" is not a list of token ids",
											c == 'f' ? text : optarg);
				break;
			case 'o':
				args.out = optarg;
				break;
			case 'p':
				free(args.positions);
				if (!(args.positions = dsv3_cli_id_list(optarg, INT32_MAX, &args.n_positions)))
					status = dsv3_cli_usage("logits", "\"%.40s\" is not a list of positions", optarg);
				break;
			case 'c':
				if (!dsv3_cli_integer(optarg, 1, 1 << 20, &n))
					status = dsv3_cli_usage("logits", "\"%s\" is not a valid chunk size", optarg);
				args.chunk = (int) n;
				break;
			case 'd':
				args.options.drafts = true;
				break;
			case 'n':
				if (!dsv3_draft_input(optarg, &args.options.draft_before_norm))
					status = dsv3_cli_usage("logits", "unknown draft input \"%s\"", optarg);
				break;
			case 'e':
				args.options.expanded = true;
				break;
			case 'k':
				if (!dsv3_kv_type(optarg, &args.options.kv))
					status = dsv3_cli_usage("logits", "unknown type of cache rows \"%s\"", optarg);
				break;
			case 'w':
				if (!dsv3_weight_mode(optarg, &args.options.weights))
					status = dsv3_cli_usage("logits", "unknown weight mode \"%s\"", optarg);
				break;
			case 't':
				if (!dsv3_cli_integer(optarg, 0, 1024, &n))
					status = dsv3_cli_usage("logits", "\"%s\" is not a valid number of threads", optarg);
				args.options.threads = (int) n;
				break;
			case 's':
				args.options.isa = optarg;
				break;
			case 'h':
				print_help();
				status = 0;
				break;
			default:
				fprintf(stderr, "Try 'dsv3 logits --help'.\n");
				status = 2;
		}
	}
	if (status < 0 && optind != argc - 1)
		status = dsv3_cli_usage("logits", optind >= argc ? "no model directory given"
														 : "more than one model directory given");
	if (status < 0 && args.options.drafts && args.n_ids == 1)
		status = dsv3_cli_usage("logits", "drafts need two ids at least");
	if (status < 0 && (!args.ids || !args.out))
		status = dsv3_cli_usage("logits", !args.ids ? "no token ids given" : "--out is missing");
	for (int i = 0; status < 0 && args.positions && i < args.n_positions; i++)
		if (args.positions[i] >= args.n_ids || args.positions[i] < (args.options.drafts ? 1 : 0) ||
			(i > 0 && args.positions[i] <= args.positions[i - 1]))
			status =
				dsv3_cli_usage("logits", "position %d is out of order or has no token", args.positions[i]);
	if (status < 0)
	{
		args.model = argv[optind];
		status = logits_of(&args);
	}
	free(text);
	free(args.ids);
	free(args.positions);
	return status;
}
