# Proves: dlock keeps its place while it waits for a lock, comes back when its connection
# is lost, and takes a lease for its own only if it is, whatever becomes of the answer.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockProxy;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = init_node('main');
$node->start;
my $db = 'postgres';
$node->safe_psql($db, 'CREATE EXTENSION dlock');
use_server($node);
my $dir = PostgreSQL::Test::Utils::tempdir();

sub sql
{
	my ($sql, $on) = @_;
	return ($on // $node)->safe_psql($db, $sql);
}

# The backends of dlock commands.
sub backends
{
	return split /\n/, sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'dlock'");
}

my %cut = (
	'a restart' => sub { $node->restart },
	'a terminated backend' => sub { sql("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'dlock'") });
# A wait is one statement without a limit, so that nothing gives up the place in the queue.
{
	sql("SELECT dlock_acquire('wait', 'holder', '1 h')");
	my $before = -s $node->logfile;
	my $run = DLockCli->start({ env => { PGOPTIONS => '-c log_statement=all' } }, qw(run wait true));
	run_waits($node, 'wait');
	my $log = substr slurp_file($node->logfile), $before;
	my @waits = $log =~ /dlock_acquire\(name => .*\n.*[Pp]arameters: .*\$4 = ([^,]+),/g;
	is("@waits", "'00:00:00' NULL", 'asks once without waiting, and then waits') or diag($log);
	sql("SELECT dlock_release('wait', 'holder')");
	is($run->finish->{code}, 0, 'and gets the lock');
}

# The answer to the release is lost on the way: the lease was held until then.
without_release_answers($node,
	sub { cli_is([ qw(run --ttl 600 unheard sh -c), 'exit 3' ], { code => 3 }, 'a lost answer to the release') });

# A signal that comes while the release waits for the server ends an election, too.
{
	my $run = DLockCli->start(qw(elect election), 'sh', '-c', "echo up; while [ ! -e $dir/end ]; do sleep 0.05; done");
	$run->wait_out(qr/up/);
	$node->stop('immediate');
	append_to_file("$dir/end", '');
	wait_until(sub { my @left = child_pids($run->{pid}); @left == 0 }) or die 'the command does not end';
	$run->signal('TERM');
	is($run->finish->{code}, 0, 'a signal while it releases: the end');
	$node->start;
	sql("SELECT dlock_force_release('election', 'next') FROM generate_series(1, 2)");
}

# While it waits.
foreach my $what (sort keys %cut)
{
	sql("SELECT dlock_acquire('wait', 'holder', '1 h')");
	my $run = DLockCli->start(qw(run wait sh -c), 'echo up');
	run_waits($node, 'wait');
	my ($old) = backends();
	$cut{$what}->();
	run_waits($node, 'wait');
	isnt((backends())[0], $old, "waiting, $what: waits again");
	is($run->out, '', "waiting, $what: does not run");
	sql("SELECT dlock_release('wait', 'holder')");
	is($run->finish->{code}, 0, "waiting, $what: gets it");
	is($run->{out}, "up\n", "waiting, $what: runs");
	is(sql('SELECT count(*) FROM dlock_leases'), 0, "waiting, $what: released");
}

# The answer to a request is lost on the way: the lease is the one that was granted.
{
	sql("SELECT dlock_acquire('wait', 'holder', '1 h')");
	my ($proxy, $pid) = start_proxy($node, 0);
	my $hosts = "host=$proxy," . $node->host . ' port=' . join(',', ($node->port) x 2);
	my $run = DLockCli->start('run', '-d', $hosts, qw(--ttl 600 wait sh -c), 'echo "token $DLOCK_TOKEN"');
	run_waits($node, 'wait');
	kill 'STOP', -$pid;
	sql("SELECT dlock_release('wait', 'holder')");
	my $token = '';
	ok(wait_until(sub { ($token = sql("SELECT token FROM dlock_leases WHERE name = 'wait' AND owner <> 'holder'")) ne '' }),
		'lost answer: granted');
	is($run->out, '', 'lost answer: and not told');
	end_proxy($pid);
	is($run->finish->{code}, 0, 'lost answer: gets it');
	cmp_ok(($run->{out} =~ /(\d+)/)[0], '>=', $token, 'lost answer: the same lease, or a later one');
	is(sql('SELECT count(*) FROM dlock_leases'), 0, 'lost answer: nothing is left');
}

# An owner that is given may be that of others: a lease of that owner is not taken for the
# one that was asked for, nor for that of somebody else.
{
	my $proxy = DLockProxy->start($node);
	my @acquire = ('acquire', '-d', "host=$proxy->{host} port=$proxy->{port}", qw(--ttl 1h --owner ci));

	$proxy->set('cut', 'dlock_acquire(name');
	cli_is([ @acquire, 'many' ], { out => qr/^\d+\n\z/ }, 'an owner of many: asked again');
	foreach my $wait ([], ['-n'], [qw(-w 600)])
	{
		$proxy->set('cut', 'dlock_acquire(name');
		cli_is([ @acquire, @$wait, 'many' ], { code => 69, out => '', err => qr/answer .* was lost\n.*detail: The server may have granted a lease to owner "ci"/ },
			"an owner of many: no answer, and a lease of the owner, @$wait");
	}
	cli_is([ @acquire, '-n', 'many' ], { code => 75, out => '', err => qr/was not acquired/ }, 'an owner of many: refused');
	sql("SELECT dlock_force_release('many', 'test')");

	# A lock that somebody else holds is refused, whatever became of the answer.
	sql("SELECT dlock_acquire('other', 'holder', '1 h')");
	foreach my $wait (['-n'], [qw(-w 1)])
	{
		$proxy->set('cut', 'dlock_acquire(name');
		cli_is([ @acquire, '-v', @$wait, 'other' ], { code => 75, out => '', err => qr/connecting again\n.*was not acquired\n.*It is held by "holder"/s },
			"an owner of many: no answer, and a lease of somebody else, @$wait");
	}
	my $run = DLockCli->start(@acquire, qw(-w 5 other));
	wait_until(sub { $run->ended || sql("SELECT count(*) FROM dlock_waiters WHERE name = 'other'") == 1 });
	$proxy->set('cut');
	is($run->finish->{code}, 75, 'an owner of many: a wait that is broken, and a lease of somebody else');

	# What was granted while nothing came through is not given back.
	$run = DLockCli->start(@acquire, 'other');
	run_waits($node, 'other');
	$proxy->set('deaf');
	$proxy->set('silent');
	$run->signal('TERM');
	is($run->finish->{code}, 143, 'an owner of many: a signal, and no answer to the cancel');
	like($run->{err}, qr/^dlock: warning: the server may have granted a lease on "other" to owner "ci"$/m, 'an owner of many: a signal, and no answer to the cancel: told');
	$proxy->set('pass');
	ok($node->poll_query_until($db, 'SELECT count(*) = 0 FROM dlock_waiters'), 'an owner of many: a signal, and no answer to the cancel: the wait ends');
	sql("SELECT dlock_release('other', 'holder')");
}

done_testing();
