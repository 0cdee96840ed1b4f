# Proves: after point-in-time recovery tokens are above all that were granted
# after that point, and the leases of that point are held.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $node = start_node('main', allows_streaming => 1, has_archiving => 1);
$node->backup('backup');

my $held = $node->safe_psql($db, "SELECT dlock_acquire('held', 'alice', '1 h')");
my $point = $node->safe_psql($db, "SELECT pg_create_restore_point('here')");
my $after = $node->safe_psql($db, "SELECT dlock_acquire('after', 'alice', '1 h')");
$node->safe_psql($db, "SELECT dlock_release_token('held', $held)");
$node->safe_psql($db, <<'EOC');
DO $$ BEGIN FOR i IN 1 .. 20000 LOOP PERFORM dlock_release_token('pairs', dlock_acquire('pairs', 'alice', '1 h')); END LOOP; END $$;
EOC
my $last = $node->safe_psql($db, "SELECT dlock_acquire('last', 'alice', '1 h')");
my $segment = $node->safe_psql($db,
	'SELECT pg_walfile_name(pg_current_wal_lsn())');
$node->safe_psql($db, 'SELECT pg_switch_wal()');
$node->poll_query_until($db,
	"SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver")
  or die 'not archived';
$node->stop;

# Twice from the same backup, as when the first attempt turns out to have gone too
# far: the second one's timeline is the next but one, and its tokens are above
# those that were granted after the first one, too.
my $archive = $node->archive_dir;
foreach my $n (1, 2)
{
	my $restored = PostgreSQL::Test::Cluster->new("restored$n");
	$restored->init_from_backup($node, 'backup',
		has_restoring => 1, standby => 0);
	$restored->append_conf('postgresql.conf', <<"EOC");
archive_mode = on
archive_command = 'cp "%p" "$archive/%f"'
recovery_target_name = 'here'
recovery_target_action = 'promote'
EOC
	$restored->start;
	$restored->poll_query_until($db, 'SELECT NOT pg_is_in_recovery()')
	  or die 'not recovered';
	$restored->poll_query_until($db,
		'SELECT timeline_id > 1 FROM pg_control_checkpoint()')
	  or die 'no new timeline';
	is($restored->safe_psql($db, 'SELECT timeline_id FROM pg_control_checkpoint()'),
		1 + $n, "recovery $n: timeline");
	is( $restored->safe_psql($db, 'SELECT name, token FROM dlock_leases'),
		"held|$held",
		"recovery $n: the leases of that point");
	my $token =
	  $restored->safe_psql($db, "SELECT dlock_acquire('after', 'bob', '1 h')");
	cmp_ok($token, '>', $last,
		"recovery $n: tokens above all that were granted before");

	$restored->safe_psql($db, <<'EOC');
DO $$ BEGIN FOR i IN 1 .. 20000 LOOP PERFORM dlock_release_token('pairs', dlock_acquire('pairs', 'alice', '1 h')); END LOOP; END $$;
EOC
	$last = $restored->safe_psql($db, "SELECT dlock_acquire('last', 'bob', '1 h')");
	$restored->poll_query_until($db,
		"SELECT last_archived_wal IS NOT NULL FROM pg_stat_archiver")
	  or die 'history not archived';
	$restored->stop;
}

done_testing();
