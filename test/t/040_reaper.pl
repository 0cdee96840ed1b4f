# Proves: every database with the extension gets a reaper, which tidies up, is in
# nobody's way, and is not needed for a lease to end at its deadline.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";

use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', conf => <<'EOC');
restart_after_crash = on
dlock.reap_interval = 1h
EOC
my $db = 'postgres';

# It comes and goes with the extension.
wait_for_reaper($node, $db);
like(worker_pid($node, 'launcher'), qr/^\d+$/, 'one launcher');
$node->safe_psql($db, 'CREATE DATABASE work');
wait_for_no_reaper($node, 'work');
$node->safe_psql('work', 'CREATE EXTENSION dlock');
wait_for_reaper($node, 'work');
pass('a reaper after CREATE EXTENSION');
$node->safe_psql('work', 'DROP EXTENSION dlock');
wait_for_no_reaper($node, 'work');
pass('none after DROP EXTENSION');
$node->safe_psql('work', 'BEGIN; CREATE EXTENSION dlock; ROLLBACK');
$node->safe_psql('work', 'CREATE EXTENSION dlock');
wait_for_reaper($node, 'work');
$node->safe_psql('work', 'BEGIN; DROP EXTENSION dlock; ROLLBACK');
wait_for_reaper($node, 'work');
$node->safe_psql($db, 'CREATE DATABASE closed TEMPLATE work');
$node->safe_psql($db, 'ALTER DATABASE closed ALLOW_CONNECTIONS false');
$node->restart;
wait_for_reaper($node, $_) foreach $db, 'work';
pass('reapers after a start');

# One that has just appeared may be in its first transaction still.
ok( $node->poll_query_until(
		$db,
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'dlock%' AND backend_xmin IS NOT NULL"
	),
	'no worker holds back vacuum');

# How long the server itself takes with a database.
my $plain = mono_now();
foreach my $i (1 .. 5)
{
	$node->safe_psql($db, 'CREATE DATABASE brief TEMPLATE template0');
	$node->safe_psql($db, 'ALTER DATABASE brief RENAME TO short');
	$node->safe_psql($db, 'DROP DATABASE short');
}
$plain = (mono_now() - $plain) / 5;

# It is in nobody's way: these fail at once, or after five seconds, if it is.
my $seconds = mono_now();
$node->safe_psql('work', "SELECT dlock_acquire('held', 'alice', '1 h')");
wait_for_reaper($node, 'work');
$node->safe_psql($db, 'CREATE DATABASE copy TEMPLATE work');
wait_for_reaper($node, 'work');
$node->safe_psql('copy', "SELECT dlock_acquire('held', 'alice', '1 h')");
wait_for_reaper($node, 'copy');
pass('CREATE DATABASE TEMPLATE');
$node->safe_psql($db, 'ALTER DATABASE copy RENAME TO renamed');
wait_for_reaper($node, 'renamed');
pass('ALTER DATABASE RENAME');
mkdir $node->basedir . '/space' or die;
$node->safe_psql($db,
	"CREATE TABLESPACE space LOCATION '" . $node->basedir . "/space'");
$node->safe_psql($db, 'ALTER DATABASE renamed SET TABLESPACE space');
wait_for_reaper($node, 'renamed');
pass('ALTER DATABASE SET TABLESPACE');
$node->safe_psql($db, 'DROP DATABASE renamed');
wait_for_no_reaper($node, 'renamed');
pass('DROP DATABASE');
$node->safe_psql($db, 'DROP DATABASE closed');
pass('DROP DATABASE that nobody may connect to');

# Over and over, catching it at every step of its start.
foreach my $i (1 .. 10)
{
	$node->safe_psql($db, 'CREATE DATABASE brief TEMPLATE work');
	$node->safe_psql($db, 'ALTER DATABASE brief RENAME TO short');
	$node->safe_psql('short', "SELECT dlock_acquire('x', 'alice', '1 h')")
	  if $i % 2;
	$node->safe_psql($db, 'DROP DATABASE short');
}
pass('CREATE, RENAME and DROP DATABASE ten times');
$seconds = mono_now() - $seconds;
cmp_ok($seconds, '<', 20 + 50 * $plain, 'without waiting for anybody');

# What cannot be done for another reason leaves the reaper where it was.
{
	my $session = $node->background_psql('work');
	my %error = error_fields($node, $db, 'DROP DATABASE work');
	is($error{sqlstate}, '55006', 'DROP DATABASE with a session there');
	$session->quit;
	wait_for_reaper($node, 'work');
	sqlstate_is($node, $db, 'ALTER DATABASE work RENAME TO postgres',
		'42P04', 'RENAME to a name that is taken');
	wait_for_reaper($node, 'work');
	pass('the reaper comes back');
	is( $node->safe_psql('work', 'SELECT name FROM dlock_leases'),
		'held', 'and the lease is there');
}

# It erases what expired, in memory and on disk, at the deadline, not when the
# nap of dlock.reap_interval is over; what is live stays.
{
	$node->safe_psql('work', <<'EOC');
SELECT count(dlock_acquire('short-' || i, 'alice', '500 ms')) FROM generate_series(1, 2000) i;
SELECT count(dlock_acquire('shorter-' || i, 'alice', '100 ms')) FROM generate_series(1, 100) i;
SELECT dlock_acquire('long', 'alice', '1 h');
SELECT dlock_acquire('renewed', 'alice', '1 s'), dlock_renew('renewed', 'alice', '1 h');
EOC
	my %slots = store_slots($node, 'work');
	ok(exists $slots{'long'} && exists $slots{'held'}, 'leases are on disk');
	ok( wait_until(
			sub {
				my %slots = store_slots($node, 'work');
				return !grep { /^short/ } keys %slots;
			},
			30),
		'expired leases are erased on disk');
	%slots = store_slots($node, 'work');
	is(join(' ', sort keys %slots), 'held long renewed', 'and only those');

	# Their room is used again.
	my $size =
	  $node->safe_psql('work', "SELECT pg_relation_size('dlock_store')");
	$node->safe_psql('work',
		"SELECT count(dlock_acquire('next-' || i, 'alice', '1 h')) FROM generate_series(1, 2000) i"
	);
	is($node->safe_psql('work', "SELECT pg_relation_size('dlock_store')"),
		$size, 'and the store does not grow');
	$node->safe_psql('work', "SELECT dlock_release_all('alice')");
}

# A nearer deadline wakes it out of a longer nap.
{
	$node->safe_psql('work', "SELECT dlock_acquire('far', 'alice', '1 h')");
	$node->safe_psql('work', "SELECT dlock_acquire('near', 'alice', '200 ms')");
	ok( wait_until(
			sub {
				my %slots = store_slots($node, 'work');
				return !exists $slots{near} && exists $slots{far};
			},
			30),
		'a nearer deadline is seen to');
}

# Stopped, it costs tidiness only: a lease ends at its deadline, to the moment.
{
	my $reaper = worker_pid($node, 'reaper', 'work');
	my $launcher = worker_pid($node, 'launcher');
	stop_asleep($node, $reaper, $launcher);
	my $session = $node->background_psql('work');
	my $holder = $node->background_psql('work');
	my (undef, $sent, $answered) = timed_query($holder,
		"BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT dlock_acquire('stopped', 'alice', '1 s')"
	);
	takeover_is_exact($session, 'stopped', 1, $sent, $answered,
		'reaper and launcher stopped');
	is($holder->query_safe("SELECT dlock_renew('stopped', 'alice')"),
		'f', 'the late holder learns that it has lost it');
	$holder->query_safe('ROLLBACK');

	# So it does when its own session stands still.
	my $backend = $holder->query_safe('SELECT pg_backend_pid()');
	(undef, $sent, $answered) = timed_query($holder,
		"SELECT dlock_acquire('frozen', 'alice', '1 s')");
	kill 'STOP', $backend;
	takeover_is_exact($session, 'frozen', 1, $sent, $answered,
		'session of the holder stopped');
	kill 'CONT', $backend;
	is($holder->query_safe("SELECT dlock_release('frozen', 'alice')"),
		'f', 'its late release frees nothing');

	# And when it is gone.
	(undef, $sent, $answered) = timed_query($holder,
		"SELECT dlock_acquire('gone', 'alice', '1 s')");
	$holder->quit;
	takeover_is_exact($session, 'gone', 1, $sent, $answered,
		'session of the holder gone');

	# Expired leases that nobody has tidied up are not shown or counted.
	$session->query_safe(
		"SELECT count(dlock_acquire('dead-' || i, 'carol', '1 microsecond')) FROM generate_series(1, 100) i; SELECT pg_sleep(0.001)"
	);
	is( $session->query_safe(
			"SELECT count(*) FROM dlock_leases WHERE name LIKE 'dead-%'"),
		0,
		'expired leases are not shown');
	is( $session->query_safe(
			"SELECT dlock_renew_all('carol') + dlock_release_all('carol')"),
		0,
		'nor renewed, nor released');
	kill 'CONT', $reaper, $launcher;
	ok( wait_until(
			sub {
				my %slots = store_slots($node, 'work');
				return !grep { /^dead-/ } keys %slots;
			},
			30),
		'once it goes on, it tidies up');
	$session->quit;
}

# Killed, it takes all sessions with it, as any process does, but no lease.
foreach my $which (
	[ 'reaper', 'work' ], [ 'launcher', undef ])
{
	my ($type, $of) = @$which;
	my $token = $node->safe_psql('work',
		"SELECT dlock_acquire('kill-$type', 'alice', '1 h')");
	my $pid = worker_pid($node, $type, $of);
	kill 'KILL', $pid;
	wait_gone($pid);
	ok( $node->poll_query_until('work',
			"SELECT dlock_check('kill-$type', $token)"),
		"kill -9 of the $type: the lease is held");
	wait_for_reaper($node, 'work');
	like(worker_pid($node, 'launcher'), qr/^\d+$/,
		"kill -9 of the $type: the launcher is back");
	cmp_ok(
		$node->safe_psql('work', "SELECT dlock_acquire('new-$type', 'alice', '1 h')"),
		'>', $token, "kill -9 of the $type: tokens go on");
}

# Terminated, it comes back.
{
	my $pid = worker_pid($node, 'reaper', 'work');
	$node->safe_psql($db, "SELECT pg_terminate_backend($pid)");
	wait_gone($pid);
	wait_for_reaper($node, 'work');
	$pid = worker_pid($node, 'launcher');
	$node->safe_psql($db, "SELECT pg_terminate_backend($pid)");
	wait_gone($pid);
	ok( wait_until(sub { worker_pid($node, 'launcher') ne '' }, 60),
		'pg_terminate_backend: they come back');
}

# More databases than workers: leases do not need them.
{
	my $n = 10;
	$node->safe_psql($db, "CREATE DATABASE d$_ TEMPLATE work") foreach 1 .. $n;
	$node->append_conf('postgresql.conf', 'max_worker_processes = 5');
	$node->restart;
	my $granted = 0;
	$granted += $node->safe_psql("d$_",
		"SELECT count(dlock_acquire('x', 'alice', '1 ms'))")
	  foreach 1 .. $n;
	is($granted, $n, 'more databases than workers: granted in all');
	$granted = 0;
	$granted += $node->safe_psql("d$_",
		"SELECT count(dlock_acquire('x', 'bob', '1 h'))")
	  foreach 1 .. $n;
	is($granted, $n, 'more databases than workers: taken over in all');
	$node->safe_psql($db, "DROP DATABASE d$_") foreach 1 .. $n;
	pass('and all can be dropped');
}

$node->stop;
my $log = slurp_file($node->logfile);
unlike($log, qr/PANIC|TRAP:|could not drop|invalid page/, 'nothing odd in the log');

done_testing();
