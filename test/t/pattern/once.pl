# Proves: of all who call dlock_once in a time slot one wins, across sessions,
# rollbacks, isolation levels, crashes, boots, a promotion, and whatever the wall
# clock does; slots that were won are never won again, and nobody waits.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockStandby;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $control = PostgreSQL::Test::Utils::tempdir . '/clock';
my %fake = fake_clock_env($control);
plan skip_all => 'no C compiler to build test/lib/fake_clock.c with'
  unless %fake;

my $hour = 3600;
my $day = 24 * $hour;

# Seconds to add so that it is a quarter past noon: what is less than half an hour
# from now is in the same hour.
my $noon = 12.25 * $hour - time % $day;
my %clock = (wall => $noon);
my $db = 'postgres';

sub set_clock
{
	my (%to) = @_;
	%clock = (%clock, %to);
	fake_clock_set($control, %clock);
	return;
}

sub start
{
	my ($node) = @_;
	local %ENV = (%ENV, %fake);
	$node->start;
	return;
}

sub crash
{
	my ($node) = @_;
	crash_node($node);
	start($node);
	return;
}

my $node = init_node('main', allows_streaming => 1, conf => <<'EOC');
fsync = on
max_connections = 40
dlock.max_clock_skew = 10s
dlock.max_ttl = 1d
EOC
set_clock();
start($node);
$node->safe_psql($db, 'CREATE EXTENSION dlock; CREATE ROLE app LOGIN; CREATE ROLE other LOGIN');
my ($one, $two) = map { DLockSession->new($node, $db, options => '-c statement_timeout=60s') } 1 .. 2;
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
crash($node);
$_->kill_client foreach $one, $two;
($one, $two) = map { DLockSession->new($node, $db, options => '-c statement_timeout=60s') } 1 .. 2;
loses($one, "'job', '1 h'", 'set back, and a crash');
set_clock(wall => $noon + 4 * $hour, boot_id => 'next');
crash($node);
$_->kill_client foreach $one, $two;
($one, $two) = map { DLockSession->new($node, $db, options => '-c statement_timeout=60s') } 1 .. 2;
loses($one, "'job', '1 h'", 'set back over a boot');
set_clock(wall => $noon + 5 * $hour);
loses($one, "'job', '1 h'", 'the slot that was won last');
set_clock(wall => $noon + 6 * $hour);
wins($one, "'job', '1 h'", 'the slot after that');

# The monotonic clock is past the end of the slot, the wall clock is not.
wins($one, "'slow', '1 h'", 'a slot');
set_clock(boottime => 2 * $hour);
loses($one, "'slow', '1 h'", 'longer than a slot by the monotonic clock');
is($one->query_safe("SELECT state FROM dlock_leases WHERE name = 'dlock:once/slow'"), 'closed', 'which ends its lease');
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
crash($node);
$_->kill_client foreach $one, $two;
($one, $two) = map { DLockSession->new($node, $db, options => '-c statement_timeout=60s') } 1 .. 2;
$one->query_safe("SET dlock.max_ttl = '7 d'");
loses($one, "'both', '7 days'", 'nor after a crash');
wins($one, "'forced', '1 day'", 'to be taken back');
is($one->query_safe("SELECT dlock_force_release('dlock:once/forced', 'run it again')"), 1, 'an operator takes it');
{
	my $lsn = $one->query_safe('SELECT pg_current_wal_insert_lsn()');
	ok($node->poll_query_until($db, "SELECT pg_current_wal_flush_lsn() >= '$lsn'"), 'that is on disk');
}
crash($node);
$_->kill_client foreach $one, $two;
($one, $two) = map { DLockSession->new($node, $db, options => '-c statement_timeout=60s') } 1 .. 2;
wins($one, "'forced', '1 day'", 'so it can be won again after a crash');
loses($one, "'forced', '1 day'", 'and once');

# The first win of a name lasts for the slot that it fell into, also if a slot ends
# at that moment: of as short ones as these, one ends in some calls of many.
{
	my $left = 'extract(epoch FROM expires_at - interval \'1 day\') * 1000000';
	my $end = '(floor(extract(epoch FROM granted_at) * 1000000 / 500) + 1) * 500';

	$one->query_safe("SELECT count(dlock_once('edge-' || i, '500 us')) FROM generate_series(1, 4000) i");
	# Several looks, since one reads the two clocks one after the other.
	my @forgotten = sort { $a <=> $b } map { $one->query_safe(
			"SELECT count(*) FROM dlock_leases WHERE name LIKE 'dlock:once/edge-%' AND $left < $end - 250") } 1 .. 5;
	is($forgotten[0], 0, 'none is forgotten before its slot');
	$one->query_safe("SELECT count(dlock_force_release(name, 'test')) FROM dlock_leases WHERE name LIKE 'dlock:once/edge-%'");
}

# Who is held up for 100 s between any two looks at the clocks, and wins, has the
# lease up to the end of the slot at least.
wins($one, "'held up', '1 h'", 'one to succeed');
foreach my $readings (1 .. 6)
{
	set_clock(
		wall => $clock{wall} + $hour + 100,
		boottime => ($clock{boottime} // 0) + $hour + 100,
		late => [ $one->pid, $readings, 100, 100 ]);
	wins($one, "'held up', '1 h'", "held up after reading $readings");
	is( $two->query_safe(
			"SELECT extract(epoch FROM expires_at) - (floor(extract(epoch FROM granted_at) / 3600) + 1) * 3600 BETWEEN -1 AND 101 FROM dlock_leases WHERE name = 'dlock:once/held up'"),
		't',
		"held up after reading $readings: the lease lasts for its slot");
}
set_clock(late => undef);

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
	crash($node);
	$_->kill_client foreach $one, $two;
	($one, $two) = map { DLockSession->new($node, $db, options => '-c statement_timeout=60s') } 1 .. 2;
	loses($one, "'dies', '1 h'", 'the server died');
}

# Roles: anybody wins, nobody takes it away.
{
	my $app = DLockSession->new($node, $db, user => 'app');
	my $other = DLockSession->new($node, $db, user => 'other');
	my $token = wins($app, "'roles', '1 h'", 'app wins');
	is($other->query("SELECT dlock_release_token('dlock:once/roles', $token)"), 'ERROR 42501', 'and others cannot release that');
	loses($other, "'roles', '1 h'", 'nor win');
	set_clock(wall => $clock{wall} + $hour);
	my $next = wins($other, "'roles', '1 h'", 'but they can win the next slot');
	is($app->query_safe("SELECT dlock_release_token('dlock:once/roles', $token)"), 'f', 'the old token is dead');
	is($app->query("SELECT dlock_release_token('dlock:once/roles', $next)"), 'ERROR 42501', 'the new one is the other role\'s');
	is($other->query_safe("SELECT role FROM dlock_leases WHERE name = 'dlock:once/roles'"), 'other', 'the lease is the other role\'s');
	is($other->query_safe("SELECT dlock_release_token('dlock:once/roles', $next)"), 't', 'the winner gives the slot back');
	wins($app, "'roles', '1 h'", 'so it can be won again');
	is($one->query_safe("SELECT dlock_force_release('dlock:once/roles', 'run it again')"), 1, 'an operator takes it');
	wins($app, "'roles', '1 h'", 'and it can be won again');
	$_->quit foreach $app, $other;
}

# Who watches sees the next winner.
{
	my $token = wins($one, "'watch', '1 h'", 'watched');

	# It must not find out by looking again.
	$two->query_safe("SET deadlock_timeout = '1 h'");
	$two->ask_waiting($one, "SELECT token FROM dlock_watch('dlock:once/watch', $token)");
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

	$one->query_safe(<<'EOC');
CREATE TABLE won (who int, token bigint, low bigint, high bigint);
CREATE FUNCTION slot() RETURNS bigint LANGUAGE sql AS $$ SELECT floor(extract(epoch FROM clock_timestamp()) * 20)::bigint $$;
CREATE PROCEDURE race(me int, until timestamptz) LANGUAGE plpgsql AS $$
DECLARE before bigint; token bigint;
BEGIN
	WHILE clock_timestamp() < until LOOP
		before := slot();
		token := dlock_once('race', '50 ms');
		IF token IS NOT NULL THEN
			INSERT INTO won VALUES (me, token, before, slot());
			COMMIT;
		END IF;
	END LOOP;
END $$;
EOC
	my $until = $one->query_safe("SELECT clock_timestamp() + '4 s'");
	$sessions[$_]->ask("CALL race($_, '$until')") foreach 0 .. $#sessions;
	$_->answer foreach @sessions;
	$_->quit foreach @sessions;
	note $one->query_safe('SELECT count(*), count(DISTINCT who), min(low), max(high) FROM won');
	cmp_ok($one->query_safe('SELECT count(*) FROM won'), '>=', 10, 'slots were won');
	is( $one->query_safe(
			'SELECT count(*) FROM (SELECT low FROM won WHERE low = high GROUP BY low HAVING count(*) > 1) twice'),
		0, 'none was won twice');
	is( $one->query_safe(
			'SELECT count(*) FROM (SELECT low, lag(low) OVER w AS before, high, lag(high) OVER w AS high_before FROM won WINDOW w AS (ORDER BY token)) o WHERE high < before OR high = before AND low = high AND high_before = before'),
		0, 'slots ascend with the tokens');
	is( $one->query_safe('SELECT count(*) <= max(high) - min(low) + 1 FROM won'), 't', 'no more wins than slots');
}

# A standby with a slow clock is promoted.
{
	my $its_control = PostgreSQL::Test::Utils::tempdir . '/clock_of_standby';
	my $standby = make_standby($node, 'standby', start => 0);
	{
		fake_clock_set($its_control, %clock, wall => $clock{wall} - 3 * $hour);
		local %ENV = (%ENV, %fake, FAKE_CLOCK_FILE => $its_control);
		$standby->start;
	}
	make_synchronous($node);
	my $token = wins($one, "'failover', '1 h'", 'won on the primary');
	$_->quit foreach $one, $two;
	crash_node($node);
	$standby->promote;
	$one = DLockSession->new($standby, $db);
	is($one->query_safe("SELECT clock_timestamp() < granted_at FROM dlock_leases WHERE name = 'dlock:once/failover'"), 't', 'the clock of the standby is behind');
	loses($one, "'failover', '1 h'", 'not won again after the promotion');
	fake_clock_set($its_control, %clock);
	loses($one, "'failover', '1 h'", 'nor when the clock has caught up');
	fake_clock_set($its_control, %clock, wall => $clock{wall} + $hour);
	wins($one, "'failover', '1 h'", 'the next slot');
	$one->quit;
	$standby->stop;
	unlike(slurp_file($standby->logfile), qr/PANIC|TRAP:/, 'nothing odd in the log of the standby');
}
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:/, 'nothing odd in the log');
done_testing();
