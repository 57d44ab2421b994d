/*
 * fuzz_tokenizer_json.c
 *	  Any bytes as tokenizer.json. What opens must encode a text to the same ids twice, and decode them.
 *
 * Run: make fuzz FUZZ=tokenizer_json SECONDS=60
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char text[] = "Hello,  w\xC3\xB6rld 1234!\r\n\t<s> \xE6\x97\xA5\xE6\x9C\xAC\xF0\x9F\x98\x80 "
						   "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Dsv3Error err = {.sqlstate = ""};
	Dsv3Tokenizer *t = dsv3_tokenizer_from_json((const char *) data, size, NULL, 0, &err);

	if (t == NULL)
	{
		if (strlen(err.sqlstate) != 5 || err.message[0] == '\0')
			abort();
		return 0;
	}
	for (int mode = 0; mode < 2; mode++)
	{
		Dsv3Tokens once = {0}, twice = {0};

		if (dsv3_tokenizer_encode(t, text, sizeof(text) - 1, (Dsv3EncodeMode) mode, 0, &once, &err))
		{
			size_t len;
			char *back = dsv3_tokenizer_decode(t, once.ids, once.count, false, &len, &err);

			if (back == NULL)
				abort();
			if (!dsv3_tokenizer_encode(t, text, sizeof(text) - 1, (Dsv3EncodeMode) mode, 0, &twice, &err) ||
				once.count != twice.count || memcmp(once.ids, twice.ids, once.count * sizeof(*once.ids)) != 0)
				abort();
			free(back);
		}
		else if (strcmp(err.sqlstate, DSV3_ERR_TOO_LARGE) != 0)
			abort();
		dsv3_tokens_free(&once);
		dsv3_tokens_free(&twice);
	}
	dsv3_tokenizer_close(t);
	return 0;
}
