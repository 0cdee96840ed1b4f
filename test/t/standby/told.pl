# Proves: of a lease nobody is told more than what its record on disk and on the synchronous
# standbys vouches for.  A primary that is cut off says until then, to the microsecond, that
# the lease is held, however often its holder tries to renew it; what waits for a standby is
# held by nobody yet, and keeps others out; who watches is told when it is confirmed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockStandby;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';

# Nothing here may depend on looking again after a while.
my $primary = start_fault_node('primary', allows_streaming => 1, conf => "deadlock_timeout = 10h\ndlock_test.worker = off\n");
my $standby = make_standby($primary, 'standby');
make_synchronous($primary);

my ($holder, $asker, $watcher, $local);

sub connect_anew
{
	($holder, $asker, $watcher, $local) = map { DLockSession->new($primary, $db, name => $_) } qw(holder asker watcher local);
	$local->query_safe('SET synchronous_commit = local');
	return;
}
connect_anew();

# What everybody is told of a lock and a token: checked, state and what is left, live to a
# fence, holder.
sub told
{
	my ($name, $token) = @_;
	my $fence = $asker->query("BEGIN; SELECT dlock_fence('$name', $token, live => true); ROLLBACK");

	$asker->query('ROLLBACK') if $fence ne '';
	return join ' ',
	  $asker->query_safe("SELECT dlock_check('$name', $token)"),
	  $asker->query_safe("SELECT state || ' ' || extract(epoch FROM remaining)::float8 FROM dlock_leases WHERE name = '$name' AND token = $token"),
	  $fence eq '' ? 'live' : $fence,
	  $asker->query_safe("SELECT coalesce(owner, 'nobody') FROM dlock_watch('$name', 1, '0')");
}

sub waits_for_standby
{
	my ($session, $sql, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$session->ask($sql);
	ok( wait_until(sub { $asker->query_safe('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $session->pid) eq 'SyncRep' }),
		"$test_name: waits for the standby");
	return;
}

sub cancel
{
	my ($session, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$asker->query_safe('SELECT pg_cancel_backend(' . $session->pid . ')');
	return is($session->answer, 'ERROR 57014', "$test_name: cancelled");
}

sub token_of
{
	my ($name) = @_;

	return $asker->query_safe("SELECT token FROM dlock_leases WHERE name = '$name'");
}

# ---- a standby that is away, and comes back ----

my $kept = $holder->query_safe("SELECT dlock_acquire('kept', 'alice', '10 min')");
my $shared = $holder->query_safe("SELECT dlock_acquire('upgraded', 'alice', '10 min', mode => 'shared')");
is(told('kept', $kept), 't held 600 live alice', 'granted and confirmed');

$standby->stop;

# A grant.
$watcher->ask_waiting($asker, "SELECT owner FROM dlock_watch('new', NULL)");
waits_for_standby($holder, "SELECT dlock_acquire('new', 'alice', '10 min')", 'a grant');
my $new = token_of('new');
is(told('new', $new), 'f unconfirmed 600 ERROR LK002 nobody', 'a grant that waits is nobody\'s yet');
is($local->query_safe("SELECT dlock_acquire('new', 'bob')"), '', 'and keeps others out');
still_waits($asker, 'who watches is told nothing', $watcher);
my %asleep = counts($asker, $watcher);
$standby->start;
is($holder->answer, $new, 'standby back: granted');
is($watcher->answer, 'alice', 'and who watches is told');
my %told = counts($asker, $watcher);
cmp_ok($told{woken}, '>', $asleep{woken}, 'by being woken');
is(told('new', $new), 't held 600 live alice', 'as everybody is');
wait_synchronous($primary);

# One that is cancelled.
$standby->stop;
waits_for_standby($holder, "SELECT dlock_acquire('cancelled', 'alice', '10 min')", 'a grant to be cancelled');
cancel($holder, 'a grant');
is(token_of('cancelled'), '', 'a grant that is cancelled is not there');

# An upgrade.
waits_for_standby($holder, "SELECT dlock_convert('upgraded', $shared, 'exclusive')", 'an upgrade');
my $upgraded = token_of('upgraded');
is(told('upgraded', $upgraded), 'f unconfirmed 600 ERROR LK002 nobody', 'an upgrade that waits gives nobody its token');
cancel($holder, 'an upgrade');
is(told('upgraded', $shared), 't held 600 live alice', 'an upgrade that is cancelled: the old token is as good as before');

# A renewal for longer than the bound, and what the session's level says of it.
waits_for_standby($holder, "SELECT dlock_renew('kept', 'alice', '1 h')", 'a renewal');
is(told('kept', $kept), 't held 600 live alice', 'a renewal that waits says nothing new');
cancel($holder, 'a renewal');
is(told('kept', $kept), 't held 600 live alice', 'nor does one that was cancelled');
waits_for_standby($holder, "SELECT dlock_acquire('kept', 'alice', '1 h', reentry => 'return')", 'entered again');
is(told('kept', $kept), 't held 600 live alice', 'nor does a lease that is entered again');
cancel($holder, 'entered again');
is($local->query_safe("SELECT dlock_renew('kept', 'alice')"), 't', 'renewed without the standby');
is(told('kept', $kept), 't held 3600 live alice', 'as the session wished it');
$holder->query_safe('SET synchronous_commit = off');
isnt($new = $holder->query_safe("SELECT dlock_acquire('off', 'alice', '10 min')"), '', 'granted without the disk');
is(told('off', $new), 't held 600 live alice', 'is held at once');
$holder->query_safe('SET synchronous_commit = on');

# One hold more of a path.
my $path = $local->query_safe("SELECT dlock_acquire_path('a/b', 'alice', '10 min')");
waits_for_standby($holder, "SELECT dlock_acquire_path('a/b', 'alice', '1 h', reentry => 'count')", 'a path');
is( $asker->query_safe("SELECT string_agg(extract(epoch FROM remaining)::float8::text, ' ') FROM dlock_leases WHERE token = $path"),
	'600 600', 'all parts of a path that is entered again are as before');
cancel($holder, 'a path');
my $loaded = $local->query_safe("SELECT dlock_acquire('loaded', 'alice', '10 min')");
waits_for_standby($holder, "SELECT dlock_acquire('loaded', 'alice', '1 h', reentry => 'return')", 'returned');
is(told('loaded', $loaded), 't held 600 live alice', 'a lease that is returned');
cancel($holder, 'returned');

# After a crash it is not known which records the standby has.
$_->quit foreach $holder, $asker, $watcher, $local;
$primary->stop('immediate');
$primary->start;
connect_anew();
is( $asker->query_safe("SELECT state FROM dlock_leases WHERE token = $loaded"),
	'unconfirmed', 'after a crash: a view says so');
foreach my $sql ("SELECT dlock_check('loaded', $loaded)", "SELECT dlock_fence('loaded', $loaded, live => true)")
{
	waits_for_standby($holder, $sql, 'after a crash: who wants to know more');
	cancel($holder, $sql);
}
waits_for_standby($holder, "SELECT dlock_check('loaded', $loaded)", 'after a crash: a check');
is($local->query_safe("SELECT dlock_renew('kept', 'alice')"), 't', 'but for who does not ask for the standby');
is(told('kept', $kept), 't held 3600 live alice', 'and is told so');
is($local->query_safe("SELECT dlock_check('loaded', $loaded)"), 't', 'or checks');
$standby->start;
is($holder->answer, 't', 'standby back: checked');
wait_synchronous($primary);
is($holder->query_safe("SELECT dlock_renew('loaded', 'alice')"), 't', 'standby back: renewed');
is(told('loaded', $loaded), 't held 3600 live alice', 'and held');

# ---- cut off ----

# The renewal is logged with a bound of twenty seconds.
my $token = $holder->query_safe("SELECT dlock_acquire('name', 'alice', '10 s')");
advance(1, $asker);
is($holder->query_safe("SELECT dlock_renew('name', 'alice')"), 't', 'renewed once');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
cut_off($primary, $standby);
$standby->promote;
my $promoted = DLockSession->new($standby, $db, name => 'promoted');
my $bob = "SELECT dlock_acquire('name', 'bob', '1 h')";

# Whatever the holder tries: it is told what the standby knows.
my %answer;
foreach my $second (1 .. 19)
{
	$holder->query_safe("SET statement_timeout = '200ms'") if $second == 11;
	advance(1, $asker);
	$answer{$second} = $holder->query("SELECT dlock_renew_token('name', $token)");
	like(told('name', $token), qr/^t held (\d+) live alice$/, "after $second s: held");
}
is($answer{10}, 't', 'cut off: renewed within the bound');
is($answer{11}, 'ERROR 57014', 'and not beyond');
is($answer{19}, 'ERROR 57014', 'however often');
is(told('name', $token), 't held 1 live alice', 'a second is left of the bound');
is($promoted->query_safe($bob), '', 'the promoted server holds the lease, too');
advance(0.999999, $asker);
is(told('name', $token), 't held 1e-06 live alice', 'held to the last microsecond');
is($promoted->query_safe($bob), '', 'on both');
advance(0.000001, $asker);
isnt($promoted->query_safe($bob), '', 'then the other gets the lock there');
foreach my $try (1 .. 3)
{
	like(told('name', $token), qr/^f unconfirmed \S+ ERROR LK002 nobody$/, "and here it is held no longer, try $try");
	is($holder->query("SELECT dlock_renew_token('name', $token)"), 'ERROR 57014', "nor renewed, try $try");
	advance(3, $asker);
}
is($asker->query_safe("SELECT dlock_release_token('name', $token)"), 'f', 'nor released');
is(token_of('name'), '', 'though it keeps nobody out any more');

$_->quit foreach $holder, $asker, $watcher, $local, $promoted;
$standby->stop;
$primary->stop('immediate');
done_testing();
