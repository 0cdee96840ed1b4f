# Proves: the background workers end at a shutdown, or when they are terminated,
# whatever they are doing, at once and without an error in the server log.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockSession;
use DLockStall;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', conf => "log_line_prefix = '%b: '\ndlock.reap_interval = 1h\n");
my $db = 'postgres';

# Longer than that takes a fast shutdown only if something holds it up, which would be
# for ten minutes, or for ever.
my $at_once = 100;

# Nothing but the lines of the launcher and the reapers.
sub workers_said
{
	my ($offset) = @_;

	return join '', slurp_file($node->logfile, $offset) =~ /^dlock \w+: (?:WARNING|ERROR|FATAL|PANIC): .*\n/mg;
}

sub stops_quietly
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $offset = -s $node->logfile;
	my $began = mono_now();

	$node->stop('fast');
	in_time($began, mono_now(), $at_once, "$what: at once");
	is(workers_said($offset), '', "$what: nothing in the log");
	$node->start;
	return;
}

# Something to do for a reaper, which then stays for a minute.
sub call_reaper
{
	my ($dbname) = @_;

	$node->safe_psql($dbname, "SELECT dlock_acquire('due', 'w', '1 ms')");
	wait_for_reaper($node, $dbname);
	return;
}

# Until a reaper is in a wait of this kind.
sub reaper_waits
{
	my ($event) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok($node->poll_query_until($db, "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'dlock reaper' AND datname = '$db' AND wait_event = '$event'"),
		"a reaper waits: $event");
	return;
}

$node->safe_psql($db, 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION dlock');
call_reaper($_) foreach $db, 'other';
stops_quietly('idle');

$node->stop;
done_testing();
