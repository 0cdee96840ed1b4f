# Proves: dlock run rides out what is shorter than the lease, be it a restart, a crash
# or a backend that is terminated.  How long an outage may be is said.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = init_node('main');
$node->start;
my $db = 'postgres';
$node->safe_psql($db, 'CREATE EXTENSION dlock');
use_server($node);

sub sql
{
	my ($sql, $on) = @_;
	return ($on // $node)->safe_psql($db, $sql);
}

my %cut = (
	'a restart' => sub { $node->restart },
	'an immediate stop' => sub { $node->stop('immediate'); $node->start },
	'a crash' => sub { crash_node($node); $node->start },
	'a terminated backend' => sub { sql("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'dlock'") });
foreach my $what (sort keys %cut)
{
	my $run = start_ride(qw(--ttl 600 ride));

	$cut{$what}->();
	$run->wait_err(qr/is renewed again/);
	my ($token) = $run->out =~ /(\d+)/;
	is(sql("SELECT token FROM dlock_leases WHERE name = 'ride' AND state = 'held'"), $token, "$what: the lease is still held");
	is(end_ride($run)->{code}, 3, "$what: ridden out");
	is(sql('SELECT count(*) FROM dlock_leases'), 0, "$what: released");
	unlike($run->{err}, qr/lost|error/, "$what: not a loss");
}

# How long an outage may take is said.
foreach my $case (
	[ [], '53s', '60s' ],
	[ [qw(--ttl 30 --kill-after 10)], '18s', '30s' ])
{
	my ($options, $budget, $ttl) = @$case;
	cli_is([ qw(run -v), @$options, qw(budget true) ], { err => qr/^dlock: info: outage budget: $budget \(ttl $ttl, renewed every 1s, / }, "outage budget: @$options");
}
cli_is([qw(run --ttl 30 --kill-after 15 budget true)], { code => 64, err => qr/error: a ttl of 30s leaves no time.*hint: Use --ttl 32s or more\./s }, 'outage budget: does not fit');

# What a server logs of runs that end as they should: no error.
{
	my $before = -s $node->logfile;
	cli_is([qw(run quiet sleep 1.3)], {}, 'a run of a while');
	my $run = start_ride('quiet');
	$run->signal('TERM');
	is($run->finish->{code}, 143, 'a run that is ended');
	$run = start_ride('quiet');
	sql("SELECT dlock_force_release('quiet', 'test')");
	is($run->finish->{code}, 76, 'a run that loses its lease');
	my $log = substr slurp_file($node->logfile), $before;
	unlike($log, qr/ERROR|FATAL/, 'the server logs no error');
}

# Not there when the command has ended: its own exit code counts.
{
	my $run = start_ride(qw(--ttl 600 end));
	$node->stop('immediate');
	is(end_ride($run)->{code}, 3, 'away at the end: the exit code of the command');
	like($run->{err}, qr/could not be released, and ends by itself/, 'away at the end: told');
	$node->start;
	sql("SELECT dlock_force_release('end', 'next') FROM generate_series(1, 2)");
}

done_testing();
