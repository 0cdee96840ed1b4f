# Proves: the command works over the plain edition as over the extension; and the extension, created
# beside it, grants tokens above all that the plain edition has granted.  The steps of the
# documentation install the plain edition.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockPlain;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_plain_node('main');
my $db = 'postgres';
my $command = $ENV{DLOCK_CLI} // 'dlock';
local @ENV{qw(PGHOST PGPORT PGDATABASE)} = ($node->host, $node->port, $db);

# What the command prints, and its exit status.
sub dlock
{
	my ($out, $err) = run_command([ $command, @_ ]);
	return join ' ', grep { $_ ne '' } $? >> 8, $out, $err;
}

my $held = dlock('acquire', '--ttl', '1h', '--owner', 'me', 'job');
like($held, qr/^0 \d+$/, 'acquire');
my ($token) = $held =~ /(\d+)$/;
like(dlock('run', '-n', 'job', '--', 'true'), qr/^75 .*is held by "me" with token $token/s, 'run: refused');
like(dlock('status', 'job'), qr/^0 .*me.*$token/s, 'status');
like(dlock('check', 'job', $token), qr/^0/, 'check');
like(dlock('renew', '--owner', 'me', 'job'), qr/^0/, 'renew');
like(dlock('release', '--owner', 'me', 'job'), qr/^0/, 'release');
like(dlock('run', '--ttl', '1min', 'job', '--', 'psql', '-XAtc', 'SHOW dlock.tokens'), qr/^0 job=[1-9]\d+$/, 'run: a child presents the token');
like(dlock('run', 'job', '--', 'sh', '-c', 'exit 3'), qr/^3/, 'run: the status of the child');
is(sql('SELECT count(*) FROM dlock_leases'), 0, 'nothing is left');

# ---------------------------------------------------------------------------
# The way up
# ---------------------------------------------------------------------------

$token = sql("SELECT dlock_bump_epoch('test', 2 * last_value) FROM _dlock_token_seq");
$node->append_conf('postgresql.conf', preload_conf());
$node->restart;
{
	local $ENV{PGUSER} = (getpwuid $>)[0];
	$node->safe_psql($db, 'CREATE SCHEMA dlock; CREATE EXTENSION dlock SCHEMA dlock; GRANT USAGE ON SCHEMA dlock TO PUBLIC');
	is($node->safe_psql($db, 'SELECT count(*) FROM app.dlock_leases'), 0, 'no lease of the plain edition is left');
	$node->safe_psql($db, "SELECT dlock.dlock_bump_epoch('from the plain edition', last_value) FROM app._dlock_token_seq");
	$node->safe_psql($db, 'ALTER ROLE app SET search_path = dlock');
}
is(sql("SELECT count(*) FROM pg_proc p WHERE p.oid = to_regproc('dlock_acquire') AND p.pronamespace = 'dlock'::regnamespace"), 1, 'the extension is found');
cmp_ok(sql("SELECT dlock_acquire('job', 'x', '1 h')"), '>', $token, 'its tokens are above all earlier ones');
is(sql("SELECT state FROM dlock_leases"), 'held', 'its lease is seen');
like(dlock('run', '-n', 'job', '--', 'true'), qr/^75 /, 'and the command goes by it');

# ---------------------------------------------------------------------------
# How it is installed, into another database
# ---------------------------------------------------------------------------

my $top = "$FindBin::RealBin/../../..";
my ($steps) = slurp_file("$top/doc/reference/plain.md") =~ /^## Install\n.*?^```\n(.*?)^```$/ms;
my $directory = PostgreSQL::Test::Utils::tempdir();
$steps =~ s/^make plain$/make -s -f '$top\/Makefile' PG_CONFIG='$ENV{PG_CONFIG}' plain/m;
$steps =~ s/ALTER DATABASE app /ALTER DATABASE fresh /;
{
	local @ENV{qw(PGUSER PGDATABASE)} = ((getpwuid $>)[0], 'fresh');
	$node->safe_psql($db, $_) foreach 'CREATE DATABASE fresh', 'ALTER ROLE app RESET search_path';
	command_ok([ 'bash', '-ec', "cd '$directory'\n$steps" ], 'the steps of doc/reference/plain.md');
}
cmp_ok($node->safe_psql('fresh', "SELECT dlock_acquire('job', 'x')"), '>', 0, 'install it for a role');

# As an extension, where the server finds that: pg_tle keeps a script in a function, and runs it likewise.
my $config = $ENV{DLOCK_PATH_CONFIG} ? slurp_file($ENV{DLOCK_PATH_CONFIG}) : '';
my ($path) = $config =~ /extension_control_path = '([^:]*)/;
my ($root) = $config =~ /extension_destdir = '([^']*)/;
chomp(my $share = `$ENV{PG_CONFIG} --sharedir`);
$path //= ($root // '') . $share;
my $body = plain_script('--body');
unlike($body, qr/\$_pgtle|^\\/m, 'the script that pg_tle takes has no quotes of its, and no commands of psql');
append_to_file("$path/extension/dlock_plain--1.0.sql", $body);
append_to_file("$path/extension/dlock_plain.control", "default_version = '1.0'\nrelocatable = false\nsuperuser = false\n");
{
	local $ENV{PGUSER} = (getpwuid $>)[0];
	$node->safe_psql($db, 'CREATE DATABASE extended');
	$node->safe_psql('extended', 'CREATE SCHEMA "a b" AUTHORIZATION app');
}
is($node->safe_psql('extended', q{CREATE EXTENSION dlock_plain SCHEMA "a b"; SELECT "a b".dlock_acquire('job', 'x') > 0; DROP EXTENSION dlock_plain; SELECT count(*) FROM pg_class WHERE relname ~ 'dlock'}),
	"t\n0", 'it is made into an extension, which has all of its objects');
done_testing();
