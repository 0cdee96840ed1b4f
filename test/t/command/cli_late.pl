# Proves, on a clock that the test sets: the command of dlock run is dead before its lease
# ends, though dlock is stuck in the name resolver; one that was kept from acting, since dlock
# was stopped, is killed when dlock goes on; a lease that is renewed is kept; and who is
# ended while it waits has left the queue.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockClock;
use DLockFault;
use DLockSession;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_fault_node('main', conf => "listen_addresses = 'localhost'\ndlock_test.worker = off\n");
my $db = 'postgres';
use_server($node);
my $ctl = DLockSession->new($node, $db, name => 'control');
my $dir = PostgreSQL::Test::Utils::tempdir();

# The command, and what it has started in its group.
sub start_run
{
	my ($name, @options) = @_;
	my $run = DLockCli->start(@options, 'run', '--ttl', 3, '--kill-after', 0, $name, 'sh', '-c', "sleep 1000 & echo \$\$ \$!; wait");

	$run->wait_out(qr/\d+ \d+\n/);
	return ($run, $run->out =~ /(\d+)/g);
}

# Time goes on until dlock has seen that the whole group is gone.
sub end_run
{
	my ($run) = @_;

	wait_until(sub { advance(0.02, $ctl); return $run->ended }) or die 'dlock does not end';
	return $run->finish;
}

sub runs
{
	return grep { my ($state) = process_stat($_); defined $state && $state !~ /[ZX]/ } @_;
}

sub is_held
{
	my ($name) = @_;
	return $ctl->query_safe("SELECT count(*) FROM dlock_leases WHERE name = '$name' AND state = 'held'");
}

# A lease that ends while a release is tried in vain was not lost: the command had ended.
{
	my $run = start_ride('--ttl', 3, '--kill-after', 0, 'outlived');

	$node->safe_psql('template1', "ALTER DATABASE $db WITH ALLOW_CONNECTIONS false");
	$ctl->query_safe("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'dlock'");
	append_to_file($run->{go}, '');
	wait_until(sub { my @left = child_pids($run->{pid}); @left == 0 }) or die 'the command does not end';
	is(end_run($run)->{code}, 3, 'away at the end, and the lease expires: the exit code of the command');
	like($run->{err}, qr/could not be released, and ends by itself/, 'away at the end: told');
	unlike($run->{err}, qr/lost/, 'away at the end: not lost');
	is(is_held('outlived'), 0, 'away at the end: it has expired');
	$node->safe_psql('template1', "ALTER DATABASE $db WITH ALLOW_CONNECTIONS true");
}

# Time goes on, and the lease is renewed.
{
	my ($run, @pids) = start_run('kept');
	foreach my $second (1 .. 10)
	{
		my $renewals = $ctl->query_safe('SELECT renewals FROM dlock_stats');
		advance(1, $ctl);
		ok(wait_until(sub { $ctl->query_safe('SELECT renewals FROM dlock_stats') > $renewals }), "second $second: renewed");
	}
	is(is_held('kept'), 1, 'kept: after ten seconds of a ttl of three');
	$run->signal('TERM');
	is(end_run($run)->{code}, 143, 'kept: ended');
}

# While it waits, a signal ends it, and leaves nothing behind.
foreach my $signal (['TERM', 143, 0], ['INT', 0, 2])
{
	my ($name, $code, $ended_by) = @$signal;
	$ctl->query_safe("SELECT dlock_acquire('q', 'holder', '1 h')");
	my $run = DLockCli->start(qw(run q true));
	run_waits($node, 'q');
	$run->signal($name);
	$run->finish;
	is("$run->{code} $run->{signal}", "$code $ended_by", "SIG$name: ends who waits");
	is($ctl->query_safe('SELECT count(*) FROM dlock_waiters'), 0, "SIG$name: who does not wait any more");
	$ctl->query_safe("SELECT dlock_release('q', 'holder')");
	is(is_held('q'), 0, "SIG$name: nothing was acquired");
}

# Stopped for longer than the lease.  That the command runs on until then is what fencing
# is for.
{
	my ($run, @pids) = start_run('stopped');
	$run->signal('STOP');
	wait_until(sub { my ($state) = process_stat($run->{pid}); $state eq 'T' });
	advance(3, $ctl);
	is(is_held('stopped'), 0, 'stopped: the lease has ended');
	is(scalar runs(@pids), 2, 'stopped: nobody stops the command');
	$run->signal('CONT');
	is(end_run($run)->{code}, 76, 'stopped: exit code');
	like($run->{err}, qr/could not be renewed in time; stopping the command\n.*detail: This process was stopped/, 'stopped: told');
	is(scalar runs(@pids), 0, 'stopped: all of the command is gone when dlock goes on');
}

# The server is lost, and the name resolver does not answer.
{
	chomp(my $compiler = `$ENV{PG_CONFIG} --cc`);
	append_to_file("$dir/hang.c", <<'EOC');
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <unistd.h>

int
getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result)
{
	int			(*next) (const char *, const char *, const struct addrinfo *, struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");

	while (access(getenv("HANG"), F_OK) == 0)
	{
		close(open(getenv("HUNG"), O_CREAT | O_WRONLY, 0600));
		usleep(10000);
	}
	return next(node, service, hints, result);
}
EOC
	system("$compiler -shared -fPIC -o '$dir/hang.so' '$dir/hang.c' -ldl") == 0 or die 'no compiler';
	my ($run, @pids) = start_run('resolver', { env => { PGHOST => 'localhost', LD_PRELOAD => "$dir/hang.so", HANG => "$dir/hang", HUNG => "$dir/hung" } });
	append_to_file("$dir/hang", '');
	$node->safe_psql($db, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'dlock'");
	$run->wait_err(qr/trying again/);
	advance(0.1, $ctl);
	ok(wait_until(sub { -e "$dir/hung" }), 'resolver: dlock is stuck in it');

	# The margin before the deadline is a twentieth of the ttl.
	advance(2.7499, $ctl);
	is(scalar runs(@pids), 2, 'resolver: the command runs until the margin');
	advance(0.0001, $ctl);
	ok(wait_until(sub { !runs(@pids) }), 'resolver: the command and what it has started are killed');
	is(is_held('resolver'), 1, 'resolver: while the lease is held');
	unlink "$dir/hang";
	is(end_run($run)->{code}, 76, 'resolver: exit code');
}

$ctl->quit;
$node->stop;
done_testing();
