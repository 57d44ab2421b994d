# shellcheck shell=bash
#
# lib.sh
#	What the shell scripts share: which user runs PostgreSQL, what that user can reach, where the server's programs are.
#	Sourced, from the top of the tree.

# The user that runs PostgreSQL: oneself, or for root (whom PostgreSQL refuses) the packages' own.
server_user()
{
	if [ "$(id -u)" -eq 0 ]; then
		echo "${DSV3_SERVER_USER:-postgres}"
	else
		id -un
	fi
}

# as_server_user COMMAND...: run it as that user, in a folder the user can be in.
as_server_user()
{
	if [ "$(id -u)" -eq 0 ]; then
		(cd / && exec runuser -u "$(server_user)" -- "$@")
	else
		"$@"
	fi
}

# can_reach FILE: whether the server's user can read it; a folder must also be searchable.
can_reach()
{
	if [ -d "$1" ]; then
		as_server_user test -r "$1" -a -x "$1"
	else
		as_server_user test -r "$1"
	fi
}

# The folder of the server's programs.
pg_bindir()
{
	"${PG_CONFIG:-pg_config}" --bindir
}
