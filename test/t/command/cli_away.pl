# Proves: if the server is away for longer than the lease, dlock run stops its command
# before the end of the lease, and dlock elect campaigns again later.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockStall;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(stat time);

my $node = init_node('main');
$node->start;
my $db = 'postgres';
$node->safe_psql($db, 'CREATE EXTENSION dlock');
use_server($node);
my $dir = PostgreSQL::Test::Utils::tempdir();

sub sql
{
	my ($sql, $on) = @_;
	return ($on // $node)->safe_psql($db, $sql);
}

# A server that is away for longer than the lease.  The command itself says when it
# has last run, as the test may notice late that it does not.  A process that did not get
# to run until then has not tried, and says so; not each time.
my %trap = ('ends when asked to' => '', 'has to be killed' => "trap '' TERM; ");
my %run;
foreach my $attempt (1 .. 5)
{
	foreach my $way (sort keys %trap)
	{
		my $file = "$dir/runs " . length $trap{$way};
		unlink $file;
		$run{$way} = DLockCli->start(qw(run --ttl 6 --kill-after 1), $way, qw(sh -c), "$trap{$way}echo \$\$; while :; do echo x >'$file'; sleep 0.02; done");
		$run{$way}{file} = $file;
		$run{$way}->wait_out(qr/\d/);
	}
	$node->stop('immediate');
	my ($stopped, $from) = (time, mono_now());
	foreach my $way (sort keys %trap)
	{
		my $run = $run{$way};
		my ($pid) = $run->out =~ /(\d+)/;
		ok(wait_until(sub { !kill 0, $pid }), "away for long, $way: stopped");
		cmp_ok((stat $run->{file})[9] - $stopped, '<', 6 + stood_still($from), "away for long, $way: before the lease can have ended");
		is($run->finish->{code}, 76, "away for long, $way: exit code");
		unlike($run->{err}, qr/lost/, "away for long, $way: not called a loss");
	}
	$node->start;
	sql("SELECT dlock_force_release(name, 'next') FROM dlock_leases, generate_series(1, 2)");
	last unless grep { $_->{err} =~ /This process was stopped, or did not get to run/ } values %run;
}
foreach my $way (sort keys %trap)
{
	like($run{$way}{err}, qr/could not be renewed in time; stopping the command\n.*detail: The server cannot be reached: /, "away for long, $way: told");
}

# A server that is away for longer than the lease is no reason to give up an election.
{
	my $run = DLockCli->start(qw(elect -v --ttl 2 --kill-after 0.1 --lock-delay 0 election sh -c), 'echo leads; exec sleep 1000');
	$run->wait_out(qr/leads/);
	$node->stop('immediate');
	$run->wait_err(qr/campaigning again.*; trying again\n/s);
	$node->start;
	$run->wait_out(qr/leads\nleads/);
	$run->signal('TERM');
	is($run->finish->{code}, 143, 'election and a long outage: leads again');
}

done_testing();
