# Proves: the module for Go (src/clients/go) does what test/clients/scenarios.json says, with each driver that is here, over
# outages, losses, poolers and misuse; and can be had by "go get".

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockBeside;
use DLockCli;
use DLockClient;
use DLockScenario;
use DLockTest;
use File::Copy;
use File::Path qw(make_path);
use IO::Compress::Zip qw(zip $ZipError);
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
$ENV{GOCACHE} = "$place/cache";
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
test_module();

my @drivers = ($pgx == 5 ? 'pgx5' : (), 'pgx own', 'postgres pool binary_parameters=yes');
beside(map { my $driver = $_; $driver => sub { test_driver($driver) } } @drivers);

my $node = start_node('main');
use_server($node);
$ENV{PGUSER} = getpwuid $>;
test_examples();
done_testing();

# The status of a command; what it says goes to the log.
sub run_in
{
	my ($dir, $command) = @_;
	return system("cd '$dir' && { $command; } >&2");
}

# A program in a module of its own gets it by path and version, from a proxy as there are.
sub test_module
{
	my ($name, $version) = ('example.org/dlock', 'v1.0.0');
	my $versions = "$place/proxy/$name/\@v";
	my $packed = "$place/packed/$name\@$version";
	local %ENV = (%ENV, GO111MODULE => 'on', GOPATH => "$place/modules", GOFLAGS => '-modcacherw', GOPROXY => "file://$place/proxy", GOSUMDB => 'off');

	make_path($versions, $packed, "$place/job");
	append_to_file("$versions/list", "$version\n");
	append_to_file("$versions/$version.info", qq({"Version": "$version", "Time": "2026-01-01T00:00:00Z"}));
	append_to_file("$versions/$version.mod", slurp_file("$top/src/clients/go/go.mod"));
	copy($_, $packed) or die "$_: $!" foreach grep { -f } glob "$top/src/clients/go/*";
	zip([ glob "$packed/*" ] => "$versions/$version.zip", FilterName => sub { s{^\Q$place\E/packed/}{} }) or die "zip: $ZipError";
	append_to_file("$place/job/main.go", <<'EOC');
package main

import "example.org/dlock"

func main() {
	if _, err := dlock.Open("none", ""); err == nil {
		panic("there is no such driver")
	}
}
EOC
	is(run_in("$place/job", "go mod init example.org/job && go get $name\@$version && go run ."), 0, 'go get');
	return;
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

	# What differs between drivers is asked in these groups; all of them are for a nightly run.
	if ($driver =~ /^postgres/ && !$nightly)
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

# The programs of its README, with the driver that they name if it is here; or else, where they need no more of it than to be
# registered, an older one under its name.
sub test_examples
{
	my $stand_in = "$place/src/github.com/jackc/pgx/v5/stdlib";
	my $run_at = 0;

	if ($pgx != 5)
	{
		make_path($stand_in);
		append_to_file("$stand_in/stdlib.go", qq(package stdlib\n\nimport _ "github.com/jackc/pgx/v4/stdlib"\n));
	}
	client_tables($node, 'go');
	my $readme = slurp_file("$top/src/clients/go/README.md");
	my @programs = $readme =~ /^```go\n(.*?)^```$/msg;
	is(scalar @programs, 2, 'programs in its README');
	foreach my $example (grep { $pgx == 5 || !m{dlock/pgx5} } @programs)
	{
		build_example("report$run_at", $example);
		cli_is([ { program => "$place/report$run_at" } ], {}, "program $run_at of its README");
		is($node->safe_psql('postgres', q{SELECT count(*) FROM report WHERE made ~ '^made under token \d+$'}), ++$run_at, 'what it has written');
	}
	build_example('nightly_job', slurp_file("$top/src/clients/go/example/nightly_job.go"));
	client_nightly_job($node, "$place/nightly_job");

	# Those that run until they are told to end are marked as "golang".
	my @examples = $readme =~ /^```golang\n(.*?)^```$/msg;
	my @says = (qr/leads, with token \d+/, qr/done: one/);
	my @ends = (qr/resigns\n\z/, qr/done: one\n\z/);
	is(scalar @examples, scalar @says, 'programs in its README that run on');
	foreach my $i (0 .. $#says)
	{
		build_example("long$i", $examples[$i]);
		my $run = DLockCli->start({ program => "$place/long$i" });
		$run->wait_out($says[$i]);
		$run->signal('TERM');
		$run->finish;
		is("$run->{signal}.$run->{code}", '0.0', "program $i ends when it is told to") or diag($run->{err});
		like($run->{out}, $ends[$i], "program $i: what it says");
	}
	is($node->safe_psql('postgres', "SELECT (SELECT string_agg(key, '') FROM sent), count(*) FROM dlock_tasks WHERE state = 'done'"),
		'one|1', 'the task is done');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_leases'), 0, 'nothing is left');
	return;
}

sub build_example
{
	my ($name, $text) = @_;

	append_to_file("$place/$name.go", $text);
	is(run_in($place, "go vet $name.go && go build -o $place/$name $name.go"), 0, "$name compiles");
	return;
}
