/*
 * respell.c
 *	  A JSON value in the spelling and key order a grammar would write (grammar.h).
 *
 * The machine is asked at every object which orders its readings know; each is tried until the whole object goes
 * through. What cannot be written in any of them is not in the language.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/machine.h"

typedef struct Respell
{
	Dsv3Grammar *g;
	Arena arena;
	TextBuf out;
	int64_t steps;
} Respell;

static int32_t write_value(Respell *r, int32_t config, const Json *value);

static int32_t
put(Respell *r, int32_t config, const char *text, size_t len)
{
	dsv3_gr_textbuf_add(&r->out, text, len);
	for (size_t i = 0; i < len && config >= 0; i++)
		config = dsv3_machine_step(r->g, config, (unsigned char) text[i]);
	r->steps += (int64_t) len + 1;
	return config;
}

static int32_t
put_scalar(Respell *r, int32_t config, const Json *value)
{
	size_t from = r->out.len;

	dsv3_gr_json_write(&r->out, value);
	for (size_t i = from; i < r->out.len && config >= 0 && !r->out.failed; i++)
		config = dsv3_machine_step(r->g, config, (unsigned char) r->out.data[i]);
	r->steps += (int64_t) (r->out.len - from) + 1;
	return config;
}

static int32_t
put_key(Respell *r, int32_t config, const JsonMember *m, bool first)
{
	Json key;
	bool spaced = r->g->options.whitespace == DSV3_WHITESPACE_SPACED;

	memset(&key, 0, sizeof(key));
	key.kind = JSON_STRING_;
	key.u.str = m->key;
	key.n = m->keylen;
	if (!first)
		config = put(r, config, ", ", 1 + spaced);
	config = put_scalar(r, config, &key);
	config = put(r, config, ": ", 1 + spaced);
	return config < 0 ? -1 : write_value(r, config, m->value);
}

/* The members in the order of one alternative: declared ones first. */
static void
order_members(Respell *r, const Alt *alt, const Json *value, uint32_t *order)
{
	uint32_t n = 0;
	int32_t *rank = dsv3_gr_arena_alloc(&r->arena, (value->n + 1) * sizeof(int32_t));

	for (uint32_t i = 0; i < value->n; i++)
	{
		TextBuf buf = {NULL, 0, 0, false};
		int32_t node = 0;

		dsv3_gr_json_write_string(&buf, value->u.members[i].key, value->u.members[i].keylen);
		for (size_t k = 1; !buf.failed && k + 1 < buf.len && node >= 0; k++)
		{
			node = alt->trie[node].child;
			while (node >= 0 && alt->trie[node].byte != (unsigned char) buf.data[k])
				node = alt->trie[node].sibling;
		}
		dsv3_gr_textbuf_free(&buf);
		rank[i] = node >= 0 && alt->trie[node].prop >= 0 ? alt->trie[node].prop : alt->nprops;
	}
	for (uint32_t i = 0; i < value->n; i++)
	{
		uint32_t at = n++;

		while (at > 0 && rank[order[at - 1]] > rank[i])
		{
			order[at] = order[at - 1];
			at--;
		}
		order[at] = i;
	}
}

static int32_t
write_object(Respell *r, int32_t config, const Json *value)
{
	uint32_t *order = dsv3_gr_arena_alloc(&r->arena, (value->n + 1) * sizeof(uint32_t));
	uint32_t *tried = dsv3_gr_arena_alloc(&r->arena, (value->n + 1) * sizeof(uint32_t));
	int32_t open = put(r, config, "{", 1);
	size_t from = r->out.len;
	bool any = false;
	int32_t nitems = open < 0 ? 0 : r->g->configs[open].nitems;

	for (int32_t i = 0; i < nitems; i++)
	{
		int32_t at = open;

		if (r->g->configs[open].items[i].phase != PH_OBJ_OPEN || r->steps > 50000000)
			continue;
		order_members(r, r->g->alts[r->g->configs[open].items[i].alt], value, order);
		if (any && memcmp(order, tried, value->n * sizeof(uint32_t)) == 0)
			continue;
		memcpy(tried, order, value->n * sizeof(uint32_t));
		any = true;
		r->out.len = from;
		for (uint32_t k = 0; k < value->n && at >= 0; k++)
			at = put_key(r, at, &value->u.members[order[k]], k == 0);
		if (at >= 0)
			at = put(r, at, "}", 1);
		if (at >= 0)
			return at;
	}
	return -1;
}

static int32_t
write_value(Respell *r, int32_t config, const Json *value)
{
	bool spaced = r->g->options.whitespace == DSV3_WHITESPACE_SPACED;

	if (config < 0)
		return -1;
	if (value->kind == JSON_OBJECT_)
		return write_object(r, config, value);
	if (value->kind != JSON_ARRAY_)
		return put_scalar(r, config, value);
	config = put(r, config, "[", 1);
	for (uint32_t i = 0; i < value->n && config >= 0; i++)
	{
		if (i > 0)
			config = put(r, config, ", ", 1 + spaced);
		config = write_value(r, config, value->u.items[i]);
	}
	return config < 0 ? -1 : put(r, config, "]", 1);
}

/* Under the lock. Both jumps of a failed allocation come back here; nothing is lost but the answer. */
static char *
respell_locked(Respell *r, const char *text, size_t len, size_t *outlen)
{
	jmp_buf local;
	JsonFault fault;
	Json *value;
	int32_t config;
	char *result;

	if (setjmp(local) != 0 || setjmp(r->g->out) != 0)
		return NULL;
	dsv3_gr_arena_init(&r->arena, (size_t) 256 * 1024 * 1024, NULL, &local);
	value = dsv3_gr_json_parse(&r->arena, text, len, false, &fault);
	if (value == NULL)
		return NULL;
	config = write_value(r, r->g->start, value);
	if (config < 0 || !dsv3_machine_complete(r->g, config) || r->out.failed)
		return NULL;
	result = r->out.data;
	*outlen = r->out.len;
	r->out.data = NULL;
	return result;
}

char *
dsv3_grammar_respell(Dsv3Grammar *g, const char *text, size_t len, size_t *outlen)
{
	Respell *r = calloc(1, sizeof(Respell));
	char *result;

	*outlen = 0;
	if (r == NULL)
		return NULL;
	r->g = g;
	pthread_mutex_lock(&g->lock);
	result = respell_locked(r, text, len, outlen);
	/* A cache that was full is emptied by the next matcher that meets its limit. */
	pthread_mutex_unlock(&g->lock);
	dsv3_gr_arena_free(&r->arena);
	dsv3_gr_textbuf_free(&r->out);
	free(r);
	return result;
}
