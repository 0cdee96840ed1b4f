# Proves: dlock run keeps its lease over a failover, a connection or a host that freezes,
# a slow network and the timeouts of the role.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockStall;
use DLockStandby;
use DLockTest;
use IO::Select;
use IO::Socket::UNIX;
use POSIX ();
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

# A connection that does not answer, though it is open.
{
	my $run = start_ride(qw(--ttl 120 --kill-after 0.5 ride));
	my $backend = stop_idle_backend();
	$run->wait_err(qr/does not answer/);
	$run->wait_err(qr/is renewed again/);
	is(end_ride($run)->{code}, 3, 'a frozen connection: ridden out');
	kill 'CONT', $backend;
}

# Something between the command and the server that passes on what it gets a while
# later.  Returns the directory of its socket, and the process group that it is.
sub start_proxy
{
	my ($delay) = @_;
	my $proxy = PostgreSQL::Test::Utils::tempdir_short();
	my $socket = '.s.PGSQL.' . $node->port;
	my $server = IO::Socket::UNIX->new(Local => "$proxy/$socket", Listen => 10) or die "$proxy: $!";
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		POSIX::setpgid(0, 0);
		$SIG{CHLD} = 'IGNORE';
		while (1)
		{
			my $client = $server->accept or next;
			next if fork;
			my $backend = IO::Socket::UNIX->new(Peer => $node->host . "/$socket") or POSIX::_exit(1);
			my $select = IO::Select->new($client, $backend);
			while (1)
			{
				foreach my $from ($select->can_read)
				{
					sysread($from, my $data, 65536) or POSIX::_exit(0);
					select undef, undef, undef, $delay;
					syswrite($from == $client ? $backend : $client, $data) or POSIX::_exit(0);
				}
			}
		}
	}
	POSIX::setpgid($pid, $pid);
	return ($proxy, $pid);
}

sub end_proxy
{
	my ($pid) = @_;

	kill 'KILL', -$pid;
	waitpid $pid, 0;
	return;
}

# Answers that always take long are no reason not to begin.
{
	my ($proxy, $pid) = start_proxy(0.3);
	cli_is([ 'run', '-d', "host=$proxy", qw(--ttl 30 -s slow true) ], {}, 'a slow network');
	end_proxy($pid);
}

# Another host gets its turn in time if one freezes.
{
	my ($proxy, $pid) = start_proxy(0);
	my $hosts = "host=$proxy," . $node->host . ' port=' . join(',', ($node->port) x 2);
	my $run = start_ride('-d', $hosts, qw(--ttl 60 --kill-after 3 frozen));
	kill 'STOP', -$pid;
	$run->wait_err(qr/is renewed again|stopping the command/);
	is(end_ride($run)->{code}, 3, 'a frozen host: ridden out');
	end_proxy($pid);
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
