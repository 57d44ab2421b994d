/*
 * regex.c
 *	  ECMA-262 regular expressions to byte automata.
 *
 * text -> syntax tree -> NFA over the UTF-8 bytes of the canonical JSON spelling -> DFA (dsv3_lex_build). The subset:
 * literals, classes, groups, alternation, counted and lazy quantifiers, ^ and $, the class escapes, \x \u \c, \p by
 * general category or script; lookahead where it is a conjunction of searches, that is at a fixed distance from the
 * start of an anchored expression. Back-references, \b and every other lookaround are refused: no automaton of a
 * sensible size knows them.
 *
 * An expression is searched for, as JSON Schema wants it, unless the caller asks for a whole match. ^ is an edge that
 * can be passed only before the first byte, $ one that can be passed only after the last.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/lex.h"
#include "grammar/unicode.h"

#define MAX_NFA   60000
#define MAX_DEPTH 200
#define REP_INF   (-1)
#define REP_MAX   100000

typedef enum RxKind
{
	RX_EMPTY,
	RX_CLASS,
	RX_CAT,
	RX_ALT,
	RX_REP,
	RX_BOL,
	RX_EOL,
	RX_LOOK, /* lookahead; a = inside */
} RxKind;

typedef struct RxNode
{
	RxKind kind;
	struct RxNode *a;
	struct RxNode *b;
	int32_t min;
	int32_t max;
	bool negated;
	CodeSet *set;
} RxNode;

typedef struct RxParser
{
	Ctx *ctx;
	const char *text;
	size_t len;
	size_t at;
	int depth;
} RxParser;

static RxNode *parse_alt(RxParser *p);

static RxNode *
node_new(RxParser *p, RxKind kind, RxNode *a, RxNode *b)
{
	RxNode *node = dsv3_gr_arena_alloc(p->ctx->arena, sizeof(RxNode));

	node->kind = kind;
	node->a = a;
	node->b = b;
	return node;
}

static void refuse(RxParser *p, const char *what) __attribute__((noreturn));
static void
refuse(RxParser *p, const char *what)
{
	dsv3_gr_fail(
		p->ctx, DSV3_ERR_UNSUPPORTED,
		"Supported are ECMA-262 expressions without back-references, word boundaries and lookbehind.",
		"regular expression \"%.*s\" %s", (int) (p->len > 200 ? 200 : p->len), p->text, what);
}

static void invalid(RxParser *p, const char *what) __attribute__((noreturn));
static void
invalid(RxParser *p, const char *what)
{
	dsv3_gr_fail(p->ctx, DSV3_ERR_INVALID_PARAMETER, NULL, "regular expression \"%.*s\" is invalid: %s",
				 (int) (p->len > 200 ? 200 : p->len), p->text, what);
}

static uint32_t
next_code(RxParser *p)
{
	uint32_t code;

	p->at += dsv3_gr_unicode_decode(p->text + p->at, p->len - p->at, &code);
	return code;
}

static int
hex_digits(RxParser *p, int n)
{
	int v = 0;

	if (p->at + (size_t) n > p->len)
		return -1;
	for (int i = 0; i < n; i++)
	{
		char c = p->text[p->at + (size_t) i];

		if (c >= '0' && c <= '9')
			v = v * 16 + c - '0';
		else if (c >= 'a' && c <= 'f')
			v = v * 16 + c - 'a' + 10;
		else if (c >= 'A' && c <= 'F')
			v = v * 16 + c - 'A' + 10;
		else
			return -1;
	}
	p->at += (size_t) n;
	return v;
}

/* After a backslash. Adds a class escape to *set and returns true, or gives one code point. */
static bool
parse_escape(RxParser *p, bool in_class, CodeSet *set, uint32_t *code)
{
	Arena *arena = p->ctx->arena;
	char c;

	if (p->at >= p->len)
		invalid(p, "it ends in a backslash");
	c = p->text[p->at];
	switch (c)
	{
		case 'd':
		case 'D':
		case 'w':
		case 'W':
		case 's':
		case 'S':
			p->at++;
			dsv3_codeset_add_escape(arena, set, c);
			return true;
		case 'p':
		case 'P':
		{
			size_t end;

			if (p->at + 1 >= p->len || p->text[p->at + 1] != '{')
				break; /* identity escape outside of unicode mode */
			end = p->at + 2;
			while (end < p->len && p->text[end] != '}')
				end++;
			if (end >= p->len)
				invalid(p, "\\p without a closing brace");
			if (!dsv3_codeset_add_property(p->ctx, set, p->text + p->at + 2, end - p->at - 2, c == 'P'))
				refuse(p, "names a Unicode property that is not known");
			p->at = end + 1;
			return true;
		}
		case 'b':
			if (!in_class)
				refuse(p, "uses a word boundary");
			p->at++;
			*code = 8;
			return false;
		case 'B':
			if (!in_class)
				refuse(p, "uses a word boundary");
			break;
		case 'k':
			if (p->at + 1 < p->len && p->text[p->at + 1] == '<')
				refuse(p, "uses a back-reference");
			break;
		case 'n':
			p->at++;
			*code = '\n';
			return false;
		case 'r':
			p->at++;
			*code = '\r';
			return false;
		case 't':
			p->at++;
			*code = '\t';
			return false;
		case 'f':
			p->at++;
			*code = '\f';
			return false;
		case 'v':
			p->at++;
			*code = '\v';
			return false;
		case 'x':
		{
			int v;

			p->at++;
			v = hex_digits(p, 2);
			*code = v < 0 ? 'x' : (uint32_t) v;
			return false;
		}
		case 'u':
		{
			int v;

			p->at++;
			if (p->at < p->len && p->text[p->at] == '{')
			{
				uint32_t value = 0;

				for (p->at++; p->at < p->len && p->text[p->at] != '}';)
				{
					int h = hex_digits(p, 1);

					if (h < 0 || value > 0x10FFFF)
						invalid(p, "bad \\u{...}");
					value = value * 16 + (uint32_t) h;
				}
				if (p->at >= p->len || value > 0x10FFFF)
					invalid(p, "bad \\u{...}");
				p->at++;
				*code = value;
				return false;
			}
			v = hex_digits(p, 4);
			*code = v < 0 ? 'u' : (uint32_t) v;
			if (v >= 0xD800 && v <= 0xDBFF && p->at + 6 <= p->len && p->text[p->at] == '\\' &&
				p->text[p->at + 1] == 'u')
			{
				size_t save = p->at;
				int low;

				p->at += 2;
				low = hex_digits(p, 4);
				if (low >= 0xDC00 && low <= 0xDFFF)
					*code = 0x10000 + (((uint32_t) v - 0xD800) << 10) + ((uint32_t) low - 0xDC00);
				else
					p->at = save;
			}
			return false;
		}
		case 'c':
			if (p->at + 1 < p->len && ((p->text[p->at + 1] | 32) >= 'a' && (p->text[p->at + 1] | 32) <= 'z'))
			{
				*code = (uint32_t) (p->text[p->at + 1] & 31);
				p->at += 2;
				return false;
			}
			p->at++;
			*code = 'c';
			return false;
		case '0':
			p->at++;
			*code = 0;
			return false;
		case '1':
		case '2':
		case '3':
		case '4':
		case '5':
		case '6':
		case '7':
		case '8':
		case '9':
			refuse(p, "uses a back-reference");
		case 'A':
		case 'Z':
		case 'z':
		case 'G':
			if (!in_class)
				refuse(p, "uses an anchor that ECMA-262 does not have");
			break;
		default:
			break;
	}
	*code = next_code(p);
	return false;
}

/* After the opening bracket. */
static RxNode *
parse_class(RxParser *p)
{
	CodeSet *set = dsv3_codeset_new(p->ctx->arena);
	RxNode *node = node_new(p, RX_CLASS, NULL, NULL);
	bool negated = false;

	if (p->at < p->len && p->text[p->at] == '^')
	{
		negated = true;
		p->at++;
	}
	for (;;)
	{
		uint32_t lo = 0;
		uint32_t hi = 0;
		bool is_set = false;

		if (p->at >= p->len)
			invalid(p, "a bracket is not closed");
		if (p->text[p->at] == ']')
		{
			p->at++;
			break;
		}
		if (p->text[p->at] == '[' && p->at + 1 < p->len && p->text[p->at + 1] == ':')
			refuse(p, "uses a POSIX class");
		if (p->text[p->at] == '\\')
		{
			p->at++;
			is_set = parse_escape(p, true, set, &lo);
		}
		else
			lo = next_code(p);
		if (is_set)
			continue;
		hi = lo;
		if (p->at + 1 < p->len && p->text[p->at] == '-' && p->text[p->at + 1] != ']')
		{
			p->at++;
			if (p->text[p->at] == '\\')
			{
				p->at++;
				is_set = parse_escape(p, true, set, &hi);
			}
			else
				hi = next_code(p);
			if (is_set)
			{
				dsv3_codeset_add(p->ctx->arena, set, lo, lo);
				dsv3_codeset_add(p->ctx->arena, set, '-', '-');
				continue;
			}
			if (hi < lo)
				invalid(p, "a range runs backwards");
		}
		dsv3_codeset_add(p->ctx->arena, set, lo, hi);
	}
	dsv3_codeset_finish(p->ctx->arena, set, negated);
	node->set = set;
	return node;
}

static RxNode *
class_one(RxParser *p, uint32_t lo, uint32_t hi)
{
	RxNode *node = node_new(p, RX_CLASS, NULL, NULL);

	node->set = dsv3_codeset_new(p->ctx->arena);
	dsv3_codeset_add(p->ctx->arena, node->set, lo, hi);
	dsv3_codeset_finish(p->ctx->arena, node->set, false);
	return node;
}

static RxNode *
parse_group(RxParser *p)
{
	RxNode *node;
	RxKind kind = RX_EMPTY;
	bool negated = false;

	if (p->at + 1 < p->len && p->text[p->at] == '?')
	{
		char c = p->text[p->at + 1];

		if (c == ':')
			p->at += 2;
		else if (c == '=' || c == '!')
		{
			kind = RX_LOOK;
			negated = c == '!';
			p->at += 2;
		}
		else if (c == '<' && p->at + 2 < p->len && p->text[p->at + 2] != '=' && p->text[p->at + 2] != '!')
		{
			while (p->at < p->len && p->text[p->at] != '>')
				p->at++;
			p->at++;
		}
		else if (c == '<')
			refuse(p, "uses lookbehind");
		else
			refuse(p, "uses an inline flag or a group that ECMA-262 does not have");
	}
	node = parse_alt(p);
	if (p->at >= p->len || p->text[p->at] != ')')
		invalid(p, "a parenthesis is not closed");
	p->at++;
	if (kind == RX_LOOK)
	{
		node = node_new(p, RX_LOOK, node, NULL);
		node->negated = negated;
	}
	return node;
}

/* {m}, {m,} or {m,n} at p->at; false when the brace is a literal. */
static bool
parse_counts(RxParser *p, int32_t *min, int32_t *max)
{
	size_t at = p->at + 1;
	int64_t lo = 0;
	int64_t hi = 0;
	size_t start = at;

	while (at < p->len && p->text[at] >= '0' && p->text[at] <= '9')
	{
		lo = lo > REP_MAX ? lo : lo * 10 + (p->text[at] - '0');
		at++;
	}
	if (at == start || at >= p->len)
		return false;
	hi = lo;
	if (p->text[at] == ',')
	{
		at++;
		start = at;
		hi = 0;
		while (at < p->len && p->text[at] >= '0' && p->text[at] <= '9')
		{
			hi = hi > REP_MAX ? hi : hi * 10 + (p->text[at] - '0');
			at++;
		}
		if (at == start)
			hi = REP_INF;
	}
	if (at >= p->len || p->text[at] != '}')
		return false;
	if (lo > REP_MAX || hi > REP_MAX)
		refuse(p, "repeats more than 100000 times");
	if (hi != REP_INF && hi < lo)
		invalid(p, "a repetition's bounds are the wrong way round");
	p->at = at + 1;
	*min = (int32_t) lo;
	*max = (int32_t) hi;
	return true;
}

static RxNode *
parse_atom(RxParser *p)
{
	RxNode *node;
	char c = p->text[p->at];

	if (c == '(')
	{
		p->at++;
		return parse_group(p);
	}
	if (c == '[')
	{
		p->at++;
		return parse_class(p);
	}
	if (c == '^' || c == '$')
	{
		p->at++;
		return node_new(p, c == '^' ? RX_BOL : RX_EOL, NULL, NULL);
	}
	if (c == '.')
	{
		p->at++;
		node = node_new(p, RX_CLASS, NULL, NULL);
		node->set = dsv3_codeset_new(p->ctx->arena);
		dsv3_codeset_add(p->ctx->arena, node->set, '\n', '\n');
		dsv3_codeset_add(p->ctx->arena, node->set, '\r', '\r');
		dsv3_codeset_add(p->ctx->arena, node->set, 0x2028, 0x2029);
		dsv3_codeset_finish(p->ctx->arena, node->set, true);
		return node;
	}
	if (c == '*' || c == '+' || c == '?')
		invalid(p, "nothing to repeat");
	if (c == '\\')
	{
		CodeSet *set = dsv3_codeset_new(p->ctx->arena);
		uint32_t code = 0;

		p->at++;
		if (parse_escape(p, false, set, &code))
		{
			dsv3_codeset_finish(p->ctx->arena, set, false);
			node = node_new(p, RX_CLASS, NULL, NULL);
			node->set = set;
			return node;
		}
		return class_one(p, code, code);
	}
	{
		uint32_t code = next_code(p);

		return class_one(p, code, code);
	}
}

static RxNode *
parse_cat(RxParser *p)
{
	RxNode *list = NULL;
	RxNode *tail = NULL;

	while (p->at < p->len && p->text[p->at] != '|' && p->text[p->at] != ')')
	{
		RxNode *atom = parse_atom(p);
		RxNode *cell;

		for (;;)
		{
			int32_t min;
			int32_t max;
			RxNode *rep;

			if (p->at >= p->len)
				break;
			if (p->text[p->at] == '*' || p->text[p->at] == '+' || p->text[p->at] == '?')
			{
				min = p->text[p->at] == '+';
				max = p->text[p->at] == '?' ? 1 : REP_INF;
				p->at++;
			}
			else if (p->text[p->at] != '{' || !parse_counts(p, &min, &max))
				break;
			if (p->at < p->len && p->text[p->at] == '?')
				p->at++;
			else if (p->at < p->len && p->text[p->at] == '+')
				refuse(p, "uses a possessive quantifier");
			if (atom->kind == RX_BOL || atom->kind == RX_EOL || atom->kind == RX_LOOK)
				invalid(p, "an assertion is repeated");
			rep = node_new(p, RX_REP, atom, NULL);
			rep->min = min;
			rep->max = max;
			atom = rep;
		}
		cell = node_new(p, RX_CAT, atom, NULL);
		if (tail == NULL)
			list = cell;
		else
			tail->b = cell;
		tail = cell;
		gr_tick(p->ctx);
	}
	if (list == NULL)
		return node_new(p, RX_EMPTY, NULL, NULL);
	return list;
}

static RxNode *
parse_alt(RxParser *p)
{
	RxNode *node;

	if (++p->depth > MAX_DEPTH)
		dsv3_gr_fail(p->ctx, DSV3_ERR_TOO_LARGE, NULL, "regular expression nests deeper than %d groups",
					 MAX_DEPTH);
	node = parse_cat(p);
	if (p->at < p->len && p->text[p->at] == '|')
	{
		/* A chain to the right, built in a loop: many alternatives must not become deep recursion here. */
		RxNode *first = node_new(p, RX_ALT, node, NULL);
		RxNode *last = first;

		while (p->at < p->len && p->text[p->at] == '|')
		{
			RxNode *next;

			p->at++;
			next = parse_cat(p);
			if (p->at < p->len && p->text[p->at] == '|')
			{
				last->b = node_new(p, RX_ALT, next, NULL);
				last = last->b;
			}
			else
				last->b = next;
		}
		node = first;
	}
	p->depth--;
	return node;
}

/* ---- NFA ---- */

typedef enum NfaKind
{
	NFA_BYTE,
	NFA_SPLIT,
	NFA_BOL,
	NFA_EOL,
	NFA_FINAL,
} NfaKind;

typedef struct NfaState
{
	uint8_t kind;
	uint8_t lo;
	uint8_t hi;
	int32_t out;
	int32_t out1;
} NfaState;

typedef struct Nfa
{
	Ctx *ctx;
	bool escaped;
	NfaState *states;
	int32_t n;
	int32_t cap;
	int32_t start;
	uint64_t *bits; /* the set of states being collected */
	uint64_t *seen; /* what the closure has been at */
	int32_t lo;     /* their words in use: [lo, hi) */
	int32_t hi;
	IntVec found;
	int32_t *stack;
	bool absorbing; /* reaching the final state accepts whatever follows */
} Nfa;

static int32_t
nfa_add(Nfa *nfa, NfaKind kind, int32_t out, int32_t out1)
{
	if (nfa->n == nfa->cap)
	{
		int32_t cap = nfa->cap == 0 ? 64 : nfa->cap * 2;
		NfaState *states;

		if (cap > MAX_NFA * 2)
			dsv3_gr_fail(nfa->ctx, DSV3_ERR_TOO_LARGE,
						 "Use minLength and maxLength instead of large counted repetitions.",
						 "regular expression is too large");
		states = dsv3_gr_arena_alloc(nfa->ctx->arena, (size_t) cap * sizeof(NfaState));
		if (nfa->n != 0)
			memcpy(states, nfa->states, (size_t) nfa->n * sizeof(NfaState));
		nfa->states = states;
		nfa->cap = cap;
	}
	nfa->states[nfa->n].kind = (uint8_t) kind;
	nfa->states[nfa->n].out = out;
	nfa->states[nfa->n].out1 = out1;
	return nfa->n++;
}

static int32_t
nfa_byte(Nfa *nfa, int lo, int hi, int32_t out)
{
	int32_t s = nfa_add(nfa, NFA_BYTE, out, -1);

	nfa->states[s].lo = (uint8_t) lo;
	nfa->states[s].hi = (uint8_t) hi;
	return s;
}

static int32_t
nfa_or(Nfa *nfa, int32_t a, int32_t b)
{
	if (a < 0)
		return b;
	if (b < 0)
		return a;
	return nfa_add(nfa, NFA_SPLIT, a, b);
}

/* Sequences [from, to), which agree before `at`: those with the same range at `at` share one state. */
static int32_t
nfa_sequences(Nfa *nfa, const ByteSeq *v, int32_t from, int32_t to, int at, int32_t next)
{
	int32_t s = -1;

	if (at >= 4)
		return next;
	for (int32_t i = from; i < to;)
	{
		int32_t k = i + 1;
		int32_t rest;

		while (k < to && v[k].lo[at] == v[i].lo[at] && v[k].hi[at] == v[i].hi[at] && v[k].n == v[i].n)
			k++;
		rest = v[i].n == at + 1 ? next : nfa_sequences(nfa, v, i, k, at + 1, next);
		s = nfa_or(nfa, s, nfa_byte(nfa, v[i].lo[at], v[i].hi[at], rest));
		i = k;
	}
	return s;
}

static int32_t
nfa_class(Nfa *nfa, const CodeSet *set, int32_t next)
{
	int32_t s = -1;
	ByteSeqs seqs = {NULL, 0, 0};
	static const char short_from[] = "\b\t\n\f\r\"\\";
	static const char short_to[] = "btnfr\"\\";

	for (int32_t i = 0; i < set->n; i++)
	{
		uint32_t lo = set->ranges[i].lo;
		uint32_t hi = set->ranges[i].hi;

		if (lo == 0)
			lo = 1;
		for (uint32_t c = lo; c <= hi && c < 0x80;)
		{
			uint32_t end = c;

			if (nfa->escaped && (c < 0x20 || c == '"' || c == '\\'))
			{
				const char *found = strchr(short_from, (int) c);

				if (found != NULL)
					s = nfa_or(nfa, s,
							   nfa_byte(nfa, '\\', '\\',
										nfa_byte(nfa, short_to[found - short_from],
												 short_to[found - short_from], next)));
				else
				{
					char digit = "0123456789abcdef"[c & 15];
					int32_t t = nfa_byte(nfa, digit, digit, next);

					t = nfa_byte(nfa, c < 16 ? '0' : '1', c < 16 ? '0' : '1', t);
					t = nfa_byte(nfa, '0', '0', t);
					t = nfa_byte(nfa, '0', '0', t);
					t = nfa_byte(nfa, 'u', 'u', t);
					s = nfa_or(nfa, s, nfa_byte(nfa, '\\', '\\', t));
				}
				c++;
				continue;
			}
			while (end < hi && end < 0x7F &&
				   !(nfa->escaped && (end + 1 < 0x20 || end + 1 == '"' || end + 1 == '\\')))
				end++;
			s = nfa_or(nfa, s, nfa_byte(nfa, (int) c, (int) end, next));
			c = end + 1;
		}
		if (hi >= 0x80)
		{
			lo = lo < 0x80 ? 0x80 : lo;
			if (lo < 0xD800 && hi >= 0xD800)
			{
				dsv3_codeset_utf8(nfa->ctx->arena, &seqs, lo, 0xD7FF);
				lo = 0xE000;
			}
			else if (lo >= 0xD800 && lo <= 0xDFFF)
				lo = 0xE000;
			if (lo <= hi)
				dsv3_codeset_utf8(nfa->ctx->arena, &seqs, lo, hi);
		}
	}
	s = nfa_or(nfa, s, nfa_sequences(nfa, seqs.v, 0, seqs.n, 0, next));
	if (s < 0) /* the empty class: a byte that never comes */
		s = nfa_byte(nfa, 1, 0, next);
	return s;
}

static int32_t
nfa_make(Nfa *nfa, const RxNode *node, int32_t next, int depth)
{
	gr_tick(nfa->ctx);
	if (depth > MAX_DEPTH * 8)
		dsv3_gr_fail(nfa->ctx, DSV3_ERR_TOO_LARGE, NULL, "regular expression is nested too deeply");
	switch (node->kind)
	{
		case RX_EMPTY:
			return next;
		case RX_CLASS:
			return nfa_class(nfa, node->set, next);
		case RX_CAT:
		{
			/* From the last piece to the first, without recursion along the chain. */
			const RxNode **cells;
			int32_t n = 0;

			for (const RxNode *c = node; c != NULL; c = c->b)
				n++;
			cells = dsv3_gr_arena_alloc(nfa->ctx->arena, (size_t) n * sizeof(RxNode *));
			n = 0;
			for (const RxNode *c = node; c != NULL; c = c->b)
				cells[n++] = c;
			while (n-- > 0)
				next = nfa_make(nfa, cells[n]->a, next, depth + 1);
			return next;
		}
		case RX_ALT:
		{
			int32_t s = -1;

			for (; node->kind == RX_ALT; node = node->b)
				s = nfa_or(nfa, s, nfa_make(nfa, node->a, next, depth + 1));
			return nfa_or(nfa, s, nfa_make(nfa, node, next, depth + 1));
		}
		case RX_REP:
		{
			int32_t cur = next;

			if (node->max == REP_INF)
			{
				cur = nfa_add(nfa, NFA_SPLIT, next, next);
				{
					int32_t body = nfa_make(nfa, node->a, cur, depth + 1);

					nfa->states[cur].out = body;
				}
			}
			else
				for (int32_t i = node->min; i < node->max; i++)
					cur = nfa_add(nfa, NFA_SPLIT, nfa_make(nfa, node->a, cur, depth + 1), next);
			for (int32_t i = 0; i < node->min; i++)
				cur = nfa_make(nfa, node->a, cur, depth + 1);
			return cur;
		}
		case RX_BOL:
			return nfa_add(nfa, NFA_BOL, next, -1);
		case RX_EOL:
			return nfa_add(nfa, NFA_EOL, next, -1);
		case RX_LOOK:
			dsv3_gr_fail(
				nfa->ctx, DSV3_ERR_UNSUPPORTED,
				"Lookahead works at a fixed distance from the start of an expression that begins with ^.",
				"regular expression uses lookahead in a place where it is not a plain condition");
	}
	return next;
}

/* Add the states reachable from s without a byte to the set. */
static void
closure(Nfa *nfa, int32_t s, bool at_start, bool at_end)
{
	int32_t n = 0;
	int32_t steps = 0;

	nfa->stack[n++] = s;
	while (n > 0)
	{
		const NfaState *st;
		uint64_t bit;

		s = nfa->stack[--n];
		bit = UINT64_C(1) << (s & 63);
		if ((nfa->seen[s >> 6] & bit) != 0)
			continue;
		nfa->seen[s >> 6] |= bit;
		nfa->lo = s >> 6 < nfa->lo ? s >> 6 : nfa->lo;
		nfa->hi = s >> 6 >= nfa->hi ? (s >> 6) + 1 : nfa->hi;
		steps++;
		st = &nfa->states[s];
		switch (st->kind)
		{
			case NFA_SPLIT:
				nfa->stack[n++] = st->out;
				nfa->stack[n++] = st->out1;
				break;
			case NFA_BOL:
				if (at_start)
					nfa->stack[n++] = st->out;
				break;
			case NFA_EOL:
				if (at_end)
					nfa->stack[n++] = st->out;
				nfa->bits[s >> 6] |= bit;
				break;
			default:
				nfa->bits[s >> 6] |= bit;
				break;
		}
	}
	gr_work(nfa->ctx, steps / 8);
}

/* Move the collected set into `out`, in order; once the final state of a search is in it, nothing else matters. */
static void
settle(Nfa *nfa, IntVec *out)
{
	out->n = 0;
	gr_work(nfa->ctx, nfa->hi > nfa->lo ? (nfa->hi - nfa->lo) / 8 + 1 : 1);
	for (int32_t w = nfa->lo; w < nfa->hi; w++)
	{
		for (uint64_t bits = nfa->bits[w]; bits != 0; bits &= bits - 1)
			gr_intvec_push(nfa->ctx->arena, out, w * 64 + __builtin_ctzll(bits));
		nfa->bits[w] = nfa->seen[w] = 0;
	}
	nfa->lo = INT32_MAX;
	nfa->hi = 0;
	for (int32_t i = 0; i < out->n && nfa->absorbing; i++)
		if (nfa->states[out->v[i]].kind == NFA_FINAL)
		{
			out->v[0] = out->v[i];
			out->n = 1;
			return;
		}
}

static bool
nfa_step(void *arg, const int32_t *key, int32_t n, unsigned char byte, IntVec *out)
{
	Nfa *nfa = arg;
	bool any = false;

	out->n = 0;
	for (int32_t i = 0; i < n; i++)
	{
		const NfaState *st = &nfa->states[key[i]];

		if (st->kind == NFA_FINAL && nfa->absorbing)
		{
			/* The final state stands alone in its set. */
			gr_intvec_push(nfa->ctx->arena, out, key[i]);
			return true;
		}
		if (st->kind == NFA_BYTE && byte >= st->lo && byte <= st->hi)
		{
			any = true;
			closure(nfa, st->out, false, false);
		}
	}
	gr_work(nfa->ctx, n / 8 + 1);
	if (any)
		settle(nfa, out);
	return out->n != 0;
}

static int32_t
nfa_tag(void *arg, const int32_t *key, int32_t n)
{
	Nfa *nfa = arg;

	for (int32_t i = 0; i < n; i++)
		if (nfa->states[key[i]].kind == NFA_FINAL)
			return 0;
	for (int32_t i = 0; i < n; i++)
		if (nfa->states[key[i]].kind == NFA_EOL)
			closure(nfa, nfa->states[key[i]].out, false, true);
	settle(nfa, &nfa->found);
	for (int32_t i = 0; i < nfa->found.n; i++)
		if (nfa->states[nfa->found.v[i]].kind == NFA_FINAL)
			return 0;
	return -1;
}

static Lex *
nfa_to_lex(Nfa *nfa)
{
	LexSource source = {nfa, nfa_step, nfa_tag, NULL, false, LEX_MAX_STATES, false};
	IntVec start = {NULL, 0, 0};
	uint8_t cls[256];
	bool cut[257] = {false};
	int32_t ncls = 0;

	nfa->bits = dsv3_gr_arena_alloc(nfa->ctx->arena, ((size_t) nfa->n / 64 + 1) * sizeof(uint64_t));
	nfa->seen = dsv3_gr_arena_alloc(nfa->ctx->arena, ((size_t) nfa->n / 64 + 1) * sizeof(uint64_t));
	nfa->stack = dsv3_gr_arena_alloc(nfa->ctx->arena, ((size_t) nfa->n * 2 + 8) * sizeof(int32_t));
	for (int32_t i = 0; i < nfa->n; i++)
		if (nfa->states[i].kind == NFA_BYTE && nfa->states[i].lo <= nfa->states[i].hi)
		{
			cut[nfa->states[i].lo] = true;
			cut[nfa->states[i].hi + 1] = true;
		}
	for (int b = 0; b < 256; b++)
	{
		if (b > 0 && cut[b])
			ncls++;
		cls[b] = (uint8_t) ncls;
	}
	ncls++;
	closure(nfa, nfa->start, true, false);
	settle(nfa, &start);
	return dsv3_lex_build(nfa->ctx, &source, start.v, start.n, cls, ncls);
}

static PatternPart *
make_part(RxParser *p, RxNode *node, bool escaped, bool whole, bool negated, PatternPart *next)
{
	Nfa nfa = {.ctx = p->ctx, .lo = INT32_MAX, .escaped = escaped, .absorbing = !whole};
	PatternPart *part = dsv3_gr_arena_alloc(p->ctx->arena, sizeof(PatternPart));
	int32_t final = nfa_add(&nfa, NFA_FINAL, -1, -1);
	int32_t body;

	if (whole)
		final = nfa_add(&nfa, NFA_EOL, final, -1);
	body = nfa_make(&nfa, node, final, 0);
	if (whole)
		nfa.start = nfa_add(&nfa, NFA_BOL, body, -1);
	else
	{
		CodeSet *any = dsv3_codeset_new(p->ctx->arena);
		int32_t loop;

		dsv3_codeset_add(p->ctx->arena, any, 1, 0x10FFFF);
		dsv3_codeset_finish(p->ctx->arena, any, false);
		loop = nfa_add(&nfa, NFA_SPLIT, body, body);
		{
			int32_t step = nfa_class(&nfa, any, loop);

			nfa.states[loop].out1 = step;
		}
		nfa.start = loop;
	}
	part->lex = nfa_to_lex(&nfa);
	part->negated = negated;
	part->next = next;
	return part;
}

/* Code points an expression always takes, or -1 when that varies. */
static int32_t
fixed_width(const RxNode *node)
{
	int32_t total = 0;
	int32_t w;

	switch (node->kind)
	{
		case RX_CLASS:
			return 1;
		case RX_CAT:
			for (; node != NULL; node = node->b)
			{
				w = fixed_width(node->a);
				if (w < 0 || total > 1000)
					return -1;
				total += w;
			}
			return total;
		case RX_ALT:
			w = fixed_width(node->a);
			return w >= 0 && w == fixed_width(node->b) ? w : -1;
		case RX_REP:
			w = fixed_width(node->a);
			return w >= 0 && node->min == node->max && node->min < 1000 ? w * node->min : -1;
		default:
			return 0;
	}
}

Pattern *
dsv3_regex_compile(Ctx *ctx, const char *text, size_t len, bool escaped, bool whole, bool counted)
{
	RxParser p = {ctx, text, len, 0, 0};
	Pattern *pattern = dsv3_gr_arena_alloc(ctx->arena, sizeof(Pattern));
	RxNode *root;
	int32_t width = 0;
	bool anchored;
	RxNode **link;

	if (len > 65536)
		dsv3_gr_fail(ctx, DSV3_ERR_TOO_LARGE, NULL, "regular expression is longer than 65536 bytes");
	root = parse_alt(&p);
	if (p.at < p.len)
		invalid(&p, "a parenthesis is closed that was not opened");
	pattern->max = -1;

	/* ^X{m,n}$: a count of one kind of character, whatever the numbers. */
	if (counted && !whole && root->kind == RX_CAT && root->a->kind == RX_BOL && root->b != NULL &&
		root->b->a->kind == RX_REP && root->b->a->a->kind == RX_CLASS && root->b->b != NULL &&
		root->b->b->a->kind == RX_EOL && root->b->b->b == NULL &&
		(root->b->a->min > 1 || root->b->a->max > 1))
	{
		pattern->min = root->b->a->min;
		pattern->max = root->b->a->max;
		root->b->a->min = 0;
		root->b->a->max = REP_INF;
	}

	/* Lookahead at a fixed distance from ^ is a condition of its own. */
	anchored = whole || (root->kind == RX_CAT && root->a->kind == RX_BOL);
	link = &root;
	while (anchored && *link != NULL && (*link)->kind == RX_CAT && width >= 0)
	{
		RxNode *cell = *link;

		if (cell->a->kind == RX_LOOK)
		{
			RxNode *cond = node_new(&p, RX_CAT, node_new(&p, RX_BOL, NULL, NULL), NULL);
			RxNode *any = node_new(&p, RX_REP, class_one(&p, 0, 0x10FFFF), NULL);

			any->min = any->max = width;
			cond->b = node_new(&p, RX_CAT, any, node_new(&p, RX_CAT, cell->a->a, NULL));
			pattern->parts = make_part(&p, cond, escaped, false, cell->a->negated, pattern->parts);
			*link = cell->b;
			continue;
		}
		{
			int32_t w = fixed_width(cell->a);

			width = w < 0 || width + w > 1000 ? -1 : width + w;
		}
		link = &cell->b;
	}
	if (root == NULL)
		root = node_new(&p, RX_EMPTY, NULL, NULL);
	pattern->parts = make_part(&p, root, escaped, whole, false, pattern->parts);
	return pattern;
}
