#!/bin/bash
#
# coverage.sh
#	Which lines the tests reach. The engine is built with coverage into build/coverage/engine and run under the unit tests and the
#	comparisons with the references (the texts of the demo model aside: they take long and reach nothing more); the
#	library is built with coverage in a copy of the tree, build/coverage/tree, and run under the tests that need PostgreSQL. A server process that is killed
#	leaves no counts. Prints one line for each folder and one in all; build/coverage/html has the lines themselves.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/lib.sh

export MAKE=${MAKE:-make} PG_CONFIG=${PG_CONFIG:-pg_config}
unset MAKEFLAGS MFLAGS MAKELEVEL
OUT=build/coverage
COVERAGE="ENGINE_BUILD=$OUT/engine ENGINE_OPT=-O1\ -g ENGINE_SANITIZE=--coverage"

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
run text bash -c "$MAKE $COVERAGE check-text"
run oracle bash -c "$MAKE $COVERAGE check-oracle TESTS='logits variants'"
run grammar bash -c "$MAKE $COVERAGE check-grammar"

# The library. Its counts lie beside its objects, where the server's user must be able to write them.
TREE=$OUT/tree
rm -rf "$TREE" && mkdir -p "$TREE/build"
git -c safe.directory='*' ls-files -z --cached --others --exclude-standard |
	tar --null -T - --ignore-failed-read -cf - | tar -xf - -C "$TREE"
cp -rp build/tiny-model "$TREE/build/"
run library bash -c "$MAKE -C $TREE -j$(nproc) with_llvm=no COPT='--coverage -O1' all"
chmod -R a+rwX "$TREE/src"
for test in regress isolation pgtap tap; do
	run "$test" bash -c "unset DSV3_BIN; $MAKE -C $TREE with_llvm=no COPT='--coverage -O1' check-$test"
done

# capture NAME FOLDER BASE [OPTION]: the counts below FOLDER; those of the copy under the names of the tree's own files.
# With --initial, files that no test so much as links count too.
capture()
{
	lcov --quiet --capture "${@:4}" --directory "$2" --base-directory "$3" --no-external --output-file "$OUT/$1.info" 2>>"$OUT/lcov.log" ||
		{ echo "coverage.sh: lcov failed, see $OUT/lcov.log" >&2 && exit 1; }
	sed -i "s,^SF:$PWD/$TREE/,SF:$PWD/," "$OUT/$1.info"
}
: >"$OUT/lcov.log"
capture engine-none "$OUT/engine" . --initial
capture engine "$OUT/engine" .
capture library-none "$TREE/src" "$TREE" --initial
capture library "$TREE/src" "$TREE"
{
	lcov --quiet --output-file "$OUT/sum.info" --add-tracefile "$OUT/engine-none.info" --add-tracefile "$OUT/engine.info" \
		--add-tracefile "$OUT/library-none.info" --add-tracefile "$OUT/library.info"
	lcov --quiet --remove "$OUT/sum.info" '*/test/*' --output-file "$OUT/all.info"
	genhtml --quiet --output-directory "$OUT/html" "$OUT/all.info"
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
	}' "$OUT/all.info"
