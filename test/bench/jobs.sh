# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables of measure
# The group "jobs": tasks through queues, by the program of jobs/ and the libraries that
# npm has put beside it.  To be sourced by measure; needs $place, $sockets and progress.

# jobs_run SYNC MEASUREMENT PEER OPTION...: without npm there may be Debian's driver.
jobs_run() {
	local sync=$1
	shift
	PGOPTIONS="-c synchronous_commit=$sync" PGHOST=$sockets PGPORT=$(server_port main) PGUSER=bench \
		PGDATABASE=bench NODE_PATH=/usr/share/nodejs node "$place/jobs/main.js" "$@"
}

# Those that are selected.
jobs_peers() {
	printf '%s\n' "${variants[@]}" | sed -n 's/.* jobs@\([a-z]*\)\..*/\1/p' | sort -u
}

setup_jobs() {
	local peer log
	for peer in $(jobs_peers); do
		log=$place/log/jobs.$peer
		if ! jobs_run off version "$peer" >"$log" 2>&1; then
			leave_out "$peer" "there is no library of it for node"
		elif ! jobs_run off install "$peer" >"$log" 2>&1 ||
			{ [ "$peer" != none ] && ! jobs_run off check "$peer" >>"$log" 2>&1; }; then
			problem "$peer: $(tail -n 1 "$log")"
			leave_out "$peer" "it does not work"
		fi
	done
}

jobs_describe() {
	local peer version versions=''
	for peer in $(jobs_peers); do
		version=$(jobs_run off version "$peer")
		[[ $versions = *"$version"* ]] || versions+=", $version"
	done
	say "  group \"jobs\": runs of $jobs_seconds s after half a second; Node $(node --version | tr -d v)$versions"
}

# measure_jobs ROUND CLIENTS VARIANT...: a run, a line of runs.tsv.
measure_jobs() {
	local round=$1 count=$2 name=$3 sync=$6 what=${7#*@} log=$place/log/$3.$2.$1 rate
	if ! jobs_run "$sync" rate "${what%.*}" clients="$count" size="${what#*.}" seconds="$jobs_seconds" \
		threads="$cores" >"$log" 2>&1; then
		problem "$name, $count clients, round $round: $(tail -n 1 "$log")"
		return
	fi
	rate=$(awk '/^rate / { print $2 }' "$log")
	printf '%s\t%s\t%s\t%s\n' "$name" "$count" "$round" "$rate" >>"$place/runs.tsv"
	progress "$(printf 'round %s of %s, %2s clients  %-18s %9.0f/s' "$round" "$rounds" "$count" "$name" "$rate")"
}
