/*
 * prefix_name.h
 *	  Names of cache blocks: a keyed hash of everything their rows depend on.
 *
 * The rows of a block are a function of the model as it computes (its files, the weight mode, the kernels) and of the token
 * ids up to the block's end. The name of a block is HMAC-SHA-256, under a key made of a secret and the model's identity, of the
 * name of the block before it and its own ids; the first block's takes the scope in the place of a name before. So equal names
 * mean equal rows, and requests of different scopes never meet: nobody learns from the time an answer takes what somebody else
 * asked. Without the secret nobody can tell from a name what was in a block, or make one for ids of his choice.
 */
#ifndef DSV3_PREFIX_NAME_H
#define DSV3_PREFIX_NAME_H

#include <stddef.h>
#include <stdint.h>

#include <openssl/evp.h>

#include "common/error.h"

#define DSV3_NAME_BYTES   32
#define DSV3_SECRET_BYTES 32

typedef struct Dsv3BlockName
{
	uint8_t bytes[DSV3_NAME_BYTES];
} Dsv3BlockName;

/* HMAC-SHA-256 with a key: for EVP_MAC_init without another, update, final; any number of times. NULL if the library fails. */
extern EVP_MAC_CTX *dsv3_hmac_open(const uint8_t *key, size_t key_len);

typedef struct Dsv3Namer Dsv3Namer;

/* identity: a text that differs when the rows of equal ids may differ. One thread at a time uses a namer. */
extern Dsv3Namer *
dsv3_namer_open(const uint8_t secret[DSV3_SECRET_BYTES], const char *identity, Dsv3Error *err);
extern void dsv3_namer_close(Dsv3Namer *namer);

/* The name of the block with n_ids ids behind the block `before`; NULL: it is the first one of the scope. False only if the
 * library fails. */
extern bool dsv3_namer_name(Dsv3Namer *namer, const Dsv3BlockName *before, const char *scope,
							size_t scope_len, const int32_t *ids, int n_ids, Dsv3BlockName *name);

#endif /* DSV3_PREFIX_NAME_H */
