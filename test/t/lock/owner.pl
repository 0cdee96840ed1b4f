# Proves: a waiter is its role's, too.  What another role acquires under the same
# name of an owner ends no wait, keeps nobody from waiting and closes no ring; what
# is bound to a session is stuck when the session waits, for whatever role.  An owner
# that waits twice for a lock holds one lease in the end.  The grant wakes its other
# request, and nobody else's.  The clock stands still: only a wake-up tells a session.

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

my $timeout = 60;
my $node = start_fault_node('main', conf => "deadlock_timeout = ${timeout}s\n");
still_worker($node);
my $db = 'postgres';
my $ctl = DLockSession->new($node, $db, name => 'control');

$ctl->query_safe('CREATE ROLE app; CREATE ROLE guest; GRANT ALL ON SCHEMA public TO app, guest');
my @app = open_sessions($node, $db, 3, name => 'app', setup => 'SET ROLE app');
my @guest = open_sessions($node, $db, 2, name => 'guest', setup => 'SET ROLE guest');

sub acquire
{
	my ($name, $owner, %params) = @_;
	my $wait = $params{wait} // 'NULL';
	my $mode = $params{mode} // 'exclusive';

	return "SELECT dlock_acquire('$name', '$owner', '1 h', $wait, '$mode')";
}

sub release_all
{
	my ($session, $owner) = @_;

	return $session->query_safe("SELECT dlock_release_all('$owner')");
}

# The server has settled: these sessions wait no longer, so their answers are on their way.
sub answered_of
{
	my @sessions = @_;
	my $pids = join ', ', map { $_->pid } @sessions;
	my %waits = map { $_ => 1 } split /\n/, $ctl->query_safe("SELECT pid FROM dlock_waiters WHERE pid IN ($pids)");

	return grep { !$waits{ $_->pid } } @sessions;
}

# The answer of a session that has been woken.
sub told
{
	my ($session) = @_;

	settle($ctl);
	die "$session->{name} is not woken" if !answered_of($session);
	return $session->result;
}

# How often these sessions have been woken.
sub woken
{
	return map { my %count = counts($ctl, $_); $count{woken} } @_;
}

# A lease that another role acquires beside the one that is waited for.
{
	$ctl->query_safe(acquire('one', 'holder', mode => 'CR'));
	enqueue($ctl, $app[0], acquire('one', 'w'));
	isnt($guest[0]->query_safe(acquire('one', 'w', mode => 'NL', wait => "'0'")), '', 'one: a guest of the name of a waiter gets a lease');
	release_all($guest[0], 'w');
	isnt($guest[0]->query_safe(acquire('one', 'w', mode => 'NL', wait => "'0'")), '', 'one: and again');
	still_waits($ctl, 'one: the waiter waits on', $app[0]);
	enqueue($ctl, $guest[1], acquire('one', 'holder', mode => 'PW'));
	is($ctl->query_safe("SELECT string_agg(role || ' ' || owner, ', ' ORDER BY position) FROM dlock_waiters WHERE name = 'one'"),
		'app w, guest holder', 'one: the queue has both');
	is($ctl->query_safe("SELECT blocked_by FROM dlock_waiters WHERE name = 'one' AND role = 'guest'::regrole"),
		'{w}', 'one: the guest is blocked by the waiter');
	release_all($ctl, 'holder');
	isnt($app[0]->result->{out}, '', 'one: the waiter gets the lock when the holder lets go');
	release_all($app[0], 'w');
	isnt($guest[1]->result->{out}, '', 'one: and then the guest');
	is($ctl->query_safe("SELECT string_agg(role || ' ' || owner, ', ' ORDER BY token) FROM dlock_leases WHERE name = 'one'"),
		'guest w, guest holder', 'one: who holds it');
	release_all($guest[0], $_) foreach 'w', 'holder';
	queues_are_empty($ctl, 'one');
}

# Several locks at once.
{
	$ctl->query_safe(acquire('b', 'holder', mode => 'CR'));
	enqueue($ctl, $app[0], "SELECT dlock_acquire_all('{a,b}', 'w', '1 h', NULL)");
	$guest[0]->query_safe(acquire('b', 'w', mode => 'NL', wait => "'0'"));
	still_waits($ctl, 'several: the waiter waits on', $app[0]);
	release_all($ctl, 'holder');
	like($app[0]->result->{out}, qr/^\{\d+,\d+\}$/, 'several: it gets both');
	release_all($app[0], 'w');
	release_all($guest[0], 'w');
}

# A conversion waits for its owner, whoever of the role's members asks for it.
{
	my $token = $app[0]->query_safe(acquire('convert', 'w', mode => 'shared'));
	$guest[0]->query_safe(acquire('convert', 'v', mode => 'shared'));
	my $member = DLockSession->new($node, $db, name => 'member');
	enqueue($ctl, $member, "SELECT dlock_convert('convert', $token, 'exclusive', NULL)");
	still_waits($ctl, 'convert: it waits', $member);
	is($ctl->query_safe("SELECT role || ' ' || owner FROM dlock_waiters WHERE name = 'convert'"), 'app w', 'convert: for its owner');
	release_all($guest[0], 'v');
	isnt($member->result->{out}, '', 'convert: done');
	release_all($app[0], 'w');
	$member->quit;
}

# A ring of names is none.
{
	$guest[0]->query_safe(acquire('left', 'w'));
	$app[0]->query_safe(acquire('right', 'v'));
	enqueue($ctl, $app[1], acquire('right', 'w'));
	enqueue($ctl, $app[2], acquire('left', 'v'));
	advance($timeout, $ctl);
	still_waits($ctl, 'ring of names: nobody is told', @app[ 1, 2 ]);
	release_all($guest[0], 'w');
	isnt($app[2]->result->{out}, '', 'ring of names: they go on');
	release_all($app[0], 'v');
	isnt($app[1]->result->{out}, '', 'ring of names: both of them');
	release_all($app[0], $_) foreach 'w', 'v';
}

# A ring of owners is one, be it of one name.
{
	$guest[0]->query_safe(acquire('left', 'w'));
	$app[0]->query_safe(acquire('right', 'w'));
	enqueue($ctl, $guest[1], acquire('right', 'w'));
	enqueue($ctl, $app[1], acquire('left', 'w'));
	advance($timeout, $ctl);
	my ($told) = answered_of($guest[1], $app[1]);
	is($told->result->{state}, '40P01', 'ring of owners: one is told');
	release_all($_, 'w') foreach $guest[0], $app[0];
	my ($other) = grep { $_->{pending} } $guest[1], $app[1];
	isnt($other->result->{out}, '', 'ring of owners: the other goes on');
	release_all($_, 'w') foreach $guest[0], $app[0];
}

# A session that waits for what is bound to itself, for another role.
{
	my $session = DLockSession->new($node, $db, name => 'both');

	$session->query_safe("SELECT dlock_acquire('bound', bind => 'session'); SET ROLE app");
	enqueue($ctl, $session, "SELECT dlock_acquire('bound', wait => NULL)");
	advance($timeout, $ctl);
	is($session->result->{state}, '40P01', 'bound: the session waits for itself');
	$session->query_safe("BEGIN; SELECT dlock_acquire('bound-2', bind => 'transaction'); SET LOCAL ROLE guest");
	enqueue($ctl, $session, "SELECT dlock_acquire('bound-2', wait => NULL)");
	advance($timeout, $ctl);
	is($session->result->{state}, '40P01', 'bound: likewise its transaction');
	$session->query_safe('ROLLBACK');
	$session->quit;
}

# From here on no time passes, so no session looks for a deadlock by itself.
my @s = open_sessions($node, $db, 22, name => 's');

# An owner that waits more than once holds one lease.  Each case: a lock in the way,
# and what two sessions of the owner ask for.
foreach my $case (
	[ 'exclusive', 'same', map { "dlock_acquire('same', 'twin', '1 h', NULL)" } 1 .. 2 ],
	[ 'shared', 'same', map { "dlock_acquire('same', 'twin', '1 h', NULL, mode => 'shared')" } 1 .. 2 ],
	[ 'NL', 'same', "dlock_acquire('same', 'twin', '1 h', NULL, mode => 'CR')", "dlock_acquire('same', 'twin', '1 h', NULL, mode => 'PR')" ],
	[ 'permits', 'same', map { "dlock_acquire('same', 'twin', '1 h', NULL, permits => 5)" } 1 .. 2 ],
	[ 'several', 'same', map { "dlock_acquire_all('{same, $_}', 'twin', '1 h', NULL, 'shared')" } 'other', 'another' ],
	[ 'several and one', 'same', "dlock_acquire_all('{other, same}', 'twin', '1 h', NULL, 'shared')", "dlock_acquire('same', 'twin', '1 h', NULL, mode => 'shared')" ],
	[ 'several after one', 'same', "dlock_acquire('same', 'twin', '1 h', NULL)", "dlock_acquire_all('{other, same}', 'twin', '1 h', NULL)" ],
	[ 'several paths', 'same', "dlock_acquire_path('same/below', 'twin', '1 h', NULL)", "dlock_acquire('same', 'twin', '1 h', NULL)" ],
	[ 'several, path last', 'same', "dlock_acquire('same', 'twin', '1 h', NULL)", "dlock_acquire_path('same/below', 'twin', '1 h', NULL)" ],
	[ 'a path', 'same', map { "dlock_acquire_path('same/below', 'twin', '1 h', NULL, 'shared')" } 1 .. 2 ])
{
	my ($what, $name, @asked) = @$case;
	my $params = $what eq 'permits' ? ', permits => 5' : '';

	foreach my $reentry ('deny', 'return', 'count')
	{
		next if $reentry ne 'deny' && $what =~ /^(?:several|NL)/;
		my $label = "waiting twice, $what, $reentry";
		my $n = $params ? 5 : 1;
		my ($first, $second) = map { $reentry eq 'deny' ? $_ : s/\)$/, reentry => '$reentry')/r } @asked;

		$ctl->query_safe("SELECT dlock_acquire('$name', 'holder$_', '1 h'$params)") foreach 1 .. $n;
		enqueue($ctl, $s[0], "SELECT $first");
		enqueue($ctl, $s[1], "SELECT $second");
		$ctl->query_safe("SELECT dlock_release('$name', 'holder$_')") foreach 1 .. $n;

		# One that asks for several may be served after those that ask for one.
		my ($granted, $answer) = sort { $a->{state} cmp $b->{state} } map { told($_) } @s[ 0, 1 ];
		like($granted->{out}, qr/^\{?\d+/, "$label: one gets it") or diag($granted->{err});
		if ($reentry eq 'deny')
		{
			is($answer->{state}, '40P01', "$label: the other is told") or diag("'$answer->{out}' $answer->{err}");
		}
		else
		{
			is($answer->{out}, $granted->{out}, "$label: the other has the same token");
		}
		is( $ctl->query_safe("SELECT count(DISTINCT token), max(holds) FROM dlock_leases WHERE name IN ('$name', '$name/below') AND owner = 'twin'"),
			$reentry eq 'count' ? '1|2' : '1|1',
			"$label: one lease");
		queues_are_empty($ctl, "$label: nobody waits");
		$ctl->query_safe("SELECT dlock_force_release(name, 'test') FROM dlock_leases");
	}
}

# Lets go what these sessions wait for, and what they got.
sub let_go
{
	my @waiting = @_;

	while (@waiting)
	{
		$ctl->query_safe("SELECT dlock_force_release(name, 'test') FROM dlock_leases");
		settle($ctl);
		my @answered = answered_of(@waiting) or die 'nobody is granted a lock';
		$_->result foreach @answered;
		@waiting = grep { $_->{pending} } @waiting;
	}
	$ctl->query_safe("SELECT dlock_force_release(name, 'test') FROM dlock_leases");
	queues_are_empty($ctl, 'nobody waits');
	return;
}

# A newcomer of the owner, granted beside the holder.  20 others wait for the same lock,
# and the owner waits for another lock, too: they sleep on.
{
	my ($waiter, $elsewhere, @others) = @s;

	$ctl->query_safe(acquire('beside', 'holder', mode => 'CR'));
	$ctl->query_safe(acquire('elsewhere', 'holder'));
	enqueue($ctl, $others[$_], acquire('beside', "other$_")) foreach 0 .. $#others;
	enqueue($ctl, $elsewhere, acquire('elsewhere', 'twin'));
	foreach my $state ('40P01', '55000')
	{
		my $reentry = $state eq '55000' ? ", reentry => 'return'" : '';

		enqueue($ctl, $waiter, "SELECT dlock_acquire('beside', 'twin', '1 h', NULL$reentry)");
		settle($ctl);
		my @before = woken($elsewhere, @others);
		$ctl->query_safe(acquire('beside', 'twin', mode => 'NL', wait => "'0'"));
		is(told($waiter)->{state}, $state, "beside, $state: the waiter is told");
		is_deeply([ woken($elsewhere, @others) ], \@before, "beside, $state: the others sleep on, and the owner for another lock");
		$ctl->query_safe("SELECT dlock_release('beside', 'twin')");
	}
	let_go($elsewhere, @others);
}

# Paths of an owner wait, behind another owner; what it gets above them by a conversion is
# in their way.
{
	my ($other, @waiters) = @s[ 0 .. 4 ];

	$ctl->query_safe(acquire("tree/$_", 'holder')) foreach 0 .. 3;
	$ctl->query_safe(acquire('tree', 'holder', mode => 'CR'));
	my $token = $ctl->query_safe(acquire('tree', 'twin', mode => 'NL'));
	enqueue($ctl, $other, acquire('tree', 'other'));
	enqueue($ctl, $waiters[$_], "SELECT dlock_acquire_path('tree/$_', 'twin', '1 h', NULL)") foreach 0 .. 3;
	isnt($ctl->query_safe("SELECT dlock_convert('tree', $token, 'PW')"), '', 'paths: the owner gets what is above them');
	is(told($_)->{state}, '40P01', "paths: $_->{name} is told") foreach @waiters;
	still_waits($ctl, 'paths: the other owner waits on', $other);
	let_go($other);
}

$_->quit foreach @app, @guest, @s;
$ctl->quit;
$node->stop;
log_is_clean($node);
done_testing();
