# Proves: under a load of all that dlock does, with cancels, terminations, stopped processes,
# crashes and restarts, nothing grows: not the memory of the server and its processes, not
# the relations, not the WAL of a grant, not the number of open files; and in the end no lease, no request
# and no record is left.
#
#   DLOCK_PROOF_SECONDS    how long (20)
#   DLOCK_SEED             the choices of another run
#
# test/proof/DLockSoak.pm has the load and the judge, and soak_rules the latter's test.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib", "$FindBin::RealBin/../../proof";

use DLockProof;
use DLockSoak;
use DLockTest;
use List::Util qw(max min sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $db = 'postgres';
my $seconds = DLockProof::seconds(20);
my $sessions = 8;

# How much longer than asked for a run may take, on a slow machine.
my $patience = 300;
my %count;
seed_random();

# A server as it is, with autovacuum, since tasks and fences are rows.
my $node = start_node('main', conf => <<'EOC');
dlock.max_ttl = 5s
dlock.default_ttl = 2s
dlock.max_memory = 4MB
max_connections = 40
deadlock_timeout = 100ms
autovacuum = on
autovacuum_naptime = 1s
restart_after_crash = on
checkpoint_timeout = 30s
max_wal_size = 256MB
log_min_messages = error
log_error_verbosity = verbose
EOC
$node->safe_psql($db, <<'EOC');
SELECT dlock_group_create('g', 4);
SELECT dlock_queue_create('q', max_attempts => 3, retry_delay => '10 ms');
CREATE TABLE guarded (id int PRIMARY KEY, v bigint);
INSERT INTO guarded SELECT g, 0 FROM generate_series(0, 4) g;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guarded EXECUTE FUNCTION dlock_guard('guarded');

-- What a grant and its release write; the median, for some reserve tokens or log a whole page.
CREATE FUNCTION wal_of_pair() RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
	plan json;
	bytes numeric[];
BEGIN
	FOR i IN 1 .. 21 LOOP
		EXECUTE 'EXPLAIN (ANALYZE, WAL, TIMING off, FORMAT json) '
			'SELECT dlock_acquire(''pair'', ''pair'', ''5 s''), dlock_release(''pair'', ''pair'')' INTO plan;
		bytes := bytes || (plan -> 0 -> 'Plan' ->> 'WAL Bytes')::numeric;
	END LOOP;
	RETURN (SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY b) FROM unnest(bytes) b);
END $$;
EOC

# ---------------------------------------------------------------------------
# What is measured
# ---------------------------------------------------------------------------

my $kilobyte = 1024;

# Name, unit of X, and by how much it may grow after the warm-up; for a session, what it calls
# that.  The first ones go up and down with the load; heaps grow until autovacuum keeps pace;
# private memory, by what malloc() keeps; contexts, by what is rarely used.
my @measures = (
	[ 'shared memory for leases, bytes', 's', 32 * $kilobyte ],
	[ 'leases in memory', 's', 40 ],
	[ 'requests in queues', 's', 8 ],
	[ '_dlock.store, bytes', 's', 64 * $kilobyte ],
	[ '_dlock.task, bytes', 's', 1024 * $kilobyte ],
	[ 'fence marks and other tables of dlock, bytes', 's', 128 * $kilobyte ],
	[ 'the catalog, bytes', 's', 512 * $kilobyte ],
	[ 'files of relations', 's', 20 ],
	[ 'WAL of a grant and its release, bytes', 's', 8 ],
	[ 'worker: private memory, bytes', 's', 256 * $kilobyte ],
	[ 'worker: open files', 's', 4 ],
	[ 'postmaster: private memory, bytes', 's', 256 * $kilobyte ],
	[ 'postmaster: open files', 's', 2 ],
	[ 'session: memory contexts, bytes', 'rounds', 128 * $kilobyte, 'contexts' ],
	[ 'session: relcache and catcache, bytes', 'rounds', 128 * $kilobyte, 'caches' ],
	[ 'session: private memory, bytes', 'rounds', 512 * $kilobyte, 'private' ],
	[ 'session: open files', 'rounds', 10, 'files' ],);
my %series;

sub add
{
	my ($measure, $process, $x, $y) = @_;

	push @{ $series{$measure}{$process} }, [ $x, $y ];
	return;
}

# Memory of a process that is not shared, and its open files; nothing if it has gone.
sub look_at_process
{
	my ($what, $pid, $process, $now) = @_;

	open my $status, '<', "/proc/$pid/status" or return;
	my ($memory) = map { /^RssAnon:\s+(\d+) kB/ } <$status>;
	close $status;
	opendir my $files, "/proc/$pid/fd" or return;
	my $open = grep { /^\d+$/ } readdir $files;
	closedir $files;
	return if !defined $memory || !$open;
	add("$what: private memory, bytes", $process, $now, $memory * $kilobyte);
	add("$what: open files", $process, $now, $open);
	return;
}

sub take_samples
{
	my ($now) = @_;
	my ($numbers, @processes) = split /\n/, $node->safe_psql($db, <<'EOC');
SET statement_timeout = '1 min';
WITH relation AS (
	SELECT c.relname, n.nspname, pg_total_relation_size(c.oid) AS size
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE c.relkind IN ('r', 'S'))
SELECT s.memory_used, s.leases, (SELECT count(*) FROM dlock_waiters),
	sum(size) FILTER (WHERE nspname = '_dlock' AND relname = 'store'), sum(size) FILTER (WHERE relname = 'task'),
	sum(size) FILTER (WHERE (nspname = '_dlock' OR relname LIKE 'dlock%') AND relname NOT IN ('store', 'task')),
	sum(size) FILTER (WHERE nspname = 'pg_catalog'), (SELECT count(*) FROM pg_ls_dir('base/' || (SELECT oid FROM pg_database WHERE datname = current_database()))),
	(SELECT wal_of_pair())
FROM dlock_stats s, relation GROUP BY 1, 2;
SELECT substr(backend_type, 7), pid, backend_start FROM pg_stat_activity WHERE backend_type LIKE 'dlock %';
EOC
	my @numbers = split /\|/, $numbers;

	add($measures[$_][0], 'server', $now, $numbers[$_]) foreach 0 .. $#numbers;
	foreach my $process (@processes)
	{
		my ($what, $pid, $start) = split /\|/, $process;

		look_at_process($what, $pid, "$pid $start", $now);
	}
	my ($postmaster, $start) = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[ 0, 2 ];
	look_at_process('postmaster', $postmaster, "$postmaster $start", $now);
	$count{samples}++;
	return;
}

# ---------------------------------------------------------------------------
# Faults
# ---------------------------------------------------------------------------

my @load;

END
{
	my $status = $?;
	kill 'TERM', map { $_->{pid} } @load;
	$? = $status;
}

# Half of the processes keep their sessions, and so tell what grows in one.
foreach my $n (1 .. $sessions)
{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/soak.$n";

	push @load, { output => "$file.out", errors => "$file.err", steady => $n % 2 };
	$load[-1]{pid} = DLockSoak::start(
		$node->connstr($db),
		number => $n,
		seed => int rand 2**31,
		rounds => $load[-1]{steady} ? 0 : 5,
		output => "$file.out",
		errors => "$file.err");
}

sub victim
{
	my ($which) = @_;

	return $node->safe_psql($db, "SELECT pid FROM pg_stat_activity WHERE application_name IN ($which) ORDER BY random() LIMIT 1");
}

sub strike
{
	my ($what, $which) = @_;
	my $pid = victim($which);

	$node->safe_psql($db, "SELECT $what($pid)") if $pid ne '';
	return;
}

sub stop_for_a_moment
{
	my ($pid) = @_;

	return if !$pid;
	kill 'STOP', $pid;
	usleep(rand 300_000);
	kill 'CONT', $pid;
	return;
}

# A client of a session that need not last.
sub client
{
	return (child_pids($load[ 1 + 2 * int rand $sessions / 2 ]{pid}))[0];
}

# The server ends all its processes and begins anew.  A session that lasts is killed: another may
# exit by itself just before, and then the server stays up.
sub kill_backend
{
	my $from = -s $node->logfile;
	my $pid = victim("'steady'");

	wait_for_reinit($node, $from) if $pid ne '' && kill 'KILL', $pid;
	return;
}

my %fault = (
	'cancel' => sub { strike('pg_cancel_backend', "'soak', 'steady'") },
	'terminate' => sub { strike('pg_terminate_backend', "'soak'") },
	'stop backend' => sub { stop_for_a_moment(victim("'soak', 'steady'")) },
	'stop client' => sub { stop_for_a_moment(client()) },
	'kill client' => sub { my $pid = client(); kill 'KILL', $pid if $pid; },
	'end worker' => sub {
		$node->safe_psql($db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'dlock worker'");
	},
	'kill backend' => \&kill_backend,
	'crash' => sub { crash_node($node); $node->start; },
	'restart' => sub { $node->stop(rand() < 0.5 ? 'fast' : 'immediate'); $node->start; },);
my @small = ('cancel', 'cancel', 'terminate', 'stop backend', 'stop client', 'kill client');
my @large = ('kill backend', 'crash', 'end worker', 'restart');

# Large faults, which end all processes, come in the first half only, so that the
# second tells what grows in a process.
my $larges = max(4, int $seconds / 60);
my $begin = mono_now();
my ($next_sample, $next_large, $large) = (0, 0, 0);

# Autovacuum, held off in the last quarter, may be about to keep pace again; what grows goes on.
my @heaps = grep { $_->[0] =~ /^(?:_dlock\.task|the catalog), bytes$/ } @measures;

sub is_enough
{
	return $count{samples} >= 40
	  && DLockSoak::is_enough(map { $_->{output} } grep { $_->{steady} } @load)
	  && !grep { !DLockSoak::judge($series{ $_->[0] } // {}, $_->[2])->{flat} } @heaps;
}

while (1)
{
	my $now = mono_now() - $begin;

	last if $now > $seconds && (is_enough() || $now > $seconds + $patience);
	my $what = $small[ rand @small ];

	if ($large < $larges && $now > $seconds / 2 * ($large + 0.5) / $larges)
	{
		$what = $large[ $large++ % @large ];
	}
	$count{$what}++;
	$fault{$what}->();
	note sprintf '%.1f: %s', $now, $what;
	if ($now >= $next_sample)
	{
		take_samples($now);
		$next_sample = $now + min(5, $seconds / 100);
	}
	usleep(rand 300_000);
}
diag join ', ', map { "$_ $count{$_}" } sort keys %count;

# ---------------------------------------------------------------------------
# Flat?
# ---------------------------------------------------------------------------

kill 'TERM', map { $_->{pid} } @load;
waitpid $_->{pid}, 0 foreach @load;

my $sessions_said = DLockSoak::read_sessions(map { $_->{output} } grep { $_->{steady} } @load);
my @table;
foreach my $measure (@measures)
{
	my ($name, $unit, $bound, $of_session) = @$measure;
	my $verdict =
	  defined $of_session
	  ? DLockSoak::judge($sessions_said->{$of_session} // {}, $bound, $DLockSoak::rounds_of_warm_up)
	  : DLockSoak::judge($series{$name} // {}, $bound);

	ok($verdict->{flat}, "flat: $name");
	push @table, [ $name, $unit, $verdict ];
}
diag sprintf '%d rounds, up to %d of one session', DLockSoak::count_rounds(DLockSoak::read_sessions(map { $_->{output} } @load));
diag join "\n", DLockSoak::table(@table);

my $errors = DLockSoak::read_errors(map { $_->{errors} } @load);
diag join ', ', map { "$_ $errors->{$_}" } sort keys %$errors;

# Sessions end the same parked tasks, and whoever comes second is told that there is none (42704).
is(join(' ', grep { /^XX|^42(?!704)|^P0|^2F/ } keys %$errors), '', 'no odd error');

# ---------------------------------------------------------------------------
# What is left
# ---------------------------------------------------------------------------

ok(wait_until(sub { $node->safe_psql($db, "SELECT count(*) FROM pg_stat_activity WHERE application_name IN ('soak', 'steady')") eq '0' }),
	'every session has ended');
is($node->safe_psql($db, 'SELECT count(*) FROM dlock_waiters'), '0', 'no request is left');
ok(wait_until(sub { $node->safe_psql($db, 'SELECT leases FROM dlock_stats') eq '0' }), 'no lease is left in memory')
  or diag $node->safe_psql($db, 'SELECT name, state, bind, expires_at FROM dlock_leases');

# The directory of slots is made of cells as leases are, of 232 bytes: at most one for each page of slots
# (src/space/slot.c).
my ($cells, $pages) = split /\|/, $node->safe_psql($db, "SELECT memory_used / 232, pg_relation_size('_dlock.store') / 8192 FROM dlock_stats");
cmp_ok($cells, '<', $pages, 'no memory, but for the directory of slots');
is(scalar keys %{ { store_slots($node, $db) } }, 0, 'and no record on a page');
ok(wait_until(sub { $node->safe_psql($db, "SELECT count(*) FROM dlock_tasks WHERE state = 'working'") eq '0' }), 'no task is captured');
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|XX\d\d\d:/, 'nothing odd in the log');
done_testing();
