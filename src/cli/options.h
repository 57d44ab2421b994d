/*
 * options.h
 *	  Reading the option values that several subcommands share.
 */
#ifndef DSV3_CLI_OPTIONS_H
#define DSV3_CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"

/* A decimal integer in [min, max] and nothing else. */
extern bool dsv3_cli_integer(const char *value, int64_t min, int64_t max, int64_t *result);

/* Integers separated by commas or white space, each in [0, max]. A malloc'd array and its length; NULL when the text is
 * not such a list or is empty. */
extern int32_t *dsv3_cli_id_list(const char *text, int32_t max, int *count);

/* A whole file of at most limit bytes, "-" for standard input, with a terminating zero; NULL and *err. The caller frees it. */
extern char *dsv3_cli_read_file(const char *path, int64_t limit, int64_t *length, Dsv3Error *err);

#define DSV3_CLI_MODEL_OPTIONS_HELP                                                                          \
	"  --weights MODE   stored (default), f32, bf16, int8 or int4\n"                                         \
	"  --kv-cache TYPE  f32 (default), bf16 or int8: rows of the latent cache\n"                             \
	"  --threads N      compute threads (default: one per CPU)\n"                                            \
	"  --isa SET        ref, avx2 or avx512 (default: the best this CPU has)\n"

#endif /* DSV3_CLI_OPTIONS_H */
