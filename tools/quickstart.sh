#!/bin/bash
#
# quickstart.sh start|stop|remove
#	start: from a checkout to a running private PostgreSQL with dsv3, a model, and the answers of quickstart.sql. Every
#	stage can be killed and the whole run again: what is made is made beside its place and renamed, the rest is looked
#	at, not assumed. A second run finds everything in place and takes seconds.
#	stop: stop that server; nothing to stop is fine. remove: stop it and delete its data (`make clean` does this).
#
# As root it installs missing packages and runs the server as the packages' user. As another user it needs what it needs
# installed already, and runs the server as that user.
#
# The server's folder is build/quickstart, or, when the checkout is where the server's user cannot go (/root), a folder
# under /var/lib/dsv3-quickstart; there the model is linked or copied as well. The server listens on a Unix socket in a
# folder only its user can enter, and on no network address, so that it meets no other server.
#
# Environment: PG_CONFIG chooses the server; MODEL=/path/to/model uses that model instead of making one.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/lib.sh

export MAKE=${MAKE:-make} PG_CONFIG=${PG_CONFIG:-pg_config}
unset MAKEFLAGS MFLAGS MAKELEVEL
LOGS=build/quickstart-log
PORT=54320
DATABASE=demo
READY_LIMIT=300 # seconds a model may take to open

if [ "$(id -u)" -eq 0 ] && ! runuser -u nobody -- test -x "$PWD"; then
	base=/var/lib/dsv3-quickstart/$(pwd | cksum | cut -d' ' -f1)
else
	base=$PWD/build/quickstart
fi
data=$base/data

# --- stages -----------------------------------------------------------------------------------------------------------

stage=none
begin()
{
	stage=$1
	stage_start=$SECONDS
	log=$LOGS/$stage.log
	: >"$log" # what an earlier run left there explains nothing
	printf '[%4d s] %-9s %s ... ' $SECONDS "$stage" "$2"
}

done_with()
{
	printf '%s (%d s)\n' "${1:-done}" $((SECONDS - stage_start))
}

# fail WHAT_TO_DO: the stage, the end of its log, and the way out.
fail()
{
	{
		printf 'FAILED\n\n'
		echo "quickstart: stage \"$stage\" failed."
		if [ -s "$log" ]; then
			echo "The last lines of $log:"
			tail -n 15 "$log" | sed 's/^/    /'
		fi
		echo "What to do: $1"
		echo "Then run \"make quickstart\" again; it goes on from here."
		[ "$stage" != engine ] && [ "$stage" != answers ] || echo "The server is up: $(connect) ($base/server.log; make quickstart-stop)"
	} >&3
	exit 1
}

connect()
{
	echo "${SUDO_USER:+sudo }psql -h $sockets -p $PORT -U postgres $DATABASE"
}

psql_demo()
{
	PGOPTIONS='' as_server_user "$(pg_bindir)/psql" -X -q -h "$sockets" -p $PORT -U postgres -d "$@"
}

running()
{
	[ -e "$data/postmaster.pid" ] && as_server_user "$(pg_bindir)/pg_ctl" -D "$data" status >/dev/null 2>&1
}

stop_server()
{
	as_server_user "$(pg_bindir)/pg_ctl" -D "$data" -m fast -w -t 60 stop
}

packages()
{
	begin packages "compiler, PostgreSQL, libraries, Python"
	tools/setup.sh build model >"$log" 2>&1 ||
		fail "see above; without root, have the packages installed, for example by: sudo tools/setup.sh build model"
	if [ -s "$log" ]; then done_with installed; else done_with "all there"; fi
}

# Whether the folders of the server hold this version of the library, the scripts and the engine.
installed()
{
	local share
	share=$("$PG_CONFIG" --sharedir)/extension
	cmp -s dsv3.control "$share/dsv3.control" && [ -r "$("$PG_CONFIG" --pkglibdir)/dsv3.so" ] &&
		[ -x "$(pg_bindir)/dsv3" ] && "$(pg_bindir)/dsv3" --version >/dev/null 2>&1
}

build()
{
	local version
	version=$("$PG_CONFIG" --version 2>/dev/null)
	begin build "the extension and the engine for ${version:-PostgreSQL}"
	[ -n "$version" ] || fail "PG_CONFIG=$PG_CONFIG is no pg_config that runs; name one, or leave it out for the server of the packages"
	if [ ! -w "$("$PG_CONFIG" --pkglibdir)" ]; then
		installed || fail "the server's folders are root's and hold no dsv3; as root: make install"
		done_with "not ours to write; using the dsv3 installed there"
		return
	fi
	$MAKE -j"$(nproc)" all >"$log" 2>&1 || fail "a compiler error is a defect of dsv3 or of its libraries; report it with that log"
	$MAKE install >>"$log" 2>&1 || fail "look at the folder the log names: it must be writable and have room"
	done_with
}

model()
{
	local made
	begin model "the demo model (downloaded and converted once)"
	if [ -n "${MODEL:-}" ]; then
		model_dir=$(realpath "$MODEL" 2>/dev/null)
		[ -r "$model_dir/config.json" ] || fail "MODEL=$MODEL holds no readable config.json; name the folder of a checkpoint"
		done_with "using $model_dir"
	elif PIP_RETRIES=1 PIP_DEFAULT_TIMEOUT=30 $MAKE demo-model >"$log" 2>&1; then
		model_dir=$PWD/build/demo-model
		made=$(grep -c . "$log")
		if [ "$made" -gt 1 ]; then done_with made; else done_with "all there"; fi
	else
		echo "not to be had:"
		grep -v '^make' "$log" | tail -n 3 | cut -c 1-200 | sed 's/^/           /'
		begin tiny "the small random model instead; its answers are noise"
		$MAKE tiny-model >"$log" 2>&1 || fail "python3 with numpy must be installed (python3-numpy)"
		model_dir=$PWD/build/tiny-model
		done_with
	fi
}

# sizes FOLDER: name, size and time of each file.
sizes()
{
	(cd "$1" 2>/dev/null && stat -L -c '%n %s %Y' ./*)
}

# A folder for the server that its user owns, and the model where that user can read it.
place()
{
	local file name copy
	begin place "a folder for the server: $base"
	{
		mkdir -p "$base" || fail "make room, or free that path"
		chmod 755 "$base"
		[ "$(id -u)" -ne 0 ] || chown "$(server_user)" "$base" || fail "user $(server_user) must exist"
		for file in "$model_dir" "$model_dir"/*; do
			can_reach "$file" && continue
			name=$(basename "$model_dir")
			copy=$base/$name
			if [ "$(sizes "$copy")" != "$(sizes "$model_dir")" ]; then
				rm -rf "$copy" "$copy.new"
				# Links where the file system allows: a model may be large.
				cp -rL --preserve=timestamps --link "$model_dir" "$copy.new" 2>/dev/null ||
					{ rm -rf "$copy.new" && cp -rL --preserve=timestamps "$model_dir" "$copy.new"; } ||
					fail "make room for a copy of the model, which user $(server_user) cannot read in $model_dir"
				chmod -R a+rX "$copy.new"
				mv "$copy.new" "$copy"
			fi
			model_dir=$copy
			break
		done
	} >"$log" 2>&1
	# A socket's path has room for 107 bytes.
	sockets=$base/socket
	if [ ${#sockets} -gt 90 ]; then
		sockets=$(cat "$base/sockets" 2>/dev/null)
		[ -d "$sockets" ] || sockets=$(as_server_user mktemp -d /tmp/dsv3-quickstart.XXXXXX)
		echo "$sockets" >"$base/sockets"
	else
		as_server_user mkdir -p -m 700 "$sockets"
	fi
	done_with
}

# What a running server must have been started with to be left running.
fingerprint()
{
	cksum "$("$PG_CONFIG" --pkglibdir)/dsv3.so" "$(pg_bindir)/dsv3" "$base/quickstart.conf"
	sizes "$model_dir"
}

server()
{
	local how=started
	begin server "a private $("$PG_CONFIG" --version)"
	if [ ! -e "$data/PG_VERSION" ] || [ "$(cat "$data/PG_VERSION")" != "$("$PG_CONFIG" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')" ]; then
		running && stop_server >"$log" 2>&1
		rm -rf "$data" "$data.new"
		as_server_user "$(pg_bindir)/initdb" -D "$data.new" -U postgres -A trust -E UTF8 --locale=C.UTF-8 >"$log" 2>&1 ||
			fail "see initdb's words above; it needs about 50 MB in $base"
		echo "include '$base/quickstart.conf'" >>"$data.new/postgresql.conf"
		mv "$data.new" "$data"
	fi
	cat >"$base/quickstart.conf.new" <<-EOF
		# Written by "make quickstart" each time it runs.
		listen_addresses = ''
		unix_socket_directories = '$sockets'
		port = $PORT
		shared_preload_libraries = 'dsv3'
		dsv3.model_path = '$model_dir'
	EOF
	chmod 644 "$base/quickstart.conf.new"
	mv "$base/quickstart.conf.new" "$base/quickstart.conf"
	if running; then
		if [ "$(fingerprint)" = "$(cat "$base/fingerprint" 2>/dev/null)" ]; then
			done_with "running already"
			return
		fi
		stop_server >"$log" 2>&1 || fail "the server that runs in $data does not stop; look at $base/server.log"
		how=restarted
	fi
	rm -f "$base/fingerprint"
	# Neither the lock (9) nor the caller's standard error (3) may live on in the server.
	if ! as_server_user "$(pg_bindir)/pg_ctl" -D "$data" -l "$base/server.log" -w -t 60 start >"$log" 2>&1 3>&- 9>&-; then
		tail -n 12 "$base/server.log" >>"$log"
		fail "the server's own log above says why it did not start"
	fi
	fingerprint >"$base/fingerprint"
	done_with $how
}

# The database, the extension as its installed script makes it, and an engine that answers.
engine()
{
	local scripts state=none waited=$SECONDS
	begin engine "the extension, and the model open"
	scripts=$(cat "$("$PG_CONFIG" --sharedir)"/extension/dsv3--*.sql 2>/dev/null | cksum)
	{
		[ "$(psql_demo postgres -Atc "SELECT 1 FROM pg_database WHERE datname = '$DATABASE'")" = 1 ] ||
			psql_demo postgres -c "CREATE DATABASE $DATABASE"
		[ "$scripts" = "$(cat "$base/scripts" 2>/dev/null)" ] ||
			psql_demo $DATABASE -c "DROP EXTENSION IF EXISTS dsv3 CASCADE"
		psql_demo $DATABASE -v ON_ERROR_STOP=1 -c "SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS dsv3"
	} >"$log" 2>&1 || fail "CREATE EXTENSION must work on a fresh install; report it with that log"
	echo "$scripts" >"$base/scripts"
	while [ $((SECONDS - waited)) -lt $READY_LIMIT ]; do
		state=$(psql_demo $DATABASE -Atc "SELECT state FROM dsv3_health()" 2>>"$log")
		[ "$state" = ready ] || [ "$state" = down ] && break
		sleep 0.3
	done
	if [ "$state" != ready ]; then
		{
			psql_demo $DATABASE -x -c "SELECT * FROM dsv3_health()"
			tail -n 10 "$base/server.log"
		} >>"$log" 2>&1
		fail "the engine's last error above says what is wrong with the model, the memory or the executable"
	fi
	done_with
}

answers()
{
	begin answers "tools/quickstart.sql on a table of tickets and mails"
	psql_demo $DATABASE -v ON_ERROR_STOP=1 -f - <tools/quickstart.sql >"$log" 2>&1 ||
		fail "each statement of tools/quickstart.sql must work; try the failing one by hand, and look at $base/server.log"
	done_with
	echo
	cat "$log"
	if [ "$model_dir" = "$PWD/build/demo-model" ] || [ "$model_dir" = "$base/demo-model" ]; then
		echo "The demo model has 135 million parameters: it shows that everything works, not what a large model can do."
		echo
	fi
}

start()
{
	mkdir -p "$LOGS" || exit 1
	exec 3>&2 9>"$LOGS/lock"
	flock -n 9 || { echo "quickstart: another one runs in this tree; wait for it" >&2 && exit 1; }
	trap 'printf "\nquickstart: interrupted in stage \"%s\"; run it again to go on\n" "$stage" >&2; exit 130' INT TERM
	packages
	build
	model
	place
	server
	engine
	answers
	cat <<-EOF
		dsv3 is up after $SECONDS s.
		  connect      $(connect)
		  then try     SELECT dsv3_generate('Write one friendly sentence about the sea.', max_tokens => 40);
		  model        $model_dir
		  server log   $base/server.log
		  stop         make quickstart-stop
	EOF
}

case "${1:-}" in
start) start ;;
stop)
	if [ -e "$data/postmaster.pid" ] && running; then
		stop_server >/dev/null || { echo "quickstart: the server in $data does not stop" >&2 && exit 1; }
		echo "quickstart: stopped"
	else
		echo "quickstart: not running"
	fi
	;;
remove)
	[ -d "$base" ] || exit 0
	if running; then stop_server >/dev/null || exit 1; fi
	sockets=$(cat "$base/sockets" 2>/dev/null) && [[ "$sockets" == /tmp/dsv3-quickstart.* ]] && rm -rf "$sockets"
	rm -rf "$base"
	;;
*)
	echo "usage: quickstart.sh start|stop|remove" >&2
	exit 2
	;;
esac
