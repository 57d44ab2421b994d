/*
 * vocab.c
 *	  Token tables (vocab.h): building the tries, counting tokens of a text, and the cache of lexemes that grammars of
 *	  one vocabulary share.
 */
#include "grammar/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/freedom.h"

#define CACHE_MAX_BYTES ((size_t) 96 * 1024 * 1024)

typedef struct SortItem
{
	const char *bytes;
	uint32_t len;
	int32_t token;
} SortItem;

static int
compare_item(const void *a, const void *b)
{
	const SortItem *x = a;
	const SortItem *y = b;
	uint32_t n = x->len < y->len ? x->len : y->len;
	int c = memcmp(x->bytes, y->bytes, n);

	if (c != 0)
		return c;
	if (x->len != y->len)
		return x->len < y->len ? -1 : 1;
	return (x->token > y->token) - (x->token < y->token);
}

/* items are sorted and have no empty text; equal texts are chained in same[] when it is given. */
static bool
build_trie(VocabTrie *trie, const SortItem *items, int32_t n, int32_t *same)
{
	size_t total = 0;
	const SortItem *last = NULL;
	int32_t norder = 0;
	int32_t open[VOCAB_MAX_TOKEN + 2] = {0}; /* node of each depth on the current path */
	uint32_t depth = 0;

	for (int32_t i = 0; i < n; i++)
		total += items[i].len;
	trie->nodes = malloc((total + 1) * sizeof(VocabNode));
	if (trie->nodes == NULL)
		return false;
	trie->order = malloc(((size_t) n + 1) * sizeof(int32_t));
	if (trie->order == NULL)
		return false;
	trie->n = 0;
	for (int32_t i = 0; i < n; i++)
	{
		uint32_t common = 0;

		if (last != NULL)
			while (common < last->len && common < items[i].len &&
				   last->bytes[common] == items[i].bytes[common])
				common++;
		if (last != NULL && common == items[i].len && common == last->len)
		{
			if (same != NULL)
			{
				int32_t t = trie->nodes[open[depth]].token;

				while (same[t] >= 0)
					t = same[t];
				same[t] = items[i].token;
				trie->order[norder++] = items[i].token;
			}
			continue;
		}
		while (depth > common)
			trie->nodes[open[depth--]].skip = trie->n;
		for (uint32_t k = common; k < items[i].len; k++)
		{
			VocabNode *node = &trie->nodes[trie->n];

			node->byte = (uint8_t) items[i].bytes[k];
			node->depth = (uint8_t) (k + 1);
			node->token = -1;
			node->first = norder;
			node->below = 0;
			open[++depth] = trie->n++;
		}
		trie->nodes[open[depth]].token = items[i].token;
		trie->order[norder++] = items[i].token;
		last = &items[i];
	}
	while (depth > 0)
		trie->nodes[open[depth--]].skip = trie->n;
	/* A node past the last, so that the tokens before any `skip` can be told. */
	memset(&trie->nodes[trie->n], 0, sizeof(VocabNode));
	trie->nodes[trie->n].first = norder;
	for (int b = 0; b < 256; b++)
		trie->first[b] = trie->n;
	for (int32_t i = 0; i < trie->n; i = trie->nodes[i].skip)
		trie->first[trie->nodes[i].byte] = i;
	return true;
}

static void
free_trie(VocabTrie *trie)
{
	free(trie->nodes);
	free(trie->order);
}

/* What the nodes of the trie are as text. */
static bool
mark_text(Dsv3TokenTable *vocab)
{
	VocabNode *nodes = vocab->all.nodes;
	int32_t n = vocab->all.n;
	int32_t parents[VOCAB_MAX_TOKEN + 2] = {0};
	int32_t norder = 0;

	vocab->path = calloc((size_t) n + 1, sizeof(uint16_t));
	vocab->mid = calloc((size_t) n + 1, 1);
	vocab->height = calloc((size_t) n + 1, 1);
	vocab->chars = calloc((size_t) n + 1, 1);
	vocab->order_chars = calloc((size_t) vocab->size, 1);
	vocab->token_kinds = calloc((size_t) vocab->size, sizeof(uint16_t));
	vocab->scratch = malloc((size_t) vocab->words * sizeof(uint64_t));
	vocab->has[0] = calloc((size_t) vocab->words * (KINDS + ROOMS + 2), sizeof(uint64_t));
	if (vocab->path == NULL || vocab->mid == NULL || vocab->height == NULL || vocab->chars == NULL ||
		vocab->order_chars == NULL || vocab->token_kinds == NULL || vocab->has[0] == NULL ||
		vocab->scratch == NULL)
		return false;
	for (int k = 1; k < KINDS; k++)
		vocab->has[k] = vocab->has[0] + (size_t) k * (size_t) vocab->words;
	for (int room = 0; room <= ROOMS + 1; room++)
		vocab->upto[room] = vocab->has[0] + (size_t) (KINDS + room) * (size_t) vocab->words;
	for (int32_t i = 0; i < n; i++)
	{
		int32_t depth = nodes[i].depth;
		int32_t parent = parents[depth - 1];
		uint8_t mid = depth == 1 ? 0 : vocab->mid[parent];

		parents[depth] = i;
		if (depth > 1)
		{
			vocab->path[i] = vocab->path[parent];
			vocab->chars[i] = vocab->chars[parent];
		}
		vocab->mid[i] = mid == TEXT_INVALID ? TEXT_INVALID : dsv3_text_after(mid, nodes[i].byte);
		if (vocab->mid[i] == TEXT_INVALID)
			vocab->path[i] |= KIND_NONE;
		else if (mid == 0)
		{
			vocab->path[i] |= dsv3_char_kind(nodes[i].byte);
			vocab->chars[i]++;
		}
		for (int32_t t = nodes[i].token; t >= 0; t = vocab->same[t])
		{
			vocab->token_kinds[t] = vocab->path[i];
			vocab->order_chars[norder++] = vocab->chars[i];
			vocab->nlongs += vocab->chars[i] > ROOMS;
			for (int k = 0; k < KINDS; k++)
				if ((vocab->path[i] >> k & 1) != 0)
					vocab->has[k][t >> 6] |= UINT64_C(1) << (t & 63);
			for (int room = vocab->chars[i] > ROOMS ? ROOMS + 1 : vocab->chars[i]; room <= ROOMS + 1; room++)
				vocab->upto[room][t >> 6] |= UINT64_C(1) << (t & 63);
		}
		for (int32_t d = depth - 1; d > 0 && vocab->height[parents[d]] < depth - d; d--)
			vocab->height[parents[d]] = (uint8_t) (depth - d);
		/* Kinds that begin at a node are below all nodes on the way to it. */
		for (int32_t d = depth - 1; d > 0; d--)
		{
			uint16_t kind = mid == 0 ? dsv3_char_kind(nodes[i].byte) : 0;

			if (vocab->mid[i] == TEXT_INVALID)
				kind = KIND_NONE;
			if ((nodes[parents[d]].below & kind) == kind)
				break;
			nodes[parents[d]].below |= kind;
		}
	}
	vocab->longs = malloc(((size_t) vocab->nlongs + 1) * sizeof(int32_t));
	if (vocab->longs == NULL)
		return false;
	vocab->nlongs = 0;
	for (int32_t k = 0; k < norder; k++)
		if (vocab->order_chars[k] > ROOMS)
			vocab->longs[vocab->nlongs++] = vocab->all.order[k];
	return true;
}

void
dsv3_vocab_or_kinds(const Dsv3TokenTable *vocab, uint64_t *words, uint16_t kinds, int32_t room)
{
	const uint64_t *others[KINDS];
	int n = 0;

	for (int k = 0; k < KINDS; k++)
		if ((kinds >> k & 1) == 0)
			others[n++] = vocab->has[k];
	/* Some words at a time, so that they stay in registers and the nearest cache. */
	for (int32_t from = 0; from < vocab->words; from += 64)
	{
		int32_t to = from + 64 < vocab->words ? from + 64 : vocab->words;
		uint64_t out[64] = {0};

		for (int k = 0; k < n; k++)
			for (int32_t w = from; w < to; w++)
				out[w - from] |= others[k][w];
		for (int32_t w = from; w < to; w++)
			words[w] |= vocab->upto[room][w] & ~out[w - from];
	}
}

/* Where a token's first unescaped quote stands, seen from between two characters; -1: none. */
static int
quote_at(const char *bytes, uint32_t len)
{
	for (uint32_t i = 0; i < len; i++)
		if (bytes[i] == '\\')
			i++;
		else if (bytes[i] == '"')
			return (int) i;
	return -1;
}

static bool
build_quotes(Dsv3TokenTable *vocab, const SortItem *items, int32_t n)
{
	SortItem *tails = calloc((size_t) n + 1, sizeof(SortItem));
	SortItem *quoted = calloc((size_t) n + 1, sizeof(SortItem));
	int32_t nt = 0;
	int32_t nq = 0;
	bool ok = tails != NULL && quoted != NULL;

	vocab->quotes = calloc((size_t) n + 1, sizeof(QuoteToken));
	vocab->tails = malloc(((size_t) n + 2) * sizeof(char *));
	vocab->tail_len = malloc((size_t) n + 2);
	vocab->tail_quotes = calloc((size_t) n + 2, 1);
	ok = ok && vocab->quotes != NULL && vocab->tails != NULL && vocab->tail_len != NULL &&
		 vocab->tail_quotes != NULL;
	for (int32_t i = 0; ok && i < n; i++)
	{
		int at = quote_at(items[i].bytes, items[i].len);

		if (memchr(items[i].bytes, '"', items[i].len) != NULL)
			quoted[nq++] = items[i];
		if (at < 0)
			continue;
		if (vocab->nquotes >= 30000)
			continue; /* tails are numbered in 16 bits; the rest is only reached by the general walk */
		vocab->quotes[vocab->nquotes].token = items[i].token;
		vocab->quotes[vocab->nquotes].head = (uint16_t) at;
		vocab->nquotes++;
		if ((uint32_t) at + 1 < items[i].len)
		{
			tails[nt].bytes = items[i].bytes + at + 1;
			tails[nt].len = items[i].len - (uint32_t) at - 1;
			tails[nt++].token = 0;
		}
	}
	if (ok)
	{
		int32_t distinct = 0;

		qsort(tails, (size_t) nt, sizeof(SortItem), compare_item);
		vocab->tails[0] = "";
		vocab->tail_len[0] = 0;
		vocab->ntails = 1;
		for (int32_t i = 0; i < nt; i++)
		{
			if (distinct > 0 && tails[distinct - 1].len == tails[i].len &&
				memcmp(tails[distinct - 1].bytes, tails[i].bytes, tails[i].len) == 0)
				continue;
			tails[distinct] = tails[i];
			tails[distinct++].token = vocab->ntails;
			vocab->tails[vocab->ntails] = (char *) (uintptr_t) tails[distinct - 1].bytes;
			for (uint32_t k = 0; k < tails[i].len; k++)
				vocab->tail_quotes[vocab->ntails] += tails[i].bytes[k] == '"';
			vocab->tail_len[vocab->ntails++] = (uint8_t) tails[distinct - 1].len;
		}
		ok = build_trie(&vocab->tail_trie, tails, distinct, NULL) &&
			 build_trie(&vocab->quoted, quoted, nq, NULL);
		for (int32_t i = 0; ok && i < vocab->nquotes; i++)
		{
			int32_t t = vocab->quotes[i].token;
			const char *tail = vocab->bytes + vocab->offset[t] + vocab->quotes[i].head + 1;
			uint32_t len = vocab->offset[t + 1] - vocab->offset[t] - vocab->quotes[i].head - 1;

			vocab->quotes[i].tail = 0;
			for (int32_t lo = 0, hi = distinct; len > 0 && lo < hi;)
			{
				int32_t m = lo + (hi - lo) / 2;
				SortItem probe = {tail, len, tails[m].token};
				int c = compare_item(&probe, &tails[m]);

				if (c == 0)
				{
					vocab->quotes[i].tail = (int16_t) tails[m].token;
					break;
				}
				if (c < 0)
					hi = m;
				else
					lo = m + 1;
			}
		}
	}
	free(tails);
	free(quoted);
	return ok;
}

Dsv3TokenTable *
dsv3_token_table_create(const Dsv3TokenBytes *tokens, int32_t ntokens, int32_t eos, Dsv3Error *err)
{
	Dsv3TokenTable *vocab;
	size_t total = 0;
	SortItem *items;
	int32_t n = 0;
	bool single[256] = {false};
	bool used[256] = {false};
	bool ok;

	if (ntokens <= 0 || ntokens > 4000000 || eos >= ntokens)
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "token table of %d tokens is not usable", ntokens);
		return NULL;
	}
	for (int32_t i = 0; i < ntokens; i++)
		if (tokens[i].bytes != NULL && !tokens[i].special && i != eos)
			total += tokens[i].len;
	vocab = calloc(1, sizeof(Dsv3TokenTable));
	items = malloc((size_t) ntokens * sizeof(SortItem));
	ok = vocab != NULL && items != NULL && total < UINT32_MAX;
	if (ok)
	{
		pthread_mutex_init(&vocab->lock, NULL);
		vocab->size = ntokens;
		vocab->words = (ntokens + 63) / 64;
		vocab->eos = eos;
		vocab->bytes = malloc(total + 1);
		vocab->offset = calloc((size_t) ntokens + 1, sizeof(uint32_t));
		vocab->same = malloc((size_t) ntokens * sizeof(int32_t));
		ok = vocab->bytes != NULL && vocab->offset != NULL && vocab->same != NULL;
	}
	total = 0;
	for (int32_t i = 0; ok && i < ntokens; i++)
	{
		vocab->offset[i] = (uint32_t) total;
		vocab->same[i] = -1;
		if (tokens[i].bytes == NULL || tokens[i].special || i == eos || tokens[i].len == 0)
			continue;
		memcpy(vocab->bytes + total, tokens[i].bytes, tokens[i].len);
		if (tokens[i].len <= VOCAB_MAX_TOKEN)
		{
			items[n].bytes = vocab->bytes + total;
			items[n].len = tokens[i].len;
			items[n++].token = i;
			for (uint32_t k = 0; k < tokens[i].len; k++)
				used[(unsigned char) tokens[i].bytes[k]] = true;
			if (tokens[i].len == 1)
				single[(unsigned char) tokens[i].bytes[0]] = true;
			if ((int32_t) tokens[i].len > vocab->longest)
				vocab->longest = (int32_t) tokens[i].len;
		}
		total += tokens[i].len;
	}
	if (ok)
	{
		vocab->offset[ntokens] = (uint32_t) total;
		qsort(items, (size_t) n, sizeof(SortItem), compare_item);
		ok = build_trie(&vocab->all, items, n, vocab->same) && mark_text(vocab) &&
			 build_quotes(vocab, items, n);
	}
	free(items);
	if (!ok)
	{
		dsv3_token_table_free(vocab);
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory while preparing the vocabulary");
		return NULL;
	}
	/* The first byte of a character above U+3FFFF may be missing altogether: then nothing can begin one. */
	for (int b = 0x20; b < 0xF5; b++)
		if (!single[b] && (b < 0x7F || b >= 0xC2 || (b >= 0x80 && b < 0xC0)) && (b < 0xF1 || used[b]))
		{
			dsv3_token_table_free(vocab);
			dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "tokenizer has no token for the single byte 0x%02X",
					   b);
			dsv3_error_hint(err, "Structured output needs a byte-level tokenizer.");
			return NULL;
		}
	return vocab;
}

void
dsv3_token_table_free(Dsv3TokenTable *vocab)
{
	if (vocab == NULL)
		return;
	while (vocab->cache != NULL)
	{
		Lex *next = vocab->cache->next_cached;

		dsv3_lex_masks_free(vocab->cache);
		dsv3_lex_free(vocab->cache);
		vocab->cache = next;
	}
	free(vocab->bytes);
	free(vocab->offset);
	free(vocab->same);
	free_trie(&vocab->all);
	free_trie(&vocab->quoted);
	free_trie(&vocab->tail_trie);
	free(vocab->path);
	free(vocab->mid);
	free(vocab->height);
	free(vocab->chars);
	free(vocab->order_chars);
	free(vocab->token_kinds);
	free(vocab->has[0]);
	free(vocab->longs);
	free(vocab->scratch);
	free(vocab->tails);
	free(vocab->tail_len);
	free(vocab->tail_quotes);
	free(vocab->quotes);
	pthread_mutex_destroy(&vocab->lock);
	free(vocab);
}

int32_t
dsv3_token_table_eos(const Dsv3TokenTable *vocab)
{
	return vocab->eos;
}

const char *
dsv3_token_table_bytes(const Dsv3TokenTable *vocab, int32_t token, size_t *len)
{
	*len = vocab->offset[token + 1] - vocab->offset[token];
	return vocab->bytes + vocab->offset[token];
}

int32_t
dsv3_token_table_size(const Dsv3TokenTable *vocab)
{
	return vocab->size;
}

/*
 * Fewest tokens for text[0..len), by dynamic programming from the end over a window of the longest token. Every byte of
 * JSON text is a token, so there is always a spelling.
 */
int32_t
dsv3_vocab_cost(const Dsv3TokenTable *vocab, const char *text, size_t len)
{
	int32_t window[VOCAB_MAX_TOKEN + 2];
	int32_t size = VOCAB_MAX_TOKEN + 2;
	const VocabNode *nodes = vocab->all.nodes;

	if (len == 0)
		return 0;
	window[len % (size_t) size] = 0;
	for (size_t i = len; i-- > 0;)
	{
		int32_t best = 1 + window[(i + 1) % (size_t) size];
		int32_t at = vocab->all.first[(uint8_t) text[i]];
		int32_t end = vocab->all.n;

		for (size_t k = i; k < len && at < end; k++)
		{
			/* Among the children at this depth, find the byte. */
			while (at < end && nodes[at].byte != (uint8_t) text[k])
				at = nodes[at].skip;
			if (at >= end)
				break;
			if (nodes[at].token >= 0 && k > i)
			{
				int32_t cost = 1 + window[(k + 1) % (size_t) size];

				if (cost < best)
					best = cost;
			}
			end = nodes[at].skip;
			at++;
		}
		window[i % (size_t) size] = best;
	}
	return window[0];
}

int32_t
dsv3_vocab_lex_cost(Dsv3TokenTable *vocab, Lex *lex, int32_t state, char close)
{
	int32_t cost;
	char small[256];
	char *text = small;
	size_t n = 0;
	size_t len = (size_t) lex->dist[state] + (close != 0);

	pthread_mutex_lock(&vocab->lock);
	if (lex->cost == NULL)
	{
		lex->cost = malloc((size_t) lex->n * sizeof(int32_t));
		if (lex->cost != NULL)
			memset(lex->cost, 0xff, (size_t) lex->n * sizeof(int32_t));
	}
	if (lex->cost != NULL && lex->cost[state] >= 0)
	{
		cost = lex->cost[state];
		pthread_mutex_unlock(&vocab->lock);
		return cost;
	}
	if (len > sizeof(small))
		text = malloc(len);
	if (text == NULL)
		cost = (int32_t) len; /* every byte a token of its own: an upper bound */
	else
	{
		int32_t s = state;

		while (lex->dist[s] > 0)
		{
			text[n++] = (char) lex->next[s];
			s = lex_step(lex, s, lex->next[s]);
		}
		if (close != 0)
			text[n++] = close;
		cost = dsv3_vocab_cost(vocab, text, n);
		if (text != small)
			free(text);
	}
	if (lex->cost != NULL)
		lex->cost[state] = cost;
	pthread_mutex_unlock(&vocab->lock);
	return cost;
}

/* ---- shared lexemes ---- */

static void
drop_lex(Lex *lex)
{
	if (--lex->refs > 0)
		return;
	dsv3_lex_masks_free(lex);
	dsv3_lex_free(lex);
}

Lex *
dsv3_vocab_find_lex(Dsv3TokenTable *vocab, const char *key)
{
	uint32_t hash = dsv3_gr_hash(key, strlen(key));
	Lex *lex;

	pthread_mutex_lock(&vocab->lock);
	for (lex = vocab->cache; lex != NULL; lex = lex->next_cached)
		if (lex->cache_hash == hash && strcmp(lex->cache_key, key) == 0)
		{
			lex->refs++;
			break;
		}
	pthread_mutex_unlock(&vocab->lock);
	return lex;
}

Lex *
dsv3_vocab_store_lex(Dsv3TokenTable *vocab, const char *key, Lex *lex)
{
	Lex **link;

	pthread_mutex_lock(&vocab->lock);
	lex->refs++;
	if (lex->cache_key == NULL && (lex->cache_key = strdup(key)) != NULL)
	{
		lex->cache_hash = dsv3_gr_hash(key, strlen(key));
		lex->refs++;
		lex->next_cached = vocab->cache;
		vocab->cache = lex;
		vocab->ncache++;
		vocab->cache_bytes += lex->arena.used;
	}
	/* Over the limit: forget the oldest that nobody else holds. */
	while (vocab->cache_bytes > CACHE_MAX_BYTES || vocab->ncache > 4000)
	{
		Lex **oldest = NULL;

		for (link = &vocab->cache; *link != NULL; link = &(*link)->next_cached)
			if ((*link)->refs == 1)
				oldest = link;
		if (oldest == NULL)
			break;
		{
			Lex *gone = *oldest;

			*oldest = gone->next_cached;
			vocab->ncache--;
			vocab->cache_bytes -= gone->arena.used;
			drop_lex(gone);
		}
	}
	pthread_mutex_unlock(&vocab->lock);
	return lex;
}

void
dsv3_vocab_set_any(Dsv3TokenTable *vocab, Lex *lex)
{
	pthread_mutex_lock(&vocab->lock);
	if (vocab->any_text == NULL)
	{
		lex->refs++;
		vocab->any_text = lex;
	}
	pthread_mutex_unlock(&vocab->lock);
}

void
dsv3_vocab_hold_lex(Dsv3TokenTable *vocab, Lex *lex)
{
	pthread_mutex_lock(&vocab->lock);
	lex->refs++;
	pthread_mutex_unlock(&vocab->lock);
}

void
dsv3_vocab_release_lex(Dsv3TokenTable *vocab, Lex *lex)
{
	pthread_mutex_lock(&vocab->lock);
	drop_lex(lex);
	pthread_mutex_unlock(&vocab->lock);
}
