# Proves: at whatever moment of its work the clock jumps under the worker, as when
# the machine has slept, it goes on removing what has expired, in bounded time; and where
# several leases have expired at once it calls all requests that waited for them.

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

my $node = start_fault_node('main', conf => "deadlock_timeout = 10h\n");
my $db = 'postgres';
my $ctl = DLockSession->new($node, $db, name => 'control');
my $worker = worker_pid($node);
my $jump = 1000;

# So long after a jump, in seconds, the worker may rest at most: it takes a sweep for one of
# a second (SWEEP_COST_MAX), and rests for ten times that.
my $rest = 11;

# How many leases have been granted that expire, and are counted by the worker alone.
my $due = 0;

sub grant
{
	my ($name, $ttl) = @_;

	$ctl->query_safe("SELECT dlock_acquire('$name', 'holder', '$ttl')");
	$due++;
	return;
}

# The clock jumps when the worker has read it for the nth time since "begin" woke it: it goes
# on with the time that it has read, and finds the other one at the next reading.  False if
# it has settled with fewer readings.
sub jump_after
{
	my ($n, $what, $begin) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	stop_at($ctl, $worker, 'clock', $n);
	$begin->();
	settle($ctl);
	my $stopped = faults_hit($ctl, 'clock');
	advance($jump, $ctl) if $stopped;
	go($ctl, 'clock');
	settle($ctl);
	return 0 if !$stopped;
	advance($rest, $ctl);
	return is($ctl->query_safe('SELECT expiries, leases FROM dlock_stats'), "$due|0", "$what, a jump after reading $n: all are removed");
}

# It is woken by a grant whose deadline comes before what it has planned; or a deadline has
# come, and it sweeps and erases.  It knows of one lease, and not of the other.
my %begin = (
	'at a grant' => sub { grant('near', '5 s') },
	'at a deadline' => sub { advance(5, $ctl) },
);
foreach my $what (sort keys %begin)
{
	my $n = 0;

	while (1)
	{
		grant('far', '500 s');
		grant('near', '5 s') if $what eq 'at a deadline';
		settle($ctl);
		jump_after(++$n, $what, $begin{$what}) or last;
	}
	cmp_ok($n, '>', $what eq 'at a grant' ? 2 : 5, "$what: as often as it reads the clock");
	advance($jump, $ctl);
}

# The end of "first" lets a request for both locks be called; a request in front of
# it on "second", where all that was held is over, too, is not forgotten over that.
{
	my ($single, $several) = open_sessions($node, $db, 2, name => 'waiter');

	$ctl->query_safe("SELECT dlock_acquire('first', 'holder', '500 s'), dlock_acquire('second', 'holder', '600 s')");
	enqueue($ctl, $single, "SELECT dlock_acquire('second', 'single', '1 h', NULL, 'PW')");
	enqueue($ctl, $several, "SELECT dlock_acquire_all('{first,second}', 'several', '1 h', NULL, 'CR')");
	advance($jump, $ctl);
	like($several->answer, qr/^\{\d+,\d+\}$/, 'several: granted');
	like($single->answer, qr/^\d+$/, 'and the request in front');
	is($ctl->query_safe("SELECT string_agg(owner, ' ' ORDER BY owner) FROM dlock_leases WHERE name = 'second'"),
		'several single', 'both hold the lock');
	$_->quit foreach $single, $several;
}
$ctl->quit;
$node->stop;
log_is_clean($node);
done_testing();
