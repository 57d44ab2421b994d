/*
 * budget.c
 *	  Masks under a budget: the tokens after which the answer can still be finished in time (mask.h).
 *
 * Far from the limit every token of the mask fits, since a token moves the end away by a bounded amount only. Nearer, the
 * inside of a string, and of a key that the schema leaves free, has bounds of its own, which tell it of the whole mask. Where
 * that fails too the tokens are tried.
 *
 * Inside a free key each text is a config of its own, because a key must not come twice, and in an array whose elements must
 * differ so is each text of an element. Trying a vocabulary there would fill the caches, so the tokens are tried with one
 * text for all that begin no used key and no earlier element (other_text).
 */
#include "grammar/lexmask.h"
#include "grammar/mask.h"

#include <string.h>

/* The most tokens to the end after any tail of a token that the machine takes from the config, or after none. */
static int32_t
worst_tail(Dsv3Grammar *g, int32_t config)
{
	const VocabTrie *trie = &g->vocab->tail_trie;
	MaskEntry *e = dsv3_mask_entry(g, config);
	int32_t states[VOCAB_MAX_TOKEN + 2];
	int32_t worst;

	if (e->worst_tail > 0)
		return e->worst_tail - 1;
	worst = dsv3_machine_cost(g, config);
	states[0] = config;
	for (int32_t i = 0; i < trie->n;)
	{
		const VocabNode *node = &trie->nodes[i];
		int32_t s = dsv3_machine_step(g, states[node->depth - 1], node->byte);

		if (s < 0)
		{
			i = node->skip;
			continue;
		}
		states[node->depth] = s;
		if (node->token >= 0 && dsv3_machine_cost(g, s) > worst)
			worst = dsv3_machine_cost(g, s);
		i++;
	}
	e->worst_tail = worst + 1;
	return worst;
}

/*
 * A config inside strings and keys, as if no key had been used, no element been there, and its text begun none of theirs. While
 * the text of a token does not, this is as good as the real one, up to a comma after the quote, and the texts of all tokens
 * share it. The same config where texts are not remembered.
 */
static int32_t
other_text(Dsv3Grammar *g, int32_t id)
{
	Config config = g->configs[id];
	Item few[32];
	Item *items = few;
	bool remembered = config.rec != 0;

	for (int32_t i = 0; i < config.nitems; i++)
	{
		if (config.items[i].phase != PH_OBJ_KEY && config.items[i].phase != PH_STR)
			return id;
		remembered = remembered || (config.items[i].phase == PH_OBJ_KEY && config.items[i].f >= 0);
	}
	if (!remembered)
		return id;
	if (config.nitems > 32)
		items = dsv3_gr_arena_alloc(&g->cache, (size_t) config.nitems * sizeof(Item));
	for (int32_t i = 0; i < config.nitems; i++)
	{
		items[i] = config.items[i];
		if (items[i].phase == PH_OBJ_KEY && items[i].f >= 0)
		{
			items[i].d = 0;
			items[i].g = TEXT_OTHER;
		}
	}
	return dsv3_machine_config(g, items, config.nitems, config.level,
							   dsv3_machine_other_record(g, config.rec));
}

/* Inside strings and keys: does the text, with the byte, begin a used key or an earlier element, or would the quote end one? */
static bool
nears_used(const Dsv3Grammar *g, int32_t id, unsigned char byte)
{
	const Config *config = &g->configs[id];

	for (int32_t i = 0; i < config->nitems; i++)
	{
		const Item *item = &config->items[i];

		if (item->phase == PH_OBJ_KEY && item->f >= 0 &&
			(dsv3_machine_used_text(g, item->d, item->g, byte) >= 0 ||
			 (byte == '"' && dsv3_machine_used(g, item->d, item->g))))
			return true;
	}
	return dsv3_machine_nears_element(g, config->rec, byte);
}

/* Does the text itself begin a used key or an earlier element? */
static bool
is_near_used(const Dsv3Grammar *g, int32_t id)
{
	const Config *config = &g->configs[id];

	for (int32_t i = 0; i < config->nitems; i++)
		if (config->items[i].phase == PH_OBJ_KEY && config->items[i].f >= 0 &&
			dsv3_machine_begins_used(g, config->items[i].d, config->items[i].g))
			return true;
	return dsv3_machine_clashes(g, id);
}

/* Inside strings, and extra keys that can be neither used nor declared ones: loose_bound holds. */
static bool
is_loose(const Dsv3Grammar *g, int32_t id)
{
	const Config *config = &g->configs[id];

	for (int32_t i = 0; i < config->nitems; i++)
	{
		const Item *item = &config->items[i];

		if (item->phase != PH_STR &&
			(item->phase != PH_OBJ_KEY || item->f < 0 || item->e >= 0 || item->g != TEXT_OTHER))
			return false;
	}
	return !dsv3_machine_clashes(g, id);
}

/* The most tokens to the end from anywhere inside the string of an item, or its key when that is loose. */
static int32_t
loose_bound(Dsv3Grammar *g, const Item *item)
{
	const Alt *alt = g->alts[item->alt];
	int64_t inside;

	if (item->phase == PH_OBJ_KEY)
		return item->f < 0 ? 0 : dsv3_machine_key_bound(g, item);
	/* No state is farther from the quote than this (dsv3_string_cost); past the quote the parent goes on. */
	inside = (int64_t) dsv3_machine_cost(g, item->parent) + alt->lex->maxdist + 1;
	if (alt->smin > item->b)
		inside += (int64_t) (alt->smin - item->b) * 6 + 5;
	return inside > COST_INF ? COST_INF : (int32_t) inside;
}

typedef struct MaskFit
{
	int32_t count;
	int32_t dropped;
	int32_t best; /* tokens to the end after the cheapest that may follow, and the dearest */
	int32_t worst;
} MaskFit;

/*
 * Try the tokens of a trie one by one from a config: those after which the end is within `limit` go to words (NULL: none
 * does). skip_loose: not those of loose texts. Nothing is kept for each text but along used keys and earlier elements, and
 * of the few tokens that go on past a comma. Returns whether there were such.
 */
static bool
try_tokens(Dsv3Grammar *g, const VocabTrie *trie, int32_t id, bool skip_loose, int32_t limit, uint64_t *words,
		   MaskFit *fit)
{
	const Dsv3TokenTable *vocab = g->vocab;
	const VocabNode *nodes = trie->nodes;
	int32_t states[VOCAB_MAX_TOKEN + 2];
	int32_t other[VOCAB_MAX_TOKEN + 2]; /* other_text of the state; -1: not made */
	bool past_quote[VOCAB_MAX_TOKEN + 2];
	bool past_comma[VOCAB_MAX_TOKEN + 2];
	bool any_past_comma = false;
	bool shared;

	states[0] = id;
	other[0] = other_text(g, id);
	shared = other[0] != id;
	past_quote[0] = past_comma[0] = false;
	for (int32_t i = 0; i < trie->n;)
	{
		int32_t depth = nodes[i].depth;
		int32_t up = depth - 1;
		int32_t from = states[up];
		int32_t s;
		int32_t after;

		if (shared && from != other[up] && !nears_used(g, from, nodes[i].byte))
		{
			if (other[up] < 0)
				other[up] = other_text(g, from);
			from = other[up];
		}
		s = dsv3_machine_step(g, from, nodes[i].byte);
		if (s < 0 || (skip_loose && is_loose(g, s)))
		{
			i = nodes[i].skip;
			continue;
		}
		states[depth] = s;
		other[depth] = from == other[up] ? s : -1;
		past_quote[depth] = past_quote[up] || nodes[i].byte == '"';
		past_comma[depth] = shared && (past_comma[up] || (past_quote[up] && nodes[i].byte == ','));
		if (nodes[i].token < 0)
		{
			i++;
			continue;
		}
		if (past_comma[depth])
		{
			any_past_comma = true;
			s = dsv3_mask_run(g, id, nodes[i].token);
		}
		after = s < 0 ? COST_INF : dsv3_machine_cost(g, s);
		if (s >= 0)
		{
			fit->best = after < fit->best ? after : fit->best;
			fit->worst = after > fit->worst ? after : fit->worst;
		}
		for (int32_t t = nodes[i].token; t >= 0 && s >= 0 && words != NULL; t = vocab->same[t])
			if (after <= limit)
			{
				set_bit(words, t);
				fit->count++;
			}
			else
				fit->dropped++;
		i++;
	}
	return any_past_comma;
}

/*
 * Inside strings and keys whose text is remembered: a bound of the tokens to the end after any token that may follow. While
 * loose there is one for all; tokens along declared and used keys and earlier elements, and those with a quote, are few and
 * tried. Remembered where it is the same for many texts.
 */
static int32_t
worst_inside(Dsv3Grammar *g, int32_t id)
{
	int32_t plain = other_text(g, id);
	const Config config = g->configs[id];
	MaskFit fit = {.best = COST_INF};
	bool alike = !is_near_used(g, id);

	if (alike && dsv3_mask_entry(g, plain)->worst > 0)
		return dsv3_mask_entry(g, plain)->worst - 1;
	alike = !try_tokens(g, &g->vocab->all, id, true, 0, NULL, &fit) && alike;
	alike = !try_tokens(g, &g->vocab->quoted, id, false, 0, NULL, &fit) && alike;
	for (int32_t i = 0; i < config.nitems; i++)
	{
		int32_t bound = loose_bound(g, &config.items[i]);

		fit.worst = bound > fit.worst ? bound : fit.worst;
	}
	dsv3_mask_entry(g, alike ? plain : id)->worst = fit.worst + 1;
	return fit.worst;
}

/* Does every token that may follow leave an end within `limit` tokens? true: yes. Strings are told without trying tokens,
 * remembered texts with few. */
static bool
all_fit(Dsv3Grammar *g, int32_t id, int32_t limit)
{
	const MaskEntry *e = g->configs[id].mask;

	if (e != NULL && e->worst > 0)
		return e->worst - 1 <= limit;
	if (other_text(g, id) != id)
		return worst_inside(g, id) <= limit;
	for (int32_t i = 0; i < g->configs[id].nitems; i++)
	{
		const Item *item = &g->configs[id].items[i];

		if (item->phase != PH_STR || loose_bound(g, item) > limit || worst_tail(g, item->parent) > limit)
			return false;
	}
	return g->configs[id].nitems > 0;
}

int32_t
dsv3_mask_budget(Dsv3Grammar *g, int32_t id, int32_t left, uint64_t *words, bool *narrowed)
{
	MaskFit fit = {.best = COST_INF};
	int32_t count = dsv3_mask_compute(g, id, words);

	*narrowed = false;
	/* A token moves the end away by a bounded amount; far from the limit nothing has to be looked at. */
	if (left - dsv3_machine_cost(g, id) > g->max_rise || all_fit(g, id, left - 1))
		return count;
	for (int round = 0; round < 2; round++)
	{
		fit.count = fit.dropped = fit.worst = 0;
		memset(words, 0, (size_t) g->vocab->words * sizeof(uint64_t));
		try_tokens(g, &g->vocab->all, id, false, round == 0 ? left - 1 : fit.best, words, &fit);
		/* The count of what is left is kept by its last token; where the answer may end, ending is one way to keep it. */
		if (fit.count > 0 || dsv3_machine_complete(g, id))
			break;
	}
	*narrowed = fit.dropped > 0;
	dsv3_mask_entry(g, id)->worst = fit.worst + 1;
	return fit.count;
}
