# Proves: dlock run passes on what its command gets and gives, and keeps the
# promise of the lease: when that is lost, the command and all that it has started is
# gone before anybody else's starts; when dlock itself is killed, the command is.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockBeside;
use DLockCli;
use DLockSession;
use DLockStall;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', conf => 'max_connections = 150');
my $db = 'postgres';
use_server($node);
my ($session, $dir);

sub held
{
	my ($name) = @_;
	return $session->query_safe("SELECT count(*) FROM dlock_leases WHERE name = '$name'");
}

# The process that a command has told the id of in a file.
sub told_pid
{
	my ($file) = @_;
	my $pid;

	wait_until(sub { ($pid) = slurp_file($file) =~ /^(\d+)\n/ if -s $file; defined $pid }) or die "no pid in $file";
	unlink $file;
	return $pid;
}

# As the kernel has it; "X" if there is no such process.
sub state_of
{
	my ($pid) = @_;

	open my $fh, '<', "/proc/$pid/stat" or return 'X';
	my $stat = <$fh> // '';
	return $stat =~ /^\d+ \(.*\) ([^ ])/s ? $1 : 'X';
}

sub runs
{
	my ($pid) = @_;

	return state_of($pid) !~ /[ZX]/;
}

# Parts run beside each other, on locks of their own.
sub part
{
	my ($name, $code) = @_;

	return $name => sub {
		$session = DLockSession->new($node, $db);
		$dir = PostgreSQL::Test::Utils::tempdir();
		$code->();
		$session->quit;
	};
}

beside(
	part('a lease that is taken away', sub {
		# A lease that is taken away.  The command takes its time to end; the next one must
		# not begin before.
		foreach my $how ('at once', 'slowly', 'never by itself')
		{
			my $file = "$dir/log";
			my %trap = ('at once' => '', 'slowly' => 'trap "sleep 0.6; exit 0" TERM;', 'never by itself' => 'trap "" TERM;');
			my $body = "$trap{$how} echo \$\$ >$dir/pid; while :; do sleep 0.02; echo first >>$file; done";
			unlink $file;
			my $first = DLockCli->start(qw(run --kill-after 1 --ttl 600 --lock-delay 10m lost sh -c), "sh -c '$body' & wait; wait");
			my $pid = told_pid("$dir/pid");
			my $second = DLockCli->start(qw(run lost sh -c), "echo second >>$file; sleep 0.2");
			run_waits($node, 'lost');
			my $forced = mono_now();
			is(cli(qw(force-release lost --reason test))->{out}, "1\n", "taken away, ends $how: forced");
			$first->finish;
			my $gone = mono_now();
			is($first->{code}, 76, "taken away, ends $how: exit code");
			ok(!runs($pid), "taken away, ends $how: gone");
			like($first->{err}, qr/the lease on "lost" is lost; stopping the command\n.*release by force/, "taken away, ends $how: told");
			in_time($forced, $gone, 90, "taken away, ends $how: soon, and not with the next renewal");
			is($second->finish->{code}, 0, "taken away, ends $how: the next one");

			# The lock was opened when the command was gone, and not by the end of its delay.
			like(slurp_file($file), qr/^(first\n)*second\n\z/, "taken away, ends $how: never both");
		}
		{
			my $run = DLockCli->start(qw(run --on-lost warn lost sh -c), "echo up; while [ ! -e $dir/go ]; do sleep 0.05; done; exit 5");
			$run->wait_out(qr/up/);
			cli(qw(force-release lost --reason test));
			$run->wait_err(qr/the command goes on without it/);
			ok(!$run->ended, 'only a warning');
			append_to_file("$dir/go", '');
			is($run->finish->{code}, 76, 'only a warning: but the lease was lost');
			cli(qw(force-release lost --reason again));
		}
		{
			# By itself the lock opens when the command has been killed at the latest, and some more.
			my $run = DLockCli->start(qw(run --ttl 600 --kill-after 100 --on-lost warn delayed sh -c), 'echo up; exec sleep 600');
			$run->wait_out(qr/up/);
			my (undef, $from, $to) = timed_query($session, "SELECT dlock_force_release('delayed', 'test')");
			is($session->query_safe("SELECT state FROM dlock_leases WHERE name = 'delayed'"), 'closed', 'lock delay: closed');
			remaining_is_exact($session, 'delayed', 102, $from, $to, 'lock delay');
			$run->signal('TERM');
			is($run->finish->{code}, 76, 'lock delay: the end');
			is(held('delayed'), 0, 'lock delay: open when the command is gone');
		}
		{
			# By its token, so that somebody else has it before anything is noticed.
			my $run = DLockCli->start(qw(run --lock-delay 0 lost sh -c), 'echo "token $DLOCK_TOKEN"; exec sleep 600');
			my ($token) = $run->wait_out(qr/token (\d+)/) ? $run->out =~ /(\d+)/ : ();
			my $next = $session->query_safe("SELECT dlock_release_token('lost', $token); SELECT dlock_acquire('lost', 'thief', '1 h')");
			is($run->finish->{code}, 76, 'stolen: exit code');
			like($run->{err}, qr/ended before its deadline, as after a release by force/, 'stolen: told');
			is($session->query_safe("SELECT owner FROM dlock_leases WHERE name = 'lost'"), 'thief', 'stolen: the thief keeps it');
			$session->query_safe("SELECT dlock_release('lost', 'thief')");
		}
		foreach my $mode ([qw(-s)], [qw(--permits 2)], [qw(--mode PW)])
		{
			my $run = DLockCli->start('run', @$mode, 'several', 'sh', '-c', 'echo up; exec sleep 600');
			$run->wait_out(qr/up/);
			$session->query_safe("SELECT dlock_acquire('several', 'another', '1 h', " . ($mode->[0] eq '-s' ? "mode => 'shared')" : $mode->[0] eq '--mode' ? "mode => 'CR')" : 'permits => 2)'));

			# It asks at least once a second, and so has seen both by then.
			my $ends = "SELECT expires_at FROM dlock_leases WHERE name = 'several' AND owner <> 'another'";
			my $asked = $session->query_safe($ends);
			ok(wait_until(sub { $session->query_safe("SELECT ($ends) > timestamptz '$asked' + '1 s'") eq 't' }), "@$mode: it asks");
			ok(!$run->ended, "@$mode: another holder is no loss");
			cli(qw(force-release several --reason test));
			is($run->finish->{code}, 76, "@$mode: a loss is noticed");
			$session->query("SELECT dlock_force_release('several', 'next')");
		}
	}),
	part('many who count', sub {
		# Many who count without any other protection.  They come some at a time, for a busy
		# machine may not connect all of them within the ten seconds that each waits for that.
		{
			my ($n, $lot) = (100, 10);
			my @runs;
			append_to_file("$dir/count", "0\n");
			$session->query_safe("SELECT dlock_acquire('counter', 'holder', '1 h')");
			while (@runs < $n)
			{
				push @runs, map { DLockCli->start(qw(run counter sh -c), "read n <$dir/count; echo \$((n + 1)) >$dir/count") } 1 .. $lot;
				run_waits($node, 'counter', scalar @runs);
			}
			$session->query_safe("SELECT dlock_release('counter', 'holder')");
			is(scalar(grep { $_->finish->{code} == 0 } @runs), $n, "$n at a time: all have counted");
			is(slurp_file("$dir/count"), "$n\n", "$n at a time: no increment is lost") or diag(map { $_->{err} } @runs);
		}
	}),
	part('signals', sub {
		# Signals are passed on to all of the group, which goes on if it likes.
		foreach my $signal (qw(INT HUP QUIT USR1 USR2 WINCH))
		{
			my $run = DLockCli->start(qw(run sig sh -c),
				"trap 'echo above' $signal; sh -c 'trap \"echo below; exit\" $signal; echo up; while :; do sleep 0.05; done'; exit 3");
			$run->wait_out(qr/up/);
			$run->signal($signal);
			$run->finish;
			is($run->{code}, 3, "SIG$signal: passed on");
			like($run->{out}, qr/above/, "SIG$signal: to the command");
			like($run->{out}, qr/below/, "SIG$signal: to what it has started");
		}
		{
			my $run = DLockCli->start({ before => sub { $SIG{HUP} = 'IGNORE' } }, qw(run hup sh -c), 'echo up; sleep 1; exit 4');
			$run->wait_out(qr/up/);
			$run->signal('HUP');
			is($run->finish->{code}, 4, 'SIGHUP: not if it was ignored');
		}

		{
			# Killed while it waits: its backend notices, and is not granted the lock.
			$session->query_safe("SELECT dlock_acquire('q', 'holder', '1 h')");
			my $run = DLockCli->start(qw(run q true));
			run_waits($node, 'q');
			$run->signal('KILL');
			$run->finish;
			ok(wait_until(sub { $session->query_safe("SELECT count(*) FROM dlock_waiters WHERE name = 'q'") == 0 }, 30), 'SIGKILL: leaves the queue');
			$session->query_safe("SELECT dlock_release('q', 'holder')");
		}
	}),
	part('two runs', sub {
		# Two runs are two owners; options of the lease.
		{
			my $first = DLockCli->start(qw(run --owner same --payload), '{"v": 1}', 'b', 'sh', '-c', 'echo up; exec sleep 600');
			$first->wait_out(qr/up/);
			is($session->query_safe("SELECT ttl, payload FROM dlock_leases WHERE name = 'b'"), '00:01:00|{"v": 1}', 'ttl and payload');
			cli_is([qw(run -n --owner same b true)], { code => 75, err => qr{"b" was not acquired\n.*held by "same/} }, 'refused, whatever the owner is called');
			cli_is([qw(run -n -E 33 -q b true)], { code => 33 }, 'refused, quietly, with a code');
			my $second = DLockCli->start(qw(run b true));
			run_waits($node, 'b');
			$first->signal('TERM');
			is($first->finish->{code}, 143, 'a signal is passed on');
			is($second->finish->{code}, 0, 'who waited gets it');
			cli_is([qw(run -s c), cli_program(), qw(run -n -s c true)], {}, 'shared');
			cli_is([qw(run --permits 2 d), cli_program(), qw(run -n --permits 2 d), cli_program(), qw(run -n --permits 2 d true)], { code => 75, err => qr/not acquired/ }, 'permits');
			cli_is([qw(run --path t/a), cli_program(), qw(run -n --path t/b true)], {}, 'paths');

			# In each other, a wait that would never end is refused; one for the lock of another database is none.
			foreach my $outer ([], ['-s'])
			{
				cli_is([ 'run', @$outer, 'self', cli_program(), qw(run between), cli_program(), qw(run -E 9 self echo) ],
					{ code => 9, err => qr/a run around this one holds "self"/ }, "within itself: @$outer");
			}
			cli_is([ qw(run -s self), cli_program(), qw(run -s self echo in) ], { out => "in\n" }, 'within itself: shared');
			cli_is([ { env => { DLOCK_TOKENS => 'self=1' } }, qw(run self echo in) ], { out => "in\n" }, 'a token that is not held');
		}
	}),
	part('the environment', sub {
		# The environment, also in a run inside another.
		{
			my $show = 'echo "$DLOCK_HELD|$DLOCK_NAME|$DLOCK_TOKEN|$DLOCK_OWNER|$DLOCK_EXPIRES_AT|$DLOCK_TOKENS"';
			my $run = cli({ env => { DLOCK_TOKEN => 'stale', PGOPTIONS => '-c work_mem=1MB' } },
				qw(run --owner me --ttl 1h), 'outer x', 'sh', '-c', "$show; \"\$0\" run inner -c '$show'; $show", cli_program());
			my ($outer, $inner, $again) = split /\n/, $run->{out};
			my @outer = split /\|/, $outer;
			my @inner = split /\|/, $inner;
			is(scalar @outer, 6, 'environment: set') or diag($run->{err});
			is_deeply([ @outer[ 0, 1 ] ], [ 1, 'outer x' ], 'environment: name');
			like($outer[2], qr/^\d+$/, 'environment: token');
			like($outer[3], qr{^me/[0-9a-f]{8}$}, 'environment: owner');
			like($outer[4], qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/, 'environment: end');
			is($outer[5], "\"outer x=$outer[2]\"", 'environment: tokens');
			is($inner[1], 'inner', 'environment inside: name');
			cmp_ok($inner[2], '>', $outer[2], 'environment inside: token');
			is($inner[5], "$outer[5],inner=$inner[2]", 'environment inside: tokens of both');
			is($again, $outer, 'environment: as it was');
			my $left = $session->query_safe("SELECT extract(epoch FROM timestamptz '$outer[4]' - clock_timestamp())");
			cmp_ok($left, '>', 3500, 'environment: the end is in an hour');
			cmp_ok($left, '<=', 3600, 'environment: the end is in an hour and no more');

			like(cli({ env => { PGOPTIONS => '-c work_mem=1MB' } }, qw(run), 'a b', qw(sh -c), 'echo "$PGOPTIONS $DLOCK_TOKEN"')->{out},
				qr/^-c work_mem=1MB -c dlock\.tokens="a\\ b=(\d+)" \1$/, 'PGOPTIONS: extended');
			like(cli(qw(run), 'a b', qw(psql -XAtc), 'SHOW dlock.tokens')->{out}, qr/^"a b=\d+"$/, 'PGOPTIONS: the server understands it');
			like(cli({ env => { PGOPTIONS => '-c work_mem=1MB' } }, qw(run --no-tokens env sh -c), 'echo "$PGOPTIONS"')->{out},
				qr/^-c work_mem=1MB$/, 'PGOPTIONS: left alone if told so');
		}
	}),
	part('dlock killed', sub {
		# dlock killed: the command is killed at once.  What it has started goes on.
		{
			my $run = DLockCli->start(qw(run --ttl 600 dead sh -c), "sh -c 'echo \$\$ >$dir/below; exec sleep 600' & echo \$\$ >$dir/pid; exec sleep 600");
			my ($pid, $below) = map { told_pid("$dir/$_") } qw(pid below);
			$run->signal('KILL');
			ok(wait_until(sub { !runs($pid) }), 'SIGKILL to dlock: the command is gone');
			is(held('dead'), 1, 'SIGKILL to dlock: the lease is there still');
			ok(runs($below), 'SIGKILL to dlock: what the command has started is not killed');
			kill 'KILL', $below;
			$run->finish;
			$session->query("SELECT dlock_force_release('dead', 'next')") for 1 .. 2;
		}

		# Nothing keeps open what a caller may wait for the end of.
		{
			my $out = `'@{[ cli_program() ]}' run pipe2 sh -c 'echo line; exit 2'`;
			is("$out$?", "line\n512", 'in a pipe');
		}

		# What is left in the background goes on, without the lease; but not if that is lost.
		{
			my $run = cli(qw(run back sh -c), "sleep 600 >/dev/null 2>&1 & echo \$! >$dir/pid");
			my $pid = told_pid("$dir/pid");
			is($run->{code}, 0, 'background: over when the command is');
			ok(runs($pid), 'background: it goes on');
			is(held('back'), 0, 'background: the lease is released');
			kill 'KILL', $pid;
		}
	}),
	part('what it gets and gives', sub {
		# What it gets and gives.
		cli_is([qw(run a true)], {}, 'true');
		cli_is([ qw(run a -- sh -c), 'exit 5' ], { code => 5 }, "the command's exit code");
		cli_is([ 'run', '-c', 'exit 6', 'a' ], { code => 6 }, 'a shell');
		cli_is([ qw(run a -c), 'exit 7' ], { code => 7 }, 'a shell, as flock has it');
		cli_is([ qw(run a sh -c), 'printf "%s\n" "$0 $*"', '-n', '-c', '--', 'x  y' ], { out => "-n -c -- x  y\n" }, 'arguments are left alone');
		cli_is([ { in => "one\ntwo\n" }, qw(run a cat) ], { out => "one\ntwo\n" }, 'standard input');
		cli_is([ qw(run a sh -c), 'echo out; echo err >&2' ], { out => "out\n", err => qr/^err$/ }, 'standard output and error');
		cli_is([ qw(run a sh -c), 'kill -USR1 $$' ], { code => 138 }, 'ended by a signal');
		cli_is([ 'run', 'a', "$dir/nothing" ], { code => 127, err => qr/could not execute.*No such file/ }, 'not found');
		cli_is([ 'run', 'a', $dir ], { code => 126, err => qr/could not execute/ }, 'not executable');
		cli_is([ { env => { PATH => '/usr/bin:/bin' } }, qw(run a -n job) ], { code => 127, err => qr/could not execute "-n".*\ndlock: hint: Options come before NAME\.\n\z/ }, 'an option behind the name');
		is(held('a'), 0, 'nothing is left');
	}));

is($node->safe_psql($db, 'SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits in the end');
$node->stop;
done_testing();
