# Proves: dlock run rides out what is shorter than the lease, be it a restart, a
# crash, a failover, a cut or a frozen connection, and stops its command before the
# end of the lease otherwise; while it waits for the lock it comes back, too.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";

use DLockCli;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(stat time);

my $node = init_node('main', allows_streaming => 1, conf => 'wal_level = replica');
$node->start;
my $db = 'postgres';
$node->safe_psql($db, 'CREATE EXTENSION dlock');
use_server($node);
my $dir = PostgreSQL::Test::Utils::tempdir();

# Start a command that ends with code 3 when it is allowed to.
sub start_run
{
	my (@args) = @_;

	unlink "$dir/go";
	my $run = DLockCli->start('run', @args, 'sh', '-c', "echo \"token \$DLOCK_TOKEN\"; while [ ! -e $dir/go ]; do sleep 0.05; done; exit 3");
	$run->wait_out(qr/token \d/);
	return $run;
}

# Let it end.
sub end_run
{
	my ($run) = @_;

	append_to_file("$dir/go", '');
	return $run->finish;
}

sub sql
{
	my ($sql, $on) = @_;
	return ($on // $node)->safe_psql($db, $sql);
}

# The backends of dlock commands.
sub backends
{
	return split /\n/, sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'dlock'");
}

# The backend of the command, once it sleeps in a statement like this: so that it can
# be stopped with no lock of the server's in its hands.
sub sleeping_backend
{
	my ($query) = @_;
	my $pid;

	wait_until(
		sub {
			($pid) = sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'dlock' AND query LIKE '%$query%' AND state = 'active' AND wait_event_type = 'Extension'") =~ /(\d+)/;
			return defined $pid;
		}) or die "nobody sleeps in $query";
	return $pid;
}

my %cut = (
	'a restart' => sub { $node->restart },
	'an immediate stop' => sub { $node->stop('immediate'); $node->start },
	'a crash' => sub { crash_node($node); $node->start },
	'a terminated backend' => sub { sql("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'dlock'") });
foreach my $what (sort keys %cut)
{
	my $run = start_run(qw(--ttl 30 ride));

	# When it watches, and a renewal is not due for a while.
	$node->poll_query_until($db, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'dlock' AND query LIKE '%watch%' AND state = 'active'");
	$cut{$what}->();
	$run->wait_err(qr/is renewed again/);
	my ($token) = $run->out =~ /(\d+)/;
	is(sql("SELECT token FROM dlock_leases WHERE name = 'ride' AND state = 'held'"), $token, "$what: the lease is still held");
	is(end_run($run)->{code}, 3, "$what: ridden out");
	is(sql('SELECT count(*) FROM dlock_leases'), 0, "$what: released");
	unlike($run->{err}, qr/lost|error/, "$what: not a loss");
}

# A connection that does not answer, though it is open.
{
	my $run = start_run(qw(--ttl 12 --kill-after 0.5 ride));
	my $backend = sleeping_backend('watch');
	kill 'STOP', $backend;
	$run->wait_err(qr/does not answer/);
	$run->wait_err(qr/is renewed again/);
	is(end_run($run)->{code}, 3, 'a frozen connection: ridden out');
	kill 'CONT', $backend;
}

# A server that is away for longer than the lease.  The command itself says when it
# has last run, as the test may notice late that it does not.
foreach my $way ('ends when asked to', 'has to be killed')
{
	unlink "$dir/runs";
	my $trap = $way eq 'has to be killed' ? "trap '' TERM; " : '';
	my $run = DLockCli->start(qw(run --ttl 6 --kill-after 1 gone sh -c), "${trap}echo \$\$; while :; do echo x >$dir/runs; sleep 0.02; done");
	$run->wait_out(qr/\d/);
	my ($pid) = $run->out =~ /(\d+)/;
	$node->stop('immediate');
	my $stopped = time;
	ok(wait_until(sub { !kill 0, $pid }), "away for long, $way: stopped");
	cmp_ok((stat "$dir/runs")[9] - $stopped, '<', 6, "away for long, $way: before the lease can have ended");
	is($run->finish->{code}, 76, "away for long, $way: exit code");
	like($run->{err}, qr/could not be renewed in time; stopping the command\n.*server could not be reached/, "away for long, $way: told");
	unlike($run->{err}, qr/lost/, "away for long, $way: not called a loss");
	$node->start;
	sql("SELECT dlock_force_release('gone', 'next') FROM generate_series(1, 2)");
}

# Not there when the command has ended: its own exit code counts.
{
	my $run = start_run(qw(--ttl 60 end));
	$node->stop('immediate');
	is(end_run($run)->{code}, 3, 'away at the end: the exit code of the command');
	like($run->{err}, qr/could not be released, and ends by itself/, 'away at the end: told');
	$node->start;
	sql("SELECT dlock_force_release('end', 'next') FROM generate_series(1, 2)");
}

# While it waits.
foreach my $what ('a restart', 'a terminated backend')
{
	sql("SELECT dlock_acquire('wait', 'holder', '1 h')");
	my $run = DLockCli->start(qw(run wait sh -c), 'echo up');
	run_waits($node, 'wait');
	my ($old) = backends();
	$cut{$what}->();
	run_waits($node, 'wait');
	isnt((backends())[0], $old, "waiting, $what: waits again");
	is($run->out, '', "waiting, $what: does not run");
	sql("SELECT dlock_release('wait', 'holder')");
	is($run->finish->{code}, 0, "waiting, $what: gets it");
	is($run->{out}, "up\n", "waiting, $what: runs");
	is(sql('SELECT count(*) FROM dlock_leases'), 0, "waiting, $what: released");
}

# The answer to a request is lost, for its backend is stopped before it can send it
# and killed then: the lease is the one that was granted.  Now and then the release
# leaves the grant to the stopped backend, and then there was no answer to lose.
my $lost = 0;
foreach my $attempt (1 .. 20)
{
	last if $lost;
	sql("SELECT dlock_acquire('wait', 'holder', '1 h')");
	my $run = DLockCli->start(qw(run wait sh -c), 'echo "token $DLOCK_TOKEN"');
	run_waits($node, 'wait');
	my $backend = sleeping_backend('acquire');
	kill 'STOP', $backend;
	sql("SELECT dlock_release('wait', 'holder')");
	my $token = sql("SELECT token FROM dlock_leases WHERE name = 'wait'");
	$lost = $token ne '';
	sql("SELECT pg_terminate_backend($backend)");
	kill 'CONT', $backend;
	is($run->finish->{code}, 0, 'lost answer: gets it');
	cmp_ok(($run->{out} =~ /(\d+)/)[0], '>=', $token || 1, 'lost answer: the same lease, or a later one');
	is(sql('SELECT count(*) FROM dlock_leases'), 0, 'lost answer: nothing is left');
}
ok($lost, 'lost answer: it was');

# A standby is promoted, and the primary is gone.
{
	$node->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	my $hosts = 'host=' . join(',', $standby->host, $node->host) . ' port=' . join(',', $standby->port, $node->port) . " dbname=$db";
	my $run = start_run('-d', $hosts, qw(--ttl 60 failover));
	my ($token) = $run->out =~ /(\d+)/;
	is(sql("SELECT token FROM dlock_leases WHERE name = 'failover'"), $token, 'failover: of several hosts the primary is taken');
	$node->wait_for_catchup($standby);
	$node->stop('immediate');
	$standby->promote;
	$run->wait_err(qr/is renewed again/);
	is(sql("SELECT dlock_check('failover', $token)", $standby), 't', 'failover: the lease is held on the new primary');
	is(end_run($run)->{code}, 3, 'failover: ridden out');
	is(sql("SELECT count(*) FROM dlock_leases", $standby), 0, 'failover: released there');
	cli_is([ 'status', '-d', $hosts ], { out => '' }, 'failover: others find it too');
	$standby->stop;
}
done_testing();
