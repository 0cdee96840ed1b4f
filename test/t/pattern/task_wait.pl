# Proves: a commit wakes one session that waits for its queue for each task that it makes
# available, and nothing else does; a capture that waits finds what nobody has announced
# by itself, and ends when its time is up, its queue goes or it is canceled; and it takes
# next to no processor time.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', conf => "max_prepared_transactions = 2\n");
my $db = 'postgres';
my $boss = DLockSession->new($node, $db, name => 'boss');
$boss->query_safe("SELECT dlock_queue_create('q', max_attempts => NULL, retry_delay => '0')");
my $id = $boss->query_safe("SELECT queue_id FROM _dlock.task_queue");

# Sessions that sleep until they are signalled: no capture, which would scan each second.
my @sleepers = open_sessions($node, $db, 3, name => 'sleeper');

sub put_to_sleep
{
	$_->ask_waiting($boss, "SELECT _dlock.signal_wait($id, _dlock.signals($id), 'infinity') IS NOT NULL") foreach @_;
	return;
}

# So many of the sleepers wake up, and the others go on sleeping.
sub wakes
{
	my ($count, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @awake;

	wait_until(sub { (@awake = grep { $_->answered } @sleepers) >= $count });
	nobody_answers("$name: the others sleep", grep { !$_->answered } @sleepers) if $count < @sleepers;
	@awake = grep { $_->answered } @sleepers;
	is(scalar @awake, $count, $name);
	$_->answer foreach @awake;
	put_to_sleep(@awake);
	return;
}
put_to_sleep(@sleepers);

# ---- what a commit signals ----

$boss->query_safe("SELECT dlock_task_put('q', 'a')");
wakes(1, 'a task that is put');
$boss->query_safe("SELECT dlock_task_put('q', 'a')");
wakes(0, 'one that is there already');
$boss->query_safe("SELECT dlock_task_put('q', 'later', delay => '1 h')");
wakes(0, 'one that is put off');
$boss->query('BEGIN');
$boss->query_safe("SELECT dlock_task_put('q', 'b'), dlock_task_put('q', 'c')");
wakes(0, 'two that are not committed');
$boss->query('COMMIT');
wakes(2, 'two that are committed');
$boss->query('BEGIN');
$boss->query_safe("SELECT count(dlock_task_put('q', 'x' || i)) FROM generate_series(1, 9) i");
$boss->query('ROLLBACK');
wakes(0, 'a rollback');
$boss->query_safe("SELECT count(dlock_task_put('q', 'x' || i)) FROM generate_series(1, 9) i");
wakes(3, 'more tasks than there are sessions');
$boss->query_safe("SELECT count(*) FROM dlock_task_capture('q', 3)");
wakes(0, 'a capture');
$boss->query_safe("SELECT dlock_task_finish('q', key, token) FROM dlock_tasks WHERE key = 'a'");
wakes(0, 'a task that is finished');
$boss->query_safe("SELECT dlock_task_fail('q', key, token) FROM dlock_tasks WHERE key = 'b'");
wakes(1, 'one that failed');
$boss->query_safe("SELECT dlock_task_release('q', key, token) FROM dlock_tasks WHERE key = 'c'");
wakes(1, 'one that is given back');
$boss->query_safe("SELECT dlock_task_set('q', 'later', NULL, 'ready')");
wakes(1, 'one that is put off no more');
$boss->query_safe("SELECT dlock_queue_create('other'), dlock_task_put('other', 'a')");
wakes(0, 'another queue, of another hash');

# A session that is canceled leaves its place.
$boss->query_safe('SELECT pg_cancel_backend(' . $sleepers[0]->pid . ')');
is($sleepers[0]->answer, 'ERROR 57014', 'canceled');
$boss->query_safe("SELECT count(dlock_task_put('q', 'y' || i)) FROM generate_series(1, 2) i");
ok(wait_until(sub { $sleepers[1]->answered && $sleepers[2]->answered }), 'canceled: the others get all signals');
$_->answer foreach @sleepers[ 1, 2 ];
$boss->query_safe("SELECT dlock_queue_drop('q')");

# ---- captures that wait ----

my ($worker, $monitor) = @sleepers;
$boss->query_safe("SELECT dlock_queue_create('w', retry_delay => '0')");
sub capture { return "SELECT key FROM dlock_task_capture('w', ttl => '1 h', wait => " . (shift // 'NULL') . ')' }

sub gets
{
	my ($key, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($worker->answer, $key, $name);
}
$worker->ask_waiting($monitor, capture());
$boss->query_safe("SELECT dlock_task_put('w', 'a')");
gets('a', 'a task that is put');
$boss->query_safe("SELECT dlock_task_put('w', 'b')");
is($worker->query(capture()), 'b', 'one that is there');
is($worker->query(capture("'100 ms'")), '', 'none in time');

# What no commit announces: the end of a delay, or of a capture, and another session's rollback.
$worker->ask_waiting($monitor, capture());
$boss->query_safe("SELECT dlock_task_put('w', 'c', delay => '1 h')");
$boss->query_safe("UPDATE _dlock.task SET ready_at = now(), put_off = now() WHERE key = 'c'");
gets('c', 'a delay that ends');
$worker->ask_waiting($monitor, capture());
$boss->query_safe("UPDATE _dlock.task SET expires_at = now(), ready_at = now() WHERE key = 'c'");
gets('c', 'a capture that times out');
$boss->query('BEGIN');
$boss->query_safe("SELECT dlock_task_put('w', 'd')");
$worker->ask_waiting($monitor, capture());
$boss->query("PREPARE TRANSACTION 'p'");
$boss->query("COMMIT PREPARED 'p'");
gets('d', 'a transaction that was prepared');
$boss->query_safe("SELECT dlock_task_put('w', 'e')");
$boss->query('BEGIN');
is($boss->query(capture()), 'e', 'captured, not committed');
$worker->ask_waiting($monitor, capture());
$boss->query('ROLLBACK');
gets('e', 'a rollback gives the task back');

# An empty queue costs no processor time but for a scan each second.
{
	my @pids = map { $_->pid } @sleepers;
	$_->ask_waiting($boss, capture()) foreach @sleepers;
	my $before = processor_ticks(@pids);
	my $began = mono_now();
	$boss->query_safe('SELECT pg_sleep(4)');
	my $seconds = mono_now() - $began;
	my $used = processor_ticks(@pids) - $before;
	note sprintf '%d hundredths of a second in %.1f s', $used, $seconds;
	cmp_ok($used / $seconds, '<', 6, 'three captures that wait take hardly any of a processor');
	nobody_answers('they all wait', @sleepers);
	$boss->query_safe('SELECT pg_cancel_backend(' . $_->pid . ')') foreach @sleepers;
	is(join(' ', map { $_->answer } @sleepers), 'ERROR 57014 ERROR 57014 ERROR 57014', 'until they are canceled');
}

# The end of a wait.
$worker->ask_waiting($monitor, capture());
$boss->query_safe('SELECT pg_cancel_backend(' . $worker->pid . ')');
is($worker->answer, 'ERROR 57014', 'canceled');
$worker->ask_waiting($monitor, capture());
$boss->query_safe("SELECT dlock_queue_drop('w')");
is($worker->answer, 'ERROR 42704', 'the queue is dropped');
is($worker->query('SELECT 1'), 1, 'the session goes on');

$node->stop;
done_testing();
