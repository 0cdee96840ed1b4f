# A clock that the test sets.  It stands still from the first line of a test that uses
# this module, for all servers with fault points that the test starts (and for a command
# that was made with FAULTS=1); time passes when the test says so, and servers have settled when that returns: what was
# due has happened, and every process sleeps.  So nothing here waits for a deadline, and
# no load of the machine makes a lease end too early.  See test/modules/test_clock.h.
#
# What PostgreSQL itself does goes by the machine's clock still: statement_timeout,
# pg_sleep(), now().

package DLockClock;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockSession;
use DLockTest;
use Exporter 'import';
use File::Copy qw(copy);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_REALTIME);

our @EXPORT = qw(advance step_wall_clock next_boot another_clock run_clock settle still_waits granted_at remaining_is);

# Linux's number of CLOCK_BOOTTIME.
my $boottime = 7;

my $path = PostgreSQL::Test::Utils::tempdir_short() . '/clock';

# The frozen time, what was skipped of a running one, how far the wall clock is ahead, and boots.
{
	my $now = int(clock_gettime($boottime) * 1e6);

	open my $fh, '>', $path or croak "$path: $!";
	binmode $fh;
	syswrite($fh, pack('q4', $now, 0, int(clock_gettime(CLOCK_REALTIME) * 1e6) - $now, 0)) == 32 or croak "$path: $!";
	close $fh or croak "$path: $!";
	chmod 0666, $path;
	$ENV{DLOCK_TEST_CLOCK} = $path;
}

sub _us
{
	my ($seconds) = @_;

	return sprintf '%.0f', $seconds * 1e6;
}

# Add to a number of the file, see test/modules/test_clock.h.
sub _add
{
	my ($number, $seconds, $file) = (@_, $path);

	open my $fh, '+<', $file or croak "$file: $!";
	binmode $fh;
	sysseek $fh, 8 * $number, 0;
	sysread($fh, my $value, 8) == 8 or croak "$file: $!";
	sysseek $fh, 8 * $number, 0;
	syswrite($fh, pack('q', unpack('q', $value) + _us($seconds))) == 8 or croak "$file: $!";
	close $fh or croak "$file: $!";
	return;
}

# Let so many seconds pass, which may be a fraction to the microsecond.  "control" is a
# session of a server with fault points; more of them are of further servers.  Without
# one, nobody is woken: for when no server runs.
sub advance
{
	my ($seconds, $control, @others) = @_;

	return _add(0, $seconds) if !defined $control;
	$control->query_safe('SELECT clock_advance(' . _us($seconds) . ')');
	settle(@others);
	return;
}

# The wall clock is put forward, or back; that of another server if its file is given.
sub step_wall_clock
{
	my ($seconds, @file) = @_;

	return _add(2, $seconds, @file);
}

# The machine is booted anew, as far as servers know that are started from now on.
sub next_boot
{
	return _add(3, 0.000001);
}

# A copy of the clock for another server, which is to be started with this file as
# DLOCK_TEST_CLOCK in its environment.
sub another_clock
{
	my $file = PostgreSQL::Test::Utils::tempdir_short() . '/clock';

	copy($path, $file) or croak "$file: $!";
	return $file;
}

# From now on the clock runs, on from where it stood.  No session may wait.
sub run_clock
{
	open my $fh, '+<', $path or croak "$path: $!";
	binmode $fh;
	sysread($fh, my $frozen, 8) == 8 or croak "$path: $!";
	sysseek $fh, 0, 0;
	syswrite($fh, pack('q2', 0, unpack('q', $frozen) - int(clock_gettime($boottime) * 1e6))) == 16 or croak "$path: $!";
	close $fh or croak "$path: $!";
	return;
}

# Wait until all processes of these servers have done what there is to do now.
sub settle
{
	my @controls = @_;

	$_->query_safe('SELECT clock_settle()') foreach @controls;
	return;
}

# How many of these sessions wait, now that the server has settled?
sub _waiting
{
	my ($control, @sessions) = @_;

	settle($control);
	my $pids = join ', ', map { $_->pid } @sessions;
	return $control->query_safe(
		"SELECT count(*) FROM pg_stat_activity WHERE pid IN ($pids) AND state = 'active' AND wait_event_type = 'Extension'");
}

# These sessions wait, and go on waiting as long as nothing happens: the server has
# settled, and each of them has its request in a queue, or watches.
sub still_waits
{
	my ($control, $test_name, @sessions) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is(_waiting($control, @sessions), scalar @sessions, $test_name);
}

# A session that waits is granted the lock, or told what it asked for, after exactly so
# many seconds, and not a microsecond before.  It is then that it notices: the server may
# wake it for reasons of its own some seconds later, when nothing has.  Returns its answer.
sub granted_at
{
	my ($control, $session, $seconds, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	advance($seconds - 0.000001, $control);
	still_waits($control, "$test_name: not before its time", $session);
	advance(0.000001, $control);
	my $waiting = _waiting($control, $session);
	my $answer = $session->answer;
	ok($waiting == 0 && $answer ne '', "$test_name: at its time");
	return $answer;
}

# What is left of a lease, to the microsecond.
sub remaining_is
{
	my ($control, $name, $seconds, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is($control->query_safe("SELECT extract(epoch FROM remaining) FROM dlock_leases WHERE name = '$name'"),
		sprintf('%.6f', $seconds), $test_name);
}

1;
