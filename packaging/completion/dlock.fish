# Completion of the dlock command for fish.
#
# Commands and options are those that "dlock --help" and "dlock COMMAND --help"
# tell, names of locks those that the server knows, if it answers within a second.

# The options of a command, a line each: letter, name, argument, meaning; with tabs.
function __dlock_options
    string replace -ra '\n {32}' ' ' -- (command dlock $argv --help 2>/dev/null | string collect) | string split \n |
        string replace -rf '^  (?:-(.),|   ) --([a-z-]+)(?:\[=[A-Z]+\]| ([A-Z]+))? +(.*)$' '$1\t$2\t$3\t$4'
end

# The command that the line has, of one word or two.
function __dlock_command
    set -l words (commandline -opc)
    if test (count $words) -ge 3; and contains -- "$words[2] $words[3]" $__dlock_commands
        echo "$words[2] $words[3]"
    else if test (count $words) -ge 2; and contains -- $words[2] $__dlock_commands
        echo $words[2]
    end
end

# Is the line so far this one, and no more?
function __dlock_line_is
    test (commandline -opc | string join ' ' | string replace -r '^\S+ ?' '') = "$argv"
end

# How many arguments that are no options come before this word.
function __dlock_place
    set -l command (__dlock_command)
    set -l words (commandline -opc)
    set -l of_command (string split ' ' -- $command)
    set -e words[1..(count dlock $of_command)]
    set -l place 0
    set -l pending no
    for word in $words
        if test $pending = yes
            set pending no
        else if test $place -gt 0; or not string match -qr '^-.' -- $word
            set place (math $place + 1)
        else if contains -- "$command $word" $__dlock_with_argument
            set pending yes
        end
    end
    echo $place
end

# __dlock_at COMMAND PLACE: is this word that argument of the command?
function __dlock_at
    contains -- $argv[1] (__dlock_command); and test (__dlock_place) $argv[2..-1]
end

# Names of locks that are held.
function __dlock_names
    set -l conninfo
    set -l words (commandline -opc)
    for i in (seq 2 (count $words))
        if contains -- $words[$i] -d --dbname; and test $i -lt (count $words)
            set conninfo -d $words[(math $i + 1)]
        end
    end
    timeout 1 dlock status --quiet --json $conninfo 2>/dev/null </dev/null | string replace -rf '^\{"kind":"lease","name":"([^"\\\\]*)",.*' '$1' | sort -u
end

set -g __dlock_commands
set -g __dlock_with_argument
complete -c dlock -f
complete -c dlock -n '__dlock_line_is' -a 'help --help --version'
for line in (command dlock --help 2>/dev/null | string replace -rf '^  ([a-z-]+(?: [a-z]+)?)  +(.*)$' '$1\t$2')
    set -l command (string split \t -- $line)[1]
    set -l meaning (string split \t -- $line)[2]
    set -l words (string split ' ' -- $command)
    set -a __dlock_commands $command
    if test (count $words) = 2
        complete -c dlock -n "__dlock_line_is; or __dlock_line_is help" -a $words[1]
        complete -c dlock -n "__dlock_line_is $words[1]; or __dlock_line_is help $words[1]" -a $words[2] -d $meaning
    else
        complete -c dlock -n "__dlock_line_is; or __dlock_line_is help" -a $command -d $meaning
    end
    for option in (__dlock_options $words)
        set -l part (string split \t -- $option)
        set -l spec -l $part[2] -d $part[4]
        test -n "$part[1]"; and set -a spec -s $part[1]
        if test -n "$part[3]"
            set -a __dlock_with_argument "$command -$part[1]" "$command --$part[2]"
            set -a spec -x
            switch $part[2]
                case mode
                    set -a spec -a 'exclusive shared NL CR CW PR PW EX'
                case signal
                    set -a spec -a 'TERM INT HUP QUIT KILL USR1 USR2'
                case on-lost
                    set -a spec -a 'kill warn'
            end
        end
        complete -c dlock -n "__dlock_at '$command' = 0" $spec
    end
    switch $command
        case run elect
            complete -c dlock -n "__dlock_at $command = 0" -a '(__dlock_names)'
            complete -c dlock -n "__dlock_at $command = 1" -a '(__fish_complete_command)'
            complete -c dlock -n "__dlock_at $command -gt 1" -F
        case 'task *'
        case '*'
            complete -c dlock -n "__dlock_at $command = 0" -a '(__dlock_names)'
    end
end
