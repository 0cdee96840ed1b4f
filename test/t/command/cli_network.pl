# Proves: dlock run keeps its lease over a connection or a host that freezes, and a slow
# network.

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

# Stop the backend of a command that holds a lease, between two renewals: one that is
# stopped at work may hold what everybody else would wait for.
sub stop_idle_backend
{
	my $pid;

	wait_until(
		sub {
			($pid) = sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'dlock' AND state = 'idle'"
				  . " AND clock_timestamp() - state_change BETWEEN '10 ms' AND '500 ms'") =~ /(\d+)/;
			return 0 unless defined $pid;
			kill 'STOP', $pid;
			wait_until(sub { slurp_file("/proc/$pid/stat") =~ /\) T / }) or die "$pid does not stop";
			return 1 if sql("SELECT state FROM pg_stat_activity WHERE pid = $pid") eq 'idle';
			kill 'CONT', $pid;
			return 0;
		}) or die 'nobody is idle';
	return $pid;
}

# Answers that always take long are no reason not to begin.
{
	my ($proxy, $pid) = start_proxy($node, 0.3);
	cli_is([ 'run', '-d', "host=$proxy", qw(--ttl 30 -s slow true) ], {}, 'a slow network');
	end_proxy($pid);
}

# A connection that does not answer, though it is open; and another host that gets its turn
# in time if one freezes.
{
	my ($proxy, $pid) = start_proxy($node, 0);
	my $hosts = "host=$proxy," . $node->host . ' port=' . join(',', ($node->port) x 2);
	my $connection = start_ride(qw(--ttl 120 --kill-after 0.5 connection));
	my $backend = stop_idle_backend();
	my $host = start_ride('-d', $hosts, qw(--ttl 60 --kill-after 3 host));

	kill 'STOP', -$pid;
	$host->wait_err(qr/is renewed again|stopping the command/);
	is(end_ride($host)->{code}, 3, 'a frozen host: ridden out');
	end_proxy($pid);
	$connection->wait_err(qr/does not answer/);
	$connection->wait_err(qr/is renewed again/);
	is(end_ride($connection)->{code}, 3, 'a frozen connection: ridden out');
	kill 'CONT', $backend;
}

done_testing();
