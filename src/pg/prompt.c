/*
 * prompt.c
 *	  Prompts as objects: a name, versions that never change, an owner, and roles that may run it. dsv3_run makes a call of one.
 *
 * A template is the whole text of the request's message, with {input} where the row's text goes, once or more, and {schema} where
 * the schema shall be read by the model. What stands before the first {input} is alike for all rows and is computed
 * once. A call site keeps the prompt that it looked up, ready to use, for as long as the query runs.
 *
 * Prompts are rows of tables that nobody else may touch: here they are written with the rights of their owner, after a
 * look whether the caller may. They are read through the view dsv3_prompts, which shows a role those that it may run, so
 * what dsv3_run finds is what the view shows. Statements name schemas and operators in full, because
 * the caller chooses search_path.
 */
#include "postgres.h"

#include "pg/compat.h"

#include <math.h>

#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"

#include "pg/ask.h"
#include "pg/extract.h"
#include "pg/options.h"
#include "pg/schema.h"
#include "pg/text.h"

PG_FUNCTION_INFO_V1(dsv3_prompt_create_1_0);
PG_FUNCTION_INFO_V1(dsv3_prompt_drop_1_0);
PG_FUNCTION_INFO_V1(dsv3_prompt_grant_1_0);
PG_FUNCTION_INFO_V1(dsv3_prompt_revoke_1_0);
PG_FUNCTION_INFO_V1(dsv3_run_1_0);

#define BUDGET_BYTES 4 /* of input for a token, where an option "budget" makes output tokens of it */
#define BUDGET_MIN   16

/* A prompt, ready to use; all of it in its context. */
typedef struct Prompt
{
	MemoryContext context;
	char *name;
	int32 version; /* as it was asked for; 0: the newest */
	int32 found;   /* the version that this is */
	Dsv3Text *parts;
	int n_parts; /* between two of them stands the input */
	Size bytes;  /* of the parts and the system message together */
	Dsv3Text system;
	Jsonb *options; /* or NULL */
	bool has_schema;
	Dsv3Schema schema;
} Prompt;

/* ---- statements ---- */

/* Run a statement in which %s is the schema of the extension; the result is in SPI_tuptable. SPI is connected. */
static void
execute(FunctionCallInfo fcinfo, const char *statement, int n, Oid *types, Datum *values, const char *nulls,
		bool read_only)
{
	const char *schema = quote_identifier(get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid)));
	char *command = psprintf(statement, schema, schema);
	int rc = SPI_execute_with_args(command, n, types, values, nulls, read_only, 0);

	if (rc < 0)
		elog(ERROR, "SPI_execute_with_args failed: %s", SPI_result_code_string(rc));
}

/* The same with the rights of the tables' owner. An error ends the change of rights with the transaction. */
static void
execute_as_owner(FunctionCallInfo fcinfo, const char *statement, int n, Oid *types, Datum *values,
				 const char *nulls)
{
	Oid user;
	int context;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, context | SECURITY_LOCAL_USERID_CHANGE);
	execute(fcinfo, statement, n, types, values, nulls, false);
	SetUserIdAndSecContext(user, context);
}

/* ---- templates ---- */

/* Split the template at its {input}s, with the schema's text for {schema}. The parts are in the current memory context. */
static void
split_template(Prompt *prompt, Dsv3Text template)
{
	static const char input[] = "{input}";
	static const char schema[] = "{schema}";
	StringInfoData part;

	prompt->parts = palloc(sizeof(Dsv3Text) * (template.len / (sizeof(input) - 1) + 1));
	initStringInfo(&part);
	for (Size i = 0; i < template.len;)
	{
		const char *at = template.data + i;
		Size left = template.len - i;

		if (left >= sizeof(input) - 1 && memcmp(at, input, sizeof(input) - 1) == 0)
		{
			prompt->parts[prompt->n_parts++] = (Dsv3Text){part.data, (Size) part.len};
			initStringInfo(&part);
			i += sizeof(input) - 1;
		}
		else if (left >= sizeof(schema) - 1 && memcmp(at, schema, sizeof(schema) - 1) == 0)
		{
			if (!prompt->has_schema)
				ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
								errmsg("template has {schema}, but there is no schema")));
			appendBinaryStringInfo(&part, prompt->schema.text.data, (int) prompt->schema.text.len);
			i += sizeof(schema) - 1;
		}
		else
		{
			appendStringInfoChar(&part, *at);
			i++;
		}
	}
	prompt->parts[prompt->n_parts++] = (Dsv3Text){part.data, (Size) part.len};
	if (prompt->n_parts == 1)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("template has no {input}"),
						errhint("Every row would ask the same. Write {input} where the text goes.")));
}

/* Options into a request. */
static void
apply_options(const Prompt *prompt, Dsv3Request *request)
{
	dsv3_request_init(request, DSV3_REQUEST_GENERATE);
	if (prompt->options)
		dsv3_options_apply(request, prompt->options, DSV3_OPTIONS_PROMPT);
	if (prompt->has_schema && (request->grammar.data || request->n_stop > 0))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("options \"choices\", \"grammar\", \"regex\" and \"stop\" cannot be used with "
							   "a schema")));
}

/* Make the prompt of what it was created with; raises for what is wrong with that. In the current memory context, which becomes
 * the prompt's. */
static void
make_prompt(Prompt *prompt, Datum template, const Datum *system, Jsonb *schema, Jsonb *options)
{
	Dsv3Request request;
	Dsv3Text text;
	Dsv3Failure failure;

	prompt->context = CurrentMemoryContext;
	prompt->options = options;
	if (!dsv3_take_text(template, &text, &prompt->bytes, &failure) ||
		(system && !dsv3_take_text(*system, &prompt->system, &prompt->bytes, &failure)))
		dsv3_raise(&failure);
	prompt->has_schema = schema != NULL;
	if (schema)
		dsv3_schema_from_jsonb(&prompt->schema, schema);
	split_template(prompt, text);
	apply_options(prompt, &request);
	if (schema)
	{
		prompt->schema.whitespace = request.whitespace;
		dsv3_schema_accept(&prompt->schema);
		prompt->bytes += prompt->schema.text.len;
	}
}

/* ---- dsv3_run ---- */

/* Look the prompt up and make it ready, in the current memory context. */
static void
look_up(FunctionCallInfo fcinfo, Prompt *prompt)
{
	static const char statement[] =
		"SELECT template, system, schema, options, version FROM %s.dsv3_prompts WHERE name "
		"OPERATOR(pg_catalog.=) $1 "
		"AND ($2 IS NULL OR version OPERATOR(pg_catalog.=) $2) ORDER BY version DESC LIMIT 1";
	Oid types[2] = {TEXTOID, INT4OID};
	Datum values[2] = {CStringGetTextDatum(prompt->name), Int32GetDatum(prompt->version)};
	MemoryContext context = CurrentMemoryContext;
	Datum found[4] = {0};
	bool nulls[4];
	bool isnull;

	SPI_connect();
	execute(fcinfo, statement, 2, types, values, prompt->version == 0 ? " n" : "  ", true);
	if (SPI_processed == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 prompt->version == 0 ? errmsg("there is no prompt \"%s\" that you may run", prompt->name)
									  : errmsg("there is no version %d of a prompt \"%s\" that you may run",
											   prompt->version, prompt->name),
				 errhint("The view dsv3_prompts shows which there are; its owner lets others run it "
						 "with dsv3_prompt_grant.")));
	for (int i = 0; i < 4; i++)
	{
		found[i] = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, i + 1, &nulls[i]);
		if (!nulls[i])
		{
			MemoryContext old = MemoryContextSwitchTo(context);

			found[i] = PointerGetDatum(PG_DETOAST_DATUM_COPY(found[i]));
			MemoryContextSwitchTo(old);
		}
	}
	prompt->found = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 5, &isnull));
	SPI_finish();
	make_prompt(prompt, found[0], nulls[1] ? NULL : &found[1], nulls[2] ? NULL : DatumGetJsonbP(found[2]),
				nulls[3] ? NULL : DatumGetJsonbP(found[3]));
}

/* The call site's prompt of this name and version. */
static const Prompt *
get_prompt(FunctionCallInfo fcinfo)
{
	Prompt *prompt = fcinfo->flinfo->fn_extra;
	char *name = TextDatumGetCString(PG_GETARG_DATUM(0));
	int32 version = PG_ARGISNULL(2) ? 0 : PG_GETARG_INT32(2);
	MemoryContext context;
	MemoryContext old;

	if (!PG_ARGISNULL(2) && version < 1)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("versions begin with 1")));
	if (prompt && prompt->version == version && strcmp(prompt->name, name) == 0)
		return prompt;
	if (prompt)
	{
		fcinfo->flinfo->fn_extra = NULL;
		MemoryContextDelete(prompt->context);
	}
	context = AllocSetContextCreate(fcinfo->flinfo->fn_mcxt, "dsv3 prompt", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	prompt = palloc0(sizeof(Prompt));
	prompt->context = context;
	prompt->name = pstrdup(name);
	prompt->version = version;
	look_up(fcinfo, prompt);
	MemoryContextSwitchTo(old);
	fcinfo->flinfo->fn_extra = prompt;
	return prompt;
}

/* The request's limit, where the options give none. */
static uint32
default_max_tokens(const Prompt *prompt, const Dsv3Request *request, Size input_len)
{
	double tokens = ceil(request->budget * (double) input_len / BUDGET_BYTES);

	if (prompt->has_schema)
		return dsv3_extract_max_tokens(request, &prompt->schema, input_len);
	if (request->budget < 0)
		return (uint32) Min(dsv3_guc_max_tokens, dsv3_guc_max_output_tokens);
	return (uint32) Min(Max(tokens, BUDGET_MIN), dsv3_guc_max_output_tokens);
}

static Dsv3AskResult
run_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	const Prompt *prompt;
	StringInfoData text;
	Dsv3Text input;
	Size total;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		return DSV3_ASK_NOTHING;
	dsv3_require_preload();
	prompt = get_prompt(fcinfo);
	apply_options(prompt, request);
	total = prompt->bytes;
	if (!dsv3_take_text(PG_GETARG_DATUM(1), &input, &total, failure))
		return DSV3_ASK_FAILED;
	initStringInfo(&text);
	for (int i = 0; i < prompt->n_parts; i++)
	{
		if (i > 0)
			appendBinaryStringInfo(&text, input.data, (int) input.len);
		appendBinaryStringInfo(&text, prompt->parts[i].data, (int) prompt->parts[i].len);
	}
	request->prompt = (Dsv3Text){text.data, (Size) text.len};
	request->prompt_name = prompt->name;
	request->prompt_version = prompt->found;
	request->inserted = input;
	request->system = prompt->system;
	if (prompt->has_schema)
		dsv3_schema_use(&prompt->schema, request);
	if (request->max_tokens == 0)
		request->max_tokens = default_max_tokens(prompt, request, input.len);
	return DSV3_ASK_REQUEST;
}

static bool
run_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
		  Dsv3Failure *failure, Datum *value)
{
	const Prompt *prompt = fcinfo->flinfo->fn_extra;

	if (prompt->has_schema && !dsv3_extract_complete(answer, failure))
		return false;
	question->narrowed = answer->narrowed;
	return dsv3_answer_text(answer, value, failure);
}

const Dsv3Asker dsv3_asker_run = {"dsv3_run_1_0", dsv3_run_1_0, run_ask, run_value, false};

/* dsv3_run(name, input, version) -> text */
Datum
dsv3_run_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_run, fcinfo);
}

/* ---- making and changing ---- */

static void
require_argument(FunctionCallInfo fcinfo, int i, const char *name)
{
	if (PG_ARGISNULL(i))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("argument \"%s\" must not be NULL", name)));
}

/* A statement on the caller's prompt of the name $1; $2 is the caller. Raises when there is no such prompt. */
static void
change(FunctionCallInfo fcinfo, const char *statement, Oid type, Datum value, bool isnull)
{
	Oid types[3] = {TEXTOID, OIDOID, type};
	Datum values[3] = {PG_GETARG_DATUM(0), ObjectIdGetDatum(GetUserId()), value};

	SPI_connect();
	execute_as_owner(fcinfo, statement, 3, types, values, isnull ? "  n" : "   ");
	if (SPI_processed == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("there is no such prompt \"%s\" that you own",
														   TextDatumGetCString(PG_GETARG_DATUM(0)))));
	SPI_finish();
}

/* dsv3_prompt_create(name, template, system, schema, options) -> version */
Datum
dsv3_prompt_create_1_0(PG_FUNCTION_ARGS)
{
	/* Versions of a prompt that was shipped are dumped, its row is not. */
	static const char new_version[] =
		"INSERT INTO %s.dsv3_prompt AS p (name, owner) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE "
		"SET owner = COALESCE(p.owner, excluded.owner), last_version = GREATEST(p.last_version, (SELECT "
		"pg_catalog.max(v.version) FROM "
		"%s.dsv3_prompt_version AS v WHERE v.name OPERATOR(pg_catalog.=) p.name)) OPERATOR(pg_catalog.+) 1 "
		"WHERE p.owner IS NULL OR pg_catalog.pg_has_role($2, p.owner::pg_catalog.oid, 'USAGE') "
		"RETURNING last_version";
	static const char insert[] =
		"INSERT INTO %s.dsv3_prompt_version (name, version, template, system, schema, options) "
		"VALUES ($1, $2, $3, $4, $5, $6)";
	Oid types[6] = {TEXTOID, OIDOID, TEXTOID, TEXTOID, JSONBOID, JSONBOID};
	Datum values[6] = {0};
	char nulls[6];
	Prompt prompt = {0};
	bool isnull;
	int32 version;
	Datum system;

	dsv3_require_preload();
	require_argument(fcinfo, 0, "name");
	require_argument(fcinfo, 1, "template");
	if (VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(0)) == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("name must not be empty")));
	system = PG_ARGISNULL(2) ? (Datum) 0 : PG_GETARG_DATUM(2);
	make_prompt(&prompt, PG_GETARG_DATUM(1), PG_ARGISNULL(2) ? NULL : &system,
				PG_ARGISNULL(3) ? NULL : PG_GETARG_JSONB_P(3), PG_ARGISNULL(4) ? NULL : PG_GETARG_JSONB_P(4));

	values[0] = PG_GETARG_DATUM(0);
	values[1] = ObjectIdGetDatum(GetUserId());
	for (int i = 1; i < 5; i++)
	{
		values[i + 1] = PG_ARGISNULL(i) ? (Datum) 0 : PG_GETARG_DATUM(i);
		nulls[i + 1] = PG_ARGISNULL(i) ? 'n' : ' ';
	}
	nulls[0] = nulls[1] = ' ';
	SPI_connect();
	execute_as_owner(fcinfo, new_version, 2, types, values, nulls);
	if (SPI_processed == 0)
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("prompt \"%s\" is another role's", TextDatumGetCString(values[0]))));
	version = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	types[1] = INT4OID;
	values[1] = Int32GetDatum(version);
	execute_as_owner(fcinfo, insert, 6, types, values, nulls);
	SPI_finish();
	PG_RETURN_INT32(version);
}

/* dsv3_prompt_drop(name, version) -> void; NULL: all of them */
Datum
dsv3_prompt_drop_1_0(PG_FUNCTION_ARGS)
{
	/* The name stays, with the last number that it had. One that was shipped stays its owner's, because a restore makes it so. */
	static const char all[] =
		"UPDATE %s.dsv3_prompt AS p SET owner = CASE WHEN p.shipped THEN p.owner END, "
		"readers = CASE WHEN p.shipped THEN p.readers ELSE '{}' END, "
		"last_version = GREATEST(p.last_version, (SELECT pg_catalog.max(v.version) FROM "
		"%s.dsv3_prompt_version AS v WHERE v.name OPERATOR(pg_catalog.=) p.name)) WHERE p.name "
		"OPERATOR(pg_catalog.=) $1 "
		"AND pg_catalog.pg_has_role($2, p.owner::pg_catalog.oid, 'USAGE') AND $3 IS NULL";
	static const char one[] =
		"DELETE FROM %s.dsv3_prompt_version AS v USING %s.dsv3_prompt AS p "
		"WHERE v.name OPERATOR(pg_catalog.=) $1 AND v.version OPERATOR(pg_catalog.=) $3 "
		"AND p.name OPERATOR(pg_catalog.=) $1 AND pg_catalog.pg_has_role($2, p.owner::pg_catalog.oid, "
		"'USAGE')";

	static const char versions[] =
		"DELETE FROM %s.dsv3_prompt_version AS v WHERE v.name OPERATOR(pg_catalog.=) $1";
	Oid type = TEXTOID;
	Datum name;

	require_argument(fcinfo, 0, "name");
	change(fcinfo, PG_ARGISNULL(1) ? all : one, INT4OID, PG_ARGISNULL(1) ? (Datum) 0 : PG_GETARG_DATUM(1),
		   PG_ARGISNULL(1));
	if (PG_ARGISNULL(1))
	{
		/* The prompt's row is locked now, so no version is added meanwhile. */
		name = PG_GETARG_DATUM(0);
		SPI_connect();
		execute_as_owner(fcinfo, versions, 1, &type, &name, " ");
		SPI_finish();
	}
	PG_RETURN_VOID();
}

/* "public" is all roles, as in GRANT. */
static Oid
role_argument(FunctionCallInfo fcinfo)
{
	const char *role = NameStr(*PG_GETARG_NAME(1));

	return strcmp(role, "public") == 0 ? ACL_ID_PUBLIC : get_role_oid(role, false);
}

/* dsv3_prompt_grant(name, role) -> void */
Datum
dsv3_prompt_grant_1_0(PG_FUNCTION_ARGS)
{
	static const char statement[] =
		"UPDATE %s.dsv3_prompt AS p SET readers = pg_catalog.array_append("
		"pg_catalog.array_remove(p.readers, $3::pg_catalog.regrole), $3::pg_catalog.regrole) "
		"WHERE p.name OPERATOR(pg_catalog.=) $1 AND pg_catalog.pg_has_role($2, p.owner::pg_catalog.oid, "
		"'USAGE')";

	change(fcinfo, statement, OIDOID, ObjectIdGetDatum(role_argument(fcinfo)), false);
	PG_RETURN_VOID();
}

/* dsv3_prompt_revoke(name, role) -> void */
Datum
dsv3_prompt_revoke_1_0(PG_FUNCTION_ARGS)
{
	static const char statement[] =
		"UPDATE %s.dsv3_prompt AS p SET readers = pg_catalog.array_remove(p.readers, $3::pg_catalog.regrole) "
		"WHERE p.name OPERATOR(pg_catalog.=) $1 AND pg_catalog.pg_has_role($2, p.owner::pg_catalog.oid, "
		"'USAGE')";

	change(fcinfo, statement, OIDOID, ObjectIdGetDatum(role_argument(fcinfo)), false);
	PG_RETURN_VOID();
}
