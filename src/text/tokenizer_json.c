/*
 * tokenizer_json.c
 *	  Reader of tokenizer.json, the format of Hugging Face tokenizers, for byte-level BPE.
 *
 * The file is hostile until proven otherwise: sizes are bounded, every member's type is checked, and a part whose
 * meaning is not known here is refused by its name, since skipping it would give other ids. Members that change nothing for
 * this kind of tokenizer (truncation, padding, trim_offsets) are left alone.
 */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"
#include "text/utf8.h"

#define FILE_NAME       "tokenizer.json"
#define MAX_RULE_DEPTH  8
#define MAX_MERGE_BYTES DSV3_MAX_TOKEN_BYTES

/* The expression of ByteLevel(use_regex), GPT-2's. */
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* GPT-2's alphabet: a printable character for each byte, and back. */
typedef struct Alphabet
{
	int16_t byte_of[0x144]; /* by code point, -1 where none */
} Alphabet;

typedef struct Reader
{
	Dsv3Tokenizer *tokenizer;
	Alphabet alphabet;
	const json_t *vocab; /* the object model.vocab */
	bool byte_level;     /* the pre-tokenizer ends in ByteLevel */
	Dsv3Error *err;
} Reader;

static bool
bad_file(Reader *r, const char *what)
{
	return dsv3_error(r->err, DSV3_ERR_BAD_FILE, "%s", what);
}

/* A type name or the like from the file, cut to what a message can hold. */
static bool
unsupported(Reader *r, const char *part, const char *name)
{
	return dsv3_error(r->err, DSV3_ERR_UNSUPPORTED, "%s \"%.60s\" is not supported", part, name);
}

static void
init_alphabet(Alphabet *alphabet)
{
	int next = 0x100;

	for (size_t i = 0; i < sizeof(alphabet->byte_of) / sizeof(alphabet->byte_of[0]); i++)
		alphabet->byte_of[i] = -1;
	for (int b = 0; b < 256; b++)
	{
		bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;

		alphabet->byte_of[printable ? b : next++] = (int16_t) b;
	}
}

/* Token text to bytes; false when a character is outside the alphabet (an added token: its text is its bytes). */
static bool
text_to_bytes(const Alphabet *alphabet, const char *text, size_t len, uint8_t *bytes, size_t *n)
{
	*n = 0;
	for (size_t i = 0; i < len;)
	{
		uint32_t c = 0;
		bool incomplete;
		int step = dsv3_utf8_next((const uint8_t *) text + i, len - i, &c, &incomplete);

		if (step < 0 || c >= sizeof(alphabet->byte_of) / sizeof(alphabet->byte_of[0]) ||
			alphabet->byte_of[c] < 0)
			return false;
		bytes[(*n)++] = (uint8_t) alphabet->byte_of[c];
		i += (size_t) step;
	}
	return true;
}

/* A boolean member; absent or null is fallback. */
static bool
get_bool(Reader *r, const json_t *object, const char *key, bool fallback, bool *value)
{
	const json_t *member = json_object_get(object, key);

	*value = fallback;
	if (member == NULL || json_is_null(member))
		return true;
	if (!json_is_boolean(member))
		return dsv3_error(r->err, DSV3_ERR_BAD_FILE, "\"%s\" is not true or false", key);
	*value = json_is_true(member);
	return true;
}

/* ---- vocabulary and merges ---- */

static bool
read_vocab(Reader *r)
{
	const char *key;
	json_t *value;
	uint8_t *bytes;
	bool ok = true;

	bytes = malloc(DSV3_MAX_TOKEN_BYTES + 1);
	if (bytes == NULL)
		return dsv3_error(r->err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	json_object_foreach ((json_t *) r->vocab, key, value)
	{
		size_t len = strlen(key), n;

		if (!json_is_integer(value))
			ok = dsv3_error(r->err, DSV3_ERR_BAD_FILE, "the id of token \"%.100s\" is not an integer", key);
		else if (len > DSV3_MAX_TOKEN_BYTES)
			ok = dsv3_error(r->err, DSV3_ERR_BAD_FILE, "a token has %zu bytes, more than the possible %d",
							len, DSV3_MAX_TOKEN_BYTES);
		else if (text_to_bytes(&r->alphabet, key, len, bytes, &n))
		{
			ok = dsv3_vocab_set(&r->tokenizer->bpe.vocab, json_integer_value(value), bytes, n, true, r->err);
			if (ok && n == 1)
				r->tokenizer->bpe.byte_id[bytes[0]] = (int32_t) json_integer_value(value);
		}
		else
			ok = dsv3_vocab_set(&r->tokenizer->bpe.vocab, json_integer_value(value), key, len, false, r->err);
		if (!ok)
			break;
	}
	free(bytes);
	return ok;
}

/* The id of a token by its text in the file, or -1. */
static int32_t
vocab_id(const Reader *r, const char *text)
{
	const json_t *value = json_object_get(r->vocab, text);

	return value == NULL ? -1 : (int32_t) json_integer_value(value);
}

/* Add merge number `rank` of left and right (zero-terminated), joined[] being room for both. */
static bool
add_merge(Reader *r, const char *left, size_t left_len, const char *right, size_t right_len, size_t rank,
		  char *joined)
{
	int32_t left_id, right_id, id;
	bool duplicate;

	if (left_len + right_len > MAX_MERGE_BYTES)
		return dsv3_error(r->err, DSV3_ERR_BAD_FILE, "merge %zu is too long", rank);
	memcpy(joined, left, left_len);
	joined[left_len] = '\0';
	left_id = vocab_id(r, joined);
	memcpy(joined, right, right_len);
	joined[right_len] = '\0';
	right_id = vocab_id(r, joined);
	memcpy(joined, left, left_len);
	memcpy(joined + left_len, right, right_len);
	joined[left_len + right_len] = '\0';
	id = vocab_id(r, joined);
	if (left_id < 0 || right_id < 0 || id < 0)
		return dsv3_error(r->err, DSV3_ERR_BAD_FILE, "merge %zu (\"%.60s\"): %s is not in the vocabulary",
						  rank, joined,
						  left_id < 0    ? "its left part"
						  : right_id < 0 ? "its right part"
										 : "what it makes");
	if (!dsv3_bpe_add_merge(&r->tokenizer->bpe, left_id, right_id, (uint32_t) rank, id, &duplicate))
		return dsv3_error(r->err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	if (duplicate)
		return dsv3_error(r->err, DSV3_ERR_BAD_FILE, "merge %zu (\"%.60s\") is there twice", rank, joined);
	return true;
}

static bool
read_merges(Reader *r, const json_t *merges)
{
	size_t n = json_array_size(merges);
	char *joined = malloc(MAX_MERGE_BYTES + 1);
	bool ok = true;

	if (joined == NULL)
		return dsv3_error(r->err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	if (n >= DSV3_MAX_TOKEN_ID)
		ok = dsv3_error(r->err, DSV3_ERR_TOO_LARGE, "there are %zu merges, more than the possible %d", n,
						DSV3_MAX_TOKEN_ID - 1);
	for (size_t i = 0; ok && i < n; i++)
	{
		const json_t *merge = json_array_get(merges, i);

		if (json_is_string(merge))
		{
			const char *text = json_string_value(merge);
			size_t len = json_string_length(merge);
			const char *space = memchr(text, ' ', len);

			if (strncmp(text, "#version", 8) == 0)
				continue;
			if (space == NULL || memchr(space + 1, ' ', (size_t) (text + len - space) - 1) != NULL)
				ok = dsv3_error(r->err, DSV3_ERR_BAD_FILE,
								"merge %zu is not two tokens with one space between", i);
			else
				ok = add_merge(r, text, (size_t) (space - text), space + 1, (size_t) (text + len - space) - 1,
							   i, joined);
		}
		else if (json_is_array(merge) && json_array_size(merge) == 2 &&
				 json_is_string(json_array_get(merge, 0)) && json_is_string(json_array_get(merge, 1)))
		{
			const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);

			ok = add_merge(r, json_string_value(left), json_string_length(left), json_string_value(right),
						   json_string_length(right), i, joined);
		}
		else
			ok = dsv3_error(r->err, DSV3_ERR_BAD_FILE, "merge %zu is neither a string nor a pair of strings",
							i);
	}
	free(joined);
	return ok;
}

/* A member that must be absent, null, or (when a string) empty. */
static bool
must_be_unset(Reader *r, const json_t *object, const char *key)
{
	const json_t *member = json_object_get(object, key);

	if (member == NULL || json_is_null(member) ||
		(json_is_string(member) && json_string_length(member) == 0) ||
		(json_is_number(member) && json_number_value(member) == 0))
		return true;
	return unsupported(r, "a model with", key);
}

/* Can this byte be part of valid UTF-8? */
static bool
occurs_in_text(int byte)
{
	return byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
}

static bool
read_model(Reader *r, const json_t *model)
{
	const json_t *type = json_object_get(model, "type");
	const json_t *merges = json_object_get(model, "merges");
	const json_t *unknown = json_object_get(model, "unk_token");
	bool byte_fallback;

	if (!json_is_object(model))
		return bad_file(r, "\"model\" is not an object");
	if (type != NULL && !json_is_string(type))
		return bad_file(r, "the type of the model is not a string");
	if (type != NULL && strcmp(json_string_value(type), "BPE") != 0)
		return unsupported(r, "the model type", json_string_value(type));
	r->vocab = json_object_get(model, "vocab");
	if (!json_is_object(r->vocab) || json_object_size(r->vocab) == 0)
		return bad_file(r, "model.vocab is not an object with tokens");
	if (!json_is_array(merges))
		return bad_file(r, "model.merges is not an array");
	if (!must_be_unset(r, model, "dropout") || !must_be_unset(r, model, "continuing_subword_prefix") ||
		!must_be_unset(r, model, "end_of_word_suffix") ||
		!get_bool(r, model, "byte_fallback", false, &byte_fallback) ||
		!get_bool(r, model, "ignore_merges", false, &r->tokenizer->bpe.whole_first))
		return false;
	if (byte_fallback)
		return unsupported(r, "a model with", "byte_fallback");
	if (!read_vocab(r) || !read_merges(r, merges))
		return false;
	/* With an unknown token the tokenizers put it where a byte has no token; without one the byte vanishes. */
	for (int b = 0; b < 256; b++)
	{
		if (r->tokenizer->bpe.byte_id[b] < 0 && occurs_in_text(b) && json_is_string(unknown))
			return dsv3_error(r->err, DSV3_ERR_UNSUPPORTED,
							  "unk_token is not supported: byte 0x%02x has no token of its own", b);
	}
	return true;
}

/* ---- normalizer, pre-tokenizer, decoder, post-processor ---- */

/* The type of a part; NULL, with the error set, when it has none. */
static const char *
part_type(Reader *r, const char *part, const json_t *value)
{
	const json_t *type = json_object_get(value, "type");

	if (!json_is_string(type))
	{
		dsv3_error(r->err, DSV3_ERR_BAD_FILE, "%s has no \"type\"", part);
		return NULL;
	}
	return json_string_value(type);
}

/* Only normalizers that change nothing. */
static bool
read_normalizer(Reader *r, const json_t *value)
{
	const char *type;

	if (value == NULL || json_is_null(value))
		return true;
	type = part_type(r, "the normalizer", value);
	if (type == NULL)
		return false;
	if (strcmp(type, "Sequence") == 0 && json_is_array(json_object_get(value, "normalizers")))
	{
		const json_t *list = json_object_get(value, "normalizers");

		if (json_array_size(list) == 0)
			return true;
		type = part_type(r, "a normalizer", json_array_get(list, 0));
		if (type == NULL)
			return false;
	}
	return unsupported(r, "the normalizer", type);
}

static bool
read_behavior(Reader *r, const json_t *value, Dsv3SplitBehavior *behavior)
{
	static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
										"Contiguous"};
	const json_t *name = json_object_get(value, "behavior");

	if (!json_is_string(name))
		return bad_file(r, "a Split has no \"behavior\"");
	for (int i = 0; i < 5; i++)
	{
		if (strcmp(json_string_value(name), names[i]) == 0)
		{
			*behavior = (Dsv3SplitBehavior) i;
			return true;
		}
	}
	return unsupported(r, "the Split behavior", json_string_value(name));
}

static bool
read_split(Reader *r, const json_t *value)
{
	const json_t *pattern = json_object_get(value, "pattern");
	const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
	Dsv3SplitBehavior behavior = DSV3_SPLIT_ISOLATED;
	bool invert;

	if (!read_behavior(r, value, &behavior) || !get_bool(r, value, "invert", false, &invert))
		return false;
	if (json_is_string(regex))
		return dsv3_splitter_add_regex(r->tokenizer->splitter, json_string_value(regex),
									   json_string_length(regex), behavior, invert, r->err);
	if (json_is_string(string))
		return dsv3_splitter_add_string(r->tokenizer->splitter, json_string_value(string),
										json_string_length(string), behavior, invert, r->err);
	return bad_file(r, "the pattern of a Split is neither {\"Regex\": ...} nor {\"String\": ...}");
}

static bool
read_digits(Reader *r, const json_t *value)
{
	Dsv3Charset digits = {0};
	bool individual, known;

	if (!get_bool(r, value, "individual_digits", false, &individual))
		return false;
	if (!dsv3_charset_add_property(&digits, "N", 1, &known))
		return dsv3_error(r->err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	return dsv3_splitter_add_set(r->tokenizer->splitter, &digits,
								 individual ? DSV3_SPLIT_ISOLATED : DSV3_SPLIT_CONTIGUOUS, r->err);
}

static bool
read_byte_level(Reader *r, const json_t *value)
{
	bool add_prefix_space, use_regex;

	if (!get_bool(r, value, "add_prefix_space", true, &add_prefix_space) ||
		!get_bool(r, value, "use_regex", true, &use_regex))
		return false;
	r->byte_level = true;
	if (add_prefix_space && !dsv3_splitter_add_prefix_space(r->tokenizer->splitter, r->err))
		return false;
	return !use_regex || dsv3_splitter_add_regex(r->tokenizer->splitter, GPT2_PATTERN, strlen(GPT2_PATTERN),
												 DSV3_SPLIT_ISOLATED, false, r->err);
}

static bool
read_pre_tokenizer(Reader *r, const json_t *value, int depth)
{
	const char *type = part_type(r, "a pre-tokenizer", value);

	if (type == NULL)
		return false;
	if (r->byte_level)
		return unsupported(r, "after ByteLevel the pre-tokenizer", type);
	if (strcmp(type, "Sequence") == 0)
	{
		const json_t *list = json_object_get(value, "pretokenizers");

		if (!json_is_array(list))
			return bad_file(r, "a Sequence has no \"pretokenizers\"");
		if (depth >= MAX_RULE_DEPTH)
			return bad_file(r, "the pre-tokenizer is nested too deeply");
		for (size_t i = 0; i < json_array_size(list); i++)
		{
			if (!read_pre_tokenizer(r, json_array_get(list, i), depth + 1))
				return false;
		}
		return true;
	}
	if (strcmp(type, "Split") == 0)
		return read_split(r, value);
	if (strcmp(type, "Digits") == 0)
		return read_digits(r, value);
	if (strcmp(type, "ByteLevel") == 0)
		return read_byte_level(r, value);
	return unsupported(r, "the pre-tokenizer", type);
}

static bool
read_decoder(Reader *r, const json_t *value)
{
	const char *type;

	if (value == NULL || json_is_null(value))
		return bad_file(r, "there is no decoder; a byte-level tokenizer has the decoder ByteLevel");
	type = part_type(r, "the decoder", value);
	if (type == NULL)
		return false;
	if (strcmp(type, "Sequence") == 0)
	{
		const json_t *list = json_object_get(value, "decoders");

		if (json_array_size(list) == 1)
			return read_decoder(r, json_array_get(list, 0));
	}
	return strcmp(type, "ByteLevel") == 0 || unsupported(r, "the decoder", type);
}

/*
 * The token a TemplateProcessing puts in front, into *front (a string of the JSON, or NULL).
 */
static bool
read_post_processor(Reader *r, const json_t *value, const char **front, int depth)
{
	const char *type;

	if (value == NULL || json_is_null(value))
		return true;
	type = part_type(r, "the post-processor", value);
	if (type == NULL)
		return false;
	if (strcmp(type, "ByteLevel") == 0)
		return true;
	if (strcmp(type, "Sequence") == 0 && depth < MAX_RULE_DEPTH)
	{
		const json_t *list = json_object_get(value, "processors");

		if (!json_is_array(list))
			return bad_file(r, "a Sequence has no \"processors\"");
		for (size_t i = 0; i < json_array_size(list); i++)
		{
			if (!read_post_processor(r, json_array_get(list, i), front, depth + 1))
				return false;
		}
		return true;
	}
	if (strcmp(type, "TemplateProcessing") == 0)
	{
		const json_t *single = json_object_get(value, "single");
		const json_t *special = json_object_get(json_array_get(single, 0), "SpecialToken");
		const json_t *id = json_object_get(special, "id");

		if (!json_is_array(single))
			return bad_file(r, "a TemplateProcessing has no \"single\"");
		if (special != NULL && !json_is_string(id))
			return bad_file(r, "a SpecialToken of TemplateProcessing has no \"id\"");
		if (special != NULL)
			*front = json_string_value(id);
		return true;
	}
	return unsupported(r, "the post-processor", type);
}

/* ---- added tokens ---- */

bool
dsv3_read_added_token(const json_t *value, Dsv3AddedToken *token, Dsv3Error *err)
{
	static const char *const keys[] = {"special", "single_word", "lstrip", "rstrip", "normalized"};
	const json_t *content = json_object_get(value, "content");
	bool *const fields[] = {&token->special, &token->single_word, &token->lstrip, &token->rstrip,
							&token->normalized};

	memset(token, 0, sizeof(*token));
	if (!json_is_string(content))
		return dsv3_error(err, DSV3_ERR_BAD_FILE, "an added token has no \"content\"");
	token->text = (char *) json_string_value(content);
	token->len = json_string_length(content);
	for (int i = 0; i < 5; i++)
	{
		const json_t *member = json_object_get(value, keys[i]);

		if (member != NULL && !json_is_boolean(member))
			return dsv3_error(err, DSV3_ERR_BAD_FILE, "\"%s\" of added token \"%.100s\" is not true or false",
							  keys[i], token->text);
		*fields[i] = json_is_true(member);
	}
	return true;
}

static bool
read_added_tokens(Reader *r, const json_t *list)
{
	if (list == NULL || json_is_null(list))
		return true;
	if (!json_is_array(list))
		return bad_file(r, "\"added_tokens\" is not an array");
	for (size_t i = 0; i < json_array_size(list); i++)
	{
		const json_t *value = json_array_get(list, i), *id = json_object_get(value, "id");
		int32_t known;
		Dsv3AddedToken token;

		if (!dsv3_read_added_token(value, &token, r->err))
			return false;
		if (!json_is_integer(id))
			return dsv3_error(r->err, DSV3_ERR_BAD_FILE, "the id of added token \"%.100s\" is not an integer",
							  token.text);
		known = strlen(token.text) == token.len ? vocab_id(r, token.text) : -1;
		if (known >= 0 && known != json_integer_value(id))
			return dsv3_error(r->err, DSV3_ERR_BAD_FILE,
							  "added token \"%.100s\" has the id %lld there and %d in the vocabulary",
							  token.text, (long long) json_integer_value(id), known);
		if (known >= 0)
		{
			/* it has its bytes; through the alphabet they may differ from the text */
			token.id = known;
			if (!dsv3_added_add(&r->tokenizer->added, &token, r->err))
				return false;
		}
		else if (!dsv3_tokenizer_add_token(r->tokenizer, &token, json_integer_value(id), r->err))
			return false;
	}
	return true;
}

/* ---- the whole ---- */

/*
 * Does encoding begin with a BOS? tokenizer_config.json decides when it says so; else the post-processor does; else the
 * Llama classes of transformers add one by default.
 */
static bool
choose_bos(Reader *r, const json_t *config, const char *front)
{
	const json_t *class = json_object_get(config, "tokenizer_class");
	const char *text;
	int add;

	if (!dsv3_read_bos(config, &text, &add, r->err))
		return false;
	if (add < 0)
	{
		if (front != NULL)
		{
			text = front;
			add = 1;
		}
		else
			add = json_is_string(class) && strncmp(json_string_value(class), "LlamaTokenizer", 14) == 0;
	}
	if (!add || text == NULL)
		return true;
	r->tokenizer->bos = dsv3_tokenizer_special_id(r->tokenizer, text);
	if (r->tokenizer->bos < 0)
		return dsv3_error(r->err, DSV3_ERR_BAD_FILE,
						  "the beginning-of-sequence token \"%.100s\" is not an added token", text);
	return true;
}

static bool
read_all(Reader *r, const json_t *root, const json_t *config)
{
	const json_t *pre_tokenizer = json_object_get(root, "pre_tokenizer");
	const char *front = NULL;

	if (!read_normalizer(r, json_object_get(root, "normalizer")))
		return false;
	if (pre_tokenizer == NULL || json_is_null(pre_tokenizer))
		return bad_file(r, "there is no pre-tokenizer");
	if (!read_pre_tokenizer(r, pre_tokenizer, 0))
		return false;
	if (!r->byte_level)
		return dsv3_error(r->err, DSV3_ERR_UNSUPPORTED,
						  "a tokenizer whose pre-tokenizer has no ByteLevel part is not supported");
	return read_decoder(r, json_object_get(root, "decoder")) &&
		   read_post_processor(r, json_object_get(root, "post_processor"), &front, 0) &&
		   read_model(r, json_object_get(root, "model")) &&
		   read_added_tokens(r, json_object_get(root, "added_tokens")) &&
		   dsv3_tokenizer_complete(r->tokenizer, r->err) && choose_bos(r, config, front);
}

Dsv3Tokenizer *
dsv3_tokenizer_from_json(const char *text, size_t len, const char *config_text, size_t config_len,
						 Dsv3Error *err)
{
	Reader r = {.err = err};
	json_t *root = NULL, *config = NULL;
	bool ok = false;

	r.tokenizer = dsv3_tokenizer_new(err);
	if (r.tokenizer == NULL)
		return NULL;
	init_alphabet(&r.alphabet);
	root = dsv3_parse_json_file(text, len, FILE_NAME, err);
	if (root != NULL && config_text != NULL)
		config = dsv3_parse_json_file(config_text, config_len, "tokenizer_config.json", err);
	if (root != NULL && (config != NULL || config_text == NULL))
	{
		ok = read_all(&r, root, config);
		if (!ok)
			dsv3_error_prefix(err, FILE_NAME);
	}
	json_decref(root);
	json_decref(config);
	if (!ok)
	{
		dsv3_tokenizer_close(r.tokenizer);
		return NULL;
	}
	return r.tokenizer;
}
