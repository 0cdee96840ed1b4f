# Proves: a page of the store that cannot be right is told, by its block and what is wrong
# with it, and nothing is granted meanwhile; once it is put right, the leases are there as
# before.  A store of another format is refused likewise.  Pages that were never
# initialised, the meta page among them, are used.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant PAGE => 8192;

my $db = 'postgres';
my $node = start_node('main');
my $held = $node->safe_psql($db, "SELECT dlock_acquire('held', 'alice', '1 h', payload => '{\"a\": 1}')");
my $file = $node->data_dir . '/' . $node->safe_psql($db, "SELECT pg_relation_filepath('_dlock.store')");

# What is written here would have a wrong checksum.  It fails where there are none.
$node->stop;
IPC::Run::run([ 'pg_checksums', '--disable', '-D', $node->data_dir ], '>', \my $out, '2>&1');

# Write bytes into the store of the server, which is down; returns what was there.
sub poke
{
	my ($offset, $bytes) = @_;
	my $before = '';

	open my $fh, '+<:raw', $file or die "$file: $!";
	seek $fh, $offset, 0;
	read $fh, $before, length $bytes;
	seek $fh, $offset, 0;
	print $fh $bytes;
	close $fh or die "$file: $!";
	return $before;
}

# Offsets as in src/store/page.c: the header of a page has 24 bytes, and the slots begin
# at 64.
foreach my $case (
	[ 'another format', 28, pack('S', 99), '55000', qr/format version 99/ ],
	[ 'no meta page', 24, pack('L', 1), 'XX001', qr/invalid page in block 0/, qr/not a meta page/ ],
	[ 'no page of slots', PAGE + 24, pack('L', 1), 'XX001', qr/invalid page in block 1/, qr/not a page of slots/ ],
	[ 'another version of a page', PAGE + 28, pack('S', 99), 'XX001', qr/invalid page in block 1/, qr/not a page of slots/ ],
	[ 'no class of slots', PAGE + 30, pack('S', 3), 'XX001', qr/invalid page in block 1/, qr/not a page of slots/ ],
	[ 'no name', PAGE + 64 + 70, pack('C', 0), 'XX001', qr/invalid page in block 1/, qr/lengths out of range/ ],
	[ 'a payload that is too long', PAGE + 64 + 68, pack('S', 2000), 'XX001', qr/invalid page in block 1/, qr/lengths out of range/ ],
	[ 'no owner', PAGE + 64 + 71, pack('C', 0), 'XX001', qr/invalid page in block 1/, qr/lengths out of range/ ],
	[ 'a name too long for the slot', PAGE + 64 + 70, pack('C', 255), 'XX001', qr/invalid page in block 1/, qr/lengths out of range/ ],
	[ 'no mode', PAGE + 64 + 72, pack('C', 77), 'XX001', qr/invalid page in block 1/, qr/mode out of range/ ],
	[ 'bound to nothing known', PAGE + 64 + 73, pack('C', 77), 'XX001', qr/invalid page in block 1/, qr/mode out of range/ ],
	[ 'no part of a path', PAGE + 64 + 74, pack('C', 77), 'XX001', qr/invalid page in block 1/, qr/mode out of range/ ])
{
	my ($what, $offset, $bytes, $sqlstate, $message, $detail) = @$case;
	my $before = poke($offset, $bytes);

	$node->start;
	foreach my $sql ("SELECT dlock_acquire('new', 'bob', '1 h')", "SELECT dlock_release('held', 'alice')")
	{
		my %error = sqlstate_is($node, $db, $sql, $sqlstate, "$what: $sql");
		like($error{message}, $message, "$what: the message");
		like($error{detail}, $detail, "$what: the detail") if $detail;
	}
	$node->stop;
	poke($offset, $before);
}
$node->start;
is($node->safe_psql($db, "SELECT name, token, payload FROM dlock_leases"), "held|$held|{\"a\": 1}", 'put right: as before');

# An owner that has entered a lease as often as can be counted: it is entered, and not counted.
$node->stop;
poke(PAGE + 64 + 52, pack('L', 0xFFFFFFFF));
$node->start;
is($node->safe_psql($db, "SELECT dlock_acquire('held', 'alice', '1 h', reentry => 'count')"), $held, 'too many holds: entered again');
is($node->safe_psql($db, "SELECT holds FROM dlock_leases WHERE name = 'held'"), 4294967295, 'too many holds: as many as before');

# A crash can leave pages that were never initialised: they are used before others are added.
$node->stop;
poke(-s $file, "\0" x (2 * PAGE));
my $size = -s $file;
$node->start;
is($node->safe_psql($db, "SELECT count(dlock_acquire('many' || i, 'bob', '1 h')) FROM generate_series(1, 100) i"), 100, 'empty pages: granted');
is($node->safe_psql($db, "SELECT pg_relation_size('_dlock.store')"), $size, 'empty pages: the store has not grown');
crash_node($node);
$node->start;
is($node->safe_psql($db, 'SELECT count(*) FROM dlock_leases'), 101, 'empty pages: all is there after a crash');
my $highest = $node->safe_psql($db, 'SELECT max(token) FROM dlock_leases');

# Without a meta page the store begins anew.
$node->stop;
poke(0, "\0" x PAGE);
$node->start;
is($node->safe_psql($db, 'SELECT count(*) FROM dlock_leases'), 0, 'no meta page yet: a new store');
cmp_ok($node->safe_psql($db, "SELECT dlock_acquire('held', 'bob', '1 h')"), '>', $highest, 'no meta page yet: tokens ascend');

# What the hint says.
$node->stop;
poke(PAGE + 24, pack('L', 1));
$node->start;
my %error = sqlstate_is($node, $db, "SELECT dlock_acquire('x', 'bob', '1 h')", 'XX001', 'damaged');
like($error{hint}, qr/drop and create the extension/, 'damaged: the hint');
$node->safe_psql($db, 'DROP EXTENSION dlock; CREATE EXTENSION dlock');
cmp_ok($node->safe_psql($db, "SELECT dlock_acquire('x', 'bob', '1 h')"), '>', $highest, 'damaged, created again: granted');

$node->stop;
done_testing();
