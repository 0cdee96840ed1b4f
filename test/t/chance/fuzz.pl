# Proves: whatever arguments the functions of the extension get, with cancels,
# terminations and little memory, no call crashes the server or loses a session that
# was not terminated, and each error is one that doc/reference/sql.md lists, or one of
# the server's own about values and transactions; and what is left of leases and places fits together.
#
#   DLOCK_PROOF_SECONDS    how long (20)
#   DLOCK_SEED             the choices of another run

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib", "$FindBin::RealBin/../../proof";

use DLockFault;
use DLockFuzz;
use DLockProof;
use DLockSession;
use DLockTest;
use POSIX qw(:sys_wait_h);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $db = 'postgres';
my $seconds = DLockProof::seconds(20);
my $sessions = 3;
my $statements = 150;
seed_random();

# The sessions may fill a log; what it shows below are background processes.
my $has_faults = ($ENV{DLOCK_FAULTS} // 'no') ne 'no';
my $node = ($has_faults ? \&start_fault_node : \&start_node)->('main', conf => <<'EOC');
dlock.max_memory = 1MB
max_prepared_transactions = 5
deadlock_timeout = 50ms
log_min_messages = error
log_error_verbosity = verbose
EOC
$node->safe_psql($db, <<'EOC');
CREATE ROLE fuzz_a LOGIN;
CREATE ROLE fuzz_b LOGIN;
GRANT fuzz_b TO fuzz_a;
ALTER ROLE fuzz_a SET log_min_messages = panic;
ALTER ROLE fuzz_b SET log_min_messages = panic;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO fuzz_a;
CREATE TABLE guarded (id int, name text, token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guarded EXECUTE FUNCTION dlock_guard('a');
CREATE TABLE per_row (id int, name text, v bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON per_row FOR EACH ROW
	EXECUTE FUNCTION dlock_guard('resource_column=name', 'token_column=v');
GRANT ALL ON guarded, per_row TO fuzz_a, fuzz_b;
SET ROLE fuzz_b;
SELECT dlock_group_create('g', 3);
SELECT dlock_queue_create('q');
SELECT dlock_task_put('q', 'k1'), dlock_task_put('q', 'k2');
EOC

# ---------------------------------------------------------------------------
# What errors there may be
# ---------------------------------------------------------------------------

my $reference = slurp_file("$FindBin::RealBin/../../../doc/reference/sql.md");
my ($list) = $reference =~ /\n## Errors\n(.*?)\n### /s or die 'no list of errors';
my %documented;

foreach my $row ($list =~ /^- ([0-9A-Z, ]+):/mg)
{
	$documented{$_} = 1 foreach grep { !/^XX/ && length == 5 } split /, /, $row;
}
cmp_ok(scalar keys %documented, '>', 20, 'the documentation lists errors');

# What the server says of values before a function sees them, and of transactions.
my %servers = map { $_ => 1 } qw(
  22003 22007 22008 22021 2202E 22P02 22P05 22001 22023 42883 42804 42809 42846 54000 54001
  25001 25P01 25P02 34000 3B001 42P03 57P01);

# ---------------------------------------------------------------------------
# Sessions
# ---------------------------------------------------------------------------

my $fuzz = DLockFuzz->new($node, $db);
my (%running, %seen, @odd);
my ($batches, $terminated, $lost, $taken) = (0, 0, 0, 0);

# Run statements in a session of their own.
sub start_session
{
	my ($role, $sql) = @_;
	my $file = "$PostgreSQL::Test::Utils::tmp_check/fuzz." . ++$batches;
	my $pid;

	append_to_file("$file.sql", $sql);
	$pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		$ENV{PGUSER} = $role if $role ne '';
		$ENV{PGAPPNAME} = $role eq '' ? 'killer' : 'fuzz';
		$ENV{PGOPTIONS} = '-c statement_timeout=100' if $role ne '';
		open STDOUT, '>', "$file.out" or POSIX::_exit(126);
		open STDERR, '>', "$file.err" or POSIX::_exit(126);
		exec('psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $node->connstr($db), '-f', "$file.sql") or POSIX::_exit(127);
	}
	$running{$pid} = { file => $file, fuzz => $role ne '' };
	return;
}

# The killer's blows come at any moment of the others but their start: PostgreSQL 18
# shows a session that starts, and a cancel ends one there, as any error would.
sub start_killer
{
	my $sql = '';

	foreach (1 .. 40)
	{
		my $what = rand() < 0.1 ? 'pg_terminate_backend' : 'pg_cancel_backend';

		$sql .= "SELECT '$what', $what(pid) FROM (SELECT pid FROM pg_stat_activity WHERE application_name = 'fuzz' AND state <> 'starting' ORDER BY random() LIMIT 1) victim;\n"
		  . "SELECT pg_sleep(random() * 0.1);\n";
	}
	start_session('', $sql);
	return;
}

sub start_fuzz
{
	my $sql = join '', map { $fuzz->statement } 1 .. $statements;

	start_session(rand() < 0.5 ? 'fuzz_a' : 'fuzz_b', "$sql\\echo complete\n");
	return;
}

sub finish_session
{
	my ($pid) = @_;
	my $session = delete $running{$pid};
	my $file = $session->{file};
	my $errors = slurp_file("$file.err");
	my $output = slurp_file("$file.out");

	foreach my $line (split /\n/, $errors)
	{
		my ($state) = $line =~ /(?:ERROR|FATAL|PANIC):  ([0-9A-Z]{5}):/ or next;

		$seen{$state}++;
		push @odd, "$file: $line" if !$documented{$state} && !$servers{$state};
	}
	if ($session->{fuzz})
	{
		$lost++ if $output !~ /^complete$/m;
		$taken++ while $output =~ /^[^|]*\|o\d#\d\|\d+$/mg;
	}
	else
	{
		$terminated++ while $output =~ /^pg_terminate_backend\|t$/mg;
	}
	unlink map { "$file.$_" } qw(sql out err) if @odd == 0;
	return;
}

my $end = mono_now() + $seconds;
start_killer();
start_fuzz() for 1 .. $sessions;
while (%running)
{
	my $pid = waitpid -1, WNOHANG;

	if ($pid > 0 && $running{$pid})
	{
		my $was_fuzz = $running{$pid}{fuzz};

		finish_session($pid);
		next if mono_now() > $end && $batches >= 10 || @odd;
		$was_fuzz ? start_fuzz() : start_killer();
		next;
	}
	usleep(10_000);
}
diag "$batches batches, $terminated terminated, $lost lost, $taken turns taken; " . join ', ', map { "$_ $seen{$_}" } sort keys %seen;

# ---------------------------------------------------------------------------
# What is left
# ---------------------------------------------------------------------------

is(join("\n", @odd), '', 'each error is a known one');

# The last words of a session do not always reach its client.
cmp_ok($lost, '<=', $terminated, 'no session was lost that was not terminated');
cmp_ok($taken, '>', 0, 'turns of places were taken');
foreach my $state (qw(22023 22004 42501 57014 LK002))
{
	cmp_ok($seen{$state} // 0, '>', 0, "$state was met");
}
ok( wait_until(
		sub {
			$node->safe_psql($db, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fuzz'") eq '0';
		}),
	'every session has ended');
$node->safe_psql($db, "ROLLBACK PREPARED '$_'") foreach split /\n/, $node->safe_psql($db, 'SELECT gid FROM pg_prepared_xacts');

# Places stay, for as long as they are kept, until their role gives them up.
$node->safe_psql($db, <<'EOC');
DO $$
DECLARE
	place record;
BEGIN
	FOR place IN SELECT DISTINCT role, owner FROM dlock_waiters WHERE pid IS NULL LOOP
		EXECUTE format('SET LOCAL ROLE %s', place.role);
		PERFORM dlock_release_all(place.owner);
		RESET ROLE;
	END LOOP;
END $$
EOC
is($node->safe_psql($db, 'SELECT count(*) FROM dlock_waiters'), '0', 'every queue is empty');

# A lease with a lock delay leaves its lock closed, and the second call opens it.
foreach (1, 2)
{
	$node->safe_psql($db, "SELECT dlock_force_release(name, 'the end') FROM (SELECT DISTINCT name FROM dlock_leases) l");
}
ok(wait_until(sub { $node->safe_psql($db, 'SELECT leases FROM dlock_stats') eq '0' }), 'no lease is left in memory')
  or diag($node->safe_psql($db, 'SELECT name, state, bind, expires_at FROM dlock_leases'));
isnt($node->safe_psql($db, "SELECT dlock_acquire('a')"), '', 'the server works');
if ($has_faults)
{
	my $control = DLockSession->new($node, $db, name => 'control');

	sound($control, 'the end');
	$control->quit;
}
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|terminated by signal|XX\d\d\d:/, 'nothing odd in the log');
done_testing();
