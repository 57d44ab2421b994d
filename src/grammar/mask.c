/*
 * mask.c
 *	  Masks (mask.h).
 *
 * A token is either swallowed whole by the lexeme the text stands in, or it crosses the lexeme's end. The first kind is
 * the large one, and depends on nothing but the lexeme's state: it is computed once by walking the token trie with the
 * lexeme's automaton, kept with the lexeme, and shared by all grammars of the vocabulary. With a length bound a token is
 * in when its need (its code points and those of the shortest end after it) fits in the room left; tokens with a need of
 * more than sixteen are so few that they are taken out one by one, and for less room there is a mask for each room.
 *
 * The second kind is small. In a string it ends in a quote inside the token: each such token has a head, which the
 * lexeme checks once per state, and a tail, of which there are few different ones; which tails are allowed depends on the
 * frames only, and is found by walking the tails once per config. Numbers and literals record where in the trie they
 * can end. Everything else (brackets, keys, white space) is walked with the machine itself.
 *
 * Masks of whole configs are remembered too, so the second token inside the same string costs a copy.
 */
#include "grammar/mask.h"

#include <stdlib.h>
#include <string.h>

#define ROOMS          16
#define SPARSE_MAX     1500
#define LEX_MASK_LIMIT ((size_t) 160 * 1024 * 1024)

typedef struct Boundary
{
	int32_t token;
	int32_t length; /* code points of the head, as counted from the state */
	int16_t tail;
	int16_t head; /* bytes of the head */
	int32_t tag;  /* of the accepting state the head leads to */
} Boundary;

typedef struct LexMask
{
	uint64_t *bits; /* NULL: sparse */
	int32_t *list;
	int32_t count;
	int32_t max_need;
	uint8_t *need;  /* [size] 0: not inside; else need + 1, at most 255; NULL until a bound asks */
	int32_t *longs; /* tokens with a need of more than ROOMS */
	int32_t nlongs;
	uint64_t *room[ROOMS + 1];
	Boundary *bounds;
	int32_t nbounds;
	bool bounds_done;
	int32_t *cross; /* trie nodes where the lexeme had accepted before and does not go on */
	int32_t ncross;
} LexMask;

struct MaskEntry
{
	int32_t count; /* -1: not a mask of tokens, only tails */
	uint64_t *bits;
	int32_t *list;
	uint64_t *tails; /* which tails after a quote are allowed from this config */
};

typedef struct Walk
{
	int32_t states[VOCAB_MAX_TOKEN + 2];
} Walk;

static inline void
set_bit(uint64_t *words, int32_t token)
{
	words[token >> 6] |= UINT64_C(1) << (token & 63);
}

static void
set_token(const Dsv3TokenTable *vocab, uint64_t *words, int32_t token)
{
	for (; token >= 0; token = vocab->same[token])
		set_bit(words, token);
}

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

/* ---- masks of lexeme states ---- */

static void
lex_mask_free(Dsv3TokenTable *vocab, LexMask *m)
{
	if (m == NULL)
		return;
	(void) vocab;
	free(m->bits);
	free(m->list);
	free(m->need);
	free(m->longs);
	free(m->bounds);
	free(m->cross);
	for (int i = 0; i <= ROOMS; i++)
		free(m->room[i]);
	free(m);
}

void
dsv3_lex_masks_free(Dsv3TokenTable *vocab, Lex *lex)
{
	if (lex->masks == NULL)
		return;
	for (int32_t s = 0; s < lex->n; s++)
		lex_mask_free(vocab, (LexMask *) lex->masks[s]);
	free(lex->masks);
	lex->masks = NULL;
}

/* Room for more masks: when all together are too large, those of the shared lexemes are dropped and made again. */
static void
limit_masks(Dsv3TokenTable *vocab, const Lex *in_use)
{
	if (vocab->mask_bytes < LEX_MASK_LIMIT)
		return;
	for (Lex *lex = vocab->cache; lex != NULL; lex = lex->next_cached)
		if (lex != in_use)
			dsv3_lex_masks_free(vocab, lex);
	vocab->mask_bytes = 0;
}

/* The handler gives the vocabulary's lock back. */
static void __attribute__((noreturn)) no_memory(Dsv3Grammar *g)
{
	longjmp(g->out, GR_OUT_MEMORY);
}

static void *
need_memory(Dsv3Grammar *g, void *p)
{
	if (p == NULL)
		no_memory(g);
	return p;
}

/* Walk the whole trie with a lexeme from a state. Fills bits, and need where it is wanted. */
static void
walk_lex(const Dsv3TokenTable *vocab, const Lex *lex, int32_t state, uint64_t *bits, uint8_t *need,
		 IntVec *cross)
{
	const VocabNode *nodes = vocab->all.nodes;
	int32_t n = vocab->all.n;
	int32_t states[VOCAB_MAX_TOKEN + 2];
	int32_t length[VOCAB_MAX_TOKEN + 2];
	int32_t depth;

	states[0] = state;
	length[0] = 0;
	for (int32_t i = 0; i < n;)
	{
		int32_t from;
		int32_t s;

		depth = nodes[i].depth;
		from = states[depth - 1];
		s = lex->rows[(size_t) from * (size_t) lex->ncls + lex->cls[nodes[i].byte]];
		if (s < 0)
		{
			if (cross->cap > 0 && lex->tag[from] >= 0 && depth > 1 && cross->n < cross->cap)
				cross->v[cross->n++] = i;
			i = nodes[i].skip;
			continue;
		}
		states[depth] = s;
		if (need != NULL)
			length[depth] = length[depth - 1] + (lex->mid[from] == 0);
		if (nodes[i].token >= 0)
		{
			int32_t t = nodes[i].token;

			bits[t >> 6] |= UINT64_C(1) << (t & 63);
			for (t = vocab->same[t]; t >= 0; t = vocab->same[t])
				set_bit(bits, t);
			if (need != NULL)
			{
				int32_t want = length[depth] + lex->minlen[s] + 1;

				for (t = nodes[i].token; t >= 0; t = vocab->same[t])
					need[t] = (uint8_t) (want > 255 ? 255 : want);
			}
		}
		i++;
	}
}

static LexMask *
lex_mask(Dsv3Grammar *g, Lex *lex, int32_t state, bool with_need)
{
	Dsv3TokenTable *vocab = g->vocab;
	LexMask *m;
	uint64_t *bits;
	IntVec cross = {NULL, 0, 0};
	bool words = lex->mid == NULL;

	/* A text lexeme that never refuses is "any text": one mask for all of them. */
	if (lex->open && !words && vocab->any_text != NULL && lex != vocab->any_text)
		for (int32_t s = 0; s < vocab->any_text->n; s++)
			if (vocab->any_text->mid[s] == lex->mid[state])
				return lex_mask(g, vocab->any_text, s, false);
	limit_masks(vocab, lex);
	if (lex->masks == NULL)
		lex->masks = need_memory(g, calloc((size_t) lex->n, sizeof(LexMask *)));
	if (lex->masks[state] != NULL)
		return (LexMask *) lex->masks[state];
	m = need_memory(g, calloc(1, sizeof(LexMask)));
	bits = calloc((size_t) vocab->words, sizeof(uint64_t));
	if (words)
	{
		cross.cap = vocab->all.n < 20000 ? vocab->all.n + 1 : 20000;
		cross.v = malloc((size_t) cross.cap * sizeof(int32_t));
	}
	if (with_need)
		m->need = calloc((size_t) vocab->size, 1);
	if (bits == NULL || (words && cross.v == NULL) || (with_need && m->need == NULL))
	{
		free(m->need);
		free(m);
		free(bits);
		free(cross.v);
		no_memory(g);
	}
	walk_lex(vocab, lex, state, bits, m->need, &cross);
	m->count = dsv3_mask_count(bits, vocab->words);
	m->max_need = -1;
	if (cross.n > 0)
	{
		m->cross = malloc((size_t) cross.n * sizeof(int32_t));
		if (m->cross != NULL)
			memcpy(m->cross, cross.v, (size_t) cross.n * sizeof(int32_t));
	}
	m->ncross = cross.n;
	free(cross.v);
	if (m->count <= SPARSE_MAX)
	{
		m->list = malloc(((size_t) m->count + 1) * sizeof(int32_t));
		if (m->list != NULL)
		{
			int32_t n = 0;

			for (int32_t w = 0; w < vocab->words; w++)
				for (uint64_t b = bits[w]; b != 0; b &= b - 1)
					m->list[n++] = w * 64 + __builtin_ctzll(b);
			free(bits);
			bits = NULL;
		}
	}
	m->bits = bits;
	vocab->mask_bytes += (bits != NULL ? (size_t) vocab->words * 8 : (size_t) m->count * 4) + sizeof(LexMask);
	if (m->cross == NULL && m->ncross > 0)
	{
		lex_mask_free(vocab, m);
		no_memory(g);
	}
	lex->masks[state] = (struct LexMask *) m;
	return m;
}

static void
or_words(uint64_t *out, const uint64_t *in, int32_t n)
{
	for (int32_t i = 0; i < n; i++)
		out[i] |= in[i];
}

static void
or_mask(const Dsv3TokenTable *vocab, uint64_t *out, const LexMask *m)
{
	if (m->bits != NULL)
		or_words(out, m->bits, vocab->words);
	else
		for (int32_t i = 0; i < m->count; i++)
			set_bit(out, m->list[i]);
}

/* The needs of the tokens inside, once a length bound asks for them. The lexeme's own, never the shared mask. */
static LexMask *
bounded_mask(Dsv3Grammar *g, Lex *lex, int32_t state)
{
	Dsv3TokenTable *vocab = g->vocab;
	LexMask *m;
	bool open = lex->open;
	IntVec cross = {NULL, 0, 0};
	uint64_t *bits;

	lex->open = false;
	m = lex_mask(g, lex, state, true);
	lex->open = open;
	if (m->need == NULL)
	{
		/* The mask was made when nobody asked; its tokens once more, with their needs. */
		bits = need_memory(g, calloc((size_t) vocab->words, sizeof(uint64_t)));
		m->need = calloc((size_t) vocab->size, 1);
		if (m->need != NULL)
			walk_lex(vocab, lex, state, bits, m->need, &cross);
		free(bits);
		if (m->need == NULL)
			no_memory(g);
	}
	if (m->longs != NULL)
		return m;
	m->longs = need_memory(g, malloc(((size_t) m->count + 1) * sizeof(int32_t)));
	m->nlongs = 0;
	for (int32_t t = 0; t < vocab->size; t++)
		if (m->need[t] != 0 && m->need[t] - 1 > m->max_need)
			m->max_need = m->need[t] - 1;
	for (int32_t t = 0; t < vocab->size && m->max_need > ROOMS; t++)
		if (m->need[t] > ROOMS + 1)
			m->longs[m->nlongs++] = t;
	vocab->mask_bytes += (size_t) vocab->size + (size_t) m->nlongs * 4;
	return m;
}

/* The tokens inside that leave enough room: need <= room. */
static void
or_bounded(Dsv3Grammar *g, uint64_t *out, Lex *lex, int32_t state, int32_t room)
{
	Dsv3TokenTable *vocab = g->vocab;
	LexMask *m;

	if (room >= vocab->longest + lex->maxdist)
	{
		/* No token is that long. */
		or_mask(vocab, out, lex_mask(g, lex, state, false));
		return;
	}
	m = bounded_mask(g, lex, state);
	if (room >= m->max_need)
	{
		or_mask(vocab, out, m);
		return;
	}
	if (m->bits == NULL)
	{
		for (int32_t i = 0; i < m->count; i++)
			if (m->need[m->list[i]] - 1 <= room)
				set_bit(out, m->list[i]);
		return;
	}
	if (room <= ROOMS)
	{
		if (m->room[room] == NULL)
		{
			uint64_t *bits = need_memory(g, calloc((size_t) vocab->words, sizeof(uint64_t)));

			for (int32_t t = 0; t < vocab->size; t++)
				if (m->need[t] != 0 && m->need[t] - 1 <= room)
					set_bit(bits, t);
			m->room[room] = bits;
			vocab->mask_bytes += (size_t) vocab->words * 8;
		}
		or_words(out, m->room[room], vocab->words);
		return;
	}
	/* All but the few that are too long; what other items have allowed already must stay. */
	{
		const int32_t *longs = m->longs;
		bool before[4096];
		int32_t n = m->nlongs < 4096 ? m->nlongs : 0;

		if (m->nlongs > 4096)
		{
			for (int32_t t = 0; t < vocab->size; t++)
				if (m->need[t] != 0 && m->need[t] - 1 <= room)
					set_bit(out, t);
			return;
		}
		for (int32_t i = 0; i < n; i++)
			before[i] = (out[longs[i] >> 6] >> (longs[i] & 63) & 1) != 0;
		or_words(out, m->bits, vocab->words);
		for (int32_t i = 0; i < n; i++)
			if (!before[i] && m->need[longs[i]] - 1 > room)
				out[longs[i] >> 6] &= ~(UINT64_C(1) << (longs[i] & 63));
	}
}

/* Tokens whose head ends the text of a string lexeme before a quote. */
static LexMask *
boundary_mask(Dsv3Grammar *g, Lex *lex, int32_t state)
{
	Dsv3TokenTable *vocab = g->vocab;
	bool open = lex->open;
	LexMask *m;
	int32_t n = 0;

	lex->open = false;
	if (lex->masks != NULL && lex->masks[state] != NULL && ((LexMask *) lex->masks[state])->bounds_done)
	{
		lex->open = open;
		return (LexMask *) lex->masks[state];
	}
	if (open)
	{
		/* The inside comes from the shared mask; only the boundary belongs to this lexeme. */
		limit_masks(vocab, lex);
		if (lex->masks == NULL)
			lex->masks = need_memory(g, calloc((size_t) lex->n, sizeof(LexMask *)));
		if (lex->masks[state] == NULL)
			m = NULL;
		else
			m = (LexMask *) lex->masks[state];
		if (m == NULL)
			m = lex_mask(g, lex, state, false);
	}
	else
		m = lex_mask(g, lex, state, false);
	lex->open = open;
	m->bounds = need_memory(g, malloc(((size_t) vocab->nquotes + 1) * sizeof(Boundary)));
	for (int32_t i = 0; i < vocab->nquotes; i++)
	{
		const QuoteToken *q = &vocab->quotes[i];
		const char *bytes = vocab->bytes + vocab->offset[q->token];
		int32_t s = state;
		int32_t length = 0;

		for (int32_t k = 0; k < q->head && s >= 0; k++)
		{
			length += lex->mid[s] == 0;
			s = lex_step(lex, s, (unsigned char) bytes[k]);
		}
		if (s < 0 || lex->tag[s] < 0)
			continue;
		m->bounds[n].token = q->token;
		m->bounds[n].tail = q->tail;
		m->bounds[n].head = (int16_t) q->head;
		m->bounds[n].tag = lex->tag[s];
		m->bounds[n++].length = length;
	}
	m->nbounds = n;
	m->bounds_done = true;
	vocab->mask_bytes += (size_t) n * sizeof(Boundary);
	return m;
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

static MaskEntry *
entry_of(Dsv3Grammar *g, int32_t config)
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
	MaskEntry *e = entry_of(g, config);

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
has_tail(const uint64_t *tails, int32_t tail)
{
	return (tails[tail >> 6] >> (tail & 63) & 1) != 0;
}

static bool
tail_is_long(const Dsv3TokenTable *vocab, int32_t tail)
{
	return vocab->tail_quotes[tail] >= 2;
}

/* Run the bytes of a token; does the machine take them all? */
static bool
takes_token(Dsv3Grammar *g, int32_t config, int32_t token)
{
	const Dsv3TokenTable *vocab = g->vocab;

	for (uint32_t k = vocab->offset[token]; k < vocab->offset[token + 1] && config >= 0; k++)
		config = dsv3_machine_step(g, config, (unsigned char) vocab->bytes[k]);
	return config >= 0;
}

/* ---- the kinds of items ---- */

static void
mask_string(Dsv3Grammar *g, const Item *item, int32_t level, uint64_t *words)
{
	Item only = *item;
	const Alt *alt = g->alts[item->alt];
	Lex *lex = alt->lex;
	LexMask *m;
	const uint64_t *tails;

	if (alt->smax >= 0)
		or_bounded(g, words, lex, item->a, alt->smax - item->b);
	else
		or_mask(g->vocab, words, lex_mask(g, lex, item->a, false));
	if (lex->mid[item->a] == LEX_MID_ESCAPE)
	{
		/* The next quote belongs to the escape. */
		walk_machine(g, &g->vocab->quoted, 0, g->vocab->quoted.n, 0,
					 dsv3_machine_config(g, &only, 1, level, 0), words, true);
		return;
	}
	/* After the quote the parent's items go on, and they are a config already. */
	tails = tails_of(g, item->parent);
	m = boundary_mask(g, lex, item->a);
	for (int32_t i = 0; i < m->nbounds; i++)
	{
		int32_t length = item->b + m->bounds[i].length;

		if (length >= alt->smin && (alt->smax < 0 || length <= alt->smax) &&
			has_tail(tails, m->bounds[i].tail))
			set_token(g->vocab, words, m->bounds[i].token);
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
	{
		node = alt->trie[node].child;
		while (node >= 0 && alt->trie[node].byte != (unsigned char) head[k])
			node = alt->trie[node].sibling;
	}
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
	LexMask *m = lex_mask(g, lex, item->f, false);
	Item only = *item;
	int32_t self;
	int32_t after = -1;
	int32_t after_tag = -1;

	or_mask(g->vocab, words, m);
	if (lex->mid[item->f] == LEX_MID_ESCAPE)
	{
		walk_machine(g, &g->vocab->quoted, 0, g->vocab->quoted.n, 0,
					 dsv3_machine_config(g, &only, 1, config->level, config->rec), words, true);
		return;
	}
	m = boundary_mask(g, lex, item->f);
	self = dsv3_machine_config(g, &only, 1, config->level, config->rec);
	for (int32_t i = 0; i < m->nbounds; i++)
	{
		const Boundary *b = &m->bounds[i];

		/* A tail that goes as far as another key depends on this one; such tokens are run through the machine. */
		if (tail_is_long(g->vocab, b->tail))
		{
			if (takes_token(g, self, b->token))
				set_token(g->vocab, words, b->token);
			continue;
		}
		if (!has_tail(tails_after_key(g, config, item, b->tag, &after, &after_tag), b->tail) ||
			key_is_taken(g, item, g->vocab->bytes + g->vocab->offset[b->token], b->head))
			continue;
		set_token(g->vocab, words, b->token);
	}
}

static void
mask_word(Dsv3Grammar *g, const Item *item, int32_t state, uint64_t *words)
{
	Lex *lex = g->alts[item->alt]->lex;
	LexMask *m = lex_mask(g, lex, state, false);
	const VocabNode *nodes = g->vocab->all.nodes;

	or_mask(g->vocab, words, m);
	for (int32_t i = 0; i < m->ncross; i++)
	{
		int32_t node = m->cross[i];

		walk_machine(g, &g->vocab->all, node, nodes[node].skip, nodes[node].depth - 1, item->parent, words,
					 true);
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
	Item few[32];
	Item *walked = few;
	int32_t n = 0;
	const VocabNode *nodes = g->vocab->all.nodes;

	if (config.nitems > 32)
		walked = dsv3_gr_arena_alloc(&g->cache, (size_t) config.nitems * sizeof(Item));
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
				if (item->f >= 0 && alt->lex->card[item->f] >= LEX_CARD_MAX)
				{
					mask_extra_key(g, &config, item, words);
					if (item->e >= 0 && dsv3_trie_alive(alt, item->e, item->a, item->b, item->c))
					{
						walked[n] = *item;
						walked[n].f = -1;
						walked[n++].g = 0;
					}
				}
				else
					walked[n++] = *item;
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
				or_mask(g->vocab, words, lex_mask(g, (Lex *) (uintptr_t) g->whole, item->a, false));
				break;
			default:
				walked[n++] = *item;
				break;
		}
	}
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
				or_bounded(g, words, alt->lex, item->a, alt->smax - item->b);
			else
				or_mask(g->vocab, words, lex_mask(g, alt->lex, item->a, false));
		}
		else if (item->phase == PH_OBJ_KEY && item->f >= 0 && alt->lex->card[item->f] >= LEX_CARD_MAX)
		{
			strings = true;
			or_mask(g->vocab, words, lex_mask(g, alt->lex, item->f, false));
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
			unsigned char bytes[VOCAB_MAX_TOKEN + 1];
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
		e = entry_of(g, id);
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

int32_t
dsv3_mask_reference(Dsv3Grammar *g, int32_t config, uint64_t *words)
{
	const Dsv3TokenTable *vocab = g->vocab;

	memset(words, 0, (size_t) vocab->words * sizeof(uint64_t));
	for (int32_t t = 0; t < vocab->size; t++)
		if (vocab->offset[t + 1] > vocab->offset[t] &&
			vocab->offset[t + 1] - vocab->offset[t] <= VOCAB_MAX_TOKEN && takes_token(g, config, t))
			set_bit(words, t);
	return dsv3_mask_count(words, vocab->words);
}

/* ---- budget ---- */

int32_t
dsv3_mask_budget(Dsv3Grammar *g, int32_t id, int32_t left, uint64_t *words, bool *narrowed)
{
	const Dsv3TokenTable *vocab = g->vocab;
	const VocabNode *nodes = vocab->all.nodes;
	int32_t states[VOCAB_MAX_TOKEN + 2];
	int32_t count = dsv3_mask_compute(g, id, words);
	int32_t best = COST_INF;
	int32_t dropped = 0;
	/* A token moves the end away by a bounded amount; far from the limit nothing has to be looked at. */
	int32_t cost = dsv3_machine_cost(g, id);

	*narrowed = false;
	if (left - cost > g->max_rise)
		return count;
	for (int round = 0; round < 2; round++)
	{
		int32_t limit = round == 0 ? left - 1 : best;

		count = 0;
		dropped = 0;
		memset(words, 0, (size_t) vocab->words * sizeof(uint64_t));
		states[0] = id;
		for (int32_t i = 0; i < vocab->all.n;)
		{
			int32_t s = dsv3_machine_step(g, states[nodes[i].depth - 1], nodes[i].byte);

			if (s < 0)
			{
				i = nodes[i].skip;
				continue;
			}
			states[nodes[i].depth] = s;
			if (nodes[i].token >= 0)
			{
				int32_t after = dsv3_machine_cost(g, s);

				if (after < best)
					best = after;
				for (int32_t t = nodes[i].token; t >= 0; t = vocab->same[t])
					if (after <= limit)
					{
						set_bit(words, t);
						count++;
					}
					else
						dropped++;
			}
			i++;
		}
		/* The count of what is left is kept by its last token; where the answer may end, ending is one way to keep it. */
		if (count > 0 || dsv3_machine_complete(g, id))
			break;
	}
	*narrowed = dropped > 0;
	return count;
}
