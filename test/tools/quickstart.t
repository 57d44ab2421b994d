#!/bin/bash
#
# quickstart.t
#	What quickstart says when it cannot go on, as far as that changes nothing on the machine.
set -u
cd "$(dirname "$0")/../.." || exit 1

said=$(PG_CONFIG=/nowhere/pg_config tools/quickstart.sh start 2>&1)
rc=$?
[ $rc -eq 1 ] && grep -qF 'PG_CONFIG=/nowhere/pg_config is no pg_config that runs' <<<"$said" || printf 'not '
echo "ok 1 - a PG_CONFIG that is not there"
printf '# %s\n' "${said//$'\n'/$'\n# '}"
echo "1..1"
