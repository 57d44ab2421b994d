/*
 * jinja_value.c
 *	  The values of the Jinja interpreter: strings that know where their bytes come from, lists, dicts; their methods,
 *	  filters and tests, with Python's meaning. Values are immutable except lists and dicts while they are being built, and
 *	  namespaces.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_internal.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

void *
dsv3_jinja_no_memory(const Dsv3Pool *pool, Dsv3Error *err)
{
	if (pool->limit > 0 && pool->total > pool->limit / 2)
		dsv3_error(err, DSV3_ERR_TOO_LARGE, "the chat template needs more than the allowed %zu MB of memory",
				   pool->limit >> 20);
	else
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	return NULL;
}

void *
dsv3_jinja_refuse(Dsv3Error *err, const char *what, const char *name)
{
	dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "the chat template %s %.60s", what, name);
	return NULL;
}

/* ---- making values ---- */

Dsv3Value *
dsv3_value_new(Dsv3Pool *pool, ValueType type)
{
	Dsv3Value *value = dsv3_pool_alloc(pool, sizeof(*value));

	if (value != NULL)
		value->type = type;
	return value;
}

Dsv3Value *
dsv3_value_none(Dsv3Pool *pool)
{
	return dsv3_value_new(pool, VALUE_NONE);
}

Dsv3Value *
dsv3_value_bool(Dsv3Pool *pool, bool truth)
{
	Dsv3Value *value = dsv3_value_new(pool, VALUE_BOOL);

	if (value != NULL)
		value->i = truth;
	return value;
}

Dsv3Value *
dsv3_value_int(Dsv3Pool *pool, int64_t number)
{
	Dsv3Value *value = dsv3_value_new(pool, VALUE_INT);

	if (value != NULL)
		value->i = number;
	return value;
}

Dsv3Value *
dsv3_value_undefined(Dsv3Pool *pool, const char *name)
{
	Dsv3Value *value = dsv3_value_new(pool, VALUE_UNDEFINED);

	if (value != NULL)
		value->name = name;
	return value;
}

Dsv3Value *
dsv3_value_list(Dsv3Pool *pool)
{
	return dsv3_value_new(pool, VALUE_LIST);
}

Dsv3Value *
dsv3_value_dict(Dsv3Pool *pool)
{
	return dsv3_value_new(pool, VALUE_DICT);
}

Dsv3Value *
dsv3_value_string(Dsv3Pool *pool, const char *text, size_t len, bool from_user)
{
	Dsv3Value *value = dsv3_value_new(pool, VALUE_STRING);
	char *bytes = dsv3_pool_alloc(pool, len + 1);
	uint8_t *user = from_user ? dsv3_pool_alloc(pool, len + 1) : NULL;

	if (value == NULL || bytes == NULL || (from_user && user == NULL))
		return NULL;
	memcpy(bytes, text, len);
	if (from_user)
		memset(user, 1, len);
	value->text = bytes;
	value->user = user;
	value->len = len;
	return value;
}

Dsv3Value *
dsv3_value_join(Dsv3Pool *pool, const Dsv3Value *left, const Dsv3Value *right)
{
	Dsv3Value *value = dsv3_value_new(pool, VALUE_STRING);
	bool any = left->user != NULL || right->user != NULL;
	char *bytes = dsv3_pool_alloc(pool, left->len + right->len + 1);
	uint8_t *user = any ? dsv3_pool_alloc(pool, left->len + right->len + 1) : NULL;

	if (value == NULL || bytes == NULL || (any && user == NULL))
		return NULL;
	if (left->len > 0)
		memcpy(bytes, left->text, left->len);
	if (right->len > 0)
		memcpy(bytes + left->len, right->text, right->len);
	if (left->user != NULL)
		memcpy(user, left->user, left->len);
	if (right->user != NULL)
		memcpy(user + left->len, right->user, right->len);
	value->text = bytes;
	value->user = user;
	value->len = left->len + right->len;
	return value;
}

Dsv3Value *
dsv3_value_slice(Dsv3Pool *pool, const Dsv3Value *string, size_t from, size_t to)
{
	Dsv3Value *value = dsv3_value_new(pool, VALUE_STRING);

	if (value != NULL)
	{
		value->text = string->text ? string->text + from : NULL;
		value->user = string->user ? string->user + from : NULL;
		value->len = to - from;
	}
	return value;
}

/* Room for one more item (and key). */
static bool
reserve(Dsv3Pool *pool, Dsv3Value *value)
{
	size_t capacity = value->capacity ? value->capacity * 2 : 8;
	Dsv3Value **items;
	const char **keys = NULL;

	if (value->n < value->capacity)
		return true;
	items = dsv3_pool_alloc(pool, capacity * sizeof(*items));
	if (value->type != VALUE_LIST)
		keys = dsv3_pool_alloc(pool, capacity * sizeof(*keys));
	if (items == NULL || (value->type != VALUE_LIST && keys == NULL))
		return false;
	if (value->n > 0)
	{
		memcpy(items, value->items, value->n * sizeof(*items));
		if (keys != NULL)
			memcpy(keys, value->keys, value->n * sizeof(*keys));
	}
	value->items = items;
	value->keys = keys;
	value->capacity = capacity;
	return true;
}

bool
dsv3_list_append(Dsv3Pool *pool, Dsv3Value *list, Dsv3Value *item)
{
	if (item == NULL || !reserve(pool, list))
		return false;
	list->items[list->n++] = item;
	return true;
}

bool
dsv3_dict_set(Dsv3Pool *pool, Dsv3Value *dict, const char *key, Dsv3Value *value)
{
	char *copy;

	if (value == NULL)
		return false;
	for (size_t i = 0; i < dict->n; i++)
	{
		if (strcmp(dict->keys[i], key) == 0)
		{
			dict->items[i] = value;
			return true;
		}
	}
	copy = dsv3_pool_alloc(pool, strlen(key) + 1);
	if (copy == NULL || !reserve(pool, dict))
		return false;
	strcpy(copy, key);
	dict->keys[dict->n] = copy;
	dict->items[dict->n++] = value;
	return true;
}

Dsv3Value *
dsv3_dict_get(const Dsv3Value *dict, const char *key)
{
	for (size_t i = 0; i < dict->n; i++)
	{
		if (strcmp(dict->keys[i], key) == 0)
			return dict->items[i];
	}
	return NULL;
}

Dsv3Value *
dsv3_value_from_json(Dsv3Pool *pool, const json_t *json)
{
	Dsv3Value *value = NULL;

	switch (json_typeof(json))
	{
		case JSON_OBJECT:
		{
			const char *key;
			json_t *member;

			value = dsv3_value_dict(pool);
			json_object_foreach ((json_t *) json, key, member)
			{
				/* keys of one object differ, so no search for an equal one */
				char *copy = value ? dsv3_pool_alloc(pool, strlen(key) + 1) : NULL;
				Dsv3Value *item = copy ? dsv3_value_from_json(pool, member) : NULL;

				if (item == NULL || !reserve(pool, value))
					return NULL;
				strcpy(copy, key);
				value->keys[value->n] = copy;
				value->items[value->n++] = item;
			}
			return value;
		}
		case JSON_ARRAY:
			value = dsv3_value_list(pool);
			for (size_t i = 0; value != NULL && i < json_array_size(json); i++)
			{
				if (!dsv3_list_append(pool, value, dsv3_value_from_json(pool, json_array_get(json, i))))
					return NULL;
			}
			return value;
		case JSON_STRING:
			return dsv3_value_string(pool, json_string_value(json), json_string_length(json), true);
		case JSON_INTEGER:
			return dsv3_value_int(pool, json_integer_value(json));
		case JSON_REAL:
			value = dsv3_value_new(pool, VALUE_FLOAT);
			if (value != NULL)
				value->f = json_real_value(json);
			return value;
		case JSON_TRUE:
		case JSON_FALSE:
			return dsv3_value_bool(pool, json_is_true(json));
		case JSON_NULL:
			break;
	}
	return dsv3_value_none(pool);
}

/* ---- looking at values ---- */

const char *
dsv3_value_type_name(const Dsv3Value *value)
{
	static const char *const names[] = {"an undefined value", "null",     "a boolean",  "an integer",
										"a number",           "a string", "a list",     "an object",
										"a namespace",        "a macro",  "a function", "a method"};

	return names[value->type];
}

bool
dsv3_value_truth(const Dsv3Value *value)
{
	switch (value->type)
	{
		case VALUE_UNDEFINED:
		case VALUE_NONE:
			return false;
		case VALUE_BOOL:
		case VALUE_INT:
			return value->i != 0;
		case VALUE_FLOAT:
			return value->f != 0;
		case VALUE_STRING:
			return value->len > 0;
		case VALUE_LIST:
		case VALUE_DICT:
			return value->n > 0;
		default:
			return true;
	}
}

static bool
is_number(const Dsv3Value *value)
{
	return value->type == VALUE_BOOL || value->type == VALUE_INT || value->type == VALUE_FLOAT;
}

static double
as_double(const Dsv3Value *value)
{
	return value->type == VALUE_FLOAT ? value->f : (double) value->i;
}

/* Recursion is bounded by the nesting of JSON and of list literals. */
bool
dsv3_value_equal(const Dsv3Value *a, const Dsv3Value *b)
{
	if (is_number(a) && is_number(b))
		return a->type == VALUE_FLOAT || b->type == VALUE_FLOAT ? as_double(a) == as_double(b) : a->i == b->i;
	if (a->type != b->type)
		return false;
	switch (a->type)
	{
		case VALUE_UNDEFINED:
		case VALUE_NONE:
			return true;
		case VALUE_STRING:
			return a->len == b->len && (a->len == 0 || memcmp(a->text, b->text, a->len) == 0);
		case VALUE_LIST:
			if (a->n != b->n)
				return false;
			for (size_t i = 0; i < a->n; i++)
			{
				if (!dsv3_value_equal(a->items[i], b->items[i]))
					return false;
			}
			return true;
		case VALUE_DICT:
			if (a->n != b->n)
				return false;
			for (size_t i = 0; i < a->n; i++)
			{
				const Dsv3Value *other = dsv3_dict_get(b, a->keys[i]);

				if (other == NULL || !dsv3_value_equal(a->items[i], other))
					return false;
			}
			return true;
		default:
			return a == b;
	}
}

size_t
dsv3_string_chars(const Dsv3Value *string)
{
	size_t n = 0;

	for (size_t i = 0; i < string->len; i++)
		n += ((uint8_t) string->text[i] & 0xC0) != 0x80;
	return n;
}

const Dsv3Value *
dsv3_value_as_text(Dsv3Pool *pool, const Dsv3Value *value, Dsv3Error *err)
{
	char buffer[64];
	Dsv3Value *text;

	switch (value->type)
	{
		case VALUE_STRING:
			return value;
		case VALUE_UNDEFINED:
			buffer[0] = '\0';
			break;
		case VALUE_NONE:
			strcpy(buffer, "None");
			break;
		case VALUE_BOOL:
			strcpy(buffer, value->i ? "True" : "False");
			break;
		case VALUE_INT:
			snprintf(buffer, sizeof(buffer), "%lld", (long long) value->i);
			break;
		case VALUE_FLOAT:
			dsv3_write_float(value->f, buffer, sizeof(buffer));
			break;
		default:
			return dsv3_jinja_refuse(err, "cannot print", dsv3_value_type_name(value));
	}
	text = dsv3_value_string(pool, buffer, strlen(buffer), false);
	return text ? text : dsv3_jinja_no_memory(pool, err);
}

/* ---- arguments ---- */

const Dsv3Value *
dsv3_argument(const Arguments *args, size_t position, const char *name)
{
	if (position < args->n)
		return args->items[position];
	for (size_t i = 0; name != NULL && i < args->n_keywords; i++)
	{
		if (strcmp(args->keywords[i], name) == 0)
			return args->items[args->n + i];
	}
	return NULL;
}

static const Dsv3Value *
string_argument(const Arguments *args, size_t position, const char *name, const char *callee, Dsv3Error *err)
{
	const Dsv3Value *value = dsv3_argument(args, position, name);

	if (value == NULL || value->type != VALUE_STRING)
		return dsv3_jinja_refuse(err, "wants a string for", callee);
	return value;
}

/* ---- strings ---- */

/* Where needle begins in text[from..len), or SIZE_MAX. */
static size_t
find(const Dsv3Value *text, size_t from, const Dsv3Value *needle)
{
	const char *found;

	if (needle->len == 0)
		return from;
	if (from >= text->len)
		return SIZE_MAX;
	found = memmem(text->text + from, text->len - from, needle->text, needle->len);
	return found ? (size_t) (found - text->text) : SIZE_MAX;
}

/* Is the character c one that strip takes? chars NULL: white space. */
static bool
is_stripped(uint32_t c, const Dsv3Value *chars)
{
	if (chars == NULL)
		return dsv3_is_python_space(c);
	for (size_t i = 0; i < chars->len;)
	{
		uint32_t other = 0;
		bool incomplete;
		int n = dsv3_utf8_next((const uint8_t *) chars->text + i, chars->len - i, &other, &incomplete);

		if (other == c)
			return true;
		i += n > 0 ? (size_t) n : 1;
	}
	return false;
}

static Dsv3Value *
strip(Dsv3Pool *pool, const Dsv3Value *self, const Dsv3Value *chars, bool left, bool right)
{
	size_t from = 0, to = self->len;
	uint32_t c = 0;
	bool incomplete;

	while (left && from < to)
	{
		int n = dsv3_utf8_next((const uint8_t *) self->text + from, to - from, &c, &incomplete);

		if (n <= 0 || !is_stripped(c, chars))
			break;
		from += (size_t) n;
	}
	while (right && to > from)
	{
		size_t at = to - 1;

		while (at > from && ((uint8_t) self->text[at] & 0xC0) == 0x80)
			at--;
		if (dsv3_utf8_next((const uint8_t *) self->text + at, to - at, &c, &incomplete) <= 0 ||
			!is_stripped(c, chars))
			break;
		to = at;
	}
	return dsv3_value_slice(pool, self, from, to);
}

/* split by a separator, at most max times (negative: no limit). */
static Dsv3Value *
split(Dsv3Pool *pool, const Dsv3Value *self, const Dsv3Value *separator, int64_t max)
{
	Dsv3Value *list = dsv3_value_list(pool);
	size_t from = 0;

	while (list != NULL)
	{
		size_t at = max == 0 ? SIZE_MAX : find(self, from, separator);

		if (!dsv3_list_append(pool, list,
							  dsv3_value_slice(pool, self, from, at == SIZE_MAX ? self->len : at)))
			return NULL;
		if (at == SIZE_MAX)
			break;
		from = at + separator->len;
		max--;
	}
	return list;
}

static Dsv3Value *
replace(Dsv3Pool *pool, const Dsv3Value *self, const Dsv3Value *from, const Dsv3Value *to)
{
	Dsv3Value *parts = split(pool, self, from, -1), *result;

	if (parts == NULL)
		return NULL;
	result = parts->items[0];
	for (size_t i = 1; result != NULL && i < parts->n; i++)
	{
		Dsv3Value *with = dsv3_value_join(pool, result, to);

		result = with ? dsv3_value_join(pool, with, parts->items[i]) : NULL;
	}
	return result;
}

/* ---- methods ---- */

bool
dsv3_is_method(const Dsv3Value *value, const char *name)
{
	static const char *const of_string[] = {"split",      "strip",    "lstrip",  "rstrip",
											"startswith", "endswith", "replace", NULL};
	static const char *const of_dict[] = {"get", "items", "keys", "values", NULL};
	const char *const *names = value->type == VALUE_STRING ? of_string
							   : value->type == VALUE_DICT ? of_dict
														   : NULL;

	for (; names != NULL && *names != NULL; names++)
	{
		if (strcmp(*names, name) == 0)
			return true;
	}
	return false;
}

static Dsv3Value *
call_string_method(Dsv3Pool *pool, const char *name, const Dsv3Value *self, const Arguments *args,
				   Dsv3Error *err)
{
	const Dsv3Value *first = dsv3_argument(args, 0, NULL), *second = dsv3_argument(args, 1, "maxsplit");

	if (strcmp(name, "strip") == 0 || strcmp(name, "lstrip") == 0 || strcmp(name, "rstrip") == 0)
	{
		if (first != NULL && first->type != VALUE_STRING)
			return dsv3_jinja_refuse(err, "wants a string for", name);
		return strip(pool, self, first, name[0] != 'r', name[0] != 'l');
	}
	first = string_argument(args, 0, name[0] == 's' && name[1] == 'p' ? "sep" : NULL, name, err);
	if (first == NULL)
		return NULL;
	if (strcmp(name, "startswith") == 0)
		return dsv3_value_bool(pool,
							   self->len >= first->len &&
								   (first->len == 0 || memcmp(self->text, first->text, first->len) == 0));
	if (strcmp(name, "endswith") == 0)
		return dsv3_value_bool(pool, self->len >= first->len &&
										 (first->len == 0 || memcmp(self->text + self->len - first->len,
																	first->text, first->len) == 0));
	if (first->len == 0)
		return dsv3_jinja_refuse(err, "gives an empty string to", name);
	if (strcmp(name, "replace") == 0)
	{
		second = string_argument(args, 1, NULL, name, err);
		return second ? replace(pool, self, first, second) : NULL;
	}
	if (second != NULL && second->type != VALUE_INT)
		return dsv3_jinja_refuse(err, "wants an integer for", name);
	return split(pool, self, first, second ? second->i : -1);
}

/* One of keys, values or items of a dict as a list; which is the method's name. */
static Dsv3Value *
list_dict(Dsv3Pool *pool, const char *which, const Dsv3Value *dict)
{
	Dsv3Value *list = dsv3_value_list(pool);

	for (size_t i = 0; list != NULL && i < dict->n; i++)
	{
		Dsv3Value *key = dsv3_value_string(pool, dict->keys[i], strlen(dict->keys[i]), true), *item = key;

		if (which[0] == 'v')
			item = dict->items[i];
		else if (which[0] == 'i')
		{
			item = dsv3_value_list(pool);
			if (item == NULL || !dsv3_list_append(pool, item, key) ||
				!dsv3_list_append(pool, item, dict->items[i]))
				return NULL;
		}
		if (!dsv3_list_append(pool, list, item))
			return NULL;
	}
	return list;
}

/* A string as the key of a dict. Keys have no zero bytes, so one with such a byte is in no dict. */
static const char *
as_key(Dsv3Pool *pool, const Dsv3Value *string)
{
	char *key = dsv3_pool_alloc(pool, string->len + 1);

	if (key != NULL && string->len > 0)
		memcpy(key, string->text, string->len);
	return key;
}

Dsv3Value *
dsv3_call_method(Dsv3Pool *pool, const char *name, const Dsv3Value *self, const Arguments *args,
				 Dsv3Error *err)
{
	Dsv3Value *result;
	Dsv3Error inner = {.sqlstate = ""};

	if (self->type == VALUE_STRING)
		result = call_string_method(pool, name, self, args, &inner);
	else if (strcmp(name, "get") == 0)
	{
		const Dsv3Value *key = string_argument(args, 0, "key", name, &inner),
						*fallback = dsv3_argument(args, 1, "default");
		const char *text = key ? as_key(pool, key) : NULL;

		result = text ? dsv3_dict_get(self, text) : NULL;
		if (text != NULL && result == NULL)
			result = fallback ? (Dsv3Value *) fallback : dsv3_value_none(pool);
	}
	else
		result = list_dict(pool, name, self);
	if (result == NULL)
	{
		if (inner.sqlstate[0] == '\0')
			dsv3_jinja_no_memory(pool, &inner);
		if (err != NULL)
			*err = inner;
	}
	return result;
}

/* ---- filters ---- */

bool
dsv3_is_filter(const char *name)
{
	static const char *const names[] = {"tojson",  "trim", "length", "count", "first", "last",    "join",
										"default", "d",    "string", "list",  "items", "replace", "safe"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
	{
		if (strcmp(names[i], name) == 0)
			return true;
	}
	return false;
}

static Dsv3Value *
filter_join(Dsv3Pool *pool, const Dsv3Value *value, const Arguments *args, Dsv3Error *err)
{
	const Dsv3Value *separator = dsv3_argument(args, 0, "d");
	Dsv3Value *result = dsv3_value_string(pool, "", 0, false);

	if (value->type != VALUE_LIST || (separator != NULL && separator->type != VALUE_STRING) ||
		args->n_keywords > 1)
		return dsv3_jinja_refuse(err, "cannot join", dsv3_value_type_name(value));
	for (size_t i = 0; result != NULL && i < value->n; i++)
	{
		const Dsv3Value *text = dsv3_value_as_text(pool, value->items[i], err);

		if (text == NULL)
			return NULL;
		if (i > 0 && separator != NULL)
			result = dsv3_value_join(pool, result, separator);
		if (result != NULL)
			result = dsv3_value_join(pool, result, text);
	}
	return result;
}

/* The items a filter or loop sees in a value as a new or shared list. */
static Dsv3Value *
as_list(Dsv3Pool *pool, Dsv3Value *value, Dsv3Error *err)
{
	if (value->type == VALUE_LIST)
		return value;
	if (value->type == VALUE_DICT)
		return list_dict(pool, "keys", value);
	if (value->type == VALUE_UNDEFINED)
		return dsv3_value_list(pool);
	return dsv3_jinja_refuse(err, "cannot make a list of", dsv3_value_type_name(value));
}

static Dsv3Value *
call_filter(Dsv3Pool *pool, const char *name, Dsv3Value *value, const Arguments *args, Dsv3Error *err)
{
	if (strcmp(name, "tojson") == 0)
		return dsv3_filter_tojson(pool, value, args, err);
	if (strcmp(name, "join") == 0)
		return filter_join(pool, value, args, err);
	if (strcmp(name, "default") == 0 || strcmp(name, "d") == 0)
	{
		const Dsv3Value *fallback = dsv3_argument(args, 0, "default_value"),
						*boolean = dsv3_argument(args, 1, "boolean");
		bool missing = value->type == VALUE_UNDEFINED ||
					   (boolean && dsv3_value_truth(boolean) && !dsv3_value_truth(value));

		if (!missing)
			return value;
		return fallback ? (Dsv3Value *) fallback : dsv3_value_string(pool, "", 0, false);
	}
	if (strcmp(name, "length") == 0 || strcmp(name, "count") == 0)
	{
		if (value->type == VALUE_STRING)
			return dsv3_value_int(pool, (int64_t) dsv3_string_chars(value));
		if (value->type == VALUE_LIST || value->type == VALUE_DICT || value->type == VALUE_UNDEFINED)
			return dsv3_value_int(pool, (int64_t) value->n);
		return dsv3_jinja_refuse(err, "wants the length of", dsv3_value_type_name(value));
	}
	if (strcmp(name, "first") == 0 || strcmp(name, "last") == 0)
	{
		Dsv3Value *list = as_list(pool, value, err);

		if (list == NULL)
			return NULL;
		if (list->n == 0)
			return dsv3_value_undefined(pool, name);
		return list->items[name[0] == 'f' ? 0 : list->n - 1];
	}
	if (strcmp(name, "list") == 0)
		return as_list(pool, value, err);
	if (strcmp(name, "items") == 0)
	{
		if (value->type != VALUE_DICT)
			return dsv3_jinja_refuse(err, "wants the items of", dsv3_value_type_name(value));
		return list_dict(pool, "items", value);
	}
	/* what is left works on text: trim, string, safe, replace */
	value = (Dsv3Value *) dsv3_value_as_text(pool, value, err);
	if (value == NULL || name[0] == 's')
		return value;
	return call_string_method(pool, name[0] == 't' ? "strip" : "replace", value, args, err);
}

Dsv3Value *
dsv3_call_filter(Dsv3Pool *pool, const char *name, Dsv3Value *value, const Arguments *args, Dsv3Error *err)
{
	Dsv3Error inner = {.sqlstate = ""};
	Dsv3Value *result = call_filter(pool, name, value, args, &inner);

	if (result == NULL)
	{
		if (inner.sqlstate[0] == '\0')
			dsv3_jinja_no_memory(pool, &inner);
		if (err != NULL)
			*err = inner;
	}
	return result;
}

/* ---- tests ---- */

static const char *const test_names[] = {"defined",  "undefined", "none",    "string",  "mapping",
										 "iterable", "sequence",  "number",  "integer", "boolean",
										 "true",     "false",     "equalto", "eq"};

bool
dsv3_is_test(const char *name)
{
	for (size_t i = 0; i < sizeof(test_names) / sizeof(test_names[0]); i++)
	{
		if (strcmp(test_names[i], name) == 0)
			return true;
	}
	return false;
}

int
dsv3_call_test(const char *name, const Dsv3Value *value, const Arguments *args, Dsv3Error *err)
{
	ValueType type = value->type;

	if (strcmp(name, "defined") == 0)
		return type != VALUE_UNDEFINED;
	if (strcmp(name, "undefined") == 0)
		return type == VALUE_UNDEFINED;
	if (strcmp(name, "none") == 0)
		return type == VALUE_NONE;
	if (strcmp(name, "string") == 0)
		return type == VALUE_STRING;
	if (strcmp(name, "mapping") == 0)
		return type == VALUE_DICT;
	if (strcmp(name, "iterable") == 0 || strcmp(name, "sequence") == 0)
		return type == VALUE_STRING || type == VALUE_LIST || type == VALUE_DICT || type == VALUE_UNDEFINED;
	if (strcmp(name, "number") == 0)
		return is_number(value);
	if (strcmp(name, "integer") == 0)
		return type == VALUE_INT;
	if (strcmp(name, "boolean") == 0)
		return type == VALUE_BOOL;
	if (strcmp(name, "true") == 0)
		return type == VALUE_BOOL && value->i;
	if (strcmp(name, "false") == 0)
		return type == VALUE_BOOL && !value->i;
	if (args->n != 1)
	{
		dsv3_jinja_refuse(err, "wants one argument for", name);
		return -1;
	}
	return dsv3_value_equal(value, args->items[0]);
}
