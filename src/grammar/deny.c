/*
 * deny.c
 *	  Denied schemas and constants: every way not to satisfy a keyword, as a disjunction of plain conditions.
 *
 * A way that plain conditions cannot express is left out, with a notice; that makes the language smaller, never larger.
 * "format" is never a way: a reader may take it for a comment.
 */
#include <string.h>

#include "grammar/expand.h"

static void
dropped(Ir *ir, const Json *schema, const char *keyword)
{
	ir->dropped = keyword;
	ir->ctx->at = schema;
	ir->ctx->keyword = keyword;
	dsv3_gr_notice(ir->ctx, "violating \"%s\" is not offered as a way to satisfy a negation", keyword);
}

static Con *
with_key(Ir *ir, const char *key, uint32_t len, int32_t lit)
{
	Con *con = dsv3_con_new(ir, T_OBJ);

	con->required = dsv3_gr_name_add(ir, NULL, key, len);
	dsv3_kw_add_name_rule(ir, con, key, len, lit);
	return con;
}

static Con *
without_key(Ir *ir, const char *key, uint32_t len)
{
	Con *con = dsv3_con_new(ir, T_OBJ);

	dsv3_kw_add_name_rule(ir, con, key, len, ir->lit_false);
	return con;
}

/* Every way to violate a number's, string's or array's plain keywords. */
static Con *
deny_plain(Ir *ir, const Json *schema, int32_t env)
{
	Con *out = NULL;
	Con *c;
	NumSpec spec;
	bool integer;
	uint8_t types = dsv3_kw_types_of(ir, schema, &integer);
	const Json *k;
	const Json *prefix;
	const Json *rest;
	const char *rest_keyword;
	const char *text;
	uint32_t len;
	int32_t n;

	if (types != T_ALL)
		out = dsv3_ir_join(dsv3_con_new(ir, (uint8_t) (T_ALL & ~types)), out);
	if (integer)
	{
		c = dsv3_con_new(ir, T_NUM);
		dsv3_kw_add_grid(ir, c, dsv3_gr_dec_from_int(ir->ctx->arena, 1), true);
		out = dsv3_ir_join(c, out);
	}
	memset(&spec, 0, sizeof(spec));
	dsv3_kw_number_bounds(ir, schema, &spec);
	if (spec.lo != NULL)
	{
		c = dsv3_con_new(ir, T_NUM);
		c->num.hi = spec.lo;
		c->num.hi_open = !spec.lo_open;
		out = dsv3_ir_join(c, out);
	}
	if (spec.hi != NULL)
	{
		c = dsv3_con_new(ir, T_NUM);
		c->num.lo = spec.hi;
		c->num.lo_open = !spec.hi_open;
		out = dsv3_ir_join(c, out);
	}
	k = dsv3_kw_multiple_of(ir, schema);
	if (k != NULL)
	{
		c = dsv3_con_new(ir, T_NUM);
		dsv3_kw_add_grid(ir, c, k->u.num, true);
		out = dsv3_ir_join(c, out);
	}
	if (dsv3_kw_limit_of(ir, schema, "minLength", &n) && n > 0)
	{
		c = dsv3_con_new(ir, T_STR);
		c->smax = n - 1;
		out = dsv3_ir_join(c, out);
	}
	if (dsv3_kw_limit_of(ir, schema, "maxLength", &n))
	{
		c = dsv3_con_new(ir, T_STR);
		c->smin = n + 1;
		out = dsv3_ir_join(c, out);
	}
	text = dsv3_kw_string_of(ir, schema, "pattern", &len);
	if (text != NULL)
	{
		c = dsv3_con_new(ir, T_STR);
		dsv3_kw_pattern_at(ir, schema, "pattern");
		dsv3_kw_add_str_rule(ir, c, text, dsv3_ir_key_pattern(ir, text, len), true);
		out = dsv3_ir_join(c, out);
	}
	if (dsv3_kw_limit_of(ir, schema, "minItems", &n) && n > 0)
	{
		c = dsv3_con_new(ir, T_ARR);
		c->amax = n - 1;
		out = dsv3_ir_join(c, out);
	}
	if (dsv3_kw_limit_of(ir, schema, "maxItems", &n))
	{
		c = dsv3_con_new(ir, T_ARR);
		c->amin = n + 1;
		out = dsv3_ir_join(c, out);
	}
	prefix = dsv3_kw_tuple_of(schema, &rest, &rest_keyword);
	dsv3_kw_check_tuple(ir, schema, prefix);
	for (uint32_t i = 0; prefix != NULL && i < prefix->n; i++)
	{
		c = dsv3_con_new(ir, T_ARR);
		c->amin = (int32_t) i + 1;
		dsv3_kw_add_item_rule(ir, c, (int32_t) i, (int32_t) i + 1,
							  dsv3_ir_lit(ir, prefix->u.items[i], env, false) + 1);
		out = dsv3_ir_join(c, out);
	}
	if (rest != NULL && (strcmp(rest_keyword, "items") == 0 || prefix != NULL))
	{
		int32_t from = prefix == NULL ? 0 : (int32_t) prefix->n;

		c = dsv3_con_new(ir, T_ARR);
		dsv3_kw_add_contains(ir, c, from, dsv3_ir_lit(ir, rest, env, false) + 1, 1, -1);
		out = dsv3_ir_join(c, out);
	}
	k = dsv3_gr_json_get(schema, "contains");
	if (k != NULL)
	{
		int32_t min = 1;
		int32_t max = -1;

		dsv3_kw_limit_of(ir, schema, "minContains", &min);
		dsv3_kw_limit_of(ir, schema, "maxContains", &max);
		if (min > 0)
		{
			c = dsv3_con_new(ir, T_ARR);
			dsv3_kw_add_contains(ir, c, 0, dsv3_ir_lit(ir, k, env, false), 0, min - 1);
			out = dsv3_ir_join(c, out);
		}
		if (max >= 0)
		{
			c = dsv3_con_new(ir, T_ARR);
			dsv3_kw_add_contains(ir, c, 0, dsv3_ir_lit(ir, k, env, false), max + 1, -1);
			out = dsv3_ir_join(c, out);
		}
	}
	k = dsv3_gr_json_get(schema, "uniqueItems");
	if (k != NULL && k->kind == JSON_TRUE_)
		dropped(ir, schema, "uniqueItems");
	return out;
}

static Con *
deny_object(Ir *ir, const Json *schema, int32_t env)
{
	Con *out = NULL;
	Con *c;
	const Json *k;
	int32_t n;

	k = dsv3_gr_json_get(schema, "required");
	for (uint32_t i = 0; k != NULL && k->kind == JSON_ARRAY_ && i < k->n; i++)
		if (k->u.items[i]->kind == JSON_STRING_)
			out = dsv3_ir_join(without_key(ir, k->u.items[i]->u.str, k->u.items[i]->n), out);
	if (dsv3_kw_limit_of(ir, schema, "minProperties", &n) && n > 0)
	{
		c = dsv3_con_new(ir, T_OBJ);
		c->pmax = n - 1;
		out = dsv3_ir_join(c, out);
	}
	if (dsv3_kw_limit_of(ir, schema, "maxProperties", &n))
	{
		c = dsv3_con_new(ir, T_OBJ);
		c->pmin = n + 1;
		out = dsv3_ir_join(c, out);
	}
	k = dsv3_kw_kind_of(ir, schema, "properties", JSON_OBJECT_, "an object");
	for (uint32_t i = 0; k != NULL && i < k->n; i++)
	{
		int32_t lit = dsv3_ir_lit(ir, k->u.members[i].value, env, false);

		if (lit != ir->lit_true)
			out = dsv3_ir_join(with_key(ir, k->u.members[i].key, k->u.members[i].keylen, lit + 1), out);
	}
	k = dsv3_kw_kind_of(ir, schema, "patternProperties", JSON_OBJECT_, "an object");
	for (uint32_t i = 0; k != NULL && i < k->n; i++)
	{
		int32_t lit = dsv3_ir_lit(ir, k->u.members[i].value, env, false);

		if (lit == ir->lit_true)
			continue;
		c = dsv3_con_new(ir, T_OBJ);
		dsv3_kw_pattern_at(ir, k->u.members[i].value, "patternProperties");
		dsv3_kw_key_rule(ir, &c->exists, KEY_PATTERN, lit + 1)->pattern =
			dsv3_ir_key_pattern(ir, k->u.members[i].key, k->u.members[i].keylen);
		out = dsv3_ir_join(c, out);
	}
	k = dsv3_gr_json_get(schema, "additionalProperties");
	if (k != NULL && dsv3_ir_lit(ir, k, env, false) != ir->lit_true)
	{
		KeyRule *rule;

		c = dsv3_con_new(ir, T_OBJ);
		rule = dsv3_kw_key_rule(ir, &c->exists, KEY_REST, dsv3_ir_lit(ir, k, env, false) + 1);
		dsv3_kw_declared_keys(ir, schema, &rule->names, &rule->patterns);
		out = dsv3_ir_join(c, out);
	}
	if (dsv3_gr_json_get(schema, "propertyNames") != NULL)
		dropped(ir, schema, "propertyNames");
	for (int w = 0; w < 3; w++)
	{
		static const char *const keywords[] = {"dependencies", "dependentRequired", "dependentSchemas"};
		const Json *deps = dsv3_gr_json_get(schema, keywords[w]);

		for (uint32_t i = 0; deps != NULL && deps->kind == JSON_OBJECT_ && i < deps->n; i++)
		{
			const Json *dep = deps->u.members[i].value;
			const char *key = deps->u.members[i].key;
			uint32_t len = deps->u.members[i].keylen;

			if (dep->kind == JSON_ARRAY_)
			{
				for (uint32_t q = 0; q < dep->n; q++)
					if (dep->u.items[q]->kind == JSON_STRING_)
						out = dsv3_ir_join(
							dsv3_ir_and(ir, with_key(ir, key, len, ir->lit_true),
										without_key(ir, dep->u.items[q]->u.str, dep->u.items[q]->n)),
							out);
			}
			else if (w != 1)
				out =
					dsv3_ir_join(dsv3_ir_and(ir, with_key(ir, key, len, ir->lit_true),
											 dsv3_ir_expand(ir, dsv3_ir_lit(ir, dep, env, false) + 1, false)),
								 out);
		}
	}
	return out;
}

Con *
dsv3_ir_deny_schema(Ir *ir, const Json *schema, int32_t env)
{
	Draft draft = dsv3_gr_schema_draft(ir->doc, schema);
	Con *out;
	const Json *k;

	if (draft != DRAFT_AUTO && draft <= DRAFT_7 && dsv3_gr_json_get(schema, "$ref") != NULL)
		return dsv3_ir_expand(
			ir, dsv3_ir_lit(ir, dsv3_gr_schema_reference(ir->doc, schema, "$ref", env), env, false) + 1,
			false);
	out = dsv3_ir_join(deny_plain(ir, schema, env), deny_object(ir, schema, env));
	for (int i = 0; i < 3; i++)
		if (dsv3_gr_json_get(schema, dsv3_reference_keywords[i]) != NULL)
		{
			Json *target = dsv3_gr_schema_reference(ir->doc, schema, dsv3_reference_keywords[i], env);

			out = dsv3_ir_join(
				dsv3_ir_copy_list(ir, dsv3_ir_expand(ir, dsv3_ir_lit(ir, target, env, false) + 1, false)),
				out);
		}
	k = dsv3_gr_json_get(schema, "const");
	if (k != NULL)
		out = dsv3_ir_join(dsv3_ir_deny_value(ir, k), out);
	k = dsv3_gr_json_get(schema, "enum");
	if (k != NULL && k->kind == JSON_ARRAY_)
	{
		Con *all = dsv3_ir_anything(ir);

		for (uint32_t i = 0; i < k->n && all != NULL; i++)
			all = dsv3_ir_and(ir, all, dsv3_ir_deny_value(ir, k->u.items[i]));
		out = dsv3_ir_join(all, out);
	}
	k = dsv3_gr_json_get(schema, "allOf");
	for (uint32_t i = 0; k != NULL && k->kind == JSON_ARRAY_ && i < k->n; i++)
		out = dsv3_ir_join(
			dsv3_ir_copy_list(ir, dsv3_ir_expand(ir, dsv3_ir_lit(ir, k->u.items[i], env, false) + 1, false)),
			out);
	for (int w = 0; w < 2; w++)
	{
		k = dsv3_gr_json_get(schema, w == 0 ? "anyOf" : "oneOf");
		if (k != NULL && k->kind == JSON_ARRAY_)
		{
			Con *none = dsv3_ir_anything(ir);

			for (uint32_t i = 0; i < k->n && none != NULL; i++)
				none = dsv3_ir_and(ir, none,
								   dsv3_ir_expand(ir, dsv3_ir_lit(ir, k->u.items[i], env, false) + 1, false));
			out = dsv3_ir_join(none, out);
			for (uint32_t i = 0; w == 1 && i < k->n; i++)
				for (uint32_t j = 0; j < i; j++)
					out = dsv3_ir_join(
						dsv3_ir_and(ir, dsv3_ir_expand(ir, dsv3_ir_lit(ir, k->u.items[i], env, false), false),
									dsv3_ir_expand(ir, dsv3_ir_lit(ir, k->u.items[j], env, false), false)),
						out);
		}
	}
	k = dsv3_gr_json_get(schema, "not");
	if (k != NULL)
		out = dsv3_ir_join(dsv3_ir_copy_list(ir, dsv3_ir_expand(ir, dsv3_ir_lit(ir, k, env, false), false)),
						   out);
	k = dsv3_gr_json_get(schema, "if");
	if (k != NULL)
		for (int w = 0; w < 2; w++)
		{
			const Json *branch = dsv3_gr_json_get(schema, w == 0 ? "then" : "else");

			if (branch != NULL)
				out = dsv3_ir_join(
					dsv3_ir_and(ir, dsv3_ir_expand(ir, dsv3_ir_lit(ir, k, env, false) + w, false),
								dsv3_ir_expand(ir, dsv3_ir_lit(ir, branch, env, false) + 1, false)),
					out);
		}
	if (dsv3_gr_json_get(schema, "unevaluatedProperties") != NULL)
		dropped(ir, schema, "unevaluatedProperties");
	if (dsv3_gr_json_get(schema, "unevaluatedItems") != NULL)
		dropped(ir, schema, "unevaluatedItems");
	return out;
}

/* ---- constants ---- */

Con *
dsv3_ir_deny_value(Ir *ir, const Json *value)
{
	static const uint8_t bits[] = {T_NULL, T_FALSE, T_TRUE, T_NUM, T_STR, T_ARR, T_OBJ};
	uint8_t bit = bits[value->kind];
	Con *others = dsv3_con_new(ir, (uint8_t) (T_ALL & ~bit));
	Con *out;
	Con *c;

	switch (value->kind)
	{
		case JSON_NUMBER_:
			others->types |= T_NUM;
			others->num.hi = value->u.num;
			others->num.hi_open = true;
			c = dsv3_con_new(ir, T_NUM);
			c->num.lo = value->u.num;
			c->num.lo_open = true;
			return dsv3_ir_join(others, c);
		case JSON_STRING_:
			others->types |= T_STR;
			others->excluded = dsv3_gr_name_add(ir, NULL, value->u.str, value->n);
			return others;
		case JSON_ARRAY_:
			out = others;
			if (value->n > 0)
			{
				c = dsv3_con_new(ir, T_ARR);
				c->amax = (int32_t) value->n - 1;
				out = dsv3_ir_join(c, out);
			}
			c = dsv3_con_new(ir, T_ARR);
			c->amin = (int32_t) value->n + 1;
			out = dsv3_ir_join(c, out);
			for (uint32_t i = 0; i < value->n; i++)
			{
				c = dsv3_con_new(ir, T_ARR);
				c->amin = (int32_t) i + 1;
				dsv3_kw_add_item_rule(ir, c, (int32_t) i, (int32_t) i + 1,
									  dsv3_ir_lit(ir, value->u.items[i], 0, true) + 1);
				out = dsv3_ir_join(c, out);
			}
			return out;
		case JSON_OBJECT_:
		{
			KeyRule *rule;

			out = others;
			c = dsv3_con_new(ir, T_OBJ);
			rule = dsv3_kw_key_rule(ir, &c->exists, KEY_REST, ir->lit_true);
			for (uint32_t i = 0; i < value->n; i++)
			{
				const JsonMember *m = &value->u.members[i];

				rule->names = dsv3_gr_name_add(ir, rule->names, m->key, m->keylen);
				out = dsv3_ir_join(without_key(ir, m->key, m->keylen), out);
				out = dsv3_ir_join(with_key(ir, m->key, m->keylen, dsv3_ir_lit(ir, m->value, 0, true) + 1),
								   out);
			}
			return dsv3_ir_join(out, c);
		}
		default:
			return others;
	}
}
