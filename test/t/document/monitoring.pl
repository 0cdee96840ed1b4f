# Proves: what a monitor reads is right, and can be read by every role and on a
# standby: dlock_task_state, dlock_group_state, and dlock_stats;
# each lease that expires is logged once if dlock.log_expirations says so.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockSession;
use DLockStandby;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', allows_streaming => 1, conf => <<'EOC');
log_min_messages = log
EOC
my $db = 'postgres';
$node->safe_psql($db, <<'EOS');
CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
CREATE ROLE stranger LOGIN;
CREATE ROLE worker LOGIN;
GRANT EXECUTE ON FUNCTION dlock_fence(text, bigint, boolean), dlock_guard() TO PUBLIC;
EOS
my $session = DLockSession->new($node, $db);
my $waiter = DLockSession->new($node, $db);
my $stranger = DLockSession->new($node, $db, user => 'stranger');
my $monitor = DLockSession->new($node, $db, user => 'monitor');
use_server($node);
pause_worker($node);

sub stat_of
{
	return $stranger->query_safe("SELECT $_[0] FROM dlock_stats");
}

# Settings are seen by a session once it has been told.
sub set
{
	my ($name, $value) = @_;

	$node->append_conf('postgresql.conf', "$name = $value");
	$node->reload;
	foreach my $each ($session, $waiter)
	{
		ok(wait_until(sub { $each->query_safe("SHOW $name") eq $value }), "$name = $value");
	}
	return;
}

# ---- leases ----
{
	is(stat_of('leases'), '0', 'nothing yet');
	$session->query_safe("SELECT dlock_acquire('held', 'alice', '1 h'), dlock_acquire_path('a/b/c', 'alice', '1 h'), "
		  . "dlock_acquire('closed', 'alice', '1 h', min_hold => '1 h'), dlock_release('closed', 'alice')");
	is(stat_of('leases, leases = (SELECT count(*) FROM dlock_leases)'), '5|t', 'as in dlock_leases');
	$session->query_safe("SELECT count(dlock_acquire('short ' || i, 'alice', '1 ms')) FROM generate_series(1, 10) i");
	ok(wait_until(sub { stat_of('leases - (SELECT count(*) FROM dlock_leases)') == 10 }), 'expired ones stay without the worker');
}

# ---- the log ----
{
	my $mark = -s $node->logfile;
	$session->query_safe("SELECT dlock_acquire('short 1', 'bob', '1 ms') > 0");
	is(scalar(() = slurp_file($node->logfile, $mark) =~ /has expired/g), 0, 'not logged by default');

	set('dlock.log_expirations', 'on');
	$mark = -s $node->logfile;
	my $token = $session->query_safe("SELECT token FROM dlock_leases WHERE name = 'short 1'");
	$session->query_safe("SELECT dlock_acquire('short 2', 'bob', '1 h') > 0");
	my $log = slurp_file($node->logfile, $mark);
	like($log, qr/LOG:  lease on lock "short 2" has expired\n.*DETAIL:  Owner "alice" \(role "[^"]+"\) held it with token \d+; it ended \d+\.\d{3} ms ago\./,
		'the call that takes over logs it');
	is(scalar(() = $log =~ /has expired/g), 1, 'that one');

	# The worker logs the others, and what was released is none of them.
	$session->query_safe("SELECT dlock_acquire('released', 'bob', '1 h', lock_delay => '1 ms') > 0, dlock_release('released', 'bob'), "
		  . "dlock_acquire_path('x/y/z', 'bob', '1 ms') > 0");
	resume_worker($node);
	ok(wait_until(sub { stat_of('leases = (SELECT count(*) FROM dlock_leases)') eq 't' }), 'the worker removes the rest');
	ok(wait_until(sub { (() = slurp_file($node->logfile, $mark) =~ m{ has expired}g) >= 11 }), 'and has logged each');
	$log = slurp_file($node->logfile, $mark);
	my %count;
	$count{$_}++ foreach $log =~ /LOG:  lease on lock "([^"]*)" has expired/g;
	is_deeply(\%count, { 'x/y/z' => 1, map { ("short $_" => 1) } 1 .. 10 }, 'each once');
}

# ---- counters ----
{
	my $rejections = sub {
		return $stranger->query_safe('SELECT fence_stale, fence_lost, fence_missing, fence_unknown, fence_rejections FROM dlock_stats');
	};
	is($rejections->(), '0|0|0|0|0', 'no rejections');
	$session->query_safe('CREATE TABLE guarded (i int)');
	$session->query_safe("CREATE TRIGGER guard BEFORE INSERT ON guarded EXECUTE FUNCTION dlock_guard('fenced')");
	my $old = $session->query_safe("SELECT dlock_acquire('fenced', 'alice', '1 h')");
	$session->query_safe("SELECT dlock_release('fenced', 'alice')");
	my $new = $session->query_safe("SELECT dlock_acquire('fenced', 'alice', '1 h')");
	$session->query_safe("SELECT dlock_fence('fenced', $new)");
	sqlstate_is($node, $db, "SELECT dlock_fence('fenced', $old)", 'LK001', 'stale');
	is($rejections->(), '1|0|0|0|1', 'a stale token');
	sqlstate_is($node, $db, "SELECT dlock_fence('held', $new, live => true)", 'LK002', 'lost');
	is($rejections->(), '1|1|0|0|2', 'a lost lease');
	sqlstate_is($node, $db, 'INSERT INTO guarded VALUES (1)', 'LK003', 'missing');
	is($rejections->(), '1|1|1|0|3', 'no token');
	sqlstate_is($node, $db, "SELECT dlock_fence('fenced', 9007199254740991)", '22023', 'unknown');
	is($rejections->(), '1|1|1|1|4', 'a token that was never granted');

	is(stat_of('memory_free = memory_limit - memory_used'), 't', 'free memory');
	my $grants = stat_of('grants');
	$session->query_safe("SELECT dlock_acquire('after', 'alice', '1 h')");
	is(stat_of('grants'), $grants + 1, 'a grant');
	my $other = DLockSession->new($node, $db);
	$other->query_safe("SELECT dlock_acquire('after 2', 'alice', '1 h')");
	$other->quit;
	is(stat_of('grants'), $grants + 2, 'those of processes that have gone as well');
}

# ---- queues and groups ----
{
	$node->safe_psql($db, <<'EOS');
SET ROLE worker;
SELECT dlock_queue_create('mail', max_attempts => 1);
SELECT dlock_task_put('mail', 'task ' || i, priority => i) FROM generate_series(1, 6) i;
SELECT dlock_task_put('mail', 'later', delay => '1 h');
SELECT dlock_task_finish('mail', key, token) FROM dlock_task_capture('mail', 1);
SELECT dlock_task_fail('mail', key, token, error => 'no') FROM dlock_task_capture('mail', 1);
SELECT count(*) FROM dlock_task_capture('mail', 1, ttl => '1 h');
SELECT dlock_queue_create('empty');
SELECT dlock_group_create('orders', 4);
SELECT dlock_group_create('idle', 3);
EOS
	my $tasks = 'SELECT queue, role, ready, delayed, captured, parked, oldest_ready IS NULL FROM dlock_task_state ORDER BY queue';
	is($monitor->query_safe($tasks), "empty|worker|0|0|0|0|t\nmail|worker|3|1|1|1|f", 'queues, for pg_monitor');
	is($stranger->query_safe($tasks), '', 'not for others');
	is($monitor->query_safe('SELECT count(*) FROM dlock_tasks'), 0, 'a monitor sees no tasks');
	my $oldest = $monitor->query_safe("SELECT oldest_ready FROM dlock_task_state WHERE queue = 'mail'");
	ok( wait_until(
			sub {
				$monitor->query_safe("SELECT oldest_ready > '$oldest'::interval + '20 ms' FROM dlock_task_state WHERE queue = 'mail'") eq 't';
			}),
		'the oldest task grows older');

	my $member = $session->query_safe("SET ROLE worker; SELECT dlock_group_join('orders', 'node-1', '1 h')");
	($member) = $member =~ /(\d+)/;
	my $groups = 'SELECT group_name, role, partitions, members, unowned FROM dlock_group_state ORDER BY 1';
	is($stranger->query_safe($groups), "idle|worker|3|0|3\norders|worker|4|1|4", 'groups');
	$session->query_safe("SELECT count(*) FROM dlock_group_renew('orders', $member)");
	is($stranger->query_safe($groups), "idle|worker|3|0|3\norders|worker|4|1|0", 'with an owner');
	$session->query_safe('RESET ROLE');
}

# ---- a standby ----
{
	my $standby = make_standby($node, 'standby');

	$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
	my $there = DLockSession->new($standby, $db, user => 'monitor');
	my $columns = $node->safe_psql($db, "SELECT count(*) FROM pg_attribute WHERE attrelid = 'dlock_stats'::regclass AND attnum > 0");
	is($there->query_safe('SELECT count(*), sum(num_nulls(s.grants, s.leases, s.memory_limit, s.memory_free, s.wait_histogram)), (SELECT count(*) FROM jsonb_each_text(to_jsonb(s)) WHERE value IS NULL) FROM dlock_stats s GROUP BY s.*'),
		"1|5|$columns", 'dlock_stats: one row of NULLs');
	is($there->query_safe('SELECT queue, ready, delayed, captured, parked FROM dlock_task_state ORDER BY queue'), "empty|0|0|0|0\nmail|3|1|1|1", 'dlock_task_state');
	is($there->query_safe('SELECT group_name, partitions, num_nulls(members, unowned) FROM dlock_group_state ORDER BY 1'), "idle|3|2\norders|4|2", 'dlock_group_state');
	$there->quit;
	$standby->stop;
}

# ---- dlock status NAME asks for that lock alone ----
{
	$_->quit foreach $session, $waiter, $stranger, $monitor;
	$node->append_conf('postgresql.conf', 'log_statement = all');
	$node->reload;
	$node->poll_query_until($db, "SELECT current_setting('log_statement') = 'all'");
	my $mark = -s $node->logfile;
	cli_is([ 'status', 'after' ], { out => qr/after +alice/ }, 'dlock status NAME');
	my $log = slurp_file($node->logfile, $mark);
	like($log, qr/dlock_lease"?\(\$1\)/, 'asks dlock_lease');
	unlike($log, qr/dlock_leases/, 'and not for all leases');
}

$node->stop;
done_testing();
