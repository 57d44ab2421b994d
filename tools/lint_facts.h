/*
 * lint_facts.h
 *	  What clang-tidy cannot see because it reads one file at a time; tools/lint.sh includes this before each file.
 */
#ifndef DSV3_LINT_FACTS_H
#define DSV3_LINT_FACTS_H

#include "common/error.h"

/* Those who report an error say false. */
#define dsv3_error(...)        ((void) (dsv3_error) (__VA_ARGS__), false)
#define dsv3_error_detail(...) ((void) (dsv3_error_detail) (__VA_ARGS__), false)
#define dsv3_error_hint(...)   ((void) (dsv3_error_hint) (__VA_ARGS__), false)
#define dsv3_error_prefix(...) ((void) (dsv3_error_prefix) (__VA_ARGS__), false)

/* And in the commands, what they return is the exit status. */
#ifdef DSV3_LINT_CLI
#include "cli/cli.h"
#define dsv3_cli_fail(...)  ((void) (dsv3_cli_fail) (__VA_ARGS__), 1)
#define dsv3_cli_usage(...) ((void) (dsv3_cli_usage) (__VA_ARGS__), 2)
#endif

#endif /* DSV3_LINT_FACTS_H */
