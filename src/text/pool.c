/*
 * pool.c
 *	  See pool.h. Blocks are a list; a request that does not fit the newest opens a new one.
 */
#include "text/pool.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_SIZE ((size_t) 16384)

struct Dsv3PoolBlock
{
	Dsv3PoolBlock *older;
	size_t size;
	alignas(max_align_t) unsigned char data[];
};

void *
dsv3_pool_alloc(Dsv3Pool *pool, size_t size)
{
	void *result;

	if (size > SIZE_MAX / 2)
		return NULL;
	size = (size + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
	if (pool->blocks == NULL || size > pool->blocks->size - pool->used)
	{
		size_t block_size = size > BLOCK_SIZE ? size : BLOCK_SIZE;
		Dsv3PoolBlock *block;

		if (pool->limit > 0 && (block_size > pool->limit || pool->total > pool->limit - block_size))
			return NULL;
		block = malloc(sizeof(*block) + block_size);
		if (block == NULL)
			return NULL;
		block->older = pool->blocks;
		block->size = block_size;
		pool->blocks = block;
		pool->used = 0;
		pool->total += block_size;
	}
	result = pool->blocks->data + pool->used;
	pool->used += size;
	memset(result, 0, size);
	return result;
}

void
dsv3_pool_free(Dsv3Pool *pool)
{
	while (pool->blocks != NULL)
	{
		Dsv3PoolBlock *older = pool->blocks->older;

		free(pool->blocks);
		pool->blocks = older;
	}
	memset(pool, 0, sizeof(*pool));
}
