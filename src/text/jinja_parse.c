/*
 * jinja_parse.c
 *	  From the text of a chat template to its syntax tree.
 *
 * Recursive descent over the tokens of jinja_lex.c. Everything the interpreter could not do is found here (unknown tags,
 * filters and tests), so that a program that compiles fails only on values.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_lex.h"
#include "text/utf8.h"

#define MAX_SOURCE 262144
#define MAX_NESTED 64
#define MAX_ARGS   64

static Node *parse_expression(Parser *p);
static bool parse_body(Parser *p, const char *const *ends, Node **first);

static const char *
copy_name(Parser *p, const char *name)
{
	char *copy = dsv3_jinja_alloc(p, strlen(name) + 1);

	if (copy != NULL)
		strcpy(copy, name);
	return copy;
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
		return dsv3_jinja_next_token(p);
	snprintf(what, sizeof(what), "\"%s\" is missing", name);
	return dsv3_jinja_malformed(p, what);
}

/* ---- expressions ---- */

static bool
add_arg(Parser *p, Node *node, Node *arg)
{
	if (node->args == NULL)
	{
		node->args = dsv3_jinja_alloc(p, MAX_ARGS * sizeof(*node->args));
		node->keywords = dsv3_jinja_alloc(p, MAX_ARGS * sizeof(*node->keywords));
		if (node->args == NULL || node->keywords == NULL)
			return false;
	}
	if (node->n_args == MAX_ARGS)
		return dsv3_jinja_malformed(p, "too many items");
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

			if (!dsv3_jinja_next_token(p) || (arg = parse_expression(p)) == NULL || !add_arg(p, node, arg))
				return false;
			node->keywords[node->n_keywords++] = keyword;
		}
		else if (node->n_keywords > 0)
			return dsv3_jinja_malformed(p, "a positional argument after a keyword");
		else if (!add_arg(p, node, arg))
			return false;
	}
	return dsv3_jinja_next_token(p);
}

static Node *
parse_list(Parser *p, const char *end, NodeType type)
{
	Node *node = dsv3_jinja_new_node(p, type);

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
	return node != NULL && dsv3_jinja_next_token(p) ? node : NULL;
}

static Node *
literal(Parser *p, const Dsv3Value *value)
{
	Node *node = value ? dsv3_jinja_new_node(p, NODE_LITERAL) : NULL;

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
		if (node == NULL || !dsv3_jinja_next_token(p))
			return NULL;
		/* neighbouring strings are one */
		while (string && p->token == TOKEN_STRING)
		{
			node->value = dsv3_value_join(&p->program->pool, node->value, p->value);
			if (node->value == NULL || !dsv3_jinja_next_token(p))
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
		else if ((node = dsv3_jinja_new_node(p, NODE_NAME)) != NULL)
			node->name = copy_name(p, p->name);
		return node != NULL && dsv3_jinja_next_token(p) ? node : NULL;
	}
	if (at_operator(p, "("))
	{
		if (!dsv3_jinja_next_token(p) || (node = parse_expression(p)) == NULL)
			return NULL;
		if (at_operator(p, ","))
		{
			/* a tuple, such as the separators of tojson */
			Node *tuple = dsv3_jinja_new_node(p, NODE_LIST), *rest;

			if (tuple == NULL || !add_arg(p, tuple, node) || !dsv3_jinja_next_token(p))
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
		return dsv3_jinja_next_token(p) ? parse_list(p, "]", NODE_LIST) : NULL;
	if (at_operator(p, "{"))
		return dsv3_jinja_next_token(p) ? parse_list(p, "}", NODE_DICT) : NULL;
	dsv3_jinja_malformed(p, "an expression is missing");
	return NULL;
}

/* [index] or [from:to:step], the position being after "[". */
static Node *
parse_subscript(Parser *p, Node *object)
{
	Node *node = dsv3_jinja_new_node(p, NODE_SUBSCRIPT);
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
		if (!dsv3_jinja_next_token(p))
			return NULL;
	}
	if (!expect_operator(p, "]"))
		return NULL;
	if (n == 0)
	{
		node->b = parts[0];
		return node->b == NULL && !dsv3_jinja_malformed(p, "a subscript is missing") ? NULL : node;
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
	Node *node = dsv3_jinja_new_node(p, type), *negation = NULL;

	if (node == NULL)
		return NULL;
	node->a = operand;
	if (type == NODE_TEST && at_name(p, "not"))
	{
		negation = dsv3_jinja_new_node(p, NODE_NOT);
		if (negation == NULL || !dsv3_jinja_next_token(p))
			return NULL;
		negation->a = node;
	}
	if (p->token != TOKEN_NAME)
	{
		dsv3_jinja_malformed(p, "a filter or test is missing");
		return NULL;
	}
	if (type == NODE_FILTER ? !dsv3_is_filter(p->name) : !dsv3_is_test(p->name))
	{
		dsv3_jinja_unsupported(p, type == NODE_FILTER ? "filter" : "test", p->name);
		return NULL;
	}
	node->name = copy_name(p, p->name);
	if (node->name == NULL || !dsv3_jinja_next_token(p))
		return NULL;
	if (at_operator(p, "(") && (!dsv3_jinja_next_token(p) || !parse_arguments(p, node)))
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
			outer = dsv3_jinja_new_node(p, NODE_ATTRIBUTE);
			if (outer == NULL || !dsv3_jinja_next_token(p))
				return NULL;
			if (p->token != TOKEN_NAME)
			{
				dsv3_jinja_malformed(p, "an attribute is missing");
				return NULL;
			}
			outer->a = node;
			outer->name = copy_name(p, p->name);
			node = outer->name != NULL && dsv3_jinja_next_token(p) ? outer : NULL;
		}
		else if (at_operator(p, "["))
			node = dsv3_jinja_next_token(p) ? parse_subscript(p, node) : NULL;
		else if (at_operator(p, "("))
		{
			outer = dsv3_jinja_new_node(p, NODE_CALL);
			if (outer == NULL || !dsv3_jinja_next_token(p) || !parse_arguments(p, outer))
				return NULL;
			outer->a = node;
			node = outer;
		}
		else if (at_operator(p, "|"))
			node = dsv3_jinja_next_token(p) ? parse_filter_or_test(p, node, NODE_FILTER) : NULL;
		else if (at_name(p, "is"))
			node = dsv3_jinja_next_token(p) ? parse_filter_or_test(p, node, NODE_TEST) : NULL;
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
		Node *node = dsv3_jinja_new_node(p, NODE_NEGATE);

		if (node == NULL || !dsv3_jinja_next_token(p))
			return NULL;
		if (++p->depth > MAX_NESTED)
		{
			dsv3_jinja_malformed(p, "nested too deeply");
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
		Node *node = dsv3_jinja_new_node(p, NODE_BINARY);

		if (level == 0 && left->type == NODE_BINARY && left->op >= OP_EQUAL)
		{
			dsv3_jinja_unsupported(p, "chained comparison", p->name);
			return NULL;
		}
		if (node == NULL || !dsv3_jinja_next_token(p))
			return NULL;
		if (is_not && !(at_name(p, "in") ? dsv3_jinja_next_token(p)
										 : dsv3_jinja_malformed(p, "\"in\" is missing after \"not\"")))
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
	node = dsv3_jinja_new_node(p, NODE_NOT);
	if (node == NULL || !dsv3_jinja_next_token(p))
		return NULL;
	if (++p->depth > MAX_NESTED)
	{
		dsv3_jinja_malformed(p, "nested too deeply");
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
		Node *node = dsv3_jinja_new_node(p, is_or ? NODE_OR : NODE_AND);

		if (node == NULL || !dsv3_jinja_next_token(p))
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
		dsv3_jinja_malformed(p, "nested too deeply");
		return NULL;
	}
	node = parse_logical(p, true);
	while (node != NULL && at_name(p, "if"))
	{
		Node *choice = dsv3_jinja_new_node(p, NODE_CONDITIONAL);

		if (choice == NULL || !dsv3_jinja_next_token(p))
			return NULL;
		choice->a = node;
		choice->b = parse_logical(p, true);
		if (choice->b == NULL)
			return NULL;
		if (at_name(p, "else"))
		{
			if (!dsv3_jinja_next_token(p) || (choice->c = parse_expression(p)) == NULL)
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
	return p->token == TOKEN_END || dsv3_jinja_malformed(p, "something is left over in a tag");
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
	Node *node = dsv3_jinja_new_node(p, NODE_IF);

	if (node == NULL || (node->a = parse_expression(p)) == NULL || !parse_block(p, ends, &node->body))
		return NULL;
	if (at_name(p, "elif"))
	{
		if (++p->depth > MAX_NESTED)
		{
			dsv3_jinja_malformed(p, "nested too deeply");
			return NULL;
		}
		if (!dsv3_jinja_next_token(p))
			return NULL;
		node->other = parse_if(p);
		p->depth--;
		return node->other ? node : NULL;
	}
	if (at_name(p, "else") && (!dsv3_jinja_next_token(p) || !parse_block(p, last, &node->other)))
		return NULL;
	return dsv3_jinja_next_token(p) && expect_end(p) ? node : NULL;
}

static Node *
parse_for(Parser *p)
{
	static const char *const ends[] = {"else", "endfor", NULL};
	static const char *const last[] = {"endfor", NULL};
	Node *node = dsv3_jinja_new_node(p, NODE_FOR);
	int n = 0;

	while (node != NULL && p->token == TOKEN_NAME && n < 2)
	{
		node->names[n] = copy_name(p, p->name);
		if (node->names[n++] == NULL || !dsv3_jinja_next_token(p))
			return NULL;
		if (!at_operator(p, ","))
			break;
		if (!dsv3_jinja_next_token(p))
			return NULL;
	}
	if (node == NULL || n == 0 || !at_name(p, "in"))
	{
		if (node != NULL)
			dsv3_jinja_malformed(p, "a for loop is incomplete");
		return NULL;
	}
	/* the iterable ends before "if", which is the loop's filter */
	if (!dsv3_jinja_next_token(p) || (node->a = parse_logical(p, true)) == NULL)
		return NULL;
	if (at_name(p, "if") && (!dsv3_jinja_next_token(p) || (node->b = parse_expression(p)) == NULL))
		return NULL;
	p->loops++;
	if (!parse_block(p, ends, &node->body))
		return NULL;
	p->loops--;
	if (at_name(p, "else") && (!dsv3_jinja_next_token(p) || !parse_block(p, last, &node->other)))
		return NULL;
	return dsv3_jinja_next_token(p) && expect_end(p) ? node : NULL;
}

static Node *
parse_set(Parser *p)
{
	static const char *const ends[] = {"endset", NULL};
	Node *node = dsv3_jinja_new_node(p, NODE_SET);

	if (node == NULL || (node->a = parse_postfix(p)) == NULL)
		return NULL;
	if (node->a->type != NODE_NAME && !(node->a->type == NODE_ATTRIBUTE && node->a->a->type == NODE_NAME))
	{
		dsv3_jinja_malformed(p, "set wants a name or a namespace member");
		return NULL;
	}
	if (at_operator(p, "="))
	{
		if (!dsv3_jinja_next_token(p) || (node->b = parse_expression(p)) == NULL)
			return NULL;
		return expect_end(p) ? node : NULL;
	}
	if (!parse_block(p, ends, &node->body))
		return NULL;
	return dsv3_jinja_next_token(p) && expect_end(p) ? node : NULL;
}

static Node *
parse_macro(Parser *p)
{
	static const char *const ends[] = {"endmacro", NULL};
	Node *node = dsv3_jinja_new_node(p, NODE_MACRO);
	int loops = p->loops;

	if (node == NULL || p->token != TOKEN_NAME)
	{
		dsv3_jinja_malformed(p, "a macro has no name");
		return NULL;
	}
	node->name = copy_name(p, p->name);
	if (node->name == NULL || !dsv3_jinja_next_token(p) || !expect_operator(p, "("))
		return NULL;
	while (!at_operator(p, ")"))
	{
		Node *parameter = dsv3_jinja_new_node(p, NODE_NAME);

		if (parameter == NULL || (node->n_args > 0 && !expect_operator(p, ",")))
			return NULL;
		if (p->token != TOKEN_NAME)
		{
			dsv3_jinja_malformed(p, "a parameter has no name");
			return NULL;
		}
		parameter->name = copy_name(p, p->name);
		if (parameter->name == NULL || !dsv3_jinja_next_token(p))
			return NULL;
		if (at_operator(p, "=") &&
			(!dsv3_jinja_next_token(p) || (parameter->a = parse_expression(p)) == NULL))
			return NULL;
		if (!add_arg(p, node, parameter))
			return NULL;
	}
	p->loops = 0;
	if (!dsv3_jinja_next_token(p) || !parse_block(p, ends, &node->body))
		return NULL;
	p->loops = loops;
	return dsv3_jinja_next_token(p) && expect_end(p) ? node : NULL;
}

/* One {% %} statement, the token being its name. */
static Node *
parse_statement(Parser *p)
{
	static const char *const ends[] = {"endgeneration", NULL};
	char name[sizeof(p->name)];
	Node *node;

	strcpy(name, p->name);
	if (!dsv3_jinja_next_token(p))
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
			dsv3_jinja_malformed(p, "break or continue outside a loop");
			return NULL;
		}
		node = dsv3_jinja_new_node(p, name[0] == 'b' ? NODE_BREAK : NODE_CONTINUE);
		return expect_end(p) ? node : NULL;
	}
	if (strcmp(name, "generation") == 0)
	{
		/* marks the assistant's part for training; to rendering it is nothing */
		node = dsv3_jinja_new_node(p, NODE_IF);
		if (node == NULL || (node->a = literal(p, dsv3_value_bool(&p->program->pool, true))) == NULL ||
			!parse_block(p, ends, &node->body))
			return NULL;
		return dsv3_jinja_next_token(p) && expect_end(p) ? node : NULL;
	}
	dsv3_jinja_unsupported(p, "tag", name);
	return NULL;
}

/* Statements up to a block named in ends, or, without ends, to the end of the source. */
static bool
parse_body(Parser *p, const char *const *ends, Node **first)
{
	Node **link = first;

	if (++p->depth > MAX_NESTED)
		return dsv3_jinja_malformed(p, "nested too deeply");
	for (;;)
	{
		Node *node;
		char kind;

		if (!dsv3_jinja_next_tag(p, &node, &kind))
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
		if (!dsv3_jinja_next_token(p))
			return false;
		if (kind == '{')
		{
			node = dsv3_jinja_new_node(p, NODE_OUTPUT);
			if (node == NULL || (node->a = parse_expression(p)) == NULL || !expect_end(p))
				return false;
		}
		else
		{
			if (p->token != TOKEN_NAME)
				return dsv3_jinja_malformed(p, "a tag has no name");
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
		return dsv3_jinja_malformed(p, "a block is not closed");
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
