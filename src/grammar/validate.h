/*
 * validate.h
 *	  Is a JSON value valid for a schema? The plain reading of the specification, keyword by keyword.
 *
 * The compiler asks it which members of an enum satisfy the rest of a schema; the engine asks it about every finished
 * answer. It knows nothing of automata: patterns go through PCRE2, formats are checked by hand-written code.
 */
#ifndef DSV3_GRAMMAR_VALIDATE_H
#define DSV3_GRAMMAR_VALIDATE_H

#include "grammar/schema.h"

typedef struct PatternCache PatternCache;

typedef struct Validator
{
	SchemaDoc *doc;
	Ctx *ctx; /* arena for scratch; failures (a reference that leads nowhere) jump out of it */
	PatternCache *patterns;
	const Json *listed; /* a schema whose enum and const are known to hold for the value at hand */
	int depth;
} Validator;

extern bool dsv3_validate_value(Validator *v, const Json *schema, int32_t env, const Json *value);
/* validate_pattern.c */
extern bool
dsv3_validate_pattern(Validator *v, const char *pattern, size_t plen, const char *text, size_t len);

/* validate_format.c */
extern bool
dsv3_validate_format(const char *format, const char *text, size_t len); /* true for unknown formats */
extern bool dsv3_validate_format_number(const char *format, const Dec *number);
extern void dsv3_validator_free(Validator *v); /* what the patterns hold */

#endif /* DSV3_GRAMMAR_VALIDATE_H */
