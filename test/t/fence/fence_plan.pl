# Proves: guards see what a statement sets and moves where its plan or the partitions are
# not as usual: below a node of another extension, behind one that hides it, and in a
# partition whose detach is pending.

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

my $node = start_node('main');
my $db = 'postgres';
my $library = PostgreSQL::Test::Utils::tempdir() . '/wrap_plan.so';
chomp(my $include = `$ENV{PG_CONFIG} --includedir-server`);
system('cc', '-O1', '-Wall', '-fPIC', '-shared', "-I$include", '-o', $library,
	"$FindBin::RealBin/../../modules/wrap_plan.c") == 0
  or die 'the module cannot be compiled';
my $control = DLockSession->new($node, $db, name => 'control');
my ($a, $b, $c) = open_sessions($node, $db, 3, name => 's');

$control->query_safe(<<'EOC');
CREATE TABLE own (id int PRIMARY KEY, body text, token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON own
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
INSERT INTO own VALUES (1, 'a', 10);
CREATE TABLE parts (part int, id int, body text, token bigint) PARTITION BY LIST (part);
CREATE TABLE part1 PARTITION OF parts FOR VALUES IN (1);
CREATE TABLE part2 PARTITION OF parts FOR VALUES IN (2);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON part2
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('part-2', 'token_column=token');
INSERT INTO parts VALUES (2, 2, 'b', 45), (1, 1, 'a', 60);
EOC

# ---------------------------------------------------------------------------
# Nodes of other extensions
# ---------------------------------------------------------------------------

my $merge = 'MERGE INTO own USING (VALUES (1)) v (id) ON own.id = v.id WHEN MATCHED AND own.id = 99 THEN UPDATE SET token = 5 WHEN MATCHED THEN UPDATE SET';
my $move = 'UPDATE parts SET part = 2';
my $state = q(SELECT string_agg(id || ' ' || body || ' ' || token, ', ' ORDER BY id) FROM);
$a->query_safe("LOAD '$library'; SET max_parallel_workers_per_gather = 0");
like($a->query_safe("EXPLAIN (COSTS OFF) $move"), qr/^Custom Scan \(wrap_plan\)/, 'a node above the plan');
foreach my $hide (qw(off on))
{
	my $name = $hide eq 'off' ? 'a node above' : 'a node that hides it';

	$a->query_safe("SET wrap_plan.hide = $hide");
	outcome_is($a, "$merge body = 'stolen'", 'LK003', "$name: a MERGE that does not set the token");
	outcome_is($a, "$merge body = 'set', token = 11", '', "$name: and one that does");
	outcome_is($a, "$move WHERE id = 1", 'LK003', "$name: a row that moves");
	outcome_is($a, "WITH moved AS ($move WHERE id = 1) DELETE FROM own WHERE false", 'LK003', "$name: and in WITH");
	$a->query_safe("UPDATE own SET body = 'plain', token = 12");
	is($control->query_safe("$state own"), '1 plain 12', "$name: a plain UPDATE");
	$control->query_safe('ALTER TABLE own DISABLE TRIGGER guard; UPDATE own SET token = 10; ALTER TABLE own ENABLE TRIGGER guard');
}
$a->query_safe('SET wrap_plan.hide = off');
outcome_is($a, "BEGIN; $move, token = 61 WHERE id = 1", '', 'a node above: a row that moves with a token');
outcome_is($a, "ROLLBACK; INSERT INTO parts VALUES (2, 3, 'c', 46)", '', 'a node above: an inserted row');

# ---------------------------------------------------------------------------
# A partition that is being detached
# ---------------------------------------------------------------------------

# It is left pending while somebody reads the table.
$b->query_safe('BEGIN; SELECT FROM parts');
$c->ask('ALTER TABLE parts DETACH PARTITION part2 CONCURRENTLY');
ok(wait_blocked($control, $c), 'a detach waits');
$control->query_safe("SELECT pg_cancel_backend($c->{pid})");
came_to_is($c, '57014', 'and is canceled');
is($control->query_safe("SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = 'part2'::regclass"), 't', 'it is pending');
$c->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
outcome_is($c, "$move WHERE id = 1", 'LK003', 'a row that moves there');
$c->query_safe('ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ');
outcome_is($c, "$move, token = 61 WHERE id = 1", '', 'passes with a token');
$c->query_safe('ROLLBACK');
is(mark($control, 'part-2'), 46, 'the mark is that of the inserted row');

done_testing();
