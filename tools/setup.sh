#!/bin/bash
#
# setup.sh GROUP...
#	Installs the Debian packages that a group of targets needs and that are missing. Groups: build, model, test, lint,
#	coverage, deploy. Prints nothing when nothing is missing. Without root, or on a system without apt-get, says what to install
#	and fails.
#
# The PostgreSQL major version is that of PG_CONFIG where it works, and the distribution's own otherwise.
set -u

pg_major()
{
	local v
	v=$("${PG_CONFIG:-pg_config}" --version 2>/dev/null | sed -n 's/^PostgreSQL \([0-9]*\).*/\1/p')
	if [ -z "$v" ]; then
		# shellcheck disable=SC1091
		v=$(. /etc/os-release 2>/dev/null && case "${ID:-}-${VERSION_ID:-}" in
			debian-12) echo 15 ;;
			debian-13) echo 17 ;;
			ubuntu-22.04) echo 14 ;;
			ubuntu-24.04) echo 16 ;;
			*) echo 15 ;;
			esac)
	fi
	echo "${v:-15}"
}

major=$(pg_major)
wanted=()
for group in "$@"; do
	case "$group" in
	build)
		wanted+=(gcc make libc6-dev libpcre2-dev libjansson-dev libssl-dev libseccomp-dev)
		# A server that is not the distribution's brings its own headers.
		case "${PG_CONFIG:-pg_config}" in
		pg_config | /usr/bin/* | /usr/lib/postgresql/*) wanted+=("postgresql-$major" "postgresql-server-dev-$major") ;;
		esac
		;;
	model) wanted+=(python3 python3-numpy python3-pip ca-certificates) ;;
	test)
		wanted+=(clang libcmocka-dev perl libipc-run-perl "postgresql-$major-pgtap" libtap-parser-sourcehandler-pgtap-perl
			python3 python3-numpy xz-utils procps)
		;;
	lint) wanted+=(git clang clang-format clang-tidy cppcheck shellcheck python3 pyflakes3) ;;
	coverage) wanted+=(lcov) ;;
	deploy) wanted+=(prometheus prometheus-postgres-exporter chromium python3-matplotlib) ;;
	*)
		echo "setup.sh: no group \"$group\" (build, model, test, lint, coverage, deploy)" >&2
		exit 2
		;;
	esac
done

if ! command -v apt-get >/dev/null 2>&1; then
	echo "setup.sh: this system has no apt-get; install the counterparts of: ${wanted[*]}" >&2
	echo "Set DSV3_NO_SETUP=1 once that is done." >&2
	[ -n "${DSV3_NO_SETUP:-}" ]
	exit
fi

missing=()
for package in "${wanted[@]}"; do
	# Also true for a package that another one provides.
	dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ -n "${DSV3_NO_SETUP:-}" ]; then
	echo "not installed, and DSV3_NO_SETUP is set: ${missing[*]}"
	exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "setup.sh: missing packages. As root: apt-get install ${missing[*]}" >&2
	exit 1
fi

echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# The server package would make and start a cluster of its own; nobody asked for one.
no_cluster=/etc/postgresql-common/createcluster.d/dsv3-setup.conf
if [[ " ${missing[*]} " == *" postgresql-$major "* ]]; then
	mkdir -p "${no_cluster%/*}"
	echo "create_main_cluster = false" >"$no_cluster"
	trap 'rm -f "$no_cluster"' EXIT
fi
apt_get()
{
	apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" </dev/null
}
apt_get update || echo "setup.sh: apt-get update failed; going on with the lists that are there" >&2
if ! apt_get install -y --no-install-recommends "${missing[@]}"; then
	echo "setup.sh: apt-get could not install: ${missing[*]}" >&2
	echo "See what it says above; \"apt-get install ${missing[*]}\" by hand shows it again." >&2
	exit 1
fi
