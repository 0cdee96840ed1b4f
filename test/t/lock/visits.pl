# Proves: no call and no view visits more than some leases under one partition lock, however
# many hold a lock: it goes on where it stopped.  Who watches needs the newest holder, and
# finds it among ten thousand as among two; and finds the right one where these do not stand
# in order, or the newest have ended, and that is not tidied up.

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

# A bucket more than the limit of 64 leases, where a session more is added for each process.
my $limit = 250;
my $node = start_fault_node('main', conf => "deadlock_timeout = 1h\ndlock_test.worker = off\nmax_connections = 20\n");
my $ctl = DLockSession->new($node, $db, name => 'control');

sub holders
{
	my ($first, $last, $ttl) = @_;

	return $ctl->query_safe(
		"SELECT max(dlock_acquire('crowd', 'owner-' || i, '$ttl', mode => 'shared')) FROM generate_series($first, $last) i");
}

# What a statement, in a session of its own, answers, and that it visits few leases at a time.
sub visits_few
{
	my ($sql, $expected, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $session = DLockSession->new($node, $db, name => 'worker');

	is($session->query_safe($sql), $expected, $test_name);
	my %cost = counts($ctl, $session);
	cmp_ok($cost{most}, '<=', $limit, "$test_name: visits few leases at a time ($cost{most})");
	$session->quit;
	return;
}

# All that looks while they are held, the newest of which has this token.
sub looks
{
	my ($count, $newest, $label) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is($ctl->query_safe("SELECT token FROM dlock_watch('crowd', 1, '0')"), $newest, "$label: dlock_watch");
	visits_few("SELECT count(*), count(DISTINCT token), max(token) FROM dlock_lease('crowd') WHERE state = 'held'", "$count|$count|$newest", "$label: dlock_lease");
	visits_few("SELECT count(*), count(DISTINCT token) FROM dlock_leases WHERE name = 'crowd' AND state = 'held'", "$count|$count", "$label: dlock_leases");
	visits_few("SELECT dlock_check('crowd', $newest)", 't', "$label: dlock_check");
	visits_few("SELECT dlock_renew('crowd', 'owner-7')", 't', "$label: dlock_renew");
	visits_few("SELECT dlock_acquire('crowd', 'late')", '', "$label: a request that is refused");
	return;
}

my $newest = holders(1, $many, '1 h');
looks($many, $newest, 'many');

# It costs the same as with two.
$ctl->query_safe("SELECT dlock_acquire('pair', 'one', mode => 'shared'), dlock_acquire('pair', 'two', mode => 'shared')");
{
	my $session = DLockSession->new($node, $db, name => 'worker');
	my %few = cost($ctl, $session, "SELECT dlock_watch('pair', 1, '0')");
	my %crowd = cost($ctl, $session, "SELECT dlock_watch('crowd', 1, '0')");

	cmp_ok($crowd{leases}, '<=', $few{leases} + 10, "dlock_watch among many visits $crowd{leases} leases, among two $few{leases}");
	$session->quit;
}

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

sound($ctl, 'in the end');
visits_few('DROP EXTENSION dlock', '', 'DROP EXTENSION');
$ctl->quit;
$node->stop;
log_is_clean($node);
done_testing();
