# Proves: a bound lease ends with its session or transaction, whatever way that
# ends, and a waiter gets it then; it leaves no trace in the WAL or on disk, and
# is free after a crash at once, while leases that are not bound stay held.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockStall;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing here may depend on looking again after a while.
my $node = start_node('main', conf => <<'EOC');
restart_after_crash = on
max_prepared_transactions = 5
deadlock_timeout = 1h
EOC
my $db = 'postgres';
my $monitor = DLockSession->new($node, $db);
my $waiter = DLockSession->new($node, $db);
my $n = 0;

sub leases
{
	my ($where) = @_;
	return $monitor->query_safe(
		"SELECT string_agg(name, ',' ORDER BY name) FROM dlock_leases WHERE $where");
}

# A new session holds a lock, another one waits for it; then the holder's end.
# Tests that the waiter gets it then, with a larger token.  What was held besides
# without being bound must stay.
sub holder_ends
{
	my ($what, $acquire, $end, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $name = 'end-' . ++$n;
	my $holder = DLockSession->new($node, $db);

	$acquire =~ s/NAME/$name/g;
	$holder->query_safe("SELECT dlock_acquire('unbound', 'holder-$n', '1 h', mode => 'CR')");
	my $token = (split /\n/, $holder->query_safe($acquire))[-1];
	like($token, qr/^\d+$/, "$what: acquired");
	is( $monitor->query_safe(
			"SELECT owner, pid, ttl IS NULL, remaining IS NULL, expires_at IS NULL FROM dlock_leases WHERE name = '$name'"
		),
		'holder|' . $holder->pid . '|t|t|t',
		"$what: shown with its session and no deadline");
	$waiter->ask_waiting($monitor, "SELECT dlock_acquire('$name', 'waiter', '1 h', wait => NULL)");
	my $sent = mono_now();
	$end->($holder, $name);
	cmp_ok($waiter->answer, '>', $token, "$what: the waiter gets it");

	# Who is not woken looks again after a minute.
	in_time($sent, $waiter->{answered_at}, 30, "$what: at once");
	is($monitor->query_safe("SELECT dlock_check('$name', $token)"), 'f', "$what: the old token is dead");
	is($waiter->query_safe("SELECT dlock_release('$name', 'waiter')"), 't', "$what: released");
	$holder->quit unless $holder->{lost};
	$holder->wait_backend_gone;
	is(leases("owner = 'holder-$n'"), 'unbound', "$what: what is not bound stays");
	is(leases("bind <> 'none'"), '', "$what: nothing else is left");
	return;
}

my $session = "SELECT dlock_acquire('NAME', 'holder', bind => 'session')";
my $transaction = "SELECT dlock_acquire('NAME', 'holder', bind => 'transaction')";

sub run
{
	my ($sql) = @_;
	return sub { $_[0]->query($sql) };
}

sub terminate
{
	my ($holder) = @_;
	$monitor->query_safe('SELECT pg_terminate_backend(' . $holder->pid . ')');
	return;
}

# The session's ends.
holder_ends('disconnect', $session, sub { $_[0]->quit; $_[0]->{lost} = 1 });
holder_ends('disconnect in a transaction', "BEGIN; $session", sub { $_[0]->quit; $_[0]->{lost} = 1 });
holder_ends('pg_terminate_backend', $session, \&terminate);
holder_ends('pg_terminate_backend in a transaction', "BEGIN; $session", \&terminate);
holder_ends('client killed', $session, sub { $_[0]->kill_client });
holder_ends('client killed in a transaction', "BEGIN; $session", sub { $_[0]->kill_client });
holder_ends('idle_session_timeout', $session, run("SET idle_session_timeout = '200 ms'"));
holder_ends('its release', $session, sub { $_[0]->query_safe("SELECT dlock_release('$_[1]', 'holder')") });
holder_ends('release_all by another session', $session, sub { $monitor->query_safe("SELECT dlock_release_all('holder')") });
holder_ends('a forced release', $session, sub { $monitor->query_safe("SELECT dlock_force_release('$_[1]', 'test')") });

# The transaction's.
holder_ends('COMMIT', "BEGIN; $transaction", run('COMMIT'));
holder_ends('ROLLBACK', "BEGIN; $transaction", run('ROLLBACK'));
holder_ends('COMMIT AND CHAIN', "BEGIN; $transaction", run('COMMIT AND CHAIN'));
holder_ends('an error, before ROLLBACK', "BEGIN; $transaction", run('SELECT 1 / 0'));
holder_ends('an error in a savepoint', "BEGIN; SAVEPOINT s; $transaction", run('SELECT 1 / 0'));
holder_ends('ROLLBACK TO', "BEGIN; SAVEPOINT s; $transaction", run('ROLLBACK TO s'));
holder_ends('ROLLBACK TO the one outside', "BEGIN; SAVEPOINT s; SAVEPOINT t; $transaction; RELEASE t", run('ROLLBACK TO s'));
holder_ends('COMMIT after RELEASE', "BEGIN; SAVEPOINT s; $transaction; RELEASE s", run('COMMIT'));
holder_ends('a commit that fails', "CREATE TEMP TABLE t (i int UNIQUE DEFERRABLE INITIALLY DEFERRED); BEGIN; INSERT INTO t VALUES (1), (1); $transaction",
	run('COMMIT'));
holder_ends('PREPARE TRANSACTION', "BEGIN; $transaction",
	sub { is($_[0]->query("PREPARE TRANSACTION 'x'"), 'ERROR 0A000', 'PREPARE TRANSACTION is refused') });
holder_ends('cancel of a statement', "BEGIN; $transaction",
	sub {
		$_[0]->ask('SELECT pg_sleep(1000)');
		$node->poll_query_until($db, 'SELECT wait_event = $$PgSleep$$ FROM pg_stat_activity WHERE pid = ' . $_[0]->pid);
		$monitor->query_safe('SELECT pg_cancel_backend(' . $_[0]->pid . ')');
		is($_[0]->answer, 'ERROR 57014', 'cancelled');
	});
holder_ends('disconnect in its transaction', "BEGIN; $transaction", sub { $_[0]->quit; $_[0]->{lost} = 1 });
holder_ends('pg_terminate_backend in its transaction', "BEGIN; $transaction", \&terminate);
holder_ends('pg_terminate_backend in its savepoint', "BEGIN; SAVEPOINT s; $transaction; RELEASE s; SAVEPOINT t", \&terminate);
holder_ends('client killed in its transaction', "BEGIN; $transaction", sub { $_[0]->kill_client });
holder_ends('idle_in_transaction_session_timeout', "BEGIN; $transaction", run("SET idle_in_transaction_session_timeout = '200 ms'"));

# What is not an end.
{
	my $holder = DLockSession->new($node, $db);
	$holder->query_safe("BEGIN; SELECT dlock_acquire('s', 'holder', bind => 'session'); SAVEPOINT a; SELECT dlock_acquire('sa', 'holder', bind => 'session'); SAVEPOINT b; SELECT dlock_acquire('t', 'holder', bind => 'transaction')");
	$holder->query_safe('RELEASE b; SAVEPOINT c; ROLLBACK TO c; RELEASE c');
	is(leases("owner = 'holder'"), 's,sa,t', 'savepoints that it was not acquired in');
	$holder->query_safe('ROLLBACK TO a');
	is(leases("owner = 'holder'"), 's,sa', 'ROLLBACK TO ends what is bound to the transaction');
	$holder->query_safe('ROLLBACK');
	is(leases("owner = 'holder'"), 's,sa', 'ROLLBACK does not end what is bound to the session');
	$holder->query_safe('BEGIN; COMMIT; DISCARD PLANS; DISCARD TEMP; RESET ALL');
	is($holder->query('SELECT 1 / 0'), 'ERROR 22012', 'an error');
	is(leases("owner = 'holder'"), 's,sa', 'nor do they');
	is($holder->query('BEGIN; DISCARD ALL'), 'ERROR 25001', 'DISCARD ALL is refused in a transaction');
	$holder->query_safe('ROLLBACK');
	is(leases("owner = 'holder'"), 's,sa', 'nor does that');
	$holder->query_safe('DISCARD ALL');
	is(leases("owner = 'holder'"), '', 'DISCARD ALL does, as a new session would have none');
	$holder->query_safe("SELECT dlock_acquire('s', 'holder', bind => 'session')");
	$holder->quit;
	is(leases("owner = 'holder'"), '', 'a disconnect does');
}

# Autocommit: until the end of the statement, which here waits itself.
{
	my $holder = DLockSession->new($node, $db);
	$monitor->query_safe("SELECT dlock_acquire('gate', 'monitor', '1 h')");
	$holder->ask_waiting($monitor,
		"SELECT dlock_acquire('auto', 'holder', bind => 'transaction'), dlock_acquire('gate', 'holder', bind => 'transaction', wait => NULL)");
	is(leases("bind = 'transaction'"), 'auto', 'held while the statement runs');
	$waiter->ask_waiting($monitor, "SELECT dlock_acquire('auto', 'waiter', '1 h', wait => NULL)");
	$monitor->query_safe("SELECT dlock_release('gate', 'monitor')");
	like($holder->answer, qr/^\d+\|\d+$/, 'the statement ends');
	like($waiter->answer, qr/^\d+$/, 'and the waiter gets it');
	$waiter->query_safe("SELECT dlock_release('auto', 'waiter')");
	is(leases("bind <> 'none'"), '', 'nothing is left of a statement');

	# A waiter that gets a bound lease holds it bound.
	$monitor->query_safe("SELECT dlock_acquire('gate', 'monitor', '1 h')");
	$holder->query_safe('BEGIN');
	$holder->ask_waiting($monitor, "SELECT dlock_acquire('gate', 'holder', bind => 'transaction', wait => NULL)");
	$monitor->query_safe("SELECT dlock_release('gate', 'monitor')");
	like($holder->answer, qr/^\d+$/, 'granted to one that waits');
	is($monitor->query_safe("SELECT owner, bind, pid FROM dlock_leases WHERE name = 'gate'"),
		'holder|transaction|' . $holder->pid, 'and bound');
	$holder->query_safe('COMMIT');
	is(leases("bind <> 'none'"), '', 'nothing is left of a grant to one that waited');

	# The transaction of one that waits ends: it waits no more and holds nothing.
	$monitor->query_safe("SELECT dlock_acquire('gate', 'monitor', '1 h')");
	$holder->query_safe("BEGIN; SELECT dlock_acquire('first', 'holder', bind => 'transaction')");
	$holder->ask_waiting($monitor, "SELECT dlock_acquire('gate', 'holder', bind => 'transaction', wait => NULL)");
	$monitor->query_safe('SELECT pg_cancel_backend(' . $holder->pid . ')');
	is($holder->answer, 'ERROR 57014', 'cancelled while waiting');
	is(leases("bind <> 'none'"), '', 'and what was bound to the transaction is free');
	$monitor->query_safe("SELECT dlock_release('gate', 'monitor')");
	is($monitor->query_safe('SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits');
	$holder->quit;
}

# Two-phase commit: only what is bound to the transaction stands in its way.
{
	my $holder = DLockSession->new($node, $db);
	$holder->query_safe("BEGIN; SELECT dlock_acquire('2pc-session', 'holder', bind => 'session'), dlock_acquire('2pc-none', 'holder', '1 h')");
	$holder->query_safe("SELECT dlock_acquire('2pc-released', 'holder', bind => 'transaction'); SELECT dlock_release('2pc-released', 'holder')");
	$holder->query_safe("SAVEPOINT s; SELECT dlock_acquire('2pc-undone', 'holder', bind => 'transaction'); ROLLBACK TO s");
	is($holder->query("PREPARE TRANSACTION 'two'"), '', 'prepared');
	is($monitor->query_safe('SELECT count(*) FROM pg_prepared_xacts'), 1, 'it is there');
	is(leases("name LIKE '2pc-%'"), '2pc-none,2pc-session', 'and so are the leases');
	$holder->query_safe("COMMIT PREPARED 'two'");
	is(leases("name LIKE '2pc-%'"), '2pc-none,2pc-session', 'also when it is committed');
	$holder->query_safe("BEGIN; SELECT dlock_acquire('2pc', 'holder', bind => 'transaction')");
	is($holder->query("PREPARE TRANSACTION 'two'"), 'ERROR 0A000', 'refused');
	ok($holder->{message} ne '' && ($holder->{detail} ne '' || $holder->{hint} ne ''), 'with a reason');
	is($monitor->query_safe('SELECT count(*) FROM pg_prepared_xacts'), 0, 'nothing is prepared');
	is($holder->query_safe("BEGIN; SELECT 1; COMMIT"), 1, 'the session goes on');
	$holder->quit;
	is(leases("name LIKE '2pc-%'"), '2pc-none', 'what was bound to the session is gone');
}

# Other sessions may release and renew it, if their role may; only the session
# itself may convert it.
{
	$monitor->query_safe('CREATE ROLE holder LOGIN; CREATE ROLE stranger LOGIN');
	my $holder = DLockSession->new($node, $db, user => 'holder');
	my $same = DLockSession->new($node, $db, user => 'holder');
	my $stranger = DLockSession->new($node, $db, user => 'stranger');
	my $token = $holder->query_safe("SELECT dlock_acquire('others', 'holder', bind => 'session')");
	is($stranger->query("SELECT dlock_release_token('others', $token)"), 'ERROR 42501', 'a stranger may not release it');
	is($stranger->query("SELECT dlock_renew_token('others', $token)"), 'ERROR 42501', 'nor renew it');
	is($same->query("SELECT dlock_renew_token('others', $token)"), 't', 'the same role may renew it');
	is($same->query("SELECT dlock_convert('others', $token, 'shared')"), 'ERROR 55000', 'another session may not convert it');
	is($monitor->query("SELECT dlock_convert('others', $token, 'shared')"), 'ERROR 55000', 'not even a superuser');
	is($monitor->query_safe("SELECT mode, pid FROM dlock_leases WHERE name = 'others'"), 'exclusive|' . $holder->pid, 'it is as it was');
	is($holder->query("SELECT dlock_convert('others', $token, 'shared')"), $token, 'its own may');
	$token = $holder->query("SELECT dlock_convert('others', $token, 'exclusive')");
	is($same->query("SELECT dlock_release_token('others', $token)"), 't', 'the same role may release it');
	is($same->query("SELECT dlock_acquire('others', 'next', '1 h') > $token"), 't', 'it is free then');
	is($holder->query("SELECT dlock_check('others', $token)"), 'f', 'and the session knows');

	# Whoever enters it again besides does not become its session.
	$token = $holder->query_safe("SELECT dlock_acquire('entered', 'holder', bind => 'session')");
	is($same->query_safe("SELECT dlock_acquire('entered', 'holder', reentry => 'count', bind => 'session')"), $token, 'entered again by another session');
	is($monitor->query_safe("SELECT pid, holds FROM dlock_leases WHERE name = 'entered'"), $holder->pid . '|2', 'it stays with its own');
	$same->quit;
	is($holder->query_safe("SELECT dlock_check('entered', $token)"), 't', 'whose end alone is its end');
	$holder->query_safe("SELECT dlock_release_all('holder')");
	$same = DLockSession->new($node, $db, user => 'holder');

	# What the name was given to since is no matter of the session's end.
	$holder->query_safe("BEGIN; SELECT dlock_acquire('others-2', 'holder', bind => 'transaction')");
	$same->query_safe("SELECT dlock_release('others-2', 'holder')");
	$token = $same->query_safe("SELECT dlock_acquire('others-2', 'holder', '1 h')");
	$holder->query_safe('COMMIT');
	$holder->quit;
	is($same->query("SELECT dlock_check('others-2', $token)"), 't', 'a lease of the same name and owner outlives the session');
	$_->quit foreach $same, $stranger;
}

# No WAL, no record.  The first time may have to reserve tokens, and have the server note
# what it knows of its catalogs.
{
	my $holder = DLockSession->new($node, $db);
	my @statements = (
		"count(dlock_acquire('wal-' || i, 'holder', bind => 'session'))",
		"count(dlock_renew('wal-' || i, 'holder')), count(dlock_renew('wal-' || i, 'holder', '1 h'))",
		"count(dlock_release('wal-' || i, 'holder'))",
		"count(dlock_acquire('wal-' || i, 'holder', bind => 'transaction'))",
		"count(dlock_acquire_path('wal-path/a/' || i, 'holder', '1 h', bind => 'transaction'))");
	my $explain = sub { $holder->query_safe("EXPLAIN (ANALYZE, WAL, COSTS OFF) SELECT $_[0] FROM generate_series(1, 500) i") };

	$explain->($_) foreach @statements;
	unlike($explain->($_), qr/WAL:/, "no WAL: $_") foreach @statements;
	like($explain->("count(dlock_acquire('wal-' || i, 'holder', '1 h'))"), qr/WAL: records=\d{3}/, 'what is not bound does write WAL');
	$holder->query_safe("SELECT dlock_release_all('holder')");
	$holder->query_safe("SELECT dlock_acquire('wal-kept', 'holder', bind => 'session'), dlock_acquire('wal-unbound', 'holder', '1 h')");
	my %slots = store_slots($node, $db);
	is(join(',', grep { /^wal-/ } sort keys %slots), 'wal-unbound', 'nor records');
	$holder->quit;
}

# A thousand at once, when nobody tidies up; and sessions that come and go.
{
	pause_worker($node);
	my $holder = DLockSession->new($node, $db);
	$holder->query_safe("SELECT count(dlock_acquire('many-' || i, 'holder', bind => 'session')) FROM generate_series(1, 1000) i; BEGIN; SELECT count(dlock_acquire('more-' || i, 'holder', bind => 'transaction')) FROM generate_series(1, 1000) i");
	is($monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE bind <> 'none'"), 2000, 'two thousand leases');
	terminate($holder);
	$holder->wait_backend_gone;
	is($monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE bind <> 'none'"), 0, 'end with their session');
	foreach my $i (1 .. 20)
	{
		$node->safe_psql($db, "SELECT count(dlock_acquire('many-' || i, 'holder', bind => 'session')) FROM generate_series(1, 10) i");
	}

	# The last one may be on its way out still.
	ok(wait_until(sub { $monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE bind <> 'none'") eq '0' }),
		'sessions come and go');
	resume_worker($node);
}

# A session that lives long does not grow by what it has held.
{
	my $holder = DLockSession->new($node, $db);
	my $memory = 'SELECT sum(total_bytes) FROM pg_backend_memory_contexts';
	my $work = <<'EOC';
DO $$
BEGIN
	FOR i IN 1 .. 40000 LOOP
		PERFORM dlock_release_token('long', dlock_acquire('long', 'holder', bind => 'session'));
		IF i % 10 = 0 THEN
			COMMIT;
		END IF;
	END LOOP;
END $$
EOC
	$holder->query_safe("$work; $memory");
	my $before = $holder->query_safe($memory);
	$holder->query_safe($work);
	cmp_ok($holder->query_safe($memory) - $before, '<', 300_000, 'leases that are over take no memory');
	$holder->quit;
}

# The server's ends.
my %end = (
	'kill -9 of its backend' => sub { kill_server_process($node, $_[0]->pid) },
	'kill -9 of another backend' => sub { kill_server_process($node, $waiter->pid) },
	'immediate shutdown' => sub { $node->stop('immediate'); $node->start },
	'fast shutdown' => sub { $node->stop('fast'); $node->start },
	'crash' => sub { crash_node($node); $node->start },
	'kill -9 of the postmaster' => sub { crash_node($node, orphans => 1); $node->start });
foreach my $what (sort keys %end)
{
	my $holder = DLockSession->new($node, $db);
	my $token = $holder->query_safe("SELECT dlock_acquire('server-none', 'holder', '1 h', reentry => 'return')");
	$holder->query_safe("SELECT dlock_acquire('server-session', 'holder', bind => 'session'), dlock_acquire('server-ttl', 'holder', '1 h', bind => 'session'), dlock_acquire_path('server-path/a', 'holder', bind => 'session')");
	$holder->query_safe("BEGIN; SELECT dlock_acquire('server-transaction', 'holder', bind => 'transaction')");
	$waiter->ask_waiting($monitor, "SELECT dlock_acquire('server-none', 'waiter', wait => NULL)");
	is($monitor->query_safe("SELECT count(*) FROM dlock_leases WHERE name LIKE 'server-%'"), 6, "$what: held before");
	$end{$what}->($holder);
	is( $node->safe_psql($db, "SELECT string_agg(name || ' ' || token, ',') FROM dlock_leases WHERE name LIKE 'server-%'"),
		"server-none $token",
		"$what: bound leases are gone, the other is held");
	is( $node->safe_psql($db, "SELECT count(token) FROM (SELECT dlock_acquire(name, 'next', '1 h') AS token FROM unnest('{server-session,server-ttl,server-path,server-transaction,server-none}'::text[]) name) s WHERE token > $token"),
		4, "$what: free at once");
	is($node->safe_psql($db, 'SELECT count(*) FROM dlock_waiters'), 0, "$what: nobody waits");
	$node->safe_psql($db, "SELECT dlock_release_all('next')");
	flush_wal($node, $db);
	like($_->answer, qr/^(?:FATAL|LOST|ERROR)/, "$what: the session was cut off") foreach $waiter;
	$_->kill_client foreach grep { !$_->{lost} } $holder, $monitor;
	($monitor, $waiter) = map { DLockSession->new($node, $db) } 1 .. 2;
}

$_->quit foreach $monitor, $waiter;
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:/, 'nothing odd in the log');
done_testing();
