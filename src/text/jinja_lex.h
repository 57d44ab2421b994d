/*
 * jinja_lex.h
 *	  The lexer of chat templates, as the parser sees it: text and the beginning of the next tag, then one token of the tag
 *	  after the other. The state is the parser's; both add to it.
 */
#ifndef DSV3_JINJA_LEX_H
#define DSV3_JINJA_LEX_H

#include "text/jinja_internal.h"

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
	int depth; /* of nesting; the parser's */
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

/* Set the error "chat template, line N: ..."; both return false. */
extern bool dsv3_jinja_malformed(Parser *p, const char *what);
extern bool dsv3_jinja_unsupported(Parser *p, const char *kind, const char *name);

/* Memory of the program; NULL with the error set. */
extern void *dsv3_jinja_alloc(Parser *p, size_t size);
extern Node *dsv3_jinja_new_node(Parser *p, NodeType type);

/*
 * Text up to the next tag as a TEXT node (*text NULL when there is none), then the tag's beginning. *kind is '%', '{' or
 * 0 at the end of the source; comments are passed over ('#').
 */
extern bool dsv3_jinja_next_tag(Parser *p, Node **text, char *kind);

/* Read the next token of the tag; TOKEN_END when the tag ends, which is then left. */
extern bool dsv3_jinja_next_token(Parser *p);

#endif /* DSV3_JINJA_LEX_H */
