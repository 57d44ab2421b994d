/*
 * kv_disk.c
 *	  The storage thread and the index of the file; see kv_disk.h.
 *
 * The index is a block table like that of the memory (kv_cache.h), with the file's places for blocks: a place is held while its record is read
 * or written, gets its name when it is written, and the one used longest ago is taken for a new record. Only the scheduler's thread
 * touches it. The storage thread sees jobs: which place, which name, which memory. `lock` covers the states of the jobs
 * and the flags; everything else in a job belongs to the storage thread while it is QUEUED and to the scheduler's thread otherwise.
 */
#include "engine/kv_disk.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/altstack.h"
#include "engine/kv_cache.h"
#include "engine/kv_disk_file.h"
#include "engine/log.h"

#define N_LOADS  4
#define N_STORES 8
#define N_JOBS   (N_LOADS + N_STORES) /* loads first */

typedef enum JobState
{
	JOB_UNUSED,
	JOB_QUEUED, /* the storage thread's */
	JOB_FINISHED,
	JOB_TOLD, /* a load whose buffer the scheduler looks at */
} JobState;

typedef struct DiskJob
{
	JobState state;
	uint64_t number; /* order of asking */
	Dsv3BlockName name;
	int32_t place;
	int32_t block;    /* store */
	const void *rows; /* store */
	void *buffer;     /* load */
	uint64_t serial;  /* store */
	bool ok;
	int error; /* errno of a store that failed */
} DiskJob;

struct Dsv3KvDisk
{
	Dsv3DiskFile file;
	Dsv3KvDiskOptions options;
	Dsv3KvCache *index;
	uint64_t serial; /* of the next record */
	uint64_t numbers;
	bool complained_of_write; /* since the last that worked */
	bool complained_of_read;
	Dsv3KvDiskCounts counts;

	pthread_mutex_t lock;
	pthread_cond_t work;
	pthread_t thread;
	bool has_thread;
	bool stop;
	bool reset_wanted;
	bool reset_done; /* in the file; the index follows */
	DiskJob jobs[N_JOBS];
};

/* -- the storage thread -- */

static DiskJob *
next_job(Dsv3KvDisk *disk)
{
	DiskJob *found = NULL;

	/* Loads first: somebody waits for them. */
	for (int i = 0; i < N_JOBS && (i != N_LOADS || found == NULL); i++)
	{
		DiskJob *job = &disk->jobs[i];

		if (job->state == JOB_QUEUED && (found == NULL || job->number < found->number))
			found = job;
	}
	return found;
}

static void
do_job(Dsv3KvDisk *disk, DiskJob *job)
{
	if (job->buffer)
		job->ok = dsv3_disk_file_read(&disk->file, job->place, &job->name, job->buffer);
	else
	{
		job->ok = dsv3_disk_file_write(&disk->file, job->place, &job->name, job->serial, job->rows);
		job->error = errno;
	}
}

static void *
storage_main(void *arg)
{
	Dsv3KvDisk *disk = arg;
	void *stack = dsv3_altstack_set();

	pthread_mutex_lock(&disk->lock);
	for (;;)
	{
		DiskJob *job = next_job(disk);

		if (job == NULL && disk->stop)
			break;
		if (job == NULL && (!disk->reset_wanted || disk->reset_done))
		{
			pthread_cond_wait(&disk->work, &disk->lock);
			continue;
		}
		pthread_mutex_unlock(&disk->lock);
		if (job)
			do_job(disk, job);
		else if (!dsv3_disk_file_empty(&disk->file))
			dsv3_log(DSV3_WARNING, "could not empty the cache directory: %s", strerror(errno));
		pthread_mutex_lock(&disk->lock);
		if (job)
			job->state = JOB_FINISHED;
		else
			disk->reset_done = true;
		disk->options.wake(disk->options.arg);
	}
	pthread_mutex_unlock(&disk->lock);
	dsv3_altstack_drop(stack);
	return NULL;
}

/* -- opening -- */

typedef struct Found
{
	uint64_t serial;
	int32_t place;
} Found;

static int
by_serial(const void *a, const void *b)
{
	const Found *x = a;
	const Found *y = b;

	return (x->serial > y->serial) - (x->serial < y->serial);
}

/* Enter what the file holds: the record written last is the one used last. */
static bool
read_index(Dsv3KvDisk *disk, Dsv3Error *err)
{
	int places = disk->file.places;
	Found *found = malloc((size_t) places * sizeof(*found));
	int n = 0;

	if (found == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for %d records on disk", places);
	for (int i = 0; i < places; i++)
	{
		/* They come in order, since all are free. */
		int32_t place = dsv3_kv_cache_take(disk->index);
		Dsv3BlockName name;

		found[n].place = place;
		if (!dsv3_disk_file_peek(&disk->file, place, &name, &found[n].serial))
			continue;
		/* A name twice: a crash between two records; either is good if its checksum holds. */
		if (dsv3_kv_cache_find(disk->index, &name) != DSV3_NO_BLOCK)
			continue;
		dsv3_kv_cache_publish(disk->index, place, &name);
		if (found[n].serial >= disk->serial)
			disk->serial = found[n].serial + 1;
		n++;
	}
	qsort(found, (size_t) n, sizeof(*found), by_serial);
	for (int i = places - 1; i >= 0; i--)
	{
		if (dsv3_kv_cache_name(disk->index, i) == NULL)
			dsv3_kv_cache_release(disk->index, i);
	}
	for (int i = 0; i < n; i++)
		dsv3_kv_cache_release(disk->index, found[i].place);
	free(found);
	return true;
}

Dsv3KvDisk *
dsv3_kv_disk_open(const Dsv3KvDiskOptions *options, Dsv3Error *err)
{
	Dsv3KvDisk *disk = calloc(1, sizeof(*disk));
	bool ok = true;

	if (disk == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the cache on disk");
		return NULL;
	}
	disk->options = *options;
	disk->file.fd = -1;
	pthread_mutex_init(&disk->lock, NULL);
	pthread_cond_init(&disk->work, NULL);
	ok = dsv3_disk_file_open(&disk->file, options->folder, options->max_bytes, options->block_bytes,
							 options->identity, err) &&
		 (disk->index = dsv3_kv_cache_open(disk->file.places, err)) != NULL && read_index(disk, err);
	for (int i = 0; ok && i < N_LOADS; i++)
	{
		disk->jobs[i].buffer = malloc(options->block_bytes);
		ok = disk->jobs[i].buffer ||
			 dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for the cache on disk");
	}
	if (ok && pthread_create(&disk->thread, NULL, storage_main, disk) != 0)
		ok = dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "could not start a thread");
	disk->has_thread = ok;
	if (ok)
		return disk;
	dsv3_kv_disk_close(disk);
	return NULL;
}

void
dsv3_kv_disk_close(Dsv3KvDisk *disk)
{
	if (disk == NULL)
		return;
	if (disk->has_thread)
	{
		pthread_mutex_lock(&disk->lock);
		disk->stop = true;
		pthread_cond_signal(&disk->work);
		pthread_mutex_unlock(&disk->lock);
		pthread_join(disk->thread, NULL);
	}
	for (int i = 0; i < N_LOADS; i++)
		free(disk->jobs[i].buffer);
	dsv3_kv_cache_close(disk->index);
	dsv3_disk_file_close(&disk->file);
	pthread_cond_destroy(&disk->work);
	pthread_mutex_destroy(&disk->lock);
	free(disk);
}

const uint8_t *
dsv3_kv_disk_secret(const Dsv3KvDisk *disk)
{
	return disk->file.secret;
}

int
dsv3_kv_disk_fd(const Dsv3KvDisk *disk)
{
	return disk->file.fd;
}

/* -- asking -- */

/* Jobs first to first + n: the one of this name, else an unused one, else NULL. */
static DiskJob *
job_for(Dsv3KvDisk *disk, int first, int n, const Dsv3BlockName *name, bool *under_way)
{
	DiskJob *unused = NULL;

	*under_way = false;
	for (int i = first; i < first + n; i++)
	{
		DiskJob *job = &disk->jobs[i];

		if (job->state == JOB_UNUSED)
			unused = job;
		else if (memcmp(job->name.bytes, name->bytes, sizeof(name->bytes)) == 0)
		{
			*under_way = true;
			return job;
		}
	}
	return unused;
}

static void
queue_job(Dsv3KvDisk *disk, DiskJob *job, const Dsv3BlockName *name, int32_t place)
{
	job->name = *name;
	job->place = place;
	job->number = disk->numbers++;
	job->state = JOB_QUEUED;
	pthread_cond_signal(&disk->work);
}

bool
dsv3_kv_disk_load(Dsv3KvDisk *disk, const Dsv3BlockName *name)
{
	int32_t place = dsv3_kv_cache_find(disk->index, name);
	bool under_way;
	DiskJob *job;

	if (place == DSV3_NO_BLOCK)
		return false;
	pthread_mutex_lock(&disk->lock);
	job = job_for(disk, 0, N_LOADS, name, &under_way);
	if (job && !under_way && !disk->reset_wanted)
	{
		dsv3_kv_cache_hold(disk->index, place);
		queue_job(disk, job, name, place);
	}
	under_way = !disk->reset_wanted;
	pthread_mutex_unlock(&disk->lock);
	return under_way;
}

bool
dsv3_kv_disk_store(Dsv3KvDisk *disk, const Dsv3BlockName *name, int32_t block, const void *data, bool *full)
{
	bool under_way;
	DiskJob *job;
	bool queued = false;

	*full = false;
	if (dsv3_kv_cache_find(disk->index, name) != DSV3_NO_BLOCK)
		return false;
	pthread_mutex_lock(&disk->lock);
	job = job_for(disk, N_LOADS, N_STORES, name, &under_way);
	if (!under_way && !disk->reset_wanted)
	{
		*full = job == NULL || dsv3_kv_cache_room(disk->index, false) == 0;
		if (!*full)
		{
			job->block = block;
			job->rows = data;
			job->serial = disk->serial++;
			queue_job(disk, job, name, dsv3_kv_cache_take(disk->index));
			queued = true;
		}
	}
	pthread_mutex_unlock(&disk->lock);
	return queued;
}

void
dsv3_kv_disk_reset(Dsv3KvDisk *disk)
{
	pthread_mutex_lock(&disk->lock);
	disk->reset_wanted = true;
	pthread_cond_signal(&disk->work);
	pthread_mutex_unlock(&disk->lock);
}

/* -- what has been finished -- */

static void
end_load(Dsv3KvDisk *disk, DiskJob *job, Dsv3KvDiskEvent *event)
{
	*event = (Dsv3KvDiskEvent){.type = DSV3_DISK_LOADED, .name = job->name, .data = job->buffer};
	if (job->ok)
	{
		disk->counts.loaded++;
		disk->complained_of_read = false;
	}
	else
	{
		event->type = DSV3_DISK_LOST;
		event->data = NULL;
		disk->counts.lost++;
		dsv3_kv_cache_drop(disk->index, job->place);
		if (!disk->complained_of_read)
			dsv3_log(DSV3_WARNING,
					 "a record of the cache directory is damaged, its tokens are computed again");
		disk->complained_of_read = true;
	}
	dsv3_kv_cache_release(disk->index, job->place);
}

static void
end_store(Dsv3KvDisk *disk, DiskJob *job, Dsv3KvDiskEvent *event)
{
	*event = (Dsv3KvDiskEvent){.type = DSV3_DISK_STORED, .name = job->name, .block = job->block};
	if (job->ok)
	{
		dsv3_kv_cache_publish(disk->index, job->place, &job->name);
		disk->counts.stored++;
		disk->complained_of_write = false;
	}
	else
	{
		disk->counts.unstored++;
		if (!disk->complained_of_write)
			dsv3_log(DSV3_WARNING, "could not write to the cache directory: %s", strerror(job->error));
		disk->complained_of_write = true;
	}
	dsv3_kv_cache_release(disk->index, job->place);
}

bool
dsv3_kv_disk_next(Dsv3KvDisk *disk, Dsv3KvDiskEvent *event)
{
	DiskJob *found = NULL;

	pthread_mutex_lock(&disk->lock);
	for (int i = 0; i < N_LOADS; i++)
	{
		if (disk->jobs[i].state == JOB_TOLD)
			disk->jobs[i].state = JOB_UNUSED;
	}
	for (int i = 0; i < N_JOBS; i++)
	{
		DiskJob *job = &disk->jobs[i];

		if (job->state == JOB_FINISHED && (found == NULL || job->number < found->number))
			found = job;
	}
	if (found && found->buffer)
	{
		end_load(disk, found, event);
		found->state = JOB_TOLD;
	}
	else if (found)
	{
		end_store(disk, found, event);
		found->state = JOB_UNUSED;
	}
	/* The file is empty, and nothing is under way: nothing was begun since, and what was begun before is told. */
	if (!found && disk->reset_done)
	{
		dsv3_kv_cache_forget(disk->index);
		disk->reset_wanted = disk->reset_done = false;
	}
	pthread_mutex_unlock(&disk->lock);
	return found != NULL;
}

Dsv3KvDiskCounts
dsv3_kv_disk_counts(const Dsv3KvDisk *disk)
{
	Dsv3KvDiskCounts counts = disk->counts;

	counts.places = disk->file.places;
	counts.records = dsv3_kv_cache_counts(disk->index).cached;
	return counts;
}
