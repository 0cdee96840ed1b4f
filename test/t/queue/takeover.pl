# Proves, to the microsecond: whoever waits gets a lock at the holder's deadline, without the
# worker, and at the deadline as it is then, when the holder has renewed its lease or made it
# shorter meanwhile.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockQueue;
use DLockSession;
use DLockTest;
use Test::More;

# Whoever waits looks again after deadlock_timeout, which would hide that it was not told of
# something.
my $node = start_fault_node('main', conf => "deadlock_timeout = 10h\ndlock_test.worker = off\n");
my $db = 'postgres';
my $ctl = DLockSession->new($node, $db, name => 'control');
my @s = open_sessions($node, $db, 5, name => 'w');

# ---------------------------------------------------------------------------
# Leases that end by themselves, one after the other
# ---------------------------------------------------------------------------

sub acquire
{
	my ($name, $owner, $params) = @_;
	return "SELECT dlock_acquire('$name', '$owner', '1 h', NULL" . ($params ? ", $params" : '') . ')';
}

# Sessions take turns: the one that has had the lock waits for it again as another owner.
# With the worker at work, which finds the same lease at the same moment, too.
foreach my $case ([ 'one waits', 2, 20, 'off' ], [ 'several wait', 5, 20, 'off' ], [ 'worker at work', 3, 20, 'on' ])
{
	my ($label, $count, $turns, $worker) = @$case;
	$ctl->query_safe("ALTER SYSTEM SET dlock_test.worker = $worker; SELECT pg_reload_conf()");
	my $last = $ctl->query_safe("SELECT dlock_acquire('turns', 'first', '1 h')");
	my @queue = @s[ 0 .. $count - 1 ];
	my $ascend = 1;

	enqueue($ctl, $_, acquire('turns', $_->{name})) foreach @queue;
	foreach my $turn (1 .. $turns)
	{
		my $next = shift @queue;
		my $token = granted_at($ctl, $next, 3600, "$label, turn $turn");
		$ascend &&= $token > $last;
		$last = $token;
		enqueue($ctl, $next, acquire('turns', "$next->{name}-$turn"));
		push @queue, $next;
		still_waits($ctl, "$label, turn $turn: one grant", @queue);
	}
	ok($ascend, "$label: tokens ascend");
	remaining_is($ctl, 'turns', 3600, "$label: the last has all of its time");
	foreach my $session (@queue)
	{
		$ctl->query_safe("SELECT dlock_force_release('turns', 'test')");
		$session->answer;
	}
	$ctl->query_safe("SELECT dlock_force_release('turns', 'test')");
}
$ctl->query_safe('ALTER SYSTEM SET dlock_test.worker = off');
$ctl->query_safe('SELECT pg_reload_conf()');
queues_are_empty($ctl, 'nobody waits');

# ---------------------------------------------------------------------------
# A deadline that moves
# ---------------------------------------------------------------------------

# Nearer: one that was to wait for an hour does not.
foreach my $how ('by owner', 'by token', 'all of the owner', 'count', 'return')
{
	my $token = $ctl->query_safe("SELECT dlock_acquire('move', 'holder', '1 h')");
	enqueue($ctl, $s[0], acquire('move', 'alice'));
	enqueue($ctl, $s[1], acquire('move', 'bob'));
	if ($how eq 'count' || $how eq 'return')
	{
		# Re-entry never brings the deadline nearer.
		$ctl->query_safe("SELECT dlock_acquire('move', 'holder', '5 min', reentry => '$how')");
		advance(600, $ctl);
		still_waits($ctl, "$how with a shorter ttl: the waiters go on waiting", @s[ 0, 1 ]);
		$ctl->query_safe("SELECT dlock_renew('move', 'holder', '10 min')");
	}
	elsif ($how eq 'all of the owner')
	{
		is($ctl->query_safe("SELECT dlock_renew_all('holder', '10 min')"), 1, "nearer, $how");
	}
	else
	{
		my $renew = $how eq 'by owner' ? "dlock_renew('move', 'holder'" : "dlock_renew_token('move', $token";
		is($ctl->query_safe("SELECT $renew, '10 min')"), 't', "nearer, $how");
	}
	granted_at($ctl, $s[0], 600, "nearer, $how");
	is(queue($ctl, 'move'), 'bob', "nearer, $how: one grant");
	$ctl->query_safe("SELECT dlock_release('move', 'alice')");
	$s[1]->answer;
	$ctl->query_safe("SELECT dlock_release('move', 'bob')");
}

# Farther: whoever waits goes on waiting, over each deadline that was.
{
	$ctl->query_safe("SELECT dlock_acquire('move', 'holder', '1 h')");
	enqueue($ctl, $s[$_], acquire('move', "w$_")) foreach 0, 1;
	foreach my $before (1, 1800, 3599.999999)
	{
		advance($before, $ctl);
		is($ctl->query_safe("SELECT dlock_renew('move', 'holder')"), 't', "farther, after $before s: the holder holds it");
	}
	still_waits($ctl, 'farther: both wait', @s[ 0, 1 ]);
	granted_at($ctl, $s[0], 3600, 'farther, and no more');
	is($ctl->query_safe("SELECT dlock_renew('move', 'holder')"), 'f', 'the holder has lost it');
	$ctl->query_safe("SELECT dlock_force_release('move', 'test')");
	$s[1]->answer;
	$ctl->query_safe("SELECT dlock_force_release('move', 'test')");
}

# Farther by a counted re-entry.
{
	my $token = $ctl->query_safe("SELECT dlock_acquire('move', 'holder', '1 h')");
	enqueue($ctl, $s[0], acquire('move', 'alice'));
	is($ctl->query_safe("SELECT dlock_acquire('move', 'holder', '2 h', reentry => 'count')"), $token, 'counted');
	granted_at($ctl, $s[0], 7200, 'farther, by re-entry');
	$ctl->query_safe("SELECT dlock_release('move', 'alice')");
}

# The grant is the earliest of what lets a waiter in: of several holders whose
# leases end one after the other it is the last, of permits the first.
{
	$ctl->query_safe("SELECT dlock_acquire('several', 'h$_', '1 h', mode => 'shared')") foreach 300, 900, 600;
	isnt($s[0]->query(acquire('several', 'reader', "mode => 'shared'")), '', 'a reader among readers');
	$ctl->query_safe("SELECT dlock_release('several', 'reader')");
	$ctl->query_safe("SELECT dlock_renew('several', 'h$_', '$_ s')") foreach 300, 900, 600;
	enqueue($ctl, $s[0], acquire('several', 'writer'));
	foreach (300, 300)
	{
		advance($_, $ctl);
		still_waits($ctl, 'not after one of several holders', $s[0]);
	}
	granted_at($ctl, $s[0], 300, 'after the last of several holders');
	$ctl->query_safe("SELECT dlock_release('several', 'writer')");

	$ctl->query_safe("SELECT dlock_acquire('permits', 'h1', '1 h', permits => 2), dlock_acquire('permits', 'h2', '400 s', permits => 2)");
	enqueue($ctl, $s[0], acquire('permits', 'p', 'permits => 2'));
	granted_at($ctl, $s[0], 400, 'the first permit that expires');
	$ctl->query_safe("SELECT dlock_force_release('permits', 'test')");
}

# Several names at once, and a path: when the last of them is free.
foreach my $request (
	"SELECT dlock_acquire_all('{t1, t2, t3}', 'all', '1 h', NULL)",
	"SELECT dlock_acquire_path('t1/t2/t3', 'all', '1 h', NULL)")
{
	my @names = $request =~ /path/ ? ('t1', 't1/t2', 't1/t2/t3') : ('t1', 't2', 't3');
	my $i = 0;
	$ctl->query_safe("SELECT dlock_acquire('$names[$i++]', 'h', '$_ s')") foreach 300, 500, 700;
	enqueue($ctl, $s[0], $request);
	foreach (300, 200)
	{
		advance($_, $ctl);
		still_waits($ctl, "$names[2]: not before all are free", $s[0]);
	}
	granted_at($ctl, $s[0], 200, $names[2]);
	$ctl->query_safe("SELECT dlock_release_all('all')");
}

# Behind a call for several names: it waits for nobody that holds the lock, and then
# for the deadline of what the call got.
foreach my $request (
	"SELECT dlock_acquire_all('{b1, b2}', 'all', '400 s', NULL)",
	"SELECT dlock_acquire_path('b1/b2', 'all', '400 s', NULL)")
{
	my $name = $request =~ /path/ ? 'b1/b2' : 'b2';
	$ctl->query_safe("SELECT dlock_acquire('b1', 'h', '1 h')");
	enqueue($ctl, $s[0], $request);
	enqueue($ctl, $s[1], acquire($name, 'behind'));
	$ctl->query_safe("SELECT dlock_release('b1', 'h')");
	$s[0]->answer;
	granted_at($ctl, $s[1], 400, "behind a call for $name");
	$ctl->query_safe("SELECT dlock_release('$name', 'behind')");
}

# A conversion.
{
	my $token = $ctl->query_safe("SELECT dlock_acquire('convert', 'me', '1 h', mode => 'shared')");
	$ctl->query_safe("SELECT dlock_acquire('convert', 'h', '400 s', mode => 'shared')");
	enqueue($ctl, $s[0], "SELECT dlock_convert('convert', $token, 'exclusive', NULL)");
	cmp_ok(granted_at($ctl, $s[0], 400, 'a conversion'), '>', $token, 'with a new token');
	$ctl->query_safe("SELECT dlock_force_release('convert', 'test')");
}

# A lease that is closed for a while after its end: at the moment that it opens.
{
	$ctl->query_safe("SELECT dlock_acquire('closed', 'h', '200 s', lock_delay => '400 s')");
	enqueue($ctl, $s[0], acquire('closed', 'w'));
	advance(200, $ctl);
	granted_at($ctl, $s[0], 400, 'after lock_delay');
	$ctl->query_safe("SELECT dlock_release('closed', 'w')");
	$ctl->query_safe("SELECT dlock_acquire('closed', 'h', '1 h', min_hold => '500 s')");
	enqueue($ctl, $s[0], acquire('closed', 'w'));
	$ctl->query_safe("SELECT dlock_release('closed', 'h')");
	granted_at($ctl, $s[0], 500, 'after min_hold');
	$ctl->query_safe("SELECT dlock_release('closed', 'w')");
}

# The time-out of the waiter and the deadline of the holder, close to each other, either way
# round, or in the same moment: a token or NULL, and what is told is so.
foreach my $later (-0.001, 0, 0.001)
{
	my $label = 'time-out ' . ($later < 0 ? 'before' : $later > 0 ? 'after' : 'at') . ' the deadline';
	$ctl->query_safe("SELECT dlock_acquire('close', 'h', '10 min')");
	enqueue($ctl, $s[0], sprintf "SELECT dlock_acquire('close', 'w', '1 h', '%.3f s')", 600 + $later);
	advance(599.999999 + ($later < 0 ? $later : 0), $ctl);
	still_waits($ctl, "$label: not before it", $s[0]);
	advance(0.000001, $ctl);
	my $token = $s[0]->answer;
	is($token ne '', $later >= 0, "$label: granted if it is not over before");
	is($ctl->query_safe("SELECT coalesce(string_agg(token::text, ' '), '') FROM dlock_leases WHERE name = 'close' AND owner = 'w'"),
		$token, "$label: what the waiter is told is so");
	$ctl->query_safe("SELECT dlock_force_release('close', 'test')");
}

queues_are_empty($ctl, 'nobody waits in the end');
sound($ctl, 'in the end');

$_->quit foreach @s, $ctl;
$node->stop;
log_is_clean($node);
done_testing();
