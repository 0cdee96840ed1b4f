# Proves: what a call has waited for is as durable as what is granted at once: its
# answer is there, the server is killed with -9, and the lease is held.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nobody may make durable by accident what a grant has left out.
my $node = start_node('main', conf => <<'EOC');
wal_writer_delay = 10s
deadlock_timeout = 1h
dlock.reap_interval = 1h
EOC
my $db = 'postgres';

# What somebody holds, what waits for it, what lets it go, and the names that are
# held in the end, with the tokens of the answer.
my @cases = (
	[
		'a release', "SELECT dlock_acquire('name', 'holder', '1 h')",
		"SELECT dlock_acquire('name', 'waiter', '1 h', NULL)",
		"SELECT dlock_release('name', 'holder')", 'name'
	],
	[
		'an expiry', "SELECT dlock_acquire('name', 'holder', '3 s')",
		"SELECT dlock_acquire('name', 'waiter', '1 h', NULL)", 'SELECT 1', 'name'
	],
	[
		'a release, several', "SELECT dlock_acquire('name', 'holder', '1 h')",
		"SELECT array_to_string(dlock_acquire_all('{other,name}', 'waiter', '1 h', NULL), ' ')",
		"SELECT dlock_release('name', 'holder')", 'other name'
	],
	[
		'a release, path', "SELECT dlock_acquire('name', 'holder', '1 h')",
		"SELECT dlock_acquire_path('name/below', 'waiter', '1 h', NULL)",
		"SELECT dlock_release('name', 'holder')", 'name/below'
	],
	[
		'a conversion',
		"SELECT dlock_acquire('name', 'holder', '1 h', mode => 'shared'), dlock_acquire('name', 'waiter', '1 h', mode => 'shared')",
		"SELECT dlock_convert('name', token, 'exclusive', NULL) FROM dlock_leases WHERE owner = 'waiter'",
		"SELECT dlock_release('name', 'holder')", 'name'
	]);

foreach my $case (@cases)
{
	my ($what, $hold, $wait, $let_go, $names) = @$case;
	my ($monitor, $holder, $waiter) = map { DLockSession->new($node, $db) } 1 .. 3;

	$holder->query_safe($hold);
	$waiter->ask_waiting($monitor, $wait);
	$holder->query_safe($let_go);
	my $answer = $waiter->answer;
	crash_node($node);
	$node->start;

	my @tokens = split / /, $answer;
	foreach my $name (split / /, $names)
	{
		my $token = shift @tokens;
		is($node->safe_psql($db, "SELECT dlock_check('$name', $token)"), 't', "$what: $name is held");
	}
	$node->safe_psql($db, "SELECT dlock_force_release(name, 'next') FROM dlock_leases; CHECKPOINT");
}

$node->stop;
done_testing();
