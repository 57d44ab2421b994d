/*
 * mask.h
 *	  The tokens that may follow a config.
 */
#ifndef DSV3_GRAMMAR_MASK_H
#define DSV3_GRAMMAR_MASK_H

#include "grammar/machine.h"

/* What is remembered of a config. */
struct MaskEntry
{
	int32_t count; /* -1: not a mask of tokens, only tails */
	uint64_t *bits;
	int32_t *list;
	uint64_t *tails; /* which tails after a quote are allowed from this config */
	/* A bound of the tokens to the end of the answer after any that may follow, plus one; 0: not known. */
	int32_t worst;      /* of the tokens */
	int32_t worst_tail; /* of the tails */
};

extern MaskEntry *dsv3_mask_entry(Dsv3Grammar *g, int32_t config); /* made when there is none */

/* Run the bytes of a token: the config after them, or -1. */
extern int32_t dsv3_mask_run(Dsv3Grammar *g, int32_t config, int32_t token);

/* Bits of every token whose bytes the machine can take from config `id`; not the end token. Returns their number. */
extern int32_t dsv3_mask_compute(Dsv3Grammar *g, int32_t id, uint64_t *words);

/* Like it, but only tokens after which the answer can be finished within `left` tokens. *narrowed: some were dropped. */
extern int32_t dsv3_mask_budget(Dsv3Grammar *g, int32_t id, int32_t left, uint64_t *words, bool *narrowed);

/* Is this token among them? By its bytes, without any table: what dsv3_mask_compute must agree with. */
extern bool dsv3_mask_takes(Dsv3Grammar *g, int32_t config, int32_t token);

extern int32_t dsv3_mask_count(const uint64_t *words, int32_t n);

#endif /* DSV3_GRAMMAR_MASK_H */
