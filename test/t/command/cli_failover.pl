# Proves: dlock run keeps its lease over a failover, and whatever timeouts the server has.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockStandby;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = init_node('main', allows_streaming => 1, conf => "wal_level = replica");
$node->start;
my $db = 'postgres';
$node->safe_psql($db, 'CREATE EXTENSION dlock');
use_server($node);

sub sql
{
	my ($sql, $on) = @_;
	return ($on // $node)->safe_psql($db, $sql);
}

# Timeouts of the server are for others: the session of a command has none when it is idle, nor when it waits.
{
	my @timeouts = qw(statement_timeout lock_timeout idle_session_timeout);

	sql('CREATE ROLE hasty LOGIN SUPERUSER');
	set_timeouts($node, map { $_ => '1h' } @timeouts);
	my $keeps = start_ride(qw(-d user=hasty -s kept));
	sql("SELECT dlock_acquire('hasty', 'holder', '1 h')");
	my $waits = DLockCli->start(qw(run -d user=hasty hasty true));
	run_waits($node, 'hasty');
	set_timeouts($node, (map { $_ => '1s' } @timeouts), idle_session_timeout => '100ms');
	my $renewed = sql('SELECT renewals FROM dlock_stats');
	ok(waits_anew($node, 'hasty', 1.5), 'timeouts: keeps its place in the queue');
	ok($node->poll_query_until($db, "SELECT renewals > $renewed + 1 FROM dlock_stats"), 'timeouts: keeps its lease');
	set_timeouts($node, map { $_ => 0 } @timeouts);
	unlike(slurp_file($node->logfile), qr/idle-session timeout/, 'timeouts: is not cut off');
	sql("SELECT dlock_release('hasty', 'holder')");
	is($waits->finish->{code}, 0, 'timeouts: exit code of what has waited');
	is(end_ride($keeps)->{code}, 3, 'timeouts: exit code of what was kept');
}

# A standby takes the primary's place, and is promoted a while later.
{
	my $standby = make_standby($node, 'heir');
	my $run = start_ride(qw(-v --ttl 600 heir));
	$node->wait_for_catchup($standby);
	$standby->stop;
	$node->stop('immediate');
	$standby->append_conf('postgresql.conf', 'port = ' . $node->port);
	$standby->start;
	$run->wait_err(qr/the server cannot be reached: cannot execute .* during recovery/);
	$standby->promote;
	$run->wait_err(qr/is renewed again/);
	is(end_ride($run)->{code}, 3, 'a node that is promoted late: ridden out');
	is(sql('SELECT count(*) FROM dlock_leases'), 0, 'a node that is promoted late: released');
	$standby->stop;
	$node->start;
	sql("SELECT dlock_force_release('heir', 'next') FROM generate_series(1, 2)");
}

# A standby is promoted, and the primary is gone.
{
	my $standby = make_standby($node, 'standby');
	my $hosts = 'host=' . join(',', $standby->host, $node->host) . ' port=' . join(',', $standby->port, $node->port) . " dbname=$db";
	my $run = start_ride('-d', $hosts, qw(--ttl 600 failover));
	my ($token) = $run->out =~ /(\d+)/;
	is(sql("SELECT token FROM dlock_leases WHERE name = 'failover'"), $token, 'failover: of several hosts the primary is taken');
	$node->wait_for_catchup($standby);
	$node->stop('immediate');
	$standby->promote;
	$run->wait_err(qr/is renewed again/);
	is(sql("SELECT dlock_check('failover', $token)", $standby), 't', 'failover: the lease is held on the new primary');
	is(end_ride($run)->{code}, 3, 'failover: ridden out');
	is(sql("SELECT count(*) FROM dlock_leases", $standby), 0, 'failover: released there');
	cli_is([ 'status', '-d', $hosts ], { out => '' }, 'failover: others find it too');
	$standby->stop;
}

done_testing();
