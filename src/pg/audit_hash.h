/*
 * audit_hash.h
 *	  The hashes of the audit log: SHA-256, or HMAC-SHA-256 with the key in dsv3.audit_key_file.
 */
#ifndef DSV3_AUDIT_HASH_H
#define DSV3_AUDIT_HASH_H

#include "pg/compat.h"

#include "common/error.h"

#define DSV3_HASH_BYTES    32
#define DSV3_AUDIT_KEY_MIN 16
#define DSV3_AUDIT_KEY_MAX 256

typedef struct Dsv3AuditKey
{
	int len; /* 0: none */
	uint8 bytes[DSV3_AUDIT_KEY_MAX];
} Dsv3AuditKey;

/* Read dsv3.audit_key_file. False: err says what is wrong with it. */
extern bool dsv3_audit_read_key(Dsv3AuditKey *key, Dsv3Error *err);

/* DSV3_HASH_BYTES of data; key NULL or empty: SHA-256. Neither allocates in a memory context nor throws. */
extern void dsv3_audit_hash(const Dsv3AuditKey *key, const void *data, Size len, uint8 *hash);

#endif /* DSV3_AUDIT_HASH_H */
