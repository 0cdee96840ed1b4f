# Proves: a standby that has no dlock replays everything that a primary does with
# leases, can be promoted, and holds them once the library is there.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockStandby;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $primary = start_node('primary', allows_streaming => 1);
$primary->safe_psql($db, "SELECT dlock_acquire('before', 'alice', '1 h')");
my $standby = make_standby($primary, 'standby', start => 0);

# Neither preloaded nor, if it is only staged, to be found.
my $without = "shared_preload_libraries = ''\n";
if (is_staged())
{
	foreach my $setting (split /\n/, path_conf())
	{
		next unless $setting =~ /^\s*(\w+)\s*=/;
		$without .= "$1 = "
		  . ( $1 eq 'dynamic_library_path' ? q('$libdir')
			: $1 eq 'extension_control_path' ? q('$system')
			: q(''))
		  . "\n";
	}
}
$standby->append_conf('postgresql.conf', $without);
$standby->start;
# But for one that is installed besides.
my $installed = $standby->safe_psql($db, q(SELECT setting || '/dlock.so' FROM pg_config WHERE name = 'PKGLIBDIR'));
isnt(
	$standby->psql($db, q(LOAD 'dlock')),
	0,
	'the standby cannot find the library') if is_staged() && !-e $installed;

# All kinds of records: new pages of all classes, grants, renewals, releases,
# expiry, tokens, whole-relation copies, another database, a drop.
$primary->safe_psql($db, <<'EOC');
SELECT count(dlock_acquire('many-' || repeat('x', i % 200) || i, 'alice', '1 h',
                           payload => to_jsonb(repeat('p', i % 1000)))) FROM generate_series(1, 2000) i;
SELECT dlock_renew_all('alice', '2 h');
SELECT count(dlock_release('many-' || repeat('x', i % 200) || i, 'alice')) FROM generate_series(1, 2000, 2) i;
SELECT dlock_acquire('expired', 'alice', '1 ms');
SELECT dlock_acquire('forced', 'alice', '1 h');
SELECT dlock_force_release('forced', 'test');
SELECT dlock_bump_epoch('test');
DO $$ BEGIN FOR i IN 1 .. 20000 LOOP PERFORM dlock_release_token('pairs', dlock_acquire('pairs', 'alice', '1 h')); END LOOP; END $$;
EOC
$primary->safe_psql($db, 'VACUUM FULL _dlock.store');
my $token = $primary->safe_psql($db, "SELECT dlock_acquire('held', 'alice', '1 h')");
$primary->safe_psql($db, 'CREATE DATABASE other TEMPLATE postgres');
$primary->safe_psql('other', "SELECT dlock_acquire('held', 'bob', '1 h')");
$primary->safe_psql($db, 'CREATE DATABASE gone');
$primary->safe_psql('gone',
	"CREATE EXTENSION dlock; SELECT dlock_acquire('held', 'carol', '1 h')");
$primary->safe_psql('gone',
	"DROP EXTENSION dlock; CREATE EXTENSION dlock; SELECT dlock_acquire('held', 'carol', '1 h')");
$primary->safe_psql($db, 'DROP DATABASE gone');
$primary->safe_psql($db, 'CHECKPOINT');
$primary->safe_psql($db, "SELECT dlock_acquire('held-2', 'alice', '1 h')");

$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
is($standby->safe_psql($db, 'SELECT pg_is_in_recovery()'),
	't', 'the standby has replayed it all');
$standby->restart;
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
my $expected = $primary->safe_psql($db,
	'SELECT name, owner, token, ttl, payload FROM dlock_leases ORDER BY name');
my $last = $primary->safe_psql($db, "SELECT dlock_acquire('last', 'alice', '1 h')");
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
$primary->stop;

# Promoted without it, used with it.
$standby->promote;
is($standby->safe_psql($db, 'SELECT 1'), 1, 'promoted without the library');
$standby->append_conf('postgresql.conf', preload_conf());
$standby->restart;
is( $standby->safe_psql(
		$db,
		"SELECT name, owner, token, ttl, payload FROM dlock_leases WHERE name <> 'last' ORDER BY name"
	),
	$expected,
	'held by the promoted server, once it has the library');
is($standby->safe_psql($db, "SELECT dlock_release_token('held', $token)"),
	't', 'released there');
cmp_ok(
	$standby->safe_psql($db, "SELECT dlock_acquire('held', 'bob', '1 h')"),
	'>', $last, 'tokens are above those of the old primary');
is( $standby->safe_psql('other', 'SELECT name, owner FROM dlock_leases'),
	'held|bob', 'the other database');
$standby->stop;

done_testing();
