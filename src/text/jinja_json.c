/*
 * jinja_json.c
 *	  JSON as Python's json.dumps writes it, for the filter tojson and for tool definitions.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_internal.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#define MAX_JSON_DEPTH 256

void
dsv3_write_float(double f, char *out, size_t size)
{
	char digits[40];
	int exponent, n = 0;
	char mantissa[24];

	if (!isfinite(f))
	{
		snprintf(out, size, "%s", isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
		return;
	}
	for (int precision = 0; precision < 17; precision++)
	{
		snprintf(digits, sizeof(digits), "%.*e", precision, f);
		if (strtod(digits, NULL) == f)
			break;
	}
	exponent = atoi(strchr(digits, 'e') + 1);
	for (const char *d = digits; *d != 'e'; d++)
	{
		if (*d >= '0' && *d <= '9')
			mantissa[n++] = *d;
	}
	mantissa[n] = '\0';
	if (exponent < -4 || exponent >= 16)
		snprintf(out, size, "%s%c%s%se%c%02d", signbit(f) ? "-" : "", mantissa[0], n > 1 ? "." : "",
				 mantissa + 1, exponent < 0 ? '-' : '+', abs(exponent));
	else
		snprintf(out, size, "%.*f", n - 1 - exponent > 1 ? n - 1 - exponent : 1, f);
}

typedef struct JsonWriter
{
	Dsv3Text out;
	const Dsv3Value *item_separator; /* NULL: ", " */
	const Dsv3Value *key_separator;  /* NULL: ": " */
	bool ensure_ascii;
	Dsv3Error *err;
} JsonWriter;

static bool
write_json_string(JsonWriter *w, const char *text, size_t len)
{
	bool ok = dsv3_text_append(&w->out, "\"", 1, w->err);

	for (size_t i = 0; ok && i < len;)
	{
		static const char plain[] = "\"\\\n\r\t\b\f", letter[] = "\"\\nrtbf";
		const char *found = text[i] ? strchr(plain, text[i]) : NULL;
		char escape[16];
		size_t step = dsv3_utf8_length((uint8_t) text[i]);

		if (found != NULL)
		{
			snprintf(escape, sizeof(escape), "\\%c", letter[found - plain]);
			ok = dsv3_text_append(&w->out, escape, 2, w->err);
		}
		else if ((uint8_t) text[i] < 0x20 || (w->ensure_ascii && (uint8_t) text[i] >= 0x7F))
		{
			uint32_t c = (uint8_t) text[i];
			bool incomplete;
			int n = 0;

			dsv3_utf8_next((const uint8_t *) text + i, len - i, &c, &incomplete);
			if (c == 0x7F)
				n = snprintf(escape, sizeof(escape), "%c", 0x7F);
			else if (c < 0x10000)
				n = snprintf(escape, sizeof(escape), "\\u%04x", c);
			else
				n = snprintf(escape, sizeof(escape), "\\u%04x\\u%04x", 0xD7C0 + (c >> 10),
							 0xDC00 | (c & 0x3FF));
			ok = dsv3_text_append(&w->out, escape, (size_t) n, w->err);
		}
		else
			ok = dsv3_text_append(&w->out, text + i, step, w->err);
		i += step;
	}
	return ok && dsv3_text_append(&w->out, "\"", 1, w->err);
}

static bool
write_separator(JsonWriter *w, const Dsv3Value *separator, const char *fallback)
{
	return separator ? dsv3_text_append(&w->out, separator->text, separator->len, w->err)
					 : dsv3_text_append(&w->out, fallback, strlen(fallback), w->err);
}

static bool
write_json(JsonWriter *w, const Dsv3Value *value, int depth)
{
	char buffer[64];
	bool is_dict = value->type == VALUE_DICT, ok;

	if (depth > MAX_JSON_DEPTH)
		return dsv3_error(w->err, DSV3_ERR_INVALID_PARAMETER, "a value is nested too deeply");
	switch (value->type)
	{
		case VALUE_STRING:
			return write_json_string(w, value->text, value->len);
		case VALUE_NONE:
			return dsv3_text_append(&w->out, "null", 4, w->err);
		case VALUE_BOOL:
			return dsv3_text_append(&w->out, value->i ? "true" : "false", value->i ? 4 : 5, w->err);
		case VALUE_INT:
			snprintf(buffer, sizeof(buffer), "%lld", (long long) value->i);
			return dsv3_text_append(&w->out, buffer, strlen(buffer), w->err);
		case VALUE_FLOAT:
			dsv3_write_float(value->f, buffer, sizeof(buffer));
			return dsv3_text_append(&w->out, buffer, strlen(buffer), w->err);
		case VALUE_LIST:
		case VALUE_DICT:
			ok = dsv3_text_append(&w->out, is_dict ? "{" : "[", 1, w->err);
			for (size_t i = 0; ok && i < value->n; i++)
			{
				if (i > 0)
					ok = write_separator(w, w->item_separator, ", ");
				if (ok && is_dict)
					ok = write_json_string(w, value->keys[i], strlen(value->keys[i])) &&
						 write_separator(w, w->key_separator, ": ");
				ok = ok && write_json(w, value->items[i], depth + 1);
			}
			return ok && dsv3_text_append(&w->out, is_dict ? "}" : "]", 1, w->err);
		default:
			dsv3_jinja_refuse(w->err, "cannot write as JSON", dsv3_value_type_name(value));
			return false;
	}
}

static Dsv3Value *
finish_json(Dsv3Pool *pool, JsonWriter *w, const Dsv3Value *value)
{
	Dsv3Value *result = NULL;

	if (write_json(w, value, 0))
	{
		result = dsv3_value_string(pool, w->out.data, w->out.len, true);
		if (result == NULL)
			dsv3_jinja_no_memory(pool, w->err);
	}
	dsv3_text_free(&w->out);
	return result;
}

Dsv3Value *
dsv3_value_to_json(Dsv3Pool *pool, const Dsv3Value *value, Dsv3Error *err)
{
	JsonWriter w = {.err = err};

	return finish_json(pool, &w, value);
}

Dsv3Value *
dsv3_filter_tojson(Dsv3Pool *pool, const Dsv3Value *value, const Arguments *args, Dsv3Error *err)
{
	JsonWriter w = {.err = err};
	const Dsv3Value *separators = dsv3_argument(args, 2, "separators"),
					*indent = dsv3_argument(args, 1, "indent");
	const Dsv3Value *ascii = dsv3_argument(args, 0, "ensure_ascii"),
					*sort = dsv3_argument(args, 3, "sort_keys");

	if ((indent != NULL && indent->type != VALUE_NONE) || (sort != NULL && dsv3_value_truth(sort)))
		return dsv3_jinja_refuse(err, "uses", "indent or sort_keys with tojson, which is not supported");
	if (separators != NULL && separators->type != VALUE_NONE)
	{
		if (separators->type != VALUE_LIST || separators->n != 2 ||
			separators->items[0]->type != VALUE_STRING || separators->items[1]->type != VALUE_STRING)
			return dsv3_jinja_refuse(err, "wants two strings for", "separators");
		w.item_separator = separators->items[0];
		w.key_separator = separators->items[1];
	}
	w.ensure_ascii = ascii != NULL && dsv3_value_truth(ascii);
	return finish_json(pool, &w, value);
}
