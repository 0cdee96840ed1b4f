# The Go client (src/clients/go), with pgx and with lib/pq.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockBeside;
use DLockClient;
use DLockTest;
use File::Copy;
use File::Path qw(make_path);
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
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

my @parts;
foreach my $driver (qw(pgx postgres))
{
	client_program(undef, "$place/client", $driver);
	push @parts, client_tests($driver, borrows => 1, strict => $driver eq 'postgres', asks_again => 1);
	push @parts, client_part("$driver: what Go alone has", sub {
		my ($node) = @_;

		# Work that tidies up after a cancel of the caller's is under the lease still.
		my $run = DLockClient::run(do => 'linger', ttl_ms => 120_000, where => 'roomy');
		like($run->{out}, qr/^token \S+ until \S+\ndone\n\z/, "$driver: renewed until the work has returned") or diag($run->{err});

		client_test_give_up_connecting($driver);

		$run = DLockClient::run(do => 'late', where => 'roomy', sql => 'CREATE TABLE late ()');
		like($run->{out}, qr/^token .*\nlost true true true\ndone\n\z/, "$driver: transactions after the work: refused") or diag($run->{err});
		is($node->safe_psql('postgres', "SELECT to_regclass('late')"), '', "$driver: transactions after the work: rolled back");

		$run = DLockClient::start(do => 'fail', where => 'roomy', ttl_ms => 120_000);
		DLockClient::token_of($run);
		$node->safe_psql('postgres', "SELECT dlock_force_release('job', 'test')");
		like($run->finish->{out}, qr/^on_lost\nfailed\nlost left /m, "$driver: the error of work that was stopped is kept") or diag($run->{err});
		like($run->{err}, qr/^dlock: the lease on "job" is lost; the work failed: half done$/m, "$driver: it is told");

		# With one processor the work asks before the timer looks.
		{
			local $ENV{GOMAXPROCS} = 1;
			$run = DLockClient::start(do => 'ask', where => 'roomy', ttl_ms => 3000);
			DLockClient::token_of($run);
			$node->safe_psql('postgres', 'ALTER FUNCTION dlock_renew_token RENAME TO away');
			$run->finish;
			$node->safe_psql('postgres', 'ALTER FUNCTION away RENAME TO dlock_renew_token');
		}
		like($run->{out}, qr/^on_lost\nthe work goes on\nunreachable left /m, "$driver: work that asks does not wait for OnLost") or diag($run->{err});
	});
}
beside(@parts);

my $node = start_node('main');
client_program($node, "$place/client", 'pgx');
client_examples('go', 1, 'go', 'run', 'example.go');
client_test_large_tokens();
done_testing();
