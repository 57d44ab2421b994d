/*
 * jinja_internal.h
 *	  Syntax tree and values of the Jinja interpreter: jinja_parse.c makes the tree, jinja_value.c knows what values can do,
 *	  jinja_eval.c runs the tree.
 */
#ifndef DSV3_JINJA_INTERNAL_H
#define DSV3_JINJA_INTERNAL_H

#include "text/jinja.h"

typedef enum NodeType
{
	/* statements */
	NODE_TEXT,   /* text */
	NODE_OUTPUT, /* a: expression */
	NODE_IF,     /* a: condition, body, other */
	NODE_FOR,    /* names (1 or 2), a: iterable, b: filter or NULL, body, other */
	NODE_SET,    /* a: target (NAME or ATTRIBUTE), b: value; or body when a block */
	NODE_MACRO,  /* name, args: parameters (NAME, with a: default or NULL), body */
	NODE_BREAK,
	NODE_CONTINUE,
	/* expressions */
	NODE_LITERAL,     /* value */
	NODE_NAME,        /* name */
	NODE_LIST,        /* args */
	NODE_DICT,        /* args: key, value, key, value */
	NODE_ATTRIBUTE,   /* a.name */
	NODE_SUBSCRIPT,   /* a[b] */
	NODE_SLICE,       /* a[args0:args1:args2], NULL where left out */
	NODE_CALL,        /* a(args; keywords) */
	NODE_FILTER,      /* a|name(args; keywords) */
	NODE_TEST,        /* a is name(args) */
	NODE_NOT,         /* a */
	NODE_NEGATE,      /* a */
	NODE_AND,         /* a, b */
	NODE_OR,          /* a, b */
	NODE_CONDITIONAL, /* a if b else c (c may be NULL) */
	NODE_BINARY,      /* a op b */
} NodeType;

typedef enum Operator
{
	OP_ADD,
	OP_SUBTRACT,
	OP_MULTIPLY,
	OP_MODULO,
	OP_FLOOR_DIVIDE,
	OP_CONCAT,
	OP_EQUAL,
	OP_NOT_EQUAL,
	OP_LESS,
	OP_LESS_EQUAL,
	OP_GREATER,
	OP_GREATER_EQUAL,
	OP_IN,
	OP_NOT_IN,
} Operator;

typedef struct Node Node;

struct Node
{
	NodeType type;
	Operator op;
	int line;
	const char *name; /* zero-terminated */
	const char *names[2];
	const Dsv3Value *value;
	Node *a;
	Node *b;
	Node *c;
	Node **args; /* some may be NULL in a SLICE */
	size_t n_args;
	const char **keywords; /* names of the last n_keywords args */
	size_t n_keywords;
	Node *body; /* first statement of a list */
	Node *other;
	Node *next;
};

struct Dsv3Jinja
{
	Dsv3Pool pool;
	Node *body;
};

typedef enum ValueType
{
	VALUE_UNDEFINED,
	VALUE_NONE,
	VALUE_BOOL,
	VALUE_INT,
	VALUE_FLOAT,
	VALUE_STRING,
	VALUE_LIST,
	VALUE_DICT,
	VALUE_NAMESPACE, /* a dict whose members can be set */
	VALUE_MACRO,
	VALUE_FUNCTION, /* a global by name */
	VALUE_METHOD,   /* a method of `self` by name */
} ValueType;

struct Dsv3Value
{
	ValueType type;
	int64_t i; /* BOOL, INT */
	double f;
	/* STRING; user is NULL when no byte is from the user */
	const char *text;
	const uint8_t *user;
	size_t len;
	/* LIST, DICT, NAMESPACE */
	Dsv3Value **items;
	const char **keys;
	size_t n;
	size_t capacity;
	/* UNDEFINED (what was not found), FUNCTION, METHOD */
	const char *name;
	const Dsv3Value *self;
	const Node *macro;
};

/* One call of a function, method or filter. */
typedef struct Arguments
{
	Dsv3Value **items; /* positional, then keywords */
	size_t n;          /* positional */
	const char *const *keywords;
	size_t n_keywords;
} Arguments;

extern Dsv3Value *dsv3_value_new(Dsv3Pool *pool, ValueType type);
extern Dsv3Value *dsv3_value_int(Dsv3Pool *pool, int64_t number);
extern Dsv3Value *dsv3_value_undefined(Dsv3Pool *pool, const char *name);
/* bytes from..to of a string, sharing them */
extern Dsv3Value *dsv3_value_slice(Dsv3Pool *pool, const Dsv3Value *string, size_t from, size_t to);
extern Dsv3Value *dsv3_dict_get(const Dsv3Value *dict, const char *key); /* NULL when absent */
extern bool dsv3_value_truth(const Dsv3Value *value);
extern bool dsv3_value_equal(const Dsv3Value *a, const Dsv3Value *b);
extern const char *dsv3_value_type_name(const Dsv3Value *value);
/* What {{ value }} prints, or NULL with the error set. */
extern const Dsv3Value *dsv3_value_as_text(Dsv3Pool *pool, const Dsv3Value *value, Dsv3Error *err);
/* Number of characters. */
extern size_t dsv3_string_chars(const Dsv3Value *string);

extern bool dsv3_is_filter(const char *name);
extern bool dsv3_is_test(const char *name);
extern bool dsv3_is_method(const Dsv3Value *value, const char *name);
extern Dsv3Value *
dsv3_call_filter(Dsv3Pool *pool, const char *name, Dsv3Value *value, const Arguments *args, Dsv3Error *err);
extern Dsv3Value *dsv3_call_method(Dsv3Pool *pool, const char *name, const Dsv3Value *self,
								   const Arguments *args, Dsv3Error *err);
/* 1, 0, or -1 with the error set. */
extern int dsv3_call_test(const char *name, const Dsv3Value *value, const Arguments *args, Dsv3Error *err);

/* The argument at a position or with a name; NULL when it is not given. */
extern const Dsv3Value *dsv3_argument(const Arguments *args, size_t position, const char *name);
extern Dsv3Value *
dsv3_filter_tojson(Dsv3Pool *pool, const Dsv3Value *value, const Arguments *args, Dsv3Error *err);
/* Python's repr of a float: the shortest digits that read back, exponents outside 1e-4 to 1e16. */
extern void dsv3_write_float(double f, char *out, size_t size);

/* a OP b */
extern Dsv3Value *
dsv3_jinja_binary(Dsv3Pool *pool, const Node *node, const Dsv3Value *a, const Dsv3Value *b, Dsv3Error *err);

/* 22023 "the chat template, line N, WHAT NAME". Returns NULL. */
extern void *dsv3_jinja_refuse_at(Dsv3Error *err, const Node *node, const char *what, const char *name);

/* 22023 "the chat template WHAT NAME". Returns NULL. */
extern void *dsv3_jinja_refuse(Dsv3Error *err, const char *what, const char *name);

/* "out of memory", or the limit of the pool. Returns NULL. */
extern void *dsv3_jinja_no_memory(const Dsv3Pool *pool, Dsv3Error *err);

#endif /* DSV3_JINJA_INTERNAL_H */
