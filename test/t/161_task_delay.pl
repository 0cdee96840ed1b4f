# Proves: a task that was put off can be captured when its delay is over and not
# before, whoever looks or does not: by the reaper's doing or by the capture's own,
# after a commit that came late, and after a crash.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = start_node('main', conf => "dlock.reap_interval = 1h\n");
my $db = 'postgres';
wait_for_reaper($node, $db);
my ($worker, $other) = map { DLockSession->new($node, $db) } 1 .. 2;
$worker->query_safe("SELECT dlock_task_create_queue('q')");

sub state_of
{
	my ($key) = @_;
	return $other->query("SELECT state || CASE WHEN ready_at IS NULL THEN '' ELSE ' later' END || coalesce(' ' || error, '') FROM dlock_tasks WHERE key = '$key'");
}

sub captured
{
	return $worker->query("SELECT coalesce(string_agg(key, ' ' ORDER BY key), '') FROM dlock_task_capture('q', 100, ttl => '1 h')");
}

# The reaper does it, though it would not look by itself for an hour.
{
	my $from = mono_now();
	$worker->query_safe("SELECT dlock_task_put('q', 'reaped', delay => '400 ms')");
	ok(wait_until(sub { state_of('reaped') eq 'ready' }), 'the reaper ends a delay');
	cmp_ok(mono_now() - $from, '>=', 0.4, 'not before its time');
	is(captured(), 'reaped', 'it can be captured then');
}
{
	my $token = $worker->query("SELECT token FROM dlock_tasks WHERE key = 'reaped'");
	my $from = mono_now();
	is($worker->query("SELECT dlock_task_fail('q', 'reaped', $token, 'busy', delay => '400 ms')"), 'ready', 'given up for a while');
	ok(wait_until(sub { state_of('reaped') eq 'ready busy' }), 'the reaper ends it, and keeps the error');
	cmp_ok(mono_now() - $from, '>=', 0.4, 'not before its time, either');
	is(captured(), 'reaped', 'and it comes again');
	is($worker->query("SELECT attempts FROM dlock_tasks WHERE key = 'reaped'"), 2, 'as an attempt more');
}

# A commit that comes late; and one that does not come.
$worker->query_safe("BEGIN; SELECT dlock_task_put('q', 'late', delay => '100 ms')");
usleep(200_000);
is(state_of('late'), '', 'not committed');
$worker->query_safe('COMMIT');
ok(wait_until(sub { state_of('late') eq 'ready' }), 'committed after its time, it is ready');
is(captured(), 'late', 'and captured');
$worker->query_safe("BEGIN; SELECT dlock_task_put('q', 'never', delay => '1 h'); ROLLBACK");
is($worker->query("SELECT dlock_task_put('q', 'never', state => 'away')"), 't', 'rolled back, it was never put');

# Without a reaper the capture does it.
{
	my $reaper = worker_pid($node, 'reaper', $db);
	ok( $node->poll_query_until($db, "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $reaper"),
		'the reaper is asleep');
	kill 'STOP', $reaper;
	$worker->query_safe("SELECT dlock_task_put('q', 'own', delay => '300 ms'), dlock_task_put('q', 'hour', delay => '1 h')");
	my $until = mono_now() + 0.3;
	usleep(20_000) while mono_now() < $until;
	is(state_of('own'), 'ready later', 'no reaper: it is shown as it is stored');
	is(captured(), 'own', 'no reaper: the capture takes it, and not the other');
	kill 'CONT', $reaper;
}

# Delays outlive a crash, and go on.
$worker->query_safe("SELECT dlock_task_put('q', 'soon', delay => '5 s')");
$_->quit foreach $worker, $other;
my $crashed = mono_now();
$node->stop('immediate');
$node->start;
($worker, $other) = map { DLockSession->new($node, $db) } 1 .. 2;
is(state_of('hour'), 'ready later', 'crash: what has an hour has it still');
ok(wait_until(sub { state_of('soon') eq 'ready' }), 'crash: the delay ends');
cmp_ok(mono_now() - $crashed, '<', 60, 'crash: and does not begin anew');
is(captured(), 'soon', 'crash: only that one');
ok( $worker->query("SELECT ready_at BETWEEN now() + interval '50 min' AND now() + interval '1 h' FROM dlock_tasks WHERE key = 'hour'") eq 't',
	'crash: the other has what it had');
$_->quit foreach $worker, $other;
$node->stop;
done_testing();
