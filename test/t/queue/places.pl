# Proves, to the microsecond: a place that nobody attends to has its turn for its ttl, or for
# as long as it is kept, and then those behind it go on; it keeps its position until its time
# is over; who listens is woken once, at the turn of any of its places, also of later ones;
# whoever has the timer, and leaves, hands it on; and a crowd of places costs a hand-off
# nothing.  A circle of owners that wait, by calls or by places, is found.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockQueue qw(:DEFAULT asks_by place holder release cancel);
use DLockSession;
use DLockTest;
use Test::More;

my $node = start_fault_node('main', conf => "deadlock_timeout = 10h\n");
still_worker($node);
my $db = 'postgres';
my $ctl = DLockSession->new($node, $db, name => 'control');
asks_by($ctl);
my ($b, $c, $l, $m) = open_sessions($node, $db, 4, name => 'waiter');

sub queue_now
{
	my ($name, $expected, $test_name) = @_;

	return is(queue($ctl, $name), $expected, "$name: $test_name");
}

sub takes
{
	my ($session, $client, $wait) = @_;

	$session->ask("SELECT name, owner, token > 0 FROM dlock_take('$client', $wait, '1 h')");
	wait_until(sub { $ctl->query_safe("SELECT wait_event_type FROM pg_stat_activity WHERE pid = $session->{pid}") eq 'Extension' })
	  or die 'does not listen';
	settle($ctl);
	return;
}

# The turn after a release: for its ttl, then those behind go on; the position stays.
holder('turn', '1 h');
is(place('turn', 'p', '10 min', '2 h'), '', 'turn: a place');
enqueue($ctl, $b, "SELECT dlock_acquire('turn', 'b', '1 h', NULL)");
enqueue($ctl, $c, "SELECT dlock_acquire('turn', 'c', '1 h', NULL)");
queue_now('turn', 'p b c', 'in order');
release('turn', 'holder');
still_waits($ctl, 'turn: it has the turn, and nobody goes ahead', $b, $c);
granted_at($ctl, $b, 600, 'turn: the next one after the ttl of the place');
still_waits($ctl, 'turn: only that one', $c);
is(place('turn', 'p', '10 min', '2 h'), '', 'turn: it has missed its turn');
queue_now('turn', 'p c', 'it has its position');
release('turn', 'b');
still_waits($ctl, 'turn: it has the turn again', $c);
isnt(place('turn', 'p', '10 min', '2 h'), '', 'turn: and takes it');
release('turn', 'p');
isnt($c->answer, '', 'turn: the last one');
release('turn', 'c');
sound($ctl, 'turn');

# Kept for less than its ttl; and given up during its turn.
holder('short', '1 h');
place('short', 'p', '10 min', '5 min');
place('short', 'q', '10 min', '1 h');
enqueue($ctl, $b, "SELECT dlock_acquire('short', 'b', '1 h', NULL)");
advance(100, $ctl);
release('short', 'holder');
advance(200 - 0.000001, $ctl);
queue_now('short', 'p q b', 'kept to the end');
advance(0.000001, $ctl);
queue_now('short', 'q b', 'and not longer');
is($ctl->query_safe("SELECT dlock_acquire('short', 'other', '1 h')"), '', 'short: the next place has the turn');
isnt(place('short', 'q', '10 min', '0'), '', 'short: and takes it');
release('short', 'q');
isnt($b->answer, '', 'short: then who waits');
place('short', 'p', '10 min', '5 min');
enqueue($ctl, $c, "SELECT dlock_acquire('short', 'c', '1 h', NULL)");
release('short', 'b');
still_waits($ctl, 'short: a place has the turn', $c);
$ctl->query_safe("SELECT dlock_release_all('p')");
isnt($c->answer, '', 'short: is given up in its turn, and the next one goes on');
place('short', 'p', '10 min', '5 min');
enqueue($ctl, $b, "SELECT dlock_acquire('short', 'b', '1 h', NULL)");
release('short', 'c');
granted_at($ctl, $b, 300, 'short: who is right behind has it when the place is over');
release('short', 'b');
sound($ctl, 'short');

# The turn after an expiry, which somebody behind a place notices.
holder('expiry', '1 h');
place('expiry', 'p', '10 min', '3 h');
place('expiry', 'q', '20 min', '3 h');
enqueue($ctl, $b, "SELECT dlock_acquire('expiry', 'b', '1 h', NULL)");
advance(3600, $ctl);
advance(600, $ctl);
granted_at($ctl, $b, 1200, 'expiry: after the lease and the turns of two places');
place('expiry', 'p', '10 min', '3 h');
enqueue($ctl, $c, "SELECT dlock_acquire('expiry', 'c', '1 h', NULL)");
advance(3600, $ctl);
isnt(place('expiry', 'p', '10 min', '3 h'), '', 'expiry: a place takes its turn');
release('expiry', 'p');
isnt($c->answer, '', 'expiry: a place that has missed its turn is passed by');
release('expiry', 'c');
$ctl->query_safe("SELECT dlock_release_all('q')");
sound($ctl, 'expiry');

# Nobody waits: the first that is refused begins the turn.
holder('late', '1 h');
place('late', 'p', '10 min', '5 h');
advance(3600 + 600, $ctl);
is($ctl->query_safe("SELECT dlock_acquire('late', 'new', '1 h')"), '', 'late: it is the turn of a place');
advance(600 - 0.000001, $ctl);
is($ctl->query_safe("SELECT dlock_acquire('late', 'new', '1 h')"), '', 'late: still');
enqueue($ctl, $b, "SELECT dlock_acquire('late', 'new', '1 h', NULL)");
advance(0.000001, $ctl);
isnt($b->answer, '', 'late: no longer');
release('late', 'new');
sound($ctl, 'late');

# What a place alone keeps out: who could share with the holders.
holder('shared', '5 h', ", mode => 'shared'");
place('shared', 'p', '10 min', '20 min');
place('shared', 'q', '10 min', '30 min');
enqueue($ctl, $b, "SELECT dlock_acquire('shared', 'b', '1 h', NULL, 'shared')");
enqueue($ctl, $c, "SELECT dlock_acquire('shared', 'c', '1 h', NULL, 'shared')");
granted_at($ctl, $b, 1800, 'shared: when the last place is over');
isnt($c->answer, '', 'shared: and the next one');
release('shared', $_) foreach qw(holder b c);
sound($ctl, 'shared');

# A call that waits at the place of its owner, and leaves it.
holder('again', '5 h');
place('again', 'p', '10 min', '1 h');
place('again', 'q', '10 min', '1 h');
enqueue($ctl, $b, "SELECT dlock_acquire('again', 'p', '10 min', '2 h', keep => '1 h')");
queue_now('again', 'p q', 'the same position');
advance(7200 - 0.000001, $ctl);
still_waits($ctl, 'again: kept while the call waits', $b);
queue_now('again', 'p', 'the other one is over');
advance(0.000001, $ctl);
is($b->answer, '', 'again: its time is up');
place('again', 'q', '10 min', '1 h');
queue_now('again', 'p q', 'kept after the call; the other one is at the end');
enqueue($ctl, $b, "SELECT dlock_acquire('again', 'p', '10 min', '1 h', keep => '1 h')");
is(place('again', 'p', '10 min', '1 h'), '', 'again: asked for in a second session');
enqueue($ctl, $c, "SELECT dlock_acquire('again', 'p', '10 min', NULL, keep => '1 h')");
advance(3600, $ctl);
is($b->answer, '', 'again: the first one ends');
cancel($c);
like($c->answer, qr/57014/, 'again: the second one is cancelled');
queue_now('again', 'p', 'and takes only its own place with it');
sound($ctl, 'again');
release('again', 'holder');
isnt(place('again', 'p', '10 min', '1 h'), '', 'again: the one that is left');
release('again', 'p');

# A call with a place in front of that of its owner: what is left is kept for the longer time.
holder('longer', '10 h');
enqueue($ctl, $b, "SELECT dlock_acquire('longer', 'p', '10 min', '1 h', keep => '1 min')");
is(place('longer', 'p', '10 min', '5 h'), '', 'longer: a place behind the call');
advance(3600, $ctl);
is($b->answer, '', 'longer: the call ends');
advance(3600, $ctl);
queue_now('longer', 'p', 'its place lasts as long as the other one');
sound($ctl, 'longer');
release('longer', 'holder');
isnt(place('longer', 'p', '10 min', '1 h'), '', 'longer: it has its turn');
release('longer', 'p');

# A listener is woken at the turn of one of its places: after a release, an expiry, and for
# a place that is made later; and the others stay.
holder("l$_", '1 h') foreach 1 .. 4;
place("l$_", "client#$_", '10 min', '1 min') foreach 1 .. 3;
takes($l, 'client', 'NULL');
enqueue($ctl, $b, "SELECT dlock_acquire('l1', 'b', '1 h', NULL)");
advance(600, $ctl);
still_waits($ctl, 'listener: places are kept while somebody listens', $l, $b);
my %before = counts($ctl, $l);
release('l2', 'holder');
my %after = counts($ctl, $l);
is($after{woken} - $before{woken}, 1, 'listener: woken once');
is($l->answer, 'l2|client#2|t', 'listener: a turn is taken');
queue_now('l1', 'client#1 b', 'the position');
takes($l, 'client', 'NULL');
advance(3000, $ctl);
is($l->answer, "l1|client#1|t\nl3|client#3|t", 'listener: the ends of two leases');
still_waits($ctl, 'listener: who is behind waits', $b);
takes($l, 'client', 'NULL');
holder('l4', '1 h');
place('l4', 'client#4', '10 min', '1 min');
release('l4', 'holder');
is($l->answer, 'l4|client#4|t', 'listener: a place that was made later');
holder('l5', '1 h');
takes($l, 'client', 'NULL');
place('l5', 'client#5', '10 min', '1 min');
granted_at($ctl, $l, 3600, 'listener: the end of a lease that a later place waits for');
$ctl->query_safe("SELECT dlock_release_all('client')");
isnt($b->answer, '', 'listener: who is behind');
release('l1', 'b');
sound($ctl, 'listener');

# Whose time is up, who is cancelled and who ends leaves the places, and the timer.
foreach my $how (qw(time cancel end))
{
	holder('timer', '1 h');
	place('timer', 'client#1', '10 min', '2 h');
	takes($l, 'client', $how eq 'time' ? q('10 min') : 'NULL');
	enqueue($ctl, $b, "SELECT dlock_acquire('timer', 'b', '1 h', NULL)");
	advance(600, $ctl);
	if ($how eq 'time')
	{
		is($l->answer, '', 'timer: time is up');
	}
	elsif ($how eq 'cancel')
	{
		cancel($l);
		like($l->answer, qr/57014/, 'timer: cancelled');
	}
	else
	{
		$l->kill_client;
		$l->wait_backend_gone;
	}
	queue_now('timer', 'client#1 b', "left to itself ($how)");
	is($ctl->query_safe("SELECT count(*) FROM dlock_waiters WHERE owner = 'client#1' AND pid IS NULL AND kept_until > since + interval '1 h'"),
		'1', "timer: kept ($how)");
	advance(3000, $ctl);
	granted_at($ctl, $b, 600, "timer: who is behind has it ($how)");
	release('timer', 'b');
	$ctl->query_safe("SELECT dlock_release_all('client')");
	sound($ctl, "timer ($how)");
}
$l = DLockSession->new($node, $db, name => 'listener');

# Two that listen: one that leaves hands the places on to the other.
holder('two', '1 h');
place('two', 'client#1', '10 min', '2 h');
takes($l, 'client', 'NULL');
takes($m, 'client', q('10 min'));
advance(600, $ctl);
is($m->answer, '', 'two: one leaves');
still_waits($ctl, 'two: the other one waits', $l);
granted_at($ctl, $l, 3000, 'two: and has the timer');
release('two', 'client#1');
holder('two', '1 h');
place('two', 'client#1', '10 min', '2 h');
takes($l, 'client', 'NULL');
takes($m, 'client', 'NULL');
release('two', 'holder');
wait_any(20, $l, $m);
is($ctl->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'two' AND owner = 'client#1'"), '1', 'two: one is granted it');
foreach my $session ($l, $m)
{
	cancel($session) if !$session->answered;
	$session->answer;
}
$ctl->query_safe("SELECT dlock_release_all('client')");
sound($ctl, 'two');

# Deadlocks: a blocked call finds a circle through a place, a call that asks again one of
# places alone, once its place is there for deadlock_timeout; and a place in front counts.
$_->query_safe("SET deadlock_timeout = '1 h'") foreach $ctl, $b, $c, $l;
sub hold_two
{
	is($ctl->query_safe("SELECT count(*) FROM unnest(dlock_acquire_each('{d1,d2,d3}', '{a#1,b#1,c#1}', '1 d')) t"), '3', 'deadlock: held');
	return;
}
hold_two();
place('d2', 'a#1', '1 d', '1 d');
enqueue($ctl, $b, "SELECT dlock_acquire('d1', 'b#1', '1 h', NULL, keep => '1 h')");
advance(3600, $ctl);
like($b->answer, qr/40P01/, 'deadlock: a blocked call');
like($b->{stderr}, qr/Owner "b#1" waits for exclusive on lock "d1"; blocked by owner "a#1"/, 'deadlock: what it waits for');
queue_now('d1', '', 'it has left the queue');
queue_now('d2', 'a#1', 'the place stays');
place('d1', 'b#1', '1 d', '1 d');
advance(3599.999999, $ctl);
is(place('d1', 'b#1', '1 d', '1 d'), '', 'deadlock: a place that is new');
advance(0.000001, $ctl);
like($ctl->query(q(SELECT dlock_acquire('d1', 'b#1', '1 d', keep => '1 d'))), qr/40P01/, 'deadlock: of two places');
queue_now('d1', '', 'the place is gone');
is(place('d2', 'a#1', '1 d', '1 d'), '', 'deadlock: the other one stays');
place('d1', 'b#1', '1 d', '1 d');
advance(3600, $ctl);
is($ctl->query_safe(q(SELECT * FROM dlock_take('b', '1 h', '1 d'))), 'd1|b#1|', 'deadlock: a row of dlock_take');
is(place('d3', 'b#1', '1 d', '1 d'), '', 'deadlock: a chain is no circle');
enqueue($ctl, $b, "SELECT dlock_acquire('d2', 'c#1', '1 h', NULL)");
advance(36000, $ctl);
like($b->answer, qr/40P01/, 'deadlock: of a place, a blocked call and its lease');
$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(a b c);
is($ctl->query_safe("SELECT dlock_acquire('d2', 'c', '1 d', mode => 'shared') > 0 AND dlock_acquire('d1', 'a', '1 d') > 0"), 't', 'deadlock: shared');
place('d2', 'b', '1 h', '1 d');
enqueue($ctl, $b, "SELECT dlock_acquire('d1', 'c', '1 h', NULL)");
enqueue($ctl, $c, "SELECT dlock_acquire('d2', 'a', '1 h', NULL, mode => 'shared')");
advance(8 * 3600, $ctl);
settle($ctl);
wait_any(20, $b, $c);
is(($b->answered ? 1 : 0) + ($c->answered ? 1 : 0), 1, 'deadlock: a place in front is in the circle');
$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(a b c);
$_->answer foreach $b, $c;
$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(a b c);
sound($ctl, 'deadlock');
$_->query_safe('RESET deadlock_timeout') foreach $ctl, $b, $c, $l;

# A crowd of places that nobody attends to costs a hand-off, a refusal and a call nothing.
holder('crowd', '10 h');
my %cost = cost($ctl, $ctl, "SELECT dlock_acquire('crowd', 'one', '10 min', keep => '20 h')");
$ctl->query_safe("SELECT dlock_acquire_each(array_fill('crowd'::text, '{1000}'), array_agg('client' || i), '10 min', keep => '20 h') FROM generate_series(1, 1000) i");
%cost = cost($ctl, $ctl, "SELECT dlock_acquire('crowd', 'refused', '10 min')");
cmp_ok($cost{requests}, '<', 10, 'crowd: a refusal');
%cost = cost($ctl, $ctl, "SELECT dlock_acquire('crowd', 'last', '10 min', keep => '20 h')");
cmp_ok($cost{requests}, '<', 20, 'crowd: one more');
%cost = cost($ctl, $ctl, "SELECT dlock_release('crowd', 'holder')");
cmp_ok($cost{requests}, '<', 10, 'crowd: a release');
%cost = cost($ctl, $ctl, "SELECT dlock_acquire('crowd', 'one', '10 min', keep => '20 h')");
cmp_ok($cost{requests}, '<', 20, 'crowd: a turn');
%cost = cost($ctl, $ctl, "SELECT dlock_acquire('crowd', 'client777', '10 min', keep => '20 h')");
cmp_ok($cost{requests}, '<', 20, 'crowd: who asks again');
is($ctl->query_safe("SELECT max(position) || ' ' || count(DISTINCT position) FROM dlock_waiters WHERE name = 'crowd'"),
	'1001 1001', 'crowd: all are there');

# Over, all of them at once: they go when the lock is used, or with the worker.
advance(80000, $ctl);
is($ctl->query_safe("SELECT count(*) FROM dlock_waiters"), '0', 'crowd: over');
isnt($ctl->query_safe("SELECT dlock_acquire('crowd', 'new', '10 min')"), '', 'crowd: the lock is free');
release('crowd', 'new');
sound($ctl, 'crowd');

# The worker begins the turn of a place that nobody attends to, also while another holder goes on.
holder('permit', '1 h', ', permits => 2');
isnt($ctl->query_safe("SELECT dlock_acquire('permit', 'other', '10 h', permits => 2)"), '', 'permit: another holder');
place('permit', 'p', '10 min', '5 h', ', permits => 2');
resume_worker($node);
advance(3600, $ctl);
still_worker($node);
advance(600, $ctl);
isnt($ctl->query_safe("SELECT dlock_acquire('permit', 'new', '10 min', permits => 2)"), '', 'permit: its turn had begun as the lease ended');
release('permit', $_) foreach qw(new other);
sound($ctl, 'permit');

# Both permits end.  The place in front has a turn for one; who is behind it, by a call or by a
# place for which it listens, takes the other at once.
foreach my $listens (0, 1)
{
	my $label = $listens ? 'permits, by a place' : 'permits, by a call';
	my $ask = sub { "SELECT dlock_acquire('permits', '$_[0]', '10 s', $_[1] permits => 2)" };

	isnt($ctl->query_safe($ask->($_, '')), '', "$label: $_ holds one") foreach qw(first second);
	is($ctl->query_safe($ask->('front', "keep => '1 h',")), '', "$label: a place in front");
	$ctl->query_safe($ask->('client', "keep => '1 h',")) if $listens;
	takes($l, 'client', 'NULL') if $listens;
	enqueue($ctl, $l, $ask->('client', 'NULL,')) if !$listens;
	advance(10, $ctl);
	like($l->answer, $listens ? qr/\|t$/ : qr/^\d+$/, "$label: granted beside the turn");
	$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(client front);
	sound($ctl, $label);
}

# The extension is dropped: who listens is told, and no place is left.
holder('drop', '1 h');
place('drop', 'client#1', '10 min', '20 h');
place('drop', 'other', '10 min', '20 h');
takes($l, 'client', 'NULL');
$ctl->query_safe('DROP EXTENSION dlock');
advance(0.01, $ctl);	# woken before the store is unlocked, it tries again
like($l->answer, qr/55000/, 'drop: who listens is told');
$ctl->query_safe('CREATE EXTENSION dlock');
is($ctl->query_safe('SELECT count(*) FROM dlock_waiters'), '0', 'drop: no place is left');
isnt(place('drop', 'new', '10 min', '1 h'), '', 'drop: the lock is free');
is($ctl->query_safe("SELECT dlock_release_all('new')"), '1', 'drop: and released');
sound($ctl, 'drop');

$_->quit foreach $b, $c, $l, $m, $ctl;
$node->stop;
done_testing();
