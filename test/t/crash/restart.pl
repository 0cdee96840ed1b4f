# Proves: a lease comes back from any kind of stop as it was, to its deadline;
# renewals are never forgotten; what was not flushed at once is flushed soon; a
# sequence set by hand takes no token back.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_fault_node('main', conf => <<'EOC');
wal_level = minimal
wal_writer_delay = 100ms
max_prepared_transactions = 1
EOC
my $db = 'postgres';

# Ways to stop; the server is down for so many seconds.
my %stops = (
	clean => sub { $node->stop; advance($_[0]); $node->start },
	immediate => sub { $node->stop('immediate'); advance($_[0]); $node->start },
	'kill -9' => sub { crash_node($node); advance($_[0]); $node->start });

$node->safe_psql($db, 'CREATE ROLE holder');
$node->safe_psql($db, <<'EOC');
SELECT dlock_acquire('plain', 'alice', '1 h');
SELECT dlock_acquire(repeat('n', 255), repeat('o', 255), '2 h', payload => to_jsonb(repeat('p', 1000)));
SET ROLE holder;
SELECT dlock_acquire('of-a-role', 'alice', '3 h', payload => '{"a": [1, null]}');
SELECT dlock_acquire('released', 'alice', '1 h');
SELECT dlock_acquire('renewed', 'alice', '1 h');
SELECT dlock_release('released', 'alice');
SELECT dlock_renew('renewed', 'alice', '4 h');
SELECT dlock_acquire('flushes-the-release', 'alice', '1 h');
EOC

my $rows =
  'SELECT name, owner, token, mode, role, granted_at, ttl, payload FROM dlock_leases ORDER BY name';
my $before = $node->safe_psql($db, $rows);
my $token = $node->safe_psql($db, "SELECT max(token) FROM dlock_leases");

foreach my $how ('clean', 'immediate', 'kill -9', 'clean')
{
	my $session = DLockSession->new($node, $db);
	$session->query_safe("SELECT dlock_acquire('long', 'alice', '100 s'), dlock_acquire('while-down', 'alice', '1 s')");
	$session->query_safe("SELECT dlock_acquire('short', 'alice', '2 s'), dlock_acquire('renewed-short', 'alice', '200 s')");

	# Inside the bound that was logged with the grant, and past it.
	foreach (1 .. 4)
	{
		advance(0.1, $session);
		$session->query_safe("SELECT dlock_renew('renewed-short', 'alice')");
	}

	$stops{$how}->(1);
	$session->kill_client;
	$session = DLockSession->new($node, $db);

	remaining_is($session, 'long', 98.6, "$how: long");
	is($session->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'while-down'"), 0, "$how: ended while the server was down");
	my $left = $session->query_safe("SELECT extract(epoch FROM remaining) FROM dlock_leases WHERE name = 'renewed-short'");
	cmp_ok($left, '>=', 199, "$how: a renewal is not forgotten");
	cmp_ok($left, '<=', 200, "$how: nor is more than a ttl left");
	remaining_is($session, 'short', 0.6, "$how: short");
	advance(0.599999, $session);
	is($session->query_safe("SELECT dlock_acquire('short', 'taker', '1 h')"), '', "$how: not taken over before its deadline");
	advance(0.000001, $session);
	my $taken = $session->query_safe("SELECT dlock_acquire('short', 'taker', '1 h')");
	cmp_ok($taken || 0, '>', $token, "$how: taken over at it, and tokens go on");
	$token = $taken;
	$session->query_safe("SELECT dlock_release_all('taker')");
	$session->query_safe("SELECT dlock_release('long', 'alice'), dlock_release('renewed-short', 'alice')");
	is($session->query_safe($rows), $before, "$how: leases are as they were");
	$session->quit;
}

# The deadline of a lease that is not renewed does not creep over restarts.
$node->safe_psql($db,
	"CREATE TABLE ends AS SELECT name, expires_at FROM dlock_leases WHERE name <> 'renewed'"
);
$stops{'kill -9'}->(1);
is( $node->safe_psql(
		$db,
		'SELECT count(*), count(*) FILTER (WHERE e.expires_at = l.expires_at) FROM ends e LEFT JOIN dlock_leases l USING (name)'
	),
	'4|4',
	'deadlines stay the same');

# Places are gone, as waiting is: who asks again is behind those that have asked since.
{
	my $ask = sub { $node->safe_psql($db, "SELECT dlock_acquire('plain', '$_', '1 h', keep => '1 d')") foreach @_ };
	my $queue = "SELECT string_agg(owner, ' ' ORDER BY position) FROM dlock_waiters";

	$ask->(qw(first second));
	is($node->safe_psql($db, $queue), 'first second', 'two places');
	foreach my $how ('kill -9', 'clean')
	{
		$stops{$how}->(1);
		is($node->safe_psql($db, $queue), '', "$how: no place is left");
		$ask->(qw(second first));
		is($node->safe_psql($db, $queue), 'second first', "$how: in the order in which they ask again");
	}
	$node->safe_psql($db, "SELECT dlock_release_all('first'), dlock_release_all('second')");
}

# A renewal ends where it was promised, or later, after each of many crashes;
# a lease that nobody renews ends all the same.
{
	my $session = DLockSession->new($node, $db);
	$session->query_safe("SELECT dlock_acquire('kept', 'alice', '6 min')");
	foreach my $crash (1 .. 3)
	{
		advance(300, $session);
		is($session->query_safe("SELECT dlock_renew('kept', 'alice')"), 't', "crash $crash: renewed");
		$stops{'kill -9'}->(30);
		$session->kill_client;
		$session = DLockSession->new($node, $db);
		my $left = $session->query_safe("SELECT extract(epoch FROM remaining) FROM dlock_leases WHERE name = 'kept'");
		cmp_ok($left || 0, '>=', 330, "crash $crash: as long as promised");
		cmp_ok($left || 0, '<=', 360, "crash $crash: at most a ttl");
	}
	advance(360, $session);
	is($session->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'kept'"), 0, 'ends when nobody renews it');
	$session->quit;
}

# The slots of leases that end while the server is down are used again.  The store has pages
# of all backends' groups, so each backend takes slots of any.
{
	my $fill = "SELECT count(dlock_acquire('many' || i, 'alice', '1 s')) FROM generate_series(1, 2000) i";
	my $session = DLockSession->new($node, $db);
	is($session->query_safe($fill), 2000, 'many leases');
	my $size = $session->query_safe("SELECT pg_relation_size('_dlock.store')");
	$stops{'kill -9'}->(1);
	$session->kill_client;
	$session = DLockSession->new($node, $db);
	is($session->query_safe($fill), 2000, 'they have ended meanwhile: as many again');
	is($session->query_safe("SELECT pg_relation_size('_dlock.store')"), $size, 'in the slots that they had');
	advance(1, $session);
	$session->quit;
}

# What is not flushed at once is flushed within a moment, with nothing else
# going on: a release, and a grant with synchronous_commit = off.
{
	my $flushed = sub {
		my ($label) = @_;
		my $lsn = $node->safe_psql($db, 'SELECT clock_advance(1000000); SELECT pg_current_wal_insert_lsn()') =~ s/^\n//r;
		ok( wait_until(
				sub {
					$node->safe_psql($db,
						"SELECT pg_current_wal_flush_lsn() >= '$lsn'") eq 't';
				},
				10),
			"$label is flushed soon");
		crash_node($node);
		$node->start;
	};
	$node->safe_psql($db, 'CHECKPOINT');
	is($node->safe_psql($db, "SELECT dlock_release('plain', 'alice')"),
		't', 'released');
	$flushed->('a release');
	is( $node->safe_psql(
			$db, "SELECT count(*) FROM dlock_leases WHERE name = 'plain'"),
		0,
		'a release that was flushed is not undone');
	$node->safe_psql($db,
		"SET synchronous_commit = off; SELECT dlock_acquire('async', 'alice', '1 h')"
	);
	$flushed->('an asynchronous grant');
	is( $node->safe_psql(
			$db, "SELECT count(*) FROM dlock_leases WHERE name = 'async'"),
		1,
		'an asynchronous grant that was flushed is there');
}

# The sequence set back, forward, restarted, right before a crash or a clean
# restart: tokens go on.
my $meddled = 0;
foreach my $meddling (
	"SELECT setval('_dlock.token_seq', 1, false)",
	"SELECT setval('_dlock.token_seq', (SELECT last_value - 65536 FROM _dlock.token_seq))",
	"SELECT nextval('_dlock.token_seq')",
	"ALTER SEQUENCE _dlock.token_seq RESTART",
	"SELECT dlock_bump_epoch('test')")
{
	foreach my $how ('clean', 'kill -9')
	{
		my $last = $node->safe_psql($db,
			"SELECT dlock_acquire('meddled-' || " . $meddled++ . ", 'alice', '1 h')");
		$node->safe_psql($db, $meddling);
		$stops{$how}->(1);
		my $next = $node->safe_psql($db,
			"SELECT dlock_acquire('meddled-' || " . $meddled++ . ", 'alice', '1 h')");
		cmp_ok($next, '>', $last, "$meddling, $how: tokens go on");
	}
}

# A prepared transaction neither holds anything up nor takes anything back.
{
	my $prepared = $node->safe_psql($db, <<'EOC');
BEGIN;
SELECT dlock_acquire('prepared', 'alice', '1 h');
PREPARE TRANSACTION 'p';
EOC
	is($node->safe_psql($db, "SELECT dlock_check('prepared', $prepared)"),
		't', 'held while its transaction is prepared');
	$node->safe_psql($db, 'VACUUM FULL _dlock.store');
	crash_node($node);
	$node->start;
	is($node->safe_psql($db, "SELECT dlock_check('prepared', $prepared)"),
		't', 'held after a crash');
	$node->safe_psql($db, "ROLLBACK PREPARED 'p'");
	is( $node->safe_psql(
			$db, "SELECT dlock_release_token('prepared', $prepared)"),
		't',
		'held after ROLLBACK PREPARED');
}

# Many first users at once after a start: one load, one grant.
{
	$node->safe_psql($db,
		"SET synchronous_commit = off; SELECT count(dlock_acquire('many-' || i, 'alice', '1 h')) FROM generate_series(1, 50000) i"
	);
	$node->safe_psql($db, "SELECT dlock_acquire('flushed', 'alice', '1 h')");
	crash_node($node);
	$node->start;
	my $dir = PostgreSQL::Test::Utils::tempdir;
	$node->safe_psql($db, 'CREATE TABLE firsts (token bigint)');
	append_to_file("$dir/first.sql", <<'EOC');
SELECT coalesce(dlock_acquire('first', 'owner', '1 h'), 0) AS token \gset
INSERT INTO firsts SELECT :token WHERE :token > 0;
EOC
	$node->command_ok(
		[
			'pgbench', '-n', '-c', '8', '-j', '2', '-t', '1', '-f',
			"$dir/first.sql", $node->connstr($db)
		],
		'eight first users');
	is($node->safe_psql($db, 'SELECT count(*) FROM firsts'),
		1, 'one of them is granted the lock');
	is( $node->safe_psql(
			$db, "SELECT count(*) FROM dlock_leases WHERE name LIKE 'many-%'"),
		50000,
		'all leases are loaded');

	# A load that is broken off is done again.  The worker would have loaded before.
	still_worker($node);
	foreach my $page (1, 100, 500)
	{
		$node->restart;
		my ($control, $first) = open_sessions($node, $db, 2, name => 'first');
		stop_at($control, $first, 'load_page', $page);
		$first->ask("SELECT dlock_check('first', 1)");
		is_at($control, 'load_page');
		$control->query_safe('SELECT pg_cancel_backend(' . $first->pid . ')');
		go($control, 'load_page');
		is($first->answer, 'ERROR 57014', "a load is cut off at page $page");
		is( $control->query_safe("SELECT count(*) FROM dlock_leases WHERE name LIKE 'many-%'"),
			50000, "all leases are loaded after a load cut off at page $page");
		$_->quit foreach $control, $first;
	}
	my $held = $node->safe_psql($db,
		"SELECT count(*) FROM dlock_leases WHERE owner = 'alice' AND role = current_user::regrole");
	is($node->safe_psql($db, "SELECT dlock_release_all('alice')"),
		$held, 'all released');
}

# The first use of all, which loads, may be in the midst of a parallel query.
{
	my $token = $node->safe_psql($db,
		"CREATE TABLE t AS SELECT i FROM generate_series(1, 10000) i; SELECT dlock_acquire('parallel', 'alice', '1 h')");
	crash_node($node);
	$node->start;
	is($node->safe_psql($db, <<"EOC"), "10000|t\nt", 'loaded by the leader of a parallel query');
SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
SELECT count(*), bool_and(dlock_check('parallel', $token)) FROM t;
SELECT dlock_release_token('parallel', $token);
EOC
}

$node->stop;
done_testing();
