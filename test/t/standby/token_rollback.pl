# Proves: a database that comes back from a past, or knows nothing of it, grants
# tokens above all that were granted anywhere before: a snapshot put back, twice,
# and once more with dlock_bump_epoch(); a promotion that pg_rewind undoes, and a
# real one; a dump restored in two places; a new server that is sent the marks alone.
# All this within seconds of each other.  And a clock that is behind or too far ahead.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockStandby;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $dir = PostgreSQL::Test::Utils::tempdir;
my ($highest, $grants) = (0, 0);

# Of the last server alone.
my $clock = delete $ENV{DLOCK_TEST_CLOCK};

# Each call is a moment later than the one before, whatever the server: no token may
# be at or below one that was granted before.
sub grants_above
{
	my ($node, $name, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $first = $node->safe_psql($name,
		"SELECT dlock_acquire('name-' || " . $grants++ . ", 'alice', '1 h')");

	cmp_ok($first, '>', $highest, "$test_name: tokens are above all before");
	cmp_ok($first, '<', 2**53, "$test_name: and exact as a double");
	$highest = $node->safe_psql($name, <<"EOC");
SET synchronous_commit = off;
SELECT max(token) FROM (SELECT dlock_acquire('bulk-$grants', 'alice', '1 h') AS token, dlock_release('bulk-$grants', 'alice') FROM generate_series(1, 5000)) t;
EOC
	cmp_ok($highest, '>=', $first + 5000, "$test_name: and ascend");
	return $first;
}

my $main = start_node('main',
	allows_streaming => 1,
	conf => "wal_log_hints = on\nwal_keep_size = 1GB\n");
grants_above($main, $db, 'at first');

# A snapshot of the data directory, put back.
$main->stop;
PostgreSQL::Test::RecursiveCopy::copypath($main->data_dir, "$dir/snapshot");
$main->start;

sub put_back
{
	$main->stop;
	rename $main->data_dir, "$dir/dropped" . $grants or die $!;
	PostgreSQL::Test::RecursiveCopy::copypath("$dir/snapshot", $main->data_dir);
	chmod 0700, $main->data_dir;
	$main->start;
	return;
}
grants_above($main, $db, 'after the snapshot');
foreach my $time ('once', 'twice', 'a third time')
{
	put_back();
	grants_above($main, $db, "put back $time");
	if ($time eq 'twice')
	{
		my $below = $main->safe_psql($db, "SELECT dlock_bump_epoch('put back the snapshot')");
		cmp_ok($below, '>=', $highest, 'moved on: above all before');
		$highest = $below;
		grants_above($main, $db, 'moved on');
	}
}
put_back();
my $bumped = $main->safe_psql($db, "SELECT dlock_bump_epoch('at once')");
cmp_ok($bumped, '>', $highest, 'moved on at once: above all before');
$highest = $bumped;
grants_above($main, $db, 'moved on at once');

# Restarts and crashes, one after the other, do not make tokens run ahead of the clock,
# or else the next snapshot would be behind them.
for (1 .. 3)
{
	$main->stop('immediate');
	$main->start;
	grants_above($main, $db, 'a crash');
	$main->safe_psql($db, 'DROP EXTENSION dlock; CREATE EXTENSION dlock');
	grants_above($main, $db, 'created again');
}
put_back();
grants_above($main, $db, 'put back after crashes');

# A standby is promoted to try it, rewound, and promoted in earnest.
my $standby = make_standby($main, 'standby');
my $conf = slurp_file($standby->data_dir . '/postgresql.conf');
$main->wait_for_catchup($standby, 'replay', $main->lsn('insert'));
$standby->promote;
grants_above($standby, $db, 'a promotion to try it');
$standby->safe_psql($db, 'CHECKPOINT');
$standby->stop;

# Two servers that both go on are no matter of tokens; that is fenced off elsewhere.
$main->safe_psql($db, "SELECT dlock_acquire('goes-on', 'alice', '1 h'); CHECKPOINT");
command_ok(
	[
		'pg_rewind', '--source-server', $main->connstr($db),
		'--target-pgdata', $standby->data_dir, '--no-sync'
	],
	'pg_rewind');
{
	open my $out, '>', $standby->data_dir . '/postgresql.conf' or die $!;
	print $out $conf;
	close $out;
}
$standby->set_standby_mode;
$standby->start;
$main->wait_for_catchup($standby, 'replay', $main->lsn('insert'));
$main->safe_psql($db, "SELECT dlock_acquire('goes-on-longer', 'alice', '1 h')");
crash_node($main);
$standby->promote;
grants_above($standby, $db, 'a promotion in earnest');

# One dump, restored in two databases of one server and in another server.
my $new = init_node('new');
$new->start;
foreach my $n (0 .. 2)
{
	my $target = $n < 2 ? $standby : $new;

	command_ok([ 'pg_dump', '-Fc', '-f', "$dir/dump", $standby->connstr($db) ], 'pg_dump') if $n == 0;
	grants_above($standby, $db, 'the source goes on') if $n == 0;
	$target->safe_psql($db, "CREATE DATABASE restored$n");
	command_ok([ 'pg_restore', '-d', $target->connstr("restored$n"), "$dir/dump" ], 'pg_restore');
	grants_above($target, "restored$n", "restored, $n");
}

# A new server that gets the marks, and nothing that tells of tokens.
# The highest token is one of another database.
$standby->safe_psql($db, "BEGIN; SELECT dlock_fence('ledger', $highest); COMMIT");
my $marks = $standby->safe_psql($db, 'COPY _dlock.fence_mark TO STDOUT');
$new->safe_psql($db, "CREATE DATABASE marked");
$new->safe_psql('marked', "CREATE EXTENSION dlock");
$new->safe_psql('marked', "COPY _dlock.fence_mark FROM STDIN;\n$marks\n\\.\n");
my $old = $highest;
my $token = grants_above($new, 'marked', 'with the marks alone');
is($new->safe_psql('marked', "SELECT dlock_fence('ledger', $token)"), '', 'the new holder passes');
my ($ret, undef, $err) = $new->psql('marked', "SELECT dlock_fence('ledger', $old)");
isnt($ret, 0, 'the old one does not') or diag($err);

$_->stop foreach $standby, $new;

# Clocks that lie.
SKIP:
{
	skip 'only test/run compiles the library with fault points', 1 if ($ENV{DLOCK_FAULTS} // 'no') eq 'no';
	my $node = init_node('clock');
	my $ahead_by = 0;
	my $set_clock = sub {
		my ($ahead) = @_;
		step_wall_clock($ahead - $ahead_by);
		$ahead_by = $ahead;
	};
	my $start = sub {
		$set_clock->($_[0] // 0);
		local $ENV{DLOCK_TEST_CLOCK} = $clock;
		$node->start;
	};

	# Years ahead, then set right: tokens stay above, a step with each start.
	$start->(10 * 365 * 86400);
	$node->safe_psql($db, 'CREATE EXTENSION dlock');
	$highest = 0;
	my $ahead = grants_above($node, $db, 'ten years ahead');
	cmp_ok($ahead, '>', (10 * 365 * 86400) << 22, 'ten years ahead: so are tokens');
	my $last = $highest;
	for (1 .. 2)
	{
		$node->stop;
		$start->();
		my $first = grants_above($node, $db, 'set right');
		cmp_ok($first, '>', $last + 2**30, 'set right: well above');
		$last = $highest;
	}

	# A crash right after the first grant, which nothing has flushed: what its token was
	# taken from is on disk all the same.
	$node->append_conf('postgresql.conf', 'wal_writer_delay = 10s');
	for (1 .. 2)
	{
		$node->stop;
		$start->();
		my $first = $node->safe_psql($db, "SET synchronous_commit = off; SELECT dlock_acquire('unflushed', 'alice', '10 ms')");
		crash_node($node);
		$start->();
		cmp_ok($first, '>', $last, 'before a crash: above all before');
		$last = $first;
		$highest = $first;
		grants_above($node, $db, 'after the crash');
		$last = $highest;
	}

	# So far that no token would be left: refused, until the clock is right.
	$node->stop;
	$start->(70 * 365 * 86400);
	my ($code, undef, $stderr) = $node->psql($db, "\\set VERBOSITY verbose\nSELECT dlock_acquire('x', 'alice', '1 h')");
	like($stderr, qr/2200H: no fencing tokens are left at the time of this server's clock/,
		'at the end of time: refused');
	is($node->safe_psql($db, "SELECT count(*) FROM dlock_leases WHERE name = 'x'"), 0, 'at the end of time: nothing is held');
	$set_clock->(0);
	grants_above($node, $db, 'and right again');

	# Before 2026.
	$node->stop;
	$start->(-2 * 365 * 86400);
	grants_above($node, $db, 'a clock that is behind');
	$node->safe_psql($db, 'CREATE DATABASE early');
	$node->safe_psql('early', 'CREATE EXTENSION dlock');
	$highest = 0;
	grants_above($node, 'early', 'before the clock starts');
	$node->stop;
}

done_testing();
