# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables of measure
# The group "tasks": tasks through queues, by the program of tasks/ and the libraries that
# npm has put beside it.  To be sourced by measure; needs $place, $sockets and progress.

# tasks_run SYNC MEASUREMENT PEER OPTION...: without npm there may be Debian's driver.
tasks_run() {
	local sync=$1
	shift
	PGOPTIONS="-c synchronous_commit=$sync" PGHOST=$sockets PGPORT=$(server_port main) PGUSER=bench \
		PGDATABASE=bench NODE_PATH=/usr/share/nodejs node "$place/tasks/main.js" "$@"
}

# Those that are selected.
tasks_peers() {
	printf '%s\n' "${variants[@]}" | sed -n 's/.* tasks@\([a-z]*\)\..*/\1/p' | sort -u
}

setup_tasks() {
	local peer log
	for peer in $(tasks_peers); do
		log=$place/log/tasks.$peer
		if ! tasks_run off version "$peer" >"$log" 2>&1; then
			leave_out "$peer" "there is no library of it for node"
		elif ! tasks_run off install "$peer" >"$log" 2>&1 ||
			{ [[ $peer != none && $peer != loop ]] && ! tasks_run off check "$peer" >>"$log" 2>&1; }; then
			problem "$peer: $(tail -n 1 "$log")"
			leave_out "$peer" "it does not work"
		fi
	done
}

tasks_describe() {
	local peer version versions=''
	for peer in $(tasks_peers); do
		version=$(tasks_run off version "$peer")
		[[ $versions = *"$version"* ]] || versions+=", $version"
	done
	say "  group \"tasks\": $tasks_clients clients, runs of $tasks_seconds s after half a second; Node $(node --version | tr -d v)$versions"
}

# measure_tasks ROUND WAITING VARIANT...: a run, a line of runs.tsv.
measure_tasks() {
	local round=$1 waiting=$2 name=$3 sync=$6 what=${7#*@} log=$place/log/$3.$2.$1 rate
	if ! tasks_run "$sync" rate "${what%.*}" clients="$tasks_clients" waiting="$waiting" size="${what#*.}" seconds="$tasks_seconds" \
		threads="$cores" >"$log" 2>&1; then
		problem "$name, $waiting waiting, round $round: $(tail -n 1 "$log")"
		return
	fi
	rate=$(awk '/^rate / { print $2 }' "$log")
	printf '%s\t%s\t%s\t%s\n' "$name" "$waiting" "$round" "$rate" >>"$place/runs.tsv"
	progress "$(printf 'round %s of %s, %6s waiting  %-18s %9.0f/s' "$round" "$rounds" "$waiting" "$name" "$rate")"
}
