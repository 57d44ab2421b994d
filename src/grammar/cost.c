/*
 * cost.c
 *	  How far it is to the end of the answer, in tokens, from any config: an upper bound that some sequence of allowed
 *	  tokens reaches, one lower after each of its tokens.
 *
 * The bound adds up pieces: what is left of the present lexeme, of a key and its colon, and the rest functions of the
 * frames around (object.h). A config's bound is the least of its items'.
 */
#include "grammar/machine.h"

#include <string.h>

#define MAX_FREE 512 /* bytes of a key beyond the declared ones */

static int32_t
text_cost(Dsv3Grammar *g, const char *text, size_t len)
{
	return dsv3_vocab_cost(g->vocab, text, len);
}

/* A key beyond the declared ones that is being made up: text[0..len) after what is written, and where that leads. */
typedef struct FreeKey
{
	Dsv3Grammar *g;
	const Alt *alt;
	const Item *item;
	unsigned char text[MAX_FREE];
	int32_t best; /* tokens to the end of the object */
	int32_t visits;
} FreeKey;

/* Let the key go on the shortest way from a state; *taken: it would be a declared or a used one. */
static int32_t
finish_key(FreeKey *k, int32_t len, int32_t state, int32_t node, int32_t text, bool *taken)
{
	const Lex *lex = k->alt->lex;
	bool spaced = k->g->options.whitespace == DSV3_WHITESPACE_SPACED;
	int32_t cost;

	while (lex->dist[state] > 0 && len < MAX_FREE - 2)
	{
		unsigned char byte = lex->next[state];

		k->text[len++] = byte;
		node = node >= 0 ? dsv3_trie_child(k->alt, node, byte) : -1;
		text = dsv3_machine_used_text(k->g, k->item->d, text, byte);
		state = lex_step(lex, state, byte);
	}
	*taken = (node >= 0 && k->alt->trie[node].prop >= 0) || dsv3_machine_used(k->g, k->item->d, text);
	if (lex->dist[state] > 0)
		return COST_INF;
	k->text[len++] = '"';
	cost = 1 + spaced + text_cost(k->g, (const char *) k->text, (size_t) len);
	cost = add_cost(cost, k->g->nodes[k->alt->regions[lex->tag[state]]].cost);
	return add_cost(cost,
					dsv3_object_rest(k->g->nodes, k->alt, k->alt->nprops, k->item->b + 1, k->item->c + 1));
}

/*
 * The cheapest key that is not taken: one that ends among the beginnings of taken keys, or leaves them somewhere and then goes the
 * shortest way. Looking at more of them from further along the way, it never gets dearer.
 */
static void
free_key(FreeKey *k, int32_t len, int32_t state, int32_t node, int32_t text)
{
	const Lex *lex = k->alt->lex;
	bool left[256] = {false};
	bool taken;

	if (++k->visits > 256 || len > MAX_FREE / 2)
		return;
	if (lex->tag[state] >= 0)
	{
		int32_t cost = finish_key(k, len, state, node, text, &taken);

		if (!taken && cost < k->best)
			k->best = cost;
	}
	for (int byte = 0; byte < 256; byte++)
	{
		int32_t next = lex_step(lex, state, (unsigned char) byte);
		int32_t below = node >= 0 ? dsv3_trie_child(k->alt, node, (unsigned char) byte) : -1;
		int32_t used = next < 0 ? -1 : dsv3_machine_used_text(k->g, k->item->d, text, (unsigned char) byte);

		if (next < 0)
			continue;
		k->text[len] = (unsigned char) byte;
		if (below >= 0 || used >= 0)
			free_key(k, len + 1, next, below, used);
		else if (!left[lex->cls[byte]])
		{
			int32_t cost = finish_key(k, len + 1, next, -1, -1, &taken);

			left[lex->cls[byte]] = true;
			if (cost < k->best)
				k->best = cost;
		}
	}
}

static int32_t
extra_key_cost(Dsv3Grammar *g, const Alt *alt, const Item *item)
{
	FreeKey k = {.g = g, .alt = alt, .item = item, .best = COST_INF};
	bool taken;
	int32_t cost = finish_key(&k, 0, item->f, item->e, item->g, &taken);

	if (!taken)
		return cost;
	free_key(&k, 0, item->f, item->e, item->g);
	return k.best;
}

int32_t
dsv3_machine_key_bound(Dsv3Grammar *g, const Item *item)
{
	const Alt *alt = g->alts[item->alt];
	int32_t value = 0;

	if (alt->lex->maxdist > MAX_FREE - 2)
		return COST_INF;
	for (int32_t i = 0; i < alt->nregions; i++)
		if (g->nodes[alt->regions[i]].cost > value)
			value = g->nodes[alt->regions[i]].cost;
	/* As in finish_key: at worst a token for each byte to the nearest end, the quote, the colon and the space after it. */
	value = add_cost(value, alt->lex->maxdist + 2 + (g->options.whitespace == DSV3_WHITESPACE_SPACED));
	value = add_cost(value, dsv3_object_rest(g->nodes, alt, alt->nprops, item->b + 1, item->c + 1));
	return add_cost(value, dsv3_machine_cost(g, item->parent));
}

/* From inside a key, `depth` bytes of it written, or from before it (`lead` is then what has to come first): the cheapest
 * of the first few declared keys that may follow, or an extra key. */
static int32_t
key_cost(Dsv3Grammar *g, const Alt *alt, const Item *item, int32_t depth, const char *lead)
{
	int32_t best = COST_INF;
	bool spaced = g->options.whitespace == DSV3_WHITESPACE_SPACED;
	int32_t last = alt->next_required[item->a] < alt->nprops ? alt->next_required[item->a] : alt->nprops - 1;
	int32_t tried = 0;

	for (int32_t p = item->a; item->e >= 0 && p <= last && tried < 64; p++)
	{
		const KeyNode *k = &alt->trie[item->e];
		char small[512];
		size_t len;
		size_t nlead = strlen(lead);
		int32_t cost;

		if (alt->props[p].slot < k->lo || alt->props[p].slot >= k->hi ||
			!dsv3_object_key_ok(alt, p, item->a, item->b, item->c))
			continue;
		tried++;
		len = (size_t) (alt->props[p].keylen - depth);
		if (len + 5 > sizeof(small))
			cost = (int32_t) len + 5;
		else
		{
			memcpy(small, lead, nlead);
			memcpy(small + nlead, alt->props[p].key + depth, len);
			len += nlead;
			small[len++] = '"';
			small[len++] = ':';
			if (spaced)
				small[len++] = ' ';
			cost = text_cost(g, small, len);
		}
		cost = add_cost(cost, g->nodes[alt->props[p].node].cost);
		cost = add_cost(cost, dsv3_object_rest(g->nodes, alt, p + 1, item->b + 1, item->c));
		if (cost < best)
			best = cost;
	}
	if (item->f >= 0)
	{
		int32_t cost = add_cost(extra_key_cost(g, alt, item), (int32_t) strlen(lead));

		if (cost < best)
			best = cost;
	}
	return best;
}

static int32_t
trie_depth(const Alt *alt, int32_t node)
{
	/* Any key below the node tells the depth: walk it down until the node is met. */
	int32_t at = 0;
	int32_t depth = 0;
	const Prop *prop;

	if (node <= 0)
		return 0;
	prop = &alt->props[alt->sorted[alt->trie[node].lo]];
	while (at != node)
	{
		int32_t child = alt->trie[at].child;

		while (alt->trie[child].byte != (unsigned char) prop->key[depth])
			child = alt->trie[child].sibling;
		at = child;
		depth++;
	}
	return depth;
}

/* Before a key. */
static int32_t
member_cost(Dsv3Grammar *g, const Alt *alt, const Item *item, const char *lead)
{
	Item key = *item;

	key.e = alt->nprops > 0 ? 0 : -1;
	key.f = dsv3_object_extra_ok(alt, key.a, key.b, key.c) ? 0 : -1;
	key.g = 0;
	return key_cost(g, alt, &key, 0, lead);
}

static int32_t
item_cost(Dsv3Grammar *g, const Item *item)
{
	const Alt *alt = item->alt >= 0 && g->nalts > 0 ? g->alts[item->alt] : &dsv3_no_alt;
	int32_t counts[3] = {item->c & 1023, item->c >> 10 & 1023, item->c >> 20 & 1023};
	bool spaced = g->options.whitespace == DSV3_WHITESPACE_SPACED;

	switch (item->phase)
	{
		case PH_END:
			return 0;
		case PH_START:
			return alt->cost + (item->a == 2 && item->b == 0);
		case PH_WORD:
			return dsv3_vocab_lex_cost(g->vocab, alt->lex, item->a, 0);
		case PH_STR:
			return dsv3_string_cost(g->vocab, alt, item->a, item->b);
		case PH_ARR_OPEN:
			return 1;
		case PH_ARR_AFTER:
			return item->b != 0 ? 1 : dsv3_array_rest(g->nodes, alt, item->a, counts);
		case PH_OBJ_OPEN:
			return dsv3_object_open_rest(g->nodes, alt);
		case PH_OBJ_KEY:
			return key_cost(g, alt, item, trie_depth(alt, item->e), "");
		case PH_OBJ_COLON:
			return add_cost(
				spaced ? text_cost(g, ": ", 2) : 1,
				add_cost(g->nodes[item->f].cost, dsv3_object_rest(g->nodes, alt, item->a, item->b, item->c)));
		case PH_OBJ_AFTER:
			return item->e != 0 ? 1 : dsv3_object_rest(g->nodes, alt, item->a, item->b, item->c);
		case PH_OBJ_COMMA:
			return member_cost(g, alt, item, spaced && item->e == 0 ? " \"" : "\"");
		case PH_WHOLE:
			return dsv3_vocab_lex_cost(g->vocab, (Lex *) (uintptr_t) g->whole, item->a, 0);
		default:
			return dsv3_ebnf_item_cost(g, item);
	}
}

int32_t
dsv3_machine_cost(Dsv3Grammar *g, int32_t id)
{
	int32_t best = COST_INF;

	if (g->configs[id].cost >= 0)
		return g->configs[id].cost;
	if (g->configs[id].rec != 0 && dsv3_machine_clashes(g, id))
	{
		/* The nearest end may be an element that is there already: look at every byte. The text only grows, and leaves
		 * the earlier elements at the latest where they end. */
		for (int b = 0; b < 256; b++)
		{
			int32_t next = dsv3_machine_step(g, id, (unsigned char) b);
			int32_t cost = next < 0 ? COST_INF : add_cost(1, dsv3_machine_cost(g, next));

			if (cost < best)
				best = cost;
		}
		g->configs[id].cost = best;
		return best;
	}
	for (int32_t i = 0; i < g->configs[id].nitems; i++)
	{
		const Item *item = &g->configs[id].items[i];
		int32_t cost = item_cost(g, item);

		/* The cheapest value may be there already, see array_rest. */
		if (item->phase == PH_START && dsv3_machine_next_element(g, id))
			cost = add_cost(cost, dsv3_element_surplus(g->alts[item->alt]));

		if (item->phase != PH_END && item->phase != PH_WHOLE && item->phase != PH_RULE)
			cost = add_cost(cost, dsv3_machine_cost(g, item->parent));
		if (cost < best)
			best = cost;
	}
	g->configs[id].cost = best;
	return best;
}

/* ---- how many completions ---- */

static int32_t
mul_card(int64_t a, int64_t b)
{
	int64_t p = a * b;

	return p > LEX_CARD_MAX ? LEX_CARD_MAX : (int32_t) p;
}

static int32_t
required_card(Dsv3Grammar *g, const Alt *alt, int32_t pos)
{
	int32_t card = 1;

	for (int32_t p = pos; p < alt->nprops && card < LEX_CARD_MAX; p++)
		if (alt->props[p].required)
			card = mul_card(card, g->nodes[alt->props[p].node].card);
	return card;
}

/* Ways to go on in an object: the best of the next members, and closing it here. */
static int32_t
members_card(Dsv3Grammar *g, const Alt *alt, const Item *item)
{
	bool in_key = item->phase == PH_OBJ_KEY;
	int32_t best = 0;
	int32_t last = alt->next_required[item->a] < alt->nprops ? alt->next_required[item->a] : alt->nprops - 1;
	bool may_close = (item->phase == PH_OBJ_OPEN || item->phase == PH_OBJ_AFTER) &&
					 dsv3_object_may_close(alt, item->a, item->b, item->c);

	if (in_key ? item->f >= 0 : dsv3_object_extra_ok(alt, item->a, item->b, item->c))
		best = alt->lex->card[in_key ? item->f : 0] / 2 + 1;
	for (int32_t p = item->a; p <= last && best < LEX_CARD_MAX; p++)
	{
		int32_t card;

		if (!dsv3_object_key_ok(alt, p, item->a, item->b, item->c) ||
			(in_key && (item->e < 0 || alt->props[p].slot < alt->trie[item->e].lo ||
						alt->props[p].slot >= alt->trie[item->e].hi)))
			continue;
		card = mul_card(g->nodes[alt->props[p].node].card, required_card(g, alt, p + 1));
		if (card > best)
			best = card;
	}
	if (item->phase == PH_OBJ_AFTER && item->e != 0)
		return 1;
	return best + may_close > LEX_CARD_MAX ? LEX_CARD_MAX : best + may_close;
}

static int32_t
item_card(Dsv3Grammar *g, const Item *item)
{
	const Alt *alt = item->alt >= 0 ? g->alts[item->alt] : &dsv3_no_alt;

	switch (item->phase)
	{
		case PH_START:
			return alt->card;
		case PH_WORD:
			return alt->lex->card[item->a];
		case PH_STR:
			return dsv3_string_card(alt, item->a, item->b);
		case PH_ARR_OPEN:
			return 1;
		case PH_ARR_AFTER:
		{
			int32_t node = dsv3_array_node(alt, item->a, 0);

			if (alt->ncontains > 0 || item->b != 0 || (alt->amax >= 0 && item->a >= alt->amax) || node < 0)
				return 1;
			return item->a < alt->amin ? (alt->unique ? 1 : g->nodes[node].card)
									   : (alt->unique ? 1 : g->nodes[node].card + 1);
		}
		case PH_OBJ_COLON:
			return mul_card(g->nodes[item->f].card, required_card(g, alt, item->a));
		case PH_OBJ_OPEN:
		case PH_OBJ_KEY:
		case PH_OBJ_AFTER:
		case PH_OBJ_COMMA:
			return members_card(g, alt, item);
		default:
			return 1;
	}
}

int32_t
dsv3_machine_card(Dsv3Grammar *g, const Item *item, int32_t level)
{
	int32_t card = item_card(g, item);
	const Config *up = &g->configs[item->parent];
	int32_t best = 1;

	if (card >= LEX_CARD_MAX || up->level <= level)
		return card;
	for (int32_t i = 0; i < up->nitems; i++)
	{
		int32_t c = dsv3_machine_card(g, &up->items[i], level);

		if (c > best)
			best = c;
	}
	return mul_card(card, best);
}
