# Proves: dlock status --watch shows the leases and the requests again and again, the lock with
# the longest wait first; on a terminal it redraws them and leaves nothing behind;
# it outlasts the server, and ends when nobody reads.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockSession;
use DLockStandby;
use DLockTest;
use JSON::PP ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_node('main', allows_streaming => 1);
my $db = 'postgres';
use_server($node);

sub objects
{
	return map { JSON::PP->new->utf8->decode($_) } split /\n/, $_[0];
}

# Leases of a to d; somebody waits for c, and since a moment for b.
$node->safe_psql($db, "SELECT dlock_acquire(n, 'holder', '1 h') FROM unnest('{a,b,c,d}'::text[]) n");
my @waiters = map { DLockSession->new($node, $db) } 0 .. 2;
foreach my $i (0 .. 2)
{
	my $name = (qw(c b c))[$i];
	$waiters[$i]->ask("SELECT dlock_acquire('$name', 'waiter-$i', '1 h', wait => '1 h')");
	$node->poll_query_until($db, "SELECT count(*) = $i + 1 FROM dlock_waiters") or die 'nobody waits';
}

# ---- once, and again ----

my @order = map { "$_->{kind} $_->{name} $_->{owner}" } objects(cli_is([qw(status --json)], { out => qr/./ }, 'once')->{out});
my @expected = ('lease c holder', 'lease b holder', 'lease a holder', 'lease d holder', 'waiter c waiter-0', 'waiter c waiter-2', 'waiter b waiter-1');
is_deeply(\@order, \@expected, 'the lock that has been waited for longest is the first');

my $run = DLockCli->start(qw(status --json --watch=0.05));
$run->wait_out(qr/(?:"status".*){3}\n/s);
$run->signal('TERM');
is($run->finish->{signal}, 15, 'JSON: ended');
my @shown = objects($run->{out} =~ s/[^\n]*\z//r);
is_deeply([ map { join ' ', grep { defined } @$_{qw(kind name owner)} } @shown[ 0 .. 8 ] ], [ 'status', @expected, 'status' ], 'JSON: each time all of it');
like($shown[0]{time}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/, 'JSON: each time has its time');

$run = DLockCli->start(qw(status --watch=0.05 c));
$run->wait_out(qr/(?:^\d{4}-\S+Z\n\nNAME.*\nc .*\n\nNAME.*\nc .*\nc .*\n\n){2}/m);
unlike($run->out, qr/\e|^[abd] /m, 'plain lines: of one lock, without sequences');
$run->signal('TERM');
$run->finish;

cli_is([qw(status --watch=0)], { code => 64, err => qr/"--watch" does not take "0"/ }, 'no time between two');
is(system('/bin/sh', '-c', "'@{[ cli_program() ]}' status --watch=0.01 | head -n 1 >/dev/null"), 0, 'a pipe that is closed ends it');

# ---- on a terminal ----

SKIP:
{
	skip 'IO::Pty is needed', 4 unless eval { require IO::Pty; 1 };
	my $pty = IO::Pty->new;
	my $seen = '';
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		my $slave = $pty->slave;
		$slave->set_winsize(7, 40);
		open STDOUT, '>&', $slave;
		exec cli_program(), qw(status --watch=0.05);
	}
	$pty->close_slave;
	$pty->blocking(0);
	my $frame = qr/\e\[\?7l\e\[H(.*?)\e\[J\e\[\?7h/s;
	ok(wait_until(sub { while (sysread $pty, my $more, 4096) { $seen .= $more } return $seen =~ /$frame.*$frame/s }), 'a terminal: redrawn');
	kill 'TERM', $pid;
	waitpid $pid, 0;
	my ($shown) = $seen =~ $frame;
	is(scalar(() = $shown =~ /\e\[K\r\n/g), 6, 'a terminal: as many lines as it has but one');
	like($shown, qr/^\d{4}-\S+Z\e\[K\r\n\e\[K\r\nNAME.*\e\[K\r\nc .*\e\[K\r\nb /, 'a terminal: what matters most');
	unlike($seen =~ s/^\e\[2J//r =~ s/$frame//gr, qr/\e(?!\[\?7l)/, 'a terminal: nothing else is changed');
}

# ---- a server that comes and goes ----

$run = DLockCli->start(qw(status --json --watch=0.05));
$run->wait_out(qr/"status"/);
$_->quit foreach @waiters;
$node->stop('immediate');
$run->wait_err(qr/trying again/);
my $seen = length $run->out;
$node->start;
ok(wait_until(sub { substr($run->out, $seen) =~ /"status".*"lease"/s }), 'the server is back');

# No statement of it is on its way meanwhile: one that has locked some of the views, and
# waits for another, would deadlock with the command that drops them all.
$run->signal('STOP');
ok(wait_until(sub { $node->safe_psql($db, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dlock%' AND backend_type = 'client backend' AND state <> 'idle'") == 0 }), 'nothing is on its way');
$node->safe_psql($db, 'DROP EXTENSION dlock');
$run->signal('CONT');
is($run->finish->{code}, 69, 'the extension is gone for good: exit code');
cli_is([qw(status --watch -d host=/nowhere)], { code => 69, err => qr/./ }, 'no server at first');

# ---- a standby ----

$node->safe_psql($db, 'CREATE EXTENSION dlock');
$node->safe_psql($db, "SELECT dlock_acquire('on primary', 'x', '1 h')");
my $standby = make_standby($node, 'standby');
$node->wait_for_catchup($standby);
cli_is([ qw(status --json -d), $standby->connstr($db) ], { out => qr/"kind":"lease","name":"on primary"/ }, 'on a standby');
done_testing();
