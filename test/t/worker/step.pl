# Proves: wherever the worker is in its work, commands on the database and on the store
# wait for it or go first, and never fail for it; what they move it follows; and a kill -9
# of it leaves each lease whole or gone.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockFault;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_fault_node('main', conf => "restart_after_crash = on\nmax_prepared_transactions = 2\n");
my $db = 'postgres';
my ($ctl, $a, $worker);

sub connect_all
{
	$ctl = DLockSession->new($node, $db, name => 'control');
	$a = DLockSession->new($node, $db, name => 'a');
	$worker = worker_pid($node);
	return;
}
connect_all();

foreach my $space (1, 2)
{
	mkdir $node->basedir . "/space$space" or die;
	$node->safe_psql($db, "CREATE TABLESPACE space$space LOCATION '" . $node->basedir . "/space$space'");
}

# A database with expired leases, at one of which the worker stands.  It does not run until all
# are there: what it locks at the first would be in the way of the others.
sub stop_worker
{
	my ($dbname, $point) = @_;

	stop_asleep($node, $worker);
	stop_at($ctl, $worker, $point);
	$node->safe_psql($dbname, "SELECT count(dlock_acquire('brief' || i, 'alice', '1 ms')) FROM generate_series(1, 3) i");
	kill 'CONT', $worker or die "process $worker: $!";
	is_at($ctl, $point);
	return;
}

sub make_database
{
	my ($name) = @_;

	$node->safe_psql($db, "CREATE DATABASE $name TEMPLATE template0");
	$node->safe_psql($name, "CREATE EXTENSION dlock; SELECT dlock_acquire('held', 'alice', '1 h')");
	return;
}

# Does a process wait for a lock?
sub waits_for_lock
{
	my ($pid) = @_;

	return wait_until(sub { $ctl->query_safe("SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid") eq 'Lock' });
}

# All that has expired is gone in the end, on disk and in memory, and "held" is there.  What
# may have moved the store is followed by a use of it, for the worker goes by that.
sub is_clean
{
	my ($dbname, $label) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok( wait_until(
			sub {
				my $leases = $node->safe_psql($dbname, 'SELECT leases FROM dlock_stats');
				my %slots = store_slots($node, $dbname);
				return $leases == 1 && join(' ', sort keys %slots) eq 'held';
			}),
		"$label: what has expired is erased, what is held is there");
	return;
}

# ---- commands that come while the worker has the database or the store locked ----

my @points = qw(worker_lock worker_erase);

# What the command makes of the database is dropped afterwards.
foreach my $case (
	[ 'DROP DATABASE work', undef ],
	[ 'DROP DATABASE work WITH (FORCE)', undef ],
	[ 'ALTER DATABASE work RENAME TO renamed', 'renamed' ],
	[ 'ALTER DATABASE work SET TABLESPACE space1', 'work' ],
	[ 'CREATE DATABASE copy TEMPLATE work STRATEGY wal_log', 'work', 'copy' ],
	[ 'CREATE DATABASE copy TEMPLATE work STRATEGY file_copy', 'work', 'copy' ])
{
	my ($command, $left, $copy) = @$case;

	foreach my $point (@points)
	{
		make_database('work');
		stop_worker('work', $point);
		$a->ask($command);
		ok(waits_for_lock($a->pid), "$command, worker at $point: it waits");
		go($ctl, $point);
		is($a->answer, '', "$command, worker at $point: it is done");
		next if !defined $left;
		is_clean($left, "$command, worker at $point");
		$node->safe_psql($left, "SELECT dlock_acquire('brief', 'alice', '1 ms')");
		is_clean($left, "$command, worker at $point, and later");
		is($node->safe_psql($copy, 'SELECT count(*) FROM dlock_leases'), 0, 'the copy has no leases') if $copy;
		$node->safe_psql($db, "DROP DATABASE $_") foreach grep { defined } $left, $copy;
	}
}

# On the store, by a session of the database.  With the first lock alone the worker is in
# nobody's way, and leaves the store alone then.
make_database('work');
my $there = DLockSession->new($node, 'work');
my @commands = (
	'VACUUM FULL _dlock.store', 'REINDEX TABLE _dlock.store',
	'ALTER TABLE _dlock.store SET TABLESPACE space1', 'ALTER TABLE _dlock.store SET TABLESPACE pg_default',
	'BEGIN; SAVEPOINT s; ALTER TABLE _dlock.store SET TABLESPACE space2; ROLLBACK TO s; COMMIT',
	'BEGIN; ALTER TABLE _dlock.store SET TABLESPACE space2; ROLLBACK');
foreach my $command (@commands)
{
	foreach my $point (@points)
	{
		stop_worker('work', $point);
		$there->ask($command);
		ok(waits_for_lock($there->pid), "$command, worker at $point: it waits") if $point ne 'worker_lock';
		$there->answer if $point eq 'worker_lock';
		go($ctl, $point);
		is($there->answer, '', "$command, worker at $point: it is done") if $point ne 'worker_lock';
		is_clean('work', "$command, worker at $point");
	}
}

# ---- and those that were there before ----

# A command that waits goes first, as one that is at work does: the worker comes back later.
foreach my $lock ('ACCESS EXCLUSIVE', 'SHARE')
{
	$there->query_safe("BEGIN; LOCK TABLE _dlock.store IN ACCESS SHARE MODE; SELECT dlock_acquire('brief', 'alice', '1 s')");
	my $other = DLockSession->new($node, 'work');
	$other->ask("BEGIN; LOCK TABLE _dlock.store IN $lock MODE");
	$lock eq 'SHARE' ? $other->answer : waits_for_lock($other->pid);
	stop_at($ctl, $worker, 'worker_lock');
	is_at($ctl, 'worker_lock');
	go($ctl, 'worker_lock');
	$ctl->query_safe("SELECT dlock_acquire('elsewhere', 'alice', '1 ms')");
	ok(wait_until(sub { $ctl->query_safe("SELECT leases FROM dlock_stats") == 0 }), "$lock: the worker does not wait");
	my %slots = store_slots($node, 'work');
	ok($slots{brief}, "$lock: and leaves the store alone");
	$there->query_safe('COMMIT');
	$other->answer if $lock ne 'SHARE';
	$other->query_safe('COMMIT');
	$other->quit;
	is_clean('work', $lock);
}

# A move that is prepared, and committed later.
$there->query_safe("SELECT dlock_acquire('brief', 'alice', '100 ms'); BEGIN; ALTER TABLE _dlock.store SET TABLESPACE space2; PREPARE TRANSACTION 'move'");
stop_at($ctl, $worker, 'worker_swept');
$ctl->query_safe("SELECT dlock_acquire('elsewhere', 'alice', '1 ms')");
is_at($ctl, 'worker_swept');
go($ctl, 'worker_swept');
$there->query_safe("COMMIT PREPARED 'move'");
is_clean('work', 'a move that was prepared');

# The store moves, and nobody opens it then: its old pages are left alone, although they
# are the last that the worker knows of.
{
	my $log = -s $node->logfile;
	$there->query_safe("SELECT dlock_acquire('brief', 'alice', '300 ms')");
	$there->query_safe("ALTER TABLE _dlock.store SET TABLESPACE space1");
	$ctl->query_safe("SELECT dlock_acquire('elsewhere', 'alice', '500 ms')");
	ok(wait_until(sub { $ctl->query_safe("SELECT leases FROM dlock_stats") == 0 }), 'moved, and not opened: the worker has been there');
	unlike(slurp_file($node->logfile, $log), qr/ERROR/, 'moved, and not opened: no error');
	is_clean('work', 'moved, and opened');
}
$there->quit;

# ---- another extension, another database of the same name ----

# The worker stands before the store of an extension that is dropped and made again.
stop_worker('work', 'worker_lock');
$node->safe_psql('work', "DROP EXTENSION dlock; CREATE EXTENSION dlock; SELECT dlock_acquire('held', 'bob', '1 h')");
go($ctl, 'worker_lock');
is_clean('work', 'dropped and made again');

# ---- errors ----

# Pages that it cannot read are told of, and the others are not affected.
{
	my $log = -s $node->logfile;
	my $other = 'other';
	make_database($other);
	fail_at($ctl, $worker, 'worker_lock');
	$node->safe_psql('work', "SELECT dlock_acquire('brief', 'alice', '1 ms')");
	ok(wait_until(sub { faults_hit($ctl, 'worker_lock') != 0 }), 'an error');
	$node->safe_psql($other, "SELECT dlock_acquire('brief', 'alice', '1 ms')");
	is_clean($other, 'an error: another database');
	go($ctl, 'worker_lock');
	is_clean('work', 'an error: the database itself');
	is(worker_pid($node), $worker, 'an error: the worker is the same');
	like(slurp_file($node->logfile, $log), qr/ERROR:  fault at "worker_lock"/, 'an error: the log has it');
	$node->safe_psql($db, "DROP DATABASE $other");
}

# ---- kill -9 ----

define_faults($node, 'work');

foreach my $point (@points, qw(worker_swept worker_erased step_locked wal_insert wal_inserted step_done worker_purge))
{
	my $token = $node->safe_psql('work', "SELECT dlock_acquire('kept', 'alice', '1 h')");

	if ($point eq 'worker_purge')
	{
		make_database('gone');
		stop_at($ctl, $worker, $point);
		$node->safe_psql($db, 'DROP DATABASE gone');
		is_at($ctl, $point);
	}
	else
	{
		stop_worker('work', $point);
	}
	kill_server_process($node, $worker);
	$_->quit foreach $ctl, $a;
	connect_all();
	is($node->safe_psql('work', "SELECT dlock_check('held', token), dlock_check('kept', $token) FROM dlock_leases WHERE name = 'held'"),
		't|t', "kill -9 at $point: what is held is held");
	$node->safe_psql('work', "SELECT dlock_release_token('kept', $token)");
	$node->safe_psql('work', "SELECT dlock_acquire('brief', 'alice', '1 ms')");
	is_clean('work', "kill -9 at $point");
	my $there = DLockSession->new($node, 'work');
	sound($there, "kill -9 at $point");
	$there->quit;
}

$node->safe_psql($db, 'DROP DATABASE work');
$_->quit foreach $ctl, $a;
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|ERROR:  (?!fault)|invalid page|could not (?:read|access)/, 'nothing odd in the log');
done_testing();
