# Proves: dlock keeps its promises as a process that is started, signalled or left
# alone in unusual ways: a signal together with the grant, or over and over, closed or
# broken descriptors, blocked signals, a command that leaves others behind.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockTest;
use Fcntl;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = init_node('main');
$node->start;
my $db = 'postgres';
$node->safe_psql($db, 'CREATE EXTENSION dlock');
use_server($node);
my $dir = PostgreSQL::Test::Utils::tempdir();

sub sql
{
	my ($sql) = @_;
	return $node->safe_psql($db, $sql);
}

# What somebody holds.
sub leases
{
	return sql("SELECT string_agg(name, ',') FROM dlock_leases WHERE state = 'held'");
}

# Processes end soon after what ends them.
sub is_gone
{
	my ($pid, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_until(sub { !kill 0, $pid }), $test_name) or kill 'KILL', $pid;
	return;
}

# A grant that arrives together with the signal is given back.
{
	sql("SELECT dlock_acquire('grant', 'holder', '1 h')");
	my $run = DLockCli->start(qw(run --ttl 600 grant true));
	run_waits($node, 'grant');
	$run->signal('STOP');
	sql("SELECT dlock_release('grant', 'holder')");

	# Its backend is idle: it has sent the answer.
	$node->poll_query_until($db, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'dlock' AND state = 'idle'");
	is(leases(), 'grant', 'grant and signal: granted');
	$run->signal('TERM');
	$run->signal('CONT');
	is($run->finish->{code}, 143, 'grant and signal: exit code');
	is(leases(), '', 'grant and signal: given back');
}
# With standard descriptors closed, messages get nowhere else.
{
	my $run = cli({ before => sub { POSIX::close(1); POSIX::close(2) } }, qw(run -v closed sleep 0.3));
	is($run->{code}, 0, 'closed output: exit code');
	$run = cli({ before => sub { POSIX::close($_) foreach 0 .. 2 } }, qw(run -v closed sleep 0.3));
	is($run->{code}, 0, 'all closed: exit code');
	cli_is([ { before => sub { POSIX::close(1) } }, qw(acquire closed) ], { code => 71, err => qr/Bad file descriptor/ }, 'acquire with closed output');
	is(leases(), '', 'acquire with closed output: given back');
}

# A reader of messages who has gone does not end the command.
{
	my $wrapper = 'dlock=$1; shift; exec 2> >(exit 0); wait $!; exec "$dlock" "$@"';
	my $run = DLockCli->start({ program => 'bash' }, '-c', $wrapper, 'sh', cli_program(),
		qw(run -v deaf sh -c), 'trap "" USR1; sleep 0.3; sh -c \'kill -PIPE $$\' || echo pipe $?');
	is($run->finish->{code}, 0, 'no reader of messages: exit code');
	like($run->{out}, qr/pipe 141/, 'no reader of messages: the command has the signal as it was');
	$run = DLockCli->start({ program => 'bash' }, '-c', 'exec > >(exit 0); wait $!; exec "$@"', 'sh', cli_program(), qw(acquire deaf));
	is($run->finish->{code}, 141, 'no reader of the token: exit code');
	is(leases(), '', 'no reader of the token: given back');
}

# Nor does one who reads nothing keep the lease from being renewed.
{
	pipe my $reader, my $messages or die "pipe: $!";
	my $fill = sub {
		my $flags = fcntl $messages, F_GETFL, 0;
		fcntl $messages, F_SETFL, $flags | O_NONBLOCK;
		1 while syswrite $messages, 'x' x 4096;
		fcntl $messages, F_SETFL, $flags;
		open STDERR, '>&', $messages or POSIX::_exit(200);
	};
	my $run = DLockCli->start({ before => $fill }, qw(run --ttl 60 stalled sh -c), "echo up; while [ ! -e $dir/stalled ]; do sleep 0.05; done; exit 3");
	$run->wait_out(qr/up/);
	$node->restart;
	my $held = "FROM dlock_leases WHERE name = 'stalled' AND state = 'held'";
	my $before = sql("SELECT expires_at $held");
	my $now;
	wait_until(sub { $now = sql("SELECT expires_at > timestamptz '$before' + '1 s' $held"); $now ne 'f' });
	is($now, 't', 'a reader who has stopped: renewed');
	append_to_file("$dir/stalled", '');
	$run->finish;
	is($run->{signal} ? "signal $run->{signal}" : $run->{code}, 3, 'a reader who has stopped: exit code');
}

# Blocked signals stay so for the command only.
{
	my $block = sub { POSIX::sigprocmask(POSIX::SIG_BLOCK(), POSIX::SigSet->new(POSIX::SIGCHLD(), POSIX::SIGTERM())) };
	my $run = cli({ before => $block }, qw(run blocked grep SigBlk /proc/self/status));
	is($run->{code}, 0, 'blocked signals: the end of the command is noticed');
	like($run->{out}, qr/SigBlk:\s+0*14000$/, 'blocked signals: the command has them blocked');
}

# After a signal the lock is not for others before all of the command's group is gone.
{
	my $run = DLockCli->start(qw(run --ttl 600 --kill-after 200 rest sh -c),
		"(trap '' TERM; echo \"leader \$\$\"; while [ ! -e $dir/rest_goes ]; do sleep 0.05; done; sleep 1; echo old >>$dir/rest) & wait; echo");
	$run->wait_out(qr/leader \d+\n/);
	my ($first) = $run->out =~ /leader (\d+)/;
	my $next = DLockCli->start(qw(run --ttl 600 rest sh -c), "echo new >>$dir/rest");
	run_waits($node, 'rest');
	$run->signal('TERM');

	# The rest goes on only when the leader is gone, and then leaves a second in which
	# the next one could come too early.
	wait_gone($first);
	append_to_file("$dir/rest_goes", '');
	is($run->finish->{code}, 143, 'rest after a signal: exit code');
	is($next->finish->{code}, 0, 'rest after a signal: the next one');
	is(slurp_file("$dir/rest"), "old\nnew\n", 'rest after a signal: has ended before');

	$run = DLockCli->start(qw(run --ttl 600 rest sh -c), 'echo $$; sleep 1000 & echo $!; wait; echo');
	$run->wait_out(qr/\d+\n\d+\n/);
	my ($leader, $rest) = $run->out =~ /(\d+)/g;
	kill 'KILL', $leader;
	is($run->finish->{code}, 137, 'rest of a killed command: exit code');
	is_gone($rest, 'rest of a killed command: gone');
}

# Who is left to us is dead when it is, though nobody else buries it.  As the first
# process of a container a subreaper is such a parent.  Who waits for the dead does so
# for as long as for the living, which is longer than this test waits.
SKIP:
{
	skip 'no way to become a subreaper', 1 unless $^O eq 'linux' && (POSIX::uname())[4] eq 'x86_64';
	my $subreaper = sub { syscall(157, 36, 1, 0, 0, 0) };
	my $run = DLockCli->start({ before => $subreaper },
		qw(run --ttl 600 --kill-after 200 orphans sh -c), '(sleep 1000 & exit) & wait; echo up; exec sleep 1000');
	$run->wait_out(qr/up/);
	sql("SELECT dlock_force_release('orphans', 'test')");
	is($run->finish->{code}, 76, 'orphans: does not wait for the dead');
}

# A second signal does not keep the lease from being released.
{
	my @left = grep {
		my $run = DLockCli->start(qw(run --ttl 600 twice sh -c), 'echo up; exec sleep 1000');
		$run->wait_out(qr/up/);

		$run->signal('TERM');

		# Others have to get a turn, too.
		while (!$run->ended)
		{
			$run->signal('TERM');
			usleep(300);
		}
		$run->finish;
		leases() ne '' && sql("SELECT dlock_force_release('twice', 'test') FROM generate_series(1, 2)");
	} 1 .. 3;
	is(@left, 0, 'signalled over and over: released');
}

done_testing();
