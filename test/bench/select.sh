# shellcheck shell=bash
# Which variants to measure.  To be sourced; needs die of common.sh.

# What is measured if nothing else is said: not what takes long, nor what has
# neither target nor goal and does not help to read the rest.
usual='durable dlock_off noop_off advisory_off single hot all guard bulk handoff takeover expiry crowd peers peer_handoff'

# select_variants FILE WORDS: the lines of the file that one of the words names,
# by the name of the variant or of its group, go to the array "variants".  If
# there are no words: the usual ones, or with BENCH_FULL=yes all.
select_variants() {
	local file=$1 words=$2 word name group rest found
	variants=()
	[ -n "$words" ] || [ "${BENCH_FULL:-}" = yes ] || words=$usual
	for word in $words; do
		awk -v word="$word" '!/^#/ && ($1 == word || $2 == word) { found = 1 } END { exit !found }' "$file" ||
			die "BENCH_ONLY: there is no variant or group \"$word\"; see $file"
	done
	while read -r name group rest; do
		case $name in '' | '#'*) continue ;; esac
		found=no
		for word in $words; do
			[ "$word" != "$name" ] && [ "$word" != "$group" ] || found=yes
		done
		[ -n "$words" ] && [ $found = no ] || variants+=("$name $group $rest")
	done <"$file"
}

# selected_on SERVER: is a selected variant to run on this server?
selected_on() {
	local variant server
	for variant in "${variants[@]}"; do
		read -r _ _ server _ <<<"$variant"
		[ "$server" != "$1" ] || return 0
	done
	return 1
}

# Is a selected variant of one of these groups?
selected_in() {
	local variant group wanted
	for variant in "${variants[@]}"; do
		read -r _ group _ <<<"$variant"
		for wanted; do
			[ "$group" != "$wanted" ] || return 0
		done
	done
	return 1
}

# Does a selected variant call dlock?
selected_need_dlock() {
	local variant script
	for variant in "${variants[@]}"; do
		read -r _ _ _ _ script _ <<<"$variant"
		case $script in
		pair_sql_* | pair_plain | pair_limit | pair_noop | pair_advisory | noop_* | hot_advisory | hot_row) ;;
		*peer*@dlock) return 0 ;;
		tasks@dlock.* | clients@*session.* | clients@*connection.*) return 0 ;;
		*peer*@* | tasks@* | clients@*) ;;
		*) return 0 ;;
		esac
	done
	return 1
}

# Does one need the program in probe/?
selected_need_probe() {
	selected_in handoff takeover expiry crowd
}
