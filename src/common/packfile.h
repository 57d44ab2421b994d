/*
 * packfile.h
 *	  The container of a packed model: one file with named pieces, mapped read-only.
 *
 * All numbers are little-endian. A page is 4096 bytes.
 *
 *	page 0		magic "DSV3PACK", version (u32), page size (u32), size of the file, place and size of the directory
 *				(u64 each), SHA-256 of the directory, SHA-256 of all these; the rest is zero
 *	pieces		each at the next page boundary behind the one before, in the order of the directory; what is left of a page is zero
 *	directory	at the next page boundary, to the end of the file: number of pieces (u32), zero (u32), the entries of
 *				DSV3_PACK_ENTRY bytes, and the names, each with a terminating zero, in the same order
 *	entry		length of the name (u16), type (u8), number of dimensions (u8), zero (u32), dimensions (3 x i64), place,
 *				size (u64 each), SHA-256 of the piece
 *
 * There is one way to write down given pieces. The directory names the content of every piece, so its SHA-256 names the
 * whole file; it is the digest of the model.
 *
 * A pack is hostile until dsv3_pack_open has checked the header, the directory and the place of every piece: after that a
 * piece's bytes can be read without another check. What a type and dimensions mean for the size is not known here (model/pack.c
 * checks it). The bytes of small files are compared with their digest when they are read; those of tensors only by
 * dsv3_pack_verify, since that reads the whole file.
 *
 * The struct owns the mapping; it does not change after opening. The file must not shrink while it is mapped.
 */
#ifndef DSV3_PACKFILE_H
#define DSV3_PACKFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

#define DSV3_PACK_PAGE       4096
#define DSV3_PACK_VERSION    1
#define DSV3_PACK_ENTRY      80
#define DSV3_PACK_DIMS       3
#define DSV3_PACK_DIGEST     32
#define DSV3_PACK_MAX_PIECES (1 << 22)
#define DSV3_PACK_MAX_NAME   255

/* What a piece is. The numbers stand in files and never change their meaning. */
typedef enum Dsv3PackType
{
	DSV3_PACK_FILE = 1, /* bytes of a file of the model directory, no dimensions */
	DSV3_PACK_F32 = 2,
	DSV3_PACK_BF16 = 3,
	DSV3_PACK_F16 = 4,
	DSV3_PACK_FP8 = 5,
	/* in panels, see kernels/int8.h and quant.h */
	DSV3_PACK_INT8 = 6,
	DSV3_PACK_A4 = 7,
	DSV3_PACK_S6 = 8,
} Dsv3PackType;

typedef struct Dsv3PackPiece
{
	const char *name; /* printable, 1 to DSV3_PACK_MAX_NAME bytes */
	int type;         /* a Dsv3PackType, or a number this version does not know */
	int n_dims;
	int64_t dims[DSV3_PACK_DIMS]; /* non-negative; zero behind n_dims */
	int64_t offset;               /* in the file, a multiple of the page size */
	int64_t bytes;
	const unsigned char *digest; /* SHA-256 */
} Dsv3PackPiece;

typedef struct Dsv3Pack
{
	const unsigned char *base; /* of size bytes */
	int64_t size;
	Dsv3PackPiece *pieces; /* in order of place; names and digests lie in the mapping */
	int n_pieces;
	char digest[65]; /* of the directory, in hex */
} Dsv3Pack;

/* Is this the path of a file, so that it can only be a pack? A directory, and what does not exist, is not. */
extern bool dsv3_pack_is(const char *path);

/* Map a pack and check everything but the bytes of its pieces. False and *err (58P01, 58030, XX001, 0A000, 53200). */
extern bool dsv3_pack_open(Dsv3Pack *pack, const char *path, Dsv3Error *err);
extern void dsv3_pack_close(Dsv3Pack *pack);

/* The same for bytes in memory, which stay the caller's; release with dsv3_pack_clear. name stands in messages. */
extern bool dsv3_pack_parse(Dsv3Pack *pack, const char *name, const void *data, int64_t size, Dsv3Error *err);
extern void dsv3_pack_clear(Dsv3Pack *pack);

/* The file of that name in the pack at path, checked against its digest: malloc'd, zero-terminated, *len without the
 * terminator. NULL and *err: 58P01 when the pack has none, 54000 when it is larger than max_bytes, else as above. */
extern char *
dsv3_pack_read_file(const char *path, const char *name, int64_t max_bytes, size_t *len, Dsv3Error *err);

/* Read everything and compare it with the digests; the zeros between pieces too. True when all is as it was written, else
 * false and *err (XX001) naming the first piece that is not. */
extern bool dsv3_pack_verify(const Dsv3Pack *pack, const char *path, Dsv3Error *err);

/* SHA-256 of size bytes; false when the library fails. */
extern bool dsv3_pack_digest(unsigned char digest[DSV3_PACK_DIGEST], const void *data, size_t size);

/* The next page boundary at or behind offset. */
static inline int64_t
dsv3_pack_align(int64_t offset)
{
	return (offset + DSV3_PACK_PAGE - 1) / DSV3_PACK_PAGE * DSV3_PACK_PAGE;
}

/*
 * What a writer puts down: page 0 for a directory of that place and content, and the directory of pieces whose
 * offset, bytes and digest are filled in. The directory is malloc'd, *len its size; NULL and *err when there is no
 * memory or a name is too long.
 */
extern bool dsv3_pack_header(unsigned char page[DSV3_PACK_PAGE], int64_t directory_offset,
							 const unsigned char *directory, size_t directory_len, Dsv3Error *err);
extern unsigned char *
dsv3_pack_directory(const Dsv3PackPiece *pieces, int n_pieces, size_t *len, Dsv3Error *err);

#endif /* DSV3_PACKFILE_H */
