# Proves: one worker, in the only slot that the server has, erases what has expired in all
# of many databases that use leases, though nobody is connected to them.
#
# DLOCK_DATABASES says how many databases, by default 24; a server has room for 1024.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $n = $ENV{DLOCK_DATABASES} // 24;
alarm 600 + 3 * $n;		# each is made, and connected to five times
my $node = start_node('main', conf => <<'EOC');
max_worker_processes = 1
max_logical_replication_workers = 0
EOC
my $db = 'postgres';
my $session = DLockSession->new($node, $db);

# The database of the session is the last of them.
$node->safe_psql($db, 'CREATE DATABASE pattern');
$node->safe_psql('pattern', 'CREATE EXTENSION dlock');
my @names = map { "d$_" } 1 .. $n - 1;
$node->safe_psql($db, "CREATE DATABASE $_ TEMPLATE pattern STRATEGY file_copy") foreach @names;
push @names, $db;

my %store;
sub use_all
{
	my ($ttl) = @_;

	foreach my $name (@names)
	{
		my $path = $node->safe_psql($name,
			"SELECT pg_relation_filepath('_dlock.store') FROM (SELECT count(dlock_acquire('x' || i, 'alice', '$ttl')) FROM generate_series(1, 5) i) c");
		$store{$name} = $node->data_dir . '/' . $path;
	}
	return;
}

# What is left of a database without leases: the directory of its pages, which are few, so
# that it is one leaf and the three nodes above it (space/slot.c); each is a cell of 232 bytes.
# A session can have a cell in reserve: the one here, and those that are just ending.
sub memory_is_of
{
	my ($databases) = @_;
	my $cells = 4 * $databases + $session->query_safe('SELECT count(*) FROM pg_stat_activity');

	return $session->query_safe("SELECT memory_used <= $cells * 232 FROM dlock_stats") eq 't';
}

# Those with leases on disk, without connecting to them.
sub not_clean
{
	$session->query_safe('CHECKPOINT');
	return grep { my %slots = slots_of_file($store{$_}); %slots } @names;
}

use_all('1 h');
is(scalar(not_clean()), $n, 'leases in all databases');
use_all('1 s');
$node->safe_psql($_, "SELECT dlock_renew_all('alice', '1 s'); SELECT dlock_acquire('y', 'alice', '1 s')") foreach @names;
my $began = mono_now();
ok(wait_until(sub { !not_clean() }, 180), 'all expired leases are erased');
note(sprintf '%d databases: %.1f s after the last grant', $n, mono_now() - $began);
is($session->query_safe("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'dlock worker'"), 1, 'by one worker');
ok(memory_is_of($n), 'no memory is left but that of directories of pages');

# After a crash, once they are used.
use_all('1 s');
flush_wal($node, $db);
crash_node($node);
$session->kill_client;
$node->start;
$session = DLockSession->new($node, $db);
$node->safe_psql($_, 'SELECT count(*) FROM dlock_leases') foreach @names;
ok(wait_until(sub { !not_clean() }, 180), 'and after a crash');

# A grant wakes nobody whose time has not come.
{
	my $worker = worker_pid($node);
	my $before = sleeps($worker);

	$session->query_safe("SELECT dlock_acquire('far-' || i, 'alice', '1 h') FROM generate_series(1, 1000) i");
	cmp_ok(sleeps($worker) - $before, '<', 100, 'a grant with a far deadline does not wake the worker');
	$session->query_safe("SELECT dlock_release_all('alice')");
}

# Databases go, and so does what they have in memory.
$node->safe_psql($_, "SELECT count(dlock_acquire('x' || i, 'alice', '1 h')) FROM generate_series(1, 100) i") foreach @names[ 0 .. 2 ];
$node->safe_psql($db, "DROP DATABASE $_") foreach @names[ 0 .. 2 ];
ok(wait_until(sub { memory_is_of($n - 3) }), 'dropped: no memory is left');

$session->quit;
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|ERROR|was terminated by signal|FATAL/, 'nothing odd in the log');
done_testing();
