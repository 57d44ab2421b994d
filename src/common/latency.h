/*
 * latency.h
 *	  The classes into which durations are counted, the same for everything that is measured and on both sides of the connection.
 *
 * Class i holds what took at most dsv3_latency_edges[i] microseconds and more than the edge before; the last class, which has no edge,
 * holds the rest. The edges double from 1.25 ms; 0.8 s is one of them because alerts ask for it, and a share can only be told
 * exactly at an edge.
 */
#ifndef DSV3_LATENCY_H
#define DSV3_LATENCY_H

#include <stdint.h>

#define DSV3_LATENCY_EDGES   18
#define DSV3_LATENCY_CLASSES (DSV3_LATENCY_EDGES + 1)

static const uint32_t dsv3_latency_edges[DSV3_LATENCY_EDGES] = {
	1250,   2500,   5000,    10000,   20000,   40000,    80000,    160000,   320000,
	640000, 800000, 1280000, 2560000, 5120000, 10240000, 20480000, 40960000, 81920000};

static inline int
dsv3_latency_class(uint64_t us)
{
	int i = 0;

	while (i < DSV3_LATENCY_EDGES && us > dsv3_latency_edges[i])
		i++;
	return i;
}

#endif /* DSV3_LATENCY_H */
