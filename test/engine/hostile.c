/*
 * hostile.c
 *	  An engine that misbehaves on demand, for tests of the supervisor: set dsv3.engine_path to build/engine/test/dsv3-hostile.
 *
 * It takes the arguments of `dsv3 engine`, speaks the protocol over descriptor 3 in one thread, and answers a prompt with its
 * ASCII letters in upper case, as the built-in test model does: one DELTA for each byte, then DONE. RESUME is honoured. What
 * it does wrong is chosen in two places.
 *
 * Model path "hostile:MODE": wrong from the start.
 *		hostile:          nothing, READY at once
 *		hostile:slow      READY after three seconds, PING answered meanwhile
 *		hostile:refuse    FAIL with request 0 and exit 1
 *		hostile:garbage   noise instead of READY
 *		hostile:badjson   READY whose JSON is not JSON
 *		hostile:chatter   a DELTA before READY
 *		hostile:noise     first a megabyte of binary without a line break and 1000 lines on standard error, then as ""
 *		hostile:mute      ignores SIGTERM and the end of the stream, as "" otherwise: only SIGKILL ends it
 *		hostile:MODE      with MODE of the group "process" below: that at once, instead of READY
 *
 * "!!MODE" in the prompt: wrong when that request arrives.
 *	frames		garbage, magic, version, type, reserved (each in a header), huge (length 4 GB - 1), toolong (one more than
 *				allowed), announced (64 MB announced, nothing sent), direction (a SUBMIT to the supervisor), ready (a second
 *				READY, then the answer), partial (half a header, then exit 1), partialbody (half a body, then exit 1), trickle
 *				(the right answer, one byte each 2 ms), empty (DONE without fields), field (a field that reaches past
 *				the frame), twice (TEXT two times), ragged (tokens of 7 bytes), finish (finish reason 99),
 *				fewgaps (times between tokens in one class only), lessgaps (a negative number of them)
 *	requests	wrongid (DONE for a request that never was, then the answer), zeroid (DONE for request 0, no answer), afterdone (the
 *				answer, then DELTA and DONE again), doublefail (two FAILs), lost (DONE without any text)
 *	text		utf8 (DELTA with a byte FF), utf8cut (DELTA that ends within a character), utf8done, utf8fail (in DONE, in
 *				FAIL), zero (TEXT with a zero byte), big (32 MB of text in one DONE), flood (DELTAs without end), negative
 *				(ids below zero)
 *	errors		fail (a FAIL with detail and hint), sqlstate (FAIL with SQLSTATE "zz"), okstate (FAIL with SQLSTATE 00000)
 *	process		exit0, exit1, exit7, segv, abort, kill, stop (SIGSTOP), guarded (a crash under the engine's own crash handler),
 *				hang (does nothing any more), silent (answers PING, never the request), stuck (likewise, PONG says busy without
 *				progress), close (closes the socket, lives on), deaf (ignores SIGTERM and the end of the stream, hangs)
 *	restart		dieonce (kills itself after three tokens unless it is resumed), diealways (whenever it has sent one token)
 *	sandbox		open, creat, connect, exec, fork, execmem: closes the engine's own sandbox, then tries that
 *
 * Whatever it does, it outlives no test run that was killed: it is killed with the supervisor (but for mute, of which the
 * supervisor itself must take care), and by an alarm in any case.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/latency.h"
#include "common/protocol.h"
#include "engine/guard.h"
#include "engine/log.h"
#include "engine/sandbox.h"

#define FD       3
#define LIFE_MAX 600 /* seconds, longer than any test takes */

typedef struct Request
{
	uint64_t id;
	char *prompt; /* in upper case */
	size_t len;
	size_t resumed;
	char mode[32]; /* the word after "!!", or "" */
} Request;

static bool stuck;
static bool mute;

static const char model_json[] =
	"{\"name\":\"hostile\",\"path\":\"hostile:\",\"architecture\":\"test\",\"digest\":\"00\",\"device\":"
	"\"cpu\","
	"\"weights\":\"none\",\"isa\":\"ref\",\"vocab_size\":256,\"layers\":1,\"max_positions\":4096,\"context\":"
	"4096,"
	"\"threads\":1,\"template\":\"test\",\"sandbox\":\"none\",\"engine_version\":\"1.0\",\"protocol\":1}";

static void
sleep_ms(long ms)
{
	struct timespec ts = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&ts, NULL);
}

static void
hang(void)
{
	for (;;)
		pause();
}

/* The other side is gone. */
static void
leave(void)
{
	if (mute)
		hang();
	_exit(0);
}

/* -- frames -- */

static void
write_all(const void *data, size_t len)
{
	const char *at = data;

	while (len > 0)
	{
		ssize_t n = write(FD, at, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			leave();
		at += n;
		len -= (size_t) n;
	}
}

static void
make_header(uint8_t out[DSV3_FRAME_HEADER], uint16_t type, uint64_t request, uint32_t len)
{
	Dsv3FrameHeader header = {
		.version = DSV3_PROTOCOL_VERSION, .type = type, .length = len, .request = request};

	dsv3_frame_encode_header(&header, out);
}

static void
send_frame(uint16_t type, uint64_t request, const uint8_t *body, size_t len)
{
	uint8_t header[DSV3_FRAME_HEADER];

	make_header(header, type, request, (uint32_t) len);
	write_all(header, sizeof(header));
	write_all(body, len);
}

/* DELTA or DONE with text and as many tokens as bytes. */
static void
send_text(uint16_t type, uint64_t request, const char *text, size_t len)
{
	size_t size = 5 * len + 64;
	uint8_t *body = malloc(size);
	int32_t *ids = malloc((len + 1) * sizeof(int32_t));
	Dsv3BodyWriter writer;

	for (size_t i = 0; i < len; i++)
		ids[i] = (unsigned char) text[i];
	dsv3_body_init(&writer, body, size);
	dsv3_body_bytes(&writer, DSV3_FIELD_TEXT, text, len);
	dsv3_body_tokens(&writer, DSV3_FIELD_TOKENS, ids, len);
	if (type == DSV3_FRAME_DONE)
	{
		dsv3_body_u32(&writer, DSV3_FIELD_FINISH, DSV3_FINISH_STOP);
		dsv3_body_u32(&writer, DSV3_FIELD_PROMPT_TOKENS, 1);
		dsv3_body_u32(&writer, DSV3_FIELD_OUTPUT_TOKENS, (uint32_t) len);
	}
	send_frame(type, request, body, writer.len);
	free(ids);
	free(body);
}

static void
send_fail(uint64_t request, const char *sqlstate, const char *message)
{
	uint8_t body[1024];
	Dsv3BodyWriter writer;

	dsv3_body_init(&writer, body, sizeof(body));
	dsv3_body_text(&writer, DSV3_FIELD_SQLSTATE, sqlstate);
	dsv3_body_text(&writer, DSV3_FIELD_ERROR, message);
	dsv3_body_text(&writer, DSV3_FIELD_DETAIL, "This is the detail.");
	dsv3_body_text(&writer, DSV3_FIELD_HINT, "This is the hint.");
	send_frame(DSV3_FRAME_FAIL, request, body, writer.len);
}

static void
send_ready(const char *json)
{
	uint8_t body[1024];
	Dsv3BodyWriter writer;

	dsv3_body_init(&writer, body, sizeof(body));
	dsv3_body_text(&writer, DSV3_FIELD_MODEL_JSON, json);
	send_frame(DSV3_FRAME_READY, 0, body, writer.len);
}

static void
send_pong(uint64_t request)
{
	static uint64_t progress;
	uint8_t body[64];
	Dsv3BodyWriter writer;

	progress += stuck ? 0 : 1;
	dsv3_body_init(&writer, body, sizeof(body));
	dsv3_body_u64(&writer, DSV3_FIELD_PROGRESS, progress);
	dsv3_body_bool(&writer, DSV3_FIELD_BUSY, stuck);
	send_frame(DSV3_FRAME_PONG, request, body, writer.len);
}

/* The answer as it should be, from where it was resumed. */
static void
send_answer(const Request *request)
{
	for (size_t i = request->resumed; i < request->len; i++)
		send_text(DSV3_FRAME_DELTA, request->id, request->prompt + i, 1);
	send_text(DSV3_FRAME_DONE, request->id, "", 0);
}

/* -- modes: each takes a request if the mode is one of its own -- */

/* A frame that is nothing but a header, with one byte of it changed and any length announced. */
static void
send_header(const Request *request, size_t at, uint8_t value, uint32_t length)
{
	uint8_t header[DSV3_FRAME_HEADER];

	make_header(header, DSV3_FRAME_DELTA, request->id, length);
	if (at < sizeof(header))
		header[at] = value;
	write_all(header, sizeof(header));
}

static bool
header_mode(const Request *request)
{
	static const struct
	{
		const char *mode;
		size_t at;
		uint8_t value;
		uint32_t length;
	} headers[] = {
		{"magic", 0, 'X', 0},
		{"version", 4, 77, 0},
		{"type", 6, 99, 0},
		{"reserved", 12, 1, 0},
		{"huge", DSV3_FRAME_HEADER, 0, UINT32_MAX},
		{"toolong", DSV3_FRAME_HEADER, 0, DSV3_FRAME_MAX_BODY + 1},
		{"announced", DSV3_FRAME_HEADER, 0, DSV3_FRAME_MAX_BODY},
	};

	for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++)
	{
		if (strcmp(request->mode, headers[i].mode) == 0)
		{
			send_header(request, headers[i].at, headers[i].value, headers[i].length);
			hang();
		}
	}
	return false;
}

static bool
body_mode(const Request *request)
{
	static const uint8_t past_end[] = {DSV3_FIELD_TEXT, 0, 200, 0, 0, 0, 'x'};
	static const uint8_t twice[] = {DSV3_FIELD_TEXT, 0, 1, 0, 0, 0, 'x', DSV3_FIELD_TEXT, 0, 1, 0, 0, 0, 'y'};
	static const uint8_t ragged[] = {DSV3_FIELD_TOKENS, 0, 7, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7};
	static const uint8_t few_gaps[] = {DSV3_FIELD_GAPS, 0, 4, 0, 0, 0, 1, 0, 0, 0};
	static const uint8_t less_gaps[6 + 4 * DSV3_LATENCY_CLASSES] = {
		DSV3_FIELD_GAPS, 0, 4 * DSV3_LATENCY_CLASSES, 0, 0, 0, 255, 255, 255, 255};
	static const uint8_t finish[] = {DSV3_FIELD_FINISH, 0, 4, 0, 0, 0, 99, 0, 0, 0};
	static const struct
	{
		const char *mode;
		uint16_t type;
		const uint8_t *body;
		size_t len;
	} bodies[] = {
		{"direction", DSV3_FRAME_SUBMIT, NULL, 0},
		{"empty", DSV3_FRAME_DONE, NULL, 0},
		{"field", DSV3_FRAME_DELTA, past_end, sizeof(past_end)},
		{"twice", DSV3_FRAME_DELTA, twice, sizeof(twice)},
		{"ragged", DSV3_FRAME_DELTA, ragged, sizeof(ragged)},
		{"fewgaps", DSV3_FRAME_DONE, few_gaps, sizeof(few_gaps)},
		{"lessgaps", DSV3_FRAME_DONE, less_gaps, sizeof(less_gaps)},
		{"finish", DSV3_FRAME_DONE, finish, sizeof(finish)},
	};

	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
	{
		if (strcmp(request->mode, bodies[i].mode) == 0)
		{
			send_frame(bodies[i].type, request->id, bodies[i].body, bodies[i].len);
			return true;
		}
	}
	return false;
}

/* The right answer, a byte at a time. */
static void
trickle(const Request *request)
{
	size_t size = request->len + 64;
	uint8_t header[DSV3_FRAME_HEADER];
	uint8_t *body = malloc(size);
	Dsv3BodyWriter writer;

	dsv3_body_init(&writer, body, size);
	dsv3_body_bytes(&writer, DSV3_FIELD_TEXT, request->prompt, request->len);
	dsv3_body_u32(&writer, DSV3_FIELD_FINISH, DSV3_FINISH_STOP);
	make_header(header, DSV3_FRAME_DONE, request->id, (uint32_t) writer.len);
	for (size_t i = 0; i < sizeof(header); i++, sleep_ms(2))
		write_all(header + i, 1);
	for (size_t i = 0; i < writer.len; i++, sleep_ms(2))
		write_all(body + i, 1);
	free(body);
}

static bool
stream_mode(const Request *request)
{
	const char *mode = request->mode;
	bool with_body = strcmp(mode, "partialbody") == 0;
	uint8_t header[DSV3_FRAME_HEADER];

	if (strcmp(mode, "garbage") == 0)
	{
		for (int i = 0; i < 100; i++)
			write_all("This is no frame at all. \xff\xfe\x01", 28);
	}
	else if (strcmp(mode, "ready") == 0)
	{
		send_ready(model_json);
		send_answer(request);
	}
	else if (strcmp(mode, "partial") == 0 || with_body)
	{
		make_header(header, DSV3_FRAME_DELTA, request->id, 100);
		write_all(header, with_body ? sizeof(header) : sizeof(header) / 2);
		write_all("half of a body", with_body ? 14 : 0);
		_exit(1);
	}
	else if (strcmp(mode, "trickle") == 0)
		trickle(request);
	else
		return false;
	return true;
}

static bool
request_mode(const Request *request)
{
	const char *mode = request->mode;
	uint64_t id = request->id;

	if (strcmp(mode, "wrongid") == 0)
	{
		send_text(DSV3_FRAME_DONE, id + 1000000, "stolen", 6);
		send_answer(request);
	}
	else if (strcmp(mode, "zeroid") == 0)
		send_text(DSV3_FRAME_DONE, 0, "nobody", 6);
	else if (strcmp(mode, "afterdone") == 0)
	{
		send_answer(request);
		send_text(DSV3_FRAME_DELTA, id, "late", 4);
		send_text(DSV3_FRAME_DONE, id, "late", 4);
	}
	else if (strcmp(mode, "doublefail") == 0)
	{
		send_fail(id, "22023", "first failure");
		send_fail(id, "22023", "second failure");
	}
	else if (strcmp(mode, "lost") == 0)
		send_text(DSV3_FRAME_DONE, id, "", 0);
	else if (strcmp(mode, "fail") == 0)
		send_fail(id, "22023", "this is the message");
	else if (strcmp(mode, "sqlstate") == 0)
		send_fail(id, "zz", "a failure with a bad state");
	else if (strcmp(mode, "okstate") == 0)
		send_fail(id, "00000", "a failure that says it is none");
	else
		return false;
	return true;
}

static void
send_big(const Request *request)
{
	size_t size = (size_t) 32 * 1024 * 1024;
	uint8_t *body = malloc(size + 64);
	char *text = malloc(size);
	Dsv3BodyWriter writer;

	memset(text, 'x', size);
	dsv3_body_init(&writer, body, size + 64);
	dsv3_body_bytes(&writer, DSV3_FIELD_TEXT, text, size);
	dsv3_body_u32(&writer, DSV3_FIELD_FINISH, DSV3_FINISH_STOP);
	send_frame(DSV3_FRAME_DONE, request->id, body, writer.len);
	free(text);
	free(body);
}

static void
send_negative(const Request *request)
{
	static const int32_t ids[] = {-1, INT32_MIN, INT32_MAX};
	uint8_t body[64];
	Dsv3BodyWriter writer;

	dsv3_body_init(&writer, body, sizeof(body));
	dsv3_body_tokens(&writer, DSV3_FIELD_TOKENS, ids, 3);
	dsv3_body_u32(&writer, DSV3_FIELD_FINISH, DSV3_FINISH_STOP);
	send_frame(DSV3_FRAME_DONE, request->id, body, writer.len);
}

static bool
text_mode(const Request *request)
{
	const char *mode = request->mode;
	uint64_t id = request->id;

	if (strcmp(mode, "utf8") == 0)
		send_text(DSV3_FRAME_DELTA, id, "a\xff-", 3);
	else if (strcmp(mode, "utf8cut") == 0)
		send_text(DSV3_FRAME_DELTA, id, "a\xc3", 2);
	else if (strcmp(mode, "utf8done") == 0)
		send_text(DSV3_FRAME_DONE, id, "a\xff", 2);
	else if (strcmp(mode, "utf8fail") == 0)
		send_fail(id, "22023", "bad \xff message");
	else if (strcmp(mode, "zero") == 0)
		send_text(DSV3_FRAME_DONE, id, "a\0b", 3);
	else if (strcmp(mode, "big") == 0)
		send_big(request);
	else if (strcmp(mode, "negative") == 0)
		send_negative(request);
	else if (strcmp(mode, "flood") == 0)
	{
		for (;;)
			send_text(DSV3_FRAME_DELTA, id, "flood ", 6);
	}
	else
		return false;
	return true;
}

static bool
process_mode(const char *mode)
{
	Dsv3Error err;

	if (strncmp(mode, "exit", 4) == 0 && mode[4])
		_exit(atoi(mode + 4));
	else if (strcmp(mode, "segv") == 0)
		raise(SIGSEGV);
	else if (strcmp(mode, "abort") == 0)
		abort();
	else if (strcmp(mode, "kill") == 0)
		raise(SIGKILL);
	else if (strcmp(mode, "stop") == 0)
		raise(SIGSTOP);
	else if (strcmp(mode, "guarded") == 0)
	{
		if (dsv3_guard_process(0, false, &err))
			raise(SIGSEGV);
	}
	else if (strcmp(mode, "hang") == 0)
		hang();
	else if (strcmp(mode, "stuck") == 0)
		stuck = true;
	else if (strcmp(mode, "close") == 0)
	{
		close(FD);
		hang();
	}
	else if (strcmp(mode, "deaf") == 0)
	{
		signal(SIGTERM, SIG_IGN);
		hang();
	}
	else
		return strcmp(mode, "silent") == 0;
	return true;
}

/* Try something from within the engine's sandbox. Getting past it is what the log line at the end tells. */
static bool
sandbox_mode(const char *mode)
{
	static const char *const modes[] = {"open", "creat", "connect", "exec", "fork", "execmem"};
	Dsv3Sandbox sandbox = {.socket_fd = FD, .wake_fd = FD, .model_path = "/usr/share"};
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	char *argv[] = {"true", NULL};
	int sock = socket(AF_INET, SOCK_STREAM, 0);
	bool known = false;
	long result = -1;
	Dsv3Error err;

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
		known = known || strcmp(mode, modes[i]) == 0;
	if (!known)
	{
		close(sock);
		return false;
	}
	if (!dsv3_sandbox_enter(&sandbox, &err))
	{
		dsv3_log_error(DSV3_ERROR, &err);
		_exit(1);
	}
	if (strcmp(mode, "open") == 0)
		result = open("/etc/passwd", O_RDONLY);
	else if (strcmp(mode, "creat") == 0)
		result = open("/tmp/dsv3-hostile", O_WRONLY | O_CREAT, 0600);
	else if (strcmp(mode, "connect") == 0)
		result = connect(sock, (struct sockaddr *) &address, sizeof(address));
	else if (strcmp(mode, "exec") == 0)
		/* Not execv: a build that measures coverage writes its counts to files first, and is stopped at that. */
		result = syscall(SYS_execve, "/bin/true", argv, NULL);
	else if (strcmp(mode, "fork") == 0)
		result = fork();
	else
		result = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
				 MAP_FAILED;
	dsv3_log(DSV3_ERROR, "the sandbox did not stop \"%s\" (result %ld)", mode, result);
	_exit(1);
}

static bool
restart_mode(const Request *request)
{
	bool once = strcmp(request->mode, "dieonce") == 0;
	size_t end = request->resumed + (once ? 3 : 1);

	if (!once && strcmp(request->mode, "diealways") != 0)
		return false;
	if (once && request->resumed > 0)
	{
		send_answer(request);
		return true;
	}
	for (size_t i = request->resumed; i < end && i < request->len; i++)
		send_text(DSV3_FRAME_DELTA, request->id, request->prompt + i, 1);
	sleep_ms(50); /* let the frames be read before the end is noticed */
	raise(SIGKILL);
	return true;
}

/* -- serving -- */

static void
copy_prompt(Request *request, const uint8_t *text, size_t len)
{
	const char *found;
	int n = 0;

	request->prompt = strndup((const char *) text, len);
	request->len = strlen(request->prompt);
	found = strstr(request->prompt, "!!");
	for (found = found ? found + 2 : "";
		 n < 31 && ((*found >= 'a' && *found <= 'z') || (*found >= '0' && *found <= '9')); found++)
		request->mode[n++] = *found;
	for (size_t i = 0; i < request->len; i++)
	{
		if (request->prompt[i] >= 'a' && request->prompt[i] <= 'z')
			request->prompt[i] = (char) (request->prompt[i] - 'a' + 'A');
	}
}

static void
take_submit(uint64_t id, const uint8_t *body, size_t len)
{
	Request request = {.id = id};
	Dsv3BodyReader reader;

	dsv3_body_open(&reader, body, len);
	while (dsv3_body_next(&reader))
	{
		if (reader.field == DSV3_FIELD_RESUME)
			request.resumed = reader.value_len / 4;
		if (reader.field == DSV3_FIELD_PROMPT && request.prompt == NULL)
			copy_prompt(&request, reader.value, reader.value_len);
	}
	if (request.prompt == NULL)
		send_fail(id, "0A000", "the hostile engine answers prompts only");
	else if (!header_mode(&request) && !body_mode(&request) && !stream_mode(&request) &&
			 !request_mode(&request) && !text_mode(&request) && !process_mode(request.mode) &&
			 !sandbox_mode(request.mode) && !restart_mode(&request))
		send_answer(&request);
	free(request.prompt);
}

static void
read_all(void *data, size_t len)
{
	char *at = data;

	while (len > 0)
	{
		ssize_t n = read(FD, at, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			leave();
		at += n;
		len -= (size_t) n;
	}
}

/* The body, to be freed. */
static uint8_t *
read_frame(Dsv3FrameHeader *header)
{
	uint8_t bytes[DSV3_FRAME_HEADER];
	uint8_t *body;
	const char *wrong;

	read_all(bytes, sizeof(bytes));
	wrong = dsv3_frame_decode_header(bytes, header);
	if (wrong)
	{
		dsv3_log(DSV3_ERROR, "bad frame from the supervisor: %s", wrong);
		_exit(1);
	}
	body = malloc(header->length + 1);
	read_all(body, header->length);
	return body;
}

static void
answer_pings(long ms)
{
	for (; ms > 0; ms -= 10)
	{
		struct pollfd polled = {.fd = FD, .events = POLLIN};
		Dsv3FrameHeader header;

		if (poll(&polled, 1, 10) <= 0)
			continue;
		free(read_frame(&header));
		if (header.type == DSV3_FRAME_PING)
			send_pong(header.request);
	}
}

static void
make_noise(void)
{
	for (int i = 0; i < 1024 * 1024; i++)
		fputc(i % 251 == '\n' ? 0 : i % 251, stderr);
	for (int i = 0; i < 1000; i++)
		fprintf(stderr, "\nWARNING: line %d of a thousand", i);
	fputc('\n', stderr);
}

static void
start(const char *mode)
{
	if (strcmp(mode, "slow") == 0)
		answer_pings(3000);
	else if (strcmp(mode, "refuse") == 0)
	{
		send_fail(0, "58P01", "the hostile engine refuses to start");
		_exit(1);
	}
	else if (strcmp(mode, "garbage") == 0)
		write_all("this is not a frame, and it is longer than a header", 51);
	else if (strcmp(mode, "chatter") == 0)
		send_text(DSV3_FRAME_DELTA, 1, "too early", 9);
	else if (strcmp(mode, "noise") == 0)
		make_noise();
	else if (strcmp(mode, "mute") == 0)
	{
		signal(SIGTERM, SIG_IGN);
		(void) prctl(PR_SET_PDEATHSIG, 0);
		mute = true;
	}
	else if (process_mode(mode))
		return;
	send_ready(strcmp(mode, "badjson") == 0 ? "{\"name\": " : model_json);
}

static void
take_config(const uint8_t *body, size_t len)
{
	Dsv3BodyReader reader;
	char path[256] = "";

	dsv3_body_open(&reader, body, len);
	while (dsv3_body_next(&reader))
	{
		if (reader.field == DSV3_FIELD_MODEL_PATH)
			snprintf(path, sizeof(path), "%.*s", (int) reader.value_len, (const char *) reader.value);
	}
	start(strncmp(path, "hostile:", 8) == 0 ? path + 8 : "");
}

int
main(void)
{
	signal(SIGPIPE, SIG_IGN);
	(void) alarm(LIFE_MAX);
	(void) prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;)
	{
		Dsv3FrameHeader header;
		uint8_t *body = read_frame(&header);

		if (header.type == DSV3_FRAME_CONFIG)
			take_config(body, header.length);
		else if (header.type == DSV3_FRAME_PING)
			send_pong(header.request);
		else if (header.type == DSV3_FRAME_SUBMIT && !stuck)
			take_submit(header.request, body, header.length);
		free(body);
	}
}
