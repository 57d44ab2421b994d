/*
 * pack.c
 *	  From the pieces of a pack to tensors; see pack.h.
 */
#include "model/pack.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/quant.h"

/* Every type of the format but DSV3_PACK_FILE. */
static const struct
{
	Dsv3PackType pack;
	Dsv3Type type;
	Dsv3Dtype dtype;
	int element; /* bytes of one number; 0: panels, whose size is the kernels' business */
	const char *name;
} types[] = {
	{DSV3_PACK_F32, DSV3_TYPE_F32, DSV3_DTYPE_F32, 4, "f32"},
	{DSV3_PACK_BF16, DSV3_TYPE_BF16, DSV3_DTYPE_BF16, 2, "bf16"},
	{DSV3_PACK_F16, DSV3_TYPE_F16, DSV3_DTYPE_F16, 2, "f16"},
	{DSV3_PACK_FP8, DSV3_TYPE_FP8, DSV3_DTYPE_F8_E4M3, 1, "fp8"},
	{DSV3_PACK_INT8, DSV3_TYPE_INT8, DSV3_DTYPE_INT8, 0, "int8"},
	{DSV3_PACK_A4, DSV3_TYPE_A4, DSV3_DTYPE_A4, 0, "int4"},
	{DSV3_PACK_S6, DSV3_TYPE_S6, DSV3_DTYPE_S6, 0, "int6"},
};

#define N_TYPES ((int) (sizeof(types) / sizeof(types[0])))

/* Index into types, or -1. */
static int
find_type(int pack_type)
{
	for (int i = 0; i < N_TYPES; i++)
	{
		if ((int) types[i].pack == pack_type)
			return i;
	}
	return -1;
}

const char *
dsv3_pack_type_name(int pack_type)
{
	int i = find_type(pack_type);

	return i < 0 ? NULL : types[i].name;
}

Dsv3PackType
dsv3_pack_type_of(Dsv3Type type)
{
	int i = 0;

	while (types[i].type != type)
		i++;
	return types[i].pack;
}

int64_t
dsv3_pack_tensor_bytes(int pack_type, int n_dims, const int64_t *dims)
{
	int i = find_type(pack_type);
	int64_t bytes;

	if (i < 0 || n_dims < 1 || n_dims > 2)
		return -1;
	if (types[i].element == 0)
	{
		if (n_dims != 2 || dims[0] < 1 || dims[1] < 1 || dims[0] > INT32_MAX || dims[1] > INT32_MAX)
			return -1;
		return (int64_t) dsv3_packed_bytes(types[i].type, (int32_t) dims[0], (int32_t) dims[1]);
	}
	bytes = types[i].element;
	for (int d = 0; d < n_dims; d++)
	{
		if (__builtin_mul_overflow(bytes, dims[d], &bytes))
			return -1;
	}
	return bytes;
}

static int
compare_name(const void *a, const void *b)
{
	return strcmp(((const Dsv3Tensor *) a)->name, ((const Dsv3Tensor *) b)->name);
}

static bool
read_piece(Dsv3Tensor *tensor, const Dsv3Pack *pack, const Dsv3PackPiece *piece, const char *path,
		   Dsv3Error *err)
{
	int i = find_type(piece->type);
	char shape[128];

	if (i < 0)
		return dsv3_tensor_error(err, DSV3_ERR_UNSUPPORTED, path, piece->name,
								 "has type %d, which this version does not know", piece->type);
	if (piece->bytes != dsv3_pack_tensor_bytes(piece->type, piece->n_dims, piece->dims))
		return dsv3_tensor_error(err, DSV3_ERR_BAD_FILE, path, piece->name,
								 "of type %s and shape %s does not fit in its %lld bytes", types[i].name,
								 dsv3_shape_text(shape, sizeof(shape), piece->dims, piece->n_dims),
								 (long long) piece->bytes);
	tensor->dtype = types[i].dtype;
	tensor->dtype_name = types[i].name;
	tensor->n_dims = piece->n_dims;
	memcpy(tensor->dims, piece->dims, sizeof(piece->dims));
	tensor->data = pack->base + piece->offset;
	tensor->bytes = piece->bytes;
	tensor->name = strdup(piece->name);
	if (tensor->name == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading pack \"%s\"", path);
	return true;
}

/* The tensors of *pack into *file, in order of name. */
static bool
list_tensors(Dsv3TensorFile *file, const Dsv3Pack *pack, const char *path, Dsv3Error *err)
{
	file->name = strdup(path);
	file->tensors = calloc(pack->n_pieces ? (size_t) pack->n_pieces : 1, sizeof(Dsv3Tensor));
	if (file->name == NULL || file->tensors == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading pack \"%s\"", path);
	for (int i = 0; i < pack->n_pieces; i++)
	{
		Dsv3Tensor *tensor = &file->tensors[file->n_tensors];

		if (pack->pieces[i].type == DSV3_PACK_FILE)
			continue;
		if (!read_piece(tensor, pack, &pack->pieces[i], path, err))
			return false;
		tensor->file = file;
		file->n_tensors++;
	}
	qsort(file->tensors, (size_t) file->n_tensors, sizeof(Dsv3Tensor), compare_name);
	for (int i = 1; i < file->n_tensors; i++)
	{
		if (strcmp(file->tensors[i].name, file->tensors[i - 1].name) == 0)
			return dsv3_tensor_error(err, DSV3_ERR_BAD_FILE, path, file->tensors[i].name, "is there twice");
	}
	return true;
}

bool
dsv3_pack_tensors(Dsv3TensorFiles *files, const char *path, char digest[65], Dsv3Error *err)
{
	Dsv3Pack pack;
	Dsv3TensorFile *file;

	memset(files, 0, sizeof(*files));
	if (!dsv3_pack_open(&pack, path, err))
		return false;
	file = files->files = calloc(1, sizeof(*file));
	if (file == NULL)
	{
		dsv3_pack_close(&pack);
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading pack \"%s\"", path);
	}
	/* From here on the mapping is the file's. */
	files->pack = true;
	files->n_files = 1;
	file->base = pack.base;
	file->size = pack.size;
	memcpy(digest, pack.digest, sizeof(pack.digest));
	if (list_tensors(file, &pack, path, err))
	{
		files->n_tensors = file->n_tensors;
		files->by_name = calloc(file->n_tensors ? (size_t) file->n_tensors : 1, sizeof(Dsv3Tensor *));
		if (files->by_name == NULL)
			dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading pack \"%s\"", path);
	}
	dsv3_pack_clear(&pack);
	if (files->by_name == NULL)
	{
		dsv3_tensors_close(files);
		return false;
	}
	for (int i = 0; i < file->n_tensors; i++)
		files->by_name[files->n_by_name++] = &file->tensors[i];
	return true;
}
