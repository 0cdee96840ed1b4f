# Proves: the examples in SQL and shell of README.md and of each page of doc run as they stand, page
# after page in one database, as the role that test/demo makes, and say what stands beside
# them: after "--" a value, or an error with its SQLSTATE.  Programs in other languages run in
# client/client_install.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockTest;
use File::Basename qw(dirname);
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = PostgreSQL::Test::Utils::tempdir();
my $node = start_node('main');
my $value = qr/true|false|NULL|[0-9]+|\{\S*\}|[a-z][\w-]*/;

# Those that need more than one server are run by standby/move.
my %elsewhere = ('doc/howto/failover.md' => 1);

# Those that tell what the role of the demo may not do.
my %administrator = map { $_ => 1 } qw(doc/howto/operate.md doc/howto/monitor.md doc/howto/troubleshoot.md doc/reference/sql.md doc/reference/command.md);

# Programs that scripts call, which do nothing.
foreach my $program (qw(report send-parcel))
{
	append_to_file("$place/$program", "#!/bin/sh\n");
	chmod 0755, "$place/$program" or die "$place/$program: $!";
}

# How README.md creates the extension, and what the demo grants.
my ($set_up) = slurp_file("$top/README.md") =~ /^## Install\n.*?^```\n(CREATE SCHEMA .*?)^```$/ms;
my ($grants) = slurp_file("$top/test/demo") =~ /(GRANT [^"]*TO app)"/;
$node->safe_psql('postgres', $_) foreach 'CREATE DATABASE app', 'CREATE ROLE app LOGIN';
$node->safe_psql('app', $set_up);
$node->safe_psql('app', $grants);

# What scripts print, page by page.
my %says = (
	'doc/howto/patterns.md' => [
		qr/^the day's report, with token \d+\n\z/,
		qr/^t\n\z/,
		qr/^(?:a piece of work of less than 5 s, with token (\d+)\n)(?:a piece of work of less than 5 s, with token \1\n){2}t\n\z/,
	],
	'doc/reference/command.md' => [ qr/ free\n0\n\z/ ],
	'README.md' => [ qr/\bbilling\b/ ]);

# What a page leaves behind.
my %leaves = (
	'README.md' => [ q{SELECT string_agg(made, ', ' ORDER BY made) FROM bill}, 'by a script, with it' ],
	'doc/tutorial/nightly-job.md' => [ q{SELECT string_agg(made, ', ' ORDER BY made) FROM report}, 'by a script, by machine-a, by machine-b, tonight' ],
	'doc/howto/patterns.md' => [
		q{SELECT string_agg(concat_ws(' ', key, state, attempts), ', ' ORDER BY key) FROM dlock_tasks WHERE queue = 'mail'},
		'greylisted ready 1, order-4711 done 1, order-4712 sending 1' ],
	'doc/reference/command.md' => [ q{SELECT string_agg(key || ' ' || state, ', ') FROM dlock_tasks WHERE queue = 'parcels'}, 'order-4711 done' ]);

# In the order of the index.
foreach my $page ('README.md', map { "doc/$_" } slurp_file("$top/doc/README.md") =~ /\]\(([^)]+\.md)\)/g)
{
	next if $elsewhere{$page};
	my @blocks = slurp_file("$top/$page") =~ /^ *```(sql|sh)\n(.*?)^ *```$/msg;
	run_page($page, @blocks) if @blocks;
}
$node->stop;
done_testing();

# All blocks of a page are one session, as for a reader who copies them one by one.
sub run_page
{
	my ($page, @blocks) = @_;
	my ($script, @expected, @errors, @scripts) = ('');

	while (my ($language, $block) = splice @blocks, 0, 2)
	{
		if ($language eq 'sh')
		{
			my $file = "$place/" . $page =~ s{/}{.}gr . @scripts;

			# One that would go on for ever has three rounds.
			$block =~ s/^while true; do$/for round in 1 2 3; do/m;
			$block =~ s/(dlock task capture) --wait/$1 --quiet/;
			push @scripts, $file;
			append_to_file($file, $block);
			$script .= "\\! sh $file >$file.out 2>$file.err </dev/null; echo \$? >$file.status\n";
			next;
		}
		foreach my $line (split /\n/, $block)
		{
			$script .= "$line\n";
			my ($comment) = $line =~ /; +-- (.*)/ or next;
			if ($comment =~ /^ERROR: (\w{5})$/)
			{
				push @errors, $1;
			}
			elsif ($comment =~ /^($value)(?:$|: )/)
			{
				push @expected, [ $line, $1 eq 'true' ? 't' : $1 eq 'false' ? 'f' : $1 ];
				$script .= "\\echo \@\@ $#expected\n";
			}
		}
	}

	my ($out, $err);
	{
		local %ENV = (%ENV, PATH => dirname(cli_program()) . ":$place:$ENV{PATH}", PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'app',
			$administrator{$page} ? () : (PGUSER => 'app'));
		IPC::Run::run([ 'psql', '-XAtq', '-P', 'null=NULL', '-v', 'VERBOSITY=sqlstate', '-f', '-' ],
			'<', \$script, '>', \$out, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	}
	is(join(' ', $err =~ /ERROR: +(\w+)/g), join(' ', @errors), "$page: errors") or diag($err);
	my @wrong;
	foreach my $i (0 .. $#expected)
	{
		my ($line, $wanted) = @{ $expected[$i] };
		my ($got) = $out =~ /([^\n]*)\n\@\@ $i\n/;
		push @wrong, "$line\nis " . ($got // 'missing') if ($got // '') ne $wanted;
	}
	is(join("\n", @wrong), '', "$page: " . @expected . ' values');
	foreach my $i (0 .. $#scripts)
	{
		my $said = $says{$page}[$i];

		is(slurp_file("$scripts[$i].status"), "0\n", "$page: script $i") or diag(slurp_file($scripts[$i]));
		is(slurp_file("$scripts[$i].err"), '', "$page: script $i: without a complaint");
		like(slurp_file("$scripts[$i].out"), $said, "$page: script $i: what it says") if $said;
	}
	is($node->safe_psql('app', $leaves{$page}[0]), $leaves{$page}[1], "$page: what it leaves") if $leaves{$page};
	return;
}
