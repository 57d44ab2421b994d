/*
 * relay.h
 *	  Frames in and out of one non-blocking stream socket. Knows nothing of slots; relay.c explains the buffers.
 */
#ifndef DSV3_RELAY_H
#define DSV3_RELAY_H

#include "pg/compat.h"

#include "common/protocol.h"

typedef struct Dsv3Relay
{
	int fd; /* -1: closed */

	uint8 *in; /* bytes read, not yet taken */
	Size in_size;
	Size in_pos; /* start of the frame to take next */
	Size in_len; /* end of what was read */

	uint8 *out; /* bytes to write */
	Size out_size;
	Size out_pos;
	Size out_len;
} Dsv3Relay;

typedef enum Dsv3ReadResult
{
	DSV3_READ_SOME,  /* something was read, perhaps more waits */
	DSV3_READ_AGAIN, /* nothing there now */
	DSV3_READ_EOF,   /* the other side closed, or the connection broke */
} Dsv3ReadResult;

/* The relay takes the descriptor and closes it. */
extern void dsv3_relay_open(Dsv3Relay *relay, int fd);
extern void dsv3_relay_close(Dsv3Relay *relay);

extern Dsv3ReadResult dsv3_relay_read(Dsv3Relay *relay);

/* Take the next complete frame. The body stays valid until the next read or take. When there is none: false, with
 * *error NULL if more bytes are needed, or a static text if the stream is damaged for good. */
extern bool
dsv3_relay_take(Dsv3Relay *relay, Dsv3FrameHeader *header, const uint8 **body, const char **error);

/* Queue a frame. _body copies it; _reserve gives room for the body, to be filled before anything else is called. */
extern uint8 *dsv3_relay_reserve(Dsv3Relay *relay, Dsv3FrameType type, uint64 request, Size body_len);
extern void
dsv3_relay_queue(Dsv3Relay *relay, Dsv3FrameType type, uint64 request, const void *body, Size body_len);

/* Write what the socket takes now; false when the connection is broken. */
extern bool dsv3_relay_flush(Dsv3Relay *relay);

static inline Size
dsv3_relay_pending(const Dsv3Relay *relay)
{
	return relay->out_len - relay->out_pos;
}

#endif /* DSV3_RELAY_H */
