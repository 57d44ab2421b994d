/*
 * node.c
 *	  Value positions: from a set of literals to alternatives ready to run (ir.h).
 *
 * Nodes are built from a work list, so recursion in a schema is recursion in a graph, not on the stack. When all are
 * there, costs are computed to a fixed point (Knuth's shortest derivations): what has no finite cost can never be
 * completed and is pruned, so that the matcher never enters it.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/ir.h"
#include "grammar/object.h"
#include "grammar/vocab.h"

#define MAX_UNITED 600 /* states of automata that are made one, and of what becomes of them */
#define MAX_PARTS  16

const Alt dsv3_no_alt = {0};

static int
compare_lit(const void *a, const void *b)
{
	int32_t x = *(const int32_t *) a;
	int32_t y = *(const int32_t *) b;

	return (x > y) - (x < y);
}

int32_t
dsv3_ir_node(Ir *ir, const int32_t *lits, int32_t n)
{
	int32_t *set = dsv3_gr_arena_alloc(ir->ctx->arena, ((size_t) n + 1) * sizeof(int32_t));
	int32_t k = 0;
	int32_t id;
	bool fresh;

	for (int32_t i = 0; i < n; i++)
	{
		if (lits[i] == ir->lit_true || lits[i] == ir->lit_false + 1)
			continue;
		if (lits[i] == ir->lit_false || lits[i] == ir->lit_true + 1)
			return -1;
		set[k++] = lits[i];
	}
	if (k > 1)
		qsort(set, (size_t) k, sizeof(int32_t), compare_lit);
	n = 0;
	for (int32_t i = 0; i < k; i++)
	{
		if (n > 0 && set[n - 1] == set[i])
			continue;
		if (n > 0 && (set[n - 1] ^ 1) == set[i])
			return -1;
		set[n++] = set[i];
	}
	id = dsv3_gr_interner_get(&ir->litsets, set, n, &fresh);
	if (fresh)
	{
		if (id >= IR_MAX_NODES)
			dsv3_gr_fail(ir->ctx, DSV3_ERR_TOO_LARGE,
						 "Use fewer combinations of keywords that apply to the same value.",
						 "schema has more than %d different value positions", IR_MAX_NODES);
		if (id == ir->cap)
		{
			int32_t cap = ir->cap == 0 ? 64 : ir->cap * 2;
			Node *nodes = dsv3_gr_arena_alloc(ir->keep, (size_t) cap * sizeof(Node));

			if (ir->cap != 0)
				memcpy(nodes, ir->nodes, (size_t) ir->cap * sizeof(Node));
			ir->nodes = nodes;
			ir->cap = cap;
		}
		ir->nodes[id].cost = COST_INF;
		ir->nnodes = id + 1;
	}
	return id;
}

static bool
among(Lex *const *lexes, int32_t n, const Lex *lex)
{
	for (int32_t i = 0; i < n; i++)
		if (lexes[i] == lex)
			return true;
	return false;
}

static bool
holds_lex(const Ir *ir, const Lex *lex)
{
	return among(ir->lexes, ir->nlexes, lex);
}

Lex *
dsv3_ir_keep_lex(Ir *ir, Lex *lex)
{
	gr_work(ir->ctx, ir->nlexes / 16);
	if (holds_lex(ir, lex))
		return lex;
	if (ir->nlexes == ir->lex_cap)
	{
		int32_t cap = ir->lex_cap == 0 ? 16 : ir->lex_cap * 2;
		Lex **lexes = dsv3_gr_arena_alloc(ir->keep, (size_t) cap * sizeof(Lex *));

		if (ir->nlexes != 0)
			memcpy(lexes, ir->lexes, (size_t) ir->nlexes * sizeof(Lex *));
		ir->lexes = lexes;
		ir->lex_cap = cap;
	}
	dsv3_vocab_hold_lex(ir->vocab, lex);
	ir->lexes[ir->nlexes++] = lex;
	return lex;
}

Lex *
dsv3_ir_cached_lex(Ir *ir, const char *key)
{
	Lex *lex = dsv3_vocab_find_lex(ir->vocab, key);

	if (lex != NULL)
	{
		bool held = holds_lex(ir, lex);

		/* The find added a reference; keep it for the grammar, or give it back when the grammar has one. */
		dsv3_ir_keep_lex(ir, lex);
		dsv3_vocab_release_lex(ir->vocab, lex);
		if (!held)
			dsv3_gr_charge(ir->ctx, &lex->made);
	}
	return lex;
}

Lex *
dsv3_ir_cache_lex(Ir *ir, const char *key, Lex *lex, const Work *before)
{
	lex->made = dsv3_gr_work_since(ir->ctx, before);
	dsv3_ir_keep_lex(ir, lex);
	dsv3_vocab_store_lex(ir->vocab, key, lex);
	dsv3_vocab_release_lex(ir->vocab, lex);
	return lex;
}

static Alt *
alt_new(Ir *ir, AltKind kind, int32_t node)
{
	Alt *alt = dsv3_gr_arena_alloc(ir->keep, sizeof(Alt));

	alt->kind = (uint8_t) kind;
	alt->node = node;
	alt->smax = alt->amax = alt->pmax = alt->max_extra = -1;
	alt->cost = COST_INF;
	if (ir->nalts == ir->alt_cap)
	{
		int32_t cap = ir->alt_cap == 0 ? 64 : ir->alt_cap * 2;
		Alt **alts = dsv3_gr_arena_alloc(ir->keep, (size_t) cap * sizeof(Alt *));

		if (ir->nalts != 0)
			memcpy(alts, ir->alts, (size_t) ir->nalts * sizeof(Alt *));
		ir->alts = alts;
		ir->alt_cap = cap;
	}
	alt->id = ir->nalts;
	ir->alts[ir->nalts++] = alt;
	return alt;
}

typedef struct AltList
{
	Alt **v;
	int32_t n;
	int32_t cap;
} AltList;

static void
alts_push(Ir *ir, AltList *list, Alt *alt)
{
	if (list->n == list->cap)
	{
		int32_t cap = list->cap == 0 ? 8 : list->cap * 2;
		Alt **v = dsv3_gr_arena_alloc(ir->ctx->arena, (size_t) cap * sizeof(Alt *));

		if (list->n != 0)
			memcpy(v, list->v, (size_t) list->n * sizeof(Alt *));
		list->v = v;
		list->cap = cap;
	}
	list->v[list->n++] = alt;
}

/* ---- numbers ---- */

static void
key_dec(TextBuf *buf, char what, const Dec *dec)
{
	dsv3_gr_textbuf_add(buf, &what, 1);
	if (dec != NULL)
		dsv3_gr_dec_write(buf, dec);
}

static Lex *
number_alt_lex(Ir *ir, const NumSpec *spec)
{
	TextBuf buf = {NULL, 0, 0, false};
	char *key;
	Lex *lex;

	dsv3_gr_textbuf_add(&buf, "n", 1);
	dsv3_gr_textbuf_add(&buf, spec->integer ? "i" : "f", 1);
	dsv3_gr_textbuf_add(&buf, spec->canonical ? "c" : "-", 1);
	key_dec(&buf, spec->lo_open ? '(' : '[', spec->lo);
	key_dec(&buf, spec->hi_open ? ')' : ']', spec->hi);
	for (const NumGrid *g = spec->grids; g != NULL; g = g->next)
		key_dec(&buf, g->negated ? '!' : '%', g->step);
	if (buf.failed)
	{
		dsv3_gr_textbuf_free(&buf);
		longjmp(ir->ctx->out, GR_OUT_MEMORY);
	}
	key = dsv3_gr_arena_text(ir->ctx->arena, buf.data, buf.len);
	dsv3_gr_textbuf_free(&buf);
	lex = dsv3_ir_cached_lex(ir, key);
	if (lex == NULL)
	{
		Work before = ir->ctx->spent;

		lex = dsv3_ir_cache_lex(ir, key, dsv3_number_lex(ir->ctx, spec), &before);
	}
	if (lex->narrowed)
		dsv3_gr_notice(ir->ctx,
					   "multipleOf is too fine for an automaton; only its first multiples are written");
	return lex;
}

/* ---- arrays ---- */

static void
array_alt(Ir *ir, AltList *list, int32_t node, const Con *con, Spelling spelling)
{
	Alt *alt = alt_new(ir, ALT_ARR, node);
	ContainsRule *rules[3];
	int32_t nc = 0;
	int32_t rows = 0;

	for (ContainsRule *r = con->contains; r != NULL; r = r->next)
	{
		bool again = false;

		for (int32_t j = 0; j < nc; j++)
			again = again || (rules[j]->lit == r->lit && rules[j]->from == r->from &&
							  rules[j]->min == r->min && rules[j]->max == r->max);
		if (again)
			continue;
		if (nc == 3)
			dsv3_gr_fail(ir->ctx, DSV3_ERR_UNSUPPORTED, NULL,
						 "more than three \"contains\" apply to one array");
		rules[nc] = dsv3_gr_arena_dup(ir->keep, r, sizeof(ContainsRule));
		alt->contains[nc] = rules[nc];
		if (r->from > rows)
			rows = r->from;
		if (r->max >= 0 && r->min > r->max)
			return;
		nc++;
	}
	for (const ItemRule *r = con->items; r != NULL; r = r->next)
	{
		if (r->from > rows)
			rows = r->from;
		if (r->to > rows)
			rows = r->to;
	}
	alt->ncontains = nc;
	alt->amin = con->amin;
	alt->comma = ir->options.whitespace == DSV3_WHITESPACE_SPACED ? dsv3_vocab_cost(ir->vocab, ", ", 2) : 1;
	alt->amax = con->amax;
	alt->unique = con->unique;
	alt->nprefix = rows;
	alt->nodes = dsv3_gr_arena_alloc(ir->keep, ((size_t) rows + 1) * sizeof(int32_t) << nc);
	for (int32_t i = 0; i <= rows; i++)
		for (int32_t set = 0; set < 1 << nc; set++)
		{
			IntVec lits = {NULL, 0, 0};
			bool possible = true;

			dsv3_con_item_lits(ir, con, i, &lits);
			for (int32_t j = 0; j < nc; j++)
			{
				bool in = (set >> j & 1) != 0;

				if (i < rules[j]->from)
					possible = possible && !in;
				else if (in)
					gr_intvec_push(ir->ctx->arena, &lits, rules[j]->lit);
				else if (rules[j]->max >= 0)
					gr_intvec_push(ir->ctx->arena, &lits, rules[j]->lit ^ 1);
			}
			dsv3_spelling_lits(ir, con->unique && spelling == SPELL_FREE ? SPELL_ONE : spelling, &lits);
			alt->nodes[(i << nc) + set] = possible ? dsv3_ir_node(ir, lits.v, lits.n) : -1;
			gr_tick(ir->ctx);
		}
	alts_push(ir, list, alt);
}

/* ---- listed values ---- */

typedef struct Texts
{
	LexLiteral *v;
	int32_t n;
	int32_t cap;
} Texts;

static void
texts_push(Ir *ir, Texts *texts, const char *text, size_t len)
{
	if (texts->n == texts->cap)
	{
		int32_t cap = texts->cap == 0 ? 16 : texts->cap * 2;
		LexLiteral *v = dsv3_gr_arena_alloc(ir->ctx->arena, (size_t) cap * sizeof(LexLiteral));

		if (texts->n != 0)
			memcpy(v, texts->v, (size_t) texts->n * sizeof(LexLiteral));
		texts->v = v;
		texts->cap = cap;
	}
	texts->v[texts->n].text = text;
	texts->v[texts->n++].len = len;
}

static bool
has_zero_byte(const Json *value)
{
	return value->kind == JSON_STRING_ && memchr(value->u.str, '\0', value->n) != NULL;
}

/* A value of an enum: scalars become texts, arrays and objects alternatives with constant elements. */
static void
listed_value(Ir *ir, AltList *list, Texts *texts, int32_t node, const Json *value, Spelling spelling)
{
	if (value->kind == JSON_ARRAY_)
	{
		Con *con = dsv3_con_new(ir, T_ARR);

		con->amin = con->amax = (int32_t) value->n;
		for (uint32_t i = 0; i < value->n; i++)
		{
			ItemRule *rule = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(ItemRule));

			rule->from = (int32_t) i;
			rule->to = (int32_t) i + 1;
			rule->lit = dsv3_ir_lit(ir, value->u.items[i], 0, true);
			rule->next = con->items;
			con->items = rule;
		}
		array_alt(ir, list, node, con, spelling);
	}
	else if (value->kind == JSON_OBJECT_)
	{
		Con *con = dsv3_con_new(ir, T_OBJ);
		KeyRule *rest = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(KeyRule));
		Alt *alt;

		rest->kind = KEY_REST;
		rest->lit = ir->lit_false;
		con->keys = rest;
		for (uint32_t i = value->n; i-- > 0;)
		{
			const JsonMember *m = &value->u.members[i];
			KeyRule *rule = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(KeyRule));

			rule->kind = KEY_NAME;
			rule->name = m->key;
			rule->len = m->keylen;
			rule->lit = dsv3_ir_lit(ir, m->value, 0, true);
			rule->next = con->keys;
			con->keys = rule;
			con->required = dsv3_gr_name_add(ir, con->required, m->key, m->keylen);
			rest->names = dsv3_gr_name_add(ir, rest->names, m->key, m->keylen);
		}
		con->order = con->required;
		alt = alt_new(ir, ALT_OBJ, node);
		if (dsv3_object_alt(ir, alt, con, spelling))
			alts_push(ir, list, alt);
	}
	else if (!has_zero_byte(value))
	{
		TextBuf buf = {NULL, 0, 0, false};
		char *text;
		size_t len;

		dsv3_gr_json_write(&buf, value);
		if (buf.failed)
		{
			dsv3_gr_textbuf_free(&buf);
			longjmp(ir->ctx->out, GR_OUT_MEMORY);
		}
		len = buf.len;
		text = dsv3_gr_arena_text(ir->ctx->arena, buf.data, len);
		dsv3_gr_textbuf_free(&buf);
		texts_push(ir, texts, text, len);
	}
}

/* ---- conditions that some key must satisfy ---- */

/* Con with `exists` obligations to Cons without: each obligation is met by a key the schema declares, or by keys beyond
 * those, all of which then have to meet it. */
static Con *
meet_obligations(Ir *ir, Con *con)
{
	KeyRule *first = con->exists;
	Con *out = NULL;
	Name *seen = NULL;

	if (first == NULL || con->listed)
	{
		con->next = NULL;
		return con;
	}
	for (int pass = 0; pass < 2; pass++)
	{
		const KeyRule *rule = pass == 0 ? con->keys : NULL;
		const Name *name = pass == 1 ? con->required : NULL;

		while (rule != NULL || name != NULL)
		{
			const char *text = rule != NULL ? rule->name : name->text;
			uint32_t len = rule != NULL ? rule->len : name->len;
			bool usable = rule == NULL || rule->kind == KEY_NAME;

			if (usable && !dsv3_gr_name_in(seen, text, len) && dsv3_key_rule_applies(ir, first, text, len))
			{
				Con *c = dsv3_gr_arena_dup(ir->ctx->arena, con, sizeof(Con));
				KeyRule *own = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(KeyRule));

				seen = dsv3_gr_name_add(ir, seen, text, len);
				c->next = NULL;
				c->exists = first->next;
				own->kind = KEY_NAME;
				own->name = text;
				own->len = len;
				own->lit = first->lit;
				own->next = c->keys;
				c->keys = own;
				c->required = dsv3_gr_name_add(ir, c->required, text, len);
				if (!dsv3_con_impossible(ir, c, 3))
					out = dsv3_ir_join(meet_obligations(ir, c), out);
			}
			rule = rule == NULL ? NULL : rule->next;
			name = name == NULL ? NULL : name->next;
			gr_tick(ir->ctx);
		}
	}
	/* By a key beyond the declared ones. For a region given by a pattern that would need a key of the pattern, which a
	 * count of extra keys does not promise; it is left out. */
	if (first->kind == KEY_REST)
	{
		Con *c = dsv3_gr_arena_dup(ir->ctx->arena, con, sizeof(Con));
		KeyRule *own = dsv3_gr_arena_dup(ir->ctx->arena, first, sizeof(KeyRule));
		KeyRule *shut;

		c->next = NULL;
		c->exists = first->next;
		own->next = c->keys;
		c->keys = own;
		/* Keys in the obligation's patterns do not count; none of them may be used as an extra. */
		for (const PatternList *p = first->patterns; p != NULL; p = p->next)
		{
			shut = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(KeyRule));
			shut->kind = KEY_PATTERN;
			shut->pattern = p->pattern;
			shut->lit = ir->lit_false;
			shut->next = c->keys;
			c->keys = shut;
		}
		/* Names the obligation excludes are declared from now on, so an extra key is never one of them. */
		for (const Name *n = first->names; n != NULL; n = n->next)
		{
			shut = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(KeyRule));
			shut->kind = KEY_NAME;
			shut->name = n->text;
			shut->len = n->len;
			shut->lit = ir->lit_true;
			shut->next = c->keys;
			c->keys = shut;
		}
		c->min_extra = 1;
		out = dsv3_ir_join(meet_obligations(ir, c), out);
	}
	return out;
}

/* ---- strings ---- */

static int
compare_key(const void *a, const void *b)
{
	return strcmp((*(Lex *const *) a)->cache_key, (*(Lex *const *) b)->cache_key);
}

/* One automaton for several, or NULL when it would be large. */
static Lex *
united_lex(Ir *ir, Lex **parts, int32_t n)
{
	Work before = ir->ctx->spent;
	size_t size = 2;
	char *key;
	Lex *lex;

	qsort(parts, (size_t) n, sizeof(Lex *), compare_key);
	for (int32_t i = 0; i < n; i++)
		size += strlen(parts[i]->cache_key) + 1;
	key = dsv3_gr_arena_alloc(ir->ctx->arena, size);
	key[0] = '|';
	for (int32_t i = 0; i < n; i++)
	{
		strcat(key, parts[i]->cache_key);
		strcat(key, "\2");
	}
	lex = dsv3_ir_cached_lex(ir, key);
	if (lex == NULL && (lex = dsv3_lex_union(ir->ctx, parts, n, MAX_UNITED)) != NULL)
		lex = dsv3_ir_cache_lex(ir, key, lex, &before);
	return lex;
}

static bool
like_string(const Alt *a, const Alt *b)
{
	return a->kind == ALT_STR && a->smin == b->smin && a->smax == b->smax;
}

/*
 * What follows a string does not depend on which alternative it was, so those with the same length bounds become one: fewer
 * readings to carry along, and what one of them refuses and another takes is taken without looking.
 */
static void
unite_strings(Ir *ir, AltList *list)
{
	for (int32_t i = 0; i < list->n; i++)
	{
		Alt *first = list->v[i];
		Lex *parts[MAX_PARTS];
		Lex *lex;
		int32_t n = 0;
		int32_t kept = i + 1;

		if (first->kind != ALT_STR)
			continue;
		for (int32_t k = i; k < list->n && n < MAX_PARTS; k++)
			if (like_string(list->v[k], first) && list->v[k]->lex->n <= MAX_UNITED &&
				list->v[k]->lex->cache_key != NULL && !among(parts, n, list->v[k]->lex))
				parts[n++] = list->v[k]->lex;
		gr_work(ir->ctx, list->n / 4);
		if (n < 2 || parts[0] != first->lex || (lex = united_lex(ir, parts, n)) == NULL)
			continue;
		/* Those that are in it go; the first of them stays with the new automaton. */
		for (int32_t k = i + 1; k < list->n; k++)
			if (!like_string(list->v[k], first) || !among(parts, n, list->v[k]->lex))
				list->v[kept++] = list->v[k];
		first->lex = lex;
		list->n = kept;
	}
}

/* ---- nodes ---- */

static bool
same_alt(const Alt *a, const Alt *b)
{
	return a->kind == b->kind && (a->kind == ALT_STR || a->kind == ALT_NUM) && a->lex == b->lex &&
		   a->smin == b->smin && a->smax == b->smax;
}

/* Could one value be read in two ways, as an object or as an array? */
static bool
several_readings(const Con *list)
{
	int32_t arrays = 0;
	int32_t objects = 0;

	for (; list != NULL; list = list->next)
	{
		arrays += list->listed ? list->nvalues : (list->types & T_ARR) != 0;
		objects += list->listed                 ? list->nvalues
				   : (list->types & T_OBJ) != 0 ? (list->exists != NULL ? 2 : 1)
												: 0;
	}
	return arrays > 1 || objects > 1;
}

void
dsv3_spelling_lits(const Ir *ir, Spelling spelling, IntVec *lits)
{
	if (spelling != SPELL_FREE)
		gr_intvec_push(ir->ctx->arena, lits, ir->lit_canonical);
	if (spelling == SPELL_STRICT)
		gr_intvec_push(ir->ctx->arena, lits, ir->lit_strict);
}

static void
build_node(Ir *ir, int32_t id)
{
	int32_t n;
	const int32_t *lits = interner_key(&ir->litsets, id, &n);
	Con *list = dsv3_con_new(ir, T_ALL);
	Spelling spelling = SPELL_FREE;
	AltList alts = {NULL, 0, 0};
	Texts texts = {NULL, 0, 0};
	uint8_t words = 0;

	for (int32_t i = 0; i < n && list != NULL; i++)
	{
		if (lits[i] == ir->lit_canonical || lits[i] == ir->lit_strict)
		{
			if (lits[i] == ir->lit_strict || spelling == SPELL_FREE)
				spelling = lits[i] == ir->lit_strict ? SPELL_STRICT : SPELL_ONE;
			continue;
		}
		list = dsv3_ir_and(ir, list, dsv3_ir_expand(ir, lits[i], false));
	}
	if (spelling == SPELL_ONE && several_readings(list))
		spelling = SPELL_STRICT;
	for (Con *next = NULL, *c = list; c != NULL; c = next)
	{
		next = c->next;
		for (Con *con = meet_obligations(ir, dsv3_gr_arena_dup(ir->ctx->arena, c, sizeof(Con))); con != NULL;
			 con = con->next)
		{
			Con own = *con;

			gr_tick(ir->ctx);
			if (own.listed)
			{
				for (int32_t i = 0; i < own.nvalues; i++)
					listed_value(ir, &alts, &texts, id, own.values[i], spelling);
				continue;
			}
			if (dsv3_con_impossible(ir, &own, 2))
				continue;
			words |= own.types & (T_NULL | T_TRUE | T_FALSE);
			if ((own.types & T_NUM) != 0)
			{
				Alt *alt = alt_new(ir, ALT_NUM, id);

				own.num.canonical = spelling != SPELL_FREE;
				alt->lex = number_alt_lex(ir, &own.num);
				if (alt->lex->n > 0)
					alts_push(ir, &alts, alt);
			}
			if ((own.types & T_STR) != 0)
			{
				Alt *alt = alt_new(ir, ALT_STR, id);

				alt->lex = dsv3_con_string_lex(ir, &own, &alt->smin, &alt->smax);
				if (alt->lex->n > 0)
					alts_push(ir, &alts, alt);
			}
			if ((own.types & T_ARR) != 0)
				array_alt(ir, &alts, id, &own, spelling);
			if ((own.types & T_OBJ) != 0)
			{
				Alt *alt = alt_new(ir, ALT_OBJ, id);

				if (dsv3_object_alt(ir, alt, &own, spelling))
					alts_push(ir, &alts, alt);
			}
		}
	}
	if ((words & T_NULL) != 0)
		texts_push(ir, &texts, "null", 4);
	if ((words & T_TRUE) != 0)
		texts_push(ir, &texts, "true", 4);
	if ((words & T_FALSE) != 0)
		texts_push(ir, &texts, "false", 5);
	if (texts.n > 0)
	{
		Alt *alt = alt_new(ir, ALT_LIT, id);

		alt->lex = dsv3_ir_keep_lex(ir, dsv3_lex_literals(ir->ctx, texts.v, texts.n, true));
		alts_push(ir, &alts, alt);
	}
	unite_strings(ir, &alts);
	ir->nodes[id].alts = dsv3_gr_arena_alloc(ir->keep, ((size_t) alts.n + 1) * sizeof(Alt *));
	for (int32_t i = 0; i < alts.n; i++)
	{
		bool again = false;

		for (int32_t k = 0; k < ir->nodes[id].nalts && !again; k++)
			again = same_alt(alts.v[i], ir->nodes[id].alts[k]);
		if (!again)
			ir->nodes[id].alts[ir->nodes[id].nalts++] = alts.v[i];
	}
	ir->nodes[id].built = true;
}

/* ---- costs ---- */

static int32_t
alt_cost(Ir *ir, Alt *alt)
{
	switch (alt->kind)
	{
		case ALT_LIT:
		case ALT_NUM:
			return dsv3_vocab_lex_cost(ir->vocab, alt->lex, 0, 0);
		case ALT_STR: /* the opening quote is a token of its own in this count */
			return add_cost(1, dsv3_string_cost(ir->vocab, alt, 0, 0));
		case ALT_ARR:
		{
			int32_t none[3] = {0, 0, 0};

			return add_cost(1, dsv3_array_rest(ir->nodes, alt, 0, none));
		}
		default:
			dsv3_object_costs(ir, alt);
			return add_cost(1, dsv3_object_open_rest(ir->nodes, alt));
	}
}

static int32_t
alt_card(Ir *ir, const Alt *alt)
{
	switch (alt->kind)
	{
		case ALT_LIT:
		case ALT_NUM:
			return alt->lex->card[0];
		case ALT_STR:
			return dsv3_string_card(alt, 0, 0);
		case ALT_ARR:
		{
			int32_t node = alt->nodes[0];

			if (alt->amax == 0)
				return 1;
			if (alt->ncontains > 0)
				return 1;
			if (node >= 0 && ir->nodes[node].cost < COST_INF)
				return ir->nodes[node].card + (alt->amin == 0);
			return 1;
		}
		default:
		{
			int64_t card = 1;

			if (alt->lex != NULL && (alt->pmax < 0 || alt->pmax > alt->required_left[0]))
				card = alt->lex->card[0] / 2 + 1;
			for (int32_t i = 0; i < alt->nprops && card < LEX_CARD_MAX; i++)
				if (alt->props[i].required && alt->props[i].node >= 0)
					card *= ir->nodes[alt->props[i].node].card;
			/* One optional member, there or not, when there is room for it. */
			if (alt->pmax < 0 || alt->pmax > alt->required_left[0] + alt->min_extra)
			{
				int64_t best = 0;

				for (int32_t i = 0; i < alt->nprops; i++)
					if (!alt->props[i].required && alt->props[i].node >= 0 &&
						ir->nodes[alt->props[i].node].card > best)
						best = ir->nodes[alt->props[i].node].card;
				card *= best + (alt->pmin <= alt->required_left[0] || best == 0);
			}
			return card > LEX_CARD_MAX ? LEX_CARD_MAX : (int32_t) card;
		}
	}
}

/* Enough different elements for the least number of them? */
static bool
unique_possible(Ir *ir, const Alt *alt)
{
	for (int32_t i = 0; i < alt->amin && i <= alt->nprefix; i++)
	{
		int32_t node = alt->nodes[i << alt->ncontains];
		int32_t need = i < alt->nprefix ? i + 1 : alt->amin;

		if (node < 0 || ir->nodes[node].card < need)
			return false;
	}
	return true;
}

static void
settle_costs(Ir *ir)
{
	bool again = true;

	for (int32_t i = 0; i < ir->nnodes; i++)
		ir->nodes[i].cost = COST_INF;
	for (int32_t i = 0; i < ir->nalts; i++)
		ir->alts[i]->cost = COST_INF;
	while (again)
	{
		again = false;
		for (int32_t i = ir->nnodes - 1; i >= 0; i--)
		{
			Node *node = &ir->nodes[i];

			for (int32_t k = 0; k < node->nalts; k++)
			{
				int32_t cost = node->alts[k]->dead ? COST_INF : alt_cost(ir, node->alts[k]);

				gr_tick(ir->ctx);
				if (cost < node->alts[k]->cost)
					node->alts[k]->cost = cost;
				if (cost < node->cost)
				{
					node->cost = cost;
					again = true;
				}
			}
		}
	}
	/* Lower bounds of how many values there are: start from "one" and let it grow a few rounds. */
	for (int32_t i = 0; i < ir->nnodes; i++)
		ir->nodes[i].card = ir->nodes[i].cost < COST_INF;
	for (int round = 0; round < 4; round++)
		for (int32_t i = ir->nnodes - 1; i >= 0; i--)
			for (int32_t k = 0; k < ir->nodes[i].nalts; k++)
			{
				Alt *alt = ir->nodes[i].alts[k];

				if (alt->cost >= COST_INF)
					continue;
				alt->card = alt_card(ir, alt);
				if (alt->card > ir->nodes[i].card)
					ir->nodes[i].card = alt->card > LEX_CARD_MAX ? LEX_CARD_MAX : alt->card;
				gr_tick(ir->ctx);
			}
}

static bool
drop_unique(Ir *ir)
{
	bool any = false;

	for (int32_t i = 0; i < ir->nnodes; i++)
		for (int32_t k = 0; k < ir->nodes[i].nalts; k++)
		{
			Alt *alt = ir->nodes[i].alts[k];

			if (alt->kind == ALT_ARR && alt->unique && !alt->dead && alt->cost < COST_INF &&
				!unique_possible(ir, alt))
				any = alt->dead = true;
		}
	return any;
}

void
dsv3_ir_build(Ir *ir)
{
	for (int32_t i = 0; i < ir->nnodes; i++)
		build_node(ir, i);

	/* Dropping an alternative for want of different elements can make others impossible: start over until none goes. */
	do
		settle_costs(ir);
	while (drop_unique(ir));

	for (int32_t i = 0; i < ir->nnodes; i++)
	{
		Node *node = &ir->nodes[i];
		int32_t n = 0;

		for (int32_t k = 0; k < node->nalts; k++)
			if (node->alts[k]->cost < COST_INF)
				node->alts[n++] = node->alts[k];
		node->nalts = n;
		if (n == 0)
			node->cost = COST_INF;
	}
	for (int32_t i = 0; i < ir->nnodes; i++)
		for (int32_t k = 0; k < ir->nodes[i].nalts; k++)
		{
			Alt *alt = ir->nodes[i].alts[k];

			if (alt->kind == ALT_OBJ)
				dsv3_object_finish(ir, alt);
			else if (alt->kind == ALT_ARR)
				for (int32_t r = 0; r < (alt->nprefix + 1) << alt->ncontains; r++)
					if (alt->nodes[r] >= 0 && ir->nodes[alt->nodes[r]].cost >= COST_INF)
						alt->nodes[r] = -1;
			gr_tick(ir->ctx);
		}
}
