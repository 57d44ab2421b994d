/*
 * audit.h
 *	  The audit log from the point of view of a call: begin, end, wait until the row is durable.
 */
#ifndef DSV3_AUDIT_H
#define DSV3_AUDIT_H

#include "pg/compat.h"

#include "lib/stringinfo.h"
#include "portability/instr_time.h"
#include "pg/audit_ring.h"
#include "pg/client.h"

/* What a call keeps. All zero: it is not recorded. */
typedef struct Dsv3Audit
{
	Dsv3AuditHandle handle;
	bool gate; /* dsv3.audit_sync was on */
	bool full; /* texts are kept */
	bool finished;
	uint32 kind;
	instr_time started;
	Dsv3AuditKey key;      /* of the hash of the answer */
	StringInfoData answer; /* in TopMemoryContext; data NULL: nothing came */
} Dsv3Audit;

/* The names of the statuses that are not Dsv3AuditStatus's. */
#define DSV3_AUDIT_LOST_NAME "lost"

/* Claim a record for the letter, unless requests of its kind or this session are not recorded. False: failure is set, and
 * the request must not be made. */
extern bool dsv3_audit_begin(Dsv3Audit *audit, const Dsv3Letter *letter, const pg_uuid_t *request_id,
							 Dsv3Failure *failure);

/* Must the request wait until its start is durable? */
static inline bool
dsv3_audit_holds(const Dsv3Audit *audit)
{
	return audit->handle.serial != 0 && audit->gate;
}

/* The request has a slot. */
static inline void
dsv3_audit_submitted(const Dsv3Audit *audit, const Dsv3Ticket *ticket)
{
	if (audit->handle.serial != 0)
		dsv3_audit_publish(&audit->handle, ticket);
}

/* Append to out what of these fields, in wire form, is the answer that is hashed. */
extern void dsv3_audit_answer_of(uint32 kind, const char *fields, Size len, StringInfo out);

/* Fields of the answer that have come. */
extern void dsv3_audit_take_fields(Dsv3Audit *audit, const char *fields, Size len);

/* The request has ended; err NULL: well. Only the first call counts. */
extern bool
dsv3_audit_end(Dsv3Audit *audit, const Dsv3Counts *counts, const Dsv3Error *err, Dsv3Failure *failure);

/* After dsv3_audit_end: may the answer be given? */
extern Dsv3AuditProgress dsv3_audit_wait(const Dsv3Audit *audit, Dsv3Failure *failure);

/* The call is over. Does not throw. */
extern void dsv3_audit_leave(Dsv3Audit *audit, const Dsv3Counts *counts);

/* The text of a request's body that is its input: see docs/audit.md. */
extern Dsv3Text dsv3_audit_input_of(const uint8 *body, Size len);

#endif /* DSV3_AUDIT_H */
