/*
 * json_file.h
 *	  Small files of a model, read whole with a size limit, and JSON objects read key by key.
 *
 * A Dsv3JsonReader keeps the first problem it meets: after that every getter returns its default and changes nothing, so
 * that a caller can read all keys in a row and look at `failed` once. Messages name the file, the key and the reason.
 * The reader borrows everything it points to.
 */
#ifndef DSV3_JSON_FILE_H
#define DSV3_JSON_FILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

/* Longest file name and tensor name shown in a message. */
#define DSV3_SHOWN_NAME 160

/* Copy a name from a hostile file into buf for a message: control characters and what is not UTF-8 become '?'; what does
 * not fit is cut at a character boundary and ends in "...". Returns buf. */
extern const char *dsv3_shown_name(char buf[DSV3_SHOWN_NAME], const char *name);

/*
 * Open dir/name (or dir itself when name is NULL) read-only as a regular file of at most max_bytes. Returns the descriptor
 * and *size, or -1 and *err: 58P01 when it does not exist, 58030 when it is not a regular file or cannot be
 * opened, XX001 when it is empty, 54000 when it is too large.
 */
extern int
dsv3_open_regular(const char *dir, const char *name, int64_t max_bytes, int64_t *size, Dsv3Error *err);

/* Read dir/name whole, or the file of that name in a pack: malloc'd, zero-terminated, *len without the terminator. NULL
 * and *err as above. */
extern char *
dsv3_read_file(const char *dir, const char *name, int64_t max_bytes, size_t *len, Dsv3Error *err);

/* Parse one JSON object; duplicate keys are refused. NULL and XX001 naming `file` on any problem. */
extern json_t *dsv3_json_parse_object(const char *text, size_t len, const char *file, Dsv3Error *err);

typedef struct Dsv3JsonReader
{
	const json_t *object;
	const char *file;  /* for messages */
	const char *where; /* path of the object inside the file, "" or "rope_scaling." */
	Dsv3Error *err;
	bool failed;
} Dsv3JsonReader;

/* The value of key, or NULL when it is absent or null. */
extern const json_t *dsv3_json_get(const Dsv3JsonReader *reader, const char *key);

/* An integer in [min, max]; `absent` when the key is absent or null. A fraction, even 8.0, is refused. */
extern int64_t
dsv3_json_int(Dsv3JsonReader *reader, const char *key, int64_t absent, int64_t min, int64_t max);

/* A finite number in [min, max], written with or without a fraction. */
extern double
dsv3_json_number(Dsv3JsonReader *reader, const char *key, double absent, double min, double max);

extern bool dsv3_json_bool(Dsv3JsonReader *reader, const char *key, bool absent);

/* A string, borrowed from the object. */
extern const char *dsv3_json_string(Dsv3JsonReader *reader, const char *key, const char *absent);

/* An object, or NULL when absent or null. */
extern const json_t *dsv3_json_object(Dsv3JsonReader *reader, const char *key);

/* Record a problem with a key: "file: where+key reason". Does nothing after the first. */
extern void dsv3_json_fail(Dsv3JsonReader *reader, const char *sqlstate, const char *key, const char *fmt,
						   ...) __attribute__((format(printf, 4, 5)));

#endif /* DSV3_JSON_FILE_H */
