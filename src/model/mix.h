/*
 * mix.h
 *	  Which type each kind of matrix gets when a model is made smaller; the same rules for packs and for weights converted when a
 *	  model is opened, so that both give the same numbers.
 */
#ifndef DSV3_MODEL_MIX_H
#define DSV3_MODEL_MIX_H

#include "model/checkpoint.h"

/* Rows of these are read one by one, and of the latent expansion columns too, which panels do not allow. */
extern bool dsv3_mix_by_rows(Dsv3MatrixRole role);

/* The type a matrix becomes with 16, 8 or 4 bits; its own when it stays as stored. */
extern Dsv3Type dsv3_mix_type(int bits, Dsv3MatrixRole role, Dsv3Type stored);

#endif /* DSV3_MODEL_MIX_H */
