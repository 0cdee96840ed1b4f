# Proves: with synchronous replication no two owners hold a lock at a time, as far as
# they were told: the standby is promoted while the primary is only cut off, and goes
# on to renew what it need not write.  Also when the promoted server crashes.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";

use DLockFence;
use DLockSession;
use DLockStall;
use DLockStandby;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $db = 'postgres';

foreach my $case ('promoted', 'promoted, crashed')
{
	my $n = $case eq 'promoted' ? 1 : 2;
	my $ttl = 4 * $n;			# the old primary is to renew after the crash, too
	my $primary = start_node("primary$n", allows_streaming => 1);
	my $standby = make_standby($primary, "standby$n");
	make_synchronous($primary);

	# The second renewal is inside the bound of the first, and writes nothing.
	my $old = DLockSession->new($primary, $db, name => 'old');
	my $begin = mono_now();
	$old->query_safe("SELECT dlock_acquire('name', 'alice', '$ttl s')");
	usleep(100_000);
	my $renewed = $old->query_safe("SELECT dlock_renew('name', 'alice')");
	unless_stalled($begin, 1, sub { is($renewed, 't', "$case: renewed, with a record") });
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	cut_off($primary, $standby);
	$standby->promote;
	$old->query_safe("SET statement_timeout = '500 ms'");
	my $last = mono_now();
	$renewed = $old->query_safe("SELECT dlock_renew('name', 'alice')");

	my $new = DLockSession->new($standby, $db, name => 'new');
	my $refused = $new->query_safe("SELECT dlock_acquire('name', 'bob', '1 h')");
	unless_stalled(
		$begin, 2,
		sub {
			is($renewed, 't', "$case: the primary that is cut off renews");
			is($refused, '', "$case: held on the promoted");
		});
	if ($n == 2)
	{
		crash_node($standby);
		$standby->start;
		$new = DLockSession->new($standby, $db, name => 'new');
	}

	# Until it has to write, which is not confirmed.
	my ($token, $answered, $renewals, $lost) = ('', 0, 0, 0);
	my $end = mono_now() + 60;
	while ($token eq '' && mono_now() < $end)
	{
		my $sent = mono_now();
		my $answer = $lost ? '' : outcome($old, "SELECT dlock_renew('name', 'alice')");

		($last, $renewals) = ($sent, $renewals + 1) if $answer eq 't';
		$lost = $answer ne 't';
		$token = $new->query_safe("SELECT dlock_acquire('name', 'bob', '1 h')");
		$answered = mono_now();
		usleep(50_000);
	}
	unless_stalled(
		$begin, 3,
		sub {
			cmp_ok($renewals, '>', 1, "$case: the old primary renews without writing");
			isnt($token, '', "$case: the lock is granted in the end");
			cmp_ok($answered, '>=', $last + $ttl, "$case: after the last deadline that was acknowledged");
		});
	$new->quit;
	$old->query_safe('SET statement_timeout = 0');
	$old->quit;
	$standby->stop;
	crash_node($primary);
}

done_testing();
