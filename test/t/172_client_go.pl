# The Go client (src/clients/go), with pgx and with lib/pq.
#
# The oldest and the newest version are enough.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";

use DLockClient;
use DLockTest;
use File::Copy;
use File::Path qw(make_path);
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/go";
my $shared = '/usr/share/gocode';

client_missing('go with pgx 4 and lib/pq')
  if system('go version >/dev/null 2>&1') != 0 ||
  grep { !-d "$shared/src/github.com/$_" } qw(jackc/pgx/v4/stdlib lib/pq);

# Debian's way: no modules, and sources where its packages put them.
$ENV{GO111MODULE} = 'off';
$ENV{GOPATH} = "$place:$shared";
$ENV{GOCACHE} = "$place/cache";
foreach my $module ("$place/src/dlock", "$place/src/example.org/job/dlock")
{
	make_path($module);
	copy("$top/src/clients/go/dlock.go", "$module/dlock.go") or die "$module: $!";
}
is(system('go', 'vet', 'dlock'), 0, 'go vet finds no fault with it');
is(system('go', 'build', '-o', "$place/client", "$top/test/clients/client.go"), 0, 'it compiles');

my $node = start_node('main');
foreach my $driver (qw(pgx postgres))
{
	client_program($node, "$place/client", $driver);
	client_tests($driver, borrows => 1, strict => $driver eq 'postgres', asks_again => 1);

	# Work that tidies up after a cancel of the caller's is under the lease still.
	my $run = DLockClient::run(do => 'linger', ttl_ms => 120_000, where => 'roomy');
	like($run->{out}, qr/^token \S+ until \S+\ndone\n\z/, "$driver: renewed until the work has returned") or diag($run->{err});
}
client_examples('go', 1, 'go', 'run', 'example.go');
client_test_large_tokens();
done_testing();
