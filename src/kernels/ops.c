/*
 * ops.c
 *	  Which sets this CPU can run, and the scalar operations all sets share.
 */
#include "kernels/ops.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const Dsv3Ops *available[4];
static pthread_once_t probe_once = PTHREAD_ONCE_INIT;

static void
probe(void)
{
	int n = 0;

	available[n++] = &dsv3_ops_ref;
#if defined(__x86_64__)
	unsigned eax, ebx, ecx, edx;

	/* The built-in also checks that the operating system saves the registers; it does not know F16C. */
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
		__get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C))
	{
		available[n++] = &dsv3_ops_avx2;
		if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
			__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
			available[n++] = &dsv3_ops_avx512;
	}
#endif
	available[n] = NULL;
}

const Dsv3Ops *const *
dsv3_ops_all(void)
{
	pthread_once(&probe_once, probe);
	return available;
}

const Dsv3Ops *
dsv3_ops_find(const char *name, Dsv3Error *err)
{
	const Dsv3Ops *const *sets = dsv3_ops_all();
	const Dsv3Ops *best = NULL;

	for (int i = 0; sets[i]; i++)
	{
		best = sets[i];
		if (name && strcmp(name, best->name) == 0)
			return best;
	}
	if (!name)
		return best;
	if (strcmp(name, "avx2") == 0 || strcmp(name, "avx512") == 0)
	{
		dsv3_error(err, DSV3_ERR_UNSUPPORTED, "this CPU cannot run instruction set \"%s\"", name);
		/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there is always "ref" */
		dsv3_error_hint(err, "The best it has is \"%s\".", best->name);
		return NULL;
	}
	dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "unknown instruction set \"%s\"", name);
	dsv3_error_hint(err, "Valid values are \"ref\", \"avx2\" and \"avx512\".");
	return NULL;
}

void
dsv3_rope_rotate(float *restrict x, const float *cosine, const float *sine, int n_pairs, bool interleaved)
{
	/* a loop for each layout: with a distance that is a constant it is done in vectors */
	if (interleaved)
		for (int j = 0; j < n_pairs; j++)
		{
			float a = x[2 * j], b = x[2 * j + 1];

			x[2 * j] = a * cosine[j] - b * sine[j];
			x[2 * j + 1] = b * cosine[j] + a * sine[j];
		}
	else
		for (int j = 0; j < n_pairs; j++)
		{
			float a = x[j], b = x[j + n_pairs];

			x[j] = a * cosine[j] - b * sine[j];
			x[j + n_pairs] = b * cosine[j] + a * sine[j];
		}
}

/* Index of the largest of v whose taken is 0, the lowest of equals; it becomes taken. A NaN in front is chosen only because
 * nothing compares as larger, which keeps the index valid whatever the values are. */
static int
take_best(const float *v, float *taken, int n)
{
	int best = -1;

	for (int i = 0; i < n; i++)
		if (taken[i] == 0.0f && (best < 0 || v[i] > v[best]))
			best = i;
	taken[best] = 1.0f;
	return best;
}

/* The score of one group of n experts. */
static float
group_score(const float *v, int n, bool top2)
{
	float best = v[0];
	float second = -INFINITY;

	for (int i = 1; i < n; i++)
	{
		if (v[i] > best)
		{
			second = best;
			best = v[i];
		}
		else if (v[i] > second)
			second = v[i];
	}
	return top2 && n > 1 ? best + second : best;
}

void
dsv3_route(const Dsv3RouteParams *params, const float *scores, const float *bias, int32_t *chosen,
		   float *weights, float *scratch)
{
	int n = params->n_experts;
	float *biased = scratch;
	float *groups = scratch + n;
	float *taken = scratch + 2 * n;
	float total = 0.0f;

	for (int i = 0; i < n; i++)
		biased[i] = bias ? scores[i] + bias[i] : scores[i];
	if (params->n_group > 1)
	{
		int size = n / params->n_group;

		for (int g = 0; g < params->n_group; g++)
		{
			groups[g] = group_score(biased + g * size, size, params->group_top2);
			taken[g] = 0.0f;
		}
		for (int i = 0; i < params->topk_group; i++)
			take_best(groups, taken, params->n_group);
		for (int g = 0; g < params->n_group; g++)
			if (taken[g] == 0.0f)
				for (int i = g * size; i < (g + 1) * size; i++)
					biased[i] = params->masked_score;
	}
	for (int i = 0; i < n; i++)
		taken[i] = 0.0f;
	for (int k = 0; k < params->n_chosen; k++)
	{
		chosen[k] = take_best(biased, taken, n);
		weights[k] = scores[chosen[k]];
		total += weights[k];
	}
	for (int k = 0; k < params->n_chosen; k++)
	{
		if (params->normalise)
			weights[k] /= total + 1e-20f;
		weights[k] *= params->scaling;
	}
}
