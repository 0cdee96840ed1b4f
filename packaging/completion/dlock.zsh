#compdef dlock
# Completion of the dlock command for zsh.
#
# Commands and options are those that "dlock --help" and "dlock COMMAND --help"
# tell, names of locks those that the server knows, if it answers within a second.

# Names of locks that are held.
_dlock_names() {
	local -a names conninfo
	local -i i

	for (( i = 2; i < $#words; i++ )); do
		[[ $words[i] != (-d|--dbname) ]] || conninfo=(-d "${(Q)words[i + 1]}")
	done
	names=(${(fu)"$(timeout 1 $_dlock_program status --quiet --json $conninfo 2>/dev/null </dev/null |
		sed -n 's/^{"kind":"lease","name":"\([^"\\]*\)",.*/\1/p')"})
	_wanted locks expl lock compadd -a names
}

# Commands: dlock_commands FIRST-WORD; without it, the first words of all.
_dlock_commands() {
	local line
	local -aU commands

	for line in ${(f)"$($_dlock_program --help 2>/dev/null | sed -n '/^Commands:/,/^$/ s/^  \([a-z-]*\( [a-z][a-z]*\)*\)  *\(.*\)/\1:\3/p')"}; do
		if [[ -n $1 ]]; then
			[[ $line != "$1 "* ]] || commands+=(${line#"$1 "})
		elif [[ ${line%%:*} == *' '* ]]; then
			commands+=(${line%% *})
		else
			commands+=($line)
		fi
	done
	_describe -t commands command commands
}

# The options of the command, in the array "specs" as _arguments has them.
_dlock_options() {
	setopt localoptions extendedglob
	local help line letter name sign argument meaning
	local -a match mbegin mend

	specs=()
	help=$($_dlock_program $@ --help 2>/dev/null)
	for line in ${(f)help//$'\n' (#c32)/ }; do
		[[ $line =~ '^  (-(.),|   ) --([a-z-]+)(\[=([A-Z]+)\])?( ([A-Z]+))? +(.*)$' ]] || continue
		letter=$match[2] name=$match[3] sign= argument=$match[7] meaning=${match[8]//(#m)[][:\\]/\\$MATCH}
		case $name in
			mode) argument=":mode:(exclusive shared NL CR CW PR PW EX)" ;;
			signal) argument=":signal:(TERM INT HUP QUIT KILL USR1 USR2)" ;;
			on-lost) argument=":action:(kill warn)" ;;
			?*) [[ -z $argument ]] || argument=":$argument: " ;;
		esac
		[[ -z $argument ]] || sign='='
		# It may have an argument, behind the sign.
		[[ -z $match[5] ]] || sign='=-' argument="::$match[5]: "
		[[ -z $letter ]] || specs+=("(--$name)-$letter${argument:++}[$meaning]$argument")
		specs+=("${letter:+(-$letter)}--$name${sign}[$meaning]$argument")
	done
}

_dlock() {
	local _dlock_program=$words[1]
	local -a specs command

	if [[ $words[2] == help && CURRENT -gt 2 ]]; then
		shift words
		(( CURRENT-- ))
	fi
	if (( CURRENT == 2 )); then
		_dlock_commands
		[[ $_dlock_program != $words[1] ]] || compadd -- help --help --version
		return
	fi
	command=($words[2])
	if [[ $words[2] == task ]]; then
		if (( CURRENT == 3 )); then
			_dlock_commands task
			return
		fi
		command+=($words[3])
	fi

	_dlock_options $command
	(( $#specs )) || return 1
	shift $#command words
	(( CURRENT -= $#command ))
	case $command in
		run | elect) _arguments -S $specs '1:lock:_dlock_names' '*:::command:_normal' ;;
		task*) _arguments -S $specs ;;
		*) _arguments -S $specs '1:lock:_dlock_names' ;;
	esac
}

_dlock "$@"
