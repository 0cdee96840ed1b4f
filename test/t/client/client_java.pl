# Proves: the library for Java (src/clients/java) does what test/clients/scenarios.json says, with a source that is a
# pool and one that is not, over outages, losses, poolers and misuse; and so does its LockProvider for ShedLock.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockBeside;
use DLockCli;
use DLockClient;
use DLockScenario;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/java";
my $jdbc = '/usr/share/java/postgresql.jar';
my $library = "$top/src/clients/java";
my @java = ('java', '-XX:TieredStopAtLevel=1');

client_missing('a Java compiler with the JDBC driver of PostgreSQL')
  if system('javac -version >/dev/null 2>&1') != 0 || !-f $jdbc;

delete $ENV{JAVA_TOOL_OPTIONS};
mkdir $place or die "$place: $!";
my @sources = glob("$library/src/main/java/dlock/*.java");
is(system('javac', '--release', 17, '-Xlint:all', '-Werror', '-d', $place, @sources), 0, 'it needs nothing but Java');
$ENV{CLASSPATH} = "$place:$jdbc";
is( system(
		'javac', '-Xlint:all', '-Werror', '-d', $place,
		glob("$library/shedlock/src/main/java/dlock/shedlock/*.java $top/test/clients/shedlock/net/javacrumbs/shedlock/core/*.java"),
		glob("$library/src/test/java/dlock/*.java $top/test/clients/*.java")),
	0,
	'so does its provider for ShedLock, and the programs of the tests compile');
is(system(@java, 'dlock.SessionTest'), 0, 'what needs no server');

# The driver knows no other way than TCP.
my @server = (conf => "listen_addresses = '127.0.0.1'");
$ENV{PGUSER} = getpwuid $>;
my $nightly = ($ENV{DLOCK_RING} // '') eq 'nightly';
beside(
	pool => sub { test_source('pool') },
	trouble => \&test_trouble,
	$nightly ? (plain => sub { test_source('plain') }) : ());
done_testing();

sub start_server
{
	my ($name) = @_;
	my $server = start_node($name, @server);
	my $hba = $server->data_dir . '/pg_hba.conf';
	my $rules = slurp_file($hba);

	unlink $hba;
	append_to_file($hba, "host all stranger 127.0.0.1/32 scram-sha-256\n$rules");
	$server->reload;
	use_server($server);
	return $server;
}

sub test_source
{
	my ($source) = @_;
	my $server = start_server($source);
	my @program = (@java, 'Scenarios', $source);
	my $proxy = scenario_servers($server);

	run_all_scenarios("java, $source", $server, $proxy, @program);
	run_pooler_scenarios("java, $source", $server, $proxy, @program);
	{
		local @ENV{qw(PGHOST PGPORT)} = @$proxy{qw(host port)};
		run_scenarios("java, $source", $_, $server, $proxy, @program) foreach qw(turns again overdue undo late);
	}
	run_scenarios("java, $source", 'last', $server, $proxy, @program);
	$proxy->stop;
	$server->stop('immediate');
	return;
}

sub test_trouble
{
	my $server = start_server('trouble');

	foreach my $topic (qw(results loss transactions tellers owners deadlock errors cancels silence closing told threadless exhaust misuse shedlock))
	{
		cli_is([ { program => 'java' }, @java[ 1 .. $#java ], 'Trouble', $topic ], {}, $topic);
	}
	$server->stop('immediate');
	return;
}
