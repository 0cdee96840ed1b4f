# Proves: a task that was put off can be captured when its delay is over and not
# before, whoever looks or does not: by the reaper's doing or by the capture's own,
# after a commit that came late, and after a crash.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = start_node('main', conf => "dlock.reap_interval = 1h\n");
my $db = 'postgres';
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
	pause_reapers($node);
	$worker->query_safe("SELECT dlock_task_put('q', 'own', delay => '300 ms'), dlock_task_put('q', 'hour', delay => '1 h')");
	my $until = mono_now() + 0.3;
	usleep(20_000) while mono_now() < $until;
	is(state_of('own'), 'ready later', 'no reaper: it is shown as it is stored');
	is(captured(), 'own', 'no reaper: the capture takes it, and not the other');
	resume_reapers($node);
}

# Delays outlive a crash, and go on: begun anew, the long one would end later by
# what had passed of it, which is two seconds at least.
my $ready_at = $worker->query("SELECT ready_at FROM dlock_tasks WHERE key = 'hour'");
$worker->query_safe("SELECT dlock_task_put('q', 'soon', delay => '3 s')");
wait_until(sub { $worker->query("SELECT '$ready_at' - clock_timestamp() < interval '1 h' - interval '2 s'") eq 't' });
$_->quit foreach $worker, $other;
$node->stop('immediate');
$node->start;
($worker, $other) = map { DLockSession->new($node, $db) } 1 .. 2;
is(state_of('hour'), 'ready later', 'crash: what has an hour has it still');
cmp_ok(abs $worker->query("SELECT extract(epoch FROM ready_at - '$ready_at') FROM dlock_tasks WHERE key = 'hour'"), '<', 1, 'crash: and no more');
ok(wait_until(sub { state_of('soon') eq 'ready' }), 'crash: the delay ends');
is(captured(), 'soon', 'crash: only that one');
$_->quit foreach $worker, $other;
$node->stop;
done_testing();
