/*
 * object.h
 *	  Alternatives that are objects, arrays or strings: building them, and what is still to come in the middle of one.
 *
 * The "rest" functions are pure: they say how many tokens a shortest completion of the frame takes from a given
 * position (COST_INF: there is none). The matcher asks them whether a step leads to a dead end, the budget asks them
 * how far it is to the end. Each follows one fixed plan, and the plan of the next position on it is its tail; so a step
 * along the plan always brings the number down.
 */
#ifndef DSV3_GRAMMAR_OBJECT_H
#define DSV3_GRAMMAR_OBJECT_H

#include "grammar/ir.h"
#include "grammar/vocab.h"

static inline int32_t
add_cost(int32_t a, int32_t b)
{
	return a >= COST_INF || b >= COST_INF || a > COST_INF - b ? COST_INF : a + b;
}

/* object.c */
extern bool dsv3_object_alt(Ir *ir, Alt *alt, const Con *con, Spelling spelling); /* false: impossible */
extern void
dsv3_object_costs(Ir *ir, Alt *alt); /* the sums of required members, from the nodes' present costs */
extern void dsv3_object_finish(Ir *ir, Alt *alt); /* drop members without a value */

/* After n members, extra of them beyond the declared ones, next declared one at pos: tokens to the closing brace. */
extern int32_t dsv3_object_rest(const Node *nodes, const Alt *alt, int32_t pos, int32_t n, int32_t extra);
extern int32_t dsv3_object_open_rest(const Node *nodes, const Alt *alt); /* right after the opening brace */
extern bool dsv3_object_alive(const Alt *alt, int32_t pos, int32_t n, int32_t extra);
extern bool
dsv3_object_more(const Alt *alt, int32_t pos, int32_t n, int32_t extra); /* may another member follow? */
extern bool dsv3_object_key_ok(const Alt *alt, int32_t prop, int32_t pos, int32_t n, int32_t extra);
extern bool dsv3_object_extra_ok(const Alt *alt, int32_t pos, int32_t n, int32_t extra);
extern bool dsv3_object_may_close(const Alt *alt, int32_t pos, int32_t n, int32_t extra);

static inline int32_t
dsv3_trie_child(const Alt *alt, int32_t node, unsigned char byte)
{
	int32_t child = alt->trie[node].child;

	while (child >= 0 && alt->trie[child].byte != byte)
		child = alt->trie[child].sibling;
	return child;
}

/* Does a declared key that may come next go on below this node of the trie? */
extern bool dsv3_trie_alive(const Alt *alt, int32_t node, int32_t pos, int32_t n, int32_t extra);

extern void dsv3_spelling_lits(const Ir *ir, Spelling spelling, IntVec *lits); /* node.c */

/* rest.c */
extern int32_t dsv3_array_rest(const Node *nodes, const Alt *alt, int32_t index, const int32_t counts[3]);
extern bool dsv3_array_may_close(const Alt *alt, int32_t index, const int32_t counts[3]);
/* What an element of a unique array may cost more than the cheapest: that may have been taken. */
extern int32_t dsv3_element_surplus(const Alt *alt);
extern int32_t dsv3_array_node(const Alt *alt, int32_t index, int32_t set);
extern int32_t
dsv3_string_cost(Dsv3TokenTable *vocab, const Alt *alt, int32_t state, int32_t length); /* with the quote */
extern int32_t dsv3_string_card(const Alt *alt, int32_t state, int32_t length);
extern bool dsv3_string_alive(const Alt *alt, int32_t state, int32_t length);

#endif /* DSV3_GRAMMAR_OBJECT_H */
