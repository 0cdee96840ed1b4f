# Proves: at whatever moment of its work the clock jumps under the reaper, as when
# the machine has slept, it goes on removing what has expired; and where several
# leases have expired at once it calls all requests that waited for them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $control = PostgreSQL::Test::Utils::tempdir . '/clock';
my %fake = fake_clock_env($control);
plan skip_all => 'no C compiler to build test/lib/fake_clock.c with' unless %fake;

# The reaper sweeps often, and stays for a second.
my $node = init_node('main', conf => "dlock.reap_interval = 200ms\n");
my $db = 'postgres';
{
	local %ENV = (%ENV, %fake);
	$node->start;
}
$node->safe_psql($db, 'CREATE EXTENSION dlock');
my $session = DLockSession->new($node, $db);
my $jump = 1000;
my $boottime = 0;

# How many leases have been granted that expire, and are counted by the reaper alone.
my $due = 0;

sub grant
{
	my ($name, $ttl) = @_;

	$session->query_safe("SELECT dlock_acquire('$name', 'holder', '$ttl')");
	$due++;
	return;
}

# Should the reaper have left before a jump, the launcher finds the lease: it looks each minute.
sub all_are_removed
{
	return wait_until(sub { $session->query_safe('SELECT expiries FROM dlock_stats') == $due }, 90);
}

# The reaper, with something to do so that there is one.  It leaves after a second.
sub find_reaper
{
	my $pid = '';

	ok( wait_until(
			sub {
				grant('spark', '1 ms');
				return all_are_removed() && ($pid = worker_pid($node, 'reaper', $db)) ne '';
			}),
		'a reaper is there');
	return $pid;
}

# It reads the clock a few times whenever it wakes.  Which of them finds the new
# BOOTTIME first is chance if it was at work just then: so it is done over, and with
# more readings than one round has.  When it stands still, that is for longer than the
# jump.
foreach my $readings ((0 .. 9) x 3)
{
	my $from = mono_now();
	my $reaper = find_reaper();

	grant("name-$boottime", '500 s');
	$boottime += $jump;
	fake_clock_set($control, boottime => $boottime, late => [ $reaper, $readings, $jump ]);
	ok(all_are_removed(), "a jump after $readings readings: removed") or last;

	# It may have left by now.  Another one has come if it had nothing to do for a second.
	my $now = worker_pid($node, 'reaper', $db);
	like($now, qr/^(?:$reaper)?$/, 'by that reaper') if mono_now() < $from + 1;
}

# The end of "first" lets a request for both locks be called; a request in front of
# it on "second", where all that was held is over, too, is not forgotten over that.
{
	my ($single, $several) = map { DLockSession->new($node, $db) } 1 .. 2;

	$session->query_safe("SELECT dlock_acquire('first', 'holder', '500 s'), dlock_acquire('second', 'holder', '600 s')");
	$single->ask_waiting($session, "SELECT dlock_acquire('second', 'single', '1 h', NULL, 'PW')");
	$several->ask_waiting($session, "SELECT dlock_acquire_all('{first,second}', 'several', '1 h', NULL, 'CR')");
	$boottime += $jump;
	fake_clock_set($control, boottime => $boottime);
	like($several->answer, qr/^\{\d+,\d+\}$/, 'several: granted');
	like($single->answer, qr/^\d+$/, 'and the request in front');
	is( $session->query_safe("SELECT string_agg(owner, ' ' ORDER BY owner) FROM dlock_leases WHERE name = 'second'"),
		'several single', 'both hold the lock');
	$_->quit foreach $single, $several;
}
$session->quit;
$node->stop;
done_testing();
