# Proves, to the microsecond: a request that is called keeps the lock for its process until
# the lease that it would get would end, and no longer; a process that comes too late waits
# again and never has a lease that is over; one that is cancelled or terminated
# meanwhile passes the lock on at once; and nobody else is let in.

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

# Nothing else calls anybody: no worker, and no search for deadlocks.
my $node = start_fault_node('main', conf => "deadlock_timeout = 10h\n");
still_worker($node);
my $db = 'postgres';
my $ctl = DLockSession->new($node, $db, name => 'control');
my @s = open_sessions($node, $db, 4, name => 'w');
my %stopped;

# Stopped processes would keep the server from being stopped.
END
{
	my $status = $?;
	kill 'CONT', keys %stopped;
	$? = $status;
}

sub stop
{
	my ($session) = @_;

	# Asleep, so that it does not just look.
	settle($ctl);
	kill 'STOP', $session->{pid};
	$stopped{ $session->{pid} } = 1;
	wait_until(sub { slurp_file("/proc/$session->{pid}/stat") =~ /\) T / }) or die 'it does not stop';
	return;
}

sub go_on
{
	my ($session) = @_;

	kill 'CONT', $session->{pid};
	delete $stopped{ $session->{pid} };
	settle($ctl);
	return;
}

sub acquire
{
	my ($name, $owner, %params) = @_;
	my $wait = defined $params{wait} ? "'$params{wait}'" : 'NULL';
	my $ttl = $params{ttl} // '1 h';
	my $mode = $params{permits} ? "permits => $params{permits}" : "mode => '" . ($params{mode} // 'exclusive') . "'";

	return "SELECT dlock_acquire('$name', '$owner', '$ttl', $wait, $mode)";
}

sub holders
{
	my ($name) = @_;
	return $ctl->query_safe("SELECT coalesce(string_agg(owner, ' ' ORDER BY owner), '') FROM dlock_leases WHERE name = '$name'");
}

sub blocked_by
{
	my ($owner) = @_;
	return $ctl->query_safe("SELECT coalesce(string_agg(blocked_by::text, ' '), 'none') FROM dlock_waiters WHERE owner = '$owner'");
}

# Late, after a release or at the holder's deadline, when whoever asks calls it.
foreach my $way ('release', 'deadline')
{
	my $name = "late-$way";
	$ctl->query_safe("SELECT dlock_acquire('$name', 'holder', '1 h')");
	enqueue($ctl, $s[0], acquire($name, 'late', ttl => '10 min'));
	enqueue($ctl, $s[1], acquire($name, 'next'));
	stop($s[0]);
	$way eq 'release' ? $ctl->query_safe("SELECT dlock_release('$name', 'holder')") : advance(3600, $ctl);
	is($ctl->query_safe(acquire($name, 'barger', wait => '0')), '', "$way: nobody barges in");
	is(blocked_by('late'), '{}', "$way: it is called");
	is($ctl->query_safe("SELECT dlock_release_all('late')"), 0, "$way: but holds nothing");
	my $next = granted_at($ctl, $s[1], 600, "$way: the next gets the lock");
	is($ctl->query_safe("SELECT dlock_release_all('late')"), 0, "$way: it holds nothing then, either");
	go_on($s[0]);
	is(blocked_by('late'), '{next}', "$way: it waits again");
	is(holders($name), 'next', "$way: for the holder");
	$ctl->query_safe("SELECT dlock_release_token('$name', $next)");
	cmp_ok($s[0]->result->{out}, '>', $next, "$way: and gets a later token");
	$ctl->query_safe("SELECT dlock_force_release('$name', 'test')");
}

# Not so late: it is its turn still, even if its time is up.
{
	my $token = $ctl->query_safe("SELECT dlock_acquire('soon', 'holder', '1 h')");
	enqueue($ctl, $s[0], acquire('soon', 'late', wait => '30 min'));
	enqueue($ctl, $s[1], acquire('soon', 'next'));
	stop($s[0]);
	$ctl->query_safe("SELECT dlock_release('soon', 'holder')");
	is($ctl->query_safe(acquire('soon', 'barger', wait => '0')), '', 'its turn: nobody barges in');
	is($ctl->query_safe("SELECT dlock_force_release('soon', 'test')"), 0, 'its turn: nobody holds the lock');
	advance(3600 - 0.000001, $ctl);
	is(blocked_by('next'), '{late}', 'its turn: the next waits');
	go_on($s[0]);
	cmp_ok($s[0]->result->{out}, '>', $token, 'its turn: it gets the lock');
	remaining_is($ctl, 'soon', 3600, 'its turn: for all of its ttl');
	is(queue($ctl, 'soon'), 'next', 'its turn: the next waits still');
	$ctl->query_safe("SELECT dlock_release('soon', 'late')");
	$s[1]->result;
	$ctl->query_safe("SELECT dlock_release('soon', 'next')");
}

# It ends between the call and the grant.
foreach my $way ('cancel', 'terminate')
{
	$ctl->query_safe("SELECT dlock_acquire('end', 'holder', '1 h')");
	enqueue($ctl, $s[0], acquire('end', 'ends'));
	enqueue($ctl, $s[1], acquire('end', 'next'));
	stop($s[0]);
	$ctl->query_safe("SELECT dlock_release('end', 'holder')");
	is(queue($ctl, 'end'), 'ends next', "$way: it is called");
	$ctl->query_safe("SELECT pg_${way}_backend($s[0]{pid})");
	go_on($s[0]);
	my $answer = $s[0]->result;
	is($answer->{state}, $way eq 'cancel' ? '57014' : '57P01', "$way: it fails");
	isnt($s[1]->result->{out}, '', "$way: the next gets the lock");
	is(holders('end'), 'next', "$way: alone");
	$ctl->query_safe("SELECT dlock_release('end', 'next')");
	next unless $answer->{gone};
	$s[0]->quit;
	$s[0] = DLockSession->new($node, $db, name => 'w1');
}

# One for several locks.
foreach my $request (
	[ 'several', 'b', "SELECT dlock_acquire_all('{a, b}', 'late', '10 min', NULL)" ],
	[ 'a path', 'a/b', "SELECT dlock_acquire_path('a/b', 'late', '10 min', NULL)" ])
{
	my ($what, $name, $sql) = @$request;
	$ctl->query_safe("SELECT dlock_acquire('a', 'holder', '1 h')");
	enqueue($ctl, $s[0], $sql);
	enqueue($ctl, $s[1], acquire('a', 'next a'));
	stop($s[0]);
	$ctl->query_safe("SELECT dlock_release('a', 'holder')");
	granted_at($ctl, $s[1], 600, "$what: the next gets the lock that was called for");
	is(holders($name), '', "$what: nothing is held by the late one");
	go_on($s[0]);
	like(blocked_by('late'), qr/next a/, "$what: it waits again");
	$ctl->query_safe("SELECT dlock_release('a', 'next a')");
	isnt($s[0]->result->{out}, '', "$what: and gets all");
	$ctl->query_safe("SELECT dlock_release_all('late')");
}

# One for several that was never called for a lock that is free: a caller that is
# refused calls it, so that it keeps others out for no longer than a ttl.
{
	$ctl->query_safe("SELECT dlock_acquire('held', 'holder', '1 h')");
	enqueue($ctl, $s[0], "SELECT dlock_acquire_all('{free, held}', 'late', '10 min', NULL)");
	stop($s[0]);
	my $try = acquire('free', 'other', wait => '0');
	is($ctl->query_safe($try), '', 'stopped: a free lock is kept from others');
	advance(600 - 0.000001, $ctl);
	is($ctl->query_safe($try), '', 'stopped: for a ttl');
	advance(0.000001, $ctl);
	isnt($ctl->query_safe($try), '', 'stopped: and no longer');
	go_on($s[0]);
	$ctl->query_safe("SELECT dlock_force_release('held', 'test'), dlock_force_release('free', 'test')");
	isnt($s[0]->result->{out}, '', 'stopped: then it gets both');
	$ctl->query_safe("SELECT dlock_release_all('late')");
}

# One that was called in vain is as if it had not been called.
{
	$ctl->query_safe("SELECT dlock_acquire('vain', 'h1', '1 h'), dlock_acquire('held', 'h2', '1 h')");
	enqueue($ctl, $s[0], "SELECT dlock_acquire_all('{vain, held}', 'both', '10 min', NULL)");
	$ctl->query_safe("SELECT dlock_release('vain', 'h1')");
	settle($ctl);
	advance(1200, $ctl);
	is($ctl->query_safe(acquire('vain', 'barger', wait => '0')), '', 'called in vain: it keeps its turn');
	$ctl->query_safe("SELECT dlock_release('held', 'h2')");
	isnt($s[0]->result->{out}, '', 'called in vain: it gets both');
	$ctl->query_safe("SELECT dlock_release_all('both')");
}

# One for several that was called for one lock while another is held: it is called
# again for the first when that is free anew, as well as for the other.
{
	$ctl->query_safe("SELECT dlock_acquire('one', 'h1', '1 h'), dlock_acquire('two', 'h2', '1 h')");
	enqueue($ctl, $s[0], "SELECT dlock_acquire_all('{one, two}', 'both', '1 h', NULL)");
	enqueue($ctl, $s[1], acquire('one', 'next'));
	$ctl->query_safe("SELECT dlock_release('one', 'h1')");
	still_waits($ctl, 'one of two is free: nobody has it', @s[ 0, 1 ]);
	is(blocked_by('next'), '{both}', 'one of two is free: its turn');
	$ctl->query_safe("SELECT dlock_release('two', 'h2')");
	isnt($s[0]->result->{out}, '', 'both are free: granted');
	$ctl->query_safe("SELECT dlock_release_all('both')");
	isnt($s[1]->result->{out}, '', 'the next');
	$ctl->query_safe("SELECT dlock_release_all('next')");
}

# Two in a row: the third looks by itself, after 1, 3, 7 and 15 minutes.  The time of the
# first is over after 10, so the second is called after 15, for 10 more.
{
	$ctl->query_safe("SELECT dlock_acquire('row', 'holder', '1 h')");
	enqueue($ctl, $s[$_], acquire('row', "late$_", ttl => '10 min')) foreach 0, 1;
	$s[2]->query_safe("SET deadlock_timeout = '1 min'");
	enqueue($ctl, $s[2], acquire('row', 'third'));
	stop($s[$_]) foreach 0, 1;
	$ctl->query_safe("SELECT dlock_release('row', 'holder')");
	advance($_ * 60, $ctl) foreach 1, 2, 4, 8;
	granted_at($ctl, $s[2], 600, 'two are late: the third gets the lock');
	$s[2]->query_safe('RESET deadlock_timeout');
	go_on($s[$_]) foreach 0, 1;
	is(blocked_by('late0'), '{third}', 'two are late: the first waits');
	$ctl->query_safe("SELECT dlock_release('row', 'third')");
	my $first = $s[0]->result->{out};
	$ctl->query_safe("SELECT dlock_release('row', 'late0')");
	cmp_ok($s[1]->result->{out}, '>', $first, 'two are late: their order is as it was');
	$ctl->query_safe("SELECT dlock_release('row', 'late1')");
}

# Permits: a call takes one away from those behind, and no more.
{
	$ctl->query_safe("SELECT dlock_acquire('pool', 'h$_', '1 h', permits => 2)") foreach 1, 2;
	enqueue($ctl, $s[0], acquire('pool', 'late', permits => 2, ttl => '10 min'));
	enqueue($ctl, $s[$_], acquire('pool', "p$_", permits => 2)) foreach 1, 2;
	stop($s[0]);
	$ctl->query_safe("SELECT dlock_force_release('pool', 'test')");
	isnt($s[1]->result->{out}, '', 'permits: one that is called is not in the way of the next');
	granted_at($ctl, $s[2], 600, 'permits: and then gives its permit away');
	is(holders('pool'), 'p1 p2', 'permits: two');
	$ctl->query_safe("SELECT dlock_force_release('pool', 'test')");
	sqlstate_is($node, $db, acquire('pool', 'x', permits => 5, wait => '0'), '22023', 'permits: their number is that of the late one');
	go_on($s[0]);
	isnt($s[0]->result->{out}, '', 'permits: the late one');
	$ctl->query_safe("SELECT dlock_force_release('pool', 'test')");
}

# Readers do not wait for each other.
{
	$ctl->query_safe("SELECT dlock_acquire('read', 'holder', '1 h')");
	enqueue($ctl, $s[$_], acquire('read', "r$_", mode => 'shared')) foreach 0 .. 2;
	enqueue($ctl, $s[3], acquire('read', 'writer'));
	stop($s[0]);
	$ctl->query_safe("SELECT dlock_release('read', 'holder')");
	isnt($s[$_]->result->{out}, '', "readers: $_ does not wait for one that is called") foreach 1, 2;
	$ctl->query_safe("SELECT dlock_release('read', 'r$_')") foreach 1, 2;
	is(blocked_by('writer'), '{r0}', 'readers: the writer does');
	go_on($s[0]);
	isnt($s[0]->result->{out}, '', 'readers: its turn');
	$ctl->query_safe("SELECT dlock_release('read', 'r0')");
	isnt($s[3]->result->{out}, '', 'readers: then the writer');
	$ctl->query_safe("SELECT dlock_release('read', 'writer')");
}

# A holder that converts its lease goes ahead of one that is only called.
{
	my $token = $ctl->query_safe("SELECT dlock_acquire('convert', 'converts', '1 h', mode => 'CR')");
	$ctl->query_safe("SELECT dlock_acquire('convert', 'holder', '1 h', mode => 'PW')");
	enqueue($ctl, $s[0], acquire('convert', 'called', mode => 'PW'));
	stop($s[0]);
	$ctl->query_safe("SELECT dlock_release('convert', 'holder')");
	isnt(my $new = $ctl->query_safe("SELECT dlock_convert('convert', $token, 'exclusive')"), '', 'conversion: made');
	go_on($s[0]);
	is(blocked_by('called'), '{converts}', 'conversion: the other one waits again');
	is(holders('convert'), 'converts', 'conversion: one holder');
	$ctl->query_safe("SELECT dlock_release('convert', 'converts')");
	cmp_ok($s[0]->result->{out}, '>', $new, 'conversion: then it is its turn');
	$ctl->query_safe("SELECT dlock_release('convert', 'called')");
}

# Its owner gets the lock by another call meanwhile.
{
	$ctl->query_safe("SELECT dlock_acquire('own', 'holder', '1 h', mode => 'shared')");
	enqueue($ctl, $s[0], acquire('own', 'me', ttl => '10 min'));
	enqueue($ctl, $s[1], acquire('own', 'me', mode => 'shared', ttl => '1 h'));
	stop($s[0]);
	$ctl->query_safe("SELECT dlock_release('own', 'holder')");
	granted_at($ctl, $s[1], 600, 'its owner: has the lock otherwise');
	go_on($s[0]);
	is($s[0]->result->{state}, '40P01', 'its owner: it would wait for itself');
	$ctl->query_safe("SELECT dlock_release('own', 'me')");
}

# A crash before the grant: nobody ever held the lock.
{
	$ctl->query_safe("SELECT dlock_acquire('crash', 'holder', '1 h')");
	enqueue($ctl, $s[0], acquire('crash', 'called'));
	stop($s[0]);
	$ctl->query_safe("SET synchronous_commit = on; SELECT dlock_release('crash', 'holder'), pg_current_wal_flush_lsn() IS NULL");
	$ctl->query_safe("SELECT dlock_acquire('flushed', 'other', '1 h')");
	crash_node($node);
	%stopped = ();
	$_->quit foreach $ctl, @s;
	$node->start;
	$ctl = DLockSession->new($node, $db, name => 'control');
	is(holders('crash'), '', 'crash: nobody holds the lock');
	is(holders('flushed'), 'other', 'crash: what was answered later is there');
}

queues_are_empty($ctl, 'nobody waits');
$ctl->quit;
$node->stop;
log_is_clean($node);
done_testing();
