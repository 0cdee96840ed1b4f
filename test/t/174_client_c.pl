# The C client (src/clients/c).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";

use DLockClient;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/c";

mkdir $place or die "$place: $!";
chomp(my ($include, $lib) = map { scalar `$ENV{PG_CONFIG} --$_` } qw(includedir libdir));
my @cc = ('cc', '-std=gnu11', '-O2', '-g', '-Wall', '-Wextra', "-I$top/src/clients/c", "-I$include", "$top/src/clients/c/dlock.c");
my @libs = ("-L$lib", "-Wl,-rpath,$lib", '-lpq', '-pthread');
is(system(@cc, '-Werror', '-o', "$place/client", "$top/test/clients/client.c", @libs), 0, 'it compiles');

my $node = start_node('main');
client_program($node, "$place/client");
client_tests('c');

# Not the default ttl of the server, of which the client would know nothing.
like(DLockClient::run(do => 'try', ttl_ms => '9223372036854775807')->{out}, qr/^error 22\d+\n\z/, 'no ttl without an end');

like(DLockClient::run(do => 'try', owner => "\xe2\x82\xac" x 100)->{out}, qr/^done\n/m, 'a long owner is cut between characters');

# An example is a program: compiled, and run.
append_to_file("$place/run", <<"EOC");
@cc -o '$place/example' "\$1" @libs && exec '$place/example'
EOC
client_examples('c', 1, 'sh', "$place/run", 'example.c');
client_test_large_tokens();
done_testing();
