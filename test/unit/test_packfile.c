/*
 * test_packfile.c
 *	  The container of a pack: what was laid out is read back, every damage is refused, and no damage is read past.
 */
#include "fixture.h"

#include "common/packfile.h"

/* A pack in memory, of two small files and a matrix. */
typedef struct Made
{
	unsigned char *bytes;
	size_t size;
	size_t directory; /* where it begins */
} Made;

static const char *const texts[] = {"{\"a\": 1}", "second"};

static void
put64(unsigned char *at, uint64_t value)
{
	for (int i = 0; i < 8; i++)
		at[i] = (unsigned char) (value >> (8 * i));
}

/* Make header and digests fit what the bytes are now: a forger can do that too. */
static void
forge(Made *m)
{
	Dsv3Error err;

	assert_true(dsv3_pack_header(m->bytes, (int64_t) m->directory, m->bytes + m->directory,
								 m->size - m->directory, &err));
}

static Made
make(void)
{
	Dsv3PackPiece pieces[] = {
		{.name = "config.json", .type = DSV3_PACK_FILE, .offset = 4096, .bytes = 8},
		{.name = "second.txt", .type = DSV3_PACK_FILE, .offset = 8192, .bytes = 6},
		{.name = "m.weight",
		 .type = DSV3_PACK_BF16,
		 .n_dims = 2,
		 .dims = {3, 700},
		 .offset = 12288,
		 .bytes = 4200},
	};
	unsigned char digests[3][DSV3_PACK_DIGEST];
	Made m = {.directory = 20480};
	Dsv3Error err;
	unsigned char *directory;
	size_t len;

	m.bytes = calloc(1, m.directory + 4096);
	assert_non_null(m.bytes);
	memcpy(m.bytes + 4096, texts[0], 8);
	memcpy(m.bytes + 8192, texts[1], 6);
	for (int i = 0; i < 4200; i++)
		m.bytes[12288 + i] = (unsigned char) (i * 7);
	for (int i = 0; i < 3; i++)
	{
		pieces[i].digest = digests[i];
		assert_true(dsv3_pack_digest(digests[i], m.bytes + pieces[i].offset, (size_t) pieces[i].bytes));
	}
	directory = dsv3_pack_directory(pieces, 3, &len, &err);
	assert_non_null(directory);
	memcpy(m.bytes + m.directory, directory, len);
	free(directory);
	m.size = m.directory + len;
	forge(&m);
	return m;
}

/* The bytes in memory of exactly their size, so that a sanitizer sees every step outside. */
static bool
parse(const Made *m, size_t size, Dsv3Error *err)
{
	unsigned char *copy = malloc(size ? size : 1);
	Dsv3Pack pack;
	bool ok;

	assert_non_null(copy);
	memcpy(copy, m->bytes, size);
	memset(err, 0, sizeof(*err));
	ok = dsv3_pack_parse(&pack, "x.dsv3", copy, (int64_t) size, err);
	dsv3_pack_clear(&pack);
	free(copy);
	return ok;
}

static void
refuse(const Made *m, const char *sqlstate, const char *text)
{
	Dsv3Error err;

	if (parse(m, m->size, &err))
		fail_msg("accepted; expected \"%s\"", text);
	assert_error(&err, sqlstate, text, NULL);
}

static void
test_read(void **state)
{
	Made m = make();
	Fixture fx;
	char path[128];
	Dsv3Error err;
	Dsv3Pack pack;
	size_t len;
	char *text;

	(void) state;
	fixture_open(&fx);
	fixture_write_file(fx.dir, "x.dsv3", m.bytes, m.size);
	snprintf(path, sizeof(path), "%s/x.dsv3", fx.dir);
	assert_true(dsv3_pack_is(path));
	assert_false(dsv3_pack_is(fx.dir));
	assert_false(dsv3_pack_is("/nonexistent"));
	assert_true(dsv3_pack_open(&pack, path, &err));
	assert_int_equal(pack.n_pieces, 3);
	assert_string_equal(pack.pieces[2].name, "m.weight");
	assert_int_equal(pack.pieces[2].dims[1], 700);
	assert_int_equal(strlen(pack.digest), 64);
	assert_true(dsv3_pack_verify(&pack, path, &err));
	dsv3_pack_close(&pack);

	text = dsv3_pack_read_file(path, "second.txt", 6, &len, &err);
	assert_non_null(text);
	assert_string_equal(text, texts[1]);
	assert_int_equal(len, 6);
	free(text);
	assert_null(dsv3_pack_read_file(path, "second.txt", 5, &len, &err));
	assert_error(&err, "54000", "second.txt", "6 bytes", NULL);
	assert_null(dsv3_pack_read_file(path, "m.weight", 1 << 20, &len, &err));
	assert_error(&err, "58P01", "holds no file \"m.weight\"", NULL);
	assert_null(dsv3_pack_read_file("/nonexistent", "a", 5, &len, &err));
	assert_error(&err, "58P01", "/nonexistent", NULL);
	assert_false(dsv3_pack_open(&pack, "/dev/null", &err));
	assert_error(&err, "58030", "not a regular file", NULL);
	fixture_close(&fx);
	free(m.bytes);
}

/* A flipped bit anywhere: found at opening in the header and the directory, else by verifying. */
static void
test_every_bit(void **state)
{
	Made m = make();
	Fixture fx;
	char path[128];
	Dsv3Error err;
	Dsv3Pack pack;
	size_t len;

	(void) state;
	for (size_t at = 0; at < m.size; at++)
	{
		bool piece = at >= 4096 && at < m.directory;

		m.bytes[at] ^= (unsigned char) (1 << at % 8);
		if (parse(&m, m.size, &err) != piece)
			fail_msg("a flipped bit of byte %zu", at);
		if (piece)
		{
			memset(&pack, 0, sizeof(pack));
			assert_true(dsv3_pack_parse(&pack, "x.dsv3", m.bytes, (int64_t) m.size, &err));
			assert_false(dsv3_pack_verify(&pack, "x.dsv3", &err));
			assert_error(&err, "XX001", "is damaged", NULL);
			dsv3_pack_clear(&pack);
		}
		m.bytes[at] ^= (unsigned char) (1 << at % 8);
	}
	fixture_open(&fx);
	m.bytes[4096] ^= 1;
	fixture_write_file(fx.dir, "x.dsv3", m.bytes, m.size);
	snprintf(path, sizeof(path), "%s/x.dsv3", fx.dir);
	assert_null(dsv3_pack_read_file(path, "config.json", 100, &len, &err));
	assert_error(&err, "XX001", "\"config.json\" does not match its checksum", NULL);
	fixture_close(&fx);
	free(m.bytes);
}

static void
test_truncated(void **state)
{
	Made m = make();
	Dsv3Error err;

	(void) state;
	for (size_t size = 0; size < m.size; size += size < 200 || size + 600 > m.size ? 1 : 97)
	{
		if (parse(&m, size, &err))
			fail_msg("accepted with %zu of %zu bytes", size, m.size);
	}
	assert_false(parse(&m, m.size - 1, &err));
	assert_error(&err, "XX001", "truncated", NULL);
	free(m.bytes);
}

/* What a forger can write with good checksums. */
static void
test_forged(void **state)
{
	static const struct
	{
		size_t at; /* in entry 2 */
		int bytes;
		uint64_t value;
		const char *text;
	} entries[] = {
		{0, 2, 0, "a name"},
		{0, 2, 7, "a name"},
		{0, 2, 300, "a name"},
		{0, 2, 0xffff, "a name"},
		{3, 1, 4, "not possible"},
		{3, 1, 1, "not possible"}, /* a dimension behind the last */
		{4, 4, 1, "not possible"},
		{8, 8, UINT64_MAX, "not possible"},
		{24, 8, 1, "not possible"},
		{32, 8, 0, "not possible"},
		{32, 8, 12289, "not possible"},
		{32, 8, 8192, "not possible"}, /* over another piece */
		{32, 8, 16384, "not possible"},
		{32, 8, UINT64_MAX - 4095, "not possible"},
		{40, 8, UINT64_MAX, "not possible"},
		{40, 8, 8193, "not possible"}, /* into the directory */
		{40, 8, 4096, "does not end"}, /* a hole before the directory */
	};
	static const struct
	{
		size_t at;
		uint64_t value;
	} counts[] = {{0, 0}, {0, 2}, {0, 4}, {0, 0x7fffffff}, {0, 0xffffffff}, {4, 1}};
	Made good = make();
	Made m = make();

	(void) state;
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
	{
		memcpy(m.bytes, good.bytes, good.size);
		for (int b = 0; b < entries[i].bytes; b++)
			m.bytes[m.directory + 8 + 2 * DSV3_PACK_ENTRY + entries[i].at + (size_t) b] =
				(unsigned char) (entries[i].value >> (8 * b));
		forge(&m);
		refuse(&m, "XX001", entries[i].text);
	}
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
	{
		memcpy(m.bytes, good.bytes, good.size);
		for (int b = 0; b < 4; b++)
			m.bytes[m.directory + counts[i].at + (size_t) b] = (unsigned char) (counts[i].value >> (8 * b));
		forge(&m);
		refuse(&m, "XX001", "is damaged");
	}
	/* names: not printable, with a path, without end, with something behind the last */
	for (int i = 0; i < 4; i++)
	{
		memcpy(m.bytes, good.bytes, good.size);
		m.size = good.size - (i == 2 ? 1 : 0);
		if (i < 2)
			m.bytes[good.size - 3] = i == 0 ? '\n' : '/';
		if (i == 3)
			m.bytes[m.size++] = '\0';
		forge(&m);
		refuse(&m, "XX001", "is damaged");
	}
	free(good.bytes);
	free(m.bytes);
}

static void
test_header(void **state)
{
	static const struct
	{
		size_t at;
		uint64_t value;
	} fields[] = {{24, 0}, {24, 20481}, {24, UINT64_MAX}, {32, 0}, {32, 1 << 30}, {32, UINT64_MAX}, {16, 5}};
	Made good = make();
	Made m = make();

	(void) state;
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
	{
		memcpy(m.bytes, good.bytes, good.size);
		put64(m.bytes + fields[i].at, fields[i].value);
		assert_true(dsv3_pack_digest(m.bytes + 72, m.bytes, 72));
		refuse(&m, "XX001", "pack \"x.dsv3\"");
	}
	memcpy(m.bytes, good.bytes, good.size);
	m.bytes[8] = 2;
	refuse(&m, "0A000", "version 2");
	m.bytes[0] = 'X';
	refuse(&m, "XX001", "not a pack");
	free(good.bytes);
	free(m.bytes);
}

static void
test_names(void **state)
{
	unsigned char digest[DSV3_PACK_DIGEST] = {0};
	char longest[DSV3_PACK_MAX_NAME + 2];
	Dsv3PackPiece piece = {
		.name = "a/b", .type = DSV3_PACK_FILE, .offset = 4096, .bytes = 1, .digest = digest};
	Dsv3Error err;
	size_t len;

	(void) state;
	assert_null(dsv3_pack_directory(&piece, 1, &len, &err));
	assert_error(&err, "0A000", "a/b", NULL);
	memset(longest, 'a', sizeof(longest));
	longest[sizeof(longest) - 1] = '\0';
	piece.name = longest;
	assert_null(dsv3_pack_directory(&piece, 1, &len, &err));
	piece.name = longest + 1;
	free(dsv3_pack_directory(&piece, 1, &len, &err));
	assert_int_equal(len, 8 + DSV3_PACK_ENTRY + DSV3_PACK_MAX_NAME + 1);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_read),   cmocka_unit_test(test_every_bit), cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_forged), cmocka_unit_test(test_header),    cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests_name("packfile", tests, NULL, NULL);
}
