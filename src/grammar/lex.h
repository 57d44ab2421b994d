/*
 * lex.h
 *	  Lexemes: deterministic byte automata for what stands between two structural characters: the inside of a string,
 *	  a number, one of a set of literals; and for whole answers that are a regular expression or a choice.
 *
 * A Lex is explored completely when it is built (at most LEX_MAX_STATES states) and then trimmed: a transition that
 * cannot lead to acceptance is dead, so "the automaton is alive" always means "this can still be finished". It is
 * immutable afterwards except for its masks, which belong to the vocabulary's lock (vocab.h).
 *
 * String lexemes work on the escaped text, without the quotes, in the one canonical spelling json.h describes. Their
 * states know whether they stand between two characters (mid == 0), which is how lengths are counted: a code point
 * begins with every byte read in a state with mid == 0.
 */
#ifndef DSV3_GRAMMAR_LEX_H
#define DSV3_GRAMMAR_LEX_H

#include "grammar/base.h"

#define LEX_MAX_STATES   20000
#define LEX_MAX_LITERALS 400000 /* states of one set of literals */
#define LEX_DEAD         (-1)
#define LEX_MID_ESCAPE   1       /* mid of a state after a backslash */
#define LEX_CARD_MAX     1000000 /* "infinitely many" completions */

struct LexMask; /* lexmask.c */

struct Lex
{
	Arena arena; /* the lexeme's own memory */
	int32_t n;   /* states; 0 is the start. n == 0: the empty language */
	int32_t ncls;
	uint8_t cls[256]; /* byte -> class */
	int32_t *rows;    /* [n][ncls] next state or LEX_DEAD */
	int32_t *tag;     /* [n] -1: not accepting; else which of the things told apart was read */
	int32_t *dist;    /* [n] bytes to the nearest acceptance */
	uint8_t *next;    /* [n] first byte on that way */
	uint8_t *mid;     /* [n] 0 between characters; NULL when not a text lexeme */
	int32_t maxdist;  /* the largest dist */
	int32_t *minlen;  /* [n] code points to the nearest acceptance, counted on states with mid == 0 */
	uint16_t *
		free; /* [n] kinds of which the next FREE_CHARS characters may be (freedom.h); text lexemes in a string */
	uint16_t *calm; /* [n] likewise, and the text may end after any of them */
	uint8_t *safe;  /* [n] no text of less than so many bytes is refused from here on; 255: or more */
	uint8_t *
		steady; /* [n] characters of one byte can follow for ever; in a character: after its end (freedom.h) */
	int32_t steady_dist; /* the largest dist, and minlen, where such a character ends */
	int32_t steady_minlen;
	int32_t *card; /* [n] a lower bound of the number of completions, at most LEX_CARD_MAX */
	int32_t *cost; /* [n] tokens of the shortest spelling found; vocab.c fills it */
	Work made;     /* what making it and its parts took, for those who find it made */
	Work flexible_made;
	int32_t
		flexible; /* 1 yes, 0 no, -1 not looked at: every length from minlen up can be reached, from every state */
	bool narrowed;          /* of a number: some values are left out */
	bool endless;           /* from every state there are arbitrarily long ways to acceptance */
	bool lasting;           /* of a string: free holds for any number of characters */
	bool open;              /* of a string: every valid text is a prefix of the language, from every state */
	struct LexMask **masks; /* [n] lazily made, under the vocabulary's lock */
	int32_t use_min;        /* lengths that go with a cached string lexeme; max -1: none */
	int32_t use_max;
	int32_t refs;
	Lex *next_cached;
	Lex *next_made; /* while compiling: everything built so far */
	char *cache_key;
	uint32_t cache_hash;
};

static inline int32_t
lex_step(const Lex *lex, int32_t state, unsigned char byte)
{
	return lex->rows[(size_t) state * (size_t) lex->ncls + lex->cls[byte]];
}

/* Bytes that a character begun has still to come, at most, from a state's mid. */
extern int32_t dsv3_lex_char_left(uint8_t mid);

/* State after text, or LEX_DEAD. */
extern int32_t dsv3_lex_run(const Lex *lex, int32_t state, const char *text, size_t len);

/*
 * A general builder. `step` writes the key of the state reached from key by byte and returns false when that is dead;
 * `tag` gives the tag of a state or -1. cls has been filled by the caller. Both run in ctx and may jump out.
 */
typedef struct LexSource
{
	void *arg;
	bool (*step)(void *arg, const int32_t *key, int32_t n, unsigned char byte, IntVec *out);
	int32_t (*tag)(void *arg, const int32_t *key, int32_t n);
	int (*mid)(void *arg, const int32_t *key, int32_t n); /* NULL: no mid */
	bool trim; /* cut what cannot finish; false for components that may be complemented */
	int32_t max_states;
	bool may_fail; /* with more states there is no lexeme, and no error */
} LexSource;
extern Lex *dsv3_lex_build(Ctx *ctx, const LexSource *source, const int32_t *start, int32_t nstart,
						   const uint8_t *cls, int32_t ncls);
extern void dsv3_lex_free(Lex *lex);

/* The inside of any JSON string (escaped), and any UTF-8 text without U+0000. */
extern Lex *dsv3_lex_any(Ctx *ctx, bool escaped);

/* lex->flexible, worked out when first asked for; charged in either case. */
extern bool dsv3_lex_flexible(Ctx *ctx, Lex *lex);

/* Between min and max code points of any text; max < 0: no maximum. */
extern Lex *dsv3_lex_count(Ctx *ctx, bool escaped, int32_t min, int32_t max);

/* Exactly the given byte strings; the tag is the index. */
typedef struct LexLiteral
{
	const char *text;
	size_t len;
} LexLiteral;
extern Lex *dsv3_lex_literals(Ctx *ctx, const LexLiteral *literals, int32_t n, bool trim);

/*
 * A product of text automata with the "any text" automaton. `decide` maps the set of accepting parts (bit i: part i
 * accepts) to a tag or -1; must: parts that must stay alive. Up to 60 parts.
 */
extern Lex *dsv3_lex_product(Ctx *ctx, bool escaped, Lex *const *parts, int32_t nparts, uint64_t must,
							 int32_t (*decide)(void *arg, uint64_t accepting), void *arg);

/* What any of the text automata of strings accepts; NULL when that takes more than max_states. */
extern Lex *dsv3_lex_union(Ctx *ctx, Lex *const *parts, int32_t nparts, int32_t max_states);

/* Pattern: a regular expression (ECMA-262 subset), as a conjunction of automata, some of them negated. */
typedef struct PatternPart
{
	struct PatternPart *next;
	Lex *lex; /* not trimmed */
	bool negated;
} PatternPart;
typedef struct Pattern
{
	PatternPart *parts;
	Work made;
	bool charged;
	/* `^X{m,n}$` of one character class: the counts are taken out of the automaton. max -1: no maximum. */
	int32_t min;
	int32_t max;
} Pattern;

/* whole: the expression must match the whole text (a regex request) instead of being searched for. counted: take the
 * counts of `^X{m,n}$` apart. */
extern Pattern *
dsv3_regex_compile(Ctx *ctx, const char *text, size_t len, bool escaped, bool whole, bool counted);

#endif /* DSV3_GRAMMAR_LEX_H */
