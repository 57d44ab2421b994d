/*
 * added.c
 *	  Added tokens; see added.h. The tokens are few (hundreds) and short, so they are a sorted array: the candidates at a
 *	  position are those that share its first byte, narrowed byte by byte like a walk down a trie.
 */
#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "text/utf8.h"

#define MAX_ADDED_BYTES 1024
#define MAX_ADDED       (1 << 17)

bool
dsv3_added_add(Dsv3AddedTokens *added, const Dsv3AddedToken *token, Dsv3Error *err)
{
	Dsv3AddedToken *item;

	if (token->len == 0 || token->len > MAX_ADDED_BYTES)
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "added token %d has %zu bytes (1 to %d are possible)",
						  token->id, token->len, MAX_ADDED_BYTES);
	if (added->count >= MAX_ADDED)
		return dsv3_error(err, DSV3_ERR_TOO_LARGE, "there are more than %d added tokens", MAX_ADDED);
	if (added->count == added->capacity)
	{
		size_t capacity = added->capacity ? added->capacity * 2 : 64;
		Dsv3AddedToken *items = realloc(added->items, capacity * sizeof(*items));

		if (items == NULL)
			return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		added->items = items;
		added->capacity = capacity;
	}
	item = &added->items[added->count];
	*item = *token;
	item->text = malloc(token->len + 1);
	if (item->text == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	memcpy(item->text, token->text, token->len);
	item->text[token->len] = '\0';
	added->count++;
	return true;
}

static int
compare_text(const char *a, size_t a_len, const char *b, size_t b_len)
{
	int order = memcmp(a, b, a_len < b_len ? a_len : b_len);

	return order ? order : (a_len > b_len) - (a_len < b_len);
}

static int
compare_items(const void *a, const void *b)
{
	const Dsv3AddedToken *x = a, *y = b;

	return compare_text(x->text, x->len, y->text, y->len);
}

bool
dsv3_added_finish(Dsv3AddedTokens *added, Dsv3Error *err)
{
	size_t k = 0;

	if (added->count > 0)
		qsort(added->items, added->count, sizeof(*added->items), compare_items);
	for (size_t i = 0; i < added->count; i++)
	{
		if (i > 0 && compare_items(&added->items[i - 1], &added->items[i]) == 0)
			return dsv3_error(err, DSV3_ERR_BAD_FILE, "added token \"%.100s\" is there twice",
							  added->items[i].text);
		if (added->items[i].len > added->longest)
			added->longest = added->items[i].len;
	}
	for (int b = 0; b <= 256; b++)
	{
		while (k < added->count && (uint8_t) added->items[k].text[0] < b)
			k++;
		added->first_of[b] = (uint32_t) k;
	}
	if (!dsv3_charset_add_word(&added->word) || !dsv3_charset_add_space(&added->space))
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	return true;
}

void
dsv3_added_free(Dsv3AddedTokens *added)
{
	for (size_t i = 0; i < added->count; i++)
		free(added->items[i].text);
	free(added->items);
	dsv3_charset_free(&added->word);
	dsv3_charset_free(&added->space);
	memset(added, 0, sizeof(*added));
}

const Dsv3AddedToken *
dsv3_added_find(const Dsv3AddedTokens *added, const char *text, size_t len)
{
	size_t low = 0, high = added->count;

	while (low < high)
	{
		size_t mid = low + (high - low) / 2;
		int order = compare_text(added->items[mid].text, added->items[mid].len, text, len);

		if (order == 0)
			return &added->items[mid];
		if (order < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return NULL;
}

/* The longest token with this `normalized` flag that begins at text; NULL when none does. */
static const Dsv3AddedToken *
longest_at(const Dsv3AddedTokens *added, const char *text, size_t len, bool normalized)
{
	size_t low = added->first_of[(uint8_t) text[0]], high = added->first_of[(uint8_t) text[0] + 1];
	const Dsv3AddedToken *found = NULL;

	/* [low, high) share the first depth bytes with the text; the shortest of them sorts first */
	for (size_t depth = 1; low < high; depth++)
	{
		size_t a, b;

		if (added->items[low].len == depth)
		{
			if (added->items[low].normalized == normalized)
				found = &added->items[low];
			low++;
		}
		if (depth == len)
			break;
		for (a = low, b = high; a < b;)
		{
			size_t mid = a + (b - a) / 2;

			if ((uint8_t) added->items[mid].text[depth] < (uint8_t) text[depth])
				a = mid + 1;
			else
				b = mid;
		}
		low = a;
		for (b = high; a < b;)
		{
			size_t mid = a + (b - a) / 2;

			if ((uint8_t) added->items[mid].text[depth] <= (uint8_t) text[depth])
				a = mid + 1;
			else
				b = mid;
		}
		high = a;
	}
	return found;
}

static bool
add_section(Dsv3SectionList *list, const Dsv3AddedToken *token, size_t start, size_t end, Dsv3Error *err)
{
	if (list->count == list->capacity)
	{
		size_t capacity = list->capacity ? list->capacity * 2 : 16;
		Dsv3Section *items = realloc(list->items, capacity * sizeof(*items));

		if (items == NULL)
			return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		list->items = items;
		list->capacity = capacity;
	}
	list->items[list->count++] = (Dsv3Section){token, start, end};
	return true;
}

/* The character that ends right before text[at], at > start. */
static uint32_t
char_before(const char *text, size_t start, size_t at, size_t *begin)
{
	uint32_t c = 0;
	bool incomplete;

	do
		at--;
	while (at > start && ((uint8_t) text[at] & 0xC0) == 0x80);
	*begin = at;
	dsv3_utf8_next((const uint8_t *) text + at, 4, &c, &incomplete);
	return c;
}

/* Find the tokens of one `normalized` flag in text[start..end). Positions given out count from text[0]. */
static bool
split_pass(const Dsv3AddedTokens *added, const char *text, size_t start, size_t end, bool normalized,
		   Dsv3SectionList *out, Dsv3Error *err)
{
	size_t done = start, at = start;

	while (at < end)
	{
		const Dsv3AddedToken *token = NULL;
		size_t from, to, next;
		uint32_t c;
		bool incomplete;

		if (added->first_of[(uint8_t) text[at]] != added->first_of[(uint8_t) text[at] + 1])
			token = longest_at(added, text + at, end - at, normalized);
		if (token == NULL)
		{
			at++;
			continue;
		}
		from = at;
		to = next = at + token->len;
		at = next;
		if (token->single_word)
		{
			size_t begin;

			if (from > start && dsv3_charset_contains(&added->word, char_before(text, start, from, &begin)))
				continue;
			if (to < end)
			{
				dsv3_utf8_next((const uint8_t *) text + to, end - to, &c, &incomplete);
				if (dsv3_charset_contains(&added->word, c))
					continue;
			}
		}
		if (token->lstrip)
		{
			size_t begin;

			while (from > start &&
				   dsv3_charset_contains(&added->space, char_before(text, start, from, &begin)))
				from = begin;
			if (from < done)
				from = done;
		}
		while (token->rstrip && to < end)
		{
			int n = dsv3_utf8_next((const uint8_t *) text + to, end - to, &c, &incomplete);

			if (n < 0 || !dsv3_charset_contains(&added->space, c))
				break;
			to += (size_t) n;
		}
		if (done < from && !add_section(out, NULL, done, from, err))
			return false;
		if (!add_section(out, token, from, to, err))
			return false;
		done = to;
	}
	return done >= end || add_section(out, NULL, done, end, err);
}

bool
dsv3_added_split(const Dsv3AddedTokens *added, const char *text, size_t len, Dsv3SectionList *out,
				 Dsv3Error *err)
{
	Dsv3SectionList first = {0};
	bool ok;

	out->count = 0;
	ok = split_pass(added, text, 0, len, false, &first, err);
	for (size_t i = 0; ok && i < first.count; i++)
	{
		if (first.items[i].token != NULL)
			ok = add_section(out, first.items[i].token, first.items[i].start, first.items[i].end, err);
		else
			ok = split_pass(added, text, first.items[i].start, first.items[i].end, true, out, err);
	}
	free(first.items);
	return ok;
}
