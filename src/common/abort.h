/*
 * abort.h
 *	  Giving up long work when a flag says so: the flag belongs to whoever asked, and may be set by any thread.
 */
#ifndef DSV3_ABORT_H
#define DSV3_ABORT_H

#include <stdatomic.h>

#include "common/error.h"

/* Is the flag (may be NULL) set? Then *err is 57014: canceling WHAT on request. */
static inline bool
dsv3_aborted(const atomic_bool *flag, const char *what, Dsv3Error *err)
{
	if (!flag || !atomic_load_explicit(flag, memory_order_relaxed))
		return false;
	dsv3_error(err, DSV3_ERR_CANCELLED, "canceling %s on request", what);
	return true;
}

#endif /* DSV3_ABORT_H */
