# Parts of a test that wait more than they compute, beside each other: each in a process of
# its own, with servers of its own.

package DLockBeside;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockStall ();
use DLockTest qw(mono_now);
use Exporter 'import';
use POSIX qw(WNOHANG);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(beside);

# How many at a time.
my $most = 4;
my $number = 0;

# In the process of a part: what it says goes to a file, and nothing that belongs to the
# test itself is ended.
sub run_part
{
	my ($name, $code, $file) = @_;
	my $builder = Test::More->builder;

	open my $out, '>', $file or POSIX::_exit(2);
	$out->autoflush(1);
	$builder->$_($out) foreach qw(output failure_output todo_output);
	DLockStall::start_watcher();
	my $ok = eval { subtest $name => $code };
	print $out "# $@" if !defined $ok;
	POSIX::_exit($ok ? 0 : 1);
}

# What one has said, as a subtest of the test.
sub tell_part
{
	my ($part, $status) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 2;
	my @said = -e $part->{file} ? split /\n/, slurp_file($part->{file}) : ();
	my $out = Test::More->builder->output;

	print $out map { "    $_\n" } @said;
	note sprintf '%s: %.1f s', $part->{name}, mono_now() - $part->{began};
	ok($status == 0, $part->{name}) or diag join "\n", "status $status", grep { /^\s*(?:not ok|#   )/ } @said;
	return;
}

# Run these, a list of names and functions.  A function gives the servers that it starts names
# of their own, and stops them.
sub beside
{
	my @parts = @_;
	my %running;

	while (@parts || %running)
	{
		while (@parts && keys %running < $most)
		{
			my ($name, $code) = splice @parts, 0, 2;
			my $file = "$PostgreSQL::Test::Utils::log_path/part.$$." . ++$number;
			my $pid = fork // croak "fork: $!";

			run_part($name, $code, $file) if $pid == 0;
			$running{$pid} = { name => $name, file => $file, began => mono_now() };
		}
		usleep(10_000);
		foreach my $pid (keys %running)
		{
			tell_part(delete $running{$pid}, $?) if waitpid($pid, WNOHANG) == $pid;
		}
	}
	return;
}

1;
