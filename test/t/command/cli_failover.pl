# Proves: dlock run keeps its lease over a failover, and whatever timeouts its role has.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockStall;
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

# Timeouts of the role are for others.  They hold while it connects, too, which a
# machine that stands still may do just then; later it asks every second, and is idle
# in between.
{
	sql("CREATE ROLE hasty LOGIN SUPERUSER");
	sql("ALTER ROLE hasty SET $_") foreach "statement_timeout = '2s'", "idle_session_timeout = '900ms'", "lock_timeout = '2s'";
	my $run = undisturbed(sub { cli({ env => { PGUSER => 'hasty' } }, qw(run -s hasty sleep 3)) });
	is($run->{code}, 0, 'timeouts of the role: keeping a lease');
	is($run->{err}, '', 'timeouts of the role: without a word');
	sql("SELECT dlock_acquire('hasty', 'holder', '1 h')");
	$run = undisturbed(
		sub {
			my $waits = DLockCli->start({ env => { PGUSER => 'hasty' } }, qw(run hasty true));
			wait_until(sub { $waits->ended || sql("SELECT count(*) FROM dlock_waiters WHERE name = 'hasty'") == 1 });
			return $waits;
		}, sub { !$_[0]->ended });
	ok(wait_until(sub { sql("SELECT waited > interval '3 s' FROM dlock_waiters WHERE name = 'hasty'") eq 't' }),
		'timeouts of the role: keeps its place in the queue');
	sql("SELECT dlock_release('hasty', 'holder')");
	is($run->finish->{code}, 0, 'timeouts of the role: exit code');
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
