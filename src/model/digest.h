/*
 * digest.h
 *	  One SHA-256 that names a model directory; digest.c says what it covers.
 */
#ifndef DSV3_DIGEST_H
#define DSV3_DIGEST_H

#include "model/safetensors.h"

/* Lower-case hex and a terminating zero into digest[65]. False and *err when a file cannot be read. */
extern bool
dsv3_model_digest(char digest[65], const char *model_dir, const Dsv3TensorFiles *files, Dsv3Error *err);

#endif /* DSV3_DIGEST_H */
