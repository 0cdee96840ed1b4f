# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables of measure
# The group "clients": tasks of one program that take and release leases, by the programs of
# clients/, the libraries for Node, Python, Go, Java and C, and what npm has put beside the first.  To be
# sourced by measure; needs $place, $sockets and progress.

# clients_run SYNC MEASUREMENT PEER OPTION...: without npm there may be Debian's driver.
clients_run() {
	local sync=$1 program=(node "$place/clients/main.js")
	shift
	case $2 in
	threads_* | asyncio_*) program=(/usr/bin/python3 "$place/clients/main.py") ;;
	go_*) program=("$place/clients/main") ;;
	c_*) program=("$place/clients/main_c") ;;
	java_*) program=(java -cp "$place/clients/java:/usr/share/java/postgresql.jar" Main) ;;
	esac
	PGOPTIONS="-c synchronous_commit=$sync" PGHOST=$sockets PGPORT=$(server_port main) PGUSER=bench PGDATABASE=bench \
		REDIS="$(cat "$place/data/redis_none.address" 2>/dev/null || true)" NODE_PATH=/usr/share/nodejs \
		PYTHONPATH=$place/clients/python "${program[@]}" "$@"
}

# Those that are selected.
clients_peers() {
	printf '%s\n' "${variants[@]}" | sed -n 's/.* clients@\([a-z_]*\)\..*/\1/p' | sort -u
}

setup_clients() {
	local peer
	for peer in $(clients_peers); do
		clients_run off version "$peer" >"$place/log/clients.$peer" 2>&1 ||
			leave_out "$peer" "its library is not here"
	done
}

clients_describe() {
	local peer version versions=''
	for peer in $(clients_peers); do
		version=$(clients_run off version "$peer")
		[[ $versions = *"$version"* ]] || versions+=", $version"
	done
	say "  group \"clients\": tasks of one program, runs of $clients_seconds s, after 3 s in Node and Java, which compile what runs, and half a second elsewhere; Node $(node --version | tr -d v)$versions"
}

# measure_clients ROUND TASKS VARIANT...: a run, a line of runs.tsv.  No server has a connection for
# each of a thousand tasks.
measure_clients() {
	local round=$1 count=$2 name=$3 sync=$6 what=${7#*@} log=$place/log/$3.$2.$1 hot=0 rate
	[ "${what#*.}" != hot ] || hot=1
	[[ ${what%.*} != *connection ]] || [ "$count" -le 128 ] || return 0
	if ! clients_run "$sync" rate "${what%.*}" tasks="$count" hot="$hot" seconds="$clients_seconds" >"$log" 2>&1; then
		problem "$name, $count tasks, round $round: $(tail -n 1 "$log")"
		return
	fi
	rate=$(awk '/^rate / { print $2 }' "$log")
	printf '%s\t%s\t%s\t%s\n' "$name" "$count" "$round" "$rate" >>"$place/runs.tsv"
	progress "$(printf 'round %s of %s, %4s tasks  %-22s %9.0f/s' "$round" "$rounds" "$count" "$name" "$rate")"
}
