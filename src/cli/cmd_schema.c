/*
 * cmd_schema.c
 *	  `dsv3 schema`: compile a schema and say what is enforced, ask whether the decoder could write a text, run test
 *	  suites, measure.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/schema_tool.h"

static void
print_help(void)
{
	printf("Structured output without a model: compile schemas, ask what the decoder could write.\n\n"
		   "Usage: dsv3 schema check [OPTIONS] FILE\n"
		   "       dsv3 schema accepts [OPTIONS] MODEL SCHEMA DOC\n"
		   "       dsv3 schema suite [-v] MODEL DIR\n"
		   "       dsv3 schema bench [--budget SLACK] MODEL DIR\n\n"
		   "check    compiles FILE and prints what is narrowed or ignored and the shortest answer.\n"
		   "         Exit status: 0 compiled, 2 refused.\n"
		   "accepts  says whether the decoder could write exactly the text in DOC.\n"
		   "         Exit status: 0 accepted, 1 rejected, 2 schema refused. When DOC holds one JSON document "
		   "on each\n"
		   "         of several lines, prints `accepted` or `rejected OFFSET` for each and exits with 0.\n"
		   "suite    runs the MaskBench or JSON-Schema-Test-Suite files below DIR.\n"
		   "bench    times compiling and masks over such files; with --budget as if each answer had to end "
		   "SLACK\n"
		   "         tokens after the soonest it can.\n\n"
		   "MODEL is a directory with a tokenizer, or - for single bytes.\n\n"
		   "Options:\n"
		   "  --kind KIND        schema (default), choice, regex or ebnf: what FILE or SCHEMA holds\n"
		   "  --respell          accepts: ask about the value, in the decoder's own spelling and key order\n"
		   "  --closed           objects that do not mention additionalProperties have none\n"
		   "  --required-first   key order: the required array, then the other properties\n"
		   "  --whitespace MODE  natural (default), compact or spaced\n"
		   "  --draft N          4, 6, 7, 2019 or 2020, when the schema has no $schema\n"
		   "  --annotate-format  do not enforce format\n"
		   "  --help             this text\n");
}

typedef struct SchemaOptions
{
	Dsv3GrammarOptions grammar;
	Dsv3GrammarKind kind;
	bool respell;
	bool help;
} SchemaOptions;

static bool
choose(const char *value, const char *const *names, int n, int *out)
{
	for (int i = 0; i < n; i++)
		if (strcmp(value, names[i]) == 0)
		{
			*out = i;
			return true;
		}
	return false;
}

/* -1: go on; else the exit status. */
static int
parse_options(int argc, char **argv, SchemaOptions *options)
{
	static const struct option longs[] = {{"kind", required_argument, NULL, 'k'},
										  {"respell", no_argument, NULL, 'r'},
										  {"closed", no_argument, NULL, 'c'},
										  {"required-first", no_argument, NULL, 'q'},
										  {"whitespace", required_argument, NULL, 'w'},
										  {"draft", required_argument, NULL, 'd'},
										  {"annotate-format", no_argument, NULL, 'a'},
										  {"help", no_argument, NULL, 'h'},
										  {NULL, 0, NULL, 0}};
	static const char *const kinds[] = {"schema", "choice", "regex", "ebnf"};
	static const char *const spaces[] = {"natural", "compact", "spaced"};
	static const char *const drafts[] = {"4", "6", "7", "2019", "2020"};
	static const int draft_numbers[] = {4, 6, 7, 19, 20};
	int c;
	int which;

	optind = 1;
	while ((c = getopt_long(argc, argv, "+", longs, NULL)) != -1)
		switch (c)
		{
			case 'k':
				if (!choose(optarg, kinds, 4, &which))
					return dsv3_cli_usage("schema", "unknown kind \"%s\"", optarg);
				options->kind = (Dsv3GrammarKind) which;
				break;
			case 'r':
				options->respell = true;
				break;
			case 'c':
				options->grammar.closed_objects = true;
				break;
			case 'q':
				options->grammar.key_order = DSV3_ORDER_REQUIRED;
				break;
			case 'w':
				if (!choose(optarg, spaces, 3, &which))
					return dsv3_cli_usage("schema", "unknown white space mode \"%s\"", optarg);
				options->grammar.whitespace = (Dsv3Whitespace) which;
				break;
			case 'd':
				if (!choose(optarg, drafts, 5, &which))
					return dsv3_cli_usage("schema", "unknown draft \"%s\"", optarg);
				options->grammar.draft = draft_numbers[which];
				break;
			case 'a':
				options->grammar.format_annotation = true;
				break;
			case 'h':
				print_help();
				return 0;
			default:
				return 2;
		}
	return -1;
}

static int
refused(const Dsv3Error *err)
{
	dsv3_cli_fail(err);
	fprintf(stderr, "sqlstate: %s\n", err->sqlstate);
	return 2;
}

static Dsv3Grammar *
compile_file(Dsv3TokenTable *vocab, const SchemaOptions *options, const char *path, Dsv3Error *err)
{
	size_t len;
	char *text = dsv3_schema_read(path, &len, err);
	Dsv3Grammar *grammar;

	if (text == NULL)
		return NULL;
	if (options->kind == DSV3_GRAMMAR_REGEX && len > 0 && text[len - 1] == '\n')
		len--;
	grammar = dsv3_grammar_compile(vocab, options->kind, text, len, &options->grammar, NULL, err);
	free(text);
	return grammar;
}

static int
run_check(int argc, char **argv)
{
	SchemaOptions options = {0};
	int status = parse_options(argc, argv, &options);
	Dsv3Error err = {0};
	Dsv3TokenTable *vocab;
	Dsv3Grammar *grammar;
	const char *pointer;
	const char *keyword;
	const char *text;

	if (status >= 0)
		return status;
	if (argc - optind != 1)
		return dsv3_cli_usage("schema", "check takes one file");
	vocab = dsv3_schema_tokens("-", &err);
	if (vocab == NULL)
		return dsv3_cli_fail(&err);
	grammar = compile_file(vocab, &options, argv[optind], &err);
	if (grammar == NULL)
		status = refused(&err);
	else
	{
		for (int32_t i = 0; (text = dsv3_grammar_notice(grammar, i, &pointer, &keyword)) != NULL; i++)
			printf("notice at \"%s\"%s%s: %s\n", pointer, keyword == NULL ? "" : ", ",
				   keyword == NULL ? "" : keyword, text);
		printf("compiled; the shortest answer has at most %d bytes\n", dsv3_grammar_shortest(grammar));
		status = 0;
	}
	dsv3_grammar_free(grammar);
	dsv3_token_table_free(vocab);
	return status;
}

/* -1: accepted; else the offset of the first byte that is not allowed, or the length when the text is not complete. */
static long
accept_text(Dsv3Grammar *grammar, const SchemaOptions *options, const char *text, size_t len, Dsv3Error *err)
{
	Dsv3Matcher *matcher = dsv3_matcher_create(grammar, err);
	size_t taken = 0;
	bool ok;

	if (matcher == NULL)
		return -2;
	if (options->respell)
	{
		size_t outlen;
		char *spelled = dsv3_grammar_respell(grammar, text, len, &outlen);

		ok = spelled != NULL && dsv3_matcher_accept_bytes(matcher, spelled, outlen, &taken, err) &&
			 dsv3_matcher_is_complete(matcher);
		free(spelled);
		taken = 0;
	}
	else
		ok = dsv3_matcher_accept_bytes(matcher, text, len, &taken, err) && dsv3_matcher_is_complete(matcher);
	dsv3_matcher_free(matcher);
	if (!ok && err->sqlstate[0] != '\0')
		return -2;
	return ok ? -1 : (long) taken;
}

/* Do all lines look like documents of their own? Told by the brackets alone: a line that ends outside of them. */
static bool
is_lines(const char *text, size_t len)
{
	int depth = 0;
	bool quoted = false;
	size_t documents = 0;
	bool content = false;

	for (size_t i = 0; i < len; i++)
	{
		char c = text[i];

		if (quoted)
		{
			if (c == '\\')
				i++;
			else if (c == '"')
				quoted = false;
			continue;
		}
		if (c == '\n')
		{
			if (depth == 0 && content)
				documents++;
			if (depth == 0)
				content = false;
			continue;
		}
		content = content || (c != ' ' && c != '\t' && c != '\r');
		quoted = c == '"';
		depth += (c == '{' || c == '[') - (c == '}' || c == ']');
	}
	return documents + content > 1;
}

static int
run_accepts(int argc, char **argv)
{
	SchemaOptions options = {0};
	int status = parse_options(argc, argv, &options);
	Dsv3Error err = {0};
	Dsv3TokenTable *vocab;
	Dsv3Grammar *grammar = NULL;
	char *text = NULL;
	size_t len = 0;

	if (status >= 0)
		return status;
	if (argc - optind != 3)
		return dsv3_cli_usage("schema", "accepts takes a model directory, a schema and a document");
	vocab = dsv3_schema_tokens(argv[optind], &err);
	if (vocab == NULL)
	{
		dsv3_cli_fail(&err);
		return 2;
	}
	grammar = compile_file(vocab, &options, argv[optind + 1], &err);
	if (grammar == NULL)
		status = refused(&err);
	else if ((text = dsv3_schema_read(argv[optind + 2], &len, &err)) == NULL)
		status = dsv3_cli_fail(&err) + 1;
	else if (options.kind == DSV3_GRAMMAR_JSON_SCHEMA && is_lines(text, len))
	{
		status = 0;
		for (size_t at = 0; at < len && status == 0;)
		{
			size_t end = at;
			size_t stop;
			long offset;

			while (end < len && text[end] != '\n')
				end++;
			stop = end > at && text[end - 1] == '\r' ? end - 1 : end;
			if (stop > at)
			{
				offset = accept_text(grammar, &options, text + at, stop - at, &err);
				if (offset == -2)
					status = dsv3_cli_fail(&err);
				else if (offset == -1)
					puts("accepted");
				else
					printf("rejected %ld\n", offset);
			}
			at = end + 1;
		}
	}
	else
	{
		long offset;

		while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r'))
			len--;
		offset = accept_text(grammar, &options, text, len, &err);
		status = offset == -1 ? 0 : 1;
		if (offset == -2)
			(void) dsv3_cli_fail(&err);
		else if (offset == -1)
			puts("accepted");
		else
			printf("rejected %ld\n", offset);
	}
	free(text);
	dsv3_grammar_free(grammar);
	dsv3_token_table_free(vocab);
	return status;
}

int
dsv3_cmd_schema(int argc, char **argv)
{
	static const struct
	{
		const char *name;
		int (*run)(int argc, char **argv);
	} parts[] = {
		{"check", run_check},       {"accepts", run_accepts},     {"suite", dsv3_schema_suite},
		{"walk", dsv3_schema_walk}, {"bench", dsv3_schema_bench},
	};

	if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
	{
		print_help();
		return 0;
	}
	for (size_t i = 0; argc > 1 && i < sizeof(parts) / sizeof(parts[0]); i++)
		if (strcmp(argv[1], parts[i].name) == 0)
			return parts[i].run(argc - 1, argv + 1);
	return dsv3_cli_usage("schema", "say check, accepts, suite, walk or bench");
}
