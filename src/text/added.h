/*
 * added.h
 *	  Added tokens: whole strings that stand for one id and are found in raw text before anything else.
 */
#ifndef DSV3_ADDED_H
#define DSV3_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "text/charset.h"

typedef struct Dsv3AddedToken
{
	int32_t id;
	char *text; /* owned, zero-terminated, len bytes of valid UTF-8 */
	size_t len;
	bool special;     /* left out when an answer is shown */
	bool single_word; /* only where no word character touches it */
	bool lstrip;      /* takes the white space before it */
	bool rstrip;      /* and after it */
	bool normalized;  /* looked for only after the others */
} Dsv3AddedToken;

typedef struct Dsv3AddedTokens
{
	Dsv3AddedToken *items; /* sorted by text once finished */
	size_t count;
	size_t capacity;
	Dsv3Charset word;
	Dsv3Charset space;
	size_t longest;
	uint32_t first_of[257]; /* items[first_of[b] .. first_of[b + 1]) begin with byte b */
} Dsv3AddedTokens;

/* Add one; the text is copied. The id and the text must be new (checked by finish). */
extern bool dsv3_added_add(Dsv3AddedTokens *added, const Dsv3AddedToken *token, Dsv3Error *err);
extern bool dsv3_added_finish(Dsv3AddedTokens *added, Dsv3Error *err);
extern void dsv3_added_free(Dsv3AddedTokens *added);

/* The token with exactly this text, or NULL. */
extern const Dsv3AddedToken *dsv3_added_find(const Dsv3AddedTokens *added, const char *text, size_t len);

/* A stretch of a text: an added token, or (token NULL) text between two. */
typedef struct Dsv3Section
{
	const Dsv3AddedToken *token;
	size_t start; /* bytes */
	size_t end;
} Dsv3Section;

typedef struct Dsv3SectionList
{
	Dsv3Section *items;
	size_t count;
	size_t capacity;
} Dsv3SectionList;

/* Cut text[0..len), valid UTF-8, into sections, as the tokenizers do: leftmost, then longest. */
extern bool dsv3_added_split(const Dsv3AddedTokens *added, const char *text, size_t len, Dsv3SectionList *out,
							 Dsv3Error *err);

#endif /* DSV3_ADDED_H */
