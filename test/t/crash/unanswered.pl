# Proves: a call that is cancelled or terminated before it is answered leaves
# nothing behind: no lease, no place in a queue, no spent time slot, no token that
# only the server knows; and what was before is as it was.

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

my $node = start_fault_node('main', conf => "dlock.max_ttl = '10000 d'\n");
my $db = 'postgres';
my ($monitor, $next, $holder, $caller);
my $number = 0;

sub connect_all
{
	($monitor, $next, $holder, $caller) = open_sessions($node, $db, 4, name => 's');
	return;
}
connect_all();

my %cut = (
	cancelled => [ 'pg_cancel_backend', qr/^ERROR 57014$/ ],
	terminated => [ 'pg_terminate_backend', qr/^(?:FATAL 57P01|LOST)$/ ],);

# Cut off the call of a session that has come to a point.
sub cut_at
{
	my ($way, $point, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is_at($monitor, $point);
	$monitor->query_safe("SELECT $cut{$way}[0](" . $caller->pid . ')');
	go($monitor, $point);
	my $answer = $caller->answer;
	like($answer, $cut{$way}[1], $test_name);
	is($caller->{stdout}, '', "$test_name: without an answer");
	if ($way eq 'terminated')
	{
		# A session tells its client of its end before it cleans up.
		$caller->wait_backend_gone;
		$caller->quit;
		$caller = DLockSession->new($node, $db);
	}
	return;
}

# Cut off a call when it is about to flush its nth record.
sub cut_off
{
	my ($way, $sql, $test_name, $nth) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	stop_at($monitor, $caller, 'flush', $nth);
	$caller->ask($sql);
	cut_at($way, 'flush', $test_name);
	return;
}

# Wait until a call sleeps, which it does after all else.
sub sleeps_in_statement
{
	my ($session) = @_;
	my $pid = $session->pid;

	wait_until(
		sub {
			$monitor->query_safe("SELECT wait_event FROM pg_stat_activity WHERE pid = $pid AND state = 'active'") eq 'PgSleep'
			  || $session->answered;
		}) or die 'it does not sleep';
	return;
}

# Nobody has these locks or waits for them, and whoever comes next gets them.
sub is_free
{
	my ($label, @names) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $list = join ', ', map { "'$_'" } @names;

	is( $monitor->query_safe("SELECT string_agg(owner, ' ') FROM dlock_leases WHERE name IN ($list)"),
		'', "$label: no lease");
	is($monitor->query_safe('SELECT count(*) FROM dlock_waiters'), 0, "$label: nobody waits");
	isnt($next->query_safe("SELECT dlock_acquire('$_', 'next', '1 h')"), '', "$label: the next caller gets \"$_\"")
	  foreach @names;
	$next->query_safe("SELECT dlock_release('$_', 'next')") foreach @names;
	return;
}

# ---------------------------------------------------------------------------
# Grants
# ---------------------------------------------------------------------------

sub crash
{
	crash_node($node);
	$node->start;
	$_->kill_client foreach $monitor, $next, $holder, $caller;
	connect_all();
	return;
}

# The name of the lock is to be put in; what is held before is the last line.
my %grant = (
	'plain' => "dlock_acquire('%s', 'me', '10 min')",
	'with a lock delay' => "dlock_acquire('%s', 'me', '10 min', lock_delay => '10 min', min_hold => '5 min')",
	'bound to the session' => "dlock_acquire('%s', 'me', bind => 'session')",
	'bound to the session, with a lock delay' => "dlock_acquire('%s', 'me', bind => 'session', lock_delay => '10 min')",
	'bound to the transaction' => "dlock_acquire('%s', 'me', bind => 'transaction')",
	'bound to the transaction, with a lock delay' => "dlock_acquire('%s', 'me', bind => 'transaction', lock_delay => '10 min')",
	'several' => "dlock_acquire_all(ARRAY['%s', 'a', 'b'], 'me', '10 min')",
	'each' => "dlock_acquire_each(ARRAY['%s', 'a', 'b'], '{me#1,me#2,me#3}', '10 min')",
	'a path' => "dlock_acquire_path('%s/a/b', 'me', '10 min')",
	'a campaign' => "dlock_campaign('%s', 'me', '10 min', payload => '{}')",);

foreach my $what (sort keys %grant)
{
	my $durable = $what !~ /^bound\b/ || $what =~ /delay/;

	# What is not written is not flushed, and cannot be cut off there.
	foreach my $way ($durable ? sort keys %cut : ())
	{
		my $name = 'g' . ++$number;
		cut_off($way, 'SELECT ' . sprintf($grant{$what}, $name), "$what: $way");
		is_free("$what, $way", $name, 'a', "$name/a");
	}

}

# A lease that its own call has entered again, too.
foreach my $reentry (qw(return count))
{
	cut_off('cancelled', "SELECT dlock_acquire_each('{twice,twice,twice}', '{me,me,me}', '10 min', reentry => '$reentry')", "each, $reentry: cancelled");
	is_free("each, $reentry", 'twice');
}

# Turns of places: the grants are undone, with their places, and those behind go on.  The
# client's other places stay where they are.
foreach my $way (sort keys %cut)
{
	my $queue = "SELECT string_agg(name || ' ' || owner, ', ' ORDER BY name, position) FROM dlock_waiters";

	$holder->query_safe("SELECT dlock_acquire_all('{t1,t2,t3}', 'holder', '1 h')");
	is($monitor->query_safe("SELECT count(t) FROM unnest(dlock_acquire_each('{t1,t2,t3,t3}', '{me#1,me#2,me#3,other}', '10 min', keep => '20 min')) t"), 0, "turns: places");
	$next->ask_waiting($monitor, "SELECT dlock_acquire('t1', 'next', '1 h', NULL)");
	$holder->query_safe("SELECT dlock_release('t1', 'holder'), dlock_release('t2', 'holder')");
	cut_off($way, "SELECT * FROM dlock_take('me', '0', '40 min')", "turns: $way");
	like($next->answer, qr/^\d+$/, "turns, $way: the waiter behind one of them gets the lock");
	is($monitor->query_safe("SELECT string_agg(name || ' ' || owner, ', ' ORDER BY name) FROM dlock_leases"), 't1 next, t3 holder', "turns, $way: no grant is left");
	is($monitor->query_safe($queue), 't3 me#3, t3 other', "turns, $way: nor a place of one, and the other is in front");
	$holder->query_safe("SELECT dlock_release('t3', 'holder')");
	advance(30 * 60, $monitor);
	is($caller->query_safe("SELECT name, owner, token > 0 FROM dlock_take('me', '0', '0')"), 't3|me#3|t', "turns, $way: it is kept, and has its turn");
	$monitor->query_safe("SELECT dlock_release_all(o) FROM unnest('{me,other,next}'::text[]) o");
	is_free("turns, $way", qw(t1 t2 t3));
}

# What another call was told meanwhile stays: a client that lost its connection asks again.
foreach my $case ([ 'return', 1 ], [ 'count', 1 ])
{
	my ($reentry, $holds) = @$case;

	stop_at($monitor, $caller, 'flush');
	$caller->ask("SELECT dlock_acquire('again', 'me', '10 min')");
	is_at($monitor, 'flush');
	my $told = $next->query_safe("SET synchronous_commit = off; SELECT dlock_acquire('again', 'me', '10 min', reentry => '$reentry')");
	cut_at('cancelled', 'flush', "asked again with $reentry: the first call is cancelled");
	is($next->query_safe("SELECT dlock_check('again', $told), holds FROM dlock_lease('again')"), "t|$holds", "asked again with $reentry: the lease stays");
	is($next->query_safe("RESET synchronous_commit; SELECT dlock_release_token('again', $told)"), 't', "asked again with $reentry: and is released");
	is_free("asked again with $reentry", 'again');
}

# A release of all ends all holds of a lease whose renewal has not been flushed, and leaves that of another role.
$monitor->query_safe("CREATE ROLE other; SET ROLE other; SELECT dlock_acquire('of another', 'me', '10 min'); RESET ROLE");
$next->query_safe("SELECT dlock_acquire('holds', 'me', '10 min', reentry => 'count') FROM generate_series(1, 3)");
stop_at($monitor, $caller, 'flush');
$caller->ask("SELECT dlock_renew('holds', 'me', '20 min')");
is_at($monitor, 'flush');
$next->query_safe("SELECT dlock_release_all('me')");
is($next->query_safe("SELECT name, holds FROM dlock_leases WHERE owner = 'me'"), 'of another|1', 'all holds are released beside a renewal, and no lease of another role');
$monitor->query_safe("SELECT dlock_release_all('me')");
go($monitor, 'flush');
$caller->answer;
is_free('holds', 'holds');

# By statement_timeout, which goes by the machine's clock and rings while the call stands.
{
	stop_at($monitor, $caller, 'flush');
	$caller->ask("SET statement_timeout = '5 s'; SELECT dlock_acquire('timed out', 'me', '10 min')");
	is_at($monitor, 'flush');
	$monitor->query_safe('SELECT pg_sleep(5)');
	go($monitor, 'flush');
	is($caller->answer, 'ERROR 57014', 'cut off by statement_timeout');
	$caller->query_safe('RESET statement_timeout');
	is_free('timed out', 'timed out');
}

# A waiter that is handed the lock, and one behind it.
foreach my $way (sort keys %cut)
{
	foreach my $several (0, 1)
	{
		my $label = ($several ? 'several, waited for' : 'waited for') . ", $way";
		my $name = 'w' . ++$number;
		my $sql = $several ? "dlock_acquire_all(ARRAY['$name', 'a'], 'me', '10 min', NULL)" :
		  "dlock_acquire('$name', 'me', '10 min', NULL)";

		$holder->query_safe("SELECT dlock_acquire('$name', 'holder', '1 h')");
		$caller->ask_waiting($monitor, "SELECT $sql");
		$next->ask_waiting($monitor, "SELECT dlock_acquire('$name', 'next', '1 h', NULL)");
		stop_at($monitor, $caller, 'flush');
		$holder->query_safe("SELECT dlock_release('$name', 'holder')");
		cut_at($way, 'flush', $label);
		like($next->answer, qr/^\d+$/, "$label: the waiter behind it gets the lock");
		$next->query_safe("SELECT dlock_release('$name', 'next')");
		is_free($label, $name, 'a');
	}
}

# ---------------------------------------------------------------------------
# What was held before
# ---------------------------------------------------------------------------

# An upgrade: the lease has its old token and mode, in memory and on disk.
foreach my $way (sort keys %cut)
{
	my $name = 'c' . ++$number;
	my $token = $caller->query_safe("SELECT dlock_acquire('$name', 'me', '1 h', mode => 'shared', payload => '{\"a\": 1}')");

	cut_off($way, "SELECT dlock_convert('$name', $token, 'exclusive')", "upgrade $way");
	is($monitor->query_safe("SELECT token || ' ' || mode FROM dlock_leases WHERE name = '$name'"),
		"$token shared", "upgrade $way: token and mode are as before");
	isnt($next->query_safe("SELECT dlock_acquire('$name', 'next', '1 h', mode => 'shared')"),
		'', "upgrade $way: another reader gets the lock");
	is($next->query_safe("SELECT dlock_renew('$name', 'me')"), 't', "upgrade $way: its owner renews it");
	advance(60, $monitor);
	ok( wait_until(
			sub {
				my %slots = store_slots($node, $db);
				return $slots{$name}{count} == 2 && $slots{$name}{mode} == 3;
			}),
		"upgrade $way: the page says the same");
	crash();
	is($monitor->query_safe("SELECT token || ' ' || mode FROM dlock_leases WHERE name = '$name' AND owner = 'me'"),
		"$token shared", "upgrade $way: and after a crash");
	$monitor->query_safe("SELECT dlock_release_all('me'), dlock_release_all('next')");
}

# A bound lease goes on being bound.
{
	my $bound = DLockSession->new($node, $db);
	my $token = $bound->query_safe("SELECT dlock_acquire('bound', 'me', bind => 'session', mode => 'shared')");

	fail_at($monitor, $bound, 'granted');
	is($bound->query("SELECT dlock_convert('bound', $token, 'exclusive')"), 'ERROR 58030', 'a bound lease: fails');
	go($monitor, 'granted');
	is($monitor->query_safe("SELECT token || ' ' || mode FROM dlock_leases WHERE name = 'bound'"),
		"$token shared", 'a bound lease: token and mode are as before');
	$bound->quit;
	is_free('a bound lease, after its session', 'bound');
}

# Between CW and PR neither covers the other: what was granted beside the new mode
# can conflict with the old one.
{
	my $token = $caller->query_safe("SELECT dlock_acquire('cross', 'me', '1 h', mode => 'CW')");

	stop_at($monitor, $caller, 'flush');
	$caller->ask("SELECT dlock_convert('cross', $token, 'PR')");
	is_at($monitor, 'flush');
	isnt($next->query_safe("SELECT dlock_acquire('cross', 'next', '1 h', mode => 'PR')"), '', 'CW to PR: a reader beside it');
	cut_at('cancelled', 'flush', 'CW to PR: cancelled');
	is($monitor->query_safe("SELECT string_agg(owner || ' ' || mode, ',') FROM dlock_leases WHERE name = 'cross'"),
		'next shared', 'CW to PR: the lease ends rather than conflict');
	$next->query_safe("SELECT dlock_release('cross', 'next')");
	is_free('CW to PR', 'cross');
}

# One more hold is not there; a renewal stands, with the token that is known.
$caller->query_safe("SELECT dlock_acquire('twice', 'me', '10 min')");
cut_off('cancelled', "SELECT dlock_acquire('twice', 'me', '10 min', reentry => 'count')", 'entered again');
cut_off('cancelled', "SELECT dlock_renew('twice', 'me', '1 h')", 'renewed');
is($monitor->query_safe("SELECT holds, remaining FROM dlock_leases WHERE name = 'twice'"), '1|01:00:00', 'renewed, and held once');
is($caller->query_safe("SELECT dlock_release('twice', 'me')"), 't', 'released once');
is_free('entered again', 'twice');

# ---------------------------------------------------------------------------
# Patterns
# ---------------------------------------------------------------------------

# A time slot is not spent.
cut_off('cancelled', "SELECT dlock_once('first', '10000 days')", 'time slot');
isnt($caller->query_safe("SELECT dlock_once('first', '10000 days')"), '', 'time slot: won by the next');
is($caller->query_safe("SELECT dlock_once('first', '10000 days')"), '', 'time slot: once');

# Nor if the call is cancelled between its win and the look for another one; once it has won it has happened.
stop_at($monitor, $caller, 'names_held', 2);
$caller->ask("SELECT dlock_once('between', '10000 days')");
cut_at('cancelled', 'names_held', 'time slot, recorded');
stop_at($monitor, $caller, 'names_held', 3);
$caller->ask("SELECT dlock_once('between', '10000 days')");
is_at($monitor, 'names_held');
$monitor->query_safe('SELECT pg_cancel_backend(' . $caller->pid . ')');
go($monitor, 'names_held');
like($caller->answer, qr/^\d+$/, 'time slot, won: told although cancelled');
is($caller->query_safe("SELECT dlock_once('between', '10000 days')"), '', 'time slot, won: once');

# Nor is the longer one forgotten that was won before.
my $second = 'second';
my $long = $caller->query_safe("SELECT dlock_once('$second', '10000 days')");
advance(0.001, $monitor);
cut_off('cancelled', "SELECT dlock_once('$second', '1 ms')", 'a shorter slot');
is($caller->query_safe("SELECT dlock_once('$second', '10000 days')"), '', 'the longer slot: remembered');
my $record = "SELECT token FROM dlock_leases WHERE name = 'once:$second'";
is($monitor->query_safe($record), $long, 'the longer slot: its record is as before');
advance(60, $monitor);
ok(wait_until(sub { my %slots = store_slots($node, $db); $slots{"once:$second"}{token} == $long }),
	'the longer slot: on the page, too');

# A member that does not know that it has joined, and partitions that it does not
# know of.
$caller->query_safe("SELECT dlock_group_create('g', 4)");
cut_off('cancelled', "SELECT dlock_group_join('g', 'm', '10 min')", 'joined');
is($monitor->query_safe('SELECT count(*) FROM dlock_group_members'), 0, 'joined: no member');
my $member = $caller->query_safe("SELECT dlock_group_join('g', 'm', '10 min')");
cut_off('cancelled', "SELECT * FROM dlock_group_renew('g', $member)", 'heartbeat');
is($monitor->query_safe('SELECT count(token) FROM dlock_group_partitions'), 0, 'heartbeat: no partition');
is($caller->query_safe("SELECT count(*) FROM dlock_group_renew('g', $member)"), 4, 'heartbeat: all, the next time');
$caller->query_safe("SELECT dlock_group_leave('g', $member)");

# ---------------------------------------------------------------------------
# What is not undone
# ---------------------------------------------------------------------------

# Any other error; a cancel that is caught; what was answered before.
{
	my $token = $caller->query_safe("SELECT dlock_acquire('kept', 'me', '1 h', mode => 'shared')");

	$holder->query_safe("SELECT dlock_acquire('kept-7', 'holder', '1 h')");
	$caller->query_safe("SELECT dlock_acquire('kept-7', 'me', '1 h', keep => '1 h')");
	$holder->query_safe("SELECT dlock_release('kept-7', 'holder')");
	foreach my $call (
		"dlock_convert('kept', $token, 'exclusive')",
		"dlock_acquire('kept-1', 'me', '1 h')",
		"dlock_acquire_all('{kept-2,kept-3}', 'me', '1 h')",
		"dlock_acquire_each('{kept-4,kept-5}', '{me,me}', '1 h')",
		"dlock_acquire_path('kept-6', 'me', '1 h')",
		"dlock_take('me', '0', '0')")
	{
		like($caller->query("SELECT f, 1 / (random() * 0)::int FROM $call f"), qr/^ERROR 22012/, "another error after $call");
	}
	is($monitor->query_safe("SELECT string_agg(name, ' ' ORDER BY name) FROM dlock_leases WHERE mode = 'exclusive' AND owner = 'me'"),
		'kept kept-1 kept-2 kept-3 kept-4 kept-5 kept-6 kept-7', 'another error: held');
}
$caller->query_safe(<<'EOC');
CREATE FUNCTION catch(name text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	kept bigint := dlock_acquire(name || '-kept', 'me', '1 h');
BEGIN
	BEGIN
		PERFORM dlock_acquire(name || '-lost', 'me', '1 h');
		PERFORM pg_sleep(600);
	EXCEPTION WHEN query_canceled THEN
	END;
	RETURN (SELECT string_agg(l.name, ' ' ORDER BY l.name) FROM dlock_leases l WHERE l.name LIKE 'caught%');
END $$;
EOC
stop_at($monitor, $caller, 'flush', 2);
$caller->ask("SELECT catch('caught')");
is_at($monitor, 'flush');
$monitor->query_safe('SELECT pg_cancel_backend(' . $caller->pid . ')');
go($monitor, 'flush');
is($caller->answer, 'caught-kept', 'a cancel that is caught undoes what the function it met was granted, and no more');
$caller->query_safe("SELECT dlock_release_all('me')");

# What a function has returned stays, whatever cuts off the rest of its statement; who asks
# again with the same owner gets the same token.
foreach my $way (sort keys %cut)
{
	$caller->ask("SELECT dlock_acquire('done', 'me', '1 h'), pg_sleep(600)");
	sleeps_in_statement($caller);
	$monitor->query_safe("SELECT $cut{$way}[0](" . $caller->pid . ')');
	like($caller->answer, $cut{$way}[1], "$way later in the statement");
	if ($way eq 'terminated')
	{
		$caller->wait_backend_gone;
		$caller->quit;
		$caller = DLockSession->new($node, $db);
	}
	my $token = $monitor->query_safe("SELECT token FROM dlock_leases WHERE name = 'done'");
	isnt($token, '', "$way later in the statement: held");
	is($caller->query_safe("SELECT dlock_acquire('done', 'me', reentry => 'return')"), $token, "$way later in the statement: found again");
	$caller->query_safe("SELECT dlock_release_all('me')");
}

# ---------------------------------------------------------------------------
# At any moment
# ---------------------------------------------------------------------------

# Cancelled at any look at interrupts, one after the other, the call has acquired all of its
# locks, or none.
{
	my $statement = "SELECT array_length(dlock_acquire_all('{any-1,any-2,any-3,any-4,any-5}', 'me', '1 h'), 1)";
	my ($answer, $looks) = ('', 0);

	while ($answer ne '5')
	{
		fail_at($monitor, $caller, 'interrupt', ++$looks);
		$answer = $caller->query($statement);
		like($answer, qr/^(?:5|ERROR 57014)$/, "look $looks: answered or cancelled");
		is($monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE owner = 'me'"),
			$answer eq '5' ? 5 : 0, "look $looks: what there is");
		go($monitor, 'interrupt');
	}
	cmp_ok($looks, '>', 1, 'there is a look in it');
	$caller->query_safe("SELECT dlock_release_all('me')");
}

# And where it stands with its lease half made, or made.
foreach my $way (sort keys %cut)
{
	foreach my $point (qw(step_locked grant wal_inserted step_done granted flushed))
	{
		my $name = 'p' . ++$number;
		stop_at($monitor, $caller, $point);
		$caller->ask("SELECT dlock_acquire('$name', 'me', '1 h')");
		cut_at($way, $point, "$way at $point");
		is_free("$way at $point", $name);
	}
}

# ---------------------------------------------------------------------------
# Afterwards
# ---------------------------------------------------------------------------

my $rest = "SELECT string_agg(name, ' ') FROM dlock_leases WHERE name NOT LIKE 'once:%'";
is($monitor->query_safe($rest), '', 'nothing else is left in memory');
advance(60, $monitor);
ok(wait_until(sub { my %slots = store_slots($node, $db); !grep { !m{^once:} } keys %slots }), 'nor on disk');

# Without the worker a renewal writes what was undone, with all that it logs.
{
	still_worker($node);
	my $token = $caller->query_safe("SELECT dlock_acquire('undone', 'me', '1 h', mode => 'shared')");
	cut_off('cancelled', "SELECT dlock_convert('undone', $token, 'exclusive')", 'renewed after an undone upgrade');
	is($next->query_safe("SELECT dlock_renew_token('undone', $token, '2 h')"),
		't', 'renewed after an undone upgrade: it is');
	crash();
	is($monitor->query_safe("SELECT token || ' ' || mode FROM dlock_leases WHERE name = 'undone'"),
		"$token shared", 'renewed after an undone upgrade: and after a crash');
	$monitor->query_safe("SELECT dlock_release_all('me')");
}
$node->restart;
is($node->safe_psql($db, $rest), '', 'nor after a restart');
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:/, 'no panic');
done_testing();
