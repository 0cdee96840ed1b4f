# Proves: with 16 capturers that die at any moment, killed as clients, terminated, or
# with the server, and that stand still, each task is done, none is lost, none is ever
# captured while a capture of it is live, and its tokens ascend.
#
#   DLOCK_TASKS   how many tasks (20000); 100000 takes some minutes
#   DLOCK_SEED    the choices of another run

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockTest;
use POSIX ':sys_wait_h';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $tasks = $ENV{DLOCK_TASKS} // 20_000;
my $capturers = 16;
my $seed = $ENV{DLOCK_SEED} // int rand 2**31;
srand $seed;
note "DLOCK_SEED=$seed";

my $node = start_node('main', conf => <<'EOC');
max_connections = 60
restart_after_crash = on
log_min_messages = panic
autovacuum = on
autovacuum_naptime = 1s
EOC
my $db = 'postgres';

$node->safe_psql($db, <<"EOC");
SELECT dlock_queue_create('q', '{ready -> working, working -> ready, working -> half, half -> ready, working -> done, half -> done}', max_attempts => NULL, retry_delay => '10 ms');
SELECT count(dlock_task_put('q', 'k' || i, priority => i % 5)) FROM generate_series(1, $tasks) i;
EOC
$node->safe_psql($db, <<'EOC');
-- What each task has brought about, in the transaction that has finished it.
CREATE TABLE effect (key text, token bigint);

-- All that ever happens to captures; "deadline" is that of the one before, its back-off included.
CREATE TABLE history (seq bigserial, at timestamptz, key text, kind text, was_captured bool, was_token bigint, token bigint, deadline timestamptz,
	-- when its owner called for the end of a capture, which the clock is looked at after
	called timestamptz);
CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF new.token IS DISTINCT FROM old.token THEN
		INSERT INTO public.history (at, key, kind, was_captured, was_token, token, deadline)
		VALUES (clock_timestamp(), new.key, 'capture', old.expires_at IS NOT NULL, old.token, new.token, old.ready_at);
	ELSIF old.expires_at IS NOT NULL AND new.expires_at IS NULL THEN
		INSERT INTO public.history (at, key, kind, was_captured, was_token, token, deadline, called)
		VALUES (clock_timestamp(), new.key, 'end', true, old.token, new.token, old.expires_at,
			nullif(current_setting('stress.called', true), '')::timestamptz);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER remember AFTER UPDATE ON _dlock.task FOR EACH ROW EXECUTE FUNCTION remember();

-- One task of a batch; true if the capturer goes on with the next.
CREATE FUNCTION one(k text, t bigint) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
	dice float8 := random();
BEGIN
	PERFORM set_config('stress.called', clock_timestamp()::text, true);
	IF dice < 0.02 THEN
		PERFORM dlock_task_fail('q', k, t, error => 'no luck', delay => CASE WHEN dice < 0.01 THEN interval '300 ms' END);
	ELSIF dice < 0.03 THEN
		PERFORM dlock_task_release('q', k, t, delay => CASE WHEN dice < 0.025 THEN interval '200 ms' END);
	ELSIF dice < 0.035 THEN
		RETURN false;
	ELSE
		IF dice < 0.1 THEN
			PERFORM dlock_task_renew('q', k, t);
		END IF;
		IF dice < 0.2 THEN
			PERFORM dlock_task_set('q', k, t, 'half');
		END IF;
		INSERT INTO effect VALUES (k, t);
		PERFORM dlock_task_finish('q', k, t);
	END IF;
	RETURN true;
EXCEPTION WHEN SQLSTATE 'LK002' THEN
	RETURN true;
END $$;

-- One batch.  Some capturers leave it, and some sleep over its deadline and go on.
CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
DECLARE
	keys text[];
	tokens bigint[];
	dice float8 := random();
	go_on bool;
BEGIN
	SELECT array_agg(c.key), array_agg(c.token) INTO keys, tokens FROM dlock_task_capture('q', 20, ttl => '1 s') c;
	COMMIT;
	IF keys IS NULL THEN
		PERFORM pg_sleep(0.05);
		RETURN;
	END IF;
	IF dice < 0.005 THEN
		-- this row is locked then, so nobody else can end its capture meanwhile
		PERFORM dlock_task_renew('q', keys[1], tokens[1]);
		PERFORM pg_sleep(2.5);
	ELSIF dice < 0.01 THEN
		PERFORM pg_sleep(1.2);
	END IF;
	FOR i IN 1 .. cardinality(keys) LOOP
		go_on := one(keys[i], tokens[i]);
		IF i % 5 = 0 THEN
			COMMIT;
		END IF;
		EXIT WHEN NOT go_on;
	END LOOP;
END $$;
EOC

my $dir = PostgreSQL::Test::Utils::tempdir;
append_to_file("$dir/work.sql", "CALL work();\n");

# Start a capturer; returns its process id.
sub start_capturer
{
	my $pid = fork // die "fork: $!";
	return $pid if $pid;
	open STDOUT, '>', "$dir/out.$$";
	open STDERR, '>&', \*STDOUT;
	exec 'pgbench', '-n', '-f', "$dir/work.sql", '-t', '1000000',
	  $node->connstr($db) . ' application_name=capturer'
	  or POSIX::_exit(1);
}

# Ask the server, which may be down just now.
sub ask
{
	my ($sql) = @_;
	my ($ret, $out) = eval { $node->psql($db, $sql) };
	return defined $ret && $ret == 0 ? $out : undef;
}

my %died = (client => 0, backend => 0, server => 0);
my @running = map { start_capturer() } 1 .. $capturers;
my $patience = 180;    # without a task that is done
my $end = mono_now() + $patience;
my $last_crash = mono_now();
my $crash_every = $tasks > 20_000 ? 5 : 3;
my $left = $tasks;
END { kill 'KILL', @running if @running }

while ($left > 0 && mono_now() < $end)
{
	usleep(50_000 + int rand 200_000);

	# Who has died is replaced.
	foreach my $capturer (@running)
	{
		$capturer = start_capturer() if waitpid($capturer, WNOHANG) != 0;
	}
	if (mono_now() - $last_crash > $crash_every || !$died{server} && $left < $tasks * 2 / 3)
	{
		my $pid = ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'capturer' LIMIT 1");
		if (defined $pid && $pid ne '' && kill 'KILL', $pid)
		{
			$died{server}++;
			wait_until(sub { defined ask('SELECT 1') }) or die 'the server does not come back';

			# However long that took, there is time to work until the next one.
			$last_crash = mono_now();
		}
	}
	elsif (!$died{client} || $died{backend} && rand() < 0.5)
	{
		$died{client} += kill 'KILL', $running[ int rand @running ];
	}
	else
	{
		my $done = ask("SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE application_name = 'capturer' ORDER BY random() LIMIT 1) a");
		$died{backend} += $done // 0;
	}
	my $now = ask("SELECT count(*) FROM _dlock.task WHERE finished_at IS NULL");
	$end = mono_now() + $patience if defined $now && $now < $left;
	$left = $now if defined $now;
}
foreach my $capturer (@running)
{
	kill 'KILL', $capturer;
	waitpid $capturer, 0;
}
@running = ();
wait_until(sub { (ask("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'capturer'") // 1) == 0 });
note "$tasks tasks, deaths: $died{client} clients, $died{backend} backends, $died{server} servers";

sub is_sql
{
	my ($sql, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->safe_psql($db, $sql), $expected, $name);
	return;
}

is_sql("SELECT count(*), count(*) FILTER (WHERE state = 'done' AND done = token) FROM _dlock.task", "$tasks|$tasks", 'none is lost, and all are done');
is_sql("SELECT count(*) FROM _dlock.task t WHERE NOT EXISTS (SELECT FROM effect e WHERE e.key = t.key AND e.token = t.token)",
	0, 'each was done by the capture that finished it');
is_sql('SELECT count(*) - count(DISTINCT key) FROM effect', 0, 'and what a lost capture did was undone');
is_sql("SELECT count(*) FROM history WHERE kind = 'capture' AND at < deadline", 0, 'none is captured while it is captured or put off');

# A process may stand still between its look at the clock and the trigger, but not look
# at the clock before it is called.
is_sql("SELECT count(*) FROM history WHERE kind = 'end' AND (called IS NULL OR called > deadline + '100 ms')", 0, 'no capture is ended by its owner long after it');
is_sql("SELECT count(*) FROM history WHERE kind = 'capture' AND token <= was_token", 0, 'tokens of a task ascend');
is_sql("SELECT count(*) - count(DISTINCT token) FROM history WHERE kind = 'capture'", 0, 'no token is given twice');
is_sql(
	"SELECT count(*) FROM (SELECT kind, was_captured, lag(kind) OVER (PARTITION BY key ORDER BY seq) AS before FROM history) h WHERE NOT coalesce(was_captured, false) AND kind = 'capture' AND before = 'capture'",
	0, 'between two captures one ends or times out');

# Otherwise nothing was tested.
cmp_ok($node->safe_psql($db, "SELECT count(*) FROM history WHERE kind = 'capture' AND was_captured"), '>', 0, 'captures have timed out');
cmp_ok($died{client}, '>', 0, 'clients were killed');
cmp_ok($died{backend}, '>', 0, 'backends were terminated');
cmp_ok($died{server}, '>', 0, 'the server crashed');
note $node->safe_psql($db, "SELECT kind, count(*) FROM history GROUP BY 1 ORDER BY 1");
$node->stop;

done_testing();
