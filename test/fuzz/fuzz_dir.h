/*
 * fuzz_dir.h
 *	  A private model directory in memory for fuzz targets that need files.
 */
#ifndef DSV3_FUZZ_DIR_H
#define DSV3_FUZZ_DIR_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char fuzz_dir_path[64];
static char fuzz_dir_names[8][128];
static int fuzz_dir_count;

static void
fuzz_dir_remove(void)
{
	char path[256];

	for (int i = 0; i < fuzz_dir_count; i++)
	{
		snprintf(path, sizeof(path), "%s/%s", fuzz_dir_path, fuzz_dir_names[i]);
		unlink(path);
	}
	rmdir(fuzz_dir_path);
}

/* The directory, made at the first call and removed at exit with the files fuzz_dir_write has put there. */
static const char *
fuzz_dir(void)
{
	if (fuzz_dir_path[0] == '\0')
	{
		snprintf(fuzz_dir_path, sizeof(fuzz_dir_path), "/dev/shm/dsv3-fuzz-XXXXXX");
		if (mkdtemp(fuzz_dir_path) == NULL)
			abort();
		atexit(fuzz_dir_remove);
	}
	return fuzz_dir_path;
}

static void
fuzz_dir_write(const char *name, const void *data, size_t size)
{
	char path[256];
	FILE *file;
	int i = 0;

	snprintf(path, sizeof(path), "%s/%s", fuzz_dir(), name);
	while (i < fuzz_dir_count && strcmp(fuzz_dir_names[i], name) != 0)
		i++;
	if (i == fuzz_dir_count)
		snprintf(fuzz_dir_names[fuzz_dir_count++], sizeof(fuzz_dir_names[0]), "%s", name);
	file = fopen(path, "wb");
	if (file == NULL || fwrite(data, 1, size, file) != size || fclose(file) != 0)
		abort();
}

#endif /* DSV3_FUZZ_DIR_H */
