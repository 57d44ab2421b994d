/*
 * validate_format.c
 *	  The formats, checked by hand-written code; the compiler has automata of its own for them (format.c).
 */
#include <string.h>

#include "grammar/validate.h"

static bool
digits(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (s[i] < '0' || s[i] > '9')
			return false;
	return n > 0;
}

static int
number_of(const char *s, size_t n)
{
	int v = 0;

	for (size_t i = 0; i < n; i++)
		v = v * 10 + (s[i] - '0');
	return v;
}

static bool
is_date(const char *s, size_t n)
{
	static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
	int y;
	int m;
	int d;

	if (n != 10 || !digits(s, 4) || s[4] != '-' || !digits(s + 5, 2) || s[7] != '-' || !digits(s + 8, 2))
		return false;
	y = number_of(s, 4);
	m = number_of(s + 5, 2);
	d = number_of(s + 8, 2);
	if (m < 1 || m > 12 || d < 1)
		return false;
	return d <= days[m - 1] + (m == 2 && ((y % 4 == 0 && y % 100 != 0) || y % 400 == 0));
}

/* hh:mm:ss[.f](Z|+hh:mm); a 60th second only at 23:59 UTC. */
static bool
is_time(const char *s, size_t n)
{
	size_t at = 8;
	int h;
	int m;
	int sec;
	int offset = 0;

	if (n < 9 || !digits(s, 2) || s[2] != ':' || !digits(s + 3, 2) || s[5] != ':' || !digits(s + 6, 2))
		return false;
	h = number_of(s, 2);
	m = number_of(s + 3, 2);
	sec = number_of(s + 6, 2);
	if (h > 23 || m > 59 || sec > 60)
		return false;
	if (s[at] == '.')
	{
		size_t start = ++at;

		while (at < n && s[at] >= '0' && s[at] <= '9')
			at++;
		if (at == start)
			return false;
	}
	if (at >= n)
		return false;
	if ((s[at] | 32) == 'z')
	{
		if (at + 1 != n)
			return false;
	}
	else
	{
		if ((s[at] != '+' && s[at] != '-') || n - at != 6 || !digits(s + at + 1, 2) || s[at + 3] != ':' ||
			!digits(s + at + 4, 2))
			return false;
		if (number_of(s + at + 1, 2) > 23 || number_of(s + at + 4, 2) > 59)
			return false;
		offset = (number_of(s + at + 1, 2) * 60 + number_of(s + at + 4, 2)) * (s[at] == '-' ? -1 : 1);
	}
	return sec < 60 || ((h * 60 + m - offset) % 1440 + 1440) % 1440 == 23 * 60 + 59;
}

static bool
is_duration(const char *s, size_t n)
{
	const char *at = "YMWD"; /* the units that may still come, in order */
	size_t i = 1;
	bool any = false;
	bool time = false;

	if (n < 3 || s[0] != 'P')
		return false;
	while (i < n)
	{
		size_t start = i;
		const char *u;

		if (s[i] == 'T' && !time)
		{
			time = true;
			at = "HMS";
			i++;
			any = false;
			continue;
		}
		while (i < n && s[i] >= '0' && s[i] <= '9')
			i++;
		if (i == start || i >= n)
			return false;
		u = strchr(at, s[i]);
		if (u == NULL || s[i] == '\0')
			return false;
		if (s[i] == 'W')
			return start == 1 && i + 1 == n;
		/* RFC 3339: no unit may be skipped between two that are given. */
		if (any && u != at && !(u == at + 1 && *at == 'W'))
			return false;
		at = u + 1;
		any = true;
		i++;
	}
	return any;
}

static bool
is_hostname(const char *s, size_t n)
{
	size_t label = 0;

	if (n == 0 || n > 253)
		return false;
	for (size_t i = 0; i <= n; i++)
	{
		if (i == n || s[i] == '.')
		{
			if (label == 0 || label > 63 || s[i - 1] == '-')
				return false;
			label = 0;
			continue;
		}
		if (!((s[i] | 32) >= 'a' && (s[i] | 32) <= 'z') && !(s[i] >= '0' && s[i] <= '9') &&
			!(s[i] == '-' && label > 0))
			return false;
		label++;
	}
	return true;
}

static bool
is_ipv4(const char *s, size_t n)
{
	size_t i = 0;

	for (int part = 0; part < 4; part++)
	{
		size_t start = i;

		while (i < n && s[i] >= '0' && s[i] <= '9')
			i++;
		if (i == start || i - start > 3 || (i - start > 1 && s[start] == '0') ||
			number_of(s + start, i - start) > 255)
			return false;
		if (part < 3 && (i >= n || s[i++] != '.'))
			return false;
	}
	return i == n;
}

static bool
is_ipv6(const char *s, size_t n)
{
	int groups = 0;
	bool gap = false;
	size_t i = 0;

	if (n >= 2 && s[0] == ':' && s[1] == ':')
	{
		gap = true;
		i = 2;
	}
	while (i < n)
	{
		size_t start = i;

		while (i < n && i - start < 5 &&
			   ((s[i] >= '0' && s[i] <= '9') || ((s[i] | 32) >= 'a' && (s[i] | 32) <= 'f')))
			i++;
		if (i < n && s[i] == '.')
			return is_ipv4(s + start, n - start) && (gap ? groups + 2 <= 7 : groups + 2 == 8);
		if (i == start || i - start > 4)
			return false;
		groups++;
		if (i == n)
			break;
		if (s[i] != ':')
			return false;
		i++;
		if (i < n && s[i] == ':')
		{
			if (gap)
				return false;
			gap = true;
			i++;
		}
		else if (i == n)
			return false;
	}
	return gap ? groups <= 7 : groups == 8;
}

static bool
is_email(const char *s, size_t n)
{
	size_t at = n;

	for (size_t i = 0; i < n; i++)
		if (s[i] == '@')
			at = i;
	if (at == n || at == 0 || at > 64 || s[0] == '.' || s[at - 1] == '.')
		return false;
	for (size_t i = 0; i < at; i++)
		if (s[i] == '\0' || (!((s[i] | 32) >= 'a' && (s[i] | 32) <= 'z') && !(s[i] >= '0' && s[i] <= '9') &&
							 strchr("!#$%&'*+-/=?^_`{|}~.", s[i]) == NULL))
			return false;
		else if (s[i] == '.' && s[i + 1] == '.')
			return false;
	return is_hostname(s + at + 1, n - at - 1);
}

static bool
is_uri_char(const char *s, size_t n, size_t *i)
{
	unsigned char c = (unsigned char) s[*i];

	if (c == '%')
	{
		if (*i + 2 >= n)
			return false;
		for (int k = 1; k <= 2; k++)
		{
			char h = s[*i + (size_t) k];

			if (!(h >= '0' && h <= '9') && !((h | 32) >= 'a' && (h | 32) <= 'f'))
				return false;
		}
		*i += 2;
		return true;
	}
	return c > 0x20 && c < 0x7F && strchr("\"<>\\^`{|}", c) == NULL;
}

static bool
is_uri(const char *s, size_t n, bool reference)
{
	size_t i = 0;
	size_t scheme = 0;
	int hashes = 0;

	while (scheme < n && (((s[scheme] | 32) >= 'a' && (s[scheme] | 32) <= 'z') ||
						  (scheme > 0 && ((s[scheme] >= '0' && s[scheme] <= '9') || s[scheme] == '+' ||
										  s[scheme] == '-' || s[scheme] == '.'))))
		scheme++;
	if (scheme == 0 || scheme >= n || s[scheme] != ':')
	{
		if (!reference)
			return false;
		for (i = 0; i < n && s[i] != '/' && s[i] != '?' && s[i] != '#'; i++)
			if (s[i] == ':')
				return false;
	}
	for (i = 0; i < n; i++)
	{
		if (s[i] == '[' || s[i] == ']')
			continue; /* the automaton is stricter about where they stand */
		if (s[i] == '#' && ++hashes > 1)
			return false;
		if (!is_uri_char(s, n, &i))
			return false;
	}
	return true;
}

static bool
is_uuid(const char *s, size_t n)
{
	if (n != 36)
		return false;
	for (size_t i = 0; i < n; i++)
		if (i == 8 || i == 13 || i == 18 || i == 23)
		{
			if (s[i] != '-')
				return false;
		}
		else if (!(s[i] >= '0' && s[i] <= '9') && !((s[i] | 32) >= 'a' && (s[i] | 32) <= 'f'))
			return false;
	return true;
}

static bool
is_json_pointer(const char *s, size_t n)
{
	if (n > 0 && s[0] != '/')
		return false;
	for (size_t i = 0; i < n; i++)
		if (s[i] == '~' && (i + 1 >= n || (s[i + 1] != '0' && s[i + 1] != '1')))
			return false;
	return true;
}

bool
dsv3_validate_format(const char *format, const char *text, size_t len)
{
	if (strcmp(format, "date") == 0)
		return is_date(text, len);
	if (strcmp(format, "time") == 0)
		return is_time(text, len);
	if (strcmp(format, "date-time") == 0)
		return len > 11 && is_date(text, 10) && (text[10] | 32) == 't' && is_time(text + 11, len - 11);
	if (strcmp(format, "duration") == 0)
		return is_duration(text, len);
	if (strcmp(format, "email") == 0)
		return is_email(text, len);
	if (strcmp(format, "hostname") == 0)
		return is_hostname(text, len);
	if (strcmp(format, "ipv4") == 0)
		return is_ipv4(text, len);
	if (strcmp(format, "ipv6") == 0)
		return is_ipv6(text, len);
	if (strcmp(format, "uri") == 0)
		return is_uri(text, len, false);
	if (strcmp(format, "uri-reference") == 0)
		return is_uri(text, len, true);
	if (strcmp(format, "uuid") == 0)
		return is_uuid(text, len);
	if (strcmp(format, "json-pointer") == 0)
		return is_json_pointer(text, len);
	return true;
}

bool
dsv3_validate_format_number(const char *format, const Dec *number)
{
	static const struct
	{
		const char *name;
		const char *lo;
		const char *hi;
	} ranges[] = {{"int32", "2147483648", "2147483647"},
				  {"int64", "9223372036854775808", "9223372036854775807"}};

	for (size_t i = 0; i < 2; i++)
		if (strcmp(format, ranges[i].name) == 0)
		{
			Dec bound = {false, 0, 0, number->neg ? ranges[i].lo : ranges[i].hi};
			Dec magnitude = *number;

			magnitude.neg = false;
			bound.ndigits = (int32_t) strlen(bound.digits);
			return dsv3_gr_dec_is_integer(number) && dsv3_gr_dec_compare(&magnitude, &bound) <= 0;
		}
	return true;
}
