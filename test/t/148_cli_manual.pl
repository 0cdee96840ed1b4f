# The manual page and the completion of the dlock command: they know each command and
# each option that its help tells of, and no others.

use strict;
use warnings FATAL => 'all';

use File::Basename qw(dirname);
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

my $dlock = $ENV{DLOCK_CLI};
my $top = dirname(__FILE__) . '/../..';
my $page = "$top/doc/dlock.1";
my $completion = "$top/src/cli/completion.bash";
my $source = slurp_file($page);

sub output_of
{
	my @command = @_;
	my $out;

	IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', '/dev/null') or return '';
	return $out;
}

# ---- what there is ----

my @commands = output_of($dlock, '--help') =~ /^  ([a-z][a-z-]*) /mg;
cmp_ok(scalar @commands, '>=', 10, 'the help has a list of commands');

# Options of each command: name => [letter or '', argument or ''].
my (%options, %all);
foreach my $command (@commands)
{
	my ($help) = output_of($dlock, $command, '--help') =~ /^Options:\n(.*)/ms;

	while ($help =~ /^ {2}(?:-(.),| {3}) --([a-z-]+)(?: ([A-Z]+))? /mg)
	{
		my ($letter, $name, $argument) = ($1 // '', $2, $3 // '');
		$options{$command}{$name} = [ $letter, $argument ];
		$all{ ($letter ne '' ? "-$letter, " : '') . "--$name" . ($argument ne '' ? " $argument" : '') } = 1;
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

my ($synopsis) = $source =~ /^\.Sh SYNOPSIS\n(.*?)^\.Sh /ms;
my ($option_section) = $source =~ /^\.Sh OPTIONS\n(.*?)^\.Sh ENVIRONMENT/ms;

my %described;
while ($option_section =~ /^\.It (Fl .*)$/mg)
{
	my $item = $1 =~ s/Fl (-?)(?=\S)/-$1/gr;
	$item =~ s/ ,/,/g;
	$item =~ s/Ar //;
	$described{$item} = 1;
}
is_deeply([ sort keys %described ], [ sort keys %all ], 'the manual page describes each option, and no others');

my %mentioned;
my $at;
foreach my $line (split /\n/, $synopsis)
{
	$at = $1 if $line =~ /^\.Nm dlock Cm (\S+)/;
	next unless defined $at;
	$mentioned{$at}{$1} = 1 while $line =~ /Fl -([a-z][a-z-]*)/g;
	while ($line =~ /Fl ([a-zA-Z]+)/g)
	{
		foreach my $letter (split //, $1)
		{
			my ($name) = grep { $options{$at}{$_}[0] eq $letter } keys %{ $options{$at} };
			$mentioned{$at}{ $name // "?$letter" } = 1;
		}
	}
}
foreach my $command (@commands)
{
	my %of = map { $_ => 1 } keys %{ $options{$command} };
	delete @of{@common};
	is_deeply([ sort keys %{ $mentioned{$command} // {} } ], [ sort keys %of ],
		"the synopsis has the options of $command");
	like($source, qr/^\.It Cm \Q$command\E$/m, "the manual page describes $command");
}

# Exit codes, in the words of the help.
my ($codes) = output_of($dlock, '--help') =~ /^Exit codes.*?\n((?:  .*\n)+)/m;
my @codes = $codes =~ /^  (\d+) /mg;
my ($exit_section) = $source =~ /^\.Sh EXIT STATUS\n(.*?)^\.Sh /ms;
is(join(' ', $exit_section =~ /^\.It (\d+)$/mg), join(' ', @codes), 'the manual page has the exit codes');

SKIP:
{
	my ($out, $err) = ('', '');
	if (grep { -x "$_/mandoc" } split /:/, $ENV{PATH})
	{
		# Whether other pages that it refers to are installed is not its matter.
		IPC::Run::run([ 'mandoc', '-Tlint', $page ], '<', \undef, '>', \$out, '2>', \$err);
		is(join("\n", grep { !/referenced manual not found/ } split /\n/, $out), '', 'mandoc finds no fault with it');
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
	chomp(my $mandir = output_of($ENV{PG_CONFIG}, '--mandir'));
	my $dest = $dlock =~ s{\Q@{[ output_of($ENV{PG_CONFIG}, '--bindir') =~ s/\n//r ]}\E/dlock$}{}r;
	skip 'the place of the installation is not known', 2 if $dest eq $dlock;
	ok(-f "$dest$mandir/man1/dlock.1", 'the manual page is installed');
	chomp(my $sharedir = output_of($ENV{PG_CONFIG}, '--sharedir'));
	ok(-f "$dest" . $sharedir =~ s{/share.*}{}r . '/share/bash-completion/completions/dlock',
		'the completion is installed');
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

is_deeply([ complete('') ], [ sort @commands, qw(help --help --version) ], 'commands');
is_deeply([ complete('help', '') ], [ sort @commands ], 'commands to be helped with');
is_deeply([ complete('re') ], [qw(release renew)], 'commands that begin so');
foreach my $command (@commands)
{
	is_deeply([ complete($command, '--') ], [ sort map { "--$_" } keys %{ $options{$command} } ], "options of $command");
}
is_deeply([ complete('run', '--mo') ], ['--mode'], 'an option that begins so');
is_deeply([ complete('run', '--on-lost', '') ], [qw(kill warn)], 'arguments of an option');
is_deeply([ complete('run', '--on-lost', '=', 'w') ], ['warn'], 'arguments behind a sign');
is_deeply([ complete('run', '--ttl', '') ], [], 'an argument that can be anything');
is_deeply([ complete('run', '--ttl', '5s', '--on') ], [qw(--on-lost)], 'an option behind an argument');
is_deeply([ complete('run', 'name', "$top/META.js") ], [], 'the second word of run is a command');
is_deeply([ complete('run', 'name', 'cat', "$top/META.js") ], ["$top/META.json"], 'behind that come files');
is_deeply([ complete('run', 'name', 'cat', '--') ], [], 'options of the command that is run are not ours');
is_deeply([ complete('nonsense', '') ], [], 'a command that there is not');
{
	local $ENV{PGHOST} = '/nowhere';
	is_deeply([ complete('status', '') ], [], 'names, without a server');
}
done_testing();
