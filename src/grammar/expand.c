/*
 * expand.c
 *	  Literals to disjunctions of plain conditions: what each keyword means, asserted and denied (ir.h).
 *
 * Expansions are remembered, so a schema reached by many references is read once. A literal met again while it is being
 * expanded (a reference loop that consumes nothing) counts as impossible when asserted: the least solution.
 */
#include <string.h>

#include "grammar/expand.h"

int32_t
dsv3_ir_lit(Ir *ir, const Json *value, int32_t env, bool constant)
{
	int32_t key[4];
	uint64_t p = (uint64_t) (uintptr_t) value;

	if (!constant)
	{
		if (value->kind == JSON_TRUE_ || (value->kind == JSON_OBJECT_ && value->n == 0))
			value = ir->doc->true_schema;
		else if (value->kind == JSON_FALSE_)
			value = ir->doc->false_schema;
		else
			value = dsv3_ir_twin(ir, value);
		if (value == ir->doc->true_schema || value == ir->doc->false_schema)
			env = 0;
		p = (uint64_t) (uintptr_t) value;
	}
	key[0] = (int32_t) (uint32_t) p;
	key[1] = (int32_t) (uint32_t) (p >> 32);
	key[2] = env;
	key[3] = constant;
	return dsv3_gr_interner_get(&ir->lits, key, 4, NULL) * 2;
}

static const Json *
lit_value(const Ir *ir, int32_t lit, int32_t *env, bool *constant)
{
	int32_t n;
	const int32_t *key = interner_key(&ir->lits, lit >> 1, &n);

	*env = key[2];
	*constant = key[3] != 0;
	return (const Json *) (uintptr_t) ((uint64_t) (uint32_t) key[0] | (uint64_t) (uint32_t) key[1] << 32);
}

Con *
dsv3_ir_join(Con *a, Con *b)
{
	Con *last = a;

	if (a == NULL)
		return b;
	while (last->next != NULL)
		last = last->next;
	last->next = b;
	return a;
}

Con *
dsv3_ir_copy_list(Ir *ir, const Con *list)
{
	Con *head = NULL;
	Con **tail = &head;

	for (; list != NULL; list = list->next)
	{
		*tail = dsv3_gr_arena_dup(ir->ctx->arena, list, sizeof(Con));
		tail = &(*tail)->next;
		*tail = NULL;
		gr_tick(ir->ctx);
	}
	return head;
}

Con *
dsv3_ir_and(Ir *ir, Con *a, Con *b)
{
	Con *head = NULL;
	Con **tail = &head;
	int32_t n = 0;

	for (Con *x = a; x != NULL; x = x->next)
		for (Con *y = b; y != NULL; y = y->next)
		{
			Con *c = dsv3_con_and(ir, x, y);

			gr_tick(ir->ctx);
			if (c == NULL || ((a->next != NULL || b->next != NULL) && dsv3_con_impossible(ir, c, 3)))
				continue;
			if (++n > IR_MAX_CONS)
				dsv3_gr_fail(ir->ctx, DSV3_ERR_TOO_LARGE,
							 "Use fewer combinations of anyOf, oneOf, not and if.",
							 "schema combines into more than %d alternatives", IR_MAX_CONS);
			*tail = c;
			tail = &c->next;
		}
	return head;
}

Con *
dsv3_ir_anything(Ir *ir)
{
	return dsv3_con_new(ir, T_ALL);
}

/* The plain keywords of an asserted schema, as one Con. */
static Con *
plain_keywords(Ir *ir, const Json *schema, int32_t env)
{
	bool integer;
	Con *con = dsv3_con_new(ir, dsv3_kw_types_of(ir, schema, &integer));
	const Json *prefix;
	const Json *rest;
	const char *rest_keyword;
	const Json *k;
	const char *text;
	uint32_t len;
	int32_t n;

	con->num.integer = integer;
	dsv3_kw_number_bounds(ir, schema, &con->num);
	k = dsv3_kw_multiple_of(ir, schema);
	if (k != NULL)
		dsv3_kw_add_grid(ir, con, k->u.num, false);

	if (dsv3_kw_limit_of(ir, schema, "minLength", &n))
		con->smin = n;
	if (dsv3_kw_limit_of(ir, schema, "maxLength", &n))
		con->smax = n;
	text = dsv3_kw_string_of(ir, schema, "pattern", &len);
	if (text != NULL && (con->types & T_STR) != 0)
	{
		dsv3_kw_pattern_at(ir, schema, "pattern");
		dsv3_kw_add_str_rule(ir, con, text, dsv3_ir_key_pattern(ir, text, len), false);
	}
	k = dsv3_gr_json_get(schema, "format");
	if (k != NULL && k->kind == JSON_STRING_ && !ir->options.format_annotation)
	{
		bool number = strcmp(k->u.str, "int32") == 0 || strcmp(k->u.str, "int64") == 0;

		dsv3_kw_pattern_at(ir, schema, "format");
		if ((con->types & T_STR) != 0 && dsv3_format_known(k->u.str))
			dsv3_kw_add_str_rule(ir, con, k->u.str, NULL, false);
		else if (number && (con->types & T_NUM) != 0)
		{
			bool wide = strcmp(k->u.str, "int64") == 0;
			Con *range = dsv3_con_new(ir, T_ALL);

			range->num.integer = true;
			range->num.lo = dsv3_gr_dec_parse(ir->ctx->arena, wide ? "-9223372036854775808" : "-2147483648",
											  wide ? 20 : 11);
			range->num.hi = dsv3_gr_dec_parse(ir->ctx->arena, wide ? "9223372036854775807" : "2147483647",
											  wide ? 19 : 10);
			con = dsv3_con_and(ir, con, range);
			if (con == NULL)
				return NULL;
		}
		else if (!number && (con->types & T_STR) != 0)
			dsv3_gr_notice(ir->ctx, "format \"%.60s\" is not known and is not enforced", k->u.str);
	}

	if (dsv3_kw_limit_of(ir, schema, "minItems", &n))
		con->amin = n;
	if (dsv3_kw_limit_of(ir, schema, "maxItems", &n))
		con->amax = n;
	k = dsv3_gr_json_get(schema, "uniqueItems");
	con->unique = k != NULL && k->kind == JSON_TRUE_;
	prefix = dsv3_kw_tuple_of(schema, &rest, &rest_keyword);
	dsv3_kw_check_tuple(ir, schema, prefix);
	for (uint32_t i = 0; prefix != NULL && i < prefix->n; i++)
		dsv3_kw_add_item_rule(ir, con, (int32_t) i, (int32_t) i + 1,
							  dsv3_ir_lit(ir, prefix->u.items[i], env, false));
	con->seen_items = prefix == NULL ? 0 : (int32_t) prefix->n;
	if (rest != NULL && (strcmp(rest_keyword, "items") == 0 || prefix != NULL))
	{
		dsv3_kw_add_item_rule(ir, con, con->seen_items, -1, dsv3_ir_lit(ir, rest, env, false));
		con->seen_all_items = true;
	}
	k = dsv3_gr_json_get(schema, "contains");
	if (k != NULL)
	{
		Draft draft = dsv3_gr_schema_draft(ir->doc, schema);
		int32_t min = 1;
		int32_t max = -1;
		int32_t lit = dsv3_ir_lit(ir, k, env, false);

		dsv3_kw_limit_of(ir, schema, "minContains", &min);
		dsv3_kw_limit_of(ir, schema, "maxContains", &max);
		if (min > 0 || max >= 0)
			dsv3_kw_add_contains(ir, con, 0, lit, min, max);
		if (draft == DRAFT_AUTO || draft == DRAFT_2020)
		{
			LitList *cell = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(LitList));

			cell->lit = lit;
			con->seen_contains = cell;
		}
	}

	if (dsv3_kw_limit_of(ir, schema, "minProperties", &n))
		con->pmin = n;
	if (dsv3_kw_limit_of(ir, schema, "maxProperties", &n))
		con->pmax = n;
	k = dsv3_gr_json_get(schema, "required");
	for (uint32_t i = 0; k != NULL && k->kind == JSON_ARRAY_ && i < k->n; i++)
		if (k->u.items[i]->kind == JSON_STRING_)
			con->required = dsv3_gr_name_add(ir, con->required, k->u.items[i]->u.str, k->u.items[i]->n);
	con->required = dsv3_kw_reverse_names(con->required);
	if ((con->types & T_OBJ) != 0)
	{
		Name *names = NULL;
		PatternList *patterns = NULL;
		const Json *properties;

		dsv3_kw_declared_keys(ir, schema, &names, &patterns);
		properties = dsv3_gr_json_get(schema, "properties");
		for (uint32_t i = 0; properties != NULL && i < properties->n; i++)
			dsv3_kw_add_name_rule(ir, con, properties->u.members[i].key, properties->u.members[i].keylen,
								  dsv3_ir_lit(ir, properties->u.members[i].value, env, false));
		k = dsv3_gr_json_get(schema, "patternProperties");
		for (uint32_t i = 0; k != NULL && i < k->n; i++)
			dsv3_kw_key_rule(ir, &con->keys, KEY_PATTERN, dsv3_ir_lit(ir, k->u.members[i].value, env, false))
				->pattern = dsv3_ir_key_pattern(ir, k->u.members[i].key, k->u.members[i].keylen);
		con->seen_names = names;
		con->seen_patterns = patterns;
		k = dsv3_gr_json_get(schema, "additionalProperties");
		if (k == NULL && ir->options.closed_objects && (properties != NULL || patterns != NULL) &&
			dsv3_gr_json_get(schema, "unevaluatedProperties") == NULL)
			k = ir->doc->false_schema;
		if (k != NULL)
		{
			KeyRule *rule = dsv3_kw_key_rule(ir, &con->keys, KEY_REST, dsv3_ir_lit(ir, k, env, false));

			rule->names = names;
			rule->patterns = patterns;
			con->seen_all = true;
		}
		k = dsv3_gr_json_get(schema, "propertyNames");
		if (k != NULL)
		{
			LitList *cell = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(LitList));

			cell->lit = dsv3_ir_lit(ir, k, env, false);
			con->names = cell;
		}
		con->order = dsv3_kw_order_of(ir, schema);
	}
	return con;
}

/* dependencies, dependentRequired, dependentSchemas: for each, (key absent) or (key present and the condition). */
static Con *
dependencies(Ir *ir, Con *list, const Json *schema, int32_t env, bool track)
{
	static const char *const keywords[] = {"dependencies", "dependentRequired", "dependentSchemas"};

	for (int w = 0; w < 3; w++)
	{
		const Json *deps = dsv3_gr_json_get(schema, keywords[w]);

		for (uint32_t i = 0; deps != NULL && deps->kind == JSON_OBJECT_ && i < deps->n; i++)
		{
			const Json *dep = deps->u.members[i].value;
			const char *key = deps->u.members[i].key;
			uint32_t len = deps->u.members[i].keylen;
			Con *absent = dsv3_ir_anything(ir);
			Con *present = dsv3_con_new(ir, T_OBJ);

			if (dep->kind == JSON_ARRAY_ && dep->n == 0)
				continue;
			dsv3_kw_add_name_rule(ir, absent, key, len, ir->lit_false);
			present->required = dsv3_gr_name_add(ir, NULL, key, len);
			if (dep->kind == JSON_ARRAY_)
			{
				for (uint32_t q = 0; q < dep->n; q++)
					if (dep->u.items[q]->kind == JSON_STRING_)
						present->required = dsv3_gr_name_add(ir, present->required, dep->u.items[q]->u.str,
															 dep->u.items[q]->n);
			}
			else if (w != 1)
				present =
					dsv3_ir_and(ir, present, dsv3_ir_expand(ir, dsv3_ir_lit(ir, dep, env, false), track));
			list = dsv3_ir_and(ir, list, dsv3_ir_join(absent, present));
		}
	}
	return list;
}

static Con *
any_of(Ir *ir, const Json *list, int32_t env, bool track)
{
	Con *out = NULL;

	if (track && list->n <= 4)
	{
		/* With annotations, a value that satisfies several branches has been seen by all of them. */
		for (uint32_t set = (1u << list->n) - 1; set > 0; set--)
		{
			Con *all = dsv3_ir_anything(ir);

			for (uint32_t i = 0; i < list->n; i++)
				if ((set >> i & 1) != 0)
					all = dsv3_ir_and(
						ir, all, dsv3_ir_expand(ir, dsv3_ir_lit(ir, list->u.items[i], env, false), true));
			out = dsv3_ir_join(all, out);
		}
		return out;
	}
	for (uint32_t i = list->n; i-- > 0;)
		out = dsv3_ir_join(
			dsv3_ir_copy_list(ir, dsv3_ir_expand(ir, dsv3_ir_lit(ir, list->u.items[i], env, false), track)),
			out);
	return out;
}

/* Do two disjunctions have a member in common, as far as can be told cheaply? */
static bool
may_overlap(Ir *ir, const Con *a, const Con *list)
{
	for (; list != NULL; list = list->next)
	{
		Con *both = dsv3_con_and(ir, a, list);

		gr_tick(ir->ctx);
		if (both != NULL && !dsv3_con_impossible(ir, both, 4))
			return true;
	}
	return false;
}

static Con *
one_of(Ir *ir, const Json *list, int32_t env, bool track)
{
	Con *out = NULL;
	Con **branches = dsv3_gr_arena_alloc(ir->ctx->arena, (list->n + 1) * sizeof(Con *));

	for (uint32_t i = 0; i < list->n; i++)
		branches[i] = dsv3_ir_expand(ir, dsv3_ir_lit(ir, list->u.items[i], env, false), track);
	for (uint32_t i = 0; i < list->n; i++)
		for (Con *c = branches[i]; c != NULL; c = c->next)
		{
			Con *one = dsv3_gr_arena_dup(ir->ctx->arena, c, sizeof(Con));

			one->next = NULL;
			for (uint32_t j = 0; j < list->n && one != NULL; j++)
			{
				bool overlap = false;

				if (j == i)
					continue;
				for (Con *o = one; o != NULL && !overlap; o = o->next)
					overlap = may_overlap(ir, o, branches[j]);
				if (overlap)
					one = dsv3_ir_and(
						ir, one,
						dsv3_ir_expand(ir, dsv3_ir_lit(ir, list->u.items[j], env, false) + 1, false));
			}
			out = dsv3_ir_join(one, out);
		}
	return out;
}

/* unevaluatedProperties and unevaluatedItems, given what each alternative has seen. */
static void
unevaluated(Ir *ir, Con *list, const Json *schema, int32_t env)
{
	const Json *props = dsv3_gr_json_get(schema, "unevaluatedProperties");
	const Json *items = dsv3_gr_json_get(schema, "unevaluatedItems");

	for (Con *c = list; c != NULL; c = c->next)
	{
		if (props != NULL && !c->seen_all)
		{
			KeyRule *rule = dsv3_kw_key_rule(ir, &c->keys, KEY_REST, dsv3_ir_lit(ir, props, env, false));

			rule->names = c->seen_names;
			rule->patterns = c->seen_patterns;
			c->seen_all = true;
		}
		if (items != NULL && !c->seen_all_items)
		{
			int32_t lit = dsv3_ir_lit(ir, items, env, false);

			if (c->seen_contains != NULL)
			{
				/* An element is fine when it satisfies unevaluatedItems or one of the contains. */
				Json *any = dsv3_gr_json_new(ir->ctx->arena, JSON_ARRAY_);
				Json *wrapper = dsv3_gr_json_new_object1(ir->ctx->arena, "anyOf", any);
				uint32_t n = 1;

				for (LitList *l = c->seen_contains; l != NULL; l = l->next)
					n++;
				any->u.items = dsv3_gr_arena_alloc(ir->ctx->arena, n * sizeof(Json *));
				any->u.items[any->n++] = (Json *) (uintptr_t) items;
				for (LitList *l = c->seen_contains; l != NULL; l = l->next)
				{
					int32_t other_env;
					bool constant;

					any->u.items[any->n++] =
						(Json *) (uintptr_t) lit_value(ir, l->lit, &other_env, &constant);
				}
				wrapper->resource = schema->resource;
				wrapper->schema_seen = true;
				wrapper->parent = schema->parent;
				lit = dsv3_ir_lit(ir, wrapper, env, false);
			}
			dsv3_kw_add_item_rule(ir, c, c->seen_items, -1, lit);
			c->seen_all_items = true;
		}
	}
}

const char *const dsv3_reference_keywords[3] = {"$ref", "$dynamicRef", "$recursiveRef"};

/* The values of an enum or const that satisfy the whole schema. */
static Con *
listed_values(Ir *ir, const Json *schema, int32_t env)
{
	const Json *list = dsv3_kw_kind_of(ir, schema, "enum", JSON_ARRAY_, "an array");
	const Json *one = dsv3_gr_json_get(schema, "const");
	Con *con = dsv3_con_new(ir, T_ALL);
	uint32_t n = list != NULL ? list->n : 1;

	con->listed = true;
	con->values = dsv3_gr_arena_alloc(ir->ctx->arena, (n + 1) * sizeof(Json *));
	/* Of enum and const only one is given almost always; then its own members need not be looked up in it. */
	ir->validator->listed = list == NULL || one == NULL ? schema : NULL;
	for (uint32_t i = 0; i < n; i++)
	{
		const Json *value = list != NULL ? list->u.items[i] : one;

		if (dsv3_validate_value(ir->validator, schema, env, value))
			con->values[con->nvalues++] = value;
	}
	ir->validator->listed = NULL;
	return con->nvalues == 0 ? NULL : con;
}

static Con *
assert_schema(Ir *ir, const Json *schema, int32_t env, bool track)
{
	Draft draft = dsv3_gr_schema_draft(ir->doc, schema);
	const Json *k;
	Con *list;
	bool has_unevaluated;

	if (draft != DRAFT_AUTO && draft <= DRAFT_7 && dsv3_gr_json_get(schema, "$ref") != NULL)
		return dsv3_ir_expand(
			ir, dsv3_ir_lit(ir, dsv3_gr_schema_reference(ir->doc, schema, "$ref", env), env, false), track);
	if (dsv3_gr_json_get(schema, "const") != NULL || dsv3_gr_json_get(schema, "enum") != NULL)
		return listed_values(ir, schema, env);

	has_unevaluated = dsv3_gr_json_get(schema, "unevaluatedProperties") != NULL ||
					  dsv3_gr_json_get(schema, "unevaluatedItems") != NULL;
	track = track || has_unevaluated;
	list = plain_keywords(ir, schema, env);
	if (list != NULL && list->types == 0)
		list = NULL;
	for (int i = 0; i < 3 && list != NULL; i++)
		if (dsv3_gr_json_get(schema, dsv3_reference_keywords[i]) != NULL)
		{
			Json *target = dsv3_gr_schema_reference(ir->doc, schema, dsv3_reference_keywords[i], env);

			list = dsv3_ir_and(ir, list, dsv3_ir_expand(ir, dsv3_ir_lit(ir, target, env, false), track));
		}
	k = dsv3_kw_kind_of(ir, schema, "allOf", JSON_ARRAY_, "an array");
	for (uint32_t i = 0; k != NULL && i < k->n && list != NULL; i++)
		list = dsv3_ir_and(ir, list, dsv3_ir_expand(ir, dsv3_ir_lit(ir, k->u.items[i], env, false), track));
	k = dsv3_kw_kind_of(ir, schema, "anyOf", JSON_ARRAY_, "an array");
	if (k != NULL && list != NULL)
		list = dsv3_ir_and(ir, list, any_of(ir, k, env, track));
	k = dsv3_kw_kind_of(ir, schema, "oneOf", JSON_ARRAY_, "an array");
	if (k != NULL && list != NULL)
		list = dsv3_ir_and(ir, list, one_of(ir, k, env, track));
	k = dsv3_gr_json_get(schema, "not");
	if (k != NULL && list != NULL)
		list = dsv3_ir_and(ir, list, dsv3_ir_expand(ir, dsv3_ir_lit(ir, k, env, false) + 1, false));
	k = dsv3_gr_json_get(schema, "if");
	if (k != NULL && list != NULL)
	{
		const Json *yes = dsv3_gr_json_get(schema, "then");
		const Json *no = dsv3_gr_json_get(schema, "else");

		if (yes != NULL || no != NULL || track)
		{
			Con *a = dsv3_ir_copy_list(ir, dsv3_ir_expand(ir, dsv3_ir_lit(ir, k, env, false), track));
			Con *b = dsv3_ir_copy_list(ir, dsv3_ir_expand(ir, dsv3_ir_lit(ir, k, env, false) + 1, false));

			if (yes != NULL)
				a = dsv3_ir_and(ir, a, dsv3_ir_expand(ir, dsv3_ir_lit(ir, yes, env, false), track));
			if (no != NULL)
				b = dsv3_ir_and(ir, b, dsv3_ir_expand(ir, dsv3_ir_lit(ir, no, env, false), track));
			list = dsv3_ir_and(ir, list, dsv3_ir_join(a, b));
		}
	}
	list = dependencies(ir, list, schema, env, track);
	if (has_unevaluated)
	{
		list = dsv3_ir_copy_list(ir, list);
		unevaluated(ir, list, schema, env);
	}
	return list;
}

/* ---- entry ---- */

static Con *
assert_value(Ir *ir, const Json *value)
{
	Con *con = dsv3_con_new(ir, T_ALL);

	con->listed = true;
	con->nvalues = 1;
	con->values = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(Json *));
	con->values[0] = value;
	return con;
}

/* A denial evaluates nothing. */
static Con *
without_marks(Ir *ir, Con *list)
{
	list = dsv3_ir_copy_list(ir, list);
	for (Con *c = list; c != NULL; c = c->next)
	{
		c->seen_names = NULL;
		c->seen_patterns = NULL;
		c->seen_contains = NULL;
		c->seen_items = 0;
		c->seen_all = c->seen_all_items = false;
	}
	return list;
}

Con *
dsv3_ir_expand(Ir *ir, int32_t lit, bool track)
{
	int32_t key = lit * 2 + track;
	int32_t env;
	bool constant;
	const Json *value = lit_value(ir, lit, &env, &constant);
	bool denied = (lit & 1) != 0;
	Con *list;
	int32_t loops;

	if (value == ir->doc->true_schema || value == ir->doc->false_schema)
		return (value == ir->doc->true_schema) != denied ? dsv3_ir_anything(ir) : NULL;
	while (key >= ir->expand_cap)
	{
		int32_t cap = ir->expand_cap == 0 ? 256 : ir->expand_cap * 2;
		Con **memo = dsv3_gr_arena_alloc(ir->ctx->arena, (size_t) cap * sizeof(Con *));
		uint8_t *state = dsv3_gr_arena_alloc(ir->ctx->arena, (size_t) cap);

		if (ir->expand_cap != 0)
		{
			memcpy(memo, ir->expand_memo, (size_t) ir->expand_cap * sizeof(Con *));
			memcpy(state, ir->expand_state, (size_t) ir->expand_cap);
		}
		ir->expand_memo = memo;
		ir->expand_state = state;
		ir->expand_cap = cap;
	}
	if (ir->expand_state[key] == 2)
		return ir->expand_memo[key];
	if (ir->expand_state[key] == 1)
	{
		ir->loops++;
		if (!denied)
			return NULL;
		ir->ctx->at = value;
		ir->ctx->keyword = "not";
		dsv3_gr_fail(ir->ctx, DSV3_ERR_UNSUPPORTED, NULL, "schema is defined by its own negation");
	}
	ir->expand_state[key] = 1;
	loops = ir->loops;
	gr_tick(ir->ctx);
	if (constant)
		list = denied ? dsv3_ir_deny_value(ir, value) : assert_value(ir, value);
	else
	{
		if (value->kind != JSON_OBJECT_)
		{
			ir->ctx->at = value;
			ir->ctx->keyword = NULL;
			dsv3_gr_fail(ir->ctx, DSV3_ERR_INVALID_PARAMETER, NULL,
						 "schema is neither an object nor a boolean");
		}
		if (!value->schema_seen)
			dsv3_gr_schema_index(ir->doc, (Json *) (uintptr_t) value, 0);
		env = dsv3_gr_schema_enter(ir->doc, env, value);
		list = denied ? dsv3_ir_deny_schema(ir, value, env) : assert_schema(ir, value, env, track);
		if (denied)
			list = without_marks(ir, list);
	}
	ir->expand_memo[key] = list;
	/* What was seen from inside a loop is not the whole of it. */
	ir->expand_state[key] = loops == ir->loops ? 2 : 0;
	return list;
}
