# Proves: whatever is asked in whatever order, the answers are those of a plain
# model of the rules (test/lib/DLockModel.pm): several owners, all modes, permits,
# re-entry, conversions, paths, several names at once, deadlines, lock_delay and
# min_hold; and, of sessions that wait, by a call or by a place that they keep, who is granted
# what after each step.
#
#   DLOCK_MODEL_STEPS   how many (3000, and half as many with waiting)
#   DLOCK_SEED          the steps of another run

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock ();
use DLockFault;
use DLockModel;
use DLockSession;
use DLockTest;
use List::Util qw(any first shuffle);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $steps = $ENV{DLOCK_MODEL_STEPS} // 3000;
my $seed = seed_random();

# The clock jumps in steps of 10000 s, and deadlines are half-way between steps.
my $unit = 5000;
my $node = start_fault_node('main', conf => <<'EOC');
dlock.default_ttl = 25000s
dlock.max_ttl = 10d
deadlock_timeout = 50ms
synchronous_commit = off
EOC
my $db = 'postgres';
my ($model, $session, @sessions, @history, %seen);
my $latest = 0;
my $failures = 0;

# ---------------------------------------------------------------------------
# Comparing
# ---------------------------------------------------------------------------

sub wrong
{
	my ($what) = @_;

	$failures++;
	fail($what);
	diag("DLOCK_SEED=$seed; the last steps were\n  " . join("\n  ", @history > 25 ? @history[ -25 .. -1 ] : @history));
	return;
}

sub note_step
{
	my ($who, $sql) = @_;

	push @history, sprintf '%d: %s: %s', scalar @history, $who, $sql;
	return;
}

# Every token is above all that were given before it was asked for.
sub check_tokens
{
	my ($floor, @tokens) = @_;

	foreach my $token (@tokens)
	{
		wrong("token $token, after $floor") if $token !~ /^\d+$/ || $token <= $floor || $seen{$token}++;
		$latest = $token if $token > $latest;
	}
	return;
}

# An answer as a word: what it says, or its SQLSTATE.  Of what a place was granted, the token.
sub word_of
{
	my ($answer) = @_;

	return $answer->{failed} ? $answer->{state} : $answer->{out} =~ s/^[^|]*\|[^|]*\|//r;
}

sub advance
{
	my ($seconds) = @_;

	# A call ends when the lease would, so a jump takes it from a process that is late.
	DLockClock::settle($session);
	note_step('clock', "$seconds s");
	$model->advance($seconds);
	DLockClock::advance($seconds, $session);
	return;
}

sub compare_leases
{
	my ($from) = @_;
	my $query = <<"EOC";
SELECT name, owner, token, mode, permits, state, bind, CASE WHEN state = 'held' THEN round(extract(epoch FROM ttl)) END, round(extract(epoch FROM remaining) / $unit),
	CASE WHEN state = 'held' AND NOT is_intent THEN holds END, CASE WHEN NOT is_intent THEN payload END
FROM (SELECT *, EXISTS (SELECT FROM dlock_leases path WHERE path.token = l.token AND path.name LIKE l.name || '/%') AS is_intent FROM dlock_leases l) l
EOC
	my $shown;

	# It warns if it leaves something out, which a process that was stopped keeps locked.
	wait_until(sub { $shown = $from->query_safe($query); $from->{stderr} eq '' });
	my $expected = join "\n", $model->lease_lines($unit);
	my $got = join "\n", sort split /\n/, $shown;

	wrong("dlock_leases shows\n$got\nexpected\n$expected") if $got ne $expected;
	return;
}

sub compare_waiters
{
	my $query =
	  "SELECT name, owner, mode, permits, request, position, (SELECT string_agg(o, ',' ORDER BY o COLLATE \"C\") FROM unnest(blocked_by) o) FROM dlock_waiters";
	my $expected = join "\n", $model->waiter_lines;
	my $got;

	# A session that was asked may not have got there yet.
	wait_until(sub { ($got = join "\n", sort split /\n/, $session->query_safe($query)) eq $expected }, 10)
	  or wrong("dlock_waiters shows\n$got\nexpected\n$expected");
	return;
}

# ---------------------------------------------------------------------------
# Choosing
# ---------------------------------------------------------------------------

sub pick
{
	return $_[ int rand @_ ];
}

sub chance
{
	return rand() < $_[0];
}

my @mode_words = qw(exclusive exclusive shared shared NL CR CW PR PW EX);
my %mode_of = (exclusive => 'EX', shared => 'PR', map { $_ => $_ } qw(NL CR CW PR PW EX));
my @names = qw(n0 n1 n2 a a/b a/b/c a/d);
my @semaphores = qw(s0 s1 n2);
my @paths = qw(a/b a/b/c a/d a/b/e);
my @ttls = (15000, 25000, 45000, 95000);

sub pick_ttl
{
	return pick(@ttls);
}

# A request, and the SQL that makes it, but for how long it waits: that is where
# it says WAIT.  "state" is the error that its arguments are.
sub pick_request
{
	my ($owner, %params) = @_;
	my $kind = pick(('acquire') x 6, ('permit') x 2, ('path') x 2, 'all');
	my $ttl = chance(0.15) ? undef : pick_ttl();
	my $ttl_sql = defined $ttl ? "'$ttl s'" : 'NULL';
	my %request = (owner => $owner, reentry => 'deny', ttl => $ttl // 25000);
	my @more;

	if ($kind eq 'all')
	{
		my $mode = pick(@mode_words);
		my @of = (shuffle(@names))[ 0 .. int rand 4 ];
		push @of, pick(@semaphores) if chance(0.05);
		$request{items} = [ map { { name => $_, mode => $mode_of{$mode}, part => 'whole' } } @of ];
		my $state = any { my $name = $_; (grep { $_ eq $name } @of) > 1 } @of;
		return (\%request, "SELECT array_to_string(dlock_acquire_all('{" . join(',', @of) . "}', '$owner', $ttl_sql, WAIT, '$mode'), ' ')",
			$state ? '22023' : undef);
	}

	my $mode = pick(@mode_words);
	my $state;
	if (!$params{simple})
	{
		if (chance(0.4))
		{
			$request{reentry} = pick('count', 'return');
			push @more, "reentry => '$request{reentry}'";
		}
		if (chance(0.15))
		{
			$request{delay} = pick(10000, 20000);
			push @more, "lock_delay => '$request{delay} s'";
		}
		if (chance(0.15))
		{
			$request{min_hold} = pick(5000, 15000, 35000);
			push @more, "min_hold => '$request{min_hold} s'";
			$state = '22023' if $request{min_hold} > $request{ttl};
		}
		if (chance(0.1))
		{
			$request{bind} = 'session';
			push @more, "bind => 'session'";
			if (!defined $ttl)
			{
				$request{ttl} = undef;
				$state = undef;
			}
		}
		if (chance(0.2))
		{
			$request{payload} = int rand 1000;
			push @more, "payload => '$request{payload}'";
		}
	}
	if ($kind eq 'permit')
	{
		my $name = pick(@semaphores);
		my $permits = pick(1, 2, 2, 2, 2, 3);
		$request{permits} = $permits;
		$request{items} = [ { name => $name, mode => 'permit', part => 'whole' } ];
		push @more, "permits => $permits";
		if (chance(0.03))
		{
			push @more, "mode => 'shared'";
			$state = '22023';
		}
		return (\%request, join(', ', "SELECT dlock_acquire('$name', '$owner', $ttl_sql, WAIT", @more) . ')', $state);
	}
	if ($kind eq 'path')
	{
		my $path = pick(@paths);
		$request{items} = DLockModel::path_items($path, $mode_of{$mode});
		return (\%request, join(', ', "SELECT dlock_acquire_path('$path', '$owner', $ttl_sql, WAIT, '$mode'", @more) . ')', $state);
	}
	my $name = pick(@names);
	$request{items} = [ { name => $name, mode => $mode_of{$mode}, part => 'whole' } ];
	return (\%request, join(', ', "SELECT dlock_acquire('$name', '$owner', $ttl_sql, WAIT, '$mode'", @more) . ')', $state);
}

# A lease that is there, or was.
my @past;

sub pick_lease
{
	my ($owner) = @_;
	my @leases = grep { !defined $owner || $_->{owner} eq $owner } $model->leases;

	push @past, $leases[-1] if @leases && @past < 500;
	return pick(@leases) if @leases && chance(0.85);
	return pick(@past) if @past;
	return { name => pick(@names), owner => pick('o0', 'o1'), token => 1 };
}

# How to name a lease, in SQL and for the model; sometimes another one.
sub pick_by
{
	my ($lease) = @_;
	my $name = $lease->{name};

	if (chance(0.1))
	{
		# An ancestor of the path, or anything.
		$name = $name =~ m{^(.*)/} && chance(0.5) ? $1 : pick(@names);
	}
	return chance(0.5)
	  ? ($name, "('$name', '$lease->{owner}'", owner => $lease->{owner})
	  : ($name, "_token('$name', $lease->{token}", token => $lease->{token});
}

# ---------------------------------------------------------------------------
# One session, which never waits
# ---------------------------------------------------------------------------

my %done;

sub step
{
	my ($owner, $what) = @_;
	my ($sql, $expected);

	if ($what eq 'acquire')
	{
		my ($request, $text, $state) = pick_request($owner);
		my $decision = $state // $model->decide($request);
		my $floor = $latest;

		($sql = $text) =~ s/WAIT/'0'/;
		note_step($owner, $sql);
		my $answer = word_of($session->ask($sql)->result);
		$done{"acquire $decision"}++;
		if ($decision eq 'grant')
		{
			my $count = (any { $_->{part} ne 'whole' } @{ $request->{items} }) ? 1 : @{ $request->{items} };
			my @tokens = split / /, $answer;
			return wrong("$sql: $answer, expected $count tokens") if $answer !~ /^\d[\d ]*$/ || @tokens != $count;
			check_tokens($floor, @tokens);
			$model->grant($request, @tokens);
			return;
		}
		$expected =
		    $decision eq 'reenter' ? $model->reenter($request)->{token}
		  : $decision =~ /^(?:blocked|self)$/ ? ''
		  : $decision;
		wrong("$sql: '$answer', expected '$expected'") if $answer ne $expected;
		return;
	}
	if ($what eq 'convert')
	{
		my $lease = pick_lease();
		my ($name) = pick_by($lease);
		my $mode = pick(@mode_words);
		my $decision = $model->decide_convert($name, $lease->{token}, $mode_of{$mode});
		my $floor = $latest;

		$sql = "SELECT dlock_convert('$name', $lease->{token}, '$mode')";
		note_step($owner, $sql);
		my $answer = word_of($session->ask($sql)->result);
		$done{"convert $decision"}++;
		if ($decision eq 'grant')
		{
			check_tokens($floor, $answer);
			$model->convert($lease, $mode_of{$mode}, $answer) if $answer =~ /^\d+$/;
			return;
		}
		$expected = $decision eq 'keep' ? $lease->{token} : $decision eq 'blocked' ? '' : $decision;
		$model->convert($lease, $mode_of{$mode}, $lease->{token}) if $decision eq 'keep';
		wrong("$sql: '$answer', expected '$expected'") if $answer ne $expected;
		return;
	}
	if ($what eq 'release')
	{
		my ($name, $text, %by) = pick_by(pick_lease());

		$sql = "SELECT dlock_release$text)";
		$expected = $model->release($name, %by) ? 't' : 'f';
	}
	elsif ($what eq 'renew')
	{
		my ($name, $text, %by) = pick_by(pick_lease());
		my $ttl = chance(0.5) ? pick_ttl() : undef;

		$sql = "SELECT dlock_renew$text" . (defined $ttl ? ", '$ttl s'" : '') . ')';
		$expected = $model->renew($name, $ttl, %by) ? 't' : 'f';
	}
	elsif ($what eq 'check')
	{
		my ($name, undef, %by) = pick_by(my $lease = pick_lease());

		$sql = "SELECT dlock_check('$name', $lease->{token})";
		$expected = $model->find($name, token => $lease->{token}) ? 't' : 'f';
	}
	elsif ($what eq 'force')
	{
		my $name = pick(@names, @semaphores, 'a');

		$sql = "SELECT dlock_force_release('$name', 'test')";
		$expected = $model->force_release($name);
	}
	elsif ($what eq 'release_all')
	{
		$sql = "SELECT dlock_release_all('$owner')";
		$expected = $model->release_all($owner);
	}
	elsif ($what eq 'renew_all')
	{
		my $ttl = chance(0.5) ? pick_ttl() : undef;

		$sql = "SELECT dlock_renew_all('$owner'" . (defined $ttl ? ", '$ttl s'" : '') . ')';
		$expected = $model->renew_all($owner, $ttl);
	}
	note_step($owner, $sql);
	my $answer = word_of($session->ask($sql)->result);
	$done{"$what $expected"}++;
	wrong("$sql: '$answer', expected '$expected'") if $answer ne $expected;
	return;
}

$session = DLockSession->new($node, $db, name => 'driver');
$model = DLockModel->new;
for (my $i = 0; $i < $steps && !$failures; $i++)
{
	my $owner = 'o' . int rand 4;

	step($owner, pick(('acquire') x 45, ('release') x 20, ('renew') x 6, ('check') x 5, ('convert') x 12, 'force', 'release_all', 'renew_all'));
	advance(10000 * pick(1, 1, 1, 2, 3)) if chance(0.05);
	compare_leases($session) if $i % 10 == 0;
}
compare_leases($session) unless $failures;
is($failures, 0, "$steps steps of one session agree with the model");
note "$_: $done{$_}" foreach sort keys %done;
foreach my $what ('acquire grant', 'acquire reenter', 'acquire blocked', 'acquire self', 'acquire 22023', 'acquire 55000',
	'convert grant', 'convert keep', 'convert blocked', 'convert LK002', 'convert 55000', 'release t', 'release f', 'renew t', 'renew f', 'check t', 'check f')
{
	cmp_ok($done{$what} // 0, '>', $steps / 1000, $what);
}

# ---------------------------------------------------------------------------
# Sessions that wait
# ---------------------------------------------------------------------------


# Once to end them, once more to open what their delays keep closed.
$session->query_safe("SELECT dlock_force_release(name, 'test') FROM dlock_leases") foreach 1, 2;
$model = DLockModel->new;
$failures = 0;
@history = ();
%done = ();
@past = ();
@names = qw(n0 n1 a a/b a/b/c);
@semaphores = qw(s0);
@paths = qw(a/b a/b/c a/d);
@sessions = open_sessions($node, $db, 8, name => 'w');
my %request_of;

# A place waits though no call does.  Wait until this owner's call has it, or has taken it: a
# session that is told to cancel before its statement has begun does not notice.
sub listens
{
	my ($owner) = @_;

	wait_until(sub { $session->query_safe("SELECT count(*) FROM dlock_waiters WHERE owner = '$owner' AND kept_until IS NOT NULL") == 0 })
	  or wrong("$owner does not listen");
	return;
}

# Take the answers of those who are to be granted now, by the model.
sub settle
{
	my ($floor) = @_;

	while (my $request = $model->next_served)
	{
		my $of = first { ($request_of{ $_->{name} } // 0) == $request } @sessions;
		my @ready = wait_any(30, $of);

		return wrong("$of->{name} is to be granted now, and is not") unless @ready;
		my $answer = word_of($of->result);
		my @tokens = split / /, $answer;

		note_step($of->{name}, "answered '$answer'");
		$model->leave($request);
		delete $request_of{ $of->{name} };
		if ($request->{convert} && !$model->is_live($request->{convert}))
		{
			wrong("$of->{name}: '$answer', expected LK002") if $answer ne 'LK002';
			$done{'convert lost'}++;
			next;
		}
		return wrong("$of->{name}: '$answer', expected a token") if $answer !~ /^\d[\d ]*$/;
		check_tokens($floor, @tokens);
		$done{ $request->{convert} ? 'convert granted' : @{ $request->{items} } > 1 ? 'several granted' : 'granted' }++;
		if ($request->{convert})
		{
			$model->convert($request->{convert}, $request->{mode}, $tokens[0]);
		}
		else
		{
			$model->grant($request, @tokens);
		}
	}

	# And nobody else.
	if (my @others = grep { $_->{pending} && $_->answered } @sessions)
	{
		my $other = $others[0];
		wrong("$other->{name} answers '" . word_of($other->result) . "', and is to wait");
	}
	return;
}

# A session asks for something, and may wait for it.
sub ask
{
	my ($of) = @_;
	my $owner = $of->{name};
	my ($request, $sql, $decision, $convert);
	my $wait = pick("'0'", 'NULL', 'NULL', 'NULL', 'NULL', "'30 ms'");
	my $floor = $latest;

	if (chance(0.4) && (my @mine = grep { $model->is_live($_) && $_->{owner} eq $owner && $_->{mode} ne 'permit' && @{ $_->{parts} } == 1 } $model->leases))
	{
		my $lease = pick(@mine);
		my $mode = pick(@mode_words);
		$request = { owner => $owner, convert => $lease, mode => $mode_of{$mode} };
		$decision = $model->decide_convert($lease->{name}, $lease->{token}, $request->{mode});
		$sql = "SELECT dlock_convert('$lease->{name}', $lease->{token}, '$mode', WAIT)";
		$convert = $lease;
	}
	else
	{
		my $state;
		($request, $sql, $state) = pick_request($owner, simple => chance(0.7));
		return if $state || ($request->{bind} // '') ne '';
		$decision = $model->decide($request);
	}

	# It may keep a place, and take its turn.
	my $keeps = !$convert && $sql =~ /dlock_acquire\(/ && $wait ne "'0'" && chance(0.5);

	# What would wait in a ring, be it with itself, is left to another test.
	if ($decision eq 'blocked' && $wait ne "'0'")
	{
		$model->wait_for($request);
		my $ring = $model->has_ring;
		$model->leave($request);
		return if $ring;
	}
	return if $decision eq 'self';

	my $call = $keeps ? "'0'" : $wait;
	$sql =~ s/WAIT/$call/;
	$sql =~ s/\)$/, keep => '9 d')/ if $keeps;
	note_step($owner, $sql);
	$of->ask($sql);
	if ($decision eq 'blocked' && $wait ne "'0'")
	{
		$model->wait_for($request);
		$request_of{$owner} = $request;
		$done{ $convert ? 'convert waits' : $keeps ? 'keeps' : 'waits' }++;
		if ($keeps)
		{
			my $answer = word_of($of->result);
			wrong("$sql: '$answer', expected to keep a place") if $answer ne '';
			compare_waiters();
			$sql = "SELECT * FROM dlock_take('$owner', $wait, '" . ($wait eq 'NULL' ? '9 d' : '0') . "')";
			note_step($owner, $sql);
			$of->ask($sql);
			listens($owner);
			$request->{kept} = 1;
		}
		if ($wait ne 'NULL')
		{
			compare_waiters();
			advance(0.03);
			my $answer = word_of($of->result);
			wrong("$sql: '$answer', expected a time-out") if $answer ne '';
			$model->leave($request);
			delete $request_of{$owner};
			$done{'timed out'}++;
		}
		return;
	}
	my $answer = word_of($of->result);
	if ($decision eq 'grant' && $answer =~ /^\d[\d ]*$/)
	{
		my @tokens = split / /, $answer;
		check_tokens($floor, @tokens);
		$convert ? $model->convert($convert, $request->{mode}, $tokens[0]) : $model->grant($request, @tokens);
		return;
	}
	my $expected =
	    $decision eq 'reenter' ? $model->reenter($request)->{token}
	  : $decision eq 'keep' ? $convert->{token}
	  : $decision eq 'blocked' ? ''
	  : $decision;
	$model->convert($convert, $request->{mode}, $convert->{token}) if $decision eq 'keep';
	wrong("$sql: '$answer', expected '$expected'") if $answer ne $expected;
	return;
}

# In the first half whoever waits is told all that it has to know.  In the second
# half those who wait look for deadlocks whenever time passes, and at that occasion for what
# they have not been told.
my $waiting_steps = int $steps / 2;
$_->query_safe("SET deadlock_timeout = '20 d'") foreach @sessions;
for (my $i = 0; $i < $waiting_steps && !$failures; $i++)
{
	if ($i >= $waiting_steps / 2)
	{
		foreach my $of (grep { !$_->{pending} && !$_->{looks} } @sessions)
		{
			$of->query_safe("SET deadlock_timeout = '50 ms'");
			$of->{looks} = 1;
		}
	}
	my $floor = $latest;
	my @idle = grep { !$_->{pending} } @sessions;
	my @busy = grep { $_->{pending} } @sessions;
	my $way = rand;

	if ($way < 0.5 && @idle)
	{
		ask(pick(@idle));
	}
	elsif ($way < 0.85)
	{
		my $who = 'w' . int(1 + rand 8);
		my $what = pick(('release') x 12, 'renew', 'force', 'release_all');
		my @kept = grep { $request_of{$_}{kept} } keys %request_of;
		($who, $what) = (pick(sort @kept), 'release_all') if @kept && chance(0.05);
		my $request = $what eq 'release_all' ? $request_of{$who} : undef;
		my ($of) = grep { $_->{name} eq $who } @busy;

		# The owner's places are given up, too, and first.
		$request = undef unless $request && $request->{kept};
		$model->leave($request) if $request;
		step($who, $what);
		if ($request)
		{
			delete $request_of{$who};
			$session->query_safe("SELECT pg_cancel_backend($of->{pid})");
			my $answer = word_of($of->result);
			wrong("$who: '$answer' when nothing is left to be taken") if $answer ne '57014';
			$done{'given up'}++;
		}
	}
	elsif ($way < 0.93 && @busy)
	{
		my $of = pick(@busy);
		note_step($of->{name}, 'cancelled');
		$session->query_safe("SELECT pg_cancel_backend($of->{pid})");
		my $answer = word_of($of->result);
		wrong("$of->{name}: '$answer' when cancelled") if $answer ne '57014';
		$done{cancelled}++;
		my $request = $request_of{ $of->{name} };
		if ($request->{kept})
		{
			# Its place stays, until it is given up.
			compare_waiters();
			$done{'left alone'}++;
			my $again = chance(0.5) ? "NULL, '9 d'" : "'0', '0'";
			note_step($of->{name}, "takes again: $again");
			$of->ask("SELECT * FROM dlock_take('$of->{name}', $again)");
			if ($again =~ /NULL/)
			{
				listens($of->{name});
				next;
			}
			$answer = word_of($of->result);
			wrong("$of->{name}: '$answer' when it gives its place up") if $answer ne '';
		}
		delete $request_of{ $of->{name} };
		$model->leave($request);
	}
	elsif ($way < 0.98)
	{
		advance(10000 * pick(1, 1, 2, 3));
	}
	settle($floor) unless $failures;
	compare_waiters() unless $failures;
	compare_leases($session) unless $failures || $i % 5;
}
is($failures, 0, "$waiting_steps steps of sessions that wait agree with the model");
note "$_: $done{$_}" foreach sort keys %done;
foreach my $what ('waits', 'keeps', 'left alone', 'given up', 'granted', 'several granted', 'convert waits', 'timed out', 'cancelled')
{
	cmp_ok($done{$what} // 0, '>', 0, $what);
}

# Whoever waits still gets it in the end, or is to be cancelled.
if (!$failures)
{
	note_step('driver', 'end');
	foreach my $round (1 .. 50)
	{
		last if $failures || !$model->leases;

		# In one order, since each of them can be a grant to somebody else; and that
		# lease can be of a name that comes next.
		my %held = map { $_->{name} => 1 } $model->leases;
		foreach my $name (sort keys %held)
		{
			my $floor = $latest;

			note_step('driver', "force $name");
			$session->query_safe("SELECT dlock_force_release('$name', 'test')");
			$model->force_release($name);
			settle($floor);
			last if $failures;
		}
	}
	is(scalar(grep { $_->{pending} } @sessions), 0, 'all get what they wait for in the end');
}
$_->quit foreach $failures ? () : @sessions;
$session->quit;
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|invalid page/, 'nothing odd in the log');
done_testing();
