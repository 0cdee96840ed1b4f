# Proves: owners that wait for each other, in a ring through any number of locks
# and modes, are told after deadlock_timeout, to the microsecond: one of them gets an
# error that names the whole ring, the others go on; and nobody gets one who is
# not in a ring.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockQueue;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

our $timeout = 60;
my $node = start_fault_node('main', conf => "deadlock_timeout = ${timeout}s\n");
still_worker($node);
my $db = 'postgres';
my $ctl = DLockSession->new($node, $db, name => 'control');
my @s = open_sessions($node, $db, 12, name => 's');

# A stopped process would keep the server from being stopped.
my $stopped;
END
{
	my $status = $?;
	kill 'CONT', $stopped if $stopped;
	$? = $status;
}

sub hold
{
	my ($owner, $name, $params) = @_;
	my $token = $ctl->query_safe("SELECT dlock_acquire('$name', '$owner', '1 h'" . ($params ? ", $params" : '') . ')');

	$token ne '' or die "$owner does not get $name";
	return $token;
}

sub want
{
	my ($owner, $name, $params) = @_;

	return "SELECT dlock_acquire('$name', '$owner', '1 h', NULL" . ($params ? ", $params" : '') . ')';
}

# What is left when a test is done would disturb the next.
sub clean
{
	my ($test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	queues_are_empty($ctl, "$test_name: nobody waits");
	$ctl->query_safe("SELECT dlock_force_release(name, 'test') FROM dlock_leases");
	is($ctl->query_safe('SELECT count(*) FROM dlock_leases'), 0, "$test_name: nobody holds");
	return;
}

# Those that answer once they have waited for deadlock_timeout, and not before.
sub told
{
	my ($test_name, @waiters) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	advance($timeout - 0.000001, $ctl);
	still_waits($ctl, "$test_name: not before deadlock_timeout", @waiters);
	advance(0.000001, $ctl);
	return wait_any(20, @waiters);
}

# Nobody answers, however long it is.
sub no_deadlock
{
	my ($test_name, @waiters) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	advance(3 * $timeout, $ctl);
	return still_waits($ctl, $test_name, @waiters);
}

# The sessions in @$waiters wait in a ring, which the last of them has closed just
# now.  Test that exactly one is told, at its time, with the edges of the ring, each
# an array of owner, what it waits for, lock, and behind whom.  Returns the index
# of the victim.
sub one_victim
{
	my ($waiters, $edges, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @told = told($test_name, @$waiters);

	is(scalar @told, 1, "$test_name: a victim") or return 0;
	my $answer = $told[0]->result;
	is($answer->{state}, '40P01', "$test_name: SQLSTATE") or diag("'$answer->{out}' $answer->{err}");
	is($answer->{message}, 'deadlock detected', "$test_name: message");
	my @expected = map { qq{Owner "$_->[0]" waits for $_->[1] on lock "$_->[2]"; blocked by owner "$_->[3]".} } @$edges;
	is(join("\n", sort split /\n/, $answer->{detail} // ''), join("\n", sort @expected), "$test_name: detail");
	my @others = grep { $_->{pending} } @$waiters;
	still_waits($ctl, "$test_name: one victim only, the others wait on", @others);
	my ($victim) = grep { $waiters->[$_] == $told[0] } 0 .. $#$waiters;
	return $victim;
}

# ---------------------------------------------------------------------------
# Rings
# ---------------------------------------------------------------------------

# Owner i holds lock i and waits for lock i + 1.
foreach my $n (2, 3, 8)
{
	foreach my $last (0, $n - 1, int $n / 2)
	{
		next if $n == 2 && $last == 1 || $n == 3 && $last == 1;
		my $label = "ring of $n, closed by $last";
		my @token = map { hold("o$_", "l$_") } 0 .. $n - 1;
		my @order = ((grep { $_ != $last } 0 .. $n - 1), $last);
		my @edges = map { [ "o$_", 'exclusive', 'l' . ($_ + 1) % $n, 'o' . ($_ + 1) % $n ] } 0 .. $n - 1;

		foreach my $i (@order)
		{
			enqueue($ctl, $s[$i], want("o$i", 'l' . ($i + 1) % $n));
		}
		my $victim = $order[ one_victim([ @s[@order] ], \@edges, $label) ];

		# What the victim held it holds still; when it lets go, the one before it
		# in the ring gets it, and so on.
		is($ctl->query_safe("SELECT dlock_check('l$victim', $token[$victim])"), 't', "$label: the victim holds what it held");
		$ctl->query_safe("SELECT dlock_release_token('l$victim', $token[$victim])");
		for (my $i = ($victim + $n - 1) % $n; $i != $victim; $i = ($i + $n - 1) % $n)
		{
			my $answer = $s[$i]->result;
			isnt($answer->{out}, '', "$label: $i goes on") or diag($answer->{err});
			$ctl->query_safe("SELECT dlock_release_all('o$i')");
		}
		clean($label);
	}
}

# The timeout that counts is that of the session that waits; one that looks late
# does not keep the others from looking.
{
	$s[0]->query_safe("SET deadlock_timeout = '10 min'");
	hold('o0', 'l0');
	hold('o1', 'l1');
	enqueue($ctl, $s[1], want('o1', 'l0'));
	no_deadlock('one has looked before there is a ring', $s[1]);
	local $timeout = 30;
	$s[0]->query_safe("SET deadlock_timeout = '30 s'");
	enqueue($ctl, $s[0], want('o0', 'l1'));
	my $victim = 1 - one_victim([ @s[ 1, 0 ] ], [ [ 'o0', 'exclusive', 'l1', 'o1' ], [ 'o1', 'exclusive', 'l0', 'o0' ] ],
		'one had looked before there was a ring');
	$ctl->query_safe("SELECT dlock_release_all('o$victim')");
	$s[ 1 - $victim ]->result;
	$s[0]->query_safe("RESET deadlock_timeout");
	clean('one had looked before there was a ring');
}

# One that watches a lock of the ring is no part of it.
{
	my @token = map { hold("o$_", "l$_") } 0, 1;
	$s[2]->ask_waiting($ctl, "SELECT owner FROM dlock_watch('l0', $token[0])");
	enqueue($ctl, $s[0], want('o0', 'l1'));
	enqueue($ctl, $s[1], want('o1', 'l0'));
	my $victim = one_victim([ @s[ 0, 1 ] ], [ [ 'o0', 'exclusive', 'l1', 'o1' ], [ 'o1', 'exclusive', 'l0', 'o0' ] ], 'a ring that is watched');
	still_waits($ctl, 'a ring that is watched: not the watcher', $s[2]);
	$ctl->query_safe("SELECT dlock_release_all('o$victim')");
	$s[ 1 - $victim ]->result;
	clean('a ring that is watched');
	is($s[2]->result->{state}, '', 'a ring that is watched: the watcher is told');
}

# Shared and exclusive.
{
	hold('a', 'x', "mode => 'shared'");
	hold('c', 'x', "mode => 'shared'");
	hold('b', 'y');
	enqueue($ctl, $s[0], want('a', 'y', "mode => 'shared'"));
	enqueue($ctl, $s[1], want('b', 'x'));
	my $victim = one_victim([ @s[ 0, 1 ] ],
		[ [ 'a', 'shared', 'y', 'b' ], [ 'b', 'exclusive', 'x', 'a' ] ], 'shared and exclusive');
	my ($loser, $winner) = $victim == 0 ? ('a', 1) : ('b', 0);
	$ctl->query_safe("SELECT dlock_release_all('$loser')");
	$ctl->query_safe("SELECT dlock_release_all('c')");
	isnt($s[$winner]->result->{out}, '', 'shared and exclusive: the other goes on');
	clean('shared and exclusive');
}

# Modes of their own names, and a payload of quotes in the names.
{
	hold('a "b"', 'x', "mode => 'PW'");
	hold('c', 'y', "mode => 'CW'");
	enqueue($ctl, $s[0], want('a "b"', 'y', "mode => 'PR'"));
	enqueue($ctl, $s[1], want('c', 'x', "mode => 'CW'"));
	one_victim([ @s[ 0, 1 ] ],
		[ [ 'a "b"', 'shared', 'y', 'c' ], [ 'c', 'CW', 'x', 'a "b"' ] ], 'modes');
	$ctl->query_safe("SELECT dlock_force_release('x', 'test'); SELECT dlock_force_release('y', 'test')");
	$_->result foreach grep { $_->{pending} } @s[ 0, 1 ];
	clean('modes');
}

# Semaphores: a request for one waits until any of its holders lets go, so it is
# a deadlock when all of them wait, and not before.
{
	hold('a', 'pool', 'permits => 2');
	hold('c', 'pool', 'permits => 2');
	hold('b', 'y');
	enqueue($ctl, $s[0], want('a', 'y'));
	enqueue($ctl, $s[1], want('b', 'pool', 'permits => 2'));
	no_deadlock('a holder of a permit that does not wait: no deadlock', @s[ 0, 1 ]);
	$ctl->query_safe("SELECT dlock_release('pool', 'c')");
	isnt($s[1]->result->{out}, '', 'and it lets the other go on');
	$ctl->query_safe("SELECT dlock_release_all('b')");
	$_->result foreach grep { $_->{pending} } @s[ 0, 1 ];
	clean('semaphore without a deadlock');

	# Likewise if it waits, but for one that goes on.
	hold('a', 'pool', 'permits => 2');
	hold('c', 'pool', 'permits => 2');
	hold('b', 'y');
	hold('d', 'z');
	enqueue($ctl, $s[0], want('a', 'y'));
	enqueue($ctl, $s[1], want('b', 'pool', 'permits => 2'));
	enqueue($ctl, $s[2], want('c', 'z'));
	no_deadlock('a holder of a permit that waits for one that goes on: no deadlock', @s[ 0 .. 2 ]);
	foreach my $step ([ 'd', 2 ], [ 'c', 1 ], [ 'b', 0 ])
	{
		$ctl->query_safe("SELECT dlock_release_all('$step->[0]')");
		isnt($s[ $step->[1] ]->result->{out}, '', "and when $step->[0] lets go, the next one goes on");
	}
	$ctl->query_safe("SELECT dlock_release_all('a')");
	clean('semaphore whose holder waits');

	hold('a', 'pool', 'permits => 2');
	hold('c', 'pool', 'permits => 2');
	hold('b', 'y');
	enqueue($ctl, $s[0], want('a', 'y', "mode => 'shared'"));
	enqueue($ctl, $s[1], want('b', 'pool', 'permits => 2'));
	enqueue($ctl, $s[2], want('c', 'y', "mode => 'shared'"));
	my ($told) = told('semaphore', @s[ 0 .. 2 ]);
	my $answer = $told->result;
	is($answer->{state}, '40P01', 'all holders of the permits wait: a deadlock');
	like($answer->{detail}, qr/^Owner "b" waits for permit on lock "pool"; blocked by owner "[ac]"\.$/m, 'semaphore: detail');
	like($answer->{detail}, qr/^Owner "[ac]" waits for shared on lock "y"; blocked by owner "b"\.$/m, 'semaphore: detail, back');
	still_waits($ctl, 'semaphore: one victim', grep { $_->{pending} } @s[ 0 .. 2 ]);
	$ctl->query_safe("SELECT dlock_force_release(name, 'test') FROM dlock_leases");
	$_->result foreach grep { $_->{pending} } @s[ 0 .. 2 ];
	clean('semaphore');

	# A permit that nobody has yet: b is called, and does not get to run.
	hold('a', 'pool', 'permits => 2');
	hold('c', 'pool', 'permits => 2');
	hold('b', 'y');
	enqueue($ctl, $s[1], want('b', 'pool', 'permits => 2'));
	stop_asleep($node, $stopped = $s[1]{pid});
	$ctl->query_safe("SELECT dlock_release('pool', 'c')");
	my $log = -s $node->logfile;
	$s[0]->query_safe('SET log_lock_waits = on');
	enqueue($ctl, $s[0], want('a', 'y'));

	# That it waits is logged once it has looked.
	no_deadlock('a permit to spare: no deadlock', $s[0]);
	like(slurp_file($node->logfile, $log), qr/still waiting for exclusive on lock "y"/, 'a permit to spare: looked');
	kill 'CONT', $stopped;
	isnt($s[1]->result->{out}, '', 'a permit to spare: the other goes on');
	$ctl->query_safe("SELECT dlock_release_all('b')");
	isnt($s[0]->result->{out}, '', 'a permit to spare: and so does the first');
	$s[0]->query_safe('RESET log_lock_waits');
	$ctl->query_safe("SELECT dlock_release_all('a')");
	clean('a permit to spare');
}

# Through a place in a queue: c waits for nobody that holds what it wants, but for
# one that is in front of it.
{
	hold('a', 'x', "mode => 'shared'");
	hold('c', 'y');
	enqueue($ctl, $s[0], want('b', 'x'));
	enqueue($ctl, $s[1], want('c', 'x', "mode => 'shared'"));
	enqueue($ctl, $s[2], want('a', 'y'));

	# If b is told and leaves, c gets the lock at once, so there may be two answers.
	my @answers = map { $_->result } told('through a queue', @s[ 0 .. 2 ]);
	push @answers, map { $_->result } wait_any(20, grep { $_->{pending} } @s[ 0 .. 2 ])
	  unless grep { $_->{failed} } @answers;
	my @failed = grep { $_->{failed} } @answers;
	is(join(' ', map { $_->{state} } @failed), '40P01', 'through a queue: one victim');
	is( @failed ? join("\n", sort split /\n/, $failed[0]{detail}) : '',
		join("\n",
			'Owner "a" waits for exclusive on lock "y"; blocked by owner "c".',
			'Owner "b" waits for exclusive on lock "x"; blocked by owner "a".',
			'Owner "c" waits for shared on lock "x"; blocked by owner "b".'),
		'through a queue: detail');
	foreach my $round (1 .. 3)
	{
		my @pending = grep { $_->{pending} } @s[ 0 .. 2 ] or last;
		$ctl->query_safe("SELECT dlock_force_release(name, 'test') FROM dlock_leases");
		foreach my $session (wait_any(20, @pending))
		{
			is($session->result->{state}, '', 'through a queue: the others go on');
		}
	}
	clean('through a queue');
}

# Through several names asked for at once, held by one that waits for what the
# asker holds; and through a path.
foreach my $case (
	[ 'acquire_all', "SELECT dlock_acquire_all('{p, p/q, r}', 'a', '1 h', NULL)", 'r', 'exclusive' ],
	[ 'acquire_path', "SELECT dlock_acquire_path('p/q', 'a', '1 h', NULL)", 'p', 'CW' ])
{
	my ($label, $sql, $name, $mode) = @$case;

	hold('a', 'mine');
	hold('b', $name);
	enqueue($ctl, $s[0], $sql);
	enqueue($ctl, $s[1], want('b', 'mine'));
	my $victim = one_victim([ @s[ 0, 1 ] ],
		[ [ 'a', $mode, $name, 'b' ], [ 'b', 'exclusive', 'mine', 'a' ] ], $label);
	is($ctl->query_safe("SELECT count(*) FROM dlock_leases WHERE owner = 'a'"), 1, "$label: nothing is half held");
	$ctl->query_safe("SELECT dlock_release_all('" . ($victim == 0 ? 'a' : 'b') . "')");
	isnt($s[ 1 - $victim ]->result->{out}, '', "$label: the other goes on");
	clean($label);
}

# ---------------------------------------------------------------------------
# At once
# ---------------------------------------------------------------------------

$_->query_safe("SET deadlock_timeout = '10 min'") foreach @s;

# Waiting for oneself.
foreach my $mode ('exclusive', 'shared', 'NL')
{
	hold('a', 'self', "mode => 'shared'");
	my $answer = $s[0]->ask(want('a', 'self', "mode => '$mode'"))->result;
	is($answer->{state}, '40P01', "waiting for oneself, $mode");
	like($answer->{detail}, qr/"a".*"self".*"a"/, "waiting for oneself, $mode: detail");
	is($ctl->query_safe("SELECT dlock_acquire('self', 'a', '1 h', mode => '$mode')"), '', "not waiting, $mode: refused");
	clean("waiting for oneself, $mode");
}
{
	hold('a', 'self', 'permits => 2');
	is($s[0]->ask(want('a', 'self', 'permits => 2'))->result->{state}, '40P01', 'waiting for oneself, semaphore');
	hold('a', 'all2');
	is($s[0]->ask("SELECT dlock_acquire_all('{all1, all2}', 'a', '1 h', NULL)")->result->{state}, '40P01', 'waiting for oneself, acquire_all');
	is($ctl->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'all1'"), 0, 'waiting for oneself, acquire_all: nothing is held');
	hold('a', 'path/x');
	is($s[0]->ask("SELECT dlock_acquire_path('path/x', 'a', '1 h', NULL)")->result->{state}, '40P01', 'waiting for oneself, acquire_path');
	is($ctl->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'path'"), 0, 'waiting for oneself, acquire_path: nothing is held');

	# What it has on the way to another lock is in its way, too.
	$ctl->query_safe("SELECT dlock_acquire_path('way/x', 'a', '1 h')");
	$s[0]->ask(want('a', 'way'));
	$ctl->query_safe("SELECT pg_cancel_backend($s[0]{pid})") unless wait_any(20, $s[0]);
	my $answer = $s[0]->result;
	is($answer->{state}, '40P01', 'waiting for oneself, above a path: at once');
	hold('a', 'above', "mode => 'shared'");
	is($s[0]->ask("SELECT dlock_acquire_path('above/y', 'a', '1 h', NULL)")->result->{state}, '40P01', 'waiting for oneself, below a lock');
	clean('waiting for oneself');
}

# Two readers that both want to write.
foreach my $modes ([ 'shared', 'exclusive' ], [ 'PR', 'PW' ], [ 'CW', 'EX' ], [ 'CW', 'PR' ])
{
	my ($from, $to) = @$modes;
	my $label = "conversion from $from to $to";
	my ($a, $b) = map { hold($_, 'both', "mode => '$from'") } 'a', 'b';
	enqueue($ctl, $s[0], "SELECT dlock_convert('both', $a, '$to', NULL)");
	my $answer = $s[1]->ask("SELECT dlock_convert('both', $b, '$to', NULL)")->result;
	is($answer->{state}, '40P01', "$label: the second is told");
	like($answer->{detail}, qr/^Owner "b" waits for \w+ on lock "both"; blocked by owner "a"\.$/m, "$label: detail");
	like($answer->{detail}, qr/^Owner "a" waits for \w+ on lock "both"; blocked by owner "b"\.$/m, "$label: detail, back");
	is($ctl->query_safe("SELECT dlock_check('both', $b)"), 't', "$label: and holds what it held");
	still_waits($ctl, "$label: the first waits on", $s[0]);
	$ctl->query_safe("SELECT dlock_release_token('both', $b)");
	cmp_ok($s[0]->result->{out}, '>', $b, "$label: and gets it");
	clean($label);
}

# One that converts, and a waiter that is no holder: no deadlock.
{
	my ($a, $b) = map { hold($_, 'one', "mode => 'shared'") } 'a', 'b';
	enqueue($ctl, $s[2], want('c', 'one'));
	enqueue($ctl, $s[0], "SELECT dlock_convert('one', $a, 'exclusive', NULL)");
	is(queue($ctl, 'one'), 'a c', 'a conversion is ahead of those that waited before');
	$ctl->query_safe("SELECT dlock_release_token('one', $b)");
	isnt($s[0]->result->{out}, '', 'and gets the lock first');
	$ctl->query_safe("SELECT dlock_release_all('a')");
	isnt($s[2]->result->{out}, '', 'then the other');
	clean('a conversion and a waiter');
}
$_->query_safe('RESET deadlock_timeout') foreach @s;

# ---------------------------------------------------------------------------
# No deadlock
# ---------------------------------------------------------------------------

# A chain: owner i holds lock i and waits for lock i + 1, the last one for none.
{
	my $n = 12;
	hold("o$_", "l$_") foreach 0 .. $n;
	enqueue($ctl, $s[$_], want("o$_", 'l' . ($_ + 1))) foreach reverse 0 .. $n - 1;
	no_deadlock('a chain: nobody is told', @s);
	$ctl->query_safe("SELECT dlock_release_all('o$n')");
	foreach my $i (reverse 0 .. $n - 1)
	{
		my $answer = $s[$i]->result;
		is($answer->{state}, '', "a chain: $i goes on") or diag($answer->{err});
		$ctl->query_safe("SELECT dlock_release_all('o$i')");
	}
	clean('a chain');
}

# Many wait for one, who waits for one that does not wait.
{
	hold('free', 'f');
	hold('hub', 'h');
	hold("o$_", "l$_") foreach 0 .. 9;
	enqueue($ctl, $s[$_], want("o$_", 'h')) foreach 0 .. 9;
	enqueue($ctl, $s[10], want('hub', 'f'));
	no_deadlock('a star: nobody is told', @s[ 0 .. 10 ]);
	$ctl->query_safe("SELECT dlock_release_all('free')");
	isnt($s[10]->result->{out}, '', 'a star: its middle goes on');
	$ctl->query_safe("SELECT dlock_release_all('hub')");
	foreach my $i (0 .. 9)
	{
		isnt($s[$i]->result->{out}, '', "a star: $i goes on");
		$ctl->query_safe("SELECT dlock_release_all('o$i')");
	}
	clean('a star');
}

# A ring that is gone before anybody looked.
{
	hold('a', 'x');
	hold('b', 'y');
	enqueue($ctl, $s[0], "SELECT dlock_acquire('y', 'a', '1 h', '30 s')");
	enqueue($ctl, $s[1], "SELECT dlock_acquire('x', 'b', '1 h', '30 s')");
	advance(30, $ctl);
	is(join('|', answers_in_order(@s[ 0, 1 ])), '|', 'both time out before it is looked at');
	clean('a short ring');
}

# A ring of which one link expires in time is broken by that.
{
	hold('a', 'x');
	$ctl->query_safe("SELECT dlock_acquire('y', 'b', '30 s')");
	enqueue($ctl, $s[0], want('a', 'y'));
	enqueue($ctl, $s[1], want('b', 'x'));
	isnt(granted_at($ctl, $s[0], 30, 'a link that expires'), '', 'a holder whose lease has ended is in no ring');
	no_deadlock('and may wait', $s[1]);
	$ctl->query_safe("SELECT dlock_release_all('a')");
	isnt($s[1]->result->{out}, '', 'and gets what it waits for');
	clean('a link that expires');
}

# The call for several names has a place in the queue of each.  Whoever comes
# behind that place, and holds what the call waits for, is let pass instead of
# being told of a deadlock: that no such call holds anything is the point of it.
{
	hold('x', 'a');
	enqueue($ctl, $s[0], "SELECT dlock_acquire_all('{a, b, c}', 'unit', '1 h', NULL)");
	is($ctl->query_safe("SELECT string_agg(name || position, ' ' ORDER BY name) FROM dlock_waiters WHERE owner = 'unit'"),
		'a1 b1 c1', 'a place in each queue');
	is($ctl->query_safe("SELECT dlock_acquire('b', 'passer-by', '1 h')"), '', 'which others respect');
	enqueue($ctl, $s[1], want('x', 'b'));
	told('soft ring of two', @s[ 0, 1 ]);
	my $answer = $s[1]->result;
	is($answer->{state}, '', 'soft ring of two: no error') or diag($answer->{err});
	isnt($answer->{out}, '', 'soft ring of two: the one that holds passes');
	still_waits($ctl, 'soft ring of two: the other waits on', $s[0]);
	$ctl->query_safe("SELECT dlock_release_all('x')");
	like($s[0]->result->{out}, qr/^\{\d+,\d+,\d+\}$/, 'soft ring of two: and gets all');
	clean('soft ring of two');

	# Of two calls in front, only one waits for the one that holds.  The other waits behind
	# that, and keeps its place.
	$_->query_safe("SET deadlock_timeout = '10 min'") foreach @s[ 0, 2 ];
	hold('x', 'a');
	enqueue($ctl, $s[0], "SELECT dlock_acquire_all('{a, b, c}', 'unit1', '1 h', NULL)");
	enqueue($ctl, $s[2], "SELECT dlock_acquire_all('{b, c}', 'unit2', '1 h', NULL)");
	enqueue($ctl, $s[1], want('x', 'b'));
	advance($timeout, $ctl);
	like($s[2]->result->{out}, qr/^\{\d+,\d+\}$/, 'two calls in front: the second gets all');
	is(queue($ctl, 'b'), 'x unit1', 'two calls in front: the first has moved');
	$ctl->query_safe("SELECT dlock_release_all('unit2')");
	isnt($s[1]->result->{out}, '', 'two calls in front: then the one that holds');
	$ctl->query_safe("SELECT dlock_release_all('x')");
	like($s[0]->result->{out}, qr/^\{\d+,\d+,\d+\}$/, 'two calls in front: then the first');
	$ctl->query_safe("SELECT dlock_release_all('unit1')");
	$_->query_safe('RESET deadlock_timeout') foreach @s[ 0, 2 ];
	clean('two calls in front');

	# The other way round: it queues behind one that it would make wait.
	hold('x', 'a');
	hold('y', 'b');
	enqueue($ctl, $s[1], want('x', 'b'));
	enqueue($ctl, $s[0], "SELECT dlock_acquire_all('{a, b}', 'unit', '1 h', NULL)");
	enqueue($ctl, $s[2], want('y', 'c'))
	  if hold('z', 'c');
	no_deadlock('a call that is last in each queue is in no ring', @s[ 0 .. 2 ]);
	$ctl->query_safe("SELECT dlock_release_all('z')");
	isnt($s[2]->result->{out}, '', 'and all go on');
	$ctl->query_safe("SELECT dlock_release_all('y')");
	isnt($s[1]->result->{out}, '', 'one after the other');
	$ctl->query_safe("SELECT dlock_release_all('x')");
	like($s[0]->result->{out}, qr/^\{\d+,\d+\}$/, 'until it gets all');
	clean('last in each queue');

	# Two calls, and two holders, in a larger ring: x holds a and wants b, behind
	# unit1, which waits for c behind unit2, which waits for a.  Only x looks for it: if
	# unit1 does, it goes in front of unit2 and waits for z only, and so does x.
	$_->query_safe("SET deadlock_timeout = '10 min'") foreach @s[ 0, 2 ];
	hold('x', 'a');
	hold('z', 'c');
	enqueue($ctl, $s[0], "SELECT dlock_acquire_all('{c, a}', 'unit2', '1 h', NULL)");
	enqueue($ctl, $s[2], "SELECT dlock_acquire_all('{b, c}', 'unit1', '1 h', NULL)");
	enqueue($ctl, $s[1], want('x', 'b'));
	told('soft ring of three', @s[ 0 .. 2 ]);
	$answer = $s[1]->result;
	is($answer->{state}, '', 'soft ring of three: no error') or diag($answer->{err});
	isnt($answer->{out}, '', 'soft ring of three: the one that holds passes');
	still_waits($ctl, 'soft ring of three: the others wait on', @s[ 0, 2 ]);
	$ctl->query_safe("SELECT dlock_release_all('z')");
	$ctl->query_safe("SELECT dlock_release_all('x')");
	my @ready = wait_any(20, @s[ 0, 2 ]);
	foreach my $session (@ready)
	{
		like($session->result->{out}, qr/^\{\d+,\d+\}$/, 'soft ring of three: a call gets all');
	}
	$ctl->query_safe("SELECT dlock_release_all('unit1')");
	$ctl->query_safe("SELECT dlock_release_all('unit2')");
	foreach my $session (grep { $_->{pending} } @s[ 0, 2 ])
	{
		like($session->result->{out}, qr/^\{\d+,\d+\}$/, 'soft ring of three: then the other');
	}
	$ctl->query_safe("SELECT dlock_release_all('unit1')");
	$ctl->query_safe("SELECT dlock_release_all('unit2')");
	$_->query_safe('RESET deadlock_timeout') foreach @s[ 0, 2 ];
	clean('soft ring of three');
}

# An owner that holds something and asks for several can be in a true one.
{
	hold('a', 'mine');
	hold('b', 'two');
	enqueue($ctl, $s[0], "SELECT dlock_acquire_all('{one, two}', 'a', '1 h', NULL)");
	enqueue($ctl, $s[1], want('b', 'mine'));
	my $victim = one_victim([ @s[ 0, 1 ] ],
		[ [ 'a', 'exclusive', 'two', 'b' ], [ 'b', 'exclusive', 'mine', 'a' ] ], 'acquire_all, holding something');
	$ctl->query_safe("SELECT dlock_release_all('" . ($victim == 0 ? 'a' : 'b') . "')");
	$s[ 1 - $victim ]->result;
	clean('acquire_all, holding something');
}

# A lease that is bound to a backend is not released while that waits, whoever its owner is.
{
	isnt($s[0]->query_safe("SELECT dlock_acquire('x', 'other', '1 h', bind => 'session')"), '', 'bound: held');
	hold('c', 'y');
	enqueue($ctl, $s[0], want('a', 'y'));
	enqueue($ctl, $s[1], want('c', 'x'));
	my ($victim) = told('bound', @s[ 0, 1 ]);
	my ($other) = grep { $_ != $victim } @s[ 0, 1 ];
	is($victim->result->{state}, '40P01', 'bound: one is told');
	$ctl->query_safe("SELECT dlock_force_release('$_', 'test')") foreach qw(x y);
	isnt($other->result->{out}, '', 'bound: the other one goes on');
	$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(a c);
	clean('bound');
}

# A check that finds nothing stuck is one for all.  A ring that a grant closes, to an owner that
# waits by another backend, is found by the next check: within deadlock_timeout, and not in
# its first three quarters.
{
	hold(@$_) foreach [ 'h', 'hot' ], [ 'g', 'v' ];
	enqueue($ctl, $s[0], want('a', 'hot'));
	enqueue($ctl, $s[1], want('a', 'v'));
	enqueue($ctl, $s[2], want('h', 'v'));
	advance(10, $ctl);
	enqueue($ctl, $s[3], want('b', 'hot'));
	fail_at($ctl, $s[3], 'deadlock_copy');
	advance($timeout - 10, $ctl);
	advance(10, $ctl);
	still_waits($ctl, 'one check for all: the last one makes none', @s[ 0 .. 3 ]);
	go_all($ctl);

	$ctl->query_safe("SELECT dlock_release_all('g')");
	isnt($s[1]->result->{out}, '', 'a ring closed by a grant: that is made');
	advance(0.75 * $timeout - 10.000001, $ctl);
	still_waits($ctl, 'a ring closed by a grant: not before the next check', @s[ 0, 2, 3 ]);
	advance(0.25 * $timeout, $ctl);
	my ($victim) = wait_any(20, @s[ 0, 2 ]);
	my ($other) = grep { $_ != $victim } @s[ 0, 2 ];
	is($victim->result->{state}, '40P01', 'a ring closed by a grant: then one is told');
	$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(a h);
	isnt($other->result->{out}, '', 'a ring closed by a grant: the other one goes on');
	$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(a h);
	isnt($s[3]->result->{out}, '', 'a ring closed by a grant: and who is not in it');
	$ctl->query_safe("SELECT dlock_release_all('b')");
	clean('a ring closed by a grant');
}

$_->quit foreach @s;
$ctl->quit;
$node->stop;
log_is_clean($node);
done_testing();
