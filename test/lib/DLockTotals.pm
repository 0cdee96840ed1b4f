# Counts what a run of TAP tests came to, into the file that DLOCK_TOTALS names:
# first line "passed failed skipped" in assertions, then a line for each failure,
# "file<TAB>what failed".  For prove --harness.

package DLockTotals;

use strict;
use warnings;
use parent 'TAP::Harness';

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
	return;
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
