/*
 * schema_tool.c
 *	  Shared parts of the `dsv3 schema` subcommands (schema_tool.h).
 */
#include "cli/schema_tool.h"
#include "cli/options.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "text/tokenizer.h"

#define MAX_FILE_BYTES (64 * 1024 * 1024)
#define MAX_DEPTH      16

/* Single bytes, and with `more` pieces that cross the borders of JSON's parts. */
static Dsv3TokenTable *
byte_vocab(bool more, Dsv3Error *err)
{
	static const char *const pieces[] = {
		"{\"",      "\":",      "\":\"", "\",\"",    "\"}",        "\"]",    "},",       "},{\"", ", \"",
		"\": ",     "\": \"",   "\n  ",  "    ",     "\n}",        "{\n",    ",\n",      "\"\n",  "[\"",
		"[[",       "]]",       "],",    "{}",       "[]",         "\"\"",   ":\"\",\"", "true",  "tr",
		"ue",       "null",     "null,", "false}",   "0,",         "1]",     "12",       "00",    "123",
		"-1",       "0.",       ".5",    "e1",       "1,1",        "1,2,",   "\"a",      "a\"",   "a\",\"a",
		"aa",       "ab",       "aaaa",  "\\\"",     "\\n",        "\\u00",  "\\\\",     "\\",    "a\\",
		"\xC3\xA9", "\xE2\x82", "\xAC",  "\xF0\x9F", "\x98\x80\"", "name",   "id",       "type",  "value",
		"-0",       "2024-",    "T0",    ":0",       "Z\"",        "@",      ".com",     "://",   "the ",
		" and",     "x\":",     "y\":[", "[1",       "a\":1,\"",   "\",\"b", "]}",       "}]}",   "}}",
		"\"}}",     "\"}]",
	};
	static char bytes[256];
	Dsv3TokenBytes tokens[512];
	int32_t n = 257;

	for (int b = 0; b < 256; b++)
	{
		bytes[b] = (char) b;
		tokens[b].bytes = &bytes[b];
		tokens[b].len = 1;
		tokens[b].special = false;
	}
	tokens[256].bytes = NULL;
	tokens[256].len = 0;
	tokens[256].special = true;
	for (size_t i = 0; more && i < sizeof(pieces) / sizeof(pieces[0]); i++)
	{
		tokens[n].bytes = pieces[i];
		tokens[n].len = (uint32_t) strlen(pieces[i]);
		tokens[n++].special = false;
	}
	return dsv3_token_table_create(tokens, n, 256, err);
}

Dsv3TokenTable *
dsv3_schema_tokens(const char *model_dir, Dsv3Error *err)
{
	static const char *const ends[] = {"<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>",
									   "</s>", "<|endoftext|>", "<|im_end|>", "[EOS]"};
	Dsv3Tokenizer *tokenizer;
	Dsv3TokenBytes *tokens;
	Dsv3TokenTable *vocab = NULL;
	int32_t eos = -1;
	int32_t n;

	if (strcmp(model_dir, "-") == 0 || strcmp(model_dir, "+") == 0)
		return byte_vocab(model_dir[0] == '+', err);
	tokenizer = dsv3_tokenizer_open(model_dir, err);
	if (tokenizer == NULL)
		return NULL;
	n = dsv3_tokenizer_vocab_size(tokenizer);
	tokens = calloc((size_t) n + 1, sizeof(Dsv3TokenBytes));
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]) && eos < 0; i++)
		eos = dsv3_tokenizer_special_id(tokenizer, ends[i]);
	if (tokens == NULL)
		dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	else
	{
		for (int32_t i = 0; i < n; i++)
		{
			size_t len = 0;

			tokens[i].bytes = dsv3_tokenizer_token_bytes(tokenizer, i, &len);
			tokens[i].len = (uint32_t) len;
			tokens[i].special = dsv3_tokenizer_is_special(tokenizer, i);
		}
		vocab = dsv3_token_table_create(tokens, n, eos, err);
	}
	free(tokens);
	dsv3_tokenizer_close(tokenizer);
	return vocab;
}

char *
dsv3_schema_read(const char *path, size_t *len, Dsv3Error *err)
{
	int64_t length;
	char *text = dsv3_cli_read_file(path, MAX_FILE_BYTES, &length, err);

	*len = text ? (size_t) length : 0;
	return text;
}

typedef struct Files
{
	char **paths;
	size_t n;
	size_t cap;
	bool failed;
} Files;

static void
add_file(Files *files, const char *path)
{
	if (files->n + 2 > files->cap)
	{
		size_t cap = files->cap == 0 ? 256 : files->cap * 2;
		char **grown = realloc(files->paths, cap * sizeof(char *));

		if (grown == NULL)
		{
			files->failed = true;
			return;
		}
		files->paths = grown;
		files->cap = cap;
	}
	files->paths[files->n] = strdup(path);
	if (files->paths[files->n] == NULL)
		files->failed = true;
	else
		files->n++;
	files->paths[files->n] = NULL;
}

static void
walk(Files *files, const char *path, int depth)
{
	struct stat st;
	DIR *dir;
	struct dirent *entry;

	if (depth > MAX_DEPTH || stat(path, &st) != 0)
		return;
	if (S_ISREG(st.st_mode))
	{
		size_t len = strlen(path);

		if (len > 5 && strcmp(path + len - 5, ".json") == 0)
			add_file(files, path);
		return;
	}
	if (!S_ISDIR(st.st_mode) || (dir = opendir(path)) == NULL)
		return;
	while ((entry = readdir(dir)) != NULL)
	{
		char *child;

		if (entry->d_name[0] == '.')
			continue;
		if (asprintf(&child, "%s/%s", path, entry->d_name) < 0)
		{
			files->failed = true;
			break;
		}
		walk(files, child, depth + 1);
		free(child);
	}
	closedir(dir);
}

static int
compare_path(const void *a, const void *b)
{
	return strcmp(*(char *const *) a, *(char *const *) b);
}

char **
dsv3_schema_files(const char *dir, size_t *count, Dsv3Error *err)
{
	Files files = {NULL, 0, 0, false};

	walk(&files, dir, 0);
	if (files.failed || files.n == 0)
	{
		dsv3_error(err, files.failed ? DSV3_ERR_OUT_OF_MEMORY : DSV3_ERR_NO_FILE,
				   files.failed ? "out of memory" : "no .json file in \"%s\"", dir);
		dsv3_schema_files_free(files.paths);
		return NULL;
	}
	qsort(files.paths, files.n, sizeof(char *), compare_path);
	*count = files.n;
	return files.paths;
}

void
dsv3_schema_files_free(char **files)
{
	for (char **f = files; f != NULL && *f != NULL; f++)
		free(*f);
	free(files);
}

static void
visit_group(const char *path, int64_t number, const Json *group, Dsv3SchemaVisit visit, void *arg)
{
	const Json *schema = dsv3_gr_json_get(group, "schema");
	const Json *tests = dsv3_gr_json_get(group, "tests");
	char place[4200];

	if (number >= 0)
		snprintf(place, sizeof(place), "%s#%lld", path, (long long) number);
	else
		snprintf(place, sizeof(place), "%s", path);
	if (schema != NULL && tests != NULL && tests->kind == JSON_ARRAY_)
		visit(arg, place, schema, tests);
	else if (number < 0)
		visit(arg, place, group, NULL);
}

static bool
visit_file(const char *path, Dsv3SchemaVisit visit, void *arg, Dsv3Error *err)
{
	size_t len;
	char *text = dsv3_schema_read(path, &len, err);
	JsonFault fault;
	Json *root;
	Arena arena;
	jmp_buf out;

	if (text == NULL)
		return false;
	memset(&arena, 0, sizeof(arena));
	if (setjmp(out) != 0)
	{
		free(text);
		dsv3_gr_arena_free(&arena);
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	}
	dsv3_gr_arena_init(&arena, 0, NULL, &out);
	root = dsv3_gr_json_parse(&arena, text, len, false, &fault);
	if (root != NULL && root->kind == JSON_ARRAY_)
		for (uint32_t i = 0; i < root->n; i++)
			visit_group(path, i, root->u.items[i], visit, arg);
	else if (root != NULL)
		visit_group(path, -1, root, visit, arg);
	free(text);
	dsv3_gr_arena_free(&arena);
	return true;
}

bool
dsv3_schema_each(const char *dir, Dsv3SchemaVisit visit, void *arg, Dsv3Error *err)
{
	size_t n = 0;
	char **files = dsv3_schema_files(dir, &n, err);
	bool ok = files != NULL;

	for (size_t i = 0; i < n && ok; i++)
		ok = visit_file(files[i], visit, arg, err);
	dsv3_schema_files_free(files);
	return ok;
}
