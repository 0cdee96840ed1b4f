# Proves: with a million tasks every statement goes by an index made for it, also with
# statistics from when the table was empty; a heartbeat changes no index; what is
# finished is not in the way of captures.
#
#   DLOCK_TASKS   how many tasks (100000); 1000000 is what is meant

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $tasks = $ENV{DLOCK_TASKS} // 100_000;
my $node = start_node('main', conf => <<'EOC');
shared_buffers = 256MB
synchronous_commit = off
dlock.default_ttl = 1d
session_preload_libraries = 'auto_explain'
auto_explain.log_nested_statements = on
EOC
my $db = 'postgres';

# Statistics say that it is empty, and stay so: there is no autovacuum here.
$node->safe_psql($db, 'ANALYZE dlock_task; ANALYZE dlock_task_queue');
$node->safe_psql($db, <<"EOC");
SELECT dlock_task_create_queue('q');
SELECT dlock_task_create_queue('r');
SELECT count(dlock_task_put('r', 'k' || i)) FROM generate_series(1, 100) i;
INSERT INTO dlock_task (queue_id, key, state, priority, payload)
SELECT queue_id, 'k' || i, CASE WHEN i % 10 = 0 THEN 'later' ELSE 'ready' END, i % 3, jsonb_build_object('i', i)
  FROM generate_series(1, $tasks) i, dlock_task_queue WHERE queue = 'q';
-- a third of all is finished
UPDATE dlock_task SET finished_at = clock_timestamp(), state = 'done' WHERE id % 3 = 0 AND queue_id = (SELECT queue_id FROM dlock_task_queue WHERE queue = 'q');
EOC

# The scans that a call makes: nodes of the plans of its statements, and the most
# rows that any of them has read.
sub scans
{
	my ($sql) = @_;
	my (undef, undef, $log) = $node->psql($db,
		"SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on; SET client_min_messages = log; $sql");
	my %found;
	my $most = 0;

	foreach my $line (split /\n/, $log)
	{
		next unless $line =~ /(?:->  |^)((?:Index|Bitmap|Seq|Tid)[\w ]*?(?: using \w+)?(?: on dlock_task\w*)?(?: \w+)?)  \(cost.*rows=(\d+)(?:\.\d+)? loops/
		  || $line =~ /(?:->  |^)(Sort|Hash Join|Merge Join)()  \(cost/;
		my ($what, $rows) = ($1, $2);
		$what =~ s/ on .*//;
		$found{$what} = 1;
		$most = $rows if $rows ne '' && $rows > $most;
	}
	return (join(', ', sort keys %found), $most);
}

foreach my $round ('statistics of an empty table', 'statistics of now')
{
	my ($plan, $rows);

	($plan, $rows) = scans("SELECT * FROM dlock_task_capture('q', 10)");
	is($plan, 'Index Scan using dlock_task_due, Index Scan using dlock_task_ready, Tid Scan',
		"$round: capture");
	cmp_ok($rows, '<=', 10, "$round: it reads what it captures");
	($plan, $rows) = scans("SELECT * FROM dlock_task_capture('q', 10, '{nowhere, later}')");
	is($plan, 'Index Scan using dlock_task_due, Index Scan using dlock_task_ready, Tid Scan',
		"$round: capture from several states");
	cmp_ok($rows, '<=', 10, "$round: it reads what it captures");
	($plan) = scans("SELECT dlock_task_put('q', 'new $round')");
	is($plan, '', "$round: put");
	my ($key, $token) = split /\|/,
	  $node->safe_psql($db, "SELECT key, token FROM dlock_task_capture('q', ttl => '1 h')");
	foreach my $call ("extend('q', '$key', $token)", "set('q', '$key', 'half', $token)", "finish('q', '$key', $token)")
	{
		($plan) = scans("SELECT dlock_task_$call");
		is($plan, 'Index Scan using dlock_task_pkey, Tid Scan', "$round: $call")
	}
	($plan, $rows) = scans("SELECT dlock_task_purge('q', '0', 100)");
	is($plan, 'Index Scan using dlock_task_finished, Tid Scan', "$round: purge");
	cmp_ok($rows, '<=', 100, "$round: it reads what it removes");
	$node->safe_psql($db, 'VACUUM ANALYZE dlock_task');
}

# Settings that a role may have for other work do not change this.
{
	my ($plan, $rows) = scans(
		"SET enable_indexscan = off; SET enable_tidscan = off; SET enable_nestloop = off; SELECT * FROM dlock_task_capture('q', 10)");
	is($plan, 'Index Scan using dlock_task_due, Index Scan using dlock_task_ready, Tid Scan',
		'settings of the session: capture');
	cmp_ok($rows, '<=', 10, 'settings of the session: it reads what it captures');
}

# Heartbeats: no index grows, and the table no more than by a page for each of them.
my $sizes = "SELECT pg_relation_size('dlock_task_pkey') + pg_relation_size('dlock_task_due') + pg_relation_size('dlock_task_ready')";
$node->safe_psql($db, "SELECT count(*) FROM dlock_task_capture('r', 100, owner => 'r', ttl => '1 h')");
$node->safe_psql($db, 'VACUUM dlock_task');

# A session counts what it has written when it ends, if not before.
$node->poll_query_until($db, "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'")
  or die 'other sessions do not end';
my $size = $node->safe_psql($db, $sizes);
my $table = $node->safe_psql($db, "SELECT pg_relation_size('dlock_task')");
my $before = $node->safe_psql($db, "SELECT pg_stat_force_next_flush(); SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'dlock_task'");
$before =~ s/^\s+//;
foreach my $beat (1 .. 50)
{
	$node->safe_psql($db,
		"SELECT count(dlock_task_extend('r', key, token)) FROM dlock_tasks WHERE queue = 'r'; SELECT pg_stat_force_next_flush()");
}
my ($updates, $hot) = split /\|/, $node->safe_psql($db,
	"SELECT n_tup_upd - split_part('$before', '|', 1)::bigint, n_tup_hot_upd - split_part('$before', '|', 2)::bigint FROM pg_stat_user_tables WHERE relname = 'dlock_task'");
is($updates, 5000, 'heartbeats are counted');
cmp_ok($hot, '>=', 4800, 'heartbeats change no index');
is($node->safe_psql($db, $sizes), $size, 'nor do indexes grow');
cmp_ok($node->safe_psql($db, "SELECT pg_relation_size('dlock_task')") - $table, '<=', 100 * 8192, 'nor does the table, but for a few pages');

# Memory of the session does not grow with calls.
my $session = DLockSession->new($node, $db);
my $memory = "SELECT sum(used_bytes) FROM pg_backend_memory_contexts";
$session->query_safe("SELECT count(*) FROM dlock_task_capture('q', 1000)") foreach 1 .. 3;
my $used = $session->query_safe($memory);
$session->query_safe("SELECT count(*) FROM dlock_task_capture('q', 1000)") foreach 1 .. 20;
cmp_ok($session->query_safe($memory), '<=', $used + 65_536, 'nor does the memory of a session');
$session->quit;
$node->stop;

done_testing();
