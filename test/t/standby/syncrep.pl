# Proves: with a synchronous standby, dlock_acquire answers when the grant is as
# safe as the session's synchronous_commit asks for, and not before; a wait that is
# cut off is no success.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockStandby;
use DLockTest;
use Test::More;

my $db = 'postgres';
my $primary = start_fault_node('primary', allows_streaming => 1);

# A call that has to wait for its next status message waits for longer than this test does.
my $standby = make_standby($primary, 'standby', conf => 'wal_receiver_status_interval = 1h');
make_synchronous($primary);

my $session = DLockSession->new($primary, $db);
my $other = DLockSession->new($primary, $db);

# Start a statement that will wait, and wait until it does.
sub start_waiting
{
	my ($sql, $label) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$session->ask($sql);
	ok( wait_until(
			sub {
				$other->query_safe(
					"SELECT wait_event FROM pg_stat_activity WHERE pid = $session->{pid}")
				  eq 'SyncRep';
			}),
		"$label: waits for the standby");
	return;
}

# Served without delay.
cmp_ok($session->query_safe("SELECT dlock_acquire('quick', 'alice', '1 h')"), '>', 0, 'granted with a synchronous standby');
is($standby->safe_psql($db, "SELECT pg_last_wal_receive_lsn() IS NOT NULL"),
	't', 'which is receiving');

# remote_apply: once answered, without the next status message, the lease can be seen there.
foreach my $i (1 .. 20)
{
	$session->query_safe("SET synchronous_commit = remote_apply; SELECT dlock_acquire('apply-$i', 'alice', '1 h')");
	is( $standby->safe_psql(
			$db,
			"SELECT count(*) FROM dlock_leases WHERE name = 'apply-$i'"),
		1,
		"remote_apply: grant $i is visible on the standby");
}

# remote_apply with replay paused: waits, though the standby has it on disk.
$standby->safe_psql($db, 'SELECT pg_wal_replay_pause()');
$standby->poll_query_until($db,
	"SELECT pg_get_wal_replay_pause_state() = 'paused'") or die 'not paused';
$session->query_safe('SET synchronous_commit = on');
cmp_ok(
	$session->query_safe("SELECT dlock_acquire('paused-on', 'alice', '1 h')"),
	'>', 0, 'replay paused: granted with synchronous_commit = on');
$session->query_safe('SET synchronous_commit = remote_apply');
start_waiting("SELECT dlock_acquire('paused-apply', 'alice', '1 h')",
	'replay paused, remote_apply');
$standby->safe_psql($db, 'SELECT pg_wal_replay_resume()');
cmp_ok($session->answer, '>', 0, 'replay resumed: granted');

# Renewed once, so that further renewals lie within what has been logged.
$other->query_safe("SELECT dlock_acquire('steady', 'bob', '1 h')");
$other->query_safe("SELECT dlock_renew('steady', 'bob')");

# No standby.
$standby->stop;
$session->query_safe('SET synchronous_commit = on');
start_waiting("SELECT dlock_acquire('waits', 'alice', '1 h')", 'standby down');

# Meanwhile nobody else is held up: not for other locks, nor by this one.
$other->query_safe('SET synchronous_commit = local');
cmp_ok($other->query_safe("SELECT dlock_acquire('other', 'bob', '1 h')"),
	'>', 0, 'standby down: another session, local');
is($other->query_safe("SELECT dlock_acquire('waits', 'bob', '1 h')"),
	'', 'standby down: the lease is held already');
$other->query_safe('SET synchronous_commit = off');
cmp_ok($other->query_safe("SELECT dlock_acquire('other-2', 'bob', '1 h')"),
	'>', 0, 'standby down: another session, off');
is($other->query_safe("SELECT dlock_release('other', 'bob')"),
	't', 'standby down: a release does not wait');
$other->query_safe('SET synchronous_commit = on');
is($other->query_safe("SELECT dlock_renew('steady', 'bob')"),
	't', 'standby down: a renewal that logs nothing does not wait');
is( $other->query_safe(
		"SELECT wait_event FROM pg_stat_activity WHERE pid = $session->{pid}"),
	'SyncRep',
	'and the first one still waits');

$standby->start;
cmp_ok($session->answer, '>', 0, 'standby back: granted');
wait_synchronous($primary);

# A renewal that has to be logged waits like a grant.
$standby->stop;
start_waiting("SELECT dlock_renew('waits', 'alice', '2 h')", 'a longer ttl');
$standby->start;
is($session->answer, 't', 'standby back: renewed');
wait_synchronous($primary);

# A wait that is cancelled is answered with an error, whatever the server says to a
# commit: a grant is taken back, an upgrade, too.
sub cancel
{
	$other->query_safe("SELECT pg_cancel_backend($session->{pid})");
	return $session->answer;
}

my $shared = $session->query_safe("SELECT dlock_acquire('upgraded', 'alice', '1 h', mode => 'shared')");
$standby->stop;
foreach my $case (
	[ 'granted', "dlock_acquire('cancelled', 'alice', '1 h')" ],
	[ 'several granted', "dlock_acquire_all(ARRAY['cancelled', 'other-3'], 'alice', '1 h')" ],
	[ 'won', "dlock_once('cancelled', '1 day')" ],
	[ 'converted', "dlock_convert('upgraded', $shared, 'exclusive')" ],
	[ 'renewed', "dlock_renew('waits', 'alice', '4 h')" ])
{
	my ($what, $sql) = @$case;

	start_waiting("SELECT $sql", "$what, to be cancelled");
	is(cancel(), 'ERROR 57014', "$what, cancelled: an error");
	is($session->{stdout}, '', "$what, cancelled: no answer");
	is($session->{message}, 'canceled before a synchronous standby confirmed the change', "$what, cancelled: says why");
	like($session->{detail}, qr/^Grants of this call are undone\. A renewal/, "$what, cancelled: and what it means");
}
is( $other->query_safe(
		"SELECT string_agg(name || ' ' || token || ' ' || mode, ', ') FROM dlock_leases WHERE name IN ('cancelled', 'upgraded', 'other-3')"),
	"upgraded $shared shared",
	'cancelled: nothing was granted');
remaining_is($other, 'waits', 4 * 3600, 'cancelled: the renewal stands');
$other->query_safe('SET synchronous_commit = local');
isnt($other->query_safe("SELECT dlock_acquire('cancelled', 'bob', '1 h')"), '', 'cancelled: another can have the lock');
isnt($other->query_safe("SELECT dlock_once('cancelled', '1 day')"), '', 'cancelled: and the time slot');
$other->query_safe('SET synchronous_commit = on');

# The same if it is terminated.
start_waiting("SELECT dlock_acquire('terminated', 'alice', '1 h')",
	'to be terminated');
$other->query_safe("SELECT pg_terminate_backend($session->{pid})");
ok( wait_until(
		sub {
			$other->query_safe(
				"SELECT count(*) FROM pg_stat_activity WHERE pid = $session->{pid}") eq '0';
		}),
	'terminated: gone');
is($other->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'terminated'"),
	0, 'terminated: nothing is held');
$session->quit;

# Nothing waits in vain: reads and refusals are answered without the standby.
is($other->query_safe("SELECT dlock_acquire('waits', 'bob', '1 h')"),
	'', 'standby down: refused at once');
$other->quit;

# The server ends while a grant waits for the standby, which never gets it.  It is
# loaded after the start, and nothing is said about it before a standby has it, though
# neither of these calls has anything to write.
sub connect_anew
{
	$session = DLockSession->new($primary, $db);
	$other = DLockSession->new($primary, $db);
	return;
}

connect_anew();
start_waiting("SELECT dlock_acquire('loaded', 'alice', '1 h')", 'before a crash');
$primary->stop('immediate');
$_->quit foreach $session, $other;
$primary->start;
connect_anew();
is($other->query_safe("SELECT owner FROM dlock_leases WHERE name = 'loaded'"), 'alice', 'after a crash: loaded');
start_waiting("SELECT dlock_acquire('loaded', 'alice', '10 min', reentry => 'return')", 'after a crash: entered again');
cancel();
start_waiting("SELECT dlock_renew('waits', 'alice')", 'after a crash: renewed within a bound that was not confirmed');
cancel();
$other->query_safe('SET synchronous_commit = local');
is($other->query_safe("SELECT dlock_renew('steady', 'bob')"), 't', 'after a crash: renewed without waiting');
$standby->start;
is($session->query_safe("SELECT dlock_renew('loaded', 'alice')"), 't', 'standby back: renewed');
$_->quit foreach $session, $other;

$primary->stop('immediate');
done_testing();
