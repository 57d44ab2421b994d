/*
 * memory_read.c
 *	  Plain reading; see memory_read.h.
 */
#include "cli/memory_read.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define READ_BYTES ((size_t) 512 << 20)
#define READ_PIECE ((size_t) 4 << 20)

typedef uint64_t Vector __attribute__((vector_size(16)));

typedef struct Window
{
	Dsv3MemoryRead *read;
	size_t first; /* piece */
} Window;

double
dsv3_cli_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double) t.tv_sec + (double) t.tv_nsec / 1e9;
}

bool
dsv3_memory_read_open(Dsv3MemoryRead *read)
{
	uint32_t random = 1;

	read->memory = aligned_alloc(4096, READ_BYTES);
	if (!read->memory)
		return false;
	for (size_t i = 0; i < READ_BYTES; i += sizeof(uint32_t))
	{
		random = random * 1664525u + 1013904223u;
		memcpy(read->memory + i, &random, sizeof(random));
	}
	return true;
}

void
dsv3_memory_read_close(Dsv3MemoryRead *read)
{
	free(read->memory);
	read->memory = NULL;
}

/* Read one piece in four streams. */
static void
read_piece(void *arg, int64_t i)
{
	Window *window = arg;
	const size_t quarter = READ_PIECE / 4 / sizeof(Vector);
	size_t piece = (window->first + (size_t) i) % (READ_BYTES / READ_PIECE);
	const Vector *p = (const Vector *) (window->read->memory + piece * READ_PIECE);
	Vector sum[8] = {{0}};

	for (size_t k = 0; k < quarter; k += 2)
	{
		for (size_t s = 0; s < 4; s++)
		{
			sum[2 * s] += p[s * quarter + k];
			sum[2 * s + 1] += p[s * quarter + k + 1];
		}
	}
	for (int s = 1; s < 8; s++)
		sum[0] += sum[s];
	window->read->sink += sum[0][0] + sum[0][1];
}

double
dsv3_memory_read_window(Dsv3MemoryRead *read, Dsv3Pool *pool, double seconds)
{
	Window window = {.read = read};
	size_t pieces = (size_t) dsv3_pool_threads(pool) * 4;
	double start = dsv3_cli_now(), end;

	dsv3_pool_begin(pool);
	do
	{
		dsv3_pool_run(pool, (int64_t) pieces, read_piece, &window);
		window.first += pieces;
		end = dsv3_cli_now();
	} while (end - start < seconds);
	dsv3_pool_end(pool);
	return (double) (window.first * READ_PIECE) / (end - start);
}
