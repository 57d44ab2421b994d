/*
 * unicode.h
 *	  UTF-8 and sets of code points, for regular expressions.
 */
#ifndef DSV3_GRAMMAR_UNICODE_H
#define DSV3_GRAMMAR_UNICODE_H

#include "grammar/base.h"

typedef struct CodeRange
{
	uint32_t lo;
	uint32_t hi;
} CodeRange;

/* Sorted, disjoint ranges once dsv3_codeset_finish has run. */
typedef struct CodeSet
{
	CodeRange *ranges;
	int32_t n;
	int32_t cap;
} CodeSet;

/* Decode one character of valid UTF-8 (an invalid byte is given as itself); returns its length. */
extern size_t dsv3_gr_unicode_decode(const char *text, size_t len, uint32_t *code);
extern int dsv3_gr_unicode_encode(uint32_t code, unsigned char out[4]);

extern CodeSet *dsv3_codeset_new(Arena *arena);
extern void dsv3_codeset_add(Arena *arena, CodeSet *set, uint32_t lo, uint32_t hi);
extern void dsv3_codeset_finish(Arena *arena, CodeSet *set, bool negate);

/* \d \D \w \W \s \S, as ECMA-262 defines them. */
extern void dsv3_codeset_add_escape(Arena *arena, CodeSet *set, char escape);

/* The short name of a Unicode property as PCRE2 wants it ("Letter" -> "L"); *len is in and out. */
extern const char *dsv3_gr_unicode_property(const char *name, size_t *len);

/* \p{name}: false when PCRE2, which knows the Unicode data, does not know the name. */
extern bool dsv3_codeset_add_property(Ctx *ctx, CodeSet *set, const char *name, size_t len, bool negate);

/* Byte ranges of one or more characters of the same length. */
typedef struct ByteSeq
{
	unsigned char lo[4];
	unsigned char hi[4];
	int n;
} ByteSeq;

typedef struct ByteSeqs
{
	ByteSeq *v;
	int32_t n;
	int32_t cap;
} ByteSeqs;

/* Append the UTF-8 of code points lo..hi, all above the ASCII range and no surrogates. */
extern void dsv3_codeset_utf8(Arena *arena, ByteSeqs *seqs, uint32_t lo, uint32_t hi);

#endif /* DSV3_GRAMMAR_UNICODE_H */
