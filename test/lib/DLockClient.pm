# What each client of src/clients has to do, in whatever language.  A small program
# in that language (test/clients) takes words KEY=VALUE:
#
#   do        try: acquire and release; hold: work until the file DLOCK_TEST_GO is
#             there; write: wait for that file, and run "sql" in a transaction of the
#             lease, on the only connection of a pool; giveup: stop waiting for the lock
#             when the file is there
#   where     whence the lease has its connection: pool, of one; connection; string
#   name, ttl_ms, wait_ms (or none), payload (JSON)
#
# and prints
#
#   token T until U     granted; U: until when, as the client counts, in seconds since 1970
#   written             the transaction was committed
#   on_lost             the work is told to stop
#   done, refused, gave up, error SQLSTATE
#   lost|unreachable left MS stalled|steady
#                       how the work was stopped, what was left of the lease when
#                       there was work for the last time, and whether the machine stood still

package DLockClient;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockCli;
use DLockProxy;
use DLockStall;
use DLockTest;
use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

our @EXPORT = qw(client_part client_tests client_test_give_up_connecting client_test_large_tokens client_program client_examples client_long_examples client_nightly_job client_missing);

my ($node, $go, @command);
my $usual = 'pool';

# Skip all tests, as the language is not here; unless it has to be.
sub client_missing
{
	my ($what) = @_;

	die "$what is not installed, or does not work" if $ENV{DLOCK_CLIENTS};
	plan skip_all => "$what is not installed";
	return;
}

# The program that is tested from now on, on this server; undef if parts have their own.
sub client_program
{
	($node, @command) = @_;
	use_server($node) if defined $node;

	# Some drivers do not ask the system for it.
	$ENV{PGUSER} = getpwuid $>;
	$ENV{DLOCK_TEST_GO} = $go = PostgreSQL::Test::Utils::tempdir_short() . '/go';
	return;
}

sub start
{
	my (%args) = @_;
	my ($program, @words) = @command;

	%args = (name => 'job', ttl_ms => 600_000, where => $usual, %args);
	unlink $go;
	return DLockCli->start({ program => $program }, @words, map { "$_=$args{$_}" } sort keys %args);
}

sub run
{
	return start(@_)->finish;
}

# Let it go on, and end.
sub go
{
	my ($run) = @_;

	append_to_file($go, '');
	return $run->finish;
}

sub sql
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

# Wait for the grant; returns the token.
sub token_of
{
	my ($run) = @_;

	wait_until(sub { $run->out =~ /token \d+ until / || $run->ended });
	$run->out =~ /token (\d+) until / or croak 'no lease: ' . $run->out . $run->err;
	return $1;
}

# The last line that it has printed.
sub last_line
{
	my ($run) = @_;
	return $run->{out} =~ /(.*)\n\z/ ? $1 : '';
}

# Test that line; show all, and what it complained of, if it is another.
sub ends_with
{
	my ($run, $pattern, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return like(last_line($run), qr/^(?:$pattern)$/, $test_name) || diag($run->{out} . $run->{err});
}

sub nothing_left
{
	my ($test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is(sql('SELECT (SELECT count(*) FROM dlock_leases), (SELECT count(*) FROM dlock_waiters)'), '0|0', $test_name);
}

# Backends that renew leases, or did.
sub backends
{
	return split /\n/, sql("SELECT pid FROM pg_stat_activity WHERE query LIKE '%dlock_renew_token%' AND pid <> pg_backend_pid()");
}

# Wait until the lease has been renewed from now on.
sub wait_renewed
{
	my ($name) = @_;
	my $before = sql("SELECT expires_at FROM dlock_leases WHERE name = '$name'");

	$node->poll_query_until('postgres', "SELECT expires_at > timestamptz '$before' + '100 ms' FROM dlock_leases WHERE name = '$name'")
	  or croak "the lease on $name is not renewed";
	return;
}

# Take the server away from a holder for longer than its lease.  It must have stopped
# before the end of that, which says nothing if the machine stood still.
sub stops_in_time
{
	my ($what, $away, $back) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $run;

	foreach my $attempt (1 .. 20)
	{
		$run = start(do => 'hold', name => 'away', ttl_ms => 3000);
		eval { token_of($run) } or next;
		$away->();
		$run->wait_out(qr/^(?:unreachable|lost)/m);
		$back->();
		$run->finish;
		sql("SELECT dlock_force_release('away', 'next') FROM generate_series(1, 2)");
		last if $run->{out} =~ /steady/;
		note "$what: the machine stood still in attempt $attempt";
	}
	like($run->{out}, qr/^on_lost$/m, "$what: the work is told");
	ends_with($run, qr/unreachable left \S+ steady/, "$what: stopped");
	my ($left) = $run->{out} =~ /left (\S+)/;
	cmp_ok($left, '>', 0, "$what: before the lease ends");
	cmp_ok($left, '<', 2500, "$what: not at once");
	return;
}

sub test_acquire
{
	my $run = run(do => 'try');
	like($run->{out}, qr/^token [1-9]\d* until \S+\ndone\n\z/, 'a lease') or diag($run->{err});
	nothing_left('is released');

	sql("SELECT dlock_acquire('job', 'other', '1 h')");
	ends_with(run(do => 'try'), qr/refused/, 'held by somebody else');
	ends_with(run(do => 'try', wait_ms => 100), qr/refused/, 'and for the time that is waited');
	is(sql('SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits any longer');

	$run = start(do => 'try', wait_ms => 'none');
	run_waits($node, 'job');
	sql("SELECT dlock_release('job', 'other')");
	ends_with($run->finish, qr/done/, 'waited for');
	nothing_left('waited for: is released');

	sql("SELECT dlock_acquire('job', 'other', '1 h')");
	$run = start(do => 'giveup', wait_ms => 'none');
	run_waits($node, 'job');
	ends_with(go($run), qr/gave up/, 'not waited for any more');
	is(sql('SELECT count(*) FROM dlock_waiters'), 0, 'given up: no longer in the queue');
	sql("SELECT dlock_release('job', 'other')");
	nothing_left('given up: nothing is granted afterwards');

	# A grant that was waited for is renewed before it counts.  If that fails, it is given
	# back.
	sql("SELECT dlock_acquire('job', 'other', '1 h')");
	$run = start(do => 'try', wait_ms => 'none', ttl_ms => 3_600_000);
	$node->poll_query_until('postgres', "SELECT waited > '1.5 s' FROM dlock_waiters");
	sql('ALTER FUNCTION dlock_renew_token RENAME TO away');
	sql("SELECT dlock_release('job', 'other')");
	$run->finish;
	sql('ALTER FUNCTION away RENAME TO dlock_renew_token');
	ends_with($run, qr/error 42883|unreachable left .*/, 'granted, and not renewed');
	nothing_left('granted, and not renewed: is released');

	ends_with(run(do => 'try', ttl_ms => 1000 * 86400 * 20), qr/error 22023/, 'what the server does not accept');
	{
		local $ENV{PGPORT} = 1;
		ends_with(run(do => 'try', where => 'string'), qr/unreachable left .*/, 'no server');
	}

	# What cannot write has granted nothing, so there is nothing to be tidied up.
	sql('ALTER DATABASE postgres SET default_transaction_read_only = on');
	my $from = -s $node->logfile;
	ends_with(run(do => 'try'), qr/unreachable left .*/, 'a server that cannot write');
	unlike(slurp_file($node->logfile, $from), qr/dlock_release/, 'a server that cannot write: is left alone');
	sql('SET default_transaction_read_only = off; ALTER DATABASE postgres RESET default_transaction_read_only');
	return;
}

sub test_deadline
{
	my $run = start(do => 'hold');
	my $token = token_of($run);
	my ($until) = $run->out =~ /until (\S+)/;
	my ($of, $expires) = split /\|/, sql("SELECT token, extract(epoch FROM expires_at) FROM dlock_leases WHERE name = 'job'");
	is($of, $token, 'the token');

	# The view shows a time by the wall clock, to the microsecond; a client that counts
	# in milliseconds cannot do so.
	cmp_ok($until, '<=', $expires + 0.002, 'the deadline is not later than that of the server');
	cmp_ok($until, '>', $expires - 300, 'nor is it far from it');
	ends_with(go($run), qr/done/, 'work that ends by itself');

	foreach my $payload ('null', '{}', '"é"', '{"a": [1, null]}')
	{
		$run = start(do => 'hold', payload => $payload);
		token_of($run);
		is(sql("SELECT coalesce(payload::text, 'null') FROM dlock_leases"), $payload, "payload: $payload");
		go($run);
	}
	return;
}

# A renewal that gets no further than to the server's door is given up in time for another.
sub test_silence
{
	my $proxy = DLockProxy->start($node);
	local @ENV{qw(PGHOST PGPORT)} = ($proxy->{host}, $proxy->{port});
	my $run = start(do => 'hold', ttl_ms => 30_000);

	token_of($run);
	wait_renewed('job');
	$proxy->set('silent');
	$proxy->set('cut');
	$proxy->wait_refused(1);
	$proxy->set('pass');
	my $until = sql("SELECT expires_at FROM dlock_leases WHERE name = 'job'");
	ok( wait_until(sub { $run->ended || sql("SELECT expires_at > timestamptz '$until' + '100 ms' FROM dlock_leases WHERE name = 'job'") eq 't' }),
		'a server that accepts and is silent: waited for');
	ends_with(go($run), qr/done/, 'a server that accepts and is silent: renewed afterwards');
	nothing_left('a server that accepts and is silent: released');
	return;
}

# What is shorter than the lease is not noticed.
sub test_ride_out
{
	my %cut = (
		'a restart' => sub { $node->restart },
		'a crash' => sub { crash_node($node); $node->start },
		'terminated backends' => sub {
			sql("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()");
		});
	foreach my $what (sort keys %cut)
	{
		my $run = start(do => 'hold', ttl_ms => 120_000);
		my $token = token_of($run);
		$cut{$what}->();
		is(sql("SELECT dlock_check('job', $token)"), 't', "$what: still held");
		ends_with(go($run), qr/done/, "$what: at the end");
		nothing_left("$what: released");
	}

	without_release_answers($node, sub { ends_with(run(do => 'try'), qr/done/, 'a lost answer to the release') });
	nothing_left('a lost answer to the release: released');

	# With renewals, and with an end that has to find a new connection.
	my $run = start(do => 'hold', ttl_ms => 120_000);
	my $token = token_of($run);
	$node->stop('immediate');
	$node->start;
	wait_renewed('job');
	is(sql("SELECT dlock_check('job', $token)"), 't', 'a restart: renewed afterwards');

	# A connection that does not answer, though it is open.  It is between two renewals: a
	# backend that is stopped at work may hold what the next renewal needs.
	my @frozen;
	ok( wait_until(
			sub {
				@frozen = backends();
				kill 'STOP', @frozen;
				wait_until(sub { !grep { slurp_file("/proc/$_/stat") !~ /\) T / } @frozen }) or croak 'they do not stop';
				return 1 if @frozen && sql('SELECT bool_and(state = \'idle\') FROM pg_stat_activity WHERE pid IN (' . join(', ', @frozen) . ')') eq 't';
				kill 'CONT', @frozen;
				return 0;
			}),
		'somebody renews');
	my $renewed = eval { wait_renewed('job'); 1 };
	kill 'CONT', @frozen;
	ok($renewed, 'a frozen connection: renewed on another');
	ends_with(go($run), qr/done/, 'a frozen connection: at the end');
	nothing_left('a frozen connection: released');
	return;
}

sub test_loss
{
	stops_in_time('the server is gone', sub { $node->stop('immediate') }, sub { $node->start });

	my @stopped;
	stops_in_time(
		'the server is frozen',
		sub {
			my $postmaster = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
			kill 'STOP', $postmaster;
			@stopped = ($postmaster, child_pids($postmaster));
			kill 'STOP', @stopped;
		},
		sub { kill 'CONT', @stopped });

	my $run = start(do => 'hold', ttl_ms => 120_000);
	token_of($run);
	sql("SELECT dlock_force_release('job', 'test')");
	ends_with($run->finish, qr/(?:lost|unreachable) left .*/, 'released by force: stopped');
	like($run->{out}, qr/^on_lost\nlost /m, 'released by force: as lost');
	nothing_left('released by force: nothing is left');

	# At the end of work that did not notice.
	$run = start(do => 'hold');
	token_of($run);
	sql("SELECT dlock_force_release('job', 'test')");
	ends_with(go($run), qr/lost left .*/, 'released by force: told at the end');
	return;
}

# A release that is asked for again says what has become of the lease, unless the first one
# may have been done.
sub test_asked_again
{
	my $proxy = DLockProxy->start($node);
	my $run;

	# A client whose time was over before it was let through cannot know.
	foreach my $attempt (1 .. 20)
	{
		local @ENV{qw(PGHOST PGPORT)} = ($proxy->{host}, $proxy->{port});
		$run = start(do => 'hold');
		token_of($run);
		$proxy->set('refuse');
		$proxy->set('cut');
		$proxy->wait_refused(5);
		sql("SELECT dlock_force_release('job', 'test')");
		sql("SELECT dlock_acquire('job', 'other', '1 h')");
		my $from = mono_now();
		append_to_file($go, '');
		$proxy->wait_refused(3);
		$proxy->set('pass');
		my $in_time = mono_now() < $from + 2;
		$run->finish;
		sql("SELECT dlock_release('job', 'other')");
		last if $in_time;
	}
	ends_with($run, qr/lost left .*/, 'lost in an outage: told at the end');

	# The second error is that of a standby.
	foreach my $sqlstate (qw(P0001 25006))
	{
		sql(qq{ALTER FUNCTION dlock_release_token(text, bigint) RENAME TO dlock_hidden;
			CREATE SEQUENCE release_requests;
			CREATE FUNCTION dlock_release_token(text, bigint) RETURNS boolean LANGUAGE plpgsql AS '
				BEGIN
					IF nextval(''release_requests'') = 2 THEN RETURN dlock_hidden(\$1, \$2); END IF;
					RAISE EXCEPTION ''out of order'' USING ERRCODE = ''$sqlstate'';
				END'});
		$run = start(do => 'hold');
		token_of($run);
		sql("SELECT dlock_force_release('job', 'test')");
		ends_with(go($run), qr/lost left .*/, "lost, and the release fails at first with $sqlstate: told at the end");
		sql(q{DROP FUNCTION dlock_release_token(text, bigint);
			DROP SEQUENCE release_requests;
			ALTER FUNCTION dlock_hidden(text, bigint) RENAME TO dlock_release_token});
	}
	return;
}

# A grant whose answer is lost on the way, and a wait whose connection is, leave nothing behind.
# The client has three seconds for it, so it is done again if the machine stands still.
sub test_unheard_grant
{
	my $proxy = DLockProxy->start($node);
	my $wait = sub {
		my ($do) = @_;

		sql("SELECT dlock_acquire('job', 'other', '1 h')");
		local @ENV{qw(PGHOST PGPORT)} = ($proxy->{host}, $proxy->{port});
		my $run = start(do => $do, wait_ms => 600_000);
		run_waits($node, 'job');
		return $run;
	};
	my $grant = sub {
		$proxy->set('deaf');
		sql("SELECT dlock_release('job', 'other')");
		$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_leases WHERE name = 'job' AND owner <> 'other'")
		  or croak 'nothing is granted';
	};

	my $test = sub {
		my ($test_name, $pattern, $do) = @_;
		local $Test::Builder::Level = $Test::Builder::Level + 1;
		my $left;
		my $run = undisturbed(
			sub {
				sql('SELECT count(pg_cancel_backend(pid)) FROM dlock_waiters');
				$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM dlock_waiters') or croak 'they still wait';
				sql("SELECT dlock_force_release('job', 'test') FROM generate_series(1, 2)");
				my $run = $do->();
				$left = sql("SELECT (SELECT count(*) FROM dlock_leases WHERE owner <> 'other'), (SELECT count(*) FROM dlock_waiters)");
				return $run;
			},
			sub { last_line($_[0]) =~ /^$pattern$/ && $left eq '0|0' });

		ends_with($run, $pattern, $test_name);
		is($left, '0|0', "$test_name: nothing is held, and nobody waits");
	};

	$test->(
		'given up, and no answer to that',
		qr/gave up/,
		sub {
			my $run = $wait->('giveup');
			$grant->();
			return go($run);
		});
	$test->(
		'a lost answer to the request',
		qr/unreachable left .*/,
		sub {
			my $run = $wait->('try');
			$grant->();
			$proxy->set('cut');
			return $run->finish;
		});

	# The old connection is open on the server's side.
	$test->(
		'a wait that has lost its connection',
		qr/unreachable left .*/,
		sub {
			my $run = $wait->('try');
			$proxy->set('part');
			return $run->finish;
		});
	sql("SELECT dlock_release('job', 'other')");
	nothing_left('a wait that has lost its connection: nothing is granted');
	return;
}

sub test_fence
{
	my $name = 'a "b", c=1';

	sql(qq{CREATE TABLE data (x text);
		CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON data EXECUTE FUNCTION dlock_guard('resource=$name')});
	sqlstate_is($node, 'postgres', "INSERT INTO data VALUES ('none')", 'LK003', 'the table is guarded');

	foreach my $kind ($usual, 'connection')
	{
		my $run = start(do => 'write', name => $name, where => $kind, sql => "INSERT INTO data VALUES ('good')");
		token_of($run);
		go($run);
		like($run->{out}, qr/^written\ndone\n\z/m, "$kind: a write with the token") or diag($run->{err});
	}
	is(sql('SELECT count(*) FROM data'), 2, 'is committed');

	# Somebody else has been there.  The token is of another lock: a renewal of a lease that
	# was taken away would fail, and on a slow machine stop the work before it writes.
	my $run = start(do => 'write', name => $name, sql => "INSERT INTO data VALUES ('late')");
	token_of($run);
	my $token = sql("SELECT dlock_acquire('newer', 'next')");
	sql(qq{SET dlock.tokens = '"a ""b"", c=1"=$token'; INSERT INTO data VALUES ('next')});
	go($run);
	like($run->{out}, qr/^error LK001\n/m, 'a late write') or diag($run->{err});
	ends_with($run, qr/done/, 'and the end after it');
	sql("SELECT dlock_release('newer', 'next')");

	# A statement that is under way when the lease is lost, on the only connection.
	$run = start(do => 'write', ttl_ms => 120_000, sql => 'SELECT pg_sleep(3600)');
	token_of($run);
	append_to_file($go, '');
	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'");
	sql("SELECT dlock_force_release('job', 'test')");
	$run->finish;
	like($run->{out}, qr/^on_lost$/m, 'a statement under way: told');
	ends_with($run, qr/(?:lost|unreachable) left .*/, 'a statement under way: stopped');
	sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'");
	return;
}

# A name is the same lock, whatever encoding is the server's or the environment's.
sub test_encoding
{
	my (%params) = @_;
	my $name = "caf\xc3\xa9";

	sql(q{CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'});
	foreach my $case ([ 'the database' => 'latin1' ], [ 'the environment' => 'postgres', 'LATIN1' ])
	{
		my ($what, $db, $encoding) = @$case;
		next if defined $encoding && $params{strict};
		local $ENV{PGDATABASE} = $db;
		local %ENV = (%ENV, defined $encoding ? (PGCLIENTENCODING => $encoding) : ());
		my $here = sub { return $node->safe_psql($db, "SET client_encoding = UTF8; $_[0]") };
		$here->(q{CREATE EXTENSION IF NOT EXISTS dlock; CREATE TABLE data (x text);
			CREATE TRIGGER guard BEFORE INSERT ON data EXECUTE FUNCTION dlock_guard('resource=café')});
		my $run = start(do => 'write', name => $name, sql => "INSERT INTO data VALUES ('good')");
		token_of($run);
		is($here->(q{SELECT name = 'café' FROM dlock_leases}), 't', "$what has another encoding: the name");
		go($run);
		like($run->{out}, qr/^written\ndone\n\z/m, "$what has another encoding: the token") or diag($run->{err});
		$here->('DROP TABLE data');
	}
	sql('DROP DATABASE latin1');
	return;
}

# A part for beside(): a function that is called with a server of its own, which it stops, as
# the one of the program of client_program().
sub client_part
{
	my ($name, $code, @server) = @_;
	my @program = @command;

	return $name => sub {
		my $server = start_node($name =~ s/\W/_/gr, @server);
		client_program($server, @program);
		eval { $code->($server); 1 } or fail("died: $@");
		$server->stop('immediate');
	};
}

# All tests of the program of client_program(), each beside the others with a server of its
# own.  Options:
#   asks_again  it asks again if it does not hear of a request
#   strict    it takes no other encoding from the environment
# Returns names and functions, for beside().
sub client_tests
{
	my ($kind, %params) = @_;

	# Those that take the longest first.
	my @tests = (
		'riding out' => \&test_ride_out,
		'loss' => \&test_loss,
		'acquire' => \&test_acquire,
		$params{asks_again} ? ('an unheard grant' => \&test_unheard_grant, 'asked again' => \&test_asked_again) : (),
		'silence' => \&test_silence,
		'fence' => \&test_fence,
		'encoding' => sub { test_encoding(%params) },
		'deadline' => \&test_deadline);
	my @parts;

	while (my ($name, $test) = splice @tests, 0, 2)
	{
		push @parts, client_part("$kind: $name", $test);
	}
	return @parts;
}

# A server that accepts, and is silent: the caller can give up all the same.
sub client_test_give_up_connecting
{
	my ($kind) = @_;
	my $proxy = DLockProxy->start($node);
	my $from;

	local @ENV{qw(PGHOST PGPORT)} = ('127.0.0.1', $proxy->{port});
	$proxy->set('silent');
	my $run = start(do => 'giveup', wait_ms => 'none', where => 'roomy');
	$proxy->wait_refused(1);
	$from = mono_now();
	go($run);
	ends_with($run, qr/gave up/, "$kind: given up while connecting");
	in_time($from, $run->{ended}, 7, "$kind: given up while connecting: at once");
	return;
}

# Tokens just below 2^53, which not every number of a driver can hold.  Comes last, as
# there is no way back.
sub client_test_large_tokens
{
	sql("SELECT dlock_bump_epoch('test', 9007197000000000)");
	foreach my $attempt (1 .. 2)
	{
		my $run = start(do => 'hold');
		my $token = token_of($run);
		is($token, sql("SELECT token FROM dlock_leases"), 'a large token');
		cmp_ok($token, '>', 9007197000000000, 'it is large');
		ends_with(go($run), qr/done/, 'a large token: released');
	}
	nothing_left('a large token: nothing is left');
	return;
}

# Run the examples in a language, those of the README beside the library, which must be so many,
# and that of the tutorial if it has one; each as a file of this name, which is the last argument
# of the command.
sub client_examples
{
	my ($language, $count, @run) = @_;
	my $top = __FILE__ =~ s{[^/]*$}{../..}r;
	my $library = $language eq 'js' ? 'node' : $language;
	my %count = ("src/clients/$library/README.md" => $count, $language =~ /^(?:js|python)$/ ? ('doc/tutorial/nightly-job.md' => 1) : ());
	my $file = PostgreSQL::Test::Utils::tempdir() . '/' . pop @run;
	my ($program, @words) = @run;
	my $total = 0;

	sql(q{CREATE TABLE report (made text);
		CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON report EXECUTE FUNCTION dlock_guard('nightly-report')});
	foreach my $doc (sort keys %count)
	{
		my @examples = slurp_file("$top/$doc") =~ /^```$language\n(.*?)^```$/msg;

		is(scalar @examples, $count{$doc}, "there are examples in $language in $doc");
		foreach my $example (@examples)
		{
			unlink $file;
			append_to_file($file, $example);
			cli_is([ { program => $program }, @words, $file ], {}, "$doc, example " . ++$total . " in $language");
		}
	}
	is(sql(q{SELECT count(*) FROM report WHERE made ~ '^made under token \d+$'}), $total, "what the examples in $language have written");
	nothing_left("the examples in $language have released their leases");
	return;
}

# The nightly job of the tutorial, as a program beside the library, on a server with its table:
# the first run of a day writes, and the second one knows that.
sub client_nightly_job
{
	my ($server, @run) = @_;
	my ($program, @words) = @run;
	my $made = q{SELECT count(*) FROM report WHERE made ~ '^made under token \d+$'};
	my $before = $server->safe_psql('postgres', $made);
	my $day = int(time / 86400);

	cli_is([ { program => $program }, @words ], {}, 'the nightly job');
	is($server->safe_psql('postgres', $made), $before + 1, 'the nightly job has written');
	my $again = cli({ program => $program }, @words);
	if ($day == int(time / 86400))
	{
		is($again->{code}, 75, 'the nightly job, again: exit code');
		like($again->{err}, qr/another machine makes the report of this day/, 'the nightly job, again: message');
	}
	is($server->safe_psql('postgres', q{SELECT count(*) FROM dlock_leases WHERE name = 'nightly-report'}), 0, 'the nightly job has released the lock');
	$server->safe_psql('postgres', q{SELECT dlock_force_release('once:nightly-report', 'test') FROM generate_series(1, 2)});
	return;
}

# Run the programs of the README of a library that go on until they are told to end: an
# election, and a worker.
sub client_long_examples
{
	my ($language, $library, $program) = @_;
	my $top = __FILE__ =~ s{[^/]*$}{../..}r;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/long';
	my @examples = slurp_file("$top/src/clients/$library/README.md") =~ /^```$language\n(.*?)^```$/msg;
	my @says = (qr/leads, with token \d+/, qr/done: one/);
	my @ends = (qr/resigns\n\z/, qr/done: one\n\z/);

	sql("CREATE TABLE sent (key text); SELECT dlock_queue_create('mail'); SELECT dlock_task_put('mail', 'one')");
	is(scalar @examples, scalar @says, "programs in the README of $library that run on");
	foreach my $i (0 .. $#says)
	{
		append_to_file("$file$i", $examples[$i]);
		my $run = DLockCli->start({ program => $program }, "$file$i");
		$run->wait_out($says[$i]);
		$run->signal('TERM');
		$run->finish;
		is("$run->{signal}.$run->{code}", '0.0', "program $i ends when it is told to") or diag($run->{err});
		like($run->{out}, $ends[$i], "program $i: what it says");
	}
	is(sql(q{SELECT (SELECT string_agg(key, '') FROM sent), count(*) FROM dlock_tasks WHERE state = 'done'}), 'one|1', 'the task is done');
	sql("SELECT dlock_queue_drop('mail')");
	return;
}

1;
