/*
 * tiktoken.c
 *	  Reader of tiktoken.model, the tokenizer files of Kimi and Moonlight.
 *
 * A line is a token's bytes in base64 and its rank, which is its id. Merging takes the pair whose joined bytes have the
 * lowest rank; as every part of a merge is itself a token, that is BPE with each split of each token as a pair. The
 * pattern is in the checkpoint's Python code and therefore built in here; the special tokens are the added_tokens_decoder
 * of tokenizer_config.json, and the class names the rest of the 256 ids above the ranks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

#define FILE_NAME   "tiktoken.model"
#define CONFIG_NAME "tokenizer_config.json"
#define RESERVED    256 /* ids above the ranks that have a token in any case */
#define MAX_SPECIAL 4096
#define MAX_MERGE_LEN                                                                                        \
	1024 /* longer tokens are possible, but none is made by merging; real ones have at most 128 */

/* Joined by | in this order. */
#define WORD_CLASS_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define WORD_CLASS_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define CONTRACTION      "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define KIMI_PATTERN                                                                                         \
	"[\\p{Han}]+"                                                                                            \
	"|[^\\r\\n\\p{L}\\p{N}]?" WORD_CLASS_UPPER "*" WORD_CLASS_LOWER "+" CONTRACTION                          \
	"|[^\\r\\n\\p{L}\\p{N}]?" WORD_CLASS_UPPER "+" WORD_CLASS_LOWER "*" CONTRACTION "|\\p{N}{1,3}"           \
	"| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"                                                                        \
	"|\\s*[\\r\\n]+"                                                                                         \
	"|\\s+(?!\\S)"                                                                                           \
	"|\\s+"

static int
base64_value(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Strict base64, padded; returns the number of bytes, or -1. out has room for len bytes. */
static long
decode_base64(const char *text, size_t len, uint8_t *out)
{
	size_t n = 0;

	if (len == 0 || len % 4 != 0)
		return -1;
	for (size_t i = 0; i < len; i += 4)
	{
		bool last = i + 4 == len;
		int pad = last && text[i + 3] == '=' ? (text[i + 2] == '=' ? 2 : 1) : 0;
		uint32_t bits = 0;

		for (int k = 0; k < 4; k++)
		{
			int value = k >= 4 - pad ? 0 : base64_value(text[i + (size_t) k]);

			if (value < 0)
				return -1;
			bits = bits << 6 | (uint32_t) value;
		}
		if ((pad == 1 && (bits & 0xFF)) || (pad == 2 && (bits & 0xFFFF)))
			return -1;
		out[n++] = (uint8_t) (bits >> 16);
		if (pad < 2)
			out[n++] = (uint8_t) (bits >> 8);
		if (pad < 1)
			out[n++] = (uint8_t) bits;
	}
	return (long) n;
}

/* One line without its end: base64, a space, a decimal rank. */
static bool
read_line(Dsv3Tokenizer *tokenizer, const char *line, size_t len, size_t number, uint8_t *bytes,
		  Dsv3Error *err)
{
	const char *space = memchr(line, ' ', len);
	long n;
	int64_t rank = 0;
	size_t digits;

	if (space == NULL)
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "line %zu has no space", number);
	digits = (size_t) (line + len - space) - 1;
	if (digits == 0 || digits > 9)
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "line %zu does not end in a rank", number);
	for (size_t i = 1; i <= digits; i++)
	{
		if (space[i] < '0' || space[i] > '9')
			return dsv3_error(err, DSV3_ERR_BAD_FILE, "line %zu does not end in a rank", number);
		rank = rank * 10 + (space[i] - '0');
	}
	if (space - line > 4 * (DSV3_MAX_TOKEN_BYTES / 3))
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "line %zu is too long", number);
	n = decode_base64(line, (size_t) (space - line), bytes);
	if (n <= 0)
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "line %zu does not begin with base64", number);
	if (!dsv3_vocab_set(&tokenizer->bpe.vocab, rank, bytes, (size_t) n, true, err))
		return dsv3_error_prefix(err, "line %zu", number);
	if (n == 1)
		tokenizer->bpe.byte_id[bytes[0]] = (int32_t) rank;
	return true;
}

/* Every split of every token into two tokens is a merge of the token's rank. */
static bool
add_merges(Dsv3Bpe *bpe, int32_t n_ranks, Dsv3Error *err)
{
	for (int32_t id = 0; id < n_ranks; id++)
	{
		size_t len = 0;
		const uint8_t *bytes = dsv3_vocab_bytes(&bpe->vocab, id, &len);

		if (len > MAX_MERGE_LEN)
			continue;
		for (size_t cut = 1; cut < len; cut++)
		{
			int32_t left = dsv3_vocab_find(&bpe->vocab, bytes, cut), right;
			bool duplicate;

			if (left < 0)
				continue;
			right = dsv3_vocab_find(&bpe->vocab, bytes + cut, len - cut);
			if (right >= 0 && !dsv3_bpe_add_merge(bpe, left, right, (uint32_t) id, id, &duplicate))
				return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		}
	}
	return true;
}

static bool
read_ranks(Dsv3Tokenizer *tokenizer, const char *text, size_t len, int32_t *n_ranks, Dsv3Error *err)
{
	uint8_t *bytes = malloc(DSV3_MAX_TOKEN_BYTES + 4);
	size_t number = 0, count = 0;
	bool ok = true;

	if (bytes == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	for (size_t at = 0; ok && at < len;)
	{
		const char *end = memchr(text + at, '\n', len - at);
		size_t n = (end == NULL ? len : (size_t) (end - text)) - at, next = at + n + 1;

		number++;
		if (n > 0 && text[at + n - 1] == '\r')
			n--;
		if (n > 0)
		{
			ok = read_line(tokenizer, text + at, n, number, bytes, err);
			count++;
		}
		at = next;
	}
	free(bytes);
	if (!ok)
		return false;
	*n_ranks = tokenizer->bpe.vocab.size;
	if (count == 0 || count != (size_t) *n_ranks)
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "%zu tokens have ranks up to %d: some are missing", count,
						  *n_ranks - 1);
	for (int b = 0; b < 256; b++)
	{
		if (tokenizer->bpe.byte_id[b] < 0)
			return dsv3_error(err, DSV3_ERR_BAD_FILE, "byte 0x%02x has no token", b);
	}
	return true;
}

/* The named special tokens; seen[] marks the reserved ids that have a name. */
static bool
read_special(Dsv3Tokenizer *tokenizer, const json_t *config, int32_t n_ranks, bool seen[RESERVED],
			 Dsv3Error *err)
{
	json_t *list = json_object_get(config, "added_tokens_decoder"), *value;
	const char *key;

	if (!json_is_object(list))
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "added_tokens_decoder is not an object");
	json_object_foreach (list, key, value)
	{
		Dsv3AddedToken token;
		char *end;
		long long id = strtoll(key, &end, 10);

		if (key[0] < '0' || key[0] > '9' || *end != '\0')
			return dsv3_error(err, DSV3_ERR_BAD_FILE, "\"%.60s\" in added_tokens_decoder is not an id", key);
		if (id < n_ranks || id >= n_ranks + MAX_SPECIAL)
			return dsv3_error(err, DSV3_ERR_BAD_FILE,
							  "special token %lld is not within %d above the %d ranks", id, MAX_SPECIAL,
							  n_ranks);
		if (!dsv3_read_added_token(value, &token, err))
			return false;
		/* tiktoken knows none of these */
		token.single_word = token.lstrip = token.rstrip = token.normalized = false;
		if (!dsv3_tokenizer_add_token(tokenizer, &token, id, err))
			return false;
		if (id - n_ranks < RESERVED)
			seen[id - n_ranks] = true;
	}
	return true;
}

static bool
read_all(Dsv3Tokenizer *tokenizer, const char *text, size_t len, const json_t *config, Dsv3Error *err)
{
	bool seen[RESERVED] = {false};
	const char *bos_text;
	int add_bos;
	int32_t n_ranks = 0;

	if (!read_ranks(tokenizer, text, len, &n_ranks, err) || !add_merges(&tokenizer->bpe, n_ranks, err) ||
		!dsv3_splitter_add_regex(tokenizer->splitter, KIMI_PATTERN, strlen(KIMI_PATTERN), DSV3_SPLIT_REMOVED,
								 true, err))
		return dsv3_error_prefix(err, FILE_NAME);
	if (!read_special(tokenizer, config, n_ranks, seen, err))
		return dsv3_error_prefix(err, CONFIG_NAME);
	for (int i = 0; i < RESERVED; i++)
	{
		char name[40];
		Dsv3AddedToken token = {.text = name, .special = true};

		token.len = (size_t) snprintf(name, sizeof(name), "<|reserved_token_%d|>", n_ranks + i);
		if (!seen[i] && !dsv3_tokenizer_add_token(tokenizer, &token, n_ranks + i, err))
			return dsv3_error_prefix(err, CONFIG_NAME);
	}
	tokenizer->bpe.whole_first = true;
	tokenizer->tiktoken = true;
	if (!dsv3_tokenizer_complete(tokenizer, err) || !dsv3_read_bos(config, &bos_text, &add_bos, err))
		return false;
	/* this class adds no BOS unless the file asks for one */
	if (add_bos == 1 && bos_text != NULL)
		tokenizer->bos = dsv3_tokenizer_special_id(tokenizer, bos_text);
	return true;
}

Dsv3Tokenizer *
dsv3_tokenizer_from_tiktoken(const char *text, size_t len, const char *config_text, size_t config_len,
							 Dsv3Error *err)
{
	Dsv3Tokenizer *tokenizer = dsv3_tokenizer_new(err);
	json_t *config;
	bool ok = false;

	if (tokenizer == NULL)
		return NULL;
	config = dsv3_parse_json_file(config_text, config_len, CONFIG_NAME, err);
	if (config != NULL)
		ok = read_all(tokenizer, text, len, config, err);
	json_decref(config);
	if (!ok)
	{
		dsv3_tokenizer_close(tokenizer);
		return NULL;
	}
	return tokenizer;
}
