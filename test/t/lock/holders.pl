# Proves: what an operation costs does not depend on how many hold the lock: the end of a
# lease on a path beside a null lease, after renewals, and beside conversions that wait;
# and a request that begins to wait.  A lock has no more holders than it may have.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockQueue;
use DLockSession;
use DLockTest;
use List::Util qw(min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $few = 20;
my $many = 20_000;

my $db = 'postgres';
my $node = start_node('main', conf => "dlock.max_memory = 128MB\ndlock.reap_interval = 1s\nsynchronous_commit = off\ndeadlock_timeout = 1h\n");
my ($ctl, $worker, $waiter) = open_sessions($node, $db, 3, name => 's');

# The processor time that the worker has used up to now, in seconds.
sub processor_time
{
	return $worker->query_safe("SELECT split_part(pg_read_file('/proc/self/schedstat', 0, 60), ' ', 1)::float8 / 1e9");
}

# What the worker's statement costs, at best.
sub cost
{
	my ($sql) = @_;
	my $least;

	foreach my $round (1 .. 5)
	{
		my $before = processor_time();
		$worker->query_safe($sql);
		my $time = processor_time() - $before;
		$least = $time if !defined $least || $time < $least;
	}
	return $least;
}

# What it costs does not change: the one function returns what it costs with few, and the other
# with many.  The least of each counts, as what else runs only adds to both, for a while: they
# take turns until the while is over.  One that could not tell returns nothing.
sub as_before
{
	my ($with_few, $with_many, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($before, $after);

	foreach my $turn (1 .. 20)
	{
		$before = min(grep { defined } $before, scalar $with_few->());
		my $now = $with_many->();
		$after = min(grep { defined } $after, $now);
		next if !defined $before || !defined $now;

		# What else runs does not make it ten times as much.
		$after = $now if $now > 10 * $before;
		last if $after < 3 * $before || $after > 10 * $before;
	}
	return cmp_ok($after, '<', 3 * $before, sprintf '%s (%.0f us, then %.0f us)', $test_name, 1e6 * $before, 1e6 * $after);
}

# So many leases, beginning with a number.
sub hold
{
	my ($from, $to, $acquire) = @_;

	is($ctl->query_safe("SELECT count($acquire) FROM generate_series($from, $to) i"), $to - $from + 1, 'they hold it');
	return;
}

# The end of a path, beside siblings and a null lease on their parent.
{
	my $share = sub { "dlock_acquire_path('$_[0]/' || $_[1], 'o' || $_[1], '1 h', mode => 'shared')" };
	my $cost = sub {
		my ($path) = @_;
		return cost('SELECT count(' . $share->($path, 0) . "), count(dlock_release('$path/0', 'o0')) FROM generate_series(1, 50)");
	};

	foreach (['few', $few], ['p', $many])
	{
		my ($path, $holders) = @$_;
		hold(1, $holders, $share->($path, 'i'));
		isnt($ctl->query_safe("SELECT dlock_acquire('$path', 'null', '1 h', mode => 'NL')"), '', 'a null lease');
	}
	as_before(sub { $cost->('few') }, sub { $cost->('p') }, 'a path with siblings');
	is($ctl->query_safe("SELECT count(*) FILTER (WHERE dlock_release('few/' || i, 'o' || i)) FROM generate_series(1, $few) i"), $few, 'the few go');
	$ctl->query_safe("SELECT dlock_force_release('few', 'test')");
	is($ctl->query_safe("SELECT dlock_acquire('p', 'other', mode => 'exclusive')"), '', 'they are in the way');
	is($ctl->query_safe("SELECT count(*) FILTER (WHERE dlock_release('p/' || i, 'o' || i)) FROM generate_series(1, $many) i"), $many, 'they go');
	isnt($ctl->query_safe("SELECT dlock_acquire('p', 'other', mode => 'exclusive')"), '', 'the null lease is not in the way');
	$ctl->query_safe("SELECT dlock_force_release('p', 'test')");
}

# A release, when the time has passed at which a lease would have ended without a renewal.
{
	my %waiter = (renewed => $waiter, granted => DLockSession->new($node, $db));
	my %next = (renewed => 1, granted => 1);
	my $releases = sub {
		my ($name) = @_;
		$next{$name} += 250;
		return cost_of_releases($name, $next{$name} - 250);
	};

	foreach my $name (sort keys %waiter)
	{
		hold(1, $many, "dlock_acquire('$name', 'o' || i, '1 h', mode => 'shared')");
		enqueue($ctl, $waiter{$name}, "SELECT dlock_acquire('$name', 'waiter', '1 h', NULL)");
	}
	is($ctl->query_safe("SELECT dlock_renew('renewed', 'o$many', '3 s') AND dlock_renew('renewed', 'o$many', '1 h')"), 't', 'one is shortened and renewed');
	$ctl->query_safe('SELECT pg_sleep(3.1)');
	as_before(sub { $releases->('granted') }, sub { $releases->('renewed') }, 'a release after renewals');
	foreach my $name (sort keys %waiter)
	{
		ok(!$waiter{$name}->answered, 'a request waits');
		$ctl->query_safe("SELECT dlock_force_release('$name', 'test')");
		isnt($waiter{$name}->answer, '', 'and gets the lock');
		$ctl->query_safe("SELECT dlock_force_release('$name', 'test')");
	}
	$waiter{granted}->quit;
}

# A release beside a conversion that waits, to a mode that all the others are in the way of.
{
	my $cost = sub {
		my ($name, $holders) = @_;
		my $token = $ctl->query_safe("SELECT dlock_acquire('$name', 'converts', '1 h', mode => 'shared')");

		hold(1, $holders, "dlock_acquire('$name', 'o' || i, '1 h', mode => 'shared')");
		enqueue($ctl, $waiter, "SELECT dlock_convert('$name', $token, 'exclusive', NULL)");
		my $time = cost_of_releases($name, 1);
		ok(!$waiter->answered, 'a conversion waits');
		$ctl->query_safe("SELECT dlock_release('$name', 'o' || i) FROM generate_series(251, $holders) i");
		isnt($waiter->answer, '', 'and is made with the last release');
		$ctl->query_safe("SELECT dlock_force_release('$name', 'test')");
		return $time;
	};

	as_before(sub { $cost->('converted', 250 + $few) }, sub { $cost->('converted by many', $many) }, 'a release beside a conversion that waits');
}

# The expiry of half of a crowd, for the reaper: with nobody waiting, and with one for whom
# the others are in the way.
{
	my $reaper = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'dlock reaper'";
	my $half = $many / 2;
	my $cost = sub {
		my ($name, $waits) = @_;
		hold(1, $half, "dlock_acquire('$name', 'stays' || i, '1 h', mode => 'shared')");
		hold(1, $half, "dlock_acquire('$name', 'o' || i, '1 h', mode => 'shared')");
		enqueue($ctl, $waiter, "SELECT dlock_acquire('$name', 'waiter', '1 h', NULL)") if $waits;
		$ctl->query_safe("SELECT dlock_acquire('reaped', 'for its pid', '1 ms')");
		my $pid;
		ok(wait_until(sub { ($pid = $ctl->query_safe($reaper)) ne '' }), 'there is a reaper');

		my $used = sub { my $stat = eval { slurp_file("/proc/$pid/schedstat") } // return; (split ' ', $stat)[0] / 1e9 };
		my $before = $used->();

		# Not earlier, so that it is this one's work, and all of it.
		is($ctl->query_safe("SELECT count(*) FILTER (WHERE dlock_renew('$name', 'o' || i, '1 s')) FROM generate_series(1, $half) i"), $half, 'they are to go');
		my $gone = "SELECT NOT EXISTS (SELECT FROM dlock_leases WHERE owner = 'o$half') AND expired = 0 FROM dlock_state";
		ok(wait_until(sub { $ctl->query_safe($gone) eq 't' }), 'half of them go');
		my $after = $used->();

		# It may have left meanwhile, and another may have come in its place.
		my $is_same = $ctl->query_safe($reaper) eq $pid;
		ok(!$waits || !$waiter->answered, 'the others are in the way');
		$ctl->query_safe("SELECT dlock_release('$name', 'stays' || i) FROM generate_series(1, $half) i");
		isnt($waiter->answer, '', 'the last release lets it in') if $waits;
		$ctl->query_safe("SELECT dlock_release_all('waiter')");
		return $is_same && defined $before && defined $after ? $after - $before : undef;
	};

	as_before(sub { $cost->('expires', 0) }, sub { $cost->('expires, and is waited for', 1) }, 'the expiry of a crowd');
}

# A lease that is named by its owner, which has many more.
{
	my $renew = sub { return "DO \$\$ BEGIN FOR i IN 1 .. 100 LOOP PERFORM $_[0]; END LOOP; END \$\$" };

	hold(1, $many, "dlock_acquire('named', 'o' || i, '1 h', mode => 'shared')");
	hold(1, $many, "dlock_acquire('of one owner ' || i, 'me', '1 h')");
	my $token = $worker->query_safe("SELECT dlock_acquire('named', 'me', '1 h', mode => 'shared')");
	as_before(sub { cost($renew->("dlock_renew_token('named', $token)")) }, sub { cost($renew->("dlock_renew('named', 'me')")) }, 'by token, and by name');
	$ctl->query_safe("SELECT dlock_force_release('named', 'test'), dlock_release_all('me')");
}

# A request that begins to wait looks whether its own owner is in the way: with a lease on
# the lock, or with one on a path below it.
{
	my $cost = sub { cost("DO \$\$ BEGIN FOR i IN 1 .. 50 LOOP PERFORM dlock_acquire('$_[0]', 'new', '1 h', '1 us'); END LOOP; END \$\$") };
	my $refusal = sub {
		my ($owner) = @_;
		return $worker->query("SELECT dlock_acquire('above', '$owner', '1 h', '1 us')");
	};

	hold(1, $few, "dlock_acquire_path('few/' || i, 'few' || i, '1 h', mode => 'shared')");
	hold(1, $many, "dlock_acquire_path('above/' || i, 'o' || i, '1 h', mode => 'shared')");
	as_before(sub { $cost->('few') }, sub { $cost->('above') }, 'a request that begins to wait');
	$ctl->query_safe("SELECT dlock_release_all('few' || i) FROM generate_series(1, $few) i");
	is($refusal->("o$_"), 'ERROR 40P01', 'own leases below are in the way') foreach 1, 500, $many;
	$ctl->query_safe("SELECT dlock_acquire('abov' || i, 'beside', '1 h') FROM generate_series(1, 50) i");
	isnt($ctl->query_safe("SELECT dlock_acquire_path('above2/x', 'beside', '1 h')"), '', 'a path beside it');
	is($refusal->('beside'), '', 'leases elsewhere are not');
	isnt($ctl->query_safe("SELECT dlock_acquire('above', 'weak', '1 h', mode => 'CR')"), '', 'a weak lease');
	is($refusal->('weak'), 'ERROR 40P01', 'own leases on it are in the way');
	$ctl->query_safe("SELECT dlock_release_all('o' || i) FROM generate_series(1, $many) i");
}

# The most holders that a lock may have.
{
	my $most = 100_000;

	hold(1, $most, "dlock_acquire('at/most', 'o' || i, '1 h', mode => 'shared')");
	is($worker->query("SELECT dlock_acquire('at/most', 'next', '1 h', mode => 'shared')"), 'ERROR 54000', 'one more is refused');
	my $token = $worker->query_safe("SELECT dlock_acquire('at/most', 'weak', '1 h', mode => 'CR')");
	is($worker->query("SELECT dlock_convert('at/most', $token, 'shared')"), 'ERROR 54000', 'so is a weak one that is converted');
	is($worker->query_safe("SELECT mode FROM dlock_leases WHERE name = 'at/most' AND owner = 'weak'"), 'CR', 'it stays as it is');
	is($worker->query_safe("SELECT dlock_release('at/most', 'o1')"), 't', 'one goes');
	like($worker->query("SELECT dlock_convert('at/most', $token, 'shared')"), qr/^\d+$/, 'then there is room');

	# Behind an exclusive request that leaves.
	enqueue($ctl, $waiter, "SELECT dlock_acquire('at/most', 'all', '1 h', NULL)");
	enqueue($ctl, $worker, "SELECT dlock_acquire('at/most', 'next', '1 h', NULL, mode => 'shared')");
	$ctl->query_safe("SELECT pg_cancel_backend($waiter->{pid})");
	is($waiter->answer, 'ERROR 57014', 'one that waits leaves');
	is($worker->answer, 'ERROR 54000', 'the one behind it is one too many');
	queues_are_empty($ctl, 'and waits no longer');
	is($worker->query("SELECT dlock_acquire_path('at/most', 'path', mode => 'shared')"), 'ERROR 54000', 'so is a path');
	like($worker->query("SELECT dlock_acquire_path('at/most/below', 'path', mode => 'shared')"), qr/^\d+$/, 'but not one below it');
}

# The processor time of fifty releases, at best.
sub cost_of_releases
{
	my ($name, $from) = @_;
	my $least;

	foreach my $round (0 .. 4)
	{
		my $first = $from + 50 * $round;
		my $before = processor_time();
		is($worker->query_safe("SELECT count(*) FILTER (WHERE dlock_release('$name', 'o' || i)) FROM generate_series($first, $first + 49) i"), 50, 'some go');
		my $time = processor_time() - $before;
		$least = $time if !defined $least || $time < $least;
	}
	return $least;
}

$_->quit foreach $ctl, $worker, $waiter;
$node->stop;
done_testing();
