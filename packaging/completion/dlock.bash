# shellcheck shell=bash
# Completion of the dlock command for bash.
#
# Commands and options are those that "dlock --help" and "dlock COMMAND --help"
# tell, names of locks those that the server knows, if it answers within a second.

# _dlock_options COMMAND...: its options, a line each: the name, and the argument if
# it needs one.
_dlock_options() {
	"${COMP_WORDS[0]}" "$@" --help 2>/dev/null | sed -n '/^Options:/,$ {
		s/^  -\(.\), --\([a-z-]*\) \([A-Z][A-Z]*\) .*/-\1 \3\n--\2 \3/p; t
		s/^\(      --[a-z-]*\)\[=[A-Z]*\]/\1/; t next
		:next
		s/^  -\(.\), --\([a-z-]*\) .*/-\1\n--\2/p; t
		s/^      --\([a-z-]*\) \([A-Z][A-Z]*\) .*/--\1 \2/p; t
		s/^      --\([a-z-]*\) .*/--\1/p
	}'
}

# The commands, a line each, of one word or two.
_dlock_commands() {
	"${COMP_WORDS[0]}" --help 2>/dev/null |
		sed -n '/^Commands:/,/^$/ s/^  \([a-z-]*\( [a-z][a-z]*\)*\)  .*/\1/p'
}

# Names of locks that are held.  Those with characters that JSON or the shell
# would have to quote are left out.
_dlock_names() {
	timeout 1 "${COMP_WORDS[0]}" status --quiet --json "${_dlock_conninfo[@]}" 2>/dev/null </dev/null |
		sed -n 's/^{"kind":"lease","name":"\([A-Za-z0-9_.:/@%+,-]*\)",.*/\1/p' | sort -u
}

# What an option's argument may be: _dlock_argument OPTION
_dlock_argument() {
	case $1 in
	--mode) echo 'exclusive shared NL CR CW PR PW EX' ;;
	--signal) echo 'TERM INT HUP QUIT KILL USR1 USR2' ;;
	--on-lost) echo 'kill warn' ;;
	esac
}

_dlock() {
	local cur prev command options option word i first=2 place=0 pending=
	local _dlock_conninfo=()
	COMPREPLY=()
	cur=${COMP_WORDS[COMP_CWORD]}
	command=${COMP_WORDS[1]}

	if [ "$COMP_CWORD" = 1 ] || { [ "$command" = help ] && [ "$COMP_CWORD" = 2 ]; }; then
		word=$(_dlock_commands | cut -d ' ' -f 1 | uniq)
		[ "$COMP_CWORD" != 1 ] || word+=' help --help --version'
		mapfile -t COMPREPLY < <(compgen -W "$word" -- "$cur")
		return
	fi
	# Of some commands, as of help, the second word belongs to the name.
	word=$(_dlock_commands)
	[ "$command" != help ] || { command=${COMP_WORDS[2]} && first=3; }
	if grep -q "^$command " <<<"$word"; then
		if [ "$COMP_CWORD" = "$first" ]; then
			word=$(sed -n "s/^$command //p" <<<"$word")
			mapfile -t COMPREPLY < <(compgen -W "$word" -- "$cur")
			return
		fi
		command+=" ${COMP_WORDS[first]}"
		first=$((first + 1))
	fi
	[ "${COMP_WORDS[1]}" != help ] || return 0
	# shellcheck disable=SC2086 # one word or two
	options=$(_dlock_options $command)
	[ -n "$options" ] || return

	# Where are we: "place" arguments that are no options come before this word,
	# and "pending" is the option that it is the argument of.
	for ((i = first; i < COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		# Bash makes a word of the sign in --option=argument.
		if [[ $word == = && ${COMP_WORDS[i - 1]} == --?* && $place = 0 ]]; then
			pending=${COMP_WORDS[i - 1]}
		elif [ -n "$pending" ]; then
			[[ $pending != -d && $pending != --dbname ]] || _dlock_conninfo=(-d "$word")
			pending=
		elif [[ $word == -?* && $word != -- && $place = 0 ]]; then
			while read -r option prev; do
				[ "$option" != "$word" ] || [ -z "$prev" ] || pending=$word
			done <<<"$options"
		elif [ "$word" != -- ]; then
			place=$((place + 1))
			# From here on it is another command's.
			if [ "$place" = 2 ] && [[ $command == run || $command == elect ]]; then
				break
			fi
		fi
	done

	if [ -n "$pending" ]; then
		[ "$cur" != = ] || cur=
		mapfile -t COMPREPLY < <(compgen -W "$(_dlock_argument "$pending")" -- "$cur")
	elif [[ $cur == -* && $place = 0 ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(cut -d ' ' -f 1 <<<"$options")" -- "$cur")
	elif [ "$place" = 0 ] && [[ $command != task* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_dlock_names)" -- "$cur")
		# A colon divides words, too.
		if declare -F __ltrim_colon_completions >/dev/null; then
			__ltrim_colon_completions "$cur"
		fi
	elif [[ $command == run || $command == elect ]]; then
		if [ "$place" = 1 ]; then
			mapfile -t COMPREPLY < <(compgen -c -- "$cur")
		else
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		fi
	fi
}

complete -F _dlock dlock
