# The Java client (src/clients/java), and its LockProvider for ShedLock.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockBeside;
use DLockCli;
use DLockClient;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/java";
my $jdbc = '/usr/share/java/postgresql.jar';

client_missing('a Java compiler with the JDBC driver of PostgreSQL')
  if system('javac -version >/dev/null 2>&1') != 0 || !-f $jdbc;

$ENV{CLASSPATH} = "$place:$jdbc";
delete $ENV{JAVA_TOOL_OPTIONS};
mkdir $place or die "$place: $!";
is(system('javac', '-Xlint:all,-serial', '-Werror', '-d', $place,
		glob("$top/src/clients/java/*.java $top/test/clients/shedlock/net/javacrumbs/shedlock/core/*.java $top/test/clients/Client.java")),
	0, 'it compiles');

# The driver knows no other way than TCP.
my @server = (conf => "listen_addresses = '127.0.0.1'");
my $node = start_node('main', @server);
client_program($node, 'java', '-XX:TieredStopAtLevel=1', 'Client');
cli_is([ { program => 'java' }, 'Client', 'do=shedlock' ],
	{ out => "held by another: true\nused up\nnot extended\nheld for a while: true\ndone\n" }, 'ShedLock');
$node->safe_psql('postgres', "SELECT dlock_force_release('shed', 'test') FROM generate_series(1, 2)");
beside(client_tests('java', borrows => 1, checks => 1, asks_again => 1, server => \@server));
my $run = DLockClient::run(do => 'outlast', where => 'roomy');
like($run->{out}, qr/^token \S+ until \S+\nnot committed\nnot begun\ndone\n\z/, 'a transaction that outlasts the lease') or diag($run->{err});

# The lease ends with the block, whatever onLost does.
$run = DLockClient::start(do => 'close', where => 'roomy');
DLockClient::token_of($run);
$node->safe_psql('postgres', "SELECT dlock_force_release('job', 'test')");
$run->finish;
like($run->{out}, qr/^on_lost\ngoes on\nlost left /m, 'onLost closes the lease: the block tells why it ended') or diag($run->{err});

# A process that can start no thread still stops its work in time, whatever onLost of another
# lease does.
$run = DLockClient::run(do => 'threadless', ttl_ms => 3000, where => 'roomy');
like($run->{out}, qr/^on_lost\nunreachable left /m, 'no threads: the work is stopped, and told') or diag($run->{err});
$node->safe_psql('postgres', "SELECT dlock_force_release('job', 'test') FROM generate_series(1, 2)");

# Requests that find no connection keep no thread.
$run = DLockClient::run(do => 'exhaust', ttl_ms => 3000);
like($run->{out}, qr/^on_lost\nnobody waits\nunreachable left /m, 'no connections: the work is stopped, and no thread is left') or diag($run->{err});
$node->safe_psql('postgres', "SELECT dlock_force_release('job', 'test') FROM generate_series(1, 2)");

$ENV{JDBC_URL} = "jdbc:postgresql://127.0.0.1:$ENV{PGPORT}/postgres?user=$ENV{PGUSER}";
client_examples('java', 1, 'java', '-XX:TieredStopAtLevel=1', 'Example.java');
client_test_large_tokens();
done_testing();
