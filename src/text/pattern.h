/*
 * pattern.h
 *	  The regular expressions of tokenizer files, read in Oniguruma's dialect and run by PCRE2 over classes.
 *
 * A pattern only ever asks which of its character sets a code point belongs to. So the parser turns every literal,
 * escape and bracket expression into a set of code points (with exact set algebra: nesting, negation, &&), all sets of
 * all patterns of a tokenizer cut the code points into a few classes of equal membership ("atoms", at most 255), a text
 * becomes one atom byte per character, and PCRE2 runs over those bytes, where a set is a plain byte class. Unicode is thus
 * ours (unicode_data.c) whatever version PCRE2 was built with, and matching is fast.
 *
 * Supported: alternation, groups (capturing ones do not capture), (?i:) over ASCII, (?s:) and friends not, lookaround,
 * atomic groups, greedy, lazy and possessive quantifiers, ^ $ \A \z \Z with Oniguruma's meaning, . \s \S \d \D \h \H
 * \p{..} \P{..} with general categories, Han and Any. Anything else is refused by name.
 */
#ifndef DSV3_PATTERN_H
#define DSV3_PATTERN_H

#include "common/error.h"
#include "text/charset.h"

/* The sets of all patterns of one tokenizer; equal sets share an index. */
typedef struct Dsv3SetList
{
	Dsv3Charset *sets;
	size_t count;
	size_t capacity;
} Dsv3SetList;

/* Takes ownership of the ranges in *set whether it succeeds or not; gives its index, or -1 without memory. */
extern int dsv3_setlist_add(Dsv3SetList *list, Dsv3Charset *set);
extern void dsv3_setlist_free(Dsv3SetList *list);

/* A parsed pattern: characters of PCRE2 syntax, and references to sets as -1 - index. */
typedef struct Dsv3Pattern
{
	int32_t *code;
	size_t count;
	size_t capacity;
} Dsv3Pattern;

/* Parse text[0..len), valid UTF-8; new sets are added to *list. On failure *pattern is to be freed all the same. */
extern bool
dsv3_pattern_parse(Dsv3Pattern *pattern, Dsv3SetList *list, const char *text, size_t len, Dsv3Error *err);

/* A pattern that matches exactly the characters of text. */
extern bool
dsv3_pattern_literal(Dsv3Pattern *pattern, Dsv3SetList *list, const char *text, size_t len, Dsv3Error *err);

extern void dsv3_pattern_free(Dsv3Pattern *pattern);

#endif /* DSV3_PATTERN_H */
