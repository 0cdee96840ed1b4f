# Proves: with many more databases than worker slots a few reapers at a time see to
# all of them, also after a crash when nobody uses them, and leave; parallel queries
# have their workers meanwhile, and the last free slot is never taken.
#
# DLOCK_DATABASES says how many databases, by default 24.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $n = $ENV{DLOCK_DATABASES} // 24;
my $node = start_node('main', conf => <<'EOC');
max_worker_processes = 8
dlock.reap_interval = 100ms
log_min_messages = log
EOC
my $db = 'postgres';
my $reapers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'dlock reaper'";
my $session = DLockSession->new($node, $db);

# How many workers a parallel query gets that asks for two.
$session->query_safe(<<'EOC');
CREATE TABLE many AS SELECT generate_series(1, 1000) AS i;
SET max_parallel_workers_per_gather = 2;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
CREATE FUNCTION launched() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	line text;
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (ANALYZE) SELECT count(*) FROM many' LOOP
		IF line ~ 'Workers Launched' THEN
			RETURN substring(line FROM '\d+');
		END IF;
	END LOOP;
	RETURN NULL;
END $$;
EOC

# Databases with expired leases.
$node->safe_psql($db, 'CREATE DATABASE pattern');
$node->safe_psql('pattern', 'CREATE EXTENSION dlock');
my @names = map { "d$_" } 1 .. $n;
$node->safe_psql($db, "CREATE DATABASE $_ TEMPLATE pattern") foreach @names;

sub use_all
{
	my ($ttl) = @_;

	$node->safe_psql($_,
		"SELECT count(dlock_acquire('x' || i, 'alice', '$ttl')) FROM generate_series(1, 5) i"
	) foreach @names;
	return;
}

# The files of their stores.
my %store;
foreach my $name (@names)
{
	$store{$name} = $node->data_dir . '/' . $node->safe_psql($name, "SELECT pg_relation_filepath('dlock_store')");
}

# Wait until no lease is left in any of the databases, without connecting to them;
# returns the most reapers and the fewest workers that were seen.
sub wait_until_clean
{
	my @left = @names;
	my ($most, $least) = (0, 2);
	my $end = mono_now() + 300 + 5 * $n;

	while (@left && mono_now() < $end)
	{
		my $count = $session->query_safe($reapers);
		my $launched = $session->query_safe('SELECT launched()');

		$most = $count if $count > $most;
		$least = $launched if $launched < $least;
		$session->query_safe('CHECKPOINT');
		@left = grep { my %slots = slots_of_file($store{$_}); %slots } @left;
	}
	is("@left", '', 'all leases are removed');
	return ($most, $least);
}

foreach my $crash (0, 1)
{
	my $what = $crash ? 'after a crash' : 'in use';
	my $began = mono_now();

	use_all('1 s');
	if ($crash)
	{
		flush_wal($node, $db);
		crash_node($node);
		$session->kill_client;
		$node->start;
		$session = DLockSession->new($node, $db);
		$session->query_safe('SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0');
	}
	my ($most, $least) = wait_until_clean();
	note(sprintf '%s: %d databases in %.1f s', $what, $n, mono_now() - $began);
	cmp_ok($most, '<=', 3, "$what: no more than dlock.max_reapers at a time");
	is($least, 2, "$what: parallel queries have their workers");
	ok(wait_until(sub { $session->query_safe($reapers) eq '0' }), "$what: they leave");
}

# A grant wakes nobody whose time has not come.
{
	my $launcher = worker_pid($node, 'launcher');
	my $switches = sub { slurp_file("/proc/$launcher/status") =~ /^voluntary_ctxt_switches:\s*(\d+)/m; $1 };

	$session->query_safe("SELECT dlock_acquire('first', 'alice', '1 h')");
	my $before = $switches->();
	$session->query_safe("SELECT dlock_acquire('far-' || i, 'alice', '1 h') FROM generate_series(1, 1000) i");
	cmp_ok($switches->() - $before, '<', 100, 'a grant with a far deadline does not wake the launcher');
	is($session->query_safe($reapers), 0, 'nor start a reaper');
	$session->query_safe("SELECT dlock_release_all('alice')");
}

# With three slots one is free beside both launchers, and stays so.  With a fourth a
# reaper has one.
foreach my $slots (3, 4)
{
	my $log = -s $node->logfile;

	$node->safe_psql($db, "ALTER SYSTEM SET max_worker_processes = $slots");
	$session->quit;
	pause_reapers($node);
	$node->restart;
	$session = DLockSession->new($node, $db);

	# Its process may be a long time coming, and its slot counts as free until then.
	wait_until(sub { $session->query_safe("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'logical replication launcher'") == 1 })
	  or die 'no launcher of logical replication';
	resume_reapers($node);
	$session->query_safe('SET max_parallel_workers_per_gather = 1; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0');
	$session->query_safe("SELECT dlock_acquire('x', 'alice', '1 ms')");

	# A reaper that was not seen has left again, so there is something due once more.
	$slots == 4
	  ? ok(
		wait_until(
			sub {
				return 1 if $session->query_safe("$reapers AND datname = '$db'") == 1;
				$session->query_safe("SELECT dlock_acquire('x', 'alice', '1 ms')");
				return 0;
			}),
		"$slots slots: there is a reaper")
	  : ok(wait_until(sub { slurp_file($node->logfile, $log) =~ /no background worker slot can be spared/ }),
		"$slots slots: the log says that there is no reaper");
	is($session->query_safe('SELECT launched()'), 1, "$slots slots: a parallel query has a worker");
	cmp_ok($session->query_safe("SELECT dlock_acquire('x', 'bob', '1 h')"), '>', 0, "$slots slots: what has expired is taken over");
	$session->query_safe("SELECT dlock_release('x', 'bob')");
}

# With none at all nothing is missing that was promised.
{
	my $waiter = DLockSession->new($node, $db);

	pause_reapers($node);
	$session->query_safe("SELECT dlock_acquire('x', 'alice', '500 ms')");
	cmp_ok($waiter->query_safe("SELECT dlock_acquire('x', 'bob', '1 h', wait => '1 min')"), '>', 0, 'no reapers: who waits gets the lock');
	is($node->safe_psql($names[0], "SELECT count(*) FROM dlock_leases"), 0, 'no reapers: databases can be used');
	$waiter->quit;
}

# One that has been registered, and has no process yet, would connect to what has gone; it has a
# slot, for which a query lacks a worker.
$session->query_safe('SET max_parallel_workers_per_gather = 2');
wait_until(sub { $session->query_safe('SELECT launched()') == 2 }) or die 'the reapers do not leave';
$node->safe_psql($db, "DROP DATABASE $_") foreach @names[0 .. 2];
pass('databases can be dropped');
$session->quit;
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|was terminated by signal|FATAL:  database .* does not exist/, 'nothing odd in the log');
done_testing();
