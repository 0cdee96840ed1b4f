# Proves: the examples of the clients in C and Java run behind PgBouncer in transaction mode,
# with the settings that doc/reference/clients.md names.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClient;
use DLockPooler;
use DLockTest;
use File::Path qw(make_path);
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/pooler";
my $jdbc = '/usr/share/java/postgresql.jar';

plan skip_all => 'pgbouncer is needed' unless DLockPooler::is_installed();
client_missing('a Java compiler with the JDBC driver of PostgreSQL')
  if system('javac -version >/dev/null 2>&1') != 0 || !-f $jdbc;
make_path($place);
my $node = start_node('main');
client_program($node, 'none');
my $pooler = DLockPooler->start($node);
@ENV{qw(PGHOST PGPORT)} = @$pooler{qw(host port)};

# C
chomp(my ($include, $lib) = map { scalar `$ENV{PG_CONFIG} --$_` } qw(includedir libdir));
append_to_file("$place/run", <<"EOC");
cc -std=gnu11 -I$top/src/clients/c -I$include $top/src/clients/c/*.c -o '$place/example' "\$1" -L$lib -Wl,-rpath,$lib -lpq -pthread && exec '$place/example'
EOC
client_examples('c', 1, 'sh', "$place/run", 'example.c');
$node->safe_psql('postgres', 'DROP TABLE report');

# Java
$ENV{CLASSPATH} = "$place:$jdbc";
delete $ENV{JAVA_TOOL_OPTIONS};
is(system('javac', '-d', $place, "$top/src/clients/java/Dlock.java"), 0, 'it compiles');
$ENV{JDBC_URL} = "jdbc:postgresql://127.0.0.1:$pooler->{port}/postgres?user=$ENV{PGUSER}&prepareThreshold=0";
client_examples('java', 1, 'java', '-XX:TieredStopAtLevel=1', 'Example.java');

$pooler->stop;
done_testing();
