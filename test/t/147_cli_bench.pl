# dlock bench: what it prints, and that it leaves nothing behind, however it ends.

use strict;
use warnings FATAL => 'all';

use DLockTest;
use IPC::Run ();
use JSON::PP ();
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dlock = $ENV{DLOCK_CLI};
my $node = start_node('main', conf => "max_connections = 20\n");
@ENV{qw(PGHOST PGPORT PGDATABASE)} = ($node->host, $node->port, 'postgres');

sub sql
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

sub bench
{
	my ($out, $err);
	IPC::Run::run([ $dlock, 'bench', @_ ], '<', \undef, '>', \$out, '2>', \$err);
	return ($? & 127 ? 'signal ' . ($? & 127) : $? >> 8, $out, $err);
}

# Sessions end a moment after their clients.
sub sessions_end
{
	return $node->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'dlock'");
}

# ---- what it prints ----

sql("SELECT dlock_acquire('mine', 'me', '1 h')");
my ($code, $out, $err) = bench('--json', '--seconds', '1', '--clients', '2');
is($code, 0, 'exit code') or diag($err);
my ($server, @results) = map { JSON::PP->new->decode($_) } split /\n/, $out;
is($server->{kind}, 'server', 'the server comes first');
like($server->{version}, qr/^\d+/, 'its version');
is($server->{fsync}, sql('SHOW fsync'), 'whether it waits for the disk');
is_deeply(
	[ map { join ' ', $_->{what}, $_->{clients}, !defined $_->{durable} ? '-' : $_->{durable} ? 'durable' : 'async' } @results ],
	[
		'statement 1 -', 'statement 2 -', 'pair 1 durable', 'pair 2 durable', 'pair 1 async', 'pair 2 async',
		'renew 2 durable', 'renew 2 async', 'refused 2 -', 'handoff 2 durable', 'handoff 2 async'
	],
	'what is measured');
is_deeply([ grep { $_->{count} <= 0 } @results ], [], 'all have measured something');
is_deeply(
	[
		grep {
			!(0 < $_->{p50_ms} && $_->{p50_ms} <= $_->{p95_ms} && $_->{p95_ms} <= $_->{p99_ms}
				&& $_->{p99_ms} <= $_->{max_ms})
		} @results
	],
	[], 'percentiles do not fall');
is_deeply([ map { $_->{per_second} } grep { $_->{what} ne 'handoff' } @results ],
	[ map { $_->{count} } grep { $_->{what} ne 'handoff' } @results ], 'a second long, so counts are rates');
is_deeply([ map { $_->{of_baseline} } grep { $_->{what} =~ /statement|handoff/ } @results ],
	[ 1, 1, undef, undef ], 'compared with the base');
my ($pair) = grep { $_->{what} eq 'pair' && $_->{clients} == 2 && $_->{durable} } @results;
my ($base) = grep { $_->{what} eq 'statement' && $_->{clients} == 2 } @results;
cmp_ok(abs($pair->{of_baseline} - 2 * $pair->{per_second} / $base->{per_second}), '<', 0.001,
	'a pair is two statements');
is_deeply([ grep { !/^\{"progress":"\d+ of 11: .*"\}$/ } split /\n/, $err ], [], 'progress');
is(scalar(() = $err =~ /\n/g), 11, 'of each measurement');

# The counters of the server know of what it claims.
my $pairs = 0;
$pairs += $_->{count} foreach grep { $_->{what} eq 'pair' } @results;
cmp_ok(sql('SELECT grants FROM dlock_stats'), '>=', $pairs, 'as many grants as pairs');
is(sql("SELECT string_agg(name, ' ') FROM dlock_leases"), 'mine', 'nothing is left');

($code, $out, $err) = bench('-q', '--seconds', '20ms', '--clients', '3');
is("$code$err", '0', 'quiet');
like($out, qr/\APostgreSQL .*20ms for each measurement\nMEASUREMENT +COMMIT +CLIENTS .* OF BASE\nstatement +- +1 /, 'a table');
is(join(' ', $out =~ /^pair +durable +(\d+) /mg), '1 2 3', 'with one client, two and so on');
(undef, undef, $err) = bench('--seconds', '1ms', '--clients', '1');
like($err, qr/^1 of 8: statements that do nothing, 1 client\n2 of 8: /, 'progress as text');
is(sql("SELECT string_agg(name, ' ') FROM dlock_leases"), 'mine', 'nothing is left');

# ---- how it ends otherwise ----

# Start it in a process group of its own, as a shell does, and wait until there is
# a lease of it with such a name.
sub start_bench
{
	my ($pattern, $err_file, @args) = @_;
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		POSIX::setpgid(0, 0);

		# Whoever runs the tests in the background ignores it.
		$SIG{INT} = 'DEFAULT';
		open STDOUT, '>', '/dev/null' or POSIX::_exit(200);
		open STDERR, '>', $err_file or POSIX::_exit(200);
		{ no warnings; exec $dlock, 'bench', @args };
		POSIX::_exit(201);
	}
	$node->poll_query_until('postgres', "SELECT count(*) > 0 FROM dlock_leases WHERE name ~ '$pattern'")
	  or die "there is no lease $pattern";
	return $pid;
}

sub finish
{
	my ($pid) = @_;
	my $status;

	wait_until(sub { return 0 if waitpid($pid, POSIX::WNOHANG()) != $pid; $status = $?; 1 });
	if (!defined $status)
	{
		kill 'KILL', $pid;
		waitpid $pid, 0;
		return 'it does not end';
	}
	return $status & 127 ? 'signal ' . ($status & 127) : $status >> 8;
}

my $err_file = "$PostgreSQL::Test::Utils::tmp_check/bench.err";
foreach my $end (
	[ '^dlock-bench/.*/\d+/\d+$', 'INT', 'signal 2' ],
	[ '^dlock-bench/.*/handoff$', 'TERM', 143 ])
{
	my ($pattern, $signal, $expected) = @$end;
	my $pid = start_bench($pattern, $err_file, '--seconds', 2, '--clients', 1);

	# To all of the group, as the terminal does.
	kill $signal, -$pid;
	is(finish($pid), $expected, "$signal at $pattern");
	is(sql("SELECT string_agg(name, ' ') FROM dlock_leases"), 'mine', "$signal at $pattern: nothing is left");
	ok(!kill(0, -$pid), "$signal at $pattern: no process is left");
	ok(sessions_end(), "$signal at $pattern: no session is left");
}

# A client dies.
{
	my $pid = start_bench('^dlock-bench/.*/\d+/\d+$', $err_file, '--seconds', 2, '--clients', 1);
	my $client;
	wait_until(sub { ($client) = child_pids($pid); defined $client });
	kill 'KILL', $client;
	is(finish($pid), 71, 'a client was killed');
	like(slurp_file($err_file), qr/^dlock: error: client 1 ended before its time$/m, 'a client was killed: it says so');
	ok(sessions_end(), 'a client was killed: no session is left');
}

# It dies itself: its clients go with it, and the leases within their time to live.
{
	my $pid = start_bench('^dlock-bench/.*/\d+/\d+$', $err_file, '--seconds', 2, '--clients', 2);
	my @clients = child_pids($pid);
	kill 'KILL', $pid;
	is(finish($pid), 'signal 9', 'killed');
	wait_gone(@clients);
	ok(sessions_end(), 'killed: its clients have ended');
	ok( $node->poll_query_until('postgres',
			"SELECT coalesce(string_agg(name, ' '), '') = 'mine' FROM dlock_leases"),
		'killed: leases end by themselves');
}

# More clients than the server takes.
($code, $out, $err) = bench('--seconds', '1ms', '--clients', '64');
isnt($code, 0, 'too many clients');
like($err, qr/^dlock: error: client \d+: .*(?:too many|reserved)/m, 'too many clients: it says so');
is(sql("SELECT string_agg(name, ' ') FROM dlock_leases"), 'mine', 'too many clients: nothing is left');

# The server goes meanwhile.
{
	my $pid = start_bench('^dlock-bench/.*/\d+/\d+$', $err_file, '--seconds', 2, '--clients', 2);
	$node->stop('immediate');
	is(finish($pid), 69, 'the server is gone');
	like(slurp_file($err_file), qr/^dlock: error: client \d: /m, 'the server is gone: it says so');
	like(slurp_file($err_file), qr/^dlock: warning: .* may be left over/m, 'the server is gone: what about leases');
}
($code, $out, $err) = bench('--seconds', '1ms');
is("$code$out", '69', 'no server');
done_testing();
