/*
 * sandbox.h
 *	  What the engine process may still do once its model is open: compute, and talk over the descriptors it has.
 */
#ifndef DSV3_SANDBOX_H
#define DSV3_SANDBOX_H

#include "common/error.h"

typedef struct Dsv3Sandbox
{
	int socket_fd; /* may be written, beside standard error */
	int wake_fd;   /* likewise */
	int disk_fd;   /* may be written anywhere and cut short; -1: there is none */
	const char *model_path;
	char description[64]; /* out: "landlock+seccomp", "seccomp", "none (...)" */
} Dsv3Sandbox;

/*
 * Close the sandbox around every thread of the process; cannot be undone. Fails when the kernel refuses the system call
 * filter; a kernel without Landlock only gets a log line. A system call that is not on the list ends the process with a log
 * line and status 1.
 */
extern bool dsv3_sandbox_enter(Dsv3Sandbox *sandbox, Dsv3Error *err);

#endif /* DSV3_SANDBOX_H */
