/*
 * safetensors.h
 *	  The *.safetensors files of a model directory, mapped read-only, and their tensors by name.
 *
 * A file is eight bytes of header length (little-endian), a JSON header and the data. The header is hostile until it has
 * been checked: its length against the file and a fixed limit, then for every tensor the dtype, the shape, shape times
 * dtype against the byte range, and of all ranges together that they follow each other without overlap or hole and end where
 * the file ends, which is what the format prescribes. After that a tensor's bytes can be read without another check,
 * at any alignment.
 *
 * model.safetensors is used when it exists, otherwise model.safetensors.index.json and the shards it names. Shard names are
 * plain names of files in the directory. The struct owns the mappings and all names; it does not change after
 * opening, apart from the `used` marks, which one thread sets while resolving. Files must not shrink while mapped.
 */
#ifndef DSV3_SAFETENSORS_H
#define DSV3_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

#define DSV3_MAX_TENSOR_DIMS 8
#define DSV3_MAX_HEADER      (32 * 1024 * 1024) /* bytes; some 300,000 tensors in one file */
#define DSV3_MAX_SHARDS      4096

typedef enum Dsv3Dtype
{
	DSV3_DTYPE_F32,
	DSV3_DTYPE_BF16,
	DSV3_DTYPE_F16,
	DSV3_DTYPE_F8_E4M3,
	DSV3_DTYPE_INT8, /* panels (kernels/quant.h), only in packs; so the next two */
	DSV3_DTYPE_A4,
	DSV3_DTYPE_S6,
	DSV3_DTYPE_OTHER, /* known to the format, of no use as a weight here */
} Dsv3Dtype;

typedef struct Dsv3TensorFile
{
	char *name;                /* inside the directory */
	const unsigned char *base; /* the mapping, of size bytes */
	int64_t size;
	int64_t header_bytes;       /* length of the JSON header at base + 8 */
	struct Dsv3Tensor *tensors; /* in order of name */
	int n_tensors;
} Dsv3TensorFile;

typedef struct Dsv3Tensor
{
	char *name;
	const Dsv3TensorFile *file;
	Dsv3Dtype dtype;
	const char *dtype_name; /* as in the file, "BF16" */
	int n_dims;
	int64_t dims[DSV3_MAX_TENSOR_DIMS];
	const unsigned char *data; /* bytes of them, at any alignment */
	int64_t bytes;
	bool used; /* somebody found it */
} Dsv3Tensor;

typedef struct Dsv3TensorFiles
{
	bool pack;             /* the one file is a pack (pack.h): names are canonical, vectors F32 and checked */
	Dsv3TensorFile *files; /* in order of name */
	int n_files;
	Dsv3Tensor **by_name; /* tensors that count, in order of name: with an index those it places */
	int n_by_name;
	int n_tensors; /* in all files */
} Dsv3TensorFiles;

/* Open all weight files of a model directory. False and *err (58P01, 58030, XX001, 54000); *files is then closed. */
extern bool dsv3_tensors_open(Dsv3TensorFiles *files, const char *model_dir, Dsv3Error *err);
extern void dsv3_tensors_close(Dsv3TensorFiles *files);

/* The tensor of that name, marked used, or NULL. */
extern const Dsv3Tensor *dsv3_tensors_find(const Dsv3TensorFiles *files, const char *name);

/* Set an error about a tensor: file "F": tensor "T" <reason>. Returns false. */
extern bool dsv3_tensor_error(Dsv3Error *err, const char *sqlstate, const char *file, const char *tensor,
							  const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* "[3, 4]" in buf, cut when it does not fit; returns buf. */
extern const char *dsv3_shape_text(char *buf, size_t size, const int64_t *dims, int n_dims);

/*
 * Check the header of one file already in memory and list its tensors: what opening does for every file, for tests and
 * fuzzing. data points to size bytes that stay as long as *file is used; release with dsv3_tensor_file_clear.
 */
extern bool dsv3_tensor_file_parse(Dsv3TensorFile *file, const char *name, const void *data, int64_t size,
								   Dsv3Error *err);
extern void dsv3_tensor_file_clear(Dsv3TensorFile *file);

#endif /* DSV3_SAFETENSORS_H */
