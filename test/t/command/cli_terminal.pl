# Proves: under dlock run a terminal works as without it: the command has it, ^C and
# ^Z reach the command, a shell can put the job to sleep and bring it back, and in
# a pipeline the other end keeps it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use DLockCli;
use DLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'IO::Pty is needed' unless eval { require IO::Pty; 1 };

my $node = start_node('main');
my $db = 'postgres';
use_server($node);
my $dir = PostgreSQL::Test::Utils::tempdir();

# A shell with job control on a terminal of its own.
my $pty = IO::Pty->new;
my $screen = '';
my $shell = fork // die;
if ($shell == 0)
{
	$pty->make_slave_controlling_terminal;
	my $slave = $pty->slave;
	open STDIN, '<&', $slave;
	open STDOUT, '>&', $slave;
	open STDERR, '>&', $slave;
	$SIG{$_} = 'DEFAULT' foreach qw(INT QUIT TSTP TTIN TTOU);
	$ENV{PS1} = 'shell> ';
	$ENV{TERM} = 'dumb';
	$ENV{DL} = cli_program();
	exec 'bash', '--norc', '--noprofile', '--noediting', '-i';
}
$pty->close_slave;
$pty->blocking(0);

sub look
{
	while (sysread $pty, my $more, 4096) { $screen .= $more }
	return $screen;
}

# Type something, and wait for what the terminal shows from then on.
sub type
{
	my ($keys, $pattern, $test_name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	look();
	$screen = '';
	syswrite $pty, $keys;
	if (!ok(wait_until(sub { look() =~ $pattern }), $test_name))
	{
		# All that follows would be waited for in vain.
		diag($screen);
		kill 'KILL', $shell;
		die 'the terminal is not as it should be';
	}
	return;
}

my $prompt = qr/shell> \z/;
ok(wait_until(sub { look() =~ $prompt }), 'a shell');
type("stty -echo\n", $prompt, 'no echo');

# An interactive command.
type("PS1='inner> ' \$DL run tty sh -i\n", qr/inner> \z/, 'an interactive shell under it');
type("test -t 0 && test -t 1 && read x && echo got \$x\n", qr/\z/, 'it reads');
type("a line\n", qr/got a line\r\n.*inner> \z/s, 'it has the terminal');
type("sh -c 'echo up; exec sleep 600'\n", qr/up/, 'a job of its own');
type("\cC", qr/inner> \z/s, '^C ends the job and not the shell');
type("exit 7\n", $prompt, 'it ends');
type("echo code \$?\n", qr/code 7/, 'its exit code, and the shell has the terminal back');

# ^C ends the command, and a script that has called dlock.
# (A shell that is about to start another process can lose a ^C, hence exec.)
type("\$DL run tty sh -c 'echo up; exec sleep 600'\n", qr/up/, 'a command');
type("\cC", $prompt, '^C ends it');
type("echo code \$?\n", qr/code 130/, '^C: exit code');
type("sh -c '\$DL run tty sh -c \"echo up; exec sleep 600\"; echo not reached'; echo over\n", qr/up/, 'a script');
type("\cC", qr/\n?.*shell> \z/, '^C ends the script');
unlike($screen, qr/not reached/, 'and no line of it is run after that');

# ^Z, and back.
type("\$DL run tty sh -c 'echo up; read x; echo got \$x'\n", qr/up/, 'a command that reads');
type("\cZ", qr/Stopped.*shell> \z/s, '^Z stops it for the shell');
is($node->safe_psql($db, "SELECT count(*) FROM dlock_leases WHERE name = 'tty'"), 1, '^Z: the lease is there');
type("fg\n", qr/run tty/, 'fg brings it back');
type("line\n", qr/got line.*shell> \z/s, 'and it reads from the terminal');

# In the background it is stopped when it reads, and goes on in the foreground.
type("\$DL run tty sh -c 'read x; echo got \$x' &\n", $prompt, 'a command in the background');
ok(wait_until(sub { type_quietly("jobs\n") =~ /Stopped/ }), 'is stopped when it reads');
type("fg\n", qr/run tty/, 'fg');
type("back\n", qr/got back.*shell> \z/s, 'it reads then');

# Asleep for longer than the lease.
type("\$DL run --ttl 30 --kill-after 0.2 short sh -c 'echo up; read x; echo got \$x'\n", qr/up/, 'a short lease');
type("\cZ", qr/Stopped.*shell> \z/s, 'asleep');
$node->safe_psql($db, "SELECT dlock_renew_token(name, token, '1 ms') FROM dlock_leases WHERE name = 'short'");
ok($node->poll_query_until($db, "SELECT count(*) = 0 FROM dlock_leases WHERE name = 'short' AND state = 'held'"), 'the lease ends');
type("fg\n", $prompt, 'awake');
type("echo code \$?\n", qr/code 76/, 'too late: exit code');

# A terminal that was stopped takes no message, and the lease is renewed all the same.
type("\$DL run --ttl 60 stopped sh -c 'while [ ! -e $dir/go ]; do sleep 0.05; done; exit 3'\n", qr/\z/, 'a command');
my $held = "FROM dlock_leases WHERE name = 'stopped' AND state = 'held'";
ok($node->poll_query_until($db, "SELECT count(*) = 1 $held"), 'a lease');
syswrite $pty, "\cS";
$node->restart;
my $before = $node->safe_psql($db, "SELECT expires_at $held");
my $now;
wait_until(sub { $now = $node->safe_psql($db, "SELECT expires_at > timestamptz '$before' + '1 s' $held"); $now ne 'f' });
is($now, 't', '^S: renewed');
append_to_file("$dir/go", '');
type("\cQ", $prompt, '^Q');
type("echo code \$?\n", qr/code 3/, '^S: exit code');

# In a pipeline.
type("\$DL run tty sh -c 'seq 3; sleep 0.2' | (read x; read y </dev/tty; echo \$x \$y)\n", qr/\z/, 'a pipeline');
type("typed\n", qr/1 typed.*shell> \z/s, 'the other end has the terminal');
type("echo piped | \$DL run tty sh -c 'read x; read y </dev/tty; echo \$x \$y'\n", qr/\z/, 'a command that reads the terminal besides its input');
type("typed\n", qr/piped typed.*shell> \z/s, 'gets it when it needs it');

# Modes that a killed command leaves behind.
type("\$DL run tty sh -c 'stty raw -echo; kill -KILL \$\$'; stty -a\n", qr/[^-]icanon.*shell> \z/s, 'the modes of the terminal are restored');

syswrite $pty, "exit\n";
ok(wait_until(sub { look(); waitpid($shell, 1) == $shell }), 'the shell ends');
is($node->safe_psql($db, 'SELECT count(*) FROM dlock_leases WHERE state = \'held\''), 0, 'nothing is held');
$node->stop;
done_testing();

sub type_quietly
{
	my ($keys) = @_;

	look();
	$screen = '';
	syswrite $pty, $keys;
	wait_until(sub { look() =~ $prompt }, 5);
	return $screen;
}
