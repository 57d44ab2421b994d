/*
 * test_safetensors.c
 *	  Weight files: what is read, and that every kind of damage is refused with the file, the tensor and the reason.
 */
#include "fixture.h"

#include "model/safetensors.h"

#define TENSOR(name, dtype, shape, offsets)                                                                  \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* Open the directory and expect a refusal. */
static void
refuse_dir(const char *dir, const char *sqlstate, const char *text1, const char *text2, const char *text3)
{
	Dsv3TensorFiles files;
	Dsv3Error err;

	memset(&err, 0, sizeof(err));
	if (dsv3_tensors_open(&files, dir, &err))
		fail_msg("accepted; expected \"%s\"", text2);
	assert_error(&err, sqlstate, text1, text2, text3, NULL);
}

/* One file with this header and so many data bytes, refused. */
static void
refuse_header(const char *header, size_t data_bytes, const char *tensor, const char *reason)
{
	Fixture fx;

	fixture_open(&fx);
	fixture_write_raw(fx.dir, "model.safetensors", header, data_bytes);
	refuse_dir(fx.dir, DSV3_ERR_BAD_FILE, "\"model.safetensors\"", tensor, reason);
	fixture_close(&fx);
}

static void
test_reads(void **state)
{
	Fixture fx;
	Dsv3TensorFiles files;
	Dsv3Error err;
	const Dsv3Tensor *t;

	(void) state;
	fixture_open(&fx);
	fixture_write_raw(
		fx.dir, "model.safetensors",
		"{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("b", "BF16", "[2,3]", "[4,16]") "," TENSOR(
			"a", "F32", "[]", "[0,4]") "," TENSOR("z", "I64", "[0,5]",
												  "[16,16]") "," TENSOR("f4", "F4", "[3,2]",
																		"[16,19]") "}   ",
		19);
	if (!dsv3_tensors_open(&files, fx.dir, &err))
		fail_msg("%s", err.message);
	assert_int_equal(files.n_tensors, 4);
	t = dsv3_tensors_find(&files, "b");
	assert_non_null(t);
	assert_int_equal(t->dtype, DSV3_DTYPE_BF16);
	assert_int_equal(t->n_dims, 2);
	assert_int_equal(t->dims[1], 3);
	assert_int_equal(t->bytes, 12);
	assert_true(t->used);
	t = dsv3_tensors_find(&files, "a");
	assert_int_equal(t->n_dims, 0);
	assert_int_equal(t->bytes, 4);
	assert_null(dsv3_tensors_find(&files, "c"));
	assert_null(dsv3_tensors_find(&files, "__metadata__"));
	assert_int_equal(dsv3_tensors_find(&files, "z")->dtype, DSV3_DTYPE_OTHER);
	dsv3_tensors_close(&files);
	fixture_close(&fx);
}

static void
test_header_refused(void **state)
{
	char header[512];

	(void) state;
	refuse_header("", 0, "not valid JSON", "line 1");
	refuse_header("[]", 0, "JSON object", "header");
	refuse_header("{\"a\":1}", 0, "\"a\"", "not described");
	refuse_header("{\"a\":{}}", 0, "\"a\"", "no dtype");
	refuse_header("{" TENSOR("a", "F33", "[1]", "[0,4]") "}", 4, "\"a\"", "unknown dtype \"F33\"");
	refuse_header("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"a\"", "no shape");
	refuse_header("{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "\"a\"",
				  "at most 8 dimensions");
	refuse_header("{" TENSOR("a", "F32", "[-1]", "[0,4]") "}", 4, "\"a\"", "non-negative integer");
	refuse_header("{" TENSOR("a", "F32", "[1.0]", "[0,4]") "}", 4, "\"a\"", "non-negative integer");
	refuse_header("{" TENSOR("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "\"a\"", "non-negative integer");
	/* products of 2^63 and more, also with a zero at the end or in front */
	refuse_header("{" TENSOR("a", "F32", "[9223372036854775807]", "[0,4]") "}", 4, "\"a\"", "too large");
	refuse_header("{" TENSOR("a", "F32", "[4294967296,2147483648]", "[0,4]") "}", 4, "\"a\"", "too large");
	refuse_header("{" TENSOR("a", "F32", "[4294967296,4294967296,0]", "[0,0]") "}", 0, "\"a\"", "too large");
	refuse_header("{" TENSOR("a", "F32", "[18446744073709551617]", "[0,4]") "}", 4, "too big integer",
				  "line 1");
	refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"a\"", "data_offsets");
	refuse_header("{" TENSOR("a", "F32", "[1]", "[0]") "}", 4, "\"a\"", "data_offsets");
	refuse_header("{" TENSOR("a", "F32", "[1]", "[-4,0]") "}", 4, "\"a\"", "data_offsets");
	refuse_header("{" TENSOR("a", "F32", "[1]", "[0,4.0]") "}", 4, "\"a\"", "data_offsets");
	refuse_header("{" TENSOR("a", "F32", "[1]", "[4,0]") "}", 4, "\"a\"", "ends before it begins");
	refuse_header("{" TENSOR("a", "F32", "[1]", "[0,9223372036854775807]") "}", 4, "\"a\"", "only 4");
	refuse_header("{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 4, "\"a\"", "truncated");
	refuse_header("{" TENSOR("a", "F32", "[2]", "[0,4]") "}", 4, "\"a\"", "does not fit in its 4 bytes");
	refuse_header("{" TENSOR("a", "F32", "[0]", "[0,4]") "}", 4, "\"a\"", "does not fit");
	refuse_header("{" TENSOR("a", "F4", "[3]", "[0,1]") "}", 1, "\"a\"", "does not fit");
	refuse_header("{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[1]", "[2,6]") "}", 6,
				  "\"b\"", "overlaps tensor \"a\"");
	refuse_header("{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[1]", "[0,4]") "}", 4,
				  "overlaps", "tensor");
	refuse_header("{" TENSOR("a", "F32", "[1]", "[4,8]") "}", 8, "\"a\"", "begins at byte 4");
	refuse_header("{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[1]", "[5,9]") "}", 9,
				  "\"b\"", "begins at byte 5");
	refuse_header("{" TENSOR("a", "F32", "[1]", "[0,4]") "}", 5, "1 bytes after its last tensor", "file");
	refuse_header("{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("a", "F32", "[1]", "[4,8]") "}", 8,
				  "duplicate", "a");
	refuse_header("{\"a\xff\":1}", 0, "not valid JSON", "unable to decode byte 0xff");

	/* deep nesting stops in the parser */
	memset(header, '[', sizeof(header));
	memcpy(header, "{\"a\":", 5);
	header[sizeof(header) - 1] = '\0';
	refuse_header(header, 0, "not valid JSON", "header");
}

static void
test_deep_nesting(void **state)
{
	char *header = malloc(100001);

	(void) state;
	assert_non_null(header);
	memset(header, '[', 100000);
	memcpy(header, "{\"a\":", 5);
	header[100000] = '\0';
	refuse_header(header, 0, "not valid JSON", "depth");
	free(header);
}

static void
test_file_refused(void **state)
{
	Fixture fx;
	size_t len;
	unsigned char *bytes;
	char path[128];
	static const unsigned char huge[] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F, '{', '}'};
	static const unsigned char larger[] = {1, 0, 0, 0, 1, 0, 0, 0, '{', '}'};
	static const unsigned char longer[] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};

	(void) state;
	fixture_open(&fx);
	refuse_dir(fx.dir, DSV3_ERR_NO_FILE, fx.dir, "model.safetensors", "pytorch_model.bin");
	fixture_write_file(fx.dir, "model.safetensors", "", 0);
	refuse_dir(fx.dir, DSV3_ERR_BAD_FILE, "\"model.safetensors\"", "is empty", "file");
	fixture_write_file(fx.dir, "model.safetensors", "abcdefg", 7);
	refuse_dir(fx.dir, DSV3_ERR_BAD_FILE, "\"model.safetensors\"", "too short", "7 bytes");
	fixture_write_file(fx.dir, "model.safetensors", huge, sizeof(huge));
	refuse_dir(fx.dir, DSV3_ERR_BAD_FILE, "\"model.safetensors\"", "header of 9223372036854775807 bytes",
			   "at most");
	fixture_write_file(fx.dir, "model.safetensors", larger, sizeof(larger));
	refuse_dir(fx.dir, DSV3_ERR_BAD_FILE, "\"model.safetensors\"", "header of 4294967297 bytes", "at most");
	fixture_write_file(fx.dir, "model.safetensors", longer, sizeof(longer));
	refuse_dir(fx.dir, DSV3_ERR_BAD_FILE, "\"model.safetensors\"", "truncated", "header of 3 bytes");

	/* a real model cut at every kind of place */
	bytes = fixture_bytes(&fx, -1, 0, &len);
	for (size_t cut = 1; cut < len; cut += 1 + len / 50)
	{
		fixture_write_file(fx.dir, "model.safetensors", bytes, cut);
		refuse_dir(fx.dir, DSV3_ERR_BAD_FILE, "\"model.safetensors\"", "file", "");
	}
	fixture_write_file(fx.dir, "model.safetensors", bytes, len - 1);
	refuse_dir(fx.dir, DSV3_ERR_BAD_FILE, "\"model.safetensors\"", "\"lm_head.weight\"", "truncated");
	free(bytes);

	/* not files */
	snprintf(path, sizeof(path), "%s/model.safetensors", fx.dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("/tmp", path), 0);
	refuse_dir(fx.dir, DSV3_ERR_FILE, "\"model.safetensors\"", "not a regular file", "");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("model.safetensors", path), 0);
	refuse_dir(fx.dir, DSV3_ERR_FILE, "\"model.safetensors\"", "symbolic links", "");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	refuse_dir(fx.dir, DSV3_ERR_FILE, "\"model.safetensors\"", "not a regular file", "");
	fixture_close(&fx);
	refuse_dir("/nonexistent/model", DSV3_ERR_NO_FILE, "/nonexistent/model", "model.safetensors", "");
}

static void
test_shards(void **state)
{
	Fixture fx;
	Dsv3TensorFiles files;
	Dsv3Error err;

	(void) state;
	fixture_open(&fx);
	fixture_write_shards(&fx, 3);
	if (!dsv3_tensors_open(&files, fx.dir, &err))
		fail_msg("%s", err.message);
	assert_int_equal(files.n_files, 3);
	assert_int_equal(files.n_tensors, fx.n_tensors);
	for (int i = 0; i < fx.n_tensors; i++)
	{
		const Dsv3Tensor *t = dsv3_tensors_find(&files, fx.tensors[i].name);

		assert_non_null(t);
		assert_int_equal(t->bytes, fx.tensors[i].bytes);
		assert_memory_equal(t->data, fx.tensors[i].data, fx.tensors[i].bytes);
	}
	dsv3_tensors_close(&files);

	/* the index decides: a tensor it does not list does not count, one it lists elsewhere is missing there */
	fixture_write_text(fx.dir, "model.safetensors.index.json",
					   "{\"weight_map\":{\"model.norm.weight\":\"model-00002-of-000003.safetensors\"}}");
	fixture_find(&fx, "model.norm.weight");
	for (int i = 0; i < fx.n_tensors; i++)
	{
		if (strcmp(fx.tensors[i].name, "model.norm.weight") == 0 && fx.tensors[i].shard != 1)
			refuse_dir(fx.dir, DSV3_ERR_BAD_FILE, "model-00002-of-000003.safetensors",
					   "\"model.norm.weight\"", "not in the file");
		else if (strcmp(fx.tensors[i].name, "model.norm.weight") == 0)
		{
			assert_true(dsv3_tensors_open(&files, fx.dir, &err));
			assert_int_equal(files.n_files, 1);
			assert_int_equal(files.n_by_name, 1);
			assert_null(dsv3_tensors_find(&files, "lm_head.weight"));
			dsv3_tensors_close(&files);
		}
	}
	fixture_close(&fx);
}

static void
test_index_refused(void **state)
{
	static const struct
	{
		const char *index;
		const char *sqlstate;
		const char *text1;
		const char *text2;
	} cases[] = {
		{"", DSV3_ERR_BAD_FILE, "is empty", "index.json"},
		{"nonsense", DSV3_ERR_BAD_FILE, "not valid JSON", "index.json"},
		{"[]", DSV3_ERR_BAD_FILE, "JSON object", "index.json"},
		{"{}", DSV3_ERR_BAD_FILE, "no weight_map", "index.json"},
		{"{\"weight_map\":[]}", DSV3_ERR_BAD_FILE, "no weight_map", "index.json"},
		{"{\"weight_map\":{}}", DSV3_ERR_BAD_FILE, "no weight_map", "index.json"},
		{"{\"weight_map\":{\"t\":1}}", DSV3_ERR_BAD_FILE, "\"t\"", "not placed"},
		{"{\"weight_map\":{\"t\":\"a.safetensors\",\"t\":\"b.safetensors\"}}", DSV3_ERR_BAD_FILE, "duplicate",
		 "index.json"},
		{"{\"weight_map\":{\"t\":\"../a.safetensors\"}}", DSV3_ERR_BAD_FILE, "\"t\"", "../a.safetensors"},
		{"{\"weight_map\":{\"t\":\"/etc/passwd\"}}", DSV3_ERR_BAD_FILE, "\"t\"", "/etc/passwd"},
		{"{\"weight_map\":{\"t\":\"..\"}}", DSV3_ERR_BAD_FILE, "\"t\"", "\"..\""},
		{"{\"weight_map\":{\"t\":\"\"}}", DSV3_ERR_BAD_FILE, "\"t\"", "not the name"},
		{"{\"weight_map\":{\"t\":\".safetensors\"}}", DSV3_ERR_BAD_FILE, "\"t\"", "not the name"},
		{"{\"weight_map\":{\"t\":\"config.json\"}}", DSV3_ERR_BAD_FILE, "\"t\"", "config.json"},
		/* an index that names itself */
		{"{\"weight_map\":{\"t\":\"model.safetensors.index.json\"}}", DSV3_ERR_BAD_FILE, "\"t\"",
		 "not the name"},
		{"{\"weight_map\":{\"t\":\"absent.safetensors\"}}", DSV3_ERR_NO_FILE, "absent.safetensors",
		 "download"},
		{"{\"weight_map\":{\"t\":\"dir.safetensors\"}}", DSV3_ERR_FILE, "dir.safetensors",
		 "not a regular file"},
		{"{\"weight_map\":{\"t\":\"loop.safetensors\"}}", DSV3_ERR_FILE, "loop.safetensors",
		 "symbolic links"},
		/* a shard that is another index */
		{"{\"weight_map\":{\"t\":\"json.safetensors\"}}", DSV3_ERR_BAD_FILE, "json.safetensors", "header of"},
		{"{\"weight_map\":{\"t\\u0001\":\"good.safetensors\"}}", DSV3_ERR_BAD_FILE, "\"t?\"",
		 "not in the file"},
		{"{\"weight_map\":{\"t\":\"good.safetensors\"}}", DSV3_ERR_BAD_FILE, "\"t\"",
		 "although \"model.safetensors.index.json\""},
	};
	Fixture fx;
	char path[128];

	(void) state;
	fixture_open(&fx);
	fixture_write_raw(fx.dir, "good.safetensors", "{" TENSOR("a", "F32", "[1]", "[0,4]") "}", 4);
	fixture_write_text(fx.dir, "json.safetensors", "{\"weight_map\":{\"t\":\"model.safetensors\"}}");
	snprintf(path, sizeof(path), "%s/dir.safetensors", fx.dir);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/loop.safetensors", fx.dir);
	assert_int_equal(symlink("loop.safetensors", path), 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		fixture_write_text(fx.dir, "model.safetensors.index.json", cases[i].index);
		refuse_dir(fx.dir, cases[i].sqlstate, cases[i].text1, cases[i].text2, "");
	}
	fixture_close(&fx);
}

/* Seeded damage to the header of a valid file: parsing returns, and what it accepts can be read to the last byte. */
static void
test_mutations(void **state)
{
	static const char *const pieces[] = {"0",   "9", "-",   "9223372036854775807", "[", "]", "}", "\"F32\"",
										 "1e9", ",", "null"};
	Fixture fx;
	size_t len;
	size_t header;
	unsigned char *base;
	uint64_t seed = 99;
	int accepted = 0;

	(void) state;
	fixture_open(&fx);
	base = fixture_bytes(&fx, -1, 0, &len);
	header = base[0] | (size_t) base[1] << 8;
	for (int round = 0; round < 4000; round++)
	{
		/* exactly as long as the file, so that a read past its end is seen */
		size_t n = fixture_random(&seed) % 8 == 0 ? fixture_random(&seed) % len + 1 : len;
		unsigned char *bytes = malloc(n);
		Dsv3TensorFile file;
		Dsv3Error err;
		unsigned sum = 0;

		assert_non_null(bytes);
		memcpy(bytes, base, n);
		for (uint32_t edits = fixture_random(&seed) % 4; edits > 0; edits--)
		{
			size_t at = fixture_random(&seed) % (header + 8);
			const char *piece = pieces[fixture_random(&seed) % (sizeof(pieces) / sizeof(pieces[0]))];

			if (fixture_random(&seed) % 2 && at < n)
				bytes[at] ^= (unsigned char) (1u << fixture_random(&seed) % 8);
			else if (at >= 8 && at + strlen(piece) < n)
				memcpy(bytes + at, piece, strlen(piece));
		}
		if (dsv3_tensor_file_parse(&file, "model.safetensors", bytes, (int64_t) n, &err))
		{
			accepted++;
			for (int i = 0; i < file.n_tensors; i++)
			{
				for (int64_t k = 0; k < file.tensors[i].bytes; k++)
					sum += file.tensors[i].data[k];
			}
		}
		else
			assert_true(strlen(err.sqlstate) == 5 && strstr(err.message, "model.safetensors"));
		assert_true(sum != 1);
		dsv3_tensor_file_clear(&file);
		free(bytes);
	}
	assert_in_range(accepted, 1, 3999);
	free(base);
	fixture_close(&fx);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reads),        cmocka_unit_test(test_header_refused),
		cmocka_unit_test(test_deep_nesting), cmocka_unit_test(test_file_refused),
		cmocka_unit_test(test_shards),       cmocka_unit_test(test_index_refused),
		cmocka_unit_test(test_mutations),
	};

	return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
