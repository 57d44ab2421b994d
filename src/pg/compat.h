/*
 * compat.h
 *	  Every difference between PostgreSQL 14 and 18 that this library meets, in one place. Other files call the names
 *	  defined here and hold no version test.
 */
#ifndef DSV3_COMPAT_H
#define DSV3_COMPAT_H

#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 140000 || PG_VERSION_NUM >= 190000
#error "dsv3 supports PostgreSQL 14 to 18"
#endif

#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

#if PG_VERSION_NUM >= 180000
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#include "storage/waiteventset.h"
#define DSV3_MODULE_MAGIC(name_, version_) PG_MODULE_MAGIC_EXT(.name = name_, .version = version_)
#else
#define DSV3_MODULE_MAGIC(name_, version_) PG_MODULE_MAGIC
#define pg_noreturn                        _Noreturn
#include "commands/explain.h"
#endif

/* The number of this process's PGPROC: what may be kept in shared memory in place of a pointer. */
#if PG_VERSION_NUM >= 170000
#define DSV3_MY_PROC_NUMBER ((int) MyProcNumber)
#else
#define DSV3_MY_PROC_NUMBER (MyProc->pgprocno)
#endif

static inline Latch *
dsv3_latch_of(int proc_number)
{
	return &ProcGlobal->allProcs[proc_number].procLatch;
}

/* A wait event set that lives until it is freed, whatever the memory context or resource owner. */
static inline WaitEventSet *
dsv3_create_wait_event_set(int nevents)
{
#if PG_VERSION_NUM >= 170000
	return CreateWaitEventSet(NULL, nevents);
#else
	return CreateWaitEventSet(TopMemoryContext, nevents);
#endif
}

/* Wait events have names of their own from 17 on; before, all of them show as "Extension". */
#if PG_VERSION_NUM >= 170000
#define DSV3_WAIT_EVENT(cache, name) ((cache) != 0 ? (cache) : ((cache) = WaitEventExtensionNew(name)))
#else
#define DSV3_WAIT_EVENT(cache, name) ((void) (cache), (uint32) PG_WAIT_EXTENSION)
#endif

/* libpq/libpq.h needs the headers of every library the server was configured with (GSSAPI), for this one function. */
extern bool pq_check_connection(void);

/* Unknown settings with our prefix are reported; from 15 on they are also refused. */
static inline void
dsv3_reserve_guc_prefix(const char *prefix)
{
#if PG_VERSION_NUM >= 150000
	MarkGUCPrefixReserved(prefix);
#else
	EmitWarningsOnPlaceholders(prefix);
#endif
}

/* fmgroids.h spells out the arguments of functions that have namesakes, as random() does from 17 on. */
#if PG_VERSION_NUM >= 170000
#define F_RANDOM F_RANDOM_
#endif

/* Until 14 there was no condition on the running value of a window function. */
#if PG_VERSION_NUM >= 150000
#define DSV3_RUN_CONDITION(window) ((window)->runCondition)
#else
#define DSV3_RUN_CONDITION(window) NIL
#endif

/* ExecutorRun lost its last argument in 18. */
#if PG_VERSION_NUM >= 180000
#define DSV3_EXECUTE_ONCE_PARAM
#define DSV3_EXECUTE_ONCE
#else
#define DSV3_EXECUTE_ONCE_PARAM , bool execute_once
#define DSV3_EXECUTE_ONCE       , execute_once
#endif

/* May the user execute the function? */
#if PG_VERSION_NUM >= 160000
#define DSV3_FUNCTION_ACLCHECK(function, role)                                                               \
	object_aclcheck(ProcedureRelationId, function, role, ACL_EXECUTE)
#else
#define DSV3_FUNCTION_ACLCHECK(function, role) pg_proc_aclcheck(function, role, ACL_EXECUTE)
#endif

/* Does the user own the database? */
#if PG_VERSION_NUM >= 160000
#define DSV3_OWNS_DATABASE(database, role) object_ownercheck(DatabaseRelationId, database, role)
#else
#define DSV3_OWNS_DATABASE(database, role) pg_database_ownercheck(database, role)
#endif

/* Asking for shared memory: by hook from 15 on, directly while the library is preloaded before. */
#if PG_VERSION_NUM >= 150000
#define DSV3_HAVE_SHMEM_REQUEST_HOOK 1
#endif

#endif /* DSV3_COMPAT_H */
