/*
 * cli.h
 *	  The subcommands of the `dsv3` executable. Each lives in src/cli/cmd_<name>.c, parses its own arguments with
 *	  getopt_long, prints results on stdout and errors on stderr, and returns the exit status: 0 done, 1 failed, 2 wrong
 *	  usage. argv[0] is the subcommand's name.
 */
#ifndef DSV3_CLI_H
#define DSV3_CLI_H

#include "common/error.h"

typedef struct Dsv3Command
{
	const char *name;
	const char *summary; /* one line for `dsv3 --help` */
	int (*run)(int argc, char **argv);
} Dsv3Command;

/* Print "dsv3: message" with detail and hint lines on stderr; returns 1. */
extern int dsv3_cli_fail(const Dsv3Error *err);

/* Print "dsv3 <command>: message" and "Try 'dsv3 <command> --help'" on stderr; returns 2. */
extern int dsv3_cli_usage(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The table in main.c lists these; a new command adds its line there and its prototype here. */
extern int dsv3_cmd_engine(int argc, char **argv);
extern int dsv3_cmd_inspect(int argc, char **argv);
extern int dsv3_cmd_pack(int argc, char **argv);
extern int dsv3_cmd_logits(int argc, char **argv);
extern int dsv3_cmd_generate(int argc, char **argv);
extern int dsv3_cmd_tokenize(int argc, char **argv);
extern int dsv3_cmd_perplexity(int argc, char **argv);
extern int dsv3_cmd_bench(int argc, char **argv);
extern int dsv3_cmd_schema(int argc, char **argv);

#endif /* DSV3_CLI_H */
