/*
 * memory_read.h
 *	  How fast this machine reads memory: what a bandwidth-bound number is compared with.
 *
 * A buffer much larger than the last-level cache, filled with non-zero bytes (untouched pages would all be one page), is
 * read by all threads of a pool in pieces of 4 MB, each in four streams at once; one stream alone does not use a core's
 * full bandwidth.
 */
#ifndef DSV3_CLI_MEMORY_READ_H
#define DSV3_CLI_MEMORY_READ_H

#include <stdint.h>

#include "kernels/pool.h"

typedef struct Dsv3MemoryRead
{
	uint8_t *memory;
	volatile uint64_t sink;
} Dsv3MemoryRead;

/* False when there is no memory. */
extern bool dsv3_memory_read_open(Dsv3MemoryRead *read);
extern void dsv3_memory_read_close(Dsv3MemoryRead *read);

/* Bytes per second over a window of about so many seconds. */
extern double dsv3_memory_read_window(Dsv3MemoryRead *read, Dsv3Pool *pool, double seconds);

/* Seconds of a clock that only moves forward. */
extern double dsv3_cli_now(void);

#endif /* DSV3_CLI_MEMORY_READ_H */
