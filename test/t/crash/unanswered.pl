# Proves: a call that is cancelled or terminated before it is answered leaves
# nothing behind: no lease, no place in a queue, no spent time slot, no token that
# only the server knows; and what was before is as it was.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockStall;
use DLockTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A call flushes for as long as commit_delay says, unless another process flushes.
my $node = start_node('main', conf => <<'EOC');
fsync = on
commit_siblings = 0
wal_writer_delay = 10s
dlock.max_ttl = '10000 d'
EOC
my $db = 'postgres';
my $monitor = DLockSession->new($node, $db);
my ($next, $holder, $caller) = map { DLockSession->new($node, $db) } 1 .. 3;

# A flush takes 100 ms.  A call is cut off while it lasts, or tried again.
my $slow = "SET commit_delay = 100000";
my $tries = 50;
my $number = 0;

sub grants
{
	return $monitor->query_safe(
		'SELECT grants + conversions + renewals + reentries FROM dlock_stats');
}

# Ways to cut a call off once a condition, a query, says that it was granted.
my %cut = (
	cancelled => [ 'pg_cancel_backend', qr/^ERROR 57014$/ ],
	terminated => [ 'pg_terminate_backend', qr/^(?:FATAL 57P01|LOST)$/ ],);

# Of an attempt that was answered nothing is to be left: the first time ends the
# leases, the second opens the locks that they keep closed.
sub clean_up
{
	$monitor->query_safe("SELECT count(dlock_force_release(name, 'test')) FROM (SELECT name FROM dlock_leases WHERE owner = 'me') l")
	  foreach 1, 2;
	return;
}

# Another session, since the signal may come to this one late.
sub renew_caller
{
	$caller->quit;
	$caller = DLockSession->new($node, $db);
	return;
}

# Was the call cut off before its answer?  On a busy machine the end may come after it,
# and is told all the same.
sub was_cut_off
{
	my ($way) = @_;

	my $answer = $caller->answer;

	# A session tells its client of its end before it cleans up.
	$caller->wait_backend_gone if $answer =~ /^(?:FATAL|LOST)/;
	return $answer =~ $cut{$way}[1] && $caller->{stdout} eq '';
}

sub cut_off
{
	my ($way, $sql, $granted) = @_;
	my $done;

	$caller->query_safe($slow);
	$caller->ask($sql);
	wait_until(sub { $monitor->query_safe("SELECT $granted") eq 't' || $caller->answered })
	  or die "not granted: $sql";
	$monitor->query_safe("SELECT $cut{$way}[0](" . $caller->pid . ')');
	$done = was_cut_off($way);
	renew_caller();
	return $done;
}

# Have no timeout any more.  On a busy machine it may hit the statement that says so.  The
# server leaves the timer of a timeout that is over running: it would end the delay of
# the next flush too early, so it is to ring before.
sub reset_timeout
{
	wait_until(sub { $caller->query('RESET statement_timeout') eq '' }) or die 'the timeout cannot be reset';
	$caller->query_safe('RESET commit_delay; SELECT pg_sleep(0.06)');
	return;
}

# Cancel a call when it sleeps, which it does after all else; returns its answer.
sub cancelled_asleep
{
	my ($session, $sql) = @_;
	my $pid = $session->pid;

	$session->ask($sql);
	wait_until(
		sub {
			$monitor->query_safe("SELECT wait_event FROM pg_stat_activity WHERE pid = $pid AND state = 'active'") eq 'PgSleep'
			  || $session->answered;
		}) or die "does not sleep: $sql";
	$monitor->query_safe("SELECT pg_cancel_backend($pid)");
	return $session->answer;
}

# The statement_timeout ends while the flush lasts; the statistics tell that there
# was something to undo.  Each attempt has a number, which stands for N in the
# statement; returns that of the one that was cut off.
sub timed_out
{
	my ($sql, $attempts) = @_;

	foreach my $attempt (1 .. $attempts // $tries)
	{
		my $before = grants();

		$caller->query_safe("$slow; SET statement_timeout = '50 ms'");
		my $answer = $caller->query($sql =~ s/\bN\b/$attempt/r);
		reset_timeout();
		return $attempt if $answer eq 'ERROR 57014' && grants() > $before;
		clean_up() unless $answer eq 'ERROR 57014' || defined $attempts;
	}
	return 0;
}

# Nobody has these locks or waits for them, and whoever comes next gets them.
sub is_free
{
	my ($label, @names) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $list = join ', ', map { "'$_'" } @names;

	is( $monitor->query_safe("SELECT string_agg(owner, ' ') FROM dlock_leases WHERE name IN ($list)"),
		'', "$label: no lease");
	is($monitor->query_safe('SELECT count(*) FROM dlock_waiters'), 0, "$label: nobody waits");
	isnt($next->query_safe("SELECT dlock_acquire('$_', 'next', '1 h')"), '', "$label: the next caller gets \"$_\"")
	  foreach @names;
	$next->query_safe("SELECT dlock_release('$_', 'next')") foreach @names;
	return;
}

# ---------------------------------------------------------------------------
# Grants
# ---------------------------------------------------------------------------

# The name of the lock is to be put in; what is held before is the last line.
my %grant = (
	'plain' => "dlock_acquire('%s', 'me', '10 min')",
	'with a lock delay' => "dlock_acquire('%s', 'me', '10 min', lock_delay => '10 min', min_hold => '5 min')",
	'bound to the session' => "dlock_acquire('%s', 'me', bind => 'session')",
	'bound to the session, with a lock delay' => "dlock_acquire('%s', 'me', bind => 'session', lock_delay => '10 min')",
	'bound to the transaction' => "dlock_acquire('%s', 'me', bind => 'transaction')",
	'bound to the transaction, with a lock delay' => "dlock_acquire('%s', 'me', bind => 'transaction', lock_delay => '10 min')",
	'several' => "dlock_acquire_all(ARRAY['%s', 'a', 'b'], 'me', '10 min')",
	'a path' => "dlock_acquire_path('%s/a/b', 'me', '10 min')",
	'a campaign' => "dlock_campaign('%s', 'me', '10 min', payload => '{}')",);

foreach my $what (sort keys %grant)
{
	my $durable = $what !~ /^bound\b/ || $what =~ /delay/;

	# What is not written is not flushed, and cannot be cut off there.
	if ($durable)
	{
		my $name = 'g' . ++$number;
		my $attempt = timed_out('SELECT ' . sprintf $grant{$what}, "$name-N");

		ok($attempt, "$what: cut off by statement_timeout");
		is_free("$what, timed out", "$name-$attempt", 'a', "$name-$attempt/a");
		foreach my $way (sort keys %cut)
		{
			my $done = 0;

			for (my $i = 0; !$done && $i < $tries; $i++)
			{
				$name = 'g' . ++$number;
				$done = cut_off($way, 'SELECT ' . sprintf($grant{$what}, $name),
					"count(*) > 0 FROM dlock_leases WHERE name LIKE '$name%'");
				clean_up() unless $done;
			}
			ok($done, "$what: $way");
			is_free("$what, $way", $name, 'a', "$name/a");
		}
	}

	# Cut off in what the statement does next; only the lock delay is left, since
	# somebody may know the lease.
	foreach my $way (sort keys %cut)
	{
		my $name = 'g' . ++$number;

		cut_off($way, 'SELECT ' . sprintf($grant{$what}, $name) . ', pg_sleep(600)',
			"count(*) > 0 FROM dlock_leases l JOIN pg_stat_activity a ON a.wait_event = 'PgSleep' WHERE l.name LIKE '$name%'")
		  or die 'not cut off in its sleep';
		is($monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE name LIKE '$name%' AND state = 'held'"),
			0, "$what, $way later in the statement: no lease");
		if ($what =~ /delay/)
		{
			is($next->query_safe("SELECT dlock_acquire('$name', 'next', '1 h')"),
				'', "$what, $way later in the statement: the lock delay counts");
			$monitor->query_safe("SELECT dlock_force_release('$name', 'test')");
		}
		is_free("$what, $way later in the statement", $name, 'a', "$name/a");
	}
}

# A waiter that is handed the lock, and one behind it.
foreach my $way (sort keys %cut)
{
	foreach my $several (0, 1)
	{
		my $done = 0;
		my $label = ($several ? 'several, waited for' : 'waited for') . ", $way";

		for (my $i = 0; !$done && $i < $tries; $i++)
		{
			my $name = 'w' . ++$number;
			my $sql = $several ? "dlock_acquire_all(ARRAY['$name', 'a'], 'me', '10 min', NULL)" :
			  "dlock_acquire('$name', 'me', '10 min', NULL)";

			$holder->query_safe("SELECT dlock_acquire('$name', 'holder', '1 h')");
			$caller->query_safe($slow);
			$caller->ask_waiting($monitor, "SELECT $sql");
			$next->ask_waiting($monitor, "SELECT dlock_acquire('$name', 'next', '1 h', NULL)");
			$holder->query_safe("SELECT dlock_release('$name', 'holder')");
			wait_until(sub { $monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE name = '$name' AND owner = 'me'") || $caller->answered });
			$monitor->query_safe("SELECT $cut{$way}[0](" . $caller->pid . ')');
			$done = was_cut_off($way);
			clean_up() unless $done;
			my $released = mono_now();
			like($next->answer, qr/^\d+$/, "$label: the waiter behind it gets the lock") if $done;
			$next->answer unless $done;
			in_time($released, $next->{answered_at}, 30, "$label: at once") if $done;
			$next->query_safe("SELECT dlock_release('$name', 'next')");
			is_free($label, $name, 'a') if $done;
			renew_caller();
		}
		ok($done, "$label: hit");
	}
}

# ---------------------------------------------------------------------------
# What was held before
# ---------------------------------------------------------------------------

# An upgrade: the lease has its old token and mode, in memory and on disk.
foreach my $way (sort(keys %cut), 'timed out')
{
	my $done = 0;

	for (my $i = 0; !$done && $i < $tries; $i++)
	{
		my $name = 'c' . ++$number;
		my $token = $caller->query_safe("SELECT dlock_acquire('$name', 'me', '1 h', mode => 'shared', payload => '{\"a\": 1}')");
		my $sql = "SELECT dlock_convert('$name', $token, 'exclusive')";

		$done = $way eq 'timed out' ? timed_out($sql, 1) :
		  cut_off($way, $sql, "mode = 'exclusive' FROM dlock_leases WHERE name = '$name'");
		$monitor->query_safe("SELECT dlock_force_release('$name', 'test')") unless $done;
		next unless $done;
		is($monitor->query_safe("SELECT token || ' ' || mode FROM dlock_leases WHERE name = '$name'"),
			"$token shared", "upgrade $way: token and mode are as before");
		isnt($next->query_safe("SELECT dlock_acquire('$name', 'next', '1 h', mode => 'shared')"),
			'', "upgrade $way: another reader gets the lock");
		is($next->query_safe("SELECT dlock_renew('$name', 'me')"), 't', "upgrade $way: its owner renews it");
		ok( wait_until(
				sub {
					my %slots = store_slots($node, $db);
					return $slots{$name}{count} == 2 && $slots{$name}{mode} == 3;
				}),
			"upgrade $way: the page says the same");
		crash_node($node);
		$node->start;
		$_ = DLockSession->new($node, $db) foreach $monitor, $next, $holder, $caller;
		is($monitor->query_safe("SELECT token || ' ' || mode FROM dlock_leases WHERE name = '$name' AND owner = 'me'"),
			"$token shared", "upgrade $way: and after a crash");
		$monitor->query_safe("SELECT dlock_release_all('me'), dlock_release_all('next')");
	}
	ok($done, "upgrade $way: hit");
}

# Without the worker a renewal writes what was undone, with all that it logs.
{
	my $token;

	pause_worker($node);
	ok( wait_until(
			sub {
				$caller->query_safe("SELECT dlock_release_all('me')");
				$token = $caller->query_safe("SELECT dlock_acquire('undone', 'me', '1 h', mode => 'shared')");
				return timed_out("SELECT dlock_convert('undone', $token, 'exclusive')", 1);
			}),
		'renewed after an undone upgrade: hit');
	is($next->query_safe("SELECT dlock_renew_token('undone', $token, '2 h')"),
		't', 'renewed after an undone upgrade: it is');
	crash_node($node);
	$node->start;
	$_ = DLockSession->new($node, $db) foreach $monitor, $next, $holder, $caller;
	is($monitor->query_safe("SELECT token || ' ' || mode FROM dlock_leases WHERE name = 'undone'"),
		"$token shared", 'renewed after an undone upgrade: and after a crash');
	resume_worker($node);
	$monitor->query_safe("SELECT dlock_release_all('me')");
}

# A bound lease goes on being bound.
{
	my $bound = DLockSession->new($node, $db);
	my $token = $bound->query_safe("SELECT dlock_acquire('bound', 'me', bind => 'session', mode => 'shared')");

	is(cancelled_asleep($bound, "SELECT dlock_convert('bound', $token, 'exclusive'), pg_sleep(600)"),
		'ERROR 57014', 'a bound lease: cut off');
	is($monitor->query_safe("SELECT token || ' ' || mode FROM dlock_leases WHERE name = 'bound'"),
		"$token shared", 'a bound lease: token and mode are as before');
	$bound->quit;
	is_free('a bound lease, after its session', 'bound');
}

# Between CW and PR neither covers the other: what was granted beside the new mode
# can conflict with the old one.
{
	my $token = $caller->query_safe("SELECT dlock_acquire('cross', 'me', '1 h', mode => 'CW')");

	$caller->ask("SELECT dlock_convert('cross', $token, 'PR'), pg_sleep(600)");
	wait_until(sub { $monitor->query_safe("SELECT mode FROM dlock_leases WHERE name = 'cross'") eq 'shared' });
	isnt($next->query_safe("SELECT dlock_acquire('cross', 'next', '1 h', mode => 'PR')"), '', 'CW to PR: a reader beside it');
	$monitor->query_safe('SELECT pg_cancel_backend(' . $caller->pid . ')');
	is($caller->answer, 'ERROR 57014', 'CW to PR: cancelled');
	is($monitor->query_safe("SELECT string_agg(owner || ' ' || mode, ',') FROM dlock_leases WHERE name = 'cross'"),
		'next shared', 'CW to PR: the lease ends rather than conflict');
	$next->query_safe("SELECT dlock_release('cross', 'next')");
	is_free('CW to PR', 'cross');
}

# One more hold is not there; a renewal stands, with the token that is known.
ok( wait_until(
		sub {
			$caller->query_safe("SELECT dlock_release_all('me')");
			$caller->query_safe("SELECT dlock_acquire('twice', 'me', '10 min')");
			return timed_out("SELECT dlock_acquire('twice', 'me', '10 min', reentry => 'count')", 1);
		}),
	'entered again: cut off');
my $hours = 0;
ok(wait_until(sub { timed_out("SELECT dlock_renew('twice', 'me', '" . ++$hours . " h')", 1) }), 'renewed: cut off');
is($monitor->query_safe("SELECT holds FROM dlock_leases WHERE name = 'twice' AND remaining > interval '1 h' * ($hours - 0.5)"),
	1, 'renewed, and held once');
is($caller->query_safe("SELECT dlock_release('twice', 'me')"), 't', 'released once');
is_free('entered again', 'twice');

# What was entered again and released in the statement is held as before it: the
# release has taken back one hold, and the cancel takes back no other.
$caller->query_safe(<<'EOC');
CREATE FUNCTION enter(name text, entries int, releases int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dlock_acquire(name, 'me', '10 min', reentry => 'count') FROM generate_series(1, entries);
	PERFORM dlock_release(name, 'me') FROM generate_series(1, releases);
	PERFORM pg_sleep(600);
END $$;
EOC
foreach my $case ([ 1, 1, 1 ], [ 3, 2, 2 ], [ 2, 1, 2 ])
{
	my ($entries, $releases, $left) = @$case;

	$caller->query_safe("SELECT dlock_acquire('again', 'me', '10 min', reentry => 'count') FROM generate_series(1, 2)")
	  if $left == 2;
	$caller->query_safe("SELECT dlock_acquire('again', 'me', '10 min')") if $left == 1;
	is(cancelled_asleep($caller, "SELECT enter('again', $entries, $releases)"),
		'ERROR 57014', "entered $entries times, released $releases times: cut off");
	is($monitor->query_safe("SELECT holds FROM dlock_leases WHERE name = 'again'"),
		$left, "entered $entries times, released $releases times: held as before");
	$caller->query_safe("SELECT dlock_release_all('me')");
}
is_free('entered again and released', 'again');

# Granted and converted in one statement.
is( cancelled_asleep($caller, "SELECT dlock_convert('both', dlock_acquire('both', 'me', '10 min', mode => 'CR'), 'EX'), pg_sleep(600)"),
	'ERROR 57014', 'granted and converted: cut off');
is_free('granted and converted', 'both');

# ---------------------------------------------------------------------------
# Patterns
# ---------------------------------------------------------------------------

# A time slot is not spent.
my $first = 'first-' . timed_out("SELECT dlock_once('first-N', '10000 days')");
isnt($first, 'first-0', 'time slot: cut off');
isnt($caller->query_safe("SELECT dlock_once('$first', '10000 days')"), '', 'time slot: won by the next');
is($caller->query_safe("SELECT dlock_once('$first', '10000 days')"), '', 'time slot: once');

# Nor is the longer one forgotten that was won before.
my ($second, $long) = ('');
ok( wait_until(
		sub {
			$second = 'second-' . ++$number;
			$long = $caller->query_safe("SELECT dlock_once('$second', '10000 days')");
			return timed_out("SELECT dlock_once('$second', '1 ms')", 1);
		}),
	'a shorter slot: cut off');
is($caller->query_safe("SELECT dlock_once('$second', '10000 days')"), '', 'the longer slot: remembered');
my $record = "SELECT token FROM dlock_leases WHERE name = 'dlock:once/$second'";
is($monitor->query_safe($record), $long, 'the longer slot: its record is as before');
ok(wait_until(sub { my %slots = store_slots($node, $db); $slots{"dlock:once/$second"}{token} == $long }),
	'the longer slot: on the page, too');

# A member that does not know that it has joined, and partitions that it does not
# know of.
$caller->query_safe("SELECT dlock_group_create('g', 4)");
ok(timed_out("SELECT dlock_group_join('g', 'm', '10 min')"), 'joined: cut off');
is($monitor->query_safe('SELECT count(*) FROM dlock_group_members'), 0, 'joined: no member');
my $member;
ok( wait_until(
		sub {
			$member = $caller->query_safe("SELECT dlock_group_join('g', 'm', '10 min')");
			return timed_out("SELECT * FROM dlock_group_heartbeat('g', $member)", 1);
		}),
	'heartbeat: cut off');
is($monitor->query_safe('SELECT count(token) FROM dlock_group_partitions'), 0, 'heartbeat: no partition');
is($caller->query_safe("SELECT count(*) FROM dlock_group_heartbeat('g', $member)"), 4, 'heartbeat: all, the next time');
$caller->query_safe("SELECT dlock_group_leave('g', $member)");

# ---------------------------------------------------------------------------
# What is not undone
# ---------------------------------------------------------------------------

# Any other error; a cancel that is caught; what was answered before.
like($caller->query("SELECT dlock_acquire('kept', 'me', '1 h'), 1 / (random() * 0)::int"), qr/^ERROR 22012/, 'another error');
is($monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'kept'"), 1, 'another error: held');
$caller->query_safe(<<'EOC');
CREATE FUNCTION catch(name text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	kept bigint := dlock_acquire(name || '-kept', 'me', '1 h');
BEGIN
	BEGIN
		PERFORM pg_catalog.set_config('commit_delay', '100000', true);
		PERFORM dlock_acquire(name || '-lost', 'me', '1 h');
		PERFORM pg_sleep(600);
	EXCEPTION WHEN query_canceled THEN
	END;
	RETURN (SELECT string_agg(l.name, ' ' ORDER BY l.name) FROM dlock_leases l WHERE l.name LIKE 'caught%');
END $$;
EOC
ok( wait_until(
		sub {
			my $before = grants();
			$caller->query_safe("SELECT dlock_release_all('me'); SET statement_timeout = '50 ms'");
			my $caught = $caller->query("SELECT catch('caught')");
			reset_timeout();
			return $caught eq 'caught-kept' && grants() == $before + 2;
		}),
	'a cancel that is caught undoes what the function it met was granted, and no more');

# A procedure has the answer when the function returns.
is(cancelled_asleep($caller, "DO \$\$ BEGIN PERFORM dlock_acquire('done', 'me', '1 h'); PERFORM pg_sleep(600); END \$\$"),
	'ERROR 57014', 'a block: cut off');
is($monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE name = 'done'"), 1, 'a block: held');
$caller->query_safe("SELECT dlock_release_all('me')");

# ---------------------------------------------------------------------------
# At any moment
# ---------------------------------------------------------------------------

# What a client has learned of is what there is.  Each statement acquires several
# locks, so that most cancels meet it at work.
my $cancelled = 0;
foreach my $round (1 .. 10)
{
	# How many that are depends on the machine.
	last if $cancelled > 20;

	my ($statements, $locks) = (1500, 40);
	my $file = PostgreSQL::Test::Utils::tempdir . '/acquire.sql';
	my ($out, $err) = ('', '');

	open my $fh, '>', $file or die;
	print $fh "SET synchronous_commit = off; SET application_name = 'victim';\n";
	print $fh "SELECT 'r$_' FROM (SELECT count(dlock_acquire('r$_-' || i, 'me', '1 h')) FROM generate_series(1, $locks) i) s;\n" foreach 1 .. $statements;
	close $fh;
	my $victim = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr($db), '-f', $file ], '>', \$out, '2>', \$err);
	my $pid;

	# A cancel that met the settings would belong to none of the statements.
	wait_until(sub { $pid = $monitor->query_safe("SELECT pid FROM pg_stat_activity WHERE application_name = 'victim' AND query LIKE 'SELECT ''r%'") });
	while ($victim->pumpable)
	{
		$monitor->query_safe("SELECT count(pg_sleep(random() / 1000)), count(pg_cancel_backend($pid)) FROM generate_series(1, 20) WHERE EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)");
		eval { $victim->pump_nb };
	}
	$victim->finish;
	my $failed = () = $err =~ /canceling statement/g;
	my $answered = () = $out =~ /^r/mg;
	note "$failed of $statements cancelled";
	is($answered + $failed, $statements, 'at any moment: each is answered or cancelled');
	$cancelled += $failed;
	my $known = join ',', grep { /^r/ } split ' ', $out;
	$monitor->query_safe("DROP TABLE IF EXISTS known; CREATE TEMP TABLE known AS SELECT n || '-' || i AS name FROM unnest('{$known}'::text[]) n, generate_series(1, $locks) i");
	is( $monitor->query_safe(
			"SELECT count(*) FILTER (WHERE l.name IS NULL), count(*) FILTER (WHERE k.name IS NULL) FROM (SELECT name FROM dlock_leases WHERE owner = 'me') l FULL JOIN known k USING (name)"),
		'0|0', 'held is what was answered, and nothing else');
	$monitor->query_safe("SELECT dlock_release_all('me')");
}
cmp_ok($cancelled, '>', 20, 'some are cancelled');

# ---------------------------------------------------------------------------
# Afterwards
# ---------------------------------------------------------------------------

my $rest = "SELECT string_agg(name, ' ') FROM dlock_leases WHERE name NOT LIKE 'dlock:once/%'";
is($monitor->query_safe($rest), '', 'nothing else is left in memory');
ok(wait_until(sub { my %slots = store_slots($node, $db); !grep { !m{^dlock:once/} } keys %slots }), 'nor on disk');
$node->restart;
is($node->safe_psql($db, $rest), '', 'nor after a restart');
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:/, 'no panic');
done_testing();
