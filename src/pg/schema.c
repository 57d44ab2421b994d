/*
 * schema.c
 *	  JSON Schemas: from jsonb to the text that the engine compiles and the model reads, and what the engine says of it.
 *
 * The text of a jsonb schema lists the properties of each object in the order in which the answer will have them, because
 * a model that reads them in one order and must write them in another makes mistakes. The engine orders by the same rule
 * (DSV3_FIELD_KEY_ORDER); should the two differ in a corner, the answer is as valid as before.
 *
 * Objects that say nothing of further properties get none, since a model should not invent fields. That narrows the
 * schema only where an object is described in one place. Where several subschemas describe one object together, or where
 * a subschema is negated, it would forbid what is wanted or allow what is not; such schemas are taken as they are.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"

#include "pg/answer.h"
#include "pg/schema.h"
#include "pg/text.h"

/* Objects with more properties are written as jsonb has them. */
#define ORDERED_MAX 1000

static void render(StringInfo out, const JsonbValue *value);

static void
render_key(StringInfo out, const char *key, int len, bool *first)
{
	if (!*first)
		appendStringInfoChar(out, ',');
	*first = false;
	escape_json(out, pnstrdup(key, len));
	appendStringInfoChar(out, ':');
}

static bool
is_array(const JsonbValue *value)
{
	return value && value->type == jbvBinary && JsonContainerIsArray(value->val.binary.data);
}

static bool
is_object(const JsonbValue *value)
{
	return value && value->type == jbvBinary && JsonContainerIsObject(value->val.binary.data);
}

static JsonbValue *
get_key(JsonbContainer *object, const char *key, int len)
{
	JsonbValue name;

	name.type = jbvString;
	name.val.string.val = unconstify(char *, key);
	name.val.string.len = len;
	return findJsonbValueFromContainer(object, JB_FOBJECT, &name);
}

/* Names of properties, each once, in the order in which they are to be written. */
typedef struct Names
{
	JsonbValue *items;
	int n;
} Names;

static void
add_name(Names *names, const JsonbValue *name)
{
	for (int i = 0; i < names->n; i++)
	{
		if (names->items[i].val.string.len == name->val.string.len &&
			memcmp(names->items[i].val.string.val, name->val.string.val, (size_t) name->val.string.len) == 0)
			return;
	}
	names->items[names->n++] = *name;
}

/* Those names in a list that are properties. */
static void
add_listed(Names *names, JsonbContainer *properties, const JsonbValue *list)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue name;

	if (!is_array(list))
		return;
	it = JsonbIteratorInit(list->val.binary.data);
	while ((token = JsonbIteratorNext(&it, &name, true)) != WJB_DONE)
	{
		if (token == WJB_ELEM && name.type == jbvString &&
			get_key(properties, name.val.string.val, name.val.string.len))
			add_name(names, &name);
	}
}

/* The value of "properties" in a schema: what x-order or propertyOrdering lists, what is required, the rest. */
static void
render_properties(StringInfo out, JsonbContainer *schema, JsonbContainer *properties)
{
	Names names = {0};
	JsonbValue *order = get_key(schema, "x-order", 7);
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue name;
	bool first = true;

	names.items = palloc(sizeof(JsonbValue) * (JsonContainerSize(properties) + 1));
	add_listed(&names, properties, is_array(order) ? order : get_key(schema, "propertyOrdering", 16));
	add_listed(&names, properties, get_key(schema, "required", 8));
	it = JsonbIteratorInit(properties);
	while ((token = JsonbIteratorNext(&it, &name, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			add_name(&names, &name);
	}
	appendStringInfoChar(out, '{');
	for (int i = 0; i < names.n; i++)
	{
		const JsonbValue *key = &names.items[i];

		render_key(out, key->val.string.val, key->val.string.len, &first);
		render(out, get_key(properties, key->val.string.val, key->val.string.len));
	}
	appendStringInfoChar(out, '}');
}

static void
render_object(StringInfo out, JsonbContainer *object)
{
	JsonbIterator *it = JsonbIteratorInit(object);
	JsonbIteratorToken token;
	JsonbValue value;
	bool first = true;
	bool properties = false;

	appendStringInfoChar(out, '{');
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
		{
			render_key(out, value.val.string.val, value.val.string.len, &first);
			properties = value.val.string.len == 10 && memcmp(value.val.string.val, "properties", 10) == 0;
		}
		else if (token == WJB_VALUE && properties && is_object(&value) &&
				 JsonContainerSize(value.val.binary.data) <= ORDERED_MAX)
			render_properties(out, object, value.val.binary.data);
		else if (token == WJB_VALUE)
			render(out, &value);
	}
	appendStringInfoChar(out, '}');
}

static void
render_array(StringInfo out, JsonbContainer *array)
{
	JsonbIterator *it = JsonbIteratorInit(array);
	JsonbIteratorToken token;
	JsonbValue value;
	bool first = true;

	appendStringInfoChar(out, '[');
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token != WJB_ELEM)
			continue;
		if (!first)
			appendStringInfoChar(out, ',');
		first = false;
		render(out, &value);
	}
	appendStringInfoChar(out, ']');
}

static void
render(StringInfo out, const JsonbValue *value)
{
	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	switch (value->type)
	{
		case jbvString:
			escape_json(out, pnstrdup(value->val.string.val, value->val.string.len));
			break;
		case jbvNumeric:
			appendStringInfoString(
				out, DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value->val.numeric))));
			break;
		case jbvBool:
			appendStringInfoString(out, value->val.boolean ? "true" : "false");
			break;
		case jbvBinary:
			if (JsonContainerIsObject(value->val.binary.data))
				render_object(out, value->val.binary.data);
			else
				render_array(out, value->val.binary.data);
			break;
		default:
			appendStringInfoString(out, "null");
			break;
	}
}

/* May objects be closed? Asked of every key anywhere, so a property of such a name is taken for the keyword; that only
 * leaves objects open. */
static bool
may_close(Jsonb *json)
{
	static const char *const never[] = {"allOf",        "oneOf",           "not", "if", "contains",
										"dependencies", "dependentSchemas"};
	JsonbIterator *it = JsonbIteratorInit(&json->root);
	JsonbIteratorToken token;
	JsonbValue value;

	while ((token = JsonbIteratorNext(&it, &value, false)) != WJB_DONE)
	{
		if (token == WJB_BEGIN_OBJECT)
		{
			JsonbContainer *object = it->container;

			if ((get_key(object, "properties", 10) || get_key(object, "patternProperties", 17)) &&
				(get_key(object, "anyOf", 5) || get_key(object, "$ref", 4)))
				return false;
		}
		if (token != WJB_KEY)
			continue;
		for (int i = 0; i < (int) lengthof(never); i++)
		{
			if (value.val.string.len == (int) strlen(never[i]) &&
				memcmp(value.val.string.val, never[i], strlen(never[i])) == 0)
				return false;
		}
	}
	return true;
}

static Dsv3Text
to_utf8(const char *data, Size len)
{
	Dsv3Text text;
	Dsv3Failure failure;
	Size total = 0;

	if (!dsv3_take_text(PointerGetDatum(cstring_to_text_with_len(data, (int) len)), &text, &total, &failure))
		dsv3_raise(&failure);
	return text;
}

void
dsv3_schema_from_jsonb(Dsv3Schema *schema, Jsonb *json)
{
	StringInfoData out;

	initStringInfo(&out);
	if (JB_ROOT_IS_SCALAR(json))
		appendStringInfoString(&out, JsonbToCString(NULL, &json->root, VARSIZE(json)));
	else if (JB_ROOT_IS_OBJECT(json))
		render_object(&out, &json->root);
	else
		render_array(&out, &json->root);
	memset(schema, 0, sizeof(*schema));
	schema->text = to_utf8(out.data, (Size) out.len);
	schema->key_order = 1;
	schema->closed = may_close(json);
}

void
dsv3_schema_from_text(Dsv3Schema *schema, Dsv3Text text)
{
	Dsv3Failure failure;
	Size len;
	char *json = dsv3_text_from_utf8(text.data, text.len, &len, &failure);

	if (json == NULL)
		dsv3_raise(&failure);
	memset(schema, 0, sizeof(*schema));
	schema->text = text;
	schema->closed = may_close(DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(json))));
}

void
dsv3_schema_use(const Dsv3Schema *schema, Dsv3Request *request)
{
	request->grammar = schema->text;
	request->grammar_kind = DSV3_GRAMMAR_IS_SCHEMA;
	request->whitespace = schema->whitespace;
	request->key_order = schema->key_order;
	request->closed_objects = schema->closed;
}

/* ---- what the engine says of it ---- */

bool
dsv3_schema_check(Dsv3Schema *schema, Datum *notices, Dsv3Failure *failure)
{
	Dsv3Request request;
	Dsv3Answer answer;
	Datum report;
	JsonbValue *list;
	JsonbValue *shortest;

	dsv3_request_init(&request, DSV3_REQUEST_CHECK_GRAMMAR);
	dsv3_schema_use(schema, &request);
	if (!dsv3_run(&request, &answer, failure) ||
		!dsv3_answer_json((Dsv3Text){answer.text.data, (Size) answer.text.len}, &report, failure))
		return false;
	if (JB_ROOT_IS_OBJECT(DatumGetJsonbP(report)))
	{
		shortest = get_key(&DatumGetJsonbP(report)->root, "shortest", 8);
		list = get_key(&DatumGetJsonbP(report)->root, "notices", 7);
		if (shortest && shortest->type == jbvNumeric && is_array(list))
		{
			schema->shortest =
				DatumGetInt32(DirectFunctionCall1(numeric_int4, NumericGetDatum(shortest->val.numeric)));
			*notices = JsonbPGetDatum(JsonbValueToJsonb(list));
			return true;
		}
	}
	failure->row_error = false;
	return dsv3_error(&failure->error, DSV3_ERR_PROTOCOL, "dsv3 engine sent an invalid report of a schema");
}

/* A text of a notice in the database encoding already, since it comes from jsonb. */
static char *
notice_text(JsonbContainer *notice, const char *key)
{
	JsonbValue *value = get_key(notice, key, (int) strlen(key));

	return value && value->type == jbvString ? pnstrdup(value->val.string.val, value->val.string.len)
											 : pstrdup("");
}

void
dsv3_schema_accept(Dsv3Schema *schema)
{
	Dsv3Failure failure;
	Datum notices;
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue notice;

	if (!dsv3_schema_check(schema, &notices, &failure))
		dsv3_raise(&failure);
	it = JsonbIteratorInit(&DatumGetJsonbP(notices)->root);
	while ((token = JsonbIteratorNext(&it, &notice, true)) != WJB_DONE)
	{
		if (token == WJB_ELEM && is_object(&notice))
			ereport(NOTICE, (errmsg("%s", notice_text(notice.val.binary.data, "message")),
							 errdetail("At \"%s\" of the schema, keyword \"%s\".",
									   notice_text(notice.val.binary.data, "pointer"),
									   notice_text(notice.val.binary.data, "keyword"))));
	}
}
