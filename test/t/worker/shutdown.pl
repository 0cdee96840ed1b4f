# Proves: the background workers end at a shutdown, or when they are terminated,
# whatever they are doing, at once and without an error in the server log.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockStall;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', conf => "log_line_prefix = '%b: '\ndlock.reap_interval = 1h\n");
my $db = 'postgres';

# Longer than that takes a fast shutdown only if something holds it up, which would be
# for ten minutes, or for ever.
my $at_once = 100;

# Nothing but the lines of the launcher and the reapers.
sub workers_said
{
	my ($offset) = @_;

	return join '', slurp_file($node->logfile, $offset) =~ /^dlock \w+: (?:WARNING|ERROR|FATAL|PANIC): .*\n/mg;
}

sub stops_quietly
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $offset = -s $node->logfile;
	my $began = mono_now();

	$node->stop('fast');
	in_time($began, mono_now(), $at_once, "$what: at once");
	is(workers_said($offset), '', "$what: nothing in the log");
	$node->start;
	return;
}

# Something to do for a reaper, which then stays for a minute.
sub call_reaper
{
	my ($dbname) = @_;

	$node->safe_psql($dbname, "SELECT dlock_acquire('due', 'w', '1 ms')");
	wait_for_reaper($node, $dbname);
	return;
}

# Until a reaper is in a wait of this kind.
sub reaper_waits
{
	my ($event) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok($node->poll_query_until($db, "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'dlock reaper' AND datname = '$db' AND wait_event = '$event'"),
		"a reaper waits: $event");
	return;
}

$node->safe_psql($db, 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION dlock');
call_reaper($_) foreach $db, 'other';
stops_quietly('idle');

# While it waits for a lock of the server's.
$node->safe_psql($db, <<'EOC');
CREATE TABLE gate ();
CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF (SELECT backend_type FROM pg_stat_activity WHERE pid = pg_backend_pid()) = 'dlock reaper' THEN
		LOCK TABLE public.gate;
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER dawdle BEFORE UPDATE ON dlock_task FOR EACH ROW EXECUTE FUNCTION dawdle();
SELECT dlock_queue_create('q'), dlock_task_put('q', 'k');
EOC
my $locker;
sub make_wait
{
	$locker = DLockSession->new($node, $db);
	$locker->query_safe('BEGIN; LOCK TABLE gate');
	$node->safe_psql($db, "SELECT count(*) FROM dlock_task_capture('q', ttl => '1 ms')");
	reaper_waits('relation');
	return;
}
make_wait();
stops_quietly('waiting for a lock');
$locker->quit;

# Terminated there, by hand.
ok(wait_until(sub { $node->safe_psql($db, 'SELECT state FROM dlock_task') eq 'ready' }), 'after a start: the task is moved');
make_wait();
my $pid = worker_pid($node, 'reaper', $db);
my $offset = -s $node->logfile;
$node->safe_psql('other', "SELECT pg_terminate_backend($pid)");
wait_gone($pid);
pass('terminated while it waits: gone');
reaper_waits('relation');
isnt(worker_pid($node, 'reaper', $db), $pid, 'terminated while it waits: another one comes');
$locker->query_safe('ROLLBACK');
$locker->quit;
ok(wait_until(sub { $node->safe_psql($db, 'SELECT state FROM dlock_task') eq 'ready' }), 'terminated while it waits: the task is moved');
is(workers_said($offset), '', 'terminated while it waits: nothing in the log');

# While it runs SQL.
$node->safe_psql($db, <<'EOC');
CREATE OR REPLACE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF (SELECT backend_type FROM pg_stat_activity WHERE pid = pg_backend_pid()) = 'dlock reaper' THEN
		PERFORM pg_sleep(600);
	END IF;
	RETURN NEW;
END $$;
SELECT count(*) FROM dlock_task_capture('q', ttl => '1 ms');
EOC
reaper_waits('PgSleep');
$pid = worker_pid($node, 'reaper', $db);
$offset = -s $node->logfile;
$node->safe_psql($db, "SELECT pg_terminate_backend($pid)");
wait_gone($pid);
pass('terminated while it moves tasks: gone');
is(workers_said($offset), '', 'terminated while it moves tasks: nothing in the log');
reaper_waits('PgSleep');
stops_quietly('moving tasks');

# A statement of its that is cancelled without its being told to end is told of.
reaper_waits('PgSleep');
$offset = -s $node->logfile;
$pid = worker_pid($node, 'reaper', $db);

# The next one must not sleep, or DROP TRIGGER would wait for it.
$node->safe_psql($db, 'CREATE OR REPLACE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$');
$node->safe_psql($db, "SELECT pg_cancel_backend($pid)");
ok(wait_until(sub { workers_said($offset) =~ /ERROR: .*cancel/ }), 'cancelled: the log says so');
$node->safe_psql($db, 'DROP TRIGGER dawdle ON dlock_task');
call_reaper($db);
pass('cancelled: leases are seen to');

$node->stop;
done_testing();
