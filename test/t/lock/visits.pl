# Proves: however many hold a lock, a view visits each lease once, and no more than some under
# one partition lock: it goes on where it stopped.  So does what forgets the leases of a
# database.  Who watches visits each once, but of thousands of intents a few, and other calls
# a few.  Who watches finds the newest holder, whatever the order in which these came, and
# where the newest have ended and are not erased.

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
my $many = 10_000;

# Some leases of other locks, and of the same owner or bucket.
my $few = 50;

# A bucket more than the limit of 64 leases.  There is little memory, so the buckets are full.
my $limit = 150;
my $node = start_fault_node('main', conf => "deadlock_timeout = 1h\ndlock_test.worker = off\ndlock.max_memory = 16MB\nmax_connections = 20\n");
my $ctl = DLockSession->new($node, $db, name => 'control');

sub holders
{
	my ($first, $last, $ttl) = @_;

	return $ctl->query_safe(
		"SELECT max(dlock_acquire('crowd', 'owner-' || i, '$ttl', mode => 'shared')) FROM generate_series($first, $last) i");
}

# What a statement, in a session of its own, answers, and how many leases it visits at most:
# some for itself, and each of so many once; no more than the limit at a time, unless so many
# are given.
sub visits
{
	my ($sql, $expected, $each, $test_name, $most) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $session = DLockSession->new($node, $db, name => 'worker');
	my %before = counts($ctl, $session);

	is($session->query_safe($sql), $expected, $test_name);
	my %after = counts($ctl, $session);
	my $visited = $after{leases} - $before{leases};
	cmp_ok($visited, '<=', $each + $few, "$test_name: visits few leases, or each once ($visited)");
	foreach my $at_once ($after{most}, $after{most_requests})
	{
		cmp_ok($at_once, '<=', $most // $limit, "$test_name: visits few leases or requests at a time ($at_once)");
	}
	$session->quit;
	return;
}

# All that looks while so many are held, the newest of which has this token.
sub looks
{
	my ($count, $newest, $label) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	visits("SELECT token FROM dlock_watch('crowd', 1, '0')", $newest, $count, "$label: dlock_watch", $count + $few);
	visits("SELECT count(*), count(DISTINCT token), max(token) FROM dlock_lease('crowd') WHERE state = 'held'", "$count|$count|$newest", $count, "$label: dlock_lease");
	visits("SELECT count(*), count(DISTINCT token) FROM dlock_leases WHERE name = 'crowd' AND state = 'held'", "$count|$count", $count, "$label: dlock_leases");
	visits("SELECT dlock_check('crowd', $newest)", 't', 0, "$label: dlock_check");
	visits("SELECT dlock_renew('crowd', 'owner-7')", 't', 0, "$label: dlock_renew");
	visits("SELECT dlock_acquire('crowd', 'late')", '', 0, "$label: a request that is refused");
	return;
}

my $newest = holders(1, $many, '1 h');
looks($many, $newest, 'many');

# The newest is released, two of the first are entered again, one is converted, and one more
# comes.
$ctl->query_safe("SELECT dlock_release('crowd', 'owner-$many')");
is($ctl->query_safe("SELECT owner FROM dlock_watch('crowd', 1, '0')"), 'owner-' . ($many - 1), 'the newest has gone: the one before');
$ctl->query_safe("SELECT dlock_acquire('crowd', 'owner-5', mode => 'shared', reentry => 'return')");
$ctl->query_safe("SELECT dlock_acquire('crowd', 'owner-500', mode => 'shared', reentry => 'return')");
is($ctl->query_safe("SELECT owner FROM dlock_watch('crowd', 1, '0')"), 'owner-' . ($many - 1), 'to enter a lease again makes it no newer');
my $null = $ctl->query_safe("SELECT dlock_acquire('crowd', 'null', '1 h', mode => 'NL')");
$ctl->query_safe("SELECT dlock_acquire('crowd', 'after', '1 h', mode => 'shared')");
$newest = $ctl->query_safe("SELECT dlock_convert('crowd', $null, 'CR')");
is($ctl->query_safe("SELECT owner FROM dlock_watch('crowd', 1, '0')"), 'null', 'one that is converted is the newest');
looks($many + 1, $newest, 'converted');

# Shorter leases that end, and are not erased.
holders($many + 1, $many + 1000, '10 s');
advance(10, $ctl);
is($ctl->query_safe("SELECT token FROM dlock_watch('crowd', 1, '0')"), $newest, 'the newest thousand have expired: dlock_watch');

# After a restart they come in the order of the pages.
$ctl->quit;
$node->restart;
$ctl = DLockSession->new($node, $db, name => 'control');
is($ctl->query_safe('SELECT leases FROM dlock_stats'), $many + 1, 'after a restart: they are loaded');
looks($many + 1, $newest, 'after a restart');
is($ctl->query_safe("SELECT dlock_release_token('crowd', $newest)"), 't', 'the newest is released');
is($ctl->query_safe("SELECT owner FROM dlock_watch('crowd', $newest)"), 'after', 'who watches is told of the one before');
my $last = holders(1, 1, '1 h');
is(holders($many + 2001, $many + 2001, '1 h'), $ctl->query_safe("SELECT token FROM dlock_watch('crowd', 1, '0')"), 'and of one that comes then');

# A grant erases all that is dead, a thousand leases at a time.
$ctl->query_safe("SELECT count(dlock_acquire('dead', 'owner-' || i, '10 s', mode => 'shared')) FROM generate_series(1, 3500) i");
advance(10, $ctl);
{
	my $session = DLockSession->new($node, $db, name => 'worker');

	$session->query_safe("SELECT dlock_acquire('warm', 'a', '1 h')");
	my %cost = cost($ctl, $session, "SELECT dlock_acquire('dead', 'after', '1 h')");
	is($ctl->query_safe("SELECT string_agg(owner, ' ') FROM dlock_lease('dead')"), 'after', 'a grant over dead leases: they are erased');
	cmp_ok($cost{lockings}, '>=', 4, "a grant over dead leases: in $cost{lockings} goes");
	$session->quit;
}

# Intents have no limit.  One lease is among the first few, the newest between intents.
$ctl->query_safe("SELECT dlock_acquire('top', 'first', '1 h', mode => 'CR')");
$ctl->query_safe("SELECT count(dlock_acquire_path('top/' || i, 'owner-' || i, '1 h')) FROM generate_series(1, 2500) i");
$newest = $ctl->query_safe("SELECT dlock_acquire('top', 'newest', '1 h', mode => 'CR')");
$ctl->query_safe("SELECT count(dlock_acquire_path('top/' || i, 'owner-' || i, '1 h')) FROM generate_series(2501, 5000) i");
visits("SELECT token FROM dlock_watch('top', 1, '0')", $newest, 0, 'intents: dlock_watch');
visits("SELECT count(*), count(DISTINCT token) FROM dlock_lease('top')", '5002|5002', $many + 5002, 'intents: dlock_lease');
visits("SELECT count(*), count(DISTINCT token) FROM dlock_leases WHERE name = 'top'", '5002|5002', $many + 11_000, 'intents: dlock_leases');
visits("SELECT dlock_check('top', $newest)", 't', 0, 'intents: dlock_check');

sound($ctl, 'in the end');

# A load forgets the leases and places of an extension that was dropped, if the worker has not.
my $worker = $ctl->query_safe("SELECT pid FROM pg_stat_activity WHERE backend_type = 'dlock worker'");
$ctl->query_safe("SELECT count(dlock_acquire('top', 'place-' || i, keep => '1 h')) FROM generate_series(1, 500) i");
stop_at($ctl, $worker, 'worker_purge');
$ctl->query_safe('DROP EXTENSION dlock');
is_at($ctl, 'worker_purge');
$ctl->query_safe('CREATE EXTENSION dlock');
visits("SELECT dlock_acquire('top', 'after') > 0", 't', 2 * ($many + 11_000), 'a load');
is($ctl->query_safe('SELECT leases FROM dlock_stats'), 1, 'nothing else is left');
go($ctl, 'worker_purge');
sound($ctl, 'loaded');
$ctl->quit;
$node->stop;
log_is_clean($node);
done_testing();
