/*
 * audit_writer.h
 *	  The background worker that writes the audit log of one database.
 */
#ifndef DSV3_AUDIT_WRITER_H
#define DSV3_AUDIT_WRITER_H

#include "pg/compat.h"

#include "pg/audit_row.h"

/* In the supervisor: start the writers that are missing. True: look again soon. */
extern bool dsv3_audit_launch(void);

extern PGDLLEXPORT void dsv3_audit_writer_main(Datum arg);

/* The name of the schema that holds the extension in this database; NULL: it is not there. SPI is connected. */
extern char *dsv3_audit_schema(void);

/* An SPI tuple of dsv3_audit_log's row type, in the current memory context. */
extern void dsv3_audit_read_row(HeapTuple tuple, TupleDesc tupdesc, Dsv3AuditRow *row);

#endif /* DSV3_AUDIT_WRITER_H */
