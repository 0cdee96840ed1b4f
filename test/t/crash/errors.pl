# Proves: an error at any allocation, page read or look at interrupts of the library, and
# where memory, slots or tokens are fetched, leaves nothing half made.  Each call is made
# again and again and fails one such point later each time, until it passes all of them.
# After each error memory, pages, counts and cells fit together, no lock is held that was
# not before, and tokens ascend.  Who waits learns of what a call did before it failed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockFault;
use DLockQueue;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_fault_node('main', conf => "dlock_test.worker = off\ndlock.max_memory = 1MB\ndlock.log_expirations = on");
my $db = 'postgres';
my ($ctl, $a);

sub connect_all
{
	$ctl = DLockSession->new($node, $db, name => 'control');
	$a = DLockSession->new($node, $db, name => 'a', setup => "SET deadlock_timeout = '10 min'");
	return;
}
connect_all();


# Those of groups and time slots are left alone, and end in their time.
my $state = q{SELECT coalesce(string_agg(concat_ws(' ', name, owner, mode, token, holds, payload), ', ' ORDER BY name, token), '') FROM dlock_leases WHERE name NOT LIKE 'dlock:%'};
my $clear = q{SELECT dlock_force_release(name, 'test') FROM dlock_leases WHERE name NOT LIKE 'dlock:%'};
my $long = '"' . ('x' x 900) . '"';
my $names = "(SELECT array_agg('all' || i) FROM generate_series(1, 20) i)";
my $last = 0;

# A call is a hash:
#   sql      what is called; %d is the number of the round
#   setup    what comes before it, in another session
#   keeps    if it fails, all leases are as before
#   waits    SQL that lets it go on, once it waits
#   also     fails first, at each round
#   points   which points fail; all by default
#   fresh    each round is in a new session
my @calls = (
	{ call => 'acquire', sql => "SELECT dlock_acquire('x', 'a', '1 h')", keeps => 1 },
	{ call => 'acquire, new session', sql => "SELECT dlock_acquire('x', 'a', '1 h')", keeps => 1, fresh => 1 },
	{ call => 'acquire, page not cached', sql => "SELECT dlock_acquire('x', 'a', '1 h')", keeps => 1, also => 'ReadRecentBuffer', points => 'ReadBuffer*' },
	{ call => 'acquire, long texts', sql => "SELECT dlock_acquire(repeat('n', 255), repeat('o', 255), '1 h', payload => '$long')", keeps => 1 },
	{ call => 'acquire, memory full', setup => "SELECT dlock_acquire('dead' || i, 'dead', '1 ms') FROM generate_series(1, 3) i; SELECT pg_sleep(0.002)",
		sql => "SELECT dlock_acquire('x', 'a', '1 h', payload => '$long')", keeps => 1, also => 'cells' },
	{ call => 'acquire, expired leases', setup => "SELECT dlock_acquire('x', 's' || i, '1 ms', mode => 'shared') FROM generate_series(1, 3) i; SELECT pg_sleep(0.002)",
		sql => "SELECT dlock_acquire('x', 'a', '1 h')" , keeps => 1 },
	{ call => 'acquire, expired leases on many pages',
		setup => "SELECT dlock_acquire('x', 's' || i, '1 ms', mode => 'shared', payload => '$long') FROM generate_series(1, 40) i; SELECT pg_sleep(0.002)",
		sql => "SELECT dlock_acquire('x', 'a', '1 h')" , keeps => 1 },
	{ call => 'acquire, expired path', setup => "SELECT dlock_acquire_path('p/q', 's', '1 ms'); SELECT pg_sleep(0.002)",
		sql => "SELECT dlock_acquire('p', 'a', '1 h')", keeps => 1 },
	{ call => 'acquire with many shared', setup => "SELECT dlock_acquire('x', 's' || i, '1 h', mode => 'shared') FROM generate_series(1, 12) i",
		sql => "SELECT dlock_acquire('x', 'a', '1 h', mode => 'shared')", keeps => 1 },
	{ call => 'acquire, bound', sql => "SELECT dlock_acquire('x', 'a', bind => 'session', lock_delay => '1 s')", keeps => 1, fresh => 1 },
	{ call => 'acquire in a transaction', sql => "SELECT dlock_acquire('x', 'a', bind => 'transaction')", keeps => 1, fresh => 1 },
	{ call => 'acquire under a limit', sql => "SET dlock.max_leases = 5; SELECT dlock_acquire('x', 'a', '1 h'); RESET dlock.max_leases", keeps => 1, fresh => 1 },
	{ call => 'acquire_all', sql => "SELECT dlock_acquire_all($names, 'a', '1 h')", keeps => 1 },
	{ call => 'acquire_all, new session', sql => "SELECT dlock_acquire_all($names, 'a', '1 h', payload => '$long')", keeps => 1, fresh => 1 },
	{ call => 'acquire_all, refused', setup => "SELECT dlock_acquire('all7', 'other', '1 h')", sql => "SELECT dlock_acquire_all($names, 'a', '1 h')", keeps => 1 },
	{ call => 'acquire_path', sql => "SELECT dlock_acquire_path('p/q/r', 'a', '1 h')", keeps => 1 },
	{ call => 'enter again', setup => "SELECT dlock_acquire('x', 'a', '10 min')", sql => "SELECT dlock_acquire('x', 'a', '1 h', reentry => 'count')", keeps => 1 },
	{ call => 'return', setup => "SELECT dlock_acquire('x', 'a', '10 min')", sql => "SELECT dlock_acquire('x', 'a', '1 h', reentry => 'return')" },
	{ call => 'wait', setup => "SELECT dlock_acquire('x', 'other', '1 h')", sql => "SELECT dlock_acquire('x', 'a', '1 h', wait => NULL)",
		waits => "SELECT dlock_release('x', 'other')" },
	{ call => 'wait for several', setup => "SELECT dlock_acquire('all3', 'other', '1 h')", sql => "SELECT dlock_acquire_all($names, 'a', '1 h', wait => NULL)",
		waits => "SELECT dlock_release('all3', 'other')" },
	{ call => 'wait in vain', setup => "SELECT dlock_acquire('x', 'other', '1 h')", sql => "SELECT dlock_acquire('x', 'a', '1 h', wait => '5 ms')", keeps => 1 },
	{ call => 'wait, look for a deadlock', setup => "SELECT dlock_acquire('x', 'other', '1 h'), dlock_acquire('y', 'a', '1 h')",
		sql => "SET deadlock_timeout = '1 ms'; SELECT dlock_acquire('x', 'a', '1 h', wait => '20 ms'); RESET deadlock_timeout", keeps => 1, fresh => 1 },
	{ call => 'upgrade', setup => "SELECT dlock_acquire('x', 'a', '1 h', mode => 'shared')",
		sql => "SELECT dlock_convert('x', token, 'exclusive') FROM dlock_leases WHERE name = 'x'", keeps => 1 },
	{ call => 'upgrade that waits', setup => "SELECT dlock_acquire('x', 'a', '1 h', mode => 'shared'), dlock_acquire('x', 'other', '1 h', mode => 'shared')",
		sql => "SELECT dlock_convert('x', (SELECT token FROM dlock_leases WHERE name = 'x' AND owner = 'a'), 'exclusive', NULL)",
		waits => "SELECT dlock_release('x', 'other')" },
	{ call => 'downgrade', setup => "SELECT dlock_acquire('x', 'a', '1 h')", sql => "SELECT dlock_convert('x', token, 'shared') FROM dlock_leases WHERE name = 'x'" },
	{ call => 'renew', setup => "SELECT dlock_acquire('x', 'a', '10 min')", sql => "SELECT dlock_renew('x', 'a', '1 h')", keeps => 1 },
	{ call => 'renew, page not cached', setup => "SELECT dlock_acquire('x', 'a', '10 min')", sql => "SELECT dlock_renew('x', 'a', '1 h')", keeps => 1,
		also => 'ReadRecentBuffer', points => 'ReadBuffer*' },
	{ call => 'renew_all', setup => "SELECT dlock_acquire_all($names, 'a', '10 min')", sql => "SELECT dlock_renew_all('a', '1 h')", keeps => 1 },
	{ call => 'release', setup => "SELECT dlock_acquire('x', 'a', '1 h')", sql => "SELECT dlock_release('x', 'a')" },
	{ call => 'release, page not cached', setup => "SELECT dlock_acquire('x', 'a', '1 h')", sql => "SELECT dlock_release('x', 'a')",
		also => 'ReadRecentBuffer', points => 'ReadBuffer*' },
	{ call => 'release, closed', setup => "SELECT dlock_acquire('x', 'a', '1 h', min_hold => '1 h')", sql => "SELECT dlock_release('x', 'a')" },
	{ call => 'release_all', setup => "SELECT dlock_acquire_all($names, 'a', '1 h')", sql => "SELECT dlock_release_all('a')" },
	{ call => 'release of a path', setup => "SELECT dlock_acquire_path('p/q/r', 'a', '1 h')", sql => "SELECT dlock_release_all('a')" },
	{ call => 'force_release', setup => "SELECT dlock_acquire('x', 's' || i, '1 h', mode => 'shared', lock_delay => '1 s') FROM generate_series(1, 10) i",
		sql => "SELECT dlock_force_release('x', 'test')" },
	{ call => 'watch', setup => "SELECT dlock_acquire('x', 'other', '1 h')", sql => "SELECT dlock_watch('x', (SELECT token FROM dlock_leases WHERE name = 'x'))",
		waits => "SELECT dlock_release('x', 'other')" },
	{ call => 'once', sql => "SELECT dlock_once('once', '1 ms')" },
	{ call => 'campaign', sql => "SELECT dlock_campaign('e%d', 'a', '1 h')" },
	{ call => 'group', setup => "SELECT dlock_group_create('g%d', 3)", sql => "SELECT dlock_group_renew('g%d', dlock_group_join('g%d', 'm'))" },
	{ call => 'fence', setup => "SELECT dlock_acquire('x', 'a', '1 h')", sql => "SELECT dlock_fence('r%d', token) FROM dlock_leases WHERE name = 'x'", keeps => 1 },
	{ call => 'bump_epoch', sql => "SELECT dlock_bump_epoch('test')", keeps => 1 },
	{ call => 'views', setup => "SELECT dlock_acquire_all($names, 'a', '1 h')",
		sql => 'SELECT count(*) FROM dlock_leases; SELECT count(*) FROM dlock_waiters; SELECT * FROM dlock_stats', keeps => 1 },
	{ call => 'first use', setup => 'DROP EXTENSION dlock; CREATE EXTENSION dlock', sql => "SELECT dlock_acquire('x', 'a', '1 h', payload => '$long')" },
	{ call => 'first use, new session', setup => 'DROP EXTENSION dlock; CREATE EXTENSION dlock', sql => "SELECT dlock_acquire('x', 'a', '1 h')", fresh => 1 },
);

my $errors = 0;
my %failed_at;

foreach my $call (@calls)
{
	my @findings;
	my $round = 0;
	my $hits = 0;

	while (1)
	{
		my ($setup, $sql) = map { ($_ // '') =~ s/%d/$last/gr } @$call{qw(setup sql)};
		my $points = $call->{points} // '*';

		# Walks pass the same point for each partition.
		$round += $round < 30 ? 1 : 29;
		my $label = "round $round";

		if ($call->{fresh})
		{
			$a->quit;
			$a = DLockSession->new($node, $db, name => 'a', setup => "SET deadlock_timeout = '10 min'");
		}
		$ctl->query_safe($setup) if $setup ne '';
		my $before = $ctl->query_safe($state) unless $setup =~ /EXTENSION/;

		fail_at($ctl, $a, $call->{also}) if $call->{also};
		fail_at($ctl, $a, $points, $round);
		$a->ask($sql);
		my $waited = $call->{waits} ? $a->wait_for_wait($ctl) : 0;
		$ctl->query_safe($call->{waits}) if $call->{waits};
		my $answer = $a->answer;
		my $hit = faults_hit($ctl, $points);
		go_all($ctl);

		my $failed = $a->{state} ne '';
		$hits++ if $hit;
		$errors++ if $failed;
		push @findings, "$label: $answer: $a->{stderr}" if $failed && ($answer !~ /^ERROR (53200|58030|57014|53400)$/ || $a->{message} !~ /fault at|out of memory|lease memory is full/);
		push @findings, "$label: failed without a fault: $a->{stderr}" if $failed && !$hit;
		push @findings, "$label: did not wait: $answer" if $call->{waits} && !$waited && !$hit;
		die "$call->{call}, $label: the session is lost: $a->{stderr}" if $a->{lost};
		push @findings, "$label: is in a queue" if $ctl->query_safe("SELECT count(*) FROM dlock_waiters") != 0;
		if ($failed && $call->{keeps} && (my $after = $ctl->query_safe($state)) ne $before)
		{
			push @findings, "$label: $a->{message}: there was '$before', there is '$after'";
		}
		my $unsound = $ctl->query_safe('SELECT inconsistencies((SELECT count(*)::int FROM pg_stat_activity))');
		push @findings, "$label: $a->{message}: $unsound" if $unsound ne '';

		$ctl->query_safe($clear);
		my $token = $ctl->query_safe("SELECT dlock_acquire('token', 'control', '1 h')");
		push @findings, "$label: token $token after $last" if $token eq '' || $token <= $last;
		$last = $token if $token ne '';
		$ctl->query_safe("SELECT dlock_release('token', 'control')");
		$failed_at{$1}++ if $failed && $a->{message} =~ /fault at "(.*)"/;
		last if !$hit || @findings > 5 || $round > 500;
	}
	is(join("\n", @findings), '', "$call->{call}: $hits faults");
	ok($hits > 0, "$call->{call}: there were faults");
}
diag "$errors errors: " . join ', ', map { "$_ $failed_at{$_}" } sort keys %failed_at;

# What the sweeps have used is free again: no slot is lost, and the store does not grow.
cmp_ok($node->safe_psql($db, "SELECT pg_relation_size('_dlock.store') / 8192"), '<', 40, 'no slots are lost');

# The load after a crash: whatever fails in it, the next use tries again, and finds all.
$ctl->query_safe("SELECT dlock_acquire('load' || i, 'load', '1 h', payload => '$long') FROM generate_series(1, 20) i; SELECT dlock_acquire_path('l/m/n', 'load', '1 h')");
foreach my $points ('*', 'ReadBuffer*')
{
	# Before, since a process that is killed does not count what it has executed.
	$_->quit foreach $ctl, $a;
	crash_node($node);
	$node->start;
	connect_all();
	my $round = 0;
	my $answer;
	do
	{
		$round += $round < 40 ? 1 : 29;
		fail_at($ctl, $a, $points, $round);
		$answer = $a->query("SELECT count(*) FROM dlock_leases WHERE owner = 'load'");
		go_all($ctl);
	} while ($a->{state} ne '' && $round < 1000);
	is($answer, 23, "load, $points: all are there in the end");
	cmp_ok($round, '>', 3, "load, $points: there were faults");
	sound($ctl, "load, $points");
}

# A call that erases what was ended by force, and then is refused for its role's limit, has
# told those that wait.
{
	$ctl->query_safe('CREATE ROLE tenant');
	my $watcher = DLockSession->new($node, $db, name => 'watcher', setup => "SET deadlock_timeout = '10 min'");
	my $limited = DLockSession->new($node, $db, name => 'limited', setup => 'SET dlock.max_leases = 1; SET ROLE tenant');
	my $token = $ctl->query_safe("SELECT dlock_acquire('forced', 'holder', '1 h')");

	$watcher->ask_waiting($ctl, "SELECT count(token) FROM dlock_watch('forced', $token)");
	$limited->query_safe("SELECT dlock_acquire('limit', 'limited', '1 h')");
	stop_at($ctl, $a, 'forced');
	$a->ask("SELECT dlock_force_release('forced', 'test')");
	is_at($ctl, 'forced');
	is($limited->query("SELECT dlock_acquire('forced', 'limited', '1 h')"), 'ERROR 53400', 'ended by force: the next is refused');
	ok(wait_any(60, $watcher), 'ended by force: who watches is told');
	go($ctl, 'forced');
	is($a->answer, 1, 'ended by force: one lease');
	is($watcher->answer, 0, 'ended by force: nobody holds the lock');
	$limited->query_safe("SELECT dlock_release('limit', 'limited')");
	$_->quit foreach $watcher, $limited;
	sound($ctl, 'ended by force');
}

# The worker that fails in the middle tries again later, and in the end all has been erased.
{
	my $left = "SELECT count(*) FROM dlock_leases WHERE owner = 'load'";

	my $pid = worker_pid($node);

	foreach my $point (qw(worker_lock worker_erase log_expired ReadBufferWithoutRelcache worker_erased interrupt))
	{
		pause_worker($node);
		fail_at($ctl, $pid, 'ReadRecentBuffer') if $point =~ /Relcache/;
		fail_at($ctl, $pid, $point, $point =~ /_erase$/ ? 5 : 1);
		$ctl->query_safe("SELECT dlock_acquire('erase' || i, 'erase', '1 ms') FROM generate_series(1, 20) i");
		resume_worker($node);
		ok(wait_until(sub { faults_hit($ctl, $point) != 0 }), "worker: it fails at $point");
		go_all($ctl);
		ok(wait_until(sub { $ctl->query_safe("SELECT leases FROM dlock_stats") == 23 }), "worker: all is erased after $point");
		is($ctl->query_safe($left), 23, "worker: and nothing else after $point");
		is(worker_pid($node), $pid, "worker: it goes on after $point") if $point ne 'interrupt';
		sound($ctl, "worker: $point");
	}
}

# A server has room for so many databases that no test fills it.
$node->safe_psql($db, 'CREATE DATABASE another');
fail_at($ctl, 0, 'databases');
$node->safe_psql('another', 'CREATE EXTENSION dlock');
my %error = sqlstate_is($node, 'another', "SELECT dlock_acquire('x', 'a', '1 h')", '53400', 'databases: too many');
like($error{message}, qr/in too many databases/, 'databases: the message');
go($ctl, 'databases');
is($node->safe_psql('another', 'SELECT count(*) FROM dlock_leases'), 0, 'databases: there is room');

# In a new store a page takes memory for its free slots, and the lease does; it may be full at each.
{
	my ($round, $hit, $refused) = (0, 1, 0);

	while ($hit && $round < 20)
	{
		fail_at($ctl, 0, 'cells', ++$round);
		fail_at($ctl, 0, 'passes');
		%error = error_fields($node, 'another', "SELECT dlock_acquire('x', 'a', '1 h')");
		$hit = faults_hit($ctl, 'cells');
		go($ctl, $_) foreach 'cells', 'passes';
		last if !$hit;
		$refused++;
		is($error{sqlstate}, '53400', "a new store, memory full at $round: refused");
		like($error{message}, qr/lease memory is full/, "a new store, memory full at $round: the message");
	}
	cmp_ok($refused, '>', 1, 'a new store: there were faults');
	is($node->safe_psql('another', 'SELECT name, owner FROM dlock_leases'), 'x|a', 'a new store: in the end there is room');
}

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|invalid page/, 'nothing odd in the log');
done_testing();
