# Proves: DROP and CREATE EXTENSION with sessions that have used it: they wait, get
# an error, or go on with the new one; they never see the past or crash.

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
my $ddl = DLockSession->new($node, $db);
my $session = DLockSession->new($node, $db);

sub waits
{
	return wait_until(
		sub {
			$node->safe_psql('postgres',
				"SELECT wait_event_type FROM pg_stat_activity WHERE pid = $session->{pid}")
			  eq 'Lock';
		});
}

# Used, prepared, and called from plpgsql, before.
$session->query_safe(<<'EOC');
CREATE FUNCTION f(name text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN dlock_acquire(name, 'function', '1 h'); END $$;
PREPARE p AS SELECT dlock_acquire('prepared', 'alice', '1 h');
EOC
my $token = $session->query_safe("SELECT dlock_acquire('held', 'alice', '1 h')");
$session->query_safe("EXECUTE p; SELECT f('function')");

# A drop that is not committed: waits; rolled back: nothing has happened.
$ddl->query_safe('BEGIN; DROP EXTENSION dlock');
$session->ask("SELECT dlock_check('held', $token), dlock_renew('held', 'alice')");
ok(waits(), 'a drop that is not committed: others wait');
$ddl->query_safe('ROLLBACK');
is($session->answer, 't|t', 'rolled back: the lease is held');

# So it is with one that has created it again.
$ddl->query_safe('BEGIN; DROP EXTENSION dlock; CREATE EXTENSION dlock');
$session->ask("SELECT dlock_check('held', $token), dlock_renew('held', 'alice')");
ok(waits(), 'created again, not committed: others wait');
$ddl->query_safe('ROLLBACK');
is($session->answer, 't|t', 'created again and rolled back: the lease is held');

# Such a wait can be cancelled.
$ddl->query_safe('BEGIN; DROP EXTENSION dlock');
is($session->query("SET statement_timeout = 300; SELECT dlock_acquire('other', 'alice', '1 h')"),
	'ERROR 57014', 'the wait can be cancelled');
$session->query_safe('SET statement_timeout = 0');

# Committed while others wait: an error for them.
$session->ask("SELECT dlock_acquire('waiting', 'alice', '1 h')");
ok(waits(), 'a drop that is about to be committed: others wait');
$ddl->query_safe('COMMIT');
like($session->answer, qr/^ERROR /, 'committed: an error');
is($session->query("SELECT dlock_acquire('held', 'alice', '1 h')"), 'ERROR 42883', 'dropped: the function is gone');

# Created again: nothing of the past, for an old session as for a new one.
$ddl->query_safe('CREATE EXTENSION dlock');
is($session->query_safe('SELECT count(*) FROM dlock_leases'),
	0, 'created again: no leases');
is($session->query_safe("SELECT dlock_check('held', $token)"),
	'f', 'created again: an old token is nothing');
my $new = $session->query_safe("SELECT dlock_acquire('held', 'bob', '1 h')");
cmp_ok($new, '>', 0, 'created again: granted');
cmp_ok($session->query_safe("SELECT f('function')"),
	'>', $new, 'created again: a function that used it before');
cmp_ok($session->query_safe('EXECUTE p'),
	'>', $new, 'created again: a prepared statement');
is($node->safe_psql($db, 'SELECT count(*) FROM dlock_leases'),
	3, 'all in the new store');
$session->query_safe('DEALLOCATE p');

# Over and over, into other schemas, with the old session acquiring at once.
foreach my $i (1 .. 5)
{
	$ddl->query_safe("DROP EXTENSION dlock; CREATE SCHEMA s$i; CREATE EXTENSION dlock SCHEMA s$i");
	cmp_ok($session->query_safe("SELECT s$i.dlock_acquire('x', 'alice', '1 h')"),
		'>', 0, "schema $i: granted");
	is($session->query_safe("SELECT name FROM s$i.dlock_leases"),
		'x', "schema $i: and no others");
}
$ddl->query_safe('DROP EXTENSION dlock; CREATE EXTENSION dlock');

# Crashed right after.
$new = $session->query_safe("SELECT dlock_acquire('crash', 'alice', '1 h')");
$ddl->quit;
$session->quit;
crash_node($node);
$node->start;
is($node->safe_psql($db, 'SELECT name, token FROM dlock_leases'),
	"crash|$new", 'after a crash: the leases of the last one');

# Under load: sessions acquire and release while it comes and goes.  They get
# grants or errors, and the server stays up.
{
	my $dir = PostgreSQL::Test::Utils::tempdir;
	open my $fh, '>', "$dir/load.sql" or die;

	# A lease that was there before the extension was made is not one that was lost.
	foreach (1 .. 7_000)
	{
		print $fh <<"EOC";
SELECT oid AS made FROM pg_extension WHERE extname = 'dlock' \\gset
\\set released error
SELECT dlock_release_token('load-' || $_ % 7, dlock_acquire('load-' || $_ % 7, 'alice', '10 min')) AS released \\gset
SELECT :'released' FROM pg_extension WHERE extname = 'dlock' AND oid = :made;
EOC
	}
	close $fh;
	my @load = map {
		my ($out, $err) = ("$dir/out$_", "$dir/err$_");
		IPC::Run::start(
			[ 'psql', '-XAtq', '-d', $node->connstr($db), '-f', "$dir/load.sql" ],
			'>', $out, '2>', $err)
	} 1 .. 3;
	foreach my $i (1 .. 20)
	{
		$node->safe_psql($db, 'DROP EXTENSION dlock');
		$node->safe_psql($db, 'CREATE EXTENSION dlock');
		$node->safe_psql($db, 'VACUUM FULL _dlock.store') if $i % 4 == 0;
	}
	$_->finish foreach @load;
	is($node->safe_psql($db, "SELECT dlock_acquire('end', 'alice', '1 h') > 0"),
		't', 'under load: still works');
	my $err = join '', map { slurp_file("$dir/err$_") } 1 .. 3;

	# The server finds a function by its name and then by its id, and may hear in between that
	# it has gone.
	unlike($err, qr/server closed|PANIC|could not open|cache lookup(?! failed for function \d+$)/m,
		'under load: no odd errors');
	my $lines = join '', map { slurp_file("$dir/out$_") } 1 .. 3;
	like($lines, qr/^t$/m, 'under load: some were granted');
	unlike($lines, qr/^f$/m, 'under load: no lease was lost while it was held');
}

# An extension created again goes on from what its own sequence vouches for: a
# crash takes none of its tokens back, whatever the dropped one had reserved.
$node->safe_psql($db, 'DROP EXTENSION IF EXISTS dlock; CREATE EXTENSION dlock');
my $first = $node->safe_psql($db, "SELECT dlock_acquire('again-1', 'alice', '1 h')");
$node->safe_psql($db, 'DROP EXTENSION dlock; CREATE EXTENSION dlock');
my $second = $node->safe_psql($db, "SELECT dlock_acquire('again-2', 'alice', '1 h')");
cmp_ok($second, '>', $first, 'created again: tokens go on');
$node->stop('immediate');
$node->start;
my $third = $node->safe_psql($db, "SELECT dlock_acquire('again-3', 'alice', '1 h')");
cmp_ok($third, '>', $second, 'created again, and a crash: tokens go on');
is($node->safe_psql($db, "SELECT token FROM dlock_leases WHERE name = 'again-2'"),
	$second, 'created again, and a crash: the lease is held');

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|invalid page|could not open file/,
	'nothing odd in the log');
done_testing();
