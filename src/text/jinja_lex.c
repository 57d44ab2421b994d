/*
 * jinja_lex.c
 *	  The lexer of chat templates; see jinja_lex.h. White space around tags follows Jinja with trim_blocks and lstrip_blocks,
 *	  which is how transformers sets it.
 */
#include "text/jinja_lex.h"

#include <stdio.h>
#include <string.h>

#include "text/utf8.h"

static bool
fail(Parser *p, const char *sqlstate, const char *what)
{
	return dsv3_error(p->err, sqlstate, "chat template, line %d: %s", p->line, what);
}

bool
dsv3_jinja_malformed(Parser *p, const char *what)
{
	return fail(p, DSV3_ERR_BAD_FILE, what);
}

bool
dsv3_jinja_unsupported(Parser *p, const char *kind, const char *name)
{
	return dsv3_error(p->err, DSV3_ERR_UNSUPPORTED,
					  "chat template, line %d: the %s \"%.40s\" is not supported", p->line, kind, name);
}

void *
dsv3_jinja_alloc(Parser *p, size_t size)
{
	void *result = dsv3_pool_alloc(&p->program->pool, size);

	return result == NULL ? dsv3_jinja_no_memory(&p->program->pool, p->err) : result;
}

Node *
dsv3_jinja_new_node(Parser *p, NodeType type)
{
	Node *node = dsv3_jinja_alloc(p, sizeof(*node));

	if (node != NULL)
	{
		node->type = type;
		node->line = p->line;
	}
	return node;
}

static bool
is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool
looking_at(const Parser *p, const char *text)
{
	size_t n = strlen(text);

	return p->len - p->pos >= n && memcmp(p->source + p->pos, text, n) == 0;
}

/* Move on by n bytes, counting lines. */
static void
advance(Parser *p, size_t n)
{
	for (; n > 0; n--)
	{
		if (p->source[p->pos++] == '\n')
			p->line++;
	}
}

static void
skip_space(Parser *p)
{
	while (p->pos < p->len && is_space(p->source[p->pos]))
		advance(p, 1);
}

/* ---- text between tags ---- */

/*
 * The end of a tag of either kind, the position being at its "-", "+" or mark. A "-" takes the white space that follows; a
 * block or comment otherwise takes one line break.
 */
static void
end_tag(Parser *p, bool trims)
{
	bool strip = p->source[p->pos] == '-';

	if (strip)
		trims = false;
	if (p->source[p->pos] == '-' || p->source[p->pos] == '+')
	{
		trims = trims && p->source[p->pos] != '+';
		advance(p, 1);
	}
	advance(p, 2);
	if (strip)
		skip_space(p);
	else if (trims && p->pos < p->len && p->source[p->pos] == '\n')
		advance(p, 1);
	p->line_starting = p->pos > 0 && p->source[p->pos - 1] == '\n';
}

/* The white space before a tag, per its sign: gives the new end of the text. */
static size_t
strip_before(const Parser *p, size_t start, size_t end, char sign, bool is_variable)
{
	size_t line = end;

	if (sign == '-')
	{
		while (end > start && is_space(p->source[end - 1]))
			end--;
		return end;
	}
	if (sign == '+' || is_variable)
		return end;
	while (line > start && is_space(p->source[line - 1]) && p->source[line - 1] != '\n')
		line--;
	if ((line > start && p->source[line - 1] == '\n') || (line == start && p->line_starting))
		return line;
	return end;
}

bool
dsv3_jinja_next_tag(Parser *p, Node **text, char *kind)
{
	Dsv3Value *value;
	char *bytes;
	size_t start = p->pos, end = start, stop, n = 0;

	*text = NULL;
	*kind = 0;
	while (end + 1 < p->len && !(p->source[end] == '{' && strchr("%{#", p->source[end + 1]) != NULL))
		end++;
	if (end + 1 >= p->len)
		stop = end = p->len;
	else
	{
		*kind = p->source[end + 1];
		stop = strip_before(p, start, end, end + 2 < p->len ? p->source[end + 2] : 0, *kind == '{');
	}
	if (stop > start)
	{
		*text = dsv3_jinja_new_node(p, NODE_TEXT);
		bytes = dsv3_jinja_alloc(p, stop - start);
		value = *text && bytes ? dsv3_value_new(&p->program->pool, VALUE_STRING) : NULL;
		if (value == NULL)
			return false;
		/* line breaks become \n, as in Jinja */
		for (size_t i = start; i < stop; i++)
		{
			if (p->source[i] == '\r')
			{
				if (i + 1 >= stop || p->source[i + 1] != '\n')
					bytes[n++] = '\n';
			}
			else
				bytes[n++] = p->source[i];
		}
		value->text = bytes;
		value->len = n;
		(*text)->value = value;
	}
	advance(p, end - p->pos);
	if (*kind == 0)
		return true;
	advance(p, 2);
	if (p->pos < p->len && (p->source[p->pos] == '-' || p->source[p->pos] == '+') && *kind != '#')
		advance(p, 1);
	if (*kind != '#')
	{
		p->is_block = *kind == '%';
		p->brackets = 0;
		return true;
	}
	while (p->pos < p->len && !looking_at(p, "#}") && !looking_at(p, "-#}") && !looking_at(p, "+#}"))
		advance(p, 1);
	if (p->pos == p->len)
		return dsv3_jinja_malformed(p, "a comment is not closed");
	end_tag(p, true);
	return true;
}

/* ---- tokens inside a tag ---- */

/* One escape of a string literal, the position being after the backslash; appended to out. */
static size_t
take_escape(Parser *p, char *out)
{
	static const char letters[] = "abfnrtv\\'\"", meanings[] = "\a\b\f\n\r\t\v\\'\"";
	char c = p->source[p->pos];
	const char *found = c ? strchr(letters, c) : NULL;
	int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
	uint32_t value = 0;

	if (found != NULL)
	{
		advance(p, 1);
		out[0] = meanings[found - letters];
		return 1;
	}
	for (int i = 1; i <= digits; i++)
	{
		char h = p->pos + (size_t) i < p->len ? p->source[p->pos + (size_t) i] : 0;

		if (!((h >= '0' && h <= '9') || (h >= 'a' && h <= 'f') || (h >= 'A' && h <= 'F')))
			digits = 0;
		else
			value = value << 4 | (uint32_t) (h <= '9' ? h - '0' : (h | 0x20) - 'a' + 10);
	}
	if (digits > 0 && value <= 0x10FFFF && !(value >= 0xD800 && value <= 0xDFFF))
	{
		advance(p, 1 + (size_t) digits);
		return (size_t) dsv3_utf8_put(value, out);
	}
	out[0] = '\\';
	return 1;
}

static bool
take_string(Parser *p)
{
	char quote = p->source[p->pos];
	Dsv3Value *value = dsv3_value_new(&p->program->pool, VALUE_STRING);
	size_t end = p->pos + 1, n = 0;
	char *bytes;

	while (end < p->len && p->source[end] != quote)
		end += p->source[end] == '\\' ? 2 : 1;
	if (end >= p->len)
		return dsv3_jinja_malformed(p, "a string is not closed");
	bytes = dsv3_jinja_alloc(p, end - p->pos + 4);
	if (bytes == NULL || value == NULL)
		return false;
	advance(p, 1);
	while (p->pos < end)
	{
		if (p->source[p->pos] == '\\')
		{
			advance(p, 1);
			n += take_escape(p, bytes + n);
		}
		else
		{
			bytes[n++] = p->source[p->pos];
			advance(p, 1);
		}
	}
	advance(p, 1);
	value->text = bytes;
	value->len = n;
	p->value = value;
	p->token = TOKEN_STRING;
	return true;
}

static bool
take_number(Parser *p)
{
	int64_t value = 0;

	while (p->pos < p->len &&
		   ((p->source[p->pos] >= '0' && p->source[p->pos] <= '9') || p->source[p->pos] == '_'))
	{
		if (value > INT64_MAX / 10 - 9)
			return dsv3_jinja_malformed(p, "a number is too large");
		if (p->source[p->pos] != '_')
			value = value * 10 + (p->source[p->pos] - '0');
		advance(p, 1);
	}
	if (p->pos + 1 < p->len && p->source[p->pos] == '.' && p->source[p->pos + 1] >= '0' &&
		p->source[p->pos + 1] <= '9')
		return dsv3_jinja_unsupported(p, "kind of number", "float");
	p->value = dsv3_value_int(&p->program->pool, value);
	p->token = TOKEN_NUMBER;
	return p->value != NULL || dsv3_jinja_no_memory(&p->program->pool, p->err) != NULL;
}

static bool
is_name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool
dsv3_jinja_next_token(Parser *p)
{
	static const char *const operators[] = {"==", "!=", "<=", ">=", "//", "**", "+", "-", "*",
											"/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
											"]",  "{",  "}",  ".",  ",",  ":",  "|"};
	const char *end = p->is_block ? "%}" : "}}";
	char signed_end[4];

	skip_space(p);
	if (p->pos >= p->len)
		return dsv3_jinja_malformed(p, "a tag is not closed");
	if (p->brackets == 0)
	{
		snprintf(signed_end, sizeof(signed_end), "-%s", end);
		if (looking_at(p, end) || looking_at(p, signed_end) || (p->is_block && looking_at(p, "+%}")))
		{
			end_tag(p, p->is_block);
			p->token = TOKEN_END;
			return true;
		}
	}
	if (p->source[p->pos] == '\'' || p->source[p->pos] == '"')
		return take_string(p);
	if (p->source[p->pos] >= '0' && p->source[p->pos] <= '9')
		return take_number(p);
	if (is_name_char(p->source[p->pos]))
	{
		size_t n = 0;

		while (p->pos < p->len && is_name_char(p->source[p->pos]))
		{
			if (n + 1 == sizeof(p->name))
				return dsv3_jinja_malformed(p, "a name is too long");
			p->name[n++] = p->source[p->pos++];
		}
		p->name[n] = '\0';
		p->token = TOKEN_NAME;
		return true;
	}
	for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++)
	{
		if (looking_at(p, operators[i]))
		{
			strcpy(p->name, operators[i]);
			advance(p, strlen(operators[i]));
			if (strchr("([{", p->name[0]) != NULL)
				p->brackets++;
			else if (strchr(")]}", p->name[0]) != NULL)
				p->brackets--;
			p->token = TOKEN_OPERATOR;
			return p->brackets >= 0 || dsv3_jinja_malformed(p, "a bracket closes that was not opened");
		}
	}
	return dsv3_jinja_malformed(p, "an unexpected character");
}
