# Proves: places change hands at little cost.  Whoever listens for a thousand places of one lock,
# leaves them or gives them up, visits each a few times, and few of them while others cannot
# have the lock.  dlock_waiters visits each once.  Of two that listen the later one has the turns, and the other one sleeps.
# What ends with time is noticed without the worker, but for one order of modes.  A force
# release, DROP ROLE and DROP DATABASE leave no place in the way.

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
my ($b, $c, $d, $l, $m) = open_sessions($node, $db, 5, name => 'waiter');

sub takes
{
	my ($session, $client, $wait, $keep) = @_;

	$session->ask(sprintf "SELECT name, owner, token > 0 FROM dlock_take('$client', %s, '%s')", $wait // 'NULL', $keep // '1 h');
	wait_until(sub { $ctl->query_safe("SELECT wait_event_type FROM pg_stat_activity WHERE pid = $session->{pid}") eq 'Extension' })
	  or die 'does not listen';
	settle($ctl);
	return;
}

# What a statement visits with so many places of a client on one lock, and with twice as many:
# in all, and while it has a partition locked.
sub visits
{
	my ($sql, $test_name, $mode) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @visits;

	$mode //= 'exclusive';

	holder('many', '10 h');
	foreach my $count (400, 800)
	{
		my $session = DLockSession->new($node, $db, name => 'fresh');

		$ctl->query_safe("SELECT dlock_acquire_each(array_fill('many'::text, '{$count}'), array_agg('client#' || i), '10 min', mode => '$mode', keep => '9 h') FROM generate_series(1, $count) i");
		is($ctl->query_safe("SELECT count(*) FROM dlock_waiters WHERE name = 'many'"), $count, "$test_name: $count places");
		my %cost = cost($ctl, $session, $sql);
		my %after = counts($ctl, $session);
		push @visits, $cost{requests};
		cmp_ok($cost{requests}, '<', 20 * $count, "$test_name: some visits for each of $count");
		cmp_ok($after{most_requests}, '<', 200, "$test_name: few while a partition is locked") if $sql !~ /dlock_waiters/;
		$ctl->query_safe("SELECT dlock_release_all('client')");
		is($ctl->query_safe("SELECT count(*) FROM dlock_waiters"), '0', "$test_name: given up");
		$session->quit;
	}
	note("$test_name: $visits[0] visits for 400, $visits[1] for 800");
	cmp_ok($visits[1], '<', 2.5 * $visits[0], "$test_name: twice as many places, twice as many visits");
	release('many', 'holder');
	return;
}

visits(q(SELECT * FROM dlock_take('client', '0', '1 h')), 'taken and left');
visits(q(SELECT * FROM dlock_take('client', '0', '0')), 'taken and given up');
visits(q(SELECT dlock_release_all('client')), 'given up');
visits(q(SELECT max(position) FROM dlock_waiters), 'seen');
visits(q(SELECT cardinality(blocked_by) FROM dlock_waiters), 'seen, shared', 'shared');
sound($ctl, 'many');

# A check goes through each place in the database twice, once by its client and once by its lock.
$ctl->query_safe("SET deadlock_timeout = '1 h'");
is($ctl->query_safe("SELECT count(*) FROM unnest(dlock_acquire_each('{d1,d2}', '{a,b}', '1 d')) t"), '2', 'circle: held');
$ctl->query_safe("SELECT dlock_acquire_each(array_agg('o' || i), array_fill('$_'::text, '{500}'), '1 d', keep => '1 d') FROM generate_series(1, 500) i") foreach qw(holder c);
place('d2', 'a', '1 d', '1 d');
place('d1', 'b', '1 d', '1 d');
advance(3601, $ctl);
my %before = counts($ctl, $ctl);
like($ctl->query(q(SELECT dlock_acquire('d1', 'b', '1 d', keep => '1 d'))), qr/40P01/, 'circle: found');
my %after = counts($ctl, $ctl);
cmp_ok($after{requests} - $before{requests}, '<', 1050, 'circle: each of 500 other places is visited twice');
$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(a b c holder);
sound($ctl, 'circle');

# A chain takes time linear in its length, in whatever order it was made.
foreach my $reverse (0, 1)
{
	my $n = 100;

	$ctl->query_safe("SELECT dlock_acquire('chain' || i, 'o' || i, '1 d') FROM generate_series(0, $n) i");
	place("chain$_", 'o' . ($_ - 1), '1 d', '1 d') foreach $reverse ? reverse 1 .. $n : 1 .. $n;
	advance(3601, $ctl);
	fail_at($ctl, $ctl, 'deadlock_compare', 10 * $n);
	is(place('chain2', 'o1', '1 d', '1 d'), '', 'chain: no circle');
	is(place('chain0', "o$n", '1 d', '1 d'), '', 'chain: closed');
	like($ctl->query(q(SELECT dlock_acquire('chain2', 'o1', '1 d', keep => '1 d'))), qr/^$/, 'chain: nothing was stuck just now');
	advance(3600, $ctl);
	like($ctl->query(q(SELECT dlock_acquire('chain2', 'o1', '1 d', keep => '1 d'))), qr/40P01/, 'chain: a circle');
	go_all($ctl);
	$ctl->query_safe("SELECT dlock_release_all('o' || i) FROM generate_series(0, $n) i");
	sound($ctl, 'chain');
}

# So does an owner with many places, whose client asks for all of them: there is one search for
# each owner that holds something.
holder('many', '1 d');
is($ctl->query_safe("SELECT count(*) FROM unnest(dlock_acquire_each('{one1,one2}', '{one#1,one#2}', '1 d')) t"), '2', 'owner: holds');
my @searched;
foreach my $count (100, 200)
{
	$ctl->query_safe("SELECT dlock_acquire_each(array_agg('s' || i), array_fill('holder'::text, '{$count}'), '1 d'), dlock_acquire_each(array_agg('s' || i), array_agg('one#' || i % 2 + 1), '1 d', keep => '1 d') FROM generate_series(1, $count) i");
	advance(3601, $ctl);
	my %cost = cost($ctl, $ctl, q(SELECT * FROM dlock_take('one', '0', '1 d')));
	push @searched, $cost{requests};
	cmp_ok($cost{requests}, '<', 30 * $count, "owner: some visits for each of $count places");
}
cmp_ok($searched[1], '<', 2.5 * $searched[0], 'owner: twice as many places, twice as many visits');
note("owner: $searched[0] visits for 100, $searched[1] for 200");

# Each circle that one of them is in is found, in one call, and no other place is gone.
is($ctl->query_safe(q(SELECT count(*) FROM unnest(dlock_acquire_each('{x1,x2}', '{x,x}', '1 d')) t)), '2', 'owner: another one holds');
place($_, 'one#1', '1 d', '1 d') foreach qw(x1 x2);
place('one1', 'x', '1 d', '1 d');
advance(3601, $ctl);
is($ctl->query_safe(q(SELECT name, owner, token FROM dlock_take('one', '0', '1 d') ORDER BY 1)), "x1|one#1|\nx2|one#1|", 'owner: both circles are found');
is($ctl->query_safe(q(SELECT count(*) FROM dlock_waiters WHERE owner ~ '^one#')), '200', 'owner: the other places stay');

# There is one check for all owners of a client, and each circle is found, one that the place of
# another owner leads to as well.
is($ctl->query_safe(q(SELECT count(*) FROM unnest(dlock_acquire_each('{e1,e2,e3}', '{f,f,e#2}', '1 d')) t)), '3', 'client: held');
place(@$_, '1 d', '1 d') foreach [ 'e1', 'e#1' ], [ 'e2', 'e#2' ], [ 'e3', 'f' ];
advance(3601, $ctl);
fail_at($ctl, $ctl, 'deadlock_copy', 3);	# the second time there is none
is($ctl->query_safe(q(SELECT name, owner, token FROM dlock_take('e', '0', '1 d'))), 'e2|e#2|', 'client: the circle is found');
go_all($ctl);
$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(e f);
sound($ctl, 'client');

# Each holder of a permit counts, also one beside the circle.
$ctl->query_safe("SELECT dlock_acquire('permit', '$_', '1 d', permits => 2)") foreach qw(p1 p2);
$ctl->query_safe(q(SELECT dlock_acquire('r', 'r', '1 d')));
place('r', $_, '1 d', '1 d') foreach qw(p1 p2);
place('permit', 'r', '1 d', '1 d', ', permits => 2');
advance(3601, $ctl);
like($ctl->query(q(SELECT dlock_acquire('permit', 'r', '1 d', permits => 2, keep => '1 d'))), qr/40P01/, 'owner: in a circle with a permit');
$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(p1 p2 r);

# It waits for one that stands behind another place of its own, which waits for a circle: that is none of its own.
is($ctl->query_safe(q(SELECT count(*) FROM unnest(dlock_acquire_each('{q1,q2,q3}', '{v,y,z}', '1 d')) t)), '3', 'owner: others hold');
place(@$_, '1 d', '1 d') foreach [ 'q1', 'one#1' ], [ 'q2', 'one#1' ], [ 'q2', 'v' ], [ 'q3', 'y' ], [ 'q2', 'z' ];
advance(3601, $ctl);
is($ctl->query_safe(q(SELECT name, owner, token FROM dlock_take('one', '0', '1 d'))), '', 'owner: it is in no circle');
advance(451, $ctl);	# what is left stuck is checked again after an eighth of deadlock_timeout
is($ctl->query_safe(q(SELECT name, owner, token FROM dlock_take('z', '0', '1 d'))), 'q2|z|', 'owner: another one is');
$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(one v x y z holder);
$ctl->query_safe('RESET deadlock_timeout');
sound($ctl, 'owner');

# Once something has been granted, that is answered: no other place is checked for a deadlock,
# which may be canceled.
isnt($ctl->query_safe("SELECT dlock_acquire('d1', 'a', '1 d')"), '', 'granted: a holds');
isnt($ctl->query_safe("SELECT dlock_acquire('d2', 'b', '1 d')"), '', 'granted: b holds');
holder('own', '1 d');
place('own', 'a#1', '1 d', '1 d');
place('d2', 'a', '1 d', '1 d');	# is asked for after the other one
place('d1', 'c', '1 d', '1 d');	# or a would be in no circle
release('own', 'holder');
advance(8 * 3600, $ctl);
$l->query_safe("SET deadlock_timeout = '1 h'");
stop_at($ctl, $l, 'deadlock_copy');
$l->ask(q(SELECT name, owner, token > 0 FROM dlock_take('a', '1 h', '1 d') ORDER BY 1));
wait_until(sub { $l->answered || faults_hit($ctl, 'deadlock_copy') });
cancel($l) if !$l->answered;
go($ctl, 'deadlock_copy');
is($l->answer, 'own|a#1|t', 'granted: is answered');
is(queue($ctl, 'd2'), 'a', 'granted: the other place stays');
$l->query_safe('RESET deadlock_timeout');
$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(a b c);
sound($ctl, 'granted');

# Two that listen: the later one has all turns, also of places that are made then; the
# other one sleeps, and has what is left when the later one ends.
holder("t$_", '1 h') foreach 1 .. 5;
place("t$_", "client#$_", '10 min', '1 h') foreach 1 .. 3;
takes($l, 'client');
takes($m, 'client');
place('t4', 'client#4', '10 min', '1 h');
%before = counts($ctl, $l);
release('t4', 'holder');
is($m->answer, 't4|client#4|t', 'two: a place that was made later, to the later one');
takes($m, 'client');
release('t1', 'holder');
is($m->answer, 't1|client#1|t', 'two: the next turn, too');
%after = counts($ctl, $l);
cmp_ok($after{woken} - $before{woken}, '<=', (1 + 3) + (1 + 2), 'two: the other one is woken at an end, and for what is handed on');
still_waits($ctl, 'two: the other one waits', $l);
release('t2', 'holder');
is($l->answer, 't2|client#2|t', 'two: and has what is left');
takes($l, 'client');
takes($m, 'client#3');
place('t5', 'client#3', '10 min', '1 h');
release($_, 'holder') foreach qw(t3 t5);
like($m->answer, qr/^t[35]\|client#3\|t/, 'two: who listens for one task has that');
cancel($l);
$l->answer;
$ctl->query_safe("SELECT dlock_release_all('client')");
sound($ctl, 'two');

# An end wakes the one that asks for the places from then on, and those that listen for tasks
# of the client if nobody else does; none if a later one asks for them.
my @listeners = open_sessions($node, $db, 6, name => 'listener');
my $i = 0;
takes($listeners[ $i++ ], $_) foreach split ' ', 'chain#1 chain#2 chain chain#1 chain chain';
foreach my $case ([4, ''], [5, '2 3'], [3, '2'], [2, '0 1'])
{
	my ($ends, $woken) = @$case;
	my @before = map { { counts($ctl, $_) } } @listeners;
	cancel($listeners[$ends]);
	$listeners[$ends]->answer;
	settle($ctl);
	my @after = map { { counts($ctl, $_) } } @listeners;
	is(join(' ', grep { $after[$_]{woken} > $before[$_]{woken} } 0 .. 5), $woken, "chain: number $ends ends");
}
cancel($_), $_->answer, $_->quit foreach @listeners[0, 1];
$listeners[$_]->quit foreach 2 .. 5;

# One that keeps nothing gives up no place that a later one listens for, though that has not
# come to it yet.
holder('heir', '1 h');
place('heir', 'client#1', '10 min', '1 h');
takes($l, 'client', q('1 s'), '0');
stop_at($ctl, $m, 'take_listens');
$m->ask(q(SELECT name, owner, token > 0 FROM dlock_take('client', '1 h', '1 h')));
wait_until(sub { faults_hit($ctl, 'take_listens') });
advance(2, $ctl);
is($l->answer, '', 'heir: the first one ends');
go($ctl, 'take_listens');
is(queue($ctl, 'heir'), 'client#1', 'heir: the place stays');
release('heir', 'holder');
is($m->answer, 'heir|client#1|t', 'heir: and has its turn');
sound($ctl, 'heir');

# A call that ends before it has asked for a place keeps that as long as the others; or gives
# it up, too, if it ends without an error.
sub kept
{
	return $ctl->query_safe(q(SELECT string_agg(name || ' ' || round(extract(epoch FROM kept_until - since) / 60), ' ' ORDER BY name, owner) FROM dlock_waiters));
}

foreach my $how (qw(cancel locked))
{
	holder("first$_", '5 h') foreach 1 .. 3;
	place("first$_", "client#$_", '10 min', '20 min') foreach 1 .. 3;
	place('first3', 'other', '10 min', '20 min');
	foreach my $keep ('1 h', '0')
	{
		stop_at($ctl, $l, 'take_listens');
		$l->ask("SELECT * FROM dlock_take('client', '0', '$keep')");
		is_at($ctl, 'take_listens');
		cancel($l) if $how eq 'cancel';
		$ctl->query_safe('BEGIN; LOCK TABLE _dlock.store IN ACCESS EXCLUSIVE MODE') if $how eq 'locked';
		go($ctl, 'take_listens');
		my $answer = $l->answer;
		like($answer, qr/57014/, 'first: canceled') if $how eq 'cancel';
		$ctl->query_safe('COMMIT') if $how eq 'locked';
		my $expected = 'first1 60 first2 60 first3 60 first3 20';
		$expected = 'first3 20' if $how eq 'locked' && $keep eq '0';
		is(kept(), $expected, "first: kept for $keep ($how)");
	}
	advance(3600, $ctl);
	is(kept() // '', '', "first: and no longer ($how)");
	$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(client other holder);
	sound($ctl, "first ($how)");
}

# An owner that asks beside the one that listens takes nothing from it.
holder('beside', '1 h');
place('beside', 'client#1', '10 min', '10 min');
takes($l, 'client');
is(place('beside', 'client#1', '10 min', '10 min'), '', 'beside: the owner asks');
release('beside', 'holder');
is($l->answer, 'beside|client#1|t', 'beside: who listens is woken');
release('beside', 'client#1');

# Its owner holds the lock by another call: a place that may enter the lease does, another
# one is gone, and a row tells.
foreach my $name (qw(enter deny))
{
	holder($name, '1 h');
	place($name, 'x', '10 min', '1 h', $name eq 'enter' ? ", reentry => 'return'" : '');
	release($name, 'holder');
}
advance(600, $ctl);
my $token = $ctl->query_safe("SELECT (dlock_acquire_all('{enter,deny}', 'x', '1 h'))[1]");
isnt($token, '', 'reentry: held by another call');
is($ctl->query_safe(q(SELECT name, token FROM dlock_take('x', '0', '1 h') ORDER BY name)), "deny|\nenter|$token", 'reentry: a row for each');
$ctl->query_safe("SELECT dlock_release_all('x')");
sound($ctl, 'reentry');

# A turn ends with the place, to the microsecond.
holder('cut', '1 h');
place('cut', 'p', '10 min', '30 min');
enqueue($ctl, $b, "SELECT dlock_acquire('cut', 'b', '1 h', NULL)");
advance(1500, $ctl);
release('cut', 'holder');
granted_at($ctl, $b, 300, 'cut: the turn of a place that is kept no longer');
release('cut', 'b');

# The end of a place lets in who could stand beside the holders, behind requests that may not.
# Who waits for the holder does not look at the place's time; the worker does.
foreach my $order ([qw(a p)], [qw(p a)])
{
	holder('modes', '5 h', ", mode => 'CW'");
	foreach my $what (@$order)
	{
		place('modes', 'p', '10 min', '20 min', ", mode => 'exclusive'") if $what eq 'p';
		enqueue($ctl, $d, "SELECT dlock_acquire('modes', 'a', '1 h', NULL, 'shared')") if $what eq 'a';
	}
	enqueue($ctl, $c, "SELECT dlock_acquire('modes', 'c', '1 h', NULL, 'shared')");
	enqueue($ctl, $b, "SELECT dlock_acquire('modes', 'b', '1 h', NULL, 'CR')");
	resume_worker($node);
	granted_at($ctl, $b, 1200, "modes (@$order): when the place is over");
	still_worker($node);
	still_waits($ctl, "modes (@$order): the others wait for the holder", $c, $d);
	release('modes', 'holder');
	isnt($_->answer, '', "modes (@$order): who waits for the holder") foreach $c, $d;
	release('modes', $_) foreach qw(a b c);
}

# The same when who listens for the place leaves it.
holder('modes', '5 h', ", mode => 'CW'");
enqueue($ctl, $d, "SELECT dlock_acquire('modes', 'a', '1 h', NULL, 'shared')");
place('modes', 'p', '10 min', '20 min', ", mode => 'exclusive'");
takes($l, 'p');
enqueue($ctl, $b, "SELECT dlock_acquire('modes', 'b', '1 h', NULL, 'CR')");
advance(1800, $ctl);
still_waits($ctl, 'modes: a place with a process is not over', $b);
cancel($l);
like($l->answer, qr/57014/, 'modes: it has none');
resume_worker($node);
granted_at($ctl, $b, 3600, 'modes: when the place is over that was left');
still_worker($node);
release('modes', 'holder');
isnt($d->answer, '', 'modes: who waits for the holder');
release('modes', $_) foreach qw(a b);
sound($ctl, 'modes');

# A place that is kept for less than before: who has the timer learns of it.
holder('less', '5 h', ", mode => 'shared'");
place('less', 'p', '10 min', '2 h');
enqueue($ctl, $b, "SELECT dlock_acquire('less', 'b', '1 h', NULL, 'shared')");
place('less', 'p', '10 min', '10 min');
granted_at($ctl, $b, 600, 'less: at its new end');
release('less', $_) foreach qw(b holder);

# One that is kept for longer concerns nobody, however many are in front of who has the timer.
holder('longer', '5 h');
$ctl->query_safe("SELECT dlock_acquire_each(array_fill('longer'::text, '{400}'), array_agg('c' || i), '10 min', keep => '2 h') FROM generate_series(1, 400) i");
enqueue($ctl, $b, "SELECT dlock_acquire('longer', 'b', '1 h', NULL)");
my %longer = cost($ctl, $ctl, "SELECT dlock_acquire('longer', 'c1', '10 min', keep => '3 h')");
cmp_ok($longer{requests}, '<', 20, 'longer: who asks again visits few');
cancel($b);
$b->answer;
$ctl->query_safe("SELECT dlock_release_all('c$_')") foreach 1 .. 400;
release('longer', 'holder');
sound($ctl, 'longer');

# A force release: places of absent clients are passed by, and keep their positions.
holder('force', '1 h');
place('force', 'p', '10 min', '2 h');
place('force', 'q', '10 min', '2 h');
enqueue($ctl, $b, "SELECT dlock_acquire('force', 'b', '1 h', NULL)");
is($ctl->query_safe("SELECT dlock_force_release('force', 'test')"), '1', 'force: one lease');
isnt($b->answer, '', 'force: who waits with a session has it');
is(queue($ctl, 'force'), 'p q', 'force: the places stay');
is(place('force', 'q', '10 min', '2 h'), '', 'force: one is asked for');
release('force', 'b');
is($ctl->query_safe("SELECT dlock_acquire('force', 'new', '1 h')"), '', 'force: and has the next turn');
is($ctl->query_safe("SELECT dlock_force_release('force', 'test')"), '0', 'force: no lease');
isnt($ctl->query_safe("SELECT dlock_acquire('force', 'new', '1 h')"), '', 'force: a turn is over');
takes($l, 'q');
is($ctl->query_safe("SELECT dlock_force_release('force', 'test')"), '1', 'force: again');
is($l->answer, 'force|q|t', 'force: who listens has its turn');
$ctl->query_safe("SELECT dlock_release_all('$_')") foreach qw(p q);
sound($ctl, 'force');

# A role is dropped: its places go, in all databases, and nobody waits for them; not if the
# drop is rolled back.
$node->safe_psql('postgres', 'CREATE DATABASE second');
$node->safe_psql('second', 'CREATE EXTENSION dlock');
$ctl->query_safe('CREATE ROLE gone LOGIN');
my $gone = DLockSession->new($node, $db, name => 'gone', user => 'gone');
my $second = DLockSession->new($node, 'second', name => 'second');
holder('role', '1 h');
$second->query_safe("SELECT dlock_acquire('role', 'holder', '1 h')");
is($gone->query_safe("SELECT dlock_acquire('role', 'p', '10 min', keep => '2 h')"), '', 'role: a place');
$second->query_safe("SET ROLE gone; SELECT dlock_acquire('role', 'p', '10 min', keep => '2 h'); RESET ROLE");
enqueue($ctl, $b, "SELECT dlock_acquire('role', 'b', '1 h', NULL)");
$ctl->query_safe('BEGIN; SAVEPOINT s; DROP ROLE gone; ROLLBACK TO s; COMMIT');
is(queue($ctl, 'role'), 'p b', 'role: the drop is rolled back');
$gone->quit;
$ctl->query_safe('DROP ROLE gone');
is(queue($ctl, 'role'), 'b', 'role: the place is gone');
is($second->query_safe("SELECT count(*) FROM dlock_waiters"), '0', 'role: in another database, too');
release('role', 'holder');
isnt($b->answer, '', 'role: who is behind has its turn');
is($second->query_safe("SELECT dlock_release('role', 'holder')"), 't', 'role: released there');
release('role', 'b');
sound($ctl, 'role');

# A database is dropped with places in it: their memory is free.
my $used = $ctl->query_safe('SELECT memory_used FROM dlock_stats');
$second->query_safe("SELECT dlock_acquire_each(array_fill('role'::text, '{200}'), array_agg('c' || i), '10 min', keep => '2 h') FROM generate_series(1, 200) i");
cmp_ok($ctl->query_safe('SELECT memory_used FROM dlock_stats'), '>=', $used + 200 * 232, 'database: places take memory');
$second->quit;
$node->safe_psql('postgres', 'DROP DATABASE second');
ok(wait_until(sub { $ctl->query_safe('SELECT memory_used FROM dlock_stats') <= $used }), 'database: and no more');
sound($ctl, 'database');

$_->quit foreach $b, $c, $d, $l, $m, $ctl;
$node->stop;
done_testing();
