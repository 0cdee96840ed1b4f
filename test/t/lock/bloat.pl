# Proves: 200 000 pairs on one lock cost no space, no transaction ids, no more WAL
# a pair at the end than at the beginning, while a transaction that was opened
# before them stays open.

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
my $db = 'postgres';

$node->safe_psql($db, 'CREATE TABLE t AS SELECT 1 AS a');
my $open = DLockSession->new($node, $db);
$open->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
$open->query_safe('SELECT count(*) FROM t, dlock_leases');
$open->query_safe("SELECT dlock_acquire('open', 'report', '1 h')");

my $session = DLockSession->new($node, $db);

# Sessions count what they have written when they end, if not before.
wait_until(
	sub {
		$session->query_safe("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'") eq '2';
	}) or die 'other sessions do not end';

# Dead rows come of rows that are written.  These are counted, since the number of
# dead ones gets less whenever somebody reads a page and tidies it up.
sub measure
{
	$session->query_safe('SELECT pg_stat_force_next_flush()');
	my ($lsn, $size, $xid, $rows) = split /\|/, $session->query_safe(<<'EOC');
SELECT pg_current_wal_insert_lsn() - '0/0', pg_total_relation_size('_dlock.store') + pg_total_relation_size('_dlock.token_seq'),
       pg_snapshot_xmax(pg_current_snapshot()), (SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_all_tables)
EOC
	return (lsn => $lsn, size => $size, xid => $xid, rows => $rows);
}

sub pairs
{
	my ($n, $name) = @_;
	$session->query_safe(<<"EOC");
DO \$\$
BEGIN
	FOR i IN 1 .. $n LOOP
		IF NOT dlock_release_token('$name', dlock_acquire('$name', 'worker', '30 s')) THEN
			RAISE EXCEPTION 'lost';
		END IF;
	END LOOP;
END \$\$
EOC
	return;
}

# The first ones make the pages; after the checkpoint each is logged in full once.
pairs(1000, 'hot');
$node->safe_psql($db, 'CHECKPOINT');
pairs(1000, 'hot');

my $chunk = 20_000;
my %start = measure();
my %before = %start;
my @wal_per_pair;
foreach my $i (1 .. 10)
{
	# Asynchronously, and durably as an application does it.
	$session->query_safe(
		'SET synchronous_commit = ' . ($i % 2 ? 'on' : 'off'));
	pairs($chunk, 'hot');
	my %now = measure();
	push @wal_per_pair, ($now{lsn} - $before{lsn}) / $chunk;
	%before = %now;
}
my %end = %before;
note 'WAL bytes a pair: ' . join ' ', map { sprintf '%.1f', $_ } @wal_per_pair;
is($end{size}, $start{size}, 'the store does not grow');
is($end{xid}, $start{xid}, 'no transaction ids');
is($end{rows}, $start{rows}, 'no rows are written, so none are dead');
cmp_ok($wal_per_pair[-1], '<=', 1.05 * $wal_per_pair[0],
	'WAL a pair is no more at the end');
cmp_ok($wal_per_pair[0], '<=', 400, 'WAL a pair is small');

# A refused request and a renewal inside the bound write nothing at all.  The first renewal
# logs a bound, and the first statement may log pages of catalogs.
sub refuse_and_renew
{
	my ($n) = @_;
	$session->query_safe(<<"EOC");
DO \$\$
BEGIN
	FOR i IN 1 .. $n LOOP
		PERFORM dlock_acquire('open', 'other', '30 s');
		PERFORM dlock_renew('open', 'report');
	END LOOP;
END \$\$
EOC
	return;
}
refuse_and_renew(1);
%before = measure();
refuse_and_renew(20_000);
my %after = measure();
cmp_ok($after{lsn} - $before{lsn}, '<=', 10000,
	'refusals and renewals write nothing, but for one record, be it with its page');

# Many names, one after the other, need no more room than one.
%before = measure();
$session->query_safe(<<'EOC');
DO $$
BEGIN
	FOR i IN 1 .. 50000 LOOP
		PERFORM dlock_release_token('name-' || i, dlock_acquire('name-' || i, 'worker', '30 s'));
	END LOOP;
END $$
EOC
%after = measure();
is($after{size}, $before{size}, 'nor does it grow by many names in turn');

# Held at the same time they do; once released, their room is used again.
$session->query_safe('SET synchronous_commit = off');
foreach my $round (1 .. 3)
{
	$session->query_safe(
		"SELECT count(dlock_acquire('round-$round-' || i, 'worker', '1 h')) FROM generate_series(1, 5000) i"
	);
	$session->query_safe("SELECT dlock_release_all('worker')");
	%before = measure() if $round == 1;
}
%after = measure();
is($after{size}, $before{size}, 'room is used again');
is($after{xid}, $start{xid}, 'still no transaction ids');

# Nothing of this needs VACUUM.  But those who watch for the wraparound look at the
# age of every table, and VACUUM is what they do about it.
sub age
{
	return $node->safe_psql($db,
		"SELECT greatest(age(relfrozenxid), mxid_age(relminmxid)) FROM pg_class WHERE oid = '_dlock.store'::regclass");
}

sub grow_older
{
	my ($years) = @_;

	$node->safe_psql($db,
		"SET synchronous_commit = off; DO \$\$ BEGIN FOR i IN 1 .. $years LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END \$\$");
	return;
}
cmp_ok(age(), '<', 1_000_000, 'the store is not older than the database');
foreach my $vacuum ('VACUUM', 'VACUUM FULL', 'VACUUM (FREEZE)')
{
	grow_older(1000);
	cmp_ok(age(), '>=', 1000, "$vacuum: the store has grown older");
	$node->safe_psql($db, "$vacuum _dlock.store");
	cmp_ok(age(), '<', 500, "$vacuum: and is young, in spite of the open transaction");
}
is($node->safe_psql($db, "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'm', 't') AND age(relfrozenxid) > 1000000"),
	0, 'no table of the extension is about to wrap around');
is($open->query_safe("SELECT dlock_renew('open', 'report')"),
	't', 'the open transaction still has its lease');
$open->query_safe('COMMIT');
$open->quit;
$session->quit;

# Autovacuum does it by itself, and so lets the database grow younger.
$node->append_conf('postgresql.conf',
	"autovacuum = on\nautovacuum_naptime = 1s\nautovacuum_freeze_max_age = 100000\n");
$node->restart;
grow_older(120_000);
ok( $node->poll_query_until($db,
		"SELECT age(datfrozenxid) < 100000 FROM pg_database WHERE datname = current_database()"),
	'autovacuum against wraparound is through with the database');
cmp_ok(age(), '<', 100_000, 'and with the store');
$node->stop;

done_testing();
