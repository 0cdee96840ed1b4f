# Proves: leases of every mode, with permits, counts, delays and paths, are the
# same after a crash, on a standby and after its promotion, and go on to keep out
# and let in whom they did before.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockStandby;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $primary = start_node('primary', allows_streaming => 1,
	conf => "wal_consistency_checking = 'generic'\n");
my $standby = make_standby($primary, 'standby');

my $rows = <<'EOC';
SELECT name, owner, token, mode, permits, holds, state, bind, role, granted_at, ttl, payload FROM dlock_leases ORDER BY name COLLATE "C", owner, token
EOC

# All kinds, and all ways to get there.
my $work = <<'EOC';
SELECT count(dlock_acquire('mode-' || mode, 'mode-' || i, '1 h', mode => mode)) FROM unnest('{NL,CR,CW,PR,PW,EX}'::text[]) mode, generate_series(1, 3) i;
SELECT count(dlock_acquire('permits', 'p' || i, '1 h', permits => 5)) FROM generate_series(1, 7) i;
SELECT count(dlock_acquire('most', 'p' || i, '1 h', permits => 2147483647)) FROM generate_series(1, 2) i;
SELECT count(dlock_acquire('counted', 'owner', '1 h', reentry => 'count')) FROM generate_series(1, 4) i;
SELECT dlock_release('counted', 'owner');
SELECT dlock_acquire('extended', 'owner', '1 h');
SELECT dlock_acquire('extended', 'owner', '2 h', reentry => 'return');
SELECT dlock_acquire('up', 'owner', '1 h', mode => 'shared') AS token \gset
SELECT dlock_convert('up', :token, 'exclusive');
SELECT dlock_acquire('down', 'owner', '1 h') AS token \gset
SELECT dlock_convert('down', :token, 'shared');
SELECT dlock_acquire('down-up', 'owner', '1 h', payload => to_jsonb(repeat('p', 1000))) AS token \gset
SELECT dlock_convert('down-up', dlock_convert('down-up', :token, 'NL'), 'CW');
SELECT dlock_acquire('delayed', 'owner', '1 ms', lock_delay => '1 h');
SELECT dlock_acquire('delay', 'owner', '1 h', lock_delay => '1 h');
SELECT dlock_acquire('early', 'owner', '1 h', min_hold => '1 h');
SELECT dlock_release('early', 'owner');
SELECT dlock_acquire('hold', 'owner', '1 h', min_hold => '1 h');
SELECT dlock_acquire_path('path/a/b', 'owner', '1 h', mode => 'shared');
SELECT dlock_acquire_path('path/a/c', 'other', '1 h');
SELECT dlock_acquire_path('path/a/null', 'other', '1 h', mode => 'NL');
SELECT dlock_acquire_path('deep' || repeat('/x', 31), 'owner', '1 h');
SELECT dlock_acquire_path('wide/' || repeat('w', 250), repeat('o', 255), '1 h', mode => 'PW', payload => to_jsonb(repeat('p', 1000)));
SELECT dlock_acquire_path('path/renewed', 'owner', '1 h'), dlock_renew('path/renewed', 'owner', '2 h');
SELECT dlock_acquire_path('path/gone', 'owner', '1 h'), dlock_release('path/gone', 'owner');
SELECT dlock_acquire_path('path/forced', 'owner', '1 h'), dlock_force_release('path/forced', 'test');
SELECT dlock_acquire_path('expired/a', 'owner', '1 ms');
SELECT dlock_acquire_path('path/early', 'other', '1 h', min_hold => '1 h');
SELECT dlock_release('path/early', 'other');
SELECT dlock_acquire_path('path/counted', 'other', '1 h', reentry => 'count');
SELECT dlock_acquire_path('path/counted', 'other', '1 h', reentry => 'count');
SELECT dlock_acquire_all('{all-1,all-2,all-3}', 'owner', '1 h', mode => 'CW');
SELECT dlock_acquire_all('{all-1,all-2,all-3}', 'other', '1 h', mode => 'CW');
SELECT dlock_acquire('bound', 'owner', bind => 'session');
EOC

# What must be granted and refused afterwards, and undone again.
sub behaves
{
	my ($node, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $session = DLockSession->new($node, $db);

	foreach my $case (
		[ 'mode-CR', "mode => 'PW'", 1 ], [ 'mode-CR', "mode => 'EX'", 0 ],
		[ 'mode-CW', "mode => 'CW'", 1 ], [ 'mode-CW', "mode => 'PR'", 0 ],
		[ 'mode-PR', "mode => 'PR'", 1 ], [ 'mode-PR', "mode => 'CW'", 0 ],
		[ 'mode-PW', "mode => 'CR'", 1 ], [ 'mode-PW', "mode => 'PR'", 0 ],
		[ 'mode-EX', "mode => 'NL'", 1 ], [ 'mode-EX', "mode => 'CR'", 0 ],
		[ 'mode-NL', "mode => 'EX'", 1 ], [ 'permits', 'permits => 5', 0 ],
		[ 'most', 'permits => 2147483647', 1 ], [ 'counted', '', 0 ],
		[ 'up', "mode => 'CR'", 0 ], [ 'down', "mode => 'shared'", 1 ],
		[ 'down', "mode => 'CW'", 0 ], [ 'down-up', "mode => 'CW'", 1 ],
		[ 'down-up', "mode => 'PR'", 0 ], [ 'delayed', '', 0 ],
		[ 'delayed', "mode => 'NL'", 1 ], [ 'early', '', 0 ],
		[ 'path', "mode => 'CW'", 1 ], [ 'path', "mode => 'shared'", 0 ],
		[ 'path/a', "mode => 'shared'", 0 ], [ 'path/a/b', "mode => 'shared'", 1 ],
		[ 'path/early', '', 0 ], [ 'deep', "mode => 'CR'", 1 ], [ 'deep/x/x', "mode => 'shared'", 0 ],
		[ 'wide', '', 0 ], [ 'path/renewed', '', 0 ], [ 'path/gone', '', 1 ], [ 'path/forced', '', 1 ],
		[ 'expired', '', 1 ], [ 'all-1', "mode => 'CW'", 1 ],
		[ 'all-3', "mode => 'shared'", 0 ], [ 'bound', '', 1 ])
	{
		my ($name, $with, $granted) = @$case;
		$with = ", $with" if $with ne '';
		is( $session->query("SELECT dlock_acquire('$name', 'tries', '1 h'$with) IS NOT NULL"),
			$granted ? 't' : 'f', "$what: $name$with");
		$session->query_safe("SELECT dlock_release('$name', 'tries')");
	}
	is($session->query("SELECT dlock_acquire('permits', 'tries', '1 h', permits => 6)"), 'ERROR 22023', "$what: another number of permits");
	flush_wal($node, $db);
	like($session->{message}, qr/"permits" has 5 permits, not 6/, "$what: both are named");
	$session->quit;
	return;
}

# The counts, at the end, since they are used up.
sub counts
{
	my ($node, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $session = DLockSession->new($node, $db);

	is(join(',', map { $session->query_safe("SELECT dlock_release('counted', 'owner')") } 1 .. 4), 't,t,t,f', "$what: three releases are left");
	is(join(',', map { $session->query_safe("SELECT dlock_release('path/counted', 'other')") } 1 .. 3), 't,t,f', "$what: two of the path");
	is( $session->query_safe("SELECT dlock_release('deep' || repeat('/x', 31), 'owner'); SELECT count(*) FROM dlock_leases WHERE name LIKE 'deep%'"),
		"t\n0", "$what: a path is released with its intents");
	is($session->query_safe("SELECT dlock_force_release('wide', 'test'); SELECT count(*) FROM dlock_leases WHERE name LIKE 'wide%'"), "1\n0", "$what: and by force");
	is($session->query_safe("SELECT dlock_release('hold', 'owner'); SELECT state FROM dlock_leases WHERE name = 'hold'"), "t\nclosed", "$what: a least time still counts");
	is($session->query_safe("SELECT dlock_renew('delay', 'owner', '1 ms'); SELECT pg_sleep(0.01); SELECT state FROM dlock_leases WHERE name = 'delay'"), "t\n\nclosed", "$what: a lock delay still counts");
	$session->quit;
	return;
}

my $session = DLockSession->new($primary, $db);
$session->query_safe($work);
my $before = $session->query_safe($rows);
my @bound = grep { /^bound\|/ } split /\n/, $before;
is(scalar @bound, 1, 'a bound lease on the primary');
my $durable = join "\n", grep { !/^bound\|/ } split /\n/, $before;
like($durable, qr/^down-up\|owner\|\d+\|CW\|/m, 'a mode that was converted');
like($durable, qr/^counted\|owner\|\d+\|exclusive\|\|3\|held\|/m, 'a count');
like($durable, qr/^early\|owner\|\d+\|exclusive\|\|1\|closed\|/m, 'one that is closed');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
is($standby->safe_psql($db, $rows), $durable, 'the standby shows all that is not bound');
$session->query_safe("SELECT dlock_release('bound', 'owner')");
behaves($primary, 'before');
is($session->query_safe($rows), $durable, 'trying changes nothing');
$session->quit;

# Nothing of it is possible there.
$session = DLockSession->new($standby, $db);
foreach my $call (
	"dlock_acquire('x', bind => 'session')", "dlock_acquire('x', wait => NULL)",
	"dlock_convert('up', 1, 'shared')", "dlock_acquire_all('{a,b}')",
	"dlock_acquire_path('a/b')", "dlock_watch('up', NULL, '0')",
	"dlock_watch('up', 1)")
{
	is($session->query("SELECT $call"), 'ERROR 25006', "on a standby: $call");
	ok($session->{detail} ne '' || $session->{hint} ne '', "on a standby: $call says more");
}
$session->quit;

# A crash, with replay from the start of the WAL and from a checkpoint.
crash_node($primary);
$primary->start;
is($primary->safe_psql($db, $rows), $durable, 'after a crash');
behaves($primary, 'after a crash');
$primary->safe_psql($db, 'CHECKPOINT');
crash_node($primary);
$primary->start;
is($primary->safe_psql($db, $rows), $durable, 'after a checkpoint and a crash');
$primary->safe_psql($db, 'VACUUM FULL _dlock.store');
is($primary->safe_psql($db, $rows), $durable, 'after VACUUM FULL');
$primary->safe_psql($db, "SELECT dlock_acquire('end', 'end', '1 h'), dlock_release('end', 'end')");
$primary->poll_query_until($db, 'SELECT count(*) = 1 FROM pg_stat_replication');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
crash_node($primary);

$standby->promote;
is($standby->safe_psql($db, $rows), $durable, 'promoted');
behaves($standby, 'promoted');
counts($standby, 'promoted');
$standby->stop;
unlike(slurp_file($standby->logfile), qr/inconsistent page|PANIC|TRAP:/, 'every record replays to the same page');

$primary->start;
is($primary->safe_psql($db, $rows), $durable, 'after all');
counts($primary, 'after all');
my %slots = store_slots($primary, $db);
is(scalar(grep { $_ eq 'counted' } keys %slots), 0, 'a counted lease is erased when its last hold is given back');
$primary->stop;
unlike(slurp_file($primary->logfile), qr/PANIC|TRAP:/, 'nothing odd in the log');
done_testing();
