# The Node client (src/clients/node), with the driver pg of the system, or else of npm.

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
my $modules = "$PostgreSQL::Test::Utils::tmp_check/node_modules";

# The example and the program ask for modules by name.
sub has_driver { return system("node -e 'require(\"pg\")' 2>/dev/null") == 0 }

client_missing('node') if system('node --version >/dev/null 2>&1') != 0;
$ENV{NODE_PATH} = "$top/src/clients/node:$modules:/usr/share/nodejs";
if (!has_driver() && $ENV{DLOCK_CLIENTS})
{
	# npm writes to what is its own alone.
	my $place = $modules =~ s{/node_modules$}{}r;
	system("cd '$place' && HOME='$place' npm install --no-save --no-audit --no-fund --silent --cache '$place/npm' --prefix '$place' pg >&2");
}
is(system('node', "$top/test/clients/bare.js"), 0, 'what needs no server');
if (!has_driver())
{
	my $missing = 'the driver pg of node is not installed';
	die "$missing, or does not work" if $ENV{DLOCK_CLIENTS};
  SKIP: { skip $missing, 1 }
	done_testing();
	exit;
}

my $node = start_node('main');
client_program($node, 'node', "$top/test/clients/client.js");
beside(client_tests('node', asks_again => 1));
client_examples('js', 1, 'node', 'example.js');
client_test_large_tokens();
done_testing();
