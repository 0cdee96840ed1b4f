# Proves: behind PgBouncer, in transaction and in session mode, dlock does what it
# does, with the timeouts of the role out of the way, and leaves nothing behind in
# the pool's sessions.  Captures of tasks wait, and are cancelled.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockPooler;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'pgbouncer is needed' unless DLockPooler::is_installed();

my $node = init_node('main');
$node->start;
my $db = 'postgres';
$node->safe_psql($db, "CREATE EXTENSION dlock; CREATE ROLE pooled LOGIN SUPERUSER; SELECT dlock_queue_create('queue')");

# They are short only while something is to wait for longer.
$node->safe_psql($db, "ALTER ROLE pooled SET $_") foreach "client_connection_check_interval = '7min'", "idle_session_timeout = '1h'";
sub timeouts_are
{
	my ($time) = @_;
	return set_timeouts($node, statement_timeout => $time, lock_timeout => $time);
}
timeouts_are('1h');
use_server($node);

sub sql
{
	my ($sql) = @_;
	return $node->safe_psql($db, $sql);
}

# What is set in a session of a pool, and whose session that is.
sub settings
{
	my ($pooler) = @_;
	return $node->safe_psql($db, <<'EOC', connstr => "host=$pooler->{host} port=$pooler->{port} dbname=$db user=pooled");
SELECT pg_backend_pid(), string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings
	WHERE name ~ 'timeout$|^client_|^dlock|^search_path$|^synchronous_commit$'
EOC
}

# Do all kinds of things through a pooler.
sub go_through
{
	my ($mode, $pooler) = @_;
	my $before = settings($pooler);
	my $same = sub {
		my ($what) = @_;
		local $Test::Builder::Level = $Test::Builder::Level + 1;
		is(settings($pooler), $before, "$mode: the session is as it was: $what");
	};

	like($before, qr/client_connection_check_interval=420000 .*idle_session_timeout=3600000 .*lock_timeout=3600000 .*statement_timeout=3600000/, "$mode: settings of others");
	cli_is([qw(run x -- true)], {}, "$mode: run");
	$same->('run');
	my $token = cli_is([qw(acquire --ttl 1h a)], { out => qr/^\d+\n\z/ }, "$mode: acquire")->{out};
	chomp $token;
	cli_is([qw(acquire -n a)], { code => 75, err => qr/held by/ }, "$mode: refused");
	cli_is([ 'renew', 'a', $token ], {}, "$mode: renew");
	cli_is([qw(status a)], { out => qr/\Q$token\E/ }, "$mode: status");
	cli_is([qw(watch -n 1 a)], { out => qr/\Q$token\E/ }, "$mode: watch");
	cli_is([qw(wait -w 0.1 a)], { code => 75, err => qr/still held/ }, "$mode: wait");
	cli_is([ 'release', 'a', $token ], {}, "$mode: release");
	cli_is([qw(force-release a --reason test)], { out => "0\n" }, "$mode: force-release");
	$same->('single requests');
	cli_is([ 'acquire', '' ], { code => 64, err => qr/lock name must not be empty/ }, "$mode: an error");
	cli_is([qw(acquire --payload {a a)], { code => 64, err => qr/json/ }, "$mode: an error before the statement begins");
	$same->('errors');
	return $same;
}

# Longer than the timeouts: as who waits, and as who holds.
sub take_long
{
	my ($mode, $same) = @_;

	sql("SELECT dlock_acquire('long', 'holder', '1 h')");
	my $run = DLockCli->start(qw(run -v long sleep 2));
	run_waits($node, 'long');
	timeouts_are('1s');
	ok(waits_anew($node, 'pooled', 1.5), "$mode: keeps its place in the queue");
	timeouts_are('1h');
	sql("SELECT dlock_release('long', 'holder')");
	is($run->finish->{code}, 0, "$mode: waits, and keeps a lease");
	unlike($run->{err}, qr/connecting again|trying again(?!.*renewed again)/s, "$mode: without a break");
	$same->('a long time');

	sql("SELECT dlock_acquire('long', 'holder', '1 h')");
	$run = DLockCli->start(qw(run long true));
	run_waits($node, 'long');
	$run->signal('TERM');
	is($run->finish->{code}, 143, "$mode: cancelled");
	ok($node->poll_query_until($db, 'SELECT count(*) = 0 FROM dlock_waiters'), "$mode: cancelled at the server");
	sql("SELECT dlock_release('long', 'holder')");
	$same->('a cancel');
	return;
}

sub capture_waits
{
	return $node->poll_query_until($db,
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE usename = 'pooled' AND state = 'active' AND wait_event_type = 'Extension'");
}

sub wait_for_tasks
{
	my ($mode, $same) = @_;
	my $sql = "SELECT key FROM dlock_task_capture('queue', ttl => '1 h', wait => NULL)";

	my $run = DLockCli->start(qw(task capture --wait --ttl 1h queue));
	capture_waits();
	timeouts_are('1s');
	ok(waits_anew($node, 'pooled', 1.5), "$mode: a capture waits for longer than the timeouts");
	timeouts_are('1h');
	sql("SELECT dlock_task_put('queue', '$mode')");
	is($run->finish->{code}, 0, "$mode: a capture that waited");
	like($run->{out}, qr/^$mode\t\d+\t\n\z/, "$mode: it has the task");
	is($run->{err}, '', "$mode: without a break");
	cli_is([ qw(task finish queue), $mode, (split /\t/, $run->{out})[1] ], {}, "$mode: the task is finished");
	$run = DLockCli->start(qw(task capture --wait queue));
	capture_waits();
	$run->signal('TERM');
	is($run->finish->{code}, 143, "$mode: a capture is cancelled");
	$same->('captures');

	# A program that waits in SQL.
	$run = DLockCli->start({ program => 'psql' }, '-XAtqc', $sql);
	capture_waits();
	sql("SELECT dlock_task_put('queue', '$mode in SQL')");
	is($run->finish->{out}, "$mode in SQL\n", "$mode: a capture in SQL");
	$run = DLockCli->start({ program => 'psql' }, '-XAtqc', $sql);
	capture_waits();
	$run->signal('INT');
	like($run->finish->{err}, qr/ERROR:  canceling statement/, "$mode: a cancel in SQL");
	ok($node->poll_query_until($db, "SELECT count(*) = 0 FROM pg_stat_activity WHERE usename = 'pooled' AND state = 'active' AND pid <> pg_backend_pid()"),
		"$mode: nothing waits any more");
	sql("SELECT dlock_task_put('queue', '$mode again')");
	cli_is([qw(task capture --ttl 1h queue)], { out => qr/^$mode again\t/ }, "$mode: and no task was lost to it");
	$same->('captures in SQL');
	return;
}

foreach my $mode ('transaction', 'session')
{
	# It has one session of the server's, so that all that follows is in the session that was used before.
	my $pooler = DLockPooler->start($node, mode => $mode, user => 'pooled', size => 1);
	local @ENV{qw(PGHOST PGPORT PGUSER)} = (@$pooler{qw(host port)}, 'pooled');
	my $same = go_through($mode, $pooler);

	take_long($mode, $same);
	wait_for_tasks($mode, $same);

	# What is bound to a session ends when the pool says that the session has.
	my $psql = [ { program => 'psql' }, '-XAtqc' ];
	cli_is([ @$psql, "SELECT dlock_acquire('bound', 'client', bind => 'session')" ], { out => qr/^\d+\n\z/ }, "$mode: bound");
	$same->('bound');
	is(sql("SELECT count(*) FROM dlock_leases WHERE name = 'bound'"),
		$mode eq 'session' ? 0 : 1, "$mode: bound to a session of the pool");
	cli_is([ @$psql, "SELECT dlock_release('bound', 'client')" ], { out => $mode eq 'session' ? "f\n" : "t\n" }, "$mode: released");

	# It refuses what would carry the token to a command that connects to it.
	cli_is([ qw(run token psql -XAtqc), 'SELECT 1' ], { code => 2, err => qr/unsupported startup parameter/ }, "$mode: a token");
	cli_is([ qw(run --no-tokens token true) ], {}, "$mode: without tokens");

	if ($mode eq 'transaction')
	{
		# The session is free between renewals.
		my $between = start_ride(qw(-s between));
		foreach my $turn (1 .. 3)
		{
			my $last = sql('SELECT renewals FROM dlock_stats');
			$node->poll_query_until($db, "SELECT renewals > $last FROM dlock_stats");
			$same->("after renewal $turn");
		}
		is(end_ride($between)->{code}, 3, "$mode: shares the session");
		is($between->{err}, '', "$mode: shares the session, quietly");

		# A session of the pool that is cut off while idle is the pool's business.  Where the
		# pool does not get to know in time, a renewal meets the end, and another one follows.
		my $end_all = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'pooled' AND pid <> pg_backend_pid()";
		my $ridden = qr/^(?:dlock: warning: .*; trying again\n(?:.*\n)*?dlock: warning: .* is renewed again\n)*\z/;
		my $idle = start_ride(qw(-s idle));
		sql("ALTER ROLE pooled SET idle_session_timeout = '500ms'");
		sql($end_all);
		ok(wait_until(sub { 2 <= (() = slurp_file($node->logfile) =~ /idle-session timeout/g) }), "$mode: idle sessions are cut off, again and again");
		sql("ALTER ROLE pooled SET idle_session_timeout = '1h'");
		sql($end_all);
		my $last = sql('SELECT renewals FROM dlock_stats');
		$node->poll_query_until($db, "SELECT renewals > $last FROM dlock_stats");
		ok(wait_until(sub { $idle->err =~ $ridden }), "$mode: idle sessions are cut off: message") or diag($idle->err);
		is(end_ride($idle)->{code}, 3, "$mode: idle sessions are cut off: exit code");
	}
	$pooler->stop;
}

$node->stop;
done_testing();
