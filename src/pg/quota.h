/*
 * quota.h
 *	  What a role may use of the engine: dsv3.role_tokens_per_minute, _per_day, dsv3.role_max_requests.
 */
#ifndef DSV3_QUOTA_H
#define DSV3_QUOTA_H

#include "pg/compat.h"

#include "common/error.h"
#include "pg/shmem.h"

/* The role whose quota a request of this session counts against; InvalidOid: it has none, now. */
extern Oid dsv3_quota_account(uint32 kind);

/* May the account have one more request, for which `expected` tokens are likely? The lock is held. False: err is set; with
 * `spare` it means "later". */
extern bool dsv3_quota_admit(Oid account, uint32 expected, bool spare, Dsv3Error *err);

/* A request of the account has ended and has taken so many tokens. The lock is held exclusively. */
extern void dsv3_quota_charge(Oid account, uint32 tokens);

#endif /* DSV3_QUOTA_H */
