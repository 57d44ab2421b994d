#!/bin/bash
#
# failures.sh LOG TAPDIR [LINES]
#	What failed in a stage of check.sh, in at most LINES (60) lines: the names of the failed tests and what they say. LOG is the stage's
#	output; TAPDIR has the raw output of its test programs, which prove keeps to itself.
#
# Taken are: from TAPDIR each "not ok" with the comment lines after it (cmocka's messages); from LOG the comments of Perl's
# tests, which go past TAPDIR, the failed tests of pg_regress and the first lines of each difference, compilers' and sanitizers'
# errors, and what lint found. When nothing of that kind is there, the end of LOG.
set -u
log=$1 tap=$2 lines=${3:-60}

from_tap()
{
	find "$tap" -type f 2>/dev/null | sort | while IFS= read -r file; do
		awk -v name="$(basename "$file")" '
			/^# not ok - tests$/ { next } # the sum of a cmocka program
			/^ *not ok/ { sub(/^ */, ""); print name ": " $0; left = 6; next }
			/^ *#/ && left-- > 0 { sub(/^ */, ""); print "    " $0; next }
			{ left = 0 }' "$file"
	done
}

from_log()
{
	awk '
		/^ *#  +Failed test/ { left = 8 }
		/^ *#/ && left > 0 { left--; print; next }
		{ left = 0 }
		/^not ok|FAILED/ { print; lint = 20; next }
		/^    / && lint > 0 { lint--; print; next }
		{ lint = 0 }
		/^diff -U/ { diff = 25 }
		diff > 0 && /^([-+ @\\]|diff )/ { diff--; print; next }
		{ diff = 0 }
		/ERROR: (Address|Leak|Thread)Sanitizer/ { stack = 14 }
		stack > 0 { stack--; print; next }
		/: (fatal )?error: |: undefined reference|: runtime error: |^SUMMARY: / { print }
		/^make.*\*\*\*|^[a-z_]+\.(sh|py): / { print }' "$log"
}

{
	from_tap
	from_log
} | cut -c 1-200 | awk -v max="$lines" -v log_file="$log" '
	NR <= max { print }
	!/^make/ { told = 1 }
	END {
		if (NR > max) print "... " NR - max " more lines, see " log_file
		exit !told
	}' || tail -n 15 "$log" | cut -c 1-200
