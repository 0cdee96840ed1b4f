# Proves, to the microsecond: a lease keeps others out until its deadline and not a moment
# longer; a wait is over at its own time and not before; whoever waits is served at the
# deadline as it is then, in order, without a timer of the server's own, without the worker,
# and without another call; and a moment that passes wakes nobody whose time it is not.

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

my $rounds = 20;

my $node = start_fault_node('main', conf => "deadlock_timeout = 10h\n");
still_worker($node);
my $db = 'postgres';
my $ctl = DLockSession->new($node, $db, name => 'control');
my ($first, $second, $patient) = open_sessions($node, $db, 3, name => 'waiter');

sub try_acquire
{
	my ($owner) = @_;

	return $ctl->query_safe("SELECT dlock_acquire('lock', '$owner', '1 h')");
}

# A lease of an hour, to the moment.
isnt(try_acquire('holder'), '', 'granted');
remaining_is($ctl, 'lock', 3600, 'all of it is left');
advance(3599.999999, $ctl);
is(try_acquire('taker'), '', 'refused a microsecond before its end');
remaining_is($ctl, 'lock', 0.000001, 'a microsecond is left');
advance(0.000001, $ctl);
isnt(try_acquire('taker'), '', 'granted at its end');
is($ctl->query_safe("SELECT dlock_renew('lock', 'holder')"), 'f', 'whose lease ended is not revived');

# A renewal moves the end.
advance(1800, $ctl);
is($ctl->query_safe("SELECT dlock_renew('lock', 'taker')"), 't', 'renewed');
advance(3599.999999, $ctl);
is(try_acquire('other'), '', 'refused until the end that the renewal has set');
is($ctl->query_safe("SELECT dlock_renew('lock', 'taker')"), 't', 'renewed in the last microsecond');
advance(3600, $ctl);
is($ctl->query_safe("SELECT dlock_renew('lock', 'taker')"), 'f', 'not at the end');

# So it is whatever the session of the holder does, which learns of it late or never.
foreach my $what ('has a transaction open', 'stands still', 'is gone')
{
	my $holder = DLockSession->new($node, $db);
	$holder->query_safe("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT dlock_acquire('late', 'late', '1 h')");
	$holder->query_safe('COMMIT; SELECT 1') if $what ne 'has a transaction open';
	kill 'STOP', $holder->pid if $what eq 'stands still';
	$holder->quit if $what eq 'is gone';
	advance(3599.999999, $ctl);
	is($ctl->query_safe("SELECT dlock_acquire('late', 'next', '1 h')"), '', "a holder that $what: refused before the end");
	advance(0.000001, $ctl);
	isnt($ctl->query_safe("SELECT dlock_acquire('late', 'next', '1 h')"), '', "a holder that $what: granted at it");
	kill 'CONT', $holder->pid if $what eq 'stands still';
	is($holder->query_safe("SELECT dlock_renew('late', 'late') OR dlock_release('late', 'late')"), 'f', "a holder that $what: learns that it has lost it") if $what ne 'is gone';
	$holder->quit if $what ne 'is gone';
	$ctl->query_safe("SELECT dlock_release('late', 'next')");
}

# Waiting, round after round: the first gets the lock at the holder's end, the second at
# the first one's, and the third, which waits for two hours, is told when they are over.
foreach my $round (1 .. $rounds)
{
	my $label = "round $round";
	$ctl->query_safe("SELECT dlock_acquire('round', 'holder', '1 h')");
	enqueue($ctl, $first, "SELECT dlock_acquire('round', 'first', '1 h', '2 h')");
	enqueue($ctl, $second, "SELECT dlock_acquire('round', 'second', '1 h', NULL)");
	enqueue($ctl, $patient, "SELECT dlock_acquire('round', 'patient', '1 h', '1 h 50 min')");
	advance(600, $ctl);
	still_waits($ctl, "$label: nobody is served while the lease lasts", $first, $second, $patient);
	my $token = granted_at($ctl, $first, 3000, "$label: the first");
	still_waits($ctl, "$label: the second and the third wait on", $second, $patient);
	advance(3000 - 0.000001, $ctl);
	still_waits($ctl, "$label: in time still", $patient);
	advance(0.000001, $ctl);
	is($patient->answer, '', "$label: told when its time is over");
	cmp_ok(granted_at($ctl, $second, 600, "$label: the second"), '>', $token, "$label: tokens ascend");
	$ctl->query_safe("SELECT dlock_release('round', 'second')");
}
queues_are_empty($ctl, 'in the end');
sound($ctl, 'in the end');

$_->quit foreach $first, $second, $patient, $ctl;
$node->stop;
log_is_clean($node);
done_testing();
