# Proves: those who wait for one lock cost nobody else anything, and one end of a
# lease wakes no herd.  A backend whose owner holds nothing does not look for
# deadlocks; one that has waited for long still learns of a deadlock in time when
# the ring is closed behind its back.  An owner that works on by another backend does
# not wake the one that waits with each lock.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockQueue;
use DLockSession;
use DLockStall;
use DLockTest;
use IPC::Run ();
use List::Util qw(sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $db = 'postgres';
my $crowd = 200;
my $node = start_node('main',
	conf => "max_connections = " . ($crowd + 30) . "\nsynchronous_commit = off\n");
my $ctl = DLockSession->new($node, $db, name => 'control');

# A crowd of pgbench's clients, each of which asks once.
sub start_crowd
{
	my ($deadlock_timeout, $mode, $sql) = @_;
	my $script = PostgreSQL::Test::Utils::tempdir . '/crowd.sql';
	$sql //= sprintf "SELECT dlock_acquire('hot', 'w' || :client_id, '1 h', NULL, mode => '%s')", $mode // 'exclusive';
	append_to_file($script, "$sql;\n");
	local $ENV{PGOPTIONS} = "-c deadlock_timeout=$deadlock_timeout";
	my $waiters = IPC::Run::start(
		[ $node->installed_command('pgbench'), '-n', '-h', $node->host, '-p', $node->port,
			'-c', $crowd, '-j', 2, '-t', 1, '-f', $script, $db ],
		'>', \my $out, '2>', \my $err);
	wait_until(
		sub { $ctl->query_safe("SELECT count(*) FROM dlock_waiters WHERE name = 'hot' AND owner LIKE 'w%'") == $crowd },
		120)
	  or die "the crowd does not come: $err";
	return $waiters;
}

sub end_crowd
{
	my ($waiters) = @_;

	$ctl->query_safe("SELECT pg_terminate_backend(pid) FROM dlock_waiters WHERE name = 'hot'");
	$waiters->kill_kill;
	wait_until(sub { $ctl->query_safe("SELECT count(*) FROM dlock_waiters WHERE name = 'hot'") == 0 }, 60);
	$ctl->query_safe("SELECT dlock_force_release('hot', 'test')");
	queues_are_empty($ctl, 'the crowd is gone');
	return;
}

# The processor time that processes have used up to now, in seconds.
sub processor_time
{
	return sum0(map { (split ' ', slurp_file("/proc/$_/schedstat"))[0] / 1e9 } @_);
}

# The backends of the crowd, all asleep: one that is seen in the queue may have some
# steps to go until it sleeps.
sub sleeping_crowd
{
	my @pids = split /\n/, $ctl->query_safe("SELECT pid FROM dlock_waiters WHERE name = 'hot'");
	my $before = -1;

	wait_until(
		sub {
			return 0 if $ctl->query_safe("SELECT count(*) FROM pg_stat_activity WHERE pid IN (" . join(', ', 0, @pids) . ") AND wait_event_type = 'Extension'") != @pids;
			my $now = sum0(map { sleeps($_) } @pids);
			my $same = $now == $before && !grep { slurp_file("/proc/$_/stat") !~ /\) S /s } @pids;
			$before = $now;
			return $same;
		}) or die 'the crowd does not sleep';
	return @pids;
}

# A crowd that waits takes next to nothing.  What it would cost if each looked for
# deadlocks each 100 ms, or called all that wait below the same path, is more than all that
# a machine has.
foreach my $case (
	[ 'for a lock', "dlock_acquire('hot', 'holder', '1 h')" ],
	[ 'for paths', "count(dlock_acquire('hot/' || i, 'holder', '1 h')) FROM generate_series(0, $crowd) i",
		"SELECT dlock_acquire_path('hot/' || :client_id, 'w' || :client_id, '1 h', NULL)" ])
{
	my ($what, $held, $sql) = @$case;

	$ctl->query_safe("SELECT $held");
	my $waiters = start_crowd('100ms', undef, $sql);
	my @pids = split /\n/, $ctl->query_safe("SELECT pid FROM dlock_waiters WHERE name = 'hot'");
	my ($begin, $before) = (mono_now(), processor_time(@pids));
	usleep(2_000_000);
	my $share = (processor_time(@pids) - $before) / (mono_now() - $begin);
	note sprintf('the crowd %s uses %.2f processors', $what, $share);
	cmp_ok($share, '<', 0.15, "a crowd that waits $what does not slow the others");
	end_crowd($waiters);
	$ctl->query_safe("SELECT dlock_release_all('holder')");
}

# An expiry wakes the first, which arms the next; nobody else.
{
	$ctl->query_safe("SELECT dlock_acquire('hot', 'holder', '1 h')");
	my $waiters = start_crowd('1h');
	my ($holder, @woken) = 'holder';

	# Some may be woken besides, by the timer of a backend's statistics or when they have slept
	# for a minute; not each time.
	foreach my $turn (0 .. 2)
	{
		my @pids = sleeping_crowd();
		is(scalar @pids, $crowd - $turn, 'all wait');
		my %before = map { $_ => sleeps($_) } @pids;
		$ctl->query_safe("SELECT dlock_renew('hot', '$holder', '200 ms')");
		my $next;
		ok( wait_until(
				sub { ($next = $ctl->query_safe("SELECT owner FROM dlock_leases WHERE name = 'hot'")) =~ /^w/ && $next ne $holder }, 30),
			'one of the crowd gets the lock');
		$holder = $next;
		usleep(300_000);
		@woken = grep { -e "/proc/$_/status" && sleeps($_) != $before{$_} } @pids;
		last if @woken <= 3 || @woken > $crowd / 2;
	}
	cmp_ok(scalar @woken, '<=', 3, 'an expiry wakes no herd');
	end_crowd($waiters);
}

# Nor does an expiry before a request for several locks that cannot use it; nor one beside
# a crowd for whom the lock was free before.
foreach my $case (
	[ 'behind a request for several', "dlock_acquire('hot', 'expires', '1 h')", "dlock_acquire_all('{hot, hot/$crowd}', 'first', '1 h', NULL)" ],
	[ 'waiting for paths', "dlock_acquire_path('hot/expires', 'expires', '1 h')", "dlock_acquire_path('hot/$crowd', 'first', '1 h', NULL)",
		"SELECT dlock_acquire_path('hot/' || :client_id, 'w' || :client_id, '1 h', NULL)" ])
{
	my ($what, $expires, $request, $sql) = @$case;
	my $first = DLockSession->new($node, $db, name => 'first', setup => "SET deadlock_timeout = '1 h'");

	$ctl->query_safe("SELECT count(dlock_acquire('hot/' || i, 'holder', '1 h')) FROM generate_series(0, $crowd) i");
	$ctl->query_safe("SELECT $expires");
	enqueue($ctl, $first, "SELECT $request");
	my $waiters = start_crowd('1h', undef, $sql);

	# That it ends earlier is a change that wakes them.
	$ctl->query_safe("SELECT dlock_renew_all('expires', '6 s')");
	my %before = map { $_ => sleeps($_) } grep { $_ != $first->{pid} } sleeping_crowd();
	is(scalar keys %before, $crowd, "$what: all wait");
	my $held = "SELECT count(*) > 0 FROM dlock_leases WHERE owner = 'expires'";
	is($ctl->query_safe($held), 't', "$what: so far");
	ok(wait_until(sub { $ctl->query_safe($held) eq 'f' }), "$what: a lease expires");
	usleep(300_000);
	my @woken = grep { sleeps($_) != $before{$_} } keys %before;
	cmp_ok(scalar @woken, '<=', 3, "$what: an expiry wakes no herd");
	end_crowd($waiters);
	$ctl->query_safe("SELECT dlock_release_all('holder')");
	$first->quit;
}

# A ring that is closed by a conversion, while the two that wait have waited for so
# long that they look rarely.
{
	my ($a1, $a2, $b1, $b2, $c) = open_sessions($node, $db, 5, name => 's');

	$_->query_safe("SET deadlock_timeout = '1 s'") foreach $a1, $b2;
	$b1->query_safe("SELECT dlock_acquire('one', 'b', '1 h')");
	$c->query_safe("SELECT dlock_acquire('two', 'c', '1 h', mode => 'shared')");
	my $token = $a2->query_safe("SELECT dlock_acquire('two', 'a', '1 h', mode => 'NL')");
	enqueue($ctl, $a1, "SELECT dlock_acquire('one', 'a', '1 h', NULL)");
	enqueue($ctl, $b2, "SELECT dlock_acquire('two', 'b', '1 h', NULL)");

	# After 1, 2, 4 and 8 s they look again after 16 s.
	usleep(8_500_000);
	isnt($a2->query_safe("SELECT dlock_convert('two', $token, 'CR')"), '', 'the conversion is granted');
	my $closed = mono_now();
	$c->query_safe("SELECT dlock_release('two', 'c')");
	my ($told) = wait_any(30, $a1, $b2);
	is($told->result->{state}, '40P01', 'the ring is found');
	in_time($closed, mono_now(), 6, 'at once, though they looked rarely');
	$_->quit foreach $a1, $a2, $b1, $b2, $c;
}

# What an owner gets by one backend makes the one by which it waits look for a deadlock
# after deadlock_timeout, and again after the next one; not with each lock.
{
	my $timeout = 0.2;
	my ($waiter, $worker) = open_sessions($node, $db, 2, name => 's');

	$waiter->query_safe("SET deadlock_timeout = '" . 1000 * $timeout . " ms'");
	$ctl->query_safe("SELECT dlock_acquire('hot', 'holder', '1 h')");
	enqueue($ctl, $waiter, "SELECT dlock_acquire('hot', 'both', '1 h', NULL)");
	my $before = sleeps($waiter->{pid});
	my $begin = mono_now();
	my ($pairs, $woken, %worked) = (0, 0);

	# For so many times deadlock_timeout as there was work in: neither the worker nor the
	# waiter does anything while the machine stands still.
	while (keys %worked < 20 || keys %worked < 40 && $woken < 12)
	{
		$worked{ int((mono_now() - $begin) / $timeout) } = 1;
		$worker->query_safe("SELECT count(dlock_acquire('both-' || i, 'both')), count(dlock_release('both-' || i, 'both'))"
			  . ' FROM generate_series(1, 100) i');
		$pairs += 100;
		$woken = sleeps($waiter->{pid}) - $before;
	}
	my $looks = (mono_now() - $begin) / $timeout;
	note sprintf('woken %d times by %d locks; deadlock_timeout passed %.0f times', $woken, $pairs, $looks);
	# Once to be told, once to look, and the locks that it takes for that may be busy.
	cmp_ok($woken, '<=', 4 * ($looks + 2), 'an owner that works on does not wake the backend by which it waits');
	# Who is told once only looks after 1, 2, 4 and 8 times deadlock_timeout, and each eight times after that.
	cmp_ok($woken, '>=', 12, 'but sees to it that it looks');
	$ctl->query_safe("SELECT dlock_release('hot', 'holder')");
	isnt($waiter->result->{out}, '', 'and it gets the lock');
	$ctl->query_safe("SELECT dlock_force_release('hot', 'test')");
	$_->quit foreach $waiter, $worker;
}

# One release lets in a whole crowd that shares the lock.
{
	$ctl->query_safe("SELECT dlock_acquire('hot', 'holder', '1 h')");
	my $waiters = start_crowd('1h', 'shared');
	$ctl->query_safe("SELECT dlock_release('hot', 'holder')");
	$waiters->finish;
	is($ctl->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'hot' AND mode = 'shared'"), $crowd, 'a crowd that shares: all have it');
	end_crowd($waiters);
}

$ctl->quit;
$node->stop;
done_testing();
