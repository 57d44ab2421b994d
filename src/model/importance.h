/*
 * importance.h
 *	  How much each input column of each matrix matters: the mean square of what a text brings there.
 *
 * The model reads the text as stored, and the inputs of every matrix product are looked at as they pass. Errors of a weight
 * reach the output multiplied by its input, so packing weighs the squares of a row's errors by these means. An expert that
 * few tokens reach has few inputs of its own; its means lean on those of all experts of the layer.
 *
 * Memory: one F32 for each input column of each matrix, 0.1 to 0.2 % of the model's weights.
 */
#ifndef DSV3_IMPORTANCE_H
#define DSV3_IMPORTANCE_H

#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

typedef struct Dsv3Importance Dsv3Importance;

/* Read the ids, n >= 1 of them, with the model in pieces of at most 512 ids, each begun with bos unless that is negative.
 * The result depends on the model and the ids only. NULL and *err. */
extern Dsv3Importance *dsv3_importance_open(const char *model_dir, const int32_t *ids, size_t n, int32_t bos,
											int threads, Dsv3Error *err);
extern void dsv3_importance_close(Dsv3Importance *importance);

/* The [in] means of the matrix of that name (as in Dsv3Part), all positive; NULL for one that no product reads. */
extern const float *dsv3_importance_of(const Dsv3Importance *importance, const char *name);

/* SHA-256 of all numbers, in hex. */
extern const char *dsv3_importance_digest(const Dsv3Importance *importance);

#endif /* DSV3_IMPORTANCE_H */
