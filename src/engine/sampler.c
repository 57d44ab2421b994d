/*
 * sampler.c
 *	  Sampling; see sampler.h for order and rules.
 */
#include "engine/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Philox-4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011), section 3.3. */
static void
philox(uint64_t key, uint64_t counter, uint32_t out[4])
{
	uint32_t c[4] = {(uint32_t) counter, (uint32_t) (counter >> 32), 0, 0};
	uint32_t k0 = (uint32_t) key;
	uint32_t k1 = (uint32_t) (key >> 32);

	for (int round = 0; round < 10; round++)
	{
		uint64_t p0 = (uint64_t) 0xD2511F53u * c[0];
		uint64_t p1 = (uint64_t) 0xCD9E8D57u * c[2];
		uint32_t n0 = (uint32_t) (p1 >> 32) ^ c[1] ^ k0;
		uint32_t n2 = (uint32_t) (p0 >> 32) ^ c[3] ^ k1;

		c[1] = (uint32_t) p1;
		c[3] = (uint32_t) p0;
		c[0] = n0;
		c[2] = n2;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	memcpy(out, c, sizeof(c));
}

double
dsv3_random_uniform(int64_t seed, uint64_t index)
{
	uint32_t r[4];

	philox((uint64_t) seed, index, r);
	return (double) (((uint64_t) r[1] << 32 | r[0]) >> 11) * 0x1.0p-53;
}

bool
dsv3_sampler_open(Dsv3Sampler *sampler, int n_ids, Dsv3Error *err)
{
	sampler->n_ids = n_ids;
	sampler->ids = malloc((size_t) n_ids * sizeof(int32_t));
	sampler->scores = malloc((size_t) n_ids * sizeof(double));
	sampler->order = malloc((size_t) n_ids * sizeof(int32_t));
	if (sampler->ids && sampler->scores && sampler->order)
		return true;
	dsv3_sampler_close(sampler);
	return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for sampling over %d ids", n_ids);
}

void
dsv3_sampler_close(Dsv3Sampler *sampler)
{
	free(sampler->ids);
	free(sampler->scores);
	free(sampler->order);
	memset(sampler, 0, sizeof(*sampler));
}

bool
dsv3_seen_open(Dsv3SeenIds *seen, const Dsv3Sampling *sampling, int n_ids, Dsv3Error *err)
{
	memset(seen, 0, sizeof(*seen));
	if (sampling->repetition_penalty == 1.0)
		return true;
	seen->bits = calloc((size_t) n_ids / 64 + 1, sizeof(uint64_t));
	seen->n_ids = n_ids;
	return seen->bits || dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory for a repetition penalty");
}

void
dsv3_seen_add(Dsv3SeenIds *seen, int32_t id)
{
	if (seen->bits && id >= 0 && id < seen->n_ids)
		seen->bits[id / 64] |= UINT64_C(1) << (id % 64);
}

void
dsv3_seen_close(Dsv3SeenIds *seen)
{
	free(seen->bits);
	seen->bits = NULL;
}

static inline bool
was_seen(const Dsv3SeenIds *seen, int id)
{
	return seen->bits[id / 64] >> (id % 64) & 1;
}

/* The penalty of Keskar et al., "CTRL" (2019), section 4.1, in the form Hugging Face gives it: away from zero for
 * negative scores, towards zero for positive ones. */
static void
apply_penalty(const int32_t *ids, double *scores, int n, const Dsv3SeenIds *seen, double penalty)
{
	for (int i = 0; i < n; i++)
	{
		if (was_seen(seen, ids[i]))
			scores[i] = scores[i] < 0 ? scores[i] * penalty : scores[i] / penalty;
	}
}

static bool
bad_logit(int id, float value, Dsv3Error *err)
{
	dsv3_error(err, DSV3_ERR_INTERNAL, "the model gave a score that is not a finite number (token %d: %f)",
			   id, value);
	return dsv3_error_hint(err, "The model's weights are damaged, or the model needs a wider number format.");
}

/* NaN or plus infinity anywhere? */
static bool
check_logits(const float *logits, int n, Dsv3Error *err)
{
	for (int id = 0; id < n; id++)
	{
		if (!(logits[id] < INFINITY))
			return bad_logit(id, logits[id], err);
	}
	return true;
}

static int
arg_max(const double *scores, int n)
{
	int best = 0;

	for (int i = 1; i < n; i++)
	{
		if (scores[i] > scores[best])
			best = i;
	}
	return best;
}

/*
 * Sort order[0..n) by score, largest first, first place first among equals. Places come in rising order, so a heap sort keyed by
 * (score, place) gives one result; qsort is not used because its comparison would need the scores in a global.
 */
static inline bool
ranks_after(const double *scores, int32_t a, int32_t b)
{
	return scores[a] < scores[b] || (scores[a] == scores[b] && a > b);
}

static void
sift_down(const double *scores, int32_t *order, int at, int n)
{
	for (;;)
	{
		int child = 2 * at + 1;
		int32_t held = order[at];

		if (child >= n)
			return;
		if (child + 1 < n && ranks_after(scores, order[child + 1], order[child]))
			child++;
		if (!ranks_after(scores, order[child], held))
			return;
		order[at] = order[child];
		order[child] = held;
		at = child;
	}
}

static void
sort_by_score(const double *scores, int32_t *order, int n)
{
	for (int at = n / 2 - 1; at >= 0; at--)
		sift_down(scores, order, at, n);
	/* The root is the last of those left: move it to the end of the unsorted part. */
	for (int left = n - 1; left > 0; left--)
	{
		int32_t last = order[0];

		order[0] = order[left];
		order[left] = last;
		sift_down(scores, order, 0, left);
	}
}

/* order = the places with a score of at least floor, rising; returns how many. */
static int
gather(const double *scores, int n, double floor, int32_t *order)
{
	int count = 0;

	for (int i = 0; i < n; i++)
	{
		if (scores[i] >= floor)
			order[count++] = i;
	}
	return count;
}

/* The score of the k-th largest, by a heap of the k best met so far whose root is the worst of them. */
static double
kth_largest(const double *scores, int n, int k, int32_t *heap)
{
	for (int i = 0; i < k; i++)
		heap[i] = i;
	for (int at = k / 2 - 1; at >= 0; at--)
		sift_down(scores, heap, at, k);
	for (int i = k; i < n; i++)
	{
		if (scores[i] > scores[heap[0]])
		{
			heap[0] = i;
			sift_down(scores, heap, 0, k);
		}
	}
	return scores[heap[0]];
}

/*
 * The smallest score that top-p keeps: going down from the largest, ids are kept until those before them reach p of the
 * mass. Only as much of the order as needed is sorted: the ids within a distance of the largest are a prefix of it.
 */
static double
top_p_floor(const double *scores, int n, double floor, double p, int32_t *order)
{
	double largest = scores[arg_max(scores, n)];
	double total = 0.0;

	for (int i = 0; i < n; i++)
	{
		if (scores[i] >= floor)
			total += exp(scores[i] - largest);
	}
	for (double distance = 8.0;; distance *= 4.0)
	{
		/* Below the largest by this much is nothing in double precision. */
		double reach = distance < 1000.0 && largest - distance > floor ? largest - distance : floor;
		int count = gather(scores, n, reach, order);
		double before = 0.0;

		sort_by_score(scores, order, count);
		for (int i = 0; i < count; i++)
		{
			if (before >= p * total && i > 0)
				return scores[order[i - 1]];
			before += exp(scores[order[i]] - largest);
		}
		if (reach == floor)
			return floor;
	}
}

/* Draw a place from the softmax of the scores at or above floor. */
static int
draw(const double *scores, int n, double floor, double uniform)
{
	double largest = scores[arg_max(scores, n)];
	double total = 0.0;
	double sum = 0.0;
	int last = -1;

	for (int i = 0; i < n; i++)
	{
		if (scores[i] >= floor)
			total += exp(scores[i] - largest);
	}
	for (int i = 0; i < n; i++)
	{
		double weight = scores[i] >= floor ? exp(scores[i] - largest) : 0.0;

		if (weight == 0.0)
			continue;
		last = i;
		sum += weight;
		if (sum > uniform * total)
			return i;
	}
	return last; /* rounding at the upper end */
}

/* Choose among the first n of sampler->ids by sampler->scores, which are overwritten. */
static bool
choose(Dsv3Sampler *sampler, const Dsv3Sampling *sampling, const Dsv3SeenIds *seen, int n, uint64_t index,
	   int32_t *id, Dsv3Error *err)
{
	double *scores = sampler->scores;
	double floor;
	int best;

	if (seen->bits)
		apply_penalty(sampler->ids, scores, n, seen, sampling->repetition_penalty);
	best = arg_max(scores, n);
	if (n == 0 || scores[best] == -INFINITY)
		return dsv3_error(err, DSV3_ERR_INTERNAL, "the model left no token possible");
	*id = sampler->ids[best];
	if (sampling->temperature == 0.0)
		return true;

	for (int i = 0; i < n; i++)
		scores[i] /= sampling->temperature;
	/* A tiny temperature may make the scores overflow; the distribution's limit is the greedy choice. */
	if (!isfinite(scores[best]))
		return true;
	floor = -DBL_MAX; /* keeps every finite score */
	if (sampling->top_k > 0 && sampling->top_k < (uint32_t) n)
		floor = fmax(floor, kth_largest(scores, n, (int) sampling->top_k, sampler->order));
	if (sampling->top_p < 1.0)
		floor = top_p_floor(scores, n, floor, sampling->top_p, sampler->order);
	if (sampling->min_p > 0.0)
		floor = fmax(floor, scores[best] + log(sampling->min_p));
	*id = sampler->ids[draw(scores, n, floor, dsv3_random_uniform(sampling->seed, index))];
	return true;
}

bool
dsv3_sampler_pick(Dsv3Sampler *sampler, const Dsv3Sampling *sampling, const Dsv3SeenIds *seen,
				  const float *logits, const uint64_t *allowed, uint64_t index, int32_t *id, Dsv3Error *err)
{
	int n = 0;

	for (int i = 0; i < sampler->n_ids; i++)
	{
		if (allowed && !(allowed[i / 64] >> (i % 64) & 1))
			continue;
		if (!(logits[i] < INFINITY))
			return bad_logit(i, logits[i], err);
		sampler->ids[n] = i;
		sampler->scores[n++] = logits[i];
	}
	return choose(sampler, sampling, seen, n, index, id, err);
}

bool
dsv3_sampler_pick_listed(Dsv3Sampler *sampler, const Dsv3Sampling *sampling, const Dsv3SeenIds *seen,
						 const int32_t *ids, const float *logits, int n, uint64_t index, int32_t *id,
						 Dsv3Error *err)
{
	for (int i = 0; i < n; i++)
	{
		if (!(logits[i] < INFINITY))
			return bad_logit(ids[i], logits[i], err);
		sampler->ids[i] = ids[i];
		sampler->scores[i] = logits[i];
	}
	return choose(sampler, sampling, seen, n, index, id, err);
}

bool
dsv3_sampler_logsum(const float *logits, int n_ids, double *logsum, Dsv3Error *err)
{
	float largest = logits[0];
	double sum = 0.0;

	if (!check_logits(logits, n_ids, err))
		return false;
	for (int id = 1; id < n_ids; id++)
		largest = logits[id] > largest ? logits[id] : largest;
	if (largest == -INFINITY)
		return dsv3_error(err, DSV3_ERR_INTERNAL, "the model left no token possible");
	for (int id = 0; id < n_ids; id++)
		sum += exp((double) logits[id] - largest);
	*logsum = largest + log(sum);
	return true;
}

int
dsv3_sampler_top(const float *logits, int n_ids, int n, int32_t *ids)
{
	int count = 0;

	for (int id = 0; id < n_ids && n > 0; id++)
	{
		int at = count;

		if (count == n && logits[id] <= logits[ids[n - 1]])
			continue;
		while (at > 0 && logits[id] > logits[ids[at - 1]])
			at--;
		if (count < n)
			count++;
		memmove(ids + at + 1, ids + at, (size_t) (count - at - 1) * sizeof(*ids));
		ids[at] = id;
	}
	return count;
}
