# Proves: a fence is passed by roles that may, by a function, or by a guard that such
# a role has created; an error that ends a wait at a fence names the resource, and pg_locks
# shows the transactions that have passed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockFence;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('rights');
my $db = 'postgres';
$node->append_conf('postgresql.conf', 'max_prepared_transactions = 2');
$node->restart;
$node->safe_psql($db, <<'EOC');
CREATE ROLE holder;
CREATE ROLE stranger;
CREATE ROLE writers;
CREATE ROLE worker IN ROLE writers;
GRANT CREATE ON SCHEMA public TO holder, stranger, worker;
CREATE TABLE ledger (body text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger
	EXECUTE FUNCTION dlock_guard('ledger');
GRANT INSERT ON ledger TO stranger;
SELECT dlock_fence('ledger', 1);
EOC

# What a role gets for a statement: "" or the whole error.
sub as_role
{
	my ($role, $sql) = @_;
	my ($rc, $out, $err) = $node->psql($db, "SET ROLE \"$role\"; $sql");
	return $err;
}

sub refused
{
	my ($role, $sql, $name, $pattern) = @_;
	like(as_role($role, "\\set VERBOSITY verbose\n$sql"), qr/42501: $pattern/, $name);
}

# The functions are not for PUBLIC, and a trigger needs neither by the writer.
refused('stranger', "SELECT dlock_fence('ledger', 1)", 'dlock_fence is not for PUBLIC', 'permission denied for function dlock_fence');
refused('stranger', "CREATE TABLE own (); CREATE TRIGGER guard BEFORE INSERT ON own EXECUTE FUNCTION dlock_guard('ledger')",
	'a guard of its own is no way round', 'permission denied for function dlock_guard');
is(as_role('stranger', "SET dlock.tokens = 'ledger=1'; INSERT INTO ledger VALUES ('stranger')"), '', 'a guarded table is written without them');

# One resource: by a function that runs as its owner.
$node->safe_psql($db, <<'EOC');
GRANT EXECUTE ON FUNCTION dlock_fence, dlock_guard TO holder;
CREATE FUNCTION fence_ledger(token bigint) RETURNS void SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
	RETURN dlock_fence('ledger', token);
REVOKE ALL ON FUNCTION fence_ledger FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence_ledger TO writers;
EOC
is(as_role('worker', 'SELECT fence_ledger(1)'), '', 'a function for one resource');
refused('worker', "SELECT dlock_fence('other', 1)", 'and no other', 'permission denied for function dlock_fence');
refused('stranger', 'SELECT fence_ledger(1)', 'nor for others', 'permission denied for function fence_ledger');

# A transaction that sits at the mark.
my $sitting = DLockSession->new($node, $db, name => 'sitting');
my $pid = $sitting->query_safe('SELECT pg_backend_pid()');
$sitting->query_safe("BEGIN; SELECT dlock_fence('ledger', 1)");
my $context = qr/CONTEXT:  while passing the fence of resource "ledger"/;
like(as_role('holder', "SET lock_timeout = '50ms'; SELECT dlock_fence('ledger', 2)"),
	qr/ERROR:  canceling statement due to lock timeout\n$context/, 'lock_timeout names the resource');
like(as_role('stranger', "SET lock_timeout = '50ms'; SET dlock.tokens = 'ledger=2'; INSERT INTO ledger VALUES ('new')"),
	$context, 'and so does a guard');

# The waiter is out of the queue, and its session goes on.
my $waiter = DLockSession->new($node, $db, name => 'waiter');
$waiter->query_safe("SET lock_timeout = '50ms'");
for my $i (1 .. 3)
{
	outcome_is($waiter, "BEGIN; SAVEPOINT a; SELECT dlock_fence('ledger', 2)", '55P03', "wait $i ends");
	outcome_is($waiter, "ROLLBACK TO a; SELECT dlock_fence('other', 2); COMMIT", '', "and its transaction $i goes on");
}
is($node->safe_psql($db, "SELECT count(*) FROM pg_locks WHERE objsubid = 25709 AND NOT granted"), 0, 'nobody is left in the queue');

# Who waits for whom, as for each lock of the server.
my $first = DLockSession->new($node, $db, name => 'first');
waits_for($waiter, $first, "SELECT dlock_fence('ledger', 3)", [$sitting], 'the first in the queue');
is($node->safe_psql($db, "SELECT string_agg(pid::text, ' ') FROM pg_locks WHERE objsubid = 25709 AND granted"), $pid, 'pg_locks shows who has passed');
$sitting->query_safe('ROLLBACK');
came_to_is($first, '', 'the first goes on');

# So does a prepared transaction.
$sitting->query_safe("BEGIN; SELECT dlock_fence('ledger', 3); PREPARE TRANSACTION 'sitting'");
like(as_role('holder', "SET lock_timeout = '50ms'; SELECT dlock_fence('ledger', 4)"), $context, 'a prepared transaction');
$sitting->query_safe("ROLLBACK PREPARED 'sitting'");
is(as_role('holder', "SELECT dlock_fence('ledger', 4)"), '', 'and when it is gone, the fence is passed');

$_->quit foreach $sitting, $waiter, $first;
$node->stop;
done_testing();
