/*
 * text_fixture.h
 *	  Small tokenizers for the tests of src/text, made from strings: a byte-level one with all bytes and a few merges, and
 *	  a tiktoken file. Everything is static inline: several programs include it.
 */
#ifndef DSV3_TEXT_FIXTURE_H
#define DSV3_TEXT_FIXTURE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text/tokenizer_internal.h"
#include "text/utf8.h"

#define GPT2_SPLIT "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}"

/* The character of a byte in GPT-2's alphabet. */
static inline void
put_alphabet(char *out, int byte)
{
	int c = byte, n;

	if (!((byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE))
	{
		c = 0x100;
		for (int b = 0; b < byte; b++)
			c += !((b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE);
	}
	n = dsv3_utf8_put((uint32_t) c, out);
	out[n] = '\0';
}

/*
 * tokenizer.json with 256 byte tokens (id = byte), then the tokens of `merges` ("a b", in the alphabet), then whatever
 * `added` (JSON array text) says. Any argument may be NULL for nothing. The caller frees.
 */
static inline char *
make_tokenizer_json(const char *pre_tokenizer, const char *const *merges, const char *added)
{
	json_t *vocab = json_object(), *list = json_array(), *root, *pre, *tokens;
	char *text;
	int next = 256;

	for (int b = 0; b < 256; b++)
	{
		char key[5];

		put_alphabet(key, b);
		json_object_set_new(vocab, key, json_integer(b));
	}
	for (; merges != NULL && *merges != NULL; merges++)
	{
		char joined[256];
		const char *space = strchr(*merges, ' ');

		snprintf(joined, sizeof(joined), "%.*s%s", (int) (space - *merges), *merges, space + 1);
		json_object_set_new(vocab, joined, json_integer(next++));
		json_array_append_new(list, json_string(*merges));
	}
	pre = json_loads(pre_tokenizer ? pre_tokenizer : GPT2_SPLIT, 0, NULL);
	tokens = json_loads(added ? added : "[]", 0, NULL);
	root = json_pack("{s:n, s:o, s:o, s:{s:s}, s:{s:s, s:o, s:o}}", "normalizer", "added_tokens", tokens,
					 "pre_tokenizer", pre, "decoder", "type", "ByteLevel", "model", "type", "BPE", "vocab",
					 vocab, "merges", list);
	text = json_dumps(root, 0);
	json_decref(root);
	return text;
}

/* Open such a tokenizer; config may be NULL. */
static inline Dsv3Tokenizer *
open_small(const char *pre_tokenizer, const char *const *merges, const char *added, const char *config,
		   Dsv3Error *err)
{
	char *text = make_tokenizer_json(pre_tokenizer, merges, added);
	Dsv3Tokenizer *tokenizer =
		dsv3_tokenizer_from_json(text, strlen(text), config, config ? strlen(config) : 0, err);

	free(text);
	return tokenizer;
}

/* Ids as "1,2,3", in a static buffer. */
static inline const char *
ids_text(const Dsv3Tokens *tokens)
{
	static char text[65536];
	size_t n = 0;

	text[0] = '\0';
	for (size_t i = 0; i < tokens->count && n < sizeof(text) - 16; i++)
		n += (size_t) sprintf(text + n, i ? ",%d" : "%d", tokens->ids[i]);
	return text;
}

/* Encode to ids_text; the error's message when it fails. */
static inline const char *
encode_text(const Dsv3Tokenizer *tokenizer, const char *text, Dsv3EncodeMode mode)
{
	static char message[800];
	Dsv3Tokens tokens = {0};
	Dsv3Error err;
	const char *result;

	if (dsv3_tokenizer_encode(tokenizer, text, strlen(text), mode, 0, &tokens, &err))
		result = ids_text(&tokens);
	else
	{
		snprintf(message, sizeof(message), "%s %s", err.sqlstate, err.message);
		result = message;
	}
	dsv3_tokens_free(&tokens);
	return result;
}

/* A model directory under /tmp with the given files (name, text, ..., NULL); remove_model_dir ends it. */
static inline void
write_model_file(const char *dir, const char *name, const char *text, size_t len)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "wb");
	if (f == NULL || fwrite(text, 1, len, f) != len || fclose(f) != 0)
		abort();
}

static inline char *
make_model_dir(char dir[64])
{
	strcpy(dir, "/tmp/dsv3_text_XXXXXX");
	if (mkdtemp(dir) == NULL)
		abort();
	return dir;
}

static inline void
remove_model_dir(const char *dir)
{
	static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "tiktoken.model",
										"chat_template.jinja"};
	char path[512];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
	{
		snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
		unlink(path);
	}
	rmdir(dir);
}

#endif /* DSV3_TEXT_FIXTURE_H */
