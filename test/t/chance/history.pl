# Proves, from what clients have seen and nothing else: while servers crash, are
# restarted and replaced, and clients and server processes are stopped, cancelled
# and killed, no two hold what one may hold, tokens ascend, no grant that was
# answered is lost, and requests are served in their order.
#
#   DLOCK_PROOF_SECONDS    how long (12)
#   DLOCK_SEED             the choices of another run
#
# test/proof/DLockHistory.pm has the rules, and history_rules their test.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib", "$FindBin::RealBin/../../proof";

use DLockProof;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $db = 'postgres';
my $seconds = DLockProof::seconds(12);
my %count;
seed_random();

# Each standby is called the same by the primary, which never answers without one.
my $nodes = 1;
my $primary = start_node('node1', allows_streaming => 1, conf => <<'EOC');
max_connections = 60
deadlock_timeout = 20ms
wal_receiver_status_interval = 1s
log_min_messages = fatal
EOC
my $standby = make_standby($primary);
$primary->append_conf('postgresql.conf', "synchronous_standby_names = 'standby'");
$primary->reload;
wait_for_standby($primary);

sub make_standby
{
	my ($root) = @_;
	my $node = PostgreSQL::Test::Cluster->new('node' . ++$nodes);

	$root->backup("for_node$nodes");
	$node->init_from_backup($root, "for_node$nodes", has_streaming => 1);
	$node->append_conf('postgresql.conf',
		"primary_conninfo = '" . $root->connstr . " application_name=standby'\nsynchronous_standby_names = 'standby'");
	$node->start;
	return $node;
}

sub wait_for_standby
{
	my ($node) = @_;

	$node->poll_query_until($db,
		"SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = 'standby' AND sync_state = 'sync' AND state = 'streaming'")
	  or die 'no synchronous standby';
	return;
}

# ---------------------------------------------------------------------------
# Faults
# ---------------------------------------------------------------------------

my $clients = DLockProof->new($primary, count => 12, listens => 1);

# End a server process, or what it does, or stop it for a moment.
sub strike
{
	my ($what, $node) = @_;

	($node // $primary)->safe_psql($db,
		"SELECT $what(pid) FROM (SELECT pid FROM pg_stat_activity WHERE application_name = 'history' ORDER BY random() LIMIT 1) victim");
	return;
}

# End a wait, at any place of a queue.
sub strike_waiter
{
	$primary->safe_psql($db, 'SELECT pg_cancel_backend(pid) FROM (SELECT pid FROM dlock_waiters ORDER BY random() LIMIT 3) victim');
	return;
}

sub stop_backend
{
	my $pid = $primary->safe_psql($db, "SELECT pid FROM pg_stat_activity WHERE application_name = 'history' ORDER BY random() LIMIT 1");

	return if $pid eq '';
	kill 'STOP', $pid;
	usleep(rand 200_000);
	kill 'CONT', $pid;
	return;
}

# The standby takes over.  Either the primary has crashed, or it goes on for a
# while, cut off.
sub fail_over
{
	my ($cut_off) = @_;
	my $old = $primary;

	crash_node($old) if !$cut_off;
	$standby->promote;
	$standby->poll_query_until($db, 'SELECT NOT pg_is_in_recovery()') or die 'not promoted';
	$primary = $standby;
	$clients->aim($primary);
	if ($cut_off)
	{
		# What waits for the standby is cancelled, and its client asks what it has.
		for (my $until = mono_now() + 0.2 + rand 1.5; mono_now() < $until;)
		{
			usleep(50_000);
			strike('pg_cancel_backend', $old);
		}
		crash_node($old);
	}
	$old->clean_node;
	$standby = make_standby($primary);
	wait_for_standby($primary);
	return;
}

my %fault = (
	'stop client' => sub { $clients->stop_one },
	'kill client' => sub { $clients->kill_one },
	'stop backend' => \&stop_backend,
	'cancel' => sub { strike('pg_cancel_backend') },
	'cancel waiters' => \&strike_waiter,
	'rewrite' => sub { $primary->safe_psql($db, 'VACUUM FULL _dlock.store') },
	'terminate' => sub { strike('pg_terminate_backend') },
	'crash' => sub { crash_node($primary); $primary->start; },
	'restart' => sub { $primary->stop(rand() < 0.5 ? 'fast' : 'immediate'); $primary->start; },
	'failover' => sub { fail_over(0) },
	'cut off' => sub { fail_over(1) },);

# Small faults all the time, and each of the large ones in turn.
my @small = ('stop client', 'stop client', 'kill client', 'stop backend', 'cancel', 'cancel waiters', 'cancel waiters', 'terminate', 'rewrite');
my @large = ('crash', 'cut off', 'restart', 'failover');
my $begin = mono_now();
my $end = $begin + $seconds;
my $next = 0;
my $large = 0;

while (1)
{
	my $passed = mono_now() - $begin;

	last if $large >= 2 && $clients->is_enough($end);
	my $what = $small[ rand @small ];
	if ($passed > $next && ($passed < $seconds || $large < 2))
	{
		# What a stopped client holds has to outlast it without renewals.
		$what = $large[ $large++ % @large ];
		$clients->stop_one for 1 .. 4;
		$next = $passed + $seconds / (2 + $seconds / 5);
	}
	$count{$what}++;
	$fault{$what}->();
	$clients->go_on;
	note sprintf '%.1f: %s', $passed, $what;
	usleep(rand 150_000);
}
diag join ', ', map { "$_ $count{$_}" } sort keys %count;

# ---------------------------------------------------------------------------
# What is left
# ---------------------------------------------------------------------------

# Nothing is stuck: what the clients leave behind ends by itself.
$clients->end;
ok(wait_until(sub { $primary->safe_psql($db, 'SELECT count(*) FROM dlock_waiters') eq '0' }), 'no place stays longer than it is kept');
isnt($primary->safe_psql($db, "SELECT dlock_acquire_all('{n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, p}', 'last', '1 h', '5 min')"),
	'', 'every lock can be had');
isnt($primary->safe_psql($db, "SELECT dlock_acquire('s', 'last', '1 h', '5 min', permits => 2) + dlock_acquire('s', 'other', '1 h', '5 min', permits => 2)"),
	'', 'and both permits');
is($primary->safe_psql($db, "SELECT dlock_release_all('last') + dlock_release_all('other')"), '13', 'and released');
$clients->is_right('the history');

$standby->stop('immediate');
$primary->stop('fast');
unlike(slurp_file($_->logfile), qr/PANIC|TRAP:|invalid page/, 'nothing odd in the log') foreach $primary, $standby;
done_testing();
