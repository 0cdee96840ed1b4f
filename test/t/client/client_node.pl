# Proves: the library for Node (src/clients/node) does what test/clients/scenarios.json says, over
# outages, losses, poolers and misuse, and is an npm package with types.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClient;
use DLockNode;
use DLockScenario;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/node";
my @agent = ('node', "$top/test/clients/session.js");

my $npm = DLockNode::prepare($place, 'kysely@0.27', 'typescript@5', '@types/pg@8', '@types/node@20');
ok($npm->('pack', "$top/src/clients/node") && -f "$place/dlock-1.0.0.tgz", 'npm pack') if $npm;

my $node = start_node('main');
client_server($node);

my $proxy = scenario_servers($node);
run_all_scenarios('node', $node, $proxy, @agent);
run_pooler_scenarios('node', $node, $proxy, @agent);
{
	local @ENV{qw(PGHOST PGPORT)} = @$proxy{qw(host port)};
	run_scenarios('node', $_, $node, $proxy, @agent) foreach qw(turns again), (qw(undo late overdue)) x (($ENV{DLOCK_RING} // '') eq 'nightly');
}
unlike(slurp_file($node->logfile), qr{prepared statement}, 'behind a pooler no statement is prepared, for it may have none');
test_types() if $npm;
test_end();
run_scenarios('node', 'last', $node, $proxy, @agent);
is(system('node', "$top/test/clients/bare.js"), 0, 'what needs no server');
$proxy->stop;
done_testing();

# A program ends as soon as it has nothing to do: connections that are not used keep it from nothing.
sub test_end
{
	append_to_file("$place/end.js", <<'EOP');
const dlock = require('dlock');
(async () => {
  const session = dlock.connect({});
  const job = await session.acquire('job');
  const waits = session.acquire('job', { wait: '1 h' });
  const [other] = await Promise.all([session.acquire('other'), job.release()]);
  await Promise.all([waits.then((lease) => lease.release()), other.release()]);
  await (await session.acquire('last')).release();
  await new Promise(setImmediate);
  require('fs').writeSync(1, process.getActiveResourcesInfo().join(' '));
})();
EOP
	is(system("node '$place/end.js' >'$place/end' 2>&1"), 0, 'a program that ends by itself');
	is(slurp_file("$place/end"), '', 'what keeps it from ending');
	return;
}

# What programs in TypeScript see of it.
sub test_types
{
	foreach my $kind (qw(ts mts))
	{
		append_to_file("$place/program.$kind", slurp_file("$top/test/clients/types.ts"));
		is( system("cd '$place' && node_modules/.bin/tsc --strict --noEmit --skipLibCheck false --target es2022 --lib es2022,esnext.disposable "
				  . "--module node16 --moduleResolution node16 --preserveSymlinks --types node program.$kind >&2"),
			0, "tsc --strict: program.$kind");
	}
	is(system("cd '$place' && node --input-type=module -e 'import { connect, LeaseLost } from \"dlock\"; connect; LeaseLost'"), 0, 'as an ES module');
	return;
}
