/*
 * sandbox.c
 *	  Two fences around the engine: Landlock for files and ports, seccomp for system calls.
 *
 * The engine reads prompts that anybody may have written and model files that anybody may have made. After the model
 * is open it needs no file, no program and no connection besides the socket it has, so all of that is taken away:
 *
 *	- seccomp (through libseccomp) lets an explicit list of system calls pass. Writing is tied to standard error, the socket,
 *	  the wake-up descriptor and the file of cached blocks; memory cannot become executable; clone makes threads only. Everything else traps: the
 *	  handler of SIGSYS logs the call's name and exits with status 1 (never by a signal, see guard.h).
 *	- Landlock leaves read access to the pack or below the model directory and nothing else, no TCP port, no signal to others. The list
 *	  above already has no call that opens a file; this fence is for the day when it has one.
 *
 * Both must hold for threads that exist already. seccomp does that itself (TSYNC). Landlock restricts the calling thread
 * only, so every other thread is sent a signal whose handler makes the call; nobody may start threads meanwhile.
 *
 * Sanitizers open files and fork when they report; their builds run without the sandbox and say so.
 */
#include "engine/sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/log.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAVE_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAVE_SANITIZER 1
#endif
#endif
#ifndef HAVE_SANITIZER
#define HAVE_SANITIZER 0
#endif

/* -- Landlock -- */

/* As the kernel defines it today; the distribution's header may be older than the running kernel. */
typedef struct LandlockRules
{
	uint64_t fs;
	uint64_t net;
	uint64_t scoped;
} LandlockRules;

#define LANDLOCK_FS_V1     0x1fffu /* execute, read, write, make and remove of every kind */
#define LANDLOCK_FS_REFER  (1u << 13)
#define LANDLOCK_FS_TRUNC  (1u << 14)
#define LANDLOCK_FS_IOCTL  (1u << 15)
#define LANDLOCK_NET_TCP   3u /* bind, connect */
#define LANDLOCK_SCOPE_ALL 3u /* abstract sockets, signals */
#define THREAD_WAIT_MS     5000

static int rules_fd = -1;
static atomic_int n_restricted;
static atomic_int n_refused;

static void
on_restrict(int signo)
{
	int saved = errno;

	(void) signo;
	if (syscall(SYS_landlock_restrict_self, rules_fd, 0) == 0)
		atomic_fetch_add(&n_restricted, 1);
	else
		atomic_fetch_add(&n_refused, 1);
	errno = saved;
}

static int
make_rules(const char *model_path)
{
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
	LandlockRules rules = {.fs = LANDLOCK_FS_V1};
	struct landlock_path_beneath_attr below = {.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE};
	struct stat st;
	int fd;

	if (abi < 1)
		return -1;
	if (abi >= 2)
		rules.fs |= LANDLOCK_FS_REFER;
	if (abi >= 3)
		rules.fs |= LANDLOCK_FS_TRUNC;
	if (abi >= 4)
		rules.net = LANDLOCK_NET_TCP;
	if (abi >= 5)
		rules.fs |= LANDLOCK_FS_IOCTL;
	if (abi >= 6)
		rules.scoped = LANDLOCK_SCOPE_ALL;
	fd = (int) syscall(SYS_landlock_create_ruleset, &rules, sizeof(rules), 0);
	if (fd < 0)
		return -1;
	below.parent_fd = open(model_path, O_PATH | O_CLOEXEC);
	if (below.parent_fd >= 0)
	{
		/* a file has no right of this kind to give */
		if (fstat(below.parent_fd, &st) == 0 && S_ISDIR(st.st_mode))
			below.allowed_access |= LANDLOCK_ACCESS_FS_READ_DIR;
		if (syscall(SYS_landlock_add_rule, fd, LANDLOCK_RULE_PATH_BENEATH, &below, 0) != 0)
			dsv3_log(DSV3_WARNING, "the sandbox has no access to the model: %s", strerror(errno));
		close(below.parent_fd);
	}
	return fd;
}

/* Signal every thread but this one; returns how many. */
static int
signal_threads(int signo)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	pid_t self = (pid_t) syscall(SYS_gettid);
	int n = 0;

	while (dir && (entry = readdir(dir)) != NULL)
	{
		pid_t tid = (pid_t) atoi(entry->d_name);

		if (tid > 0 && tid != self && syscall(SYS_tgkill, getpid(), tid, signo) == 0)
			n++;
	}
	if (dir)
		closedir(dir);
	return n;
}

/* true when every thread is restricted. */
static bool
enter_landlock(const char *model_path)
{
	struct sigaction action;
	struct sigaction before;
	int signo = SIGRTMIN + 1;
	int others;

	rules_fd = make_rules(model_path);
	if (rules_fd < 0)
	{
		dsv3_log(DSV3_LOG, "this kernel has no Landlock: the sandbox is the system call filter alone");
		return false;
	}
	memset(&action, 0, sizeof(action));
	action.sa_handler = on_restrict;
	action.sa_flags = SA_RESTART;
	sigemptyset(&action.sa_mask);
	sigaction(signo, &action, &before);
	others = signal_threads(signo);
	for (int ms = 0; atomic_load(&n_restricted) + atomic_load(&n_refused) < others && ms < THREAD_WAIT_MS;
		 ms++)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	on_restrict(signo);
	close(rules_fd);
	if (atomic_load(&n_restricted) == others + 1)
	{
		sigaction(signo, &before, NULL);
		return true;
	}
	/* The handler stays: a thread that was late must not die of the signal. */
	dsv3_log(DSV3_WARNING,
			 "Landlock restricts %d of %d threads: the sandbox relies on the system call filter",
			 atomic_load(&n_restricted), others + 1);
	return false;
}

/* -- seccomp -- */

#define N_SYSCALLS 512

static char syscall_names[N_SYSCALLS][24]; /* filled before the filter: the handler cannot look them up */

static void
on_forbidden(int signo, siginfo_t *info, void *context)
{
	char line[128] = "ERROR: the sandbox stopped system call ";
	char number[16];
	int at = (int) sizeof(number) - 1;
	int nr = info->si_syscall;

	(void) signo;
	(void) context;
	number[at] = '\0';
	do
		number[--at] = (char) ('0' + nr % 10);
	while ((nr /= 10) > 0 && at > 0);
	if (info->si_syscall >= 0 && info->si_syscall < N_SYSCALLS)
		strcat(line, syscall_names[info->si_syscall]);
	strcat(line, " (number ");
	strcat(line, number + at);
	strcat(line, "), engine exits\n");
	if (write(STDERR_FILENO, line, strlen(line)) < 0)
		_exit(1);
	_exit(1);
}

static void
prepare_names(void)
{
	for (int nr = 0; nr < N_SYSCALLS; nr++)
	{
		char *name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, nr);

		snprintf(syscall_names[nr], sizeof(syscall_names[nr]), "%s", name ? name : "?");
		free(name);
	}
}

/* Passed whatever the arguments. */
static const int allowed_calls[] = {
	/* descriptors the process has */
	SCMP_SYS(read), SCMP_SYS(readv), SCMP_SYS(pread64), SCMP_SYS(preadv), SCMP_SYS(lseek), SCMP_SYS(fstat),
	SCMP_SYS(close), SCMP_SYS(poll), SCMP_SYS(ppoll),
	/* memory, without execution (mmap and mprotect are below) */
	SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(brk), SCMP_SYS(mlock), SCMP_SYS(munlock),
	/* threads */
	SCMP_SYS(futex), SCMP_SYS(futex_waitv), SCMP_SYS(set_robust_list), SCMP_SYS(rseq), SCMP_SYS(membarrier),
	SCMP_SYS(sched_yield), SCMP_SYS(sched_getaffinity), SCMP_SYS(sched_setaffinity), SCMP_SYS(getcpu),
	SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(set_tid_address),
	/* signals of its own */
	SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sigaltstack),
	SCMP_SYS(restart_syscall),
	/* time and identity */
	SCMP_SYS(clock_gettime), SCMP_SYS(clock_getres), SCMP_SYS(clock_nanosleep), SCMP_SYS(nanosleep),
	SCMP_SYS(gettimeofday), SCMP_SYS(time), SCMP_SYS(getpid), SCMP_SYS(gettid), SCMP_SYS(getppid),
	SCMP_SYS(getrusage), SCMP_SYS(sysinfo), SCMP_SYS(getrandom)};

/* Calls that libraries make and can do without: an error instead of the end. */
static const struct
{
	int call;
	int error;
} refused_calls[] = {
	{SCMP_SYS(clone3), ENOSYS}, /* its flags are out of a filter's sight; the C library falls back to clone */
	{SCMP_SYS(newfstatat), EACCES},
	{SCMP_SYS(statx), EACCES},
	{SCMP_SYS(ioctl), ENOTTY},
};

/* Let a call pass when one of its arguments compares so; datum_b is the value of a masked comparison. */
static int
allow_if(scmp_filter_ctx filter, int call, unsigned arg, enum scmp_compare op, scmp_datum_t datum_a,
		 scmp_datum_t datum_b)
{
	const struct scmp_arg_cmp compare = {.arg = arg, .op = op, .datum_a = datum_a, .datum_b = datum_b};

	return seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, call, 1, &compare);
}

static int
add_conditional(scmp_filter_ctx filter, const Dsv3Sandbox *sandbox)
{
	const int writable[] = {STDERR_FILENO, sandbox->socket_fd, sandbox->wake_fd};
	int rc = 0;

	for (int i = 0; i < 3; i++)
	{
		rc |= allow_if(filter, SCMP_SYS(write), 0, SCMP_CMP_EQ, (scmp_datum_t) writable[i], 0);
		rc |= allow_if(filter, SCMP_SYS(writev), 0, SCMP_CMP_EQ, (scmp_datum_t) writable[i], 0);
	}
	if (sandbox->disk_fd >= 0)
	{
		rc |= allow_if(filter, SCMP_SYS(pwrite64), 0, SCMP_CMP_EQ, (scmp_datum_t) sandbox->disk_fd, 0);
		rc |= allow_if(filter, SCMP_SYS(ftruncate), 0, SCMP_CMP_EQ, (scmp_datum_t) sandbox->disk_fd, 0);
	}
	rc |= allow_if(filter, SCMP_SYS(mmap), 2, SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);
	rc |= allow_if(filter, SCMP_SYS(mprotect), 2, SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);
	rc |= allow_if(filter, SCMP_SYS(clone), 0, SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD);
	rc |= allow_if(filter, SCMP_SYS(tgkill), 0, SCMP_CMP_EQ, (scmp_datum_t) getpid(), 0);
	rc |= allow_if(filter, SCMP_SYS(prctl), 0, SCMP_CMP_EQ, PR_SET_NAME, 0);
	return rc;
}

static bool
enter_seccomp(const Dsv3Sandbox *sandbox, Dsv3Error *err)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_TRAP);
	struct sigaction action;
	int rc = filter ? 0 : -ENOMEM;

	prepare_names();
	memset(&action, 0, sizeof(action));
	action.sa_sigaction = on_forbidden;
	action.sa_flags = SA_SIGINFO | SA_ONSTACK;
	sigemptyset(&action.sa_mask);
	sigaction(SIGSYS, &action, NULL);
	if (rc == 0)
		rc = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
	if (rc == 0)
		rc = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_TRAP);
	for (size_t i = 0; rc == 0 && i < sizeof(allowed_calls) / sizeof(allowed_calls[0]); i++)
		rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed_calls[i], 0);
	for (size_t i = 0; rc == 0 && i < sizeof(refused_calls) / sizeof(refused_calls[0]); i++)
		rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO((uint32_t) refused_calls[i].error),
							  refused_calls[i].call, 0);
	if (rc == 0)
		rc = add_conditional(filter, sandbox);
	if (rc == 0)
		rc = seccomp_load(filter);
	if (filter)
		seccomp_release(filter);
	if (rc == 0)
		return true;
	dsv3_error(err, DSV3_ERR_INTERNAL, "could not close the engine's sandbox: %s", strerror(-rc));
	return dsv3_error_hint(err, "The kernel or the container must allow processes to set a seccomp filter.");
}

bool
dsv3_sandbox_enter(Dsv3Sandbox *sandbox, Dsv3Error *err)
{
	bool landlock;

	if (HAVE_SANITIZER)
	{
		dsv3_log(DSV3_LOG, "built with a sanitizer: no sandbox");
		snprintf(sandbox->description, sizeof(sandbox->description), "none (built with a sanitizer)");
		return true;
	}
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		return dsv3_error(err, DSV3_ERR_INTERNAL, "could not give up new privileges: %s", strerror(errno));
	landlock = enter_landlock(sandbox->model_path);
	if (!enter_seccomp(sandbox, err))
		return false;
	snprintf(sandbox->description, sizeof(sandbox->description), "%s",
			 landlock ? "landlock+seccomp" : "seccomp");
	return true;
}
