/*
 * prefix_name.c
 *	  HMAC-SHA-256 over ids; see prefix_name.h.
 *
 * A context is made and keyed at opening, before the sandbox closes: looking for the algorithm opens files. After that it is only
 * started again with the same key.
 */
#include "engine/prefix_name.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/params.h>

struct Dsv3Namer
{
	EVP_MAC_CTX *hmac;
};

EVP_MAC_CTX *
dsv3_hmac_open(const uint8_t *key, size_t key_len)
{
	EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
	EVP_MAC_CTX *hmac = mac ? EVP_MAC_CTX_new(mac) : NULL;
	char digest[] = "SHA256";
	OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
						   OSSL_PARAM_construct_end()};

	EVP_MAC_free(mac);
	if (hmac && EVP_MAC_init(hmac, key, key_len, params) == 1)
		return hmac;
	EVP_MAC_CTX_free(hmac);
	return NULL;
}

static bool
finish(EVP_MAC_CTX *hmac, uint8_t out[DSV3_NAME_BYTES])
{
	size_t len = 0;

	return EVP_MAC_final(hmac, out, &len, DSV3_NAME_BYTES) == 1 && len == DSV3_NAME_BYTES;
}

Dsv3Namer *
dsv3_namer_open(const uint8_t secret[DSV3_SECRET_BYTES], const char *identity, Dsv3Error *err)
{
	Dsv3Namer *namer = calloc(1, sizeof(*namer));
	EVP_MAC_CTX *outer = namer ? dsv3_hmac_open(secret, DSV3_SECRET_BYTES) : NULL;
	uint8_t key[DSV3_NAME_BYTES];

	if (outer && EVP_MAC_update(outer, (const uint8_t *) identity, strlen(identity)) == 1 &&
		finish(outer, key))
		namer->hmac = dsv3_hmac_open(key, sizeof(key));
	OPENSSL_cleanse(key, sizeof(key));
	EVP_MAC_CTX_free(outer);
	if (namer && namer->hmac)
		return namer;
	dsv3_namer_close(namer);
	dsv3_error(err, DSV3_ERR_INTERNAL, "could not set up the names of cache blocks");
	return NULL;
}

void
dsv3_namer_close(Dsv3Namer *namer)
{
	if (namer == NULL)
		return;
	EVP_MAC_CTX_free(namer->hmac);
	free(namer);
}

static void
put_u32(uint8_t *out, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		out[i] = (uint8_t) (value >> (8 * i));
}

bool
dsv3_namer_name(Dsv3Namer *namer, const Dsv3BlockName *before, const char *scope, size_t scope_len,
				const int32_t *ids, int n_ids, Dsv3BlockName *name)
{
	uint8_t head[5] = {before == NULL};
	bool ok;

	/* A tag and a length, so that no scope can be taken for a name or run into the ids. */
	put_u32(head + 1, before ? DSV3_NAME_BYTES : (uint32_t) scope_len);
	ok = EVP_MAC_init(namer->hmac, NULL, 0, NULL) == 1 &&
		 EVP_MAC_update(namer->hmac, head, sizeof(head)) == 1 &&
		 EVP_MAC_update(namer->hmac, before ? before->bytes : (const uint8_t *) scope,
						before ? DSV3_NAME_BYTES : scope_len) == 1;
	for (int i = 0; ok && i < n_ids; i++)
	{
		uint8_t id[4];

		put_u32(id, (uint32_t) ids[i]);
		ok = EVP_MAC_update(namer->hmac, id, sizeof(id)) == 1;
	}
	return ok && finish(namer->hmac, name->bytes);
}
