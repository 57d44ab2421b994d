/*
 * stream.c
 *	  dsv3_generate_stream: one row for each piece of text as it comes, and a last row with the finish reason.
 *
 * A set-returning function that gives one value per call, so in the select list each row reaches the client when it is
 * there (in FROM, PostgreSQL collects all rows first). Between two calls the request lives on, tied to the resource owner
 * of the portal; an early end without an error (LIMIT, the close of a cursor) is told by the expression context. The
 * state therefore holds the call's number, not the call.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "executor/executor.h"
#include "funcapi.h"
#include "nodes/execnodes.h"
#include "utils/builtins.h"

#include "pg/answer.h"
#include "pg/client.h"
#include "pg/functions.h"
#include "pg/text.h"

PG_FUNCTION_INFO_V1(dsv3_generate_stream_1_0);

typedef struct StreamState
{
	uint64 call;
	int32 seq;
	StringInfoData fields; /* read and not returned yet, from position pos on */
	int pos;
	bool ended; /* all text is in fields */
	uint32 finish;
	pg_uuid_t trace_id;
} StreamState;

static void
stream_shutdown(Datum number)
{
	Dsv3Call *call = dsv3_call_find((uint64) number);

	if (call)
		dsv3_call_release(call);
}

static void
stream_start(FunctionCallInfo fcinfo, StreamState *state)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Dsv3Request request;
	Dsv3Failure failure;
	Dsv3Call *call;

	if (!dsv3_generate_request(fcinfo, DSV3_OPTIONS_STREAM, &request, &failure))
		dsv3_raise(&failure);
	request.stream = true;
	request.function = "dsv3_generate_stream";
	call = dsv3_call_start(&request, &failure);
	if (call == NULL)
		dsv3_raise(&failure);
	state->call = dsv3_call_number(call);
	state->trace_id = *dsv3_call_trace_id(call);
	initStringInfo(&state->fields);
	RegisterExprContextCallback(rsinfo->econtext, stream_shutdown, (Datum) state->call);
}

/* The next piece of text; false when there is no more. Waits. */
static bool
stream_next(StreamState *state, Dsv3Text *delta)
{
	for (;;)
	{
		Dsv3BodyReader reader;
		Dsv3Call *call;
		Dsv3CallState call_state;
		Dsv3Failure failure;

		dsv3_body_open(&reader, (const uint8 *) state->fields.data + state->pos,
					   (size_t) (state->fields.len - state->pos));
		while (dsv3_body_next(&reader))
		{
			if (reader.field != DSV3_FIELD_TEXT || reader.value_len == 0)
				continue;
			state->pos += (int) reader.pos;
			*delta = (Dsv3Text){(const char *) reader.value, reader.value_len};
			return true;
		}
		if (state->ended)
			return false;

		resetStringInfo(&state->fields);
		state->pos = 0;
		call = dsv3_call_find(state->call);
		if (call == NULL)
			ereport(ERROR, (errcode(ERRCODE_QUERY_CANCELED),
							errmsg("dsv3 request ended with the transaction that started it")));
		call_state = dsv3_call_wait(call, false, &state->fields, &failure);
		if (call_state == DSV3_CALL_RUNNING)
			continue;
		state->finish = dsv3_call_counts(call)->finish;
		state->ended = true;
		dsv3_call_release(call);
		if (call_state == DSV3_CALL_FAILED)
			dsv3_raise(&failure);
	}
}

/* dsv3_generate_stream(prompt, input, system, max_tokens, temperature, seed, options)
 * -> setof (seq, delta, finish_reason, trace_id) */
Datum
dsv3_generate_stream_1_0(PG_FUNCTION_ARGS)
{
	FuncCallContext *context;
	StreamState *state;
	MemoryContext old;
	Dsv3Text delta;
	Datum values[4] = {0};
	bool nulls[4] = {false};
	bool more;

	if (SRF_IS_FIRSTCALL())
	{
		TupleDesc tupdesc;

		context = SRF_FIRSTCALL_INIT();
		old = MemoryContextSwitchTo(context->multi_call_memory_ctx);
		if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "return type must be a row type");
		context->tuple_desc = BlessTupleDesc(tupdesc);
		if (!PG_ARGISNULL(0) && !PG_ARGISNULL(1))
		{
			context->user_fctx = palloc0(sizeof(StreamState));
			stream_start(fcinfo, context->user_fctx);
		}
		MemoryContextSwitchTo(old);
	}
	context = SRF_PERCALL_SETUP();
	state = context->user_fctx;
	if (state == NULL || state->seq < 0)
		SRF_RETURN_DONE(context);

	old = MemoryContextSwitchTo(context->multi_call_memory_ctx);
	more = stream_next(state, &delta);
	MemoryContextSwitchTo(old);

	values[0] = Int32GetDatum(++state->seq);
	values[3] = UUIDPGetDatum(&state->trace_id);
	if (more)
	{
		Dsv3Failure failure;
		Size len;
		char *text = dsv3_text_from_utf8(delta.data, delta.len, &len, &failure);

		if (text == NULL)
			dsv3_raise(&failure);
		values[1] = PointerGetDatum(cstring_to_text_with_len(text, (int) len));
		nulls[2] = true;
	}
	else
	{
		const char *finish = dsv3_finish_name(state->finish);

		values[1] = CStringGetTextDatum("");
		if (finish)
			values[2] = CStringGetTextDatum(finish);
		nulls[2] = finish == NULL;
		state->seq = -1;
	}
	SRF_RETURN_NEXT(context, HeapTupleGetDatum(heap_form_tuple(context->tuple_desc, values, nulls)));
}
