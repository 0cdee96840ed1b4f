# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables of measure
# Private servers in $place/data, named by a word, reached through $sockets.
# To be sourced by measure.

server_port() {
	case $1 in
	main) echo 61001 ;;
	held) echo 61002 ;;
	million) echo 61003 ;;
	crowd) echo 61004 ;;
	esac
}

server_names() {
	echo main held million crowd
}

server_exists() {
	[ -d "$place/data/$1" ]
}

# server_make NAME CONF...: each CONF is lines of configuration.
server_make() {
	local name=$1
	shift
	"$bindir/initdb" -D "$place/data/$name" -U bench -A trust -E UTF8 --locale=C \
		--no-instructions >"$place/log/initdb.$name"
	{
		echo "listen_addresses = ''"
		echo "unix_socket_directories = '$sockets'"
		echo "port = $(server_port "$name")"
		printf '%s\n' "$@"
	} >>"$place/data/$name/postgresql.conf"
	server_start "$name"
	server_psql "$name" postgres -c 'CREATE DATABASE bench'
}

# server_start NAME [OPTION...]: what is already running runs on.
server_start() {
	local name=$1
	shift
	"$bindir/pg_ctl" -D "$place/data/$name" status >/dev/null ||
		"$bindir/pg_ctl" -D "$place/data/$name" -l "$place/log/$name" -s -w -t 600 -o "$*" start >&2 || {
		tail -n 5 "$place/log/$name" >&2
		die "the server \"$name\" does not start"
	}
}

server_stop() {
	"$bindir/pg_ctl" -D "$place/data/$1" -s -w -m fast stop >&2
}

servers_stop() {
	local name
	for name in $(server_names); do
		! server_exists "$name" || server_stop "$name" 2>/dev/null || true
	done
}

# Wait until a server answers, so many seconds.
server_wait() {
	local attempt
	for ((attempt = 0; attempt < $2 * 10; attempt++)); do
		! server_sql "$1" -c 'SELECT 1' >/dev/null 2>&1 || return 0
		sleep 0.1
	done
	return 1
}

# server_psql NAME DATABASE OPTION...
server_psql() {
	local name=$1 database=$2
	shift 2
	"$bindir/psql" -h "$sockets" -p "$(server_port "$name")" -U bench -d "$database" \
		-X -q -A -t -v ON_ERROR_STOP=1 "$@"
}

# server_sql NAME OPTION...: in the database of the benchmark.
server_sql() {
	local name=$1
	shift
	server_psql "$name" bench "$@"
}

servers_checkpoint() {
	local name
	for name in $(server_names); do
		! server_exists "$name" || server_sql "$name" -c CHECKPOINT
	done
}

# Write WAL and let a checkpoint recycle the segments, so that the runs find
# some to be re-used: to create one takes longer.
server_fill_wal() {
	server_sql "$1" -c "
		SELECT count(pg_logical_emit_message(false, 'bench', repeat('x', 16 * 1024 * 1024)))
		  FROM generate_series(1, 60)" >/dev/null
	server_sql "$1" -c CHECKPOINT
}
