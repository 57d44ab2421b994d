/*
 * audit_row.h
 *	  Rows of dsv3_audit_log: their columns, and the hash that chains each to the one before.
 */
#ifndef DSV3_AUDIT_ROW_H
#define DSV3_AUDIT_ROW_H

#include "pg/compat.h"

#include "access/tupdesc.h"
#include "pg/audit_ring.h"

/* In the order of the table. */
typedef enum Dsv3AuditColumn
{
	DSV3_AUDIT_SEQ,
	DSV3_AUDIT_LOGGED_AT,
	DSV3_AUDIT_REQUEST_ID,
	DSV3_AUDIT_TRACE_ID,
	DSV3_AUDIT_TRACEPARENT,
	DSV3_AUDIT_STARTED_AT,
	DSV3_AUDIT_DATABASE,
	DSV3_AUDIT_SESSION_ROLE,
	DSV3_AUDIT_ROLE,
	DSV3_AUDIT_ROLE_OID,
	DSV3_AUDIT_APPLICATION,
	DSV3_AUDIT_CLIENT,
	DSV3_AUDIT_PID,
	DSV3_AUDIT_QUERY_ID,
	DSV3_AUDIT_XID,
	DSV3_AUDIT_FUNCTION,
	DSV3_AUDIT_PROMPT_NAME,
	DSV3_AUDIT_PROMPT_VERSION,
	DSV3_AUDIT_MODEL,
	DSV3_AUDIT_MODEL_DIGEST,
	DSV3_AUDIT_ENGINE,
	DSV3_AUDIT_HASH_KIND,
	DSV3_AUDIT_INPUT_HASH,
	DSV3_AUDIT_PROMPT_HASH,
	DSV3_AUDIT_SCHEMA_HASH,
	DSV3_AUDIT_REQUEST_HASH,
	DSV3_AUDIT_PARAMS,
	DSV3_AUDIT_SEED,
	DSV3_AUDIT_PROMPT_TOKENS,
	DSV3_AUDIT_CACHED_TOKENS,
	DSV3_AUDIT_OUTPUT_TOKENS,
	DSV3_AUDIT_OUTPUT_HASH,
	DSV3_AUDIT_STATUS,
	DSV3_AUDIT_SQLSTATE,
	DSV3_AUDIT_FINISH_REASON,
	DSV3_AUDIT_QUEUE_MS,
	DSV3_AUDIT_PREFILL_MS,
	DSV3_AUDIT_DECODE_MS,
	DSV3_AUDIT_TOTAL_MS,
	DSV3_AUDIT_EXPERTS_DIGEST,
	DSV3_AUDIT_REQUEST,
	DSV3_AUDIT_INPUT,
	DSV3_AUDIT_OUTPUT,
	DSV3_AUDIT_PREV_HASH,
	DSV3_AUDIT_ROW_HASH,
	DSV3_AUDIT_N_COLUMNS,
} Dsv3AuditColumn;

/* A row under construction, or read. */
typedef struct Dsv3AuditRow
{
	Datum values[DSV3_AUDIT_N_COLUMNS];
	bool nulls[DSV3_AUDIT_N_COLUMNS];
} Dsv3AuditRow;

/* Where the chain is; logged_at is the time of the next rows too. */
typedef struct Dsv3AuditHead
{
	int64 seq; /* of the last row; 0: there is none yet */
	TimestampTz logged_at;
	uint8 hash[DSV3_HASH_BYTES];
} Dsv3AuditHead;

/* What a record says, in the current memory context: all but its place in the chain; of one that has not ended, what
 * is known at the start. */
extern void dsv3_audit_row_fill(const Dsv3AuditRecord *record, Dsv3AuditRow *row);

/* A row that was begun and has no end. */
extern void dsv3_audit_row_lose(Dsv3AuditRow *row);

/* Make it the row after head, which moves on. */
extern void dsv3_audit_row_chain(TupleDesc tupdesc, Dsv3AuditRow *row, Dsv3AuditHead *head);

/* The hash of everything in the row but its own hash. */
extern void dsv3_audit_row_hash(TupleDesc tupdesc, const Dsv3AuditRow *row, uint8 *hash);

/* Is that the digest of the engine's model? */
extern bool dsv3_audit_is_model(const char *digest);

/* 32 bytes of a bytea column, or false. */
extern bool dsv3_audit_row_bytes(const Dsv3AuditRow *row, Dsv3AuditColumn column, uint8 *hash);

#endif /* DSV3_AUDIT_ROW_H */
