/*
 * cmd_perplexity.c
 *	  `dsv3 perplexity`: exp of the mean negative log-likelihood of a text's tokens.
 *
 * With --against the same text is read by a second model, and how far the first one's distributions are from that one's is told
 * too: what packing or a weight mode has cost. score.h says how the text is cut.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "cli/score.h"

typedef struct Arguments
{
	const char *model;
	const char *file;
	const char *against; /* or NULL */
	Dsv3ModelOptions options;
	int context;
	bool json;
} Arguments;

static void
print_help(void)
{
	printf("Perplexity of a text file under a model.\n\n"
		   "Usage: dsv3 perplexity MODEL FILE [OPTIONS]\n\n"
		   "  --context N      tokens of a piece (default 512, at most the model's context)\n"
		   "  --against MODEL  read the text with this model as well, its weights as stored, and print the "
		   "mean\n"
		   "                   KL divergence of the first from it\n"
		   "  --json           one JSON object instead of text\n" DSV3_CLI_MODEL_OPTIONS_HELP "\n"
		   "Example: dsv3 perplexity build/demo-model text.txt --context 1024\n");
}

static void
print_text(const Arguments *args, const Dsv3ModelInfo *info, const Dsv3Score *score, size_t tokens,
		   int64_t bytes)
{
	double n = (double) score->scored;

	printf("perplexity %.4f over %lld of %zu tokens, weights %s, %.4f bits per byte\n", exp(score->nll / n),
		   (long long) score->scored, tokens, info->weights, score->nll / log(2) / (double) bytes);
	if (args->against)
		dsv3_score_print(score);
}

static void
print_json(const Arguments *args, const Dsv3ModelInfo *info, const Dsv3Score *score, size_t tokens,
		   int64_t bytes)
{
	double n = (double) score->scored;

	printf("{\"weights\": \"%s\", \"tokens\": %zu, \"scored\": %lld, \"context\": %d, "
		   "\"nll_per_token\": %.9f, \"bits_per_byte\": %.9f, \"perplexity\": %.9f",
		   info->weights, tokens, (long long) score->scored, args->context, score->nll / n,
		   score->nll / log(2) / (double) bytes, exp(score->nll / n));
	if (args->against)
		printf(", \"against_perplexity\": %.9f, \"divergence\": %.9f, \"same_best\": %.6f",
			   exp(score->reference_nll / n), score->divergence / n, (double) score->same_best / n);
	printf("}\n");
}

static int
perplexity_of(const Arguments *args)
{
	Dsv3Error err;
	Dsv3Tokens tokens = {0};
	Dsv3ScoredText text = {.tokens = &tokens, .context = args->context};
	Dsv3ModelOptions stored = {.threads = args->options.threads, .isa = args->options.isa};
	Dsv3Score score;
	int64_t bytes;
	Dsv3Model *model = NULL;
	Dsv3Model *reference = NULL;
	bool ok = dsv3_score_read(args->model, args->file, &tokens, &text.bos, &bytes, &err) &&
			  (model = dsv3_model_open(args->model, &args->options, &err)) &&
			  (!args->against || (reference = dsv3_model_open(args->against, &stored, &err))) &&
			  dsv3_score(model, reference, &text, &score, &err);

	if (ok)
		(args->json ? print_json : print_text)(args, dsv3_model_info(model), &score, tokens.count, bytes);
	dsv3_model_close(model);
	dsv3_model_close(reference);
	dsv3_tokens_free(&tokens);
	return ok ? 0 : dsv3_cli_fail(&err);
}

int
dsv3_cmd_perplexity(int argc, char **argv)
{
	static const struct option longopts[] = {
		{"context", required_argument, NULL, 'c'},
		{"against", required_argument, NULL, 'a'},
		{"json", no_argument, NULL, 'j'},
		{"kv-cache", required_argument, NULL, 'k'},
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
			case 'a':
				args.against = optarg;
				break;
			case 'j':
				args.json = true;
				break;
			case 'k':
				if (!dsv3_kv_type(optarg, &args.options.kv))
					return dsv3_cli_usage("perplexity", "unknown type of cache rows \"%s\"", optarg);
				break;
			case 'w':
				if (!dsv3_weight_mode(optarg, &args.options.weights))
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
		return dsv3_cli_usage("perplexity", "a model and a text file are needed");
	args.model = argv[optind];
	args.file = argv[optind + 1];
	return perplexity_of(&args);
}
