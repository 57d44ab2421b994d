/*
 * routing.h
 *	  ROUTING: which experts a prompt's tokens go to. The whole prompt is computed, nothing of it is found in the cache, and the routers'
 *	  choices are written down on the way.
 */
#ifndef DSV3_ENGINE_ROUTING_H
#define DSV3_ENGINE_ROUTING_H

#include "engine/sequence.h"

/* What is written down takes n_layers * n_experts_per_token records a token. */
#define DSV3_MAX_ROUTING_TOKENS 512

/* Make an opened prompt one whose routing is wanted. Fails with 0A000 when the model has no experts, 54000 when the prompt is too long. */
extern bool dsv3_routing_open(Dsv3Sequence *seq, Dsv3Error *err);

/* When all of it is computed: into out_text
 * {"experts": n, "tokens": [text of each], "layers": [{"layer": n, "chosen": [of each token [[expert, score, score with bias], ...]]}]} */
extern bool dsv3_routing_json(Dsv3Sequence *seq, Dsv3Error *err);

#endif /* DSV3_ENGINE_ROUTING_H */
