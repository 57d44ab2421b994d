/*
 * keywords.c
 *	  Reading the values of keywords, with a refusal that names the place when one makes no sense, and adding plain
 *	  conditions to a Con.
 */
#include <string.h>

#include "grammar/expand.h"

bool
dsv3_kw_limit_of(Ir *ir, const Json *schema, const char *keyword, int32_t *out)
{
	const Json *k = dsv3_gr_json_get(schema, keyword);
	int64_t v;

	if (k == NULL)
		return false;
	if (k->kind != JSON_NUMBER_ || !dsv3_gr_dec_is_integer(k->u.num) || k->u.num->neg)
	{
		ir->ctx->at = schema;
		ir->ctx->keyword = keyword;
		dsv3_gr_fail(ir->ctx, DSV3_ERR_INVALID_PARAMETER, NULL, "\"%s\" is not a non-negative integer",
					 keyword);
	}
	if (!dsv3_gr_dec_to_int64(k->u.num, &v) || v > 1000000000)
		v = 1000000000;
	*out = (int32_t) v;
	return true;
}

const char *
dsv3_kw_string_of(Ir *ir, const Json *schema, const char *keyword, uint32_t *len)
{
	const Json *k = dsv3_gr_json_get(schema, keyword);

	if (k == NULL)
		return NULL;
	if (k->kind != JSON_STRING_)
	{
		ir->ctx->at = schema;
		ir->ctx->keyword = keyword;
		dsv3_gr_fail(ir->ctx, DSV3_ERR_INVALID_PARAMETER, NULL, "\"%s\" is not a string", keyword);
	}
	*len = k->n;
	return k->u.str;
}

const Json *
dsv3_kw_kind_of(Ir *ir, const Json *schema, const char *keyword, JsonKind kind, const char *what)
{
	const Json *k = dsv3_gr_json_get(schema, keyword);

	if (k != NULL && k->kind != kind)
	{
		ir->ctx->at = schema;
		ir->ctx->keyword = keyword;
		dsv3_gr_fail(ir->ctx, DSV3_ERR_INVALID_PARAMETER, NULL, "\"%s\" is not %s", keyword, what);
	}
	return k;
}

static uint8_t
type_bit(Ir *ir, const Json *schema, const Json *name, bool *integer)
{
	static const struct
	{
		const char *name;
		uint8_t bits;
	} types[] = {{"null", T_NULL},  {"boolean", T_FALSE | T_TRUE},
				 {"number", T_NUM}, {"string", T_STR},
				 {"array", T_ARR},  {"object", T_OBJ},
				 {"any", T_ALL}};

	if (name->kind == JSON_STRING_)
	{
		for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
			if (strcmp(types[i].name, name->u.str) == 0)
			{
				if (types[i].bits & T_NUM)
					*integer = false;
				return types[i].bits;
			}
		if (strcmp(name->u.str, "integer") == 0)
			return T_NUM;
	}
	ir->ctx->at = schema;
	ir->ctx->keyword = "type";
	dsv3_gr_fail(ir->ctx, DSV3_ERR_INVALID_PARAMETER,
				 "Types are null, boolean, integer, number, string, array and object.",
				 "unknown type \"%.100s\"", name->kind == JSON_STRING_ ? name->u.str : "?");
}

/* The types a schema's "type" allows; *integer: numbers only when integral. */
uint8_t
dsv3_kw_types_of(Ir *ir, const Json *schema, bool *integer)
{
	const Json *k = dsv3_gr_json_get(schema, "type");
	uint8_t bits = 0;

	*integer = false;
	if (k == NULL)
		return T_ALL;
	*integer = true;
	if (k->kind == JSON_ARRAY_)
		for (uint32_t i = 0; i < k->n; i++)
			bits |= type_bit(ir, schema, k->u.items[i], integer);
	else
		bits = type_bit(ir, schema, k, integer);
	*integer = *integer && (bits & T_NUM) != 0;
	return bits;
}

/* Bounds of a numeric schema, both spellings of exclusive*. */
void
dsv3_kw_number_bounds(Ir *ir, const Json *schema, NumSpec *spec)
{
	const Json *lo = dsv3_kw_kind_of(ir, schema, "minimum", JSON_NUMBER_, "a number");
	const Json *hi = dsv3_kw_kind_of(ir, schema, "maximum", JSON_NUMBER_, "a number");
	const Json *xlo = dsv3_gr_json_get(schema, "exclusiveMinimum");
	const Json *xhi = dsv3_gr_json_get(schema, "exclusiveMaximum");

	if (lo != NULL)
	{
		spec->lo = lo->u.num;
		spec->lo_open = xlo != NULL && xlo->kind == JSON_TRUE_;
	}
	if (hi != NULL)
	{
		spec->hi = hi->u.num;
		spec->hi_open = xhi != NULL && xhi->kind == JSON_TRUE_;
	}
	if (xlo != NULL && xlo->kind == JSON_NUMBER_ &&
		(spec->lo == NULL || dsv3_gr_dec_compare(xlo->u.num, spec->lo) >= 0))
	{
		spec->lo = xlo->u.num;
		spec->lo_open = true;
	}
	if (xhi != NULL && xhi->kind == JSON_NUMBER_ &&
		(spec->hi == NULL || dsv3_gr_dec_compare(xhi->u.num, spec->hi) <= 0))
	{
		spec->hi = xhi->u.num;
		spec->hi_open = true;
	}
}

const Json *
dsv3_kw_multiple_of(Ir *ir, const Json *schema)
{
	const Json *k = dsv3_kw_kind_of(ir, schema, "multipleOf", JSON_NUMBER_, "a number");

	if (k != NULL && (k->u.num->neg || k->u.num->ndigits == 0))
	{
		ir->ctx->at = schema;
		ir->ctx->keyword = "multipleOf";
		dsv3_gr_fail(ir->ctx, DSV3_ERR_INVALID_PARAMETER, NULL, "\"multipleOf\" is not greater than zero");
	}
	return k;
}

void
dsv3_kw_add_grid(Ir *ir, Con *con, const Dec *step, bool negated)
{
	NumGrid *grid = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(NumGrid));

	grid->step = step;
	grid->negated = negated;
	grid->next = con->num.grids;
	con->num.grids = grid;
}

void
dsv3_kw_add_str_rule(Ir *ir, Con *con, const char *text, KeyPattern *pattern, bool negated)
{
	StrRule *rule = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(StrRule));

	rule->text = text;
	rule->pattern = pattern;
	rule->negated = negated;
	rule->next = con->str;
	con->str = rule;
}

void
dsv3_kw_add_item_rule(Ir *ir, Con *con, int32_t from, int32_t to, int32_t lit)
{
	ItemRule *rule = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(ItemRule));

	rule->from = from;
	rule->to = to;
	rule->lit = lit;
	rule->next = con->items;
	con->items = rule;
}

void
dsv3_kw_add_contains(Ir *ir, Con *con, int32_t from, int32_t lit, int32_t min, int32_t max)
{
	ContainsRule *rule = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(ContainsRule));

	rule->from = from;
	rule->lit = lit;
	rule->min = min;
	rule->max = max;
	rule->next = con->contains;
	con->contains = rule;
}

KeyRule *
dsv3_kw_key_rule(Ir *ir, KeyRule **list, int kind, int32_t lit)
{
	KeyRule *rule = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(KeyRule));

	rule->kind = kind;
	rule->lit = lit;
	rule->next = *list;
	*list = rule;
	return rule;
}

void
dsv3_kw_add_name_rule(Ir *ir, Con *con, const char *name, uint32_t len, int32_t lit)
{
	KeyRule *rule = dsv3_kw_key_rule(ir, &con->keys, KEY_NAME, lit);

	rule->name = name;
	rule->len = len;
}

void
dsv3_kw_pattern_at(Ir *ir, const Json *schema, const char *keyword)
{
	ir->ctx->at = schema;
	ir->ctx->keyword = keyword;
}

/* The tuple part of an array schema: prefixItems, or items as an array. */
const Json *
dsv3_kw_tuple_of(const Json *schema, const Json **rest, const char **rest_keyword)
{
	const Json *items = dsv3_gr_json_get(schema, "items");
	const Json *prefix = dsv3_gr_json_get(schema, "prefixItems");

	*rest = items;
	*rest_keyword = "items";
	if (items != NULL && items->kind == JSON_ARRAY_)
	{
		*rest = dsv3_gr_json_get(schema, "additionalItems");
		*rest_keyword = "additionalItems";
		prefix = items;
	}
	if (prefix != NULL && prefix->kind != JSON_ARRAY_)
		prefix = NULL;
	return prefix;
}

void
dsv3_kw_check_tuple(Ir *ir, const Json *schema, const Json *prefix)
{
	if (prefix != NULL && prefix->n > IR_MAX_TUPLE)
	{
		dsv3_kw_pattern_at(ir, schema, "prefixItems");
		dsv3_gr_fail(ir->ctx, DSV3_ERR_TOO_LARGE, NULL, "tuple has more than %d elements", IR_MAX_TUPLE);
	}
}

/* Names and patterns an object schema declares: the complement is where additionalProperties applies. */
void
dsv3_kw_declared_keys(Ir *ir, const Json *schema, Name **names, PatternList **patterns)
{
	const Json *k = dsv3_kw_kind_of(ir, schema, "properties", JSON_OBJECT_, "an object");

	for (uint32_t i = 0; k != NULL && i < k->n; i++)
		*names = dsv3_gr_name_add(ir, *names, k->u.members[i].key, k->u.members[i].keylen);
	k = dsv3_kw_kind_of(ir, schema, "patternProperties", JSON_OBJECT_, "an object");
	for (uint32_t i = 0; k != NULL && i < k->n; i++)
	{
		PatternList *cell = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(PatternList));

		dsv3_kw_pattern_at(ir, k->u.members[i].value, "patternProperties");
		cell->pattern = dsv3_ir_key_pattern(ir, k->u.members[i].key, k->u.members[i].keylen);
		cell->next = *patterns;
		*patterns = cell;
	}
}

Name *
dsv3_kw_reverse_names(Name *names)
{
	Name *out = NULL;

	while (names != NULL)
	{
		Name *next = names->next;

		names->next = out;
		out = names;
		names = next;
	}
	return out;
}

/* The key order an object schema asks for. */
Name *
dsv3_kw_order_of(Ir *ir, const Json *schema)
{
	const Json *given = dsv3_gr_json_get(schema, "x-order");
	const Json *required = dsv3_gr_json_get(schema, "required");
	const Json *properties = dsv3_gr_json_get(schema, "properties");
	Name *order = NULL;

	if (given == NULL || given->kind != JSON_ARRAY_)
		given = dsv3_gr_json_get(schema, "propertyOrdering");
	for (int pass = 0; pass < 2; pass++)
	{
		const Json *list = pass == 0 ? given : required;

		if (list == NULL || list->kind != JSON_ARRAY_ ||
			(pass == 1 && ir->options.key_order != DSV3_ORDER_REQUIRED))
			continue;
		for (uint32_t i = 0; i < list->n; i++)
			if (list->u.items[i]->kind == JSON_STRING_)
				order = dsv3_gr_name_add(ir, order, list->u.items[i]->u.str, list->u.items[i]->n);
	}
	for (uint32_t i = 0; properties != NULL && properties->kind == JSON_OBJECT_ && i < properties->n; i++)
		order = dsv3_gr_name_add(ir, order, properties->u.members[i].key, properties->u.members[i].keylen);
	return dsv3_kw_reverse_names(order);
}
