/*
 * pump.c
 *	  The I/O thread; see pump.h.
 *
 * Outgoing frames are one growing buffer of bytes with a read position; it is compacted when everything before the
 * position has been written. `lock` covers it. Incoming bytes are the thread's own: the header is read into a fixed array and
 * checked, then a body of exactly the announced length (bounded by the header check) is allocated and filled.
 *
 * An eventfd wakes the thread from poll when something was queued. The thread never holds the lock while it calls the
 * handler, so that the handler may send.
 */
#include "engine/pump.h"

#include "common/altstack.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_SOFT_LIMIT ((size_t) 1024 * 1024)
#define HARD_LIMIT_FACTOR  8
#define READ_CHUNK         ((size_t) 256 * 1024) /* most bytes read before other work gets its turn */

struct Dsv3Pump
{
	int fd;
	int wake_fd;
	Dsv3PumpHandler handler;
	size_t soft_limit;
	pthread_t thread;
	bool started;

	pthread_mutex_t lock;
	pthread_cond_t drained;
	uint8_t *out;
	size_t out_start;
	size_t out_end;
	size_t out_capacity;
	bool was_full; /* has_room said no since room_again was last called */
	bool stop;
	bool ended;

	uint8_t header_bytes[DSV3_FRAME_HEADER];
	size_t header_have;
	Dsv3FrameHeader header;
	uint8_t *body;
	size_t body_have;
};

static void
wake(Dsv3Pump *pump)
{
	uint64_t one = 1;

	/* It only fails when the counter is full, and then the thread is awake. */
	if (write(pump->wake_fd, &one, sizeof(one)) < 0)
		return;
}

/* Make room for len more bytes at out_end. Call with the lock held. */
static bool
reserve_out(Dsv3Pump *pump, size_t len)
{
	size_t used = pump->out_end - pump->out_start;
	size_t capacity = pump->out_capacity;
	uint8_t *grown;

	if (pump->out_capacity - pump->out_end >= len)
		return true;
	/* Move only when that frees at least as much as it copies. */
	if (pump->out_start > 0 && pump->out_start >= used)
	{
		memmove(pump->out, pump->out + pump->out_start, used);
		pump->out_start = 0;
		pump->out_end = used;
		if (capacity - used >= len)
			return true;
	}
	while (capacity - pump->out_end < len)
		capacity = capacity < 4096 ? 4096 : capacity * 2;
	grown = realloc(pump->out, capacity);
	if (grown == NULL)
		return false;
	pump->out = grown;
	pump->out_capacity = capacity;
	return true;
}

bool
dsv3_pump_send(Dsv3Pump *pump, uint16_t type, uint64_t request, const uint8_t *body, size_t len)
{
	Dsv3FrameHeader header = {
		.version = DSV3_PROTOCOL_VERSION, .type = type, .length = (uint32_t) len, .request = request};
	bool ok;

	if (len > DSV3_FRAME_MAX_BODY)
		return false;
	pthread_mutex_lock(&pump->lock);
	ok = reserve_out(pump, DSV3_FRAME_HEADER + len);
	if (ok)
	{
		dsv3_frame_encode_header(&header, pump->out + pump->out_end);
		pump->out_end += DSV3_FRAME_HEADER;
		if (len > 0)
			memcpy(pump->out + pump->out_end, body, len);
		pump->out_end += len;
	}
	pthread_mutex_unlock(&pump->lock);
	wake(pump);
	return ok;
}

bool
dsv3_pump_has_room(Dsv3Pump *pump)
{
	bool room;

	pthread_mutex_lock(&pump->lock);
	room = pump->out_end - pump->out_start <= pump->soft_limit;
	pump->was_full = pump->was_full || !room;
	pthread_mutex_unlock(&pump->lock);
	return room;
}

void
dsv3_pump_drain(Dsv3Pump *pump, int timeout_ms)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += timeout_ms / 1000;
	until.tv_nsec += timeout_ms % 1000 * 1000000L;
	if (until.tv_nsec >= 1000000000L)
	{
		until.tv_sec++;
		until.tv_nsec -= 1000000000L;
	}
	pthread_mutex_lock(&pump->lock);
	while (!pump->ended && pump->out_end > pump->out_start)
	{
		if (pthread_cond_timedwait(&pump->drained, &pump->lock, &until) == ETIMEDOUT)
			break;
	}
	pthread_mutex_unlock(&pump->lock);
}

/* Write what the socket takes. false: it is broken. */
static bool
write_some(Dsv3Pump *pump, Dsv3Error *err)
{
	bool ok = true;
	bool room_again = false;

	pthread_mutex_lock(&pump->lock);
	while (ok && pump->out_end > pump->out_start)
	{
		ssize_t n = write(pump->fd, pump->out + pump->out_start, pump->out_end - pump->out_start);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (n < 0)
			ok = dsv3_error(err, DSV3_ERR_PROTOCOL, "could not write to the supervisor: %s", strerror(errno));
		else
			pump->out_start += (size_t) n;
	}
	if (pump->out_start == pump->out_end)
	{
		pump->out_start = pump->out_end = 0;
		/* One large answer should not hold its memory for ever. */
		if (pump->out_capacity > 2 * pump->soft_limit)
		{
			free(pump->out);
			pump->out = NULL;
			pump->out_capacity = 0;
		}
		pthread_cond_broadcast(&pump->drained);
	}
	if (pump->was_full && pump->out_end - pump->out_start <= pump->soft_limit / 2)
	{
		pump->was_full = false;
		room_again = true;
	}
	pthread_mutex_unlock(&pump->lock);
	if (room_again && pump->handler.room_again)
		pump->handler.room_again(pump->handler.arg);
	return ok;
}

/* Hand over a complete frame and get ready for the next. */
static bool
finish_frame(Dsv3Pump *pump, Dsv3Error *err)
{
	uint8_t *body = pump->body;
	bool ok;

	pump->body = NULL;
	pump->body_have = 0;
	pump->header_have = 0;
	ok = pump->handler.frame(pump->handler.arg, &pump->header, body, err);
	free(body);
	return ok;
}

/* The bytes of a frame's header are complete. */
static bool
begin_frame(Dsv3Pump *pump, Dsv3Error *err)
{
	const char *wrong = dsv3_frame_decode_header(pump->header_bytes, &pump->header);

	if (wrong)
		return dsv3_error(err, DSV3_ERR_PROTOCOL, "bad frame from the supervisor: %s", wrong);
	if (pump->header.length == 0)
		return finish_frame(pump, err);
	pump->body = malloc(pump->header.length);
	if (pump->body == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a frame of %u bytes",
						  pump->header.length);
	return true;
}

typedef enum ReadResult
{
	READ_GOES_ON,
	READ_END,
	READ_BROKEN,
} ReadResult;

/* Read what is there, up to READ_CHUNK, and hand over what is complete. */
static ReadResult
read_some(Dsv3Pump *pump, Dsv3Error *err)
{
	size_t total = 0;

	while (total < READ_CHUNK)
	{
		bool in_body = pump->header_have == DSV3_FRAME_HEADER;
		uint8_t *to = in_body ? pump->body + pump->body_have : pump->header_bytes + pump->header_have;
		size_t want = in_body ? pump->header.length - pump->body_have : DSV3_FRAME_HEADER - pump->header_have;
		ssize_t n = read(pump->fd, to, want < READ_CHUNK ? want : READ_CHUNK);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return READ_GOES_ON;
		/* A peer that vanished with bytes of ours unread resets the connection: an end like any other. */
		if (n < 0 && errno != ECONNRESET)
		{
			dsv3_error(err, DSV3_ERR_PROTOCOL, "could not read from the supervisor: %s", strerror(errno));
			return READ_BROKEN;
		}
		if (n <= 0)
		{
			if (pump->header_have == 0)
				return READ_END;
			dsv3_error(err, DSV3_ERR_PROTOCOL, "the supervisor closed the connection within a frame");
			return READ_BROKEN;
		}
		total += (size_t) n;
		if (!in_body)
		{
			pump->header_have += (size_t) n;
			if (pump->header_have == DSV3_FRAME_HEADER && !begin_frame(pump, err))
				return READ_BROKEN;
			continue;
		}
		pump->body_have += (size_t) n;
		if (pump->body_have == pump->header.length && !finish_frame(pump, err))
			return READ_BROKEN;
	}
	return READ_GOES_ON;
}

static void *
pump_main(void *arg)
{
	Dsv3Pump *pump = arg;
	void *stack = dsv3_altstack_set();
	Dsv3Error err;
	ReadResult result = READ_GOES_ON;
	bool stop = false;

	while (result == READ_GOES_ON)
	{
		struct pollfd polled[2] = {{.fd = pump->fd}, {.fd = pump->wake_fd, .events = POLLIN}};
		uint64_t count;

		pthread_mutex_lock(&pump->lock);
		stop = pump->stop;
		if (pump->out_end > pump->out_start)
			polled[0].events |= POLLOUT;
		if (pump->out_end - pump->out_start <= HARD_LIMIT_FACTOR * pump->soft_limit)
			polled[0].events |= POLLIN;
		pthread_mutex_unlock(&pump->lock);
		if (stop)
			break;
		if (poll(polled, 2, -1) < 0)
			continue; /* interrupted */
		if ((polled[1].revents & POLLIN) && read(pump->wake_fd, &count, sizeof(count)) < 0)
			continue;
		if (polled[0].revents & (POLLIN | POLLHUP | POLLERR))
			result = read_some(pump, &err);
		/* Always: what was queued while the bytes before were handled should not wait for another poll. */
		if (result == READ_GOES_ON && !write_some(pump, &err))
			result = READ_BROKEN;
	}
	if (stop)
		(void) write_some(pump, &err);
	pthread_mutex_lock(&pump->lock);
	pump->ended = true;
	pthread_cond_broadcast(&pump->drained);
	pthread_mutex_unlock(&pump->lock);
	if (!stop)
		pump->handler.closed(pump->handler.arg, result == READ_END ? NULL : &err);
	dsv3_altstack_drop(stack);
	return NULL;
}

Dsv3Pump *
dsv3_pump_open(int fd, const Dsv3PumpHandler *handler, size_t soft_limit, Dsv3Error *err)
{
	Dsv3Pump *pump = calloc(1, sizeof(*pump));
	int flags = fcntl(fd, F_GETFL);

	if (pump == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the I/O thread");
		return NULL;
	}
	pump->fd = fd;
	pump->handler = *handler;
	pump->soft_limit = soft_limit > 0 ? soft_limit : DEFAULT_SOFT_LIMIT;
	pthread_mutex_init(&pump->lock, NULL);
	pthread_cond_init(&pump->drained, NULL);
	pump->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (pump->wake_fd >= 0 && flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0)
		return pump;
	dsv3_error(err, DSV3_ERR_PROTOCOL, "descriptor %d cannot be used: %s", fd, strerror(errno));
	dsv3_pump_close(pump);
	return NULL;
}

bool
dsv3_pump_start(Dsv3Pump *pump, Dsv3Error *err)
{
	int rc = pthread_create(&pump->thread, NULL, pump_main, pump);

	pump->started = rc == 0;
	return pump->started ||
		   dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "could not start the I/O thread: %s", strerror(rc));
}

void
dsv3_pump_close(Dsv3Pump *pump)
{
	if (pump == NULL)
		return;
	pthread_mutex_lock(&pump->lock);
	pump->stop = true;
	pthread_mutex_unlock(&pump->lock);
	if (pump->started)
	{
		wake(pump);
		pthread_join(pump->thread, NULL);
	}
	if (pump->wake_fd >= 0)
		close(pump->wake_fd);
	pthread_cond_destroy(&pump->drained);
	pthread_mutex_destroy(&pump->lock);
	free(pump->out);
	free(pump->body);
	free(pump);
}

int
dsv3_pump_wake_fd(const Dsv3Pump *pump)
{
	return pump->wake_fd;
}
