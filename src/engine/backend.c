/*
 * backend.c
 *	  Choosing a backend, and what is common to both; see backend.h.
 */
#include "engine/backend.h"
#include "engine/constraint.h"

#include <string.h>

Dsv3Backend *
dsv3_backend_open(const char *path, const Dsv3BackendOptions *options, Dsv3Error *err)
{
	bool is_test = strncmp(path, DSV3_TEST_PREFIX, strlen(DSV3_TEST_PREFIX)) == 0;
	Dsv3Backend *backend = is_test ? dsv3_backend_test_open(path + strlen(DSV3_TEST_PREFIX), err)
								   : dsv3_backend_model_open(path, options, err);

	if (backend)
	{
		backend->weight_mode = options->weights;
		backend->kv_type = options->kv;
	}
	if (backend && (backend->grammars = dsv3_grammar_store_open(err)) == NULL)
	{
		dsv3_backend_close(backend);
		return NULL;
	}
	return backend;
}

void
dsv3_backend_close(Dsv3Backend *backend)
{
	if (backend == NULL)
		return;
	dsv3_grammar_store_close(backend->grammars);
	backend->ops->close(backend);
}

bool
dsv3_backend_weights(const char *name, Dsv3WeightMode *mode, Dsv3Error *err)
{
	if (dsv3_weight_mode(name, mode))
		return true;
	dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "unknown weight mode \"%s\"", name);
	return dsv3_error_hint(err, "Weight modes are stored, f32, bf16, int8 and int4.");
}

bool
dsv3_backend_kv(const char *name, Dsv3KvType *type, Dsv3Error *err)
{
	if (dsv3_kv_type(name, type))
		return true;
	dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "unknown type of cache rows \"%s\"", name);
	return dsv3_error_hint(err, "Cache rows are f32, bf16 or int8.");
}

bool
dsv3_backend_decode(Dsv3Backend *backend, const int32_t *ids, size_t count, bool skip_special, Dsv3Text *out,
					Dsv3Error *err)
{
	Dsv3Decoder decoder;

	backend->ops->decoder_init(backend, &decoder, skip_special);
	for (size_t i = 0; i < count; i++)
	{
		if (ids[i] < 0 || ids[i] >= backend->sample_limit)
		{
			dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "token id %d is out of range", ids[i]);
			return dsv3_error_hint(err, "Ids of this model are 0 to %d.", backend->sample_limit - 1);
		}
		if (!backend->ops->decoder_feed(backend, &decoder, ids[i], out, err))
			return false;
	}
	return backend->ops->decoder_finish(backend, &decoder, out, err);
}
