# Proves: tasks and their captures survive crash, promotion, dump and restore as
# they were committed; tokens of a task ascend whatever happens.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $node = start_node('main', allows_streaming => 1);
my $dir = PostgreSQL::Test::Utils::tempdir;

# All that is to survive.
my $all = "SELECT queue, key, state, priority, attempts, token, owner, finished_at, error, payload FROM dlock_tasks ORDER BY queue, key";

$node->safe_psql($db, <<'EOC');
SELECT dlock_queue_create('q', '{ready -> working, working -> ready, working -> done}', max_attempts => 5, retry_delay => '0');
SELECT dlock_task_put('q', 'k' || i, jsonb_build_object('i', i), i % 3) FROM generate_series(1, 30) i;
SELECT dlock_task_finish('q', key, token) FROM dlock_task_capture('q', 10);
SELECT dlock_task_fail('q', key, token, error => 'no luck') FROM dlock_task_capture('q', 5);
SELECT * FROM dlock_task_capture('q', 5, owner => 'w', ttl => '1 h');
EOC
my $before = $node->safe_psql($db, $all);

# A crash; what was not committed is gone, and its token is not given again.
my $open = DLockSession->new($node, $db);
my $lost = $open->query_safe("BEGIN; SELECT max(token) FROM dlock_task_capture('q', 5, ttl => '1 h')");
crash_node($node);
$open->quit;
$node->start;
is($node->safe_psql($db, $all), $before, 'crash: all is as it was committed');
my $token = $node->safe_psql($db, "SELECT min(token) FROM dlock_task_capture('q', 5, owner => 'w', ttl => '1 h')");
cmp_ok($token, '>', $lost, 'crash: a token that was rolled back is not given again');
is($node->safe_psql($db, "SELECT bool_and(dlock_task_renew('q', key, token, '1 h')) FROM dlock_tasks WHERE owner = 'w'"),
	't', 'crash: captures are held');

# A standby shows the same, and takes no calls.
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
{
	local %ENV = %ENV;
	delete $ENV{TEMP_CONFIG};
	$standby->init_from_backup($node, 'backup', has_streaming => 1);
}
$standby->start;
$node->wait_for_catchup($standby);
is($standby->safe_psql($db, $all), $node->safe_psql($db, $all), 'standby: the same is read there');
sqlstate_is($standby, $db, "SELECT * FROM dlock_task_capture('q')", '25006', 'standby: no capture');

# A promotion that lacks the last capture.
$standby->append_conf('postgresql.conf', "primary_conninfo = ''");
$standby->reload;
$node->poll_query_until($db, 'SELECT count(*) = 0 FROM pg_stat_replication') or die 'the standby still listens';
my ($key, $newest) = split /\|/,
  $node->safe_psql($db, "SELECT key, token FROM dlock_task_capture('q', 1, ttl => '1 h')");
$node->stop('immediate');
$standby->promote;
is($standby->safe_psql($db, "SELECT state, owner FROM dlock_tasks WHERE key = '$key'"), 'ready|',
	'promotion: the last capture is lost');
my $after = $standby->safe_psql($db, "SELECT token FROM dlock_task_capture('q', 100, ttl => '1 h') WHERE key = '$key'");
cmp_ok($after, '>', $newest, 'promotion: captured again, its token is above the one that was lost');
sqlstate_is($standby, $db, "SELECT dlock_task_finish('q', '$key', $newest)", 'LK002', 'promotion: who had it then has lost it');
is( $standby->safe_psql($db,
		"SELECT bool_and(dlock_task_renew('q', key, token, '1 h')) FROM dlock_tasks WHERE owner = 'w'"),
	't', 'promotion: captures are held');
$node = $standby;

# Dump and restore.
$before = $node->safe_psql($db, $all);
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/dump", $node->connstr($db) ], 'pg_dump');
$node->safe_psql($db, 'CREATE DATABASE restored');
$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('restored'), "$dir/dump" ], 'pg_restore');
is($node->safe_psql('restored', $all), $before, 'restored: all is there');
is( $node->safe_psql('restored', "SELECT dlock_task_finish('q', key, token) FROM dlock_tasks WHERE owner = 'w' LIMIT 1"),
	't', 'restored: a capture can be finished');
is($node->safe_psql('restored', "SELECT dlock_queue_create('r'), dlock_task_put('r', 'a'), dlock_task_put('q', 'a')"),
	'|t|t', 'restored: queues and tasks are added');
sqlstate_is($node, 'restored', "SELECT dlock_task_set('q', 'a', NULL, 'done')", '23514', 'restored: transitions are enforced');

# Rows with tokens from elsewhere: the database gets above them, or says so.
$node->safe_psql('restored', "UPDATE _dlock.task SET token = (SELECT max(token) FROM _dlock.task) + 1000000 WHERE key = 'a'");
my $foreign = $node->safe_psql('restored', "SELECT max(token) FROM _dlock.task");
cmp_ok($node->safe_psql('restored', "SELECT token FROM dlock_task_capture('q', 100) WHERE key = 'a'"),
	'>', $foreign, 'a token from elsewhere: the next is above it');
$node->safe_psql('restored', "UPDATE _dlock.task SET token = 9223372036854775806, ready_at = now(), expires_at = NULL WHERE key = 'a'");
sqlstate_is($node, 'restored', "SELECT * FROM dlock_task_capture('q', 100)", '55000', 'a token out of reach: it is said');
$node->stop;

done_testing();
