# Proves, on a clock that the test sets: if the server is away for longer than the lease, dlock run stops its command
# before the end of the lease, and dlock elect campaigns again later; if each renewal fails,
# dlock run stops its command and says why; and a wait that has lost its server says so.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockClock;
use DLockFault;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_fault_node('main');
use_server($node);

# A server that is away for longer than the lease, of six seconds: the command is asked to
# end when it has the second of --kill-after and a margin of 0.3 seconds left, and killed when
# it has that margin.
my %trap = ('ends when asked to' => '', 'has to be killed' => "trap '' TERM; ");
my (%run, %pid);
foreach my $way (sort keys %trap)
{
	$run{$way} = DLockCli->start(qw(run --ttl 6 --kill-after 1), $way, qw(sh -c), "$trap{$way}echo \$\$; while :; do sleep 0.02; done");
	($pid{$way}) = $run{$way}->wait_out(qr/(\d+)\n/);
}
$node->stop('immediate');
$_->wait_err(qr/trying again/) foreach values %run;
advance(4.699999);
ok(kill(0, $_), 'away for long: not stopped before that') foreach values %pid;
advance(0.000001);
ok(wait_until(sub { !kill 0, $pid{'ends when asked to'} }), 'away for long: it ends when asked to');
$run{'has to be killed'}->wait_err(qr/stopping the command/);
ok(kill(0, $pid{'has to be killed'}), 'away for long: one that does not goes on');
advance(1);
ok(wait_until(sub { !kill 0, $pid{'has to be killed'} }), 'away for long: it is killed before the lease can have ended');
foreach my $way (sort keys %trap)
{
	my $run = $run{$way};
	ok(wait_until(sub { advance(0.1); return $run->ended }), "away for long, $way: dlock ends");
	is($run->finish->{code}, 76, "away for long, $way: exit code");
	like($run->{err}, qr/could not be renewed in time; stopping the command\n.*detail: The server cannot be reached: /, "away for long, $way: told");
	unlike($run->{err}, qr/lost/, "away for long, $way: not called a loss");
}
$node->start;

# A server that is away for longer than the lease is no reason to give up an election.  An
# attempt to connect has a part of the ttl, which is long beside a step of the clock: a slow
# machine does not use it up.
{
	my $run = DLockCli->start(qw(elect -v --ttl 600 --kill-after 0.1 --lock-delay 0 election sh -c), 'echo leads; exec sleep 1000');
	$run->wait_out(qr/leads/);
	$node->stop('immediate');
	$run->wait_err(qr/trying again\n/);
	advance(600);
	ok(wait_until(sub { advance(1); return $run->err =~ /campaigning again.*; trying again\n/s }), 'election and a long outage: campaigns again');
	$node->start;
	ok(wait_until(sub { advance(1); return $run->out =~ /leads\nleads/ }), 'election and a long outage: leads again');
	$run->signal('TERM');
	ok(wait_until(sub { advance(1); return $run->ended }), 'election and a long outage: ends when told to');
	is($run->finish->{code}, 143, 'election and a long outage: ends');
}

# A server that answers with an error for longer than the lease: it is named.  Time goes on
# when dlock has taken the answer, and says so each time.
{
	$node->safe_psql('postgres', <<'EOC');
ALTER FUNCTION dlock_renew_token(text, bigint, interval) RENAME TO dlock_hidden;
CREATE FUNCTION dlock_renew_token(text, bigint, interval = NULL) RETURNS boolean LANGUAGE plpgsql AS
	'BEGIN RAISE EXCEPTION ''out of order''; END';
EOC
	my $run = DLockCli->start(qw(run -v --ttl 12 --kill-after 5 odd sh -c), 'echo up; exec sleep 600');
	$run->wait_out(qr/up/);
	foreach my $count (1 .. 5)
	{
		advance(1);
		$run->wait_err(qr/(?:out of order; trying again\n.*){$count}/s);
	}
	ok(wait_until(sub { advance(0.1); return $run->ended }), 'renewals that fail: it ends');
	is($run->finish->{code}, 76, 'renewals that fail: exit code');
	like($run->{err}, qr/could not be renewed in time; stopping the command\n.*detail: The server did not renew the lease: out of order\n/, 'renewals that fail: told why');
	is(scalar(() = $run->{err} =~ /warning: the server did not renew/g), 1, 'renewals that fail: told once');
	$node->safe_psql('postgres', <<'EOC');
DROP FUNCTION dlock_renew_token(text, bigint, interval);
ALTER FUNCTION dlock_hidden(text, bigint, interval) RENAME TO dlock_renew_token;
EOC
}

# No server when the time to wait is over says nothing about the lock.
{
	$node->safe_psql('postgres', "SELECT dlock_acquire('held', 'holder', '1 h')");
	my $run = DLockCli->start(qw(wait -w 3 held));
	ok( $node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'dlock' AND state = 'active' AND wait_event_type = 'Extension'"),
		'dlock wait: it watches');
	$node->stop('immediate');
	ok(wait_until(sub { advance(0.1); return $run->ended }), 'dlock wait without a server: it ends');
	is($run->finish->{code}, 69, 'dlock wait without a server: exit code');
	unlike($run->{err}, qr/still held/, 'dlock wait without a server: not taken for a lock that is held');
}

done_testing();
