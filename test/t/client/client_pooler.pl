# Proves: the examples of the clients in C and Java run behind PgBouncer in transaction mode,
# with the settings that doc/reference/clients.md names.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockClient;
use DLockTest;
use File::Path qw(make_path);
use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/pooler";
my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/sbin';
my $jdbc = '/usr/share/java/postgresql.jar';

plan skip_all => 'pgbouncer is needed' unless defined $pgbouncer;
client_missing('a Java compiler with the JDBC driver of PostgreSQL')
  if system('javac -version >/dev/null 2>&1') != 0 || !-f $jdbc;
make_path($place);
my $node = start_node('main');
client_program($node, 'none');
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $port = PostgreSQL::Test::Cluster::get_free_port();
append_to_file("$dir/users", qq("$ENV{PGUSER}" ""\n));
append_to_file("$dir/ini", <<"EOC");
[databases]
postgres = host=@{[ $node->host ]} port=@{[ $node->port ]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir = $dir
auth_type = trust
auth_file = $dir/users
pool_mode = transaction
default_pool_size = 2
ignore_startup_parameters = extra_float_digits
EOC
my $run = DLockCli->start({ program => $pgbouncer }, "$dir/ini");
ok(wait_until(sub { $run->ended || IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port") }) && !$run->ended, 'PgBouncer is there') or diag($run->err);
@ENV{qw(PGHOST PGPORT)} = ($dir, $port);

# C
chomp(my ($include, $lib) = map { scalar `$ENV{PG_CONFIG} --$_` } qw(includedir libdir));
append_to_file("$place/run", <<"EOC");
cc -I$top/src/clients/c -I$include $top/src/clients/c/dlock.c -o '$place/example' "\$1" -L$lib -Wl,-rpath,$lib -lpq -pthread && exec '$place/example'
EOC
client_examples('c', 1, 'sh', "$place/run", 'example.c');
$node->safe_psql('postgres', 'DROP TABLE report');

# Java
$ENV{CLASSPATH} = "$place:$jdbc";
delete $ENV{JAVA_TOOL_OPTIONS};
is(system('javac', '-d', $place, "$top/src/clients/java/Dlock.java"), 0, 'it compiles');
$ENV{JDBC_URL} = "jdbc:postgresql://127.0.0.1:$port/postgres?user=$ENV{PGUSER}&prepareThreshold=0";
client_examples('java', 1, 'java', '-XX:TieredStopAtLevel=1', 'Example.java');

$run->signal('INT');
$run->finish;
done_testing();
