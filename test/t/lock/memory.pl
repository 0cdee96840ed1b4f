# Proves: a full lock space refuses new locks and keeps the old ones; what is
# released or expires makes room again, over and over, for leases of any size,
# of any database; nothing leaks.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use List::Util qw(max sum);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', conf => <<'EOC');
dlock.max_memory = 2MB
EOC
my $db = 'postgres';
my $session = DLockSession->new($node, $db);
$session->query_safe('SET synchronous_commit = off');
my $prepare = <<'EOC';
-- Acquire until it is refused; returns how many there are then.
CREATE FUNCTION fill(prefix text, owner text, payload jsonb, ttl interval) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 100000 LOOP
		BEGIN
			PERFORM dlock_acquire(prefix || i, owner, ttl, payload => payload);
		EXCEPTION WHEN configuration_limit_exceeded THEN
			RETURN i - 1;
		END;
	END LOOP;
	RETURN -1;
END $$;
EOC
$node->safe_psql($db, $prepare);

my $old = $session->query_safe("SELECT dlock_acquire('old', 'alice', '1 h')");
my $capacity =
  $session->query_safe("SELECT fill('short-', 'filler', NULL, '1 h')");
note "2 MB holds $capacity leases";
cmp_ok($capacity, '>=', 2 * 1024 * 1024 / 256 * 0.9,
	'a lease takes at most 256 bytes');

# Full: the error, and nothing else.
my %error = sqlstate_is($node, $db, "SELECT dlock_acquire('more', 'bob', '1 h')",
	'53400', 'full: refused');
ok(defined $error{detail} && defined $error{hint}, 'full: says why, and what to do');
is($session->query_safe("SELECT count(*) FROM dlock_leases"),
	$capacity + 1, 'full: the old leases are there');
is($session->query_safe("SELECT dlock_check('old', $old), dlock_renew('old', 'alice', '2 h'), dlock_renew_all('filler') = $capacity"),
	't|t|t', 'full: and can be renewed');
is($session->query_safe("SELECT dlock_acquire('old', 'bob', '1 h')"),
	'', 'full: a held lock is refused as always');
is( $session->query_safe(
		"SELECT count(*) FROM dlock_leases WHERE name = 'more'"),
	0,
	'full: what was refused is not held');

# Full: another session and another database are refused too, and survive it.
my $other = DLockSession->new($node, $db);
$other->query("SELECT dlock_acquire('more-2', 'bob', '1 h')");
like($other->{stderr}, qr/lease memory is full/, 'full: another session');

# Room again, for others too.
is( $session->query_safe(
		"SELECT count(dlock_release('short-' || i, 'filler')) FROM generate_series(1, 10) i"
	),
	10,
	'ten released');
is( $other->query_safe(
		"SELECT count(dlock_acquire('more-' || i, 'bob', '1 h')) FROM generate_series(1, 10) i"
	),
	10,
	'ten granted, to another session');
is($session->query_safe("SELECT dlock_release_all('filler')"),
	$capacity - 10, 'all released');
is($other->query_safe("SELECT dlock_release_all('bob')"),
	10, 'those of the other session too');

# Requests that keep a place and give it up, with texts that do not fit a cell.
is( $session->query_safe(
		"SELECT count(dlock_acquire('old', o, '1 h', keep => '1 h', payload => p)) + count(dlock_acquire('old', o, '1 h', payload => p)) FROM generate_series(1, 2500), repeat('o', 255) o, to_jsonb(repeat('p', 900)) p"
	),
	0,
	'requests come and go');
is($session->query_safe('SELECT count(*) FROM dlock_waiters'), 0, 'and none is left');
cmp_ok(
	$session->query_safe("SELECT fill('again-', 'filler', NULL, '1 h')"),
	'>=', $capacity - 70, 'as many again');
$session->query_safe("SELECT dlock_release('again-1', 'filler')");

# A restart of a full server brings all back.
$session->query_safe('SET synchronous_commit = on');
cmp_ok($session->query_safe("SELECT dlock_acquire('again-1', 'filler', '1 h')"),
	'>', 0, 'the last one durably, and so all');
$session->quit;
$other->quit;
my $held = $node->safe_psql($db, 'SELECT count(*) FROM dlock_leases');
crash_node($node);
$node->start;
is($node->safe_psql($db, 'SELECT count(*) FROM dlock_leases'),
	$held, 'full: all are held after a crash');
is($node->safe_psql($db, "SELECT dlock_check('old', $old)"),
	't', 'the oldest among them');

# With less memory than its leases need, a server starts, refuses, and has
# forgotten nothing when it gets more.
$node->safe_psql($db, "SELECT dlock_release_all('filler')");
$node->append_conf('postgresql.conf', 'dlock.max_memory = 8MB');
$node->restart;
my $many = $node->safe_psql($db,
	"SET synchronous_commit = off; SELECT fill('many-', 'filler', NULL, '1 h')");
cmp_ok($many, '>', 2 * $capacity, '8 MB hold more');
$held = $node->safe_psql($db, 'SELECT count(*) FROM dlock_leases');
$node->append_conf('postgresql.conf', 'dlock.max_memory = 2MB');
$node->restart;
sqlstate_is($node, $db, "SELECT dlock_acquire('x')",
	'53400', 'too little memory to load: refused');
sqlstate_is($node, $db, "SELECT dlock_acquire('x')",
	'53400', 'too little memory to load: refused again');
$node->safe_psql($db, 'CREATE DATABASE small');
$node->safe_psql('small', 'CREATE EXTENSION dlock');

# Whoever tries to load the first one fills the memory for a moment.
ok( $node->poll_query_until(
		'small', "SELECT dlock_acquire('x', 'alice', '1 h', reentry => 'return') > 0"),
	'too little memory to load one database: another one works');
$node->append_conf('postgresql.conf', 'dlock.max_memory = 16MB');
$node->restart;
is($node->safe_psql($db, 'SELECT count(*) FROM dlock_leases'),
	$held, 'all are there with enough memory');
$node->safe_psql($db, "SELECT dlock_release_all('filler')");
$node->append_conf('postgresql.conf', 'dlock.max_memory = 2MB');
$node->restart;

# Sizes in turn: memory that one size has used serves the next, all of it, but for 4 bytes
# for each slot on pages of another class, and a cell for each of 16 stripes of these.
$session = DLockSession->new($node, $db);
$session->query_safe('SET synchronous_commit = off');
my @sizes = (
	[ q('s'), q('filler'), 'NULL' ],
	[ q(repeat('n', 100)), q('filler'), 'NULL' ],
	[ q(repeat('n', 240)), q(repeat('o', 255)), 'NULL' ],
	[ q('p'), q('filler'), q(to_jsonb(repeat('p', 1000))) ],
	[ q(repeat('n', 240)), q(repeat('o', 255)), q(to_jsonb(repeat('p', 1000))) ],
);
my @first;
my @class = (0, 1, 1, 2, 2);
my $for_slots = sub {
	my ($class) = @_;
	my @slots = (0, 0, 0);

	foreach my $i (0 .. $#first)
	{
		$slots[ $class[$i] ] = max($slots[ $class[$i] ], $first[$i]) if $class[$i] != $class;
	}
	return sum(@slots) * 4 + 2 * 16 * 232;
};
foreach my $round (1 .. 3)
{
	foreach my $i (0 .. $#sizes)
	{
		my ($prefix, $owner, $payload) = @{ $sizes[$i] };
		my $n = $session->query_safe(
			"SELECT fill($prefix, $owner, $payload, '1 h')");

		$first[$i] //= $n;
		cmp_ok($n, '>=', $first[$i] * (1 - $for_slots->($class[$i]) / (2 * 1024 * 1024)),
			"round $round, size $i: $n leases, of $first[$i] at first");
		is($session->query_safe("SELECT dlock_release_all($owner)"),
			$n, "round $round, size $i: all released");
	}
}
my $level = $first[0];

# A few large leases that live on, spread over all of the memory, keep no more
# than their own share of it from small ones; and the other way round.
foreach my $case ([ 3, 0 ], [ 0, 3 ], [ 4, 1 ])
{
	my ($before, $after) = @$case;
	my ($prefix, $owner, $payload) = @{ $sizes[$before] };
	my $n = $session->query_safe("SELECT fill($prefix, $owner, $payload, '1 h')");
	my $left = $session->query_safe(
		"SELECT count(dlock_release($prefix || i, $owner)) FROM generate_series(1, $n) i WHERE i % 25 <> 0");
	my $kept = $n - $left;

	($prefix, $owner, $payload) = @{ $sizes[$after] };
	my $more = $session->query_safe(
		"SELECT fill('after-' || $prefix, 'after', $payload, '1 h')");
	cmp_ok($more, '>=', 0.94 * $first[$after],
		"size $after after size $before: beside $kept that live on, $more leases, of $first[$after] at first");
	is($session->query_safe("SELECT count(*) FROM dlock_leases WHERE owner <> 'after' AND name <> 'old'"),
		$kept, "size $after after size $before: those that live on are there");
	$session->query_safe(
		"SELECT count(dlock_force_release(name, 'test')) FROM dlock_leases WHERE name <> 'old'");
}

# Full of dead leases: refused without a worker; with one, a call that finds no memory
# waits until it has erased them.
pause_worker($node);
my $dead;

# With more time if the first ones are dead before the last ones are there.
foreach my $ttl (2, 10, 50)
{
	$dead = $session->query_safe("SELECT fill('dead-', 'dead', NULL, '$ttl s')");
	last if $dead > 0.8 * $first[0] && $dead < 1.2 * $first[0];
	$session->query_safe("SELECT dlock_release_all('dead')");
}
cmp_ok($dead, '>', 0.8 * $first[0], "$dead leases with a short ttl");
ok(wait_until(sub { $session->query_safe("SELECT count(*) FROM dlock_leases WHERE name <> 'old'") == 0 }),
	'all of them are dead');
is($session->query("SELECT dlock_acquire('after-dead', 'alice', '1 h')"), 'ERROR 53400', 'dead leases, no worker: refused');
resume_worker($node);
ok(wait_until(sub { $session->query("SELECT dlock_acquire('after-dead', 'alice', '1 h')") =~ /^\d+$/ }), 'dead leases: a lock is acquired');
$session->query_safe("SELECT dlock_release('after-dead', 'alice')");
cmp_ok($session->query_safe("SELECT fill('next-', 'next', NULL, '1 h')"),
	'>=', 0.95 * $first[0], 'dead leases: all of the memory serves again');
$session->query_safe("SELECT dlock_release_all('next')");

# Expired leases make room like released ones, without anybody asking for them.
$session->query_safe("SELECT fill('expires-', 'filler', NULL, '300 ms')");
ok( wait_until(
		sub {
			my $n = $session->query_safe("SELECT fill('next-', 'next', NULL, '1 h')");
			$session->query_safe("SELECT dlock_release_all('next')");
			return $n >= 0.95 * $level;
		}),
	'expired leases make room');

# So do dropped databases and extensions, in a moment: fill the space, drop what
# fills it, and begin again.
foreach my $round (1 .. 3)
{
	my $n;

	$node->safe_psql($db, 'CREATE DATABASE brief');
	$node->safe_psql('brief', 'CREATE EXTENSION dlock');
	$node->safe_psql('brief', $prepare);
	ok( wait_until(
			sub {
				$n = $node->safe_psql('brief',
					"SET synchronous_commit = off; SELECT dlock_release_all('filler'); SELECT fill('x', 'filler', NULL, '1 h')"
				);
				$n =~ s/.*\n//;
				return $n >= 0.95 * $level;
			}),
		"DROP DATABASE $round: $n leases");
	$node->safe_psql($db, 'DROP DATABASE brief');
}
foreach my $round (1 .. 3)
{
	my $n;

	ok( wait_until(
			sub {
				$n = $session->query_safe("SELECT fill('x', 'filler', NULL, '1 h')");
				return 1 if $n >= 0.95 * $level;
				$session->query_safe("SELECT dlock_release_all('filler')");
				return 0;
			}),
		"DROP EXTENSION $round: $n leases");
	$node->safe_psql($db, 'DROP EXTENSION dlock; CREATE EXTENSION dlock');
}
$session->quit;

# Many sessions come and go, with leases of every size, without taking memory
# along: there are never more than four leases.
$node->restart;
my $dir = PostgreSQL::Test::Utils::tempdir;
append_to_file("$dir/session.sql", <<'EOC');
\set n random(1, 1000000)
\set name_len random(1, 240)
\set owner_len random(1, 255)
\set payload_len random(0, 1000)
SELECT dlock_acquire(repeat('n', :name_len) || :n, repeat('o', :owner_len), '1 h', payload => to_jsonb(repeat('p', :payload_len)));
SELECT dlock_release(repeat('n', :name_len) || :n, repeat('o', :owner_len));
EOC
$node->command_ok(
	[
		'pgbench', '-n', '-C', '-c', '4', '-t', '100', '-f',
		"$dir/session.sql", $node->connstr($db)
	],
	'400 sessions');
cmp_ok(
	$node->safe_psql($db, "SELECT pg_relation_size('_dlock.store') / 8192"),
	'<=', 30, 'nor does the store grow by what a session had reserved');
my $n = $node->safe_psql($db,
	"SET synchronous_commit = off; SELECT fill('last-', 'filler', NULL, '1 h')");
cmp_ok($n, '>=', 0.5 * $capacity, "room after 400 sessions: $n leases");
$node->safe_psql($db, "SELECT dlock_release_all('filler')");

# Nor does a session take along what it keeps for its next lease.
append_to_file("$dir/short.sql", <<'EOC');
\set n random(1, 1000000)
SELECT dlock_release_token('short-:n', dlock_acquire('short-:n', 'session', '1 h'));
EOC
$node->command_ok(
	[
		'pgbench', '-n', '-C', '-c', '4', '-t', '200', '-f',
		"$dir/short.sql", $node->connstr($db)
	],
	'800 sessions');
my $left = $node->safe_psql($db,
	"SET synchronous_commit = off; SELECT fill('last-', 'filler', NULL, '1 h')");
cmp_ok($left, '>=', 0.97 * $n, "room after 800 more: $left leases");

$node->stop;
done_testing();
