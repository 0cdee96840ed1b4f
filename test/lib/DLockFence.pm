# What tests of fencing share: what a statement came to, waiting at a fence,
# processes that are stopped and go on, and leases whose time has passed.

package DLockFence;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockTest;
use Exporter 'import';
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(
  outcome outcome_is came_to came_to_is waits_for wait_blocked
  stop_process continue_process pass_deadline mark
);

# What became of a statement that was sent: what it selected, or the SQLSTATE.
sub came_to
{
	my ($session) = @_;

	return $session->answer =~ s/^(?:ERROR|FATAL) //r;
}

sub came_to_is
{
	my ($session, $expected, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is(came_to($session), $expected, $test_name);
}

# Send it, and wait for that.
sub outcome
{
	my ($session, $sql) = @_;

	$session->ask($sql);
	return came_to($session);
}

sub outcome_is
{
	my ($session, $sql, $expected, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is(outcome($session, $sql), $expected, $test_name);
}

# Wait until a session that was sent something waits for others' locks; false if
# it answers instead.
sub wait_blocked
{
	my ($control, $session) = @_;
	my $blocked = 0;

	wait_until(
		sub {
			$blocked =
			  $control->query_safe("SELECT cardinality(pg_blocking_pids($session->{pid})) > 0") eq 't';
			return $blocked || $session->answered;
		}) or croak "$session->{name} neither waits nor answers";
	return $blocked;
}

# Send what has to wait at a fence, test that it does, and for whom.
sub waits_for
{
	my ($control, $session, $sql, $others, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$session->ask($sql);
	wait_blocked($control, $session)
	  or return fail("$test_name: it waits, but has answered " . $session->{text}{err});
	my $found;

	# It is in the lock's queue a moment before it sleeps, and does not sleep while it
	# looks for a deadlock.
	wait_until(
		sub {
			$found = $control->query_safe(
				"SELECT CASE WHEN wait_event_type = 'Lock' THEN wait_event END, ARRAY(SELECT DISTINCT unnest(pg_blocking_pids(pid)) ORDER BY 1) FROM pg_stat_activity WHERE pid = $session->{pid}"
			);
			return $found !~ /^\|/ || $session->answered;
		});
	my $pids = join ',', sort { $a <=> $b } map { ref $_ ? $_->{pid} : $_ } @$others;
	return is($found, "advisory|{$pids}", $test_name);
}

# Stop a process, be it of a client or a backend, until it is told to continue.
# Returns when it runs no more.
sub stop_process
{
	my ($pid) = @_;

	kill 'STOP', $pid or croak "cannot stop process $pid: $!";
	wait_until(sub { process_state($pid) eq 'T' })
	  or croak "process $pid does not stop";
	return;
}

sub continue_process
{
	my ($pid) = @_;

	kill 'CONT', $pid or croak "cannot continue process $pid: $!";
	return;
}

sub process_state
{
	my ($pid) = @_;

	open my $fh, '<', "/proc/$pid/stat" or croak "process $pid has ended";
	my $line = <$fh>;
	close $fh;
	return $line =~ /^\d+ \(.*\) (\S) /s ? $1 : '';
}

# The time of a lease passes while its holder is stopped: it is cut short, which
# takes less time than to wait, and lets a test decide when.
sub pass_deadline
{
	my ($control, $name, $token) = @_;

	$control->query_safe("SELECT dlock_renew_token('$name', $token, '1 ms')") eq 't'
	  or croak "$name was not held with $token";
	wait_until(sub { $control->query_safe("SELECT dlock_check('$name', $token)") eq 'f' })
	  or croak "the lease on $name does not end";
	return;
}

# The mark of a resource, as all can see it.
sub mark
{
	my ($control, $resource) = @_;

	return $control->query_safe("SELECT token FROM dlock_fences WHERE resource = '$resource'");
}

1;
