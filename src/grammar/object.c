/*
 * object.c
 *	  Objects: the declared keys in their order, the keys beyond them, and the counting of members (object.h).
 *
 * Keys beyond the declared ones are divided into regions by which patterns they match; each region has its own node.
 * The regions come out of one product automaton over all patterns, as tags.
 */
#include "grammar/object.h"

#include <stdlib.h>
#include <string.h>

/* ---- a table of names ---- */

typedef struct Declared
{
	const char *text;
	uint32_t len;
	IntVec lits; /* from KEY_NAME rules */
	bool required;
	bool ordered;
} Declared;

typedef struct KeyTable
{
	Ir *ir;
	Declared *v;
	int32_t n;
	int32_t cap;
	int32_t *slots;
	uint32_t mask;
} KeyTable;

static int32_t
table_find(const KeyTable *t, const char *text, uint32_t len)
{
	if (t->slots == NULL)
		return -1;
	for (uint32_t at = dsv3_gr_hash(text, len) & t->mask; t->slots[at] >= 0; at = (at + 1) & t->mask)
	{
		const Declared *d = &t->v[t->slots[at]];

		if (d->len == len && memcmp(d->text, text, len) == 0)
			return t->slots[at];
	}
	return -1;
}

static int32_t
table_add(KeyTable *t, const char *text, uint32_t len)
{
	int32_t found = table_find(t, text, len);

	if (found >= 0)
		return found;
	if (t->n == t->cap)
	{
		int32_t cap = t->cap == 0 ? 16 : t->cap * 2;
		Declared *v = dsv3_gr_arena_alloc(t->ir->ctx->arena, (size_t) cap * sizeof(Declared));

		if (t->n != 0)
			memcpy(v, t->v, (size_t) t->n * sizeof(Declared));
		t->v = v;
		t->cap = cap;
		t->mask = (uint32_t) cap * 2 - 1;
		t->slots = dsv3_gr_arena_alloc(t->ir->ctx->arena, ((size_t) t->mask + 1) * sizeof(int32_t));
		memset(t->slots, 0xff, ((size_t) t->mask + 1) * sizeof(int32_t));
		for (int32_t i = 0; i < t->n; i++)
		{
			uint32_t at = dsv3_gr_hash(v[i].text, v[i].len) & t->mask;

			while (t->slots[at] >= 0)
				at = (at + 1) & t->mask;
			t->slots[at] = i;
		}
	}
	memset(&t->v[t->n], 0, sizeof(Declared));
	t->v[t->n].text = text;
	t->v[t->n].len = len;
	{
		uint32_t at = dsv3_gr_hash(text, len) & t->mask;

		while (t->slots[at] >= 0)
			at = (at + 1) & t->mask;
		t->slots[at] = t->n;
	}
	return t->n++;
}

/* ---- the trie of declared keys ---- */

static void
build_key_trie(Ir *ir, Alt *alt)
{
	size_t total = 1;
	int32_t n = 1;
	int32_t at = 0;
	int32_t *stack;
	int32_t depth = 0;

	for (int32_t i = 0; i < alt->nprops; i++)
		total += (size_t) alt->props[i].keylen;
	alt->trie = dsv3_gr_arena_alloc(ir->keep, total * sizeof(KeyNode));
	alt->trie[0].child = alt->trie[0].sibling = alt->trie[0].prop = -1;
	for (int32_t i = 0; i < alt->nprops; i++)
	{
		int32_t node = 0;

		for (int32_t k = 0; k < alt->props[i].keylen; k++)
		{
			unsigned char byte = (unsigned char) alt->props[i].key[k];
			int32_t child = alt->trie[node].child;

			while (child >= 0 && alt->trie[child].byte != byte)
				child = alt->trie[child].sibling;
			if (child < 0)
			{
				child = n++;
				alt->trie[child].byte = byte;
				alt->trie[child].mid = byte == '\\' && !alt->trie[node].mid;
				alt->trie[child].child = alt->trie[child].prop = -1;
				alt->trie[child].sibling = alt->trie[node].child;
				alt->trie[node].child = child;
			}
			node = child;
			gr_tick(ir->ctx);
		}
		alt->trie[node].prop = i;
	}
	/* Depth first: each node's properties become one range. */
	alt->sorted = dsv3_gr_arena_alloc(ir->keep, ((size_t) alt->nprops + 1) * sizeof(int32_t));
	stack = dsv3_gr_arena_alloc(ir->ctx->arena, ((size_t) n + 1) * sizeof(int32_t) * 2);
	stack[depth++] = 0;
	while (depth > 0)
	{
		int32_t node = stack[--depth];

		if (node < 0)
		{
			alt->trie[-node - 1].hi = at;
			continue;
		}
		alt->trie[node].lo = at;
		if (alt->trie[node].prop >= 0)
			alt->sorted[at++] = alt->trie[node].prop;
		stack[depth++] = -node - 1;
		for (int32_t c = alt->trie[node].child; c >= 0; c = alt->trie[c].sibling)
			stack[depth++] = c;
	}
}

bool
dsv3_trie_alive(const Alt *alt, int32_t node, int32_t pos, int32_t n, int32_t extra)
{
	const KeyNode *k = &alt->trie[node];
	int32_t last = alt->next_required[pos] < alt->nprops ? alt->next_required[pos] : alt->nprops - 1;

	if (k->hi - k->lo > last - pos + 1)
	{
		/* Few candidates in a wide trie: look each of them up the other way round. */
		for (int32_t p = pos; p <= last; p++)
			if (alt->props[p].slot >= k->lo && alt->props[p].slot < k->hi &&
				dsv3_object_key_ok(alt, p, pos, n, extra))
				return true;
		return false;
	}
	for (int32_t i = k->lo; i < k->hi; i++)
		if (dsv3_object_key_ok(alt, alt->sorted[i], pos, n, extra))
			return true;
	return false;
}

/* ---- regions of extra keys ---- */

typedef struct NameCond
{
	int32_t nlits;
	int32_t ncons[16];
	uint64_t mask[16][16];
	uint64_t want[16][16];
	bool any[16]; /* no condition at all */
} NameCond;

typedef struct Regions
{
	Ir *ir;
	const Con *con;
	KeyPattern *patterns[40];
	uint64_t mask[40];
	uint64_t want[40];
	int32_t npatterns;
	NameCond names;
	Spelling spelling;
	IntVec nodes;  /* region -> node */
	Interner sets; /* accepting bits -> region */
	IntVec of_set;
	Lex *parts[60];
	int32_t nparts;
} Regions;

static int32_t
region_node(Regions *r, uint64_t accepting)
{
	IntVec lits = {NULL, 0, 0};
	Ir *ir = r->ir;

	for (const KeyRule *rule = r->con->keys; rule != NULL; rule = rule->next)
	{
		bool applies = rule->kind == KEY_REST;

		for (int32_t i = 0; i < r->npatterns; i++)
		{
			bool matches = (accepting & r->mask[i]) == r->want[i];

			if (rule->kind == KEY_PATTERN && rule->pattern == r->patterns[i])
				applies = matches;
			else if (rule->kind == KEY_REST && matches)
				for (const PatternList *p = rule->patterns; p != NULL; p = p->next)
					if (p->pattern == r->patterns[i])
						applies = false;
		}
		if (applies)
			gr_intvec_push(ir->ctx->arena, &lits, rule->lit);
	}
	dsv3_spelling_lits(ir, r->spelling, &lits);
	return dsv3_ir_node(ir, lits.v, lits.n);
}

static int32_t
decide_region(void *arg, uint64_t accepting)
{
	Regions *r = arg;
	int32_t key[2] = {(int32_t) (uint32_t) accepting, (int32_t) (uint32_t) (accepting >> 32)};
	bool fresh;
	int32_t set = dsv3_gr_interner_get(&r->sets, key, 2, &fresh);
	int32_t region = -1;
	bool ok = true;

	if (!fresh)
		return r->of_set.v[set];
	for (int32_t i = 0; i < r->names.nlits && ok; i++)
	{
		ok = r->names.any[i];
		for (int32_t k = 0; k < r->names.ncons[i] && !ok; k++)
			ok = (accepting & r->names.mask[i][k]) == r->names.want[i][k];
	}
	if (ok)
	{
		int32_t node = region_node(r, accepting);

		for (int32_t i = 0; node >= 0 && i < r->nodes.n; i++)
			if (r->nodes.v[i] == node)
				region = i;
		if (node >= 0 && region < 0)
		{
			region = r->nodes.n;
			gr_intvec_push(r->ir->ctx->arena, &r->nodes, node);
		}
	}
	gr_intvec_push(r->ir->ctx->arena, &r->of_set, region);
	return region;
}

static void
add_part(Regions *r, Lex *lex)
{
	if (r->nparts >= 60)
		dsv3_gr_fail(r->ir->ctx, DSV3_ERR_TOO_LARGE, "Use fewer patternProperties on one object.",
					 "too many patterns apply to the keys of one object");
	r->parts[r->nparts++] = lex;
}

static void
add_pattern(Regions *r, KeyPattern *pattern)
{
	int32_t i = r->npatterns;

	for (int32_t k = 0; k < i; k++)
		if (r->patterns[k] == pattern)
			return;
	if (i == 40)
		dsv3_gr_fail(r->ir->ctx, DSV3_ERR_TOO_LARGE, "Use fewer patternProperties on one object.",
					 "more than 40 patterns apply to the keys of one object");
	r->patterns[i] = pattern;
	for (PatternPart *part = dsv3_ir_pattern(r->ir, pattern, false)->parts; part != NULL; part = part->next)
	{
		r->mask[i] |= UINT64_C(1) << r->nparts;
		if (!part->negated)
			r->want[i] |= UINT64_C(1) << r->nparts;
		add_part(r, part->lex);
	}
	r->npatterns++;
}

/* propertyNames: each literal is a disjunction of string conditions, each an automaton of its own. */
static void
add_name_conditions(Regions *r)
{
	Ir *ir = r->ir;

	for (const LitList *l = r->con->names; l != NULL; l = l->next)
	{
		int32_t i = r->names.nlits;

		if (i == 16)
			dsv3_gr_fail(ir->ctx, DSV3_ERR_TOO_LARGE, NULL, "too many propertyNames apply to one object");
		for (Con *c = dsv3_ir_expand(ir, l->lit, false); c != NULL; c = c->next)
		{
			Lex *lex;
			int32_t smin = 0;
			int32_t smax = -1;
			int32_t k = r->names.ncons[i];

			if (!c->listed && (c->types & T_STR) == 0)
				continue;
			if (k == 16)
				dsv3_gr_fail(ir->ctx, DSV3_ERR_TOO_LARGE, NULL, "too many alternatives in propertyNames");
			if (c->listed)
			{
				LexLiteral *v =
					dsv3_gr_arena_alloc(ir->ctx->arena, ((size_t) c->nvalues + 1) * sizeof(LexLiteral));
				int32_t n = 0;

				for (int32_t q = 0; q < c->nvalues; q++)
					if (c->values[q]->kind == JSON_STRING_)
					{
						uint32_t len;

						v[n].text =
							dsv3_ir_escape(ir, ir->ctx->arena, c->values[q]->u.str, c->values[q]->n, &len);
						v[n++].len = len;
					}
				lex = dsv3_lex_literals(ir->ctx, v, n, false);
			}
			else
				lex = dsv3_con_string_lex(ir, c, &smin, &smax);
			r->names.ncons[i]++;
			if (lex->n == 0)
			{
				r->names.mask[i][k] = 0;
				r->names.want[i][k] = 1; /* never */
				continue;
			}
			r->names.mask[i][k] = UINT64_C(1) << r->nparts;
			add_part(r, lex);
			if (smin > 0 || smax >= 0)
			{
				if (smax > 4000 || smin > 4000)
					dsv3_gr_fail(ir->ctx, DSV3_ERR_TOO_LARGE, NULL,
								 "length bound in propertyNames is too large");
				r->names.mask[i][k] |= UINT64_C(1) << r->nparts;
				add_part(r, dsv3_lex_count(ir->ctx, true, smin, smax));
			}
			r->names.want[i][k] = r->names.mask[i][k];
		}
		r->names.nlits++;
	}
}

/* The automaton of extra keys, or none. */
static void
extra_keys(Ir *ir, Alt *alt, const Con *con, Spelling spelling)
{
	Regions *r = dsv3_gr_arena_alloc(ir->ctx->arena, sizeof(Regions));

	r->ir = ir;
	r->con = con;
	r->spelling = spelling;
	dsv3_gr_interner_init(&r->sets, ir->ctx->arena);
	for (const KeyRule *rule = con->keys; rule != NULL; rule = rule->next)
	{
		if (rule->kind == KEY_PATTERN)
			add_pattern(r, rule->pattern);
		for (const PatternList *p = rule->kind == KEY_REST ? rule->patterns : NULL; p != NULL; p = p->next)
			add_pattern(r, p->pattern);
	}
	add_name_conditions(r);
	if (r->nparts == 0 && r->names.nlits == 0)
	{
		int32_t smin;
		int32_t smax;

		if (decide_region(r, 0) < 0)
			return;
		alt->lex = dsv3_con_string_lex(ir, dsv3_con_new(ir, T_STR), &smin, &smax);
	}
	else
	{
		alt->lex =
			dsv3_ir_keep_lex(ir, dsv3_lex_product(ir->ctx, true, r->parts, r->nparts, 0, decide_region, r));
		if (alt->lex->n == 0)
			alt->lex = NULL;
	}
	alt->nregions = r->nodes.n;
	alt->regions = dsv3_gr_arena_dup(ir->keep, r->nodes.v, (size_t) r->nodes.n * sizeof(int32_t));
}

/* ---- building ---- */

static bool
name_allowed(Ir *ir, const Con *con, const char *text, uint32_t len)
{
	if (memchr(text, '\0', len) != NULL)
		return false;
	for (const LitList *l = con->names; l != NULL; l = l->next)
	{
		Json *name = dsv3_gr_json_new(ir->ctx->arena, JSON_STRING_);
		Con *list = dsv3_ir_expand(ir, l->lit, false);
		bool ok = false;

		name->u.str = text;
		name->n = len;
		for (; list != NULL && !ok; list = list->next)
			ok = dsv3_con_accepts(ir, list, name);
		if (!ok)
			return false;
	}
	return true;
}

static int
compare_key(const void *a, const void *b)
{
	return strcmp(((const Prop *) a)->key, ((const Prop *) b)->key);
}

bool
dsv3_object_alt(Ir *ir, Alt *alt, const Con *con, Spelling spelling)
{
	KeyTable table = {ir, NULL, 0, 0, NULL, 0};
	const KeyRule **others; /* the rules that are not about one name */
	bool **excluded;        /* for KEY_REST rules among them: which declared names they leave out */
	int32_t nothers = 0;
	int32_t at = 0;

	/* Everything that is named anywhere is declared, so that an extra key is never one of them. */
	for (const KeyRule *rule = con->keys; rule != NULL; rule = rule->next)
	{
		if (rule->kind == KEY_NAME)
		{
			int32_t d = table_add(&table, rule->name, rule->len);

			gr_intvec_push(ir->ctx->arena, &table.v[d].lits, rule->lit);
		}
		else
			nothers++;
		for (const Name *name = rule->kind == KEY_REST ? rule->names : NULL; name != NULL; name = name->next)
			table_add(&table, name->text, name->len);
		gr_tick(ir->ctx);
	}
	for (const Name *name = con->required; name != NULL; name = name->next)
	{
		int32_t d = table_add(&table, name->text, name->len);

		table.v[d].required = true;
	}
	others = dsv3_gr_arena_alloc(ir->ctx->arena, ((size_t) nothers + 1) * sizeof(KeyRule *));
	excluded = dsv3_gr_arena_alloc(ir->ctx->arena, ((size_t) nothers + 1) * sizeof(bool *));
	nothers = 0;
	for (const KeyRule *rule = con->keys; rule != NULL; rule = rule->next)
	{
		if (rule->kind == KEY_NAME)
			continue;
		if (rule->kind == KEY_REST)
			excluded[nothers] = dsv3_gr_arena_alloc(ir->ctx->arena, (size_t) table.n + 1);
		for (const Name *name = rule->kind == KEY_REST ? rule->names : NULL; name != NULL; name = name->next)
			excluded[nothers][table_find(&table, name->text, name->len)] = true;
		others[nothers++] = rule;
	}

	alt->pmin = con->pmin;
	alt->pmax = con->pmax;
	alt->min_extra = con->min_extra;
	alt->props = dsv3_gr_arena_alloc(ir->keep, ((size_t) table.n + 1) * sizeof(Prop));
	for (int pass = 0; pass < 3; pass++)
	{
		const Name *name = pass == 0 ? con->order : con->required;
		int32_t next = 0; /* third pass: whatever is left, in the order it was met */

		for (;;)
		{
			Declared *d;
			Prop *prop;
			int32_t index;

			if (pass < 2)
			{
				if (name == NULL)
					break;
				index = table_find(&table, name->text, name->len);
				name = name->next;
			}
			else
			{
				if (next == table.n)
					break;
				index = next++;
			}
			if (index < 0 || index >= table.n || table.v == NULL || table.v[index].ordered)
				continue;
			d = &table.v[index];
			d->ordered = true;
			for (int32_t k = 0; k < nothers; k++)
			{
				const KeyRule *rule = others[k];
				bool applies;

				if (rule->kind == KEY_PATTERN)
					applies = dsv3_key_pattern_matches(ir, rule->pattern, d->text, d->len);
				else
				{
					applies = !excluded[k][index];
					for (const PatternList *p = rule->patterns; p != NULL && applies; p = p->next)
						applies = !dsv3_key_pattern_matches(ir, p->pattern, d->text, d->len);
				}
				if (applies)
					gr_intvec_push(ir->ctx->arena, &d->lits, rule->lit);
			}
			dsv3_spelling_lits(ir, spelling, &d->lits);
			prop = &alt->props[at++];
			{
				uint32_t len;

				prop->key = dsv3_ir_escape(ir, ir->keep, d->text, d->len, &len);
				prop->keylen = (int32_t) len;
			}
			prop->required = d->required;
			prop->node = name_allowed(ir, con, d->text, d->len) ? dsv3_ir_node(ir, d->lits.v, d->lits.n) : -1;
			if (prop->node < 0 && prop->required)
				return false;
			gr_tick(ir->ctx);
		}
	}
	alt->nprops = at;
	/* Two extra keys could be written in two orders, which would look like two values. */
	if (spelling != SPELL_FREE)
		alt->max_extra = 1;
	if (spelling == SPELL_STRICT)
		qsort(alt->props, (size_t) at, sizeof(Prop), compare_key);
	else
		extra_keys(ir, alt, con, spelling);
	build_key_trie(ir, alt);
	for (int32_t i = 0; i < alt->nprops; i++)
		alt->props[alt->sorted[i]].slot = i;

	alt->next_required = dsv3_gr_arena_alloc(ir->keep, ((size_t) at + 1) * sizeof(int32_t));
	alt->required_left = dsv3_gr_arena_alloc(ir->keep, ((size_t) at + 1) * sizeof(int32_t));
	alt->possible_left = dsv3_gr_arena_alloc(ir->keep, ((size_t) at + 1) * sizeof(int32_t));
	alt->rest_cost = dsv3_gr_arena_alloc(ir->keep, ((size_t) at + 1) * sizeof(int32_t));
	for (int32_t i = 0; i < at; i++)
	{
		TextBuf buf = {NULL, 0, 0, false};
		Prop *prop = &alt->props[i];
		bool spaced = ir->options.whitespace == DSV3_WHITESPACE_SPACED;

		gr_work(ir->ctx, (int64_t) prop->keylen * 4 + 16);
		dsv3_gr_textbuf_add(&buf, spaced ? ", \"" : ",\"", spaced ? 3 : 2);
		dsv3_gr_textbuf_add(&buf, prop->key, (size_t) prop->keylen);
		dsv3_gr_textbuf_add(&buf, spaced ? "\": " : "\":", spaced ? 3 : 2);
		if (buf.failed)
		{
			dsv3_gr_textbuf_free(&buf);
			longjmp(ir->ctx->out, GR_OUT_MEMORY);
		}
		prop->piece = dsv3_vocab_cost(ir->vocab, buf.data, buf.len);
		prop->piece0 = dsv3_vocab_cost(ir->vocab, buf.data + 1 + spaced, buf.len - 1 - spaced);
		dsv3_gr_textbuf_free(&buf);
	}
	dsv3_object_costs(ir, alt);
	return true;
}

/* Sums over the declared members, with the nodes' present costs. */
void
dsv3_object_costs(Ir *ir, Alt *alt)
{
	int32_t last = alt->nprops;
	int32_t required = 0;
	int32_t possible = 0;
	int32_t cost = 0;

	gr_work(ir->ctx, alt->nprops / 4 + 1);
	for (int32_t i = alt->nprops;; i--)
	{
		alt->next_required[i] = last;
		alt->required_left[i] = required;
		alt->possible_left[i] = possible;
		alt->rest_cost[i] = cost;
		if (i == 0)
			break;
		{
			const Prop *prop = &alt->props[i - 1];
			int32_t node_cost = prop->node < 0 ? COST_INF : ir->nodes[prop->node].cost;

			possible += node_cost < COST_INF;
			if (prop->required)
			{
				last = i - 1;
				required++;
				cost = add_cost(cost, add_cost(node_cost, prop->piece));
			}
		}
	}
	alt->extra_cost = COST_INF;
	for (int32_t i = 0; i < alt->nregions; i++)
		if (ir->nodes[alt->regions[i]].cost < alt->extra_cost)
			alt->extra_cost = ir->nodes[alt->regions[i]].cost;
	if (alt->lex != NULL)
		alt->extra_cost = add_cost(alt->extra_cost, dsv3_vocab_lex_cost(ir->vocab, alt->lex, 0, '"') + 8);
}

/* ---- the filtered automaton when some regions have no value ---- */

typedef struct Filter
{
	const Lex *lex;
	const int32_t *region; /* new region or -1 */
	Arena *arena;
} Filter;

static bool
filter_step(void *arg, const int32_t *key, int32_t n, unsigned char byte, IntVec *out)
{
	Filter *f = arg;
	int32_t s = lex_step(f->lex, key[0], byte);

	(void) n;
	if (s < 0)
		return false;
	gr_intvec_push(f->arena, out, s);
	return true;
}

static int32_t
filter_tag(void *arg, const int32_t *key, int32_t n)
{
	Filter *f = arg;
	int32_t tag = f->lex->tag[key[0]];

	(void) n;
	return tag < 0 ? -1 : f->region[tag];
}

static int
filter_mid(void *arg, const int32_t *key, int32_t n)
{
	Filter *f = arg;

	(void) n;
	return f->lex->mid[key[0]];
}

void
dsv3_object_finish(Ir *ir, Alt *alt)
{
	int32_t *region = dsv3_gr_arena_alloc(ir->ctx->arena, ((size_t) alt->nregions + 1) * sizeof(int32_t));
	int32_t n = 0;

	for (int32_t i = 0; i < alt->nprops; i++)
		if (alt->props[i].node >= 0 && ir->nodes[alt->props[i].node].cost >= COST_INF)
			alt->props[i].node = -1;
	for (int32_t i = 0; i < alt->nregions; i++)
		region[i] = ir->nodes[alt->regions[i]].cost < COST_INF ? n++ : -1;
	if (n < alt->nregions)
	{
		if (n == 0)
			alt->lex = NULL;
		else
		{
			Filter f = {alt->lex, region, ir->ctx->arena};
			LexSource source = {&f, filter_step, filter_tag, filter_mid, true, LEX_MAX_STATES, false};
			int32_t start = 0;

			alt->lex = dsv3_ir_keep_lex(
				ir, dsv3_lex_build(ir->ctx, &source, &start, 1, alt->lex->cls, alt->lex->ncls));
			if (alt->lex->n == 0)
				alt->lex = NULL;
		}
		n = 0;
		for (int32_t i = 0; i < alt->nregions; i++)
			if (region[i] >= 0)
				alt->regions[n++] = alt->regions[i];
		alt->nregions = n;
	}
	dsv3_object_costs(ir, alt);
}

/* ---- in the middle of an object ---- */

static int32_t
extras_possible(const Alt *alt, int32_t extra)
{
	int32_t most;

	if (alt->lex == NULL || alt->extra_cost >= COST_INF)
		return 0;
	/* Keys that spell a declared name or were used are not extra keys; what is left of a finite language. */
	most = alt->lex->card[0] >= LEX_CARD_MAX ? LEX_CARD_MAX : alt->lex->card[0] - alt->nprops - extra;
	if (alt->max_extra >= 0 && alt->max_extra - extra < most)
		most = alt->max_extra - extra;
	return most < 0 ? 0 : most;
}

bool
dsv3_object_alive(const Alt *alt, int32_t pos, int32_t n, int32_t extra)
{
	int32_t need_extra = alt->min_extra > extra ? alt->min_extra - extra : 0;
	int32_t extras = extras_possible(alt, extra);

	if (need_extra > extras)
		return false;
	if (alt->pmax >= 0 && n + alt->required_left[pos] + need_extra > alt->pmax)
		return false;
	return n + alt->possible_left[pos] >= alt->pmin - extras;
}

bool
dsv3_object_may_close(const Alt *alt, int32_t pos, int32_t n, int32_t extra)
{
	return alt->required_left[pos] == 0 && n >= alt->pmin && extra >= alt->min_extra;
}

bool
dsv3_object_key_ok(const Alt *alt, int32_t prop, int32_t pos, int32_t n, int32_t extra)
{
	return prop >= pos && prop <= alt->next_required[pos] && alt->props[prop].node >= 0 &&
		   dsv3_object_alive(alt, prop + 1, n + 1, extra);
}

bool
dsv3_object_extra_ok(const Alt *alt, int32_t pos, int32_t n, int32_t extra)
{
	return alt->required_left[pos] == 0 && extras_possible(alt, extra) > 0 &&
		   dsv3_object_alive(alt, alt->nprops, n + 1, extra + 1);
}

bool
dsv3_object_more(const Alt *alt, int32_t pos, int32_t n, int32_t extra)
{
	int32_t last = alt->next_required[pos];

	if (last >= alt->nprops)
		last = alt->nprops - 1;
	for (int32_t p = pos; p <= last; p++)
		if (dsv3_object_key_ok(alt, p, pos, n, extra))
			return true;
	return dsv3_object_extra_ok(alt, pos, n, extra);
}

/*
 * The plan: all required members; when that leaves too few, the first optional ones besides; extra members last.
 */
int32_t
dsv3_object_rest(const Node *nodes, const Alt *alt, int32_t pos, int32_t n, int32_t extra)
{
	int32_t need_extra = alt->min_extra > extra ? alt->min_extra - extra : 0;
	int32_t more = alt->pmin - n - alt->required_left[pos] - need_extra;
	int32_t cost = add_cost(alt->rest_cost[pos], 1);

	if (!dsv3_object_alive(alt, pos, n, extra))
		return COST_INF;
	for (int32_t i = pos; more > 0 && i < alt->nprops; i++)
		if (!alt->props[i].required && alt->props[i].node >= 0 && nodes[alt->props[i].node].cost < COST_INF)
		{
			cost = add_cost(cost, alt->props[i].piece + nodes[alt->props[i].node].cost);
			more--;
		}
	if (more > 0)
		need_extra += more;
	if (need_extra > 0)
	{
		int64_t all = (int64_t) need_extra * alt->extra_cost;

		cost = alt->extra_cost >= COST_INF || all >= COST_INF ? COST_INF : add_cost(cost, (int32_t) all);
	}
	return cost;
}

int32_t
dsv3_object_open_rest(const Node *nodes, const Alt *alt)
{
	int32_t rest = dsv3_object_rest(nodes, alt, 0, 0, 0);
	bool optional_first = alt->pmin > alt->required_left[0] + alt->min_extra;

	if (rest >= COST_INF || rest == 1)
		return rest;
	/* The first member has no comma before it. */
	for (int32_t i = 0; i < alt->nprops; i++)
		if (alt->props[i].required ||
			(optional_first && alt->props[i].node >= 0 && nodes[alt->props[i].node].cost < COST_INF))
			return rest - alt->props[i].piece + alt->props[i].piece0;
	return rest - 1;
}
