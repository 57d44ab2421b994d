#!/bin/bash
#
# check.sh [STAGE...]
#	Runs everything that needs no GPU, stage by stage, and goes on after a stage that fails. Each stage's output goes to
#	build/check/STAGE.log; the end is a table, what was skipped, what failed (failures.sh), and one line "N passed, N failed". Exit
#	status 0 when nothing failed. `check.sh --stage STAGE` runs one and shows its output.
#
# Counts are the tests' own where a stage's log tells them (prove, pg_regress, a script's "N passed, N failed"), and one
# for the stage otherwise. Skipped tests are listed; with CI=true each counts as failed, because there everything must be
# able to run.
#
# Tests that need PostgreSQL run it as an unprivileged user. When this runs as root in a folder which that user cannot
# reach (a checkout under /root), the whole check runs in a copy of the tree.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/lib.sh

export MAKE=${MAKE:-make} PG_CONFIG=${PG_CONFIG:-pg_config}
unset MAKEFLAGS MFLAGS MAKELEVEL
LOGS=build/check
LIMIT=1500 # seconds a stage may take
jobs=$(nproc)

STAGES=(
	"setup|packages"
	"build|library and engine, gcc -Werror"
	"clang|the same sources, clang -Werror"
	"install|what make install and uninstall do"
	"lint|layout, static analysis, rules of the tree"
	"models|the small random models, the demo model"
	"unit|each engine layer by itself"
	"asan|the same under address and UB sanitizers"
	"grammar|structured output against public test suites"
	"text|tokenizers against the reference libraries"
	"oracle|logits and texts against transformers"
	"regress|SQL"
	"isolation|several sessions"
	"pgtap|catalogue, grants, comments"
	"tap|crashes, stops and restarts"
	"docs|links, examples and names in the pages"
)

stage_setup() { tools/setup.sh build model test lint; }
stage_build() { $MAKE -j"$jobs" WERROR=-Werror all unit; }
stage_clang() { $MAKE -j"$jobs" check-clang; }
stage_lint() { $MAKE -k lint check-tools; }
stage_models()
{
	$MAKE tiny-model draft-model text-models || return
	$MAKE demo-model || echo "SKIP: no demo model: see above"
}
stage_unit() { $MAKE check-unit WERROR=-Werror; }
stage_asan() { $MAKE -j"$jobs" check-asan; }
stage_grammar() { $MAKE -k check-grammar check-extraction; }
stage_text() { $MAKE check-text; }
stage_oracle() { $MAKE check-oracle; }
stage_regress() { $MAKE check-regress; }
stage_isolation() { $MAKE check-isolation; }
stage_pgtap() { $MAKE check-pgtap; }
stage_tap() { $MAKE check-tap; }
stage_docs() { $MAKE check-docs; }

# Into a staging folder: everything that belongs there and nothing else; then uninstall leaves no file.
stage_install()
{
	local stage=$PWD/build/check/stage bin lib share wanted got
	rm -rf "$stage"
	bin=$("$PG_CONFIG" --bindir) lib=$("$PG_CONFIG" --pkglibdir) share=$("$PG_CONFIG" --sharedir)/extension
	$MAKE install DESTDIR="$stage" || return
	wanted=$(printf '%s\n' "$bin/dsv3" "$lib/dsv3.so" "$share/dsv3.control" sql/dsv3--*.sql | sed "s|^sql/|$share/|" | sort)
	got=$(cd "$stage" && find . -type f | sed 's|^\.||' | grep -v /bitcode/ | sort)
	if [ "$wanted" != "$got" ]; then
		printf 'wanted:\n%s\ninstalled:\n%s\n' "$wanted" "$got"
		return 1
	fi
	$MAKE uninstall DESTDIR="$stage" || return
	got=$(find "$stage" -type f)
	[ -z "$got" ] || { printf 'left by uninstall:\n%s\n' "$got" && return 1; }
}

# Adds up what a log says: sets passed, failed and skipped, and lists the skips.
count_log()
{
	local name=$1 log=$2 line
	read -r passed failed < <(awk '
		/^Files=[0-9]+, Tests=[0-9]+/ { split($2, t, /[=,]/); p += t[2] }
		/\(Wstat: .*Failed: [0-9]+\)/ { match($0, /Failed: [0-9]+/); n = substr($0, RSTART + 8, RLENGTH - 8); f += n; p -= n }
		/^#? *All [0-9]+ tests passed/ { match($0, /[0-9]+/); p += substr($0, RSTART, RLENGTH) }
		/^#? *[0-9]+ of [0-9]+ tests failed/ { gsub(/[^0-9 ]/, ""); $0 = $0; f += $1; p += $2 - $1 }
		/^([a-z]+: )?[0-9]+ passed, [0-9]+ failed/ { sub(/^[a-z]+: /, ""); p += $1; f += $3 }
		END { print p + 0, f + 0 }' "$log")
	skipped=0
	# What prove keeps to itself is in the raw output of the test programs. A build with sanitizers leaves out what the
	# plain build has tested already.
	[ "$name" = asan ] || while IFS= read -r line; do
		skips+=("$name: $line")
		skipped=$((skipped + 1))
	done < <(
		sed -n 's/^SKIP: //p' "$log"
		find "$LOGS/tap/$name" -type f -exec sed -n -E 's/^(1\.\.0|ok [0-9]+.*) *# *skip *(.*)/\1 \2/Ip' {} +
	)
	passed=$((passed - skipped > 0 ? passed - skipped : 0))
}

run_stage()
{
	local name=$1 title=$2 log="$LOGS/$1.log" start=$SECONDS rc state=ok
	printf '%-9s %-48s ' "$name" "$title"
	rm -rf "$LOGS/tap/$name"
	mkdir -p "$LOGS/tap/$name" && chmod 1777 "$LOGS/tap/$name"
	PERL_TEST_HARNESS_DUMP_TAP=$PWD/$LOGS/tap/$name timeout -k 20 "$LIMIT" "$0" --stage "$name" </dev/null >"$log" 2>&1
	rc=$?
	[ $rc -ne 124 ] || echo "check.sh: stopped after $LIMIT s" >>"$log"
	count_log "$name" "$log"
	[ $rc -eq 0 ] || [ "$failed" -gt 0 ] || failed=1
	[ $((passed + failed)) -gt 0 ] || passed=1
	[ "${CI:-}" != true ] || failed=$((failed + skipped))
	[ "$failed" -eq 0 ] || state=FAILED
	total_passed=$((total_passed + passed))
	total_failed=$((total_failed + failed))
	total_skipped=$((total_skipped + skipped))
	rows+=("$(printf '%-9s %-7s %7d %7d %7d %6d s' "$name" $state "$passed" "$failed" "$skipped" $((SECONDS - start)))")
	printf '%-7s %5d s\n' $state $((SECONDS - start))
	if [ $state = FAILED ]; then
		failures+=("$name")
		tools/failures.sh "$log" "$LOGS/tap/$name" | sed 's/^/    /'
	fi
}

# Root in a folder the server's user cannot reach: copy what git knows, and what it does not ignore, and run there.
run_in_copy()
{
	local copy rc
	copy=$(mktemp -d /var/tmp/dsv3-check.XXXXXX) || exit 1
	echo "user $(server_user) cannot reach this folder; checking a copy in $copy"
	chmod 755 "$copy"
	mkdir "$copy/dsv3"
	git -c safe.directory='*' ls-files -z --cached --others --exclude-standard |
		tar --null -T - --ignore-failed-read -cf - | tar -xf - -C "$copy/dsv3"
	# Lint asks git which files are the project's.
	git -C "$copy/dsv3" init -q && git -C "$copy/dsv3" add -A || exit 1
	if [ -z "${DSV3_SHARED:-}" ] && [ -d ../shared ]; then
		cp -r ../shared "$copy/shared"
	fi
	DSV3_CHECK_COPIED=1 "$copy/dsv3/tools/check.sh" "$@"
	rc=$?
	mkdir -p "$LOGS" && cp -r "$copy/dsv3/$LOGS/." "$LOGS/"
	rm -rf "$copy"
	exit $rc
}

if [ "${1:-}" = --stage ]; then
	"stage_$2"
	exit
fi

known=" $(printf '%s ' "${STAGES[@]%%|*}")"
for stage in "$@"; do
	[[ "$known" == *" $stage "* ]] || { echo "check.sh: no stage \"$stage\"; there are:$known" >&2 && exit 2; }
done
if [ "$(id -u)" -eq 0 ] && [ -z "${DSV3_CHECK_COPIED:-}" ] && ! runuser -u nobody -- test -x "$PWD"; then
	run_in_copy "$@"
fi

mkdir -p "$LOGS"
exec 8>"$LOGS/lock"
flock -n 8 || { echo "check.sh: another check runs in this tree" >&2 && exit 1; }
total_passed=0 total_failed=0 total_skipped=0
rows=() failures=() skips=()
for stage in "${STAGES[@]}"; do
	if [ $# -eq 0 ] || [[ " $* " == *" ${stage%%|*} "* ]]; then
		run_stage "${stage%%|*}" "${stage#*|}"
	fi
done

printf '\n%-9s %-7s %7s %7s %7s %8s\n' stage state passed failed skipped time
printf '%s\n' "${rows[@]}"
[ ${#skips[@]} -eq 0 ] || { printf '\nskipped:\n' && printf '  %s\n' "${skips[@]}"; }
# Once more, for those who see only the end.
for name in "${failures[@]}"; do
	printf '\n%s:\n' "$name"
	tools/failures.sh "$LOGS/$name.log" "$LOGS/tap/$name" 12 | sed 's/^/    /'
done
[ ${#failures[@]} -eq 0 ] || printf '\nfailed stages: %s (logs: %s/STAGE.log)\n' "${failures[*]}" "$LOGS"
printf '\n%d passed, %d failed' $total_passed $total_failed
[ $total_skipped -eq 0 ] || printf ', %d skipped' $total_skipped
echo
[ $total_failed -eq 0 ]
