/*
 * extract.c
 *	  Answers that are bound to a JSON Schema: dsv3_extract_json, its try form, and questions about schemas.
 *
 * A schema is made ready and checked by the engine once for each call site of a statement and each schema met there;
 * the result is kept in the call site's memory, so a table's rows compile it once and its notices come once. A refused
 * schema raises before any row is computed, also in the try form: it would meet every row alike.
 *
 * The prompt begins with what the rows have in common, the instruction and the schema, and ends with the row's text. What
 * comes before the text is made in one place, so that dsv3_check_schema shows what the model reads.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "pg/ask.h"
#include "pg/extract.h"
#include "pg/options.h"
#include "pg/text.h"

PG_FUNCTION_INFO_V1(dsv3_extract_json_1_0);
PG_FUNCTION_INFO_V1(dsv3_try_extract_json_1_0);
PG_FUNCTION_INFO_V1(dsv3_check_schema_1_0);
PG_FUNCTION_INFO_V1(dsv3_json_accepts_1_0);

/* What max_tokens is by default: BASE, twice the shortest answer, and a token for so many bytes of schema and input. */
#define DEFAULT_TOKENS_BASE  256
#define DEFAULT_TOKENS_BYTES 2

static const char default_instruction[] = "Read the text below and extract from it what the JSON Schema "
										  "describes. Answer with one JSON document that "
										  "follows the schema. Take every value from the text. Where the "
										  "text does not say a value, use null if the schema "
										  "allows it; do not invent one.";

/* A schema that a call site has met. */
typedef struct SchemaPlan
{
	MemoryContext context; /* holds all of this */
	Dsv3Text source;       /* the jsonb or the text it was made of, byte for byte */
	bool from_text;
	Dsv3Schema schema;
} SchemaPlan;

/* ---- the request ---- */

uint32
dsv3_extract_max_tokens(const Dsv3Request *request, const Dsv3Schema *schema, Size input_len)
{
	uint64 tokens = DEFAULT_TOKENS_BASE + 2 * (uint64) Max(schema->shortest, 0) +
					(schema->text.len + input_len) / DEFAULT_TOKENS_BYTES;

	if (request->think_budget > 0)
		tokens += (uint64) request->think_budget;
	return (uint32) Min(tokens, (uint64) dsv3_guc_max_output_tokens);
}

/* What the model reads before the text, in UTF-8; the engine puts an empty line between the two. No instruction: a good
 * one. In the current memory context. */
static Dsv3Text
make_prompt(const Dsv3Schema *schema, const Dsv3Text *instruction)
{
	StringInfoData prompt;

	initStringInfo(&prompt);
	if (instruction && instruction->data)
		appendBinaryStringInfo(&prompt, instruction->data, (int) instruction->len);
	else
		appendStringInfoString(&prompt, default_instruction);
	appendStringInfoString(&prompt, "\n\nJSON Schema:\n");
	appendBinaryStringInfo(&prompt, schema->text.data, (int) schema->text.len);
	appendStringInfoString(&prompt, "\n\nText:");
	return (Dsv3Text){prompt.data, (Size) prompt.len};
}

bool
dsv3_extract_prompt(Dsv3Request *request, const Dsv3Schema *schema, Datum input, const Dsv3Text *instruction,
					Dsv3Failure *failure)
{
	Size total = schema->text.len + instruction->len;

	if (!dsv3_take_text(input, &request->input, &total, failure))
		return false;
	request->prompt = make_prompt(schema, instruction);
	dsv3_schema_use(schema, request);
	if (request->max_tokens == 0)
		request->max_tokens = dsv3_extract_max_tokens(request, schema, request->input.len);
	if (request->input.len == 0)
		request->input.data = NULL;
	return true;
}

bool
dsv3_extract_complete(const Dsv3Answer *answer, Dsv3Failure *failure)
{
	if (answer->counts.finish != DSV3_FINISH_LENGTH)
		return true;
	failure->row_error = true;
	return dsv3_error(&failure->error, DSV3_ERR_INTERNAL,
					  "answer by a schema reached max_tokens before its end");
}

bool
dsv3_extract_value(const Dsv3Answer *answer, Datum *json, Dsv3Failure *failure)
{
	return dsv3_extract_complete(answer, failure) &&
		   dsv3_answer_json((Dsv3Text){answer->text.data, (Size) answer->text.len}, json, failure);
}

/* The plan of the call site for this schema; raises when the schema is refused. */
static const Dsv3Schema *
get_plan(FunctionCallInfo fcinfo, Jsonb *json, Dsv3Text text, uint32 whitespace)
{
	SchemaPlan *plan = fcinfo->flinfo->fn_extra;
	bool from_text = text.data != NULL;
	Dsv3Text source = from_text ? text : (Dsv3Text){(const char *) json, VARSIZE(json)};
	MemoryContext context;
	MemoryContext old;

	if (plan && plan->from_text == from_text && plan->schema.whitespace == whitespace &&
		plan->source.len == source.len && memcmp(plan->source.data, source.data, source.len) == 0)
		return &plan->schema;
	if (plan)
	{
		fcinfo->flinfo->fn_extra = NULL;
		MemoryContextDelete(plan->context);
	}
	context = AllocSetContextCreate(fcinfo->flinfo->fn_mcxt, "dsv3 schema", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	plan = palloc0(sizeof(SchemaPlan));
	plan->context = context;
	plan->from_text = from_text;
	plan->source = source;
	plan->source.data = memcpy(palloc(source.len + 1), source.data, source.len);
	if (from_text)
		dsv3_schema_from_text(&plan->schema, plan->source);
	else
		dsv3_schema_from_jsonb(&plan->schema, (Jsonb *) plan->source.data);
	plan->schema.whitespace = whitespace;
	MemoryContextSwitchTo(old);
	dsv3_schema_accept(&plan->schema);
	fcinfo->flinfo->fn_extra = plan;
	return &plan->schema;
}

/* The schema's two sources must say the same. */
static void
compare_sources(Jsonb *json, Dsv3Text text)
{
	Dsv3Failure failure;
	Size len;
	char *other = dsv3_text_from_utf8(text.data, text.len, &len, &failure);
	Datum parsed;

	if (other == NULL)
		dsv3_raise(&failure);
	parsed = DirectFunctionCall1(jsonb_in, CStringGetDatum(other));
	if (compareJsonbContainers(&json->root, &DatumGetJsonbP(parsed)->root) != 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("option \"schema_text\" is another schema than the argument"),
						errhint("Give NULL as the schema, or the same schema twice.")));
}

/* Arguments (input, schema, instruction, max_tokens, options) as a request. False: failure, a row error. */
static bool
extract_request(FunctionCallInfo fcinfo, Dsv3Request *request, Dsv3Failure *failure)
{
	Jsonb *json = PG_ARGISNULL(1) ? NULL : PG_GETARG_JSONB_P(1);
	const Dsv3Schema *schema;
	Dsv3Text instruction = {0};
	Size total = 0;

	if (!PG_ARGISNULL(3))
		request->max_tokens = dsv3_check_max_tokens(PG_GETARG_INT32(3));
	if (request->schema_text.data && json)
		compare_sources(json, request->schema_text);
	schema = get_plan(fcinfo, json, request->schema_text, request->whitespace);
	if (!PG_ARGISNULL(2) && !dsv3_take_text(PG_GETARG_DATUM(2), &instruction, &total, failure))
		return false;
	return dsv3_extract_prompt(request, schema, PG_GETARG_DATUM(0), &instruction, failure);
}

/* Options into a request; false: NULL comes of NULL. */
static bool
begin_request(FunctionCallInfo fcinfo, Dsv3OptionsOf function, Dsv3Request *request)
{
	if (PG_ARGISNULL(0))
		return false;
	if (PG_ARGISNULL(1) && PG_ARGISNULL(4))
		return false;
	dsv3_require_preload();
	dsv3_request_init(request, DSV3_REQUEST_GENERATE);
	if (!PG_ARGISNULL(4))
		dsv3_options_apply(request, PG_GETARG_JSONB_P(4), function);
	return !PG_ARGISNULL(1) || request->schema_text.data;
}

static Dsv3AskResult
ask_extract(FunctionCallInfo fcinfo, Dsv3OptionsOf function, Dsv3Request *request, Dsv3Failure *failure)
{
	if (!begin_request(fcinfo, function, request))
		return DSV3_ASK_NOTHING;
	return extract_request(fcinfo, request, failure) ? DSV3_ASK_REQUEST : DSV3_ASK_FAILED;
}

static Dsv3AskResult
extract_json_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	return ask_extract(fcinfo, DSV3_OPTIONS_EXTRACT, request, failure);
}

static bool
extract_json_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
				   Dsv3Failure *failure, Datum *value)
{
	question->narrowed = answer->narrowed;
	return dsv3_extract_value(answer, value, failure);
}

const Dsv3Asker dsv3_asker_extract_json = {"dsv3_extract_json_1_0", dsv3_extract_json_1_0, extract_json_ask,
										   extract_json_value, false};

/* dsv3_extract_json(input, schema, instruction, max_tokens, options) -> jsonb */
Datum
dsv3_extract_json_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_extract_json, fcinfo);
}

static Dsv3AskResult
try_extract_json_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request,
					 Dsv3Failure *failure)
{
	return ask_extract(fcinfo, DSV3_OPTIONS_TRY_EXTRACT, request, failure);
}

void
dsv3_extract_columns(bool ok, const Dsv3Answer *answer, Dsv3Failure *failure, Datum *values, bool *nulls)
{
	ok = ok && dsv3_extract_value(answer, &values[1], failure);
	dsv3_try_columns(ok, answer, failure, values, nulls);
	values[10] = BoolGetDatum(answer->narrowed);
	nulls[10] = !ok;
}

static bool
try_extract_json_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
					   Dsv3Failure *failure, Datum *value)
{
	TupleDesc tupdesc;
	Datum values[11] = {0};
	bool nulls[11];

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	dsv3_extract_columns(ok, answer, failure, values, nulls);
	*value = HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), values, nulls));
	return true;
}

const Dsv3Asker dsv3_asker_try_extract_json = {"dsv3_try_extract_json_1_0", dsv3_try_extract_json_1_0,
											   try_extract_json_ask, try_extract_json_value, true};

/* The same arguments -> (ok, value, sqlstate, error, finish_reason, prompt_tokens, cached_tokens, output_tokens,
 * trace_id, logprobs, narrowed) */
Datum
dsv3_try_extract_json_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_try_extract_json, fcinfo);
}

/* ---- questions about schemas ---- */

static void
set_text(Datum *value, bool *null, const char *text)
{
	*null = text[0] == '\0';
	if (!*null)
		*value = CStringGetTextDatum(dsv3_text_from_utf8_lossy(text));
}

/* dsv3_check_schema(schema) -> (ok, shortest, notices, sqlstate, error, detail, hint, prompt) */
Datum
dsv3_check_schema_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Schema schema;
	Dsv3Failure failure;
	TupleDesc tupdesc;
	Datum values[8] = {0};
	bool nulls[8];
	bool ok;

	dsv3_require_preload();
	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	dsv3_schema_from_jsonb(&schema, PG_GETARG_JSONB_P(0));
	ok = dsv3_schema_check(&schema, &values[2], &failure);
	/* What the schema is not to blame for raises. */
	if (!ok && !failure.row_error && strcmp(failure.error.sqlstate, DSV3_ERR_UNSUPPORTED) != 0)
		dsv3_raise(&failure);
	memset(nulls, true, sizeof(nulls));
	values[0] = BoolGetDatum(ok);
	nulls[0] = false;
	if (ok)
	{
		Dsv3Text prompt = make_prompt(&schema, NULL);
		Size len;
		char *shown = dsv3_text_from_utf8(prompt.data, prompt.len, &len, &failure);

		if (shown == NULL)
			dsv3_raise(&failure);
		values[1] = Int32GetDatum(schema.shortest);
		values[7] = PointerGetDatum(cstring_to_text_with_len(shown, (int) len));
		nulls[1] = nulls[2] = nulls[7] = false;
	}
	else
	{
		set_text(&values[3], &nulls[3], failure.error.sqlstate);
		set_text(&values[4], &nulls[4], failure.error.message);
		set_text(&values[5], &nulls[5], failure.error.detail);
		set_text(&values[6], &nulls[6], failure.error.hint);
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), values, nulls)));
}

/* dsv3_json_accepts(schema, document) -> boolean */
Datum
dsv3_json_accepts_1_0(PG_FUNCTION_ARGS)
{
	Dsv3Schema schema;
	Dsv3Request request;
	Dsv3Answer answer;
	Dsv3Failure failure;
	Datum report;
	Datum accepted;
	Size total = 0;

	dsv3_require_preload();
	dsv3_schema_from_jsonb(&schema, PG_GETARG_JSONB_P(0));
	dsv3_request_init(&request, DSV3_REQUEST_ACCEPTS);
	dsv3_schema_use(&schema, &request);
	if (!dsv3_take_text(PG_GETARG_DATUM(1), &request.input, &total, &failure) ||
		!dsv3_run(&request, &answer, &failure) ||
		!dsv3_answer_json((Dsv3Text){answer.text.data, (Size) answer.text.len}, &report, &failure))
		dsv3_raise(&failure);
	accepted = DirectFunctionCall2(jsonb_object_field_text, report, CStringGetTextDatum("accepted"));
	PG_RETURN_BOOL(strcmp(TextDatumGetCString(accepted), "true") == 0);
}
