# Proves: whoever asks for locks in any order, one by one or several at once, is never told of
# a deadlock that is none; all or none are held, by one owner at a time; and of a deadlock one
# owner is told, and the others go on.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockQueue;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main');
my $db = 'postgres';
my $ctl = DLockSession->new($node, $db, name => 'control');
my @s = open_sessions($node, $db, 8, name => 's');

# Nobody waits or holds anything.
sub clean
{
	my ($test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	queues_are_empty($ctl, "$test_name: nobody waits");
	$ctl->query_safe("SELECT dlock_force_release(name, 'test') FROM dlock_leases");
	is($ctl->query_safe('SELECT count(*) FROM dlock_leases'), 0, "$test_name: nobody holds");
	return;
}

# What a session was told besides its answer, but for what a look at the leases warns of:
# a process that did not get to run kept a part of them locked.
sub odd
{
	my ($answer) = @_;

	return $answer->{err} =~ s/^WARNING:  01000: \d+ of \d+ parts of the memory of leases were left out\nDETAIL:  .*\nHINT:  .*\nLOCATION:  .*(?:\n|\z)//gmr;
}

# Any names in any order: never an error, all or none, one holder at a time.
# Advisory locks tell whether two hold one name.
{
	$ctl->query_safe(<<'EOC');
CREATE FUNCTION storm(who text, seconds float8, p_wait interval, OUT got int, OUT refused int, OUT wrong text) LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + seconds * interval '1 s';
	names text[];
	tokens bigint[];
BEGIN
	got := 0;
	refused := 0;
	WHILE clock_timestamp() < until OR got < 13 LOOP
		SELECT array_agg('storm-' || i ORDER BY random()) INTO names
			FROM (SELECT i FROM generate_series(1, 10) i ORDER BY random() LIMIT 1 + random() * 4) s;
		tokens := dlock_acquire_all(names, who, '1 h', p_wait);
		IF tokens IS NULL THEN
			refused := refused + 1;
			IF EXISTS (SELECT FROM dlock_leases WHERE owner = who) THEN
				wrong := 'refused, but holds something';
				RETURN;
			END IF;
			CONTINUE;
		END IF;
		got := got + 1;
		IF (SELECT count(*) FROM unnest(names, tokens) u(n, t) WHERE dlock_check(n, t)) <> cardinality(names)
			OR array_position(tokens, NULL) IS NOT NULL THEN
			wrong := 'granted, but does not hold ' || names::text || ' by ' || tokens::text;
			RETURN;
		END IF;
		IF (SELECT bool_or(NOT pg_try_advisory_lock(hashtext(n))) FROM unnest(names) n) THEN
			wrong := 'two hold one of ' || names::text;
			RETURN;
		END IF;
		IF random() < 0.2 THEN
			PERFORM pg_sleep(0.002);
		END IF;
		PERFORM pg_advisory_unlock_all();
		IF random() < 0.5 THEN
			PERFORM dlock_release_all(who);
		ELSE
			PERFORM dlock_release_token(n, t) FROM unnest(names, tokens) u(n, t);
		END IF;
	END LOOP;
END $$;
EOC
	foreach my $wait ('NULL', "'5 ms'", "'0'")
	{
		$_->ask("SET deadlock_timeout = '20 ms'; SET synchronous_commit = off; SELECT * FROM storm('$_->{name}', 1, $wait)") foreach @s[ 0 .. 7 ];
		my ($got, $refused) = (0, 0);
		foreach my $session (@s[ 0 .. 7 ])
		{
			my $answer = $session->result;
			is(odd($answer), '', "storm, wait $wait: no error");
			my ($of_got, $of_refused, $wrong) = split /\|/, $answer->{out}, -1;
			is($wrong, '', "storm, wait $wait: all or none, and exclusive");
			$got += $of_got // 0;
			$refused += $of_refused // 0;
		}
		note "storm, wait $wait: $got granted, $refused refused";
		cmp_ok($got, '>', 100, "storm, wait $wait: granted");
		is($refused, 0, "storm, wait $wait: nobody is refused") if $wait eq 'NULL';
		cmp_ok($refused, '>', 0, "storm, wait $wait: some are refused") if $wait eq "'0'";
		clean("storm, wait $wait");
	}

	# Single locks, each session in ascending order of the names, so no deadlock,
	# with calls for several in any order among them.
	$ctl->query_safe(<<'EOC');
CREATE FUNCTION climb(who text, seconds float8) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + seconds * interval '1 s';
	n int := 0;
BEGIN
	WHILE clock_timestamp() < until OR n < 6 LOOP
		FOR i IN 1 .. 10 LOOP
			IF random() < 0.4 THEN
				PERFORM dlock_acquire('storm-' || i, who, '1 h', NULL);
			END IF;
		END LOOP;
		PERFORM dlock_release_all(who);
		n := n + 1;
	END LOOP;
	RETURN n;
END $$;
EOC
	$_->ask("SELECT climb('$_->{name}', 2)") foreach @s[ 0 .. 3 ];
	$_->ask("SELECT * FROM storm('$_->{name}', 2, NULL)") foreach @s[ 4 .. 7 ];
	my @answers = map { $_->result } @s[ 0 .. 7 ];
	is(join('', map { odd($_) } @answers), '', 'storm among holders of some: no error');
	my $rounds = 0;
	$rounds += $_->{out} || 0 foreach @answers[ 0 .. 3 ];
	cmp_ok($rounds, '>', 20, 'storm among holders of some: they go on');
	is(join('', map { (split /\|/, $_->{out}, -1)[2] // '?' } @answers[ 4 .. 7 ]), '', 'storm among holders of some: all or none');
	clean('storm among holders of some');
}

# Random orders of single locks do meet deadlocks; each is told to one, and all
# others go on.
{
	$ctl->query_safe(<<'EOC');
CREATE FUNCTION jumble(who text, seconds float8, OUT done int, OUT deadlocks int) LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + seconds * interval '1 s';
BEGIN
	done := 0;
	deadlocks := 0;
	WHILE clock_timestamp() < until OR done = 0 LOOP
		BEGIN
			PERFORM dlock_acquire('jumble-' || i, who, '1 h', NULL, mode => CASE WHEN random() < 0.5 THEN 'shared' ELSE 'exclusive' END)
				FROM (SELECT i FROM generate_series(1, 4) i ORDER BY random() LIMIT 3) s;
			done := done + 1;
		EXCEPTION WHEN deadlock_detected THEN
			deadlocks := deadlocks + 1;
		END;
		PERFORM dlock_release_all(who);
	END LOOP;
END $$;
EOC
	$_->ask("SET deadlock_timeout = '10 ms'; SELECT * FROM jumble('$_->{name}', 1.5)") foreach @s[ 0 .. 5 ];
	my ($done, $deadlocks) = (0, 0);
	foreach my $session (@s[ 0 .. 5 ])
	{
		my $answer = $session->result;
		is($answer->{err}, '', 'jumble: no other error');
		my ($of_done, $of_deadlocks) = split /\|/, $answer->{out};
		cmp_ok($of_done, '>', 0, 'jumble: it gets on');
		$done += $of_done;
		$deadlocks += $of_deadlocks;
	}
	note "jumble: $done done, $deadlocks deadlocks";
	cmp_ok($deadlocks, '>', 0, 'jumble: there were deadlocks');
	clean('jumble');
}

$_->quit foreach @s, $ctl;
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|invalid page/, 'nothing odd in the log');
done_testing();
