/*
 * jinja.h
 *	  The part of Jinja that chat templates are written in, with one addition: every byte of a string knows whether it
 *	  came from the template or from a message.
 *
 * That knowledge is what lets a prompt be built exactly as the checkpoint's own template says and still keep what users
 * write from becoming control tokens: only bytes from the template may be read as such. It survives concatenation, slicing,
 * split, strip and replace.
 *
 * Supported: output, if/elif/else, for (with filter, else, break, continue), set (variables, namespace members, blocks),
 * macros, comments, white space control with trim_blocks and lstrip_blocks on (as transformers sets them); the
 * operators, tests, filters and methods listed in jinja_parse.c and jinja_value.c. A template that uses anything else does not
 * compile. A compiled program is immutable and shared by threads.
 */
#ifndef DSV3_JINJA_H
#define DSV3_JINJA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "text/pool.h"

typedef struct Dsv3Jinja Dsv3Jinja;
typedef struct Dsv3Value Dsv3Value;

/* Compile; fails with 0A000 for what is not supported and XX001 for what is no Jinja. The source is not kept. */
extern Dsv3Jinja *dsv3_jinja_compile(const char *source, size_t len, Dsv3Error *err);
extern void dsv3_jinja_free(Dsv3Jinja *program);

/* Values for a rendering live in its pool. All return NULL without memory. */
extern Dsv3Value *dsv3_value_none(Dsv3Pool *pool);
extern Dsv3Value *dsv3_value_bool(Dsv3Pool *pool, bool truth);
extern Dsv3Value *dsv3_value_list(Dsv3Pool *pool);
extern Dsv3Value *dsv3_value_dict(Dsv3Pool *pool);
/* from_user: the bytes are from a message */
extern Dsv3Value *dsv3_value_string(Dsv3Pool *pool, const char *text, size_t len, bool from_user);
extern Dsv3Value *
dsv3_value_join(Dsv3Pool *pool, const Dsv3Value *left, const Dsv3Value *right); /* two strings */
extern bool dsv3_list_append(Dsv3Pool *pool, Dsv3Value *list, Dsv3Value *item);
extern bool dsv3_dict_set(Dsv3Pool *pool, Dsv3Value *dict, const char *key, Dsv3Value *value);
/* Everything from the user; nesting is bounded by Jansson. */
extern Dsv3Value *dsv3_value_from_json(Dsv3Pool *pool, const json_t *json);
/* As Python's json.dumps(value, ensure_ascii=False) writes it, all of it counting as from the user. */
extern Dsv3Value *dsv3_value_to_json(Dsv3Pool *pool, const Dsv3Value *value, Dsv3Error *err);

/* What a rendering gives: bytes, and for each whether it is from the user. In the pool. */
typedef struct Dsv3Rendered
{
	const char *text;
	const uint8_t *from_user;
	size_t len;
} Dsv3Rendered;

/* Render with the members of the dict as variables. Whatever the template objects to fails with 22023. */
extern bool dsv3_jinja_render(const Dsv3Jinja *program, Dsv3Pool *pool, Dsv3Value *variables,
							  Dsv3Rendered *out, Dsv3Error *err);

#endif /* DSV3_JINJA_H */
