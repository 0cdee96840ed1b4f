# Proves: after an unclean end a lock stays closed for its lock delay, to the
# moment, and after an orderly one not at all; a lease that was given back early
# is handed on when its least time is over, and not before; both over crashes.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockStall;
use DLockTest;
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing here may depend on looking again after a while.
my $node = start_node('main', conf => <<'EOC');
restart_after_crash = on
deadlock_timeout = 1h
EOC
my $db = 'postgres';
my ($monitor, $waiter, $taker);

# How late an answer may be that nobody but the machine holds up.  Who is not woken
# looks again after a minute.
my $slack = 30;

sub connect_all
{
	($monitor, $waiter) = map { DLockSession->new($node, $db) } 1 .. 2;
	$taker = DLockSession->new($node, $db);
	return;
}

sub state_of
{
	my ($name) = @_;
	return $monitor->query_safe("SELECT state FROM dlock_leases WHERE name = '$name'");
}

# A session asks, and returns its answer and when it was sent and answered.
sub timed
{
	my ($session, $sql) = @_;
	my $sent = mono_now();
	my $answer = $session->query_safe($sql);
	return ($answer, $sent, mono_now());
}

# The waiter was made to wait before; it must be granted within these bounds.
sub granted_between
{
	my ($from, $to, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $token = $waiter->answer;

	like($token, qr/^\d+$/, "$test_name: granted");
	cmp_ok($waiter->{answered_at}, '>=', $from, "$test_name: not before its time");
	in_time($to, $waiter->{answered_at}, $slack, "$test_name: then");
	return $token;
}

# Has a lock that the waiter waits for been looked at before it opens?  If not, clear up, so
# that all is done once more with a longer delay.
sub seen_in_time
{
	my ($opens, $name, $delay) = @_;

	return 1 if mono_now() < $opens || $delay > 300;
	$waiter->answer;
	$waiter->query_safe("SELECT dlock_release('$name', 'waiter')");
	return 0;
}

connect_all();

# After expiry: for those who ask again and again, and for one that waits, with
# the worker and without.
foreach my $stopped (0, 1)
{
	my $with = $stopped ? 'no worker' : 'with the worker';
	pause_worker($node) if $stopped;
	my ($token, $sent, $answered) = timed($monitor,
		"SELECT dlock_acquire('asked', 'holder', '300 ms', lock_delay => '500 ms')");
	my $next = takeover_is_exact($taker, 'asked', 0.8, $sent, $answered, "expired, $with");
	cmp_ok($next, '>', $token, "expired, $with: a larger token");

	my ($delay, $state, $live, $early);
	for ($delay = 5;; $delay *= 4)
	{
		($token, $sent, $answered) = timed($monitor,
			"SELECT dlock_acquire('waited', 'holder', '2 s', lock_delay => '$delay s')");
		$waiter->ask_waiting($monitor, "SELECT dlock_acquire('waited', 'waiter', '1 h', wait => NULL)");
		wait_until(sub { ($state = state_of('waited')) eq 'closed' || $waiter->answered });
		$live = $monitor->query_safe("SELECT dlock_check('waited', $token) OR dlock_renew_token('waited', $token)");
		last if seen_in_time($sent + 2 + $delay, 'waited', $delay);
	}
	is($state, 'closed', "expired, $with: closed");
	is($live, 'f', "expired, $with: dead for its owner");
	granted_between($sent + 2 + $delay, $answered + 2 + $delay, "expired, $with: one that waits");
	$monitor->query_safe("SELECT dlock_force_release(name, 'next') FROM unnest('{asked,waited}'::text[]) name");

	# Given back early, or a path with it.
	my $released;
	for ($delay = 5;; $delay *= 4)
	{
		($token, $sent, $answered) = timed($monitor,
			"SELECT dlock_acquire('held', 'holder', '1 h', min_hold => '$delay s')");
		$waiter->ask_waiting($monitor, "SELECT dlock_acquire('held', 'waiter', '1 h', wait => NULL)");
		$released = $monitor->query_safe("SELECT dlock_release_token('held', $token)");
		$state = state_of('held');
		$live = $monitor->query_safe("SELECT dlock_check('held', $token)");
		$early = $waiter->answered;
		last if seen_in_time($sent + $delay, 'held', $delay);
	}
	is($released, 't', "released early, $with");
	is($state, 'closed', "released early, $with: closed");
	is($live, 'f', "released early, $with: dead for its owner");
	ok(!$early, "released early, $with: nobody gets it yet");
	granted_between($sent + $delay, $answered + $delay, "released early, $with");
	$waiter->query_safe("SELECT dlock_release('held', 'waiter')");

	(undef, $sent, $answered) = timed($monitor,
		"SELECT dlock_acquire_path('held/x', 'holder', '1 h', min_hold => '500 ms')");
	$monitor->query_safe("SELECT dlock_release('held/x', 'holder')");
	takeover_is_exact($taker, 'held', 0.5, $sent, $answered, "a path released early, $with");
	resume_worker($node) if $stopped;
	$monitor->query_safe("SELECT dlock_force_release('held', 'next')");
}

# One that waits for its own closed lease waits for it, and is in no deadlock.
{
	my (undef, $sent, $answered) = timed($monitor,
		"SELECT dlock_acquire('own', 'waiter', '1 h', min_hold => '10 s')");
	$monitor->query_safe("SELECT dlock_release('own', 'waiter')");
	$waiter->ask_waiting($monitor, "SELECT dlock_acquire('own', 'waiter', '1 h', wait => NULL)");
	granted_between($sent + 10, $answered + 10, 'its own that is closed');
	$waiter->query_safe("SELECT dlock_release('own', 'waiter')");
}

# Given back in time: at once.  Given back early, and expired before the least
# time is over: then.
{
	my ($token, $sent, $answered) = timed($monitor,
		"SELECT dlock_acquire('late', 'holder', '1 h', min_hold => '200 ms')");
	$waiter->ask_waiting($monitor, "SELECT dlock_acquire('late', 'waiter', '1 h', wait => NULL)");
	wait_until(sub { mono_now() > $answered + 0.2 });
	my $released = mono_now();
	$monitor->query_safe("SELECT dlock_release_token('late', $token)");
	granted_between($released, mono_now(), 'released after its least time');
	$waiter->query_safe("SELECT dlock_release('late', 'waiter')");

	$monitor->query_safe("SELECT dlock_acquire('late', 'holder', '1 h', min_hold => '1 h')");
	$waiter->ask_waiting($monitor, "SELECT dlock_acquire('late', 'waiter', '1 h', wait => NULL)");
	(undef, $sent, $answered) = timed($monitor, "SELECT dlock_renew('late', 'holder', '700 ms')");
	$monitor->query_safe("SELECT dlock_release('late', 'holder')");
	granted_between($sent + 0.7, $answered + 0.7, 'its deadline before its least time');
	$waiter->query_safe("SELECT dlock_release('late', 'waiter')");

	# A least time does not outlive the lease, nor does it delay expiry.
	(undef, $sent, $answered) = timed($monitor,
		"SELECT dlock_acquire('late', 'holder', '400 ms', min_hold => '400 ms', lock_delay => '0')");
	takeover_is_exact($taker, 'late', 0.4, $sent, $answered, 'as long as its ttl');
	$monitor->query_safe("SELECT dlock_force_release('late', 'next')");
}

# A forced release opens what is closed, and a waiter gets it.
foreach my $closed (
	[ 'expired', "SELECT dlock_acquire('forced', 'holder', '1 ms', lock_delay => '1 h')" ],
	[ 'released early', "SELECT dlock_release_token('forced', dlock_acquire('forced', 'holder', '1 h', min_hold => '1 h'))" ])
{
	my ($what, $sql) = @$closed;
	$monitor->query_safe($sql);
	ok(wait_until(sub { state_of('forced') eq 'closed' }), "$what: closed");
	$waiter->ask_waiting($monitor, "SELECT dlock_acquire('forced', 'waiter', '1 h', wait => NULL)");
	my $sent = mono_now();
	is($monitor->query_safe("SELECT dlock_force_release('forced', 'test')"), 1, "$what: a forced release counts it");
	granted_between($sent, mono_now(), "$what: a forced release opens it");
	$waiter->query_safe("SELECT dlock_release('forced', 'waiter')");
}

# A forced release of a live lease closes its lock, and that is told at once to
# those who watch.  Whoever waits gets it when the delay is over, or when the owner
# says that it is done.
foreach my $opened ('by itself', 'by its owner', 'by its token', 'by force again')
{
	my $delay = $opened eq 'by itself' ? 10 : 3600;
	my ($token, $sent, $answered) = timed($monitor, "SELECT dlock_acquire('closes', 'holder', '1 h', lock_delay => '$delay s')");
	my $watcher = DLockSession->new($node, $db);

	$waiter->ask_waiting($monitor, "SELECT dlock_acquire('closes', 'waiter', '1 h', wait => NULL)");
	$watcher->ask_waiting($monitor, "SELECT token FROM dlock_watch('closes', $token)");
	(my $count, $sent, $answered) = timed($monitor, "SELECT dlock_force_release('closes', 'test')");
	is($count, 1, "forced, opened $opened: counted");
	is($watcher->answer, '', "forced, opened $opened: nobody holds it");
	in_time($answered, $watcher->{answered_at}, $slack, "forced, opened $opened: told at once");
	my $from = mono_now();
	if ($opened eq 'by itself')
	{
		granted_between($sent + $delay, $answered + $delay, "forced, opened $opened");
	}
	else
	{
		is(state_of('closes'), 'closed', "forced, opened $opened: closed");
		ok(!$waiter->answered, "forced, opened $opened: not handed on");
		is( $monitor->query_safe(
				$opened eq 'by its owner' ? "SELECT dlock_release('closes', 'holder')"
				: $opened eq 'by its token' ? "SELECT dlock_release_token('closes', $token)"
				: "SELECT dlock_force_release('closes', 'test')"),
			$opened eq 'by force again' ? 1 : 'f',
			"forced, opened $opened: nothing was held");
		granted_between($from, mono_now(), "forced, opened $opened");
	}
	$waiter->query_safe("SELECT dlock_release('closes', 'waiter')");
	$watcher->quit;
}

# What has expired is not there any more to be released by force, whether or not
# anybody has tidied up.
{
	pause_worker($node);
	$monitor->query_safe("SELECT dlock_acquire('expired', 'holder', '1 ms'), dlock_acquire_path('expired-path/x', 'holder', '1 ms'), pg_sleep(0.01)");
	is($monitor->query_safe("SELECT dlock_force_release('expired', 'test')"), 0, 'nothing to release by force after expiry');
	is($monitor->query_safe("SELECT dlock_force_release('expired-path', 'test')"), 0, 'nor through an ancestor');
	resume_worker($node);
}

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
		my $delay = exists $unclean{$what} ? 2 : 3600;
		my ($holder, $token, $sent);
		my $end = sub {
			$holder = DLockSession->new($node, $db);
			$token = $holder->query_safe("$begin; SELECT dlock_acquire('bound', 'holder', bind => '$word', lock_delay => '$delay s')");
			$waiter->ask_waiting($monitor, "SELECT dlock_acquire('bound', 'waiter', '1 h', wait => NULL)");
			$sent = mono_now();
			$ends{$what}->($holder);
		};

		if (exists $unclean{$what})
		{
			my ($gone, @found);

			# Once more, with more time, if it cannot be looked at before the delay is over.
			for (;; $delay *= 3)
			{
				$end->();
				$holder->wait_backend_gone;
				$gone = mono_now();
				@found = map { $monitor->query_safe($_) } "SELECT state FROM dlock_leases WHERE name = 'bound'",
				  "SELECT dlock_check('bound', $token)", "SELECT pid FROM dlock_leases WHERE name = 'bound' AND state = 'closed'";
				last if mono_now() < $sent + $delay || $delay > 50;
				$waiter->answer;
				$waiter->query_safe("SELECT dlock_release('bound', 'waiter')");
			}
			is($found[0], 'closed', "$test_name: closed");
			is($found[1], 'f', "$test_name: dead for its owner");
			is($found[2], '', "$test_name: has no session");
			granted_between($sent + $delay, $gone + $delay, $test_name);
		}
		else
		{
			$end->();
			granted_between($sent, mono_now(), "$test_name, without a delay");
		}
		$waiter->query_safe("SELECT dlock_release('bound', 'waiter')");
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

sub the_longest
{
	return $monitor->query_safe(<<'EOC');
SELECT string_agg(name || ' ' || state, ', ' ORDER BY name) FROM dlock_leases
	WHERE name LIKE 'long-%' AND remaining BETWEEN interval '49 days' AND interval '50 days'
EOC
}
ok(wait_until(sub { the_longest() eq 'long-delay closed, long-hold closed' }), 'the longest: closed for as long');

my %done;

# Crashes.  Every lease here ends, or opens, at a moment that is known before.  It is done once
# more, with more time, if the server was not up again and looked at before.
foreach my $case (map { my $crash = $_; map { [ $crash, $_ ] } 1, 4, 16 } 'kill -9 of everything', 'kill -9 of a backend')
{
	my ($crash, $factor) = @$case;
	next if $done{$crash};
	my $holder = DLockSession->new($node, $db);
	my %at;
	my $long = 20 * $factor;
	my $short = 6 * $factor;

	my $set = sub {
		my ($name, $seconds, $sql) = @_;
		my ($token, $sent, $answered) = timed($holder, "SELECT $sql");
		$at{$name} = [ $token, $seconds, $sent, $answered ];
	};
	$set->('closed', $long, "dlock_acquire('closed', 'holder', '10 ms', lock_delay => '" . ($long * 1000 - 10) . " ms')");
	$set->('closes', $long, "dlock_acquire('closes', 'holder', '1500 ms', lock_delay => '" . ($long * 1000 - 1500) . " ms')");
	$set->('early', $long, "dlock_acquire('early', 'holder', '1 h', min_hold => '$long s')");
	$set->('forced', $long, "dlock_acquire('forced', 'holder', '1 h', lock_delay => '$long s')");
	@{ $at{forced} }[ 2, 3 ] = (timed($monitor, "SELECT dlock_force_release('forced', 'test')"))[ 1, 2 ];
	$set->('back', $long, "dlock_acquire('back', 'holder', '1 h', min_hold => '$long s')");
	$holder->query_safe("SELECT dlock_release('early', 'holder')");
	$holder->query_safe("SELECT dlock_acquire('bound', 'holder', '1 h', bind => 'session', lock_delay => '$short s')");
	$holder->query_safe("SELECT dlock_acquire('bound-free', 'holder', '1 h', bind => 'session')");

	flush_wal($node, $db);
	my $crashed = mono_now();
	if ($crash eq 'kill -9 of a backend')
	{
		kill_server_process($node, $holder->pid);
	}
	else
	{
		crash_node($node);
		$node->start;
	}
	$taker->kill_client;
	$_->kill_client foreach $holder, $monitor, $waiter;
	connect_all();
	my $free = $monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'bound-free'");

	# From the first use of the database on at the latest.
	my $used = mono_now();
	my @bound = (state_of('bound'), $monitor->query_safe("SELECT dlock_acquire('bound', 'next', '1 h')"));
	my $is_late = mono_now() > $crashed + $short;

	wait_until(sub { mono_now() > $at{closes}[3] + 1.5 });
	my $states = $monitor->query_safe("SELECT string_agg(name || ' ' || state, ',' ORDER BY name) FROM dlock_leases WHERE name IN ('closed', 'closes', 'early', 'back', 'forced')");
	my @live = map { $monitor->query_safe("SELECT dlock_check('$_', $at{$_}[0])") } 'closed', 'closes', 'early', 'forced';
	my @back = ($monitor->query_safe("SELECT dlock_release_token('back', $at{back}[0])"), state_of('back'));
	if (($is_late || mono_now() > $at{closed}[2] + $long - 2) && $factor < 16)
	{
		note sprintf 'it took %.1f s', mono_now() - $at{closed}[2];
		$monitor->query_safe("SELECT dlock_force_release(name, 'next') FROM unnest('{closed,closes,early,back,forced,bound}'::text[]) name") for 1, 2;
		flush_wal($node, $db);
		next;
	}
	$done{$crash} = 1;
	is($free, 0, "$crash: bound without a delay: open");
	is($bound[0], 'closed', "$crash: bound with a delay: closed");
	is($bound[1], '', "$crash: bound with a delay: refused");
	is($states, 'back held,closed closed,closes closed,early closed,forced closed', "$crash: as they were");
	is(join(' ', @live), 'f f f f', "$crash: dead for their owners");
	is($back[0], 't', "$crash: released early after it");
	is($back[1], 'closed', "$crash: closed by that");
	$waiter->ask("SELECT dlock_acquire('bound', 'waiter', '1 h', wait => NULL)");

	# The times are close together, so each is looked at in between the others.
	my %last_refused;
	my %first_granted;
	my $ask = sub {
		my ($name) = @_;
		my ($token, $sent, $answered) = timed($monitor, "SELECT dlock_acquire('$name', 'next', '1 h')");
		$last_refused{$name} = $sent if $token eq '';
		$first_granted{$name} = $answered if $token ne '';
	};
	$ask->($_) foreach sort keys %at;
	granted_between($crashed + $short, max($used + $short, $waiter->{sent}), "$crash: bound with a delay");
	while (keys %first_granted < keys %at && mono_now() < $crashed + 300 + $long)
	{
		$ask->($_) foreach grep { !$first_granted{$_} } keys %at;
	}
	foreach my $name (sort keys %at)
	{
		my (undef, $seconds, $sent, $answered) = @{ $at{$name} };
		cmp_ok($first_granted{$name} // 0, '>=', $sent + $seconds, "$crash: $name: not before its time");

		# What a lock stays closed for is kept in milliseconds, rounded up.
		cmp_ok($last_refused{$name} // 0, '<=', $answered + $seconds + 0.001, "$crash: $name: not refused after it");
		cmp_ok($last_refused{$name} // 0, '>', 0, "$crash: $name: refused before it");
	}
	is(the_longest(), 'long-delay closed, long-hold closed', "$crash: the longest");
	$monitor->query_safe("SELECT dlock_release_all('next'), dlock_release_all('waiter'), dlock_release_all('holder')");
	flush_wal($node, $db);
}

# A restart in good order: as after a crash.
{
	my ($delay, $stop, $used, $free, $state);
	for ($delay = 6;; $delay *= 4)
	{
		my $holder = DLockSession->new($node, $db);
		$holder->query_safe("SELECT dlock_acquire('restart', 'holder', bind => 'session', lock_delay => '$delay s'), dlock_acquire('restart-free', 'holder', bind => 'session')");
		$stop = mono_now();
		$node->restart;
		$taker->kill_client;
		$_->kill_client foreach $holder, $monitor, $waiter;
		connect_all();
		$free = $monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'restart-free'");
		$used = mono_now();
		$state = state_of('restart');
		last if mono_now() < $stop + $delay || $delay > 300;
		$monitor->query_safe("SELECT dlock_force_release('restart', 'next')");
	}
	$waiter->ask("SELECT dlock_acquire('restart', 'waiter', '1 h', wait => NULL)");
	is($free, 0, 'restart: open');
	is($state, 'closed', 'restart: closed');
	granted_between($stop + $delay, max($used + $delay, $waiter->{sent}), 'restart');
}

$taker->quit;
$_->quit foreach $monitor, $waiter;
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:/, 'nothing odd in the log');

# A step of the wall clock while the server is down does not matter.
SKIP:
{
	my $control = PostgreSQL::Test::Utils::tempdir . '/clock';
	my %fake = fake_clock_env($control);
	skip 'no C compiler to build test/lib/fake_clock.c with', 1 unless %fake;
	local %ENV = (%ENV, %fake);

	$node = start_node('clock');
	foreach my $wall (7200, -7200)
	{
		fake_clock_set($control);
		$node->safe_psql($db, "SELECT dlock_acquire('hold', 'holder', '2 h', min_hold => '1 h'), dlock_acquire('early', 'holder', '2 h', min_hold => '1 h'), dlock_release('early', 'holder'), dlock_acquire('delay', 'holder', '1 ms', lock_delay => '1 h')");
		flush_wal($node, $db);
		crash_node($node);
		fake_clock_set($control, wall => $wall);
		$node->start;
		is($node->safe_psql($db, "SELECT dlock_release('hold', 'holder')"), 't', "wall clock $wall s: still held");
		is( $node->safe_psql($db, "SELECT name, state, remaining BETWEEN '58 min' AND '1 h' FROM dlock_leases ORDER BY name"),
			"delay|closed|t\nearly|closed|t\nhold|closed|t",
			"wall clock $wall s: closed as long as without it");
		$node->safe_psql($db, "SELECT dlock_force_release(name, 'next') FROM unnest('{hold,early,delay}'::text[]) name");
		flush_wal($node, $db);
		crash_node($node);
		fake_clock_set($control);
		$node->start;
	}
	$node->stop;
}
done_testing();
