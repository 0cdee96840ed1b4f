# Proves: a database made from another one as its template starts without leases,
# and neither disturbs the other.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main');
$node->safe_psql('postgres', 'CREATE DATABASE original');
$node->safe_psql('original', 'CREATE EXTENSION dlock');
my $token = $node->safe_psql('original',
	"SELECT dlock_acquire('held', 'alice', '1 h', payload => to_jsonb(repeat('p', 1000)))"
);
$node->safe_psql('original',
	"SELECT count(dlock_acquire('many-' || i, 'alice', '1 h')) FROM generate_series(1, 1000) i"
);
my $highest = $node->safe_psql('original', 'SELECT max(token) FROM dlock_leases');

foreach my $strategy ('wal_log', 'file_copy')
{
	foreach my $crash (0, 1)
	{
		my $copy = "copy_${strategy}_$crash";
		my $of_copy = "of_$copy";
		my $label = "$strategy, " . ($crash ? 'crash' : 'no crash');

		$node->safe_psql('postgres',
			"CREATE DATABASE $copy TEMPLATE original STRATEGY $strategy");
		if ($crash)
		{
			crash_node($node);
			$node->start;
		}
		is($node->safe_psql($copy, 'SELECT count(*) FROM dlock_leases'),
			0, "$label: the copy has no leases");
		is($node->safe_psql($copy, "SELECT dlock_check('held', $token)"),
			'f', "$label: the original's token is nothing there");
		my $new = $node->safe_psql($copy,
			"SELECT dlock_acquire('held', 'bob', '1 h')");
		cmp_ok($new, '>', $highest, "$label: tokens go on from the original's");
		is( $node->safe_psql(
				$copy,
				"SELECT count(dlock_acquire('many-' || i, 'bob', '1 h')) FROM generate_series(1, 1000) i"
			),
			1000,
			"$label: all locks are free");
		is($node->safe_psql($copy, "SELECT pg_relation_size('_dlock.store')"),
			$node->safe_psql('original', "SELECT pg_relation_size('_dlock.store')"),
			"$label: pages of the past are used again");
		is($node->safe_psql('original', "SELECT dlock_check('held', $token)"),
			't', "$label: the original still holds its own");
		is($node->safe_psql('original', 'SELECT count(*) FROM dlock_leases'),
			1001, "$label: all of them");

		# A copy of the copy.
		$node->safe_psql('postgres',
			"CREATE DATABASE $of_copy TEMPLATE $copy STRATEGY $strategy");
		is($node->safe_psql($of_copy, 'SELECT count(*) FROM dlock_leases'),
			0, "$label: a copy of the copy");
		cmp_ok(
			$node->safe_psql($of_copy, "SELECT dlock_acquire('x', 'bob', '1 h')"),
			'>', $new, "$label: its tokens");

		if ($crash)
		{
			crash_node($node);
			$node->start;
		}
		is($node->safe_psql($copy, 'SELECT count(*), count(DISTINCT owner) FROM dlock_leases'),
			'1001|1', "$label: the copy's own leases are there in the end");
		is($node->safe_psql($of_copy, 'SELECT name FROM dlock_leases'),
			'x', "$label: those of its copy");
		$node->safe_psql($copy, "SELECT dlock_acquire('brief', 'bob', '1 ms')");
		$node->safe_psql('postgres', "DROP DATABASE $of_copy");
		$node->safe_psql('postgres', "DROP DATABASE $copy");
		is($node->safe_psql('original', "SELECT dlock_check('held', $token)"),
			't', "$label: the original, once the copies are gone");
	}
}

# A template whose leases have been loaded, used, and then copied unloaded.
$node->restart;
$node->safe_psql('postgres', 'CREATE DATABASE unloaded TEMPLATE original');
is($node->safe_psql('unloaded', 'SELECT count(*) FROM dlock_leases'),
	0, 'a copy made before the original was used');
is($node->safe_psql('original', 'SELECT count(*) FROM dlock_leases'),
	1001, 'and the original');

# A database that is dropped and made again under its name has nothing of it.
$node->safe_psql('postgres', 'DROP DATABASE original');
$node->safe_psql('postgres', 'CREATE DATABASE original');
$node->safe_psql('original', 'CREATE EXTENSION dlock');
is($node->safe_psql('original', 'SELECT count(*) FROM dlock_leases'),
	0, 'dropped and made again: no leases');
cmp_ok(
	$node->safe_psql('original', "SELECT dlock_acquire('held', 'bob', '1 h')"),
	'>', 0, 'dropped and made again: granted');

# template1 gives the extension to every new database.
$node->safe_psql('template1', 'CREATE EXTENSION dlock');
$node->safe_psql('template1', "SELECT dlock_acquire('held', 'alice', '1 h')");
$node->safe_psql('postgres', "CREATE DATABASE new_$_") foreach 1 .. 3;
is($node->safe_psql("new_$_", "SELECT dlock_acquire('held', 'bob', '1 h') > 0"),
	't', "new database $_: granted")
  foreach 1 .. 3;

$node->stop;
done_testing();
