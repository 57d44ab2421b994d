/*
 * cmd_bench.c
 *	  `dsv3 bench`: how fast this machine decodes and prefills, against how fast it can read memory.
 *
 * Decoding one token alone reads every active weight once, so tokens/s x bytes/token is a read bandwidth, and its share
 * of what the machine can read is the figure of merit. Both are measured by turns in the same run: each round is a window of
 * plain reading by all threads, a window of decoding and a window of prefill; on a machine that others use
 * too, the rounds see the same neighbours. Reported are medians over the rounds, and the share is the median of the rounds' own
 * shares.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/batch_bench.h"
#include "cli/cli.h"
#include "cli/determinism.h"
#include "cli/kernel_bench.h"
#include "cli/memory_read.h"
#include "cli/options.h"
#include "cli/schema_tool.h"
#include "cli/speculative_bench.h"
#include "kernels/pool.h"
#include "model/model.h"

#define MAX_ROUNDS 1000

typedef struct Arguments
{
	const char *model;
	Dsv3ModelOptions options;
	int prompt;
	int behind; /* positions before the decoded ones, if more than the prompt's */
	int rounds;
	double seconds; /* of one window */
	bool json;
	int32_t *batches; /* NULL, or measure so many sequences at one time instead */
	int n_batches;
	bool speculative;
} Arguments;

typedef struct Bench
{
	const Arguments *args;
	Dsv3Model *model;
	Dsv3Kv *kv;
	Dsv3Pool *pool; /* for plain reading; the model has its own */
	Dsv3MemoryRead read;
	int32_t *tokens;
	int32_t *blocks;
	int n_blocks;
	int context; /* positions the cache has room for */
	float *logits;
} Bench;

static void
print_help(void)
{
	printf(
		"Measure decode and prefill speed and this machine's memory bandwidth, in one run.\n\n"
		"Usage: dsv3 bench MODEL [OPTIONS]\n"
		"       dsv3 bench kernels [OPTIONS]    operations per cycle of the matrix products\n"
		"       dsv3 bench determinism MODEL    the same answers in random company, see its --help\n"
		"       dsv3 bench grammar MODEL DIR    times of structured output, see dsv3 schema\n\n"
		"  --prompt N       tokens before decoding, and of a prefill (default 256)\n"
		"  --behind N       decode behind N positions; beyond the prompt they have its rows over and over\n"
		"  --rounds N       rounds of three windows (default 7)\n"
		"  --seconds S      length of a window (default 0.4)\n"
		"  --batch LIST     measure so many answers at one time instead, as in 1,2,4,8,16,32\n"
		"  --speculative    only decoding, without and with drafts of the model's draft layer\n"
		"  --draft-input X  after-norm (default) or before-norm: where that takes the model's state from\n"
		"  --json           one JSON object instead of text\n" DSV3_CLI_MODEL_OPTIONS_HELP "\n"
		"Example: dsv3 bench build/demo-model\n");
}

static bool
step(Bench *bench, int position, int count, int want, Dsv3Error *err)
{
	Dsv3StepSeq seq = {.tokens = bench->tokens + position,
					   .n_tokens = count,
					   .position = position,
					   .blocks = bench->blocks,
					   .n_blocks = bench->n_blocks,
					   .want = want};

	return dsv3_model_step(bench->model, bench->kv, &seq, 1, bench->logits, NULL, err);
}

/* Where decoding begins. */
static int
first_position(const Arguments *args)
{
	return args->behind > args->prompt ? args->behind : args->prompt;
}

/* Give the blocks behind the prompt its rows: reading them takes as long as that of others, and nobody has to compute them. */
static void
fill_cache(Bench *bench)
{
	size_t bytes = dsv3_kv_block_bytes(bench->model);
	int whole = bench->args->prompt / DSV3_KV_BLOCK;

	for (int block = whole; whole > 0 && block < bench->n_blocks; block++)
		memcpy(dsv3_kv_block(bench->kv, block), dsv3_kv_block(bench->kv, block % whole), bytes);
}

/* Tokens per second, one at a time; 0 on failure. */
static double
decode_window(Bench *bench, Dsv3Error *err)
{
	double start = dsv3_cli_now(), end;
	int position = first_position(bench->args), n = 0;

	do
	{
		if (!step(bench, position, 1, DSV3_WANT_LAST, err))
			return 0;
		n++;
		if (++position == bench->context)
			position = first_position(bench->args);
		end = dsv3_cli_now();
	} while (end - start < bench->args->seconds);
	return n / (end - start);
}

/* Tokens per second of whole prompts; 0 on failure. */
static double
prefill_window(Bench *bench, Dsv3Error *err)
{
	double start = dsv3_cli_now(), end;
	int n = 0;

	do
	{
		if (!step(bench, 0, bench->args->prompt, DSV3_WANT_LAST, err))
			return 0;
		n += bench->args->prompt;
		end = dsv3_cli_now();
	} while (end - start < bench->args->seconds);
	return n / (end - start);
}

static bool
measure(Bench *bench, Dsv3Error *err)
{
	const Arguments *args = bench->args;
	const Dsv3ModelInfo *info = dsv3_model_info(bench->model);
	double read[MAX_ROUNDS], decode[MAX_ROUNDS], prefill[MAX_ROUNDS], share[MAX_ROUNDS];
	double bytes = (double) info->bytes_per_token;

	/* the prompt is in the cache from here on; every page has been touched once */
	if (!step(bench, 0, args->prompt, DSV3_WANT_LAST, err))
		return false;
	fill_cache(bench);
	if (!step(bench, first_position(args), 1, DSV3_WANT_LAST, err))
		return false;
	dsv3_memory_read_window(&bench->read, bench->pool, args->seconds);
	for (int i = 0; i < args->rounds; i++)
	{
		read[i] = dsv3_memory_read_window(&bench->read, bench->pool, args->seconds);
		if ((decode[i] = decode_window(bench, err)) == 0 || (prefill[i] = prefill_window(bench, err)) == 0)
			return false;
		share[i] = decode[i] * bytes / read[i];
	}
	if (args->json)
		printf("{\"model\": \"%s\", \"weights\": \"%s\", \"isa\": \"%s\", \"threads\": %d, \"prompt\": %d, "
			   "\"rounds\": %d, \"bytes_per_token\": %lld, \"read_bytes_per_second\": %.0f, "
			   "\"decode_tokens_per_second\": %.3f, \"decode_share_of_bandwidth\": %.4f, "
			   "\"prefill_tokens_per_second\": %.3f}\n",
			   info->architecture, info->weights, info->isa, info->threads, args->prompt, args->rounds,
			   (long long) info->bytes_per_token, dsv3_bench_median(read, args->rounds),
			   dsv3_bench_median(decode, args->rounds), dsv3_bench_median(share, args->rounds),
			   dsv3_bench_median(prefill, args->rounds));
	else
		printf("weights %s, instruction set %s, %d threads, %d rounds of %.2g s\n"
			   "memory read         %8.1f GB/s\n"
			   "bytes per token     %8.1f MB\n"
			   "decode, one stream  %8.1f tokens/s after %d tokens: %.1f GB/s, %.0f %% of the bandwidth\n"
			   "prefill             %8.1f tokens/s\n",
			   info->weights, info->isa, info->threads, args->rounds, args->seconds,
			   dsv3_bench_median(read, args->rounds) / 1e9, bytes / 1e6,
			   dsv3_bench_median(decode, args->rounds), first_position(args),
			   dsv3_bench_median(decode, args->rounds) * bytes / 1e9,
			   dsv3_bench_median(share, args->rounds) * 100, dsv3_bench_median(prefill, args->rounds));
	return true;
}

static int
bench_model(const Arguments *args)
{
	Dsv3Error err;
	Bench bench = {.args = args};
	uint32_t random = 1;
	bool ok = false;

	bench.model = dsv3_model_open(args->model, &args->options, &err);
	if (bench.model)
	{
		const Dsv3ModelInfo *info = dsv3_model_info(bench.model);
		int first = first_position(args);
		int64_t context = (int64_t) first + 256;

		bench.context = (int) (context < info->max_positions ? context : info->max_positions);
		bench.n_blocks = (bench.context + DSV3_KV_BLOCK - 1) / DSV3_KV_BLOCK;
		if (first >= bench.context)
			dsv3_error(&err, DSV3_ERR_INVALID_PARAMETER,
					   "a prompt of %d tokens leaves no room in %d positions", first, info->max_positions);
		else if ((bench.kv = dsv3_kv_open(bench.model, bench.n_blocks, &err)) &&
				 (bench.pool = dsv3_pool_open(info->threads, &err)))
		{
			bench.tokens = malloc((size_t) bench.context * sizeof(int32_t));
			bench.blocks = malloc((size_t) bench.n_blocks * sizeof(int32_t));
			bench.logits = malloc((size_t) info->vocab_size * sizeof(float));
			if (!dsv3_memory_read_open(&bench.read) || !bench.tokens || !bench.blocks || !bench.logits)
				dsv3_error(&err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a benchmark");
			else
			{
				for (int i = 0; i < bench.context; i++)
				{
					random = random * 1664525u + 1013904223u;
					bench.tokens[i] = (int32_t) ((random >> 8) % (uint32_t) info->vocab_size);
				}
				for (int i = 0; i < bench.n_blocks; i++)
					bench.blocks[i] = i;
				ok = measure(&bench, &err);
			}
		}
	}
	dsv3_memory_read_close(&bench.read);
	free(bench.tokens);
	free(bench.blocks);
	free(bench.logits);
	dsv3_pool_close(bench.pool);
	dsv3_kv_close(bench.kv);
	dsv3_model_close(bench.model);
	return ok ? 0 : dsv3_cli_fail(&err);
}

static int
bench_batches(const Arguments *args)
{
	Dsv3BatchBench bench = {.model = args->model,
							.options = args->options,
							.sizes = args->batches,
							.n_sizes = args->n_batches,
							.prompt = args->prompt,
							.rounds = args->rounds,
							.seconds = args->seconds,
							.json = args->json};
	Dsv3Error err;

	return dsv3_batch_bench(&bench, &err) ? 0 : dsv3_cli_fail(&err);
}

static bool
batches_valid(const Arguments *args)
{
	for (int i = 0; args->batches && i < args->n_batches; i++)
		if (args->batches[i] < 1)
			return false;
	return args->batches && args->n_batches <= DSV3_BATCH_BENCH_LIST;
}

int
dsv3_cmd_bench(int argc, char **argv)
{
	static const struct option longopts[] = {
		{"prompt", required_argument, NULL, 'p'},   {"behind", required_argument, NULL, 'e'},
		{"rounds", required_argument, NULL, 'r'},   {"seconds", required_argument, NULL, 'd'},
		{"batch", required_argument, NULL, 'b'},    {"json", no_argument, NULL, 'j'},
		{"kv-cache", required_argument, NULL, 'k'}, {"weights", required_argument, NULL, 'w'},
		{"threads", required_argument, NULL, 't'},  {"isa", required_argument, NULL, 's'},
		{"speculative", no_argument, NULL, 'v'},    {"draft-input", required_argument, NULL, 'n'},
		{"help", no_argument, NULL, 'h'},           {NULL, 0, NULL, 0},
	};
	Arguments args = {.prompt = 256, .rounds = 7, .seconds = 0.4};
	int64_t n;
	char *end;
	int c, status;

	if (argc > 1 && strcmp(argv[1], "grammar") == 0)
		return dsv3_schema_bench(argc - 1, argv + 1);
	if (argc > 1 && strcmp(argv[1], "determinism") == 0)
		return dsv3_determinism_bench(argc - 1, argv + 1);
	if (argc > 1 && strcmp(argv[1], "kernels") == 0)
		return dsv3_kernel_bench(argc - 1, argv + 1);
	optind = 1;
	while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1)
	{
		switch (c)
		{
			case 'p':
				if (!dsv3_cli_integer(optarg, 1, 1 << 20, &n))
					return dsv3_cli_usage("bench", "\"%s\" is not a valid prompt length", optarg);
				args.prompt = (int) n;
				break;
			case 'e':
				if (!dsv3_cli_integer(optarg, 1, 1 << 20, &n))
					return dsv3_cli_usage("bench", "\"%s\" is not a valid number of positions", optarg);
				args.behind = (int) n;
				break;
			case 'r':
				if (!dsv3_cli_integer(optarg, 1, MAX_ROUNDS, &n))
					return dsv3_cli_usage("bench", "\"%s\" is not a valid number of rounds", optarg);
				args.rounds = (int) n;
				break;
			case 'd':
				args.seconds = strtod(optarg, &end);
				if (end == optarg || *end != '\0' || !(args.seconds > 0 && args.seconds <= 60))
					return dsv3_cli_usage("bench", "\"%s\" is not a valid number of seconds", optarg);
				break;
			case 'b':
				free(args.batches);
				args.batches = dsv3_cli_id_list(optarg, DSV3_BATCH_BENCH_MAX, &args.n_batches);
				if (!batches_valid(&args))
				{
					free(args.batches);
					return dsv3_cli_usage("bench", "\"%s\" is not a valid list of batch sizes", optarg);
				}
				break;
			case 'v':
				args.speculative = true;
				break;
			case 'n':
				if (!dsv3_draft_input(optarg, &args.options.draft_before_norm))
					return dsv3_cli_usage("bench", "unknown draft input \"%s\"", optarg);
				break;
			case 'j':
				args.json = true;
				break;
			case 'k':
				if (!dsv3_kv_type(optarg, &args.options.kv))
					return dsv3_cli_usage("bench", "unknown type of cache rows \"%s\"", optarg);
				break;
			case 'w':
				if (!dsv3_weight_mode(optarg, &args.options.weights))
					return dsv3_cli_usage("bench", "unknown weight mode \"%s\"", optarg);
				break;
			case 't':
				if (!dsv3_cli_integer(optarg, 0, DSV3_POOL_MAX_THREADS, &n))
					return dsv3_cli_usage("bench", "\"%s\" is not a valid number of threads", optarg);
				args.options.threads = (int) n;
				break;
			case 's':
				args.options.isa = optarg;
				break;
			case 'h':
				print_help();
				return 0;
			default:
				fprintf(stderr, "Try 'dsv3 bench --help'.\n");
				return 2;
		}
	}
	if (optind != argc - 1)
		return dsv3_cli_usage("bench", optind >= argc ? "no model directory given"
													  : "more than one model directory given");
	args.model = argv[optind];
	if (args.speculative)
		status = dsv3_speculative_bench(&(Dsv3SpeculativeBench){.model = args.model,
																.options = args.options,
																.prompt = args.prompt,
																.rounds = args.rounds,
																.seconds = args.seconds,
																.json = args.json});
	else
		status = args.batches ? bench_batches(&args) : bench_model(&args);
	free(args.batches);
	return status;
}
