/*
 * text.h
 *	  Texts between the database encoding and UTF-8, which the engine speaks.
 */
#ifndef DSV3_TEXT_H
#define DSV3_TEXT_H

#include "pg/compat.h"

#include "pg/client.h"

/* A text datum in UTF-8. Points into the datum or into new memory of the current context. False: failure is set. */
extern bool dsv3_text_to_utf8(Datum datum, Dsv3Text *text, Dsv3Failure *failure);

/* Bytes of a text datum without fetching it. */
extern Size dsv3_text_size(Datum datum);

/* UTF-8 of the engine in the database encoding, terminated, in the current context. NULL: failure is set. */
extern char *dsv3_text_from_utf8(const char *data, Size len, Size *out_len, Dsv3Failure *failure);

/* Sets the failure of an answer with the character U+0000; returns false. */
extern bool dsv3_text_zero(Dsv3Failure *failure);

/* The same as dsv3_text_from_utf8 for messages: what cannot be represented becomes a question mark. */
extern char *dsv3_text_from_utf8_lossy(const char *data);

#endif /* DSV3_TEXT_H */
