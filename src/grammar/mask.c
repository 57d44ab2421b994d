/*
 * mask.c
 *	  Masks (mask.h).
 *
 * A token is either swallowed whole by the lexeme the text stands in, or it crosses the lexeme's end. The first kind is
 * the large one, and depends on nothing but the lexeme's state and the room left: lexmask.c keeps those masks.
 *
 * The second kind is small. In a string it ends in a quote inside the token: each such token has a head, which the
 * lexeme checks once per state, and a tail, of which there are few different ones; which tails are allowed depends on the
 * frames only, and is found by walking the tails once per config. Numbers and literals record where in the trie they
 * can end. Everything else (brackets, keys, white space) is walked with the machine itself.
 *
 * Masks of whole configs are remembered too, so the second token inside the same string costs a copy.
 */
#include "grammar/mask.h"

#include <string.h>

#include "grammar/lexmask.h"

#define SPARSE_MAX 1500

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("popcnt"))) static int32_t
count_fast(const uint64_t *words, int32_t n)
{
	int64_t total = 0;

	for (int32_t i = 0; i < n; i++)
		total += __builtin_popcountll(words[i]);
	return (int32_t) total;
}
#endif

int32_t
dsv3_mask_count(const uint64_t *words, int32_t n)
{
	int32_t total = 0;

#if defined(__x86_64__) && defined(__GNUC__)
	if (__builtin_cpu_supports("popcnt"))
		return count_fast(words, n);
#endif
	for (int32_t i = 0; i < n; i++)
		total += __builtin_popcountll(words[i]);
	return total;
}

/* ---- walks with the machine ---- */

/* From config, the trie nodes [from, to); base: depth of the node whose parent is at config, minus one. */
static void
walk_machine(Dsv3Grammar *g, const VocabTrie *trie, int32_t from, int32_t to, int32_t base, int32_t config,
			 uint64_t *words, bool tokens)
{
	const VocabNode *nodes = trie->nodes;
	int32_t states[VOCAB_MAX_TOKEN + 2];

	states[base] = config;
	for (int32_t i = from; i < to;)
	{
		int32_t depth = nodes[i].depth;
		int32_t s = dsv3_machine_step(g, states[depth - 1], nodes[i].byte);

		if (s < 0)
		{
			i = nodes[i].skip;
			continue;
		}
		states[depth] = s;
		if (nodes[i].token >= 0)
		{
			if (tokens)
				set_token(g->vocab, words, nodes[i].token);
			else
				set_bit(words, nodes[i].token);
		}
		i++;
	}
}

MaskEntry *
dsv3_mask_entry(Dsv3Grammar *g, int32_t config)
{
	if (g->configs[config].mask == NULL)
	{
		MaskEntry *e = dsv3_gr_arena_alloc(&g->cache, sizeof(MaskEntry));

		e->count = -1;
		g->configs[config].mask = e;
	}
	return g->configs[config].mask;
}

/* Tails that the machine takes from the config after a quote. */
static const uint64_t *
tails_of(Dsv3Grammar *g, int32_t config)
{
	MaskEntry *e = dsv3_mask_entry(g, config);

	if (e->tails == NULL)
	{
		uint64_t *tails =
			dsv3_gr_arena_alloc(&g->cache, ((size_t) g->vocab->ntails / 64 + 1) * sizeof(uint64_t));

		walk_machine(g, &g->vocab->tail_trie, 0, g->vocab->tail_trie.n, 0, config, tails, false);
		set_bit(tails, 0);
		e->tails = tails;
	}
	return e->tails;
}

static bool
tail_is_long(const Dsv3TokenTable *vocab, int32_t tail)
{
	return vocab->tail_quotes[tail] >= 2;
}

int32_t
dsv3_mask_run(Dsv3Grammar *g, int32_t config, int32_t token)
{
	const Dsv3TokenTable *vocab = g->vocab;

	for (uint32_t k = vocab->offset[token]; k < vocab->offset[token + 1] && config >= 0; k++)
		config = dsv3_machine_step(g, config, (unsigned char) vocab->bytes[k]);
	return config;
}

/* ---- the kinds of items ---- */

static void
mask_string(Dsv3Grammar *g, const Item *item, int32_t level, uint64_t *words)
{
	Item only = *item;
	const Alt *alt = g->alts[item->alt];
	Lex *lex = alt->lex;
	const Boundary *bounds;
	int32_t nbounds;
	const uint64_t *tails;

	if (alt->smax >= 0)
		dsv3_lexmask_or_room(g, words, lex, item->a, alt->smax - item->b);
	else
		dsv3_lexmask_or(g, words, lex, item->a);
	if (lex->mid[item->a] == LEX_MID_ESCAPE)
	{
		/* The next quote belongs to the escape. */
		walk_machine(g, &g->vocab->quoted, 0, g->vocab->quoted.n, 0,
					 dsv3_machine_config(g, &only, 1, level, 0), words, true);
		return;
	}
	/* After the quote the parent's items go on, and they are a config already. */
	tails = tails_of(g, item->parent);
	bounds = dsv3_lexmask_bounds(g, lex, item->a, &nbounds);
	for (int32_t i = 0; i < nbounds; i++)
	{
		int32_t length = item->b + bounds[i].length;

		if (length >= alt->smin && (alt->smax < 0 || length <= alt->smax) && has_bit(tails, bounds[i].tail))
			set_token(g->vocab, words, bounds[i].token);
	}
}

/* Is the key that `head` completes a declared one, or one that was used? */
static bool
key_is_taken(Dsv3Grammar *g, const Item *item, const char *head, int32_t len)
{
	const Alt *alt = g->alts[item->alt];
	int32_t node = item->e;
	int32_t text = item->g;

	for (int32_t k = 0; k < len && node >= 0; k++)
		node = dsv3_trie_child(alt, node, (unsigned char) head[k]);
	if (node >= 0 && alt->trie[node].prop >= 0)
		return true;
	for (int32_t k = 0; k < len && item->d != 0; k++)
	{
		int32_t key[2] = {text, (unsigned char) head[k]};

		text = dsv3_gr_interner_find(&g->texts, key, 2) + 1;
		if (text == 0)
			return false; /* no text like it has ever been seen */
	}
	for (int32_t set = item->d; set != 0; set = g->sets.keys[set - 1][1])
		if (g->sets.keys[set - 1][2] == text)
			return true;
	return false;
}

/* The tails after the quote of an extra key of a region, as if the key had not been used; see tail_is_long. */
static const uint64_t *
tails_after_key(Dsv3Grammar *g, const Config *config, const Item *item, int32_t tag, int32_t *after,
				int32_t *after_tag)
{
	const Alt *alt = g->alts[item->alt];

	if (*after < 0 || *after_tag != tag)
	{
		Item colon = *item;

		colon.phase = PH_OBJ_COLON;
		colon.a = alt->nprops;
		colon.d = colon.e = colon.g = 0;
		colon.f = alt->regions[tag];
		if (alt->pmax >= 0 || colon.b < alt->pmin)
			colon.b++;
		if (alt->max_extra >= 0 || alt->lex->card[0] < LEX_CARD_MAX || colon.c < alt->min_extra)
			colon.c++;
		*after = dsv3_machine_config(g, &colon, 1, config->level, config->rec);
		*after_tag = tag;
	}
	return tails_of(g, *after);
}

/* Tokens of an extra key: inside its lexeme, or past its quote. */
static void
mask_extra_key(Dsv3Grammar *g, const Config *config, const Item *item, uint64_t *words)
{
	const Alt *alt = g->alts[item->alt];
	Lex *lex = alt->lex;
	const Boundary *bounds;
	int32_t nbounds;
	Item only = *item;
	int32_t self;
	int32_t after = -1;
	int32_t after_tag = -1;

	dsv3_lexmask_or(g, words, lex, item->f);
	if (lex->mid[item->f] == LEX_MID_ESCAPE)
	{
		walk_machine(g, &g->vocab->quoted, 0, g->vocab->quoted.n, 0,
					 dsv3_machine_config(g, &only, 1, config->level, config->rec), words, true);
		return;
	}
	bounds = dsv3_lexmask_bounds(g, lex, item->f, &nbounds);
	self = dsv3_machine_config(g, &only, 1, config->level, config->rec);
	for (int32_t i = 0; i < nbounds; i++)
	{
		const Boundary *b = &bounds[i];

		/* A tail that goes as far as another key depends on this one; such tokens are run through the machine. */
		if (tail_is_long(g->vocab, b->tail))
		{
			if (dsv3_mask_run(g, self, b->token) >= 0)
				set_token(g->vocab, words, b->token);
			continue;
		}
		if (!has_bit(tails_after_key(g, config, item, b->tag, &after, &after_tag), b->tail) ||
			key_is_taken(g, item, g->vocab->bytes + g->vocab->offset[b->token], b->head))
			continue;
		set_token(g->vocab, words, b->token);
	}
}

static void
mask_word(Dsv3Grammar *g, const Item *item, int32_t state, uint64_t *words)
{
	Lex *lex = g->alts[item->alt]->lex;
	const VocabNode *nodes = g->vocab->all.nodes;
	int32_t n;
	const int32_t *cross = dsv3_lexmask_crossings(g, lex, state, &n);

	dsv3_lexmask_or(g, words, lex, state);
	for (int32_t i = 0; i < n; i++)
	{
		int32_t node = cross[i];

		walk_machine(g, &g->vocab->all, node, nodes[node].skip, nodes[node].depth - 1, item->parent, words,
					 true);
	}
}

/*
 * The mask of items in declared keys: the trie of tokens is walked with the tries of keys side by side. All items have read the
 * same text, so a quote ends a key for all of them; from there the machine goes on. In an object with many alternatives this
 * spares as many steps of the machine as there are bytes in all keys that may come.
 */
typedef struct KeyWalk
{
	IntVec alive; /* for each depth, pairs of an item and its place in its trie of keys */
	int32_t end[VOCAB_MAX_TOKEN + 2];
	uint64_t next[VOCAB_MAX_TOKEN + 2][4]; /* bytes that some of them may go on with */
} KeyWalk;

static void
key_walk_push(Dsv3Grammar *g, KeyWalk *walk, int32_t depth, const Alt *alt, int32_t item, int32_t node)
{
	gr_intvec_push(&g->cache, &walk->alive, item);
	gr_intvec_push(&g->cache, &walk->alive, node);
	if (alt->trie[node].prop >= 0)
		set_bit(walk->next[depth], '"');
	for (int32_t c = alt->trie[node].child; c >= 0; c = alt->trie[c].sibling)
		set_bit(walk->next[depth], alt->trie[c].byte);
}

static void
mask_keys(Dsv3Grammar *g, const Config *config, const Item *items, int32_t n, uint64_t *words)
{
	const VocabNode *nodes = g->vocab->all.nodes;
	KeyWalk walk;
	IntVec *alive = &walk.alive;
	Item *after = dsv3_gr_arena_alloc(&g->cache, (size_t) n * sizeof(Item));

	memset(alive, 0, sizeof(*alive));
	memset(walk.next[0], 0, sizeof(walk.next[0]));
	for (int32_t k = 0; k < n; k++)
		key_walk_push(g, &walk, 0, g->alts[items[k].alt], k, items[k].e);
	walk.end[0] = alive->n;
	for (int32_t i = 0; i < g->vocab->all.n;)
	{
		int32_t depth = nodes[i].depth;
		int32_t from = depth == 1 ? 0 : walk.end[depth - 2];
		int32_t to = walk.end[depth - 1];
		int32_t done = 0;

		if (!has_bit(walk.next[depth - 1], nodes[i].byte))
		{
			i = nodes[i].skip;
			continue;
		}
		alive->n = to;
		memset(walk.next[depth], 0, sizeof(walk.next[depth]));
		for (int32_t k = from; k < to; k += 2)
		{
			const Item *item = &items[alive->v[k]];
			const Alt *alt = g->alts[item->alt];
			int32_t node = alive->v[k + 1];

			if (nodes[i].byte == '"' && !alt->trie[node].mid)
			{
				if (dsv3_machine_key_done(g, item, alt->trie[node].prop, &after[done]))
					done++;
				continue;
			}
			node = dsv3_trie_child(alt, node, nodes[i].byte);
			if (node >= 0 && dsv3_trie_alive(alt, node, item->a, item->b, item->c))
				key_walk_push(g, &walk, depth, alt, alive->v[k], node);
		}
		walk.end[depth] = alive->n;
		if (done == 0 && alive->n == to)
		{
			i = nodes[i].skip;
			continue;
		}
		set_token(g->vocab, words, nodes[i].token);
		if (done > 0)
		{
			walk_machine(g, &g->vocab->all, i + 1, nodes[i].skip, depth,
						 dsv3_machine_config(g, after, done, config->level, 0), words, true);
			i = nodes[i].skip;
		}
		else
			i++;
	}
}

/* The mask of the remaining items, by walking. */
static void
mask_walk(Dsv3Grammar *g, const Config *config, Item *items, int32_t n, uint64_t *words)
{
	if (n > 0)
		walk_machine(g, &g->vocab->all, 0, g->vocab->all.n, 0,
					 dsv3_machine_config(g, items, n, config->level, config->rec), words, true);
}

static void
compute(Dsv3Grammar *g, int32_t id, uint64_t *words)
{
	Config config = g->configs[id];
	Item few[2][32];
	Item *walked = few[0];
	Item *keys = few[1];
	int32_t n = 0;
	int32_t nkeys = 0;
	const VocabNode *nodes = g->vocab->all.nodes;

	if (config.nitems > 32)
	{
		walked = dsv3_gr_arena_alloc(&g->cache, (size_t) config.nitems * sizeof(Item));
		keys = dsv3_gr_arena_alloc(&g->cache, (size_t) config.nitems * sizeof(Item));
	}
	for (int32_t i = 0; i < config.nitems; i++)
	{
		const Item *item = &config.items[i];
		const Alt *alt = item->alt >= 0 && g->nalts > 0 ? g->alts[item->alt] : &dsv3_no_alt;

		switch (item->phase)
		{
			case PH_STR:
				mask_string(g, item, config.level, words);
				break;
			case PH_OBJ_KEY:
				if (item->f >= 0 && alt->lex->card[item->f] < LEX_CARD_MAX)
				{
					walked[n++] = *item;
					break;
				}
				if (item->f >= 0)
					mask_extra_key(g, &config, item, words);
				if (item->e >= 0 && dsv3_trie_alive(alt, item->e, item->a, item->b, item->c))
				{
					keys[nkeys] = *item;
					keys[nkeys].f = -1;
					keys[nkeys++].g = 0;
				}
				break;
			case PH_WORD:
				mask_word(g, item, item->a, words);
				if (alt->lex->tag[item->a] >= 0)
					/* The value may be over: what follows is the parent's. */
					walk_machine(g, &g->vocab->all, 0, g->vocab->all.n, 0, item->parent, words, true);
				break;
			case PH_START:
				if (alt->kind == ALT_NUM || alt->kind == ALT_LIT)
				{
					if (item->a != 2 || item->b == 1)
						mask_word(g, item, 0, words);
					/* Tokens that begin with white space are walked. */
					if (item->a != 0)
						for (int32_t node = 0; node < g->vocab->all.n; node = nodes[node].skip)
							if (nodes[node].byte == ' ' || nodes[node].byte == '\n')
							{
								Item one = *item;

								walk_machine(g, &g->vocab->all, node, nodes[node].skip, 0,
											 dsv3_machine_config(g, &one, 1, config.level, config.rec), words,
											 true);
							}
				}
				else
					walked[n++] = *item;
				break;
			case PH_WHOLE:
				dsv3_lexmask_or(g, words, (Lex *) (uintptr_t) g->whole, item->a);
				break;
			default:
				walked[n++] = *item;
				break;
		}
	}
	if (nkeys > 0)
		mask_keys(g, &config, keys, nkeys, words);
	mask_walk(g, &config, walked, n, words);
}

/*
 * Inside a unique array. Where the present element still equals the beginning of an earlier one, or a token may close
 * it, only the machine knows; where neither is the case a string's inside is as free as anywhere.
 */
static void
compute_recorded(Dsv3Grammar *g, int32_t id, uint64_t *words)
{
	Config config = g->configs[id];
	Item few[32];
	Item *walked = few;
	int32_t n = 0;
	bool strings = false;

	if (config.nitems > 32)
		walked = dsv3_gr_arena_alloc(&g->cache, (size_t) config.nitems * sizeof(Item));
	for (int32_t i = 0; i < config.nitems; i++)
	{
		const Item *item = &config.items[i];
		const Alt *alt = g->alts[item->alt];

		if (item->phase == PH_STR)
		{
			strings = true;
			if (alt->smax >= 0)
				dsv3_lexmask_or_room(g, words, alt->lex, item->a, alt->smax - item->b);
			else
				dsv3_lexmask_or(g, words, alt->lex, item->a);
		}
		else if (item->phase == PH_OBJ_KEY && item->f >= 0 && alt->lex->card[item->f] >= LEX_CARD_MAX)
		{
			strings = true;
			dsv3_lexmask_or(g, words, alt->lex, item->f);
			if (item->e >= 0 && dsv3_trie_alive(alt, item->e, item->a, item->b, item->c))
			{
				walked[n] = *item;
				walked[n].f = -1;
				walked[n++].g = 0;
			}
		}
		else
			walked[n++] = *item;
	}
	mask_walk(g, &config, walked, n, words);
	if (!strings)
		return;
	walk_machine(g, &g->vocab->quoted, 0, g->vocab->quoted.n, 0, id, words, true);
	/* Correct the tokens along the earlier elements. */
	for (int32_t rec = config.rec; rec != 0; rec = g->recs.keys[rec - 1][1])
	{
		int32_t text = g->recs.keys[rec - 1][3];

		for (int32_t set = g->recs.keys[rec - 1][4]; set != 0; set = g->sets.keys[set - 1][1])
		{
			int32_t t = g->sets.keys[set - 1][2];
			unsigned char bytes[VOCAB_MAX_TOKEN + 1] = {0};
			int32_t len = 0;
			int32_t at;
			int32_t node = 0;
			int32_t end = g->vocab->all.n;
			int32_t state = id;
			const VocabNode *nodes = g->vocab->all.nodes;

			for (at = t; at > text; at = g->texts.keys[at - 1][1])
				len++;
			if (at != text)
				continue;
			for (at = t; at != text; at = g->texts.keys[at - 1][1])
				if (--len < VOCAB_MAX_TOKEN)
					bytes[len] = (unsigned char) g->texts.keys[at - 1][2];
			for (at = t; at != text; at = g->texts.keys[at - 1][1])
				len++;
			for (int32_t k = 0; k < len && k < VOCAB_MAX_TOKEN; k++)
			{
				while (node < end && nodes[node].byte != bytes[k])
					node = nodes[node].skip;
				if (node >= end)
					break;
				if (state >= 0)
					state = dsv3_machine_step(g, state, bytes[k]);
				for (int32_t tok = nodes[node].token; tok >= 0; tok = g->vocab->same[tok])
				{
					words[tok >> 6] &= ~(UINT64_C(1) << (tok & 63));
					if (state >= 0)
						set_bit(words, tok);
				}
				end = nodes[node].skip;
				node++;
			}
		}
	}
}

int32_t
dsv3_mask_compute(Dsv3Grammar *g, int32_t id, uint64_t *words)
{
	Dsv3TokenTable *vocab = g->vocab;
	MaskEntry *e = g->configs[id].mask;
	int32_t count;
	bool keep;

	if (e != NULL && e->count >= 0)
	{
		if (e->bits != NULL)
			memcpy(words, e->bits, (size_t) vocab->words * sizeof(uint64_t));
		else
		{
			memset(words, 0, (size_t) vocab->words * sizeof(uint64_t));
			for (int32_t i = 0; i < e->count; i++)
				set_bit(words, e->list[i]);
		}
		return e->count;
	}
	memset(words, 0, (size_t) vocab->words * sizeof(uint64_t));
	pthread_mutex_lock(&vocab->lock);
	g->vocab_held = true;
	dsv3_lexmask_limit(vocab);
	if (g->configs[id].rec != 0)
		compute_recorded(g, id, words);
	else
		compute(g, id, words);
	g->vocab_held = false;
	pthread_mutex_unlock(&vocab->lock);
	count = dsv3_mask_count(words, vocab->words);
	/* Large masks are kept only where the text is likely to come back to the config: not where a length is counted. */
	keep = count <= SPARSE_MAX;
	if (!keep)
	{
		const Config *config = &g->configs[id];

		keep = g->mask_bytes < g->cache_limit / 4;
		for (int32_t i = 0; i < config->nitems && keep; i++)
			keep = !(config->items[i].phase == PH_STR && config->items[i].b > 0) &&
				   !(config->items[i].phase == PH_OBJ_KEY && config->items[i].g != 0);
	}
	if (keep)
	{
		e = dsv3_mask_entry(g, id);
		e->count = count;
		if (count <= SPARSE_MAX)
		{
			int32_t n = 0;

			e->list = dsv3_gr_arena_alloc(&g->cache, ((size_t) count + 1) * sizeof(int32_t));
			for (int32_t w = 0; w < vocab->words; w++)
				for (uint64_t b = words[w]; b != 0; b &= b - 1)
					e->list[n++] = w * 64 + __builtin_ctzll(b);
			g->mask_bytes += (size_t) count * 4;
		}
		else
		{
			e->bits = dsv3_gr_arena_dup(&g->cache, words, (size_t) vocab->words * sizeof(uint64_t));
			g->mask_bytes += (size_t) vocab->words * 8;
		}
	}
	return count;
}

bool
dsv3_mask_takes(Dsv3Grammar *g, int32_t config, int32_t token)
{
	uint32_t len = g->vocab->offset[token + 1] - g->vocab->offset[token];

	return len > 0 && len <= VOCAB_MAX_TOKEN && dsv3_mask_run(g, config, token) >= 0;
}
