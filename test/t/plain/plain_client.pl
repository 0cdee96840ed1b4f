# Proves: the library for Node does over the plain edition what test/clients/scenarios.json says, but
# for what needs the extension; over a restart, a crash, and behind PgBouncer in transaction mode, too.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClient;
use DLockNode;
use DLockPlain;
use DLockPooler;
use DLockScenario;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my @agent = ('node', "$FindBin::RealBin/../../clients/session.js");

DLockNode::prepare("$PostgreSQL::Test::Utils::tmp_check/plain_node", 'kysely@0.27');
my $node = start_plain_node('main');
client_program($node, 'none');
$ENV{PGUSER} = 'app';

# A scenario makes the database read-only.
$node->safe_psql('postgres', 'ALTER DATABASE postgres OWNER TO app', extra_params => [ '-U', (getpwuid $>)[0] ]);
run_scenarios('node', $_, $node, undef, @agent) foreach qw(server places);
SKIP:
{
	skip 'pgbouncer is not installed', 1 unless DLockPooler::is_installed();
	my $pooler = DLockPooler->start($node);
	{
		local @ENV{qw(PGHOST PGPORT)} = @$pooler{qw(host port)};
		run_scenarios('node', 'pooler', $node, undef, @agent);
	}
	$pooler->stop;
}
{
	local $ENV{DLOCK_SCENARIO} = 'a restart|a crash';
	run_scenarios('node', 'faults', $node, undef, @agent);
}
done_testing();
