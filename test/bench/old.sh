# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables of measure
# BENCH_OLD: the library of another checkout beside that of this one.  To be
# sourced by measure.

# The variants that call only what any dlock has run on a second server, too,
# right after their like: "old_" before their names and those of their servers.
add_old_variants() {
	local variant name group server rest both=()
	old_names=()
	for variant in "${variants[@]}"; do
		read -r name group server rest <<<"$variant"
		both+=("$variant")
		old_knows "$group" "$server" "$rest" || continue
		both+=("old_$name $group old_$server $rest, old")
		old_names+=("$name")
	done
	variants=("${both[@]}")
}

# old_knows GROUP SERVER REST
old_knows() {
	local script
	read -r _ script _ <<<"$3"
	case $2.$script in
	*.lease_call@* | *@advisory | *@idle | *@places | *.takeover_alone) false ;;
	crowd.*) true ;;
	main.pair | main.hot | main.all_dlock | main.all_calls) [ "$1" != sustained ] ;;
	main.handoff | main.takeover | main.expiry) true ;;
	held.renew | held.refused | main.guard@* | main.bulk@*) true ;;
	*) false ;;
	esac
}

# The files "variants", "ratios" and "latencies" that the result is made with.
write_lists() {
	local name group
	printf '%s\n' "${variants[@]}" >"$place/variants"
	cp "$here/ratios" "$here/latencies" "$place/"
	for name in "${old_names[@]}"; do
		group=$(awk -v name="$name" '$1 == name { print $2 }' "$place/variants")
		case $group in
		crowd) echo "$name old_$name - -" >>"$place/ratios" ;;
		handoff)
			printf '%s\n' "$name.dlock p50 old_$name.dlock 1.03" \
				"old_$name.dlock p50 old_$name.advisory -" >>"$place/latencies"
			;;
		takeover) echo "$name p50 old_$name 1.03" >>"$place/latencies" ;;
		expiry) echo "$name.reaped p50 old_$name.reaped -" >>"$place/latencies" ;;
		*) echo "$name old_$name 0.97 -" >>"$place/ratios" ;;
		esac
	done
}
