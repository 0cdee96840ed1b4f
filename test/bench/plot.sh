# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables of measure
# Plots of a run, by gnuplot: $place/plot/NAME.svg, with what is shown in it in .dat files.
# A plot whose variants were not measured is not made.  To be sourced by measure.

# plot_colour TITLE: a system has the same colour in all plots.
plot_colour() {
	case $1 in
	'lease table'*NOTIFY) echo '#2a9d5c' ;;
	*NOTIFY | 'dlock, not on disk' | 'dlock, a connection'*) echo '#7fb2e5' ;;
	dlock* | 'while leases expire' | *'wait for one lock') echo '#1f4e9c' ;;
	Redlock*) echo '#e6a817' ;;
	Redis* | *busy*) echo '#d95f02' ;;
	'lease table'* | *'in the crowd too') echo '#2a9d5c' ;;
	advisory*) echo '#8e44ad' ;;
	ZooKeeper) echo '#c0392b' ;;
	*) echo '#777777' ;;
	esac
}

# plot_data_rates VARIANT: clients, median, lowest and highest of the rounds.
plot_data_rates() {
	sort -k 2,2n -k 4,4n "$place/runs.tsv" | awk -v name="$1" '
		BEGIN { count = -1 }
		function flush_one() {
			if (n > 0)
				print count, (value[int((n + 1) / 2)] + value[int(n / 2) + 1]) / 2, value[1], value[n]
			n = 0
		}
		$1 != name { next }
		$2 != count { flush_one(); count = $2 }
		{ value[++n] = $4 }
		END { flush_one() }'
}

# plot_data_percentiles VARIANT CLIENTS KIND: of all rounds together, -log10(1 - part)
# and milliseconds; as far as there are ten samples beyond.
plot_data_percentiles() {
	local logs=("$place/log/$1.$2".[0-9]*)
	[ -e "${logs[0]}" ] || return 0
	awk -v kind="$3" '$1 == kind { print $2 }' "${logs[@]}" | sort -n | awk '
		{ value[NR] = $1 }
		END {
			for (x = 0; NR > 10 && x <= 3; x += 0.05) {
				part = 1 - 10 ^ -x
				rank = int(part * NR) + 1
				if (rank > NR - 10 * (x > 0.31))
					break
				print x, value[rank] / 1000
			}
		}'
}

# plot_line FILE TITLE STYLE [USING]: adds to the array "lines" if there is something to show.
plot_line() {
	local colour
	colour=$(plot_colour "$2")
	[ ! -s "$place/plot/$1.dat" ] ||
		lines+=("'$place/plot/$1.dat' ${4:-} title '$2' lc rgb '$colour' lw 2 pt 7 ps 0.5 $3")
}

# rate_line VARIANT TITLE
rate_line() {
	plot_data_rates "$1" >"$place/plot/$1.dat"
	plot_line "$1" "$2" 'with yerrorlines'
}

# latency_line VARIANT CLIENTS KIND TITLE
latency_line() {
	plot_data_percentiles "$1" "$2" "$3" >"$place/plot/$1.$2.$3.dat"
	plot_line "$1.$2.$3" "$4" 'with lines'
}

# plot_head NAME WIDTH HEIGHT
plot_head() {
	cat <<-END
		set terminal svg size $2,$3 font 'sans-serif,12' background rgb 'white'
		set output '$place/plot/$1.svg'
		set grid lc rgb '#dddddd'
		set border 3
		set tics nomirror
		set key top left reverse Left samplen 2
	END
}

# The panel of a plot: TITLE, and the array "lines".
plot_panel() {
	local IFS=,
	echo "set title '$1'"
	echo "plot ${lines[*]}"
}

plot_throughput() {
	local lines=() durable not_durable=() commands
	rate_line peer_dlock_on dlock
	rate_line redis_always_on 'Redis, AOF always'
	rate_line redlock_always_on 'Redlock, AOF always'
	rate_line peer_table_on 'lease table'
	rate_line etcd_on etcd
	rate_line zookeeper_on ZooKeeper
	durable=("${lines[@]}")
	lines=()
	rate_line peer_dlock_off dlock
	rate_line redis_none_off 'Redis, no AOF'
	rate_line redlock_none_off 'Redlock, no AOF'
	rate_line peer_advisory_off 'advisory lock'
	not_durable=("${lines[@]}")
	[ ${#durable[@]} -gt 0 ] && [ ${#not_durable[@]} -gt 0 ] || return 0
	commands=$(
		plot_head throughput 900 380
		cat <<-'END'
			set logscale x 2
			set format y '%.0f'
			set xlabel 'clients'
			set ylabel 'acquire and release, pairs a second'
			set yrange [0:*]
			set offsets 0, 0, graph 0.25, 0
			set multiplot layout 1,2
		END
		lines=("${durable[@]}")
		plot_panel 'on disk when the call returns'
		lines=("${not_durable[@]}")
		plot_panel 'not on disk'
	)
	gnuplot <<<"$commands"
}

plot_handoff() {
	local lines=() durable not_durable commands name
	for name in on off; do
		lines=()
		latency_line "dlock_handoff_$name" 2 handoff 'dlock, waiting'
		latency_line "handoff_$name" 2 notify 'dlock, NOTIFY'
		latency_line "handoff_$name" 2 table 'lease table, NOTIFY'
		latency_line "advisory_handoff_$name" 2 handoff 'advisory lock'
		latency_line "redis_handoff_$name" 2 handoff 'Redis, BLPOP'
		latency_line "etcd_handoff_$name" 2 handoff etcd
		latency_line "zookeeper_handoff_$name" 2 handoff ZooKeeper
		[ $name = off ] || durable=("${lines[@]}")
	done
	not_durable=("${lines[@]}")
	[ ${#durable[@]} -gt 0 ] && [ ${#not_durable[@]} -gt 0 ] || return 0
	commands=$(
		plot_head handoff 900 440
		plot_percentile_axes 'from release to the next holder, ms'
		echo "set multiplot layout 1,2"
		lines=("${durable[@]}")
		plot_panel 'on disk'
		lines=("${not_durable[@]}")
		plot_panel 'not on disk'
	)
	gnuplot <<<"$commands"
}

# The tasks of one program; those of etcd and ZooKeeper are the clients of the group "peers".
plot_clients() {
	local lines=() commands
	rate_line clients_session_on 'dlock, one session'
	rate_line clients_connection_on 'dlock, a connection for each task'
	[ ${#lines[@]} -gt 0 ] || return 0
	rate_line clients_redlock_off 'Redlock, not on disk'
	rate_line etcd_on etcd
	rate_line zookeeper_on ZooKeeper
	commands=$(
		plot_head clients 700 380
		cat <<-'END'
			set logscale x 2
			set format y '%.0f'
			set xlabel 'tasks that take and release locks'
			set ylabel 'locks a second'
			set yrange [0:*]
			set offsets 0, 0, graph 0.05, 0
		END
		plot_panel 'on disk when the call returns, except Redlock'
	)
	gnuplot <<<"$commands"
}

# plot_percentile_axes LABEL
plot_percentile_axes() {
	cat <<-END
		set logscale y
		set xtics ('p0' 0, 'p50' 0.30103, 'p90' 1, 'p99' 2, 'p99.9' 3)
		set xrange [0:3]
		set xlabel 'percentile'
		set ylabel '$1'
		set format y '%g'
		set key below
	END
}

plot_crowd() {
	local lines=() commands
	rate_line crowd_waiters 'beside sessions that wait for one lock'
	rate_line crowd_owners 'the same, whose owners are in the crowd too'
	rate_line crowd_idle 'beside sessions that are idle'
	[ ${#lines[@]} -gt 0 ] || return 0
	commands=$(
		plot_head crowd 600 360
		cat <<-'END'
			set format y '%.0f'
			set xlabel 'sessions in the crowd'
			set ylabel 'pairs a second of four other clients'
			set yrange [0:*]
			set offsets 0, 0, graph 0.25, 0
		END
		plot_panel 'what a crowd costs others'
	)
	gnuplot <<<"$commands"
}

# A place for each number, so that 0 has one.
plot_leases() {
	local lines=() commands name title
	for name in on off; do
		title='dlock, on disk'
		[ $name = on ] || title='dlock, not on disk'
		plot_data_rates "million_$name" >"$place/plot/million_$name.dat"
		plot_line "million_$name" "$title" 'with yerrorlines' 'using 0:2:3:4:xtic(1)'
	done
	[ ${#lines[@]} -gt 0 ] || return 0
	commands=$(
		plot_head leases 600 360
		cat <<-END
			set format y '%.0f'
			set xlabel 'live leases on other names'
			set ylabel 'acquire and release, pairs a second'
			set yrange [0:*]
			set xrange [-0.2:3.2]
			set offsets 0, 0, graph 0.25, 0
		END
		plot_panel "$million_clients clients beside live leases"
	)
	gnuplot <<<"$commands"
}

plot_expiry() {
	local lines=() durable not_durable commands name clients=${expiry_clients##* }
	for name in on off; do
		lines=()
		latency_line "expiry_$name" "$clients" before 'before'
		latency_line "expiry_$name" "$clients" busy 'beside a busy process'
		latency_line "expiry_$name" "$clients" meanwhile 'while leases expire'
		[ $name = off ] || durable=("${lines[@]}")
	done
	not_durable=("${lines[@]}")
	[ ${#durable[@]} -gt 0 ] && [ ${#not_durable[@]} -gt 0 ] || return 0
	commands=$(
		plot_head expiry 900 380
		plot_percentile_axes "acquire by $clients others, ms"
		echo "set multiplot layout 1,2"
		lines=("${durable[@]}")
		plot_panel "$expiring leases expire together; on disk"
		lines=("${not_durable[@]}")
		plot_panel 'not on disk'
	)
	gnuplot <<<"$commands"
}

plot_all() {
	local name
	command -v gnuplot >/dev/null || {
		progress "NO PLOTS: gnuplot is not here (Debian's package gnuplot-nox)"
		return 0
	}
	for name in throughput handoff crowd clients leases expiry; do
		"plot_$name" 2>"$place/log/plot.$name" ||
			problem "the plot \"$name\" was not made: $(head -n 1 "$place/log/plot.$name")"
	done
	find "$place/plot" -name '*.dat' -empty -delete
}
