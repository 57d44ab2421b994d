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
 * Time and memory are bounded here as well: gr_tick counts work and looks at the clock and at the caller's cancel
 * flag now and then; an arena refuses to grow past its limit. No schema, whatever its author had in mind, escapes both.
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
	size_t used;  /* bytes taken from malloc */
	size_t limit; /* 0: none */
	jmp_buf *out; /* where to go when memory or the limit is at its end; never NULL while allocating */
} Arena;

/* Values longjmp carries. */
enum
{
	GR_OUT_ERROR = 1, /* the context's error is set */
	GR_OUT_MEMORY,    /* malloc failed */
	GR_OUT_LIMIT,     /* the arena's limit */
};

extern void dsv3_gr_arena_init(Arena *arena, size_t limit, jmp_buf *out);
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
extern void dsv3_gr_intvec_push(Arena *arena, IntVec *vec, int32_t value);

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
struct Ir;

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
	int64_t deadline_ns;
	uint32_t ops;
	int32_t lex_states; /* automaton states built for this grammar so far */
	bool (*cancelled)(void *arg);
	void *cancel_arg;
	struct Ir *ir; /* set once automata are held for the grammar */
	Lex *made;     /* every automaton built by this compilation; each holds one reference until the end */
} Ctx;

/* Processor time of this thread: a busy machine makes no schema too expensive. */
extern int64_t dsv3_gr_now_ns(void);

/* Count a unit of work; every few thousand, look at the clock and the cancel flag. */
static inline void gr_tick(Ctx *ctx);
extern void dsv3_gr_tick_slow(Ctx *ctx);
static inline void
gr_tick(Ctx *ctx)
{
	if (((++ctx->ops) & 1023) == 0)
		dsv3_gr_tick_slow(ctx);
}

/* Fail the compilation; hint may be NULL. Never returns. */
extern void dsv3_gr_fail(Ctx *ctx, const char *sqlstate, const char *hint, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 4, 5)));

/* Add a NOTICE about ctx->at / ctx->keyword; equal ones are kept once, 100 at most. */
extern void dsv3_gr_notice(Ctx *ctx, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif /* DSV3_GRAMMAR_BASE_H */
