/*
 * fuzz_config.c
 *	  Any bytes as config.json; what follows a zero byte as generation_config.json.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *zero = memchr(data, 0, size);
	size_t len = zero ? (size_t) (zero - data) : size;
	const char *generation = zero ? (const char *) zero + 1 : NULL;
	Dsv3Config config;
	Dsv3Error err;
	Dsv3ParamCounts counts;

	memset(&err, 0, sizeof(err));
	if (!dsv3_config_parse(&config, (const char *) data, len, generation, zero ? size - len - 1 : 0, &err))
	{
		if (strlen(err.sqlstate) != 5 || err.message[0] == '\0')
			abort();
		return 0;
	}
	/* what was accepted keeps the promises of config.h */
	dsv3_config_count(&config, &counts);
	if (counts.total <= 0 || counts.active <= 0 || dsv3_config_kv_bytes(&config) <= 0 ||
		config.n_layers < 1 || config.first_dense > config.n_layers || config.n_eos > DSV3_MAX_EOS ||
		config.bos_id >= config.vocab_size ||
		(config.n_routed_experts > 0 && config.n_experts_per_token > config.n_routed_experts) ||
		!(config.softmax_scale > 0))
		abort();
	for (int j = 0; j < config.qk_rope_dim / 2; j++)
	{
		if (!isfinite(config.rope.inv_freq[j]) || !isfinite(config.rope.inv_freq_long[j]))
			abort();
	}
	dsv3_config_close(&config);
	return 0;
}
