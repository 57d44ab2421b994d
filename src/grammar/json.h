/*
 * json.h
 *	  JSON values as the schema compiler and the validator need them: numbers keep every digit, objects keep the order
 *	  of their members, every value knows where it stands in its document.
 *
 * Jansson, which reads JSON elsewhere, turns numbers into doubles; a schema's 18446744073709551615 or 0.1 must not be
 * rounded before it becomes a bound, so this parser keeps the decimal. Values live in the arena they were parsed into.
 */
#ifndef DSV3_GRAMMAR_JSON_H
#define DSV3_GRAMMAR_JSON_H

#include "grammar/base.h"

typedef enum JsonKind
{
	JSON_NULL_,
	JSON_FALSE_,
	JSON_TRUE_,
	JSON_NUMBER_,
	JSON_STRING_,
	JSON_ARRAY_,
	JSON_OBJECT_,
} JsonKind;

/*
 * A decimal: (-1)^neg * digits * 10^exp, digits without leading or trailing zeros ('0'..'9', not terminated);
 * zero is ndigits 0, exp 0, not negative. Equal values have equal representations.
 */
typedef struct Dec
{
	bool neg;
	int32_t ndigits;
	int64_t exp;
	const char *digits;
} Dec;

typedef struct JsonMember
{
	const char *key; /* zero-terminated; may hold zero bytes inside, see keylen */
	uint32_t keylen;
	Json *value;
} JsonMember;

struct Json
{
	uint8_t kind;
	bool schema_seen; /* schema.c: indexed as a schema */
	int32_t shape;    /* shape.c: equal contents have equal numbers; 0: not computed */
	int32_t resource; /* schema.c: the resource this schema belongs to */
	uint32_t n;       /* bytes, elements or members */
	union
	{
		const char *str;
		Dec *num;
		Json **items;
		JsonMember *members; /* duplicates already removed: the last one wins, at the first one's place */
	} u;
	const Json *parent;
	const char *parent_key; /* when the parent is an object */
	uint32_t parent_index;
	uint32_t mask;         /* of a parsed object: its members by the hash of their keys, */
	const uint32_t *slots; /* [mask + 1] index + 1, or 0 */
};

#define JSON_MAX_DEPTH 256

typedef struct JsonFault
{
	size_t offset;
	const char
		*what; /* static text, PostgreSQL style: what was expected; of too_large, "is ..." or "has ..." */
	bool too_large;
	bool bad_text; /* invalid UTF-8 or lone surrogate */
} JsonFault;

/*
 * Parse text[0..len). NULL and *fault when it is not one JSON value in valid UTF-8 with nesting of at most
 * JSON_MAX_DEPTH and numbers of at most 100,000 digits. reject_duplicates: a key given twice is a fault.
 */
extern Json *
dsv3_gr_json_parse(Arena *arena, const char *text, size_t len, bool reject_duplicates, JsonFault *fault);

/* Fail the compilation with a fault in `whose` text. */
extern void dsv3_gr_json_fail(Ctx *ctx, const JsonFault *fault, const char *whose) __attribute__((noreturn));

extern Json *dsv3_gr_json_get(const Json *object, const char *key); /* NULL when absent or not an object */
extern Json *dsv3_gr_json_get_n(const Json *object, const char *key, uint32_t keylen);
extern bool dsv3_gr_json_equal(const Json *a,
							   const Json *b); /* JSON Schema equality: numbers by value, objects as sets */
extern bool dsv3_gr_json_is_integer(const Json *value);
extern void
dsv3_gr_json_pointer(const Json *value, char *out, size_t size); /* JSON pointer of a value; "" for NULL */
extern uint32_t dsv3_gr_json_codepoints(const char *text, uint32_t len);

/* New values for rewriting. */
extern Json *dsv3_gr_json_new(Arena *arena, JsonKind kind);
extern Json *dsv3_gr_json_new_object1(Arena *arena, const char *key, Json *member);

/* Decimals. dsv3_gr_dec_parse takes the text of a JSON number. */
extern Dec *dsv3_gr_dec_parse(Arena *arena, const char *text, size_t len);
extern Dec *dsv3_gr_dec_from_int(Arena *arena, int64_t value);
extern int dsv3_gr_dec_compare(const Dec *a, const Dec *b);
extern bool dsv3_gr_dec_is_integer(const Dec *a);
extern bool dsv3_gr_dec_to_int64(const Dec *a, int64_t *out); /* false: not an integer or out of range */
extern bool dsv3_gr_dec_multiple_of(const Dec *value, const Dec *divisor); /* divisor > 0 */
extern Dec *dsv3_gr_dec_negate(Arena *arena, const Dec *a);

/*
 * Canonical spelling, appended to a growing buffer: what the decoder itself writes. Compact, raw UTF-8, the short
 * escapes \b \t \n \f \r \" \\, other control characters as \u00xx; integers plain, fractions without trailing zeros,
 * an exponent only where the plain form would need more than 30 digits before or after the point.
 */
typedef struct TextBuf
{
	char *data;
	size_t len;
	size_t cap;
	bool failed; /* out of memory; data is then incomplete */
} TextBuf;
extern void dsv3_gr_textbuf_add(TextBuf *buf, const char *data, size_t len);
extern void dsv3_gr_textbuf_free(TextBuf *buf);
extern void dsv3_gr_json_write(TextBuf *buf, const Json *value);
extern void dsv3_gr_json_write_string(TextBuf *buf, const char *text, uint32_t len); /* with the quotes */
extern void dsv3_gr_dec_write(TextBuf *buf, const Dec *dec);

#endif /* DSV3_GRAMMAR_JSON_H */
