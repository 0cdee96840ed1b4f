# Proves: clients in haste, whose waits time out and are cancelled, and whose sessions
# are terminated, at any moment and place of a queue, see what histories must show; no
# lock gets stuck, no memory is lost, what is known of leases and places fits together, and memory
# and disk agree.
#
#   DLOCK_STRESS_SECONDS   how long (10)
#   DLOCK_SEED             the choices of another run

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib", "$FindBin::RealBin/../../proof";

use DLockFault;
use DLockProof;
use DLockQueue;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $seconds = $ENV{DLOCK_STRESS_SECONDS} // 10;
seed_random();

my $has_faults = ($ENV{DLOCK_FAULTS} // 'no') ne 'no';
my $node = ($has_faults ? \&start_fault_node : \&start_node)->('main', conf => <<'EOC');
dlock.max_memory = 2MB
deadlock_timeout = 20ms
synchronous_commit = off
max_connections = 60
log_min_messages = panic
EOC
my $db = 'postgres';
my $control = DLockSession->new($node, $db, name => 'control');

$control->query_safe(<<'EOC');
-- How many leases find room?
CREATE FUNCTION fill() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	n int := 0;
BEGIN
	LOOP
		BEGIN
			PERFORM dlock_acquire('fill-' || n, 'filler', '1 h');
			n := n + 1;
		EXCEPTION WHEN configuration_limit_exceeded THEN
			PERFORM dlock_release_all('filler');
			RETURN n;
		END;
	END LOOP;
END $$;
EOC

# Mostly those that wait, at any place of a queue.
sub strike
{
	my $what = rand() < 0.12 ? 'pg_terminate_backend' : 'pg_cancel_backend';
	my $from = rand() < 0.8 ? 'dlock_waiters' : "pg_stat_activity WHERE application_name = 'history'";

	return $control->query_safe("SELECT count($what(pid)) FROM (SELECT pid FROM $from ORDER BY random() LIMIT 1) victim");
}

sub load
{
	my ($name) = @_;
	my $ended = 0;
	my $clients = DLockProof->new($node, count => 16, work => 'haste', listens => 1);
	my $end = mono_now() + $seconds / 2;

	while (!$clients->is_enough($end))
	{
		$control->query_safe('VACUUM FULL _dlock.store') if rand() < 0.02;
		$ended += strike();
		usleep(rand 30_000);
	}
	note "$name: $ended ended";
	$clients->end;

	# What the clients leave behind ends by itself, or by force.
	ok(wait_until(sub { $control->query_safe("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'history'") eq '0' }), "$name: sessions end");
	ok(wait_until(sub { $control->query_safe('SELECT count(*) FROM dlock_waiters WHERE kept_until IS NOT NULL') eq '0' }), "$name: places end");
	queues_are_empty($control, "$name: every queue is empty");
	sound($control, $name) if $has_faults;
	$control->query_safe("SELECT dlock_force_release(name, 'test') FROM (SELECT DISTINCT name FROM dlock_leases) held");
	$clients->is_right($name);
	return $control->query_safe('SELECT fill()');
}

# What is there once has been used for the first time.
my $before = load('the first half');
my $after = load('the second half');
cmp_ok($after, '>=', $before - 10, 'no memory is lost');

# Some that stay.
my $leases = "SELECT string_agg(name || ' ' || token, ',' ORDER BY name COLLATE \"C\") FROM dlock_leases";
$control->query_safe("SELECT dlock_acquire('stays-' || i, 'owner', '1 h') FROM generate_series(1, 100) i");
my $shown = $control->query_safe($leases);
my %slots = store_slots($node, $db);
is(join(',', map { "$_ $slots{$_}{token}" } sort keys %slots), $shown, 'memory and disk agree');
$control->quit;
crash_node($node);
$node->start;
is($node->safe_psql($db, $leases), $shown, 'also after a crash');

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|invalid page/, 'nothing odd in the log');
done_testing();
