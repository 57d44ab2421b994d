/*
 * test_prefix.c
 *	  Shared prefixes: the table of blocks and their names, and that an answer is the same wherever its rows came from.
 */
#include "engine/kv_cache.h"
#include "rig.h"

/* -- names -- */

static Dsv3BlockName
name_of(Dsv3Namer *namer, const Dsv3BlockName *before, const char *scope, const int32_t *ids, int n)
{
	Dsv3BlockName name;

	assert_true(dsv3_namer_name(namer, before, scope, strlen(scope), ids, n, &name));
	return name;
}

static bool
same(Dsv3BlockName a, Dsv3BlockName b)
{
	return memcmp(&a, &b, sizeof(a)) == 0;
}

static void
names(void **state)
{
	static const uint8_t secret[DSV3_SECRET_BYTES] = "one";
	static const uint8_t other_secret[DSV3_SECRET_BYTES] = "two";
	static const int32_t ids[] = {1, 2, 3, 4, 5};
	Dsv3Error err;
	Dsv3Namer *a = dsv3_namer_open(secret, "model", &err);
	Dsv3Namer *b = dsv3_namer_open(secret, "model", &err);
	Dsv3Namer *model = dsv3_namer_open(secret, "modem", &err);
	Dsv3Namer *key = dsv3_namer_open(other_secret, "model", &err);
	Dsv3BlockName first = name_of(a, NULL, "s", ids, 4);
	Dsv3BlockName second = name_of(a, &first, "s", ids, 4);

	(void) state;
	assert_true(same(first, name_of(b, NULL, "s", ids, 4)));
	assert_true(same(second, name_of(b, &first, "s", ids, 4)));
	assert_false(same(first, second));
	assert_false(same(first, name_of(a, NULL, "t", ids, 4)));
	assert_false(same(first, name_of(a, NULL, "", ids, 4)));
	assert_false(same(first, name_of(a, NULL, "s", ids + 1, 4)));
	assert_false(same(first, name_of(a, NULL, "s", ids, 5)));
	assert_false(same(first, name_of(model, NULL, "s", ids, 4)));
	assert_false(same(first, name_of(key, NULL, "s", ids, 4)));
	/* A scope that looks like a name is no name. */
	assert_true(dsv3_namer_name(b, NULL, (const char *) first.bytes, sizeof(first.bytes), ids, 4, &second));
	assert_false(same(second, name_of(a, &first, "s", ids, 4)));
	dsv3_namer_close(a);
	dsv3_namer_close(b);
	dsv3_namer_close(model);
	dsv3_namer_close(key);
}

/* -- blocks -- */

static Dsv3BlockName
number_name(uint32_t number)
{
	Dsv3BlockName name = {{0}};

	/* All in one bucket, so that chains are walked. */
	memcpy(name.bytes + 8, &number, sizeof(number));
	return name;
}

static int32_t
take_named(Dsv3KvCache *cache, uint32_t number)
{
	int32_t block = dsv3_kv_cache_take(cache);
	Dsv3BlockName name = number_name(number);

	dsv3_kv_cache_publish(cache, block, &name);
	return block;
}

static int32_t
find(const Dsv3KvCache *cache, uint32_t number)
{
	Dsv3BlockName name = number_name(number);

	return dsv3_kv_cache_find(cache, &name);
}

static void
blocks(void **state)
{
	Dsv3Error err;
	Dsv3KvCache *cache = dsv3_kv_cache_open(4, &err);
	int32_t block[4];

	(void) state;
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(block[i] = take_named(cache, i), i);
	assert_int_equal(dsv3_kv_cache_room(cache, true), 0);
	assert_int_equal(find(cache, 2), block[2]);
	assert_int_equal(find(cache, 9), DSV3_NO_BLOCK);

	/* A second holder keeps it; given back, it stays to be found. */
	dsv3_kv_cache_hold(cache, block[1]);
	dsv3_kv_cache_release(cache, block[1]);
	assert_int_equal(dsv3_kv_cache_room(cache, true), 0);
	dsv3_kv_cache_release(cache, block[3]);
	dsv3_kv_cache_release(cache, block[1]);
	dsv3_kv_cache_release(cache, block[0]);
	assert_int_equal(dsv3_kv_cache_room(cache, false), 3);
	assert_int_equal(dsv3_kv_cache_counts(cache).held, 1);
	assert_int_equal(find(cache, 1), block[1]);

	/* The one given back longest ago goes first, and its name with it. One that was held again in between is younger. */
	dsv3_kv_cache_hold(cache, block[3]);
	dsv3_kv_cache_release(cache, block[3]);
	assert_int_equal(dsv3_kv_cache_take(cache), block[1]);
	assert_int_equal(find(cache, 1), DSV3_NO_BLOCK);
	assert_int_equal(dsv3_kv_cache_counts(cache).evicted, 1);
	assert_int_equal(dsv3_kv_cache_counts(cache).cached, 3);
	dsv3_kv_cache_release(cache, block[1]);

	/* What is pinned goes last, and only if it must. */
	dsv3_kv_cache_pin(cache, block[0]);
	assert_int_equal(dsv3_kv_cache_room(cache, false), 2);
	assert_int_equal(dsv3_kv_cache_room(cache, true), 3);
	assert_true(dsv3_kv_cache_is_kept(cache, block[0], false));
	assert_false(dsv3_kv_cache_is_kept(cache, block[0], true));
	assert_int_equal(dsv3_kv_cache_take(cache), block[1]);
	assert_int_equal(dsv3_kv_cache_take(cache), block[3]);
	assert_int_equal(dsv3_kv_cache_take(cache), block[0]);
	assert_int_equal(dsv3_kv_cache_counts(cache).pinned, 0);
	assert_false(dsv3_kv_cache_unpin(cache, block[0]));
	dsv3_kv_cache_close(cache);
}

static void
pins_and_forgetting(void **state)
{
	Dsv3Error err;
	Dsv3KvCache *cache = dsv3_kv_cache_open(3, &err);
	int32_t a = take_named(cache, 1);
	int32_t b = take_named(cache, 2);

	(void) state;
	dsv3_kv_cache_pin(cache, a);
	dsv3_kv_cache_pin(cache, a);
	dsv3_kv_cache_release(cache, a);
	assert_int_equal(dsv3_kv_cache_room(cache, false), 1);
	assert_true(dsv3_kv_cache_unpin(cache, a));
	assert_int_equal(dsv3_kv_cache_room(cache, false), 1);
	assert_true(dsv3_kv_cache_unpin(cache, a));
	assert_int_equal(dsv3_kv_cache_room(cache, false), 2);
	dsv3_kv_cache_pin(cache, a);
	dsv3_kv_cache_forget(cache);
	assert_int_equal(find(cache, 1), DSV3_NO_BLOCK);
	assert_int_equal(find(cache, 2), DSV3_NO_BLOCK);
	assert_int_equal(dsv3_kv_cache_counts(cache).cached, 0);
	assert_int_equal(dsv3_kv_cache_counts(cache).pinned, 0);
	assert_int_equal(dsv3_kv_cache_room(cache, false), 2);
	assert_null(dsv3_kv_cache_name(cache, b));
	dsv3_kv_cache_release(cache, b);
	assert_int_equal(dsv3_kv_cache_room(cache, false), 3);
	dsv3_kv_cache_close(cache);
}

/* -- answers -- */

static Dsv3Request *
scoped(Dsv3Request *request, const char *scope)
{
	set(&request->scope, scope);
	return request;
}

/* 100 letters, then the text. */
static Dsv3Request *
long_request(uint64_t id, const char *text)
{
	char prompt[200];

	for (int i = 0; i < 100; i++)
		prompt[i] = (char) ('a' + i % 26);
	snprintf(prompt + 100, sizeof(prompt) - 100, "%s", text);
	return scoped(generate(id, prompt), "s");
}

static void
counts_of_cached_tokens(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);
	Dsv3Request *request;

	(void) state;
	/* <bos><user> and 100 letters are three full blocks and 6 tokens more. */
	submit(rig, long_request(1, "one"));
	run(rig);
	assert_int_equal(rig->results[1].cached_tokens, 0);
	submit(rig, long_request(2, "two"));
	run(rig);
	assert_int_equal(rig->results[2].cached_tokens, 96);
	assert_int_equal(stat_of(rig, "cached_tokens"), 96);
	assert_true(stat_of(rig, "kv_blocks_cached") > 3);
	/* The same again: everything but the last row, by whole blocks; 106 tokens. */
	submit(rig, long_request(3, "two"));
	run(rig);
	assert_int_equal(rig->results[3].prompt_tokens, 106);
	assert_int_equal(rig->results[3].cached_tokens, 96);
	expect_same(&rig->results[2], &rig->results[3]);
	/* Other scopes, and none, share nothing. */
	request = long_request(4, "two");
	request->scope.data[0] = 't';
	submit(rig, request);
	request = long_request(5, "two");
	free(request->scope.data);
	request->scope.data = NULL;
	submit(rig, request);
	run(rig);
	assert_int_equal(rig->results[4].cached_tokens, 0);
	assert_int_equal(rig->results[5].cached_tokens, 0);
	expect_same(&rig->results[2], &rig->results[4]);
	expect_same(&rig->results[2], &rig->results[5]);
	close_rig(rig);
}

/* A prompt of whole blocks: its last row is computed, since nothing else gives logits. */
static void
prompt_of_whole_blocks(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);

	(void) state;
	for (uint64_t id = 1; id <= 2; id++)
	{
		submit(rig,
			   scoped(generate(id, "01234567890123456789012345678901234567890123456789012345678901"), "s"));
		run(rig);
	}
	/* <bos><user> 62 digits <assistant> are 65 tokens. */
	assert_int_equal(rig->results[2].prompt_tokens, 65);
	assert_int_equal(rig->results[2].cached_tokens, 64);
	for (uint64_t id = 3; id <= 4; id++)
	{
		submit(rig,
			   scoped(generate(id, "0123456789012345678901234567890123456789012345678901234567890"), "s"));
		run(rig);
	}
	assert_int_equal(rig->results[4].prompt_tokens, 64);
	assert_int_equal(rig->results[4].cached_tokens, 32);
	assert_string_equal(rig->results[4].text.data, rig->results[3].text.data);
	close_rig(rig);
}

/* Many that come together compute their common prefix once, whoever of them is cancelled on the way. */
static void
prefix_is_computed_once(void **state)
{
	Rig *rig = open_rig("test:context=1024", 400, 0, false);
	char text[600];
	char prompt[700];
	int64_t computed;

	(void) state;
	for (int i = 0; i < 599; i++)
		text[i] = (char) ('A' + i * i % 50);
	text[599] = '\0';
	for (uint64_t id = 0; id < 40; id++)
	{
		Dsv3Request *request;

		snprintf(prompt, sizeof(prompt), "%s %d", text, (int) id);
		request = scoped(generate(id, prompt), "s");
		request->has_max_tokens = true;
		request->max_tokens = 5;
		submit(rig, request);
	}
	(void) dsv3_scheduler_step(rig->scheduler);
	dsv3_scheduler_cancel(rig->scheduler, 0);
	run(rig);
	/* 601 tokens are 18 full blocks, computed once; the rest 39 times, and every output token. */
	computed = stat_of(rig, "computed_tokens");
	for (int id = 1; id < 40; id++)
	{
		assert_int_equal(rig->results[id].ends, 1);
		assert_int_equal(rig->results[id].cached_tokens, id == 1 ? rig->results[1].cached_tokens : 576);
		computed -= rig->results[id].prompt_tokens + rig->results[id].output_tokens - 1 -
					rig->results[id].cached_tokens;
	}
	assert_true(computed >= 0 && computed <= 576);
	assert_int_equal(stat_of(rig, "kv_blocks_used"), 0);
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

/* What a SCORE writes behind its prompt is gone with the next choice: nobody may find it, however long the choices are. */
static void
scored_choices(void **state)
{
	static const char prompt[] = "01234567890123456789012345678901234567";
	static const char choices[] =
		"[\"012345678901234567890123456789012345678\",\"yes, that is what it is, or so they say\"]";
	Rig *rig = open_rig("test:", 64, 0, false);

	(void) state;
	submit(rig, score(1, prompt, choices));
	run(rig);
	for (uint64_t id = 2; id < 6; id++)
		submit(rig, scoped(score(id, prompt, choices), "s"));
	run(rig);
	submit(rig, scoped(logprob(6, prompt, "012345678901234567890123456789012345678"), "s"));
	submit(rig, logprob(7, prompt, "012345678901234567890123456789012345678"));
	run(rig);
	for (int id = 2; id < 6; id++)
		expect_same(&rig->results[1], &rig->results[id]);
	assert_int_equal(rig->results[5].cached_tokens, 32);
	assert_int_equal(rig->results[6].cached_tokens, 32);
	assert_true(rig->results[6].logprob == rig->results[7].logprob);
	close_rig(rig);
}

/* A preempted job finds its own rows again, and does not count them as found. */
static void
preemption_loses_little(void **state)
{
	Rig *rig = open_rig("test:", 64, 1, false);
	Dsv3Request *request = long_request(1, "and many steps");

	(void) state;
	request->priority = 1;
	submit(rig, request);
	for (int i = 0; i < 20; i++)
		(void) dsv3_scheduler_step(rig->scheduler);
	submit(rig, generate(2, "now"));
	run(rig);
	assert_int_equal(stat_of(rig, "preemptions"), 1);
	assert_int_equal(rig->results[1].cached_tokens, 0);
	assert_true(stat_of(rig, "computed_tokens") <
				rig->results[1].prompt_tokens + rig->results[1].output_tokens +
					rig->results[2].prompt_tokens + rig->results[2].output_tokens + DSV3_KV_BLOCK);
	close_rig(rig);
}

static Dsv3Request *
pin(uint64_t id, Dsv3RequestKind kind, const char *prompt)
{
	Dsv3Request *request = dsv3_request_new(id, kind);

	set(&request->prompt, prompt);
	return scoped(request, "s");
}

/* A pinned beginning is what any input goes on with, and stays when all else is given up. */
static void
pinned_prefixes(void **state)
{
	static const char prompt[] = "0123456789012345678901234567890123456789012345678901234567890123456789";
	Rig *rig = open_rig("test:context=256", 8, 0, false);
	Dsv3Request *request;

	(void) state;
	/* <bos><user>, 70 digits and an empty line: two blocks of 32 and a rest. */
	submit(rig, pin(1, DSV3_REQUEST_PIN, prompt));
	run(rig);
	assert_int_equal(rig->results[1].prompt_tokens, 64);
	assert_int_equal(rig->results[1].cached_tokens, 0);
	assert_int_equal(stat_of(rig, "kv_blocks_pinned"), 2);
	/* The same again is found, not computed, and a second pin. */
	submit(rig, pin(2, DSV3_REQUEST_PIN, prompt));
	run(rig);
	assert_int_equal(rig->results[2].cached_tokens, 64);
	/* Others need all the rest of the cache. */
	for (uint64_t id = 3; id < 6; id++)
	{
		request = long_request(id, "xyz");
		request->scope.data[0] = (char) ('a' + id);
		request->has_max_tokens = true;
		request->max_tokens = 5;
		submit(rig, request);
	}
	run(rig);
	assert_true(stat_of(rig, "kv_blocks_evicted") > 0);
	request = scoped(generate(6, prompt), "s");
	set(&request->input, "what it goes on with");
	submit(rig, request);
	run(rig);
	assert_int_equal(rig->results[6].cached_tokens, 64);
	/* Half of the cache at most. */
	submit(rig, pin(7, DSV3_REQUEST_PIN,
					"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghij"
					"klmnopqrst"));
	run(rig);
	assert_string_equal(rig->results[7].error.sqlstate, "53400");
	/* Another scope's pins are not there to be undone; one's own are, once each. */
	request = pin(8, DSV3_REQUEST_UNPIN, prompt);
	request->scope.data[0] = 't';
	submit(rig, request);
	for (uint64_t id = 9; id < 12; id++)
		submit(rig, pin(id, DSV3_REQUEST_UNPIN, prompt));
	run(rig);
	assert_int_equal(rig->results[8].prompt_tokens, 0);
	assert_int_equal(rig->results[9].prompt_tokens, 64);
	assert_int_equal(rig->results[10].prompt_tokens, 64);
	assert_int_equal(rig->results[11].prompt_tokens, 0);
	assert_int_equal(stat_of(rig, "kv_blocks_pinned"), 0);
	/* Too short for a block. */
	submit(rig, pin(12, DSV3_REQUEST_PIN, "short"));
	run(rig);
	assert_int_equal(rig->results[12].prompt_tokens, 0);
	assert_string_equal(rig->results[12].error.sqlstate, "");
	assert_int_equal(stat_of(rig, "kv_blocks_used"), 0);
	close_rig(rig);
}

/* A request that needs the whole cache gets it, pins or not. */
static void
pins_give_way_in_the_end(void **state)
{
	Rig *rig = open_rig("test:context=256", 8, 0, false);

	(void) state;
	submit(rig, pin(1, DSV3_REQUEST_PIN,
					"0123456789012345678901234567890123456789012345678901234567890123456789"));
	run(rig);
	assert_int_equal(stat_of(rig, "kv_blocks_pinned"), 2);
	submit(rig, generate(2, "/count 200"));
	run(rig);
	assert_int_equal(rig->results[2].ends, 1);
	assert_int_equal(rig->results[2].prompt_tokens + rig->results[2].output_tokens, 256);
	assert_int_equal(stat_of(rig, "kv_blocks_pinned"), 0);
	close_rig(rig);
}

/* An emptied cache has nothing to find, also when it is emptied under running requests. */
static void
resets(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);

	(void) state;
	submit(rig, long_request(1, "one"));
	run(rig);
	submit(rig, dsv3_request_new(2, DSV3_REQUEST_CACHE_RESET));
	run(rig);
	assert_int_equal(rig->results[2].ends, 1);
	assert_int_equal(stat_of(rig, "kv_blocks_cached"), 0);
	submit(rig, long_request(3, "one"));
	run(rig);
	assert_int_equal(rig->results[3].cached_tokens, 0);
	expect_same(&rig->results[1], &rig->results[3]);
	submit(rig, pin(4, DSV3_REQUEST_PIN,
					"0123456789012345678901234567890123456789012345678901234567890123456789"));
	for (uint64_t id = 5; id < 60; id++)
	{
		submit(rig, id % 9 == 0 ? dsv3_request_new(id, DSV3_REQUEST_CACHE_RESET) : long_request(id, "one"));
		(void) dsv3_scheduler_step(rig->scheduler);
	}
	run(rig);
	for (int id = 5; id < 60; id++)
	{
		assert_int_equal(rig->results[id].ends, 1);
		if (id % 9 != 0)
			expect_same(&rig->results[1], &rig->results[id]);
	}
	assert_int_equal(stat_of(rig, "kv_blocks_used"), 0);
	submit(rig, dsv3_request_new(60, DSV3_REQUEST_WARM_UP));
	run(rig);
	while (rig->results[60].ends == 0)
		(void) dsv3_scheduler_step(rig->scheduler);
	assert_string_equal(rig->results[60].text.data, "3000");
	close_rig(rig);
}

/* The same requests on a cache that is too small, with names and without, in one batch and alone, at all times. */
static void
mix(const char *model, int n_blocks, uint64_t n, uint32_t max_tokens)
{
	Rig *alone = open_rig(model, 4096, 0, false);
	Rig *mixed = open_rig(model, n_blocks, 0, false);

	for (uint64_t i = 0; i < n; i++)
	{
		/* A few prompts many times, with other ends, kinds and seeds. */
		for (int rig = 0; rig < 2; rig++)
		{
			Dsv3Request *request = any_request(i, i % 12 < 6 ? i % 12 : i);

			if (max_tokens > 0)
			{
				request->has_max_tokens = true;
				request->max_tokens = 1 + (uint32_t) (i * 13) % max_tokens;
			}
			if (rig == 1)
				set(&request->scope, i % 5 == 0 ? "a" : "b");
			submit(rig ? mixed : alone, request);
		}
		run(alone);
		for (uint64_t turn = 0; turn < i % 4; turn++)
			(void) dsv3_scheduler_step(mixed->scheduler);
	}
	run(mixed);
	for (uint64_t i = 0; i < n; i++)
		expect_same(&alone->results[i], &mixed->results[i]);
	assert_true(stat_of(mixed, "cached_tokens") > 0);
	assert_true(stat_of(mixed, "preemptions") > 0);
	assert_true(stat_of(mixed, "kv_blocks_evicted") > 0);
	assert_int_equal(stat_of(alone, "cached_tokens"), 0);
	assert_int_equal(stat_of(mixed, "kv_blocks_used"), 0);
	close_rig(alone);
	close_rig(mixed);
}

static void
mix_equals_solo(void **state)
{
	(void) state;
	mix("test:context=1024", 50, 300, 0);
}

static void
checkpoint_mix(void **state)
{
	(void) state;
	if (access("build/tiny-model/config.json", R_OK) != 0)
	{
		assert_null(getenv("CI"));
		print_message("no build/tiny-model: make tiny-model\n");
		skip();
	}
	mix("build/tiny-model", 24, 80, 90);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names),
		cmocka_unit_test(blocks),
		cmocka_unit_test(pins_and_forgetting),
		cmocka_unit_test(counts_of_cached_tokens),
		cmocka_unit_test(prompt_of_whole_blocks),
		cmocka_unit_test(prefix_is_computed_once),
		cmocka_unit_test(scored_choices),
		cmocka_unit_test(preemption_loses_little),
		cmocka_unit_test(pinned_prefixes),
		cmocka_unit_test(pins_give_way_in_the_end),
		cmocka_unit_test(resets),
		cmocka_unit_test(mix_equals_solo),
		cmocka_unit_test(checkpoint_mix),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
