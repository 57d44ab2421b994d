/*
 * protocol.h
 *	  The frames between the supervisor and the engine process, over one stream socket (descriptor 3 of the engine).
 *
 * A frame is a fixed header and a body of fields. All integers are little-endian. A receiver treats the other side as
 * hostile: the header is checked before the body is read, the body's size is bounded by DSV3_FRAME_MAX_BODY, a field never
 * reaches past the body, a field met twice or missing where it is required is a protocol error. Unknown fields are
 * skipped, so a field can be added without a new version; a changed meaning needs one.
 *
 *	supervisor -> engine: CONFIG (first, once), SUBMIT, CANCEL, PING, STATS (ask)
 *	engine -> supervisor: READY (once, the model is open), DELTA, DONE, FAIL, PONG, STATS (answer); FAIL with request 0 before
 *	READY means the engine cannot start, and why.
 *
 * Shared by both sides: no PostgreSQL headers, no engine headers. The codec neither allocates nor throws.
 */
#ifndef DSV3_PROTOCOL_H
#define DSV3_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DSV3_PROTOCOL_VERSION 1
#define DSV3_FRAME_MAGIC      0x33565344u /* "DSV3" */
#define DSV3_FRAME_HEADER     24
#define DSV3_FRAME_MAX_BODY   (64u * 1024 * 1024)

typedef enum Dsv3FrameType
{
	DSV3_FRAME_CONFIG = 1,
	DSV3_FRAME_READY = 2,
	DSV3_FRAME_SUBMIT = 3,
	DSV3_FRAME_CANCEL = 4,
	DSV3_FRAME_DELTA = 5,
	DSV3_FRAME_DONE = 6,
	DSV3_FRAME_FAIL = 7,
	DSV3_FRAME_STATS = 8,
	DSV3_FRAME_PING = 9,
	DSV3_FRAME_PONG = 10,
} Dsv3FrameType;

/* On the wire: magic u32, version u16, type u16, body length u32, reserved u32 (0), request u64. The request id is the
 * supervisor's; it is unique for the life of the supervisor and never 0 for a request. */
typedef struct Dsv3FrameHeader
{
	uint16_t version;
	uint16_t type;
	uint32_t length;
	uint64_t request;
} Dsv3FrameHeader;

/* What SUBMIT asks for (field KIND). */
typedef enum Dsv3RequestKind
{
	DSV3_REQUEST_GENERATE = 1,     /* PROMPT, INPUT, SYSTEM; or RAW */
	DSV3_REQUEST_CHAT = 2,         /* MESSAGES, TOOLS */
	DSV3_REQUEST_TOKENIZE = 3,     /* PROMPT -> DONE with TOKENS */
	DSV3_REQUEST_DETOKENIZE = 4,   /* TOKENS -> DONE with TEXT */
	DSV3_REQUEST_COUNT_TOKENS = 9, /* PROMPT -> DONE with PROMPT_TOKENS */
	/* PROMPT, SYSTEM; or RAW -> DONE with PROMPT_TOKENS: how many of the beginning that prompts with any INPUT share are kept in the
	 * scope's cache now, or are no longer kept. */
	DSV3_REQUEST_PIN = 10,
	DSV3_REQUEST_UNPIN = 11,
	DSV3_REQUEST_CACHE_RESET = 12, /* -> DONE: nothing that was cached is found any more */
	DSV3_REQUEST_WARM_UP =
		13, /* -> DONE with TEXT: bytes of the weights' files, all of which have been read */
	DSV3_REQUEST_ROUTING =
		14, /* PROMPT, SYSTEM; or RAW -> DONE with TEXT: a JSON object, see engine/routing.h */
	DSV3_REQUEST_CHECK_GRAMMAR =
		6,                    /* GRAMMAR -> DONE with TEXT: a JSON object, what is enforced and what is not */
	DSV3_REQUEST_ACCEPTS = 7, /* GRAMMAR, INPUT -> DONE with TEXT: {"accepted": bool, "offset": bytes} */
	DSV3_REQUEST_SCORE =
		8, /* PROMPT, INPUT, SYSTEM, CHOICES -> DONE with TEXT: [log-probability of each choice] */
	DSV3_REQUEST_LOGPROB = 5, /* PROMPT, CONTINUATION -> DONE with LOGPROB */
} Dsv3RequestKind;

/*
 * A field is tag u16, length u32, bytes. Types: u32/u64/i64 fixed 4/8 bytes, f64 eight bytes IEEE, text UTF-8 without a
 * terminator, tokens an array of i32, bool one byte 0/1.
 */
typedef enum Dsv3Field
{
	/* SUBMIT */
	DSV3_FIELD_KIND = 1,                /* u32 Dsv3RequestKind */
	DSV3_FIELD_PROMPT = 2,              /* text */
	DSV3_FIELD_INPUT = 3,               /* text */
	DSV3_FIELD_SYSTEM = 4,              /* text */
	DSV3_FIELD_MESSAGES = 5,            /* text: JSON array */
	DSV3_FIELD_TOOLS = 6,               /* text: JSON array */
	DSV3_FIELD_CONTINUATION = 7,        /* text */
	DSV3_FIELD_MAX_TOKENS = 8,          /* u32; absent: until the context is full */
	DSV3_FIELD_TEMPERATURE = 9,         /* f64; 0 greedy */
	DSV3_FIELD_TOP_P = 10,              /* f64 */
	DSV3_FIELD_TOP_K = 11,              /* u32; 0 off */
	DSV3_FIELD_MIN_P = 12,              /* f64 */
	DSV3_FIELD_REPETITION_PENALTY = 13, /* f64; 1 off */
	DSV3_FIELD_SEED = 14,               /* i64 */
	DSV3_FIELD_STOP = 15,               /* text; may repeat, at most DSV3_MAX_STOPS */
	DSV3_FIELD_RAW = 16,                /* bool */
	DSV3_FIELD_THINK = 17,              /* u32 Dsv3Think: 0 auto, 1 off, 2 on */
	DSV3_FIELD_THINK_BUDGET = 18,       /* u32 tokens; absent: no budget */
	DSV3_FIELD_LOGPROBS = 19,           /* u32: how many alternatives per token to report; absent: none */
	DSV3_FIELD_PRIORITY = 20,           /* u32: 0 interactive, 1 batch */
	DSV3_FIELD_ROLE = 21,               /* u32: oid of the role, for fairness */
	DSV3_FIELD_RESUME = 22,             /* tokens already delivered before a restart */
	DSV3_FIELD_STREAM =
		23, /* bool: a DELTA per token; otherwise the engine gathers a few before it sends one */
	DSV3_FIELD_TIMEOUT_MS = 24, /* u32: dropped with 57014 this long after it arrived; absent or 0: never */

	DSV3_FIELD_CACHE_MEMORY = 26, /* bool, CACHE_RESET: only what is in memory */
	DSV3_FIELD_SCOPE =
		25, /* text: requests with the same one share cached prefixes; absent: shares with nobody */

	/* SUBMIT: structured output. With GRAMMAR the visible answer is one of the grammar's texts, whole within MAX_TOKENS. */
	DSV3_FIELD_GRAMMAR = 30,        /* text */
	DSV3_FIELD_GRAMMAR_KIND = 31,   /* u32: 0 JSON Schema, 1 choice, 2 regular expression, 3 EBNF */
	DSV3_FIELD_WHITESPACE = 32,     /* u32: 0 natural, 1 compact, 2 spaced */
	DSV3_FIELD_KEY_ORDER = 33,      /* u32: 0 as written, 1 the required array first */
	DSV3_FIELD_CLOSED_OBJECTS = 34, /* bool */
	DSV3_FIELD_CHOICES = 35,        /* text: JSON array of strings */

	/* DELTA and DONE */
	DSV3_FIELD_TEXT = 40,          /* text appended by this frame (whole characters) */
	DSV3_FIELD_TOKENS = 41,        /* tokens appended by this frame */
	DSV3_FIELD_FINISH = 42,        /* u32 Dsv3Finish */
	DSV3_FIELD_PROMPT_TOKENS = 43, /* u32 */
	DSV3_FIELD_CACHED_TOKENS = 44, /* u32 */
	DSV3_FIELD_OUTPUT_TOKENS = 45, /* u32 */
	DSV3_FIELD_LOGPROB = 46,       /* f64: sum over the continuation */
	DSV3_FIELD_QUEUE_US = 47,      /* u64 microseconds from SUBMIT to the first step */
	DSV3_FIELD_PREFILL_US = 48,    /* u64: from there to the first token */
	DSV3_FIELD_DECODE_US = 49,     /* u64: from there to the end */
	DSV3_FIELD_MESSAGE_JSON = 50,  /* text: the assistant message of a CHAT request, OpenAI shape */
	/* DONE: how many times between one step that gave tokens and the next fell into each class of latency.h, as DSV3_LATENCY_CLASSES
	 * i32. QUEUE_US + PREFILL_US is the time to the first token. */
	DSV3_FIELD_GAPS = 53,
	DSV3_FIELD_DRAFTED_TOKENS = 54,  /* u32: tokens that the draft layer guessed at */
	DSV3_FIELD_ACCEPTED_TOKENS = 55, /* u32: of these, guessed right */
	DSV3_FIELD_NARROWED = 52,        /* bool: the token limit kept the answer shorter than the model wanted */
	DSV3_FIELD_LOGPROBS_JSON = 51,   /* text: array, one element per output token */

	/* FAIL */
	DSV3_FIELD_SQLSTATE = 60, /* text, five characters */
	DSV3_FIELD_ERROR = 61,    /* text */
	DSV3_FIELD_DETAIL = 62,   /* text */
	DSV3_FIELD_HINT = 63,     /* text */

	/* CONFIG */
	DSV3_FIELD_MODEL_PATH = 80,   /* text */
	DSV3_FIELD_THREADS = 81,      /* u32; 0: all */
	DSV3_FIELD_DEVICE = 82,       /* text: auto, cpu, cuda */
	DSV3_FIELD_KV_BYTES = 83,     /* u64: size of the KV cache; 0: chosen by the engine */
	DSV3_FIELD_WEIGHTS = 84,      /* text: stored, f32, bf16, int8 */
	DSV3_FIELD_MAX_REQUESTS = 85, /* u32: requests the supervisor may have in flight */
	DSV3_FIELD_KV_FOLDER =
		86, /* text: folder where cached blocks outlive the engine; absent or empty: none */
	DSV3_FIELD_KV_DISK_BYTES = 87, /* u64: most bytes of it */
	DSV3_FIELD_KV_TYPE = 88,       /* text: of the cache's rows: f32, bf16, int8 */
	DSV3_FIELD_SPECULATIVE = 89,   /* text: off, auto, on */
	DSV3_FIELD_DRAFT_INPUT = 90,   /* text: after-norm, before-norm */

	/* READY and STATS */
	DSV3_FIELD_MODEL_JSON = 100, /* text: an object with what dsv3_model_info() shows */
	DSV3_FIELD_STATS_JSON = 101, /* text: an object of counters */
	DSV3_FIELD_EXPERTS = 102,    /* bool, in a STATS question: tokens per expert are wanted too */
	/* Their answer, of a model that has experts: u32; u64s, tokens that each expert of each layer has computed since the engine
	 * started, layer by layer. */
	DSV3_FIELD_EXPERT_LAYERS = 103,
	DSV3_FIELD_EXPERT_TOKENS = 104,

	/* PONG. The I/O thread answers; a scheduler that is busy without progress between two answers hangs in a step. */
	DSV3_FIELD_PROGRESS = 110, /* u64: rises with every turn of the scheduler's loop */
	DSV3_FIELD_BUSY = 111,     /* bool: the scheduler has work it can do (or the model is being opened) */
} Dsv3Field;

typedef enum Dsv3Finish
{
	DSV3_FINISH_STOP = 1,   /* end-of-sequence token or stop string */
	DSV3_FINISH_LENGTH = 2, /* max_tokens or the context's end */
	DSV3_FINISH_TOOL_CALLS = 3,
} Dsv3Finish;

#define DSV3_MAX_STOPS 16

/* Header codec. Encode writes DSV3_FRAME_HEADER bytes. Decode returns NULL when the header is good, else a static text
 * saying what is wrong with it (magic, version, type, length). */
extern void dsv3_frame_encode_header(const Dsv3FrameHeader *header, uint8_t out[DSV3_FRAME_HEADER]);
extern const char *dsv3_frame_decode_header(const uint8_t in[DSV3_FRAME_HEADER], Dsv3FrameHeader *header);

/*
 * Body writer over a caller's buffer. With buf NULL it only counts, so a caller measures first and writes second.
 * Never writes past size; overflow stays set once it happened.
 */
typedef struct Dsv3BodyWriter
{
	uint8_t *buf;
	size_t size;
	size_t len;
	bool overflow;
} Dsv3BodyWriter;

extern void dsv3_body_init(Dsv3BodyWriter *writer, uint8_t *buf, size_t size);
extern void dsv3_body_bytes(Dsv3BodyWriter *writer, Dsv3Field field, const void *data, size_t len);
extern void dsv3_body_text(Dsv3BodyWriter *writer, Dsv3Field field, const char *text);
extern void dsv3_body_u32(Dsv3BodyWriter *writer, Dsv3Field field, uint32_t value);
extern void dsv3_body_u64(Dsv3BodyWriter *writer, Dsv3Field field, uint64_t value);
extern void dsv3_body_f64(Dsv3BodyWriter *writer, Dsv3Field field, double value);
extern void dsv3_body_bool(Dsv3BodyWriter *writer, Dsv3Field field, bool value);
extern void dsv3_body_tokens(Dsv3BodyWriter *writer, Dsv3Field field, const int32_t *ids, size_t count);
extern void dsv3_body_u64s(Dsv3BodyWriter *writer, Dsv3Field field, const uint64_t *values, size_t count);

/* Body reader: dsv3_body_next steps through the fields; false at the end or on a malformed body (then error is set to a
 * static text). The value accessors check the length and set error on a mismatch, giving 0. */
typedef struct Dsv3BodyReader
{
	const uint8_t *buf;
	size_t len;
	size_t pos;
	const char *error;
	uint16_t field;
	const uint8_t *value;
	size_t value_len;
} Dsv3BodyReader;

extern void dsv3_body_open(Dsv3BodyReader *reader, const uint8_t *buf, size_t len);
extern bool dsv3_body_next(Dsv3BodyReader *reader);
extern uint32_t dsv3_body_get_u32(Dsv3BodyReader *reader);
extern uint64_t dsv3_body_get_u64(Dsv3BodyReader *reader);
extern double dsv3_body_get_f64(Dsv3BodyReader *reader);
extern bool dsv3_body_get_bool(Dsv3BodyReader *reader);
/* Copies count ids out (the value may be unaligned); capacity in ids; sets error if it does not fit or is ragged. */
extern size_t dsv3_body_get_tokens(Dsv3BodyReader *reader, int32_t *ids, size_t capacity);

/* Likewise for u64s, of which the value holds value_len / 8: one of them. */
extern uint64_t dsv3_body_get_u64_at(const Dsv3BodyReader *reader, size_t index);

#endif /* DSV3_PROTOCOL_H */
