/*
 * test_scheduler.c
 *	  The scheduler on the built-in test model, whose logits depend on every id before: whatever shares the steps, the
 *	  cache or the time, each answer must be the one it gets alone.
 */
#include "rig.h"

/* -- single answers -- */

static void
plain_answers(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);
	Dsv3Request *request;

	(void) state;
	assert_int_equal(ask(rig, generate(1, "hello w\xc3\xb6rld"), "HELLO W\xc3\xb6RLD")->finish,
					 DSV3_FINISH_STOP);
	ask(rig, generate(2, ""), "");
	ask(rig, generate(3, "<eos><user>"), "<EOS><USER>");
	request = generate(4, "/prompt");
	set(&request->input, "the input");
	set(&request->system, "be \"kind\"\n");
	ask(rig, request, "<bos><system>be \"kind\"\n<user>/prompt\n\nthe input<assistant>");
	request = generate(5, "/prompt\n");
	set(&request->input, "x");
	ask(rig, request, "<bos><user>/prompt\nx<assistant>");
	request = generate(6, "/prompt");
	set(&request->input, "");
	ask(rig, request, "<bos><user>/prompt<assistant>");
	request = generate(7, "");
	set(&request->input, "only input");
	ask(rig, request, "ONLY INPUT");
	request = generate(8, "room 6");
	request->raw = true;
	ask(rig, request, "789");
	ask(rig, generate(9, "/bytes e282ac41ff42e282"),
		"\xe2\x82\xac"
		"A\xef\xbf\xbd"
		"B\xef\xbf\xbd");
	ask(rig, generate(10, "/bytes e08041eda080f48fbfbff4908080"),
		"\xef\xbf\xbd\xef\xbf\xbd"
		"A\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xf4\x8f\xbf\xbf\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf"
		"\xbd");
	close_rig(rig);
}

/* The time between two tokens is counted once, whatever DELTAs they leave in; that before the first and that of the end are not. */
static void
times(void **state)
{
	Rig *rig = open_rig("test:token_us=200", 64, 0, false);
	Result *result;

	(void) state;
	result = ask(rig, generate(1, "/count 20"), "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20");
	assert_int_equal(result->gaps, result->output_tokens - 1);
	assert_true(result->computing_us >= 200 * (result->prompt_tokens + result->output_tokens - 1));
	submit(rig, logprob(2, "hello", "HELLO"));
	run(rig);
	assert_int_equal(rig->results[2].gaps, 0);
	close_rig(rig);
}

static void
lengths(void **state)
{
	Rig *rig = open_rig("test:context=64", 2, 0, false);
	Dsv3Request *request = generate(1, "/forever");
	Result *result;

	(void) state;
	request->has_max_tokens = true;
	request->max_tokens = 5;
	result = ask(rig, request, "abcde");
	assert_int_equal(result->finish, DSV3_FINISH_LENGTH);
	/* <bos><user>/forever<assistant> leaves 53 positions. */
	result = ask(rig, generate(2, "/forever"), "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyza");
	assert_int_equal(result->finish, DSV3_FINISH_LENGTH);
	assert_int_equal(result->prompt_tokens + result->output_tokens, 64);
	/* One character cut in two by the limit. */
	request = generate(3, "/bytes 41c3a9");
	request->has_max_tokens = true;
	request->max_tokens = 2;
	ask(rig, request, "A\xef\xbf\xbd");
	result = expect_error(
		rig, generate(4, "0123456789012345678901234567890123456789012345678901234567890123456789"), "54000",
		"the prompt is 73 tokens long, at most 63 fit");
	assert_non_null(strstr(result->error.detail, "context is 64"));
	close_rig(rig);

	/* A cache smaller than the context is another limit, with another hint. */
	rig = open_rig("test:context=64", 1, 0, false);
	result = expect_error(rig, generate(1, "01234567890123456789012345678901"), "54000", "at most 31 fit");
	assert_non_null(strstr(result->error.hint, "dsv3.kv_cache_size"));
	request = generate(2, "0123456789");
	request->has_max_tokens = true;
	request->max_tokens = 40;
	expect_error(rig, request, "54000",
				 "13 tokens of prompt and 40 of output do not fit in the cache of 32 tokens");
	request = generate(3, "0123456789");
	request->has_max_tokens = true;
	request->max_tokens = 19;
	ask(rig, request, "0123456789");
	close_rig(rig);
}

static void
failures(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);
	Rig *raw_only = open_rig("test:template=none", 64, 0, false);
	Dsv3Request *request;
	Dsv3Error err;

	(void) state;
	expect_error(rig, generate(1, "/nan"), "XX000", "not a finite number");
	expect_error(rig, generate(2, "bad \xff"), "22021", "not valid UTF-8");
	request = generate(3, "x");
	request->raw = true;
	set(&request->system, "s");
	expect_error(rig, request, "22023", "system message");
	request = dsv3_request_new(4, DSV3_REQUEST_CHAT);
	set(&request->messages, "{}");
	expect_error(rig, request, "22023", "array");
	expect_error(raw_only, generate(5, "x"), "0A000", "template");
	submit(rig, generate(6, "x"));
	assert_false(dsv3_scheduler_submit(rig->scheduler, generate(6, "x"), &err));
	assert_string_equal(err.sqlstate, "08P01");
	run(rig);
	assert_int_equal(stat_of(rig, "kv_blocks_used"), 0);
	close_rig(rig);
	close_rig(raw_only);
}

static void
stop_strings(void **state)
{
	static const struct
	{
		const char *prompt;
		const char *stops[3];
		const char *text;
		bool stopped;
	} cases[] = {
		{"abcdef", {"CD"}, "AB", true},
		{"abcdef", {"CE"}, "ABCDEF", false},              /* begins and is not one */
		{"aabaabaac", {"AABAAC"}, "AAB", true},           /* begins again inside itself */
		{"abcdef", {"BCDE", "CD"}, "AB", true},           /* the one that ends first */
		{"abcdef", {"D", "BCD"}, "A", true},              /* both end here: the longer one */
		{"abcdef", {"DEFG"}, "ABCDEF", false},            /* the end comes while one is open */
		{"x\xe2\x82\xacy", {"\xe2\x82\xacY"}, "X", true}, /* characters of several tokens */
		{"abc", {"A"}, "", true},
	};
	Rig *rig = open_rig("test:", 64, 0, false);

	(void) state;
	for (uint64_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		Dsv3Request *request = generate(i + 1, cases[i].prompt);
		Result *result;

		request->stream = true;
		for (int s = 0; s < 3 && cases[i].stops[s]; s++)
			set(&request->stops[request->n_stops++], cases[i].stops[s]);
		result = ask(rig, request, cases[i].text);
		assert_int_equal(result->finish, DSV3_FINISH_STOP);
		assert_int_equal(result->tokens.ids[result->tokens.count - 1] != 257, cases[i].stopped);
	}
	close_rig(rig);
}

static void
thinking(void **state)
{
	Rig *rig = open_rig("test:think=1", 64, 0, false);
	Dsv3Request *request;
	Result *result;

	(void) state;
	result = ask(rig, generate(1, "abc"), "ABC");
	assert_int_equal(result->output_tokens, 9 + 1 + 3 + 1); /* about abc, </think>, ABC, <eos> */
	request = generate(2, "/think abc");
	request->think = DSV3_THINK_OFF; /* the model opens the part itself */
	ask(rig, request, "ABC");
	request = generate(3, "abc");
	request->has_think_budget = true;
	request->think_budget = 4;
	result = ask(rig, request, "ABC");
	assert_int_equal(result->output_tokens, 4 + 1 + 3 + 1);
	assert_int_equal(result->tokens.ids[4], 262);
	request = generate(4, "abc");
	request->has_think_budget = true;
	request->think_budget = 0;
	ask(rig, request, "ABC");
	/* Stop strings are for the visible part; line breaks behind the tag are not shown. */
	request = generate(5, "\n\nabout");
	set(&request->stops[request->n_stops++], "about");
	ask(rig, request, "ABOUT");
	/* Cut off while thinking: nothing to see. */
	request = generate(6, "abc");
	request->has_max_tokens = true;
	request->max_tokens = 3;
	assert_int_equal(ask(rig, request, "")->finish, DSV3_FINISH_LENGTH);
	request = generate(7, "a7");
	request->raw = true;
	ask(rig, request, "89");
	close_rig(rig);
}

static void
chat(void **state)
{
	static const struct
	{
		const char *content;
		const char *message;
		Dsv3Finish finish;
	} cases[] = {
		{"hi", "{\"role\":\"assistant\",\"content\":\"HI\"}", DSV3_FINISH_STOP},
		{"/think hi", "{\"role\":\"assistant\",\"content\":\"HI\",\"reasoning_content\":\"about hi\"}",
		 DSV3_FINISH_STOP},
		{"/tool f [1]",
		 "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call_0\",\"type\":\"function\","
		 "\"function\":{\"name\":\"f\",\"arguments\":\"[1]\"}}]}",
		 DSV3_FINISH_TOOL_CALLS},
		{"", "{\"role\":\"assistant\",\"content\":\"\"}", DSV3_FINISH_STOP},
		{"one STOP two", "{\"role\":\"assistant\",\"content\":\"ONE \"}", DSV3_FINISH_STOP},
	};
	Rig *rig = open_rig("test:", 64, 0, false);

	(void) state;
	for (uint64_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		Dsv3Request *request = dsv3_request_new(i + 1, DSV3_REQUEST_CHAT);
		char json[256];
		Result *result;

		snprintf(json, sizeof(json),
				 "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"%s\"}]",
				 cases[i].content);
		set(&request->messages, json);
		set(&request->tools, "[]");
		set(&request->stops[request->n_stops++], "STOP");
		result = ask(rig, request, "");
		assert_string_equal(result->message.data, cases[i].message);
		assert_int_equal(result->finish, cases[i].finish);
	}
	close_rig(rig);
}

static void
text_requests(void **state)
{
	Rig *rig = open_rig("test:", 4, 0, false);
	Dsv3Request *request = dsv3_request_new(1, DSV3_REQUEST_TOKENIZE);

	(void) state;
	set(&request->prompt, "A\xc3\xa9<eos>");
	submit(rig, request);
	run(rig);
	assert_int_equal(rig->results[1].tokens.count, 8);
	assert_int_equal(rig->results[1].tokens.ids[1], 0xc3);
	request = dsv3_request_new(2, DSV3_REQUEST_DETOKENIZE);
	request->tokens = malloc(4 * sizeof(int32_t));
	memcpy(request->tokens, (int32_t[]){65, 0xc3, 257, 66}, 16);
	request->n_tokens = 4;
	submit(rig, request);
	run(rig);
	assert_string_equal(rig->results[2].text.data, "A\xef\xbf\xbd<eos>B");
	request = dsv3_request_new(4, DSV3_REQUEST_COUNT_TOKENS);
	set(&request->prompt, "A\xc3\xa9<eos>");
	submit(rig, request);
	run(rig);
	assert_int_equal(rig->results[4].prompt_tokens, 8);
	assert_int_equal(rig->results[4].tokens.count, 0);
	request = dsv3_request_new(3, DSV3_REQUEST_DETOKENIZE);
	request->tokens = malloc(4 * sizeof(int32_t));
	request->tokens[0] = 265;
	request->n_tokens = 1;
	expect_error(rig, request, "22023", "token id 265 is out of range");
	close_rig(rig);
}

/* The sum over a continuation is the sum over its pieces, and agrees with what LOGPROBS says of the same tokens. */
static void
log_probabilities(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);
	char long_text[301];
	double parts = 0;
	double reported = 0;
	Dsv3Request *request;

	(void) state;
	submit(rig, logprob(1, "hello", "HELLO"));
	submit(rig, logprob(2, "hello", "HELP!"));
	submit(rig, logprob(3, "hello", ""));
	request = generate(4, "hello");
	request->has_logprobs = true;
	request->logprobs = 1;
	submit(rig, request);
	run(rig);
	assert_true(rig->results[1].logprob < 0 && rig->results[1].logprob > -1);
	assert_true(rig->results[2].logprob < -10);
	assert_true(rig->results[3].ends == 1 && rig->results[3].logprob == 0);
	for (char *at = rig->results[4].logprobs.data; (at = strstr(at, "\"logprob\":")) != NULL; at++)
	{
		/* Each token is its own best alternative: every number comes twice; the last token is <eos>. */
		reported += strtod(at + 10, NULL) / 2;
		parts = strtod(at + 10, NULL);
	}
	assert_true(fabs(reported - parts - rig->results[1].logprob) < 1e-9);

	/* Longer than a chunk of scored rows, raw, in one and in three. */
	for (int i = 0; i < 300; i++)
		long_text[i] = (char) ('!' + i * 7 % 90);
	long_text[300] = '\0';
	request = logprob(10, "start", long_text);
	request->raw = true;
	submit(rig, request);
	parts = 0;
	for (int i = 0; i < 3; i++)
	{
		char before[320];
		char piece[101];

		snprintf(before, sizeof(before), "start%.*s", 100 * i, long_text);
		snprintf(piece, sizeof(piece), "%.100s", long_text + 100 * i);
		request = logprob((uint64_t) (11 + i), before, piece);
		request->raw = true;
		submit(rig, request);
	}
	run(rig);
	for (int i = 11; i < 14; i++)
		parts += rig->results[i].logprob;
	assert_int_equal(rig->results[10].ends, 1);
	assert_true(fabs(parts - rig->results[10].logprob) < 1e-9);
	close_rig(rig);
}

/* The penalty covers the prompt (its "e") and the output (the second "a" of "/forever"). */
static void
penalty_covers_everything(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);
	Dsv3Request *request = generate(1, "/forever");
	const char *text;

	(void) state;
	request->sampling.repetition_penalty = 100;
	request->has_max_tokens = true;
	request->max_tokens = 27;
	submit(rig, request);
	run(rig);
	text = rig->results[1].text.data;
	assert_memory_equal(text, "abcd", 4);
	assert_int_not_equal(text[4], 'e');
	assert_int_equal(text[25], 'z');
	assert_int_not_equal(text[26], 'a');
	close_rig(rig);
}

/* The random numbers go by seed and position in the output, whatever was delivered when. */
static void
seeds(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);

	(void) state;
	for (uint64_t i = 1; i <= 3; i++)
	{
		Dsv3Request *request = generate(i, "/count 30");

		request->stream = i == 2;
		request->sampling.temperature = 2.0;
		request->sampling.seed = i == 3 ? 1 : 0;
		request->has_max_tokens = true;
		request->max_tokens = 60;
		submit(rig, request);
	}
	run(rig);
	assert_string_equal(rig->results[1].text.data, rig->results[2].text.data);
	assert_string_not_equal(rig->results[1].text.data, rig->results[3].text.data);
	close_rig(rig);
}

/* -- many at once -- */

#define N_MIX 120

static void
mix_equals_solo(void **state)
{
	/* Room for about two long ones: the mix cannot run without taking blocks back. */
	Rig *alone = open_rig("test:context=1024", 4096, 0, false);
	Rig *mixed = open_rig("test:context=1024", 50, 0, false);
	Rig *narrow = open_rig("test:context=1024", 4096, 3, false);

	(void) state;
	for (uint64_t i = 0; i < N_MIX; i++)
	{
		submit(alone, any_request(i, i));
		run(alone);
	}
	for (uint64_t i = 0; i < N_MIX; i++)
	{
		submit(mixed, any_request(i, i));
		submit(narrow, any_request(N_MIX - 1 - i, N_MIX - 1 - i));
		/* Arrivals at all times. */
		for (uint64_t turn = 0; turn < i % 4; turn++)
			(void) dsv3_scheduler_step(mixed->scheduler);
	}
	run(mixed);
	run(narrow);
	for (int i = 0; i < N_MIX; i++)
	{
		expect_same(&alone->results[i], &mixed->results[i]);
		expect_same(&alone->results[i], &narrow->results[i]);
	}
	assert_true(stat_of(mixed, "preemptions") > 0);
	assert_int_equal(stat_of(alone, "preemptions"), 0);
	assert_int_equal(stat_of(mixed, "kv_blocks_used"), 0);
	close_rig(alone);
	close_rig(mixed);
	close_rig(narrow);
}

/* Restart after each number of delivered tokens: what comes then is exactly the rest. */
static void
resume_anywhere(void **state)
{
	Rig *rig = open_rig("test:", 256, 0, false);
	static const char *const prompts[] = {"/think h\xc3\xa9llo, w\xe2\x82\xacrld xyz",
										  "/bytes 41e282ac42ff43", "plain abc xyz"};

	(void) state;
	for (int p = 0; p < 3; p++)
	{
		for (int hot = 0; hot < 2; hot++)
		{
			Dsv3Request *request = generate(0, prompts[p]);
			Result whole;

			request->stream = true;
			request->sampling.temperature = hot ? 2.0 : 0.0;
			request->sampling.repetition_penalty = hot ? 1.2 : 1.0;
			request->has_logprobs = true;
			set(&request->stops[request->n_stops++], "XYZ");
			submit(rig, request);
			run(rig);
			whole = rig->results[0];
			assert_int_equal(whole.ends, 1);
			memset(&rig->results[0], 0, sizeof(Result));
			for (size_t n = 1; n < whole.tokens.count; n++)
			{
				Result *rest = &rig->results[1];
				size_t text_before;

				request = generate(1, prompts[p]);
				request->stream = true;
				request->sampling.temperature = hot ? 2.0 : 0.0;
				request->sampling.repetition_penalty = hot ? 1.2 : 1.0;
				request->has_logprobs = true;
				set(&request->stops[request->n_stops++], "XYZ");
				request->tokens = malloc(n * sizeof(int32_t));
				memcpy(request->tokens, whole.tokens.ids, n * sizeof(int32_t));
				request->n_tokens = n;
				submit(rig, request);
				run(rig);
				assert_int_equal(rest->ends, 1);
				assert_string_equal(rest->error.sqlstate, "");
				assert_int_equal(rest->tokens.count + n, whole.tokens.count);
				assert_int_equal(rest->output_tokens, whole.output_tokens);
				assert_memory_equal(rest->tokens.ids, whole.tokens.ids + n,
									rest->tokens.count * sizeof(int32_t));
				assert_string_equal(rest->logprobs.data, whole.logprobs.data);
				/* The texts before are prefixes that grow; the rest completes them. */
				assert_true(rest->text.len <= whole.text.len);
				text_before = whole.text.len - rest->text.len;
				if (rest->text.len > 0)
					assert_memory_equal(rest->text.data, whole.text.data + text_before, rest->text.len);
				dsv3_text_free(&rest->text);
				dsv3_tokens_free(&rest->tokens);
				dsv3_text_free(&rest->logprobs);
				memset(rest, 0, sizeof(*rest));
			}
			dsv3_text_free(&whole.text);
			dsv3_tokens_free(&whole.tokens);
			dsv3_text_free(&whole.logprobs);
		}
	}
	close_rig(rig);
}

/* What has been delivered with n tokens plus what a resumption after them delivers is the whole text, at each n. */
static void
resume_text(void **state)
{
	Rig *rig = open_rig("test:", 256, 0, false);
	const char *prompt = "a\xe2\x82\xac xy ab xyz";
	size_t cut = 1;
	bool more = true;

	(void) state;
	while (more)
	{
		Dsv3Request *request = generate(0, prompt);
		Result *first = &rig->results[0];
		Result *rest = &rig->results[1];

		request->stream = true;
		set(&request->stops[request->n_stops++], "XYZ");
		submit(rig, request);
		while (first->tokens.count < cut && first->ends == 0)
			(void) dsv3_scheduler_step(rig->scheduler);
		more = first->ends == 0;
		if (more)
		{
			size_t n = first->tokens.count;

			dsv3_scheduler_cancel(rig->scheduler, 0);
			run(rig);
			request = generate(1, prompt);
			set(&request->stops[request->n_stops++], "XYZ");
			request->tokens = malloc(n * sizeof(int32_t));
			memcpy(request->tokens, first->tokens.ids, n * sizeof(int32_t));
			request->n_tokens = n;
			submit(rig, request);
			run(rig);
			assert_true(
				dsv3_text_append(&first->text, rest->text.data ? rest->text.data : "", rest->text.len, NULL));
		}
		assert_string_equal(first->text.data, "A\xe2\x82\xac XY AB ");
		dsv3_text_free(&first->text);
		dsv3_tokens_free(&first->tokens);
		dsv3_text_free(&rest->text);
		dsv3_tokens_free(&rest->tokens);
		memset(rig->results, 0, 2 * sizeof(Result));
		cut++;
	}
	assert_true(cut > 10);
	close_rig(rig);
}

static void
cancel_anywhere(void **state)
{
	Rig *rig = open_rig("test:context=1024", 60, 8, false);

	(void) state;
	for (uint64_t i = 0; i < 200; i++)
	{
		submit(rig, any_request(i, i));
		(void) dsv3_scheduler_step(rig->scheduler);
		dsv3_scheduler_cancel(rig->scheduler, (i * 7919) % (i + 1));
		dsv3_scheduler_cancel(rig->scheduler, 5000);
	}
	run(rig);
	for (int i = 0; i < 200; i++)
	{
		assert_int_equal(rig->results[i].ends, 1);
		if (rig->results[i].error.sqlstate[0])
			assert_string_equal(rig->results[i].error.sqlstate, "57014");
	}
	assert_true(stat_of(rig, "requests_cancelled") > 50);
	assert_int_equal(stat_of(rig, "kv_blocks_used"), 0);
	assert_int_equal(stat_of(rig, "running"), 0);
	close_rig(rig);
}

/* The same on a checkpoint with real layers, where rows of the cache and of a step's logits could be mixed up. */
static void
checkpoint_mix(void **state)
{
	static const char model[] = "build/tiny-model";
	Rig *alone;
	Rig *mixed;

	(void) state;
	if (access("build/tiny-model/config.json", R_OK) != 0)
	{
		/* In continuous integration it has to be there. */
		assert_null(getenv("CI"));
		print_message("no %s: make tiny-model\n", model);
		skip();
	}
	alone = open_rig(model, 200, 0, false);
	mixed = open_rig(model, 24, 0, false);
	for (uint64_t i = 0; i < 60; i++)
	{
		for (int rig = 0; rig < 2; rig++)
		{
			Dsv3Request *request = any_request(i, i);

			request->has_max_tokens = true;
			request->max_tokens = 1 + (uint32_t) (i * 13) % 90;
			submit(rig ? mixed : alone, request);
		}
		run(alone);
		(void) dsv3_scheduler_step(mixed->scheduler);
	}
	run(mixed);
	for (int i = 0; i < 60; i++)
		expect_same(&alone->results[i], &mixed->results[i]);
	assert_true(stat_of(mixed, "preemptions") > 0);
	assert_int_equal(stat_of(mixed, "kv_blocks_used"), 0);
	close_rig(alone);
	close_rig(mixed);
}

/* A text in the encoder is given up when its request is: a flag for each, looked at between pieces. */
static void
encoding_is_given_up(void **state)
{
	static const char model[] = "build/tiny-model";
	Rig *rig;
	atomic_bool abort_flag = true;
	Dsv3Tokens tokens = {.abort_flag = &abort_flag};
	Dsv3Error err = {0};

	(void) state;
	if (access("build/tiny-model/config.json", R_OK) != 0)
	{
		assert_null(getenv("CI"));
		print_message("no %s: make tiny-model\n", model);
		skip();
	}
	rig = open_rig(model, 64, 0, false);
	assert_false(rig->backend->ops->encode(rig->backend, "some words", 10, 0, &tokens, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_CANCELLED);
	assert_int_equal(tokens.count, 0);
	atomic_store(&abort_flag, false);
	assert_true(rig->backend->ops->encode(rig->backend, "some words", 10, 0, &tokens, &err));
	assert_true(tokens.count > 0);
	dsv3_tokens_free(&tokens);
	close_rig(rig);
}

/* The same through a request: what was asked to stop stops with its reason, whatever it was doing. */
static void
cancelled_while_encoding(void **state)
{
	enum
	{
		SIZE = 4 << 20
	};
	Rig *rig = open_rig("build/tiny-model", 64, 0, true);
	char *text = malloc(SIZE + 1);

	(void) state;
	for (int i = 0; i < SIZE; i++)
		text[i] = i % 7 ? 'a' + i % 26 : ' ';
	text[SIZE] = '\0';
	for (uint64_t id = 1; id <= 2; id++)
	{
		Dsv3Request *request = dsv3_request_new(id, DSV3_REQUEST_TOKENIZE);

		set(&request->prompt, text);
		request->timeout_ms = id == 2 ? 1 : 0;
		submit(rig, request);
		usleep(20000);
		if (id == 1)
			dsv3_scheduler_cancel(rig->scheduler, id);
		while (rig->results[id].ends == 0)
		{
			(void) dsv3_scheduler_step(rig->scheduler);
			usleep(1000);
		}
		assert_string_equal(rig->results[id].error.sqlstate, DSV3_ERR_CANCELLED);
		assert_non_null(strstr(rig->results[id].error.message, id == 1 ? "request cancelled" : "timed out"));
	}
	free(text);
	close_rig(rig);
}

static void
order_and_fairness(void **state)
{
	/* One at a time, so that the order of the ends is the order of admission. */
	Rig *rig = open_rig("test:", 64, 1, false);
	static const int expected[] = {5, 6, 1, 4, 2, 3, 7};

	(void) state;
	for (uint64_t i = 1; i <= 7; i++)
	{
		Dsv3Request *request = generate(i, "x");

		/* 1, 2, 3 of one role, 4 of another; 5 and 6 interactive among batch; 7 of the first role again. */
		request->role = i == 4 ? 2 : 1;
		request->priority = i != 5 && i != 6;
		if (i == 5 || i == 6)
			request->role = 3;
		submit(rig, request);
	}
	run(rig);
	for (int i = 0; i < 7; i++)
		assert_int_equal(rig->results[expected[i]].order, i);
	close_rig(rig);
}

/* An interactive request takes the place of a batch request, which is then finished as if nothing had been. */
static void
interactive_displaces_batch(void **state)
{
	Rig *rig = open_rig("test:", 64, 1, false);
	Dsv3Request *request = generate(1, "a long request that takes many steps");

	(void) state;
	request->priority = 1;
	request->stream = true;
	submit(rig, request);
	for (int i = 0; i < 10; i++)
		(void) dsv3_scheduler_step(rig->scheduler);
	assert_true(rig->results[1].tokens.count > 3);
	submit(rig, generate(2, "now"));
	run(rig);
	assert_int_equal(rig->results[2].order, 0);
	assert_string_equal(rig->results[1].text.data, "A LONG REQUEST THAT TAKES MANY STEPS");
	assert_int_equal(stat_of(rig, "preemptions"), 1);
	close_rig(rig);
}

/* DELTAs come one a token with STREAM and gathered without. */
static void
gathering(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);
	Dsv3Request *request = generate(1, "/count 30");

	(void) state;
	request->stream = true;
	submit(rig, request);
	submit(rig, generate(2, "/count 30"));
	run(rig);
	assert_int_equal(rig->results[1].deltas + 1, (int) rig->results[1].output_tokens);
	assert_true(rig->results[2].deltas >= 2 && rig->results[2].deltas < 10);
	assert_string_equal(rig->results[1].text.data, rig->results[2].text.data);
	close_rig(rig);
}

static void
pauses_and_deadlines(void **state)
{
	Rig *rig = open_rig("test:", 64, 0, false);
	Dsv3Request *request = generate(1, "/forever");

	(void) state;
	request->timeout_ms = 30;
	submit(rig, request);
	rig->no_room = true;
	assert_int_equal(dsv3_scheduler_step(rig->scheduler), DSV3_STEP_PAUSED);
	assert_false(dsv3_scheduler_busy(rig->scheduler));
	assert_int_equal(stat_of(rig, "steps"), 0);
	usleep(40000);
	(void) dsv3_scheduler_step(rig->scheduler); /* deadlines hold while paused, too */
	assert_string_equal(rig->results[1].error.sqlstate, "57014");
	assert_non_null(strstr(rig->results[1].error.message, "timed out"));
	rig->no_room = false;
	ask(rig, generate(2, "x"), "X");
	close_rig(rig);
}

/* -- with threads -- */

static void *
run_thread(void *arg)
{
	dsv3_scheduler_run(((Rig *) arg)->scheduler);
	return NULL;
}

static bool
wait_for_end(Rig *rig, int id, int ms)
{
	for (; ms > 0; ms--)
	{
		bool ended;

		pthread_mutex_lock(&rig->lock);
		ended = rig->results[id].ends > 0;
		pthread_mutex_unlock(&rig->lock);
		if (ended)
			return true;
		usleep(1000);
	}
	return false;
}

static void
threads(void **state)
{
	Rig *alone = open_rig("test:context=1024", 4096, 0, false);
	Rig *rig = open_rig("test:context=1024", 80, 16, true);
	pthread_t thread;

	(void) state;
	pthread_create(&thread, NULL, run_thread, rig);
	for (uint64_t i = 0; i < N_MIX; i++)
	{
		submit(rig, any_request(i, i));
		submit(alone, any_request(i, i));
		if (i % 10 == 9)
			usleep(1000);
	}
	run(alone);
	for (int i = 0; i < N_MIX; i++)
	{
		assert_true(wait_for_end(rig, i, 20000));
		expect_same(&alone->results[i], &rig->results[i]);
	}
	dsv3_scheduler_stop(rig->scheduler);
	pthread_join(thread, NULL);
	close_rig(rig);
	close_rig(alone);
}

/* A cancel ends a step of ten seconds when nothing else is in it; a deadline wakes the scheduler. */
static void
cancel_within_a_step(void **state)
{
	Rig *rig = open_rig("test:delay_ms=10000", 64, 0, false);
	Dsv3Request *request;
	pthread_t thread;

	(void) state;
	submit(rig, generate(1, "x"));
	submit(rig, generate(2, "y"));
	pthread_create(&thread, NULL, run_thread, rig);
	for (int ms = 0; ms < 5000 && !dsv3_scheduler_busy(rig->scheduler); ms++)
		usleep(1000);
	usleep(50000);
	assert_true(dsv3_scheduler_busy(rig->scheduler));
	dsv3_scheduler_cancel(rig->scheduler, 1);
	assert_false(wait_for_end(rig, 1, 50));
	dsv3_scheduler_cancel(rig->scheduler, 2);
	assert_true(wait_for_end(rig, 1, 1000));
	assert_true(wait_for_end(rig, 2, 1000));
	rig->no_room = true;
	request = generate(3, "z");
	request->timeout_ms = 50;
	submit(rig, request);
	assert_true(wait_for_end(rig, 3, 1000));
	dsv3_scheduler_stop(rig->scheduler);
	pthread_join(thread, NULL);
	close_rig(rig);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plain_answers),
		cmocka_unit_test(times),
		cmocka_unit_test(lengths),
		cmocka_unit_test(failures),
		cmocka_unit_test(stop_strings),
		cmocka_unit_test(thinking),
		cmocka_unit_test(chat),
		cmocka_unit_test(text_requests),
		cmocka_unit_test(log_probabilities),
		cmocka_unit_test(penalty_covers_everything),
		cmocka_unit_test(seeds),
		cmocka_unit_test(mix_equals_solo),
		cmocka_unit_test(checkpoint_mix),
		cmocka_unit_test(resume_anywhere),
		cmocka_unit_test(resume_text),
		cmocka_unit_test(cancel_anywhere),
		cmocka_unit_test(encoding_is_given_up),
		cmocka_unit_test(cancelled_while_encoding),
		cmocka_unit_test(order_and_fairness),
		cmocka_unit_test(interactive_displaces_batch),
		cmocka_unit_test(gathering),
		cmocka_unit_test(pauses_and_deadlines),
		cmocka_unit_test(threads),
		cmocka_unit_test(cancel_within_a_step),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
