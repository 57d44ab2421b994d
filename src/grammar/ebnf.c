/*
 * ebnf.c
 *	  EBNF grammars: reading them, and their items in the machine.
 *
 *	  greeting ::= ("hello" | "hi") " " name "!"?     # a comment
 *	  name     ::= [A-Z] [a-z]{1,20}
 *
 * A rule is `name ::= expression` (`=` and `:` do as well), up to the next rule; a semicolon may end it. The first rule is
 * the answer. Expressions: "text" and 'text' with the escapes \n \r \t \\ \" \' \xHH \uHHHH, classes [a-z] and [^a-z], `.` for
 * any character but a newline, names, groups, `|`, and * + ? {m} {m,} {m,n} after an item.
 *
 * Each rule becomes a small automaton over bytes with edges that call other rules. An item of the machine is a state, with
 * the set of places to return to as its parent config; calls of one rule at one position share that set. A call in the
 * last place of a rule returns straight to the callers, so recursion on the right does not grow. Recursion on the left is
 * refused: at one position, calls then have an order without circles, and every rule is entered once with its complete
 * set. A rule that can be empty is stepped over where it is called, so it never returns where it started.
 *
 * What can never be finished is cut out when compiling, which rules out dead ends.
 */
#include <stdio.h>
#include <string.h>

#include "grammar/machine.h"
#include "grammar/unicode.h"

#define MAX_RULES  2000
#define MAX_STATES 200000
#define MAX_DEPTH  100
#define MAX_REPEAT 2000
#define DONE       (-1) /* state of an item at which the answer is complete */

typedef enum RtnKind
{
	RTN_BYTE,
	RTN_SPLIT,
	RTN_CALL,
	RTN_END,
} RtnKind;

typedef struct RtnState
{
	uint8_t kind;
	uint8_t lo;
	uint8_t hi;
	int32_t a;    /* next; SPLIT: one way */
	int32_t b;    /* SPLIT: the other; CALL: the rule */
	int32_t dist; /* bytes to the end of the rule; COST_INF: never */
} RtnState;

typedef struct RtnRule
{
	const char *name;
	uint32_t len;
	int32_t start; /* -1: used but not defined yet */
	bool nullable;
	int32_t rank; /* in the order of calls at one position */
	int32_t dist;
	size_t used_at;
} RtnRule;

struct Rtn
{
	RtnState *states;
	int32_t n;
	int32_t cap;
	RtnRule *rules;
	int32_t nrules;
	int32_t *by_rank;
	int32_t max_dist;
	Ctx *ctx;
	const char *text;
	size_t len;
	size_t at;
	int depth;
};

typedef struct Rtn Rtn;

/* ---- reading ---- */

static void bad(Rtn *r, const char *what) __attribute__((noreturn));
static void
bad(Rtn *r, const char *what)
{
	int line = 1;

	for (size_t i = 0; i < r->at && i < r->len; i++)
		line += r->text[i] == '\n';
	dsv3_gr_fail(r->ctx, DSV3_ERR_INVALID_PARAMETER, NULL, "grammar is invalid at line %d: %s", line, what);
}

static int32_t
add_state(Rtn *r, RtnKind kind, int32_t a, int32_t b)
{
	gr_tick(r->ctx);
	if (r->n == r->cap)
	{
		int32_t cap = r->cap == 0 ? 256 : r->cap * 2;
		RtnState *states;

		if (cap > MAX_STATES * 2)
			dsv3_gr_fail(r->ctx, DSV3_ERR_TOO_LARGE, "Use smaller repetition counts.",
						 "grammar is too large");
		states = dsv3_gr_arena_alloc(r->ctx->arena, (size_t) cap * sizeof(RtnState));
		if (r->n != 0)
			memcpy(states, r->states, (size_t) r->n * sizeof(RtnState));
		r->states = states;
		r->cap = cap;
	}
	r->states[r->n].kind = (uint8_t) kind;
	r->states[r->n].a = a;
	r->states[r->n].b = b;
	r->states[r->n].dist = COST_INF;
	return r->n++;
}

static void
skip_blank(Rtn *r)
{
	while (r->at < r->len)
	{
		char c = r->text[r->at];

		if (c == '#')
			while (r->at < r->len && r->text[r->at] != '\n')
				r->at++;
		else if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
			r->at++;
		else
			break;
	}
}

static bool
name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static size_t
name_end(const Rtn *r, size_t at)
{
	while (at < r->len && name_char(r->text[at]))
		at++;
	return at;
}

/* Is there `name ::=` (or = or :) here? */
static bool
at_rule(const Rtn *r)
{
	size_t end = name_end(r, r->at);

	if (end == r->at)
		return false;
	while (end < r->len && (r->text[end] == ' ' || r->text[end] == '\t'))
		end++;
	return end < r->len && (r->text[end] == '=' || r->text[end] == ':');
}

static int32_t
rule_of(Rtn *r, const char *name, uint32_t len)
{
	for (int32_t i = 0; i < r->nrules; i++)
		if (r->rules[i].len == len && memcmp(r->rules[i].name, name, len) == 0)
			return i;
	if (r->nrules == MAX_RULES)
		dsv3_gr_fail(r->ctx, DSV3_ERR_TOO_LARGE, NULL, "grammar has more than %d rules", MAX_RULES);
	r->rules[r->nrules].name = name;
	r->rules[r->nrules].len = len;
	r->rules[r->nrules].start = -1;
	r->rules[r->nrules].used_at = r->at;
	return r->nrules++;
}

/* One character of a quoted text or a class, escapes resolved. */
static uint32_t
read_code(Rtn *r)
{
	static const char from[] = "nrt0\\\"'[]-^/";
	static const char to[] = "\n\r\t\0\\\"'[]-^/";
	uint32_t code = 0;
	char e;
	const char *found;

	if (r->text[r->at] != '\\')
	{
		r->at += dsv3_gr_unicode_decode(r->text + r->at, r->len - r->at, &code);
		return code;
	}
	if (++r->at >= r->len)
		bad(r, "it ends in a backslash");
	e = r->text[r->at++];
	if (e == 'x' || e == 'u' || e == 'U')
	{
		int digits = e == 'x' ? 2 : (e == 'u' ? 4 : 8);

		for (int i = 0; i < digits; i++)
		{
			char c = r->at < r->len ? r->text[r->at++] : '?';

			if (c >= '0' && c <= '9')
				code = code * 16 + (uint32_t) (c - '0');
			else if ((c | 32) >= 'a' && (c | 32) <= 'f')
				code = code * 16 + (uint32_t) ((c | 32) - 'a' + 10);
			else
				bad(r, "escape without enough hexadecimal digits");
		}
		if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
			bad(r, "escape is not a character");
		return code;
	}
	found = e == '\0' ? NULL : strchr(from, e);
	if (found == NULL)
		bad(r, "unknown escape");
	return (unsigned char) to[found - from];
}

static int32_t
join_ways(Rtn *r, int32_t a, int32_t b)
{
	return a < 0 ? b : (b < 0 ? a : add_state(r, RTN_SPLIT, a, b));
}

static int32_t
byte_state(Rtn *r, int lo, int hi, int32_t next)
{
	int32_t s = add_state(r, RTN_BYTE, next, -1);

	r->states[s].lo = (uint8_t) lo;
	r->states[s].hi = (uint8_t) hi;
	return s;
}

static int32_t
class_states(Rtn *r, const CodeSet *set, int32_t next)
{
	ByteSeqs seqs = {NULL, 0, 0};
	int32_t s = -1;

	for (int32_t i = 0; i < set->n; i++)
	{
		uint32_t lo = set->ranges[i].lo == 0 ? 1 : set->ranges[i].lo;
		uint32_t hi = set->ranges[i].hi;

		if (lo < 0x80 && lo <= hi)
			s = join_ways(r, s, byte_state(r, (int) lo, hi < 0x80 ? (int) hi : 0x7F, next));
		if (hi < 0x80)
			continue;
		lo = lo < 0x80 ? 0x80 : lo;
		if (lo < 0xD800 && hi > 0xDFFF)
		{
			dsv3_codeset_utf8(r->ctx->arena, &seqs, lo, 0xD7FF);
			lo = 0xE000;
		}
		else if (lo < 0xD800 && hi >= 0xD800)
			hi = 0xD7FF;
		else if (lo >= 0xD800 && lo <= 0xDFFF)
			lo = 0xE000;
		if (lo <= hi)
			dsv3_codeset_utf8(r->ctx->arena, &seqs, lo, hi);
	}
	for (int32_t i = 0; i < seqs.n; i++)
	{
		int32_t t = next;

		for (int k = seqs.v[i].n - 1; k >= 0; k--)
			t = byte_state(r, seqs.v[i].lo[k], seqs.v[i].hi[k], t);
		s = join_ways(r, s, t);
	}
	return s < 0 ? byte_state(r, 1, 0, next) : s;
}

/* The syntax tree is not kept: an item is read again for every copy a repetition needs. */
typedef struct Piece
{
	size_t from;
	size_t to;
	int32_t min;
	int32_t max; /* -1: no end */
} Piece;

static int32_t build_alternatives(Rtn *r, size_t to, int32_t next);

static size_t
skip_atom(Rtn *r)
{
	char c = r->text[r->at];

	if (c == '"' || c == '\'')
	{
		r->at++;
		while (r->at < r->len && r->text[r->at] != c)
			read_code(r);
		if (r->at >= r->len)
			bad(r, "a quoted text is not closed");
		r->at++;
	}
	else if (c == '[')
	{
		r->at++;
		if (r->at < r->len && r->text[r->at] == '^')
			r->at++;
		while (r->at < r->len && r->text[r->at] != ']')
			read_code(r);
		if (r->at >= r->len)
			bad(r, "a class is not closed");
		r->at++;
	}
	else if (c == '(')
	{
		r->at++;
		for (skip_blank(r); r->at < r->len && r->text[r->at] != ')'; skip_blank(r))
		{
			if (strchr("|*+?", r->text[r->at]) != NULL && r->text[r->at] != '\0')
				r->at++;
			else if (r->text[r->at] == '{')
				while (r->at < r->len && r->text[r->at++] != '}')
					;
			else
			{
				if (++r->depth > MAX_DEPTH)
					dsv3_gr_fail(r->ctx, DSV3_ERR_TOO_LARGE, NULL, "grammar nests deeper than %d groups",
								 MAX_DEPTH);
				skip_atom(r);
				r->depth--;
			}
		}
		if (r->at >= r->len)
			bad(r, "a parenthesis is not closed");
		r->at++;
	}
	else if (c == '.')
		r->at++;
	else if (name_char(c))
		r->at = name_end(r, r->at);
	else
		bad(r, "unexpected character");
	return r->at;
}

static int32_t
read_number(Rtn *r)
{
	int32_t v = 0;
	size_t from = r->at;

	while (r->at < r->len && r->text[r->at] >= '0' && r->text[r->at] <= '9' && v <= MAX_REPEAT)
		v = v * 10 + (r->text[r->at++] - '0');
	if (v > MAX_REPEAT)
		dsv3_gr_fail(r->ctx, DSV3_ERR_TOO_LARGE, NULL, "grammar repeats something more than %d times",
					 MAX_REPEAT);
	return r->at == from ? -1 : v;
}

static void
read_counts(Rtn *r, Piece *piece)
{
	char c = r->at < r->len ? r->text[r->at] : '\0';

	piece->min = piece->max = 1;
	if (c == '*' || c == '+' || c == '?')
	{
		piece->min = c == '+';
		piece->max = c == '?' ? 1 : -1;
		r->at++;
	}
	else if (c == '{')
	{
		r->at++;
		skip_blank(r);
		piece->min = piece->max = read_number(r);
		skip_blank(r);
		if (r->at < r->len && r->text[r->at] == ',')
		{
			r->at++;
			skip_blank(r);
			piece->max = read_number(r);
			piece->min = piece->min < 0 ? 0 : piece->min;
			skip_blank(r);
		}
		if (piece->min < 0 || r->at >= r->len || r->text[r->at] != '}')
			bad(r, "repetition is not {m}, {m,} or {m,n}");
		if (piece->max >= 0 && piece->max < piece->min)
			bad(r, "a repetition's bounds are the wrong way round");
		r->at++;
	}
}

/* States for one copy of the item at piece->from. Leaves r->at alone. */
static int32_t
build_atom(Rtn *r, const Piece *piece, int32_t next)
{
	size_t save = r->at;
	char c = r->text[piece->from];
	int32_t s = next;

	if (++r->depth > MAX_DEPTH)
		dsv3_gr_fail(r->ctx, DSV3_ERR_TOO_LARGE, NULL, "grammar nests deeper than %d groups", MAX_DEPTH);
	r->at = piece->from;
	if (c == '"' || c == '\'')
	{
		unsigned char *bytes = dsv3_gr_arena_alloc(r->ctx->arena, (piece->to - piece->from) * 4 + 4);
		size_t n = 0;

		r->at++;
		while (r->text[r->at] != c)
		{
			uint32_t code = read_code(r);

			if (code == 0)
				bad(r, "U+0000 cannot be written");
			n += (size_t) dsv3_gr_unicode_encode(code, bytes + n);
		}
		while (n > 0)
		{
			n--;
			s = byte_state(r, bytes[n], bytes[n], s);
		}
	}
	else if (c == '[')
	{
		CodeSet *set = dsv3_codeset_new(r->ctx->arena);
		bool negated = r->text[++r->at] == '^';

		r->at += negated;
		while (r->text[r->at] != ']')
		{
			uint32_t lo = read_code(r);
			uint32_t hi = lo;

			if (r->text[r->at] == '-' && r->text[r->at + 1] != ']')
			{
				r->at++;
				hi = read_code(r);
				if (hi < lo)
					bad(r, "a range runs backwards");
			}
			dsv3_codeset_add(r->ctx->arena, set, lo, hi);
		}
		dsv3_codeset_finish(r->ctx->arena, set, negated);
		s = class_states(r, set, next);
	}
	else if (c == '.')
	{
		CodeSet *set = dsv3_codeset_new(r->ctx->arena);

		dsv3_codeset_add(r->ctx->arena, set, '\n', '\n');
		dsv3_codeset_finish(r->ctx->arena, set, true);
		s = class_states(r, set, next);
	}
	else if (c == '(')
	{
		r->at++;
		s = build_alternatives(r, piece->to - 1, next);
	}
	else
		s = add_state(r, RTN_CALL, next,
					  rule_of(r, r->text + piece->from, (uint32_t) (piece->to - piece->from)));
	r->depth--;
	r->at = save;
	return s;
}

static int32_t
build_piece(Rtn *r, const Piece *piece, int32_t next)
{
	int32_t cur = next;

	if (piece->max < 0)
	{
		cur = add_state(r, RTN_SPLIT, next, next);
		{
			int32_t body = build_atom(r, piece, cur);

			r->states[cur].a = body;
		}
	}
	else
		for (int32_t i = piece->min; i < piece->max; i++)
			cur = add_state(r, RTN_SPLIT, build_atom(r, piece, cur), next);
	for (int32_t i = 0; i < piece->min; i++)
		cur = build_atom(r, piece, cur);
	return cur;
}

/* Alternatives from r->at up to `to`. */
static int32_t
build_alternatives(Rtn *r, size_t to, int32_t next)
{
	int32_t all = -1;

	for (;;)
	{
		Piece *pieces = NULL;
		int32_t n = 0;
		int32_t cap = 0;
		int32_t s = next;

		for (skip_blank(r); r->at < to && r->text[r->at] != '|'; skip_blank(r))
		{
			if (n == cap)
			{
				Piece *grown = dsv3_gr_arena_alloc(r->ctx->arena, ((size_t) cap * 2 + 8) * sizeof(Piece));

				if (n != 0)
					memcpy(grown, pieces, (size_t) n * sizeof(Piece));
				cap = cap * 2 + 8;
				pieces = grown;
			}
			pieces[n].from = r->at;
			pieces[n].to = skip_atom(r);
			read_counts(r, &pieces[n++]);
		}
		while (n-- > 0)
			s = build_piece(r, &pieces[n], s);
		/* An empty alternative is a way of its own, even when it shares its state with what follows. */
		all = all < 0 ? s : add_state(r, RTN_SPLIT, all, s);
		if (r->at >= to || r->text[r->at] != '|')
			return all;
		r->at++;
	}
}

static void
read_rules(Rtn *r)
{
	for (skip_blank(r); r->at < r->len; skip_blank(r))
	{
		size_t end;
		int32_t rule;
		size_t to;
		int32_t start;

		if (!at_rule(r))
			bad(r, "expected a rule, `name ::= ...`");
		end = name_end(r, r->at);
		rule = rule_of(r, r->text + r->at, (uint32_t) (end - r->at));
		if (r->rules[rule].start >= 0)
			bad(r, "a rule is defined twice");
		r->at = end;
		skip_blank(r);
		while (r->at < r->len && r->text[r->at] == ':')
			r->at++;
		if (r->at < r->len && r->text[r->at] == '=')
			r->at++;
		/* The rule ends where the next begins. */
		end = r->at;
		for (skip_blank(r); r->at < r->len && r->text[r->at] != ';' && !at_rule(r); skip_blank(r))
		{
			Piece piece;

			if (r->text[r->at] == '|')
				r->at++;
			else
			{
				skip_atom(r);
				read_counts(r, &piece);
			}
		}
		to = r->at;
		r->at = end;
		start = build_alternatives(r, to, add_state(r, RTN_END, -1, -1));
		r->rules[rule].start = start;
		r->at = to;
		if (r->at < r->len && r->text[r->at] == ';')
			r->at++;
	}
}

/* ---- analysis ---- */

static bool
improve_distances(Rtn *r)
{
	bool again = false;

	for (int32_t i = 0; i < r->n; i++)
	{
		RtnState *s = &r->states[i];
		int32_t d = COST_INF;

		switch (s->kind)
		{
			case RTN_BYTE:
				d = s->lo > s->hi ? COST_INF : add_cost(1, r->states[s->a].dist);
				break;
			case RTN_SPLIT:
				d = r->states[s->a].dist < r->states[s->b].dist ? r->states[s->a].dist : r->states[s->b].dist;
				break;
			case RTN_CALL:
				d = add_cost(r->rules[s->b].dist, r->states[s->a].dist);
				break;
			default:
				d = 0;
				break;
		}
		if (d < s->dist)
		{
			s->dist = d;
			again = true;
		}
		gr_tick(r->ctx);
	}
	for (int32_t i = 0; i < r->nrules; i++)
		if (r->states[r->rules[i].start].dist < r->rules[i].dist)
		{
			r->rules[i].dist = r->states[r->rules[i].start].dist;
			again = true;
		}
	return again;
}

/* Rules called where `rule` starts get a rank above it; a circle is left recursion. */
static void
rank_rule(Rtn *r, int32_t rule, uint8_t *color, int32_t *next_rank)
{
	IntVec work = {NULL, 0, 0};
	int32_t *seen = dsv3_gr_arena_alloc(r->ctx->arena, (size_t) r->n * sizeof(int32_t));

	if (color[rule] == 2)
		return;
	if (color[rule] == 1 || ++r->depth > MAX_RULES)
		dsv3_gr_fail(r->ctx, DSV3_ERR_UNSUPPORTED, "Turn it into repetition or into recursion on the right.",
					 "grammar rule \"%.*s\" is recursive on the left", (int) r->rules[rule].len,
					 r->rules[rule].name);
	color[rule] = 1;
	gr_intvec_push(r->ctx->arena, &work, r->rules[rule].start);
	while (work.n > 0)
	{
		int32_t s = work.v[--work.n];
		const RtnState *st = &r->states[s];

		if (seen[s] || st->dist >= COST_INF)
			continue;
		seen[s] = 1;
		gr_tick(r->ctx);
		if (st->kind == RTN_SPLIT)
		{
			gr_intvec_push(r->ctx->arena, &work, st->a);
			gr_intvec_push(r->ctx->arena, &work, st->b);
		}
		else if (st->kind == RTN_CALL)
		{
			rank_rule(r, st->b, color, next_rank);
			if (r->rules[st->b].dist == 0)
				gr_intvec_push(r->ctx->arena, &work, st->a);
		}
	}
	r->depth--;
	color[rule] = 2;
	r->rules[rule].rank = --*next_rank;
}

struct Rtn *
dsv3_ebnf_compile(Ctx *ctx, Arena *keep, const char *text, size_t len)
{
	Rtn *r = dsv3_gr_arena_alloc(keep, sizeof(Rtn));
	uint8_t *color;
	int32_t rank;

	r->ctx = ctx;
	r->text = dsv3_gr_arena_text(ctx->arena, text, len);
	r->len = len;
	r->rules = dsv3_gr_arena_alloc(ctx->arena, MAX_RULES * sizeof(RtnRule));
	read_rules(r);
	if (r->nrules == 0)
		dsv3_gr_fail(ctx, DSV3_ERR_INVALID_PARAMETER, NULL, "grammar has no rule");
	for (int32_t i = 0; i < r->nrules; i++)
	{
		if (r->rules[i].start < 0)
		{
			r->at = r->rules[i].used_at;
			dsv3_gr_fail(ctx, DSV3_ERR_INVALID_PARAMETER, NULL, "grammar rule \"%.*s\" is not defined",
						 (int) r->rules[i].len, r->rules[i].name);
		}
		r->rules[i].dist = COST_INF;
	}
	while (improve_distances(r))
		;
	if (r->rules[0].dist >= COST_INF)
		dsv3_gr_fail(ctx, DSV3_ERR_INVALID_PARAMETER, "A recursion needs a way out.",
					 "grammar can never be completed");
	color = dsv3_gr_arena_alloc(ctx->arena, (size_t) r->nrules);
	rank = r->nrules;
	for (int32_t i = 0; i < r->nrules; i++)
	{
		r->rules[i].nullable = r->rules[i].dist == 0;
		r->depth = 0;
		if (r->rules[i].dist < COST_INF)
			rank_rule(r, i, color, &rank);
		else
			r->rules[i].rank = --rank;
	}
	r->by_rank = dsv3_gr_arena_alloc(keep, (size_t) r->nrules * sizeof(int32_t));
	for (int32_t i = 0; i < r->nrules; i++)
		r->by_rank[r->rules[i].rank] = i;
	for (int32_t i = 0; i < r->n; i++)
		if (r->states[i].dist < COST_INF && r->states[i].dist > r->max_dist)
			r->max_dist = r->states[i].dist;
	r->states = dsv3_gr_arena_dup(keep, r->states, (size_t) r->n * sizeof(RtnState));
	r->rules = dsv3_gr_arena_dup(keep, r->rules, (size_t) r->nrules * sizeof(RtnRule));
	r->text = NULL;
	r->ctx = NULL;
	return r;
}

int32_t
dsv3_ebnf_max_dist(const struct Rtn *rtn)
{
	return rtn->max_dist;
}

/* ---- running ---- */

typedef struct Place
{
	int32_t state;
	int32_t parent;
} Place;

typedef struct Closure
{
	Dsv3Grammar *g;
	StepOut *out;
	Place *places;
	int32_t n;
	int32_t cap;
	StepOut *calls; /* [nrules] where each rule called here returns to */
	bool any_call;
} Closure;

static void
add_place(Closure *c, int32_t state, int32_t parent)
{
	for (int32_t i = 0; i < c->n; i++)
		if (c->places[i].state == state && c->places[i].parent == parent)
			return;
	if (c->n == c->cap)
	{
		int32_t cap = c->cap == 0 ? 32 : c->cap * 2;
		Place *places;

		if (cap > 1 << 16)
			longjmp(c->g->out, GR_OUT_LIMIT);
		places = dsv3_gr_arena_alloc(&c->g->cache, (size_t) cap * sizeof(Place));
		if (c->n != 0)
			memcpy(places, c->places, (size_t) c->n * sizeof(Place));
		c->places = places;
		c->cap = cap;
	}
	c->places[c->n].state = state;
	c->places[c->n++].parent = parent;
}

static Item
rule_item(int32_t state, int32_t parent)
{
	Item item;

	memset(&item, 0, sizeof(item));
	item.phase = PH_RULE;
	item.alt = -1;
	item.a = state;
	item.parent = parent;
	return item;
}

/* From the places added so far. fresh: they belong to a rule that starts here, so its end is not reached by returning. */
static void
run_places(Closure *c, bool fresh)
{
	Dsv3Grammar *g = c->g;
	const Rtn *r = g->rtn;

	for (int32_t i = 0; i < c->n; i++)
	{
		Place p = c->places[i];
		const RtnState *st;
		Item item;

		if (p.state == DONE)
		{
			item = rule_item(DONE, 0);
			dsv3_gr_step_push(g, c->out, &item);
			continue;
		}
		st = &r->states[p.state];
		if (st->dist >= COST_INF)
			continue;
		switch (st->kind)
		{
			case RTN_BYTE:
				item = rule_item(p.state, p.parent);
				dsv3_gr_step_push(g, c->out, &item);
				break;
			case RTN_SPLIT:
				add_place(c, st->a, p.parent);
				add_place(c, st->b, p.parent);
				break;
			case RTN_END:
				if (!fresh)
					for (int32_t k = 0; k < g->configs[p.parent].nitems; k++)
						add_place(c, g->configs[p.parent].items[k].a, g->configs[p.parent].items[k].parent);
				break;
			default:
			{
				StepOut *calls = &c->calls[st->b];

				c->any_call = true;
				if (r->states[st->a].kind == RTN_END)
					for (int32_t k = 0; k < g->configs[p.parent].nitems; k++)
					{
						Item back = g->configs[p.parent].items[k];

						dsv3_gr_step_push(g, calls, &back);
					}
				else
				{
					item = rule_item(st->a, p.parent);
					dsv3_gr_step_push(g, calls, &item);
				}
				if (r->rules[st->b].nullable)
					add_place(c, st->a, p.parent);
				break;
			}
		}
	}
	c->n = 0;
}

static void
run_calls(Closure *c)
{
	const Rtn *r = c->g->rtn;

	for (int32_t k = 0; k < r->nrules && c->any_call; k++)
	{
		int32_t rule = r->by_rank[k];

		if (c->calls[rule].n == 0)
			continue;
		add_place(c, r->rules[rule].start,
				  dsv3_machine_config(c->g, c->calls[rule].items, c->calls[rule].n, 0, 0));
		run_places(c, true);
	}
}

int32_t
dsv3_ebnf_start(Dsv3Grammar *g)
{
	StepOut out = {NULL, 0, 0, NULL, 0, 0};
	Closure c = {g, &out, NULL, 0, 0, NULL, false};
	Item end = rule_item(DONE, 0);

	c.calls = dsv3_gr_arena_alloc(&g->cache, (size_t) g->rtn->nrules * sizeof(StepOut));
	dsv3_gr_step_push(g, &c.calls[0], &end);
	c.any_call = true;
	if (g->rtn->rules[0].nullable)
		dsv3_gr_step_push(g, &out, &end);
	run_calls(&c);
	return dsv3_machine_config(g, out.items, out.n, 0, 0);
}

void
dsv3_ebnf_step(Dsv3Grammar *g, const Item *items, int32_t n, unsigned char byte, StepOut *out)
{
	Closure c = {g, out, NULL, 0, 0, NULL, false};

	for (int32_t i = 0; i < n; i++)
	{
		const RtnState *st;

		if (items[i].a == DONE)
			continue;
		st = &g->rtn->states[items[i].a];
		if (byte >= st->lo && byte <= st->hi)
			add_place(&c, st->a, items[i].parent);
	}
	if (c.n == 0)
		return;
	c.calls = dsv3_gr_arena_alloc(&g->cache, (size_t) g->rtn->nrules * sizeof(StepOut));
	run_places(&c, false);
	run_calls(&c);
}

int32_t
dsv3_ebnf_item_cost(Dsv3Grammar *g, const Item *item)
{
	if (item->a == DONE)
		return 0;
	return add_cost(g->rtn->states[item->a].dist, item->parent == 0 ? 0 : dsv3_machine_cost(g, item->parent));
}

bool
dsv3_ebnf_item_complete(Dsv3Grammar *g, const Item *item)
{
	(void) g;
	return item->a == DONE;
}
