# The Python client (src/clients/python), with and without asyncio.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";

use DLockClient;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
$ENV{PYTHONPATH} = "$top/src/clients/python";
$ENV{PYTHONDONTWRITEBYTECODE} = 1;
plan skip_all => 'python3 with psycopg 3 and psycopg_pool is not installed'
  if system("$python -c 'import psycopg, psycopg_pool' 2>/dev/null") != 0;

my $node = start_node('main');
foreach my $kind (qw(sync async))
{
	client_program($node, $python, "$top/test/clients/client.py", $kind);
	client_tests($kind);
}
client_examples('python', 2, $python, 'example.py');
client_test_large_tokens();

# The hash of doc/scaling.md spreads names over all servers.
my ($sharding) = slurp_file("$top/doc/scaling.md") =~ /^```python\n(.*?)^```$/ms;
is(system($python, '-c', "$sharding\nassert {shard_of(f'lock {i}', 'abc') for i in range(99)} == set('abc')"), 0, 'the hash of doc/scaling.md');
done_testing();
