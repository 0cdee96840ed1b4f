# Proves: with many writers that are stopped beyond their leases, sleep within
# transactions, prepare them, and are killed at any moment, and a server that
# crashes amidst, transactions commit in the order of their tokens; and that they
# do not without the guard, so that this can fail.
#
#   DLOCK_STRESS_SECONDS   how long (10)
#   DLOCK_SEED             the choices of another run

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockFence;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = $ENV{DLOCK_STRESS_SECONDS} // 10;
my $writers = 16;
my $resources = 4;
my $enough = 5 * $seconds;    # that so many transactions commit is proof
seed_random();

# All of the log of the server's changes has to be there in the end.
my $node = start_node('main', conf => <<'EOC');
max_connections = 60
max_prepared_transactions = 40
deadlock_timeout = 100ms
synchronous_commit = off
wal_keep_size = 100GB
log_min_messages = panic
EOC
my $db = 'postgres';
my $control = DLockSession->new($node, $db, name => 'control');

$control->query_safe(<<'EOC');
CREATE TABLE journal (run text, resource text, token bigint, xid xid8 DEFAULT pg_current_xact_id());
CREATE TABLE journal_row (LIKE journal INCLUDING DEFAULTS);
CREATE TABLE journal_live (LIKE journal INCLUDING DEFAULTS);
CREATE FUNCTION nap(longest_ms int) RETURNS void LANGUAGE plpgsql AS
	$$ BEGIN PERFORM pg_sleep(random() * longest_ms / 1000); END $$;
EOC

# ---------------------------------------------------------------------------
# Writers
# ---------------------------------------------------------------------------

my (@sessions, %stopped, %count);
my ($run, $guarded, $serial) = ('', 0, 0);

# What a writer does in one go: psql runs it line by line, so that it can be
# stopped or killed in between.
sub round
{
	my $resource = 'res-' . int rand $resources;
	my $ttl = 5 + int rand 40;
	my $sql =
	  "SELECT coalesce(dlock_acquire('$resource', 'w' || pg_backend_pid(), '$ttl ms', wait => '60 ms'), 0) AS token \\gset\n"
	  . "SELECT :token > 0 AS granted \\gset\n\\if :granted\n";

	$sql .= transaction($resource) for 1 .. 1 + int rand 3;
	$sql .= "SELECT dlock_release_token('$resource', :token);\n" if rand() < 0.3;
	return "$sql\\endif\n";
}

sub transaction
{
	my ($resource) = @_;
	my $way = int rand 7;
	my $table = (qw(journal journal journal journal journal_row journal_live journal_live))[$way];
	my $insert = "INSERT INTO $table (run, resource, token) VALUES ('$run', '$resource', :token);\n";
	my $nap = 'SELECT nap(' . (rand() < 0.3 ? 80 : 10) . ");\n";
	my $sql = 'BEGIN ISOLATION LEVEL '
	  . ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')[ int rand 3 ] . ";\n";

	# Without the guard there is nothing to be presented.
	if ($guarded)
	{
		$sql .= "SELECT dlock_fence('$resource', :token);\n" if $way == 0;
		$sql .= "\\set tokens '$resource=' :token\nSET LOCAL dlock.tokens = :'tokens';\n" if $way == 1 || $way >= 5;
		$sql .= "SAVEPOINT s; SELECT dlock_fence('$resource', :token);\n${nap}ROLLBACK TO s;\n" if $way == 2;
		$sql .= "SAVEPOINT s; SELECT dlock_fence('$resource', :token); RELEASE s;\n" if $way == 3;
	}
	$sql .= rand() < 0.5 ? "$nap$insert" : "$insert$nap";
	$sql .= "SAVEPOINT t;\n$insert" . "ROLLBACK TO t;\n" if rand() < 0.2;
	my $end = rand;
	if ($end < 0.05 && $way < 5)
	{
		my $name = "p$$-" . ++$serial;
		return "${sql}PREPARE TRANSACTION '$name';\n";
	}
	return $sql . ($end < 0.2 ? "ROLLBACK;\n" : "COMMIT;\n");
}

sub start_writers
{
	push @sessions, open_sessions($node, $db, $writers - @sessions, name => 'w')
	  if @sessions < $writers;
	return;
}

# Count what has come of a round; the session may have ended.
sub collect
{
	my ($session) = @_;
	my $answer = $session->result;

	$count{$1}++ while $answer->{err} =~ /(?:ERROR|FATAL):  ([0-9A-Z]{5}): /g;

	# Who waits for its own lease is told of a deadlock by the extension, not by this.
	$count{deadlocks}++ while $answer->{err} =~ /LOCATION:  DeadLockReport/g;
	$count{rounds}++;
	return !$answer->{gone};
}

sub go_on
{
	my ($session) = @_;

	continue_process($session->{psql});
	delete $stopped{ $session->{psql} };
	return;
}

# Something that nobody has asked for.
sub disturb
{
	my ($session) = $sessions[ rand @sessions ];
	my $chance = rand;

	return if $stopped{ $session->{psql} };
	if ($chance < 0.9)
	{
		kill 'STOP', $session->{psql};
		$stopped{ $session->{psql} } = { session => $session, due => mono_now() + rand 0.15 };
		$count{stopped}++;
	}
	elsif ($chance < 0.94)
	{
		kill 'KILL', $session->{psql};
		$count{killed}++;
	}
	else
	{
		$control->query_safe("SELECT pg_terminate_backend($session->{pid})");
		$count{terminated}++;
	}
	return;
}

# Prepared transactions end some time later, by somebody else.
sub end_prepared
{
	my ($longest_ms) = @_;

	foreach my $name (
		split /\n/, $control->query_safe(
			"SELECT gid FROM pg_prepared_xacts WHERE prepared + random() * $longest_ms * interval '1 ms' <= clock_timestamp()"
		))
	{
		my $answer = $control->ask((rand() < 0.8 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$name'")->result;

		# It is shown a moment before whoever prepares it lets go of it.
		next if ($answer->{message} // '') =~ /is busy$/;
		die "$name: $answer->{err}" if $answer->{failed};
		$count{prepared}++;
	}
	return;
}

sub crash
{
	go_on($_->{session}) foreach values %stopped;
	$control->quit;
	crash_node($node);
	$_->quit foreach @sessions;
	@sessions = ();
	$node->start;
	$control = DLockSession->new($node, $db, name => 'control');
	$count{crashes}++;
	return;
}

# How many transactions of this run have committed.
sub written
{
	return $control->query_safe(
		"SELECT count(DISTINCT (xid, resource, token)) FROM (TABLE journal UNION ALL TABLE journal_row UNION ALL TABLE journal_live) j WHERE run = '$run'");
}

# Let them write for so long; with "crash", the server crashes in the middle.
sub write_for
{
	my ($time, %params) = @_;
	my $end = mono_now() + $time;
	my $crash_at = $params{crash} ? $end - $time / 2 : undef;

	start_writers();

	# What is left to chance may take a slow machine longer.
	while (mono_now() < $end
		|| $params{crash} && mono_now() < $end + 120 && (written() <= $enough || grep { !$count{$_} } qw(LK001 LK002 stopped killed terminated prepared)))
	{
		foreach my $session (@sessions)
		{
			$session->ask(round()) unless $session->{pending};
		}
		foreach my $session (wait_any(0.01, @sessions))
		{
			next if $stopped{ $session->{psql} } || collect($session);
			$session->quit;
			@sessions = grep { $_ != $session } @sessions;
		}
		go_on($_->{session}) foreach grep { $_->{due} < mono_now() } values %stopped;
		disturb() if rand() < 0.3;
		end_prepared(500);
		if (defined $crash_at && mono_now() > $crash_at)
		{
			crash();
			undef $crash_at;
		}
		start_writers();
	}

	# What is prepared may be in the way of the others; and who was killed may have
	# sent a last statement, which runs on.
	go_on($_->{session}) foreach values %stopped;
	while (my @busy = grep { $_->{pending} } @sessions)
	{
		end_prepared(0);
		collect($_) foreach wait_any(0.1, @busy);
	}
	$_->quit foreach @sessions;
	@sessions = ();
	wait_until(
		sub {
			my $others = $control->query_safe(
				"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()");
			end_prepared(0);
			return $others eq '0';
		}) or die 'sessions do not end';
	return;
}

# ---------------------------------------------------------------------------
# The order of the commits
# ---------------------------------------------------------------------------

# The server writes them to its log in the order in which they take effect, so
# this asks neither clocks nor snapshots.  Returns the place of each by its id.
sub commit_order
{
	my ($from) = @_;
	my $to = $control->query_safe('SELECT pg_current_wal_flush_lsn()');
	my ($out, $err) = run_command(
		[ 'pg_waldump', '-p', $node->data_dir . '/pg_wal', '-r', 'Transaction', '-s', $from, '-e', $to ]);
	my (%place, $places);

	while ($out =~ /tx:\s+(\d+), .*desc: (COMMIT|COMMIT_PREPARED) (?:(\d+): )?/g)
	{
		$place{ $3 // $1 } = ++$places;
	}
	return %place;
}

# Commits with a token below that of one before them, for the same resource.
sub violations
{
	my ($from) = @_;
	my %place = commit_order($from);
	my (%highest, @found);

	my @written = map { [ split /\|/ ] } split /\n/, $control->query_safe(<<"EOC");
SELECT DISTINCT xid, resource, token FROM (TABLE journal UNION ALL TABLE journal_row UNION ALL TABLE journal_live) j WHERE run = '$run'
EOC
	my @unknown = grep { !defined $place{ $_->[0] } } @written;
	is(scalar @unknown, 0, "$run: each transaction's commit is in the server's log");
	foreach (sort { $place{ $a->[0] } <=> $place{ $b->[0] } } @written)
	{
		my ($xid, $resource, $token) = @$_;

		push @found, "$resource: $token after $highest{$resource}"
		  if $token < ($highest{$resource} // 0);
		$highest{$resource} = $token if $token >= ($highest{$resource} // 0);
	}
	$count{written} = @written;
	return @found;
}

sub stress
{
	my ($time, %params) = @_;

	%count = (map { $_ => 0 } qw(LK001 LK002 crashes deadlocks killed prepared rounds stopped terminated written));
	my $from = $control->query_safe("SELECT pg_logical_emit_message(true, 'start', '')");
	write_for($time, %params);
	$control->query_safe("SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'end', '')");
	my @found = violations($from);
	diag "$run: " . join(', ', map { "$_ $count{$_}" } sort keys %count) . ', violations ' . @found;
	return @found;
}

# Without the guard.  How soon it happens is left to chance.
$run = 'not guarded';
my @found;
foreach my $attempt (1 .. 10)
{
	@found = stress($seconds < 3 ? $seconds : 3);
	last if @found;
}
cmp_ok(scalar @found, '>', 0, "$run: commits out of order");

# With it.
$control->query_safe(<<'EOC');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON journal
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('resource_column=resource', 'token_column=token');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON journal_row
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('resource_column=resource', 'token_column=token');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON journal_live
	FOR EACH ROW EXECUTE FUNCTION dlock_guard('resource_column=resource', 'mode=live');
EOC
($run, $guarded) = ('guarded', 1);
@found = stress($seconds, crash => 1);
is($count{deadlocks}, 0, "$run: no deadlocks, as each transaction passes one fence");
is(scalar @found, 0, "$run: commits out of order")
  or diag join "\n", @found[ 0 .. ($#found < 9 ? $#found : 9) ];
cmp_ok($count{written}, '>', $enough, "$run: enough to say so");
cmp_ok($count{$_}, '>', 0, "$run: $_") foreach qw(LK001 LK002 stopped killed terminated prepared crashes);
is( $control->query_safe(<<"EOC"),
SELECT count(*) FROM (SELECT resource, max(token) AS token FROM (TABLE journal UNION ALL TABLE journal_row UNION ALL TABLE journal_live) j
	WHERE run = '$run' GROUP BY resource) w LEFT JOIN dlock_fences f USING (resource) WHERE f.token IS NULL OR f.token < w.token
EOC
	0,
	"$run: all marks are at what has committed, at least");
is($control->query_safe("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 0, "$run: no locks are left");

$control->quit;
$node->stop;
done_testing();
