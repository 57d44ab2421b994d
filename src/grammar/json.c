/*
 * json.c
 *	  Parser, comparisons and canonical writer for json.h.
 *
 * The parser is recursive with a fixed depth limit, reads bytes it does not trust, and never reads past len. Strings
 * are decoded to UTF-8; a lone surrogate, U+0000 written as an escape or an invalid byte is a fault, because neither
 * PostgreSQL nor the decoder can write them.
 */
#include "grammar/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Parser
{
	Arena *arena;
	const char *text;
	size_t len;
	size_t at;
	int depth;
	bool reject_duplicates;
	JsonFault *fault;
} Parser;

static Json *parse_value(Parser *p);

static Json *
fault(Parser *p, const char *what)
{
	p->fault->offset = p->at;
	p->fault->what = what;
	return NULL;
}

static void
skip_space(Parser *p)
{
	while (p->at < p->len && (p->text[p->at] == ' ' || p->text[p->at] == '\t' || p->text[p->at] == '\n' ||
							  p->text[p->at] == '\r'))
		p->at++;
}

Json *
dsv3_gr_json_new(Arena *arena, JsonKind kind)
{
	Json *value = dsv3_gr_arena_alloc(arena, sizeof(Json));

	value->kind = (uint8_t) kind;
	value->resource = -1;
	return value;
}

Json *
dsv3_gr_json_new_object1(Arena *arena, const char *key, Json *member)
{
	Json *value = dsv3_gr_json_new(arena, JSON_OBJECT_);

	value->n = 1;
	value->u.members = dsv3_gr_arena_alloc(arena, sizeof(JsonMember));
	value->u.members[0].key = key;
	value->u.members[0].keylen = (uint32_t) strlen(key);
	value->u.members[0].value = member;
	return value;
}

/* Length of the valid UTF-8 character at s (n bytes left), or 0. */
static int
utf8_char(const unsigned char *s, size_t n)
{
	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xC2 && s[0] <= 0xDF)
		return n >= 2 && (s[1] & 0xC0) == 0x80 ? 2 : 0;
	if (s[0] >= 0xE0 && s[0] <= 0xEF)
	{
		unsigned char lo = s[0] == 0xE0 ? 0xA0 : 0x80;
		unsigned char hi = s[0] == 0xED ? 0x9F : 0xBF;

		return n >= 3 && s[1] >= lo && s[1] <= hi && (s[2] & 0xC0) == 0x80 ? 3 : 0;
	}
	if (s[0] >= 0xF0 && s[0] <= 0xF4)
	{
		unsigned char lo = s[0] == 0xF0 ? 0x90 : 0x80;
		unsigned char hi = s[0] == 0xF4 ? 0x8F : 0xBF;

		return n >= 4 && s[1] >= lo && s[1] <= hi && (s[2] & 0xC0) == 0x80 && (s[3] & 0xC0) == 0x80 ? 4 : 0;
	}
	return 0;
}

static int
hex4(const char *s)
{
	int v = 0;

	for (int i = 0; i < 4; i++)
	{
		char c = s[i];

		v <<= 4;
		if (c >= '0' && c <= '9')
			v |= c - '0';
		else if (c >= 'a' && c <= 'f')
			v |= c - 'a' + 10;
		else if (c >= 'A' && c <= 'F')
			v |= c - 'A' + 10;
		else
			return -1;
	}
	return v;
}

static int
put_utf8(char *out, uint32_t c)
{
	if (c < 0x80)
	{
		out[0] = (char) c;
		return 1;
	}
	if (c < 0x800)
	{
		out[0] = (char) (0xC0 | (c >> 6));
		out[1] = (char) (0x80 | (c & 0x3F));
		return 2;
	}
	if (c < 0x10000)
	{
		out[0] = (char) (0xE0 | (c >> 12));
		out[1] = (char) (0x80 | ((c >> 6) & 0x3F));
		out[2] = (char) (0x80 | (c & 0x3F));
		return 3;
	}
	out[0] = (char) (0xF0 | (c >> 18));
	out[1] = (char) (0x80 | ((c >> 12) & 0x3F));
	out[2] = (char) (0x80 | ((c >> 6) & 0x3F));
	out[3] = (char) (0x80 | (c & 0x3F));
	return 4;
}

/* p->at is just after the opening quote. */
static char *
parse_string(Parser *p, uint32_t *outlen)
{
	size_t end = p->at;
	size_t n = 0;
	char *out;

	while (end < p->len && p->text[end] != '"')
		end += p->text[end] == '\\' ? 2 : 1;
	if (end >= p->len)
	{
		fault(p, "unterminated string");
		return NULL;
	}
	out = dsv3_gr_arena_alloc(p->arena, end - p->at + 1);
	while (p->at < end)
	{
		unsigned char c = (unsigned char) p->text[p->at];

		if (c == '\\')
		{
			char e = p->text[p->at + 1];
			const char *from = "bfnrt\"\\/";
			const char *to = "\b\f\n\r\t\"\\/";
			const char *found = e == '\0' ? NULL : strchr(from, e);

			if (found != NULL)
			{
				out[n++] = to[found - from];
				p->at += 2;
			}
			else if (e == 'u' && p->at + 6 <= end)
			{
				int v = hex4(p->text + p->at + 2);
				uint32_t code = (uint32_t) v;

				if (v < 0)
				{
					fault(p, "invalid \\u escape");
					return NULL;
				}
				if (v >= 0xD800 && v <= 0xDFFF)
				{
					int low = -1;

					if (v <= 0xDBFF && p->at + 12 <= end && p->text[p->at + 6] == '\\' &&
						p->text[p->at + 7] == 'u')
						low = hex4(p->text + p->at + 8);
					if (low < 0xDC00 || low > 0xDFFF)
					{
						fault(p, "half of a surrogate pair");
						p->fault->bad_text = true;
						return NULL;
					}
					code = 0x10000 + (((uint32_t) v - 0xD800) << 10) + ((uint32_t) low - 0xDC00);
					p->at += 6;
				}
				n += (size_t) put_utf8(out + n, code);
				p->at += 6;
			}
			else
			{
				fault(p, "invalid escape in a string");
				return NULL;
			}
		}
		else if (c < 0x20)
		{
			fault(p, "raw control character in a string");
			return NULL;
		}
		else
		{
			int k = utf8_char((const unsigned char *) p->text + p->at, end - p->at);

			if (k == 0)
			{
				fault(p, "invalid UTF-8");
				p->fault->bad_text = true;
				return NULL;
			}
			memcpy(out + n, p->text + p->at, (size_t) k);
			n += (size_t) k;
			p->at += (size_t) k;
		}
	}
	p->at = end + 1;
	out[n] = '\0';
	*outlen = (uint32_t) n;
	return out;
}

static Json *
parse_number(Parser *p)
{
	size_t start = p->at;
	Json *value;

	if (p->at < p->len && p->text[p->at] == '-')
		p->at++;
	if (p->at >= p->len || p->text[p->at] < '0' || p->text[p->at] > '9')
		return fault(p, "invalid JSON value");
	if (p->text[p->at] == '0')
		p->at++;
	else
		while (p->at < p->len && p->text[p->at] >= '0' && p->text[p->at] <= '9')
			p->at++;
	if (p->at < p->len && p->text[p->at] == '.')
	{
		size_t digits = ++p->at;

		while (p->at < p->len && p->text[p->at] >= '0' && p->text[p->at] <= '9')
			p->at++;
		if (p->at == digits)
			return fault(p, "number without digits after the point");
	}
	if (p->at < p->len && (p->text[p->at] == 'e' || p->text[p->at] == 'E'))
	{
		size_t digits;

		p->at++;
		if (p->at < p->len && (p->text[p->at] == '+' || p->text[p->at] == '-'))
			p->at++;
		digits = p->at;
		while (p->at < p->len && p->text[p->at] >= '0' && p->text[p->at] <= '9')
			p->at++;
		if (p->at == digits || p->at - digits > 9)
			return fault(p,
						 p->at == digits ? "number without digits in its exponent" : "exponent is too large");
	}
	if (p->at - start > 100000)
	{
		p->fault->too_large = true;
		return fault(p, "has a number of more than 100000 digits");
	}
	value = dsv3_gr_json_new(p->arena, JSON_NUMBER_);
	value->u.num = dsv3_gr_dec_parse(p->arena, p->text + start, p->at - start);
	return value;
}

static Json *
parse_array(Parser *p)
{
	Json *value = dsv3_gr_json_new(p->arena, JSON_ARRAY_);
	uint32_t cap = 0;

	skip_space(p);
	if (p->at < p->len && p->text[p->at] == ']')
	{
		p->at++;
		return value;
	}
	for (;;)
	{
		Json *item = parse_value(p);

		if (item == NULL)
			return NULL;
		if (value->n == cap)
		{
			Json **items;

			cap = cap == 0 ? 4 : cap * 2;
			items = dsv3_gr_arena_alloc(p->arena, cap * sizeof(Json *));
			if (value->n != 0)
				memcpy(items, value->u.items, value->n * sizeof(Json *));
			value->u.items = items;
		}
		item->parent = value;
		item->parent_index = value->n;
		value->u.items[value->n++] = item;
		skip_space(p);
		if (p->at < p->len && p->text[p->at] == ',')
			p->at++;
		else if (p->at < p->len && p->text[p->at] == ']')
		{
			p->at++;
			return value;
		}
		else
			return fault(p, "expected \",\" or \"]\"");
	}
}

static Json *
parse_object(Parser *p)
{
	Json *value = dsv3_gr_json_new(p->arena, JSON_OBJECT_);
	uint32_t cap = 0;
	uint32_t *table = NULL; /* value->slots while it grows */
	uint32_t mask = 0;

	skip_space(p);
	if (p->at < p->len && p->text[p->at] == '}')
	{
		p->at++;
		return value;
	}
	for (;;)
	{
		uint32_t keylen;
		uint32_t slot;
		char *key;
		Json *member;

		skip_space(p);
		if (p->at >= p->len || p->text[p->at] != '"')
			return fault(p, "expected a key in double quotes");
		p->at++;
		key = parse_string(p, &keylen);
		if (key == NULL)
			return NULL;
		skip_space(p);
		if (p->at >= p->len || p->text[p->at] != ':')
			return fault(p, "expected \":\"");
		p->at++;
		member = parse_value(p);
		if (member == NULL)
			return NULL;
		if (value->n == cap || table == NULL)
		{
			JsonMember *members;

			cap = cap == 0 ? 4 : cap * 2;
			members = dsv3_gr_arena_alloc(p->arena, cap * sizeof(JsonMember));
			if (value->n != 0)
				memcpy(members, value->u.members, value->n * sizeof(JsonMember));
			value->u.members = members;
			mask = cap * 2 - 1;
			table = dsv3_gr_arena_alloc(p->arena, (size_t) cap * 2 * sizeof(uint32_t));
			for (uint32_t i = 0; i < value->n; i++)
			{
				slot = dsv3_gr_hash(members[i].key, members[i].keylen) & mask;
				while (table[slot] != 0)
					slot = (slot + 1) & mask;
				table[slot] = i + 1;
			}
			value->slots = table;
			value->mask = mask;
		}
		slot = dsv3_gr_hash(key, keylen) & mask;
		while (table[slot] != 0)
		{
			JsonMember *other = &value->u.members[table[slot] - 1];

			if (other->keylen == keylen && memcmp(other->key, key, keylen) == 0)
				break;
			slot = (slot + 1) & mask;
		}
		if (table[slot] != 0 && p->reject_duplicates)
			return fault(p, "key given twice in one object");
		member->parent = value;
		member->parent_key = key;
		if (table[slot] != 0)
			value->u.members[table[slot] - 1].value = member;
		else
		{
			value->u.members[value->n].key = key;
			value->u.members[value->n].keylen = keylen;
			value->u.members[value->n].value = member;
			table[slot] = ++value->n;
		}
		skip_space(p);
		if (p->at < p->len && p->text[p->at] == ',')
			p->at++;
		else if (p->at < p->len && p->text[p->at] == '}')
		{
			p->at++;
			return value;
		}
		else
			return fault(p, "expected \",\" or \"}\"");
	}
}

static Json *
parse_value(Parser *p)
{
	static const struct
	{
		const char *word;
		size_t len;
		JsonKind kind;
	} words[] = {{"null", 4, JSON_NULL_}, {"false", 5, JSON_FALSE_}, {"true", 4, JSON_TRUE_}};
	Json *value = NULL;

	skip_space(p);
	if (p->at >= p->len)
		return fault(p, "unexpected end of JSON");
	for (size_t i = 0; i < 3; i++)
		if (p->len - p->at >= words[i].len && memcmp(p->text + p->at, words[i].word, words[i].len) == 0)
		{
			p->at += words[i].len;
			return dsv3_gr_json_new(p->arena, words[i].kind);
		}
	switch (p->text[p->at])
	{
		case '"':
			p->at++;
			value = dsv3_gr_json_new(p->arena, JSON_STRING_);
			value->u.str = parse_string(p, &value->n);
			return value->u.str == NULL ? NULL : value;
		case '[':
		case '{':
			if (++p->depth > JSON_MAX_DEPTH)
			{
				p->fault->too_large = true;
				return fault(p, "is nested deeper than 256 levels");
			}
			p->at++;
			value = p->text[p->at - 1] == '[' ? parse_array(p) : parse_object(p);
			p->depth--;
			return value;
		default:
			return parse_number(p);
	}
}

Json *
dsv3_gr_json_parse(Arena *arena, const char *text, size_t len, bool reject_duplicates, JsonFault *faultp)
{
	Parser p = {arena, text, len, 0, 0, reject_duplicates, faultp};
	Json *value;

	memset(faultp, 0, sizeof(*faultp));
	value = parse_value(&p);
	if (value == NULL)
		return NULL;
	skip_space(&p);
	if (p.at != len)
		return fault(&p, "text after the JSON value");
	return value;
}

void
dsv3_gr_json_fail(Ctx *ctx, const JsonFault *fault, const char *whose)
{
	if (fault->too_large)
		dsv3_gr_fail(ctx, DSV3_ERR_TOO_LARGE, NULL, "%s %s at byte %zu", whose, fault->what, fault->offset);
	dsv3_gr_fail(ctx, fault->bad_text ? DSV3_ERR_INVALID_TEXT : DSV3_ERR_INVALID_JSON, NULL,
				 "%s is not valid JSON: %s at byte %zu", whose, fault->what, fault->offset);
}

Json *
dsv3_gr_json_get_n(const Json *object, const char *key, uint32_t keylen)
{
	if (object == NULL || object->kind != JSON_OBJECT_)
		return NULL;
	if (object->n > 8 && object->slots != NULL)
	{
		for (uint32_t slot = dsv3_gr_hash(key, keylen) & object->mask; object->slots[slot] != 0;
			 slot = (slot + 1) & object->mask)
		{
			const JsonMember *m = &object->u.members[object->slots[slot] - 1];

			if (m->keylen == keylen && memcmp(m->key, key, keylen) == 0)
				return m->value;
		}
		return NULL;
	}
	for (uint32_t i = 0; i < object->n; i++)
		if (object->u.members[i].keylen == keylen && memcmp(object->u.members[i].key, key, keylen) == 0)
			return object->u.members[i].value;
	return NULL;
}

Json *
dsv3_gr_json_get(const Json *object, const char *key)
{
	return dsv3_gr_json_get_n(object, key, (uint32_t) strlen(key));
}

bool
dsv3_gr_json_equal(const Json *a, const Json *b)
{
	if (a == b)
		return true;
	if (a->kind != b->kind)
		return false;
	switch (a->kind)
	{
		case JSON_NUMBER_:
			return dsv3_gr_dec_compare(a->u.num, b->u.num) == 0;
		case JSON_STRING_:
			return a->n == b->n && memcmp(a->u.str, b->u.str, a->n) == 0;
		case JSON_ARRAY_:
			if (a->n != b->n)
				return false;
			for (uint32_t i = 0; i < a->n; i++)
				if (!dsv3_gr_json_equal(a->u.items[i], b->u.items[i]))
					return false;
			return true;
		case JSON_OBJECT_:
			if (a->n != b->n)
				return false;
			for (uint32_t i = 0; i < a->n; i++)
			{
				Json *other = dsv3_gr_json_get_n(b, a->u.members[i].key, a->u.members[i].keylen);

				if (other == NULL || !dsv3_gr_json_equal(a->u.members[i].value, other))
					return false;
			}
			return true;
		default:
			return true;
	}
}

bool
dsv3_gr_json_is_integer(const Json *value)
{
	return value->kind == JSON_NUMBER_ && dsv3_gr_dec_is_integer(value->u.num);
}

void
dsv3_gr_json_pointer(const Json *value, char *out, size_t size)
{
	const Json *chain[JSON_MAX_DEPTH + 2];
	int n = 0;
	size_t at = 0;

	for (; value != NULL && value->parent != NULL && n < JSON_MAX_DEPTH + 2; value = value->parent)
		chain[n++] = value;
	out[0] = '\0';
	while (n-- > 0 && at + 16 < size)
	{
		if (chain[n]->parent->kind == JSON_ARRAY_)
			at += (size_t) snprintf(out + at, size - at, "/%u", chain[n]->parent_index);
		else
		{
			out[at++] = '/';
			for (const char *k = chain[n]->parent_key; k != NULL && *k != '\0' && at + 8 < size; k++)
			{
				if (*k == '~' || *k == '/')
				{
					out[at++] = '~';
					out[at++] = *k == '~' ? '0' : '1';
				}
				else
					out[at++] = *k;
			}
			out[at] = '\0';
		}
		if (at >= size)
			at = size - 1;
	}
}

uint32_t
dsv3_gr_json_codepoints(const char *text, uint32_t len)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < len; i++)
		n += ((unsigned char) text[i] & 0xC0) != 0x80;
	return n;
}

void
dsv3_gr_textbuf_add(TextBuf *buf, const char *data, size_t len)
{
	if (buf->failed)
		return;
	if (buf->cap - buf->len < len + 1)
	{
		size_t cap = buf->cap == 0 ? 256 : buf->cap;
		char *grown;

		while (cap - buf->len < len + 1)
			cap *= 2;
		grown = realloc(buf->data, cap);
		if (grown == NULL)
		{
			buf->failed = true;
			return;
		}
		buf->data = grown;
		buf->cap = cap;
	}
	if (len != 0)
		memcpy(buf->data + buf->len, data, len);
	buf->len += len;
	buf->data[buf->len] = '\0';
}

void
dsv3_gr_textbuf_free(TextBuf *buf)
{
	free(buf->data);
	memset(buf, 0, sizeof(*buf));
}

void
dsv3_gr_json_write_string(TextBuf *buf, const char *text, uint32_t len)
{
	dsv3_gr_textbuf_add(buf, "\"", 1);
	for (uint32_t i = 0; i < len; i++)
	{
		unsigned char c = (unsigned char) text[i];
		const char *from = "\b\t\n\f\r\"\\";
		const char *to = "btnfr\"\\";
		const char *found = c == 0 ? NULL : strchr(from, c);
		char esc[8];

		if (found != NULL)
		{
			esc[0] = '\\';
			esc[1] = to[found - from];
			dsv3_gr_textbuf_add(buf, esc, 2);
		}
		else if (c < 0x20)
		{
			snprintf(esc, sizeof(esc), "\\u%04x", c);
			dsv3_gr_textbuf_add(buf, esc, 6);
		}
		else
			dsv3_gr_textbuf_add(buf, text + i, 1);
	}
	dsv3_gr_textbuf_add(buf, "\"", 1);
}

void
dsv3_gr_json_write(TextBuf *buf, const Json *value)
{
	switch (value->kind)
	{
		case JSON_NULL_:
			dsv3_gr_textbuf_add(buf, "null", 4);
			break;
		case JSON_FALSE_:
			dsv3_gr_textbuf_add(buf, "false", 5);
			break;
		case JSON_TRUE_:
			dsv3_gr_textbuf_add(buf, "true", 4);
			break;
		case JSON_NUMBER_:
			dsv3_gr_dec_write(buf, value->u.num);
			break;
		case JSON_STRING_:
			dsv3_gr_json_write_string(buf, value->u.str, value->n);
			break;
		case JSON_ARRAY_:
			dsv3_gr_textbuf_add(buf, "[", 1);
			for (uint32_t i = 0; i < value->n; i++)
			{
				if (i != 0)
					dsv3_gr_textbuf_add(buf, ",", 1);
				dsv3_gr_json_write(buf, value->u.items[i]);
			}
			dsv3_gr_textbuf_add(buf, "]", 1);
			break;
		default:
			dsv3_gr_textbuf_add(buf, "{", 1);
			for (uint32_t i = 0; i < value->n; i++)
			{
				if (i != 0)
					dsv3_gr_textbuf_add(buf, ",", 1);
				dsv3_gr_json_write_string(buf, value->u.members[i].key, value->u.members[i].keylen);
				dsv3_gr_textbuf_add(buf, ":", 1);
				dsv3_gr_json_write(buf, value->u.members[i].value);
			}
			dsv3_gr_textbuf_add(buf, "}", 1);
			break;
	}
}
