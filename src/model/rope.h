/*
 * rope.h
 *	  Angles of the rotary embedding.
 */
#ifndef DSV3_ROPE_H
#define DSV3_ROPE_H

#include "model/config.h"

/* cos and sin of position's angles, times attention_factor: n_pairs = qk_rope_dim / 2 floats each. */
extern void dsv3_rope_angles(const Dsv3Rope *rope, int n_pairs, int32_t position, float *cosine, float *sine);

/* Cosine and sine of an F32 angle in radians, each the correctly rounded value but for rare half-way cases. */
extern void dsv3_sincos(float angle, float *sine, float *cosine);

#endif /* DSV3_ROPE_H */
