/*
 * job_store.c
 *	  The job tables, read and written on behalf of roles that have no rights on them.
 *
 * Every statement here is fixed text with parameters. It runs as the owner of the tables, with pg_catalog as the only schema
 * in which functions and operators are looked for, whatever the search_path of the session: no name of a user's can get between.
 * What a role may do with which job is the callers' business.
 */
#include "postgres.h"

#include "pg/compat.h"

#include <stdarg.h>

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"

#include "pg/job.h"

#define MAX_PARAMS 24

/* Of this transaction: where the tables are, and whose. */
static char schema[2 * NAMEDATALEN + 3];
static Oid owner;

char *
dsv3_job_home(void)
{
	return psprintf(UINT64_FORMAT "/%u", GetSystemIdentifier(), MyDatabaseId);
}

/* ---- running statements ---- */

bool
dsv3_store_open(void)
{
	char *name;

	if (SPI_execute(
			"SELECT pg_catalog.quote_ident(n.nspname), c.relowner FROM pg_catalog.pg_extension AS e, "
			"pg_catalog.pg_namespace AS n, pg_catalog.pg_class AS c "
			"WHERE e.extname OPERATOR(pg_catalog.=) 'dsv3' AND n.oid OPERATOR(pg_catalog.=) e.extnamespace "
			"AND c.relname OPERATOR(pg_catalog.=) '_dsv3_job' AND c.relnamespace OPERATOR(pg_catalog.=) "
			"n.oid",
			false, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read pg_extension");
	if (SPI_processed == 0)
		return false;
	name = TextDatumGetCString(dsv3_store_value(1, NULL));
	strlcpy(schema, name, sizeof(schema));
	owner = DatumGetObjectId(dsv3_store_value(2, NULL));
	return true;
}

/* The statement with the schema's name in it. */
static char *
with_schema(const char *sql)
{
	StringInfoData text;

	initStringInfo(&text);
	for (const char *at = sql; *at; at++)
	{
		if (at[0] == '%' && at[1] == 's')
		{
			appendStringInfoString(&text, schema);
			at++;
		}
		else
			appendStringInfoChar(&text, *at);
	}
	return text.data;
}

static Datum
names_datum(char *const *names, int n)
{
	Datum *values = palloc(sizeof(Datum) * (Size) Max(n, 1));

	for (int i = 0; i < n; i++)
		values[i] = CStringGetTextDatum(names[i]);
	return PointerGetDatum(construct_array(values, n, TEXTOID, -1, false, TYPALIGN_INT));
}

uint64
dsv3_store(const char *sql, const char *types, ...)
{
	Oid param_types[MAX_PARAMS];
	Datum values[MAX_PARAMS];
	char nulls[MAX_PARAMS + 1] = {0};
	int n = (int) strlen(types);
	int guc_level;
	int security;
	int result;
	Oid user;
	MemoryContext old = CurrentMemoryContext;
	va_list args;

	Assert(n <= MAX_PARAMS);
	va_start(args, types);
	for (int i = 0; i < n; i++)
	{
		const char *text;
		char *const *names;

		nulls[i] = ' ';
		switch (types[i])
		{
			case 'b':
				param_types[i] = INT8OID;
				values[i] = Int64GetDatum(va_arg(args, int64));
				break;
			case 'i':
				param_types[i] = INT4OID;
				values[i] = Int32GetDatum(va_arg(args, int));
				break;
			case 'f':
				param_types[i] = FLOAT8OID;
				values[i] = Float8GetDatum(va_arg(args, double));
				break;
			case 'o':
				param_types[i] = OIDOID;
				values[i] = ObjectIdGetDatum(va_arg(args, Oid));
				break;
			case 'j':
				param_types[i] = JSONBOID;
				values[i] = va_arg(args, Datum);
				break;
			case 'n':
				param_types[i] = TEXTARRAYOID;
				names = va_arg(args, char *const *);
				values[i] = names_datum(names, va_arg(args, int));
				break;
			case 't':
				param_types[i] = TEXTOID;
				text = va_arg(args, const char *);
				nulls[i] = text ? ' ' : 'n';
				values[i] = text ? CStringGetTextDatum(text) : (Datum) 0;
				break;
			default:
				elog(ERROR, "unknown type of parameter '%c'", types[i]);
		}
	}
	va_end(args);

	/* An error ends the transaction or subtransaction, and that puts both back. */
	GetUserIdAndSecContext(&user, &security);
	guc_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	SetUserIdAndSecContext(owner, security | SECURITY_LOCAL_USERID_CHANGE | SECURITY_NOFORCE_RLS);
	result = SPI_execute_with_args(with_schema(sql), n, param_types, values, nulls, false, 0);
	SetUserIdAndSecContext(user, security);
	AtEOXact_GUC(true, guc_level);
	MemoryContextSwitchTo(old); /* SPI leaves its own behind */
	if (result < 0)
		elog(ERROR, "statement on the job tables failed: %s", SPI_result_code_string(result));
	return SPI_processed;
}

Datum
dsv3_store_value(int column, bool *isnull)
{
	bool null;
	Datum value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, column, &null);

	if (isnull)
		*isnull = null;
	else if (null)
		elog(ERROR, "unexpected NULL in column %d of a job table", column);
	return value;
}

/* ---- jobs ---- */

static char *
text_column(int column)
{
	bool isnull;
	Datum value = dsv3_store_value(column, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

static char **
names_column(int column, int *n)
{
	Datum *values;
	char **names;

	deconstruct_array(DatumGetArrayTypeP(dsv3_store_value(column, NULL)), TEXTOID, -1, false, TYPALIGN_INT,
					  &values, NULL, n);
	names = palloc(sizeof(char *) * (Size) Max(*n, 1));
	for (int i = 0; i < *n; i++)
		names[i] = TextDatumGetCString(values[i]);
	return names;
}

Dsv3Job *
dsv3_store_job(int64 id, bool lock)
{
	static const char columns[] =
		"SELECT coalesce((SELECT r.oid FROM pg_roles AS r WHERE CASE WHEN j.home = $2 THEN r.oid = "
		"j.role_oid "
		"ELSE r.rolname = j.role_name END), 0), j.query, j.call, j.target, j.key, j.mode, j.priority, "
		"j.settings, j.state, j.done, j.failed FROM %s._dsv3_job AS j WHERE j.id = $1";
	Dsv3Job *job;

	if (dsv3_store(lock ? psprintf("%s FOR UPDATE OF j", columns) : columns, "bt", id, dsv3_job_home()) == 0)
		return NULL;
	job = palloc0(sizeof(Dsv3Job));
	job->id = id;
	job->role = DatumGetObjectId(dsv3_store_value(1, NULL));
	job->query = text_column(2);
	job->call = text_column(3);
	job->target = text_column(4);
	job->keys = names_column(5, &job->n_keys);
	job->mode = text_column(6);
	job->priority = text_column(7);
	job->settings = DatumGetJsonbPCopy(dsv3_store_value(8, NULL));
	job->state = text_column(9);
	job->done = DatumGetInt64(dsv3_store_value(10, NULL));
	job->failed = DatumGetInt64(dsv3_store_value(11, NULL));
	return job;
}

void
dsv3_store_end(int64 job, const char *state, const Dsv3JobError *error)
{
	(void) dsv3_store("UPDATE %s._dsv3_job SET state = $2, sqlstate = $3, error = $4, detail = $5, hint = $6 "
					  "WHERE id = $1 AND state = 'active'",
					  "bttttt", job, state, error ? error->sqlstate : NULL, error ? error->message : NULL,
					  error ? error->detail : NULL, error ? error->hint : NULL);
}

/* Whoever adds rows to the list holds the job's lock, so the list is looked at when the lock is held. */
void
dsv3_store_finish(int64 job)
{
	(void) dsv3_store_job(job, true);
	(void) dsv3_store("UPDATE %s._dsv3_job SET state = 'done', finished_at = clock_timestamp(), "
					  "sqlstate = NULL, error = NULL, detail = NULL, hint = NULL WHERE id = $1 AND "
					  "state = 'active' AND NOT EXISTS (SELECT FROM %s._dsv3_job_chunk WHERE job = $1)",
					  "b", job);
}

bool
dsv3_store_add(int64 job, const Dsv3JobSum *sum)
{
	if (dsv3_store("UPDATE %s._dsv3_job SET done = done + $2, failed = failed + $3, skipped = skipped + $4, "
				   "prompt_tokens = prompt_tokens + $5, cached_tokens = cached_tokens + $6, "
				   "output_tokens = output_tokens + $7, seconds = seconds + $8, "
				   "rate = CASE WHEN $8 <= 0 THEN rate WHEN rate IS NULL THEN ($2 + $3 + $4) / $8 "
				   "ELSE 0.7 * rate + 0.3 * ($2 + $3 + $4) / $8 END, "
				   "sqlstate = NULL, error = NULL, detail = NULL, hint = NULL "
				   "WHERE id = $1 RETURNING done = 0 AND failed >= $9 AND failed - $3 < $9",
				   "bbbbbbbfi", job, sum->done, sum->failed, sum->skipped, sum->prompt_tokens,
				   sum->cached_tokens, sum->output_tokens, sum->seconds, DSV3_JOB_HOPELESS) == 0)
		return false;
	return DatumGetBool(dsv3_store_value(1, NULL));
}

/* ---- chunks ---- */

bool
dsv3_store_take(int64 job, Dsv3JobChunk *chunk)
{
	if (dsv3_store(
			"UPDATE %s._dsv3_job_chunk AS c SET attempts = c.attempts + 1 WHERE c.job = $1 AND c.number = "
			"(SELECT min(m.number) FROM %s._dsv3_job_chunk AS m WHERE m.job = $1) "
			"RETURNING c.number, c.attempts, jsonb_array_length(c.keys), c.keys",
			"b", job) == 0)
		return false;
	chunk->number = DatumGetInt64(dsv3_store_value(1, NULL));
	chunk->attempts = DatumGetInt32(dsv3_store_value(2, NULL));
	chunk->n_rows = DatumGetInt32(dsv3_store_value(3, NULL));
	chunk->keys = JsonbPGetDatum(DatumGetJsonbPCopy(dsv3_store_value(4, NULL)));
	(void) dsv3_store(
		"UPDATE %s._dsv3_job SET started_at = clock_timestamp() WHERE id = $1 AND started_at IS NULL", "b",
		job);
	return true;
}

void
dsv3_store_advance(int64 job, const Dsv3JobChunk *chunk, const bool *over, int attempts)
{
	StringInfoData left;
	uint64 n;

	/* The ordinals of what is left, as an array's text. */
	initStringInfo(&left);
	for (int i = 0; i < chunk->n_rows; i++)
	{
		if (!over[i])
			appendStringInfo(&left, "%c%d", left.len == 0 ? '{' : ',', i + 1);
	}
	if (left.len == 0)
		n = dsv3_store(
			"DELETE FROM %s._dsv3_job_chunk WHERE job = $1 AND number = $2 AND jsonb_array_length(keys) = $3",
			"bbi", job, chunk->number, chunk->n_rows);
	else
	{
		appendStringInfoChar(&left, '}');
		n = dsv3_store(
			"UPDATE %s._dsv3_job_chunk AS c SET attempts = $5, keys = (SELECT jsonb_agg(e.key ORDER BY e.n) "
			"FROM jsonb_array_elements(c.keys) WITH ORDINALITY AS e (key, n) "
			"WHERE e.n = ANY ($4::int8[])) "
			"WHERE c.job = $1 AND c.number = $2 AND jsonb_array_length(c.keys) = $3",
			"bbiti", job, chunk->number, chunk->n_rows, left.data, attempts);
	}
	if (n != 1)
		ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
						errmsg("rows of dsv3 job " INT64_FORMAT " were taken from it", job)));
}

void
dsv3_store_error(int64 job, const Dsv3JobChunk *chunk, int row, const Dsv3JobError *error)
{
	(void) dsv3_store("INSERT INTO %s._dsv3_job_error (job, key, sqlstate, message, detail, hint) "
					  "SELECT c.job, c.keys -> $3, $4, $5, $6, $7 FROM %s._dsv3_job_chunk AS c "
					  "WHERE c.job = $1 AND c.number = $2",
					  "bbitttt", job, chunk->number, row, error->sqlstate, error->message, error->detail,
					  error->hint);
}
