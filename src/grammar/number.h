/*
 * number.h
 *	  Automata for JSON numbers within bounds and on a grid.
 */
#ifndef DSV3_GRAMMAR_NUMBER_H
#define DSV3_GRAMMAR_NUMBER_H

#include "grammar/json.h"
#include "grammar/lex.h"

typedef struct NumGrid
{
	struct NumGrid *next;
	const Dec *step; /* > 0 */
	bool negated;    /* values must not be on the grid */
} NumGrid;

typedef struct NumSpec
{
	const Dec *lo; /* NULL: none */
	const Dec *hi;
	bool lo_open;
	bool hi_open;
	bool integer;   /* written without a fraction */
	bool canonical; /* one spelling per value (for uniqueItems) */
	NumGrid *grids;
} NumSpec;

/*
 * The automaton, possibly empty (n == 0). Digits are capped at 30 before and 30 after the point unless a bound has
 * more; exponents appear only where there is neither bound nor grid. Grids too fine for an automaton are narrowed to
 * their first multiples, and the automaton is marked as narrowed.
 */
extern Lex *dsv3_number_lex(Ctx *ctx, const NumSpec *spec);
extern bool dsv3_number_spec_has(const NumSpec *spec, const Dec *value);
extern bool dsv3_number_spec_empty(const NumSpec *spec); /* by its bounds alone */

#endif /* DSV3_GRAMMAR_NUMBER_H */
