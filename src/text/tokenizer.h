/*
 * tokenizer.h
 *	  Byte-level BPE, exactly as the checkpoint's own tokenizer does it.
 *
 * A Dsv3Tokenizer is immutable once open and may be used by any number of threads at once. It reads
 * tokenizer.json (byte-level BPE: Split, Digits, ByteLevel and Sequence pre-tokenizers; merges as "a b" strings or
 * as pairs; added tokens) or tiktoken.model (with added_tokens_decoder of tokenizer_config.json), whichever the
 * model directory has.
 *
 * Text is bytes. Valid UTF-8 gives the ids the Hugging Face tokenizer gives. Invalid UTF-8 is an error with
 * SQLSTATE 22021 unless the caller asks for replacement (each maximal invalid part becomes U+FFFD).
 */
#ifndef DSV3_TOKENIZER_H
#define DSV3_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/abort.h"

typedef struct Dsv3Tokenizer Dsv3Tokenizer;

/* A growing array of ids; zero-initialise, free with dsv3_tokens_free. abort_flag may be NULL: when it becomes true, text that is being
 * encoded into the array is given up with 57014. */
typedef struct Dsv3Tokens
{
	int32_t *ids;
	size_t count;
	size_t capacity;
	const atomic_bool *abort_flag;
} Dsv3Tokens;

extern bool dsv3_tokens_push(Dsv3Tokens *tokens, int32_t id, Dsv3Error *err);
extern void dsv3_tokens_free(Dsv3Tokens *tokens);

/* Open the tokenizer of a model directory; NULL and *err on failure. */
extern Dsv3Tokenizer *dsv3_tokenizer_open(const char *model_dir, Dsv3Error *err);
extern void dsv3_tokenizer_close(Dsv3Tokenizer *tokenizer);

/* One more than the largest id the tokenizer can emit or decode (not the rows of the embedding). */
extern int32_t dsv3_tokenizer_vocab_size(const Dsv3Tokenizer *tokenizer);

typedef enum Dsv3EncodeMode
{
	DSV3_ENCODE_PLAIN,   /* text of a user: what looks like a special token is text */
	DSV3_ENCODE_SPECIAL, /* added tokens in the text are recognised, as Hugging Face's encode() does */
} Dsv3EncodeMode;

/* Append the ids of text[0..len) to *out. No BOS or EOS is added. Fails only on invalid UTF-8, on memory, or when
 * more than max_tokens ids (0: no limit) would be appended (SQLSTATE 54000; *out is then unspecified but valid). */
extern bool dsv3_tokenizer_encode(const Dsv3Tokenizer *tokenizer, const char *text, size_t len,
								  Dsv3EncodeMode mode, size_t max_tokens, Dsv3Tokens *out, Dsv3Error *err);

/* The bytes of one token: a pointer owned by the tokenizer and its length; NULL for an id without bytes. Special and
 * added tokens give their text. Never zero-terminated. */
extern const char *dsv3_tokenizer_token_bytes(const Dsv3Tokenizer *tokenizer, int32_t id, size_t *len);

/* Is the id an added token flagged special (skipped when an answer is shown)? */
extern bool dsv3_tokenizer_is_special(const Dsv3Tokenizer *tokenizer, int32_t id);

/* The id of an added token by its exact text, or -1. */
extern int32_t dsv3_tokenizer_special_id(const Dsv3Tokenizer *tokenizer, const char *text);

/* bos id, or -1 when the tokenizer has none or tokenizer_config.json says add_bos_token false. */
extern int32_t dsv3_tokenizer_bos(const Dsv3Tokenizer *tokenizer);

/* Concatenated bytes of ids, malloc'd and zero-terminated, *len without the terminator. skip_special leaves out special
 * tokens. The bytes need not be valid UTF-8 (ids may be any); see the decoder below for text. An id out of range fails
 * with 22023. */
extern char *dsv3_tokenizer_decode(const Dsv3Tokenizer *tokenizer, const int32_t *ids, size_t count,
								   bool skip_special, size_t *len, Dsv3Error *err);

/*
 * Incremental decoding. Feed ids one by one; each call gives the bytes that are certain now, always whole UTF-8
 * characters: the bytes of an unfinished character wait (at most three). What can never become valid comes out as
 * U+FFFD. dsv3_decoder_finish flushes (an unfinished character as U+FFFD). The concatenation of all outputs equals the
 * lossy UTF-8 decoding of all bytes together.
 */
typedef struct Dsv3Decoder
{
	const Dsv3Tokenizer *tokenizer;
	bool skip_special;
	uint8_t pending[4];
	int npending;
} Dsv3Decoder;

/* A growing byte string; zero-initialise, free with dsv3_text_free. data is zero-terminated when not NULL. */
typedef struct Dsv3Text
{
	char *data;
	size_t len;
	size_t capacity;
} Dsv3Text;

extern bool dsv3_text_append(Dsv3Text *text, const char *data, size_t len, Dsv3Error *err);
extern void dsv3_text_free(Dsv3Text *text);

extern void dsv3_decoder_init(Dsv3Decoder *decoder, const Dsv3Tokenizer *tokenizer, bool skip_special);
extern bool dsv3_decoder_feed(Dsv3Decoder *decoder, int32_t id, Dsv3Text *out, Dsv3Error *err);
extern bool dsv3_decoder_finish(Dsv3Decoder *decoder, Dsv3Text *out, Dsv3Error *err);

#endif /* DSV3_TOKENIZER_H */
