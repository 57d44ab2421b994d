/*
 * rowtype.h
 *	  A row type as a JSON Schema.
 */
#ifndef DSV3_ROWTYPE_H
#define DSV3_ROWTYPE_H

#include "pg/compat.h"

#include "lib/stringinfo.h"

/* Append the schema of a composite type, in the database encoding: an object whose keys are the columns, in their order. Raises 0A000
 * for types that have no schema, naming the column. */
extern void dsv3_rowtype_schema(StringInfo out, Oid type, int32 typmod);

#endif /* DSV3_ROWTYPE_H */
