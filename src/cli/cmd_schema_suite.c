/*
 * cmd_schema_suite.c
 *	  `dsv3 schema suite`: test files through the compiler and the matcher.
 *
 * Two kinds of files: MaskBench ({"schema", "tests": [{"valid", "data"}]}) and JSON-Schema-Test-Suite (a list of such
 * groups). An instance is a JSON value, so it is written in the grammar's own spelling and key order before the matcher
 * is asked. A test of a schema that is refused counts as wrong, except that a schema refused because nothing can satisfy
 * it is right about its invalid instances.
 *
 * In JSON-Schema-Test-Suite the draft comes from the directory, "format" is an annotation outside optional/format (as
 * the suite prescribes), and the documents in a directory `remotes` above are what references may lead to.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/schema_tool.h"
#include "grammar/json.h"

typedef struct Totals
{
	long files;
	long files_right;
	long tests;
	long right;
	long invalid_accepted;
	long valid_rejected;
	long refused_groups;
	long refused_tests;
} Totals;

typedef struct Suite
{
	Dsv3TokenTable *vocab;
	bool verbose;
	Totals required;
	Totals optional;
	Dsv3SchemaDocument *documents;
	int32_t ndocuments;
	Arena arena;
	jmp_buf out;
} Suite;

static void
load_remotes(Suite *suite, const char *dir)
{
	char path[4096];
	struct stat st;
	Dsv3Error err;
	char **files = NULL;
	size_t n = 0;
	size_t skip;

	snprintf(path, sizeof(path), "%s", dir);
	for (int up = 0; up < 5 && files == NULL; up++)
	{
		size_t len = strlen(path);

		snprintf(path + len, sizeof(path) - len, "/remotes");
		if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		{
			files = dsv3_schema_files(path, &n, &err);
			break;
		}
		path[len] = '\0';
		snprintf(path + len, sizeof(path) - len, "/..");
	}
	if (files == NULL)
		return;
	skip = strlen(path) + 1;
	suite->documents = calloc(n + 1, sizeof(Dsv3SchemaDocument));
	for (size_t i = 0; suite->documents != NULL && i < n; i++)
	{
		size_t len;
		char *text = dsv3_schema_read(files[i], &len, &err);
		char *uri = NULL;

		if (text == NULL || asprintf(&uri, "http://localhost:1234/%s", files[i] + skip) < 0)
			continue;
		suite->documents[suite->ndocuments].uri = uri;
		suite->documents[suite->ndocuments].text = text;
		suite->documents[suite->ndocuments++].len = len;
	}
	dsv3_schema_files_free(files);
}

static int
draft_of_path(const char *path)
{
	static const struct
	{
		const char *part;
		int draft;
	} drafts[] = {{"/draft2020-12/", 20}, {"/draft2019-09/", 19}, {"/draft7/", 7},
				  {"/draft6/", 6},        {"/draft4/", 4},        {"/draft3/", 4}};

	for (size_t i = 0; i < sizeof(drafts) / sizeof(drafts[0]); i++)
		if (strstr(path, drafts[i].part) != NULL)
			return drafts[i].draft;
	return 0;
}

static bool
accepts_value(Dsv3Grammar *grammar, const char *text, size_t len)
{
	Dsv3Error err = {0};
	size_t outlen;
	size_t taken;
	char *spelled = dsv3_grammar_respell(grammar, text, len, &outlen);
	Dsv3Matcher *matcher = dsv3_matcher_create(grammar, &err);
	bool ok = spelled != NULL && matcher != NULL &&
			  dsv3_matcher_accept_bytes(matcher, spelled, outlen, &taken, &err) &&
			  dsv3_matcher_is_complete(matcher);

	dsv3_matcher_free(matcher);
	free(spelled);
	return ok;
}

/* One schema with its tests. Returns whether everything was right. */
static bool
run_group(Suite *suite, Totals *totals, const char *path, const Json *group,
		  const Dsv3GrammarOptions *options)
{
	const Json *schema = dsv3_gr_json_get(group, "schema");
	const Json *tests = dsv3_gr_json_get(group, "tests");
	const Json *name = dsv3_gr_json_get(group, "description");
	const char *title = name != NULL && name->kind == JSON_STRING_ ? name->u.str : "";
	TextBuf text = {NULL, 0, 0, false};
	Dsv3Error err = {0};
	Dsv3GrammarPlace place;
	Dsv3Grammar *grammar;
	bool unsatisfiable;
	bool all = true;

	if (schema == NULL || tests == NULL || tests->kind != JSON_ARRAY_)
		return true;
	dsv3_gr_json_write(&text, schema);
	grammar = dsv3_grammar_compile(suite->vocab, DSV3_GRAMMAR_JSON_SCHEMA, text.data, text.len, options,
								   &place, &err);
	unsatisfiable = grammar == NULL && strstr(err.message, "no value can satisfy") != NULL;
	if (grammar == NULL && !unsatisfiable)
	{
		totals->refused_groups++;
		totals->refused_tests += tests->n;
		if (suite->verbose)
			printf("  refused  %s [%s]: %s (%s at \"%s\")\n", path, title, err.message, place.keyword,
				   place.pointer);
	}
	for (uint32_t i = 0; i < tests->n; i++)
	{
		const Json *test = tests->u.items[i];
		const Json *data = dsv3_gr_json_get(test, "data");
		const Json *valid = dsv3_gr_json_get(test, "valid");
		const Json *what = dsv3_gr_json_get(test, "description");
		TextBuf doc = {NULL, 0, 0, false};
		bool want = valid != NULL && valid->kind == JSON_TRUE_;
		bool got = false;
		bool right;

		if (data == NULL)
			continue;
		dsv3_gr_json_write(&doc, data);
		if (grammar != NULL)
			got = accepts_value(grammar, doc.data, doc.len);
		right = grammar != NULL ? got == want : unsatisfiable && !want;
		totals->tests++;
		totals->right += right;
		if (grammar != NULL && got && !want)
			totals->invalid_accepted++;
		if (want && !got && (grammar != NULL || unsatisfiable))
			totals->valid_rejected++;
		if (!right && (grammar != NULL || unsatisfiable) && suite->verbose)
			printf("  %s %s [%s] %s: %.300s\n", want ? "rejected" : "ACCEPTED", path, title,
				   what != NULL && what->kind == JSON_STRING_ ? what->u.str : "", doc.data);
		all = all && right;
		dsv3_gr_textbuf_free(&doc);
	}
	dsv3_grammar_free(grammar);
	dsv3_gr_textbuf_free(&text);
	return all;
}

static bool
run_file(Suite *suite, const char *path, Dsv3Error *err)
{
	size_t len;
	char *text = dsv3_schema_read(path, &len, err);
	bool optional = strstr(path, "/optional/") != NULL;
	Totals *totals = optional ? &suite->optional : &suite->required;
	Totals before = *totals;
	Dsv3GrammarOptions options = {0};
	JsonFault fault;
	Json *root;
	bool right = true;

	if (text == NULL)
		return false;
	if (setjmp(suite->out) != 0)
	{
		free(text);
		dsv3_gr_arena_free(&suite->arena);
		return dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	}
	dsv3_gr_arena_init(&suite->arena, 0, NULL, &suite->out);
	root = dsv3_gr_json_parse(&suite->arena, text, len, false, &fault);
	if (root == NULL)
	{
		printf("%s: not read: %s at byte %zu\n", path, fault.what, fault.offset);
		free(text);
		dsv3_gr_arena_free(&suite->arena);
		return true;
	}
	options.draft = draft_of_path(path);
	options.format_annotation = options.draft != 0 && strstr(path, "/optional/format") == NULL;
	options.documents = suite->documents;
	options.ndocuments = options.draft != 0 ? suite->ndocuments : 0;
	if (root->kind == JSON_ARRAY_)
		for (uint32_t i = 0; i < root->n; i++)
			right = run_group(suite, totals, path, root->u.items[i], &options) && right;
	else
		right = run_group(suite, totals, path, root, &options);
	totals->files++;
	totals->files_right += right;
	printf("%s %s: %ld of %ld right", right ? "ok    " : "not ok", path, totals->right - before.right,
		   totals->tests - before.tests);
	if (totals->refused_tests > before.refused_tests)
		printf(", %ld refused", totals->refused_tests - before.refused_tests);
	if (totals->invalid_accepted > before.invalid_accepted)
		printf(", %ld INVALID ACCEPTED", totals->invalid_accepted - before.invalid_accepted);
	if (totals->valid_rejected > before.valid_rejected)
		printf(", %ld valid rejected", totals->valid_rejected - before.valid_rejected);
	printf("\n");
	free(text);
	dsv3_gr_arena_free(&suite->arena);
	return true;
}

static void
print_totals(const char *name, const Totals *t)
{
	if (t->files == 0)
		return;
	printf("%s: files %ld of %ld fully right (%.2f %%); tests %ld of %ld right (%.2f %%); invalid accepted "
		   "%ld; valid "
		   "rejected %ld; refused %ld schemas, %ld tests\n",
		   name, t->files_right, t->files, 100.0 * (double) t->files_right / (double) t->files, t->right,
		   t->tests, t->tests == 0 ? 0.0 : 100.0 * (double) t->right / (double) t->tests, t->invalid_accepted,
		   t->valid_rejected, t->refused_groups, t->refused_tests);
}

int
dsv3_schema_suite(int argc, char **argv)
{
	static const struct option longs[] = {{"verbose", no_argument, NULL, 'v'}, {NULL, 0, NULL, 0}};
	Suite suite;
	Dsv3Error err = {0};
	char **files;
	size_t n = 0;
	int c;
	int status = 0;

	memset(&suite, 0, sizeof(suite));
	optind = 1;
	while ((c = getopt_long(argc, argv, "v", longs, NULL)) != -1)
		if (c == 'v')
			suite.verbose = true;
		else
			return 2;
	if (argc - optind != 2)
		return dsv3_cli_usage("schema", "suite takes a model directory and a directory of tests");
	suite.vocab = dsv3_schema_tokens(argv[optind], &err);
	if (suite.vocab == NULL)
		return dsv3_cli_fail(&err);
	files = dsv3_schema_files(argv[optind + 1], &n, &err);
	if (files == NULL)
	{
		dsv3_token_table_free(suite.vocab);
		return dsv3_cli_fail(&err);
	}
	load_remotes(&suite, argv[optind + 1]);
	for (size_t i = 0; i < n && status == 0; i++)
		if (!run_file(&suite, files[i], &err))
			status = dsv3_cli_fail(&err);
	print_totals("required", &suite.required);
	print_totals("optional", &suite.optional);
	if (suite.required.invalid_accepted > 0)
		status = 1;
	for (int32_t i = 0; i < suite.ndocuments; i++)
	{
		free((char *) (uintptr_t) suite.documents[i].uri);
		free((char *) (uintptr_t) suite.documents[i].text);
	}
	free(suite.documents);
	dsv3_schema_files_free(files);
	dsv3_token_table_free(suite.vocab);
	return status;
}
