# Proves: a capture ends at its deadline whoever looks or does not, and is moved
# soon after, by the reaper or by the next capture; steps of the wall clock, locked
# tables and triggers that fail harm neither that nor the leases.

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
use Time::HiRes qw(usleep);

my $control = PostgreSQL::Test::Utils::tempdir . '/clock';
my %fake = fake_clock_env($control);
my $node = init_node('main', conf => "dlock.reap_interval = 1h\nmax_prepared_transactions = 2\n");
{
	local %ENV = (%ENV, %fake);
	$node->start;
}
my $db = 'postgres';
$node->safe_psql($db, 'CREATE EXTENSION dlock');
my $worker = DLockSession->new($node, $db);
my $other = DLockSession->new($node, $db);
my $number = 0;

# A queue with one task, captured for so long; returns queue and token.
sub captured
{
	my ($ttl, %params) = @_;
	my $queue = 'q' . ++$number;
	my $on_timeout = $params{on_timeout} // 'ready';

	$worker->query("SELECT dlock_task_create_queue('$queue')");
	$worker->query("SELECT dlock_task_put('$queue', 'k')");
	my $token = $worker->query(
		"SELECT token FROM dlock_task_capture('$queue', ttl => '$ttl', on_timeout => '$on_timeout')");
	return ($queue, $token);
}

sub state_of
{
	my ($queue) = @_;
	return $other->query("SELECT state FROM dlock_tasks WHERE queue = '$queue'");
}

sub becomes
{
	my ($queue, $state, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_until(sub { state_of($queue) eq $state }), $name);
	return;
}

# The reaper does it, though it would not look by itself for an hour.
{
	my $from = mono_now();
	my ($queue, $token) = captured('300 ms', on_timeout => 'lost');
	becomes($queue, 'lost', 'the reaper moves a capture that has timed out');
	cmp_ok(mono_now() - $from, '>=', 0.3, 'not before its deadline');
	is($other->query("SELECT attempts, owner IS NULL, expires_at IS NULL, error FROM dlock_tasks WHERE queue = '$queue'"),
		'1|t|t|timed out', 'and it is nobody\'s');
	is($worker->query("SELECT dlock_task_finish('$queue', 'k', $token)"), 'ERROR LK002', 'its capturer learns of it');
}

# One that is extended again and again outlives its first deadline.
{
	my ($queue, $token, $in_time, $kept);

	# Once more, with more time, if the machine was too slow to extend it in time: each
	# extension is to be answered before what was sent last has passed.
	for (my $ttl = 0.5; !$in_time; $ttl *= 2)
	{
		my $sent = mono_now();
		my $extend = sub {
			my ($more) = @_;
			my $now = mono_now();

			$kept &&= $worker->query("SELECT dlock_task_extend('$queue', 'k', $token$more)") eq 't';
			$in_time &&= mono_now() < $sent + $ttl || $ttl > 10;
			$sent = $now;
		};

		($in_time, $kept) = (1, 1);
		($queue, $token) = captured("$ttl s");
		my $end = mono_now() + 3 * $ttl;
		while ($in_time && mono_now() < $end)
		{
			$extend->('');
			usleep(50_000);
		}

		# What follows may take its time.
		$extend->(", '1 h'");
	}
	ok($kept, 'a capture can be extended for longer than it was made');
	is(state_of($queue), 'working', 'a capture that is extended goes on');
	is($worker->query("SELECT dlock_task_finish('$queue', 'k', $token)"), 't', 'and can be finished');
}
{
	my ($queue, $token) = captured('1 h');
	$worker->query("SELECT dlock_task_extend('$queue', 'k', $token, '100 ms')");
	becomes($queue, 'ready', 'one that is made shorter ends then');
}

# The deadline may pass while a call waits for the row: it looks at the clock after that.
{
	my ($queue, $token, $in_time);
	my $locker = DLockSession->new($node, $db);

	# Once more, with more time, if the call came too late to need that.
	for (my $ttl = 1; !$in_time; $ttl *= 2)
	{
		($queue, $token) = captured("$ttl s");
		$locker->query_safe('BEGIN');
		$locker->query_safe("SELECT 1 FROM dlock_task WHERE token = $token FOR UPDATE");
		$worker->ask("SELECT dlock_task_finish('$queue', 'k', $token)");
		wait_until(
			sub { $other->query("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = " . $worker->pid) eq 't' || $worker->answered })
		  or die 'the call does not wait for the row';
		my $expired = "SELECT expires_at <= clock_timestamp() FROM dlock_tasks WHERE queue = '$queue'";
		$in_time = $other->query($expired) eq 'f' || $ttl > 30;
		wait_until(sub { $other->query($expired) ne 'f' });
		$locker->query_safe('COMMIT');
		last if $in_time;
		$worker->answer;
	}
	is($worker->answer, 'ERROR LK002', 'a call that waits for the row until the deadline has passed comes too late');
	$locker->quit;
}

# Captures that are committed late are not forgotten.
{
	my ($queue) = captured('1 h');
	$worker->query("SELECT dlock_task_put('$queue', 'late')");
	$worker->query('BEGIN');
	$worker->query("SELECT token FROM dlock_task_capture('$queue', ttl => '100 ms')");
	usleep(300_000);
	is($other->query("SELECT state FROM dlock_tasks WHERE key = 'late'"), 'ready', 'an open capture is not seen');
	$worker->query('COMMIT');
	ok(wait_until(sub { $other->query("SELECT state || coalesce(error, '') FROM dlock_tasks WHERE key = 'late'") eq 'readytimed out' }),
		'committed after its deadline, it is moved');
}

# So are those that are prepared.
{
	my ($queue) = captured('1 h');
	$worker->query("SELECT dlock_task_put('$queue', 'prepared')");
	$worker->query('BEGIN');
	$worker->query("SELECT token FROM dlock_task_capture('$queue', ttl => '2 s')");
	$worker->query("PREPARE TRANSACTION 'captured'");
	$worker->query("COMMIT PREPARED 'captured'");
	ok(wait_until(sub { $other->query("SELECT state || coalesce(error, '') FROM dlock_tasks WHERE key = 'prepared'") eq 'readytimed out' }),
		'a capture that was prepared is moved');
}

# Who is finishing while the deadline passes has the row; his end decides.
foreach my $end ('COMMIT', 'ROLLBACK')
{
	my ($queue, $finished);
	my $ttl = 0.5;

	# Once more, with more time, if the machine was too slow to finish it in time.
	for (;; $ttl *= 2)
	{
		my $from = mono_now();
		($queue, my $token) = captured("$ttl s");
		$worker->query('BEGIN');
		$finished = $worker->query("SELECT dlock_task_finish('$queue', 'k', $token)");
		last if $finished eq 't' || mono_now() < $from + $ttl || $ttl > 10;
		$worker->query('ROLLBACK');
	}
	is($finished, 't', "$end: finished in time");
	usleep(($ttl + 0.2) * 1e6);
	is(state_of($queue), 'working', "$end: nobody moves it meanwhile");
	is($other->query("SELECT count(*) FROM dlock_task_capture('$queue')"), 0, "$end: nor captures it");
	$worker->query($end);
	$end eq 'COMMIT' ? is(state_of($queue), 'done', "$end: it is finished")
	  : becomes($queue, 'ready', "$end: it has timed out");
}

# Without a reaper: every function judges by the clock, what is read is what is
# stored, and the next capture moves it.
{
	pause_reapers($node);
	my ($queue, $token) = captured('50 ms');
	usleep(100_000);
	is(state_of($queue), 'working', 'no reaper: the state is the one stored');
	is($worker->query("SELECT dlock_task_extend('$queue', 'k', $token)"), 'f', 'no reaper: not extended');
	is($worker->query("SELECT dlock_task_finish('$queue', 'k', $token)"), 'ERROR LK002', 'no reaper: not finished');
	is($worker->query("SELECT dlock_task_set('$queue', 'k', 'x', $token)"), 'ERROR LK002', 'no reaper: not set');
	is($worker->query("SELECT dlock_task_fail('$queue', 'k', $token)"), 'ERROR LK002', 'no reaper: not failed');
	is($worker->query("SELECT dlock_task_release('$queue', 'k', $token)"), 'ERROR LK002', 'no reaper: not released');
	my $second = $other->query("SELECT token FROM dlock_task_capture('$queue')");
	cmp_ok($second, '>', $token, 'no reaper: captured again, with a larger token');
	is($worker->query("SELECT dlock_task_finish('$queue', 'k', $token)"), 'ERROR LK002', 'no reaper: the first cannot finish it');
	is($other->query("SELECT dlock_task_finish('$queue', 'k', $second)"), 't', 'no reaper: the second can');
	resume_reapers($node);
}

# The wall clock is set while the server runs.
SKIP:
{
	skip 'no compiler for the clock', 6 unless %fake;
	my ($queue, $token) = captured('1 h');
	foreach my $step (86_400, -86_400)
	{
		fake_clock_set($control, wall => $step);
		my ($short) = captured('100 ms', on_timeout => 'lost');
		becomes($short, 'lost', "wall clock set by $step s: a capture of now ends when it should");
		is($worker->query("SELECT dlock_task_extend('$queue', 'k', $token)"), 't', "wall clock set by $step s: another goes on");
		is($other->query("SELECT expires_at BETWEEN clock_timestamp() + '59 min' AND clock_timestamp() + '61 min' FROM dlock_tasks WHERE queue = '$queue'"),
			't', "wall clock set by $step s: the view shows it by the clock as it is");
	}
	fake_clock_set($control);
}

# Set back or forward while the server is down: it does not matter on this boot.  On
# another the wall clock counts, with dlock.max_clock_skew in favour of the capturer:
# set back, no more than a ttl is added; set forward, it ends early, which is safe.
SKIP:
{
	skip 'no compiler for the clock', 11 unless %fake;
	my $captured = mono_now();
	my ($queue, $token) = captured('20 min');
	my $left = "SELECT extract(epoch FROM expires_at - clock_timestamp()) / 60 FROM dlock_tasks WHERE queue = '$queue'";

	# What is left of it, to half a minute.
	my $left_is = sub {
		my ($test_name) = @_;
		local $Test::Builder::Level = $Test::Builder::Level + 1;
		my $is_left = $other->query($left);

		cmp_ok($is_left, '<', 20.5, "$test_name: not stretched");
		cmp_ok($is_left, '>', 19.5 - (mono_now() - $captured) / 60, "$test_name: not shortened");
	};
	my $restart = sub {
		my (%clock) = @_;

		$_->quit foreach $worker, $other;
		$node->stop;
		fake_clock_set($control, %clock);
		local %ENV = (%ENV, %fake);
		$node->start;
		$worker = DLockSession->new($node, $db);
		$other = DLockSession->new($node, $db);
	};
	$restart->(wall => -86_400);
	$left_is->('restarted with the clock set back');
	$restart->();
	$left_is->('restarted with the clock set forward');
	my $extended = mono_now();
	is($worker->query("SELECT dlock_task_extend('$queue', 'k', $token)"), 't', 'and it is held');
	$restart->(boot_id => 'second');
	my $more = $other->query("SELECT extract(epoch FROM expires_at - clock_timestamp() - interval '20 min') FROM dlock_tasks WHERE queue = '$queue'");
	cmp_ok($more, '<=', 10, 'another boot: no more than the skew is added');
	cmp_ok($more, '>', 9 - (mono_now() - $extended), 'another boot: the skew is added');
	$restart->(boot_id => 'third', wall => -86_400);
	ok(wait_until(sub { $other->query($left) < 20.5 }), 'another boot, the clock set back: at most a ttl is left');
	is($worker->query("SELECT dlock_task_extend('$queue', 'k', $token)"), 't', 'and it is held');
	$restart->(boot_id => 'fourth');
	becomes($queue, 'ready', 'another boot, the clock set forward: it has ended');

	# 57 s later, but set back by 50 s: what the row says of when to look is too late.
	($queue) = captured('1 min');
	my $from = mono_now();
	$restart->(boot_id => 'fourth', boottime => 57, wall => 7);
	becomes($queue, 'ready', 'restarted with the clock set back by less than the ttl: it ends');
	in_time($from, mono_now(), 40, 'when it should');
	$restart->();
}

# A deadline that is too far off gets there also while the reaper works: with a
# prepared transaction, say, or with a dump that is restored.  It looks once a minute.
SKIP:
{
	skip 'no compiler for the clock', 1 unless %fake;
	my ($queue) = captured('20 min');
	$node->safe_psql($db, "UPDATE dlock_task SET deadline = deadline + '1 day', boot = 1, due = due + '1 day' WHERE ttl = '20 min'");
	fake_clock_set($control, boottime => 90);
	captured('1 ms');
	ok( wait_until(
			sub {
				$other->query("SELECT expires_at < clock_timestamp() + '21 min' FROM dlock_tasks WHERE queue = '$queue'") eq 't';
			}),
		'a deadline from elsewhere: at most a ttl is left');
}

# A trigger that fails: the reaper says so, goes on with the leases, and moves the
# tasks once it can.
{
	# It is there before the capture, which it lets pass, so it is not too late.
	$node->safe_psql($db, <<'EOC');
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trigger in the way'; END $$;
CREATE TRIGGER fail BEFORE UPDATE ON dlock_task FOR EACH ROW
	WHEN (old.due IS NOT NULL AND new.due IS NULL) EXECUTE FUNCTION fail();
EOC
	my ($queue) = captured('200 ms');
	ok(wait_until(sub { slurp_file($node->logfile) =~ /ERROR:  trigger in the way/ }), 'a trigger that fails: it is logged');
	$other->query("SELECT dlock_acquire('lease', 'a', '200 ms')");
	ok( wait_until(
			sub { my %slots = store_slots($node, $db); !exists $slots{lease} }),
		'a trigger that fails: leases are reaped');
	$node->safe_psql($db, 'DROP TRIGGER fail ON dlock_task');
	$node->safe_psql($db, "ALTER SYSTEM SET dlock.reap_interval = '100 ms'");
	$node->reload;
	captured('1 ms');
	becomes($queue, 'ready', 'a trigger that fails no more: moved');
}

# A table that is locked.
{
	my ($queue) = captured('300 ms');
	$worker->query('BEGIN');
	$worker->query('LOCK TABLE dlock_task IN ACCESS EXCLUSIVE MODE');
	usleep(500_000);
	$other->query("SELECT dlock_acquire('lease', 'a', '200 ms')");
	ok( wait_until(
			sub { my %slots = store_slots($node, $db); !exists $slots{lease} }),
		'a locked table: leases are reaped');
	$worker->query('COMMIT');
	becomes($queue, 'ready', 'a table that is no more locked: moved');
}

# The launcher hears of two things at once: that the reaper signs off, and that its
# process is gone.  The capture that the reaper leaves behind ends all the same.
{
	my $launcher = worker_pid($node, 'launcher');
	my $find = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'dlock reaper' AND datname = '$db'";
	my ($reaper, $begun, $queue) = ('');

	# Again if it left before the launcher was stopped.
	for my $attempt (1 .. 20)
	{
		captured('1 ms');
		wait_until(sub { ($reaper = $other->query($find)) ne '' }, 10) or next;
		stop_asleep($node, $launcher);
		$begun = mono_now();
		($queue) = captured('4 s');
		last if $other->query($find) eq $reaper;
		kill('CONT', $launcher);
	}
	wait_for_no_reaper($node, $db);
	wait_gone($reaper);
	kill('CONT', $launcher);
	becomes($queue, 'ready', 'a reaper that leaves while the launcher sleeps: a capture ends');
	in_time($begun, mono_now(), 30, 'when it should');
}

# What a database sets for its sessions.
{
	$node->safe_psql($db, "ALTER DATABASE $db SET default_transaction_isolation = 'serializable'");
	$node->safe_psql($db, "ALTER DATABASE $db SET default_transaction_read_only = on");
	pause_reapers($node);
	resume_reapers($node);
	my ($queue) = captured('200 ms', on_timeout => 'lost');
	becomes($queue, 'lost', 'the reaper writes where sessions are read-only');
	$worker->query("SET default_transaction_read_only = off");
	$node->safe_psql($db, "SET default_transaction_read_only = off; ALTER DATABASE $db RESET ALL");
}

# A role without rights, and a time in which nothing can be done.
{
	$node->safe_psql($db, 'CREATE ROLE nobody');
	$node->safe_psql($db, 'CREATE DATABASE other_role');
	my $early = DLockSession->new($node, 'other_role');
	$node->safe_psql($db, 'ALTER DATABASE other_role SET role = nobody');
	$node->safe_psql($db, "ALTER DATABASE other_role SET transaction_timeout = '1ms'") if $node->pg_version >= 17;
	$early->query_safe('CREATE EXTENSION dlock');
	$early->query_safe("SELECT dlock_task_create_queue('q'), dlock_task_put('q', 'k')");
	$early->query_safe("SELECT token FROM dlock_task_capture('q', ttl => '100 ms', on_timeout => 'lost')");
	ok(wait_until(sub { $early->query('SELECT state FROM dlock_tasks') eq 'lost' }),
		'the reaper works where sessions have another role');
	$early->quit;
	$node->safe_psql($db, 'DROP DATABASE other_role');
}

# Nothing of this is in the way of a drop.
{
	captured('300 ms') foreach 1 .. 3;
	$_->quit foreach $worker, $other;
	$node->safe_psql($db, 'DROP EXTENSION dlock');
	pass('the extension is dropped while captures are pending');
	$node->safe_psql($db, 'CREATE EXTENSION dlock');
	is($node->safe_psql($db, "SELECT dlock_task_create_queue('q'), dlock_task_put('q', 'k')"), '|t', 'and created again');
}
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|was terminated by signal/, 'nothing odd in the log');

done_testing();
