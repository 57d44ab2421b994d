/*
 * lex.c
 *	  Building and analysing lexemes (lex.h): the general explorer, "any text", counted text, sets of literals and
 *	  products.
 *
 * Memory: while exploring, states sit in the compile arena; the finished table is copied into the lexeme's own arena,
 * so that lexemes outlive the compilation that made them and can be shared between grammars.
 */
#include "grammar/lex.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/freedom.h"

int32_t
dsv3_lex_run(const Lex *lex, int32_t state, const char *text, size_t len)
{
	for (size_t i = 0; i < len && state >= 0; i++)
		state = lex_step(lex, state, (unsigned char) text[i]);
	return state;
}

void
dsv3_lex_free(Lex *lex)
{
	if (lex == NULL)
		return;
	dsv3_gr_arena_free(&lex->arena);
	free(lex->cache_key);
	free(lex->cost);
	free(lex);
}

/* Reverse edges in compressed form: for each state, who leads to it. */
typedef struct Reverse
{
	int32_t *first; /* [n + 1] */
	int32_t *from;
} Reverse;

static Reverse
reverse_edges(Ctx *ctx, const int32_t *rows, int32_t n, int32_t ncls)
{
	Reverse rev;
	size_t cells = (size_t) n * (size_t) ncls;
	size_t edges = 0;

	rev.first = dsv3_gr_arena_alloc(ctx->arena, ((size_t) n + 2) * sizeof(int32_t));
	for (size_t i = 0; i < cells; i++)
		if (rows[i] >= 0)
		{
			rev.first[rows[i] + 2]++;
			edges++;
		}
	for (int32_t s = 0; s < n; s++)
		rev.first[s + 2] += rev.first[s + 1];
	rev.from = dsv3_gr_arena_alloc(ctx->arena, (edges + 1) * sizeof(int32_t));
	for (int32_t s = 0; s < n; s++)
		for (int32_t c = 0; c < ncls; c++)
		{
			int32_t t = rows[(size_t) s * (size_t) ncls + (size_t) c];

			if (t >= 0)
				rev.from[rev.first[t + 1]++] = s;
		}
	return rev;
}

/* Distance to acceptance in bytes (weight of a step out of state s: 1) or code points (weight 1 where mid is 0). */
static void
distances(Ctx *ctx, const Reverse *rev, const int32_t *tag, const uint8_t *mid, int32_t n, int32_t *dist)
{
	int32_t *deque = dsv3_gr_arena_alloc(ctx->arena, ((size_t) n * 2 + 2) * sizeof(int32_t));
	int32_t *bucket = dsv3_gr_arena_alloc(ctx->arena, ((size_t) n * 2 + 2) * sizeof(int32_t));
	int32_t nnow = 0;

	/* Breadth first by distance; within one distance, states reached by weight 0 join the same round. */
	for (int32_t s = 0; s < n; s++)
	{
		dist[s] = -1;
		if (tag[s] >= 0)
		{
			dist[s] = 0;
			deque[nnow++] = s;
		}
	}
	for (int32_t d = 0; nnow > 0; d++)
	{
		int32_t nnext = 0;

		for (int32_t i = 0; i < nnow; i++)
		{
			int32_t t = deque[i];

			for (int32_t e = rev->first[t]; e < rev->first[t + 1]; e++)
			{
				int32_t s = rev->from[e];

				if (dist[s] >= 0)
					continue;
				if (mid != NULL && mid[s] != 0)
				{
					dist[s] = d;
					deque[nnow++] = s;
				}
				else
				{
					/* With weights, a later weight-0 way at the same distance must not be missed. */
					dist[s] = d + 1;
					bucket[nnext++] = s;
				}
			}
			gr_tick(ctx);
		}
		memcpy(deque, bucket, (size_t) nnext * sizeof(int32_t));
		nnow = nnext;
	}
}

/* Number of completions, saturating; a state on a way to a cycle has "infinitely many". */
static void
cardinalities(Ctx *ctx, Lex *lex)
{
	int32_t n = lex->n;
	int32_t *order = dsv3_gr_arena_alloc(ctx->arena, ((size_t) n + 1) * sizeof(int32_t));
	int32_t *out = dsv3_gr_arena_alloc(ctx->arena, ((size_t) n + 1) * sizeof(int32_t));
	Reverse rev = reverse_edges(ctx, lex->rows, n, lex->ncls);
	int32_t head = 0;
	int32_t tail = 0;
	int32_t width[256] = {0};

	for (int b = 0; b < 256; b++)
		width[lex->cls[b]]++;
	/* Peel states whose successors are all done; what is left can run round a cycle. */
	for (int32_t s = 0; s < n; s++)
	{
		for (int32_t c = 0; c < lex->ncls; c++)
			out[s] += lex->rows[(size_t) s * (size_t) lex->ncls + (size_t) c] >= 0;
		lex->card[s] = LEX_CARD_MAX;
		if (out[s] == 0)
			order[tail++] = s;
	}
	lex->endless = true;
	while (head < tail)
	{
		int32_t s = order[head++];
		int64_t total = lex->tag[s] >= 0;

		for (int32_t c = 0; c < lex->ncls; c++)
		{
			int32_t t = lex->rows[(size_t) s * (size_t) lex->ncls + (size_t) c];

			if (t >= 0)
				total += (int64_t) lex->card[t] * width[c];
			if (total > LEX_CARD_MAX)
				total = LEX_CARD_MAX;
		}
		lex->card[s] = (int32_t) total;
		lex->endless = false;
		for (int32_t e = rev.first[s]; e < rev.first[s + 1]; e++)
			if (--out[rev.from[e]] == 0)
				order[tail++] = rev.from[e];
	}
}

/*
 * Can every state finish after any number of code points from its minimum up? The set of states that can finish after
 * exactly k code points is a function of the set for k - 1, so it is enough that the sets only grow until they stop.
 */
static bool
lengths_flexible(Ctx *ctx, const Lex *lex)
{
	int32_t n = lex->n < 0 ? 0 : lex->n;
	Reverse rev = reverse_edges(ctx, lex->rows, n, lex->ncls);
	uint8_t *now = dsv3_gr_arena_alloc(ctx->arena, (size_t) n);
	uint8_t *next = dsv3_gr_arena_alloc(ctx->arena, (size_t) n);
	int32_t *stack = dsv3_gr_arena_alloc(ctx->arena, ((size_t) n + 1) * sizeof(int32_t));

	if (n > 4000)
		return false;
	for (int32_t s = 0; s < n; s++)
		now[s] = lex->tag[s] >= 0;
	for (int32_t k = 0; k < 1024; k++)
	{
		int32_t top = 0;
		bool same = true;

		/* "now" closed under the bytes inside one character: mid states finish it without a new character. */
		for (int32_t s = 0; s < n; s++)
			if (now[s])
				stack[top++] = s;
		memset(next, 0, (size_t) (uint32_t) n);
		while (top > 0)
		{
			int32_t t = stack[--top];

			for (int32_t e = rev.first[t]; e < rev.first[t + 1]; e++)
			{
				int32_t s = rev.from[e];

				if (lex->mid[s] == 0)
					next[s] = 1;
				else if (!now[s])
				{
					now[s] = 1;
					stack[top++] = s;
				}
			}
			gr_tick(ctx);
		}
		for (int32_t s = 0; s < n; s++)
			if (lex->mid[s] == 0)
			{
				if (now[s] && !next[s])
					return false;
				same = same && now[s] == next[s];
			}
		if (same)
			return true;
		memcpy(now, next, (size_t) n);
	}
	return false;
}

Lex *
dsv3_lex_build(Ctx *ctx, const LexSource *source, const int32_t *start, int32_t nstart, const uint8_t *cls,
			   int32_t ncls)
{
	Interner states;
	IntVec rows = {NULL, 0, 0};
	IntVec key = {NULL, 0, 0};
	int32_t rep[256];
	Lex *lex;
	int32_t n;
	int32_t *tag;
	int32_t *dist;
	int32_t *renumber;
	Reverse rev;

	dsv3_gr_interner_init(&states, ctx->arena);
	for (int b = 255; b >= 0; b--)
		rep[cls[b]] = b;
	dsv3_gr_interner_get(&states, start, nstart, NULL);
	for (int32_t s = 0; s < states.n; s++)
	{
		int32_t klen;
		const int32_t *k = interner_key(&states, s, &klen);

		if (states.n > source->max_states && source->may_fail)
			return NULL;
		if (states.n > source->max_states)
			dsv3_gr_fail(ctx, DSV3_ERR_TOO_LARGE,
						 "Use simpler patterns, or minLength and maxLength instead of counted repetitions.",
						 "pattern needs more than %d automaton states", source->max_states);
		if ((size_t) states.n * (size_t) ncls > (size_t) 16 * 1024 * 1024)
			dsv3_gr_fail(ctx, DSV3_ERR_TOO_LARGE, NULL,
						 "pattern or set of values needs too large an automaton");
		for (int32_t c = 0; c < ncls; c++)
		{
			int32_t t = LEX_DEAD;

			key.n = 0;
			if (source->step(source->arg, k, klen, (unsigned char) rep[c], &key))
			{
				t = dsv3_gr_interner_get(&states, key.v, key.n, NULL);
				gr_tick(ctx);
			}
			gr_intvec_push(ctx->arena, &rows, t);
		}
		gr_work(ctx, ncls / 4 + 1);
	}
	n = states.n;
	tag = dsv3_gr_arena_alloc(ctx->arena, ((size_t) n + 1) * sizeof(int32_t));
	dist = dsv3_gr_arena_alloc(ctx->arena, ((size_t) n + 1) * sizeof(int32_t));
	renumber = dsv3_gr_arena_alloc(ctx->arena, ((size_t) n + 1) * sizeof(int32_t));
	for (int32_t s = 0; s < n; s++)
	{
		int32_t klen;
		const int32_t *k = interner_key(&states, s, &klen);

		tag[s] = source->tag(source->arg, k, klen);
		gr_work(ctx, klen);
	}
	rev = reverse_edges(ctx, rows.v, n, ncls);
	distances(ctx, &rev, tag, NULL, n, dist);

	lex = calloc(1, sizeof(Lex));
	if (lex == NULL)
		longjmp(ctx->out, GR_OUT_MEMORY);
	dsv3_gr_arena_init(&lex->arena, ctx->arena->limit, &ctx->spent.bytes, &ctx->out);
	lex->refs = 1;
	lex->next_made = ctx->made;
	ctx->made = lex;
	lex->ncls = ncls;
	memcpy(lex->cls, cls, 256);
	for (int32_t s = 0; s < n; s++)
		renumber[s] = !source->trim || dist[s] >= 0 ? lex->n++ : LEX_DEAD;
	if (source->trim && n > 0 && dist[0] < 0)
		lex->n = 0;
	if (lex->n > 0)
	{
		size_t size = (size_t) lex->n;

		lex->rows = dsv3_gr_arena_alloc(&lex->arena, size * (size_t) ncls * sizeof(int32_t));
		lex->tag = dsv3_gr_arena_alloc(&lex->arena, size * sizeof(int32_t));
		lex->dist = dsv3_gr_arena_alloc(&lex->arena, size * sizeof(int32_t));
		lex->next = dsv3_gr_arena_alloc(&lex->arena, size);
		if (source->mid != NULL)
			lex->mid = dsv3_gr_arena_alloc(&lex->arena, size);
		for (int32_t s = 0; s < n; s++)
		{
			int32_t to = renumber[s];

			if (to < 0)
				continue;
			lex->tag[to] = tag[s];
			lex->dist[to] = dist[s];
			if (dist[s] > lex->maxdist)
				lex->maxdist = dist[s];
			if (source->mid != NULL)
			{
				int32_t klen;
				const int32_t *k = interner_key(&states, s, &klen);

				lex->mid[to] = (uint8_t) source->mid(source->arg, k, klen);
			}
			for (int32_t c = 0; c < ncls; c++)
			{
				int32_t t = rows.v[(size_t) s * (size_t) ncls + (size_t) c];

				lex->rows[(size_t) to * (size_t) ncls + (size_t) c] = t < 0 ? LEX_DEAD : renumber[t];
				if (t >= 0 && dist[s] > 0 && dist[t] == dist[s] - 1 && lex->next[to] == 0)
					lex->next[to] = (uint8_t) rep[c];
			}
		}
		if (source->trim)
		{
			lex->card = dsv3_gr_arena_alloc(&lex->arena, size * sizeof(int32_t));
			cardinalities(ctx, lex);
		}
		if (lex->mid != NULL)
		{
			lex->minlen = dsv3_gr_arena_alloc(&lex->arena, size * sizeof(int32_t));
			rev = reverse_edges(ctx, lex->rows, lex->n, ncls);
			distances(ctx, &rev, lex->tag, lex->mid, lex->n, lex->minlen);
		}
	}
	lex->arena.spent = &lex->arena.asked; /* it outlives the compilation */
	return lex;
}

/* ---- any text ---- */

enum
{
	T_PLAIN,
	T_ESC,
	T_U,
	T_U0,
	T_U00,
	T_U000,
	T_U001,
	T_C1,
	T_C2,
	T_C3,
	T_E0,
	T_ED,
	T_F0,
	T_F4,
	T_STATES
};

int32_t
dsv3_lex_char_left(uint8_t mid)
{
	static const uint8_t left[T_STATES] = {0, 5, 4, 3, 2, 1, 1, 1, 2, 3, 2, 2, 3, 3};

	return left[mid];
}

static int
text_step(bool escaped, int state, unsigned char b)
{
	bool cont = (b & 0xC0) == 0x80;

	switch (state)
	{
		case T_PLAIN:
			if (b < 0x80)
			{
				if (!escaped)
					return b == 0 ? -1 : T_PLAIN;
				if (b < 0x20 || b == '"')
					return -1;
				return b == '\\' ? T_ESC : T_PLAIN;
			}
			if (b < 0xC2 || b > 0xF4)
				return -1;
			if (b < 0xE0)
				return T_C1;
			if (b < 0xF0)
				return b == 0xE0 ? T_E0 : (b == 0xED ? T_ED : T_C2);
			return b == 0xF0 ? T_F0 : (b == 0xF4 ? T_F4 : T_C3);
		case T_ESC:
			if (b == 'u')
				return T_U;
			return b != 0 && strchr("btnfr\"\\", b) != NULL ? T_PLAIN : -1;
		case T_U:
			return b == '0' ? T_U0 : -1;
		case T_U0:
			return b == '0' ? T_U00 : -1;
		case T_U00:
			return b == '0' ? T_U000 : (b == '1' ? T_U001 : -1);
		case T_U000: /* 01..07, 0b, 0e, 0f */
			return (b >= '1' && b <= '7') || b == 'b' || b == 'e' || b == 'f' ? T_PLAIN : -1;
		case T_U001:
			return (b >= '0' && b <= '9') || (b >= 'a' && b <= 'f') ? T_PLAIN : -1;
		case T_C1:
			return cont ? T_PLAIN : -1;
		case T_C2:
			return cont ? T_C1 : -1;
		case T_C3:
			return cont ? T_C2 : -1;
		case T_E0:
			return b >= 0xA0 && b <= 0xBF ? T_C1 : -1;
		case T_ED:
			return b >= 0x80 && b <= 0x9F ? T_C1 : -1;
		case T_F0:
			return b >= 0x90 && b <= 0xBF ? T_C2 : -1;
		default:
			return b >= 0x80 && b <= 0x8F ? T_C2 : -1;
	}
}

uint8_t
dsv3_text_after(uint8_t mid, unsigned char byte)
{
	int after = mid < T_STATES ? text_step(true, mid, byte) : -1;

	return after < 0 ? TEXT_INVALID : (uint8_t) after;
}

/* Bytes the text automaton tells apart. */
static int32_t
text_classes(bool escaped, uint8_t cls[256])
{
	int32_t n = 0;
	int seen[256][T_STATES];

	for (int b = 0; b < 256; b++)
	{
		int row[T_STATES];
		int32_t c;

		for (int s = 0; s < T_STATES; s++)
			row[s] = text_step(escaped, s, (unsigned char) b);
		for (c = 0; c < n; c++)
			if (memcmp(seen[c], row, sizeof(row)) == 0)
				break;
		if (c == n)
			memcpy(seen[n++], row, sizeof(row));
		cls[b] = (uint8_t) c;
	}
	return n;
}

/* ---- products ---- */

typedef struct Product
{
	bool escaped;
	Lex *const *parts;
	int32_t n;
	uint64_t must;
	int32_t (*decide)(void *arg, uint64_t accepting);
	void *arg;
	Ctx *ctx;
	int32_t count_max; /* -2: no counter; the last key element counts code points */
	int32_t count_min;
	int32_t max_states;
	bool may_fail;
} Product;

static bool
product_step(void *arg, const int32_t *key, int32_t n, unsigned char byte, IntVec *out)
{
	Product *p = arg;
	int t = text_step(p->escaped, key[0], byte);

	if (t < 0)
		return false;
	gr_intvec_push(p->ctx->arena, out, t);
	gr_work(p->ctx, p->n / 4);
	for (int32_t i = 0; i < p->n; i++)
	{
		int32_t s = key[i + 1] < 0 ? LEX_DEAD : lex_step(p->parts[i], key[i + 1], byte);

		if (s < 0 && (p->must >> i & 1) != 0)
			return false;
		gr_intvec_push(p->ctx->arena, out, s);
	}
	if (p->count_max != -2)
	{
		int32_t count = key[n - 1] + (key[0] == T_PLAIN);

		if (p->count_max >= 0 && count > p->count_max)
			return false;
		if (p->count_max < 0 && count > p->count_min)
			count = p->count_min;
		gr_intvec_push(p->ctx->arena, out, count);
	}
	return true;
}

static int32_t
product_tag(void *arg, const int32_t *key, int32_t n)
{
	Product *p = arg;
	uint64_t accepting = 0;

	if (key[0] != T_PLAIN)
		return -1;
	if (p->count_max != -2 && key[n - 1] < p->count_min)
		return -1;
	for (int32_t i = 0; i < p->n; i++)
		if (key[i + 1] >= 0 && p->parts[i]->tag[key[i + 1]] >= 0)
			accepting |= UINT64_C(1) << i;
	return p->decide == NULL ? 0 : p->decide(p->arg, accepting);
}

static int
product_mid(void *arg, const int32_t *key, int32_t n)
{
	(void) arg;
	(void) n;
	return key[0];
}

static Lex *
product_build(Ctx *ctx, Product *p)
{
	LexSource source = {p, product_step, product_tag, product_mid, true, p->max_states, p->may_fail};
	IntVec start = {NULL, 0, 0};
	uint8_t cls[256];
	int32_t ncls = text_classes(p->escaped, cls);
	Lex *lex;

	/* Refine the classes by each part's. */
	for (int32_t i = 0; i < p->n; i++)
	{
		int16_t map[256][256];
		int32_t n = 0;

		memset(map, 0xff, sizeof(map));
		for (int b = 0; b < 256; b++)
		{
			int16_t *cell = &map[cls[b]][p->parts[i]->cls[b]];

			if (*cell < 0)
				*cell = (int16_t) n++;
		}
		for (int b = 0; b < 256; b++)
			cls[b] = (uint8_t) map[cls[b]][p->parts[i]->cls[b]];
		ncls = n;
	}
	p->ctx = ctx;
	gr_intvec_push(ctx->arena, &start, T_PLAIN);
	for (int32_t i = 0; i < p->n; i++)
		gr_intvec_push(ctx->arena, &start, p->parts[i]->n == 0 ? LEX_DEAD : 0);
	if (p->count_max != -2)
		gr_intvec_push(ctx->arena, &start, 0);
	for (int32_t i = 0; i < p->n; i++)
		if (start.v[i + 1] < 0 && (p->must >> i & 1) != 0)
		{
			/* One part is the empty language: nothing is accepted. */
			p->must = 0;
			p->count_max = 0;
			p->count_min = 1;
			start.n = 0;
			gr_intvec_push(ctx->arena, &start, T_PLAIN);
			p->n = 0;
			gr_intvec_push(ctx->arena, &start, 0);
		}
	lex = dsv3_lex_build(ctx, &source, start.v, start.n, cls, ncls);
	if (lex != NULL && lex->n > 0)
	{
		lex->flexible = -1;
		if (p->escaped)
			dsv3_lex_freedom(ctx, lex);
	}
	return lex;
}

bool
dsv3_lex_flexible(Ctx *ctx, Lex *lex)
{
	int32_t flexible = __atomic_load_n(&lex->flexible, __ATOMIC_ACQUIRE);

	if (flexible < 0)
	{
		Work before = ctx->spent;

		flexible = lengths_flexible(ctx, lex);
		/* Two compilations may do this at once; they find and write the same. */
		lex->flexible_made = dsv3_gr_work_since(ctx, &before);
		__atomic_store_n(&lex->flexible, flexible, __ATOMIC_RELEASE);
	}
	else
		dsv3_gr_charge(ctx, &lex->flexible_made);
	return flexible == 1;
}

Lex *
dsv3_lex_product(Ctx *ctx, bool escaped, Lex *const *parts, int32_t nparts, uint64_t must,
				 int32_t (*decide)(void *arg, uint64_t accepting), void *arg)
{
	Product p = {escaped, parts, nparts, must, decide, arg, NULL, -2, 0, LEX_MAX_STATES, false};

	return product_build(ctx, &p);
}

static int32_t
decide_any(void *arg, uint64_t accepting)
{
	(void) arg;
	return accepting != 0 ? 0 : -1;
}

Lex *
dsv3_lex_union(Ctx *ctx, Lex *const *parts, int32_t nparts, int32_t max_states)
{
	Product p = {true, parts, nparts, 0, decide_any, NULL, NULL, -2, 0, max_states, true};
	Lex *lex = product_build(ctx, &p);

	if (lex != NULL)
		lex->use_max = -1;
	return lex;
}

Lex *
dsv3_lex_any(Ctx *ctx, bool escaped)
{
	return dsv3_lex_product(ctx, escaped, NULL, 0, 0, NULL, NULL);
}

Lex *
dsv3_lex_count(Ctx *ctx, bool escaped, int32_t min, int32_t max)
{
	Product p = {escaped, NULL, 0, 0, NULL, NULL, NULL, max < 0 ? -1 : max, min, LEX_MAX_STATES, false};

	return product_build(ctx, &p);
}

/* ---- literals ---- */

typedef struct Trie
{
	const LexLiteral *literals;
	int32_t *order; /* literals sorted by bytes */
	Arena *arena;
} Trie;

static int
compare_literal(const void *a, const void *b, void *arg)
{
	const LexLiteral *x = &((const LexLiteral *) arg)[*(const int32_t *) a];
	const LexLiteral *y = &((const LexLiteral *) arg)[*(const int32_t *) b];
	size_t n = x->len < y->len ? x->len : y->len;
	int c = n == 0 ? 0 : memcmp(x->text, y->text, n);

	if (c != 0)
		return c;
	return (x->len > y->len) - (x->len < y->len);
}

/* A state is (from, to, depth): the literals order[from..to) share their first depth bytes. */
static bool
trie_step(void *arg, const int32_t *key, int32_t n, unsigned char byte, IntVec *out)
{
	Trie *trie = arg;
	int32_t from = key[0];
	int32_t to = key[1];
	size_t depth = (size_t) key[2];
	int32_t lo;
	int32_t hi;

	(void) n;
	while (from < to && trie->literals[trie->order[from]].len == depth)
		from++;
	/* Two binary searches for the run whose next byte is `byte`. */
	lo = from;
	hi = to;
	while (lo < hi)
	{
		int32_t m = lo + (hi - lo) / 2;

		if ((unsigned char) trie->literals[trie->order[m]].text[depth] < byte)
			lo = m + 1;
		else
			hi = m;
	}
	from = lo;
	hi = to;
	while (lo < hi)
	{
		int32_t m = lo + (hi - lo) / 2;

		if ((unsigned char) trie->literals[trie->order[m]].text[depth] <= byte)
			lo = m + 1;
		else
			hi = m;
	}
	if (from >= lo)
		return false;
	gr_intvec_push(trie->arena, out, from);
	gr_intvec_push(trie->arena, out, lo);
	gr_intvec_push(trie->arena, out, (int32_t) depth + 1);
	return true;
}

static int32_t
trie_tag(void *arg, const int32_t *key, int32_t n)
{
	Trie *trie = arg;

	(void) n;
	if (key[0] < key[1] && trie->literals[trie->order[key[0]]].len == (size_t) key[2])
		return trie->order[key[0]];
	return -1;
}

Lex *
dsv3_lex_literals(Ctx *ctx, const LexLiteral *literals, int32_t n, bool trim)
{
	Trie trie = {literals, NULL, ctx->arena};
	LexSource source = {&trie, trie_step, trie_tag, NULL, trim, LEX_MAX_LITERALS, false};
	int32_t start[3] = {0, n, 0};
	uint8_t cls[256];
	bool used[256] = {false};
	int32_t ncls = 1;

	trie.order = dsv3_gr_arena_alloc(ctx->arena, ((size_t) n + 1) * sizeof(int32_t));
	for (int32_t i = 0; i < n; i++)
	{
		trie.order[i] = i;
		for (size_t k = 0; k < literals[i].len; k++)
			used[(unsigned char) literals[i].text[k]] = true;
	}
	qsort_r(trie.order, (size_t) n, sizeof(int32_t), compare_literal, (void *) (uintptr_t) literals);
	for (int b = 0; b < 256; b++)
		cls[b] = (uint8_t) (used[b] ? ncls++ : 0);
	if (ncls > 256) /* every byte is used: no class for the rest is needed */
		for (int b = 0; b < 256; b++)
			cls[b] = (uint8_t) b;
	return dsv3_lex_build(ctx, &source, start, 3, cls, ncls > 256 ? 256 : ncls);
}
