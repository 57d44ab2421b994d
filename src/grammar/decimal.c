/*
 * decimal.c
 *	  Exact decimals of json.h: what a schema's bounds and an instance's numbers are compared with.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/json.h"

Dec *
dsv3_gr_dec_parse(Arena *arena, const char *text, size_t len)
{
	Dec *dec = dsv3_gr_arena_alloc(arena, sizeof(Dec));
	char *digits = dsv3_gr_arena_alloc(arena, len + 1);
	size_t i = 0;
	int32_t n = 0;
	int64_t scale = 0;
	bool point = false;
	int32_t lead = 0;

	if (i < len && text[i] == '-')
	{
		dec->neg = true;
		i++;
	}
	for (; i < len && text[i] != 'e' && text[i] != 'E'; i++)
	{
		if (text[i] == '.')
			point = true;
		else
		{
			digits[n++] = text[i];
			scale += point;
		}
	}
	if (i < len)
	{
		bool negative = false;
		int64_t exp = 0;

		i++;
		if (i < len && (text[i] == '-' || text[i] == '+'))
			negative = text[i++] == '-';
		for (; i < len; i++)
			exp = exp * 10 + (text[i] - '0');
		dec->exp = negative ? -exp : exp;
	}
	dec->exp -= scale;
	while (n > 0 && digits[n - 1] == '0')
	{
		n--;
		dec->exp++;
	}
	while (lead < n && digits[lead] == '0')
		lead++;
	dec->digits = digits + lead;
	dec->ndigits = n - lead;
	if (dec->ndigits == 0)
	{
		dec->neg = false;
		dec->exp = 0;
	}
	return dec;
}

Dec *
dsv3_gr_dec_from_int(Arena *arena, int64_t value)
{
	char text[32];

	return dsv3_gr_dec_parse(arena, text, (size_t) snprintf(text, sizeof(text), "%lld", (long long) value));
}

Dec *
dsv3_gr_dec_negate(Arena *arena, const Dec *a)
{
	Dec *dec = dsv3_gr_arena_dup(arena, a, sizeof(Dec));

	if (a->ndigits != 0)
		dec->neg = !a->neg;
	return dec;
}

static int
compare_magnitude(const Dec *a, const Dec *b)
{
	int64_t ta = a->exp + a->ndigits;
	int64_t tb = b->exp + b->ndigits;
	int32_t n = a->ndigits < b->ndigits ? a->ndigits : b->ndigits;
	int c;

	if (a->ndigits == 0 || b->ndigits == 0)
		return (a->ndigits != 0) - (b->ndigits != 0);
	if (ta != tb)
		return ta < tb ? -1 : 1;
	c = memcmp(a->digits, b->digits, (size_t) n);
	if (c != 0)
		return c < 0 ? -1 : 1;
	return (a->ndigits > b->ndigits) - (a->ndigits < b->ndigits);
}

int
dsv3_gr_dec_compare(const Dec *a, const Dec *b)
{
	if (a->neg != b->neg)
		return a->neg ? -1 : 1;
	return a->neg ? compare_magnitude(b, a) : compare_magnitude(a, b);
}

bool
dsv3_gr_dec_is_integer(const Dec *a)
{
	return a->exp >= 0;
}

bool
dsv3_gr_dec_to_int64(const Dec *a, int64_t *out)
{
	int64_t v = 0;

	if (a->exp < 0 || a->exp > 18 || a->ndigits + a->exp > 18)
		return false;
	for (int32_t i = 0; i < a->ndigits; i++)
		v = v * 10 + (a->digits[i] - '0');
	for (int64_t i = 0; i < a->exp; i++)
		v *= 10;
	*out = a->neg ? -v : v;
	return true;
}

/*
 * value / divisor is an integer? Both are scaled to integers with a common exponent; the divisor's digits stay a small
 * integer (at most 18 digits; longer ones are compared only for equality), the value is reduced digit by digit.
 */
bool
dsv3_gr_dec_multiple_of(const Dec *value, const Dec *divisor)
{
	uint64_t m = 0;
	uint64_t r = 0;
	int64_t zeros;

	if (value->ndigits == 0)
		return true;
	if (divisor->ndigits > 18)
		return compare_magnitude(value, divisor) == 0;
	for (int32_t i = 0; i < divisor->ndigits; i++)
		m = m * 10 + (uint64_t) (divisor->digits[i] - '0');
	if (m == 0)
		return false;
	zeros = value->exp - divisor->exp; /* value = digits * 10^zeros in units of 10^divisor->exp */
	for (int32_t i = 0; i < value->ndigits; i++)
		r = (uint64_t) (((unsigned __int128) r * 10 + (unsigned) (value->digits[i] - '0')) % m);
	if (zeros < 0)
	{
		/* digits / 10^-zeros must be an integer, but digits do not end in zero. */
		return false;
	}
	for (int64_t i = 0; i < zeros && r != 0 && i < 4096; i++)
		r = (uint64_t) ((unsigned __int128) r * 10 % m);
	return r == 0;
}

void
dsv3_gr_dec_write(TextBuf *buf, const Dec *dec)
{
	int64_t point = dec->ndigits + dec->exp; /* digits before the decimal point */
	char text[32];

	if (dec->ndigits == 0)
	{
		dsv3_gr_textbuf_add(buf, "0", 1);
		return;
	}
	if (dec->neg)
		dsv3_gr_textbuf_add(buf, "-", 1);
	if (point > 30 || dec->exp < -30)
	{
		int64_t e = point - 1;

		dsv3_gr_textbuf_add(buf, dec->digits, 1);
		if (dec->ndigits > 1)
		{
			dsv3_gr_textbuf_add(buf, ".", 1);
			dsv3_gr_textbuf_add(buf, dec->digits + 1, (size_t) dec->ndigits - 1);
		}
		dsv3_gr_textbuf_add(buf, text, (size_t) snprintf(text, sizeof(text), "e%lld", (long long) e));
		return;
	}
	if (point <= 0)
	{
		dsv3_gr_textbuf_add(buf, "0.", 2);
		for (int64_t i = point; i < 0; i++)
			dsv3_gr_textbuf_add(buf, "0", 1);
		dsv3_gr_textbuf_add(buf, dec->digits, (size_t) dec->ndigits);
		return;
	}
	for (int64_t i = 0; i < point; i++)
		dsv3_gr_textbuf_add(buf, i < dec->ndigits ? dec->digits + i : "0", 1);
	if (point < dec->ndigits)
	{
		dsv3_gr_textbuf_add(buf, ".", 1);
		dsv3_gr_textbuf_add(buf, dec->digits + point, (size_t) (dec->ndigits - point));
	}
}
