/*
 * pack_write.c
 *	  Writing the planned pieces; see pack_write.h.
 *
 * A batch is the bytes of the file from one place to another, BATCH_BYTES at most or one slice of rows: its slices are made by all
 * threads, each where it will lie in the file, zeros between pieces included; then the digests go on over them in order,
 * and one write puts the batch down. Complete pieces are then noted in the journal: a line with the number of the piece
 * and its digest. The journal begins with the identity of the plan, so that another model or other options start from
 * nothing. A line cut short by a crash is no line. Nothing is synchronised before the end: a piece whose line got to disk and whose
 * bytes did not is found out when it is read back.
 *
 * Page 0 is written last, so OUT.partial is no pack before it is complete. Its lock keeps a second run away.
 */
#include "model/pack_write.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/pool.h"
#include "model/convert.h"
#include "model/pack_plan.h"

#define BATCH_BYTES  ((int64_t) 8 << 20)
#define SLICE_ROWS   128 /* a block of FP8 scales, whole panels */
#define READ_BYTES   ((size_t) 4 << 20)
#define AROUND       ((uintptr_t) 64 << 10)
#define JOURNAL_HEAD "dsv3 pack journal 1 "

/* Rows of a matrix, or the whole of anything else, at a place in the batch. */
typedef struct Slice
{
	int item;
	int32_t first;
	int32_t count;
	int64_t offset; /* in the file */
	int64_t bytes;
	Dsv3PackRows made;
	int32_t bad_row; /* of the number that is not finite */
	int32_t bad_column;
} Slice;

typedef struct Writer
{
	Dsv3PackPlan plan;
	const Dsv3PackOptions *options;
	char out[PATH_MAX];
	char partial[PATH_MAX];
	char journal_path[PATH_MAX];
	int fd; /* of OUT.partial, locked */
	FILE *journal;
	Dsv3Pool *pool;
	EVP_MD_CTX *sha; /* of the item that is being made */

	unsigned char *batch;
	int64_t batch_room;
	int64_t batch_offset; /* place of batch[0] in the file */
	int64_t batch_bytes;
	Slice *slices;
	int n_slices;
	int slice_room;

	int item; /* where the next batch begins */
	int32_t row;

	Dsv3PackProgress state;
} Writer;

static bool
write_error(const Writer *w, const char *path, Dsv3Error *err)
{
	if (errno == ENOSPC || errno == EDQUOT)
	{
		dsv3_error(err, DSV3_ERR_DISK_FULL, "could not write file \"%s\": %s", path, strerror(errno));
		return dsv3_error_hint(
			err, "The pack needs %lld MB. What is written stays in \"%s\"; the same command continues.",
			(long long) (w->plan.end >> 20) + 1, w->partial);
	}
	return dsv3_error(err, DSV3_ERR_FILE, "could not write file \"%s\": %s", path, strerror(errno));
}

static bool
write_at(const Writer *w, const void *data, int64_t bytes, int64_t offset, Dsv3Error *err)
{
	const unsigned char *from = data;

	while (bytes > 0)
	{
		ssize_t n = pwrite(w->fd, from, (size_t) bytes, (off_t) offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return write_error(w, w->partial, err);
		from += n;
		offset += n;
		bytes -= n;
	}
	return true;
}

static void
hex(char text[2 * DSV3_PACK_DIGEST + 1], const unsigned char *digest)
{
	for (int i = 0; i < DSV3_PACK_DIGEST; i++)
		snprintf(text + 2 * i, 3, "%02x", digest[i]);
}

static bool
unhex(unsigned char digest[DSV3_PACK_DIGEST], const char *text)
{
	for (int i = 0; i < DSV3_PACK_DIGEST; i++)
	{
		unsigned byte;

		if (sscanf(text + 2 * i, "%2x", &byte) != 1)
			return false;
		digest[i] = (unsigned char) byte;
	}
	return true;
}

/* -- an earlier run -- */

/* Are the bytes of the item in the file the ones the journal promises? */
static bool
read_back(const Writer *w, const Dsv3PackItem *item, const unsigned char *promised, unsigned char *buffer)
{
	unsigned char digest[DSV3_PACK_DIGEST];
	int64_t done = 0;

	if (EVP_DigestInit_ex(w->sha, EVP_sha256(), NULL) != 1)
		return false;
	while (done < item->piece.bytes)
	{
		int64_t left = item->piece.bytes - done;
		ssize_t n = pread(w->fd, buffer, left < (int64_t) READ_BYTES ? (size_t) left : READ_BYTES,
						  (off_t) (item->piece.offset + done));

		if (n <= 0)
			return false;
		EVP_DigestUpdate(w->sha, buffer, (size_t) n);
		done += n;
	}
	return EVP_DigestFinal_ex(w->sha, digest, NULL) == 1 && memcmp(digest, promised, sizeof(digest)) == 0;
}

/* Read the journal; take over what is complete, or nothing when it is of another plan. */
static bool
take_over(Writer *w, const char *identity, Dsv3Error *err)
{
	char line[256];
	unsigned char digest[DSV3_PACK_DIGEST];
	unsigned char *buffer = malloc(READ_BYTES);
	FILE *journal = fopen(w->journal_path, "re");
	int n;
	int start;

	if (buffer == NULL)
	{
		if (journal)
			fclose(journal);
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading \"%s\"", w->journal_path);
	}
	if (journal && fgets(line, sizeof(line), journal) && strcmp(line, identity) == 0)
	{
		while (fgets(line, sizeof(line), journal))
		{
			Dsv3PackItem *item;

			if (strchr(line, '\n') == NULL || sscanf(line, "%d %n", &n, &start) != 1 || n < 0 ||
				n >= w->plan.n_items || strlen(line + start) != 2 * DSV3_PACK_DIGEST + 1 ||
				!unhex(digest, line + start))
				break;
			item = &w->plan.items[n];
			if (item->done || !read_back(w, item, digest, buffer))
				continue;
			item->done = true;
			memcpy(item->digest, digest, sizeof(digest));
			w->state.n_done++;
			w->state.bytes_found += item->piece.bytes;
		}
	}
	w->state.bytes_done = w->state.bytes_found;
	if (journal)
		fclose(journal);
	free(buffer);
	return true;
}

/* Begin the journal anew with what was taken over. */
static bool
begin_journal(Writer *w, const char *identity, Dsv3Error *err)
{
	char digest[2 * DSV3_PACK_DIGEST + 1];

	w->journal = fopen(w->journal_path, "we");
	if (w->journal == NULL || fputs(identity, w->journal) < 0)
		return write_error(w, w->journal_path, err);
	for (int i = 0; i < w->plan.n_items; i++)
	{
		if (!w->plan.items[i].done)
			continue;
		hex(digest, w->plan.items[i].digest);
		fprintf(w->journal, "%d %s\n", i, digest);
	}
	if (fflush(w->journal) != 0)
		return write_error(w, w->journal_path, err);
	return true;
}

/* Open and lock OUT.partial and find what is in it already. */
static bool
open_partial(Writer *w, Dsv3Error *err)
{
	char digest[2 * DSV3_PACK_DIGEST + 1];
	char identity[sizeof(JOURNAL_HEAD) + sizeof(digest) + 1];

	w->fd = open(w->partial, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (w->fd < 0)
	{
		bool missing = errno == ENOENT;

		return dsv3_error(err, missing ? DSV3_ERR_NO_FILE : DSV3_ERR_FILE, "could not create file \"%s\": %s",
						  w->partial, strerror(errno));
	}
	if (flock(w->fd, LOCK_EX | LOCK_NB) != 0)
		return dsv3_error(err, DSV3_ERR_NOT_IN_STATE, "another dsv3 is writing \"%s\"", w->partial);
	hex(digest, w->plan.identity);
	snprintf(identity, sizeof(identity), "%s%s\n", JOURNAL_HEAD, digest);
	if (!take_over(w, identity, err))
		return false;
	/* Nothing to keep: no block of another pack may shine through. Then all the space at once, so that a full disk is
	 * known now; a file system that cannot tell says so later. */
	if (w->state.n_done == 0 && ftruncate(w->fd, 0) != 0)
		return write_error(w, w->partial, err);
	if (fallocate(w->fd, 0, 0, (off_t) w->plan.end) != 0 &&
		(errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
		return write_error(w, w->partial, err);
	return begin_journal(w, identity, err);
}

/* -- batches -- */

static bool
add_slice(Writer *w, int item, int32_t first, int32_t count, int64_t offset, int64_t bytes, Dsv3Error *err)
{
	if (w->n_slices == w->slice_room)
	{
		int room = w->slice_room ? w->slice_room * 2 : 256;
		Slice *more = realloc(w->slices, (size_t) room * sizeof(*more));

		if (more == NULL)
			return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory writing a pack");
		w->slices = more;
		w->slice_room = room;
	}
	w->slices[w->n_slices++] =
		(Slice){.item = item, .first = first, .count = count, .offset = offset, .bytes = bytes};
	return true;
}

/* The next slice of the current item, at w->row; *last when it completes the item. */
static Slice
next_slice(const Writer *w, bool *last)
{
	const Dsv3PackItem *item = &w->plan.items[w->item];
	Slice s = {.item = w->item, .offset = item->piece.offset, .bytes = item->piece.bytes};
	int64_t before;

	*last = true;
	if (item->source.data == NULL)
		return s;
	s.first = w->row;
	s.count = item->source.out - w->row < SLICE_ROWS ? item->source.out - w->row : SLICE_ROWS;
	before = w->row > 0 ? dsv3_pack_row_bytes(item->piece.type, w->row, item->source.in) : 0;
	s.offset += before;
	s.bytes = dsv3_pack_row_bytes(item->piece.type, (int64_t) w->row + s.count, item->source.in) - before;
	*last = w->row + s.count == item->source.out;
	return s;
}

/* Choose the slices of the next batch: consecutive in the file. None when everything is done. */
static bool
fill_batch(Writer *w, Dsv3Error *err)
{
	w->n_slices = 0;
	w->batch_bytes = 0;
	while (w->item < w->plan.n_items)
	{
		bool last;
		Slice s;

		if (w->plan.items[w->item].done)
		{
			if (w->n_slices > 0)
				break;
			w->item++;
			continue;
		}
		s = next_slice(w, &last);
		if (w->n_slices == 0)
			w->batch_offset = s.offset;
		else if (s.offset + s.bytes - w->batch_offset > BATCH_BYTES)
			break;
		w->batch_bytes = s.offset + s.bytes - w->batch_offset;
		if (!add_slice(w, s.item, s.first, s.count, s.offset, s.bytes, err))
			return false;
		w->row = last ? 0 : w->row + s.count;
		w->item += last;
	}
	if (w->batch_bytes > w->batch_room)
	{
		int64_t room = dsv3_pack_align(w->batch_bytes > BATCH_BYTES ? w->batch_bytes : BATCH_BYTES);

		free(w->batch);
		w->batch = aligned_alloc(DSV3_PACK_PAGE, (size_t) room);
		w->batch_room = w->batch ? room : 0;
		if (w->batch == NULL)
			return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory: %lld MB are needed for a batch",
							  (long long) (room >> 20));
	}
	/* what lies between pieces is zero */
	if (w->batch_bytes > 0)
		memset(w->batch, 0, (size_t) w->batch_bytes);
	return true;
}

/* The pages of a mapped file that a slice has read are not needed again, nor what the kernel has mapped around them. A copy
 * in memory would be lost. */
static void
drop_pages(const Dsv3TensorFiles *files, const Dsv3PackItem *item, const Slice *s)
{
	size_t row_bytes = (size_t) item->source.in * dsv3_type_bytes(item->source.type);
	uintptr_t begin = (uintptr_t) item->source.data + (size_t) s->first * row_bytes;
	uintptr_t end = begin + (size_t) s->count * row_bytes;

	for (int i = 0; i < files->n_files; i++)
	{
		uintptr_t base = (uintptr_t) files->files[i].base;
		uintptr_t limit = base + (uintptr_t) files->files[i].size;

		if (begin < base || end > limit)
			continue;
		begin = begin - base > AROUND ? (begin - AROUND) / DSV3_PACK_PAGE * DSV3_PACK_PAGE : base;
		end = limit - end > AROUND ? end + AROUND : limit;
		madvise((void *) begin, end - begin, MADV_DONTNEED);
		return;
	}
}

static void
make_slice(void *arg, int64_t i)
{
	Writer *w = arg;
	Slice *s = &w->slices[i];
	const Dsv3PackItem *item = &w->plan.items[s->item];
	unsigned char *dst = w->batch + (s->offset - w->batch_offset);

	if (item->text)
		memcpy(dst, item->text, (size_t) s->bytes);
	else if (item->vector)
		memcpy(dst, item->vector, (size_t) s->bytes);
	else
		s->made = dsv3_pack_make_rows(item, s->first, s->count, dst, &s->bad_row, &s->bad_column);
}

/* The digests over the slices in order; items that end here get theirs, and a line in the journal. */
static bool
finish_slices(Writer *w, Dsv3Error *err)
{
	char digest[2 * DSV3_PACK_DIGEST + 1];

	for (int i = 0; i < w->n_slices; i++)
	{
		const Slice *s = &w->slices[i];
		Dsv3PackItem *item = &w->plan.items[s->item];
		int64_t end = s->offset + s->bytes;

		if ((s->offset == item->piece.offset && EVP_DigestInit_ex(w->sha, EVP_sha256(), NULL) != 1) ||
			EVP_DigestUpdate(w->sha, w->batch + (s->offset - w->batch_offset), (size_t) s->bytes) != 1 ||
			(end == item->piece.offset + item->piece.bytes &&
			 EVP_DigestFinal_ex(w->sha, item->digest, NULL) != 1))
			return dsv3_error(err, DSV3_ERR_INTERNAL, "could not compute SHA-256");
		if (item->source.data)
			drop_pages(w->plan.checkpoint->files, item, s);
		w->state.bytes_done += s->bytes;
		if (end != item->piece.offset + item->piece.bytes)
			continue;
		item->done = true;
		w->state.n_done++;
		w->state.piece = item->piece.name;
		hex(digest, item->digest);
		fprintf(w->journal, "%d %s\n", s->item, digest);
	}
	if (fflush(w->journal) != 0)
		return write_error(w, w->journal_path, err);
	return true;
}

static bool
write_pieces(Writer *w, Dsv3Error *err)
{
	for (;;)
	{
		if (!fill_batch(w, err))
			return false;
		if (w->n_slices == 0)
			return true;
		dsv3_pool_run(w->pool, w->n_slices, make_slice, w);
		for (int i = 0; i < w->n_slices; i++)
		{
			const Slice *s = &w->slices[i];

			if (s->made == DSV3_ROWS_NO_MEMORY)
				return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory packing \"%s\"",
								  w->plan.items[s->item].piece.name);
			if (s->made == DSV3_ROWS_NOT_FINITE)
				return dsv3_error(err, DSV3_ERR_BAD_FILE,
								  "tensor \"%s\" has a number that is not finite at [%d, %d]",
								  w->plan.items[s->item].piece.name, s->bad_row, s->bad_column);
		}
		if (!write_at(w, w->batch, w->batch_bytes, w->batch_offset, err) || !finish_slices(w, err))
			return false;
		if (w->options->progress)
			w->options->progress(w->options->progress_context, &w->state);
	}
}

/* -- the end -- */

/* A directory is synchronised so that the new name is on disk too; file systems that refuse do not need it. */
static void
sync_directory(const char *path)
{
	char dir[PATH_MAX];
	char *slash;
	int fd;

	snprintf(dir, sizeof(dir), "%s", path);
	slash = strrchr(dir, '/');
	if (slash)
		slash[slash == dir] = '\0';
	fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return;
	fsync(fd);
	close(fd);
}

static bool
exists_error(const Writer *w, Dsv3Error *err)
{
	dsv3_error(err, DSV3_ERR_NOT_IN_STATE, "file \"%s\" exists already", w->out);
	return dsv3_error_hint(err, "Use --force to replace it.");
}

static bool
complete(Writer *w, Dsv3PackSummary *summary, Dsv3Error *err)
{
	unsigned char page[DSV3_PACK_PAGE];
	size_t len = 0;
	unsigned char *directory = dsv3_pack_plan_directory(&w->plan, &len, err);
	int64_t place = dsv3_pack_align(w->plan.end);
	bool ok;

	ok = directory && dsv3_pack_header(page, place, directory, len, err) &&
		 write_at(w, directory, (int64_t) len, place, err);
	free(directory);
	if (!ok)
		return false;
	if (ftruncate(w->fd, (off_t) (place + (int64_t) len)) != 0 || fsync(w->fd) != 0)
		return write_error(w, w->partial, err);
	if (!write_at(w, page, sizeof(page), 0, err))
		return false;
	if (fsync(w->fd) != 0)
		return write_error(w, w->partial, err);
	if (renameat2(AT_FDCWD, w->partial, AT_FDCWD, w->out, w->options->force ? 0 : RENAME_NOREPLACE) != 0)
	{
		if (errno == EEXIST)
			return exists_error(w, err);
		/* a file system without that flag */
		if (errno != EINVAL || rename(w->partial, w->out) != 0)
			return write_error(w, w->out, err);
	}
	unlink(w->journal_path);
	sync_directory(w->out);
	summary->bytes = place + (int64_t) len;
	hex(summary->digest, page + 40);
	return true;
}

static void
summarise(const Writer *w, Dsv3PackSummary *summary)
{
	summary->params = w->plan.checkpoint->info.params_total;
	summary->n_found = w->state.n_done;
	for (int i = 0; i < w->plan.n_items; i++)
	{
		if (w->plan.items[i].text)
			continue;
		summary->n_tensors++;
		summary->tensor_bytes += w->plan.items[i].piece.bytes;
	}
}

static bool
name_files(Writer *w, const char *out, Dsv3Error *err)
{
	struct stat st;

	if ((size_t) snprintf(w->out, sizeof(w->out), "%s", out) >= sizeof(w->out) ||
		(size_t) snprintf(w->partial, sizeof(w->partial), "%s.partial", out) >= sizeof(w->partial) ||
		(size_t) snprintf(w->journal_path, sizeof(w->journal_path), "%s.journal", out) >=
			sizeof(w->journal_path))
		return dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "the path of the pack is too long");
	if (stat(out, &st) != 0)
		return true;
	if (S_ISDIR(st.st_mode))
		return dsv3_error(err, DSV3_ERR_NOT_IN_STATE, "\"%s\" is a directory", out);
	return w->options->force || exists_error(w, err);
}

static bool
run(Writer *w, const char *model_dir, const char *out, Dsv3PackSummary *summary, Dsv3Error *err)
{
	if (!name_files(w, out, err) || !dsv3_pack_plan_open(&w->plan, model_dir, w->options, err))
		return false;
	w->sha = EVP_MD_CTX_new();
	if (w->sha == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory writing a pack");
	w->pool = dsv3_pool_open(w->options->threads, err);
	if (w->pool == NULL)
		return false;
	w->state.n_pieces = w->plan.n_items;
	for (int i = 0; i < w->plan.n_items; i++)
		w->state.bytes += w->plan.items[i].piece.bytes;
	if (!open_partial(w, err))
		return false;
	summarise(w, summary);
	return write_pieces(w, err) && complete(w, summary, err);
}

bool
dsv3_pack_write(const char *model_dir, const char *out, const Dsv3PackOptions *options,
				Dsv3PackSummary *summary, Dsv3Error *err)
{
	Writer *w = calloc(1, sizeof(*w));
	bool ok;

	memset(summary, 0, sizeof(*summary));
	if (w == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory writing a pack");
	w->options = options;
	w->fd = -1;
	ok = run(w, model_dir, out, summary, err);
	if (w->journal)
		fclose(w->journal);
	if (w->fd >= 0)
		close(w->fd);
	dsv3_pool_close(w->pool);
	EVP_MD_CTX_free(w->sha);
	dsv3_pack_plan_close(&w->plan);
	free(w->batch);
	free(w->slices);
	free(w);
	return ok;
}
