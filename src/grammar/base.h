/*
 * base.h
 *	  What every file of the grammar compiler stands on: arenas with a limit, a table that gives equal keys equal
 *	  numbers, and the compile context with its way out.
 *
 * Compiling is all or nothing. Everything a compilation allocates comes from arenas, so giving up means dropping
 * them: a failure deep inside a recursion fills the context's error and jumps to the one setjmp in grammar.c (or in
 * mask.c for caches that grow while a grammar is used). Nothing between the two holds a lock, an open file or malloc'd
 * memory that is not registered with the context.
 *
 * Work and memory are bounded here as well: gr_work counts steps and looks at the caller's cancel flag now and then; an
 * arena refuses to grow past its limit. No schema, whatever its author had in mind, escapes both. No clock is asked, and what
 * a shared lexeme has cost is charged to everybody who uses it, so that the same schema is compiled or refused on
 * every machine and whatever was compiled before it.
 */
#ifndef DSV3_GRAMMAR_BASE_H
#define DSV3_GRAMMAR_BASE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

typedef struct ArenaChunk ArenaChunk;
typedef struct Arena
{
	ArenaChunk *head;
	char *at;
	size_t left;
	bool zeroed;    /* the present chunk came zeroed */
	size_t used;    /* bytes taken from malloc */
	int64_t asked;  /* bytes given out */
	int64_t *spent; /* what the limit holds for: `asked`, or a count that several arenas share */
	size_t limit;   /* 0: none */
	jmp_buf *out;   /* where to go when memory or the limit is at its end; never NULL while allocating */
} Arena;

/* Values longjmp carries. */
enum
{
	GR_OUT_ERROR = 1, /* the context's error is set */
	GR_OUT_MEMORY,    /* malloc failed */
	GR_OUT_LIMIT,     /* the arena's limit */
};

/* spent: a count shared with other arenas, or NULL. */
extern void dsv3_gr_arena_init(Arena *arena, size_t limit, int64_t *spent, jmp_buf *out);
extern bool dsv3_gr_arena_has_room(const Arena *arena, size_t size);
extern void *dsv3_gr_arena_alloc(Arena *arena, size_t size); /* zeroed, aligned to 8; jumps out on failure */
extern void *dsv3_gr_arena_dup(Arena *arena, const void *data, size_t size);
extern char *dsv3_gr_arena_text(Arena *arena, const char *text, size_t len); /* zero-terminated copy */
extern void dsv3_gr_arena_free(Arena *arena);

/* A growing int32 array in an arena (old copies are left behind; growth is geometric). */
typedef struct IntVec
{
	int32_t *v;
	int32_t n;
	int32_t cap;
} IntVec;
extern void dsv3_gr_intvec_grow(Arena *arena, IntVec *vec);
static inline void
gr_intvec_push(Arena *arena, IntVec *vec, int32_t value)
{
	if (vec->n == vec->cap)
		dsv3_gr_intvec_grow(arena, vec);
	vec->v[vec->n++] = value;
}

/*
 * Interner: equal int32 sequences get equal ids, counted from 0. Keys live in the arena.
 */
typedef struct Interner
{
	Arena *arena;
	int32_t *table; /* open addressing: id + 1, 0 empty */
	uint32_t mask;
	int32_t *old_table; /* the former table while its entries are being moved */
	uint32_t old_mask;
	uint32_t old_at;
	int32_t n;
	int32_t cap;
	int32_t **keys; /* keys[id][0] is the length, the sequence follows */
	uint32_t *hashes;
} Interner;

extern void dsv3_gr_interner_init(Interner *in, Arena *arena);
/* The id of a key that is there already, or -1. */
extern int32_t dsv3_gr_interner_find(const Interner *in, const int32_t *key, int32_t n);
extern int32_t dsv3_gr_interner_get(Interner *in, const int32_t *key, int32_t n, bool *fresh);
static inline const int32_t *
interner_key(const Interner *in, int32_t id, int32_t *n)
{
	*n = in->keys[id][0];
	return in->keys[id] + 1;
}
extern uint32_t dsv3_gr_hash(const void *data, size_t len);

/* A NOTICE kept with the compiled grammar. */
typedef struct Notice
{
	struct Notice *next;
	char *pointer;
	char *keyword;
	char *text;
} Notice;

typedef struct Json Json;
typedef struct Lex Lex;
typedef struct CodeProperty CodeProperty;
struct Ir;

/* What has been spent on something. */
typedef struct Work
{
	int64_t steps;
	int64_t bytes;
} Work;

typedef struct Ctx
{
	Arena *arena;
	jmp_buf out;
	Dsv3Error *err;
	const Json *at; /* the schema value being worked on; names the place in errors */
	const char *keyword;
	char *error_pointer; /* set with the error, for the caller */
	char *error_keyword;
	Notice *notices;
	Notice **notice_tail;
	int32_t nnotices;
	Work spent;
	int64_t step_limit;
	int64_t look_at; /* the number of steps to look up at: for the cancel flag, for the limit */
	bool (*cancelled)(void *arg);
	void *cancel_arg;
	CodeProperty *properties; /* unicode.c */
	struct Ir *ir;            /* set once automata are held for the grammar */
	Lex *made; /* every automaton built by this compilation; each holds one reference until the end */
} Ctx;

/* Count n steps of work, each some ten nanoseconds; now and then, look at the limit and at the cancel flag. */
extern void dsv3_gr_look(Ctx *ctx);
static inline void
gr_work(Ctx *ctx, int64_t n)
{
	ctx->spent.steps += n;
	if (ctx->spent.steps >= ctx->look_at)
		dsv3_gr_look(ctx);
}
static inline void
gr_tick(Ctx *ctx)
{
	gr_work(ctx, 1);
}

/* What was spent since `before`; and charging it once more. */
extern Work dsv3_gr_work_since(const Ctx *ctx, const Work *before);
extern void dsv3_gr_charge(Ctx *ctx, const Work *work);

/* Fail the compilation; hint may be NULL. Never returns. */
extern void dsv3_gr_fail(Ctx *ctx, const char *sqlstate, const char *hint, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 4, 5)));

/* Add a NOTICE about ctx->at / ctx->keyword; equal ones are kept once, 100 at most. */
extern void dsv3_gr_notice(Ctx *ctx, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif /* DSV3_GRAMMAR_BASE_H */
