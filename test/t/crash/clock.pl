# Proves: a step of the wall clock, either way, on a live server or while it is
# down, neither shortens nor stretches a lease; after a boot, when only the wall
# clock can tell, a lease is never shorter than promised and at most its ttl.

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
plan skip_all => 'no C compiler to build test/lib/fake_clock.c with'
  unless %fake;

my $node = init_node('main', conf => "dlock.max_clock_skew = 10s\n");
my $db = 'postgres';

# Every start of the server is one with the lying clock.
sub start
{
	local %ENV = (%ENV, %fake);
	$node->start;
	return;
}

sub crash
{
	my (%lie) = @_;
	crash_node($node);
	fake_clock_set($control, %lie);
	start();
	return;
}

start();
$node->safe_psql($db, 'CREATE EXTENSION dlock');
my $session = DLockSession->new($node, $db);

# The lie works at all.
my $true = $session->query_safe(
	"SELECT abs(extract(epoch FROM clock_timestamp()) - " . time . ") < 60");
is($true, 't', 'the clock is true at first');
fake_clock_set($control, wall => 3600);
is( $session->query_safe(
		"SELECT extract(epoch FROM clock_timestamp()) - " . time . " BETWEEN 3540 AND 3660"),
	't',
	'the wall clock has jumped');
fake_clock_set($control);

# Jumps on a live server.
foreach my $jump (3600, -3600)
{
	my $name = "live$jump";
	my (undef, $sent, $answered) = timed_query($session,
		"SELECT dlock_acquire('$name', 'alice', '2 s')");
	my ($token, $sent2, $answered2) = timed_query($session,
		"SELECT dlock_acquire('$name-long', 'alice', '100 s')");
	fake_clock_set($control, wall => $jump);
	is($session->query_safe("SELECT dlock_check('$name-long', $token)"),
		't', "jump $jump: held");
	remaining_is_exact($session, "$name-long", 100, $sent2, $answered2,
		"jump $jump");
	takeover_is_exact($session, $name, 2, $sent, $answered, "jump $jump");

	# Renewed after the jump, and jumped back.
	(undef, $sent, $answered) = timed_query($session,
		"SELECT dlock_renew('$name-long', 'alice', '1500 ms')");
	fake_clock_set($control);
	takeover_is_exact($session, "$name-long", 1.5, $sent, $answered,
		"jump $jump and back");
}
$session->query_safe("SELECT dlock_release_all('taker')");

# Jumps with a crash, on the same boot: to the microsecond.
foreach my $jump (3600, -3600)
{
	my (undef, $sent, $answered) = timed_query($session,
		"SELECT dlock_acquire('crash$jump', 'alice', '100 s')");
	my (undef, $sent2, $answered2) = timed_query($session,
		"SELECT dlock_acquire('crash$jump-short', 'alice', '3 s')");
	$session->quit;
	crash(wall => $jump);
	$session = DLockSession->new($node, $db);
	remaining_is_exact($session, "crash$jump", 100, $sent, $answered,
		"crash and jump $jump");
	takeover_is_exact($session, "crash$jump-short", 3, $sent2, $answered2,
		"crash and jump $jump");
	is( $session->query_safe(
			"SELECT dlock_acquire('crash$jump', 'bob', '1 h')"),
		'',
		"crash and jump $jump: refused");
}
$session->query_safe(
	"SELECT dlock_release_all('taker') + dlock_release_all('alice')");
$session->quit;
crash();
$session = DLockSession->new($node, $db);

# Another boot: its clock starts anew, so the wall clock has to tell, with
# dlock.max_clock_skew (10 s) in favour of the holder.
my $boots = 0;

# A crash on the same boot, and one with which another boot begins.
sub crash_on_boot
{
	my (%lie) = @_;
	$session->quit;
	crash(
		boottime => 1_000_000 * $boots,
		boot_id => sprintf('00000000-0000-0000-0000-%012d', $boots),
		%lie);
	$session = DLockSession->new($node, $db);
	return;
}

sub reboot
{
	$boots++;
	return crash_on_boot(@_);
}

my ($token, $sent, $answered) = timed_query($session,
	"SELECT dlock_acquire('boot', 'alice', '100 s')");
my (undef, $sent2, $answered2) = timed_query($session,
	"SELECT dlock_acquire('boot-short', 'alice', '5 s')");
my $down = mono_now();
reboot();
my $left = $session->query_safe(
	"SELECT extract(epoch FROM remaining) FROM dlock_leases WHERE name = 'boot'"
);
my $now = mono_now();

# The wall clock's own slewing is all that may differ.
cmp_ok($left, '>=', $sent + 100 - $now - 0.1, 'booted: not shortened');
cmp_ok($left, '>', $sent + 100 - $now + 1,
	'booted: stretched by the clock skew') if $now - $sent > 1.5;
cmp_ok($left, "<=", 110, "booted: no more than its bound and the skew");
$left = $session->query_safe(
	"SELECT extract(epoch FROM remaining) FROM dlock_leases WHERE name = 'boot-short'"
);
cmp_ok($left || 0, "<=", 10, "booted: a short one has no more than two ttl");
cmp_ok($left || 0, '>', 0, 'booted: a short one is held')
  if mono_now() - $down < 4;

# Down for most of its ttl, by the wall clock.
reboot(wall => 60);
remaining_is_exact($session, 'boot', 100 - 60 + 10,
	$sent, $answered, 'booted and 60 s later', 0.2);

# Down for longer than its ttl and the skew.
reboot(wall => 115);
is($session->query_safe("SELECT dlock_check('boot', $token)"),
	'f', 'booted 115 s later: ended');
cmp_ok(
	$session->query_safe("SELECT dlock_acquire('boot', 'bob', '1 h')"),
	'>', $token, 'booted 115 s later: granted to another');

# The wall clock of the new boot is behind: two ttl, no more.
(undef, $sent, $answered) = timed_query($session,
	"SELECT dlock_acquire('behind', 'alice', '5 s')");
$down = mono_now();
reboot(wall => -3600);
$left = $session->query_safe(
	"SELECT extract(epoch FROM remaining) FROM dlock_leases WHERE name = 'behind'"
);
cmp_ok($left || 0, '>', 0, 'booted an hour back: held')
  if mono_now() - $down < 4;
cmp_ok($left || 0, "<=", 10, "booted an hour back: no more than two ttl");
ok( wait_until(
		sub {
			$session->query_safe("SELECT dlock_acquire('behind', 'bob', '1 h')")
			  ne '';
		},
		20),
	'booted an hour back: ends');

# A renewal after the boot runs on the clock of that boot.
($token, $sent, $answered) = timed_query($session,
	"SELECT dlock_acquire('renewed', 'alice', '100 s')");
reboot(wall => -3600);
(undef, $sent, $answered) = timed_query($session,
	"SELECT dlock_renew('renewed', 'alice', '50 s')");
remaining_is_exact($session, 'renewed', 50, $sent, $answered,
	'renewed on another boot');
crash_on_boot(wall => -3600);
$left = $session->query_safe(
	"SELECT extract(epoch FROM remaining) FROM dlock_leases WHERE name = 'renewed'"
);
cmp_ok($left, '>=', $sent + 50 - mono_now(),
	'renewed on another boot: kept over a crash of it');
is($session->query_safe("SELECT dlock_check('renewed', $token)"),
	't', 'and with its token');

# So does each other record of what was loaded after the boot: that it is held once less,
# or in another mode.
my $left_of = sub {
	my $asked = mono_now();
	my $answer = $session->query_safe("SELECT extract(epoch FROM remaining) FROM dlock_leases WHERE name = '$_[0]'");
	return $asked + $answer;
};
$session->query_safe("SELECT dlock_acquire('counted', 'alice', '100 s', reentry => 'count') FROM generate_series(1, 2)");
$token = $session->query_safe("SELECT dlock_acquire('converted', 'alice', '100 s')");
reboot(wall => -3600);
my %ends = map { $_ => $left_of->($_) } qw(counted converted);
is($session->query_safe("SELECT dlock_release('counted', 'alice')"), 't', 'held once less on another boot');
isnt($session->query_safe("SELECT dlock_convert('converted', $token, 'shared')"), '', 'converted on another boot');
crash_on_boot(wall => -3600);
cmp_ok($left_of->($_), '>=', $ends{$_} - 0.1, "$_ on another boot: kept over a crash of it") foreach sort keys %ends;
$session->quit;

$node->stop;
done_testing();
