/*
 * protocol.c
 *	  The frame codec; see protocol.h for the format and the rules.
 */
#include "common/protocol.h"

#include <string.h>

#define FIELD_HEADER 6 /* tag u16, length u32 */

static void
put_uint(uint8_t *out, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		out[i] = (uint8_t) (value >> (8 * i));
}

static uint64_t
take_uint(const uint8_t *in, int bytes)
{
	uint64_t value = 0;

	for (int i = 0; i < bytes; i++)
		value |= (uint64_t) in[i] << (8 * i);
	return value;
}

void
dsv3_frame_encode_header(const Dsv3FrameHeader *header, uint8_t out[DSV3_FRAME_HEADER])
{
	put_uint(out, DSV3_FRAME_MAGIC, 4);
	put_uint(out + 4, header->version, 2);
	put_uint(out + 6, header->type, 2);
	put_uint(out + 8, header->length, 4);
	put_uint(out + 12, 0, 4);
	put_uint(out + 16, header->request, 8);
}

const char *
dsv3_frame_decode_header(const uint8_t in[DSV3_FRAME_HEADER], Dsv3FrameHeader *header)
{
	if (take_uint(in, 4) != DSV3_FRAME_MAGIC)
		return "bad magic number";
	header->version = (uint16_t) take_uint(in + 4, 2);
	header->type = (uint16_t) take_uint(in + 6, 2);
	header->length = (uint32_t) take_uint(in + 8, 4);
	header->request = take_uint(in + 16, 8);
	if (header->version != DSV3_PROTOCOL_VERSION)
		return "unsupported protocol version";
	if (header->type < DSV3_FRAME_CONFIG || header->type > DSV3_FRAME_PONG)
		return "unknown frame type";
	if (header->length > DSV3_FRAME_MAX_BODY)
		return "frame too long";
	if (take_uint(in + 12, 4) != 0)
		return "reserved bits set";
	return NULL;
}

void
dsv3_body_init(Dsv3BodyWriter *writer, uint8_t *buf, size_t size)
{
	writer->buf = buf;
	writer->size = buf ? size : SIZE_MAX;
	writer->len = 0;
	writer->overflow = false;
}

void
dsv3_body_bytes(Dsv3BodyWriter *writer, Dsv3Field field, const void *data, size_t len)
{
	size_t room = writer->size - writer->len;

	if (writer->overflow || len > DSV3_FRAME_MAX_BODY || room < FIELD_HEADER || room - FIELD_HEADER < len)
	{
		writer->overflow = true;
		return;
	}
	if (writer->buf)
	{
		uint8_t *out = writer->buf + writer->len;

		put_uint(out, field, 2);
		put_uint(out + 2, len, 4);
		if (len > 0)
			memcpy(out + FIELD_HEADER, data, len);
	}
	writer->len += FIELD_HEADER + len;
}

void
dsv3_body_text(Dsv3BodyWriter *writer, Dsv3Field field, const char *text)
{
	dsv3_body_bytes(writer, field, text, strlen(text));
}

static void
body_uint(Dsv3BodyWriter *writer, Dsv3Field field, uint64_t value, int bytes)
{
	uint8_t raw[8];

	put_uint(raw, value, bytes);
	dsv3_body_bytes(writer, field, raw, (size_t) bytes);
}

void
dsv3_body_u32(Dsv3BodyWriter *writer, Dsv3Field field, uint32_t value)
{
	body_uint(writer, field, value, 4);
}

void
dsv3_body_u64(Dsv3BodyWriter *writer, Dsv3Field field, uint64_t value)
{
	body_uint(writer, field, value, 8);
}

void
dsv3_body_f64(Dsv3BodyWriter *writer, Dsv3Field field, double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof(bits));
	body_uint(writer, field, bits, 8);
}

void
dsv3_body_bool(Dsv3BodyWriter *writer, Dsv3Field field, bool value)
{
	body_uint(writer, field, value ? 1 : 0, 1);
}

/* Reserve a field of count numbers as raw bytes; returns where they are to be written in wire order, or NULL. */
static uint8_t *
body_array(Dsv3BodyWriter *writer, Dsv3Field field, const void *values, size_t count, size_t bytes)
{
	size_t start = writer->len;

	if (count > DSV3_FRAME_MAX_BODY / bytes)
	{
		writer->overflow = true;
		return NULL;
	}
	dsv3_body_bytes(writer, field, values, count * bytes);
	return writer->buf && !writer->overflow ? writer->buf + start + FIELD_HEADER : NULL;
}

void
dsv3_body_tokens(Dsv3BodyWriter *writer, Dsv3Field field, const int32_t *ids, size_t count)
{
	uint8_t *to = body_array(writer, field, ids, count, 4);

	for (size_t i = 0; to && i < count; i++)
		put_uint(to + 4 * i, (uint32_t) ids[i], 4);
}

void
dsv3_body_u64s(Dsv3BodyWriter *writer, Dsv3Field field, const uint64_t *values, size_t count)
{
	uint8_t *to = body_array(writer, field, values, count, 8);

	for (size_t i = 0; to && i < count; i++)
		put_uint(to + 8 * i, values[i], 8);
}

void
dsv3_body_open(Dsv3BodyReader *reader, const uint8_t *buf, size_t len)
{
	memset(reader, 0, sizeof(*reader));
	reader->buf = buf;
	reader->len = len;
}

bool
dsv3_body_next(Dsv3BodyReader *reader)
{
	size_t left = reader->len - reader->pos;
	uint64_t len;

	if (reader->error || left == 0)
		return false;
	if (left < FIELD_HEADER)
	{
		reader->error = "truncated field header";
		return false;
	}
	reader->field = (uint16_t) take_uint(reader->buf + reader->pos, 2);
	len = take_uint(reader->buf + reader->pos + 2, 4);
	if (len > left - FIELD_HEADER)
	{
		reader->error = "field reaches past the frame";
		return false;
	}
	reader->value = reader->buf + reader->pos + FIELD_HEADER;
	reader->value_len = (size_t) len;
	reader->pos += FIELD_HEADER + (size_t) len;
	return true;
}

static uint64_t
body_take(Dsv3BodyReader *reader, size_t bytes)
{
	if (reader->value_len != bytes)
	{
		reader->error = "field has the wrong length";
		return 0;
	}
	return take_uint(reader->value, (int) bytes);
}

uint32_t
dsv3_body_get_u32(Dsv3BodyReader *reader)
{
	return (uint32_t) body_take(reader, 4);
}

uint64_t
dsv3_body_get_u64(Dsv3BodyReader *reader)
{
	return body_take(reader, 8);
}

double
dsv3_body_get_f64(Dsv3BodyReader *reader)
{
	uint64_t bits = body_take(reader, 8);
	double value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

bool
dsv3_body_get_bool(Dsv3BodyReader *reader)
{
	uint64_t value = body_take(reader, 1);

	if (value > 1)
		reader->error = "field is not a boolean";
	return value == 1;
}

size_t
dsv3_body_get_tokens(Dsv3BodyReader *reader, int32_t *ids, size_t capacity)
{
	size_t count = reader->value_len / 4;

	if (reader->value_len % 4 != 0)
		reader->error = "token field is ragged";
	else if (count > capacity)
		reader->error = "too many tokens in field";
	if (reader->error)
		return 0;
	for (size_t i = 0; i < count; i++)
		ids[i] = (int32_t) take_uint(reader->value + 4 * i, 4);
	return count;
}

uint64_t
dsv3_body_get_u64_at(const Dsv3BodyReader *reader, size_t index)
{
	return take_uint(reader->value + 8 * index, 8);
}
