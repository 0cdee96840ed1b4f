# Proves: dlock run rides out what is shorter than the lease, be it a restart, a
# crash, a failover, a cut or a frozen connection, and stops its command before the
# end of the lease otherwise; while it waits for the lock it comes back, too.  A slow
# network, a host that freezes and the timeouts of the role are ridden out likewise.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockProxy;
use DLockStall;
use DLockStandby;
use DLockTest;
use IO::Select;
use IO::Socket::UNIX;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(stat time);

my $node = init_node('main', allows_streaming => 1, conf => "wal_level = replica");
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

# Stop the backend of a command that holds a lease, between two renewals: one that is
# stopped at work may hold what everybody else would wait for.
sub stop_idle_backend
{
	my $pid;

	wait_until(
		sub {
			($pid) = sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'dlock' AND state = 'idle'"
				  . " AND clock_timestamp() - state_change BETWEEN '10 ms' AND '500 ms'") =~ /(\d+)/;
			return 0 unless defined $pid;
			kill 'STOP', $pid;
			wait_until(sub { slurp_file("/proc/$pid/stat") =~ /\) T / }) or die "$pid does not stop";
			return 1 if sql("SELECT state FROM pg_stat_activity WHERE pid = $pid") eq 'idle';
			kill 'CONT', $pid;
			return 0;
		}) or die 'nobody is idle';
	return $pid;
}

my %cut = (
	'a restart' => sub { $node->restart },
	'an immediate stop' => sub { $node->stop('immediate'); $node->start },
	'a crash' => sub { crash_node($node); $node->start },
	'a terminated backend' => sub { sql("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'dlock'") });
foreach my $what (sort keys %cut)
{
	my $run = start_run(qw(--ttl 600 ride));

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
	my $run = start_run(qw(--ttl 120 --kill-after 0.5 ride));
	my $backend = stop_idle_backend();
	$run->wait_err(qr/does not answer/);
	$run->wait_err(qr/is renewed again/);
	is(end_run($run)->{code}, 3, 'a frozen connection: ridden out');
	kill 'CONT', $backend;
}

# A server that is away for longer than the lease.  The command itself says when it
# has last run, as the test may notice late that it does not.
foreach my $way ('ends when asked to', 'has to be killed')
{
	my $trap = $way eq 'has to be killed' ? "trap '' TERM; " : '';
	my $run;

	# A process that did not get to run until then has not tried, and says so; not each time.
	foreach my $attempt (1 .. 5)
	{
		unlink "$dir/runs";
		$run = DLockCli->start(qw(run --ttl 6 --kill-after 1 gone sh -c), "${trap}echo \$\$; while :; do echo x >$dir/runs; sleep 0.02; done");
		$run->wait_out(qr/\d/);
		my ($pid) = $run->out =~ /(\d+)/;
		$node->stop('immediate');
		my ($stopped, $from) = (time, mono_now());
		ok(wait_until(sub { !kill 0, $pid }), "away for long, $way: stopped");
		cmp_ok((stat "$dir/runs")[9] - $stopped, '<', 6 + stood_still($from), "away for long, $way: before the lease can have ended");
		is($run->finish->{code}, 76, "away for long, $way: exit code");
		unlike($run->{err}, qr/lost/, "away for long, $way: not called a loss");
		$node->start;
		sql("SELECT dlock_force_release('gone', 'next') FROM generate_series(1, 2)");
		last if $run->{err} !~ /This process was stopped, or did not get to run/;
	}
	like($run->{err}, qr/could not be renewed in time; stopping the command\n.*detail: The server cannot be reached: /, "away for long, $way: told");
}

# A server that answers with an error for longer than the lease: it is named.
{
	sql('ALTER FUNCTION dlock_renew_token(text, bigint, interval) RENAME TO dlock_hidden');
	sql(q{CREATE FUNCTION dlock_renew_token(text, bigint, interval = NULL) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''out of order''; END'});

	# With time enough for each answer, and more than once, so that the last trouble is not one
	# that is late.
	my $why = qr/could not be renewed in time; stopping the command\n.*detail: The server did not renew the lease: out of order\n/;
	my $run;
	foreach my $attempt (1 .. 3)
	{
		$run = cli(qw(run --ttl 12 --kill-after 5 odd sleep 600));
		last if $run->{err} =~ $why;
	}
	is($run->{code}, 76, 'renewals that fail: exit code');
	like($run->{err}, $why, 'renewals that fail: told why');
	is(scalar(() = $run->{err} =~ /warning: the server did not renew/g), 1, 'renewals that fail: told once');
	sql('DROP FUNCTION dlock_renew_token(text, bigint, interval)');
	sql('ALTER FUNCTION dlock_hidden(text, bigint, interval) RENAME TO dlock_renew_token');
}

# How long an outage may take is said, and can be chosen.
foreach my $case (
	[ [], '53s', '60s' ],
	[ [qw(--outage 2m)], '12\ds', '\d+s' ],
	[ [qw(--outage 40 --kill-after 20)], '40(?:\.\d+)?s', '62s' ],
	[ [qw(--ttl 30 --kill-after 10)], '18s', '30s' ],
	[ [qw(--ttl 30 --kill-after 10 --outage 18)], '18s', '30s' ])
{
	my ($options, $budget, $ttl) = @$case;
	cli_is([ qw(run -v), @$options, qw(budget true) ], { err => qr/^dlock: info: outage budget: $budget \(ttl $ttl, renewed every 1s, / }, "outage budget: @$options");
}
cli_is([qw(run --ttl 30 --kill-after 10 --outage 19 budget true)], { code => 64, err => qr/error: a ttl of 30s leaves no time.*hint: Use --ttl 31s or more\./s }, 'outage budget: does not fit');
cli_is([qw(run --ttl 30 --outage 30 budget true)], { code => 64, err => qr/hint: Use --ttl 37s or more\./ }, 'outage budget: does not fit, either');

# What a server logs of runs that end as they should: no error.
{
	my $before = -s $node->logfile;
	cli_is([qw(run quiet sleep 1.3)], {}, 'a run of a while');
	my $run = start_run('quiet');
	$run->signal('TERM');
	is($run->finish->{code}, 143, 'a run that is ended');
	$run = start_run('quiet');
	sql("SELECT dlock_force_release('quiet', 'test')");
	is($run->finish->{code}, 76, 'a run that loses its lease');
	my $log = substr slurp_file($node->logfile), $before;
	unlike($log, qr/ERROR|FATAL/, 'the server logs no error');
}

# A wait is one statement without a limit, so that nothing gives up the place in the queue.
{
	sql("SELECT dlock_acquire('wait', 'holder', '1 h')");
	my $before = -s $node->logfile;
	my $run = DLockCli->start({ env => { PGOPTIONS => '-c log_statement=all' } }, qw(run wait true));
	run_waits($node, 'wait');
	my $log = substr slurp_file($node->logfile), $before;
	my @waits = $log =~ /dlock_acquire\(name => .*\n.*[Pp]arameters: .*\$4 = ([^,]+),/g;
	is("@waits", "'00:00:00' NULL", 'asks once without waiting, and then waits') or diag($log);
	sql("SELECT dlock_release('wait', 'holder')");
	is($run->finish->{code}, 0, 'and gets the lock');
}

# Not there when the command has ended: its own exit code counts.
{
	my $run = start_run(qw(--ttl 600 end));
	$node->stop('immediate');
	is(end_run($run)->{code}, 3, 'away at the end: the exit code of the command');
	like($run->{err}, qr/could not be released, and ends by itself/, 'away at the end: told');
	$node->start;
	sql("SELECT dlock_force_release('end', 'next') FROM generate_series(1, 2)");
}

# The answer to the release is lost on the way: the lease was held until then.
without_release_answers($node,
	sub { cli_is([ qw(run --ttl 600 unheard sh -c), 'exit 3' ], { code => 3 }, 'a lost answer to the release') });

# A signal that comes while the release waits for the server ends an election, too.
{
	my $run = DLockCli->start(qw(elect election), 'sh', '-c', "echo up; while [ ! -e $dir/end ]; do sleep 0.05; done");
	$run->wait_out(qr/up/);
	$node->stop('immediate');
	append_to_file("$dir/end", '');
	wait_until(sub { my @left = child_pids($run->{pid}); @left == 0 }) or die 'the command does not end';
	$run->signal('TERM');
	is($run->finish->{code}, 0, 'a signal while it releases: the end');
	$node->start;
	sql("SELECT dlock_force_release('election', 'next') FROM generate_series(1, 2)");
}

# No server when the time to wait is over says nothing about the lock.
{
	my $run;

	sql("SELECT dlock_acquire('held', 'holder', '1 h')");

	# The server has to stop before the time to wait is over.
	foreach my $wait (3, 12, 48)
	{
		$run = DLockCli->start(qw(wait -w), $wait, 'held');
		wait_until(sub { $run->ended || sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock' AND state = 'active' AND query LIKE '%dlock_watch%'") == 1 });
		$node->stop('immediate');
		my $in_time = mono_now() < $run->{started} + $wait;
		$run->finish;
		last if $in_time;
		$node->start if $wait < 48;
	}
	is($run->{code}, 69, 'dlock wait without a server: exit code');
	unlike($run->{err}, qr/still held/, 'dlock wait without a server: not taken for a lock that is held');
	$node->start;
	sql("SELECT dlock_force_release('held', 'test')");
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

# The answer to a request is lost on the way: the lease is the one that was granted.
{
	sql("SELECT dlock_acquire('wait', 'holder', '1 h')");
	my ($proxy, $pid) = start_proxy(0);
	my $hosts = "host=$proxy," . $node->host . ' port=' . join(',', ($node->port) x 2);
	my $run = DLockCli->start('run', '-d', $hosts, qw(--ttl 600 wait sh -c), 'echo "token $DLOCK_TOKEN"');
	run_waits($node, 'wait');
	kill 'STOP', -$pid;
	sql("SELECT dlock_release('wait', 'holder')");
	my $token = '';
	ok(wait_until(sub { ($token = sql("SELECT token FROM dlock_leases WHERE name = 'wait' AND owner <> 'holder'")) ne '' }),
		'lost answer: granted');
	is($run->out, '', 'lost answer: and not told');
	end_proxy($pid);
	is($run->finish->{code}, 0, 'lost answer: gets it');
	cmp_ok(($run->{out} =~ /(\d+)/)[0], '>=', $token, 'lost answer: the same lease, or a later one');
	is(sql('SELECT count(*) FROM dlock_leases'), 0, 'lost answer: nothing is left');
}

# An owner that is given may be that of others: a lease of that owner is not taken for the
# one that was asked for, nor for that of somebody else.
{
	my $proxy = DLockProxy->start($node);
	my @acquire = ('acquire', '-d', "host=$proxy->{host} port=$proxy->{port}", qw(--ttl 1h --owner ci));

	$proxy->set('cut', 'dlock_acquire(name');
	cli_is([ @acquire, 'many' ], { out => qr/^\d+\n\z/ }, 'an owner of many: asked again');
	foreach my $wait ([], ['-n'], [qw(-w 5)])
	{
		$proxy->set('cut', 'dlock_acquire(name');
		cli_is([ @acquire, @$wait, 'many' ], { code => 69, out => '', err => qr/answer .* was lost\n.*detail: The server may have granted a lease to owner "ci"/ },
			"an owner of many: no answer, and a lease of the owner, @$wait");
	}
	cli_is([ @acquire, '-n', 'many' ], { code => 75, out => '', err => qr/was not acquired/ }, 'an owner of many: refused');
	sql("SELECT dlock_force_release('many', 'test')");

	# A lock that somebody else holds is refused, whatever became of the answer.
	sql("SELECT dlock_acquire('other', 'holder', '1 h')");
	foreach my $wait (['-n'], [qw(-w 1)])
	{
		$proxy->set('cut', 'dlock_acquire(name');
		cli_is([ @acquire, '-v', @$wait, 'other' ], { code => 75, out => '', err => qr/connecting again\n.*was not acquired\n.*It is held by "holder"/s },
			"an owner of many: no answer, and a lease of somebody else, @$wait");
	}
	my $run = DLockCli->start(@acquire, qw(-w 5 other));
	wait_until(sub { $run->ended || sql("SELECT count(*) FROM dlock_waiters WHERE name = 'other'") == 1 });
	$proxy->set('cut');
	is($run->finish->{code}, 75, 'an owner of many: a wait that is broken, and a lease of somebody else');

	# What was granted while nothing came through is not given back.
	$run = DLockCli->start(@acquire, 'other');
	run_waits($node, 'other');
	$proxy->set('deaf');
	$proxy->set('silent');
	$run->signal('TERM');
	is($run->finish->{code}, 143, 'an owner of many: a signal, and no answer to the cancel');
	like($run->{err}, qr/^dlock: warning: the server may have granted a lease on "other" to owner "ci"$/m, 'an owner of many: a signal, and no answer to the cancel: told');
	$proxy->set('pass');
	ok($node->poll_query_until($db, 'SELECT count(*) = 0 FROM dlock_waiters'), 'an owner of many: a signal, and no answer to the cancel: the wait ends');
	sql("SELECT dlock_release('other', 'holder')");
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
	my $run = start_run('-d', $hosts, qw(--ttl 60 --kill-after 3 frozen));
	kill 'STOP', -$pid;
	$run->wait_err(qr/is renewed again|stopping the command/);
	is(end_run($run)->{code}, 3, 'a frozen host: ridden out');
	end_proxy($pid);
}

# Timeouts of the role are for others.  They hold while it connects, too, which a
# machine that stands still may do just then; later it asks every second, and is idle
# in between.
{
	sql("CREATE ROLE hasty LOGIN SUPERUSER");
	sql("ALTER ROLE hasty SET $_") foreach "statement_timeout = '2s'", "idle_session_timeout = '900ms'", "lock_timeout = '2s'";
	my $run = undisturbed(sub { cli({ env => { PGUSER => 'hasty' } }, qw(run -s hasty sleep 3)) });
	is($run->{code}, 0, 'timeouts of the role: keeping a lease');
	is($run->{err}, '', 'timeouts of the role: without a word');
	sql("SELECT dlock_acquire('hasty', 'holder', '1 h')");
	$run = undisturbed(
		sub {
			my $waits = DLockCli->start({ env => { PGUSER => 'hasty' } }, qw(run hasty true));
			wait_until(sub { $waits->ended || sql("SELECT count(*) FROM dlock_waiters WHERE name = 'hasty'") == 1 });
			return $waits;
		}, sub { !$_[0]->ended });
	ok(wait_until(sub { sql("SELECT waited > interval '3 s' FROM dlock_waiters WHERE name = 'hasty'") eq 't' }),
		'timeouts of the role: keeps its place in the queue');
	sql("SELECT dlock_release('hasty', 'holder')");
	is($run->finish->{code}, 0, 'timeouts of the role: exit code');
}

# A standby takes the primary's place, and is promoted a while later.
{
	my $standby = make_standby($node, 'heir');
	my $run = start_run(qw(-v --ttl 600 heir));
	$node->wait_for_catchup($standby);
	$standby->stop;
	$node->stop('immediate');
	$standby->append_conf('postgresql.conf', 'port = ' . $node->port);
	$standby->start;
	$run->wait_err(qr/the server cannot be reached: cannot execute .* during recovery/);
	$standby->promote;
	$run->wait_err(qr/is renewed again/);
	is(end_run($run)->{code}, 3, 'a node that is promoted late: ridden out');
	is(sql('SELECT count(*) FROM dlock_leases'), 0, 'a node that is promoted late: released');
	$standby->stop;
	$node->start;
	sql("SELECT dlock_force_release('heir', 'next') FROM generate_series(1, 2)");
}

# A standby is promoted, and the primary is gone.
{
	my $standby = make_standby($node, 'standby');
	my $hosts = 'host=' . join(',', $standby->host, $node->host) . ' port=' . join(',', $standby->port, $node->port) . " dbname=$db";
	my $run = start_run('-d', $hosts, qw(--ttl 600 failover));
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
