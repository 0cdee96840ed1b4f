# shellcheck shell=bash disable=SC2154 # place and failure_mark are of the caller and common.sh
# Scripts that run checks and tests and add up what they say, in $place/log: check, run_tests,
# and say_total at the end.  Needs common.sh.

# check NAME COMMAND...: a check counts as a test.
check() {
	local name=$1
	shift
	say "== $name"
	if "$@"; then
		say "1 passed, 0 failed" >>"$place/log"
	else
		say "   $name failed"
		say "${failure_mark}check $name" "0 passed, 1 failed" >>"$place/log"
	fi
}

# run_tests NAME COMMAND...: a command that ends with such a line by itself.
run_tests() {
	local name=$1 status=0 result output=$place/output.$BASHPID
	shift
	say "==== $name"
	"$@" 2>&1 | tee "$output" || status=$?
	result=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$output" | tail -n 1 || true)
	say "${result:-0 passed, 0 failed}" >>"$place/log"
	grep "^$failure_mark" "$output" >>"$place/log" || true
	# What broke off may not have counted itself.
	case $status:$result in
	0:* | *", "[1-9]*) ;;
	*) say "$failure_mark$name broke off" "0 passed, 1 failed" >>"$place/log" ;;
	esac
}

# The last lines: what failed, and the sum.  False if something failed.
say_total() {
	local result failures
	result=$(sum_of_logs "$place/log")
	mapfile -t failures < <(failures_in "$place/log")
	say_failures '' "${failures[@]}"
	say "$result"
	[ "${result##*, }" = "0 failed" ]
}
