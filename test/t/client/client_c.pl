# The C client (src/clients/c).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockBeside;
use DLockClient;
use DLockProxy;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/c";

mkdir $place or die "$place: $!";
chomp(my ($include, $lib) = map { scalar `$ENV{PG_CONFIG} --$_` } qw(includedir libdir));
my @cc = ('cc', '-std=gnu11', '-O2', '-g', '-Wall', '-Wextra', "-I$top/src/clients/c", "-I$include", "$top/src/clients/c/dlock.c");
my @libs = ("-L$lib", "-Wl,-rpath,$lib", '-lpq', '-pthread');
is(system(@cc, '-Werror', '-o', "$place/client", "$top/test/clients/client.c", @libs), 0, 'it compiles');

my $node = start_node('main');
client_program($node, "$place/client");
beside(client_tests('c', asks_again => 1));

# Not the default ttl of the server, of which the client would know nothing.
like(DLockClient::run(do => 'try', ttl_ms => '9223372036854775807')->{out}, qr/^error 22\d+\n\z/, 'no ttl without an end');

like(DLockClient::run(do => 'try', owner => "\xe2\x82\xac" x 100)->{out}, qr/^done\n/m, 'a long owner is cut between characters');

client_test_give_up_connecting('C');

# A server whose machine is gone is noticed in a wait without a limit.
{
	my $proxy = DLockProxy->start($node);
	foreach my $case ([ '', '10 5 3' ], [ ' keepalives_idle=7', '7 5 3' ])
	{
		my ($given, $used) = @$case;
		my $run = DLockClient::run(do => 'keepalives', conninfo => "host=127.0.0.1 port=$proxy->{port}$given");
		like($run->{out}, qr/^keepalives $used\ndone\n\z/m, "keepalives:$given") or diag($run->{err});
	}
}

# What is released or freed, when and by whom, with a compiler that looks for wrong uses of memory
# if there is one.
{
	local $ENV{ASAN_OPTIONS} = 'detect_leaks=0';
	my @client = ('-o', "$place/checked", "$top/test/clients/client.c", @libs);
	system("@cc -fsanitize=address @client 2>$place/log") == 0 || system(@cc, @client) == 0 or die 'it does not compile';
	client_program($node, "$place/checked");

	my $run = DLockClient::run(do => 'free');
	is($run->{code}, 0, 'a held lease is freed') or diag($run->{err});
	DLockClient::nothing_left('a held lease is freed: and released');

	# The owner that was given is freed before the first.
	$run = DLockClient::run(do => 'again', owner => 'who');
	like($run->{out}, qr{^owner (who/[0-9a-f]{16})\nowner (?!\1)who/[0-9a-f]{16}\ndone\n\z}m, 'acquired twice: with another owner') or diag($run->{err});

	$run = DLockClient::run(do => 'nothing');
	like($run->{out}, qr/^lost 1 released 0\ntoken \S+ until \S+\nreleased 0\ndone\n\z/, 'released without a lease, and twice; nothing is lost') or diag($run->{err});

	$run = DLockClient::run(do => 'late', sql => 'CREATE TABLE late ()');
	like($run->{out}, qr/^token .*\nbegun 1 released 0 committed 0 begun 0\ndone\n\z/, 'transactions after the work: refused') or diag($run->{err});
	is($node->safe_psql('postgres', "SELECT to_regclass('late')"), '', 'transactions after the work: rolled back');

	# Between two leases, a server or a pooler ends what is idle.
	foreach my $case ([ 'released', 0 ], [ 'refused', 1 ])
	{
		my ($what, $status) = @$case;
		$node->safe_psql('postgres', "SELECT dlock_acquire('job', 'other', '1 h')") if $status != 0;
		$run = DLockClient::start(do => 'reuse');
		$run->wait_out(qr/^first $status\n/m);
		$node->safe_psql('postgres',
			"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()");
		$node->safe_psql('postgres', "SELECT dlock_release('job', 'other')");
		DLockClient::ends_with(DLockClient::go($run), 'done', "$what, idle for long, and acquired");
	}

	$run = DLockClient::start(do => 'tidy', ttl_ms => 120_000);
	DLockClient::token_of($run);
	$node->safe_psql('postgres', "SELECT dlock_force_release('job', 'test')");
	like($run->finish->{out}, qr/^on_lost\nreleased 3\nlost left /m, 'released by on_lost') or diag($run->{err});

	# A thread that asks may be the one that calls on_lost; which one is a matter of luck.
	foreach my $attempt (1 .. 20)
	{
		$run = DLockClient::start(do => 'ask', ttl_ms => 3000);
		DLockClient::token_of($run);
		$node->safe_psql('postgres', 'ALTER FUNCTION dlock_renew_token RENAME TO away');
		$run->finish;
		$node->safe_psql('postgres', 'ALTER FUNCTION away RENAME TO dlock_renew_token');
		last if $run->{out} =~ /told by the asker/;
	}
	like($run->{out}, qr/^on_lost\nreleased 4\ntold by the asker\nnot released meanwhile\nunreachable left /m, 'a release waits for on_lost in another thread') or diag($run->{err});
	client_program($node, "$place/client");
}

# An example is a program: compiled, and run.
append_to_file("$place/run", <<"EOC");
@cc -o '$place/example' "\$1" @libs && exec '$place/example'
EOC
client_examples('c', 1, 'sh', "$place/run", 'example.c');
client_test_large_tokens();
done_testing();
