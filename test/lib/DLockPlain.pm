# The plain edition on a server that does not load the library, installed by a role that owns
# a schema and has no other privilege.  Its clock is set by advance(), as that of servers with
# fault points is by DLockClock.

package DLockPlain;

use strict;
use warnings FATAL => 'all';

use Carp;
use DLockTest;
use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(start_plain_node plain_script install_plain set_clock_of advance sql sqlstate);

my $top = __FILE__ =~ s{[^/]*$}{../..}r;
my $node;

# The script that "make plain" makes.
sub plain_script
{
	my ($out) = run_command([ "$top/packaging/plain", @_ ]);

	return "$out\n";
}

# Run SQL in database postgres as the role whose schema it is; returns the answer.
sub sql
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

# The SQLSTATE of SQL that fails, and of what it warns.
sub sqlstate
{
	my ($sql) = @_;
	my %error = error_fields($node, 'postgres', $sql);

	return $error{sqlstate};
}

# Roles "app", which owns a schema of its name, and "other", which may use it.
sub install_plain
{
	my ($dbname) = @_;
	my $script = plain_script();

	{
		local $ENV{PGUSER} = (getpwuid $>)[0];
		$node->safe_psql($dbname, 'REVOKE ALL ON SCHEMA public FROM PUBLIC; REVOKE CREATE, TEMPORARY ON DATABASE ' . $dbname . ' FROM PUBLIC; CREATE SCHEMA app AUTHORIZATION app');
	}
	# Default privileges open no table.
	$node->safe_psql($dbname, "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO other; $script; ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM other; GRANT USAGE ON SCHEMA app TO PUBLIC");
	return;
}

# A server with the edition in database postgres.  From now on clients are "app".  Options: those of init_node().
sub start_plain_node
{
	my ($name, %params) = @_;

	$node = init_node($name, preload => 0, %params);
	$node->start;
	$node->safe_psql('postgres', 'CREATE ROLE app LOGIN; CREATE ROLE other LOGIN');
	$ENV{PGUSER} = 'app';
	$node->safe_psql('postgres', 'ALTER ROLE app SET search_path = app');
	{
		local $ENV{PGUSER} = 'other';
		$node->safe_psql('postgres', 'ALTER ROLE other SET search_path = app');
	}
	install_plain('postgres');
	return $node;
}

# From now on leases go by a clock that is as far ahead of the wall clock as advance() says.  A sequence tells it to old snapshots, too.
sub set_clock_of
{
	sql(<<'EOS');
CREATE SEQUENCE test_ahead MINVALUE 0;
GRANT SELECT ON test_ahead TO PUBLIC;
CREATE OR REPLACE FUNCTION _dlock_clock() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	RETURN clock_timestamp() + (SELECT last_value * interval '1 s' FROM app.test_ahead);
END $$;
EOS
	return;
}

sub advance
{
	my ($span) = @_;

	sql("SELECT setval('test_ahead', last_value + extract(epoch FROM interval '$span')::int) FROM test_ahead");
	return;
}

1;
