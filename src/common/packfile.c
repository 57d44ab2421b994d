/*
 * packfile.c
 *	  Reading, checking and laying out the container of a packed model; see packfile.h.
 */
#include "common/packfile.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC       "DSV3PACK"
#define HEADER_USED 104 /* bytes of page 0 that mean something */
#define HEADER_SHA  72  /* where its own digest stands */
#define MAX_SIZE    ((int64_t) 1 << 50)

static void
put(unsigned char *at, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		at[i] = (unsigned char) (value >> (8 * i));
}

static uint64_t
get(const unsigned char *at, int bytes)
{
	uint64_t value = 0;

	for (int i = bytes - 1; i >= 0; i--)
		value = value << 8 | at[i];
	return value;
}

bool
dsv3_pack_digest(unsigned char digest[DSV3_PACK_DIGEST], const void *data, size_t size)
{
	return EVP_Digest(data, size, digest, NULL, EVP_sha256(), NULL) == 1;
}

/* Is this number of dimensions, or of a place, one that an int64_t holds? */
static bool
fits(uint64_t value)
{
	return value <= (uint64_t) MAX_SIZE;
}

static bool
bad(Dsv3Error *err, const char *name, const char *reason)
{
	return dsv3_error(err, DSV3_ERR_BAD_FILE, "pack \"%s\" is damaged: %s", name, reason);
}

/* Page 0: is it a pack, of this version, whole, and where is its directory? */
static bool
read_header(const Dsv3Pack *pack, const char *name, int64_t *offset, int64_t *len, Dsv3Error *err)
{
	const unsigned char *page = pack->base;
	unsigned char digest[DSV3_PACK_DIGEST];

	if (pack->size < DSV3_PACK_PAGE || memcmp(page, MAGIC, 8) != 0)
	{
		dsv3_error(err, DSV3_ERR_BAD_FILE, "file \"%s\" is not a pack", name);
		return dsv3_error_hint(err, "A model is a directory as it was downloaded, or one file that "
									"\"dsv3 pack\" has made of it.");
	}
	if (get(page + 8, 4) != DSV3_PACK_VERSION)
	{
		dsv3_error(err, DSV3_ERR_UNSUPPORTED, "pack \"%s\" has version %u, only version %d can be read", name,
				   (unsigned) get(page + 8, 4), DSV3_PACK_VERSION);
		return dsv3_error_hint(err, "Pack the model again with this dsv3.");
	}
	if (!dsv3_pack_digest(digest, page, HEADER_SHA))
		return dsv3_error(err, DSV3_ERR_INTERNAL, "could not compute SHA-256");
	if (memcmp(digest, page + HEADER_SHA, sizeof(digest)) != 0)
		return bad(err, name, "its header does not match its checksum");
	for (int i = HEADER_USED; i < DSV3_PACK_PAGE; i++)
	{
		if (page[i] != 0)
			return bad(err, name, "the rest of its header is not zero");
	}
	if (get(page + 12, 4) != DSV3_PACK_PAGE || !fits(get(page + 24, 8)) || !fits(get(page + 32, 8)))
		return bad(err, name, "its header contradicts itself");
	if (get(page + 16, 8) != (uint64_t) pack->size)
		return dsv3_error(err, DSV3_ERR_BAD_FILE,
						  "pack \"%s\" has %lld bytes and should have %llu (it may be truncated)", name,
						  (long long) pack->size, (unsigned long long) get(page + 16, 8));
	*offset = (int64_t) get(page + 24, 8);
	*len = (int64_t) get(page + 32, 8);
	if (*offset < DSV3_PACK_PAGE || *offset % DSV3_PACK_PAGE != 0 || *len < 8 || *offset + *len != pack->size)
		return bad(err, name, "its directory is not at its end");
	if (!dsv3_pack_digest(digest, pack->base + *offset, (size_t) *len))
		return dsv3_error(err, DSV3_ERR_INTERNAL, "could not compute SHA-256");
	if (memcmp(digest, page + 40, sizeof(digest)) != 0)
		return bad(err, name, "its directory does not match its checksum");
	return true;
}

/* A name must be printable, so that it can stand in messages, and can contain no path. */
static bool
good_name(const char *name, size_t len)
{
	for (size_t i = 0; i < len; i++)
	{
		if (name[i] <= ' ' || name[i] > '~' || name[i] == '/')
			return false;
	}
	return name[len] == '\0' && len > 0;
}

/* One entry: numbers that fit, and the place where the one before ended. */
static bool
read_entry(Dsv3PackPiece *piece, const unsigned char *entry, int64_t expected, int64_t end)
{
	piece->type = entry[2];
	piece->n_dims = entry[3];
	if (piece->n_dims > DSV3_PACK_DIMS || get(entry + 4, 4) != 0)
		return false;
	for (int i = 0; i < DSV3_PACK_DIMS; i++)
	{
		uint64_t dim = get(entry + 8 + 8 * i, 8);

		if (!fits(dim) || (i >= piece->n_dims && dim != 0))
			return false;
		piece->dims[i] = (int64_t) dim;
	}
	if (!fits(get(entry + 32, 8)) || !fits(get(entry + 40, 8)))
		return false;
	piece->offset = (int64_t) get(entry + 32, 8);
	piece->bytes = (int64_t) get(entry + 40, 8);
	piece->digest = entry + 48;
	return piece->offset == expected && piece->offset + piece->bytes <= end;
}

static bool
read_directory(Dsv3Pack *pack, const char *name, int64_t offset, int64_t len, Dsv3Error *err)
{
	const unsigned char *directory = pack->base + offset;
	int64_t n = (int64_t) get(directory, 4);
	const char *names;
	int64_t names_len;
	int64_t expected = DSV3_PACK_PAGE;

	if (n > DSV3_PACK_MAX_PIECES || get(directory + 4, 4) != 0 || 8 + n * DSV3_PACK_ENTRY > len)
		return bad(err, name, "its directory does not hold its entries");
	pack->pieces = calloc(n > 0 ? (size_t) n : 1, sizeof(Dsv3PackPiece));
	if (pack->pieces == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading the directory of \"%s\"", name);
	names = (const char *) directory + 8 + n * DSV3_PACK_ENTRY;
	names_len = len - 8 - n * DSV3_PACK_ENTRY;
	for (int64_t i = 0; i < n; i++)
	{
		const unsigned char *entry = directory + 8 + i * DSV3_PACK_ENTRY;
		Dsv3PackPiece *piece = &pack->pieces[i];
		int64_t name_len = (int64_t) get(entry, 2);

		if (name_len > DSV3_PACK_MAX_NAME || name_len >= names_len || !good_name(names, (size_t) name_len))
			return bad(err, name, "a name in its directory is not one");
		piece->name = names;
		names += name_len + 1;
		names_len -= name_len + 1;
		if (!read_entry(piece, entry, expected, offset))
			return dsv3_error(err, DSV3_ERR_BAD_FILE,
							  "pack \"%s\" is damaged: the entry of \"%s\" is not possible", name,
							  piece->name);
		expected = dsv3_pack_align(piece->offset + piece->bytes);
		pack->n_pieces++;
	}
	if (names_len != 0 || expected != offset)
		return bad(err, name, "its directory does not end where it should");
	return true;
}

bool
dsv3_pack_parse(Dsv3Pack *pack, const char *name, const void *data, int64_t size, Dsv3Error *err)
{
	int64_t offset = 0;
	int64_t len = 0;

	memset(pack, 0, sizeof(*pack));
	pack->base = data;
	pack->size = size;
	if (!read_header(pack, name, &offset, &len, err) || !read_directory(pack, name, offset, len, err))
		return false;
	for (int i = 0; i < DSV3_PACK_DIGEST; i++)
		snprintf(pack->digest + 2 * i, 3, "%02x", pack->base[40 + i]);
	return true;
}

void
dsv3_pack_clear(Dsv3Pack *pack)
{
	free(pack->pieces);
	memset(pack, 0, sizeof(*pack));
}

bool
dsv3_pack_is(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool
dsv3_pack_open(Dsv3Pack *pack, const char *path, Dsv3Error *err)
{
	struct stat st;
	void *base = MAP_FAILED;
	/* Not blocking: opening a pipe somebody put there must not hang. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	memset(pack, 0, sizeof(*pack));
	if (fd < 0)
		return dsv3_error(err, errno == ENOENT || errno == ENOTDIR ? DSV3_ERR_NO_FILE : DSV3_ERR_FILE,
						  "could not open file \"%s\": %s", path, strerror(errno));
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
		dsv3_error(err, DSV3_ERR_FILE, "\"%s\" is not a regular file", path);
	else if (st.st_size < DSV3_PACK_PAGE || st.st_size > MAX_SIZE)
		dsv3_error(err, DSV3_ERR_BAD_FILE, "file \"%s\" is not a pack: it has %lld bytes", path,
				   (long long) st.st_size);
	else if ((base = mmap(NULL, (size_t) st.st_size, PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
		dsv3_error(err, DSV3_ERR_FILE, "could not map file \"%s\": %s", path, strerror(errno));
	close(fd);
	if (base == MAP_FAILED)
		return false;
	/* Opening reads both ends of the file; read-ahead would fetch parts that may never be used. */
	madvise(base, (size_t) st.st_size, MADV_RANDOM);
	if (dsv3_pack_parse(pack, path, base, st.st_size, err))
		return true;
	dsv3_pack_clear(pack);
	munmap(base, (size_t) st.st_size);
	return false;
}

void
dsv3_pack_close(Dsv3Pack *pack)
{
	if (pack->base)
		munmap((void *) pack->base, (size_t) pack->size);
	dsv3_pack_clear(pack);
}

/* Compare a piece with its digest. */
static bool
check_piece(const Dsv3Pack *pack, const char *path, const Dsv3PackPiece *piece, Dsv3Error *err)
{
	unsigned char digest[DSV3_PACK_DIGEST];

	if (!dsv3_pack_digest(digest, pack->base + piece->offset, (size_t) piece->bytes))
		return dsv3_error(err, DSV3_ERR_INTERNAL, "could not compute SHA-256");
	if (memcmp(digest, piece->digest, sizeof(digest)) == 0)
		return true;
	dsv3_error(err, DSV3_ERR_BAD_FILE, "pack \"%s\" is damaged: \"%s\" does not match its checksum", path,
			   piece->name);
	return dsv3_error_hint(err, "Copy the file again, or pack the model again.");
}

char *
dsv3_pack_read_file(const char *path, const char *name, int64_t max_bytes, size_t *len, Dsv3Error *err)
{
	Dsv3Pack pack;
	const Dsv3PackPiece *piece = NULL;
	char *text = NULL;

	if (!dsv3_pack_open(&pack, path, err))
		return NULL;
	for (int i = 0; i < pack.n_pieces && piece == NULL; i++)
	{
		if (pack.pieces[i].type == DSV3_PACK_FILE && strcmp(pack.pieces[i].name, name) == 0)
			piece = &pack.pieces[i];
	}
	if (piece == NULL)
		dsv3_error(err, DSV3_ERR_NO_FILE, "pack \"%s\" holds no file \"%s\"", path, name);
	else if (piece->bytes > max_bytes)
		dsv3_error(err, DSV3_ERR_TOO_LARGE,
				   "file \"%s\" in pack \"%s\" is too large: %lld bytes, at most %lld are read", name, path,
				   (long long) piece->bytes, (long long) max_bytes);
	else if (check_piece(&pack, path, piece, err))
	{
		text = malloc((size_t) piece->bytes + 1);
		if (text == NULL)
			dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading file \"%s\"", name);
		else
		{
			memcpy(text, pack.base + piece->offset, (size_t) piece->bytes);
			text[piece->bytes] = '\0';
			*len = (size_t) piece->bytes;
		}
	}
	dsv3_pack_close(&pack);
	return text;
}

bool
dsv3_pack_verify(const Dsv3Pack *pack, const char *path, Dsv3Error *err)
{
	for (int i = 0; i < pack->n_pieces; i++)
	{
		const Dsv3PackPiece *piece = &pack->pieces[i];
		int64_t end = piece->offset + piece->bytes;

		/* Read once, from end to end: fetched ahead and given back. */
		madvise((void *) (pack->base + piece->offset), (size_t) piece->bytes, MADV_WILLNEED);
		if (!check_piece(pack, path, piece, err))
			return false;
		for (int64_t at = end; at < dsv3_pack_align(end); at++)
		{
			if (pack->base[at] != 0)
				return dsv3_error(err, DSV3_ERR_BAD_FILE,
								  "pack \"%s\" is damaged: what follows \"%s\" is not zero", path,
								  piece->name);
		}
		madvise((void *) (pack->base + piece->offset), (size_t) piece->bytes, MADV_DONTNEED);
	}
	return true;
}

bool
dsv3_pack_header(unsigned char page[DSV3_PACK_PAGE], int64_t directory_offset, const unsigned char *directory,
				 size_t directory_len, Dsv3Error *err)
{
	memset(page, 0, DSV3_PACK_PAGE);
	memcpy(page, MAGIC, 8);
	put(page + 8, DSV3_PACK_VERSION, 4);
	put(page + 12, DSV3_PACK_PAGE, 4);
	put(page + 16, (uint64_t) directory_offset + directory_len, 8);
	put(page + 24, (uint64_t) directory_offset, 8);
	put(page + 32, directory_len, 8);
	if (!dsv3_pack_digest(page + 40, directory, directory_len) ||
		!dsv3_pack_digest(page + HEADER_SHA, page, HEADER_SHA))
		return dsv3_error(err, DSV3_ERR_INTERNAL, "could not compute SHA-256");
	return true;
}

unsigned char *
dsv3_pack_directory(const Dsv3PackPiece *pieces, int n_pieces, size_t *len, Dsv3Error *err)
{
	unsigned char *directory;
	unsigned char *entry;
	unsigned char *names;

	*len = 8 + (size_t) n_pieces * DSV3_PACK_ENTRY;
	for (int i = 0; i < n_pieces; i++)
	{
		size_t name_len = strlen(pieces[i].name);

		if (name_len > DSV3_PACK_MAX_NAME || !good_name(pieces[i].name, name_len))
		{
			dsv3_error(err, DSV3_ERR_UNSUPPORTED, "\"%.100s\" cannot be a name in a pack", pieces[i].name);
			return NULL;
		}
		*len += name_len + 1;
	}
	directory = calloc(1, *len);
	if (directory == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory writing the directory of a pack");
		return NULL;
	}
	put(directory, (uint64_t) n_pieces, 4);
	entry = directory + 8;
	names = entry + (size_t) n_pieces * DSV3_PACK_ENTRY;
	for (int i = 0; i < n_pieces; i++, entry += DSV3_PACK_ENTRY)
	{
		const Dsv3PackPiece *piece = &pieces[i];
		size_t name_len = strlen(piece->name);

		put(entry, name_len, 2);
		put(entry + 2, (uint64_t) piece->type, 1);
		put(entry + 3, (uint64_t) piece->n_dims, 1);
		for (int d = 0; d < DSV3_PACK_DIMS; d++)
			put(entry + 8 + 8 * d, (uint64_t) piece->dims[d], 8);
		put(entry + 32, (uint64_t) piece->offset, 8);
		put(entry + 40, (uint64_t) piece->bytes, 8);
		memcpy(entry + 48, piece->digest, DSV3_PACK_DIGEST);
		memcpy(names, piece->name, name_len + 1);
		names += name_len + 1;
	}
	return directory;
}
