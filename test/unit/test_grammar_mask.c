/*
 * test_grammar_mask.c
 *	  Masks and matchers: every mask equal to trying every token, no dead ends, going back and forking, budgets from the
 *	  minimum up, forced bytes, and the end token.
 */
#include "grammar_util.h"

static Dsv3TokenTable *vocab;
static uint64_t seed = UINT64_C(0x2545F4914F6CDD1D);

static uint64_t
next_random(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

typedef struct Source
{
	Dsv3GrammarKind kind;
	const char *text;
} Source;

static const Source sources[] = {
	{DSV3_GRAMMAR_JSON_SCHEMA, "{}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":5}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^(ab|é)+$\",\"maxLength\":9}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"aa\",\"maxLength\":30}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"minimum\":-3.5,\"maximum\":120}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^a\"},{\"type\":\"string\","
							   "\"maxLength\":3},{\"const\":\"abcdef\"}]}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\"},\"name\":{"
							   "\"type\":\"string\"},\"na\":{\"type\":"
							   "\"null\"}},\"required\":[\"name\"]}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"object\",\"properties\":{\"x\":{\"enum\":[\"a\",\"aa\",1,12,null]}},\"required\":[\"x\"],"
	 "\"additionalProperties\":false}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\","
							   "\"maxLength\":2},\"minItems\":2}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"aa\",\"ab\",1,12]}}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":[\"integer\","
							   "\"object\",\"null\"]},\"maxItems\":6}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"contains\":{\"type\":\"string\"},\"minContains\":2,"
							   "\"maxContains\":3,\"maxItems\":6}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"integer\"},"
							   "\"b$\":{\"maximum\":5}},\"additionalProperties\":"
							   "{\"type\":\"null\"},\"minProperties\":2,\"maxProperties\":4}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",\"ab\",\"id\"]},\"minProperties\":1}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\\\"b\":{\"type\":\"null\"}},"
							   "\"additionalProperties\":{\"type\":\"boolean\"}}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"$ref\":\"#/$defs/"
	 "t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":"
	 "{\"$ref\":\"#/$defs/"
	 "t\"}},\"id\":{\"type\":\"integer\"}},\"required\":[\"id\"],\"additionalProperties\":false}}}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"oneOf\":[{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},{"
							   "\"properties\":{\"a\":{\"const\":12}},"
							   "\"required\":[\"a\"]}],\"type\":\"object\"}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"array\",\"minItems\":3,\"prefixItems\":[{\"type\":\"null\"},{\"type\":"
	 "\"string\"}],\"items\":{\"type\":\"integer\"}}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"date-time\"}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^.{2,}$\",\"maxLength\":25}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[^\\\\s]+$\"}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"string\",\"pattern\":\"^[a-z_]*[A-Z0-9 .:/-]*x?$\",\"minLength\":3}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"string\",\"pattern\":\"[0-9]{4}\",\"minLength\":4,\"maxLength\":6}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"oneOf\":[{\"pattern\":\"aa\"},{\"pattern\":\"ab\"},{"
							   "\"pattern\":\"12\"}]}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"not\":{\"pattern\":\"a|é\"},\"maxLength\":40}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"anyOf\":[{\"properties\":{\"id\":{\"const\":1},\"name\":{}},\"required\":[\"id\"],"
	 "\"additionalProperties\":false},{\"properties\":{\"id\":{\"const\":2},\"x\":{},\"a\\\"b\":{}},"
	 "\"required\":["
	 "\"id\",\"x\"],\"additionalProperties\":false},{\"properties\":{\"name\":{\"type\":\"null\"}},"
	 "\"minProperties\":1}"
	 "],\"type\":\"object\"}"},
	/* Free keys: some must come, some must not come twice, some are declared, some are few. */
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\",\"minLength\":7},"
	 "\"minProperties\":3}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"object\",\"properties\":{\"name\":{\"minLength\":4,\"type\":\"string\"},\"id\":{"
	 "\"type\":\"null\"},\"nab\":{\"type\":\"null\"}},\"minProperties\":4}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"object\",\"patternProperties\":{\"^a+$\":{\"type\":\"null\"},\"^[xé]{3}\":{"
	 "\"type\":\"integer\"},\"12\":{\"type\":\"string\",\"minLength\":9}},"
	 "\"additionalProperties\":false,\"minProperties\":3}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a1]{0,2}$\"},\"minProperties\":5,"
	 "\"additionalProperties\":{\"type\":\"object\",\"minProperties\":1,\"additionalProperties\":{\"type\":"
	 "\"null\"}}}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"anyOf\":[{\"required\":[\"id\"],\"additionalProperties\":{\"type\":\"null\"}},{"
	 "\"patternProperties\":{\"^(a|id)\":{\"type\":\"integer\"}},\"additionalProperties\":"
	 "false,\"minProperties\":2}],\"type\":\"object\"}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":2,\"items\":{\"type\":\"object\","
	 "\"minProperties\":1,\"additionalProperties\":{\"type\":\"null\"}}}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":3,\"items\":{\"type\":\"array\",\"uniqueItems\":"
	 "true,\"minItems\":1,\"items\":{\"type\":\"string\",\"maxLength\":3}}}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":2,\"items\":{\"anyOf\":[{\"type\":\"string\","
	 "\"pattern\":\"^(a|é)+$\"},{\"type\":\"string\",\"minLength\":4}]}}"},
	/* Some states have characters of one byte to go on with, some have not. */
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":12}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^(a+|é+)$\",\"minLength\":8}"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"string\",\"pattern\":\"^(a*|[aé€]*b?)$\",\"minLength\":6,\"maxLength\":9}"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[é\\\\u0001]{5,7}$\"}"},
	{DSV3_GRAMMAR_REGEX, "[^]*"},
	{DSV3_GRAMMAR_CHOICE, "[\"a\",\"ab\",\"aab\",\"é\"]"},
	{DSV3_GRAMMAR_REGEX, "(foo|ba+r)\\d{2,3}"},
	{DSV3_GRAMMAR_EBNF,
	 "e ::= t ((\"+\" | \"-\") t)*\nt ::= [0-9]+ | \"(\" w e w \")\" | \"a\"+ \"b\"\nw ::= \" \"*"},
	{DSV3_GRAMMAR_EBNF,
	 "list ::= item (\",\" item)* ;\nitem ::= \"a\" item? | empty \"b\"\nempty ::= \"\" | \"é\""},
};

#define NSOURCES (sizeof(sources) / sizeof(sources[0]))

static int32_t
words(void)
{
	return (dsv3_token_table_size(vocab) + 63) / 64;
}

static int32_t
pick(const uint64_t *mask, int32_t count)
{
	int32_t nth = (int32_t) (next_random() % (uint64_t) count);

	for (int32_t t = 0; t < dsv3_token_table_size(vocab); t++)
		if ((mask[t / 64] >> (t % 64) & 1) != 0 && nth-- == 0)
			return t;
	return -1;
}

/* What dsv3_matcher_shortest promises: within it there is a token after which one less is enough. */
static void
bound_falls(Dsv3Matcher *m, uint64_t *mask, const char *what, const char *text)
{
	Dsv3Error err = {0};
	int32_t bound = dsv3_matcher_shortest(m);
	int32_t count;

	if (bound == 0)
		return;
	assert_true(dsv3_matcher_mask(m, bound + 1, mask, &count, NULL, &err));
	mask[VOCAB_EOS / 64] &= ~(UINT64_C(1) << (VOCAB_EOS % 64));
	count -= dsv3_matcher_is_complete(m);
	if (count <= 0)
		fail_msg("%s: nothing fits into %d tokens after %s", what, bound, text);
	assert_true(dsv3_matcher_accept(m, pick(mask, count), &err));
	if (dsv3_matcher_shortest(m) >= bound)
		fail_msg("%s: still %d tokens after %s and one of them", what, bound, text);
	assert_true(dsv3_matcher_rollback(m, 1));
}

/* Under a budget exactly the tokens are left that leave an end within it, each tried by itself. */
static void
budget_is_exact(Dsv3Matcher *m, int32_t remaining, const uint64_t *mask, const char *what, const char *text)
{
	Dsv3Error err = {0};
	uint64_t *all = calloc((size_t) words(), 8);
	uint64_t *fit = calloc((size_t) words(), 8);
	int32_t rounds = dsv3_matcher_is_complete(m) ? 1 : 2; /* where it may end, ending keeps the budget */
	int32_t nearest = INT32_MAX;
	int32_t fits = 0;
	int32_t count;

	assert_true(dsv3_matcher_mask_slow(m, all, &count, &err));
	for (int32_t limit = remaining - 2, round = 0; round < rounds && fits == 0; round++, limit = nearest)
		for (int32_t t = 0; t < dsv3_token_table_size(vocab); t++)
		{
			int32_t after;

			if (t == VOCAB_EOS || (all[t / 64] >> (t % 64) & 1) == 0)
				continue;
			assert_true(dsv3_matcher_accept(m, t, &err));
			after = dsv3_matcher_shortest(m);
			assert_true(dsv3_matcher_rollback(m, 1));
			nearest = after < nearest ? after : nearest;
			if (after > limit)
				continue;
			fit[t / 64] |= UINT64_C(1) << (t % 64);
			fits++;
		}
	if (dsv3_matcher_is_complete(m))
		fit[VOCAB_EOS / 64] |= UINT64_C(1) << (VOCAB_EOS % 64);
	if (memcmp(fit, mask, (size_t) words() * 8) != 0)
		fail_msg("%s: not what fits into %d tokens after %s", what, remaining, text);
	free(all);
	free(fit);
}

/* One random answer; at every step the mask is compared, and going back is tried. */
static void
walk(Dsv3Grammar *g, const char *what, int32_t remaining)
{
	Dsv3Error err = {0};
	Dsv3Matcher *m = dsv3_matcher_create(g, &err);
	uint64_t *fast = calloc((size_t) words(), 8);
	uint64_t *slow = calloc((size_t) words(), 8);
	char *text = calloc(1, 65536);
	size_t len = 0;

	for (int step = 0;; step++)
	{
		int32_t count;
		int32_t slow_count;
		int32_t token;
		size_t n;
		const char *bytes;

		if (remaining < 0 && step == 40)
			remaining = dsv3_matcher_shortest(m) + 1;
		if (!dsv3_matcher_mask(m, remaining, fast, &count, NULL, &err))
			fail_msg("%s: %s after %s", what, err.message, text);
		if (count <= 0)
			fail_msg("%s: dead end after %s", what, text);
		if (remaining < 0)
		{
			assert_true(dsv3_matcher_mask_slow(m, slow, &slow_count, &err));
			if (slow_count != count || memcmp(fast, slow, (size_t) words() * 8) != 0)
				fail_msg("%s: masks differ after %s", what, text);
		}
		else if (step < 24 && step % 3 == 1)
			budget_is_exact(m, remaining, fast, what, text);
		if (step < 40)
			bound_falls(m, slow, what, text);
		/* The end token exactly when the answer is complete; never a special token or an id without bytes. */
		assert_int_equal(fast[VOCAB_EOS / 64] >> (VOCAB_EOS % 64) & 1, dsv3_matcher_is_complete(m));
		for (int32_t t = dsv3_token_table_size(vocab) - 2; t < dsv3_token_table_size(vocab); t++)
			assert_int_equal(fast[t / 64] >> (t % 64) & 1, 0);
		if (dsv3_matcher_must_stop(m))
			assert_int_equal(count, 1);
		token = pick(fast, count);
		if (remaining > 0)
			remaining--;
		if (token == VOCAB_EOS)
			break;
		if (step % 7 == 3)
		{
			/* A fork goes on alone; the original comes back to the same mask. */
			Dsv3Matcher *fork = dsv3_matcher_fork(m, &err);

			assert_true(dsv3_matcher_accept(fork, token, &err));
			dsv3_matcher_free(fork);
			assert_true(dsv3_matcher_accept(m, token, &err));
			assert_true(dsv3_matcher_rollback(m, 1));
			assert_true(dsv3_matcher_mask(m, -1, slow, &slow_count, NULL, &err));
			if (remaining < 0)
				assert_memory_equal(fast, slow, (size_t) words() * 8);
		}
		assert_true(dsv3_matcher_accept(m, token, &err));
		bytes = dsv3_token_table_bytes(vocab, token, &n);
		assert_true(len + n < 65000);
		memcpy(text + len, bytes, n);
		len += n;
	}
	assert_true(dsv3_matcher_is_complete(m));
	if (!dsv3_grammar_validate(g, text, len, &err))
		fail_msg("%s: %s: %s", what, err.message, text);
	assert_false(dsv3_matcher_accept(m, 5000, &err));
	dsv3_matcher_free(m);
	free(fast);
	free(slow);
	free(text);
}

static void
masks_equal_trying_every_token(void **state)
{
	(void) state;
	for (size_t i = 0; i < NSOURCES; i++)
		for (int mode = 0; mode < 3; mode++)
		{
			Dsv3GrammarOptions options = {.whitespace = (Dsv3Whitespace) mode};
			Dsv3Grammar *g = grammar_of(vocab, sources[i].kind, sources[i].text, &options);

			for (int k = 0; k < (mode == 0 ? 12 : 6); k++)
				walk(g, sources[i].text, -1);
			dsv3_grammar_free(g);
		}
}

static void
budgets_hold_from_the_minimum(void **state)
{
	(void) state;
	for (size_t i = 0; i < NSOURCES; i++)
		for (int mode = 0; mode < 3; mode++)
		{
			Dsv3GrammarOptions options = {.whitespace = (Dsv3Whitespace) mode};
			Dsv3Grammar *g = grammar_of(vocab, sources[i].kind, sources[i].text, &options);
			int32_t least = dsv3_grammar_shortest(g) + 1;
			Dsv3Error err = {0};
			Dsv3Matcher *m = dsv3_matcher_create(g, &err);
			uint64_t *mask = calloc((size_t) words(), 8);

			assert_false(dsv3_matcher_mask(m, least - 1, mask, NULL, NULL, &err));
			assert_string_equal(err.sqlstate, DSV3_ERR_INVALID_PARAMETER);
			free(mask);
			dsv3_matcher_free(m);
			for (int32_t more = 0; more < 25; more++)
				walk(g, sources[i].text, least + more);
			dsv3_grammar_free(g);
		}
}

/* Where a character can be one byte, a string's minimum is its length and its quotes. */
static void
least_of_long_strings(void **state)
{
	static const struct
	{
		const char *schema;
		int32_t shortest;
	} cases[] = {
		{"{\"type\":\"string\",\"minLength\":10}", 12},
		{"{\"type\":\"string\",\"minLength\":10,\"maxLength\":10}", 12},
		{"{\"type\":\"string\",\"minLength\":500,\"maxLength\":501}", 502},
		{"{\"type\":\"string\",\"pattern\":\"^[a-z]{10,12}$\"}", 12},
		{"{\"type\":\"string\",\"pattern\":\"^[a-z]+$\",\"minLength\":10}", 12},
		{"{\"type\":\"string\",\"pattern\":\"^(x+|é+)$\",\"minLength\":10}", 12},
	};

	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		Dsv3Grammar *g = grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA, cases[i].schema, NULL);

		assert_int_equal(dsv3_grammar_shortest(g), cases[i].shortest);
		dsv3_grammar_free(g);
	}
}

static void
forced_bytes_are_forced(void **state)
{
	Dsv3GrammarOptions options = {.whitespace = DSV3_WHITESPACE_COMPACT};
	Dsv3Grammar *g = grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA,
								"{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},"
								"\"order\":{\"type\":\"null\"},\"orderId\":{\"type\":"
								"\"null\"}},\"required\":[\"name\"],\"additionalProperties\":false}",
								&options);
	Dsv3Error err = {0};
	Dsv3Matcher *m = dsv3_matcher_create(g, &err);
	char bytes[64];
	size_t n = dsv3_matcher_forced(m, bytes, sizeof(bytes));
	size_t taken;
	int32_t tokens[16];

	(void) state;
	assert_int_equal(n, 9);
	assert_memory_equal(bytes, "{\"name\":\"", 9);
	/* As single bytes: a longer token could always reach across, so what is kept ends before the last border. */
	for (size_t i = 0; i < n; i++)
		tokens[i] = (unsigned char) bytes[i];
	assert_true(dsv3_matcher_forced_tokens(m, tokens, (int32_t) n) < (int32_t) n);
	assert_true(dsv3_matcher_accept_bytes(m, "{\"name\":\"x\",", 12, &taken, &err));
	n = dsv3_matcher_forced(m, bytes, sizeof(bytes));
	/* Two keys begin alike: only what they share. */
	assert_int_equal(n, 6);
	assert_memory_equal(bytes, "\"order", 6);
	dsv3_matcher_free(m);
	dsv3_grammar_free(g);
}

static void
full_caches_are_emptied(void **state)
{
	Dsv3GrammarOptions options = {.memory_limit = 2 * 1024 * 1024};
	Dsv3Grammar *g = grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\"}", &options);
	Dsv3Error err = {0};
	Dsv3Matcher *old = dsv3_matcher_create(g, &err);
	size_t taken;

	(void) state;
	assert_true(dsv3_matcher_accept_bytes(old, "{\"abc", 5, &taken, &err));
	/* Every key is remembered; together they are more than the cache holds. */
	for (int i = 0; i < 2000; i++)
	{
		Dsv3Matcher *m = dsv3_matcher_create(g, &err);
		char text[100];
		int n = snprintf(text, sizeof(text), "{\"%dxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\":1}", i);

		assert_true(dsv3_matcher_accept_bytes(m, text, (size_t) n, &taken, &err));
		assert_true(dsv3_matcher_must_stop(m));
		dsv3_matcher_free(m);
	}
	assert_true(dsv3_grammar_memory(g) < 8 * 1024 * 1024);
	/* The first matcher's position was forgotten with the caches and comes back. */
	assert_true(dsv3_matcher_rollback(old, 1));
	assert_true(dsv3_matcher_accept_bytes(old, "{\"a\":{}", 7, &taken, &err));
	assert_true(dsv3_matcher_accept_bytes(old, "}", 1, &taken, &err));
	assert_true(dsv3_matcher_is_complete(old));
	dsv3_matcher_free(old);
	dsv3_grammar_free(g);
}

/* Single bytes, and every text of three letters. */
static Dsv3TokenTable *
letters_vocab(void)
{
	enum
	{
		FIRST = VOCAB_EOS + 1,
		SIZE = FIRST + 26 * 26 * 26
	};
	Dsv3TokenBytes *tokens = calloc(SIZE, sizeof(Dsv3TokenBytes));
	char *bytes = calloc(SIZE, 3);
	Dsv3Error err = {0};
	Dsv3TokenTable *table;

	for (int32_t t = 0; t < SIZE; t++)
	{
		char *own = bytes + (size_t) t * 3;

		own[0] = (char) (t < FIRST ? t : 'a' + (t - FIRST) / 676);
		own[1] = (char) ('a' + (t - FIRST + 676) / 26 % 26);
		own[2] = (char) ('a' + (t - FIRST + 676) % 26);
		tokens[t] = (Dsv3TokenBytes){own, t < FIRST ? 1 : 3, t == VOCAB_EOS};
	}
	table = dsv3_token_table_create(tokens, SIZE, VOCAB_EOS, &err);
	assert_non_null(table);
	free(tokens);
	free(bytes);
	return table;
}

/* Where many tokens go on in a text that is remembered, near the limit: the caches need not hold what each of them leads to. */
static void
budgets_need_little_memory(void **state)
{
	static const struct
	{
		const char *schema;
		const char *text;
	} cases[] = {
		{"{\"type\":\"object\",\"minProperties\":2}", "{\"abcx\": 1, \""},
		{"{\"type\":\"object\",\"minProperties\":2}", "{\"abcx\": 1, \"abc"},
		{"{\"type\":\"object\",\"properties\":{\"abcd\":{\"type\":\"string\"}},\"patternProperties\":{\"^a\":"
		 "{\"type\":"
		 "\"null\"},\"z$\":{\"type\":\"string\",\"minLength\":3}},\"minProperties\":2}",
		 "{\""},
		{"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"object\",\"minProperties\":1}}",
		 "[{\""},
		{"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\",\"minLength\":2}}",
		 "[\"abcx\",\"ab"},
	};
	Dsv3GrammarOptions options = {.memory_limit = 2 * 1024 * 1024};
	Dsv3TokenTable *small = vocab;
	uint64_t *mask;

	(void) state;
	vocab = letters_vocab();
	mask = calloc((size_t) words(), 8);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		Dsv3Grammar *g = grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA, cases[i].schema, &options);
		Dsv3Error err = {0};
		Dsv3Matcher *m = dsv3_matcher_create(g, &err);
		size_t taken;
		int32_t least;
		size_t before;

		assert_true(dsv3_matcher_accept_bytes(m, cases[i].text, strlen(cases[i].text), &taken, &err));
		least = dsv3_matcher_shortest(m) + 1;
		before = dsv3_grammar_memory(g);
		for (int32_t more = 0; more < 7; more++)
			if (!dsv3_matcher_mask(m, least + more, mask, NULL, NULL, &err))
				fail_msg("%s: %s after %s", cases[i].schema, err.message, cases[i].text);
		assert_true(dsv3_grammar_memory(g) < before + 300000);
		for (int32_t more = 0; more < 7; more += 2)
		{
			assert_true(dsv3_matcher_mask(m, least + more, mask, NULL, NULL, &err));
			budget_is_exact(m, least + more, mask, cases[i].schema, cases[i].text);
		}
		dsv3_matcher_free(m);
		dsv3_grammar_free(g);
	}
	free(mask);
	dsv3_token_table_free(vocab);
	vocab = small;
}

static int
setup(void **state)
{
	(void) state;
	vocab = small_vocab();
	return 0;
}

static int
teardown(void **state)
{
	(void) state;
	dsv3_token_table_free(vocab);
	return 0;
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(masks_equal_trying_every_token), cmocka_unit_test(budgets_hold_from_the_minimum),
		cmocka_unit_test(least_of_long_strings),          cmocka_unit_test(forced_bytes_are_forced),
		cmocka_unit_test(full_caches_are_emptied),        cmocka_unit_test(budgets_need_little_memory),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
