# Proves: dead entries that vacuum cannot remove are read over now and then, not by each
# capture; what comes up before the place where looks begin is captured all the same, at
# once if there is nothing else.

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

my $dead = 30_000;
my $many = 300;		# pages: each look from the front touches more, and none from a mark
my $node = start_node('main', conf => <<'EOC');
shared_buffers = 128MB
synchronous_commit = off
autovacuum = off
dlock.default_ttl = 1d
dlock.max_reapers = 0
EOC
my $db = 'postgres';
my $worker = DLockSession->new($node, $db);
my $other = DLockSession->new($node, $db);
my $old = DLockSession->new($node, $db);

# How many pages a capture touches, of how many tasks it captures.
sub pages
{
	my ($count, $session, $queue) = ($_[0], $_[1] // $worker, $_[2] // 'q');
	my $plan = $session->query_safe("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, COSTS OFF) SELECT dlock_task_capture('$queue', $count)");

	return $plan =~ /Buffers: shared hit=(\d+)(?: read=(\d+))?/ ? $1 + ($2 // 0) : die $plan;
}

# Capture until that one is there, before the others are gone.
sub comes
{
	my ($key) = @_;

	foreach my $attempt (1 .. 1000)
	{
		return 1 if $worker->query_safe("SELECT key FROM dlock_task_capture('q')") eq $key;
		usleep(20_000);
	}
	return 0;
}

# Capture until there is nothing.
sub drain
{
	while ($worker->query_safe("SELECT count(*) FROM dlock_task_capture('q', 1000)") > 0)
	{
	}
	return;
}

# A mark counts for a moment after a look from the front, which a slow machine may miss: again
# then.
sub make_mark
{
	foreach my $attempt (1 .. 200)
	{
		return 1 if pages(1) <= $many;
	}
	return 0;
}

# Each task was put off, and captured, so that it has left a dead entry in both indexes.
$node->safe_psql($db, "SELECT dlock_task_create_queue('q')");
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM dlock_tasks');
$node->safe_psql($db, "SELECT count(dlock_task_put('q', 'dead' || i, delay => '1 ms')) FROM generate_series(1, $dead) i");
my $finished = 0;
while ($finished < $dead)
{
	$finished += $node->safe_psql($db, "SELECT count(dlock_task_finish('q', key, token)) FROM dlock_task_capture('q', 1000)");
}
$node->safe_psql($db, "SELECT count(dlock_task_put('q', 'live' || i)) FROM generate_series(1, 2000) i");

cmp_ok(pages(1), '>', $many, 'a look from the front reads over what is dead');
ok(make_mark(), 'one that begins at a mark does not');

# Beside many others.
$other->query_safe("BEGIN; SELECT dlock_task_put('q', 'late', priority => -1), dlock_task_put('q', 'late delay', priority => -1, delay => '1 ms')");
ok(make_mark(), 'a mark');
$other->query_safe('COMMIT');
is(comes('late'), 1, 'a task that commits late, with a lower priority');
is(comes('late delay'), 1, 'and a delay that is over');
my $given = $other->query_safe("BEGIN; SELECT key FROM dlock_task_capture('q')");
ok(make_mark(), 'a mark');
$other->query_safe('ROLLBACK');
is(comes($given), 1, 'a task whose capture was rolled back');
my ($key, $token) = split /\|/, $other->query_safe("SELECT key, token FROM dlock_task_capture('q')");
ok(make_mark(), 'a mark');
$other->query_safe("SELECT dlock_task_release('q', '$key', $token)");
is(comes($key), 1, 'a task that is given back');

# With nothing else: at once.
foreach my $delay ('NULL', "'1 ms'")
{
	drain();
	$other->query_safe("BEGIN; SELECT dlock_task_put('q', 'last' || random(), priority => -1, delay => $delay)");
	$node->safe_psql($db, "SELECT count(dlock_task_put('q', md5(random()::text))) FROM generate_series(1, 500) i");
	ok(make_mark(), 'a mark');
	$other->query_safe('COMMIT');
	drain();
	is($node->safe_psql($db, "SELECT count(*) FROM dlock_tasks WHERE key LIKE 'last%' AND state = 'ready'"), 0,
		"put with delay $delay, and nothing else is there: captured");
}

# Nothing is there: a mark of what is over costs no second look for tasks.  A session without
# marks tells what a capture from the front costs, when it has read the catalogs.
drain();
my $fresh = DLockSession->new($node, $db);
$fresh->query_safe("SELECT dlock_task_create_queue('none')");
pages(1, $fresh, 'none') foreach 1 .. 2;
my $front = pages(1, $fresh);
cmp_ok($front, '>', $many, 'a capture that finds nothing reads over what is dead');
my ($most) = sort { $b <=> $a } map { pages(1) } 1 .. 20;
cmp_ok($most, '<=', $front * 1.2, 'once');
$fresh->quit;

$_->quit foreach $worker, $other, $old;
$node->stop;

done_testing();
