# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables of measure
# The group "million": what up to a million live leases cost other calls, what they take
# of memory, and how long it takes to load them after a restart.  To be sourced by
# measure.

# The time of the last statement of a psql script with \timing, in ms.
last_time() {
	awk '/^Time: / { time = $2 } END { printf "%.1f\n", time }'
}

median_of() {
	printf '%s\n' "$@" | sort -n | awk '
		{ value[NR] = $1 }
		END { print NR % 2 ? value[(NR + 1) / 2] : (value[NR / 2] + value[NR / 2 + 1]) / 2 }'
}

# Each lease has a name of its own, and each thousand of them an owner.
# million_acquire FROM TO: acquire the leases of these numbers, a thousand in a call, each
# call its own transaction.  Stops at an error.  Prints what psql says.
million_acquire() {
	server_sql million -c "
		SELECT format('SELECT cardinality(dlock_acquire_all(array(
		                   SELECT (4000000000000 + i)::text FROM generate_series(%s, %s) i), ''%s'', ''1 day''));',
		              greatest($1, 1000 * b + 1), least($2, 1000 * b + 1000), 5000000000 + b)
		  FROM generate_series(($1 - 1) / 1000, ($2 - 1) / 1000) b" >"$place/million.sql"
	PGOPTIONS='-c synchronous_commit=off' server_sql million -v VERBOSITY=sqlstate -f "$place/million.sql" 2>&1
}

# million_release FROM TO
million_release() {
	server_sql million -c "
		SELECT count(*) FROM generate_series($1, $2) i
		 WHERE dlock_release((4000000000000 + i)::text, (5000000000 + (i - 1) / 1000)::text)" >/dev/null
}

million_live() {
	server_sql million -c 'SELECT count(*) FROM dlock_leases'
}

# Fill up to the wanted number; with more memory, if it does not suffice.
million_fill() {
	local answer kb=$memory from=$EPOCHREALTIME
	million_fits=yes
	answer=$(million_acquire 1 "$leases") || true
	million_fill_ms=$(awk -v from="$from" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.0f", 1000 * (to - from) }')
	million_held=$(million_live)
	while [ "$million_held" -lt "$leases" ]; do
		grep -q 'ERROR:  53400' <<<"$answer" || die "cannot fill: $(tail -n 1 <<<"$answer")"
		[ "$million_fits" = no ] || million_capacity=$million_held
		million_fits=no
		kb=$((kb * 2))
		server_stop million
		echo "dlock.max_memory = ${kb}kB" >>"$place/data/million/postgresql.conf"
		server_start million
		answer=$(million_acquire $((million_held + 1)) "$leases") || true
		million_held=$(million_live)
	done
}

# How many would have fitted?  A lease takes more than a hundred bytes.
million_overfill() {
	local answer
	[ "$million_fits" = yes ] || return 0
	answer=$(million_acquire $((leases + 1)) $((leases + memory * 10))) || true
	grep -q 'ERROR:  53400' <<<"$answer" ||
		problem "million: no 53400 when memory is full: $(tail -n 1 <<<"$answer")"
	million_capacity=$(million_live)
	million_release $((leases + 1)) "$million_capacity"
	million_held=$(million_live)
	[ "$million_held" = "$leases" ] ||
		problem "million: $million_held leases after the release of those that were too many"
}

# million_resize COUNT: so many leases are live.
million_resize() {
	local held
	held=$(million_live)
	if [ "$held" -lt "$1" ]; then
		million_acquire $((held + 1)) "$1" >"$place/log/million.fill"
	elif [ "$held" -gt "$1" ]; then
		million_release $(($1 + 1)) "$held"
	fi
	held=$(million_live)
	[ "$held" = "$1" ] || die "$held leases are live, and not $1"
}

# The numbers of leases that the pairs are measured beside.
million_sizes() {
	printf '%s\n' 0 $((leases / 100)) $((leases / 10)) "$leases" | sort -nu
}

# measure_millions ROUND: with each of the sizes; the other way round in every other
# round.
measure_millions() {
	local round=$1 size sizes variant row=()
	for variant in "${variants[@]}"; do
		[[ $variant != *' million million '* ]] || row+=("$variant")
	done
	[ ${#row[@]} -gt 0 ] || return 0
	mapfile -t sizes < <(million_sizes)
	[ $((round % 2)) = 1 ] || mapfile -t sizes < <(million_sizes | sort -nr)
	for size in "${sizes[@]}"; do
		million_resize "$size"
		took_note million
		measure_row "$round" "$size" "${row[@]}"
	done
}

# The first call after a restart, by a session that has to load the leases: no
# worker can be faster, for it does not load them.
million_load() {
	local round answer load again
	million_load_ms=()
	million_again_ms=()
	for ((round = 0; round < 3; round++)); do
		server_stop million
		server_start million -c max_worker_processes=1 -c max_logical_replication_workers=0
		answer=$(million_first_call)
		load=$(last_time <<<"$answer")
		again=$(last_time <<<"$(million_first_call)")
		grep -q '^t$' <<<"$answer" || problem "million: the first call after a restart: ${answer//$'\n'/, }"
		million_load_ms+=("$load")
		million_again_ms+=("$again")
	done
	million_held=$(million_live)
	[ "$million_held" = "$leases" ] || problem "million: $million_held leases after a restart"
	server_stop million
	server_start million
}

# An acquire that has to be refused.  The session is connected by then, so that
# only the call is timed.
million_first_call() {
	server_sql million <<-'END' 2>&1
		SELECT 1;
		\timing on
		SELECT dlock_acquire('4000000000001', 'first') IS NULL;
	END
}

million_setup() {
	progress "filling with $leases leases"
	server_make million "$(common_conf)" "$(cat "$place/dest/temp.conf")" "dlock.max_memory = ${memory}kB"
	server_start million
	server_sql million -c 'CREATE EXTENSION dlock'
	million_shared=$(server_sql million -c "
		SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name LIKE 'dlock%'")
	million_fill
	million_overfill
	million_relation=$(server_sql million -c "SELECT pg_relation_size('_dlock.store') / 1024 / 1024")
	progress "restarting with $leases leases"
	million_load
	server_fill_wal million
}

# What was aimed at for a million: " (target <= 256 met)".
million_verdict() {
	local value=$1 limit=$2
	[ "$leases" = 1000000 ] || return 0
	if [ "${value%.*}" -lt "$limit" ]; then
		printf ' (target <= %s met)' "$limit"
	else
		printf ' (target <= %s missed)' "$limit"
	fi
}

million_report() {
	local load each
	selected_on million || return 0
	load=$(median_of "${million_load_ms[@]}")
	each=$(awk -v bytes="$million_shared" -v count="$million_capacity" 'BEGIN { printf "%.1f", bytes / count }')
	printf '%s\t%s\n' leases "$leases" memory "$memory" capacity "$million_capacity" bytes "$each" \
		relation "$million_relation" fill "$million_fill_ms" load "$load" \
		load_low "$(printf '%s\n' "${million_load_ms[@]}" | sort -n | head -n 1)" \
		load_high "$(printf '%s\n' "${million_load_ms[@]}" | sort -n | tail -n 1)" >"$place/million.tsv"
	say
	say "$leases live leases, names of 13 bytes, owners of 10, dlock.max_memory = $memory kB"
	say
	say "  leases that fit                               $million_capacity"
	say "  bytes of shared memory for each, all counted  $each$(million_verdict "$each" 256)"
	say "  size of _dlock.store                          $million_relation MB"
	[ "$million_fits" = no ] ||
		say "  acquired by one session, without flushes, in  $million_fill_ms ms"
	[ "$million_fits" = yes ] ||
		say "  They did not fit; what follows is with more memory, and so are the pairs above."
	say "  first call after a clean restart              $load ms, median of ${million_load_ms[*]}$(million_verdict "$load" 700)"
	say "  first call of the next session                $(median_of "${million_again_ms[@]}") ms"
}
