# Proves: the command neither reads what it has not written nor loses memory, in all
# of its subcommands against a server, when it loses its lock, and in the processes
# that it forks.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'valgrind is needed' if system('valgrind --version >/dev/null 2>&1') != 0;

my $node = start_node('main');
use_server($node);
my $dir = PostgreSQL::Test::Utils::tempdir();
my $program = cli_program();

# Every process has a log of its own, and what is not an error is not in it.
append_to_file("$dir/dlock", <<"EOT");
#!/bin/sh
exec valgrind -q --leak-check=full --show-leak-kinds=definite --trace-children=no \\
	--log-file="$dir/%p.log" "$program" "\$@"
EOT
chmod 0755, "$dir/dlock" or die $!;
$ENV{DLOCK_CLI} = "$dir/dlock";

# The logs are clean; there are at least so many.
sub clean
{
	my ($at_least, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @logs = glob "$dir/*.log";

	cmp_ok(scalar @logs, '>=', $at_least, "$test_name: it was looked at");
	is(join('', map { slurp_file($_) } @logs), '', "$test_name: clean");
	unlink @logs;
	return;
}

# Such a log is written when there is something to tell.
{
	chomp(my $compiler = `$ENV{PG_CONFIG} --cc`);
	append_to_file("$dir/leak.c",
		"#include <stdlib.h>\nint main(void) { char *volatile c = malloc(7); c = NULL; return c != NULL; }\n");
	system("$compiler -O0 -o '$dir/leak' '$dir/leak.c'") == 0 or die 'no compiler';
	system("valgrind -q --leak-check=full --show-leak-kinds=definite --log-file='$dir/%p.log' '$dir/leak'");
	my ($log) = glob "$dir/*.log";
	like(slurp_file($log), qr/definitely lost/, 'a leak is seen');
	unlink $log;
}

# Acquire, look, renew, release.
my $run = cli(qw(acquire job --ttl 1h --owner me --payload), '{"host": "a"}');
is($run->{code}, 0, 'acquire');
my ($token) = $run->{out} =~ /(\d+)/;
is(cli(qw(acquire -n job --owner other))->{code}, 75, 'refused');
is(cli(qw(acquire job --owner other --wait 0.2))->{code}, 75, 'timed out');
is(cli(qw(renew job), $token)->{code}, 0, 'renew');
is(cli('status')->{code}, 0, 'status');
is(cli(qw(status --json job))->{code}, 0, 'status as JSON');
is(cli(qw(wait job --wait 0.2))->{code}, 75, 'wait');
is(cli(qw(release job), $token)->{code}, 0, 'release');
is(cli(qw(wait job))->{code}, 0, 'free');
clean(9, 'plain calls');

# A run to its end, with a renewal; one that is stolen from, one that is refused.
is(cli(qw(run --ttl 60 --kill-after 1 job sh -c), 'sleep 4; exit 3')->{code}, 3, 'run');
clean(2, 'run');
$run = DLockCli->start(qw(run --kill-after 0.5 stolen sh -c), 'echo up; exec sleep 600');
$run->wait_out(qr/up/);
is(cli(qw(run -n stolen true))->{code}, 75, 'run: refused');
is(cli(qw(force-release stolen --reason test))->{code}, 0, 'force-release');
is($run->finish->{code}, 76, 'run: lost');
clean(3, 'run and its loss');
is(cli(qw(run job /nowhere))->{code}, 127, 'run: not found');
is(cli(qw(run job /))->{code}, 126, 'run: not executable');
clean(2, 'run: nothing to execute');

# An outage that is ridden out.
$run = DLockCli->start(qw(run --ttl 60 job sh -c), "echo up; while [ ! -e $dir/go ]; do sleep 0.1; done");
$run->wait_out(qr/up/);
$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'dlock'");
ok( $node->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'dlock'"),
	'it is back');
append_to_file("$dir/go", '');
is($run->finish->{code}, 0, 'run: cut off');
clean(2, 'run that was cut off');

# Elections.
is(cli(qw(elect --once --payload), '{"at": 1}', qw(site true))->{code}, 0, 'elect');
$run = DLockCli->start(qw(elect --observe site));
is(cli(qw(elect --once site true))->{code}, 0, 'another leader');
$run->wait_out(qr/./);
$run->signal('TERM');
$run->finish;
$run = DLockCli->start(qw(watch site));
is(cli(qw(run site true))->{code}, 0, 'something to watch');
$run->wait_out(qr/./);
$run->signal('TERM');
$run->finish;
clean(4, 'elections');

# Look after look.
$run = DLockCli->start(qw(status --json --watch=0.1));
$run->wait_out(qr/status.*status/s);
$run->signal('TERM');
$run->finish;
clean(1, 'status, watched');

# Errors.
is(cli(qw(status -d dbname=nowhere))->{code}, 69, 'no such database');
is(cli(qw(acquire job --ttl never))->{code}, 64, 'usage');
is(cli('release', 'x' x 1000, 1)->{code}, 64, 'a name that is too long');
clean(3, 'errors');

$node->stop;
done_testing();
