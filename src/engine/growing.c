/* The growing arrays of tokenizer.h, until the text layer brings them. */
#include <stdlib.h>
#include <string.h>
#include "text/tokenizer.h"
#define WEAK __attribute__((weak))
WEAK bool
dsv3_tokens_push(Dsv3Tokens *tokens, int32_t id, Dsv3Error *err)
{
	if (tokens->count == tokens->capacity)
	{
		size_t capacity = tokens->capacity ? tokens->capacity * 2 : 64;
		int32_t *ids = realloc(tokens->ids, capacity * sizeof(int32_t));

		if (ids == NULL)
			return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		tokens->ids = ids;
		tokens->capacity = capacity;
	}
	tokens->ids[tokens->count++] = id;
	return true;
}
WEAK void
dsv3_tokens_free(Dsv3Tokens *tokens)
{
	free(tokens->ids);
	memset(tokens, 0, sizeof(*tokens));
}
WEAK bool
dsv3_text_append(Dsv3Text *text, const char *data, size_t len, Dsv3Error *err)
{
	if (text->capacity - text->len < len + 1)
	{
		size_t capacity = (text->capacity + len + 1) * 2;
		char *grown = realloc(text->data, capacity);

		if (grown == NULL)
			return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		text->data = grown;
		text->capacity = capacity;
	}
	if (len > 0)
		memcpy(text->data + text->len, data, len);
	text->len += len;
	text->data[text->len] = '\0';
	return true;
}
WEAK void
dsv3_text_free(Dsv3Text *text)
{
	free(text->data);
	memset(text, 0, sizeof(*text));
}
