/*
 * machine.h
 *	  The compiled grammar at work: a deterministic automaton over bytes whose states ("configs") are made when they are
 *	  first reached and then remembered.
 *
 * A config is a set of items, all at the same depth of nesting, because brackets and quotes tell the depth. An item is
 * a position in one frame (an object, an array, a string, a number, ...) with a parent: the config of items that go on
 * when the frame is finished. Two ways of reading the text so far are two items; two frames opened at the same byte for
 * the same value position share one parent set, so nesting never multiplies readings.
 *
 * Configs, key texts and sets of texts are interned: equal ones have equal numbers. Hence a matcher's position is one
 * integer, going back is restoring it, and a mask computed once is found again.
 *
 * Everything here runs under the grammar's lock. Memory comes from the cache arena; when that is full, entry points
 * empty it and matchers replay their text (matcher.c).
 */
#ifndef DSV3_GRAMMAR_MACHINE_H
#define DSV3_GRAMMAR_MACHINE_H

#include <pthread.h>

#include "grammar/ir.h"
#include "grammar/object.h"
#include "grammar/vocab.h"

typedef enum Phase
{
	PH_END,       /* the root value is complete */
	PH_START,     /* before a value: a white space mode, b progress in it */
	PH_WORD,      /* in a literal or a number: a state of the lexeme */
	PH_STR,       /* inside a string: a state, b length so far (when it matters) */
	PH_ARR_OPEN,  /* after "[": b white space; an element may start as well, as items of its own */
	PH_ARR_AFTER, /* after an element: a number of elements, b white space, c counts of contains, d texts */
	PH_OBJ_OPEN,  /* after "{": e white space */
	PH_OBJ_KEY, /* in a key: a next declared one, b members, c extra members, d used keys, e trie node or -1,
				   * f lexeme state of extra keys or -1, g text so far */
	PH_OBJ_COLON, /* after a key: a..d as above for what follows the member, f node of the value */
	PH_OBJ_AFTER, /* after a member: a..d, e white space */
	PH_OBJ_COMMA, /* after a comma: a..d, e white space */
	PH_WHOLE,     /* a plain automaton for the whole answer: a state */
	PH_RULE,      /* in a rule of an EBNF grammar: a state (ebnf.c) */
} Phase;

typedef struct Item
{
	int32_t phase;
	int32_t alt;
	int32_t parent; /* config */
	int32_t a, b, c, d, e, f, g;
} Item;
#define ITEM_INTS 10

/* While tokens are tried: some text that no used key and no earlier element begins with. It is never one that was written. */
#define TEXT_OTHER (-1)

typedef struct MaskEntry MaskEntry; /* mask.c */

typedef struct Config
{
	const Item *items;
	int32_t nitems;
	int32_t level; /* open brackets */
	int32_t rec;   /* interned list of records of unique arrays around; 0: none */
	int32_t cost;  /* -1: not computed */
	MaskEntry *mask;
} Config;

/* (config, byte) -> config; open addressing. */
typedef struct StepTable
{
	uint64_t *keys; /* config << 8 | byte, plus one; 0: empty */
	int32_t *values;
	uint32_t mask;
} StepTable;

struct Rtn;

struct Dsv3Grammar
{
	Dsv3TokenTable *vocab;
	Dsv3GrammarKind kind;
	Dsv3GrammarOptions options;
	char *source;
	size_t source_len;
	Dsv3SchemaDocument *documents;

	Arena keep; /* what compiling left behind; immutable */
	const Node *nodes;
	Alt **alts;
	Lex **lexes;
	Notice *notices;
	const Lex *whole;
	struct Rtn *rtn;
	int32_t nnodes;
	int32_t nalts;
	int32_t nlexes;
	int32_t root; /* node */

	pthread_mutex_t lock; /* everything below */
	jmp_buf out;
	Arena cache;
	size_t cache_limit;
	size_t mask_bytes;
	Interner config_keys;
	Interner texts; /* (parent text, byte); text 0 is empty */
	Interner sets;  /* (parent set, text); set 0 is empty */
	Interner recs;  /* (parent rec, level, text, set, diverged); rec 0 is none */
	Config *configs;
	StepTable steps;
	StepTable old_steps; /* the former table while its entries are being moved */
	uint32_t old_step_at;
	uint32_t nsteps;
	int32_t config_cap;
	bool sound;         /* the caches are whole; not after a jump out */
	int32_t generation; /* counts how often the caches were emptied */
	int32_t start;
	int32_t max_rise; /* one token moves the end away by no more tokens than this */
	bool vocab_held;  /* the vocabulary's lock is ours; a jump out gives it back */
};

extern void dsv3_machine_reset(Dsv3Grammar *g); /* empty the caches and make the start config */
extern int32_t dsv3_machine_step(Dsv3Grammar *g, int32_t config, unsigned char byte); /* -1: dead */
/* Inside a unique array, and what is written of the element is the beginning of an earlier one. */
extern bool dsv3_machine_clashes(const Dsv3Grammar *g, int32_t config);
/* Would what is written of an element of a unique array be the beginning of an earlier one with the byte? */
extern bool dsv3_machine_nears_element(const Dsv3Grammar *g, int32_t rec, unsigned char byte);
/* The records with TEXT_OTHER for what is written of the elements, and none that were there earlier. */
extern int32_t dsv3_machine_other_record(Dsv3Grammar *g, int32_t rec);
/* At the start of a unique array's element that is not the first. */
extern bool dsv3_machine_next_element(const Dsv3Grammar *g, int32_t config);
/* The item after the quote of a declared key, for an item in keys; false: the key may not come there, or prop is none. */
extern bool dsv3_machine_key_done(const Dsv3Grammar *g, const Item *item, int32_t prop, Item *next);
/* Does some text of the set begin with this one? */
extern bool dsv3_machine_begins_used(const Dsv3Grammar *g, int32_t set, int32_t text);
/* A text with one more byte, when some text of the set begins with it, else -1; and whether it is in the set itself. */
extern int32_t dsv3_machine_used_text(const Dsv3Grammar *g, int32_t set, int32_t text, unsigned char byte);
extern bool dsv3_machine_used(const Dsv3Grammar *g, int32_t set, int32_t text);
extern bool dsv3_machine_complete(Dsv3Grammar *g, int32_t id);
extern int32_t dsv3_machine_config(Dsv3Grammar *g, Item *items, int32_t n, int32_t level, int32_t rec);

/* cost.c: tokens to the end of the answer. */
extern int32_t dsv3_machine_cost(Dsv3Grammar *g, int32_t id);
/* The most it is from anywhere inside an extra key that is the beginning of no taken one, for an item in keys. */
extern int32_t dsv3_machine_key_bound(Dsv3Grammar *g, const Item *item);
/* A lower bound of the number of completions of an item above a level of nesting. */
extern int32_t dsv3_machine_card(Dsv3Grammar *g, const Item *item, int32_t level);

/* The step of an item, for those that make items of their own (ebnf.c). */
typedef struct Pending
{
	int32_t node;
	int32_t mode;
	Item parent;
} Pending;

typedef struct StepOut
{
	Item *items;
	int32_t n;
	int32_t cap;
	Pending *pending;
	int32_t npending;
	int32_t pending_cap;
} StepOut;
extern void dsv3_gr_step_push(Dsv3Grammar *g, StepOut *out, const Item *item);

extern struct Rtn *dsv3_ebnf_compile(Ctx *ctx, Arena *keep, const char *text, size_t len);
extern int32_t dsv3_ebnf_max_dist(const struct Rtn *rtn);
extern int32_t dsv3_ebnf_start(Dsv3Grammar *g);
extern void dsv3_ebnf_step(Dsv3Grammar *g, const Item *items, int32_t n, unsigned char byte, StepOut *out);
extern int32_t dsv3_ebnf_item_cost(Dsv3Grammar *g, const Item *item);
extern bool dsv3_ebnf_item_complete(Dsv3Grammar *g, const Item *item);

#endif /* DSV3_GRAMMAR_MACHINE_H */
