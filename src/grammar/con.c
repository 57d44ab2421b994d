/*
 * con.c
 *	  Conjunctions of plain conditions: intersection, emptiness as far as it can be told locally, membership of a given
 *	  value, and the automaton of a string condition (ir.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/ir.h"
#include "grammar/vocab.h"

Con *
dsv3_con_new(Ir *ir, uint8_t types)
{
	Con *con = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(Con));

	con->types = types;
	con->smax = con->amax = con->pmax = -1;
	return con;
}

Name *
dsv3_gr_name_add(Ir *ir, Name *names, const char *text, uint32_t len)
{
	Name *name = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(Name));

	name->text = text;
	name->len = len;
	name->next = names;
	return name;
}

bool
dsv3_gr_name_in(const Name *names, const char *text, uint32_t len)
{
	for (; names != NULL; names = names->next)
		if (names->len == len && memcmp(names->text, text, len) == 0)
			return true;
	return false;
}

/* Lists are immutable; joining copies the shorter way: all of a in front of b. */
#define JOIN(type)                                                                                           \
	static type *join_##type(Ir *ir, const type *a, type *b)                                                 \
	{                                                                                                        \
		type *head = b;                                                                                      \
		type **tail = &head;                                                                                 \
                                                                                                             \
		for (; a != NULL; a = a->next)                                                                       \
		{                                                                                                    \
			type *cell = dsv3_gr_arena_dup(ir->ctx->arena, a, sizeof(type));                                 \
                                                                                                             \
			cell->next = b;                                                                                  \
			*tail = cell;                                                                                    \
			tail = &cell->next;                                                                              \
			gr_tick(ir->ctx);                                                                                \
		}                                                                                                    \
		return head;                                                                                         \
	}

JOIN(StrRule)
JOIN(Name)
JOIN(ItemRule)
JOIN(ContainsRule)
JOIN(KeyRule)
JOIN(LitList)
JOIN(PatternList)
JOIN(NumGrid)

static int32_t
smaller(int32_t a, int32_t b)
{
	return a < 0 ? b : (b < 0 || a < b ? a : b);
}

static int32_t
larger(int32_t a, int32_t b)
{
	return a > b ? a : b;
}

static void
number_and(Ir *ir, NumSpec *out, const NumSpec *a, const NumSpec *b)
{
	int c;

	*out = *a;
	out->integer = a->integer || b->integer;
	if (b->lo != NULL)
	{
		c = a->lo == NULL ? 1 : dsv3_gr_dec_compare(b->lo, a->lo);
		if (c > 0 || (c == 0 && b->lo_open))
		{
			out->lo = b->lo;
			out->lo_open = b->lo_open;
		}
	}
	if (b->hi != NULL)
	{
		c = a->hi == NULL ? -1 : dsv3_gr_dec_compare(b->hi, a->hi);
		if (c < 0 || (c == 0 && b->hi_open))
		{
			out->hi = b->hi;
			out->hi_open = b->hi_open;
		}
	}
	if (b->grids != NULL)
		out->grids = join_NumGrid(ir, a->grids, b->grids);
}

/* Conditions that a range of counts contradicts by itself. */
static void
drop_contradictions(Con *con)
{
	bool integral = con->num.integer;

	if (dsv3_number_spec_empty(&con->num))
		con->types &= (uint8_t) ~T_NUM;
	for (const NumGrid *g = con->num.grids; g != NULL; g = g->next)
		if (g->negated && g->step->ndigits == 1 && g->step->digits[0] == '1' && g->step->exp <= 0 && integral)
			con->types &= (uint8_t) ~T_NUM;
	if (con->smax >= 0 && con->smin > con->smax)
		con->types &= (uint8_t) ~T_STR;
	if (con->amax >= 0 && con->amin > con->amax)
		con->types &= (uint8_t) ~T_ARR;
	if (con->pmax >= 0 && con->pmin > con->pmax)
		con->types &= (uint8_t) ~T_OBJ;
}

Con *
dsv3_con_and(Ir *ir, const Con *a, const Con *b)
{
	Con *c;

	if (b->listed && !a->listed)
	{
		const Con *t = a;

		a = b;
		b = t;
	}
	c = dsv3_gr_arena_dup(ir->ctx->arena, a, sizeof(Con));
	c->next = NULL;
	c->types = a->types & b->types;
	if (a->listed)
	{
		c->types = T_ALL;
		c->nvalues = 0;
		c->values = dsv3_gr_arena_alloc(ir->ctx->arena, ((size_t) a->nvalues + 1) * sizeof(Json *));
		for (int32_t i = 0; i < a->nvalues; i++)
			if (dsv3_con_accepts(ir, b, a->values[i]))
				c->values[c->nvalues++] = a->values[i];
		if (c->nvalues == 0)
			return NULL;
	}
	else
	{
		if ((c->types & T_NUM) != 0)
			number_and(ir, &c->num, &a->num, &b->num);
		if ((c->types & T_STR) != 0)
		{
			c->str = join_StrRule(ir, a->str, b->str);
			c->excluded = join_Name(ir, a->excluded, b->excluded);
			c->smin = larger(a->smin, b->smin);
			c->smax = smaller(a->smax, b->smax);
		}
		if ((c->types & T_ARR) != 0)
		{
			c->items = join_ItemRule(ir, a->items, b->items);
			c->contains = join_ContainsRule(ir, a->contains, b->contains);
			c->amin = larger(a->amin, b->amin);
			c->amax = smaller(a->amax, b->amax);
			c->unique = a->unique || b->unique;
		}
		if ((c->types & T_OBJ) != 0)
		{
			c->keys = join_KeyRule(ir, a->keys, b->keys);
			c->exists = join_KeyRule(ir, a->exists, b->exists);
			c->required = join_Name(ir, a->required, b->required);
			c->order = join_Name(ir, a->order, b->order);
			c->names = join_LitList(ir, a->names, b->names);
			c->pmin = larger(a->pmin, b->pmin);
			c->pmax = smaller(a->pmax, b->pmax);
			c->min_extra = larger(a->min_extra, b->min_extra);
		}
		drop_contradictions(c);
		if (c->types == 0)
			return NULL;
	}
	c->seen_names = join_Name(ir, a->seen_names, b->seen_names);
	c->seen_patterns = join_PatternList(ir, a->seen_patterns, b->seen_patterns);
	c->seen_all = a->seen_all || b->seen_all;
	c->seen_items = larger(a->seen_items, b->seen_items);
	c->seen_all_items = a->seen_all_items || b->seen_all_items;
	c->seen_contains = join_LitList(ir, a->seen_contains, b->seen_contains);
	return c;
}

/* ---- patterns ---- */

KeyPattern *
dsv3_ir_key_pattern(Ir *ir, const char *text, uint32_t len)
{
	KeyPattern *p;

	for (p = ir->patterns; p != NULL; p = p->next)
		if (p->len == len && memcmp(p->text, text, len) == 0)
			return p;
	p = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(KeyPattern));
	p->text = text;
	p->len = len;
	p->at = ir->ctx->at;
	p->next = ir->patterns;
	ir->patterns = p;
	return p;
}

Pattern *
dsv3_ir_pattern(Ir *ir, KeyPattern *p, bool counted)
{
	Pattern **slot = counted ? &p->counted : &p->pattern;

	if (*slot == NULL)
	{
		Work before = ir->ctx->spent;

		ir->ctx->at = p->at;
		ir->ctx->keyword = "pattern";
		*slot = dsv3_regex_compile(ir->ctx, p->text, p->len, true, false, counted);
		(*slot)->made = dsv3_gr_work_since(ir->ctx, &before);
	}
	else if (ir->for_lex || !(*slot)->charged)
		dsv3_gr_charge(ir->ctx, &(*slot)->made);
	/* A lexeme is charged with all its parts, since it may be found made another time; any other use counts once. */
	(*slot)->charged = (*slot)->charged || !ir->for_lex;
	return *slot;
}

const char *
dsv3_ir_escape(Ir *ir, Arena *arena, const char *text, uint32_t len, uint32_t *outlen)
{
	TextBuf buf = {NULL, 0, 0, false};
	char *copy;

	dsv3_gr_json_write_string(&buf, text, len);
	if (buf.failed)
	{
		dsv3_gr_textbuf_free(&buf);
		longjmp(ir->ctx->out, GR_OUT_MEMORY);
	}
	/* The arena may jump; the buffer would leak by then, so the arena is asked for room first. */
	if (!dsv3_gr_arena_has_room(arena, buf.len + 16))
	{
		dsv3_gr_textbuf_free(&buf);
		longjmp(*arena->out, GR_OUT_LIMIT);
	}
	copy = dsv3_gr_arena_text(arena, buf.data + 1, buf.len - 2);
	*outlen = (uint32_t) buf.len - 2;
	dsv3_gr_textbuf_free(&buf);
	return copy;
}

static bool
pattern_accepts(const Pattern *pattern, const char *escaped, uint32_t len)
{
	for (const PatternPart *part = pattern->parts; part != NULL; part = part->next)
	{
		int32_t s = part->lex->n == 0 ? LEX_DEAD : dsv3_lex_run(part->lex, 0, escaped, len);

		if ((s >= 0 && part->lex->tag[s] >= 0) == part->negated)
			return false;
	}
	return true;
}

bool
dsv3_key_pattern_matches(Ir *ir, KeyPattern *pattern, const char *key, uint32_t len)
{
	uint32_t elen;
	const char *escaped = dsv3_ir_escape(ir, ir->ctx->arena, key, len, &elen);

	return pattern_accepts(dsv3_ir_pattern(ir, pattern, false), escaped, elen);
}

bool
dsv3_key_rule_applies(Ir *ir, const KeyRule *rule, const char *key, uint32_t len)
{
	switch (rule->kind)
	{
		case KEY_NAME:
			return rule->len == len && memcmp(rule->name, key, len) == 0;
		case KEY_PATTERN:
			return dsv3_key_pattern_matches(ir, rule->pattern, key, len);
		default:
			if (dsv3_gr_name_in(rule->names, key, len))
				return false;
			for (const PatternList *p = rule->patterns; p != NULL; p = p->next)
				if (dsv3_key_pattern_matches(ir, p->pattern, key, len))
					return false;
			return true;
	}
}

void
dsv3_con_key_lits(Ir *ir, const Con *con, const char *key, uint32_t len, IntVec *out)
{
	for (const KeyRule *rule = con->keys; rule != NULL; rule = rule->next)
	{
		if (dsv3_key_rule_applies(ir, rule, key, len))
			gr_intvec_push(ir->ctx->arena, out, rule->lit);
		gr_tick(ir->ctx);
	}
}

void
dsv3_con_item_lits(Ir *ir, const Con *con, int32_t index, IntVec *out)
{
	for (const ItemRule *rule = con->items; rule != NULL; rule = rule->next)
		if (index >= rule->from && (rule->to < 0 || index < rule->to))
			gr_intvec_push(ir->ctx->arena, out, rule->lit);
}

/* ---- membership ---- */

static bool
lit_accepts(Ir *ir, int32_t lit, const Json *value)
{
	int32_t n;
	const int32_t *key = interner_key(&ir->lits, lit >> 1, &n);
	const Json *schema =
		(const Json *) (uintptr_t) ((uint64_t) (uint32_t) key[0] | (uint64_t) (uint32_t) key[1] << 32);
	bool holds = key[3] ? dsv3_gr_json_equal(schema, value)
						: dsv3_validate_value(ir->validator, schema, key[2], value);

	return holds != ((lit & 1) != 0);
}

static bool
array_accepts(Ir *ir, const Con *con, const Json *value)
{
	if (value->n < (uint32_t) con->amin || (con->amax >= 0 && value->n > (uint32_t) con->amax))
		return false;
	for (const ItemRule *rule = con->items; rule != NULL; rule = rule->next)
		for (uint32_t i = (uint32_t) rule->from; i < value->n && (rule->to < 0 || i < (uint32_t) rule->to);
			 i++)
			if (!lit_accepts(ir, rule->lit, value->u.items[i]))
				return false;
	for (const ContainsRule *rule = con->contains; rule != NULL; rule = rule->next)
	{
		int32_t found = 0;

		for (uint32_t i = (uint32_t) rule->from; i < value->n; i++)
			found += lit_accepts(ir, rule->lit, value->u.items[i]);
		if (found < rule->min || (rule->max >= 0 && found > rule->max))
			return false;
	}
	for (uint32_t i = 0; con->unique && i < value->n; i++)
		for (uint32_t k = 0; k < i; k++)
			if (dsv3_gr_json_equal(value->u.items[i], value->u.items[k]))
				return false;
	return true;
}

static bool
object_accepts(Ir *ir, const Con *con, const Json *value)
{
	if (value->n < (uint32_t) con->pmin || (con->pmax >= 0 && value->n > (uint32_t) con->pmax))
		return false;
	for (const Name *name = con->required; name != NULL; name = name->next)
		if (dsv3_gr_json_get_n(value, name->text, name->len) == NULL)
			return false;
	for (uint32_t i = 0; i < value->n; i++)
	{
		const JsonMember *m = &value->u.members[i];

		for (const KeyRule *rule = con->keys; rule != NULL; rule = rule->next)
			if (dsv3_key_rule_applies(ir, rule, m->key, m->keylen) && !lit_accepts(ir, rule->lit, m->value))
				return false;
		for (const LitList *l = con->names; l != NULL; l = l->next)
		{
			Json *name = dsv3_gr_json_new(ir->ctx->arena, JSON_STRING_);

			name->u.str = m->key;
			name->n = m->keylen;
			if (!lit_accepts(ir, l->lit, name))
				return false;
		}
	}
	for (const KeyRule *rule = con->exists; rule != NULL; rule = rule->next)
	{
		bool found = false;

		for (uint32_t i = 0; i < value->n && !found; i++)
			found = dsv3_key_rule_applies(ir, rule, value->u.members[i].key, value->u.members[i].keylen) &&
					lit_accepts(ir, rule->lit, value->u.members[i].value);
		if (!found)
			return false;
	}
	return true;
}

bool
dsv3_con_accepts(Ir *ir, const Con *con, const Json *value)
{
	static const uint8_t bits[] = {T_NULL, T_FALSE, T_TRUE, T_NUM, T_STR, T_ARR, T_OBJ};

	gr_tick(ir->ctx);
	if (con->listed)
	{
		for (int32_t i = 0; i < con->nvalues; i++)
			if (dsv3_gr_json_equal(con->values[i], value))
				return true;
		return false;
	}
	if ((con->types & bits[value->kind]) == 0)
		return false;
	switch (value->kind)
	{
		case JSON_NUMBER_:
			return dsv3_number_spec_has(&con->num, value->u.num);
		case JSON_STRING_:
		{
			int32_t length = (int32_t) dsv3_gr_json_codepoints(value->u.str, value->n);

			if (length < con->smin || (con->smax >= 0 && length > con->smax) ||
				dsv3_gr_name_in(con->excluded, value->u.str, value->n))
				return false;
			for (const StrRule *rule = con->str; rule != NULL; rule = rule->next)
			{
				bool holds = rule->pattern == NULL
								 ? dsv3_validate_format(rule->text, value->u.str, value->n)
								 : dsv3_key_pattern_matches(ir, rule->pattern, value->u.str, value->n);

				if (holds == rule->negated)
					return false;
			}
			return true;
		}
		case JSON_ARRAY_:
			return array_accepts(ir, con, value);
		case JSON_OBJECT_:
			return object_accepts(ir, con, value);
		default:
			return true;
	}
}

/* ---- emptiness ---- */

bool
dsv3_ir_set_impossible(Ir *ir, const int32_t *lits, int32_t n, int depth)
{
	Con *list = NULL;
	int32_t id;
	int32_t loops;

	for (int32_t i = 0; i < n; i++)
	{
		if (lits[i] == ir->lit_false || lits[i] == ir->lit_true + 1)
			return true;
		for (int32_t k = 0; k < i; k++)
			if (lits[k] == (lits[i] ^ 1))
				return true;
	}
	if (depth <= 0 || n == 0)
		return false;
	id = dsv3_gr_interner_get(&ir->empty_sets, lits, n, NULL);
	if (id >= ir->empty_cap)
	{
		int32_t cap = ir->empty_cap == 0 ? 256 : ir->empty_cap * 2;
		uint8_t *state = dsv3_gr_arena_alloc(ir->ctx->arena, (size_t) cap);

		if (ir->empty_cap != 0)
			memcpy(state, ir->empty_state, (size_t) ir->empty_cap);
		ir->empty_state = state;
		ir->empty_cap = cap;
	}
	if (ir->empty_state[id] >= depth)
		return ir->empty_state[id] == 100;
	ir->empty_state[id] = (uint8_t) depth; /* "not shown" while it is being looked at */
	loops = ir->loops;
	for (int32_t i = 0; i < n; i++)
	{
		Con *other = dsv3_ir_expand(ir, lits[i], false);

		list = i == 0 ? other : dsv3_ir_and(ir, list, other);
		if (loops != ir->loops)
		{
			/* It leads back to what is being expanded just now: nothing can be said yet. */
			ir->empty_state[id] = 0;
			return false;
		}
		if (list == NULL)
		{
			ir->empty_state[id] = 100;
			return true;
		}
	}
	for (; list != NULL; list = list->next)
	{
		Con *c = dsv3_gr_arena_dup(ir->ctx->arena, list, sizeof(Con));

		if (!dsv3_con_impossible(ir, c, depth - 1))
			return false;
	}
	ir->empty_state[id] = 100;
	return true;
}

static int
compare_lit(const void *a, const void *b)
{
	int32_t x = *(const int32_t *) a;
	int32_t y = *(const int32_t *) b;

	return (x > y) - (x < y);
}

static bool
lits_impossible(Ir *ir, IntVec *lits, int depth)
{
	if (lits->n > 1)
		qsort(lits->v, (size_t) lits->n, sizeof(int32_t), compare_lit);
	return dsv3_ir_set_impossible(ir, lits->v, lits->n, depth);
}

bool
dsv3_con_impossible(Ir *ir, Con *con, int depth)
{
	int32_t smin;
	int32_t smax;

	if (con->listed)
		return con->nvalues == 0;
	drop_contradictions(con);
	if ((con->types & T_STR) != 0 && con->str != NULL && con->str->next != NULL && depth > 0)
	{
		const Lex *lex = dsv3_con_string_lex(ir, con, &smin, &smax);

		if (lex->n == 0)
			con->types &= (uint8_t) ~T_STR;
	}
	if ((con->types & T_OBJ) != 0)
	{
		int32_t n = 0;

		for (const Name *name = con->required; name != NULL && n < 64; name = name->next, n++)
		{
			IntVec lits = {NULL, 0, 0};

			dsv3_con_key_lits(ir, con, name->text, name->len, &lits);
			if (lits.n != 0 && lits_impossible(ir, &lits, depth))
			{
				con->types &= (uint8_t) ~T_OBJ;
				break;
			}
		}
	}
	if ((con->types & T_ARR) != 0)
		for (int32_t i = 0; i < con->amin && i < 16; i++)
		{
			IntVec lits = {NULL, 0, 0};

			dsv3_con_item_lits(ir, con, i, &lits);
			if (lits.n != 0 && lits_impossible(ir, &lits, depth))
			{
				con->types &= (uint8_t) ~T_ARR;
				break;
			}
		}
	return con->types == 0;
}

/* ---- the automaton of a string condition ---- */

typedef struct Decide
{
	int32_t nrules;
	uint64_t mask[64]; /* parts of a rule */
	uint64_t want[64]; /* which of them must accept */
	bool negated[64];
} Decide;

static int32_t
decide_string(void *arg, uint64_t accepting)
{
	const Decide *d = arg;

	for (int32_t i = 0; i < d->nrules; i++)
		if (((accepting & d->mask[i]) == d->want[i]) == d->negated[i])
			return -1;
	return 0;
}

static int
compare_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *) a, *(const char *const *) b);
}

/* What the automaton depends on, as text. */
static const char *
string_key(Ir *ir, const Con *con)
{
	const char **parts;
	int32_t n = 1;
	size_t total = 1;
	char *key;
	char *at;

	for (const StrRule *rule = con->str; rule != NULL; rule = rule->next)
		n++;
	for (const Name *name = con->excluded; name != NULL; name = name->next)
		n++;
	parts = dsv3_gr_arena_alloc(ir->ctx->arena, (size_t) n * sizeof(char *));
	n = 0;
	for (const StrRule *rule = con->str; rule != NULL; rule = rule->next)
	{
		uint32_t len = (uint32_t) strlen(rule->text);
		char *part = dsv3_gr_arena_alloc(ir->ctx->arena, len + 3);

		part[0] = rule->pattern != NULL ? 'p' : 'f';
		part[1] = rule->negated ? '-' : '+';
		memcpy(part + 2, rule->text, len);
		parts[n++] = part;
	}
	for (const Name *name = con->excluded; name != NULL; name = name->next)
	{
		char *part = dsv3_gr_arena_alloc(ir->ctx->arena, (size_t) name->len * 6 + 3);
		uint32_t len;
		const char *escaped = dsv3_ir_escape(ir, ir->ctx->arena, name->text, name->len, &len);

		part[0] = 'x';
		memcpy(part + 1, escaped, len);
		parts[n++] = part;
	}
	if (n > 1)
		qsort(parts, (size_t) n, sizeof(char *), compare_text);
	for (int32_t i = 0; i < n; i++)
		total += strlen(parts[i]) + 1;
	at = key = dsv3_gr_arena_alloc(ir->ctx->arena, total + 2);
	*at++ = 's';
	for (int32_t i = 0; i < n; i++)
	{
		size_t len = strlen(parts[i]);

		if (i > 0 && strcmp(parts[i], parts[i - 1]) == 0)
			continue;
		memcpy(at, parts[i], len);
		at += len;
		*at++ = '\1';
	}
	return key;
}

/* The automata a string condition is made of, and how they combine. */
typedef struct StringParts
{
	Lex *parts[60];
	int32_t n;
	uint64_t must;
	Decide decide;
	int32_t min; /* counts taken out of the patterns */
	int32_t max;
} StringParts;

static void
string_parts(Ir *ir, const Con *con, StringParts *p)
{
	memset(p, 0, sizeof(*p));
	p->max = -1;
	for (const StrRule *rule = con->str; rule != NULL; rule = rule->next)
	{
		Pattern *pattern;
		int32_t r = p->decide.nrules;

		if (r == 40)
			dsv3_gr_fail(ir->ctx, DSV3_ERR_TOO_LARGE, NULL, "more than 40 patterns apply to one string");
		pattern = rule->pattern == NULL ? dsv3_format_pattern(ir, rule->text)
										: dsv3_ir_pattern(ir, rule->pattern, !rule->negated);
		if (!rule->negated)
		{
			p->min = larger(p->min, pattern->min);
			p->max = smaller(p->max, pattern->max);
		}
		for (PatternPart *part = pattern->parts; part != NULL; part = part->next)
		{
			if (p->n >= 50)
				dsv3_gr_fail(ir->ctx, DSV3_ERR_TOO_LARGE, NULL, "too many patterns apply to one string");
			p->decide.mask[r] |= UINT64_C(1) << p->n;
			if (!part->negated)
				p->decide.want[r] |= UINT64_C(1) << p->n;
			if (!part->negated && !rule->negated)
				p->must |= UINT64_C(1) << p->n;
			p->parts[p->n++] = part->lex;
		}
		p->decide.negated[r] = rule->negated;
		p->decide.nrules++;
	}
	if (con->excluded != NULL)
	{
		int32_t count = 0;
		LexLiteral *literals;

		for (const Name *name = con->excluded; name != NULL; name = name->next)
			count++;
		literals = dsv3_gr_arena_alloc(ir->ctx->arena, (size_t) count * sizeof(LexLiteral));
		count = 0;
		for (const Name *name = con->excluded; name != NULL; name = name->next)
		{
			uint32_t len;

			literals[count].text = dsv3_ir_escape(ir, ir->ctx->arena, name->text, name->len, &len);
			literals[count++].len = len;
		}
		p->decide.mask[p->decide.nrules] = p->decide.want[p->decide.nrules] = UINT64_C(1) << p->n;
		p->decide.negated[p->decide.nrules++] = true;
		p->parts[p->n++] = dsv3_lex_literals(ir->ctx, literals, count, false);
	}
}

static int32_t
decide_both(void *arg, uint64_t accepting)
{
	(void) arg;
	return accepting == 3 ? 0 : -1;
}

/*
 * The automaton, and the lengths to be counted beside it. It does not depend on the lengths where that can be avoided, so
 * that strings of all lengths share one, with its masks.
 */
Lex *
dsv3_con_string_lex(Ir *ir, const Con *con, int32_t *smin, int32_t *smax)
{
	const char *key = string_key(ir, con);
	Lex *lex = dsv3_ir_cached_lex(ir, key);
	int32_t min;
	int32_t max;

	if (lex == NULL)
	{
		Work before = ir->ctx->spent;
		StringParts *p = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(StringParts));

		ir->for_lex = true;
		string_parts(ir, con, p);
		ir->for_lex = false;
		lex = dsv3_lex_product(ir->ctx, true, p->parts, p->n, p->must, decide_string, &p->decide);
		lex->use_min = p->min;
		lex->use_max = p->max;
		lex = dsv3_ir_cache_lex(ir, key, lex, &before);
		if (con->str == NULL && con->excluded == NULL)
			dsv3_vocab_set_any(ir->vocab, lex);
	}
	min = larger(con->smin, lex->use_min);
	max = smaller(con->smax, lex->use_max);
	if (lex->n > 0 && min <= lex->minlen[0])
		min = 0; /* every text is that long */
	/*
	 * A maximum alone can always be counted beside the automaton (the shortest end must still fit), a minimum alone where
	 * every state has ways of any length; both together where every length is possible. Otherwise the lengths become part
	 * of the automaton.
	 */
	if (lex->n > 0 && min > 0 && (max >= 0 || !lex->endless) && !dsv3_lex_flexible(ir->ctx, lex))
	{
		char suffix[64];
		char *counted;
		Lex *both;

		if (max > 2000 && max > min)
		{
			max = min > 2000 ? min : 2000;
			dsv3_gr_notice(ir->ctx, "strings of this pattern are kept to at most %d characters", max);
		}
		if (max < 0 ? min > LEX_MAX_STATES : max > LEX_MAX_STATES)
			dsv3_gr_fail(ir->ctx, DSV3_ERR_TOO_LARGE, NULL, "length bound is too large for this pattern");
		snprintf(suffix, sizeof(suffix), "#%d,%d", min, max);
		counted = dsv3_gr_arena_alloc(ir->ctx->arena, strlen(key) + sizeof(suffix));
		strcpy(counted, key);
		strcat(counted, suffix);
		both = dsv3_ir_cached_lex(ir, counted);
		if (both == NULL)
		{
			Work before = ir->ctx->spent;
			Lex *parts[2] = {lex, dsv3_lex_count(ir->ctx, true, min, max)};

			both = dsv3_lex_product(ir->ctx, true, parts, 2, 3, decide_both, NULL);
			both->use_max = -1;
			both = dsv3_ir_cache_lex(ir, counted, both, &before);
		}
		lex = both;
		min = 0;
		max = -1;
	}
	if (lex->n > 0 && max >= 0 && (min > max || lex->minlen[0] > max))
		lex = dsv3_lex_literals(ir->ctx, NULL, 0, true); /* no text is as short as that */
	*smin = min;
	*smax = max;
	return lex;
}
