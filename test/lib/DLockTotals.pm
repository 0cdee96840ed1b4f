# Counts what a run of TAP tests came to, into the file that DLOCK_TOTALS names:
# first line "passed failed skipped" in assertions, then the files that failed.
# For prove --harness.

package DLockTotals;

use strict;
use warnings;
use parent 'TAP::Harness';

sub runtests
{
	my ($self, @tests) = @_;

	$self->{dlock_tests} = @tests;
	return $self->SUPER::runtests(@tests);
}

# PostgreSQL's modules bail out when a server does not start.  That is the end
# of one file, which has failed by its exit status; the others are run still.
sub _bailout { }

sub summary
{
	my ($self, $aggregate, @rest) = @_;
	my ($passed, $failed, $skipped) = (0, 0, 0);
	my @failed_files;

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
		push @failed_files, $file if $failed_here;
	}
	$failed += $self->{dlock_tests} - $aggregate->descriptions;

	open my $out, '>', $ENV{DLOCK_TOTALS} or die "$ENV{DLOCK_TOTALS}: $!";
	print $out "$_\n" foreach "$passed $failed $skipped", @failed_files;
	close $out or die "$ENV{DLOCK_TOTALS}: $!";
	return;
}

1;
