/*
 * kv_cache.c
 *	  Blocks, their holders and their names; see kv_cache.h.
 *
 * A block is in one of four states: free (on the stack), held, or named and held by nobody, then in one of two lists in the
 * order of giving back, the pinned ones in a list of their own. Named blocks are also in a hash table; a name is the output of a
 * keyed hash, so that its first bytes spread over the buckets whatever the requests are.
 */
#include "engine/kv_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct Block
{
	Dsv3BlockName name; /* of a named one */
	bool named;
	int holders;
	int pins;
	int32_t in_bucket; /* next in the bucket of its name */
	int32_t older;     /* neighbours in its list, if it is in one */
	int32_t newer;
} Block;

typedef struct List
{
	int32_t oldest;
	int32_t newest;
	int count;
} List;

struct Dsv3KvCache
{
	int n_blocks;
	Block *blocks;
	int32_t *free; /* stack */
	int n_free;
	List idle;        /* named, held by nobody, without a pin */
	List idle_pinned; /* named, held by nobody, pinned */
	int32_t *buckets;
	uint64_t bucket_mask;
	Dsv3KvCounts counts;
};

Dsv3KvCache *
dsv3_kv_cache_open(int n_blocks, Dsv3Error *err)
{
	Dsv3KvCache *cache = calloc(1, sizeof(*cache));
	uint64_t n_buckets = 64;

	while (n_buckets < (uint64_t) n_blocks)
		n_buckets *= 2;
	if (cache)
	{
		cache->blocks = calloc((size_t) n_blocks, sizeof(*cache->blocks));
		cache->free = malloc((size_t) n_blocks * sizeof(*cache->free));
		cache->buckets = malloc(n_buckets * sizeof(*cache->buckets));
	}
	if (!cache || !cache->blocks || !cache->free || !cache->buckets)
	{
		dsv3_kv_cache_close(cache);
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a table of %d cache blocks", n_blocks);
		return NULL;
	}
	cache->n_blocks = n_blocks;
	cache->bucket_mask = n_buckets - 1;
	for (uint64_t i = 0; i < n_buckets; i++)
		cache->buckets[i] = DSV3_NO_BLOCK;
	cache->idle = cache->idle_pinned = (List){DSV3_NO_BLOCK, DSV3_NO_BLOCK, 0};
	/* Low numbers on top: a small load touches a small part of the cache's memory. */
	for (int i = n_blocks - 1; i >= 0; i--)
		cache->free[cache->n_free++] = i;
	return cache;
}

void
dsv3_kv_cache_close(Dsv3KvCache *cache)
{
	if (cache == NULL)
		return;
	free(cache->blocks);
	free(cache->free);
	free(cache->buckets);
	free(cache);
}

/* -- lists and buckets -- */

static List *
list_of(Dsv3KvCache *cache, const Block *block)
{
	return block->pins > 0 ? &cache->idle_pinned : &cache->idle;
}

static void
enter_list(Dsv3KvCache *cache, int32_t number)
{
	Block *block = &cache->blocks[number];
	List *list = list_of(cache, block);

	block->older = list->newest;
	block->newer = DSV3_NO_BLOCK;
	if (list->newest != DSV3_NO_BLOCK)
		cache->blocks[list->newest].newer = number;
	else
		list->oldest = number;
	list->newest = number;
	list->count++;
}

static void
leave_list(Dsv3KvCache *cache, int32_t number)
{
	Block *block = &cache->blocks[number];
	List *list = list_of(cache, block);

	if (block->older != DSV3_NO_BLOCK)
		cache->blocks[block->older].newer = block->newer;
	else
		list->oldest = block->newer;
	if (block->newer != DSV3_NO_BLOCK)
		cache->blocks[block->newer].older = block->older;
	else
		list->newest = block->older;
	list->count--;
}

static int32_t *
bucket_of(const Dsv3KvCache *cache, const Dsv3BlockName *name)
{
	uint64_t hash;

	memcpy(&hash, name->bytes, sizeof(hash));
	return &cache->buckets[hash & cache->bucket_mask];
}

/* Take the name and the pins of a block away. */
static void
unname(Dsv3KvCache *cache, int32_t number)
{
	Block *block = &cache->blocks[number];
	int32_t *at = bucket_of(cache, &block->name);

	while (*at != number)
		at = &cache->blocks[*at].in_bucket;
	*at = block->in_bucket;
	if (block->holders == 0)
		leave_list(cache, number);
	cache->counts.pinned -= block->pins > 0;
	cache->counts.cached--;
	block->named = false;
	block->pins = 0;
}

/* -- taking and giving back -- */

int
dsv3_kv_cache_room(const Dsv3KvCache *cache, bool last_resort)
{
	return cache->n_free + cache->idle.count + (last_resort ? cache->idle_pinned.count : 0);
}

int32_t
dsv3_kv_cache_take(Dsv3KvCache *cache)
{
	int32_t number;

	if (cache->n_free > 0)
		number = cache->free[--cache->n_free];
	else
	{
		number = cache->idle.count > 0 ? cache->idle.oldest : cache->idle_pinned.oldest;
		assert(number != DSV3_NO_BLOCK);
		unname(cache, number);
		cache->counts.evicted++;
	}
	cache->blocks[number].holders = 1;
	cache->counts.held++;
	return number;
}

void
dsv3_kv_cache_hold(Dsv3KvCache *cache, int32_t number)
{
	Block *block = &cache->blocks[number];

	if (block->holders == 0)
	{
		leave_list(cache, number);
		cache->counts.held++;
	}
	block->holders++;
}

void
dsv3_kv_cache_release(Dsv3KvCache *cache, int32_t number)
{
	Block *block = &cache->blocks[number];

	assert(block->holders > 0);
	if (--block->holders > 0)
		return;
	cache->counts.held--;
	if (block->named)
		enter_list(cache, number);
	else
		cache->free[cache->n_free++] = number;
}

int
dsv3_kv_cache_holders(const Dsv3KvCache *cache, int32_t number)
{
	return cache->blocks[number].holders;
}

bool
dsv3_kv_cache_is_kept(const Dsv3KvCache *cache, int32_t number, bool last_resort)
{
	const Block *block = &cache->blocks[number];

	return block->holders > 0 || (block->pins > 0 && !last_resort);
}

/* -- names -- */

int32_t
dsv3_kv_cache_find(const Dsv3KvCache *cache, const Dsv3BlockName *name)
{
	int32_t number = *bucket_of(cache, name);

	while (number != DSV3_NO_BLOCK &&
		   memcmp(cache->blocks[number].name.bytes, name->bytes, sizeof(name->bytes)) != 0)
		number = cache->blocks[number].in_bucket;
	return number;
}

void
dsv3_kv_cache_publish(Dsv3KvCache *cache, int32_t number, const Dsv3BlockName *name)
{
	Block *block = &cache->blocks[number];
	int32_t *bucket = bucket_of(cache, name);

	assert(block->holders > 0 && !block->named);
	block->name = *name;
	block->named = true;
	block->in_bucket = *bucket;
	*bucket = number;
	cache->counts.cached++;
}

const Dsv3BlockName *
dsv3_kv_cache_name(const Dsv3KvCache *cache, int32_t number)
{
	return cache->blocks[number].named ? &cache->blocks[number].name : NULL;
}

/* Change the pins of a block, which may change its list. */
static void
set_pins(Dsv3KvCache *cache, int32_t number, int pins)
{
	Block *block = &cache->blocks[number];

	if (block->holders == 0)
		leave_list(cache, number);
	cache->counts.pinned += (pins > 0) - (block->pins > 0);
	block->pins = pins;
	if (block->holders == 0)
		enter_list(cache, number);
}

void
dsv3_kv_cache_pin(Dsv3KvCache *cache, int32_t number)
{
	assert(cache->blocks[number].named);
	set_pins(cache, number, cache->blocks[number].pins + 1);
}

bool
dsv3_kv_cache_unpin(Dsv3KvCache *cache, int32_t number)
{
	if (cache->blocks[number].pins == 0)
		return false;
	set_pins(cache, number, cache->blocks[number].pins - 1);
	return true;
}

void
dsv3_kv_cache_drop(Dsv3KvCache *cache, int32_t number)
{
	unname(cache, number);
	if (cache->blocks[number].holders == 0)
		cache->free[cache->n_free++] = number;
}

void
dsv3_kv_cache_forget(Dsv3KvCache *cache)
{
	for (int32_t number = 0; number < cache->n_blocks; number++)
	{
		if (cache->blocks[number].named)
			dsv3_kv_cache_drop(cache, number);
	}
}

Dsv3KvCounts
dsv3_kv_cache_counts(const Dsv3KvCache *cache)
{
	return cache->counts;
}
