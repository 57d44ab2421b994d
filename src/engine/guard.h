/*
 * guard.h
 *	  How the engine process behaves towards the processes around it, before any work begins.
 *
 * The rules come from PostgreSQL. The engine's parent is the supervisor, a background worker; if that dies first and the postmaster is
 * process 1 of a container, the engine becomes the postmaster's child, and any exit status but 0 and 1 then counts as a crashed
 * backend and restarts the whole server. So the engine never ends by a signal it can catch: a crash is logged and becomes exit
 * status 1. The stop signals that the postmaster sends to process groups arrive here too.
 */
#ifndef DSV3_GUARD_H
#define DSV3_GUARD_H

#include <stdbool.h>
#include <sys/types.h>

#include "common/error.h"

/*
 * Signal dispositions, death with the parent, memory-killer score, no new privileges. parent: who the parent must be, 0 not to
 * check; fails when it is another one already. debug: crashes and the core dump are left to the system.
 */
extern bool dsv3_guard_process(pid_t parent, bool debug, Dsv3Error *err);

#endif /* DSV3_GUARD_H */
