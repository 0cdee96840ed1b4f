# The queues of a server: who waits for a lock, in which order.

package DLockQueue;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockTest;
use Exporter 'import';
use Test::More;

our @EXPORT = qw(queue queue_is enqueue queues_are_empty);

# The owners that wait for a lock, in order.
sub queue
{
	my ($control, $name) = @_;

	return $control->query_safe(
		"SELECT coalesce(string_agg(owner, ' ' ORDER BY position), '') FROM dlock_waiters WHERE name = '$name'"
	);
}

# Wait until the queue is this.
sub queue_is
{
	my ($control, $name, $expected, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $queue;

	wait_until(sub { ($queue = queue($control, $name)) eq $expected }, 20);
	return is($queue, $expected, $test_name);
}

# Let a session send what will wait, and wait until it does.
sub enqueue
{
	my ($control, $session, $sql) = @_;

	$session->ask($sql);
	wait_until(
		sub {
			$control->query_safe("SELECT count(*) > 0 FROM dlock_waiters WHERE pid = $session->{pid}") eq 't'
			  || $session->answered;
		}) or croak "$session->{name} does not wait";
	return;
}

sub queues_are_empty
{
	my ($control, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is(
		$control->query_safe(
			"SELECT coalesce(string_agg(name || ' ' || owner, ', '), '') FROM dlock_waiters"),
		'', $test_name);
}

1;
