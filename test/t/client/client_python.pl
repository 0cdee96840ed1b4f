# The Python client (src/clients/python), with and without asyncio.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockBeside;
use DLockClient;
use DLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
$ENV{PYTHONPATH} = "$top/src/clients/python";
$ENV{PYTHONDONTWRITEBYTECODE} = 1;
client_missing('python3 with psycopg 3 and psycopg_pool')
  if system("$python -c 'import psycopg, psycopg_pool' 2>/dev/null") != 0;

my @parts;
foreach my $kind (qw(sync async))
{
	client_program(undef, $python, "$top/test/clients/client.py", $kind);
	push @parts, client_tests($kind, asks_again => 1);
}
foreach my $topic (qw(descriptors keeper lock_delay twice threads transactions begun ended killed entry silence keepalives))
{
	push @parts, client_part("trouble: $topic", sub { is(system($python, "$top/test/clients/trouble.py", $topic), 0, 'passes') });
}
beside(@parts);

my $node = start_node('main');
client_program($node, $python, "$top/test/clients/client.py", 'async');
client_examples('python', 2, $python, 'example.py');

# Not by -c: that would find dlock.so, which is no module of Python's.
sub script_ok
{
	my ($script, $test_name, @words) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $file = PostgreSQL::Test::Utils::tempdir() . "/script.py";

	append_to_file($file, $script);
	return is(system($python, $file, @words), 0, $test_name);
}

# A name is the same lock, whatever encoding is the server's or the environment's.
$node->safe_psql('postgres', "CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'");
$node->safe_psql('latin1', 'CREATE EXTENSION dlock');
my $named = <<'EOP';
import sys
from datetime import timedelta
import dlock, psycopg
where = 'dbname=' + sys.argv[1]
with dlock.lease(where, 'caf\u00e9', ttl=timedelta(minutes=10)) as l, psycopg.connect(where, client_encoding='UTF8') as conn:
    assert conn.execute('SELECT name FROM dlock_leases').fetchall() == [('caf\u00e9',)]
EOP
script_ok($named, 'a name in a database of another encoding', 'latin1');
{
	local $ENV{PGCLIENTENCODING} = 'LATIN1';
	script_ok($named, 'a name where the environment has another encoding', 'postgres');
}

# Not "a", where a string of C ends.
my $cut = <<'EOP';
from datetime import timedelta
import dlock
try:
    dlock.lease('', 'a\0b', ttl=timedelta(minutes=10))
except ValueError:
    exit(0)
exit(1)
EOP
script_ok($cut, 'a name with a zero byte is refused');

# The server counts bytes.
my $long = <<'EOP';
from datetime import timedelta
import dlock
with dlock.lease('', 'a', owner='\u20ac' * 100, ttl=timedelta(minutes=10)) as l:
    assert l.owner.startswith('\u20ac' * 66 + '/')
EOP
script_ok($long, 'a long owner is cut between characters');

client_test_large_tokens();

# The hash of doc/howto/several-servers.md spreads names over all servers.
my ($sharding) = slurp_file("$top/doc/howto/several-servers.md") =~ /^```python\n(.*?)^```$/ms;
is(system($python, '-c', "$sharding\nassert {shard_of(f'lock {i}', 'abc') for i in range(99)} == set('abc')"), 0, 'the hash of doc/howto/several-servers.md');
done_testing();
