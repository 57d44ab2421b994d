/*
 * test_speculation.c
 *	  Drafts change no answer: every kind of request, alone without drafts and in company with them; and the measure of whether
 *	  they pay.
 *
 * The test model's drafts are wrong at every n-th position. The small model with a draft layer is right in some places and
 * wrong in others by itself.
 */
#include "rig.h"

#include "grammar/grammar.h"

static const char schema[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\","
							 "\"maxLength\":40},\"n\":{\"type\":\"integer\"},"
							 "\"kind\":{\"enum\":[\"good\",\"bad\",null]}},\"required\":[\"name\",\"n\","
							 "\"kind\"],\"additionalProperties\":false}";

static const char draft_model[] = "build/draft-model";

/* Requests of all kinds, some with a grammar, thinking, or a cache they share. */
static Dsv3Request *
make_request(uint64_t id, bool templated)
{
	Dsv3Request *request = any_request(id, id);

	if (request->kind == DSV3_REQUEST_LOGPROB)
		return request;
	if (id % 4 == 1)
	{
		request->grammar_kind = id % 8 == 1 ? DSV3_GRAMMAR_JSON_SCHEMA : DSV3_GRAMMAR_REGEX;
		set(&request->grammar, id % 8 == 1 ? schema : "[a-f]{5,60} and [0-9]+(, [0-9]+)*");
		request->has_max_tokens = true;
		request->max_tokens = 150 + (uint32_t) id;
	}
	if (id % 3 == 1 && !templated)
	{
		request->think = DSV3_THINK_ON;
		request->has_think_budget = id % 2;
		request->think_budget = 7;
	}
	if (id % 5 < 3)
		set(&request->scope, "shared");
	if (!request->has_max_tokens)
	{
		request->has_max_tokens = true;
		request->max_tokens = 1 + (uint32_t) (id * 29) % 120;
	}
	return request;
}

/* The same requests alone without drafts, and together with them in a cache so small that some give way. */
static void
check_same(const char *plain_model, const char *model, int n, int kv_blocks)
{
	Rig *plain = open_rig(plain_model, 400, 0, false);
	Rig *mixed = open_drafting_rig(model, kv_blocks, 0, false, NULL, DSV3_SPECULATION_ON);
	bool templated = strncmp(model, "test:", 5) != 0;
	uint32_t drafted = 0, accepted = 0, constrained = 0;

	for (int i = 0; i < n; i++)
	{
		submit(plain, make_request((uint64_t) i, templated));
		run(plain);
		submit(mixed, make_request((uint64_t) i, templated));
		(void) dsv3_scheduler_step(mixed->scheduler);
	}
	run(mixed);
	for (int i = 0; i < n; i++)
	{
		const Result *result = &mixed->results[i];

		expect_same(&plain->results[i], result);
		assert_true(result->accepted <= result->drafted);
		assert_true(result->drafted <= result->output_tokens);
		assert_int_equal(plain->results[i].drafted, 0);
		drafted += result->drafted;
		accepted += result->accepted;
		constrained += i % 4 == 1 ? result->accepted : 0;
	}
	assert_true(accepted > 0 && accepted < drafted);
	assert_true(constrained > 0);
	assert_true(stat_of(mixed, "drafted_tokens") >= drafted);
	assert_true(stat_of(mixed, "steps") < stat_of(plain, "steps"));
	assert_true(stat_of(mixed, "preemptions") > 0);
	assert_int_equal(stat_of(mixed, "kv_blocks_used"), 0);
	close_rig(plain);
	close_rig(mixed);
}

static void
test_model_mix(void **state)
{
	(void) state;
	check_same("test:", "test:drafts=2", 150, 60);
	check_same("test:", "test:drafts=7", 150, 60);
}

static bool
has_draft_model(void)
{
	if (access("build/draft-model/config.json", R_OK) == 0)
		return true;
	/* In continuous integration it has to be there. */
	assert_null(getenv("CI"));
	print_message("no %s: make draft-model\n", draft_model);
	return false;
}

static void
test_checkpoint_mix(void **state)
{
	(void) state;
	if (!has_draft_model())
		skip();
	check_same(draft_model, draft_model, 60, 40);
}

/* An engine that ended at any token of an answer: the rest is the same, with drafts from the first token on. */
static void
test_resume(void **state)
{
	static const char *const models[] = {"test:drafts=3", draft_model};

	(void) state;
	for (int m = 0; m < (has_draft_model() ? 2 : 1); m++)
	{
		Rig *whole = open_rig(models[m], 100, 0, false);
		Rig *rest = open_drafting_rig(models[m], 100, 0, false, NULL, DSV3_SPECULATION_ON);
		Result *result = &whole->results[9];
		uint32_t accepted = 0;

		submit(whole, make_request(9, m == 1));
		run(whole);
		assert_int_equal(result->ends, 1);
		assert_true(result->tokens.count > 8);
		for (size_t from = 0; from < result->tokens.count && from < 100; from++)
		{
			Dsv3Request *request = make_request(9, m == 1);
			Result *got = &rest->results[100 + from];

			request->id = 100 + from;
			request->n_tokens = from;
			request->tokens = malloc((from + 1) * sizeof(int32_t));
			memcpy(request->tokens, result->tokens.ids, from * sizeof(int32_t));
			submit(rest, request);
			run(rest);
			assert_int_equal(got->tokens.count + from, result->tokens.count);
			if (got->tokens.count > 0)
				assert_memory_equal(got->tokens.ids, result->tokens.ids + from,
									got->tokens.count * sizeof(int32_t));
			accepted += got->accepted;
		}
		assert_true(accepted > 0);
		close_rig(whole);
		close_rig(rest);
	}
}

/* A prompt that is found in the cache brings the draft layer's rows along: as many drafts are right as without. */
static void
test_found_prompt(void **state)
{
	Rig *rig;
	Result *first, *second;

	(void) state;
	if (!has_draft_model())
		skip();
	rig = open_drafting_rig(draft_model, 100, 0, false, NULL, DSV3_SPECULATION_ON);
	for (uint64_t id = 1; id <= 2; id++)
	{
		Dsv3Request *request =
			generate(id, "A long enough prompt, of which the first blocks are found again when it "
						 "comes a second time, so that nothing is computed twice.");

		set(&request->scope, "shared");
		request->has_max_tokens = true;
		request->max_tokens = 100;
		submit(rig, request);
		run(rig);
	}
	first = &rig->results[1];
	second = &rig->results[2];
	expect_same(first, second);
	assert_true(second->cached_tokens >= 32);
	assert_int_equal(first->drafted, second->drafted);
	assert_int_equal(first->accepted, second->accepted);
	close_rig(rig);
}

/* -- does it pay -- */

/* Steps of a machine where two rows take `both` times as long as one, with drafts of which `right` in a hundred are: how many of a
 * thousand are made. */
static int
drafts_made(double both, int right)
{
	Dsv3Speculation speculation;
	double own = -1.0;
	bool draft = false;
	int n = 0;

	dsv3_speculation_init(&speculation, DSV3_SPECULATION_AUTO);
	for (int i = 0; i < 1000; i++)
	{
		dsv3_speculation_step(&speculation, draft ? 2 : 1, draft ? (uint64_t) (both * 10000) : 10000);
		if (draft)
			dsv3_speculation_outcome(&speculation, (i * 37) % 100 < right, &own);
		draft = dsv3_speculation_pays(&speculation, 1, own);
		if (draft)
		{
			dsv3_speculation_drafts(&speculation, 1, 500);
			n++;
		}
	}
	return n;
}

static void
test_pays(void **state)
{
	Dsv3Speculation speculation;
	Dsv3SpeculationMode mode;

	(void) state;
	/* A few are made without drafts to know what these cost. */
	assert_in_range(drafts_made(1.1, 80), 900, 990);
	assert_in_range(drafts_made(1.5, 90), 800, 990);
	/* And the other way round. */
	assert_in_range(drafts_made(1.9, 40), 10, 100);
	assert_in_range(drafts_made(1.2, 0), 10, 100);

	dsv3_speculation_init(&speculation, DSV3_SPECULATION_AUTO);
	assert_false(dsv3_speculation_pays(&speculation, 1, 1.0)); /* what a step costs is not known yet */
	for (int i = 0; i < 10; i++)
		dsv3_speculation_step(&speculation, 100, 1000);
	assert_false(dsv3_speculation_pays(&speculation, 100, 1.0)); /* too many */
	assert_false(dsv3_speculation_pays(&speculation, 0, 1.0));
	dsv3_speculation_init(&speculation, DSV3_SPECULATION_ON);
	assert_true(dsv3_speculation_pays(&speculation, 1, 0.0));
	dsv3_speculation_init(&speculation, DSV3_SPECULATION_OFF);
	assert_false(dsv3_speculation_pays(&speculation, 1, 1.0));
	assert_true(dsv3_speculation_mode("auto", &mode));
	assert_int_equal(mode, DSV3_SPECULATION_AUTO);
	assert_false(dsv3_speculation_mode("always", &mode));
}

/* With "auto" the answers are the same too, whatever it decides, and a backend that cannot draft does not. */
static void
test_auto(void **state)
{
	Rig *plain = open_rig("test:", 400, 0, false);
	Rig *drafting =
		open_drafting_rig("test:drafts=4,token_us=10", 400, 0, false, NULL, DSV3_SPECULATION_AUTO);
	Rig *unable = open_drafting_rig("test:", 400, 0, false, NULL, DSV3_SPECULATION_ON);

	(void) state;
	for (uint64_t i = 0; i < 40; i++)
	{
		submit(plain, make_request(i, false));
		submit(drafting, make_request(i, false));
		submit(unable, make_request(i, false));
	}
	run(plain);
	run(drafting);
	run(unable);
	for (int i = 0; i < 40; i++)
	{
		expect_same(&plain->results[i], &drafting->results[i]);
		expect_same(&plain->results[i], &unable->results[i]);
		assert_int_equal(unable->results[i].drafted, 0);
	}
	close_rig(plain);
	close_rig(drafting);
	close_rig(unable);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model_mix), cmocka_unit_test(test_checkpoint_mix),
		cmocka_unit_test(test_resume),    cmocka_unit_test(test_found_prompt),
		cmocka_unit_test(test_pays),      cmocka_unit_test(test_auto),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
