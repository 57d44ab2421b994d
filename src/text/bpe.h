/*
 * bpe.h
 *	  Byte-pair encoding over token ids, and the vocabulary it works with.
 *
 * A merge is a pair of ids, its rank and the id it makes; both file formats come down to that (tiktoken's "lowest rank of
 * the joined bytes" is the same with every split of a token as a pair). Immutable once filled.
 */
#ifndef DSV3_BPE_H
#define DSV3_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "text/tokenizer.h"

#define DSV3_MAX_TOKEN_ID    (1 << 22) /* ids are below this */
#define DSV3_MAX_TOKEN_BYTES 65536

/* Bytes of every id, and the way back for ordinary tokens. */
typedef struct Dsv3Vocab
{
	uint8_t *arena;
	size_t arena_len;
	size_t arena_capacity;
	uint32_t *offset; /* by id; UINT32_MAX where the id has no bytes */
	uint32_t *length;
	int32_t size; /* ids below this may have bytes */
	int32_t capacity;
	int32_t *slots; /* hash table of ids by bytes, -1 where free */
	size_t n_slots; /* a power of two, or 0 */
	size_t n_hashed;
} Dsv3Vocab;

extern void dsv3_vocab_free(Dsv3Vocab *vocab);

/* Give an id its bytes; the id must not have any yet (checked: XX001). hashed: dsv3_vocab_find finds it, and the bytes
 * must be new. */
extern bool
dsv3_vocab_set(Dsv3Vocab *vocab, int64_t id, const void *bytes, size_t len, bool hashed, Dsv3Error *err);

/* The id with these bytes, or -1. */
extern int32_t dsv3_vocab_find(const Dsv3Vocab *vocab, const void *bytes, size_t len);

static inline const uint8_t *
dsv3_vocab_bytes(const Dsv3Vocab *vocab, int32_t id, size_t *len)
{
	if (id < 0 || id >= vocab->size || vocab->offset[id] == UINT32_MAX)
		return NULL;
	*len = vocab->length[id];
	return vocab->arena + vocab->offset[id];
}

typedef struct Dsv3Merge
{
	uint64_t pair; /* left id << 32 | right id; UINT64_MAX where free */
	uint32_t rank;
	int32_t id;
} Dsv3Merge;

typedef struct Dsv3Bpe
{
	Dsv3Vocab vocab;
	Dsv3Merge *merges; /* hash table */
	size_t n_slots;    /* a power of two, or 0 */
	size_t n_merges;
	int32_t byte_id[256]; /* the token of a single byte, or -1: such a byte vanishes, as in the tokenizers */
	bool whole_first;     /* a piece that is a token is that token, whatever the merges say */
} Dsv3Bpe;

extern void dsv3_bpe_init(Dsv3Bpe *bpe);
extern void dsv3_bpe_free(Dsv3Bpe *bpe);

/* Add a merge; *duplicate tells that the pair was there already (nothing is changed then). False on memory only. */
extern bool
dsv3_bpe_add_merge(Dsv3Bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id, bool *duplicate);

/* Working memory of one thread; zero-initialise, free with dsv3_bpe_state_free. */
typedef struct Dsv3BpeState
{
	int32_t *symbols;
	uint32_t *rank; /* of the pair that begins at a symbol */
	int32_t *next;
	int32_t *previous;
	uint64_t *heap; /* rank << 32 | position */
	size_t capacity;
	size_t heap_capacity;
	struct Dsv3WordCache *cache;
} Dsv3BpeState;

extern void dsv3_bpe_state_free(Dsv3BpeState *state);

/* Remember short words from now on; worth it for long texts. Without memory the state just does not remember. */
extern void dsv3_bpe_state_remember(Dsv3BpeState *state);

/* Append the ids of one piece; max_count bounds out->count (SIZE_MAX: no bound, beyond it 54000). */
extern bool dsv3_bpe_encode(const Dsv3Bpe *bpe, Dsv3BpeState *state, const uint8_t *piece, size_t len,
							size_t max_count, Dsv3Tokens *out, Dsv3Error *err);

#endif /* DSV3_BPE_H */
