/*
 * utf8.h
 *	  UTF-8 as Unicode defines it: no surrogates, no overlong forms, nothing beyond U+10FFFF.
 */
#ifndef DSV3_UTF8_H
#define DSV3_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

/*
 * Look at the character that begins at p (n > 0 bytes are there). Returns its length, and *c, when it is whole and
 * valid. Otherwise returns minus the length of the maximal invalid part (Unicode 16, section 3.9, "substitution of
 * maximal subparts", what Rust's from_utf8_lossy replaces by one U+FFFD), and *incomplete tells whether it ends only
 * because the bytes end.
 */
extern int dsv3_utf8_next(const uint8_t *p, size_t n, uint32_t *c, bool *incomplete);

/* What Python's str.isspace() says of one character. */
extern bool dsv3_is_python_space(uint32_t c);

/* Length of a valid character by its first byte. */
static inline size_t
dsv3_utf8_length(uint8_t lead)
{
	return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* Write c (a scalar value) to out[0..4); returns the length. */
extern int dsv3_utf8_put(uint32_t c, char *out);

/* Fails with 22021, naming the offset of the first invalid byte. */
extern bool dsv3_utf8_check(const char *text, size_t len, Dsv3Error *err);

#endif /* DSV3_UTF8_H */
