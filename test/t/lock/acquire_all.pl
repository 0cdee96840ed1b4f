# Proves: a request for several locks waits as a unit: it is granted all of them
# at one moment or none, is in the way of nobody it does not queue before, and
# never in a deadlock with another of its kind, whatever the order of the names.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockTest;
use Test::More;

# Nothing here may depend on looking again after a while.
my $node = start_fault_node('main', conf => "deadlock_timeout = 500h\n");
still_worker($node);
my $db = 'postgres';
my ($monitor, $one, $two, $three) = map { DLockSession->new($node, $db) } 1 .. 4;

sub leases_are
{
	my ($expected, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is( $monitor->query_safe(
			"SELECT string_agg(name || ' ' || owner, ', ' ORDER BY name, owner) FROM dlock_leases"),
		$expected, $test_name);
	return;
}

# Nothing is held while one of them is missing, whichever.
foreach my $held ('a', 'b', 'c')
{
	$one->query_safe("SELECT dlock_acquire('$held', 'one', '1 h')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire_all('{b,c,a}', 'two', '1 h', wait => NULL)");
	leases_are("$held one", "$held is missing: none is held");
	$one->query_safe("SELECT dlock_release('$held', 'one')");
	like($two->answer, qr/^\{\d+,\d+,\d+\}$/, "$held is there: all are granted");
	leases_are('a two, b two, c two', "$held is there: all are held");
	is($two->query_safe("SELECT dlock_release_all('two')"), 3, "$held is there: all are released");
}

# Missing ones come one by one.
{
	$one->query_safe("SELECT dlock_acquire_all('{a,b,c}', 'one', '1 h')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire_all('{c,b,a}', 'two', '1 h', wait => NULL)");
	foreach my $name ('b', 'a')
	{
		$one->query_safe("SELECT dlock_release('$name', 'one')");
		still_waits($monitor, "$name is there: it waits on", $two);
		is($monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE owner = 'two'"), 0, "$name is there: none is held");
	}
	$one->query_safe("SELECT dlock_release('c', 'one')");
	my $tokens = $two->answer;
	like($tokens, qr/^\{\d+,\d+,\d+\}$/, 'the last is there');
	is( $monitor->query_safe("SELECT array_agg(token ORDER BY name DESC) = '$tokens' FROM dlock_leases"),
		't', 'tokens in the order of the names');
	$two->query_safe("SELECT dlock_release_all('two')");
}

# It queues for each of its names, and others are served in their turn.
{
	$one->query_safe("SELECT dlock_acquire('b', 'one', '1 h')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire_all('{a,b,c}', 'two', '1 h', wait => NULL)");
	is( $monitor->query_safe(
			"SELECT string_agg(name || ' ' || owner || ' ' || request || ' ' || position || ' ' || pid, ', ' ORDER BY name) FROM dlock_waiters"),
		join(', ', map { "$_ two acquire 1 " . $two->pid } qw(a b c)),
		'a row for each of its names');
	$three->ask_waiting($monitor, "SELECT dlock_acquire('b', 'three', '1 h', wait => NULL)");
	$one->query_safe("SELECT dlock_release('b', 'one')");
	like($two->answer, qr/^\{/, 'it came first');
	still_waits($monitor, 'and the other one second', $three);
	$two->query_safe("SELECT dlock_release('b', 'two')");
	like($three->answer, qr/^\d+$/, 'who gets it then');
	$monitor->query_safe("SELECT dlock_release_all('two'), dlock_release_all('three')");
}

# It gives up: no lease, no place in a queue.
{
	$one->query_safe("SELECT dlock_acquire('b', 'one', '1 h')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire_all('{a,b,c}', 'two', '1 h', wait => '5 min') IS NULL");
	is(granted_at($monitor, $two, 300, 'time is over'), 't', 'time is over');
	$two->ask_waiting($monitor, "SELECT dlock_acquire_all('{a,b,c}', 'two', '1 h', wait => NULL)");
	$monitor->query_safe('SELECT pg_cancel_backend(' . $two->pid . ')');
	is($two->answer, 'ERROR 57014', 'cancelled');
	$two->ask_waiting($monitor, "SET lock_timeout = '5 min'; SELECT dlock_acquire_all('{a,b,c}', 'two', '1 h', wait => NULL)");
	is(granted_at($monitor, $two, 300, 'lock_timeout'), 'ERROR 55P03', 'lock_timeout');
	$two->ask_waiting($monitor, "SET lock_timeout = 0; SELECT dlock_acquire_all('{a,b,c}', 'two', '1 h', wait => NULL)");
	$monitor->query_safe('SELECT pg_terminate_backend(' . $two->pid . ')');
	like($two->answer, qr/^(?:FATAL 57P01|LOST)$/, 'terminated');
	$two->wait_backend_gone;
	leases_are('b one', 'nothing is left');
	is($monitor->query_safe('SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits');
	is($three->query_safe("SELECT cardinality(dlock_acquire_all('{a,c}', 'three', '1 h'))"), 2, 'the others are free');
	$monitor->query_safe("SELECT dlock_release_all('one'), dlock_release_all('three')");
	$two = DLockSession->new($node, $db);
}

# A missing one expires, with nobody to tidy up.
{
	$one->query_safe("SELECT dlock_acquire('a', 'one', '1 h'), dlock_acquire('c', 'one', '1 h')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire_all('{a,b,c}', 'two', '1 h', wait => NULL)");
	is($one->query_safe("SELECT dlock_renew('a', 'one', '20 min'), dlock_renew('c', 'one', '15 min')"), 't|t', 'to expire');
	like(granted_at($monitor, $two, 1200, 'expired, at the last deadline'), qr/^\{\d+,\d+,\d+\}$/, 'expired: granted');
	$two->query_safe("SELECT dlock_release_all('two')");
}

# A forced release of one that is held with others leaves the others.
{
	$one->query_safe("SELECT dlock_acquire_all('{a,b,c}', 'one', '1 h')");
	is($two->query_safe("SELECT dlock_force_release('b', 'test')"), 1, 'one is ended');
	leases_are('a one, c one', 'the others are held');
	$one->query_safe("SELECT dlock_release_all('one')");
}

# Two that hold one each and want both: it is no deadlock of their places in the
# queues, but one of what they hold.
{
	$_->query_safe("SET deadlock_timeout = '1 min'") foreach $one, $two;
	$one->query_safe("SELECT dlock_acquire('a', 'one', '1 h')");
	$two->query_safe("SELECT dlock_acquire('b', 'two', '1 h')");
	$one->ask_waiting($monitor, "SELECT dlock_acquire_all('{c,b}', 'one', '1 h', wait => NULL)");
	$two->ask_waiting($monitor, "SELECT dlock_acquire_all('{a,d}', 'two', '1 h', wait => NULL)");
	advance(60, $monitor);
	my ($victim) = wait_any(20, $one, $two);
	my ($other, $owner) = $victim == $one ? ($two, 'one') : ($one, 'two');
	is($victim->answer, 'ERROR 40P01', 'a deadlock of what they hold');
	$monitor->query_safe("SELECT dlock_release_all('$owner')");
	like($other->answer, qr/^\{\d+,\d+\}$/, 'the other one goes on');
	$monitor->query_safe("SELECT dlock_release_all('one'), dlock_release_all('two')");
}

$_->quit foreach $monitor, $one, $two, $three;
$node->stop;
log_is_clean($node);
done_testing();
