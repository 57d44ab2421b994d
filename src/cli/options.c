/*
 * options.c
 *	  Reading the option values that several subcommands share; see options.h.
 */
#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool
dsv3_cli_integer(const char *value, int64_t min, int64_t max, int64_t *result)
{
	char *end;
	long long n;

	if (!isdigit((unsigned char) value[0]) && value[0] != '-')
		return false;
	errno = 0;
	n = strtoll(value, &end, 10);
	if (errno != 0 || *end != '\0' || end == value || n < min || n > max)
		return false;
	*result = n;
	return true;
}

int32_t *
dsv3_cli_id_list(const char *text, int32_t max, int *count)
{
	size_t capacity = 16;
	int32_t *ids = malloc(capacity * sizeof(*ids));
	int n = 0;
	bool comma = false; /* behind one, an id must follow */

	while (ids)
	{
		long long value;
		char *end;

		while (isspace((unsigned char) *text) || (*text == ',' && n > 0 && !comma))
			comma = *text++ == ',' || comma;
		if (*text == '\0' && !comma)
			break;
		errno = 0;
		value = isdigit((unsigned char) *text) ? strtoll(text, &end, 10) : -1;
		if (value < 0 || errno != 0 || value > max || n == INT32_MAX ||
			(*end != '\0' && *end != ',' && !isspace((unsigned char) *end)))
		{
			free(ids);
			return NULL;
		}
		text = end;
		if ((size_t) n == capacity)
		{
			int32_t *more = realloc(ids, capacity * 2 * sizeof(*ids));

			if (!more)
			{
				free(ids);
				return NULL;
			}
			ids = more;
			capacity *= 2;
		}
		ids[n++] = (int32_t) value;
		comma = false;
	}
	if (n == 0)
	{
		free(ids);
		return NULL;
	}
	*count = n;
	return ids;
}

char *
dsv3_cli_read_file(const char *path, int64_t limit, int64_t *length, Dsv3Error *err)
{
	FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
	char *data = NULL;
	size_t used = 0, capacity = 65536;
	bool failed = false;

	if (!file)
	{
		dsv3_error(err, errno == ENOENT ? DSV3_ERR_NO_FILE : DSV3_ERR_FILE, "could not open file \"%s\": %s",
				   path, strerror(errno));
		return NULL;
	}
	while (!failed)
	{
		char *more = realloc(data, capacity + 1);
		size_t n;

		if (!more)
		{
			failed = true;
			dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading file \"%s\"", path);
			break;
		}
		data = more;
		n = fread(data + used, 1, capacity - used, file);
		used += n;
		if (ferror(file))
		{
			failed = true;
			dsv3_error(err, DSV3_ERR_FILE, "could not read file \"%s\": %s", path, strerror(errno));
		}
		else if ((int64_t) used > limit)
		{
			failed = true;
			dsv3_error(err, DSV3_ERR_TOO_LARGE, "file \"%s\" is larger than %lld bytes", path,
					   (long long) limit);
		}
		else if (n == 0)
			break;
		else if (used == capacity)
			capacity *= 2;
	}
	if (file != stdin)
		fclose(file);
	if (failed)
	{
		free(data);
		return NULL;
	}
	data[used] = '\0';
	*length = (int64_t) used;
	return data;
}
