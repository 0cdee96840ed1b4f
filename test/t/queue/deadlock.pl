# Proves: owners that wait for each other, in a ring through any number of locks
# and modes, are told within deadlock_timeout and a second: one of them gets an
# error that names the whole ring, the others go on; and nobody gets one who is
# not in a ring.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockQueue;
use DLockSession;
use DLockStall;
use DLockTest;
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $timeout = 0.3;
my $node = start_node('main', conf => 'deadlock_timeout = ' . 1000 * $timeout . "ms\n");
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

# How late they are told, after the ring was closed.  Now and then one may be late
# because the machine is.
my @late;

sub told_in_time
{
	my ($from, $to, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	push @late, $to - $from - stood_still($from);
	in_time($from, $to, $timeout + 10, "$test_name: in time");
	return;
}

# The sessions in @$waiters wait in a ring, which the last of them has closed just
# now.  Test that exactly one is told, in time, with the edges of the ring, each
# an array of owner, what it waits for, lock, and behind whom.  Returns the index
# of the victim.
sub one_victim
{
	my ($waiters, $edges, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $closed = $waiters->[-1]{sent};
	my @told = wait_any(20, @$waiters);

	is(scalar @told, 1, "$test_name: a victim") or return 0;
	my $answer = $told[0]->result;
	is($answer->{state}, '40P01', "$test_name: SQLSTATE") or diag("'$answer->{out}' $answer->{err}");
	is($answer->{message}, 'deadlock detected', "$test_name: message");
	told_in_time($closed, $answer->{at}, $test_name);
	my @expected = map { qq{Owner "$_->[0]" waits for $_->[1] on lock "$_->[2]" behind owner "$_->[3]".} } @$edges;
	is(join("\n", sort split /\n/, $answer->{detail} // ''), join("\n", sort @expected), "$test_name: detail");
	my @others = grep { $_->{pending} } @$waiters;
	nobody_answers("$test_name: one victim only", @others);
	is($ctl->query_safe('SELECT count(DISTINCT pid) FROM dlock_waiters WHERE pid IN (' . join(', ', 0, map { $_->{pid} } @others) . ')'),
		scalar @others, "$test_name: the others wait on");
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
			my $sql = want("o$i", 'l' . ($i + 1) % $n);
			$i == $last ? $s[$i]->ask($sql) : enqueue($ctl, $s[$i], $sql);
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
	usleep(($timeout + 0.2) * 1e6);
	$s[0]->query_safe("SET deadlock_timeout = '50 ms'");
	$s[0]->ask(want('o0', 'l1'));

	# The other one may look once more just then.
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
	$s[1]->ask(want('o1', 'l0'));
	my $victim = one_victim([ @s[ 0, 1 ] ], [ [ 'o0', 'exclusive', 'l1', 'o1' ], [ 'o1', 'exclusive', 'l0', 'o0' ] ], 'a ring that is watched');
	nobody_answers('a ring that is watched: not the watcher', $s[2]);
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
	$s[1]->ask(want('b', 'x'));
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
	$s[1]->ask(want('c', 'x', "mode => 'CW'"));
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
	wait_any($timeout * 2 + 0.5, @s[ 0, 1 ]);
	is(join(' ', map { $_->{name} } grep { $_->answered } @s[ 0, 1 ]), '', 'a holder of a permit that does not wait: no deadlock');
	if ($s[1]->{pending} && !$s[1]->answered)
	{
		$ctl->query_safe("SELECT dlock_release('pool', 'c')");
		isnt($s[1]->result->{out}, '', 'and it lets the other go on');
	}
	$ctl->query_safe("SELECT dlock_release_all('b')");
	$_->result foreach grep { $_->{pending} } @s[ 0, 1 ];
	clean('semaphore without a deadlock');

	hold('a', 'pool', 'permits => 2');
	hold('c', 'pool', 'permits => 2');
	hold('b', 'y');
	enqueue($ctl, $s[0], want('a', 'y', "mode => 'shared'"));
	enqueue($ctl, $s[1], want('b', 'pool', 'permits => 2'));
	$s[2]->ask(want('c', 'y', "mode => 'shared'"));
	my ($told) = wait_any(20, @s[ 0 .. 2 ]);
	my $answer = $told->result;
	is($answer->{state}, '40P01', 'all holders of the permits wait: a deadlock');
	told_in_time($s[2]{sent}, $answer->{at}, 'semaphore');
	like($answer->{detail}, qr/^Owner "b" waits for permit on lock "pool" behind owner "[ac]"\.$/m, 'semaphore: detail');
	like($answer->{detail}, qr/^Owner "[ac]" waits for shared on lock "y" behind owner "b"\.$/m, 'semaphore: detail, back');
	nobody_answers('semaphore: one victim', grep { $_->{pending} } @s[ 0 .. 2 ]);
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
	$s[0]->ask(want('a', 'y'));

	# That it waits is logged once it has looked.
	ok(wait_until(sub { $s[0]->answered || slurp_file($node->logfile, $log) =~ /still waiting for exclusive on lock "y"/ }), 'a permit to spare: looked');
	ok(!$s[0]->answered, 'a permit to spare: no deadlock');
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
	$s[2]->ask(want('a', 'y'));

	# If b is told and leaves, c gets the lock at once, so there may be two answers.
	my @answers = map { $_->result } wait_any(20, @s[ 0 .. 2 ]);
	push @answers, map { $_->result } wait_any(20, grep { $_->{pending} } @s[ 0 .. 2 ])
	  unless grep { $_->{failed} } @answers;
	my @failed = grep { $_->{failed} } @answers;
	is(join(' ', map { $_->{state} } @failed), '40P01', 'through a queue: one victim');
	told_in_time($s[2]{sent}, $failed[0]{at}, 'through a queue') if @failed;
	is( @failed ? join("\n", sort split /\n/, $failed[0]{detail}) : '',
		join("\n",
			'Owner "a" waits for exclusive on lock "y" behind owner "c".',
			'Owner "b" waits for exclusive on lock "x" behind owner "a".',
			'Owner "c" waits for shared on lock "x" behind owner "b".'),
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
	$s[1]->ask(want('b', 'mine'));
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
	in_time($answer->{sent}, $answer->{at}, 100, "waiting for oneself, $mode: at once");
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
	in_time($answer->{sent}, $answer->{at}, 100, "$label: at once");
	like($answer->{detail}, qr/^Owner "b" waits for \w+ on lock "both" behind owner "a"\.$/m, "$label: detail");
	like($answer->{detail}, qr/^Owner "a" waits for \w+ on lock "both" behind owner "b"\.$/m, "$label: detail, back");
	is($ctl->query_safe("SELECT dlock_check('both', $b)"), 't', "$label: and holds what it held");
	nobody_answers("$label: the first waits on", $s[0]);
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
	wait_any($timeout * 2 + 0.2, @s);
	is(scalar(grep { $_->answered } @s), 0, 'a chain: nobody is told');
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
	wait_any($timeout * 2 + 0.2, @s[ 0 .. 10 ]);
	is(scalar(grep { $_->answered } @s[ 0 .. 10 ]), 0, 'a star: nobody is told');
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
	$s[0]->ask("SELECT dlock_acquire('y', 'a', '1 h', '100 ms')");
	$s[1]->ask("SELECT dlock_acquire('x', 'b', '1 h', '100 ms')");
	is(join('|', answers_in_order(@s[ 0, 1 ])), '|', 'both time out before it is looked at');
	clean('a short ring');
}

# A ring of which one link expires in time is broken by that.
{
	hold('a', 'x');
	$ctl->query_safe("SELECT dlock_acquire('y', 'b', '150 ms')");
	$s[0]->ask(want('a', 'y'));
	$s[1]->ask(want('b', 'x'));
	isnt($s[0]->result->{out}, '', 'a holder whose lease has ended is in no ring');
	wait_any($timeout * 2 + 0.2, $s[1]);
	is($s[1]->answered ? $s[1]->result->{err} : '', '', 'and may wait');
	$ctl->query_safe("SELECT dlock_release_all('a')");
	isnt($s[1]->result->{out}, '', 'and gets what it waits for') if $s[1]{pending};
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
	$s[1]->ask(want('x', 'b'));
	my $answer = $s[1]->result;
	is($answer->{state}, '', 'soft ring of two: no error') or diag($answer->{err});
	isnt($answer->{out}, '', 'soft ring of two: the one that holds passes');
	told_in_time($answer->{sent}, $answer->{at}, 'soft ring of two');
	nobody_answers('soft ring of two: the other waits on', $s[0]);
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
	wait_any($timeout * 2 + 0.2, @s[ 0 .. 2 ]);
	is(scalar(grep { $_->answered } @s[ 0 .. 2 ]), 0, 'a call that is last in each queue is in no ring');
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
	$s[1]->ask(want('x', 'b'));
	$answer = $s[1]->result;
	is($answer->{state}, '', 'soft ring of three: no error') or diag($answer->{err});
	isnt($answer->{out}, '', 'soft ring of three: the one that holds passes');
	nobody_answers('soft ring of three: the others wait on', @s[ 0, 2 ]);
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
	$s[1]->ask(want('b', 'mine'));
	my $victim = one_victim([ @s[ 0, 1 ] ],
		[ [ 'a', 'exclusive', 'two', 'b' ], [ 'b', 'exclusive', 'mine', 'a' ] ], 'acquire_all, holding something');
	$ctl->query_safe("SELECT dlock_release_all('" . ($victim == 0 ? 'a' : 'b') . "')");
	$s[ 1 - $victim ]->result;
	clean('acquire_all, holding something');
}

# ---------------------------------------------------------------------------
# Storms
# ---------------------------------------------------------------------------

# What a session was told besides its answer, but for what a look at the leases warns of:
# a process that did not get to run kept a part of them locked.
sub odd
{
	my ($answer) = @_;

	return $answer->{err} =~ s/^WARNING:  01000: \d+ of \d+ parts of the memory of leases were left out\nDETAIL:  .*\nHINT:  .*\nLOCATION:  .*(?:\n|\z)//gmr;
}

# Any names in any order: never an error, all or none, one holder at a time.
# Advisory locks tell whether two hold one name.
{
	$ctl->query_safe(<<'EOC');
CREATE FUNCTION storm(who text, seconds float8, p_wait interval, OUT got int, OUT refused int, OUT wrong text) LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + seconds * interval '1 s';
	names text[];
	tokens bigint[];
BEGIN
	got := 0;
	refused := 0;
	WHILE clock_timestamp() < until OR got < 13 LOOP
		SELECT array_agg('storm-' || i ORDER BY random()) INTO names
			FROM (SELECT i FROM generate_series(1, 10) i ORDER BY random() LIMIT 1 + random() * 4) s;
		tokens := dlock_acquire_all(names, who, '1 h', p_wait);
		IF tokens IS NULL THEN
			refused := refused + 1;
			IF EXISTS (SELECT FROM dlock_leases WHERE owner = who) THEN
				wrong := 'refused, but holds something';
				RETURN;
			END IF;
			CONTINUE;
		END IF;
		got := got + 1;
		IF (SELECT count(*) FROM unnest(names, tokens) u(n, t) WHERE dlock_check(n, t)) <> cardinality(names)
			OR array_position(tokens, NULL) IS NOT NULL THEN
			wrong := 'granted, but does not hold ' || names::text || ' by ' || tokens::text;
			RETURN;
		END IF;
		IF (SELECT bool_or(NOT pg_try_advisory_lock(hashtext(n))) FROM unnest(names) n) THEN
			wrong := 'two hold one of ' || names::text;
			RETURN;
		END IF;
		IF random() < 0.2 THEN
			PERFORM pg_sleep(0.002);
		END IF;
		PERFORM pg_advisory_unlock_all();
		IF random() < 0.5 THEN
			PERFORM dlock_release_all(who);
		ELSE
			PERFORM dlock_release_token(n, t) FROM unnest(names, tokens) u(n, t);
		END IF;
	END LOOP;
END $$;
EOC
	foreach my $wait ('NULL', "'5 ms'", "'0'")
	{
		$_->ask("SET deadlock_timeout = '20 ms'; SET synchronous_commit = off; SELECT * FROM storm('$_->{name}', 1, $wait)") foreach @s[ 0 .. 7 ];
		my ($got, $refused) = (0, 0);
		foreach my $session (@s[ 0 .. 7 ])
		{
			my $answer = $session->result;
			is(odd($answer), '', "storm, wait $wait: no error");
			my ($of_got, $of_refused, $wrong) = split /\|/, $answer->{out}, -1;
			is($wrong, '', "storm, wait $wait: all or none, and exclusive");
			$got += $of_got // 0;
			$refused += $of_refused // 0;
		}
		note "storm, wait $wait: $got granted, $refused refused";
		cmp_ok($got, '>', 100, "storm, wait $wait: granted");
		is($refused, 0, "storm, wait $wait: nobody is refused") if $wait eq 'NULL';
		cmp_ok($refused, '>', 0, "storm, wait $wait: some are refused") if $wait eq "'0'";
		clean("storm, wait $wait");
	}

	# Single locks, each session in ascending order of the names, so no deadlock,
	# with calls for several in any order among them.
	$ctl->query_safe(<<'EOC');
CREATE FUNCTION climb(who text, seconds float8) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + seconds * interval '1 s';
	n int := 0;
BEGIN
	WHILE clock_timestamp() < until OR n < 6 LOOP
		FOR i IN 1 .. 10 LOOP
			IF random() < 0.4 THEN
				PERFORM dlock_acquire('storm-' || i, who, '1 h', NULL);
			END IF;
		END LOOP;
		PERFORM dlock_release_all(who);
		n := n + 1;
	END LOOP;
	RETURN n;
END $$;
EOC
	$_->ask("SELECT climb('$_->{name}', 2)") foreach @s[ 0 .. 3 ];
	$_->ask("SELECT * FROM storm('$_->{name}', 2, NULL)") foreach @s[ 4 .. 7 ];
	my @answers = map { $_->result } @s[ 0 .. 7 ];
	is(join('', map { odd($_) } @answers), '', 'storm among holders of some: no error');
	my $rounds = 0;
	$rounds += $_->{out} || 0 foreach @answers[ 0 .. 3 ];
	cmp_ok($rounds, '>', 20, 'storm among holders of some: they go on');
	is(join('', map { (split /\|/, $_->{out}, -1)[2] // '?' } @answers[ 4 .. 7 ]), '', 'storm among holders of some: all or none');
	clean('storm among holders of some');
}

# Random orders of single locks do meet deadlocks; each is told to one, and all
# others go on.
{
	$ctl->query_safe(<<'EOC');
CREATE FUNCTION jumble(who text, seconds float8, OUT done int, OUT deadlocks int) LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + seconds * interval '1 s';
BEGIN
	done := 0;
	deadlocks := 0;
	WHILE clock_timestamp() < until OR done = 0 LOOP
		BEGIN
			PERFORM dlock_acquire('jumble-' || i, who, '1 h', NULL, mode => CASE WHEN random() < 0.5 THEN 'shared' ELSE 'exclusive' END)
				FROM (SELECT i FROM generate_series(1, 4) i ORDER BY random() LIMIT 3) s;
			done := done + 1;
		EXCEPTION WHEN deadlock_detected THEN
			deadlocks := deadlocks + 1;
		END;
		PERFORM dlock_release_all(who);
	END LOOP;
END $$;
EOC
	$_->ask("SET deadlock_timeout = '10 ms'; SELECT * FROM jumble('$_->{name}', 1.5)") foreach @s[ 0 .. 5 ];
	my ($done, $deadlocks) = (0, 0);
	foreach my $session (@s[ 0 .. 5 ])
	{
		my $answer = $session->result;
		is($answer->{err}, '', 'jumble: no other error');
		my ($of_done, $of_deadlocks) = split /\|/, $answer->{out};
		cmp_ok($of_done, '>', 0, 'jumble: it gets on');
		$done += $of_done;
		$deadlocks += $of_deadlocks;
	}
	note "jumble: $done done, $deadlocks deadlocks";
	cmp_ok($deadlocks, '>', 0, 'jumble: there were deadlocks');
	clean('jumble');
}

# On a busy machine, no later than twice what sleeping for as long takes.
my ($usual, $limit) = (percentile(90, @late), $timeout + 1);
if ($usual >= $limit)
{
	my @slept = map { my (undef, $sent, $answered) = timed_query($ctl, "SELECT pg_sleep($timeout)"); $answered - $sent } 1 .. 20;
	$limit = max($limit, 2 * percentile(90, @slept));
}
cmp_ok($usual, '<', $limit, 'owners are told within deadlock_timeout + 1 s');
$_->quit foreach @s;
$ctl->quit;
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|invalid page/, 'nothing odd in the log');
done_testing();
