#!/bin/bash
#
# failures.t
#	What tools/failures.sh finds in the output of failed stages: each case writes a log and the raw output of a test program,
#	and names what must be found and what must not.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n=0

ok()
{
	local rc=$1
	n=$((n + 1))
	[ "$rc" -eq 0 ] || printf 'not '
	echo "ok $n - $2"
	[ "$rc" -eq 0 ] || sed 's/^/# /' "$work/found"
}

find_failures()
{
	tools/failures.sh "$work/log" "$work/tap" "$@" >"$work/found"
}

says()
{
	grep -qF -- "$1" "$work/found"
	ok $? "says: $1"
}

says_not()
{
	! grep -qF -- "$1" "$work/found"
	ok $? "says not: $1"
}

lines()
{
	[ "$(wc -l <"$work/found")" -le "$1" ]
	ok $? "at most $1 lines"
}

mkdir "$work/tap"

# cmocka, whose messages prove does not show
printf '%s\n' 'build/unit/test_a ... ' 'Failed 1/3 subtests' 'make: *** [test.mk:13: check-unit] Error 1' >"$work/log"
printf '%s\n' 'ok 1 - good' 'not ok 2 - bad' '# 3 != 4' '# a.c:7: error: Failure!' 'ok 3 - fine' '# not ok - tests' '1..3' >"$work/tap/test_a"
find_failures
says 'test_a: not ok 2 - bad'
says '3 != 4'
says 'a.c:7: error: Failure!'
says_not 'fine'
says_not 'not ok - tests'

# Perl, which tells through standard error
printf '%s\n' '# some note' '' "#   Failed test 'the answer'" '#   at t/1.pl line 3.' "#          got: 'x'" 't/1.pl ..' >"$work/log"
printf '%s\n' 'ok 1' 'not ok 2 - the answer' >"$work/tap/test_a"
find_failures
says '1.pl line 3'
says "got: 'x'"
says_not 'some note'

# pg_regress, old and new, with a difference longer than all that may be printed
rm "$work/tap/test_a"
{
	printf '%s\n' 'test api ... ok  3 ms' 'test nulls ... FAILED  4 ms' 'not ok 3 - chat 9 ms' 'diff -U3 /a/nulls.out /b/nulls.out' '-wanted' '+got'
	seq -f '+line %g' 10
	echo 'the server said something'
	printf '%s\n' 'diff -U3 /a/chat.out /b/chat.out'
	seq -f '+line %g' 500
} >"$work/log"
find_failures
says 'test nulls ... FAILED'
says 'not ok 3 - chat'
says '-wanted'
says_not 'test api'
says_not 'the server said'
lines 45

# many failures
seq -f 'not ok %g - bad' 500 >"$work/log"
find_failures
says '... 440 more lines, see '
lines 61
find_failures 12
lines 13

# a compiler, a sanitizer, lint
printf '%s\n' 'gcc -c a.c' 'a.c:3:1: error: expected' '==7==ERROR: LeakSanitizer: detected' 'Direct leak' '    #1 0x1 in there a.c:5' 'tidy      FAILED   3 s' \
	'    a.c:9: warning: shadow' 'cppcheck  ok       1 s' >"$work/log"
find_failures
says 'a.c:3:1: error: expected'
says 'in there a.c:5'
says 'tidy      FAILED'
says 'a.c:9: warning: shadow'
says_not 'gcc -c'

# nothing that is known
{
	seq -f 'line %g' 50
	echo 'make: *** [Makefile:1: x] Error 1'
} >"$work/log"
find_failures
says 'line 50'
says_not 'line 30'

echo "1..$n"
