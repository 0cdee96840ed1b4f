# Proves: a mark that was not raised by a fence, but written into the table as a subscription
# does, and is above the tokens of the database: it refuses older tokens with LK001, at once
# and without the store; tokens to come are above it, and all refusals cost one block of them;
# and it is not taken for what a transaction has passed with, be it after a rollback to a
# savepoint.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClock;
use DLockFault;
use DLockFence;
use DLockSession;
use DLockTest;
use Test::More;

my $db = 'postgres';
my $node = start_fault_node('main');
$node->safe_psql($db, <<'EOC');
CREATE TABLE device (token bigint, body text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON device FOR EACH ROW EXECUTE FUNCTION dlock_guard('token_column=token');
CREATE TABLE note (token bigint, body text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON note FOR EACH ROW EXECUTE FUNCTION dlock_guard('note', 'token_column=token');
EOC
my ($ctl, @s);

# An answer that does not come is an error of another kind, and soon.
sub connect_all
{
	$ctl = DLockSession->new($node, $db, name => 'control');
	@s = open_sessions($node, $db, 3, name => 's', setup => "SET lock_timeout = '10 s'");
	return;
}

# What the clock is so many seconds from now; no database grants a token above its own.
sub clock_token
{
	my ($seconds) = @_;

	return $ctl->query_safe("SELECT ((extract(epoch FROM _dlock.clock() - timestamptz '2026-01-01 UTC') + $seconds) * 4194304)::bigint");
}

# A mark arrives.
sub write_mark
{
	my ($resource, $mark) = @_;

	$ctl->query_safe(
		"INSERT INTO _dlock.fence_mark VALUES ('$resource', $mark, now(), 'elsewhere') ON CONFLICT (resource) DO UPDATE SET token = excluded.token");
	return;
}

sub grant
{
	return $s[0]->query_safe("SELECT dlock_acquire('lock' || random(), 'me', '1 h')");
}

sub reserved
{
	return $ctl->query_safe('SELECT last_value FROM _dlock.token_seq');
}

sub is_refused
{
	my ($session, $token, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return outcome_is($session, "SELECT dlock_fence('r', $token)", 'LK001', $test_name);
}

connect_all();
my $first = grant();

# Ahead of the block, several at a time.
{
	my $mark = clock_token(1);
	my $before = reserved();

	write_mark('r', $mark);
	$_->ask("SELECT dlock_fence('r', $first)") foreach @s;
	came_to_is($_, 'LK001', "ahead: $_->{name} is refused") foreach @s;
	is(reserved(), $before, 'ahead: to refuse reserves no tokens');
	is(grant(), $mark + 1, 'ahead: the next token is above the mark');
	is(reserved(), $mark + 65536, 'ahead: by one block');
	is(grant(), $mark + 2, 'ahead: and the next one follows it');
	outcome_is($s[1], "SELECT dlock_fence('r', $mark + 1)", '', 'ahead: it passes');
}

# Within the block, and below it.
{
	my $token = grant();
	my $before = reserved();

	write_mark('r', $token + 100);
	is_refused($s[1], $token, 'within the block: refused');
	is(grant(), $token + 101, 'within the block: the next token is above the mark');
	is_refused($s[1], $token, 'below the next token: refused');
	is(grant(), $token + 102, 'below the next token: no token is skipped');
	is(reserved(), $before, 'within the block: it is used up first');
}

# A mark that no database can have granted does not carry tokens with it.
{
	my $token = grant();

	write_mark('r', clock_token(86400));
	is_refused($s[1], $token, 'above all clocks: refused');
	is(grant(), $token + 1, 'above all clocks: tokens go on as they did');
}

# While a block is being reserved.
{
	my $reserver = DLockSession->new($node, $db, name => 'reserver');
	my $mark = clock_token(3);

	stop_at($ctl, $reserver, 'token_reserved');
	$reserver->ask("SELECT dlock_bump_epoch('test')");
	is_at($ctl, 'token_reserved');
	write_mark('r', $mark);
	is_refused($s[1], $first, 'while a block is reserved: refused');
	go($ctl, 'token_reserved');
	cmp_ok($reserver->answer, '<', $mark, 'while a block is reserved: it is below the mark');
	is(grant(), $mark + 1, 'while a block is reserved: and not used');
	$reserver->quit;
}

# What a transaction has passed with stays, whatever is written meanwhile.
{
	my $token = grant();
	my $mark = clock_token(6);

	outcome_is($s[1], "SELECT dlock_fence('note', $token)", '', 'savepoint: the mark stands');
	$s[1]->query_safe("BEGIN; SELECT dlock_fence('note', $token); SAVEPOINT a");
	write_mark('note', $mark);
	is($s[1]->query_safe("ROLLBACK TO a; INSERT INTO note(body) VALUES ('x') RETURNING token"),
		$token, 'savepoint: the transaction presents what it has passed with');
	is($s[1]->query_safe("SELECT dlock_fence('note', $token)"), '', 'savepoint: and has passed with that');
	$s[1]->query_safe('COMMIT');
	outcome_is($s[1], "SELECT dlock_fence('note', $token)", 'LK001', 'savepoint: the next transaction has not');
}

# Tokens of subtransactions, of which some end well and some not.
foreach my $table ('note', 'device')
{
	my @tokens = map { grant() } 1 .. 4;
	my $present = sub {
		my ($token) = @_;
		return $table eq 'note' ? "SELECT dlock_fence('note', $token);" : "INSERT INTO device VALUES ($token, '');";
	};
	my $presents = sub {
		my ($sql, $token, $test_name) = @_;
		return like($s[2]->query_safe("$sql; INSERT INTO $table(body) VALUES ('') RETURNING token"), qr/^\s*$token$/, "$table: $test_name");
	};

	$ctl->query_safe("DELETE FROM _dlock.fence_mark WHERE resource = 'note'");
	$presents->("BEGIN; " . $present->($tokens[0]), $tokens[0], 'the transaction');
	$presents->("SAVEPOINT a; " . $present->($tokens[1]), $tokens[1], 'its subtransaction');
	$presents->("SAVEPOINT b; " . $present->($tokens[2]) . 'RELEASE b', $tokens[2], 'one inside, which ends well');
	$presents->("SAVEPOINT c; " . $present->($tokens[3]) . 'ROLLBACK TO c', $tokens[2], 'one inside, which is rolled back');
	$presents->('ROLLBACK TO a', $tokens[0], 'rolled back as a whole');
	$s[2]->query_safe('ROLLBACK');
	is($s[2]->query("INSERT INTO $table(body) VALUES ('')"), 'ERROR LK003', "$table: the next transaction presents nothing");
}

# Nobody can use leases: their store is locked, and later they cannot be loaded.
{
	my $mark = clock_token(8);
	my $locker = DLockSession->new($node, $db, name => 'locker');

	outcome_is($s[1], "INSERT INTO device VALUES ($first, 'first')", '', 'a row that is its own mark');
	write_mark('r', $mark);
	$ctl->query_safe("ALTER TABLE device DISABLE TRIGGER ALL; UPDATE device SET token = $mark; ALTER TABLE device ENABLE TRIGGER ALL");
	$locker->query_safe('BEGIN; LOCK TABLE _dlock.store');
	is_refused($s[1], $first, 'the store is locked: refused');
	outcome_is($s[1], "UPDATE device SET token = $first", 'LK001', 'the store is locked: by the row');
	$locker->query_safe('ROLLBACK');
	$_->quit foreach $locker, $ctl, @s;
	$node->restart;
	connect_all();

	fail_at($ctl, $s[1], 'load_ready');
	is_refused($s[1], $first, 'leases are not loaded: refused');
	outcome_is($s[1], "UPDATE device SET token = $first", 'LK001', 'leases are not loaded: by the row');
	isnt(outcome($s[1], "SELECT dlock_check('x', 1)"), 'f', 'leases are not loaded: they cannot be');
	cmp_ok(grant(), '>', $mark, 'loaded: the first token is above the mark');
}

$_->quit foreach @s, $ctl;
$node->stop;
log_is_clean($node);
done_testing();
