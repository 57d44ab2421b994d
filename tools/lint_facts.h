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

#endif /* DSV3_LINT_FACTS_H */
