/*
 * text.c
 *	  Texts between the database encoding and UTF-8.
 *
 * Most databases are UTF-8 and nothing is copied. In a SQL_ASCII database no conversion is known: bytes must be valid
 * UTF-8 to go to the engine, and what the engine sends is stored as it is. A character that the database encoding does
 * not have is an error for that row, never replaced; so is the character U+0000, which no PostgreSQL text can hold.
 */
#include "postgres.h"

#include "pg/compat.h"

#include "access/detoast.h"
#include "catalog/namespace.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "pg/text.h"

Size
dsv3_text_size(Datum datum)
{
	return toast_raw_datum_size(datum) - VARHDRSZ;
}

/* For an encoding that nobody converts (MULE_INTERNAL): ASCII is the same in all of them, the rest cannot be converted. */
static bool
convert_ascii(const char *data, Size len, char **result, Size *result_len, Size *good)
{
	for (*good = 0; *good < len && !IS_HIGHBIT_SET(data[*good]);)
		(*good)++;
	if (*good < len)
		return false;
	*result = MemoryContextAllocHuge(CurrentMemoryContext, len + 1);
	memcpy(*result, data, len);
	(*result)[len] = '\0';
	*result_len = len;
	return true;
}

/* Convert; false: from *good on it cannot be. The result is terminated. */
static bool
convert(int from, int to, const char *data, Size len, char **result, Size *result_len, Size *good)
{
	Oid proc = FindDefaultConversionProc(from, to);
	Size room;
	int done;

	*good = 0;
	*result_len = 0;
	if (!OidIsValid(proc))
		return convert_ascii(data, len, result, result_len, good);
	if (len > (MaxAllocHugeSize - 1) / MAX_CONVERSION_GROWTH)
		return false;
	room = len * MAX_CONVERSION_GROWTH + 1;
	*result = MemoryContextAllocHuge(CurrentMemoryContext, room);
	done = pg_do_encoding_conversion_buf(proc, from, to, (unsigned char *) data, (int) len,
										 (unsigned char *) *result, (int) Min(room, (Size) INT_MAX), true);
	*good = (Size) done;
	*result_len = strlen(*result);
	return (Size) done == len;
}

static bool
untranslatable(Dsv3Failure *failure, const char *what, int encoding)
{
	dsv3_error(&failure->error, "22P05", "%s has a character that encoding \"%s\" does not have", what,
			   pg_encoding_to_char(encoding));
	dsv3_error_hint(&failure->error, "Use a database with encoding UTF8.");
	failure->row_error = true;
	return false;
}

bool
dsv3_text_to_utf8(Datum datum, Dsv3Text *text, Dsv3Failure *failure)
{
	struct varlena *value = (struct varlena *) PG_DETOAST_DATUM_PACKED(datum);
	int encoding = GetDatabaseEncoding();
	char *converted;
	Size good;

	text->data = VARDATA_ANY(value);
	text->len = VARSIZE_ANY_EXHDR(value);
	if (encoding == PG_UTF8 || text->len == 0)
		return true;
	if (encoding == PG_SQL_ASCII)
	{
		if (pg_encoding_verifymbstr(PG_UTF8, text->data, (int) text->len) == (int) text->len)
			return true;
		dsv3_error(&failure->error, DSV3_ERR_INVALID_TEXT, "text is not valid UTF-8");
		dsv3_error_hint(&failure->error,
						"In a database with encoding SQL_ASCII, dsv3 takes texts to be UTF-8.");
		failure->row_error = true;
		return false;
	}
	if (!convert(encoding, PG_UTF8, text->data, text->len, &converted, &text->len, &good))
		return untranslatable(failure, "text", PG_UTF8);
	text->data = converted;
	return true;
}

bool
dsv3_text_zero(Dsv3Failure *failure)
{
	dsv3_error(&failure->error, "22P05",
			   "answer has the character U+0000, which PostgreSQL texts cannot hold");
	dsv3_error_hint(&failure->error, "Ask in another way, or use another seed.");
	failure->row_error = true;
	return false;
}

char *
dsv3_text_from_utf8(const char *data, Size len, Size *out_len, Dsv3Failure *failure)
{
	int encoding = GetDatabaseEncoding();
	char *result;
	Size good;

	if (memchr(data, '\0', len) != NULL)
	{
		(void) dsv3_text_zero(failure);
		return NULL;
	}
	if (encoding != PG_UTF8 && encoding != PG_SQL_ASCII && len > 0)
	{
		if (!convert(PG_UTF8, encoding, data, len, &result, out_len, &good))
		{
			untranslatable(failure, "answer", encoding);
			return NULL;
		}
		return result;
	}
	result = palloc(len + 1);
	memcpy(result, data, len);
	result[len] = '\0';
	*out_len = len;
	return result;
}

char *
dsv3_text_from_utf8_lossy(const char *data)
{
	int encoding = GetDatabaseEncoding();
	char *copy = pstrdup(data);
	char *result = copy;
	Size result_len;
	Size good;

	if (encoding == PG_UTF8 || encoding == PG_SQL_ASCII || *copy == '\0')
		return copy;
	while (!convert(PG_UTF8, encoding, copy, strlen(copy), &result, &result_len, &good))
	{
		Size rest = strlen(copy + good);
		Size len = Min(rest, (Size) pg_utf_mblen((unsigned char *) copy + good));

		if (rest == 0)
			return copy; /* nothing is left that could be untranslatable */
		copy[good] = '?';
		memmove(copy + good + 1, copy + good + len, rest - len + 1);
	}
	return result;
}
