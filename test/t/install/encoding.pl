# Proves: names and owners are text of the database's encoding: converted for each
# client, measured in bytes, refused if they are not valid.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main');
foreach my $encoding ('UTF8', 'LATIN1', 'SQL_ASCII')
{
	my $db = lc $encoding;
	$node->safe_psql('postgres',
		"CREATE DATABASE $db TEMPLATE template0 ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C'"
	);
	$node->safe_psql($db, 'CREATE EXTENSION dlock');
}

my $cafe_utf8 = "caf\xc3\xa9";
my $cafe_latin1 = "caf\xe9";

# The same lock, whatever encoding the client speaks.
foreach my $db ('utf8', 'latin1')
{
	my $token = $node->safe_psql($db,
		"SET client_encoding = 'UTF8'; SELECT dlock_acquire('$cafe_utf8', 'se\xc3\xb1or', '1 h')"
	);
	is( $node->safe_psql(
			$db,
			"SET client_encoding = 'LATIN1'; SELECT dlock_acquire('$cafe_latin1', 'x', '1 h')"
		),
		'',
		"$db: refused in another encoding");
	is( $node->safe_psql(
			$db,
			"SET client_encoding = 'LATIN1'; SELECT dlock_check('$cafe_latin1', $token), dlock_renew('$cafe_latin1', 'se\xf1or')"
		),
		't|t',
		"$db: checked and renewed in another encoding");
	is( $node->safe_psql(
			$db,
			"SET client_encoding = 'LATIN1'; SELECT name, owner FROM dlock_leases"
		),
		"$cafe_latin1|se\xf1or",
		"$db: shown in the client's encoding");
}

# Bytes count, not characters.
my %error = sqlstate_is(
	$node, 'utf8',
	"SET client_encoding = 'UTF8'; SELECT dlock_acquire(repeat('\xc3\xa9', 128))",
	'22023', 'UTF8: 128 characters of 2 bytes are too long a name');
is( $node->safe_psql(
		'latin1',
		"SET client_encoding = 'UTF8'; SELECT dlock_acquire(repeat('\xc3\xa9', 255), 'alice', '1 h') > 0"
	),
	't',
	'LATIN1: 255 characters of 1 byte are not');
is( $node->safe_psql(
		'utf8',
		"SET client_encoding = 'UTF8'; SELECT dlock_acquire(repeat('\xc3\xa9', 127), repeat('\xf0\x9f\x94\x92', 63), '1 h') > 0"
	),
	't',
	'UTF8: 127 characters of 2 bytes, and 63 of 4');

# What is no text is refused, and nothing is held.
foreach my $db ('utf8', 'sql_ascii')
{
	my $before = $node->safe_psql($db, 'SELECT count(*) FROM dlock_leases');
	sqlstate_is($node, $db,
		"SET client_encoding = 'UTF8'; SELECT dlock_acquire('bad\xff')",
		'22021', "$db: invalid bytes in a name")
	  if $db eq 'utf8';
	sqlstate_is($node, $db,
		"SET client_encoding = 'UTF8'; SELECT dlock_acquire('name', 'bad\xc3')",
		'22021', "$db: invalid bytes in an owner")
	  if $db eq 'utf8';
	sqlstate_is($node, $db, "SELECT dlock_acquire(E'nul\\x00')",
		'22021', "$db: a zero byte in a name");
	is($node->safe_psql($db, 'SELECT count(*) FROM dlock_leases'),
		$before, "$db: nothing is held");
}
sqlstate_is($node, 'latin1',
	"SET client_encoding = 'UTF8'; SELECT dlock_acquire('\xf0\x9f\x94\x92')",
	'22P05', 'latin1: a character that the database does not have');

# SQL_ASCII takes any byte; what comes back is the same.
$node->safe_psql('sql_ascii',
	"SELECT dlock_acquire('any\xff\xfe', 'alice', '1 h')");
is($node->safe_psql('sql_ascii', 'SELECT name FROM dlock_leases'),
	"any\xff\xfe", 'SQL_ASCII: any bytes');
crash_node($node);
$node->start;
is($node->safe_psql('sql_ascii', 'SELECT name FROM dlock_leases'),
	"any\xff\xfe", 'SQL_ASCII: any bytes, after a crash');
is( $node->safe_psql(
		'utf8',
		"SET client_encoding = 'LATIN1'; SELECT name, owner FROM dlock_leases WHERE name LIKE 'caf%'"
	),
	"$cafe_latin1|se\xf1or",
	'UTF8: after a crash');

$node->stop;
done_testing();
