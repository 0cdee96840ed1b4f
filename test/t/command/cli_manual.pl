# The manual page and the completion of the dlock command: they have each command and each
# option that its help has, and no others.

use strict;
use warnings FATAL => 'all';

use File::Basename qw(dirname);
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

my $dlock = $ENV{DLOCK_CLI};
my $top = dirname(__FILE__) . '/../../..';
my $page = "$top/doc/reference/dlock.1";
my $completion = "$top/packaging/completion/dlock.bash";
my $source = slurp_file($page);

sub output_of
{
	my @command = @_;
	my $out;

	IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', '/dev/null') or return '';
	return $out;
}

# ---- what there is ----

# Some have two words.
my @commands = output_of($dlock, '--help') =~ /^  ([a-z][a-z-]*(?: [a-z]+)?)  /mg;
my %first_words = map { s/ .*//r => 1 } @commands;
cmp_ok(scalar @commands, '>=', 10, 'the help has a list of commands');

# Options of each command: name => [letter or '', argument or ''].  "[=SPAN]" may be left out.
my (%options, %all);
foreach my $command (@commands)
{
	my ($help) = output_of($dlock, split(/ /, $command), '--help') =~ /^Options:\n(.*)/ms;

	while ($help =~ /^ {2}(?:-(.),| {3}) --([a-z-]+)( [A-Z]+|\[=[A-Z]+\])? /mg)
	{
		my ($letter, $name, $argument) = ($1 // '', $2, $3 // '');
		$options{$command}{$name} = [ $letter, $argument ];
		$all{ ($letter ne '' ? "-$letter, " : '') . "--$name$argument" } = 1;
	}
	cmp_ok(scalar keys %{ $options{$command} }, '>=', 5, "the help of $command tells its options");
}
my @common = grep { my $name = $_; !grep { !$options{$_}{$name} } @commands } keys %{ $options{run} };
is_deeply([ sort @common ], [qw(dbname help json quiet verbose)], 'options of all commands');

# The table in the source, so that the help leaves none out.
SKIP:
{
	my $table = "$top/src/cli/options.c";
	skip 'there is no source', 1 unless -f $table;
	my %names = map { $_ => 1 } slurp_file($table) =~ /^\t\{OPT_\w+, [^"]*?"([a-z-]+)", /mg;
	my %told = map { $_ => 1 } map { keys %$_ } values %options;
	is_deeply([ sort keys %names ], [ sort keys %told ],
		'the help tells all options of the source');
}

# ---- the manual page ----

# What it says of options comes from the help, and so do its commands.
ok(output_of($^X, "$top/packaging/manual", $dlock) eq $source, 'packaging/manual makes this page; run it after a change of the help or of command.md');
foreach my $command (@commands)
{
	like($source, qr/^\.SS \Q$command\E$/m, "the manual page describes $command");
}
is(scalar(grep { index($source, '\\fB' . s/-/\\-/gr . "\\fR\n") < 0 } keys %all), 0, 'and each option');

# Exit codes, as the help has them.
my ($codes) = output_of($dlock, '--help') =~ /^Exit codes.*?\n((?:  .*\n)+)/m;
my ($exit_section) = slurp_file("$top/doc/reference/command.md") =~ /^## Exit codes\n(.*)/ms;
is(join(' ', $exit_section =~ /^- (\d+):/mg), join(' ', $codes =~ /^  (\d+) /mg), 'and the exit codes');

SKIP:
{
	my ($out, $err) = ('', '');
	if (grep { -x "$_/mandoc" } split /:/, $ENV{PATH})
	{
		# Without a date it stays as it is until the text changes.
		IPC::Run::run([ 'mandoc', '-Tlint', '-W', 'warning', $page ], '<', \undef, '>', \$out, '2>', \$err);
		is(join("\n", grep { !/missing date/ } split /\n/, $out), '', 'mandoc finds no fault with it');
	}
	elsif (grep { -x "$_/groff" } split /:/, $ENV{PATH})
	{
		IPC::Run::run([ 'groff', '-ww', '-mandoc', '-Tutf8', $page ], '<', \undef, '>', \$out, '2>', \$err);
		is($err, '', 'groff finds no fault with it');

		# Bold letters may be printed twice.
		like($out =~ s/.\x08//gr, qr/force-release/, 'groff prints it');
	}
	else
	{
		skip 'there is neither mandoc nor groff', 1;
	}
}

# It is installed with the command, and so is the completion.
SKIP:
{
	my $dest = $dlock =~ s{\Q@{[ output_of($ENV{PG_CONFIG}, '--bindir') =~ s/\n//r ]}\E/dlock$}{}r;
	skip 'the place of the installation is not known', 4 if $dest eq $dlock;
	chomp(my $sharedir = output_of($ENV{PG_CONFIG}, '--sharedir'));
	my $share = "$dest" . $sharedir =~ s{/share.*}{/share}r;
	ok(-f "$share/man/man1/dlock.1", 'the manual page is installed, where man looks for it');
	ok(-f "$share/bash-completion/completions/dlock", 'the completion of bash is installed');
	ok(-f "$share/fish/vendor_completions.d/dlock.fish", 'that of fish is');
	ok((-f "$share/zsh/vendor-completions/_dlock" || -f "$share/zsh/site-functions/_dlock"), 'that of zsh is');
}

# ---- the completion ----

# What bash offers for the last of these words.
sub complete
{
	my @words = ($dlock, @_);

	return sort split /\n/, output_of('bash', '--norc', '--noprofile', '-c', <<'EOC', 'bash', $completion, @words);
set -u
. "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_dlock 2>&1
[ ${#COMPREPLY[@]} = 0 ] || printf '%s\n' "${COMPREPLY[@]}"
EOC
}

is_deeply([ complete('') ], [ sort keys %first_words, qw(help --help --version) ], 'commands');
is_deeply([ complete('help', '') ], [ sort keys %first_words ], 'commands to be helped with');
is_deeply([ complete('re') ], [qw(release renew)], 'commands that begin so');
is_deeply([ complete('task', '') ], [qw(capture fail finish list put)], 'second words');
is_deeply([ complete('help', 'task', 'f') ], [qw(fail finish)], 'second words to be helped with');
is_deeply([ complete('task', 'fly', '--') ], [], 'a second word that there is not');
foreach my $command (@commands)
{
	is_deeply([ complete(split(/ /, $command), '--') ], [ sort map { "--$_" } keys %{ $options{$command} } ], "options of $command");
}
is_deeply([ complete('run', '--mo') ], ['--mode'], 'an option that begins so');
is_deeply([ complete('run', '--on-lost', '') ], [qw(kill warn)], 'arguments of an option');
is_deeply([ complete('run', '--on-lost', '=', 'w') ], ['warn'], 'arguments behind a sign');
is_deeply([ complete('run', '--ttl', '') ], [], 'an argument that can be anything');
is_deeply([ complete('run', '--ttl', '5s', '--on-l') ], [qw(--on-lost)], 'an option behind an argument');
is_deeply([ complete(qw(task capture --wait = 5s --ti)) ], [qw(--timeout)], 'an option behind an argument that may be left out');
is_deeply([ complete(qw(task capture --wait --ti)) ], [qw(--timeout)], 'an option behind one without it');
is_deeply([ complete('run', 'name', "$top/META.js") ], [], 'the second word of run is a command');
is_deeply([ complete('run', 'name', 'cat', "$top/META.js") ], ["$top/META.json"], 'behind that come files');
is_deeply([ complete('run', 'name', 'cat', '--') ], [], 'options of the command that is run are not ours');
is_deeply([ complete('nonsense', '') ], [], 'a command that there is not');
{
	local $ENV{PGHOST} = '/nowhere';
	is_deeply([ complete('status', '') ], [], 'names, without a server');
}

# ---- other shells ----

sub has_program
{
	my ($name) = @_;
	return scalar grep { -x "$_/$name" } split /:/, $ENV{PATH};
}

# The shells look for the command on the PATH.
my $bin = PostgreSQL::Test::Utils::tempdir();
symlink $dlock, "$bin/dlock" or die "$bin/dlock: $!";
local $ENV{PATH} = "$bin:$ENV{PATH}";
local $ENV{HOME} = $bin;

# What fish offers for a line, each with a tab and its meaning, or complains about.
sub explain_fish
{
	my ($line) = @_;

	return split /\n/, output_of('sh', '-c', 'exec "$@" 2>&1', 'sh',
		'fish', '--no-config', '-c', 'source $argv[1]; complete -C $argv[2]',
		"$top/packaging/completion/dlock.fish", $line);
}

sub complete_fish
{
	return sort map { s/\t.*//r } explain_fish(@_);
}

# What zsh offers for a line.  Only its line editor completes, so it gets a terminal,
# and what it would list is printed.
append_to_file("$bin/.zshrc", <<'EOC');
PROMPT=
autoload -U compinit
compinit -u -D
source $COMPLETION
compdef _dlock dlock
setopt rcexpandparam
zstyle ":completion:*" verbose no
compadd() {
	local -a found
	if [[ " ${@[1,(i)(-|--)]} " != *" -"[OAD]" "* ]]; then
		builtin compadd -A found "$@"
		(( ! $#found )) || print -l -- "offered "$found
	fi
	builtin compadd "$@"
}
finish() {
	print -- "all is offered"
	exit
}
comppostfuncs=(finish)
bindkey "^I" complete-word
print ready
EOC

sub complete_zsh
{
	my ($line) = @_;
	local @ENV{qw(ZDOTDIR TERM COMPLETION)} = ($bin, 'dumb', "$top/packaging/completion/dlock.zsh");
	my $out = output_of('zsh', '-f', '-c', <<'EOC', 'zsh', $line);
zmodload zsh/zpty
zpty z zsh -d -i
zpty -r -m z seen '*ready*' || exit
zpty -n -w z "$1"$'\t'
zpty -r -m z offered '*all is offered*'
print -r -- $offered
EOC

	my %offered = map { $_ => 1 } $out =~ /offered (\S+)/g;
	return sort keys %offered;
}

# Its meaning takes two lines of the help.
SKIP:
{
	skip 'there is no fish', 1 unless has_program('fish');
	is_deeply([ explain_fish('dlock run --lock-d') ],
		[ "--lock-delay\t" . 'how long the lock stays closed if the lease expires or is released by force' ], 'fish: the whole meaning');
}

foreach my $shell ([ fish => \&complete_fish ], [ zsh => \&complete_zsh ])
{
	my ($name, $complete) = @$shell;

  SKIP:
	{
		skip "there is no $name", 1 unless has_program($name);
		is_deeply([ $complete->('dlock re') ], [qw(release renew)], "$name: commands that begin so");
		is_deeply([ $complete->('dlock task ') ], [qw(capture fail finish list put)], "$name: second words");
		is_deeply([ $complete->('dlock help task f') ], [qw(fail finish)], "$name: second words to be helped with");
		foreach my $command ('run', 'status', 'task fail', 'task capture')
		{
			is_deeply([ $complete->("dlock $command --") ], [ sort map { "--$_" } keys %{ $options{$command} } ], "$name: options of $command");
		}
		is_deeply([ $complete->('dlock run --on-lost ') ], [qw(kill warn)], "$name: arguments of an option");
		is_deeply([ $complete->('dlock run --ttl 5s --on-l') ], [qw(--on-lost)], "$name: an option behind an argument");
		is_deeply([ $complete->('dlock run name dloc') ], ['dlock'], "$name: the second word of run is a command");
		is_deeply([ map { s{.*/}{}r } $complete->("dlock run name cat $top/META.js") ], ['META.json'], "$name: behind that come files");
	}
}
done_testing();
