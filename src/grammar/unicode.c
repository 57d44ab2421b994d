/*
 * unicode.c
 *	  Sets of code points. Unicode's own tables come from PCRE2, which is linked anyway: every code point is laid out
 *	  once in a string and the runs that match a property are read off it.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/unicode.h"

#define PROPERTY_STEPS 1000000 /* what looking at every character counts as */

size_t
dsv3_gr_unicode_decode(const char *text, size_t len, uint32_t *code)
{
	const unsigned char *s = (const unsigned char *) text;
	int n = s[0] < 0xC0 ? 1 : (s[0] < 0xE0 ? 2 : (s[0] < 0xF0 ? 3 : 4));

	*code = s[0];
	if (n == 1 || (size_t) n > len)
		return 1;
	*code = s[0] & (0x7Fu >> n);
	for (int i = 1; i < n; i++)
		*code = (*code << 6) | (s[i] & 0x3F);
	return (size_t) n;
}

int
dsv3_gr_unicode_encode(uint32_t code, unsigned char out[4])
{
	if (code < 0x80)
	{
		out[0] = (unsigned char) code;
		return 1;
	}
	if (code < 0x800)
	{
		out[0] = (unsigned char) (0xC0 | (code >> 6));
		out[1] = (unsigned char) (0x80 | (code & 0x3F));
		return 2;
	}
	if (code < 0x10000)
	{
		out[0] = (unsigned char) (0xE0 | (code >> 12));
		out[1] = (unsigned char) (0x80 | ((code >> 6) & 0x3F));
		out[2] = (unsigned char) (0x80 | (code & 0x3F));
		return 3;
	}
	out[0] = (unsigned char) (0xF0 | (code >> 18));
	out[1] = (unsigned char) (0x80 | ((code >> 12) & 0x3F));
	out[2] = (unsigned char) (0x80 | ((code >> 6) & 0x3F));
	out[3] = (unsigned char) (0x80 | (code & 0x3F));
	return 4;
}

CodeSet *
dsv3_codeset_new(Arena *arena)
{
	return dsv3_gr_arena_alloc(arena, sizeof(CodeSet));
}

void
dsv3_codeset_add(Arena *arena, CodeSet *set, uint32_t lo, uint32_t hi)
{
	if (set->n == set->cap)
	{
		int32_t cap = set->cap == 0 ? 8 : set->cap * 2;
		CodeRange *ranges = dsv3_gr_arena_alloc(arena, (size_t) cap * sizeof(CodeRange));

		if (set->n != 0)
			memcpy(ranges, set->ranges, (size_t) set->n * sizeof(CodeRange));
		set->ranges = ranges;
		set->cap = cap;
	}
	set->ranges[set->n].lo = lo;
	set->ranges[set->n].hi = hi;
	set->n++;
}

static int
compare_range(const void *a, const void *b)
{
	const CodeRange *x = a;
	const CodeRange *y = b;

	return (x->lo > y->lo) - (x->lo < y->lo);
}

void
dsv3_codeset_finish(Arena *arena, CodeSet *set, bool negate)
{
	int32_t n = 0;

	if (set->n != 0)
		qsort(set->ranges, (size_t) set->n, sizeof(CodeRange), compare_range);
	for (int32_t i = 0; i < set->n; i++)
	{
		if (n > 0 && set->ranges[i].lo <= set->ranges[n - 1].hi + 1)
		{
			if (set->ranges[i].hi > set->ranges[n - 1].hi)
				set->ranges[n - 1].hi = set->ranges[i].hi;
		}
		else
			set->ranges[n++] = set->ranges[i];
	}
	set->n = n;
	if (negate)
	{
		CodeSet other = {NULL, 0, 0};
		uint32_t from = 0;

		for (int32_t i = 0; i < n; i++)
		{
			if (set->ranges[i].lo > from)
				dsv3_codeset_add(arena, &other, from, set->ranges[i].lo - 1);
			from = set->ranges[i].hi + 1;
		}
		if (from <= 0x10FFFF)
			dsv3_codeset_add(arena, &other, from, 0x10FFFF);
		*set = other;
	}
}

static void
add_set(Arena *arena, CodeSet *set, const CodeRange *ranges, int32_t n, bool negate)
{
	CodeSet part = {NULL, 0, 0};

	for (int32_t i = 0; i < n; i++)
		dsv3_codeset_add(arena, &part, ranges[i].lo, ranges[i].hi);
	dsv3_codeset_finish(arena, &part, negate);
	for (int32_t i = 0; i < part.n; i++)
		dsv3_codeset_add(arena, set, part.ranges[i].lo, part.ranges[i].hi);
}

void
dsv3_codeset_add_escape(Arena *arena, CodeSet *set, char escape)
{
	static const CodeRange digit[] = {{'0', '9'}};
	static const CodeRange word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
	static const CodeRange space[] = {{9, 13},          {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680},
									  {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
									  {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

	switch (escape | 32)
	{
		case 'd':
			add_set(arena, set, digit, 1, escape == 'D');
			break;
		case 'w':
			add_set(arena, set, word, 4, escape == 'W');
			break;
		default:
			add_set(arena, set, space, 10, escape == 'S');
			break;
	}
}

const char *
dsv3_gr_unicode_property(const char *name, size_t *len)
{
	static const char *const longnames[][2] = {
		{"Letter", "L"},
		{"Lowercase_Letter", "Ll"},
		{"Uppercase_Letter", "Lu"},
		{"Titlecase_Letter", "Lt"},
		{"Modifier_Letter", "Lm"},
		{"Other_Letter", "Lo"},
		{"Mark", "M"},
		{"Nonspacing_Mark", "Mn"},
		{"Number", "N"},
		{"Decimal_Number", "Nd"},
		{"digit", "Nd"},
		{"Letter_Number", "Nl"},
		{"Other_Number", "No"},
		{"Punctuation", "P"},
		{"punct", "P"},
		{"Symbol", "S"},
		{"Separator", "Z"},
		{"Space_Separator", "Zs"},
		{"Other", "C"},
		{"Control", "Cc"},
		{"Currency_Symbol", "Sc"},
		{"Math_Symbol", "Sm"},
		{"Dash_Punctuation", "Pd"},
		{"Cased_Letter", "L&"},
	};

	for (size_t i = 0; i < *len; i++)
		if (name[i] == '=')
		{
			name += i + 1;
			*len -= i + 1;
			break;
		}
	for (size_t i = 0; i < sizeof(longnames) / sizeof(longnames[0]); i++)
		if (strlen(longnames[i][0]) == *len && memcmp(longnames[i][0], name, *len) == 0)
		{
			*len = strlen(longnames[i][1]);
			return longnames[i][1];
		}
	return name;
}

/* A property met in this compilation. */
struct CodeProperty
{
	CodeProperty *next;
	char name[48];
	CodeSet set;
};

/* The code points with a property, found once for a compilation; NULL: there is none of that name. */
static const CodeProperty *
property_of(Ctx *ctx, const char *name, size_t len)
{
	CodeProperty *p;
	char text[80];
	pcre2_code *code;
	pcre2_match_data *data;
	int error;
	PCRE2_SIZE offset;
	unsigned char *all;
	size_t n = 0;
	size_t at = 0;

	if (len == 0 || len >= sizeof(p->name))
		return NULL;
	for (p = ctx->properties; p != NULL; p = p->next)
		if (strlen(p->name) == len && memcmp(p->name, name, len) == 0)
			return p;
	snprintf(text, sizeof(text), "\\p{%.*s}+", (int) len, name);
	/* Everything that can jump out is done before PCRE2 has memory of its own. */
	gr_work(ctx, PROPERTY_STEPS);
	all = dsv3_gr_arena_alloc(ctx->arena, 4500000);
	p = dsv3_gr_arena_alloc(ctx->arena, sizeof(CodeProperty));
	memcpy(p->name, name, len);
	p->set.cap = 4000;
	p->set.ranges = dsv3_gr_arena_alloc(ctx->arena, (size_t) p->set.cap * sizeof(CodeRange));
	code = pcre2_compile((PCRE2_SPTR) text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_NO_UTF_CHECK, &error,
						 &offset, NULL);
	if (code == NULL)
		return NULL;
	data = pcre2_match_data_create(1, NULL);
	if (data == NULL)
	{
		pcre2_code_free(code);
		longjmp(ctx->out, GR_OUT_MEMORY);
	}
	for (uint32_t c = 1; c <= 0x10FFFF; c++)
		if (c < 0xD800 || c > 0xDFFF)
			n += (size_t) dsv3_gr_unicode_encode(c, all + n);
	while (at < n && pcre2_match(code, all, n, at, PCRE2_NO_UTF_CHECK, data, NULL) > 0)
	{
		const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(data);
		size_t last = ov[1] - 1;
		uint32_t lo;
		uint32_t hi;

		while ((all[last] & 0xC0) == 0x80)
			last--;
		dsv3_gr_unicode_decode((char *) all + ov[0], n - ov[0], &lo);
		dsv3_gr_unicode_decode((char *) all + last, n - last, &hi);
		at = ov[1];
		if (p->set.n < p->set.cap)
			dsv3_codeset_add(ctx->arena, &p->set, lo, hi);
	}
	pcre2_match_data_free(data);
	pcre2_code_free(code);
	p->next = ctx->properties;
	ctx->properties = p;
	return p;
}

bool
dsv3_codeset_add_property(Ctx *ctx, CodeSet *set, const char *name, size_t len, bool negate)
{
	const CodeProperty *p;

	name = dsv3_gr_unicode_property(name, &len);
	p = property_of(ctx, name, len);
	if (p != NULL)
	{
		gr_work(ctx, p->set.n / 4);
		add_set(ctx->arena, set, p->set.ranges, p->set.n, negate);
	}
	return p != NULL;
}

void
dsv3_codeset_utf8(Arena *arena, ByteSeqs *seqs, uint32_t lo, uint32_t hi)
{
	static const uint32_t limits[] = {0x7FF, 0xFFFF};
	ByteSeq *seq;
	int n;

	for (int i = 0; i < 2; i++)
		if (lo <= limits[i] && hi > limits[i])
		{
			dsv3_codeset_utf8(arena, seqs, lo, limits[i]);
			dsv3_codeset_utf8(arena, seqs, limits[i] + 1, hi);
			return;
		}
	n = hi <= 0x7FF ? 2 : (hi <= 0xFFFF ? 3 : 4);
	for (int i = 1; i < n; i++)
	{
		uint32_t m = (1u << (6 * i)) - 1;

		if ((lo & ~m) != (hi & ~m))
		{
			if ((lo & m) != 0)
			{
				dsv3_codeset_utf8(arena, seqs, lo, lo | m);
				dsv3_codeset_utf8(arena, seqs, (lo | m) + 1, hi);
				return;
			}
			if ((hi & m) != m)
			{
				dsv3_codeset_utf8(arena, seqs, lo, (hi & ~m) - 1);
				dsv3_codeset_utf8(arena, seqs, hi & ~m, hi);
				return;
			}
		}
	}
	if (seqs->n == seqs->cap)
	{
		int32_t cap = seqs->cap == 0 ? 16 : seqs->cap * 2;
		ByteSeq *v = dsv3_gr_arena_alloc(arena, (size_t) cap * sizeof(ByteSeq));

		if (seqs->n != 0)
			memcpy(v, seqs->v, (size_t) seqs->n * sizeof(ByteSeq));
		seqs->v = v;
		seqs->cap = cap;
	}
	seq = &seqs->v[seqs->n++];
	dsv3_gr_unicode_encode(lo, seq->lo);
	dsv3_gr_unicode_encode(hi, seq->hi);
	seq->n = n;
}
