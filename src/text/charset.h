/*
 * charset.h
 *	  Sets of code points, as sorted ranges that neither touch nor overlap.
 *
 * The set operations return a new set in *out (which may alias an argument) and fail only on memory. A zeroed struct is
 * the empty set; free with dsv3_charset_free.
 */
#ifndef DSV3_CHARSET_H
#define DSV3_CHARSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Dsv3Range
{
	uint32_t first;
	uint32_t last; /* inclusive */
} Dsv3Range;

typedef struct Dsv3Charset
{
	Dsv3Range *ranges;
	size_t count;
	size_t capacity;
} Dsv3Charset;

extern void dsv3_charset_free(Dsv3Charset *set);
extern bool dsv3_charset_add(Dsv3Charset *set, uint32_t first, uint32_t last);
extern bool dsv3_charset_union(Dsv3Charset *out, const Dsv3Charset *a, const Dsv3Charset *b);
extern bool dsv3_charset_intersect(Dsv3Charset *out, const Dsv3Charset *a, const Dsv3Charset *b);
extern bool dsv3_charset_complement(Dsv3Charset *out, const Dsv3Charset *a);
extern bool dsv3_charset_equal(const Dsv3Charset *a, const Dsv3Charset *b);
extern bool dsv3_charset_contains(const Dsv3Charset *set, uint32_t c);

/* Add the code points with a Unicode property: a general category ("L", "Lu"), "Han" or "Any". *known tells whether the
 * name is one of those; false is returned on memory only. */
extern bool dsv3_charset_add_property(Dsv3Charset *set, const char *name, size_t len, bool *known);

/* White_Space, which is what \s means to Oniguruma and to Rust. */
extern bool dsv3_charset_add_space(Dsv3Charset *set);

/* What \w means to Rust: letters, marks, decimal digits, connectors, other alphabetics, joiners. */
extern bool dsv3_charset_add_word(Dsv3Charset *set);

/* Close the set under simple case folding of ASCII letters (with U+017F and U+212A, which fold to s and k). */
extern bool dsv3_charset_fold_ascii(Dsv3Charset *set);

#endif /* DSV3_CHARSET_H */
