# Proves: those who wait for one lock cost nobody else anything, and one end of a
# lease wakes no herd.  A backend that has waited for long still learns of a deadlock in
# time when the ring is closed behind its back.  An owner that works on by another backend
# does not wake the one that waits.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockQueue;
use DLockSession;
use DLockTest;
use IPC::Run ();
use List::Util qw(sum0);
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $crowd = 200;
my $node = start_fault_node('main',
	conf => "max_connections = " . ($crowd + 30) . "\nsynchronous_commit = off\n");
my $ctl = DLockSession->new($node, $db, name => 'control');

# A crowd of pgbench's clients, each of which asks once.  The timer of the server for a
# backend's statistics would wake it, and is off once they have been sent.
sub start_crowd
{
	my ($deadlock_timeout, $mode, $sql) = @_;
	my $script = PostgreSQL::Test::Utils::tempdir . '/crowd.sql';
	$sql //= sprintf "SELECT dlock_acquire('hot', 'w' || :client_id, '1 h', NULL, mode => '%s')", $mode // 'exclusive';

	# The first grant in a stripe of the store makes a page, which is not to be counted for the crowd.
	append_to_file($script, "SELECT dlock_acquire('own' || :client_id, 'w');\nSELECT dlock_release('own' || :client_id, 'w');\n"
		  . "SELECT pg_stat_force_next_flush();\n$sql;\n");
	local $ENV{PGOPTIONS} = "-c deadlock_timeout=$deadlock_timeout";
	my $waiters = IPC::Run::start(
		[ $node->installed_command('pgbench'), '-n', '-h', $node->host, '-p', $node->port,
			'-c', $crowd, '-j', 2, '-t', 1, '-f', $script, $db ],
		'>', \my $out, '2>', \my $err);
	wait_until(
		sub { $ctl->query_safe("SELECT count(*) FROM dlock_waiters WHERE name = 'hot' AND owner LIKE 'w%'") == $crowd },
		120)
	  or die "the crowd does not come: $err";
	settle($ctl);
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

# What those that wait for the lock have done up to now, by process id.
sub work
{
	my %work;

	foreach (split /\n/, $ctl->query_safe("SELECT pid, fault_counts(pid) FROM dlock_waiters WHERE name = 'hot'"))
	{
		my ($pid, $counts) = split /\|/;
		$work{$pid} = { split ' ', $counts };
	}
	return %work;
}

# All that they have done of one kind.
sub total
{
	my ($kind, %work) = @_;

	return sum0(map { $_->{$kind} } values %work);
}

# The processes that were woken, of those that still wait.
sub woken
{
	my ($before, $after) = @_;

	return join ' ', grep { $after->{$_}{woken} != $before->{$_}{woken} } keys %$after;
}

# A crowd that waits does next to nothing: each wakes once in deadlock_timeout and a millisecond
# for its number, of them one checks for a deadlock for all, and nobody wakes anybody.  A look asks what is held, and once
# more whether its own owner holds it.  It does not depend on how many wait, but for paths:
# those in front in the queue of the path above are looked through.
foreach my $case (
	[ 'for a lock', 16, "dlock_acquire('hot', 'holder', '1 h')" ],
	[ 'for paths', 2 * $crowd + 32, "count(dlock_acquire('hot/' || i, 'holder', '1 h')) FROM generate_series(0, $crowd) i",
		"SELECT dlock_acquire_path('hot/' || :client_id, 'w' || :client_id, '1 h', NULL)" ])
{
	my ($what, $requests, $held, $sql) = @$case;

	$ctl->query_safe("SELECT $held");
	my $waiters = start_crowd('1s', undef, $sql);
	my %before = work();
	advance(1.5, $ctl) foreach 1 .. 23;
	my %after = work();
	is(scalar keys %after, $crowd, "a crowd waits $what");
	my %cost = map { $_ => total($_, %after) - total($_, %before) } qw(naps woken wakes records flushes leases places entries requests);

	# A signal of the server's own may wake a backend, which then looks once more, or before
	# its timer would have woken it.
	my $looks = $cost{naps};
	cmp_ok($looks, '>=', 23 * $crowd, "a crowd that waits $what: each looks so often");
	cmp_ok($cost{woken}, '<=', 24 * $crowd, "a crowd that waits $what: and is woken no more often");
	is("@cost{qw(wakes records flushes)}", '0 0 0', "a crowd that waits $what: wakes nobody and writes nothing");
	cmp_ok($cost{leases}, '<=', 4 * $looks, "a crowd that waits $what: visits few leases");
	cmp_ok($cost{places}, '<=', 8 * $looks, "a crowd that waits $what: few places of processes");
	cmp_ok($cost{entries}, '<=', 2 * $looks, "a crowd that waits $what: few locks");
	cmp_ok($cost{requests}, '<=', $requests * $looks, "a crowd that waits $what: few requests");
	end_crowd($waiters);
	$ctl->query_safe("SELECT dlock_release_all('holder')");
}

# Others that come and go beside a crowd do not go through it, nor does the one that a
# release lets in.
{
	my $holder = DLockSession->new($node, $db, name => 'holder');

	$holder->query_safe("SELECT dlock_acquire('hot', 'holder', '1 h')");
	my $waiters = start_crowd('1h');
	cost_is($ctl, $holder, "SELECT dlock_acquire('hot', 'other')", { entries => 1, leases => 1, requests => 1, wakes => 0, records => 0 }, 'a refusal beside a crowd');
	cost_is($ctl, $holder, "SELECT dlock_renew('hot', 'holder')", { entries => 1, leases => 1, requests => 0, wakes => 0, records => 0 }, 'a renewal beside a crowd');
	my %crowd_before = work();
	my %before = counts($ctl, 0);
	cost_is($ctl, $holder, "SELECT dlock_release('hot', 'holder')", { entries => 1, leases => 1, requests => 2, wakes => 1, records => 1 }, 'a release beside a crowd');
	settle($ctl);
	my %after = counts($ctl, 0);

	my %waiting = work();
	is($after{records} - $before{records}, 2, 'it is granted to one of the crowd');
	is(scalar keys %waiting, $crowd - 1, 'the others wait');
	is(woken(\%crowd_before, \%waiting), '', 'and none of them is woken');
	cmp_ok($after{requests} - $before{requests}, '<=', 11, 'a release and the grant that follows visit few requests');
	cmp_ok($after{leases} - $before{leases}, '<=', 4, 'and few leases');
	end_crowd($waiters);
	$holder->quit;
}

# An expiry wakes the first and nobody else.
{
	$ctl->query_safe("SELECT dlock_acquire('hot', 'holder', '1 h')");
	my $waiters = start_crowd('1h');
	$ctl->query_safe("SELECT dlock_renew('hot', 'holder', '200 ms')");
	settle($ctl);
	my %before = work();
	is(scalar keys %before, $crowd, 'all wait');
	advance(0.2, $ctl);
	like($ctl->query_safe("SELECT owner FROM dlock_leases WHERE name = 'hot'"), qr/^w/, 'one of the crowd gets the lock');
	my %after = work();
	is(scalar keys %after, $crowd - 1, 'the others wait on');
	is(woken(\%before, \%after), '', 'and none of them was woken');
	end_crowd($waiters);
}

# Nor does an expiry before a request for several locks that cannot use it, which alone
# looks; nor one beside a crowd for whom the lock was free before.
foreach my $case (
	[ 'behind a request for several', 1, "dlock_acquire('hot', 'expires', '1 h')", "dlock_acquire_all('{hot, hot/$crowd}', 'first', '1 h', NULL)" ],
	[ 'waiting for paths', 0, "dlock_acquire_path('hot/expires', 'expires', '1 h')", "dlock_acquire_path('hot/$crowd', 'first', '1 h', NULL)",
		"SELECT dlock_acquire_path('hot/' || :client_id, 'w' || :client_id, '1 h', NULL)" ])
{
	my ($what, $looks, $expires, $request, $sql) = @$case;
	my $first = DLockSession->new($node, $db, name => 'first', setup => "SET deadlock_timeout = '1 h'; SELECT pg_stat_force_next_flush()");

	$ctl->query_safe("SELECT count(dlock_acquire('hot/' || i, 'holder', '1 h')) FROM generate_series(0, $crowd) i");
	$ctl->query_safe("SELECT $expires");
	enqueue($ctl, $first, "SELECT $request");
	my $waiters = start_crowd('1h', undef, $sql);

	# That it ends earlier is a change that wakes them.
	$ctl->query_safe("SELECT dlock_renew_all('expires', '6 s')");
	advance(5.999999, $ctl);
	my %before = work();
	is(scalar keys %before, $crowd + 1, "$what: all wait");
	my $held = "SELECT count(*) > 0 FROM dlock_leases WHERE owner = 'expires'";
	is($ctl->query_safe($held), 't', "$what: so far");
	advance(0.000001, $ctl);
	is($ctl->query_safe($held), 'f', "$what: a lease expires");
	my %after = work();
	is(scalar keys %after, $crowd + 1, "$what: they wait on");
	delete @before{ $first->pid }, delete @after{ $first->pid } if $looks;
	is(woken(\%before, \%after), '', "$what: an expiry wakes no herd");
	end_crowd($waiters);
	$ctl->query_safe("SELECT dlock_release_all('holder')");
	$first->quit;
}

# A ring that is closed by a conversion, while the two wait that are in it.
{
	my ($a1, $a2, $b1, $b2, $c) = open_sessions($node, $db, 5, name => 's');

	$_->query_safe("SET deadlock_timeout = '1 s'") foreach $a1, $b2;
	$b1->query_safe("SELECT dlock_acquire('one', 'b', '1 h')");
	$c->query_safe("SELECT dlock_acquire('two', 'c', '1 h', mode => 'shared')");
	my $token = $a2->query_safe("SELECT dlock_acquire('two', 'a', '1 h', mode => 'NL')");
	enqueue($ctl, $a1, "SELECT dlock_acquire('one', 'a', '1 h', NULL)");
	enqueue($ctl, $b2, "SELECT dlock_acquire('two', 'b', '1 h', NULL)");

	advance(1.5, $ctl) foreach 1 .. 3;
	isnt($a2->query_safe("SELECT dlock_convert('two', $token, 'CR')"), '', 'the conversion is granted');
	$c->query_safe("SELECT dlock_release('two', 'c')");
	still_waits($ctl, 'nobody is told at once', $a1, $b2);
	advance(1.5, $ctl);
	my ($told) = wait_any(30, $a1, $b2);
	is($told->result->{state}, '40P01', 'the ring is found after deadlock_timeout');
	$_->quit foreach $a1, $a2, $b1, $b2, $c;
}

# What an owner gets by one backend does not wake the one by which it waits.
{
	my ($waiter, $worker) = open_sessions($node, $db, 2, name => 's');

	$waiter->query_safe("SET deadlock_timeout = '1 h'");
	$ctl->query_safe("SELECT dlock_acquire('hot', 'holder', '1 h')");
	enqueue($ctl, $waiter, "SELECT dlock_acquire('hot', 'both', '1 h', NULL)");
	my %before = counts($ctl, $waiter);
	$worker->query_safe("SELECT count(dlock_acquire('both-' || i, 'both')), count(dlock_release('both-' || i, 'both'))"
		  . ' FROM generate_series(1, 100) i');
	settle($ctl);
	my %after = counts($ctl, $waiter);
	is($after{woken}, $before{woken}, 'an owner that works on does not wake the backend by which it waits');
	$ctl->query_safe("SELECT dlock_release('hot', 'holder')");
	isnt($waiter->result->{out}, '', 'and it gets the lock');
	$ctl->query_safe("SELECT dlock_force_release('hot', 'test')");
	$_->quit foreach $waiter, $worker;
}

# One release lets in a whole crowd that shares the lock.
{
	$ctl->query_safe("SELECT dlock_acquire('hot', 'holder', '1 h')");
	my $waiters = start_crowd('1h', 'shared');
	cost_is($ctl, $ctl, "SELECT dlock_release('hot', 'holder')", { wakes => $crowd, records => 1 }, 'a release wakes all that share');
	$waiters->finish;
	is($ctl->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'hot' AND mode = 'shared'"), $crowd, 'a crowd that shares: all have it');
	end_crowd($waiters);
}

$ctl->quit;
$node->stop;
done_testing();
