/*
 * number.c
 *	  Number automata (number.h).
 *
 * A number is read from left to right; what has to be remembered is: the sign, how many integral digits there were (up
 * to the length of the longer bound), how the digits so far compare with each bound's digits, and for each grid the
 * value so far modulo the grid. Comparing by length first and by digits second is exact at any size, so no bound is
 * ever rounded.
 */
#include "grammar/number.h"

#include <stdio.h>
#include <string.h>

#define DIGIT_CAP  30
#define MAX_GRIDS  12
#define MAX_MODULO 6000
#define MAX_BOUND  400

enum
{
	P_START,
	P_SIGN,
	P_ZERO,
	P_INT,
	P_DOT,
	P_FRAC,
	P_E,
	P_ESIGN,
	P_EXP
};

/* Key of a state. */
enum
{
	K_PHASE,
	K_NEG,
	K_INT, /* integral digits, saturating; in the exponent: its value */
	K_LO,  /* -1, 0, 1 against the lower magnitude bound */
	K_HI,
	K_FRAC, /* fraction digits, saturating */
	K_ZERO, /* 1: no digit but zero so far; 2: some, but the last fraction digit is zero; 0: neither */
	K_REM,
};

typedef struct Bound
{
	bool present;
	bool open;
	bool impossible; /* no magnitude of this sign satisfies it */
	char ip[MAX_BOUND + 8];
	char fp[MAX_BOUND + 8];
	int32_t ni;
	int32_t nf;
} Bound;

typedef struct Numbers
{
	Arena *arena;
	const NumSpec *spec;
	Bound lo[2]; /* [neg] lower and upper bound of the magnitude */
	Bound hi[2];
	int32_t ngrid;
	uint32_t m[MAX_GRIDS]; /* at most MAX_MODULO */
	int32_t k[MAX_GRIDS];
	bool grid_neg[MAX_GRIDS];
	int32_t int_cap; /* more integral digits than this are dead; -1: no cap */
	int32_t int_sat;
	int32_t frac_cap; /* -1: no cap */
	int32_t frac_sat;
	bool exponent;
} Numbers;

bool
dsv3_number_spec_empty(const NumSpec *spec)
{
	int c;

	if (spec->lo == NULL || spec->hi == NULL)
		return false;
	c = dsv3_gr_dec_compare(spec->lo, spec->hi);
	return c > 0 || (c == 0 && (spec->lo_open || spec->hi_open));
}

bool
dsv3_number_spec_has(const NumSpec *spec, const Dec *value)
{
	if (spec->lo != NULL)
	{
		int c = dsv3_gr_dec_compare(value, spec->lo);

		if (c < 0 || (c == 0 && spec->lo_open))
			return false;
	}
	if (spec->hi != NULL)
	{
		int c = dsv3_gr_dec_compare(value, spec->hi);

		if (c > 0 || (c == 0 && spec->hi_open))
			return false;
	}
	if (spec->integer && !dsv3_gr_dec_is_integer(value))
		return false;
	for (const NumGrid *g = spec->grids; g != NULL; g = g->next)
		if (dsv3_gr_dec_multiple_of(value, g->step) == g->negated)
			return false;
	return true;
}

/* The magnitude bound that |x| must respect for a given sign; lower tells which side. */
static void
set_bound(Ctx *ctx, Bound *b, const Dec *dec, bool open, bool neg, bool lower)
{
	int64_t point;

	memset(b, 0, sizeof(*b));
	if (dec == NULL)
		return;
	/* x = -y: lo <= x becomes y <= -lo. */
	if (dec->ndigits != 0 && dec->neg != neg)
	{
		/* The bound lies on the other side of zero: always or never satisfied. */
		if (!lower)
			b->impossible = true;
		return;
	}
	b->present = true;
	b->open = open;
	if (dec->ndigits == 0)
		return;
	point = dec->ndigits + dec->exp;
	if (point > MAX_BOUND || dec->exp < -MAX_BOUND)
		dsv3_gr_fail(ctx, DSV3_ERR_TOO_LARGE, NULL, "numeric bound has more than %d digits", MAX_BOUND);
	for (int64_t i = 0; i < point; i++)
		b->ip[b->ni++] = i < dec->ndigits ? dec->digits[i] : '0';
	for (int64_t i = point; i < dec->ndigits; i++)
		b->fp[b->nf++] = i < 0 ? '0' : dec->digits[i];
}

static int
sign3(int a, int b)
{
	return (a > b) - (a < b);
}

/* How the integral part compares once its last digit was read. */
static int32_t
int_done(const Bound *b, int32_t n, int32_t c)
{
	if (!b->present)
		return 0;
	if (n != b->ni)
		return n < b->ni ? -1 : 1;
	return c;
}

static int32_t
int_digit(const Bound *b, int32_t n, int32_t c, unsigned char d)
{
	if (!b->present || c != 0 || n > b->ni)
		return c;
	return n <= b->ni && b->ni > 0 ? sign3(d, (unsigned char) b->ip[n - 1]) : 1;
}

static int32_t
frac_digit(const Bound *b, int32_t f, int32_t c, unsigned char d)
{
	if (!b->present || c != 0)
		return c;
	return f < b->nf ? sign3(d, (unsigned char) b->fp[f]) : (d > '0');
}

static int32_t
frac_done(const Bound *b, int32_t f, int32_t c)
{
	return b->present && c == 0 && f < b->nf ? -1 : c;
}

static void
grids_step(Numbers *num, const int32_t *key, int32_t *out, unsigned char d, bool fraction)
{
	for (int32_t i = 0; i < num->ngrid; i++)
	{
		int32_t r = key[K_REM + i];

		if (r >= 0 && (!fraction || key[K_FRAC] < num->k[i]))
			r = (int32_t) (((uint32_t) r * 10 + (uint32_t) (d - '0')) % num->m[i]);
		else if (r >= 0 && d != '0')
			r = -1; /* off the grid for good */
		out[K_REM + i] = r;
	}
}

static bool
num_step(void *arg, const int32_t *key, int32_t n, unsigned char c, IntVec *vec)
{
	Numbers *num = arg;
	int32_t out[K_REM + MAX_GRIDS];
	int32_t neg = key[K_NEG];

	memcpy(out, key, (size_t) n * sizeof(int32_t));
	switch (key[K_PHASE])
	{
		case P_START:
			if (c == '-')
			{
				out[K_PHASE] = P_SIGN;
				out[K_NEG] = 1;
				break;
			}
			/* FALLTHROUGH */
		case P_SIGN:
			if (c < '0' || c > '9')
				return false;
			if (num->lo[neg].impossible || num->hi[neg].impossible)
				return false;
			if (c == '0')
			{
				out[K_PHASE] = P_ZERO;
				out[K_INT] = 0;
				out[K_LO] = int_done(&num->lo[neg], 0, 0);
				out[K_HI] = int_done(&num->hi[neg], 0, 0);
				break;
			}
			out[K_PHASE] = P_INT;
			out[K_INT] = 1;
			out[K_ZERO] = 0;
			out[K_LO] = int_digit(&num->lo[neg], 1, 0, c);
			out[K_HI] = int_digit(&num->hi[neg], 1, 0, c);
			grids_step(num, key, out, c, false);
			break;
		case P_INT:
			if (c >= '0' && c <= '9')
			{
				int32_t digits = key[K_INT] + 1;

				if (num->int_cap >= 0 && digits > num->int_cap)
					return false;
				if (num->hi[neg].present && digits > num->hi[neg].ni)
					return false;
				out[K_LO] = int_digit(&num->lo[neg], digits, key[K_LO], c);
				out[K_HI] = int_digit(&num->hi[neg], digits, key[K_HI], c);
				out[K_INT] = digits > num->int_sat ? num->int_sat : digits;
				grids_step(num, key, out, c, false);
				break;
			}
			/* FALLTHROUGH */
		case P_ZERO:
			if (c == '.' && !num->spec->integer && num->frac_cap != 0)
			{
				out[K_PHASE] = P_DOT;
				if (key[K_PHASE] == P_INT)
				{
					out[K_LO] = int_done(&num->lo[neg], key[K_INT], key[K_LO]);
					out[K_HI] = int_done(&num->hi[neg], key[K_INT], key[K_HI]);
				}
				if (out[K_HI] > 0 || (num->lo[neg].present && out[K_LO] < 0))
					return false;
				out[K_INT] = key[K_INT] > 1 ? 2 : 1;
				out[K_FRAC] = 0;
				break;
			}
			if ((c == 'e' || c == 'E') && num->exponent && key[K_INT] == 1 && key[K_PHASE] == P_INT)
			{
				out[K_PHASE] = P_E;
				out[K_INT] = out[K_FRAC] = 0;
				break;
			}
			return false;
		case P_DOT:
		case P_FRAC:
			if (c >= '0' && c <= '9')
			{
				if (num->frac_cap >= 0 && key[K_FRAC] >= num->frac_cap)
					return false;
				out[K_PHASE] = P_FRAC;
				out[K_LO] = frac_digit(&num->lo[neg], key[K_FRAC], key[K_LO], c);
				out[K_HI] = frac_digit(&num->hi[neg], key[K_FRAC], key[K_HI], c);
				if (out[K_HI] > 0 || (num->lo[neg].present && out[K_LO] < 0))
					return false;
				grids_step(num, key, out, c, true);
				out[K_FRAC] = key[K_FRAC] + 1 > num->frac_sat ? num->frac_sat : key[K_FRAC] + 1;
				if (c != '0')
					out[K_ZERO] = 0;
				else if (key[K_ZERO] == 0)
					out[K_ZERO] = 2;
				break;
			}
			if ((c == 'e' || c == 'E') && num->exponent && key[K_PHASE] == P_FRAC && key[K_INT] == 1 &&
				key[K_ZERO] != 1)
			{
				out[K_PHASE] = P_E;
				out[K_INT] = out[K_FRAC] = out[K_ZERO] = 0;
				break;
			}
			return false;
		case P_E:
			if (c == '+' || c == '-')
			{
				out[K_PHASE] = P_ESIGN;
				break;
			}
			/* FALLTHROUGH */
		case P_ESIGN:
			if (c < '1' || c > '9')
				return false;
			out[K_PHASE] = P_EXP;
			out[K_INT] = c - '0';
			break;
		default:
			if (c < '0' || c > '9' || key[K_INT] * 10 + (c - '0') > 300)
				return false;
			out[K_INT] = key[K_INT] * 10 + (c - '0');
			break;
	}
	for (int32_t i = 0; i < n; i++)
		gr_intvec_push(num->arena, vec, out[i]);
	return true;
}

static int32_t
num_tag(void *arg, const int32_t *key, int32_t n)
{
	Numbers *num = arg;
	int32_t neg = key[K_NEG];
	int32_t lo = key[K_LO];
	int32_t hi = key[K_HI];

	(void) n;
	if (key[K_PHASE] == P_EXP)
		return 0;
	if (key[K_PHASE] == P_INT)
	{
		lo = int_done(&num->lo[neg], key[K_INT], lo);
		hi = int_done(&num->hi[neg], key[K_INT], hi);
	}
	else if (key[K_PHASE] != P_ZERO && key[K_PHASE] != P_FRAC)
		return -1;
	if (neg && key[K_ZERO] == 1)
		return -1; /* -0 */
	if (num->spec->canonical && key[K_PHASE] == P_FRAC && key[K_ZERO] != 0)
		return -1;
	lo = frac_done(&num->lo[neg], key[K_FRAC], lo);
	hi = frac_done(&num->hi[neg], key[K_FRAC], hi);
	if (num->lo[neg].present && (lo < 0 || (lo == 0 && num->lo[neg].open)))
		return -1;
	if (num->hi[neg].present && (hi > 0 || (hi == 0 && num->hi[neg].open)))
		return -1;
	for (int32_t i = 0; i < num->ngrid; i++)
	{
		int64_t r = key[K_REM + i];

		for (int32_t f = key[K_FRAC]; f < num->k[i] && r > 0; f++)
			r = r * 10 % (int64_t) num->m[i];
		if ((r == 0) == num->grid_neg[i])
			return -1;
	}
	return 0;
}

/* A grid of big numbers: zero and its first multiples that satisfy everything else. */
static Lex *
narrowed_grid(Ctx *ctx, const NumSpec *spec, const Dec *step)
{
	LexLiteral literals[200];
	Lex *lex;
	int32_t n = 0;
	int64_t digits = 0;
	int64_t first = 0;

	if (step->ndigits > 15)
		dsv3_gr_fail(ctx, DSV3_ERR_UNSUPPORTED, NULL, "multipleOf has too many digits");
	for (int32_t i = 0; i < step->ndigits; i++)
		digits = digits * 10 + (step->digits[i] - '0');
	if (spec->lo != NULL && !spec->lo->neg && spec->lo->ndigits != 0)
	{
		int64_t lo = 0;

		/* Start at the lower bound when it is a number of moderate size. */
		if (step->exp == 0 && dsv3_gr_dec_to_int64(spec->lo, &lo))
			first = lo / digits;
	}
	for (int64_t j = first; j < first + 100; j++)
		for (int sign = 0; sign < 2; sign++)
		{
			Dec *value;
			TextBuf buf = {NULL, 0, 0, false};
			char text[80];

			if (j == 0 && sign == 1)
				continue;
			snprintf(text, sizeof(text), "%s%llde%lld", sign ? "-" : "", (long long) digits * j,
					 (long long) step->exp);
			value = dsv3_gr_dec_parse(ctx->arena, text, strlen(text));
			if (!dsv3_number_spec_has(spec, value) || value->ndigits + value->exp > DIGIT_CAP)
				continue;
			dsv3_gr_dec_write(&buf, value);
			if (buf.failed)
				longjmp(ctx->out, GR_OUT_MEMORY);
			literals[n].len = buf.len;
			literals[n].text = dsv3_gr_arena_text(ctx->arena, buf.data, buf.len);
			dsv3_gr_textbuf_free(&buf);
			n++;
		}
	lex = dsv3_lex_literals(ctx, literals, n, true);
	lex->narrowed = true;
	return lex;
}

Lex *
dsv3_number_lex(Ctx *ctx, const NumSpec *spec)
{
	Numbers *num = dsv3_gr_arena_alloc(ctx->arena, sizeof(Numbers));
	LexSource source = {num, num_step, num_tag, NULL, true, LEX_MAX_STATES, false};
	NumSpec own = *spec;
	int32_t start[K_REM + MAX_GRIDS] = {0};
	uint8_t cls[256];
	int32_t longest = 0;
	bool positive_grid = false;
	uint64_t states = 1;

	num->arena = ctx->arena;
	num->spec = &own;
	for (int neg = 0; neg < 2; neg++)
	{
		set_bound(ctx, &num->lo[neg], neg ? spec->hi : spec->lo, neg ? spec->hi_open : spec->lo_open, neg,
				  true);
		set_bound(ctx, &num->hi[neg], neg ? spec->lo : spec->hi, neg ? spec->lo_open : spec->hi_open, neg,
				  false);
		if (num->lo[neg].ni > longest)
			longest = num->lo[neg].ni;
		if (num->hi[neg].ni > longest)
			longest = num->hi[neg].ni;
	}
	num->frac_cap = DIGIT_CAP;
	num->frac_sat = DIGIT_CAP;
	for (int neg = 0; neg < 2; neg++)
	{
		if (num->lo[neg].nf > num->frac_cap)
			num->frac_cap = num->frac_sat = num->lo[neg].nf;
		if (num->hi[neg].nf > num->frac_cap)
			num->frac_cap = num->frac_sat = num->hi[neg].nf;
	}
	for (const NumGrid *g = spec->grids; g != NULL; g = g->next)
	{
		uint64_t m = 0;
		int32_t i = num->ngrid;
		bool again = false;

		if (g->step->ndigits > 15 || g->step->exp > 12 || g->step->exp < -DIGIT_CAP)
		{
			if (g->negated)
				dsv3_gr_fail(ctx, DSV3_ERR_UNSUPPORTED, NULL, "multipleOf under \"not\" has too many digits");
			return narrowed_grid(ctx, spec, g->step);
		}
		for (int32_t d = 0; d < g->step->ndigits; d++)
			m = m * 10 + (uint64_t) (g->step->digits[d] - '0');
		for (int64_t e = 0; e < g->step->exp; e++)
			m *= 10;
		if (m > MAX_MODULO)
		{
			if (g->negated)
				dsv3_gr_fail(ctx, DSV3_ERR_UNSUPPORTED, NULL, "multipleOf under \"not\" is too large");
			return narrowed_grid(ctx, spec, g->step);
		}
		if (i == MAX_GRIDS)
			dsv3_gr_fail(ctx, DSV3_ERR_TOO_LARGE, NULL, "more than %d multipleOf apply to one number",
						 MAX_GRIDS);
		num->m[i] = (uint32_t) m;
		num->k[i] = g->step->exp < 0 ? (int32_t) -g->step->exp : 0;
		num->grid_neg[i] = g->negated;
		for (int32_t q = 0; q < i; q++)
			again = again || (num->m[q] == m && num->k[q] == num->k[i] && num->grid_neg[q] == g->negated);
		if (again)
			continue;
		states = states > MAX_MODULO ? states : states * m;
		if (!g->negated)
		{
			positive_grid = true;
			if (num->k[i] < num->frac_cap)
				num->frac_cap = num->frac_sat = num->k[i];
		}
		num->ngrid++;
	}
	/* Counting digits as well as remainders would multiply the states; a grid has no cap, only its bounds. */
	num->int_cap = longest > DIGIT_CAP ? longest : DIGIT_CAP;
	if (positive_grid && states > 32)
		num->int_cap = -1;
	num->int_sat = num->int_cap >= 0 ? num->int_cap : longest + 1;
	if (num->int_sat < 2)
		num->int_sat = 2;
	num->exponent =
		spec->lo == NULL && spec->hi == NULL && spec->grids == NULL && !spec->integer && !spec->canonical;
	for (int b = 0; b < 256; b++)
		cls[b] = 0;
	for (int d = 0; d < 10; d++)
		cls['0' + d] = (uint8_t) (1 + d);
	cls['-'] = 11;
	cls['+'] = 12;
	cls['.'] = 13;
	cls['e'] = cls['E'] = 14;
	start[K_ZERO] = 1;
	return dsv3_lex_build(ctx, &source, start, K_REM + num->ngrid, cls, 15);
}
