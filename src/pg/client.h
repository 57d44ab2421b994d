/*
 * client.h
 *	  A request from the backend's point of view: submit, wait, read, release.
 *
 * Failures come in two kinds. A row error concerns the one request: its text is too long, a token does not exist, it
 * ran into its timeout, it ended the engine again and again. dsv3_try_* and on_error = 'null' catch these. Everything
 * else (no engine, cancelled, queue full, no permission) would meet the next request just the same and always raises.
 */
#ifndef DSV3_CLIENT_H
#define DSV3_CLIENT_H

#include "pg/compat.h"

#include "common/error.h"
#include "lib/stringinfo.h"
#include "pg/guc.h"
#include "pg/shmem.h"

/* A text in UTF-8, not terminated; data NULL: absent. */
typedef struct Dsv3Text
{
	const char *data;
	Size len;
} Dsv3Text;

/* What is asked for. dsv3_request_init sets the defaults of the session. */
typedef struct Dsv3Request
{
	uint32 kind;       /* Dsv3RequestKind */
	uint32 max_tokens; /* 0: not sent */
	Dsv3Text prompt;
	Dsv3Text input;
	Dsv3Text system;
	Dsv3Text messages;
	Dsv3Text tools;
	Dsv3Text continuation;
	const int32 *tokens; /* of DETOKENIZE */
	Size n_tokens;

	double temperature;
	int64 seed;
	double top_p; /* negative: not sent, here and below */
	int64 top_k;
	double min_p;
	double repetition_penalty;
	int64 think_budget;
	int think; /* 0 auto, 1 off, 2 on */
	int logprobs;
	Dsv3Text stop[DSV3_MAX_STOPS];
	int n_stop;
	bool raw;

	Dsv3Text grammar; /* data NULL: the answer is free */
	uint32 grammar_kind;
	uint32 whitespace;
	uint32 key_order;
	bool closed_objects;
	Dsv3Text choices; /* of SCORE */

	/* Not sent: from the options, for the functions that make prompts of them. */
	Dsv3Text instruction;
	Dsv3Text schema_text;
	double budget; /* output tokens for each of the input's; negative: not said */

	bool stream;
	int priority;
	bool cache_memory; /* of CACHE_RESET: leave the disk as it is */
	int cache_scope;   /* with whom computed prefixes are shared */
	int on_error;
	int timeout_ms;          /* 0: none */
	const char *traceparent; /* NULL: none */

	/* Not sent, but for the audit log: the symbol of the SQL function; the prompt it ran, NULL for none, and the text that it put
	 * into that prompt. */
	const char *function;
	const char *prompt_name;
	Dsv3Text inserted;
	int32 prompt_version;
} Dsv3Request;

/* What DSV3_FIELD_GRAMMAR_KIND says of the grammar. */
enum
{
	DSV3_GRAMMAR_IS_SCHEMA = 0,
	DSV3_GRAMMAR_IS_CHOICE = 1,
	DSV3_GRAMMAR_IS_REGEX = 2,
	DSV3_GRAMMAR_IS_EBNF = 3,
};

enum
{
	DSV3_CACHE_SCOPE_ROLE, /* the role's requests in this database */
	DSV3_CACHE_SCOPE_DATABASE,
	DSV3_CACHE_SCOPE_NONE,
};

typedef struct Dsv3Failure
{
	Dsv3Error error; /* texts in UTF-8 */
	bool row_error;
} Dsv3Failure;

typedef enum Dsv3CallState
{
	DSV3_CALL_RUNNING,
	DSV3_CALL_DONE,
	DSV3_CALL_FAILED,
} Dsv3CallState;

/* A request in the form in which it is sent, with what the slot must know of it. In the memory context in which it was
 * written. */
typedef struct Dsv3Letter
{
	uint32 kind;
	uint32 priority;
	uint32 max_tokens;
	bool notify;
	int timeout_ms;
	char *traceparent;    /* or NULL */
	const char *function; /* constant */
	char *prompt_name;    /* or NULL */
	int32 prompt_version;
	Dsv3Text inserted; /* data NULL: none */
	char *preview;     /* UTF-8 */
	Size preview_len;
	uint8 *body;
	Size body_len;
} Dsv3Letter;

#define DSV3_DIGEST_BYTES 32

/* A request under way. Released by its owner, or by the end of the resource owner (statement, subtransaction, portal)
 * in which it was made, whichever comes first. */
typedef struct Dsv3Call Dsv3Call;

extern void dsv3_request_init(Dsv3Request *request, uint32 kind);

/* Raises 55000 when the library is not preloaded. */
extern void dsv3_require_preload(void);

/* Write the request as a letter. False: failure is set, a row error. */
extern bool dsv3_letter_write(Dsv3Letter *letter, const Dsv3Request *request, Dsv3Failure *failure);
extern void dsv3_letter_free(Dsv3Letter *letter);

/* SHA-256 of all that the answer can depend on: letters with one digest have one answer. */
extern void dsv3_letter_digest(const Dsv3Letter *letter, uint8 *digest);

/* Send a letter. NULL: failure is set. spare: only if it takes nothing that another backend may need for its first
 * request; then the failure is 53000 and means "later". */
extern Dsv3Call *dsv3_call_post(const Dsv3Letter *letter, bool spare, Dsv3Failure *failure);

/* Write and send. NULL: failure is set. */
extern Dsv3Call *dsv3_call_start(const Dsv3Request *request, Dsv3Failure *failure);

/* Look for output, append to out the fields that came, in wire form; `to_end`: only when all of it is there. Does not
 * wait. On DSV3_CALL_FAILED the failure is set. */
extern Dsv3CallState dsv3_call_look(Dsv3Call *call, bool to_end, StringInfo out, Dsv3Failure *failure);

/* Sleep until one of the calls, all of them found running by their last look, needs another look. Throws on interrupts. */
extern void dsv3_call_sleep(Dsv3Call *const *waiting, int n);

/* Both together: wait for output (or for the end, if `to_end`). */
extern Dsv3CallState dsv3_call_wait(Dsv3Call *call, bool to_end, StringInfo out, Dsv3Failure *failure);

/* The call's timeout counts from now. */
extern void dsv3_call_restart_clock(Dsv3Call *call);

extern const Dsv3Counts *dsv3_call_counts(const Dsv3Call *call);
extern const pg_uuid_t *dsv3_call_trace_id(const Dsv3Call *call);
extern void dsv3_call_release(Dsv3Call *call);

/* From now on the end of the resource owner ends the call but does not free it: the holder releases it in any case. */
extern void dsv3_call_hold(Dsv3Call *call);

/* Has this backend any call under way? */
extern bool dsv3_call_any(void);

/* A call's number, never used twice, and the call with that number, or NULL if it was released; for those who keep a
 * call over several executions. */
extern uint64 dsv3_call_number(const Dsv3Call *call);
extern Dsv3Call *dsv3_call_find(uint64 number);

/* Tokens of all calls of this backend that have ended. */
typedef struct Dsv3Usage
{
	uint64 prompt_tokens;
	uint64 cached_tokens;
	uint64 output_tokens;
} Dsv3Usage;

extern Dsv3Usage dsv3_usage;

/* In the worker of a job: told of each failure before it is raised. A row error that the call says nothing of is not
 * raised then, the call is NULL (DSV3_ON_ERROR_TELL). */
extern void (*dsv3_failure_hook)(const Dsv3Failure *failure);

/* ereport(ERROR) with it. */
pg_noreturn extern void dsv3_raise(const Dsv3Failure *failure);

#endif /* DSV3_CLIENT_H */
