/*
 * machine.c
 *	  One byte further (machine.h).
 *
 * White space, when the options allow it, stands in five kinds of places, each with a small counter: before a value
 * after a colon, after a comma, after an opening bracket and before a closing one. A run of it cannot repeat.
 *
 * Arrays whose elements must differ record the text of each element. While the text of the present one is still the
 * beginning of an earlier one, only bytes are taken after which there are more completions than earlier elements left to
 * collide with: so the array never runs into an element that it cannot finish.
 */
#include "grammar/machine.h"

#include <stdlib.h>
#include <string.h>

enum
{
	WS_NONE,
	WS_SPACE, /* at most one space */
	WS_MUST,  /* exactly one space */
	WS_LINE,  /* one space, or a newline and an indentation */
	WS_OPEN,  /* a newline and an indentation */
};

/* Progress in white space: 0 none yet, 1 a space, 2 + k a newline and k blanks. -1: not allowed. */
static int32_t
ws_step(int32_t mode, int32_t progress, unsigned char byte, int32_t limit)
{
	if (byte == ' ')
	{
		if (progress == 0)
			return mode == WS_SPACE || mode == WS_MUST || mode == WS_LINE ? 1 : -1;
		return progress >= 2 && progress - 2 < limit ? progress + 1 : -1;
	}
	if (byte == '\n' && progress == 0 && (mode == WS_LINE || mode == WS_OPEN))
		return 2;
	return -1;
}

static int32_t
ws_mode(const Dsv3Grammar *g, int32_t natural, int32_t rec)
{
	if (g->options.whitespace == DSV3_WHITESPACE_SPACED)
		return natural == WS_SPACE || natural == WS_LINE ? WS_MUST : WS_NONE;
	return g->options.whitespace == DSV3_WHITESPACE_NATURAL && rec == 0 ? natural : WS_NONE;
}

static bool
ws_done(int32_t mode, int32_t progress)
{
	return mode != WS_MUST || progress == 1;
}

/* ---- configs ---- */

void
dsv3_gr_step_push(Dsv3Grammar *g, StepOut *out, const Item *item)
{
	if (out->n == out->cap)
	{
		int32_t cap = out->cap == 0 ? 16 : out->cap * 2;
		Item *items;

		if (cap > 1 << 20)
			longjmp(g->out, GR_OUT_LIMIT);
		items = dsv3_gr_arena_alloc(&g->cache, (size_t) cap * sizeof(Item));
		if (out->n != 0)
			memcpy(items, out->items, (size_t) out->n * sizeof(Item));
		out->items = items;
		out->cap = cap;
	}
	out->items[out->n++] = *item;
}

static void
push_pending(Dsv3Grammar *g, StepOut *out, int32_t node, int32_t mode, const Item *parent)
{
	if (out->npending == out->pending_cap)
	{
		int32_t cap = out->pending_cap == 0 ? 8 : out->pending_cap * 2;
		Pending *pending = dsv3_gr_arena_alloc(&g->cache, (size_t) cap * sizeof(Pending));

		if (out->npending != 0)
			memcpy(pending, out->pending, (size_t) out->npending * sizeof(Pending));
		out->pending = pending;
		out->pending_cap = cap;
	}
	out->pending[out->npending].node = node;
	out->pending[out->npending].mode = mode;
	out->pending[out->npending++].parent = *parent;
}

static int
compare_item(const void *a, const void *b)
{
	const int32_t *x = a;
	const int32_t *y = b;

	for (int i = 0; i < ITEM_INTS; i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}

int32_t
dsv3_machine_config(Dsv3Grammar *g, Item *items, int32_t n, int32_t level, int32_t rec)
{
	int32_t small[2 + 8 * ITEM_INTS];
	int32_t *key = small;
	int32_t k = 0;
	int32_t id;
	bool fresh;

	if (n > 1)
	{
		qsort(items, (size_t) n, sizeof(Item), compare_item);
		for (int32_t i = 0; i < n; i++)
			if (k == 0 || compare_item(&items[k - 1], &items[i]) != 0)
				items[k++] = items[i];
		n = k;
	}
	if (n > 8)
		key = dsv3_gr_arena_alloc(&g->cache, (2 + (size_t) n * ITEM_INTS) * sizeof(int32_t));
	key[0] = rec;
	key[1] = level;
	if (n > 0)
		memcpy(key + 2, items, (size_t) n * sizeof(Item));
	id = dsv3_gr_interner_get(&g->config_keys, key, 2 + n * ITEM_INTS, &fresh);
	if (fresh)
	{
		int32_t len;

		if (id >= g->config_cap)
		{
			int32_t cap = g->config_cap == 0 ? 256 : g->config_cap * 2;
			Config *configs = dsv3_gr_arena_alloc(&g->cache, (size_t) cap * sizeof(Config));

			if (g->config_cap != 0)
				memcpy(configs, g->configs, (size_t) g->config_cap * sizeof(Config));
			g->configs = configs;
			g->config_cap = cap;
		}
		g->configs[id].items = (const Item *) (interner_key(&g->config_keys, id, &len) + 2);
		g->configs[id].nitems = n;
		g->configs[id].level = level;
		g->configs[id].rec = rec;
		g->configs[id].cost = -1;
		g->configs[id].mask = NULL;
	}
	return id;
}

/* ---- texts and sets ---- */

static int32_t
text_add(Dsv3Grammar *g, int32_t text, unsigned char byte)
{
	int32_t key[2] = {text, byte};

	if (text == TEXT_OTHER)
		return TEXT_OTHER;
	return dsv3_gr_interner_get(&g->texts, key, 2, NULL) + 1;
}

static int32_t
text_parent(const Dsv3Grammar *g, int32_t text)
{
	return g->texts.keys[text - 1][1];
}

static bool
text_begins(const Dsv3Grammar *g, int32_t text, int32_t prefix)
{
	/* Parents have smaller numbers, so walking up ends at the prefix or passes it. */
	while (text > prefix)
		text = text_parent(g, text);
	return text == prefix;
}

static bool
set_has(const Dsv3Grammar *g, int32_t set, int32_t text)
{
	for (; set != 0; set = g->sets.keys[set - 1][1])
		if (g->sets.keys[set - 1][2] == text)
			return true;
	return false;
}

static int32_t
set_add(Dsv3Grammar *g, int32_t set, int32_t text)
{
	int32_t key[2] = {set, text};

	return dsv3_gr_interner_get(&g->sets, key, 2, NULL) + 1;
}

/* How many members begin with text. */
static int32_t
set_count(const Dsv3Grammar *g, int32_t set, int32_t text)
{
	int32_t n = 0;

	if (text == TEXT_OTHER)
		return 0;
	for (; set != 0; set = g->sets.keys[set - 1][1])
		n += text_begins(g, g->sets.keys[set - 1][2], text);
	return n;
}

bool
dsv3_machine_begins_used(const Dsv3Grammar *g, int32_t set, int32_t text)
{
	return set_count(g, set, text) > 0;
}

int32_t
dsv3_machine_used_text(const Dsv3Grammar *g, int32_t set, int32_t text, unsigned char byte)
{
	int32_t key[2] = {text, byte};

	if (set == 0 || text < 0)
		return -1;
	text = dsv3_gr_interner_find(&g->texts, key, 2) + 1;
	return text > 0 && set_count(g, set, text) > 0 ? text : -1;
}

bool
dsv3_machine_used(const Dsv3Grammar *g, int32_t set, int32_t text)
{
	return text >= 0 && set_has(g, set, text);
}

/* ---- records of unique arrays ---- */

enum
{
	REC_UP = 1, /* place in the interner's key, after the length */
	REC_LEVEL,
	REC_TEXT,
	REC_SET,
};

static int32_t
rec_make(Dsv3Grammar *g, int32_t up, int32_t level, int32_t text, int32_t set)
{
	int32_t key[4] = {up, level, text, set};

	return dsv3_gr_interner_get(&g->recs, key, 4, NULL) + 1;
}

static const int32_t *
rec_get(const Dsv3Grammar *g, int32_t rec)
{
	return g->recs.keys[rec - 1];
}

/* The text recorded at a level, or -1. */
static int32_t
rec_text(const Dsv3Grammar *g, int32_t rec, int32_t level)
{
	for (; rec != 0; rec = rec_get(g, rec)[REC_UP])
		if (rec_get(g, rec)[REC_LEVEL] == level)
			return rec_get(g, rec)[REC_TEXT];
	return -1;
}

/* Every record below `level` with the byte appended. */
static int32_t
rec_append(Dsv3Grammar *g, int32_t rec, int32_t level, unsigned char byte)
{
	int32_t up;
	int32_t text;
	const int32_t *r;

	if (rec == 0)
		return 0;
	r = rec_get(g, rec);
	up = rec_append(g, r[REC_UP], level, byte);
	r = rec_get(g, rec);
	if (r[REC_LEVEL] >= level)
		return up;
	text = r[REC_TEXT];
	if (text != 0 || byte != ' ')
		text = text_add(g, text, byte);
	return rec_make(g, up, rec_get(g, rec)[REC_LEVEL], text, rec_get(g, rec)[REC_SET]);
}

/* Do all ways out of this item to the given level end in arrays with unique elements? */
static bool
only_unique(const Dsv3Grammar *g, const Item *item, int32_t level)
{
	const Config *up = &g->configs[item->parent];

	for (int32_t i = 0; i < up->nitems; i++)
		if (up->level == level ? !(up->items[i].phase == PH_ARR_AFTER && g->alts[up->items[i].alt]->unique)
							   : !only_unique(g, &up->items[i], level))
			return false;
	return true;
}

/* ---- frames ---- */

/* The items of a config go on: a value below them is finished. byte is the value's last byte when it belongs to it. */
static void
pop(Dsv3Grammar *g, const Config *from, int32_t parent, int last, unsigned char byte, StepOut *out,
	void (*then)(Dsv3Grammar *g, const Config *from, const Item *item, unsigned char byte, StepOut *out))
{
	const Config *up = &g->configs[parent];
	int32_t n = up->nitems;
	int32_t text = from->rec == 0 ? -1 : rec_text(g, from->rec, up->level);

	if (text >= 0 && last >= 0)
		text = text_add(g, text, (unsigned char) last);
	for (int32_t i = 0; i < n; i++)
	{
		Item item = g->configs[parent].items[i];

		if (item.phase == PH_ARR_AFTER && g->alts[item.alt]->unique)
		{
			if (text >= 0 && set_has(g, item.d, text))
				continue;
			if (text >= 0)
				item.d = set_add(g, item.d, text);
		}
		if (then != NULL)
			then(g, from, &item, byte, out);
		else
			dsv3_gr_step_push(g, out, &item);
	}
}

/* An array's next element may start: one pending value for every set of "contains" it might meet. */
static void
array_elements(Dsv3Grammar *g, const Item *item, int32_t mode, StepOut *out)
{
	const Alt *alt = g->alts[item->alt];

	if (alt->amax >= 0 && item->a >= alt->amax)
		return;
	for (int32_t set = 0; set < 1 << alt->ncontains; set++)
	{
		int32_t node = dsv3_array_node(alt, item->a, set);
		int32_t counts[3] = {item->c & 1023, item->c >> 10 & 1023, item->c >> 20 & 1023};
		Item after = *item;
		bool ok = node >= 0;

		for (int32_t j = 0; j < alt->ncontains && ok; j++)
			if ((set >> j & 1) != 0)
			{
				/* Counting beyond the minimum matters only when there is a maximum. */
				if (alt->contains[j]->max < 0 && counts[j] >= alt->contains[j]->min)
					ok = false;
				else
					ok = ++counts[j] <= (alt->contains[j]->max < 0 ? 1023 : alt->contains[j]->max);
			}
		if (!ok || (alt->unique && g->nodes[node].card <= item->a))
			continue;
		after.phase = PH_ARR_AFTER;
		after.b = 0;
		after.a = item->a + 1;
		if (alt->amax < 0 && !alt->unique)
		{
			int32_t sat = alt->nprefix > alt->amin ? alt->nprefix : alt->amin;

			if (after.a > sat + 1)
				after.a = sat + 1;
		}
		after.c = counts[0] | counts[1] << 10 | counts[2] << 20;
		if (dsv3_array_rest(g->nodes, alt, after.a, counts) >= COST_INF)
			continue;
		push_pending(g, out, node, mode, &after);
	}
}

static void
step_array(Dsv3Grammar *g, const Config *config, const Item *item, unsigned char byte, StepOut *out)
{
	const Alt *alt = g->alts[item->alt];
	int32_t counts[3] = {item->c & 1023, item->c >> 10 & 1023, item->c >> 20 & 1023};
	int32_t limit = 2 * (g->configs[item->parent].level + 1);
	int32_t ws = ws_step(ws_mode(g, WS_OPEN, config->rec), item->b, byte, limit);

	if (ws >= 0)
	{
		Item next = *item;

		/* After an element the closing bracket must follow the newline; it has to be allowed. */
		if (item->phase == PH_ARR_AFTER && !dsv3_array_may_close(alt, item->a, counts))
			return;
		if (item->phase == PH_ARR_OPEN && !dsv3_array_may_close(alt, 0, counts))
			return;
		next.b = ws;
		dsv3_gr_step_push(g, out, &next);
		return;
	}
	if (byte == ']')
	{
		if (dsv3_array_may_close(alt, item->phase == PH_ARR_OPEN ? 0 : item->a, counts))
			pop(g, config, item->parent, byte, 0, out, NULL);
		return;
	}
	if (byte == ',' && item->phase == PH_ARR_AFTER && item->b == 0)
		array_elements(g, item, ws_mode(g, WS_LINE, alt->unique ? 1 : config->rec), out);
}

/* A key may start: the items of its first state. */
static void
begin_key(Dsv3Grammar *g, const Item *item, StepOut *out)
{
	const Alt *alt = g->alts[item->alt];
	Item key = *item;

	key.phase = PH_OBJ_KEY;
	key.f = dsv3_object_extra_ok(alt, key.a, key.b, key.c) ? 0 : -1;
	/* An extra key carries the trie along, to be told from the declared ones. */
	key.e = alt->nprops > 0 && (key.f >= 0 || dsv3_trie_alive(alt, 0, key.a, key.b, key.c)) ? 0 : -1;
	key.g = 0;
	if (key.e >= 0 || key.f >= 0)
		dsv3_gr_step_push(g, out, &key);
}

/* After a member: how the counters look. */
static void
count_member(const Alt *alt, Item *item, bool extra)
{
	if (alt->pmax >= 0 || item->b < alt->pmin)
		item->b++;
	if (extra && (alt->max_extra >= 0 || alt->lex->card[0] < LEX_CARD_MAX || item->c < alt->min_extra))
		item->c++;
}

bool
dsv3_machine_key_done(const Dsv3Grammar *g, const Item *item, int32_t prop, Item *next)
{
	const Alt *alt = g->alts[item->alt];

	if (prop < 0 || !dsv3_object_key_ok(alt, prop, item->a, item->b, item->c))
		return false;
	*next = *item;
	next->phase = PH_OBJ_COLON;
	next->e = next->g = 0;
	next->a = prop + 1;
	count_member(alt, next, false);
	next->f = alt->props[prop].node;
	return true;
}

static void
step_key(Dsv3Grammar *g, const Config *config, const Item *item, unsigned char byte, StepOut *out)
{
	const Alt *alt = g->alts[item->alt];
	Item next = *item;

	(void) config;
	if (byte == '"' && (item->e >= 0 ? !alt->trie[item->e].mid : alt->lex->mid[item->f] == 0))
	{
		int32_t prop = item->e >= 0 ? alt->trie[item->e].prop : -1;

		if (prop >= 0)
		{
			if (dsv3_machine_key_done(g, item, prop, &next))
				dsv3_gr_step_push(g, out, &next);
			return;
		}
		next.phase = PH_OBJ_COLON;
		next.e = next.g = 0;
		if (item->f >= 0 && alt->lex->tag[item->f] >= 0 && !set_has(g, item->d, item->g))
		{
			next.a = alt->nprops;
			next.d = set_add(g, item->d, item->g);
			count_member(alt, &next, true);
			next.f = alt->regions[alt->lex->tag[item->f]];
			dsv3_gr_step_push(g, out, &next);
		}
		return;
	}
	if (next.e >= 0)
		next.e = dsv3_trie_child(alt, next.e, byte);
	if (next.f >= 0)
	{
		next.f = lex_step(alt->lex, next.f, byte);
		if (next.f >= 0)
			next.g = text_add(g, next.g, byte);
		if (next.f >= 0 && alt->lex->card[next.f] < LEX_CARD_MAX)
		{
			int32_t taken = next.e >= 0 ? alt->trie[next.e].hi - alt->trie[next.e].lo : 0;

			if (alt->lex->card[next.f] <= taken + set_count(g, next.d, next.g))
				next.f = -1;
		}
	}
	if (next.f < 0)
		next.g = 0;
	/* The trie is kept for extra keys too: they must not spell a declared one. */
	if (next.e >= 0 && next.f < 0 && !dsv3_trie_alive(alt, next.e, next.a, next.b, next.c))
		next.e = -1;
	if (next.e >= 0 || next.f >= 0)
		dsv3_gr_step_push(g, out, &next);
}

static void
step_object(Dsv3Grammar *g, const Config *config, const Item *item, unsigned char byte, StepOut *out)
{
	const Alt *alt = g->alts[item->alt];
	Item next = *item;
	int32_t mode =
		item->phase == PH_OBJ_COMMA ? ws_mode(g, WS_LINE, config->rec) : ws_mode(g, WS_OPEN, config->rec);
	int32_t ws;

	if (item->phase == PH_OBJ_COLON)
	{
		if (byte == ':')
		{
			int32_t node = item->f;

			next.phase = PH_OBJ_AFTER;
			next.e = next.f = 0;
			push_pending(g, out, node, ws_mode(g, WS_SPACE, config->rec), &next);
		}
		return;
	}
	ws = ws_step(mode, item->e, byte, 2 * (g->configs[item->parent].level + 1));
	if (ws >= 0)
	{
		/* After a member the closing brace must follow the newline; it has to be allowed. */
		if (item->phase == PH_OBJ_AFTER && !dsv3_object_may_close(alt, item->a, item->b, item->c))
			return;
		next.e = ws;
		dsv3_gr_step_push(g, out, &next);
		return;
	}
	switch (byte)
	{
		case '"':
			if (item->phase != PH_OBJ_AFTER && ws_done(mode, item->e))
				begin_key(g, item, out);
			break;
		case '}':
			if (item->phase != PH_OBJ_COMMA && dsv3_object_may_close(alt, item->a, item->b, item->c))
				pop(g, config, item->parent, byte, 0, out, NULL);
			break;
		case ',':
			if (item->phase == PH_OBJ_AFTER && item->e == 0 &&
				dsv3_object_more(alt, item->a, item->b, item->c))
			{
				next.phase = PH_OBJ_COMMA;
				dsv3_gr_step_push(g, out, &next);
			}
			break;
		default:
			break;
	}
}

static void
step_start(Dsv3Grammar *g, const Config *config, const Item *item, unsigned char byte, StepOut *out)
{
	const Alt *alt = g->alts[item->alt];
	Item next = *item;
	int32_t ws = ws_step(item->a, item->b, byte, 2 * g->configs[item->parent].level);

	if (ws >= 0)
	{
		next.b = ws;
		dsv3_gr_step_push(g, out, &next);
		return;
	}
	if (!ws_done(item->a, item->b))
		return;
	next.a = next.b = 0;
	switch (alt->kind)
	{
		case ALT_LIT:
		case ALT_NUM:
			next.phase = PH_WORD;
			next.a = lex_step(alt->lex, 0, byte);
			if (next.a >= 0)
				dsv3_gr_step_push(g, out, &next);
			break;
		case ALT_STR:
			next.phase = PH_STR;
			if (byte == '"' && dsv3_string_alive(alt, 0, 0))
				dsv3_gr_step_push(g, out, &next);
			break;
		case ALT_ARR:
			if (byte == '[')
			{
				int32_t none[3] = {0, 0, 0};
				int32_t mode = ws_mode(g, WS_OPEN, alt->unique ? 1 : config->rec);

				next.phase = PH_ARR_OPEN;
				if (dsv3_array_may_close(alt, 0, none))
					dsv3_gr_step_push(g, out, &next);
				array_elements(g, &next, mode, out);
			}
			break;
		default:
			if (byte == '{')
			{
				next.phase = PH_OBJ_OPEN;
				dsv3_gr_step_push(g, out, &next);
			}
			break;
	}
}

static void
step_item(Dsv3Grammar *g, const Config *config, const Item *item, unsigned char byte, StepOut *out)
{
	const Alt *alt = item->alt >= 0 && g->nalts > 0 ? g->alts[item->alt] : &dsv3_no_alt;
	Item next = *item;

	switch (item->phase)
	{
		case PH_START:
			step_start(g, config, item, byte, out);
			break;
		case PH_WORD:
			next.a = lex_step(alt->lex, item->a, byte);
			if (next.a >= 0)
				dsv3_gr_step_push(g, out, &next);
			if (alt->lex->tag[item->a] >= 0)
				pop(g, config, item->parent, -1, byte, out, step_item);
			break;
		case PH_STR:
			if (byte == '"' && alt->lex->mid[item->a] == 0)
			{
				if (alt->lex->tag[item->a] >= 0 && item->b >= alt->smin &&
					(alt->smax < 0 || item->b <= alt->smax))
					pop(g, config, item->parent, byte, 0, out, NULL);
				break;
			}
			if (alt->lex->mid[item->a] == 0 && (alt->smax >= 0 || item->b < alt->smin))
				next.b++;
			next.a = lex_step(alt->lex, item->a, byte);
			if (next.a >= 0 && dsv3_string_alive(alt, next.a, next.b))
				dsv3_gr_step_push(g, out, &next);
			break;
		case PH_ARR_OPEN:
		case PH_ARR_AFTER:
			step_array(g, config, item, byte, out);
			break;
		case PH_OBJ_KEY:
			step_key(g, config, item, byte, out);
			break;
		case PH_OBJ_OPEN:
		case PH_OBJ_COLON:
		case PH_OBJ_AFTER:
		case PH_OBJ_COMMA:
			step_object(g, config, item, byte, out);
			break;
		case PH_WHOLE:
			next.a = lex_step(g->whole, item->a, byte);
			if (next.a >= 0)
				dsv3_gr_step_push(g, out, &next);
			break;
		default: /* PH_END: nothing follows */
			break;
	}
}

static int
compare_pending(const void *a, const void *b)
{
	const Pending *x = a;
	const Pending *y = b;

	if (x->node != y->node)
		return x->node < y->node ? -1 : 1;
	if (x->mode != y->mode)
		return x->mode < y->mode ? -1 : 1;
	return compare_item(&x->parent, &y->parent);
}

/* Values start: those for the same node share one parent config. Pushes the start items. */
static void
start_values(Dsv3Grammar *g, StepOut *out, int32_t level)
{
	if (out->npending > 1)
		qsort(out->pending, (size_t) out->npending, sizeof(Pending), compare_pending);
	for (int32_t i = 0; i < out->npending;)
	{
		int32_t k = i;
		Item few[8];
		Item *parents = few;
		int32_t parent;
		const Node *node = &g->nodes[out->pending[i].node];

		while (k < out->npending && out->pending[k].node == out->pending[i].node &&
			   out->pending[k].mode == out->pending[i].mode)
			k++;
		if (k - i > 8)
			parents = dsv3_gr_arena_alloc(&g->cache, (size_t) (k - i) * sizeof(Item));
		for (int32_t j = i; j < k; j++)
			parents[j - i] = out->pending[j].parent;
		parent = dsv3_machine_config(g, parents, k - i, level, 0);
		for (int32_t a = 0; a < node->nalts; a++)
		{
			Item item;

			memset(&item, 0, sizeof(item));
			item.phase = PH_START;
			item.alt = node->alts[a]->id;
			item.parent = parent;
			item.a = out->pending[i].mode;
			dsv3_gr_step_push(g, out, &item);
		}
		i = k;
	}
}

/*
 * Of the earlier elements that begin with the text so far, how many could this item still become? Exact for items that
 * are a lexeme directly inside the array; elsewhere all of them.
 */
static int32_t
clashes(Dsv3Grammar *g, const Item *item, int32_t level, int32_t set, int32_t text)
{
	const Alt *alt = g->alts[item->alt];
	int32_t n = 0;

	if (g->configs[item->parent].level != level ||
		(item->phase != PH_START && item->phase != PH_WORD && item->phase != PH_STR))
		return set_count(g, set, text);
	for (; set != 0; set = g->sets.keys[set - 1][1])
	{
		int32_t t = g->sets.keys[set - 1][2];
		unsigned char small[256] = {0};
		unsigned char *bytes = small;
		int32_t len = 0;
		int32_t k = 0;
		int32_t s = item->phase == PH_START ? 0 : item->a;

		if (!text_begins(g, t, text))
			continue;
		for (int32_t at = t; at != text; at = text_parent(g, at))
			len++;
		if (len > (int32_t) sizeof(small))
			bytes = dsv3_gr_arena_alloc(&g->cache, (size_t) len);
		for (int32_t at = t, i = len; at != text; at = text_parent(g, at))
			bytes[--i] = (unsigned char) g->texts.keys[at - 1][2];
		if (item->phase == PH_START && len > 0 && (alt->kind == ALT_ARR || alt->kind == ALT_OBJ))
		{
			n += bytes[0] == (alt->kind == ALT_ARR ? '[' : '{');
			continue;
		}
		if (alt->kind == ALT_STR)
		{
			if (item->phase == PH_START && (len == 0 || bytes[k++] != '"'))
				continue;
			len--;
		}
		for (; k < len && s >= 0; k++)
			s = lex_step(alt->lex, s, bytes[k]);
		n += s >= 0 && k == len && alt->lex->tag[s] >= 0;
	}
	return n;
}

/* Drop the items that would run into an element they cannot finish, see the top of the file. */
static void
keep_distinct(Dsv3Grammar *g, StepOut *out, int32_t rec)
{
	for (; rec != 0; rec = rec_get(g, rec)[REC_UP])
	{
		int32_t level = rec_get(g, rec)[REC_LEVEL];
		int32_t text = rec_get(g, rec)[REC_TEXT];
		int32_t set = rec_get(g, rec)[REC_SET];
		int32_t n = 0;

		if (set_count(g, set, text) == 0)
			continue;
		for (int32_t i = 0; i < out->n; i++)
			if (!only_unique(g, &out->items[i], level) ||
				dsv3_machine_card(g, &out->items[i], level) > clashes(g, &out->items[i], level, set, text))
				out->items[n++] = out->items[i];
		out->n = n;
	}
}

bool
dsv3_machine_clashes(const Dsv3Grammar *g, int32_t config)
{
	for (int32_t rec = g->configs[config].rec; rec != 0; rec = rec_get(g, rec)[REC_UP])
		if (rec_get(g, rec)[REC_TEXT] != 0 &&
			set_count(g, rec_get(g, rec)[REC_SET], rec_get(g, rec)[REC_TEXT]) > 0)
			return true;
	return false;
}

bool
dsv3_machine_nears_element(const Dsv3Grammar *g, int32_t rec, unsigned char byte)
{
	for (; rec != 0; rec = rec_get(g, rec)[REC_UP])
		if (dsv3_machine_used_text(g, rec_get(g, rec)[REC_SET], rec_get(g, rec)[REC_TEXT], byte) >= 0)
			return true;
	return false;
}

int32_t
dsv3_machine_other_record(Dsv3Grammar *g, int32_t rec)
{
	int32_t up;

	if (rec == 0)
		return 0;
	up = dsv3_machine_other_record(g, rec_get(g, rec)[REC_UP]);
	return rec_make(g, up, rec_get(g, rec)[REC_LEVEL], TEXT_OTHER, 0);
}

bool
dsv3_machine_next_element(const Dsv3Grammar *g, int32_t config)
{
	int32_t rec = g->configs[config].rec;

	return rec != 0 && rec_get(g, rec)[REC_TEXT] == 0 && rec_get(g, rec)[REC_SET] != 0;
}

static int32_t
compute_step(Dsv3Grammar *g, int32_t id, unsigned char byte)
{
	Config config = g->configs[id];
	Item items[24];
	Pending pending[8];
	StepOut out = {items, 0, 24, pending, 0, 8};
	int32_t level = 0;
	int32_t rec = 0;
	int32_t frame = 0;

	if (g->rtn != NULL)
		dsv3_ebnf_step(g, config.items, config.nitems, byte, &out);
	else
		for (int32_t i = 0; i < config.nitems; i++)
			step_item(g, &config, &config.items[i], byte, &out);
	if (out.n == 0 && out.npending == 0)
		return -1;
	if (out.npending > 0)
	{
		frame = g->configs[out.pending[0].parent.parent].level + 1;
		start_values(g, &out, frame);
	}
	for (int32_t i = 0; g->rtn == NULL && i < out.n; i++)
		if (out.items[i].phase != PH_END && out.items[i].phase != PH_WHOLE &&
			g->configs[out.items[i].parent].level + 1 > level)
			level = g->configs[out.items[i].parent].level + 1;
	if (config.rec != 0)
		rec = rec_append(g, config.rec, out.npending > 0 ? frame : level, byte);
	for (int32_t i = 0; i < out.npending; i++)
		if (g->alts[out.pending[i].parent.alt]->kind == ALT_ARR && g->alts[out.pending[i].parent.alt]->unique)
		{
			rec = rec_make(g, rec, frame, 0, out.pending[i].parent.d);
			break;
		}
	if (rec != 0)
	{
		keep_distinct(g, &out, rec);
		if (out.n == 0)
			return -1;
	}
	return dsv3_machine_config(g, out.items, out.n, level, rec);
}

/* ---- the remembered steps ---- */

static uint32_t
step_hash(uint64_t key)
{
	return (uint32_t) ((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
}

static void
step_put(StepTable *t, uint64_t key, int32_t value)
{
	uint32_t at = step_hash(key) & t->mask;

	while (t->keys[at] != 0)
		at = (at + 1) & t->mask;
	t->keys[at] = key;
	t->values[at] = value;
}

/* The index of a key, or -1. */
static int64_t
step_find(const StepTable *t, uint64_t key)
{
	if (t->keys != NULL)
		for (uint32_t at = step_hash(key) & t->mask; t->keys[at] != 0; at = (at + 1) & t->mask)
			if (t->keys[at] == key)
				return at;
	return -1;
}

/* Some more entries of the former table, so that growing is no single long step. */
static void
steps_move(Dsv3Grammar *g, uint32_t n)
{
	while (g->old_steps.keys != NULL && n-- > 0)
	{
		uint32_t at = g->old_step_at;

		if (g->old_steps.keys[at] != 0)
			step_put(&g->steps, g->old_steps.keys[at], g->old_steps.values[at]);
		if (++g->old_step_at > g->old_steps.mask)
			g->old_steps.keys = NULL;
	}
}

static void
steps_grow(Dsv3Grammar *g)
{
	uint32_t size = g->steps.keys == NULL ? 1024 : (g->steps.mask + 1) * 2;
	uint64_t *keys = dsv3_gr_arena_alloc(&g->cache, size * sizeof(uint64_t));
	int32_t *values = dsv3_gr_arena_alloc(&g->cache, size * sizeof(int32_t));

	steps_move(g, UINT32_MAX);
	g->old_steps = g->steps;
	g->old_step_at = 0;
	g->steps.keys = keys;
	g->steps.values = values;
	g->steps.mask = size - 1;
}

int32_t
dsv3_machine_step(Dsv3Grammar *g, int32_t config, unsigned char byte)
{
	uint64_t key = ((uint64_t) (uint32_t) config << 8 | byte) + 1;
	int64_t at = step_find(&g->steps, key);
	int32_t value;

	if (at >= 0)
		return g->steps.values[at];
	if (g->old_steps.keys != NULL && (at = step_find(&g->old_steps, key)) >= 0)
		return g->old_steps.values[at];
	value = compute_step(g, config, byte);
	if (g->nsteps * 2 >= g->steps.mask)
		steps_grow(g);
	step_put(&g->steps, key, value);
	g->nsteps++;
	steps_move(g, 4);
	return value;
}

bool
dsv3_machine_complete(Dsv3Grammar *g, int32_t id)
{
	const Config *config = &g->configs[id];

	for (int32_t i = 0; i < config->nitems; i++)
	{
		const Item *item = &config->items[i];

		if (item->phase == PH_END || (item->phase == PH_WHOLE && g->whole->tag[item->a] >= 0) ||
			(item->phase == PH_WORD && item->parent == 0 && g->alts[item->alt]->lex->tag[item->a] >= 0))
			return true;
		if (item->phase == PH_RULE && dsv3_ebnf_item_complete(g, item))
			return true;
	}
	return false;
}

void
dsv3_machine_reset(Dsv3Grammar *g)
{
	Item end;
	StepOut out = {NULL, 0, 0, NULL, 0, 0};

	dsv3_gr_arena_free(&g->cache);
	dsv3_gr_arena_init(&g->cache, g->cache_limit, NULL, &g->out);
	g->generation++;
	dsv3_gr_interner_init(&g->config_keys, &g->cache);
	dsv3_gr_interner_init(&g->texts, &g->cache);
	dsv3_gr_interner_init(&g->sets, &g->cache);
	dsv3_gr_interner_init(&g->recs, &g->cache);
	g->configs = NULL;
	g->config_cap = 0;
	memset(&g->steps, 0, sizeof(g->steps));
	memset(&g->old_steps, 0, sizeof(g->old_steps));
	g->nsteps = 0;
	g->mask_bytes = 0;
	steps_grow(g);
	/* Config 0: the answer is complete. It is its own parent, which is never looked at. */
	memset(&end, 0, sizeof(end));
	end.phase = PH_END;
	end.alt = -1;
	dsv3_machine_config(g, &end, 1, 0, 0);
	if (g->rtn != NULL)
		g->start = dsv3_ebnf_start(g);
	else if (g->whole != NULL)
	{
		end.phase = PH_WHOLE;
		g->start = dsv3_machine_config(g, &end, 1, 0, 0);
	}
	else
	{
		const Node *node = &g->nodes[g->root];

		for (int32_t a = 0; a < node->nalts; a++)
		{
			Item item;

			memset(&item, 0, sizeof(item));
			item.phase = PH_START;
			item.alt = node->alts[a]->id;
			dsv3_gr_step_push(g, &out, &item);
		}
		g->start = dsv3_machine_config(g, out.items, out.n, 1, 0);
	}
	g->sound = true;
}
