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
	examples => \&test_examples,
	maven => \&test_maven,
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

# Maven makes a library of it, from what Debian packages.
sub test_maven
{
	my $repository = '/usr/share/maven-repo';
	my $project = "$place/maven";
	local $ENV{MAVEN_OPTS} = $java[1];

  SKIP:
	{
		skip 'Maven and its plugins are not installed', 3
		  unless client_tool('Maven', 'mvn --version') &&
		  client_tool('a plugin of Maven', "cd $repository/org/apache/maven/plugins && ls " . join ' ', map { "maven-$_-plugin" } qw(compiler jar resources surefire));
		is(system("cp -r '$library' '$project' && cp -rs '$repository' '$project/repository'"), 0, 'a copy of the project');
		append_to_file("$project/settings.xml", "<settings><localRepository>$project/repository</localRepository></settings>");
		is(system("cd '$project' && mvn -o -q -s settings.xml package >&2"), 0, 'mvn package');
		is( system(
				'javac', '-cp', "$project/target/dlock-1.0.0.jar:$jdbc",
				'-d', "$project/client", map { "$top/test/clients/$_.java" } qw(Scenarios Pool Json)),
			0, 'what it makes is the library');
	}
	return;
}

# The programs of its README, each as a file of its own.
sub test_examples
{
	my $server = start_server('examples');

	$ENV{JDBC_URL} = "jdbc:postgresql://127.0.0.1:$ENV{PGPORT}/postgres?user=$ENV{PGUSER}";
	client_server($server);
	client_examples('java', 1, @java, 'Example.java');
	client_nightly_job($server, @java, "$library/example/NightlyJob.java");

	# Those that run until they are told to end are marked as "Java".
	my @examples = slurp_file("$library/README.md") =~ /^```Java\n(.*?)^```$/msg;
	my @says = (qr/leads, with token \d+/, qr/done: one/);
	my @ends = (qr/resigns\n\z/, qr/done: one\n\z/);
	is(scalar @examples, scalar @says, 'programs in its README that run on');
	foreach my $i (0 .. $#says)
	{
		append_to_file("$place/Long$i.java", $examples[$i]);
		my $run = DLockCli->start({ program => 'java' }, @java[ 1 .. $#java ], "$place/Long$i.java");
		$run->wait_out($says[$i]);
		$run->signal('TERM');
		$run->finish;

		# As Java ends by this signal.
		is("$run->{signal}.$run->{code}", '0.143', "program $i ends when it is told to") or diag($run->{err});
		like($run->{out}, $ends[$i], "program $i: what it says");
	}
	is($server->safe_psql('postgres', "SELECT (SELECT string_agg(key, '') FROM sent), count(*) FROM dlock_tasks WHERE state = 'done'"),
		'one|1', 'the task is done');
	is($server->safe_psql('postgres', 'SELECT count(*) FROM dlock_leases'), 0, 'nothing is left');
	$server->stop('immediate');
	return;
}
