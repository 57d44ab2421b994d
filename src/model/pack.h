/*
 * pack.h
 *	  A pack's tensors, as if they were those of a safetensors file.
 *
 * What can be checked without the configuration is checked: the types are ones this engine has, and each tensor's size
 * is what its type and shape make it. Whether a type will do for what the tensor is used for is weights.c's business.
 */
#ifndef DSV3_MODEL_PACK_H
#define DSV3_MODEL_PACK_H

#include "common/packfile.h"
#include "kernels/ops.h"
#include "model/safetensors.h"

/* Open the pack at path: *files gets one file with all its tensors and the mapping, to be closed with
 * dsv3_tensors_close; digest[65] the digest of the model. False and *err as dsv3_pack_open. */
extern bool dsv3_pack_tensors(Dsv3TensorFiles *files, const char *path, char digest[65], Dsv3Error *err);

/* The kernels' type of a pack's matrices and the other way round, with the name they have in listings and on the command line
 * ("bf16"). NULL when the pack type is no kernel type, or one that is not known. */
extern const char *dsv3_pack_type_name(int pack_type);
extern Dsv3PackType dsv3_pack_type_of(Dsv3Type type);

/* Bytes of a tensor of the given pack type; -1 when it cannot have this shape. */
extern int64_t dsv3_pack_tensor_bytes(int pack_type, int n_dims, const int64_t *dims);

#endif /* DSV3_MODEL_PACK_H */
