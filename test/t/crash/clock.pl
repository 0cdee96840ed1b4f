# Proves, to the microsecond: a step of the wall clock, either way, on a live server or
# while it is down, neither shortens nor stretches a lease; after a boot, when only the wall
# clock can tell, a lease is never shorter than promised, and longer by dlock.max_clock_skew
# and up to two ttl at most.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_fault_node('main', conf => "dlock.max_clock_skew = 10s\n");
my $db = 'postgres';
my $session = DLockSession->new($node, $db);

# A crash; the server is down for so long, and the wall clock is set meanwhile.
sub crash
{
	my ($seconds, $wall) = @_;

	crash_node($node);
	$session->kill_client;
	advance($seconds);
	step_wall_clock($wall // 0);
	$node->start;
	$session = DLockSession->new($node, $db);
	return;
}

# With a crash another boot begins, and its clock anew.
sub reboot
{
	my ($seconds, $wall) = @_;

	next_boot();
	crash($seconds + 1_000_000, ($wall // 0) - 1_000_000);
	return;
}

sub try_acquire
{
	my ($name) = @_;
	return $session->query_safe("SELECT dlock_acquire('$name', 'taker', '1 h')");
}

# The lease ends after so many seconds, and not before.
sub ends_after
{
	my ($seconds, $name, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	remaining_is($session, $name, $seconds, "$test_name: what is left");
	advance($seconds - 0.000001, $session);
	is(try_acquire($name), '', "$test_name: refused before the deadline");
	advance(0.000001, $session);
	isnt(try_acquire($name), '', "$test_name: granted at it");
	$session->query_safe("SELECT dlock_release('$name', 'taker')");
	return;
}

# Jumps on a live server.
foreach my $jump (3600, -3600)
{
	my $expires = "SELECT extract(epoch FROM expires_at) FROM dlock_leases WHERE name = 'long'";
	$session->query_safe("SELECT dlock_acquire('short', 'alice', '2 min')");
	my $token = $session->query_safe("SELECT dlock_acquire('long', 'alice', '100 min')");
	my $before = $session->query_safe($expires);
	step_wall_clock($jump);
	is($session->query_safe($expires) - $before, $jump, "jump $jump: the server has seen it");
	is($session->query_safe("SELECT dlock_check('long', $token)"), 't', "jump $jump: held");
	remaining_is($session, 'long', 6000, "jump $jump");
	ends_after(120, 'short', "jump $jump");

	# Renewed after the jump, and jumped back.
	$session->query_safe("SELECT dlock_renew('long', 'alice', '15 min')");
	step_wall_clock(-$jump);
	ends_after(900, 'long', "jump $jump and back");
}

# Jumps with a crash, on the same boot.
foreach my $jump (3600, -3600)
{
	$session->query_safe("SELECT dlock_acquire('long', 'alice', '100 s'), dlock_acquire('short', 'alice', '3 s')");
	crash(2, $jump);
	remaining_is($session, 'long', 98, "crash and jump $jump");
	ends_after(1, 'short', "crash and jump $jump");
	ends_after(97, 'long', "crash and jump $jump: long");
}

# Another boot: its clock starts anew, so the wall clock has to tell, with
# dlock.max_clock_skew (10 s) in favour of the holder.
my $token = $session->query_safe("SELECT dlock_acquire('boot', 'alice', '100 s')");
$session->query_safe("SELECT dlock_acquire('boot-short', 'alice', '5 s')");
reboot(0);
remaining_is($session, 'boot', 110, 'booted: its time and the skew');
remaining_is($session, 'boot-short', 10, 'booted: a short one has no more than two ttl');
reboot(60);
remaining_is($session, 'boot', 50, 'booted and 60 s later');
is($session->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'boot-short'"), 0, 'booted and 60 s later: the short one has ended');
reboot(49.999999);
remaining_is($session, 'boot', 0.000001, 'booted in the last microsecond of the skew');
reboot(0.000001);
is($session->query_safe("SELECT dlock_check('boot', $token)"), 'f', 'booted a microsecond later: ended');
cmp_ok(try_acquire('boot'), '>', $token, 'booted a microsecond later: granted to another');

# The wall clock of the new boot is behind: two ttl, no more.
$session->query_safe("SELECT dlock_acquire('behind', 'alice', '5 s')");
reboot(1, -3600);
ends_after(10, 'behind', 'booted an hour back');

# A renewal after the boot runs on the clock of that boot.
$token = $session->query_safe("SELECT dlock_acquire('renewed', 'alice', '100 s')");
reboot(1, -3600);
$session->query_safe("SELECT dlock_renew('renewed', 'alice', '50 s')");
remaining_is($session, 'renewed', 50, 'renewed on another boot');
crash(0, -3600);
remaining_is($session, 'renewed', 50, 'renewed on another boot: kept over a crash of it');
is($session->query_safe("SELECT dlock_check('renewed', $token)"), 't', 'and with its token');

# So does each other record of what was loaded after the boot: that it is held once less,
# or in another mode.
$session->query_safe("SELECT dlock_acquire('counted', 'alice', '100 s', reentry => 'count') FROM generate_series(1, 2)");
$token = $session->query_safe("SELECT dlock_acquire('converted', 'alice', '100 s')");
reboot(1, -3600);
is($session->query_safe("SELECT dlock_release('counted', 'alice')"), 't', 'held once less on another boot');
isnt($session->query_safe("SELECT dlock_convert('converted', $token, 'shared')"), '', 'converted on another boot');
remaining_is($session, $_, 200, "$_ on another boot") foreach 'counted', 'converted';
crash(7, -3600);
remaining_is($session, $_, 193, "$_ on another boot: kept over a crash of it") foreach 'counted', 'converted';

$session->quit;
$node->stop;
log_is_clean($node);
done_testing();
