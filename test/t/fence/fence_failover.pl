# Proves: when a standby is promoted that has missed the last grants and marks, its
# tokens are above all that the old primary has handed out and goes on handing out,
# so that the first pass of a successor shuts all older holders out; and a guarded
# standby takes no passes.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockFence;
use DLockSession;
use DLockStandby;
use DLockTest;
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';

# More grants than are reserved at a time.
my $pairs = <<'EOC';
DO $$
BEGIN
	FOR i IN 1 .. 40000 LOOP
		PERFORM dlock_release_token('pairs', dlock_acquire('pairs', 'pair', '1 h'));
	END LOOP;
END $$
EOC

my $primary = start_node('primary', allows_streaming => 1);
$primary->append_conf('postgresql.conf', "synchronous_commit = off\n");
$primary->reload;
$primary->safe_psql($db, <<'EOC');
CREATE TABLE ledger (body text);
INSERT INTO ledger VALUES ('');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger
	EXECUTE FUNCTION dlock_guard('ledger');
CREATE TABLE device (id int, body text, token bigint);
INSERT INTO device VALUES (1, '');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON device
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
EOC

sub write_sql
{
	my ($token, $text) = @_;
	return "BEGIN; SELECT dlock_fence('ledger', $token); UPDATE ledger SET body = body || '$text'; UPDATE device SET body = body || '$text', token = $token; COMMIT";
}

# How the standby comes to miss the last: "paused" has received it, and replays it
# at the promotion at the latest; "cut" never sees it.
foreach my $how ('paused', 'cut')
{
	my $standby = make_standby($primary, "standby_$how");
	my $old = DLockSession->new($primary, $db, name => 'old');
	$old->query_safe("SELECT dlock_force_release('ledger', 'test')");
	my $early = $old->query_safe("SELECT dlock_acquire('ledger', 'early', '1 h')");
	outcome_is($old, write_sql($early, 'e'), '', "$how: a holder before that");
	my $body = $old->query_safe('SELECT body FROM ledger');
	$old->query_safe('SET synchronous_commit = on; SELECT pg_logical_emit_message(true, $$flush$$, $$$$); RESET synchronous_commit');
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));

	# A standby shows the marks, and nobody passes there.
	is($standby->safe_psql($db, "SELECT token FROM dlock_fences WHERE resource = 'ledger'"),
		$early, "$how: the standby shows the mark");
	foreach my $call (
		"dlock_fence('ledger', $early)",
		"dlock_fence('ledger', $early, true)",
		"dlock_fence('other', 1)")
	{
		sqlstate_is($standby, $db, "SELECT $call", '25006', "$how, on the standby: $call");
	}

	if ($how eq 'paused')
	{
		$standby->safe_psql($db, 'SELECT pg_wal_replay_pause()');
		$standby->poll_query_until($db, 'SELECT pg_get_wal_replay_pause_state()', 'paused')
		  or die 'replay does not pause';
	}
	else
	{
		cut_off($primary, $standby);
	}

	# The old primary goes on: blocks of tokens, holders, passes.
	$old->query_safe($pairs) for 1 .. 2;
	$old->query_safe("SELECT dlock_release_token('ledger', $early)");
	my $lost = $old->query_safe("SELECT dlock_acquire('ledger', 'lost', '1 h')");
	outcome_is($old, write_sql($lost, 'l'), '', "$how: the last holder writes on the old primary");
	if ($how eq 'paused')
	{
		$old->query_safe('SET synchronous_commit = on; SELECT pg_logical_emit_message(true, $$flush$$, $$$$); RESET synchronous_commit');
		$primary->wait_for_catchup($standby, 'write', $primary->lsn('flush'));
	}
	is($standby->safe_psql($db, 'SELECT body FROM ledger'), $body, "$how: the standby has not seen it");
	my $before = max($lost, $old->query_safe("SELECT dlock_acquire('last-$how', 'last', '1 h')"));

	$standby->promote;
	my $new = DLockSession->new($standby, $db, name => 'new');
	my $replayed = $how eq 'paused';

	# The marks are as they were replicated, and so is the data that they guard.
	is(mark($new, 'ledger'), $replayed ? $lost : $early, "$how: the mark on the promoted");
	is($new->query_safe('SELECT body FROM ledger'), $replayed ? "${body}l" : $body, "$how: and what it guards");

	# Who held the lock on the old primary goes on with its token here, as long as
	# nobody else has passed.  That is what an asynchronous standby loses.
	outcome_is($new, write_sql($lost, 'L'), '', "$how: an old holder before the first successor");
	$new->query_safe("SELECT dlock_force_release('ledger', 'test')");
	my $first = $new->query_safe("SELECT dlock_acquire('ledger', 'first', '1 h')");
	cmp_ok($first, '>', $before, "$how: tokens are above all that were handed out before");

	# The old primary does not know, and goes on.
	$old->query_safe($pairs) for 1 .. 2;
	$old->query_safe("SELECT dlock_release_token('ledger', $lost)");
	my $late = $old->query_safe("SELECT dlock_acquire('ledger', 'late', '1 h')");
	cmp_ok($first, '>', $late, "$how: and above all that the old primary hands out later");
	outcome_is($old, write_sql($late, 'x'), '', "$how: with which it is written there");

	# One that has passed here with a token of the old primary's is waited for.
	my $other = DLockSession->new($standby, $db, name => 'other');
	$other->query_safe("BEGIN; SELECT dlock_fence('ledger', $late); UPDATE ledger SET body = body || 'O'");
	my $next = DLockSession->new($standby, $db, name => 'next');
	waits_for($new, $next,
		write_sql($first, 'f'), [$other], "$how: the successor waits for who has passed");
	$other->query_safe('COMMIT');
	came_to_is($next, '', "$how: and writes");
	foreach my $token ($early, $lost, $before, $late)
	{
		outcome_is($other, write_sql($token, 'late'), 'LK001', "$how: a holder by the old primary, $token, is shut out");
		outcome_is($other, "ROLLBACK; UPDATE device SET body = 'late', token = $token", 'LK001', "$how: from the row, too");
	}

	# The old primary's tokens stay below those of the promoted, for ever.
	$old->query_safe($pairs);
	cmp_ok($old->query_safe("SELECT dlock_acquire('very-late-$how', 'late', '1 h')"), '<', $first,
		"$how: the old primary still hands out lower ones");
	outcome_is($other, "SELECT dlock_fence('ledger', " . $old->query_safe("SELECT dlock_acquire('too-late-$how', 'late', '1 h')") . ')',
		'LK001', "$how: which do not pass");
	$_->quit foreach $old, $new, $other, $next;
	$standby->stop;
}

$primary->stop;
done_testing();
