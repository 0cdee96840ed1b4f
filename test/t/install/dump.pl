# Proves: a dump holds no leases, only the extension, its sequence, marks, groups and tasks; wherever
# and whenever it is restored, tokens are above all that were granted before.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $pairs = <<'EOC';
DO $$ BEGIN FOR i IN 1 .. 20000 LOOP PERFORM dlock_release_token('pairs', dlock_acquire('pairs', 'alice', '1 h')); END LOOP; END $$;
EOC
my $dir = PostgreSQL::Test::Utils::tempdir;
my $node = start_node('main');
$node->safe_psql('postgres', 'CREATE DATABASE source');
$node->safe_psql('source', 'CREATE SCHEMA s; CREATE EXTENSION dlock SCHEMA s');
$node->safe_psql('source', "SET search_path = s; $pairs");
my $held = $node->safe_psql('source',
	"SELECT s.dlock_acquire('held', 'alice', '1 h')");

# What is in it.
$node->command_ok(
	[ 'pg_dump', '--clean', '-f', "$dir/plain.sql", $node->connstr('source') ],
	'pg_dump, plain');
$node->command_ok(
	[ 'pg_dump', '-Fc', '-f', "$dir/custom", $node->connstr('source') ],
	'pg_dump, custom');
my $plain = slurp_file("$dir/plain.sql");
like($plain, qr/^CREATE EXTENSION IF NOT EXISTS dlock WITH SCHEMA s;$/m,
	'the dump creates the extension');
is(join("\n", $plain =~ /^(.*dlock(?:_leases|\.store|\.token_seq).*;)$/gm),
	"SELECT pg_catalog.setval('_dlock.token_seq', "
	  . $node->safe_psql('source', 'SELECT last_value FROM _dlock.token_seq')
	  . ", true);",
	'and sets its sequence, and no more');
unlike($plain, qr/^(INSERT|CREATE TABLE)/m, 'the dump makes no tables');
is(join(' ', sort $plain =~ /^COPY (\S+) .*;\n\\\.$/gm), '_dlock.fence_mark _dlock.group_definition _dlock.task _dlock.task_queue',
	'and has no rows where there are no marks, groups and tasks');
is(scalar(() = $plain =~ /^COPY /gm), 4, 'nor any of other tables');

# The source goes on granting after the dump.
$node->safe_psql('source', "SET search_path = s; $pairs $pairs");
my $last = $node->safe_psql('source',
	"SELECT s.dlock_acquire('last', 'alice', '1 h')");

# A fresh cluster; another database of this one; the source itself.
my $fresh = init_node('fresh');
$fresh->start;
foreach my $restore (
	[ $fresh, 'restored', 'a fresh cluster' ],
	[ $node, 'restored', 'another database' ])
{
	my ($target, $name, $label) = @$restore;

	$target->safe_psql('postgres', "CREATE DATABASE $name");
	$target->command_ok(
		[
			'pg_restore', '--exit-on-error', '-d',
			$target->connstr($name), "$dir/custom"
		],
		"pg_restore into $label");
	is($target->safe_psql($name, 'SELECT count(*) FROM s.dlock_leases'),
		0, "$label: no leases");
	my $token = $target->safe_psql($name,
		"SELECT s.dlock_acquire('held', 'bob', '1 h')");
	cmp_ok($token, '>', $last,
		"$label: tokens above those granted after the dump");
	$target->restart;
	cmp_ok(
		$target->safe_psql($name,
			"SELECT s.dlock_acquire('held-2', 'bob', '1 h')"),
		'>', $token, "$label: and they go on");
}
is($node->safe_psql('source', "SELECT s.dlock_check('held', $held)"),
	't', 'the source still holds its leases');

# Over the database that it was taken from, with sessions there.
my $session = DLockSession->new($node, 'source');
$session->query_safe("SELECT s.dlock_acquire('session', 'alice', '1 h')");
$node->command_ok(
	[
		'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d',
		$node->connstr('source'), '-f', "$dir/plain.sql"
	],
	'restored over the source');
my $token = $session->query_safe("SELECT s.dlock_acquire('held', 'bob', '1 h')");
cmp_ok($token, '>', $last,
	'over the source: tokens above those granted after the dump');
$session->quit;

# The same old dump again.
$node->command_ok(
	[
		'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d',
		$node->connstr('source'), '-f', "$dir/plain.sql"
	],
	'restored over the source once more');
my $again = $node->safe_psql('source', "SELECT s.dlock_acquire('held', 'bob', '1 h')");
cmp_ok($again, '>', $last, 'once more: tokens above those granted after the dump');

# A dump of what was restored, restored into another cluster.
$node->command_ok(
	[ 'pg_dump', '-f', "$dir/second.sql", $node->connstr('restored') ],
	'pg_dump of the restored database');
$last = $node->safe_psql('restored', "SELECT s.dlock_acquire('x', 'bob', '1 h')");
$fresh->safe_psql('postgres', 'CREATE DATABASE second');
$fresh->command_ok(
	[
		'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d',
		$fresh->connstr('second'), '-f', "$dir/second.sql"
	],
	'and restored');
cmp_ok(
	$fresh->safe_psql('second', "SELECT s.dlock_acquire('x', 'bob', '1 h')"),
	'>', $last, 'tokens of the second generation');

$node->stop;
$fresh->stop;
done_testing();
