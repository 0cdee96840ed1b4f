# Proves: the lock may be on another server, or in another database, than the data:
# tokens of the one fence the tables of the other, with both being stopped, killed
# and restarted; live mode wants the lock where the data is.

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

my $lock_node = start_node('locks');
my $data_node = start_node('data');
my $db = 'postgres';
$data_node->safe_psql($db, 'CREATE DATABASE locks');
$data_node->safe_psql('locks', 'CREATE EXTENSION dlock');

# Where the lock is, and where the data is.
foreach my $where (
	[ 'another server', $lock_node, $db ],
	[ 'another database', $data_node, 'locks' ])
{
	my ($label, $node, $lock_db) = @$where;
	my $locks = DLockSession->new($node, $lock_db, name => 'locks');
	my $look = DLockSession->new($data_node, $db, name => 'look');

	# The database of the data grants no token.
	$look->query_safe(<<'EOC');
DROP TABLE IF EXISTS ledger, device;
CREATE TABLE ledger (body text);
INSERT INTO ledger VALUES ('');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger
	EXECUTE FUNCTION dlock_guard('ledger');
CREATE TABLE device (body text, token bigint);
INSERT INTO device VALUES ('');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON device
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
SELECT dlock_fence_reset(resource, NULL, 'test') FROM dlock_fences;
EOC
	is($look->query_safe('SELECT count(*) FROM dlock_fences'), 0, "$label: no marks to begin with");
	outcome_is($look, "SELECT dlock_fence('ledger', 9007199254740991)", '22023', "$label: a token that nobody has granted");
	outcome_is($look, "INSERT INTO device VALUES ('', 9007199254740991)", '22023', "$label: nor in a row");

	# A worker holds two connections.
	my ($a, $b) = open_sessions($data_node, $db, 2, name => 'worker');
	my ($la, $lb) = open_sessions($node, $lock_db, 2, name => 'worker');
	my $token = $la->query_safe("SELECT dlock_acquire('ledger', 'a', '1 h')");
	my $write = sub {
		my ($t, $text) = @_;
		return "BEGIN; SELECT dlock_fence('ledger', $t); UPDATE ledger SET body = body || '$text'; UPDATE device SET body = body || '$text', token = $t; COMMIT";
	};
	outcome_is($a, $write->($token, 'a'), '', "$label: the holder writes");
	is(mark($look, 'ledger'), $token, "$label: the mark is with the data");
	is($locks->query_safe('SELECT count(*) FROM dlock_fences'), 0, "$label: and not with the lock");

	# Stopped past the lease; both its processes, and then the data's alone.
	stop_process($_->{psql}) foreach $a, $la;
	$a->ask($write->($token, 'late'));
	$la->ask("SELECT dlock_renew_token('ledger', $token)");
	pass_deadline($locks, 'ledger', $token);
	my $next = $lb->query_safe("SELECT dlock_acquire('ledger', 'b', '1 h')");
	outcome_is($b, $write->($next, 'b'), '', "$label: the successor writes");
	continue_process($_->{psql}) foreach $a, $la;
	came_to_is($a, 'LK001', "$label: the predecessor does not");
	came_to_is($la, 'f', "$label: and learns that its lease is over");
	outcome_is($a, "ROLLBACK; UPDATE device SET body = 'late', token = $token", 'LK001', "$label: nor a row");
	is($look->query_safe('SELECT body FROM ledger'), 'ab', "$label: what is written");
	is($look->query_safe('SELECT body FROM device'), 'ab', "$label: and in the row");

	# A transaction that is open is waited for.
	$b->query_safe("BEGIN; SELECT dlock_fence('ledger', $next)");
	pass_deadline($locks, 'ledger', $next);
	my $third = $la->query_safe("SELECT dlock_acquire('ledger', 'a', '1 h')");
	waits_for($look, $a, $write->($third, 'c'), [$b], "$label: a successor waits for the transaction");
	outcome_is($b, "UPDATE ledger SET body = body || 'B'; COMMIT", '', "$label: which commits");
	came_to_is($a, '', "$label: then the successor writes");
	is($look->query_safe('SELECT body FROM ledger'), 'abBc', "$label: in order");

	# Live mode looks for a lease here, and there is none, though the name is known.
	outcome_is($a, "SELECT dlock_fence('ledger', $third, live => true)", 'LK002', "$label: no live mode");
	$look->query_safe("SELECT dlock_acquire('ledger', 'somebody', '1 h')");
	outcome_is($a, "SELECT dlock_fence('ledger', $third, live => true)", 'LK002', "$label: whoever holds a lock of that name here");
	$look->query_safe("SELECT dlock_release('ledger', 'somebody')");
	is(mark($look, 'ledger'), $third, "$label: the mark has not changed");

	# The server of the locks is not needed to write, and its crash takes no token back.
	$_->quit foreach $a, $b, $la, $lb, $locks, $look;
	crash_node($node);
	if ($node != $data_node)
	{
		outcome_is($look = DLockSession->new($data_node, $db, name => 'look'), $write->($third, 'd'), '',
			"$label: the holder writes while the server of the locks is down");
		$look->quit;
	}
	$node->start;
	$look = DLockSession->new($data_node, $db, name => 'look');
	$locks = DLockSession->new($node, $lock_db, name => 'locks');
	pass_deadline($locks, 'ledger', $third);
	my $fourth = $locks->query_safe("SELECT dlock_acquire('ledger', 'b', '1 h')");
	outcome_is($look, $write->($fourth, 'e'), '', "$label: after a crash, a successor");
	outcome_is($look, $write->($third, 'late'), 'LK001', "$label: shuts the holder before it out");
	$look->query_safe('ROLLBACK');

	# Nor does a crash of the data's server take a mark back.
	$_->quit foreach $look, $locks;
	crash_node($data_node);
	$data_node->start;
	$look = DLockSession->new($data_node, $db, name => 'look');
	is(mark($look, 'ledger'), $fourth, "$label: the mark after a crash");
	outcome_is($look, $write->($third, 'late'), 'LK001', "$label: keeps the old token out");
	$look->query_safe('ROLLBACK');
	like($look->query_safe('SELECT body FROM ledger'), qr/^abBcd?e$/, "$label: what is written in the end");
	$look->quit;
}

# A lock on a server whose clock is behind has lower tokens.  The guard
# fails closed, until the owner of the extension resets the mark.
my $new_node = start_node('new');
my $token = $new_node->safe_psql($db, "SELECT dlock_acquire('ledger', 'c', '1 h')");
my $look = DLockSession->new($data_node, $db, name => 'look');
my $mark = $token + 1000;
$look->query_safe("SELECT dlock_fence('ledger', $mark)");
outcome_is($look, "SELECT dlock_fence('ledger', $token)", 'LK001', 'a new server of locks: refused');
is($look->query_safe("SELECT dlock_fence_reset('ledger', $token, 'a new server of locks')"),
	$mark, 'a new server of locks: reset');
outcome_is($look, "SELECT dlock_fence('ledger', $token)", '', 'a new server of locks: passes');

$look->quit;
$_->stop foreach $new_node, $data_node, $lock_node;
done_testing();
