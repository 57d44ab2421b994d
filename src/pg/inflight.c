/*
 * inflight.c
 *	  The supervisor's dealings with requests.
 *
 * For each slot the supervisor keeps, in memory of its own, the tokens already delivered and the number of times the
 * engine ended while it had the request. When the engine ends, its requests go back to QUEUED and are given to the next
 * engine with the delivered tokens in RESUME: generation is deterministic, so the answer goes on where it stopped and
 * the caller sees one text. Should that engine have another model (its files were replaced), the answer starts from nothing.
 *
 * A request may itself be what ends the engine. `deaths` counts the ends a request has seen since it last made progress
 * (a token, or its end). One with two or more, or with the last it is allowed, is a suspect. Suspects are given out
 * before all others, fewest deaths first, one at a time, and nothing joins until the suspect has made progress; so an
 * innocent request, which makes progress when it runs, loses its deaths, and the guilty one collects them until it is
 * refused. The others survive.
 *
 * On the wire a request is (request << 16 | slot): found without a search, and never met twice.
 *
 * Frames are hostile input. Each field is bounded by the frame, may appear once, and texts must be UTF-8. What the
 * caller needs is copied once, as fields in wire form, into the output of the slot.
 */
#include "postgres.h"

#include "pg/compat.h"

#include <math.h>

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"

#include "pg/guc.h"
#include "pg/inflight.h"
#include "pg/queue.h"

#define PENDING_MAX (64 * 1024) /* do not start another SUBMIT behind so much unsent output */
#define FIELD_LIMIT 128

typedef struct Flight
{
	uint64 request; /* 0: none known for this slot */
	bool active;    /* the engine has it */
	int deaths;
	uint32 kind;
	uint32 max_tokens;
	int32 *tokens; /* delivered so far; kept while the slot is reused, to spare allocations */
	int n_tokens;
	int tokens_size;
} Flight;

static Flight *flights; /* one per slot */
static Dsv3Sweep sweep;
static int n_active;
static bool left_waiting; /* the last round left something in QUEUED */

void
dsv3_inflight_init(void)
{
	int n = dsv3_shared->n_slots;

	flights = MemoryContextAllocZero(TopMemoryContext, sizeof(Flight) * n);
	sweep.stopped = MemoryContextAllocZero(TopMemoryContext, sizeof(Dsv3Ticket) * n);
	sweep.waiting = MemoryContextAllocZero(TopMemoryContext, sizeof(Dsv3Waiting) * n);
	n_active = 0;
	left_waiting = true;
}

int
dsv3_inflight_count(void)
{
	return n_active;
}

static uint64
wire_id(const Dsv3Ticket *ticket)
{
	return ticket->request << 16 | (uint64) ticket->slot;
}

static void
land(Flight *flight)
{
	if (flight->active)
		n_active--;
	flight->active = false;
	flight->request = 0;
	if (flight->tokens_size > 65536)
	{
		pfree(flight->tokens);
		flight->tokens = NULL;
		flight->tokens_size = 0;
	}
}

/* The flight of a waiting request; a new one if the slot was used for something else before. */
static Flight *
flight_of(const Dsv3Ticket *ticket)
{
	Flight *flight = &flights[ticket->slot];

	if (flight->request != ticket->request)
	{
		land(flight);
		flight->request = ticket->request;
		flight->deaths = 0;
		flight->n_tokens = 0;
	}
	return flight;
}

/* ---- giving out ---- */

static bool
is_suspect(int deaths)
{
	return deaths >= Max(Min(2, dsv3_guc_request_retries), 1);
}

/* Suspects first, fewest deaths first; then by priority; then in order of arrival. */
static int
compare_waiting(const void *a, const void *b)
{
	const Dsv3Waiting *x = a;
	const Dsv3Waiting *y = b;
	int dx = flight_of(&x->ticket)->deaths;
	int dy = flight_of(&y->ticket)->deaths;
	bool sx = is_suspect(dx);
	bool sy = is_suspect(dy);

	if (sx != sy)
		return sx ? -1 : 1;
	if (sx && dx != dy)
		return dx < dy ? -1 : 1;
	if (x->priority != y->priority)
		return x->priority < y->priority ? -1 : 1;
	return x->ticket.request < y->ticket.request ? -1 : 1;
}

static void
send_request(Dsv3Relay *relay, const Dsv3Ticket *ticket, Flight *flight)
{
	Dsv3BodyWriter writer;
	Dsv3Assignment assignment;
	Size resume_len = 0;
	uint8 *body;

	if (!dsv3_queue_activate(ticket, &assignment))
		return;
	flight->kind = assignment.kind;
	flight->max_tokens = assignment.max_tokens;
	if (flight->n_tokens > 0)
	{
		dsv3_body_init(&writer, NULL, 0);
		dsv3_body_tokens(&writer, DSV3_FIELD_RESUME, flight->tokens, (size_t) flight->n_tokens);
		resume_len = writer.len;
	}
	body = dsv3_relay_reserve(relay, DSV3_FRAME_SUBMIT, wire_id(ticket), assignment.input_len + resume_len);
	dsv3_queue_read_input(ticket, body);
	if (resume_len > 0)
	{
		dsv3_body_init(&writer, body + assignment.input_len, resume_len);
		dsv3_body_tokens(&writer, DSV3_FIELD_RESUME, flight->tokens, (size_t) flight->n_tokens);
	}
	flight->active = true;
	n_active++;
}

static bool
suspect_in_flight(void)
{
	for (int i = 0; i < dsv3_shared->n_slots; i++)
	{
		if (flights[i].active && is_suspect(flights[i].deaths))
			return true;
	}
	return false;
}

void
dsv3_inflight_serve(Dsv3Relay *relay, bool ready)
{
	/* Look at the slots when one has changed, or when something was left and could go now. */
	if (!dsv3_queue_sweep(&sweep, ready && left_waiting && dsv3_relay_pending(relay) <= PENDING_MAX))
		return;

	for (int i = 0; i < sweep.n_stopped; i++)
	{
		Flight *flight = &flights[sweep.stopped[i].slot];

		if (flight->request != sweep.stopped[i].request)
			continue;
		if (flight->active && ready)
			dsv3_relay_queue(relay, DSV3_FRAME_CANCEL, wire_id(&sweep.stopped[i]), NULL, 0);
		land(flight);
	}

	left_waiting = sweep.n_waiting > 0;
	if (!ready || sweep.n_waiting == 0)
		return;
	qsort(sweep.waiting, sweep.n_waiting, sizeof(Dsv3Waiting), compare_waiting);
	for (int i = 0; i < sweep.n_waiting; i++)
	{
		if (dsv3_relay_pending(relay) > PENDING_MAX || suspect_in_flight())
			return;
		send_request(relay, &sweep.waiting[i].ticket, flight_of(&sweep.waiting[i].ticket));
	}
	left_waiting = false;
}

/* ---- frames ---- */

/* A frame's fields as far as they matter here. */
typedef struct Answer
{
	Dsv3Counts counts;
	uint32 new_tokens;
	StringInfoData output; /* fields for the caller */
	Dsv3Error error;
	bool has_error;
} Answer;

/* NUL is valid UTF-8 but not for PostgreSQL, which takes it for broken: the caller's side deals with it. */
static bool
is_utf8(const char *text, size_t len)
{
	while (len > 0)
	{
		int good = pg_encoding_verifymbstr(PG_UTF8, text, (int) len);

		if ((size_t) good == len)
			return true;
		if (text[good] != '\0')
			return false;
		text += good + 1;
		len -= (size_t) good + 1;
	}
	return true;
}

static const char *
keep_tokens(Flight *flight, Dsv3BodyReader *reader, Answer *answer)
{
	size_t count = reader->value_len / 4;

	if (count > flight->max_tokens - (size_t) flight->n_tokens)
		return "more tokens than were asked for";
	if (flight->n_tokens + (int) count > flight->tokens_size)
	{
		int size = Max(flight->n_tokens + (int) count, Max(64, 2 * flight->tokens_size));

		if (flight->tokens)
			flight->tokens = repalloc_huge(flight->tokens, sizeof(int32) * size);
		else
			flight->tokens = MemoryContextAllocHuge(TopMemoryContext, sizeof(int32) * size);
		flight->tokens_size = size;
	}
	count = dsv3_body_get_tokens(reader, flight->tokens + flight->n_tokens, count);
	for (size_t i = 0; i < count; i++)
	{
		if (flight->tokens[flight->n_tokens + (int) i] < 0)
			return "negative token id";
	}
	flight->n_tokens += (int) count;
	answer->new_tokens += (uint32) count;
	return reader->error;
}

static void
copy_text(char *to, Size size, const Dsv3BodyReader *reader)
{
	Size len = reader->value_len;

	if (len >= size)
		len = (Size) pg_encoding_mbcliplen(PG_UTF8, (const char *) reader->value, (int) len, (int) size - 1);
	memcpy(to, reader->value, len);
	to[len] = '\0';
}

static const char *
take_sqlstate(const Dsv3BodyReader *reader, Dsv3Error *error)
{
	if (reader->value_len != 5)
		return "bad SQLSTATE";
	for (int i = 0; i < 5; i++)
	{
		char c = (char) reader->value[i];

		if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z')))
			return "bad SQLSTATE";
	}
	/* Classes 00 to 02 are not errors. */
	if (reader->value[0] == '0' && reader->value[1] <= '2')
		return "bad SQLSTATE";
	memcpy(error->sqlstate, reader->value, 5);
	error->sqlstate[5] = '\0';
	return NULL;
}

static const char *
take_gaps(Dsv3BodyReader *reader, Answer *answer)
{
	if (dsv3_body_get_tokens(reader, answer->counts.gaps, DSV3_LATENCY_CLASSES) != DSV3_LATENCY_CLASSES)
		return "count of times between tokens has another size";
	for (int i = 0; i < DSV3_LATENCY_CLASSES; i++)
	{
		if (answer->counts.gaps[i] < 0)
			return "negative count of times between tokens";
	}
	return NULL;
}

/* Put the present field into the caller's output, in wire form. */
static void
forward(Dsv3BodyReader *reader, Answer *answer)
{
	Dsv3BodyWriter writer;
	Size need;

	dsv3_body_init(&writer, NULL, 0);
	dsv3_body_bytes(&writer, reader->field, reader->value, reader->value_len);
	need = writer.len;
	enlargeStringInfo(&answer->output, (int) need);
	dsv3_body_init(&writer, (uint8 *) answer->output.data + answer->output.len, need);
	dsv3_body_bytes(&writer, reader->field, reader->value, reader->value_len);
	answer->output.len += (int) need;
}

/* One field; NULL or what is wrong with it. */
static const char *
take_field(Flight *flight, Dsv3BodyReader *reader, Answer *answer)
{
	const char *bad = NULL;

	switch (reader->field)
	{
		case DSV3_FIELD_TEXT:
		case DSV3_FIELD_MESSAGE_JSON:
		case DSV3_FIELD_LOGPROBS_JSON:
			if (!is_utf8((const char *) reader->value, reader->value_len))
				return "text is not valid UTF-8";
			forward(reader, answer);
			break;
		case DSV3_FIELD_LOGPROB:
			if (isnan(dsv3_body_get_f64(reader)))
				return "log probability is not a number";
			forward(reader, answer);
			break;
		case DSV3_FIELD_TOKENS:
			if (reader->value_len % 4 != 0)
				return "token field is ragged";
			if (flight->kind == DSV3_REQUEST_TOKENIZE)
				forward(reader, answer);
			else
				bad = keep_tokens(flight, reader, answer);
			break;
		case DSV3_FIELD_NARROWED:
			(void) dsv3_body_get_bool(reader);
			if (reader->error == NULL)
				forward(reader, answer);
			break;
		case DSV3_FIELD_FINISH:
			answer->counts.finish = dsv3_body_get_u32(reader);
			if (answer->counts.finish < DSV3_FINISH_STOP || answer->counts.finish > DSV3_FINISH_TOOL_CALLS)
				return "unknown finish reason";
			break;
		case DSV3_FIELD_PROMPT_TOKENS:
			answer->counts.prompt_tokens = dsv3_body_get_u32(reader);
			break;
		case DSV3_FIELD_CACHED_TOKENS:
			answer->counts.cached_tokens = dsv3_body_get_u32(reader);
			break;
		case DSV3_FIELD_OUTPUT_TOKENS:
			answer->counts.output_tokens = dsv3_body_get_u32(reader);
			break;
		case DSV3_FIELD_QUEUE_US:
			answer->counts.queue_us = dsv3_body_get_u64(reader);
			break;
		case DSV3_FIELD_PREFILL_US:
			answer->counts.prefill_us = dsv3_body_get_u64(reader);
			break;
		case DSV3_FIELD_DECODE_US:
			answer->counts.decode_us = dsv3_body_get_u64(reader);
			break;
		case DSV3_FIELD_GAPS:
			bad = take_gaps(reader, answer);
			break;
		case DSV3_FIELD_SQLSTATE:
			bad = take_sqlstate(reader, &answer->error);
			break;
		case DSV3_FIELD_ERROR:
		case DSV3_FIELD_DETAIL:
		case DSV3_FIELD_HINT:
			if (!is_utf8((const char *) reader->value, reader->value_len))
				return "text is not valid UTF-8";
			if (reader->field == DSV3_FIELD_ERROR)
				copy_text(answer->error.message, sizeof(answer->error.message), reader);
			else if (reader->field == DSV3_FIELD_DETAIL)
				copy_text(answer->error.detail, sizeof(answer->error.detail), reader);
			else
				copy_text(answer->error.hint, sizeof(answer->error.hint), reader);
			answer->has_error = true;
			break;
		default:
			break;
	}
	return bad ? bad : reader->error;
}

static const char *
take_body(Flight *flight, const Dsv3FrameHeader *header, const uint8 *body, Answer *answer)
{
	Dsv3BodyReader reader;
	bool seen[FIELD_LIMIT] = {false};

	dsv3_body_open(&reader, body, header->length);
	while (dsv3_body_next(&reader))
	{
		const char *bad;

		if (reader.field < FIELD_LIMIT)
		{
			if (seen[reader.field])
				return "field met twice";
			seen[reader.field] = true;
		}
		bad = take_field(flight, &reader, answer);
		if (bad)
			return bad;
	}
	if (reader.error)
		return reader.error;
	if (header->type == DSV3_FRAME_FAIL && (!seen[DSV3_FIELD_SQLSTATE] || answer->error.message[0] == '\0'))
		return "failure without SQLSTATE or message";
	if (header->type == DSV3_FRAME_DONE && !seen[DSV3_FIELD_FINISH] &&
		(flight->kind == DSV3_REQUEST_GENERATE || flight->kind == DSV3_REQUEST_CHAT))
		return "end of an answer without its reason";
	if (header->type == DSV3_FRAME_DONE && !seen[DSV3_FIELD_PROMPT_TOKENS] &&
		flight->kind == DSV3_REQUEST_COUNT_TOKENS)
		return "count of tokens without a number";
	return NULL;
}

/* Failures that concern the one request: its data (22), its size (54). Others would meet every request alike. */
static bool
is_row_error(const char *sqlstate)
{
	return strncmp(sqlstate, "22", 2) == 0 || strncmp(sqlstate, "54", 2) == 0;
}

static void
apply(Dsv3Relay *relay, const Dsv3Ticket *ticket, Flight *flight, uint16 type, Answer *answer)
{
	Dsv3Error err;

	if (type == DSV3_FRAME_FAIL)
	{
		dsv3_queue_fail(ticket, &answer->error, is_row_error(answer->error.sqlstate));
		land(flight);
		return;
	}
	if (answer->new_tokens > 0)
		flight->deaths = 0;
	switch (dsv3_queue_append(ticket, answer->output.data, (Size) answer->output.len, answer->new_tokens))
	{
		case DSV3_APPEND_OK:
			if (type == DSV3_FRAME_DONE)
			{
				dsv3_queue_finish(ticket, &answer->counts);
				land(flight);
			}
			break;
		case DSV3_APPEND_GONE:
			/* The next sweep tells the engine, unless it has just finished. */
			if (type == DSV3_FRAME_DONE)
				land(flight);
			break;
		case DSV3_APPEND_NO_ROOM:
			dsv3_error(&err, DSV3_ERR_OUT_OF_MEMORY, "out of shared memory for dsv3 answers");
			dsv3_error_hint(
				&err, "Raise dsv3.shared_memory and restart the server, or fetch streamed answers faster.");
			dsv3_queue_fail(ticket, &err, false);
			if (type != DSV3_FRAME_DONE)
				dsv3_relay_queue(relay, DSV3_FRAME_CANCEL, wire_id(ticket), NULL, 0);
			land(flight);
			break;
	}
}

bool
dsv3_inflight_frame(Dsv3Relay *relay, const Dsv3FrameHeader *header, const uint8 *body, Dsv3Error *err,
					bool *settled)
{
	Dsv3Ticket ticket = {(int) (header->request & 0xffff), header->request >> 16};
	Flight *flight;
	Answer answer = {0};
	const char *bad;

	if (ticket.slot >= dsv3_shared->n_slots || ticket.request == 0 ||
		ticket.request >= dsv3_shared->next_request)
		return dsv3_error(err, DSV3_ERR_PROTOCOL,
						  "dsv3 engine sent a frame for a request it was never given");
	flight = &flights[ticket.slot];

	/* A frame may still come for a request that was cancelled. */
	if (flight->request != ticket.request || !flight->active)
		return true;
	if (!dsv3_queue_is_active(&ticket))
	{
		if (header->type != DSV3_FRAME_DELTA)
			land(flight);
		return true;
	}

	initStringInfo(&answer.output);
	bad = take_body(flight, header, body, &answer);
	if (bad)
	{
		dsv3_error(err, DSV3_ERR_PROTOCOL, "dsv3 engine sent an invalid frame: %s", bad);
		dsv3_error_hint(err, "The engine was killed and is started again; see the server log.");
		dsv3_queue_fail(&ticket, err, true);
		land(flight);
		*settled = true;
	}
	else
		apply(relay, &ticket, flight, header->type, &answer);
	pfree(answer.output.data);
	return bad == NULL;
}

/* ---- the end of an engine ---- */

void
dsv3_inflight_blame(const Dsv3Error *err)
{
	if (n_active != 1)
		return;
	for (int i = 0; i < dsv3_shared->n_slots; i++)
	{
		if (flights[i].active)
		{
			Dsv3Ticket ticket = {i, flights[i].request};

			dsv3_queue_fail(&ticket, err, true);
			land(&flights[i]);
		}
	}
}

void
dsv3_inflight_engine_gone(int retries, const char *how)
{
	for (int i = 0; i < dsv3_shared->n_slots; i++)
	{
		Flight *flight = &flights[i];
		Dsv3Ticket ticket = {i, flight->request};

		if (!flight->active)
			continue;
		flight->active = false;
		n_active--;
		if (++flight->deaths > retries)
		{
			Dsv3Error err;

			dsv3_error(&err, DSV3_ERR_ENGINE_LOST,
					   "dsv3 engine ended %d times while it worked on this request", flight->deaths);
			dsv3_error_detail(&err, "The last end: %s.", how);
			dsv3_error_hint(
				&err,
				"The server log says what the engine reported. dsv3.request_retries sets how often such a "
				"request is tried again.");
			dsv3_queue_fail(&ticket, &err, true);
			land(flight);
		}
		else if (!dsv3_queue_requeue(&ticket))
			land(flight);
	}
	left_waiting = true;
}

void
dsv3_inflight_model_changed(void)
{
	Dsv3Error err;

	dsv3_error(&err, DSV3_ERR_ENGINE_LOST,
			   "model of the dsv3 engine has changed while it worked on this request");
	dsv3_error_hint(&err, "Part of the answer was already delivered, and another model cannot go on with it. "
						  "Repeat the query.");
	for (int i = 0; i < dsv3_shared->n_slots; i++)
	{
		Flight *flight = &flights[i];
		Dsv3Ticket ticket = {i, flight->request};

		if (flight->request == 0 || flight->n_tokens == 0)
			continue;
		flight->n_tokens = 0;
		if (!dsv3_queue_start_over(&ticket, &err))
			land(flight);
	}
}
