/*
 * test_tokenizer.c
 *	  Encoding: merges, splitting, added tokens, both file formats, hostile files, long inputs, and the DeepSeek-V3
 *	  tokenizer of the shared data where it was unpacked. Expected ids were checked once against Hugging Face tokenizers.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "text_fixture.h"

static const char *const few_merges[] = {"h e", "l l", "he ll", "hell o", "Ġ w", "o r", "1 2", NULL};

#define ADDED                                                                                                \
	"[{\"id\": 300, \"content\": \"<s>\", \"special\": true, \"normalized\": false},"                        \
	" {\"id\": 301, \"content\": \"<s>>\", \"special\": false, \"normalized\": false},"                      \
	" {\"id\": 302, \"content\": \"<l>\", \"lstrip\": true, \"normalized\": false},"                         \
	" {\"id\": 303, \"content\": \"<r>\", \"rstrip\": true, \"normalized\": false},"                         \
	" {\"id\": 304, \"content\": \"word\", \"single_word\": true, \"normalized\": true}]"

static Dsv3Tokenizer *
open_or_fail(const char *pre, const char *const *merges, const char *added)
{
	Dsv3Error err;
	Dsv3Tokenizer *tokenizer = open_small(pre, merges, added, NULL, &err);

	if (tokenizer == NULL)
		fail_msg("%s", err.message);
	return tokenizer;
}

static void
test_merges(void **state)
{
	Dsv3Tokenizer *t = open_or_fail(NULL, few_merges, NULL);

	(void) state;
	assert_string_equal(encode_text(t, "hello", DSV3_ENCODE_PLAIN), "259");
	assert_string_equal(encode_text(t, "hell", DSV3_ENCODE_PLAIN), "258");
	assert_string_equal(encode_text(t, "hello world", DSV3_ENCODE_PLAIN), "259,260,261,108,100");
	/* leftmost of equal pairs first */
	assert_string_equal(encode_text(t, "lll", DSV3_ENCODE_PLAIN), "257,108");
	assert_string_equal(encode_text(t, "", DSV3_ENCODE_PLAIN), "");
	assert_int_equal(dsv3_tokenizer_vocab_size(t), 263);
	dsv3_tokenizer_close(t);
}

/* A long piece goes another way through BPE than a short one; both must agree with each other. */
static void
test_long_pieces(void **state)
{
	static const char *const merges[] = {"a a", "aa a", "aa aa", "b a", "aaaa b", "a b", NULL};
	Dsv3Tokenizer *t = open_or_fail(
		"{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}", merges, NULL);
	uint64_t seed = 7;

	(void) state;
	for (int n = 1; n < 400; n++)
	{
		char text[512];
		int32_t symbols[512];
		int count = n;
		Dsv3Tokens tokens = {0};
		Dsv3Error err;

		for (int i = 0; i < n; i++)
		{
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			text[i] = "aaab"[seed >> 62];
			symbols[i] = text[i];
		}
		/* the definition: the lowest rank, leftmost, again and again */
		for (;;)
		{
			static const int32_t pairs[6][3] = {{97, 97, 256}, {256, 97, 257}, {256, 256, 258},
												{98, 97, 259}, {258, 98, 260}, {97, 98, 261}};
			int best = -1, at = -1;

			for (int r = 0; r < 6 && best < 0; r++)
			{
				for (int i = 0; i + 1 < count && best < 0; i++)
				{
					if (symbols[i] == pairs[r][0] && symbols[i + 1] == pairs[r][1])
					{
						best = r;
						at = i;
					}
				}
			}
			if (best < 0)
				break;
			symbols[at] = pairs[best][2];
			memmove(symbols + at + 1, symbols + at + 2, (size_t) (count - at - 2) * sizeof(*symbols));
			count--;
		}
		assert_true(dsv3_tokenizer_encode(t, text, (size_t) n, DSV3_ENCODE_PLAIN, 0, &tokens, &err));
		assert_int_equal(tokens.count, count);
		assert_memory_equal(tokens.ids, symbols, (size_t) count * sizeof(*symbols));
		dsv3_tokens_free(&tokens);
	}
	dsv3_tokenizer_close(t);
}

static void
test_ignore_merges(void **state)
{
	Dsv3Error err;
	json_t *root;
	char *text = make_tokenizer_json(NULL, few_merges, NULL), *again;
	Dsv3Tokenizer *t;

	(void) state;
	root = json_loads(text, 0, NULL);
	free(text);
	/* "xyz" is a token no merge makes */
	json_object_set_new(json_object_get(json_object_get(root, "model"), "vocab"), "xyz", json_integer(290));
	for (int ignore = 0; ignore < 2; ignore++)
	{
		json_object_set_new(json_object_get(root, "model"), "ignore_merges", json_boolean(ignore));
		again = json_dumps(root, 0);
		t = dsv3_tokenizer_from_json(again, strlen(again), NULL, 0, &err);
		assert_non_null(t);
		assert_string_equal(encode_text(t, "xyz", DSV3_ENCODE_PLAIN), ignore ? "290" : "120,121,122");
		dsv3_tokenizer_close(t);
		free(again);
	}
	json_decref(root);
}

/* Pieces show as tokens when every pair of equal letters merges inside a piece only. */
static void
check_split(const char *rules, const char *text, const char *ids)
{
	static const char *const merges[] = {"a a", "aa a", "1 1", "Ġ Ġ", "- -", NULL};
	char pre[1024];
	Dsv3Tokenizer *t;

	snprintf(pre, sizeof(pre),
			 "{\"type\": \"Sequence\", \"pretokenizers\": [%s, {\"type\": \"ByteLevel\", "
			 "\"add_prefix_space\": false, \"use_regex\": false}]}",
			 rules);
	t = open_or_fail(pre, merges, NULL);
	assert_string_equal(encode_text(t, text, DSV3_ENCODE_PLAIN), ids);
	dsv3_tokenizer_close(t);
}

#define SPLIT(regex, behavior, invert)                                                                       \
	"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex "\"}, \"behavior\": \"" behavior               \
	"\", \"invert\": " invert "}"

static void
test_splitting(void **state)
{
	(void) state;
	/* 97 a, 256 aa, 257 aaa, 49 "1", 258 "11", 45 "-", 260 "--" */
	check_split(SPLIT("a", "Isolated", "false"), "aaa", "97,97,97");
	check_split(SPLIT("a{2}", "Isolated", "false"), "aaaaa", "256,256,97");
	check_split(SPLIT("-", "Removed", "false"), "aa-aa", "256,256");
	check_split(SPLIT("-", "Removed", "true"), "aa-aa--", "45,45,45");
	check_split(SPLIT("-", "MergedWithPrevious", "false"), "--aa", "45,45,256");
	check_split(SPLIT("-", "MergedWithNext", "false"), "--aa", "45,45,256");
	check_split(SPLIT("-", "Contiguous", "false"), "--aa", "260,256");
	check_split("{\"type\": \"Digits\", \"individual_digits\": true}", "11aa", "49,49,256");
	check_split("{\"type\": \"Digits\", \"individual_digits\": false}", "11aa", "258,256");
	check_split("{\"type\": \"Split\", \"pattern\": {\"String\": \"a-\"}, \"behavior\": \"Isolated\", "
				"\"invert\": false}",
				"aa-a", "97,97,45,97");
	/* an empty match splits too, but not right after another match */
	check_split(SPLIT("x*", "Isolated", "false"), "aaa", "97,97,97");
	check_split(SPLIT("a*", "Isolated", "false"), "aa1aa", "256,49,256");
	/* the second rule sees every piece of the first, and nothing beyond it */
	check_split(SPLIT("a+", "Isolated", "false") "," SPLIT("^a|a$", "Isolated", "false"), "aaa1aaa",
				"97,97,97,49,97,97,97");
	check_split(SPLIT("(?<=1)a", "Isolated", "false"), "1aa", "49,97,97");
	check_split(SPLIT("1", "Isolated", "false") "," SPLIT("(?<=1)a", "Isolated", "false"), "1aa", "49,256");
}

/* Patterns: Oniguruma's dialect, Unicode 16. What matches becomes single tokens a a; the rest stays aa. */
static void
test_patterns(void **state)
{
	static const struct
	{
		const char *pattern;
		const char *text;
		bool whole; /* the text is one match */
	} cases[] = {
		{"\\\\p{L}+", "a\xC3\xA9\xD0\x96\xE6\x97\xA5", true},
		{"\\\\p{L}+", "a1", false},
		{"\\\\p{Lu}\\\\p{Ll}", "Ab", true},
		{"\\\\p{^L}", "1", true},
		{"\\\\P{L}", "1", true},
		{"[^\\\\p{L}]", "a", false},
		/* assigned by Unicode 15: U+31350 and U+1E4D0 */
		{"\\\\p{Lo}", "\xF0\xB1\x8D\x90", true},
		{"\\\\p{Han}", "\xF0\xB1\x8D\x90", true},
		{"\\\\p{L}", "\xF0\x9E\x93\x90", true},
		{"\\\\p{Han}", "\xE3\x83\xBB", false}, /* U+30FB is not Han */
		{"\\\\s", "\xE3\x80\x80", true},
		{"\\\\s", "\xE1\xA0\x8E", false}, /* U+180E is no space */
		{"\\\\s+", "\x0B\x0C\xC2\x85\xE2\x80\xA8", true},
		{"\\\\S", "\xE1\xA0\x8E", true},
		{"\\\\h+", "0aF", true},
		{"\\\\d", "\xD9\xA3", true},
		{"[a-c[x-z]]+", "axcz", true},
		{"[a-z&&[^aeiou]]+", "xyz", true},
		{"[a-z&&[^aeiou]]+", "xyaz", false},
		{"[\\\\]\\\\-x^]+", "]-x^", true},
		{"(?i:'S|k)", "'\xC5\xBF", true}, /* long s */
		{"(?i:k)", "\xE2\x84\xAA", true}, /* Kelvin sign */
		{"a(?!b)", "ab", false},
		{"a++b?", "aab", true},
		{"(?>a|ab)c", "abc", false},
		{"a{,2}b", "aab", true},
		{"\\\\x41\\\\x{e9}\\\\u00e9", "A\xC3\xA9\xC3\xA9", true},
		{".", "\n", false},
		{"x$", "x\n", false}, /* matches x only */
	};
	static const char *const merges[] = {NULL};

	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		char pre[512];
		Dsv3Tokenizer *t;
		size_t len = strlen(cases[i].text);

		/* what matches as a whole is kept, all else goes: the number of ids tells */
		snprintf(pre, sizeof(pre),
				 "{\"type\": \"Sequence\", \"pretokenizers\": [%s{\"type\": \"Split\", \"pattern\": "
				 "{\"Regex\": \"%s\"}, "
				 "\"behavior\": \"Removed\", \"invert\": true}, {\"type\": \"ByteLevel\", "
				 "\"add_prefix_space\": false, \"use_regex\": false}]}",
				 "", cases[i].pattern);
		t = open_or_fail(pre, merges, NULL);
		{
			Dsv3Tokens tokens = {0};
			Dsv3Error err;

			assert_true(dsv3_tokenizer_encode(t, cases[i].text, len, DSV3_ENCODE_PLAIN, 0, &tokens, &err));
			if ((tokens.count == len) != cases[i].whole)
				fail_msg("pattern %s on %s", cases[i].pattern, cases[i].text);
			dsv3_tokens_free(&tokens);
		}
		dsv3_tokenizer_close(t);
	}
}

static void
test_unsupported_patterns(void **state)
{
	static const char *const patterns[] = {
		"\\\\w+", "(?<n>a)", "\\\\1",      "(?i:straSSe)", "a**",         "[[:alpha:]]", "(",
		"[a",     "a)",      "\\\\p{Foo}", "*a",           "[]",          "a{2}+",       "\\\\",
		"(?m:a)", "[z-a]",   "\\\\b",      "a{1000000}",   "(?i:\\u00e9)"};

	(void) state;
	for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
	{
		char pre[512];
		Dsv3Error err = {.sqlstate = ""};
		Dsv3Tokenizer *t;

		snprintf(pre, sizeof(pre),
				 "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
				 "{\"Regex\": \"%s\"}, "
				 "\"behavior\": \"Isolated\", \"invert\": false}, " GPT2_SPLIT "]}",
				 patterns[i]);
		t = open_small(pre, NULL, NULL, NULL, &err);
		if (t != NULL)
			fail_msg("%s was taken", patterns[i]);
		assert_true(strcmp(err.sqlstate, DSV3_ERR_UNSUPPORTED) == 0 ||
					strcmp(err.sqlstate, DSV3_ERR_BAD_FILE) == 0);
		assert_non_null(strstr(err.message, "regular expression"));
	}
}

static void
test_added_tokens(void **state)
{
	Dsv3Tokenizer *t = open_or_fail(NULL, few_merges, ADDED);

	(void) state;
	assert_string_equal(encode_text(t, "<s>", DSV3_ENCODE_PLAIN), "60,115,62");
	assert_string_equal(encode_text(t, "<s>", DSV3_ENCODE_SPECIAL), "300");
	assert_string_equal(encode_text(t, "<s>>", DSV3_ENCODE_SPECIAL), "301");
	assert_string_equal(encode_text(t, "a<s>hello", DSV3_ENCODE_SPECIAL), "97,300,259");
	assert_string_equal(encode_text(t, "a  <l> b", DSV3_ENCODE_SPECIAL), "97,302,32,98");
	assert_string_equal(encode_text(t, "a <r>\n\t b", DSV3_ENCODE_SPECIAL), "97,32,303,98");
	assert_string_equal(encode_text(t, "word", DSV3_ENCODE_SPECIAL), "304");
	assert_string_equal(encode_text(t, "sword word", DSV3_ENCODE_SPECIAL), "115,119,261,100,32,304");
	assert_string_equal(encode_text(t, "<s", DSV3_ENCODE_SPECIAL), "60,115");
	assert_int_equal(dsv3_tokenizer_special_id(t, "<s>"), 300);
	assert_int_equal(dsv3_tokenizer_special_id(t, "<t>"), -1);
	assert_true(dsv3_tokenizer_is_special(t, 300));
	assert_false(dsv3_tokenizer_is_special(t, 301));
	assert_false(dsv3_tokenizer_is_special(t, -1));
	assert_false(dsv3_tokenizer_is_special(t, 1000000));
	dsv3_tokenizer_close(t);
}

static void
test_prefix_space(void **state)
{
	Dsv3Tokenizer *t =
		open_or_fail("{\"type\": \"ByteLevel\", \"add_prefix_space\": true}", few_merges, ADDED);

	(void) state;
	assert_string_equal(encode_text(t, "wor", DSV3_ENCODE_PLAIN), "260,261");
	assert_string_equal(encode_text(t, " wor", DSV3_ENCODE_PLAIN), "260,261");
	assert_string_equal(encode_text(t, "\xC3\xA9<s>wor", DSV3_ENCODE_SPECIAL), "32,195,169,300,260,261");
	assert_string_equal(encode_text(t, "", DSV3_ENCODE_PLAIN), "");
	dsv3_tokenizer_close(t);
}

static void
test_bos(void **state)
{
	static const struct
	{
		const char *config;
		int32_t bos; /* -2: refused */
	} cases[] = {
		{NULL, -1},
		{"{}", -1},
		{"{\"bos_token\": \"<s>\"}", -1},
		{"{\"bos_token\": \"<s>\", \"add_bos_token\": true}", 300},
		{"{\"bos_token\": {\"content\": \"<s>\"}, \"add_bos_token\": true}", 300},
		{"{\"bos_token\": \"<s>\", \"add_bos_token\": false, \"tokenizer_class\": \"LlamaTokenizer\"}", -1},
		{"{\"bos_token\": \"<s>\", \"tokenizer_class\": \"LlamaTokenizerFast\"}", 300},
		{"{\"bos_token\": \"<q>\", \"add_bos_token\": true}", -2},
		{"{\"bos_token\": 3}", -2},
		{"{\"add_bos_token\": \"yes\"}", -2},
		{"[]", -2},
		{"{", -2},
	};

	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		Dsv3Error err;
		Dsv3Tokenizer *t = open_small(NULL, NULL, ADDED, cases[i].config, &err);

		if (cases[i].bos == -2)
			assert_null(t);
		else
		{
			assert_non_null(t);
			assert_int_equal(dsv3_tokenizer_bos(t), cases[i].bos);
		}
		dsv3_tokenizer_close(t);
	}
}

static void
test_invalid_utf8(void **state)
{
	static const struct
	{
		const char *text;
		const char *offset;
	} cases[] = {{"abc\xFF", "byte 3"},
				 {"\xC0\x80", "byte 0"},
				 {"a\xED\xA0\x80", "byte 1"},
				 {"\xE2\x82", "byte 0"},
				 {"\xF4\x90\x80\x80", "byte 0"},
				 {"123456789\xC3", "byte 9"},
				 {"\x80", "byte 0"},
				 {"12345678\xE2\x82\xAC\xFE", "byte 11"}};
	Dsv3Tokenizer *t = open_or_fail(NULL, few_merges, ADDED);

	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		const char *said = encode_text(t, cases[i].text, (Dsv3EncodeMode) (i & 1));

		assert_memory_equal(said, "22021 ", 6);
		assert_non_null(strstr(said, cases[i].offset));
	}
	dsv3_tokenizer_close(t);
}

static void
test_max_tokens(void **state)
{
	Dsv3Tokenizer *t = open_or_fail(NULL, few_merges, ADDED);
	Dsv3Tokens tokens = {0};
	Dsv3Error err;
	char spaces[200];

	(void) state;
	memset(spaces, '!', sizeof(spaces));
	assert_true(dsv3_tokenizer_encode(t, "abc", 3, DSV3_ENCODE_PLAIN, 3, &tokens, &err));
	assert_false(dsv3_tokenizer_encode(t, "abcd", 4, DSV3_ENCODE_PLAIN, 3, &tokens, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_TOO_LARGE);
	tokens.count = 0;
	assert_false(dsv3_tokenizer_encode(t, "<s><s>", 6, DSV3_ENCODE_SPECIAL, 1, &tokens, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_TOO_LARGE);
	tokens.count = 0;
	assert_false(dsv3_tokenizer_encode(t, spaces, sizeof(spaces), DSV3_ENCODE_PLAIN, 199, &tokens, &err));
	tokens.count = 0;
	assert_true(dsv3_tokenizer_encode(t, spaces, sizeof(spaces), DSV3_ENCODE_PLAIN, 200, &tokens, &err));
	dsv3_tokens_free(&tokens);
	dsv3_tokenizer_close(t);
}

/* ---- hostile files ---- */

/* Set member `key` of the object at path "a.b" of a good file to a JSON text (NULL removes it), and open. */
static Dsv3Tokenizer *
open_changed(const char *path, const char *key, const char *value, Dsv3Error *err)
{
	char *text = make_tokenizer_json(NULL, few_merges, ADDED), *changed;
	json_t *root = json_loads(text, 0, NULL), *object = root;
	Dsv3Tokenizer *t;

	free(text);
	if (path[0] != '\0')
		object = json_object_get(root, path);
	if (value == NULL)
		json_object_del(object, key);
	else
		json_object_set_new(object, key, json_loads(value, JSON_DECODE_ANY, NULL));
	changed = json_dumps(root, 0);
	json_decref(root);
	t = dsv3_tokenizer_from_json(changed, strlen(changed), NULL, 0, err);
	free(changed);
	return t;
}

static void
test_hostile_members(void **state)
{
	static const struct
	{
		const char *path, *key, *value, *says;
	} cases[] = {
		{"", "model", NULL, "\"model\" is not an object"},
		{"", "model", "[]", "\"model\" is not an object"},
		{"model", "type", "\"Unigram\"", "the model type \"Unigram\" is not supported"},
		{"model", "vocab", NULL, "model.vocab"},
		{"model", "vocab", "{}", "model.vocab"},
		{"model", "vocab", "{\"a\": 1.5}", "not an integer"},
		{"model", "vocab", "{\"a\": -1}", "token id -1 is outside"},
		{"model", "vocab", "{\"a\": 4194304}", "token id 4194304 is outside"},
		{"model", "vocab", "{\"a\": 9223372036854775807}", "is outside"},
		{"model", "vocab", "{\"a\": 1, \"b\": 1}", "two tokens have the id 1"},
		{"model", "vocab", "{\"\": 1}", "has 0 bytes"},
		{"model", "merges", NULL, "model.merges is not an array"},
		{"model", "merges", "[1]", "merge 0 is neither"},
		{"model", "merges", "[\"ab\"]", "merge 0 is not two tokens"},
		{"model", "merges", "[\"a b c\"]", "merge 0 is not two tokens"},
		{"model", "merges", "[[\"a\"]]", "merge 0 is neither"},
		{"model", "merges", "[[\"a\", 1]]", "merge 0 is neither"},
		{"model", "merges", "[\"h e\", \"h e\"]", "merge 1 (\"he\") is there twice"},
		{"model", "merges", "[\"q q\"]", "what it makes is not in the vocabulary"},
		{"model", "merges", "[\"qq he\"]", "its left part is not in the vocabulary"},
		{"model", "merges", "[\"he qq\"]", "its right part is not in the vocabulary"},
		{"model", "merges", "[\" he\"]", "its left part is not in the vocabulary"},
		{"model", "dropout", "0.1", "a model with \"dropout\""},
		{"model", "continuing_subword_prefix", "\"##\"", "continuing_subword_prefix"},
		{"model", "end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
		{"model", "byte_fallback", "true", "byte_fallback"},
		{"model", "ignore_merges", "1", "\"ignore_merges\" is not true or false"},
		{"", "normalizer", "{\"type\": \"NFC\"}", "the normalizer \"NFC\" is not supported"},
		{"", "normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}",
		 "\"Lowercase\""},
		{"", "normalizer", "7", "has no \"type\""},
		{"", "pre_tokenizer", NULL, "there is no pre-tokenizer"},
		{"", "pre_tokenizer", "{\"type\": \"Metaspace\"}", "\"Metaspace\" is not supported"},
		{"", "pre_tokenizer", "{\"type\": \"Sequence\"}", "has no \"pretokenizers\""},
		{"", "pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": []}", "no ByteLevel part"},
		{"", "pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": [" GPT2_SPLIT "," GPT2_SPLIT "]}",
		 "after ByteLevel"},
		{"", "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}}",
		 "has no \"behavior\""},
		{"", "pre_tokenizer", "{\"type\": \"Split\", \"behavior\": \"Isolated\"}", "the pattern of a Split"},
		{"", "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Odd\"}",
		 "\"Odd\""},
		{"", "decoder", NULL, "there is no decoder"},
		{"", "decoder", "{\"type\": \"WordPiece\"}", "the decoder \"WordPiece\""},
		{"", "post_processor", "{\"type\": \"BertProcessing\"}", "\"BertProcessing\""},
		{"", "post_processor", "{\"type\": \"TemplateProcessing\"}", "has no \"single\""},
		{"", "added_tokens", "{}", "\"added_tokens\" is not an array"},
		{"", "added_tokens", "[{\"id\": 300}]", "has no \"content\""},
		{"", "added_tokens", "[{\"content\": \"<x>\"}]", "is not an integer"},
		{"", "added_tokens", "[{\"content\": \"\", \"id\": 300}]", "has 0 bytes"},
		{"", "added_tokens", "[{\"content\": \"<x>\", \"id\": -5}]", "is outside"},
		{"", "added_tokens", "[{\"content\": \"<x>\", \"id\": 97}]", "has the id 97 of another token"},
		{"", "added_tokens", "[{\"content\": \"hell\", \"id\": 400}]", "400 there and 258 in the vocabulary"},
		{"", "added_tokens", "[{\"content\": \"<x>\", \"id\": 300, \"lstrip\": 1}]", "is not true or false"},
		{"", "added_tokens", "[{\"content\": \"<x>\", \"id\": 300}, {\"content\": \"<x>\", \"id\": 301}]",
		 NULL},
	};

	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		Dsv3Error err = {.sqlstate = ""};
		Dsv3Tokenizer *t = open_changed(cases[i].path, cases[i].key, cases[i].value, &err);

		if (t != NULL)
			fail_msg("case %zu (%s) was taken", i, cases[i].says);
		if (cases[i].says != NULL && strstr(err.message, cases[i].says) == NULL)
			fail_msg("case %zu: \"%s\" instead of \"%s\"", i, err.message, cases[i].says);
		assert_memory_equal(err.message, "tokenizer.json: ", 16);
		assert_int_equal(strlen(err.sqlstate), 5);
	}
}

/* Cut short at every length, and nested without end. */
static void
test_hostile_text(void **state)
{
	char *text = make_tokenizer_json(NULL, few_merges, ADDED), *deep;
	size_t len = strlen(text), n = 100000;
	Dsv3Error err;

	(void) state;
	for (size_t cut = 0; cut < len; cut += cut < 50 || cut + 50 > len ? 1 : 37)
		assert_null(dsv3_tokenizer_from_json(text, cut, NULL, 0, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_BAD_FILE);
	text[len / 2] = (char) 0xFF;
	assert_null(dsv3_tokenizer_from_json(text, len, NULL, 0, &err));
	free(text);
	deep = malloc(2 * n + 1);
	memset(deep, '[', 2 * n);
	assert_null(dsv3_tokenizer_from_json(deep, 2 * n, NULL, 0, &err));
	assert_non_null(strstr(err.message, "not valid JSON"));
	free(deep);
	/* a Sequence in a Sequence in a Sequence ... */
	deep = malloc(64 * 60);
	deep[0] = '\0';
	for (int i = 0; i < 20; i++)
		strcat(deep, "{\"type\": \"Sequence\", \"pretokenizers\": [");
	strcat(deep, GPT2_SPLIT);
	for (int i = 0; i < 20; i++)
		strcat(deep, "]}");
	assert_null(open_small(deep, NULL, NULL, NULL, &err));
	assert_non_null(strstr(err.message, "nested too deeply"));
	free(deep);
}

static void
test_missing_bytes(void **state)
{
	Dsv3Error err;
	char *text = make_tokenizer_json(NULL, NULL, NULL), *changed;
	json_t *root = json_loads(text, 0, NULL), *model = json_object_get(root, "model");
	Dsv3Tokenizer *t;

	(void) state;
	free(text);
	json_object_del(json_object_get(model, "vocab"), "z");
	changed = json_dumps(root, 0);
	t = dsv3_tokenizer_from_json(changed, strlen(changed), NULL, 0, &err);
	free(changed);
	assert_non_null(t);
	/* as in the tokenizers: a byte without a token vanishes */
	assert_string_equal(encode_text(t, "azb", DSV3_ENCODE_PLAIN), "97,98");
	dsv3_tokenizer_close(t);
	json_object_set_new(model, "unk_token", json_string("<unk>"));
	changed = json_dumps(root, 0);
	assert_null(dsv3_tokenizer_from_json(changed, strlen(changed), NULL, 0, &err));
	assert_non_null(strstr(err.message, "unk_token"));
	free(changed);
	json_decref(root);
}

/* ---- tiktoken ---- */

static const char tiktoken_config[] =
	"{\"added_tokens_decoder\": {\"260\": {\"content\": \"[BOS]\", \"special\": true},"
	" \"262\": {\"content\": \"<|im_end|>\", \"special\": false}}, \"bos_token\": \"[BOS]\"}";

/* 256 bytes and "ab", "abc", "bc", "aa"; in base64. */
static char *
make_tiktoken(void)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	char *text = malloc(8192), *p = text;

	for (int b = 0; b < 256; b++)
		p += sprintf(p, "%c%c== %d\n", letters[b >> 2], letters[(b & 3) << 4], b);
	strcpy(p, "YWI= 256\nYWJj 257\nYmM= 258\nYWE= 259\n");
	return text;
}

static void
test_tiktoken(void **state)
{
	char *text = make_tiktoken();
	Dsv3Error err;
	Dsv3Tokenizer *t =
		dsv3_tokenizer_from_tiktoken(text, strlen(text), tiktoken_config, strlen(tiktoken_config), &err);

	(void) state;
	assert_non_null(t);
	assert_string_equal(encode_text(t, "ab", DSV3_ENCODE_PLAIN), "256");
	assert_string_equal(encode_text(t, "abc", DSV3_ENCODE_PLAIN), "257");
	assert_string_equal(encode_text(t, "aab", DSV3_ENCODE_PLAIN), "97,256");
	assert_string_equal(encode_text(t, "xbc", DSV3_ENCODE_PLAIN), "120,258");
	assert_string_equal(encode_text(t, "[BOS]", DSV3_ENCODE_SPECIAL), "260");
	assert_string_equal(encode_text(t, "<|reserved_token_261|>ab", DSV3_ENCODE_SPECIAL), "261,256");
	assert_string_equal(encode_text(t, "<|im_end|>", DSV3_ENCODE_SPECIAL), "262");
	/* upper to lower is one word, Han is apart from other letters */
	assert_string_equal(encode_text(t, "aB", DSV3_ENCODE_PLAIN), "97,66");
	assert_int_equal(dsv3_tokenizer_bos(t), -1);
	assert_int_equal(dsv3_tokenizer_vocab_size(t), 260 + 256);
	assert_true(dsv3_tokenizer_is_special(t, 260));
	assert_false(dsv3_tokenizer_is_special(t, 262));
	assert_true(dsv3_tokenizer_is_special(t, 261));
	{
		/* a run is cut after 25,000 characters: x and 24,999 a's, then two a's, which make a pair */
		char *run = malloc(25003);
		Dsv3Tokens tokens = {0};

		memset(run, 'a', 25002);
		run[0] = 'x';
		assert_true(dsv3_tokenizer_encode(t, run, 25002, DSV3_ENCODE_PLAIN, 0, &tokens, &err));
		assert_int_equal(tokens.count, 1 + 12499 + 1 + 1);
		assert_int_equal(tokens.ids[12501], 259);
		tokens.count = 0;
		memset(run, ' ', 25001);
		assert_true(dsv3_tokenizer_encode(t, run, 25001, DSV3_ENCODE_PLAIN, 0, &tokens, &err));
		assert_int_equal(tokens.count, 25001);
		dsv3_tokens_free(&tokens);
		free(run);
	}
	dsv3_tokenizer_close(t);
	free(text);
}

static void
test_hostile_tiktoken(void **state)
{
	static const struct
	{
		const char *extra, *config, *says;
	} cases[] = {
		{"YWI=\n", tiktoken_config, "line 261 has no space"},
		{"YWI= \n", tiktoken_config, "does not end in a rank"},
		{"YWI= 1x\n", tiktoken_config, "does not end in a rank"},
		{"YWI= 260\n", tiktoken_config, "have the same bytes"},
		{"YWQ= 100\n", tiktoken_config, "two tokens have the id 100"},
		{"YWQ= 999\n", tiktoken_config, "some are missing"},
		{"YWQ= 999999999\n", tiktoken_config, "is outside"},
		{"YW!= 260\n", tiktoken_config, "does not begin with base64"},
		{"YWQ 260\n", tiktoken_config, "does not begin with base64"},
		{"YR== 260\n", tiktoken_config, "does not begin with base64"},
		{" 260\n", tiktoken_config, "does not begin with base64"},
		{"", "{}", "added_tokens_decoder is not an object"},
		{"", "{\"added_tokens_decoder\": {\"x\": {}}}", "is not an id"},
		{"", "{\"added_tokens_decoder\": {\"5\": {\"content\": \"x\"}}}", "not within"},
		{"", "{\"added_tokens_decoder\": {\"99999\": {\"content\": \"x\"}}}", "not within"},
		{"", "{\"added_tokens_decoder\": {\"260\": {}}}", "has no \"content\""},
		{"", "nonsense", "not valid JSON"},
	};
	char *good = make_tiktoken(), text[8300];
	Dsv3Error err;

	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		snprintf(text, sizeof(text), "%s%s", good, cases[i].extra);
		assert_null(
			dsv3_tokenizer_from_tiktoken(text, strlen(text), cases[i].config, strlen(cases[i].config), &err));
		if (strstr(err.message, cases[i].says) == NULL)
			fail_msg("case %zu: \"%s\" instead of \"%s\"", i, err.message, cases[i].says);
	}
	/* a byte is missing */
	assert_null(dsv3_tokenizer_from_tiktoken("QQ== 0\n", 7, tiktoken_config, strlen(tiktoken_config), &err));
	assert_non_null(strstr(err.message, "has no token"));
	free(good);
}

/* ---- files ---- */

static void
test_open_directory(void **state)
{
	static const char bos_config[] = "{\"add_bos_token\": true, \"bos_token\": \"<s>\"}";
	char dir[64], *json = make_tokenizer_json(NULL, few_merges, ADDED), *ranks = make_tiktoken();
	Dsv3Error err;
	Dsv3Tokenizer *t;

	(void) state;
	make_model_dir(dir);
	assert_null(dsv3_tokenizer_open(dir, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_NO_FILE);
	assert_true(err.hint[0] != '\0');
	assert_non_null(strstr(err.message, "has neither tokenizer.json"));
	/* a path that is no directory, or one nobody lets us into, is not blamed on the tokenizer */
	assert_null(dsv3_tokenizer_open("/nonexistent/model", &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_NO_FILE);
	assert_string_equal(err.message,
						"could not open model directory \"/nonexistent/model\": No such file or directory");
	assert_null(dsv3_tokenizer_open("/dev/null", &err));
	assert_non_null(strstr(err.message, "Not a directory"));
	if (geteuid() != 0)
	{
		assert_int_equal(chmod(dir, 0), 0);
		assert_null(dsv3_tokenizer_open(dir, &err));
		assert_string_equal(err.sqlstate, DSV3_ERR_FILE);
		assert_non_null(strstr(err.message, "Permission denied"));
		assert_int_equal(chmod(dir, 0700), 0);
	}
	/* tiktoken.model needs the config */
	write_model_file(dir, "tiktoken.model", ranks, strlen(ranks));
	assert_null(dsv3_tokenizer_open(dir, &err));
	assert_non_null(strstr(err.message, "tokenizer_config.json"));
	write_model_file(dir, "tokenizer_config.json", tiktoken_config, strlen(tiktoken_config));
	t = dsv3_tokenizer_open(dir, &err);
	assert_non_null(t);
	assert_int_equal(dsv3_tokenizer_vocab_size(t), 516);
	dsv3_tokenizer_close(t);
	/* tokenizer.json comes first */
	write_model_file(dir, "tokenizer.json", json, strlen(json));
	write_model_file(dir, "tokenizer_config.json", bos_config, sizeof(bos_config) - 1);
	t = dsv3_tokenizer_open(dir, &err);
	assert_non_null(t);
	assert_int_equal(dsv3_tokenizer_bos(t), 300);
	dsv3_tokenizer_close(t);
	write_model_file(dir, "tokenizer_config.json", "{", 1);
	assert_null(dsv3_tokenizer_open(dir, &err));
	assert_non_null(strstr(err.message, "tokenizer_config.json is not valid JSON"));
	assert_non_null(strstr(err.message, dir));
	remove_model_dir(dir);
	free(json);
	free(ranks);
}

/* ---- long inputs ---- */

static double
seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double) now.tv_sec + (double) now.tv_nsec * 1e-9;
}

/*
 * A megabyte of one kind must not be quadratic anywhere. The bound is far above what is needed (0.1 s), for sanitizers
 * and busy machines; quadratic behaviour would take hours.
 */
static void
test_megabyte(void **state)
{
	static const char *const merges[] = {"a a", "aa aa", "aaaa aaaa", "Ġ Ġ", "ĠĠ ĠĠ", NULL};
	static const char *const units[] = {"a",   " ",  "1",        "!",  "\n", "\r\n", "\xE6\x97\xA5",
										" \n", "a ", "\xCC\x81", "<s>"};
	static const char *const pres[] = {
		GPT2_SPLIT,
		"{\"type\": \"Sequence\", \"pretokenizers\": [" SPLIT("\\\\s+$", "Isolated", "false") "," SPLIT(
			"\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+", "Isolated", "false") "," GPT2_SPLIT "]}",
	};

	(void) state;
	for (size_t p = 0; p < 2; p++)
	{
		Dsv3Tokenizer *t = open_or_fail(pres[p], merges, ADDED);

		for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++)
		{
			size_t unit = strlen(units[u]), n = 1000000 / unit;
			char *text = malloc(n * unit + 2);
			Dsv3Tokens tokens = {0};
			Dsv3Error err;
			double start = seconds();

			for (size_t i = 0; i < n; i++)
				memcpy(text + i * unit, units[u], unit);
			text[n * unit] = 'x';
			assert_true(dsv3_tokenizer_encode(t, text, n * unit + 1, DSV3_ENCODE_SPECIAL, 0, &tokens, &err));
			assert_true(seconds() - start < 20);
			assert_int_equal(tokens.ids[tokens.count - 1], 'x');
			dsv3_tokens_free(&tokens);
			free(text);
		}
		dsv3_tokenizer_close(t);
	}
}

/* A pattern that backtracks without end is an error, not a hang. */
static void
test_match_limit(void **state)
{
	Dsv3Tokenizer *t = open_or_fail("{\"type\": \"Sequence\", \"pretokenizers\": [" SPLIT(
										"(a|aa)+$", "Isolated", "false") "," GPT2_SPLIT "]}",
									NULL, NULL);
	char text[202];
	double start = seconds();

	(void) state;
	memset(text, 'a', 200);
	strcpy(text + 200, "b");
	assert_memory_equal(encode_text(t, text, DSV3_ENCODE_PLAIN), "54000 ", 6);
	assert_true(seconds() - start < 60);
	dsv3_tokenizer_close(t);
}

/* ---- threads ---- */

static const char threads_text[] = "hello world, hello <s> 1212 \xE6\x97\xA5\xE6\x9C\xAC";
static const int32_t threads_ids[] = {259, 260, 261, 108, 100,  ',',  ' ',  259,  ' ',  300,
									  ' ', 262, 262, ' ', 0xE6, 0x97, 0xA5, 0xE6, 0x9C, 0xAC};

/* Returns its argument when something came out otherwise. */
static void *
encode_often(void *tokenizer)
{
	for (int i = 0; i < 300; i++)
	{
		Dsv3Tokens tokens = {0};
		Dsv3Error err;
		bool ok = dsv3_tokenizer_encode(tokenizer, threads_text, sizeof(threads_text) - 1,
										DSV3_ENCODE_SPECIAL, 0, &tokens, &err);

		ok = ok && tokens.count == sizeof(threads_ids) / sizeof(threads_ids[0]) &&
			 memcmp(tokens.ids, threads_ids, sizeof(threads_ids)) == 0;
		dsv3_tokens_free(&tokens);
		if (!ok)
			return tokenizer;
	}
	return NULL;
}

static void
test_threads(void **state)
{
	Dsv3Tokenizer *t = open_or_fail(NULL, few_merges, ADDED);
	pthread_t threads[4];

	(void) state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, encode_often, t), 0);
	for (int i = 0; i < 4; i++)
	{
		void *wrong;

		pthread_join(threads[i], &wrong);
		assert_null(wrong);
	}
	dsv3_tokenizer_close(t);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_merges),
		cmocka_unit_test(test_long_pieces),
		cmocka_unit_test(test_ignore_merges),
		cmocka_unit_test(test_splitting),
		cmocka_unit_test(test_patterns),
		cmocka_unit_test(test_unsupported_patterns),
		cmocka_unit_test(test_added_tokens),
		cmocka_unit_test(test_prefix_space),
		cmocka_unit_test(test_bos),
		cmocka_unit_test(test_invalid_utf8),
		cmocka_unit_test(test_max_tokens),
		cmocka_unit_test(test_hostile_members),
		cmocka_unit_test(test_hostile_text),
		cmocka_unit_test(test_missing_bytes),
		cmocka_unit_test(test_tiktoken),
		cmocka_unit_test(test_hostile_tiktoken),
		cmocka_unit_test(test_open_directory),
		cmocka_unit_test(test_megabyte),
		cmocka_unit_test(test_match_limit),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
