/*
 * cmd_perplexity.c
 *	  `dsv3 perplexity`: exp of the mean negative log-likelihood of a text's tokens.
 *
 * The text's tokens are cut into consecutive pieces of at most --context tokens (with the BOS id in front of each when
 * the tokenizer adds one); every token of a piece but its first id is predicted from those before it. Log-softmax is taken in
 * double. Chunks change no bit, so they only bound memory.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "model/model.h"
#include "text/tokenizer.h"

#define MAX_TEXT ((int64_t) 1 << 30)
#define CHUNK    128

typedef struct Arguments
{
	const char *model;
	const char *file;
	Dsv3ModelOptions options;
	int context;
	bool json;
} Arguments;

typedef struct Sum
{
	double nll; /* nats */
	int64_t scored;
} Sum;

static void
print_help(void)
{
	printf("Perplexity of a text file under a model.\n\n"
		   "Usage: dsv3 perplexity MODEL FILE [OPTIONS]\n\n"
		   "  --context N      tokens of a piece (default 512, at most the model's context)\n"
		   "  --json           one JSON object instead of text\n" DSV3_CLI_MODEL_OPTIONS_HELP "\n"
		   "Example: dsv3 perplexity build/demo-model text.txt --context 1024\n");
}

/* Negative log-probability of id under a row of logits. */
static double
negative_log_likelihood(const float *logits, int vocab, int32_t id)
{
	double sum = 0;
	float top = logits[0];

	for (int i = 1; i < vocab; i++)
		top = logits[i] > top ? logits[i] : top;
	for (int i = 0; i < vocab; i++)
		sum += exp((double) (logits[i] - top));
	return log(sum) - (double) (logits[id] - top);
}

static bool
score_piece(Dsv3Model *model, Dsv3Kv *kv, const int32_t *blocks, const int32_t *ids, int n, float *logits,
			Sum *sum, Dsv3Error *err)
{
	int vocab = dsv3_model_info(model)->vocab_size;

	/* the last id has no successor to predict */
	for (int first = 0; first < n - 1; first += CHUNK)
	{
		int count = n - 1 - first < CHUNK ? n - 1 - first : CHUNK;
		Dsv3StepSeq seq = {.tokens = ids + first,
						   .n_tokens = count,
						   .position = first,
						   .blocks = blocks,
						   .n_blocks = dsv3_kv_blocks(kv),
						   .want = DSV3_WANT_ALL};

		if (!dsv3_model_step(model, kv, &seq, 1, logits, NULL, err))
			return false;
		for (int i = 0; i < count; i++)
			sum->nll +=
				negative_log_likelihood(logits + (size_t) i * (size_t) vocab, vocab, ids[first + i + 1]);
		sum->scored += count;
	}
	return true;
}

/* All pieces of the text's ids. */
static bool
score(const Arguments *args, Dsv3Model *model, const Dsv3Tokens *tokens, int32_t bos, Sum *sum,
	  Dsv3Error *err)
{
	int context = args->context < dsv3_model_info(model)->max_positions
					  ? args->context
					  : dsv3_model_info(model)->max_positions;
	int n_blocks = (context + DSV3_KV_BLOCK - 1) / DSV3_KV_BLOCK;
	int lead = bos >= 0 ? 1 : 0;
	Dsv3Kv *kv = dsv3_kv_open(model, n_blocks, err);
	int32_t *blocks = malloc((size_t) n_blocks * sizeof(*blocks));
	int32_t *ids = malloc((size_t) context * sizeof(*ids));
	float *logits = malloc((size_t) CHUNK * (size_t) dsv3_model_info(model)->vocab_size * sizeof(*logits));
	bool ok = kv != NULL;

	if (ok && (!blocks || !ids || !logits))
		ok = dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a piece of %d tokens", context);
	for (int i = 0; ok && i < n_blocks; i++)
		blocks[i] = i;
	for (size_t first = 0; ok && first < tokens->count; first += (size_t) (context - lead))
	{
		size_t left = tokens->count - first;
		int n = left < (size_t) (context - lead) ? (int) left : context - lead;

		if (lead)
			ids[0] = bos;
		memcpy(ids + lead, tokens->ids + first, (size_t) n * sizeof(*ids));
		ok = score_piece(model, kv, blocks, ids, n + lead, logits, sum, err);
	}
	free(blocks);
	free(ids);
	free(logits);
	dsv3_kv_close(kv);
	return ok;
}

static int
perplexity_of(const Arguments *args)
{
	Dsv3Error err;
	Dsv3Tokens tokens = {0};
	Sum sum = {0};
	int64_t length;
	char *text = dsv3_cli_read_file(args->file, MAX_TEXT, &length, &err);
	Dsv3Tokenizer *tokenizer = text ? dsv3_tokenizer_open(args->model, &err) : NULL;
	Dsv3Model *model = NULL;
	bool ok = tokenizer &&
			  dsv3_tokenizer_encode(tokenizer, text, (size_t) length, DSV3_ENCODE_PLAIN, 0, &tokens, &err) &&
			  (model = dsv3_model_open(args->model, &args->options, &err)) &&
			  score(args, model, &tokens, dsv3_tokenizer_bos(tokenizer), &sum, &err);

	if (ok && sum.scored == 0)
		ok = dsv3_error(&err, DSV3_ERR_INVALID_PARAMETER, "file \"%s\" has too little text to score",
						args->file);
	if (ok && args->json)
		printf("{\"weights\": \"%s\", \"tokens\": %lld, \"scored\": %lld, \"context\": %d, "
			   "\"nll_per_token\": %.9f, "
			   "\"bits_per_byte\": %.9f, \"perplexity\": %.9f}\n",
			   dsv3_model_info(model)->weights, (long long) tokens.count, (long long) sum.scored,
			   args->context, sum.nll / (double) sum.scored, sum.nll / log(2) / (double) length,
			   exp(sum.nll / (double) sum.scored));
	else if (ok)
		printf("perplexity %.4f over %lld of %lld tokens, weights %s, %.4f bits per byte\n",
			   exp(sum.nll / (double) sum.scored), (long long) sum.scored, (long long) tokens.count,
			   dsv3_model_info(model)->weights, sum.nll / log(2) / (double) length);
	dsv3_model_close(model);
	dsv3_tokenizer_close(tokenizer);
	dsv3_tokens_free(&tokens);
	free(text);
	return ok ? 0 : dsv3_cli_fail(&err);
}

int
dsv3_cmd_perplexity(int argc, char **argv)
{
	static const struct option longopts[] = {
		{"context", required_argument, NULL, 'c'},
		{"json", no_argument, NULL, 'j'},
		{"weights", required_argument, NULL, 'w'},
		{"threads", required_argument, NULL, 't'},
		{"isa", required_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	Arguments args = {.context = 512};
	int64_t n;
	int c;

	optind = 1;
	while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1)
	{
		switch (c)
		{
			case 'c':
				if (!dsv3_cli_integer(optarg, 2, 1 << 24, &n))
					return dsv3_cli_usage("perplexity", "\"%s\" is not a valid context length", optarg);
				args.context = (int) n;
				break;
			case 'j':
				args.json = true;
				break;
			case 'w':
				if (!dsv3_cli_weights(optarg, &args.options.weights))
					return dsv3_cli_usage("perplexity", "unknown weight mode \"%s\"", optarg);
				break;
			case 't':
				if (!dsv3_cli_integer(optarg, 0, 1024, &n))
					return dsv3_cli_usage("perplexity", "\"%s\" is not a valid number of threads", optarg);
				args.options.threads = (int) n;
				break;
			case 's':
				args.options.isa = optarg;
				break;
			case 'h':
				print_help();
				return 0;
			default:
				fprintf(stderr, "Try 'dsv3 perplexity --help'.\n");
				return 2;
		}
	}
	if (optind != argc - 2)
		return dsv3_cli_usage("perplexity", "a model directory and a text file are needed");
	args.model = argv[optind];
	args.file = argv[optind + 1];
	return perplexity_of(&args);
}
