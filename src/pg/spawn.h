/*
 * spawn.h
 *	  The engine as a child process: start, log pipe, end. Only the supervisor uses it, for one child at a time.
 */
#ifndef DSV3_SPAWN_H
#define DSV3_SPAWN_H

#include "pg/compat.h"

#include "common/error.h"

#define DSV3_LOG_LINE_MAX 1024

typedef struct Dsv3Child
{
	pid_t pid;  /* 0: none */
	int log_fd; /* read end of its stderr, -1: closed */

	/* The line being received from stderr, and the last complete one. */
	char line[DSV3_LOG_LINE_MAX];
	int line_len;
	char last_line[DSV3_LOG_LINE_MAX];

	/* Lines are written to the server log at most so fast. */
	TimestampTz window_start;
	int window_lines;
	int suppressed;
} Dsv3Child;

/* Start `program engine --parent <this process>`. On success the child is set and *socket_fd is our end of the connection,
 * non-blocking. False: nothing was started, err says why. */
extern bool
dsv3_child_start(Dsv3Child *child, const char *program, int oom_score_adj, int *socket_fd, Dsv3Error *err);

/* Has it ended? Then *status is its wait status and the child has no pid any more. Never waits. */
extern bool dsv3_child_reap(Dsv3Child *child, int *status);

extern void dsv3_child_kill(const Dsv3Child *child, int signal);

/* End it within about two seconds, by SIGTERM and then SIGKILL, and reap it; for the end of the supervisor. */
extern void dsv3_child_stop(Dsv3Child *child);

/* Copy what it wrote on stderr to the server log; false at end of file, and the descriptor is closed. */
extern bool dsv3_child_read_log(Dsv3Child *child);

/* Copy what is there and close; for a child that has ended, whose own children might hold the pipe open. */
extern void dsv3_child_close_log(Dsv3Child *child);

/* "exit status 1", "signal 9 (Killed)". */
extern void dsv3_child_describe(int status, char *buf, Size size);

#endif /* DSV3_SPAWN_H */
