/*
 * guard.c
 *	  Process rules; see guard.h.
 *
 * The crash handler runs on an alternate stack, which every thread of the engine has (altstack.h), and uses only async-signal-safe calls. It is not installed in builds with
 * a sanitizer, which has a better one that also exits with status 1.
 */
#include "engine/guard.h"

#include "common/altstack.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define OOM_SCORE_ADJ 500

static void
on_stop(int signo)
{
	(void) signo;
	_exit(1);
}

static const char *
signal_text(int signo)
{
	switch (signo)
	{
		case SIGSEGV:
			return "segmentation fault";
		case SIGBUS:
			return "bus error (a model file was cut short, or its disk failed)";
		case SIGFPE:
			return "arithmetic fault";
		case SIGILL:
			return "illegal instruction";
		default:
			return "abort";
	}
}

static void
on_crash(int signo, siginfo_t *info, void *context)
{
	static const char digits[] = "0123456789abcdef";
	char line[160] = "ERROR: engine crashed: ";
	char address[19] = "0x0000000000000000";
	uint64_t at = (uint64_t) (uintptr_t) info->si_addr;

	(void) context;
	for (int i = 0; i < 16; i++)
		address[2 + i] = digits[at >> (60 - 4 * i) & 15];
	strcat(line, signal_text(signo));
	if (signo != SIGABRT)
	{
		strcat(line, ", address ");
		strcat(line, address);
	}
	strcat(line, "\n");
	if (write(STDERR_FILENO, line, strlen(line)) < 0)
		_exit(1);
	_exit(1);
}

static void
set_handler(int signo, void (*handler)(int))
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	action.sa_handler = handler;
	sigemptyset(&action.sa_mask);
	action.sa_flags = SA_RESTART;
	sigaction(signo, &action, NULL);
}

static void
set_signals(bool debug)
{
	static const int ignored[] = {SIGINT,  SIGPIPE, SIGHUP,  SIGUSR1, SIGUSR2,
								  SIGALRM, SIGTSTP, SIGTTIN, SIGTTOU, SIGXFSZ};
	static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
	sigset_t none;

	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		set_handler(ignored[i], SIG_IGN);
	set_handler(SIGTERM, on_stop);
	set_handler(SIGQUIT, on_stop);
	for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]) && !debug && !DSV3_HAVE_SANITIZER; i++)
	{
		struct sigaction action;

		memset(&action, 0, sizeof(action));
		action.sa_sigaction = on_crash;
		sigemptyset(&action.sa_mask);
		action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
		sigaction(crashes[i], &action, NULL);
	}
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Let the kernel take the engine before it takes a database process. */
static void
raise_oom_score(void)
{
	char text[16] = "";
	int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return;
	if (read(fd, text, sizeof(text) - 1) > 0 && atoi(text) < OOM_SCORE_ADJ)
	{
		int len = snprintf(text, sizeof(text), "%d", OOM_SCORE_ADJ);

		if (pwrite(fd, text, (size_t) len, 0) < 0)
			(void) errno; /* a hardened container may forbid it; nothing depends on it */
	}
	close(fd);
}

bool
dsv3_guard_process(pid_t parent, bool debug, Dsv3Error *err)
{
	set_signals(debug);
	(void) dsv3_altstack_set(); /* for as long as the process lives */
	/* SIGKILL ends an engine that is stopped too. The order matters: a parent that dies after the check sends the signal,
	 * one that died before fails the check. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
		return dsv3_error(err, DSV3_ERR_INTERNAL, "could not ask to end with the supervisor: %s",
						  strerror(errno));
	if (parent != 0 && getppid() != parent)
		return dsv3_error(err, DSV3_ERR_INTERNAL, "the supervisor (process %d) is gone", (int) parent);
	raise_oom_score();
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		return dsv3_error(err, DSV3_ERR_INTERNAL, "could not give up new privileges: %s", strerror(errno));
	if (!debug)
		(void) prctl(PR_SET_DUMPABLE, 0);
	return true;
}
