# Proves: a path and its intents are one lease between sessions: granted together,
# ended together, there again together after a crash, and never half.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockTest;
use Test::More;

# Nothing here may depend on looking again after a while.
my $node = start_fault_node('main', conf => "deadlock_timeout = 500h\n");
still_worker($node);
my $db = 'postgres';
my ($monitor, $one, $two, $three);

sub connect_all
{
	($monitor, $one, $two, $three) = map { DLockSession->new($node, $db) } 1 .. 4;
	return;
}

sub leases_are
{
	my ($expected, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is( $monitor->query_safe(
			"SELECT string_agg(name || ' ' || owner || ' ' || mode, ', ' ORDER BY name COLLATE \"C\", owner) FROM dlock_leases"),
		$expected, $test_name);
	return;
}

connect_all();

# One that wants the ancestor waits for those below, those below for it.
{
	my $first = $one->query_safe("SELECT dlock_acquire_path('a/b/c', 'one', '1 h')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire('a', 'two', '1 h', wait => NULL)");
	$three->ask_waiting($monitor, "SELECT dlock_acquire_path('a/b/d', 'three', '1 h', wait => NULL)");
	leases_are('a one CW, a/b one CW, a/b/c one exclusive', 'one that waits has no intents');
	is($one->query_safe("SELECT dlock_release_token('a/b/c', $first)"), 't', 'released');
	my $second = $two->answer;
	cmp_ok($second, '>', $first, 'the ancestor is granted');
	still_waits($monitor, 'what is below waits for it', $three);
	leases_are('a two exclusive', 'the ancestor alone');
	$two->query_safe("SELECT dlock_release_token('a', $second)");
	my $third = $three->answer;
	cmp_ok($third, '>', $second, 'then what is below');
	leases_are('a three CW, a/b three CW, a/b/d three exclusive', 'with its intents');
	is($three->query_safe("SELECT count(DISTINCT token), min(token) FROM dlock_leases"), "1|$third", 'and one token');

	# Siblings come and go meanwhile.
	cmp_ok($one->query("SELECT dlock_acquire_path('a/b/c', 'one', '1 h', wait => NULL)"), '>', $third, 'a sibling');
	cmp_ok($two->query("SELECT dlock_acquire_path('a/e', 'two', '1 h', wait => NULL)"), '>', $third, 'one further up');
	is($one->query_safe("SELECT dlock_release_all('one')"), 1, 'the sibling goes');
	leases_are('a three CW, a two CW, a/b three CW, a/b/d three exclusive, a/e two exclusive', 'the others stay');
	$monitor->query_safe("SELECT dlock_release_all('two'), dlock_release_all('three')");
	leases_are('', 'nothing is left');
}

# Several ancestors that are in the way at different times: all or nothing.
{
	$one->query_safe("SELECT dlock_acquire('a/b', 'b', '1 h'), dlock_acquire('a/b/c', 'c', '1 h', mode => 'shared')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire_path('a/b/c', 'two', '1 h', wait => NULL)");
	leases_are('a/b b exclusive, a/b/c c shared', 'two in the way');
	$one->query_safe("SELECT dlock_release('a/b', 'b')");
	still_waits($monitor, 'one of them gives way', $two);
	leases_are('a/b/c c shared', 'one that waits still has nothing');
	$one->query_safe("SELECT dlock_release('a/b/c', 'c')");
	like($two->answer, qr/^\d+$/, 'both gave way');
	leases_are('a two CW, a/b two CW, a/b/c two exclusive', 'now it has all of it');
	$monitor->query_safe("SELECT dlock_release_all('two')");

	# It gives up: nothing stays.
	$one->query_safe("SELECT dlock_acquire('a/b/c', 'c', '1 h')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire_path('a/b/c', 'two', '1 h', wait => '5 min') IS NULL");
	is(granted_at($monitor, $two, 300, 'time is over'), 't', 'time is over');
	leases_are('a/b/c c exclusive', 'time is over: nothing stays');
	$two->ask_waiting($monitor, "SELECT dlock_acquire_path('a/b/c', 'two', '1 h', wait => NULL)");
	$monitor->query_safe('SELECT pg_cancel_backend(' . $two->pid . ')');
	is($two->answer, 'ERROR 57014', 'cancelled');
	$two->ask_waiting($monitor, "SELECT dlock_acquire_path('a/b/c', 'two', '1 h', wait => NULL)");
	$monitor->query_safe('SELECT pg_terminate_backend(' . $two->pid . ')');
	like($two->answer, qr/^(?:FATAL 57P01|LOST)$/, 'terminated');
	$two->wait_backend_gone;
	leases_are('a/b/c c exclusive', 'cancelled and terminated: nothing stays');
	is($monitor->query_safe('SELECT count(*) FROM dlock_waiters'), 0, 'and nobody waits');
	cmp_ok($three->query("SELECT dlock_acquire('a', 'three', '1 h')"), '>', 0, 'nor are there intents that nobody sees');
	$monitor->query_safe("SELECT dlock_release_all('c'), dlock_release_all('three')");
	$two = DLockSession->new($node, $db);
}

# A forced release of an ancestor ends every path through it.
{
	my $first = $one->query_safe("SELECT dlock_acquire_path('a/b/c', 'one', '1 h')");
	my $second = $two->query_safe("SELECT dlock_acquire_path('a/d', 'two', '1 h')");
	$three->ask_waiting($monitor, "SELECT dlock_acquire_path('a/b/c', 'three', '1 h', wait => NULL)");
	my $forced = $monitor->query_safe("SELECT dlock_force_release('a/b', 'test')");
	is($forced, 1, 'one path through the ancestor is ended');
	cmp_ok($three->answer, '>', $second, 'and its successor has it');
	is($one->query_safe("SELECT dlock_check('a/b/c', $first), dlock_renew('a/b/c', 'one'), dlock_release_token('a/b/c', $first)"),
		'f|f|f', 'its holder has lost it');
	is($two->query_safe("SELECT dlock_check('a/d', $second)"), 't', 'the other path stays');
	leases_are('a three CW, a two CW, a/b three CW, a/b/c three exclusive, a/d two exclusive', 'no intent of it is left');
	is($monitor->query_safe("SELECT dlock_force_release('a', 'test')"), 2, 'two paths through the root are ended');
	leases_are('', 'all is gone');
}

# Paths that expire, with nobody to tidy up, hand on what they kept.
{
	my $token = $one->query_safe("SELECT dlock_acquire_path('a/b/c', 'one', '1 h')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire('a', 'two', '1 h', wait => NULL)");
	is($one->query_safe("SELECT dlock_renew('a/b/c', 'one', '5 min')"), 't', 'to expire');
	cmp_ok(granted_at($monitor, $two, 300, 'expired'), '>', $token, 'expired: the ancestor is handed on');
	leases_are('a two exclusive', 'expired: all of it is gone');
	$monitor->query_safe("SELECT dlock_release_all('two')");
}

# Two that hold paths and want each other's: a deadlock through ancestors.
{
	$_->query_safe("SET deadlock_timeout = '1 min'") foreach $one, $two;
	$one->query_safe("SELECT dlock_acquire_path('left/x', 'one', '1 h')");
	$two->query_safe("SELECT dlock_acquire_path('right/x', 'two', '1 h')");
	$one->ask_waiting($monitor, "SELECT dlock_acquire('right', 'one', '1 h', wait => NULL)");
	$two->ask_waiting($monitor, "SELECT dlock_acquire('left', 'two', '1 h', wait => NULL)");
	advance(60, $monitor);
	my ($victim) = wait_any(20, $one, $two);
	my $other = $victim == $one ? $two : $one;
	is($victim->answer, 'ERROR 40P01', 'a deadlock through ancestors');
	$monitor->query_safe("SELECT dlock_release_all('" . ($victim == $one ? 'one' : 'two') . "')");
	like($other->answer, qr/^\d+$/, 'the other one goes on');
	$monitor->query_safe("SELECT dlock_release_all('one'), dlock_release_all('two')");
	$_->query_safe('RESET deadlock_timeout') foreach $one, $two;
	leases_are('', 'nothing is left');
}

# Crashes in the middle of it, at any record: no intent without its path, and no
# path without its intents.
{
	my $whole = <<'EOC';
SELECT count(*) FROM (SELECT token, max(name) AS path, count(*) AS n FROM dlock_leases GROUP BY token) s
 WHERE n <> length(path) - length(replace(path, '/', '')) + 1 OR path NOT LIKE '%/leaf%'
EOC
	foreach my $round (1 .. 4)
	{
		my @sessions = map { DLockSession->new($node, $db) } 1 .. 3;
		my $start = $monitor->query_safe('SELECT pg_current_wal_insert_lsn()');
		$sessions[$_]->ask(<<"EOC") foreach 0 .. 2;
SET synchronous_commit = off;
DO \$\$
DECLARE
	path text;
BEGIN
	FOR i IN 1 .. 1000000 LOOP
		path := 'crash/' || i % 7 || '/x/y/z/leaf-$_-' || i % 40;
		IF dlock_acquire_path(path, 'crash-$_', '1 h') IS NULL THEN
			PERFORM dlock_release(path, 'crash-$_');
		END IF;
	END LOOP;
END \$\$
EOC
		my $bytes = 100_000 + int rand 500_000;
		$node->poll_query_until($db, "SELECT pg_current_wal_flush_lsn() - '$start' > $bytes")
		  or die 'paths do not get on';
		crash_node($node);
		$node->start;
		$_->kill_client foreach @sessions, $monitor, $one, $two, $three;
		connect_all();
		my $n = $monitor->query_safe('SELECT count(DISTINCT token) FROM dlock_leases');
		note "round $round: $n paths";
		is($monitor->query_safe($whole), 0, "crash in between, round $round: none is half there");
		is($monitor->query_safe("SELECT sum(dlock_release_all('crash-' || i)) FROM generate_series(0, 2) i"), $n, "round $round: released");
		leases_are('', "round $round: no intent is left");
		my %slots = store_slots($node, $db);
		is(scalar(keys %slots), 0, "round $round: nothing is left on disk");
		flush_wal($node, $db);
	}
}

# Many at once, come and gone: a root that is held alone is held alone, and
# nothing is left in the end.
{
	$monitor->query_safe(<<'EOC');
CREATE FUNCTION below(who text, rounds int) RETURNS int LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	token bigint;
	path text;
	held int;
	n int := 0;
BEGIN
	WHILE n < rounds LOOP
		path := 'root/' || (random() * 3)::int || '/' || (random() * 3)::int;
		token := dlock_acquire_path(path, who, '1 min', wait => '1 min');

		SELECT count(*) INTO held FROM dlock_leases l WHERE l.owner = who AND l.token = token;
		IF held <> 3 THEN
			RAISE EXCEPTION 'a path is half there';
		END IF;
		IF NOT dlock_release_token(path, token) THEN
			RAISE EXCEPTION 'a path was lost';
		END IF;
		n := n + 1;
	END LOOP;
	RETURN n;
END $$;
CREATE FUNCTION above(who text, rounds int) RETURNS int LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	token bigint;
	held int;
	n int := 0;
BEGIN
	WHILE n < rounds LOOP
		token := dlock_acquire('root', who, '1 min', wait => '1 min');
		FOR i IN 1 .. 3000 LOOP
			SELECT count(*) INTO held FROM dlock_leases l WHERE l.name LIKE 'root%';
			EXIT WHEN held >= 1;
			PERFORM pg_sleep(0.01);
		END LOOP;
		IF held <> 1 THEN
			RAISE EXCEPTION 'not alone';
		END IF;
		IF NOT dlock_release_token('root', token) THEN
			RAISE EXCEPTION 'the root was lost';
		END IF;
		n := n + 1;
	END LOOP;
	RETURN n;
END $$;
EOC
	$one->ask("SELECT below('one', 200)");
	$two->ask("SELECT below('two', 200)");
	$three->ask("SELECT above('three', 200)");
	my @n = map { $_->answer } $one, $two, $three;
	is("@n", '200 200 200', 'paths in two sessions, and the root alone in a third');
	leases_are('', 'nothing is left of them');
	is($monitor->query_safe('SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits');
	my %slots = store_slots($node, $db);
	is(join(',', keys %slots), '', 'nothing is left on disk');
}

$_->quit foreach $monitor, $one, $two, $three;
$node->stop;
log_is_clean($node);
done_testing();
