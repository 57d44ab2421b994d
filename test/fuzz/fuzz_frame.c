/*
 * fuzz_frame.c
 *	  Any bytes as the stream from the supervisor: frames are decoded, requests parsed and answered by the scheduler on the
 *	  test model. What must hold: each accepted request ends exactly once, no cache block is lost, what is sent is well
 *	  formed and its text valid UTF-8.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/process.h"
#include "engine/scheduler.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_REQUESTS 16

typedef struct Watch
{
	uint64_t open[MAX_REQUESTS]; /* ids without an end */
	int n_open;
} Watch;

/* Whole characters and nothing else (Unicode 15, table 3-7). */
static bool
valid_utf8(const uint8_t *s, size_t len)
{
	size_t i = 0;

	while (i < len)
	{
		uint8_t lead = s[i];
		size_t more = lead < 0x80 ? 0 : lead >= 0xC2 && lead <= 0xDF ? 1 : (lead & 0xF0) == 0xE0 ? 2 : 3;

		if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4 || len - i <= more)
			return false;
		for (size_t k = 1; k <= more; k++)
		{
			uint8_t low = k > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
			uint8_t high = k > 1 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;

			if (s[i + k] < low || s[i + k] > high)
				return false;
		}
		i += more + 1;
	}
	return true;
}

static void
on_event(void *arg, const Dsv3Event *event)
{
	Watch *watch = arg;
	Dsv3BodyReader reader;
	size_t len;
	uint8_t *body = dsv3_event_body(event, &len);
	int at = 0;

	if (body == NULL)
		abort();
	dsv3_body_open(&reader, body, len);
	while (dsv3_body_next(&reader))
	{
		bool text = reader.field == DSV3_FIELD_TEXT || reader.field == DSV3_FIELD_ERROR ||
					reader.field == DSV3_FIELD_MESSAGE_JSON || reader.field == DSV3_FIELD_LOGPROBS_JSON;

		if (text && !valid_utf8(reader.value, reader.value_len))
			abort();
	}
	if (reader.error)
		abort();
	free(body);
	while (at < watch->n_open && watch->open[at] != event->request)
		at++;
	if (at == watch->n_open)
		abort(); /* an event for a request that is over or never was */
	if (event->type != DSV3_FRAME_DELTA)
		watch->open[at] = watch->open[--watch->n_open];
}

static void
submit(Dsv3Scheduler *scheduler, Watch *watch, uint64_t id, const uint8_t *body, size_t len)
{
	Dsv3Error err;
	Dsv3Request *request;

	memset(&err, 0, sizeof(err));
	request = dsv3_request_parse(id, body, len, &err);
	if (request == NULL)
	{
		if (strlen(err.sqlstate) != 5 || err.message[0] == '\0')
			abort();
		return;
	}
	request->timeout_ms = 0; /* time would make runs differ */
	if (watch->n_open < MAX_REQUESTS && dsv3_scheduler_submit(scheduler, request, &err))
		watch->open[watch->n_open++] = id;
	else if (watch->n_open == MAX_REQUESTS)
		dsv3_request_free(request);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Watch watch = {.n_open = 0};
	Dsv3Error err;
	Dsv3Backend *backend = dsv3_backend_test_open("context=96,think=1", &err);
	Dsv3SchedulerOptions options = {
		.kv_blocks = 5, .max_requests = MAX_REQUESTS, .max_batch = 4, .emit = on_event, .arg = &watch};
	Dsv3Scheduler *scheduler = dsv3_scheduler_open(backend, &options, &err);
	char *stats;

	while (size >= DSV3_FRAME_HEADER)
	{
		Dsv3FrameHeader header;

		if (dsv3_frame_decode_header(data, &header) != NULL || header.length > size - DSV3_FRAME_HEADER)
			break;
		data += DSV3_FRAME_HEADER;
		size -= DSV3_FRAME_HEADER;
		if (header.type == DSV3_FRAME_SUBMIT)
			submit(scheduler, &watch, header.request, data, header.length);
		else if (header.type == DSV3_FRAME_CANCEL)
			dsv3_scheduler_cancel(scheduler, header.request);
		else
			(void) dsv3_scheduler_step(scheduler);
		data += header.length;
		size -= header.length;
	}
	while (dsv3_scheduler_step(scheduler) == DSV3_STEP_WORKED)
		;
	stats = dsv3_scheduler_stats(scheduler);
	if (watch.n_open != 0 || strstr(stats, "\"kv_blocks_used\":0,") == NULL)
		abort();
	free(stats);
	dsv3_scheduler_close(scheduler);
	dsv3_backend_close(backend);
	return 0;
}
