/*
 * decoder.c
 *	  From ids back to bytes and text, and the growing arrays of tokenizer.h.
 */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"
#include "text/utf8.h"

#define REPLACEMENT     "\xEF\xBF\xBD"
#define REPLACEMENT_LEN 3

bool
dsv3_tokens_push(Dsv3Tokens *tokens, int32_t id, Dsv3Error *err)
{
	if (tokens->count == tokens->capacity)
	{
		size_t capacity = tokens->capacity ? tokens->capacity * 2 : 64;
		int32_t *ids = realloc(tokens->ids, capacity * sizeof(*ids));

		if (ids == NULL)
			return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		tokens->ids = ids;
		tokens->capacity = capacity;
	}
	tokens->ids[tokens->count++] = id;
	return true;
}

void
dsv3_tokens_free(Dsv3Tokens *tokens)
{
	free(tokens->ids);
	memset(tokens, 0, sizeof(*tokens));
}

bool
dsv3_text_append(Dsv3Text *text, const char *data, size_t len, Dsv3Error *err)
{
	if (text->data == NULL || len >= text->capacity - text->len)
	{
		size_t capacity = text->capacity ? text->capacity : 64;
		char *grown;

		while (len >= capacity - text->len)
		{
			if (capacity > SIZE_MAX / 2)
				return dsv3_error(err, DSV3_ERR_TOO_LARGE, "a text is too long");
			capacity *= 2;
		}
		grown = realloc(text->data, capacity);
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

void
dsv3_text_free(Dsv3Text *text)
{
	free(text->data);
	memset(text, 0, sizeof(*text));
}

/* The bytes of an id that is to be decoded: *len is 0 for one that is left out. An id without bytes fails with 22023. */
static bool
bytes_to_decode(const Dsv3Tokenizer *tokenizer, int32_t id, bool skip_special, const char **bytes,
				size_t *len, Dsv3Error *err)
{
	*bytes = dsv3_tokenizer_token_bytes(tokenizer, id, len);
	if (*bytes == NULL)
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "token id %d does not exist in this vocabulary", id);
		return dsv3_error_detail(err, "Ids go from 0 to %d.", dsv3_tokenizer_vocab_size(tokenizer) - 1);
	}
	if (skip_special && dsv3_tokenizer_is_special(tokenizer, id))
		*len = 0;
	return true;
}

char *
dsv3_tokenizer_decode(const Dsv3Tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
					  size_t *len, Dsv3Error *err)
{
	Dsv3Text text = {0};
	bool ok = dsv3_text_append(&text, "", 0, err);

	for (size_t i = 0; ok && i < count; i++)
	{
		const char *bytes;
		size_t n;

		ok = bytes_to_decode(tokenizer, ids[i], skip_special, &bytes, &n, err) &&
			 dsv3_text_append(&text, bytes, n, err);
	}
	if (!ok)
	{
		dsv3_text_free(&text);
		return NULL;
	}
	*len = text.len;
	return text.data;
}

void
dsv3_decoder_init(Dsv3Decoder *decoder, const Dsv3Tokenizer *tokenizer, bool skip_special)
{
	memset(decoder, 0, sizeof(*decoder));
	decoder->tokenizer = tokenizer;
	decoder->skip_special = skip_special;
}

/*
 * The bytes in decoder->pending begin a character and are valid so far (dsv3_utf8_next calls them incomplete). Each new
 * byte either continues it, completes it, or proves it can never be one; then the part before the byte becomes U+FFFD and
 * the byte starts afresh, which is what replacing maximal subparts means.
 */
static bool
feed_byte(Dsv3Decoder *decoder, uint8_t byte, Dsv3Text *out, Dsv3Error *err)
{
	uint32_t c;
	bool incomplete;
	int n;

	decoder->pending[decoder->npending++] = byte;
	n = dsv3_utf8_next(decoder->pending, (size_t) decoder->npending, &c, &incomplete);
	if (n > 0)
	{
		decoder->npending = 0;
		return dsv3_text_append(out, (const char *) decoder->pending, (size_t) n, err);
	}
	if (incomplete)
		return true;
	if (!dsv3_text_append(out, REPLACEMENT, REPLACEMENT_LEN, err))
		return false;
	if (decoder->npending == 1)
	{
		decoder->npending = 0;
		return true;
	}
	decoder->npending = 0;
	return feed_byte(decoder, byte, out, err);
}

bool
dsv3_decoder_feed(Dsv3Decoder *decoder, int32_t id, Dsv3Text *out, Dsv3Error *err)
{
	const char *bytes;
	size_t len;

	if (!bytes_to_decode(decoder->tokenizer, id, decoder->skip_special, &bytes, &len, err))
		return false;
	for (size_t i = 0; i < len; i++)
	{
		if (!feed_byte(decoder, (uint8_t) bytes[i], out, err))
			return false;
	}
	return true;
}

bool
dsv3_decoder_finish(Dsv3Decoder *decoder, Dsv3Text *out, Dsv3Error *err)
{
	if (decoder->npending == 0)
		return true;
	decoder->npending = 0;
	return dsv3_text_append(out, REPLACEMENT, REPLACEMENT_LEN, err);
}
