# Proves: of three processes that campaign one leads; when it is killed, is stopped,
# resigns, or the server crashes, another one leads or the same goes on, with what
# observers see, and tokens that let no late write of an old leader through.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockStandby;
use DLockTest;
use POSIX ();
use Test::More;

my $node = start_fault_node('main', allows_streaming => 1);
my $db = 'postgres';
$node->safe_psql($db, <<'EOC');
CREATE ROLE app LOGIN;
CREATE TABLE state (token bigint);
INSERT INTO state VALUES (0);
CREATE TABLE work (id bigint GENERATED ALWAYS AS IDENTITY, leader text, token bigint);
EOC
my $one = DLockSession->new($node, $db);
my $two = DLockSession->new($node, $db);

# What a process does for ever: campaign, and if it leads, a piece of work that
# carries the token.  The others wait until the leader's term is over.
my $script = <<'EOC';
while :; do
	token=$(psql -XAtq -c "SELECT dlock_campaign('boss', '$0', ttl => '10 min', wait => '10 h', payload => '{\"host\": \"$0\"}')")
	[ -z "$token" ] || psql -XAtq -c "
		WITH fence AS (UPDATE state SET token = $token WHERE token <= $token RETURNING token)
		INSERT INTO work (leader, token) SELECT '$0', token FROM fence"
	sleep 0.05
done
EOC
my %process;

sub start_process
{
	my ($name) = @_;
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		setpgrp;
		open STDIN, '<', '/dev/null';
		open STDOUT, '>', '/dev/null';
		open STDERR, '>', '/dev/null';
		$ENV{PGHOST} = $node->host;
		$ENV{PGPORT} = $node->port;
		$ENV{PGDATABASE} = $db;
		exec 'bash', '-c', $script, $name or POSIX::_exit(1);
	}
	return $process{$name} = $pid;
}

sub kill_process
{
	my ($name) = @_;
	my $pid = delete $process{$name} or return;

	kill 'KILL', -$pid;
	waitpid $pid, 0;
	return;
}

END { my $status = $?; kill_process($_) foreach keys %process; $? = $status }

# The other two wait to be elected.
sub others_wait
{
	wait_until(sub { $node->safe_psql($db, "SELECT count(*) FROM dlock_waiters WHERE name = 'boss'") eq '2' }) or die 'they do not wait';
	return;
}

sub leader { return $node->safe_psql($db, "SELECT leader FROM dlock_leader('boss')") }
sub token { return $node->safe_psql($db, "SELECT token FROM dlock_leader('boss')") }

# Wait until somebody leads with a token above this one, and does work that is not
# among what was there before.
sub works_above
{
	my ($token, $test_name, $before) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $found;

	ok( wait_until(
			sub {
				$found = $node->safe_psql($db, "SELECT leader FROM work WHERE token > $token AND id > " . ($before // 0) . " ORDER BY id DESC LIMIT 1");
				return $found ne '';
			}),
		$test_name);
	return $found;
}

# Tokens never go back, and each is one leader's.
sub work_is_fenced
{
	my ($test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is( $node->safe_psql($db,
			'SELECT count(*) FROM (SELECT token < lag(token) OVER (ORDER BY id) AS back FROM work) w WHERE back'),
		0, "$test_name: no late write");
	is( $node->safe_psql($db,
			'SELECT count(*) FROM (SELECT token FROM work GROUP BY token HAVING count(DISTINCT leader) > 1) t'),
		0, "$test_name: a token is one leader's");
	return;
}

# The functions, one after the other.
is($one->query_safe("SELECT leader IS NULL AND since IS NULL AND token IS NULL AND payload IS NULL AND expires_at IS NULL FROM dlock_leader('e')"), 't', 'nobody leads');
my $first = $one->query_safe("SELECT dlock_campaign('e', 'a', '1 h', payload => '{\"host\": 1}')");
like($first, qr/^\d+$/, 'a leads');
is($two->query_safe("SELECT dlock_campaign('e', 'b', '1 h')"), '', 'b does not');
is($two->query_safe("SELECT dlock_resign('e', 'b')"), 'f', 'and cannot resign');
is($one->query_safe("SELECT dlock_campaign('e', 'a', '2 h', payload => '{\"host\": 1}')"), $first, 'a goes on: the same token');
is($one->query_safe("SELECT dlock_campaign('e', 'a', '1 h')"), $first, 'without a payload, too');
is( $two->query_safe("SELECT leader, token, payload, since < clock_timestamp(), expires_at - since = '2 h' FROM dlock_leader('e')"),
	"a|$first|{\"host\": 1}|t|t", 'all see who leads');
is($one->query_safe("SELECT dlock_check('e', $first)"), 't', 'it is a lease like any other');
{
	$two->ask_waiting($one, "SELECT token, owner, payload FROM dlock_watch('e', $first)");
	is($one->query_safe("SELECT dlock_campaign('e', 'a', '1 h', payload => '{\"host\": 2}')"), $first, 'with another payload: the same term');
	is($one->query_safe("SELECT payload FROM dlock_leader('e')"), '{"host": 1}', 'which keeps its payload');
	still_waits($one, 'a session that watches for another term goes on', $two);
	$one->query_safe("SELECT dlock_resign('e', 'a')");
	is($two->answer, '||', 'and is told of its end');
	my $second = $one->query_safe("SELECT dlock_campaign('e', 'a', '1 h', payload => '{\"host\": 2}')");
	cmp_ok($second, '>', $first, 'another term');
	is($one->query_safe("SELECT payload FROM dlock_leader('e')"), '{"host": 2}', 'with a payload of its own');
	$two->ask_waiting($one, "SELECT dlock_campaign('e', 'b', '1 h', wait => NULL)");
	is($one->query_safe("BEGIN; SELECT dlock_resign('e', 'a'); ROLLBACK"), 't', 'a resigns, and rolls back');
	cmp_ok($two->answer, '>', $second, 'b leads at once');
	is($one->query_safe("SELECT dlock_campaign('e', 'a', '1 h')"), '', 'a no longer');
	is($two->query_safe("SELECT dlock_resign('e', 'b')"), 't', 'b resigns');
	is($two->query_safe("SELECT leader FROM dlock_leader('e')"), '', 'nobody leads again');
}
{
	my $app = DLockSession->new($node, $db, user => 'app');
	$one->query_safe("SELECT dlock_campaign('e', 'a', '1 h')");
	is($app->query("SELECT dlock_campaign('e', 'a', '1 h')"), '', 'a candidate of another role that has the name of the leader loses');
	is($app->query("SELECT dlock_campaign('e', 'a', '1 h', payload => '{}')"), '', 'also with another payload');
	is($app->query("SELECT dlock_resign('e', 'a')"), 'f', 'and has no term to end');
	is($app->query("BEGIN READ ONLY; SELECT leader FROM dlock_leader('e'); ROLLBACK"), 'a', 'but may look, in a read-only transaction');
	$app->quit;
}

# Three processes.
start_process($_) foreach qw(p1 p2 p3);
my $leader = works_above(0, 'one works');
my $token = token();
ok(wait_until(sub { $node->safe_psql($db, 'SELECT count(*) > 10 FROM work') }), 'and goes on');
is($node->safe_psql($db, 'SELECT count(DISTINCT token) FROM work'), 1, 'with one token');
is($node->safe_psql($db, "SELECT payload ->> 'host' FROM dlock_leader('boss')"), $leader, 'its address can be found');
is($node->safe_psql($db, "SELECT count(*) FROM dlock_leases WHERE name = 'boss'"), 1, 'there is one lease');

others_wait();
kill_process($leader);
is(leader(), $leader, 'killed: it leads up to the end of its term');
advance(600, $one);
my $next = works_above($token, 'killed: another one works');
isnt($next, $leader, 'killed: another one');
start_process($leader);

# It is stopped, in the middle of whatever it does.
($leader, $token) = ($next, token());
others_wait();
kill 'STOP', -$process{$leader};
advance(600, $one);
$next = works_above($token, 'stopped: another one works');
isnt($next, $leader, 'stopped: another one');
$token = token();
kill 'CONT', -$process{$leader};
others_wait();
is($node->safe_psql($db, "SELECT count(*) FROM dlock_waiters WHERE name = 'boss' AND owner = '$leader'"), 1, 'it is back, as a candidate');
work_is_fenced('stopped');

# It is told to go, and the one who waits is there at once.
($leader, $token) = (leader(), token());
others_wait();
is($node->safe_psql($db, "SELECT dlock_resign('boss', '$leader')"), 't', 'resigned');
works_above($token, 'resigned: somebody works');

# The server crashes: who leads comes back, if it is there in time.
$token = token();
crash_node($node);
$node->start;
$_->kill_client foreach $one, $two;
works_above($token - 1, 'crash: somebody works', $node->safe_psql($db, 'SELECT max(id) FROM work'));
my $count = $node->safe_psql($db, 'SELECT count(*) FROM work');
ok(wait_until(sub { $node->safe_psql($db, 'SELECT count(*) FROM work') > $count + 5 }), 'crash: and goes on');
cmp_ok(token(), '>=', $token, 'crash: tokens do not go back');
kill_process($_) foreach keys %process;
work_is_fenced('at the end');

# A standby shows who leads, too.
{
	$one = DLockSession->new($node, $db);
	$one->query_safe("SELECT dlock_campaign('seen', 'a', '1 h', payload => '{\"host\": 1}')");
	my $standby = make_standby($node, 'standby');
	$node->wait_for_catchup($standby, 'replay', $node->lsn('flush'));
	is($standby->safe_psql($db, "SELECT leader, payload FROM dlock_leader('seen')"), 'a|{"host": 1}', 'a standby shows who leads');
	is($standby->safe_psql($db, "SELECT leader IS NULL FROM dlock_leader('nobody')"), 't', 'or that nobody does');
	$standby->stop;
	$one->quit;
}
$node->stop;
log_is_clean($node);
done_testing();
