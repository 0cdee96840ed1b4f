# Proves: the examples on task states in doc/howto/patterns.md run as they stand there.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $text = slurp_file("$FindBin::RealBin/../../../doc/howto/patterns.md");
my ($section) = $text =~ /^## Task states\n(.*?)(?=^## |\z)/ms;
my @blocks = $section =~ /^```sql\n(.*?)^```$/msg;
cmp_ok(scalar @blocks, '>=', 5, 'there are examples');

my $node = start_node('main');
my ($out, $err) = ('', '');
foreach my $block (@blocks)
{
	my ($ret, $stdout, $stderr) = $node->psql('postgres', $block, on_error_stop => 1);
	is($ret, 0, 'an example runs') or diag($stderr);
	$out .= "$stdout\n";
	$err .= $stderr;
}
like($err, qr/bob.*ann/s, 'the worker has sent both mails, the urgent one first');
is( $node->safe_psql('postgres', "SELECT queue, key, state, attempts FROM dlock_tasks ORDER BY queue, key"),
	"mail|bad-address|sending|1\nmail|greylisted|ready|1\nmail|order-4711|done|1\nmail|order-4712|sending|1\nmail|password-17|done|1\nmail|reminder-9|ready|0\nvideo|v1|published|1",
	'and this is what they come to');
like($out, qr/^greylisted\|ready\|1\|t\|try again later$/m, 'a mail was put off');
like($out, qr/^bad-address\|parked\|3\|no such address$/m, 'the bad address was parked');
$node->stop;

done_testing();
