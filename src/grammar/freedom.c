/*
 * freedom.c
 *	  Free kinds of characters (freedom.h).
 *
 * The set of a state starts with every kind and shrinks until it is consistent: a kind stays in it only while no character
 * of the kind is refused there, and while the state it leads to is free in all that this one is. Where a successor is
 * less free, there is a choice between giving up the kind that leads there and giving up what the successor lacks; the first is
 * taken when the successor does not have the kind itself. Any choice is sound, since the end is checked and not the way.
 * Inside a character there is no choice: all its valid bytes may come.
 */
#include "grammar/freedom.h"

#include <string.h>

#define SAFE_MAX 16 /* so far ahead it is worth to look */

uint16_t
dsv3_char_kind(unsigned char first)
{
	if (first >= 'a' && first <= 'z')
		return 1;
	if (first >= 'A' && first <= 'Z')
		return 1 << 1;
	if (first >= '0' && first <= '9')
		return 1 << 2;
	switch (first)
	{
		case '_':
			return 1 << 3;
		case '-':
			return 1 << 4;
		case '.':
			return 1 << 5;
		case ' ':
			return 1 << 6;
		case '/':
		case ':':
			return 1 << 7;
		case '\\':
			return 1 << 14;
		case 0xC2: /* has a space */
			return 1 << 9;
		case 0xE2: /* has spaces and line ends */
			return 1 << 11;
		case 0xE1:
		case 0xE3:
		case 0xEF: /* have spaces */
			return 1 << 12;
		default:
			break;
	}
	if (first < 0x20 || first == '"')
		return KIND_NONE;
	if (first < 0x80)
		return 1 << 8;
	if (first < 0xC2 || first > 0xF4)
		return KIND_NONE;
	return first < 0xE0 ? 1 << 10 : 1 << 13;
}

/* What the classes of a lexeme mean to text. */
typedef struct Classes
{
	uint16_t kinds[256]; /* of the bytes in the class, between characters */
	bool valid[256][16]; /* may the class come at this place in a character? */
} Classes;

/* What is left of `set` in a state, given the present sets of its successors. */
static uint16_t
shrink(const Lex *lex, const Classes *classes, const uint16_t *sets, int32_t state, uint16_t set)
{
	const int32_t *row = lex->rows + (size_t) state * (size_t) lex->ncls;
	uint16_t before;

	do
	{
		before = set;
		for (int32_t c = 0; c < lex->ncls && set != 0; c++)
		{
			uint16_t then = row[c] < 0 ? 0 : sets[row[c]];

			if (lex->mid[state] != 0)
			{
				if (classes->valid[c][lex->mid[state]])
					set &= then;
				continue;
			}
			set &= (uint16_t) ~(classes->kinds[c] & ~then);
			if ((classes->kinds[c] & set) != 0)
				set &= then;
		}
	} while (set != before);
	return set;
}

static void
settle_sets(Ctx *ctx, const Lex *lex, const Classes *classes, uint16_t *sets)
{
	bool again = true;

	/* Text automata are shallow: a few rounds do, and sets only shrink. */
	while (again)
	{
		again = false;
		for (int32_t s = lex->n - 1; s >= 0; s--)
		{
			uint16_t set = sets[s] == 0 ? 0 : shrink(lex, classes, sets, s, sets[s]);

			again = again || set != sets[s];
			sets[s] = set;
		}
		gr_work(ctx, (int64_t) lex->n * lex->ncls / 16 + 1);
	}
}

/* The length of the shortest valid text that is refused from each state, by rounds: in round d those of d bytes. */
static void
settle_safe(Ctx *ctx, const Lex *lex, const Classes *classes)
{
	bool again = true;

	memset(lex->safe, UINT8_MAX, (size_t) lex->n);
	for (int d = 1; d < SAFE_MAX && again; d++)
	{
		again = false;
		for (int32_t s = 0; s < lex->n; s++)
		{
			const int32_t *row = lex->rows + (size_t) s * (size_t) lex->ncls;

			for (int32_t c = 0; c < lex->ncls && lex->safe[s] == UINT8_MAX; c++)
				if (classes->valid[c][lex->mid[s]] && (row[c] < 0 ? d == 1 : lex->safe[row[c]] == d - 1))
				{
					lex->safe[s] = (uint8_t) d;
					again = true;
				}
		}
		gr_work(ctx, (int64_t) lex->n * lex->ncls / 16 + 1);
	}
	for (int32_t s = 0; s < lex->n; s++)
		if (lex->safe[s] == UINT8_MAX && again)
			lex->safe[s] = SAFE_MAX;
}

/* Does the class lead from a state to a steady one: from between characters to there again, within one nearer to its end? */
static bool
is_steady_step(const Lex *lex, int32_t state, int32_t class)
{
	int32_t to = lex->rows[(size_t) state * (size_t) lex->ncls + (size_t) class];

	return to >= 0 && lex->steady[to] &&
		   (lex->mid[to] == 0 || dsv3_lex_char_left(lex->mid[to]) < dsv3_lex_char_left(lex->mid[state]));
}

static bool
stays_steady(const Lex *lex, int32_t state)
{
	for (int32_t c = 0; c < lex->ncls; c++)
		if (is_steady_step(lex, state, c))
			return true;
	return false;
}

static void
settle_steady(Ctx *ctx, Lex *lex)
{
	bool again = true;

	lex->steady = dsv3_gr_arena_alloc(&lex->arena, (size_t) lex->n);
	memset(lex->steady, 1, (size_t) lex->n);
	while (again)
	{
		again = false;
		for (int32_t s = lex->n - 1; s >= 0; s--)
			if (lex->steady[s] && !stays_steady(lex, s))
			{
				lex->steady[s] = 0;
				again = true;
			}
		gr_work(ctx, (int64_t) lex->n / 16 + 1);
	}
	for (int32_t s = 0; s < lex->n; s++)
		for (int32_t c = 0; c < lex->ncls && lex->steady[s]; c++)
		{
			int32_t to = lex->rows[(size_t) s * (size_t) lex->ncls + (size_t) c];

			if (!is_steady_step(lex, s, c) || lex->mid[to] != 0)
				continue;
			if (lex->dist[to] > lex->steady_dist)
				lex->steady_dist = lex->dist[to];
			if (lex->minlen[to] > lex->steady_minlen)
				lex->steady_minlen = lex->minlen[to];
		}
}

void
dsv3_lex_freedom(Ctx *ctx, Lex *lex)
{
	Classes *classes = dsv3_gr_arena_alloc(ctx->arena, sizeof(Classes));

	lex->free = dsv3_gr_arena_alloc(&lex->arena, (size_t) lex->n * sizeof(uint16_t));
	lex->safe = dsv3_gr_arena_alloc(&lex->arena, (size_t) lex->n);
	lex->calm = dsv3_gr_arena_alloc(&lex->arena, (size_t) lex->n * sizeof(uint16_t));
	for (int b = 0; b < 256; b++)
	{
		if (dsv3_char_kind((unsigned char) b) != KIND_NONE)
			classes->kinds[lex->cls[b]] |= dsv3_char_kind((unsigned char) b);
		for (uint8_t mid = 0; mid < 16; mid++)
			if (dsv3_text_after(mid, (unsigned char) b) != TEXT_INVALID)
				classes->valid[lex->cls[b]][mid] = true;
	}
	for (int32_t s = 0; s < lex->n; s++)
	{
		lex->free[s] = KINDS_ALL;
		lex->calm[s] = lex->minlen[s] == 0 ? KINDS_ALL : 0;
	}
	settle_sets(ctx, lex, classes, lex->free);
	settle_sets(ctx, lex, classes, lex->calm);
	settle_safe(ctx, lex, classes);
	settle_steady(ctx, lex);
	lex->open = true;
	for (int32_t s = 0; s < lex->n && lex->open; s++)
		lex->open = lex->free[s] == KINDS_ALL;
}
