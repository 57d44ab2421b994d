/*
 * test_decoder.c
 *	  From ids to bytes and text: every token byte-exact, and the incremental decoder equal to the lossy decoding of all
 *	  bytes together, however they are cut.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text_fixture.h"

static const char *const merges[] = {"Ã ©", "æ Ĺ", "æĹ ¥", "h e", "Ġ he", "ð Ł", NULL};

#define ADDED                                                                                                \
	"[{\"id\": 300, \"content\": \"<s>\", \"special\": true}, {\"id\": 301, \"content\": \"<\xC3\xA9>\"},"   \
	" {\"id\": 310, \"content\": \"\xF0\x9F\x98\x80\", \"special\": false}]"

static uint64_t seed = 1;

static uint32_t
random_below(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t) (seed >> 33) % n;
}

static Dsv3Tokenizer *
open_or_fail(void)
{
	Dsv3Error err;
	Dsv3Tokenizer *t = open_small(NULL, merges, ADDED, NULL, &err);

	if (t == NULL)
		fail_msg("%s", err.message);
	return t;
}

static void
test_token_bytes(void **state)
{
	static const struct
	{
		int32_t id;
		const char *bytes;
	} cases[] = {{'A', "A"},          {0xFF, "\xFF"},           {32, " "},    {256, "\xC3\xA9"},
				 {257, "\xE6\x97"},   {258, "\xE6\x97\xA5"},    {260, " he"}, {300, "<s>"},
				 {301, "<\xC3\xA9>"}, {310, "\xF0\x9F\x98\x80"}};
	Dsv3Tokenizer *t = open_or_fail();
	size_t len;

	(void) state;
	for (int id = 0; id < 256; id++)
	{
		const char *bytes = dsv3_tokenizer_token_bytes(t, id, &len);

		assert_int_equal(len, 1);
		assert_int_equal((uint8_t) bytes[0], id);
	}
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		const char *bytes = dsv3_tokenizer_token_bytes(t, cases[i].id, &len);

		assert_non_null(bytes);
		assert_int_equal(len, strlen(cases[i].bytes));
		assert_memory_equal(bytes, cases[i].bytes, len);
	}
	assert_null(dsv3_tokenizer_token_bytes(t, -1, &len));
	assert_null(dsv3_tokenizer_token_bytes(t, 299, &len));
	assert_null(dsv3_tokenizer_token_bytes(t, 311, &len));
	assert_null(dsv3_tokenizer_token_bytes(t, INT32_MAX, &len));
	assert_int_equal(dsv3_tokenizer_vocab_size(t), 311);
	dsv3_tokenizer_close(t);
}

static void
test_decode(void **state)
{
	static const int32_t ids[] = {300, 'H', 256, 257, 0xA5, 300};
	Dsv3Tokenizer *t = open_or_fail();
	Dsv3Error err;
	size_t len;
	char *text;

	(void) state;
	text = dsv3_tokenizer_decode(t, ids, 6, false, &len, &err);
	assert_string_equal(text, "<s>H\xC3\xA9\xE6\x97\xA5<s>");
	assert_int_equal(len, strlen(text));
	free(text);
	text = dsv3_tokenizer_decode(t, ids, 6, true, &len, &err);
	assert_string_equal(text, "H\xC3\xA9\xE6\x97\xA5");
	free(text);
	text = dsv3_tokenizer_decode(t, ids, 0, true, &len, &err);
	assert_int_equal(len, 0);
	assert_string_equal(text, "");
	free(text);
	assert_null(dsv3_tokenizer_decode(t, (int32_t[]){1, 299}, 2, false, &len, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_INVALID_PARAMETER);
	assert_non_null(strstr(err.message, "299"));
	assert_null(dsv3_tokenizer_decode(t, (int32_t[]){-7}, 1, true, &len, &err));
	dsv3_tokenizer_close(t);
}

/* What Rust's from_utf8_lossy makes of bytes. */
static void
lossy(const uint8_t *bytes, size_t len, Dsv3Text *out)
{
	Dsv3Error err;

	assert_true(dsv3_text_append(out, "", 0, &err));
	for (size_t i = 0; i < len;)
	{
		uint32_t c;
		bool incomplete;
		int n = dsv3_utf8_next(bytes + i, len - i, &c, &incomplete);

		if (n > 0)
			assert_true(dsv3_text_append(out, (const char *) bytes + i, (size_t) n, &err));
		else
			assert_true(dsv3_text_append(out, "\xEF\xBF\xBD", 3, &err));
		i += (size_t) (n > 0 ? n : -n);
	}
}

/* Known cases of replacement: one U+FFFD for each maximal part. */
static void
test_lossy_reference(void **state)
{
	static const struct
	{
		const char *bytes, *text;
	} cases[] = {
		{"a\xFF", "a\xEF\xBF\xBD"},
		{"\xF0\x9F\x98"
		 "a",
		 "\xEF\xBF\xBD"
		 "a"},
		{"\xE2\x82", "\xEF\xBF\xBD"},
		{"\xE0\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
		{"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
		{"\xF1\x80\x80\xC3\xA9", "\xEF\xBF\xBD\xC3\xA9"},
		{"\xC3\xC3\xA9", "\xEF\xBF\xBD\xC3\xA9"},
		{"\xF5\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},
	};

	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		Dsv3Text out = {0};

		lossy((const uint8_t *) cases[i].bytes, strlen(cases[i].bytes), &out);
		assert_string_equal(out.data, cases[i].text);
		dsv3_text_free(&out);
	}
}

static bool
is_valid(const char *text, size_t len)
{
	Dsv3Error err;

	return dsv3_utf8_check(text, len, &err);
}

/* Ids of every kind in every order: each call gives whole characters, all together the lossy decoding. */
static void
test_incremental(void **state)
{
	static const int32_t some[] = {'a',  0xC3, 0xA9, 0xE6, 0x97, 0xA5, 0xF0, 0x9F, 0x98, 0x80, 0xFF,
								   0xED, 0xA0, 256,  257,  258,  260,  261,  300,  301,  310};
	Dsv3Tokenizer *t = open_or_fail();

	(void) state;
	for (int round = 0; round < 20000; round++)
	{
		int32_t ids[12];
		int n = (int) random_below(13);
		bool skip = random_below(2);
		Dsv3Decoder decoder;
		Dsv3Text out = {0}, want = {0};
		Dsv3Error err;
		size_t len;
		char *bytes;

		for (int i = 0; i < n; i++)
			ids[i] = random_below(4) ? some[random_below(sizeof(some) / sizeof(some[0]))]
									 : (int32_t) random_below(256);
		dsv3_decoder_init(&decoder, t, skip);
		for (int i = 0; i < n; i++)
		{
			assert_true(dsv3_decoder_feed(&decoder, ids[i], &out, &err));
			assert_true(decoder.npending <= 3);
			assert_true(is_valid(out.data ? out.data : "", out.len));
		}
		assert_true(dsv3_decoder_finish(&decoder, &out, &err));
		assert_int_equal(decoder.npending, 0);
		bytes = dsv3_tokenizer_decode(t, ids, (size_t) n, skip, &len, &err);
		lossy((const uint8_t *) bytes, len, &want);
		assert_int_equal(out.len, want.len);
		assert_memory_equal(out.data ? out.data : "", want.data, want.len);
		free(bytes);
		dsv3_text_free(&out);
		dsv3_text_free(&want);
	}
	dsv3_tokenizer_close(t);
}

/* A character is given out with its last byte, not later. */
static void
test_not_late(void **state)
{
	Dsv3Tokenizer *t = open_or_fail();
	Dsv3Decoder decoder;
	Dsv3Text out = {0};
	Dsv3Error err;

	(void) state;
	dsv3_decoder_init(&decoder, t, false);
	assert_true(dsv3_decoder_feed(&decoder, 257, &out, &err));
	assert_int_equal(out.len, 0);
	assert_true(dsv3_decoder_feed(&decoder, 0xA5, &out, &err));
	assert_string_equal(out.data, "\xE6\x97\xA5");
	assert_false(dsv3_decoder_feed(&decoder, 299, &out, &err));
	assert_string_equal(err.sqlstate, DSV3_ERR_INVALID_PARAMETER);
	dsv3_text_free(&out);
	dsv3_tokenizer_close(t);
}

/* Random text comes back byte for byte. */
static void
test_round_trip(void **state)
{
	Dsv3Tokenizer *t = open_or_fail();

	(void) state;
	for (int round = 0; round < 3000; round++)
	{
		char text[256];
		size_t n = 0, len;
		Dsv3Tokens tokens = {0};
		Dsv3Error err;
		char *back;

		for (uint32_t i = random_below(40); i > 0; i--)
		{
			uint32_t c = random_below(3) ? random_below(0x3000) : random_below(0x110000);

			if (c < 0xD800 || c > 0xDFFF)
				n += (size_t) dsv3_utf8_put(c, text + n);
		}
		assert_true(dsv3_tokenizer_encode(t, text, n, DSV3_ENCODE_PLAIN, 0, &tokens, &err));
		back = dsv3_tokenizer_decode(t, tokens.ids, tokens.count, false, &len, &err);
		assert_int_equal(len, n);
		assert_memory_equal(back, text, n);
		free(back);
		dsv3_tokens_free(&tokens);
	}
	dsv3_tokenizer_close(t);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_token_bytes),     cmocka_unit_test(test_decode),
		cmocka_unit_test(test_lossy_reference), cmocka_unit_test(test_incremental),
		cmocka_unit_test(test_not_late),        cmocka_unit_test(test_round_trip),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
