/*
 * log.c
 *	  The engine's log lines; see log.h.
 *
 * A line is at most LINE_MAX_BYTES, below PIPE_BUF, so that lines of several threads never mix in the pipe.
 */
#include "engine/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048

static const char *const level_names[] = {"LOG", "WARNING", "ERROR"};

void
dsv3_log_init(void)
{
	struct stat st;

	/* Only a pipe: the flag belongs to the open file, and a terminal is shared with others. */
	if (fstat(STDERR_FILENO, &st) == 0 && S_ISFIFO(st.st_mode))
	{
		int flags = fcntl(STDERR_FILENO, F_GETFL);

		if (flags >= 0)
			(void) fcntl(STDERR_FILENO, F_SETFL, flags | O_NONBLOCK);
	}
}

void
dsv3_log(Dsv3LogLevel level, const char *fmt, ...)
{
	char line[LINE_MAX_BYTES];
	va_list ap;
	int start = snprintf(line, sizeof(line), "%s: ", level_names[level]);
	int n;
	size_t len;

	va_start(ap, fmt);
	n = vsnprintf(line + start, sizeof(line) - (size_t) start - 1, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	len = (size_t) start + (size_t) n;
	if (len > sizeof(line) - 2)
	{
		len = sizeof(line) - 2;
		while (len > 0 && ((unsigned char) line[len] & 0xC0) == 0x80)
			len--; /* not in the middle of a character */
	}
	for (size_t i = 0; i < len; i++)
	{
		if ((unsigned char) line[i] < 0x20)
			line[i] = ' ';
	}
	line[len++] = '\n';
	if (write(STDERR_FILENO, line, len) < 0)
		return; /* nowhere to report it */
}

void
dsv3_log_error(Dsv3LogLevel level, const Dsv3Error *err)
{
	dsv3_log(level, "%s%s%s%s%s", err->message, err->detail[0] ? "; detail: " : "", err->detail,
			 err->hint[0] ? "; hint: " : "", err->hint);
}
