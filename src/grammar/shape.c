/*
 * shape.c
 *	  Schemas that say the same are one: fifty thousand properties of type string need one node, not fifty thousand.
 *
 * Values are numbered from their leaves up, so that equal contents get equal numbers. In a schema, titles, descriptions
 * and comments do not count. Two schemas with the same number in the same resource mean the same: their references are
 * resolved against the same base.
 */
#include <string.h>

#include "grammar/ir.h"

static void
push_text(Arena *arena, IntVec *key, const char *text, uint32_t len)
{
	gr_intvec_push(arena, key, (int32_t) len);
	for (uint32_t i = 0; i < len; i += 4)
	{
		int32_t word = 0;

		memcpy(&word, text + i, len - i < 4 ? len - i : 4);
		gr_intvec_push(arena, key, word);
	}
}

static bool
is_comment(const Json *object, const JsonMember *member)
{
	static const char *const words[] = {"title", "description", "$comment"};

	if (!object->schema_seen || member->value->kind != JSON_STRING_)
		return false;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strcmp(words[i], member->key) == 0)
			return true;
	return false;
}

static int32_t
shape_of(Ir *ir, const Json *value)
{
	Arena *arena = ir->ctx->arena;
	IntVec key = {NULL, 0, 0};

	if (value->shape != 0)
		return value->shape;
	gr_tick(ir->ctx);
	gr_intvec_push(arena, &key, value->kind);
	switch (value->kind)
	{
		case JSON_NUMBER_:
			gr_intvec_push(arena, &key, value->u.num->neg);
			gr_intvec_push(arena, &key, (int32_t) value->u.num->exp);
			push_text(arena, &key, value->u.num->digits, (uint32_t) value->u.num->ndigits);
			break;
		case JSON_STRING_:
			push_text(arena, &key, value->u.str, value->n);
			break;
		case JSON_ARRAY_:
			for (uint32_t i = 0; i < value->n; i++)
				gr_intvec_push(arena, &key, shape_of(ir, value->u.items[i]));
			break;
		case JSON_OBJECT_:
			for (uint32_t i = 0; i < value->n; i++)
				if (!is_comment(value, &value->u.members[i]))
				{
					push_text(arena, &key, value->u.members[i].key, value->u.members[i].keylen);
					gr_intvec_push(arena, &key, shape_of(ir, value->u.members[i].value));
				}
			break;
		default:
			break;
	}
	((Json *) (uintptr_t) value)->shape = dsv3_gr_interner_get(&ir->shapes, key.v, key.n, NULL) + 1;
	return value->shape;
}

const Json *
dsv3_ir_twin(Ir *ir, const Json *schema)
{
	int32_t key[2] = {0, schema->resource};
	int32_t id;
	bool fresh;

	if (!schema->schema_seen)
		return schema;
	key[0] = shape_of(ir, schema);
	id = dsv3_gr_interner_get(&ir->twins, key, 2, &fresh);
	if (!fresh)
		return ir->twin_of[id];
	if (id >= ir->twin_cap)
	{
		int32_t cap = ir->twin_cap == 0 ? 64 : ir->twin_cap * 2;
		const Json **grown = dsv3_gr_arena_alloc(ir->ctx->arena, (size_t) cap * sizeof(Json *));

		if (ir->twin_cap != 0)
			memcpy(grown, ir->twin_of, (size_t) ir->twin_cap * sizeof(Json *));
		ir->twin_of = grown;
		ir->twin_cap = cap;
	}
	ir->twin_of[id] = schema;
	return schema;
}
