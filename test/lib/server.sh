# shellcheck shell=bash disable=SC2034 # some variables are for the caller
# Building the extension for a server and letting that server find it without
# installing it there; ending the servers that a run started.  Needs common.sh.

# Debian's servers would compile everything a second time, for the just-in-time
# compiler, which nothing here makes use of.
build() {
	local tree=$1 pg_config=$2
	make -s -C "$tree" -j "$(nproc)" PG_CONFIG="$pg_config" with_llvm=no all
}

# Warnings are errors in checks only, never for those who build: their compiler may
# know new ones.  Those of the second line are due to the server's headers; clang
# meets headers and options that the server's configuration chose for gcc, too.
strict_flags=(
	-Wall -Wextra -Werror
	-Wno-unused-parameter -Wno-sign-compare
)
strict_clang_flags=(
	"${strict_flags[@]}"
	-Wno-ignored-attributes -Wno-ignored-optimization-argument -Wno-unknown-warning-option
)

server_has_setting() {
	"$1/postgres" --describe-config | cut -f 1 | grep -x "$2" >/dev/null
}

# stage TREE PG_CONFIG DEST: build and install the extension under DEST, write
# DEST/path.conf, with which the server finds it there, and DEST/temp.conf, which
# loads it too.  Sets staged_pg_config, the server to use.  There is no path.conf
# if that server finds the extension without.
stage() {
	local tree=$1 pg_config=$2 dest=$3 bindir path_setting
	bindir=$("$pg_config" --bindir)
	if server_has_setting "$bindir" extension_control_path; then
		path_setting="extension_control_path = '$dest$("$pg_config" --sharedir):\$system'"
	elif server_has_setting "$bindir" extension_destdir; then
		path_setting="extension_destdir = '$dest'"
	else
		# Up to version 17 only Debian's servers look for extensions outside
		# their own directories.  Any server can be moved as a whole, though.
		case $(dirname "$bindir") in
		/ | /usr | /usr/local) die "the server in $bindir shares its directories with others" ;;
		esac
		mkdir -p "$dest"
		cp -a "$(dirname "$bindir")" "$dest/server"
		pg_config=$dest/server/bin/pg_config
		build "$tree" "$pg_config"
		make -s -C "$tree" PG_CONFIG="$pg_config" with_llvm=no install >/dev/null
		staged_pg_config=$pg_config
		echo "shared_preload_libraries = 'dlock'" >"$dest/temp.conf"
		return
	fi
	build "$tree" "$pg_config"
	make -s -C "$tree" PG_CONFIG="$pg_config" with_llvm=no DESTDIR="$dest" install >/dev/null
	staged_pg_config=$pg_config
	cat >"$dest/path.conf" <<-END
		$path_setting
		dynamic_library_path = '$dest$("$pg_config" --pkglibdir):\$libdir'
	END
	{
		cat "$dest/path.conf"
		echo "shared_preload_libraries = 'dlock'"
	} >"$dest/temp.conf"
}

# The processes of servers whose data directories are below a directory.
servers_below() {
	local proc
	for proc in /proc/[0-9]*; do
		case $(readlink "$proc/exe" 2>/dev/null) in
		*/postgres | */postgres' (deleted)') ;;
		*) continue ;;
		esac
		case $(readlink "$proc/cwd" 2>/dev/null) in
		"$1"/*) echo "${proc#/proc/}" ;;
		esac
	done
}

# End the servers below a directory, by process id.  Asked first, so that they
# remove their shared memory; a stopped process does not listen, so killed then.
end_servers_below() {
	local attempt pids
	for attempt in $(seq 50); do
		mapfile -t pids < <(servers_below "$1")
		[ ${#pids[@]} -gt 0 ] || return 0
		[ "$attempt" != 1 ] || kill -QUIT "${pids[@]}" 2>/dev/null || true
		[ "$attempt" != 30 ] || kill -KILL "${pids[@]}" 2>/dev/null || true
		sleep 0.1
	done
	return 1
}
