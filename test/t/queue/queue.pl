# Proves: waiters get a lock in the order they came, one wake-up each; they leave
# the queue by their own time-out, cancel or end, at any place of it, and by
# nothing else; writers do not starve; nobody else is held up by those who wait.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockQueue;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_fault_node('main', conf => "restart_after_crash = on\ndeadlock_timeout = 500h\n");
still_worker($node);
my $db = 'postgres';
my $ctl = DLockSession->new($node, $db, name => 'control');
my $version = $ctl->query_safe("SELECT current_setting('server_version_num')::int / 10000");

$ctl->query_safe(<<'EOC');
-- Wait for the lock, say so, let go.
CREATE TABLE taken (name text, owner text, token bigint);
CREATE FUNCTION take(name text, owner text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	token bigint;
BEGIN
	token := dlock_acquire(name, owner, '1 h', NULL);
	INSERT INTO taken VALUES (name, owner, token);
	PERFORM dlock_release_token(name, token);
	RETURN token;
END $$;
EOC

# A call that waits for a lock, for an owner.
sub acquire
{
	my ($name, $owner, %params) = @_;
	my $wait = $params{wait} ? "'$params{wait}'" : 'NULL';
	my $ttl = $params{ttl} // '1 h';
	my $mode = $params{permits} ? "permits => $params{permits}" : "mode => '" . ($params{mode} // 'exclusive') . "'";

	return "SELECT dlock_acquire('$name', '$owner', '$ttl', $wait, $mode)";
}

my @s = open_sessions($node, $db, 32, name => 'w');
my @names = map { $_->{name} } @s;

# ---------------------------------------------------------------------------
# First come, first served
# ---------------------------------------------------------------------------

# Served by each other, as fast as they can.
foreach my $round (1 .. 2)
{
	my $token = $ctl->query_safe("SELECT dlock_acquire('fifo', 'holder', '1 h')");
	my @order = $round == 1 ? @s : reverse @s;

	enqueue($ctl, $_, "SELECT take('fifo', '$_->{name}')") foreach @order;
	is(queue($ctl, 'fifo'), join(' ', map { $_->{name} } @order), "round $round: queue");
	is( $ctl->query_safe(
			"SELECT string_agg(position::text, ' ' ORDER BY position) FROM dlock_waiters WHERE name = 'fifo'"),
		join(' ', 1 .. 32),
		"round $round: positions");
	is( $ctl->query_safe(
			"SELECT count(*) FROM dlock_waiters WHERE name = 'fifo' AND mode = 'exclusive' AND request = 'acquire'
			   AND permits IS NULL AND role = current_user::regrole AND waited = '0'
			   AND since <= clock_timestamp() AND array_length(blocked_by, 1) = position AND 'holder' = ANY (blocked_by)"),
		32,
		"round $round: what is shown of them");
	is($ctl->query_safe("SELECT pid FROM dlock_waiters WHERE name = 'fifo' AND position = 32"),
		$order[31]{pid}, "round $round: the session");
	$ctl->query_safe("SELECT dlock_release_token('fifo', $token)");
	my @tokens = answers_in_order(@order);
	is("@tokens", join(' ', sort { $a <=> $b } @tokens), "round $round: granted in the order they came");
	cmp_ok($tokens[0], '>', $token, "round $round: after the holder");
	is($ctl->query_safe('SELECT count(DISTINCT token) FROM taken'), 32, "round $round: 32 grants");
	queues_are_empty($ctl, "round $round: nobody waits");
	is($ctl->query_safe("SELECT count(*) FROM dlock_leases"), 0, "round $round: nobody holds");
	$ctl->query_safe('TRUNCATE taken');
}

# One at a time: each release wakes one, and the one that is first then, to look at the new
# holder's deadline; the others go on sleeping.
{
	my $token = $ctl->query_safe("SELECT dlock_acquire('single', 'holder', '1 h')");
	my $woken = sub {
		my $sum = 0;

		foreach my $session (@s[ 11 .. 31 ])
		{
			my %counts = counts($ctl, $session);
			$sum += $counts{woken};
		}
		return $sum;
	};

	enqueue($ctl, $_, acquire('single', $_->{name})) foreach @s;
	settle($ctl);
	my $before = $woken->();
	my @granted;
	foreach my $i (0 .. 9)
	{
		$ctl->query_safe("SELECT dlock_release_token('single', $token)");
		$token = $s[$i]->result->{out};
		settle($ctl);
		queue($ctl, 'single') eq "@names[$i + 1 .. 31]" or push @granted, 'wrong queue';
	}
	is("@granted", '', 'each release is one grant');
	is($woken->(), $before, 'and wakes none of the others');

	# By force, by the owner, by all of an owner's.
	$ctl->query_safe("SELECT dlock_force_release('single', 'test')");
	isnt($token = $s[10]->result->{out}, '', 'handed over by force-release');
	$ctl->query_safe("SELECT dlock_release('single', 'w11')");
	isnt($token = $s[11]->result->{out}, '', 'handed over by a release by the owner');
	$ctl->query_safe("SELECT dlock_release_all('w12')");
	isnt($token = $s[12]->result->{out}, '', "handed over by a release of all the owner's");
	is(queue($ctl, 'single'), "@names[13 .. 31]", 'the others wait still');

	# Whoever asks without waiting does not get it, not even between two waiters.
	is($ctl->query_safe("SELECT dlock_acquire('single', 'barger', '1 h')"), '', 'nobody barges in');
	$_->result foreach map { kill_wait($_) } @s[ 13 .. 31 ];
	queues_are_empty($ctl, 'all cancelled');
	is($ctl->query_safe("SELECT dlock_release_token('single', $token)"), 't', 'the holder was left alone');
	is($ctl->query_safe('SELECT count(*) FROM dlock_leases'), 0, 'nothing is held');
}

# Cancel the call of a session; returns the session.
sub kill_wait
{
	my ($session) = @_;

	$ctl->query_safe("SELECT pg_cancel_backend($session->{pid})");
	return $session;
}

# ---------------------------------------------------------------------------
# Looking at one who waits
# ---------------------------------------------------------------------------

{
	my $token = $ctl->query_safe("SELECT dlock_acquire('look', 'holder', '1 h', permits => 2, payload => '1')");
	$ctl->query_safe("SELECT dlock_acquire('look', 'holder2', '1 h', permits => 2)");
	enqueue($ctl, $s[0], acquire('look', 'alice', permits => 2));

	settle($ctl);
	is( $ctl->query_safe("SELECT wait_event_type, wait_event, state FROM pg_stat_activity WHERE pid = $s[0]{pid}"),
		'Extension|' . ($version >= 17 ? 'DLockAcquire' : 'Extension') . '|active', 'wait event');
	is( $ctl->query_safe(
			"SELECT owner, mode, permits, request, position, blocked_by @> '{holder, holder2}', array_length(blocked_by, 1) FROM dlock_waiters WHERE name = 'look'"),
		'alice|permit|2|acquire|1|t|2',
		'waiter of a semaphore');
	is( $ctl->query_safe(
			"SELECT count(*) FROM pg_locks WHERE pid = $s[0]{pid} AND locktype <> 'virtualxid'"),
		0,
		'it holds no lock that would be in the way of others');
	advance(90, $ctl);
	is($ctl->query_safe("SELECT waited FROM dlock_waiters WHERE name = 'look'"), '00:01:30', 'how long it waits');
	$ctl->query_safe("SELECT dlock_release_token('look', $token)");
	isnt($s[0]->result->{out}, '', 'a permit that became free is handed over');
	$ctl->query_safe("SELECT dlock_force_release('look', 'test')");

	# Any role may look.
	$ctl->query_safe('CREATE ROLE looker');
	is($ctl->query_safe('SET ROLE looker; SELECT count(*) FROM dlock_waiters; RESET ROLE'), 0, 'any role may look');
}

# ---------------------------------------------------------------------------
# Ways to leave the queue
# ---------------------------------------------------------------------------

# A session that waits answers after two minutes, and not before.
sub after_two_minutes
{
	my ($session) = @_;

	advance(120 - 0.000001, $ctl);
	still_waits($ctl, 'not before its time', $session);
	advance(0.000001, $ctl);
	return;
}

my %leave = (
	'time-out' => {
		wait => '2 min',
		do => \&after_two_minutes,
		state => '',
	},
	'statement_timeout' => {
		# By the machine's clock; setting it back must not take as long.
		before => "SET statement_timeout = '300 ms'",
		state => '57014',
		message => qr/statement timeout/,
		after => 'RESET statement_timeout',
	},
	'lock_timeout' => {
		before => "SET lock_timeout = '2 min'",
		do => \&after_two_minutes,
		state => '55P03',
		message => qr/lock timeout/,
		after => 'RESET lock_timeout',
	},
	'pg_cancel_backend' => {
		do => sub { $ctl->query_safe("SELECT pg_cancel_backend($_[0]{pid})") },
		state => '57014',
		message => qr/user request/,
	},
	'pg_terminate_backend' => {
		do => sub { $ctl->query_safe("SELECT pg_terminate_backend($_[0]{pid})") },
		state => '57P01',
		message => qr/administrator command/,
		gone => 1,
	},
	'end of the client' => {
		do => sub { $_[0]->kill_client },
		gone => 1,
		state => '',
	},);

foreach my $way (sort keys %leave)
{
	my $leave = $leave{$way};

	foreach my $place ([ first => 0 ], [ middle => 3 ], [ last => 6 ])
	{
		my ($which, $at) = @$place;
		my $label = "$way of the $which";
		my @queue = @s[ 0 .. 6 ];
		my $token = $ctl->query_safe("SELECT dlock_acquire('leave', 'holder', '1 h')");
		my $leaver = $queue[$at];

		$leaver->query_safe($leave->{before} // 'SELECT');
		foreach my $session (@queue)
		{
			enqueue($ctl, $session, acquire('leave', $session->{name}, wait => $session == $leaver ? $leave->{wait} : undef));
		}
		$leave->{do}->($leaver) if $leave->{do};
		my $answer = $leaver->result;
		is($answer->{state}, $leave->{state}, "$label: SQLSTATE") or diag($answer->{err});
		like($answer->{message}, $leave->{message}, "$label: message") if $leave->{message};
		is($answer->{out}, '', "$label: no token");
		my @rest = grep { $_ != $leaver } @queue;
		queue_is($ctl, 'leave', join(' ', map { $_->{name} } @rest), "$label: the others keep their order");
		is( $ctl->query_safe(
				"SELECT string_agg(position || ' ' || array_length(blocked_by, 1), ',' ORDER BY position) FROM dlock_waiters WHERE name = 'leave'"),
			join(',', map { "$_ $_" } 1 .. 6),
			"$label: and move up");
		still_waits($ctl, "$label: they wait on", @rest);
		if ($leave->{gone})
		{
			$leaver->quit;
			($s[$at]) = DLockSession->new($node, $db, name => $leaver->{name});
		}
		elsif ($leave->{after})
		{
			$leaver->query_safe($leave->{after});
		}

		# It goes on down the rest of the queue, and the one that left is nowhere.
		my @tokens = $token;
		foreach my $session (@rest)
		{
			$ctl->query_safe("SELECT dlock_release_token('leave', $tokens[-1])");
			push @tokens, answers_in_order($session);
		}
		is("@tokens", join(' ', sort { $a <=> $b } @tokens), "$label: served in their order");
		is($ctl->query_safe("SELECT dlock_release_token('leave', $tokens[-1])"), 't', "$label: released");
		is( $ctl->query_safe(
				"SELECT (SELECT count(*) FROM dlock_leases WHERE name = 'leave') || ' ' || (SELECT count(*) FROM dlock_waiters WHERE name = 'leave')"),
			'0 0',
			"$label: no trace");
	}
}

# One that is alone leaves nothing either, and the lock is free for the next.
{
	my $token = $ctl->query_safe("SELECT dlock_acquire('alone', 'holder', '1 h')");
	enqueue($ctl, $s[0], acquire('alone', 'alice', wait => '1 min'));
	advance(60, $ctl);
	is($s[0]->answer, '', 'alone: time-out');
	$ctl->query_safe("SELECT dlock_release_token('alone', $token)");
	isnt($token = $ctl->query_safe("SELECT dlock_acquire('alone', 'bob', '1 h')"), '', 'alone: free');

	# In a transaction, which a time-out leaves as it was, and a cancel aborts.
	$s[0]->query_safe('BEGIN; CREATE TABLE made()');
	enqueue($ctl, $s[0], acquire('alone', 'alice', wait => '1 min'));
	advance(60, $ctl);
	is($s[0]->answer, '', 'alone: time-out in a transaction');
	$s[0]->query_safe('SAVEPOINT here');
	enqueue($ctl, $s[0], acquire('alone', 'alice'));
	is(kill_wait($s[0])->result->{state}, '57014', 'alone: cancel in a subtransaction');
	$s[0]->query_safe('ROLLBACK TO here');
	enqueue($ctl, $s[0], acquire('alone', 'alice'));
	$ctl->query_safe("SELECT dlock_release_token('alone', $token)");
	isnt($token = $s[0]->result->{out}, '', 'alone: waits again and gets it');
	$s[0]->query_safe('ROLLBACK');
	is($ctl->query_safe("SELECT dlock_release_token('alone', $token)"), 't', 'alone: a rollback does not undo it');

	# Caught in a function, and waiting again.
	$ctl->query_safe("SELECT dlock_acquire('alone', 'bob', '1 h')");
	enqueue($ctl, $s[0], <<'EOC');
DO $$
BEGIN
	SET LOCAL lock_timeout = '50 s';
	FOR i IN 1 .. 3 LOOP
		BEGIN
			PERFORM dlock_acquire('alone', 'alice', '1 h', NULL);
			RAISE EXCEPTION 'granted';
		EXCEPTION WHEN lock_not_available THEN
		END;
	END LOOP;
END $$
EOC
	for (1 .. 2)
	{
		advance(50, $ctl);
		still_waits($ctl, 'alone: waits again', $s[0]);
	}
	advance(50, $ctl);
	is($s[0]->result->{err}, '', 'alone: errors caught');
	queues_are_empty($ctl, 'alone: no trace');
	$ctl->query_safe("SELECT dlock_release('alone', 'bob')");
}

# Wait without a limit, or with one that is far away.
foreach my $wait ('NULL', "'1000 years'", $version >= 17 ? "'infinity'" : ())
{
	my $token = $ctl->query_safe("SELECT dlock_acquire('far', 'holder', '1 h')");
	enqueue($ctl, $s[0], "SELECT dlock_acquire('far', 'alice', '1 h', $wait)");
	$ctl->query_safe("SELECT dlock_release_token('far', $token)");
	isnt($s[0]->result->{out}, '', "wait $wait");
	$ctl->query_safe("SELECT dlock_release('far', 'alice')");
}
sqlstate_is($node, $db, "SELECT dlock_acquire('far', 'alice', '1 h', '-1 us')", '22023', 'a negative wait');

# The lease runs from the grant, not from the call.
{
	my $token = $ctl->query_safe("SELECT dlock_acquire('from', 'holder', '1 h')");
	enqueue($ctl, $s[0], acquire('from', 'alice', ttl => '10 min'));
	advance(1800, $ctl);
	$ctl->query_safe("SELECT dlock_release_token('from', $token)");
	isnt($s[0]->result->{out}, '', 'granted after longer than its ttl');
	enqueue($ctl, $s[31], acquire('from', 'taker'));
	isnt(granted_at($ctl, $s[31], 600, 'the lease runs from the grant'), '', 'the lease runs from the grant: taken over');
	$ctl->query_safe("SELECT dlock_release('from', 'taker')");
}

# ---------------------------------------------------------------------------
# Readers and writers
# ---------------------------------------------------------------------------

# One after the other.
{
	my $first = $ctl->query_safe("SELECT dlock_acquire('rw', 'r0', '1 h', mode => 'shared')");
	enqueue($ctl, $s[0], acquire('rw', 'writer'));
	is($ctl->query_safe("SELECT dlock_acquire('rw', 'r1', '1 h', mode => 'shared')"), '', 'a reader does not pass a waiting writer');
	enqueue($ctl, $s[$_], acquire('rw', "r$_", mode => 'shared')) foreach 1 .. 5;
	enqueue($ctl, $s[6], acquire('rw', 'writer2'));
	enqueue($ctl, $s[7], acquire('rw', 'r7', mode => 'shared'));
	is($ctl->query_safe("SELECT string_agg(mode, ' ' ORDER BY position) FROM dlock_waiters WHERE name = 'rw'"),
		'exclusive shared shared shared shared shared exclusive shared', 'modes of the queue');
	is($ctl->query_safe("SELECT blocked_by FROM dlock_waiters WHERE owner = 'r3'"), '{writer}', 'a reader is blocked by the writer only');
	is($ctl->query_safe("SELECT blocked_by @> '{r0, writer, r1, r2, r3, r4, r5}' AND array_length(blocked_by, 1) = 7 FROM dlock_waiters WHERE owner = 'writer2'"),
		't', 'a writer by all that is before it');
	$ctl->query_safe("SELECT dlock_release_token('rw', $first)");
	my ($writer) = answers_in_order($s[0]);
	still_waits($ctl, 'the writer alone', @s[ 1 .. 7 ]);
	is(queue($ctl, 'rw'), 'r1 r2 r3 r4 r5 writer2 r7', 'the others wait');
	$ctl->query_safe("SELECT dlock_release_token('rw', $writer)");
	my @readers = map { $_->result->{out} } @s[ 1 .. 5 ];
	is(scalar(grep { $_ ne '' && $_ > $writer } @readers), 5, 'then all readers before the next writer');
	queue_is($ctl, 'rw', 'writer2 r7', 'who wait still');
	is($ctl->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'rw' AND mode = 'shared'"), 5, 'the readers hold it together');

	# A writer that gives up lets those behind it pass.
	kill_wait($s[6])->result;
	isnt($s[7]->result->{out}, '', 'the writer gives up: the reader behind it passes');
	$ctl->query_safe("SELECT dlock_force_release('rw', 'test')");
}

# Whatever way the one in front leaves.
foreach my $way (sort keys %leave)
{
	my $leave = $leave{$way};

	$ctl->query_safe("SELECT dlock_acquire('pass', 'r0', '1 h', mode => 'CW')");
	$s[0]->query_safe($leave->{before} // 'SELECT');
	enqueue($ctl, $s[0], acquire('pass', 'writer', wait => $leave->{wait}, mode => 'shared'));
	enqueue($ctl, $s[$_], acquire('pass', "r$_", mode => 'CW')) foreach 1 .. 3;
	$leave->{do}->($s[0]) if $leave->{do};
	$s[0]->result;
	is(scalar(grep { $_ ne '' } answers_in_order(@s[ 1 .. 3 ])), 3, "$way of the first: all behind it pass");
	if ($leave->{gone})
	{
		$s[0]->quit;
		($s[0]) = DLockSession->new($node, $db, name => 'w1');
	}
	elsif ($leave->{after})
	{
		$s[0]->query_safe($leave->{after});
	}
	$ctl->query_safe("SELECT dlock_force_release('pass', 'test')");
}

# Compatible with everybody: it does not wait, and is granted if asked not to.
{
	$ctl->query_safe("SELECT dlock_acquire('compat', 'cw0', '1 h', mode => 'CW')");
	enqueue($ctl, $s[0], acquire('compat', 'pr', mode => 'PR'));
	foreach my $mode ('NL', 'CR')
	{
		isnt($ctl->query_safe("SELECT dlock_acquire('compat', 'at-once-$mode', '1 h', mode => '$mode')"), '', "$mode is compatible with all and goes ahead");
	}
	is($ctl->query_safe("SELECT dlock_acquire('compat', 'no', '1 h', mode => 'CW')"), '', 'CW is not compatible with one that waits');
	enqueue($ctl, $s[1], acquire('compat', 'cw1', mode => 'CW'));
	is($ctl->query_safe("SELECT blocked_by FROM dlock_waiters WHERE owner = 'cw1'"), '{pr}', 'it waits for the waiter only');
	$ctl->query_safe("SELECT dlock_release('compat', 'cw0')");
	isnt($s[0]->result->{out}, '', 'the one in front first');
	is(queue($ctl, 'compat'), 'cw1', 'then it waits for the new holder');
	is($ctl->query_safe("SELECT blocked_by FROM dlock_waiters WHERE owner = 'cw1'"), '{pr}', 'of the same name');
	$ctl->query_safe("SELECT dlock_release('compat', 'pr')");
	isnt($s[1]->result->{out}, '', 'and gets it');
	$ctl->query_safe("SELECT dlock_force_release('compat', 'test')");
}

# Several permits that become free at once go to as many, in order.
{
	my @tokens = map { $ctl->query_safe("SELECT dlock_acquire('pool', 'many', '1 h', permits => 3, reentry => 'deny')") } 1;
	$ctl->query_safe("SELECT dlock_acquire('pool', 'many$_', '1 h', permits => 3)") foreach 2 .. 3;
	enqueue($ctl, $s[$_], acquire('pool', "p$_", permits => 3)) foreach 0 .. 5;
	is($ctl->query_safe("SELECT dlock_acquire('pool', 'late', '1 h', permits => 3)"), '', 'no permit is left');
	$ctl->query_safe("SELECT dlock_force_release('pool', 'test')");
	is(scalar(grep { $_->result->{out} ne '' } @s[ 0 .. 2 ]), 3, 'three permits for the first three');
	queue_is($ctl, 'pool', 'p3 p4 p5', 'the others wait');
	my %error = sqlstate_is($node, $db, acquire('pool', 'x', permits => 5, wait => '0'), '22023', 'another number of permits');
	is($error{message}, 'lock "pool" has 3 permits, not 5', 'another number of permits: message');
	sqlstate_is($node, $db, acquire('pool', 'x', wait => '1 s'), '22023', 'a mode, on a semaphore');
	$ctl->query_safe("SELECT dlock_force_release('pool', 'test')");
	answers_in_order(@s[ 3 .. 5 ]);
	$ctl->query_safe("SELECT dlock_force_release('pool', 'test')");
}

# Who watches a lock is told at once of a holder that had to wait for several.
foreach my $request (
	"SELECT dlock_acquire_all('{seen1, seen2}', 'all', '1 h', NULL)",
	"SELECT dlock_acquire_path('seen1/seen2', 'all', '1 h', NULL)")
{
	my $name = $request =~ /path/ ? 'seen1/seen2' : 'seen2';
	$ctl->query_safe("SELECT dlock_acquire('seen1', 'h', '1 h')");
	enqueue($ctl, $s[0], $request);
	$s[1]->ask_waiting($ctl, "SELECT token FROM dlock_watch('$name', NULL, '5 min')");
	$ctl->query_safe("SELECT dlock_release('seen1', 'h')");
	my ($token) = (answers_in_order($s[0]))[0] =~ /(\d+)\D*$/;
	is($s[1]->result->{out}, $token, "$name: the new holder is seen");
	$ctl->query_safe("SELECT dlock_release_all('all')");
}

# Force ends all who hold a lock, one that waits to convert its lease among them.
{
	my ($left, $told) = (0, 0);
	foreach my $i (1 .. 20)
	{
		my $token = $ctl->query_safe("SELECT dlock_acquire('force', 'converts', '1 h', mode => 'NL')");
		$ctl->query_safe("SELECT dlock_acquire('force', 'holder', '1 h')");
		enqueue($ctl, $s[0], "SELECT dlock_convert('force', $token, 'PW', NULL)");
		$ctl->query_safe("SELECT dlock_force_release('force', 'test')");
		$told++ if $s[0]->result->{state} eq 'LK002';
		$left += $ctl->query_safe("SELECT dlock_force_release('force', 'test')");
	}
	is($told, 20, 'by force: whoever waits to convert has lost its lease');
	is($left, 0, 'by force: nobody is left');
}

# A stream of readers, so dense that there is always one.  It flows until the writer is done.
{
	$ctl->query_safe(<<'EOC');
CREATE TABLE stream_over (at timestamptz);
CREATE FUNCTION read_on(owner text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	n int := 0;
BEGIN
	WHILE n < 20 OR NOT EXISTS (SELECT FROM stream_over) LOOP
		PERFORM dlock_acquire('stream', owner, '1 h', NULL, mode => 'shared');
		PERFORM pg_sleep(0.005 + random() * 0.005);
		PERFORM dlock_release('stream', owner);
		n := n + 1;
	END LOOP;
	RETURN n;
END $$;
EOC
	$s[$_]->ask("SET synchronous_commit = off; SELECT read_on('r$_')") foreach 0 .. 5;
	wait_until(sub { $ctl->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'stream'") > 1 });
	my $writes = 0;
	my $holders;
	foreach my $i (1 .. 20)
	{
		$writes++ if $s[6]->query_safe(acquire('stream', 'writer')) ne '';

		# It warns if it leaves something out, which a process that did not get to run keeps locked.
		wait_until(sub { $holders = $ctl->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'stream'"); $ctl->{stderr} eq '' })
		  if $i == 1;
		is($holders, 1, "write $i: alone") if $i == 1;
		$ctl->query_safe("SELECT dlock_release('stream', 'writer')");
	}
	my $reading = grep { !$_->answered } @s[ 0 .. 5 ];
	$ctl->query_safe('INSERT INTO stream_over VALUES (now())');
	is($reading, 6, 'the stream was there all the time');
	is($writes, 20, 'a stream of readers: the writer gets the lock');
	my @reads = answers_in_order(@s[ 0 .. 5 ]);
	is(scalar(grep { $_ >= 20 } @reads), 6, 'the readers go on, too');
	queues_are_empty($ctl, 'the stream is over');
}

# ---------------------------------------------------------------------------
# Long waits are logged
# ---------------------------------------------------------------------------

{
	my $session = $s[0];
	my $log_at = -s $node->logfile;
	my $token = $ctl->query_safe("SELECT dlock_acquire('log', 'holder', '1 h')");

	$s[1]->query_safe("SET log_lock_waits = off; SET deadlock_timeout = '1 min'");
	enqueue($ctl, $s[1], acquire('log', 'silent'));
	$session->query_safe("SET log_lock_waits = on; SET deadlock_timeout = '2 min'");
	enqueue($ctl, $session, acquire('log', 'alice', mode => 'shared'));
	advance(120 - 0.000001, $ctl);
	unlike(slurp_file($node->logfile, $log_at), qr/still waiting/, 'a wait is not logged before its time');
	advance(0.000001, $ctl);
	my $log = slurp_file($node->logfile, $log_at);
	like($log, qr/LOG:  session still waiting for shared on lock "log" after 120000\.000 ms/, 'a long wait is logged, with lock, mode and time');
	like($log, qr/DETAIL:  .*holder.*silent/, 'and with whom it waits for');
	advance(60, $ctl);
	$ctl->query_safe("SELECT dlock_release_token('log', $token)");
	answers_in_order($s[1]);
	$ctl->query_safe("SELECT dlock_release('log', 'silent')");
	answers_in_order($session);
	$log = slurp_file($node->logfile, $log_at);
	like($log, qr/session acquired shared on lock "log" after 180000\.000 ms/, 'its end is logged');
	is(scalar(() = $log =~ /still waiting/g), 1, 'once');
	unlike($log, qr/exclusive on lock "log"/, 'not of a session that does not want it');
	$ctl->query_safe("SELECT dlock_release('log', 'alice')");
	$_->query_safe("RESET deadlock_timeout; RESET log_lock_waits") foreach @s[ 0, 1 ];
}

# ---------------------------------------------------------------------------
# Nobody else is held up
# ---------------------------------------------------------------------------

{
	my $token = $ctl->query_safe("SELECT dlock_acquire('others', 'holder', '1 h')");
	$ctl->query_safe("SELECT dlock_acquire('others-$_', 'holder', '1 h') FROM generate_series(1, 100)") foreach 1 .. 3;
	enqueue($ctl, $s[$_], acquire('others', "o$_")) foreach 0 .. 2;
	enqueue($ctl, $s[3], "SELECT dlock_acquire_all('{others, others-all}', 'o3', '1 h', NULL)");

	# Fails after the time-out if it is.
	$ctl->query_safe("SET lock_timeout = '20 s'; SET statement_timeout = '30 s'");
	$ctl->query_safe('VACUUM FULL _dlock.store');
	pass('VACUUM FULL _dlock.store while sessions wait');
	queue_is($ctl, 'others', 'o0 o1 o2 o3', 'they go on waiting');
	is($ctl->query_safe("SELECT dlock_check('others', $token)"), 't', 'the holder holds it');
	my @tokens = $token;
	foreach my $i (0 .. 2)
	{
		$ctl->query_safe("SELECT dlock_release_token('others', $tokens[-1])");
		push @tokens, answers_in_order($s[$i]);
		$ctl->query_safe('VACUUM FULL _dlock.store') if $i == 1;
	}
	pass('and get the lock in turn');
	$ctl->query_safe("SELECT dlock_release_token('others', $tokens[-1])");
	like(($s[3]->result->{out}), qr/^\{\d+,\d+\}$/, 'one that waits for several, too');
	$ctl->query_safe("SELECT dlock_release_all('o3')");
	$ctl->query_safe("SELECT dlock_release_all('holder')");
	$ctl->query_safe('RESET lock_timeout; RESET statement_timeout');

	$ctl->query_safe('CREATE DATABASE dropped');
	my $there = DLockSession->new($node, 'dropped');
	$there->query_safe("CREATE EXTENSION dlock");
	$there->query_safe("SELECT dlock_acquire('x', 'holder', '1 h')");
	my @waiting = open_sessions($node, 'dropped', 3, name => 'd');
	$there->query_safe("SELECT dlock_acquire('y', 'holder', '1 h', mode => 'shared')");
	enqueue($there, $waiting[0], acquire('x', 'a'));
	enqueue($there, $waiting[1], "SELECT dlock_acquire_all('{x, z}', 'b', '1 h', '1 h')");
	my $shared = $waiting[2]->query_safe("SELECT dlock_acquire('y', 'c', '1 h', mode => 'shared')");
	enqueue($there, $waiting[2], "SELECT dlock_convert('y', $shared, 'exclusive', NULL)");
	$there->query_safe("SET lock_timeout = '20 s'; SET statement_timeout = '30 s'");
	$there->query_safe('DROP EXTENSION dlock');
	$there->query_safe('RESET lock_timeout; RESET statement_timeout');
	pass('DROP EXTENSION while sessions wait');
	is($_->result->{state}, '55000', "$_->{name}: the call fails") foreach @waiting;
	$there->query_safe('CREATE EXTENSION dlock');
	$there->query_safe("SELECT dlock_acquire('x', 'holder', '1 h')");
	enqueue($there, $waiting[0], acquire('x', 'a'));
	$there->query_safe("SELECT dlock_release('x', 'holder')");
	isnt($waiting[0]->result->{out}, '', 'created anew: the same session waits and gets the lock');

	# A drop that is undone.
	enqueue($there, $waiting[1], acquire('x', 'b'));
	$there->query_safe("BEGIN; DROP EXTENSION dlock; ROLLBACK");
	my $undone = $there->query_safe("SELECT dlock_release('x', 'a')");
	is($undone, 't', 'a drop that is rolled back: the lease is there');
	my $answer = $waiting[1]->result;
	like($answer->{out} . $answer->{state}, qr/^(\d+|55000)$/, 'a drop that is rolled back: a waiter gets the lock, or an error') or diag($answer->{err});
	note "a drop that is rolled back: '$answer->{out}' '$answer->{state}'";
	$there->query_safe("DROP EXTENSION dlock");
	$_->quit foreach @waiting, $there;
	$ctl->query_safe('DROP DATABASE dropped');
}

# ---------------------------------------------------------------------------
# One in the queue stands still (the first: see called.pl)
# ---------------------------------------------------------------------------

# Stop a session in its sleep.
sub stop
{
	my ($session) = @_;

	settle($ctl);
	kill 'STOP', $session->{pid};
	return;
}

# One that converts: it loses its lease at the deadline, and its place with it,
# whether the conversion could be made or not.
foreach my $way ('blocked', 'possible')
{
	my $name = "convert-$way";
	my $token = $ctl->query_safe("SELECT dlock_acquire('$name', 'stopped', '1 h', mode => 'shared')");
	$ctl->query_safe("SELECT dlock_acquire('$name', 'reader', '1 h', mode => 'shared')");
	enqueue($ctl, $s[0], "SELECT dlock_convert('$name', $token, 'exclusive', NULL)");
	enqueue($ctl, $s[1], acquire($name, 'next', mode => 'shared'));
	stop($s[0]);
	is($ctl->query_safe("SELECT dlock_renew('$name', 'stopped', '10 min')"), 't', "conversion, $way: to end before the others");
	$ctl->query_safe("SELECT dlock_release('$name', 'reader')") if $way eq 'possible';
	isnt(granted_at($ctl, $s[1], 600, "conversion, $way"), '', "conversion, $way: the next gets the lock");
	kill 'CONT', $s[0]{pid};
	my $late = $s[0]->result;
	is($late->{state}, 'LK002', "conversion, $way: the late one is told that it has lost its lease");
	$ctl->query_safe("SELECT dlock_force_release('$name', 'test')");
}

# Not the first, but in the middle: it holds up nobody in front of it.
{
	my $token = $ctl->query_safe("SELECT dlock_acquire('middle', 'holder', '1 h')");
	enqueue($ctl, $s[$_], acquire('middle', "m$_", ttl => $_ == 1 ? '10 min' : '1 h')) foreach 0 .. 2;
	stop($s[1]);
	$ctl->query_safe("SELECT dlock_release_token('middle', $token)");
	isnt($token = $s[0]->result->{out}, '', 'the one before a stopped one gets it');
	$ctl->query_safe("SELECT dlock_release_token('middle', $token)");
	isnt($token = granted_at($ctl, $s[2], 600, 'the one behind it'), '', 'the one behind it, after the ttl');
	kill 'CONT', $s[1]{pid};
	$ctl->query_safe("SELECT dlock_release_token('middle', $token)");
	isnt($token = $s[1]->result->{out}, '', 'and the stopped one in the end');
	$ctl->query_safe("SELECT dlock_release_token('middle', $token)");
}
queues_are_empty($ctl, 'all done');
is($ctl->query_safe('SELECT count(*) FROM dlock_leases'), 0, 'nothing is held');

# ---------------------------------------------------------------------------
# The server ends
# ---------------------------------------------------------------------------

# No waiter is in the way of a shutdown, and none of them holds anything after it.
my @all = @s;
foreach my $how ('fast', 'immediate', 'postmaster killed', 'backend killed')
{
	my $held = $ctl->query_safe("SELECT dlock_acquire('end', 'holder', '1 h')");
	my @waiting = @all[ 0 .. 7 ];
	enqueue($ctl, $_, acquire('end', $_->{name})) foreach @waiting;
	my @pids = map { $_->{pid} } @waiting;
	my $log_at = -s $node->logfile;

	if ($how eq 'postmaster killed')
	{
		crash_node($node, orphans => 1);
	}
	elsif ($how eq 'backend killed')
	{
		kill 'KILL', $waiting[3]{pid};
	}
	else
	{
		$node->stop($how);
	}
	wait_gone(@pids);
	is(scalar(grep { $_->result->{gone} } @waiting), 8, "$how: their sessions have ended");
	$_->quit foreach @all, $ctl;

	if ($how eq 'backend killed')
	{
		wait_for_reinit($node, $log_at);
	}
	else
	{
		$node->start;
	}
	$ctl = DLockSession->new($node, $db, name => 'control');
	is($ctl->query_safe("SELECT string_agg(owner, ' ') FROM dlock_leases"), 'holder', "$how: the holder holds it, and nobody else");
	queues_are_empty($ctl, "$how: nobody waits");
	@all = open_sessions($node, $db, 8, name => 'w');
	enqueue($ctl, $all[0], acquire('end', 'after'));
	$ctl->query_safe("SELECT dlock_release_token('end', $held)");
	cmp_ok($all[0]->result->{out}, '>', $held, "$how: waiting works after it");
	$ctl->query_safe("SELECT dlock_release('end', 'after')");
}
$_->quit foreach @all, $ctl;

$node->stop;
log_is_clean($node);
done_testing();
