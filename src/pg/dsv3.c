/*
 * dsv3.c
 *	  Loading of the extension library.
 */
#include "postgres.h"

#include "fmgr.h"

PG_MODULE_MAGIC;
