# Proves: under load, with waiters at all places of the queues cancelled, timed out
# and terminated at any moment, no lock gets stuck, no grant is lost or doubled, no
# two hold what one may hold, tokens go up, and no memory is lost.
#
#   DLOCK_STRESS_SECONDS   how long (10)
#   DLOCK_SEED             the choices of another run

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockQueue;
use DLockSession;
use DLockTest;
use List::Util qw(shuffle);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $seconds = $ENV{DLOCK_STRESS_SECONDS} // 10;
my $clients = 16;
seed_random();

my $node = start_node('main', conf => <<'EOC');
dlock.max_memory = 2MB
deadlock_timeout = 100ms
synchronous_commit = off
max_connections = 60
log_min_messages = panic
EOC
my $db = 'postgres';
my $ctl = DLockSession->new($node, $db, name => 'control');
my $killer = DLockSession->new($node, $db, name => 'killer');

$ctl->query_safe(<<'EOC');
-- Acquire until it is refused; returns how many there are then.
CREATE FUNCTION fill() RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 100000 LOOP
		BEGIN
			PERFORM dlock_acquire('fill-' || i, 'filler', '1 h');
		EXCEPTION WHEN configuration_limit_exceeded THEN
			RETURN i - 1;
		END;
	END LOOP;
END $$;

CREATE TABLE counter (name text PRIMARY KEY, value bigint NOT NULL);
CREATE TABLE entry (name text, value bigint, token bigint, PRIMARY KEY (name, value));
INSERT INTO counter SELECT unnest('{x0, x1, x2, p}'::text[]), 0;

-- What a holder does.  Advisory locks, which know nothing of leases, tell whether
-- anybody is there who must not be; and an increment in several steps is lost, if
-- two do it at a time.  Returns what is wrong.
CREATE FUNCTION inside(way text, names text[], tokens bigint[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	alone bool := true;
	v bigint;
	wrong text := '';
BEGIN
	IF way = 'exclusive' THEN
		SELECT bool_and(pg_try_advisory_lock(hashtext(n))) INTO alone FROM unnest(names) n;
	ELSIF way = 'shared' THEN
		SELECT bool_and(pg_try_advisory_lock_shared(hashtext(n))) INTO alone FROM unnest(names) n;
	ELSIF way = 'permit' THEN
		alone := pg_try_advisory_lock(1, 1) OR pg_try_advisory_lock(1, 2) OR pg_try_advisory_lock(1, 3);
	ELSE
		-- A path: others below its first part may be there.
		alone := pg_try_advisory_lock_shared(hashtext('p')) AND
			CASE WHEN way = 'path shared' THEN pg_try_advisory_lock_shared(hashtext(names[1]))
			ELSE pg_try_advisory_lock(hashtext(names[1])) END;
	END IF;
	IF NOT alone THEN
		wrong := 'not alone in ' || names::text;
	END IF;
	IF way = 'exclusive' THEN
		FOR i IN 1 .. cardinality(names) LOOP
			SELECT value INTO v FROM counter WHERE name = names[i];
			INSERT INTO entry VALUES (names[i], v + 1, tokens[i]);
			PERFORM pg_sleep(random() * 0.001);
			UPDATE counter SET value = v + 1 WHERE name = names[i];
		END LOOP;
	ELSE
		PERFORM pg_sleep(random() * 0.003);
	END IF;
	RETURN wrong;
END $$;
EOC

# Memory is cut up for one size of things at a time, for good, so each size that
# will be needed has to be there at both times.
my @sessions = open_sessions($node, $db, $clients, name => 'c');
$ctl->query_safe(<<'EOC');
SELECT dlock_acquire_path('p/a', 'warm', '1 h');
SELECT dlock_acquire_all('{x0, x1, x2}', 'warm', '1 h');
SELECT dlock_acquire('s', 'warm', '1 h', permits => 3);
EOC
enqueue($ctl, $sessions[0], "SELECT dlock_acquire_all('{p, x0}', 'warmer', '1 h', '10 s')");
$ctl->query_safe("SELECT dlock_release_all('warm')");
$sessions[0]->result;
my $warm = $ctl->query_safe(
	"SELECT dlock_acquire('x1', 'warm', '1 h', mode => 'shared'); SELECT dlock_acquire('x1', 'warmer', '1 h', mode => 'shared')");
$warm =~ s/\n.*//s;
enqueue($ctl, $sessions[0], "SELECT dlock_convert('x1', $warm, 'exclusive', '10 s')");
$ctl->query_safe("SELECT dlock_release('x1', 'warmer')");
$sessions[0]->result;
$ctl->query_safe("SELECT dlock_release_all('warm')");
$ctl->query_safe("SELECT dlock_release_all('warmer')");
my $before = $ctl->query_safe('SELECT fill()');
$ctl->query_safe("SELECT dlock_release_all('filler')");

# ---------------------------------------------------------------------------
# Clients
# ---------------------------------------------------------------------------

my (%count, @wrong, %seen);
my $latest = 0;
my $requests = 0;
my @clients = map { { session => $_, step => 'idle' } } @sessions;

sub pick
{
	return $_[ int rand @_ ];
}

sub wrong
{
	my ($what) = @_;

	push @wrong, $what if @wrong < 20;
	return;
}

# A client begins: choose what it asks for.
sub begin
{
	my ($client) = @_;
	my $owner = 'r' . ++$requests;
	my $wait = pick("'0'", "'10 ms'", "'100 ms'", 'NULL', 'NULL', 'NULL');
	my $x = pick('x0', 'x0', 'x0', 'x1');
	my $kind = pick(qw(exclusive exclusive exclusive shared shared convert all path permit short bound));
	my $ttl = "'1 h'";
	my $more = '';
	my $sql;

	%$client = (session => $client->{session}, owner => $owner, kind => $kind, names => [$x], bind => 0);
	if ($kind eq 'all')
	{
		my %names = map { pick('x0', 'x1', 'x2', 'p') => 1 } 1 .. 3;
		$client->{names} = [ shuffle(sort keys %names) ];
		$sql = "SELECT array_to_string(dlock_acquire_all('{" . join(',', @{ $client->{names} }) . "}', '$owner', $ttl, $wait), ' ')";
		$client->{way} = 'exclusive';
	}
	elsif ($kind eq 'path')
	{
		my $mode = pick('exclusive', 'shared');
		$client->{names} = [ pick('p/a', 'p/b') ];
		$sql = "SELECT dlock_acquire_path('$client->{names}[0]', '$owner', $ttl, $wait, '$mode')";
		$client->{way} = "path $mode";
	}
	else
	{
		my $mode = $kind eq 'shared' || $kind eq 'convert' ? 'shared' : 'exclusive';
		$client->{way} = $mode;
		if ($kind eq 'permit')
		{
			$client->{names} = ['s'];
			$client->{way} = 'permit';
			$more = ', permits => 3';
		}
		elsif ($kind eq 'short')
		{
			$ttl = "'20 ms'";
		}
		elsif ($kind eq 'bound')
		{
			$more = ", bind => 'session'";
			$client->{bind} = 1;
		}
		$sql = "SELECT dlock_acquire('$client->{names}[0]', '$owner', $ttl, $wait, '$mode'$more)";
	}
	if (rand() < 0.15)
	{
		# Setting it back is limited by it, too.
		$sql = "SET statement_timeout = " . int(1 + rand 60) . ";\n$sql" . ";\nRESET statement_timeout" x 3;
	}
	$client->{latest} = $latest;
	ask($client, 'acquire', $sql);
	return;
}

sub ask
{
	my ($client, $step, $sql) = @_;

	$client->{step} = $step;
	$client->{session}->ask($sql);
	return;
}

# Tokens that a client was given.
sub given
{
	my ($client, @tokens) = @_;

	foreach my $token (@tokens)
	{
		wrong("token $token was given twice") if $seen{$token}++;
		wrong("token $token after $client->{latest}") if $token <= $client->{latest};
		$latest = $token if $token > $latest;
	}
	$client->{tokens} = [@tokens];
	return;
}

sub go_inside
{
	my ($client) = @_;

	ask($client, 'inside', "SELECT inside('$client->{way}', '{" . join(',', @{ $client->{names} }) . "}', '{"
		  . join(',', @{ $client->{tokens} }) . "}');\nSELECT pg_advisory_unlock_all()");
	return;
}

# Let go, all that it was given.  Any of the ways must do.
sub release
{
	my ($client) = @_;
	my @names = @{ $client->{names} };
	my @tokens = @{ $client->{tokens} };
	my $way = int rand 3;
	my $sql =
	    $way == 0 ? "SELECT dlock_release_all('$client->{owner}') = " . @names
	  : $way == 1 ? 'SELECT ' . join ' AND ', map { "dlock_release_token('$names[$_]', $tokens[$_])" } 0 .. $#names
	  : 'SELECT ' . join ' AND ', map { "dlock_release('$_', '$client->{owner}')" } @names;

	ask($client, 'release', $sql);
	return;
}

# A client has been answered.
sub go_on
{
	my ($client) = @_;
	my $step = $client->{step};
	my $answer = $client->{session}->result;
	my $failed = $answer->{failed};

	$count{"$step $answer->{state}"}++ if $failed;
	if ($answer->{gone})
	{
		bury($client);
	}
	elsif ($step eq 'acquire' && $failed)
	{
		# What its end came too late for would be left.  It is not if only what comes
		# after the call has failed.
		$client->{told} = $answer->{out} ne '';
		wrong("acquire: $answer->{err}") if $answer->{state} ne '57014';
		ask($client, 'tidy', "SELECT dlock_release_all('$client->{owner}')");
	}
	elsif ($step eq 'tidy')
	{
		$failed ? ask($client, 'tidy', "SELECT dlock_release_all('$client->{owner}')") : end($client);
		$count{left}++ if !$failed && $answer->{out} ne '0' && !$client->{told};
	}
	elsif ($step eq 'acquire')
	{
		$count{"$client->{kind} " . ($answer->{out} eq '' ? 'refused' : 'granted')}++;
		return end($client) if $answer->{out} eq '';
		given($client, split / /, $answer->{out});
		return end($client) if $client->{kind} eq 'short';
		if ($client->{kind} eq 'bound' && rand() < 0.2)
		{
			return ask($client, 'suicide', 'SELECT pg_terminate_backend(pg_backend_pid())');
		}
		go_inside($client);
	}
	elsif ($step eq 'inside')
	{
		# A cancel that was meant for its wait may come as late as this.
		wrong("inside: $answer->{err}") if $failed && $answer->{state} ne '57014';
		wrong($1) if $answer->{out} =~ /^(not.*)/;
		return ask($client, 'unlock', 'SELECT pg_advisory_unlock_all()') if $failed;
		after_inside($client);
	}
	elsif ($step eq 'unlock')
	{
		return ask($client, 'unlock', 'SELECT pg_advisory_unlock_all()') if $failed;
		after_inside($client);
	}
	elsif ($step eq 'convert')
	{
		my $upgrade = $client->{way} eq 'shared';

		wrong("convert: $answer->{err}") if $failed && $answer->{state} !~ /^(?:57014|40P01)$/;
		$client->{converted}++;
		if ($failed)
		{
			# It holds what it held, unless its end came too late.
			return ask($client, 'which', "SELECT token, mode FROM dlock_leases WHERE owner = '$client->{owner}'");
		}
		$count{$upgrade ? 'convert up' : 'convert down'}++ if $answer->{out} ne '';
		$count{'convert refused'}++ if $answer->{out} eq '';
		if ($answer->{out} ne '')
		{
			given($client, $answer->{out}) if $upgrade;
			wrong("a downgrade gives another token") if !$upgrade && $answer->{out} != $client->{tokens}[0];
			$client->{way} = $upgrade ? 'exclusive' : 'shared';
		}
		go_inside($client);
	}
	elsif ($step eq 'which')
	{

		# The view warns if it leaves something out, which a process that was stopped keeps locked.
		return ask($client, 'which', "SELECT token, mode FROM dlock_leases WHERE owner = '$client->{owner}'")
		  if $failed || $answer->{err} =~ /WARNING/;
		my ($token, $mode) = split /\|/, $answer->{out};
		if (!defined $mode)
		{
			wrong("a conversion that failed has lost the lease of $client->{owner}");
			return end($client);
		}
		$count{left}++ if $mode ne $client->{way};
		$client->{way} = $mode;
		$client->{tokens} = [$token];
		go_inside($client);
	}
	elsif ($step eq 'release')
	{
		if ($failed)
		{
			$client->{unsure} = 1;
			return release($client);
		}
		wrong("release of $client->{owner}, $client->{kind}: '$answer->{out}'") if $answer->{out} ne 't' && !$client->{unsure};
		$count{released}++;
		end($client);
	}
	else
	{
		wrong("$step: $answer->{out} $answer->{err}");
		end($client);
	}
	return;
}

sub after_inside
{
	my ($client) = @_;

	if ($client->{kind} eq 'convert' && !$client->{converted}
		|| $client->{kind} eq 'exclusive' && !$client->{converted} && rand() < 0.2)
	{
		my $mode = $client->{way} eq 'shared' ? 'exclusive' : 'shared';
		my $wait = pick("'0'", "'50 ms'", 'NULL');
		$client->{latest} = $latest;
		return ask($client, 'convert', "SELECT dlock_convert('$client->{names}[0]', $client->{tokens}[0], '$mode', $wait)");
	}
	release($client);
	return;
}

sub end
{
	my ($client) = @_;

	$client->{step} = 'idle';
	return;
}

# A session has ended: what it held goes on, unless bound to it.  While it was
# waiting it must not have been given anything.
sub bury
{
	my ($client) = @_;
	my $step = $client->{step};

	wait_gone($client->{session}{pid});
	$client->{session}->quit;
	my $held = $ctl->query_safe("SELECT dlock_release_all('$client->{owner}')");
	$count{left}++ if $step eq 'acquire' && !$client->{bind} && $held;
	wrong("a bound lease of $client->{owner} outlives its session, $step") if $client->{bind} && $held;
	wrong("$client->{owner} held nothing when terminated, $step")
	  if !$client->{bind} && !$held && $step =~ /^(?:inside|unlock|convert|which)$/;
	$client->{session} = DLockSession->new($node, $db, name => 'c');
	end($client);
	return;
}

# ---------------------------------------------------------------------------
# The run
# ---------------------------------------------------------------------------

# End the wait of somebody, at any place of a queue.
sub strike
{
	my $name = pick('x0', 'x0', 'x1', 's', 'p', 'p/a');
	my $place = pick('position', 'position DESC', 'random()');
	my $what = rand() < 0.12 ? 'pg_terminate_backend' : 'pg_cancel_backend';

	$killer->ask("SELECT '$what', count($what(pid)) FROM (SELECT pid FROM dlock_waiters WHERE name = '$name' ORDER BY $place LIMIT 1) victim");
	return;
}

# All of it has to happen, or this shows little; a slow machine takes longer.
my @needed = (
	'released', 'exclusive granted', 'exclusive refused', 'shared granted', 'all granted', 'path granted', 'permit granted',
	'short granted', 'bound granted', 'convert up', 'convert down', 'acquire 57014', 'acquire 57P01', 'pg_cancel_backend');
my $end = mono_now() + $seconds;
my $over = 0;
my $next_strike = 0;
my $given_up = 0;
while (1)
{
	my $now = mono_now();

	if (!$over && $now > $end && (!(grep { !$count{$_} } @needed) || $now > $end + 200))
	{
		$over = 1;
		$end = $now;
	}

	if (!$over)
	{
		begin($_) foreach grep { $_->{step} eq 'idle' } @clients;
	}
	elsif (!grep { $_->{step} ne 'idle' } @clients)
	{
		last;
	}
	elsif ($now > $end + 300)
	{
		$given_up = 1;
		last;
	}

	if (!$killer->{pending} && $now > $next_strike && !$over)
	{
		strike();
		$next_strike = $now + rand 0.03;
	}
	foreach my $session (wait_any(0.01, $killer->{pending} ? $killer : (), map { $_->{session} } grep { $_->{step} ne 'idle' } @clients))
	{
		if ($session == $killer)
		{
			my $answer = $killer->result;
			wrong("killer: $answer->{err}") if $answer->{failed};
			my ($what, $n) = split /\|/, $answer->{out};
			$count{$what} += $n if defined $n;
			next;
		}
		my ($client) = grep { $_->{session} == $session } @clients;
		go_on($client);
	}
}
$killer->result if $killer->{pending};
note "$_: $count{$_}" foreach sort keys %count;
diag join ', ', map { "$_ " . ($count{$_} // 0) } 'released', 'pg_cancel_backend', 'pg_terminate_backend', 'convert up', 'all granted', 'left';

# ---------------------------------------------------------------------------
# What is left
# ---------------------------------------------------------------------------

is(join("\n", @wrong), '', 'nothing went wrong');
is($given_up, 0, 'every client came to an end')
  or diag("stuck:\n" . join("\n", map { "$_->{owner} $_->{kind} $_->{step}" } grep { $_->{step} ne 'idle' } @clients)
	  . "\nwaiters:\n" . $ctl->query_safe('SELECT name, owner, mode, request, position, blocked_by FROM dlock_waiters ORDER BY name, position')
	  . "\nleases:\n" . $ctl->query_safe('SELECT name, owner, mode, state, holds, token FROM dlock_leases'));
queues_are_empty($ctl, 'every queue is empty');

# Leases of a few milliseconds may be there still.
ok(wait_until(sub { $ctl->query_safe('SELECT count(*) FROM dlock_leases') eq '0' }), 'nothing is held')
  or diag($ctl->query_safe('SELECT name, owner, mode, state, holds, token FROM dlock_leases'));

is( $ctl->query_safe(
		"SELECT string_agg(name || ' ' || value, ',') FROM counter c WHERE value <> (SELECT count(*) FROM entry e WHERE e.name = c.name)"),
	'',
	'no increment was lost');
is( $ctl->query_safe(
		"SELECT count(*) FROM (SELECT token <= lag(token) OVER (PARTITION BY name ORDER BY value) AS down FROM entry) s WHERE down"),
	0,
	'tokens go up with the grants of a name');
foreach my $name ('x0', 'x1', 'x2', 'p', 's', 'p/a', 'p/b')
{
	isnt($ctl->query_safe("SELECT dlock_acquire('$name', 'last', '1 h')"), '', "$name is free");
}
$ctl->query_safe("SELECT dlock_release_all('last')");

# A cancel that comes between the grant and the answer leaves the grant; the
# waiting call itself gives it back.  So this is rare.
my $ended = ($count{pg_cancel_backend} // 0) + ($count{pg_terminate_backend} // 0) + ($count{'acquire 57014'} // 0);
cmp_ok($count{left} // 0, '<=', 2 + 0.02 * $ended, 'waits that were ended left no grant behind');

cmp_ok($count{$_} // 0, '>', 0, $_) foreach @needed;

$killer->quit;
@sessions = map { $_->{session} } @clients;
my $after = $ctl->query_safe('SELECT fill()');
note "room for $before leases before, for $after after";
cmp_ok($after, '>=', $before - 2 * $clients - 10, 'no memory is lost');
$ctl->query_safe("SELECT dlock_release_all('filler')");
$_->quit foreach @sessions;
$ctl->quit;

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|invalid page/, 'nothing odd in the log');
done_testing();
