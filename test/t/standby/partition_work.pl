# Proves: with synchronous replication and a standby that is promoted while the
# primary is only cut off, work is never done twice at a time: not by the commands of
# dlock run, nor by members of a group.  The promoted server is
# another machine, to its clocks, which are ahead by less than dlock.max_clock_skew.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

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
my $work = PostgreSQL::Test::Utils::tempdir . '/work.pl';

# Commands that note when they run, on a clock that both have.
append_to_file($work, <<'EOC');
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC usleep);
$| = 1;
$SIG{TERM} = sub { printf "stop %.3f\n", clock_gettime(CLOCK_MONOTONIC); exit };
printf "start %.3f\n", clock_gettime(CLOCK_MONOTONIC);
usleep(20_000) while !-e $ARGV[0];
EOC

# One partition, with leases, memberships and captures of $ttl seconds.  Returns what came
# of it, and whether the machine was too slow to show it: whether something was answered
# so late that what was held may have ended, as it was to.
sub partition
{
	my ($ttl) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir;
	my %got = (too_slow => 0);

	fake_clock_set($control);
	my $primary = start_node("primary$ttl", allows_streaming => 1);
	$primary->safe_psql($db, "SELECT dlock_group_create('g', names => ARRAY['p'])");
	my $standby = make_standby($primary, "standby$ttl", start => 0);
	fake_clock_set($control, wall => 5, boot_id => 'another-machine');
	{
		local %ENV = (%ENV, %fake);
		$standby->start;
	}
	make_synchronous($primary);
	my $start_work = sub {
		my ($node, @options) = @_;

		use_server($node, $db);
		return DLockCli->start('run', '--ttl', $ttl, '--kill-after', $ttl / 20 . 's', '--lock-delay', '0s', @options, 'work', $^X, $work, "$dir/go");
	};

	# The first renewal of each is logged, with a bound two ttl away.
	my $begin = mono_now();
	my $old_run = $start_work->($primary);
	$old_run->wait_out(qr/start/);
	my $old = DLockSession->new($primary, $db, name => 'old');
	my $member = $old->query_safe("SELECT dlock_group_join('g', 'alice', '$ttl s')");
	my $beat = "SELECT string_agg(partition, ',') FROM dlock_group_renew('g', $member) WHERE action = 'run'";
	$got{owned} = $old->query($beat);
	my $logged = "SELECT granted_at + interval '$ttl s' + interval '500 ms' < expires_at FROM dlock_leases WHERE name = 'work'";
	wait_until(sub { $old->query_safe($logged) eq 't' || mono_now() > $begin + $ttl });
	$got{renewed} = $old->query($beat);
	my %last = (group => $old->{sent});
	$got{too_slow} = 1 if mono_now() > $begin + $ttl;

	# The cut.
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	cut_off($primary, $standby);
	$standby->promote;
	$old->query_safe("SET statement_timeout = '3 s'");

	my $new_run = $start_work->($standby, '-w', 10 * $ttl);
	my $new = DLockSession->new($standby, $db, name => 'new');
	my $new_member = $new->query_safe("SELECT dlock_group_join('g', 'bob', '1 h')");
	my $new_beat = "SELECT string_agg(partition, ',') FROM dlock_group_renew('g', $new_member) WHERE action = 'run'";
	my (%taken, $lost);
	my $end = mono_now() + 10 * $ttl;
	$got{beats} = 0;
	while (!%taken && mono_now() < $end)
	{
		if (!$lost)
		{
			my $answer = $old->ask($beat)->result;

			# The first beats are to lie within what was logged.
			$got{too_slow} = 1 if $answer->{at} > $last{group} + $ttl || $got{beats} < 2 && $answer->{at} > $begin + $ttl;
			$lost = $answer->{failed};
			$got{too_slow} = 1 if $lost && $got{beats} < 2;
			($last{group}, $got{beats}) = ($answer->{sent}, $got{beats} + 1) if $answer->{out} eq 'p';
		}
		$taken{group} //= mono_now() if $new->query_safe($new_beat) eq 'p';
		usleep(50_000);
	}
	$got{$_} = ($taken{$_} // 0) - $last{$_} - $ttl foreach qw(group);

	# The old command loses its lease and ends, the new one gets the lock.
	wait_until(sub { $old_run->ended });
	wait_until(sub { $new_run->ended || $new_run->out =~ /start/ });
	append_to_file("$dir/go", '');
	$_->finish foreach $old_run, $new_run;
	($got{started}) = $old_run->out =~ /start (\S+)/;
	($got{stopped}) = $old_run->out =~ /stop (\S+)/;
	($got{next}) = $new_run->out =~ /start (\S+)/;
	@got{qw(old_code new_code)} = map { $_->{code} } $old_run, $new_run;

	# One that does not get to run is killed before it can say that it stops.
	$got{too_slow} = 1 if !defined $got{stopped} || stood_still($begin) > 1;

	$new->quit;
	$old->query_safe('SET statement_timeout = 0');
	$old->quit;
	$standby->stop;
	crash_node($primary);
	return %got;
}

my ($ttl, %got);
foreach (6, 18, 54)
{
	$ttl = $_;
	%got = partition($ttl);
	last unless $got{too_slow};
	note "too slow for a ttl of $ttl s";
}
is($got{owned}, 'p', 'the member has the partition');
is($got{renewed}, 'p', 'the member has renewed');
cmp_ok($got{beats}, '>', 1, 'group: the old primary goes on to answer');
cmp_ok($got{group}, '>=', 0, 'group: the partition is taken after the last acknowledged deadline');
cmp_ok(($got{stopped} // 0) - $got{started}, '>', $ttl, 'run: the old command ran on after the cut');
cmp_ok($got{next} // 0, '>', $got{stopped} // 0, 'run: the new command starts when the old one has stopped');
is($got{old_code}, 76, 'run: the old one has lost its lease');
is($got{new_code}, 0, 'run: the new one ends');

done_testing();
