/*
 * test_pump.c
 *	  The I/O thread over a socket pair: frames in any pieces, garbage, a peer that does not read, ends of every kind.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/pump.h"

#define MAX_FRAMES 1000

typedef struct Peer
{
	int fd; /* our end */
	int pump_fd;
	Dsv3Pump *pump;
	pthread_mutex_t lock;
	int n_frames;
	uint64_t requests[MAX_FRAMES];
	size_t lengths[MAX_FRAMES];
	uint8_t checks[MAX_FRAMES]; /* exclusive or of the body */
	int n_room;
	int n_closed;
	bool closed_badly;
	char why[256];
	uint64_t refuse; /* the handler refuses this request */
	bool echo;
} Peer;

static bool
on_frame(void *arg, const Dsv3FrameHeader *header, const uint8_t *body, Dsv3Error *err)
{
	Peer *peer = arg;
	uint8_t check = 0;

	for (uint32_t i = 0; i < header->length; i++)
		check ^= body[i];
	pthread_mutex_lock(&peer->lock);
	if (peer->n_frames < MAX_FRAMES)
	{
		peer->requests[peer->n_frames] = header->request;
		peer->lengths[peer->n_frames] = header->length;
		peer->checks[peer->n_frames] = check;
	}
	peer->n_frames++;
	pthread_mutex_unlock(&peer->lock);
	if (peer->echo)
		(void) dsv3_pump_send(peer->pump, DSV3_FRAME_PONG, header->request, body, header->length);
	return peer->refuse == 0 || header->request != peer->refuse ||
		   dsv3_error(err, DSV3_ERR_PROTOCOL, "refused");
}

static void
on_room(void *arg)
{
	Peer *peer = arg;

	pthread_mutex_lock(&peer->lock);
	peer->n_room++;
	pthread_mutex_unlock(&peer->lock);
}

static void
on_closed(void *arg, const Dsv3Error *err)
{
	Peer *peer = arg;

	pthread_mutex_lock(&peer->lock);
	peer->n_closed++;
	peer->closed_badly = err != NULL;
	if (err)
		snprintf(peer->why, sizeof(peer->why), "%.200s", err->message);
	pthread_mutex_unlock(&peer->lock);
}

static Peer *
open_peer(size_t soft_limit, bool echo)
{
	Peer *peer = calloc(1, sizeof(*peer));
	Dsv3PumpHandler handler = {.frame = on_frame, .room_again = on_room, .closed = on_closed, .arg = peer};
	Dsv3Error err;
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	peer->fd = fds[0];
	peer->pump_fd = fds[1];
	peer->echo = echo;
	pthread_mutex_init(&peer->lock, NULL);
	peer->pump = dsv3_pump_open(fds[1], &handler, soft_limit, &err);
	assert_non_null(peer->pump);
	assert_true(dsv3_pump_start(peer->pump, &err));
	return peer;
}

static void
close_peer(Peer *peer)
{
	dsv3_pump_close(peer->pump);
	if (peer->fd >= 0)
		close(peer->fd);
	close(peer->pump_fd);
	pthread_mutex_destroy(&peer->lock);
	free(peer);
}

static int
number_of(Peer *peer, const int *number)
{
	int value;

	pthread_mutex_lock(&peer->lock);
	value = *number;
	pthread_mutex_unlock(&peer->lock);
	return value;
}

/* Wait up to twenty seconds for a number of the peer to reach a value. */
static void
wait_for(Peer *peer, const int *number, int value)
{
	for (int ms = 0; ms < 20000; ms++)
	{
		if (number_of(peer, number) >= value)
			return;
		usleep(1000);
	}
	fail_msg("waited too long");
}

static void
write_bytes(int fd, const void *data, size_t len)
{
	const char *at = data;

	while (len > 0)
	{
		ssize_t n = write(fd, at, len);

		assert_true(n > 0);
		at += n;
		len -= (size_t) n;
	}
}

static void
read_bytes(int fd, void *data, size_t len)
{
	char *at = data;

	while (len > 0)
	{
		ssize_t n = read(fd, at, len);

		assert_true(n > 0);
		at += n;
		len -= (size_t) n;
	}
}

static size_t
make_frame(uint8_t *out, uint64_t request, size_t len, uint8_t fill)
{
	Dsv3FrameHeader header = {.version = DSV3_PROTOCOL_VERSION,
							  .type = DSV3_FRAME_PING,
							  .length = (uint32_t) len,
							  .request = request};

	dsv3_frame_encode_header(&header, out);
	memset(out + DSV3_FRAME_HEADER, fill, len);
	return DSV3_FRAME_HEADER + len;
}

/* The same stream of frames in pieces of every size. */
static void
any_pieces(void **state)
{
	uint8_t stream[600];
	size_t len = 0;

	(void) state;
	len += make_frame(stream + len, 1, 0, 0);
	len += make_frame(stream + len, 2, 1, 7);
	len += make_frame(stream + len, 3, 301, 9);
	len += make_frame(stream + len, 4, 0, 0);
	for (size_t piece = 1; piece <= len; piece = piece < 30 ? piece + 1 : piece * 2)
	{
		Peer *peer = open_peer(0, false);

		for (size_t at = 0; at < len; at += piece)
		{
			write_bytes(peer->fd, stream + at, len - at < piece ? len - at : piece);
			if (piece < 30 && at % 97 == 0)
				usleep(100); /* so that pieces really arrive one by one now and then */
		}
		wait_for(peer, &peer->n_frames, 4);
		for (uint64_t i = 0; i < 4; i++)
			assert_true(peer->requests[i] == i + 1);
		assert_int_equal(peer->lengths[2], 301);
		assert_int_equal(peer->checks[1], 7);
		assert_int_equal(peer->checks[2], 9);
		close_peer(peer);
	}
}

static void
end_of_stream(void **state)
{
	uint8_t frame[100];
	size_t len = make_frame(frame, 1, 50, 1);

	(void) state;
	/* Cut after each byte of a frame: good only between frames. */
	for (size_t cut = 0; cut <= len; cut++)
	{
		Peer *peer = open_peer(0, false);

		write_bytes(peer->fd, frame, cut);
		close(peer->fd);
		peer->fd = -1;
		wait_for(peer, &peer->n_closed, 1);
		assert_int_equal(peer->closed_badly, cut != 0 && cut != len);
		assert_int_equal(peer->n_frames, cut == len);
		close_peer(peer);
	}
}

static void
garbage(void **state)
{
	(void) state;
	for (unsigned seed = 0; seed < 50; seed++)
	{
		Peer *peer = open_peer(0, false);
		uint8_t noise[4096];

		srand(seed);
		for (size_t i = 0; i < sizeof(noise); i++)
			noise[i] = (uint8_t) rand();
		if (seed % 2)
			(void) make_frame(noise, 1, 10, 1); /* a good frame first */
		write_bytes(peer->fd, noise, sizeof(noise));
		wait_for(peer, &peer->n_closed, 1);
		assert_true(peer->closed_badly);
		assert_int_equal(peer->n_frames, seed % 2);
		close_peer(peer);
	}
}

static void
hostile_lengths(void **state)
{
	static const uint32_t lengths[] = {UINT32_MAX, UINT32_MAX - 23, DSV3_FRAME_MAX_BODY + 1, 1u << 31};

	(void) state;
	for (int i = 0; i < 4; i++)
	{
		Peer *peer = open_peer(0, false);
		uint8_t header[DSV3_FRAME_HEADER];
		Dsv3FrameHeader hostile = {
			.version = 1, .type = DSV3_FRAME_SUBMIT, .length = lengths[i], .request = 1};

		dsv3_frame_encode_header(&hostile, header);
		write_bytes(peer->fd, header, sizeof(header));
		wait_for(peer, &peer->n_closed, 1);
		assert_non_null(strstr(peer->why, "too long"));
		close_peer(peer);
	}
}

static void
refused_frame(void **state)
{
	Peer *peer = open_peer(0, false);
	uint8_t frames[200];
	size_t len = make_frame(frames, 1, 3, 0);

	(void) state;
	peer->refuse = 2;
	len += make_frame(frames + len, 2, 3, 0);
	len += make_frame(frames + len, 3, 3, 0);
	write_bytes(peer->fd, frames, len);
	wait_for(peer, &peer->n_closed, 1);
	assert_int_equal(peer->n_frames, 2);
	assert_string_equal(peer->why, "refused");
	close_peer(peer);
}

static void
echo(void **state)
{
	Peer *peer = open_peer(0, true);
	uint8_t *frame = malloc(DSV3_FRAME_HEADER + 3000000);
	uint8_t *back = malloc(DSV3_FRAME_HEADER + 3000000);
	Dsv3FrameHeader header;

	(void) state;
	for (size_t size = 0; size < 3000000; size = size * 3 + 1)
	{
		size_t len = make_frame(frame, size + 1, size, (uint8_t) size);

		write_bytes(peer->fd, frame, len);
		read_bytes(peer->fd, back, len);
		assert_null(dsv3_frame_decode_header(back, &header));
		assert_true(header.request == size + 1 && header.length == size);
		assert_memory_equal(frame + DSV3_FRAME_HEADER, back + DSV3_FRAME_HEADER, size);
	}
	free(frame);
	free(back);
	close_peer(peer);
}

/* Nobody reads: senders are never held up, has_room says no, and when the bytes are read everything is there in order. */
static void
unread_answers(void **state)
{
	Peer *peer = open_peer(100000, false);
	uint8_t body[1000];
	uint8_t frame[DSV3_FRAME_HEADER + 1000];
	uint64_t sent = 0;
	int rooms;

	(void) state;
	memset(body, 'b', sizeof(body));
	/* Until it stays full: before that the socket's own buffer takes some. */
	for (int full = 0; full < 2; full = dsv3_pump_has_room(peer->pump) ? 0 : full + 1)
	{
		while (dsv3_pump_has_room(peer->pump))
			assert_true(dsv3_pump_send(peer->pump, DSV3_FRAME_DELTA, sent++, body, sizeof(body)));
		usleep(20000);
	}
	rooms = number_of(peer, &peer->n_room);
	for (int i = 0; i < 100; i++)
		assert_true(dsv3_pump_send(peer->pump, DSV3_FRAME_DELTA, sent++, body, sizeof(body)));
	assert_false(dsv3_pump_has_room(peer->pump));
	assert_int_equal(number_of(peer, &peer->n_room), rooms);
	for (uint64_t i = 0; i < sent; i++)
	{
		Dsv3FrameHeader header;

		read_bytes(peer->fd, frame, sizeof(frame));
		assert_null(dsv3_frame_decode_header(frame, &header));
		assert_true(header.request == i);
	}
	wait_for(peer, &peer->n_room, rooms + 1);
	assert_int_equal(number_of(peer, &peer->n_room), rooms + 1);
	assert_true(dsv3_pump_has_room(peer->pump));
	close_peer(peer);
}

/* Questions whose answers nobody reads: the pump stops reading, its memory stays bounded; then it goes on where it was. */
static void
flood_of_questions(void **state)
{
	Peer *peer = open_peer(20000, true);
	uint8_t frame[DSV3_FRAME_HEADER + 5000];
	size_t len = make_frame(frame, 1, 5000, 3);
	int written = 0;
	int flags = fcntl(peer->fd, F_GETFL);
	size_t part = 0;

	(void) state;
	assert_int_equal(fcntl(peer->fd, F_SETFL, flags | O_NONBLOCK), 0);
	for (int quiet = 0; quiet < 100;)
	{
		ssize_t n = write(peer->fd, frame + part, len - part);

		if (n < 0)
		{
			assert_int_equal(errno, EAGAIN);
			usleep(1000);
			quiet++;
			continue;
		}
		quiet = 0;
		part += (size_t) n;
		if (part == len)
		{
			part = 0;
			written++;
			assert_true(written < MAX_FRAMES); /* it has to stop */
		}
	}
	assert_int_equal(fcntl(peer->fd, F_SETFL, flags), 0);
	for (int i = 0; i < written; i++)
		read_bytes(peer->fd, frame, len);
	write_bytes(peer->fd, frame + part, len - part);
	read_bytes(peer->fd, frame, len);
	pthread_mutex_lock(&peer->lock);
	assert_int_equal(peer->n_frames, written + 1);
	pthread_mutex_unlock(&peer->lock);
	close_peer(peer);
}

static void *
send_many(void *arg)
{
	Peer *peer = arg;

	for (uint64_t i = 0; i < 2000; i++)
	{
		uint8_t body[64];

		memset(body, (int) i, sizeof(body));
		(void) dsv3_pump_send(peer->pump, DSV3_FRAME_DELTA, i, body, (size_t) (i % 64));
	}
	return NULL;
}

/* Frames of several threads never mix. */
static void
many_senders(void **state)
{
	Peer *peer = open_peer(0, false);
	pthread_t threads[3];
	uint8_t frame[DSV3_FRAME_HEADER + 64];

	(void) state;
	for (int t = 0; t < 3; t++)
		pthread_create(&threads[t], NULL, send_many, peer);
	for (int n = 0; n < 6000; n++)
	{
		Dsv3FrameHeader header;

		read_bytes(peer->fd, frame, DSV3_FRAME_HEADER);
		assert_null(dsv3_frame_decode_header(frame, &header));
		assert_int_equal(header.length, header.request % 64);
		read_bytes(peer->fd, frame, header.length);
		for (uint32_t i = 0; i < header.length; i++)
			assert_int_equal(frame[i], (uint8_t) header.request);
	}
	for (int t = 0; t < 3; t++)
		pthread_join(threads[t], NULL);
	dsv3_pump_drain(peer->pump, 1000);
	close_peer(peer);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_pieces),     cmocka_unit_test(end_of_stream),
		cmocka_unit_test(garbage),        cmocka_unit_test(hostile_lengths),
		cmocka_unit_test(refused_frame),  cmocka_unit_test(echo),
		cmocka_unit_test(unread_answers), cmocka_unit_test(flood_of_questions),
		cmocka_unit_test(many_senders),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
