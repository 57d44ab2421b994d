/*
 * job_chunk.c
 *	  A worker's work on a chunk: take it, compute its rows, write them.
 *
 * Three transactions. The first counts the attempt, so that a row that brings the server down is found out. The second
 * computes rows and keeps them in this process; when it is ended by an error it begins again with the rows that are missing. The third writes
 * what is there to the target and takes it from the list. It is also what is done when the worker is asked to end: what is
 * computed is not thrown away.
 *
 * Which row an error belongs to. A failure of the model that concerns one row is no error here: the row's call is NULL and the failure is
 * told (dsv3_failure_hook) before the row comes. Any other error ends the query. If it came after rows, these are kept and the
 * rest is asked again; if not, the first row is asked alone, and if it fails alone it is its error. Rows that cannot be written
 * together are written one by one.
 *
 * What kind of error it is. A row's: recorded, and the row is over. The job's (a missing table, a missing right): the job has
 * failed. One that may go away (the engine is down, a deadlock): later. A chunk whose attempts end so or without
 * a trace more than CAREFUL times is worked on row by row, and a row with which that happens RETRIES times more is recorded.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "executor/tuptable.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "tcop/dest.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "pg/batch.h"
#include "pg/client.h"
#include "pg/job.h"
#include "pg/shmem.h"
#include "pg/text.h"

#define CAREFUL     3
#define RETRIES     5
#define WRITE_TRIES 3 /* more, when something is in the way that may go away */

volatile sig_atomic_t dsv3_job_stop = false;

typedef enum RowState
{
	ROW_OPEN,
	ROW_READY,   /* values are there */
	ROW_FAILED,  /* error is */
	ROW_SKIPPED, /* the query does not have it any more, or the target */
} RowState;

typedef struct Row
{
	RowState state;
	Datum *keys;   /* once the row was computed */
	Datum *values; /* of the call's columns */
	char *nulls;   /* as SPI wants it, of keys and values */
	Dsv3JobError error;
} Row;

typedef struct Work
{
	MemoryContext context; /* of all that lives as long as the chunk is worked on */
	int64 id;
	Dsv3Job *job; /* NULL: it is gone */
	bool active;
	bool taken;
	Dsv3JobChunk chunk;
	Row **rows; /* chunk.n_rows, those of the list that are not over, in its order */
	bool careful;
	Dsv3JobText text; /* made by the first computation */

	/* Of a computation: the rows it is for, by ordinal. */
	Row **asked;
	int n_asked;
	int64 n_found;

	bool hopeless;
	Dsv3Usage usage;    /* when it was last written down */
	instr_time counted; /* likewise */
	bool *to_write;     /* of rows */
	const char *end_state;
	const Dsv3JobError *end_error;
} Work;

/* What the model's failures have told since the last row, or since the computation began. */
static Dsv3JobError told;
static bool is_told;
static bool is_of_model; /* another was raised */
static bool is_general;  /* one that would meet every row alike */
static MemoryContext told_context;

/* ---- errors ---- */

static char *
copy_or_null(const char *text)
{
	return text && text[0] ? pstrdup(text) : NULL;
}

static void
on_failure(const Dsv3Failure *failure)
{
	MemoryContext old = MemoryContextSwitchTo(told_context);
	const Dsv3Error *e = &failure->error;

	if (!failure->row_error)
	{
		is_of_model = true;
		is_general = dsv3_shared->engine_state != DSV3_ENGINE_READY || strncmp(e->sqlstate, "08", 2) == 0 ||
					 strncmp(e->sqlstate, "53", 2) == 0 || strncmp(e->sqlstate, "57", 2) == 0;
	}
	else if (!is_told)
	{
		is_told = true;
		strlcpy(told.sqlstate, e->sqlstate, sizeof(told.sqlstate));
		told.message = pstrdup(dsv3_text_from_utf8_lossy(e->message));
		told.detail = copy_or_null(dsv3_text_from_utf8_lossy(e->detail));
		told.hint = copy_or_null(dsv3_text_from_utf8_lossy(e->hint));
	}
	MemoryContextSwitchTo(old);
}

static void
error_of(Dsv3JobError *error, const ErrorData *data)
{
	strlcpy(error->sqlstate, unpack_sql_state(data->sqlerrcode), sizeof(error->sqlstate));
	error->message = pstrdup(data->message ? data->message : "missing error text");
	error->detail = copy_or_null(data->detail);
	error->hint = copy_or_null(data->hint);
}

typedef enum ErrorKind
{
	ERROR_OF_ROW,
	ERROR_OF_JOB,
	ERROR_LATER,   /* it may be the row's, too */
	ERROR_GENERAL, /* later, and not the row's */
	ERROR_CANCEL,
} ErrorKind;

static ErrorKind
kind_of(const ErrorData *data)
{
	char state[6];

	strlcpy(state, unpack_sql_state(data->sqlerrcode), sizeof(state));
	if (is_of_model)
		return is_general ? ERROR_GENERAL : ERROR_OF_ROW;
	if (data->sqlerrcode == ERRCODE_QUERY_CANCELED)
		return ERROR_CANCEL;
	state[2] = '\0';
	if (data->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE || data->sqlerrcode == ERRCODE_OBJECT_IN_USE ||
		strstr("08 40 53 57 58 XX", state))
		return ERROR_LATER;
	if (strstr("0A 25 26 28 2B 3D 3F 42 55 F0", state))
		return ERROR_OF_JOB;
	return ERROR_OF_ROW;
}

/* Run a step in a transaction of its own. NULL, or the error that ended it. */
static ErrorData *
in_transaction(Work *work, void (*step)(Work *work))
{
	ErrorData *volatile error = NULL;

	is_of_model = is_general = is_told = false;
	told_context = work->context;
	PG_TRY();
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		if (SPI_connect() != SPI_OK_CONNECT)
			elog(ERROR, "SPI_connect failed");
		PushActiveSnapshot(GetTransactionSnapshot());
		step(work);
		SPI_finish();
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(work->context);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(work->context);
	(void) pgstat_report_stat(false);
	return error;
}

/* ---- take ---- */

static void
take(Work *work)
{
	MemoryContext old;

	if (!dsv3_store_open())
		return;
	old = MemoryContextSwitchTo(work->context);
	work->job = dsv3_store_job(work->id, false);
	work->active = work->job && strcmp(work->job->state, "active") == 0;
	work->taken = work->active && dsv3_store_take(work->id, &work->chunk);
	MemoryContextSwitchTo(old);
	if (work->active && !work->taken)
		dsv3_store_finish(work->id);
}

static void
make_rows(Work *work)
{
	work->careful = work->chunk.attempts > CAREFUL;
	work->rows = palloc(sizeof(Row *) * (Size) work->chunk.n_rows);
	work->asked = palloc(sizeof(Row *) * (Size) work->chunk.n_rows);
	work->to_write = palloc0(sizeof(bool) * (Size) work->chunk.n_rows);
	for (int i = 0; i < work->chunk.n_rows; i++)
		work->rows[i] = palloc0(sizeof(Row));
}

/* ---- compute ---- */

typedef struct Receiver
{
	DestReceiver base;
	Work *work;
	TupleDesc desc;
} Receiver;

static void
receiver_startup(DestReceiver *base, int operation, TupleDesc desc)
{
	((Receiver *) base)->desc = desc;
}

static bool
receive(TupleTableSlot *slot, DestReceiver *base)
{
	Receiver *receiver = (Receiver *) base;
	Work *work = receiver->work;
	MemoryContext old;
	Row *row;

	slot_getallattrs(slot);
	row = work->asked[DatumGetInt64(slot->tts_values[0]) - 1];
	old = MemoryContextSwitchTo(work->context);
	if (row->state != ROW_OPEN)
	{
		row->state = ROW_FAILED;
		strlcpy(row->error.sqlstate, "21000", sizeof(row->error.sqlstate));
		row->error.message = pstrdup("there is more than one row with this key");
	}
	else if (is_told)
	{
		row->state = ROW_FAILED;
		row->error = told;
	}
	else
	{
		int n_keys = work->text.n_keys;

		row->values = palloc(sizeof(Datum) * (Size) work->text.n_columns);
		for (int i = 0; i < work->text.n_columns; i++)
		{
			Form_pg_attribute attribute = TupleDescAttr(receiver->desc, i + 1);
			Datum value = slot->tts_values[i + 1];

			row->nulls[n_keys + i] = slot->tts_isnull[i + 1] ? 'n' : ' ';
			if (slot->tts_isnull[i + 1])
				row->values[i] = (Datum) 0;
			else if (attribute->attlen == -1)
				row->values[i] = PointerGetDatum(PG_DETOAST_DATUM_COPY(value));
			else
				row->values[i] = datumCopy(value, attribute->attbyval, attribute->attlen);
		}
		row->state = ROW_READY;
	}
	MemoryContextSwitchTo(old);
	is_told = false;
	work->n_found++;
	dsv3_board_tell(work->n_found, (int64) (dsv3_usage.output_tokens - work->usage.output_tokens));
	return true;
}

static void
receiver_end(DestReceiver *base)
{
}

/* The keys of the asked rows: as arrays for the statement, and one by one in the rows. */
static void
unpack_keys(Work *work, ParamListInfo params)
{
	Oid types[2] = {JSONBOID, INT8ARRAYOID};
	Datum *ordinals = palloc(sizeof(Datum) * (Size) work->n_asked);
	Datum values[2];
	int n = 0;

	for (int i = 0; i < work->chunk.n_rows && n < work->n_asked; i++)
	{
		if (work->rows[i] == work->asked[n])
			ordinals[n++] = Int64GetDatum(i + 1);
	}
	values[0] = work->chunk.keys;
	values[1] = PointerGetDatum(
		construct_array(ordinals, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	if (SPI_execute_with_args(work->text.unpack, 2, types, values, NULL, true, 1) != SPI_OK_SELECT ||
		SPI_processed != 1)
		elog(ERROR, "keys of a chunk could not be read");
	for (int k = 0; k < work->text.n_keys; k++)
	{
		Datum array = dsv3_store_value(k + 1, NULL);
		int16 typlen;
		bool typbyval;
		char typalign;
		Datum *keys;
		int n_found;

		params->params[k].value = array;
		params->params[k].isnull = false;
		params->params[k].pflags = PARAM_FLAG_CONST;
		params->params[k].ptype = work->text.array_types[k];
		get_typlenbyvalalign(work->text.key_types[k], &typlen, &typbyval, &typalign);
		deconstruct_array(DatumGetArrayTypeP(array), work->text.key_types[k], typlen, typbyval, typalign,
						  &keys, NULL, &n_found);
		if (n_found != n)
			elog(ERROR, "keys of a chunk could not be read");
		for (int i = 0; i < n; i++)
		{
			MemoryContext old = MemoryContextSwitchTo(work->context);
			Row *row = work->asked[i];

			if (row->keys == NULL)
			{
				row->keys = palloc0(sizeof(Datum) * (Size) work->text.n_keys);
				row->nulls = palloc((Size) work->text.n_keys + (Size) work->text.n_columns);
				memset(row->nulls, ' ', (Size) work->text.n_keys + (Size) work->text.n_columns);
			}
			row->keys[k] = datumCopy(keys[i], typbyval, typlen);
			MemoryContextSwitchTo(old);
		}
	}
}

static void
compute(Work *work)
{
	Receiver receiver = {{receive, receiver_startup, receiver_end, receiver_end, DestTuplestore}, work, NULL};
	SPIExecuteOptions options = {0};
	SPIPlanPtr plan;

	if (work->text.compute == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(work->context);

		dsv3_job_text(work->job, &work->text);
		MemoryContextSwitchTo(old);
	}
	options.params = makeParamList(work->text.n_keys);
	unpack_keys(work, options.params);
	plan = SPI_prepare_cursor(work->text.compute, work->text.n_keys, work->text.array_types,
							  DSV3_CURSOR_ALL_ROWS | CURSOR_OPT_PARALLEL_OK);
	if (plan == NULL)
		elog(ERROR, "could not prepare a statement of a job: %s", SPI_result_code_string(SPI_result));
	options.dest = &receiver.base;
	if (SPI_execute_plan_extended(plan, &options) != SPI_OK_SELECT)
		elog(ERROR, "statement of a job returned no rows");
	for (int i = 0; i < work->n_asked; i++)
	{
		if (work->asked[i]->state == ROW_OPEN)
			work->asked[i]->state = ROW_SKIPPED;
	}
}

/* The first open rows, so many of them at most. */
static bool
ask_rows(Work *work, int most)
{
	work->n_asked = 0;
	for (int i = 0; i < work->chunk.n_rows && work->n_asked < most; i++)
	{
		if (work->rows[i]->state == ROW_OPEN)
			work->asked[work->n_asked++] = work->rows[i];
	}
	work->n_found = 0;
	return work->n_asked > 0;
}

static void
fail_row(Row *row, const ErrorData *error)
{
	row->state = ROW_FAILED;
	error_of(&row->error, error);
}

/* Compute rows until none is open, or in careful work the first one. NULL, or an error that is not a row's. */
static ErrorData *
compute_rows(Work *work)
{
	bool alone = work->careful;

	while (!dsv3_job_stop && ask_rows(work, alone ? 1 : work->chunk.n_rows))
	{
		ErrorData *error = in_transaction(work, compute);
		ErrorKind kind = error ? kind_of(error) : ERROR_OF_ROW;

		if (error && kind == ERROR_LATER && work->careful && work->chunk.attempts >= CAREFUL + RETRIES)
			kind = ERROR_OF_ROW;
		if (error && kind != ERROR_OF_ROW)
			return error;
		if (error && work->n_asked == 1)
			fail_row(work->asked[0], error);
		alone = work->careful || (error && work->n_found == 0 && work->n_asked > 1);
		if (work->careful)
			break;
	}
	return NULL;
}

/* ---- write ---- */

static void
write_rows(Work *work, Dsv3JobSum *sum)
{
	const Dsv3JobText *text = &work->text;
	int n = text->n_keys + text->n_columns;
	Oid *types = palloc(sizeof(Oid) * (Size) n);
	Datum *values = palloc(sizeof(Datum) * (Size) n);
	SPIPlanPtr update = NULL;
	SPIPlanPtr insert = NULL;

	memcpy(types, text->key_types, sizeof(Oid) * (Size) text->n_keys);
	memcpy(types + text->n_keys, text->column_types, sizeof(Oid) * (Size) text->n_columns);
	for (int i = 0; i < work->chunk.n_rows; i++)
	{
		const Row *row = work->rows[i];
		uint64 written = 0;

		if (!work->to_write[i] || row->state != ROW_READY)
			continue;
		memcpy(values, row->keys, sizeof(Datum) * (Size) text->n_keys);
		memcpy(values + text->n_keys, row->values, sizeof(Datum) * (Size) text->n_columns);
		if (text->update && update == NULL)
			update = SPI_prepare(text->update, n, types);
		if (text->insert && insert == NULL)
			insert = SPI_prepare(text->insert, n, types);
		if (text->update && SPI_execute_plan(update, values, row->nulls, false, 0) == SPI_OK_UPDATE)
			written = SPI_processed;
		if (text->insert && written == 0 &&
			SPI_execute_plan(insert, values, row->nulls, false, 0) == SPI_OK_INSERT)
			written = SPI_processed;
		*(written > 0 ? &sum->done : &sum->skipped) += 1;
	}
}

static void
write_down(Work *work)
{
	Dsv3JobSum sum = {0};
	instr_time now;

	write_rows(work, &sum);
	if (!dsv3_store_open())
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("extension \"dsv3\" is gone")));
	for (int i = 0; i < work->chunk.n_rows; i++)
	{
		const Row *row = work->rows[i];

		if (!work->to_write[i])
			continue;
		if (row->state == ROW_FAILED)
			dsv3_store_error(work->id, &work->chunk, i, &row->error);
		sum.failed += row->state == ROW_FAILED;
		sum.skipped += row->state == ROW_SKIPPED;
	}
	dsv3_store_advance(work->id, &work->chunk, work->to_write, work->careful ? CAREFUL : 0);
	sum.prompt_tokens = (int64) (dsv3_usage.prompt_tokens - work->usage.prompt_tokens);
	sum.cached_tokens = (int64) (dsv3_usage.cached_tokens - work->usage.cached_tokens);
	sum.output_tokens = (int64) (dsv3_usage.output_tokens - work->usage.output_tokens);
	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, work->counted);
	sum.seconds = INSTR_TIME_GET_DOUBLE(now);
	work->hopeless = dsv3_store_add(work->id, &sum);
}

/* Rows that are written leave the list in memory as they left the one in the table. */
static void
forget_written(Work *work)
{
	int n = 0;

	for (int i = 0; i < work->chunk.n_rows; i++)
	{
		if (!work->to_write[i])
			work->rows[n++] = work->rows[i];
	}
	work->chunk.n_rows = n;
	work->usage = dsv3_usage;
	INSTR_TIME_SET_CURRENT(work->counted);
}

/* Write one row, or NULL: all that are over. NULL, or the error. */
static ErrorData *
write_once(Work *work, const Row *one)
{
	ErrorData *error;

	for (int i = 0; i < work->chunk.n_rows; i++)
		work->to_write[i] = one ? work->rows[i] == one : work->rows[i]->state != ROW_OPEN;
	error = in_transaction(work, write_down);
	for (int i = 1; i <= WRITE_TRIES && error && kind_of(error) == ERROR_LATER && !dsv3_job_stop; i++)
	{
		pg_usleep(100000L * i);
		error = in_transaction(work, write_down);
	}
	if (error == NULL)
	{
		forget_written(work);
		dsv3_board_step();
	}
	return error;
}

/* Write all rows that are over. NULL, or an error that is not a row's. */
static ErrorData *
write_over(Work *work)
{
	ErrorData *error = write_once(work, NULL);
	Row **rows;
	int n_rows = work->chunk.n_rows;

	if (error == NULL || kind_of(error) != ERROR_OF_ROW)
		return error;
	rows = memcpy(palloc(sizeof(Row *) * (Size) n_rows), work->rows, sizeof(Row *) * (Size) n_rows);
	for (int i = 0; i < n_rows; i++)
	{
		if (rows[i]->state != ROW_READY)
			continue;
		error = write_once(work, rows[i]);
		if (error && kind_of(error) != ERROR_OF_ROW)
			return error;
		if (error)
			fail_row(rows[i], error);
	}
	return write_once(work, NULL);
}

/* ---- the whole ---- */

static void
end_job(Work *work)
{
	if (dsv3_store_open())
		dsv3_store_end(work->id, work->end_state, work->end_error);
}

/* Set the job's state, or with "active" only tell what keeps it from going on. */
static void
end_with(Work *work, const char *state, const ErrorData *data)
{
	Dsv3JobError error = {{0}};
	ErrorData *trouble;

	error_of(&error, data);
	work->end_state = state;
	work->end_error = &error;
	trouble = in_transaction(work, end_job);
	if (trouble)
		ereport(LOG, (errmsg("state of dsv3 job " INT64_FORMAT " could not be written: %s", work->id,
							 trouble->message)));
}

static Dsv3ChunkEnd
end_by(Work *work, const ErrorData *error, ErrorKind kind)
{
	switch (kind)
	{
		case ERROR_CANCEL:
			if (dsv3_job_stop)
				return DSV3_CHUNK_STOPPED;
			end_with(work, "paused", error);
			return DSV3_CHUNK_OVER;
		case ERROR_OF_JOB:
		case ERROR_OF_ROW:
			end_with(work, "failed", error);
			return DSV3_CHUNK_OVER;
		default:
			end_with(work, "active", error);
			return DSV3_CHUNK_LATER;
	}
}

static bool
any_over(const Work *work)
{
	for (int i = 0; i < work->chunk.n_rows; i++)
	{
		if (work->rows[i]->state != ROW_OPEN)
			return true;
	}
	return false;
}

static Dsv3ChunkEnd
work_on(Work *work)
{
	ErrorData *error;
	ErrorData *trouble;
	ErrorKind kind = ERROR_OF_ROW;
	Dsv3ChunkEnd end;

	error = in_transaction(work, take);
	if (error)
		return end_by(work, error, kind_of(error) == ERROR_CANCEL ? ERROR_CANCEL : ERROR_LATER);
	if (!work->taken)
		return work->active ? DSV3_CHUNK_NONE : DSV3_CHUNK_OVER;
	make_rows(work);
	if (work->chunk.attempts > CAREFUL + RETRIES)
	{
		Row *row = work->rows[0];

		row->state = ROW_FAILED;
		strlcpy(row->error.sqlstate, "57P02", sizeof(row->error.sqlstate));
		row->error.message = psprintf("the worker or the server ended %d times while it worked on this row",
									  work->chunk.attempts - 1);
	}
	else if ((error = compute_rows(work)) != NULL)
		kind = kind_of(error);

	/* What was computed is kept, and an end that is none of the rows' doing does not count as an attempt. */
	if (dsv3_job_stop)
	{
		QueryCancelPending = false;
		SetConfigOption("lock_timeout", "2s", PGC_USERSET, PGC_S_SESSION);
	}
	if (any_over(work) || dsv3_job_stop || kind == ERROR_GENERAL)
	{
		trouble = write_over(work);
		if (trouble)
			return end_by(work, trouble, kind_of(trouble));
	}
	if (error)
		return end_by(work, error, kind);
	end = dsv3_job_stop ? DSV3_CHUNK_STOPPED : DSV3_CHUNK_DONE;
	if (work->hopeless)
	{
		ErrorData hopeless = {.sqlerrcode = ERRCODE_DATA_EXCEPTION};

		hopeless.message =
			psprintf("the first %d rows have failed, and none has succeeded", DSV3_JOB_HOPELESS);
		hopeless.hint = "See dsv3_job_errors. dsv3_job_resume goes on all the same.";
		end_with(work, "failed", &hopeless);
		return DSV3_CHUNK_OVER;
	}
	return end;
}

Dsv3ChunkEnd
dsv3_job_chunk(int64 job)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "dsv3 job chunk", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Work *work = palloc0(sizeof(Work));
	Dsv3ChunkEnd end;

	dsv3_failure_hook = on_failure;
	work->context = context;
	work->id = job;
	work->usage = dsv3_usage;
	INSTR_TIME_SET_CURRENT(work->counted);
	end = work_on(work);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return end;
}
