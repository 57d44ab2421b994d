/*
 * kv_disk.h
 *	  Cached blocks on disk: they outlive the engine.
 *
 * A folder holds two files: `key`, the secret from which the names of blocks are made, so that they are the same after a restart,
 * and `blocks`, records of one block each in places of one size. A record carries the block's name and a keyed checksum over
 * name and rows. Since a name covers the model's identity, the scope and all token ids up to the block's end (prefix_name.h), a
 * record that is found under a name and whose checksum holds is the rows that would be computed. Everything else - a record torn
 * by a crash, a flipped bit, a file of another model - is not found or thrown away, and costs only the computation.
 *
 * The file is opened before the sandbox closes and nothing else is opened later. It never grows beyond its limit: a new record takes the
 * place of the one used longest ago.
 *
 * Threads. All functions are called by one thread, the scheduler's. Reading, writing and checksums are a storage thread's; what it
 * has finished is told by `wake` and taken with dsv3_kv_disk_next.
 */
#ifndef DSV3_KV_DISK_H
#define DSV3_KV_DISK_H

#include "common/error.h"
#include "engine/prefix_name.h"

typedef struct Dsv3KvDisk Dsv3KvDisk;

typedef struct Dsv3KvDiskOptions
{
	const char *folder; /* made if it is not there; must be the process's own, closed to others */
	uint64_t max_bytes; /* of the file of blocks */
	size_t block_bytes;
	const char *identity;    /* as for dsv3_namer_open: a file of another one is emptied */
	void (*wake)(void *arg); /* something is finished; called by the storage thread */
	void *arg;
} Dsv3KvDiskOptions;

typedef enum Dsv3KvDiskEventType
{
	DSV3_DISK_LOADED, /* data: the rows of name */
	DSV3_DISK_LOST,   /* name could not be loaded and is forgotten */
	DSV3_DISK_STORED, /* the rows of block are not needed any more, whether it worked or not */
} Dsv3KvDiskEventType;

typedef struct Dsv3KvDiskEvent
{
	Dsv3KvDiskEventType type;
	Dsv3BlockName name;
	int32_t block;
	const void *data; /* until the next call of dsv3_kv_disk_next */
} Dsv3KvDiskEvent;

typedef struct Dsv3KvDiskCounts
{
	int places;
	int records;
	uint64_t loaded;
	uint64_t stored;
	uint64_t lost;     /* records that were damaged or could not be read */
	uint64_t unstored; /* blocks that could not be written */
} Dsv3KvDiskCounts;

/* Fails when the folder or its files cannot be used: not there, not ours, open to others, in use by another engine. */
extern Dsv3KvDisk *dsv3_kv_disk_open(const Dsv3KvDiskOptions *options, Dsv3Error *err);
/* Waits for what is being read or written. */
extern void dsv3_kv_disk_close(Dsv3KvDisk *disk);

/* DSV3_SECRET_BYTES for the namer. */
extern const uint8_t *dsv3_kv_disk_secret(const Dsv3KvDisk *disk);

/* The one descriptor that is written, for the sandbox. */
extern int dsv3_kv_disk_fd(const Dsv3KvDisk *disk);

/* Start reading a block unless it is under way. False: it is not there. True: it is, and something will be told, though it may be that of
 * another block when all buffers are in use; then ask again. */
extern bool dsv3_kv_disk_load(Dsv3KvDisk *disk, const Dsv3BlockName *name);

/* Start writing a block. The rows must stay as they are until DSV3_DISK_STORED tells of the block. False: nothing was started, because the
 * queue is full (*full) or the block is there or under way already. */
extern bool
dsv3_kv_disk_store(Dsv3KvDisk *disk, const Dsv3BlockName *name, int32_t block, const void *data, bool *full);

/* What has been finished, in the order of asking; false when there is nothing. */
extern bool dsv3_kv_disk_next(Dsv3KvDisk *disk, Dsv3KvDiskEvent *event);

/* Throw everything away, once what is under way is finished; nothing is found or stored until then. */
extern void dsv3_kv_disk_reset(Dsv3KvDisk *disk);

extern Dsv3KvDiskCounts dsv3_kv_disk_counts(const Dsv3KvDisk *disk);

#endif /* DSV3_KV_DISK_H */
