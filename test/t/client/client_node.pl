# Proves: the library for Node (src/clients/node) does what test/clients/scenarios.json says, over
# outages, losses, poolers and misuse, and is an npm package with types.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockClient;
use DLockNode;
use DLockPooler;
use DLockProxy;
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

my $proxy = DLockProxy->start($node);
$node->safe_psql('postgres', "CREATE ROLE stranger LOGIN PASSWORD 'right'");
my $hba = slurp_file($node->data_dir . '/pg_hba.conf');
unlink $node->data_dir . '/pg_hba.conf';
append_to_file($node->data_dir . '/pg_hba.conf', "local all stranger scram-sha-256\n$hba");
$node->reload;
$node->safe_psql('postgres', 'CREATE DATABASE apart');
$node->safe_psql('apart', 'CREATE SCHEMA "a b"; CREATE EXTENSION dlock SCHEMA "a b"');
$node->safe_psql('postgres', 'CREATE DATABASE old');
$node->safe_psql('old', 'CREATE EXTENSION dlock');
$node->safe_psql('old', 'ALTER EXTENSION dlock DROP FUNCTION dlock_release_each; DROP FUNCTION dlock_release_each');
run_scenarios('node', $_, $node, $proxy, @agent) foreach qw(server schema places none old password nowhere faults);
{
	local @ENV{qw(PGHOST PGPORT)} = ($proxy->{host}, $proxy->{port});
	run_scenarios('node', 'proxy', $node, $proxy, @agent);
}
test_pooler();
test_types() if $npm;
{
	client_examples('js', 0, 'node', 'example.js');
	test_long_examples();
}
run_scenarios('node', 'last', $node, $proxy, @agent);
is(system('node', "$top/test/clients/bare.js"), 0, 'what needs no server');
$proxy->stop;
done_testing();

# Programs that run until they are told to end.
sub test_long_examples
{
	my @examples = slurp_file("$top/src/clients/node/README.md") =~ /^```javascript\n(.*?)^```$/msg;
	my @says = (qr/leads, with token \d+/, qr/done: one/);
	my @ends = (qr/resigns\n\z/, qr/done: one\n\z/);

	$node->safe_psql('postgres', "CREATE TABLE sent (key text); SELECT dlock_queue_create('mail'); SELECT dlock_task_put('mail', 'one')");
	is(scalar @examples, scalar @says, 'programs in its README that run on');
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

sub test_pooler
{
  SKIP:
	{
		skip 'pgbouncer is not installed', 1 unless DLockPooler::is_installed();
		my $pooler = DLockPooler->start($node);
		{
			local @ENV{qw(PGHOST PGPORT)} = @$pooler{qw(host port)};
			run_scenarios('node', 'pooler', $node, $proxy, @agent);
		}
		$pooler->stop;
	}
	return;
}
