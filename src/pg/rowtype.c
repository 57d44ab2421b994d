/*
 * rowtype.c
 *	  dsv3_extract: a row type becomes the schema, and the answer comes back as a row.
 *
 * Each column is a required key, so that the model decides about every one of them; null stands for what the text does not say. Only
 * a domain that is NOT NULL has no null. The schema of a type is never wider than what the type's input function takes: numbers
 * are bounded, dates follow the calendar, texts have the length of the type. What no schema can say, a domain's CHECK, is
 * checked by the domain when the row is made, and raises.
 *
 * The row is made by jsonb_populate_record, which calls the input functions. Its lookups are kept with the call site.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/htup_details.h"
#include "access/tupdesc.h"
#include "catalog/pg_class.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "commands/comment.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/numeric.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "pg/ask.h"
#include "pg/extract.h"
#include "pg/options.h"
#include "pg/rowtype.h"
#include "pg/text.h"

PG_FUNCTION_INFO_V1(dsv3_extract_1_0);

/* Bytes of a schema: row types that use each other many times can come to any size. */
#define SCHEMA_MAX (1024 * 1024)

/* Floating-point numbers are written without an exponent; these bounds hold for both types, as does the schema's
 * limit of 30 digits after the point. */
#define FLOAT_BOUNDS "\"minimum\":-1e30,\"maximum\":1e30"

/* Dates of the Gregorian calendar in the years 0001 to 9999. */
#define YEAR "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                                 \
	"(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"                \
	"02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\\\.[0-9]{1,6})?"
#define ZONE "(Z|[+-](0[0-9]|1[0-4]):[0-5][0-9])"

static void
append_type(StringInfo out, Oid type, int32 typmod, const char *column, bool nullable, const char *comment);

static void
refuse(Oid type, const char *column, const char *why)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
		 errmsg("column \"%s\" has type %s, which cannot be extracted", column, format_type_be(type)),
		 errdetail("%s", why),
		 errhint(
			 "Supported are text, varchar, char, boolean, integers, floating-point numbers, numeric, date, "
			 "time, timestamp, timestamptz, uuid, json, jsonb, enums, and domains, arrays and row types "
			 "made of them.")));
}

/* {"type":NAME or [NAME,"null"],"description":COMMENT ... the caller adds what follows and the brace. */
static void
open_type(StringInfo out, const char *name, bool nullable, const char *comment)
{
	appendStringInfo(out, nullable ? "{\"type\":[\"%s\",\"null\"]" : "{\"type\":\"%s\"", name);
	if (comment)
	{
		appendStringInfoString(out, ",\"description\":");
		escape_json(out, comment);
	}
}

static void
append_pattern(StringInfo out, const char *pattern, bool nullable, const char *comment)
{
	open_type(out, "string", nullable, comment);
	appendStringInfo(out, ",\"pattern\":\"^%s$\"}", pattern);
}

/* numeric(p,s): what has s digits after the point and p in all. Other digits would be rounded, which could overflow. */
static void
append_numeric(StringInfo out, int32 typmod, bool nullable, const char *comment)
{
	open_type(out, "number", nullable, comment);
	if (typmod >= (int32) VARHDRSZ)
	{
		int precision = ((typmod - VARHDRSZ) >> 16) & 0xffff;
		int scale =
			(((typmod - VARHDRSZ) & 0x7ff) ^ 1024) - 1024; /* eleven bits with a sign, since PostgreSQL 15 */
		StringInfoData limit;

		/* The largest value: precision nines, the point before the last scale of them. */
		initStringInfo(&limit);
		if (scale >= precision)
			appendStringInfoString(&limit, "0");
		for (int i = 0; i < precision - scale; i++)
			appendStringInfoChar(&limit, i < precision ? '9' : '0');
		if (scale > 0)
			appendStringInfoChar(&limit, '.');
		for (int i = 0; i < scale; i++)
			appendStringInfoChar(&limit, i < scale - precision ? '0' : '9');
		appendStringInfo(out, ",\"minimum\":-%s,\"maximum\":%s", limit.data, limit.data);
		if (scale >= 0)
		{
			appendStringInfoString(out, scale > 0 ? ",\"multipleOf\":0." : ",\"multipleOf\":1");
			for (int i = 1; i < scale; i++)
				appendStringInfoChar(out, '0');
			if (scale > 0)
				appendStringInfoChar(out, '1');
		}
	}
	appendStringInfoChar(out, '}');
}

/* The labels in their order, and null. */
static void
append_enum(StringInfo out, Oid type, bool nullable, const char *comment)
{
	CatCList *list = SearchSysCacheList1(ENUMTYPOIDNAME, ObjectIdGetDatum(type));
	HeapTuple *labels = palloc(sizeof(HeapTuple) * (list->n_members + 1));

	/* In the order of the type: there are few, and they are nearly sorted. */
	for (int i = 0; i < list->n_members; i++)
	{
		HeapTuple label = &list->members[i]->tuple;
		float4 order = ((Form_pg_enum) GETSTRUCT(label))->enumsortorder;
		int at = i;

		for (; at > 0 && ((Form_pg_enum) GETSTRUCT(labels[at - 1]))->enumsortorder > order; at--)
			labels[at] = labels[at - 1];
		labels[at] = label;
	}
	appendStringInfoString(out, "{\"enum\":[");
	for (int i = 0; i < list->n_members; i++)
	{
		if (i > 0)
			appendStringInfoChar(out, ',');
		escape_json(out, NameStr(((Form_pg_enum) GETSTRUCT(labels[i]))->enumlabel));
	}
	if (nullable)
		appendStringInfoString(out, list->n_members > 0 ? ",null]" : "null]");
	else
		appendStringInfoChar(out, ']');
	if (comment)
	{
		appendStringInfoString(out, ",\"description\":");
		escape_json(out, comment);
	}
	appendStringInfoChar(out, '}');
	ReleaseSysCacheList(list);
}

static void
append_row(StringInfo out, Oid type, int32 typmod, bool nullable, const char *comment)
{
	TupleDesc desc = lookup_rowtype_tupdesc_copy(type, typmod);
	Oid relation = get_typ_typrelid(type);
	StringInfoData required;
	bool first = true;

	if (out->len > SCHEMA_MAX)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						errmsg("schema of the row type is longer than %d bytes", SCHEMA_MAX)));
	initStringInfo(&required);
	open_type(out, "object", nullable, comment);
	appendStringInfoString(out, ",\"properties\":{");
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped)
			continue;
		if (!first)
		{
			appendStringInfoChar(out, ',');
			appendStringInfoChar(&required, ',');
		}
		first = false;
		escape_json(out, NameStr(att->attname));
		escape_json(&required, NameStr(att->attname));
		appendStringInfoChar(out, ':');
		append_type(out, att->atttypid, att->atttypmod, NameStr(att->attname), true,
					OidIsValid(relation) ? GetComment(relation, RelationRelationId, att->attnum) : NULL);
	}
	appendStringInfo(out, "},\"required\":[%s],\"additionalProperties\":false}", required.data);
}

static void
append_scalar(StringInfo out, Oid type, int32 typmod, const char *column, bool nullable, const char *comment)
{
	switch (type)
	{
		case BOOLOID:
			open_type(out, "boolean", nullable, comment);
			appendStringInfoChar(out, '}');
			break;
		case INT2OID:
			open_type(out, "integer", nullable, comment);
			appendStringInfoString(out, ",\"minimum\":-32768,\"maximum\":32767}");
			break;
		case INT4OID:
			open_type(out, "integer", nullable, comment);
			appendStringInfoString(out, ",\"minimum\":-2147483648,\"maximum\":2147483647}");
			break;
		case INT8OID:
			open_type(out, "integer", nullable, comment);
			appendStringInfoString(out, ",\"minimum\":-9223372036854775808,\"maximum\":9223372036854775807}");
			break;
		case FLOAT4OID:
		case FLOAT8OID:
			open_type(out, "number", nullable, comment);
			appendStringInfoString(out, "," FLOAT_BOUNDS "}");
			break;
		case NUMERICOID:
			append_numeric(out, typmod, nullable, comment);
			break;
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
			open_type(out, "string", nullable, comment);
			if (type != TEXTOID && typmod >= (int32) VARHDRSZ)
				appendStringInfo(out, ",\"maxLength\":%d", typmod - VARHDRSZ);
			appendStringInfoChar(out, '}');
			break;
		case DATEOID:
			append_pattern(out, DATE, nullable, comment);
			break;
		case TIMEOID:
			append_pattern(out, TIME, nullable, comment);
			break;
		case TIMESTAMPOID:
			append_pattern(out, DATE "T" TIME, nullable, comment);
			break;
		case TIMESTAMPTZOID:
			append_pattern(out, DATE "T" TIME ZONE, nullable, comment);
			break;
		case UUIDOID:
			open_type(out, "string", nullable, comment);
			appendStringInfoString(out, ",\"format\":\"uuid\"}");
			break;
		case JSONOID:
		case JSONBOID:
			appendStringInfoString(out, "{");
			if (comment)
			{
				appendStringInfoString(out, "\"description\":");
				escape_json(out, comment);
			}
			appendStringInfoChar(out, '}');
			break;
		default:
			refuse(type, column, "Its values have no form that a schema could describe.");
	}
}

static void
append_type(StringInfo out, Oid type, int32 typmod, const char *column, bool nullable, const char *comment)
{
	Oid element;

	check_stack_depth();
	while (get_typtype(type) == TYPTYPE_DOMAIN)
	{
		HeapTuple tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
		Form_pg_type domain;

		if (!HeapTupleIsValid(tuple))
			elog(ERROR, "cache lookup failed for type %u", type);
		domain = (Form_pg_type) GETSTRUCT(tuple);
		nullable = nullable && !domain->typnotnull;
		type = domain->typbasetype;
		typmod = domain->typtypmod;
		ReleaseSysCache(tuple);
	}
	element = get_element_type(type);
	if (OidIsValid(element))
	{
		open_type(out, "array", nullable, comment);
		appendStringInfoString(out, ",\"items\":");
		append_type(out, element, typmod, column, false, NULL);
		appendStringInfoChar(out, '}');
	}
	else if (get_typtype(type) == TYPTYPE_ENUM)
		append_enum(out, type, nullable, comment);
	else if (get_typtype(type) == TYPTYPE_COMPOSITE)
		append_row(out, type, -1, nullable, comment);
	else
		append_scalar(out, type, typmod, column, nullable, comment);
}

void
dsv3_rowtype_schema(StringInfo out, Oid type, int32 typmod)
{
	append_row(out, type, typmod, false, NULL);
}

/* ---- the function ---- */

/* What a call site keeps. */
typedef struct RowPlan
{
	Dsv3Schema schema;
	uint32 whitespace;
	FmgrInfo populate;
} RowPlan;

static RowPlan *
get_plan(FunctionCallInfo fcinfo, uint32 whitespace)
{
	RowPlan *plan = fcinfo->flinfo->fn_extra;
	Oid type = get_fn_expr_argtype(fcinfo->flinfo, 1);
	StringInfoData json;
	MemoryContext old;
	Dsv3Text text;
	Dsv3Failure failure;
	Size total = 0;

	if (plan && plan->whitespace == whitespace)
		return plan;
	if (!OidIsValid(type) || get_typtype(type) != TYPTYPE_COMPOSITE)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("dsv3_extract needs a row type, not %s",
							   OidIsValid(type) ? format_type_be(type) : "an unknown one"),
						errhint("Make one with CREATE TYPE name AS (...), and pass NULL::name.")));
	old = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
	initStringInfo(&json);
	dsv3_rowtype_schema(&json, type, -1);
	if (!dsv3_take_text(PointerGetDatum(cstring_to_text_with_len(json.data, json.len)), &text, &total,
						&failure))
		dsv3_raise(&failure);
	plan = palloc0(sizeof(RowPlan));
	plan->schema.text = text;
	plan->schema.whitespace = plan->whitespace = whitespace;
	fmgr_info(F_JSONB_POPULATE_RECORD, &plan->populate);
	plan->populate.fn_expr = (Node *) makeFuncExpr(
		F_JSONB_POPULATE_RECORD, type,
		list_make2(makeNullConst(type, -1, InvalidOid), makeNullConst(JSONBOID, -1, InvalidOid)), InvalidOid,
		InvalidOid, COERCE_EXPLICIT_CALL);
	MemoryContextSwitchTo(old);
	dsv3_schema_accept(&plan->schema);
	fcinfo->flinfo->fn_extra = plan;
	return plan;
}

static Dsv3AskResult
extract_ask(FunctionCallInfo fcinfo, Dsv3Question *question, Dsv3Request *request, Dsv3Failure *failure)
{
	Dsv3Text instruction = {0};
	RowPlan *plan;
	Size total = 0;

	if (PG_ARGISNULL(0))
		return DSV3_ASK_NOTHING;
	dsv3_require_preload();
	dsv3_request_init(request, DSV3_REQUEST_GENERATE);
	if (!PG_ARGISNULL(3))
		dsv3_options_apply(request, PG_GETARG_JSONB_P(3), DSV3_OPTIONS_ROW);
	plan = get_plan(fcinfo, request->whitespace);
	if ((!PG_ARGISNULL(2) && !dsv3_take_text(PG_GETARG_DATUM(2), &instruction, &total, failure)) ||
		!dsv3_extract_prompt(request, &plan->schema, PG_GETARG_DATUM(0), &instruction, failure))
		return DSV3_ASK_FAILED;
	return DSV3_ASK_REQUEST;
}

static bool
extract_value(FunctionCallInfo fcinfo, Dsv3Question *question, bool ok, const Dsv3Answer *answer,
			  Dsv3Failure *failure, Datum *value)
{
	LOCAL_FCINFO(populate, 2);
	RowPlan *plan = fcinfo->flinfo->fn_extra;
	Datum json;

	if (!dsv3_extract_value(answer, &json, failure))
		return false;
	question->narrowed = answer->narrowed;
	InitFunctionCallInfoData(*populate, &plan->populate, 2, InvalidOid, NULL, NULL);
	populate->args[0].value = (Datum) 0;
	populate->args[0].isnull = true;
	populate->args[1].value = json;
	populate->args[1].isnull = false;
	*value = FunctionCallInvoke(populate);
	fcinfo->isnull = populate->isnull;
	return true;
}

const Dsv3Asker dsv3_asker_extract = {"dsv3_extract_1_0", dsv3_extract_1_0, extract_ask, extract_value,
									  false};

/* dsv3_extract(input, into, instruction, options) -> anyelement */
Datum
dsv3_extract_1_0(PG_FUNCTION_ARGS)
{
	return dsv3_ask_plainly(&dsv3_asker_extract, fcinfo);
}
