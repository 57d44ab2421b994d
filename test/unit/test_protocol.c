/*
 * test_protocol.c
 *	  The frame codec and the reading of SUBMIT bodies: round trips, every truncation, hostile lengths.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/latency.h"
#include "common/protocol.h"
#include "engine/request.h"

static void
header_round_trip(void **state)
{
	Dsv3FrameHeader in = {.version = 1,
						  .type = DSV3_FRAME_DONE,
						  .length = 0x01020304 % DSV3_FRAME_MAX_BODY,
						  .request = UINT64_C(0xfedcba9876543210)};
	Dsv3FrameHeader out;
	uint8_t bytes[DSV3_FRAME_HEADER];

	(void) state;
	dsv3_frame_encode_header(&in, bytes);
	assert_null(dsv3_frame_decode_header(bytes, &out));
	assert_int_equal(out.version, in.version);
	assert_int_equal(out.type, in.type);
	assert_int_equal(out.length, in.length);
	assert_true(out.request == in.request);
	assert_memory_equal(bytes, "DSV3", 4);
}

static void
header_refuses(void **state)
{
	static const struct
	{
		int at;
		uint8_t value;
		const char *says;
	} cases[] = {{0, 'X', "magic"},   {3, '4', "magic"},     {4, 2, "version"}, {5, 1, "version"},
				 {6, 0, "type"},      {6, 11, "type"},       {7, 1, "type"},    {11, 0xff, "long"},
				 {12, 1, "reserved"}, {15, 0x80, "reserved"}};
	Dsv3FrameHeader header = {.version = 1, .type = DSV3_FRAME_PING};
	uint8_t bytes[DSV3_FRAME_HEADER];

	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		const char *wrong;

		dsv3_frame_encode_header(&(Dsv3FrameHeader){.version = 1, .type = DSV3_FRAME_PING}, bytes);
		bytes[cases[i].at] = cases[i].value;
		wrong = dsv3_frame_decode_header(bytes, &header);
		assert_non_null(wrong);
		assert_non_null(strstr(wrong, cases[i].says));
	}
	dsv3_frame_encode_header(&(Dsv3FrameHeader){.version = 1, .type = 1, .length = DSV3_FRAME_MAX_BODY},
							 bytes);
	assert_null(dsv3_frame_decode_header(bytes, &header));
	dsv3_frame_encode_header(&(Dsv3FrameHeader){.version = 1, .type = 1, .length = DSV3_FRAME_MAX_BODY + 1},
							 bytes);
	assert_non_null(dsv3_frame_decode_header(bytes, &header));
}

static void
write_all_types(Dsv3BodyWriter *writer)
{
	static const int32_t ids[] = {0, -1, INT32_MAX, 7};

	dsv3_body_u32(writer, DSV3_FIELD_KIND, 0xdeadbeef);
	dsv3_body_u64(writer, DSV3_FIELD_QUEUE_US, UINT64_MAX);
	dsv3_body_f64(writer, DSV3_FIELD_LOGPROB, -0.1);
	dsv3_body_bool(writer, DSV3_FIELD_RAW, true);
	dsv3_body_text(writer, DSV3_FIELD_TEXT, "h\xc3\xa9");
	dsv3_body_text(writer, DSV3_FIELD_PROMPT, "");
	dsv3_body_tokens(writer, DSV3_FIELD_TOKENS, ids, 4);
	dsv3_body_tokens(writer, DSV3_FIELD_RESUME, NULL, 0);
}

static void
body_round_trip(void **state)
{
	Dsv3BodyWriter measure;
	Dsv3BodyWriter writer;
	Dsv3BodyReader reader;
	uint8_t *buf;
	int32_t ids[4];

	(void) state;
	dsv3_body_init(&measure, NULL, 0);
	write_all_types(&measure);
	buf = malloc(measure.len);
	dsv3_body_init(&writer, buf, measure.len);
	write_all_types(&writer);
	assert_false(writer.overflow);
	assert_int_equal(writer.len, measure.len);

	dsv3_body_open(&reader, buf, writer.len);
	assert_true(dsv3_body_next(&reader) && reader.field == DSV3_FIELD_KIND);
	assert_int_equal(dsv3_body_get_u32(&reader), 0xdeadbeef);
	assert_true(dsv3_body_next(&reader) && dsv3_body_get_u64(&reader) == UINT64_MAX);
	assert_true(dsv3_body_next(&reader) && dsv3_body_get_f64(&reader) == -0.1);
	assert_true(dsv3_body_next(&reader) && dsv3_body_get_bool(&reader));
	assert_true(dsv3_body_next(&reader) && reader.value_len == 3 &&
				memcmp(reader.value, "h\xc3\xa9", 3) == 0);
	assert_true(dsv3_body_next(&reader) && reader.value_len == 0);
	assert_true(dsv3_body_next(&reader));
	assert_int_equal(dsv3_body_get_tokens(&reader, ids, 4), 4);
	assert_true(ids[1] == -1 && ids[2] == INT32_MAX && ids[3] == 7);
	assert_true(dsv3_body_next(&reader));
	assert_int_equal(dsv3_body_get_tokens(&reader, ids, 4), 0);
	assert_false(dsv3_body_next(&reader));
	assert_null(reader.error);
	free(buf);
}

/* Each prefix of a body either ends between two fields or is an error; a buffer one byte short overflows. */
static void
body_truncated(void **state)
{
	Dsv3BodyWriter writer;
	Dsv3BodyReader reader;
	uint8_t whole[256];
	size_t boundaries[16];
	int n_boundaries = 0;

	(void) state;
	dsv3_body_init(&writer, whole, sizeof(whole));
	write_all_types(&writer);
	boundaries[n_boundaries++] = 0;
	dsv3_body_open(&reader, whole, writer.len);
	while (dsv3_body_next(&reader))
		boundaries[n_boundaries++] = reader.pos;
	for (size_t len = 0; len <= writer.len; len++)
	{
		/* A buffer of exactly this size, so that a read past its end is found by the address sanitizer. */
		uint8_t *cut = malloc(len + (len == 0));
		bool at_boundary = false;
		Dsv3BodyWriter small;

		for (int i = 0; i < n_boundaries; i++)
			at_boundary = at_boundary || boundaries[i] == len;
		memcpy(cut, whole, len);
		dsv3_body_open(&reader, cut, len);
		while (dsv3_body_next(&reader))
			;
		assert_int_equal(reader.error == NULL, at_boundary);
		dsv3_body_init(&small, cut, len);
		write_all_types(&small);
		assert_int_equal(small.overflow, len < writer.len);
		assert_true(small.len <= len);
		free(cut);
	}
}

static void
body_hostile(void **state)
{
	static const uint8_t huge[] = {1, 0, 0xff, 0xff, 0xff, 0xff, 'x'};
	static const uint8_t short_u32[] = {1, 0, 3, 0, 0, 0, 1, 2, 3};
	static const uint8_t bad_bool[] = {16, 0, 1, 0, 0, 0, 2};
	static const uint8_t ragged[] = {41, 0, 5, 0, 0, 0, 1, 2, 3, 4, 5};
	Dsv3BodyReader reader;
	int32_t ids[1];

	(void) state;
	dsv3_body_open(&reader, huge, sizeof(huge));
	assert_false(dsv3_body_next(&reader));
	assert_non_null(reader.error);
	dsv3_body_open(&reader, short_u32, sizeof(short_u32));
	assert_true(dsv3_body_next(&reader));
	assert_int_equal(dsv3_body_get_u32(&reader), 0);
	assert_non_null(reader.error);
	assert_false(dsv3_body_next(&reader));
	dsv3_body_open(&reader, bad_bool, sizeof(bad_bool));
	assert_true(dsv3_body_next(&reader));
	(void) dsv3_body_get_bool(&reader);
	assert_non_null(reader.error);
	dsv3_body_open(&reader, ragged, sizeof(ragged));
	assert_true(dsv3_body_next(&reader));
	assert_int_equal(dsv3_body_get_tokens(&reader, ids, 1), 0);
	assert_non_null(reader.error);
}

/* -- SUBMIT -- */

/* Parse a body made by fill; NULL with the error in *err. */
static Dsv3Request *
parse(void (*fill)(Dsv3BodyWriter *), Dsv3Error *err)
{
	uint8_t body[1024];
	Dsv3BodyWriter writer;

	dsv3_body_init(&writer, body, sizeof(body));
	fill(&writer);
	assert_false(writer.overflow);
	return dsv3_request_parse(5, body, writer.len, err);
}

static void
fill_whole(Dsv3BodyWriter *writer)
{
	static const int32_t ids[] = {1, 2, 3};

	dsv3_body_u32(writer, DSV3_FIELD_KIND, DSV3_REQUEST_GENERATE);
	dsv3_body_text(writer, DSV3_FIELD_PROMPT, "p");
	dsv3_body_text(writer, DSV3_FIELD_INPUT, "i");
	dsv3_body_u32(writer, DSV3_FIELD_MAX_TOKENS, 9);
	dsv3_body_f64(writer, DSV3_FIELD_TEMPERATURE, 0.5);
	dsv3_body_f64(writer, DSV3_FIELD_TOP_P, 0.9);
	dsv3_body_u32(writer, DSV3_FIELD_TOP_K, 40);
	dsv3_body_u64(writer, DSV3_FIELD_SEED, (uint64_t) -3);
	dsv3_body_text(writer, DSV3_FIELD_STOP, "a");
	dsv3_body_text(writer, DSV3_FIELD_STOP, "bc");
	dsv3_body_tokens(writer, DSV3_FIELD_RESUME, ids, 3);
	dsv3_body_u32(writer, (Dsv3Field) 9999, 1); /* a field of a later version */
}

static void
submit_whole(void **state)
{
	Dsv3Error err;
	Dsv3Request *request = parse(fill_whole, &err);

	(void) state;
	assert_non_null(request);
	assert_true(request->id == 5 && request->max_tokens == 9 && request->sampling.seed == -3);
	assert_true(request->n_stops == 2 && request->stops[1].len == 2 && request->n_tokens == 3);
	assert_true(request->sampling.top_k == 40 && request->sampling.repetition_penalty == 1.0);
	assert_string_equal(request->input.data, "i");
	assert_null(request->system.data);
	dsv3_request_free(request);
}

static void
fill_twice(Dsv3BodyWriter *writer)
{
	fill_whole(writer);
	dsv3_body_text(writer, DSV3_FIELD_PROMPT, "q");
}

static void
fill_no_prompt(Dsv3BodyWriter *writer)
{
	dsv3_body_u32(writer, DSV3_FIELD_KIND, DSV3_REQUEST_GENERATE);
}

static void
fill_no_kind(Dsv3BodyWriter *writer)
{
	dsv3_body_text(writer, DSV3_FIELD_PROMPT, "q");
}

static void
fill_nan(Dsv3BodyWriter *writer)
{
	fill_no_kind(writer);
	fill_no_prompt(writer);
	dsv3_body_f64(writer, DSV3_FIELD_TEMPERATURE, NAN);
}

static void
fill_many_stops(Dsv3BodyWriter *writer)
{
	fill_no_kind(writer);
	fill_no_prompt(writer);
	for (int i = 0; i <= DSV3_MAX_STOPS; i++)
		dsv3_body_text(writer, DSV3_FIELD_STOP, "s");
}

static void
fill_empty_stop(Dsv3BodyWriter *writer)
{
	fill_no_kind(writer);
	fill_no_prompt(writer);
	dsv3_body_text(writer, DSV3_FIELD_STOP, "");
}

static void
submit_refused(void **state)
{
	static const struct
	{
		void (*fill)(Dsv3BodyWriter *);
		const char *sqlstate;
	} cases[] = {{fill_twice, "08P01"}, {fill_no_prompt, "08P01"},  {fill_no_kind, "08P01"},
				 {fill_nan, "22023"},   {fill_many_stops, "22023"}, {fill_empty_stop, "22023"}};

	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		Dsv3Error err;

		assert_null(parse(cases[i].fill, &err));
		assert_string_equal(err.sqlstate, cases[i].sqlstate);
	}
}

/* Any truncation and any single changed byte of a SUBMIT body is parsed or refused, and nothing else happens. */
static void
submit_damaged(void **state)
{
	uint8_t whole[1024];
	Dsv3BodyWriter writer;
	Dsv3Error err;

	(void) state;
	dsv3_body_init(&writer, whole, sizeof(whole));
	fill_whole(&writer);
	for (size_t len = 0; len < writer.len; len++)
	{
		uint8_t *cut = malloc(len + (len == 0));

		memcpy(cut, whole, len);
		dsv3_request_free(dsv3_request_parse(1, cut, len, &err));
		free(cut);
	}
	for (size_t at = 0; at < writer.len; at++)
	{
		for (int bit = 0; bit < 8; bit++)
		{
			whole[at] ^= (uint8_t) (1 << bit);
			dsv3_request_free(dsv3_request_parse(1, whole, writer.len, &err));
			whole[at] ^= (uint8_t) (1 << bit);
		}
	}
}

/* A class holds its edge, 0.8 s is one, and no duration is without a class. */
static void
latency_classes(void **state)
{
	bool has_alert_edge = false;

	(void) state;
	assert_int_equal(dsv3_latency_class(0), 0);
	for (int i = 0; i < DSV3_LATENCY_EDGES; i++)
	{
		assert_int_equal(dsv3_latency_class(dsv3_latency_edges[i]), i);
		assert_int_equal(dsv3_latency_class((uint64_t) dsv3_latency_edges[i] + 1), i + 1);
		has_alert_edge = has_alert_edge || dsv3_latency_edges[i] == 800000;
	}
	assert_true(has_alert_edge);
	assert_int_equal(dsv3_latency_class(UINT64_MAX), DSV3_LATENCY_CLASSES - 1);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(header_round_trip), cmocka_unit_test(header_refuses),
		cmocka_unit_test(body_round_trip),   cmocka_unit_test(body_truncated),
		cmocka_unit_test(latency_classes),   cmocka_unit_test(body_hostile),
		cmocka_unit_test(submit_whole),      cmocka_unit_test(submit_refused),
		cmocka_unit_test(submit_damaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
