/*
 * tokenizer_internal.h
 *	  What the readers of the two file formats fill in, and what the public functions of tokenizer.h use.
 */
#ifndef DSV3_TOKENIZER_INTERNAL_H
#define DSV3_TOKENIZER_INTERNAL_H

#include <jansson.h>

#include "text/added.h"
#include "text/bpe.h"
#include "text/splitter.h"
#include "text/tokenizer.h"

struct Dsv3Tokenizer
{
	Dsv3Bpe bpe; /* bpe.vocab has the bytes of added tokens too */
	Dsv3Splitter *splitter;
	Dsv3AddedTokens added;
	uint8_t *special; /* by id: an added token flagged special */
	int32_t bos;      /* what dsv3_tokenizer_bos gives */
	bool tiktoken;    /* long texts are cut first, as Kimi's tokenizer does */
};

/* A whole file of a model (a directory or a pack), zero-terminated; fails with 58P01 when it is not there, 54000 when it has
 * more than max bytes. */
extern char *
dsv3_read_text_file(const char *model, const char *name, size_t max, size_t *len, Dsv3Error *err);

/* Parse JSON whose members may contain any text; name is what an error calls it (XX001). */
extern json_t *dsv3_parse_json_file(const char *text, size_t len, const char *name, Dsv3Error *err);

/*
 * Open from memory. config (tokenizer_config.json) may be NULL for tokenizer.json. Errors name the file they are about.
 * The texts are not kept.
 */
extern Dsv3Tokenizer *
dsv3_tokenizer_from_json(const char *text, size_t len, const char *config, size_t config_len, Dsv3Error *err);
extern Dsv3Tokenizer *dsv3_tokenizer_from_tiktoken(const char *text, size_t len, const char *config,
												   size_t config_len, Dsv3Error *err);

/* For the readers: an empty tokenizer, and the last step after everything was added. */
extern Dsv3Tokenizer *dsv3_tokenizer_new(Dsv3Error *err);
extern bool dsv3_tokenizer_complete(Dsv3Tokenizer *tokenizer, Dsv3Error *err);

/* Add an added token of a file; its text becomes the bytes of the id, which must not have other ones. */
extern bool
dsv3_tokenizer_add_token(Dsv3Tokenizer *tokenizer, const Dsv3AddedToken *token, int64_t id, Dsv3Error *err);

/* Read the members of an added token; keys that are absent are false. Its text points into the JSON value. */
extern bool dsv3_read_added_token(const json_t *value, Dsv3AddedToken *token, Dsv3Error *err);

/*
 * The beginning-of-sequence token of tokenizer_config.json: *bos_text (a string of the JSON, or NULL when there is none)
 * and *add_bos (1, 0, or -1 when the file does not say).
 */
extern bool dsv3_read_bos(const json_t *config, const char **bos_text, int *add_bos, Dsv3Error *err);

#endif /* DSV3_TOKENIZER_INTERNAL_H */
