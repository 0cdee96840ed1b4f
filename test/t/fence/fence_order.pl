# Proves: from the moment that a transaction has passed a fence until it ends, no
# higher token passes, however it ends and under every isolation level, with
# savepoints and two-phase commit; and who has been overtaken never passes again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockFence;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', conf => <<'EOC');
max_prepared_transactions = 10
deadlock_timeout = 100ms
restart_after_crash = on
EOC
my $db = 'postgres';
my $control = DLockSession->new($node, $db, name => 'control');
my ($a, $b, $c) = open_sessions($node, $db, 3, name => 's');

# A resource that nobody has used, with this mark.
my $number = 0;
my $r;

sub fresh
{
	my ($mark) = @_;

	$r = 'r' . ++$number;
	$control->query_safe("SELECT dlock_fence('$r', $mark)") if $mark;
	return;
}

sub fence
{
	my ($token, $live) = @_;
	return "SELECT dlock_fence('$r', $token" . ($live ? ', true)' : ')');
}

sub locks_left
{
	return $control->query_safe(
		"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'");
}

foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my $begin = "BEGIN ISOLATION LEVEL $level; SELECT 1";

	# A higher token waits for a lower one that has passed, however that ends.
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		fresh(10);
		$a->query_safe("$begin; " . fence(10));
		$b->query_safe($begin);
		waits_for($control, $b, fence(11), [$a], "$level: a higher token waits");
		$a->query_safe($end);
		came_to_is($b, '', "$level: and passes after the $end");
		$b->query_safe('COMMIT');
		outcome_is($a, fence(10), 'LK001', "$level: the lower one has been overtaken");
	}

	# While a mark is being raised, nobody else passes.
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		my $committed = $end eq 'COMMIT';

		fresh(10);
		$a->query_safe("$begin; " . fence(12));
		is(mark($control, $r), 10, "$level: a mark is not seen before the commit");
		$b->query_safe($begin);
		waits_for($control, $b, fence(11), [$a], "$level: a lower token waits for who raises the mark");
		$a->query_safe($end);
		came_to_is($b, $committed ? 'LK001' : '', "$level: what it comes to after the $end");
		$b->query_safe('COMMIT');
		is(mark($control, $r), $committed ? 12 : 11, "$level: the mark after the $end");
	}

	# The same token shares the fence, also where it was waited for.
	fresh(10);
	$_->query_safe("$begin; " . fence(10)) foreach $a, $b;
	$_->query_safe('COMMIT') foreach $a, $b;
	$a->query_safe("$begin; " . fence(11));
	$b->query_safe($begin);
	waits_for($control, $b, fence(11), [$a], "$level: the same token waits for who raises the mark to it");
	$a->query_safe('COMMIT');
	came_to_is($b, '', "$level: and passes after that");
	outcome_is($c, fence(11), '', "$level: as others do at the same time");
	waits_for($control, $c, fence(12), [$b], "$level: which keeps it closed as well");
	$b->query_safe('COMMIT');
	came_to_is($c, '', "$level: until its end");

	# What counts is the newest mark, whatever the snapshot; and nothing has to be
	# tried again for that.
	fresh(10);
	$a->query_safe($begin);
	$b->query_safe(fence(12));
	outcome_is($a, fence(11), 'LK001', "$level: a mark that is newer than the snapshot");
	$a->query_safe('ROLLBACK');
	$a->query_safe($begin);
	$b->query_safe(fence(13));
	outcome_is($a, fence(13), '', "$level: the same token");
	$a->query_safe('COMMIT');
	$a->query_safe($begin);
	$b->query_safe(fence(14));
	outcome_is($a, fence(15), '', "$level: a higher one");
	outcome_is($a, 'COMMIT', '', "$level: commits");
	is(mark($control, $r), 15, "$level: and is the mark");

	# A first mark, made by another while this one waits for it.
	fresh(0);
	$a->query_safe("$begin; " . fence(1));
	$b->query_safe($begin);
	waits_for($control, $b, fence(2), [$a], "$level: the first mark is waited for");
	$a->query_safe('COMMIT');
	came_to_is($b, '', "$level: and raised");
	outcome_is($b, 'COMMIT', '', "$level: commits");
	is(mark($control, $r), 2, "$level: the second mark");

	# Two that raise it at once, one after the other, in the order of their asking.
	foreach my $higher_first (0, 1)
	{
		my @tokens = $higher_first ? (12, 11) : (11, 12);

		fresh(10);
		$a->query_safe("$begin; " . fence(10));
		$_->query_safe($begin) foreach $b, $c;
		waits_for($control, $b, fence($tokens[0]), [$a], "$level: one raises");
		$c->ask(fence($tokens[1]));
		ok(wait_blocked($control, $c), "$level: another one, too");
		$a->query_safe('COMMIT');
		came_to_is($b, '', "$level: the one has passed");
		ok(wait_blocked($control, $c), "$level: the other waits on");
		$b->query_safe('COMMIT');
		came_to_is($c, $higher_first ? 'LK001' : '', "$level: what the other comes to");
		$c->query_safe('COMMIT');
		is(mark($control, $r), 12, "$level: the highest is the mark");
	}

	# Who has passed already raises the mark at once, though another one has asked
	# before, which then finds a newer mark than when it asked.
	fresh(10);
	$a->query_safe("$begin; " . fence(10));
	$b->query_safe($begin);
	waits_for($control, $b, fence(11), [$a], "$level: one wants to raise the mark");
	outcome_is($a, fence(12), '', "$level: who is inside raises it further");
	$a->query_safe('COMMIT');
	came_to_is($b, 'LK001', "$level: so the one comes too late");
	$b->query_safe('ROLLBACK');
	is(mark($control, $r), 12, "$level: and has not lowered the mark");

	# The same, but with the token that the other one has, too: they share the fence.
	fresh(10);
	$a->query_safe("$begin; " . fence(10));
	$b->query_safe($begin);
	waits_for($control, $b, fence(11), [$a], "$level: one wants to raise the mark");
	outcome_is($a, fence(11) . '; COMMIT', '', "$level: who is inside raises it to the same");
	came_to_is($b, '', "$level: the one passes");
	outcome_is($c, fence(11), '', "$level: and keeps no other with that token out");
	$b->query_safe('COMMIT');

	# Savepoints: what is rolled back opens the fence, what is released does not.
	fresh(10);
	$a->query_safe("$begin; SAVEPOINT s; " . fence(10));
	waits_for($control, $b, fence(11), [$a], "$level: a pass in a savepoint");
	$a->query_safe('ROLLBACK TO s');
	came_to_is($b, '', "$level: is over when that is rolled back");
	outcome_is($a, fence(10), 'LK001', "$level: and counts no more");
	$a->query_safe('ROLLBACK');

	fresh(10);
	$a->query_safe("$begin; SAVEPOINT s; SAVEPOINT t; " . fence(11) . '; RELEASE t; RELEASE s');
	waits_for($control, $b, fence(12), [$a], "$level: a pass in a savepoint that was released");
	$a->query_safe('COMMIT');
	came_to_is($b, '', "$level: ends with the transaction");

	fresh(10);
	$a->query_safe("$begin; " . fence(10) . '; SAVEPOINT s; ' . fence(11) . '; ROLLBACK TO s');
	outcome_is($a, fence(10), '', "$level: what passed before the savepoint");
	outcome_is($c, fence(10), '', "$level: is shared again");
	waits_for($control, $b, fence(11), [$a], "$level: and still keeps higher ones out");
	$a->query_safe('COMMIT');
	came_to_is($b, '', "$level: until the end");

	fresh(10);
	$a->query_safe("$begin; SAVEPOINT s; SAVEPOINT t; " . fence(11) . '; RELEASE t; ROLLBACK TO s');
	outcome_is($b, fence(12), '', "$level: a pass goes with the savepoint around it");
	outcome_is($a, fence(11), 'LK001', "$level: and is not remembered");
	$a->query_safe('ROLLBACK');

	# Writes follow.  The fence gives no newer snapshot, and the server says so.
	fresh(10);
	my $table = "data_$r";
	$control->query_safe("CREATE TABLE $table (body text); INSERT INTO $table VALUES ('')");
	$control->query_safe("CREATE TRIGGER guard BEFORE UPDATE ON $table EXECUTE FUNCTION dlock_guard('$r')");
	$a->query_safe("$begin; SET LOCAL dlock.tokens = '$r=10'");
	$a->query_safe("UPDATE $table SET body = body || 'a'");
	$b->query_safe("$begin; SET LOCAL dlock.tokens = '$r=11'");
	waits_for($control, $b, "UPDATE $table SET body = body || 'b'", [$a], "$level: a guarded write waits");
	$a->query_safe('COMMIT');
	if ($level eq 'READ COMMITTED')
	{
		came_to_is($b, '', "$level: and follows");
	}
	else
	{
		came_to_is($b, '40001', "$level: and does not overwrite what it has not seen");
		$b->query_safe("ROLLBACK; $begin; SET LOCAL dlock.tokens = '$r=11'; UPDATE $table SET body = body || 'b'");
	}
	$b->query_safe('COMMIT');
	is($control->query_safe("SELECT body FROM $table"), 'ab', "$level: in order");
	outcome_is($a, "BEGIN; SET LOCAL dlock.tokens = '$r=10'; UPDATE $table SET body = 'late'",
		'LK001', "$level: too late");
	$a->query_safe('ROLLBACK');
}

# Within one transaction nobody goes back, and errors take the pass with them.
fresh(10);
$a->query_safe('BEGIN; ' . fence(11));
outcome_is($a, 'SAVEPOINT s; ' . fence(10), 'LK001', 'not back in the same transaction');
$a->query_safe('ROLLBACK TO s');
outcome_is($a, fence(11), '', 'the pass that it had is still there');
$a->query_safe('ROLLBACK');
$a->query_safe("DO \$\$ BEGIN PERFORM dlock_fence('$r', 12); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END \$\$");
is(mark($control, $r), 10, 'a block that failed raises nothing');
outcome_is($b, fence(11), '', 'and keeps nobody out');

# A cursor that is closed, and advisory locks of others, open nothing.
fresh(10);
$a->query_safe("BEGIN; DECLARE c CURSOR FOR SELECT dlock_fence('$r', 10); FETCH c; CLOSE c; SELECT pg_advisory_unlock_all()");
waits_for($control, $b, fence(11), [$a], 'a pass through a cursor that was closed');
$a->query_safe('COMMIT');
came_to_is($b, '', 'ends with the transaction');

# One that is kept beyond the transaction passes at the commit, and is looked at.
fresh(10);
outcome_is($a, "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT dlock_fence('$r', 12); COMMIT", '', 'a cursor with hold passes');
is(mark($control, $r), 12, 'as the mark shows');
fresh(0);
my $held = $control->query_safe("SELECT dlock_acquire('$r', 'a', '1 h')");
outcome_is($a, "BEGIN; DECLARE d CURSOR WITH HOLD FOR SELECT dlock_fence('$r', $held, true), dlock_release_token('$r', $held); COMMIT",
	'LK002', 'a live pass at the commit is looked at after that');
outcome_is($a, 'CLOSE c; SELECT 1', 1, 'the session goes on');

# A transaction that is chained to one that has passed has not.
fresh(10);
$a->query_safe('BEGIN; ' . fence(10) . '; COMMIT AND CHAIN');
outcome_is($b, fence(11), '', 'a chained transaction keeps nobody out');
outcome_is($a, fence(10), 'LK001', 'nor does it pass by what was before');
$a->query_safe('ROLLBACK');

# Reading under a fence.
fresh(10);
$a->query_safe('BEGIN READ ONLY; ' . fence(10));
waits_for($control, $b, fence(11), [$a], 'a successor waits for readers');
$a->query_safe('COMMIT');
came_to_is($b, '', 'until they end');
outcome_is($a, 'BEGIN READ ONLY; ' . fence(12), '25006', 'a read-only transaction raises no mark');
$a->query_safe('ROLLBACK');
is(mark($control, $r), 11, 'nor has it');

# Deadlocks, of two fences, and of a fence and a row.
fresh(10);
my $first = $r;
fresh(10);
$a->query_safe("BEGIN; SELECT dlock_fence('$first', 10)");
$b->query_safe('BEGIN; ' . fence(10));
$a->ask(fence(11));
ok(wait_blocked($control, $a), 'half of a deadlock');
$b->ask("SELECT dlock_fence('$first', 11)");
my @came = sort(map { came_to($_) } one_after_other($a, $b));
is("@came", ' 40P01', 'of two that wait for each other, one is told');
$_->query_safe('ROLLBACK') foreach $a, $b;

fresh(10);
$control->query_safe("CREATE TABLE rows (id int); INSERT INTO rows VALUES (1)");
$a->query_safe('BEGIN; ' . fence(10));
$b->query_safe('BEGIN; UPDATE rows SET id = 2');
$a->ask('UPDATE rows SET id = 3');
ok(wait_blocked($control, $a), 'half of another');
$b->ask(fence(11));
@came = sort(map { came_to($_) } one_after_other($a, $b));
is("@came", ' 40P01', 'a fence and a row make one, too');
$_->query_safe('ROLLBACK') foreach $a, $b;

# The answers of two sessions of which one waits for the other's end.
sub one_after_other
{
	my @sessions = @_;
	my ($early) = wait_any($PostgreSQL::Test::Utils::timeout_default, @sessions);

	# An error has taken its transaction's locks along.
	return ($early, grep { $_ != $early } @sessions);
}

# Many that raise a mark at once do not make one, and none is lost.
fresh(0);
$control->query_safe("CREATE SEQUENCE tokens; CREATE TABLE passed (token bigint)");
my $script = PostgreSQL::Test::Utils::tempdir . '/raise.sql';
append_to_file($script,
	"DO \$\$ BEGIN INSERT INTO passed SELECT t FROM nextval('tokens') t, dlock_fence('$r', t) f; EXCEPTION WHEN SQLSTATE 'LK001' THEN NULL; END \$\$;\n"
);
$node->command_ok(
	[ 'pgbench', '-n', '-c', '8', '-j', '2', '-t', '300', '-f', $script, $node->connstr($db) ],
	'many raise a mark at once');
is(mark($control, $r), $control->query_safe('SELECT max(token) FROM passed'), 'the highest one is the mark');
unlike(slurp_file($node->logfile), qr/deadlock detected.*(?:\n.*)*dlock_fence\('$r', t\)/,
	'and none has met a deadlock');

# Waits that end before the fence opens leave nothing behind.
foreach my $case (
	[ 'lock_timeout', '55P03', "SET LOCAL lock_timeout = '50ms'" ],
	[ 'statement_timeout', '57014', "SET LOCAL statement_timeout = '200ms'" ],
	[ 'a cancel', '57014', 'SELECT 1' ])
{
	my ($what, $state, $setup) = @$case;

	fresh(10);
	$a->query_safe('BEGIN; ' . fence(10));

	# It also holds for all that follows, up to the statement that goes back.
	$b->query_safe("BEGIN; SAVEPOINT s; $setup");
	$b->ask(fence(11));
	if ($what eq 'a cancel')
	{
		wait_blocked($control, $b);
		$control->query_safe("SELECT pg_cancel_backend($b->{pid})");
	}
	came_to_is($b, $state, "$what ends the wait");
	$b->query_safe('ROLLBACK TO s');
	waits_for($control, $b, fence(11), [$a], "$what: it has not passed");
	outcome_is($a, fence(10), '', "$what: who has passed goes on");
	$a->query_safe('COMMIT');
	came_to_is($b, '', "$what: and in the end it passes");
	$b->query_safe('COMMIT');
}

# Backends and clients that go away.
foreach my $end ('pg_terminate_backend', 'the end of the client')
{
	fresh(10);
	my $gone = DLockSession->new($node, $db, name => 'gone');
	$gone->query_safe('BEGIN; ' . fence(11));
	waits_for($control, $b, fence(10), [$gone], "$end: a token waits");
	$end eq 'pg_terminate_backend'
	  ? $control->query_safe("SELECT pg_terminate_backend($gone->{pid})")
	  : $gone->kill_client;
	came_to_is($b, '', "$end: takes the mark back");
}

# Two-phase commit.
ok(wait_until(sub { locks_left() == 0 }), 'no locks are left');
foreach my $end ('COMMIT', 'ROLLBACK')
{
	my $committed = $end eq 'COMMIT';

	fresh(10);
	my $shared = $r;
	$a->query_safe('BEGIN; ' . fence(10));
	fresh(10);
	my $raised = $r;
	$a->query_safe(fence(12) . "; PREPARE TRANSACTION 'p'");
	waits_for($control, $a, fence(11), [0], "prepared: the session itself has passed no more");
	$control->query_safe("SELECT pg_cancel_backend($a->{pid})");
	came_to($a);
	waits_for($control, $c, "SELECT dlock_fence('$shared', 11)", [0], 'prepared: a higher token waits');
	waits_for($control, $b, fence(11), [0], 'prepared: a lower one waits for the raised mark');

	# A crash of the server does not open it.
	$_->quit foreach $a, $b, $c, $control;
	crash_node($node);
	$node->start;
	$control = DLockSession->new($node, $db, name => 'control');
	($a, $b, $c) = open_sessions($node, $db, 3, name => 's');
	outcome_is($a, "SELECT dlock_fence('$shared', 10)", '', 'after a crash: the same token passes');
	waits_for($control, $c, "SELECT dlock_fence('$shared', 11)", [0], 'after a crash: a higher token waits');
	waits_for($control, $b, fence(11), [0], 'after a crash: a lower one waits for the raised mark');
	$control->query_safe("$end PREPARED 'p'");
	came_to_is($c, '', "$end PREPARED: the higher one passes");
	came_to_is($b, $committed ? 'LK001' : '', "$end PREPARED: what the lower one comes to");
	is(mark($control, $r), $committed ? 12 : 11, "$end PREPARED: the mark");
}

# Live holders cannot be prepared, not even if they have been live in a savepoint.
fresh(0);
my $token = $control->query_safe("SELECT dlock_acquire('$r', 'a', '1 h')");
$a->query_safe('BEGIN; SAVEPOINT s; ' . fence($token, 1) . '; RELEASE s');
outcome_is($a, "PREPARE TRANSACTION 'live'", '0A000', 'a live pass cannot be prepared');
is($control->query_safe('SELECT count(*) FROM pg_prepared_xacts'), 0, 'and is not');
outcome_is($a, "BEGIN; SAVEPOINT s; " . fence($token, 1) . "; ROLLBACK TO s; PREPARE TRANSACTION 'not-live'; COMMIT PREPARED 'not-live'",
	'', 'one that was rolled back is none');

# Live passes are looked at again before the commit, those of savepoints too.
foreach my $case ([ 'RELEASE s', 'LK002' ], [ 'ROLLBACK TO s', '' ])
{
	my ($savepoint, $expected) = @$case;

	fresh(0);
	$token = $control->query_safe("SELECT dlock_acquire('$r', 'a', '1 h')");
	$a->query_safe('BEGIN; CREATE TEMP TABLE IF NOT EXISTS seen (); SAVEPOINT s; ' . fence($token, 1) . "; $savepoint");
	pass_deadline($control, $r, $token);
	outcome_is($a, 'COMMIT', $expected, "live in a savepoint, then $savepoint");
	outcome_is($a, 'SELECT 1', 1, 'and the session goes on');
	is(mark($control, $r), '', 'no mark of what did not commit');
}

# A pass that becomes live is looked at, and one that is asked for again is, too.
fresh(0);
$token = $control->query_safe("SELECT dlock_acquire('$r', 'a', '1 h')");
$a->query_safe('BEGIN; ' . fence($token));
$a->query_safe(fence($token, 1));
pass_deadline($control, $r, $token);
outcome_is($a, 'SAVEPOINT s; ' . fence($token), '', 'the mark alone is enough for one that is not live');
outcome_is($a, fence($token, 1), 'LK002', 'each live pass looks');
outcome_is($a, 'ROLLBACK TO s; COMMIT', 'LK002', 'and so does the commit');

# A backend that is killed takes the server down, and the mark with it.
fresh(10);
$a->query_safe('BEGIN; ' . fence(11));
kill_server_process($node, $a->{pid});
$_->quit foreach $a, $b, $c, $control;
$control = DLockSession->new($node, $db, name => 'control');
is(mark($control, $r), 10, 'killed: the mark is as it was');

ok(wait_until(sub { locks_left() == 0 }), 'killed: no locks are left');
outcome_is($control, fence(10), '', 'killed: the fence is open');

$control->quit;
$node->stop;
done_testing();
