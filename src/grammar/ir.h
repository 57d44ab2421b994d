/*
 * ir.h
 *	  From schemas to the alternatives the matcher runs on.
 *
 * Three layers.
 *
 * A literal is a schema (or a constant value), asserted or denied. Literals are numbered; 2 * id is the assertion,
 * 2 * id + 1 the denial.
 *
 * A Con is a conjunction of plain conditions, one group for each JSON type, and the set of types still possible. Expanding
 * a literal gives a list of Cons, their disjunction. Applicators are gone; the conditions on members and elements
 * mention further literals, which are expanded only when somebody needs them: that is what makes recursion end.
 *
 * A Node is what a value position allows: a set of literals that must all hold, as a list of Alts. An Alt is one JSON
 * type with everything the matcher needs, decided. Nodes are numbered by their literal set, so a recursive schema has
 * finitely many.
 *
 * Everything errs on one side: a denial that cannot be expressed is dropped from a disjunction, which makes the language
 * smaller, never larger.
 */
#ifndef DSV3_GRAMMAR_IR_H
#define DSV3_GRAMMAR_IR_H

#include "grammar/grammar.h"
#include "grammar/lex.h"
#include "grammar/number.h"
#include "grammar/schema.h"
#include "grammar/validate.h"

enum
{
	T_NULL = 1,
	T_FALSE = 2,
	T_TRUE = 4,
	T_NUM = 8,
	T_STR = 16,
	T_ARR = 32,
	T_OBJ = 64,
	T_ALL = 127,
};

#define IR_MAX_CONS  4096
#define IR_MAX_NODES 50000
#define IR_MAX_TUPLE 2048

typedef struct Name
{
	struct Name *next;
	const char *text;
	uint32_t len;
} Name;

/* A pattern, with its automata once somebody needed them; equal texts are one object. */
typedef struct KeyPattern
{
	struct KeyPattern *next;
	const char *text;
	uint32_t len;
	const Json *at; /* a place to name in errors */
	Pattern *pattern;
	Pattern *counted; /* with a `^X{m,n}$` taken apart */
} KeyPattern;

typedef struct PatternList
{
	struct PatternList *next;
	KeyPattern *pattern;
} PatternList;

typedef struct LitList
{
	struct LitList *next;
	int32_t lit;
} LitList;

/* A condition on the members of an object: which keys, and what their values must satisfy. */
typedef struct KeyRule
{
	struct KeyRule *next;
	enum
	{
		KEY_NAME,    /* the key `name` */
		KEY_PATTERN, /* keys matching `pattern` */
		KEY_REST,    /* keys in neither `names` nor `patterns` */
	} kind;
	const char *name;
	uint32_t len;
	KeyPattern *pattern;
	Name *names;
	PatternList *patterns;
	int32_t lit;
} KeyRule;

typedef struct ItemRule
{
	struct ItemRule *next;
	int32_t from;
	int32_t to; /* exclusive; -1: no end */
	int32_t lit;
} ItemRule;

typedef struct ContainsRule
{
	struct ContainsRule *next;
	int32_t from;
	int32_t lit;
	int32_t min;
	int32_t max; /* -1: none */
} ContainsRule;

typedef struct StrRule
{
	struct StrRule *next;
	const char *text;    /* of a format, its name */
	KeyPattern *pattern; /* NULL: a format */
	bool negated;
} StrRule;

typedef struct Con
{
	struct Con *next;
	uint8_t types;
	bool listed; /* only the values in `values` */
	int32_t nvalues;
	const Json **values;

	NumSpec num;

	StrRule *str;
	int32_t smin;
	int32_t smax; /* -1: none */
	Name *excluded;

	ItemRule *items;
	ContainsRule *contains;
	int32_t amin;
	int32_t amax; /* -1: none */
	bool unique;

	KeyRule *keys;
	KeyRule *exists; /* some key must be in the rule's region with a value satisfying lit */
	Name *required;
	Name *order;
	LitList *names; /* propertyNames */
	int32_t pmin;
	int32_t pmax; /* -1: none */
	int32_t min_extra;

	/* What has been evaluated, for unevaluated*. */
	Name *seen_names;
	PatternList *seen_patterns;
	bool seen_all;
	int32_t seen_items;
	bool seen_all_items;
	LitList *seen_contains;
} Con;

typedef enum AltKind
{
	ALT_LIT, /* the text of null, true, false or one of some scalars */
	ALT_NUM,
	ALT_STR,
	ALT_ARR,
	ALT_OBJ,
} AltKind;

typedef struct Prop
{
	const char *key; /* escaped, without quotes */
	int32_t keylen;
	int32_t node;
	bool required;
	int32_t slot;   /* place in Alt.sorted */
	int32_t piece;  /* tokens of ,"key": */
	int32_t piece0; /* tokens of "key": */
} Prop;

typedef struct KeyNode
{
	int32_t child; /* first child or -1 */
	int32_t sibling;
	int32_t prop; /* the property whose key ends here or -1 */
	int32_t lo;   /* the properties below, as a range of KeyTrie.sorted */
	int32_t hi;
	unsigned char byte;
	bool mid; /* after the backslash of an escape: a quote does not end the key here */
} KeyNode;

typedef struct Alt
{
	uint8_t kind;
	int32_t id;   /* index in the grammar's list */
	int32_t node; /* whose alternative this is */
	Lex *lex;     /* LIT, NUM, STR; OBJ: keys beyond the declared ones, tags are regions; NULL: none */
	int32_t smin;
	int32_t smax;

	/* ARR */
	int32_t nprefix;
	int32_t ncontains;
	int32_t *nodes; /* [nprefix + 1][1 << ncontains]; the last row is for all further elements; -1: none */
	ContainsRule *contains[3];
	int32_t amin;
	int32_t amax;
	int32_t comma; /* tokens of what stands between two elements */
	bool unique;

	/* OBJ */
	int32_t nprops;
	Prop *props;
	KeyNode *trie;   /* 0 is the root */
	int32_t *sorted; /* property indices in the trie's depth-first order */
	int32_t nregions;
	int32_t *regions; /* node of a region of extra keys */
	int32_t pmin;
	int32_t pmax;
	int32_t min_extra;
	int32_t max_extra;      /* -1: none */
	int32_t *next_required; /* [nprops + 1] */
	int32_t *required_left; /* [nprops + 1] */
	int32_t *possible_left; /* [nprops + 1] productive properties from here on */
	int32_t *rest_cost;     /* [nprops + 1] tokens of the required ones from here on, each after a comma */
	int32_t extra_cost;     /* tokens of one extra member after a comma; COST_INF: none possible */

	int32_t cost; /* tokens of a shortest value; COST_INF: none */
	int32_t card; /* a lower bound of the number of values */
	bool dead;    /* cannot have enough different elements */
} Alt;

/* Stands where a grammar without alternatives (a choice, an expression, EBNF) has none. */
extern const Alt dsv3_no_alt;

#define COST_INF 1000000000

/* How far a node's values must have one spelling each. */
typedef enum Spelling
{
	SPELL_FREE,
	SPELL_ONE,    /* numbers in one form, at most one extra key */
	SPELL_STRICT, /* keys in the order of their bytes as well, no extra keys */
} Spelling;

typedef struct Node
{
	int32_t nalts;
	Alt **alts;
	int32_t cost;
	int32_t card;
	bool built;
	bool pruned;
} Node;

typedef struct Ir Ir;
struct Ir
{
	Ctx *ctx;
	Arena *keep; /* what the matcher needs; outlives the compilation */
	SchemaDoc *doc;
	Validator *validator;
	Dsv3TokenTable *vocab;
	Dsv3GrammarOptions options;
	Interner shapes;
	Interner twins; /* (shape, resource) */
	const Json **twin_of;
	int32_t twin_cap;
	Interner lits;    /* (pointer, pointer, env, is_const) */
	Interner litsets; /* sorted literals -> node */
	Node *nodes;
	int32_t nnodes;
	int32_t cap;
	Interner expand_keys;
	Con **expand_memo;
	int32_t expand_cap;
	uint8_t *expand_state;
	KeyPattern *patterns;
	Interner empty_sets;
	uint8_t *empty_state;
	int32_t empty_cap;
	int32_t loops;       /* how often an expansion met itself; results that did are not remembered */
	const char *dropped; /* a keyword whose denial had to be dropped */
	int32_t lit_true;
	int32_t lit_false;
	int32_t lit_canonical; /* marks nodes inside uniqueItems: one spelling per value */
	int32_t
		lit_strict; /* and these, where several readings might spell it differently: one order of keys too */
	bool for_lex;   /* the pattern asked for becomes part of a lexeme that is shared */
	Lex **lexes;    /* references held for the grammar */
	int32_t nlexes;
	int32_t lex_cap;
	Alt **alts;
	int32_t nalts;
	int32_t alt_cap;
};

/* shape.c: the first schema of the same resource with the same contents; itself when it is the first. */
extern const Json *dsv3_ir_twin(Ir *ir, const Json *schema);

/* expand.c */
extern int32_t dsv3_ir_lit(Ir *ir, const Json *value, int32_t env, bool constant);
extern Con *dsv3_ir_expand(Ir *ir, int32_t lit, bool track);
extern Con *dsv3_ir_and(Ir *ir, Con *a, Con *b); /* lists; prunes the impossible */
extern Con *dsv3_ir_join(Con *a, Con *b);        /* disjunction; consumes a */

/* con.c */
extern Con *dsv3_con_new(Ir *ir, uint8_t types);
extern Con *dsv3_con_and(Ir *ir, const Con *a, const Con *b); /* NULL: impossible */
extern bool dsv3_con_accepts(Ir *ir, const Con *con, const Json *value);
extern bool dsv3_con_impossible(Ir *ir, Con *con, int depth); /* also drops types that turn out impossible */
extern bool dsv3_ir_set_impossible(Ir *ir, const int32_t *lits, int32_t n, int depth);
extern KeyPattern *dsv3_ir_key_pattern(Ir *ir, const char *text, uint32_t len);
extern Pattern *dsv3_ir_pattern(Ir *ir, KeyPattern *pattern, bool counted);
extern bool dsv3_key_pattern_matches(Ir *ir, KeyPattern *pattern, const char *key, uint32_t len);
extern bool dsv3_key_rule_applies(Ir *ir, const KeyRule *rule, const char *key, uint32_t len);
extern void dsv3_con_key_lits(Ir *ir, const Con *con, const char *key, uint32_t len, IntVec *out);
extern void dsv3_con_item_lits(Ir *ir, const Con *con, int32_t index, IntVec *out);
extern bool dsv3_gr_name_in(const Name *names, const char *text, uint32_t len);
extern Name *dsv3_gr_name_add(Ir *ir, Name *names, const char *text, uint32_t len);
extern Lex *dsv3_con_string_lex(Ir *ir, const Con *con, int32_t *smin, int32_t *smax);
extern const char *dsv3_ir_escape(Ir *ir, Arena *arena, const char *text, uint32_t len, uint32_t *outlen);

/* format.c */
extern bool dsv3_format_known(const char *format); /* a format of strings */
extern Pattern *dsv3_format_pattern(Ir *ir, const char *format);

/* node.c */
extern int32_t dsv3_ir_node(Ir *ir, const int32_t *lits, int32_t n); /* -1: impossible */
extern void dsv3_ir_build(Ir *ir); /* builds every reachable node, costs, prunes */
extern Lex *dsv3_ir_keep_lex(Ir *ir, Lex *lex);
extern Lex *dsv3_ir_cached_lex(Ir *ir, const char *key);
/* before: what had been spent before the lexeme and its parts were made. */
extern Lex *dsv3_ir_cache_lex(Ir *ir, const char *key, Lex *lex, const Work *before);

#endif /* DSV3_GRAMMAR_IR_H */
