# Proves: a group of 1000 partitions and 50 members converges within two heartbeats of
# each, and a heartbeat visits each lock of the group a few times there, however many other
# leases there are, writes a record for each partition that it takes, and flushes twice at most.  So
# it does in the largest group there can be, where it can be cancelled, which leaves nothing
# behind.
#
#   DLOCK_OTHER_LEASES=1000000   how many others; by default 10000
#   DLOCK_RING=nightly           the largest group as large as it can be, and not a tenth

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockFault;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $others = $ENV{DLOCK_OTHER_LEASES} // 10_000;
my $node = start_fault_node('main', conf => <<"EOC");
dlock.max_memory = ${\ int($others / 1000 * 300 + 65536) }kB
EOC
my $db = 'postgres';
my ($ctl, $session) = open_sessions($node, $db, 2, name => 's');
$session->query_safe(<<"EOC");
SET synchronous_commit = off;
SELECT count(dlock_acquire_all(ARRAY(SELECT 'other-' || b * 1000 + i FROM generate_series(0, 999) i), 'owner-' || b % 100, '1 day'))
  FROM generate_series(1, $others / 1000) b;
SET synchronous_commit = on;
SELECT dlock_group_create('g', 1000);
CREATE TABLE member (name text PRIMARY KEY, token bigint);
CREATE TABLE beat (n int, member text, run int, yield int);

-- A heartbeat of each member; what it is to give up it gives up at once.
CREATE PROCEDURE round(nr int) LANGUAGE plpgsql AS \$\$
DECLARE m member; lost bigint[]; n int;
BEGIN
	FOR m IN SELECT * FROM member ORDER BY md5(name || nr) LOOP
		SELECT count(*), array_agg(token) FILTER (WHERE action = 'yield')
		  FROM dlock_group_renew('g', m.token) INTO n, lost;
		PERFORM dlock_group_yield('g', m.token, coalesce(lost, '{}'));
		INSERT INTO beat VALUES (nr, m.name, n, coalesce(cardinality(lost), 0));
		COMMIT;
	END LOOP;
END \$\$;
EOC

# The heartbeats of a round, and that all is even after it.
sub spread
{
	return $session->query_safe('SELECT min(owned), max(owned), sum(owned), count(*) FROM dlock_group_members');
}

# A heartbeat of a member that has so many partitions after it, in a group with so many
# locks, of members and partitions.
sub beat_costs
{
	my ($group, $member, $owned, $locks, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $token = $session->query_safe("SELECT token FROM dlock_group_members WHERE group_name = '$group' AND member = '$member'");
	my %cost = cost($ctl, $session, "SELECT count(*) FROM dlock_group_renew('$group', $token)");

	note join ', ', $test_name, map { "$_ $cost{$_}" } sort keys %cost;
	cmp_ok($cost{leases}, '<=', 3 * $locks, "$test_name: visits leases of the group, and no others");
	cmp_ok($cost{entries}, '<=', 3 * $locks, "$test_name: and its locks, which a renewal that takes some reads three times");
	cmp_ok($cost{records}, '<=', $owned + 1, "$test_name: writes a record for each partition");
	cmp_ok($cost{flushes} // 0, '<=', 2, "$test_name: flushes once for what it renews, and once for what it takes");
	return;
}

is($session->query_safe('SELECT count(*) FROM dlock_leases'), int($others / 1000) * 1000, 'other leases');

# All join, and take what they are due.
$session->query_safe("INSERT INTO member SELECT 'm' || i, dlock_group_join('g', 'm' || i, '10 min') FROM generate_series(1, 50) i");
$session->query_safe('CALL round(1)');
is(spread(), '20|20|1000|50', '50 join: even after one heartbeat of each');

# Nothing to do.
beat_costs('g', 'm7', 20, 1050, 'nothing to do');
$session->query_safe('CALL round(2); CALL round(3)');
is(spread(), '20|20|1000|50', 'nothing moves by itself');
is($session->query_safe('SELECT sum(yield) FROM beat WHERE n IN (2, 3)'), 0, 'nobody is told to yield');

# Half of them leave.
$session->query_safe("SELECT dlock_group_leave('g', token) FROM member WHERE name ~ '[02468]\$'; DELETE FROM member WHERE name ~ '[02468]\$'");
$session->query_safe('CALL round(4)');
is(spread(), '40|40|1000|25', '25 leave: even after one heartbeat of each');

beat_costs('g', 'm7', 40, 1025, 'half of them left');

# They come back: those who have are told, those who come take.
$session->query_safe("INSERT INTO member SELECT 'm' || i, dlock_group_join('g', 'm' || i, '10 min') FROM generate_series(2, 50, 2) i");
$session->query_safe('CALL round(5); CALL round(6)');
is(spread(), '20|20|1000|50', '25 join: even after two heartbeats of each');
is($session->query_safe('SELECT sum(yield) FROM beat WHERE n IN (5, 6)'), 500, '25 join: no more moves than has to');

# One member with all of it.
$session->query_safe("SELECT dlock_group_leave('g', token) FROM member WHERE name <> 'm1'; DELETE FROM member WHERE name <> 'm1'");
beat_costs('g', 'm1', 1000, 1001, 'one takes all');
$session->query_safe('CALL round(7); CALL round(8)');
is(spread(), '1000|1000|1000|1', 'one has all');

# The views look only at the group, too.
{
	my %cost = cost($ctl, $session, 'SELECT count(*) FROM dlock_group_partitions');
	cmp_ok($cost{leases}, '<=', 2 * 1001, 'a view: visits leases of the group, and no others');
	cmp_ok($cost{entries}, '<=', 2 * 1001, 'and its locks');
}

# The largest group, with one partition less, so that all have a remainder of the same
# size; a hundred members of weight 1000 have most of it.  A member that beats takes up
# to one.  The member that has a thousand leases goes: another one whose name hashes as its
# does, as one in some thousands will, would visit them with its own.
$session->query_safe("SELECT dlock_group_leave('g', token) FROM member");
{
	my $members = ($ENV{DLOCK_RING} // '') eq 'nightly' ? 10_000 : 1_000;
	my $partitions = $members - 1;
	my $state = sub {
		return $session->query_safe("SELECT count(*), sum(owned) FROM dlock_group_members WHERE group_name = 'big'");
	};

	$session->query_safe(<<"EOC");
SET synchronous_commit = off;
SELECT dlock_group_create('big', 1);
SELECT count(dlock_group_join('big', 'm' || i, '1 day')) FROM generate_series(1, $members) i;
SELECT dlock_group_alter('big', $partitions);
EOC
	my $token = $session->query_safe("SELECT token FROM dlock_group_members WHERE group_name = 'big' AND member = 'm7'");
	beat_costs('big', 'm7', 1, $members + $partitions, 'the largest group, equal weights');

	$session->query_safe("DO \$\$ BEGIN FOR i IN 101 .. 200 LOOP PERFORM FROM dlock_group_renew('big', dlock_group_join('big', 'm' || i, '1 day', 1000)); END LOOP; END \$\$");
	my ($count, $owned) = split /\|/, $state->();
	is($count, $members, 'the largest group: all are there');
	cmp_ok($owned, '>', 0.9 * $partitions, 'the largest group: most is run');
	beat_costs('big', 'm7', 1, $members + $partitions, 'the largest group, some members heavy');

	# Cancelled, wherever that hits it; its lock is gone before the transaction ends.
	my $two = DLockSession->new($node, $db);
	my $before = $state->();
	my $other = $two->query_safe("SELECT token FROM dlock_group_members WHERE group_name = 'big' AND member = 'm8'");
	my %answers;
	$session->query_safe(<<'EOC');
CREATE FUNCTION beat_until_cancelled(token bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		PERFORM FROM dlock_group_renew('big', token);
	END LOOP;
EXCEPTION WHEN query_canceled THEN
	PERFORM set_config('statement_timeout', '0', true);
	RETURN (SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND pid = pg_backend_pid());
END $$;
EOC
	# On a busy machine the time may be over before the function catches that.
	my $cancelled = sub {
		my ($begin, $timeout) = @_;
		my $answer;
		foreach my $attempt (1 .. 10)
		{
			$answer = $session->query("${begin}SET LOCAL statement_timeout = $timeout \\; SELECT beat_until_cancelled($token)");
			last if $answer ne 'ERROR 57014';
			$session->query_safe('ROLLBACK') if $begin ne '';
			$timeout *= 2;
		}
		return $answer;
	};
	$answers{ $cancelled->('', $_) }++ foreach 21 .. 40;
	is(join(', ', map { "$_: $answers{$_}" } sort keys %answers), '0: 20', 'cancelled: no lock is left');
	is($state->(), $before, 'cancelled: all have what they had');
	is($cancelled->("BEGIN \\; ", 50), 0, 'cancelled: in a transaction');
	like($two->query("SELECT count(*) FROM dlock_group_renew('big', $other)"), qr/^[01]$/, 'cancelled: another member beats before the transaction ends');
	$session->query_safe('ROLLBACK');
	$two->quit;
}
$_->quit foreach $session, $ctl;
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:/, 'nothing odd in the log');
done_testing();
