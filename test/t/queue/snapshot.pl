# Proves: a call that waits holds no snapshot if its statement does nothing else, so
# vacuum removes rows that died meanwhile, and an index is built concurrently; and any other statement keeps its own.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = start_node('main', conf => "autovacuum = off");
my $db = 'postgres';
use_server($node);
my $control = DLockSession->new($node, $db);
my $session = DLockSession->new($node, $db);

$control->query_safe("SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s'; CREATE TABLE rows (v int)");
$control->query_safe(<<'EOC');
CREATE FUNCTION stable_wait() RETURNS bigint STABLE LANGUAGE plpgsql AS $$
BEGIN RETURN dlock_acquire('lock', 'waiter', '1 h', NULL) + 0 * (SELECT count(*) FROM rows); END $$;
CREATE FUNCTION volatile_wait() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN RETURN dlock_acquire('lock', 'waiter', '1 h', NULL); END $$;
EOC

my $left = "SELECT pg_relation_size('rows') > 0";

# A background worker may have a snapshot for a moment, so one look is not enough.
sub vacuum_removes
{
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		$control->query('VACUUM rows');
		return 1 if $control->query_safe($left) eq 'f';
		usleep(100_000);
	}
	return 0;
}

# Does a statement that waits keep vacuum from removing rows, and does it go on well?
# "after" is asked in the same session when it has its answer.
sub waits
{
	my ($label, $sql, $holds, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$control->query_safe('TRUNCATE rows; INSERT INTO rows SELECT generate_series(1, 10)');
	$control->query_safe("SELECT dlock_acquire('lock', 'holder', '1 h')");
	$session->query_safe($params{before}) if $params{before};
	$session->ask_waiting($control, $sql);
	is($control->query('CREATE INDEX CONCURRENTLY ON rows (v)'), '', "$label: CREATE INDEX CONCURRENTLY does not wait for it") if $params{index};
	$control->query_safe('DELETE FROM rows');
	my $xmin = "SELECT backend_xmin IS NOT NULL FROM pg_stat_activity WHERE pid = $session->{pid}";
	if ($holds)
	{
		is($control->query_safe($xmin), 't', "$label: keeps its snapshot");
		$control->query('VACUUM rows');
		is($control->query_safe($left), 't', "$label: vacuum");
	}
	else
	{
		ok($node->poll_query_until($db, $xmin, 'f'), "$label: holds no snapshot");
		ok(vacuum_removes(), "$label: vacuum");
	}

	if ($params{cancel})
	{
		$control->query_safe("SELECT pg_cancel_backend($session->{pid})");
		is($session->answer, 'ERROR 57014', "$label: is cancelled");
		$control->query_safe("SELECT dlock_release('lock', 'holder')");
	}
	else
	{
		$control->query_safe("SELECT dlock_release('lock', 'holder')");
		like($session->answer, $params{answer} // qr/^\d+$/, "$label: answer");
	}
	is($session->query_safe($params{after}), $params{result}, "$label: afterwards") if $params{after};
	$control->query_safe("SELECT dlock_release_all('waiter')");
	return;
}

my $call = "dlock_acquire('lock', 'waiter', '1 h', NULL)";
my $count = 'SELECT count(*) FROM rows';
waits('a call', "SELECT $call", 0, after => $count, result => 0, index => 1);
waits('a call of several', "SELECT dlock_acquire_all('{lock,other}', 'waiter', '1 h', NULL)", 0, answer => qr/^\{\d+,\d+\}$/);
waits('a call in a transaction', "SELECT $call", 0, before => 'BEGIN; SELECT 1', after => "$count; COMMIT", result => 0);
waits('a call with parameters', "EXECUTE wait('waiter')", 1,
	before => "PREPARE wait(text) AS SELECT dlock_acquire('lock', \$1, '1 h', NULL)");
waits('a call that is cancelled', "SELECT $call", 0, cancel => 1, after => $count, result => 0);
waits('a call cancelled under a savepoint', "SELECT $call", 0, cancel => 1,
	before => 'BEGIN; SAVEPOINT s', after => "ROLLBACK TO s; $count; COMMIT", result => 0);
waits('a call under repeatable read', "SELECT $call", 1,
	before => "BEGIN ISOLATION LEVEL REPEATABLE READ; $count", after => "$count; COMMIT", result => 10);
waits('a call besides an open cursor', "SELECT $call", 1,
	before => 'BEGIN; DECLARE c CURSOR FOR SELECT v FROM rows; FETCH c', after => 'FETCH c; COMMIT', result => 2);
waits('a call and a query', "SELECT $call, ($count)", 1, answer => qr/^\d+\|10$/);
waits('a call for a row', "SELECT $call FROM rows WHERE v = 1", 1);
waits('two calls', "SELECT $call, dlock_check('lock', 1)", 1, answer => qr/^\d+\|f$/);
waits('a call of a call', "SELECT $call + volatile_wait()", 1, cancel => 1);
waits('a call by a stable function', 'SELECT stable_wait()', 1);
waits('a call by a volatile function', 'SELECT volatile_wait()', 1);
waits('a call by a cursor', 'FETCH w', 0, before => "BEGIN; DECLARE w CURSOR FOR SELECT $call", after => 'FETCH w; COMMIT', result => '');

# The command waits with parameters of its own, and in a transaction with settings.
{
	$control->query_safe("SELECT dlock_acquire('lock', 'holder', '1 h')");
	my $run = DLockCli->start(qw(run lock true));
	run_waits($node, 'lock');
	ok($node->poll_query_until($db, "SELECT backend_xmin IS NULL FROM pg_stat_activity WHERE application_name = 'dlock'"), 'dlock run: holds no snapshot');
	$control->query_safe("SELECT dlock_release('lock', 'holder')");
	is($run->finish->{code}, 0, 'dlock run: gets the lock');
}

$session->quit;
$control->quit;
$node->stop;
log_is_clean($node);
done_testing();
