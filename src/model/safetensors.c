/*
 * safetensors.c
 *	  Mapping and checking weight files; see safetensors.h.
 */
#include "model/safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/json_file.h"

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE  "model.safetensors.index.json"
#define SUFFIX      ".safetensors"

#define MAX_INDEX_BYTES (64 * 1024 * 1024)
#define HEADER_AHEAD    (512 * 1024)
#define MAX_TENSOR_FILE ((int64_t) 1 << 50)

/* Every dtype the format defines, with its width in bits. */
static const struct
{
	const char *name;
	int bits;
	Dsv3Dtype dtype;
} dtypes[] = {
	{"F32", 32, DSV3_DTYPE_F32},        {"BF16", 16, DSV3_DTYPE_BF16},    {"F16", 16, DSV3_DTYPE_F16},
	{"F8_E4M3", 8, DSV3_DTYPE_F8_E4M3}, {"F8_E5M2", 8, DSV3_DTYPE_OTHER}, {"F8_E8M0", 8, DSV3_DTYPE_OTHER},
	{"F4", 4, DSV3_DTYPE_OTHER},        {"F6_E2M3", 6, DSV3_DTYPE_OTHER}, {"F6_E3M2", 6, DSV3_DTYPE_OTHER},
	{"BOOL", 8, DSV3_DTYPE_OTHER},      {"U8", 8, DSV3_DTYPE_OTHER},      {"I8", 8, DSV3_DTYPE_OTHER},
	{"U16", 16, DSV3_DTYPE_OTHER},      {"I16", 16, DSV3_DTYPE_OTHER},    {"U32", 32, DSV3_DTYPE_OTHER},
	{"I32", 32, DSV3_DTYPE_OTHER},      {"U64", 64, DSV3_DTYPE_OTHER},    {"I64", 64, DSV3_DTYPE_OTHER},
	{"F64", 64, DSV3_DTYPE_OTHER},      {"C64", 64, DSV3_DTYPE_OTHER},
};

#define N_DTYPES ((int) (sizeof(dtypes) / sizeof(dtypes[0])))

bool
dsv3_tensor_error(Dsv3Error *err, const char *sqlstate, const char *file, const char *tensor, const char *fmt,
				  ...)
{
	char shown_file[DSV3_SHOWN_NAME];
	char shown_tensor[DSV3_SHOWN_NAME];
	char reason[384];
	va_list ap;

	va_start(ap, fmt);
	if (vsnprintf(reason, sizeof(reason), fmt, ap) < 0)
		reason[0] = '\0';
	va_end(ap);
	return dsv3_error(err, sqlstate, "file \"%s\": tensor \"%s\" %s", dsv3_shown_name(shown_file, file),
					  dsv3_shown_name(shown_tensor, tensor), reason);
}

const char *
dsv3_shape_text(char *buf, size_t size, const int64_t *dims, int n_dims)
{
	size_t used = 0;

	buf[0] = '\0';
	for (int i = 0; i <= n_dims && used < size; i++)
	{
		int n;

		if (i == n_dims)
			n = snprintf(buf + used, size - used, "%s]", n_dims == 0 ? "[" : "");
		else
			n = snprintf(buf + used, size - used, "%s%lld", i == 0 ? "[" : ", ", (long long) dims[i]);
		used += n > 0 ? (size_t) n : 0;
	}
	return buf;
}

/* A JSON integer in 0..INT64_MAX; false for anything else. */
static bool
non_negative(const json_t *value, int64_t *out)
{
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	*out = json_integer_value(value);
	return true;
}

/* Fill one tensor from its header entry. data_bytes is what the file has after the header. */
static bool
read_entry(Dsv3Tensor *tensor, const char *file, const char *name, const json_t *entry,
		   const unsigned char *data, int64_t data_bytes, Dsv3Error *err)
{
	const char *dtype = json_string_value(json_object_get(entry, "dtype"));
	const json_t *shape = json_object_get(entry, "shape");
	const json_t *offsets = json_object_get(entry, "data_offsets");
	char shown[DSV3_SHOWN_NAME];
	char shape_text[128];
	int64_t begin;
	int64_t end;
	int64_t bits;
	int d = 0;

	if (!json_is_object(entry))
		return dsv3_tensor_error(err, DSV3_ERR_BAD_FILE, file, name, "is not described by a JSON object");
	if (dtype == NULL)
		return dsv3_tensor_error(err, DSV3_ERR_BAD_FILE, file, name, "has no dtype");
	while (d < N_DTYPES && strcmp(dtype, dtypes[d].name) != 0)
		d++;
	if (d == N_DTYPES)
		return dsv3_tensor_error(err, DSV3_ERR_BAD_FILE, file, name, "has the unknown dtype \"%s\"",
								 dsv3_shown_name(shown, dtype));
	tensor->dtype = dtypes[d].dtype;
	tensor->dtype_name = dtypes[d].name;

	if (!json_is_array(shape) || json_array_size(shape) > DSV3_MAX_TENSOR_DIMS)
		return dsv3_tensor_error(err, DSV3_ERR_BAD_FILE, file, name, "has no shape of at most %d dimensions",
								 DSV3_MAX_TENSOR_DIMS);
	tensor->n_dims = (int) json_array_size(shape);
	bits = dtypes[d].bits;
	for (int i = 0; i < tensor->n_dims; i++)
	{
		if (!non_negative(json_array_get(shape, (size_t) i), &tensor->dims[i]))
			return dsv3_tensor_error(err, DSV3_ERR_BAD_FILE, file, name,
									 "has a dimension that is not a non-negative integer");
	}
	for (int i = 0; i < tensor->n_dims; i++)
	{
		if (__builtin_mul_overflow(bits, tensor->dims[i], &bits))
			return dsv3_tensor_error(
				err, DSV3_ERR_BAD_FILE, file, name, "has shape %s, which is too large",
				dsv3_shape_text(shape_text, sizeof(shape_text), tensor->dims, tensor->n_dims));
	}

	if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
		!non_negative(json_array_get(offsets, 0), &begin) || !non_negative(json_array_get(offsets, 1), &end))
		return dsv3_tensor_error(err, DSV3_ERR_BAD_FILE, file, name,
								 "has no data_offsets of two non-negative integers");
	if (begin > end)
		return dsv3_tensor_error(err, DSV3_ERR_BAD_FILE, file, name,
								 "ends before it begins (data_offsets %lld, %lld)", (long long) begin,
								 (long long) end);
	if (end > data_bytes)
		return dsv3_tensor_error(
			err, DSV3_ERR_BAD_FILE, file, name,
			"ends at byte %lld of the data, but the file has only %lld (it may be truncated)",
			(long long) end, (long long) data_bytes);
	if (bits % 8 != 0 || bits / 8 != end - begin)
		return dsv3_tensor_error(
			err, DSV3_ERR_BAD_FILE, file, name, "of dtype %s and shape %s does not fit in its %lld bytes",
			tensor->dtype_name, dsv3_shape_text(shape_text, sizeof(shape_text), tensor->dims, tensor->n_dims),
			(long long) (end - begin));
	tensor->data = data + begin;
	tensor->bytes = end - begin;
	tensor->name = strdup(name);
	if (tensor->name == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading the header of \"%s\"", file);
	return true;
}

static int
compare_place(const void *a, const void *b)
{
	const Dsv3Tensor *x = a;
	const Dsv3Tensor *y = b;

	if (x->data != y->data)
		return x->data < y->data ? -1 : 1;
	/* an empty tensor lies before the one that starts where it does */
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int
compare_name(const void *a, const void *b)
{
	return strcmp(((const Dsv3Tensor *) a)->name, ((const Dsv3Tensor *) b)->name);
}

/* In order of place, every tensor must begin where the one before ended, and the last must end with the file. */
static bool
check_places(Dsv3TensorFile *file, const unsigned char *data, int64_t data_bytes, Dsv3Error *err)
{
	const unsigned char *expected = data;

	qsort(file->tensors, (size_t) file->n_tensors, sizeof(Dsv3Tensor), compare_place);
	for (int i = 0; i < file->n_tensors; i++)
	{
		const Dsv3Tensor *t = &file->tensors[i];

		if (t->data < expected)
			return dsv3_tensor_error(err, DSV3_ERR_BAD_FILE, file->name, t->name, "overlaps tensor \"%s\"",
									 file->tensors[i - 1].name);
		if (t->data > expected)
			return dsv3_tensor_error(err, DSV3_ERR_BAD_FILE, file->name, t->name,
									 "begins at byte %lld of the data, but the data before it ends at %lld",
									 (long long) (t->data - data), (long long) (expected - data));
		expected = t->data + t->bytes;
	}
	if (expected != data + data_bytes)
	{
		char shown[DSV3_SHOWN_NAME];

		return dsv3_error(err, DSV3_ERR_BAD_FILE, "file \"%s\" has %lld bytes after its last tensor",
						  dsv3_shown_name(shown, file->name), (long long) (data + data_bytes - expected));
	}
	return true;
}

static bool
read_header(Dsv3TensorFile *file, json_t *header, const unsigned char *data, int64_t data_bytes,
			Dsv3Error *err)
{
	const char *name;
	json_t *entry;
	size_t n = json_object_size(header);

	file->tensors = calloc(n ? n : 1, sizeof(Dsv3Tensor));
	if (file->tensors == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading the header of \"%s\"",
						  file->name);
	json_object_foreach (header, name, entry)
	{
		if (strcmp(name, "__metadata__") == 0)
			continue;
		if (!read_entry(&file->tensors[file->n_tensors], file->name, name, entry, data, data_bytes, err))
			return false;
		file->tensors[file->n_tensors].file = file;
		file->n_tensors++;
	}
	if (!check_places(file, data, data_bytes, err))
		return false;
	qsort(file->tensors, (size_t) file->n_tensors, sizeof(Dsv3Tensor), compare_name);
	return true;
}

bool
dsv3_tensor_file_parse(Dsv3TensorFile *file, const char *name, const void *data, int64_t size, Dsv3Error *err)
{
	const unsigned char *bytes = data;
	char shown[DSV3_SHOWN_NAME];
	uint64_t header_bytes = 0;
	json_t *header;
	bool ok;

	memset(file, 0, sizeof(*file));
	dsv3_shown_name(shown, name);
	file->name = strdup(name);
	if (file->name == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory opening \"%s\"", shown);
	file->base = bytes;
	file->size = size;
	if (size < 8)
		return dsv3_error(err, DSV3_ERR_BAD_FILE,
						  "file \"%s\" is too short to be a safetensors file: %lld bytes", shown,
						  (long long) size);
	for (int i = 7; i >= 0; i--)
		header_bytes = header_bytes << 8 | bytes[i];
	if (header_bytes > DSV3_MAX_HEADER)
		return dsv3_error(err, DSV3_ERR_BAD_FILE,
						  "file \"%s\" announces a header of %llu bytes, at most %d are accepted", shown,
						  (unsigned long long) header_bytes, DSV3_MAX_HEADER);
	if ((int64_t) header_bytes > size - 8)
		return dsv3_error(err, DSV3_ERR_BAD_FILE,
						  "file \"%s\" is truncated: its header of %llu bytes does not fit in %lld", shown,
						  (unsigned long long) header_bytes, (long long) size);
	file->header_bytes = (int64_t) header_bytes;
	header = dsv3_json_parse_object((const char *) bytes + 8, (size_t) header_bytes, name, err);
	if (header == NULL)
		return dsv3_error_prefix(err, "safetensors header");
	ok = read_header(file, header, bytes + 8 + header_bytes, size - 8 - (int64_t) header_bytes, err);
	json_decref(header);
	return ok;
}

void
dsv3_tensor_file_clear(Dsv3TensorFile *file)
{
	for (int i = 0; i < file->n_tensors; i++)
		free(file->tensors[i].name);
	free(file->tensors);
	free(file->name);
	memset(file, 0, sizeof(*file));
}

/* Map dir/name and check it. On failure *file is clear and nothing stays mapped. */
static bool
open_file(Dsv3TensorFile *file, const char *dir, const char *name, Dsv3Error *err)
{
	char shown[DSV3_SHOWN_NAME];
	int64_t size;
	void *base;
	int fd = dsv3_open_regular(dir, name, MAX_TENSOR_FILE, &size, err);

	memset(file, 0, sizeof(*file));
	if (fd < 0)
		return false;
	base = mmap(NULL, (size_t) size, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (base == MAP_FAILED)
		return dsv3_error(err, DSV3_ERR_FILE, "could not map file \"%s\": %s", dsv3_shown_name(shown, name),
						  strerror(errno));
	/* After the header, opening reads small pieces far apart; read-ahead would fetch a large part of the file. */
	madvise(base, (size_t) size, MADV_RANDOM);
	madvise(base, (size_t) (size < HEADER_AHEAD ? size : HEADER_AHEAD), MADV_WILLNEED);
	if (dsv3_tensor_file_parse(file, name, base, size, err))
		return true;
	dsv3_tensor_file_clear(file);
	munmap(base, (size_t) size);
	return false;
}

/* A shard must be a plain name ending in .safetensors, so that an index can name nothing outside the directory and no
 * other kind of file, such as itself. */
static bool
check_shard_name(const char *tensor, const char *shard, Dsv3Error *err)
{
	size_t len = strlen(shard);
	char shown[DSV3_SHOWN_NAME];

	if (strchr(shard, '/') || len <= strlen(SUFFIX) || strcmp(shard + len - strlen(SUFFIX), SUFFIX) != 0 ||
		len > 255)
		return dsv3_tensor_error(
			err, DSV3_ERR_BAD_FILE, INDEX_FILE, tensor,
			"is placed in \"%s\", which is not the name of a *.safetensors file in the model directory",
			dsv3_shown_name(shown, shard));
	return true;
}

static int
compare_strings(const void *a, const void *b)
{
	return strcmp(*(const char *const *) a, *(const char *const *) b);
}

static int
compare_pointed_name(const void *a, const void *b)
{
	return strcmp((*(Dsv3Tensor *const *) a)->name, (*(Dsv3Tensor *const *) b)->name);
}

static Dsv3Tensor *
find_in_file(const Dsv3TensorFile *file, const char *name)
{
	Dsv3Tensor key = {.name = (char *) name};

	if (file->n_tensors == 0)
		return NULL;
	return bsearch(&key, file->tensors, (size_t) file->n_tensors, sizeof(Dsv3Tensor), compare_name);
}

static const Dsv3TensorFile *
find_file(const Dsv3TensorFiles *files, const char *name)
{
	int low = 0;
	int high = files->n_files - 1;

	while (low <= high)
	{
		int mid = (low + high) / 2;
		/* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): every file that is counted has its name */
		int order = strcmp(name, files->files[mid].name);

		if (order == 0)
			return &files->files[mid];
		if (order < 0)
			high = mid - 1;
		else
			low = mid + 1;
	}
	return NULL;
}

/* Collect the distinct shard names of the map, in order, into names[n_names] (borrowed from the map). */
static bool
list_shards(json_t *map, const char **names, size_t *n_names, Dsv3Error *err)
{
	const char *tensor;
	json_t *value;
	size_t n = 0;
	size_t distinct = 0;

	json_object_foreach (map, tensor, value)
	{
		const char *shard = json_string_value(value);

		if (shard == NULL)
			return dsv3_tensor_error(err, DSV3_ERR_BAD_FILE, INDEX_FILE, tensor, "is not placed in a file");
		if (!check_shard_name(tensor, shard, err))
			return false;
		names[n++] = shard;
	}
	qsort(names, n, sizeof(char *), compare_strings);
	for (size_t i = 0; i < n; i++)
	{
		if (distinct == 0 || strcmp(names[i], names[distinct - 1]) != 0)
			names[distinct++] = names[i];
	}
	if (distinct > DSV3_MAX_SHARDS)
		return dsv3_error(err, DSV3_ERR_TOO_LARGE,
						  "file \"" INDEX_FILE "\" names %zu files, at most %d are opened", distinct,
						  DSV3_MAX_SHARDS);
	*n_names = distinct;
	return true;
}

/* Open every shard of the map and fill by_name with the tensors it places. */
static bool
open_shards(Dsv3TensorFiles *files, const char *model_dir, json_t *map, Dsv3Error *err)
{
	size_t n = json_object_size(map);
	const char **names = calloc(n ? n : 1, sizeof(char *));
	size_t n_names = 0;
	const char *tensor;
	json_t *value;
	bool ok = names != NULL;

	if (!ok)
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading \"" INDEX_FILE "\"");
	ok = ok && list_shards(map, names, &n_names, err);
	if (ok)
	{
		files->files = calloc(n_names ? n_names : 1, sizeof(Dsv3TensorFile));
		files->by_name = calloc(n ? n : 1, sizeof(Dsv3Tensor *));
		if (files->files == NULL || files->by_name == NULL)
			ok = dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading \"" INDEX_FILE "\"");
	}
	for (size_t i = 0; ok && i < n_names; i++)
	{
		ok = open_file(&files->files[i], model_dir, names[i], err);
		files->n_files += ok;
		if (!ok && err && strcmp(err->sqlstate, DSV3_ERR_NO_FILE) == 0)
			dsv3_error_hint(err, "\"" INDEX_FILE
								 "\" lists this file; the download of the model may be incomplete.");
	}
	free(names);
	if (!ok)
		return false;
	json_object_foreach (map, tensor, value)
	{
		const char *shard = json_string_value(value);
		Dsv3Tensor *found = find_in_file(find_file(files, shard), tensor);

		if (found == NULL)
			return dsv3_tensor_error(err, DSV3_ERR_BAD_FILE, shard, tensor,
									 "is not in the file, although \"" INDEX_FILE "\" places it there");
		files->by_name[files->n_by_name++] = found;
	}
	qsort(files->by_name, (size_t) files->n_by_name, sizeof(Dsv3Tensor *), compare_pointed_name);
	return true;
}

static bool
open_indexed(Dsv3TensorFiles *files, const char *model_dir, Dsv3Error *err)
{
	size_t len;
	char *text = dsv3_read_file(model_dir, INDEX_FILE, MAX_INDEX_BYTES, &len, err);
	json_t *root;
	json_t *map;
	bool ok;

	if (text == NULL)
	{
		if (err && strcmp(err->sqlstate, DSV3_ERR_NO_FILE) == 0)
		{
			dsv3_error(err, DSV3_ERR_NO_FILE,
					   "model directory \"%s\" has neither \"" SINGLE_FILE "\" nor \"" INDEX_FILE "\"",
					   model_dir);
			dsv3_error_hint(
				err,
				"Weights in other formats (pytorch_model.bin, gguf) must be converted to safetensors first.");
		}
		return false;
	}
	root = dsv3_json_parse_object(text, len, INDEX_FILE, err);
	free(text);
	if (root == NULL)
		return false;
	map = json_object_get(root, "weight_map");
	if (!json_is_object(map) || json_object_size(map) == 0)
		ok = dsv3_error(err, DSV3_ERR_BAD_FILE, "file \"" INDEX_FILE "\" has no weight_map");
	else
		ok = open_shards(files, model_dir, map, err);
	json_decref(root);
	return ok;
}

static bool
open_single(Dsv3TensorFiles *files, const char *model_dir, Dsv3Error *err)
{
	Dsv3TensorFile *file;

	files->files = calloc(1, sizeof(Dsv3TensorFile));
	if (files->files == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory opening \"" SINGLE_FILE "\"");
	file = &files->files[0];
	if (!open_file(file, model_dir, SINGLE_FILE, err))
		return false;
	files->n_files = 1;
	files->by_name = calloc(file->n_tensors ? (size_t) file->n_tensors : 1, sizeof(Dsv3Tensor *));
	if (files->by_name == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory opening \"" SINGLE_FILE "\"");
	for (int i = 0; i < file->n_tensors; i++)
		files->by_name[files->n_by_name++] = &file->tensors[i];
	return true;
}

bool
dsv3_tensors_open(Dsv3TensorFiles *files, const char *model_dir, Dsv3Error *err)
{
	Dsv3Error problem;
	bool ok;

	memset(files, 0, sizeof(*files));
	memset(&problem, 0, sizeof(problem));
	ok = open_single(files, model_dir, &problem);
	if (!ok && strcmp(problem.sqlstate, DSV3_ERR_NO_FILE) == 0)
	{
		dsv3_tensors_close(files);
		ok = open_indexed(files, model_dir, &problem);
	}
	if (!ok)
	{
		if (err)
			*err = problem;
		dsv3_tensors_close(files);
		return false;
	}
	for (int i = 0; i < files->n_files; i++)
		files->n_tensors += files->files[i].n_tensors;
	return true;
}

void
dsv3_tensors_close(Dsv3TensorFiles *files)
{
	for (int i = 0; i < files->n_files; i++)
	{
		munmap((void *) files->files[i].base, (size_t) files->files[i].size);
		dsv3_tensor_file_clear(&files->files[i]);
	}
	free(files->files);
	free(files->by_name);
	memset(files, 0, sizeof(*files));
}

const Dsv3Tensor *
dsv3_tensors_find(const Dsv3TensorFiles *files, const char *name)
{
	Dsv3Tensor key = {.name = (char *) name};
	Dsv3Tensor *key_pointer = &key;
	Dsv3Tensor **found = bsearch(&key_pointer, files->by_name, (size_t) files->n_by_name,
								 sizeof(Dsv3Tensor *), compare_pointed_name);

	if (found == NULL)
		return NULL;
	(*found)->used = true;
	return *found;
}
