# Proves: the driver of tooz in the library for Python passes tooz's own tests, all of them and none
# skipped.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockClient;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $place = "$PostgreSQL::Test::Utils::tmp_check/tooz";
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';

$ENV{PYTHONDONTWRITEBYTECODE} = 1;
client_missing('tooz with its tests, psycopg 3 or pip')
  if system("$python -c 'import setuptools, wheel, pip, psycopg, pytest, tooz.tests.test_coordination' 2>/dev/null") != 0;
is(system("$python -m pip install --quiet --no-build-isolation --no-deps --no-index --root-user-action ignore --target '$place' '$top/src/clients/python' >&2"),
	0, 'pip install');

my $node = start_node('main');
client_program($node, 'none');
$ENV{PYTHONPATH} = $place;
$ENV{TOOZ_TEST_URL} = "dlock://$ENV{PGUSER}\@/postgres?host=" . $node->host . '&port=' . $node->port;

# Not here, where dlock.so is, which is no module of Python's.
my ($said) = run_command([ 'sh', '-c', "cd '$place' && exec $python -m pytest -q -p no:cacheprovider --pyargs tooz.tests.test_coordination" ]);
like($said, qr/^76 passed\b(?!.*(?:failed|skipped|error))/m, 'all 76 of test_coordination') or diag($said);
done_testing();
