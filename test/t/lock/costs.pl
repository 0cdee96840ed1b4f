# Proves: what each operation costs, counted: the locks, leases and requests that it visits,
# the WAL records that it writes, and the flushes that it asks for.  A request for several
# locks is flushed once.  dlock_lease costs the same however many leases there are.  The
# clock stands still, or a record that is not flushed would wake the worker now and then.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockTest;
use Test::More;

my $db = 'postgres';
my $node = start_fault_node('main', conf => "deadlock_timeout = 1h\n");
still_worker($node);
my ($ctl, $worker) = open_sessions($node, $db, 2, name => 's', setup => 'SET synchronous_commit = on');

# A statement of the worker's costs this, and nothing else.
sub costs
{
	my ($sql, $expected, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %nothing = map { $_ => 0 } qw(entries leases requests records flushes wakes);

	return cost_is($ctl, $worker, "SELECT $sql", { %nothing, %$expected }, "$test_name: $sql");
}

# Tokens are reserved, and pages known.
$worker->query_safe("SELECT count(dlock_acquire('warm' || i, 'warm', '1 h')), dlock_release_all('warm') FROM generate_series(1, 20) i");

# A lock of one's own.
costs("dlock_acquire('lock', 'me', '1 h')", { flushes => 1, records => 1 }, 'granted');
costs("dlock_acquire('lock', 'other', '1 h')", { entries => 1, leases => 1 }, 'refused');
costs("dlock_renew('lock', 'me')", { entries => 1, flushes => 1, leases => 1 }, 'renewed at the same moment');
costs("dlock_renew('lock', 'me', '2 h')", { entries => 1, flushes => 1, leases => 1, records => 1 }, 'renewed for longer');
costs("dlock_check('lock', 1)", { entries => 1, leases => 1 }, 'checked');
costs("dlock_release('lock', 'other')", { entries => 2, leases => 2 }, 'not released');
costs("dlock_release('lock', 'me')", { entries => 2, leases => 1, records => 1 }, 'released');
costs("dlock_release('lock', 'me')", {}, 'not there');

# A record that is left unflushed wakes the worker, which flushes it in a while; those that
# follow it until then do not.
$worker->query_safe("SELECT dlock_acquire('lock', 'me', '1 h'), dlock_acquire('next', 'me', '1 h')");
advance(1, $ctl);
costs("dlock_release('lock', 'me')", { entries => 2, leases => 1, records => 1, wakes => 1 }, 'released');
costs("dlock_release('next', 'me')", { entries => 2, leases => 1, records => 1 }, 'released after it');

# Bound to the session.
costs("dlock_acquire('lock', 'me', bind => 'session')", {}, 'bound');
costs("dlock_release('lock', 'me')", { entries => 2, leases => 1 }, 'bound and released');

# A path, and several.
costs("dlock_acquire_path('a/b/c/d', 'me', '1 h')", { flushes => 1, records => 1 }, 'a path');
costs("dlock_release('a/b/c/d', 'me')", { entries => 6, leases => 11, records => 1 }, 'its release');
costs("dlock_acquire_all('{a, b, c, d}', 'me', '1 h')", { flushes => 1, records => 4 }, 'several');
costs("dlock_release_all('me')", { entries => 8, leases => 8, records => 4 }, 'their release');

# Each by itself: what the single calls cost, but one flush.
costs("dlock_acquire_each('{a, b, c, d}', '{me#1, me#2, me#3, me#4}', '1 h')", { flushes => 1, records => 4 }, 'each');
my $tokens = $ctl->query_safe("SELECT array_agg(token ORDER BY name) FROM dlock_leases WHERE owner LIKE 'me#_'");
costs("dlock_renew_each('{a, b, c, d}', '$tokens', '2 h')", { entries => 4, flushes => 1, leases => 4, records => 4 }, 'their renewal');
costs("dlock_release_each('{a, b, c, d}', '$tokens')", { entries => 8, leases => 4, records => 4 }, 'their release');

# And the turns of places.
$ctl->query_safe("SELECT dlock_acquire_all('{a, b, c}', 'holder', '1 h')");
$ctl->query_safe("SELECT dlock_acquire_each('{a, b, c}', '{me#1, me#2, me#3}', '1 h', keep => '1 h')");
$ctl->query_safe("SELECT dlock_release_all('holder')");
costs("count(token) FROM dlock_take('me', '0', '0')", { entries => 6, flushes => 1, records => 3, requests => 14 }, 'three places');
is($ctl->query_safe("SELECT dlock_release_all('me')"), 3, 'are granted');

# Without the wait for the disk.
$worker->query_safe('SET synchronous_commit = off');
costs("dlock_acquire('lock', 'me', '1 h')", { records => 1 }, 'not flushed');
costs("dlock_release('lock', 'me')", { entries => 2, leases => 1, records => 1 }, 'not flushed');
$worker->query_safe('SET synchronous_commit = on');

# As many as one likes with one flush.  Some records more are for new pages.
{
	my %cost = cost($ctl, $worker, "SELECT dlock_acquire_all(array_agg('many-' || i), 'me', '1 h') FROM generate_series(1, 500) i");

	is($cost{flushes}, 1, 'five hundred locks, one flush');
	cmp_ok($cost{records}, '>=', 500, 'a record for each');
	cmp_ok($cost{records}, '<=', 520, 'and few more');
	is($ctl->query_safe("SELECT dlock_release_all('me')"), 500, 'all are there');
}

# dlock_lease() among so many leases: it visits one, and the few locks in front of it in the
# hash table.
foreach my $many (100, 100_000)
{
	$ctl->query_safe("SELECT count(dlock_acquire('one-of-' || i, 'me', '1 h', reentry => 'return')) FROM generate_series(1, $many) i");
	my %cost = cost($ctl, $worker, 'SELECT count(l.*) FROM generate_series(1, 100) i, LATERAL dlock_lease($$one-of-$$ || i) l');
	is($cost{leases}, 100, "dlock_lease() among $many leases");
	cmp_ok($cost{entries}, '<=', 300, 'visits few locks');
}

$_->quit foreach $worker, $ctl;
$node->stop;
log_is_clean($node);
done_testing();
