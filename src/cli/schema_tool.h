/*
 * schema_tool.h
 *	  What the `dsv3 schema` subcommands share: the vocabulary of a model directory, reading files, walking directories.
 */
#ifndef DSV3_CLI_SCHEMA_TOOL_H
#define DSV3_CLI_SCHEMA_TOOL_H

#include <stdbool.h>
#include <stddef.h>

#include "common/error.h"
#include "grammar/grammar.h"
#include "grammar/json.h"

/* The tokenizer of a model directory as a vocabulary for grammars; its end token is the tokenizer's, when it has one.
 * "-" instead of a directory: a vocabulary of single bytes; "+": of bytes and some pieces that cross JSON's parts. */
extern Dsv3TokenTable *dsv3_schema_tokens(const char *model_dir, Dsv3Error *err);

/* A whole file, malloc'd and zero-terminated. */
extern char *dsv3_schema_read(const char *path, size_t *len, Dsv3Error *err);

/* Every regular file below dir whose name ends in .json, sorted; NULL-terminated, malloc'd twice over. */
extern char **dsv3_schema_files(const char *dir, size_t *count, Dsv3Error *err);
extern void dsv3_schema_files_free(char **files);

/*
 * Visit the schemas of every test file below dir: of a MaskBench file its schema, of a JSON-Schema-Test-Suite file each of its groups
 * (place is then the path with "#" and the group's number), of any other file the file itself. tests: their list, or NULL. What is visited
 * lives until the visit is over.
 */
typedef void (*Dsv3SchemaVisit)(void *arg, const char *place, const Json *schema, const Json *tests);
extern bool dsv3_schema_each(const char *dir, Dsv3SchemaVisit visit, void *arg, Dsv3Error *err);

extern int dsv3_schema_suite(int argc, char **argv);
extern int dsv3_schema_walk(int argc, char **argv);
extern int dsv3_schema_bench(int argc, char **argv);

#endif /* DSV3_CLI_SCHEMA_TOOL_H */
