# Ends a test at its first failure, for runs that only want to know whether there is one.
# For perl -M.

package DLockFirstFailure;

use strict;
use warnings;
use Test2::API qw(test2_add_callback_context_release);

my $test_pid = $$;
my $ends = 0;

test2_add_callback_context_release(
	sub {
		my ($context) = @_;

		return if $ends || $$ != $test_pid || !$context->hub->failed;
		$ends = 1;
		exit 1;
	});

1;
