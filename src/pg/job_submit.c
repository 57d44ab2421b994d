/*
 * job_submit.c
 *	  dsv3_job_submit: check the parts of a job, freeze the list of its rows, let the launcher know.
 *
 * All that can be known to be wrong is raised here: the statements are made, and EXPLAIN asks PostgreSQL whether the role may run
 * them. The list is read in the caller's transaction, so the job sees what the caller sees.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "pg/client.h"
#include "pg/job.h"

#define MAX_CHUNK   100000
#define FETCH_PARTS 16

PG_FUNCTION_INFO_V1(dsv3_job_submit_1_0);

/* ---- at commit ---- */

static bool wake_wanted;

static void
at_end_of_transaction(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT && wake_wanted)
		dsv3_board_note(MyDatabaseId);
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
		wake_wanted = false;
}

void
dsv3_job_wake_at_commit(void)
{
	static bool registered;

	if (!registered)
		RegisterXactCallback(at_end_of_transaction, NULL);
	registered = true;
	wake_wanted = true;
}

/* ---- arguments ---- */

static void
take_option(Dsv3Job *job, const char *name, const JsonbValue *value)
{
	char *text =
		value->type == jbvString ? pnstrdup(value->val.string.val, value->val.string.len) : pstrdup("");
	bool known = true;

	if (value->type == jbvNull)
		return;
	if (strcmp(name, "priority") == 0 && (strcmp(text, "batch") == 0 || strcmp(text, "interactive") == 0))
		job->priority = text;
	else if (strcmp(name, "write") == 0 &&
			 (strcmp(text, "upsert") == 0 || strcmp(text, "update") == 0 || strcmp(text, "insert") == 0))
		job->mode = text;
	else if (strcmp(name, "paused") == 0 && value->type == jbvBool)
		job->state = value->val.boolean ? "paused" : "active";
	else
		known = false;
	if (!known)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("unrecognized option \"%s\" of a job, or a wrong value of it", name),
						errhint("Valid options are: paused (true or false), priority (\"batch\" or "
								"\"interactive\"), write (\"upsert\", \"update\" or \"insert\").")));
}

static void
take_options(Dsv3Job *job, Jsonb *options)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue value;
	char *name = "";

	job->priority = "batch";
	job->mode = "upsert";
	job->state = "active";
	if (options == NULL)
		return;
	if (!JB_ROOT_IS_OBJECT(options))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("options must be a JSON object")));
	it = JsonbIteratorInit(&options->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			name = pnstrdup(value.val.string.val, value.val.string.len);
		else if (token == WJB_VALUE)
			take_option(job, name, &value);
	}
}

static void
take_keys(Dsv3Job *job, ArrayType *array)
{
	Datum *values;
	bool *nulls;

	deconstruct_array(array, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR, &values, &nulls, &job->n_keys);
	if (job->n_keys == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("a job needs a key column"),
						errhint("Name the columns that tell one row of the query from another.")));
	job->keys = palloc(sizeof(char *) * (Size) job->n_keys);
	for (int i = 0; i < job->n_keys; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("name of a key column is NULL")));
		job->keys[i] = pstrdup(NameStr(*DatumGetName(values[i])));
		for (int k = 0; k < i; k++)
		{
			if (strcmp(job->keys[k], job->keys[i]) == 0)
				ereport(ERROR, (errcode(ERRCODE_DUPLICATE_COLUMN),
								errmsg("key column \"%s\" is named twice", job->keys[i]),
								errhint("Name each column of the key once.")));
		}
	}
}

/* Jobs run by connecting as the role, so it must be one that may. */
static void
check_role(void)
{
	HeapTuple tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
	bool can_login = HeapTupleIsValid(tuple) && ((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin;

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	if (!can_login)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" cannot submit jobs, because it may not log in",
						GetUserNameFromId(GetUserId(), false)),
				 errhint("A job runs in a session of the role that submits it: RESET ROLE first, or ALTER "
						 "ROLE ... LOGIN.")));
}

/* ---- the statements ---- */

static void
explain(const char *sql, int n, Oid *types)
{
	Datum *values = palloc0(sizeof(Datum) * (Size) Max(n, 1));
	char *nulls = palloc((Size) n + 1);

	memset(nulls, 'n', (Size) n);
	if (sql && SPI_execute_with_args(psprintf("EXPLAIN %s", sql), n, types, values, nulls, false, 0) < 0)
		elog(ERROR, "statement of a job could not be explained");
}

/* May the role run them? */
static void
try_statements(const Dsv3JobText *text)
{
	int n = text->n_keys + text->n_columns;
	Oid *types = palloc(sizeof(Oid) * (Size) n);

	memcpy(types, text->key_types, sizeof(Oid) * (Size) text->n_keys);
	memcpy(types + text->n_keys, text->column_types, sizeof(Oid) * (Size) text->n_columns);
	explain(text->compute, text->n_keys, text->array_types);
	explain(text->update, n, types);
	explain(text->insert, n, types);
}

static int64
insert_job(const Dsv3Job *job, int chunk)
{
	(void) dsv3_store("INSERT INTO %s._dsv3_job (home, role_oid, role_name, query, call, target, key, mode, "
					  "priority, chunk, state, settings) "
					  "SELECT $1, $2, pg_get_userbyid($2), $3, $4, $5, $6, $7, $8, $9, $10, $11 RETURNING id",
					  "totttnttitj", dsv3_job_home(), job->role, job->query, job->call, job->target,
					  job->keys, job->n_keys, job->mode, job->priority, chunk, job->state,
					  JsonbPGetDatum(job->settings));
	return DatumGetInt64(dsv3_store_value(1, NULL));
}

/* What answers and the meaning of names depend on, as it is in this session. */
static Jsonb *
current_settings(void)
{
	if (SPI_execute(
			"SELECT pg_catalog.jsonb_object_agg(s.name, s.setting) FROM pg_catalog.pg_settings AS s "
			"WHERE s.context OPERATOR(pg_catalog.=) 'user' AND (pg_catalog.starts_with(s.name, 'dsv3.') OR "
			"s.name OPERATOR(pg_catalog.=) ANY (ARRAY['search_path', 'TimeZone', 'DateStyle', "
			"'IntervalStyle', "
			"'extra_float_digits', 'bytea_output', 'lc_monetary', 'lc_numeric', 'lc_time', 'work_mem']))",
			true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read pg_settings");
	return DatumGetJsonbPCopy(dsv3_store_value(1, NULL));
}

static void
check_example(HeapTuple tuple, TupleDesc desc, int column, const char *complaint)
{
	bool isnull;
	Datum example = SPI_getbinval(tuple, desc, column, &isnull);

	if (!isnull)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s", complaint),
				 errdetail("For example %s.", JsonbToCString(NULL, &DatumGetJsonbP(example)->root, 64)),
				 errhint("The key columns must tell the rows of the query apart.")));
}

/* Run the query and keep its keys. Returns how many. */
static int64
freeze(const Dsv3JobText *text, int64 job, int chunk)
{
	Oid type = INT4OID;
	Datum value = Int32GetDatum(chunk);
	Portal portal =
		SPI_cursor_open_with_args(NULL, text->list, 1, &type, &value, NULL, false, CURSOR_OPT_PARALLEL_OK);
	int64 number = 0;
	int64 total = 0;

	for (;;)
	{
		SPITupleTable *table;
		uint64 n;

		SPI_cursor_fetch(portal, true, FETCH_PARTS);
		table = SPI_tuptable;
		n = SPI_processed;
		if (n == 0)
			break;
		for (uint64 i = 0; i < n; i++)
		{
			bool isnull;

			check_example(table->vals[i], table->tupdesc, 3,
						  "a key column of the query is NULL in some rows");
			check_example(table->vals[i], table->tupdesc, 4, "several rows of the query have the same key");
			(void) dsv3_store("INSERT INTO %s._dsv3_job_chunk (job, number, keys) VALUES ($1, $2, $3)", "bbj",
							  job, ++number, SPI_getbinval(table->vals[i], table->tupdesc, 1, &isnull));
			total += DatumGetInt64(SPI_getbinval(table->vals[i], table->tupdesc, 2, &isnull));
		}
		SPI_freetuptable(table);
	}
	SPI_cursor_close(portal);
	return total;
}

/* dsv3_job_submit(query, call, target, key, chunk, options) -> id */
Datum
dsv3_job_submit_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Job job = {0};
	Dsv3JobText made;
	Oid target;
	int chunk = PG_ARGISNULL(4) ? 256 : PG_GETARG_INT32(4);
	int64 id;
	int64 total;

	dsv3_require_preload();
	PreventCommandIfReadOnly("dsv3_job_submit()");
	if (InSecurityRestrictedOperation())
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("cannot submit a job within a security-restricted operation")));
	for (int i = 0; i < 4; i++)
	{
		if (PG_ARGISNULL(i))
			ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
							errmsg("query, call, target and key of a job must not be NULL")));
	}
	if (chunk < 1 || chunk > MAX_CHUNK)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("chunk must be between 1 and %d", MAX_CHUNK)));
	check_role();
	job.role = GetUserId();
	job.query = text_to_cstring(PG_GETARG_TEXT_PP(0));
	job.call = text_to_cstring(PG_GETARG_TEXT_PP(1));
	target = PG_GETARG_OID(2);
	if (get_rel_name(target) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE), errmsg("relation with OID %u does not exist", target)));
	job.target =
		quote_qualified_identifier(get_namespace_name(get_rel_namespace(target)), get_rel_name(target));
	take_keys(&job, PG_GETARG_ARRAYTYPE_P(3));
	take_options(&job, PG_ARGISNULL(5) ? NULL : PG_GETARG_JSONB_P(5));

	if (SPI_connect() != SPI_OK_CONNECT || !dsv3_store_open())
		elog(ERROR, "extension \"dsv3\" is not installed");
	dsv3_job_text(&job, &made);
	try_statements(&made);
	job.settings = current_settings();
	id = insert_job(&job, chunk);
	total = freeze(&made, id, chunk);
	(void) dsv3_store(
		"UPDATE %s._dsv3_job SET total = $2, state = CASE WHEN $2 = 0 THEN 'done' ELSE state END, "
		"finished_at = CASE WHEN $2 = 0 THEN clock_timestamp() END WHERE id = $1",
		"bb", id, total);
	SPI_finish();
	dsv3_job_wake_at_commit();
	PG_RETURN_INT64(id);
}
