# Proves: while a backend is stopped under the lock of one partition of the lock
# space, only what needs locks of that partition waits.  Locks of all others are
# acquired and released as before, also beside requests for several locks that
# wait for that partition; views leave it out and say so; the worker goes on
# with the rest; and when the backend goes on, all is as before.

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
use Time::HiRes qw(sleep);

my $node = start_node('main', conf => "autovacuum = off\ndeadlock_timeout = 100ms");
my $db = 'postgres';
my $library = PostgreSQL::Test::Utils::tempdir() . '/stop_partition.so';
chomp(my $include = `$ENV{PG_CONFIG} --includedir-server`);
my $source = "$FindBin::RealBin/../../../src";
system('cc', '-O1', '-Wall', '-fPIC', '-shared', "-I$include", "-I$source", '-o', $library,
	"$FindBin::RealBin/../../modules/stop_partition.c", "$source/base/hash.c") == 0
  or die 'the module cannot be compiled';

my $monitor = DLockSession->new($node, $db);
my $one = DLockSession->new($node, $db);
my $two = DLockSession->new($node, $db);
my $stopped = DLockSession->new($node, $db);
$monitor->query_safe("CREATE FUNCTION partition_of(text) RETURNS int LANGUAGE c STRICT AS '$library'");
$monitor->query_safe("CREATE FUNCTION stop_in_partition(int) RETURNS void LANGUAGE c STRICT AS '$library'");
$monitor->query_safe('CREATE ROLE tenant LOGIN; ALTER ROLE tenant SET dlock.max_leases = 1000');
$monitor->query_safe(<<'EOC');
CREATE FUNCTION pairs(avoid int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	n int := 0;
	lock text;
BEGIN
	FOR i IN 1 .. 4000 LOOP
		lock := 'pair-' || i;
		IF partition_of(lock) <> avoid THEN
			PERFORM dlock_acquire(lock, 'pairs', '1 h');
			PERFORM dlock_release(lock, 'pairs');
			n := n + 1;
		END IF;
	END LOOP;
	RETURN n;
END $$;
EOC

# Names by where they are, which is not the same in each cluster.  The partition in which
# to stop is about in the middle, and has none of the names that are fixed.
my $at = $monitor->query_safe(<<'EOC');
SELECT min(at) FROM generate_series(60, 70) at
	WHERE at <> ALL (SELECT partition_of(name) FROM unnest('{root, root/other, root/x, turn, edge, mine, far}'::text[]) name)
EOC
sub name_at
{
	my ($where, $prefix) = @_;
	return $monitor->query_safe(
		"SELECT '$prefix-' || i FROM generate_series(1, 100000) i WHERE partition_of('$prefix-' || i) $where LIMIT 1");
}
my $inside = name_at("= $at", 'inside');
my $before = name_at("< $at", 'before');
my $behind = name_at("> $at", 'behind');
my $all_before = name_at("< $at", 'all');
my $all_behind = name_at("> $at", 'all');
my $of_tenant = name_at("<> $at", 'tenant');

sub stop
{
	$stopped->ask("SELECT stop_in_partition($at)");
	my $file = '/proc/' . $stopped->pid . '/stat';
	wait_until(sub { slurp_file($file) =~ /\) T / }) or die 'it does not stop';
	return;
}

sub go_on
{
	kill 'CONT', $stopped->pid;
	is($stopped->answer, '', 'the backend goes on');
	return;
}

# An answer while the backend is stopped.
sub is_prompt
{
	my ($session, $sql, $answer, $label) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$session->ask($sql);
	wait_until(sub { $session->answered }, 30) or do { fail("$label: answered"); go_on(); $session->answer; return };
	is($session->answer, $answer, "$label: answer");
	return;
}

my $warning = qr/WARNING:.* 1 of 128 parts of the memory of leases were left out/;

$monitor->query_safe("SELECT dlock_acquire('$inside', 'me', '1 h'), dlock_acquire('$before', 'me', '1 h'), dlock_acquire('$behind', 'me', '1 h')");
my $leases = "SELECT string_agg(name, ' ' ORDER BY name) FROM dlock_leases WHERE owner = 'me'";
my ($pairs, $from, $to) = timed_query($one, "SELECT pairs($at)");
my $usual = $to - $from;

# The other partitions are as before, whatever the machine does besides.
sub others_are_served
{
	my ($label) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($count, $sent, $answered) = timed_query($one, "SELECT pairs($at)");

	is($count, $pairs, "$label: the other partitions");
	in_time($sent, $answered, 20 * $usual + 5, "$label: as fast as before ($usual s)");
	return;
}

# ---- looking ----
{
	stop();
	is_prompt($monitor, $leases, "$before $behind", 'dlock_leases');
	like($monitor->{stderr}, $warning, 'it says so');
	is(scalar(() = $monitor->{stderr} =~ /left out/g), 1, 'once');
	is_prompt($monitor, 'SELECT count(*), (SELECT count(*) FROM dlock_leases) FROM dlock_leases', '2|2', 'two of them');
	is(scalar(() = $monitor->{stderr} =~ /left out/g), 1, 'one warning a statement');
	is_prompt($monitor, "SELECT name FROM dlock_lease('$before')", $before, 'dlock_lease');
	is($monitor->{stderr}, '', 'no warning');
	is_prompt($monitor, "SELECT name FROM dlock_lease('$inside')", 'ERROR 55P03', 'dlock_lease of a lock there');
	is_prompt($monitor, 'SELECT count(*) FROM dlock_stats', 1, 'dlock_stats');
	is_prompt($monitor, 'SELECT held FROM dlock_state', 2, 'dlock_state');
	like($monitor->{stderr}, $warning, 'it says so, too');

	others_are_served('looking');
	go_on();
	is_prompt($monitor, $leases, "$before $behind $inside", 'afterwards');
	is($monitor->{stderr}, '', 'without a warning');
	is_prompt($monitor, "SELECT name FROM dlock_lease('$inside')", $inside, 'dlock_lease afterwards');
}

# ---- waiters ----
{
	my @waiters = map { DLockSession->new($node, $db) } 0 .. 9;
	$_->ask_waiting($monitor, "SELECT dlock_acquire('$inside', pg_backend_pid()::text, '1 h', wait => NULL) > 0") foreach @waiters[ 0 .. 8 ];
	$waiters[9]->ask_waiting($monitor, "SELECT dlock_acquire('$before', 'waiter', '1 h', wait => NULL) > 0");
	stop();
	is_prompt($monitor, "SELECT name, owner FROM dlock_waiters", "$before|waiter", 'dlock_waiters');
	like($monitor->{stderr}, $warning, 'it says so');
	go_on();
	is_prompt($monitor, "SELECT count(*) FROM dlock_waiters", 10, 'dlock_waiters afterwards');
	$monitor->query_safe("SELECT dlock_release('$before', 'me')");
	is($waiters[9]->answer, 't', 'a waiter');
	$monitor->query_safe("SELECT pg_cancel_backend($_->{pid})"), $_->answer foreach @waiters[ 0 .. 8 ];
	$monitor->query_safe("SELECT dlock_release('$before', 'waiter'); SELECT dlock_acquire('$before', 'me', '1 h')");
}

# ---- requests for several locks ----
foreach my $case (
	[ 'dlock_acquire_all', "SELECT count(*) FROM unnest(dlock_acquire_all(ARRAY['$all_before', '%s', '$all_behind'], 'all', '1 h'))", 3 ],
	[ 'dlock_acquire_path', "SELECT count(dlock_acquire_path('root/%s', 'all', '1 h'))", 1 ])
{
	my ($label, $sql, $answer) = @$case;
	my $free = $label =~ /path/ ? $monitor->query_safe("SELECT 'p' || i FROM generate_series(1, 100000) i WHERE partition_of('root/p' || i) = $at LIMIT 1") : name_at("= $at", 'free');

	stop();
	$two->ask(sprintf $sql, $free);
	sleep 0.3;
	ok(!$two->answered, "$label waits");
	is_prompt($one, "SELECT dlock_acquire('$all_before', 'other', '1 h') > 0, dlock_release('$all_before', 'other')", 't|t', "$label: a lock of those in front");
	is_prompt($one, "SELECT dlock_acquire('root/other', 'other', '1 h') > 0, dlock_acquire_path('root/x', 'other', '1 h') > 0, dlock_release_all('other')", 't|t|2', "$label: another path");
	others_are_served($label);
	go_on();
	is($two->answer, $answer, "$label goes on");
	$one->query_safe("SELECT dlock_release_all('all')");
}

# ---- hand-off to a request for several locks, one of which is there ----
{
	my $free = name_at("= $at", 'unit');
	$one->query_safe("SELECT dlock_acquire('turn', 'one', '1 h')");
	$two->ask_waiting($monitor, "SELECT count(*) FROM unnest(dlock_acquire_all(ARRAY['turn', '$free'], 'two', '1 h', wait => NULL))");
	stop();
	is_prompt($one, "SELECT dlock_release('turn', 'one')", 't', 'a release before such a request');
	go_on();
	is($two->answer, 2, 'it gets them');
	$one->query_safe("SELECT dlock_release_all('two')");
}

# ---- the search for deadlocks looks at who waits there ----
{
	my $three = DLockSession->new($node, $db);
	$one->query_safe("SELECT dlock_acquire('edge', 'one', '1 h')");
	$two->query_safe("SELECT dlock_acquire('mine', 'two', '1 h')");
	$one->ask_waiting($monitor, "SELECT dlock_acquire('$inside', 'one', '1 h', wait => NULL) > 0");
	stop();
	$two->ask_waiting($monitor, "SELECT dlock_acquire('edge', 'two', '1 h', wait => NULL) > 0");
	sleep 0.5;
	$monitor->query_safe("SELECT pg_cancel_backend($two->{pid})");
	wait_until(sub { $two->answered }, 30);
	ok($two->answered, 'a call that searches can be cancelled');
	go_on();
	is($two->answer, 'ERROR 57014', 'cancelled');

	# A deadlock through that partition is found when it can be looked at again.
	$two->query_safe("SELECT dlock_acquire('far', 'two', '1 h')");
	$three->query_safe("SELECT dlock_release('$inside', 'me')");
	is($one->answer, 't', 'granted');
	$two->ask_waiting($monitor, "SELECT dlock_acquire('$inside', 'two', '1 h', wait => NULL) > 0");
	stop();
	$one->ask_waiting($monitor, "SELECT dlock_acquire('far', 'one', '1 h', wait => NULL) > 0");
	sleep 0.5;
	ok(!$one->answered, 'not found yet');
	go_on();
	wait_until(sub { $one->answered || $two->answered });
	my ($victim, $other) = $one->answered ? ($one, $two) : ($two, $one);
	is($victim->answer, 'ERROR 40P01', 'found');
	$monitor->query_safe("SELECT pg_cancel_backend($other->{pid})");
	is($other->answer, 'ERROR 57014', 'the other waits');
	$monitor->query_safe("SELECT dlock_release_all('one'), dlock_release_all('two'), dlock_acquire('$inside', 'me', '1 h')");
}

# ---- a role whose leases are counted for the first time ----
{
	my $tenant = DLockSession->new($node, $db, user => 'tenant');
	stop();
	is_prompt($tenant, "SELECT dlock_acquire('$of_tenant', 'tenant', '1 h') > 0", 't', 'dlock.max_leases');
	go_on();
	is_prompt($tenant, "SELECT dlock_release('$of_tenant', 'tenant')", 't', 'afterwards');
}

# ---- the worker ----
{
	my $short = name_at("= $at", 'short');
	my $in_memory = 'SELECT leases FROM dlock_stats';
	my $held = $monitor->query_safe($in_memory);

	# One that it knows of, and one that it has to find.  Once more, with more time, if the first
	# was removed before the backend was stopped.
	for (my $ttl = 200;; $ttl *= 4)
	{
		$one->query_safe("SELECT dlock_acquire('$short', 'short', '$ttl ms')");
		stop();
		last if $monitor->query_safe($in_memory) == $held + 1 || $ttl > 20_000;
		go_on();
	}
	foreach my $round (1 .. 2)
	{
		$one->query_safe("SELECT count(dlock_acquire('short-$before-' || i, 'short', '50 ms')) FROM generate_series(1, 300) i WHERE partition_of('short-$before-' || i) <> $at");
		ok(wait_until(sub { $monitor->query_safe($in_memory) == $held + 1 }), "round $round: the worker removes what is elsewhere");
	}
	go_on();
	ok(wait_until(sub { $monitor->query_safe($in_memory) == $held }), 'and what was there, afterwards');
}

is_prompt($monitor, $leases, "$before $behind $inside", 'in the end');
is($monitor->query_safe("SELECT dlock_release_all('me')"), 3, 'as it was');

done_testing();
