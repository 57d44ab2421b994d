#!/bin/bash
#
# server.sh regress|isolation|pgtap|tap [TEST...]
# server.sh bindir
#	The tests that need PostgreSQL, on servers of their own: none of them touches an installed or a running one. "bindir"
#	makes the server's files and prints where its programs are.
#
# The library and the engine are installed into build/server, together with a copy of the server's programs and links to
# its other files. PostgreSQL finds its files relative to its programs, so this copy is a complete server of the version
# that PG_CONFIG names; PG_REGRESS and the TAP modules come with that version. Everything is written under build/server
# and build/server-tests, and runs as an unprivileged user: oneself, or for root the one that lib.sh names.
set -eu
cd "$(dirname "$0")/.."
. tools/lib.sh

suite=${1:?suite}
shift
PG_CONFIG=${PG_CONFIG:-pg_config}
MAKE=${MAKE:-make}
unset MAKEFLAGS MFLAGS MAKELEVEL
root=$PWD/build/server
bindir=$("$PG_CONFIG" --bindir)
libdir=$("$PG_CONFIG" --pkglibdir)
sharedir=$("$PG_CONFIG" --sharedir)
pgxs=$(dirname "$(dirname "$("$PG_CONFIG" --pgxs)")") # .../pgxs/src
out=$PWD/build/server-tests/$suite

as_user()
{
	if [ "$(id -u)" -eq 0 ]; then
		runuser -u "$(server_user)" -- "$@"
	else
		"$@"
	fi
}

# The copy is made again when the server or what is installed into it has changed.
make_server()
{
	local stamp
	$MAKE -s all test-engines PG_CONFIG="$PG_CONFIG" >/dev/null
	stamp=$("$bindir/postgres" --version && stat -c '%n %Y %s' "$bindir/postgres" dsv3.so build/engine/dsv3 dsv3.control sql/dsv3--*.sql)
	if [ "$stamp" = "$(cat "$root/stamp" 2>/dev/null)" ]; then
		return
	fi
	rm -rf "$root"
	mkdir -p "$root$(dirname "$libdir")" "$root$(dirname "$sharedir")" "$root$(dirname "$bindir")"
	cp -r "$bindir" "$root$bindir"
	cp -rs "$libdir/." "$root$libdir"
	cp -rs "$sharedir/." "$root$sharedir"
	# A dsv3 that the machine has installed must not be written through the links.
	rm -f "$root$libdir"/dsv3.so "$root$bindir"/dsv3 "$root$sharedir"/extension/dsv3*
	$MAKE -s install PG_CONFIG="$PG_CONFIG" DESTDIR="$root" with_llvm=no >/dev/null
	echo "$stamp" >"$root/stamp"
}

# A folder the tests may write to; pg_regress and prove put all they make there.
make_out()
{
	rm -rf "$out"
	mkdir -p "$out"
	[ "$(id -u)" -ne 0 ] || chown "$(server_user)" "$out"
}

config()
{
	cat >"$out/postgresql.conf" <<-END
		shared_preload_libraries = 'dsv3'
		dsv3.model_path = 'test:token_us=200'
		dsv3.engine_restart_delay = 50ms
		dsv3.engine_restart_delay_max = 200ms
		max_connections = 50
		log_line_prefix = '%m [%p] %q%a '
	END
}

# Tests of pg_regress and of pg_isolation_regress: a server of its own, made and ended by the program.
run_regress()
{
	local program=$1 input=$2
	shift 2
	config
	if ! as_user env -u PGHOST -u PGPORT -u PGDATABASE -u PGUSER PATH="$root$bindir:$PATH" \
		"$program" --bindir="$root$bindir" --inputdir="$input" --outputdir="$out" --temp-instance="$out/instance" \
		--temp-config="$out/postgresql.conf" --dbname=dsv3_test "$@"; then
		cat "$out/regression.diffs" 2>/dev/null || true
		tail -n 30 "$out/log/postmaster.log" 2>/dev/null || true
		return 1
	fi
}

run_pgtap()
{
	local data=$out/data socket rc=0
	if [ ! -f "$root$sharedir/extension/pgtap.control" ] || ! command -v pg_prove >/dev/null; then
		echo "SKIP: pgTAP is not installed for this server"
		return
	fi
	config
	socket=$(as_user mktemp -d /tmp/dsv3-pgtap.XXXXXX)
	as_user "$root$bindir/initdb" -D "$data" -A trust -N -U postgres >"$out/initdb.log"
	{
		cat "$out/postgresql.conf"
		echo "listen_addresses = ''"
		echo "unix_socket_directories = '$socket'"
	} >>"$data/postgresql.conf"
	as_user "$root$bindir/pg_ctl" -D "$data" -l "$out/log" -w start >/dev/null
	as_user env PATH="$root$bindir:$PATH" pg_prove -h "$socket" -U postgres -d postgres "$@" || rc=1
	as_user "$root$bindir/pg_ctl" -D "$data" -m immediate -w stop >/dev/null
	rm -rf "$socket"
	[ $rc -eq 0 ] || tail -n 30 "$out/log"
	return $rc
}

run_tap()
{
	local file files=()
	for file in "$@"; do
		files+=("$PWD/$file")
	done
	(
		cd "$out"
		as_user env -u PGHOST -u PGPORT -u PGDATABASE -u PGUSER PATH="$root$bindir:$PATH" \
			PERL5LIB="$pgxs/test/perl:$OLDPWD/test/t:${PERL5LIB:-}" PG_REGRESS="$pgxs/test/regress/pg_regress" \
			TESTDIR="$out" TESTDATADIR="$out/tmp_check" TESTLOGDIR="$out/tmp_check/log" DSV3_TOP="$OLDPWD" \
			DSV3_BIN="$root$bindir" DSV3_HOSTILE="$OLDPWD/build/engine/test/dsv3-hostile" prove --timer "${files[@]}"
	)
}

make_server
if [ "$suite" = bindir ]; then
	echo "$root$bindir"
	exit
fi
make_out
case $suite in
	regress) run_regress "$pgxs/test/regress/pg_regress" "$PWD" "$@" ;;
	isolation) run_regress "$pgxs/test/isolation/pg_isolation_regress" "$PWD/test" "$@" ;;
	pgtap) run_pgtap "$@" ;;
	tap) run_tap "$@" ;;
	*) echo "server.sh: no suite \"$suite\"" >&2 && exit 2 ;;
esac
