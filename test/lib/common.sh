# shellcheck shell=bash disable=SC2034 # some variables are for the caller
# What the scripts share.  To be sourced by bash, under set -euo pipefail.

# A make that calls this hands on its options, which are not for the makes below.
unset MAKEFLAGS MAKELEVEL MFLAGS

# say LINE...
say() {
	printf '%s\n' "$@"
}

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

have() {
	command -v "$1" >/dev/null 2>&1
}

# The user that servers run as.  PostgreSQL refuses to run as root.
ordinary_user() {
	if [ "$(id -u)" != 0 ]; then
		id -un
	elif id -u postgres >/dev/null 2>&1; then
		echo postgres
	else
		echo nobody
	fi
}

# become USER: sets the array "as_user", to put before a command that is to run
# as this user.  Only root can be anybody else.
become() {
	as_user=()
	[ "$(id -un)" = "$1" ] ||
		as_user=(setpriv --reuid="$1" --regid="$(id -g "$1")" --init-groups)
}

# Copy a source tree, and what is built in it with its times, so that make
# finds it up to date.
copy_tree() {
	local from=$1 to=$2
	mkdir -p "$to"
	tar -C "$from" --exclude=./.git --exclude='./tmp_*' -c . | tar -C "$to" --no-same-owner -x
}

# The version of the release, which META.json has.
release_version() {
	sed -n 's/^\t"version": "\(.*\)",$/\1/p' "$1/META.json"
}

# The files of the checkout, a line each: the tracked ones and those that are
# yet to be added.
list_files() {
	if git -C "$1" rev-parse >/dev/null 2>&1; then
		(cd "$1" && git ls-files --cached --others --exclude-standard |
			while read -r file; do [ ! -e "$file" ] || echo "$file"; done)
	else
		(cd "$1" && find . -name .git -prune -o -name 'tmp_*' -prune -o \
			\( -type f -o -type l \) ! -name '*.o' ! -name '*.so' ! -name '*.bc' -printf '%P\n')
	fi
}

# The closing lines of the given logs added up: "N passed, N failed".
sum_of_logs() {
	cat "$@" | awk '
		/^[0-9]+ passed, [0-9]+ failed$/ { passed += $1; failed += $3 }
		END { printf "%d passed, %d failed\n", passed, failed }'
}

# What failed is told again at the end, where it is seen in the last lines of a long
# output.  A script that runs others finds it there by its first word.
failure_mark='failed: '
failures_told=${DLOCK_FAILURES_TOLD:-20}

# say_failures PREFIX LINE...
say_failures() {
	local prefix=$1 line count=0
	shift
	for line; do
		count=$((count + 1))
		[ "$count" -le "$failures_told" ] || continue
		say "$failure_mark$prefix$line"
	done
	[ "$count" -le "$failures_told" ] || say "and $((count - failures_told)) more, see above"
}

# The failures that the given outputs tell of.
failures_in() {
	sed -n "s/^ *$failure_mark//p" "$@"
}
