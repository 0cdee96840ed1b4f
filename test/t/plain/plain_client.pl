# Proves: the libraries for programs do over the plain edition what test/clients/scenarios.json says, but
# for what needs the extension; over restarts, crashes, lost answers, and behind PgBouncer in transaction mode, too;
# for a role that has no privilege but to create in a schema of its own.
# A landing runs most of that for C, and for Node where it is; a nightly run all of it for each language that is here.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockBeside;
use DLockCli;
use DLockClient;
use DLockNode;
use DLockPlain;
use DLockProxy;
use DLockScenario;
use DLockTest;
use File::Path qw(make_path);
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/plain_clients";
my $nightly = ($ENV{DLOCK_RING} // '') eq 'nightly';

make_path("$place/go/src/example.org", "$place/c", "$place/java");
client_server(undef);
beside(map { my ($name, @agent) = @$_; $name => sub { test_client($name, @agent) } } node(), c(), $nightly ? (python(), go(), java()) : ());
done_testing();

# With a server of its own.
sub test_client
{
	my ($name, @agent) = @_;

	# A driver knows no other way than TCP.
	my $node = start_plain_node($name =~ s/\W/_/gr, conf => "listen_addresses = '127.0.0.1'");
	use_server($node);
	my $proxy = DLockProxy->start($node);

	run_scenarios($name, $_, $node, $proxy, @agent) foreach qw(server places), $name eq 'c' ? 'c' : (), $name =~ /^(?:c|python)\b/ ? 'commit' : ();
	run_pooler_scenarios($name, $node, $proxy, @agent);
	{
		local @ENV{qw(PGHOST PGPORT)} = @$proxy{qw(host port)};
		my @more = $name eq 'python sync' ? () : $nightly ? qw(again late undo) : 'again';
		run_scenarios($name, $_, $node, $proxy, @agent) foreach 'turns', @more, $nightly ? 'proxy' : ();
	}
	{
		local $ENV{DLOCK_SCENARIO} = $nightly ? '' : 'a restart|a crash';
		run_scenarios($name, 'faults', $node, $proxy, @agent);
	}
	run_scenarios($name, 'last', $node, $proxy, @agent) if $nightly;
	$proxy->stop;
	$node->stop('immediate');
	return;
}

# ---------------------------------------------------------------------------
# The programs of the scenarios: name and command
# ---------------------------------------------------------------------------

sub node
{
	return if ($ENV{DLOCK_CLIENTS} // '') ne '1' && system('node --version >/dev/null 2>&1') != 0;
	DLockNode::prepare("$place/node", 'kysely@0.27');
	return [ 'node', 'node', "$top/test/clients/session.js" ];
}

sub python
{
	my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';

	return if system("$python -c 'import psycopg, psycopg_pool' 2>/dev/null") != 0;
	@ENV{qw(PYTHONDONTWRITEBYTECODE PYTHONPATH)} = (1, "$top/src/clients/python");
	return map { [ "python $_", $python, "$top/test/clients/session.py", $_ ] } qw(sync async);
}

sub go
{
	my $shared = '/usr/share/gocode';
	my $pgx = -d "$shared/src/github.com/jackc/pgx/v5" ? 5 : 4;

	return if system('go version >/dev/null 2>&1') != 0 || !-d "$shared/src/github.com/jackc/pgx/v$pgx";
	@ENV{qw(GO111MODULE GOPATH GOCACHE)} = ('off', "$place/go:$shared", "$place/go/cache");
	symlink "$top/src/clients/go", "$place/go/src/example.org/dlock" or die "dlock: $!";
	is(system("cd '$top' && go build -o $place/go/client test/clients/session.go test/clients/drivers_v$pgx.go >&2"), 0, 'the program in Go compiles');
	return ([ 'go pgx', "$place/go/client", $pgx == 5 ? 'pgx5' : qw(pgx own statement_cache_mode=describe) ], [ 'go postgres', "$place/go/client", qw(postgres pool binary_parameters=yes) ]);
}

sub c
{
	chomp(my ($include, $lib) = map { scalar `$ENV{PG_CONFIG} --$_` } qw(includedir libdir));
	is(system("cc -std=gnu11 -O1 -pthread -I$include -I$top/src/clients/c -o $place/c/client $top/test/clients/session.c $top/src/clients/c/*.c -L$lib -Wl,-rpath,$lib -lpq >&2"),
		0, 'the program in C compiles');
	return [ 'c', "$place/c/client" ];
}

sub java
{
	my $jdbc = '/usr/share/java/postgresql.jar';

	return if system('javac -version >/dev/null 2>&1') != 0 || !-f $jdbc;
	delete $ENV{JAVA_TOOL_OPTIONS};
	$ENV{CLASSPATH} = "$place/java:$jdbc";
	is(system('javac', '-d', "$place/java", glob "$top/src/clients/java/src/main/java/dlock/*.java $top/test/clients/{Scenarios,Json,Pool}.java"), 0, 'the program in Java compiles');
	return [ 'java', 'java', '-XX:TieredStopAtLevel=1', 'Scenarios', 'plain' ];
}
