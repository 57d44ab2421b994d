/*
 * arena.h
 *	  Memory of a checkpoint: many small vectors and a few very large matrices, all freed together.
 *
 * Pieces are 64-byte aligned, zeroed, and carved from anonymous mappings, so that pages nobody writes cost nothing. An
 * arena has one owner; it is not for several threads at once.
 */
#ifndef DSV3_ARENA_H
#define DSV3_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

typedef struct Dsv3ArenaChunk
{
	struct Dsv3ArenaChunk *next;
	unsigned char *base;
	size_t size;
	size_t used;
} Dsv3ArenaChunk;

typedef struct Dsv3Arena
{
	Dsv3ArenaChunk *chunks; /* newest first; pieces come from the first one that has room */
	int64_t bytes;          /* mapped by all chunks */
} Dsv3Arena;

/* Make room for size bytes in one chunk. Fails with 53200, naming the purpose, when this machine (or its control
 * group) has not that much memory left. */
extern bool dsv3_arena_reserve(Dsv3Arena *arena, size_t size, const char *purpose, Dsv3Error *err);

/* size bytes, zeroed, 64-byte aligned; NULL and 53200 when there is no memory. size 0 gives a valid pointer. */
extern void *dsv3_arena_alloc(Dsv3Arena *arena, size_t size, Dsv3Error *err);

extern void dsv3_arena_free(Dsv3Arena *arena);

/* Bytes a process can still allocate before the machine or its control group runs out; INT64_MAX when unknown. */
extern int64_t dsv3_memory_available(void);

/* The part of it that control groups (version 2) decide: the least room of root/group and the groups it lies in. root
 * is an absolute path, group begins with a slash. */
extern int64_t dsv3_groups_room(const char *root, const char *group);

#endif /* DSV3_ARENA_H */
