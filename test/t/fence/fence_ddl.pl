# Proves: fences keep what they promise while the extension is dropped, the table of
# the marks is rewritten, or the library is missing; through prepared plans,
# procedures that commit, and one statement that passes in between; and with many
# savepoints and many resources in one transaction.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockFence;
use DLockSession;
use DLockTest;
use List::Util qw(min sum);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', conf => "deadlock_timeout = 100ms\n");
my $db = 'postgres';
my $control = DLockSession->new($node, $db, name => 'control');
my ($a, $b) = open_sessions($node, $db, 2, name => 's');

# ---------------------------------------------------------------------------
# One statement
# ---------------------------------------------------------------------------

# What a trigger has looked up for the row before must not count for the next one,
# if the transaction has passed anew, or no longer has.
$control->query_safe(<<'EOC');
CREATE TABLE cached (id int, token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON cached
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('cached', 'token_column=token');
CREATE FUNCTION raise_at(i int, at int, token bigint) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	IF i = at THEN
		PERFORM dlock_fence('cached', token);
	END IF;
	RETURN i;
END $$;
CREATE FUNCTION raise_and_undo(i int, at int, token bigint) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	IF i = at THEN
		PERFORM dlock_fence('cached', token);
		RAISE division_by_zero;
	END IF;
	RETURN i;
EXCEPTION WHEN division_by_zero THEN
	RETURN -i;
END $$;
EOC
$a->query_safe("SET dlock.tokens = 'cached=10'");
outcome_is($a, 'INSERT INTO cached SELECT raise_at(i, 3, 12) FROM generate_series(1, 4) i', '',
	'a statement that passes amidst its rows');
is($control->query_safe("SELECT string_agg(id || ' ' || token, ', ' ORDER BY id) FROM cached"),
	'1 10, 2 10, 3 12, 4 12', 'each row has the token that counted then');
outcome_is($a, "RESET dlock.tokens; INSERT INTO cached SELECT raise_at(i, 3, 14), 13 FROM generate_series(1, 4) i",
	'LK001', 'a token that has become too low amidst the rows');
outcome_is($a, 'INSERT INTO cached SELECT raise_and_undo(i, 3, 15), 13 FROM generate_series(1, 4) i', '',
	'a pass that is undone amidst the rows');
is($control->query_safe('SELECT count(*) FROM cached WHERE token = 13'), 4, 'counts for none of them');
is(mark($control, 'cached'), 13, 'nor for the mark');

# ---------------------------------------------------------------------------
# Plans and procedures
# ---------------------------------------------------------------------------

$control->query_safe(<<'EOC');
CREATE TABLE ledger (body int);
INSERT INTO ledger VALUES (0);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON ledger EXECUTE FUNCTION dlock_guard('ledger');
CREATE TABLE tenants (tenant int, body int);
INSERT INTO tenants VALUES (1, 0), (2, 0);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON tenants
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('tenant/', 'resource_column=tenant');
CREATE FUNCTION write_both(n int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE ledger SET body = body + n;
	UPDATE tenants SET body = body + n WHERE tenant = 1;
END $$;
CREATE FUNCTION write_sql(n int) RETURNS void LANGUAGE sql AS 'UPDATE ledger SET body = body + n';
EOC

# The same plans in many transactions, the last of which has been overtaken.
$a->query_safe(<<'EOC');
SET dlock.tokens = '*=10';
PREPARE one(int) AS UPDATE ledger SET body = body + $1;
PREPARE two(int) AS UPDATE tenants SET body = body + $1 WHERE tenant = 1;
EOC
foreach my $plans ('force_generic_plan', 'force_custom_plan')
{
	my $token = $plans eq 'force_generic_plan' ? 10 : 20;

	$a->query_safe("SET plan_cache_mode = $plans; SET dlock.tokens = '*=$token'");
	my @writes = ('EXECUTE one(1)', 'EXECUTE two(1)', 'SELECT write_both(1)', 'SELECT write_sql(1)');
	my @answers = map { outcome($a, $_) } (@writes) x 20;
	is(join('', @answers), '', "$plans: many transactions");
	$b->query_safe('SELECT dlock_fence($$ledger$$, ' . ($token + 1) . '), dlock_fence($$tenant/1$$, ' . ($token + 1) . ')');
	outcome_is($a, $_, 'LK001', "$plans, overtaken: $_") foreach @writes;
	outcome_is($a, 'EXECUTE two(1)', 'LK001', "$plans, overtaken: and again");
	$a->query_safe('SET dlock.tokens = \'\'');
	outcome_is($a, 'EXECUTE one(1)', 'LK003', "$plans: without a token");
}

# The setting can change between two statements of a transaction, or rows of a plan.
$a->query_safe("BEGIN; SET LOCAL dlock.tokens = 'ledger=30'; EXECUTE one(1); SET LOCAL dlock.tokens = 'tenant/1=31'");
outcome_is($a, 'EXECUTE one(1)', '', 'who has passed need not present it again');
outcome_is($a, 'EXECUTE two(1)', '', 'another resource by another setting');
$a->query_safe('COMMIT');
outcome_is($a, 'EXECUTE one(1)', 'LK003', 'nothing is left of it after the transaction');

# A function may bring the setting, for itself alone.
$control->query_safe(
	"CREATE FUNCTION write_with() RETURNS void LANGUAGE plpgsql SET dlock.tokens = 'ledger=32' AS 'BEGIN UPDATE ledger SET body = body + 1; END'");
outcome_is($a, 'SELECT write_with()', '', 'a function with the setting');
outcome_is($a, 'EXECUTE one(1)', 'LK003', 'which ends with the function');

# A pass ends with each transaction of a procedure, be it by COMMIT or ROLLBACK.
$control->query_safe(<<'EOC');
CREATE PROCEDURE write_twice(how text) LANGUAGE plpgsql AS $$
BEGIN
	UPDATE ledger SET body = body + 1;
	IF how = 'COMMIT' THEN
		COMMIT;
	ELSE
		ROLLBACK;
	END IF;
	PERFORM pg_advisory_lock(7, 1);
	PERFORM pg_advisory_unlock(7, 1);
	UPDATE ledger SET body = body + 1;
END $$;
CREATE PROCEDURE write_often(times int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. times LOOP
		UPDATE ledger SET body = body + 1;
		PERFORM dlock_fence('ledger', current_setting('my.token')::bigint + i);
		COMMIT;
	END LOOP;
END $$;
EOC
my $token = 40;
foreach my $how ('COMMIT', 'ROLLBACK')
{
	$a->query_safe("SET dlock.tokens = 'ledger=" . ++$token . "'");
	$b->query_safe('SELECT pg_advisory_lock(7, 1)');
	waits_for($control, $a, "CALL write_twice('$how')", [$b], "a procedure between its transactions, $how");
	outcome_is($b, "SELECT dlock_fence('ledger', " . ++$token . ')', '', "$how: is not waited for");
	$b->query_safe('SELECT pg_advisory_unlock(7, 1)');
	came_to_is($a, 'LK001', "$how: and is refused after it has been overtaken");
}
$a->query_safe("SET my.token = 50; SET dlock.tokens = 'ledger=50'");
outcome_is($a, 'CALL write_often(1)', '', 'a procedure that raises the mark');
outcome_is($a, 'CALL write_often(1)', 'LK001', 'overtakes itself');
is(mark($control, 'ledger'), 51, 'and has left its mark');
$a->query_safe("SET dlock.tokens = ''");

# ---------------------------------------------------------------------------
# The table of the marks, rewritten
# ---------------------------------------------------------------------------

# One that has raised a mark keeps rewrites waiting, and goes on itself; one that
# only shares keeps nobody waiting, and finds its mark where it is afterwards.
foreach my $ddl ('VACUUM FULL _dlock.fence_mark', 'REINDEX TABLE _dlock.fence_mark', 'CLUSTER _dlock.fence_mark USING fence_mark_pkey')
{
	$token += 20;
	$a->query_safe("BEGIN; SELECT dlock_fence('ledger', $token)");
	$b->ask($ddl);
	ok(wait_blocked($control, $b), "$ddl waits for a mark that is raised");
	outcome_is($a, "SELECT dlock_fence('ledger', $token), dlock_fence('new-$token', 1); SELECT dlock_fence('cached', $token)", "|\n",
		"$ddl: whose transaction goes on");
	$a->query_safe('COMMIT');
	came_to_is($b, '', "$ddl: then it is done");
	$a->query_safe("BEGIN; SELECT dlock_fence('ledger', $token)");
	outcome_is($b, $ddl, '', "$ddl is done while a pass is shared");
	waits_for($control, $b, "SELECT dlock_fence('ledger', $token + 1)", [$a], "$ddl: which still keeps others out");
	$a->query_safe('COMMIT');
	came_to_is($b, '', "$ddl: until its end");
	outcome_is($a, "SELECT dlock_fence('ledger', $token)", 'LK001', "$ddl: the mark is found");
}

# Under load.
my $script = PostgreSQL::Test::Utils::tempdir . '/raise.sql';
append_to_file($script, <<'EOC');
\set r random(1, 5)
DO $$ BEGIN INSERT INTO passed SELECT :r, t FROM nextval('tokens') t, dlock_fence('load-' || :r, t) f; EXCEPTION WHEN SQLSTATE 'LK001' THEN NULL; END $$;
EOC
$control->query_safe('CREATE SEQUENCE tokens; CREATE TABLE passed (r int, token bigint)');
my $rewrites = 0;
foreach my $try (1 .. 10)
{
	my $load = IPC::Run::start(
		[ 'pgbench', '-n', '-c', '4', '-j', '1', '-t', '400', '-f', $script, $node->connstr($db) ],
		'<', \undef, '>', \my $load_out, '2>', \my $load_err);
	while ($load->pumpable)
	{
		$control->query_safe($_) foreach 'VACUUM FULL _dlock.fence_mark', 'REINDEX TABLE _dlock.fence_mark', 'ANALYZE _dlock.fence_mark';
		$rewrites++;
		eval { $load->pump_nb };
	}
	ok($load->finish, 'marks are raised under load while their table is rewritten') or diag $load_err;
	last if $rewrites > 1;
}
cmp_ok($rewrites, '>', 1, "which it is, $rewrites times");
is( $control->query_safe(
		"SELECT count(*) FROM (SELECT 'load-' || r AS resource, max(token) AS token FROM passed GROUP BY r) p JOIN dlock_fences f USING (resource, token)"),
	5,
	'and no mark is lost');

# Without its primary key, or another column, nothing passes.
$control->query_safe('ALTER TABLE _dlock.fence_mark DROP CONSTRAINT fence_mark_pkey');
outcome_is($a, "SELECT dlock_fence('ledger', 1000)", '55000', 'no primary key: refused');
$control->query_safe('ALTER TABLE _dlock.fence_mark ADD PRIMARY KEY (resource)');
outcome_is($a, "SELECT dlock_fence('ledger', 1000)", '', 'there again: passes');

# ---------------------------------------------------------------------------
# Many savepoints, many resources
# ---------------------------------------------------------------------------

# Ten times as many blocks in a transaction take about as long as ten transactions
# of fewer; what is quadratic would take ten times that.
$control->query_safe(<<'EOC');
CREATE TABLE blocks (id int);
CREATE TRIGGER guard BEFORE INSERT ON blocks FOR EACH ROW EXECUTE FUNCTION dlock_guard('blocks/', 'resource_column=id');
CREATE FUNCTION many_blocks(times int, resources int) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz;
BEGIN
	PERFORM set_config('dlock.tokens', '*=1', true);
	INSERT INTO blocks SELECT -i FROM generate_series(1, resources) i;
	began := clock_timestamp();
	FOR i IN 1 .. times LOOP
		BEGIN
			INSERT INTO blocks VALUES (i % 10);
			IF i % 2 = 0 THEN
				RAISE division_by_zero;
			END IF;
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	END LOOP;
	RETURN extract(epoch FROM clock_timestamp() - began);
END $$;
EOC
my ($few, $many) = (1e9, 1e9);

# Both for as long, and in turns, since the machine may have other things to do.
my $rounds = 0;
while ($rounds < 3 || $rounds < 10 && $many >= 4 * $few)
{
	$rounds++;
	$few = min($few, sum(map { $control->query_safe('SELECT many_blocks(1000, 2000)') } 1 .. 10));
	$many = min($many, $control->query_safe('SELECT many_blocks(10000, 2000)'));
}
cmp_ok($many, '<', 4 * $few, "savepoints: $few s for ten times 1000, $many s for 10000");
is($control->query_safe('SELECT count(*) FROM blocks WHERE id >= 0'), $rounds * (10 * 500 + 5000), 'and half of them were rolled back');

# More resources than there is room for: an honest error, and nothing is left.
my $locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
my $every = q(SELECT count(dlock_fence('every-' || i, 1)) FROM generate_series(1, 100000) i);
$a->ask("BEGIN; $every");
my $answer = $a->result;
is($answer->{state}, '53200', '100000 resources in one transaction: refused');
like($answer->{hint} // '', qr/max_locks_per_transaction/, 'and which setting to look at');
$a->query_safe('ROLLBACK');
is($control->query_safe($locks), 0, 'no locks are left');
is($control->query_safe(q(SELECT count(*) FROM dlock_fences WHERE resource LIKE 'every-%')), 0, 'no marks are left');
outcome_is($a, "SELECT dlock_fence('every-1', 1)", '', 'the session goes on');
$a->query_safe("BEGIN; SAVEPOINT s");
outcome_is($a, $every, '53200', 'in a savepoint');
$a->query_safe('ROLLBACK TO s');
outcome_is($a, "SELECT dlock_fence('every-1', 2)", '', 'the transaction goes on');
is($control->query_safe($locks), 1, 'with what it has passed since');
$a->query_safe('COMMIT');

# With room for them, memory is proportional, and goes with the transaction.
$_->quit foreach $a, $b, $control;
$node->append_conf('postgresql.conf', "max_locks_per_transaction = 1200\n");
$node->restart;
$control = DLockSession->new($node, $db, name => 'control');
($a, $b) = open_sessions($node, $db, 2, name => 's');
my $memory = "SELECT coalesce(sum(total_bytes), 0) FROM pg_backend_memory_contexts WHERE name = 'dlock fences'";
is($a->query_safe('BEGIN; ' . $every =~ s/, 1\)/, 3)/r), 100000, '100000 resources in one transaction, with room');
my $bytes = $a->query_safe($memory);
cmp_ok($bytes, '<', 100000 * 600, "take $bytes bytes");
waits_for($control, $b, "SELECT dlock_fence('every-99999', 4)", [$a], 'and all of them are fenced');
# Blocks cost what they pass themselves, not what was passed before.
my ($alone, $after) = (1e9, 1e9);
foreach my $round (1 .. 10)
{
	last if $round > 3 && $after < 5 * $alone;
	$alone = min($alone, $control->query_safe('SELECT many_blocks(4000, 1)'));
	$after = min($after, $a->query_safe('SELECT many_blocks(4000, 1)'));
}
cmp_ok($after, '<', 5 * $alone, "savepoints after them: $after s, alone $alone s");
$a->query_safe('COMMIT');
came_to_is($b, '', 'until the end');
is($a->query_safe($memory), 0, 'whose memory is given back');
is($control->query_safe($locks), 0, 'as are the locks');

# ---------------------------------------------------------------------------
# The extension goes, or its library does
# ---------------------------------------------------------------------------

outcome_is($control, 'DROP EXTENSION dlock', '2BP01', 'guards keep the extension');

# Who has raised a mark is waited for.
$a->query_safe("BEGIN; SELECT dlock_fence('dropped', 5)");
$b->ask('DROP EXTENSION dlock CASCADE');
ok(wait_blocked($control, $b), 'a drop waits for a mark that is raised');
$a->query_safe('COMMIT');
came_to_is($b, '', 'and is done then');
outcome_is($a, "SELECT dlock_fence('dropped', 5)", '42883', 'no function');
outcome_is($a, 'UPDATE ledger SET body = 0', '', 'no guard');

# A new one starts without marks.
$control->query_safe('CREATE EXTENSION dlock');
outcome_is($a, "SELECT dlock_fence('dropped', 1)", '', 'a new extension: new marks');

# Who only shares a pass, or has passed alive, is not waited for; nor does a live
# one commit without anybody to look.
my $lease = $control->query_safe("SELECT dlock_acquire('dropped', 'a', '1 h')");
$control->query_safe("SELECT dlock_fence('dropped', $lease)");
$a->query_safe("BEGIN; SELECT dlock_fence('dropped', $lease, true)");
$control->query_safe('CREATE TABLE t (); DROP EXTENSION dlock');
outcome_is($a, 'COMMIT', '55000', 'live, and the extension dropped: does not commit');
outcome_is($a, 'SELECT 1', 1, 'the session goes on');
$control->query_safe('CREATE EXTENSION dlock; SELECT dlock_fence($$dropped$$, 7)');
$a->query_safe("BEGIN; SELECT dlock_fence('dropped', 7)");
$control->query_safe('DROP EXTENSION dlock');
outcome_is($a, 'COMMIT', '', 'shared, and the extension dropped: commits');
$control->query_safe('CREATE EXTENSION dlock');
is(mark($control, 'dropped'), '', 'and has left nothing');

# Not preloaded: closed.
$control->query_safe(<<'EOC');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger EXECUTE FUNCTION dlock_guard('ledger');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON tenants
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('tenant/', 'resource_column=tenant');
CREATE TABLE device (token bigint);
INSERT INTO device VALUES (1);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON device FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
EOC
$_->quit foreach $a, $b, $control;
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$node->restart;
foreach my $sql (
	"SET dlock.tokens = '*=100'; UPDATE ledger SET body = 1",
	'TRUNCATE ledger',
	"SET dlock.tokens = '*=100'; UPDATE tenants SET body = 1",
	'UPDATE device SET token = 2',
	"SELECT dlock_fence('ledger', 100)",
	"LOAD 'dlock'; SET dlock.tokens = '*=100'; UPDATE ledger SET body = 1")
{
	my %error = sqlstate_is($node, $db, $sql, '55000', "not preloaded: $sql");
	like($error{hint} // '', qr/shared_preload_libraries/, 'and what to do');
}
is($node->safe_psql($db, 'SELECT (SELECT sum(body) FROM ledger), (SELECT sum(token) FROM device)'), '0|1', 'nothing was written');

$node->stop;
done_testing();
