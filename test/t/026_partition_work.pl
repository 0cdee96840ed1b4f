# Proves: with synchronous replication and a standby that is promoted while the
# primary is only cut off, work is never done twice at a time: not by the commands of
# dlock run, nor by members of a group, nor on a captured task.  The promoted server is
# another machine, to its clocks, which are ahead by less than dlock.max_clock_skew.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";

use DLockCli;
use DLockFence;
use DLockSession;
use DLockStall;
use DLockStandby;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $control = PostgreSQL::Test::Utils::tempdir . '/clock';
my %fake = fake_clock_env($control) or plan skip_all => 'no compiler for the clock';
my $db = 'postgres';
my $ttl = 6;
my $dir = PostgreSQL::Test::Utils::tempdir;

my $primary = start_node('primary', allows_streaming => 1);
$primary->safe_psql($db, "SELECT dlock_group_create('g', names => ARRAY['p']); SELECT dlock_task_create_queue('q'), dlock_task_put('q', 'k')");
my $standby = make_standby($primary, 'standby', start => 0);
fake_clock_set($control, wall => 5, boot_id => 'another-machine');
{
	local %ENV = (%ENV, %fake);
	$standby->start;
}
make_synchronous($primary);

# Commands that note when they run, on a clock that both have.
my $work = <<'EOC';
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC usleep);
$| = 1;
$SIG{TERM} = sub { printf "stop %.3f\n", clock_gettime(CLOCK_MONOTONIC); exit };
printf "start %.3f\n", clock_gettime(CLOCK_MONOTONIC);
usleep(20_000) while !-e $ARGV[0];
EOC
append_to_file("$dir/work.pl", $work);

sub start_work
{
	my ($node, @options) = @_;

	use_server($node, $db);
	return DLockCli->start('run', '--ttl', $ttl, '--kill-after', '300ms', '--lock-delay', '0s', @options, 'work', $^X, "$dir/work.pl", "$dir/go");
}

# The first renewal of each is logged, with a bound two ttl away.
my $begin = mono_now();
my $old_run = start_work($primary);
$old_run->wait_out(qr/start/);
my $old = DLockSession->new($primary, $db, name => 'old');
my $member = $old->query_safe("SELECT dlock_group_join('g', 'alice', '$ttl s')");
my $token = $old->query_safe("SELECT token FROM dlock_task_capture('q', ttl => '$ttl s')");
my $beat = "SELECT string_agg(partition, ',') FROM dlock_group_heartbeat('g', $member) WHERE action = 'run'";
my $owned = $old->query($beat);
my $logged = "SELECT granted_at + interval '$ttl s' + interval '500 ms' < expires_at FROM dlock_leases WHERE name = 'work'";
wait_until(sub { $old->query_safe($logged) eq 't' || stood_still($begin) });
my $renewed = $old->query($beat);
my $extended = $old->query("SELECT dlock_task_extend('q', 'k', $token)");
my %last = (task => $old->{sent}, group => $old->{sent});

# The cut.
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
cut_off($primary, $standby);
$standby->promote;
$old->query_safe("SET statement_timeout = '300 ms'");

my $new_run = start_work($standby, '-w', 60);
my $new = DLockSession->new($standby, $db, name => 'new');
my $new_member = $new->query_safe("SELECT dlock_group_join('g', 'bob', '1 h')");
my $new_beat = "SELECT string_agg(partition, ',') FROM dlock_group_heartbeat('g', $new_member) WHERE action = 'run'";
my (%taken, $lost);
my $beats = 0;
my $end = mono_now() + 60;
while (keys %taken < 2 && mono_now() < $end)
{
	if (!$lost)
	{
		my $answer = $old->ask($beat)->result;

		$lost = $answer->{failed};
		($last{group}, $beats) = ($answer->{sent}, $beats + 1) if $answer->{out} eq 'p';
	}
	$taken{task} //= mono_now() if $new->query_safe("SELECT count(*) FROM dlock_task_capture('q')") > 0;
	$taken{group} //= mono_now() if $new->query_safe($new_beat) eq 'p';
	usleep(50_000);
}

# The old command loses its lease and ends, the new one gets the lock.
wait_until(sub { $old_run->ended });
wait_until(sub { $new_run->ended || $new_run->out =~ /start/ });
append_to_file("$dir/go", '');
$_->finish foreach $old_run, $new_run;
my ($started) = $old_run->out =~ /start (\S+)/;
my ($stopped) = $old_run->out =~ /stop (\S+)/;
my ($next) = $new_run->out =~ /start (\S+)/;
unless_stalled(
	$begin, 10,
	sub {
		is($owned, 'p', 'the member has the partition');
		is($renewed, 'p', 'the member has renewed');
		is($extended, 't', 'the capture is extended');
		cmp_ok($beats, '>', 1, 'group: the old primary goes on to answer');
		cmp_ok($taken{group} // 0, '>=', $last{group} + $ttl, 'group: the partition is taken after the last acknowledged deadline');
		cmp_ok($taken{task} // 0, '>=', $last{task} + $ttl, 'task: captured after the last acknowledged deadline');
		cmp_ok(($stopped // 0) - $started, '>', $ttl, 'run: the old command ran on after the cut');
		cmp_ok($next // 0, '>', $stopped // 0, 'run: the new command starts when the old one has stopped');
		is($old_run->{code}, 76, 'run: the old one has lost its lease');
		is($new_run->{code}, 0, 'run: the new one ends');
	});

$new->quit;
$old->query_safe('SET statement_timeout = 0');
$old->quit;
$standby->stop;
crash_node($primary);

done_testing();
