# Proves: a hand-off that lacks something goes well.  What has been done is told, also
# if no waiter can be served for lack of tokens or pages; the others are served when
# what was lacking is there; nobody waits behind a request that lacks another lock; and
# while the store is locked time-outs count, and a waiter with time is granted the lock
# afterwards.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockQueue;
use DLockSession;
use DLockTest;
use List::Util qw(uniq);
use Test::More;

# Nothing here may depend on looking again after a while.
my $node = start_fault_node('main', conf => "deadlock_timeout = 10h\n");
still_worker($node);
my $db = 'postgres';
my $ctl = DLockSession->new($node, $db, name => 'control');
my @s = open_sessions($node, $db, 18, name => 's');

# Stopped processes would keep the server from being stopped.
my @stopped;

# Stop these processes, which sleep.
sub stop_processes
{
	settle($ctl);
	@stopped = @_;
	kill 'STOP', @stopped;
	return;
}

sub continue_processes
{
	kill 'CONT', @stopped;
	@stopped = ();
	return;
}

END
{
	my $status = $?;
	kill 'CONT', @stopped if @stopped;
	$? = $status;
}

# What is left when a test is done would disturb the next.
sub clean
{
	my ($test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	queues_are_empty($ctl, "$test_name: nobody waits");
	$ctl->query_safe("SELECT dlock_force_release(name, 'test') FROM dlock_leases");
	is($ctl->query_safe('SELECT count(*) FROM dlock_leases'), 0, "$test_name: nobody holds");
	return;
}

# ---------------------------------------------------------------------------
# More than a release can note or have at hand
# ---------------------------------------------------------------------------

# Behind many calls for several locks, each of which lacks another one.
{
	my $units = 9;
	my $label = 'behind many calls for several';

	$ctl->query_safe("SELECT dlock_acquire('all', 'holder', '1 h')");
	foreach my $i (1 .. $units)
	{
		$ctl->query_safe("SELECT dlock_acquire('lacks$i', 'holder', '1 h')");
		enqueue($ctl, $s[$i], "SELECT dlock_acquire_all('{all, lacks$i}', 'unit$i', '1 h', NULL, 'shared')");
	}
	enqueue($ctl, $s[0], "SELECT dlock_acquire_all('{all, mine}', 'last', '1 h', '1 min', 'shared')");
	$ctl->query_safe("SELECT dlock_release('all', 'holder')");
	like($s[0]->answer, qr/^\{\d+,\d+\}$/, "$label: granted");
	still_waits($ctl, "$label: they wait on", @s[ 1 .. $units ]);
	is($ctl->query_safe('SELECT count(DISTINCT owner) FROM dlock_waiters'), $units, "$label: all of them");
	$ctl->query_safe("SELECT dlock_release_all('holder')");
	answers_in_order(@s[ 1 .. $units ]);
	$ctl->query_safe("SELECT dlock_release_all('unit$_')") foreach 1 .. $units;
	clean($label);
}

# Behind a call for several locks that lacks another one when a lease expires.
foreach my $case (
	[ 'several', "dlock_acquire('l', 'x', '10 min')", "dlock_acquire('m', 'y', '1 h')",
		"dlock_acquire_all('{l, m}', 'first', '1 h', NULL, 'shared')", "dlock_acquire('l', 'behind', '1 h', NULL, mode => 'shared')" ],
	[ 'a path', "dlock_acquire('a', 'x', '10 min', mode => 'shared')", "dlock_acquire_path('a/x', 'y', '1 h', mode => 'shared')",
		"dlock_acquire_path('a/x', 'first', '1 h', NULL)", "dlock_acquire_path('a/y', 'behind', '1 h', NULL)" ],
	[ 'a path that the lease lets in', "dlock_acquire('a', 'x', '10 min', mode => 'shared')", "dlock_acquire('a/x', 'y', '1 h')",
		"dlock_acquire_path('a/x', 'first', '1 h', NULL, mode => 'shared')", "dlock_acquire_path('a/y', 'behind', '1 h', NULL)" ])
{
	my ($what, $expires, $lacks, $first, $behind) = @$case;
	my $label = "behind a call for several, at a deadline, $what";

	isnt($ctl->query_safe("SELECT $_"), '', "$label: held") foreach $lacks, $expires;
	enqueue($ctl, $s[1], "SELECT $first");
	enqueue($ctl, $s[0], "SELECT $behind");
	like(granted_at($ctl, $s[0], 600, $label), qr/^\d+$/, "$label: granted");
	still_waits($ctl, "$label: the other waits on", $s[1]);
	is($ctl->query_safe('SELECT DISTINCT owner FROM dlock_waiters'), 'first', "$label: for what it lacks");
	$ctl->query_safe("SELECT dlock_release_all('y')");
	answers_in_order($s[1]);
	$ctl->query_safe("SELECT dlock_release_all('$_')") foreach 'first', 'behind';
	clean($label);
}

# The release of a permit that may not be had yet, while as many others are to
# be handed on as lie on more pages than a release has pinned.
{
	my $label = 'a release beside many hand-offs';
	my $count = @s;
	my $permits = 'permits => ' . ($count + 1);

	know_pages(@s);
	my $token = $ctl->query_safe("SELECT dlock_acquire('crowd', 'early', '1 h', min_hold => '1 h', $permits)");
	$ctl->query_safe("SELECT count(dlock_acquire('crowd', 'dead' || i, '1 h', $permits)) FROM generate_series(1, $count) i");
	foreach my $i (0 .. $count - 1)
	{
		my $payload = (payloads())[ $i % 3 ];
		enqueue($ctl, $s[$i], qq{SELECT dlock_acquire('crowd', 'w$i', '1 h', NULL, $permits, payload => '"$payload"')});
	}

	# Whoever waits would serve itself when the others expire.
	stop_processes(map { $_->{pid} } @s);
	$ctl->query_safe("SELECT count(dlock_renew('crowd', 'dead' || i, '10 min')) FROM generate_series(1, $count) i");
	advance(600, $ctl);
	is($ctl->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'crowd'"), 1, "$label: the others have expired");
	is($ctl->query_safe("SELECT dlock_release_token('crowd', $token)"), 't', "$label: released");
	continue_processes();
	my @tokens = answers_in_order(@s);
	is(scalar(uniq(grep { /^\d+$/ } @tokens)), $count, "$label: all get their permits");
	is($ctl->query_safe("SELECT state FROM dlock_leases WHERE name = 'crowd' AND owner = 'early'"), 'closed', "$label: closed");
	is($ctl->query_safe("SELECT dlock_acquire('crowd', 'late', '1 h', $permits)"), '', "$label: and kept from others");
	clean($label);
}

# ---------------------------------------------------------------------------
# No tokens
# ---------------------------------------------------------------------------

# Keep tokens from being reserved, and take them until so many are left.
sub use_up_tokens
{
	my ($left, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $take = "SELECT dlock_acquire('token', 'taker', bind => 'transaction')";

	# The first one may have to reserve some, and a block may be pending by then.
	my $last = $ctl->query_safe($take);
	$s[0]->query_safe('BEGIN; ALTER SEQUENCE _dlock.token_seq CACHE 1');
	my $reserved = $ctl->query_safe('SELECT last_value FROM _dlock.token_seq');
	$ctl->query_safe(<<"EOC") if $reserved - $left > $last;
SET synchronous_commit = off;
DO \$\$
BEGIN
	LOOP
		EXIT WHEN dlock_acquire('token', 'taker', '1 h') >= $reserved - $left;
		PERFORM dlock_release('token', 'taker');
	END LOOP;
END \$\$;
RESET synchronous_commit;
EOC
	is($ctl->query_safe("SELECT token FROM dlock_leases WHERE name = 'token'"), $reserved - $left, "$test_name: tokens are used up");
	is($ctl->query_safe("SELECT dlock_release('token', 'taker')"), 't', "$test_name: and let go");
	return;
}

# What is asked here, with somebody to be served who takes a token.
foreach my $case (
	[ 'an upgrade', 1, 'CW', 'shared', 'shared' ],
	[ 'a downgrade', 0, 'exclusive', 'shared', 'shared' ],
	[ 'a release', 0, 'exclusive', undef, 'exclusive' ])
{
	my ($what, $left, $mode, $new_mode, $wanted) = @$case;
	my $label = "no tokens, $what";
	my $holder = DLockSession->new($node, $db, name => 'holder');

	my $token = $holder->query_safe("SELECT dlock_acquire('tokens', 'holder', bind => 'session', mode => '$mode')");
	enqueue($ctl, $s[1], "SELECT dlock_acquire('tokens', 'waiter', '1 h', NULL, mode => '$wanted')");
	use_up_tokens($left, $label);
	my $answer = $holder->ask("SET lock_timeout = '1 s'; SELECT "
		  . (defined $new_mode ? "dlock_convert('tokens', $token, '$new_mode')" : "dlock_release_token('tokens', $token)"))->result;
	is($answer->{state}, '', "$label: no error") or diag($answer->{err});
	if (defined $new_mode)
	{
		cmp_ok($answer->{out} || 0, $left > 0 ? '>' : '==', $token, "$label: its token");
		is( $ctl->query_safe("SELECT mode, token FROM dlock_leases WHERE name = 'tokens' AND owner = 'holder'"),
			"$new_mode|$answer->{out}", "$label: done");
	}
	else
	{
		is($answer->{out}, 't', "$label: true");
		is($ctl->query_safe("SELECT dlock_check('tokens', $token)"), 'f', "$label: done");
	}
	settle($ctl);
	is($ctl->query_safe("SELECT count(*) FROM dlock_leases WHERE owner = 'waiter'"), 0, "$label: nobody is granted what there is no token for");
	is(queue($ctl, 'tokens'), 'waiter', "$label: the other waits");
	$s[0]->query_safe('ROLLBACK');
	cmp_ok($s[1]->answer, '>', $answer->{out} =~ /(\d+)/ ? $1 : $token, "$label: the other is granted then");
	$holder->quit;
	is($ctl->query_safe("SELECT string_agg(owner, ',') FROM dlock_leases"), 'waiter', "$label: what was bound is gone with its session");
	clean($label);
}

# ---------------------------------------------------------------------------
# The store is locked
# ---------------------------------------------------------------------------

# A lease expires while the store is locked: whoever waits can see it and cannot
# have it.  Each waits for another lock.
{
	my $label = 'the store is locked';
	my %wait = (
		wait => [ $s[1], "SELECT dlock_acquire('wait', 'waiter', '1 h', '2 h')" ],
		lock_timeout => [ $s[2], "SET lock_timeout = '2 h'; SELECT dlock_acquire('lock_timeout', 'waiter', '1 h', NULL)" ],
		several => [ $s[3], "SELECT dlock_acquire_all('{several, more}', 'waiter', '1 h', '2 h')" ],
		path => [ $s[4], "SELECT dlock_acquire_path('path/x', 'waiter', '1 h', '2 h')" ],
		patient => [ $s[5], "SELECT dlock_acquire('patient', 'waiter', '1 h', NULL)" ],
		cancelled => [ $s[6], "SELECT dlock_acquire('cancelled', 'waiter', '1 h', NULL)" ]);
	my @timed = qw(wait lock_timeout several path);

	$ctl->query_safe("SELECT dlock_acquire('$_', 'holder', '1 h')") foreach sort keys %wait;
	enqueue($ctl, @{ $wait{$_} }) foreach sort keys %wait;
	$s[0]->query_safe('BEGIN; LOCK TABLE _dlock.store IN ACCESS EXCLUSIVE MODE');
	advance(3600, $ctl);
	advance(3599.999999, $ctl);
	still_waits($ctl, "$label: all wait", map { $wait{$_}[0] } sort keys %wait);
	advance(0.000001, $ctl);
	foreach my $what (@timed)
	{
		my $answer = $wait{$what}[0]->result;
		is($answer->{out} . $answer->{state}, $what eq 'lock_timeout' ? '55P03' : '', "$label, $what: its time is over");
	}
	$ctl->query_safe("SELECT pg_cancel_backend($wait{cancelled}[0]{pid})");
	is($wait{cancelled}[0]->answer, 'ERROR 57014', "$label, cancelled: told so");
	still_waits($ctl, "$label: one with time goes on waiting", $wait{patient}[0]);
	$s[0]->query_safe('ROLLBACK');
	advance(1, $ctl);
	like($wait{patient}[0]->answer, qr/^\d+$/, "$label: and is granted then");
	$ctl->query_safe("SELECT dlock_release('patient', 'waiter')");
	is($ctl->query_safe('SELECT count(*) FROM dlock_leases'), 0, "$label: the others hold nothing");
	$s[2]->query_safe('RESET lock_timeout');
	clean($label);
}

$_->quit foreach $ctl, @s;
$node->stop;
log_is_clean($node);
done_testing();
