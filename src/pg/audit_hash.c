/*
 * audit_hash.c
 *	  The hashes of the audit log.
 *
 * The key file is read each time: it is small, and a new key then counts from the next request on. It must belong to
 * the server alone, and one newline at its end is no part of the key, so that a line of hexadecimal digits is a good one.
 */
#include "postgres.h"

#include "pg/compat.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pg/audit_hash.h"
#include "pg/guc.h"

static bool
key_hint(Dsv3Error *err)
{
	return dsv3_error_hint(err,
						   "It names a file of %d to %d bytes that only the server's account can read; "
						   "\"openssl rand -hex 32\" makes one.",
						   DSV3_AUDIT_KEY_MIN, DSV3_AUDIT_KEY_MAX);
}

static bool
key_error(Dsv3Error *err, const char *what)
{
	dsv3_error(err, DSV3_ERR_FILE, "dsv3.audit_key_file cannot be used: %s", what);
	return key_hint(err);
}

bool
dsv3_audit_read_key(Dsv3AuditKey *key, Dsv3Error *err)
{
	uint8 bytes[DSV3_AUDIT_KEY_MAX + 2];
	struct stat info;
	ssize_t len;
	int fd;

	key->len = 0;
	if (dsv3_guc_audit_key_file[0] == '\0')
	{
		dsv3_error(err, DSV3_ERR_FILE, "dsv3.audit_key_file is not set");
		return key_hint(err);
	}
	/* Without waiting: a FIFO that nobody writes would hold the backend where no cancel reaches it. */
	fd = open(dsv3_guc_audit_key_file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return key_error(err, strerror(errno));
	if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
	{
		close(fd);
		return key_error(err, "it is not a file");
	}
	len = read(fd, bytes, sizeof(bytes));
	close(fd);
	if ((info.st_mode & 077) != 0)
		return key_error(err, "others have rights on the file");
	if (len > 0 && bytes[len - 1] == '\n')
		len--;
	if (len < DSV3_AUDIT_KEY_MIN || len > DSV3_AUDIT_KEY_MAX)
		return key_error(err, "the key is too short or too long");
	key->len = (int) len;
	memcpy(key->bytes, bytes, (Size) len);
	return true;
}

void
dsv3_audit_hash(const Dsv3AuditKey *key, const void *data, Size len, uint8 *hash)
{
	unsigned int n = DSV3_HASH_BYTES;
	bool done;

	if (key && key->len > 0)
		done = HMAC(EVP_sha256(), key->bytes, key->len, data, len, hash, &n) != NULL;
	else
		done = EVP_Digest(data, len, hash, &n, EVP_sha256(), NULL) == 1;
	if (!done || n != DSV3_HASH_BYTES)
		memset(hash, 0, DSV3_HASH_BYTES); /* only for want of memory */
}
