# Counts what a run of TAP tests came to, into the file that DLOCK_TOTALS names:
# first line "passed failed skipped" in assertions, then a line for each failure,
# "file<TAB>what failed".  For prove --harness.

package DLockTotals;

use strict;
use warnings;
use parent 'TAP::Harness';
use Time::HiRes qw(time);

# The slowest files that are told, and what a file may take.
my $slowest_told = 10;
my $budget = 30;

# How much of a failure is told.
my $told_chars = 240;

sub runtests
{
	my ($self, @tests) = @_;

	$self->{dlock_tests} = @tests;
	$self->{dlock_names} = {};
	$self->callback(
		made_parser => sub {
			my ($parser, $file_and_name) = @_;
			my $names = $self->{dlock_names}{ $file_and_name->[1] } = {};

			$parser->callback(
				test => sub {
					my ($result) = @_;
					$names->{ $result->number } = $result->description unless $result->is_ok;
				});
		});
	return $self->SUPER::runtests(@tests);
}

# PostgreSQL's modules bail out when a server does not start.  That is the end
# of one file, which has failed by its exit status; the others are run still.
sub _bailout { }

sub summary
{
	my ($self, $aggregate, @rest) = @_;
	my ($passed, $failed, $skipped) = (0, 0, 0);
	my $missing = $self->{dlock_tests} - $aggregate->descriptions;
	my @failures;

	$self->SUPER::summary($aggregate, @rest);
	foreach my $file ($aggregate->descriptions)
	{
		my ($parser) = $aggregate->parsers($file);
		my %not_run = map { $_ => 1 } $parser->skipped;
		my $failed_here = $parser->failed;

		$skipped += keys %not_run;
		$skipped++ if $parser->skip_all;
		$passed += grep { !$not_run{$_} } $parser->passed;

		# A file that died, or ran another number of tests than it had
		# planned, has failed though each of its assertions passed.
		$failed_here = 1 if $parser->has_problems && !$failed_here;
		$failed += $failed_here;
		push @failures, map { "$file\t$_" } $self->failures_of($file, $parser)
		  if $failed_here;
	}
	$failed += $missing;
	push @failures, "prove\t$missing files were not run" if $missing;

	open my $out, '>', $ENV{DLOCK_TOTALS} or die "$ENV{DLOCK_TOTALS}: $!";
	print $out "$_\n" foreach "$passed $failed $skipped", @failures;
	close $out or die "$ENV{DLOCK_TOTALS}: $!";
	$self->tell_times($aggregate);
	return;
}

# How long the files took.  The processor seconds are those of the test and of the
# programs that it has waited for; servers are not among them.
sub tell_times
{
	my ($self, $aggregate) = @_;
	my %took;

	foreach my $file (grep { /\.pl$/ } $aggregate->descriptions)
	{
		my ($parser) = $aggregate->parsers($file);
		$took{$file} = $parser->end_time - $parser->start_time;
	}
	my @slowest = sort { $took{$b} <=> $took{$a} } keys %took;
	if ($ENV{DLOCK_TIMES} && @slowest)
	{
		open my $out, '>', $ENV{DLOCK_TIMES} or die "$ENV{DLOCK_TIMES}: $!";
		printf $out "%s\t%.1f\t%s\n", name_of($_), $took{$_}, cpu_of($_) foreach @slowest;
		close $out or die "$ENV{DLOCK_TIMES}: $!";
	}
	return if @slowest <= $slowest_told;
	print "slowest files: seconds, processor seconds without servers\n";
	printf "  %6.1f %6s  %s\n", $took{$_}, cpu_of($_), name_of($_) foreach @slowest[ 0 .. $slowest_told - 1 ];
	my @over = grep { $took{$_} > $budget } @slowest;
	print 'over the budget of ', $budget, ' s: ', join(' ', map { name_of($_) } @over), "\n" if @over;
	return;
}

sub name_of
{
	my ($file) = @_;
	return $file =~ m{([^/]+/[^/]+)\.pl$} ? $1 : $file;
}

# DLockTest leaves it there at the end of a test.
sub cpu_of
{
	my ($file) = @_;
	my ($name) = $file =~ m{([^/]+)\.pl$};

	open my $in, '<', ($ENV{TESTLOGDIR} // '.') . "/cpu_$name" or return '-';
	my $cpu = <$in>;
	close $in;
	chomp $cpu;
	return $cpu;
}

# Each failure of a file in a line.
sub failures_of
{
	my ($self, $file, $parser) = @_;
	my @log = log_of($file);
	my @failures;

	foreach my $number ($parser->failed)
	{
		my $name = $self->{dlock_names}{$file}{$number} // '(not run)';
		my @remarks;

		# What Test::More says about a failure follows its line.
		for (my $i = 0; $i < @log; $i++)
		{
			next unless $log[$i] =~ /^not ok $number\b/;
			while (++$i < @log && $log[$i] =~ /^(?:#|$)/)
			{
				# These are not about it any more.
				last if $log[$i] =~ /^# (?:\S+ \(\d+\)(?: answers)?:|Looks like|Running:|Checking port|DLOCK_SEED)/;
				push @remarks, $log[$i];
			}
			last;
		}
		push @failures, one_line("$number $name", @remarks);
	}

	# With failures alone, their number is the status.
	if ($parser->wait || !@failures)
	{
		my $signal = $parser->wait & 127;

		# What Perl dies of says where.
		my @said = grep { !/^(# |ok |not ok |\s*$)/ } reverse @log;
		my ($last) = ((grep { / at \S+ line \d+\.?$/ } @said), @said);

		push @failures,
		  one_line($signal ? "ended by signal $signal" : 'ended with status ' . $parser->exit,
			$last // (), $parser->parse_errors)
		  unless @failures && !$signal && $parser->exit == @failures;
	}
	return @failures;
}

# The lines of the log that PostgreSQL's modules have written for a test, without
# the times.
sub log_of
{
	my ($file) = @_;
	my ($name) = $file =~ m{([^/]+?)(?:\.[^./]*)?$};
	my @lines;

	open my $log, '<', ($ENV{TESTLOGDIR} // '.') . "/regress_log_$name" or return;
	while (my $line = <$log>)
	{
		chomp $line;
		$line =~ s/^\[[0-9:.]+\]\([0-9.]+s\)\s//;
		push @lines, $line;
	}
	close $log;
	return @lines;
}

sub one_line
{
	my ($what, @remarks) = @_;

	foreach (@remarks)
	{
		s/^#\s*//;
		s/^Failed test\b.*//;
		s/^at \S+ (line \d+)\.$/$1/;
	}
	my $line = join ' ', $what, grep { /\S/ } @remarks;
	$line =~ s/\s+/ /g;
	return length $line > $told_chars ? substr($line, 0, $told_chars) . '...' : $line;
}

1;
