/*
 * test_grammar_schema.c
 *	  Schemas: what each keyword allows and forbids, in which spelling and order, and how refusals are worded. The shapes come
 *	  from bug reports about other structured-output engines.
 */
#include "grammar_util.h"

static Dsv3TokenTable *vocab;

typedef struct Case
{
	const char *schema;
	const char *yes[8];
	const char *no[10];
} Case;

static const Case cases[] = {
	{"{\"type\":\"string\",\"maxLength\":200}",
	 {"\"a\\n\\\"\\\\\"", "\"\\t\\u0001\"", "\"é\""},
	 {"\"\t\"", "\"\\/\"", "\"\\u0041\"", "\"\\u0000\"", "\"\\ud800\""}},
	{"{\"anyOf\":[{\"required\":[\"x\"]}],\"properties\":{\"x\":{\"type\":\"integer\"}},"
	 "\"additionalProperties\":false,"
	 "\"type\":\"object\"}",
	 {"{\"x\":1}"},
	 {"{}", "{\"x\":\"1\"}", "{\"x\":1,\"y\":2}", "1"}},
	{"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^(a|b)$\"},\"additionalProperties\":{\"type\":"
	 "\"integer\"}}",
	 {"{}", "{\"a\":1}", "{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}"},
	 {"{\"a\":\"x\"}", "{\"c\":1}", "{\"a\":1,\"a\":2}"}},
	{"{\"type\":\"object\",\"properties\":{\"foo\":{\"type\":\"integer\"}},\"patternProperties\":{\"^f\":{"
	 "\"minimum\":3}},"
	 "\"additionalProperties\":false}",
	 {"{\"foo\":3}", "{\"foo\":4,\"fx\":7}"},
	 {"{\"foo\":2}", "{\"foo\":\"x\"}", "{\"g\":3}"}},
	{"{\"properties\":{\"a\":{\"type\":\"integer\"}},\"type\":\"object\"}",
	 {"{}", "{\"a\":1,\"ab\":\"x\"}", "{\"b\":null}"},
	 {"{\"a\":\"wrong\"}", "{\"b\":1,\"a\":\"wrong\"}", "{\"b\":1,\"a\":1}", "{\"b\":1,\"b\":1}"}},
	{"{\"type\":\"object\",\"required\":[\"p\"]}", {"{\"p\":1}", "{\"p\":[],\"q\":{}}"}, {"{}", "{\"q\":1}"}},
	{"{\"type\":\"string\",\"pattern\":\"^[^\\n\\r]{1,129}$\"}", {"\"x\""}, {"\"\"", "\"a\\nb\""}},
	{"{\"const\":\"http://x/y\"}", {"\"http://x/y\""}, {"\"http:\\/\\/x\\/y\"", "\"http://x\""}},
	{"{\"type\":\"string\",\"pattern\":\"^[a-z]+$\",\"maxLength\":3}", {"\"abc\""}, {"\"abcd\"", "\"aB\""}},
	{"{\"allOf\":[{\"$ref\":\"#/$defs/"
	 "b\"},{\"properties\":{\"y\":{\"type\":\"integer\"}},\"required\":[\"y\"]}],\"$defs\":{\"b\":"
	 "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"string\"}},\"required\":[\"x\"]}}}",
	 {"{\"x\":\"a\",\"y\":1}"},
	 {"{\"x\":\"a\"}", "{\"y\":1}", "{\"x\":1,\"y\":1}"}},
	{"{\"type\":\"string\",\"pattern\":\"\\\\S\"}", {"\"a\"", "\" a \""}, {"\"\"", "\"  \""}},
	{"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", {"[]", "[[],[[]]]"}, {"[1]", "{}"}},
	{"{\"type\":\"number\"}", {"0", "-0.5", "1.5e10", "12"}, {"01", "-0", "1.", ".5", "+1", "1e400"}},
	{"{\"type\":\"integer\",\"minimum\":-5,\"exclusiveMaximum\":100}",
	 {"-5", "0", "99", "7"},
	 {"-6", "100", "1.0", "5.5", "007"}},
	{"{\"type\":\"number\",\"minimum\":0.25,\"maximum\":10.5}",
	 {"0.25", "0.3", "10.5", "9.99", "1"},
	 {"0.2", "10.51", "11", "-1", "0"}},
	{"{\"type\":\"number\",\"multipleOf\":0.01}", {"0.01", "1.5", "12", "-3.14"}, {"0.001", "1.234"}},
	{"{\"type\":\"integer\",\"multipleOf\":7,\"maximum\":50}", {"0", "7", "49", "-14"}, {"1", "56", "48"}},
	{"{\"enum\":[1,\"a\",null,[1,{\"k\":true}]]}",
	 {"1", "\"a\"", "null", "[1,{\"k\":true}]"},
	 {"2", "[1]", "[1,{\"k\":false}]"}},
	{"{\"enum\":[\"order\",\"orderId\"]}", {"\"order\"", "\"orderId\""}, {"\"orderI\""}},
	{"{\"not\":{\"enum\":[1,\"a\"]}}", {"2", "\"b\"", "1.5", "\"aa\"", "{}"}, {"1", "\"a\"", "1.0"}},
	{"{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":2}]}", {"1", "2.5", "\"x\""}, {"3", "1.5"}},
	{"{\"if\":{\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":[\"k\"]},\"then\":{\"required\":[\"x\"]}"
	 ",\"else\":{\"required\":"
	 "[\"y\"]},\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\"},\"x\":{\"type\":\"null\"},"
	 "\"y\":{\"type\":\"null\"}}}",
	 {"{\"k\":\"a\",\"x\":null}", "{\"k\":\"b\",\"y\":null}", "{\"y\":null}"},
	 {"{\"k\":\"a\"}", "{\"k\":\"a\",\"y\":null}", "{}"}},
	{"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[1,2,3]}}",
	 {"[]", "[3,1,2]"},
	 {"[1,1]", "[1,2,1]"}},
	{"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"object\",\"properties\":{\"a\":{"
	 "\"type\":\"integer\"}},"
	 "\"additionalProperties\":false}}",
	 {"[{\"a\":1},{\"a\":2},{}]"},
	 {"[{\"a\":1},{\"a\":1}]", "[{},{}]"}},
	{"{\"type\":\"array\",\"contains\":{\"const\":7},\"minContains\":2,\"maxContains\":2}",
	 {"[7,7]", "[1,7,2,7]"},
	 {"[7]", "[7,7,7]", "[]"}},
	{"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"items\":false,"
	 "\"minItems\":1}",
	 {"[\"a\"]", "[\"a\",1]"},
	 {"[]", "[1]", "[\"a\",1,1]"}},
	{"{\"type\":\"object\",\"minProperties\":2,\"maxProperties\":3,\"properties\":{\"a\":true,\"b\":true,"
	 "\"c\":true,\"d\":true},"
	 "\"additionalProperties\":false}",
	 {"{\"a\":1,\"d\":1}", "{\"b\":1,\"c\":1,\"d\":1}"},
	 {"{\"a\":1}", "{\"a\":1,\"b\":1,\"c\":1,\"d\":1}", "{}"}},
	{"{\"dependentRequired\":{\"a\":[\"b\"]},\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}"
	 ",\"b\":{\"type\":\"integer\"}}}",
	 {"{\"b\":1}", "{\"a\":1,\"b\":1}", "{}"},
	 {"{\"a\":1}"}},
	{"{\"$schema\":\"https://json-schema.org/draft/2020-12/"
	 "schema\",\"properties\":{\"a\":true},\"allOf\":[{\"properties\":{\"b\":true}}],"
	 "\"unevaluatedProperties\":false,\"type\":\"object\"}",
	 {"{\"a\":1}", "{\"a\":1,\"b\":1}"},
	 {"{\"c\":1}", "{\"a\":1,\"c\":1}"}},
	{"{\"type\":\"string\",\"format\":\"date\"}",
	 {"\"2024-02-29\"", "\"1999-12-31\""},
	 {"\"2023-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "2024"}},
	{"{\"type\":\"string\",\"format\":\"date-time\"}",
	 {"\"2024-02-29T12:00:00Z\"", "\"2024-01-01T00:00:00.5+02:00\""},
	 {"\"2024-02-30T12:00:00Z\"", "\"2024-01-01T24:00:00Z\"", "\"2024-01-01\""}},
	{"{\"type\":\"string\",\"format\":\"uuid\"}",
	 {"\"123e4567-e89b-12d3-a456-426614174000\""},
	 {"\"123e4567\""}},
	{"{\"type\":\"string\",\"format\":\"ipv4\"}", {"\"1.2.3.255\""}, {"\"1.2.3.256\"", "\"01.2.3.4\""}},
	{"{\"properties\":{\"foo\\\"bar\":{\"type\":\"integer\"},\"foo\\nbar\":{\"type\":\"null\"}},\"type\":"
	 "\"object\",\"additionalProperties\":false}",
	 {"{\"foo\\\"bar\":1}", "{\"foo\\\"bar\":1,\"foo\\nbar\":null}"},
	 {"{\"foo\":1}", "{\"foo\\\"bar\":null}"}},
	/* Of a key given twice the last counts, as in jsonb; a cycle of references that goes through a member is no cycle. */
	{"{\"type\":\"string\",\"type\":\"null\"}", {"null"}, {"\"a\""}},
	{"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/"
	 "b\"},\"b\":{\"type\":\"object\",\"properties\":{\"c\":{"
	 "\"$ref\":\"#/$defs/a\"}},\"additionalProperties\":false}}}",
	 {"{}", "{\"c\":{\"c\":{}}}"},
	 {"{\"c\":1}"}},
	{"{\"type\":\"object\",\"properties\":{\"foo\":false,\"bar\":true}}",
	 {"{\"bar\":1}", "{\"fo\":1}"},
	 {"{\"foo\":1}", "{\"bar\":1,\"foo\":2}"}},
};

static void
keywords_allow_and_forbid(void **state)
{
	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		Dsv3Grammar *g = grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA, cases[i].schema, NULL);

		for (int k = 0; k < 8 && cases[i].yes[k] != NULL; k++)
			if (!writes(g, cases[i].yes[k]))
				fail_msg("%s does not write %s", cases[i].schema, cases[i].yes[k]);
		for (int k = 0; k < 10 && cases[i].no[k] != NULL; k++)
			if (writes(g, cases[i].no[k]))
				fail_msg("%s writes %s", cases[i].schema, cases[i].no[k]);
		dsv3_grammar_free(g);
	}
}

static void
white_space_is_bounded(void **state)
{
	static const char schema[] =
		"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}},"
		"\"b\":"
		"{\"type\":\"null\"}},\"required\":[\"a\",\"b\"],\"additionalProperties\":false}";
	Dsv3Grammar *g = grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA, schema, NULL);
	Dsv3GrammarOptions options = {0};

	(void) state;
	assert_true(writes(g, "{\"a\":[1,2],\"b\":null}"));
	assert_true(writes(g, "{\"a\": [1, 2], \"b\": null}"));
	assert_true(writes(g, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": null\n}"));
	assert_false(writes(g, "{\"a\":  [1],\"b\":null}"));
	assert_false(writes(g, "{\n\n\"a\":[1],\"b\":null}"));
	assert_false(writes(g, "{ \"a\":[1],\"b\":null}"));
	assert_false(writes(g, "{\"a\" :[1],\"b\":null}"));
	assert_false(writes(g, "{\"a\":[1 ],\"b\":null}"));
	assert_false(writes(g, "{\"a\":[1\n,2],\"b\":null}"));
	assert_false(writes(g, "{\n   \"a\":[1],\"b\":null}"));
	assert_false(writes(g, " {\"a\":[1],\"b\":null}"));
	assert_false(writes(g, "{\"a\":[1],\"b\":null}\n"));
	dsv3_grammar_free(g);
	options.whitespace = DSV3_WHITESPACE_COMPACT;
	g = grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA, schema, &options);
	assert_true(writes(g, "{\"a\":[1,2],\"b\":null}"));
	assert_false(writes(g, "{\"a\": [1,2],\"b\":null}"));
	dsv3_grammar_free(g);
	options.whitespace = DSV3_WHITESPACE_SPACED;
	g = grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA, schema, &options);
	assert_true(writes(g, "{\"a\": [1, 2], \"b\": null}"));
	assert_false(writes(g, "{\"a\":[1,2],\"b\":null}"));
	dsv3_grammar_free(g);
}

static void
keys_come_in_one_order(void **state)
{
	static const char schema[] =
		"{\"type\":\"object\",\"properties\":{\"why\":{\"type\":\"null\"},\"a\":{\"type\":\"null\"}},"
		"\"required\":[\"a\",\"why\"],\"additionalProperties\":false}";
	static const char ordered[] =
		"{\"type\":\"object\",\"x-order\":[\"a\",\"why\"],\"properties\":{\"why\":{\"type\":\"null\"},\"a\":"
		"{\"type\":\"null\"}},\"required\":[\"why\",\"a\"],\"additionalProperties\":false}";
	Dsv3GrammarOptions options = {0};
	Dsv3Grammar *g = grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA, schema, NULL);
	char *spelled;
	size_t len;

	(void) state;
	assert_true(writes(g, "{\"why\":null,\"a\":null}"));
	assert_false(writes(g, "{\"a\":null,\"why\":null}"));
	spelled = dsv3_grammar_respell(g, " {\"a\" : null, \"why\" : null}", 27, &len);
	assert_non_null(spelled);
	assert_string_equal(spelled, "{\"why\":null,\"a\":null}");
	free(spelled);
	assert_null(dsv3_grammar_respell(g, "{\"a\":null}", 10, &len));
	dsv3_grammar_free(g);
	options.key_order = DSV3_ORDER_REQUIRED;
	g = grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA, schema, &options);
	assert_true(writes(g, "{\"a\":null,\"why\":null}"));
	dsv3_grammar_free(g);
	g = grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA, ordered, NULL);
	assert_true(writes(g, "{\"a\":null,\"why\":null}"));
	dsv3_grammar_free(g);
	memset(&options, 0, sizeof(options));
	options.closed_objects = true;
	g = grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA,
				   "{\"properties\":{\"a\":{\"type\":\"null\"}},\"type\":\"object\"}", &options);
	assert_true(writes(g, "{\"a\":null}"));
	assert_false(writes(g, "{\"b\":null}"));
	dsv3_grammar_free(g);
}

typedef struct Refusal
{
	Dsv3GrammarKind kind;
	const char *text;
	const char *sqlstate;
	const char *pointer;
	const char *keyword;
	const char *part; /* of the message */
} Refusal;

static const Refusal refusals[] = {
	{DSV3_GRAMMAR_JSON_SCHEMA, "{", DSV3_ERR_INVALID_JSON, "", "", "not valid JSON"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"a\":\"\\ud800\"}", DSV3_ERR_INVALID_TEXT, "", "", "surrogate"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"strin\"}", DSV3_ERR_INVALID_PARAMETER, "", "type",
	 "unknown type"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"$ref\":\"other.json\"}}}", DSV3_ERR_UNSUPPORTED,
	 "/properties/a", "$ref", "leads out"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/x\"}", DSV3_ERR_INVALID_PARAMETER, "", "$ref",
	 "leads nowhere"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":\"#/$defs/a\"}}}",
	 DSV3_ERR_INVALID_PARAMETER, "", NULL, "no value"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#\"}", DSV3_ERR_INVALID_PARAMETER, "", NULL, "no value"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "false", DSV3_ERR_INVALID_PARAMETER, "", NULL, "no value"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
	 DSV3_ERR_INVALID_PARAMETER, "", NULL, "no value"},
	{DSV3_GRAMMAR_JSON_SCHEMA,
	 "{\"type\":\"array\",\"minItems\":4,\"uniqueItems\":true,\"items\":{\"enum\":[1,2,3]}}",
	 DSV3_ERR_INVALID_PARAMETER, "", NULL, "no value"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", DSV3_ERR_UNSUPPORTED, "",
	 "pattern", "back-reference"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"(\"}", DSV3_ERR_INVALID_PARAMETER, "",
	 "pattern", "invalid"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){16}c\"}", DSV3_ERR_TOO_LARGE,
	 "", "pattern", "states"},
	{DSV3_GRAMMAR_JSON_SCHEMA, "{\"minLength\":-1}", DSV3_ERR_INVALID_PARAMETER, "", "minLength",
	 "non-negative"},
	{DSV3_GRAMMAR_CHOICE, "[]", DSV3_ERR_INVALID_PARAMETER, "", NULL, "at least one"},
	{DSV3_GRAMMAR_REGEX, "a(?<=b)", DSV3_ERR_UNSUPPORTED, "", NULL, "lookbehind"},
	{DSV3_GRAMMAR_EBNF, "a ::= a \"x\" | \"y\"", DSV3_ERR_UNSUPPORTED, "", NULL, "recursive on the left"},
	{DSV3_GRAMMAR_EBNF, "a ::= b", DSV3_ERR_INVALID_PARAMETER, "", NULL, "not defined"},
	{DSV3_GRAMMAR_EBNF, "a ::= \"x\" a", DSV3_ERR_INVALID_PARAMETER, "", NULL, "never be completed"},
};

static void
refusals_name_the_place(void **state)
{
	(void) state;
	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
	{
		Dsv3Error err = {0};
		Dsv3GrammarPlace place;
		Dsv3Grammar *g = dsv3_grammar_compile(vocab, refusals[i].kind, refusals[i].text,
											  strlen(refusals[i].text), NULL, &place, &err);

		if (g != NULL)
			fail_msg("%s compiled", refusals[i].text);
		assert_string_equal(err.sqlstate, refusals[i].sqlstate);
		if (strstr(err.message, refusals[i].part) == NULL)
			fail_msg("%s: message is \"%s\"", refusals[i].text, err.message);
		assert_string_equal(place.pointer, refusals[i].pointer);
		if (refusals[i].keyword != NULL)
			assert_string_equal(place.keyword, refusals[i].keyword);
	}
}

static void
notices_are_kept(void **state)
{
	Dsv3Grammar *g =
		grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA,
				   "{\"properties\":{\"a\":{\"type\":\"string\",\"format\":\"zipcode\"}}}", NULL);
	const char *pointer;
	const char *keyword;
	const char *text = dsv3_grammar_notice(g, 0, &pointer, &keyword);

	(void) state;
	assert_non_null(text);
	assert_non_null(strstr(text, "zipcode"));
	assert_string_equal(pointer, "/properties/a");
	assert_string_equal(keyword, "format");
	assert_null(dsv3_grammar_notice(g, 1, NULL, NULL));
	dsv3_grammar_free(g);
}

static void
validator_has_its_own_mind(void **state)
{
	Dsv3Grammar *g = grammar_of(vocab, DSV3_GRAMMAR_JSON_SCHEMA,
								"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":"
								"\"^x\",\"format\":\"date\"}}}",
								NULL);
	Dsv3Error err = {0};

	(void) state;
	assert_false(dsv3_grammar_validate(g, "{\"a\":\"y\"}", 9, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_INTERNAL);
	assert_true(dsv3_grammar_validate(g, "{\"b\":1}", 7, &err));
	assert_false(dsv3_grammar_validate(g, "{\"b\":1,\"b\":2}", 13, &err));
	assert_false(dsv3_grammar_validate(g, "{", 1, &err));
	dsv3_grammar_free(g);
	g = grammar_of(vocab, DSV3_GRAMMAR_CHOICE, "[\"a\", \"\\u00e9\"]", NULL);
	assert_true(dsv3_grammar_validate(g, "\xc3\xa9", 2, &err));
	assert_false(dsv3_grammar_validate(g, "b", 1, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_INTERNAL);
	dsv3_grammar_free(g);
}

/* Expressions match the whole answer, and what only PCRE2 knows means what ECMA-262 says. */
static void
validator_reads_expressions(void **state)
{
	static const struct
	{
		const char *regex;
		const char *good;
		const char *bad;
	} expressions[] = {
		{"a|bc", "bc", "bcd"},
		{"a|bc", "a", "ab"},
		{"\\Q\\E", "QE", ""},
		{"[\\R\\h]\\N", "hN", "hx"},
		{"\\v", "\v", "\n"},
		{"x{,3}", "x{,3}", "xx"},
		{"a$", "a", "a\n"},
		{".", "\xc3\xa9", "\n"},
		{"[^\\S]\\s", " \xc2\xa0", " a"},
		{"\\w\\d", "a1",
		 "\xc3\xa9"
		 "1"},
	};

	(void) state;
	for (size_t i = 0; i < sizeof(expressions) / sizeof(expressions[0]); i++)
	{
		Dsv3Grammar *g = grammar_of(vocab, DSV3_GRAMMAR_REGEX, expressions[i].regex, NULL);
		Dsv3Error err = {0};

		assert_true(writes(g, expressions[i].good));
		assert_false(writes(g, expressions[i].bad));
		assert_true(dsv3_grammar_validate(g, expressions[i].good, strlen(expressions[i].good), &err));
		assert_false(dsv3_grammar_validate(g, expressions[i].bad, strlen(expressions[i].bad), &err));
		assert_string_equal(err.sqlstate, DSV3_ERR_INTERNAL);
		dsv3_grammar_free(g);
	}
}

static bool
always_cancelled(void *arg)
{
	(void) arg;
	return true;
}

/* Schemas made to hurt: a clear answer in bounded time and memory. */
static void
hostile_schemas_are_bounded(void **state)
{
	size_t size = 2000000;
	char *text = malloc(size + 64);
	Dsv3Error err = {0};
	Dsv3GrammarOptions options = {0};
	Dsv3Grammar *g;
	size_t n;

	(void) state;
	memset(text, '[', 10000);
	assert_null(dsv3_grammar_compile(vocab, DSV3_GRAMMAR_JSON_SCHEMA, text, 10000, NULL, NULL, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_TOO_LARGE);
	assert_string_equal(err.message, "schema is nested deeper than 256 levels at byte 256");

	n = (size_t) sprintf(text, "{\"minimum\":");
	memset(text + n, '9', 100000);
	n += 100000;
	text[n++] = '}';
	g = dsv3_grammar_compile(vocab, DSV3_GRAMMAR_JSON_SCHEMA, text, n, NULL, NULL, &err);
	assert_null(g);
	assert_string_equal(err.sqlstate, DSV3_ERR_TOO_LARGE);
	assert_non_null(strstr(err.message, "more than 400 digits"));
	text[n - 1] = '9';
	text[n++] = '}';
	assert_null(dsv3_grammar_compile(vocab, DSV3_GRAMMAR_JSON_SCHEMA, text, n, NULL, NULL, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_TOO_LARGE);
	assert_string_equal(err.message, "schema has a number of more than 100000 digits at byte 100012");

	n = (size_t) sprintf(text, "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{");
	for (int i = 0; i < 50000; i++)
		n += (size_t) sprintf(text + n, "%s\"property%d\":{\"type\":\"null\"}", i > 0 ? "," : "", i);
	n += (size_t) sprintf(text + n, "}}");
	g = dsv3_grammar_compile(vocab, DSV3_GRAMMAR_JSON_SCHEMA, text, n, &options, NULL, &err);
	assert_non_null(g);
	assert_true(writes(g, "{\"property7\":null,\"property49999\":null}"));
	assert_false(writes(g, "{\"property7\":null,\"property50000\":null}"));
	dsv3_grammar_free(g);

	options.cancelled = always_cancelled;
	assert_null(dsv3_grammar_compile(vocab, DSV3_GRAMMAR_JSON_SCHEMA, text, n, &options, NULL, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_CANCELLED);

	memset(&options, 0, sizeof(options));
	options.memory_limit = 64 * 1024;
	assert_null(dsv3_grammar_compile(vocab, DSV3_GRAMMAR_JSON_SCHEMA, text, n, &options, NULL, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_TOO_LARGE);
	assert_null(dsv3_grammar_compile(vocab, DSV3_GRAMMAR_JSON_SCHEMA, "\"\xff\"", 3, NULL, NULL, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_INVALID_TEXT);
	free(text);
}

static Dsv3Grammar *
compile_in(Dsv3TokenTable *table, const char *schema, size_t memory, Dsv3Error *err)
{
	Dsv3GrammarOptions options = {0};

	options.memory_limit = memory;
	memset(err, 0, sizeof(*err));
	return dsv3_grammar_compile(table, DSV3_GRAMMAR_JSON_SCHEMA, schema, strlen(schema), &options, NULL, err);
}

/* What is refused is refused whether or not its lexemes are there already: the least memory that is enough is the same. */
static void
limits_do_not_depend_on_the_past(void **state)
{
	static const char *const schemas[] = {
		"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[a-f]{2,9}x\"},\"b\":"
		"{"
		"\"type\":\"string\",\"pattern\":\"^[a-f]{2,9}x\",\"format\":\"date\"},\"c\":{\"type\":\"number\","
		"\"minimum\":3,\"multipleOf\":7}},\"patternProperties\":{\"^[a-f]{2,9}x\":{\"type\":\"null\"}}}",
		"{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^(ab)*$\",\"minLength\":3,"
		"\"maxLength\":"
		"20}}",
	};
	Dsv3Error err;

	(void) state;
	for (size_t i = 0; i < sizeof(schemas) / sizeof(schemas[0]); i++)
	{
		Dsv3TokenTable *table;
		size_t lo = 1024; /* not enough */
		size_t hi = (size_t) 64 * 1024 * 1024;

		while (hi - lo > 8)
		{
			size_t middle = (lo + hi) / 2;
			Dsv3Grammar *g;

			table = small_vocab();
			g = compile_in(table, schemas[i], middle, &err);
			if (g != NULL)
				hi = middle;
			else
				lo = middle;
			dsv3_grammar_free(g);
			dsv3_token_table_free(table);
		}
		table = small_vocab();
		for (int round = 0; round < 2; round++)
		{
			Dsv3Grammar *g = compile_in(table, schemas[i], hi, &err);

			assert_non_null(g);
			dsv3_grammar_free(g);
			assert_null(compile_in(table, schemas[i], lo, &err));
			assert_string_equal(err.sqlstate, DSV3_ERR_TOO_LARGE);
		}
		dsv3_token_table_free(table);
	}
}

/* Too much work is refused by counting, not by the clock, with the place where it became too much. */
static void
work_is_counted(void **state)
{
	char *text = malloc(1000000);
	size_t n = (size_t) sprintf(text, "{\"type\":\"object\",\"properties\":{");
	Dsv3GrammarPlace place;
	char first[512];
	Dsv3Error err = {0};

	(void) state;
	for (int i = 0; i < 5000; i++)
		n += (size_t) sprintf(text + n,
							  "%s\"p%d\":{\"type\":\"string\",\"pattern\":\"^[a-z]+%d[0-9]*x{0,%d}$\"}",
							  i > 0 ? "," : "", i, i, i % 30);
	n += (size_t) sprintf(text + n, "}}");
	assert_null(dsv3_grammar_compile(vocab, DSV3_GRAMMAR_JSON_SCHEMA, text, n, NULL, &place, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_TOO_LARGE);
	assert_string_equal(err.message, "schema takes too many steps to compile");
	strcpy(first, place.pointer);
	assert_memory_equal(first, "/properties/p", 13);
	assert_null(dsv3_grammar_compile(vocab, DSV3_GRAMMAR_JSON_SCHEMA, text, n, NULL, &place, &err));
	assert_string_equal(place.pointer, first);
	free(text);
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
		cmocka_unit_test(keywords_allow_and_forbid),
		cmocka_unit_test(white_space_is_bounded),
		cmocka_unit_test(keys_come_in_one_order),
		cmocka_unit_test(refusals_name_the_place),
		cmocka_unit_test(notices_are_kept),
		cmocka_unit_test(validator_has_its_own_mind),
		cmocka_unit_test(validator_reads_expressions),
		cmocka_unit_test(hostile_schemas_are_bounded),
		cmocka_unit_test(limits_do_not_depend_on_the_past),
		cmocka_unit_test(work_is_counted),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
