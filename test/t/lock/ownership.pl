# Proves: a forced release is told to the server log with who, what and why; and a
# lease stays its role's through crashes, renames and changes of membership.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', conf => "log_min_messages = log\n");
my $db = 'postgres';
$node->safe_psql($db,
	'CREATE ROLE holder; CREATE ROLE stranger; CREATE ROLE "odd ""role"""; GRANT EXECUTE ON FUNCTION dlock_force_release(text, text) TO "odd ""role"""'
);

sub as
{
	my ($role, $sql) = @_;
	return $node->safe_psql($db, "SET ROLE $role; $sql");
}

# The log.
my $token = as('holder', "SELECT dlock_acquire('forced', 'worker-7', '1 h')");
my $offset = -s $node->logfile;
is( as('"odd ""role"""',
		"SELECT dlock_force_release('forced', 'host is gone, ticket 4711')"),
	1,
	'forced');
my $log = slurp_file($node->logfile, $offset);
my ($line) = $log =~ /(.*LOG: .*(?:\n.*(?:DETAIL|HINT|CONTEXT): .*)*)/;
foreach my $said ('forced', 'worker-7', $token, 'odd "role"',
	'host is gone, ticket 4711')
{
	like($line // '', qr/\Q$said\E/, "the log says: $said");
}

# A forced release of nothing.
is( as('"odd ""role"""', "SELECT dlock_force_release('forced', 'again')"),
	0, 'nothing to force');

# A reason cannot fake a line of the log.
$token = as('holder', "SELECT dlock_acquire('forced', 'worker-7', '1 h')");
$offset = -s $node->logfile;
as('"odd ""role"""',
	"SELECT dlock_force_release('forced', E'x\\n2026-01-01 00:00:00 UTC [1] LOG:  faked')"
);
$log = slurp_file($node->logfile, $offset);
unlike($log, qr/^2026-01-01 00:00:00 UTC \[1\] LOG:  faked/m,
	'a line break in a reason starts no line of the log');

# A change of epoch is told as well.
$offset = -s $node->logfile;
$node->safe_psql($db, "SELECT dlock_bump_epoch('restored a snapshot')");
like(slurp_file($node->logfile, $offset),
	qr/restored a snapshot/, 'the log says why the epoch was moved');

# A crash does not make a lease anybody's.
$token = as('holder', "SELECT dlock_acquire('held', 'alice', '1 h')");
crash_node($node);
$node->start;
sqlstate_is($node, $db,
	"SET ROLE stranger; SELECT dlock_release_token('held', $token)",
	'42501', 'a stranger, after a crash');
is(as('stranger', "SELECT dlock_release_all('alice') + dlock_renew_all('alice')"),
	0, 'all of an owner, by a stranger, after a crash');
is(as('holder', "SELECT dlock_renew_token('held', $token)"),
	't', 'the holder, after a crash');

# Nor does a new name for the role; membership counts as it is at the call.
$node->safe_psql($db, 'ALTER ROLE holder RENAME TO keeper');
is($node->safe_psql($db, 'SELECT role FROM dlock_leases'),
	'keeper', 'the view shows the new name');
is(as('keeper', "SELECT dlock_renew('held', 'alice')"),
	't', 'the role under its new name');
$node->safe_psql($db, 'GRANT keeper TO stranger');
is(as('stranger', "SELECT dlock_renew('held', 'alice')"), 't', 'a new member');
$node->safe_psql($db, 'REVOKE keeper FROM stranger');
is(as('stranger', "SELECT dlock_renew('held', 'alice')"), 'f', 'a member no more, by owner');
my %error = sqlstate_is($node, $db,
	"SET ROLE stranger; SELECT dlock_convert('held', $token, 'NL')",
	'42501', 'a member no more, by token');
ok(defined $error{detail} || defined $error{hint}, 'says more');

# A session that keeps its connection learns of it, too.
my $session = DLockSession->new($node, $db);
$session->query('SET ROLE stranger');
is($session->query("SELECT dlock_renew('held', 'alice')"),
	'f', 'an open session: refused');
$node->safe_psql($db, 'GRANT keeper TO stranger');
is($session->query("SELECT dlock_renew('held', 'alice')"),
	't', 'an open session: a member now');
$session->quit;

# The role is dropped: a superuser ends it, the ttl does, nobody else.
$node->safe_psql($db, 'DROP ROLE keeper');
is(as('stranger', "SELECT dlock_release('held', 'alice')"),
	'f', 'a dropped role: refused');
sqlstate_is($node, $db,
	"SET ROLE stranger; SELECT dlock_convert('held', $token, 'NL')",
	'42501', 'a dropped role: refused by token');
is($node->safe_psql($db, "SELECT dlock_release('held', 'alice')"),
	't', 'a dropped role: a superuser may');

$node->stop;
done_testing();
