/*
 * kv_disk_file.h
 *	  The files behind kv_disk.h: opening them safely, and single records.
 *
 * `key` is 32 random bytes. `blocks` begins with a page with the checksum of the model's identity, the size of a block and the
 * program's digest: whose it is. Place i of the
 * records begins at 4096 + i * stride: a header of 128 bytes (mark, serial number, name, checksum of name and rows, checksum of the
 * header), then the rows. Numbers are as the machine has them: the rows are too, and a machine of the other kind finds no valid
 * checksum. All checksums are HMAC-SHA-256 under the secret, so nobody without it can put rows there.
 *
 * A record is written rows first, header last, without waiting for the disk: what a crash tears is told by its checksum.
 */
#ifndef DSV3_KV_DISK_FILE_H
#define DSV3_KV_DISK_FILE_H

#include "common/error.h"
#include "engine/prefix_name.h"

typedef struct Dsv3DiskFile
{
	int fd;
	size_t block_bytes;
	uint64_t stride; /* bytes of a place */
	int places;
	uint8_t secret[DSV3_SECRET_BYTES];
	uint8_t page_sum[DSV3_NAME_BYTES]; /* of the first page */
	EVP_MAC_CTX *hmac;                 /* for one thread at a time */
} Dsv3DiskFile;

/* Opens, locks and checks the files; makes what is not there; empties a file of another model or
 * program. */
extern bool dsv3_disk_file_open(Dsv3DiskFile *file, const char *folder, uint64_t max_bytes,
								size_t block_bytes, const char *identity, Dsv3Error *err);
extern void dsv3_disk_file_close(Dsv3DiskFile *file);

/* Does a valid header stand in the place? The rows are not looked at. */
extern bool dsv3_disk_file_peek(Dsv3DiskFile *file, int place, Dsv3BlockName *name, uint64_t *serial);

/* Rows of the record of this name, checked; false when it is not that or damaged. */
extern bool dsv3_disk_file_read(Dsv3DiskFile *file, int place, const Dsv3BlockName *name, void *rows);

/* False with errno when it could not be written whole. */
extern bool dsv3_disk_file_write(Dsv3DiskFile *file, int place, const Dsv3BlockName *name, uint64_t serial,
								 const void *rows);

/* Give all records' space back. */
extern bool dsv3_disk_file_empty(Dsv3DiskFile *file);

#endif /* DSV3_KV_DISK_FILE_H */
