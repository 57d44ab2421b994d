/*
 * freedom.h
 *	  Kinds of characters, and which of them a state of a string lexeme takes freely: FREE_CHARS of them in any order, without
 *	  refusing one. Masks use it to take or skip whole subtrees of the token trie instead of stepping through them; few tokens
 *	  have more characters.
 */
#ifndef DSV3_GRAMMAR_FREEDOM_H
#define DSV3_GRAMMAR_FREEDOM_H

#include "grammar/lex.h"

/* A set of kinds is 16 bits. Every character of a JSON string's inside has one kind, told by its first byte. */
#define KIND_NONE    ((uint16_t) 0x8000) /* in no string: quotes, control characters, invalid UTF-8 */
#define KINDS_ALL    ((uint16_t) 0x7FFF)
#define TEXT_INVALID 255
#define FREE_CHARS   16

extern uint16_t dsv3_char_kind(unsigned char first);

/* One byte of text: the place in a character after it (lex.h: mid), or TEXT_INVALID. */
extern uint8_t dsv3_text_after(uint8_t mid, unsigned char byte);

/*
 * Fill lex->free, lex->calm, lex->lasting, lex->safe and lex->open of a lexeme of escaped text, and lex->steady: the states from which each further
 * character can be one byte, so that a text of n more characters needs no more than n tokens and the way to an end.
 */
extern void dsv3_lex_freedom(Ctx *ctx, Lex *lex);

#endif /* DSV3_GRAMMAR_FREEDOM_H */
