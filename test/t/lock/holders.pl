# Proves: what an operation visits does not depend on how many hold the lock: an
# acquisition, a renewal and a release; the end of a lease on a path beside a null lease,
# after renewals, and beside conversions that wait; the expiry of a crowd; and a request
# that begins to wait.  A lock has no more holders than it may have.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockQueue;
use DLockSession;
use DLockTest;
use Test::More;

my $many = 10_000;

# An index has 4096 places for the tokens of one partition, so a lease may have a few others
# of its lock in front of it there, and a lock a few others of its bucket: how many, the seed
# of this server's hashes decides.  They are among what an operation may visit.
my $bound = 40;

my $db = 'postgres';
my $node = start_fault_node('main', conf => "dlock.max_memory = 128MB\nsynchronous_commit = off\ndeadlock_timeout = 1h\n");
my ($ctl, $worker, $waiter) = open_sessions($node, $db, 3, name => 's');

# So many leases, beginning with a number.
sub hold
{
	my ($from, $to, $acquire) = @_;

	is($ctl->query_safe("SELECT count($acquire) FROM generate_series($from, $to) i"), $to - $from + 1, 'they hold it');
	return;
}

# A statement of the worker's visits no more leases than that, few requests and locks, and
# writes so many records.
sub visits_few
{
	my ($sql, $records, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %cost = cost($ctl, $worker, $sql);

	few(\%cost, 1, $test_name);
	is($cost{records} // 0, $records, "$test_name: writes $records records");
	return;
}

# So many operations have visited few.
sub few
{
	my ($cost, $operations, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	note join ', ', "$test_name: $operations", map { "$_ $cost->{$_}" } sort keys %$cost;
	cmp_ok($cost->{leases} // 0, '<=', $operations * $bound, "$test_name: visits few leases");
	cmp_ok($cost->{requests} // 0, '<=', $operations * 4, "$test_name: few requests");
	cmp_ok($cost->{entries} // 0, '<=', $operations * $bound, "$test_name: few locks");
	return;
}

# The same for as many releases.
sub releases_visit_few
{
	my ($name, $from, $to, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $count = $to - $from + 1;

	# An error unless all of them are there.
	my %cost = cost($ctl, $worker, "SELECT 1 / (count(*) FILTER (WHERE dlock_release('$name', 'o' || i)) = $count)::int FROM generate_series($from, $to) i");
	few(\%cost, $count, $test_name);
	return;
}

# What all other processes have done up to now.
sub counts_of_others
{
	my %all = counts($ctl, 0);
	my %own = counts($ctl, $ctl);

	return map { $_ => $all{$_} - $own{$_} } keys %all;
}

# One holder more, beside all the others.
{
	hold(1, $many, "dlock_acquire('plain', 'o' || i, '1 h', mode => 'shared')");
	$worker->query_safe("SELECT dlock_acquire('warm', 'me', '1 h'), dlock_release('warm', 'me')");
	visits_few("SELECT dlock_acquire('plain', 'me', '1 h', mode => 'shared')", 1, 'an acquisition');
	visits_few("SELECT dlock_renew('plain', 'me')", 0, 'a renewal');
	visits_few("SELECT dlock_release('plain', 'me')", 1, 'a release');
	visits_few("SELECT dlock_release('plain', 'o$_')", 1, "a release of holder $_") foreach 1, $many / 2, $many;
	$ctl->query_safe("SELECT dlock_force_release('plain', 'test')");
}

# The end of a path, beside siblings and a null lease on their parent.
{
	my $share = sub { "dlock_acquire_path('p/' || $_[0], 'o' || $_[0], '1 h', mode => 'shared')" };

	hold(1, $many, $share->('i'));
	isnt($ctl->query_safe("SELECT dlock_acquire('p', 'null', '1 h', mode => 'NL')"), '', 'a null lease');
	visits_few('SELECT ' . $share->(0), 1, 'a path with siblings');
	visits_few("SELECT dlock_release('p/0', 'o0')", 1, 'its release');
	is($ctl->query_safe("SELECT dlock_acquire('p', 'other', mode => 'exclusive')"), '', 'they are in the way');
	is($ctl->query_safe("SELECT count(*) FILTER (WHERE dlock_release('p/' || i, 'o' || i)) FROM generate_series(1, $many) i"), $many, 'they go');
	isnt($ctl->query_safe("SELECT dlock_acquire('p', 'other', mode => 'exclusive')"), '', 'the null lease is not in the way');
	$ctl->query_safe("SELECT dlock_force_release('p', 'test')");
}

# A release, when the time has passed at which a lease would have ended without a renewal:
# the first process that looks at the lock then takes notice of that; releases after it know.
{
	hold(1, $many, "dlock_acquire('renewed', 'o' || i, '1 h', mode => 'shared')");
	enqueue($ctl, $waiter, "SELECT dlock_acquire('renewed', 'waiter', '1 h', NULL)");
	releases_visit_few('renewed', 1, 250, 'releases beside a request');
	is($ctl->query_safe("SELECT dlock_renew('renewed', 'o$many', '3 s') AND dlock_renew('renewed', 'o$many', '1 h')"), 't', 'one is shortened and renewed');
	my %before = counts_of_others();
	advance(3, $ctl);
	my %after = counts_of_others();
	cmp_ok($after{leases} - $before{leases}, '<=', 2 * $many + $bound, 'to notice it takes two walks, and no more');
	releases_visit_few('renewed', 251, 500, 'releases after renewals');
	still_waits($ctl, 'a request waits', $waiter);
	$ctl->query_safe("SELECT dlock_force_release('renewed', 'test')");
	isnt($waiter->answer, '', 'and gets the lock');
	$ctl->query_safe("SELECT dlock_force_release('renewed', 'test')");
}

# A release beside a conversion that waits, to a mode that all the others are in the way of.
{
	my $token = $ctl->query_safe("SELECT dlock_acquire('converted', 'converts', '1 h', mode => 'shared')");

	hold(1, $many, "dlock_acquire('converted', 'o' || i, '1 h', mode => 'shared')");
	enqueue($ctl, $waiter, "SELECT dlock_convert('converted', $token, 'exclusive', NULL)");
	releases_visit_few('converted', 1, 250, 'releases beside a conversion that waits');
	still_waits($ctl, 'a conversion waits', $waiter);
	$ctl->query_safe("SELECT dlock_release('converted', 'o' || i) FROM generate_series(251, $many) i");
	isnt($waiter->answer, '', 'and is made with the last release');
	$ctl->query_safe("SELECT dlock_force_release('converted', 'test')");
}

# The expiry of half of a crowd: with nobody waiting, and with one for whom the others are in
# the way.
foreach my $waits (0, 1)
{
	my $half = $many / 2;
	my $name = $waits ? 'expires, and is waited for' : 'expires';

	hold(1, $half, "dlock_acquire('$name', 'stays' || i, '1 h', mode => 'shared')");
	hold(1, $half, "dlock_acquire('$name', 'o' || i, '10 s', mode => 'shared')");
	enqueue($ctl, $waiter, "SELECT dlock_acquire('$name', 'waiter', '1 h', NULL)") if $waits;
	my $left = $ctl->query_safe('SELECT leases FROM dlock_stats') - $half;
	my %before = counts_of_others();
	advance(10, $ctl);
	ok( wait_until(
			sub {
				advance(1, $ctl);
				return $ctl->query_safe('SELECT leases FROM dlock_stats') <= $left;
			}),
		"$name: half of them go");
	my %after = counts_of_others();
	my %cost = map { $_ => $after{$_} - $before{$_} } keys %after;
	few(\%cost, $half, $name);
	is($ctl->query_safe("SELECT count(*) FROM dlock_leases WHERE name = '$name'"), $half, "$name: half of them stay");
	still_waits($ctl, "$name: the others are in the way", $waiter) if $waits;
	$ctl->query_safe("SELECT dlock_release('$name', 'stays' || i) FROM generate_series(1, $half) i");
	isnt($waiter->answer, '', 'the last release lets it in') if $waits;
	$ctl->query_safe("SELECT dlock_release_all('waiter')");
}

# A lease that is named by its owner, which has many more.
{
	hold(1, $many, "dlock_acquire('named', 'o' || i, '1 h', mode => 'shared')");
	hold(1, $many, "dlock_acquire('of one owner ' || i, 'me', '1 h')");
	my $token = $worker->query_safe("SELECT dlock_acquire('named', 'me', '1 h', mode => 'shared')");
	visits_few("SELECT dlock_renew_token('named', $token)", 0, 'by token');
	visits_few("SELECT dlock_renew('named', 'me')", 0, 'by name');
	$ctl->query_safe("SELECT dlock_force_release('named', 'test'), dlock_release_all('me')");
}

# A request that begins to wait looks whether its own owner is in the way: with a lease on
# the lock, or with one on a path below it.
{
	my $refused = sub {
		my ($owner) = @_;

		enqueue($ctl, $worker, "SELECT dlock_acquire('above', '$owner', '1 h', '1 us')");
		advance(0.000001, $ctl);
		return $worker->answer;
	};

	hold(1, $many, "dlock_acquire_path('above/' || i, 'o' || i, '1 h', mode => 'shared')");
	my %before = counts($ctl, $worker);
	is($refused->('new'), '', 'a request that waits');
	my %after = counts($ctl, $worker);
	few({ map { $_ => $after{$_} - $before{$_} } keys %after }, 3, 'it begins, looks and leaves');
	is($refused->("o$_"), 'ERROR 40P01', 'own leases below are in the way') foreach 1, 500, $many;
	$ctl->query_safe("SELECT dlock_acquire('abov' || i, 'beside', '1 h') FROM generate_series(1, 50) i");
	isnt($ctl->query_safe("SELECT dlock_acquire_path('above2/x', 'beside', '1 h')"), '', 'a path beside it');
	is($refused->('beside'), '', 'leases elsewhere are not');
	isnt($ctl->query_safe("SELECT dlock_acquire('above', 'weak', '1 h', mode => 'CR')"), '', 'a weak lease');
	is($refused->('weak'), 'ERROR 40P01', 'own leases on it are in the way');
	$ctl->query_safe("SELECT dlock_release_all('o' || i) FROM generate_series(1, $many) i");
}

# The most holders that a lock may have.
{
	my $most = 100_000;

	hold(1, $most, "dlock_acquire('at/most', 'o' || i, '1 h', mode => 'shared')");
	is($worker->query("SELECT dlock_acquire('at/most', 'next', '1 h', mode => 'shared')"), 'ERROR 54000', 'one more is refused');
	like($worker->{message} . $worker->{detail}, qr/"at\/most".*100000/s, 'the error names lock and limit');
	my $token = $worker->query_safe("SELECT dlock_acquire('at/most', 'weak', '1 h', mode => 'CR')");
	is($worker->query("SELECT dlock_convert('at/most', $token, 'shared')"), 'ERROR 54000', 'so is a weak one that is converted');
	is($worker->query_safe("SELECT mode FROM dlock_leases WHERE name = 'at/most' AND owner = 'weak'"), 'CR', 'it stays as it is');
	is($worker->query_safe("SELECT dlock_release('at/most', 'o1')"), 't', 'one goes');
	like($worker->query("SELECT dlock_convert('at/most', $token, 'shared')"), qr/^\d+$/, 'then there is room');
	is($worker->query("SELECT dlock_acquire('at/most', 'o2', mode => 'shared', reentry => 'count') > 0"), 't', 'a holder may enter again');

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

$_->quit foreach $ctl, $worker, $waiter;
$node->stop;
log_is_clean($node);
done_testing();
