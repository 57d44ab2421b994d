/*
 * answer.h
 *	  From the arguments of a function to a request, and from the engine's fields to values.
 */
#ifndef DSV3_ANSWER_H
#define DSV3_ANSWER_H

#include "pg/compat.h"

#include "pg/client.h"

/* What a finished request gave; texts in UTF-8, in the current memory context. */
typedef struct Dsv3Answer
{
	StringInfoData fields; /* everything, in wire form; the rest points into it */
	StringInfoData text;   /* all TEXT fields together */
	Dsv3Text message_json;
	Dsv3Text logprobs_json;
	const uint8 *tokens; /* little-endian, unaligned */
	Size n_tokens;
	double logprob;
	bool has_logprob;
	bool narrowed; /* max_tokens kept a constrained answer shorter than the model wanted */

	Dsv3Counts counts;
	pg_uuid_t trace_id;
	bool has_trace_id; /* the request was started */
} Dsv3Answer;

/* What must be known of a request when its answer comes. */
typedef struct Dsv3Asked
{
	uint32 kind;
	uint32 max_tokens;
	Dsv3Text grammar; /* and its sisters as in the request */
	uint32 grammar_kind;
	uint32 whitespace;
	uint32 key_order;
	bool closed_objects;
} Dsv3Asked;

/* Text arguments into a request. total counts the bytes of all of them against dsv3.max_input_bytes. False: failure. */
extern bool dsv3_take_text(Datum datum, Dsv3Text *text, Size *total, Dsv3Failure *failure);

/* The value, or 22023. */
extern uint32 dsv3_check_max_tokens(int64 max_tokens);
extern double dsv3_check_temperature(double temperature);

/* max_tokens, temperature and seed, NULL as nargs says; raises 22023. */
extern void dsv3_take_sampling(Dsv3Request *request, FunctionCallInfo fcinfo, int first);

/* Start the request, wait for its end, take the answer, release. False: failure is set; counts and trace_id are set as
 * far as known. Throws on interrupts. */
extern bool dsv3_run(const Dsv3Request *request, Dsv3Answer *answer, Dsv3Failure *failure);

/* The grammar still points where the request's does. */
extern void dsv3_asked_of(Dsv3Asked *asked, const Dsv3Request *request);

/* Make sense of the end of a request: fields, counts and trace_id are those of the call; ok false: it ended with the failure, which
 * may be replaced by a better one. False: failure is set. */
extern bool dsv3_answer_read(Dsv3Answer *answer, const Dsv3Asked *asked, bool ok, Dsv3Failure *failure);

/* The answer's text as a datum; false: failure. */
extern bool dsv3_answer_text(const Dsv3Answer *answer, Datum *result, Dsv3Failure *failure);

/* A JSON text of the engine as jsonb; false: failure. Raises if it is not JSON. */
extern bool dsv3_answer_json(Dsv3Text json, Datum *result, Dsv3Failure *failure);

/* The same for log probabilities: a token that was only thought of does not fail the answer, its U+0000 becomes U+FFFD. */
extern bool dsv3_answer_logprobs(Dsv3Text json, Datum *result, Dsv3Failure *failure);

/* A row error under on_error = 'null' is counted and the caller returns NULL; everything else raises. */
extern void dsv3_raise_or_count(int on_error, const Dsv3Failure *failure);

/* The ten columns that the dsv3_try_ functions have in common; values[1] is the caller's; a failure is a row error. */
extern void
dsv3_try_columns(bool ok, const Dsv3Answer *answer, Dsv3Failure *failure, Datum *values, bool *nulls);

/* NULL, "stop", "length", "tool_calls". */
extern const char *dsv3_finish_name(uint32 finish);

#endif /* DSV3_ANSWER_H */
