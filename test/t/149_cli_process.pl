# Proves: dlock keeps its promises when it is started, signalled or left alone in
# unusual ways: a signal together with the grant, closed or broken descriptors,
# blocked signals, a command that leaves others behind, a guardian that is killed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";

use DLockCli;
use DLockTest;
use IO::Select;
use IO::Socket::UNIX;
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
	my $run = cli({ before => $block }, qw(run blocked grep SigBlk /proc/self/status));
	is($run->{code}, 0, 'blocked signals: the end of the command is noticed');
	like($run->{out}, qr/SigBlk:\s+0*14000$/, 'blocked signals: the command has them blocked');
}

# After a signal the lock is not for others before all of the command's group is gone.
{
	my $run = DLockCli->start(qw(run rest sh -c), "(trap '' TERM; echo up; sleep 1; echo old >>$dir/rest) & wait; echo");
	$run->wait_out(qr/up/);
	my $next = DLockCli->start(qw(run rest sh -c), "echo new >>$dir/rest");
	run_waits($node, 'rest');
	$run->signal('TERM');
	is($run->finish->{code}, 143, 'rest after a signal: exit code');
	is($next->finish->{code}, 0, 'rest after a signal: the next one');
	is(slurp_file("$dir/rest"), "old\nnew\n", 'rest after a signal: has ended before');

	$run = DLockCli->start(qw(run rest sh -c), 'echo $$; sleep 1000 & echo $!; wait; echo');
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

# The guardian of a process, and whether it is stopped.
sub guardian_of
{
	my ($pid) = @_;

	foreach my $file (glob '/proc/[0-9]*/stat')
	{
		open my $stat, '<', $file or next;
		return ($1, $2) if (readline($stat) // '') =~ /^(\d+) \(dlock-guardian\) (\w) $pid / && $2 ne 'Z';
	}
	return;
}

# A guardian that is killed or stopped does not leave the command alone.
SKIP:
{
	skip 'no /proc', 4 unless -e '/proc/self/stat';
	foreach my $signal ('KILL', 'STOP')
	{
		my $run = DLockCli->start(qw(run --ttl 600 guard sh -c), 'sleep 1000 & echo $!; wait; echo');
		my ($rest) = $run->wait_out(qr/(\d+)\n/) ? $run->out =~ /(\d+)/ : ();
		my $guardian;

		# It gives itself its name when it has run for the first time.
		wait_until(sub { ($guardian) = guardian_of($run->{pid}); defined $guardian }) or die 'there is no guardian';

		# The keeper must not be faster than we can look.
		$run->signal('STOP');
		kill $signal, $guardian;
		wait_until(sub { my ($old, $state) = guardian_of($run->{pid}); !defined $old || $state eq 'T' });
		$run->signal('CONT');
		ok(wait_until(sub { my ($new, $state) = guardian_of($run->{pid}); defined $new && $state ne 'T' }),
			"guardian got $signal: there is one again");
		$run->signal('KILL');
		$run->finish;
		is_gone($rest, "guardian got $signal, then the keeper was killed: the command is gone");
		sql("SELECT dlock_force_release('guard', 'test') FROM generate_series(1, 2)");
	}
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

# Something between the command and the server that passes on what it gets a while
# later.  Returns the directory of its socket, and the process group that it is.
sub start_proxy
{
	my ($delay) = @_;
	my $proxy = PostgreSQL::Test::Utils::tempdir_short();
	my $socket = '.s.PGSQL.' . $node->port;
	my $server = IO::Socket::UNIX->new(Local => "$proxy/$socket", Listen => 10) or die "$proxy: $!";
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		POSIX::setpgid(0, 0);
		$SIG{CHLD} = 'IGNORE';
		while (1)
		{
			my $client = $server->accept or next;
			next if fork;
			my $backend = IO::Socket::UNIX->new(Peer => $node->host . "/$socket") or POSIX::_exit(1);
			my $select = IO::Select->new($client, $backend);
			while (1)
			{
				foreach my $from ($select->can_read)
				{
					sysread($from, my $data, 65536) or POSIX::_exit(0);
					select undef, undef, undef, $delay;
					syswrite($from == $client ? $backend : $client, $data) or POSIX::_exit(0);
				}
			}
		}
	}
	POSIX::setpgid($pid, $pid);
	return ($proxy, $pid);
}

sub end_proxy
{
	my ($pid) = @_;

	kill 'KILL', -$pid;
	waitpid $pid, 0;
	return;
}

# Answers that always take long are no reason not to begin.
{
	my ($proxy, $pid) = start_proxy(0.3);
	cli_is([ 'run', '-d', "host=$proxy", qw(--ttl 30 -s slow true) ], {}, 'a slow network');
	end_proxy($pid);
}

# Another host gets its turn in time if one freezes.
{
	my ($proxy, $pid) = start_proxy(0);
	my $hosts = "host=$proxy," . $node->host . ' port=' . join(',', ($node->port) x 2);
	my $run = DLockCli->start('run', '-d', $hosts, qw(--ttl 18 --kill-after 3 frozen sh -c), "echo up; while [ ! -e $dir/go ]; do sleep 0.1; done");
	$run->wait_out(qr/up/);
	kill 'STOP', -$pid;
	$run->wait_err(qr/is renewed again|stopping the command/);
	append_to_file("$dir/go", '');
	is($run->finish->{code}, 0, 'a frozen host: ridden out');
	end_proxy($pid);
}

# Timeouts of the role are for others.  They hold while it connects, too; then it
# asks every second, and is idle in between.
{
	sql("CREATE ROLE hasty LOGIN SUPERUSER");
	sql("ALTER ROLE hasty SET $_") foreach "statement_timeout = '2s'", "idle_session_timeout = '900ms'", "lock_timeout = '2s'";
	cli_is([ { env => { PGUSER => 'hasty' } }, qw(run -s hasty sleep 3) ], {}, 'timeouts of the role: keeping a lease');
	sql("SELECT dlock_acquire('hasty', 'holder', '1 h')");
	my $run = DLockCli->start({ env => { PGUSER => 'hasty' } }, qw(run hasty true));
	run_waits($node, 'hasty');
	ok(wait_until(sub { sql("SELECT waited > interval '3 s' FROM dlock_waiters WHERE name = 'hasty'") eq 't' }),
		'timeouts of the role: keeps its place in the queue');
	sql("SELECT dlock_release('hasty', 'holder')");
	is($run->finish->{code}, 0, 'timeouts of the role: exit code');
}

# What is not UTF-8 does not get into JSON, and what is does not get cut into pieces.
foreach my $bytes ("\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\xff")
{
	my $run = cli('release', '--json', 'bytes', $bytes);
	is($run->{code}, 64, sprintf('bytes %vx: exit code', $bytes));
	ok(utf8::decode(my $copy = $run->{err}), sprintf('bytes %vx: told in UTF-8', $bytes));
	like($run->{err}, qr/\\ufffd/, sprintf('bytes %vx: replaced', $bytes));
}
cli_is([ qw(run --owner), 'x' . "\xc3\xa9" x 150, qw(long true) ], {}, 'long owner');

# A second signal does not keep the lease from being released.
{
	my @left = grep {
		my $run = DLockCli->start(qw(run twice sh -c), 'echo up; exec sleep 1000');
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

# Who can only read is not asked for ever.
{
	sql("CREATE ROLE reader LOGIN SUPERUSER");
	sql("ALTER ROLE reader SET default_transaction_read_only = on");
	cli_is([ { env => { PGUSER => 'reader' } }, qw(run reading true) ], { code => 69, err => qr/read-only transaction/ }, 'a server that only reads');
}

done_testing();
