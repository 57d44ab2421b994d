/*
 * fuzz_tiktoken.c
 *	  Any bytes as tiktoken.model and, after a zero byte, as tokenizer_config.json.
 *
 * Run: make fuzz FUZZ=tiktoken SECONDS=60
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char config[] = "{\"added_tokens_decoder\": {\"256\": {\"content\": \"[BOS]\"}}}";
	const uint8_t *zero = size > 0 ? memchr(data, 0, size) : NULL;
	size_t len = zero ? (size_t) (zero - data) : size;
	Dsv3Error err = {.sqlstate = ""};
	Dsv3Tokenizer *t;
	Dsv3Tokens tokens = {0};

	t = dsv3_tokenizer_from_tiktoken((const char *) data, len, zero ? (const char *) zero + 1 : config,
									 zero ? size - len - 1 : sizeof(config) - 1, &err);
	if (t == NULL)
	{
		if (strlen(err.sqlstate) != 5 || err.message[0] == '\0')
			abort();
		return 0;
	}
	if (!dsv3_tokenizer_encode(t, "ab[BOS] \xE6\x97\xA5 12", 14, DSV3_ENCODE_SPECIAL, 0, &tokens, &err))
		abort();
	dsv3_tokens_free(&tokens);
	dsv3_tokenizer_close(t);
	return 0;
}
