# Proves: the library for C (src/clients/c) does what test/clients/scenarios.json says, over outages, losses, poolers and
# misuse; is installed with a header for C and C++; and uses memory as it should.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockBeside;
use DLockCli;
use DLockClient;
use DLockProxy;
use DLockScenario;
use DLockTest;
use File::Path qw(make_path);
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/c";
my $nightly = ($ENV{DLOCK_RING} // '') eq 'nightly';
my @cc = qw(cc -std=gnu11 -O1 -g -Wall -Wextra -Werror -pthread);

make_path("$place/build");
chomp(my ($include, $lib) = map { scalar `$ENV{PG_CONFIG} --$_` } qw(includedir libdir));
is(run_in("$place/build", "make -s -f '$top/src/clients/c/Makefile' COPT=-Werror prefix='$place/usr' install"), 0, 'it is installed');
my @libs = ("-I$place/usr/include", "-I$include", "-L$place/usr/lib", "-Wl,-rpath,$place/usr/lib", "-L$lib", "-Wl,-rpath,$lib", '-ldlock', '-lpq');
is(system(@cc, '-o', "$place/client", "$top/test/clients/session.c", @libs), 0, 'the program of the scenarios compiles');
test_package();

# With a compiler that looks for wrong uses of memory; threads that are left at the end are no leak.
my $client = "$place/client";
if (client_tool('a sanitizer', "echo 'int main(void) { return 0; }' | cc -fsanitize=address,undefined -x c -o '$place/sanitized' -"))
{
	$client = "$place/checked";
	is( run_in($place,
			"@cc -fsanitize=address,undefined -fno-sanitize-recover=undefined -o '$client' '$top/test/clients/session.c' $top/src/clients/c/*.c @libs[0..1] -L$lib -Wl,-rpath,$lib -lpq"),
		0, 'it compiles so');
	$ENV{ASAN_OPTIONS} = 'detect_leaks=0';
}

# As it is installed, and under valgrind, it is for a nightly run.
my @valgrind = qw(valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite);
beside(
	'what is checked' => sub { test_scenarios('checked', [$client]) },
	$nightly ? ('as it is installed' => sub { test_scenarios('installed', ["$place/client"]) }) : (),
	$nightly && client_tool('valgrind', 'valgrind --version')
	? ('what valgrind checks' => sub { test_scenarios('valgrind', [ @valgrind, "$place/client" ], qw(schema encoding none places)) })
	: ());

my $node = start_node('main');
client_server($node);
test_keepalives();
test_hosts();

done_testing();

# The status of a command; what it says goes to the log.
sub run_in
{
	my ($dir, $command) = @_;
	return system("cd '$dir' && { $command; } >&2");
}

# A program finds it as others do.
sub test_package
{
	my $so = "$place/usr/lib/libdlock.so.1";

	like(scalar `readelf -d $so`, qr/SONAME.*\[libdlock\.so\.1\]/, 'its soname');
	my @names = sort map { /^\S+ T (\w+)/ } split /\n/, `nm -D --defined-only $so`;
	my $header = slurp_file("$top/src/clients/c/dlock.h");
	my @declared = sort { $a cmp $b } $header =~ /^DLOCK_API extern [^(]*?(\w+)\(/mg;
	is("@names", "@declared", 'it exports what its header declares');

	append_to_file("$place/plain.cc", qq(#include <dlock.h>\nint main() { dlock_close(dlock_open("", nullptr, nullptr)); }\n));
  SKIP:
	{
		skip 'no compiler for C++', 1 unless client_tool('a compiler for C++', 'c++ --version');
		is(run_in($place, "c++ -Wall -Wextra -Werror -o plain plain.cc @libs && ./plain"), 0, 'a program in C++');
	}
	return;
}

sub test_scenarios
{
	my ($name, $agent, @groups) = @_;
	my $server = start_node($name);

	use_server($server);
	$ENV{PGUSER} = getpwuid $>;
	my $proxy = scenario_servers($server);
	run_scenarios("c, $name", $_, $server, $proxy, @$agent) foreach @groups;
	if (!@groups)
	{
		run_all_scenarios('c', $server, $proxy, @$agent);
		run_scenarios('c', 'c', $server, $proxy, @$agent);
		run_pooler_scenarios('c', $server, $proxy, @$agent);
	}

	# It leaves connections behind that only the server believes in.
	if ($name ne 'valgrind')
	{
		local @ENV{qw(PGHOST PGPORT)} = @$proxy{qw(host port)};
		run_scenarios("c, $name", $_, $server, $proxy, @$agent) foreach qw(turns again overdue undo late stale);
	}
	run_scenarios("c, $name", 'last', $server, $proxy, @$agent);
	$proxy->stop;
	$server->stop('immediate');
	return;
}

# A server whose machine is gone is noticed in a wait without a limit.
sub test_keepalives
{
	my $proxy = DLockProxy->start($node);

	foreach my $case ([ '', '10 5 3' ], [ ' keepalives_idle=7', '7 5 3' ])
	{
		my ($given, $used) = @$case;
		my $run = DLockCli->start({ program => "$place/client", in => qq({"id": "a", "do": "keepalives"}\n) },
			"host=127.0.0.1 port=$proxy->{port}$given")->finish;
		like($run->{out}, qr/^a keepalives $used$/m, "keepalives:$given") or diag($run->{out}, $run->{err});
	}
	$proxy->stop;
	return;
}

# A host that does not answer costs connect_timeout, and then the next one is asked.
sub test_hosts
{
	my $proxy = DLockProxy->start($node);
	my $host = $node->host;

	$proxy->set('silent');
	my $run = DLockCli->start({ program => "$place/client", in => qq({"id": "a", "do": "keepalives"}\n) },
		"host=$proxy->{host},$host port=$proxy->{port}," . $node->port . ' connect_timeout=2')->finish;
	is($run->{out} =~ s/^session.*\n//r, '', 'the second host answers') or diag($run->{err});
	$proxy->stop;
	return;
}
