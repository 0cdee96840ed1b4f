# Proves: the library for Python (src/clients/python) does what test/clients/scenarios.json says, with and
# without asyncio, survives what a process can do to it, and is a typed package; its driver of tooz passes
# tooz's own tests, all of them and none skipped.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockBeside;
use DLockClient;
use DLockScenario;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/python";
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';

$ENV{PYTHONDONTWRITEBYTECODE} = 1;
client_missing('python3 with psycopg 3 and psycopg_pool')
  if system("$python -c 'import psycopg, psycopg_pool' 2>/dev/null") != 0;

# As a program has it, if pip is here.
$ENV{PYTHONPATH} = "$top/src/clients/python";
if (client_tool('pip', "$python -c 'import setuptools, wheel, pip'"))
{
	is(system("$python -m pip install --quiet --no-build-isolation --no-deps --no-index --root-user-action ignore --target '$place' '$top/src/clients/python' >&2"),
		0, 'pip install');
	ok(-f "$place/dlock/py.typed", 'it is typed');
	$ENV{PYTHONPATH} = $place;
}

SKIP:
{
	skip 'mypy is not installed', 1 unless client_tool('mypy', 'mypy --version');
	local $ENV{PYTHONPATH};
	is(system("cd '$top/src/clients/python' && mypy --strict --cache-dir=/dev/null --python-executable $python >&2"), 0, 'mypy --strict');
}

# Each with a server of its own.
client_server(undef);
my @topics = qw(descriptors hanging blocked lock_delay twice threads transactions begun ended entry silence cancels undone given_up alone together gathered taken_over interrupted polls late again deferred anew cut stopped crashed unheard crowd closing destroyed loopless captured finished deadlock forked told misuse);
beside(
	(
		map {
			my $mode = $_;
			client_part(
				$mode,
				sub {
					my ($node) = @_;
					my $proxy = scenario_servers($node);
					my @agent = ($python, "$top/test/clients/session.py", $mode);

					# Both share all that talks to the server; all groups of both are for a nightly run.
					if ($mode eq 'sync' && ($ENV{DLOCK_RING} // '') ne 'nightly')
					{
						run_scenarios($mode, $_, $node, $proxy, @agent) foreach qw(server encoding places);
					}
					else
					{
						run_all_scenarios($mode, $node, $proxy, @agent);
						run_pooler_scenarios($mode, $node, $proxy, @agent);
					}
					run_scenarios($mode, 'turns', $node, $proxy, @agent);
					if ($mode eq 'async')
					{
						local @ENV{qw(PGHOST PGPORT)} = ($proxy->{host}, $proxy->{port});
						run_scenarios($mode, $_, $node, $proxy, @agent) foreach qw(late again overdue undo);
					}
					run_scenarios($mode, 'last', $node, $proxy, @agent);
					$proxy->stop;
				})
		} qw(sync async)
	),
	client_part('trouble', sub { is(system($python, "$top/test/clients/trouble.py", $_), 0, $_) foreach @topics }),
	client_part('tooz', \&test_tooz));

my $node = start_node('main');
client_server($node);

# A name is the same lock, whatever encoding is the server's or the environment's.
$node->safe_psql('postgres', "CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'");
$node->safe_psql('latin1', 'CREATE EXTENSION dlock');
my $named = PostgreSQL::Test::Utils::tempdir() . '/named.py';
append_to_file($named, <<'EOP');
import sys
import dlock, psycopg
where = 'dbname=' + sys.argv[1]
with dlock.lease(where, 'caf\u00e9') as lease, psycopg.connect(where, client_encoding='UTF8') as conn:
    assert conn.execute('SELECT name FROM dlock_leases').fetchall() == [('caf\u00e9',)]
EOP
is(system($python, $named, 'latin1'), 0, 'a name in a database of another encoding');
{
	local $ENV{PGCLIENTENCODING} = 'LATIN1';
	is(system($python, $named, 'postgres'), 0, 'a name where the environment has another encoding');
}
done_testing();

# tooz finds the driver by the package that pip has installed.
sub test_tooz
{
	my ($node) = @_;

  SKIP:
	{
		skip 'tooz with its tests, or pip, is not installed', 1
		  unless $ENV{PYTHONPATH} eq $place && client_tool('tooz with its tests', "$python -c 'import pytest, tooz.tests.test_coordination'");
		local $ENV{TOOZ_TEST_URL} = "dlock://$ENV{PGUSER}\@/postgres?host=" . $node->host . '&port=' . $node->port;

		# Not here, where dlock.so is, which is no module of Python's.
		my ($said) = run_command([ 'sh', '-c', "cd '$place' && exec $python -m pytest -q -p no:cacheprovider --pyargs tooz.tests.test_coordination" ]);
		like($said, qr/^76 passed\b(?!.*(?:failed|skipped|error))/m, 'all 76 of test_coordination') or diag($said);
	}
	return;
}
