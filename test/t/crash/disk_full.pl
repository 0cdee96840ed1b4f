# Proves: when the store cannot be extended, new locks get an error, old ones stay,
# and all goes on once there is room, also over a crash.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'prlimit is not installed'
  unless grep { -x "$_/prlimit" } split /:/, $ENV{PATH};

# A limit on the size of files stands in for a full disk: the kernel refuses to
# extend a file past it.  Files of WAL must stay below.
my $limit = 2 * 1024 * 1024;
my $node = start_node('main', extra => ['--wal-segsize=1'],
	conf => "max_wal_size = 64MB\n");
my $db = 'postgres';

sub set_limit
{
	my ($soft) = @_;
	my $postmaster = slurp_file($node->data_dir . '/postmaster.pid');
	$postmaster =~ s/\n.*//s;

	# Sessions get it from the postmaster.
	system_or_bail('prlimit', '--pid', $postmaster, "--fsize=$soft:");
	return;
}

my $old = $node->safe_psql($db, "SELECT dlock_acquire('old', 'alice', '1 h')");
my $before = DLockSession->new($node, $db);
$before->query_safe("SELECT dlock_check('old', $old)");
$node->safe_psql($db, <<'EOC');
-- Acquire until it fails; returns how many there are then, and the error.
CREATE FUNCTION fill(prefix text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	message text;
BEGIN
	FOR i IN 1 .. 100000 LOOP
		BEGIN
			PERFORM dlock_acquire(prefix || i, 'filler', '1 h');
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS message = MESSAGE_TEXT;
			RETURN i - 1 || '|' || sqlstate || '|' || message;
		END;
	END LOOP;
	RETURN 'never';
END $$;
EOC

set_limit($limit);
my ($n, $sqlstate, $message) = split /\|/,
  $node->safe_psql($db, "SET synchronous_commit = off; SELECT fill('a-')");
note "$n leases, then $sqlstate: $message";
cmp_ok($n, '>', 10_000, 'many leases fit');
like($message, qr/could not extend file/, 'then the store cannot be extended');
my $size = $node->safe_psql($db, "SELECT pg_relation_size('_dlock.store')");
cmp_ok($size, '<=', $limit, 'the store is as large as allowed');

# Nothing is lost, and others can work.
my $session = DLockSession->new($node, $db);
is($session->query("SELECT count(*) FROM dlock_leases"),
	$n + 1, 'all leases are there');
is( $session->query(
		"SELECT dlock_check('old', $old), dlock_renew('old', 'alice', '2 h'), dlock_renew_all('filler', '2 h')"
	),
	"t|t|$n",
	'and can be renewed');
foreach my $attempt (1 .. 3)
{
	$session->query("SELECT dlock_acquire('more-$attempt', 'bob', '1 h')");
	like($session->{stderr}, qr/could not extend file/,
		"attempt $attempt: refused");
	is( $session->query(
			"SELECT count(*) FROM dlock_leases WHERE name LIKE 'more-%'"),
		0,
		"attempt $attempt: not held");
}

# A larger lease needs a page of another kind: refused as well.
$session->query(
	"SELECT dlock_acquire('large', 'bob', '1 h', payload => to_jsonb(repeat('p', 1000)))"
);
like($session->{stderr}, qr/could not extend file/, 'a large lease: refused');

# Released slots are used again, by anybody.
is($session->query("SELECT dlock_release('a-1', 'filler')"), 't', 'one released');
cmp_ok($session->query("SELECT dlock_acquire('more-1', 'bob', '1 h')"),
	'>', 0, 'one granted');
is( $node->safe_psql(
		$db,
		"SELECT count(dlock_release('a-' || i, 'filler')) FROM generate_series(2, 101) i"
	),
	100,
	'a hundred released');
cmp_ok(
	$node->safe_psql(
		$db,
		"SELECT count(dlock_acquire('b-' || i, 'filler', '1 h')) FROM generate_series(1, 90) i"
	),
	'==', 90,
	'ninety granted to another session');
$session->quit;

# Still full, over a crash.
my $held = $node->safe_psql($db,
	'SELECT count(*), sum(token), max(token) FROM dlock_leases');
crash_node($node);
$node->start;
is( $node->safe_psql(
		$db, 'SELECT count(*), sum(token), max(token) FROM dlock_leases'),
	$held,
	'all leases are there after a crash');
my ($count, $sum, $max) = split /\|/, $held;

# Room: the relation grows on.
cmp_ok(
	$node->safe_psql($db,
		"SELECT count(dlock_acquire('c-' || i, 'filler', '1 h')) FROM generate_series(1, 2000) i"
	),
	'==', 2000,
	'granted once there is room');
cmp_ok($node->safe_psql($db, "SELECT pg_relation_size('_dlock.store')"),
	'>', $size, 'and the store has grown');
cmp_ok(
	$node->safe_psql($db, "SELECT min(token) FROM dlock_leases WHERE name LIKE 'c-%'"),
	'>', $max, 'tokens go on');
crash_node($node);
$node->start;
is($node->safe_psql($db, 'SELECT count(*) FROM dlock_leases'),
	$count + 2000, 'all are there after another crash');
$before->quit;

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|invalid page/,
	'nothing odd in the log');
done_testing();
