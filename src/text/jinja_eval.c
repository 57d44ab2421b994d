/*
 * jinja_eval.c
 *	  Running a compiled chat template.
 *
 * Plain recursion over the tree. Names live in frames: the program's, one for each loop iteration and macro call; `set`
 * writes the innermost. Steps, nesting and memory (the pool's limit) are bounded, so that no template runs away.
 */
#include <stdlib.h>
#include <string.h>

#include "text/jinja_internal.h"
#include "text/utf8.h"

#define MAX_STEPS 50000000
#define MAX_DEPTH 200
#define MAX_RANGE 1000000

typedef struct Binding
{
	const char *name;
	Dsv3Value *value;
} Binding;

typedef struct Frame
{
	struct Frame *parent;
	Binding *bindings;
	size_t n;
	size_t capacity;
} Frame;

/* Text being put together: the rendering's, a macro's or a set block's. malloc'd. */
typedef struct Output
{
	char *text;
	uint8_t *user;
	size_t len;
	size_t capacity;
} Output;

typedef struct Runner
{
	Dsv3Pool *pool;
	Dsv3Value *variables;
	Frame *globals;
	size_t steps;
	int depth;
	Dsv3Error *err;
} Runner;

typedef enum Flow
{
	FLOW_NEXT,
	FLOW_BREAK,
	FLOW_CONTINUE,
	FLOW_FAIL,
} Flow;

static Dsv3Value *evaluate(Runner *r, Frame *frame, const Node *node);
static Flow run_body(Runner *r, Frame *frame, const Node *first, Output *out);

static void *
refuse(Runner *r, const Node *node, const char *what, const char *name)
{
	return dsv3_jinja_refuse_at(r->err, node, what, name);
}

static Dsv3Value *
made(Runner *r, Dsv3Value *value)
{
	return value ? value : dsv3_jinja_no_memory(r->pool, r->err);
}

/* ---- frames and output ---- */

static bool
bind(Runner *r, Frame *frame, const char *name, Dsv3Value *value)
{
	for (size_t i = 0; i < frame->n; i++)
	{
		if (strcmp(frame->bindings[i].name, name) == 0)
		{
			frame->bindings[i].value = value;
			return true;
		}
	}
	if (frame->n == frame->capacity)
	{
		size_t capacity = frame->capacity ? frame->capacity * 2 : 4;
		Binding *bindings = dsv3_pool_alloc(r->pool, capacity * sizeof(*bindings));

		if (bindings == NULL)
			return dsv3_jinja_no_memory(r->pool, r->err) != NULL;
		if (frame->n > 0)
			memcpy(bindings, frame->bindings, frame->n * sizeof(*bindings));
		frame->bindings = bindings;
		frame->capacity = capacity;
	}
	frame->bindings[frame->n++] = (Binding){name, value};
	return true;
}

static Dsv3Value *
lookup(Runner *r, const Frame *frame, const char *name)
{
	static const char *const functions[] = {"range", "namespace", "raise_exception", "strftime_now"};
	Dsv3Value *value;

	for (; frame != NULL; frame = frame->parent)
	{
		for (size_t i = 0; i < frame->n; i++)
		{
			if (strcmp(frame->bindings[i].name, name) == 0)
				return frame->bindings[i].value;
		}
	}
	value = dsv3_dict_get(r->variables, name);
	if (value != NULL)
		return value;
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
	{
		if (strcmp(functions[i], name) == 0)
		{
			value = made(r, dsv3_value_new(r->pool, VALUE_FUNCTION));
			if (value != NULL)
				value->name = functions[i];
			return value;
		}
	}
	return made(r, dsv3_value_undefined(r->pool, name));
}

static bool
put(Runner *r, Output *out, const Dsv3Value *string)
{
	if (string->len > out->capacity - out->len)
	{
		size_t capacity = out->capacity ? out->capacity : 1024;
		char *text;
		uint8_t *user;

		while (capacity - out->len < string->len)
			capacity *= 2;
		if (r->pool->limit > 0 && capacity > r->pool->limit)
			return dsv3_error(r->err, DSV3_ERR_TOO_LARGE, "what the chat template makes is too long");
		text = realloc(out->text, capacity);
		if (text != NULL)
			out->text = text;
		user = realloc(out->user, capacity);
		if (user != NULL)
			out->user = user;
		if (text == NULL || user == NULL)
			return dsv3_error(r->err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		out->capacity = capacity;
	}
	if (string->len > 0)
	{
		memcpy(out->text + out->len, string->text, string->len);
		if (string->user != NULL)
			memcpy(out->user + out->len, string->user, string->len);
		else
			memset(out->user + out->len, 0, string->len);
		out->len += string->len;
	}
	return true;
}

/* The text of a macro or a set block as a value; the buffers are freed. */
static Dsv3Value *
take_output(Runner *r, Output *out)
{
	Dsv3Value *value = dsv3_value_string(r->pool, out->len ? out->text : "", out->len, true);

	if (value != NULL && out->len > 0)
		memcpy((uint8_t *) value->user, out->user, out->len);
	free(out->text);
	free(out->user);
	memset(out, 0, sizeof(*out));
	return made(r, value);
}

/* ---- calls ---- */

/* Evaluate arguments into *args; its arrays are in the pool. */
static bool
evaluate_arguments(Runner *r, Frame *frame, const Node *node, Arguments *args)
{
	args->n = node->n_args - node->n_keywords;
	args->keywords = node->keywords;
	args->n_keywords = node->n_keywords;
	args->items = dsv3_pool_alloc(r->pool, (node->n_args + 1) * sizeof(*args->items));
	if (args->items == NULL)
		return dsv3_jinja_no_memory(r->pool, r->err) != NULL;
	for (size_t i = 0; i < node->n_args; i++)
	{
		args->items[i] = evaluate(r, frame, node->args[i]);
		if (args->items[i] == NULL)
			return false;
	}
	return true;
}

static Dsv3Value *
call_macro(Runner *r, const Node *node, const Node *macro, const Arguments *args)
{
	Frame frame = {.parent = r->globals};
	Output out = {0};
	Flow flow;

	if (args->n > macro->n_args)
		return refuse(r, node, "gives too many arguments to", macro->name);
	for (size_t i = 0; i < macro->n_args; i++)
	{
		const Node *parameter = macro->args[i];
		Dsv3Value *value = i < args->n ? args->items[i] : NULL;

		for (size_t k = 0; value == NULL && k < args->n_keywords; k++)
		{
			if (strcmp(args->keywords[k], parameter->name) == 0)
				value = args->items[args->n + k];
		}
		if (value == NULL)
			value = parameter->a ? evaluate(r, &frame, parameter->a)
								 : made(r, dsv3_value_undefined(r->pool, parameter->name));
		if (value == NULL || !bind(r, &frame, parameter->name, value))
			return NULL;
	}
	flow = run_body(r, &frame, macro->body, &out);
	if (flow == FLOW_FAIL)
	{
		free(out.text);
		free(out.user);
		return NULL;
	}
	return take_output(r, &out);
}

static Dsv3Value *
call_range(Runner *r, const Node *node, const Arguments *args)
{
	int64_t bounds[3] = {0, 0, 1};
	Dsv3Value *list = dsv3_value_list(r->pool);

	if (args->n < 1 || args->n > 3)
		return refuse(r, node, "gives a wrong number of arguments to", "range");
	for (size_t i = 0; i < args->n; i++)
	{
		if (args->items[i]->type != VALUE_INT || args->items[i]->i > MAX_RANGE ||
			args->items[i]->i < -MAX_RANGE)
			return refuse(r, node, "gives a wrong argument to", "range");
		bounds[args->n == 1 ? 1 : i] = args->items[i]->i;
	}
	if (bounds[2] == 0)
		return refuse(r, node, "gives a wrong argument to", "range");
	for (int64_t i = bounds[0]; list != NULL && (bounds[2] > 0 ? i < bounds[1] : i > bounds[1]);
		 i += bounds[2])
	{
		if (!dsv3_list_append(r->pool, list, dsv3_value_int(r->pool, i)))
			list = NULL;
	}
	return made(r, list);
}

static Dsv3Value *
call_function(Runner *r, const Node *node, const char *name, const Arguments *args)
{
	if (strcmp(name, "range") == 0)
		return call_range(r, node, args);
	if (strcmp(name, "namespace") == 0)
	{
		Dsv3Value *space = made(r, dsv3_value_new(r->pool, VALUE_NAMESPACE));

		for (size_t i = 0; space != NULL && i < args->n_keywords; i++)
		{
			if (!dsv3_dict_set(r->pool, space, args->keywords[i], args->items[args->n + i]))
				return dsv3_jinja_no_memory(r->pool, r->err);
		}
		return space;
	}
	if (strcmp(name, "raise_exception") == 0)
	{
		const Dsv3Value *message = args->n > 0 ? dsv3_value_as_text(r->pool, args->items[0], r->err) : NULL;

		dsv3_error(r->err, DSV3_ERR_INVALID_PARAMETER, "the chat template refuses the messages: %.*s",
				   message ? (message->len > 400 ? 400 : (int) message->len) : 0,
				   message ? message->text : "");
		return NULL;
	}
	dsv3_error(r->err, DSV3_ERR_UNSUPPORTED, "the chat template, line %d, uses %s, which is not supported",
			   node->line, name);
	return NULL;
}

static Dsv3Value *
evaluate_call(Runner *r, Frame *frame, const Node *node)
{
	Dsv3Value *callee = evaluate(r, frame, node->a);
	Arguments args;

	if (callee == NULL || !evaluate_arguments(r, frame, node, &args))
		return NULL;
	switch (callee->type)
	{
		case VALUE_MACRO:
			return call_macro(r, node, callee->macro, &args);
		case VALUE_FUNCTION:
			return call_function(r, node, callee->name, &args);
		case VALUE_METHOD:
			return dsv3_call_method(r->pool, callee->name, callee->self, &args, r->err);
		case VALUE_UNDEFINED:
			return refuse(r, node, "calls something that is not defined:", callee->name);
		default:
			return refuse(r, node, "calls", dsv3_value_type_name(callee));
	}
}

/* ---- members ---- */

static Dsv3Value *
evaluate_attribute(Runner *r, Frame *frame, const Node *node)
{
	Dsv3Value *object = evaluate(r, frame, node->a), *found = NULL;

	if (object == NULL)
		return NULL;
	if (object->type == VALUE_UNDEFINED)
		return refuse(r, node, "uses something that is not defined:", object->name);
	if (dsv3_is_method(object, node->name))
	{
		found = made(r, dsv3_value_new(r->pool, VALUE_METHOD));
		if (found != NULL)
		{
			found->name = node->name;
			found->self = object;
		}
		return found;
	}
	if (object->type == VALUE_DICT || object->type == VALUE_NAMESPACE)
		found = dsv3_dict_get(object, node->name);
	return found ? found : made(r, dsv3_value_undefined(r->pool, node->name));
}

/* Byte offset of character number `index` of a string. */
static size_t
char_offset(const Dsv3Value *string, size_t index)
{
	size_t at = 0;

	while (index > 0 && at < string->len)
	{
		at += dsv3_utf8_length((uint8_t) string->text[at]);
		index--;
	}
	return at;
}

static Dsv3Value *
evaluate_subscript(Runner *r, Frame *frame, const Node *node)
{
	Dsv3Value *object = evaluate(r, frame, node->a), *key = object ? evaluate(r, frame, node->b) : NULL;
	int64_t n, i;

	if (key == NULL)
		return NULL;
	if (object->type == VALUE_UNDEFINED)
		return refuse(r, node, "uses something that is not defined:", object->name);
	if (key->type == VALUE_STRING)
	{
		Dsv3Value *found = NULL;
		char *name = dsv3_pool_alloc(r->pool, key->len + 1);

		if (name == NULL)
			return dsv3_jinja_no_memory(r->pool, r->err);
		if (key->len > 0)
			memcpy(name, key->text, key->len);
		if (object->type == VALUE_DICT)
			found = dsv3_dict_get(object, name);
		return found ? found : made(r, dsv3_value_undefined(r->pool, name));
	}
	if (key->type != VALUE_INT || (object->type != VALUE_LIST && object->type != VALUE_STRING))
		return made(r, dsv3_value_undefined(r->pool, "a subscript"));
	n = object->type == VALUE_LIST ? (int64_t) object->n : (int64_t) dsv3_string_chars(object);
	i = key->i < 0 ? key->i + n : key->i;
	if (i < 0 || i >= n)
		return made(r, dsv3_value_undefined(r->pool, "an item"));
	if (object->type == VALUE_LIST)
		return object->items[i];
	return made(r, dsv3_value_slice(r->pool, object, char_offset(object, (size_t) i),
									char_offset(object, (size_t) i + 1)));
}

/* A bound of a slice as Python clamps it. */
static int64_t
clamp(int64_t value, int64_t low, int64_t high, int64_t n)
{
	if (value < 0)
		value += n;
	return value < low ? low : value > high ? high : value;
}

static Dsv3Value *
evaluate_slice(Runner *r, Frame *frame, const Node *node)
{
	Dsv3Value *object = evaluate(r, frame, node->a), *list;
	int64_t n, from, to, step = 1, given[3];
	bool has[3] = {false, false, false};

	if (object == NULL)
		return NULL;
	for (int i = 0; i < 3; i++)
	{
		Dsv3Value *bound = node->args[i] ? evaluate(r, frame, node->args[i]) : NULL;

		if (node->args[i] != NULL && bound == NULL)
			return NULL;
		if (bound == NULL || bound->type == VALUE_NONE)
			continue;
		if (bound->type != VALUE_INT)
			return refuse(r, node, "slices by", dsv3_value_type_name(bound));
		has[i] = true;
		given[i] = bound->i;
	}
	if (has[2])
		step = given[2];
	if (step == 0 || (object->type == VALUE_STRING && step != 1) ||
		(object->type != VALUE_LIST && object->type != VALUE_STRING))
		return refuse(r, node, "cannot slice", dsv3_value_type_name(object));
	n = object->type == VALUE_LIST ? (int64_t) object->n : (int64_t) dsv3_string_chars(object);
	if (step > 0)
	{
		from = has[0] ? clamp(given[0], 0, n, n) : 0;
		to = has[1] ? clamp(given[1], 0, n, n) : n;
	}
	else
	{
		from = has[0] ? clamp(given[0], -1, n - 1, n) : n - 1;
		to = has[1] ? clamp(given[1], -1, n - 1, n) : -1;
	}
	if (object->type == VALUE_STRING)
	{
		size_t begin = char_offset(object, (size_t) from);
		size_t end = to > from ? char_offset(object, (size_t) to) : begin;

		return made(r, dsv3_value_slice(r->pool, object, begin, end));
	}
	list = dsv3_value_list(r->pool);
	for (int64_t i = from; list != NULL && (step > 0 ? i < to : i > to); i += step)
	{
		if (!dsv3_list_append(r->pool, list, object->items[i]))
			list = NULL;
	}
	return made(r, list);
}

static Dsv3Value *
evaluate_binary(Runner *r, Frame *frame, const Node *node)
{
	Dsv3Value *a = evaluate(r, frame, node->a), *b = a ? evaluate(r, frame, node->b) : NULL;

	return b ? dsv3_jinja_binary(r->pool, node, a, b, r->err) : NULL;
}

/* A list or dict display. */
static Dsv3Value *
evaluate_display(Runner *r, Frame *frame, const Node *node)
{
	Dsv3Value *value = made(r, dsv3_value_new(r->pool, node->type == NODE_LIST ? VALUE_LIST : VALUE_DICT));

	for (size_t i = 0; value != NULL && i < node->n_args; i++)
	{
		Dsv3Value *item = evaluate(r, frame, node->args[i]);
		bool ok;

		if (item == NULL)
			return NULL;
		if (node->type == NODE_LIST)
			ok = dsv3_list_append(r->pool, value, item);
		else
		{
			char *key = item->type == VALUE_STRING ? dsv3_pool_alloc(r->pool, item->len + 1) : NULL;
			Dsv3Value *member = evaluate(r, frame, node->args[++i]);

			if (item->type != VALUE_STRING)
				return refuse(r, node, "uses as a key", dsv3_value_type_name(item));
			if (member == NULL)
				return NULL;
			if (key != NULL && item->len > 0)
				memcpy(key, item->text, item->len);
			ok = key != NULL && dsv3_dict_set(r->pool, value, key, member);
		}
		if (!ok)
			return dsv3_jinja_no_memory(r->pool, r->err);
	}
	return value;
}

static Dsv3Value *
evaluate_node(Runner *r, Frame *frame, const Node *node)
{
	Dsv3Value *a;
	Arguments args;
	int truth;

	switch (node->type)
	{
		case NODE_LITERAL:
			return (Dsv3Value *) node->value;
		case NODE_NAME:
			return lookup(r, frame, node->name);
		case NODE_LIST:
		case NODE_DICT:
			return evaluate_display(r, frame, node);
		case NODE_ATTRIBUTE:
			return evaluate_attribute(r, frame, node);
		case NODE_SUBSCRIPT:
			return evaluate_subscript(r, frame, node);
		case NODE_SLICE:
			return evaluate_slice(r, frame, node);
		case NODE_CALL:
			return evaluate_call(r, frame, node);
		case NODE_BINARY:
			return evaluate_binary(r, frame, node);
		case NODE_CONDITIONAL:
			a = evaluate(r, frame, node->b);
			if (a == NULL)
				return NULL;
			if (dsv3_value_truth(a))
				return evaluate(r, frame, node->a);
			return node->c ? evaluate(r, frame, node->c) : made(r, dsv3_value_undefined(r->pool, "an else"));
		default:
			break;
	}
	a = evaluate(r, frame, node->a);
	if (a == NULL)
		return NULL;
	switch (node->type)
	{
		case NODE_FILTER:
			return evaluate_arguments(r, frame, node, &args)
					   ? dsv3_call_filter(r->pool, node->name, a, &args, r->err)
					   : NULL;
		case NODE_TEST:
			if (!evaluate_arguments(r, frame, node, &args) ||
				(truth = dsv3_call_test(node->name, a, &args, r->err)) < 0)
				return NULL;
			return made(r, dsv3_value_bool(r->pool, truth));
		case NODE_NOT:
			return made(r, dsv3_value_bool(r->pool, !dsv3_value_truth(a)));
		case NODE_AND:
			return dsv3_value_truth(a) ? evaluate(r, frame, node->b) : a;
		case NODE_OR:
			return dsv3_value_truth(a) ? a : evaluate(r, frame, node->b);
		default: /* NODE_NEGATE */
			if (a->type != VALUE_INT || a->i == INT64_MIN)
				return refuse(r, node, "negates", dsv3_value_type_name(a));
			return made(r, dsv3_value_int(r->pool, -a->i));
	}
}

static Dsv3Value *
evaluate(Runner *r, Frame *frame, const Node *node)
{
	Dsv3Value *value;

	if (++r->steps > MAX_STEPS || r->depth >= MAX_DEPTH)
	{
		dsv3_error(r->err, DSV3_ERR_TOO_LARGE, "the chat template runs too long or nests too deeply");
		return NULL;
	}
	r->depth++;
	value = evaluate_node(r, frame, node);
	r->depth--;
	return value;
}

/* ---- statements ---- */

/* The `loop` variable of one iteration. */
static Dsv3Value *
loop_state(Runner *r, const Dsv3Value *list, size_t i)
{
	Dsv3Value *loop = dsv3_value_dict(r->pool);
	Dsv3Pool *pool = r->pool;
	int64_t n = (int64_t) list->n, k = (int64_t) i;

	if (loop == NULL || !dsv3_dict_set(pool, loop, "index", dsv3_value_int(pool, k + 1)) ||
		!dsv3_dict_set(pool, loop, "index0", dsv3_value_int(pool, k)) ||
		!dsv3_dict_set(pool, loop, "revindex", dsv3_value_int(pool, n - k)) ||
		!dsv3_dict_set(pool, loop, "revindex0", dsv3_value_int(pool, n - k - 1)) ||
		!dsv3_dict_set(pool, loop, "first", dsv3_value_bool(pool, k == 0)) ||
		!dsv3_dict_set(pool, loop, "last", dsv3_value_bool(pool, k == n - 1)) ||
		!dsv3_dict_set(pool, loop, "length", dsv3_value_int(pool, n)) ||
		(k > 0 && !dsv3_dict_set(pool, loop, "previtem", list->items[i - 1])) ||
		(k < n - 1 && !dsv3_dict_set(pool, loop, "nextitem", list->items[i + 1])))
		return dsv3_jinja_no_memory(pool, r->err);
	return loop;
}

/* Bind the one or two names of a loop to an item. */
static bool
bind_item(Runner *r, Frame *frame, const Node *node, Dsv3Value *item)
{
	if (node->names[1] == NULL)
		return bind(r, frame, node->names[0], item);
	if (item->type != VALUE_LIST || item->n != 2)
		return refuse(r, node, "cannot unpack", dsv3_value_type_name(item)) != NULL;
	return bind(r, frame, node->names[0], item->items[0]) && bind(r, frame, node->names[1], item->items[1]);
}

static Flow
run_for(Runner *r, Frame *frame, const Node *node, Output *out)
{
	Dsv3Value *iterable = evaluate(r, frame, node->a), *list;
	const Arguments none = {0};

	if (iterable == NULL)
		return FLOW_FAIL;
	list = iterable->type == VALUE_STRING || iterable->type == VALUE_NONE
			   ? refuse(r, node, "loops over", dsv3_value_type_name(iterable))
			   : dsv3_call_filter(r->pool, "list", iterable, &none, r->err);
	if (list == NULL)
		return FLOW_FAIL;
	if (node->b != NULL)
	{
		/* the filter comes first: `loop` counts what passes it */
		Dsv3Value *kept = dsv3_value_list(r->pool);

		for (size_t i = 0; kept != NULL && i < list->n; i++)
		{
			Frame inner = {.parent = frame};
			Dsv3Value *keep;

			if (!bind_item(r, &inner, node, list->items[i]) || (keep = evaluate(r, &inner, node->b)) == NULL)
				return FLOW_FAIL;
			if (dsv3_value_truth(keep) && !dsv3_list_append(r->pool, kept, list->items[i]))
				kept = NULL;
		}
		list = made(r, kept);
		if (list == NULL)
			return FLOW_FAIL;
	}
	for (size_t i = 0; i < list->n; i++)
	{
		Frame inner = {.parent = frame};
		Dsv3Value *loop = loop_state(r, list, i);
		Flow flow;

		if (loop == NULL || !bind_item(r, &inner, node, list->items[i]) || !bind(r, &inner, "loop", loop))
			return FLOW_FAIL;
		flow = run_body(r, &inner, node->body, out);
		if (flow == FLOW_FAIL)
			return FLOW_FAIL;
		if (flow == FLOW_BREAK)
			break;
	}
	return list->n == 0 ? run_body(r, frame, node->other, out) : FLOW_NEXT;
}

static Flow
run_set(Runner *r, Frame *frame, const Node *node)
{
	Dsv3Value *value;

	if (node->b != NULL)
		value = evaluate(r, frame, node->b);
	else
	{
		Output block = {0};

		if (run_body(r, frame, node->body, &block) == FLOW_FAIL)
		{
			free(block.text);
			free(block.user);
			return FLOW_FAIL;
		}
		value = take_output(r, &block);
	}
	if (value == NULL)
		return FLOW_FAIL;
	if (node->a->type == NODE_ATTRIBUTE)
	{
		Dsv3Value *space = evaluate(r, frame, node->a->a);

		if (space == NULL)
			return FLOW_FAIL;
		if (space->type != VALUE_NAMESPACE)
		{
			refuse(r, node, "sets a member of", dsv3_value_type_name(space));
			return FLOW_FAIL;
		}
		if (!dsv3_dict_set(r->pool, space, node->a->name, value))
		{
			dsv3_jinja_no_memory(r->pool, r->err);
			return FLOW_FAIL;
		}
		return FLOW_NEXT;
	}
	return bind(r, frame, node->a->name, value) ? FLOW_NEXT : FLOW_FAIL;
}

static Flow
run_statement(Runner *r, Frame *frame, const Node *node, Output *out)
{
	Dsv3Value *value;

	switch (node->type)
	{
		case NODE_TEXT:
			return put(r, out, node->value) ? FLOW_NEXT : FLOW_FAIL;
		case NODE_OUTPUT:
			value = evaluate(r, frame, node->a);
			if (value != NULL)
				value = (Dsv3Value *) dsv3_value_as_text(r->pool, value, r->err);
			return value != NULL && put(r, out, value) ? FLOW_NEXT : FLOW_FAIL;
		case NODE_IF:
			value = evaluate(r, frame, node->a);
			if (value == NULL)
				return FLOW_FAIL;
			if (dsv3_value_truth(value))
				return run_body(r, frame, node->body, out);
			return node->other ? run_body(r, frame, node->other, out) : FLOW_NEXT;
		case NODE_FOR:
			return run_for(r, frame, node, out);
		case NODE_SET:
			return run_set(r, frame, node);
		case NODE_MACRO:
			value = made(r, dsv3_value_new(r->pool, VALUE_MACRO));
			if (value == NULL)
				return FLOW_FAIL;
			value->macro = node;
			return bind(r, frame, node->name, value) ? FLOW_NEXT : FLOW_FAIL;
		case NODE_BREAK:
			return FLOW_BREAK;
		default: /* NODE_CONTINUE */
			return FLOW_CONTINUE;
	}
}

static Flow
run_body(Runner *r, Frame *frame, const Node *first, Output *out)
{
	Flow flow = FLOW_NEXT;

	if (r->depth >= MAX_DEPTH)
	{
		dsv3_error(r->err, DSV3_ERR_TOO_LARGE, "the chat template nests too deeply");
		return FLOW_FAIL;
	}
	r->depth++;
	for (const Node *node = first; node != NULL && flow == FLOW_NEXT; node = node->next)
	{
		if (++r->steps > MAX_STEPS)
		{
			dsv3_error(r->err, DSV3_ERR_TOO_LARGE, "the chat template runs too long");
			flow = FLOW_FAIL;
		}
		else
			flow = run_statement(r, frame, node, out);
	}
	r->depth--;
	return flow;
}

bool
dsv3_jinja_render(const Dsv3Jinja *program, Dsv3Pool *pool, Dsv3Value *variables, Dsv3Rendered *out,
				  Dsv3Error *err)
{
	Frame globals = {0};
	Runner r = {.pool = pool, .variables = variables, .globals = &globals, .err = err};
	Output text = {0};
	Dsv3Value *value = NULL;

	if (run_body(&r, &globals, program->body, &text) == FLOW_NEXT)
		value = take_output(&r, &text);
	free(text.text);
	free(text.user);
	if (value == NULL)
		return false;
	out->text = value->text;
	out->from_user = value->user;
	out->len = value->len;
	return true;
}
