/*
 * freedom.c
 *	  Free kinds of characters (freedom.h).
 *
 * Round by round: after round d the set of a state holds kinds of which any d characters are taken there. It starts with every
 * kind. A kind stays in it only while no character of the kind is refused, and while the state it leads to had in the round
 * before all that this one has. Where a successor has less, there is a choice between giving up the kind that leads there
 * and giving up what the successor lacks; the first is taken when the successor does not have the kind itself. Any choice is
 * sound, since what is kept is checked and not the way. Inside a character there is no choice: all its valid bytes may come.
 * A round that changes nothing ends the matter for all lengths.
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

/* Where text leads: for each state its different successors, -1 for refusal. A state has few of them and many classes. */
typedef struct Ways
{
	int32_t *first; /* [n + 1] places in v */
	IntVec v;       /* pairs of a successor and the kinds that lead there (between characters) */
	int32_t *order; /* the states, by the bytes that their character has still to come */
} Ways;

static Ways
find_ways(Ctx *ctx, const Lex *lex)
{
	Classes *classes = dsv3_gr_arena_alloc(ctx->arena, sizeof(Classes));
	Ways ways = {dsv3_gr_arena_alloc(ctx->arena, ((size_t) lex->n + 1) * sizeof(int32_t)),
				 {NULL, 0, 0},
				 dsv3_gr_arena_alloc(ctx->arena, ((size_t) lex->n + 1) * sizeof(int32_t))};
	int32_t n = 0;

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
		const int32_t *row = lex->rows + (size_t) s * (size_t) lex->ncls;

		ways.first[s] = ways.v.n;
		for (int32_t c = 0; c < lex->ncls; c++)
		{
			int32_t k = ways.first[s];

			if (!classes->valid[c][lex->mid[s]])
				continue;
			while (k < ways.v.n && ways.v.v[k] != row[c])
				k += 2;
			if (k == ways.v.n)
			{
				gr_intvec_push(ctx->arena, &ways.v, row[c]);
				gr_intvec_push(ctx->arena, &ways.v, 0);
			}
			ways.v.v[k + 1] |= classes->kinds[c];
		}
	}
	ways.first[lex->n] = ways.v.n;
	for (int32_t left = 0; n < lex->n; left++)
		for (int32_t s = 0; s < lex->n; s++)
			if (dsv3_lex_char_left(lex->mid[s]) == left)
				ways.order[n++] = s;
	gr_work(ctx, (int64_t) lex->n * lex->ncls / 16 + 1);
	return ways;
}

/* What is left of `set` in a state, given the sets of its successors. */
static uint16_t
shrink(const Lex *lex, const Ways *ways, const uint16_t *sets, int32_t state, uint16_t set)
{
	const int32_t *end = ways->v.v + ways->first[state + 1];
	uint16_t before;

	do
	{
		before = set;
		for (const int32_t *way = ways->v.v + ways->first[state]; way < end && set != 0; way += 2)
		{
			uint16_t kinds = (uint16_t) way[1];
			uint16_t then = way[0] < 0 ? 0 : sets[way[0]];

			if (lex->mid[state] == 0)
				set &= (uint16_t) ~(kinds & ~then);
			if (lex->mid[state] != 0 || (kinds & set) != 0)
				set &= then;
		}
	} while (set != before);
	return set;
}

/* true: nothing changed in the last round, so the sets hold for any number of characters. */
static bool
settle_sets(Ctx *ctx, const Lex *lex, const Ways *ways, uint16_t *sets)
{
	uint16_t *old = dsv3_gr_arena_alloc(ctx->arena, (size_t) lex->n * sizeof(uint16_t));
	bool again = true;

	for (int d = 0; d <= FREE_CHARS && again; d++)
	{
		again = false;
		memcpy(old, sets, (size_t) lex->n * sizeof(uint16_t));
		for (int32_t i = 0; i < lex->n; i++)
		{
			int32_t s = ways->order[i];

			if (sets[s] == 0)
				continue;
			/* Between characters one more begins; within one, the way to its end is no step. */
			sets[s] = shrink(lex, ways, lex->mid[s] == 0 ? old : sets, s, sets[s]);
			again = again || sets[s] != old[s];
		}
		gr_work(ctx, ways->v.n / 16 + 1);
	}
	return !again;
}

/* The length of the shortest valid text that is refused from each state, by rounds: in round d those of d bytes. */
static void
settle_safe(Ctx *ctx, const Lex *lex, const Ways *ways)
{
	bool again = true;

	memset(lex->safe, UINT8_MAX, (size_t) lex->n);
	for (int d = 1; d < SAFE_MAX && again; d++)
	{
		again = false;
		for (int32_t s = 0; s < lex->n; s++)
			for (int32_t k = ways->first[s]; k < ways->first[s + 1] && lex->safe[s] == UINT8_MAX; k += 2)
			{
				int32_t to = ways->v.v[k];

				if (to < 0 ? d == 1 : lex->safe[to] == d - 1)
				{
					lex->safe[s] = (uint8_t) d;
					again = true;
				}
			}
		gr_work(ctx, ways->v.n / 16 + 1);
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
	Ways ways = find_ways(ctx, lex);

	lex->free = dsv3_gr_arena_alloc(&lex->arena, (size_t) lex->n * sizeof(uint16_t));
	lex->safe = dsv3_gr_arena_alloc(&lex->arena, (size_t) lex->n);
	lex->calm = dsv3_gr_arena_alloc(&lex->arena, (size_t) lex->n * sizeof(uint16_t));
	for (int32_t s = 0; s < lex->n; s++)
	{
		lex->free[s] = KINDS_ALL;
		lex->calm[s] = lex->minlen[s] == 0 ? KINDS_ALL : 0;
	}
	lex->lasting = settle_sets(ctx, lex, &ways, lex->free);
	settle_sets(ctx, lex, &ways, lex->calm);
	settle_safe(ctx, lex, &ways);
	settle_steady(ctx, lex);
	lex->open = true;
	for (int32_t s = 0; s < lex->n && lex->open; s++)
		lex->open = lex->free[s] == KINDS_ALL;
}
