/*
 * cmd_schema_bench.c
 *	  `dsv3 schema bench`: how long compiling and masks take over a directory of test files.
 *
 * Each schema is compiled once; each of its valid instances is written in the grammar's spelling, cut into the
 * tokenizer's own tokens, and replayed: a mask before every token, then the token. A grammar's caches start empty, the
 * vocabulary's are warm, as in a server. A token that its mask does not contain is an error. With --budget every mask is asked
 * for so near to the limit, as if the answer had to end that many tokens after the soonest; what the document goes on with
 * may then be missing from it.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "cli/schema_tool.h"
#include "grammar/json.h"
#include "text/tokenizer.h"

typedef struct Samples
{
	int64_t *v;
	size_t n;
	size_t cap;
} Samples;

typedef struct Bench
{
	Dsv3TokenTable *vocab;
	Dsv3Tokenizer *tokenizer;
	Samples compile;
	Samples mask;
	Samples accept;
	Samples memory;
	Samples allowed;
	long refused;
	long documents;
	long wrong;
	long narrowed;  /* masks that the budget took tokens from */
	bool slow;      /* name what takes long */
	int64_t budget; /* tokens more than the shortest end takes; -1: no budget */
	uint64_t *words;
} Bench;

/* Time this thread has computed: others on the machine do not count. */
static int64_t
cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void
sample(Samples *s, int64_t value)
{
	if (s->n == s->cap)
	{
		size_t cap = s->cap == 0 ? 4096 : s->cap * 2;
		int64_t *v = realloc(s->v, cap * sizeof(int64_t));

		if (v == NULL)
			return;
		s->v = v;
		s->cap = cap;
	}
	s->v[s->n++] = value;
}

static int
compare_sample(const void *a, const void *b)
{
	int64_t x = *(const int64_t *) a;
	int64_t y = *(const int64_t *) b;

	return (x > y) - (x < y);
}

static void
report(const char *name, Samples *s, double unit, const char *unit_name)
{
	static const double quantiles[] = {0.5, 0.75, 0.9, 0.95, 0.99, 0.999};
	double total = 0;

	if (s->n == 0)
		return;
	qsort(s->v, s->n, sizeof(int64_t), compare_sample);
	for (size_t i = 0; i < s->n; i++)
		total += (double) s->v[i];
	printf("%-14s n %zu  mean %.2f", name, s->n, total / (double) s->n / unit);
	for (size_t i = 0; i < sizeof(quantiles) / sizeof(quantiles[0]); i++)
		printf("  p%g %.2f", quantiles[i] * 100,
			   (double) s->v[(size_t) ((double) (s->n - 1) * quantiles[i])] / unit);
	printf("  max %.2f %s\n", (double) s->v[s->n - 1] / unit, unit_name);
}

static void
replay(Bench *bench, const char *path, Dsv3Grammar *grammar, const Json *data)
{
	TextBuf text = {NULL, 0, 0, false};
	Dsv3Error err = {0};
	Dsv3Tokens tokens = {0};
	Dsv3Matcher *m = dsv3_matcher_create(grammar, &err);
	size_t len = 0;
	char *spelled;

	dsv3_gr_json_write(&text, data);
	spelled = dsv3_grammar_respell(grammar, text.data, text.len, &len);
	dsv3_gr_textbuf_free(&text);
	if (spelled != NULL && m != NULL)
	{
		bench->documents++;
		if (bench->tokenizer != NULL)
			dsv3_tokenizer_encode(bench->tokenizer, spelled, len, DSV3_ENCODE_PLAIN, 0, &tokens, &err);
		else
			for (size_t i = 0; i < len; i++)
				dsv3_tokens_push(&tokens, (unsigned char) spelled[i], &err);
	}
	for (size_t i = 0; i < tokens.count; i++)
	{
		int32_t count;
		int64_t a = cpu_ns();
		int64_t b;
		int32_t remaining = bench->budget < 0 ? -1 : dsv3_matcher_shortest(m) + 1 + (int32_t) bench->budget;
		bool narrowed;
		bool ok = dsv3_matcher_mask(m, remaining, bench->words, &count, &narrowed, &err);

		b = cpu_ns();
		sample(&bench->mask, b - a);
		sample(&bench->allowed, count);
		bench->narrowed += ok && narrowed;
		ok = ok && (narrowed || (bench->words[tokens.ids[i] / 64] >> (tokens.ids[i] % 64) & 1) != 0);
		a = cpu_ns();
		ok = ok && dsv3_matcher_accept(m, tokens.ids[i], &err);
		sample(&bench->accept, cpu_ns() - a);
		if (bench->slow && bench->mask.v[bench->mask.n - 1] > 150000)
			printf("slow %lld us at byte token %zu of %s: %.*s\n",
				   (long long) bench->mask.v[bench->mask.n - 1] / 1000, i, path,
				   (int) (len > 200 ? 200 : len), spelled);
		if (!ok)
		{
			bench->wrong++;
			printf("%s: token %zu of a valid document: %s\n", path, i,
				   err.sqlstate[0] == '\0' ? "not in its mask" : err.message);
			break;
		}
	}
	dsv3_tokens_free(&tokens);
	free(spelled);
	dsv3_matcher_free(m);
}

static void
bench_schema(void *arg, const char *path, const Json *schema, const Json *tests)
{
	Bench *bench = arg;
	TextBuf text = {NULL, 0, 0, false};
	Dsv3Error err = {0};
	Dsv3Grammar *grammar;
	int64_t a;

	dsv3_gr_json_write(&text, schema);
	a = cpu_ns();
	grammar =
		dsv3_grammar_compile(bench->vocab, DSV3_GRAMMAR_JSON_SCHEMA, text.data, text.len, NULL, NULL, &err);
	a = cpu_ns() - a;
	sample(&bench->compile, a);
	if (bench->slow && a > 10000000)
		printf("compile %lld ms %s %s\n", (long long) a / 1000000, path, grammar == NULL ? err.message : "");
	dsv3_gr_textbuf_free(&text);
	if (grammar == NULL)
	{
		bench->refused++;
		return;
	}
	for (uint32_t i = 0; tests != NULL && i < tests->n; i++)
	{
		const Json *valid = dsv3_gr_json_get(tests->u.items[i], "valid");
		const Json *data = dsv3_gr_json_get(tests->u.items[i], "data");

		if (valid != NULL && valid->kind == JSON_TRUE_ && data != NULL)
			replay(bench, path, grammar, data);
	}
	sample(&bench->memory, (int64_t) dsv3_grammar_memory(grammar));
	dsv3_grammar_free(grammar);
}

/* Whatever the vocabulary makes once in its life, before anything is timed. */
static void
warm_up(Bench *bench)
{
	static const char schema[] =
		"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":"
		"\"number\"},\"c\":{\"type\":\"string\",\"maxLength\":64}},\"required\":[\"a\",\"b\",\"c\"]}";
	static const char text[] =
		"{\"a\":\"x\",\"b\":1.5,\"c\":\"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz\"}";
	Dsv3Error err = {0};
	Dsv3Grammar *grammar = dsv3_grammar_compile(bench->vocab, DSV3_GRAMMAR_JSON_SCHEMA, schema,
												sizeof(schema) - 1, NULL, NULL, &err);
	Dsv3Matcher *m = grammar == NULL ? NULL : dsv3_matcher_create(grammar, &err);

	for (size_t i = 0; m != NULL && i + 1 < sizeof(text); i++)
	{
		size_t taken;

		dsv3_matcher_mask(m, -1, bench->words, NULL, NULL, &err);
		dsv3_matcher_accept_bytes(m, text + i, 1, &taken, &err);
	}
	dsv3_matcher_free(m);
	dsv3_grammar_free(grammar);
}

int
dsv3_schema_bench(int argc, char **argv)
{
	static const struct option longs[] = {
		{"budget", required_argument, NULL, 'b'}, {"slow", no_argument, NULL, 's'}, {NULL, 0, NULL, 0}};
	Bench bench;
	Dsv3Error err = {0};
	int64_t start = cpu_ns();
	int status = 0;
	int c;

	memset(&bench, 0, sizeof(bench));
	bench.budget = -1;
	optind = 1;
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
		if (c == 's')
			bench.slow = true;
		else if (c != 'b')
			return 2;
		else if (!dsv3_cli_integer(optarg, 0, 1000000, &bench.budget))
			return dsv3_cli_usage("schema", "\"%s\" is not a valid number of tokens", optarg);
	if (argc - optind != 2)
		return dsv3_cli_usage("schema", "bench takes a model directory and a directory of tests");
	argv += optind - 1;
	bench.vocab = dsv3_schema_tokens(argv[1], &err);
	if (bench.vocab != NULL && argv[1][0] != '-' && argv[1][0] != '+')
		bench.tokenizer = dsv3_tokenizer_open(argv[1], &err);
	if (bench.vocab == NULL)
		return dsv3_cli_fail(&err);
	bench.words = calloc((size_t) dsv3_token_table_size(bench.vocab) / 64 + 1, 8);
	if (bench.words == NULL)
		dsv3_error(&err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	else
	{
		printf("vocabulary of %d tokens ready in %.2f s\n", dsv3_token_table_size(bench.vocab),
			   (double) (cpu_ns() - start) / 1e9);
		warm_up(&bench);
	}
	if (bench.words == NULL || !dsv3_schema_each(argv[2], bench_schema, &bench, &err))
		status = dsv3_cli_fail(&err);
	report("compile", &bench.compile, 1e6, "ms");
	report("mask", &bench.mask, 1e3, "us");
	report("accept", &bench.accept, 1e3, "us");
	report("allowed", &bench.allowed, 1, "tokens");
	report("memory", &bench.memory, 1024.0 * 1024.0, "MiB");
	if (bench.budget >= 0)
		printf("the budget took tokens from %ld masks\n", bench.narrowed);
	printf("%zu schemas, %ld refused; %ld documents; %ld tokens missing from their masks\n", bench.compile.n,
		   bench.refused, bench.documents, bench.wrong);
	free(bench.compile.v);
	free(bench.mask.v);
	free(bench.accept.v);
	free(bench.memory.v);
	free(bench.allowed.v);
	free(bench.words);
	dsv3_tokenizer_close(bench.tokenizer);
	dsv3_token_table_free(bench.vocab);
	return bench.wrong > 0 ? 1 : status;
}
