/*
 * error.c
 *	  Filling a Dsv3Error; see error.h for the rules.
 */
#include "common/error.h"

#include <stdio.h>
#include <string.h>

/* Format into buf; when it does not fit, cut at a character boundary and end in "...". */
static void
format_bounded(char *buf, size_t size, const char *fmt, va_list ap) __attribute__((format(printf, 3, 0)));

static void
format_bounded(char *buf, size_t size, const char *fmt, va_list ap)
{
	int n = vsnprintf(buf, size, fmt, ap);

	if (n < 0)
	{
		buf[0] = '\0';
		return;
	}
	if ((size_t) n >= size)
	{
		size_t cut = size - 4;

		while (cut > 0 && ((unsigned char) buf[cut] & 0xC0) == 0x80)
			cut--;
		memcpy(buf + cut, "...", 4);
	}
}

bool
dsv3_error(Dsv3Error *err, const char *sqlstate, const char *fmt, ...)
{
	va_list ap;

	if (err == NULL)
		return false;
	snprintf(err->sqlstate, sizeof(err->sqlstate), "%s", sqlstate);
	err->detail[0] = err->hint[0] = '\0';
	va_start(ap, fmt);
	format_bounded(err->message, sizeof(err->message), fmt, ap);
	va_end(ap);
	return false;
}

bool
dsv3_error_detail(Dsv3Error *err, const char *fmt, ...)
{
	va_list ap;

	if (err == NULL)
		return false;
	va_start(ap, fmt);
	format_bounded(err->detail, sizeof(err->detail), fmt, ap);
	va_end(ap);
	return false;
}

bool
dsv3_error_hint(Dsv3Error *err, const char *fmt, ...)
{
	va_list ap;

	if (err == NULL)
		return false;
	va_start(ap, fmt);
	format_bounded(err->hint, sizeof(err->hint), fmt, ap);
	va_end(ap);
	return false;
}

/* format_bounded for callers that already pass arguments one by one. */
static void __attribute__((format(printf, 3, 4))) print_bounded(char *buf, size_t size, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	format_bounded(buf, size, fmt, ap);
	va_end(ap);
}

bool
dsv3_error_prefix(Dsv3Error *err, const char *fmt, ...)
{
	va_list ap;
	char prefix[256];
	char message[sizeof(err->message)];

	if (err == NULL)
		return false;
	va_start(ap, fmt);
	format_bounded(prefix, sizeof(prefix), fmt, ap);
	va_end(ap);
	memcpy(message, err->message, sizeof(message));
	print_bounded(err->message, sizeof(err->message), "%s: %s", prefix, message);
	return false;
}
