# Proves: dlock run rides out what is shorter than the lease, be it a restart, a crash
# or a backend that is terminated; if each renewal fails, it stops its command and says
# why.  How long an outage may be is said, and can be chosen.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = init_node('main');
$node->start;
my $db = 'postgres';
$node->safe_psql($db, 'CREATE EXTENSION dlock');
use_server($node);

sub sql
{
	my ($sql, $on) = @_;
	return ($on // $node)->safe_psql($db, $sql);
}

my %cut = (
	'a restart' => sub { $node->restart },
	'an immediate stop' => sub { $node->stop('immediate'); $node->start },
	'a crash' => sub { crash_node($node); $node->start },
	'a terminated backend' => sub { sql("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'dlock'") });
foreach my $what (sort keys %cut)
{
	my $run = start_ride(qw(--ttl 600 ride));

	$cut{$what}->();
	$run->wait_err(qr/is renewed again/);
	my ($token) = $run->out =~ /(\d+)/;
	is(sql("SELECT token FROM dlock_leases WHERE name = 'ride' AND state = 'held'"), $token, "$what: the lease is still held");
	is(end_ride($run)->{code}, 3, "$what: ridden out");
	is(sql('SELECT count(*) FROM dlock_leases'), 0, "$what: released");
	unlike($run->{err}, qr/lost|error/, "$what: not a loss");
}

# A server that answers with an error for longer than the lease: it is named.
{
	sql('ALTER FUNCTION dlock_renew_token(text, bigint, interval) RENAME TO dlock_hidden');
	sql(q{CREATE FUNCTION dlock_renew_token(text, bigint, interval = NULL) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''out of order''; END'});

	# With time enough for each answer, and more than once, so that the last trouble is not one
	# that is late.
	my $why = qr/could not be renewed in time; stopping the command\n.*detail: The server did not renew the lease: out of order\n/;
	my $run;
	foreach my $attempt (1 .. 3)
	{
		$run = cli(qw(run --ttl 12 --kill-after 5 odd sleep 600));
		last if $run->{err} =~ $why;
	}
	is($run->{code}, 76, 'renewals that fail: exit code');
	like($run->{err}, $why, 'renewals that fail: told why');
	is(scalar(() = $run->{err} =~ /warning: the server did not renew/g), 1, 'renewals that fail: told once');
	sql('DROP FUNCTION dlock_renew_token(text, bigint, interval)');
	sql('ALTER FUNCTION dlock_hidden(text, bigint, interval) RENAME TO dlock_renew_token');
}

# How long an outage may take is said, and can be chosen.
foreach my $case (
	[ [], '53s', '60s' ],
	[ [qw(--outage 2m)], '12\ds', '\d+s' ],
	[ [qw(--outage 40 --kill-after 20)], '40(?:\.\d+)?s', '62s' ],
	[ [qw(--ttl 30 --kill-after 10)], '18s', '30s' ],
	[ [qw(--ttl 30 --kill-after 10 --outage 18)], '18s', '30s' ])
{
	my ($options, $budget, $ttl) = @$case;
	cli_is([ qw(run -v), @$options, qw(budget true) ], { err => qr/^dlock: info: outage budget: $budget \(ttl $ttl, renewed every 1s, / }, "outage budget: @$options");
}
cli_is([qw(run --ttl 30 --kill-after 10 --outage 19 budget true)], { code => 64, err => qr/error: a ttl of 30s leaves no time.*hint: Use --ttl 31s or more\./s }, 'outage budget: does not fit');
cli_is([qw(run --ttl 30 --outage 30 budget true)], { code => 64, err => qr/hint: Use --ttl 37s or more\./ }, 'outage budget: does not fit, either');

# What a server logs of runs that end as they should: no error.
{
	my $before = -s $node->logfile;
	cli_is([qw(run quiet sleep 1.3)], {}, 'a run of a while');
	my $run = start_ride('quiet');
	$run->signal('TERM');
	is($run->finish->{code}, 143, 'a run that is ended');
	$run = start_ride('quiet');
	sql("SELECT dlock_force_release('quiet', 'test')");
	is($run->finish->{code}, 76, 'a run that loses its lease');
	my $log = substr slurp_file($node->logfile), $before;
	unlike($log, qr/ERROR|FATAL/, 'the server logs no error');
}

# Not there when the command has ended: its own exit code counts.
{
	my $run = start_ride(qw(--ttl 600 end));
	$node->stop('immediate');
	is(end_ride($run)->{code}, 3, 'away at the end: the exit code of the command');
	like($run->{err}, qr/could not be released, and ends by itself/, 'away at the end: told');
	$node->start;
	sql("SELECT dlock_force_release('end', 'next') FROM generate_series(1, 2)");
}

# No server when the time to wait is over says nothing about the lock.
{
	my $run;

	sql("SELECT dlock_acquire('held', 'holder', '1 h')");

	# The server has to stop before the time to wait is over.
	foreach my $wait (3, 12, 48)
	{
		$run = DLockCli->start(qw(wait -w), $wait, 'held');
		wait_until(sub { $run->ended || sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock' AND state = 'active' AND query LIKE '%dlock_watch%'") == 1 });
		$node->stop('immediate');
		my $in_time = mono_now() < $run->{started} + $wait;
		$run->finish;
		last if $in_time;
		$node->start if $wait < 48;
	}
	is($run->{code}, 69, 'dlock wait without a server: exit code');
	unlike($run->{err}, qr/still held/, 'dlock wait without a server: not taken for a lock that is held');
	$node->start;
	sql("SELECT dlock_force_release('held', 'test')");
}

done_testing();
