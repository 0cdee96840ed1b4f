# Proves: dlock.max_leases limits the leases and waiting requests of a role in a
# database, whatever these come from and however they end; it says so, touches no
# other role, and lets dead leases not count.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_fault_node('main', conf => "max_connections = 100\n");
my $db = 'postgres';
my $admin = DLockSession->new($node, $db);

$admin->query_safe(<<'EOC');
CREATE ROLE tenant LOGIN;
CREATE ROLE other LOGIN;
CREATE ROLE member LOGIN IN ROLE tenant;
EOC

# It had leases before there was a limit, and one of them is dead.
my $early = DLockSession->new($node, $db, user => 'tenant');
$early->query_safe("SELECT dlock_acquire('early-' || i, 'early', '1 h') FROM generate_series(1, 3) i");
$admin->query_safe('ALTER ROLE tenant SET dlock.max_leases = 10');
my $tenant = DLockSession->new($node, $db, user => 'tenant');
my $other = DLockSession->new($node, $db, user => 'other');

sub held
{
	return $admin->query_safe(
		"SELECT count(*) FROM dlock_leases WHERE role = 'tenant'::regrole");
}

sub refused
{
	my ($session, $sql, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	like($session->query($sql), qr/^ERROR 53400/, $test_name);
	return;
}

is($tenant->query_safe('SHOW dlock.max_leases'), 10, 'ALTER ROLE sets it');
like($tenant->query('SET dlock.max_leases = 100'), qr/^ERROR 42501/,
	'the role cannot set it');

# Those that it had count.
is( $tenant->query_safe(
		"SELECT count(dlock_acquire('t-' || i, 'alice', '1 h')) FROM generate_series(1, 7) i"),
	7,
	'seven beside three early ones');
refused($tenant, "SELECT dlock_acquire('t-8', 'alice', '1 h')", 'the eleventh is refused');
my %error = error_fields($node, $db, <<'EOC');
SET dlock.max_leases = 10;
SET ROLE tenant;
SELECT dlock_acquire('t-8');
EOC
like($error{message}, qr/role "tenant"/, 'the error names the role');
like($error{detail}, qr/holds 10 leases.*"dlock.max_leases" is 10/,
	'the error names the limit and how many there are');
ok(defined $error{hint}, 'the error says what to do');
is(held(), 10, 'what was refused is not held');
is($tenant->query_safe("SELECT dlock_acquire('t-1', 'alice', reentry => 'count') > 0"),
	't', 'to enter a lease again takes none');
is($tenant->query_safe("SELECT dlock_renew('t-1', 'alice')"), 't', 'nor does a renewal');
is($tenant->query_safe("SELECT dlock_acquire('t-1', 'bob') IS NULL"),
	't', 'a lock that is held is refused as always');

# Others.
is( $other->query_safe(
		"SELECT count(dlock_acquire('o-' || i, 'carol', '1 h')) FROM generate_series(1, 50) i"),
	50,
	'another role has no limit');
is($early->query_safe("SELECT dlock_acquire('early-4', 'early', '1 h') > 0"),
	't', 'nor has a session that began before');
is($early->query_safe("SELECT dlock_release('early-4', 'early')"), 't', 'released');

# Releases, of all kinds, make room at once: one for one.
my $full = sub {
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is($tenant->query_safe("SELECT dlock_acquire('full', 'alice', '1 h') > 0"),
		't', "room for one: $what");
	refused($tenant, "SELECT dlock_acquire('more', 'alice', '1 h')", "no room for two: $what");
	$tenant->query_safe("SELECT dlock_release('full', 'alice')");
	$tenant->query_safe("SELECT dlock_acquire('t-7', 'alice', '1 h', reentry => 'return')");
	is(held(), 10, "ten: $what");
};
$tenant->query_safe("SELECT dlock_release('t-7', 'alice')");
$full->('after a release');
$admin->query_safe("SELECT dlock_force_release('t-7', 'test')");
$full->('after a release by force');
$tenant->query_safe("SELECT dlock_release('t-7', 'alice')");
my $bound = DLockSession->new($node, $db, user => 'tenant');
$bound->query_safe("SELECT dlock_acquire('bound', 'alice', bind => 'session')");
$bound->quit;
$full->('after the end of a session');
$tenant->query_safe("SELECT dlock_release('t-7', 'alice')");
$tenant->query_safe("BEGIN; SELECT dlock_acquire('bound', 'alice', bind => 'transaction'); ROLLBACK");
$full->('after the end of a transaction');

# Waiting requests count, and so does what they are granted.
$tenant->query_safe("SELECT dlock_release('t-7', 'alice')");
my $waits = DLockSession->new($node, $db, user => 'tenant');
$waits->ask_waiting($admin, "SELECT dlock_acquire('o-1', 'alice', '1 h', wait => NULL) > 0");
refused($tenant, "SELECT dlock_acquire('t-7', 'alice', '1 h')", 'a waiting request counts');
refused($tenant, "SELECT dlock_acquire('o-2', 'alice', '1 h', wait => '1 h')",
	'a request that would wait is refused');
$other->query_safe("SELECT dlock_release('o-1', 'carol')");
is($waits->answer, 't', 'it is granted');
is(held(), 10, 'ten are held');
refused($tenant, "SELECT dlock_acquire('t-7', 'alice', '1 h')", 'what it was granted counts');
$tenant->query_safe("SELECT dlock_release('o-1', 'alice')");
$full->('after a hand-off');
$tenant->query_safe("SELECT dlock_release('t-7', 'alice')");
$waits->ask_waiting($admin, "SELECT dlock_acquire('o-2', 'alice', '1 h', wait => NULL) > 0");
$admin->query_safe('SELECT pg_cancel_backend(' . $waits->pid . ')');
like($waits->answer, qr/^ERROR 57014/, 'it is cancelled');
$full->('after a cancelled wait');

# So do places, which nobody waits for: until they are given up, or taken.
$tenant->query_safe("SELECT dlock_release('t-' || i, 'alice') FROM generate_series(6, 7) i");
is( $tenant->query_safe(
		"SELECT count(*) FILTER (WHERE dlock_acquire('o-' || i, 'alice', '1 h', keep => '1 h') IS NULL) FROM generate_series(3, 4) i"),
	2,
	'two places beside eight leases');
refused($tenant, "SELECT dlock_acquire('t-6', 'alice', '1 h')", 'places count');
refused($tenant, "SELECT dlock_acquire('o-5', 'alice', '1 h', keep => '1 h')", 'no place at the limit');
is($tenant->query_safe("SELECT dlock_acquire('o-3', 'alice', '1 h', keep => '1 h')"), '', 'to ask for one again takes none');
is($tenant->query_safe("SELECT dlock_acquire('o-3', 'alice', '1 h')"), '', 'one is given up');
isnt($tenant->query_safe("SELECT dlock_acquire('t-6', 'alice', '1 h')"), '', 'which makes room for one');
refused($tenant, "SELECT dlock_acquire('t-7', 'alice', '1 h')", 'and for no other');
$other->query_safe("SELECT dlock_release('o-4', 'carol')");
is($tenant->query_safe("SELECT count(token) FROM dlock_take('alice', '0', '0')"), 1, 'the turn of the other one, at the limit');
refused($tenant, "SELECT dlock_acquire('t-7', 'alice', '1 h')", 'what it was granted counts');
$tenant->query_safe("SELECT dlock_release('o-4', 'alice')");
$full->('after places');

# Conversions.
$tenant->query_safe("SELECT dlock_release('t-7', 'alice')");
$tenant->query_safe("SELECT dlock_acquire('c', 'alice', '1 h', mode => 'shared')");
$other->query_safe("SELECT dlock_acquire('c', 'carol', '1 h', mode => 'shared')");
$waits->ask_waiting($admin,
	"SELECT dlock_convert('c', token, 'exclusive', wait => NULL) > 0 FROM dlock_leases WHERE name = 'c' AND owner = 'alice'");
$other->query_safe("SELECT dlock_release('c', 'carol')");
is($waits->answer, 't', 'a conversion needs no other lease');
$tenant->query_safe("SELECT dlock_release('c', 'alice')");
$full->('after a conversion');

# Several at once: all or none.
$tenant->query_safe("SELECT dlock_release('t-6', 'alice'), dlock_release('t-7', 'alice')");
refused($tenant, "SELECT dlock_acquire_all('{a,b,c}', 'alice', '1 h')", 'three are too many');
is(held(), 8, 'none of them is held');
is($tenant->query_safe("SELECT cardinality(dlock_acquire_all('{a,b}', 'alice', '1 h'))"),
	2, 'two are not');
refused($tenant, "SELECT dlock_acquire('c', 'alice', '1 h')", 'they count');
$tenant->query_safe("SELECT dlock_release('a', 'alice'), dlock_release('b', 'alice')");
refused($tenant, "SELECT dlock_acquire_path('x/y/z', 'alice', '1 h')",
	'a path counts with its ancestors');
is($tenant->query_safe("SELECT dlock_acquire_path('x/y', 'alice', '1 h') > 0"),
	't', 'a shorter path');
$tenant->query_safe("SELECT dlock_release('x/y', 'alice')");
is(held(), 8, 'eight are held');

# Dead leases do not count: a call at the limit waits until the worker has erased them.
my $worker = worker_pid($node);
foreach my $how ('alone', 'while the worker erases', 'and is cancelled')
{
	$tenant->query_safe("SELECT dlock_acquire('brief-' || i, 'alice', '10 min') FROM generate_series(1, 2) i");
	advance(600 - 0.000001, $admin);
	refused($tenant, "SELECT dlock_acquire('t-7', 'alice', '1 h')", "$how: leases count until their deadline");
	if ($how eq 'alone')
	{
		advance(1, $admin);
	}
	else
	{
		# The worker is busy with another lease, and begins a pass when the call waits already.
		$tenant->query_safe("SELECT dlock_renew('brief-' || i, 'alice', '1 min') FROM generate_series(1, 2) i");
		$admin->query_safe("SELECT dlock_acquire('earlier', 'root', '1 s')");
		stop_at($admin, $worker, 'worker_erased');
		advance(1, $admin);
		is_at($admin, 'worker_erased');
		stop_at($admin, $worker, 'worker_erase');
		advance(60, $admin);
	}
	$tenant->ask("SELECT count(dlock_acquire('t-' || i, 'alice', '10 h')) FROM generate_series(6, 7) i");
	if ($how ne 'alone')
	{
		ok(wait_until(sub { $admin->query_safe('SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $tenant->pid) eq 'Extension' }),
			"$how: it waits");
		go($admin, 'worker_erased');
		is_at($admin, 'worker_erase');
		ok($tenant->{pending}, "$how: it waits for what the worker erases");
	}
	$admin->query_safe('SELECT pg_cancel_backend(' . $tenant->pid . ')') if $how eq 'and is cancelled';
	go($admin, 'worker_erase') if $how eq 'while the worker erases';
	is($tenant->answer, $how eq 'and is cancelled' ? 'ERROR 57014' : 2, "$how: the answer");
	go_all($admin);
	is($tenant->query("SELECT count(dlock_acquire('t-' || i, 'alice', '10 h', reentry => 'return')) FROM generate_series(6, 7) i"),
		2, "$how: expired leases do not count");
	is(held(), 10, "$how: ten are held again");
	$tenant->query_safe("SELECT dlock_release('t-' || i, 'alice') FROM generate_series(6, 7) i");
}

# What ended a moment ago without its page being erased is found by the worker's pass.
$admin->query_safe('CREATE ROLE narrow LOGIN; ALTER ROLE narrow SET dlock.max_leases = 1');
my $narrow = DLockSession->new($node, $db, user => 'narrow');
isnt($narrow->query_safe("SELECT dlock_acquire('narrow-1', bind => 'transaction', lock_delay => '1 s')"), '', 'the one lease');
isnt($narrow->query("SELECT dlock_acquire('narrow-2')"), 'ERROR 53400', 'which has ended: another one is granted');
$narrow->quit;

# Without a worker it does not wait.
still_worker($node);
$tenant->query_safe("SELECT dlock_acquire('t-6', 'alice', '10 h'), dlock_acquire('brief', 'alice', '10 min')");
advance(600, $admin);
refused($tenant, "SELECT dlock_acquire('t-7', 'alice', '1 h')", 'no worker: refused');
is($tenant->query_safe("SELECT dlock_acquire('brief', 'alice', '1 h') > 0"), 't', 'no worker: what is dead on the lock itself does not count');
$tenant->query_safe("SELECT dlock_release('brief', 'alice'), dlock_acquire('t-7', 'alice', '10 h')");
is(held(), 10, 'no worker: ten are held');

# The role that a lease would be of is what counts.
is($admin->query_safe("SELECT dlock_acquire('admin', 'root', '1 h') > 0"), 't', 'no limit for others');
my $member = DLockSession->new($node, $db, user => 'member');
is($member->query_safe("SELECT dlock_acquire('m', 'm', '1 h') > 0"), 't', 'nor for a member');
$member->query_safe('SET ROLE tenant');
is($member->query_safe('SHOW dlock.max_leases'), -1, 'the setting is that of the session');

# For a database, and none at all.
$admin->query_safe("ALTER DATABASE $db SET dlock.max_leases = 0");
my $none = DLockSession->new($node, $db, user => 'other');
refused($none, "SELECT dlock_acquire('none', 'x')", 'none for a role of that database');
$admin->query_safe("ALTER DATABASE $db RESET dlock.max_leases");

# Over a crash: limit and leases are there.
$_->quit foreach ($tenant, $other, $early, $waits, $member, $none, $admin);
crash_node($node);
$node->start;
$admin = DLockSession->new($node, $db);
$tenant = DLockSession->new($node, $db, user => 'tenant');
is(held(), 10, 'ten are held after a crash');
my $unlimited = DLockSession->new($node, $db, setup => 'SET ROLE tenant');
$unlimited->ask_waiting($admin, "SELECT dlock_acquire('t-1', 'waits', '1 h', wait => NULL)");
refused($tenant, "SELECT dlock_acquire('t-8', 'alice', '1 h')", 'the eleventh is refused after a crash');
$tenant->query_safe("SELECT dlock_release('t-7', 'alice')");
refused($tenant, "SELECT dlock_acquire('t-8', 'alice', '1 h')", 'a request that waited before the leases were counted counts');
$admin->query_safe('SELECT pg_cancel_backend(' . $unlimited->pid . ')');
like($unlimited->answer, qr/^ERROR 57014/, 'it is cancelled');
$unlimited->quit;
$full->('after a crash');

# Many sessions at a time never exceed it, as each of them sees after each grant, and at the
# end the count is right.
my $dir = PostgreSQL::Test::Utils::tempdir;
append_to_file("$dir/limit.sql", <<'EOC');
\set n random(1, 40)
SELECT try('p-' || :n, 'p' || :client_id);
SELECT 1 / (count(*) <= 10)::int FROM dlock_leases WHERE role = 'tenant'::regrole;
SELECT dlock_release('p-' || :n, 'p' || :client_id);
EOC
$admin->query_safe(<<'EOC');
CREATE FUNCTION try(name text, owner text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	RETURN dlock_acquire(name, owner, '1 h', wait => '1 h');
EXCEPTION WHEN configuration_limit_exceeded THEN
	RETURN NULL;
END $$;
EOC
{
	local $ENV{PGUSER} = 'tenant';
	$node->command_ok(
		[ 'pgbench', '-n', '-c', '12', '-t', '300', '-f', "$dir/limit.sql", $node->connstr($db) ],
		'twelve sessions at a time never have more than ten');
}
is(held(), 10, 'those that were there are there');
$tenant->query_safe("SELECT dlock_release_all('alice')");
is( $tenant->query_safe(
		"SELECT count(try('last-' || i, 'last')) FROM generate_series(1, 20) i"),
	7,
	'the count is right after all that');
is(held(), 10, 'ten in all');

$node->stop;
done_testing();
