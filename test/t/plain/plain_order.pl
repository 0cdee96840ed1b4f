# Proves, of the plain edition: calls that wait are served in their order, and kept places in
# theirs; of sessions that race for a lock one gets it, at every isolation level; transactions
# that are left open hold up nothing but their own leases, and a lease counts from its commit on.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockPlain;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_plain_node('main', conf => 'max_prepared_transactions = 2');
my $db = 'postgres';
my @s = open_sessions($node, $db, 4, name => 's');

# Let a session send what will wait.
sub enqueue
{
	my ($session, $sql, $name, $count) = @_;

	$session->ask($sql);
	wait_until(sub { sql("SELECT count(*) FROM dlock_waiters WHERE name = '$name'") == $count }) or die "$session->{name} does not wait";
	return;
}

# ---------------------------------------------------------------------------
# Calls that wait
# ---------------------------------------------------------------------------

my $token = sql("SELECT dlock_acquire('q', 'holder', '1 h')");
enqueue($s[$_], "SELECT dlock_acquire('q', 's$_', '1 h', wait => NULL)", 'q', $_ + 1) foreach 0 .. 2;
is(sql("SELECT string_agg(request || ' ' || role || ' ' || blocked_by::text, ', ') FROM dlock_waiters"), join(', ', ('call app {holder}') x 3), 'they are seen');
is(sql("SELECT dlock_renew_token('q', $token)"), 't', 'the holder renews meanwhile');
is(sql("SELECT dlock_release('q', 'holder')"), 't', 'and releases');
foreach my $i (0 .. 2)
{
	cmp_ok($s[$i]->answer, '>', $token, "served: $i");
	is(sql("SELECT owner FROM dlock_leases WHERE name = 'q'"), "s$i", 'holds the lock');
	is(sql("SELECT dlock_acquire('q', 'barges', '1 h')"), '', 'nobody goes before those that wait');
	is(sql("SELECT dlock_release('q', 's$i')"), 't', 'releases it');
}
is(sql('SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits');

# Nobody does while the lock is free, and the one that waits has not looked yet.
sql("SELECT dlock_acquire('q', 'holder', '1 h')");
enqueue($s[0], "SELECT dlock_acquire('q', 's0', '1 h', wait => NULL)", 'q', 1);
kill 'STOP', $s[0]{pid};
is(sql("SELECT dlock_release('q', 'holder'), dlock_acquire('q', 'barges', '1 h')"), 't|', 'nobody goes before one that is about to look');
kill 'CONT', $s[0]{pid};
isnt($s[0]->answer, '', 'it gets the lock');
sql("SELECT dlock_release('q', 's0')");

# A lease that ends by itself.
sql("SELECT dlock_acquire('q', 'holder', '1 s')");
isnt($s[0]->query_safe("SELECT dlock_acquire('q', 'waits', '1 h', wait => '1 min')"), '', 'a lease that has expired is taken over');
is($s[1]->query_safe("SELECT dlock_acquire('q', 'waits in vain', '1 h', wait => '50 ms')"), '', 'a wait ends');
enqueue($s[1], "SELECT dlock_acquire('q', 'waits too', '1 h', wait => '1 h')", 'q', 1);
is($s[2]->query_safe("SELECT dlock_acquire('q', 'waits in vain', '1 h', wait => '50 ms')"), '', 'also behind another one');
sql("SELECT pg_cancel_backend($s[1]->{pid})");
like($s[1]->answer, qr/57014/, 'a wait is cancelled');
is(sql('SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits');
sql("SELECT dlock_force_release('q', 'test')");

# Who holds the lock enters it again before those that wait, and who has a place takes its turn before them.
sql("SELECT dlock_acquire('q', 'holder', '1 h'), dlock_acquire('q', 'placed', '1 h', keep => '1 h')");
enqueue($s[0], "SELECT dlock_acquire('q', 's0', '1 h', wait => NULL)", 'q', 2);
is(sql("SELECT dlock_acquire('q', 'holder', '1 h', wait => '1 min', reentry => 'return') > 0, dlock_release('q', 'holder')"), 't|t', 'a holder does not wait for those that wait for it');
is(sql("SELECT dlock_acquire('q', 'placed', '1 h', wait => '1 min') > 0, dlock_release('q', 'placed')"), 't|t', 'a place goes before a call, also by a call that waits');
isnt($s[0]->answer, '', 'then it is the turn of the call');
sql("SELECT dlock_release('q', 's0')");

# Who waits for several keeps nobody from what has come up already.
sql("SELECT dlock_acquire(name, 'reader', '1 h', mode => 'shared') FROM unnest('{several 1, several 2}'::text[]) name");
$s[0]->query_safe("BEGIN; SELECT dlock_renew('several 2', 'reader')");
$s[1]->ask("SELECT dlock_acquire_all('{several 1, several 2}', 's1', '1 h', wait => '1 min', mode => 'shared')");
ok(wait_until(sub { sql("SELECT cardinality(pg_blocking_pids($s[1]->{pid}))") > 0 }), 'a call that has one of two');
is(sql("SELECT dlock_renew('several 1', 'reader')"), 't', 'a holder renews beside it');
$s[0]->query_safe('COMMIT');
like($s[1]->answer, qr/^\{\d+,\d+\}$/, 'it gets both');

# A reader that waits behind a writer, and shares the lock afterwards.
sql("SELECT dlock_acquire('rw', 'reader', '1 h', mode => 'shared')");
enqueue($s[0], "SELECT dlock_acquire('rw', 'writer', '1 h', wait => NULL)", 'rw', 1);
enqueue($s[1], "SELECT dlock_acquire('rw', 'second', '1 h', wait => NULL, mode => 'shared')", 'rw', 2);
is(sql("SELECT dlock_acquire('rw', 'third', '1 h', mode => 'shared')"), '', 'a writer is not starved');
sql("SELECT dlock_release('rw', 'reader')");
isnt($s[0]->answer, '', 'it gets the lock');
sql("SELECT dlock_release('rw', 'writer')");
isnt($s[1]->answer, '', 'then the reader does');
is(sql("SELECT dlock_release('rw', 'second')"), 't', 'released');

# Of calls of another role the order is seen, and since when all but the first one wait.
{
	my @other = open_sessions($node, $db, 2, name => 'other', user => 'other');

	sql("SELECT dlock_acquire('q', 'holder', '1 h')");
	enqueue($other[$_], "SELECT dlock_acquire('q', 'o$_', '1 h', wait => NULL)", 'q', $_ + 1) foreach 0, 1;
	is(sql("SELECT string_agg(position || ' ' || pid || ' ' || (waited >= '0'), ', ' ORDER BY position) FROM dlock_waiters WHERE name = 'q' AND role = 'other'::regrole"),
		"2 $other[1]{pid} true", 'calls of another role');
	is(sql("SELECT string_agg(pid::text, ' ' ORDER BY position) FROM dlock_waiters"), "$other[0]{pid} $other[1]{pid}", 'in their order');
	sql("SELECT dlock_release('q', 'holder')");
	foreach my $i (0, 1)
	{
		$other[$i]->answer;
		is($other[$i]->query_safe("SELECT dlock_release('q', 'o$i')"), 't', 'served');
		$other[$i]->quit;
	}
}

# ---------------------------------------------------------------------------
# Kept places
# ---------------------------------------------------------------------------

set_clock_of();
sql("SELECT dlock_acquire('k', 'holder', '1 h')");
is(sql("SELECT dlock_acquire('k', 'c#$_', '1 h', keep => '1 min')"), '', "a place: $_") foreach 1 .. 3;
is(sql("SELECT string_agg(owner || position, ' ' ORDER BY position) FROM dlock_waiters"), 'c#11 c#22 c#33', 'in their order');
is(sql("SELECT dlock_acquire_each('{k,l}', '{d,d}', '1 h', keep => '1 min') IS NULL, (SELECT count(*) FROM dlock_take('c', '0', '1 min'))"), 'f|0', 'and of another client; none has its turn');
sql("SELECT dlock_release('k', 'holder')");
is(sql("SELECT dlock_acquire('k', 'barges', '1 h'), dlock_acquire('k', 'c#2', '1 h', keep => '1 min')"), '|', 'free, and only for the first');
is(sql("SELECT count(*) FROM dlock_take('d', '0', '1 min')"), 0, 'nor for another client');
{
	local $ENV{PGUSER} = 'other';
	is(sql("SELECT count(*) FROM dlock_take('c', '0', '1 min')"), 0, 'nor for that of another role');
}
is(sql("SELECT name, owner, token > 0 FROM dlock_take('c', '0', '1 min')"), 'k|c#1|t', 'which takes it');
sql("SELECT dlock_release('k', 'c#1')");
advance('2 min');
is(sql("SELECT dlock_acquire('k', 'late', '1 h') > 0"), 't', 'places whose clients stay away end');
sql("SELECT dlock_release('k', 'late')");

# One that sleeps until its turn has come.
sql("SELECT dlock_acquire('k', 'holder', '1 h')");
sql("SELECT dlock_acquire('k', 'e', '1 h', keep => '1 min')");
advance('40 s');
is(sql("SELECT count(*) FROM dlock_take('e', '0', '1 h')"), 0, 'one that looks in vain');
advance('10 min');
is(sql("SELECT count(*) FROM dlock_waiters WHERE owner = 'e'"), 1, 'keeps its place for longer');
$s[0]->ask("SELECT owner FROM dlock_take('e', '1 h', '1 h')");
is(sql("SELECT dlock_release('k', 'holder')"), 't', 'released');
is($s[0]->answer, 'e', 'a client that sleeps takes its place');
is(sql("SELECT dlock_acquire('k', 'f', '1 h', keep => '1 h'), dlock_acquire('k', 'f', '1 h')"), '|', 'a place is given up');
is(sql('SELECT count(*) FROM dlock_waiters'), 0, 'without keep');
is(sql("SELECT dlock_acquire('k', 'f', '1 h', keep => '1 h'), dlock_acquire('k', 'f', '1 h', payload => '{}')"), '|', 'and given up');
is(sql('SELECT count(*) FROM dlock_waiters'), 0, 'by any call');
is(sql("SELECT dlock_acquire('k', 'f#1', '1 h', keep => '1 h'), dlock_release_all('f')"), '|0', 'and given up');
is(sql('SELECT count(*) FROM dlock_waiters'), 0, 'with all leases');
is(sql("SELECT dlock_acquire('k', 'f', '1 h', keep => '1 h'), dlock_acquire('k', 'f', '1 h', wait => '10 ms')"), '|', 'so is one');
is(sql('SELECT count(*) FROM dlock_waiters'), 0, 'by a call that has waited');
sql("SELECT dlock_acquire('k2', 'holder', '1 h'), dlock_acquire('k2', 'h#1', '1 h', keep => '1 s')");
advance('2 s');
sql("SELECT dlock_acquire('k', 'h#2', '1 h', keep => '2 h')");
$s[0]->ask("SELECT owner FROM dlock_take('h', '1 h', '1 h')");
ok(wait_until(sub { sql("SELECT wait_event FROM pg_stat_activity WHERE pid = $s[0]->{pid}") eq 'PgSleep' || $s[0]->answered }), 'one place has ended');
is(sql("SELECT dlock_release('k', 'e')"), 't', 'the lock of another is released');
is($s[0]->answer, 'h#2', 'which the client has waited for');
sql("SELECT dlock_release_all('h'), dlock_acquire('k', 'e', '1 h')");
sql("SELECT dlock_acquire('k', 'g', '1 h', keep => '1 min')");
$s[0]->ask("SELECT count(*) FROM dlock_take('g', '1 h', '1 h')");
ok(wait_until(sub { sql("SELECT wait_event FROM pg_stat_activity WHERE pid = $s[0]->{pid}") eq 'PgSleep' }), 'a place that ends');
advance('1 min');
is($s[0]->answer, 0, 'is not slept on for longer');
sql("SELECT dlock_release('k', 'e')");

# ---------------------------------------------------------------------------
# Races: the second waits for the first to commit
# ---------------------------------------------------------------------------

# Until a session waits for another one's transaction.
sub is_blocked
{
	my ($session) = @_;
	return wait_until(sub { sql("SELECT cardinality(pg_blocking_pids($session->{pid}))") > 0 });
}

# How long functions wait for the transactions of others: here as long as this test may stall.
sub set_patience
{
	my ($patience) = @_;

	sql(<<"EOS");
DO \$\$
DECLARE
	f regprocedure;
BEGIN
	FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = 'app'::regnamespace AND proconfig::text LIKE '%lock_timeout%' LOOP
		EXECUTE format('ALTER FUNCTION %s SET lock_timeout = %L', f, '$patience');
	END LOOP;
END \$\$
EOS
	return;
}
set_patience('3 min');

foreach my $known (0, 1)
{
	foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
	{
		foreach my $mode ([ 'exclusive', '' ], [ 'shared', ", mode => 'shared'" ], [ 'one permit', ', permits => 1' ])
		{
			my $name = "race $known $level $mode->[0]";
			my $what = ($known ? 'a known name' : 'a new name') . ", $level, $mode->[0]";

			sql("SELECT dlock_acquire('$name', 'x', '1 h'), dlock_release('$name', 'x')") if $known;
			$s[0]->query_safe("BEGIN; SELECT dlock_acquire('$name', 'a', '1 h'$mode->[1])");
			$s[1]->ask("BEGIN ISOLATION LEVEL $level; SELECT dlock_acquire('$name', 'b', '1 h'); COMMIT");
			ok(is_blocked($s[1]), "$what: waits");
			$s[0]->query_safe('COMMIT');
			$s[1]->answer;
			$s[1]->query('ROLLBACK');
			is(sql("SELECT owner FROM dlock_leases WHERE name = '$name'"), 'a', "$what: one has it");
		}
	}
}

# Two that want the last permit, for which there is no row yet.
sql("SELECT dlock_acquire('last', 'holder', '1 h', permits => 2)");
$s[0]->query_safe("BEGIN; SELECT dlock_acquire('last', 'a', '1 h', permits => 2)");
$s[1]->ask("SELECT dlock_acquire('last', 'b', '1 h', permits => 2)");
ok(is_blocked($s[1]), 'the last permit: waits');
$s[0]->query_safe('COMMIT');
is($s[1]->answer, '', 'the last permit: refused');

# A place that is given up meanwhile is not taken.
sql("SELECT dlock_acquire('given up', 'holder', '1 h'), dlock_acquire('given up', 'i', '1 h', keep => '1 h'), dlock_release('given up', 'holder')");
$s[0]->query_safe("BEGIN; SELECT dlock_release_all('i')");
is(sql("SELECT count(*) FROM dlock_take('i', '0', '1 h')"), 0, 'a place that is being given up: none');
$s[0]->query_safe('COMMIT');
is(sql("SELECT count(*) FROM dlock_leases WHERE name = 'given up'"), 0, 'nor is there a lease');

# A lease begins when its row can be had, also if nothing of it has changed.
foreach my $wait ('', ", wait => '1 min'")
{
	$s[0]->query_safe("BEGIN; SELECT dlock_acquire('begins', 'a', '1 h')");
	$s[1]->ask("SELECT dlock_acquire('begins', 'b', '10 min'$wait)");
	ok(is_blocked($s[1]), "beside a grant that is rolled back$wait: waits");
	advance('1 h');
	$s[0]->query_safe('ROLLBACK');
	isnt($s[1]->answer, '', "beside a grant that is rolled back$wait: is granted");
	is(sql("SELECT remaining > '9 min', dlock_release('begins', 'b') FROM dlock_leases WHERE name = 'begins'"), 't|t', "beside a grant that is rolled back$wait: for the whole ttl");
}

# What a transaction has acquired and released is free when it ends.
sql("SELECT dlock_acquire('again', 'a', '1 h', mode => 'shared'), dlock_acquire('again', 'b', '1 h', mode => 'shared')");
sql("SELECT dlock_release('again', 'a'), dlock_release('again', 'b')");
$s[0]->query_safe("BEGIN; SELECT dlock_acquire('again', 'a', '1 h')");
$s[1]->ask("SELECT dlock_acquire('again', 'b', '1 h')");
ok(is_blocked($s[1]), 'a lock that is being acquired: waits');
$s[0]->query_safe("SELECT dlock_release('again', 'a'); COMMIT");
isnt($s[1]->answer, '', 'a lock that is free again: granted');

# What is renewed but not committed is not taken for expired.
$token = sql("SELECT dlock_acquire('renewed', 'a', '1 h', mode => 'shared'), dlock_acquire('renewed', 'b', '1 h', mode => 'shared')") =~ s/.*\|//r;
sql("SELECT dlock_release('renewed', 'a')");
$s[0]->query_safe("BEGIN; SELECT dlock_renew_token('renewed', $token, '10 h')");
advance('2 h');
$s[1]->ask("SELECT dlock_acquire('renewed', 'c', '1 h')");
ok(is_blocked($s[1]), 'a lease that is being renewed: waits');
$s[0]->query_safe('COMMIT');
is($s[1]->answer, '', 'a lease that is being renewed: refused');

# A holder that has come since an old snapshot, in a row of its own, is not overlooked when the others' leases end.
sql("SELECT dlock_acquire('old', 'a', '1 s', mode => 'shared'), dlock_acquire('old', 'b', '1 s', mode => 'shared')");
$s[1]->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM dlock_leases');
sql("SELECT dlock_acquire('old', 'c', '10 h', mode => 'shared')");
$node->poll_query_until($db, "SELECT count(*) = 1 FROM dlock_leases WHERE name = 'old'");
like($s[1]->query("SELECT dlock_acquire('old', 'x', '1 h')"), qr/40001/, 'an old snapshot does not hide a holder');
$s[1]->query('ROLLBACK');

sql("SELECT dlock_acquire('older', 'a', '1 h')");
$s[1]->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM dlock_leases');
sql("SELECT dlock_release('older', 'a'), dlock_acquire('older', 'b', '1 h')");
like($s[1]->query("SELECT dlock_release('older', 'b')"), qr/40001/, 'nor what is released');
$s[1]->query('ROLLBACK');

# Nor does one hide a place, or that one is kept for longer.
sql("SELECT dlock_acquire('old place', 'a', '1 h'), dlock_acquire('kept', 'a', '1 h'), dlock_acquire('kept', 'p', '1 h', keep => '10 s')");
$s[1]->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM dlock_leases');
$s[2]->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM dlock_leases');
sql("SELECT dlock_acquire('old place', 'p', '1 h', keep => '10 h'), count(*) FROM dlock_take('p', '0', '10 h')");
advance('2 h');
like($s[1]->query("SELECT dlock_acquire('old place', 'x', '1 h')"), qr/40001/, 'an old snapshot does not hide a place');
like($s[2]->query("SELECT dlock_acquire('kept', 'x', '1 h')"), qr/40001/, 'nor that one is kept for longer');
$_->query('ROLLBACK') foreach @s[1, 2];
is(sql("SELECT count(*) FROM dlock_take('p', '0', '10 h')"), 2, 'both are taken');
sql("SELECT dlock_release_all('p')");

# Many that want many: no two get one, and none is lost.
my $script = PostgreSQL::Test::Utils::tempdir() . '/race.sql';
append_to_file($script, <<'EOS');
\set n random(1, 3)
SELECT dlock_acquire('many' || :n, 'o' || :client_id, '1 h', wait => '5 min', mode => CASE WHEN random() < 0.3 THEN 'shared' ELSE 'exclusive' END) AS token \gset
UPDATE holders SET n = n + 1 WHERE name = 'many' || :n AND :token IS NOT NULL;
SELECT dlock_release('many' || :n, 'o' || :client_id);
EOS
sql('CREATE TABLE holders (name text, n int)');
$node->command_ok([ 'pgbench', '-n', '-c', 8, '-j', 2, '-t', 20, '-f', $script, '-U', 'app', $db ], 'many clients');
is(sql("SELECT count(*) FROM dlock_leases WHERE name LIKE 'many%'"), 0, 'many clients: all have released');

# ---------------------------------------------------------------------------
# Transactions
# ---------------------------------------------------------------------------

isnt(sql("BEGIN; SELECT dlock_acquire('x1', 'a', '1 h'); SELECT dlock_acquire('x2', 'a', '1 h'); SELECT dlock_release('x1', 'a'); SELECT dlock_acquire('x3', 'a', '1 h'); COMMIT"), '', 'one with several calls can');
is(sql("SELECT string_agg(name, ' ' ORDER BY name) FROM dlock_leases WHERE owner = 'a' AND name LIKE 'x_'"), 'x2 x3', 'and they count together');
sql("BEGIN; SELECT dlock_acquire('x4', 'a', '1 h'); ROLLBACK");
is(sql("SELECT dlock_acquire('x4', 'b', '1 h') > 0"), 't', 'a rollback takes a grant back');
is(sqlstate("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT dlock_acquire('x4', 'c', '1 h', wait => '1 s')"), '0A000', 'a wait that would see nothing is refused');

# A transaction that has been refused and stays open keeps nobody from anything.
$token = sql("SELECT dlock_acquire('open', 'a', '1 h')");
$s[0]->query_safe("BEGIN; SELECT dlock_acquire('open', 'b', '1 h'); SELECT dlock_acquire('open', 'b', '1 h', wait => '10 ms')");
is(sql("SELECT dlock_renew_token('open', $token), dlock_release_token('open', $token)"), 't|t', 'the holder renews and releases beside a refused one');
is(sql("SELECT dlock_acquire('open', 'c', '1 h') > 0"), 't', 'another one acquires');
$s[0]->query_safe('COMMIT');

foreach my $call ("dlock_acquire('open', 'b', '1 h')", "(dlock_acquire_each('{open,open}', '{b,d}', '1 h'))[2]")
{
	sql("SELECT dlock_release('open', 'c')");
	$s[1]->query_safe("BEGIN; SELECT dlock_acquire('open', 'c', '1 h')");
	$s[0]->query_safe('BEGIN; SELECT pg_sleep(0.01)');
	$s[0]->ask("SELECT $call");
	ok(is_blocked($s[0]), "$call: one that is refused after it has waited");
	$s[1]->query_safe('COMMIT');
	is($s[0]->answer, '', "$call: is refused");
	is(sql("SELECT dlock_renew('open', 'c')"), 't', "$call: and keeps nobody from anything, either");
	$s[0]->query_safe('COMMIT');
}

# A transaction that is left open keeps a client from none of its other places; one that has its turn is waited for.
sql("SELECT dlock_acquire('busy ' || i, 'holder', '1 h'), dlock_acquire('busy ' || i, 't', '1 h', keep => '1 h') FROM generate_series(1, 2) i");
sql("SELECT dlock_release('busy ' || i, 'holder') FROM generate_series(1, 2) i");
$s[0]->query_safe("BEGIN; SELECT dlock_acquire('busy 2', 'u', '1 h', keep => '1 h')");
is(sql("SELECT name FROM dlock_take('t', '1 min', '1 h')"), 'busy 1', 'a client takes one place beside another one that is locked');
$s[1]->ask("SELECT name FROM dlock_take('t', '1 h', '1 h')");
ok(wait_until(sub { sql("SELECT wait_event FROM pg_stat_activity WHERE pid = $s[1]->{pid}") eq 'PgSleep' }), 'the other one has its turn');
$s[0]->query_safe('COMMIT');
is($s[1]->answer, 'busy 2', 'and is taken when it can be');

# Of a token that is null no transaction makes one that fits all.
like($s[0]->query("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT dlock_release_token('open', NULL)"), qr/22004/, 'a token must not be null');
$s[0]->query('ROLLBACK');

# One that has been granted and stays open holds up those that want the lock, and not for ever.
set_patience('5 s');
my ($late) = open_sessions($node, $db, 1, name => 'late');
$late->query_safe('BEGIN');
$s[0]->query_safe("BEGIN; SELECT dlock_acquire('stuck', 'a', '1 h')");
is($s[1]->query_safe("SELECT dlock_acquire('stuck', 'b', '1 h', wait => '50 ms')"), '', 'a wait ends beside an open transaction');
sql("SELECT dlock_acquire('stuck too', 'a', '1 h')");
$s[3]->query_safe("BEGIN; SELECT dlock_renew('stuck too', 'a')");
$s[2]->ask("SELECT dlock_release('stuck too', 'a')");
is(sqlstate("SELECT dlock_acquire('stuck', 'b', '1 h')"), '55P03', 'a call that does not wait fails then');
like($s[2]->answer, qr/55P03/, 'and so does a release');
$s[3]->query_safe('ROLLBACK');
$s[0]->query_safe('ROLLBACK');
is(sql("SELECT dlock_acquire('stuck', 'b', '1 h') > 0"), 't', 'and gets the lock after it');

# Calls in a transaction that began long ago, as those of five seconds before.
like($late->ask("SELECT $_")->result->{err}, qr/^WARNING:  25001: call in a transaction that began (?:[5-9]|[1-9]\d+) s before$/m, "warned about: $_")
  foreach "dlock_acquire('x5', 'a', '1 h')", "dlock_acquire('x6', 'a', wait => '1 s')", "dlock_renew('x5', 'a')", "dlock_release_each('{x5,x6}', '{1,2}')",
  "dlock_renew_all('a')", "dlock_release_all('a')", "count(*) FROM dlock_take('a', '0', '1 s')";
$late->quit;

# Nor does one that has moved tokens on hold up others that do.
my $move = "SELECT dlock_bump_epoch('test', last_value + 1000000000) > 0 FROM _dlock_token_seq";
$s[0]->query_safe("BEGIN; $move");
is(sql("SET lock_timeout = '10 s'; $move"), 't', 'tokens are moved on beside an open transaction');
$s[0]->query_safe('ROLLBACK');

$_->quit foreach @s;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:/, 'nothing odd in the log');
done_testing();
