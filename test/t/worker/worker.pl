# Proves: one worker, in no database, erases what has expired at its deadline, in memory
# and on disk, and nothing else; stopped, terminated or missing it costs tidiness only.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', conf => "restart_after_crash = on\n");
my $db = 'postgres';
$node->safe_psql($db, 'CREATE DATABASE work');
$node->safe_psql('work', 'CREATE EXTENSION dlock');

is($node->safe_psql($db, "SELECT count(*), count(datname), count(backend_xmin) FROM pg_stat_activity WHERE backend_type LIKE 'dlock%'"),
	'1|0|0', 'one worker, in no database, which does not hold back vacuum');

# The names of the leases that are on disk.
sub on_disk
{
	my %slots = store_slots($node, 'work');
	return join ' ', sort keys %slots;
}

# It erases what has expired, at the deadline; what is live or renewed stays.
{
	$node->safe_psql('work', <<'EOC');
SELECT count(dlock_acquire('short-' || i, 'alice', '500 ms')) FROM generate_series(1, 2000) i;
SELECT count(dlock_acquire('shorter-' || i, 'alice', '100 ms')) FROM generate_series(1, 100) i;
SELECT dlock_acquire('held', 'alice', '1 h'), dlock_acquire('renewed', 'alice', '1 s');
EOC
	ok( wait_until(
			sub {
				$node->safe_psql('work',
					"SELECT dlock_acquire('renewed', 'alice', '1 s', reentry => 'return') IS NOT NULL AND dlock_renew('renewed', 'alice', '1 h')") eq 't';
			}),
		'one is renewed');
	ok(wait_until(sub { on_disk() eq 'held renewed' }), 'the others are erased on disk');
	is($node->safe_psql('work', 'SELECT leases FROM dlock_stats'), 2, 'and in memory');

	# Their room is used again.
	my $size = $node->safe_psql('work', "SELECT pg_relation_size('_dlock.store')");
	$node->safe_psql('work', "SELECT count(dlock_acquire('next-' || i, 'alice', '1 h')) FROM generate_series(1, 2000) i");
	is($node->safe_psql('work', "SELECT pg_relation_size('_dlock.store')"), $size, 'the store does not grow');
	$node->safe_psql('work', "SELECT dlock_release_all('alice')");
}

# A nearer deadline wakes it out of a longer nap; paths and other leases without a record
# of their own go as well.
{
	$node->safe_psql('work', "SELECT dlock_acquire('far', 'alice', '1 h')");
	$node->safe_psql('work', "SELECT dlock_acquire('near', 'alice', '200 ms'), dlock_acquire_path('a/b/c', 'alice', '200 ms')");
	ok(wait_until(sub { on_disk() eq 'far' }), 'a nearer deadline is seen to');
	ok(wait_until(sub { $node->safe_psql('work', 'SELECT leases FROM dlock_stats') == 1 }), 'and all parts of a path');
}

# A request that an expired lease keeps waiting together with others is woken by it.
{
	my ($holder, $waiter) = map { DLockSession->new($node, 'work') } 1 .. 2;

	$holder->query_safe("SELECT dlock_acquire('one', 'holder', '500 ms'), dlock_acquire('two', 'holder', '500 ms')");
	$waiter->ask("SELECT dlock_acquire_all('{one, two}', 'waiter', '1 h', NULL)");
	like($waiter->answer, qr/^\{\d+,\d+\}$/, 'who waits is granted');
	$waiter->query_safe("SELECT dlock_release_all('waiter')");
	$_->quit foreach $holder, $waiter;
}

# After a start nobody knows where the leases are; the first use tells.
{
	$node->safe_psql('work', "SELECT dlock_acquire('short', 'alice', '300 ms')");
	flush_wal($node, 'work');
	crash_node($node);
	$node->start;
	ok(wait_until(sub { $node->safe_psql('work', "SELECT string_agg(name, ' ') FROM dlock_leases") eq 'far' }), 'after a crash: what expired is gone');
	ok(wait_until(sub { on_disk() eq 'far' }), 'on disk, too');
}

# Stopped, it costs tidiness only (queue/deadline has the moments).
{
	pause_worker($node);
	my $session = DLockSession->new($node, 'work');

	# Expired leases that nobody has erased are not shown or counted.
	$session->query_safe("SELECT count(dlock_acquire('dead-' || i, 'carol', '1 microsecond')) FROM generate_series(1, 100) i; SELECT pg_sleep(0.001)");
	is($session->query_safe("SELECT count(*) FROM dlock_leases WHERE name LIKE 'dead-%'"), 0, 'expired leases are not shown');
	is($session->query_safe("SELECT dlock_renew_all('carol') + dlock_release_all('carol')"), 0, 'nor renewed, nor released');

	resume_worker($node);
	ok(wait_until(sub { on_disk() !~ /dead/ }), 'once it goes on, it erases them');
	$session->quit;
}

# Terminated, it comes back, and finds what it knew of.
{
	my $pid = worker_pid($node);
	$node->safe_psql('work', "SELECT dlock_acquire('short', 'alice', '1 s')");
	$node->safe_psql($db, "SELECT pg_terminate_backend($pid)");
	wait_gone($pid);
	ok(wait_until(sub { on_disk() !~ /short/ }), 'pg_terminate_backend: the next one erases');
	isnt(worker_pid($node), $pid, 'it is another one');
}

# A cancel ends nothing but what it is at, and it goes on.
{
	my $pid = worker_pid($node);
	$node->safe_psql($db, "SELECT pg_cancel_backend($pid)");
	$node->safe_psql('work', "SELECT dlock_acquire('short', 'alice', '10 ms')");
	ok(wait_until(sub { on_disk() !~ /short/ }), 'pg_cancel_backend: leases are erased');
}

# Missing, for the server has no room for it, it costs tidiness only, as well.  With one
# that nobody else takes it has room.
foreach my $launchers (4, 0)
{
	$node->append_conf('postgresql.conf', "max_worker_processes = 1\nmax_logical_replication_workers = $launchers");
	my $log = -s $node->logfile;
	$node->restart;
	my $session = DLockSession->new($node, 'work');
	my $waiter = DLockSession->new($node, 'work');
	$session->query_safe("SELECT dlock_acquire('x', 'alice', '200 ms'), dlock_acquire('y', 'alice', '200 ms')");
	cmp_ok($waiter->query_safe("SELECT dlock_acquire('x', 'bob', '1 h', wait => '1 min')"), '>', 0, "who waits gets the lock, $launchers");
	if ($launchers)
	{
		is($session->query_safe("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'dlock worker'"), 0, 'there is none');
		like(slurp_file($node->logfile, $log), qr/LOG: .*too many background workers.*HINT: .*max_worker_processes/s, 'the server log says so');
		like(on_disk(), qr/y/, 'nobody erases');
	}
	else
	{
		ok(wait_until(sub { on_disk() !~ /y/ }), 'max_worker_processes = 1: it erases');
	}
	$session->query_safe("SELECT dlock_release('x', 'bob')");
	$_->quit foreach $session, $waiter;
}

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|could not drop|invalid page|FATAL: +(?!terminating|the database system)/, 'nothing odd in the log');
done_testing();
