/*
 * rig.h
 *	  A scheduler on a backend with everything it sends caught, for the tests of what runs on it.
 */
#ifndef DSV3_TEST_RIG_H
#define DSV3_TEST_RIG_H

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/latency.h"
#include "engine/scheduler.h"

#define MAX_ID 400

/* What came out for one request. */
typedef struct Result
{
	Dsv3Text text;
	Dsv3Tokens tokens;
	Dsv3Text message;
	Dsv3Text logprobs;
	double logprob;
	int ends; /* DONE and FAIL events */
	int deltas;
	int order; /* how many had ended before */
	Dsv3Finish finish;
	uint32_t prompt_tokens;
	uint32_t cached_tokens;
	uint32_t output_tokens;
	uint32_t drafted;
	uint32_t accepted;
	int64_t gaps; /* times between steps that gave tokens, of all classes */
	uint64_t computing_us;
	Dsv3Error error; /* sqlstate "" when DONE */
} Result;

typedef struct Rig
{
	Dsv3Backend *backend;
	Dsv3Scheduler *scheduler;
	Result results[MAX_ID];
	int n_ended;
	bool no_room;
	pthread_mutex_t lock;
} Rig;

static inline void
on_event(void *arg, const Dsv3Event *event)
{
	Rig *rig = arg;
	Result *result = &rig->results[event->request];
	Dsv3Error err;

	pthread_mutex_lock(&rig->lock);
	assert_true(event->request < MAX_ID);
	assert_int_equal(result->ends, 0);
	if (event->type == DSV3_FRAME_FAIL)
		result->error = *event->error;
	else
	{
		assert_true(dsv3_text_append(&result->text, event->text ? event->text : "", event->text_len, &err));
		for (size_t i = 0; i < event->n_tokens; i++)
			assert_true(dsv3_tokens_push(&result->tokens, event->tokens[i], &err));
	}
	if (event->type == DSV3_FRAME_DELTA)
		result->deltas++;
	else
	{
		result->ends++;
		result->order = rig->n_ended++;
	}
	if (event->type == DSV3_FRAME_DONE)
	{
		result->finish = event->finish;
		result->prompt_tokens = event->prompt_tokens;
		result->cached_tokens = event->cached_tokens;
		result->output_tokens = event->output_tokens;
		result->drafted = event->drafted_tokens;
		result->accepted = event->accepted_tokens;
		for (int i = 0; event->gaps && i < DSV3_LATENCY_CLASSES; i++)
			result->gaps += event->gaps[i];
		result->computing_us = event->prefill_us + event->decode_us;
		result->logprob = event->logprob;
		if (event->message_json)
			assert_true(
				dsv3_text_append(&result->message, event->message_json, strlen(event->message_json), &err));
		if (event->logprobs_json)
			assert_true(dsv3_text_append(&result->logprobs, event->logprobs_json,
										 strlen(event->logprobs_json), &err));
	}
	pthread_mutex_unlock(&rig->lock);
}

static inline bool
rig_has_room(void *arg)
{
	return !((Rig *) arg)->no_room;
}

/* How the backends of the next rigs are opened. */
static Dsv3BackendOptions rig_options;

/* folder: of cached blocks, or NULL. */
static inline Rig *
open_drafting_rig(const char *model, int kv_blocks, int max_batch, bool text_thread, const char *folder,
				  Dsv3SpeculationMode speculation)
{
	Rig *rig = calloc(1, sizeof(*rig));
	Dsv3BackendOptions options = rig_options;
	Dsv3SchedulerOptions scheduling = {.kv_blocks = kv_blocks,
									   .max_requests = MAX_ID,
									   .max_batch = max_batch,
									   .text_thread = text_thread,
									   .speculation = speculation,
									   .kv_folder = folder,
									   .kv_disk_bytes = 1 << 22,
									   .emit = on_event,
									   .has_room = rig_has_room,
									   .arg = rig};
	Dsv3Error err;

	options.drafts = speculation != DSV3_SPECULATION_OFF;
	pthread_mutex_init(&rig->lock, NULL);
	rig->backend = dsv3_backend_open(model, &options, &err);
	assert_non_null(rig->backend);
	rig->scheduler = dsv3_scheduler_open(rig->backend, &scheduling, &err);
	assert_non_null(rig->scheduler);
	return rig;
}

static inline Rig *
open_rig_with(const char *model, int kv_blocks, int max_batch, bool text_thread, const char *folder)
{
	return open_drafting_rig(model, kv_blocks, max_batch, text_thread, folder, DSV3_SPECULATION_OFF);
}

static inline Rig *
open_rig(const char *model, int kv_blocks, int max_batch, bool text_thread)
{
	return open_rig_with(model, kv_blocks, max_batch, text_thread, NULL);
}

static inline void
close_rig(Rig *rig)
{
	dsv3_scheduler_close(rig->scheduler);
	dsv3_backend_close(rig->backend);
	for (int i = 0; i < MAX_ID; i++)
	{
		dsv3_text_free(&rig->results[i].text);
		dsv3_tokens_free(&rig->results[i].tokens);
		dsv3_text_free(&rig->results[i].message);
		dsv3_text_free(&rig->results[i].logprobs);
	}
	pthread_mutex_destroy(&rig->lock);
	free(rig);
}

static inline void
set(Dsv3Bytes *bytes, const char *text)
{
	Dsv3Error err;

	assert_true(dsv3_bytes_set(bytes, text, strlen(text), &err));
}

static inline Dsv3Request *
generate(uint64_t id, const char *prompt)
{
	Dsv3Request *request = dsv3_request_new(id, DSV3_REQUEST_GENERATE);

	set(&request->prompt, prompt);
	return request;
}

static inline void
submit(Rig *rig, Dsv3Request *request)
{
	Dsv3Error err;

	assert_true(dsv3_request_check(request, &err));
	assert_true(dsv3_scheduler_submit(rig->scheduler, request, &err));
}

static inline void
run(Rig *rig)
{
	/* A job that waits for the disk is neither worked on nor done. */
	while (dsv3_scheduler_step(rig->scheduler) == DSV3_STEP_WORKED || dsv3_scheduler_busy(rig->scheduler))
		;
}

static inline int64_t
stat_of(Rig *rig, const char *name)
{
	char *stats = dsv3_scheduler_stats(rig->scheduler);
	char *at = strstr(stats, name);
	int64_t value;

	assert_non_null(at);
	value = strtoll(at + strlen(name) + 2, NULL, 10);
	free(stats);
	return value;
}

/* Submit, run, and expect this text. */
static inline Result *
ask(Rig *rig, Dsv3Request *request, const char *text)
{
	Result *result = &rig->results[request->id];

	submit(rig, request);
	run(rig);
	assert_int_equal(result->ends, 1);
	assert_string_equal(result->error.sqlstate, "");
	assert_string_equal(result->text.data ? result->text.data : "", text);
	assert_int_equal(result->tokens.count, result->output_tokens);
	assert_int_equal(stat_of(rig, "kv_blocks_used"), 0);
	return result;
}

static inline Result *
expect_error(Rig *rig, Dsv3Request *request, const char *sqlstate, const char *message)
{
	Result *result = &rig->results[request->id];

	submit(rig, request);
	run(rig);
	assert_int_equal(result->ends, 1);
	assert_string_equal(result->error.sqlstate, sqlstate);
	assert_non_null(strstr(result->error.message, message));
	return result;
}

static inline Dsv3Request *
logprob(uint64_t id, const char *prompt, const char *continuation)
{
	Dsv3Request *request = dsv3_request_new(id, DSV3_REQUEST_LOGPROB);

	set(&request->prompt, prompt);
	set(&request->continuation, continuation);
	return request;
}

/* A request of any kind, made from a number: the same number, the same request. */
static inline Dsv3Request *
any_request(uint64_t id, uint64_t number)
{
	Dsv3Request *request;
	char text[600];
	int len = 0;
	uint64_t r = number * UINT64_C(0x9E3779B97F4A7C15);

	if (number % 11 == 3)
		return logprob(id, "the same prompt",
					   number % 2 ? "THE SAME PROMPT" : "something else that is longer than it was");
	if (number % 5 == 0)
		len = snprintf(text, sizeof(text), "/count %d", (int) (number % 40));
	else if (number % 7 == 0)
		len = snprintf(text, sizeof(text), "/think of %d", (int) number);
	else
	{
		for (len = 0; len < (int) (r >> 20) % 500; len++)
			text[len] = (char) ('a' + (number * 31 + (uint64_t) len * (number + 1)) % 26);
		text[len] = '\0';
	}
	request = generate(id, text);
	request->role = (uint32_t) (number % 3);
	request->priority = number % 4 == 1;
	request->stream = number % 2;
	request->has_max_tokens = number % 3 == 0;
	request->max_tokens = 1 + (uint32_t) (r >> 40) % 200;
	if (number % 2)
	{
		request->sampling.temperature = 0.5 + (double) (number % 5) * 0.5;
		request->sampling.seed = (int64_t) number;
		request->sampling.top_p = number % 3 ? 1.0 : 0.95;
		request->sampling.top_k = number % 9 == 0 ? 5 : 0;
	}
	if (number % 6 == 0)
		request->sampling.repetition_penalty = 1.3;
	if (number % 2 == 0)
		request->has_logprobs = true;
	if (number % 9 == 2)
		set(&request->stops[request->n_stops++], "xy");
	request->logprobs = number % 3;
	return request;
}

static inline void
expect_same(const Result *a, const Result *b)
{
	assert_int_equal(a->ends, 1);
	assert_int_equal(b->ends, 1);
	assert_string_equal(a->error.sqlstate, b->error.sqlstate);
	assert_string_equal(a->error.message, b->error.message);
	assert_int_equal(a->tokens.count, b->tokens.count);
	if (a->tokens.count > 0)
		assert_memory_equal(a->tokens.ids, b->tokens.ids, a->tokens.count * sizeof(int32_t));
	assert_string_equal(a->text.data ? a->text.data : "", b->text.data ? b->text.data : "");
	assert_string_equal(a->logprobs.data ? a->logprobs.data : "", b->logprobs.data ? b->logprobs.data : "");
	assert_true(a->logprob == b->logprob);
	assert_int_equal(a->finish, b->finish);
	assert_int_equal(a->output_tokens, b->output_tokens);
}

#endif /* DSV3_TEST_RIG_H */
