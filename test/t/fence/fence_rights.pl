# Proves: a fence is passed by roles that may, by a function, or by a guard that such
# a role has created; a wait at a fence that ends in an error names who is in the way.

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
refused('stranger', "SELECT dlock_fence_declare('ledger')", 'nor is dlock_fence_declare', 'permission denied for function dlock_fence_declare');
refused('stranger', "CREATE TABLE own (); CREATE TRIGGER guard BEFORE INSERT ON own EXECUTE FUNCTION dlock_guard('ledger')",
	'a guard of its own is no way round', 'permission denied for function dlock_guard');
is(as_role('stranger', "SET dlock.tokens = 'ledger=1'; INSERT INTO ledger VALUES ('stranger')"), '', 'a guarded table is written without them');

# By resource: who is granted the functions may pass all but what belongs to others.
$node->safe_psql($db, <<'EOC');
GRANT EXECUTE ON FUNCTION dlock_fence, dlock_guard TO holder, worker;
SELECT dlock_fence_declare('ledger', 'writers');
SELECT dlock_fence_declare('tenant/*', 'writers');
EOC
is(as_role('holder', "SELECT dlock_fence('other', 1)"), '', 'what nobody has declared is for all who have the function');
refused('holder', "SELECT dlock_fence('ledger', 1)", 'what belongs to a role is not', 'permission denied for fenced resource "ledger"');
refused('holder', "SELECT dlock_fence('tenant/7', 1)", 'nor what begins so', 'permission denied for fenced resource "tenant/7"');
is(as_role('holder', "SELECT dlock_fence('tenant', 1)"), '', 'but what does not');
is(as_role('worker', "SELECT dlock_fence('ledger', 1), dlock_fence('tenant/7', 1)"), '', 'members may');
like(as_role('holder', "SELECT dlock_fence('ledger', 1)"), qr/DETAIL:  "ledger" is declared to belong to role "writers"\.\nHINT:  /, 'with a detail and a hint');
my $guard = 'CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON';
$node->safe_psql($db, 'CREATE TABLE mine (tenant text, token bigint); ALTER TABLE mine OWNER TO holder');
refused('holder', "$guard mine EXECUTE FUNCTION dlock_guard('ledger')", 'nor by a guard', 'permission denied for fenced resource "ledger"');
refused('holder', "$guard mine FOR EACH ROW EXECUTE FUNCTION dlock_guard('ten', 'resource_column=tenant')",
	'of a column', 'permission denied for fenced resource "ten"');
refused('holder', "$guard mine FOR EACH ROW EXECUTE FUNCTION dlock_guard('tenant/7/', 'resource_column=tenant')",
	'that begins like it', 'permission denied for fenced resource "tenant/7/"');
refused('holder', "$guard mine FOR EACH ROW EXECUTE FUNCTION dlock_guard('resource_column=tenant')",
	'nor of a column alone', 'permission denied for fenced resource ""');
unlike(as_role('holder', "BEGIN; $guard mine FOR EACH ROW EXECUTE FUNCTION dlock_guard('x/', 'resource_column=tenant'); ROLLBACK"),
	qr/ERROR/, 'but by one of its own');
unlike(as_role('holder', "$guard mine FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token')"),
	qr/ERROR/, 'and by one of rows that are their own marks');

# A writer of the table is let through by its guard, as ever.
is(as_role('stranger', "SET dlock.tokens = 'ledger=1'; INSERT INTO ledger VALUES ('stranger')"), '', 'the privilege on the table counts');

# Declarations: replaced, renamed roles, dropped roles, taken back.
$node->safe_psql($db, 'ALTER ROLE writers RENAME TO "new writers"');
is(as_role('worker', "SELECT dlock_fence('ledger', 1)"), '', 'a role that is renamed');
is($node->safe_psql($db, "SELECT resource, role, is_foreign FROM _dlock.fence_declared ORDER BY resource"),
	"ledger|\"new writers\"|f\ntenant/*|\"new writers\"|f", 'what is declared can be read');
$node->safe_psql($db, q{SELECT dlock_fence_declare('ledger', 'holder')});
refused('worker', "SELECT dlock_fence('ledger', 1)", 'declared anew', 'permission denied for fenced resource "ledger"');
is(as_role('holder', "SELECT dlock_fence('ledger', 1)"), '', 'for another role');
$node->safe_psql($db, q{SELECT dlock_fence_declare('ledger')});
is(as_role('worker', "SELECT dlock_fence('ledger', 1)"), '', 'taken back');
$node->safe_psql($db, q{DROP ROLE "new writers"});
refused('worker', "SELECT dlock_fence('tenant/7', 1)", 'a role that is dropped', 'permission denied for fenced resource "tenant/7"');
like(as_role('worker', "SELECT dlock_fence('tenant/7', 1)"), qr/a role that no longer exists/, 'which is said');
$node->safe_psql($db, q{SELECT dlock_fence_declare('tenant/*')});
foreach my $bad (
	[ "dlock_fence_declare(NULL)", '22004' ], [ "dlock_fence_declare('')", '22023' ],
	[ "dlock_fence_declare('x', 'nobody')", '42704' ], [ "dlock_fence_declare('x', NULL, NULL)", '22004' ])
{
	my ($rc, $out, $err) = $node->psql($db, "\\set VERBOSITY sqlstate\nSELECT $bad->[0]");
	like($err, qr/ERROR:  $bad->[1]/, "bad input: $bad->[0]");
}
is($node->safe_psql($db, 'SELECT count(*) FROM _dlock.fence_declared'), 0, 'nothing is left');

# A transaction that sits at the mark is named to whoever wants to take over.
# The role is the one that has connected, which is what pg_terminate_backend() asks for.
my $sitting = DLockSession->new($node, $db, name => 'sitting');
my ($pid, $login) = split /\|/, $sitting->query_safe('SELECT pg_backend_pid(), session_user');
$sitting->query_safe("SET SESSION AUTHORIZATION worker; BEGIN; SELECT dlock_fence('ledger', 1)");
my $in_the_way = qr/HINT:  In the way at the fence of resource "ledger": process $pid of role "$login"\. .*pg_terminate_backend/;
like(as_role('holder', "SET lock_timeout = '50ms'; SELECT dlock_fence('ledger', 2)"),
	qr/ERROR:  canceling statement due to lock timeout\n$in_the_way/, 'lock_timeout names it');

# A slow machine may need all of the time before the statement waits.
my $timed_out;
foreach my $timeout ('50ms', '1s', '30s')
{
	$timed_out = as_role('holder', "SET statement_timeout = '$timeout'; SELECT dlock_fence('ledger', 2)");
	last if $timed_out =~ /HINT/;
}
like($timed_out, qr/ERROR:  canceling statement due to statement timeout\n$in_the_way/, 'so does statement_timeout');
like(as_role('stranger', "SET lock_timeout = '50ms'; SET dlock.tokens = 'ledger=2'; INSERT INTO ledger VALUES ('new')"),
	$in_the_way, 'and a guard');
like(as_role($login, "SET lock_timeout = '50ms'; SELECT dlock_fence_reset('ledger', NULL, 'test')"), $in_the_way, 'and a reset');
unlike(as_role('holder', "SELECT dlock_fence('ledger', 1)"), qr/HINT/, 'nothing to say without a wait');

# The waiter is out of the queue, and its session goes on.
my $waiter = DLockSession->new($node, $db, name => 'waiter');
$waiter->query_safe("SET lock_timeout = '50ms'");
for my $i (1 .. 3)
{
	outcome_is($waiter, "BEGIN; SAVEPOINT a; SELECT dlock_fence('ledger', 2)", '55P03', "wait $i ends");
	outcome_is($waiter, "ROLLBACK TO a; SELECT dlock_fence('other', 2); COMMIT", '', "and its transaction $i goes on");
}
is($node->safe_psql($db, "SELECT count(*) FROM pg_locks WHERE objsubid = 25709 AND NOT granted"), 0, 'nobody is left in the queue');

# One that waits behind another one in the queue waits for those that have passed.
my $first = DLockSession->new($node, $db, name => 'first');
waits_for($waiter, $first, "SELECT dlock_fence('ledger', 3)", [$sitting], 'the first in the queue');
like(as_role('holder', "SET lock_timeout = '50ms'; SELECT dlock_fence('ledger', 1)"),
	$in_the_way, 'the next one gets to know who sits');

# As many as there are.
my $second = DLockSession->new($node, $db, name => 'second');
$second->query_safe("BEGIN; SELECT dlock_fence('other', 2)");
$waiter->query_safe("BEGIN; SELECT dlock_fence('other', 2)");
like(as_role('holder', "SET lock_timeout = '50ms'; SELECT dlock_fence('other', 3)"),
	qr/: process \d+ of role "\w+", process \d+ of role "\w+"\. /, 'all are named');
$_->query_safe('ROLLBACK') foreach $second, $waiter;
$sitting->query_safe('ROLLBACK');
came_to_is($first, '', 'the first goes on');

# A prepared transaction has no process.
$sitting->query_safe("BEGIN; SELECT dlock_fence('ledger', 3); PREPARE TRANSACTION 'sitting'");
like(as_role('holder', "SET lock_timeout = '50ms'; SELECT dlock_fence('ledger', 4)"), qr/: a prepared transaction\./, 'a prepared transaction');
$sitting->query_safe("RESET SESSION AUTHORIZATION; ROLLBACK PREPARED 'sitting'");
is(as_role('holder', "SELECT dlock_fence('ledger', 4)"), '', 'and when it is gone, the fence is passed');

# Declarations are dumped with the marks.
$node->safe_psql($db, q{SELECT dlock_fence_declare('far/*', 'holder', true)});
my $dump = $node->basedir . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, $node->connstr($db) ], 'dump');
$node->safe_psql($db, 'CREATE DATABASE copy');
$node->command_ok([ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-q', '-f', $dump, $node->connstr('copy') ], 'restore');
is($node->safe_psql('copy', 'SELECT resource, role, is_foreign FROM _dlock.fence_declared'), 'far/*|holder|t', 'declarations are dumped');

$_->quit foreach $sitting, $waiter, $first, $second;
$node->stop;
done_testing();
