# Proves: a group of 1000 partitions and 50 members converges within two heartbeats of
# each, and a heartbeat takes up to 10 ms there, however many other leases there are;
# or longer if it is the disk that does.  In the largest group there can be, it takes up
# to 10 ms of processor time, and can be cancelled, which leaves nothing behind.
#
#   DLOCK_OTHER_LEASES=1000000   how many others; by default 100000

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $others = $ENV{DLOCK_OTHER_LEASES} // 100_000;
my $node = start_node('main', conf => <<"EOC");
fsync = on
dlock.max_memory = ${\ int($others / 1000 * 300 + 65536) }kB
EOC
my $db = 'postgres';
my $session = DLockSession->new($node, $db);
$session->query_safe(<<"EOC");
SET synchronous_commit = off;
SELECT count(dlock_acquire_all(ARRAY(SELECT 'other-' || b * 1000 + i FROM generate_series(0, 999) i), 'owner-' || b % 100, '1 day'))
  FROM generate_series(1, $others / 1000) b;
SET synchronous_commit = on;
SELECT dlock_group_create('g', 1000);
CREATE TABLE member (name text PRIMARY KEY, token bigint);
CREATE TABLE beat (n int, member text, ms float8, run int, yield int, flush_ms float8);

-- For how long this process could have run, but others had all processors.
CREATE FUNCTION stood_in_line() RETURNS interval LANGUAGE sql AS
	\$\$ SELECT split_part(pg_read_file('/proc/self/schedstat', 0, 60), ' ', 2)::float8 * interval '1 s' / 1e9 \$\$;

-- A heartbeat of each member; what it is to give up it gives up at once.  Before each,
-- what it takes to get something to disk.
CREATE PROCEDURE round(nr int) LANGUAGE plpgsql AS \$\$
DECLARE m member; began timestamptz; ended timestamptz; lost bigint[]; n int; flush_ms float8; waited interval;
BEGIN
	FOR m IN SELECT * FROM member ORDER BY md5(name || nr) LOOP
		began := clock_timestamp();
		PERFORM pg_logical_emit_message(true, 'flush', '');
		COMMIT;
		flush_ms := extract(epoch FROM clock_timestamp() - began) * 1000;
		began := clock_timestamp() - stood_in_line();
		SELECT count(*), array_agg(token) FILTER (WHERE action = 'yield')
		  FROM dlock_group_heartbeat('g', m.token) INTO n, lost;
		waited := stood_in_line();
		ended := clock_timestamp() - waited;
		PERFORM dlock_group_yield('g', m.token, coalesce(lost, '{}'));
		INSERT INTO beat VALUES (nr, m.name, extract(epoch FROM ended - began) * 1000, n, coalesce(cardinality(lost), 0), flush_ms);
		COMMIT;
	END LOOP;
END \$\$;
EOC

# The heartbeats of a round, and that all is even after it.
sub spread
{
	return $session->query_safe('SELECT min(owned), max(owned), sum(owned), count(*) FROM dlock_group_members');
}

sub median
{
	my ($round) = @_;
	return $session->query_safe(
		"SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) FROM beat WHERE n = $round");
}

# The most that the median may be if the heartbeats wait for the disk, as those do that
# take something: 10 ms, but on a slow disk what that takes twice, and 5 ms.
sub limit
{
	my ($round) = @_;
	return max 10, 5 + 2 * $session->query_safe(
		"SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY flush_ms) FROM beat WHERE n = $round");
}

sub describe
{
	my ($round, $what) = @_;
	note "$what: "
	  . $session->query_safe(
		"SELECT format('%s heartbeats, ms: median %s, p99 %s, max %s; to disk: median %s', count(*), round(percentile_cont(0.5) WITHIN GROUP (ORDER BY ms)::numeric, 2), round(percentile_cont(0.99) WITHIN GROUP (ORDER BY ms)::numeric, 2), round(max(ms)::numeric, 2), round(percentile_cont(0.5) WITHIN GROUP (ORDER BY flush_ms)::numeric, 2)) FROM beat WHERE n = $round"
	  );
	return;
}

is($session->query_safe('SELECT count(*) FROM dlock_leases'), int($others / 1000) * 1000, 'other leases');

# All join, and take what they are due.
$session->query_safe("INSERT INTO member SELECT 'm' || i, dlock_group_join('g', 'm' || i, '10 min') FROM generate_series(1, 50) i");
$session->query_safe('CALL round(1)');
is(spread(), '20|20|1000|50', '50 join: even after one heartbeat of each');
describe(1, 'takes 20');
cmp_ok(median(1), '<=', limit(1), '50 join: up to 10 ms a heartbeat');

# Nothing to do.
$session->query_safe('CALL round(2); CALL round(3)');
is(spread(), '20|20|1000|50', 'nothing moves by itself');
is($session->query_safe('SELECT sum(yield) FROM beat WHERE n IN (2, 3)'), 0, 'nobody is told to yield');
describe(3, 'keeps 20');
cmp_ok(median(3), '<=', 10, 'nothing to do: up to 10 ms a heartbeat');

# Half of them leave.
$session->query_safe("SELECT dlock_group_leave('g', token) FROM member WHERE name ~ '[02468]\$'; DELETE FROM member WHERE name ~ '[02468]\$'");
$session->query_safe('CALL round(4)');
is(spread(), '40|40|1000|25', '25 leave: even after one heartbeat of each');
describe(4, 'takes 20 more');
cmp_ok(median(4), '<=', limit(4), '25 leave: up to 10 ms a heartbeat');

# They come back: those who have are told, those who come take.
$session->query_safe("INSERT INTO member SELECT 'm' || i, dlock_group_join('g', 'm' || i, '10 min') FROM generate_series(2, 50, 2) i");
$session->query_safe('CALL round(5); CALL round(6)');
is(spread(), '20|20|1000|50', '25 join: even after two heartbeats of each');
is($session->query_safe('SELECT sum(yield) FROM beat WHERE n IN (5, 6)'), 500, '25 join: no more moves than has to');
describe($_, 'gives up or takes 20') foreach 5, 6;
cmp_ok(median($_), '<=', limit($_), '25 join: up to 10 ms a heartbeat') foreach 5, 6;

# One member with all of it.
$session->query_safe("SELECT dlock_group_leave('g', token) FROM member WHERE name <> 'm1'; DELETE FROM member WHERE name <> 'm1'");
$session->query_safe('CALL round(7); CALL round(8)');
is(spread(), '1000|1000|1000|1', 'one has all');
describe(7, 'takes 980');
describe(8, 'keeps 1000');

# The views look only at the group, too.
{
	my (undef, $sent, $answered) = timed_query($session, 'SELECT count(*) FROM dlock_group_partitions');
	note sprintf 'view: %.1f ms', ($answered - $sent) * 1000;
}
$session->quit;

# The largest group, with one partition less, so that all have a remainder of the same
# size; a hundred members of weight 1000 have most of it.  A member that beats takes up
# to one.
{
	my ($members, $partitions) = (10_000, 9_999);
	my $one = DLockSession->new($node, $db);

	# Processor time of the backend, in ms.
	my $used = sub {
		return $one->query_safe("SELECT split_part(pg_read_file('/proc/self/schedstat', 0, 60), ' ', 1)::float8 / 1e6");
	};
	# The answer to a heartbeat and the processor time that it took.
	my $beat = sub {
		my ($token) = @_;
		my $before = $used->();
		my $answer = $one->query("SELECT count(*) FROM dlock_group_heartbeat('big', $token)");
		return ($answer, $used->() - $before);
	};

	# A heartbeat takes up to 10 ms; on a slow or busy machine, twice what as many looks at
	# locks take one by one.  The least of each counts, as what else runs only adds to both,
	# for a while: they take turns until the while is over.
	my $look = sub {
		my $before = $used->();
		$one->query_safe("SELECT count(dlock_check('other-' || i, 1)) FROM generate_series(1, $members + $partitions) i");
		return $used->() - $before;
	};
	my $is_quick = sub {
		my ($token, $what) = @_;
		my (@took, @looked);
		my ($took, $limit);

		for my $turn (1 .. 60)
		{
			push @took, ($beat->($token))[1];
			push @looked, $look->();
			($took, $limit) = (min(@took), max(10, 2 * min(@looked)));
			last if $turn >= 5 && $took <= $limit;
		}
		note sprintf '%s: %.2f ms', $what, $took;
		cmp_ok($took, '<=', $limit, $what);
		return;
	};
	my $state = sub {
		return $one->query_safe("SELECT count(*), sum(owned) FROM dlock_group_members WHERE group_name = 'big'");
	};

	$one->query_safe(<<"EOC");
SET synchronous_commit = off;
SELECT dlock_group_create('big', 1);
SELECT count(dlock_group_join('big', 'm' || i, '1 day')) FROM generate_series(1, $members) i;
SELECT dlock_group_alter('big', $partitions);
EOC
	my $token = $one->query_safe("SELECT token FROM dlock_group_members WHERE group_name = 'big' AND member = 'm7'");
	$is_quick->($token, "the largest group, $members x $partitions, equal weights: up to 10 ms");

	$one->query_safe("DO \$\$ BEGIN FOR i IN 101 .. 200 LOOP PERFORM FROM dlock_group_heartbeat('big', dlock_group_join('big', 'm' || i, '1 day', 1000)); END LOOP; END \$\$");
	my ($count, $owned) = split /\|/, $state->();
	is($count, $members, 'the largest group: all are there');
	cmp_ok($owned, '>', 9000, 'the largest group: most is run');
	$is_quick->($token, 'the largest group, some members heavy: up to 10 ms');

	# Cancelled, wherever that hits it; its lock is gone before the transaction ends.
	my $two = DLockSession->new($node, $db);
	my $before = $state->();
	my $other = $two->query_safe("SELECT token FROM dlock_group_members WHERE group_name = 'big' AND member = 'm8'");
	my %answers;
	$one->query_safe(<<'EOC');
CREATE FUNCTION beat_until_cancelled(token bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		PERFORM FROM dlock_group_heartbeat('big', token);
	END LOOP;
EXCEPTION WHEN query_canceled THEN
	PERFORM set_config('statement_timeout', '0', true);
	RETURN (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory');
END $$;
EOC
	# On a busy machine the time may be over before the function catches that.
	my $cancelled = sub {
		my ($begin, $timeout) = @_;
		my $answer;
		foreach my $attempt (1 .. 10)
		{
			$answer = $one->query("${begin}SET LOCAL statement_timeout = $timeout \\; SELECT beat_until_cancelled($token)");
			last if $answer ne 'ERROR 57014';
			$one->query_safe('ROLLBACK') if $begin ne '';
			$timeout *= 2;
		}
		return $answer;
	};
	$answers{ $cancelled->('', $_) }++ foreach 21 .. 40;
	is(join(', ', map { "$_: $answers{$_}" } sort keys %answers), '0: 20', 'cancelled: no lock is left');
	is($state->(), $before, 'cancelled: all have what they had');
	is($cancelled->("BEGIN \\; ", 50), 0, 'cancelled: in a transaction');
	like($two->query("SELECT count(*) FROM dlock_group_heartbeat('big', $other)"), qr/^[01]$/, 'cancelled: another member beats before the transaction ends');
	$one->query_safe('ROLLBACK');
	$_->quit foreach $one, $two;
}
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:/, 'nothing odd in the log');
done_testing();
