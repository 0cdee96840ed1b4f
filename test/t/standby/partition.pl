# Proves: with synchronous replication no two owners hold a lock at a time, as far as
# they were told: the standby is promoted while the primary is only cut off, and goes
# on to renew what it need not write.  Also when the promoted server crashes.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockStandby;
use DLockTest;
use Test::More;

my $db = 'postgres';
my $ttl = 60;

foreach my $case ('promoted', 'promoted and crashed')
{
	my $number = $case eq 'promoted' ? 1 : 2;
	my $primary = start_fault_node("primary$number", allows_streaming => 1);
	my $standby = make_standby($primary, "standby$number");
	make_synchronous($primary);
	my ($old, $its_control) = open_sessions($primary, $db, 2, name => 'old');
	my $renew = "SELECT dlock_renew('name', 'alice')";

	# The first renewal writes that the lease may be renewed up to two ttl from then; the
	# second, and all up to a ttl later, write nothing.
	$old->query_safe("SELECT dlock_acquire('name', 'alice', '$ttl s')");
	advance(1, $its_control);
	is($old->query_safe($renew), 't', "$case: renewed, with a record");
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	cut_off($primary, $standby);
	$standby->promote;
	advance(1, $its_control);
	is($old->query_safe($renew), 't', "$case: the primary that is cut off renews");
	my $new = DLockSession->new($standby, $db, name => 'new');
	my $acquire = "SELECT dlock_acquire('name', 'bob', '1 h')";
	is($new->query_safe($acquire), '', "$case: held on the promoted");
	if ($case ne 'promoted')
	{
		crash_node($standby);
		advance(1, $its_control);
		$standby->start;
		$new->kill_client;
		$new = DLockSession->new($standby, $db, name => 'new');
		is($new->query_safe($acquire), '', "$case: held on the promoted after the crash");
	}
	else
	{
		advance(1, $its_control, $new);
	}

	# A second after the second renewal, 58 before the last one that need not be written.
	foreach my $step (28, 29.999999, 0.000001)
	{
		advance($step, $its_control, $new);
		is($old->query_safe($renew), 't', "$case: the old primary renews without writing");
		is($new->query_safe($acquire), '', "$case: and the promoted does not grant");
	}

	# One that has to write is not confirmed.
	advance(0.000001, $its_control, $new);
	$old->ask($renew);
	ok( wait_until(
			sub { $its_control->query_safe("SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = " . $old->pid) eq 't' }),
		"$case: a renewal that is written waits for the standby");
	advance($ttl - 0.000002, $its_control, $new);
	is($new->query_safe($acquire), '', "$case: refused in the last microsecond that the old primary has promised");
	advance(0.000001, $its_control, $new);
	isnt($new->query_safe($acquire), '', "$case: granted then");
	is($its_control->query_safe("SELECT pg_cancel_backend($old->{pid})"), 't', "$case: the renewal is cancelled");
	isnt($old->answer, 't', "$case: it was never confirmed");
	$_->quit foreach $new, $old, $its_control;
	$standby->stop;
	crash_node($primary);
}

done_testing();
