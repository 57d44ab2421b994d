/*
 * json_file.c
 *	  Bounded reading of small files and of JSON objects; see json_file.h.
 */
#include "model/json_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/packfile.h"

/* Bytes of the well-formed UTF-8 character at p, 0 when there is none. */
static size_t
utf8_character(const unsigned char *p)
{
	uint32_t c;
	size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;

	if (n == 1)
		return 1;
	if (p[0] < 0xC2 || p[0] > 0xF4)
		return 0;
	c = p[0] & (0xFFu >> (n + 1));
	for (size_t i = 1; i < n; i++)
	{
		if ((p[i] & 0xC0) != 0x80) /* also stops at the terminator */
			return 0;
		c = c << 6 | (p[i] & 0x3F);
	}
	if ((n == 3 && (c < 0x800 || (c >= 0xD800 && c < 0xE000))) || (n == 4 && (c < 0x10000 || c > 0x10FFFF)))
		return 0;
	return n;
}

const char *
dsv3_shown_name(char buf[DSV3_SHOWN_NAME], const char *name)
{
	const unsigned char *p = (const unsigned char *) name;
	size_t used = 0;

	while (*p)
	{
		size_t n = utf8_character(p);

		if (used + (n ? n : 1) > DSV3_SHOWN_NAME - 4)
		{
			memcpy(buf + used, "...", 4);
			return buf;
		}
		if (n == 0 || *p < 0x20 || *p == 0x7F)
		{
			buf[used++] = '?';
			p++;
			continue;
		}
		memcpy(buf + used, p, n);
		used += n;
		p += n;
	}
	buf[used] = '\0';
	return buf;
}

int
dsv3_open_regular(const char *dir, const char *name, int64_t max_bytes, int64_t *size, Dsv3Error *err)
{
	char path[PATH_MAX];
	char shown[DSV3_SHOWN_NAME];
	struct stat st;
	int fd;
	int n;

	n = name ? snprintf(path, sizeof(path), "%s/%s", dir, name) : snprintf(path, sizeof(path), "%s", dir);
	dsv3_shown_name(shown, name ? name : dir);
	if (n < 0 || (size_t) n >= sizeof(path))
	{
		dsv3_error(err, DSV3_ERR_FILE, "could not open file \"%s\": path is too long", shown);
		return -1;
	}
	/* Not blocking: opening a pipe somebody put there must not hang. */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
	{
		bool missing = errno == ENOENT || errno == ENOTDIR;

		dsv3_error(err, missing ? DSV3_ERR_NO_FILE : DSV3_ERR_FILE, "could not open file \"%s\": %s", shown,
				   strerror(errno));
		if (name)
			dsv3_error_detail(err, "The model directory is \"%s\".", dir);
		return -1;
	}
	if (fstat(fd, &st) != 0)
		dsv3_error(err, DSV3_ERR_FILE, "could not stat file \"%s\": %s", shown, strerror(errno));
	else if (!S_ISREG(st.st_mode))
		dsv3_error(err, DSV3_ERR_FILE, "\"%s\" is not a regular file", shown);
	else if (st.st_size == 0)
		dsv3_error(err, DSV3_ERR_BAD_FILE, "file \"%s\" is empty", shown);
	else if (st.st_size > max_bytes)
		dsv3_error(err, DSV3_ERR_TOO_LARGE, "file \"%s\" is too large: %lld bytes, at most %lld are read",
				   shown, (long long) st.st_size, (long long) max_bytes);
	else
	{
		*size = st.st_size;
		return fd;
	}
	close(fd);
	return -1;
}

char *
dsv3_read_file(const char *dir, const char *name, int64_t max_bytes, size_t *len, Dsv3Error *err)
{
	int64_t size;
	size_t done = 0;
	char *text;
	char shown[DSV3_SHOWN_NAME];
	int fd;

	if (dsv3_pack_is(dir))
		return dsv3_pack_read_file(dir, name, max_bytes, len, err);
	fd = dsv3_open_regular(dir, name, max_bytes, &size, err);
	if (fd < 0)
		return NULL;
	text = malloc((size_t) size + 1);
	if (text == NULL)
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading file \"%s\"",
				   dsv3_shown_name(shown, name));
	while (text && done < (size_t) size)
	{
		ssize_t n = read(fd, text + done, (size_t) size - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
		{
			dsv3_error(err, DSV3_ERR_FILE, "could not read file \"%s\": %s", dsv3_shown_name(shown, name),
					   n < 0 ? strerror(errno) : "it became shorter while being read");
			free(text);
			text = NULL;
			break;
		}
		done += (size_t) n;
	}
	close(fd);
	if (text)
	{
		text[size] = '\0';
		*len = (size_t) size;
	}
	return text;
}

json_t *
dsv3_json_parse_object(const char *text, size_t len, const char *file, Dsv3Error *err)
{
	json_error_t problem;
	char shown[DSV3_SHOWN_NAME];
	char reason[DSV3_SHOWN_NAME];
	json_t *value = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &problem);

	dsv3_shown_name(shown, file);
	if (value == NULL)
	{
		dsv3_error(err, DSV3_ERR_BAD_FILE, "file \"%s\" is not valid JSON: %s (line %d, byte %d)", shown,
				   dsv3_shown_name(reason, problem.text), problem.line, problem.position);
		return NULL;
	}
	if (!json_is_object(value))
	{
		json_decref(value);
		dsv3_error(err, DSV3_ERR_BAD_FILE, "file \"%s\" does not contain a JSON object", shown);
		return NULL;
	}
	return value;
}

void
dsv3_json_fail(Dsv3JsonReader *reader, const char *sqlstate, const char *key, const char *fmt, ...)
{
	char reason[512];
	char shown_file[DSV3_SHOWN_NAME];
	va_list ap;

	if (reader->failed)
		return;
	reader->failed = true;
	va_start(ap, fmt);
	if (vsnprintf(reason, sizeof(reason), fmt, ap) < 0)
		reason[0] = '\0';
	va_end(ap);
	dsv3_error(reader->err, sqlstate, "%s: %s%s %s", dsv3_shown_name(shown_file, reader->file), reader->where,
			   key, reason);
}

const json_t *
dsv3_json_get(const Dsv3JsonReader *reader, const char *key)
{
	const json_t *value = json_object_get(reader->object, key);

	return json_is_null(value) ? NULL : value;
}

/* What a value is, for messages. */
static const char *
kind_of(const json_t *value)
{
	switch (json_typeof(value))
	{
		case JSON_OBJECT:
			return "an object";
		case JSON_ARRAY:
			return "an array";
		case JSON_STRING:
			return "a string";
		case JSON_INTEGER:
			return "an integer";
		case JSON_REAL:
			return "a fractional number";
		case JSON_TRUE:
		case JSON_FALSE:
			return "a truth value";
		default:
			return "null";
	}
}

int64_t
dsv3_json_int(Dsv3JsonReader *reader, const char *key, int64_t absent, int64_t min, int64_t max)
{
	const json_t *value = dsv3_json_get(reader, key);
	int64_t n;

	if (reader->failed || value == NULL)
		return absent;
	if (!json_is_integer(value))
	{
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, key, "is %s, must be an integer", kind_of(value));
		return absent;
	}
	n = json_integer_value(value);
	if (n < min || n > max)
	{
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, key, "is %lld, must be between %lld and %lld",
					   (long long) n, (long long) min, (long long) max);
		return absent;
	}
	return n;
}

double
dsv3_json_number(Dsv3JsonReader *reader, const char *key, double absent, double min, double max)
{
	const json_t *value = dsv3_json_get(reader, key);
	double x;

	if (reader->failed || value == NULL)
		return absent;
	if (!json_is_number(value))
	{
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, key, "is %s, must be a number", kind_of(value));
		return absent;
	}
	x = json_number_value(value);
	if (!isfinite(x) || x < min || x > max)
	{
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, key, "is %g, must be between %g and %g", x, min, max);
		return absent;
	}
	return x;
}

bool
dsv3_json_bool(Dsv3JsonReader *reader, const char *key, bool absent)
{
	const json_t *value = dsv3_json_get(reader, key);

	if (reader->failed || value == NULL)
		return absent;
	if (!json_is_boolean(value))
	{
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, key, "is %s, must be true or false", kind_of(value));
		return absent;
	}
	return json_is_true(value);
}

const char *
dsv3_json_string(Dsv3JsonReader *reader, const char *key, const char *absent)
{
	const json_t *value = dsv3_json_get(reader, key);

	if (reader->failed || value == NULL)
		return absent;
	if (!json_is_string(value))
	{
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, key, "is %s, must be a string", kind_of(value));
		return absent;
	}
	return json_string_value(value);
}

const json_t *
dsv3_json_object(Dsv3JsonReader *reader, const char *key)
{
	const json_t *value = dsv3_json_get(reader, key);

	if (reader->failed || value == NULL)
		return NULL;
	if (!json_is_object(value))
	{
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, key, "is %s, must be an object", kind_of(value));
		return NULL;
	}
	return value;
}
