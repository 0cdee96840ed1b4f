# Proves: a standby shows the leases and changes none; after its promotion they
# are held, and its tokens are above all that the old primary gave or will give,
# even if the last grants never arrived.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockStandby;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $primary = start_node('primary', allows_streaming => 1);
$primary->safe_psql($db, "SELECT dlock_acquire('before-backup', 'alice', '1 h')");
my $standby = make_standby($primary, 'standby');

# The view.
my $rows =
  'SELECT name, owner, token, mode, role, granted_at, ttl, payload FROM dlock_leases ORDER BY name';
my $session = DLockSession->new($primary, $db);
my ($first, $sent, $answered) = timed_query($session,
	"SELECT dlock_acquire('held', 'alice', '1000 s')");
$session->query_safe(<<'EOC');
SELECT count(dlock_acquire('many-' || repeat('x', i % 200) || i, repeat('o', 1 + i % 255), '1 h', payload => to_jsonb(i))) FROM generate_series(1, 1000) i
EOC
$session->query_safe("SELECT dlock_acquire('renewed', 'alice', '1 h')");
$session->query_safe("SELECT dlock_renew('renewed', 'alice', '2 h')");
$session->query_safe("SELECT dlock_acquire('expired', 'alice', '1 ms')");
$session->query_safe("SELECT dlock_acquire('released', 'alice', '1 h')");
$session->query_safe("SELECT dlock_release('released', 'alice')");
$session->query_safe("SELECT dlock_acquire('last', 'alice', '1 h')");
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
is($standby->safe_psql($db, $rows), $primary->safe_psql($db, $rows),
	'the standby shows the same leases');
is($standby->safe_psql($db, 'SELECT count(*) FROM dlock_leases'),
	1004, 'and all of them');
my $standby_session = DLockSession->new($standby, $db);
remaining_is_exact($standby_session, 'held', 1000, $sent, $answered,
	'on the standby', 0.5);

# A lease ends there when it does here.
$session->query_safe("SELECT dlock_acquire('short', 'alice', '500 ms')");
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
ok( wait_until(
		sub {
			$standby_session->query_safe(
				"SELECT count(*) FROM dlock_leases WHERE name = 'short'") eq '0';
		},
		30),
	'a lease ends on the standby');

# Nothing else.
foreach my $call (
	q(dlock_acquire('a')), q(dlock_acquire('held', 'bob')),
	q(dlock_renew('held', 'alice')), qq(dlock_renew_token('held', $first)),
	q(dlock_release('held', 'alice')), qq(dlock_release_token('held', $first)),
	q(dlock_renew_all('alice')), q(dlock_release_all('alice')),
	q(dlock_force_release('held', 'reason')), q(dlock_bump_epoch('reason')),
	qq(dlock_check('held', $first)))
{
	my %error = sqlstate_is($standby, $db, "SELECT $call", '25006',
		"on a standby: $call");
	ok(defined $error{detail} || defined $error{hint},
		"on a standby: $call says more");
}
is($standby->safe_psql($db, $rows), $primary->safe_psql($db, $rows),
	'nothing changed');

# The other views are empty there; they are no error for a monitor that asks all servers.
$primary->safe_psql($db, "SELECT dlock_group_create('group', 2), dlock_group_join('group', 'member', '1 h')");
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
foreach my $view (qw(dlock_waiters dlock_group_members dlock_group_partitions))
{
	my ($code, $rows_there, $error) = $standby->psql($db, "SELECT count(*) FROM $view");
	is("$rows_there$error", '0', "on a standby: no row in $view");
}
cmp_ok($primary->safe_psql($db, 'SELECT count(*) FROM dlock_stats s, dlock_group_partitions p'), '==', 2,
	'on the primary there are some');

# A copy of the database shows nothing there either.
$primary->safe_psql($db, 'CREATE DATABASE original');
$primary->safe_psql('original',
	"CREATE EXTENSION dlock; SELECT dlock_acquire('held', 'alice', '1 h')");
$primary->safe_psql($db, 'CREATE DATABASE copy TEMPLATE original');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
is($standby->safe_psql('original', 'SELECT count(*) FROM dlock_leases'),
	1, 'the original on the standby');
is($standby->safe_psql('copy', 'SELECT count(*) FROM dlock_leases'),
	0, 'the copy on the standby, before it was used on the primary');

# What never arrives: grants beyond a block of tokens.
$standby_session->quit;
cut_off($primary, $standby);
my $pairs = <<'EOC';
DO $$
BEGIN
	FOR i IN 1 .. 20000 LOOP
		PERFORM dlock_release_token('pairs', dlock_acquire('pairs', 'alice', '1 h'));
	END LOOP;
END $$;
EOC
$session->query_safe($pairs);
my $lost = $session->query_safe("SELECT dlock_acquire('lost', 'alice', '1 h')");
$standby->promote;
is( $standby->safe_psql(
		$db, "SELECT count(*) FROM dlock_leases WHERE name = 'lost'"),
	0,
	'a grant that never arrived');
is($standby->safe_psql($db, "SELECT dlock_check('held', $first)"),
	't', 'promoted: held');
is($standby->safe_psql($db, "SELECT dlock_acquire('held', 'bob', '1 h')"),
	'', 'promoted: refused');
$standby_session = DLockSession->new($standby, $db);
remaining_is_exact($standby_session, 'held', 1000, $sent, $answered,
	'promoted', 0.5);
my $promoted = $standby_session->query_safe(
	"SELECT dlock_acquire('lost', 'bob', '1 h')");
cmp_ok($promoted, '>', $lost, 'tokens of the promoted are above all before');
$standby_session->query_safe("SELECT dlock_acquire('brief', 'bob', '1 ms')");
ok(wait_until(sub { !exists { store_slots($standby, $db) }->{brief} }), 'promoted: the worker erases what has expired');

# The old primary does not know, and goes on for a long time.
$session->query_safe($pairs) for 1 .. 3;
my $late = $session->query_safe("SELECT dlock_acquire('late', 'alice', '1 h')");
cmp_ok($promoted, '>', $late, 'and above all that the old primary gives later');
is($standby_session->query_safe("SELECT dlock_renew_token('held', $first)"),
	't', 'promoted: renewed');
is($standby_session->query_safe("SELECT dlock_release_token('held', $first)"),
	't', 'promoted: released');
$standby_session->quit;
$session->quit;

# The next promotion jumps again; a mere restart does not lose the epoch.
$standby->restart;
cmp_ok(
	$standby->safe_psql($db, "SELECT dlock_acquire('after', 'bob', '1 h')"),
	'>', $promoted, 'tokens go on after a restart');
$standby->backup('backup2');
my $standby2 = PostgreSQL::Test::Cluster->new('standby2');
$standby2->init_from_backup($standby, 'backup2', has_streaming => 1);
$standby2->append_conf('postgresql.conf', "primary_conninfo = ''");
$standby2->start;
$standby->safe_psql($db, $pairs);
$lost = $standby->safe_psql($db, "SELECT dlock_acquire('lost2', 'alice', '1 h')");
$standby2->promote;
cmp_ok(
	$standby2->safe_psql($db, "SELECT dlock_acquire('lost2', 'alice', '1 h')"),
	'>', $lost, 'tokens of the second promotion');
$standby2->stop;
$standby->stop;
$primary->stop;

done_testing();
