/*
 * lexmask.c
 *	  Masks of lexeme states (lexmask.h).
 *
 * The tokens inside are found by walking the token trie with the lexeme's automaton. Most of the trie need not be looked at:
 * where the state takes freely every kind of character below a node (freedom.h), or would refuse only after more bytes
 * than any token below has, all tokens of the subtree are in. When the first state is free in something already, the tokens
 * of those kinds are put together from masks that the vocabulary keeps, and the walk is left with the rest.
 *
 * With a length bound a token is in when its need (its code points and those of the shortest end after it) fits in the room
 * left. Tokens of more than ROOMS characters are so few that with much room they are taken out one by one; for less room
 * there is a mask for each room. The walk is the same, with "calm" in the place of "free": there the shortest end is empty.
 */
#include "grammar/lexmask.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/freedom.h"
#include "grammar/mask.h"

#define SPARSE_MAX 1500
_Static_assert(ROOMS <= FREE_CHARS, "the tokens of a room are no longer than what free and calm speak of");
#define CROSS_MAX      20000
#define LEX_MASK_LIMIT ((size_t) 160 * 1024 * 1024)

/* A mask at rest: all its words, or a list when it has few tokens. */
typedef struct Kept
{
	uint64_t *bits; /* NULL: sparse */
	int32_t *list;
	int32_t count;
	bool made;
} Kept;

struct LexMask
{
	Kept inside;
	Kept room[ROOMS + 1];
	uint8_t *long_need; /* for each of vocab->longs: 0 not inside, else its need + 1, at most 255 */
	Boundary *bounds;
	int32_t nbounds;
	int32_t *cross;
	int32_t ncross;
};
typedef struct LexMask LexMask;

static void
kept_free(Kept *kept)
{
	free(kept->bits);
	free(kept->list);
}

static void
lex_mask_free(LexMask *m)
{
	kept_free(&m->inside);
	for (int i = 0; i <= ROOMS; i++)
		kept_free(&m->room[i]);
	free(m->long_need);
	free(m->bounds);
	free(m->cross);
	free(m);
}

void
dsv3_lex_masks_free(Lex *lex)
{
	if (lex->masks == NULL)
		return;
	for (int32_t s = 0; s < lex->n; s++)
		if (lex->masks[s] != NULL)
			lex_mask_free(lex->masks[s]);
	free(lex->masks);
	lex->masks = NULL;
}

/* The handler gives the vocabulary's lock back. */
static void *
need_memory(Dsv3Grammar *g, void *p)
{
	if (p == NULL)
		longjmp(g->out, GR_OUT_MEMORY);
	return p;
}

void
dsv3_lexmask_limit(Dsv3TokenTable *vocab)
{
	if (vocab->mask_bytes < LEX_MASK_LIMIT)
		return;
	for (Lex *lex = vocab->cache; lex != NULL; lex = lex->next_cached)
		dsv3_lex_masks_free(lex);
	vocab->mask_bytes = 0;
}

static LexMask *
mask_of(Dsv3Grammar *g, Lex *lex, int32_t state)
{
	if (lex->masks == NULL)
		lex->masks = need_memory(g, calloc((size_t) lex->n, sizeof(LexMask *)));
	if (lex->masks[state] == NULL)
	{
		lex->masks[state] = need_memory(g, calloc(1, sizeof(LexMask)));
		g->vocab->mask_bytes += sizeof(LexMask);
	}
	return lex->masks[state];
}

/* Words for a mask, or for a bit for each token: the same ones each time. */
static uint64_t *
clean_words(Dsv3TokenTable *vocab)
{
	memset(vocab->scratch, 0, (size_t) vocab->words * sizeof(uint64_t));
	return vocab->scratch;
}

/* Keep the mask in words. */
static void
keep(Dsv3Grammar *g, Kept *kept, const uint64_t *words)
{
	Dsv3TokenTable *vocab = g->vocab;
	int32_t count = dsv3_mask_count(words, vocab->words);

	if (count > SPARSE_MAX)
	{
		kept->bits = need_memory(g, malloc((size_t) vocab->words * sizeof(uint64_t)));
		memcpy(kept->bits, words, (size_t) vocab->words * sizeof(uint64_t));
		vocab->mask_bytes += (size_t) vocab->words * sizeof(uint64_t);
	}
	else
	{
		int32_t n = 0;

		kept->list = need_memory(g, calloc((size_t) count + 1, sizeof(int32_t)));
		for (int32_t w = 0; w < vocab->words; w++)
			for (uint64_t b = words[w]; b != 0; b &= b - 1)
				kept->list[n++] = w * 64 + __builtin_ctzll(b);
		vocab->mask_bytes += (size_t) count * sizeof(int32_t);
	}
	kept->count = count;
	kept->made = true;
}

static void
or_words(uint64_t *out, const uint64_t *in, int32_t n)
{
	for (int32_t i = 0; i < n; i++)
		out[i] |= in[i];
}

static void
or_kept(const Dsv3TokenTable *vocab, uint64_t *out, const Kept *kept)
{
	if (kept->bits != NULL)
		or_words(out, kept->bits, vocab->words);
	else
		for (int32_t i = 0; i < kept->count; i++)
			set_bit(out, kept->list[i]);
}

/* ---- walks ---- */

/* With a number or a literal. Notes where it had accepted and does not go on; cross has room for CROSS_MAX of them. */
static void
walk_word(const Dsv3TokenTable *vocab, const Lex *lex, int32_t state, uint64_t *words, int32_t *cross,
		  int32_t *ncross)
{
	const VocabNode *nodes = vocab->all.nodes;
	int32_t states[VOCAB_MAX_TOKEN + 2];

	states[0] = state;
	for (int32_t i = 0; i < vocab->all.n;)
	{
		int32_t depth = nodes[i].depth;
		int32_t from = states[depth - 1];
		int32_t s = lex_step(lex, from, nodes[i].byte);

		if (s < 0)
		{
			if (lex->tag[from] >= 0 && depth > 1 && *ncross < CROSS_MAX)
				cross[(*ncross)++] = i;
			i = nodes[i].skip;
			continue;
		}
		states[depth] = s;
		set_token(vocab, words, nodes[i].token);
		i++;
	}
}

/* Characters and bytes of a token along a lexeme from a state: the state after it, and its characters. */
static int32_t
run_token(const Dsv3TokenTable *vocab, const Lex *lex, int32_t state, int32_t token, int32_t *length)
{
	*length = 0;
	for (uint32_t k = vocab->offset[token]; k < vocab->offset[token + 1] && state >= 0; k++)
	{
		*length += lex->mid[state] == 0;
		state = lex_step(lex, state, (unsigned char) vocab->bytes[k]);
	}
	return state;
}

/* With text. room < 0: of any length. */
static void
walk_text(const Dsv3TokenTable *vocab, const Lex *lex, int32_t state, int32_t room, uint64_t *words)
{
	const VocabNode *nodes = vocab->all.nodes;
	const int32_t *order = vocab->all.order;
	const uint16_t *sets = room < 0 ? lex->free : lex->calm;
	bool lasting = room < 0 && lex->lasting;
	int32_t states[VOCAB_MAX_TOKEN + 2];
	int32_t length[VOCAB_MAX_TOKEN + 2];
	uint16_t had = 0; /* kinds whose tokens are in already */

	if (sets != NULL && lex->mid[state] == 0 && room <= ROOMS)
	{
		had = sets[state];
		if (had != 0)
			dsv3_vocab_or_kinds(vocab, words, had, lasting ? ROOMS + 1 : (room < 0 ? ROOMS : room));
		for (int32_t i = 0; room < 0 && !lasting && had != 0 && i < vocab->nlongs; i++)
			if ((vocab->token_kinds[vocab->longs[i]] & ~had) == 0 &&
				run_token(vocab, lex, state, vocab->longs[i], &length[0]) >= 0)
				set_bit(words, vocab->longs[i]);
	}
	states[0] = state;
	length[0] = 0;
	for (int32_t i = 0; i < vocab->all.n;)
	{
		int32_t depth = nodes[i].depth;
		int32_t from = states[depth - 1];
		int32_t s;

		if (((vocab->path[i] | nodes[i].below) & ~had) == 0)
		{
			i = nodes[i].skip;
			continue;
		}
		s = lex_step(lex, from, nodes[i].byte);
		length[depth] = length[depth - 1] + (lex->mid[from] == 0);
		/* A character takes the shortest end nearer by one at most, so the need never gets less further down. */
		if (s < 0 || (room >= 0 && length[depth] + lex->minlen[s] > room))
		{
			i = nodes[i].skip;
			continue;
		}
		if (sets != NULL && lex->mid[s] == vocab->mid[i] &&
			((sets[s] != 0 && (nodes[i].below & ~sets[s]) == 0 &&
			  (lasting || vocab->height[i] <= FREE_CHARS ||
			   (room >= 0 && room - length[depth] <= FREE_CHARS))) ||
			 (room < 0 && vocab->height[i] < lex->safe[s] && (nodes[i].below & KIND_NONE) == 0)))
		{
			int32_t end = nodes[nodes[i].skip].first;
			int32_t spare = room - length[depth] + vocab->chars[i];

			for (int32_t k = nodes[i].first; k < end; k++)
				if (room < 0 || vocab->order_chars[k] <= spare)
					set_bit(words, order[k]);
			i = nodes[i].skip;
			continue;
		}
		states[depth] = s;
		if (nodes[i].token >= 0)
			set_token(vocab, words, nodes[i].token);
		i++;
	}
}

/* ---- masks ---- */

static LexMask *
inside_of(Dsv3Grammar *g, Lex *lex, int32_t state)
{
	Dsv3TokenTable *vocab = g->vocab;
	LexMask *m;
	uint64_t *words;

	/* A text lexeme that never refuses is "any text": one mask for all of them. */
	if (lex->open && vocab->any_text != NULL && lex != vocab->any_text)
		for (int32_t s = 0; s < vocab->any_text->n; s++)
			if (vocab->any_text->mid[s] == lex->mid[state])
				return inside_of(g, vocab->any_text, s);
	m = mask_of(g, lex, state);
	if (m->inside.made)
		return m;
	words = clean_words(vocab);
	if (lex->mid != NULL)
		walk_text(vocab, lex, state, -1, words);
	else
	{
		if (m->cross == NULL)
			m->cross = need_memory(g, malloc(CROSS_MAX * sizeof(int32_t)));
		m->ncross = 0;
		walk_word(vocab, lex, state, words, m->cross, &m->ncross);
		m->cross = need_memory(g, realloc(m->cross, ((size_t) m->ncross + 1) * sizeof(int32_t)));
		vocab->mask_bytes += (size_t) m->ncross * sizeof(int32_t);
	}
	keep(g, &m->inside, words);
	return m;
}

void
dsv3_lexmask_or(Dsv3Grammar *g, uint64_t *words, Lex *lex, int32_t state)
{
	or_kept(g->vocab, words, &inside_of(g, lex, state)->inside);
}

const int32_t *
dsv3_lexmask_crossings(Dsv3Grammar *g, Lex *lex, int32_t state, int32_t *n)
{
	LexMask *m = inside_of(g, lex, state);

	*n = m->ncross;
	return m->cross;
}

/* The needs of the long tokens, one by one. */
static const uint8_t *
long_needs(Dsv3Grammar *g, const Lex *lex, LexMask *m, int32_t state)
{
	const Dsv3TokenTable *vocab = g->vocab;

	if (m->long_need != NULL)
		return m->long_need;
	m->long_need = need_memory(g, calloc((size_t) vocab->nlongs + 1, 1));
	for (int32_t i = 0; i < vocab->nlongs; i++)
	{
		int32_t length;
		int32_t s = run_token(vocab, lex, state, vocab->longs[i], &length);

		if (s >= 0)
		{
			length += lex->minlen[s] + 1;
			m->long_need[i] = (uint8_t) (length > UINT8_MAX ? UINT8_MAX : length);
		}
	}
	return m->long_need;
}

/* The most code points a shortest end takes. */
static int32_t
longest_end(const Lex *lex)
{
	return lex->maxdist; /* in bytes, which are no fewer */
}

void
dsv3_lexmask_or_room(Dsv3Grammar *g, uint64_t *words, Lex *lex, int32_t state, int32_t room)
{
	Dsv3TokenTable *vocab = g->vocab;
	LexMask *m;

	if (room >= vocab->longest + longest_end(lex))
	{
		dsv3_lexmask_or(g, words, lex, state); /* no token is that long */
		return;
	}
	m = mask_of(g, lex, state);
	if (room <= ROOMS)
	{
		if (!m->room[room].made)
		{
			uint64_t *own = clean_words(vocab);

			walk_text(vocab, lex, state, room, own);
			keep(g, &m->room[room], own);
		}
		or_kept(vocab, words, &m->room[room]);
	}
	else if (room >= ROOMS + longest_end(lex) && room < UINT8_MAX - 1)
	{
		/* All but the few that are too long; what other items have allowed already must stay. */
		const uint8_t *need = long_needs(g, lex, m, state);
		const Kept *inside = &inside_of(g, lex, state)->inside; /* before the scratch is used */
		uint64_t *before = clean_words(vocab);

		for (int32_t i = 0; i < vocab->nlongs; i++)
			if (has_bit(words, vocab->longs[i]))
				set_bit(before, i);
		or_kept(vocab, words, inside);
		for (int32_t i = 0; i < vocab->nlongs; i++)
			if (need[i] - 1 > room && !has_bit(before, i))
				words[vocab->longs[i] >> 6] &= ~(UINT64_C(1) << (vocab->longs[i] & 63));
	}
	else
		walk_text(vocab, lex, state, room, words);
}

const Boundary *
dsv3_lexmask_bounds(Dsv3Grammar *g, Lex *lex, int32_t state, int32_t *count)
{
	Dsv3TokenTable *vocab = g->vocab;
	LexMask *m = mask_of(g, lex, state);
	int32_t n = 0;

	*count = m->nbounds;
	if (m->bounds != NULL)
		return m->bounds;
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
	*count = m->nbounds = n;
	vocab->mask_bytes += (size_t) n * sizeof(Boundary);
	return m->bounds;
}
