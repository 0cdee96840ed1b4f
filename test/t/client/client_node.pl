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
client_program($node, 'none');

my $proxy = scenario_servers($node);
run_all_scenarios('node', $node, $proxy, @agent);
run_pooler_scenarios('node', $node, $proxy, @agent);
test_types() if $npm;
{
	client_examples('js', 0, 'node', 'example.js');
	client_long_examples('javascript', 'node', 'node');
}
run_scenarios('node', 'last', $node, $proxy, @agent);
is(system('node', "$top/test/clients/bare.js"), 0, 'what needs no server');
$proxy->stop;
done_testing();

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
