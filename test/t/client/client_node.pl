# Proves: the library for Node (src/clients/node) does what test/clients/scenarios.json says, over
# outages, losses, poolers and misuse, and is an npm package with types.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockClient;
use DLockProxy;
use DLockScenario;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/node";
my @agent = ('node', "$top/test/clients/session.js");

client_missing('node') if system('node --version >/dev/null 2>&1') != 0;
mkdir $place or die "$place: $!";

# As a program has it: npm writes to what is its own alone.
sub npm { return system("cd '$place' && HOME='$place' npm --no-audit --no-fund --silent --cache '$place/npm' @_ >&2") == 0 }

# From npm if that is here, or else the driver of the system.
my $npm = system('npm --version >/dev/null 2>&1') == 0 && $ENV{DLOCK_CLIENTS};
if ($npm)
{
	append_to_file("$place/package.json", '{}');
	ok(npm('install', "$top/src/clients/node", 'pg@8', 'kysely@0.27', 'typescript@5', '@types/pg@8', '@types/node@20'), 'npm install');
	ok(npm('pack', "$top/src/clients/node") && -f "$place/dlock-1.0.0.tgz", 'npm pack');
}
else
{
	mkdir "$place/node_modules";
	symlink "$top/src/clients/node", "$place/node_modules/dlock" or die "dlock: $!";
}
$ENV{NODE_PATH} = "$place/node_modules:" . ($ENV{NODE_PATH} // '/usr/share/nodejs');
if (system("cd $place && node -e 'require(\"pg\")' 2>/dev/null") != 0)
{
	client_missing('the driver pg of node');
}

my $node = start_node('main');
client_program($node, 'none');

my $proxy = DLockProxy->start($node);
scenario_server($node);
run_scenarios('node', $_, $node, $proxy, @agent) foreach qw(server schema encoding none old password nowhere faults);
run_scenarios('node', 'places', $node, $proxy, @agent)
  if $node->safe_psql('postgres', "SELECT count(*) FROM pg_proc WHERE proname = 'dlock_take'");
{
	local @ENV{qw(PGHOST PGPORT)} = ($proxy->{host}, $proxy->{port});
	run_scenarios('node', 'proxy', $node, $proxy, @agent);
}
with_pooler($node, sub { run_scenarios('node', 'pooler', $node, $proxy, @agent) });
test_types() if $npm;
{
	client_examples('js', 1, 'node', 'example.js');
	test_long_examples();
}
run_scenarios('node', 'last', $node, $proxy, @agent);
is(system('node', "$top/test/clients/bare.js"), 0, 'what needs no server');
$proxy->stop;
done_testing();

# Programs that run until they are told to end.
sub test_long_examples
{
	my @examples = slurp_file("$top/doc/clients.md") =~ /^```javascript\n(.*?)^```$/msg;
	my @says = (qr/leads, with token \d+/, qr/done: one/);
	my @ends = (qr/resigns\n\z/, qr/done: one\n\z/);

	$node->safe_psql('postgres', "CREATE TABLE sent (key text); SELECT dlock_queue_create('mail'); SELECT dlock_task_put('mail', 'one')");
	is(scalar @examples, scalar @says, 'programs in doc/clients.md that run on');
	foreach my $i (0 .. $#says)
	{
		append_to_file("$place/long$i.js", $examples[$i]);
		my $run = DLockCli->start({ program => 'node' }, "$place/long$i.js");
		$run->wait_out($says[$i]);
		$run->signal('TERM');
		$run->finish;
		is("$run->{signal}.$run->{code}", '0.0', "program $i ends when it is told to") or diag($run->{err});
		like($run->{out}, $ends[$i], "program $i: what it says");
	}
	is($node->safe_psql('postgres', "SELECT (SELECT string_agg(key, '') FROM sent), count(*) FROM dlock_tasks WHERE state = 'done'"),
		'one|1', 'the task is done');
	$node->safe_psql('postgres', "SELECT dlock_queue_drop('mail')");
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
