/*
 * test_constraint.c
 *	  Structured output through the scheduler, on the test model: its answer passes where the grammar allows it and is bent
 *	  where not, whole within the token limit, and the same whatever shares the batch or was delivered before a restart.
 */
#include "rig.h"

#include "engine/sequence.h"
#include "grammar/grammar.h"

#include <jansson.h>

static const char schema[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\","
							 "\"maxLength\":40},\"n\":{\"type\":\"integer\"},"
							 "\"kind\":{\"enum\":[\"good\",\"bad\",null]}},\"required\":[\"name\",\"n\","
							 "\"kind\"],\"additionalProperties\":false}";

/* A request whose free answer is exactly this text. */
static Dsv3Request *
say(uint64_t id, const char *text)
{
	char prompt[512] = "/bytes ";
	size_t at = strlen(prompt);

	for (; *text; text++, at += 2)
		snprintf(prompt + at, sizeof(prompt) - at, "%02x", (unsigned char) *text);
	return generate(id, prompt);
}

static Dsv3Request *
constrain(Dsv3Request *request, Dsv3GrammarKind kind, const char *grammar)
{
	request->grammar_kind = kind;
	set(&request->grammar, grammar);
	return request;
}

static Result *
answer(Rig *rig, Dsv3Request *request)
{
	Result *result = &rig->results[request->id];

	submit(rig, request);
	run(rig);
	assert_int_equal(result->ends, 1);
	assert_string_equal(result->error.sqlstate, "");
	return result;
}

/* Is the text an object with the three members of schema, of the right types? */
static void
assert_valid(const char *text)
{
	json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	json_t *kind = json_object_get(object, "kind");

	assert_non_null(object);
	assert_int_equal(json_object_size(object), 3);
	assert_true(json_is_string(json_object_get(object, "name")));
	assert_true(json_is_integer(json_object_get(object, "n")));
	assert_true(json_is_null(kind) || strcmp(json_string_value(kind), "good") == 0 ||
				strcmp(json_string_value(kind), "bad") == 0);
	json_decref(object);
}

static void
allowed_text_passes(void **state)
{
	static const char text[] = "{\"name\": \"Ann \xc3\xa9\", \"n\": -12, \"kind\": null}";
	Rig *rig = open_rig("test:", 64, 0, false);
	Result *result = answer(rig, constrain(say(1, text), DSV3_GRAMMAR_JSON_SCHEMA, schema));

	(void) state;
	assert_string_equal(result->text.data, text);
	assert_int_equal(result->finish, DSV3_FINISH_STOP);
	assert_string_equal(
		answer(rig, constrain(say(2, "bad"), DSV3_GRAMMAR_CHOICE, "[\"good\", \"bad\"]"))->text.data, "bad");
	assert_string_equal(
		answer(rig, constrain(say(3, "2026-12"), DSV3_GRAMMAR_REGEX, "\\d{4}-\\d\\d"))->text.data, "2026-12");
	assert_string_equal(
		answer(rig, constrain(say(4, "aab"), DSV3_GRAMMAR_EBNF, "root ::= \"a\" root | \"b\""))->text.data,
		"aab");
	close_rig(rig);
}

static void
other_text_is_bent(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);
	char prompt[32];

	(void) state;
	for (int id = 1; id <= 40; id++)
	{
		Dsv3Request *request;

		snprintf(prompt, sizeof(prompt), "not json, number %d", id);
		request = constrain(generate((uint64_t) id, prompt), DSV3_GRAMMAR_JSON_SCHEMA, schema);
		request->has_max_tokens = true;
		request->max_tokens = (uint32_t) (30 + id);
		if (id % 2)
			request->sampling.temperature = 1.5;
		request->sampling.seed = id;
		assert_valid(answer(rig, request)->text.data);
	}
	close_rig(rig);
}

static void
whole_within_the_limit(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);
	static const char least[] = "{\"name\":\"\",\"n\":0,\"kind\":\"bad\"}";
	Dsv3Request *request;

	(void) state;
	for (uint32_t tokens = sizeof(least); tokens < sizeof(least) + 30; tokens++)
	{
		request = constrain(generate(tokens, "/forever"), DSV3_GRAMMAR_JSON_SCHEMA, schema);
		request->has_max_tokens = true;
		request->max_tokens = tokens;
		assert_valid(answer(rig, request)->text.data);
	}
	request = constrain(generate(1, "/forever"), DSV3_GRAMMAR_JSON_SCHEMA, schema);
	request->has_max_tokens = true;
	request->max_tokens = 10;
	expect_error(rig, request, DSV3_ERR_TOO_LARGE, "too few for a complete answer");
	expect_error(rig, constrain(generate(2, "x"), DSV3_GRAMMAR_JSON_SCHEMA, "{\"type\": 7}"), "22023",
				 "type");
	close_rig(rig);
}

/* What reaches the user is checked, not what the automata believe. */
static void
finished_answers_are_checked(void **state)
{
	static const struct
	{
		Dsv3GrammarKind kind;
		const char *grammar;
		const char *answer;
		const char *message;
	} cases[] = {
		{DSV3_GRAMMAR_JSON_SCHEMA, schema, "{\"name\": \"A\", \"n\": 1, \"kind\": null}",
		 "the answer is not valid JSON"},
		{DSV3_GRAMMAR_JSON_SCHEMA, "{\"const\": \"a1\"}", "\"a1\"", "the answer does not satisfy its schema"},
		{DSV3_GRAMMAR_CHOICE, "[\"x0\", \"x1\"]", "x1", "the answer is none of its choices"},
		{DSV3_GRAMMAR_REGEX, "x\\d", "x7", "the answer does not match its regular expression"},
	};
	Rig *sound = open_rig("test:", 64, 0, false);
	Rig *garbled = open_rig("test:garble=1", 64, 0, false);
	Dsv3Request *request;

	(void) state;
	for (uint64_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		assert_string_equal(
			answer(sound, constrain(say(i, cases[i].answer), cases[i].kind, cases[i].grammar))->text.data,
			cases[i].answer);
		expect_error(garbled, constrain(say(i, cases[i].answer), cases[i].kind, cases[i].grammar),
					 DSV3_ERR_INTERNAL, cases[i].message);
	}
	/* A stop string cuts the answer: there is nothing whole to check. */
	request = constrain(say(50, cases[0].answer), cases[0].kind, cases[0].grammar);
	set(&request->stops[request->n_stops++], "n");
	assert_string_equal(answer(sound, request)->text.data, "{\"");
	/* What PCRE2 gives up on is decided by the automaton alone. */
	request = constrain(say(51, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"), DSV3_GRAMMAR_REGEX,
						"(((a+)+)+)+[bc]{2}|a*b");
	assert_string_equal(answer(sound, request)->text.data, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab");
	close_rig(sound);
	close_rig(garbled);
}

/* Request i of the mix. */
static Dsv3Request *
mixed(uint64_t id, int i)
{
	char prompt[64];
	Dsv3Request *request;

	snprintf(prompt, sizeof(prompt), "text %d of a mix", i);
	request = generate(id, prompt);
	if (i % 4 == 0)
		constrain(request, DSV3_GRAMMAR_JSON_SCHEMA, schema);
	else if (i % 4 == 1)
		constrain(request, DSV3_GRAMMAR_REGEX, "[a-f]{3,20}");
	else if (i % 4 == 2)
		constrain(request, DSV3_GRAMMAR_CHOICE, "[\"one\", \"two\", \"three\"]");
	request->sampling.temperature = i % 3;
	request->sampling.seed = i;
	request->has_max_tokens = true;
	request->max_tokens = 60;
	return request;
}

static void
the_same_in_any_batch(void **state)
{
	Rig *alone = open_rig("test:", 64, 0, false);
	Rig *together = open_rig("test:", 24, 8, false);

	(void) state;
	for (int i = 1; i <= 60; i++)
		submit(together, mixed((uint64_t) i, i));
	run(together);
	for (int i = 1; i <= 60; i++)
	{
		Result *expected = answer(alone, mixed((uint64_t) i, i));

		assert_string_equal(together->results[i].error.sqlstate, "");
		assert_string_equal(together->results[i].text.data, expected->text.data);
	}
	close_rig(alone);
	close_rig(together);
}

static void
the_same_after_a_restart(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);
	Result *whole = answer(rig, mixed(1, 4));
	Dsv3Error err;

	(void) state;
	for (size_t had = 1; had < whole->tokens.count; had++)
	{
		Dsv3Request *request = mixed(had + 1, 4);
		Dsv3Text before = {0};
		Result *rest;

		request->tokens = calloc(had, sizeof(int32_t));
		memcpy(request->tokens, whole->tokens.ids, had * sizeof(int32_t));
		request->n_tokens = had;
		rest = answer(rig, request);
		assert_true(dsv3_backend_decode(rig->backend, whole->tokens.ids, had, true, &before, &err));
		assert_true(dsv3_text_append(&before, rest->text.data ? rest->text.data : "", rest->text.len, &err));
		assert_string_equal(before.data, whole->text.data);
		dsv3_text_free(&before);
	}
	close_rig(rig);
}

/* Request i, for a model whose tokens are longer than bytes; with log-probabilities nothing is drafted and no row is cut short. */
static Dsv3Request *
planned(uint64_t id, int i, bool logprobs)
{
	static const char *const grammars[] = {
		schema,
		"{\"type\":\"object\",\"properties\":{\"customer_name\":{\"const\":\"Anna Maria "
		"Schneider\"},\"customer_number\":"
		"{\"type\":\"integer\",\"minimum\":100,\"maximum\":999},\"tags\":{\"type\":\"array\",\"items\":{"
		"\"enum\":[\"one \xc3\xa9t\xc3\xa9\","
		"\"two\"]},\"maxItems\":4}},\"required\":[\"customer_name\",\"customer_number\",\"tags\"]}",
		"{\"enum\":[\"the same beginning and the same\",\"the same beginning and another end\"]}"};
	Dsv3Request *request = constrain(generate(id, "Who is it?"), DSV3_GRAMMAR_JSON_SCHEMA, grammars[i % 3]);

	request->sampling.temperature = i / 3 % 2;
	request->sampling.repetition_penalty = i / 6 % 2 ? 1.2 : 1.0;
	request->sampling.top_k = i / 12 % 2 ? 3 : 0;
	request->sampling.top_p = i / 24 % 2 ? 0.9 : 1.0;
	request->sampling.seed = i;
	request->whitespace = i / 2 % 2;
	request->raw = true;
	request->has_max_tokens = true;
	request->max_tokens = (uint32_t) (180 + i);
	request->has_logprobs = logprobs;
	return request;
}

/*
 * The plan changes the number of steps and nothing else.
 */
static void
check_plan(const char *model, bool must_save)
{
	Rig *rig = open_rig(model, 64, 0, false);
	Rig *crowd = open_rig(model, 16, 12, false);
	int64_t steps[2] = {0, 0};

	for (int i = 0; i < 48; i++)
		submit(crowd, planned((uint64_t) i, i, false));
	run(crowd);
	for (int i = 0; i < 48; i++)
	{
		Result *results[2];

		for (int plain = 0; plain < 2; plain++)
		{
			int64_t before = stat_of(rig, "steps");

			results[plain] = answer(rig, planned((uint64_t) (2 * i + plain), i, plain));
			steps[plain] += stat_of(rig, "steps") - before;
		}
		assert_string_equal(results[0]->text.data, results[1]->text.data);
		assert_int_equal(results[0]->tokens.count, results[1]->tokens.count);
		assert_memory_equal(results[0]->tokens.ids, results[1]->tokens.ids,
							results[0]->tokens.count * sizeof(int32_t));
		assert_int_equal(results[0]->output_tokens, results[1]->output_tokens);
		assert_int_equal(crowd->results[i].ends, 1);
		assert_string_equal(crowd->results[i].error.sqlstate, "");
		assert_string_equal(crowd->results[i].text.data, results[1]->text.data);
	}
	if (must_save)
		assert_true(steps[0] * 2 < steps[1]);
	assert_true(steps[0] <= steps[1]);
	close_rig(rig);
	close_rig(crowd);
}

static void
plans_change_no_token(void **state)
{
	(void) state;
	check_plan("test:", true);
	/* Of random weights, which draft comes true is chance. */
	if (access("build/tiny-model/config.json", R_OK) == 0)
		check_plan("build/tiny-model", false);
	else
		print_message("no build/tiny-model: make tiny-model\n");
}

/* Request i of a thinking model: what it thinks is free, what it answers is not. */
static Dsv3Request *
thinking(uint64_t id, int i)
{
	static const char text[] = "{\"name\": \"Ann\", \"n\": 7, \"kind\": \"good\"}";
	Dsv3Request *request;

	if (i % 3 == 0)
		request = constrain(say(id, text), DSV3_GRAMMAR_JSON_SCHEMA, schema);
	else if (i % 3 == 1)
		request = constrain(generate(id, "neither"), DSV3_GRAMMAR_CHOICE, "[\"one\", \"two\"]");
	else
		request = constrain(generate(id, "some words"), DSV3_GRAMMAR_REGEX, "[a-f]{3,9}");
	request->sampling.temperature = i / 3 % 2;
	request->sampling.seed = i;
	request->has_max_tokens = true;
	request->max_tokens = (uint32_t) (150 + 7 * i);
	request->has_think_budget = i / 6 % 2;
	request->think_budget = (uint32_t) (i % 5);
	return request;
}

/* Where the thinking part ends in an answer of the test model; its tokens are bytes. */
static size_t
think_end(const Result *result)
{
	size_t at = 0;

	while (at < result->tokens.count && result->tokens.ids[at] != 262)
		at++;
	assert_true(at < result->tokens.count);
	return at;
}

static void
check_thinking(const char *model)
{
	Rig *alone = open_rig(model, 64, 0, false);
	Rig *together = open_rig(model, 24, 8, false);
	Dsv3Error err;

	for (int i = 0; i < 36; i++)
		submit(together, thinking((uint64_t) i, i));
	run(together);
	for (int i = 0; i < 36; i++)
	{
		Result *result = answer(alone, thinking((uint64_t) i, i));
		size_t end = think_end(result);
		size_t had[] = {1, end / 2 + 1, end, end + 1, end + 2, result->tokens.count - 1};

		assert_string_equal(together->results[i].text.data, result->text.data);
		if (i % 3 == 0)
			assert_valid(result->text.data);
		if (i == 0)
			assert_string_equal(result->text.data, "{\"name\": \"Ann\", \"n\": 7, \"kind\": \"good\"}");
		/* what was thought is what the free model thinks, as far as the budget goes */
		if (i / 6 % 2)
			assert_true(end <= (size_t) (i % 5) + 1);
		else
			assert_true(end >= 6);
		for (size_t k = 0; k < sizeof(had) / sizeof(had[0]); k++)
		{
			Dsv3Request *request = thinking(100 + k, i);
			Result *rest = &alone->results[100 + k];
			Dsv3Text whole = {0};

			memset(rest, 0, sizeof(*rest));
			request->tokens = calloc(had[k], sizeof(int32_t));
			memcpy(request->tokens, result->tokens.ids, had[k] * sizeof(int32_t));
			request->n_tokens = had[k];
			answer(alone, request);
			assert_int_equal(rest->tokens.count, result->tokens.count - had[k]);
			assert_memory_equal(rest->tokens.ids, result->tokens.ids + had[k],
								rest->tokens.count * sizeof(int32_t));
			for (size_t at = end + 1; at < had[k]; at++)
				assert_true(dsv3_text_append(&whole, (const char[]){(char) result->tokens.ids[at]}, 1, &err));
			assert_true(
				dsv3_text_append(&whole, rest->text.data ? rest->text.data : "", rest->text.len, &err));
			assert_string_equal(whole.data, result->text.data);
			dsv3_text_free(&whole);
			dsv3_text_free(&rest->text);
			dsv3_tokens_free(&rest->tokens);
		}
	}
	close_rig(alone);
	close_rig(together);
}

static void
thinking_comes_first(void **state)
{
	Rig *rig;
	Dsv3Request *request;

	(void) state;
	check_thinking("test:think=1"); /* the prompt opens the thinking part */
	check_thinking("test:think=2"); /* the model does */
	/* No room to think, and no wish to: the answer at once, with no tag in it. */
	rig = open_rig("test:think=2", 64, 0, false);
	request = thinking(1, 1);
	request->max_tokens = 10;
	assert_string_equal(answer(rig, request)->text.data, "one");
	assert_int_equal(rig->results[1].tokens.ids[0], 'o');
	request = thinking(2, 1);
	request->think = DSV3_THINK_OFF;
	assert_int_equal(answer(rig, request)->tokens.ids[0], 'o');
	close_rig(rig);
}

static Dsv3Request *
score(uint64_t id, const char *prompt, const char *choices)
{
	Dsv3Request *request = dsv3_request_new(id, DSV3_REQUEST_SCORE);

	set(&request->prompt, prompt);
	set(&request->choices, choices);
	return request;
}

static void
scores_do_not_depend_on_each_other(void **state)
{
	static const char *const choices[] = {"YES", "NO", "PERHAPS", "Y", ""};
	Rig *rig = open_rig("test:", 64, 0, false);
	json_t *all = json_loads(
		answer(rig, score(1, "yes", "[\"YES\", \"NO\", \"PERHAPS\", \"Y\", \"\"]"))->text.data, 0, NULL);
	double most = -INFINITY;

	(void) state;
	assert_int_equal(json_array_size(all), 5);
	for (size_t i = 0; i < 5; i++)
	{
		char one[32];
		json_t *alone;

		snprintf(one, sizeof(one), "[\"%s\"]", choices[i]);
		alone = json_loads(answer(rig, score(10 + i, "yes", one))->text.data, 0, NULL);
		assert_true(json_real_value(json_array_get(alone, 0)) == json_real_value(json_array_get(all, i)));
		most = fmax(most, json_real_value(json_array_get(all, i)));
		json_decref(alone);
	}
	assert_true(json_real_value(json_array_get(all, 0)) == most);
	json_decref(all);
	expect_error(rig, score(20, "x", "[]"), DSV3_ERR_INVALID_PARAMETER, "choices");
	expect_error(rig, score(21, "x", "[\"a\", 1]"), DSV3_ERR_INVALID_PARAMETER, "choices");
	expect_error(rig, score(22, "x", "nonsense"), DSV3_ERR_INVALID_PARAMETER, "choices");
	close_rig(rig);
}

static void
scores_that_cannot_be(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);
	double logprobs[] = {-INFINITY, -1.5};
	Dsv3Sequence seq = {.choice_logprobs = logprobs, .n_choices = 2};
	Dsv3Text text = {0};
	Dsv3Error err;
	json_t *scores;

	(void) state;
	assert_true(dsv3_sequence_scores(&seq, &text, &err));
	scores = json_loads(text.data, 0, NULL);
	assert_int_equal(json_array_size(scores), 2);
	assert_true(json_real_value(json_array_get(scores, 0)) < -1e300);
	assert_true(json_real_value(json_array_get(scores, 1)) == -1.5);
	json_decref(scores);
	dsv3_text_free(&text);
	/* A tokenizer with more ids than the output matrix has rows. */
	rig->backend->sample_limit = 'm';
	expect_error(rig, score(1, "x", "[\"z\"]"), DSV3_ERR_BAD_FILE, "the tokenizer gave id 122");
	close_rig(rig);
}

static void
grammars_can_be_asked_about(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);
	Dsv3Request *request = dsv3_request_new(1, DSV3_REQUEST_CHECK_GRAMMAR);
	json_t *object =
		json_loads(answer(rig, constrain(request, DSV3_GRAMMAR_JSON_SCHEMA, schema))->text.data, 0, NULL);

	(void) state;
	assert_true(json_integer_value(json_object_get(object, "shortest")) > 20);
	assert_true(json_is_array(json_object_get(object, "notices")));
	json_decref(object);
	request = constrain(dsv3_request_new(2, DSV3_REQUEST_ACCEPTS), DSV3_GRAMMAR_REGEX, "ab+");
	set(&request->input, "abbc");
	assert_string_equal(answer(rig, request)->text.data, "{\"accepted\":false,\"offset\":3}");
	request = constrain(dsv3_request_new(3, DSV3_REQUEST_ACCEPTS), DSV3_GRAMMAR_REGEX, "ab+");
	set(&request->input, "abb");
	assert_string_equal(answer(rig, request)->text.data, "{\"accepted\":true,\"offset\":3}");
	close_rig(rig);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(allowed_text_passes),          cmocka_unit_test(other_text_is_bent),
		cmocka_unit_test(whole_within_the_limit),       cmocka_unit_test(the_same_in_any_batch),
		cmocka_unit_test(the_same_after_a_restart),     cmocka_unit_test(plans_change_no_token),
		cmocka_unit_test(thinking_comes_first),         cmocka_unit_test(scores_do_not_depend_on_each_other),
		cmocka_unit_test(finished_answers_are_checked), cmocka_unit_test(scores_that_cannot_be),
		cmocka_unit_test(grammars_can_be_asked_about),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
