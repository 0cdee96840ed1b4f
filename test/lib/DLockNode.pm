# Programs for Node that use src/clients/node, as a program of its users has it.

package DLockNode;

use strict;
use warnings FATAL => 'all';

use DLockClient;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = __FILE__ =~ s{[^/]*$}{../..}r;

# Make a directory with the library and the driver, which NODE_PATH leads to.  They are from npm if DLOCK_CLIENTS is 1, with
# these packages, or else the driver is that of the system.  Returns a function that runs npm there, or undef.
# Skips all tests if there is no Node.
sub prepare
{
	my ($place, @packages) = @_;
	my $npm;

	client_missing('node') if system('node --version >/dev/null 2>&1') != 0;
	mkdir $place or die "$place: $!";
	if (($ENV{DLOCK_CLIENTS} // '') eq '1' && client_tool('npm', 'npm --version'))
	{
		# It writes to what is its own alone.
		$npm = sub { return system("cd '$place' && HOME='$place' npm --no-audit --no-fund --silent --cache '$place/npm' @_ >&2") == 0 };
		append_to_file("$place/package.json", '{}');
		ok($npm->('install', "$top/src/clients/node", 'pg@8', @packages), 'npm install');
	}
	else
	{
		mkdir "$place/node_modules";
		symlink "$top/src/clients/node", "$place/node_modules/dlock" or die "dlock: $!";
	}
	$ENV{NODE_PATH} = "$place/node_modules:" . ($ENV{NODE_PATH} // '/usr/share/nodejs');
	client_missing('the driver pg of node') if system("cd $place && node -e 'require(\"pg\")' 2>/dev/null") != 0;
	return $npm;
}

1;
