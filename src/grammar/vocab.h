/*
 * vocab.h
 *	  A token table made ready for masks: flat tries in depth-first order, shared lexemes, and a lock for both.
 *
 * A trie is an array of nodes in depth-first order. To walk it with an automaton: keep one state per depth, step the
 * state of depth - 1 by the node's byte; when that is dead, jump to `skip`, the first node outside the subtree.
 */
#ifndef DSV3_GRAMMAR_VOCAB_H
#define DSV3_GRAMMAR_VOCAB_H

#include <pthread.h>

#include "grammar/grammar.h"
#include "grammar/lex.h"

#define VOCAB_MAX_TOKEN 250 /* longer tokens are never allowed */
#define ROOMS           16  /* few tokens have more characters */
#define KINDS           16

typedef struct VocabNode
{
	int32_t token; /* the first token that ends here, or -1; others with the same bytes follow in `same` */
	int32_t skip;
	int32_t first;  /* where the tokens from here on begin in VocabTrie.order */
	uint16_t below; /* kinds of the characters that begin below this node (freedom.h); VocabTrie.all only */
	uint8_t byte;
	uint8_t depth; /* 1 for a first byte */
} VocabNode;

typedef struct VocabTrie
{
	VocabNode *nodes;
	int32_t n;
	int32_t first[256]; /* the node of each first byte, or n */
	int32_t
		*order; /* all tokens in the order of their nodes, so that a subtree's are [first, first of skip) */
} VocabTrie;

/* What may follow a string's closing quote inside a token: the distinct tails, as a trie of their own. */
typedef struct QuoteToken
{
	int32_t token;
	uint16_t head; /* bytes before the (first unescaped) quote */
	int16_t tail;  /* index of the tail after the quote */
} QuoteToken;

struct Dsv3TokenTable
{
	pthread_mutex_t lock; /* lex cache and every Lex's masks and costs */
	int32_t size;
	int32_t words;
	int32_t eos;
	char *bytes;
	uint32_t *offset; /* [size + 1] */
	int32_t *same;    /* [size] the next token with the same bytes, or -1 */
	VocabTrie all;
	/* Of the nodes of `all`, read as text from between two characters: */
	uint16_t *path;       /* kinds of the characters up to and with the node */
	uint8_t *height;      /* bytes of the longest way down from it */
	uint8_t *mid;         /* the place in a character after it, or TEXT_INVALID */
	uint8_t *chars;       /* characters begun up to it, and on the way to a token: */
	uint8_t *order_chars; /* [tokens of all.order] */
	uint16_t *token_kinds;
	uint64_t *has[KINDS];      /* masks: the tokens that have a character of a kind */
	uint64_t *upto[ROOMS + 2]; /* the tokens of at most so many characters; the last one: of any number */
	int32_t *longs;            /* tokens of more than ROOMS characters */
	int32_t nlongs;
	uint64_t *scratch; /* [words] */
	VocabTrie quoted;  /* tokens with a quote in them */
	int32_t ntails;
	char **tails;
	uint8_t *tail_len;
	uint8_t *tail_quotes; /* quotes in each tail */
	QuoteToken *quotes;
	int32_t nquotes;
	VocabTrie tail_trie; /* token fields are tail indices; the empty tail is index 0 and not in it */

	Lex *any_text; /* the lexeme of unconstrained strings */
	Lex *cache;
	int32_t ncache;
	size_t cache_bytes;
	size_t mask_bytes;
	int32_t longest;
};

/* Add to `words` the tokens of these kinds alone with at most `room` characters; ROOMS + 1: any number. */
extern void dsv3_vocab_or_kinds(const Dsv3TokenTable *vocab, uint64_t *words, uint16_t kinds, int32_t room);

/* Fewest tokens that spell the text. */
extern int32_t dsv3_vocab_cost(const Dsv3TokenTable *vocab, const char *text, size_t len);

/* Tokens to finish from a state: the shortest text that accepts, then `close` (0: nothing). Takes the lock. */
extern int32_t dsv3_vocab_lex_cost(Dsv3TokenTable *vocab, Lex *lex, int32_t state, char close);

extern Lex *dsv3_vocab_find_lex(Dsv3TokenTable *vocab, const char *key); /* adds a reference */
extern Lex *dsv3_vocab_store_lex(Dsv3TokenTable *vocab, const char *key,
								 Lex *lex); /* adds one for the caller, one for itself */
extern void dsv3_vocab_release_lex(Dsv3TokenTable *vocab, Lex *lex);
extern void
dsv3_vocab_set_any(Dsv3TokenTable *vocab, Lex *lex); /* the lexeme of any text; keeps a reference */
extern void dsv3_vocab_hold_lex(Dsv3TokenTable *vocab, Lex *lex);

extern void dsv3_lex_masks_free(Lex *lex); /* lexmask.c; under the lock */

#endif /* DSV3_GRAMMAR_VOCAB_H */
