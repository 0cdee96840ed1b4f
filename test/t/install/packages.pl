# Proves: the scripts find a server to build for only if its headers are there, and
# ask for the package that has them.  Debian has pg_config and pgxs.mk in the package
# of the client, so these say nothing.  What only single tests need is not asked for.

use strict;
use warnings FATAL => 'all';

use FindBin;
use File::Path qw(make_path);
use PostgreSQL::Test::Utils;
use Test::More;

my $lib = "$FindBin::RealBin/../../lib";
my $place = PostgreSQL::Test::Utils::tempdir();

# A place like /usr/lib/postgresql, with these servers: version => its parts.
my $serial = 0;
sub servers
{
	my (%parts_of) = @_;
	my $root = "$place/" . ++$serial;

	foreach my $version (keys %parts_of)
	{
		my $dir = "$root/$version";
		my %has = map { $_ => 1 } @{ $parts_of{$version} };

		make_path("$dir/bin", "$dir/include");
		append_to_file("$dir/bin/pg_config", <<"EOC");
#!/bin/sh
case \$1 in
--bindir) echo $dir/bin ;;
--pgxs) echo $dir/pgxs.mk ;;
--includedir | --includedir-server) echo $dir/include ;;
--version) echo "PostgreSQL $version.3 (Debian $version.3-1)" ;;
esac
EOC
		append_to_file("$dir/bin/postgres", "#!/bin/sh\n") if $has{server};
		append_to_file("$dir/pgxs.mk", "") if $has{pgxs};
		append_to_file("$dir/include/postgres.h", "") if $has{headers};
		append_to_file("$dir/include/libpq-fe.h", "") if $has{headers};
		chmod 0755, glob "$dir/bin/*";
	}
	return $root;
}

# What a script of bash says that has sourced the library; with its status.
sub says
{
	my ($root, $script) = @_;
	local $ENV{PG_CONFIG} = '';
	my $text = qx(bash -c 'set -euo pipefail
. "$lib/common.sh"
. "$lib/packages.sh"
list_pg_configs() { printf "%s\\n" "$root"/*/bin/pg_config | sort -rV; }
distribution_major() { echo 17; }
have() { :; }
id() { echo 1000; }
$script' 2>&1);

	$text =~ s/^libc6-dev\n//m;
	$text =~ s/\n\z//;
	return $text . ($? ? ' [' . ($? >> 8) . ']' : '');
}

my @client = ('pgxs');
my @server = (@client, 'server');
my @all = (@server, 'headers');

my $root = servers(16 => \@all);
is(says($root, 'find_pg_config'), "$root/16/bin/pg_config", 'all is there: found');
is(says($root, 'missing_packages build'), '', 'all is there: nothing missing');

$root = servers(16 => \@server);
is(says($root, 'find_pg_config'), ' [1]', 'no headers: not found');
is(says($root, 'missing_packages build'), 'postgresql-server-dev-16', 'no headers: those of this server, and no other server');
like(says($root, 'need_packages build'), qr/^apt-get update && apt-get install .* postgresql-server-dev-16 \[1\]\z/m,
	'no headers: an ordinary user is told what to run');

$root = servers(15 => \@all, 16 => \@server);
is(says($root, 'find_pg_config'), "$root/15/bin/pg_config", 'an older one has its headers: found');
is(says($root, 'missing_packages build'), '', 'an older one has its headers: nothing missing');

$root = servers(15 => \@server, 16 => \@client, 14 => \@server, 19 => \@server);
is(says($root, 'missing_packages build'), 'postgresql-server-dev-15', 'the newest one that is a server and is supported counts');

is(says(servers(16 => \@client), 'missing_packages build'), "postgresql-17\npostgresql-server-dev-17", 'no server: that of the distribution');

like(says($root, 'have() { case "$1" in *pgbouncer) return 1 ;; esac; }; want_packages parts'), qr/^not found, so some tests are skipped:.* pgbouncer\z/,
	'what single tests need: an ordinary user is told, and goes on');

done_testing();
