/*
 * relay.c
 *	  Frames in and out of one non-blocking stream socket.
 *
 * The input buffer holds at most the frame being received and what came after it; it grows to the size that a checked
 * header announces (at most DSV3_FRAME_MAX_BODY) and shrinks again when it has run empty. The output buffer holds
 * whole frames; the supervisor starts a large one only when little is pending, so it stays near the largest request.
 * Memory is the supervisor's own, in TopMemoryContext. Nothing here blocks. Out of memory throws, which ends the
 * supervisor with exit status 1, and the postmaster starts it again.
 */
#include "postgres.h"

#include "pg/compat.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pg/relay.h"

#define BUFFER_MIN (64 * 1024)
#define READ_MAX   (256 * 1024) /* per call, so that one side cannot keep the loop */

void
dsv3_relay_open(Dsv3Relay *relay, int fd)
{
	memset(relay, 0, sizeof(*relay));
	relay->fd = fd;
	relay->in_size = BUFFER_MIN;
	relay->in = MemoryContextAlloc(TopMemoryContext, relay->in_size);
	relay->out_size = BUFFER_MIN;
	relay->out = MemoryContextAlloc(TopMemoryContext, relay->out_size);
}

void
dsv3_relay_close(Dsv3Relay *relay)
{
	if (relay->fd >= 0)
		close(relay->fd);
	if (relay->in)
		pfree(relay->in);
	if (relay->out)
		pfree(relay->out);
	memset(relay, 0, sizeof(*relay));
	relay->fd = -1;
}

/* Give an empty buffer that has grown back to the system. */
static void
shrink(uint8 **buf, Size *size)
{
	if (*size > 16 * BUFFER_MIN)
	{
		*size = BUFFER_MIN;
		pfree(*buf);
		*buf = MemoryContextAlloc(TopMemoryContext, *size);
	}
}

/* Make room for `need` bytes from in_pos on. */
static void
reserve_input(Dsv3Relay *relay, Size need)
{
	if (relay->in_pos > 0)
	{
		memmove(relay->in, relay->in + relay->in_pos, relay->in_len - relay->in_pos);
		relay->in_len -= relay->in_pos;
		relay->in_pos = 0;
	}
	if (relay->in_len == 0)
		shrink(&relay->in, &relay->in_size);
	if (need > relay->in_size)
	{
		relay->in = repalloc(relay->in, need);
		relay->in_size = need;
	}
}

Dsv3ReadResult
dsv3_relay_read(Dsv3Relay *relay)
{
	Size room;
	ssize_t n;

	/* take() has already made room for the frame it waits for. */
	if (relay->in_len == relay->in_size)
		reserve_input(relay, relay->in_len - relay->in_pos + BUFFER_MIN);
	room = Min(relay->in_size - relay->in_len, (Size) READ_MAX);
	n = recv(relay->fd, relay->in + relay->in_len, room, MSG_DONTWAIT);
	if (n > 0)
	{
		relay->in_len += (Size) n;
		return DSV3_READ_SOME;
	}
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return DSV3_READ_AGAIN;
	return DSV3_READ_EOF;
}

bool
dsv3_relay_take(Dsv3Relay *relay, Dsv3FrameHeader *header, const uint8 **body, const char **error)
{
	Size have = relay->in_len - relay->in_pos;

	*error = NULL;
	if (have < DSV3_FRAME_HEADER)
		return false;
	*error = dsv3_frame_decode_header(relay->in + relay->in_pos, header);
	if (*error)
		return false;
	if (have - DSV3_FRAME_HEADER < header->length)
	{
		reserve_input(relay, DSV3_FRAME_HEADER + (Size) header->length);
		return false;
	}
	*body = relay->in + relay->in_pos + DSV3_FRAME_HEADER;
	relay->in_pos += DSV3_FRAME_HEADER + (Size) header->length;
	return true;
}

uint8 *
dsv3_relay_reserve(Dsv3Relay *relay, Dsv3FrameType type, uint64 request, Size body_len)
{
	Size need = DSV3_FRAME_HEADER + body_len;
	Dsv3FrameHeader header = {
		.version = DSV3_PROTOCOL_VERSION, .type = type, .length = (uint32) body_len, .request = request};
	uint8 *body;

	Assert(body_len <= DSV3_FRAME_MAX_BODY);
	if (relay->out_pos > 0)
	{
		memmove(relay->out, relay->out + relay->out_pos, relay->out_len - relay->out_pos);
		relay->out_len -= relay->out_pos;
		relay->out_pos = 0;
	}
	if (relay->out_len == 0)
		shrink(&relay->out, &relay->out_size);
	if (relay->out_size - relay->out_len < need)
	{
		relay->out_size = relay->out_len + need + BUFFER_MIN;
		relay->out = repalloc(relay->out, relay->out_size);
	}
	dsv3_frame_encode_header(&header, relay->out + relay->out_len);
	body = relay->out + relay->out_len + DSV3_FRAME_HEADER;
	relay->out_len += need;
	return body;
}

void
dsv3_relay_queue(Dsv3Relay *relay, Dsv3FrameType type, uint64 request, const void *body, Size body_len)
{
	uint8 *to = dsv3_relay_reserve(relay, type, request, body_len);

	if (body_len > 0)
		memcpy(to, body, body_len);
}

bool
dsv3_relay_flush(Dsv3Relay *relay)
{
	while (relay->out_pos < relay->out_len)
	{
		ssize_t n = send(relay->fd, relay->out + relay->out_pos, relay->out_len - relay->out_pos,
						 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n >= 0)
			relay->out_pos += (Size) n;
		else if (errno == EINTR)
			continue;
		else
			return errno == EAGAIN || errno == EWOULDBLOCK;
	}
	return true;
}
