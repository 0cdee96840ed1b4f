# Proves: the worker ends at a shutdown, or when it is terminated, whatever it is doing, at
# once and without an error in the server log.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockFault;
use DLockSession;
use DLockStall;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_fault_node('main', conf => "log_line_prefix = '%b: '\n");
my $db = 'postgres';
my $ctl = DLockSession->new($node, $db, name => 'control');

# Longer than that takes a fast shutdown only if something holds it up, which would be
# for ten minutes, or for ever.
my $at_once = 100;

# Nothing but the lines of the worker.
sub worker_said
{
	my ($offset) = @_;

	return join '', slurp_file($node->logfile, $offset) =~ /^dlock \w+: (?:WARNING|ERROR|FATAL|PANIC): .*\n/mg;
}

sub stops_quietly
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $offset = -s $node->logfile;
	my $began = mono_now();

	$node->stop('fast');
	in_time($began, mono_now(), $at_once, "$what: at once");
	is(worker_said($offset), '', "$what: nothing in the log");
	$node->start;
	$ctl = DLockSession->new($node, $db, name => 'control');
	return;
}

sub stop_worker
{
	my ($point) = @_;

	stop_at($ctl, worker_pid($node), $point);
	$ctl->query_safe("SELECT count(dlock_acquire('due' || i, 'w', '1 ms')) FROM generate_series(1, 10) i");
	is_at($ctl, $point);
	return;
}

$ctl->query_safe("SELECT dlock_acquire('due', 'w', '1 ms')");
$ctl->quit;
stops_quietly('idle');

# It is told to end while it is at work, and finds that out when it goes on.
foreach my $point (qw(worker_swept worker_lock worker_erase))
{
	my $pid = worker_pid($node);
	my $offset = -s $node->logfile;

	stop_worker($point);
	$ctl->query_safe("SELECT pg_terminate_backend($pid)");
	go($ctl, $point);
	wait_gone($pid);
	pass("terminated at $point: gone");
	is(worker_said($offset), '', "terminated at $point: nothing in the log");
	isnt(worker_pid($node), $pid, "terminated at $point: another one comes");
	ok(wait_until(sub { $ctl->query_safe('SELECT leases FROM dlock_stats') == 0 }), "terminated at $point: which erases");
}

# A cancel that does not tell it to end is told of, and it goes on.
{
	my $pid = worker_pid($node);
	my $offset = -s $node->logfile;

	stop_worker('worker_erase');
	$ctl->query_safe("SELECT pg_cancel_backend($pid)");
	go($ctl, 'worker_erase');
	ok(wait_until(sub { $ctl->query_safe('SELECT leases FROM dlock_stats') == 0 }), 'cancelled: leases are erased');
	like(worker_said($offset), qr/ERROR: .*cancel/, 'cancelled: the log says so');
}

$ctl->quit;
stops_quietly('after work');
$ctl->quit;
$node->stop;
done_testing();
