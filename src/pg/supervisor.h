/*
 * supervisor.h
 *	  The background worker that owns the engine process.
 */
#ifndef DSV3_SUPERVISOR_H
#define DSV3_SUPERVISOR_H

#include "pg/compat.h"

/* In the postmaster, while the library is preloaded. */
extern void dsv3_supervisor_register(void);

extern PGDLLEXPORT void dsv3_supervisor_main(Datum arg);

#endif /* DSV3_SUPERVISOR_H */
