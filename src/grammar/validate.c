/*
 * validate.c
 *	  The validator (validate.h).
 *
 * Annotations, which unevaluatedProperties and unevaluatedItems need, are one bit per member or element of the value at
 * hand; a subschema that fails leaves none. Recursion is bounded by a depth counter, which also ends reference loops
 * that consume nothing of the value.
 */
#include <string.h>

#include "grammar/validate.h"

#define MAX_VALIDATE_DEPTH 1500

/* Which members or elements have been evaluated; NULL marks: nobody asks. */
typedef struct Eval
{
	bool *marks;
} Eval;

static bool check(Validator *v, const Json *schema, int32_t env, const Json *value, Eval *eval);

static bool
check_apart(Validator *v, const Json *schema, int32_t env, const Json *value)
{
	Eval none = {NULL};

	return check(v, schema, env, value, &none);
}

/* An in-place applicator: its marks count only when it holds. */
static bool
check_here(Validator *v, const Json *schema, int32_t env, const Json *value, Eval *eval)
{
	Eval own = {NULL};

	if (eval->marks == NULL)
		return check(v, schema, env, value, &own);
	own.marks = dsv3_gr_arena_alloc(v->ctx->arena, value->n + 1);
	if (!check(v, schema, env, value, &own))
		return false;
	for (uint32_t i = 0; i < value->n; i++)
		eval->marks[i] |= own.marks[i];
	return true;
}

static void
mark(Eval *eval, uint32_t i)
{
	if (eval->marks != NULL)
		eval->marks[i] = true;
}

static bool
type_is(const Json *value, const char *type, Draft draft)
{
	switch (value->kind)
	{
		case JSON_NULL_:
			return strcmp(type, "null") == 0;
		case JSON_TRUE_:
		case JSON_FALSE_:
			return strcmp(type, "boolean") == 0;
		case JSON_STRING_:
			return strcmp(type, "string") == 0;
		case JSON_ARRAY_:
			return strcmp(type, "array") == 0;
		case JSON_OBJECT_:
			return strcmp(type, "object") == 0;
		default:
			(void) draft;
			return strcmp(type, "number") == 0 ||
				   (strcmp(type, "integer") == 0 && dsv3_gr_json_is_integer(value));
	}
}

/* A keyword's non-negative integer; a value that is none of these never fails anything. */
static bool
limit(const Json *schema, const char *keyword, int64_t *out)
{
	const Json *k = dsv3_gr_json_get(schema, keyword);

	if (k == NULL || k->kind != JSON_NUMBER_)
		return false;
	if (!dsv3_gr_dec_to_int64(k->u.num, out))
		*out = k->u.num->neg ? -1 : INT64_MAX;
	return true;
}

static bool
check_number(Validator *v, const Json *schema, const Json *value)
{
	static const struct
	{
		const char *keyword;
		const char *exclusive;
		int sign;
	} bounds[] = {{"minimum", "exclusiveMinimum", 1}, {"maximum", "exclusiveMaximum", -1}};
	const Json *k;

	for (int i = 0; i < 2; i++)
	{
		const Json *ex = dsv3_gr_json_get(schema, bounds[i].exclusive);

		k = dsv3_gr_json_get(schema, bounds[i].keyword);
		if (k != NULL && k->kind == JSON_NUMBER_)
		{
			int c = dsv3_gr_dec_compare(value->u.num, k->u.num) * bounds[i].sign;

			if (c < 0 || (c == 0 && ex != NULL && ex->kind == JSON_TRUE_))
				return false;
		}
		if (ex != NULL && ex->kind == JSON_NUMBER_ &&
			dsv3_gr_dec_compare(value->u.num, ex->u.num) * bounds[i].sign <= 0)
			return false;
	}
	k = dsv3_gr_json_get(schema, "multipleOf");
	if (k != NULL && k->kind == JSON_NUMBER_ && !k->u.num->neg && k->u.num->ndigits != 0 &&
		!dsv3_gr_dec_multiple_of(value->u.num, k->u.num))
		return false;
	k = dsv3_gr_json_get(schema, "format");
	return k == NULL || k->kind != JSON_STRING_ || !v->doc->format_assert ||
		   dsv3_validate_format_number(k->u.str, value->u.num);
}

static bool
check_string(Validator *v, const Json *schema, const Json *value)
{
	int64_t n;
	const Json *k;
	int64_t length = dsv3_gr_json_codepoints(value->u.str, value->n);

	if (limit(schema, "minLength", &n) && length < n)
		return false;
	if (limit(schema, "maxLength", &n) && length > n)
		return false;
	k = dsv3_gr_json_get(schema, "pattern");
	if (k != NULL && k->kind == JSON_STRING_ &&
		!dsv3_validate_pattern(v, k->u.str, k->n, value->u.str, value->n))
		return false;
	k = dsv3_gr_json_get(schema, "format");
	return k == NULL || k->kind != JSON_STRING_ || !v->doc->format_assert ||
		   dsv3_validate_format(k->u.str, value->u.str, value->n);
}

static bool
check_array(Validator *v, const Json *schema, int32_t env, const Json *value, Eval *eval)
{
	const Json *prefix = dsv3_gr_json_get(schema, "prefixItems");
	const Json *items = dsv3_gr_json_get(schema, "items");
	const Json *rest = items;
	const Json *contains = dsv3_gr_json_get(schema, "contains");
	const Json *unique = dsv3_gr_json_get(schema, "uniqueItems");
	uint32_t nprefix = 0;
	int64_t n;

	if (limit(schema, "minItems", &n) && value->n < n)
		return false;
	if (limit(schema, "maxItems", &n) && value->n > n)
		return false;
	if (items != NULL && items->kind == JSON_ARRAY_)
	{
		prefix = items;
		rest = dsv3_gr_json_get(schema, "additionalItems");
	}
	if (prefix != NULL && prefix->kind == JSON_ARRAY_)
		nprefix = prefix->n;
	for (uint32_t i = 0; i < nprefix && i < value->n; i++)
	{
		if (!check_apart(v, prefix->u.items[i], env, value->u.items[i]))
			return false;
		mark(eval, i);
	}
	for (uint32_t i = nprefix; rest != NULL && i < value->n; i++)
	{
		if (!check_apart(v, rest, env, value->u.items[i]))
			return false;
		mark(eval, i);
	}
	if (contains != NULL)
	{
		int64_t found = 0;
		int64_t min = 1;
		Draft draft = dsv3_gr_schema_draft(v->doc, schema);

		for (uint32_t i = 0; i < value->n; i++)
			if (check_apart(v, contains, env, value->u.items[i]))
			{
				found++;
				if (draft == DRAFT_AUTO || draft == DRAFT_2020)
					mark(eval, i);
			}
		limit(schema, "minContains", &min);
		if (found < min)
			return false;
		if (limit(schema, "maxContains", &n) && found > n)
			return false;
	}
	if (unique != NULL && unique->kind == JSON_TRUE_)
		for (uint32_t i = 0; i < value->n; i++)
			for (uint32_t k = 0; k < i; k++)
			{
				gr_tick(v->ctx);
				if (dsv3_gr_json_equal(value->u.items[i], value->u.items[k]))
					return false;
			}
	return true;
}

static bool
check_object(Validator *v, const Json *schema, int32_t env, const Json *value, Eval *eval)
{
	const Json *properties = dsv3_gr_json_get(schema, "properties");
	const Json *patterns = dsv3_gr_json_get(schema, "patternProperties");
	const Json *additional = dsv3_gr_json_get(schema, "additionalProperties");
	const Json *names = dsv3_gr_json_get(schema, "propertyNames");
	const Json *k;
	int64_t n;

	if (limit(schema, "minProperties", &n) && value->n < n)
		return false;
	if (limit(schema, "maxProperties", &n) && value->n > n)
		return false;
	k = dsv3_gr_json_get(schema, "required");
	for (uint32_t i = 0; k != NULL && k->kind == JSON_ARRAY_ && i < k->n; i++)
		if (k->u.items[i]->kind == JSON_STRING_ &&
			dsv3_gr_json_get_n(value, k->u.items[i]->u.str, k->u.items[i]->n) == NULL)
			return false;
	for (uint32_t i = 0; i < value->n; i++)
	{
		const JsonMember *m = &value->u.members[i];
		const Json *sub = dsv3_gr_json_get_n(properties, m->key, m->keylen);
		bool found = sub != NULL;

		if (names != NULL)
		{
			Json *name = dsv3_gr_json_new(v->ctx->arena, JSON_STRING_);

			name->u.str = m->key;
			name->n = m->keylen;
			if (!check_apart(v, names, env, name))
				return false;
		}
		if (sub != NULL && !check_apart(v, sub, env, m->value))
			return false;
		for (uint32_t p = 0; patterns != NULL && patterns->kind == JSON_OBJECT_ && p < patterns->n; p++)
			if (dsv3_validate_pattern(v, patterns->u.members[p].key, patterns->u.members[p].keylen, m->key,
									  m->keylen))
			{
				found = true;
				if (!check_apart(v, patterns->u.members[p].value, env, m->value))
					return false;
			}
		if (!found && additional != NULL)
		{
			found = true;
			if (!check_apart(v, additional, env, m->value))
				return false;
		}
		if (found)
			mark(eval, i);
	}
	for (int which = 0; which < 3; which++)
	{
		static const char *const keywords[] = {"dependencies", "dependentRequired", "dependentSchemas"};
		const Json *deps = dsv3_gr_json_get(schema, keywords[which]);

		for (uint32_t i = 0; deps != NULL && deps->kind == JSON_OBJECT_ && i < deps->n; i++)
		{
			const Json *dep = deps->u.members[i].value;

			if (dsv3_gr_json_get_n(value, deps->u.members[i].key, deps->u.members[i].keylen) == NULL)
				continue;
			if (dep->kind == JSON_ARRAY_)
			{
				for (uint32_t q = 0; q < dep->n; q++)
					if (dep->u.items[q]->kind == JSON_STRING_ &&
						dsv3_gr_json_get_n(value, dep->u.items[q]->u.str, dep->u.items[q]->n) == NULL)
						return false;
			}
			else if (which != 1 && !check_here(v, dep, env, value, eval))
				return false;
		}
	}
	return true;
}

static bool
check(Validator *v, const Json *schema, int32_t env, const Json *value, Eval *eval)
{
	const Json *k;
	const Json *unevaluated;
	Draft draft;
	Eval own = {NULL};
	Eval *up = eval;
	bool ok = true;

	if (schema->kind == JSON_TRUE_)
		return true;
	if (schema->kind == JSON_FALSE_)
		return false;
	if (schema->kind != JSON_OBJECT_)
	{
		v->ctx->at = schema;
		v->ctx->keyword = NULL;
		dsv3_gr_fail(v->ctx, DSV3_ERR_INVALID_PARAMETER, NULL, "schema is neither an object nor a boolean");
	}
	if (++v->depth > MAX_VALIDATE_DEPTH)
	{
		v->ctx->at = schema;
		v->ctx->keyword = "$ref";
		dsv3_gr_fail(v->ctx, DSV3_ERR_INVALID_PARAMETER, NULL,
					 "references run in a circle, or values nest too deeply");
	}
	gr_tick(v->ctx);
	if (!schema->schema_seen)
		dsv3_gr_schema_index(v->doc, (Json *) (uintptr_t) schema, 0);
	env = dsv3_gr_schema_enter(v->doc, env, schema);
	draft = dsv3_gr_schema_draft(v->doc, schema);
	if (draft != DRAFT_AUTO && draft <= DRAFT_7 && dsv3_gr_json_get(schema, "$ref") != NULL)
	{
		ok = check(v, dsv3_gr_schema_reference(v->doc, schema, "$ref", env), env, value, eval);
		v->depth--;
		return ok;
	}
	unevaluated =
		dsv3_gr_json_get(schema, value->kind == JSON_ARRAY_ ? "unevaluatedItems" : "unevaluatedProperties");
	if (value->kind != JSON_ARRAY_ && value->kind != JSON_OBJECT_)
		unevaluated = NULL;
	if (unevaluated != NULL)
	{
		own.marks = dsv3_gr_arena_alloc(v->ctx->arena, value->n + 1);
		eval = &own;
	}

	k = dsv3_gr_json_get(schema, "type");
	if (k != NULL && k->kind == JSON_STRING_)
		ok = type_is(value, k->u.str, draft);
	else if (k != NULL && k->kind == JSON_ARRAY_)
	{
		ok = false;
		for (uint32_t i = 0; i < k->n; i++)
			ok = ok || (k->u.items[i]->kind == JSON_STRING_ ? type_is(value, k->u.items[i]->u.str, draft)
															: k->u.items[i]->kind == JSON_OBJECT_ &&
																  check_apart(v, k->u.items[i], env, value));
	}
	k = dsv3_gr_json_get(schema, "const");
	if (ok && k != NULL && !(schema == v->listed && v->depth == 1))
		ok = dsv3_gr_json_equal(k, value);
	k = dsv3_gr_json_get(schema, "enum");
	if (ok && k != NULL && !(schema == v->listed && v->depth == 1) && k->kind == JSON_ARRAY_)
	{
		ok = false;
		for (uint32_t i = 0; i < k->n && !ok; i++)
			ok = dsv3_gr_json_equal(k->u.items[i], value);
	}
	if (ok && value->kind == JSON_NUMBER_)
		ok = check_number(v, schema, value);
	if (ok && value->kind == JSON_STRING_)
		ok = check_string(v, schema, value);
	if (ok && value->kind == JSON_ARRAY_)
		ok = check_array(v, schema, env, value, eval);
	if (ok && value->kind == JSON_OBJECT_)
		ok = check_object(v, schema, env, value, eval);
	for (int i = 0; i < 3 && ok; i++)
	{
		static const char *const refs[] = {"$ref", "$dynamicRef", "$recursiveRef"};

		if (dsv3_gr_json_get(schema, refs[i]) != NULL)
			ok = check_here(v, dsv3_gr_schema_reference(v->doc, schema, refs[i], env), env, value, eval);
	}
	k = dsv3_gr_json_get(schema, "allOf");
	for (uint32_t i = 0; ok && k != NULL && k->kind == JSON_ARRAY_ && i < k->n; i++)
		ok = check_here(v, k->u.items[i], env, value, eval);
	k = dsv3_gr_json_get(schema, "anyOf");
	if (ok && k != NULL && k->kind == JSON_ARRAY_)
	{
		ok = false;
		for (uint32_t i = 0; i < k->n && !(ok && eval->marks == NULL); i++)
			ok = check_here(v, k->u.items[i], env, value, eval) || ok;
	}
	k = dsv3_gr_json_get(schema, "oneOf");
	if (ok && k != NULL && k->kind == JSON_ARRAY_)
	{
		int found = 0;

		for (uint32_t i = 0; i < k->n && found < 2; i++)
			found += check_here(v, k->u.items[i], env, value, eval);
		ok = found == 1;
	}
	k = dsv3_gr_json_get(schema, "not");
	if (ok && k != NULL)
		ok = !check_apart(v, k, env, value);
	k = dsv3_gr_json_get(schema, "if");
	if (ok && k != NULL)
	{
		const Json *branch = dsv3_gr_json_get(schema, check_here(v, k, env, value, eval) ? "then" : "else");

		if (branch != NULL)
			ok = check_here(v, branch, env, value, eval);
	}
	if (ok && unevaluated != NULL)
	{
		for (uint32_t i = 0; i < value->n && ok; i++)
			if (!own.marks[i])
			{
				ok = check_apart(v, unevaluated, env,
								 value->kind == JSON_ARRAY_ ? value->u.items[i] : value->u.members[i].value);
				own.marks[i] = true;
			}
	}
	if (ok && up != eval && up->marks != NULL)
		for (uint32_t i = 0; i < value->n; i++)
			up->marks[i] |= own.marks[i];
	v->depth--;
	return ok;
}

bool
dsv3_validate_value(Validator *v, const Json *schema, int32_t env, const Json *value)
{
	v->depth = 0;
	return check_apart(v, schema, env, value);
}
