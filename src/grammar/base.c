/*
 * base.c
 *	  Arenas, interning, and the compile context. See base.h for the rules.
 */
#include "grammar/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/json.h"

struct ArenaChunk
{
	ArenaChunk *next;
	size_t size;
};

#define LOOK_STEPS  4096
#define CHUNK_FIRST ((size_t) 8 * 1024)
#define CHUNK_LARGE ((size_t) 64 * 1024)
#define CHUNK_MAX   ((size_t) 1024 * 1024)

void
dsv3_gr_arena_init(Arena *arena, size_t limit, int64_t *spent, jmp_buf *out)
{
	memset(arena, 0, sizeof(*arena));
	arena->limit = limit;
	arena->spent = spent != NULL ? spent : &arena->asked;
	arena->out = out;
}

bool
dsv3_gr_arena_has_room(const Arena *arena, size_t size)
{
	return arena->limit == 0 || *arena->spent + (int64_t) size <= (int64_t) arena->limit;
}

/* A chunk of `want` bytes, zeroed or not: large ones come zeroed from the system, page by page as they are used. */
static ArenaChunk *
add_chunk(Arena *arena, size_t want)
{
	ArenaChunk *chunk = want >= CHUNK_LARGE ? calloc(1, want) : malloc(want);

	if (chunk == NULL)
		longjmp(*arena->out, GR_OUT_MEMORY);
	chunk->next = arena->head;
	chunk->size = want;
	arena->head = chunk;
	arena->used += want;
	return chunk;
}

void *
dsv3_gr_arena_alloc(Arena *arena, size_t size)
{
	void *p;

	size = (size + 7) & ~(size_t) 7;
	if (!dsv3_gr_arena_has_room(arena, size))
		longjmp(*arena->out, GR_OUT_LIMIT);
	*arena->spent += (int64_t) size;
	if (size > arena->left)
	{
		size_t want = arena->used < CHUNK_FIRST ? CHUNK_FIRST : arena->used;

		/* A large block has a chunk of its own; what is left of the present one stays in use. */
		if (size >= CHUNK_LARGE)
			return add_chunk(arena, size + sizeof(ArenaChunk)) + 1;
		if (want > CHUNK_MAX)
			want = CHUNK_MAX;
		if (want < size + sizeof(ArenaChunk))
			want = size + sizeof(ArenaChunk);
		arena->at = (char *) (add_chunk(arena, want) + 1);
		arena->left = want - sizeof(ArenaChunk);
		arena->zeroed = want >= CHUNK_LARGE;
	}
	p = arena->at;
	arena->at += size;
	arena->left -= size;
	if (!arena->zeroed)
		memset(p, 0, size);
	return p;
}

void *
dsv3_gr_arena_dup(Arena *arena, const void *data, size_t size)
{
	void *p = dsv3_gr_arena_alloc(arena, size == 0 ? 1 : size);

	if (size != 0)
		memcpy(p, data, size);
	return p;
}

char *
dsv3_gr_arena_text(Arena *arena, const char *text, size_t len)
{
	char *p = dsv3_gr_arena_alloc(arena, len + 1);

	if (len != 0)
		memcpy(p, text, len);
	return p;
}

void
dsv3_gr_arena_free(Arena *arena)
{
	ArenaChunk *chunk = arena->head;

	while (chunk != NULL)
	{
		ArenaChunk *next = chunk->next;

		free(chunk);
		chunk = next;
	}
	arena->head = NULL;
	arena->at = NULL;
	arena->left = 0;
	arena->used = 0;
	arena->asked = 0;
}

void
dsv3_gr_intvec_grow(Arena *arena, IntVec *vec)
{
	int32_t cap = vec->cap == 0 ? 8 : vec->cap * 2;
	int32_t *v = dsv3_gr_arena_alloc(arena, (size_t) cap * sizeof(int32_t));

	if (vec->n != 0)
		memcpy(v, vec->v, (size_t) vec->n * sizeof(int32_t));
	vec->v = v;
	vec->cap = cap;
}

uint32_t
dsv3_gr_hash(const void *data, size_t len)
{
	const unsigned char *p = data;
	uint64_t h = UINT64_C(0x9E3779B97F4A7C15) ^ len;

	while (len >= 8)
	{
		uint64_t w;

		memcpy(&w, p, 8);
		h = (h ^ w) * UINT64_C(0xff51afd7ed558ccd);
		h ^= h >> 32;
		p += 8;
		len -= 8;
	}
	while (len-- > 0)
		h = (h ^ *p++) * UINT64_C(0x100000001b3);
	h *= UINT64_C(0xc4ceb9fe1a85ec53);
	return (uint32_t) (h ^ (h >> 32));
}

void
dsv3_gr_interner_init(Interner *in, Arena *arena)
{
	memset(in, 0, sizeof(*in));
	in->arena = arena;
}

/* Put an id into the table; there is room. */
static void
interner_put(Interner *in, int32_t id)
{
	uint32_t at = in->hashes[id] & in->mask;

	while (in->table[at] != 0)
		at = (at + 1) & in->mask;
	in->table[at] = id + 1;
}

/* A few more entries of the former table. Growing little by little, no single insertion takes long. */
static void
interner_move(Interner *in, uint32_t n)
{
	while (in->old_table != NULL && n-- > 0)
	{
		if (in->old_table[in->old_at] != 0)
			interner_put(in, in->old_table[in->old_at] - 1);
		if (++in->old_at > in->old_mask)
			in->old_table = NULL;
	}
}

static void
interner_grow(Interner *in)
{
	uint32_t size = in->table == NULL ? 64 : (in->mask + 1) * 2;
	int32_t *table = dsv3_gr_arena_alloc(in->arena, size * sizeof(int32_t));

	interner_move(in, UINT32_MAX);
	in->old_table = in->table;
	in->old_mask = in->mask;
	in->old_at = 0;
	in->table = table;
	in->mask = size - 1;
}

static int32_t
interner_probe(const Interner *in, const int32_t *table, uint32_t mask, uint32_t hash, const int32_t *key,
			   int32_t n)
{
	for (uint32_t at = hash & mask; table[at] != 0; at = (at + 1) & mask)
	{
		int32_t id = table[at] - 1;

		if (in->hashes[id] == hash && in->keys[id][0] == n &&
			memcmp(in->keys[id] + 1, key, (size_t) n * sizeof(int32_t)) == 0)
			return id;
	}
	return -1;
}

static int32_t
interner_search(const Interner *in, uint32_t hash, const int32_t *key, int32_t n)
{
	int32_t id = -1;

	if (in->table != NULL)
		id = interner_probe(in, in->table, in->mask, hash, key, n);
	if (id < 0 && in->old_table != NULL)
		id = interner_probe(in, in->old_table, in->old_mask, hash, key, n);
	return id;
}

int32_t
dsv3_gr_interner_find(const Interner *in, const int32_t *key, int32_t n)
{
	return interner_search(in, dsv3_gr_hash(key, (size_t) n * sizeof(int32_t)), key, n);
}

int32_t
dsv3_gr_interner_get(Interner *in, const int32_t *key, int32_t n, bool *fresh)
{
	uint32_t hash = dsv3_gr_hash(key, (size_t) n * sizeof(int32_t));
	int32_t id = interner_search(in, hash, key, n);
	int32_t *copy;

	if (fresh != NULL)
		*fresh = id < 0;
	if (id >= 0)
		return id;
	if (in->table == NULL || (uint32_t) in->n * 2 >= in->mask)
		interner_grow(in);
	if (in->n == in->cap)
	{
		int32_t cap = in->cap == 0 ? 32 : in->cap * 2;
		int32_t **keys = dsv3_gr_arena_alloc(in->arena, (size_t) cap * sizeof(int32_t *));
		uint32_t *hashes = dsv3_gr_arena_alloc(in->arena, (size_t) cap * sizeof(uint32_t));

		if (in->n != 0)
		{
			memcpy(keys, in->keys, (size_t) in->n * sizeof(int32_t *));
			memcpy(hashes, in->hashes, (size_t) in->n * sizeof(uint32_t));
		}
		in->keys = keys;
		in->hashes = hashes;
		in->cap = cap;
	}
	copy = dsv3_gr_arena_alloc(in->arena, (size_t) (n + 1) * sizeof(int32_t));
	copy[0] = n;
	if (n != 0)
		memcpy(copy + 1, key, (size_t) n * sizeof(int32_t));
	in->keys[in->n] = copy;
	in->hashes[in->n] = hash;
	interner_put(in, in->n);
	in->n++;
	interner_move(in, 4);
	return in->n - 1;
}

void
dsv3_gr_look(Ctx *ctx)
{
	if (ctx->cancelled != NULL && ctx->cancelled(ctx->cancel_arg))
		dsv3_gr_fail(ctx, DSV3_ERR_CANCELLED, NULL, "canceling statement due to user request");
	if (ctx->spent.steps > ctx->step_limit)
		dsv3_gr_fail(ctx, DSV3_ERR_TOO_LARGE,
					 "Simplify the schema: fewer overlapping alternatives, shorter patterns.",
					 "schema takes too many steps to compile");
	ctx->look_at = ctx->spent.steps + LOOK_STEPS;
	if (ctx->look_at > ctx->step_limit)
		ctx->look_at = ctx->step_limit + 1;
}

Work
dsv3_gr_work_since(const Ctx *ctx, const Work *before)
{
	Work work = {ctx->spent.steps - before->steps, ctx->spent.bytes - before->bytes};

	return work;
}

void
dsv3_gr_charge(Ctx *ctx, const Work *work)
{
	ctx->spent.bytes += work->bytes;
	if (!dsv3_gr_arena_has_room(ctx->arena, 0))
		longjmp(ctx->out, GR_OUT_LIMIT);
	gr_work(ctx, work->steps);
}

void
dsv3_gr_fail(Ctx *ctx, const char *sqlstate, const char *hint, const char *fmt, ...)
{
	char message[600];
	va_list args;

	va_start(args, fmt);
	vsnprintf(message, sizeof(message), fmt, args);
	va_end(args);
	if (ctx->err != NULL)
	{
		char pointer[512];

		dsv3_error(ctx->err, sqlstate, "%s", message);
		dsv3_gr_json_pointer(ctx->at, pointer, sizeof(pointer));
		if (ctx->at != NULL)
		{
			if (ctx->keyword != NULL)
				dsv3_error_detail(ctx->err, "At \"%s\" of the schema, keyword \"%s\".", pointer,
								  ctx->keyword);
			else
				dsv3_error_detail(ctx->err, "At \"%s\" of the schema.", pointer);
		}
		if (hint != NULL)
			dsv3_error_hint(ctx->err, "%s", hint);
	}
	longjmp(ctx->out, GR_OUT_ERROR);
}

void
dsv3_gr_notice(Ctx *ctx, const char *fmt, ...)
{
	char text[512];
	char pointer[512];
	va_list args;
	Notice *notice;

	if (ctx->nnotices >= 100)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	dsv3_gr_json_pointer(ctx->at, pointer, sizeof(pointer));
	for (notice = ctx->notices; notice != NULL; notice = notice->next)
		if (strcmp(notice->text, text) == 0 && strcmp(notice->pointer, pointer) == 0)
			return;
	notice = dsv3_gr_arena_alloc(ctx->arena, sizeof(Notice));
	notice->pointer = dsv3_gr_arena_text(ctx->arena, pointer, strlen(pointer));
	notice->keyword =
		ctx->keyword == NULL ? NULL : dsv3_gr_arena_text(ctx->arena, ctx->keyword, strlen(ctx->keyword));
	notice->text = dsv3_gr_arena_text(ctx->arena, text, strlen(text));
	*ctx->notice_tail = notice;
	ctx->notice_tail = &notice->next;
	ctx->nnotices++;
}
