# Proves: of all who call dlock_once in a time slot one wins, across sessions,
# rollbacks, isolation levels, crashes, boots, a promotion, and whatever the wall
# clock does, also to one that is held up between any two looks at the clocks; slots that
# were won are never won again, and nobody waits.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockStandby;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $hour = 3600;
my $day = 24 * $hour;

# Seconds to add so that it is a quarter past noon: what is less than half an hour
# from now is in the same hour.
my $noon = 12.25 * $hour - time % $day;
my %clock = (wall => $noon, boottime => 0);
my $db = 'postgres';

step_wall_clock($noon);
my $node = start_fault_node('main', allows_streaming => 1, conf => <<'EOC');
max_connections = 40
dlock.max_clock_skew = 10s
dlock.max_ttl = 1d
EOC
still_worker($node);
$node->safe_psql($db, 'CREATE ROLE app LOGIN; CREATE ROLE other LOGIN');
my ($one, $two);

sub connect_all
{
	($one, $two) = open_sessions($node, $db, 2, name => 's', options => '-c statement_timeout=60s');
	return;
}
connect_all();

# Set the wall clock ahead of the machine's, or let time pass by the monotonic one alone.
sub set_clock
{
	my (%to) = @_;

	if (defined $to{boottime})
	{
		my $seconds = $to{boottime} - $clock{boottime};

		advance($seconds, $one);
		step_wall_clock(-$seconds);
	}
	step_wall_clock($to{wall} - $clock{wall}) if defined $to{wall};
	%clock = (%clock, %to);
	return;
}

sub crash
{
	crash_node($node);
	$node->start;
	$_->kill_client foreach $one, $two;
	connect_all();
	return;
}

my $last = 0;

# It wins, with a token above all before.
sub wins
{
	my ($session, $args, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $token = $session->query("SELECT dlock_once($args)");

	like($token, qr/^\d+$/, $test_name) or return 0;
	cmp_ok($token, '>', $last, "$test_name: the token is above the last");
	return $last = $token;
}

sub loses
{
	my ($session, $args, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($session->query("SELECT dlock_once($args)"), '', $test_name);
	return;
}

# One slot after the other.
wins($one, "'job', '1 h'", 'the first one wins');
loses($one, "'job', '1 h'", 'and not twice');
loses($two, "'job', '1 h'", 'nor anybody else');
wins($two, "'other', '1 h'", 'another name is another matter');
set_clock(wall => $noon + $hour);
wins($two, "'job', '1 h'", 'the next slot');
loses($one, "'job', '1 h'", 'the next slot, once');
set_clock(wall => $noon + 5 * $hour);
wins($one, "'job', '1 h'", 'a slot after some that nobody called in');

# The wall clock is set back: what was won, or is before that, is not won again.
set_clock(wall => $noon + 4 * $hour);
loses($one, "'job', '1 h'", 'set back by an hour');
set_clock(wall => $noon - 5 * $hour);
loses($one, "'job', '1 h'", 'set back by many hours');
crash();
loses($one, "'job', '1 h'", 'set back, and a crash');
set_clock(wall => $noon + 4 * $hour);
next_boot();
crash();
loses($one, "'job', '1 h'", 'set back over a boot');
set_clock(wall => $noon + 5 * $hour);
loses($one, "'job', '1 h'", 'the slot that was won last');
set_clock(wall => $noon + 6 * $hour);
wins($one, "'job', '1 h'", 'the slot after that');

# The monotonic clock is past the end of the slot, the wall clock is not.
wins($one, "'slow', '1 h'", 'a slot');
set_clock(boottime => 2 * $hour);
loses($one, "'slow', '1 h'", 'longer than a slot by the monotonic clock');
is($one->query_safe("SELECT state FROM dlock_leases WHERE name = 'once:slow'"), 'closed', 'which ends its lease');
set_clock(wall => $noon + 8 * $hour);
wins($one, "'slow', '1 h'", 'the next slot by the wall clock');

# A clock that was wrong by years does not keep it closed for years.
set_clock(wall => $noon + 3650 * $day);
wins($one, "'years', '1 h'", 'ten years ahead');
set_clock(wall => $noon + 8 * $hour);
loses($one, "'years', '1 h'", 'and back: its slot is to come');
set_clock(boottime => 2 * $hour + 26 * $hour);
wins($one, "'years', '1 h'", 'not for ever');
loses($one, "'years', '1 h'", 'and once');

# The length changes: what counts is when it was won.
wins($one, "'length', '1 h'", 'an hour');
loses($one, "'length', '1 day'", 'the same day');
set_clock(wall => $noon + 9 * $hour);
loses($one, "'length', '1 day'", 'still the same day');
wins($one, "'length', '1 h'", 'another hour');
set_clock(wall => $noon + 32 * $hour);
wins($one, "'length', '1 day'", 'another day');
loses($one, "'length', '1 h'", 'the same hour');
is($one->query("SELECT dlock_once('week', '7 days')"), 'ERROR 22023', 'a week, which is longer than dlock.max_ttl');

# From here on it is the first day of a week: of seven days, counted from 1970.
set_clock(wall => $clock{wall} + (-int((time + $clock{wall}) / $day) % 7) * $day);
$one->query_safe("SET dlock.max_ttl = '7 d'");
wins($one, "'week', '7 days'", 'a week');
set_clock(wall => $clock{wall} + 7 * $day);
wins($one, "'week', '7 days'", 'the next week');

# A shorter slot does not make the longer one be forgotten.
wins($one, "'both', '7 days'", 'seven days');
set_clock(wall => $clock{wall} + $hour);
$one->query_safe('RESET dlock.max_ttl');
wins($one, "'both', '1 h'", 'an hour of these');
set_clock(boottime => $clock{boottime} + 27 * $hour);
$one->query_safe("SET dlock.max_ttl = '7 d'");
loses($one, "'both', '7 days'", 'the hour and dlock.max_ttl are over, the seven days are not');
crash();
$one->query_safe("SET dlock.max_ttl = '7 d'");
loses($one, "'both', '7 days'", 'nor after a crash');
wins($one, "'forced', '1 day'", 'to be taken back');
is($one->query_safe("SELECT dlock_force_release('once:forced', 'run it again')"), 1, "an operator $_ it") foreach qw(takes opens);
flush_wal($node, $db);
crash();
wins($one, "'forced', '1 day'", 'so it can be won again after a crash');
loses($one, "'forced', '1 day'", 'and once');

# When the slot that a win of $name fell into ends, and its lease; if that is over, the name
# stays closed for dlock.max_ttl.
sub ends
{
	my ($name) = @_;

	return split /\|/, $two->query_safe(<<"EOC");
SELECT (floor(extract(epoch FROM granted_at) / $hour) + 1) * $hour, extract(epoch FROM expires_at - CASE state WHEN 'closed' THEN interval '1 day' ELSE '0' END)
FROM dlock_leases WHERE name = 'once:$name'
EOC
}

# Set the wall clock to so many seconds before the next hour.
sub set_before_hour
{
	my ($seconds) = @_;
	$two->query_safe("SELECT dlock_acquire('probe', 'probe', '1 h', reentry => 'deny')");
	my $now = $two->query_safe("SELECT extract(epoch FROM granted_at) FROM dlock_leases WHERE name = 'probe'");
	$two->query_safe("SELECT dlock_release('probe', 'probe')");
	my $us = sprintf '%.0f', $now * 1e6;
	my $step = ($hour * 1e6 - $us % ($hour * 1e6)) / 1e6 - $seconds;
	set_clock(wall => $clock{wall} + $step);
	return;
}

# The first win of a name lasts for the slot that it fell into, also if a slot ends
# at that moment.
foreach my $seconds (0.000001, 0, -0.000001)
{
	set_before_hour($seconds);
	wins($one, "'edge$seconds', '1 h'", "$seconds s before a slot ends");
	my ($slot, $lease) = ends("edge$seconds");
	cmp_ok($lease, '==', $slot, "$seconds s before a slot ends: the lease lasts for its slot");
}

# Held up for 100 s after any look at the clocks, in the midst of a slot or at its end, the
# first to win a name or one who succeeds: if it wins, it has the lease up to the end of the
# slot at least, and a slot that another one has won meanwhile is not won again.
foreach my $case ([ 'in a slot', 1000 ], [ 'at its end', 0.000001 ])
{
	my ($when, $before) = @$case;

	foreach my $first (0, 1)
	{
		my $held_up = 1;
		for (my $reading = 1; $held_up; $reading++)
		{
			my $name = ($first ? 'first' : 'next') . " $when $reading";
			my $label = "$name, held up";

			# The lease of the last win has ended.
			wins($one, "'$name', '1 h'", "$label: before") if !$first;
			advance($hour, $two);
			set_before_hour($before);
			stop_at($two, $one, 'clock', $reading);
			$one->ask("SELECT dlock_once('$name', '1 h')");
			$held_up = wait_until(sub { $one->answered || faults_hit($two, 'clock') }) && faults_hit($two, 'clock');
			advance(100, $two) if $held_up;
			go($two, 'clock');
			my $token = $one->answer;
			like($token, qr/^\d+$/, "$label: it wins");
			my ($slot, $lease) = ends($name);
			cmp_ok($lease, '>=', $slot, "$label: the lease lasts for its slot");
			cmp_ok($lease, '<=', $slot + 100, "$label: and no longer than it was held up");
			$last = $token;
			cmp_ok($reading, '>', 2, "$label: all looks were tried") if !$held_up;
		}
	}
}

# Transactions: a rollback opens nothing, an open one holds nobody up.
foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my $wall = $clock{wall};

	$one->query_safe("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM pg_class");
	$two->query_safe("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM pg_class");
	wins($one, "'$level', '1 h'", "$level: won in a transaction");
	loses($two, "'$level', '1 h'", "$level: it is open");
	set_clock(wall => $wall + $hour);
	wins($two, "'$level', '1 h'", "$level: the next slot is won while that is open");
	loses($one, "'$level', '1 h'", "$level: and the first one learns of it");
	is($one->query_safe('COMMIT; SELECT 1'), '1', "$level: the first one commits");
	is($two->query_safe('ROLLBACK; SELECT 1'), '1', "$level: the second one does not");
	loses($one, "'$level', '1 h'", "$level: a rollback opens nothing");
	set_clock(wall => $wall + 2 * $hour);
}
is($one->query("BEGIN READ ONLY; SELECT dlock_once('read', '1 h')"), 'ERROR 25006', 'read-only transaction');
$one->query_safe('ROLLBACK; SELECT 1');

# The winner's session dies.
{
	my $three = DLockSession->new($node, $db);
	wins($three, "'dies', '1 h'", 'one that will die');
	$one->query_safe('SELECT pg_terminate_backend(' . $three->pid . ')');
	$three->wait_backend_gone;
	loses($one, "'dies', '1 h'", 'its session died');
	crash();
	loses($one, "'dies', '1 h'", 'the server died');
}

# Roles: anybody wins, nobody takes it away.
{
	my $app = DLockSession->new($node, $db, user => 'app');
	my $other = DLockSession->new($node, $db, user => 'other');
	my $token = wins($app, "'roles', '1 h'", 'app wins');
	is($other->query("SELECT dlock_release_token('once:roles', $token)"), 'ERROR 42501', 'and others cannot release that');
	loses($other, "'roles', '1 h'", 'nor win');
	set_clock(wall => $clock{wall} + $hour);
	my $next = wins($other, "'roles', '1 h'", 'but they can win the next slot');
	is($app->query_safe("SELECT dlock_release_token('once:roles', $token)"), 't', 'app can give its old slot up');
	is($app->query("SELECT dlock_release_token('once:roles', $next)"), 'ERROR 42501', 'the new one is the other role\'s');
	is($other->query_safe("SELECT role FROM dlock_leases WHERE name = 'once:roles'"), 'other', 'the lease is the other role\'s');
	is($other->query_safe("SELECT dlock_release_token('once:roles', $next)"), 't', 'the winner gives the slot back');
	wins($app, "'roles', '1 h'", 'so it can be won again');
	is($one->query_safe("SELECT dlock_force_release('once:roles', 'run it again')"), 1, 'an operator takes it');
	loses($other, "'roles', '1 h'", 'which leaves the lock closed');
	is($one->query_safe("SELECT dlock_force_release('once:roles', 'run it again')"), 1, 'an operator opens it');
	wins($app, "'roles', '1 h'", 'and it can be won again');
	$_->quit foreach $app, $other;
}

# Who watches sees the next winner.
{
	my $token = wins($one, "'watch', '1 h'", 'watched');

	# It cannot find out by looking again: its clock stands still.
	$two->ask_waiting($one, "SELECT token FROM dlock_watch('once:watch', $token)");
	set_clock(wall => $clock{wall} + $hour);
	my $next = wins($one, "'watch', '1 h'", 'the next slot');
	is($two->answer, $next, 'who watches is told');
}

# All at once, over slot after slot: one in each.
{
	my @sessions = map { DLockSession->new($node, $db) } 1 .. 16;
	$_->ask(<<'EOC') foreach @sessions;
SELECT sum((dlock_once('many-' || i, '1 day') IS NOT NULL)::int) FROM generate_series(1, 500) i
EOC
	my $sum = 0;
	$sum += $_->answer foreach @sessions;
	is($sum, 500, '16 sessions, 500 names: one wins each');

	foreach my $round (1 .. 20)
	{
		set_clock(wall => $clock{wall} + $hour);
		$_->ask("SELECT dlock_once('race', '1 h')") foreach @sessions;
		my @won = grep { $_ ne '' } answers_in_order(@sessions);
		is(scalar @won, 1, "slot $round: one wins");
		cmp_ok($won[0], '>', $last, "slot $round: tokens ascend with the slots");
		$last = $won[0];
	}
	$_->quit foreach @sessions;
}

# A standby with a slow clock is promoted.
{
	my $its_clock = another_clock();
	my $standby = make_standby($node, 'standby', start => 0);
	{
		step_wall_clock(-3 * $hour, $its_clock);
		local $ENV{DLOCK_TEST_CLOCK} = $its_clock;
		$standby->start;
	}
	make_synchronous($node);
	my $token = wins($one, "'failover', '1 h'", 'won on the primary');
	$_->quit foreach $one, $two;
	crash_node($node);
	$standby->promote;
	$one = DLockSession->new($standby, $db);
	$one->query_safe("SELECT dlock_acquire('probe', 'probe', '1 h')");
	is($one->query_safe("SELECT p.granted_at < f.granted_at FROM dlock_leases p, dlock_leases f WHERE p.name = 'probe' AND f.name = 'once:failover'"),
		't', 'the clock of the standby is behind');
	loses($one, "'failover', '1 h'", 'not won again after the promotion');
	step_wall_clock(3 * $hour, $its_clock);
	loses($one, "'failover', '1 h'", 'nor when the clock has caught up');
	step_wall_clock($hour, $its_clock);
	wins($one, "'failover', '1 h'", 'the next slot');
	$one->quit;
	$standby->stop;
	unlike(slurp_file($standby->logfile), qr/PANIC|TRAP:/, 'nothing odd in the log of the standby');
}
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:/, 'nothing odd in the log');
done_testing();
