/*
 * grammar.c
 *	  Compiling: from the caller's text to a Dsv3Grammar (grammar.h).
 *
 * All of a compilation's scratch memory is one arena that is dropped at the end, with the automata nobody kept. What the
 * matcher needs is in the grammar's own arena. A failure anywhere comes back to the setjmp in compile_into.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/machine.h"

#define SCHEMA_MAX_BYTES   ((size_t) 4 * 1024 * 1024)
#define DEFAULT_MEMORY     ((size_t) 192 * 1024 * 1024)
#define COMPILE_STEPS      INT64_C(20000000)
#define VALIDATE_STEPS     INT64_C(200000000)
#define MATCHER_CACHE_SIZE ((size_t) 96 * 1024 * 1024)

static void
release_made(Ctx *ctx, Dsv3TokenTable *vocab)
{
	while (ctx->made != NULL)
	{
		Lex *next = ctx->made->next_made;

		dsv3_vocab_release_lex(vocab, ctx->made);
		ctx->made = next;
	}
}

static bool
reason_to_error(Ctx *ctx, int reason, Dsv3Error *err)
{
	if (reason == GR_OUT_MEMORY)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory while compiling a grammar");
	if (reason == GR_OUT_LIMIT)
	{
		char pointer[256];

		dsv3_gr_json_pointer(ctx->at, pointer, sizeof(pointer));
		dsv3_error(err, DSV3_ERR_TOO_LARGE, "schema needs too much memory to compile");
		return dsv3_error_hint(err, "Simplify the schema: fewer overlapping alternatives, shorter patterns.");
	}
	return false;
}

static Json *
parse_source(Ctx *ctx, const char *text, size_t len)
{
	JsonFault fault;
	Json *root = dsv3_gr_json_parse(ctx->arena, text, len, false, &fault);

	if (root == NULL)
		dsv3_gr_json_fail(ctx, &fault, "schema");
	return root;
}

static void
ir_open(Ir *ir, Ctx *ctx, Arena *keep, Dsv3TokenTable *vocab, SchemaDoc *doc, Validator *validator,
		const Dsv3GrammarOptions *options)
{
	Json *canonical;

	memset(ir, 0, sizeof(*ir));
	ir->ctx = ctx;
	ir->keep = keep;
	ir->vocab = vocab;
	ir->doc = doc;
	ir->validator = validator;
	ir->options = *options;
	dsv3_gr_interner_init(&ir->lits, ctx->arena);
	dsv3_gr_interner_init(&ir->shapes, ctx->arena);
	dsv3_gr_interner_init(&ir->twins, ctx->arena);
	dsv3_gr_interner_init(&ir->litsets, ctx->arena);
	dsv3_gr_interner_init(&ir->empty_sets, ctx->arena);
	ir->lit_true = dsv3_ir_lit(ir, doc->true_schema, 0, false);
	ir->lit_false = dsv3_ir_lit(ir, doc->false_schema, 0, false);
	canonical = dsv3_gr_json_new(ctx->arena, JSON_TRUE_);
	ir->lit_canonical = dsv3_ir_lit(ir, canonical, 0, true);
	ir->lit_strict = dsv3_ir_lit(ir, canonical, 1, true);
}

/* How far away one token can move the end: at most one piece for every four of its bytes. A string's characters may turn from one
 * token each to six. */
static void
find_rise(Dsv3Grammar *g)
{
	int64_t rise = 8;

	for (int32_t i = 0; i < g->nalts; i++)
	{
		const Alt *alt = g->alts[i];

		if (alt->cost < COST_INF && alt->cost > rise)
			rise = alt->cost;
		if (alt->lex != NULL && alt->lex->n > 0 && alt->lex->maxdist > rise)
			rise = alt->lex->maxdist;
		if (alt->smin < COST_INF / 16 && 6 * alt->smin > rise)
			rise = 6 * alt->smin;
		for (int32_t p = 0; p < alt->nprops; p++)
			if (alt->props[p].piece > rise)
				rise = alt->props[p].piece;
	}
	if (g->whole != NULL && g->whole->maxdist > rise)
		rise = g->whole->maxdist;
	rise = (rise * 3 + 8) * (g->vocab->longest / 4 + 1);
	if (g->rtn != NULL)
		rise = ((int64_t) dsv3_ebnf_max_dist(g->rtn) + 8) * (g->vocab->longest + 1);
	g->max_rise = rise > COST_INF / 2 ? COST_INF / 2 : (int32_t) rise;
}

static void
keep_notices(Dsv3Grammar *g, Ctx *ctx)
{
	Notice **tail = &g->notices;

	for (Notice *n = ctx->notices; n != NULL; n = n->next)
	{
		Notice *copy = dsv3_gr_arena_alloc(&g->keep, sizeof(Notice));

		copy->pointer = dsv3_gr_arena_text(&g->keep, n->pointer, strlen(n->pointer));
		copy->keyword =
			n->keyword == NULL ? NULL : dsv3_gr_arena_text(&g->keep, n->keyword, strlen(n->keyword));
		copy->text = dsv3_gr_arena_text(&g->keep, n->text, strlen(n->text));
		*tail = copy;
		tail = &copy->next;
	}
}

static void
compile_schema(Dsv3Grammar *g, Ctx *ctx, Ir *ir, Validator *validator)
{
	SchemaDoc *doc = dsv3_gr_arena_alloc(ctx->arena, sizeof(SchemaDoc));
	Json *root = parse_source(ctx, g->source, g->source_len);
	int32_t lit;

	ctx->at = root;
	dsv3_gr_schema_open(doc, ctx, root, (Draft) g->options.draft, g->documents, g->options.ndocuments);
	doc->format_assert = !g->options.format_annotation;
	validator->doc = doc;
	validator->ctx = ctx;
	ir_open(ir, ctx, &g->keep, g->vocab, doc, validator, &g->options);
	ctx->ir = ir;
	lit = dsv3_ir_lit(ir, root, 0, false);
	g->root = dsv3_ir_node(ir, &lit, 1);
	if (g->root >= 0)
		dsv3_ir_build(ir);
	ctx->at = root;
	ctx->keyword = ir->dropped;
	if (g->root < 0 || ir->nodes[g->root].cost >= COST_INF)
		dsv3_gr_fail(
			ctx, DSV3_ERR_INVALID_PARAMETER,
			ir->dropped != NULL
				? "Part of the schema cannot be expressed; see the keyword."
				: "Look for required properties without a possible value, for bounds that exclude each "
				  "other, or for a recursion that never ends.",
			"no value can satisfy the schema");
	g->nodes = ir->nodes;
	g->nnodes = ir->nnodes;
	g->alts = ir->alts;
	g->nalts = ir->nalts;
}

/* A list of labels: bare texts. */
static void
compile_choice(Dsv3Grammar *g, Ctx *ctx)
{
	Json *root = parse_source(ctx, g->source, g->source_len);
	LexLiteral *literals;

	if (root->kind != JSON_ARRAY_ || root->n == 0)
		dsv3_gr_fail(ctx, DSV3_ERR_INVALID_PARAMETER, NULL,
					 "choices are not a JSON array of at least one string");
	literals = dsv3_gr_arena_alloc(ctx->arena, root->n * sizeof(LexLiteral));
	for (uint32_t i = 0; i < root->n; i++)
	{
		const Json *item = root->u.items[i];

		if (item->kind != JSON_STRING_ || item->n == 0 || memchr(item->u.str, '\0', item->n) != NULL)
			dsv3_gr_fail(ctx, DSV3_ERR_INVALID_PARAMETER, NULL,
						 "label %u of the choices is not a string with text", i + 1);
		literals[i].text = item->u.str;
		literals[i].len = item->n;
	}
	g->whole = dsv3_lex_literals(ctx, literals, (int32_t) root->n, true);
}

typedef struct WholeParts
{
	uint64_t mask;
	uint64_t want;
} WholeParts;

static int32_t
decide_whole(void *arg, uint64_t accepting)
{
	const WholeParts *w = arg;

	return (accepting & w->mask) == w->want ? 0 : -1;
}

static void
compile_regex(Dsv3Grammar *g, Ctx *ctx)
{
	Pattern *pattern;
	Lex *parts[60];
	WholeParts w = {0, 0};
	int32_t n = 0;
	uint64_t must = 0;

	pattern = dsv3_regex_compile(ctx, g->source, g->source_len, false, true, false);
	for (PatternPart *part = pattern->parts; part != NULL; part = part->next)
	{
		if (n == 60)
			dsv3_gr_fail(ctx, DSV3_ERR_TOO_LARGE, NULL, "regular expression has too many conditions");
		w.mask |= UINT64_C(1) << n;
		if (!part->negated)
		{
			w.want |= UINT64_C(1) << n;
			must |= UINT64_C(1) << n;
		}
		parts[n++] = part->lex;
	}
	g->whole = dsv3_lex_product(ctx, false, parts, n, must, decide_whole, &w);
	if (g->whole->n == 0)
		dsv3_gr_fail(ctx, DSV3_ERR_INVALID_PARAMETER, NULL, "regular expression matches nothing");
}

static bool
copy_source(Dsv3Grammar *g, const char *text, size_t len)
{
	g->source = malloc(len + 1);
	if (g->source == NULL)
		return false;
	memcpy(g->source, text, len);
	g->source[len] = '\0';
	g->source_len = len;
	if (g->options.ndocuments > 0)
	{
		g->documents = calloc((size_t) g->options.ndocuments, sizeof(Dsv3SchemaDocument));
		if (g->documents == NULL)
			return false;
		for (int32_t i = 0; i < g->options.ndocuments; i++)
		{
			const Dsv3SchemaDocument *d = &g->options.documents[i];
			char *copy = malloc(d->len + 1);

			g->documents[i].uri = strdup(d->uri);
			g->documents[i].text = copy;
			g->documents[i].len = d->len;
			if (copy == NULL || g->documents[i].uri == NULL)
				return false;
			memcpy(copy, d->text, d->len);
			copy[d->len] = '\0';
		}
	}
	g->options.documents = g->documents;
	return true;
}

/* Check UTF-8 of a source that is not JSON. */
static bool
valid_utf8(const char *text, size_t len)
{
	TextBuf none = {NULL, 0, 0, false};
	Arena arena;
	jmp_buf out;
	JsonFault fault;
	volatile bool ok = false;

	/* Borrow the JSON reader: the text as a JSON string. */
	dsv3_gr_json_write_string(&none, text, (uint32_t) len);
	dsv3_gr_arena_init(&arena, 0, NULL, &out);
	if (setjmp(out) == 0)
		ok = !none.failed && dsv3_gr_json_parse(&arena, none.data, none.len, true, &fault) != NULL;
	dsv3_gr_arena_free(&arena);
	dsv3_gr_textbuf_free(&none);
	return ok;
}

static bool
compile_into(Dsv3Grammar *g, Ctx *ctx, Arena *scratch, Validator *validator, Dsv3Error *err)
{
	Ir *ir;
	int reason = setjmp(ctx->out);

	if (reason != 0)
		return reason == GR_OUT_ERROR ? false : reason_to_error(ctx, reason, err);
	dsv3_gr_arena_init(scratch, g->options.memory_limit, &ctx->spent.bytes, &ctx->out);
	dsv3_gr_arena_init(&g->keep, g->options.memory_limit, &ctx->spent.bytes, &ctx->out);
	ir = dsv3_gr_arena_alloc(scratch, sizeof(Ir));
	switch (g->kind)
	{
		case DSV3_GRAMMAR_JSON_SCHEMA:
			compile_schema(g, ctx, ir, validator);
			break;
		case DSV3_GRAMMAR_CHOICE:
			compile_choice(g, ctx);
			break;
		case DSV3_GRAMMAR_REGEX:
			if (!valid_utf8(g->source, g->source_len))
				dsv3_gr_fail(ctx, DSV3_ERR_INVALID_TEXT, NULL, "regular expression is not valid UTF-8");
			compile_regex(g, ctx);
			break;
		default:
			if (!valid_utf8(g->source, g->source_len))
				dsv3_gr_fail(ctx, DSV3_ERR_INVALID_TEXT, NULL, "grammar is not valid UTF-8");
			g->rtn = dsv3_ebnf_compile(ctx, &g->keep, g->source, g->source_len);
			break;
	}
	if (g->whole != NULL)
	{
		g->lexes = dsv3_gr_arena_alloc(&g->keep, sizeof(Lex *));
		dsv3_vocab_hold_lex(g->vocab, (Lex *) (uintptr_t) g->whole);
		g->lexes[g->nlexes++] = (Lex *) (uintptr_t) g->whole;
	}
	keep_notices(g, ctx);
	find_rise(g);
	return true;
}

/* The first state of the matcher; its memory may run out too. */
static bool
start_machine(Dsv3Grammar *g, Dsv3Error *err)
{
	if (setjmp(g->out) != 0)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory while compiling a grammar");
	dsv3_machine_reset(g);
	return true;
}

Dsv3Grammar *
dsv3_grammar_compile(Dsv3TokenTable *vocab, Dsv3GrammarKind kind, const char *text, size_t len,
					 const Dsv3GrammarOptions *options, Dsv3GrammarPlace *place, Dsv3Error *err)
{
	Dsv3Grammar *g = calloc(1, sizeof(Dsv3Grammar));
	Ctx *ctx = calloc(1, sizeof(Ctx));
	Validator validator;
	Arena scratch;
	bool ok;

	memset(&validator, 0, sizeof(validator));
	memset(&scratch, 0, sizeof(scratch));
	if (place != NULL)
		memset(place, 0, sizeof(*place));
	if (g == NULL || ctx == NULL)
	{
		free(g);
		free(ctx);
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory while compiling a grammar");
		return NULL;
	}
	g->vocab = vocab;
	g->kind = kind;
	if (options != NULL)
		g->options = *options;
	if (g->options.memory_limit == 0)
		g->options.memory_limit = DEFAULT_MEMORY;
	g->cache_limit =
		g->options.memory_limit < MATCHER_CACHE_SIZE ? g->options.memory_limit : MATCHER_CACHE_SIZE;
	g->root = -1;
	pthread_mutex_init(&g->lock, NULL);
	ctx->arena = &scratch;
	ctx->err = err;
	ctx->notice_tail = &ctx->notices;
	ctx->cancelled = g->options.cancelled;
	ctx->cancel_arg = g->options.cancel_arg;
	ctx->step_limit = COMPILE_STEPS;
	if (len > SCHEMA_MAX_BYTES)
		ok = dsv3_error(err, DSV3_ERR_TOO_LARGE, "schema of %zu bytes is larger than %zu bytes", len,
						SCHEMA_MAX_BYTES);
	else if (!copy_source(g, text, len))
		ok = dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory while compiling a grammar");
	else
		ok = compile_into(g, ctx, &scratch, &validator, err);
	if (!ok && place != NULL && ctx->at != NULL)
	{
		dsv3_gr_json_pointer(ctx->at, place->pointer, sizeof(place->pointer));
		if (ctx->keyword != NULL)
			strncpy(place->keyword, ctx->keyword, sizeof(place->keyword) - 1);
	}
	if (ctx->ir != NULL)
	{
		/* References the grammar holds, whether or not it will live. */
		g->lexes = ctx->ir->lexes;
		g->nlexes = ctx->ir->nlexes;
	}
	dsv3_validator_free(&validator);
	release_made(ctx, vocab);
	g->keep.spent = &g->keep.asked; /* the count was the compilation's */
	dsv3_gr_arena_free(&scratch);
	free(ctx);
	if (ok)
		ok = start_machine(g, err);
	if (!ok)
	{
		dsv3_grammar_free(g);
		return NULL;
	}
	return g;
}

void
dsv3_grammar_free(Dsv3Grammar *g)
{
	if (g == NULL)
		return;
	for (int32_t i = 0; i < g->nlexes; i++)
		dsv3_vocab_release_lex(g->vocab, g->lexes[i]);
	dsv3_gr_arena_free(&g->cache);
	dsv3_gr_arena_free(&g->keep);
	for (int32_t i = 0; i < g->options.ndocuments && g->documents != NULL; i++)
	{
		free((char *) (uintptr_t) g->documents[i].uri);
		free((char *) (uintptr_t) g->documents[i].text);
	}
	free(g->documents);
	free(g->source);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

const char *
dsv3_grammar_notice(const Dsv3Grammar *g, int32_t i, const char **pointer, const char **keyword)
{
	const Notice *n = g->notices;

	while (n != NULL && i-- > 0)
		n = n->next;
	if (n == NULL)
		return NULL;
	if (pointer != NULL)
		*pointer = n->pointer;
	if (keyword != NULL)
		*keyword = n->keyword;
	return n->text;
}

size_t
dsv3_grammar_memory(Dsv3Grammar *g)
{
	size_t total;

	pthread_mutex_lock(&g->lock);
	total = sizeof(Dsv3Grammar) + g->source_len + g->keep.used + g->cache.used;
	for (int32_t i = 0; i < g->nlexes; i++)
		total += g->lexes[i]->arena.used;
	pthread_mutex_unlock(&g->lock);
	return total;
}

int32_t
dsv3_grammar_shortest(Dsv3Grammar *g)
{
	Dsv3Error err;
	Dsv3Matcher *m = dsv3_matcher_create(g, &err);
	int32_t cost = m == NULL ? -1 : dsv3_matcher_shortest(m);

	dsv3_matcher_free(m);
	return cost;
}

/* A JSON answer and its schema. */
static bool
validate_schema(Dsv3Grammar *g, Validator *v, const char *text, size_t len, Dsv3Error *err)
{
	Ctx *ctx = v->ctx;
	SchemaDoc *doc = dsv3_gr_arena_alloc(ctx->arena, sizeof(SchemaDoc));
	Json *schema = parse_source(ctx, g->source, g->source_len);
	Json *value;
	JsonFault fault;

	dsv3_gr_schema_open(doc, ctx, schema, (Draft) g->options.draft, g->documents, g->options.ndocuments);
	doc->format_assert = !g->options.format_annotation;
	v->doc = doc;
	value = dsv3_gr_json_parse(ctx->arena, text, len, true, &fault);
	if (value == NULL)
		return dsv3_error(err, DSV3_ERR_INTERNAL, "answer %s%s at byte %zu",
						  fault.too_large ? "" : "is not valid JSON: ", fault.what, fault.offset);
	return dsv3_validate_value(v, schema, 0, value) ||
		   dsv3_error(err, DSV3_ERR_INTERNAL, "answer does not satisfy its schema");
}

static bool
validate_choice(Dsv3Grammar *g, Validator *v, const char *text, size_t len, Dsv3Error *err)
{
	Json *list = parse_source(v->ctx, g->source, g->source_len);

	for (uint32_t i = 0; i < list->n; i++)
	{
		const Json *item = list->u.items[i];

		if (item->n == len && memcmp(item->u.str, text, len) == 0)
			return true;
	}
	return dsv3_error(err, DSV3_ERR_INTERNAL, "answer is none of its choices");
}

static bool
validate_regex(Dsv3Grammar *g, Validator *v, const char *text, size_t len, Dsv3Error *err)
{
	char *whole = dsv3_gr_arena_alloc(v->ctx->arena, g->source_len + 8);
	size_t n = 0;

	memcpy(whole, "^(?:", 4);
	n += 4;
	memcpy(whole + n, g->source, g->source_len);
	n += g->source_len;
	memcpy(whole + n, ")$", 3);
	n += 2;
	return dsv3_validate_pattern(v, whole, n, text, len) ||
		   dsv3_error(err, DSV3_ERR_INTERNAL, "answer does not match its regular expression");
}

bool
dsv3_grammar_validate(Dsv3Grammar *g, const char *text, size_t len, Dsv3Error *err)
{
	Ctx *ctx;
	Arena arena;
	Validator validator;
	volatile bool ok = false;
	int reason;

	if (g->kind == DSV3_GRAMMAR_EBNF)
		return true;
	ctx = calloc(1, sizeof(Ctx));
	if (ctx == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory while validating");
	memset(&arena, 0, sizeof(arena));
	memset(&validator, 0, sizeof(validator));
	ctx->arena = &arena;
	ctx->err = err;
	ctx->notice_tail = &ctx->notices;
	ctx->step_limit = VALIDATE_STEPS;
	validator.ctx = ctx;
	reason = setjmp(ctx->out);
	if (reason == 0)
	{
		dsv3_gr_arena_init(&arena, DEFAULT_MEMORY, NULL, &ctx->out);
		if (g->kind == DSV3_GRAMMAR_JSON_SCHEMA)
			ok = validate_schema(g, &validator, text, len, err);
		else if (g->kind == DSV3_GRAMMAR_CHOICE)
			ok = validate_choice(g, &validator, text, len, err);
		else
			ok = validate_regex(g, &validator, text, len, err);
	}
	else
		reason_to_error(ctx, reason, err);
	dsv3_validator_free(&validator);
	dsv3_gr_arena_free(&arena);
	free(ctx);
	return ok;
}
