/*
 * test_process.c
 *	  `dsv3 engine` as its parent sees it: frames over descriptor 3, exit statuses, signals, the death of the parent, the
 *	  sandbox. Runs the built executables beside this program's folder.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/protocol.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAVE_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_SANITIZER 1
#endif
#endif
#ifndef HAVE_SANITIZER
#define HAVE_SANITIZER 0
#endif

static const uint8_t no_body[1];

static char engine_path[4096];
static char hostile_path[4096];

typedef struct Engine
{
	pid_t pid;
	int fd;
	int log_fd;
	char log[65536];
	size_t log_len;

	Dsv3FrameHeader header; /* of the last frame read */
	uint8_t *body;
} Engine;

/* Start on one end of a socket pair; the other becomes engine->fd. */
static void
start_on(Engine *engine, const char *path, pid_t parent, const int sockets[2])
{
	int pipes[2];
	char number[16];

	memset(engine, 0, sizeof(*engine));
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	snprintf(number, sizeof(number), "%d", (int) (parent ? parent : getpid()));
	engine->pid = fork();
	assert_true(engine->pid >= 0);
	if (engine->pid == 0)
	{
		/* dup2 onto itself would leave the close-on-exec flag. */
		int socket = fcntl(sockets[1], F_DUPFD, 10);

		dup2(socket, 3);
		dup2(pipes[1], 2);
		execl(path, path, "engine", "--parent", number, (char *) NULL);
		_exit(127);
	}
	close(sockets[1]);
	close(pipes[1]);
	engine->fd = sockets[0];
	engine->log_fd = pipes[0];
}

static void
start(Engine *engine, const char *path, pid_t parent)
{
	int sockets[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	start_on(engine, path, parent, sockets);
}

static void
send_frame(Engine *engine, uint16_t type, uint64_t request, const uint8_t *body, size_t len)
{
	Dsv3FrameHeader header = {
		.version = DSV3_PROTOCOL_VERSION, .type = type, .length = (uint32_t) len, .request = request};
	uint8_t bytes[DSV3_FRAME_HEADER + 1024];

	/* In one piece: after a bad header there may be nobody left to take the body. */
	assert_true(len <= 1024);
	dsv3_frame_encode_header(&header, bytes);
	memcpy(bytes + DSV3_FRAME_HEADER, body, len);
	assert_int_equal(send(engine->fd, bytes, DSV3_FRAME_HEADER + len, MSG_NOSIGNAL), DSV3_FRAME_HEADER + len);
}

static void
configure(Engine *engine, const char *model, uint64_t kv_bytes)
{
	uint8_t body[1024];
	Dsv3BodyWriter writer;

	dsv3_body_init(&writer, body, sizeof(body));
	dsv3_body_text(&writer, DSV3_FIELD_MODEL_PATH, model);
	dsv3_body_u64(&writer, DSV3_FIELD_KV_BYTES, kv_bytes);
	send_frame(engine, DSV3_FRAME_CONFIG, 0, body, writer.len);
}

static void
submit(Engine *engine, uint64_t request, const char *prompt)
{
	uint8_t body[1024];
	Dsv3BodyWriter writer;

	dsv3_body_init(&writer, body, sizeof(body));
	dsv3_body_u32(&writer, DSV3_FIELD_KIND, DSV3_REQUEST_GENERATE);
	dsv3_body_text(&writer, DSV3_FIELD_PROMPT, prompt);
	send_frame(engine, DSV3_FRAME_SUBMIT, request, body, writer.len);
}

/* Exactly len bytes within ten seconds; false at the end of the stream. */
static bool
read_bytes(int fd, void *data, size_t len)
{
	char *at = data;

	while (len > 0)
	{
		struct pollfd polled = {.fd = fd, .events = POLLIN};
		ssize_t n;

		assert_true(poll(&polled, 1, 30000) > 0);
		n = read(fd, at, len);
		if (n <= 0)
			return false;
		at += n;
		len -= (size_t) n;
	}
	return true;
}

static bool
read_frame(Engine *engine)
{
	uint8_t bytes[DSV3_FRAME_HEADER];

	free(engine->body);
	engine->body = NULL;
	if (!read_bytes(engine->fd, bytes, sizeof(bytes)))
		return false;
	assert_null(dsv3_frame_decode_header(bytes, &engine->header));
	engine->body = malloc(engine->header.length + 1);
	return read_bytes(engine->fd, engine->body, engine->header.length);
}

/* A field of the last frame as text; "" without it. */
static const char *
field_text(Engine *engine, Dsv3Field field)
{
	static char text[8192];
	Dsv3BodyReader reader;

	text[0] = '\0';
	dsv3_body_open(&reader, engine->body, engine->header.length);
	while (dsv3_body_next(&reader))
	{
		if (reader.field == field)
			snprintf(text, sizeof(text), "%.*s", (int) reader.value_len, (const char *) reader.value);
	}
	assert_null(reader.error);
	return text;
}

static void
expect_ready(Engine *engine)
{
	assert_true(read_frame(engine));
	assert_int_equal(engine->header.type, DSV3_FRAME_READY);
}

/* Read frames to the request's end and compare the text. */
static void
expect_answer(Engine *engine, uint64_t request, const char *expected)
{
	char text[4096] = "";

	do
	{
		assert_true(read_frame(engine));
		assert_true(engine->header.request == request);
		strncat(text, field_text(engine, DSV3_FIELD_TEXT), sizeof(text) - strlen(text) - 1);
	} while (engine->header.type == DSV3_FRAME_DELTA);
	assert_int_equal(engine->header.type, DSV3_FRAME_DONE);
	assert_string_equal(text, expected);
}

static double
seconds_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double) ts.tv_sec + 1e-9 * (double) ts.tv_nsec;
}

/* Wait for the end, which comes within thirty seconds; the exit status, or -signal. Closes everything. */
static int
finish(Engine *engine)
{
	double end = seconds_now() + 30.0;
	bool open = true; /* the log; behind its end poll would not wait */
	int status = 0;
	ssize_t n;

	while (waitpid(engine->pid, &status, WNOHANG) == 0)
	{
		struct pollfd polled = {.fd = engine->log_fd, .events = POLLIN};

		assert_true(seconds_now() < end);
		if (poll(&polled, open ? 1 : 0, 1) > 0 && engine->log_len < sizeof(engine->log) - 1)
		{
			n = read(engine->log_fd, engine->log + engine->log_len,
					 sizeof(engine->log) - 1 - engine->log_len);
			open = n > 0;
			engine->log_len += n > 0 ? (size_t) n : 0;
		}
	}
	while ((n = read(engine->log_fd, engine->log + engine->log_len,
					 sizeof(engine->log) - 1 - engine->log_len)) > 0)
		engine->log_len += (size_t) n;
	if (engine->fd >= 0)
		close(engine->fd);
	close(engine->log_fd);
	free(engine->body);
	engine->body = NULL;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void
start_ready(Engine *engine, const char *model)
{
	start(engine, engine_path, 0);
	configure(engine, model, 0);
	expect_ready(engine);
}

static void
life(void **state)
{
	Engine engine;

	(void) state;
	start_ready(&engine, "test:context=99");
	assert_non_null(strstr(field_text(&engine, DSV3_FIELD_MODEL_JSON), "\"context\":99"));
	submit(&engine, 7, "hello");
	expect_answer(&engine, 7, "HELLO");
	send_frame(&engine, DSV3_FRAME_STATS, 8, no_body, 0);
	assert_true(read_frame(&engine));
	assert_int_equal(engine.header.type, DSV3_FRAME_STATS);
	assert_non_null(strstr(field_text(&engine, DSV3_FIELD_STATS_JSON), "\"requests_done\":1"));
	close(engine.fd);
	engine.fd = -1;
	assert_int_equal(finish(&engine), 0);
	assert_true(strncmp(engine.log, "LOG: ", 5) == 0);
}

/* PING is answered while the model is opened; requests are not. */
static void
before_ready(void **state)
{
	Engine engine;

	(void) state;
	start(&engine, engine_path, 0);
	send_frame(&engine, DSV3_FRAME_PING, 5, no_body, 0);
	assert_true(read_frame(&engine));
	assert_int_equal(engine.header.type, DSV3_FRAME_PONG);
	assert_true(engine.header.request == 5);
	configure(&engine, "test:open_ms=300", 0);
	submit(&engine, 6, "x");
	assert_true(read_frame(&engine));
	assert_int_equal(engine.header.type, DSV3_FRAME_FAIL);
	assert_string_equal(field_text(&engine, DSV3_FIELD_SQLSTATE), "57P03");
	expect_ready(&engine);
	close(engine.fd);
	engine.fd = -1;
	assert_int_equal(finish(&engine), 0);
}

static void
cannot_open(void **state)
{
	static const struct
	{
		const char *model;
		uint64_t kv_bytes;
		const char *sqlstate;
		const char *error;
	} cases[] = {
		{"test:open_error=the file is broken", 0, "XX001", "the file is broken"},
		{"test:nonsense=1", 0, "22023", "nonsense"},
		{"test:", 1, "53400", "smaller than one block"},
		{"test:", UINT64_C(1) << 50, "53400", "larger than this machine's memory"},
		{"/nowhere/at/all", 0, "58P01", "/nowhere/at/all"},
	};

	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		Engine engine;

		start(&engine, engine_path, 0);
		configure(&engine, cases[i].model, cases[i].kv_bytes);
		assert_true(read_frame(&engine));
		assert_int_equal(engine.header.type, DSV3_FRAME_FAIL);
		assert_true(engine.header.request == 0);
		assert_string_equal(field_text(&engine, DSV3_FIELD_SQLSTATE), cases[i].sqlstate);
		assert_non_null(strstr(field_text(&engine, DSV3_FIELD_ERROR), cases[i].error));
		assert_int_equal(finish(&engine), 1);
		assert_non_null(strstr(engine.log, "ERROR: "));
	}
}

static void
broken_protocol(void **state)
{
	Engine engine;

	(void) state;
	start_ready(&engine, "test:");
	assert_int_equal(send(engine.fd, "this is not a frame at all", 26, 0), 26);
	assert_int_equal(finish(&engine), 1);
	assert_non_null(strstr(engine.log, "bad magic number"));

	start_ready(&engine, "test:");
	configure(&engine, "test:", 0);
	assert_int_equal(finish(&engine), 1);
	assert_non_null(strstr(engine.log, "configured twice"));

	start_ready(&engine, "test:");
	send_frame(&engine, DSV3_FRAME_DONE, 1, no_body, 0);
	assert_int_equal(finish(&engine), 1);

	start_ready(&engine, "test:delay_ms=60000");
	submit(&engine, 1, "x");
	submit(&engine, 1, "x");
	assert_int_equal(finish(&engine), 1);
	assert_non_null(strstr(engine.log, "in use"));

	/* A request that makes no sense is that request's failure. */
	start_ready(&engine, "test:");
	send_frame(&engine, DSV3_FRAME_SUBMIT, 3, (const uint8_t *) "\1\0\xff\xff\xff\xff", 6);
	assert_true(read_frame(&engine));
	assert_int_equal(engine.header.type, DSV3_FRAME_FAIL);
	assert_string_equal(field_text(&engine, DSV3_FIELD_SQLSTATE), "08P01");
	submit(&engine, 4, "still there");
	expect_answer(&engine, 4, "STILL THERE");
	send_frame(&engine, DSV3_FRAME_CANCEL, 12345, no_body, 0);
	close(engine.fd);
	engine.fd = -1;
	assert_int_equal(finish(&engine), 0);
}

static void
signals(void **state)
{
	static const int ignored[] = {SIGINT, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM};
	static const int stops[] = {SIGTERM, SIGQUIT};
	static const struct
	{
		int signo;
		const char *text;
	} crashes[] = {
		{SIGSEGV, "segmentation fault"}, {SIGBUS, "bus error"}, {SIGABRT, "abort"}, {SIGFPE, "arithmetic"}};
	Engine engine;

	(void) state;
	start_ready(&engine, "test:");
	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		kill(engine.pid, ignored[i]);
	submit(&engine, 1, "still there");
	expect_answer(&engine, 1, "STILL THERE");
	kill(engine.pid, SIGTERM);
	assert_int_equal(finish(&engine), 1);
	for (size_t i = 0; i < 2; i++)
	{
		start_ready(&engine, "test:delay_ms=5000");
		submit(&engine, 1, "x");
		kill(engine.pid, stops[i]);
		assert_int_equal(finish(&engine), 1);
	}
	for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]) && !HAVE_SANITIZER; i++)
	{
		start_ready(&engine, "test:");
		kill(engine.pid, crashes[i].signo);
		assert_int_equal(finish(&engine), 1);
		assert_non_null(strstr(engine.log, "ERROR: engine crashed: "));
		assert_non_null(strstr(engine.log, crashes[i].text));
	}
}

/* The engine of a parent that dies, or is dead already. */
static void
orphans(void **state)
{
	Engine engine;
	pid_t middle;
	pid_t orphan = 0;
	int pipes[2];
	int sockets[2];
	int status;

	(void) state;
	start(&engine, engine_path, 1);
	assert_int_equal(finish(&engine), 1);
	assert_non_null(strstr(engine.log, "process 1) is gone"));

	/* This process adopts what its child leaves behind, so that it can see the end of it. It holds the socket, so that the
	 * parent's death is all that ends the engine. */
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	assert_int_equal(pipe(pipes), 0);
	middle = fork();
	if (middle == 0)
	{
		Engine child;

		start_on(&child, engine_path, 0, sockets);
		configure(&child, "test:", 0);
		expect_ready(&child);
		if (write(pipes[1], &child.pid, sizeof(child.pid)) != sizeof(child.pid))
			_exit(1);
		pause();
	}
	assert_int_equal(read(pipes[0], &orphan, sizeof(orphan)), sizeof(orphan));
	kill(orphan, SIGSTOP); /* a stopped engine ends too */
	kill(middle, SIGKILL);
	assert_int_equal(waitpid(middle, &status, 0), middle);
	for (int ms = 0; waitpid(orphan, &status, WNOHANG) == 0; ms++)
	{
		assert_true(ms < 5000);
		usleep(1000);
	}
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGKILL);
	close(sockets[0]);
	close(sockets[1]);
	close(pipes[0]);
	close(pipes[1]);
	prctl(PR_SET_CHILD_SUBREAPER, 0);
}

/* A log pipe that is full and nobody reads: lines are lost, the engine goes on. */
static void
unread_log(void **state)
{
	char fill[4096];
	Engine engine;

	(void) state;
	memset(fill, '.', sizeof(fill));
	start(&engine, engine_path, 0);
	/* Whoever holds the reading end may write through its other end, too: reopen it for that. */
	{
		char path[64];
		int fd;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", engine.log_fd);
		fd = open(path, O_WRONLY | O_NONBLOCK);
		assert_true(fd >= 0);
		while (write(fd, fill, sizeof(fill)) > 0)
			;
		close(fd);
	}
	configure(&engine, "test:", 0);
	expect_ready(&engine);
	submit(&engine, 1, "x");
	expect_answer(&engine, 1, "X");
	close(engine.fd);
	engine.fd = -1;
	assert_int_equal(waitpid(engine.pid, &(int){0}, 0), engine.pid);
	close(engine.log_fd);
	free(engine.body);
}

static void
sandbox(void **state)
{
	static const struct
	{
		const char *mode;
		const char *call;
	} cases[] = {{"open", "openat"}, {"creat", "openat"}, {"connect", "connect"},
				 {"exec", "execve"}, {"fork", "clone"},   {"execmem", "mmap"}};
	char prompt[32];
	char expected[64];

	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		Engine engine;

		start(&engine, hostile_path, 0);
		configure(&engine, "hostile:", 0);
		expect_ready(&engine);
		snprintf(prompt, sizeof(prompt), "!!%s", cases[i].mode);
		submit(&engine, 1, prompt);
		assert_int_equal(finish(&engine), 1);
		snprintf(expected, sizeof(expected), "ERROR: the sandbox stopped system call %s (", cases[i].call);
		if (strstr(engine.log, expected) == NULL)
			fail_msg("%s: %s", cases[i].mode, engine.log);
	}
}

/* What the real engine says of its sandbox, and that every thread is in it. */
static void
sandbox_of_the_engine(void **state)
{
	Engine engine;
	char path[64];
	char line[256];
	FILE *file;
	bool filtered = false;
	bool no_new_privileges = false;

	(void) state;
	start_ready(&engine, "test:");
	assert_non_null(strstr(field_text(&engine, DSV3_FIELD_MODEL_JSON), "seccomp"));
	snprintf(path, sizeof(path), "/proc/%d/status", (int) engine.pid);
	file = fopen(path, "r");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
	{
		filtered = filtered || strcmp(line, "Seccomp:\t2\n") == 0;
		no_new_privileges = no_new_privileges || strcmp(line, "NoNewPrivs:\t1\n") == 0;
	}
	fclose(file);
	assert_true(filtered && no_new_privileges);
	close(engine.fd);
	engine.fd = -1;
	assert_int_equal(finish(&engine), 0);
}

/* Large requests at once leave large heaps behind; giving their memory back must not take a call that the sandbox stops. */
static void
memory_in_the_sandbox(void **state)
{
	enum
	{
		REQUESTS = 240,
		BURST = 24,
		TEXT = 30 * 1000
	};
	size_t size = DSV3_FRAME_HEADER + TEXT + 64;
	uint8_t *frame = malloc(size);
	char *text = malloc(TEXT);
	Engine engine;

	(void) state;
	memset(text, 'x', TEXT);
	start_ready(&engine, "test:");
	for (uint64_t request = 1; request <= REQUESTS; request++)
	{
		Dsv3FrameHeader header = {
			.version = DSV3_PROTOCOL_VERSION, .type = DSV3_FRAME_SUBMIT, .request = request};
		Dsv3BodyWriter writer;

		dsv3_body_init(&writer, frame + DSV3_FRAME_HEADER, size - DSV3_FRAME_HEADER);
		dsv3_body_u32(&writer, DSV3_FIELD_KIND, DSV3_REQUEST_TOKENIZE);
		dsv3_body_bytes(&writer, DSV3_FIELD_PROMPT, text, TEXT);
		header.length = (uint32_t) writer.len;
		dsv3_frame_encode_header(&header, frame);
		for (size_t sent = 0; sent < DSV3_FRAME_HEADER + writer.len;)
		{
			ssize_t n = send(engine.fd, frame + sent, DSV3_FRAME_HEADER + writer.len - sent, MSG_NOSIGNAL);

			assert_true(n > 0);
			sent += (size_t) n;
		}
		if (request % BURST == 0)
		{
			for (int i = 0; i < BURST; i++)
			{
				assert_true(read_frame(&engine));
				assert_int_equal(engine.header.type, DSV3_FRAME_DONE);
			}
		}
	}
	submit(&engine, REQUESTS + 1, "still there");
	expect_answer(&engine, REQUESTS + 1, "STILL THERE");
	close(engine.fd);
	engine.fd = -1;
	assert_int_equal(finish(&engine), 0);
	free(text);
	free(frame);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(life),
		cmocka_unit_test(before_ready),
		cmocka_unit_test(cannot_open),
		cmocka_unit_test(broken_protocol),
		cmocka_unit_test(signals),
		cmocka_unit_test(orphans),
		cmocka_unit_test(unread_log),
		cmocka_unit_test(sandbox),
		cmocka_unit_test(sandbox_of_the_engine),
		cmocka_unit_test(memory_in_the_sandbox),
	};
	/* A sanitizer opens files and maps memory whenever it likes, which the sandbox stops: the last three are not for it. */
	size_t n = sizeof(tests) / sizeof(tests[0]) - (HAVE_SANITIZER ? 3 : 0);
	char *copy = strdup(argv[0]);
	const char *folder = dirname(copy);

	(void) argc;
	snprintf(engine_path, sizeof(engine_path), "%s/../dsv3", folder);
	snprintf(hostile_path, sizeof(hostile_path), "%s/../test/dsv3-hostile", folder);
	free(copy);
	return _cmocka_run_group_tests("process", tests, n, NULL, NULL);
}
