/*
 * utf8.c
 *	  UTF-8, see utf8.h. The ranges of second bytes are those of Unicode's table 3-7.
 */
#include "text/utf8.h"

#include <string.h>

int
dsv3_utf8_next(const uint8_t *p, size_t n, uint32_t *c, bool *incomplete)
{
	uint8_t lead = p[0], low = 0x80, high = 0xBF;
	uint32_t value;
	int need;

	*incomplete = false;
	if (lead < 0x80)
	{
		*c = lead;
		return 1;
	}
	if (lead >= 0xC2 && lead <= 0xDF)
	{
		need = 1;
		value = lead & 0x1F;
	}
	else if (lead >= 0xE0 && lead <= 0xEF)
	{
		need = 2;
		value = lead & 0x0F;
		if (lead == 0xE0)
			low = 0xA0;
		else if (lead == 0xED)
			high = 0x9F;
	}
	else if (lead >= 0xF0 && lead <= 0xF4)
	{
		need = 3;
		value = lead & 0x07;
		if (lead == 0xF0)
			low = 0x90;
		else if (lead == 0xF4)
			high = 0x8F;
	}
	else
		return -1;
	for (int i = 1; i <= need; i++)
	{
		if ((size_t) i >= n)
		{
			*incomplete = true;
			return -i;
		}
		if (p[i] < low || p[i] > high)
			return -i;
		value = value << 6 | (p[i] & 0x3F);
		low = 0x80;
		high = 0xBF;
	}
	*c = value;
	return need + 1;
}

bool
dsv3_is_python_space(uint32_t c)
{
	return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
		   (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
		   c == 0x3000;
}

int
dsv3_utf8_put(uint32_t c, char *out)
{
	if (c < 0x80)
	{
		out[0] = (char) c;
		return 1;
	}
	if (c < 0x800)
	{
		out[0] = (char) (0xC0 | c >> 6);
		out[1] = (char) (0x80 | (c & 0x3F));
		return 2;
	}
	if (c < 0x10000)
	{
		out[0] = (char) (0xE0 | c >> 12);
		out[1] = (char) (0x80 | (c >> 6 & 0x3F));
		out[2] = (char) (0x80 | (c & 0x3F));
		return 3;
	}
	out[0] = (char) (0xF0 | c >> 18);
	out[1] = (char) (0x80 | (c >> 12 & 0x3F));
	out[2] = (char) (0x80 | (c >> 6 & 0x3F));
	out[3] = (char) (0x80 | (c & 0x3F));
	return 4;
}

bool
dsv3_utf8_check(const char *text, size_t len, Dsv3Error *err)
{
	const uint8_t *p = (const uint8_t *) text;
	size_t i = 0;

	while (i < len)
	{
		uint32_t c;
		bool incomplete;
		int n;

		/* eight ASCII bytes at a time */
		while (i + 8 <= len)
		{
			uint64_t word;

			memcpy(&word, p + i, 8);
			if (word & 0x8080808080808080u)
				break;
			i += 8;
		}
		if (i == len)
			break;
		n = dsv3_utf8_next(p + i, len - i, &c, &incomplete);
		if (n < 0)
			return dsv3_error(err, DSV3_ERR_INVALID_TEXT, "invalid UTF-8 at byte %zu of the text: 0x%02x%s",
							  i, p[i], incomplete ? " begins a character that is cut off" : "");
		i += (size_t) n;
	}
	return true;
}
