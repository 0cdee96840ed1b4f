# Proves: the commands at the head of each script in doc/bench run, and measure what it says.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $doc = "$FindBin::RealBin/../../../doc";
my @commands = map { slurp_file($_) =~ /^-- ((?:pgbench|psql) .*)/mg } sort glob "$doc/bench/*.sql";
my $node = start_node('main');
local @ENV{qw(PGHOST PGPORT PGDATABASE)} = ($node->host, $node->port, 'postgres');

# What a script does to a counter of the server: at least this often, by 8 clients
# of 10 transactions each.  Clients that choose the same name at a time refuse each other.
my %counted = (pair => [ grants => 1 ], hot => [ grants => 80 ], renew => [ renewals => 80 ], refused => [ refusals => 80 ]);
my %run;

foreach my $command (@commands)
{
	my ($script) = $command =~ /-f (\w+)\.sql/;
	my $counter = defined $script ? $counted{$script}[0] : 'grants';
	my $before = $node->safe_psql('postgres', "SELECT $counter FROM dlock_stats");
	my ($out, $err);

	# Ten times each client, instead of ten seconds.
	$command =~ s/-T 10 /-t 10 /;
	IPC::Run::run([ 'sh', '-c', "cd '$doc/bench' && $command" ], '<', \undef, '>', \$out, '2>', \$err);
	is($?, 0, $command) or diag($err);
	next unless defined $script;
	$run{$script} = 1;
	like($out, qr{^number of transactions actually processed: 80/80$}m, "$script: all have been run");
	cmp_ok($node->safe_psql('postgres', "SELECT $counter FROM dlock_stats"),
		'>=', $before + $counted{$script}[1], "$script: $counter");
}
is_deeply([ sort keys %run ], [ map { m{(\w+)\.sql$} } sort glob "$doc/bench/*.sql" ], 'each script was run');
is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_leases'), 0, 'nothing is left');

$node->stop;
done_testing();
