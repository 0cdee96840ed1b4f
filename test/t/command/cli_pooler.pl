# Proves: behind PgBouncer, in transaction and in session mode, dlock does what it
# does, with the timeouts of the role out of the way, and leaves nothing behind in
# the pool's sessions.  Captures of tasks wait, and are cancelled.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockTest;
use IO::Socket::UNIX;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/sbin';
plan skip_all => 'pgbouncer is needed' unless defined $pgbouncer;

my $node = init_node('main');
$node->start;
my $db = 'postgres';
$node->safe_psql($db, "CREATE EXTENSION dlock; CREATE ROLE pooled LOGIN SUPERUSER; SELECT dlock_queue_create('queue')");

# So short that to wait for longer takes no time, and so long that a statement that
# is not to wait is not hit.
$node->safe_psql($db, "ALTER ROLE pooled SET $_")
  foreach "statement_timeout = '3s'", "lock_timeout = '2900ms'", "client_connection_check_interval = '7min'";
use_server($node);

sub sql
{
	my ($sql) = @_;
	return $node->safe_psql($db, $sql);
}

# Start one that has one session of the server's, so that all that follows is in the
# session that was used before.  Returns its process, and the directory of its socket.
sub start_pgbouncer
{
	my ($mode) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir_short();
	my ($server, $port) = ($node->host, $node->port);

	append_to_file("$dir/users", qq("pooled" ""\n));
	append_to_file("$dir/ini", <<"EOC");
[databases]
$db = host=$server port=$port
[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = $dir
auth_type = trust
auth_file = $dir/users
pool_mode = $mode
default_pool_size = 1
EOC
	my $run = DLockCli->start({ program => $pgbouncer }, "$dir/ini");
	ok(wait_until(sub { $run->ended || IO::Socket::UNIX->new(Peer => "$dir/.s.PGSQL.$port") }) && !$run->ended,
		"$mode: PgBouncer is there")
	  or diag($run->err);
	return ($run, $dir);
}

# What is set in a session of a pool, and whose session that is.
sub settings
{
	my ($host) = @_;
	return $node->safe_psql($db, <<'EOC', connstr => "host=$host port=" . $node->port . " dbname=$db user=pooled");
SELECT pg_backend_pid(), string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings
	WHERE name ~ 'timeout$|^client_|^dlock|^search_path$|^synchronous_commit$'
EOC
}

# Do all kinds of things through a pooler.
sub go_through
{
	my ($mode, $host) = @_;
	my $before = settings($host);
	my $same = sub {
		my ($what) = @_;
		local $Test::Builder::Level = $Test::Builder::Level + 1;
		is(settings($host), $before, "$mode: the session is as it was: $what");
	};
	local @ENV{qw(PGHOST PGUSER)} = ($host, 'pooled');

	like($before, qr/statement_timeout=3000/, "$mode: the role's settings");
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
	my ($mode, $host, $same) = @_;
	local @ENV{qw(PGHOST PGUSER)} = ($host, 'pooled');

	sql("SELECT dlock_acquire('long', 'holder', '1 h')");
	my $run = DLockCli->start(qw(run -v long sleep 4));
	run_waits($node, 'long');
	ok(wait_until(sub { sql("SELECT waited > interval '4 s' FROM dlock_waiters WHERE name = 'long'") eq 't' }),
		"$mode: keeps its place in the queue");
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

# A capture waits, for so long at least (seconds).
sub capture_waits
{
	my ($seconds) = @_;
	return $node->poll_query_until($db,
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE usename = 'pooled' AND state = 'active' AND wait_event_type = 'Extension' AND clock_timestamp() - query_start > '$seconds s'");
}

sub wait_for_tasks
{
	my ($mode, $host, $same) = @_;
	my $sql = "SELECT key FROM dlock_task_capture('queue', ttl => '1 h', wait => NULL)";
	local @ENV{qw(PGHOST PGUSER)} = ($host, 'pooled');

	my $run = DLockCli->start(qw(task capture --wait --ttl 1h queue));
	ok(capture_waits(4), "$mode: a capture waits for longer than the timeouts");
	sql("SELECT dlock_task_put('queue', '$mode')");
	is($run->finish->{code}, 0, "$mode: a capture that waited");
	like($run->{out}, qr/^$mode\t\d+\t\n\z/, "$mode: it has the task");
	is($run->{err}, '', "$mode: without a break");
	cli_is([ qw(task finish queue), $mode, (split /\t/, $run->{out})[1] ], {}, "$mode: the task is finished");
	$run = DLockCli->start(qw(task capture --wait queue));
	capture_waits(0);
	$run->signal('TERM');
	is($run->finish->{code}, 143, "$mode: a capture is cancelled");
	$same->('captures');

	# A program that waits in SQL.
	$run = DLockCli->start({ program => 'psql' }, '-XAtqc', $sql);
	capture_waits(0);
	sql("SELECT dlock_task_put('queue', '$mode in SQL')");
	is($run->finish->{out}, "$mode in SQL\n", "$mode: a capture in SQL");
	$run = DLockCli->start({ program => 'psql' }, '-XAtqc', $sql);
	capture_waits(0);
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
	my ($run, $dir) = start_pgbouncer($mode);
	my $same = go_through($mode, $dir);

	take_long($mode, $dir, $same);
	wait_for_tasks($mode, $dir, $same);
	local @ENV{qw(PGHOST PGUSER)} = ($dir, 'pooled');

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
		my $go = "$dir/go";
		my $between = DLockCli->start(qw(run -s between sh -c), "echo up; while [ ! -e $go ]; do sleep 0.1; done");
		$between->wait_out(qr/up/);
		foreach my $turn (1 .. 3)
		{
			my $last = sql('SELECT renewals FROM dlock_stats');
			$node->poll_query_until($db, "SELECT renewals > $last FROM dlock_stats");
			$same->("after renewal $turn");
		}
		append_to_file($go, '');
		is($between->finish->{code}, 0, "$mode: shares the session");
		is($between->{err}, '', "$mode: shares the session, quietly");

		# A session of the pool that is cut off while idle is the pool's business.  Where the
		# pool does not get to know in time, a renewal meets the end, and another one follows.
		sql("ALTER ROLE pooled SET idle_session_timeout = '500ms'");
		sql("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'pooled' AND pid <> pg_backend_pid()");
		my $idle = cli(qw(run -s idle sleep 3));
		is($idle->{code}, 0, "$mode: idle sessions are cut off: exit code");
		like($idle->{err}, qr/^(?:dlock: warning: .*; trying again\n(?:.*\n)*?dlock: warning: .* is renewed again\n)*\z/, "$mode: idle sessions are cut off: message");
		like(settings($dir), qr/idle_session_timeout=500/, "$mode: and will be");
		sql('ALTER ROLE pooled RESET idle_session_timeout');
	}
	$run->signal('INT');
	$run->finish;
}

$node->stop;
done_testing();
