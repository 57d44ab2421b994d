#!/bin/bash
#
# with_server.sh [-m MODEL] [-c 'name = value']... COMMAND...
#	Runs COMMAND while a throw-away PostgreSQL server runs that preloads the dsv3 of this tree (server.sh's copy of the server, not
#	what is installed), and stops and deletes the server afterwards, however the command ends. The command finds it through PGHOST, PGPORT, PGUSER and PGDATABASE; the database has the extension.
#	MODEL is a folder or a test model (test:...). With a model the command starts when dsv3_health() says ready. Exit status: the command's; 99 when there was no
#	server to run it on, whose log is then printed.
#
# The server listens on a Unix socket in a private folder only. Root's server runs as the packages' user, and a model that
# user cannot read is linked or copied into the server's folder. A server is fast, not safe: nothing is synced.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tools/lib.sh"

model='' settings=()
while getopts 'm:c:' option; do
	case "$option" in
	m) if [[ "$OPTARG" == test:* ]]; then model=$OPTARG; else model=$(realpath "$OPTARG") || exit 99; fi ;;
	c) settings+=("$OPTARG") ;;
	*) echo "usage: with_server.sh [-m MODEL] [-c 'name = value']... COMMAND..." >&2 && exit 2 ;;
	esac
done
shift $((OPTIND - 1))

bin=$("$top/test/server.sh" bindir) || exit 99
base=$(mktemp -d /tmp/dsv3-server.XXXXXX) || exit 99
chmod 711 "$base"
mkdir "$base/home"
[ "$(id -u)" -ne 0 ] || chown "$(server_user)" "$base/home"
log=$base/home/server.log

finish()
{
	as_server_user "$bin/pg_ctl" -D "$base/home/data" -m immediate -w -t 20 stop >/dev/null 2>&1
	rm -rf "$base"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

no_server()
{
	echo "with_server.sh: $1" >&2
	[ ! -e "$log" ] || tail -n 20 "$log" >&2
	exit 99
}

if [[ "$model" == /* ]]; then
	for file in "$model" "$model"/*; do
		if ! can_reach "$file"; then
			cp -rL --link "$model" "$base/model" 2>/dev/null || { rm -rf "$base/model" && cp -rL "$model" "$base/model"; } ||
				no_server "no room for a copy of $model"
			chmod -R a+rX "$base/model"
			model=$base/model
			break
		fi
	done
fi

as_server_user "$bin/initdb" -D "$base/home/data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync >"$base/initdb.log" 2>&1 ||
	{ cat "$base/initdb.log" >&2 && no_server "initdb failed"; }
{
	echo "listen_addresses = ''"
	echo "unix_socket_directories = '$base/home'"
	echo "port = 5432"
	echo "fsync = off"
	echo "shared_preload_libraries = 'dsv3'"
	echo "dsv3.model_path = '$model'"
	[ ${#settings[@]} -eq 0 ] || printf '%s\n' "${settings[@]}"
} >>"$base/home/data/postgresql.conf"

export PATH="$bin:$PATH" PGHOST=$base/home PGPORT=5432 PGUSER=postgres PGDATABASE=test
unset PGSERVICE PGOPTIONS
as_server_user "$bin/pg_ctl" -D "$base/home/data" -l "$log" -w -t 60 start >/dev/null 2>&1 || no_server "the server does not start"
{
	psql -Xqd postgres -c "CREATE DATABASE test" &&
		psql -Xqc "CREATE EXTENSION dsv3"
} || no_server "CREATE EXTENSION failed"
if [ -n "$model" ]; then
	for ((i = 0; i < 1200; i++)); do
		state=$(psql -XAtc "SELECT state FROM dsv3_health()")
		[ "$state" = ready ] && break
		[ "$state" = down ] && no_server "the engine is down"
		sleep 0.1
	done
	[ "$state" = ready ] || no_server "the engine is not ready after two minutes"
fi

"$@"
