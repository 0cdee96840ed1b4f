# Proves: a server that does not preload dlock starts, says what is missing in
# every function, can create and drop the extension, and loses no lease that was
# granted while it was preloaded.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $hint =
  q(Add "shared_preload_libraries = 'dlock'" to postgresql.conf and restart the server.);
my @calls = (
	q(dlock_acquire('a')),
	q(dlock_renew('a', 'alice')),
	q(dlock_renew_token('a', 1)),
	q(dlock_release('a', 'alice')),
	q(dlock_release_token('a', 1)),
	q(dlock_check('a', 1)),
	q(dlock_renew_all('alice')),
	q(dlock_release_all('alice')),
	q(dlock_force_release('a', 'reason')),
	q(dlock_bump_epoch('reason')),
	q(_dlock.signal_wait(1, 0, 'infinity')),
	q(* FROM dlock_leases));

sub refused_everywhere
{
	my ($node, $prefix, $state) = @_;

	foreach my $call (@calls)
	{
		my %error = sqlstate_is($node, 'postgres', "$prefix SELECT $call",
			'55000', "$state: $call");
		is($error{message}, 'dlock is not preloaded', "$state: message");
		is($error{hint}, $hint, "$state: hint");
	}
}

my $node = init_node('main', preload => 0);
$node->start;
my ($ret, $stdout, $stderr) =
  $node->psql('postgres', 'CREATE EXTENSION dlock');
is($ret, 0, 'created without preloading');
like($stderr, qr/WARNING: .*preload/s, 'and warned about it');

refused_everywhere($node, '', 'not preloaded');
refused_everywhere($node, "LOAD 'dlock';", 'loaded by LOAD');
is($node->safe_psql('postgres', 'SELECT count(*) FROM _dlock.store'),
	0, 'the store can be scanned');
$node->safe_psql('postgres', 'VACUUM FULL');
$node->command_ok([ 'pg_dump', '-f', '/dev/null', $node->connstr('postgres') ],
	'dumped');

$node->append_conf('postgresql.conf',
	"session_preload_libraries = 'dlock'");
$node->reload;
$node->poll_query_until('postgres',
	"SELECT current_setting('session_preload_libraries') <> ''")
  or die 'not reloaded';
refused_everywhere($node, '', 'preloaded by sessions only');
$node->append_conf('postgresql.conf', "session_preload_libraries = ''");

$node->safe_psql('postgres', 'DROP EXTENSION dlock; CREATE EXTENSION dlock');
is( $node->safe_psql(
		'postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'dlock%'"
	),
	0,
	'no workers');

# Created before, used after.
$node->append_conf('postgresql.conf', preload_conf());
$node->restart;
my $token = $node->safe_psql('postgres', "SELECT dlock_acquire('a', 'alice', '1 h')");
cmp_ok($token, '>', 0, 'granted once preloaded');
like(worker_pid($node), qr/^\d+$/, 'the worker is there');

# No warning now.
$node->safe_psql('postgres', 'CREATE DATABASE other');
($ret, $stdout, $stderr) = $node->psql('other', 'CREATE EXTENSION dlock');
is($stderr, '', 'created without a warning when preloaded');

# Not preloaded any more: refused, and the lease is still there later.
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
refused_everywhere($node, '', 'no longer preloaded');
$node->safe_psql('postgres', 'VACUUM FULL; CHECKPOINT');
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'dlock'");
$node->restart;
is($node->safe_psql('postgres', "SELECT dlock_check('a', $token)"),
	't', 'held again');

# A server for one user, without background workers.
$node->stop;
{
	local %ENV = $node->_get_env();
	my $run = sub {
		my ($sql) = @_;
		my ($out, $err) = ('', '');

		IPC::Run::run(
			[ 'postgres', '--single', '-D', $node->data_dir, 'postgres' ],
			'<', \$sql, '>', \$out, '2>', \$err);
		return $out . $err;
	};
	like($run->("SELECT dlock_check('a', $token);\n"),
		qr/dlock_check = "t"/, 'single-user mode: held');
	like(
		$run->("SELECT dlock_acquire('a', 'bob') IS NULL AS refused;\n"),
		qr/refused = "t"/,
		'single-user mode: refused');
	like(
		$run->("SELECT dlock_acquire('a', 'bob', wait => '100 ms') IS NULL AS refused;\n"),
		qr/refused = "t"/,
		'single-user mode: refused after a wait');
	like(
		$run->("SELECT dlock_release('a', 'alice') AS released;\n"),
		qr/released = "t"/,
		'single-user mode: released');
}
$node->start;
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_leases"),
	0, 'and is free afterwards');
cmp_ok(
	$node->safe_psql('postgres', "SELECT dlock_acquire('a', 'bob', '1 h')"),
	'>', $token, 'token after all that');
$node->stop;

done_testing();
