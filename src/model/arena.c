/*
 * arena.c
 *	  Anonymous mappings carved into pieces; see arena.h.
 */
#include "model/arena.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT  ((size_t) 64)
#define CHUNK_SIZE ((size_t) 4 * 1024 * 1024)

/* The number after `label` in a small text file, or -1. */
static int64_t
read_number(const char *path, const char *label)
{
	char line[256];
	long long value = -1;
	FILE *file = fopen(path, "re");

	if (file == NULL)
		return -1;
	while (fgets(line, sizeof(line), file))
	{
		if (strncmp(line, label, strlen(label)) == 0)
		{
			if (sscanf(line + strlen(label), "%lld", &value) != 1)
				value = -1;
			break;
		}
	}
	fclose(file);
	return value;
}

/* What a control group (version 2) at dir may still take; INT64_MAX without a limit. Cached file pages count as used in
 * the group but give way. */
static int64_t
group_room(const char *dir)
{
	char path[2 * PATH_MAX + 32];
	int64_t limit;
	int64_t used;
	int64_t cache;

	snprintf(path, sizeof(path), "%s/memory.max", dir);
	limit = read_number(path, "");
	snprintf(path, sizeof(path), "%s/memory.current", dir);
	used = read_number(path, "");
	snprintf(path, sizeof(path), "%s/memory.stat", dir);
	cache = read_number(path, "file ");
	if (limit < 0 || used < 0)
		return INT64_MAX;
	if (cache > 0 && cache <= used)
		used -= cache;
	return limit > used ? limit - used : 0;
}

int64_t
dsv3_groups_room(const char *root, const char *group)
{
	char dir[2 * PATH_MAX];
	int64_t least = INT64_MAX;

	snprintf(dir, sizeof(dir), "%s%s", root, group);
	do
	{
		int64_t room = group_room(dir);

		least = room < least ? room : least;
		*strrchr(dir, '/') = '\0';
	} while (strlen(dir) >= strlen(root));
	return least;
}

int64_t
dsv3_memory_available(void)
{
	int64_t kilobytes = read_number("/proc/meminfo", "MemAvailable:");
	int64_t available = kilobytes >= 0 ? kilobytes * 1024 : INT64_MAX;
	int64_t room = INT64_MAX;
	char line[PATH_MAX];
	FILE *file = fopen("/proc/self/cgroup", "re");

	while (file && fgets(line, sizeof(line), file))
	{
		line[strcspn(line, "\n")] = '\0';
		if (strncmp(line, "0::/", 4) == 0)
			room = dsv3_groups_room("/sys/fs/cgroup", line + 3);
	}
	if (file)
		fclose(file);
	return room < available ? room : available;
}

/* Map a chunk of at least size bytes and put it in front. */
static bool
add_chunk(Dsv3Arena *arena, size_t size, Dsv3Error *err)
{
	Dsv3ArenaChunk *chunk = calloc(1, sizeof(*chunk));
	void *base = MAP_FAILED;

	if (size < CHUNK_SIZE)
		size = CHUNK_SIZE;
	if (chunk)
		base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED)
	{
		free(chunk);
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "could not allocate %zu MB for model weights: %s",
						  size >> 20, strerror(ENOMEM));
	}
	if (size > CHUNK_SIZE)
		madvise(base, size, MADV_HUGEPAGE); /* fewer TLB misses when reading matrices; may be refused */
	chunk->base = base;
	chunk->size = size;
	chunk->next = arena->chunks;
	arena->chunks = chunk;
	arena->bytes += (int64_t) size;
	return true;
}

bool
dsv3_arena_reserve(Dsv3Arena *arena, size_t size, const char *purpose, Dsv3Error *err)
{
	int64_t available = dsv3_memory_available();

	if (size == 0)
		return true;
	if (size > (size_t) INT64_MAX / 2 || (int64_t) size > available)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "not enough memory for %s: %.1f GB needed, %.1f GB available",
				   purpose, (double) size / 1e9, (double) available / 1e9);
		return dsv3_error_hint(
			err, "Use weights as stored, which are mapped from the files, or a smaller weight type.");
	}
	return add_chunk(arena, size, err);
}

void *
dsv3_arena_alloc(Dsv3Arena *arena, size_t size, Dsv3Error *err)
{
	Dsv3ArenaChunk *chunk = arena->chunks;
	size_t rounded;
	void *piece;

	if (size > SIZE_MAX - ALIGNMENT)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "could not allocate model weights: size overflows");
		return NULL;
	}
	rounded = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	while (chunk && chunk->size - chunk->used < rounded)
		chunk = chunk->next;
	if (chunk == NULL)
	{
		if (!add_chunk(arena, rounded, err))
			return NULL;
		chunk = arena->chunks;
	}
	piece = chunk->base + chunk->used;
	chunk->used += rounded;
	return piece;
}

void
dsv3_arena_free(Dsv3Arena *arena)
{
	Dsv3ArenaChunk *chunk = arena->chunks;

	while (chunk)
	{
		Dsv3ArenaChunk *next = chunk->next;

		munmap(chunk->base, chunk->size);
		free(chunk);
		chunk = next;
	}
	memset(arena, 0, sizeof(*arena));
}
