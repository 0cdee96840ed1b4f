# The queues of a server: who waits for a lock, in which order, and what a hand-off to
# them has at hand.

package DLockQueue;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockSession;
use DLockTest;
use Exporter 'import';
use Test::More;

our @EXPORT = qw(queue queue_is enqueue queues_are_empty know_pages payloads);
our @EXPORT_OK = qw(asks_by place holder release cancel);

# The session by which the functions of the second list ask.
my $ctl;

sub asks_by
{
	($ctl) = @_;
	return;
}

# A place of an owner, or its grant: the token.
sub place
{
	my ($name, $owner, $ttl, $keep, $more) = @_;

	return $ctl->query_safe("SELECT dlock_acquire('$name', '$owner', '$ttl', keep => '$keep'" . ($more // '') . ')');
}

sub holder
{
	my ($name, $ttl, $more) = @_;

	isnt($ctl->query_safe("SELECT dlock_acquire('$name', 'holder', '$ttl'" . ($more // '') . ')'), '', "$name: held");
	return;
}

sub release
{
	my ($name, $owner) = @_;

	is($ctl->query_safe("SELECT dlock_release('$name', '$owner')"), 't', "$name: released by $owner");
	return;
}

sub cancel
{
	my ($session) = @_;

	$ctl->query_safe("SELECT pg_cancel_backend($session->{pid})");
	return;
}

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

# A payload for each kind of page that a lease can be on.
sub payloads
{
	return map { 'x' x $_ } 0, 300, 900;
}

# Have sessions know the pages that their next leases will be on, of each kind, so
# that a backend that hands a lock off to them can write these pages.
sub know_pages
{
	my @sessions = @_;

	foreach my $session (@sessions)
	{
		$session->ask(join ';',
			map { qq{SELECT dlock_release_token(name, dlock_acquire(name, 'warm', '1 h', payload => '"$_"')) FROM (SELECT 'warm' || pg_backend_pid()) w (name)} }
			  payloads());
	}
	answers_in_order(@sessions);
	return;
}

1;
