# Proves, to the microsecond: after an unclean end a lock stays closed for its lock delay,
# and after an orderly one not at all; a lease that was given back early is handed on when
# its least time is over, and not before; both over crashes, and whatever the wall clock does.

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
my $node = start_fault_node('main', conf => "restart_after_crash = on\ndeadlock_timeout = 500h\n");
my $db = 'postgres';
my ($monitor, $waiter);

sub connect_all
{
	($monitor, $waiter) = open_sessions($node, $db, 2, name => 's');
	return;
}

sub state_of
{
	my ($name) = @_;
	return $monitor->query_safe("SELECT state FROM dlock_leases WHERE name = '$name'");
}

# The waiter waits for a lock.
sub wait_for
{
	my ($name) = @_;

	enqueue($monitor, $waiter, "SELECT dlock_acquire('$name', 'waiter', '1 h', NULL)");
	return;
}

# The waiter gets the lock after so many seconds, and not before; and gives it back.
sub opens_after
{
	my ($seconds, $name, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	like(granted_at($monitor, $waiter, $seconds, $test_name), qr/^\d+$/, "$test_name: granted");
	$waiter->query_safe("SELECT dlock_release('$name', 'waiter')");
	return;
}

# It gets it now.
sub is_open
{
	my ($name, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	like($waiter->answer, qr/^\d+$/, "$test_name: granted");
	$waiter->query_safe("SELECT dlock_release('$name', 'waiter')");
	return;
}

sub try_acquire
{
	my ($name) = @_;
	return $monitor->query_safe("SELECT dlock_acquire('$name', 'taker', '1 h')");
}

# Nobody waits; it is refused until so many seconds have passed.  Returns the token.
sub refused_until
{
	my ($seconds, $name, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	advance($seconds - 0.000001, $monitor);
	is(try_acquire($name), '', "$test_name: refused a microsecond before its time");
	advance(0.000001, $monitor);
	my $token = try_acquire($name);
	isnt($token, '', "$test_name: granted at its time");
	$monitor->query_safe("SELECT dlock_release('$name', 'taker')");
	return $token;
}

connect_all();

# After expiry: for one that asks and for one that waits, with the worker and without.
foreach my $with ('with a worker', 'no worker')
{
	still_worker($node) if $with eq 'no worker';
	my $token = $monitor->query_safe("SELECT dlock_acquire('asked', 'holder', '30 s', lock_delay => '50 s')");
	cmp_ok(refused_until(80, 'asked', "expired, $with"), '>', $token, "expired, $with: a larger token");

	$token = $monitor->query_safe("SELECT dlock_acquire('waited', 'holder', '10 min', lock_delay => '5 min')");
	wait_for('waited');
	advance(600 - 0.000001, $monitor);
	is(state_of('waited'), 'held', "expired, $with: held until its deadline");
	advance(0.000001, $monitor);
	is(state_of('waited'), 'closed', "expired, $with: closed");
	is($monitor->query_safe("SELECT dlock_check('waited', $token) OR dlock_renew_token('waited', $token)"), 'f', "expired, $with: dead for its owner");
	opens_after(300, 'waited', "expired, $with: one that waits");

	# Given back early, or a path with it.
	$token = $monitor->query_safe("SELECT dlock_acquire('held', 'holder', '1 h', min_hold => '5 min')");
	wait_for('held');
	is($monitor->query_safe("SELECT dlock_release_token('held', $token)"), 't', "released early, $with");
	is(state_of('held'), 'closed', "released early, $with: closed");
	is($monitor->query_safe("SELECT dlock_check('held', $token)"), 'f', "released early, $with: dead for its owner");
	opens_after(300, 'held', "released early, $with");

	$monitor->query_safe("SELECT dlock_acquire_path('held/x', 'holder', '1 h', min_hold => '5 min'), dlock_release('held/x', 'holder')");
	refused_until(300, 'held', "a path released early, $with");
}

# One that waits for its own closed lease waits for it, and is in no deadlock.
$monitor->query_safe("SELECT dlock_acquire('own', 'waiter', '1 h', min_hold => '10 min'), dlock_release('own', 'waiter')");
wait_for('own');
opens_after(600, 'own', 'its own that is closed');

# Given back in time: at once.  Given back early, and expired before the least
# time is over: then.
{
	my $token = $monitor->query_safe("SELECT dlock_acquire('late', 'holder', '1 h', min_hold => '2 min')");
	wait_for('late');
	advance(120, $monitor);
	still_waits($monitor, 'its least time is over: held on', $waiter);
	$monitor->query_safe("SELECT dlock_release_token('late', $token)");
	is_open('late', 'released after its least time');

	$monitor->query_safe("SELECT dlock_acquire('late', 'holder', '1 h', min_hold => '1 h')");
	wait_for('late');
	$monitor->query_safe("SELECT dlock_renew('late', 'holder', '7 min'), dlock_release('late', 'holder')");
	opens_after(420, 'late', 'its deadline before its least time');

	# A least time does not outlive the lease, nor does it delay expiry.
	$monitor->query_safe("SELECT dlock_acquire('late', 'holder', '4 min', min_hold => '4 min', lock_delay => '0')");
	refused_until(240, 'late', 'as long as its ttl');
}

# A forced release opens what is closed, and a waiter gets it.
foreach my $closed (
	[ 'expired', "SELECT dlock_acquire('forced', 'holder', '1 min', lock_delay => '1 h')", 60 ],
	[ 'released early', "SELECT dlock_release_token('forced', dlock_acquire('forced', 'holder', '1 h', min_hold => '1 h'))", 0 ])
{
	my ($what, $sql, $seconds) = @$closed;
	$monitor->query_safe($sql);
	advance($seconds, $monitor);
	is(state_of('forced'), 'closed', "$what: closed");
	wait_for('forced');
	is($monitor->query_safe("SELECT dlock_force_release('forced', 'test')"), 1, "$what: a forced release counts it");
	is_open('forced', "$what: a forced release opens it");
}

# A forced release of a live lease closes its lock, and that is told at once to
# those who watch.  Whoever waits gets it when the delay is over, or when the owner
# says that it is done.
foreach my $opened ('by itself', 'by its owner', 'by its token', 'by force again')
{
	my $label = "forced, opened $opened";
	my $token = $monitor->query_safe("SELECT dlock_acquire('closes', 'holder', '1 h', lock_delay => '30 min')");
	my $watcher = DLockSession->new($node, $db);

	wait_for('closes');
	$watcher->ask_waiting($monitor, "SELECT token FROM dlock_watch('closes', $token)");
	advance(60, $monitor);
	is($monitor->query_safe("SELECT dlock_force_release('closes', 'test')"), 1, "$label: counted");
	is($watcher->answer, '', "$label: nobody holds it, and that is told at once");
	is(state_of('closes'), 'closed', "$label: closed");
	still_waits($monitor, "$label: not handed on", $waiter);
	if ($opened eq 'by itself')
	{
		opens_after(1800, 'closes', $label);
	}
	else
	{
		is( $monitor->query_safe(
				$opened eq 'by its owner' ? "SELECT dlock_release('closes', 'holder')"
				: $opened eq 'by its token' ? "SELECT dlock_release_token('closes', $token)"
				: "SELECT dlock_force_release('closes', 'test')"),
			$opened eq 'by force again' ? 1 : 'f',
			"$label: nothing was held");
		is_open('closes', $label);
	}
	$watcher->quit;
}

# What has expired is not there any more to be released by force, although nobody has
# tidied up.
$monitor->query_safe("SELECT dlock_acquire('expired', 'holder', '1 min'), dlock_acquire_path('expired-path/x', 'holder', '1 min')");
advance(60, $monitor);
is($monitor->query_safe("SELECT dlock_force_release('expired', 'test')"), 0, 'nothing to release by force after expiry');
is($monitor->query_safe("SELECT dlock_force_release('expired-path', 'test')"), 0, 'nor through an ancestor');

# How a session ends that a lease with a lock delay is bound to: unclean ends
# close the lock for that long from then, orderly ones do not.
my %unclean = (
	'pg_terminate_backend' => sub { $monitor->query_safe('SELECT pg_terminate_backend(' . $_[0]->pid . ')') },
	'client killed' => sub { $_[0]->kill_client });
my %orderly = (
	'disconnect' => sub { $_[0]->quit; $_[0]->{lost} = 1 },
	'release' => sub { $_[0]->query_safe("SELECT dlock_release('bound', 'holder')") },
	'DISCARD ALL' => sub { $_[0]->query_safe($_) foreach 'COMMIT', 'DISCARD ALL' },
	'release_all' => sub { $monitor->query_safe("SELECT dlock_release_all('holder')") },
	'forced release, twice' => sub { $monitor->query_safe("SELECT dlock_force_release('bound', 'test')") for 1 .. 2 });
my %ends = (
	%unclean, %orderly,
	'COMMIT' => sub { $_[0]->query_safe('COMMIT') },
	'ROLLBACK' => sub { $_[0]->query_safe('ROLLBACK') },
	'ROLLBACK TO' => sub { $_[0]->query_safe('ROLLBACK TO s') },
	'an error' => sub { $_[0]->query('SELECT 1 / 0') });
foreach my $bind ('session', 'transaction', 'transaction, without a savepoint')
{
	my ($word) = $bind =~ /^(\w+)/;
	my $begin = $bind =~ /without/ ? 'BEGIN' : 'BEGIN; SAVEPOINT s';

	foreach my $what (sort keys %ends)
	{
		next if $bind eq 'session' && !exists $unclean{$what} && !exists $orderly{$what};
		next if $bind =~ /without/ && $what eq 'ROLLBACK TO';
		my $test_name = "bound to a $bind: $what";
		my $holder = DLockSession->new($node, $db);
		my $token = $holder->query_safe("$begin; SELECT dlock_acquire('bound', 'holder', bind => '$word', lock_delay => '1 h')");

		wait_for('bound');
		$ends{$what}->($holder);
		if (exists $unclean{$what})
		{
			$holder->wait_backend_gone;
			is(state_of('bound'), 'closed', "$test_name: closed");
			is($monitor->query_safe("SELECT dlock_check('bound', $token)"), 'f', "$test_name: dead for its owner");
			is($monitor->query_safe("SELECT count(pid) FROM dlock_leases WHERE name = 'bound'"), 0, "$test_name: has no session");
			opens_after(3600, 'bound', $test_name);
		}
		else
		{
			is_open('bound', "$test_name, without a delay");
		}
		$holder->quit unless $holder->{lost};
	}
}

# The loss of a session is no end of a lease that is not bound to it.
{
	my $holder = DLockSession->new($node, $db);
	my $token = $holder->query_safe("SELECT dlock_acquire('unbound', 'holder', '1 h', lock_delay => '1 h')");
	$monitor->query_safe('SELECT pg_terminate_backend(' . $holder->pid . ')');
	$holder->wait_backend_gone;
	is($monitor->query_safe("SELECT dlock_check('unbound', $token)"), 't', 'not bound: still live');
	is(state_of('unbound'), 'held', 'not bound: held');
	is($monitor->query_safe("SELECT dlock_release('unbound', 'holder')"), 't', 'not bound: released');
	is(state_of('unbound'), '', 'not bound: open');
}

# Spans are kept in 32 bits of milliseconds.
my $longest = 2**32 - 1;
foreach my $too_long ("'" . ($longest + 1) . " ms'", "'$longest.001 ms'", "'50 days'", "'100 days'")
{
	foreach my $call (
		"dlock_acquire('long', 'holder', '200 days', lock_delay => $too_long)",
		"dlock_acquire('long', 'holder', '200 days', min_hold => $too_long)",
		"dlock_acquire('long', 'holder', bind => 'session', lock_delay => $too_long)",
		"dlock_acquire_path('long/x', 'holder', '200 days', lock_delay => $too_long)",
		"dlock_acquire_path('long/x', 'holder', '200 days', min_hold => $too_long)")
	{
		is($monitor->query("SET dlock.max_ttl = '200 d'; SELECT $call"), 'ERROR 22023', $call);
		like($monitor->{message}, qr/lock_delay|min_hold/, "$call: says which");
	}
}
is($monitor->query_safe('SELECT count(*) FROM dlock_leases'), 0, 'too long: nothing is held');
$monitor->query_safe("SELECT dlock_acquire('long-delay', 'holder', '1 ms', lock_delay => '$longest ms')");
$monitor->query_safe("SELECT dlock_release_token('long-hold', dlock_acquire('long-hold', 'holder', '200 days', min_hold => '$longest ms'))");
advance(0.001, $monitor);
is(state_of("long-$_"), 'closed', "the longest: $_") foreach 'delay', 'hold';
remaining_is($monitor, 'long-delay', $longest / 1000, 'the longest delay');
remaining_is($monitor, 'long-hold', $longest / 1000 - 0.001, 'the longest least time');

# What has to stay as it is over a crash, or a restart in good order, while 5 seconds pass.
foreach my $crash ('kill -9 of everything', 'kill -9 of a backend', 'restart')
{
	my $holder = DLockSession->new($node, $db);
	my %token;

	# All of these open ten minutes from now.
	$token{closed} = $holder->query_safe("SELECT dlock_acquire('closed', 'holder', '10 s', lock_delay => '590 s')");
	$token{closes} = $holder->query_safe("SELECT dlock_acquire('closes', 'holder', '1 min', lock_delay => '9 min')");
	$token{early} = $holder->query_safe("SELECT dlock_acquire('early', 'holder', '1 h', min_hold => '10 min')");
	my $back = $holder->query_safe("SELECT dlock_acquire('back', 'holder', '1 h', min_hold => '10 min')");
	$holder->query_safe("SELECT dlock_release('early', 'holder')");
	advance(10, $monitor);
	$token{forced} = $holder->query_safe("SELECT dlock_acquire('forced', 'holder', '1 h', lock_delay => '590 s')");
	$monitor->query_safe("SELECT dlock_force_release('forced', 'test')");
	$holder->query_safe("SELECT dlock_acquire('bound', 'holder', '1 h', bind => 'session', lock_delay => '100 s')");
	$holder->query_safe("SELECT dlock_acquire('bound-free', 'holder', '1 h', bind => 'session')");
	my %left = map { split / / } split /,/, $monitor->query_safe("SELECT string_agg(name || ' ' || extract(epoch FROM remaining), ',') FROM dlock_leases WHERE name LIKE 'long-%'");

	flush_wal($node, $db);
	if ($crash eq 'kill -9 of a backend')
	{
		kill_server_process($node, $holder->pid);
		advance(5);
	}
	else
	{
		$crash eq 'restart' ? $node->stop : crash_node($node);
		advance(5);
		$node->start;
	}
	$_->kill_client foreach $holder, $monitor, $waiter;
	connect_all();
	is($monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'bound-free'"), 0, "$crash: bound without a delay: open");
	is(state_of('bound'), 'closed', "$crash: bound with a delay: closed");
	is(try_acquire('bound'), '', "$crash: bound with a delay: refused");
	remaining_is($monitor, $_, $left{$_} - 5, "$crash: $_") foreach sort keys %left;
	advance(45, $monitor);
	is( $monitor->query_safe("SELECT string_agg(name || ' ' || state, ',' ORDER BY name) FROM dlock_leases WHERE name IN ('closed', 'closes', 'early', 'back', 'forced')"),
		'back held,closed closed,closes closed,early closed,forced closed', "$crash: as they were");
	is($monitor->query_safe("SELECT dlock_check('$_', $token{$_})"), 'f', "$crash: $_: dead for its owner") foreach sort keys %token;
	is($monitor->query_safe("SELECT dlock_release_token('back', $back)"), 't', "$crash: released early after it");
	is(state_of('back'), 'closed', "$crash: closed by that");

	# Bound: from the end of its session on, or from the first use of the database.
	wait_for('bound');
	advance(50 - 0.000001, $monitor);
	still_waits($monitor, "$crash: bound with a delay: not before its time", $waiter);
	advance(5.000001, $monitor);
	is_open('bound', "$crash: bound with a delay: then");

	advance(600 - 10 - 5 - 45 - 55 - 0.000001, $monitor);
	is(try_acquire($_), '', "$crash: $_: refused before its time") foreach sort keys %token, 'back';
	advance(0.000001, $monitor);
	isnt(try_acquire($_), '', "$crash: $_: granted at its time") foreach sort keys %token, 'back';
	$monitor->query_safe("SELECT dlock_release_all('taker')");
}

# A step of the wall clock while the server is down does not matter.
foreach my $wall (7200, -7200)
{
	$monitor->query_safe(<<'EOC');
SELECT dlock_acquire('hold', 'holder', '2 h', min_hold => '1 h'), dlock_acquire('early', 'holder', '2 h', min_hold => '1 h'),
	dlock_release('early', 'holder'), dlock_acquire('delay', 'holder', '1 min', lock_delay => '1 h')
EOC
	advance(60, $monitor);
	flush_wal($node, $db);
	crash_node($node);
	$_->kill_client foreach $monitor, $waiter;
	step_wall_clock($wall);
	$node->start;
	connect_all();
	is($monitor->query_safe("SELECT dlock_release('hold', 'holder')"), 't', "wall clock $wall s: still held");
	foreach my $left ([ hold => 3540 ], [ early => 3540 ], [ delay => 3600 ])
	{
		is(state_of($left->[0]), 'closed', "wall clock $wall s: $left->[0] is closed");
		remaining_is($monitor, @$left, "wall clock $wall s: as long as without it");
	}
	$monitor->query_safe("SELECT dlock_force_release(name, 'next') FROM unnest('{hold,early,delay}'::text[]) name");
}

$_->quit foreach $monitor, $waiter;
$node->stop;
log_is_clean($node);
done_testing();
