# Proves: dlock_waiters shows who waits for what, since when, in which place and
# behind whom, and nobody else; waits have events of their own; slow ones are
# logged as log_lock_waits says.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', conf => <<'EOC');
log_min_messages = log
deadlock_timeout = 1h
EOC
my $db = 'postgres';
$node->safe_psql($db, 'CREATE ROLE waits LOGIN; CREATE ROLE looks LOGIN; CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION dlock');
my $monitor = DLockSession->new($node, $db);
my @session = map { DLockSession->new($node, $db) } 0 .. 3;
my $waits = DLockSession->new($node, $db, user => 'waits');
my $looks = DLockSession->new($node, $db, user => 'looks');

sub rows
{
	my ($columns, $where) = @_;
	$where //= 'true';
	return $monitor->query_safe(
		"SELECT $columns FROM dlock_waiters WHERE $where ORDER BY name, position");
}

# One that waits.
{
	$session[0]->query_safe("SELECT dlock_acquire('lock', 'holder', '1 h')");
	my $before = $monitor->query_safe('SELECT clock_timestamp()');
	$waits->ask_waiting($monitor, "SELECT dlock_acquire('lock', 'waiter', '1 h', wait => '1 h')");
	my $after = $monitor->query_safe('SELECT clock_timestamp()');
	is(rows('name, owner, mode, permits IS NULL, request, position, pid, role, blocked_by'),
		'lock|waiter|exclusive|t|acquire|1|' . $waits->pid . '|waits|{holder}', 'one that waits');
	is(rows("since BETWEEN '$before' AND '$after', waited BETWEEN statement_timestamp() - '$after' - interval '1 ms' AND clock_timestamp() - '$before' + interval '1 ms'"), 't|t', 'since when');
	my $waited = rows('waited');
	ok(wait_until(sub { rows("waited > '$waited'::interval + '50 ms'") eq 't' }), 'time passes');
	is($looks->query_safe('SELECT name, owner, role, blocked_by FROM dlock_waiters'), 'lock|waiter|waits|{holder}', 'any role may look');
	is($node->safe_psql('other', 'SELECT count(*) FROM dlock_waiters'), 0, 'not from another database');

	# The events.
	my $version = $monitor->query_safe('SHOW server_version_num');
	my $event = sub {
		return $monitor->query_safe("SELECT wait_event_type, wait_event, state FROM pg_stat_activity WHERE pid = " . $_[0]->pid);
	};
	is($event->($waits), 'Extension|' . ($version >= 170000 ? 'DLockAcquire' : 'Extension') . '|active', 'its wait event');
	$session[1]->ask_waiting($monitor, "SELECT * FROM dlock_watch('lock', (SELECT token FROM dlock_leases WHERE name = 'lock'))");
	is($event->($session[1]), 'Extension|' . ($version >= 170000 ? 'DLockWatch' : 'Extension') . '|active', 'that of a watcher');
	is(rows('owner'), 'waiter', 'a watcher is not among those who wait');

	# It holds nothing that others would wait for.
	is( $monitor->query_safe(
			'SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid IN (' . $waits->pid . ',' . $session[1]->pid . ')'),
		0, 'they have no transaction id');
	is( $monitor->query_safe(
			"SELECT count(*) FROM pg_locks WHERE pid IN (" . $waits->pid . ',' . $session[1]->pid . ") AND relation IN ('_dlock.store'::regclass, '_dlock.token_seq'::regclass)"),
		0, 'nor a lock of the tables');

	$session[0]->query_safe("SELECT dlock_release('lock', 'holder')");
	like($waits->answer, qr/^\d+$/, 'granted');
	like($session[1]->answer, qr/\|waiter\||^\|+$/, 'watched');
	is(rows('owner'), '', 'nobody waits');
	$waits->query_safe("SELECT dlock_release('lock', 'waiter')");
}

# Places, and who is in the way: holders and those ahead that are not compatible,
# each once.
{
	$session[0]->query_safe("SELECT dlock_acquire('queue', 'r1', '1 h', mode => 'shared'), dlock_acquire('queue', 'r2', '1 h', mode => 'shared'), dlock_acquire('queue', 'nl', '1 h', mode => 'NL')");
	my $token = $session[0]->query_safe("SELECT dlock_acquire('queue', 'cr', '1 h', mode => 'CR')");
	$session[1]->ask_waiting($monitor, "SELECT dlock_acquire('queue', 'w1', '1 h', wait => NULL, mode => 'PW')");
	$session[2]->ask_waiting($monitor, "SELECT dlock_acquire('queue', 'r3', '1 h', wait => NULL, mode => 'shared')");
	$waits->ask_waiting($monitor, "SELECT dlock_acquire('queue', 'w2', '1 h', wait => NULL, mode => 'EX')");
	my $by = '(SELECT string_agg(o, $$ $$ ORDER BY o) FROM unnest(blocked_by) o)';
	is(rows("position, owner, mode, request, $by"),
		"1|w1|PW|acquire|r1 r2\n2|r3|shared|acquire|w1\n3|w2|exclusive|acquire|cr r1 r2 r3 w1", 'places and who is ahead');
	$session[0]->ask_waiting($monitor, "SELECT dlock_convert('queue', $token, 'CW', '1 h')");
	is(rows("position, owner, mode, request, $by"),
		"1|cr|CW|convert|r1 r2\n2|w1|PW|acquire|cr r1 r2\n3|r3|shared|acquire|cr w1\n4|w2|exclusive|acquire|cr r1 r2 r3 w1", 'a conversion is first, and each is named once');

	# One in the middle leaves.
	$monitor->query_safe('SELECT pg_cancel_backend(' . $session[1]->pid . ')');
	is($session[1]->answer, 'ERROR 57014', 'cancelled');
	is(rows('position, owner'), "1|cr\n2|r3\n3|w2", 'the others move up');
	$monitor->query_safe("SELECT dlock_force_release('queue', 'next')");
	is($session[0]->answer, 'ERROR LK002', 'the conversion has lost its lease');
	like($session[2]->answer, qr/^\d+$/, 'the reader has it');
	is(rows("position, owner, blocked_by"), '1|w2|{r3}', 'the writer waits for it');
	$monitor->query_safe("SELECT dlock_release('queue', 'r3')");
	like($waits->answer, qr/^\d+$/, 'the writer has it');
	$waits->query_safe("SELECT dlock_release_all('w2')");
}

# What is closed blocks as well; permits; paths; several names.
{
	$session[0]->query_safe("SELECT dlock_acquire('closed', 'late', '1 h', min_hold => '1 h'), dlock_release('closed', 'late')");
	$session[1]->ask_waiting($monitor, "SELECT dlock_acquire('closed', 'w1', '1 h', wait => NULL)");
	$session[0]->query_safe("SELECT dlock_acquire('permits', 'p1', '1 h', permits => 2), dlock_acquire('permits', 'p2', '1 h', permits => 2)");
	$session[2]->ask_waiting($monitor, "SELECT dlock_acquire('permits', 'p3', '1 h', wait => NULL, permits => 2)");
	$session[0]->query_safe("SELECT dlock_acquire('tree/b', 'holder', '1 h')");
	$session[3]->ask_waiting($monitor, "SELECT dlock_acquire_path('tree/b/c', 'path', '1 h', wait => NULL)");
	my $by = '(SELECT string_agg(o, $$ $$ ORDER BY o) FROM unnest(blocked_by) o)';
	is(rows("name, owner, mode, coalesce(permits, 0), $by", "name = 'closed'"), 'closed|w1|exclusive|0|late', 'behind a closed one');
	is(rows("name, owner, mode, coalesce(permits, 0), $by", "name = 'permits'"), 'permits|p3|permit|2|p1 p2', 'for a permit');
	is(rows("name, owner, mode, position, coalesce($by, '')", "name LIKE 'tree%'"),
		"tree|path|CW|1|\ntree/b|path|CW|1|holder\ntree/b/c|path|exclusive|1|", 'for a path');
	$monitor->query_safe("SELECT dlock_force_release(name, 'next') FROM unnest('{closed,permits,tree/b}'::text[]) name");
	like($_->answer, qr/^\d+$/, 'granted') foreach @session[ 1 .. 3 ];
	is(rows('owner'), '', 'nobody waits');
	$monitor->query_safe("SELECT dlock_force_release(name, 'next') FROM unnest('{closed,permits,tree}'::text[]) name");
}

# Slow waits in the log.
{
	$session[0]->query_safe("SELECT dlock_acquire('slow', 'holder', '1 h', mode => 'shared')");
	my $token = $session[0]->query_safe("SELECT dlock_acquire('slow', 'converter', '1 h', mode => 'shared')");
	my $offset = -s $node->logfile;
	$session[1]->query_safe("SET log_lock_waits = on; SET deadlock_timeout = '100 ms'");
	$session[2]->query_safe("SET log_lock_waits = on; SET deadlock_timeout = '100 ms'");
	$session[3]->query_safe("SET log_lock_waits = off; SET deadlock_timeout = '100 ms'");
	$session[1]->ask_waiting($monitor, "SELECT dlock_acquire('slow', 'writer', '1 h', wait => NULL)");
	$session[3]->ask_waiting($monitor, "SELECT dlock_acquire('slow', 'silent', '1 h', wait => NULL, mode => 'CW')");
	$session[2]->ask_waiting($monitor, "SELECT dlock_acquire('slow', 'reader', '1 h', wait => NULL, mode => 'shared')");
	my $log;
	ok(wait_until(sub { $log = slurp_file($node->logfile, $offset); $log =~ /waiting for shared/ && $log =~ /waiting for exclusive/ }), 'slow waits are logged');
	like($log, qr/LOG:  session still waiting for exclusive on lock "slow" after \d+\.\d{3} ms\n.*DETAIL:  (?=.*"holder").*"converter"/, 'with those who hold it');
	like($log, qr/LOG:  session still waiting for shared on lock "slow" after \d+\.\d{3} ms\n.*DETAIL:  .*writer/, 'with those ahead');
	my ($after) = $log =~ /waiting for exclusive on lock "slow" after ([\d.]+) ms/;
	cmp_ok($after // 0, '>=', 100, 'after deadlock_timeout');
	unlike($log, qr/session acquired/, 'not acquired yet');
	$monitor->query_safe("SELECT dlock_force_release('slow', 'next')");
	like($session[1]->answer, qr/^\d+$/, 'granted');
	ok(wait_until(sub { $log = slurp_file($node->logfile, $offset); $log =~ /session acquired exclusive on lock "slow" after \d+\.\d{3} ms/ }), 'that it was acquired is logged');
	$session[1]->query_safe("SELECT dlock_release('slow', 'writer')");
	like($session[3]->answer, qr/^\d+$/, 'granted');
	$session[3]->query_safe("SELECT dlock_release('slow', 'silent')");
	like($session[2]->answer, qr/^\d+$/, 'granted');
	$log = slurp_file($node->logfile, $offset);
	unlike($log, qr/for CW|acquired CW/, 'nothing of a session that does not ask for it');

	# One that is not slow.
	$offset = -s $node->logfile;
	$session[1]->query_safe("SET deadlock_timeout = '1 h'");
	$session[1]->ask_waiting($monitor, "SELECT dlock_acquire('slow', 'writer', '1 h', wait => NULL)");
	$monitor->query_safe("SELECT dlock_release('slow', 'reader')");
	like($session[1]->answer, qr/^\d+$/, 'granted');
	unlike(slurp_file($node->logfile, $offset), qr/session (?:still waiting|acquired)/, 'a short wait is not logged');

	# One with more owners in the way than are named.
	$session[0]->query_safe("SELECT dlock_acquire('crowded', 'holder ' || i, '1 h', mode => 'shared') FROM generate_series(1, 66) i");
	$offset = -s $node->logfile;
	$session[2]->ask_waiting($monitor, "SELECT dlock_acquire('crowded', 'writer', '1 h', wait => NULL)");
	ok(wait_until(sub { $log = slurp_file($node->logfile, $offset); $log =~ /still waiting.*\n.*DETAIL.*\n/ }), 'a wait for a crowd is logged');
	like($log, qr/DETAIL:  Blocked by: (?:"holder \d+", ){64}\.\.\.\.$/m, 'with as many owners as are named');
	$monitor->query_safe("SELECT dlock_force_release('crowded', 'next')");
	like($session[2]->answer, qr/^\d+$/, 'granted');
}

$_->quit foreach $monitor, @session, $waits, $looks;
$node->stop;
log_is_clean($node);
done_testing();
