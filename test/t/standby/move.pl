# Proves: a database moved by logical replication, as doc/howto/failover.md tells it, refuses tokens of
# the old server once one of the new server has passed; and the recipe for a recovered
# server ends its leases.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $text = slurp_file("$FindBin::RealBin/../../../doc/howto/failover.md");
my ($section) = $text =~ /^## Moving to another server.*?\n(.*?)^## /ms;
my ($publish, $subscribe, $bump) = $section =~ /^```sql\n(.*?)^```$/msg;
my ($release) = $text =~ /^## Recovery to a point in time\n.*?^```sql\n(.*?)^```$/ms;
my $tables = q{CREATE TABLE report (id int PRIMARY KEY, made text);
	CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON report EXECUTE FUNCTION dlock_guard('report')};
my $old = start_node('old', allows_streaming => 'logical');
my $new = start_node('new');

sub writes
{
	my ($node, $token, $id) = @_;
	return "SELECT set_config('dlock.tokens', 'report=$token', false); INSERT INTO report VALUES ($id, 'x')";
}

$_->safe_psql($db, "$tables") foreach $old, $new;
my $token = $old->safe_psql($db, "SELECT dlock_acquire('report', 'worker', '1 h')");
$old->safe_psql($db, writes($old, $token, 1));
$old->safe_psql($db, $publish);
my $connection = 'host=' . $old->host . ' port=' . $old->port . " dbname=$db";
$new->safe_psql($db, $subscribe =~ s/'host=old dbname=app'/'$connection'/r);
$new->poll_query_until($db, "SELECT count(*) = 2 FROM pg_subscription_rel WHERE srsubstate = 'r'")
  or die 'the tables are not copied';

# What comes later arrives as well.
$old->safe_psql($db, "SELECT dlock_force_release('report', 'test')");
my $later = $old->safe_psql($db, "SELECT dlock_acquire('report', 'worker', '1 h')");
$old->safe_psql($db, writes($old, $later, 2));
$old->wait_for_catchup('move');
is($new->safe_psql($db, 'SELECT string_agg(id::text, $$ $$ ORDER BY id) FROM report'), '1 2', 'the data');
is($new->safe_psql($db, "SELECT token FROM dlock_fences WHERE resource = 'report'"), $later, 'the mark');
is($new->safe_psql($db, 'SELECT count(*) FROM dlock_leases'), 0, 'no leases');
$new->safe_psql($db, 'DROP SUBSCRIPTION move');
cmp_ok($new->safe_psql($db, $bump), '>=', $later, 'tokens go on above');

my $here = $new->safe_psql($db, "SELECT dlock_acquire('report', 'worker', '1 h')");
cmp_ok($here, '>', $later, 'a larger token');
sqlstate_is($new, $db, writes($new, $token, 3), 'LK001', 'a token below the mark is refused');
$new->safe_psql($db, writes($new, $here, 4));
sqlstate_is($new, $db, writes($new, $later, 5), 'LK001', 'and now the last one of the old server');

# A server with leases of another time.
$new->safe_psql($db, "SELECT dlock_acquire('path', 'a', '1 h'), dlock_acquire_path('x/y', 'b', '1 h'), dlock_once('slot', '1 h')");
$new->safe_psql($db, $release);
is($new->safe_psql($db, "SELECT string_agg(name, ' ') FROM dlock_leases"), 'once:slot', 'what was recovered is released, but for time slots');

$_->stop foreach $old, $new;
done_testing();
