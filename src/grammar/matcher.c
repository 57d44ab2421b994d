/*
 * matcher.c
 *	  One generation's position in a grammar (grammar.h).
 *
 * A matcher keeps the text it has accepted and, for every accepted token, where the text ended and which config that
 * was. The configs belong to the grammar's cache; when the cache has been emptied (its generation number tells) the
 * matcher runs its text again. Every entry point takes the grammar's lock and sets the jump that a full cache or a
 * failed allocation takes: the first is answered by emptying the cache and trying once more.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/mask.h"

typedef struct Mark
{
	size_t len;
	int32_t config;
} Mark;

struct Dsv3Matcher
{
	Dsv3Grammar *grammar;
	int32_t generation;
	int32_t config;
	char *text;
	size_t len;
	size_t cap;
	Mark *marks; /* the position before each accepted token */
	size_t nmarks;
	size_t mark_cap;
};

static bool
out_of_memory(Dsv3Error *err)
{
	return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory in structured output");
}

/* Bring the matcher up to date with the grammar's caches. Under the lock, with the jump set. */
static void
catch_up(Dsv3Matcher *m)
{
	Dsv3Grammar *g = m->grammar;
	size_t mark = 0;
	int32_t config;

	if (m->generation == g->generation)
		return;
	config = g->start;
	for (size_t i = 0;; i++)
	{
		while (mark < m->nmarks && m->marks[mark].len == i)
			m->marks[mark++].config = config;
		if (i == m->len)
			break;
		config = dsv3_machine_step(g, config, (unsigned char) m->text[i]);
	}
	m->config = config;
	m->generation = g->generation;
}

/* One try at the work; 0, or why it jumped out: then the caches are full, or broken off in the middle of something. */
static int
attempt(Dsv3Matcher *m, void (*work)(Dsv3Matcher *m, void *arg), void *arg)
{
	Dsv3Grammar *g = m->grammar;
	int reason = setjmp(g->out);

	if (reason == 0)
	{
		if (!g->sound)
			dsv3_machine_reset(g);
		catch_up(m);
		work(m, arg);
		return 0;
	}
	g->sound = false;
	if (g->vocab_held)
		pthread_mutex_unlock(&g->vocab->lock);
	g->vocab_held = false;
	return reason;
}

/*
 * Run `work` with the lock held, the jump set and the matcher up to date, a second time with empty caches when they were full.
 * False on memory: then nothing has changed.
 */
static bool
locked(Dsv3Matcher *m, void (*work)(Dsv3Matcher *m, void *arg), void *arg)
{
	Dsv3Grammar *g = m->grammar;
	bool ok;

	pthread_mutex_lock(&g->lock);
	ok = attempt(m, work, arg) == 0;
	if (!ok)
		ok = attempt(m, work, arg) == 0;
	pthread_mutex_unlock(&g->lock);
	return ok;
}

Dsv3Matcher *
dsv3_matcher_create(Dsv3Grammar *grammar, Dsv3Error *err)
{
	Dsv3Matcher *m = calloc(1, sizeof(Dsv3Matcher));

	if (m == NULL)
	{
		out_of_memory(err);
		return NULL;
	}
	m->grammar = grammar;
	m->generation = -1;
	return m;
}

Dsv3Matcher *
dsv3_matcher_fork(const Dsv3Matcher *matcher, Dsv3Error *err)
{
	Dsv3Matcher *m = dsv3_matcher_create(matcher->grammar, err);

	if (m == NULL)
		return NULL;
	*m = *matcher;
	m->cap = matcher->len;
	m->mark_cap = matcher->nmarks;
	m->text = malloc(m->cap + 1);
	m->marks = malloc((m->mark_cap + 1) * sizeof(Mark));
	if (m->text == NULL || m->marks == NULL)
	{
		dsv3_matcher_free(m);
		out_of_memory(err);
		return NULL;
	}
	if (m->len != 0)
		memcpy(m->text, matcher->text, m->len);
	if (m->nmarks != 0)
		memcpy(m->marks, matcher->marks, m->nmarks * sizeof(Mark));
	return m;
}

void
dsv3_matcher_free(Dsv3Matcher *m)
{
	if (m == NULL)
		return;
	free(m->text);
	free(m->marks);
	free(m);
}

void
dsv3_matcher_reset(Dsv3Matcher *m)
{
	m->len = 0;
	m->nmarks = 0;
	m->generation = -1;
}

static bool
reserve(Dsv3Matcher *m, size_t bytes)
{
	if (m->cap - m->len < bytes)
	{
		size_t cap = m->cap < 256 ? 256 : m->cap * 2;
		char *text;

		while (cap - m->len < bytes)
			cap *= 2;
		text = realloc(m->text, cap);
		if (text == NULL)
			return false;
		m->text = text;
		m->cap = cap;
	}
	if (m->nmarks == m->mark_cap)
	{
		size_t cap = m->mark_cap < 64 ? 64 : m->mark_cap * 2;
		Mark *marks = realloc(m->marks, cap * sizeof(Mark));

		if (marks == NULL)
			return false;
		m->marks = marks;
		m->mark_cap = cap;
	}
	return true;
}

typedef struct AcceptArg
{
	const char *bytes;
	size_t len;
	size_t taken;
	int32_t config;
} AcceptArg;

static void
do_accept(Dsv3Matcher *m, void *arg)
{
	AcceptArg *a = arg;
	int32_t config = m->config;

	a->taken = 0;
	while (a->taken < a->len)
	{
		int32_t next = dsv3_machine_step(m->grammar, config, (unsigned char) a->bytes[a->taken]);

		if (next < 0)
			break;
		config = next;
		a->taken++;
	}
	a->config = config;
}

static void
commit(Dsv3Matcher *m, const AcceptArg *a)
{
	m->marks[m->nmarks].len = m->len;
	m->marks[m->nmarks++].config = m->config;
	if (a->taken != 0)
		memcpy(m->text + m->len, a->bytes, a->taken);
	m->len += a->taken;
	m->config = a->config;
}

bool
dsv3_matcher_accept(Dsv3Matcher *m, int32_t token, Dsv3Error *err)
{
	const Dsv3TokenTable *vocab = m->grammar->vocab;
	AcceptArg a;

	if (err != NULL)
		err->sqlstate[0] = '\0';
	if (token < 0 || token >= vocab->size)
		return false;
	if (token == vocab->eos)
		return dsv3_matcher_is_complete(m);
	a.bytes = vocab->bytes + vocab->offset[token];
	a.len = vocab->offset[token + 1] - vocab->offset[token];
	if (a.len == 0 || a.len > VOCAB_MAX_TOKEN)
		return false;
	if (!reserve(m, a.len) || !locked(m, do_accept, &a))
		return out_of_memory(err);
	if (a.taken != a.len)
		return false;
	commit(m, &a);
	return true;
}

bool
dsv3_matcher_accept_bytes(Dsv3Matcher *m, const char *bytes, size_t len, size_t *taken, Dsv3Error *err)
{
	AcceptArg a = {bytes, len, 0, 0};

	if (err != NULL)
		err->sqlstate[0] = '\0';
	*taken = 0;
	if (!reserve(m, len + 1) || !locked(m, do_accept, &a))
		return out_of_memory(err);
	*taken = a.taken;
	commit(m, &a);
	return a.taken == len;
}

bool
dsv3_matcher_rollback(Dsv3Matcher *m, int32_t n)
{
	if (n < 0 || (size_t) n > m->nmarks)
		return false;
	if (n > 0)
	{
		m->nmarks -= (size_t) n;
		m->len = m->marks[m->nmarks].len;
		m->config = m->marks[m->nmarks].config;
	}
	return true;
}

typedef struct MaskArg
{
	int32_t remaining;
	uint64_t *words;
	int32_t count;
	bool narrowed;
	bool impossible;
	int32_t need;
	int32_t next; /* token to try */
} MaskArg;

static void
do_mask(Dsv3Matcher *m, void *arg)
{
	MaskArg *a = arg;
	Dsv3Grammar *g = m->grammar;
	bool complete = dsv3_machine_complete(g, m->config);

	a->narrowed = false;
	a->impossible = false;
	if (a->remaining < 0)
		a->count = dsv3_mask_compute(g, m->config, a->words);
	else
	{
		/* The end token takes one, when there is one. */
		int32_t left = a->remaining - (g->vocab->eos >= 0);

		a->need = dsv3_machine_cost(g, m->config);
		a->impossible = a->need > left;
		if (!a->impossible && left == 0)
		{
			memset(a->words, 0, (size_t) g->vocab->words * sizeof(uint64_t));
			a->count = 0;
			a->narrowed = true;
		}
		else if (!a->impossible)
			a->count = dsv3_mask_budget(g, m->config, left, a->words, &a->narrowed);
	}
	if (complete && g->vocab->eos >= 0 && !a->impossible)
	{
		a->words[g->vocab->eos >> 6] |= UINT64_C(1) << (g->vocab->eos & 63);
		a->count++;
	}
}

bool
dsv3_matcher_mask(Dsv3Matcher *m, int32_t remaining, uint64_t *words, int32_t *count, bool *narrowed,
				  Dsv3Error *err)
{
	MaskArg a = {.remaining = remaining, .words = words};

	if (!locked(m, do_mask, &a))
		return out_of_memory(err);
	if (a.impossible)
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "%d tokens are not enough to complete the answer",
				   remaining);
		return dsv3_error_hint(err, "At least %d tokens are needed.", a.need + (m->grammar->vocab->eos >= 0));
	}
	if (count != NULL)
		*count = a.count;
	if (narrowed != NULL)
		*narrowed = a.narrowed;
	return true;
}

static void
do_mask_slow(Dsv3Matcher *m, void *arg)
{
	MaskArg *a = arg;
	Dsv3Grammar *g = m->grammar;

	for (; a->next < g->vocab->size; a->next++)
		if (dsv3_mask_takes(g, m->config, a->next))
			a->words[a->next >> 6] |= UINT64_C(1) << (a->next & 63);
	if (dsv3_machine_complete(g, m->config) && g->vocab->eos >= 0)
		a->words[g->vocab->eos >> 6] |= UINT64_C(1) << (g->vocab->eos & 63);
}

bool
dsv3_matcher_mask_slow(Dsv3Matcher *m, uint64_t *words, int32_t *count, Dsv3Error *err)
{
	MaskArg a = {.words = words};
	int32_t nwords = m->grammar->vocab->words;

	memset(words, 0, (size_t) nwords * sizeof(uint64_t));
	/* So many tries can fill the caches more than once; each time it goes on where it was. */
	for (int32_t from = 0; !locked(m, do_mask_slow, &a); from = a.next)
		if (a.next == from)
			return out_of_memory(err);
	*count = dsv3_mask_count(words, nwords);
	return true;
}

static void
do_complete(Dsv3Matcher *m, void *arg)
{
	*(bool *) arg = dsv3_machine_complete(m->grammar, m->config);
}

bool
dsv3_matcher_is_complete(Dsv3Matcher *m)
{
	bool complete = false;

	return locked(m, do_complete, &complete) && complete;
}

/* Does exactly one byte lead on? Gives it, -1 when none does, -2 when several do. */
static int
only_byte(Dsv3Grammar *g, int32_t config)
{
	int only = -1;

	for (int b = 0; b < 256; b++)
		if (dsv3_machine_step(g, config, (unsigned char) b) >= 0)
		{
			if (only >= 0)
				return -2;
			only = b;
		}
	return only;
}

static void
do_must_stop(Dsv3Matcher *m, void *arg)
{
	*(bool *) arg = dsv3_machine_complete(m->grammar, m->config) && only_byte(m->grammar, m->config) == -1;
}

bool
dsv3_matcher_must_stop(Dsv3Matcher *m)
{
	bool stop = false;

	return locked(m, do_must_stop, &stop) && stop;
}

static void
do_shortest(Dsv3Matcher *m, void *arg)
{
	*(int32_t *) arg = dsv3_machine_cost(m->grammar, m->config);
}

int32_t
dsv3_matcher_shortest(Dsv3Matcher *m)
{
	int32_t cost = -1;

	return locked(m, do_shortest, &cost) ? cost : -1;
}

typedef struct ForcedArg
{
	char *bytes;
	size_t size;
	size_t n;
} ForcedArg;

static void
do_forced(Dsv3Matcher *m, void *arg)
{
	ForcedArg *a = arg;
	Dsv3Grammar *g = m->grammar;
	int32_t config = m->config;

	a->n = 0;
	while (a->n < a->size && !dsv3_machine_complete(g, config))
	{
		int b = only_byte(g, config);

		if (b < 0)
			break;
		a->bytes[a->n++] = (char) b;
		config = dsv3_machine_step(g, config, (unsigned char) b);
	}
}

size_t
dsv3_matcher_forced(Dsv3Matcher *m, char *bytes, size_t size)
{
	ForcedArg a = {bytes, size, 0};

	return locked(m, do_forced, &a) ? a.n : 0;
}

typedef struct TailArg
{
	const int32_t *tokens;
	int32_t n;
	int32_t keep;
} TailArg;

/*
 * Could a token of the vocabulary begin at `start` (config before it) and reach beyond the forced bytes? Follow the forced
 * bytes through the trie; where they end, any token further down that the machine takes is one.
 */
static bool
token_spans(Dsv3Grammar *g, int32_t config, const char *bytes, size_t len)
{
	const VocabNode *nodes = g->vocab->all.nodes;
	int32_t node = 0;
	int32_t end = g->vocab->all.n;
	int32_t states[VOCAB_MAX_TOKEN + 2];
	size_t k;

	for (k = 0; k < len; k++)
	{
		while (node < end && nodes[node].byte != (uint8_t) bytes[k])
			node = nodes[node].skip;
		if (node >= end)
			return false;
		config = dsv3_machine_step(g, config, (unsigned char) bytes[k]);
		end = nodes[node].skip;
		node++;
	}
	states[k] = config;
	while (node < end)
	{
		int32_t s = dsv3_machine_step(g, states[nodes[node].depth - 1], nodes[node].byte);

		if (s < 0)
		{
			node = nodes[node].skip;
			continue;
		}
		if (nodes[node].token >= 0)
			return true;
		states[nodes[node].depth] = s;
		node++;
	}
	return false;
}

static void
do_forced_tokens(Dsv3Matcher *m, void *arg)
{
	TailArg *a = arg;
	Dsv3Grammar *g = m->grammar;
	const Dsv3TokenTable *vocab = g->vocab;
	int32_t config = m->config;
	size_t total = 0;
	char *all;
	size_t at = 0;
	int32_t *configs;
	size_t *offsets;

	a->keep = 0;
	for (int32_t i = 0; i < a->n; i++)
	{
		if (a->tokens[i] < 0 || a->tokens[i] >= vocab->size)
			return;
		total += vocab->offset[a->tokens[i] + 1] - vocab->offset[a->tokens[i]];
	}
	all = dsv3_gr_arena_alloc(&g->cache, total + 1);
	configs = dsv3_gr_arena_alloc(&g->cache, ((size_t) a->n + 1) * sizeof(int32_t));
	offsets = dsv3_gr_arena_alloc(&g->cache, ((size_t) a->n + 1) * sizeof(size_t));
	for (int32_t i = 0; i < a->n; i++)
	{
		uint32_t from = vocab->offset[a->tokens[i]];
		uint32_t len = vocab->offset[a->tokens[i] + 1] - from;

		configs[i] = config;
		offsets[i] = at;
		memcpy(all + at, vocab->bytes + from, len);
		for (uint32_t k = 0; k < len && config >= 0; k++)
			config = dsv3_machine_step(g, config, (unsigned char) all[at + k]);
		if (config < 0)
			return;
		at += len;
	}
	/* From the first token inside which a longer one could start, everything is left to the model. */
	for (int32_t i = 0; i < a->n; i++)
	{
		bool spans = false;
		size_t stop = i + 1 < a->n ? offsets[i + 1] : total;
		int32_t c = configs[i];

		if (total - offsets[i] > 16 + VOCAB_MAX_TOKEN)
		{
			a->keep = i + 1;
			continue;
		}
		for (size_t k = offsets[i]; k < stop && !spans; k++)
		{
			spans = token_spans(g, c, all + k, total - k);
			c = dsv3_machine_step(g, c, (unsigned char) all[k]);
		}
		if (spans)
			break;
		a->keep = i + 1;
	}
}

int32_t
dsv3_matcher_forced_tokens(Dsv3Matcher *m, const int32_t *tokens, int32_t ntokens)
{
	TailArg a = {tokens, ntokens, 0};

	return locked(m, do_forced_tokens, &a) ? a.keep : 0;
}
