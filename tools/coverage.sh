#!/bin/bash
#
# coverage.sh
#	Which lines of the engine's layers the tests reach: they are built with coverage into build/coverage and run under the unit
#	tests and the comparisons with the references. Prints one line for each folder and one in all; build/coverage/html has
#	the lines themselves.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/lib.sh

export MAKE=${MAKE:-make} PG_CONFIG=${PG_CONFIG:-pg_config}
unset MAKEFLAGS MFLAGS MAKELEVEL
OUT=build/coverage
COVERAGE="ENGINE_BUILD=$OUT/engine ENGINE_OPT=-O0\ -g ENGINE_SANITIZE=--coverage"

export DSV3_BIN=$PWD/$OUT/engine/dsv3 # the executable that the comparisons run
tools/setup.sh build test coverage || exit 1
mkdir -p "$OUT"
rm -f "$OUT"/*.info
find "$OUT" -name '*.gcda' -delete

run()
{
	local name=$1
	shift
	printf '%-10s ' "$name"
	if "$@" >"$OUT/$name.log" 2>&1; then echo ok; else echo "FAILED, see $OUT/$name.log (its lines count as far as it came)"; fi
}

run build bash -c "$MAKE -j$(nproc) $COVERAGE unit engine"
run unit bash -c "$MAKE $COVERAGE check-unit"
for test in check-oracle check-text; do
	grep -qhE "^$test:" test/*.mk tools/*.mk && run "$test" bash -c "$MAKE $COVERAGE $test"
done

# --initial: files that no test program so much as links count too.
capture()
{
	lcov --quiet --capture "$@" --directory "$OUT/engine" --base-directory . --no-external 2>>"$OUT/lcov.log" ||
		{ echo "coverage.sh: lcov failed, see $OUT/lcov.log" >&2 && exit 1; }
}
: >"$OUT/lcov.log"
capture --initial --output-file "$OUT/none.info"
capture --output-file "$OUT/reached.info"
{
	lcov --quiet --add-tracefile "$OUT/none.info" --add-tracefile "$OUT/reached.info" --output-file "$OUT/all.info"
	lcov --quiet --remove "$OUT/all.info" '*/test/*' --output-file "$OUT/engine.info"
	genhtml --quiet --output-directory "$OUT/html" "$OUT/engine.info"
} >>"$OUT/lcov.log" 2>&1

awk -v top="$PWD/" '
	/^SF:/ { file = substr($0, 4); sub(top, "", file); folder = file; sub(/\/[^\/]*$/, "", folder) }
	/^DA:/ { split(substr($0, 4), d, ","); lines[folder]++; if (d[2] > 0) hit[folder]++ }
	END {
		for (f in lines) {
			printf "%-14s %6d of %6d lines  %5.1f %%\n", f, hit[f], lines[f], 100 * hit[f] / lines[f] | "sort"
			l += lines[f]; h += hit[f]
		}
		close("sort")
		if (l > 0) printf "%-14s %6d of %6d lines  %5.1f %%\n", "in all", h, l, 100 * h / l
	}' "$OUT/engine.info"
