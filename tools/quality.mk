# Parts of `make check` that look at the source rather than run it, and the sanitizers: tools/check.sh runs them all.

## make check-asan        unit tests under the address and undefined-behaviour sanitizers
.PHONY: check-asan check-clang
ASAN_BUILD = ENGINE_BUILD=build/asan ENGINE_OPT='-O1 -g' \
	ENGINE_SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=all'
check-asan:
	@$(MAKE) --no-print-directory check-unit $(ASAN_BUILD)

# The second compiler's warnings; the library's objects stay gcc's.
check-clang:
	@$(MAKE) --no-print-directory engine unit ENGINE_BUILD=build/clang ENGINE_CC=clang WERROR=-Werror
	clang $(patsubst -I/%,-isystem /%,$(CPPFLAGS)) -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare \
		-Wno-missing-field-initializers -Werror -fsyntax-only $(PG_SRC)

## make format            lay out the C files as .clang-format says
## make lint              layout, clang-tidy, cppcheck, include direction, SQL scripts, shell, rules of the tree
.PHONY: format lint
format:
	clang-format -i $$(git ls-files '*.c' '*.h')
lint:
	@MAKE='$(MAKE)' PG_CONFIG='$(PG_CONFIG)' tools/lint.sh $(LINTS)

## make check-tools       what the commands tell when something fails
.PHONY: check-tools
check-tools:
	prove test/tools/*.t

## make check-docs        links, examples, names of functions and settings in the pages
.PHONY: check-docs
check-docs: tiny-model
	@PYTHON='$(PYTHON)' PG_CONFIG='$(PG_CONFIG)' prove test/docs/docs.t

## make coverage          lines the tests reach, in all and for each folder
## make check-matrix      build and regression tests on PostgreSQL 14 to 18 (MAJORS="14 17" for some)
.PHONY: coverage check-matrix
coverage:
	@MAKE='$(MAKE)' PG_CONFIG='$(PG_CONFIG)' tools/coverage.sh
check-matrix:
	@MAKE='$(MAKE)' tools/matrix.sh $(MAJORS)
