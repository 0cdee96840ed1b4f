# Proves: the plain edition, installed by a role that owns a schema and nothing else, on a server
# without the library, grants, refuses, renews and ends leases as the extension does; what it
# cannot do is an error that names the extension.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockPlain;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_plain_node('main', conf => 'autovacuum = off');
my $db = 'postgres';
set_clock_of();

is(sql("SELECT rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls FROM pg_roles WHERE rolname = 'app'"), 'f', 'the role has no attribute');
is(sql("SELECT has_database_privilege('postgres', 'CREATE')"), 'f', 'nor may it create schemas');
is(sql('SELECT count(*) FROM pg_extension WHERE extname = \'dlock\''), 0, 'there is no extension');
isnt(sqlstate(plain_script()), '00000', 'a second script in the same schema fails');
{
	local $ENV{PGUSER} = (getpwuid $>)[0];
	is($node->safe_psql($db, qq{CREATE SCHEMA "it's"; SET search_path = "it's"; } . plain_script() . q{SELECT dlock_acquire('a', 'x') > 0, dlock_bump_epoch('test') > 0; DROP SCHEMA "it's" CASCADE}), 't|t', 'a schema with a quote in its name');
}

# ---------------------------------------------------------------------------
# A lease, and its end
# ---------------------------------------------------------------------------

is(sql("SET dlock.max_ttl = 20000; SELECT dlock_acquire('default', 'x'); SELECT ttl FROM dlock_leases; SELECT dlock_release('default', 'x')") =~ s/^\d+\n//r, "00:00:20\nt", 'no ttl is longer than the longest');
is(sql("SET standard_conforming_strings = off; SET dlock.default_ttl = 50000; SELECT dlock_acquire('default', 'x'); SELECT ttl FROM dlock_leases; SELECT dlock_release('default', 'x')") =~ s/^\d+\n//r, "00:00:50\nt", 'a ttl without a unit is in milliseconds');
is(sql("SELECT dlock_acquire('default', 'x', '1 day', lock_delay => '1 day', min_hold => '1 day'); SELECT ttl FROM dlock_leases; SELECT lock_delay, min_hold FROM unnest((SELECT leases FROM _dlock_lock)); SELECT dlock_force_release('default', 'test')") =~ s/^\d+\n//r,
	"24:00:00\n24:00:00|24:00:00\n1", 'a day has 24 hours, also when clocks change');
advance('25 h');
my $token = sql("SELECT dlock_acquire('a', 'x', '1 h')");
cmp_ok($token, '>', 0, 'granted');
is(sql("SELECT dlock_acquire('a', 'y', '1 h')"), '', 'refused');
is(sql("SELECT dlock_acquire('a', 'x', '1 h')"), '', 'refused to the owner, too');
is(sql("SELECT name, owner, token = $token, mode, permits, holds, state, bind, pid, role, ttl, payload FROM dlock_leases"), 'a|x|t|exclusive||1|held|none||app|01:00:00|', 'as the view shows it');
advance('40 min');
is(sql("SELECT dlock_check('a', $token), dlock_renew('a', 'y'), dlock_renew('a', 'x'), dlock_renew_token('a', $token + 1)"), 't|f|t|f', 'renewed by its owner');
advance('40 min');
is(sql("SELECT dlock_check('a', $token), dlock_renew_token('a', $token, '10 min')"), 't|t', 'held, and made shorter');
is(sql('SELECT ttl FROM dlock_leases'), '00:10:00', 'for good');
advance('11 min');
is(sql("SELECT dlock_check('a', $token), dlock_renew('a', 'x'), dlock_renew_token('a', $token), dlock_release('a', 'x'), (SELECT count(*) FROM dlock_leases)"),
	'f|f|f|f|0', 'over at its deadline, and not revived');
my $second = sql("SELECT dlock_acquire('a', 'y', '1 h')");
cmp_ok($second, '>', $token, 'taken over with a larger token');
is(sql("SELECT dlock_release_token('a', $token), dlock_release('a', 'x'), dlock_check('a', $second)"), 'f|f|t', 'an old holder does not free its successor');
is(sql("SELECT dlock_release_token('a', $second), dlock_release_token('a', $second)"), 't|f', 'released, once');
is(sql('SELECT count(*) FROM dlock_leases'), 0, 'and free');

# ---------------------------------------------------------------------------
# Modes, permits, re-entry, closed locks
# ---------------------------------------------------------------------------

is(sql("SELECT count(dlock_acquire('s', 'o' || i, '1 h', mode => 'shared')) FROM generate_series(1, 5) i"), 5, 'shared by five');
is(sql("SELECT dlock_acquire('s', 'x', '1 h')"), '', 'not exclusive beside them');
is(sql("SELECT count(*) FILTER (WHERE dlock_release('s', 'o' || i)) FROM generate_series(1, 5) i"), 5, 'all released');
isnt(sql("SELECT dlock_acquire('s', 'x', '1 h')"), '', 'exclusive then');
is(sql("SELECT dlock_acquire('s', 'y', '1 h', mode => 'shared'), dlock_release('s', 'x')"), '|t', 'and not shared');
is(sql("SELECT count(dlock_acquire('p', 'o' || i, '1 h', permits => 3)) FROM generate_series(1, 5) i"), 3, 'three permits');
is(sqlstate("SELECT dlock_acquire('p', 'x', '1 h', permits => 2)"), '22023', 'another number of permits');
is(sqlstate("SELECT dlock_acquire('p', 'x', '1 h')"), '22023', 'no permits');
is(sql("SELECT dlock_release('p', 'o2'), dlock_acquire('p', 'o4', '1 h', permits => 3) > 0, dlock_acquire('p', 'o5', '1 h', permits => 3)"), 't|t|', 'a permit given back');
advance('2 h');
$token = sql("SELECT dlock_acquire('r', 'x', '1 h', reentry => 'count')");
is(sql("SELECT dlock_acquire('r', 'x', '2 h', reentry => 'count'), dlock_acquire('r', 'x', '1 s', reentry => 'return', payload => '{}'), dlock_acquire('r', 'y', '1 h', reentry => 'return')"),
	"$token|$token|", 're-entered with its token');
is(sql("SELECT holds, ttl, payload, remaining > '1 h' FROM dlock_leases WHERE name = 'r'"), '2|02:00:00||t', 'counted, extended, with the payload of the first call');
is(sql("SELECT dlock_release('r', 'x'), dlock_check('r', $token), dlock_release('r', 'x'), dlock_check('r', $token)"), 't|t|t|f', 'released as often');
is(sql("SELECT dlock_acquire('r', 'x', '1 h', mode => 'shared') > 0"), 't', 'shared');
is(sql("SELECT dlock_acquire('r', 'x', '1 h', mode => 'shared')"), '', 'and refused to the owner then');
is(sqlstate("SELECT dlock_acquire('r', 'x', '1 h', reentry => 'return')"), '55000', 'a mode that the lease does not cover');
is(sqlstate("SELECT dlock_acquire('r', 'x', '1 h', wait => '1 h')"), '40P01', 'a wait for oneself');

$token = sql("SELECT dlock_acquire('d', 'x', '1 min', lock_delay => '1 h')");
is(sql("SELECT dlock_renew('d', 'x'), token = $token FROM dlock_watch('d', NULL, '0')"), 't|t', 'a renewal keeps the delay; the holder is seen');
advance('2 min');
is(sql("SELECT state, dlock_acquire('d', 'y', '1 min') FROM dlock_leases WHERE name = 'd'"), 'closed|', 'closed after an unclean end');
is(sql("SELECT token FROM dlock_watch('d', $token, '0')"), '', 'and has no holder');
is(sql("SELECT dlock_release('d', 'y'), dlock_release('d', 'x'), dlock_acquire('d', 'y', '1 min') > 0"), 'f|f|t', 'opened by the release of its owner');
sql("SELECT dlock_acquire('m', 'x', '1 h', min_hold => '30 min'), dlock_release('m', 'x')");
is(sql("SELECT dlock_acquire('m', 'y', '1 h'), dlock_acquire('m', 'x', '1 h', reentry => 'return')"), '|', 'not free before its least time');
advance('31 min');
is(sql("SELECT dlock_acquire('m', 'y', '1 h') > 0"), 't', 'but after it');

sql("SELECT dlock_acquire('all', 'z', '1 h', reentry => 'count') FROM generate_series(1, 2)");
is(sql("SELECT dlock_release_all('z'), dlock_acquire('all', 'x', '1 h') > 0, dlock_release('all', 'x')"), '1|t|t', 'all holds end with all leases');
sql("SELECT dlock_acquire('all', 'x', '1 h', lock_delay => '1 h'), dlock_force_release('all', 'test')");
is(sql("SELECT state FROM dlock_leases WHERE name = 'all'"), 'closed', 'a release by force is unclean');

# A row is not swept while one of its leases lasts.
sql("SELECT dlock_acquire('g', 'a', '1 h', mode => 'shared'), dlock_acquire('g', 'b', '1 day', mode => 'shared')");
advance('3 h');
sql("SELECT count(dlock_acquire('sweeps ' || i, 'x', '1 h')) FROM generate_series(1, 500) i");
is(sql("SET statement_timeout = '1 min'; SELECT dlock_acquire('g', 'x', '1 h'), dlock_acquire('g', 'y', '1 h', mode => 'shared') > 0"), '|t', 'and still shared');

# ---------------------------------------------------------------------------
# The usual call
# ---------------------------------------------------------------------------

# It takes one transaction id, whatever the protocol; one in a longer transaction takes another one for what may be rolled back.
my $script = PostgreSQL::Test::Utils::tempdir() . '/pairs.sql';
append_to_file($script, "SELECT dlock_acquire('usual', 'x');\nSELECT dlock_release('usual', 'x');\n");
foreach my $mode (qw(simple extended prepared))
{
	my $before = sql('SELECT pg_snapshot_xmax(pg_current_snapshot())');

	$node->command_ok([ 'pgbench', '-n', '-M', $mode, '-t', 100, '-f', $script, '-U', 'app', $db ], "pairs, $mode");
	# A call that the machine has stopped at its beginning is taken for one in a longer transaction.
	cmp_ok(sql("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 - $before"), '<', 250, "$mode: most calls take one transaction id");
}

# What calls change is in no index, and pages have room: updates are HOT, and tables need no vacuum to keep their size.
append_to_file("$script.hot", <<'EOS');
\set n (:n + 1) % 300
SELECT dlock_acquire('hot ' || :n, 'x', keep => '1 min');
SELECT dlock_acquire('hot ' || :n, 'y', keep => '1 min');
SELECT dlock_renew('hot ' || :n, 'x');
SELECT dlock_release('hot ' || :n, 'x');
SELECT * FROM dlock_take('y', '0', '1 min');
SELECT dlock_release('hot ' || :n, 'y');
EOS
my @hot = ('pgbench', '-n', '-D', 'n=0', '-f', "$script.hot", '-U', 'app');
my $table = q{FROM pg_stat_user_tables WHERE relname = '_dlock_lock'};
$node->command_ok([ @hot, '-t', 300, $db ], 'every lock once');
my $size = sql('SELECT pg_relation_size(\'_dlock_lock\'), pg_indexes_size(\'_dlock_lock\')');
my $updates = sql("SELECT n_tup_upd $table");
$node->command_ok([ @hot, '-t', 1500, $db ], 'and again');
$node->poll_query_until($db, "SELECT n_tup_upd >= $updates + 1500 * 6 $table");
is(sql("SELECT n_tup_upd - n_tup_hot_upd $table"), 0, 'every update is HOT');
is(sql('SELECT pg_relation_size(\'_dlock_lock\'), pg_indexes_size(\'_dlock_lock\')'), $size, 'the table of locks does not grow');

# ---------------------------------------------------------------------------
# Many, and by owner
# ---------------------------------------------------------------------------

my @got = split /,/, sql("SELECT array_to_string(dlock_acquire_each('{e3,e1,e2,e1}', '{c#1,c#2,c#3,c#4}', '1 h'), ',', '-')");
is($got[3], '-', 'each: a name that stands twice goes to the first');
is(sql("SELECT string_agg(name || owner || (token = (ARRAY[$got[0],$got[1],$got[2]])[CASE name WHEN 'e3' THEN 1 WHEN 'e1' THEN 2 ELSE 3 END]), ' ' ORDER BY name) FROM dlock_leases WHERE name LIKE 'e_'"),
	'e1c#2true e2c#3true e3c#1true', 'each: in the order of the arguments');
is(sql("SELECT dlock_renew_each('{e2,e1,e3}', '{$got[2],1,$got[0]}', '2 h')"), '{t,f,t}', 'each renewed by its token');
is(sql("SELECT dlock_renew_all('c', '3 h'), dlock_renew_all('c#1'), dlock_renew_all('nobody')"), '3|1|0', 'all of a client, of a task');
is(sql("SELECT dlock_release_each('{e3,e1}', '{$got[0],$got[1]}'), dlock_release_all('c')"), '{t,t}|1', 'and released');
is(sql("SELECT dlock_acquire('l2', 'x', '1 h') > 0, dlock_acquire_all('{l1,l2,l3}', 'y', '1 h')"), 't|', 'all or none: none');
is(sql("SELECT count(*) FROM dlock_leases WHERE owner = 'y' AND name LIKE 'l_'"), 0, 'none is left');
is(sql("SELECT dlock_release('l2', 'x'), cardinality(dlock_acquire_all('{l1,l2,l3}', 'y', '1 h'))"), 't|3', 'all');

is(sql("SELECT count(dlock_acquire('l' || i, 'many', '1 h')) FROM generate_series(11, 1011) i"), 1001, 'an owner of more than a call can name');
is(sql("SELECT dlock_renew_all('many'), dlock_release_all('many')"), '1001|1001', 'all are renewed and released');

# Names of any collation.
sql("CREATE TABLE job (name text COLLATE \"de-x-icu\", owner text COLLATE \"de-x-icu\"); INSERT INTO job VALUES ('collated', 'x')");
is(sql("SELECT dlock_acquire(name, owner) > 0 FROM job; SELECT dlock_check(name, 1), dlock_renew(name, owner), (SELECT count(*) FROM dlock_lease(job.name)), (SELECT token > 0 FROM dlock_watch(job.name, NULL, '0')), dlock_force_release(name, 'test'), dlock_fence(name, 1) FROM job"),
	"t\nf|t|1|t|1|", 'a name of another collation');

# ---------------------------------------------------------------------------
# Tokens, and names that are gone
# ---------------------------------------------------------------------------

$token = sql("SELECT dlock_acquire('t', 'x', '1 h')");
cmp_ok($token, '>=', (time - 1_767_225_600 - 60) << 22, 'tokens begin at the clock');
sql("SELECT dlock_release('t', 'x'), dlock_bump_epoch('test', $token + 2 * 60 * 4194304)");
cmp_ok(sql("SELECT dlock_acquire('t', 'x', '1 h')"), '>', $token + 2 * 60 * 4194304, 'and are moved on');
my $moved = sql("SELECT token FROM dlock_leases WHERE name = 't'");
sql("SELECT setval('_dlock_token_seq', 1), dlock_release('t', 'x')");
cmp_ok(sql("SELECT dlock_acquire('t', 'x', '1 h')"), '>', $moved, 'an old sequence does not lead below what the lock has seen');
sql("SELECT setval('_dlock_token_seq', 1)");
cmp_ok(sql("SELECT dlock_acquire('t2', 'x', '1 h')"), '>=', (time - 1_767_225_600 - 60) << 22, 'an old sequence, as a dump has it, is not followed');
advance('1 day');
sql("SELECT count(dlock_acquire('new-' || i, 'x', '1 h')) FROM generate_series(1, 2000) i");
advance('1 day');
sql("SELECT count(dlock_acquire('newer-' || i, 'x', '1 h')) FROM generate_series(1, 2000) i");
cmp_ok(sql("SELECT count(*) FROM _dlock_lock WHERE name LIKE 'new-%'"), '<', 1500, 'names that are no longer used go');

# ---------------------------------------------------------------------------
# Roles
# ---------------------------------------------------------------------------

# A superuser is the caller in maintenance, too, which runs functions of others: no token lets it end a lease.
$token = sql("SELECT dlock_acquire('index', 'x', '1 h')");
{
	local $ENV{PGUSER} = (getpwuid $>)[0];
	is(sqlstate("SELECT app.dlock_release_token('index', $token)"), '42501', 'a superuser');
}
is(sql("SELECT dlock_release('index', 'x')"), 't', 'it is still held');

# A renewal that waits for a release does not bring the lease back.
{
	my ($first, $second) = open_sessions($node, $db, 2, name => 'renewal');

	foreach my $renew ("dlock_renew('race', 'x')", "dlock_acquire('race', 'x', '1 h', reentry => 'return') IS NOT NULL AND dlock_release('race', 'x')")
	{
		sql("SELECT dlock_acquire('race', 'x', '1 h')");
		$first->query_safe("BEGIN; SELECT dlock_renew('race', 'x')");
		$second->ask("SELECT $renew");
		ok(wait_until(sub { sql("SELECT cardinality(pg_blocking_pids($second->{pid}))") > 0 }), 'it waits for a transaction');
		advance('1 min');
		$first->query_safe("SELECT dlock_release('race', 'x'); COMMIT");
		my $answer = $second->answer;
		is(sql("SELECT count(*) FROM dlock_leases WHERE name = 'race'"), 0, "$renew: no lease that nobody can release");
	}
	$_->quit foreach $first, $second;
}

$token = sql("SELECT dlock_acquire('role', 'x', '1 h')");
{
	local $ENV{PGUSER} = 'other';
	is(sql("SELECT dlock_acquire('role', 'x', '1 h', reentry => 'return'), dlock_renew('role', 'x'), dlock_release('role', 'x'), dlock_release_all('x')"), '|f|f|0', 'the name of an owner is no key to the lease of another role');
	is(sqlstate("SELECT dlock_release_token('role', $token)"), '42501', 'nor is its token');
	is(sqlstate("SELECT dlock_renew_token('role', $token)"), '42501', 'not to renew it, either');
	is(sql("SELECT dlock_release_each('{role}', '{$token}')"), '{f}', 'one of many: false');
	is(sqlstate("SELECT dlock_force_release('role', 'x')"), '42501', 'a release by force is not for all');
	is(sqlstate("SELECT dlock_bump_epoch('x')"), '42501', 'nor is moving tokens on');
	is(sql("SELECT has_function_privilege('dlock_guard()', 'EXECUTE')"), 'f', 'nor a guard');
	is(sqlstate('UPDATE _dlock_lock SET free_at = now()'), '42501', 'tables are not open to others');
	is(sqlstate("SELECT setval('_dlock_token_seq', 1)"), '42501', 'nor are tokens');
	is(sqlstate("SELECT _dlock_token(9007199254740990)"), '55000', 'which no task can move on');
	is(sql("SELECT dlock_acquire('roles', 'x', '1 h') > 0, role FROM dlock_leases WHERE name = 'role'"), 't|app', 'another role acquires and sees');
	is(sql("SELECT dlock_acquire('own') > 0; SELECT dlock_renew('own'); SELECT dlock_release('own'), count(*) FROM dlock_leases WHERE name = 'own' AND owner <> ''"), "t\nt\nt|1", 'a session is an owner');
}
is(sql("SELECT dlock_release('roles', 'x')"), 'f', 'the owner of the schema is another owner');

# What runs as the owner does not go by types of the caller: neither by those that a session has found at its first call, nor by those of a trigger's table.
is(sql("SELECT string_agg(proname, ' ') FROM pg_proc WHERE pronamespace = 'app'::regnamespace AND proconfig IS NULL AND split_part(prosrc, E'\\nBEGIN', 1) ~ '\\n    \\w+ [a-z]\\w*(\\[\\])?( :=|;)' AND proname !~ '^_dlock_task_'"),
	'', 'functions that set no search_path name the schema of types');
{
	local $ENV{PGUSER} = (getpwuid $>)[0];
	sql('GRANT TEMPORARY ON DATABASE postgres TO other');
}
{
	local $ENV{PGUSER} = 'other';
	my $trap = <<'EOS';
CREATE FUNCTION pg_temp.trap(value pg_catalog.int8) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'runs as %', current_user; END $$;
CREATE DOMAIN pg_temp.int8 AS pg_catalog.int8 CHECK (pg_temp.trap(VALUE));
EOS
	is(sqlstate("SELECT $_"), '42501', "not for all: $_") foreach qw(_dlock_is_first('x') _dlock_caller() _dlock_presented('x'));
	is(sqlstate('CREATE TEMP TABLE t (resource text, token int8); CREATE TRIGGER t AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION _dlock_live_at_commit()'), '42501', 'nor in a trigger');
	is(sql("$trap; SELECT dlock_acquire('trap', 'x') > 0, dlock_release('trap', 'x')"), 't|t', 'a type of a session is not taken for that of the same name');
}
is(sql("SELECT dlock_force_release('roles', 'test'), dlock_force_release('roles', 'test')"), '1|0', 'released by force');

# A role that a session has set and that is renamed is nobody, also if another one gets its name.
{
	local $ENV{PGUSER} = (getpwuid $>)[0];
	sql('CREATE ROLE worker; GRANT worker TO other');
	my ($session) = open_sessions($node, $db, 1, name => 'renamed', user => 'other');
	$session->query_safe("SET ROLE worker; SELECT dlock_acquire('renamed', 'x', '1 h')");
	sql('ALTER ROLE worker RENAME TO workers');
	like($session->query("SELECT dlock_renew('renamed', 'x')"), qr/42704/, 'a role that is renamed');
	sql(q{CREATE ROLE worker; SET ROLE worker; SELECT app.dlock_acquire('of its name', 'x', '1 h')});
	like($session->query("SELECT dlock_release('of its name', 'x')"), qr/42704/, 'is not another one of its name');
	is($session->query_safe("SET ROLE workers; SELECT dlock_renew('renamed', 'x'), dlock_release('renamed', 'x')"), 't|t', 'and has its leases by its new name');
	$session->quit;
}

# The owner may alter the table of locks while leases are held and sessions have plans.
{
	my ($session) = open_sessions($node, $db, 1, name => 'altered');
	my $calls = "SELECT dlock_acquire('altered', 'y', '1 h'), dlock_renew('altered', 'x', '1 h'), dlock_release('altered', 'x'), dlock_acquire('altered', 'x', '1 h') > 0";
	$session->query_safe("SELECT dlock_acquire('altered', 'x', '1 h')");
	is($session->query($calls), '|t|t|t', 'before the table is altered');
	sql('ALTER TABLE _dlock_lock ADD note text, SET (fillfactor = 60)');
	sql('VACUUM FULL _dlock_lock');
	is($session->query($calls), '|t|t|t', 'and after it');
	$session->quit;
}

# A member of a role renews and releases its leases, and acquires as the role that it has set.
{
	local $ENV{PGUSER} = (getpwuid $>)[0];
	sql('GRANT app TO other');
}
sql("SELECT dlock_acquire('role $_', 'y', '1 h') FROM generate_series(1, 2)") foreach 1, 2;
{
	local $ENV{PGUSER} = 'other';
	is(sql("SELECT dlock_renew_token('role', $token), dlock_renew('role', 'x'), dlock_release_all('y'), dlock_release('role', 'x')"), 't|t|2|t', 'a member of the role changes its leases');
	is(sql("SET ROLE app; SELECT dlock_acquire('role', 'x', '1 h') > 0; SELECT role FROM dlock_leases WHERE name = 'role'"), "t\napp", 'and is the role that it sets');
	is(sql("SELECT dlock_acquire('role 3', 'x', '1 h') > 0, dlock_release_all('x')"), 't|1', 'its own leases come first');
}
{
	local $ENV{PGUSER} = (getpwuid $>)[0];
	sql('REVOKE app FROM other');
}

# ---------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------

sql("CREATE TABLE large AS SELECT to_jsonb(repeat('x', 60000)) AS payload");
foreach my $case (
	[ '22023', "dlock_acquire('e', 'x', payload => payload) FROM large" ], [ '22023', "dlock_acquire('e', 'x', '1 min', min_hold => '2 min')" ],
	[ '22023', "dlock_acquire_each(array_agg('e' || i), array_agg('x'::text)) FROM generate_series(1, 1001) i" ],
	[ '22004', "dlock_release_token('role', NULL)" ], [ '22004', "dlock_renew_token('role', NULL)" ],
	[ '22004', "dlock_acquire(NULL)" ], [ '22023', "dlock_acquire('')" ], [ '22023', "dlock_acquire(repeat('x', 256))" ], [ '22023', "dlock_acquire('e', '')" ],
	[ '22023', "dlock_acquire('e', 'x', '0')" ], [ '22023', "dlock_acquire('e', 'x', '2 days')" ], [ '22023', "dlock_acquire('e', 'x', wait => '-1 s')" ],
	[ '22023', "dlock_acquire('e', mode => 'odd')" ], [ '22004', "dlock_acquire('e', mode => NULL)" ], [ '22023', "dlock_acquire('e', reentry => 'odd')" ],
	[ '22023', "dlock_acquire('e', permits => 0)" ], [ '22023', "dlock_acquire('e', payload => to_jsonb(repeat('x', 2000)))" ],
	[ '22004', "dlock_renew_token('e', NULL)" ], [ '22023', "dlock_release_token('e', 0)" ], [ '22023', "dlock_check('e', -1)" ],
	[ '22023', "dlock_acquire_each('{a,b}', '{x}')" ], [ '22023', "dlock_acquire_all('{a,a}', 'x')" ], [ '22023', "dlock_acquire_all('{}', 'x')" ],
	[ '0A000', "dlock_acquire('e', mode => 'PW')" ], [ '0A000', "dlock_acquire('e', bind => 'session')" ], [ '0A000', "dlock_convert('e', 1, 'shared')" ],
	[ '0A000', "dlock_acquire_path('e/f', 'x')" ])
{
	is(sqlstate("SELECT $case->[1]"), $case->[0], "$case->[1]: $case->[0]");
}
is(sqlstate("SET default_transaction_read_only = on; SELECT dlock_acquire('e', 'x')"), '25006', 'a read-only transaction: 25006');
my %error = error_fields($node, $db, "SELECT dlock_convert('e', 1, 'shared')");
like($error{message}, qr/needs the extension dlock/, 'the extension is named');
is(sql("SELECT count(*) FROM dlock_leases WHERE name = 'e'"), 0, 'an error leaves nothing');
is(sql('SELECT count(*) FROM dlock_waiters'), 0, 'nor waits');
done_testing();
