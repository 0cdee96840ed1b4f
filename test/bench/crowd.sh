# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables of measure
# The group "crowd": what a lock costs beside many that want or have one.  To be
# sourced by measure.

# The crowds that a kind of run is made with; the smallest is what the others are
# compared with.
crowd_sizes() {
	case $1 in
	waiters | owners | idle) echo "$crowd_waiting" ;;
	other_waiters) echo 0 600 ;;
	other_holders | sharers | siblings | places) echo 0 10000 ;;
	leases) echo 100000 ;;
	contenders | advisory) echo 8 512 1000 ;;
	crowd_expiry) echo 1000 ;;
	esac
}

# setup_crowd SERVER CONF: with two databases; in one of them the crowd, if it is
# to be in another than the rest.
setup_crowd() {
	local database
	server_make "$1" "$(common_conf)" "$2" "max_connections = 1050"
	server_psql "$1" postgres -c 'CREATE DATABASE other'
	for database in bench other; do
		server_psql "$1" "$database" -c 'CREATE EXTENSION dlock'
	done
}

# Nobody waits any more and nothing is held, however a run ended.
crowd_disperse() {
	local database
	server_sql "$1" -c "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
	                     WHERE application_name = 'crowd'" >/dev/null
	for database in bench other; do
		server_psql "$1" "$database" \
			-c "SELECT dlock_force_release(name, 'left over') FROM dlock_leases" >/dev/null
	done
}

crowd_check_nothing_left() {
	local database left
	for database in bench other; do
		left=$(server_psql "$2" "$database" -c 'SELECT count(*) FROM dlock_leases')
		[ "$left" = 0 ] || {
			problem "$1: $left leases are left"
			crowd_disperse "$2"
		}
	done
}

# crowd_run SERVER SYNC SCRIPT KIND SIZE LOG: the measurement of the probe, or
# pgbench beside the crowd that the probe makes.
crowd_run() {
	local server=$1 sync=$2 script=$3 kind=$4 size=$5 log=$6 database=bench count=1
	local beside=()
	[ "$script" != pair ] || count=$crowd_clients
	[[ $kind != other_* ]] || database=other
	if [ "$script" = probe ]; then
		run_probe "$server" "$sync" "$kind" "$size" "$log"
		return
	fi
	# shellcheck disable=SC2034 # for run_pgbench
	[ "$size" = 0 ] || beside=(env PGHOST="$sockets" PGPORT="$(server_port "$server")" PGUSER=bench
		PGDATABASE="$database" "$place/probe/dlock_probe" "${kind#other_}" -c "$size" --)
	run_pgbench "$server" "$sync" "$script" "$count" "$crowd_seconds" "$log"
}

# measure_crowd ROUND SIZE VARIANT...: a run.
measure_crowd() {
	local round=$1 size=$2 name=$3 server=$5 sync=$6 script=${7%@*} kind=${7#*@}
	local log=$place/log/$name.$size.$round rate
	if [ "$script" = lease_call ] &&
		[ -z "$(server_sql "$server" -c "SELECT to_regprocedure('dlock_lease(text)')")" ]; then
		progress "there is no dlock_lease()"
		return
	fi
	if ! crowd_run "$server" "$sync" "$script" "$kind" "$size" "$log" || grep -q 'aborted' "$log"; then
		problem "$name, crowd of $size, round $round: $(grep -h -m 1 -iE 'error|fatal|aborted' "$log" "$log.err" 2>/dev/null || tail -n 1 "$log")"
		server_wait "$server" 60 || die "the server \"$server\" does not come back; see its log"
		crowd_disperse "$server"
		return
	fi
	rate=$(awk '/^tps = / { print $3; exit } /^rate / { print $2; exit }' "$log")
	crowd_check_nothing_left "$name, crowd of $size, round $round" "$server"
	printf '%s\t%s\t%s\t%s\n' "$name" "$size" "$round" "$rate" >>"$place/runs.tsv"
	progress "$(printf 'round %s of %s, crowd of %6s  %-24s %9.0f' "$round" "$rounds" "$size" "$name" "$rate")"
}

# measure_crowds ROUND: every kind with every size.  Kinds that are compared are side
# by side.
measure_crowds() {
	local round=$1 kinds size variant group script row
	for kinds in 'waiters owners idle' other_waiters other_holders sharers siblings places leases contenders advisory crowd_expiry; do
		row=()
		for variant in "${variants[@]}"; do
			read -r _ group _ _ script _ <<<"$variant"
			[[ $group != crowd || " $kinds " != *" ${script#*@} "* ]] || row+=("$variant")
		done
		for size in $(crowd_sizes "${kinds%% *}"); do
			measure_row "$round" "$size" "${row[@]}"
		done
	done
}
