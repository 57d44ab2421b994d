/*
 * cmd_schema_walk.c
 *	  `dsv3 schema walk`: random answers. At every step a random allowed token, until the end; every answer is checked
 *	  by the validator, and with --print written out for others to check. A step without an allowed token, an answer
 *	  that is not valid or a budget that is not kept is a failure.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/schema_tool.h"
#include "grammar/json.h"

typedef struct Walk
{
	Dsv3TokenTable *vocab;
	Dsv3GrammarOptions options;
	int32_t words;
	uint64_t *mask;
	uint64_t *other;
	uint64_t random;
	long per_schema;
	long free_tokens; /* steps without a budget; then the answer is brought to its end */
	bool budget;      /* from the minimum up */
	bool slow;        /* compare every mask with the slow one */
	bool print;
	long walks;
	long steps;
	long failures;
	long refused;
	long schemas;
} Walk;

static uint64_t
next_random(Walk *w)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return w->random;
}

/* A random member of the mask. */
static int32_t
pick(Walk *w, int32_t count)
{
	int32_t nth;

	if (count <= 0)
		return -1;
	nth = (int32_t) (next_random(w) % (uint64_t) count);
	for (int32_t i = 0; i < w->words; i++)
	{
		int32_t here = __builtin_popcountll(w->mask[i]);

		if (nth >= here)
		{
			nth -= here;
			continue;
		}
		for (uint64_t b = w->mask[i];; b &= b - 1)
			if (nth-- == 0)
				return i * 64 + __builtin_ctzll(b);
	}
	return -1;
}

static void
fail(Walk *w, const char *path, const char *what, const TextBuf *text)
{
	w->failures++;
	if (w->failures <= 50)
		printf("FAIL %s: %s after %.*s\n", path, what, (int) (text->len > 600 ? 600 : text->len),
			   text->data == NULL ? "" : text->data);
}

/* An answer on one line: a newline in it can only be white space between its parts. */
static void
print_line(const char *path, const TextBuf *text)
{
	printf("%s\t", path);
	for (size_t i = 0; text->data != NULL && i < text->len; i++)
		putchar(text->data[i] == '\n' ? ' ' : text->data[i]);
	putchar('\n');
}

static void
one_walk(Walk *w, const char *path, Dsv3Grammar *grammar, long index)
{
	Dsv3Error err = {0};
	Dsv3Matcher *m = dsv3_matcher_create(grammar, &err);
	TextBuf text = {NULL, 0, 0, false};
	int32_t remaining = -1;
	bool ended = false;

	if (m == NULL)
		return;
	if (w->budget)
		remaining = dsv3_grammar_shortest(grammar) + 1 + (int32_t) (index % 40);
	for (long step = 0; !ended; step++)
	{
		int32_t count = 0;
		int32_t token;
		size_t len;
		const char *bytes;

		if (!w->budget && step == w->free_tokens)
			remaining = dsv3_matcher_shortest(m) + 1 + (int32_t) (next_random(w) % 8);
		if (!dsv3_matcher_mask(m, remaining, w->mask, &count, NULL, &err))
		{
			fail(w, path, err.message, &text);
			break;
		}
		if (w->slow && remaining < 0)
		{
			int32_t slow;

			if (!dsv3_matcher_mask_slow(m, w->other, &slow, &err))
			{
				fail(w, path, err.message, &text);
				break;
			}
			if (slow != count || memcmp(w->mask, w->other, (size_t) w->words * 8) != 0)
			{
				int32_t t = 0;

				while (t < w->words * 64 &&
					   (w->mask[t / 64] >> (t % 64) & 1) == (w->other[t / 64] >> (t % 64) & 1))
					t++;
				bytes = dsv3_token_table_bytes(w->vocab, t, &len);
				printf("token %d \"%.*s\" fast %d slow %d\n", t, (int) len, bytes, count, slow);
				fail(w, path, "masks differ", &text);
				break;
			}
		}
		token = pick(w, count);
		if (token < 0)
		{
			fail(w, path, "dead end", &text);
			break;
		}
		w->steps++;
		if (remaining > 0)
			remaining--;
		if (token == dsv3_token_table_eos(w->vocab))
		{
			ended = true;
			break;
		}
		if (!dsv3_matcher_accept(m, token, &err))
		{
			fail(w, path, "an allowed token is not accepted", &text);
			break;
		}
		bytes = dsv3_token_table_bytes(w->vocab, token, &len);
		dsv3_gr_textbuf_add(&text, bytes, len);
	}
	if (ended)
	{
		w->walks++;
		if (!dsv3_grammar_validate(grammar, text.data == NULL ? "" : text.data, text.len, &err))
			fail(w, path, err.message, &text);
		if (w->print)
			print_line(path, &text);
	}
	dsv3_gr_textbuf_free(&text);
	dsv3_matcher_free(m);
}

static void
walk_schema(void *arg, const char *path, const Json *schema, const Json *tests)
{
	Walk *w = arg;
	TextBuf text = {NULL, 0, 0, false};
	Dsv3Error err = {0};
	Dsv3Grammar *grammar;

	(void) tests;
	dsv3_gr_json_write(&text, schema);
	grammar = dsv3_grammar_compile(w->vocab, DSV3_GRAMMAR_JSON_SCHEMA, text.data, text.len, &w->options, NULL,
								   &err);
	dsv3_gr_textbuf_free(&text);
	if (grammar == NULL)
	{
		w->refused++;
		return;
	}
	w->schemas++;
	for (long i = 0; i < w->per_schema; i++)
		one_walk(w, path, grammar, i);
	dsv3_grammar_free(grammar);
}

int
dsv3_schema_walk(int argc, char **argv)
{
	static const struct option longs[] = {{"count", required_argument, NULL, 'n'},
										  {"seed", required_argument, NULL, 's'},
										  {"tokens", required_argument, NULL, 't'},
										  {"budget", no_argument, NULL, 'b'},
										  {"slow", no_argument, NULL, 'x'},
										  {"print", no_argument, NULL, 'p'},
										  {"compact", no_argument, NULL, 'c'},
										  {"spaced", no_argument, NULL, 'd'},
										  {NULL, 0, NULL, 0}};
	Walk w;
	Dsv3Error err = {0};
	int c;
	int status = 0;

	memset(&w, 0, sizeof(w));
	w.per_schema = 10;
	w.free_tokens = 60;
	w.random = UINT64_C(88172645463325252);
	optind = 1;
	while ((c = getopt_long(argc, argv, "n:s:t:bxpcd", longs, NULL)) != -1)
		switch (c)
		{
			case 'n':
				w.per_schema = strtol(optarg, NULL, 10);
				break;
			case 's':
				w.random ^= (uint64_t) strtoull(optarg, NULL, 10) * UINT64_C(0x9E3779B97F4A7C15);
				break;
			case 't':
				w.free_tokens = strtol(optarg, NULL, 10);
				break;
			case 'b':
				w.budget = true;
				break;
			case 'x':
				w.slow = true;
				break;
			case 'p':
				w.print = true;
				break;
			case 'c':
				w.options.whitespace = DSV3_WHITESPACE_COMPACT;
				break;
			case 'd':
				w.options.whitespace = DSV3_WHITESPACE_SPACED;
				break;
			default:
				return 2;
		}
	if (argc - optind != 2)
		return dsv3_cli_usage("schema", "walk takes a model directory and a file or directory of schemas");
	w.vocab = dsv3_schema_tokens(argv[optind], &err);
	if (w.vocab == NULL)
		return dsv3_cli_fail(&err);
	w.words = (dsv3_token_table_size(w.vocab) + 63) / 64;
	w.mask = malloc((size_t) w.words * 8);
	w.other = malloc((size_t) w.words * 8);
	if (w.mask == NULL || w.other == NULL)
		dsv3_error(&err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	if (w.mask == NULL || w.other == NULL || !dsv3_schema_each(argv[optind + 1], walk_schema, &w, &err))
		status = dsv3_cli_fail(&err);
	fprintf(stderr, "%ld walks over %ld schemas (%ld refused), %ld steps, %ld failures\n", w.walks, w.schemas,
			w.refused, w.steps, w.failures);
	free(w.mask);
	free(w.other);
	dsv3_token_table_free(w.vocab);
	return w.failures > 0 ? 1 : status;
}
