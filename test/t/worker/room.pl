# Proves: a call that finds no memory, or is at the limit of its role, waits until the worker
# has erased what is dead, in whatever database, and is granted or refused then; it can be
# canceled; and where the worker does not come, it is refused after one second, or at once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_fault_node('main', conf => "deadlock_timeout = 10h\ndlock.max_memory = 1MB\n");
my $db = 'postgres';
$node->safe_psql($db, 'CREATE ROLE tenant');
$node->safe_psql($db, 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION dlock');
my ($ctl, $a, $tenant, $other, $worker);

sub connect_all
{
	$ctl = DLockSession->new($node, $db, name => 'control');
	$a = DLockSession->new($node, $db, name => 'a');
	$tenant = DLockSession->new($node, $db, name => 'tenant', setup => 'SET dlock.max_leases = 2; SET ROLE tenant');
	$other = DLockSession->new($node, 'other', name => 'other');
	return;
}
connect_all();
$worker = worker_pid($node);

# Acquire until it is refused, for which there has to be a worker that works.
sub fill
{
	my ($session, $ttl) = @_;

	$session->query_safe(<<"EOC");
DO \$\$
BEGIN
	FOR i IN 1 .. 100000 LOOP
		PERFORM dlock_acquire('full' || i, 'filler', '$ttl');
	END LOOP;
EXCEPTION WHEN configuration_limit_exceeded THEN
	NULL;
END \$\$
EOC
	return;
}

sub leases
{
	return $ctl->query_safe('SELECT leases FROM dlock_stats');
}

sub empty
{
	$_->query_safe("SELECT dlock_release_all('filler'), dlock_release_all('a')") foreach $ctl, $other;
	$tenant->query_safe("SELECT dlock_release_all('a')");
	settle($ctl);
	is(leases(), 0, 'nothing is left');
	return;
}

# Ask for one more lease, and see that the call waits.
sub ask_waiting
{
	my ($session, $sql, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$session->ask($sql);
	return ok(
		wait_until(
			sub { $ctl->query_safe("SELECT state || wait_event_type FROM pg_stat_activity WHERE pid = $session->{pid}") eq 'activeExtension' }),
		"$test_name: waits for the worker");
}

my $one = "SELECT dlock_acquire('one', 'a', '1 h')";

# Full, and at the limit, each with leases that die after a minute.
my %full = (
	'memory full' => sub { fill($ctl, '1 min'); return $a },
	'memory full of leases of another database' => sub { fill($other, '1 min'); return $a },
	'limit' => sub { $tenant->query_safe("SELECT dlock_acquire('t' || i, 'a', '1 min') FROM generate_series(1, 2) i"); return $tenant },
);

foreach my $what (sort keys %full)
{
	# Nothing is dead: the worker says so at once, and scans nothing.  (It has swept since the
	# leases were loaded.)
	my $session = $full{$what}->();
	advance(1, $ctl);
	my %before = counts($ctl, $worker);
	is($session->query($one), 'ERROR 53400', "$what: refused while nothing is dead");
	my %after = counts($ctl, $worker);
	is($after{leases} - $before{leases}, 0, "$what: the worker visits no lease for that");

	# The worker is at work, and has erased nothing yet.
	stop_at($ctl, $worker, 'worker_lock');
	advance(59, $ctl);
	ask_waiting($session, $one, $what);
	go($ctl, 'worker_lock');
	like($session->answer, qr/^\d+$/, "$what: granted");
	settle($ctl);
	is(leases(), 1, "$what: what was dead is erased");
	empty();

	# It is stopped.
	$session = $full{$what}->();
	stop_at($ctl, $worker, 'worker_lock');
	advance(60, $ctl);
	ask_waiting($session, $one, "$what, the worker stopped");
	$ctl->query_safe("SELECT pg_cancel_backend($session->{pid})");
	is($session->answer, 'ERROR 57014', "$what, the worker stopped: canceled");
	ask_waiting($session, $one, "$what, the worker stopped");
	advance(1 - 0.000001, $ctl);
	still_waits($ctl, "$what, the worker stopped: for a second", $session);
	advance(0.000001, $ctl);
	is($session->answer, 'ERROR 53400', "$what, the worker stopped: refused");
	go($ctl, 'worker_lock');
	settle($ctl);
	like($session->query($one), qr/^\d+$/, "$what, the worker goes on: granted");
	empty();
}

# The worker rests after a sweep, and does not know of what has died meanwhile: it sweeps for
# those that wait all the same.
advance(1, $ctl);
$tenant->query_safe("SELECT dlock_acquire('brief', 'a', '5 ms')");
advance(0.005, $ctl);
$tenant->query_safe("SELECT dlock_acquire('t' || i, 'a', '1 ms') FROM generate_series(1, 2) i");
advance(0.001, $ctl);
is(leases(), 2, 'the worker rests: it has not erased');
like($tenant->query($one), qr/^\d+$/, 'the worker rests: granted');
is(leases(), 1, 'the worker rests: what was dead is erased');
empty();

# A pass ends once all is erased that was due when it began, be it more than the worker erases
# at a time; here the caller's leases come last.  It has to sweep, for its last sweep is 10
# seconds ago.
{
	$a->query_safe("SELECT count(dlock_acquire('many' || i, 'a', '1 min')) FROM generate_series(1, 2100) i");
	advance(0.000001, $ctl);
	$tenant->query_safe("SELECT dlock_acquire('t' || i, 'a', '1 min') FROM generate_series(1, 2) i");
	stop_at($ctl, $worker, 'worker_lock');
	stop_at($ctl, $worker, 'worker_erase', 2001);
	advance(60, $ctl);
	advance(10, $ctl);
	ask_waiting($tenant, $one, 'many are dead');
	go($ctl, 'worker_lock');
	is_at($ctl, 'worker_erase');
	is(leases(), 102, 'many are dead: most have been erased');
	still_waits($ctl, 'many are dead', $tenant);
	go($ctl, 'worker_erase');
	like($tenant->answer, qr/^\d+$/, 'many are dead: granted');
	empty();
}

# A store that is locked is left alone, and nobody waits for that.
{
	my $locker = DLockSession->new($node, 'other', name => 'locker');

	fill($other, '1 min');
	$locker->query_safe('BEGIN; LOCK TABLE _dlock.store IN SHARE MODE');
	advance(60 - 0.000001, $ctl);
	stop_at($ctl, $worker, 'worker_lock', 2);
	advance(0.000001, $ctl);
	advance(1 - 0.000001, $ctl);
	is(faults_hit($ctl, 'worker_lock'), 0, 'a store is locked: the worker has tried once, and does so no more for a second');
	advance(0.000001, $ctl);
	is(is_at($ctl, 'worker_lock'), $worker, 'a store is locked: then it does');
	go($ctl, 'worker_lock');
	is($a->query($one), 'ERROR 53400', 'a store is locked: refused at once');
	$locker->query_safe('COMMIT');
	advance(1, $ctl);
	like($a->query($one), qr/^\d+$/, 'no longer locked: granted');
	$locker->quit;
	empty();
}

# There is no room for the worker.
$_->quit foreach $ctl, $a, $tenant, $other;
$node->append_conf('postgresql.conf', "max_worker_processes = 1\nmax_logical_replication_workers = 1");
$node->restart;
connect_all();
foreach my $what ('limit', 'memory full')
{
	my $session = $full{$what}->();
	advance(60, $ctl);
	is($session->query($one), 'ERROR 53400', "$what, no worker: refused at once");
}

$_->quit foreach $ctl, $a, $tenant, $other;
$node->stop;
log_is_clean($node);
done_testing();
