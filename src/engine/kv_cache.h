/*
 * kv_cache.h
 *	  Who holds which block of the cache, and which blocks can be found again by what is in them.
 *
 * A block is taken, filled, and given back. Between that it may get a name: then others can find it and hold it as well, and when
 * nobody holds it any more it stays where it is until its memory is needed, the one given back longest ago first. A named
 * block is never written again. Names are made by prefix_name.h, so that equal names mean equal rows.
 *
 * A pin keeps a named block from being given up for others, as long as there is any other way. It belongs to the block: it is
 * gone when the block is.
 *
 * One thread uses a cache at a time, the scheduler's. The rows are the backend's; nothing here looks at them. The places of the file of
 * kv_disk.h are kept in the same way.
 */
#ifndef DSV3_KV_CACHE_H
#define DSV3_KV_CACHE_H

#include "common/error.h"
#include "engine/prefix_name.h"

typedef struct Dsv3KvCache Dsv3KvCache;

#define DSV3_NO_BLOCK (-1)

typedef struct Dsv3KvCounts
{
	int held;   /* blocks that somebody holds */
	int cached; /* named blocks, held or not */
	int pinned;
	uint64_t evicted; /* named blocks given up for their memory */
} Dsv3KvCounts;

/* Blocks are numbered 0 to n_blocks - 1, all free. */
extern Dsv3KvCache *dsv3_kv_cache_open(int n_blocks, Dsv3Error *err);
extern void dsv3_kv_cache_close(Dsv3KvCache *cache);

/* How many blocks can be taken; those that are pinned and held by nobody only if last_resort. */
extern int dsv3_kv_cache_room(const Dsv3KvCache *cache, bool last_resort);

/* Take a block: never used ones first, then the named one given back longest ago, pinned ones last. There must be room. */
extern int32_t dsv3_kv_cache_take(Dsv3KvCache *cache);

/* One holder more, one less. A block without a name and holders is free again. */
extern void dsv3_kv_cache_hold(Dsv3KvCache *cache, int32_t number);
extern void dsv3_kv_cache_release(Dsv3KvCache *cache, int32_t number);

extern int dsv3_kv_cache_holders(const Dsv3KvCache *cache, int32_t number);

/* Does holding the block leave the room as it is? */
extern bool dsv3_kv_cache_is_kept(const Dsv3KvCache *cache, int32_t number, bool last_resort);

/* The block with the name, or DSV3_NO_BLOCK. */
extern int32_t dsv3_kv_cache_find(const Dsv3KvCache *cache, const Dsv3BlockName *name);

/* Give a held block without a name one that no block has. */
extern void dsv3_kv_cache_publish(Dsv3KvCache *cache, int32_t number, const Dsv3BlockName *name);

/* The name of a named block, else NULL. */
extern const Dsv3BlockName *dsv3_kv_cache_name(const Dsv3KvCache *cache, int32_t number);

/* Take the name, and the pins, of a named block away. */
extern void dsv3_kv_cache_drop(Dsv3KvCache *cache, int32_t number);

/* Pins count: as many unpins undo them. dsv3_kv_cache_unpin is false when the block has none. */
extern void dsv3_kv_cache_pin(Dsv3KvCache *cache, int32_t number);
extern bool dsv3_kv_cache_unpin(Dsv3KvCache *cache, int32_t number);

/* dsv3_kv_cache_drop of all named blocks. */
extern void dsv3_kv_cache_forget(Dsv3KvCache *cache);

extern Dsv3KvCounts dsv3_kv_cache_counts(const Dsv3KvCache *cache);

#endif /* DSV3_KV_CACHE_H */
