/*
 * jinja_parse.c
 *	  From the text of a chat template to its syntax tree.
 *
 * The lexer works on demand: the parser asks for the next piece of text or tag, and inside a tag for the next token. White
 * space around tags follows Jinja with trim_blocks and lstrip_blocks. Everything the interpreter could not do is found here
 * (unknown tags, filters and tests), so that a program that compiles fails only on values.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_internal.h"
#include "text/utf8.h"

#define MAX_SOURCE 262144
#define MAX_NESTED 64
#define MAX_ARGS   64

typedef enum TokenType
{
	TOKEN_END, /* the tag ends */
	TOKEN_NAME,
	TOKEN_STRING,
	TOKEN_NUMBER,
	TOKEN_OPERATOR,
} TokenType;

typedef struct Parser
{
	Dsv3Jinja *program;
	const char *source;
	size_t len;
	size_t pos;
	int line;
	int depth;
	int loops; /* open for statements */
	bool line_starting;
	bool strip_next; /* the tag before ended in "-" */
	/* the tag being read */
	bool is_block; /* {% %} rather than {{ }} */
	int brackets;
	/* the current token of the tag */
	TokenType token;
	char name[64];          /* NAME, OPERATOR */
	const Dsv3Value *value; /* STRING, NUMBER */
	Dsv3Error *err;
} Parser;

static Node *parse_expression(Parser *p);
static bool parse_body(Parser *p, const char *const *ends, Node **first);

static bool
fail(Parser *p, const char *sqlstate, const char *what)
{
	return dsv3_error(p->err, sqlstate, "chat template, line %d: %s", p->line, what);
}

static bool
malformed(Parser *p, const char *what)
{
	return fail(p, DSV3_ERR_BAD_FILE, what);
}

static bool
unsupported(Parser *p, const char *kind, const char *name)
{
	return dsv3_error(p->err, DSV3_ERR_UNSUPPORTED,
					  "chat template, line %d: the %s \"%.40s\" is not supported", p->line, kind, name);
}

static void *
allocate(Parser *p, size_t size)
{
	void *result = dsv3_pool_alloc(&p->program->pool, size);

	return result == NULL ? dsv3_jinja_no_memory(&p->program->pool, p->err) : result;
}

static Node *
new_node(Parser *p, NodeType type)
{
	Node *node = allocate(p, sizeof(*node));

	if (node != NULL)
	{
		node->type = type;
		node->line = p->line;
	}
	return node;
}

static const char *
copy_name(Parser *p, const char *name)
{
	char *copy = allocate(p, strlen(name) + 1);

	if (copy != NULL)
		strcpy(copy, name);
	return copy;
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

/*
 * Text up to the next tag as a TEXT node (*text NULL when there is none), then the tag's beginning. *kind is '%', '{' or
 * 0 at the end of the source; comments are passed over.
 */
static bool
next_tag(Parser *p, Node **text, char *kind)
{
	Dsv3Value *value;
	char *bytes;
	size_t start = p->pos, end = p->pos, stop, n = 0;

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
		*text = new_node(p, NODE_TEXT);
		bytes = allocate(p, stop - start);
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
		return malformed(p, "a comment is not closed");
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
		return malformed(p, "a string is not closed");
	bytes = allocate(p, end - p->pos + 4);
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
			return malformed(p, "a number is too large");
		if (p->source[p->pos] != '_')
			value = value * 10 + (p->source[p->pos] - '0');
		advance(p, 1);
	}
	if (p->pos + 1 < p->len && p->source[p->pos] == '.' && p->source[p->pos + 1] >= '0' &&
		p->source[p->pos + 1] <= '9')
		return unsupported(p, "kind of number", "float");
	p->value = dsv3_value_int(&p->program->pool, value);
	p->token = TOKEN_NUMBER;
	return p->value != NULL || dsv3_jinja_no_memory(&p->program->pool, p->err) != NULL;
}

static bool
is_name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Read the next token of the tag; at its end the tag is left. */
static bool
next_token(Parser *p)
{
	static const char *const operators[] = {"==", "!=", "<=", ">=", "//", "**", "+", "-", "*",
											"/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
											"]",  "{",  "}",  ".",  ",",  ":",  "|"};
	const char *end = p->is_block ? "%}" : "}}";
	char signed_end[4];

	skip_space(p);
	if (p->pos >= p->len)
		return malformed(p, "a tag is not closed");
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
				return malformed(p, "a name is too long");
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
			return p->brackets >= 0 || malformed(p, "a bracket closes that was not opened");
		}
	}
	return malformed(p, "an unexpected character");
}

static bool
at_operator(const Parser *p, const char *name)
{
	return p->token == TOKEN_OPERATOR && strcmp(p->name, name) == 0;
}

static bool
at_name(const Parser *p, const char *name)
{
	return p->token == TOKEN_NAME && strcmp(p->name, name) == 0;
}

static bool
expect_operator(Parser *p, const char *name)
{
	char what[32];

	if (at_operator(p, name))
		return next_token(p);
	snprintf(what, sizeof(what), "\"%s\" is missing", name);
	return malformed(p, what);
}

/* ---- expressions ---- */

static bool
add_arg(Parser *p, Node *node, Node *arg)
{
	if (node->args == NULL)
	{
		node->args = allocate(p, MAX_ARGS * sizeof(*node->args));
		node->keywords = allocate(p, MAX_ARGS * sizeof(*node->keywords));
		if (node->args == NULL || node->keywords == NULL)
			return false;
	}
	if (node->n_args == MAX_ARGS)
		return malformed(p, "too many items");
	node->args[node->n_args++] = arg;
	return true;
}

/* Arguments up to ")", the position being after "(". */
static bool
parse_arguments(Parser *p, Node *node)
{
	while (!at_operator(p, ")"))
	{
		Node *arg;

		if (node->n_args > 0 && !expect_operator(p, ","))
			return false;
		if (at_operator(p, ")"))
			break;
		arg = parse_expression(p);
		if (arg == NULL)
			return false;
		if (at_operator(p, "=") && arg->type == NODE_NAME)
		{
			const char *keyword = arg->name;

			if (!next_token(p) || (arg = parse_expression(p)) == NULL || !add_arg(p, node, arg))
				return false;
			node->keywords[node->n_keywords++] = keyword;
		}
		else if (node->n_keywords > 0)
			return malformed(p, "a positional argument after a keyword");
		else if (!add_arg(p, node, arg))
			return false;
	}
	return next_token(p);
}

static Node *
parse_list(Parser *p, const char *end, NodeType type)
{
	Node *node = new_node(p, type);

	while (node != NULL && !at_operator(p, end))
	{
		Node *item;

		if (node->n_args > 0 && !expect_operator(p, ","))
			return NULL;
		if (at_operator(p, end))
			break;
		item = parse_expression(p);
		if (item == NULL || !add_arg(p, node, item))
			return NULL;
		if (type == NODE_DICT)
		{
			if (!expect_operator(p, ":"))
				return NULL;
			item = parse_expression(p);
			if (item == NULL || !add_arg(p, node, item))
				return NULL;
		}
	}
	return node != NULL && next_token(p) ? node : NULL;
}

static Node *
literal(Parser *p, const Dsv3Value *value)
{
	Node *node = value ? new_node(p, NODE_LITERAL) : NULL;

	if (node != NULL)
		node->value = value;
	return node;
}

static Node *
parse_primary(Parser *p)
{
	Node *node = NULL;

	if (p->token == TOKEN_STRING || p->token == TOKEN_NUMBER)
	{
		bool string = p->token == TOKEN_STRING;

		node = literal(p, p->value);
		if (node == NULL || !next_token(p))
			return NULL;
		/* neighbouring strings are one */
		while (string && p->token == TOKEN_STRING)
		{
			node->value = dsv3_value_join(&p->program->pool, node->value, p->value);
			if (node->value == NULL || !next_token(p))
				return NULL;
		}
		return node;
	}
	if (p->token == TOKEN_NAME)
	{
		if (at_name(p, "true") || at_name(p, "True") || at_name(p, "false") || at_name(p, "False"))
			node = literal(p, dsv3_value_bool(&p->program->pool, (p->name[0] | 0x20) == 't'));
		else if (at_name(p, "none") || at_name(p, "None"))
			node = literal(p, dsv3_value_none(&p->program->pool));
		else if ((node = new_node(p, NODE_NAME)) != NULL)
			node->name = copy_name(p, p->name);
		return node != NULL && next_token(p) ? node : NULL;
	}
	if (at_operator(p, "("))
	{
		if (!next_token(p) || (node = parse_expression(p)) == NULL)
			return NULL;
		if (at_operator(p, ","))
		{
			/* a tuple, such as the separators of tojson */
			Node *tuple = new_node(p, NODE_LIST), *rest;

			if (tuple == NULL || !add_arg(p, tuple, node) || !next_token(p))
				return NULL;
			rest = parse_list(p, ")", NODE_LIST);
			for (size_t i = 0; rest != NULL && i < rest->n_args; i++)
			{
				if (!add_arg(p, tuple, rest->args[i]))
					return NULL;
			}
			return rest == NULL ? NULL : tuple;
		}
		return expect_operator(p, ")") ? node : NULL;
	}
	if (at_operator(p, "["))
		return next_token(p) ? parse_list(p, "]", NODE_LIST) : NULL;
	if (at_operator(p, "{"))
		return next_token(p) ? parse_list(p, "}", NODE_DICT) : NULL;
	malformed(p, "an expression is missing");
	return NULL;
}

/* [index] or [from:to:step], the position being after "[". */
static Node *
parse_subscript(Parser *p, Node *object)
{
	Node *node = new_node(p, NODE_SUBSCRIPT);
	Node *parts[3] = {NULL, NULL, NULL};
	int n = 0;

	if (node == NULL)
		return NULL;
	node->a = object;
	for (;;)
	{
		if (!at_operator(p, ":") && !at_operator(p, "]") && (parts[n] = parse_expression(p)) == NULL)
			return NULL;
		if (!at_operator(p, ":") || n == 2)
			break;
		n++;
		if (!next_token(p))
			return NULL;
	}
	if (!expect_operator(p, "]"))
		return NULL;
	if (n == 0)
	{
		node->b = parts[0];
		return node->b == NULL && !malformed(p, "a subscript is missing") ? NULL : node;
	}
	node->type = NODE_SLICE;
	for (int i = 0; i < 3; i++)
	{
		if (!add_arg(p, node, parts[i]))
			return NULL;
	}
	return node;
}

/* |filter or |filter(arguments), and "is" [not] test; the position being after "|" or "is". */
static Node *
parse_filter_or_test(Parser *p, Node *operand, NodeType type)
{
	Node *node = new_node(p, type), *negation = NULL;

	if (node == NULL)
		return NULL;
	node->a = operand;
	if (type == NODE_TEST && at_name(p, "not"))
	{
		negation = new_node(p, NODE_NOT);
		if (negation == NULL || !next_token(p))
			return NULL;
		negation->a = node;
	}
	if (p->token != TOKEN_NAME)
	{
		malformed(p, "a filter or test is missing");
		return NULL;
	}
	if (type == NODE_FILTER ? !dsv3_is_filter(p->name) : !dsv3_is_test(p->name))
	{
		unsupported(p, type == NODE_FILTER ? "filter" : "test", p->name);
		return NULL;
	}
	node->name = copy_name(p, p->name);
	if (node->name == NULL || !next_token(p))
		return NULL;
	if (at_operator(p, "(") && (!next_token(p) || !parse_arguments(p, node)))
		return NULL;
	return negation ? negation : node;
}

static Node *
parse_postfix(Parser *p)
{
	Node *node = parse_primary(p), *outer;

	while (node != NULL)
	{
		if (at_operator(p, "."))
		{
			outer = new_node(p, NODE_ATTRIBUTE);
			if (outer == NULL || !next_token(p))
				return NULL;
			if (p->token != TOKEN_NAME)
			{
				malformed(p, "an attribute is missing");
				return NULL;
			}
			outer->a = node;
			outer->name = copy_name(p, p->name);
			node = outer->name != NULL && next_token(p) ? outer : NULL;
		}
		else if (at_operator(p, "["))
			node = next_token(p) ? parse_subscript(p, node) : NULL;
		else if (at_operator(p, "("))
		{
			outer = new_node(p, NODE_CALL);
			if (outer == NULL || !next_token(p) || !parse_arguments(p, outer))
				return NULL;
			outer->a = node;
			node = outer;
		}
		else if (at_operator(p, "|"))
			node = next_token(p) ? parse_filter_or_test(p, node, NODE_FILTER) : NULL;
		else if (at_name(p, "is"))
			node = next_token(p) ? parse_filter_or_test(p, node, NODE_TEST) : NULL;
		else
			return node;
	}
	return NULL;
}

static Node *
parse_unary(Parser *p)
{
	if (at_operator(p, "-"))
	{
		Node *node = new_node(p, NODE_NEGATE);

		if (node == NULL || !next_token(p))
			return NULL;
		if (++p->depth > MAX_NESTED)
		{
			malformed(p, "nested too deeply");
			return NULL;
		}
		node->a = parse_unary(p);
		p->depth--;
		return node->a ? node : NULL;
	}
	return parse_postfix(p);
}

/* Binary operators by precedence, loosest first; "not" sits between level -1 and 0. */
typedef struct OperatorName
{
	const char *name;
	Operator op;
	int level;
} OperatorName;

static const OperatorName operator_names[] = {
	{"==", OP_EQUAL, 0},  {"!=", OP_NOT_EQUAL, 0},     {"<", OP_LESS, 0},   {"<=", OP_LESS_EQUAL, 0},
	{">", OP_GREATER, 0}, {">=", OP_GREATER_EQUAL, 0}, {"+", OP_ADD, 1},    {"-", OP_SUBTRACT, 1},
	{"~", OP_CONCAT, 2},  {"*", OP_MULTIPLY, 3},       {"%", OP_MODULO, 3}, {"//", OP_FLOOR_DIVIDE, 3},
};
#define MAX_LEVEL 3

/* Is the current token a binary operator of this level? */
static bool
at_binary(Parser *p, int level, Operator *op, bool *is_not)
{
	*is_not = false;
	if (p->token == TOKEN_OPERATOR)
	{
		for (size_t i = 0; i < sizeof(operator_names) / sizeof(operator_names[0]); i++)
		{
			if (operator_names[i].level == level && strcmp(p->name, operator_names[i].name) == 0)
			{
				*op = operator_names[i].op;
				return true;
			}
		}
	}
	if (level == 0 && (at_name(p, "in") || at_name(p, "not")))
	{
		*op = at_name(p, "in") ? OP_IN : OP_NOT_IN;
		*is_not = *op == OP_NOT_IN;
		return true;
	}
	return false;
}

static Node *
parse_binary(Parser *p, int level)
{
	Node *left = level > MAX_LEVEL ? parse_unary(p) : parse_binary(p, level + 1);
	Operator op;
	bool is_not;

	while (left != NULL && level <= MAX_LEVEL && at_binary(p, level, &op, &is_not))
	{
		Node *node = new_node(p, NODE_BINARY);

		if (level == 0 && left->type == NODE_BINARY && left->op >= OP_EQUAL)
		{
			unsupported(p, "chained comparison", p->name);
			return NULL;
		}
		if (node == NULL || !next_token(p))
			return NULL;
		if (is_not && !(at_name(p, "in") ? next_token(p) : malformed(p, "\"in\" is missing after \"not\"")))
			return NULL;
		node->op = op;
		node->a = left;
		node->b = parse_binary(p, level + 1);
		left = node->b ? node : NULL;
	}
	return left;
}

static Node *
parse_not(Parser *p)
{
	Node *node;

	if (!at_name(p, "not"))
		return parse_binary(p, 0);
	node = new_node(p, NODE_NOT);
	if (node == NULL || !next_token(p))
		return NULL;
	if (++p->depth > MAX_NESTED)
	{
		malformed(p, "nested too deeply");
		return NULL;
	}
	node->a = parse_not(p);
	p->depth--;
	return node->a ? node : NULL;
}

static Node *
parse_logical(Parser *p, bool is_or)
{
	Node *left = is_or ? parse_logical(p, false) : parse_not(p);

	while (left != NULL && at_name(p, is_or ? "or" : "and"))
	{
		Node *node = new_node(p, is_or ? NODE_OR : NODE_AND);

		if (node == NULL || !next_token(p))
			return NULL;
		node->a = left;
		node->b = is_or ? parse_logical(p, false) : parse_not(p);
		left = node->b ? node : NULL;
	}
	return left;
}

static Node *
parse_expression(Parser *p)
{
	Node *node;

	if (++p->depth > MAX_NESTED)
	{
		malformed(p, "nested too deeply");
		return NULL;
	}
	node = parse_logical(p, true);
	while (node != NULL && at_name(p, "if"))
	{
		Node *choice = new_node(p, NODE_CONDITIONAL);

		if (choice == NULL || !next_token(p))
			return NULL;
		choice->a = node;
		choice->b = parse_logical(p, true);
		if (choice->b == NULL)
			return NULL;
		if (at_name(p, "else"))
		{
			if (!next_token(p) || (choice->c = parse_expression(p)) == NULL)
				return NULL;
		}
		node = choice;
	}
	p->depth--;
	return node;
}

/* ---- statements ---- */

static bool
expect_end(Parser *p)
{
	return p->token == TOKEN_END || malformed(p, "something is left over in a tag");
}

/* Read up to {% end %}: the statements go to *first. The current token is then after the name of the end. */
static bool
parse_block(Parser *p, const char *const *ends, Node **first)
{
	return expect_end(p) && parse_body(p, ends, first);
}

static Node *
parse_if(Parser *p)
{
	static const char *const ends[] = {"elif", "else", "endif", NULL};
	static const char *const last[] = {"endif", NULL};
	Node *node = new_node(p, NODE_IF);

	if (node == NULL || (node->a = parse_expression(p)) == NULL || !parse_block(p, ends, &node->body))
		return NULL;
	if (at_name(p, "elif"))
	{
		if (++p->depth > MAX_NESTED)
		{
			malformed(p, "nested too deeply");
			return NULL;
		}
		if (!next_token(p))
			return NULL;
		node->other = parse_if(p);
		p->depth--;
		return node->other ? node : NULL;
	}
	if (at_name(p, "else") && (!next_token(p) || !parse_block(p, last, &node->other)))
		return NULL;
	return next_token(p) && expect_end(p) ? node : NULL;
}

static Node *
parse_for(Parser *p)
{
	static const char *const ends[] = {"else", "endfor", NULL};
	static const char *const last[] = {"endfor", NULL};
	Node *node = new_node(p, NODE_FOR);
	int n = 0;

	while (node != NULL && p->token == TOKEN_NAME && n < 2)
	{
		node->names[n] = copy_name(p, p->name);
		if (node->names[n++] == NULL || !next_token(p))
			return NULL;
		if (!at_operator(p, ","))
			break;
		if (!next_token(p))
			return NULL;
	}
	if (node == NULL || n == 0 || !at_name(p, "in"))
	{
		if (node != NULL)
			malformed(p, "a for loop is incomplete");
		return NULL;
	}
	/* the iterable ends before "if", which is the loop's filter */
	if (!next_token(p) || (node->a = parse_logical(p, true)) == NULL)
		return NULL;
	if (at_name(p, "if") && (!next_token(p) || (node->b = parse_expression(p)) == NULL))
		return NULL;
	p->loops++;
	if (!parse_block(p, ends, &node->body))
		return NULL;
	p->loops--;
	if (at_name(p, "else") && (!next_token(p) || !parse_block(p, last, &node->other)))
		return NULL;
	return next_token(p) && expect_end(p) ? node : NULL;
}

static Node *
parse_set(Parser *p)
{
	static const char *const ends[] = {"endset", NULL};
	Node *node = new_node(p, NODE_SET);

	if (node == NULL || (node->a = parse_postfix(p)) == NULL)
		return NULL;
	if (node->a->type != NODE_NAME && !(node->a->type == NODE_ATTRIBUTE && node->a->a->type == NODE_NAME))
	{
		malformed(p, "set wants a name or a namespace member");
		return NULL;
	}
	if (at_operator(p, "="))
	{
		if (!next_token(p) || (node->b = parse_expression(p)) == NULL)
			return NULL;
		return expect_end(p) ? node : NULL;
	}
	if (!parse_block(p, ends, &node->body))
		return NULL;
	return next_token(p) && expect_end(p) ? node : NULL;
}

static Node *
parse_macro(Parser *p)
{
	static const char *const ends[] = {"endmacro", NULL};
	Node *node = new_node(p, NODE_MACRO);
	int loops = p->loops;

	if (node == NULL || p->token != TOKEN_NAME)
	{
		malformed(p, "a macro has no name");
		return NULL;
	}
	node->name = copy_name(p, p->name);
	if (node->name == NULL || !next_token(p) || !expect_operator(p, "("))
		return NULL;
	while (!at_operator(p, ")"))
	{
		Node *parameter = new_node(p, NODE_NAME);

		if (parameter == NULL || (node->n_args > 0 && !expect_operator(p, ",")))
			return NULL;
		if (p->token != TOKEN_NAME)
		{
			malformed(p, "a parameter has no name");
			return NULL;
		}
		parameter->name = copy_name(p, p->name);
		if (parameter->name == NULL || !next_token(p))
			return NULL;
		if (at_operator(p, "=") && (!next_token(p) || (parameter->a = parse_expression(p)) == NULL))
			return NULL;
		if (!add_arg(p, node, parameter))
			return NULL;
	}
	p->loops = 0;
	if (!next_token(p) || !parse_block(p, ends, &node->body))
		return NULL;
	p->loops = loops;
	return next_token(p) && expect_end(p) ? node : NULL;
}

/* One {% %} statement, the token being its name. */
static Node *
parse_statement(Parser *p)
{
	static const char *const ends[] = {"endgeneration", NULL};
	char name[sizeof(p->name)];
	Node *node;

	strcpy(name, p->name);
	if (!next_token(p))
		return NULL;
	if (strcmp(name, "if") == 0)
		return parse_if(p);
	if (strcmp(name, "for") == 0)
		return parse_for(p);
	if (strcmp(name, "set") == 0)
		return parse_set(p);
	if (strcmp(name, "macro") == 0)
		return parse_macro(p);
	if (strcmp(name, "break") == 0 || strcmp(name, "continue") == 0)
	{
		if (p->loops == 0)
		{
			malformed(p, "break or continue outside a loop");
			return NULL;
		}
		node = new_node(p, name[0] == 'b' ? NODE_BREAK : NODE_CONTINUE);
		return expect_end(p) ? node : NULL;
	}
	if (strcmp(name, "generation") == 0)
	{
		/* marks the assistant's part for training; to rendering it is nothing */
		node = new_node(p, NODE_IF);
		if (node == NULL || (node->a = literal(p, dsv3_value_bool(&p->program->pool, true))) == NULL ||
			!parse_block(p, ends, &node->body))
			return NULL;
		return next_token(p) && expect_end(p) ? node : NULL;
	}
	unsupported(p, "tag", name);
	return NULL;
}

/* Statements up to a block named in ends, or, without ends, to the end of the source. */
static bool
parse_body(Parser *p, const char *const *ends, Node **first)
{
	Node **link = first;

	if (++p->depth > MAX_NESTED)
		return malformed(p, "nested too deeply");
	for (;;)
	{
		Node *node;
		char kind;

		if (!next_tag(p, &node, &kind))
			return false;
		if (node != NULL)
		{
			*link = node;
			link = &node->next;
		}
		if (kind == 0)
			break;
		if (kind == '#')
			continue;
		if (!next_token(p))
			return false;
		if (kind == '{')
		{
			node = new_node(p, NODE_OUTPUT);
			if (node == NULL || (node->a = parse_expression(p)) == NULL || !expect_end(p))
				return false;
		}
		else
		{
			if (p->token != TOKEN_NAME)
				return malformed(p, "a tag has no name");
			for (const char *const *end = ends; end != NULL && *end != NULL; end++)
			{
				if (strcmp(p->name, *end) == 0)
				{
					p->depth--;
					return true;
				}
			}
			node = parse_statement(p);
			if (node == NULL)
				return false;
		}
		*link = node;
		link = &node->next;
	}
	if (ends != NULL)
		return malformed(p, "a block is not closed");
	p->depth--;
	return true;
}

Dsv3Jinja *
dsv3_jinja_compile(const char *source, size_t len, Dsv3Error *err)
{
	Parser p = {.source = source, .len = len, .line = 1, .line_starting = true, .err = err};

	if (len > MAX_SOURCE)
	{
		dsv3_error(err, DSV3_ERR_TOO_LARGE, "the chat template has %zu bytes, more than the possible %d", len,
				   MAX_SOURCE);
		return NULL;
	}
	if (!dsv3_utf8_check(source, len, err))
		return NULL;
	if (len > 0 && source[len - 1] == '\n')
		p.len--;
	p.program = calloc(1, sizeof(*p.program));
	if (p.program == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		return NULL;
	}
	p.program->pool.limit = (size_t) 64 * 1024 * 1024;
	if (!parse_body(&p, NULL, &p.program->body))
	{
		dsv3_jinja_free(p.program);
		return NULL;
	}
	return p.program;
}

void
dsv3_jinja_free(Dsv3Jinja *program)
{
	if (program == NULL)
		return;
	dsv3_pool_free(&program->pool);
	free(program);
}
