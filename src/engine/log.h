/*
 * log.h
 *	  The engine's log lines: one line each on standard error, with a level the supervisor turns into its own.
 */
#ifndef DSV3_LOG_H
#define DSV3_LOG_H

#include "common/error.h"

typedef enum Dsv3LogLevel
{
	DSV3_LOG,
	DSV3_WARNING,
	DSV3_ERROR,
} Dsv3LogLevel;

/* Write "LEVEL: text\n" with one write(2). Line breaks inside the text become spaces, a long text is cut. Any thread; never
 * blocks when standard error is a pipe that nobody empties (the line is then lost). */
extern void dsv3_log(Dsv3LogLevel level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* An error with its detail and hint as one line. */
extern void dsv3_log_error(Dsv3LogLevel level, const Dsv3Error *err);

/* Make a pipe on standard error non-blocking; done once at the start of the process. */
extern void dsv3_log_init(void);

#endif /* DSV3_LOG_H */
