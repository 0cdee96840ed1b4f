# Proves: with synchronous replication no two owners hold a lock at a time, as far as
# they were told: the standby is promoted while the primary is only cut off, and goes
# on to renew what it need not write.  Also when the promoted server crashes.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockFence;
use DLockSession;
use DLockStandby;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $db = 'postgres';

my $number = 0;

# One partition, with leases of $ttl seconds.  Returns what came of it, and whether the
# machine was too slow to show it: whether something was answered so late that the lease
# may have ended, as it was to.
sub partition
{
	my ($ttl, $crash) = @_;
	my %got = (too_slow => 0);

	$number++;
	my $primary = start_node("primary$number", allows_streaming => 1);
	my $standby = make_standby($primary, "standby$number");
	make_synchronous($primary);

	# The second renewal is inside the bound of the first, and writes nothing.
	my $old = DLockSession->new($primary, $db, name => 'old');
	my $last = mono_now();
	my $renew = sub {
		my ($answer, $sent, $answered) = (outcome($old, "SELECT dlock_renew('name', 'alice')"), $old->{sent}, mono_now());

		$got{too_slow} = 1 if $answered > $last + $ttl;
		$last = $sent if $answer eq 't';
		return $answer;
	};
	$old->query_safe("SELECT dlock_acquire('name', 'alice', '$ttl s')");
	usleep(100_000);
	$got{first} = $renew->();
	my $first = $last;
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	cut_off($primary, $standby);
	$standby->promote;
	$old->query_safe("SET statement_timeout = '30 s'");
	$got{second} = $renew->();
	$old->query_safe("SET statement_timeout = '3 s'");

	my $new = DLockSession->new($standby, $db, name => 'new');
	$got{refused} = $new->query_safe("SELECT dlock_acquire('name', 'bob', '1 h')");
	if ($crash)
	{
		crash_node($standby);
		$standby->start;
		$new = DLockSession->new($standby, $db, name => 'new');
	}

	# The next renewals are to lie within what the first one wrote, which is a ttl more
	# than it promised.
	$got{too_slow} = 1 if mono_now() > $first + $ttl;

	# Until it has to write, which is not confirmed.
	my ($token, $answered, $renewals, $lost) = ('', 0, 0, 0);
	my $end = mono_now() + 10 * $ttl + 20;
	while ($token eq '' && mono_now() < $end)
	{
		if (!$lost)
		{
			$lost = $renew->() ne 't';
			$got{too_slow} = 1 if $renewals < 2 && ($lost || mono_now() > $first + $ttl);
			$renewals++ unless $lost;
		}
		$token = $new->query_safe("SELECT dlock_acquire('name', 'bob', '1 h')");
		$answered = mono_now();
		usleep(50_000);
	}
	@got{qw(renewals token late)} = ($renewals, $token, $answered - $last - $ttl);
	$new->quit;
	$old->query_safe('SET statement_timeout = 0');
	$old->quit;
	$standby->stop;
	crash_node($primary);
	return %got;
}

foreach my $case ('promoted', 'promoted, crashed')
{
	my $crash = $case ne 'promoted';
	my %got;

	# The old primary is to renew after the crash, too.
	foreach my $ttl ($crash ? (8, 24, 72) : (4, 12, 36))
	{
		%got = partition($ttl, $crash);
		last unless $got{too_slow};
		note "too slow for a ttl of $ttl s";
	}
	is($got{first}, 't', "$case: renewed, with a record");
	is($got{second}, 't', "$case: the primary that is cut off renews");
	is($got{refused}, '', "$case: held on the promoted");
	cmp_ok($got{renewals}, '>', 1, "$case: the old primary renews without writing");
	isnt($got{token}, '', "$case: the lock is granted in the end");
	cmp_ok($got{late}, '>=', 0, "$case: after the last deadline that was acknowledged");
}

done_testing();
