# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables of measure
# The groups that measure latencies, by the program in probe/.  To be sourced by
# measure.

# The worker that is stopped at the moment.
worker_paused=

# Do without the worker, which is stopped in its sleep.
worker_pause() {
	worker_paused=$(server_sql main -c "SELECT pid FROM pg_stat_activity
	                                     WHERE backend_type = 'dlock worker' AND wait_event IS NOT NULL")
	[ -n "$worker_paused" ] || die "the worker is not asleep"
	kill -STOP "$worker_paused"
}

worker_resume() {
	[ -n "$worker_paused" ] || return 0
	kill -CONT "$worker_paused"
	worker_paused=
}

# run_probe SERVER SYNC MEASUREMENT CLIENTS LOG
run_probe() {
	local duration=$handoff_seconds
	case $3 in contenders | advisory) duration=$crowd_seconds ;; esac
	PGOPTIONS="-c synchronous_commit=$2" PGHOST=$sockets PGPORT=$(server_port "$1") \
		PGUSER=bench PGDATABASE=bench "$place/probe/dlock_probe" "$3" -c "$4" \
		-s "$duration" -n "$takeovers" -l "$expiring" -k "$names" >"$5" 2>"$5.err"
}

# run_latency SERVER SYNC MEASUREMENT CLIENTS LOG: by the probe, or by the client for peers.
run_latency() {
	[[ $3 = peer_handoff@* ]] || {
		run_probe "$@"
		return
	}
	PGOPTIONS="-c synchronous_commit=$2" PGUSER=bench PGDATABASE=bench \
		peer_run handoff "$1" "${3#*@}" seconds="$((2 * peer_seconds))" >"$5" 2>"$5.err"
}

# latency_note NAME CLIENTS ROUND LOG: a line of latency.tsv for each kind of
# sample: the number of them, and the p50 and p99 of them in microseconds.
latency_note() {
	local name=$1 count=$2 round=$3 log=$4 kind what
	awk '{ print $1 }' "$log" | sort -u | while read -r kind; do
		what=$name
		[ "$kind" = takeover ] || [[ $name = *_handoff_* && $name != old_* ]] || what=$name.$kind
		awk -v kind="$kind" '$1 == kind { print $2 }' "$log" | sort -n |
			awk -v what="$what" -v clients="$count" -v round="$round" '
				function rank(part) { return int(part * NR + 0.999999) }
				{ value[NR] = $1 }
				END {
					printf "%s\t%s\t%s\t%d\t%d\t%d\n", what, clients, round, NR,
						value[rank(0.5)], value[rank(0.99)]
				}' >>"$place/latency.tsv"
	done
}

# measure_latency ROUND CLIENTS VARIANT...: a run.
measure_latency() {
	local round=$1 count=$2 name=$3 server=$5 sync=$6 measurement=$7
	local log=$place/log/$name.$count.$round status=0 before
	before=$(stat -c %s "$place/latency.tsv")
	[ "$measurement" != takeover_alone ] || worker_pause
	run_latency "$server" "$sync" "${measurement%_alone}" "$count" "$log" || status=$?
	worker_resume
	if [ $status != 0 ]; then
		problem "$name, $count clients, round $round: $(head -n 1 "$log.err")"
		! is_peer "$server" || return 0
		server_wait "$server" 60 || die "the server \"$server\" does not come back; see its log"
		server_sql "$server" -c "SELECT dlock_force_release(name, 'left over') FROM dlock_leases" >/dev/null
		return
	fi
	latency_note "$name" "$count" "$round" "$log"
	tail -c +$((before + 1)) "$place/latency.tsv" | while read -r what _ _ _ p50 p99; do
		progress "$(printf 'round %s of %s, %2s clients  %-22s p50 %8.3f ms  p99 %8.3f ms' "$round" "$rounds" \
			"$count" "$what" "${p50}e-3" "${p99}e-3")"
	done
}
