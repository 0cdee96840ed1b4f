# Proves: with the fence marks in PL/pgSQL of doc/examples, a server without dlock refuses
# stale tokens of leases that another server grants.

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

my $top = "$FindBin::RealBin/../../..";
my $node = start_node('main');
my $data = init_node('data', preload => 0);
my $db = 'postgres';

$data->start;
$data->safe_psql($db, slurp_file("$top/doc/examples/fence_marks.sql"));
$data->safe_psql($db, <<'EOS');
CREATE TABLE report (made text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON report EXECUTE FUNCTION fence_guard('nightly-report');
CREATE ROLE worker LOGIN;
GRANT ALL ON report TO worker;
EOS
my $old = $node->safe_psql($db, "SELECT dlock_acquire('nightly-report', 'worker-a', '1 ms')");
my $new = $node->safe_psql($db, "SELECT dlock_acquire('nightly-report', 'worker-b', '1 h', wait => '1 min')");
my ($a, $b, $c) = map { DLockSession->new($data, $db, user => 'worker') } 1 .. 3;
my $monitor = DLockSession->new($data, $db);
my $present = sub { return "SELECT set_config('dlock.tokens', 'other=1, nightly-report=$_[0]', false)" };

like($a->query("INSERT INTO report VALUES ('none')"), qr/LK003/, 'no token');
like($a->query("SELECT fence_pass('nightly-report', 9007199254740991)"), qr/42501/, 'only who may write passes');
$a->query_safe($present->($old));
$a->query_safe("INSERT INTO report VALUES ('old 0')");
$a->query_safe('BEGIN');
$a->query_safe("INSERT INTO report VALUES ('old 1')");

# One that passes at the mark does not wait, one that raises it does.
$c->query_safe($present->($old));
$c->query_safe("INSERT INTO report VALUES ('old 2')");
$b->query_safe($present->($new));
$b->ask("INSERT INTO report VALUES ('new')");
ok(wait_blocked($monitor, $b), 'a takeover waits for an older transaction');
$a->query_safe('COMMIT');
$b->answer;
like($a->query("INSERT INTO report VALUES ('late')"), qr/LK001/, 'a stale token');
like($c->query('TRUNCATE report'), qr/LK001/, 'a stale token, TRUNCATE');
$b->query_safe("INSERT INTO report VALUES ('new 2')");
is($data->safe_psql($db, 'SELECT string_agg(made, $$, $$ ORDER BY made) FROM report'), 'new, new 2, old 0, old 1, old 2', 'what was written');

# An older writer that comes while the new one has not committed waits, and is refused.
my $newer = $node->safe_psql($db, "SELECT dlock_release('nightly-report', 'worker-b'), dlock_acquire('nightly-report', 'worker-c', '1 h')") =~ s/.*\|//r;
$c->query_safe($present->($newer));
$c->query_safe('BEGIN');
$c->query_safe("INSERT INTO report VALUES ('newer')");
$b->ask("INSERT INTO report VALUES ('late')");
ok(wait_blocked($monitor, $b), 'an older writer waits for a newer one');
$c->query_safe('COMMIT');
like($b->answer, qr/LK001/, 'and is refused');

# Two with the same new token do not get in each other's way for good.
$_->query_safe($present->($newer + 1)) foreach $a, $b;
$a->query_safe('BEGIN');
$a->query_safe("INSERT INTO report VALUES ('same 1')");
$b->ask("INSERT INTO report VALUES ('same 2')");
ok(wait_blocked($monitor, $b), 'the mark is raised once');
$a->query_safe("INSERT INTO report VALUES ('same 3')");
$a->query_safe('COMMIT');
unlike($b->answer, qr/ERROR/, 'then both write');
$_->quit foreach $a, $b, $c, $monitor;

# By row it would drop the rows.
$data->safe_psql($db, q{CREATE TABLE by_row (made text);
	CREATE TRIGGER guard BEFORE INSERT ON by_row FOR EACH ROW EXECUTE FUNCTION fence_guard('nightly-report')});
sqlstate_is($data, $db, $present->($newer + 1) . "; INSERT INTO by_row VALUES ('lost')", '39P01', 'a guard by row is refused');
$data->stop;
$node->stop;
done_testing();
