/*
 * pool.h
 *	  Memory that is given back all at once: what a chat template is compiled into, and what rendering it makes.
 */
#ifndef DSV3_POOL_H
#define DSV3_POOL_H

#include <stddef.h>

typedef struct Dsv3PoolBlock Dsv3PoolBlock;

typedef struct Dsv3Pool
{
	Dsv3PoolBlock *blocks;
	size_t used;  /* of the newest block */
	size_t total; /* bytes in all blocks */
	size_t limit; /* total never exceeds it; 0: no limit */
} Dsv3Pool;

/* size bytes, aligned for anything, zeroed; NULL without memory or beyond the limit. */
extern void *dsv3_pool_alloc(Dsv3Pool *pool, size_t size);
extern void dsv3_pool_free(Dsv3Pool *pool);

#endif /* DSV3_POOL_H */
