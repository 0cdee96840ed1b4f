# Proves: the protocol of groups: a partition moves only when its owner has
# confirmed or is dead; memberships that are lost, taken over, left, or another
# role's; rollback, isolation, crash, dump; and processes that are killed while
# all beat at once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockSession;
use DLockTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_fault_node('main', conf => "max_connections = 60\n");
my $db = 'postgres';
$node->safe_psql($db, 'CREATE ROLE app LOGIN; CREATE ROLE other LOGIN; CREATE ROLE worker LOGIN IN ROLE app');
my ($one, $two) = map { DLockSession->new($node, $db) } 1 .. 2;

sub join_group
{
	my ($session, $group, $member, $ttl, $rest) = @_;
	return $session->query_safe("SELECT dlock_group_join('$group', '$member', '$ttl'" . ($rest // '') . ')');
}

# The tokens of the leases on partitions, whoever has them.
sub tokens
{
	my ($group, @partitions) = @_;
	return '{' . $one->query_safe("SELECT string_agg(token::text, ',') FROM dlock_leases WHERE name IN ('-'" . join('', map { ", 'group:$group/$_'" } @partitions) . ')') . '}';
}

# What a heartbeat says: "run 0 1 2, yield 3", or an error.  Partitions that are
# yielded are given by name here.
sub beat
{
	my ($session, $group, $token, @yielded) = @_;
	my $yielded = tokens($group, @yielded);
	return $session->query(
		"SELECT concat('run ', string_agg(partition, ' ' ORDER BY partition) FILTER (WHERE action = 'run'), ', yield ', string_agg(partition, ' ' ORDER BY partition) FILTER (WHERE action = 'yield')) FROM dlock_group_renew('$group', $token, '$yielded')");
}

sub owners
{
	my ($group, $session) = @_;
	return ($session // $one)->query_safe("SELECT string_agg(partition || coalesce(member, '-'), ' ' ORDER BY partition) FROM dlock_group_partitions WHERE group_name = '$group'");
}

# A member at its limit keeps no memory for partitions that it could not take.
{
	my $session = DLockSession->new($node, $db);
	my $used = 'SELECT memory_used FROM dlock_stats';

	$session->query_safe("SELECT dlock_group_create('limited', 2000)");
	my $token = join_group($session, 'limited', 'm', '1 h');
	$session->query_safe('SET dlock.max_leases = 5');
	my $before = $session->query_safe($used);
	$session->query("SELECT count(*) FROM dlock_group_renew('limited', $token)");
	cmp_ok($session->query_safe($used) - $before, '<', 100_000, 'a member at its limit gives memory back');
	$session->quit;
	$one->query_safe("SELECT dlock_group_leave('limited', $token)");
	$one->query_safe("SELECT dlock_group_drop('limited')");
}

# A partition moves by being told, confirmed, and taken.
{
	$one->query_safe("SELECT dlock_group_create('g', 4)");
	my $a = join_group($one, 'g', 'a', '1 h');
	is(owners('g'), '0- 1- 2- 3-', 'to join is not to run');
	is(beat($one, 'g', $a), 'run 0 1 2 3, yield ', 'the first one runs all');
	my $b = join_group($two, 'g', 'b', '1 h');
	is(beat($two, 'g', $b), 'run , yield ', 'the second one has to wait');
	is(beat($one, 'g', $a), 'run 0 1, yield 2 3', 'the first one is told');
	is(beat($one, 'g', $a), 'run 0 1, yield 2 3', 'and told again');
	is(beat($two, 'g', $b), 'run , yield ', 'nothing moves before it has confirmed');
	is(owners('g'), '0a 1a 2a 3a', 'it is still the owner');
	is(beat($one, 'g', $a, '3'), 'run 0 1, yield 2', 'confirmed with the heartbeat: one');
	is(owners('g'), '0a 1a 2a 3-', 'that one is free');
	is(beat($two, 'g', $b), 'run 3, yield ', 'and is taken');
	is($one->query_safe("SELECT dlock_group_yield('g', $a, '" . tokens('g', 2) . "')"), 1, 'confirmed by a call: the other');
	is($one->query_safe("SELECT dlock_group_yield('g', $a, '" . tokens('g', 2, 3) . "')"), 0, 'what it does not have, it does not yield');
	is(beat($two, 'g', $b), 'run 2 3, yield ', 'taken');
	is(beat($one, 'g', $a, 2, 3), 'run 0 1, yield ', 'nor those of others');
	is(owners('g'), '0a 1a 2b 3b', 'two each');
	is($one->query_safe("SELECT string_agg(concat_ws(' ', member, token, weight, owned, due, role, ttl), ', ' ORDER BY member) FROM dlock_group_members"),
		"a $a 1 2 2 postgres 01:00:00, b $b 1 2 2 postgres 01:00:00", 'the members');
	is($one->query_safe("SELECT dlock_group_leave('g', $b)"), 't', 'the second one leaves');
	is(owners('g'), '0a 1a 2- 3-', 'its partitions are free');
	is(beat($two, 'g', $b), 'ERROR LK002', 'it is told that it is no member');
	like($two->{message}, qr/membership in group "g" with token $b is not held/, 'in these words');
	is($two->query("SELECT dlock_group_yield('g', $b, '{1}')"), 0, 'nor has it anything to yield');
	is($one->query_safe("SELECT dlock_group_leave('g', $b)"), 'f', 'nor leave');
	is(beat($one, 'g', $a), 'run 0 1 2 3, yield ', 'the first one runs all again');

	# Told to yield, then no longer: it runs on, with the same token.
	$b = join_group($two, 'g', 'b', '1 h');
	my $token = $one->query_safe("SELECT token FROM dlock_group_partitions WHERE partition = '3'");
	like(beat($one, 'g', $a), qr/yield \d/, 'told to yield');
	$two->query_safe("SELECT dlock_group_leave('g', $b)");
	is(beat($one, 'g', $a), 'run 0 1 2 3, yield ', 'no longer');
	is($one->query_safe("SELECT token FROM dlock_group_partitions WHERE partition = '3'"), $token, 'the token is the same');
}

# A confirmation that comes late, of a lease that is over, ends none that came after.
{
	my $a = $one->query_safe("SELECT token FROM dlock_group_members WHERE member = 'a'");
	my $b = join_group($two, 'g', 'b', '1 h');
	my $late = tokens('g', 0 .. 3);
	beat($one, 'g', $a);
	is(beat($one, 'g', $a, 0 .. 3), 'run 0 1, yield ', 'late: given up more than it had to');
	beat($two, 'g', $b);
	$one->query_safe("SELECT dlock_group_leave('g', $b)");
	is(beat($one, 'g', $a), 'run 0 1 2 3, yield ', 'late: all are back');
	is($two->query_safe("SELECT dlock_group_yield('g', $a, '$late')"), 0, 'late: the confirmation of before');
	is(owners('g'), '0a 1a 2a 3a', 'late: nothing happens');
}

# The same name again is a new run of the same member.
{
	my $a = $one->query_safe("SELECT token FROM dlock_group_members WHERE member = 'a'");
	my $highest = $one->query_safe('SELECT max(token) FROM dlock_group_partitions');
	my $again = join_group($two, 'g', 'a', '1 h');
	cmp_ok($again, '>', $highest, 'joined again: a new token');
	is(beat($one, 'g', $a), 'ERROR LK002', 'joined again: the earlier run is told');
	is(beat($two, 'g', $again), 'run 0 1 2 3, yield ', 'joined again: it runs all');
	cmp_ok($one->query_safe('SELECT min(token) FROM dlock_group_partitions'), '>', $again, 'joined again: with new tokens');
	$two->query_safe("SELECT dlock_group_leave('g', $again)");
}

# A renewal that is under way when its member joins again tells of nothing, wherever that finds it.
{
	my $three = DLockSession->new($node, $db);
	my $a = join_group($one, 'g', 'a', '1 h');

	$three->query_safe("BEGIN; SELECT FROM _dlock.group_definition WHERE name = 'g' FOR UPDATE");
	$one->ask("SELECT count(*) FROM dlock_group_renew('g', $a)");
	wait_until(sub { $two->query_safe("SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted") }) or die 'it does not wait';
	my $again = join_group($two, 'g', 'a', '1 h');
	is(owners('g', $two), '0- 1- 2- 3-', 'joined meanwhile: nothing is taken yet');
	$three->quit;
	is($one->answer, 'ERROR LK002', 'joined meanwhile: the earlier run is told');
	is(beat($two, 'g', $again), 'run 0 1 2 3, yield ', 'joined meanwhile: the later one runs all');
	$two->query_safe("SELECT dlock_group_leave('g', $again)");
}

# What other roles put into the table or hold on the lock of their group breaks no view.
{
	is($one->query("INSERT INTO _dlock.group_definition VALUES (repeat('x', 300), current_user::regrole, '{a}')"), 'ERROR 22023', 'by hand: a name that is too long');
	is($one->query("UPDATE _dlock.group_definition SET partitions = '{NULL}'"), 'ERROR 22004', 'by hand: no name');
	$one->query_safe("SELECT dlock_group_create('odd', 3)");
	$one->query_safe("SELECT dlock_acquire('group:odd', 'group:odd/$_', '1 h', mode => 'shared', payload => '{\"weight\": $_}') IS NOT NULL") foreach '0', '"x"', 'null', '99999';
	my $member = join_group($one, 'odd', 'm', '1 h');
	is($one->query_safe("SELECT members FROM dlock_group_state WHERE group_name = 'odd'"), 1, 'odd weights: no members');
	is(beat($one, 'odd', $member), 'run 0 1 2, yield ', 'odd weights: the member gets all');
	$one->query_safe("SELECT dlock_force_release('group:odd', 'test') FROM generate_series(1, 2); SELECT dlock_release_all('group:odd/m'); SELECT dlock_group_drop('odd')");
}

# Weights.
{
	my $light = join_group($one, 'g', 'light', '1 h');
	my $heavy = join_group($two, 'g', 'heavy', '1 h', ', 3');
	like(beat($one, 'g', $light), qr/^run \d, yield $/, 'weight 1 of 4');
	like(beat($two, 'g', $heavy), qr/^run \d \d \d, yield $/, 'weight 3 of 4');
	$one->query_safe("SELECT dlock_group_leave('g', $light), dlock_group_leave('g', $heavy)");
}

# A member that does not beat loses all at its ttl, and nothing before, with nobody to
# tidy up.
{
	pause_worker($node);
	my $a = join_group($one, 'g', 'a', '10 min');
	my $b = join_group($two, 'g', 'b', '1 h');
	advance(60, $two);
	is(beat($one, 'g', $a), 'run 0 1, yield ', 'two of four');
	advance(599.999999, $two);
	is(beat($two, 'g', $b), 'run 2 3, yield ', 'no more for the other one before the ttl');
	advance(0.000001, $two);
	is(beat($two, 'g', $b), 'run 0 1 2 3, yield ', 'the other one runs all at it');
	is(beat($one, 'g', $a), 'ERROR LK002', 'the dead one is told');
	resume_worker($node);
	$two->query_safe("SELECT dlock_group_leave('g', $b)");
}

# Transactions: members in open ones hold nobody up, nothing is undone, nothing
# fails for being serializable.
foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	$_->query_safe("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM dlock_groups") foreach $one, $two;
	my $a = join_group($one, 'g', 'a', '1 h');
	is(beat($one, 'g', $a), 'run 0 1 2 3, yield ', "$level: one runs all");
	my $b = join_group($two, 'g', 'b', '1 h');
	is(beat($one, 'g', $a), 'run 0 1, yield 2 3', "$level: is told");
	is(beat($one, 'g', $a, 2, 3), 'run 0 1, yield ', "$level: confirms");
	is(beat($two, 'g', $b), 'run 2 3, yield ', "$level: the other one takes them");
	is($one->query_safe('ROLLBACK; SELECT 1'), 1, "$level: rolled back");
	is($two->query_safe('COMMIT; SELECT 1'), 1, "$level: committed");
	is(owners('g'), '0a 1a 2b 3b', "$level: nothing is undone");
	$one->query_safe("SELECT dlock_group_leave('g', $a), dlock_group_leave('g', $b)");
}

# Roles.
{
	my $app = DLockSession->new($node, $db, user => 'app');
	my $other = DLockSession->new($node, $db, user => 'other');
	my $worker = DLockSession->new($node, $db, user => 'worker');
	$app->query_safe("SELECT dlock_group_create('own', 4)");
	is($one->query_safe("SELECT role FROM dlock_groups WHERE name = 'own'"), 'app', 'it belongs to that role');
	is($other->query("SELECT dlock_group_$_"), 'ERROR 42501', "strangers may not: $_")
	  foreach "join('own', 'x')", "alter('own', 5)", "drop('own')";
	is($other->query("SELECT dlock_group_create('own', 5)"), 'ERROR 42710', 'nor create it once more');
	my $a = join_group($app, 'own', 'a', '1 h');
	my $w = join_group($worker, 'own', 'w', '1 h');
	is(beat($worker, 'own', $w), 'run 0 1, yield ', 'members of the role may join');
	is(beat($app, 'own', $a), 'run 2 3, yield ', 'and the role itself');
	is(beat($app, 'own', $w), 'ERROR 42501', 'but it does not renew for its members');
	is(beat($other, 'own', $a), 'ERROR 42501', 'nobody beats for others');
	is($other->query("SELECT dlock_group_yield('own', $a, '" . tokens('own', 2) . "')"), 'ERROR 42501', 'nor yields');
	is($other->query("SELECT dlock_group_leave('own', $a)"), 'ERROR 42501', 'nor leaves');
	$worker->query_safe("SELECT dlock_group_alter('own', 6)");
	is(beat($app, 'own', $a), 'run 2 3 4, yield ', 'nothing of which a refused call has changed');
	is($other->query_safe("SELECT string_agg(concat_ws(' ', member, owned, role), ', ' ORDER BY member) FROM dlock_group_members"), 'a 3 app, w 2 worker', 'anybody may look');
	is(beat($one, 'own', $a), 'ERROR 42501', 'a superuser does not renew it, either: it would take partitions for itself');

	# Whoever is no longer a member of the role can only give back.
	$one->query_safe('REVOKE app FROM worker');
	is(beat($worker, 'own', $w), 'ERROR 42501', 'expelled: no renewal');
	is(beat($app, 'own', $a), 'run 2 3 4 5, yield ', 'expelled: what it still has stays its own, the rest is for others');
	is($one->query_safe("SELECT string_agg(member, ' ') FROM dlock_group_members"), 'a', 'expelled: it is no member, though');
	is($worker->query_safe("SELECT dlock_group_leave('own', $w)"), 't', 'expelled: may leave');
	is($worker->query("SELECT dlock_group_join('own', 'w')"), 'ERROR 42501', 'expelled: may not come back');

	# By hand, too, a role can do no more than with the functions.
	is($other->query("$_; SELECT count(*) FROM dlock_groups WHERE cardinality(partitions) = 6"), 1, "by hand: $_")
	  foreach "DELETE FROM _dlock.group_definition", "UPDATE _dlock.group_definition SET partitions = '{a}'";
	is($app->query($_), 'ERROR 42501', "not by hand: $_")
	  foreach "UPDATE _dlock.group_definition SET role = 'other'", "INSERT INTO _dlock.group_definition VALUES ('x', 'other', '{a}')";
	is($other->query("SELECT dlock_group_drop('own')"), 'ERROR 42501', 'strangers may not drop it');
	is($app->query_safe("SELECT dlock_group_leave('own', $a), dlock_group_drop('own')"), 't|t', 'its role may');
	$worker->quit;
	$_->quit foreach $app, $other;
}

# An operator takes a partition from a member that does not yield.
{
	my $a = join_group($one, 'g', 'a', '1 h');
	beat($one, 'g', $a);
	my $b = join_group($two, 'g', 'b', '1 h');
	is($two->query_safe("SELECT dlock_force_release('group:g/2', 'a is stuck')"), 1, 'by force');
	is(beat($two, 'g', $b), 'run 2, yield ', 'it is taken');
	is(beat($one, 'g', $a), 'run 0 1, yield 3', 'the old owner no longer has it');
	$one->query_safe("SELECT dlock_group_leave('g', $a), dlock_group_leave('g', $b)");
}

# Other partitions: more, fewer, of other names.
{
	my $a = join_group($one, 'g', 'a', '1 h');
	beat($one, 'g', $a);
	$one->query_safe("SELECT dlock_group_alter('g', 6)");
	is(beat($one, 'g', $a), 'run 0 1 2 3 4 5, yield ', 'more partitions');
	$one->query_safe("SELECT dlock_group_alter('g', names => '{1,5,eu}')");
	is(beat($one, 'g', $a), 'run 1 5 eu, yield 0 2 3 4', 'others, and those that have left are given up');
	is($one->query_safe("SELECT dlock_group_yield('g', $a, '" . tokens('g', 0) . "')"), 1, 'one that is no longer in the group can be yielded');
	is($one->query_safe("SELECT dlock_group_drop('g')"), 't', 'dropped');
	is(beat($one, 'g', $a), 'ERROR 42704', 'a heartbeat says so');
	is($one->query_safe("SELECT dlock_group_drop('g')"), 'f', 'once');
	is($one->query_safe("SELECT dlock_group_leave('g', $a)"), 't', 'its members can leave');
	is($one->query_safe("SELECT count(*) FROM dlock_leases"), 0, 'nothing is left');
}

# All at one moment: each gets what it is due with its first heartbeat.
{
	my @sessions = map { DLockSession->new($node, $db) } 1 .. 8;
	my $uneven = 0;

	$one->query_safe("SELECT dlock_group_create('at-once', 4003)");
	foreach my $round (1 .. 5)
	{
		my @tokens = map { join_group($sessions[$_], 'at-once', "m$_", '1 h') } 0 .. $#sessions;
		$two->query_safe('SELECT pg_advisory_lock(1)');
		$sessions[$_]->ask("SELECT pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1); SELECT count(*) FROM dlock_group_renew('at-once', $tokens[$_])") foreach 0 .. $#sessions;
		wait_until(sub { $one->query_safe("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == @sessions }) or die 'they do not wait';
		$two->query_safe('SELECT pg_advisory_unlock(1)');
		$_->answer foreach @sessions;
		$uneven++ if $one->query_safe("SELECT min(owned), max(owned), sum(owned) FROM dlock_group_members WHERE group_name = 'at-once'") ne '500|501|4003';
		$one->query_safe("SELECT dlock_group_leave('at-once', $_)") foreach @tokens;
	}
	is($uneven, 0, 'at one moment: even after one heartbeat of each');
	$_->quit foreach @sessions;
	$one->query_safe("SELECT dlock_group_drop('at-once')");
}

# A crash of the server: all have what they had.
{
	$one->query_safe("SELECT dlock_group_create('c', 10)");
	my $a = join_group($one, 'c', 'a', '1 h');
	my $b = join_group($one, 'c', 'b', '1 h');
	beat($one, 'c', $_) foreach $a, $b;
	my $before = $one->query_safe('SELECT group_name, partition, member, token FROM dlock_group_partitions ORDER BY partition');
	crash_node($node);
	$node->start;
	$_->kill_client foreach $one, $two;
	($one, $two) = map { DLockSession->new($node, $db) } 1 .. 2;
	is($one->query_safe('SELECT group_name, partition, member, token FROM dlock_group_partitions ORDER BY partition'), $before, 'the same after a crash');
	is(beat($one, 'c', $a), 'run 0 1 2 3 4, yield ', 'and on it goes');
	$one->query_safe("SELECT dlock_group_leave('c', $a), dlock_group_leave('c', $b)");
}

# A dump has the groups, and no members.
{
	my $file = PostgreSQL::Test::Utils::tempdir . '/dump';
	join_group($one, 'c', 'a', '1 h');
	$node->command_ok([ 'pg_dump', '-f', $file, $node->connstr($db) ], 'pg_dump');
	$node->safe_psql($db, 'CREATE DATABASE restored');
	$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored'), '-f', $file ], 'restored');
	is($node->safe_psql('restored', 'SELECT name, cardinality(partitions) FROM dlock_groups'), 'c|10', 'the group is there');
	is($node->safe_psql('restored', "SELECT role = current_user::regrole FROM dlock_groups"), 't', 'and belongs to its role');
	is($node->safe_psql('restored', 'SELECT count(*) FROM dlock_group_members'), 0, 'its members are not');
}

# Not found through search_path.
{
	$node->safe_psql($db, 'CREATE DATABASE elsewhere');
	$node->safe_psql('elsewhere', 'CREATE SCHEMA s; CREATE EXTENSION dlock SCHEMA s');
	is( $node->safe_psql('elsewhere', <<'EOC'),
SET search_path = pg_catalog;
SELECT s.dlock_group_create('g', 2), s.dlock_once('o', '1 day') > 0, s.dlock_campaign('e', 'a', payload => '{}') > 0,
       s.dlock_campaign('e', 'a', payload => '[]') > 0, s.dlock_resign('e', 'a'), s.dlock_leader('e');
SELECT count(*) FROM s.dlock_group_renew('g', s.dlock_group_join('g', 'a'));
SELECT s.dlock_group_alter('g', 3), s.dlock_group_drop('g');
EOC
		"|t|t|t|t|(,,,,)\n2\n|t", 'in another schema');
}

# No memory for more: what a member has it keeps, and is told of.
{
	my $small = start_node('small', conf => 'dlock.max_memory = 1MB');
	my $session = DLockSession->new($small, $db);
	$session->query_safe("SELECT dlock_group_create('g', 4)");
	my $a = join_group($session, 'g', 'a', '1 h');
	is(beat($session, 'g', $a), 'run 0 1 2 3, yield ', 'memory: there is enough');
	$session->query_safe(<<'EOC');
DO $$
BEGIN
	FOR i IN 1 .. 100000 LOOP
		PERFORM dlock_acquire('fill-' || i, 'filler', '1 h');
	END LOOP;
EXCEPTION WHEN configuration_limit_exceeded THEN
	NULL;
END $$;
EOC
	$session->query_safe("SELECT dlock_group_alter('g', 2000)");
	is($session->query_safe("SELECT count(*) FROM dlock_group_renew('g', $a) WHERE action = 'run'"), 4, 'memory: full, and it keeps what it has');
	like($session->{stderr}, qr/WARNING:  53400: could not acquire partitions of group "g"/, 'memory: it is warned');
	is($session->query_safe("BEGIN; SELECT count(*) FROM dlock_group_renew('g', $a); COMMIT"), 4, 'memory: in a transaction, which goes on');
	$session->query_safe("SELECT dlock_release_all('filler')");
	is($session->query_safe("SELECT count(*) FROM dlock_group_renew('g', $a) WHERE action = 'run'"), 2000, 'memory: there is some, and it takes them');
	is($session->query_safe("SELECT dlock_group_leave('g', $a), (SELECT count(*) FROM dlock_leases)"), 't|0', 'memory: nothing is left');
	$session->quit;
	$small->stop;
	unlike(slurp_file($small->logfile), qr/PANIC|TRAP:|leak/, 'memory: nothing odd in the log');
}

# Time passes from here on.
run_clock();

# Processes, all at once, some of them killed.  What they do says the tokens that
# they do it with.
my $partitions = 24;
my $script = <<'EOC';
m= y={}
while :; do
	if [ -z "$m" ]; then
		m=$(psql -XAtq -c "SELECT dlock_group_join('p', '$0', ttl => '4 s')")
	elif out=$(psql -XAtq -c "SELECT beat('$0', $m, '$y')"); then
		y=$out
	else
		m= y={}
	fi
	sleep 0.05
done
EOC
my %process;
END { my $status = $?; kill 'KILL', values %process; $? = $status }
{
	$one->query_safe(<<"EOC");
SELECT dlock_group_create('p', $partitions);
CREATE TABLE part (id text PRIMARY KEY, token bigint);
INSERT INTO part SELECT i, 0 FROM generate_series(0, $partitions - 1) i;
CREATE TABLE work (id bigint GENERATED ALWAYS AS IDENTITY, part text, token bigint, member text);
CREATE TABLE refused (part text, token bigint, member text);
CREATE FUNCTION beat(me text, membership bigint, yielded bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS \$\$
DECLARE p record; yield bigint[] := '{}';
BEGIN
	FOR p IN SELECT * FROM dlock_group_renew('p', membership, yielded) ORDER BY partition LOOP
		IF p.action = 'yield' THEN
			yield := yield || p.token;
		ELSE
			UPDATE part SET token = p.token WHERE id = p.partition AND part.token <= p.token;
			IF FOUND THEN
				INSERT INTO work (part, token, member) VALUES (p.partition, p.token, me);
			ELSE
				INSERT INTO refused VALUES (p.partition, p.token, me);
			END IF;
		END IF;
	END LOOP;
	RETURN yield;
END \$\$;
EOC
	my $start = sub {
		my ($name) = @_;
		my $pid = fork // die "fork: $!";

		if ($pid == 0)
		{
			open STDIN, '<', '/dev/null';
			open STDOUT, '>', '/dev/null';
			open STDERR, '>', '/dev/null';
			@ENV{qw(PGHOST PGPORT PGDATABASE)} = ($node->host, $node->port, $db);
			exec 'bash', '-c', $script, $name or POSIX::_exit(1);
		}
		$process{$name} = $pid;
	};
	my $kill = sub {
		my ($name) = @_;
		my $pid = delete $process{$name};
		kill 'KILL', $pid;
		waitpid $pid, 0;
	};
	# Each has its part of the partitions, and works on them.
	my $is_even = sub {
		my $members = keys %process;
		my ($least, $most) = (int($partitions / $members), int(($partitions + $members - 1) / $members));
		my $even;
		ok( wait_until(
				sub {
					$even = $one->query_safe("SELECT count(*) = $members AND sum(owned) = $partitions AND min(owned) = $least AND max(owned) = $most FROM dlock_group_members WHERE group_name = 'p'");
					return $even eq 't';
				}),
			"$members processes: evenly spread");
		my $last = $one->query_safe('SELECT coalesce(max(id), 0) FROM work');
		ok( wait_until(
				sub {
					$one->query_safe("SELECT count(DISTINCT part) FROM work WHERE id > $last") == $partitions;
				}),
			"$members processes: all partitions are worked on");
	};

	$start->("m$_") foreach 1 .. 5;
	$is_even->();
	my $next = 6;
	foreach my $round (1 .. 3)
	{
		my @names = sort keys %process;
		$kill->($names[ $round % @names ]);
		$is_even->();
		$start->('m' . $next++);
		$is_even->();
	}
	my @names = sort keys %process;
	$kill->($names[0]);
	$start->($names[0]);    # before its ttl
	$is_even->();
	$kill->($_) foreach keys %process;

	note $one->query_safe('SELECT count(*), count(DISTINCT token), count(DISTINCT member) FROM work');
	is( $one->query_safe('SELECT count(*) FROM (SELECT FROM work GROUP BY part, token HAVING count(DISTINCT member) > 1) w'),
		0, 'a token is one member\'s');
	is( $one->query_safe('SELECT count(*) FROM (SELECT token < lag(token) OVER (PARTITION BY part ORDER BY id) AS back FROM work) w WHERE back'),
		0, 'tokens of a partition ascend');
	note 'refused: ' . $one->query_safe('SELECT count(*) FROM refused');
}

$_->quit foreach $one, $two;
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:/, 'nothing odd in the log');
done_testing();
