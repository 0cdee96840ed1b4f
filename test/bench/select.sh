# shellcheck shell=bash
# Which variants to measure.  To be sourced; needs die of common.sh.

# select_variants FILE WORDS: the lines of the file that one of the words names,
# by the name of the variant or of its group, go to the array "variants"; all of
# them if there are no words.
select_variants() {
	local file=$1 words=$2 word name group rest found
	variants=()
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

# Does a selected variant call dlock?
selected_need_dlock() {
	local variant script
	for variant in "${variants[@]}"; do
		read -r _ _ _ _ script _ <<<"$variant"
		case $script in
		pair_dlock | renew | refused) return 0 ;;
		esac
	done
	return 1
}
