/*
 * kv_disk_file.c
 *	  The files of cached blocks; see kv_disk_file.h.
 */
#include "engine/kv_disk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <openssl/rand.h>

#define PAGE       4096
#define MAX_PLACES (1 << 24)

static const char page_mark[] = "dsv3 cached blocks 1";
static const uint8_t record_mark[8] = "dsv3blk";

typedef struct RecordHeader
{
	uint8_t mark[8];
	uint64_t serial;
	Dsv3BlockName name;
	uint8_t rows_sum[DSV3_NAME_BYTES];
	uint8_t header_sum[DSV3_NAME_BYTES]; /* of everything before */
	uint8_t unused[16];
} RecordHeader;

_Static_assert(sizeof(RecordHeader) == 128, "a header is as long as the format says");

/* -- checksums -- */

/* HMAC of two pieces. */
static bool
checksum(Dsv3DiskFile *file, const void *a, size_t a_len, const void *b, size_t b_len,
		 uint8_t out[DSV3_NAME_BYTES])
{
	size_t len = 0;

	return EVP_MAC_init(file->hmac, NULL, 0, NULL) == 1 && EVP_MAC_update(file->hmac, a, a_len) == 1 &&
		   EVP_MAC_update(file->hmac, b, b_len) == 1 &&
		   EVP_MAC_final(file->hmac, out, &len, DSV3_NAME_BYTES) == 1 && len == DSV3_NAME_BYTES;
}

static bool
sum_rows(Dsv3DiskFile *file, const Dsv3BlockName *name, const void *rows, uint8_t out[DSV3_NAME_BYTES])
{
	return checksum(file, name->bytes, sizeof(name->bytes), rows, file->block_bytes, out);
}

static bool
sum_header(Dsv3DiskFile *file, const RecordHeader *header, uint8_t out[DSV3_NAME_BYTES])
{
	return checksum(file, header, offsetof(RecordHeader, header_sum), NULL, 0, out);
}

/* -- whole reads and writes -- */

static bool
read_at(int fd, void *to, size_t len, uint64_t at)
{
	for (size_t done = 0; done < len;)
	{
		ssize_t n = pread(fd, (char *) to + done, len - done, (off_t) (at + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		done += (size_t) n;
	}
	return true;
}

static bool
write_at(int fd, const void *from, size_t len, uint64_t at)
{
	for (size_t done = 0; done < len;)
	{
		ssize_t n = pwrite(fd, (const char *) from + done, len - done, (off_t) (at + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		done += (size_t) n;
	}
	return true;
}

/* -- opening -- */

/* Is what fd refers to ours, and closed to others? */
static bool
check_private(int fd, const char *path, bool folder, Dsv3Error *err)
{
	struct stat st;

	if (fstat(fd, &st) != 0)
		return dsv3_error(err, DSV3_ERR_FILE, "could not look at \"%s\": %s", path, strerror(errno));
	if (folder ? !S_ISDIR(st.st_mode) : !S_ISREG(st.st_mode))
		return dsv3_error(err, DSV3_ERR_FILE, "\"%s\" is not a %s", path, folder ? "directory" : "file");
	if (st.st_uid == geteuid() && (st.st_mode & 077) == 0)
		return true;
	dsv3_error(err, DSV3_ERR_FILE, "\"%s\" belongs to another account or is open to others", path);
	return dsv3_error_hint(
		err, "Cached prompts can be told from it: make the server's account its owner and %s its mode.",
		folder ? "0700" : "0600");
}

static int
open_folder(const char *folder, Dsv3Error *err)
{
	int fd;

	if (folder[0] != '/')
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "the cache directory \"%s\" is not an absolute path",
				   folder);
		return -1;
	}
	if (mkdir(folder, 0700) != 0 && errno != EEXIST)
	{
		dsv3_error(err, errno == ENOENT ? DSV3_ERR_NO_FILE : DSV3_ERR_FILE,
				   "could not make the cache directory \"%s\": %s", folder, strerror(errno));
		return -1;
	}
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		dsv3_error(err, DSV3_ERR_FILE, "could not open the cache directory \"%s\": %s", folder,
				   strerror(errno));
	else if (!check_private(fd, folder, true, err))
	{
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Open a file of the folder, read and write, made if it is not there. */
static int
open_file(int folder_fd, const char *folder, const char *name, Dsv3Error *err)
{
	char path[4096];
	int fd = openat(folder_fd, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	if (fd < 0)
		dsv3_error(err, DSV3_ERR_FILE, "could not open \"%s\": %s", path, strerror(errno));
	else if (!check_private(fd, path, false, err))
	{
		close(fd);
		fd = -1;
	}
	return fd;
}

/* The secret of the folder; a new one where there is none, or half of one. The caller holds the lock. */
static bool
take_secret(Dsv3DiskFile *file, int folder_fd, const char *folder, Dsv3Error *err)
{
	int fd = open_file(folder_fd, folder, "key", err);
	bool ok = fd >= 0;

	if (ok && !read_at(fd, file->secret, sizeof(file->secret), 0))
	{
		if (RAND_bytes(file->secret, sizeof(file->secret)) != 1)
			ok = dsv3_error(err, DSV3_ERR_INTERNAL, "could not generate random values");
		else if (!write_at(fd, file->secret, sizeof(file->secret), 0) || fsync(fd) != 0)
			ok = dsv3_error(err, DSV3_ERR_FILE, "could not write \"%s/key\": %s", folder, strerror(errno));
	}
	if (fd >= 0)
		close(fd);
	return ok;
}

static bool
write_page(Dsv3DiskFile *file)
{
	uint8_t page[PAGE] = {0};

	memcpy(page, page_mark, sizeof(page_mark));
	memcpy(page + 64, file->page_sum, sizeof(file->page_sum));
	return write_at(file->fd, page, sizeof(page), 0);
}

bool
dsv3_disk_file_empty(Dsv3DiskFile *file)
{
	return ftruncate(file->fd, 0) == 0 && write_page(file);
}

/* The SHA-256 of the running program, which is what computed the rows: another build may round otherwise. */
static bool
program_digest(uint8_t digest[DSV3_NAME_BYTES])
{
	EVP_MD_CTX *sha = EVP_MD_CTX_new();
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	char piece[65536];
	ssize_t n = -1;
	bool ok = sha && fd >= 0 && EVP_DigestInit_ex(sha, EVP_sha256(), NULL) == 1;

	while (ok && (n = read(fd, piece, sizeof(piece))) > 0)
		ok = EVP_DigestUpdate(sha, piece, (size_t) n) == 1;
	ok = ok && n == 0 && EVP_DigestFinal_ex(sha, digest, NULL) == 1;
	if (fd >= 0)
		close(fd);
	EVP_MD_CTX_free(sha);
	return ok;
}

/* Does the first page say that the file is this model's and this program's? Otherwise it is emptied. A file longer than the limit is
 * cut. */
static bool
check_page(Dsv3DiskFile *file, const char *folder, const char *identity, Dsv3Error *err)
{
	uint8_t page[PAGE];
	uint8_t about[DSV3_NAME_BYTES + sizeof(uint64_t)];
	uint64_t block_bytes = file->block_bytes;
	struct stat st;
	uint64_t end = PAGE + (uint64_t) file->places * file->stride;

	memcpy(about + DSV3_NAME_BYTES, &block_bytes, sizeof(block_bytes));
	file->hmac = dsv3_hmac_open(file->secret, sizeof(file->secret));
	if (file->hmac == NULL || !program_digest(about) ||
		!checksum(file, about, sizeof(about), identity, strlen(identity), file->page_sum))
		return dsv3_error(err, DSV3_ERR_INTERNAL, "could not set up checksums");
	if ((!read_at(file->fd, page, sizeof(page), 0) || memcmp(page, page_mark, sizeof(page_mark)) != 0 ||
		 CRYPTO_memcmp(page + 64, file->page_sum, sizeof(file->page_sum)) != 0) &&
		!dsv3_disk_file_empty(file))
		return dsv3_error(err, DSV3_ERR_FILE, "could not write \"%s/blocks\": %s", folder, strerror(errno));
	if (fstat(file->fd, &st) == 0 && (uint64_t) st.st_size > end && ftruncate(file->fd, (off_t) end) != 0)
		return dsv3_error(err, DSV3_ERR_FILE, "could not shorten \"%s/blocks\": %s", folder, strerror(errno));
	return true;
}

bool
dsv3_disk_file_open(Dsv3DiskFile *file, const char *folder, uint64_t max_bytes, size_t block_bytes,
					const char *identity, Dsv3Error *err)
{
	int folder_fd;
	uint64_t places;
	bool ok = false;

	memset(file, 0, sizeof(*file));
	file->fd = -1;
	file->block_bytes = block_bytes;
	file->stride = (sizeof(RecordHeader) + block_bytes + PAGE - 1) / PAGE * PAGE;
	places = max_bytes > PAGE ? (max_bytes - PAGE) / file->stride : 0;
	file->places = places > MAX_PLACES ? MAX_PLACES : (int) places;
	if (places == 0)
	{
		dsv3_error(err, DSV3_ERR_LIMIT_EXCEEDED,
				   "%" PRIu64 " bytes on disk have no room for one block of %zu", max_bytes, block_bytes);
		return dsv3_error_hint(err, "Raise dsv3.kv_cache_disk_size.");
	}
	folder_fd = open_folder(folder, err);
	if (folder_fd < 0)
		return false;
	file->fd = open_file(folder_fd, folder, "blocks", err);
	if (file->fd >= 0 && flock(file->fd, LOCK_EX | LOCK_NB) != 0)
	{
		dsv3_error(err, DSV3_ERR_NOT_IN_STATE, "the cache directory \"%s\" is in use by another engine",
				   folder);
		dsv3_error_hint(err, "Give each server a dsv3.kv_cache_dir of its own.");
	}
	else
		ok = file->fd >= 0 && take_secret(file, folder_fd, folder, err) &&
			 check_page(file, folder, identity, err);
	close(folder_fd);
	if (!ok)
		dsv3_disk_file_close(file);
	return ok;
}

void
dsv3_disk_file_close(Dsv3DiskFile *file)
{
	if (file->fd >= 0)
		close(file->fd);
	file->fd = -1;
	EVP_MAC_CTX_free(file->hmac);
	file->hmac = NULL;
	OPENSSL_cleanse(file->secret, sizeof(file->secret));
}

/* -- records -- */

static uint64_t
place_at(const Dsv3DiskFile *file, int place)
{
	return PAGE + (uint64_t) place * file->stride;
}

static bool
read_header(Dsv3DiskFile *file, int place, RecordHeader *header)
{
	uint8_t sum[DSV3_NAME_BYTES];

	return read_at(file->fd, header, sizeof(*header), place_at(file, place)) &&
		   memcmp(header->mark, record_mark, sizeof(record_mark)) == 0 && sum_header(file, header, sum) &&
		   CRYPTO_memcmp(sum, header->header_sum, sizeof(sum)) == 0;
}

bool
dsv3_disk_file_peek(Dsv3DiskFile *file, int place, Dsv3BlockName *name, uint64_t *serial)
{
	RecordHeader header;

	if (!read_header(file, place, &header))
		return false;
	*name = header.name;
	*serial = header.serial;
	return true;
}

bool
dsv3_disk_file_read(Dsv3DiskFile *file, int place, const Dsv3BlockName *name, void *rows)
{
	RecordHeader header;
	uint8_t sum[DSV3_NAME_BYTES];

	return read_header(file, place, &header) &&
		   memcmp(header.name.bytes, name->bytes, sizeof(name->bytes)) == 0 &&
		   read_at(file->fd, rows, file->block_bytes, place_at(file, place) + sizeof(header)) &&
		   sum_rows(file, name, rows, sum) && CRYPTO_memcmp(sum, header.rows_sum, sizeof(sum)) == 0;
}

bool
dsv3_disk_file_write(Dsv3DiskFile *file, int place, const Dsv3BlockName *name, uint64_t serial,
					 const void *rows)
{
	RecordHeader header = {.serial = serial, .name = *name};

	memcpy(header.mark, record_mark, sizeof(record_mark));
	errno = EINVAL;
	return sum_rows(file, name, rows, header.rows_sum) && sum_header(file, &header, header.header_sum) &&
		   write_at(file->fd, rows, file->block_bytes, place_at(file, place) + sizeof(header)) &&
		   write_at(file->fd, &header, sizeof(header), place_at(file, place));
}
