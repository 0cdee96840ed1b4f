# Proves, of the plain edition: of two workers the one that was paused past its lease cannot write
# after the other; the guard refuses with the same errors as the extension's; behind PgBouncer in
# transaction mode all of it works.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockPlain;
use DLockPooler;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_plain_node('main');
my $db = 'postgres';
set_clock_of();
sql(<<'EOS');
CREATE TABLE report (line text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON report EXECUTE FUNCTION dlock_guard('report');
GRANT INSERT ON report TO other;
CREATE TABLE account (id text, n int);
INSERT INTO account VALUES ('a', 0), ('b', 0);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON account FOR EACH ROW EXECUTE FUNCTION dlock_guard('account ', 'resource_column=id');
CREATE TABLE live (line text);
CREATE TRIGGER guard BEFORE INSERT ON live EXECUTE FUNCTION dlock_guard('resource=live', 'mode=live');
EOS

sub presenting
{
	my ($tokens, $sql) = @_;
	return "SET dlock.tokens = '$tokens'; $sql";
}

# ---------------------------------------------------------------------------
# Two workers
# ---------------------------------------------------------------------------

my ($paused, $other) = open_sessions($node, $db, 2, name => 'worker');
my $first = $paused->query_safe("SELECT dlock_acquire('report', 'paused', '1 min')");
$paused->query_safe("SET dlock.tokens = 'report=$first'; INSERT INTO report VALUES ('of the first')");
advance('2 min');
my $second = $other->query_safe("SELECT dlock_acquire('report', 'other', '1 min')");
$other->query_safe("BEGIN; SELECT dlock_fence('report', $second); INSERT INTO report VALUES ('of the second')");
$paused->ask("INSERT INTO report VALUES ('too late')");
ok(wait_until(sub { sql("SELECT cardinality(pg_blocking_pids($paused->{pid}))") > 0 }), 'the paused worker waits for the write of the other');
$other->query_safe('COMMIT');
like($paused->result->{err}, qr/LK001: fencing token $first for resource "report" is stale/, 'and is refused');
is(sql("SELECT string_agg(line, ', ') FROM report"), 'of the first, of the second', 'nothing was written too late');

# A write under way keeps a higher token out until it has ended.
$other->query_safe("BEGIN; SET LOCAL dlock.tokens = 'report=$second'; INSERT INTO report VALUES ('still of the second')");
advance('2 min');
my $third = sql("SELECT dlock_acquire('report', 'third', '1 min')");
$paused->ask("SELECT dlock_fence('report', $third)");
ok(wait_until(sub { sql("SELECT cardinality(pg_blocking_pids($paused->{pid}))") > 0 }), 'a takeover waits for the write');
$other->query_safe('COMMIT');
is($paused->answer, '', 'and goes on');
is(sqlstate(presenting("report=$second", "INSERT INTO report VALUES ('too late')")), 'LK001', 'from then on the old one is refused');
is(sql('SELECT resource, token, raised_by FROM dlock_fences'), "report|$third|app", 'the mark');

# With the oldest snapshot, too.
$other->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM report");
$paused->query_safe("SELECT dlock_acquire('next', 'x', '1 min')");
my $fourth = sql("SELECT dlock_force_release('report', 'test'), dlock_acquire('report', 'fourth', '1 h')") =~ s/.*\|//r;
sql("SELECT dlock_fence('report', $fourth)");
like($other->query("SET LOCAL dlock.tokens = 'report=$third'; INSERT INTO report VALUES ('too late')"), qr/40001|LK001/, 'an old snapshot does not hide the mark');
$other->query('ROLLBACK');

# ---------------------------------------------------------------------------
# The guard
# ---------------------------------------------------------------------------

is(sqlstate("INSERT INTO report VALUES ('x')"), 'LK003', 'no token');
is(sqlstate(presenting('other=5', "INSERT INTO report VALUES ('x')")), 'LK003', 'one of another resource');
is(sqlstate(presenting('report', "INSERT INTO report VALUES ('x')")), '22023', 'a setting that is none');
is(sqlstate(presenting('report=9007199254740990', "INSERT INTO report VALUES ('x')")), '22023', 'a token that was never granted');
is(sql("SELECT dlock_fence('elsewhere', t + 1000), dlock_acquire('later', 'x', '1 h') > t + 1000 FROM dlock_acquire('earlier', 'x', '1 h') t"), '|t', 'one of another database; those to come are above it');
is(sqlstate('TRUNCATE report'), 'LK003', 'TRUNCATE');
is(sqlstate("SELECT dlock_fence('report', 1, NULL)"), '22004', 'neither live nor not');
is(sql(presenting("\"report=$fourth\" , x=1", "INSERT INTO report VALUES ('quoted')")), '', 'a name in quotes, and others');
is(sql(q{SET dlock.tokens = '"report=1=2","a ""b"", c=1=3", *=5'; } .
		q{SELECT string_agg(_dlock_presented(x)::text, ' ') FROM unnest(ARRAY['a "b", c=1', 'report=1', 'report', '"']) x}), '3 2 5 5', 'names of all kinds');
is(sql(presenting("*=$fourth", "INSERT INTO report VALUES ('any')")), '', 'for all that are not named');
is(sqlstate(presenting("*=$fourth,report=$first", "INSERT INTO report VALUES ('any')")), 'LK001', 'but one that is named counts');
is(sql("BEGIN; SELECT dlock_fence('report', $fourth); INSERT INTO report VALUES ('by the call'); COMMIT"), '', 'after dlock_fence');
is(sqlstate("BEGIN; SELECT dlock_fence('report', $fourth); COMMIT; INSERT INTO report VALUES ('x')"), 'LK003', 'in its transaction only');
{
	local $ENV{PGUSER} = 'other';
	is(sql(presenting("report=$fourth", "INSERT INTO report VALUES ('of another role')")), '', 'a role without rights on marks writes');
	is(sqlstate("SELECT dlock_fence('report', $fourth)"), '42501', 'and may not fence');
}

my $a = sql("SELECT dlock_acquire('account a', 'x', '1 h')");
my $b = sql("SELECT dlock_acquire('account b', 'x', '1 h')");
is(sql(presenting("\"account a=$a\"", "UPDATE account SET n = n + 1 WHERE id = 'a'")), '', 'a row of its resource');
is(sqlstate(presenting("\"account a=$a\"", 'UPDATE account SET n = n + 1')), 'LK003', 'not one of another');
is(sqlstate(presenting("\"account a=$a\"", "UPDATE account SET id = 'b' WHERE id = 'a'")), 'LK003', 'nor from one to another');
is(sqlstate(presenting("\"account a=$a\"", "UPDATE account SET id = NULL WHERE id = 'a'")), '22004', 'nor to none');
is(sql(presenting("\"account a=$a\", \"account b=$b\"", 'UPDATE account SET n = n + 1; DELETE FROM account WHERE n > 1')), '', 'both');
is(sql('SELECT id, n FROM account'), 'b|1', 'as written');

my $live = sql("SELECT dlock_acquire('live', 'x', '1 h')");
is(sql(presenting("live=$live", "INSERT INTO live VALUES ('x')")), '', 'a live lease');
$other->query_safe("BEGIN; SET LOCAL dlock.tokens = 'live=$live'; INSERT INTO live VALUES ('x')");
advance('2 h');
like($other->ask('COMMIT')->result->{err}, qr/LK002: lease on lock "live" with token $live is not held/, 'one that ends before the commit');
is(sqlstate(presenting("live=$live", "INSERT INTO live VALUES ('x')")), 'LK002', 'one that has ended');
$live = sql("SELECT dlock_acquire('live', 'x', '1 h')");
$other->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL dlock.tokens = 'live=$live'; INSERT INTO live VALUES ('x')");
is(sql("SELECT dlock_release('live', 'x')"), 't', 'one that is released meanwhile');
like($other->query('COMMIT'), qr/40001/, 'an old snapshot does not hide it');
is(sql('SELECT count(*) FROM live'), 1, 'only the live one has written');

# Two transactions with one token pass it at the same time; each is looked at when it commits.
$live = sql("SELECT dlock_acquire('both', 'x', '1 h')");
sql("SELECT dlock_fence('both', $live)");
$paused->query_safe("BEGIN; SELECT dlock_fence('both', $live)");
$other->query_safe("BEGIN; SELECT dlock_fence('both', $live)");
is($_->query("SELECT dlock_fence('both', $live, true)"), '', 'both are live') foreach $paused, $other;
is($paused->query('COMMIT'), '', 'the first ends');
advance('2 h');
like($other->ask('COMMIT')->result->{err}, qr/LK002/, 'the second ends too late');
is(sql('SELECT count(*) FROM _dlock_live_pass'), 0, 'nothing is left of them');
is($node->safe_psql($db, "SELECT relpersistence FROM pg_class WHERE oid = 'app._dlock_live_pass'::regclass"), 'u', 'no publication has them');

# By the text of a date a session could choose among resources.
foreach my $case ([ '0A000', "'x', 'token_column=n'" ], [ '42P17', '' ], [ '42P17', "'mode=liv', 'x'" ], [ '42703', "'x', 'resource_column=m'" ], [ '42P17', "'x', 'resource_column=d'" ])
{
	sql("CREATE TABLE odd (n int8, d date); CREATE TRIGGER guard BEFORE INSERT ON odd FOR EACH ROW EXECUTE FUNCTION dlock_guard($case->[1])");
	is(sqlstate(presenting('x=1', 'INSERT INTO odd VALUES (1)')), $case->[0], "dlock_guard($case->[1])");
	sql('DROP TABLE odd');
}
$_->quit foreach $paused, $other;

# ---------------------------------------------------------------------------
# Behind a pooler
# ---------------------------------------------------------------------------

SKIP:
{
	skip 'pgbouncer is needed', 1 unless DLockPooler::is_installed();
	my $pooler = DLockPooler->start($node);
	my $script = "$pooler->{host}/script.sql";

	# Each client holds, writes under its token, and releases; two server sessions serve all.
	append_to_file($script, <<'EOS');
SELECT dlock_acquire('report', 'client ' || :client_id, '1 h', wait => '1 min') AS token \gset
BEGIN;
SELECT set_config('dlock.tokens', 'report=' || :token, true);
INSERT INTO report VALUES ('pooled');
COMMIT;
SELECT 1 / dlock_release_token('report', :token)::int;
EOS
	sql("SELECT dlock_force_release('report', 'test')");
	command_ok([ 'pgbench', '-n', '-c', 2, '-t', 20, '-f', $script, '-h', $pooler->{host}, '-p', $pooler->{port}, '-U', 'app', $db ], 'clients of a pooler take turns');
	is(sql("SELECT count(*) FROM report WHERE line = 'pooled'"), 40, 'and all have written');
	is(sql("SELECT count(*) FROM dlock_leases WHERE name = 'report'"), 0, 'nothing is left');
	$pooler->stop;
}
done_testing();
