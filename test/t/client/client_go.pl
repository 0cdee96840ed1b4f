# Proves: the module for Go (src/clients/go) does what test/clients/scenarios.json says, with each driver that is here, over
# outages, losses, poolers and misuse.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockBeside;
use DLockCli;
use DLockClient;
use DLockScenario;
use DLockTest;
use File::Path qw(make_path);
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/go";
my $shared = '/usr/share/gocode';
my $pgx = -d "$shared/src/github.com/jackc/pgx/v5" ? 5 : 4;

client_missing('go with pgx and lib/pq')
  if system('go version >/dev/null 2>&1') != 0 ||
  grep { !-d "$shared/src/github.com/$_" } "jackc/pgx/v$pgx/stdlib", 'lib/pq';

# Debian's way: no modules, and sources where its packages put them.
$ENV{GO111MODULE} = 'off';
$ENV{GOPATH} = "$place:$shared";
make_path("$place/src/example.org");
symlink "$top/src/clients/go", "$place/src/example.org/dlock" or die "dlock: $!";

my $package = 'example.org/dlock' . ($pgx == 5 ? ' example.org/dlock/pgx5' : '');
is(run_in("$top/src/clients/go", 'test -z "$(gofmt -l .)"'), 0, 'it is formatted');
is(run_in($top, "go vet $package"), 0, 'go vet finds no fault with it');
my $nightly = ($ENV{DLOCK_RING} // '') eq 'nightly';
is(run_in($top, 'go test' . ' -race' x $nightly . ' example.org/dlock'), 0, 'what needs no server');
is(run_in($top, "go build -o $place/client test/clients/session.go test/clients/drivers_v$pgx.go"), 0, 'the program of the scenarios compiles');
SKIP:
{
	skip 'staticcheck is not installed', 1 unless client_tool('staticcheck', 'go-staticcheck -version');
	is(run_in($top, "go-staticcheck $package"), 0, 'nor does staticcheck');
}

my @drivers = ($pgx == 5 ? 'pgx5' : (), 'pgx own', 'postgres pool binary_parameters=yes');
beside(map { my $driver = $_; $driver => sub { test_driver($driver) } } @drivers);

done_testing();

# The status of a command; what it says goes to the log.
sub run_in
{
	my ($dir, $command) = @_;
	return system("cd '$dir' && { $command; } >&2");
}

sub test_driver
{
	my ($driver) = @_;
	my $server = start_node($driver =~ s/\W/_/gr);
	my @agent = ("$place/client", split / /, $driver);

	use_server($server);
	$ENV{PGUSER} = getpwuid $>;
	my $proxy = scenario_servers($server);
	my $prepared = qr/execute \w+: SELECT \S*dlock_acquire_each/;

	# What differs between drivers is asked in these groups; all of them are for a nightly run.  A landing has pgx 5 on another
	# version of the server than the one that all groups are for.
	if (!$nightly && ($driver =~ /^postgres/ || $pgx == 5))
	{
		run_scenarios("go, $driver", $_, $server, $proxy, @agent) foreach qw(server encoding places);
	}
	else
	{
		$server->safe_psql('postgres', q{ALTER DATABASE postgres SET log_statement = 'all'}) if $driver eq 'pgx5';
		run_all_scenarios("go, $driver", $server, $proxy, @agent);
		like(slurp_file($server->logfile), $prepared, "$driver: statements are prepared") if $driver eq 'pgx5';
		my $log_end = -s $server->logfile;
		push @agent, $pgx == 5 ? 'default_query_exec_mode=exec' : 'statement_cache_mode=describe' if $driver eq 'pgx own';
		run_pooler_scenarios("go, $driver", $server, $proxy, @agent);
		unlike(slurp_file($server->logfile, $log_end), $prepared, "$driver: not by way of a pooler") if $driver eq 'pgx5';
		local @ENV{qw(PGHOST PGPORT)} = ($proxy->{host}, $proxy->{port});
		run_scenarios("go, $driver", $_, $server, $proxy, @agent) foreach qw(again late undo overdue);
	}
	run_scenarios("go, $driver", 'turns', $server, $proxy, @agent);
	run_scenarios("go, $driver", 'last', $server, $proxy, @agent);
	$proxy->stop;
	$server->stop('immediate');
	return;
}
