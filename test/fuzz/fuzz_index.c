/*
 * fuzz_index.c
 *	  Any bytes as model.safetensors.index.json beside two small shards.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_dir.h"
#include "model/safetensors.h"

extern int LLVMFuzzerInitialize(int *argc, char ***argv);
extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
write_shard(const char *name, const char *header)
{
	char bytes[256] = {0};

	bytes[0] = (char) strlen(header);
	memcpy(bytes + 8, header, strlen(header));
	fuzz_dir_write(name, bytes, 8 + strlen(header) + 4);
}

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void) argc;
	(void) argv;
	write_shard("a.safetensors", "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}");
	write_shard("b.safetensors", "{\"u\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}");
	return 0;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Dsv3TensorFiles files;
	Dsv3Error err;

	memset(&err, 0, sizeof(err));
	fuzz_dir_write("model.safetensors.index.json", data, size);
	if (dsv3_tensors_open(&files, fuzz_dir(), &err))
	{
		if (files.n_by_name < 1 || files.n_files > 2)
			abort();
		dsv3_tensors_close(&files);
	}
	else if (strlen(err.sqlstate) != 5 || err.message[0] == '\0')
		abort();
	return 0;
}
