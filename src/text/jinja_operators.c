/*
 * jinja_operators.c
 *	  The binary operators of the Jinja interpreter, with Python's meaning.
 */
#include <string.h>

#include "text/jinja_internal.h"

/* Where the operator stands and where its result goes. */
typedef struct Place
{
	Dsv3Pool *pool;
	Dsv3Error *err;
} Place;

void *
dsv3_jinja_refuse_at(Dsv3Error *err, const Node *node, const char *what, const char *name)
{
	dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "the chat template, line %d, %s %.100s", node->line, what,
			   name);
	return NULL;
}

static void *
refuse(Place *r, const Node *node, const char *what, const char *name)
{
	return dsv3_jinja_refuse_at(r->err, node, what, name);
}

static Dsv3Value *
made(Place *r, Dsv3Value *value)
{
	return value ? value : dsv3_jinja_no_memory(r->pool, r->err);
}

static bool
contains(Place *r, const Node *node, const Dsv3Value *item, const Dsv3Value *container, bool *result)
{
	*result = false;
	switch (container->type)
	{
		case VALUE_STRING:
			if (item->type != VALUE_STRING)
				return refuse(r, node, "looks in a string for", dsv3_value_type_name(item)) != NULL;
			*result = item->len == 0 || (container->len > 0 && memmem(container->text, container->len,
																	  item->text, item->len) != NULL);
			return true;
		case VALUE_LIST:
			for (size_t i = 0; i < container->n && !*result; i++)
				*result = dsv3_value_equal(container->items[i], item);
			return true;
		case VALUE_DICT:
			for (size_t i = 0; item->type == VALUE_STRING && i < container->n && !*result; i++)
				*result = strlen(container->keys[i]) == item->len &&
						  (item->len == 0 || memcmp(container->keys[i], item->text, item->len) == 0);
			return true;
		case VALUE_UNDEFINED:
			return true;
		default:
			return refuse(r, node, "looks for something in", dsv3_value_type_name(container)) != NULL;
	}
}

static Dsv3Value *
compare(Place *r, const Node *node, const Dsv3Value *a, const Dsv3Value *b)
{
	int64_t order;

	if ((a->type == VALUE_INT || a->type == VALUE_BOOL) && (b->type == VALUE_INT || b->type == VALUE_BOOL))
		order = (a->i > b->i) - (a->i < b->i);
	else if (a->type == VALUE_STRING && b->type == VALUE_STRING)
	{
		/* the order of UTF-8 bytes is that of code points */
		size_t n = a->len < b->len ? a->len : b->len;

		order = n ? memcmp(a->text, b->text, n) : 0;
		if (order == 0)
			order = (a->len > b->len) - (a->len < b->len);
	}
	else
		return refuse(r, node, "compares", dsv3_value_type_name(a->type == VALUE_INT ? b : a));
	return made(r, dsv3_value_bool(r->pool, node->op == OP_LESS         ? order < 0
											: node->op == OP_LESS_EQUAL ? order <= 0
											: node->op == OP_GREATER    ? order > 0
																		: order >= 0));
}

static Dsv3Value *
arithmetic(Place *r, const Node *node, const Dsv3Value *a, const Dsv3Value *b)
{
	int64_t result = 0;
	bool overflow = false;

	if (node->op == OP_ADD && a->type == VALUE_STRING && b->type == VALUE_STRING)
		return made(r, dsv3_value_join(r->pool, a, b));
	if (node->op == OP_ADD && a->type == VALUE_LIST && b->type == VALUE_LIST)
	{
		Dsv3Value *list = dsv3_value_list(r->pool);

		for (size_t i = 0; list != NULL && i < a->n + b->n; i++)
		{
			if (!dsv3_list_append(r->pool, list, i < a->n ? a->items[i] : b->items[i - a->n]))
				list = NULL;
		}
		return made(r, list);
	}
	if (a->type == VALUE_UNDEFINED || b->type == VALUE_UNDEFINED)
		return refuse(r, node,
					  "uses something that is not defined:", a->type == VALUE_UNDEFINED ? a->name : b->name);
	if (!(a->type == VALUE_INT || a->type == VALUE_BOOL) || !(b->type == VALUE_INT || b->type == VALUE_BOOL))
		return refuse(r, node, "cannot add, subtract or multiply",
					  dsv3_value_type_name(a->type == VALUE_STRING || a->type == VALUE_INT ? b : a));
	switch (node->op)
	{
		case OP_ADD:
			overflow = __builtin_add_overflow(a->i, b->i, &result);
			break;
		case OP_SUBTRACT:
			overflow = __builtin_sub_overflow(a->i, b->i, &result);
			break;
		case OP_MULTIPLY:
			overflow = __builtin_mul_overflow(a->i, b->i, &result);
			break;
		default:
			/* Python rounds down, and the remainder has the divisor's sign */
			if (b->i == 0 || (a->i == INT64_MIN && b->i == -1))
				return refuse(r, node, "divides", "by zero");
			result = node->op == OP_MODULO ? a->i % b->i : a->i / b->i;
			if (a->i % b->i != 0 && (a->i < 0) != (b->i < 0))
				result += node->op == OP_MODULO ? b->i : -1;
			break;
	}
	if (overflow)
		return refuse(r, node, "makes", "a number that is too large");
	return made(r, dsv3_value_int(r->pool, result));
}

Dsv3Value *
dsv3_jinja_binary(Dsv3Pool *pool, const Node *node, const Dsv3Value *a, const Dsv3Value *b, Dsv3Error *err)
{
	Place runner = {pool, err}, *r = &runner;
	bool found;

	switch (node->op)
	{
		case OP_EQUAL:
		case OP_NOT_EQUAL:
			return made(r, dsv3_value_bool(r->pool, dsv3_value_equal(a, b) == (node->op == OP_EQUAL)));
		case OP_LESS:
		case OP_LESS_EQUAL:
		case OP_GREATER:
		case OP_GREATER_EQUAL:
			return compare(r, node, a, b);
		case OP_IN:
		case OP_NOT_IN:
			if (!contains(r, node, a, b, &found))
				return NULL;
			return made(r, dsv3_value_bool(r->pool, found == (node->op == OP_IN)));
		case OP_CONCAT:
		{
			const Dsv3Value *left = dsv3_value_as_text(r->pool, a, r->err);
			const Dsv3Value *right = left ? dsv3_value_as_text(r->pool, b, r->err) : NULL;

			return right ? made(r, dsv3_value_join(r->pool, left, right)) : NULL;
		}
		default:
			return arithmetic(r, node, a, b);
	}
}
