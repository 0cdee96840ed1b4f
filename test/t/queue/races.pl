# Proves: each race that src/README speaks of comes out as it says there, in the order of
# events that is the worst for it: processes are stopped at fault points while others act.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockFence;
use DLockQueue;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_fault_node('main',
	conf => "deadlock_timeout = 500h\ndlock.max_memory = 1MB\nwal_writer_delay = 10s\nrestart_after_crash = on");
still_worker($node);
my $db = 'postgres';
my ($ctl, $a, $b, $c);

sub waits_for_lwlock
{
	my ($session, $what) = @_;

	ok(wait_until(sub { $ctl->query_safe("SELECT wait_event_type FROM pg_stat_activity WHERE pid = $session->{pid}") eq 'LWLock' }), $what);
	return;
}

sub connect_all
{
	$ctl = DLockSession->new($node, $db, name => 'control');
	($a, $b, $c) = map { DLockSession->new($node, $db, name => $_) } qw(a b c);
	return;
}
connect_all();

sub acquire
{
	my ($name, $owner, %params) = @_;
	my $wait = exists $params{wait} ? defined $params{wait} ? "'$params{wait}'" : 'NULL' : "'0'";
	my $ttl = $params{ttl} // '1 h';
	my $mode = $params{mode} // 'exclusive';

	return "SELECT dlock_acquire('$name', '$owner', '$ttl', wait => $wait, mode => '$mode')";
}

sub holders
{
	my ($name) = @_;
	return $ctl->query_safe("SELECT coalesce(string_agg(owner, ' ' ORDER BY owner), '') FROM dlock_leases WHERE name = '$name'");
}

# End what a race has left, and see that nothing is half made.
sub done
{
	my ($label) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	go_all($ctl);
	queues_are_empty($ctl, "$label: nobody waits");
	sound($ctl, $label);
	$ctl->query_safe("SELECT dlock_force_release(name, 'test') FROM dlock_leases");
	return;
}

# Let an owner have a lock; returns its token.
sub hold
{
	my ($name, $owner) = @_;
	return $ctl->query_safe(acquire($name, $owner // 'holder'));
}

# Test that a process that waits is granted its lock.  The clock stands still, so that it
# hangs if nobody wakes it.
sub granted
{
	my ($session, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	like($session->answer, qr/^(?:\d+|\{\d+,\d+\})$/, $test_name);
	return;
}

# ---- exclusion and tokens ----

# Two ask for a free lock at a time: one of them has it.  That is the one in the middle of its
# grant; one that has only locked the partition may find that it lacks a page.
foreach my $point (qw(step_locked grant wal_insert wal_inserted step_done))
{
	stop_at($ctl, $a, $point);
	$a->ask(acquire('x', 'a'));
	is_at($ctl, $point);
	$b->ask(acquire('x', 'b'));
	waits_for_lwlock($b, "two at a time, $point: the other waits");
	go($ctl, $point);
	my ($first, $second) = ($a->answer, $b->answer);
	($first, $second) = ($second, $first) if $point =~ /^(?:step_locked|grant)$/ && $first eq '';
	like(my $token = $first, qr/^\d+$/, "two at a time, $point: one is granted");
	is($second, '', "two at a time, $point: the other is refused");
	is($ctl->query_safe("SELECT dlock_release_token('x', $token)"), 't', "two at a time, $point: released");
	cmp_ok($ctl->query_safe(acquire('x', 'c')), '>', $token, "two at a time, $point: the next token is larger");
	done("two at a time, $point");
}

# Two find that there are no tokens: the second waits for the reservation of the first, and
# makes none.
{
	$ctl->query_safe('DROP EXTENSION dlock; CREATE EXTENSION dlock');
	stop_at($ctl, $a, 'token_reserve');
	$a->ask(acquire('x', 'a'));
	is_at($ctl, 'token_reserve');
	$b->ask(acquire('y', 'b'));
	ok(wait_blocked($ctl, $b), 'no tokens: the second waits, where it can be canceled');
	go($ctl, 'token_reserve');
	my ($first, $second) = map { $_->answer } $a, $b;
	cmp_ok(abs($first - $second), '<', 1000, 'no tokens: one reservation is enough');
	isnt($first, $second, 'no tokens: they get different ones');
	done('no tokens');
}

# Others see a lease before it is flushed; that is a refusal and no more.  If it ends by
# force then, the next grant is answered before, with the larger token.
{
	stop_at($ctl, $a, 'flush');
	$a->ask(acquire('x', 'a'));
	is_at($ctl, 'flush');
	is($b->query(acquire('x', 'b')), '', 'unflushed: refused');
	is($ctl->query_safe("SELECT dlock_force_release('x', 'test')"), 1, 'unflushed: ended by force');
	my $next = $b->query_safe(acquire('x', 'b'));
	go($ctl, 'flush');
	cmp_ok($a->answer, '<', $next, 'unflushed: the lost lease has the smaller token');
	is(holders('x'), 'b', 'unflushed: one holder');
	done('unflushed');
}

# The lock is given up between the answer to the first and its flush: tokens of one lock
# ascend in the order of grants all the same, and shared requests take theirs in any order.
{
	stop_at($ctl, $a, 'granted');
	$a->ask(acquire('s', 'a', mode => 'shared'));
	is_at($ctl, 'granted');
	my $second = $b->query_safe(acquire('s', 'b', mode => 'shared'));
	is($c->query(acquire('s', 'c')), '', 'shared: a writer is refused');
	go($ctl, 'granted');
	my $first = $a->answer;
	$ctl->query_safe("SELECT dlock_release('s', 'a'), dlock_release('s', 'b')");
	my $writer = $c->query_safe(acquire('s', 'c'));
	ok($first < $second && $second < $writer, 'shared: the writer has the largest token');
	done('shared');
}

# Two need a new page at a time, and for the same part of the store, which their process ids
# tell: the second waits, and takes a slot of the page of the first.
{
	my $fill = q{SELECT count(dlock_acquire('%1$s' || i, '%1$s', '1 h', payload => to_jsonb(repeat('x', 900)))) FROM generate_series(1, 100) i};
	my ($first, $second);

	for (my $tries = 0; !$first && $tries < 100; $tries++)
	{
		$second->quit if $second;
		$second = DLockSession->new($node, $db, name => 'second');
		($first) = grep { $_->pid % 16 == $second->pid % 16 } $a, $b, $c;
	}
	$first //= $a;
	stop_at($ctl, $first, 'extend');
	$first->ask(sprintf $fill, 'first');
	is_at($ctl, 'extend');
	stop_at($ctl, $first, 'granted');
	$second->ask(sprintf $fill, 'second');
	ok(wait_until(sub { $ctl->query_safe("SELECT count(*) FROM pg_locks WHERE locktype = 'extend' AND NOT granted") == 1 }), 'a new page: the second waits');
	go($ctl, 'extend');
	is_at($ctl, 'granted');
	is($second->answer, 100, 'a new page: the second goes on');
	go($ctl, 'granted');
	is($first->answer, 100, 'a new page: and the first');
	is($ctl->query_safe('SELECT count(*) FROM dlock_leases'), 200, 'a new page: each lease is there');
	$second->quit;
	done('a new page');
}

# ---- dead leases, and what is undone ----

# Two find the same dead path in their way, and wait for its partitions: one ends it, and
# the other finds it gone.
{
	$ctl->query_safe("SELECT dlock_acquire_path('p/q', 'holder', '1 min')");
	advance(60, $ctl);
	stop_at($ctl, $b, 'step_locked');
	$b->ask(acquire('p/q', 'b'));
	is_at($ctl, 'step_locked');
	$a->ask(acquire('p', 'a'));
	waits_for_lwlock($a, 'a dead path: one waits for the other');
	go($ctl, 'step_locked');
	like($b->answer, qr/^\d+$/, 'a dead path: the first is granted');
	like($a->answer, qr/^\d+$/, 'a dead path: so is the second');
	is(holders('p/q') . holders('p'), 'ba', 'a dead path: it is gone');
	done('a dead path');
}

# Dead paths that another path takes the place of, with locks of theirs alone.
{
	$ctl->query_safe("SELECT dlock_acquire_path('p/q', 'holder', '1 min'), dlock_acquire_path('p/r/s', 'holder', '1 min')");
	advance(60, $ctl);
	like($a->query("SELECT dlock_acquire_path('p/r/s/t', 'a', '1 h')"), qr/^\d+$/, 'dead paths: another in their place');
	is($ctl->query_safe("SELECT string_agg(name || ' ' || owner, ', ' ORDER BY name) FROM dlock_leases"),
		'p a, p/r a, p/r/s a, p/r/s/t a', 'dead paths: they are gone');
	done('dead paths');
}

# An upgrade is undone in memory alone, and the lease is renewed before the worker writes it.
{
	my $token = $a->query_safe(acquire('x', 'a', mode => 'shared', ttl => '10 min'));
	stop_at($ctl, $a, 'flush');
	$a->ask("SELECT dlock_convert('x', $token, 'exclusive')");
	is_at($ctl, 'flush');
	$ctl->query_safe("SELECT pg_cancel_backend($a->{pid})");
	go($ctl, 'flush');
	is($a->answer, 'ERROR 57014', 'an undone upgrade: cancelled');
	is($a->query_safe("SELECT dlock_renew('x', 'a', '1 h')"), 't', 'an undone upgrade: renewed');
	is($ctl->query_safe("SELECT mode FROM dlock_leases WHERE name = 'x'"), 'shared', 'an undone upgrade: as before');
	done('an undone upgrade');
}

# ---- no wake-up is lost ----

# The holder releases after a request has entered the queue; when an interrupt is pending
# then, whose processing resets the latch; when the process, woken by SIGHUP, has asked; and when
# it is about to sleep.  The process must have nothing but its latch to wake it.  A backend
# reports its statistics up to ten seconds after a statement, by a timer whose signal also
# sets the latch, and comes though the timer is not needed any more.  So it waits in the first
# statement of its session.
foreach my $case (qw(enqueued interrupted in_vain nap))
{
	my $interrupted = $case eq 'interrupted';
	my $options = '-c deadlock_timeout=10min' . ($interrupted ? ' -c client_connection_check_interval=100ms' : '');
	my $first = DLockSession->new($node, $db, name => 'first', options => $options, untouched => 1);
	my $point = $interrupted ? 'enqueued' : $case;
	hold('x');
	stop_at($ctl, 0, $point);
	$first->ask(acquire('x', 'a', wait => undef));
	if ($point eq 'in_vain')
	{
		my $asleep = "SELECT pid FROM pg_stat_activity WHERE application_name = 'first' AND wait_event_type = 'Extension'";
		wait_until(sub { $first->{pid} = $ctl->query_safe($asleep) }) or die 'it does not sleep';
		kill 'HUP', $first->{pid};
	}
	$first->{pid} = is_at($ctl, $point);
	if ($interrupted)
	{
		# By then the check of the connection is due.  Released, the process must not go to sleep.
		$ctl->query_safe('SELECT pg_sleep(0.5)');
		stop_at($ctl, $first, 'nap');
	}
	is(queue($ctl, 'x'), 'a', "release at $case: it is in the queue");
	is($ctl->query_safe("SELECT dlock_release('x', 'holder')"), 't', "release at $case: released");
	is($b->query(acquire('x', 'b')), '', "release at $case: nobody barges in");
	go($ctl, $point);
	granted($first, "release at $case: granted");
	is(holders('x'), 'a', "release at $case: one holder");
	$first->quit;
	done("release at $case");
}

# The time of a call is over before its process could sleep; it has been called meanwhile.
{
	hold('x');
	stop_at($ctl, $a, 'enqueued');
	$a->ask(acquire('x', 'a', wait => '1 min'));
	is_at($ctl, 'enqueued');
	$ctl->query_safe("SELECT dlock_release('x', 'holder')");
	advance(60, $ctl);
	go($ctl, 'enqueued');
	granted($a, 'called in time: granted');
	done('called in time');
}

# The releaser has called the request and has not woken its process.
{
	hold('x');
	enqueue($ctl, $a, acquire('x', 'a', wait => undef));
	stop_at($ctl, $b, 'wake');
	$b->ask("SELECT dlock_release('x', 'holder')");
	is_at($ctl, 'wake');
	is($c->query(acquire('x', 'c')), '', 'called, not woken: nobody barges in');
	is(holders('x'), '', 'called, not woken: nobody holds the lock');
	go($ctl, 'wake');
	granted($a, 'called, not woken: granted');
	is($b->answer, 't', 'called, not woken: released');
	done('called, not woken');
}

# It is called in vain, and a change comes before it has cleared the mark.
{
	$ctl->query_safe(acquire('x', 'h1') . ';' . acquire('y', 'h2'));
	enqueue($ctl, $a, "SELECT dlock_acquire_all('{x, y}', 'a', '1 h', NULL)");
	stop_at($ctl, $a, 'ask_again');
	$ctl->query_safe("SELECT dlock_release('x', 'h1')");
	is_at($ctl, 'ask_again');
	stop_at($ctl, $a, 'nap');
	$ctl->query_safe("SELECT dlock_force_release('x', 'test')");
	go($ctl, 'ask_again');
	is_at($ctl, 'nap');
	is($b->query(acquire('x', 'b')), '', 'in vain: nobody barges in');
	$ctl->query_safe("SELECT dlock_release('y', 'h2')");
	go($ctl, 'nap');
	granted($a, 'in vain: granted both');
	done('in vain');
}

# The first of several that wait leaves at the moment when it is called.
{
	hold('x');
	stop_at($ctl, $a, 'give_up');
	enqueue($ctl, $a, acquire('x', 'a', wait => '1 min'));
	enqueue($ctl, $b, acquire('x', 'b', wait => undef));
	advance(60, $ctl);
	is_at($ctl, 'give_up');
	$ctl->query_safe("SELECT dlock_release('x', 'holder')");
	is(holders('x'), '', 'gives up: the lock is free');
	go($ctl, 'give_up');
	is($a->answer, '', 'gives up: it has no lease');
	granted($b, 'gives up: the next is granted');
	done('gives up');
}

# ---- an end in between ----

# A process that is called is cancelled, or terminated: before it asks; with its lease made
# and not flushed; flushed and not answered; while it leaves.
foreach my $way (qw(cancel terminate))
{
	foreach my $point (qw(ask_again step_locked grant wal_inserted step_done granted flush flushed))
	{
		my $label = "$way at $point";
		my $late = DLockSession->new($node, $db, name => 'late');
		hold('x');
		enqueue($ctl, $late, acquire('x', 'late', wait => undef));
		enqueue($ctl, $b, acquire('x', 'b', wait => undef));
		stop_at($ctl, $late, $point);
		$ctl->query_safe("SELECT dlock_release('x', 'holder')");
		is_at($ctl, $point);
		$ctl->query_safe("SELECT pg_${way}_backend($late->{pid})");
		go($ctl, $point);
		is($late->answer, $way eq 'cancel' ? 'ERROR 57014' : 'FATAL 57P01', "$label: it fails");
		granted($b, "$label: the next gets the lock");
		is(holders('x'), 'b', "$label: alone");
		$late->quit;
		$late->wait_backend_gone;
		done($label);
	}
}

# What is undone is called for by a newcomer, between the error and the clean-up.
foreach my $point (qw(undo abandon))
{
	hold('x') if $point eq 'abandon';
	stop_at($ctl, $a, $point eq 'undo' ? 'granted' : 'nap', 1);
	$a->ask(acquire('x', 'a', wait => undef));
	is_at($ctl, $point eq 'undo' ? 'granted' : 'nap');
	stop_at($ctl, $a, $point);
	$ctl->query_safe("SELECT pg_cancel_backend($a->{pid})");
	go($ctl, $point eq 'undo' ? 'granted' : 'nap');
	is_at($ctl, $point);
	is($b->query(acquire('x', 'b')), '', "$point: in the way still");
	enqueue($ctl, $b, acquire('x', 'b', wait => undef));
	$ctl->query_safe("SELECT dlock_release('x', 'holder')") if $point eq 'abandon';
	go($ctl, $point);
	is($a->answer, 'ERROR 57014', "$point: cancelled");
	granted($b, "$point: then granted to the next");
	done($point);
}

# ---- a process that is late ----
{
	hold('x');
	enqueue($ctl, $a, acquire('x', 'a', wait => undef, ttl => '10 min'));
	enqueue($ctl, $b, acquire('x', 'b', wait => undef));
	stop_at($ctl, $a, 'ask_again');
	$ctl->query_safe("SELECT dlock_release('x', 'holder')");
	is_at($ctl, 'ask_again');
	like(my $token = granted_at($ctl, $b, 600, 'late'), qr/^\d+$/, 'late: the next passes it by after a ttl');
	go($ctl, 'ask_again');
	queue_is($ctl, 'x', 'a', 'late: it waits again');
	$ctl->query_safe("SELECT dlock_release('x', 'b')");
	cmp_ok($a->answer, '>', $token, 'late: then it is granted');
	done('late');
}

# ---- time ----

# A renewal that has waited for the lock of the partition beyond the deadline comes too
# late, and one that has read the clock before is in time.
foreach my $case ([ 'step_locked', 'f', 'b' ], [ 'step_done', 't', 'a' ])
{
	my ($point, $renewed, $holder) = @$case;

	$a->query_safe(acquire('x', 'a'));
	stop_at($ctl, $a, $point);
	$a->ask("SELECT dlock_renew('x', 'a', '2 h')");
	is_at($ctl, $point);
	advance(3600, $ctl);
	$b->ask(acquire('x', 'b'));
	waits_for_lwlock($b, "renewal at the deadline, $point: another one waits");
	go($ctl, $point);
	is($a->answer, $renewed, "renewal at the deadline, $point: in time or not");
	$b->answer;
	is(holders('x'), $holder, "renewal at the deadline, $point: one holder");
	done("renewal at the deadline, $point");
}

# A lease is ended by force in memory, and not on its page: nobody sees it any more, and it
# does not come back.
{
	hold('x', 'a');
	stop_at($ctl, $b, 'forced');
	$b->ask("SELECT dlock_force_release('x', 'test')");
	is_at($ctl, 'forced');
	is(holders('x'), '', 'by force: it is over');
	like($c->query(acquire('x', 'c')), qr/^\d+$/, 'by force: the next is granted');
	go($ctl, 'forced');
	is($b->answer, 1, 'by force: one lease');
	is(holders('x'), 'c', 'by force: the next one is not touched');
	done('by force');
}

# ---- deadlocks ----

# While a member of a circle begins to check, another one is the victim: it is the only one.  And
# a circle that is gone by then, by a grant, has none.
foreach my $gone (0, 1)
{
	my $label = $gone ? 'a circle that is gone' : 'two that check';

	$a->query_safe("SET deadlock_timeout = '1 min'");
	$b->query_safe("SET deadlock_timeout = '2 min'");
	hold('x', 'a');
	hold('y', 'b');
	stop_at($ctl, $a, 'deadlock_copy');
	enqueue($ctl, $b, acquire('x', 'b', wait => undef));
	enqueue($ctl, $a, acquire('y', 'a', wait => undef));
	advance(60, $ctl);
	is_at($ctl, 'deadlock_copy');
	advance(60, $ctl) if !$gone;
	is($b->answer, 'ERROR 40P01', "$label: the victim") if !$gone;
	$ctl->query_safe("SELECT dlock_release('y', 'b')") if $gone;
	go($ctl, 'deadlock_copy');
	still_waits($ctl, "$label: the other one waits on", $a) if !$gone;
	$ctl->query_safe("SELECT dlock_release_all('b')");
	like($a->answer, qr/^\d+$/, "$label: and is granted");
	$ctl->query_safe("SELECT dlock_release('x', 'a')");
	like($b->answer, qr/^\d+$/, "$label: and so is the first") if $gone;
	$_->query_safe('RESET deadlock_timeout') foreach $a, $b;
	done($label);
}

# A check that fails halfway leaves nothing locked, be it for a call that waits or for a place.
foreach my $keep (0, 1)
{
	my $label = $keep ? 'a check for a place fails' : 'a check fails';

	$a->query_safe("SET deadlock_timeout = '1 min'");
	hold('x', 'a');
	hold('y', 'b');
	enqueue($ctl, $b, acquire('x', 'b', wait => undef));
	my $asks = "SELECT dlock_acquire('y', 'a', '1 h', keep => '1 h')";
	is($a->query_safe($asks), '', "$label: a place") if $keep;
	enqueue($ctl, $a, acquire('y', 'a', wait => undef)) if !$keep;
	fail_at($ctl, $a, 'deadlock_compare');
	advance(60, $ctl);
	$a->ask($asks) if $keep;
	is($a->answer, 'ERROR 58030', $label);
	is($ctl->query_safe('SELECT inconsistencies(100)'), '', "$label: all partitions can be locked");
	$ctl->query_safe("SELECT dlock_release_all('a')");
	like($b->answer, qr/^\d+$/, "$label: the other one is granted");
	$a->query_safe('RESET deadlock_timeout');
	done($label);
}

# A crowd waits by requests for many locks, and one for which all of it waits comes behind
# it.  All of the crowd moves in one check, in its order, in time linear in its requests, be it
# that they share two locks or all.
foreach my $shared (2, 30)
{
	my ($crowd, $names) = (20, 30);
	my @units = open_sessions($node, $db, $crowd, name => 'unit');

	hold('hot', 'a');
	foreach my $i (1 .. $crowd)
	{
		enqueue($ctl, $units[ $i - 1 ],
			"SELECT cardinality(dlock_acquire_all(ARRAY['hot', 'hot2'] || ARRAY(SELECT CASE WHEN n > $shared THEN '$i-' ELSE '' END || n FROM generate_series(3, $names) n), 'u$i', '1 h', NULL))");
	}
	fail_at($ctl, $a, 'deadlock_copy', 2);
	fail_at($ctl, $a, 'deadlock_compare', 10 * $crowd * $names);
	$a->query_safe("SET deadlock_timeout = '1 min'");
	enqueue($ctl, $a, acquire('hot2', 'a', wait => undef));
	advance(60, $ctl);
	like($a->answer, qr/^\d+$/, 'a crowd in front: it lets one pass');
	$a->query_safe("RESET deadlock_timeout");
	foreach my $name (qw(hot hot2))
	{
		is(queue($ctl, $name), join(' ', map { "u$_" } 1 .. $crowd), "a crowd in front: in order for $name");
	}
	go_all($ctl);
	$ctl->query_safe("SELECT dlock_release_all('a')");
	foreach my $i (1 .. $crowd)
	{
		is($units[ $i - 1 ]->answer, $names, "a crowd in front: $i gets all");
		$ctl->query_safe("SELECT dlock_release_all('u$i')");
		$units[ $i - 1 ]->quit;
	}
	done('a crowd in front');
}

# ---- the extension goes, or is rewritten ----
{
	hold('x');
	enqueue($ctl, $a, acquire('x', 'a', wait => undef));
	stop_at($ctl, $a, 'ask_again');
	$ctl->query_safe("SELECT dlock_release('x', 'holder')");
	is_at($ctl, 'ask_again');
	$ctl->query_safe('VACUUM FULL _dlock.store');
	go($ctl, 'ask_again');
	like($a->answer, qr/^\d+$/, 'rewritten: granted');
	done('rewritten');

	hold('x');
	enqueue($ctl, $a, acquire('x', 'a', wait => undef));
	stop_at($ctl, $a, 'ask_again');
	$ctl->query_safe("SELECT dlock_release('x', 'holder')");
	is_at($ctl, 'ask_again');
	$ctl->query_safe('DROP EXTENSION dlock; CREATE EXTENSION dlock');
	like($b->query(acquire('x', 'b')), qr/^\d+$/, 'dropped: a lock of the new extension');
	go($ctl, 'ask_again');
	is($a->answer, 'ERROR 55000', 'dropped: the old request is refused');
	done('dropped');

	# Or just before a deadlock check.
	hold('x', 'b');
	hold('y', 'a');
	$a->query_safe("SET deadlock_timeout = '1 min'");
	enqueue($ctl, $b, acquire('y', 'b', wait => undef));
	stop_at($ctl, $a, 'deadlock_copy');
	enqueue($ctl, $a, acquire('x', 'a', wait => undef));
	advance(60, $ctl);
	is_at($ctl, 'deadlock_copy');
	$ctl->query_safe('DROP EXTENSION dlock; CREATE EXTENSION dlock');
	go($ctl, 'deadlock_copy');
	is($_->answer, 'ERROR 55000', 'dropped before a deadlock check: no victim') foreach $a, $b;
	$a->query_safe('RESET deadlock_timeout');
	done('dropped before a deadlock check');

	# The extension is dropped while a process that has not remembered its relations yet
	# looks them up: it must not look for that store ever after.
	my $new = DLockSession->new($node, $db, name => 'new');
	stop_at($ctl, $new, 'relation_found');
	$new->ask(acquire('x', 'new'));
	is_at($ctl, 'relation_found');
	$ctl->query_safe('DROP EXTENSION dlock');
	go($ctl, 'relation_found');
	is($new->answer, 'ERROR 55000', 'dropped while it is looked up: no extension');
	$ctl->query_safe('CREATE EXTENSION dlock');
	like($new->query(acquire('x', 'new')), qr/^\d+$/, 'dropped while it is looked up: the new one is found');
	$new->quit;

	# The same, and another one is created in the same transaction: it is never absent.
	$new = DLockSession->new($node, $db, name => 'again');
	stop_at($ctl, $new, 'relation_found');
	$new->ask(acquire('x', 'new'));
	is_at($ctl, 'relation_found');
	$ctl->query_safe('DROP EXTENSION dlock; CREATE EXTENSION dlock');
	go($ctl, 'relation_found');
	like($new->answer, qr/^\d+$/, 'dropped and created while it is looked up: the new one is found');
	$new->quit;
	done('dropped while it is looked up');
}

# ---- tokens are reserved ----

# The process that reserves a block ends before it has published it, or fails: the next
# reserves again, and no token comes twice.
foreach my $point (qw(token_reserve token_reserved))
{
	my $before = hold('before');
	my $ends = DLockSession->new($node, $db, name => 'ends');
	my $more = "SELECT max(t) FROM (SELECT dlock_acquire('t' || i, 'many', '1 h') AS t, dlock_release('t' || i, 'many') FROM generate_series(1, 70000) i) x";
	fail_at($ctl, $ends, $point);
	is($ends->query($more), 'ERROR 58030', "$point: fails");
	cmp_ok(my $after = $b->query_safe(acquire('after', 'b')), '>', $before, "$point: tokens ascend");
	$ends->quit;
	done($point);
}

# ---- fencing ----
{
	my $old = $ctl->query_safe(acquire('f', 'old'));
	$ctl->query_safe("SELECT dlock_release('f', 'old')");
	my $new = $ctl->query_safe(acquire('f', 'new'));

	# One with an old token is about to pass, and one with a newer token is first.
	foreach my $case ([ 'fence', 'f1' ], [ 'fence_raise', 'f2' ])
	{
		my ($point, $resource) = @$case;
		stop_at($ctl, $a, $point);
		$a->ask("BEGIN; SELECT dlock_fence('$resource', $old)");
		is_at($ctl, $point);
		$b->query_safe("BEGIN; SELECT dlock_fence('$resource', $new)");
		go($ctl, $point);
		ok(wait_blocked($ctl, $a), "fence at $point: the old one waits");
		$b->query_safe('COMMIT');
		is($a->answer, 'ERROR LK001', "fence at $point: and is refused");
		$a->query_safe('ROLLBACK');
	}

	# One with an old token has its lock, and has not written the mark.
	stop_at($ctl, $a, 'fence_write');
	$a->ask("BEGIN; SELECT dlock_fence('f3', $old)");
	is_at($ctl, 'fence_write');
	$b->ask("BEGIN; SELECT dlock_fence('f3', $new)");
	ok(wait_blocked($ctl, $b), 'fence at fence_write: the new one waits');
	go($ctl, 'fence_write');
	is($a->answer, '', 'fence at fence_write: the old one passes');
	ok(wait_blocked($ctl, $b), 'fence at fence_write: the new one waits for its end');
	$a->query_safe('COMMIT');
	is($b->answer, '', 'fence at fence_write: then it passes');
	$b->query_safe('COMMIT');
	is($a->query("SELECT dlock_fence('f3', $old)"), 'ERROR LK001', 'fence at fence_write: the old one no more');
	done('fence');
}

# ---- the worker ----

# A lease that is granted while the worker walks, with an earlier deadline than it knows of,
# is erased in time.
resume_worker($node);
settle($ctl);
{
	stop_at($ctl, 0, 'worker_swept');
	$ctl->query_safe(acquire('erase', 'a', ttl => '10 ms'));
	advance(0.01, $ctl);
	is_at($ctl, 'worker_swept');
	$ctl->query_safe(acquire('erase2', 'a', ttl => '10 ms'));
	go($ctl, 'worker_swept');
	settle($ctl);
	advance(0.01, $ctl);
	is($ctl->query_safe('SELECT leases FROM dlock_stats'), 0, 'granted in a sweep: erased at its deadline');
	done('granted in a sweep');
}

# It is about to erase a lease that is renewed.
{
	stop_at($ctl, 0, 'worker_erase');
	$a->query_safe(acquire('x', 'a', ttl => '20 ms'));
	$ctl->query_safe(acquire('x2', 'a', ttl => '10 ms'));
	advance(0.019999, $ctl);
	is_at($ctl, 'worker_erase');
	is($a->query("SELECT dlock_renew('x', 'a', '1 h')"), 't', 'a renewal before the worker');
	advance(0.000001, $ctl);
	go($ctl, 'worker_erase');
	settle($ctl);
	is($ctl->query_safe("SELECT leases FROM dlock_stats"), 1, 'a renewal before the worker: the other is erased');
	is(holders('x'), 'a', 'a renewal before the worker: it is held');
	done('a renewal before the worker');
}

# The extension comes back before the worker has purged the leases of the one that was
# dropped, and has leases of its own.
{
	$a->query_safe(acquire('old', 'a'));
	stop_at($ctl, 0, 'worker_purge');
	$ctl->query_safe('DROP EXTENSION dlock');
	is_at($ctl, 'worker_purge');
	$ctl->query_safe('CREATE EXTENSION dlock');
	$a->query_safe(acquire('new', 'a'));
	go($ctl, 'worker_purge');
	$ctl->query_safe(acquire('last', 'a', ttl => '10 ms'));
	advance(0.01, $ctl);
	is($ctl->query_safe('SELECT leases FROM dlock_stats'), 1, 'back again: leases are erased');
	is(holders('old') . '|' . holders('new'), '|a', 'back again: the new lease is held, and the old one is not');
	done('back again');
}

# And not at all, elsewhere.
{
	$node->safe_psql($db, 'CREATE DATABASE gone');
	$node->safe_psql('gone', "CREATE EXTENSION dlock; SELECT count(dlock_acquire('n' || i, 'a', '1 h')) FROM generate_series(1, 100) i");
	isnt($ctl->query_safe('SELECT inconsistencies(100)'), '', 'gone: leases that are not of this database are told of');
	$node->safe_psql('gone', 'DROP EXTENSION dlock');
	ok(wait_until(sub { $ctl->query_safe('SELECT inconsistencies(100)') eq '' }), 'gone: the memory of a dropped extension is free');
	$node->safe_psql($db, 'DROP DATABASE gone');
	done('gone');
}

# ---- crashes ----

# From here on time passes by itself.
run_clock();

# A process that is killed does not count what it has executed (test/proof/builds/coverage).
$_->quit foreach $ctl, $a, $b, $c;
connect_all();

# A worker that fails as it forgets a dropped database does that once it is back.
{
	$node->safe_psql($db, 'CREATE DATABASE gone');
	$node->safe_psql('gone', "CREATE EXTENSION dlock; SELECT dlock_acquire('x', 'a', '1 h')");
	fail_at($ctl, 0, 'worker_purge');
	$node->safe_psql($db, 'DROP DATABASE gone');
	is_at($ctl, 'worker_purge');
	go($ctl, 'worker_purge');
	ok(wait_until(sub { $ctl->query_safe('SELECT inconsistencies(100)') eq '' }), 'a worker that fails forgets a dropped database later');
	done('dropped');
	resume_worker($node);
}

# A process is killed in the middle of a grant, and with it the server: of the lease there
# is all or nothing, a lease that was answered before is there, and tokens ascend.
foreach my $point (qw(grant wal_insert wal_inserted step_done granted flush flushed wake))
{
	my $kept = $ctl->query_safe(acquire("kept $point", 'kept'));
	if ($point eq 'wake')
	{
		hold('x');
		enqueue($ctl, $b, acquire('x', 'b', wait => undef));
	}
	stop_at($ctl, $a, $point);
	$a->ask($point eq 'wake' ? "SELECT dlock_release('x', 'holder')" : acquire('x', 'a'));
	is_at($ctl, $point);
	crash_node($node);
	$_->quit foreach $ctl, $a, $b, $c;
	$node->start;
	connect_all();
	like(holders('x'), $point eq 'flushed' ? qr/^a$/ : $point eq 'wake' ? qr/^(holder)?$/ : qr/^a?$/, "crash at $point: all or nothing");
	is(holders("kept $point"), 'kept', "crash at $point: what was answered is there");
	cmp_ok($ctl->query_safe(acquire('y', 'y')), '>', $kept, "crash at $point: tokens ascend");
	sound($ctl, "crash at $point");
	$ctl->query_safe("SELECT dlock_force_release(name, 'test') FROM dlock_leases WHERE name NOT LIKE 'kept%'");
}

my $loaded = "SELECT count(*) FROM dlock_leases WHERE name LIKE 'load%'";

# The first use after a crash is stopped, and ends, before all is loaded: others wait for it,
# and load all.
$ctl->query_safe("SELECT count(dlock_acquire('load' || i, 'load', '1 h', payload => to_jsonb(repeat('x', 900)))) FROM generate_series(1, 20) i");
foreach my $case (
	[ 'goes on', 'load_page', 20 ],
	[ 'goes on', 'load_ready', 20 ],
	[ 'fails', 'load_page', 'ERROR 58030' ],
	[ 'is terminated', 'load_page', 'FATAL 57P01' ],
	[ 'is terminated', 'load_ready', 'FATAL 57P01' ])
{
	my ($what, $point, $answer) = @$case;
	my $label = "load, $what at $point";

	$node->safe_psql($db, 'ALTER SYSTEM SET dlock_test.worker = off');
	crash_node($node);
	$_->quit foreach $ctl, $a, $b, $c;
	$node->start;
	connect_all();
	stop_at($ctl, $a, $point, $point eq 'load_page' ? 2 : 1);
	$a->ask($loaded);
	is_at($ctl, $point);
	$b->ask($loaded);
	ok(wait_blocked($ctl, $b), "$label: others wait");
	fail_at($ctl, $a, 'ReadBufferExtended') if $what eq 'fails';
	$ctl->query_safe("SELECT pg_terminate_backend($a->{pid})") if $what eq 'is terminated';
	go($ctl, $point);
	is($a->answer, $answer, "$label: the first");
	is($b->answer, 20, "$label: all are there");
	go_all($ctl);
	sound($ctl, $label);
}

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|invalid page/, 'nothing odd in the log');
done_testing();
