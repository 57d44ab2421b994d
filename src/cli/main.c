/*
 * main.c
 *	  The `dsv3` executable: finds the subcommand and runs it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "common/version.h"

static const Dsv3Command commands[] = {
	{"inspect", "show what a model directory contains", dsv3_cmd_inspect},
	{"pack", "make one file of a model directory, with fewer bits", dsv3_cmd_pack},
	{"generate", "answer one prompt", dsv3_cmd_generate},
	{"logits", "write the logits of given token ids to a .npy file", dsv3_cmd_logits},
	{"tokenize", "text to token ids and back", dsv3_cmd_tokenize},
	{"perplexity", "perplexity of a text file", dsv3_cmd_perplexity},
	{"bench", "speed against this machine's memory bandwidth", dsv3_cmd_bench},
	{"schema", "compile schemas, test them, ask what the decoder could write", dsv3_cmd_schema},
	{"engine", "the engine process (started by the PostgreSQL supervisor)", dsv3_cmd_engine},
};

#define N_COMMANDS ((int) (sizeof(commands) / sizeof(commands[0])))

static void
print_help(FILE *out)
{
	fprintf(out, "dsv3 runs a DeepSeek-V3-family model from files on disk.\n\n"
				 "Usage: dsv3 COMMAND [ARGUMENTS]\n\nCommands:\n");
	for (int i = 0; i < N_COMMANDS; i++)
		fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].summary);
	fprintf(out, "\n'dsv3 COMMAND --help' explains one. Exit status: 0 done, 1 failed, 2 wrong usage.\n");
}

int
dsv3_cli_fail(const Dsv3Error *err)
{
	fprintf(stderr, "dsv3: %s\n", err->message);
	if (err->detail[0])
		fprintf(stderr, "detail: %s\n", err->detail);
	if (err->hint[0])
		fprintf(stderr, "hint: %s\n", err->hint);
	return 1;
}

int
dsv3_cli_usage(const char *command, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "dsv3 %s: ", command);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\nTry 'dsv3 %s --help'.\n", command);
	return 2;
}

/* The status of a command that has printed: what did not reach standard output was not done. */
static int
printed(int status)
{
	int flushed = fflush(stdout);

	if (status != 0 || (flushed == 0 && !ferror(stdout)))
		return status;
	fprintf(stderr, "dsv3: could not write to standard output\n");
	return 1;
}

int
main(int argc, char **argv)
{
	if (argc < 2)
	{
		print_help(stderr);
		return 2;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
	{
		print_help(stdout);
		return printed(0);
	}
	if (strcmp(argv[1], "--version") == 0)
	{
		printf("dsv3 %s\n", DSV3_VERSION);
		return printed(0);
	}
	for (int i = 0; i < N_COMMANDS; i++)
	{
		if (strcmp(argv[1], commands[i].name) == 0)
			return printed(commands[i].run(argc - 1, argv + 1));
	}
	fprintf(stderr, "dsv3: unknown command \"%s\"\nTry 'dsv3 --help'.\n", argv[1]);
	return 2;
}
