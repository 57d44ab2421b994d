/*
 * cmd_tokenize.c
 *	  `dsv3 tokenize`: lines of text to lines of ids and back.
 *
 * A line of text is a JSON string, so that any text, line breaks included, fits on one line; a line of ids is a JSON
 * array of integers. The first bad line ends the run.
 */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "text/template.h"
#include "text/tokenizer.h"

typedef struct Options
{
	bool decode;
	bool special;
	bool add_bos;
	bool chat;
	const char *model;
} Options;

static void
print_help(void)
{
	printf(
		"Text to token ids and back.\n\n"
		"Usage: dsv3 tokenize [OPTIONS] MODEL\n\n"
		"Reads lines from standard input, each a JSON string, and prints the ids of each as a JSON array.\n"
		"MODEL is a directory with tokenizer.json or tiktoken.model.\n\n"
		"Options:\n"
		"  --decode     the other way: lines of JSON arrays of ids to JSON strings\n"
		"  --special    recognise added tokens in the text; without it, they are text\n"
		"  --add-bos    begin each line's ids with the token the tokenizer puts in front, if it has one\n"
		"  --help       this text\n\n"
		"Bytes that are not UTF-8 after decoding are shown as U+FFFD.\n\n"
		"Example:\n"
		"  $ echo '\"hello world\"' | dsv3 tokenize build/demo-model\n");
}

/* Name the line in front of the message. */
static int
fail_line(size_t line, const Dsv3Error *err)
{
	Dsv3Error copy = *err;

	dsv3_error_prefix(&copy, "line %zu", line);
	return dsv3_cli_fail(&copy);
}

static void
print_ids(const Dsv3Tokens *tokens)
{
	putchar('[');
	for (size_t i = 0; i < tokens->count; i++)
		printf(i ? ",%d" : "%d", tokens->ids[i]);
	puts("]");
}

static bool
encode_line(const Options *options, const Dsv3Tokenizer *tokenizer, const json_t *value, Dsv3Error *err)
{
	Dsv3Tokens tokens = {0};
	int32_t bos = options->add_bos ? dsv3_tokenizer_bos(tokenizer) : -1;
	bool ok;

	if (!json_is_string(value))
		return dsv3_error(err, DSV3_ERR_INVALID_JSON, "not a JSON string");
	ok = (bos < 0 || dsv3_tokens_push(&tokens, bos, err)) &&
		 dsv3_tokenizer_encode(tokenizer, json_string_value(value), json_string_length(value),
							   options->special ? DSV3_ENCODE_SPECIAL : DSV3_ENCODE_PLAIN, 0, &tokens, err);
	if (ok)
		print_ids(&tokens);
	dsv3_tokens_free(&tokens);
	return ok;
}

/* A conversation to the ids of its prompt. */
static bool
chat_line(const Dsv3Template *template, const json_t *value, Dsv3Error *err)
{
	const json_t *messages = json_is_array(value) ? value : json_object_get(value, "messages");
	const json_t *tools = json_object_get(value, "tools"), *think = json_object_get(value, "think");
	char *messages_text = NULL, *tools_text = NULL;
	Dsv3Tokens tokens = {0};
	bool ok;

	if (!json_is_array(messages))
		return dsv3_error(err, DSV3_ERR_INVALID_JSON,
						  "neither a JSON array of messages nor an object with \"messages\"");
	if (think != NULL && !json_is_boolean(think))
		return dsv3_error(err, DSV3_ERR_INVALID_JSON, "\"think\" is not true or false");
	messages_text = json_dumps(messages, JSON_COMPACT);
	if (tools != NULL)
		tools_text = json_dumps(tools, JSON_COMPACT | JSON_ENCODE_ANY);
	if (messages_text == NULL || (tools != NULL && tools_text == NULL))
		ok = dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
	else
		ok = dsv3_template_render(template, messages_text, strlen(messages_text), tools_text,
								  tools_text ? strlen(tools_text) : 0,
								  think == NULL         ? DSV3_THINK_AUTO
								  : json_is_true(think) ? DSV3_THINK_ON
														: DSV3_THINK_OFF,
								  0, &tokens, err);
	if (ok)
		print_ids(&tokens);
	dsv3_tokens_free(&tokens);
	free(messages_text);
	free(tools_text);
	return ok;
}

static bool
decode_line(const Dsv3Tokenizer *tokenizer, const json_t *value, Dsv3Error *err)
{
	Dsv3Decoder decoder;
	Dsv3Text text = {0};
	json_t *string = NULL;
	bool ok;

	if (!json_is_array(value))
		return dsv3_error(err, DSV3_ERR_INVALID_JSON, "not a JSON array of token ids");
	dsv3_decoder_init(&decoder, tokenizer, false);
	ok = dsv3_text_append(&text, "", 0, err);
	for (size_t i = 0; ok && i < json_array_size(value); i++)
	{
		const json_t *id = json_array_get(value, i);

		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
			ok = dsv3_error(err, DSV3_ERR_INVALID_PARAMETER, "item %zu is not a token id", i);
		else
			ok = dsv3_decoder_feed(&decoder, (int32_t) json_integer_value(id), &text, err);
	}
	ok = ok && dsv3_decoder_finish(&decoder, &text, err);
	if (ok)
	{
		string = json_stringn(text.data, text.len);
		if (string == NULL)
			ok = dsv3_error(err, DSV3_ERR_OUT_OF_MEMORY, "out of memory");
		else
		{
			json_dumpf(string, stdout, JSON_ENCODE_ANY);
			putchar('\n');
		}
	}
	json_decref(string);
	dsv3_text_free(&text);
	return ok;
}

/* All lines; the exit status. */
static int
run_lines(const Options *options, const Dsv3Tokenizer *tokenizer, const Dsv3Template *template)
{
	char *line = NULL;
	size_t capacity = 0, number = 0;
	ssize_t len;
	int status = 0;

	while (status == 0 && (len = getline(&line, &capacity, stdin)) >= 0)
	{
		json_error_t error;
		json_t *value;
		Dsv3Error err;
		bool ok;

		number++;
		if (len > 0 && line[len - 1] == '\n')
			len--;
		value = json_loadb(line, (size_t) len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
		if (value == NULL)
			ok = dsv3_error(&err, DSV3_ERR_INVALID_JSON, "not valid JSON: %s", error.text);
		else if (options->decode)
			ok = decode_line(tokenizer, value, &err);
		else if (options->chat)
			ok = chat_line(template, value, &err);
		else
			ok = encode_line(options, tokenizer, value, &err);
		if (!ok)
			status = fail_line(number, &err);
		json_decref(value);
	}
	free(line);
	if (status == 0 && (ferror(stdin) || fflush(stdout) != 0))
	{
		fprintf(stderr, "dsv3: %s: %s\n", ferror(stdin) ? "could not read standard input" : "could not write",
				strerror(errno));
		status = 1;
	}
	return status;
}

int
dsv3_cmd_tokenize(int argc, char **argv)
{
	static const struct option long_options[] = {
		{"decode", no_argument, NULL, 'd'},  {"special", no_argument, NULL, 's'},
		{"add-bos", no_argument, NULL, 'b'}, {"chat", no_argument, NULL, 'c'},
		{"help", no_argument, NULL, 'h'},    {NULL, 0, NULL, 0}};
	Options options = {0};
	Dsv3Tokenizer *tokenizer;
	Dsv3Template template;
	Dsv3Error err;
	int c, status;

	optind = 1;
	opterr = 0;
	while ((c = getopt_long(argc, argv, "h", long_options, NULL)) != -1)
	{
		switch (c)
		{
			case 'd':
				options.decode = true;
				break;
			case 's':
				options.special = true;
				break;
			case 'b':
				options.add_bos = true;
				break;
			case 'c':
				options.chat = true;
				break;
			case 'h':
				print_help();
				return 0;
			default:
				return dsv3_cli_usage("tokenize", "unknown option \"%s\"", argv[optind - 1]);
		}
	}
	if (argc - optind != 1)
		return dsv3_cli_usage("tokenize", "one model directory is wanted");
	if (options.decode + options.chat + (options.special || options.add_bos) > 1)
		return dsv3_cli_usage("tokenize", "--decode, --chat and --special with --add-bos exclude each other");
	options.model = argv[optind];
	tokenizer = dsv3_tokenizer_open(options.model, &err);
	if (tokenizer == NULL)
		return dsv3_cli_fail(&err);
	if (!dsv3_template_open(&template, options.model, tokenizer, &err))
		status = dsv3_cli_fail(&err);
	else
	{
		status = run_lines(&options, tokenizer, &template);
		dsv3_template_close(&template);
	}
	dsv3_tokenizer_close(tokenizer);
	return status;
}
