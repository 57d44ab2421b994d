#!/bin/bash
#
# torture.sh SOURCE [TEST...]
#	PostgreSQL's own regression tests (src/test/regress of SOURCE, an unpacked source tree of the server's major version), three
#	times: without dsv3, with dsv3, and with a dsv3 built to treat every function as a slow one and to read ahead for all of
#	them (src/pg/batch_torture.c). With TESTs only these run, after the tests they build on.
#
#	With dsv3 loaded all output must be the same. Under torture plans look different, leaky functions print their notices in
#	another order, and errors in rows that nobody has asked for yet may come first; what differs beyond that, and beyond the
#	list in torture.known, is printed. Exit status 0: nothing is.
#
# The tests' own library is built from SOURCE. Everything is below build/torture.
set -eu
cd "$(dirname "$0")/../.."
. tools/lib.sh

source=$(realpath "${1:?usage: torture.sh SOURCE [TEST...]}")/src/test/regress
shift
PG_CONFIG=${PG_CONFIG:-pg_config}
MAKE=${MAKE:-make}
unset MAKEFLAGS MFLAGS MAKELEVEL
work=$PWD/build/torture
bindir=$("$PG_CONFIG" --bindir)
pg_regress=$(dirname "$(dirname "$("$PG_CONFIG" --pgxs)")")/test/regress/pg_regress
[ -f "$source/parallel_schedule" ] || { echo "torture.sh: no regression tests in $source" >&2 && exit 2; }

as_user()
{
	if [ "$(id -u)" -eq 0 ]; then
		runuser -u "$(server_user)" -- "$@"
	else
		"$@"
	fi
}

# The library for torture, in a copy of the tree so that the tree's own objects stay.
mkdir -p "$work/tree" "$work/lib"
cp -ru Makefile dsv3.control src sql test tools bench "$work/tree"
find "$work/tree/src" -name '*.o' -newer "$work/lib/torture.so" -delete 2>/dev/null || true
$MAKE -s -C "$work/tree" dsv3.so PG_CONFIG="$PG_CONFIG" COPT=-DDSV3_BATCH_TORTURE with_llvm=no >/dev/null
cp "$work/tree/dsv3.so" "$work/lib/torture.so"
$MAKE -s dsv3.so PG_CONFIG="$PG_CONFIG" >/dev/null
cp dsv3.so "$work/lib/loaded.so"
for file in "$source/regress.c" "$source/../../../contrib/spi/autoinc.c" "$source/../../../contrib/spi/refint.c"; do
	gcc -shared -fPIC -O1 -I"$("$PG_CONFIG" --includedir-server)" -o "$work/lib/$(basename "$file" .c).so" "$file"
done

run()
{
	local name=$1 out=$work/$1 dir
	shift
	rm -rf "$out" && mkdir -p "$out"
	for dir in sql expected data input output parallel_schedule resultmap; do
		[ ! -e "$source/$dir" ] || cp -r "$source/$dir" "$out"
	done
	{
		[ "$name" = base ] || echo "shared_preload_libraries = '$work/lib/$name.so'"
		[ "$name" != torture ] || echo "dsv3.batch_window = 16"
		echo "max_prepared_transactions = 2"
		echo "fsync = off"
	} >"$out/extra.conf"
	[ "$(id -u)" -ne 0 ] || chown -R "$(server_user)" "$out"
	(
		cd "$out"
		if [ $# -eq 0 ]; then
			set -- --schedule=parallel_schedule
		else
			set -- test_setup create_index "$@"
		fi
		as_user env PG_LIBDIR="$work/lib" PG_DLSUFFIX=.so "$pg_regress" --bindir="$bindir" --inputdir=. --outputdir=. --dlpath="$work/lib" \
			--temp-instance="$out/instance" --temp-config="$out/extra.conf" --max-connections=4 "$@" >log.txt 2>&1
	) || true
	grep -c '\.\.\. ok\|^ok ' "$out/log.txt" | sed "s/^/$name: ok /"
	rm -rf "$out/instance"
}

for name in ${DSV3_TORTURE_RUNS:-base loaded torture}; do
	run "$name" "$@"
done
/usr/bin/python3 test/batch/torture.py "$work" test/batch/torture.known
