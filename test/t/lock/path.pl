# Proves: a path and its intents are one lease between sessions: granted together,
# ended together, and never half.

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
			"SELECT string_agg(name || ' ' || owner || ' ' || mode, ', ' ORDER BY name COLLATE \"C\", owner) FROM dlock_leases"),
		$expected, $test_name);
	return;
}

# One that wants the ancestor waits for those below, those below for it.
{
	my $first = $one->query_safe("SELECT dlock_acquire_path('a/b/c', 'one', '1 h')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire('a', 'two', '1 h', wait => NULL)");
	$three->ask_waiting($monitor, "SELECT dlock_acquire_path('a/b/d', 'three', '1 h', wait => NULL)");
	leases_are('a one CW, a/b one CW, a/b/c one exclusive', 'one that waits has no intents');
	is($one->query_safe("SELECT dlock_release_token('a/b/c', $first)"), 't', 'released');
	my $second = $two->answer;
	cmp_ok($second, '>', $first, 'the ancestor is granted');
	still_waits($monitor, 'what is below waits for it', $three);
	leases_are('a two exclusive', 'the ancestor alone');
	$two->query_safe("SELECT dlock_release_token('a', $second)");
	my $third = $three->answer;
	cmp_ok($third, '>', $second, 'then what is below');
	leases_are('a three CW, a/b three CW, a/b/d three exclusive', 'with its intents');
	is($three->query_safe("SELECT count(DISTINCT token), min(token) FROM dlock_leases"), "1|$third", 'and one token');

	# Siblings come and go meanwhile.
	cmp_ok($one->query("SELECT dlock_acquire_path('a/b/c', 'one', '1 h', wait => NULL)"), '>', $third, 'a sibling');
	cmp_ok($two->query("SELECT dlock_acquire_path('a/e', 'two', '1 h', wait => NULL)"), '>', $third, 'one further up');
	is($one->query_safe("SELECT dlock_release_all('one')"), 1, 'the sibling goes');
	leases_are('a three CW, a two CW, a/b three CW, a/b/d three exclusive, a/e two exclusive', 'the others stay');
	$monitor->query_safe("SELECT dlock_release_all('two'), dlock_release_all('three')");
	leases_are('', 'nothing is left');
}

# Several ancestors that are in the way at different times: all or nothing.
{
	$one->query_safe("SELECT dlock_acquire('a/b', 'b', '1 h'), dlock_acquire('a/b/c', 'c', '1 h', mode => 'shared')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire_path('a/b/c', 'two', '1 h', wait => NULL)");
	leases_are('a/b b exclusive, a/b/c c shared', 'two in the way');
	$one->query_safe("SELECT dlock_release('a/b', 'b')");
	still_waits($monitor, 'one of them gives way', $two);
	leases_are('a/b/c c shared', 'one that waits still has nothing');
	$one->query_safe("SELECT dlock_release('a/b/c', 'c')");
	like($two->answer, qr/^\d+$/, 'both gave way');
	leases_are('a two CW, a/b two CW, a/b/c two exclusive', 'now it has all of it');
	$monitor->query_safe("SELECT dlock_release_all('two')");

	# It gives up: nothing stays.
	$one->query_safe("SELECT dlock_acquire('a/b/c', 'c', '1 h')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire_path('a/b/c', 'two', '1 h', wait => '5 min') IS NULL");
	is(granted_at($monitor, $two, 300, 'time is over'), 't', 'time is over');
	leases_are('a/b/c c exclusive', 'time is over: nothing stays');
	$two->ask_waiting($monitor, "SELECT dlock_acquire_path('a/b/c', 'two', '1 h', wait => NULL)");
	$monitor->query_safe('SELECT pg_cancel_backend(' . $two->pid . ')');
	is($two->answer, 'ERROR 57014', 'cancelled');
	$two->ask_waiting($monitor, "SELECT dlock_acquire_path('a/b/c', 'two', '1 h', wait => NULL)");
	$monitor->query_safe('SELECT pg_terminate_backend(' . $two->pid . ')');
	like($two->answer, qr/^(?:FATAL 57P01|LOST)$/, 'terminated');
	$two->wait_backend_gone;
	leases_are('a/b/c c exclusive', 'cancelled and terminated: nothing stays');
	is($monitor->query_safe('SELECT count(*) FROM dlock_waiters'), 0, 'and nobody waits');
	cmp_ok($three->query("SELECT dlock_acquire('a', 'three', '1 h')"), '>', 0, 'nor are there intents that nobody sees');
	$monitor->query_safe("SELECT dlock_release_all('c'), dlock_release_all('three')");
	$two = DLockSession->new($node, $db);
}

# A forced release of an ancestor ends every path through it.
{
	my $first = $one->query_safe("SELECT dlock_acquire_path('a/b/c', 'one', '1 h')");
	my $second = $two->query_safe("SELECT dlock_acquire_path('a/d', 'two', '1 h')");
	$three->ask_waiting($monitor, "SELECT dlock_acquire_path('a/b/c', 'three', '1 h', wait => NULL)");
	my $forced = $monitor->query_safe("SELECT dlock_force_release('a/b', 'test')");
	is($forced, 1, 'one path through the ancestor is ended');
	cmp_ok($three->answer, '>', $second, 'and its successor has it');
	is($one->query_safe("SELECT dlock_check('a/b/c', $first), dlock_renew('a/b/c', 'one'), dlock_release_token('a/b/c', $first)"),
		'f|f|f', 'its holder has lost it');
	is($two->query_safe("SELECT dlock_check('a/d', $second)"), 't', 'the other path stays');
	leases_are('a three CW, a two CW, a/b three CW, a/b/c three exclusive, a/d two exclusive', 'no intent of it is left');
	is($monitor->query_safe("SELECT dlock_force_release('a', 'test')"), 2, 'two paths through the root are ended');
	leases_are('', 'all is gone');
}

# Paths that expire, with nobody to tidy up, hand on what they kept.
{
	my $token = $one->query_safe("SELECT dlock_acquire_path('a/b/c', 'one', '1 h')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire('a', 'two', '1 h', wait => NULL)");
	is($one->query_safe("SELECT dlock_renew('a/b/c', 'one', '5 min')"), 't', 'to expire');
	cmp_ok(granted_at($monitor, $two, 300, 'expired'), '>', $token, 'expired: the ancestor is handed on');
	leases_are('a two exclusive', 'expired: all of it is gone');
	$monitor->query_safe("SELECT dlock_release_all('two')");
}

# Two that hold paths and want each other's: a deadlock through ancestors.
{
	$_->query_safe("SET deadlock_timeout = '1 min'") foreach $one, $two;
	$one->query_safe("SELECT dlock_acquire_path('left/x', 'one', '1 h')");
	$two->query_safe("SELECT dlock_acquire_path('right/x', 'two', '1 h')");
	$one->ask_waiting($monitor, "SELECT dlock_acquire('right', 'one', '1 h', wait => NULL)");
	$two->ask_waiting($monitor, "SELECT dlock_acquire('left', 'two', '1 h', wait => NULL)");
	advance(60, $monitor);
	my ($victim) = wait_any(20, $one, $two);
	my $other = $victim == $one ? $two : $one;
	is($victim->answer, 'ERROR 40P01', 'a deadlock through ancestors');
	$monitor->query_safe("SELECT dlock_release_all('" . ($victim == $one ? 'one' : 'two') . "')");
	like($other->answer, qr/^\d+$/, 'the other one goes on');
	$monitor->query_safe("SELECT dlock_release_all('one'), dlock_release_all('two')");
	$_->query_safe('RESET deadlock_timeout') foreach $one, $two;
	leases_are('', 'nothing is left');
}

$_->quit foreach $monitor, $one, $two, $three;
$node->stop;
log_is_clean($node);
done_testing();
