#!/bin/bash
#
# lint.sh [LINT...]
#	Looks at the source without running it. One line for each lint, its findings below it when there are any, and at the
#	end "N passed, N failed". A C file that clang-tidy or cppcheck found clean is not looked at again until it, a header
#	or the configuration changes (build/lint).
set -u
cd "$(dirname "$0")/.." || exit 1

PG_CONFIG=${PG_CONFIG:-pg_config}
PYTHON=${PYTHON:-python3}
CLEAN=build/lint

tracked()
{
	git -c safe.directory='*' ls-files --cached --others --exclude-standard -- "$@" | while IFS= read -r f; do
		[ ! -e "$f" ] || echo "$f"
	done
}

LINTS=(format includes sql tree shell python perl tidy cppcheck)

lint_format()
{
	tracked '*.c' '*.h' | xargs -r clang-format --dry-run --Werror
}

lint_includes()
{
	tracked '*.c' '*.h' | xargs -r "$PYTHON" tools/lint_includes.py
}

lint_sql()
{
	tracked 'sql/dsv3--*.sql' | xargs -r "$PYTHON" tools/lint_sql.py
}

lint_tree()
{
	tracked | "$PYTHON" tools/lint_tree.py
}

lint_shell()
{
	{
		tracked '*.sh' .ci/run
		tracked test tools bench | xargs -r grep -lE '^#!/bin/(ba)?sh' --
	} | sort -u | xargs -r shellcheck -x
}

# Python and Perl must at least compile; pyflakes and the servers' Perl modules are used where they are installed.
lint_python()
{
	tracked '*.py' | xargs -r "$PYTHON" -c 'import sys
for name in sys.argv[1:]:
    compile(open(name, encoding="utf-8").read(), name, "exec")'
	if command -v pyflakes3 >/dev/null 2>&1; then
		tracked '*.py' | xargs -r pyflakes3
	fi
}

lint_perl()
{
	local modules bad=0 f
	modules=$(dirname "$(dirname "$("$PG_CONFIG" --pgxs)")")/../src/test/perl
	for f in $(tracked '*.pl' '*.pm' '*.t'); do
		head -n 1 "$f" | grep -qE '^#!.*\b(sh|bash|python3?)\b' && continue
		perl -wc -I "$modules" -I test/perl -I test/t "$f" 2>&1 | grep -v 'syntax OK$' && bad=1
	done
	return $bad
}

# The flags a file is compiled with, as far as they matter for reading it.
flags_of()
{
	local include flags='-std=gnu11 -D_GNU_SOURCE -Isrc -pthread -include tools/lint_facts.h'
	case "$1" in
	src/pg/*)
		include=$("$PG_CONFIG" --includedir-server)
		echo "$flags -isystem $include -isystem $include/../../internal"
		;;
	src/common/error.c | src/cli/main.c) echo "${flags% -include *}" ;; # define what lint_facts.h redefines
	src/cli/*) echo "$flags -DDSV3_LINT_CLI" ;;
	*_avx2.c) echo "$flags -mavx2 -mfma -mf16c" ;;
	*_avx512.c) echo "$flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c" ;;
	*) echo "$flags" ;;
	esac
}

# each_changed TOOL COMMAND...: run COMMAND FILE FLAGS MARK for each source file that TOOL has not found clean together with
# the headers it includes and the configuration.
each_changed()
{
	local tool=$1 f flags mark
	mkdir -p "$CLEAN"
	shift
	for f in $(tracked 'src/*.c'); do
		flags=$(flags_of "$f")
		# shellcheck disable=SC2046,SC2086
		mark=$CLEAN/$tool.$(echo "$f" | tr / _).$(cat .clang-tidy $(${CC:-cc} $flags -MM "$f" | sed 's/^[^:]*://; s/\\$//') |
			cksum | tr -d ' ')
		[ -e "$mark" ] || printf '%s\0' "$f" "$flags" "$mark"
	done | xargs -0 -r -n 3 -P "$(nproc)" "$0" --one "$@"
}

lint_tidy()
{
	each_changed tidy tidy_one
}

tidy_one()
{
	local found
	# shellcheck disable=SC2086
	if found=$(clang-tidy --quiet "$1" -- $2 2>/dev/null); then
		touch "$3"
	else
		# The path that leads to a finding: clang-tidy FILE -- FLAGS.
		echo "$found" | grep -E ': (error|warning):' | sed "s|$PWD/||"
		return 1
	fi
}

lint_cppcheck()
{
	each_changed cppcheck cppcheck_one
}

cppcheck_one()
{
	# Not asked: what it guesses of loops and arrays without following values (the compilers and sanitizers look there).
	cppcheck --quiet --std=c11 --language=c --enable=warning,portability --inline-suppr --error-exitcode=1 \
		--template='{file}:{line}: {message} [{id}]' --template-location='' \
		--suppress=missingInclude --suppress=missingIncludeSystem --suppress=unknownMacro \
		--suppress=preprocessorErrorDirective --suppress=nullPointerRedundantCheck --suppress=uninitvar \
		--suppress=arrayIndexOutOfBounds --suppress=arrayIndexThenCheck --suppress=invalidFunctionArg \
		-Isrc -D__x86_64__ -D__GNUC__ "$1" && touch "$3"
}

if [ "${1:-}" = --one ]; then
	shift
	"$@"
	exit
fi

[ -n "$(tracked Makefile)" ] || { echo "lint.sh: git does not know the files here; nothing can be checked" >&2 && exit 1; }
passed=0 failed=0
[ $# -gt 0 ] || set -- "${LINTS[@]}"
for lint in "$@"; do
	[[ " ${LINTS[*]} " == *" $lint "* ]] || { echo "lint.sh: no lint \"$lint\"; there are: ${LINTS[*]}" >&2 && exit 2; }
	start=$SECONDS
	if findings=$("lint_$lint" 2>&1); then
		passed=$((passed + 1))
		printf '%-9s ok     %3d s\n' "$lint" $((SECONDS - start))
	else
		failed=$((failed + 1))
		printf '%-9s FAILED %3d s\n%s\n' "$lint" $((SECONDS - start)) "$(echo "$findings" | head -n 200 | sed 's/^/    /')"
	fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
