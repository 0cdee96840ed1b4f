# Proves: a capture that waits gets a task as soon as there is one, whatever makes it
# ready or gives it back; idle workers do nothing, a put wakes no more of them than it
# has tasks for, and a capture that ends without a task leaves nothing behind.  After a
# crash, and on a standby that was promoted, workers wait anew.

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
use Time::HiRes qw(usleep);

my $node = start_node('main', allows_streaming => 1, conf => "max_prepared_transactions = 2\nmax_connections = 40\nrestart_after_crash = on\n");
my $db = 'postgres';
my $boss = DLockSession->new($node, $db, name => 'boss');
my $number = 0;

# The workers look again after a minute at the latest.  An answer before that is not due
# to that look; where the machine has to be fast enough, this is enough.
my $soon = 30;

sub new_queue
{
	my $queue = 'q' . ++$number;
	$boss->query_safe("SELECT dlock_queue_create('$queue')");
	return $queue;
}

sub capture
{
	my ($queue, $more) = @_;
	$more = defined $more ? ", $more" : '';
	return "SELECT key FROM dlock_task_capture('$queue', ttl => '1 h', wait => NULL$more)";
}

# A worker that waits.
sub waiting
{
	my ($queue, $more) = @_;
	return DLockSession->new($node, $db, name => 'worker')->ask_waiting($boss, capture($queue, $more));
}

sub gets
{
	my ($worker, $key, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(wait_any($soon, $worker) ? $worker->answer : 'nothing', $key, $name);
}

# ---- what ends a wait ----
{
	my $queue = new_queue();
	my $worker = waiting($queue);
	nobody_answers('a capture of an empty queue waits', $worker);
	$boss->query_safe("SELECT dlock_task_put('$queue', 'a')");
	gets($worker, 'a', 'and gets a task that is put');

	$boss->query_safe("SELECT dlock_task_put('$queue', 'b')");
	is($worker->query(capture($queue)), 'b', 'a capture with a task at hand does not wait');

	my $from = mono_now();
	is($worker->query("SELECT count(*) FROM dlock_task_capture('$queue', wait => '300 ms')"), 0, 'no task in time: no row');
	cmp_ok(mono_now() - $from, '>=', 0.3, 'not before the time is up');
	is($worker->query("SELECT dlock_task_capture('$queue', wait => '-1 s')"), 'ERROR 22023', 'a negative time is refused');

	$worker->ask_waiting($boss, capture($queue));
	$boss->query('BEGIN');
	$boss->query_safe("SELECT dlock_task_put('$queue', 'c')");
	nobody_answers('a task that is not committed is not there', $worker);
	$boss->query('SAVEPOINT s');
	$boss->query_safe("SELECT dlock_task_put('$queue', 'd')");
	$boss->query('ROLLBACK TO s');
	$boss->query('COMMIT');
	gets($worker, 'c', 'it is, once that commits');

	# Rows beyond work_mem outlive the look in which they were found.
	$worker->query("SET work_mem = '64kB'");
	$worker->ask_waiting($boss, "SELECT sum(length(payload->>0)) FROM dlock_task_capture('$queue', 1000, wait => NULL)");
	$boss->query_safe("SELECT count(dlock_task_put('$queue', 'x' || i, to_jsonb(ARRAY[repeat('x', 1000)]))) FROM generate_series(1, 300) i");
	gets($worker, 300_000, 'many tasks with large payloads');
}

# ---- states, and tasks that come back ----
{
	my $queue = new_queue();
	my $cutter = waiting($queue, "from_states => '{cut,raw}'");
	my $worker = waiting($queue);
	$boss->query_safe("SELECT dlock_task_put('$queue', 'a', state => 'raw')");
	gets($cutter, 'a', 'a task wakes a worker that waits for its state');
	nobody_answers('and no other', $worker);
	my $token = $boss->query("SELECT token FROM dlock_tasks WHERE queue = '$queue'");
	$cutter->ask_waiting($boss, capture($queue, "from_states => '{cut,raw}'"));
	$boss->query_safe("SELECT dlock_task_release('$queue', 'a', $token, 'cut')");
	gets($cutter, 'a', 'a release to another state does');
	$token = $boss->query("SELECT token FROM dlock_tasks WHERE queue = '$queue'");
	$boss->query_safe("SELECT dlock_task_fail('$queue', 'a', $token, 'broken', 'ready')");
	gets($worker, 'a', 'so does a failure');
	$token = $boss->query("SELECT token FROM dlock_tasks WHERE queue = '$queue'");
	$boss->query_safe("SELECT dlock_task_finish('$queue', 'a', $token)");
	$worker->ask_waiting($boss, capture($queue));
	$boss->query_safe("SELECT dlock_task_set('$queue', 'a', 'ready')");
	gets($worker, 'a', 'and a task that is set to its state');
}
foreach my $end ('ROLLBACK', 'ROLLBACK TO s', 'COMMIT of a mere look')
{
	my $queue = new_queue();
	my $other = DLockSession->new($node, $db, name => 'other');
	$boss->query_safe("SELECT dlock_task_put('$queue', 'a')");
	$other->query('BEGIN; SAVEPOINT s');
	if ($end =~ /^ROLLBACK/)
	{
		is($other->query("SELECT key FROM dlock_task_capture('$queue')"), 'a', "$end: a task is captured");
	}
	else
	{
		is($other->query("SELECT dlock_task_renew('$queue', 'a', 1)"), 'f', "$end: the row is locked");
	}
	my $worker = waiting($queue);
	nobody_answers("$end: a worker does not see it", $worker);
	$other->query($end =~ s/ of .*//r);
	gets($worker, 'a', "$end: it does then");
}
{
	my $queue = new_queue();
	my $worker = waiting($queue);
	$boss->query("BEGIN; SELECT dlock_task_put('$queue', 'a'); PREPARE TRANSACTION 'put'");
	nobody_answers('a prepared task is not there', $worker);
	$boss->query("COMMIT PREPARED 'put'");
	gets($worker, 'a', 'COMMIT PREPARED brings it');

	$boss->query_safe("SELECT dlock_task_put('$queue', 'b')");
	$boss->query("BEGIN; SELECT dlock_task_capture('$queue'); PREPARE TRANSACTION 'capture'");
	$worker->ask_waiting($boss, capture($queue));
	$boss->query("ROLLBACK PREPARED 'capture'");
	gets($worker, 'b', 'ROLLBACK PREPARED brings it back');
}

# More queues than a transaction takes note of.
{
	my @queues = map { new_queue() } 1 .. 70;
	my @workers = map { waiting($queues[$_]) } 0, 69;
	$boss->query_safe("SELECT count(dlock_task_put(queue, 'a')) FROM (SELECT DISTINCT unnest('{" . join(',', @queues) . "}'::text[]) queue) q");
	gets($_, 'a', 'a transaction that puts into many queues') foreach @workers;
}

# ---- time: with a reaper and without ----
foreach my $reapers ('with', 'without')
{
	pause_reapers($node) if $reapers eq 'without';
	my $queue = new_queue();
	my ($worker, $second) = map { waiting($queue) } 1 .. 2;
	my $from = mono_now();
	$boss->query_safe("SELECT dlock_task_put('$queue', 'late', delay => '500 ms')");
	my ($first) = wait_any($soon, $worker, $second);
	is(defined $first ? $first->answer : 'nothing', 'late', "$reapers a reaper: a delayed task is captured when it is due");
	cmp_ok(mono_now() - $from, '>=', 0.5, 'and not before');
	my $token = $boss->query("SELECT token FROM dlock_tasks WHERE queue = '$queue'");
	my $left = $first == $worker ? $second : $worker;
	$boss->query_safe("SELECT dlock_task_renew('$queue', 'late', $token, '400 ms')");
	gets($left, 'late', 'a capture that was cut short, once it has timed out');

	# The time of the one that leads is known to the next, too.
	my $heir = waiting($queue);
	$first->ask_waiting($boss, capture($queue));
	$boss->query_safe("SELECT dlock_task_put('$queue', 'heritage', delay => '1500 ms')");
	$boss->query_safe("SELECT pg_cancel_backend(" . $heir->pid . ')');
	my ($answer, $heritage) = ($heir->answer, 'heritage');

	# Cancelled too late, it has the task, and the other leads now.
	foreach my $delay (6, 18)
	{
		last if $answer ne $heritage;
		$heritage = "heritage in $delay s";
		($heir, $first) = ($first, $heir);
		$first->ask_waiting($boss, capture($queue));
		$boss->query_safe("SELECT dlock_task_put('$queue', '$heritage', delay => '$delay s')");
		$boss->query_safe("SELECT pg_cancel_backend(" . $heir->pid . ')');
		$answer = $heir->answer;
	}
	is($answer, 'ERROR 57014', 'a wait can be cancelled');
	gets($first, $heritage, 'one that leaves hands its timer on');

	# Tasks that go elsewhere do not concern it.
	$heir->ask_waiting($boss, capture($queue));
	$boss->query_safe("SELECT dlock_task_put('$queue', 'elsewhere', state => 'other', delay => '100 ms'), dlock_task_put('$queue', 'here', delay => '300 ms')");
	gets($heir, 'here', 'a task for another state is not in the way');
	resume_reapers($node) if $reapers eq 'without';
}

# ---- what it costs to wait ----
sub switches
{
	my ($pid) = @_;
	my ($count) = slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s*(\d+)/m;
	return $count;
}

# Wait until these processes sleep: they say that they wait a moment before.
sub all_sleep
{
	my @pids = @_;

	return wait_until(sub { !grep { slurp_file("/proc/$_/stat") !~ /\) S / } @pids });
}

# Up to ten seconds after a statement the timer of a backend's statistics wakes it, whatever it
# does then; so they wait in the first statement of their sessions.
{
	my $queue = new_queue();
	my @workers = open_sessions($node, $db, 10, name => 'idle', untouched => 1);
	$_->ask_waiting($boss, capture($queue)) foreach @workers;
	all_sleep(map { $_->pid } @workers) or die 'workers do not sleep';
	my %before = map { $_->pid => switches($_->pid) } @workers;
	usleep(2_000_000);
	is(join(' ', grep { switches($_) != $before{$_} } keys %before), '', 'ten idle workers do not wake up');

	my $pids = join ',', map { $_->pid } @workers;
	is($boss->query("SELECT count(*) FROM pg_stat_activity WHERE pid IN ($pids) AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)"),
		0, 'and do not hold back vacuum');
	is($boss->query("SELECT count(*) FROM pg_locks WHERE pid IN ($pids) AND locktype <> 'virtualxid'"), 0, 'and hold no lock');

	$boss->query_safe("SELECT count(dlock_task_put('$queue', 't' || i)) FROM generate_series(1, 3) i");
	my @got;
	while (@got < 3)
	{
		my @ready = wait_any($soon, grep { $_->{pending} } @workers) or last;
		push @got, map { $_->answer } @ready;
	}
	is(join(' ', sort @got), 't1 t2 t3', 'three tasks: three workers have one each');
	nobody_answers('the others go on waiting', grep { $_->{pending} } @workers);

	# The one that leads learns when the captures end.
	my $woken = grep { switches($_->pid) != $before{ $_->pid } } grep { $_->{pending} } @workers;
	cmp_ok($woken, '<=', 1, 'and were not woken');
}

# From a put to the answer of the capture: a figure, for the machine may be busy.
{
	my $queue = new_queue();
	my $worker = DLockSession->new($node, $db, name => 'worker');
	my @took;
	foreach my $i (1 .. 300)
	{
		$worker->ask_waiting($boss, capture($queue));
		my $from = mono_now();
		$boss->ask("SELECT dlock_task_put('$queue', 'k$i')");
		wait_any($soon, $worker) or last;
		$worker->answer;
		push @took, $worker->{answered_at} - $from;
		$boss->answer;
	}
	is(scalar @took, 300, 'each task is captured soon after it was put');
	note(sprintf 'from put to captured: p50 %.2f ms, p99 %.2f ms', map { 1000 * percentile($_, @took) } 50, 99);
	$worker->quit;
}

# ---- interruptions ----
{
	my $queue = new_queue();
	my ($cancelled, $killed, $timed, $lost) = open_sessions($node, $db, 4, name => 'interrupted');
	$timed->query("SET statement_timeout = '200 ms'");
	is($timed->query(capture($queue)), 'ERROR 57014', 'statement_timeout ends a wait');
	$_->ask_waiting($boss, capture($queue)) foreach $cancelled, $killed, $lost;
	$boss->query('SELECT pg_cancel_backend(' . $cancelled->pid . ')');
	is($cancelled->answer, 'ERROR 57014', 'so does a cancel');
	$boss->query('SELECT pg_terminate_backend(' . $killed->pid . ')');
	is($killed->answer, 'FATAL 57P01', 'and a termination');
	$lost->kill_client;
	ok(wait_until(sub { !$boss->query('SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $lost->pid) }), 'and the end of the client');

	# The last one to wait is called first, and this one is cancelled before it can look.
	my ($next, $called) = map { waiting($queue) } 1 .. 2;
	kill 'STOP', $called->pid;
	$boss->query_safe("SELECT dlock_task_put('$queue', 'passed on')");
	nobody_answers('a stopped process is called', $next);
	$boss->query('SELECT pg_cancel_backend(' . $called->pid . ')');
	kill 'CONT', $called->pid;
	is($called->answer, 'ERROR 57014', 'it is cancelled');
	gets($next, 'passed on', 'and passes the call on');

	# None of them is called in place of the one that waits.
	my $worker = waiting($queue);
	$boss->query_safe("SELECT dlock_task_put('$queue', 'a')");
	gets($worker, 'a', 'what is left is the one that waits');

	is($timed->query("SET statement_timeout = 0; BEGIN; SELECT dlock_task_put('$queue', 'own')"), 't', 'in a transaction block');
	is($timed->query(capture($queue)), 'own', 'its own task is there');
	$timed->ask_waiting($boss, capture($queue));
	$boss->query_safe("SELECT dlock_task_put('$queue', 'b')");
	gets($timed, 'b', 'and it can wait for another');
	$timed->query('ROLLBACK');
	is($timed->query(capture($queue)), 'b', 'which a rollback gives back');
	$timed->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
	$timed->ask_waiting($boss, capture($queue));
	$boss->query_safe("SELECT dlock_task_put('$queue', 'c')");
	gets($timed, 'c', 'under REPEATABLE READ, too');
	$timed->query('COMMIT');
	is($timed->query("BEGIN READ ONLY; " . capture($queue)), 'ERROR 25006', 'not in a read-only transaction');
	$timed->query('ROLLBACK');

	# The last one to wait would be called first, were it still there.
	$worker->ask_waiting($boss, capture($queue));
	$timed->query('BEGIN; SAVEPOINT s');
	$timed->ask_waiting($boss, capture($queue));
	$boss->query_safe('SELECT pg_cancel_backend(' . $timed->pid . ')');
	is($timed->answer, 'ERROR 57014', 'a wait in a savepoint is cancelled');
	$boss->query_safe("SELECT dlock_task_put('$queue', 'd')");
	gets($worker, 'd', 'what is left is the other, before the transaction ends');
	$timed->query('ROLLBACK');
}

# ---- queues and the extension go ----
{
	my $queue = new_queue();
	my $worker = waiting($queue);
	$boss->query_safe("SELECT dlock_queue_drop('$queue')");
	is($worker->answer, 'ERROR 42704', 'a queue that is waited for can be dropped');
	$boss->query_safe("SELECT dlock_queue_create('$queue')");
	$worker->ask_waiting($boss, capture($queue));
	$boss->query("BEGIN; SELECT dlock_queue_drop('$queue'), dlock_queue_create('$queue'), dlock_task_put('$queue', 'new'); COMMIT");
	gets($worker, 'new', 'a new one of the same name serves');

	$worker->ask_waiting($boss, capture($queue));
	$boss->query_safe('VACUUM FULL dlock_task');
	$boss->query_safe("SELECT dlock_task_put('$queue', 'a')");
	gets($worker, 'a', 'the table can be rewritten meanwhile');
	$worker->ask_waiting($boss, capture($queue));
	$boss->query_safe('DROP EXTENSION dlock');
	is($worker->answer, 'ERROR 55000', 'the extension can be dropped');
	$boss->query_safe('CREATE EXTENSION dlock');

	$queue = new_queue();
	$worker->ask_waiting($boss, capture($queue));
	$boss->query_safe("BEGIN; DROP EXTENSION dlock; CREATE EXTENSION dlock; COMMIT");
	is($worker->answer, 'ERROR 55000', 'and created again in the same transaction');
}

# ---- a trigger acquires the first lease of a session ----
{
	my $queue = new_queue();
	$boss->query_safe(<<'EOC');
CREATE FUNCTION acquires() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dlock_acquire('by trigger ' || pg_backend_pid());
	RETURN NULL;
END $$;
CREATE TRIGGER acquires AFTER INSERT OR UPDATE ON dlock_task FOR EACH ROW EXECUTE FUNCTION acquires();
EOC
	my $worker = waiting($queue);
	my $other = DLockSession->new($node, $db, name => 'other');
	is($other->query("SELECT dlock_task_put('$queue', 'a')"), 't', 'in a call');
	gets($worker, 'a', 'in a call that waits');
	$worker->ask_waiting($boss, capture($queue));
	is($other->query("SELECT dlock_task_put('$queue', 'b')"), 't', 'and the next call is as any other');
	gets($worker, 'b', 'also one that waits');
	is($boss->query("SELECT count(*) FROM dlock_leases WHERE name LIKE 'by trigger %'"), '2', 'both have acquired');
	$boss->query_safe('DROP TRIGGER acquires ON dlock_task; DROP FUNCTION acquires()');
}

# ---- no call is lost, whoever gives up, fails or is cancelled ----
{
	my $count = 3000;
	$boss->query_safe("SELECT dlock_queue_create('crowd'); CREATE TABLE done (key text)");
	$boss->query_safe(<<'EOC');
CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
DECLARE t record;
BEGIN
    LOOP
        BEGIN
            SELECT * INTO t FROM dlock_task_capture('crowd', ttl => '1 h', wait => CASE WHEN random() < 0.3 THEN '1 ms' ELSE '1 h' END::interval);
            IF t.key = 'stop' THEN
                PERFORM dlock_task_release('crowd', t.key, t.token);
                EXIT;
            ELSIF t.key IS NOT NULL THEN
                IF random() < 0.2 THEN
                    RAISE division_by_zero;
                ELSIF random() < 0.2 THEN
                    PERFORM dlock_task_fail('crowd', t.key, t.token, delay => '5 ms');
                ELSE
                    PERFORM dlock_task_finish('crowd', t.key, t.token);
                    INSERT INTO done VALUES (t.key);
                END IF;
            END IF;
        EXCEPTION WHEN division_by_zero OR query_canceled THEN
            NULL;
        END;
        COMMIT;
    END LOOP;
END $$
EOC
	my @workers = open_sessions($node, $db, 8, name => 'worker');
	$_->ask('CALL work()') foreach @workers;
	for my $i (1 .. $count / 10)
	{
		$boss->query_safe("SELECT count(dlock_task_put('crowd', 'k$i.' || j)) FROM generate_series(1, 10) j");
		$boss->query('SELECT pg_cancel_backend(' . $workers[ $i % 8 ]->pid . ')') if $i % 7 == 0;
	}
	ok(wait_until(sub { $boss->query('SELECT count(*) FROM done') >= $count }), 'all tasks are done');

	# So that none has to wait for a look that comes once a minute.
	my $from = mono_now();
	$boss->query_safe("SELECT dlock_task_put('crowd', 'stop')");
	$_->answer foreach @workers;
	cmp_ok(mono_now() - $from, '<', $soon, 'and a task that all hand on reaches all');
	is($boss->query('SELECT count(*), count(DISTINCT key) FROM done'), "$count|$count", 'each once');
}

# A transaction that has noted as many queues as it can, and a look that finds nothing: the
# call sleeps.
{
	my $queue = new_queue();
	my @others = map { new_queue() } 1 .. 64;
	my $worker = DLockSession->new($node, $db, name => 'full', options => '-c track_functions=all');
	$worker->query_safe('BEGIN');
	$worker->query_safe("SELECT dlock_task_put('$_', 'a')") foreach @others;
	is($worker->query_safe("SELECT count(*) FROM dlock_task_capture('$queue', wait => '1 s')"), 0, 'a call after 64 puts waits in vain');
	cmp_ok($worker->query_safe("SELECT sum(calls) FROM pg_stat_xact_user_functions WHERE funcname = 'dlock_task_looked'") || 1000, '<', 10, 'and looks a few times');
	$worker->query_safe('ROLLBACK');
	$worker->quit;
}

# A trigger of the administrator that leaves a task as it is: the call says so, and the next
# one waits.
{
	my $queue = new_queue();
	$boss->query_safe("SELECT dlock_task_put('$queue', 'vetoed')");
	$boss->query_safe(q{CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
		CREATE TRIGGER veto BEFORE UPDATE ON dlock_task FOR EACH ROW EXECUTE FUNCTION veto()});
	my $worker = DLockSession->new($node, $db, name => 'vetoed');
	foreach my $wait ('', ", wait => '1 h'")
	{
		is($worker->query("SELECT count(*) FROM dlock_task_capture('$queue'$wait)"), 'ERROR P0001', "a task that a trigger keeps$wait");
		is($worker->{message}, qq{tasks of queue "$queue" were locked but not written}, 'the message says so');
	}
	$boss->query_safe('DROP FUNCTION veto CASCADE');
	is($worker->query(capture($queue)), 'vetoed', 'without the trigger it is captured');
	$worker->ask_waiting($boss, capture($queue));
	$boss->query_safe("SELECT dlock_task_put('$queue', 'next')");
	gets($worker, 'next', 'and a wait gets the next one');
	$worker->quit;
}

# Who takes a task of one state has not followed a call for another.
{
	my $queue = new_queue();
	my $first = waiting($queue, "from_states => '{a}'");
	my $second = waiting($queue, "from_states => '{b,a}'");
	$boss->query_safe("SELECT dlock_task_put('$queue', 'of-a', state => 'a'), dlock_task_put('$queue', 'of-b', state => 'b')");
	gets($second, 'of-b', 'one gets the task of the state that it prefers');
	gets($first, 'of-a', 'the other the one that both were called for');
	$_->quit foreach $first, $second;
}

# Rows that cannot be kept have not been captured, and nothing is left open.
{
	my $queue = new_queue();
	my $failed = 0;
	my $sql = "SELECT count(*) FROM dlock_task_capture('$queue', 1000, from_states => '{a,b}'";
	my $worker = DLockSession->new($node, $db, name => 'wide');
	$boss->query_safe("SELECT count(dlock_task_put('$queue', 'x' || i, (SELECT to_jsonb(array_agg(md5(i::text || j))) FROM generate_series(1, 47) j),"
		  . " state => CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END)) FROM generate_series(1, 1000) i");
	for (my $limit = 2000; !$failed && $limit < 5000; $limit += 100)
	{
		$worker->query_safe("SET work_mem = '64kB'; SET temp_file_limit = '${limit}kB'; BEGIN");
		my $fits = $worker->query("$sql)");
		$worker->query_safe('ROLLBACK');
		next if $fits ne '1000';
		$worker->query("BEGIN; $sql, wait => '1 s')");
		$failed = $worker->{state} eq '53400';
		$worker->query_safe('ROLLBACK');
		is($worker->query_safe('SELECT 1'), 1, "$limit kB are enough for one copy of the rows, and not for two: the session goes on");
	}
	ok($failed, 'there was such a limit');
	$worker->quit;
}

# A call in the target list does not give up the snapshot of a statement that reads FROM another.
{
	$boss->query_safe("SELECT dlock_acquire('busy', 'boss', '1 h')");
	$boss->query_safe(q{CREATE FUNCTION careful() RETURNS bigint STABLE LANGUAGE plpgsql AS
		$$ BEGIN RETURN dlock_acquire('busy', 'careful', wait => '10 ms'); EXCEPTION WHEN OTHERS THEN RAISE EXCEPTION 'caught: %', SQLERRM; END $$});
	my $worker = DLockSession->new($node, $db, name => 'careful');
	is($worker->query("SELECT careful() IS NULL FROM dlock_acquire('free', 'careful')"), 't', 'a wait in the target list');
	$worker->quit;
	$boss->query_safe("SELECT dlock_release('busy', 'boss'); DROP FUNCTION careful");
}

# ---- looks in vain take no memory ----
{
	my $queue = new_queue();
	my $worker = waiting($queue);
	my $wake = sub {
		my ($times) = @_;
		$boss->query_safe("DO \$\$ BEGIN FOR i IN 1..$times LOOP PERFORM dlock_task_put('$queue', 'a'), dlock_task_set('$queue', 'a', 'done'), dlock_task_purge('$queue', '0'); COMMIT; END LOOP; END \$\$");
	};
	my $used = sub {
		my $offset = -s $node->logfile;
		my $bytes;
		$boss->query_safe('SELECT pg_log_backend_memory_contexts(' . $worker->pid . ')');
		wait_until(sub { ($bytes) = slurp_file($node->logfile, $offset) =~ /Grand total: .* (\d+) used/; defined $bytes });
		return $bytes;
	};
	$wake->(100);
	my $before = $used->();
	$wake->(1500);
	cmp_ok($used->() - $before, '<', 30000, 'looks in vain take no memory');
	$boss->query_safe("SELECT dlock_task_put('$queue', 'b')");
	gets($worker, 'b', 'and the next one finds a task');
	$worker->quit;
}

# ---- a crash ----
{
	my $queue = new_queue();
	my ($killed, $other) = map { waiting($queue) } 1 .. 2;
	kill_server_process($node, $killed->pid);
	is($_->answer, 'LOST', 'kill -9 of a backend: whoever waits is told') foreach $killed, $other;
	like($other->{stderr}, qr/57P02|server closed the connection/, 'and why');

	$boss = DLockSession->new($node, $db, name => 'boss');
	my $worker = waiting($queue);
	nobody_answers('a new wait', $worker);
	$boss->query_safe("SELECT dlock_task_put('$queue', 'a')");
	gets($worker, 'a', 'gets the next task');
	$worker->quit;
}

# ---- a standby ----
{
	my $queue = new_queue();
	my $standby = make_standby($node, 'standby');
	my $there = DLockSession->new($standby, $db, name => 'worker');
	$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
	is($there->query(capture($queue)), 'ERROR 25006', 'no task is captured on a standby, nor waited for');
	like("$there->{message} $there->{hint}", qr/dlock_task_capture.* recovery Connect to the primary/, 'the error says where');
	$node->stop('immediate');
	$standby->promote;

	$boss = DLockSession->new($standby, $db, name => 'boss');
	$there->ask_waiting($boss, capture($queue));
	$boss->query_safe("SELECT dlock_task_put('$queue', 'a')");
	gets($there, 'a', 'once it is promoted, a session that was there waits');
	$_->quit foreach $there, $boss;
	$standby->stop;
}

done_testing();
