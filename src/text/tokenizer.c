/*
 * tokenizer.c
 *	  Opening a tokenizer and encoding; see tokenizer.h. Decoding is in decoder.c, the file formats in tokenizer_json.c
 *	  and tiktoken.c.
 *
 * Encoding: added tokens cut the text into sections (SPECIAL mode only), the splitter cuts each section into pieces, BPE
 * turns each piece into ids. All working memory belongs to the call, so threads share nothing but the immutable
 * tokenizer.
 */
#include "text/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/packfile.h"
#include "text/tokenizer_internal.h"
#include "text/utf8.h"

#define MAX_FILE       ((size_t) 256 * 1024 * 1024)
#define MAX_CONFIG     ((size_t) 16 * 1024 * 1024)
#define REMEMBER_ABOVE 4096 /* bytes of text from which remembering words pays */

/* The Kimi tokenizer's own cuts, in characters. */
#define TIKTOKEN_MAX_CHARS 400000
#define TIKTOKEN_MAX_RUN   25000

Dsv3Tokenizer *
dsv3_tokenizer_new(Dsv3Error *err)
{
	Dsv3Tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));

	if (tokenizer == NULL)
	{
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		return NULL;
	}
	dsv3_bpe_init(&tokenizer->bpe);
	tokenizer->bos = -1;
	tokenizer->splitter = dsv3_splitter_new(err);
	if (tokenizer->splitter == NULL)
	{
		free(tokenizer);
		return NULL;
	}
	return tokenizer;
}

void
dsv3_tokenizer_close(Dsv3Tokenizer *tokenizer)
{
	if (tokenizer == NULL)
		return;
	dsv3_bpe_free(&tokenizer->bpe);
	dsv3_splitter_free(tokenizer->splitter);
	dsv3_added_free(&tokenizer->added);
	free(tokenizer->special);
	free(tokenizer);
}

bool
dsv3_tokenizer_add_token(Dsv3Tokenizer *tokenizer, const Dsv3AddedToken *token, int64_t id, Dsv3Error *err)
{
	Dsv3AddedToken copy = *token;
	size_t len;
	const uint8_t *bytes = NULL;

	if (id >= 0 && id < DSV3_MAX_TOKEN_ID)
		bytes = dsv3_vocab_bytes(&tokenizer->bpe.vocab, (int32_t) id, &len);
	if (bytes == NULL)
	{
		if (!dsv3_vocab_set(&tokenizer->bpe.vocab, id, token->text, token->len, false, err))
			return false;
	}
	else if (len != token->len || memcmp(bytes, token->text, len) != 0)
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "added token \"%.100s\" has the id %lld of another token",
						  token->text, (long long) id);
	copy.id = (int32_t) id;
	return dsv3_added_add(&tokenizer->added, &copy, err);
}

bool
dsv3_tokenizer_complete(Dsv3Tokenizer *tokenizer, Dsv3Error *err)
{
	if (tokenizer->bpe.vocab.size == 0)
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "there are no tokens");
	if (!dsv3_added_finish(&tokenizer->added, err) || !dsv3_splitter_finish(tokenizer->splitter, err))
		return false;
	tokenizer->special = calloc((size_t) tokenizer->bpe.vocab.size, 1);
	if (tokenizer->special == NULL)
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	for (size_t i = 0; i < tokenizer->added.count; i++)
		tokenizer->special[tokenizer->added.items[i].id] = tokenizer->added.items[i].special;
	return true;
}

/* ---- files ---- */

char *
dsv3_read_text_file(const char *model, const char *name, size_t max, size_t *len, Dsv3Error *err)
{
	char path[4096];
	struct stat st;
	char *text = NULL;
	size_t n = 0;
	int fd;

	if (dsv3_pack_is(model))
		return dsv3_pack_read_file(model, name, (int64_t) max, len, err);
	if ((size_t) snprintf(path, sizeof(path), "%s/%s", model, name) >= sizeof(path))
	{
		dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "the path of the model directory is too long");
		return NULL;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
	{
		dsv3_error(err, errno == ENOENT || errno == ENOTDIR ? DSV3_ERR_NO_FILE : DSV3_ERR_FILE,
				   "could not open file \"%s\": %s", path, strerror(errno));
		return NULL;
	}
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
		dsv3_error(err, DSV3_ERR_FILE, "\"%s\" is not a regular file", path);
	else if ((uint64_t) st.st_size > max)
		dsv3_error(err, DSV3_ERR_TOO_LARGE, "file \"%s\" has %lld bytes, more than the possible %zu", path,
				   (long long) st.st_size, max);
	else if ((text = malloc((size_t) st.st_size + 1)) == NULL)
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	while (text != NULL && n < (size_t) st.st_size)
	{
		ssize_t got = read(fd, text + n, (size_t) st.st_size - n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
		{
			dsv3_error(err, DSV3_ERR_FILE, "could not read file \"%s\": %s", path,
					   got < 0 ? strerror(errno) : "it became shorter");
			free(text);
			text = NULL;
			break;
		}
		n += (size_t) got;
	}
	close(fd);
	if (text != NULL)
	{
		text[n] = '\0';
		*len = n;
	}
	return text;
}

json_t *
dsv3_parse_json_file(const char *text, size_t len, const char *name, Dsv3Error *err)
{
	json_error_t error;
	json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);

	if (root == NULL)
	{
		dsv3_error(err, DSV3_ERR_BAD_FILE, "%s is not valid JSON: line %d: %s", name, error.line, error.text);
		return NULL;
	}
	if (!json_is_object(root))
	{
		json_decref(root);
		dsv3_error(err, DSV3_ERR_BAD_FILE, "%s is not a JSON object", name);
		return NULL;
	}
	return root;
}

bool
dsv3_read_bos(const json_t *config, const char **bos_text, int *add_bos, Dsv3Error *err)
{
	const json_t *bos = json_object_get(config, "bos_token");
	const json_t *add = json_object_get(config, "add_bos_token");

	*bos_text = NULL;
	*add_bos = -1;
	if (json_is_object(bos))
		bos = json_object_get(bos, "content");
	if (json_is_string(bos))
		*bos_text = json_string_value(bos);
	else if (bos != NULL && !json_is_null(bos))
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "tokenizer_config.json: bos_token is not a string");
	if (json_is_boolean(add))
		*add_bos = json_is_true(add);
	else if (add != NULL && !json_is_null(add))
		return dsv3_error(err, DSV3_ERR_BAD_FILE,
						  "tokenizer_config.json: add_bos_token is not true or false");
	return true;
}

/* There is no tokenizer: say whether that is because there is no such directory, or none we may read. */
static void
no_tokenizer(const char *model_dir, Dsv3Error *err)
{
	int fd = open(model_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (dsv3_pack_is(model_dir))
		dsv3_error(err, DSV3_ERR_NO_FILE, "pack \"%s\" holds neither tokenizer.json nor tiktoken.model",
				   model_dir);
	else if (fd >= 0 && faccessat(fd, ".", X_OK, AT_EACCESS) == 0)
	{
		dsv3_error(err, DSV3_ERR_NO_FILE, "\"%s\" has neither tokenizer.json nor tiktoken.model", model_dir);
		dsv3_error_hint(err, "Copy the tokenizer files of the checkpoint into the model directory.");
	}
	else if (errno == EACCES)
	{
		dsv3_error(err, DSV3_ERR_FILE, "could not open model directory \"%s\": %s", model_dir,
				   strerror(errno));
		dsv3_error_hint(err, "The user that runs the engine must be able to read it and to pass through all "
							 "directories above it.");
	}
	else
	{
		dsv3_error(err, DSV3_ERR_NO_FILE, "could not open model directory \"%s\": %s", model_dir,
				   strerror(errno));
		dsv3_error_hint(
			err, "A model is a Hugging Face directory with config.json, tokenizer files and *.safetensors.");
	}
	if (fd >= 0)
		close(fd);
}

Dsv3Tokenizer *
dsv3_tokenizer_open(const char *model_dir, Dsv3Error *err)
{
	char *text = NULL, *config = NULL;
	size_t len = 0, config_len = 0;
	bool tiktoken;
	Dsv3Tokenizer *tokenizer = NULL;
	Dsv3Error problem;

	text = dsv3_read_text_file(model_dir, "tokenizer.json", MAX_FILE, &len, &problem);
	tiktoken = text == NULL && strcmp(problem.sqlstate, DSV3_ERR_NO_FILE) == 0;
	if (tiktoken)
		text = dsv3_read_text_file(model_dir, "tiktoken.model", MAX_FILE, &len, &problem);
	if (text == NULL)
	{
		if (err != NULL)
			*err = problem;
		/* there is none, or the directory lets nobody look */
		if (strcmp(problem.sqlstate, DSV3_ERR_NO_FILE) == 0 ||
			(!dsv3_pack_is(model_dir) && faccessat(AT_FDCWD, model_dir, X_OK, AT_EACCESS) != 0))
			no_tokenizer(model_dir, err);
		return NULL;
	}
	/* tokenizer.json stands alone when the other file is not there; any other trouble with it is an error */
	config = dsv3_read_text_file(model_dir, "tokenizer_config.json", MAX_CONFIG, &config_len, &problem);
	if (config == NULL && (tiktoken || strcmp(problem.sqlstate, DSV3_ERR_NO_FILE) != 0))
	{
		if (err != NULL)
			*err = problem;
	}
	else if (tiktoken)
		tokenizer = dsv3_tokenizer_from_tiktoken(text, len, config, config_len, err);
	else
		tokenizer = dsv3_tokenizer_from_json(text, len, config, config_len, err);
	if (tokenizer == NULL && config != NULL)
		dsv3_error_prefix(err, "%.200s", model_dir);
	free(text);
	free(config);
	return tokenizer;
}

/* ---- small accessors ---- */

int32_t
dsv3_tokenizer_vocab_size(const Dsv3Tokenizer *tokenizer)
{
	return tokenizer->bpe.vocab.size;
}

const char *
dsv3_tokenizer_token_bytes(const Dsv3Tokenizer *tokenizer, int32_t id, size_t *len)
{
	return (const char *) dsv3_vocab_bytes(&tokenizer->bpe.vocab, id, len);
}

bool
dsv3_tokenizer_is_special(const Dsv3Tokenizer *tokenizer, int32_t id)
{
	return id >= 0 && id < tokenizer->bpe.vocab.size && tokenizer->special[id];
}

int32_t
dsv3_tokenizer_special_id(const Dsv3Tokenizer *tokenizer, const char *text)
{
	const Dsv3AddedToken *token = dsv3_added_find(&tokenizer->added, text, strlen(text));

	return token == NULL ? -1 : token->id;
}

int32_t
dsv3_tokenizer_bos(const Dsv3Tokenizer *tokenizer)
{
	return tokenizer->bos;
}

/* ---- encoding ---- */

/* One call's working memory. */
typedef struct Encoder
{
	const Dsv3Tokenizer *tokenizer;
	Dsv3SplitState split;
	Dsv3BpeState bpe;
	Dsv3SectionList sections;
	size_t max_count; /* of ids in *out */
	Dsv3Tokens *out;
	Dsv3Error *err;
} Encoder;

/* Text without added tokens. */
static bool
encode_plain(Encoder *e, const char *text, size_t len)
{
	const char *split_text;
	size_t split_len, at = 0;
	uint32_t seen = 0;

	e->split.abort_flag = e->out->abort_flag;
	if (!dsv3_splitter_split(e->tokenizer->splitter, &e->split, text, len, &split_text, &split_len, e->err))
		return false;
	for (size_t i = 0; i < e->split.pieces.count; i++)
	{
		Dsv3Piece piece = e->split.pieces.items[i];
		size_t begin;

		if (dsv3_aborted(e->out->abort_flag, "the encoding of a text", e->err))
			return false;
		/* pieces are in order, so their bytes are found by walking on */
		for (; seen < piece.start; seen++)
			at += dsv3_utf8_length((uint8_t) split_text[at]);
		begin = at;
		for (; seen < piece.start + piece.count; seen++)
			at += dsv3_utf8_length((uint8_t) split_text[at]);
		if (!dsv3_bpe_encode(&e->tokenizer->bpe, &e->bpe, (const uint8_t *) split_text + begin, at - begin,
							 e->max_count, e->out, e->err))
			return false;
	}
	return true;
}

static bool
encode_sections(Encoder *e, const char *text, size_t len, Dsv3EncodeMode mode)
{
	if (mode == DSV3_ENCODE_PLAIN)
		return encode_plain(e, text, len);
	if (!dsv3_added_split(&e->tokenizer->added, text, len, &e->sections, e->err))
		return false;
	for (size_t i = 0; i < e->sections.count; i++)
	{
		Dsv3Section section = e->sections.items[i];

		if (section.token == NULL)
		{
			if (!encode_plain(e, text + section.start, section.end - section.start))
				return false;
		}
		else if (e->out->count >= e->max_count)
			return dsv3_error(e->err, DSV3_ERR_TOO_LARGE,
							  "the text has more than the allowed number of tokens");
		else if (!dsv3_tokens_push(e->out, section.token->id, e->err))
			return false;
	}
	return true;
}

/*
 * The Kimi tokenizer encodes blocks of 400,000 characters one by one, each cut where 25,000 characters of white space or
 * of other characters have passed without a change.
 */
static bool
encode_tiktoken(Encoder *e, const char *text, size_t len, Dsv3EncodeMode mode)
{
	size_t start = 0, at = 0;
	uint32_t chars = 0, run = 0;
	bool run_is_space = false;

	while (at < len)
	{
		uint32_t c = 0;
		bool incomplete, is_space, cut;
		int n = dsv3_utf8_next((const uint8_t *) text + at, len - at, &c, &incomplete);

		is_space = dsv3_is_python_space(c);
		if (chars == TIKTOKEN_MAX_CHARS)
		{
			chars = 0;
			cut = true;
		}
		else if (chars == 0 || is_space != run_is_space)
		{
			run = 0;
			cut = false;
		}
		else
			cut = run == TIKTOKEN_MAX_RUN;
		if (cut)
		{
			if (!encode_sections(e, text + start, at - start, mode))
				return false;
			start = at;
			run = 0;
		}
		run_is_space = is_space;
		run++;
		chars++;
		at += (size_t) n;
	}
	return encode_sections(e, text + start, len - start, mode);
}

bool
dsv3_tokenizer_encode(const Dsv3Tokenizer *tokenizer, const char *text, size_t len, Dsv3EncodeMode mode,
					  size_t max_tokens, Dsv3Tokens *out, Dsv3Error *err)
{
	Encoder e = {.tokenizer = tokenizer, .max_count = SIZE_MAX, .out = out, .err = err};
	bool ok;

	if (!dsv3_utf8_check(text, len, err))
		return false;
	if (max_tokens > 0 && max_tokens < SIZE_MAX - out->count)
		e.max_count = out->count + max_tokens;
	if (len >= REMEMBER_ABOVE)
		dsv3_bpe_state_remember(&e.bpe);
	if (tokenizer->tiktoken)
		ok = encode_tiktoken(&e, text, len, mode);
	else
		ok = encode_sections(&e, text, len, mode);
	if (!ok && err != NULL && e.max_count != SIZE_MAX && out->count >= max_tokens &&
		strcmp(err->sqlstate, DSV3_ERR_TOO_LARGE) == 0)
		dsv3_error_detail(err, "%zu tokens are allowed for a text of %zu bytes.", max_tokens, len);
	dsv3_split_state_free(&e.split);
	dsv3_bpe_state_free(&e.bpe);
	free(e.sections.items);
	return ok;
}
