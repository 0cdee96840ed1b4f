# Proves: marks and guards survive a dump and follow logical replication; they work
# from any schema, for roles that have no right to anything of the extension's; and
# nobody but the extension's owner sets a mark back, which the log tells.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir;
my $node = start_node('main', allows_streaming => 'logical', conf => "log_min_messages = log\n");
my $odd = q(eu, "berlin"=1);
my $schema_sql = <<'EOC';
CREATE SCHEMA hidden;
CREATE EXTENSION dlock SCHEMA hidden;
EOC
my $tables_sql = <<'EOC';
CREATE TABLE ledger (id int PRIMARY KEY, body text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger
	EXECUTE FUNCTION hidden.dlock_guard('ledger');
CREATE TABLE tenants (tenant text, body text, token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON tenants
	FOR EACH ROW EXECUTE FUNCTION hidden.dlock_guard('tenant/', 'resource_column=tenant', 'token_column=token');
CREATE TABLE device (id int PRIMARY KEY, body text, token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON device
	FOR EACH ROW EXECUTE FUNCTION hidden.dlock_guard('token_column=token');
EOC
my $marks = 'SELECT resource, token, raised_at, raised_by FROM hidden.dlock_fences ORDER BY resource';

$node->safe_psql('postgres', 'CREATE DATABASE source');
$node->safe_psql('source', "$schema_sql $tables_sql");
my $token = $node->safe_psql('source', "SELECT hidden.dlock_acquire('ledger', 'a', '1 h') + 10");
$node->safe_psql('source', "SELECT hidden.dlock_acquire('more-' || i, 'more') FROM generate_series(1, 30) i; SELECT hidden.dlock_release_all('more')");

# The setting and the statements, with a token.
sub writes
{
	my ($t) = @_;
	return (
		ledger => "SET dlock.tokens = 'ledger=$t'; INSERT INTO ledger VALUES (1, 'a') ON CONFLICT (id) DO UPDATE SET body = 'a'",
		tenants => "INSERT INTO tenants VALUES ('$odd', 'a', $t)",
		device => "INSERT INTO device VALUES (1, 'a', $t) ON CONFLICT (id) DO UPDATE SET token = $t");
}

# What was written with a token can be written with it, and not with a lower one,
# nor without.
sub is_guarded
{
	my ($target, $dbname, $mark, $label) = @_;
	my %good = writes($mark);
	my %stale = writes($mark - 1);

	foreach my $table (sort keys %good)
	{
		$target->safe_psql($dbname, $good{$table});
		sqlstate_is($target, $dbname, $stale{$table}, 'LK001', "$label: $table refuses an old token");
	}
	sqlstate_is($target, $dbname, 'DELETE FROM ledger', 'LK003', "$label: a write without a token");
	sqlstate_is($target, $dbname, 'UPDATE tenants SET body = $$b$$', 'LK003', "$label: a row without a token");
	return;
}

is_guarded($node, 'source', $token, 'source');
my $before = $node->safe_psql('source', $marks);
is($node->safe_psql('source', 'SELECT count(*) FROM hidden.dlock_fences'), 2, 'marks to dump');

# ---------------------------------------------------------------------------
# Dumps
# ---------------------------------------------------------------------------

$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/custom", $node->connstr('source') ], 'pg_dump');
$node->command_ok([ 'pg_dump', '--clean', '-f', "$dir/plain.sql", $node->connstr('source') ], 'pg_dump, plain');
my $fresh = start_node('fresh', conf => "max_worker_processes = 16\n");
foreach my $restore ([ $fresh, 'a fresh cluster' ], [ $node, 'another database' ])
{
	my ($target, $label) = @$restore;

	$target->safe_psql('postgres', 'CREATE DATABASE restored');
	$target->command_ok(
		[ 'pg_restore', '--exit-on-error', '-d', $target->connstr('restored'), "$dir/custom" ],
		"pg_restore into $label");
	is($target->safe_psql('restored', $marks), $before, "$label: the marks are as they were");
	is_guarded($target, 'restored', $token, $label);
	my $next = $target->safe_psql('restored', "SELECT hidden.dlock_acquire('ledger', 'b', '1 h')");
	cmp_ok($next, '>', $token, "$label: a new token is above the mark");
	is_guarded($target, 'restored', $next, "$label, new token");
}

# Over itself: a mark that was raised after the dump is back where it was, and so is
# the data.  Tokens are not.
$node->safe_psql('source', { writes($token + 5) }->{ledger});
$node->command_ok(
	[ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('source'), '-f', "$dir/plain.sql" ],
	'restored over the source');
is($node->safe_psql('source', $marks), $before, 'over the source: the marks are those of the dump');
is_guarded($node, 'source', $token, 'over the source');

# The data alone, into tables that are guarded already.
$fresh->safe_psql('postgres', 'CREATE DATABASE data');
$fresh->safe_psql('data', "$schema_sql $tables_sql");
$fresh->command_fails(
	[ 'pg_restore', '--exit-on-error', '--data-only', '-t', 'ledger', '-d', $fresh->connstr('data'), "$dir/custom" ],
	'data alone is refused by the guard');
$fresh->command_ok(
	[ 'pg_restore', '--exit-on-error', '--data-only', '--disable-triggers', '-d', $fresh->connstr('data'), "$dir/custom" ],
	'and restored with --disable-triggers');
is($fresh->safe_psql('data', $marks), $before, 'with the marks');
is_guarded($fresh, 'data', $token, 'data alone');

# A template.
$fresh->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE data');
is($fresh->safe_psql('copy', $marks), $before, 'a copy of the database has the marks');
is_guarded($fresh, 'copy', $token, 'a copy of the database');

# ---------------------------------------------------------------------------
# Logical replication
# ---------------------------------------------------------------------------

$fresh->safe_psql('postgres', 'CREATE DATABASE subscriber');
$fresh->safe_psql('subscriber', "$schema_sql $tables_sql");
$node->safe_psql('source',
	'CREATE PUBLICATION fenced FOR TABLE ledger, device, _dlock.fence_mark');
$fresh->safe_psql('subscriber',
	"CREATE SUBSCRIPTION fenced CONNECTION '" . $node->connstr . " dbname=source' PUBLICATION fenced");
$fresh->wait_for_subscription_sync($node, 'fenced', 'subscriber');
is($fresh->safe_psql('subscriber', $marks), $before, 'replicated: the marks that were there');
my $ledger = 'SELECT body FROM ledger ORDER BY id';
is($fresh->safe_psql('subscriber', $ledger), 'a', 'replicated: the rows that were there');

my $next = $node->safe_psql('source', "SELECT hidden.dlock_acquire('other', 'b', '1 h')");
$node->safe_psql('source', { writes($next) }->{ledger});
$node->safe_psql('source', "SET dlock.tokens = 'ledger=$next'; INSERT INTO ledger VALUES (2, 'b')");
$node->safe_psql('source', { writes($next) }->{device});
$node->wait_for_catchup('fenced');
is($fresh->safe_psql('subscriber', $ledger), "a\nb", 'replicated: rows that are written now, past the guard there');
is($fresh->safe_psql('subscriber', 'SELECT token FROM device'), $next, 'replicated: rows that are their own marks');
is($fresh->safe_psql('subscriber', "SELECT token FROM hidden.dlock_fences WHERE resource = 'ledger'"),
	$next, 'replicated: the mark');
sqlstate_is($fresh, 'subscriber', { writes($token) }->{ledger}, 'LK001',
	'replicated: who writes there with an old token is refused');
sqlstate_is($fresh, 'subscriber', "UPDATE device SET token = $token", 'LK001', 'replicated: to a row as well');
sqlstate_is($node, 'source', { writes($token) }->{ledger}, 'LK001', 'replicated: and at the origin');

# A guard that is always enabled takes a replicated row as one whose columns are all set, whoever has set them.
$fresh->safe_psql('subscriber', 'ALTER TABLE device ENABLE ALWAYS TRIGGER guard');
$node->safe_psql('source', "UPDATE device SET body = 'set', token = " . ($next + 1));
$node->safe_psql('source', "SET dlock.tokens = '*=" . ($next + 2) . "'; UPDATE device SET body = 'stamped'; INSERT INTO device VALUES (2, 'new')");
$node->wait_for_catchup('fenced');
is($fresh->safe_psql('subscriber', 'SELECT id, body, token FROM device ORDER BY id'),
	join("\n", map { "$_|" . ($next + 2) } '1|stamped', '2|new'), 'replicated: through a guard that is always enabled');

# One by statement does not see the rows, but a TRUNCATE.
$fresh->safe_psql('subscriber', 'ALTER TABLE ledger ENABLE ALWAYS TRIGGER guard');
$node->safe_psql('source', "SET dlock.tokens = 'ledger=$next'; UPDATE ledger SET body = 'B' WHERE id = 2");
$node->wait_for_catchup('fenced');
is($fresh->safe_psql('subscriber', $ledger), "a\nB", 'replicated: rows, past a guard by statement that is always enabled');
my $missing = $fresh->safe_psql('subscriber', 'SELECT fence_missing FROM hidden.dlock_stats');
$node->safe_psql('source', "SET dlock.tokens = 'ledger=$next'; TRUNCATE ledger");
ok($fresh->poll_query_until('subscriber', "SELECT fence_missing > $missing FROM hidden.dlock_stats"), 'replicated: it refuses a TRUNCATE');
$fresh->safe_psql('subscriber', $_) foreach 'DROP SUBSCRIPTION fenced', 'ALTER TABLE ledger ENABLE TRIGGER guard';

# The same setting that replication works with; and a guard for that case.
my $replica = "SET session_replication_role = replica";
is($fresh->safe_psql('subscriber', "$replica; UPDATE ledger SET body = 'r' WHERE id = 1; $ledger"),
	"r\nB", 'session_replication_role = replica skips the guard');
$fresh->safe_psql('subscriber', 'ALTER TABLE ledger ENABLE ALWAYS TRIGGER guard');
sqlstate_is($fresh, 'subscriber', "$replica; UPDATE ledger SET body = 's'", 'LK003', 'but not one that is always enabled');

# ---------------------------------------------------------------------------
# Roles
# ---------------------------------------------------------------------------

# The extension belongs to a role that is no superuser.
$node->safe_psql('postgres', <<'EOC');
CREATE ROLE boss SUPERUSER;
CREATE ROLE keeper;
CREATE ROLE writer;
CREATE DATABASE roles;
EOC
$node->safe_psql('roles', <<"EOC");
SET ROLE boss;
$schema_sql
RESET ROLE;
$tables_sql
REASSIGN OWNED BY boss TO keeper;
REVOKE EXECUTE ON FUNCTION hidden.dlock_fence FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ledger, tenants, device TO writer;
EOC
is($node->safe_psql('roles', "SELECT extowner::regrole FROM pg_extension WHERE extname = 'dlock'"),
	'keeper', 'the owner of the extension');

sub as
{
	my ($role, $sql) = @_;
	return "SET ROLE $role; $sql";
}

my %written = writes(10);
my %late = writes(9);
foreach my $table (sort keys %written)
{
	$node->safe_psql('roles', as('writer', $written{$table}));
	sqlstate_is($node, 'roles', as('writer', $late{$table}), 'LK001', "a role that may write $table alone is guarded");
}
is($node->safe_psql('roles', "SELECT DISTINCT raised_by FROM hidden.dlock_fences"), 'writer', 'and named in the marks');
foreach my $case (
	[ 'UPDATE ledger SET body = $$x$$', 'LK003' ],
	[ 'DELETE FROM ledger', 'LK003' ],
	[ 'TRUNCATE ledger', 'LK003' ],
	[ "SELECT hidden.dlock_fence('ledger', 11)", '42501' ],
	[ 'UPDATE _dlock.fence_mark SET token = 1', '42501' ],
	[ 'DELETE FROM _dlock.fence_mark', '42501' ],
	[ 'TRUNCATE _dlock.fence_mark', '42501' ],
	[ 'ALTER TABLE ledger DISABLE TRIGGER guard', '42501' ],
	[ 'DROP TRIGGER guard ON ledger', '42501' ],
	[ 'SET session_replication_role = replica', '42501' ])
{
	sqlstate_is($node, 'roles', as('writer', $case->[0]), $case->[1], "a role that may write the table alone: $case->[0]");
}

$fresh->stop;
$node->stop;
done_testing();
