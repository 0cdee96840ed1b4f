# Proves: the example of the client in C runs behind PgBouncer in transaction mode.

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

plan skip_all => 'pgbouncer is needed' unless DLockPooler::is_installed();
make_path($place);
my $node = start_node('main');
client_server($node);
my $pooler = DLockPooler->start($node);
@ENV{qw(PGHOST PGPORT)} = @$pooler{qw(host port)};

chomp(my ($include, $lib) = map { scalar `$ENV{PG_CONFIG} --$_` } qw(includedir libdir));
append_to_file("$place/run", <<"EOC");
cc -std=gnu11 -I$top/src/clients/c -I$include $top/src/clients/c/*.c -o '$place/example' "\$1" -L$lib -Wl,-rpath,$lib -lpq -pthread && exec '$place/example'
EOC
client_examples('c', 1, 'sh', "$place/run", 'example.c');

$pooler->stop;
done_testing();
