/*
 * weights.h
 *	  From tensor names to the structs of checkpoint.h, all matrices as stored. Used by checkpoint.c and the inspect command.
 */
#ifndef DSV3_WEIGHTS_H
#define DSV3_WEIGHTS_H

#include "model/arena.h"
#include "model/checkpoint.h"
#include "model/safetensors.h"

typedef struct Dsv3WeightCounts
{
	int n_mtp;     /* tensors of layers past the last, used or not */
	int n_ignored; /* others that nobody asked for */
} Dsv3WeightCounts;

/*
 * Resolve every tensor of the model. Matrices point into the mappings, or into the arena where alignment needs a copy;
 * vectors and routers are widened into the arena. The layer array and the expert arrays are malloc'd and belong to
 * *weights, which dsv3_weights_clear releases, also after a failure. Of the options check_only (read vectors only to check
 * them, copy no matrix, leave routers NULL), drafts and part are looked at.
 */
extern bool dsv3_weights_resolve(Dsv3Weights *weights, const Dsv3Config *config, const Dsv3TensorFiles *files,
								 Dsv3Arena *arena, const Dsv3CheckpointOptions *options, Dsv3Error *err);
extern void dsv3_weights_clear(Dsv3Weights *weights, const Dsv3Config *config);

/* Count what the model itself does not use. */
extern Dsv3WeightCounts dsv3_weights_count_unused(const Dsv3Config *config, const Dsv3TensorFiles *files);

/* Is this the name of a tensor of an MTP layer? */
extern bool dsv3_tensor_is_mtp(const Dsv3Config *config, const char *name);

/* Visit every matrix of the model, a tied head once as embed. The callback may change the matrix. */
typedef void (*Dsv3MatrixVisitor)(void *context, Dsv3MatrixRole role, Dsv3Weight *weight);
extern void
dsv3_weights_visit(Dsv3Weights *weights, const Dsv3Config *config, Dsv3MatrixVisitor visit, void *context);

/* The same for the draft layer, if there is one. */
extern void dsv3_weights_visit_draft(Dsv3Weights *weights, const Dsv3Config *config, Dsv3MatrixVisitor visit,
									 void *context);

#endif /* DSV3_WEIGHTS_H */
