# Proves: a database in which something is due gets a reaper, which tidies up, is in
# nobody's way, and is not needed for a lease to end at its deadline.

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

my $node = start_node('main', conf => <<'EOC');
restart_after_crash = on
dlock.reap_interval = 1h
EOC
my $db = 'postgres';

# Have something for a reaper to do, and wait until one is at it.  It then stays
# for a minute.
sub call_reaper
{
	my ($dbname) = @_;

	$node->safe_psql($dbname, "SELECT dlock_acquire('call', 'caller', '1 ms')");
	wait_for_reaper($node, $dbname);
	return worker_pid($node, 'reaper', $dbname);
}

# One that is there leaves when the extension does.
like(worker_pid($node, 'launcher'), qr/^\d+$/, 'one launcher');
$node->safe_psql($db, 'CREATE DATABASE work');
$node->safe_psql('work', 'CREATE EXTENSION dlock');
call_reaper('work');
pass('a reaper when a lease has expired');
$node->safe_psql('work', 'DROP EXTENSION dlock');
wait_for_no_reaper($node, 'work');
pass('none after DROP EXTENSION');
$node->safe_psql('work', 'BEGIN; CREATE EXTENSION dlock; ROLLBACK');
$node->safe_psql('work', 'CREATE EXTENSION dlock');
my $pid = call_reaper('work');
$node->safe_psql('work', 'BEGIN; DROP EXTENSION dlock; ROLLBACK');
is(worker_pid($node, 'reaper', 'work'), $pid, 'it stays when that is rolled back');

# After a start the leases of all databases are seen to, though nobody uses them.
$node->safe_psql($db, 'CREATE DATABASE closed TEMPLATE work');
$node->safe_psql($db, 'ALTER DATABASE closed ALLOW_CONNECTIONS false');
$node->safe_psql('work', "SELECT dlock_acquire('short', 'alice', '300 ms'), dlock_acquire('long', 'alice', '1 h')");
flush_wal($node, 'work');
crash_node($node);
$node->start;
ok( wait_until(
		sub { join(' ', sort keys %{ { store_slots($node, 'work') } }) eq 'long' }),
	'what expired is removed after a start, what is live stays');
$node->safe_psql('work', "SELECT dlock_release('long', 'alice')");

# One that has just appeared may be in its first transaction still.
call_reaper($_) foreach $db, 'work';
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

# It is in nobody's way: these fail after five seconds if it is.  Another one may come
# afterwards, and stay for a minute.
my $began = mono_now();
$node->safe_psql('work', "SELECT dlock_acquire('held', 'alice', '1 h')");
$pid = call_reaper('work');
$node->safe_psql($db, 'CREATE DATABASE copy TEMPLATE work');
wait_gone($pid);
pass('CREATE DATABASE TEMPLATE');
$node->safe_psql('copy', "SELECT dlock_acquire('held', 'alice', '1 h')");
$pid = call_reaper('copy');
$node->safe_psql($db, 'ALTER DATABASE copy RENAME TO renamed');
wait_gone($pid);
pass('ALTER DATABASE RENAME');
mkdir $node->basedir . '/space' or die;
$node->safe_psql($db,
	"CREATE TABLESPACE space LOCATION '" . $node->basedir . "/space'");
$pid = call_reaper('renamed');
$node->safe_psql($db, 'ALTER DATABASE renamed SET TABLESPACE space');
wait_gone($pid);
pass('ALTER DATABASE SET TABLESPACE');
call_reaper('renamed');
$node->safe_psql($db, 'DROP DATABASE renamed');
pass('DROP DATABASE');
$node->safe_psql($db, 'DROP DATABASE closed');
pass('DROP DATABASE that nobody may connect to');

# Over and over, catching it at every step of its start.
foreach my $i (1 .. 10)
{
	$node->safe_psql($db, 'CREATE DATABASE brief TEMPLATE work');
	$node->safe_psql('brief', "SELECT dlock_acquire('x', 'alice', '1 ms')") if $i % 3;
	$node->safe_psql($db, 'ALTER DATABASE brief RENAME TO short');
	$node->safe_psql('short', "SELECT dlock_acquire('y', 'alice', '1 ms')") if $i % 2;
	$node->safe_psql($db, 'DROP DATABASE short');
}
pass('CREATE, RENAME and DROP DATABASE ten times');
in_time($began, mono_now(), 30 + 50 * $plain, 'without waiting for anybody');

# The owner of a database drops it, with privileges on nothing else, and a reaper
# that stands still.  It dies of the drop, and not before.
{
	$node->safe_psql($db, 'CREATE ROLE owner LOGIN');
	foreach my $force ('', ' WITH (FORCE)')
	{
		foreach my $stopped (0, 1)
		{
			my $what = "DROP DATABASE$force" . ($stopped ? ', the reaper stopped' : '');

			$node->safe_psql($db, 'CREATE DATABASE owned TEMPLATE template0 OWNER owner');
			$node->safe_psql('owned', 'CREATE EXTENSION dlock');
			$pid = call_reaper('owned');
			stop_asleep($node, $pid) if $stopped;
			my ($code, undef, $stderr) = $node->psql($db, "SET SESSION AUTHORIZATION owner; DROP DATABASE owned$force");
			kill 'CONT', $pid if $stopped;
			is($code, 0, $what) or diag($stderr);
			wait_gone($pid);
			$node->safe_psql($db, "DROP DATABASE IF EXISTS owned$force");
		}
	}
	$node->safe_psql($db, 'DROP ROLE owner');
}

# A role that may not do so does nothing to the reaper by trying, again and again.
{
	my $stranger = "SET SESSION AUTHORIZATION stranger;\n";

	$node->safe_psql($db, 'CREATE ROLE stranger LOGIN');
	$pid = call_reaper('work');
	$stranger .= "DROP DATABASE work;\nALTER DATABASE work RENAME TO mine;\nALTER DATABASE work SET TABLESPACE pg_default;\nCREATE DATABASE mine TEMPLATE work;\n" x 500;
	my ($code, undef, $stderr) = $node->psql($db, $stranger, on_error_stop => 0);
	is(scalar(() = $stderr =~ /ERROR:  (?:must be owner|permission denied)/g), 2000, 'commands of a stranger are refused');
	is(worker_pid($node, 'reaper', 'work'), $pid, 'and the reaper is the same');
	$node->safe_psql($db, 'DROP ROLE stranger');
}

# What cannot be done for another reason leaves the leases as they are.
{
	my $session = DLockSession->new($node, 'work');
	my %error = error_fields($node, $db, 'DROP DATABASE work');
	is($error{sqlstate}, '55006', 'DROP DATABASE with a session there');
	$session->quit;
	sqlstate_is($node, $db, 'ALTER DATABASE work RENAME TO postgres',
		'42P04', 'RENAME to a name that is taken');
	is( $node->safe_psql('work', "SELECT name FROM dlock_leases WHERE owner = 'alice'"),
		'held', 'the lease is there');
	$node->safe_psql('work', "SELECT dlock_acquire('brief', 'alice', '1 ms')");
	wait_for_reaper($node, 'work');
	pass('and a reaper comes');
}

# It erases what expired, in memory and on disk, at the deadline, not when the
# nap of dlock.reap_interval is over; what is live stays.
{
	$node->safe_psql('work', <<'EOC');
SELECT count(dlock_acquire('short-' || i, 'alice', '500 ms')) FROM generate_series(1, 2000) i;
SELECT count(dlock_acquire('shorter-' || i, 'alice', '100 ms')) FROM generate_series(1, 100) i;
SELECT dlock_acquire('long', 'alice', '1 h');
EOC

	# In time, which a slow disk may take several attempts for.
	ok( wait_until(
			sub {
				$node->safe_psql('work',
					"SELECT dlock_acquire('renewed', 'alice', '1 s', reentry => 'return') IS NOT NULL AND dlock_renew('renewed', 'alice', '1 h')") eq 't';
			}),
		'one is renewed');
	my %slots = store_slots($node, 'work');
	ok(exists $slots{'long'} && exists $slots{'held'}, 'leases are on disk');
	ok( wait_until(
			sub {
				my %slots = store_slots($node, 'work');
				return !grep { /^short/ } keys %slots;
			}),
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
			}),
		'a nearer deadline is seen to');
}

# Stopped, it costs tidiness only: a lease ends at its deadline, to the moment.
{
	my $reaper = call_reaper('work');
	my $launcher = worker_pid($node, 'launcher');
	stop_asleep($node, $reaper, $launcher);
	my $session = DLockSession->new($node, 'work');
	my $holder = DLockSession->new($node, 'work');
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
			}),
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
	call_reaper('work');
	my $pid = worker_pid($node, $type, $of);
	kill_server_process($node, $pid);
	is($node->safe_psql('work', "SELECT dlock_check('kill-$type', $token)"), 't', "kill -9 of the $type: the lease is held");
	ok(wait_until(sub { worker_pid($node, 'launcher') ne '' }),
		"kill -9 of the $type: the launcher is back");
	call_reaper('work');
	cmp_ok(
		$node->safe_psql('work', "SELECT dlock_acquire('new-$type', 'alice', '1 h')"),
		'>', $token, "kill -9 of the $type: tokens go on");
}

# Terminated, it comes back when there is something to do.
{
	my $pid = call_reaper('work');
	$node->safe_psql($db, "SELECT pg_terminate_backend($pid)");
	wait_gone($pid);
	isnt(call_reaper('work'), $pid, 'pg_terminate_backend of the reaper: another comes');
	$pid = worker_pid($node, 'launcher');
	$node->safe_psql($db, "SELECT pg_terminate_backend($pid)");
	wait_gone($pid);
	ok( wait_until(sub { worker_pid($node, 'launcher') ne '' }),
		'pg_terminate_backend of the launcher: it comes back');
	$node->safe_psql($db, 'CREATE DATABASE other TEMPLATE template0');
	$node->safe_psql('other', 'CREATE EXTENSION dlock');
	call_reaper($_) foreach 'work', 'other';
	pass('and starts reapers');
}

$node->stop;
my $log = slurp_file($node->logfile);
unlike($log, qr/PANIC|TRAP:|could not drop|invalid page/, 'nothing odd in the log');

done_testing();
