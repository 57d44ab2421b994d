/*
 * rest.c
 *	  What is still to come inside an array or a string (object.h).
 */
#include "grammar/object.h"

int32_t
dsv3_array_node(const Alt *alt, int32_t index, int32_t set)
{
	return alt->nodes[((index > alt->nprefix ? alt->nprefix : index) << alt->ncontains) + set];
}

bool
dsv3_array_may_close(const Alt *alt, int32_t index, const int32_t counts[3])
{
	if (index < alt->amin)
		return false;
	for (int32_t j = 0; j < alt->ncontains; j++)
		if (counts[j] < alt->contains[j]->min)
			return false;
	return true;
}

int32_t
dsv3_element_surplus(const Alt *alt)
{
	return 6 + (alt->kind == ALT_LIT ? alt->lex->maxdist : 0);
}

static int32_t
element_cost(const Node *nodes, const Alt *alt, int32_t index, int32_t set)
{
	int32_t node = dsv3_array_node(alt, index, set);
	int32_t cost = node < 0 ? COST_INF : nodes[node].cost;

	/* In a unique array the cheapest value may be taken; of finitely many the longest may be what is left, of infinitely
	 * many a neighbour is a few tokens away. */
	if (alt->unique && cost < COST_INF)
	{
		int32_t surplus = 0;

		for (int32_t i = 0; i < nodes[node].nalts; i++)
			if (dsv3_element_surplus(nodes[node].alts[i]) > surplus)
				surplus = dsv3_element_surplus(nodes[node].alts[i]);
		cost = add_cost(cost, surplus);
	}
	return cost;
}

/* With contains: at each index take the element that meets most open demands, else one that meets none. */
static int32_t
contains_rest(const Node *nodes, const Alt *alt, int32_t index, const int32_t counts[3])
{
	int32_t have[3] = {0, 0, 0};
	int32_t total = 1;

	for (int32_t j = 0; j < alt->ncontains; j++)
		have[j] = counts[j];
	for (int32_t i = index;; i++)
	{
		int32_t best = -1;
		int32_t best_gain = -1;
		bool done = dsv3_array_may_close(alt, i, have);

		if (done)
			return total;
		if ((alt->amax >= 0 && i >= alt->amax) || i - index > 20000)
			return COST_INF;
		for (int32_t set = 0; set < 1 << alt->ncontains; set++)
		{
			int32_t gain = 0;
			bool fits = element_cost(nodes, alt, i, set) < COST_INF;

			for (int32_t j = 0; j < alt->ncontains; j++)
				if ((set >> j & 1) != 0)
				{
					gain += have[j] < alt->contains[j]->min ? 2 : 0;
					fits = fits && (alt->contains[j]->max < 0 || have[j] < alt->contains[j]->max);
				}
			if (fits && gain > best_gain)
			{
				best = set;
				best_gain = gain;
			}
		}
		if (best < 0)
			return COST_INF;
		if (best_gain == 0 && i >= alt->nprefix && i >= alt->amin)
			return COST_INF; /* nothing will ever change */
		total = add_cost(total, add_cost(element_cost(nodes, alt, i, best), i > 0 ? alt->comma : 0));
		for (int32_t j = 0; j < alt->ncontains; j++)
			have[j] += best >> j & 1;
	}
}

int32_t
dsv3_array_rest(const Node *nodes, const Alt *alt, int32_t index, const int32_t counts[3])
{
	int32_t total = 1;

	if (alt->amax >= 0 && alt->amin > alt->amax)
		return COST_INF;
	if (alt->ncontains > 0)
		return contains_rest(nodes, alt, index, counts);
	for (int32_t i = index; i < alt->amin && total < COST_INF; i++)
	{
		int32_t cost = element_cost(nodes, alt, i, 0);

		if (i >= alt->nprefix)
		{
			int64_t all = (int64_t) (cost + alt->comma) * (alt->amin - i) - (i == 0 ? alt->comma : 0);

			return cost >= COST_INF || all >= COST_INF ? COST_INF : add_cost(total, (int32_t) all);
		}
		total = add_cost(total, add_cost(cost, i > 0 ? alt->comma : 0));
	}
	return total;
}

bool
dsv3_string_alive(const Alt *alt, int32_t state, int32_t length)
{
	return alt->smax < 0 || length + alt->lex->minlen[state] <= alt->smax;
}

int32_t
dsv3_string_cost(Dsv3TokenTable *vocab, const Alt *alt, int32_t state, int32_t length)
{
	const Lex *lex = alt->lex;
	int32_t need = alt->smin - length;

	if (need <= lex->minlen[state])
		return dsv3_vocab_lex_cost(vocab, alt->lex, state, '"');
	/*
	 * More characters than the nearest end has. A character is counted as one token where characters of one byte can
	 * follow for ever, else as six; what remains of one that has begun by the byte: so there is always a byte that brings the
	 * number down.
	 */
	if (need > COST_INF / 16)
		return COST_INF;
	if (lex->steady != NULL && lex->steady[state] &&
		(alt->smax < 0 || alt->smin + lex->steady_minlen <= alt->smax))
		return need + dsv3_lex_char_left(lex->mid[state]) + lex->steady_dist + 1;
	return need * 6 + dsv3_lex_char_left(lex->mid[state]) + lex->maxdist + 1;
}

int32_t
dsv3_string_card(const Alt *alt, int32_t state, int32_t length)
{
	int32_t shortest = length + alt->lex->minlen[state];
	int32_t from = shortest > alt->smin ? shortest : alt->smin;

	/* At least one text for each possible length. */
	if (alt->smax >= 0 && alt->lex->card[state] == LEX_CARD_MAX)
		return alt->smax - from + 1;
	return alt->lex->card[state];
}
