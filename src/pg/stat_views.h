/*
 * stat_views.h
 *	  What the statistics' rows and the metrics' text have in common.
 */
#ifndef DSV3_STAT_VIEWS_H
#define DSV3_STAT_VIEWS_H

#include "pg/stat.h"

/* As other engines' metrics name them, without the unit. */
extern const char *const dsv3_latency_names[DSV3_N_LATENCIES];

extern uint64 dsv3_histogram_count(const Dsv3Histogram *histogram);

/* What the experts of a layer have computed, into tokens[n_experts], and together. */
typedef struct Dsv3LayerUse
{
	uint64 tokens;       /* times experts per token */
	double balancedness; /* mean over maximum: 1 is perfectly even; 0 before the first token */
} Dsv3LayerUse;

extern Dsv3LayerUse dsv3_layer_use(const Dsv3Stats *stats, uint32 layer, uint64 *tokens);

#endif /* DSV3_STAT_VIEWS_H */
