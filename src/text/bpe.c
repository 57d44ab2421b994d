/*
 * bpe.c
 *	  Byte-pair encoding; see bpe.h.
 *
 * A piece starts as its bytes' tokens. The pair of neighbours with the lowest rank, the leftmost of equals, is merged until
 * no pair has a rank. Short pieces do that by scanning; long ones keep a linked list of symbols and a heap of pairs, so that
 * a megabyte without a break costs n log n. A heap entry is stale when the pair at its position no longer has its rank.
 */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

#define NO_RANK    UINT32_MAX
#define SHORT_LEN  32 /* symbols that are merged by scanning */
#define WORD_BYTES 24 /* what the cache remembers */
#define WORD_IDS   6
#define CACHE_SIZE 8192

typedef struct CachedWord
{
	uint8_t len; /* 0: empty */
	uint8_t n_ids;
	uint8_t bytes[WORD_BYTES];
	int32_t ids[WORD_IDS];
} CachedWord;

typedef struct Dsv3WordCache
{
	CachedWord words[CACHE_SIZE];
} Dsv3WordCache;

static uint64_t
hash_bytes(const uint8_t *p, size_t len)
{
	uint64_t h = len * 0x9E3779B97F4A7C15u;

	while (len >= 8)
	{
		uint64_t w;

		memcpy(&w, p, 8);
		h = (h ^ w) * 0xBF58476D1CE4E5B9u;
		h ^= h >> 29;
		p += 8;
		len -= 8;
	}
	if (len > 0)
	{
		uint64_t w = 0;

		memcpy(&w, p, len);
		h = (h ^ w) * 0xBF58476D1CE4E5B9u;
		h ^= h >> 29;
	}
	h *= 0x94D049BB133111EBu;
	return h ^ h >> 32;
}

static uint64_t
hash_pair(uint64_t pair)
{
	pair *= 0x9E3779B97F4A7C15u;
	pair ^= pair >> 32;
	return pair * 0xBF58476D1CE4E5B9u >> 20;
}

/* ---- vocabulary ---- */

void
dsv3_vocab_free(Dsv3Vocab *vocab)
{
	free(vocab->arena);
	free(vocab->offset);
	free(vocab->length);
	free(vocab->slots);
	memset(vocab, 0, sizeof(*vocab));
}

static void
hash_insert(Dsv3Vocab *vocab, int32_t id)
{
	size_t mask = vocab->n_slots - 1;
	size_t slot = hash_bytes(vocab->arena + vocab->offset[id], vocab->length[id]) & mask;

	while (vocab->slots[slot] >= 0)
		slot = (slot + 1) & mask;
	vocab->slots[slot] = id;
}

static bool
grow_slots(Dsv3Vocab *vocab)
{
	int32_t *old = vocab->slots;
	size_t n_old = vocab->n_slots, n = n_old ? n_old * 2 : 1024;
	int32_t *slots = malloc(n * sizeof(*slots));

	if (slots == NULL)
		return false;
	memset(slots, 0xFF, n * sizeof(*slots));
	vocab->slots = slots;
	vocab->n_slots = n;
	for (size_t i = 0; i < n_old; i++)
	{
		if (old[i] >= 0)
			hash_insert(vocab, old[i]);
	}
	free(old);
	return true;
}

int32_t
dsv3_vocab_find(const Dsv3Vocab *vocab, const void *bytes, size_t len)
{
	size_t mask = vocab->n_slots - 1, slot;

	if (vocab->n_slots == 0)
		return -1;
	for (slot = hash_bytes(bytes, len) & mask; vocab->slots[slot] >= 0; slot = (slot + 1) & mask)
	{
		int32_t id = vocab->slots[slot];

		if (vocab->length[id] == len && memcmp(vocab->arena + vocab->offset[id], bytes, len) == 0)
			return id;
	}
	return -1;
}

static bool
reserve_id(Dsv3Vocab *vocab, int32_t id)
{
	if (id >= vocab->capacity)
	{
		int32_t capacity = vocab->capacity ? vocab->capacity : 1024;
		uint32_t *offset, *length;

		while (capacity <= id)
			capacity *= 2;
		offset = realloc(vocab->offset, (size_t) capacity * sizeof(*offset));
		if (offset == NULL)
			return false;
		vocab->offset = offset;
		length = realloc(vocab->length, (size_t) capacity * sizeof(*length));
		if (length == NULL)
			return false;
		vocab->length = length;
		for (int32_t i = vocab->capacity; i < capacity; i++)
		{
			offset[i] = UINT32_MAX;
			length[i] = 0;
		}
		vocab->capacity = capacity;
	}
	if (id >= vocab->size)
		vocab->size = id + 1;
	return true;
}

bool
dsv3_vocab_set(Dsv3Vocab *vocab, int64_t id, const void *bytes, size_t len, bool hashed, Dsv3Error *err)
{
	if (id < 0 || id >= DSV3_MAX_TOKEN_ID)
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "token id %lld is outside 0 to %d", (long long) id,
						  DSV3_MAX_TOKEN_ID - 1);
	if (len == 0 || len > DSV3_MAX_TOKEN_BYTES)
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "token %lld has %zu bytes (1 to %d are possible)",
						  (long long) id, len, DSV3_MAX_TOKEN_BYTES);
	if (id < vocab->size && vocab->offset[id] != UINT32_MAX)
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "two tokens have the id %lld", (long long) id);
	if (vocab->arena_len + len >= UINT32_MAX)
		return dsv3_error(err, DSV3_ERR_TOO_LARGE, "the tokens have more than 4 GiB of text");
	if (hashed && dsv3_vocab_find(vocab, bytes, len) >= 0)
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "tokens %d and %lld have the same bytes",
						  dsv3_vocab_find(vocab, bytes, len), (long long) id);
	if (vocab->arena_len + len > vocab->arena_capacity)
	{
		size_t capacity = vocab->arena_capacity ? vocab->arena_capacity * 2 : 65536;
		uint8_t *arena;

		while (capacity < vocab->arena_len + len)
			capacity *= 2;
		arena = realloc(vocab->arena, capacity);
		if (arena == NULL)
			return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		vocab->arena = arena;
		vocab->arena_capacity = capacity;
	}
	if (!reserve_id(vocab, (int32_t) id) ||
		(hashed && vocab->n_hashed * 2 >= vocab->n_slots && !grow_slots(vocab)))
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	memcpy(vocab->arena + vocab->arena_len, bytes, len);
	vocab->offset[id] = (uint32_t) vocab->arena_len;
	vocab->length[id] = (uint32_t) len;
	vocab->arena_len += len;
	if (hashed)
	{
		hash_insert(vocab, (int32_t) id);
		vocab->n_hashed++;
	}
	return true;
}

/* ---- merges ---- */

void
dsv3_bpe_init(Dsv3Bpe *bpe)
{
	memset(bpe, 0, sizeof(*bpe));
	for (int i = 0; i < 256; i++)
		bpe->byte_id[i] = -1;
}

void
dsv3_bpe_free(Dsv3Bpe *bpe)
{
	dsv3_vocab_free(&bpe->vocab);
	free(bpe->merges);
	bpe->merges = NULL;
	bpe->n_slots = bpe->n_merges = 0;
}

/* The slot of a pair, or the free slot where it belongs. The table is never full. */
static Dsv3Merge *
find_slot(Dsv3Merge *merges, size_t n_slots, uint64_t pair)
{
	size_t mask = n_slots - 1, slot = hash_pair(pair) & mask;

	while (merges[slot].pair != UINT64_MAX && merges[slot].pair != pair)
		slot = (slot + 1) & mask;
	return &merges[slot];
}

bool
dsv3_bpe_add_merge(Dsv3Bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id, bool *duplicate)
{
	uint64_t pair = (uint64_t) (uint32_t) left << 32 | (uint32_t) right;
	Dsv3Merge *slot;

	if (bpe->n_merges * 2 >= bpe->n_slots)
	{
		size_t n = bpe->n_slots ? bpe->n_slots * 2 : 1024;
		Dsv3Merge *merges = malloc(n * sizeof(*merges));

		if (merges == NULL)
			return false;
		memset(merges, 0xFF, n * sizeof(*merges));
		for (size_t i = 0; i < bpe->n_slots; i++)
		{
			if (bpe->merges[i].pair != UINT64_MAX)
				*find_slot(merges, n, bpe->merges[i].pair) = bpe->merges[i];
		}
		free(bpe->merges);
		bpe->merges = merges;
		bpe->n_slots = n;
	}
	slot = find_slot(bpe->merges, bpe->n_slots, pair);
	*duplicate = slot->pair == pair;
	if (!*duplicate)
	{
		*slot = (Dsv3Merge){pair, rank, id};
		bpe->n_merges++;
	}
	return true;
}

/* Rank of a pair, NO_RANK when it does not merge; *id is what it makes. */
static inline uint32_t
pair_rank(const Dsv3Bpe *bpe, int32_t left, int32_t right, int32_t *id)
{
	uint64_t pair = (uint64_t) (uint32_t) left << 32 | (uint32_t) right;
	const Dsv3Merge *slot;

	if (bpe->n_slots == 0)
		return NO_RANK;
	slot = find_slot(bpe->merges, bpe->n_slots, pair);
	if (slot->pair != pair)
		return NO_RANK;
	*id = slot->id;
	return slot->rank;
}

/* ---- encoding ---- */

void
dsv3_bpe_state_free(Dsv3BpeState *state)
{
	free(state->symbols);
	free(state->rank);
	free(state->next);
	free(state->previous);
	free(state->heap);
	free(state->cache);
	memset(state, 0, sizeof(*state));
}

void
dsv3_bpe_state_remember(Dsv3BpeState *state)
{
	if (state->cache == NULL)
		state->cache = calloc(1, sizeof(*state->cache));
}

/* Merge a short piece in place; returns the number of symbols left. */
static int
merge_short(const Dsv3Bpe *bpe, int32_t *symbols, int n)
{
	uint32_t rank[SHORT_LEN];
	int32_t made[SHORT_LEN];

	for (int i = 0; i + 1 < n; i++)
		rank[i] = pair_rank(bpe, symbols[i], symbols[i + 1], &made[i]);
	while (n > 1)
	{
		int best = 0;

		for (int i = 1; i + 1 < n; i++)
		{
			if (rank[i] < rank[best])
				best = i;
		}
		if (rank[best] == NO_RANK)
			break;
		symbols[best] = made[best];
		n--;
		memmove(symbols + best + 1, symbols + best + 2, (size_t) (n - best - 1) * sizeof(*symbols));
		if (best + 1 < n)
		{
			memmove(rank + best + 1, rank + best + 2, (size_t) (n - best - 2) * sizeof(*rank));
			memmove(made + best + 1, made + best + 2, (size_t) (n - best - 2) * sizeof(*made));
			rank[best] = pair_rank(bpe, symbols[best], symbols[best + 1], &made[best]);
		}
		if (best > 0)
			rank[best - 1] = pair_rank(bpe, symbols[best - 1], symbols[best], &made[best - 1]);
	}
	return n;
}

static bool
reserve(Dsv3BpeState *state, size_t n)
{
	if (n > state->capacity)
	{
		size_t capacity = state->capacity ? state->capacity : 1024;

		while (capacity < n)
			capacity *= 2;
		free(state->symbols);
		free(state->rank);
		free(state->next);
		free(state->previous);
		free(state->heap);
		/* each merge takes one entry out and puts at most two in, so 2n entries are enough */
		state->heap_capacity = 2 * capacity;
		state->symbols = malloc(capacity * sizeof(*state->symbols));
		state->rank = malloc(capacity * sizeof(*state->rank));
		state->next = malloc(capacity * sizeof(*state->next));
		state->previous = malloc(capacity * sizeof(*state->previous));
		state->heap = malloc(state->heap_capacity * sizeof(*state->heap));
		state->capacity = capacity;
		if (!state->symbols || !state->rank || !state->next || !state->previous || !state->heap)
		{
			state->capacity = 0;
			return false;
		}
	}
	return true;
}

static void
sift_down(uint64_t *heap, size_t n, size_t i)
{
	uint64_t item = heap[i];

	for (;;)
	{
		size_t child = 2 * i + 1;

		if (child >= n)
			break;
		if (child + 1 < n && heap[child + 1] < heap[child])
			child++;
		if (heap[child] >= item)
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = item;
}

static void
push_heap(uint64_t *heap, size_t *n, uint64_t item)
{
	size_t i = (*n)++;

	while (i > 0 && heap[(i - 1) / 2] > item)
	{
		heap[i] = heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	heap[i] = item;
}

/* Recompute the pair that begins at symbol i and queue it. */
static void
requeue(const Dsv3Bpe *bpe, Dsv3BpeState *state, size_t *n_heap, int32_t i)
{
	int32_t made;

	state->rank[i] = state->next[i] < 0
						 ? NO_RANK
						 : pair_rank(bpe, state->symbols[i], state->symbols[state->next[i]], &made);
	if (state->rank[i] != NO_RANK)
		push_heap(state->heap, n_heap, (uint64_t) state->rank[i] << 32 | (uint32_t) i);
}

/* Merge the n symbols in state->symbols; the survivors are linked from symbol 0 by state->next. */
static void
merge_long(const Dsv3Bpe *bpe, Dsv3BpeState *state, int32_t n)
{
	size_t n_heap = 0;
	int32_t made = -1;

	for (int32_t i = 0; i < n; i++)
	{
		state->next[i] = i + 1 < n ? i + 1 : -1;
		state->previous[i] = i - 1;
		state->rank[i] =
			i + 1 < n ? pair_rank(bpe, state->symbols[i], state->symbols[i + 1], &made) : NO_RANK;
		if (state->rank[i] != NO_RANK)
			state->heap[n_heap++] = (uint64_t) state->rank[i] << 32 | (uint32_t) i;
	}
	for (size_t i = n_heap / 2; i-- > 0;)
		sift_down(state->heap, n_heap, i);
	while (n_heap > 0)
	{
		uint32_t rank = (uint32_t) (state->heap[0] >> 32);
		int32_t i = (int32_t) (uint32_t) state->heap[0], gone;

		state->heap[0] = state->heap[--n_heap];
		if (n_heap > 0)
			sift_down(state->heap, n_heap, 0);
		if (state->rank[i] != rank)
			continue;
		gone = state->next[i];
		pair_rank(bpe, state->symbols[i], state->symbols[gone], &made);
		state->symbols[i] = made;
		state->next[i] = state->next[gone];
		if (state->next[i] >= 0)
			state->previous[state->next[i]] = i;
		state->rank[gone] = NO_RANK;
		requeue(bpe, state, &n_heap, i);
		if (state->previous[i] >= 0)
			requeue(bpe, state, &n_heap, state->previous[i]);
	}
}

static bool
append(Dsv3Tokens *out, const int32_t *ids, size_t n, size_t max_count, Dsv3Error *err)
{
	if (n > max_count || out->count > max_count - n)
	{
		dsv3_error(err, DSV3_ERR_TOO_LARGE, "the text has more than the allowed number of tokens");
		return false;
	}
	if (out->count + n > out->capacity)
	{
		size_t capacity = out->capacity ? out->capacity * 2 : 64;
		int32_t *grown;

		while (capacity < out->count + n)
			capacity *= 2;
		grown = realloc(out->ids, capacity * sizeof(*grown));
		if (grown == NULL)
			return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		out->ids = grown;
		out->capacity = capacity;
	}
	memcpy(out->ids + out->count, ids, n * sizeof(*ids));
	out->count += n;
	return true;
}

static bool
encode_long(const Dsv3Bpe *bpe, Dsv3BpeState *state, const uint8_t *piece, size_t len, size_t max_count,
			Dsv3Tokens *out, Dsv3Error *err)
{
	int32_t n = 0;

	if (!reserve(state, len))
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	for (size_t i = 0; i < len; i++)
	{
		if (bpe->byte_id[piece[i]] >= 0)
			state->symbols[n++] = bpe->byte_id[piece[i]];
	}
	if (n == 0)
		return true;
	merge_long(bpe, state, n);
	for (int32_t i = 0; i >= 0; i = state->next[i])
	{
		if (!append(out, &state->symbols[i], 1, max_count, err))
			return false;
	}
	return true;
}

bool
dsv3_bpe_encode(const Dsv3Bpe *bpe, Dsv3BpeState *state, const uint8_t *piece, size_t len, size_t max_count,
				Dsv3Tokens *out, Dsv3Error *err)
{
	int32_t symbols[SHORT_LEN];
	CachedWord *word = NULL;
	int n = 0;

	if (state->cache != NULL && len <= WORD_BYTES && len > 1)
	{
		word = &state->cache->words[hash_bytes(piece, len) % CACHE_SIZE];
		if (word->len == len && memcmp(word->bytes, piece, len) == 0)
			return append(out, word->ids, word->n_ids, max_count, err);
	}
	if (bpe->whole_first)
	{
		int32_t id = dsv3_vocab_find(&bpe->vocab, piece, len);

		if (id >= 0)
			return append(out, &id, 1, max_count, err);
	}
	if (len > SHORT_LEN)
		return encode_long(bpe, state, piece, len, max_count, out, err);
	for (size_t i = 0; i < len; i++)
	{
		if (bpe->byte_id[piece[i]] >= 0)
			symbols[n++] = bpe->byte_id[piece[i]];
	}
	n = merge_short(bpe, symbols, n);
	if (word != NULL && n <= WORD_IDS)
	{
		word->len = (uint8_t) len;
		word->n_ids = (uint8_t) n;
		memcpy(word->bytes, piece, len);
		memcpy(word->ids, symbols, (size_t) n * sizeof(*symbols));
	}
	return append(out, symbols, (size_t) n, max_count, err);
}
