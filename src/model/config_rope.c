/*
 * config_rope.c
 *	  Rotary frequencies and the softmax scale, from the keys of transformers 4 and 5.
 *
 * Where the keys are: transformers 4 writes rope_theta beside rope_scaling, transformers 5 one object rope_parameters; a
 * rope_scaling that is present and not empty wins, its type is rope_type or else type, and what it lacks comes from the top
 * level, in the order transformers 5 uses (RotaryEmbeddingConfigMixin).
 *
 * Arithmetic. transformers computes the table with F32 tensors and the constants around it in double precision; the same
 * steps are taken here in the same precision, because one unit in the last place of a frequency is 3e-4 radians at position
 * 6000. Formulas: "YaRN: Efficient Context Window Extension" (arXiv 2309.00071), section 3, with the correction range of its
 * reference code; "LongRoPE" (arXiv 2402.13753) for per-frequency factors.
 */
#include "model/config_rope.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Largest number accepted in the rope keys: fits F32. A period that overflows later on is infinite, its frequency 0. */
#define MAX_ROPE_NUMBER 1e37

/*
 * base^exponent, correctly rounded. torch's F32 power is the same except that its vector code is off by one unit in the last
 * place for about one value in seventy, and for which ones depends on the CPU; theta 10000 with 64 lanes has none.
 */
static float
pow_f32(float base, float exponent)
{
	return (float) pow((double) base, (double) exponent);
}

/* yarn_get_mscale of transformers: m = 0.1 a ln(s) + 1, 1 without extension. */
static double
yarn_mscale(double factor, double a)
{
	return factor <= 1.0 ? 1.0 : 0.1 * a * log(factor) + 1.0;
}

/* Index of the frequency that turns `rotations` times over the original context. */
static double
correction_dim(double rotations, double dim, double base, double positions)
{
	return dim * log(positions / (rotations * 2.0 * M_PI)) / (2.0 * log(base));
}

/* theta^(2j/dim) for every pair j, in out[dim / 2]. */
static void
base_powers(float *out, int dim, double theta)
{
	for (int j = 0; j < dim / 2; j++)
		out[j] = pow_f32((float) theta, (float) (2 * j) / (float) dim);
}

/* Blend of interpolated and original frequencies by the ramp between low and high. */
static void
yarn_table(Dsv3Rope *rope, int dim, double beta_fast, double beta_slow, bool truncate)
{
	double low = correction_dim(beta_fast, dim, rope->theta, rope->original_positions);
	double high = correction_dim(beta_slow, dim, rope->theta, rope->original_positions);
	float low_f;
	float width_f;

	if (truncate)
	{
		low = floor(low);
		high = ceil(high);
	}
	low = fmax(low, 0);
	high = fmin(high, dim - 1); /* dim - 1, not dim / 2 - 1: as the reference does */
	if (low == high)
		high += 0.001;
	low_f = (float) low;
	width_f = (float) (high - low);
	for (int j = 0; j < dim / 2; j++)
	{
		float power = rope->inv_freq[j];
		float extrapolated = 1.0f / power;
		float interpolated = 1.0f / ((float) rope->factor * power);
		float ramp = ((float) j - low_f) / width_f;
		float keep;

		ramp = ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp;
		keep = 1.0f - ramp;
		rope->inv_freq[j] = interpolated * (1.0f - keep) + extrapolated * keep;
	}
}

/* Read a longrope factor list and turn base powers into frequencies. */
static void
longrope_table(Dsv3JsonReader *reader, const char *key, const float *powers, float *out, int n)
{
	const json_t *list = dsv3_json_get(reader, key);

	if (reader->failed)
		return;
	if (!json_is_array(list) || json_array_size(list) != (size_t) n)
	{
		dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, key,
					   "must be an array of %d numbers (qk_rope_head_dim / 2)", n);
		return;
	}
	for (int j = 0; j < n; j++)
	{
		const json_t *value = json_array_get(list, (size_t) j);
		double factor = json_number_value(value);

		if (!json_is_number(value) || !isfinite(factor) || factor < 1e-30 || factor > MAX_ROPE_NUMBER)
		{
			dsv3_json_fail(reader, DSV3_ERR_BAD_FILE, key,
						   "has a value at index %d that is not a positive number", j);
			return;
		}
		out[j] = 1.0f / ((float) factor * powers[j]);
	}
}

static bool
rope_type_from_name(Dsv3JsonReader *reader, const char *name, Dsv3RopeType *type)
{
	char shown[DSV3_SHOWN_NAME];
	bool dynamic = strcmp(name, "dynamic") == 0;

	if (strcmp(name, "default") == 0)
		*type = DSV3_ROPE_DEFAULT;
	else if (strcmp(name, "linear") == 0)
		*type = DSV3_ROPE_LINEAR;
	else if (strcmp(name, "yarn") == 0)
		*type = DSV3_ROPE_YARN;
	else if (strcmp(name, "longrope") == 0)
		*type = DSV3_ROPE_LONGROPE;
	else
	{
		dsv3_json_fail(reader, DSV3_ERR_UNSUPPORTED, "rope_type", "\"%s\" is not supported",
					   dsv3_shown_name(shown, name));
		if (dynamic)
			dsv3_error_detail(reader->err, "Its frequencies change with the length of the sequence, so "
										   "cached positions would become invalid.");
		dsv3_error_hint(reader->err, "Supported rope types are default, linear, yarn and longrope.");
		return false;
	}
	return true;
}

/* The softmax scale: (N + R)^-1/2, times m^2 for every scaled type that has mscale_all_dim. */
static void
read_softmax_scale(Dsv3Config *config, Dsv3JsonReader *rope_reader, double mscale_all_dim, bool has_factor)
{
	double scale = pow((double) (config->qk_nope_dim + config->qk_rope_dim), -0.5);

	if (config->rope.type != DSV3_ROPE_DEFAULT && mscale_all_dim != 0)
	{
		double m = yarn_mscale(config->rope.factor, mscale_all_dim);

		if (!has_factor)
			dsv3_json_fail(rope_reader, DSV3_ERR_BAD_FILE, "factor",
						   "is missing, and mscale_all_dim needs it");
		scale *= m * m;
	}
	config->softmax_scale = (float) scale;
	if (!rope_reader->failed && !(scale > 0 && scale < 1e6))
		dsv3_json_fail(rope_reader, DSV3_ERR_BAD_FILE, "mscale_all_dim", "gives a softmax scale of %g",
					   scale);
}

bool
dsv3_config_read_rope(Dsv3Config *config, Dsv3JsonReader *reader)
{
	Dsv3Rope *rope = &config->rope;
	int dim = config->qk_rope_dim;
	int n = dim / 2;
	const json_t *scaling = dsv3_json_object(reader, "rope_scaling");
	const json_t *parameters = dsv3_json_object(reader, "rope_parameters");
	Dsv3JsonReader sub = {.object = parameters,
						  .file = reader->file,
						  .where = "rope_parameters.",
						  .err = reader->err,
						  .failed = reader->failed};
	const char *name;
	double outer_theta;
	double factor;
	double mscale;
	double mscale_all_dim;
	double attention;
	double beta_fast;
	double beta_slow;
	bool truncate;
	bool has_factor;

	if (scaling && json_object_size(scaling) > 0)
	{
		sub.object = scaling;
		sub.where = "rope_scaling.";
	}
	outer_theta = dsv3_json_number(reader, "rope_theta", 10000.0, 1e-6, MAX_ROPE_NUMBER);
	rope->theta = dsv3_json_number(&sub, "rope_theta", outer_theta, 1e-6, MAX_ROPE_NUMBER);
	/* Only V3 knows the half-split layout; V2 rotates neighbouring lanes. */
	rope->interleaved = config->is_v2 || dsv3_json_bool(reader, "rope_interleave", true);
	if (dsv3_json_number(&sub, "partial_rotary_factor", 1.0, 0, 1) != 1.0)
		dsv3_json_fail(&sub, DSV3_ERR_UNSUPPORTED, "partial_rotary_factor", "other than 1 is not supported");
	if (dsv3_json_number(reader, "partial_rotary_factor", 1.0, 0, 1) != 1.0)
		dsv3_json_fail(reader, DSV3_ERR_UNSUPPORTED, "partial_rotary_factor",
					   "other than 1 is not supported");

	name = dsv3_json_string(&sub, "rope_type", dsv3_json_string(&sub, "type", "default"));
	if (!sub.failed)
		rope_type_from_name(&sub, name, &rope->type);

	/* A top-level original_max_position_embeddings wins over the one in the object, as in transformers. */
	rope->original_positions = (int32_t) dsv3_json_int(
		reader, "original_max_position_embeddings",
		dsv3_json_int(&sub, "original_max_position_embeddings", config->max_positions, 1, DSV3_MAX_POSITIONS),
		1, DSV3_MAX_POSITIONS);

	has_factor = dsv3_json_get(&sub, "factor") != NULL;
	factor = dsv3_json_number(&sub, "factor", 1.0, 1e-6, MAX_ROPE_NUMBER);
	mscale = dsv3_json_number(&sub, "mscale", 0, -1e6, 1e6);
	mscale_all_dim = dsv3_json_number(&sub, "mscale_all_dim", 0, -1e6, 1e6);
	attention = dsv3_json_number(&sub, "attention_factor", 0, FLT_MIN, 1e6);
	beta_fast = dsv3_json_number(&sub, "beta_fast", 32, 0, MAX_ROPE_NUMBER);
	beta_slow = dsv3_json_number(&sub, "beta_slow", 1, 0, MAX_ROPE_NUMBER);
	truncate = dsv3_json_bool(&sub, "truncate", true);
	reader->failed = reader->failed || sub.failed;
	if (reader->failed)
		return false;

	if (!has_factor && rope->type == DSV3_ROPE_LINEAR)
		dsv3_json_fail(&sub, DSV3_ERR_BAD_FILE, "factor", "is missing, and rope type linear needs it");
	if (!has_factor && (rope->type == DSV3_ROPE_YARN || rope->type == DSV3_ROPE_LONGROPE))
		factor = (double) config->max_positions / rope->original_positions;
	rope->factor = rope->type == DSV3_ROPE_DEFAULT ? 1.0 : factor;
	rope->long_from = INT32_MAX;
	rope->attention_factor = 1.0f;

	rope->inv_freq = calloc((size_t) n, sizeof(float));
	rope->inv_freq_long = rope->inv_freq;
	if (rope->inv_freq == NULL)
	{
		reader->failed = true;
		return dsv3_error(reader->err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading %s", reader->file);
	}
	base_powers(rope->inv_freq, dim, rope->theta);

	switch (rope->type)
	{
		case DSV3_ROPE_DEFAULT:
			for (int j = 0; j < n; j++)
				rope->inv_freq[j] = 1.0f / rope->inv_freq[j];
			break;

		case DSV3_ROPE_LINEAR:
			for (int j = 0; j < n; j++)
				rope->inv_freq[j] = 1.0f / rope->inv_freq[j] / (float) factor;
			break;

		case DSV3_ROPE_YARN:
			if (rope->theta <= 1.0)
			{
				dsv3_json_fail(&sub, DSV3_ERR_BAD_FILE, "rope_theta",
							   "is %g, and rope type yarn needs more than 1", rope->theta);
				break;
			}
			/* An explicit 0 means the default, as in transformers. */
			yarn_table(rope, dim, beta_fast == 0 ? 32 : beta_fast, beta_slow == 0 ? 1 : beta_slow, truncate);
			if (attention == 0)
				attention = mscale != 0 && mscale_all_dim != 0
								? yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)
								: yarn_mscale(factor, 1.0);
			rope->attention_factor = (float) attention;
			break;

		case DSV3_ROPE_LONGROPE:
			rope->inv_freq_long = calloc((size_t) n, sizeof(float));
			if (rope->inv_freq_long == NULL)
			{
				sub.failed = true;
				dsv3_error(reader->err, DSV3_ERR_OUT_OF_MEMORY, "out of memory reading %s", reader->file);
				break;
			}
			longrope_table(&sub, "long_factor", rope->inv_freq, rope->inv_freq_long, n);
			longrope_table(&sub, "short_factor", rope->inv_freq, rope->inv_freq, n);
			rope->long_from = rope->original_positions;
			if (attention == 0 && factor > 1.0 && rope->original_positions < 2)
				dsv3_json_fail(&sub, DSV3_ERR_BAD_FILE, "original_max_position_embeddings",
							   "must be at least 2 for rope type longrope");
			else if (attention == 0)
				attention =
					factor <= 1.0 ? 1.0 : sqrt(1.0 + log(factor) / log((double) rope->original_positions));
			rope->attention_factor = (float) attention;
			break;
	}

	read_softmax_scale(config, &sub, mscale_all_dim, has_factor);
	for (int j = 0; j < n && !sub.failed && rope->inv_freq_long; j++)
	{
		if (!isfinite(rope->inv_freq[j]) || !isfinite(rope->inv_freq_long[j]))
			dsv3_json_fail(&sub, DSV3_ERR_BAD_FILE, "rope_theta",
						   "and the factors give a frequency that is not finite");
	}
	if (!sub.failed && !(rope->attention_factor > 0 && rope->attention_factor < 1e6f))
		dsv3_json_fail(&sub, DSV3_ERR_BAD_FILE, "attention_factor", "comes out as %g",
					   (double) rope->attention_factor);
	reader->failed = reader->failed || sub.failed;
	return !reader->failed;
}
