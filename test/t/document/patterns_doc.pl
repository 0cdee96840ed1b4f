# Proves: the examples of doc/howto/patterns.md work as they stand, and those that begin with a
# lock leave all as it is while another holds that.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main');
my $db = 'postgres';
my $text = slurp_file("$FindBin::RealBin/../../../doc/howto/patterns.md");
$text =~ s/^## Task states\n.*?(?=^## |\z)//ms;	# those are in task_recipe
my %env = (PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => $db);

# A block in SQL may go on with what one before has made; a script may take its time,
# as long as it ends.
my (%count, %out, %block);
my $heading = '';
while ($text =~ /^(?:#+ ([^\n]*)|```(\w+)\n(.*?)^```)$/msg)
{
	if (defined $1)
	{
		$heading = $1;
		next;
	}
	my ($language, $block) = ($2, $3);
	my $name = "$heading, block " . ++$count{$heading};

	$block{$name} = $block;
	$out{$name} = run_block($name, $language, $block);
}

# What a block prints.
sub run_block
{
	my ($name, $language, $block) = @_;
	my ($out, $err) = ('', '');
	my @command =
	  $language eq 'sql' ? ('psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-f', '-')
	  : $language eq 'sh' ? ('bash', '-s')
	  : BAIL_OUT("a block in $language");

	{
		local %ENV = (%ENV, %env);
		IPC::Run::run(\@command, '<', \$block, '>', \$out, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	}
	is($?, 0, "$name: it succeeds") or diag($block);
	is($err, '', "$name: without a complaint");
	return $out;
}

# What they say.
like($out{'Waiting without a connection, block 1'}, qr/\|1\|t\n.*invoice:2\|app-7#b\|\d+\n/s, 'a place, and its turn');
like($out{'Waiting without a connection, block 2'}, qr/^ann: \d+\nbob: please wait\nbob: token \d+\n/, 'who waits asks again');
like($out{'Cron singleton, block 1'}, qr/^the night's report, with token \d+$/, 'the first machine does it');
is($out{'Cron singleton, block 2'}, "t\n", 'the slot is given back');
is($out{'Cron singleton, block 3'}, "the job\nt\n", 'it is run');
like($out{'A job of limited rate, block 1'}, qr/^[12]$/, 'limited');
is($out{'Database migration guard, block 1'}, "t\n", 'migrated');
is($out{'Election, block 1'}, "t\nf\nnode-1/4711|10.0.0.1|t|t\nt\n", 'elected');
like($out{'Singleton service, block 1'}, qr/^(?:a piece of work of less than 5 s, with token (\d+)\n)(?:a piece of work of less than 5 s, with token \1\n){2}t$/, 'one term');
is($node->safe_psql($db, 'SELECT state FROM mailbox'), 'sent', 'fenced');
is($out{'Leader with warm standbys, block 1'}, "the leader is at nowhere\n" x 2, 'followed');
my $groups = join '', map { "$_|T|run\n" } 0 .. 7;
$groups .= join '', map { "$_|T|run\n" } 0 .. 3;
$groups .= join '', map { "$_|T|yield\n" } 4 .. 7;
$groups .= "4\n" . join '', map { "$_|T|run\n" } 4 .. 7;
$groups .= join '', map { "$_|" . ($_ < 4 ? 'node-1' : 'node-2') . "\n" } 0 .. 7;
$groups .= "node-1|1|4|4\nnode-2|1|4|4\nt\n";
is($out{'Groups, block 1'} =~ s/\|\d+\|(run|yield)/|T|$1/gr, "\n$groups", 'spread');
is( $out{'Sharded consumers, block 1'} =~ s/token \d+/token T/gr,
	join('', map { "consume the orders with id % 8 = $_, with token T\n" } (0 .. 3) x 3) . "t\n",
	'consumed');

# A job whose last run goes on leaves the slot alone, and one that has lost the slot the lock.
my $job = 'Cron singleton, block 3';
$node->safe_psql($db, q{SELECT dlock_force_release('once:sync', 'test'), dlock_force_release('once:sync', 'test'), dlock_acquire('sync', 'host-2', '1 h')});
is(run_block("$job, held", 'sql', $block{$job}), '', 'it is not run');
is($node->safe_psql($db, q{SELECT count(*) FROM dlock_lease('once:sync') WHERE state = 'held'}), 0, 'the slot is free');
$node->safe_psql($db, q{SELECT dlock_release('sync', 'host-2'), dlock_once('sync', '1 day')});
run_block("$job, slot lost", 'sql', $block{$job});	# unless another slot has just begun
is($node->safe_psql($db, q{SELECT count(*) FROM dlock_lease('sync')}), 0, 'the lock is free');

# No migration without the lock.
my $migration = 'Database migration guard, block 1';
$node->safe_psql($db, q{DROP TABLE schema_version, invoice; SELECT dlock_acquire('migration', 'other', '1 h')});
is(run_block("$migration, held", 'sql', $block{$migration} =~ s/10 min/1 ms/r), '', 'the time is up');
is($node->safe_psql($db, q{SELECT to_regclass('schema_version') IS NULL AND to_regclass('invoice') IS NULL}), 't', 'nothing is migrated');

$node->stop;
done_testing();
