# Proves: leases survive a crash with the least WAL that a server can write; what
# is replayed is the same page bit for bit; checksums are right; logical decoding
# passes over it.

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
my $rows =
  'SELECT name, owner, token, mode, role, granted_at, ttl, payload FROM dlock_leases ORDER BY name';

# All kinds of changes to pages.
my $work = <<'EOC';
SELECT count(dlock_acquire('many-' || repeat('x', i % 200) || i, repeat('o', 1 + i % 255), '1 h',
                           payload => CASE WHEN i % 2 = 0 THEN to_jsonb(repeat('p', i % 1000)) END)) FROM generate_series(1, 1000) i;
SELECT count(dlock_renew(name, owner, '2 h')) FROM dlock_leases;
SELECT count(dlock_release_token(name, token)) FROM dlock_leases WHERE token % 3 = 0;
SELECT dlock_acquire('forced', 'alice', '1 h');
SELECT dlock_force_release('forced', 'test');
SELECT count(dlock_acquire('short-' || i, 'alice', '1 ms')) FROM generate_series(1, 200) i;
SELECT count(dlock_acquire('short-' || i, 'bob', '1 ms')) FROM generate_series(1, 200) i;
DO $$ BEGIN FOR i IN 1 .. 20000 LOOP PERFORM dlock_release_token('pairs', dlock_acquire('pairs', 'alice', '1 h')); END LOOP; END $$;
SELECT dlock_bump_epoch('test');
SELECT dlock_acquire('last', 'alice', '1 h');
EOC

# wal_level = minimal skips WAL for what the transaction itself created.
{
	my $node = init_node('minimal', extra => ['--data-checksums'],
		conf => "wal_level = minimal\nmax_wal_senders = 0\nwal_skip_threshold = 0\n");
	$node->start;
	$node->safe_psql($db, 'BEGIN; CREATE EXTENSION dlock; COMMIT');
	my $token = $node->safe_psql($db, "SELECT dlock_acquire('first', 'alice', '1 h')");
	crash_node($node);
	$node->start;
	is($node->safe_psql($db, "SELECT dlock_check('first', $token)"),
		't', 'minimal: held after a crash right after CREATE EXTENSION');
	$node->safe_psql($db, $work);
	my $before = $node->safe_psql($db, $rows);
	crash_node($node);
	$node->start;
	is($node->safe_psql($db, $rows), $before, 'minimal: held after a crash');

	# The copies that VACUUM FULL and SET TABLESPACE make are not logged either.
	mkdir $node->basedir . '/space' or die;
	$node->safe_psql($db,
		"CREATE TABLESPACE space LOCATION '" . $node->basedir . "/space'");
	foreach my $rewrite (
		'VACUUM FULL _dlock.store',
		'ALTER TABLE _dlock.store SET TABLESPACE space',
		'VACUUM FULL',
		'ALTER TABLE _dlock.store SET TABLESPACE pg_default')
	{
		$node->safe_psql($db, $rewrite);
		is($node->safe_psql($db, $rows), $before, "minimal: held after $rewrite");
		$node->safe_psql($db, "SELECT dlock_acquire('after ' || \$\$$rewrite\$\$, 'alice', '1 h')");
		$before = $node->safe_psql($db, $rows);
		crash_node($node);
		$node->start;
		is($node->safe_psql($db, $rows), $before,
			"minimal: held after $rewrite and a crash");
	}

	# A rewrite that nobody has looked at before the crash.
	$node->safe_psql($db, 'VACUUM FULL _dlock.store');
	crash_node($node);
	$node->start;
	is($node->safe_psql($db, $rows), $before,
		'minimal: held after VACUUM FULL and a crash at once');

	# A rewrite that is rolled back, and then a crash.
	$node->safe_psql($db,
		'BEGIN; ALTER TABLE _dlock.store SET TABLESPACE space; ROLLBACK');
	$node->safe_psql($db, "SELECT dlock_acquire('after ROLLBACK', 'alice', '1 h')");
	$before = $node->safe_psql($db, $rows);
	crash_node($node);
	$node->start;
	is($node->safe_psql($db, $rows), $before,
		'minimal: held after a rewrite that was rolled back');

	# Checksums of all that was written.
	$node->stop;
	command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ],
		'checksums are right');
}

# Every record's replay compared with the page that it was made from.
{
	my $primary = init_node('primary', allows_streaming => 'logical',
		extra => ['--data-checksums'],
		conf => "wal_consistency_checking = 'generic'\n");
	$primary->start;
	$primary->safe_psql($db, 'CREATE EXTENSION dlock');
	$primary->safe_psql($db,
		"SELECT pg_create_logical_replication_slot('slot', 'pgoutput')");
	my $standby = make_standby($primary, 'standby');

	$primary->safe_psql($db, $work);
	$primary->safe_psql($db, 'CHECKPOINT');
	$work =~ s/many-/more-/;
	$work =~ s/'last'/'last-2'/;
	$primary->safe_psql($db, $work);
	my $leases = $primary->safe_psql($db, $rows);
	$primary->safe_psql($db, 'VACUUM FULL _dlock.store');
	is($primary->safe_psql($db, $rows), $leases, 'held after VACUUM FULL');
	$primary->safe_psql($db, "SELECT dlock_acquire('end', 'alice', '1 h')");
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	is($standby->safe_psql($db, $rows), $primary->safe_psql($db, $rows),
		'the standby has the same leases');
	unlike(slurp_file($standby->logfile), qr/inconsistent page/,
		'and the same pages');

	# Logical decoding has nothing to say about it.
	is( $primary->safe_psql(
			$db,
			"SELECT count(*) FROM pg_logical_slot_peek_binary_changes('slot', NULL, NULL, 'proto_version', '1', 'publication_names', 'none') WHERE get_byte(data, 0) NOT IN (ascii('B'), ascii('C'))"
		),
		0,
		'logical decoding passes over leases');

	# Redo by the primary itself.
	my $before = $primary->safe_psql($db, $rows);
	crash_node($primary);
	$primary->start;
	is($primary->safe_psql($db, $rows), $before, 'redo brings the same leases');
	$standby->stop;
	$primary->stop;
	command_ok([ 'pg_checksums', '--check', '-D', $_->data_dir ],
		'checksums of the ' . $_->name)
	  foreach $primary, $standby;
}

done_testing();
