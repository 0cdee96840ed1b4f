# Proves: at whatever moment of its work the clock jumps under the worker, as when
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

my $node = init_node('main');
my $db = 'postgres';
{
	local %ENV = (%ENV, %fake);
	$node->start;
}
$node->safe_psql($db, 'CREATE EXTENSION dlock');
my $session = DLockSession->new($node, $db);
my $jump = 1000;
my $boottime = 0;

# How many leases have been granted that expire, and are counted by the worker alone.
my $due = 0;

sub grant
{
	my ($name, $ttl) = @_;

	$session->query_safe("SELECT dlock_acquire('$name', 'holder', '$ttl')");
	$due++;
	return;
}

sub all_are_removed
{
	return wait_until(sub { $session->query_safe('SELECT expiries FROM dlock_stats') == $due }, 90);
}

my $worker = worker_pid($node);

# It reads the clock a few times whenever it wakes.  Which of them finds the new
# BOOTTIME first is chance if it was at work just then: so it is done over, and with
# more readings than one round has.  When it stands still, that is for longer than the
# jump.
foreach my $readings ((0 .. 9) x 3)
{
	grant("name-$boottime", '500 s');
	$boottime += $jump;
	fake_clock_set($control, boottime => $boottime, late => [ $worker, $readings, $jump ]);
	kill 'USR1', $worker;	# it sleeps by the clock as it was
	ok(all_are_removed(), "a jump after $readings readings: removed") or last;
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
