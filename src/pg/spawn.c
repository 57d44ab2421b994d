/*
 * spawn.c
 *	  The engine as a child process. The only file that forks.
 *
 * The child is the supervisor's, not the postmaster's, and has nothing of PostgreSQL: between fork and exec it closes
 * every descriptor it inherited (data files, the log file, the pipe by which children watch the postmaster), puts all
 * signals back to their defaults with none blocked, and changes its environment to a short list. It keeps the
 * supervisor's process group, because the postmaster signals whole groups: so a fast or immediate stop, or its SIGKILL
 * after five seconds, reaches the engine even if the supervisor cannot pass it on. The engine itself asks the kernel for
 * SIGTERM when the supervisor dies, and compares its parent with --parent to be sure that it did not ask too late. It must end by exit status 0 or 1, never by a
 * signal it raises itself: a postmaster that is process 1 of a container would inherit it and take the signal for a
 * crashed backend.
 *
 * Descriptors of the child: 0 and 1 /dev/null, 2 a pipe to the server log, 3 the frame socket.
 *
 * Between fork and exec only async-signal-safe functions are called, and everything they need is prepared before.
 */
#include "postgres.h"

#include "pg/compat.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libpq/pqsignal.h"
#include "mb/pg_wchar.h"
#include "utils/timestamp.h"

#include "pg/spawn.h"

#define LOG_WINDOW_MS    10000
#define LOG_WINDOW_LINES 100
#define EXEC_FAILED      127
#define ENV_MAX          64

extern char **environ;

/* Variables of the server that the engine keeps; also those that start with DSV3_. */
static const char *const kept_variables[] = {
	"CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "TZ",          "ASAN_OPTIONS",
	"LSAN_OPTIONS",         "UBSAN_OPTIONS",   "GCOV_PREFIX", "GCOV_PREFIX_STRIP",
};

static bool
keep_variable(const char *entry)
{
	if (strncmp(entry, "DSV3_", strlen("DSV3_")) == 0)
		return true;
	for (int i = 0; i < (int) lengthof(kept_variables); i++)
	{
		Size len = strlen(kept_variables[i]);

		if (strncmp(entry, kept_variables[i], len) == 0 && entry[len] == '=')
			return true;
	}
	return false;
}

/* The child's environment; points into ours. */
static void
build_environment(const char **env)
{
	int n = 0;

	env[n++] = "PATH=/usr/local/bin:/usr/bin:/bin";
	env[n++] = "LC_ALL=C.UTF-8";
	env[n++] = "HOME=/";
	for (char **entry = environ; *entry && n < ENV_MAX - 1; entry++)
	{
		if (keep_variable(*entry))
			env[n++] = *entry;
	}
	env[n] = NULL;
}

/* close_range(first, ~0, 0), or one by one where the kernel does not have it. */
static void
close_from(int first)
{
#ifdef SYS_close_range
	if (syscall(SYS_close_range, (unsigned) first, ~0U, 0) == 0)
		return;
#endif
	for (int fd = first; fd < 65536; fd++)
		close(fd);
}

/* In the child: become the engine. Async-signal-safe, never returns. */
static void
run_child(const char *program, char *const *argv, char *const *env, int socket_fd, int log_fd,
		  const char *oom_text, Size oom_len)
{
	struct rlimit no_core = {0, 0};
	struct sigaction action;
	sigset_t none;
	int null_fd;
	int oom_fd;

	/* No handler of ours may run, so signals are still blocked; then all go to their defaults. */
	memset(&action, 0, sizeof(action));
	action.sa_handler = SIG_DFL;
	for (int sig = 1; sig < NSIG; sig++)
		(void) sigaction(sig, &action, NULL);

	null_fd = open("/dev/null", O_RDWR);
	if (null_fd < 0)
		_exit(EXEC_FAILED);

	/* Move ours out of the way first: they may sit on each other's places. */
	socket_fd = fcntl(socket_fd, F_DUPFD, 10);
	log_fd = fcntl(log_fd, F_DUPFD, 10);
	null_fd = fcntl(null_fd, F_DUPFD, 10);
	if (socket_fd < 0 || log_fd < 0 || null_fd < 0)
		_exit(EXEC_FAILED);
	if (dup2(null_fd, 0) < 0 || dup2(null_fd, 1) < 0 || dup2(log_fd, 2) < 0 || dup2(socket_fd, 3) < 0)
		_exit(EXEC_FAILED);
	close_from(4);
	if (chdir("/") != 0)
		_exit(EXEC_FAILED); /* nothing of ours must depend on the data directory */

	(void) setrlimit(RLIMIT_CORE, &no_core);
	oom_fd = open("/proc/self/oom_score_adj", O_WRONLY);
	if (oom_fd >= 0)
	{
		if (write(oom_fd, oom_text, oom_len) < 0)
		{
			/* Not allowed in some containers; the engine then shares the server's score. */
		}
		close(oom_fd);
	}
	sigemptyset(&none);
	(void) sigprocmask(SIG_SETMASK, &none, NULL);
	execve(program, argv, env);
	_exit(EXEC_FAILED);
}

static bool
open_channels(int sockets[2], int pipes[2], Dsv3Error *err)
{
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) < 0)
		return dsv3_error(err, DSV3_ERR_INTERNAL, "could not create a socket pair for the dsv3 engine: %s",
						  strerror(errno));
	if (pipe2(pipes, O_CLOEXEC) < 0)
	{
		dsv3_error(err, DSV3_ERR_INTERNAL, "could not create a pipe for the dsv3 engine: %s",
				   strerror(errno));
		close(sockets[0]);
		close(sockets[1]);
		return false;
	}
	(void) fcntl(sockets[0], F_SETFL, O_NONBLOCK);
	(void) fcntl(pipes[0], F_SETFL, O_NONBLOCK);
	return true;
}

bool
dsv3_child_start(Dsv3Child *child, const char *program, int oom_score_adj, int *socket_fd, Dsv3Error *err)
{
	char parent[16];
	char *const argv[] = {"dsv3", "engine", "--parent", parent, NULL};
	const char *env[ENV_MAX];
	char oom_text[16];
	int sockets[2] = {-1, -1};
	int pipes[2] = {-1, -1};
	sigset_t all;
	sigset_t saved;
	pid_t pid;

	if (access(program, X_OK) != 0)
	{
		dsv3_error(err, errno == ENOENT ? DSV3_ERR_NO_FILE : DSV3_ERR_FILE,
				   "could not execute the dsv3 engine \"%s\": %s", program, strerror(errno));
		return dsv3_error_hint(
			err, "Install the dsv3 program, or set dsv3.engine_path to its absolute path and restart the "
				 "server.");
	}
	if (!open_channels(sockets, pipes, err))
		return false;
	snprintf(parent, sizeof(parent), "%d", (int) getpid());
	build_environment(env);
	snprintf(oom_text, sizeof(oom_text), "%d", oom_score_adj);

	sigfillset(&all);
	(void) sigprocmask(SIG_BLOCK, &all, &saved);
	pid = fork();
	if (pid == 0)
		run_child(program, argv, (char *const *) env, sockets[1], pipes[1], oom_text, strlen(oom_text));
	(void) sigprocmask(SIG_SETMASK, &saved, NULL);
	close(sockets[1]);
	close(pipes[1]);
	if (pid < 0)
	{
		close(sockets[0]);
		close(pipes[0]);
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "could not start a process for the dsv3 engine: %s",
						  strerror(errno));
	}

	memset(child, 0, sizeof(*child));
	child->pid = pid;
	child->log_fd = pipes[0];
	*socket_fd = sockets[0];
	return true;
}

bool
dsv3_child_reap(Dsv3Child *child, int *status)
{
	pid_t got;

	if (child->pid == 0)
		return false;
	do
		got = waitpid(child->pid, status, WNOHANG);
	while (got < 0 && errno == EINTR);
	if (got == 0)
		return false;
	if (got < 0)
		*status = 0; /* somebody else reaped it: gone all the same */
	child->pid = 0;
	return true;
}

void
dsv3_child_kill(const Dsv3Child *child, int signal)
{
	if (child->pid > 0)
		(void) kill(child->pid, signal);
}

void
dsv3_child_stop(Dsv3Child *child)
{
	int status;

	dsv3_child_kill(child, SIGTERM);
	for (int i = 0; i < 200 && child->pid != 0; i++)
	{
		if (dsv3_child_reap(child, &status))
			return;
		pg_usleep(10000);
	}
	dsv3_child_kill(child, SIGKILL);
	for (int i = 0; i < 200 && child->pid != 0; i++)
	{
		if (dsv3_child_reap(child, &status))
			return;
		pg_usleep(10000);
	}
}

/* The engine's lines begin with a level; WARNING and ERROR are what an administrator must see. */
static int
split_level(const char **text)
{
	static const struct
	{
		const char *prefix;
		int level;
	} levels[] = {{"LOG: ", LOG}, {"WARNING: ", WARNING}, {"ERROR: ", WARNING}};

	for (int i = 0; i < (int) lengthof(levels); i++)
	{
		if (strncmp(*text, levels[i].prefix, strlen(levels[i].prefix)) == 0)
		{
			*text += strlen(levels[i].prefix);
			return levels[i].level;
		}
	}
	return LOG;
}

/* One complete line of the engine. */
static void
log_line(Dsv3Child *child)
{
	const char *text = child->last_line;
	int level;
	TimestampTz now = GetCurrentTimestamp();

	if (child->line_len == 0)
		return;
	child->line[child->line_len] = '\0';

	/* The line is for humans and comes from outside: no control characters, no broken UTF-8. */
	for (int i = 0; i < child->line_len;)
	{
		int len = pg_utf_mblen((unsigned char *) child->line + i);

		if (i + len > child->line_len || pg_encoding_verifymbstr(PG_UTF8, child->line + i, len) != len ||
			(unsigned char) child->line[i] < ' ' || child->line[i] == 0x7f)
		{
			child->line[i] = child->line[i] == '\t' ? ' ' : '?';
			len = 1;
		}
		i += len;
	}
	memcpy(child->last_line, child->line, (Size) child->line_len + 1);
	child->line_len = 0;

	if (TimestampDifferenceExceeds(child->window_start, now, LOG_WINDOW_MS))
	{
		if (child->suppressed > 0)
			ereport(LOG, (errmsg("dsv3 engine: %d further lines were suppressed", child->suppressed)));
		child->window_start = now;
		child->window_lines = 0;
		child->suppressed = 0;
	}
	level = split_level(&text);
	if (child->window_lines++ < LOG_WINDOW_LINES)
		ereport(level, (errmsg("dsv3 engine: %s", text)));
	else
		child->suppressed++;
}

static void
end_log(Dsv3Child *child)
{
	log_line(child);
	if (child->suppressed > 0)
		ereport(LOG, (errmsg("dsv3 engine: %d further lines were suppressed", child->suppressed)));
	child->suppressed = 0;
	close(child->log_fd);
	child->log_fd = -1;
}

bool
dsv3_child_read_log(Dsv3Child *child)
{
	/* A bounded amount per call, so that a talkative engine cannot keep the supervisor. */
	for (int round = 0; round < 16; round++)
	{
		char buf[4096];
		ssize_t n = read(child->log_fd, buf, sizeof(buf));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return true;
		if (n <= 0)
		{
			end_log(child);
			return false;
		}
		for (ssize_t i = 0; i < n; i++)
		{
			if (buf[i] == '\n')
				log_line(child);
			else if (child->line_len < DSV3_LOG_LINE_MAX - 1)
				child->line[child->line_len++] = buf[i];
		}
	}
	return true;
}

void
dsv3_child_close_log(Dsv3Child *child)
{
	int pending;

	while (child->log_fd >= 0 && ioctl(child->log_fd, FIONREAD, &pending) == 0 && pending > 0)
		(void) dsv3_child_read_log(child);
	if (child->log_fd >= 0)
		end_log(child);
}

void
dsv3_child_describe(int status, char *buf, Size size)
{
	if (WIFSIGNALED(status))
		snprintf(buf, size, "signal %d: %s", WTERMSIG(status), strsignal(WTERMSIG(status)));
	else if (WIFEXITED(status) && WEXITSTATUS(status) == EXEC_FAILED)
		snprintf(buf, size, "exit status %d (no program that can be executed)", EXEC_FAILED);
	else
		snprintf(buf, size, "exit status %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}
