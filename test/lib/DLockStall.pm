# Bounds on time that a machine which stands still for a while does not break.  A
# process sleeps and looks at the clock; when it sleeps for much longer than it wants
# to, no other process could run either.

package DLockStall;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockTest qw(mono_now);
use Exporter 'import';
use POSIX ();
use Socket qw(AF_UNIX SOCK_STREAM PF_UNSPEC);
use Test::More;

our @EXPORT = qw(in_time);

my $nap = 0.1;
my $much = 0.5;

my ($watcher, $pid);
start_watcher();

# A process that was forked has one of its own from now on, and leaves that of its parent alone.
sub start_watcher
{
	socketpair($watcher, my $asker, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or croak "socketpair: $!";
	$watcher->autoflush(1);
	$pid = fork // croak "fork: $!";
	return if $pid != 0;
	close $watcher;
	watch($asker);
	return;
}

# In the process: whenever it is asked, answer for how long nothing ran since then.
sub watch
{
	my ($asker) = @_;
	my @stalls;
	my $last = mono_now();

	close $_ foreach *STDIN, *STDOUT;
	while (1)
	{
		my $bits = '';
		vec($bits, fileno $asker, 1) = 1;
		my $asked = select $bits, undef, undef, $nap;
		my $now = mono_now();
		push @stalls, [ $last, $now ] if $now - $last > $much;
		$last = $now;
		next if !$asked;

		sysread $asker, my $since, 100 or POSIX::_exit(0);
		my $total = 0;
		foreach my $stall (@stalls)
		{
			my $begin = $stall->[0] > $since ? $stall->[0] : $since;
			$total += $stall->[1] - $begin if $stall->[1] > $begin;
		}
		syswrite $asker, "$total\n" or POSIX::_exit(0);
	}
}

# For how many seconds the machine has stood still since then, a time of mono_now().
sub stood_still
{
	my ($since) = @_;

	print $watcher "$since\n";
	return readline($watcher) + 0;
}

# Test that something came at most so many seconds after something else, while the
# machine did not stand still.
sub in_time
{
	my ($from, $to, $seconds, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return cmp_ok($to - $from, '<', $seconds + stood_still($from), $test_name);
}

END
{
	if (defined $pid && $pid > 0)
	{
		local $?;

		# Processes that were started later may have it open, too.
		shutdown $watcher, 2;
		close $watcher;
		waitpid $pid, 0;
	}
}

1;
