# Proves: a watcher learns of a new holder, or of none, when it happens, whatever
# brings it about and whether or not anybody tidies up; those who ask for the lock in
# vain do not wake it; it is in nobody's way, and ends when its session is told to.

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

# Nothing here may depend on looking again after a while.
my $node = start_fault_node('main', conf => "deadlock_timeout = 500h\n");
my $db = 'postgres';
my ($monitor, $one, $two, $watcher) = map { DLockSession->new($node, $db) } 1 .. 4;

# How often somebody has woken the watcher.  The server itself may do so, too, some seconds
# after the session was idle, and then it looks.
sub wakes
{
	my %counts = counts($monitor, $watcher);

	return $counts{woken};
}

# Have the watcher wait for something to happen to a lock whose holder has the
# token $seen ("NULL" for none), do it, and test what it says.  The clock stands still
# meanwhile, so it has to be woken, but for what happens with time alone.
sub woken_by
{
	my ($what, $name, $seen, $do, $expected) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$watcher->ask_waiting($monitor, "SELECT owner, mode FROM dlock_watch('$name', $seen)");
	my $before = wakes();
	$do->();
	my $answer = $watcher->answer;
	cmp_ok(wakes(), '>', $before, "$what: woken") if $what !~ /^expiry/;

	# It may look in between one holder and the next.
	$answer = $watcher->query("SELECT owner, mode FROM dlock_watch('$name', NULL)")
	  if $what =~ /^a hand-off/ && $answer eq '|';
	is($answer, $expected, "$what: told");
	return;
}

sub doing
{
	my ($session, $sql) = @_;
	return sub { $session->query_safe($sql) };
}

# To the microsecond.
sub after
{
	my ($seconds, $what) = @_;
	return sub {
		advance($seconds - 0.000001, $monitor);
		still_waits($monitor, "$what: not before", $watcher);
		advance(0.000001, $monitor);
	};
}

sub token_of
{
	my ($name) = @_;
	return $monitor->query_safe("SELECT max(token) FROM dlock_leases WHERE name = '$name'");
}

foreach my $with ('', ', no worker')
{
	still_worker($node) if $with;

	woken_by("a grant$with", 'w', 'NULL', doing($one, "SELECT dlock_acquire('w', 'one', '1 h')"), 'one|exclusive');
	woken_by("a release$with", 'w', token_of('w'), doing($one, "SELECT dlock_release('w', 'one')"), '|');
	$one->query_safe("SELECT dlock_acquire('w', 'one', '1 h')");
	woken_by("a forced release$with", 'w', token_of('w'), doing($two, "SELECT dlock_force_release('w', 'test')"), '|');
	$one->query_safe("SELECT dlock_acquire('w', 'one', '1 h')");
	woken_by("release_all$with", 'w', token_of('w'), doing($two, "SELECT dlock_release_all('one')"), '|');
	$one->query_safe("SELECT dlock_acquire('w', 'one', '10 min')");
	woken_by("expiry$with", 'w', token_of('w'), after(600, "expiry$with"), '|');
	$one->query_safe("SELECT dlock_acquire('w', 'one', '1 h')");
	woken_by("a renewal that brings the deadline nearer$with", 'w', token_of('w'),
		sub { $one->query_safe("SELECT dlock_renew('w', 'one', '2 min')"); after(120, "a nearer deadline$with")->() }, '|');

	# Handed on to one that waits.
	$one->query_safe("SELECT dlock_acquire('w', 'one', '1 h')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire('w', 'two', '1 h', wait => NULL)");
	woken_by("a hand-off$with", 'w', token_of('w'), doing($one, "SELECT dlock_release('w', 'one')"), 'two|exclusive');
	$two->answer;
	$two->query_safe("SELECT dlock_release('w', 'two')");
	$one->query_safe("SELECT dlock_acquire('w', 'one', '10 min')");
	$two->ask_waiting($monitor, "SELECT dlock_acquire('w', 'two', '1 h', wait => NULL)");
	woken_by("a hand-off at the deadline$with", 'w', token_of('w'), after(600, "a hand-off at the deadline$with"), 'two|exclusive');
	$two->answer;

	# A new token of the same holder; another holder beside it.
	woken_by("a conversion down and up$with", 'w', token_of('w'), sub {
			my $token = token_of('w');
			$two->query_safe("SELECT dlock_convert('w', dlock_convert('w', $token, 'shared'), 'PW')");
		}, 'two|PW');
	$two->query_safe("SELECT dlock_convert('w', " . token_of('w') . ", 'CR')");
	woken_by("another reader$with", 'w', token_of('w'), doing($one, "SELECT dlock_acquire('w', 'one', '1 h', mode => 'shared')"), 'one|shared');
	woken_by("the end of the latest of them$with", 'w', token_of('w'), doing($one, "SELECT dlock_release('w', 'one')"), 'two|CR');
	$two->query_safe("SELECT dlock_release('w', 'two')");

	# Closed is not held.
	$one->query_safe("SELECT dlock_acquire('w', 'one', '1 h', min_hold => '1 h')");
	woken_by("an early release$with", 'w', token_of('w'), doing($one, "SELECT dlock_release('w', 'one')"), '|');
	is($monitor->query_safe("SELECT state FROM dlock_leases WHERE name = 'w'"), 'closed', "an early release$with: closed");
	$two->ask_waiting($monitor, "SELECT dlock_acquire('w', 'two', '1 h', wait => NULL)");
	woken_by("closed, and then open$with", 'w', 'NULL', doing($one, "SELECT dlock_force_release('w', 'test')"), 'two|exclusive');
	$two->answer;
	$two->query_safe("SELECT dlock_release('w', 'two')");

	# One permit of many.
	woken_by("a permit$with", 'w', 'NULL', doing($one, "SELECT dlock_acquire('w', 'one', '1 h', permits => 3)"), 'one|permit');
	$one->query_safe("SELECT dlock_release('w', 'one')");

	# What has no record, or one that is not waited for.
	woken_by("a grant to a session$with", 'w', 'NULL', doing($one, "SELECT dlock_acquire('w', 'one', bind => 'session')"), 'one|exclusive');
	woken_by("its release$with", 'w', token_of('w'), doing($one, "SELECT dlock_release('w', 'one')"), '|');
	woken_by("a grant that is not flushed$with", 'w', 'NULL', doing($one, "SET synchronous_commit = off; SELECT dlock_acquire('w', 'one', '1 h')"), 'one|exclusive');
	$one->query_safe("RESET synchronous_commit; SELECT dlock_release('w', 'one')");

	# What is bound.
	$one->query_safe("BEGIN; SELECT dlock_acquire('w', 'one', bind => 'transaction')");
	woken_by("COMMIT$with", 'w', token_of('w'), doing($one, 'COMMIT'), '|');
	$one->query_safe("BEGIN; SAVEPOINT s; SELECT dlock_acquire('w', 'one', bind => 'transaction')");
	woken_by("ROLLBACK TO$with", 'w', token_of('w'), doing($one, 'ROLLBACK TO s'), '|');
	$one->query_safe('ROLLBACK');
	my $brief = DLockSession->new($node, $db);
	$brief->query_safe("SELECT dlock_acquire('w', 'brief', bind => 'session')");
	woken_by("the end of the session$with", 'w', token_of('w'), sub { $brief->quit }, '|');

	# A path and one of several names.
	woken_by("a grant of a path$with", 'w/a/b', 'NULL', doing($one, "SELECT dlock_acquire_path('w/a/b', 'one', '1 h')"), 'one|exclusive');
	woken_by("a forced release of its ancestor$with", 'w/a/b', token_of('w/a/b'), doing($two, "SELECT dlock_force_release('w', 'test')"), '|');
	woken_by("a grant of several$with", 'w2', 'NULL', doing($one, "SELECT dlock_acquire_all('{w1,w2,w3}', 'one', '1 h')"), 'one|exclusive');
	$one->query_safe("SELECT dlock_release_all('one')");
}

# Many that watch are all told.
{
	my @watchers = map { DLockSession->new($node, $db) } 1 .. 10;
	$one->query_safe("SELECT dlock_acquire('many', 'one', '1 h')");
	my $token = token_of('many');
	$_->ask_waiting($monitor, "SELECT coalesce(w.owner, (SELECT owner FROM dlock_watch('many', NULL))) FROM dlock_watch('many', $token) w") foreach @watchers;
	$watcher->ask_waiting($monitor, "SELECT owner FROM dlock_watch('other', NULL)");
	is($monitor->query_safe('SELECT count(*) FROM dlock_waiters'), 0, 'watchers do not wait for a lock');
	$two->ask_waiting($monitor, "SELECT dlock_acquire('many', 'two', '1 h', wait => NULL)");
	is($monitor->query_safe("SELECT owner, position, blocked_by FROM dlock_waiters"), 'two|1|{one}', 'nor are they in the way of one that does');
	$one->query_safe("SELECT dlock_release('many', 'one')");
	$two->answer;
	is(join(',', map { $_->answer } @watchers), join(',', ('two') x 10), 'ten are told');
	still_waits($monitor, 'one of another lock is not', $watcher);
	$_->quit foreach @watchers;
	$two->query_safe("SELECT dlock_release('many', 'two')");
	$one->query_safe("SELECT dlock_acquire('other', 'one', '1 h')");
	is($watcher->answer, 'one', 'until it is held');
	$one->query_safe("SELECT dlock_release('other', 'one')");
}

# What is no change of the holder does not end it, and neither does looking.
{
	$one->query_safe("SELECT dlock_acquire('same', 'first', '1 h', mode => 'CR')");
	my $second = $one->query_safe("SELECT dlock_acquire('same', 'second', '1 h', mode => 'CR')");
	$watcher->ask_waiting($monitor, "SELECT owner, mode FROM dlock_watch('same', $second)");
	$two->query_safe("SELECT dlock_renew('same', 'second', '2 h')");
	$two->query_safe("SELECT dlock_acquire('same', 'second', '2 h', mode => 'CR', reentry => 'count')");
	$two->query_safe("SELECT dlock_acquire('same', 'second', '2 h', mode => 'CR', reentry => 'return')");
	$two->query_safe("SELECT dlock_release('same', 'second')");
	is($two->query_safe("SELECT dlock_acquire('same', 'third', '1 h')"), '', 'a refusal');
	is($two->query_safe("SELECT dlock_convert('same', $second, 'NL')"), $second, 'a conversion down');
	$two->query_safe("SELECT dlock_release('same', 'first')");
	$two->query_safe("SELECT dlock_acquire_path('same/x', 'path', '1 h')");
	$two->query_safe("SELECT dlock_acquire('other', 'third', '1 h'), dlock_release('other', 'third')");
	still_waits($monitor, 'it watches on', $watcher);
	is($monitor->query_safe("SELECT owner, mode FROM dlock_watch('same', $second, '0')"), 'second|NL', 'the holder is the same');
	$two->query_safe("SELECT dlock_release('same', 'second')");
	is($watcher->answer, '|', 'until it is gone');
	$two->query_safe("SELECT dlock_release('same/x', 'path')");
}

# Who asks for the lock in vain does not wake it, at once or after a wait.
{
	$one->query_safe("SELECT dlock_acquire('asked', 'one', '1 h')");
	$watcher->ask_waiting($monitor, 'SELECT owner FROM dlock_watch(\'asked\', ' . token_of('asked') . ')');
	settle($monitor);
	my %before = counts($monitor, $watcher);
	is($two->query_safe("SELECT count(dlock_acquire('asked', 'two')) FROM generate_series(1, 200) i"), 0, 'refused at once');
	foreach (1 .. 3)
	{
		$two->ask_waiting($monitor, "SELECT dlock_acquire('asked', 'two', wait => '1 s') IS NULL");
		is(granted_at($monitor, $two, 1, 'refused after a wait'), 't', 'refused after a wait');
	}
	my %after = counts($monitor, $watcher);
	is($after{woken}, $before{woken}, 'it sleeps on');
	$one->query_safe("SELECT dlock_release('asked', 'one')");
	is($watcher->answer, '', 'until the lock is free');
}

# What happens between its look and its sleep is told, as well as what happens before the look.
foreach my $point ('watch_look', 'nap')
{
	stop_at($monitor, $watcher, $point);
	$watcher->ask("SELECT owner FROM dlock_watch('raced', NULL)");
	is_at($monitor, $point);
	my $before = wakes();
	$one->query_safe("SELECT dlock_acquire('raced', 'one', '1 h')");
	go($monitor, $point);
	is($watcher->answer, 'one', "a grant at $point");
	cmp_ok(wakes(), '>', $before, "a grant at $point: woken");
	$one->query_safe("SELECT dlock_release('raced', 'one')");
}

# A snapshot from before is no matter, nor is a transaction that may not write.
foreach my $begin ('BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY', 'BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY')
{
	$watcher->query_safe("$begin; SELECT count(*) FROM pg_class");
	woken_by($begin, 'w', 'NULL', doing($one, "SELECT dlock_acquire('w', 'one', '1 h')"), 'one|exclusive');
	$one->query_safe("SELECT dlock_release('w', 'one')");
	$watcher->query_safe('COMMIT');
}

# What ends a watch besides.
{
	$watcher->ask_waiting($monitor, "SELECT count(owner) FROM dlock_watch('w', NULL, '5 min')");
	is(granted_at($monitor, $watcher, 300, 'its time is over'), 0, 'its time is over');

	# This one goes by the machine's clock.
	is($watcher->query("SET statement_timeout = '100 ms'; SELECT * FROM dlock_watch('w', NULL)"), 'ERROR 57014', 'statement_timeout');
	$watcher->query_safe('RESET statement_timeout');
	$watcher->ask_waiting($monitor, "SELECT * FROM dlock_watch('w', NULL)");
	$monitor->query_safe('SELECT pg_cancel_backend(' . $watcher->pid . ')');
	is($watcher->answer, 'ERROR 57014', 'pg_cancel_backend');
	my $brief = DLockSession->new($node, $db);
	$brief->ask_waiting($monitor, "SELECT * FROM dlock_watch('w', NULL)");
	$monitor->query_safe('SELECT pg_terminate_backend(' . $brief->pid . ')');
	like($brief->answer, qr/^(?:FATAL 57P01|LOST)$/, 'pg_terminate_backend');

	my $killed = DLockSession->new($node, $db);
	$killed->ask_waiting($monitor, "SELECT dlock_watch('stop', NULL, NULL)");
	$killed->kill_client;
	ok(eval { $killed->wait_backend_gone; 1 }, 'a client that dies takes its watch along');

	# It is not woken later, or in the way.
	my %before = counts($monitor, $watcher);
	$one->query_safe("SELECT dlock_acquire('w', 'one', '1 h'), dlock_release('w', 'one')");
	advance(3600, $monitor);
	my %after = counts($monitor, $watcher);
	is($after{woken}, $before{woken}, 'it is not woken any more');
	is($watcher->query_safe('SELECT 1'), 1, 'the session goes on');
}

# The store is rewritten meanwhile; nobody waits for anybody.
{
	$one->query_safe("SELECT dlock_acquire('w', 'one', '1 h')");
	my $token = token_of('w');
	$watcher->ask_waiting($monitor, "SELECT owner FROM dlock_watch('w', $token)");
	$two->ask_waiting($monitor, "SELECT dlock_acquire('w', 'two', '1 h', wait => NULL)");
	is($monitor->query("SET lock_timeout = '20 s'; VACUUM FULL _dlock.store"), '', 'VACUUM FULL does not wait for them');
	$monitor->query_safe('RESET lock_timeout');
	still_waits($monitor, 'a watcher and a waiter stay through VACUUM FULL', $watcher, $two);
	$one->query_safe("SELECT dlock_release('w', 'one')");
	like($two->answer, qr/^\d+$/, 'and is granted');
	like($watcher->answer, qr/^(?:two)?$/, 'and told');
	$two->query_safe("SELECT dlock_release('w', 'two')");
}

# The extension goes: those who wait are told, and nobody waits for them.  It may
# come back, and knows nothing of what was before.
{
	$one->query_safe("SELECT dlock_acquire('w', 'one', '1 h')");
	my $token = token_of('w');
	my $converter = DLockSession->new($node, $db);
	my $all = DLockSession->new($node, $db);
	my $reader = $one->query_safe("SELECT dlock_acquire('c', 'reader', '1 h', mode => 'shared')");
	$one->query_safe("SELECT dlock_acquire('c', 'other', '1 h', mode => 'shared')");
	$watcher->ask_waiting($monitor, "SELECT * FROM dlock_watch('w', $token)");
	$two->ask_waiting($monitor, "SELECT dlock_acquire('w', 'two', '1 h', wait => NULL)");
	$converter->ask_waiting($monitor, "SELECT dlock_convert('c', $reader, 'exclusive', NULL)");
	$all->ask_waiting($monitor, "SELECT dlock_acquire_all('{x,w,y}', 'all', '1 h', wait => NULL)");

	# No worker is needed to tell them; and what was rolled back is not told.
	$monitor->query_safe('BEGIN; SAVEPOINT s; DROP EXTENSION dlock; ROLLBACK TO s; COMMIT');
	still_waits($monitor, 'DROP EXTENSION rolled back: they wait', $watcher, $two, $converter, $all);
	my $before = wakes();
	is($monitor->query("SET lock_timeout = '20 s'; DROP EXTENSION dlock"), '', 'DROP EXTENSION does not wait for them');
	is($_->[1]->answer, 'ERROR 55000', "DROP EXTENSION: $_->[0]")
	  foreach [ 'a watcher', $watcher ], [ 'a waiter', $two ], [ 'a conversion', $converter ], [ 'one that wants several', $all ];
	cmp_ok(wakes(), '>', $before, 'DROP EXTENSION: the watcher was woken');
	$monitor->query_safe('CREATE EXTENSION dlock');
	is($monitor->query_safe('SELECT (SELECT count(*) FROM dlock_leases) + (SELECT count(*) FROM dlock_waiters)'), 0, 'it comes back empty');
	woken_by('the extension made anew', 'w', 'NULL', doing($one, "SELECT dlock_acquire('w', 'one', '1 h')"), 'one|exclusive');
	$_->quit foreach $converter, $all;

	# A DROP that is undone may end them or not, but harms no lease.
	$two->ask_waiting($monitor, "SELECT dlock_acquire('w', 'two', '1 h', wait => NULL)");
	$monitor->query_safe('BEGIN; DROP EXTENSION dlock; ROLLBACK');
	is($one->query_safe("SELECT dlock_release('w', 'one')"), 't', 'DROP EXTENSION that is rolled back: the lease is held');
	like($two->answer, qr/^(?:\d+|ERROR 55000)$/, 'DROP EXTENSION that is rolled back: the waiter does not hang');
}

$_->quit foreach $monitor, $one, $two, $watcher;
$node->stop;
log_is_clean($node);
done_testing();
