/*
 * lexmask.h
 *	  Tokens that a lexeme swallows whole, and those that cross its end: per state, made when first asked for, kept with the
 *	  lexeme and shared by all grammars of the vocabulary. Everything here runs under the vocabulary's lock; memory that
 *	  cannot be had jumps to the grammar's `out`.
 */
#ifndef DSV3_GRAMMAR_LEXMASK_H
#define DSV3_GRAMMAR_LEXMASK_H

#include "grammar/machine.h"

typedef struct Boundary
{
	int32_t token;
	int32_t length; /* code points of the head, as counted from the state */
	int16_t tail;
	int16_t head; /* bytes of the head */
	int32_t tag;  /* of the accepting state the head leads to */
} Boundary;

/* When all masks together are too large, drop those of the shared lexemes; they are made again. Before a mask is computed. */
extern void dsv3_lexmask_limit(Dsv3TokenTable *vocab);

/* Add to `words` the tokens inside the lexeme from a state. */
extern void dsv3_lexmask_or(Dsv3Grammar *g, uint64_t *words, Lex *lex, int32_t state);

/* Those of them after which the text can end with at most `room` code points from here. Text lexemes in strings only. */
extern void dsv3_lexmask_or_room(Dsv3Grammar *g, uint64_t *words, Lex *lex, int32_t state, int32_t room);

/* Tokens whose head ends the text of a string lexeme before a quote. */
extern const Boundary *dsv3_lexmask_bounds(Dsv3Grammar *g, Lex *lex, int32_t state, int32_t *count);

/* Of a number or a literal: trie nodes where the lexeme had accepted before and does not go on. */
extern const int32_t *dsv3_lexmask_crossings(Dsv3Grammar *g, Lex *lex, int32_t state, int32_t *n);

static inline void
set_bit(uint64_t *words, int32_t token)
{
	words[token >> 6] |= UINT64_C(1) << (token & 63);
}

static inline void
set_token(const Dsv3TokenTable *vocab, uint64_t *words, int32_t token)
{
	for (; token >= 0; token = vocab->same[token])
		set_bit(words, token);
}

static inline bool
has_bit(const uint64_t *words, int32_t token)
{
	return (words[token >> 6] >> (token & 63) & 1) != 0;
}

#endif /* DSV3_GRAMMAR_LEXMASK_H */
