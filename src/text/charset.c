/*
 * charset.c
 *	  Sets of code points; see charset.h. Sets are small (at most some 700 ranges) and made only while a tokenizer is
 *	  opened, so the operations are plain merges of sorted arrays.
 */
#include "text/charset.h"

#include <stdlib.h>
#include <string.h>

#include "text/unicode_data.h"

void
dsv3_charset_free(Dsv3Charset *set)
{
	free(set->ranges);
	memset(set, 0, sizeof(*set));
}

/* Append a range that begins at or after every range already there, joining it to the last where they touch. */
static bool
append(Dsv3Charset *set, uint32_t first, uint32_t last)
{
	if (set->count > 0 && first <= set->ranges[set->count - 1].last + 1)
	{
		if (last > set->ranges[set->count - 1].last)
			set->ranges[set->count - 1].last = last;
		return true;
	}
	if (set->count == set->capacity)
	{
		size_t capacity = set->capacity ? set->capacity * 2 : 16;
		Dsv3Range *ranges = realloc(set->ranges, capacity * sizeof(*ranges));

		if (ranges == NULL)
			return false;
		set->ranges = ranges;
		set->capacity = capacity;
	}
	set->ranges[set->count++] = (Dsv3Range){first, last};
	return true;
}

/* Move result into *out, which may be what result was computed from. */
static bool
deliver(Dsv3Charset *out, Dsv3Charset *result, bool ok)
{
	if (!ok)
	{
		dsv3_charset_free(result);
		return false;
	}
	dsv3_charset_free(out);
	*out = *result;
	return true;
}

bool
dsv3_charset_union(Dsv3Charset *out, const Dsv3Charset *a, const Dsv3Charset *b)
{
	Dsv3Charset result = {0};
	size_t i = 0, j = 0;
	bool ok = true;

	while (ok && (i < a->count || j < b->count))
	{
		const Dsv3Range *next;

		if (j == b->count || (i < a->count && a->ranges[i].first <= b->ranges[j].first))
			next = &a->ranges[i++];
		else
			next = &b->ranges[j++];
		ok = append(&result, next->first, next->last);
	}
	return deliver(out, &result, ok);
}

bool
dsv3_charset_add(Dsv3Charset *set, uint32_t first, uint32_t last)
{
	Dsv3Range range = {first, last};
	Dsv3Charset one = {&range, 1, 1};

	if (set->count == 0 || first > set->ranges[set->count - 1].last)
		return append(set, first, last);
	return dsv3_charset_union(set, set, &one);
}

bool
dsv3_charset_intersect(Dsv3Charset *out, const Dsv3Charset *a, const Dsv3Charset *b)
{
	Dsv3Charset result = {0};
	size_t i = 0, j = 0;
	bool ok = true;

	while (ok && i < a->count && j < b->count)
	{
		uint32_t first = a->ranges[i].first > b->ranges[j].first ? a->ranges[i].first : b->ranges[j].first;
		uint32_t last = a->ranges[i].last < b->ranges[j].last ? a->ranges[i].last : b->ranges[j].last;

		if (first <= last)
			ok = append(&result, first, last);
		if (a->ranges[i].last < b->ranges[j].last)
			i++;
		else
			j++;
	}
	return deliver(out, &result, ok);
}

bool
dsv3_charset_complement(Dsv3Charset *out, const Dsv3Charset *a)
{
	Dsv3Charset result = {0};
	uint32_t next = 0;
	bool ok = true;

	for (size_t i = 0; ok && i < a->count; i++)
	{
		if (a->ranges[i].first > next)
			ok = append(&result, next, a->ranges[i].first - 1);
		next = a->ranges[i].last + 1;
	}
	if (ok && next < DSV3_CODE_POINTS)
		ok = append(&result, next, DSV3_CODE_POINTS - 1);
	return deliver(out, &result, ok);
}

bool
dsv3_charset_equal(const Dsv3Charset *a, const Dsv3Charset *b)
{
	return a->count == b->count &&
		   (a->count == 0 || memcmp(a->ranges, b->ranges, a->count * sizeof(Dsv3Range)) == 0);
}

bool
dsv3_charset_contains(const Dsv3Charset *set, uint32_t c)
{
	size_t low = 0, high = set->count;

	while (low < high)
	{
		size_t mid = low + (high - low) / 2;

		if (c > set->ranges[mid].last)
			low = mid + 1;
		else
			high = mid;
	}
	return low < set->count && c >= set->ranges[low].first;
}

/* Add every code point whose category is in the bit mask. */
static bool
add_categories(Dsv3Charset *set, uint32_t mask)
{
	Dsv3Charset found = {0};
	bool ok = true;

	for (int i = 0; ok && i < dsv3_unicode_runs_count; i++)
	{
		uint32_t first = dsv3_unicode_runs[i] >> 8;
		uint32_t end = i + 1 < dsv3_unicode_runs_count ? dsv3_unicode_runs[i + 1] >> 8 : DSV3_CODE_POINTS;

		if (mask >> (dsv3_unicode_runs[i] & 0xFF) & 1)
			ok = append(&found, first, end - 1);
	}
	ok = ok && dsv3_charset_union(set, set, &found);
	dsv3_charset_free(&found);
	return ok;
}

bool
dsv3_charset_add_property(Dsv3Charset *set, const char *name, size_t len, bool *known)
{
	/* in the order of Dsv3Category */
	static const char categories[DSV3_CATEGORIES][3] = {
		"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
		"Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};
	uint32_t mask = 0;

	*known = true;
	if (len == 1 || len == 2)
	{
		for (int i = 0; i < DSV3_CATEGORIES; i++)
		{
			if (memcmp(categories[i], name, len) == 0)
				mask |= (uint32_t) 1 << i;
		}
		if (mask)
			return add_categories(set, mask);
	}
	if (len == 3 && memcmp(name, "Any", 3) == 0)
		return dsv3_charset_add(set, 0, DSV3_CODE_POINTS - 1);
	if (len == 3 && memcmp(name, "Han", 3) == 0)
	{
		for (int i = 0; i + 1 < dsv3_unicode_han_count; i += 2)
		{
			if (!dsv3_charset_add(set, dsv3_unicode_han[i], dsv3_unicode_han[i + 1]))
				return false;
		}
		return true;
	}
	*known = false;
	return true;
}

bool
dsv3_charset_add_space(Dsv3Charset *set)
{
	bool known;

	return dsv3_charset_add(set, 0x09, 0x0D) && dsv3_charset_add(set, 0x85, 0x85) &&
		   dsv3_charset_add_property(set, "Z", 1, &known);
}

bool
dsv3_charset_add_word(Dsv3Charset *set)
{
	static const Dsv3Range others[] = {
		{0x200C, 0x200D}, {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
	static const char *const properties[] = {"L", "M", "Nd", "Nl", "Pc"};
	bool known;

	for (size_t i = 0; i < sizeof(properties) / sizeof(properties[0]); i++)
	{
		if (!dsv3_charset_add_property(set, properties[i], strlen(properties[i]), &known))
			return false;
	}
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
	{
		if (!dsv3_charset_add(set, others[i].first, others[i].last))
			return false;
	}
	return true;
}

bool
dsv3_charset_fold_ascii(Dsv3Charset *set)
{
	static const struct
	{
		char ascii;
		uint32_t other;
	} extra[] = {{'s', 0x17F}, {'k', 0x212A}};

	for (size_t i = 0; i < 2; i++)
	{
		if (dsv3_charset_contains(set, extra[i].other) &&
			!dsv3_charset_add(set, (uint32_t) extra[i].ascii, (uint32_t) extra[i].ascii))
			return false;
	}
	for (uint32_t c = 'a'; c <= 'z'; c++)
	{
		uint32_t upper = c - 'a' + 'A';

		if (!dsv3_charset_contains(set, c) && !dsv3_charset_contains(set, upper))
			continue;
		if (!dsv3_charset_add(set, c, c) || !dsv3_charset_add(set, upper, upper))
			return false;
		for (size_t i = 0; i < 2; i++)
		{
			if ((uint32_t) extra[i].ascii == c && !dsv3_charset_add(set, extra[i].other, extra[i].other))
				return false;
		}
	}
	return true;
}
