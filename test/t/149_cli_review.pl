# Proves: dlock keeps its promises when it is started, signalled or left alone in
# unusual ways: a signal together with the grant, closed or broken descriptors,
# blocked signals, a command that leaves others behind, a guardian that is killed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";

use DLockCli;
use DLockTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

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
	my $run = DLockCli->start(qw(run grant true));
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

# Blocked signals stay so for the command only.
{
	my $block = sub { POSIX::sigprocmask(POSIX::SIG_BLOCK(), POSIX::SigSet->new(POSIX::SIGCHLD(), POSIX::SIGTERM())) };
	my $run = cli({ before => $block }, qw(run blocked sh -c), 'grep SigBlk /proc/self/status');
	is($run->{code}, 0, 'blocked signals: the end of the command is noticed');
	like($run->{out}, qr/SigBlk:\s+0*14000$/, 'blocked signals: the command has them blocked');
}

done_testing();
