# Proves: a synchronous standby that is not there makes dlock give up in time, with
# nothing left behind: no backend that is stuck, and no lease that nobody knows of.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockStall;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', allows_streaming => 1);
my $dir = PostgreSQL::Test::Utils::tempdir();
use_server($node);

sub sql
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', "SET synchronous_commit = local; $sql");
}

sub require_standby
{
	my ($names) = @_;
	$node->append_conf('postgresql.conf', "synchronous_standby_names = '$names'");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('synchronous_standby_names') = '$names'");
	return;
}

sub stuck
{
	return sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock'");
}

sub is_clean
{
	my ($test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok(wait_until(sub { stuck() == 0 }, 10), "$test_name: no backend is left");
	is(sql("SELECT count(*) FROM dlock_leases WHERE state = 'held'"), 0, "$test_name: no lease is left");
	return;
}

require_standby('nobody');

# All at a time, for each of them takes its time.
my @runs = map { DLockCli->start(@$_, "free @$_", $_->[0] eq 'acquire' ? () : ('touch', "$dir/ran")) }
  [qw(run -n)], [qw(run -w 2)], ['run', '-v'], [qw(acquire -n)], [qw(acquire -n --owner me)], [qw(run --permits 2 -n)], [qw(elect -w 1)];
foreach my $run (@runs)
{
	$run->finish;
	is($run->{code}, 69, 'no standby: exit code');
	like($run->{err}, qr/error: the server did not finish the request in time\n.*hint: .*standbys/, 'no standby: told');
	is($run->{out}, '', 'no standby: no token is printed');
	in_time($run->{started}, $run->{ended}, 40, 'no standby: in time');
}
ok(!-e "$dir/ran", 'no standby: no command is run');
is_clean('no standby');

# A signal does not leave anything behind, either.
{
	my $run = DLockCli->start(qw(run signalled true));
	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'dlock' AND wait_event = 'SyncRep'");
	$run->signal('TERM');
	is($run->finish->{code}, 143, 'a signal: exit code');
	is_clean('a signal');
}

# Who waits for a lock that is held is refused when it has waited.
{
	sql("SELECT dlock_acquire('held', 'holder', '1 h')");
	cli_is([qw(run -n held true)], { code => 75, err => qr/held by "holder"/ }, 'held: -n');
	cli_is([qw(run -w 1 held true)], { code => 75, err => qr/held by "holder"/ }, 'held: -w');
	sql("SELECT dlock_release('held', 'holder')");
	is_clean('held');
}

# The standby goes while a lease is held: renewals that it does not confirm keep
# nothing, and do not pile up.
{
	my $why = qr/could not be renewed in time.*\n.*detail: The server did not renew the lease: the server did not finish/;
	my ($run, $most);

	# A backend that was cancelled may not get to run until the next one comes; not each time.
	foreach my $attempt (1 .. 3)
	{
		require_standby('');
		$run = DLockCli->start(qw(run --ttl 12 --kill-after 1 kept sh -c), 'echo up; exec sleep 600');
		$run->wait_out(qr/up/);
		require_standby('nobody');
		$most = 0;
		until ($run->ended)
		{
			my $now = stuck();
			$most = $now if $now > $most;
		}
		is($run->finish->{code}, 76, 'a standby that goes: exit code');
		last if $most <= 3 && $run->{err} =~ $why;
	}
	like($run->{err}, $why, 'a standby that goes: told');
	note "at most $most backends";
	cmp_ok($most, '<=', 3, 'a standby that goes: backends do not pile up');
	require_standby('');
	ok(wait_until(sub { stuck() == 0 }, 10), 'a standby that goes: no backend is left');
}

$node->stop;
done_testing();
