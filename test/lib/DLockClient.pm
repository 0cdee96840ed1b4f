# What the tests of the libraries for programs need: languages, tools, and servers for their parts.

package DLockClient;

use strict;
use warnings FATAL => 'all';

use DLockCli;
use DLockTest;
use Exporter 'import';
use Test::More;

our @EXPORT = qw(client_part client_server client_missing client_tool);

# Skip all tests, as the language is not here; unless it has to be.
sub client_missing
{
	my ($what) = @_;

	die "$what is not installed, or does not work" if $ENV{DLOCK_CLIENTS};
	plan skip_all => "$what is not installed";
	return;
}

# Does this command work, which is of something that tests use beside the language and its driver?  It has to if DLOCK_CLIENTS is 1.
sub client_tool
{
	my ($what, $command) = @_;

	return 1 if system("{ $command; } >/dev/null 2>&1") == 0;
	die "$what is not installed, or does not work" if ($ENV{DLOCK_CLIENTS} // '') eq '1';
	return 0;
}

# Clients use this server from now on; undef if parts have their own.
sub client_server
{
	my ($node) = @_;

	use_server($node) if defined $node;

	# Some drivers do not ask the system for it.
	$ENV{PGUSER} = getpwuid $>;
	return;
}

# A part for beside(): a function that is called with a server of its own, which is stopped after it.
sub client_part
{
	my ($name, $code, @server) = @_;

	return $name => sub {
		my $server = start_node($name =~ s/\W/_/gr, @server);
		client_server($server);
		eval { $code->($server); 1 } or fail("died: $@");
		$server->stop('immediate');
	};
}

1;
